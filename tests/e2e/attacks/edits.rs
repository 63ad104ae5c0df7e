//! Edits of jobs' ads by the user of a Secret, with HTCondor's own tools.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::json;
use testbed::{Client, Version, wait_for};

use crate::credentials::site::{Site, put_secret, wait_says, with_secret};
use bed::{Namespace, PATIENCE, UNTIL_LET_GO, condition, ids, is_true, of};

on_versions! {
    long:
        large_ad_values_delay_no_other_htcjob,
        job_index_that_expands_when_printed_takes_no_memory,
        hold_reason_from_condor_hold_is_sanitized;
}

/// Bytes of one value.
const LARGE: usize = 2 << 20;
/// So many jobs have one.
const JOBS: u32 = 30;
/// Most memory that all of it may cost the operator, in MiB: half of what the values have together.
const MOST: u64 = 30;

/// A site whose operator runs, and a namespace of somebody with a Secret.
fn site(version: Version) -> (Site, Client) {
    let site = Site::start(version);
    let alice = site.bed.pool.client("alice@test").unwrap();
    (site, alice)
}

fn hers(site: &Site) -> Namespace<'_> {
    let here = site.bed.namespace();
    put_secret(&here, "mine", &[("token", site.token("alice@test", &[]).as_bytes())]);
    here.let_read_secret("mine");
    here
}

/// `condor_qedit` of all jobs of an HTCJob; what it writes does not fit on a command line.
fn edit(alice: &Client, uid: &str, edits: &[(&str, &str)]) {
    let lines: String = edits.iter().flat_map(|&(name, value)| [name, " = ", value, "\n"]).collect();
    let of = of(uid);
    let done = alice.run("condor_qedit", &["-constraint", &of, "-edits:long", "-"], &lines).unwrap();
    assert!(done.status.success(), "{done:?}");
}

/// An expression of 1 KiB whose value is a text of 1 KB and these factors of it.
fn bomb(factors: [usize; 2]) -> String {
    let [b, c] = [("a", factors[0]), ("b", factors[1])].map(|(name, times)| vec![name; times].join(","));
    format!("[a = \"{}\"; b = strcat({b}); c = strcat({c})].c", "x".repeat(1000))
}

