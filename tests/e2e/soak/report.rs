//! Output of a soak: its progress, its counts, and all details of a violation.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write as _;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use testbed::Version;

use crate::soak::Soak;
use crate::soak::checker::{REFUTED, Violation};
use crate::soak::collect::Collected;
use crate::soak::killer::Tally;
use bed::carrier;

/// Lines of the operator's log about one `HTCJob`.
const LOG_LINES: usize = 300;
/// Lines of HTCondor's logs about one job.
const HTCONDOR_LINES: usize = 100;
/// Violations that are told before the end of the tests.
const AT_ONCE: usize = 10;

/// Figures of one soak.
pub struct Summary {
    version: Version,
    wanted: usize,
    began: Instant,
    pub tally: Tally,
    pub violations: usize,
    /// Those that no fault of HTCondor's explains.
    pub broken: usize,
    /// What became of the jobs' reports.
    pub reports: carrier::Tally,
    /// `HTCJob`s that were seen to count the end of each job before HTCondor's word completed them.
    pub early: usize,
    /// Ends that were reported, counted, and found to be none.
    refuted: usize,
    pub objects: usize,
    /// `HTCJob`s with a job that HTCondor removed because it had been held before.
    pub late_holds: usize,
    deleted: usize,
    jobs: usize,
    runs: usize,
    resubmitted: usize,
    late: usize,
    never_accepted: usize,
    begun_again: usize,
    litter: usize,
    statuses: usize,
    /// Places that were left and taken again while one operator was there, and the longest that one of them was free, in seconds.
    pub places: usize,
    longest_free: i64,
    /// `HTCJob`s that shared a cluster, at most.
    together: usize,
}

impl Summary {
    pub fn new(version: Version, wanted: usize) -> Self {
        Self {
            version,
            wanted,
            began: Instant::now(),
            tally: Tally::default(),
            violations: 0,
            broken: 0,
            reports: carrier::Tally::default(),
            early: 0,
            refuted: 0,
            objects: 0,
            late_holds: 0,
            deleted: 0,
            jobs: 0,
            runs: 0,
            resubmitted: 0,
            late: 0,
            never_accepted: 0,
            begun_again: 0,
            litter: 0,
            statuses: 0,
            places: 0,
            longest_free: 0,
            together: 0,
        }
    }

    /// Counts one round.
    pub fn add(&mut self, found: &Collected) {
        self.objects += found.lives.len();
        self.deleted += found.lives.iter().filter(|life| life.plan.is_deleted()).count();
        self.litter += found.spool.len();
        self.statuses += found.watched.statuses.values().map(Vec::len).sum::<usize>();
        let mut clusters: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for ad in &found.history {
            clusters.entry(ad.id.split('.').next().unwrap_or_default()).or_default().insert(&ad.uid);
        }
        let most = clusters.values().map(BTreeSet::len).max().unwrap_or(0);
        self.together = self.together.max(most);
        self.runs += found.records.iter().filter(|record| !record.end).count();
        for life in &found.lives {
            let ads = found.ads_of(&life.uid);
            self.early += usize::from(found.statuses_of(&life.uid).iter().any(|status| {
                let number = |name: &str| status[name].as_u64().unwrap_or_default();
                status["phase"] == "Running" && number("succeeded") + number("failed") == life.plan.codes.len() as u64
            }));
            self.refuted += found.events_of(&life.uid).iter().filter(|event| event.1 == REFUTED).count();
            let attempts = life.seen.last().and_then(|status| status["attempt"].as_i64()).unwrap_or(0);
            self.resubmitted += usize::from(attempts > 1);
            for place in life.places(&ads, &found.awake) {
                if place.idle == place.taken - place.left {
                    self.places += 1;
                    self.longest_free = self.longest_free.max(place.idle);
                }
            }
            self.jobs += ads.iter().filter(|ad| ad.counts()).count();
            self.late += ads.iter().filter(|ad| ad.is_late()).count();
            self.never_accepted += ads.iter().filter(|ad| ad.staged.is_none()).count();
            self.begun_again += ads.iter().filter(|ad| ad.counts() && ad.starts > 1).count();
        }
    }

