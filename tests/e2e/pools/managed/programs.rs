//! Programs without a script on workers, which are containers themselves.

use bed::{htcjob_of_container, is_true};
use serde_json::{Value, json};
use testbed::Version;

use super::super::site::{delete, wait_ready, with_pool};
use super::node::Node;
use super::{Cluster, IMAGE, POOL, apply, fixed, pool};

on_versions! {
    trixie: command_runs_on_workers_and_an_entrypoint_is_refused;
}

fn command_runs_on_workers_and_an_entrypoint_is_refused(version: Version) {
    let cluster = Cluster::start(version, true);
    let here = cluster.namespace();
    Node::run(&cluster.bed, &here.name, version, |_| {
        apply(&here, pool(&fixed(1)));
        wait_ready(&here, POOL, "Answering");
        let entrypoint = json!({ "image": IMAGE, "args": ["x"] });
        here.create(&with_pool(htcjob_of_container("entrypoint", &entrypoint), POOL));
        let message = here.wait_says("entrypoint", "Submitted", "False", "NoWorkerFits");
        assert!(message.contains("a worker does not know the entrypoint of its image"), "{message}");
        assert_eq!(here.get("entrypoint")["status"]["attempt"], Value::Null);

        let command = json!(["sh", "-c", "printf '<%s>' \"$@\"", "x"]);
        let container = json!({ "image": IMAGE, "command": command, "args": ["", "$(x) ${index}", "${item}\n"] });
        let mut object = with_pool(htcjob_of_container("command", &container), POOL);
        object["spec"]["items"] = json!(["`a b`", "c"]);
        here.create(&object);
        let ended = here.wait_ended("command");
        assert!(is_true(&ended, "Complete"), "{ended:#}\n{}", here.bed.logs());
        here.wait_output("command");
        for (index, printed) in [(0, "<><$(x) 0><`a b`\n>"), (1, "<><$(x) 1><c\n>")] {
            let out = std::fs::read_to_string(here.output("command", index).join("out")).unwrap();
            assert_eq!(out, printed);
        }
        for name in ["entrypoint", "command"] {
            here.delete(name);
        }
        delete(&here, POOL);
    });
}
