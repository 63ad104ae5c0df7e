//! Reports of jobs are delayed, doubled, lost and reordered on their way, on real pools.

use rstest::rstest;
use testbed::Version::{self, Sid, Trixie};
use testbed::wait_for;

use crate::callbacks::jobs::{Site, counts, stored};
use bed::carrier::Lot;
use bed::gates::Gates;
use bed::{PATIENCE, UNTIL_LET_GO, htcjob, ids, is_true};

const REFUTED: &str = "CallbackRefuted";

/// HTCondor is not asked by itself, and waits at its gate for as long as a test likes.
const PATIENT: &[&str] = &["--poll-interval=600s", "--tool-timeout=120s"];

fn refuted(here: &bed::Namespace<'_>, name: &str) -> usize {
    here.events(name).iter().filter(|(reason, _)| reason == REFUTED).count()
}

/// The end first, long before HTCondor says so, and then the start.
#[rstest]
#[ignore = "another test shows the same promise: make test-long"]
#[case::trixie(Trixie)]
#[ignore = "another test shows the same promise: make test-long"]
#[case::sid(Sid)]
fn end_reported_before_its_start_counts_but_completes_nothing(#[case] version: Version) {
    let gates = Gates::new(version);
    gates.tell_no_changes();
    let site = Site::through(version, |_| Lot::Kept, &[PATIENT, &[&gates.argument()]].concat());
    site.bed.start_operator();
    let here = site.bed.namespace();
    let uid = here.create(&htcjob("turned", UNTIL_LET_GO));
    here.wait("turned", "its job to be recorded", |object| object["status"]["jobid"].is_array());
    wait_for("its payload", PATIENCE, || site.carrier().kept(&uid) == [false]).unwrap();
    gates.shut("condor_q");
    site.bed.open_gate(&uid);
    wait_for("both reports", PATIENCE, || site.carrier().kept(&uid) == [false, true]).unwrap();
    let (start, end) = (false, true);
    assert_eq!(site.carrier().let_go(&uid, end), 204);
    let early = here.wait("turned", "an end that counts", |object| counts(object) == [0, 1, 0]);
    assert_eq!((early["status"]["phase"].as_str(), is_true(&early, "Complete")), (Some("Running"), false));
    assert_eq!(site.carrier().let_go(&uid, start), 204);
    gates.open("condor_q");
    let ended = here.wait("turned", "Complete", |object| is_true(object, "Complete"));
    assert_eq!(counts(&ended), [0, 1, 0]);
    assert_eq!((stored(&site.bed, &uid), refuted(&here, "turned")), (vec!["0".to_owned(), "-1".to_owned()], 0));
}

/// A start and an end that come only when all is over, and once more when the object is gone.
#[rstest]
#[ignore = "another test shows the same promise: make test-long"]
#[case::sid(Sid)]
#[ignore = "another test shows the same promise: make test-long"]
#[case::trixie(Trixie)]
fn reports_after_the_end_have_no_effect(#[case] version: Version) {
    let site = Site::through(version, |_| Lot::Kept, &[]);
    site.bed.start_operator();
    let here = site.bed.namespace();
    let uid = here.create(&htcjob("late", &format!("{UNTIL_LET_GO}\nexit 7")));
    wait_for("its start", PATIENCE, || site.carrier().kept(&uid) == [false]).unwrap();
    let id = ids(&here.let_go("late")).remove(0);
    let counted = |when: &str| assert_eq!(counts(&here.get("late")), [0, 0, 1], "{when}");
    counted("as HTCondor says");
    assert_eq!(site.carrier().kept(&uid), [false, true]);
    assert_eq!(site.carrier().let_go(&uid, true), 204);
    // One that says otherwise, and was never sent before.
    site.send_late_end(&uid, "otherwise", "late", &id, "0");
    counted("after its end, and one with another code");
    assert!(is_true(&here.get("late"), "Failed"), "{:#}", here.get("late"));
    here.delete("late");
    assert_eq!(site.carrier().let_go(&uid, false), 204, "the answer is as before");
    assert_eq!(refuted(&here, "late"), 0);
    site.bed.assert_removed(&uid, "late");
}

/// HTCondor holds a job that has reported its end. The reported end no longer counts, one Event says so, and the job
/// ends as HTCondor reports.
#[rstest]
#[case::trixie(Trixie)]
#[ignore = "HTCondor's version makes no difference: make test-long"]
#[case::sid(Sid)]
fn reported_end_that_htcondor_contradicts_no_longer_counts(#[case] version: Version) {
    let site = Site::new(version, &[]);
    site.bed.start_operator();
    let here = site.bed.namespace();
    let uid = here.create(&htcjob("hasty", &format!("{UNTIL_LET_GO}\nexit 3")));
    let id = ids(&here.wait_phase("hasty", "Running")).remove(0);
    assert_eq!(site.send_end(&uid, "hasty", "hasty", &id, "0"), 204);
    here.wait("hasty", "an end that counts", |object| counts(object) == [0, 1, 0]);
    // HTCondor may need minutes to start a job again that it was just about to start.
    wait_for("its start", PATIENCE, || stored(&site.bed, &uid).iter().any(|code| code == "-1")).unwrap();
    site.bed.pool.tool("condor_hold", &[&id]).unwrap();
    let held = here.wait("hasty", "one held job", |object| object["status"]["held"] == 1);
    assert_eq!(counts(&held), [1, 0, 0]);
    here.wait_event("hasty", REFUTED);
    assert_eq!(site.send_end(&uid, "hasty", "hasty", &id, "0"), 204, "the same once more");
    site.bed.pool.tool("condor_release", &[&id]).unwrap();
    let ended = here.let_go("hasty");
    assert_eq!(counts(&ended), [0, 0, 1]);
    assert_eq!(refuted(&here, "hasty"), 1, "{:?}", here.events("hasty"));
}

