//! Properties that must hold after each round. Pure, and without code of the operator.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use strum::EnumIter;

use crate::soak::collect::{Ad, Collected, Record, spooled};
use crate::soak::driver::{ENDED, Life, rank};
use crate::soak::plan::{Fate, QUOTA};

/// What must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, EnumIter)]
pub enum Rule {
    /// The operator ends only when it is ended, and by SIGTERM in order.
    OperatorEnded,
    /// Each job in HTCondor belongs to an index of an `HTCJob`.
    UnknownJob,
    /// Each run belongs to an index of an `HTCJob`.
    UnknownRun,
    /// No job is left in the queue.
    LeftInQueue,
    /// Nothing of a job that counted, or came late, is left in the schedd's spool folder.
    LeftInSpool,
    /// Each index has exactly one job that counts; where the `HTCJob` was deleted, at most one.
    OneJobEach,
    /// HTCondor never had more jobs of an `HTCJob` that had not ended than its parallelism allows.
    Parallelism,
    /// A place that one of them leaves is taken by the next within what the operator's looks allow.
    FreePlace,
    /// HTCondor never had more jobs of the queue's `HTCJob`s that had not ended, and were not held, than its quota allows.
    Quota,
    /// In the end nothing has room in the queue, and nobody waits for it.
    RoomIsLeft,
    /// Each payload ran exactly once; where the `HTCJob` was deleted, at most once.
    OneRunEach,
    /// No payload ran in a job that does not count.
    RunThatCounts,
    /// HTCondor itself began a job again, though nobody held it.
    BegunAgain,
    /// Each job has ended with its payload's exit code.
    ExitCode,
    /// HTCondor itself has removed a job, though nobody asked for that. It has done so once, to one that had exited: a shadow may
    /// be sent the signal for the job that it served before.
    RemovedByOthers,
    /// HTCondor itself has removed a job that was held and released. A busy schedd carries out a hold late, even if the job was released
    /// meanwhile and runs: it then ends as if it were removed, with no `RemoveReason`. With 23.9 and 25.14 `condor_rm` of 2,000 other
    /// jobs, `condor_hold` and `condor_release`, one after the other, do that most times.
    RemovedByHold,
    /// A deleted object is gone, another is there with its finalizer.
    Finalizer,
    /// Phase and counts.
    Counts,
    /// Ids and attempt in the status are those of the ads.
    Ids,
    Conditions,
    /// The output is there, and is what the payload wrote.
    Output,
    /// Events tell each transition once, and nothing else.
    Events,
    /// The watch missed nothing: what was listed it has shown, and its last word is how the object is, or that it is gone.
    Unwatched,
    /// In each status that was published, the jobs are of this `HTCJob`, count, and are of no later attempt than it tells;
    /// those of the status before are among them, and it has counted each.
    ToldJobs,
    /// In each, `Complete` or `Failed` is said when all jobs are counted and have ended, and not taken back.
    ToldEnd,
    /// Neither phases nor counts ever went back, unless it was said that a reported end was none.
    WentBack,
    /// No status ever counted an end that none of its payloads has.
    CountedTooMuch,
    /// What a job reports was found not to be so, though nobody stopped it.
    Refuted,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub rule: Rule,
    /// The `HTCJob`; empty if it is about none.
    pub uid: String,
    pub detail: String,
}

impl Violation {
    pub fn new(rule: Rule, uid: &str, detail: String) -> Self {
        Self { rule, uid: uid.to_owned(), detail }
    }
}

/// Reason of the Event that HTCondor says otherwise than a job did.
pub const REFUTED: &str = "CallbackRefuted";

/// Ids that a status lists one by one.
const LISTED: usize = 100;

