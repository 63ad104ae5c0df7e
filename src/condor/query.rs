//! What HTCondor has of our jobs: `condor_q` and `condor_history`.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::confined::Touches;
use super::row::{ATTRIBUTES, INHERITED_ATTRIBUTES, Row, each_row};
use super::schedd::{NOT_ADOPTED, Schedd, quoted, unknown};
use super::tools::{Call, Cost, Output, ToolError};
use crate::machine::facts::{Ad, Reach, Unknown, Why, Witness};
use crate::machine::inherited::InheritedJob;
use crate::machine::{JobId, SchedDate, Uid};

/// A remote condor_history reads at most `HISTORY_HELPER_MAX_HISTORY` ads (50,000 in 23.9) and then ends with rc 0, unless
/// it is told a number.
const SCAN_ALL: [&str; 2] = ["-scanlimit", "2000000000"];
/// Uids in one constraint: 3,300 fit into one argument of 128 KiB, and witnesses may come on top.
pub const UIDS_PER_CALL: usize = 1500;
/// Witnesses in one constraint; a `GlobalJobId` has the schedd's name in it.
const WITNESSES_PER_CALL: usize = 400;
/// Clusters in one constraint.
const CLUSTERS_PER_CALL: usize = 5000;
/// A date is taken for earlier only if it is so by this many seconds.
const DATE_MARGIN: i64 = 60;