/// The last answer shows the job idle, and then it begins and ends: that answer says nothing about it.
#[rstest]
#[ignore = "another test shows the same promise: make test-long"]
#[case::sid(Sid)]
#[ignore = "another test shows the same promise: make test-long"]
#[case::trixie(Trixie)]
fn queue_answer_from_before_a_report_refutes_nothing(#[case] version: Version) {
    let gates = Gates::new(version);
    gates.tell_no_changes();
    let site = Site::new(version, &[PATIENT, &[&gates.argument()]].concat());
    site.bed.start_operator();
    let here = site.bed.namespace();
    let mut object = htcjob("unseen", UNTIL_LET_GO);
    object["spec"]["requirements"] = "false".into();
    let uid = here.create(&object);
    let id = ids(&here.wait("unseen", "one idle job", |object| object["status"]["idle"] == 1)).remove(0);
    gates.shut("condor_q");
    site.bed.condor.run("condor_qedit", &[&id, "Requirements", "true"], "").unwrap();
    site.bed.pool.tool("condor_reschedule", &[]).unwrap();
    wait_for("its start", PATIENCE, || stored(&site.bed, &uid) == ["-1"]).unwrap();
    site.bed.open_gate(&uid);
    here.wait("unseen", "an end that counts", |object| counts(object) == [0, 1, 0]);
    wait_for("both reports", PATIENCE, || stored(&site.bed, &uid) == ["-1", "0"]).unwrap();
    gates.open("condor_q");
    let ended = here.wait("unseen", "Complete", |object| is_true(object, "Complete"));
    assert_eq!((counts(&ended), refuted(&here, "unseen")), ([0, 1, 0], 0));
}

/// Each kind of fault in turn, for jobs with and without retries.
#[rstest]
#[case::trixie(Trixie)]
#[ignore = "HTCondor's version makes no difference: make test-long"]
#[case::sid(Sid)]
fn outcome_is_right_despite_lost_late_or_repeated_reports(#[case] version: Version) {
    use std::time::Duration;
    const LOTS: [Lot; 7] = [
        Lot::Twice,
        Lot::Lost,
        Lot::Late(Duration::from_secs(4)),
        Lot::Unanswered,
        Lot::Refused,
        Lot::Late(Duration::from_secs(1)),
        Lot::Comes,
    ];
    let mut lots = LOTS.iter().cycle();
    let site = Site::through(version, move |_| *lots.next().unwrap(), &[]);
    site.bed.start_operator();
    let here = site.bed.namespace();
    let (once, again) = ("exit $(($1 % 2))", "[ -e ran ] && exit 0; touch ran; exit 5");
    let expected = [("once", once, [0, 4, 4]), ("again", again, [0, 8, 0])];
    for (name, source, _) in expected {
        let mut object = htcjob(name, source);
        object["spec"]["queue"] = 8.into();
        if name == "again" {
            object["spec"]["htcopts"] = "max_retries = 2".into();
        }
        here.create(&object);
    }
    for (name, _, counted) in expected {
        let most = std::cell::Cell::new([0; 3]);
        let over = here.wait(name, "Complete or Failed", |object| {
            let now = counts(object);
            most.set(std::array::from_fn(|place| most.get()[place].max(now[place])));
            is_true(object, "Complete") || is_true(object, "Failed")
        });
        assert_eq!((counts(&over), refuted(&here, name)), (counted, 0), "{name}");
        assert_eq!(most.get()[1..], counted[1..], "{name}: what was counted at most");
    }
    let tally = site.carrier().tally();
    println!("{version}: {tally:?}");
    assert!(tally.lost > 0 && tally.twice > 0 && tally.late > 0 && tally.refused > 0 && tally.stored > 0, "{tally:?}");
}

/// A late report is answered like a timely one while the rows of its HTCJob are kept, and afterwards with a reason.
#[test]
#[ignore = "another test shows the same promise: make test-long"]
fn report_is_refused_once_its_ledger_rows_are_deleted() {
    let site = Site::new(Trixie, &["--history-retention=1s", "--output-retention=1s"]);
    site.bed.start_operator();
    let here = site.bed.namespace();
    let uid = here.create(&htcjob("short", "true"));
    let id = ids(&here.wait_ended("short")).remove(0);
    here.delete("short");
    let number = std::cell::Cell::new(0);
    wait_for("its rows to go", PATIENCE, || {
        number.set(number.get() + 1);
        let data = serde_json::json!({ "name": "short", "jobid": id, "retcode": "0" });
        let answer = site.send(&uid, &uid, "htcjob.cloudevent", &number.get().to_string(), &data).unwrap();
        match (answer.status, answer.reason().as_str()) {
            (404, "UnknownJob") => Ok(()),
            (204, _) => Err("still there".to_owned()),
            _ => panic!("{answer:?}"),
        }
    })
    .unwrap();
}
