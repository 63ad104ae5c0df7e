//! An HTCJob with the annotation `htc.cern.ch/abandon` is deleted: its jobs do not keep running.

use testbed::Version;

use bed::site::Site;
use bed::{Promise, of};

on_versions! {
    trixie: abandoned_htcjob_keeps_its_finalizer_until_condor_rm_ends;
}

/// The finalizer stays until `condor_rm` has ended, and the jobs are gone then: abandoned HTCJobs keep no slots of the
/// pool.
///
/// It fails if an abandoned HTCJob is let go at once (`abandon` instead of `remove_once_and_abandon`): no `condor_rm` is called.
///
/// Against b8ba2a8: succeeds. The HTCJob is let go at once, with its jobs running, and no `condor_rm` is called.
fn abandoned_htcjob_keeps_its_finalizer_until_condor_rm_ends(version: Version) {
    let site = Site::start(version);
    let here = site.bed.namespace();
    let uid = here.create(&site.lasting("left", 2));
    here.wait_running("left", 2);
    site.gates.shut("condor_rm");
    here.annotate("left", "htc.cern.ch/abandon");
    here.begin_delete("left");
    site.gates.wait_at("condor_rm");
    let object = here.get("left");
    assert!(!object["metadata"]["finalizers"].is_null(), "{object:#}");
    assert_eq!(site.bed.queue(&of(&uid), &["JobStatus"]), [["2"], ["2"]]);
    site.gates.open("condor_rm");
    here.wait_gone("left");
    assert_eq!(site.gates.calls("condor_rm"), 1, "{}", site.bed.log());
    here.wait_nothing_left(&uid);
    let _promise = Promise;
    let rows = site.bed.history(&of(&uid), &["JobStatus", "RemoveReason"]);
    assert!(
        rows.len() == 2 && rows.iter().all(|row| row[0] == "3" && row.join(" ").contains("htc-operator")),
        "{rows:?}"
    );
}
