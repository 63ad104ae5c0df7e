//! Many HTCJobs at once, of which ten are bad, each in a way of its own: each of these says what is wrong with it, and the others are
//! right and in time.

mod bad;
mod pace;

use std::collections::BTreeMap;
use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use self::bad::{BAD, Bad};
use self::pace::meanwhile;
use bed::site::Site;
use bed::{LONG_SUBMISSIONS, Namespace, PATIENCE, SOON, ids, is_true};
use serde_json::{Value, json};
use testbed::Version::{self, Sid, Trixie};
use testbed::{Account, wait_for};

/// More than one submission takes.
const FEW: usize = 60;
/// For `make test-long`.
const MANY: usize = 190;
/// How much more time the good ones may take than without the bad ones, as the machine was then.
const FACTOR: f64 = 1.25;
/// The same for processor time of the schedd and the operator, and how many times what a good one costs alone a bad one may cost: however
/// many good ones there are for each. Of fifty good ones each costs a fiftieth of a condor_submit; a bad one makes two of them, and
/// the pauses before them are one second more of questions for each.
const WORK: f64 = 1.1;
const WORK_OF_A_BAD: f64 = 6.0;
/// What the bad ones may cost: a submission of fifty that fails for the sake of one goes again with six, and then each
/// alone, after pauses of 1 and 2 s. That takes some 15 s, and twice as long where other tests keep the machine busy.
const FOR_THE_BAD: Duration = Duration::from_secs(45);

/// Patience with all of them together.
const LIMIT: Duration = PATIENCE.saturating_mul(3);

/// Time from creation.
#[derive(Clone, Copy)]
struct Times {
    /// Until all have an id.
    ids: Duration,
    /// Until all are complete.
    complete: Duration,
}

impl Times {
    /// The most that the same may take beside bad ones, on a machine that is so many times slower by then.
    fn most(self, slower: f64) -> Self {
        let most = |alone: Duration| alone.mul_f64(FACTOR * slower) + FOR_THE_BAD;
        Self { ids: most(self.ids), complete: most(self.complete) }
    }
}

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "all ids after {:.1?}, all complete after {:.1?}", self.ids, self.complete)
    }
}

/// Processor time of the schedd, the operator and all that they have waited for, so far.
fn spent(site: &Site) -> Duration {
    let ticks = |pid: u32| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let fields = text.rsplit(") ").next().unwrap().split(' ');
        fields.skip(11).take(4).map(|field| field.parse::<u32>().unwrap()).sum::<u32>()
    };
    Duration::from_millis(10) * (ticks(site.bed.pool.schedd_pid().unwrap()) + ticks(site.bed.operator_pid()))
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap()
}

fn is_good(object: &Value) -> bool {
    name(object).starts_with("good-")
}

/// Waits until all good ones are complete.
fn wait_good(here: &Namespace<'_>, count: usize, began: Instant) -> Times {
    let mut ids = None;
    let complete = wait_for(&format!("{count} to be complete"), LIMIT, || {
        let objects: Vec<Value> = here.all().into_iter().filter(is_good).collect();
        let have = objects.iter().filter(|object| object["status"]["clusterid"].is_string()).count();
        if have == count {
            ids.get_or_insert_with(|| began.elapsed());
        }
        let complete = objects.iter().filter(|object| is_true(object, "Complete")).count();
        if complete == count { Ok(began.elapsed()) } else { Err(format!("{have} have ids, {complete} are complete")) }
    })
    .unwrap_or_else(|error| panic!("{error}\n{}", here.bed.logs()));
    Times { ids: ids.unwrap(), complete }
}

/// What Events tell of a good one, and no more, even where it has shared a submission with the refused one.
const STORY: [&str; 5] = ["Pending", "Submitted", "Running", "Completed", "Fetched"];

fn is_the_story(told: &[String]) -> bool {
    let count = |reason: &str| told.iter().filter(|other| *other == reason).count();
    STORY.iter().all(|reason| count(reason) == 1 || (*reason == "Running" && count(reason) == 0))
        && told.iter().all(|reason| STORY.contains(&reason.as_str()))
}

