//! The environment of payloads on workers, as the table in docs/using.md has it.

use std::fs;

use bed::is_true;
use testbed::Version;
use testbed::environment::Column;

use super::super::site::{delete, wait_ready};
use super::node::Node;
use super::{Cluster, POOL, apply, ends_well, fixed, lasting, pool};
use crate::environment::{assert_documented, printing, write_interpreter};

on_versions! {
    both: payload_on_a_worker_has_the_documented_environment;
    trixie: shared_memory_of_a_job_is_free_for_the_next_one;
}

fn payload_on_a_worker_has_the_documented_environment(version: Version) {
    let cluster = Cluster::start(version, true);
    let here = cluster.namespace();
    Node::run(&cluster.bed, &here.name, version, |node| {
        write_interpreter(&node.runs);
        apply(&here, pool(&fixed(1)));
        wait_ready(&here, POOL, "Answering");
        let mark = format!("left-in-{}", here.name);
        here.create(&printing(lasting("environment"), "/runs", &mark));
        assert_documented(&here, "environment", Column::Worker, &mark);
        here.delete("environment");
        delete(&here, POOL);
    });
}

/// While another job runs beside it, nothing is removed.
fn shared_memory_of_a_job_is_free_for_the_next_one(version: Version) {
    let cluster = Cluster::start(version, true);
    let here = cluster.namespace();
    Node::run(&cluster.bed, &here.name, version, |node| {
        apply(&here, pool(&fixed(1)));
        wait_ready(&here, POOL, "Answering");
        let lists = |name: &str, more: &str| {
            let mut object = lasting(name);
            object["spec"]["script"]["source"] = format!("ls /dev/shm >/runs/{name}; {more}").into();
            here.create(&object);
            let ended = here.wait_ended(name);
            assert!(is_true(&ended, "Complete"), "{ended:#}");
            fs::read_to_string(node.runs.join(name)).unwrap()
        };
        here.create(&lasting("beside"));
        here.wait_phase("beside", "Running");
        assert_eq!(lists("leaves", "mkdir /dev/shm/left"), "");
        assert_eq!(lists("finds", "true"), "left\n");
        ends_well(&here, node, "beside");
        assert_eq!(lists("alone", "true"), "");
        for name in ["beside", "leaves", "finds", "alone"] {
            here.delete(name);
        }
        delete(&here, POOL);
    });
}
