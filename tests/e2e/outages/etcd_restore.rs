//! etcd is restored from a copy that is older than the ledger.

use std::collections::BTreeMap;

use bed::Namespace;
use bed::census::Seen;
use bed::site::Site;
use serde_json::json;
use testbed::Version;

on_versions! {
    sid: deleted_htcjob_restored_from_etcd_is_not_submitted, etcd_restore_to_a_lower_revision_restarts_the_operator;
}

/// One that was never submitted, one that runs, and one that has ended.
const NAMES: [&str; 3] = ["waits", "runs", "done"];

/// What was deleted since the copy lives again, with its uid, while the operator runs or before it is started: it says so, nothing of
/// it is submitted, whatever it asks for, and deleted again it goes.
fn deleted_htcjob_restored_from_etcd_is_not_submitted(version: Version) {
    let site = Site::with(version, "", bed::LONG_SUBMISSIONS);
    let bed = &site.bed;
    bed.start_operator();
    let here = bed.namespace();
    let mut waits = site.noted("waits", 1, "");
    waits["spec"]["suspend"] = true.into();
    here.create(&waits);
    here.create(&site.noted("done", 1, ""));
    site.start_lasting(&here, &["runs"]);
    site.assert_complete_once(&here, "done", 1);
    here.wait_says("waits", "Submitted", "False", "Suspended");
    let uids = NAMES.map(|name| here.uid(name));

    let copy = bed.kube.copy_stored("htc.cern.ch/htcjobs", &here.name).unwrap();
    assert_eq!(copy.keys(), NAMES.len());
    for name in NAMES {
        here.delete(name);
    }
    let before = had(&site, &uids);
    assert_eq!(before.values().map(Vec::len).sum::<usize>(), 2, "{before:#?}");
    for stopped in [false, true] {
        if stopped {
            bed.stop_operator();
        }
        bed.kube.put_back(&copy).unwrap();
        if stopped {
            bed.start_operator();
        }
        for (name, uid) in NAMES.iter().zip(&uids) {
            let message = here.wait_says(name, "Submitted", "False", "WasDeleted");
            assert!(message.contains("Its jobs were removed") && message.contains("Delete it"), "{message}");
            assert_eq!(&here.uid(name), uid);
            here.event_message(name, "WasDeleted");
        }
        // What stood against its submission is taken away, and a person asks for it. What is created after that has run when it
        // is looked.
        here.suspend("waits", false);
        for name in NAMES {
            here.annotate(name, "htc.cern.ch/submit-again");
        }
        wait_observed(&here, "waits");
        let later = format!("later-{stopped}");
        here.create(&site.noted(&later, 1, ""));
        site.assert_complete_once(&here, &later, 1);
        assert_over(&site, &uids, &before);
        for name in NAMES {
            assert_eq!(here.get(name)["status"]["phase"], "Terminating", "{name}");
            here.delete(name);
        }
    }
    assert_over(&site, &uids, &before);
}

/// The same with the whole of etcd, whose revisions fall: watches go on, and give nothing until the revisions are what they were. The
/// operator exits, and lists everything when it is started again.
fn etcd_restore_to_a_lower_revision_restarts_the_operator(version: Version) {
    let site = Site::with(version, "", bed::LONG_SUBMISSIONS);
    let bed = &site.bed;
    bed.start_operator();
    let here = bed.namespace();
    here.create(&site.noted("before", 1, ""));
    site.start_lasting(&here, &["runs"]);
    site.assert_complete_once(&here, "before", 1);
    let running = here.get("runs");

    let copy = bed.kube.copy_etcd().unwrap();
    // More than what is written between the restore and the end of this test.
    let filler = |index| json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": format!("filler-{index}"), "namespace": here.name } });
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": (0..300).map(filler).collect::<Vec<_>>() });
    bed.kube.apply_stdin(&list.to_string()).unwrap();
    // All watches have seen it.
    here.create(&site.noted("later", 1, ""));
    site.assert_complete_once(&here, "later", 1);

    bed.kube.restore_etcd(&copy).unwrap();
    here.create(&site.noted("after", 1, ""));
    assert!(!bed.wait_operator().success(), "{}", bed.log());
    assert!(bed.log().contains("restored from an older copy"), "{}", bed.log());
    bed.start_operator();
    site.assert_complete_once(&here, "after", 1);
    assert!(!bed.log().contains("ledger incomplete"), "{}", bed.log());
    site.finish("runs");
    let ended = site.assert_complete_once(&here, "runs", 1);
    assert_eq!(ended["status"]["jobid"], running["status"]["jobid"]);
}

/// The operator has seen the object as it is now.
fn wait_observed(here: &Namespace<'_>, name: &str) {
    here.wait(name, "seen", |object| object["status"]["observedGeneration"] == object["metadata"]["generation"]);
}

/// All jobs that HTCondor has or had of these.
fn had(site: &Site, uids: &[String]) -> BTreeMap<String, Vec<Seen>> {
    uids.iter().map(|uid| (uid.clone(), site.bed.jobs_of(uid))).collect()
}

/// HTCondor has had no other jobs of these than before, and no payload has run again.
fn assert_over(site: &Site, uids: &[String], before: &BTreeMap<String, Vec<Seen>>) {
    let _promise = bed::Promise;
    assert_eq!(&had(site, uids), before);
    for (name, runs) in NAMES.iter().zip([0, 1, 1]) {
        assert_eq!(site.runs(name, 0), runs, "{name}");
    }
}
