//! Stuck HTCJobs name their reason and a remedy, once, are retried with growing pauses, and delay no other.

use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};
use std::{fs, iter};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use testbed::{Account, Version, wait_for};

use bed::site::Site;
use bed::{Namespace, PATIENCE, is_true, of};

on_versions! {
    sid: abandoned_htcjob_names_its_orphans, stuck_htcjob_says_why;
}

/// One way to wait.
struct Case {
    name: &'static str,
    condition: &'static str,
    status: &'static str,
    reason: &'static str,
    /// Words of the message: what is wrong, and what can be done.
    words: &'static [&'static str],
}

/// The others have tests of their own: an attempt that is being judged and refused credentials among the outages, a schedd
/// that is away and a short history beside this one.
const CASES: &[Case] = &[
    Case {
        name: "invalid",
        condition: "Submitted",
        status: "False",
        reason: "InvalidSpec",
        words: &["spec.htcopts line 1", "only `key = value` lines are"],
    },
    Case {
        name: "refused",
        condition: "Submitted",
        status: "False",
        reason: "SubmitRefused",
        words: &["condor_submit", "no job of this name", "retrying"],
    },
    Case {
        name: "held",
        condition: "Held",
        status: "True",
        reason: "JobsHeld",
        words: &["1 of 1 job", "the tape robot is away", "condor_release"],
    },
    Case {
        name: "unfetched",
        condition: "OutputFetched",
        status: "False",
        reason: "FetchFailed",
        words: &["cannot write into the output folder", "data volume"],
    },
    Case {
        name: "stubborn",
        condition: "JobsRemoved",
        status: "False",
        reason: "NotRemovedYet",
        words: &["HTCondor still has", "condor_rm -forcex"],
    },
    Case {
        name: "unremoved",
        condition: "JobsRemoved",
        status: "False",
        reason: "ScheddUnreachable",
        words: &["schedd schedd@test", "out of order", "check that it runs"],
    },
];

const CLOSED: &str = "SUBMIT_REQUIREMENT_NAMES = Name\nSUBMIT_REQUIREMENT_Name = !regexp(\"/refused$\", JobBatchName)\n\
                      SUBMIT_REQUIREMENT_Name_REASON = \"the pool takes no job of this name\"\n";

/// The pauses between the first five tries double, beginning with `first` seconds; what a try takes comes to each. None is
/// shorter than 0.7 of that, whatever the machine does, since their jitter is 0.2; and the last is at least twice the
/// shorter of the first two, unless a try takes longer than the pause before it.
pub fn assert_growing(what: &str, times: &[f64], first: f64) {
    let gaps: Vec<f64> = times.windows(2).take(4).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(gaps.len(), 4, "{what}: {gaps:?}");
    let least = [1.0, 2.0, 4.0, 8.0].map(|times| first * times * 0.7);
    let grows = gaps.iter().zip(least).all(|(gap, least)| *gap >= least);
    let shortest = gaps[0].min(gaps[1]);
    assert!(grows && (gaps[3] >= shortest * 2.0 || shortest > first * 3.0), "{what}: the pauses do not grow: {gaps:?}");
    println!("{what}: pauses of {gaps:.1?} s");
}

/// The process that looks after the only job of an object, from the schedd's side: while it is stopped the job cannot go.
fn shadow_of(site: &Site, object: &Value) -> Pid {
    let id = object["status"]["jobid"][0].as_str().unwrap();
    let is_it = |pid: &u32| {
        let read = |file: &str| fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        read("comm").starts_with(b"condor_shadow")
            && read("cmdline").split(|byte| *byte == 0).any(|word| word == id.as_bytes())
    };
    let pid = testbed::processes::that_name(&site.bed.pool.config()).into_iter().find(is_it).unwrap();
    Pid::from_raw(pid.try_into().unwrap()).unwrap()
}

