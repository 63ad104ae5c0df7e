//! Ads of jobs that the user of a Secret edits.

use testbed::{Client, Version, wait_for};

use crate::credentials::site::{Site, put_secret, wait_says, with_secret};
use bed::{OFTEN, PATIENCE, UNTIL_LET_GO, ids, is_true};

on_versions! {
    trixie: oversized_ads_delay_only_their_own_htcjob;
    sid: malformed_ads_delay_only_their_own_htcjobs;
}

/// Crooked, nameless and huge ads in alice's name hold up neither her other HTCJobs nor anybody else's; hers that have such a job are
/// neither lost nor let go.
fn malformed_ads_delay_only_their_own_htcjobs(version: Version) {
    let site = Site::start(version);
    let (hers, ours) = (site.bed.namespace(), site.bed.namespace());
    put_secret(&hers, "mine", &[("token", site.token("alice@test", &[]).as_bytes())]);
    hers.let_read_secret("mine");
    for name in ["crooked", "nameless", "huge", "doomed"] {
        hers.create(&with_secret(name, "mine", UNTIL_LET_GO));
    }
    ours.create(&bed::htcjob("runs", UNTIL_LET_GO));
    let job = |name: &str| ids(&hers.wait_phase(name, "Running")).remove(0);
    let [crooked, nameless, huge, doomed] = ["crooked", "nameless", "huge", "doomed"].map(job);
    ours.wait_phase("runs", "Running");
    let operator = site.bed.queue("true", &["HTCOperator"])[0][0].clone();

    let alice = site.bed.pool.client("alice@test").unwrap();
    let edit = |id: &str, name: &str, value: &str| alice.ok("condor_qedit", &[id, name, value]).unwrap();
    edit(&crooked, "HTCJobAttempt", "\"x\"");
    edit(&doomed, "HTCJobIndex", "1e999");
    edit(&nameless, "HTCJobUID", "undefined");
    edit(&huge, "RemoveReason", &format!("\"{}\"", "x".repeat(100_000)));
    let stray = stray(&alice, &operator);

    let incomplete = |name: &str, id: &str| wait_says(&hers, name, "Tracked", "AnswerIncomplete", id);
    incomplete("crooked", &crooked);
    incomplete("nameless", &nameless);
    // Nobody else is held up: what runs ends, what is new is submitted, what is deleted goes.
    let ended = ours.let_go("runs");
    assert!(is_true(&ended, "Complete"), "{ended:#}");
    ours.delete("runs");
    ours.create(&bed::htcjob("new", "echo A"));
    let ended = ours.wait_ended("new");
    assert!(is_true(&ended, "Complete"), "{ended:#}");
    ours.delete("new");
    let ended = hers.let_go("huge");
    assert!(is_true(&ended, "Complete"), "{ended:#}");
    hers.delete("huge");
    // Its job still says that it is its: it is removed, and nothing is in doubt any more.
    hers.delete("doomed");

    let (well, output) = site.bed.check();
    assert!(well && output.contains("3 more have ads that cannot be read"), "{output}");
    for name in ["crooked", "nameless"] {
        assert_eq!(hers.get(name)["status"]["phase"], "Running", "{name}");
        assert_eq!(hers.get(name)["status"]["attempt"], 1, "{name}");
    }
    // One that is deleted waits for the job that does not say any more that it is its.
    hers.begin_delete("nameless");
    wait_says(&hers, "nameless", "JobsRemoved", "AnswerIncomplete", &nameless);
    alice.ok("condor_rm", &[&nameless]).unwrap();
    hers.wait_gone("nameless");

    edit(&crooked, "HTCJobAttempt", "1");
    wait_for("the doubt to end", PATIENCE, || is_true(&hers.get("crooked"), "Tracked")).unwrap();
    let ended = hers.let_go("crooked");
    assert!(is_true(&ended, "Complete"), "{ended:#}");
    hers.delete("crooked");
    alice.ok("condor_rm", &[&stray]).unwrap();
}

/// A user writes so much into jobs that HTCondor cannot show them. Only the HTCJob that they say they are of is in doubt; others of that
/// user, and all of other users, run, end, are submitted and go. The newest job of history has an expression for an id.
fn oversized_ads_delay_only_their_own_htcjob(version: Version) {
    let site = Site::with(version, "", &[OFTEN]);
    site.bed.start_operator();
    let (hers, ours) = (site.bed.namespace(), site.bed.namespace());
    put_secret(&hers, "mine", &[("token", site.token("alice@test", &[]).as_bytes())]);
    hers.let_read_secret("mine");
    for name in ["flooded", "beside"] {
        hers.create(&with_secret(name, "mine", UNTIL_LET_GO));
    }
    ours.create(&bed::htcjob("runs", UNTIL_LET_GO));
    for name in ["flooded", "beside"] {
        hers.wait_phase(name, "Running");
    }
    ours.wait_phase("runs", "Running");
    let operator = site.bed.queue("true", &["HTCOperator"])[0][0].clone();
    let uid = hers.get("flooded")["metadata"]["uid"].as_str().unwrap().to_owned();

    let alice = site.bed.pool.client("alice@test").unwrap();
    let much = "x".repeat(6_000_000);
    let description = format!(
        "executable = /bin/true\ntransfer_executable = false\nMy.HTCOperator = \"{operator}\"\nMy.HTCJobUID = \"{uid}\"\nMy.HTCNotAfter = \"{much}\"\nrequirements = false\nqueue 2\n"
    );
    let flood = alice.submit(&description).unwrap();

    wait_says(&hers, "flooded", "Tracked", "AnswerIncomplete", &flood);
    for (namespace, name) in [(&ours, "runs"), (&hers, "beside")] {
        let ended = namespace.let_go(name);
        assert!(is_true(&ended, "Complete"), "{ended:#}");
        namespace.delete(name);
    }
    let last = stray(&alice, "another");
    alice.ok("condor_qedit", &[&last, "GlobalJobId", "strcat(\"schedd#\", ClusterId, \".0#1\")"]).unwrap();
    alice.ok("condor_rm", &[&last]).unwrap();
    let in_history = format!("ClusterId == {}", last.trim_end_matches(".0"));
    wait_for("the job in history", PATIENCE, || !site.bed.history(&in_history, &["ClusterId"]).is_empty()).unwrap();
    ours.create(&bed::htcjob("new", "echo A"));
    hers.create(&with_secret("new", "mine", "echo A"));
    for namespace in [&ours, &hers] {
        let ended = namespace.wait_ended("new");
        assert!(is_true(&ended, "Complete"), "{ended:#}");
        namespace.delete("new");
    }
    assert_eq!(hers.get("flooded")["status"]["attempt"], 1);
    assert_eq!(hers.get("flooded")["status"]["phase"], "Running");

    alice.ok("condor_rm", &["-constraint", "isString(HTCNotAfter)"]).unwrap();
    wait_for("the doubt to end", PATIENCE, || is_true(&hers.get("flooded"), "Tracked")).unwrap();
    let ended = hers.let_go("flooded");
    assert!(is_true(&ended, "Complete"), "{ended:#}");
    hers.delete("flooded");
}

/// A job that says that it is this operator's, and not whose.
fn stray(alice: &Client, operator: &str) -> String {
    let description = format!(
        "executable = /bin/true\ntransfer_executable = false\nMy.HTCOperator = \"{operator}\"\nrequirements = false\nqueue\n"
    );
    alice.submit(&description).unwrap()
}
