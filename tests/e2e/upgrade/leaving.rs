//! Jobs that leave the queue between the look that finds them and the condor_qedit that adopts them.

use testbed::{PoolOptions, Version, wait_for};

use crate::upgrade::old::Old;
use bed::gates::Gates;
use bed::{Bed, PATIENCE, condition};

on_versions! {
    sid: out_of_a_queue_with_others;
    long: out_of_a_queue_that_is_empty_then;
}

const NEVER: &str = "requirements = (NoSuchMachine =?= true)";

/// condor_qedit then says `Failed to set attribute … by constraint`, as it does of jobs of somebody else.
fn while_they_are_adopted(version: Version, others: bool) {
    let gates = Gates::new(version);
    let bed = Bed::new(version, &PoolOptions::default(), &[&gates.argument(), "--tool-limit=120s"]);
    let old = Old::new(&bed);
    let here = bed.namespace();
    let (_, one) = old.run(&here, "one", &[1, 1], NEVER);
    let (_, two) = old.run(&here, "two", &[1], NEVER);
    let other = others.then(|| old.submit(&bed.condor, "other", 1, NEVER));
    old.leave_database();
    gates.shut("condor_qedit");
    bed.start_operator();
    gates.wait_at("condor_qedit");
    for leaving in [&one, &two] {
        bed.condor.ok("condor_rm", &[leaving.ids[0].split('.').next().unwrap()]).unwrap();
        leaving.wait_gone(&bed);
    }
    assert_eq!(bed.queue("true", &["ClusterId"]).len(), usize::from(others));
    gates.open("condor_qedit");
    for (name, jobs) in [("one", 2), ("two", 1)] {
        let ended = here.wait_ended(name);
        assert_eq!(ended["status"]["failed"], jobs, "{ended:#}");
        assert_eq!(condition(&ended, "Failed").unwrap()["reason"], "Removed");
        let told: Vec<_> = here.events(name).into_iter().map(|(reason, _)| reason).collect();
        assert!(!told.iter().any(|reason| reason == "CredentialsRefused"), "{told:?}");
    }
    let calls = gates.calls("condor_qedit");
    assert!(calls >= 1);
    let log = bed.log();
    assert!(!log.contains("cannot be adopted") && !log.contains("an HTCondor tool failed"), "{log}");
    if let Some(other) = other {
        assert_eq!(other.queued(&bed), 1);
    }
    // The call that found nothing has ended, and is not made again.
    wait_for("the requests to be resolved", PATIENCE, || {
        let open = bed.ledger("select count(*) from requests where kind = 'Adopt' and finishedAt is null");
        open.is_ok_and(|rows| rows == [["0"]])
    })
    .unwrap();
    assert_eq!(
        bed.ledger("select failure from requests where kind = 'Adopt' and failure is not null").unwrap().len(),
        0
    );
}

fn out_of_a_queue_with_others(version: Version) {
    while_they_are_adopted(version, true);
}

fn out_of_a_queue_that_is_empty_then(version: Version) {
    while_they_are_adopted(version, false);
}