fn stuck_htcjob_says_why(version: Version) {
    let site = Site::with(version, CLOSED, &["--poll-interval=6s"]);
    site.bed.start_operator();
    let here = site.bed.namespace();
    let good = |name: &str| {
        let began = Instant::now();
        here.create(&site.noted(name, 1, ""));
        site.assert_complete_once(&here, name, 1);
        began.elapsed()
    };
    let alone = good("good-0");

    for name in ["held", "unfetched", "unremoved"] {
        here.create(&site.lasting(name, 1));
    }
    let stubborn = here.create(&site.lasting("stubborn", 1));
    let mut invalid = site.noted("invalid", 1, "");
    invalid["spec"]["htcopts"] = "include command : /bin/true".into();
    here.create(&invalid);
    let refused = here.create(&site.noted("refused", 1, ""));
    for name in ["held", "unfetched", "unremoved", "stubborn"] {
        here.wait_phase(name, "Running");
    }
    let shadow = shadow_of(&site, &here.get("stubborn"));
    kill_process(shadow, Signal::STOP).unwrap();

    let held = of(&here.uid("held"));
    site.bed.pool.tool("condor_hold", &["-reason", "the tape robot is away", "-constraint", &held]).unwrap();
    let output = here.output("unfetched", 0).parent().unwrap().to_owned();
    fs::set_permissions(&output, fs::Permissions::from_mode(0o555)).unwrap();
    site.finish("unfetched");
    here.begin_delete("stubborn");
    here.wait_phase("stubborn", "Terminating");
    wait_for("its removal", PATIENCE, || !site.gates.times("condor_rm").is_empty()).unwrap();
    let unremoved = here.uid("unremoved");
    let script = format!(
        "case \"$*\" in *{unremoved}*) echo 'out of order' >&2; exit 1;; esac\nreal=$1; shift\nexec $real \"$@\"\n"
    );
    site.gates.replace("condor_rm", &script);
    let removals = site.gates.times("condor_rm").len();
    here.begin_delete("unremoved");

    for Case { name, condition, status, reason, words } in CASES {
        let message = here.wait_says(name, condition, status, reason);
        println!("{version}: {name}: {condition} {status} {reason}: {message}");
        for word in *words {
            assert!(message.contains(word), "{name}: no `{word}` in: {message}");
        }
    }
    // One that is really held up is so each time.
    let beside = ["good-1", "good-2", "good-3"].map(good).into_iter().min().unwrap();
    println!("{version}: a good HTCJob took {alone:?} alone, {beside:?} beside those that wait");
    assert!(beside < alone * 2 + Duration::from_secs(10), "{beside:?} instead of {alone:?}");

    wait_for("five tries to remove", PATIENCE, || site.gates.times("condor_rm").len() >= removals + 5).unwrap();
    let of_refused = format!("select intentAt from submissions where uid = '{refused}' order by attempt");
    let tries = wait_for("five attempts", PATIENCE, || {
        let rows = site.bed.ledger(&of_refused).map_err(|error| error.to_string())?;
        if rows.len() >= 5 { Ok(rows) } else { Err(format!("{rows:?}")) }
    })
    .unwrap();
    // The last of a batch of removals may have been another object's.
    assert_growing("condor_rm", &site.gates.times("condor_rm")[removals..], 1.0);
    let seconds: Vec<f64> = tries.iter().map(|row| row[0].parse::<f64>().unwrap() / 1000.0).collect();
    assert_growing("condor_submit", &seconds, 1.0);
    for Case { name, reason, .. } in CASES {
        assert_eq!(here.count_events(name, reason), 1, "{name}: {:?}", here.events(name));
    }

    // Things get better.
    let config = site.bed.pool.config();
    let open = fs::read_to_string(&config).unwrap().replace(CLOSED, "");
    Account::unprivileged().write(&config, open, 0o644).unwrap();
    site.bed.pool.tool("condor_reconfig", &["-schedd"]).unwrap();
    site.gates.restore("condor_rm");
    fs::set_permissions(&output, fs::Permissions::from_mode(0o755)).unwrap();
    site.bed.pool.tool("condor_release", &["-constraint", &held]).unwrap();
    site.finish("held");
    kill_process(shadow, Signal::CONT).unwrap();
    here.delete("invalid");
    for name in ["stubborn", "unremoved"] {
        here.wait_gone(name);
    }
    site.bed.assert_removed(&stubborn, "stubborn");
    site.bed.assert_removed(&unremoved, "unremoved");
    site.assert_complete_once(&here, "refused", 1);
    here.wait_says("unfetched", "OutputFetched", "True", "Fetched");
    site.assert_complete_once(&here, "unfetched", 1);
    let ended = here.wait_ended("held");
    assert_eq!(ended["status"]["succeeded"], 1);

    assert_pauses_begin_anew(&site, &here);
    site.assert_events_match_journal(&here);
}

/// Pauses that have grown are the first again after a good answer.
fn assert_pauses_begin_anew(site: &Site, here: &Namespace<'_>) {
    here.create(&site.lasting("watched", 1));
    here.wait_phase("watched", "Running");
    // A few looks that fail are no outage: no Event for them is among those that are counted below.
    site.gates.replace("condor_q", "echo 'out of order' >&2; exit 1\n");
    let calls = site.gates.times("condor_q").len();
    wait_for("two looks", PATIENCE, || site.gates.times("condor_q").len() >= calls + 2).unwrap();
    site.gates.restore("condor_q");
    let calls = site.gates.times("condor_q").len();
    wait_for("two answers", PATIENCE, || site.gates.times("condor_q").len() >= calls + 2).unwrap();
    let outage = || {
        site.gates.replace("condor_q", "echo 'out of order' >&2; exit 1\n");
        let calls = site.gates.times("condor_q").len();
        wait_for("five looks", PATIENCE, || site.gates.times("condor_q").len() >= calls + 5).unwrap();
        here.wait_says("watched", "Tracked", "False", "ScheddUnreachable");
        site.gates.restore("condor_q");
        here.wait_says("watched", "Tracked", "True", "Tracking");
        site.gates.times("condor_q")[calls..].to_vec()
    };
    for looks in iter::repeat_with(outage).take(2) {
        assert_growing("condor_q", &looks, 0.5);
    }
    assert_eq!(here.count_events("watched", "ScheddUnreachable"), 2, "one for each outage");
    site.finish("watched");
    site.assert_complete_once(here, "watched", 1);
}