/// The operator's memory in MiB; `VmHWM` is the most since [`forget_peak`].
fn memory(site: &Site, figure: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{}/status", site.bed.operator_pid())).unwrap();
    let line = text.lines().find(|line| line.starts_with(figure)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

fn forget_peak(site: &Site) {
    fs::write(format!("/proc/{}/clear_refs", site.bed.operator_pid()), "5").unwrap();
}

/// From creation to the end of an HTCJob in the operator's own name, which has succeeded.
fn took(here: &Namespace<'_>, name: &str) -> Duration {
    let began = Instant::now();
    here.create(&bed::htcjob(name, "echo A"));
    let ended = here.wait_ended(name);
    assert!(is_true(&ended, "Complete"), "{ended:#}");
    began.elapsed()
}

/// Reasons of 2 MiB, numbers that are texts of 2 MiB, and expressions with values of 10 MB cost the operator little
/// memory, delay no other HTCJob, and do not keep their own HTCJobs from being deleted.
///
/// It fails if the answers of `condor_q`, or the values in them, are kept whole: the peak is then higher by more than [`MOST`]. It
/// fails, too, if an ad that cannot be read makes the whole answer count for nothing: the others then do not come to their end.
///
/// Against b8ba2a8: succeeds. From the edits on each `condor_q` fails, for all HTCJobs, and these say `ScheddUnreachable`.
fn large_ad_values_delay_no_other_htcjob(version: Version) {
    let (site, alice) = site(version);
    let (hers, ours) = (hers(&site), site.bed.namespace());
    // First of all: 25.14 was seen to leave them idle behind those that match nothing.
    let [attempt, bombs] = ["attempt", "bombs"].map(|name| hers.create(&with_secret(name, "mine", UNTIL_LET_GO)));
    let job = |name: &str| ids(&hers.wait_phase(name, "Running")).remove(0);
    let [attempt_id, bombs_id] = ["attempt", "bombs"].map(job);
    let mut reasons = with_secret("reasons", "mine", "true");
    reasons["spec"]["queue"] = JOBS.into();
    reasons["spec"]["htcopts"] = json!("requirements = false");
    let reasons = hers.create(&reasons);
    hers.wait("reasons", "all idle", |object| object["status"]["idle"] == JOBS);
    let alone = ["alone-0", "alone-1"].map(|name| took(&ours, name)).into_iter().max().unwrap();
    let before = memory(&site, "VmRSS");
    forget_peak(&site);

    let text = format!("\"{}\"", "y".repeat(LARGE));
    alice.ok("condor_hold", &["-reason", "by hand", "-constraint", &of(&reasons)]).unwrap();
    hers.wait("reasons", "all held", |object| object["status"]["held"] == JOBS);
    edit(&alice, &reasons, &[("HoldReason", &text), ("RemoveReason", &text)]);
    edit(&alice, &attempt, &[("HTCJobAttempt", &text), ("GlobalJobId", &text)]);
    let bomb = bomb([100, 100]);
    let same = |value: &str| format!("ifThenElse(size({bomb}) > 0, {value}, {value})");
    edit(
        &alice,
        &bombs,
        &[
            ("HoldReason", &bomb),
            ("RemoveReason", &bomb),
            ("HTCJobIndex", &same("0")),
            ("HTCJobUID", &same(&format!("\"{bombs}\""))),
        ],
    );
    // All of it has been read.
    wait_says(&hers, "attempt", "Tracked", "AnswerIncomplete", &attempt_id);
    wait_says(&hers, "bombs", "Tracked", "AnswerIncomplete", &bombs_id);
    // So long a reason is cut, or left out.
    let held = hers.get("reasons");
    assert!(condition(&held, "Held").unwrap()["message"].as_str().unwrap().len() < 2000, "{held:#}");

    let beside = ["beside-0", "beside-1", "beside-2"].map(|name| took(&ours, name)).into_iter().min().unwrap();
    let peak = memory(&site, "VmHWM");
    println!("{version}: {alone:?} alone, {beside:?} beside them; {before} MiB before, {peak} MiB at most");
    assert!(beside < alone * 2 + Duration::from_secs(5), "{beside:?} instead of {alone:?}");
    assert!(peak < before + MOST, "{peak} MiB instead of {before}");

    for (name, uid) in [("reasons", &reasons), ("attempt", &attempt), ("bombs", &bombs)] {
        hers.delete(name);
        hers.wait_nothing_left(uid);
    }
    let peak = memory(&site, "VmHWM");
    assert!(peak < before + MOST, "{peak} MiB instead of {before} after the deletion");
}

/// A job whose output would go elsewhere, and whose index is a text of 200 MB where `condor_q` prints it, and a number where the schedd
/// compares it. The operator does not hold that text.
///
/// It fails if an answer is kept whole: the peak is then higher by the size of the text.
///
/// Against b8ba2a8: means nothing. It does not ask which jobs would write elsewhere; it has the tool write to `/elsewhere`.
fn job_index_that_expands_when_printed_takes_no_memory(version: Version) {
    let (site, alice) = site(version);
    let (hers, ours) = (hers(&site), site.bed.namespace());
    let uid = hers.create(&with_secret("grows", "mine", UNTIL_LET_GO));
    hers.wait_phase("grows", "Running");
    edit(&alice, &uid, &[("SUBMIT_Iwd", "\"/elsewhere\"")]);
    hers.let_go("grows");
    let redirected = || {
        condition(&hers.get("grows"), "OutputFetched")
            .is_some_and(|condition| condition["reason"] == "OutputRedirected")
    };
    wait_for("OutputRedirected", PATIENCE, redirected).unwrap();
    let before = memory(&site, "VmRSS");
    forget_peak(&site);
    let asked = || site.bed.log().lines().filter(|line| line.contains("tool=\"condor_transfer_data\"")).count();
    let first = asked();
    // condor_q is sent what an expression refers to, but not what a text in it does.
    let grows = format!("ifThenElse(isUndefined(eval(\"HTCNotAfter\")), {}, 0)", bomb([450, 450]));
    edit(&alice, &uid, &[("HTCJobIndex", &grows)]);
    wait_for("two more tries", PATIENCE, || asked() >= first + 2).unwrap();
    took(&ours, "beside");
    let peak = memory(&site, "VmHWM");
    println!("{version}: {before} MiB before, {peak} MiB at most");
    assert!(peak < before + MOST, "{peak} MiB instead of {before}\n{}", site.bed.log());
    edit(&alice, &uid, &[("HTCJobIndex", "0")]);
    hers.delete("grows");
    hers.wait_nothing_left(&uid);
}

/// Characters that steer a terminal, turn text or begin a line are replaced.
///
/// It fails if `HoldReason` is not made harmless when an ad is read.
///
/// Against b8ba2a8: succeeds. The reason is in the status as it is, which the API server refuses each time for its control
/// characters: the HTCJob shows nothing any more. What turns text is in the log.
fn hold_reason_from_condor_hold_is_sanitized(version: Version) {
    const STEERS: &str =
        "stop \u{1b}[2J\u{1b}]0;mine\u{7}\u{8}\u{9b}31m \u{202e}desrever\u{2066}\u{200b}\u{2028} FORGED";
    let (site, alice) = site(version);
    let here = hers(&site);
    // HTCondor itself takes no line ends: there is no reason then.
    for (name, reason, expected) in
        [("steers", STEERS, "stop \u{fffd}[2J\u{fffd}]0;mine"), ("lines", "stop\r\nFORGED line", "1 of 1 job held; ")]
    {
        let uid = here.create(&with_secret(name, "mine", UNTIL_LET_GO));
        let id = ids(&here.wait_phase(name, "Running")).remove(0);
        alice.ok("condor_hold", &["-reason", reason, &id]).unwrap();
        let object = here.wait(name, "Held", |object| is_true(object, "Held"));
        here.wait_event(name, "JobsHeld");
        let message = condition(&object, "Held").unwrap()["message"].as_str().unwrap();
        println!("{version}: {name}: {message:?}");
        assert!(message.contains(expected), "{name}: {message:?}");
        let events: Vec<String> = here.events(name).into_iter().map(|(_, words)| words).collect();
        assert!(events.iter().any(|words| words.contains(expected)), "{name}: {events:?}");
        let reported = object["status"]["conditions"].as_array().unwrap().iter();
        let reported = reported.filter_map(|condition| condition["message"].as_str()).map(str::to_owned);
        for words in reported.chain(events) {
            let harmful = |c: char| c.is_control() || "\u{202e}\u{2066}\u{200b}\u{2028}".contains(c);
            assert!(!words.contains(harmful), "{name}: {words:?}");
        }
        alice.ok("condor_release", &[&id]).unwrap();
        let ended = here.let_go(name);
        assert!(is_true(&ended, "Complete"), "{ended:#}");
        here.delete(name);
        here.wait_nothing_left(&uid);
    }
    let log = site.bed.log();
    for part in ["\u{1b}[2J", "\u{1b}]0", "\u{7}", "\u{9b}", "\u{202e}", "\u{2066}", "\nFORGED"] {
        assert!(!log.contains(part), "{part:?} is in the log");
    }
}