/// All that is wrong.
pub fn check(found: &Collected) -> Vec<Violation> {
    let mut check = Check { found, violations: Vec::new() };
    check.strangers();
    if found.watched.lists != 1 {
        let detail = format!("listed {} times", found.watched.lists);
        check.violations.push(Violation::new(Rule::Unwatched, "", detail));
    }
    check.quota();
    for life in &found.lives {
        let ads = found.ads_of(&life.uid);
        check.jobs(life, &ads);
        check.parallelism(life, &ads);
        check.free_places(life, &ads);
        check.runs(life, &ads);
        check.events(life);
        check.watched(life);
        check.told_jobs(life, &ads);
        check.told_end(life);
        check.went_back(life);
        check.counted(life);
        match (life.plan.is_deleted(), found.object(&life.uid)) {
            (true, Some(object)) => check.say(Rule::Finalizer, life, format!("not gone: {}", object["metadata"])),
            (false, None) => check.say(Rule::Finalizer, life, "gone, though nobody deleted it".to_owned()),
            (true, None) => {}
            (false, Some(object)) => {
                check.finalizer(life, object);
                check.status(life, object, &ads);
                check.output(life);
            }
        }
    }
    check.violations
}

impl Collected {
    /// Jobs of one `HTCJob` in the queue and in history, each once.
    pub fn ads_of(&self, uid: &str) -> Vec<&Ad> {
        let mut ads: Vec<&Ad> = Vec::new();
        for ad in self.history.iter().chain(&self.queue).filter(|ad| ad.uid == uid) {
            if !ads.iter().any(|other| other.id == ad.id) {
                ads.push(ad);
            }
        }
        ads
    }

    pub fn object(&self, uid: &str) -> Option<&Value> {
        self.objects.iter().find(|object| object["metadata"]["uid"] == uid)
    }

    /// Each status that an `HTCJob` has had, oldest first.
    pub fn statuses_of(&self, uid: &str) -> &[Value] {
        self.watched.statuses.get(uid).map_or(&[], Vec::as_slice)
    }

    pub fn records_of(&self, uid: &str) -> Vec<&Record> {
        self.records.iter().filter(|record| record.uid == uid).collect()
    }

    /// Number, reason and message of the Events of one `HTCJob`, in order.
    pub fn events_of(&self, uid: &str) -> Vec<(usize, &str, &str)> {
        let of = |event: &'_ &Value| event["involvedObject"]["uid"] == uid;
        let mut events: Vec<(usize, &str, &str)> = self
            .events
            .iter()
            .filter(of)
            .map(|event| {
                let text = |value: &'static str| event[value].as_str().unwrap_or_default();
                let number = event["metadata"]["name"].as_str().and_then(|name| name.rsplit('.').next()?.parse().ok());
                (number.unwrap_or(0), text("reason"), text("message"))
            })
            .collect();
        events.sort_unstable();
        events
    }
}

/// How many of these times overlap at most: begin, and end if there was one.
fn at_a_time(times: &[(i64, Option<i64>)]) -> usize {
    let open = |moment: i64| {
        let is_open = |(begin, end): &&(i64, Option<i64>)| *begin <= moment && end.is_none_or(|end| end > moment);
        times.iter().filter(is_open).count()
    };
    times.iter().map(|(begin, _)| open(*begin)).max().unwrap_or_default()
}

/// From when HTCondor has a job to its end.
fn in_htcondor(ad: &Ad) -> Option<(i64, Option<i64>)> {
    Some((ad.staged?, ad.completed.or(ad.removed)))
}

/// The last run of a job that may have been held before.
fn last_run(ad: &Ad) -> Option<(i64, Option<i64>)> {
    Some((ad.began?, ad.completed.or(ad.removed)))
}

pub struct Check<'a> {
    pub found: &'a Collected,
    violations: Vec<Violation>,
}

