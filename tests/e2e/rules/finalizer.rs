//! The finalizer, before anything else.

use testbed::{Fault, Rule, Version, wait_for};

use bed::site::Site;
use bed::{LONG_SUBMISSIONS, PATIENCE};

on_versions! {
    trixie: htcjob_without_its_finalizer_is_not_submitted;
}

/// `finalizer_first`: before it stands, an object is neither submitted nor in the ledger, and goes when its user says so.
fn htcjob_without_its_finalizer_is_not_submitted(version: Version) {
    let site = Site::with(version, "", LONG_SUBMISSIONS);
    let proxy = site.bed.kube.proxy().unwrap();
    site.bed.through(&proxy);
    let refused = Fault::Status(500, None);
    proxy.add(Rule::new("PATCH", "/htcjobs/", refused.clone()));
    site.bed.start_operator();
    let here = site.bed.namespace();
    for name in ["kept", "deleted"] {
        here.create(&site.noted(name, 1, ""));
    }
    wait_for("some tries to attach it", PATIENCE, || proxy.spoiled(&refused) >= 6).unwrap();
    assert!(here.all().iter().all(|object| object["metadata"]["finalizers"].is_null()));
    let rows = site.bed.ledger("select name from objects").unwrap();
    assert!(rows.is_empty(), "in the ledger without a finalizer: {rows:?}");
    assert_eq!(site.gates.calls("condor_submit"), 0);
    here.delete("deleted");
    proxy.clear();
    let ended = site.assert_complete_once(&here, "kept", 1);
    assert_eq!(ended["status"]["attempt"], 1);
    assert_eq!(site.gates.calls("condor_submit"), 1, "only of `kept`");
}
