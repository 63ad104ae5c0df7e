//! HTCJobs with credentials of their own.

use std::os::unix::fs::MetadataExt as _;

use testbed::{Version, wait_for};

use crate::credentials::site::{Site, put_secret, users, with_secret};
use bed::{PATIENCE, UNTIL_LET_GO, condition, is_true, of};

on_versions! {
    trixie: jobs_run_as_the_user_of_their_secret, jobs_of_all_users_are_found_after_ledger_loss;
}

/// Two namespaces and three names, through all that is done to jobs: each in its own name and in no other.
fn jobs_run_as_the_user_of_their_secret(version: Version) {
    let site = Site::start(version);
    let (a, b) = (site.bed.namespace(), site.bed.namespace());
    let tokens = [site.token("alice@test", &[]), site.token("bob@test", &[])];
    for (here, token) in [(&a, &tokens[0]), (&b, &tokens[1])] {
        // The same name in both: it is the namespace that tells them apart.
        put_secret(here, "mine", &[("token", token.as_bytes())]);
        here.let_read_secret("mine");
    }
    let one = a.create(&with_secret("one", "mine", UNTIL_LET_GO));
    let two = a.create(&with_secret("two", "mine", UNTIL_LET_GO));
    let three = b.create(&with_secret("three", "mine", UNTIL_LET_GO));
    let plain = b.create(&bed::htcjob("plain", UNTIL_LET_GO));
    let all = [
        (&a, "one", &one, "alice@test"),
        (&a, "two", &two, "alice@test"),
        (&b, "three", &three, "bob@test"),
        (&b, "plain", &plain, "operator@test"),
    ];
    for (here, name, uid, user) in all {
        here.wait_phase(name, "Running");
        assert_eq!(users(&site.bed, uid), [user], "{name}");
    }
    site.assert_closed();
    let copy = site.copies(&a.name, "mine").into_iter().find(|path| path.ends_with("tokens/token"));
    if let Some(found) = copy.and_then(|copy| std::fs::metadata(copy).ok()) {
        assert_eq!(found.mode() & 0o777, 0o600);
    }
    // No batch has jobs of two of them.
    let clusters = |uid: &str| site.bed.queue(&of(uid), &["ClusterId"])[0][0].clone();
    let theirs = [clusters(&one), clusters(&three), clusters(&plain)];
    assert!(theirs[0] != theirs[1] && theirs[0] != theirs[2] && theirs[1] != theirs[2], "{theirs:?}");

    for (here, name, ..) in all {
        here.suspend(name, true);
    }
    for (here, name, ..) in all {
        here.wait(name, "held", |object| object["status"]["held"] == 1);
        here.suspend(name, false);
    }
    for (here, name, uid, _) in all {
        here.wait_phase(name, "Running");
        if name == "two" {
            continue;
        }
        let ended = here.let_go(name);
        assert!(is_true(&ended, "Complete"), "{ended:#}");
        here.wait_output(name);
        assert!(here.output(name, 0).join("out").exists());
        here.wait_nothing_left(uid);
    }
    for (here, name, uid, _) in all {
        here.delete(name);
        here.wait_nothing_left(uid);
    }
    let removed = site.bed.history(&of(&two), &["JobStatus", "User", "RemoveReason"]);
    assert!(
        removed[0][0] == "3" && removed[0][1] == "alice@test" && removed[0].concat().contains("alice"),
        "{removed:?}"
    );

    for (here, token) in [(&a, &tokens[0]), (&b, &tokens[1])] {
        site.wait_forgotten(&here.name, "mine");
        site.assert_secret(here, &[token]);
    }
    // With the operator goes the folder.
    site.bed.stop_operator();
    wait_for("the folder to be gone", PATIENCE, || std::fs::read_dir(&site.run).unwrap().next().is_none()).unwrap();
}

/// A ledger that is lost knows none of the names. The jobs in them are found all the same, once each, and made-up ones do not
/// count.
fn jobs_of_all_users_are_found_after_ledger_loss(version: Version) {
    let site = Site::start(version);
    let here = site.bed.namespace();
    put_secret(&here, "mine", &[("token", site.token("alice@test", &[]).as_bytes())]);
    here.let_read_secret("mine");
    let uids = ["runs", "doomed"].map(|name| here.create(&with_secret(name, "mine", UNTIL_LET_GO)));
    let plain = here.create(&bed::htcjob("plain", UNTIL_LET_GO));
    for name in ["runs", "doomed", "plain"] {
        here.wait_phase(name, "Running");
    }
    let before: Vec<_> = uids.iter().map(|uid| site.bed.queue(&of(uid), &["ClusterId", "ProcId"])).collect();

    // Who has a token for the pool can write what he likes into an ad; alice's count for nobody but herself.
    let operator = site.bed.queue(&of(&plain), &["HTCOperator"])[0][0].clone();
    let alice = site.bed.pool.client("alice@test").unwrap();
    let forged = format!(
        "executable = /bin/true\ntransfer_executable = false\nhold = false\nMy.HTCOperator = \"{operator}\"\nMy.HTCJobUID = \"{plain}\"\n\
         My.HTCJobAttempt = 1\nMy.HTCJobIndex = 0\nMy.HTCNotAfter = 4000000000\nrequirements = false\nqueue\n"
    );
    alice.submit(&forged).unwrap();

    site.bed.stop_operator();
    site.bed.lose_ledger();
    here.begin_delete("doomed");
    site.bed.start_operator();
    here.wait_gone("doomed");
    here.wait_nothing_left(&uids[1]);
    here.wait("runs", "followed again", |object| {
        object["status"]["phase"] == "Running"
            && condition(object, "Submitted").is_some_and(|condition| condition["status"] == "True")
    });
    let after = site.bed.queue(&of(&uids[0]), &["ClusterId", "ProcId"]);
    assert_eq!(after, before[0], "not submitted again");
    here.let_go("runs");
    here.delete("runs");
    here.let_go("plain");
    here.delete("plain");
    // What alice made up is alice's.
    assert_eq!(users(&site.bed, &plain), ["alice@test"]);
}