    pub fn print(&self) {
        let took = self.began.elapsed();
        println!(
            "{}, {}: {} of {} wanted; {} HTCJobs ended, {} of them deleted; {} jobs, {} runs; at most {} HTCJobs in one \
             submission, {} submitted more than once, {} late jobs, {} jobs never accepted (of which {} files stay in the spool folder), {} jobs \
             begun again after a hold or for a retry; reports: {} stored, {} lost, {} late, {} twice, {} refused; {} HTCJobs seen to \
             count all ends before HTCondor's word, {} ends refuted; {} statuses watched; {} places taken again beside a living operator, the last after {} s; {} HTCJobs met a hold that HTCondor carried out too late; {} violations",
            self.version,
            duration(took),
            self.tally,
            self.wanted,
            self.objects,
            self.deleted,
            self.jobs,
            self.runs,
            self.together,
            self.resubmitted,
            self.late,
            self.never_accepted,
            self.litter,
            self.begun_again,
            self.reports.stored,
            self.reports.lost,
            self.reports.late,
            self.reports.twice,
            self.reports.refused,
            self.early,
            self.refuted,
            self.statuses,
            self.places,
            self.longest_free,
            self.late_holds,
            self.violations
        );
    }
}

fn duration(time: Duration) -> String {
    format!("{} min {:02} s", time.as_secs() / 60, time.as_secs() % 60)
}

impl Soak {
    /// Prints how far the soak is.
    pub fn progress(&self, killed: usize) {
        let (took, ended) = (duration(self.began.elapsed()), self.ended.load(Ordering::Relaxed));
        println!("{}, {took}: {killed} kills, {ended} HTCJobs ended or deleted", self.bed.pool.version());
    }

    /// Prints the violations with all that is known about their `HTCJob`s. Ends the operator.
    pub fn tell(&self, found: &Collected, violations: &[Violation]) {
        self.bed.kill_operator();
        for violation in violations {
            println!("VIOLATION {:?} of {:?}: {}", violation.rule, violation.uid, violation.detail);
        }
        // At once, where the test program keeps what a test prints until all are done; the first, which the others follow from, last.
        for violation in violations.iter().take(AT_ONCE).rev() {
            let detail: String = violation.detail.split_whitespace().collect::<Vec<_>>().join(" ");
            let _ = writeln!(
                std::io::stderr(),
                "soak, {}: {:?} of {:?}: {detail:.600}",
                self.bed.pool.version(),
                violation.rule,
                violation.uid
            );
        }
        let logs = self.bed.logs();
        let uids: BTreeSet<&str> = violations.iter().map(|violation| violation.uid.as_str()).collect();
        for uid in uids.into_iter().filter(|uid| !uid.is_empty()) {
            println!("=== {uid}");
            for life in found.lives.iter().filter(|life| life.uid == uid) {
                println!("{:?}", life.plan);
            }
            if let Some(object) = found.object(uid) {
                println!("{:#}\n{:#}", object["metadata"], object["status"]);
            }
            found.statuses_of(uid).iter().for_each(|status| println!("{status}"));
            for ad in found.ads_of(uid) {
                println!("{ad:?}");
                self.log_lines_of(&ad.id).iter().for_each(|line| println!("{line}"));
            }
            found.records_of(uid).iter().for_each(|record| println!("{record:?}"));
            found.events_of(uid).iter().for_each(|event| println!("{event:?}"));
            self.journal(uid).iter().for_each(|row| println!("{row}"));
            let lines: Vec<&str> =
                logs.lines().filter(|line| line.contains(uid) || line.starts_with("--- run")).collect();
            lines[lines.len().saturating_sub(LOG_LINES)..].iter().for_each(|line| println!("{line}"));
        }
    }

    /// What HTCondor's own logs have of one job.
    fn log_lines_of(&self, id: &str) -> Vec<String> {
        let names_it = |line: &&str| {
            let mut words = line.split(|letter: char| !letter.is_ascii_digit() && letter != '.');
            words.any(|word| word.trim_matches('.') == id)
        };
        let mut lines = Vec::new();
        for log in ["SchedLog", "ShadowLog"] {
            let text = fs::read_to_string(self.bed.pool.log_dir().join(log)).unwrap_or_default();
            lines.extend(text.lines().filter(names_it).map(|line| format!("{log}: {line}")));
        }
        lines.drain(..lines.len().saturating_sub(HTCONDOR_LINES));
        lines
    }

    /// What the operator's own journal and intents have of one `HTCJob`: for people, nothing is judged by it.
    fn journal(&self, uid: &str) -> Vec<String> {
        let columns =
            "seq || ' ' || time || ' ' || ifnull(\"from\", '') || ' ' || trigger || ' ' || reason || ': ' || detail";
        let attempts = "'attempt ' || attempt || ' of ' || indices || ' at ' || intentAt || ' until ' || notAfter || ' dead ' \
                        || ifnull(deadSince, '?') || ' ' || state";
        let ask = |query: String| match self.bed.ledger(&query) {
            Ok(rows) => rows.concat(),
            Err(error) => vec![error.to_string()],
        };
        [
            format!("select {columns} from transitions where uid = '{uid}' order by seq"),
            format!("select {attempts} from submissions where uid = '{uid}'"),
        ]
        .into_iter()
        .flat_map(ask)
        .collect()
    }
}