/// Idle jobs, of which every second one is left.
const MANY: u32 = 400;

/// A schedd that is gone for good: the object is let go knowingly, and each job that may be left is named.
fn abandoned_htcjob_names_its_orphans(version: Version) {
    let site = Site::start(version);
    let here = site.bed.namespace();
    let mut many = site.noted("many", MANY, "");
    many["spec"]["htcopts"] = "requirements = false".into();
    let uid = here.create(&many);
    here.wait("many", "all idle", |object| object["status"]["idle"] == MANY);
    let every_second = |rest: u32| format!("HTCJobUID == \"{uid}\" && HTCJobIndex % 2 == {rest}");
    // On a busy machine they are submitted in several clusters.
    let mut left: Vec<(u32, String)> = site
        .bed
        .queue(&every_second(0), &["HTCJobIndex", "ClusterId", "ProcId"])
        .iter()
        .map(|ad| (ad[0].parse().unwrap(), format!("{}.{}", ad[1], ad[2])))
        .collect();
    left.sort_unstable();
    let left: Vec<String> = left.into_iter().map(|(_, id)| id).collect();
    assert_eq!(left.len(), MANY as usize / 2);
    site.bed.pool.tool("condor_rm", &["-constraint", &every_second(1)]).unwrap();
    here.wait("many", "half of them gone", |object| object["status"]["failed"] == MANY / 2);
    wait_for("the removed ones to be known as gone", PATIENCE, || {
        let rows = site.bed.ledger(&format!("select count(*) from htcjobs where uid = '{uid}' and gone"));
        rows.is_ok_and(|rows| rows == [[(MANY / 2).to_string()]])
    })
    .unwrap();

    site.bed.pool.stop().unwrap();
    here.begin_delete("many");
    here.wait_says("many", "JobsRemoved", "False", "ScheddUnreachable");
    here.annotate("many", "htc.cern.ch/abandon");
    here.wait_gone("many");
    here.wait_event("many", "JobsRemoved");
    let (_, reported) = here.events("many").into_iter().find(|(reason, _)| reason == "JobsRemoved").unwrap();
    assert!(
        reported.contains(&format!("{},{},", left[0], left[1]))
            && reported.contains(",…. The operator's log lists all"),
        "{reported}"
    );
    assert!(reported.contains(&of(&uid)) && reported.len() < 1024, "{reported}");
    let named = |text: &str, sign: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| line.contains(sign));
        lines.flat_map(|line| line.split(['=', ',', ' ', ';'])).map(str::to_owned).collect()
    };
    let line = named(&site.bed.log(), "jobs may be left in HTCondor");
    assert!(left.iter().all(|id| line.contains(id)), "the log does not name all: {line:?}");

    // The next operator counts them, as soon as the schedd is there, and nothing waits for that.
    site.bed.stop_operator();
    site.bed.start_operator();
    here.create(&site.noted("next", 1, ""));
    here.wait_says("next", "Submitted", "False", "ScheddUnreachable");
    site.bed.pool.start_again().unwrap();
    here.wait("next", "submitted", |object| is_true(object, "Submitted"));
    let count = format!("orphans={}", left.len());
    wait_for("the orphans to be counted", PATIENCE, || site.bed.log().contains(&count)).unwrap();
    let line = named(&site.bed.log(), &count);
    assert!(left.iter().all(|id| line.contains(id)), "not all orphans are named: {line:?}");
    let (well, text) = site.bed.check();
    assert!(!well, "{text}");
    let message = named(&text, "WRONG orphans: 200 jobs");
    assert!(left.iter().all(|id| message.contains(id)), "{text}");
    assert_eq!(site.bed.queue(&of(&uid), &["ProcId"]).len(), left.len(), "only a person removes");

    // Without any it says so.
    here.delete("next");
    site.bed.pool.tool("condor_rm", &["-constraint", &of(&uid)]).unwrap();
    here.wait_nothing_left(&uid);
    site.bed.stop_operator();
    site.bed.start_operator();
    wait_for("the orphans to be counted", PATIENCE, || site.bed.log().contains("orphans=0")).unwrap();
}
