//! Events, columns, `describe` and `wait` in kubectl, and an `HTCJob` that cannot be run.

use std::time::Instant;

use rstest::rstest;
use testbed::Version::{self, Sid, Trixie};

use crate::lifecycle::{UNTIL_LET_GO, condition_parts, counts, ids, of};
use bed::{Bed, htcjob};

#[rstest]
#[case::sid(Sid)]
#[ignore = "HTCondor's version makes no difference: make test-long"]
#[case::trixie(Trixie)]
fn events_report_each_transition_once(#[case] version: Version) {
    let bed = Bed::shared(version);
    let here = &bed.namespace();
    let mut object = htcjob("tale", UNTIL_LET_GO);
    object["spec"]["queue"] = 2.into();
    let uid = here.create(&object);
    let running = here.wait_running("tale", 2);
    let [first, second] = &ids(&running)[..] else { panic!("{running:#}") };
    let cluster = first.split('.').next().unwrap();
    assert!(!bed.spooled(first).is_empty(), "what is empty afterwards is not empty now");

    let columns = |text: &str| text.lines().map(|line| line.split_whitespace().map(str::to_owned).collect()).collect();
    let table: Vec<Vec<String>> = columns(&here.kubectl(&["get", "htcjobs"]));
    assert_eq!(table[0], ["NAME", "STATUS", "JOBS", "ACTIVE", "SUCCEEDED", "FAILED", "CLUSTER", "AGE"]);
    assert_eq!(table[1][..7], ["tale", "Running", "2", "2", "0", "0", cluster]);
    assert_eq!(here.kubectl(&["get", "htcj", "-o", "name"]).trim(), "htcjob.htc.cern.ch/tale");

    // `kubectl wait` sees the condition come, not only that it is there.
    let waiter = std::thread::scope(|scope| {
        let arguments = ["wait", "--for=condition=Complete", "htcjob/tale", "--timeout=50s"];
        let waiter = scope.spawn(move || here.try_kubectl(&arguments));
        here.let_go("tale");
        waiter.join().unwrap()
    });
    assert!(waiter.as_ref().is_ok_and(|text| text.contains("condition met")), "{waiter:?}");

    here.wait_nothing_left(&uid);
    let mut story = vec!["Pending", "Submitted", "Running", "Completed", "Fetched"];
    assert_eq!(here.story("tale", "Fetched"), story);
    let described = here.kubectl(&["describe", "htcjob", "tale"]);
    let shown: Vec<Vec<String>> = columns(described.split_once("\nEvents:").unwrap().1);
    let shown: Vec<&str> = shown.iter().filter(|row| row.len() > 4).skip(2).map(|row| row[1].as_str()).collect();
    assert_eq!(shown, story, "{described}");

    here.delete("tale");
    story.extend(["Terminating", "JobsRemoved"]);
    assert_eq!(here.story("tale", "JobsRemoved"), story);
    // Of the cluster that both are in, others may have the first places: one condor_submit takes several HTCJobs.
    let last = second.strip_prefix(&format!("{cluster}."));
    let range = last.map(|last| format!("{first}-{last}")).unwrap_or_default();
    let message = here.event_message("tale", "Submitted");
    assert!(message.starts_with("HTCondor accepted 2 jobs: ") && message.ends_with(&range), "{message}");
    bed.wait_ledger(
        &format!("select count(*), count(eventAt) from transitions where uid = '{uid}'"),
        &[&[&story.len().to_string(), &story.len().to_string()]],
    );
}

#[rstest]
#[case::trixie(Trixie)]
#[ignore = "HTCondor's version makes no difference: make test-long"]
#[case::sid(Sid)]
fn htcjob_with_refused_htcopts_stays_pending(#[case] version: Version) {
    let bed = Bed::shared(version);
    let here = bed.namespace();
    let cases = [
        ("program", "executable = /bin/sh", "htcopts line 1: `executable` is not allowed: "),
        ("identity", "rank = 1\n+HTCJobUID = \"x\"", "htcopts line 2: `+HTCJobUID` is not allowed: "),
        ("include", "include command : /bin/date", "htcopts line 1: `include` is not allowed: "),
    ];
    for (name, options, _) in cases {
        let mut object = htcjob(name, "echo ran");
        object["spec"]["htcopts"] = options.into();
        here.create(&object);
    }
    // One that is run shows that there was time enough to run the others.
    here.create(&htcjob("fine", "true"));
    here.wait_ended("fine");
    for (name, _, wanted) in cases {
        let uid = here.uid(name);
        let object = here.get(name);
        assert_eq!(object["status"]["phase"], "Pending");
        assert_eq!(counts(&object), [0, 0, 0]);
        let [status, reason, message] = condition_parts(&object, "Submitted");
        assert_eq!([status.as_str(), reason.as_str()], ["False", "InvalidSpec"]);
        assert!(message.starts_with(&format!("spec.{wanted}")), "{message}");
        assert_eq!(here.story(name, "InvalidSpec"), ["Pending", "InvalidSpec"]);
        assert_eq!(here.event_message(name, "InvalidSpec"), message);
        let kinds = here.kubectl(&[
            "get",
            "events",
            "-o",
            "jsonpath={range .items[*]}{.involvedObject.name} {.type} {.reason}\n{end}",
        ]);
        assert!(kinds.contains(&format!("{name} Warning InvalidSpec\n")), "{kinds}");
        for jobs in [bed.queue(&of(&uid), &["ClusterId"]), bed.history(&of(&uid), &["ClusterId"])] {
            assert!(jobs.is_empty(), "{name}: {jobs:?}");
        }
        let began = Instant::now();
        here.delete(name);
        eprintln!("{version}: {name} was deleted after {:.1?}", began.elapsed());
        assert!(began.elapsed().as_secs() < 20);
        assert_eq!(here.story(name, "JobsRemoved"), ["Pending", "InvalidSpec", "Terminating", "JobsRemoved"]);
    }
}