/// The ads of many objects.
pub type Ads = HashMap<Uid, Vec<Ad>>;

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
fn pick(ads: &mut Ads, wanted: &ById<'_>, row: &Row<'_>) -> Result<(), Unknown> {
    let (Some(id), Some(folder)) = (row.job_id(), row.folder()) else { return Ok(()) };
    for (uid, job) in wanted.get(&id).into_iter().flatten().filter(|(_, job)| *job.folder == *folder) {
        let broken = || unknown(Why::Incomplete, format!("the ad of job {id} cannot be read"));
        ads.entry((*uid).clone()).or_default().push(row.inherited_ad(job.index).ok_or_else(broken)?);
    }
    Ok(())
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

/// Adds what was seen of jobs of the Go operator to what was seen of ours; one that is among both was adopted in between.
pub fn merge(ads: &mut Ads, inherited: Ads) {
    for (uid, others) in inherited {
        let list = ads.entry(uid).or_default();
        for ad in others {
            if list.iter().all(|known| known.id != ad.id) {
                list.push(ad);
            }
        }
        list.sort_by_key(|ad| ad.id);
    }
}

/// A complete answer of history.
#[derive(Debug, Default)]
pub struct HistoryAnswer {
    /// The ads of the objects asked for.
    pub ads: Ads,
    /// `GlobalJobId`s that were asked for as witnesses and are still there.
    pub witnesses: BTreeSet<String>,
}

impl Schedd {
    /// All jobs of this operator that are in the queue.
    pub async fn queue(&self) -> Result<Ads, Unknown> {
        self.ask_queue(self.ours().await?).await
    }

    /// All jobs of these objects that are in the queue; at most [`UIDS_PER_CALL`] objects.
    pub async fn queue_of(&self, uids: &[Uid]) -> Result<Ads, Unknown> {
        self.ask_queue(self.jobs_of(uids).await?).await
    }

    /// Those in the queue that say that their HTCJob is in this namespace. For people: jobs of the Go operator do not say it, and
    /// a person may have changed it.
    pub async fn queue_in(&self, namespace: &str) -> Result<Ads, Unknown> {
        let batch = format!("{namespace}/");
        let its = format!("substr(JobBatchName ?: \"\", 0, {}) =?= {}", batch.len(), quoted(&batch));
        self.ask_queue(format!("{} && {its}", self.ours().await?)).await
    }

    /// Those of this operator's jobs in the queue whose `JobStatus` has changed since `date`. That a job is not among them
    /// says nothing about it.
    pub async fn changed_since(&self, date: SchedDate, limit: Duration) -> Result<Ads, Unknown> {
        // The cheapest comes first: the schedd evaluates this for all its jobs.
        let constraint = format!("EnteredCurrentStatus >= {} && {}", date.0, self.ours().await?);
        self.ask_queue_within(constraint, limit).await
    }

    async fn ask_queue(&self, constraint: String) -> Result<Ads, Unknown> {
        self.ask_queue_within(constraint, self.tools.limit).await
    }

    async fn ask_queue_within(&self, constraint: String, limit: Duration) -> Result<Ads, Unknown> {
        let mut ads = Ads::new();
        self.each_queued(&constraint, ATTRIBUTES, limit, |row| self.collect(&mut ads, row)).await?;
        for list in ads.values_mut() {
            list.sort_by_key(|ad| ad.id);
        }
        Ok(ads)
    }

    async fn each_queued(
        &self,
        constraint: &str,
        attributes: &str,
        limit: Duration,
        each: impl FnMut(&Row<'_>) -> Result<(), Unknown>,
    ) -> Result<(), Unknown> {
        const TOOL: &str = "condor_q";
        let arguments =
            ["-allusers", "-name", self.name.as_str(), "-json", "-attributes", attributes, "-constraint", constraint];
        let output = self.question(TOOL, &arguments, limit).await?;
        // No job at all is zero bytes.
        if output.stdout.is_empty() {
            return Ok(());
        }
        let began = Instant::now();
        let read = each_row(TOOL, &output.stdout, each);
        self.spend(Cost { here: began.elapsed(), ..Cost::default() });
        read
    }

    /// What the queue has of these jobs of the Go operator that are not adopted. To be asked before the others: a job that is
    /// adopted in between is then seen twice, and not missed.
    pub async fn queue_of_inherited(&self, wanted: &WantedInherited) -> Result<Ads, Unknown> {
        let (mut ads, by_id) = (Ads::new(), by_id(wanted));
        for constraint in inherited(wanted) {
            self.each_queued(&constraint, INHERITED_ATTRIBUTES, self.tools.limit, |row| pick(&mut ads, &by_id, row))
                .await?;
        }
        Ok(ads)
    }

    /// Whose those of these jobs are that are in the queue and not adopted.
    pub(super) async fn users_of_inherited(&self, which: &str) -> Result<BTreeSet<String>, Unknown> {
        let mut users = BTreeSet::new();
        let wanted = format!("{NOT_ADOPTED} && {which}");
        self.each_queued(&wanted, "ClusterId,ProcId,User", self.tools.limit, |row| {
            users.extend(row.user().map(str::to_owned));
            Ok(())
        })
        .await?;
        Ok(users)
    }

    /// What history has of these jobs of the Go operator that were not adopted.
    pub async fn history_of_inherited(&self, wanted: &WantedInherited) -> Result<Ads, Unknown> {
        const TOOL: &str = "condor_history";
        let (mut ads, by_id) = (Ads::new(), by_id(wanted));
        let own_users = self.own_users().await?;
        for constraint in inherited(wanted) {
            let arguments = ["-constraint", &constraint];
            let answer = self.history_with(INHERITED_ATTRIBUTES, &arguments, self.tools.history_limit).await;
            let output = self.answer(TOOL, answer)?;
            each_row(TOOL, &output.stdout, |row| {
                // Of anybody else it would be a job of a queue that began anew.
                if row.user().is_some_and(|user| own_users.iter().any(|own| own == user)) {
                    pick(&mut ads, &by_id, row)
                } else {
                    Ok(())
                }
            })?;
        }
        Ok(ads)
    }

    /// What history has of these objects, and which of the witnesses it still has.
    pub async fn history(&self, uids: &[Uid], witnesses: &BTreeSet<String>) -> Result<HistoryAnswer, Unknown> {
        const TOOL: &str = "condor_history";
        let limit = self.tools.history_limit;
        let mut answer = HistoryAnswer::default();
        let quoted: Vec<String> = witnesses.iter().map(|id| quoted(id)).collect();
        let still_there = |list: &[String]| format!("member(GlobalJobId, {{{}}})", list.join(","));
        let mut constraints = Vec::new();
        for chunk in uids.chunks(UIDS_PER_CALL) {
            constraints.push(self.jobs_of(chunk).await?);
        }
        match constraints.as_mut_slice() {
            [only] if quoted.len() <= WITNESSES_PER_CALL => *only = format!("({only}) || {}", still_there(&quoted)),
            // After the ads: what is there then was there before. The other way round it might have been dropped between.
            _ => constraints.extend(quoted.chunks(WITNESSES_PER_CALL).map(still_there)),
        }
        for constraint in constraints {
            let output = self.answer(TOOL, self.ask_history(&["-constraint", &constraint], limit).await)?;
            each_row(TOOL, &output.stdout, |row| {
                if let Some(id) = row.global_id().filter(|id| witnesses.contains(*id)) {
                    answer.witnesses.insert(id.to_owned());
                }
                // A witness may be anybody's, and say anything.
                if row.operator() == Some(&self.operator) { self.collect(&mut answer.ads, row) } else { Ok(()) }
            })?;
        }
        Ok(answer)
    }

    /// Whether history still has a job that left the queue before `date`: only for removed jobs does the ad say when
    /// they left.
    pub async fn history_reaches(&self, date: SchedDate) -> Result<bool, Unknown> {
        const TOOL: &str = "condor_history";
        let before = date.0 - DATE_MARGIN;
        let constraint =
            format!("JobStatus == 3 && EnteredCurrentStatus < {before} && (JobFinishedHookDone ?: 0) < {before}");
        let arguments = ["-forwards", "-limit", "1", "-constraint", &constraint];
        let output = self.answer(TOOL, self.ask_history(&arguments, self.tools.history_limit).await)?;
        let mut found = false;
        each_row(TOOL, &output.stdout, |_| {
            found = true;
            Ok(())
        })?;
        Ok(found)
    }

    /// The newest ad of history: as long as it is there, so is everything that comes after it.
    pub async fn newest_in_history(&self) -> Result<Witness, Unknown> {
        const TOOL: &str = "condor_history";
        // Each submission waits for it; it reads one ad, whatever the length of history.
        let output = self.answer(TOOL, self.ask_history(&["-limit", "1"], self.tools.limit).await)?;
        let mut witness = Witness::Empty;
        each_row(TOOL, &output.stdout, |row| match row.global_id() {
            Some(id) => {
                witness = Witness::Newest(id.to_owned());
                Ok(())
            }
            None => Err(unknown(Why::Incomplete, format!("{TOOL} shows a job without a GlobalJobId"))),
        })?;
        Ok(witness)
    }

    /// Adds one of our ads. They are written by us alone (by their `User`): one that cannot be read means that the answer is
    /// broken.
    fn collect(&self, ads: &mut Ads, row: &Row<'_>) -> Result<(), Unknown> {
        let uid = row.uid();
        if !row.user().is_some_and(|user| self.users.belongs(uid.unwrap_or_default(), user)) {
            return Ok(());
        }
        let Some((uid, ad)) = uid.zip(row.ad()) else {
            let message = format!("the ad of job {} lacks attributes that every job of htc-operator has", row.id());
            return Err(unknown(Why::Incomplete, message));
        };
        match ads.get_mut(uid) {
            Some(list) => list.push(ad),
            None => drop(ads.insert(Uid::from(uid), vec![ad])),
        }
        Ok(())
    }

    async fn ask_history(&self, more: &[&str], limit: Duration) -> Result<Output, ToolError> {
        self.history_with(ATTRIBUTES, more, limit).await
    }

    async fn history_with(&self, attributes: &str, more: &[&str], limit: Duration) -> Result<Output, ToolError> {
        let mut arguments = vec!["-name", self.name.as_str(), "-json", "-attributes", attributes];
        arguments.extend(SCAN_ALL);
        arguments.extend(more);
        let call = Call {
            tool: "condor_history",
            arguments,
            input: Vec::new(),
            limit,
            outlives_us: false,
            holds: None,
            touches: Touches::default(),
        };
        self.tools.call(call).await
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
