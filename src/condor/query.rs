//! What HTCondor has of our jobs: `condor_q` and `condor_history`.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::apart::{Part, parts};
use super::row::{ATTRIBUTES, INHERITED_ATTRIBUTES, Row};
use super::schedd::{EXCESS, NOT_ADOPTED, NUMBERS, QUEUE_TOOL, Schedd, among, by_length, quoted, unknown};
pub use super::shown::{Ads, Shown};
use crate::machine::facts::{Reach, Unknown, Why, Witness};
use crate::machine::inherited::InheritedJob;
use crate::machine::{Attempt, JobId, SchedDate, Uid};

/// A remote condor_history reads at most `HISTORY_HELPER_MAX_HISTORY` ads (50,000 in 23.9) and then ends with rc 0, unless
/// it is told a number.
const SCAN_ALL: [&str; 2] = ["-scanlimit", "2000000000"];
/// Uids in one constraint: 3,300 fit into one argument of 128 KiB, and witnesses may come on top.
pub const UIDS_PER_CALL: usize = 1500;
/// Clusters in one constraint.
const CLUSTERS_PER_CALL: usize = 5000;
/// Alternatives in one constraint: 25.14 matches nothing, and says nothing, from 400 on.
const ALTERNATIVES: usize = 100;
/// A date is taken for earlier only if it is so by this many seconds.
const DATE_MARGIN: i64 = 60;

/// What history is asked by.
const HISTORY_TOOL: &str = "condor_history";
/// A `GlobalJobId` that can be a witness: the schedd's name, the job's id and a time, as a plain text. Whose job it is may write
/// an expression there, or a text that looks like one: these are shown as none.
const HAS_GLOBAL_ID: &str = r##"size(unparse(GlobalJobId)) < 1000 && regexp(strcat("^\"[^\"\\\\/][^\"\\\\]*#", ClusterId, "[.]", ProcId, "#[^\"\\\\]*\"$"), unparse(GlobalJobId))"##;
/// What is asked of witnesses, and of what may become one: they are anybody's.
const WITNESS: &str = "ClusterId,ProcId,GlobalJobId";

/// Jobs of the Go operator, by object.
pub type WantedInherited = HashMap<Uid, Arc<[InheritedJob]>>;

/// ClassAd expressions that these jobs fulfil, and perhaps others: whose they are decides whether they can be adopted, not
/// whether they are there.
fn inherited(wanted: &WantedInherited) -> Vec<String> {
    let clusters: BTreeSet<u64> = wanted.values().flat_map(|jobs| jobs.iter().map(|job| job.id.cluster.0)).collect();
    let clusters: Vec<String> = clusters.iter().map(u64::to_string).collect();
    let expression = |chunk: &[String]| format!("{NOT_ADOPTED} && member(ClusterId, {{{}}})", chunk.join(","));
    clusters.chunks(CLUSTERS_PER_CALL).map(expression).collect()
}

/// Adds the ad of a job of the Go operator, if it is one of those that are wanted: ids come again, so the folder that it was
/// submitted from must be the same.
fn pick(shown: &mut Shown, wanted: &ById<'_>, row: &Row) {
    let (Some(id), Some(folder)) = (row.job_id(), row.folder()) else { return };
    for (uid, job) in wanted.get(&id).into_iter().flatten().filter(|(_, job)| *job.folder == *folder) {
        match row.inherited_ad(job.index) {
            Some(ad) => shown.ads.entry((*uid).clone()).or_default().push(ad),
            None => shown.cannot_read((*uid).clone(), row),
        }
    }
}

type ById<'a> = HashMap<JobId, Vec<(&'a Uid, &'a InheritedJob)>>;

fn by_id(wanted: &WantedInherited) -> ById<'_> {
    let mut by_id = ById::new();
    for (uid, jobs) in wanted {
        for job in jobs.iter() {
            by_id.entry(job.id).or_default().push((uid, job));
        }
    }
    by_id
}

/// A complete answer of history.
#[derive(Debug, Default)]
pub struct HistoryAnswer {
    /// The ads of the objects asked for.
    pub shown: Shown,
    /// `GlobalJobId`s that were asked for as witnesses and are still there.
    pub witnesses: BTreeSet<String>,
}

impl Schedd {
    /// All jobs of this operator that are in the queue.
    pub async fn queue(&self) -> Result<Shown, Unknown> {
        self.ask_queue("", &[]).await
    }

    /// All jobs of these objects that are in the queue, and those that do not say whose they are; at most [`UIDS_PER_CALL`] objects.
    pub async fn queue_of(&self, uids: &[Uid]) -> Result<Shown, Unknown> {
        self.ask_queue(&format!("({} || !isString(HTCJobUID))", among(uids)), uids).await
    }