/// Each good one has succeeded: one job, one run, its output; and Events tell that and nothing else.
fn assert_good(site: &Site, here: &Namespace<'_>, count: usize) {
    let (jobs, runs) = (site.bed.jobs_of_all(), site.all_runs());
    let objects: Vec<Value> = here.all().into_iter().filter(is_good).collect();
    assert_eq!(objects.len(), count);
    // Events come a little after the status; one too many stays.
    wait_for("what Events tell of the good ones", PATIENCE, || {
        let mut events: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for event in here.all_events() {
            let of = event["involvedObject"]["name"].as_str().unwrap().to_owned();
            events.entry(of).or_default().push(event["reason"].as_str().unwrap().to_owned());
        }
        let told = |object| events.get(name(object)).map(Vec::as_slice).unwrap_or_default();
        let wrong = objects.iter().find(|object| !is_the_story(told(object)));
        wrong.map_or(Ok(()), |object| Err(format!("{}: {:?}", name(object), told(object))))
    })
    .unwrap();
    let mut attempts: BTreeMap<u64, usize> = BTreeMap::new();
    for object in &objects {
        let (name, status) = (name(object), &object["status"]);
        assert_eq!(bad::counts(object), [0, 1, 0], "{object:#}");
        assert!(status["phase"] == "Completed" && !is_true(object, "Failed"), "{object:#}");
        assert!(is_true(object, "OutputFetched"), "{object:#}");
        let counting: Vec<_> = jobs[object["metadata"]["uid"].as_str().unwrap()].iter().collect();
        let [job] = counting.iter().filter(|job| job.accepted).collect::<Vec<_>>()[..] else {
            panic!("{name}: one job that counts, but: {counting:#?}")
        };
        assert_eq!(ids(object), [job.id.as_str()], "{name}");
        assert_eq!((job.starts, runs.get(&format!("{name}.0"))), (1, Some(&1)), "{name}: {counting:#?}");
        let out = std::fs::read_to_string(here.output(name, 0).join("out")).unwrap();
        assert_eq!(out, format!("{name}\n"));
        *attempts.entry(status["attempt"].as_u64().unwrap()).or_default() += 1;
    }
    println!("  how many were submitted how often: {attempts:?}");
    assert!(attempts.keys().all(|attempt| *attempt <= 3), "{attempts:?}");
}

fn good(site: &Site, number: usize) -> Value {
    site.noted(&format!("good-{number}"), 1, "echo $JOB_NAME")
}

/// So many good ones, and the bad ones evenly among them.
fn crowd(site: &Site, count: usize) -> Vec<Value> {
    let every = count / BAD.len();
    let mut objects = Vec::new();
    for (number, bad) in BAD.iter().enumerate() {
        objects.extend((0..every / 2).map(|at| good(site, number * every + at)));
        objects.push(bad.object(site));
        objects.extend((every / 2..every).map(|at| good(site, number * every + at)));
    }
    assert_eq!(objects.len(), count + BAD.len());
    objects
}

/// Waits until each bad one is in its own state, all at the same time.
fn wait_bad(site: &Site, here: &Namespace<'_>) {
    wait_for("each bad one to be in its own state", LIMIT, || {
        let objects = here.all();
        let jobs = site.bed.jobs_of_all();
        let wrong: Vec<String> = BAD.iter().filter_map(|bad| bad.wrong(&objects, &jobs)).collect();
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
    })
    .unwrap_or_else(|error| panic!("{error}\n{}", site.bed.logs()));
    let runs = site.all_runs();
    for Bad { name, runs: wanted, .. } in BAD {
        let ran = runs.get(&format!("{name}.0")).copied().unwrap_or(0);
        assert!(wanted.contains(&ran), "{name} ran {ran} times");
    }
}

/// Somebody removes its job as soon as it waits.
fn remove_by_hand(here: &Namespace<'_>) {
    let object = here.wait("removed", "idle", |object| object["status"]["idle"] == 1);
    here.bed.condor.ok("condor_rm", &[&ids(&object)[0]]).unwrap();
}

