//! `spec.parallelism` under kills: HTCondor never has more of the HTCJob's jobs than it may, and no place stays free for longer than
//! the operator takes to look. `HTC_PLACES=20000` says how many jobs; a hundredth of them may be there at a time.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bed::namespace::Namespace;
use bed::site::Site;
use bed::{PATIENCE, beside, is_true, of};
use testbed::{Version, wait_for};

/// If `HTC_PLACES` does not say.
const JOBS: u32 = 100;
const AT_A_TIME: u32 = 10;
/// Times that the operator is killed.
const KILLS: u32 = 2;
/// Jobs that end in a second, at the very least.
const SLOWEST: u32 = 2;
/// The operator's look at the queue, at the longest.
const LOOK: u64 = 5;
/// One submission in which nothing goes wrong, until HTCondor has its files; HTCondor's own dates are whole seconds.
const SUBMISSION: u64 = 5;
/// From the start of an operator after a kill until it submits again.
const RECOVERY: u64 = 10;
/// All ads stay in history: the usual 60 MB have those of some 10,000 jobs.
const HISTORY: &str = "MAX_HISTORY_LOG = 1000000000\n";

/// Seconds since 1970, as HTCondor has them.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

fn jobs() -> (u32, u32) {
    match std::env::var("HTC_PLACES") {
        Ok(text) => {
            let jobs: u32 = text.parse().expect("HTC_PLACES is a number of jobs");
            (jobs, (jobs / 100).max(1))
        }
        Err(_) => (JOBS, AT_A_TIME),
    }
}

fn limit(jobs: u32) -> Duration {
    PATIENCE + Duration::from_secs((jobs / SLOWEST).into())
}

/// What HTCondor showed while the jobs ran.
#[derive(Default)]
struct Looks {
    most: usize,
    /// The longest that one of them took, in whole seconds.
    slowest: u64,
}

fn look(site: &Site, open: &str, looks: &mut Looks) {
    let began = now();
    looks.most = looks.most.max(site.bed.queue(open, &["ProcId"]).len());
    looks.slowest = looks.slowest.max(now() - began);
    thread::sleep(Duration::from_millis(200));
}

/// Kills the operator each time that so many more jobs have ended; when it was away, or was finding out what it had done.
fn kill(site: &Site, here: &Namespace<'_>, jobs: u32) -> Vec<(u64, u64)> {
    let kill = |number: u32| {
        let enough = u64::from(jobs) * u64::from(number) / u64::from(KILLS + 1);
        wait_for("jobs to end", limit(jobs), || {
            let done = here.get("places")["status"]["succeeded"].as_u64().unwrap_or_default();
            if done >= enough { Ok(()) } else { Err(format!("{done} of {enough}")) }
        })
        .unwrap_or_else(|error| panic!("{error}\n{}", site.bed.logs()));
        let from = now();
        site.bed.kill_operator();
        site.bed.start_operator();
        (from, now() + RECOVERY)
    };
    (1..=KILLS).map(kill).collect()
}

/// How long each place stayed free that a job left while others waited, in order of their ends, in seconds. The operator was not
/// there in some of them.
fn free(mut queued: Vec<u64>, mut ended: Vec<u64>, at_a_time: u32, away: &[(u64, u64)]) -> Vec<u64> {
    queued.sort_unstable();
    ended.sort_unstable();
    let filled = queued.into_iter().skip(at_a_time as usize);
    let places = ended.into_iter().zip(filled);
    let beside = |(left, filled): &(u64, u64)| !away.iter().any(|(from, to)| left <= to && filled >= from);
    let mut free: Vec<u64> = places.filter(beside).map(|(left, filled)| filled.saturating_sub(left)).collect();
    free.sort_unstable();
    free
}

#[test]
#[ignore = "make test-long: with 20,000 jobs"]
fn parallelism_is_fully_used_and_never_exceeded_under_kills() {
    bed::turns::take(bed::Weight::Heavy);
    let (jobs, at_a_time) = jobs();
    let site = Site::with(Version::Sid, HISTORY, &["--poll-interval=5s"]);
    site.bed.start_operator();
    let here = site.bed.namespace();
    let mut object = site.noted("places", jobs, "true");
    object["spec"]["parallelism"] = at_a_time.into();
    let uid = here.create(&object);
    let open = format!("{} && !member(JobStatus, {{3,4}})", of(&uid));
    let (away, looks) = beside(
        Looks::default(),
        |looks| look(&site, &open, looks),
        || {
            let away = kill(&site, &here, jobs);
            let ended = wait_for("all jobs to end", limit(jobs), || is_true(&here.get("places"), "Complete"));
            ended.unwrap_or_else(|error| panic!("{error}\n{:#}\n{}", here.get("places"), site.bed.logs()));
            away
        },
    );
    assert!(looks.most <= at_a_time as usize, "{} in HTCondor, {at_a_time} may be", looks.most);

    let fetched = wait_for("the output of all jobs to be here", limit(jobs), || {
        site.bed.queue(&of(&uid), &["ProcId"]).is_empty()
    });
    fetched.unwrap_or_else(|error| panic!("{error}\n{}", site.bed.logs()));
    site.bed.assert_once(&uid, "places", jobs);
    let ran = site.all_runs();
    let each: BTreeMap<String, usize> = (0..jobs).map(|index| (format!("places.{index}"), 1)).collect();
    assert!(ran == each, "not each payload ran once: {ran:?}");

    let dates = site.bed.history(&of(&uid), &["QDate", "CompletionDate"]);
    let date = |column: usize| dates.iter().map(|row| row[column].parse().unwrap()).collect::<Vec<u64>>();
    let free = free(date(0), date(1), at_a_time, &away);
    let (middle, longest) = (free[free.len() / 2], free[free.len() - 1]);
    let slow = looks.slowest;
    println!(
        "{jobs} jobs, {} of {at_a_time} at a time, {KILLS} kills: {} places were free for {middle} s (median), {longest} s at most, \
         beside kills; a look by hand took {slow} s at most",
        looks.most,
        free.len(),
    );
    assert!(longest <= LOOK + SUBMISSION + 4 * slow, "a place was free for {longest} s, a look took {slow} s");
    assert!(free.len() >= jobs as usize / 4, "the operator was away most of the time: {away:?}");
}
