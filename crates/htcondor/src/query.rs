//! Queries for this operator's jobs: `condor_q` and `condor_history`.

use std::collections::BTreeSet;
use std::time::Duration;

use super::row::{ATTRIBUTES, Row};
use super::schedd::{EXCESS, NUMBERS, QUEUE_TOOL, Schedd, chunk_by_length, quoted, uid_constraint, unknown};
use crate::bisection::{SizeQuery, size_queries};
pub use crate::listing::{AdListing, AdsByUid};
use htc_machine::facts::{HistoryReach, QueryError, QueryErrorKind, Witness};
use htc_machine::{Attempt, SchedDate, Uid};

/// Arguments without which a remote condor_history reads at most `HISTORY_HELPER_MAX_HISTORY` ads (50,000 in 23.9) and
/// then exits with status 0.
const SCAN_ALL: [&str; 2] = ["-scanlimit", "2000000000"];
/// Maximum uids in one constraint: 3,300 fit into one argument of 128 KiB, and witnesses may come on top.
pub const UIDS_PER_CALL: usize = 1500;
/// Maximum alternatives in one constraint: from 400 on, 25.14 silently matches nothing.
const ALTERNATIVES: usize = 100;
/// Seconds by which a date must be earlier to count as earlier.
const DATE_MARGIN: i64 = 60;

/// Tool that queries history.
const HISTORY_TOOL: &str = "condor_history";
/// ClassAd expression for ads whose `GlobalJobId` can be a witness: the schedd's name, the job's id and a time, as a
/// plain string. The job's owner may write an expression there, or a string that looks like one. Both
/// count as missing.
const HAS_GLOBAL_ID: &str = r##"size(unparse(GlobalJobId)) < 1000 && regexp(strcat("^\"[^\"\\\\/][^\"\\\\]*#", ClusterId, "[.]", ProcId, "#[^\"\\\\]*\"$"), unparse(GlobalJobId))"##;
/// Attributes queried of witnesses and of candidates for witnesses. These jobs may belong to anyone.
const WITNESS: &str = "ClusterId,ProcId,GlobalJobId";

/// A complete answer from history.
#[derive(Debug, Default)]
pub struct HistoryAnswer {
    /// Ads of the queried objects.
    pub listing: AdListing,
    /// Queried witnesses (`GlobalJobId`s) that are still in history.
    pub witnesses: BTreeSet<String>,
}

impl Schedd {
    /// Returns all jobs of this operator in the queue.
    pub async fn queue(&self) -> Result<AdListing, QueryError> {
        self.ask_queue("", &[]).await
    }

    /// Returns all jobs of these objects in the queue, and those without a valid `HTCJobUID`. At most [`UIDS_PER_CALL`]
    /// objects.
    pub async fn queue_of(&self, uids: &[Uid]) -> Result<AdListing, QueryError> {
        self.ask_queue(&format!("({} || !isString(HTCJobUID))", uid_constraint(uids)), uids).await
    }

    /// Returns the jobs in the queue of these objects that belong to the given attempt or a later one.
    pub async fn queue_of_attempts(&self, parts: &[(Uid, Attempt)]) -> Result<AdListing, QueryError> {
        let mut shown = AdListing::default();
        for parts in parts.chunks(ALTERNATIVES) {
            let uids: Vec<Uid> = parts.iter().map(|(uid, _)| uid.clone()).collect();
            let its = |(uid, from): &(Uid, Attempt)| {
                format!("(HTCJobUID =?= {} && HTCJobAttempt >= {})", quoted(uid.as_str()), from.0)
            };
            let which: Vec<String> = parts.iter().map(its).collect();
            shown.extend(self.ask_queue(&format!("({})", which.join(" || ")), &uids).await?);
        }
        shown.sort();
        Ok(shown)
    }

    /// Returns the jobs in the queue whose `JobBatchName` says that their HTCJob is in this namespace. For display
    /// only: jobs of the Go operator lack it, and users may have changed it.
    pub async fn queue_in(&self, namespace: &str) -> Result<AdListing, QueryError> {
        let batch = format!("{namespace}/");
        let its = format!("substr(JobBatchName ?: \"\", 0, {}) =?= {}", batch.len(), quoted(&batch));
        self.ask_queue(&its, &[]).await
    }

    /// Returns this operator's jobs in the queue whose `JobStatus` has changed since `date`. A job's absence from the
    /// answer proves nothing.
    pub async fn changed_since(&self, date: SchedDate, limit: Duration) -> Result<AdListing, QueryError> {
        self.ask_some_of_queue(&format!("EnteredCurrentStatus >= {}", date.0), limit).await
    }

    pub(super) async fn each_queued(
        &self,
        constraint: &str,
        attributes: &str,
        limit: Duration,
        excess: Option<usize>,
        each: impl FnMut(&Row) + Send,
    ) -> Result<(), QueryError> {
        let arguments =
            ["-allusers", "-name", self.name.as_str(), "-json", "-attributes", attributes, "-constraint", constraint];
        self.ask_for_ads(QUEUE_TOOL, &arguments, limit, excess, each).await
    }

    /// Returns whether any job in the queue matches this constraint.
    pub(super) async fn has_queued(&self, constraint: &str) -> Result<bool, QueryError> {
        let arguments =
            ["-allusers", "-name", self.name.as_str(), "-limit", "1", "-af", "ProcId", "-constraint", constraint];
        let output = self.ask(QUEUE_TOOL, &arguments, self.tools.limit, NUMBERS).await?;
        Ok(!output.stdout.trim_ascii().is_empty())
    }

