//! Jobs that leave the queue between the look that finds them and the condor_qedit that adopts them.

use testbed::{PoolOptions, Version};

use crate::upgrade::old::Old;
use bed::gates::Gates;
use bed::{Bed, condition};

on_versions! {
    sid: jobs_that_leave_a_shared_queue_are_adopted_as_removed;
    long: jobs_that_leave_the_queue_empty_are_adopted_as_removed;
}

const NEVER: &str = "requirements = (NoSuchMachine =?= true)";

/// condor_qedit then says `Failed to set attribute … by constraint`, as it does of jobs of somebody else.
fn while_they_are_adopted(version: Version, others: bool) {
    let gates = Gates::new(version);
    let bed = Bed::new(version, &PoolOptions::default(), &[&gates.argument(), "--tool-timeout=120s"]);
    let old = Old::new(&bed);
    let here = bed.namespace();
    let (_, one) = old.run(&here, "one", &[1, 1], NEVER);
    let (_, two) = old.run(&here, "two", &[1], NEVER);
    let other = others.then(|| old.submit(&bed.condor, "other", 1, NEVER));
    old.leave_database();
    gates.shut("condor_qedit");
    let (well, output) = std::thread::scope(|scope| {
        let adopting = scope.spawn(|| bed.adopt());
        gates.wait_at("condor_qedit");
        for leaving in [&one, &two] {
            bed.condor.ok("condor_rm", &[leaving.ids[0].split('.').next().unwrap()]).unwrap();
            leaving.wait_gone(&bed);
        }
        assert_eq!(bed.queue("true", &["ClusterId"]).len(), usize::from(others));
        gates.open("condor_qedit");
        adopting.join().unwrap()
    });
    assert!(well && !output.contains("cannot be adopted"), "{output}");
    bed.start_operator();
    for (name, jobs) in [("one", 2), ("two", 1)] {
        let ended = here.wait_ended(name);
        assert_eq!(ended["status"]["failed"], jobs, "{ended:#}");
        assert_eq!(condition(&ended, "Failed").unwrap()["reason"], "Removed");
        let told: Vec<_> = here.events(name).into_iter().map(|(reason, _)| reason).collect();
        assert!(!told.iter().any(|reason| reason == "CredentialsRefused"), "{told:?}");
    }
    if let Some(other) = other {
        assert_eq!(other.queued(&bed), 1);
    }
}

fn jobs_that_leave_a_shared_queue_are_adopted_as_removed(version: Version) {
    while_they_are_adopted(version, true);
}

fn jobs_that_leave_the_queue_empty_are_adopted_as_removed(version: Version) {
    while_they_are_adopted(version, false);
}