/// Deletes all; nothing of them is left.
fn delete_all(site: &Site, here: &Namespace<'_>) {
    let (uids, before): (Vec<Value>, _) =
        (here.all().iter().map(|object| object["metadata"]["uid"].clone()).collect(), site.all_runs());
    let began = Instant::now();
    here.begin_delete_all();
    wait_for("all to be gone", LIMIT, || match here.all().len() {
        0 => Ok(()),
        left => Err(left),
    })
    .unwrap_or_else(|error| panic!("{error}\n{}", site.bed.logs()));
    println!("  {} deleted and gone after {:.1?}", uids.len(), began.elapsed());
    let left = site.bed.queue("true", &["HTCJobUID", "ClusterId", "JobStatus"]);
    assert!(left.is_empty(), "left in the queue: {left:?}");
    let jobs = site.bed.jobs_of_all();
    let accepted = uids.iter().filter_map(|uid| jobs.get(uid.as_str().unwrap())).flatten().filter(|job| job.accepted);
    site.bed.wait_spool_free(&accepted.map(|job| job.id.clone()).collect::<Vec<_>>());
    assert_eq!(site.all_runs(), before, "nothing ran any more");
}

#[test]
fn ten_bad_htcjobs_do_not_affect_60_others() {
    check_ten_bad_htcjobs_among(FEW, Trixie);
}

#[test]
#[ignore = "make test-long: 390 containers"]
fn ten_bad_htcjobs_do_not_affect_190_others() {
    check_ten_bad_htcjobs_among(MANY, Trixie);
}

#[test]
#[ignore = "make test-long: 390 containers"]
fn ten_bad_htcjobs_do_not_affect_190_others_on_sid() {
    check_ten_bad_htcjobs_among(MANY, Sid);
}

fn check_ten_bad_htcjobs_among(count: usize, version: Version) {
    bed::turns::take(bed::Weight::Heavy);
    let site = Site::with(version, bad::CLOSED, &[LONG_SUBMISSIONS, &[SOON]].concat());
    site.bed.start_operator();

    let here = site.bed.namespace();
    let (began, before) = (Instant::now(), spent(&site));
    let (alone, pace_alone) = meanwhile(|| {
        here.create_all(&(0..count).map(|number| good(&site, number)).collect::<Vec<_>>());
        wait_good(&here, count, began)
    });
    let work_alone = spent(&site).saturating_sub(before) / u32::try_from(count).unwrap();
    println!("{version}: {count} good ones alone: {alone}; {work_alone:.1?} of work for each; pace {pace_alone}");
    delete_all(&site, &here);

    let here = site.bed.namespace();
    let account = Account::unprivileged();
    let outputs = site.bed.data.join("htc_out").join(&here.name);
    account.make_dir(&outputs, 0o755).unwrap();
    account.write(&outputs.join("folderless"), "not a folder", 0o644).unwrap();
    let alone_runs = site.forget_runs();
    assert!(alone_runs.len() == count && alone_runs.values().all(|runs| *runs == 1), "{alone_runs:?}");
    let submitted = site.gates.calls("condor_submit");
    let (objects, began, before) = (crowd(&site, count), Instant::now(), spent(&site));
    let (times, pace) = meanwhile(|| {
        thread::scope(|scope| {
            scope.spawn(|| {
                here.create_all(&objects);
                remove_by_hand(&here);
            });
            wait_good(&here, count, began)
        })
    });
    let work = spent(&site).saturating_sub(before);
    let slower = pace.slower_than(pace_alone);
    let (most, commands) = (alone.most(slower.time), site.gates.calls("condor_submit") - submitted);
    println!(
        "{version}: {count} good ones among {} bad ones, {commands} condor_submit: {times}; {work:.1?} of work; pace {pace}",
        BAD.len()
    );
    println!("{version}: allowed: {most}");
    assert_good(&site, &here, count);
    assert!(times.ids < most.ids && times.complete < most.complete, "{times}, instead of: {most}");
    let [good, bad] = [count, BAD.len()].map(|count| f64::from(u32::try_from(count).unwrap()));
    let most = work_alone.mul_f64((good * WORK + bad * WORK_OF_A_BAD) * slower.work);
    assert!(work < most, "{work:.1?} of work, instead of {most:.1?}");
    assert!(commands < count / 2, "what waits goes together: {commands} condor_submit");

    wait_bad(&site, &here);
    println!("{version}: each bad one is in its own state after {:.1?}", began.elapsed());
    // What matches no machine waits until its deadline is past.
    here.merge("unmatched", &json!({ "spec": { "activeDeadlineSeconds": 1 } }));
    here.wait_says("unmatched", "Failed", "True", "DeadlineExceeded");
    assert_good(&site, &here, count);
    delete_all(&site, &here);
}