    /// Asks for the jobs in the queue of these objects that belong to the given attempt or a later one.
    pub async fn queue_of_attempts(&self, parts: &[(Uid, Attempt)]) -> Result<Shown, Unknown> {
        let mut shown = Shown::default();
        for parts in parts.chunks(ALTERNATIVES) {
            let uids: Vec<Uid> = parts.iter().map(|(uid, _)| uid.clone()).collect();
            let its = |(uid, from): &(Uid, Attempt)| {
                format!("(HTCJobUID =?= {} && HTCJobAttempt >= {})", quoted(uid.as_str()), from.0)
            };
            let which: Vec<String> = parts.iter().map(its).collect();
            shown.absorb(self.ask_queue(&format!("({})", which.join(" || ")), &uids).await?);
        }
        shown.sort();
        Ok(shown)
    }

    /// Those in the queue that say that their HTCJob is in this namespace. For people: jobs of the Go operator do not say it, and
    /// a person may have changed it.
    pub async fn queue_in(&self, namespace: &str) -> Result<Shown, Unknown> {
        let batch = format!("{namespace}/");
        let its = format!("substr(JobBatchName ?: \"\", 0, {}) =?= {}", batch.len(), quoted(&batch));
        self.ask_queue(&its, &[]).await
    }

    /// Those of this operator's jobs in the queue whose `JobStatus` has changed since `date`. That a job is not among them
    /// says nothing about it.
    pub async fn changed_since(&self, date: SchedDate, limit: Duration) -> Result<Shown, Unknown> {
        self.ask_some_of_queue(&format!("EnteredCurrentStatus >= {}", date.0), limit).await
    }

    pub(super) async fn each_queued(
        &self,
        constraint: &str,
        attributes: &str,
        limit: Duration,
        excess: Option<usize>,
        each: impl FnMut(&Row) + Send,
    ) -> Result<(), Unknown> {
        let arguments =
            ["-allusers", "-name", self.name.as_str(), "-json", "-attributes", attributes, "-constraint", constraint];
        self.ask_for_ads(QUEUE_TOOL, &arguments, limit, excess, each).await
    }

    /// Whether the queue has jobs of this constraint.
    pub(super) async fn has_queued(&self, constraint: &str) -> Result<bool, Unknown> {
        let arguments =
            ["-allusers", "-name", self.name.as_str(), "-limit", "1", "-af", "ProcId", "-constraint", constraint];
        let output = self.question(QUEUE_TOOL, &arguments, self.tools.limit, NUMBERS).await?;
        Ok(!output.stdout.trim_ascii().is_empty())
    }

    /// What the queue has of these jobs of the Go operator that are not adopted. To be asked before the others: a job that is
    /// adopted in between is then seen twice, and not missed.
    pub async fn queue_of_inherited(&self, wanted: &WantedInherited) -> Result<Shown, Unknown> {
        let (mut shown, by_id) = (Shown::default(), by_id(wanted));
        for constraint in inherited(wanted) {
            let each = |row: &Row| pick(&mut shown, &by_id, row);
            self.each_queued(&constraint, INHERITED_ATTRIBUTES, self.tools.limit, None, each).await?;
        }
        Ok(shown)
    }

    /// Whose those of these jobs are that are in the queue and not adopted.
    pub(super) async fn users_of_inherited(&self, which: &str) -> Result<BTreeSet<String>, Unknown> {
        let mut users = BTreeSet::new();
        let wanted = format!("{NOT_ADOPTED} && {which}");
        let each = |row: &Row| users.extend(row.user().map(str::to_owned));
        self.each_queued(&wanted, "ClusterId,ProcId,User", self.tools.limit, None, each).await?;
        Ok(users)
    }

    /// What history has of these jobs of the Go operator that were not adopted.
    pub async fn history_of_inherited(&self, wanted: &WantedInherited) -> Result<Shown, Unknown> {
        let (mut shown, by_id) = (Shown::default(), by_id(wanted));
        let own_users = self.own_users().await?;
        for constraint in inherited(wanted) {
            let each = |row: &Row| {
                // Of anybody else it would be a job of a queue that began anew.
                if row.user().is_some_and(|user| own_users.iter().any(|own| own == user)) {
                    pick(&mut shown, &by_id, row);
                }
            };
            let arguments = ["-constraint", &constraint];
            self.history_with(INHERITED_ATTRIBUTES, &arguments, self.tools.history_limit, None, each).await?;
        }
        Ok(shown)
    }

    /// What history has of these objects, and which of the witnesses it still has. If the answer fails, the next question is
    /// put in parts: their ads may be large, and so may those of witnesses.
    pub async fn history(&self, uids: &[Uid], witnesses: &BTreeSet<String>) -> Result<HistoryAnswer, Unknown> {
        let now = self.clock.now();
        let in_parts = self.suspects.in_history(now);
        let answer = self.ask_history(uids, witnesses, in_parts).await;
        let suspicious = match &answer {
            Ok((_, any_large)) => *any_large,
            Err(unknown) => !in_parts && self.may_be_theirs(unknown).await,
        };
        if suspicious {
            self.suspects.suspect_history(self.clock.now());
        }
        answer.map(|(answer, _)| answer)
    }