    /// Returns the ads of these objects in history, and which of the witnesses are still there. After a failed answer
    /// the next query is split by the size of ads: ads of these objects or of witnesses may be large.
    pub async fn history(&self, uids: &[Uid], witnesses: &BTreeSet<String>) -> Result<HistoryAnswer, QueryError> {
        let now = self.clock.now();
        let in_parts = self.quarantine.checks_history(now);
        let answer = self.ask_history(uids, witnesses, in_parts).await;
        let suspicious = match &answer {
            Ok((_, any_large)) => *any_large,
            Err(unknown) => !in_parts && self.may_be_caused_by_ads(unknown).await,
        };
        if suspicious {
            self.quarantine.start_checking_history(self.clock.now());
        }
        answer.map(|(answer, _)| answer)
    }

    /// Like [`Self::history`], and returns whether there were large ads.
    async fn ask_history(
        &self,
        uids: &[Uid],
        witnesses: &BTreeSet<String>,
        in_parts: bool,
    ) -> Result<(HistoryAnswer, bool), QueryError> {
        let quoted: Vec<String> = witnesses.iter().map(|id| quoted(id)).collect();
        let still_there = |list: &[String]| format!("member(GlobalJobId, {{{}}})", list.join(","));
        let mut questions = Vec::new();
        for chunk in uids.chunks(UIDS_PER_CALL) {
            let its = self.jobs_of(chunk).await?;
            if in_parts {
                questions.extend(
                    size_queries()
                        .map(|part| SizeQuery { constraint: format!("{its} && {}", part.constraint), ..part }),
                );
            } else {
                questions.push(SizeQuery { constraint: its, attributes: ATTRIBUTES.to_owned(), large: false });
            }
        }
        match (questions.as_mut_slice(), chunk_by_length(&quoted).as_slice()) {
            ([only], [witnesses]) => only.constraint = format!("({}) || {}", only.constraint, still_there(witnesses)),
            // Witnesses are queried after the ads: a witness that is there then was there before. In the other order,
            // history might have dropped it in between.
            (_, chunks) => questions.extend(chunks.iter().map(|chunk| {
                let which = format!("{} && {HAS_GLOBAL_ID}", still_there(chunk));
                SizeQuery { constraint: which, attributes: WITNESS.to_owned(), large: false }
            })),
        }
        let (mut answer, mut any_large) = (HistoryAnswer::default(), false);
        for SizeQuery { constraint: which, attributes, large } in questions {
            let each = |row: &Row| {
                if let Some(id) = row.global_id().filter(|id| witnesses.contains(*id)) {
                    answer.witnesses.insert(id.to_owned());
                }
                // A witness may belong to anyone and contain anything. Of a large ad only short attributes are queried.
                if large || row.operator() == Some(&self.operator) {
                    any_large |= large;
                    answer.listing.add(&self.users, row);
                }
            };
            let (arguments, excess) = (["-constraint", which.as_str()], (!in_parts).then_some(EXCESS));
            self.history_with(&attributes, &arguments, self.tools.history_limit, excess, each).await?;
        }
        Ok((answer, any_large))
    }

    /// Returns whether history still has a job that left the queue before `date`. Only removed jobs count, as only
    /// their ads say when they left.
    pub async fn history_reaches(&self, date: SchedDate) -> Result<bool, QueryError> {
        let before = date.0 - DATE_MARGIN;
        let constraint =
            format!("JobStatus == 3 && EnteredCurrentStatus < {before} && (JobFinishedHookDone ?: 0) < {before}");
        let arguments = ["-forwards", "-limit", "1", "-constraint", &constraint];
        let mut found = false;
        self.history_with("ClusterId", &arguments, self.tools.history_limit, None, |_| found = true).await?;
        Ok(found)
    }

    /// Returns the newest ad of history. While it is there, so are all ads that enter history later. A newer ad without
    /// a valid `GlobalJobId` is skipped: the ads that follow an older one include those that follow the skipped one.
    pub async fn newest_in_history(&self) -> Result<Witness, QueryError> {
        // A first job may enter history between the two queries.
        for _ in 0..2 {
            // Each submission waits for this query. It reads one ad, however long history is.
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
        Err(unknown(QueryErrorKind::Incomplete, format!("{HISTORY_TOOL} shows no job with a GlobalJobId, only others")))
    }

    pub(super) async fn history_with(
        &self,
        attributes: &str,
        more: &[&str],
        limit: Duration,
        excess: Option<usize>,
        each: impl FnMut(&Row) + Send,
    ) -> Result<(), QueryError> {
        let mut arguments = vec!["-name", self.name.as_str(), "-json", "-attributes", attributes];
        arguments.extend(SCAN_ALL);
        arguments.extend(more);
        self.ask_for_ads(HISTORY_TOOL, &arguments, limit, excess, each).await
    }
}

/// Returns how far back an answer from history reaches.
#[must_use]
pub fn reach(asked: &HistoryReach, found: &BTreeSet<String>, date_reached: Option<SchedDate>) -> HistoryReach {
    HistoryReach {
        witnesses: asked.witnesses.intersection(found).cloned().collect(),
        date: asked.date.filter(|date| date_reached.is_some_and(|reached| reached <= *date)),
    }
}
