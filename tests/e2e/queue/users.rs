//! Roles for HTCQueues, and an operator without queues.

use serde_json::json;
use testbed::Version;

use crate::plugin::submit_and_retry::htc;
use bed::checkout;
use bed::site::Site;

use super::site::{Queued, labelled, wait_quota};

on_versions! {
    trixie: roles_of_deploy_view_and_edit_queues;
    long: queue_label_is_reported_while_queueing_is_off;
}

/// With the roles of `deploy/crd`.
fn roles_of_deploy_view_and_edit_queues(version: Version) {
    let queued = Queued::start(version);
    let bed = &queued.site.bed;
    let here = bed.namespace();
    queued.queue("batch", &json!({ "quota": { "jobs": 2 } }));
    let users = checkout().join("deploy/crd/users.yaml");
    bed.kube.kubectl_ok(&["apply", "-f", users.to_str().unwrap()]).unwrap();
    let bind = |role: &str, user: &str| {
        let (name, role, user) = (format!("{user}-{role}"), format!("--clusterrole={role}"), format!("--user={user}"));
        bed.kube.kubectl_ok(&["create", "clusterrolebinding", &name, &role, &user]).unwrap();
    };
    let (ann, admin, nobody) = (here.person("ann", &[]), here.person("boss", &[]), here.person("eve", &[]));
    bind("htcqueues-view", &ann.name);
    bind("htcqueues-edit", &admin.name);
    let shown = ann.comes_to_see(&["get", "htcqueues"]);
    assert!(shown.contains("QUOTA") && shown.contains("WAITING") && shown.contains("batch"), "{shown}");
    let raise = ["patch", "htcqueue", "batch", "--type=merge", "-p", r#"{"spec":{"quota":{"jobs":3}}}"#];
    for (who, arguments) in [(&ann, &raise[..]), (&nobody, &["get", "htcqueues"][..])] {
        let refused = who.kubectl(arguments);
        assert!(!refused.status.success() && refused.stderr.contains("forbidden"), "{refused:?}");
    }
    admin.comes_to_see(&raise);
    assert_eq!(queued.get("batch")["spec"]["quota"]["jobs"], 3);
    let queue = queued.wait("batch", "it is seen", |status| status["conditions"][0]["reason"] == "Ready");
    assert_eq!(queue["status"]["used"]["jobs"], 0);
    let (code, all, error) = htc(&here, &["queue"]);
    assert!(
        code == 0 && all == "batch: [--------------------] 0 of 3 jobs; 0 jobs of 0 HTCJobs wait; Ready\n",
        "{all}{error}"
    );
    let (code, page, error) = htc(&here, &["queue", "batch"]);
    assert!(code == 0 && page.starts_with("HTCQueue batch\n  Ready: it is for "), "{page}{error}");
    let wrong = json!({ "queueingStrategy": "StrictFIFO", "fairSharing": true }).to_string();
    let patch = format!(r#"{{"spec":{wrong}}}"#);
    let refused = admin.kubectl(&["patch", "htcqueue", "batch", "--type=merge", "-p", &patch]);
    assert!(refused.stderr.contains("leave fairSharing out"), "{refused:?}");
}

/// A queue label is refused, not ignored; without the label the HTCJob runs.
fn queue_label_is_reported_while_queueing_is_off(version: Version) {
    let site = Site::start(version);
    let bed = &site.bed;
    let here = bed.namespace();
    let uid = here.create(&labelled(site.noted("labelled", 1, ""), "batch"));
    here.create(&site.noted("plain", 1, ""));
    site.assert_complete_once(&here, "plain", 1);
    let message = wait_quota(&here, "labelled", "False", "Misconfigured");
    assert!(message.contains("--queueing=none"), "{message}");
    assert!(bed.jobs_of(&uid).is_empty());
    here.kubectl(&["label", "htcjob", "labelled", "kueue.x-k8s.io/queue-name-"]);
    site.assert_complete_once(&here, "labelled", 1);
    wait_quota(&here, "labelled", "True", "NoQueue");
}