    /// The same, and whether there were large ads.
    async fn ask_history(
        &self,
        uids: &[Uid],
        witnesses: &BTreeSet<String>,
        in_parts: bool,
    ) -> Result<(HistoryAnswer, bool), Unknown> {
        let quoted: Vec<String> = witnesses.iter().map(|id| quoted(id)).collect();
        let still_there = |list: &[String]| format!("member(GlobalJobId, {{{}}})", list.join(","));
        let mut questions = Vec::new();
        for chunk in uids.chunks(UIDS_PER_CALL) {
            let its = self.jobs_of(chunk).await?;
            if in_parts {
                questions.extend(parts().map(|part| Part { which: format!("{its} && {}", part.which), ..part }));
            } else {
                questions.push(Part { which: its, attributes: ATTRIBUTES.to_owned(), large: false });
            }
        }
        match (questions.as_mut_slice(), by_length(&quoted).as_slice()) {
            ([only], [witnesses]) => only.which = format!("({}) || {}", only.which, still_there(witnesses)),
            // After the ads: what is there then was there before. The other way round it might have been dropped between.
            (_, chunks) => questions.extend(chunks.iter().map(|chunk| {
                let which = format!("{} && {HAS_GLOBAL_ID}", still_there(chunk));
                Part { which, attributes: WITNESS.to_owned(), large: false }
            })),
        }
        let (mut answer, mut any_large) = (HistoryAnswer::default(), false);
        for Part { which, attributes, large } in questions {
            let each = |row: &Row| {
                if let Some(id) = row.global_id().filter(|id| witnesses.contains(*id)) {
                    answer.witnesses.insert(id.to_owned());
                }
                // A witness may be anybody's, and say anything. Of a large ad only what is short is asked for.
                if large || row.operator() == Some(&self.operator) {
                    any_large |= large;
                    answer.shown.collect(&self.users, row);
                }
            };
            let (arguments, excess) = (["-constraint", which.as_str()], (!in_parts).then_some(EXCESS));
            self.history_with(&attributes, &arguments, self.tools.history_limit, excess, each).await?;
        }
        Ok((answer, any_large))
    }

    /// Whether history still has a job that left the queue before `date`: only for removed jobs does the ad say when
    /// they left.
    pub async fn history_reaches(&self, date: SchedDate) -> Result<bool, Unknown> {
        let before = date.0 - DATE_MARGIN;
        let constraint =
            format!("JobStatus == 3 && EnteredCurrentStatus < {before} && (JobFinishedHookDone ?: 0) < {before}");
        let arguments = ["-forwards", "-limit", "1", "-constraint", &constraint];
        let mut found = false;
        self.history_with("ClusterId", &arguments, self.tools.history_limit, None, |_| found = true).await?;
        Ok(found)
    }

    /// The newest ad of history: as long as it is there, so is everything that comes after it. One without an id that names
    /// it is passed over: those that come after an older one come after this one, too.
    pub async fn newest_in_history(&self) -> Result<Witness, Unknown> {
        // A first job may come in between the two questions.
        for _ in 0..2 {
            // Each submission waits for it; it reads one ad, whatever the length of history.
            let mut newest = None;
            let arguments = ["-limit", "1", "-constraint", HAS_GLOBAL_ID];
            let each = |row: &Row| newest = row.global_id().map(str::to_owned);
            self.history_with(WITNESS, &arguments, self.tools.limit, None, each).await?;
            if let Some(id) = newest {
                return Ok(Witness::Newest(id));
            }
            let mut empty = true;
            self.history_with("ClusterId", &["-limit", "1"], self.tools.limit, None, |_| empty = false).await?;
            if empty {
                return Ok(Witness::Empty);
            }
        }
        Err(unknown(Why::Incomplete, format!("{HISTORY_TOOL} shows no job with a GlobalJobId, only others")))
    }

    async fn history_with(
        &self,
        attributes: &str,
        more: &[&str],
        limit: Duration,
        excess: Option<usize>,
        each: impl FnMut(&Row) + Send,
    ) -> Result<(), Unknown> {
        let mut arguments = vec!["-name", self.name.as_str(), "-json", "-attributes", attributes];
        arguments.extend(SCAN_ALL);
        arguments.extend(more);
        self.ask_for_ads(HISTORY_TOOL, &arguments, limit, excess, each).await
    }
}

/// How far back an answer was found to reach.
#[must_use]
pub fn reach(asked: &Reach, found: &BTreeSet<String>, date_reached: Option<SchedDate>) -> Reach {
    Reach {
        witnesses: asked.witnesses.intersection(found).cloned().collect(),
        date: asked.date.filter(|date| date_reached.is_some_and(|reached| reached <= *date)),
    }
}