impl Check<'_> {
    pub fn say(&mut self, rule: Rule, life: &Life, detail: String) {
        self.violations.push(Violation::new(rule, &life.uid, detail));
    }

    fn require(&mut self, holds: bool, rule: Rule, life: &Life, detail: impl FnOnce() -> String) {
        if !holds {
            self.say(rule, life, detail());
        }
    }

    /// What belongs to no `HTCJob`, and what is left of any.
    fn strangers(&mut self) {
        let known = |uid: &str, index: u32| {
            let life = self.found.lives.iter().find(|life| life.uid == uid);
            life.is_some_and(|life| (index as usize) < life.plan.codes.len())
        };
        let mut violations = Vec::new();
        for ad in self.found.queue.iter().chain(&self.found.history).filter(|ad| !known(&ad.uid, ad.index)) {
            violations.push(Violation::new(Rule::UnknownJob, &ad.uid, format!("{ad:?}")));
        }
        for record in self.found.records.iter().filter(|record| !known(&record.uid, record.index)) {
            violations.push(Violation::new(Rule::UnknownRun, &record.uid, format!("{record:?}")));
        }
        for ad in &self.found.queue {
            violations.push(Violation::new(Rule::LeftInQueue, &ad.uid, format!("{ad:?}")));
        }
        for name in &self.found.spool {
            let ad = spooled(&self.found.queue, name).or_else(|| spooled(&self.found.history, name));
            // Of a job that is removed while its files come in, the schedd may leave what came; condor_preen sweeps it.
            if ad.is_some_and(|ad| ad.staged.is_none()) {
                continue;
            }
            let uid = ad.map_or("", |ad| &ad.uid);
            violations.push(Violation::new(Rule::LeftInSpool, uid, format!("{name}, of {ad:?}")));
        }
        self.violations.extend(violations);
    }

    fn jobs(&mut self, life: &Life, ads: &[&Ad]) {
        for (index, code) in (0..).zip(&life.plan.codes) {
            let counting: Vec<&&Ad> = ads.iter().filter(|ad| ad.index == index && ad.counts()).collect();
            let enough = counting.len() == 1 || (counting.is_empty() && !life.plan.runs_to_its_end());
            self.require(enough, Rule::OneJobEach, life, || format!("job {index}: {counting:#?}"));
            // condor_rm of a job that has ended makes its JobStatus 3.
            let over = |ad: &Ad| ad.status == 4 || (ad.status == 3 && life.plan.is_deleted());
            let ended = |ad: &&Ad| over(ad) && ad.exit_code == Some(i64::from(*code));
            let removed: Vec<_> = counting.iter().filter(|ad| ad.is_removed_by_others()).collect();
            if !life.plan.is_deleted() && !removed.is_empty() {
                let by_hold = life.plan.may_be_held() && removed.iter().all(|ad| ad.is_removed_without_reason());
                let rule = if by_hold { Rule::RemovedByHold } else { Rule::RemovedByOthers };
                self.say(rule, life, format!("job {index}: {counting:#?}"));
            } else if life.plan.runs_to_its_end() && !counting.iter().all(|ad| ended(ad)) {
                self.say(Rule::ExitCode, life, format!("job {index} should have exited with {code}: {counting:#?}"));
            }
        }
    }

    fn parallelism(&mut self, life: &Life, ads: &[&Ad]) {
        let Some(most) = life.plan.at_a_time() else { return };
        let counting: Vec<&Ad> = ads.iter().copied().filter(|ad| ad.counts()).collect();
        let times: Vec<_> = counting.iter().filter_map(|ad| in_htcondor(ad)).collect();
        self.require(at_a_time(&times) <= most, Rule::Parallelism, life, || format!("{counting:#?}"));
    }

    fn quota(&mut self) {
        let (mut times, mut counting) = (Vec::new(), Vec::new());
        for life in self.found.lives.iter().filter(|life| life.plan.is_queued()) {
            let ads: Vec<&Ad> = self.found.ads_of(&life.uid).into_iter().filter(|ad| ad.counts()).collect();
            // What is held for spec.suspend has given its room to others.
            let uses = if life.plan.fate == Fate::QueuedSuspended { last_run } else { in_htcondor };
            times.extend(ads.iter().filter_map(|ad| uses(ad)));
            counting.extend(ads);
        }
        if at_a_time(&times) > QUOTA {
            self.violations.push(Violation::new(Rule::Quota, "", format!("{counting:#?}")));
        }
        let status = &self.found.htcqueue;
        if status["used"]["jobs"] != 0 || status["pending"] != 0 || status["waitingJobs"] != 0 {
            self.violations.push(Violation::new(Rule::RoomIsLeft, "", format!("{status:#}")));
        }
    }

    fn runs(&mut self, life: &Life, ads: &[&Ad]) {
        for index in (0..).take(life.plan.codes.len()) {
            let records = self.found.records_of(&life.uid);
            let (ends, starts): (Vec<&Record>, Vec<&Record>) =
                records.into_iter().filter(|record| record.index == index).partition(|record| record.end);
            let counting: Vec<&&Ad> = ads.iter().filter(|ad| ad.index == index && ad.counts()).collect();
            let counts = |record: &&Record| counting.iter().any(|ad| ad.id == record.id);
            if let Some(stray) = starts.iter().chain(&ends).find(|record| !counts(record)) {
                self.say(Rule::RunThatCounts, life, format!("{stray:?}, but what counts is {counting:#?}"));
            }
            let begun = counting.iter().map(|ad| usize::try_from(ad.starts).unwrap_or(0)).max().unwrap_or(0);
            let limit = if life.plan.may_begin_again() { begun.max(1) } else { 1 };
            let least = usize::from(life.plan.runs_to_its_end());
            let detail = || format!("job {index}, begun {begun} times by HTCondor: {starts:#?} {ends:#?}");
            let by_htcondor = starts.len() > limit && starts.len() <= begun && counting.len() == 1;
            if by_htcondor {
                self.say(Rule::BegunAgain, life, detail());
            } else if !(least..=limit).contains(&starts.len()) || !(least..=limit).contains(&ends.len()) {
                self.say(Rule::OneRunEach, life, detail());
            }
        }
    }

    fn finalizer(&mut self, life: &Life, object: &Value) {
        let metadata = &object["metadata"];
        let alive = metadata.get("deletionTimestamp").is_none();
        let guarded = metadata["finalizers"].as_array().is_some_and(|finalizers| finalizers.len() == 1);
        self.require(alive && guarded, Rule::Finalizer, life, || format!("{metadata}"));
    }

    fn status(&mut self, life: &Life, object: &Value, ads: &[&Ad]) {
        let status = &object["status"];
        let jobs = life.plan.codes.len();
        let succeeded = jobs - life.plan.codes.iter().filter(|code| **code != 0).count();
        let expected =
            [("total", jobs), ("active", 0), ("running", 0), ("held", 0), ("idle", 0), ("succeeded", succeeded)];
        let right = expected.iter().chain(&[("failed", jobs - succeeded)]).all(|(name, count)| status[name] == *count);
        self.require(right && status["phase"] == "Completed", Rule::Counts, life, || {
            format!("phase Completed, {succeeded} of {jobs} succeeded, it should say: {status:#}")
        });

        let mut counting: Vec<&str> = (0..)
            .take(jobs)
            .filter_map(|index| ads.iter().find(|ad| ad.index == index && ad.counts()).map(|ad| ad.id.as_str()))
            .collect();
        // Of two indexes the later one may have the earlier job.
        counting.sort_by_key(|id| id.split('.').map(|number| number.parse::<u64>().unwrap()).collect::<Vec<_>>());
        let told: Vec<&str> = texts(&status["jobid"]).collect();
        let clusters: BTreeSet<&str> = counting.iter().filter_map(|id| id.split('.').next()).collect();
        let cluster = status["clusterid"].as_str().is_some_and(|cluster| clusters.contains(cluster));
        let ranges = status["jobs"].as_str().map(expand).unwrap_or_default();
        let all: BTreeSet<String> = counting.iter().map(|id| (*id).to_owned()).collect();
        let highest = ads.iter().map(|ad| ad.attempt).max().unwrap_or(0);
        let attempt = status["attempt"].as_i64().is_some_and(|attempt| attempt >= highest);
        let first = &counting[..counting.len().min(LISTED)];
        self.require(told == first && cluster && ranges == all && attempt, Rule::Ids, life, || {
            format!("its jobs are {counting:?}, of attempts up to {highest}, but it says: {status:#}")
        });

        let says = |kind: &str| says(status, kind);
        let failed = succeeded < jobs;
        let right = [("Complete", !failed), ("Failed", failed), ("OutputFetched", true), ("Submitted", true)]
            .iter()
            .all(|(kind, holds)| says(kind).unwrap_or(false) == *holds)
            && ["Held", "Suspended"].iter().all(|kind| says(kind) != Some(true))
            && says("Tracked") != Some(false);
        self.require(right, Rule::Conditions, life, || format!("{:#}", status["conditions"]));
    }

    fn output(&mut self, life: &Life) {
        for index in (0..).take(life.plan.codes.len()) {
            let records = self.found.records_of(&life.uid);
            let Some(last) = records.into_iter().rfind(|record| record.index == index && record.end) else {
                continue;
            };
            let out = format!("{} {index} {}\n", life.plan.name, last.token);
            let result = format!("{}\n", last.token);
            let output = self.found.outputs.get(&(life.uid.clone(), index));
            let right = output
                .is_some_and(|output| output.out.as_ref() == Some(&out) && output.result.as_ref() == Some(&result));
            self.require(right, Rule::Output, life, || format!("job {index} wrote {out:?}, found was {output:?}"));
        }
    }

    fn events(&mut self, life: &Life) {
        let events = self.found.events_of(&life.uid);
        let place = |wanted: &str| {
            let mut places = (0..events.len()).filter(|at| events[*at].1 == wanted);
            match (places.next(), places.next()) {
                (at, None) => Ok(at),
                (_, Some(_)) => Err(wanted.to_owned()),
            }
        };
        let reasons = ["Pending", "Submitted", "Running", "Completed", "Failed", "Terminating", "JobsRemoved"];
        let places: Result<Vec<Option<usize>>, String> = reasons.iter().map(|reason| place(reason)).collect();
        let numbered = (1..).zip(&events).all(|(number, event)| event.0 == number);
        let right = numbered
            && places.is_ok_and(|places| {
                let there: Vec<bool> = places.iter().map(Option::is_some).collect();
                let [pending, submitted, running, completed, failed, terminating, removed] = there[..] else {
                    return false;
                };
                let in_order = places.iter().flatten().is_sorted();
                let failing = life.plan.codes.iter().any(|code| *code != 0);
                let to_its_end = pending && submitted && completed != failing && failed == failing;
                // Deleted before the operator ever saw it, it just goes. So it does if the finalizer comes while the API server deletes it: that
                // looks for finalizers first, and deletes whatever was written since (Store.Delete in k8s.io/apiserver).
                let held = self.found.watched.deleting.contains(&life.uid);
                let untold = events.is_empty() || (!held && events.len() == 1 && pending);
                let unseen = untold && self.found.ads_of(&life.uid).is_empty();
                let deleted = unseen || (pending && terminating && removed && !(completed && failed));
                let gone_right = if life.plan.is_deleted() { deleted } else { !terminating && !removed };
                in_order && gone_right && (to_its_end || !life.plan.runs_to_its_end()) && (!running || submitted)
            });
        self.require(right, Rule::Events, life, || format!("{events:#?}"));
    }

    fn watched(&mut self, life: &Life) {
        let statuses = self.found.statuses_of(&life.uid);
        let last = match self.found.object(&life.uid) {
            Some(object) => statuses.last() == Some(&object["status"]),
            None => self.found.watched.gone.contains(&life.uid),
        };
        let listed = life.seen.iter().all(|status| statuses.contains(status));
        self.require(last && listed, Rule::Unwatched, life, || format!("{:#?}, but {statuses:#?}", life.seen.last()));
    }

    fn told_jobs(&mut self, life: &Life, ads: &[&Ad]) {
        let attempts: BTreeMap<&str, i64> =
            ads.iter().filter(|ad| ad.counts()).map(|ad| (ad.id.as_str(), ad.attempt)).collect();
        let mut before = BTreeSet::new();
        for status in self.found.statuses_of(&life.uid) {
            let ids = status["jobs"].as_str().map(expand).unwrap_or_default();
            let listed: BTreeSet<String> = texts(&status["jobid"]).map(str::to_owned).collect();
            let known =
                |id: &String| attempts.get(id.as_str()).is_some_and(|attempt| *attempt <= number(status, "attempt"));
            let counted: i64 = ["active", "succeeded", "failed"].iter().map(|name| number(status, name)).sum();
            let right = ids.iter().all(known)
                && ids.is_superset(&before)
                && ids.is_superset(&listed)
                && listed.len() == ids.len().min(LISTED)
                && usize::try_from(counted) == Ok(ids.len());
            self.require(right, Rule::ToldJobs, life, || {
                format!("its jobs are {attempts:?}, it had told {before:?}, but it says: {status:#}")
            });
            before = ids;
        }
    }

    fn told_end(&mut self, life: &Life) {
        let mut before = ([false; 2], &Value::Null);
        for status in self.found.statuses_of(&life.uid) {
            let reported = ["Complete", "Failed"].map(|kind| says(status, kind) == Some(true));
            let (failed, ended) = (number(status, "failed"), number(status, "succeeded") + number(status, "failed"));
            let all = usize::try_from(ended) == Ok(life.plan.codes.len()) && rank(status) >= ENDED;
            let now = (reported, &status["completionTime"]);
            let right = (reported == [false; 2] || (all && reported == [failed == 0, failed > 0]))
                && (before.0 == [false; 2] || reported == before.0)
                && (before.1.is_null() || now.1 == before.1);
            self.require(right, Rule::ToldEnd, life, || format!("before: {before:?}, and then: {status:#}"));
            before = now;
        }
    }

    fn went_back(&mut self, life: &Life) {
        let counts = |status: &Value| {
            let far = i64::try_from(rank(status)).unwrap_or(0);
            [far, number(status, "attempt"), number(status, "succeeded"), number(status, "failed")]
        };
        // An end that was reported just before its job was stopped counts until HTCondor says otherwise.
        let compared = if life.plan.may_be_stopped() && self.is_refuted(life) { 2 } else { 4 };
        let statuses = self.found.statuses_of(&life.uid);
        for (before, after) in statuses.iter().zip(statuses.iter().skip(1)) {
            if counts(before).iter().zip(counts(after)).take(compared).any(|(before, after)| *before > after) {
                self.say(Rule::WentBack, life, format!("from {before:#} to {after:#}"));
            }
        }
    }

    fn is_refuted(&self, life: &Life) -> bool {
        self.found.events_of(&life.uid).iter().any(|event| event.1 == REFUTED)
    }

    /// What jobs report may be counted before HTCondor says so, but it must be so.
    fn counted(&mut self, life: &Life) {
        let failed = life.plan.codes.iter().filter(|code| **code != 0).count();
        let most = [("succeeded", life.plan.codes.len() - failed), ("failed", failed)];
        let statuses = self.found.statuses_of(&life.uid);
        for status in statuses.iter().filter(|status| status["phase"] != "Terminating") {
            let right = |(name, most): &(&str, usize)| status[*name].as_u64().unwrap_or(0) <= *most as u64;
            self.require(most.iter().all(right), Rule::CountedTooMuch, life, || {
                format!("{most:?} at most, not {status:#}")
            });
        }
        let wrong = self.is_refuted(life) && !life.plan.may_be_stopped();
        self.require(!wrong, Rule::Refuted, life, || format!("{:#?}", self.found.events_of(&life.uid)));
    }
}

fn number(status: &Value, name: &str) -> i64 {
    status[name].as_i64().unwrap_or(0)
}

fn texts(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str)
}

/// Whether a condition is True; none if nothing is said of it.
fn says(status: &Value, kind: &str) -> Option<bool> {
    let mut conditions = status["conditions"].as_array().into_iter().flatten();
    conditions.find(|condition| condition["type"] == kind).map(|condition| condition["status"] == "True")
}

/// `7.0-2,9.1` as single ids.
fn expand(ranges: &str) -> BTreeSet<String> {
    let mut ids = BTreeSet::new();
    for range in ranges.split(',').map(str::trim).filter(|range| !range.is_empty()) {
        let (cluster, procs) = range.split_once('.').unwrap_or((range, ""));
        let (first, last) = procs.split_once('-').unwrap_or((procs, procs));
        match (first.parse::<u32>(), last.parse::<u32>()) {
            (Ok(first), Ok(last)) => ids.extend((first..=last).map(|proc| format!("{cluster}.{proc}"))),
            _ => drop(ids.insert(range.to_owned())),
        }
    }
    ids
}
