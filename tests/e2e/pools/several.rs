//! Two pools side by side.

use testbed::Version;

use super::site::{Pools, delete, wait_ready};

/// Both pools have jobs 1.0 and 2.0, of HTCJobs of one operator, which is killed while they run.
pub fn jobs_with_the_same_ids_are_not_mistaken_for_one_another(version: Version) {
    let pools = Pools::start(version);
    let bed = &pools.site.bed;
    let here = bed.namespace();
    for name in ["first-doomed", "first"] {
        pools.site.start_lasting(&here, &[name]);
    }
    pools.start_lasting(&here, &["doomed", "stays"]);
    wait_ready(&here, "second", "Answering");
    let [first, doomed, stays] = ["first", "doomed", "stays"].map(|name| here.uid(name));
    assert_eq!(here.get("doomed")["status"]["jobid"], here.get("first-doomed")["status"]["jobid"], "the ids are equal");
    assert_eq!((pools.in_first(&doomed), pools.in_first(&stays)), (0, 0));

    bed.kill_operator();
    bed.start_operator();
    for name in ["doomed", "first"] {
        here.delete(name);
    }
    assert!(pools.queue(&doomed).is_empty() && pools.queue(&stays).len() == 1);
    assert!(bed.queue(&bed::of(&first), &["ClusterId"]).is_empty());
    for name in ["first-doomed", "stays"] {
        assert_eq!(here.get(name)["status"]["phase"], "Running", "{name}");
        pools.site.finish(name);
        here.wait_ended(name);
        assert!(here.output(name, 0).join("out").exists());
        pools.ends_well(&here, name);
    }
    delete(&here, "second");
}

/// The schedd of one pool is stopped: HTCJobs of the other one run, and are deleted.
pub fn one_that_hangs_holds_up_no_other(version: Version) {
    let pools = Pools::start(version);
    let bed = &pools.site.bed;
    let here = bed.namespace();
    pools.start_lasting(&here, &["waits"]);
    wait_ready(&here, "second", "Answering");
    pools.second.pause_schedd().unwrap();
    for number in 0..3 {
        here.create(&pools.noted(&format!("late-{number}"), 1, "second"));
    }
    let message = wait_ready(&here, "second", "ScheddUnreachable");
    assert!(message.contains("does not answer"), "{message}");
    let names: Vec<String> = (0..5).map(|number| format!("here-{number}")).collect();
    for name in &names {
        here.create(&pools.site.noted(name, 1, ""));
    }
    for name in &names {
        pools.ends_well(&here, name);
    }
    assert_eq!(here.get("waits")["status"]["phase"], "Running");
    pools.second.resume_schedd().unwrap();
    wait_ready(&here, "second", "Answering");
    pools.site.finish("waits");
    for name in ["waits", "late-0", "late-1", "late-2"] {
        pools.ends_well(&here, name);
    }
    delete(&here, "second");
}
