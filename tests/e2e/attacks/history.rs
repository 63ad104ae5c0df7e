//! The newest ad of history is another HTCondor user's.

use testbed::{Version, wait_for};

use bed::{Bed, PATIENCE, Promise, htcjob, is_true, of};

on_versions! {
    trixie: newest_history_ad_without_global_job_id_blocks_no_submission;
}

/// The newest ad of history is another user's, whose `GlobalJobId` is missing, no text, another job's, or an expression. HTCJobs are
/// submitted all the same, each job once.
///
/// It fails if `condor_history` is asked for its newest ad, whatever is in that: the HTCJob then says `Incomplete` for as long as
/// the ad is the newest one.
///
/// Against b8ba2a8: succeeds. With `missing` at the top the next HTCJob says `Incomplete` (`condor_history shows a job without a
/// GlobalJobId`) and is not submitted.
fn newest_history_ad_without_global_job_id_blocks_no_submission(version: Version) {
    let bed = Bed::start(version);
    let here = bed.namespace();
    let uid = here.create(&htcjob("first", "echo A"));
    here.wait_ended("first");
    here.wait_nothing_left(&uid);
    let first = bed.history(&of(&uid), &["GlobalJobId"]).concat().remove(0);

    let alice = bed.pool.client("alice@test").unwrap();
    let description = "executable = /bin/true\ntransfer_executable = false\nrequirements = false\nqueue\n";
    let right = "strcat(\"schedd@test#\", ClusterId, \".\", ProcId, \"#1\")";
    let others = format!("\"{first}\"");
    for (name, value) in [
        ("missing", "undefined"),
        ("number", "7"),
        ("text", "\"x\""),
        ("others", others.as_str()),
        ("expression", right),
        ("now-and-then", &format!("ifThenElse(random(2) == 0, {right}, {others})")),
        // As tools show an expression.
        ("looks-like-one", "\"/Expr(#ID#1\""),
        ("escaped", "\"\\001#ID#1\""),
    ] {
        let id = alice.submit(description).unwrap();
        alice.ok("condor_qedit", &[&id, "GlobalJobId", &value.replace("#ID#", &format!("#{id}#"))]).unwrap();
        alice.ok("condor_rm", &[&id]).unwrap();
        wait_for("it to be at the top of history", PATIENCE, || {
            let top = bed.pool.tool("condor_history", &["-limit", "1", "-af", "ClusterId", "GlobalJobId"]).unwrap();
            let cluster = id.split('.').next();
            if top.split_whitespace().next() == cluster { Ok(()) } else { Err(top) }
        })
        .unwrap();
        let uid = here.create(&htcjob(name, "echo A"));
        let ended = here.wait_ended(name);
        let _promise = Promise;
        assert!(is_true(&ended, "Complete") && ended["status"]["attempt"] == 1, "{name}: {ended:#}");
        here.wait_nothing_left(&uid);
        bed.assert_once(&uid, name, 1);
    }
}
