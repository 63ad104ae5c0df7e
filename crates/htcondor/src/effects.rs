//! Actions on jobs: remove, hold, release, and letting ended jobs leave the queue. Every constraint names the HTCJobs'
//! uids; no action relies on job ids alone.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use htc_machine::facts::{Hold, QueryError};
use htc_machine::judge::REMOVED_BY_US;
use htc_machine::{Index, Indices, JobId, Uid};

use super::parts::{BulkAction, BulkOptions, stopped};
use super::schedd::{Schedd, quoted};
use super::tools::{ToolError, ToolOutput};
use crate::orphans::Orphan;

/// Messages that the tools print when nothing matched. With nothing else on standard error, the call has not failed.
const NO_MATCH: &[&str] =
    &["Couldn't find/", "There are no jobs in the queue", "Failed to set attribute", "Queue transaction failed"];

/// ClassAd expression for jobs that are idle or running, including those that the schedd does not match yet (BLOCKED,
/// PREPARING).
const LOOSE: &str = "member(JobStatus, {1,2,7,9,10})";

/// ClassAd expression for jobs that have not ended.
const UNFINISHED: &str = "!member(JobStatus, {3,4,8})";

/// Tool that lets ended jobs leave the queue.
const TIDY_TOOL: &str = "condor_qedit";

/// Maximum procs in one constraint.
pub(super) const PROCS_PER_CALL: usize = 5000;

impl Schedd {
    /// Removes all jobs of these objects with `condor_rm`. Returns how long the last part took.
    pub async fn remove(&self, uids: &[Uid], parts: BulkOptions<'_>) -> Result<Duration, QueryError> {
        let (jobs, arguments) = (self.my_jobs_of(uids).await?, ["-reason", REMOVED_BY_US]);
        let call = BulkAction { tool: "condor_rm", arguments: &arguments, jobs: &jobs, state: "true", removes: true };
        self.call_in_parts(&call, parts).await
    }

    /// Removes those jobs of these objects whose input files have not arrived, with `condor_rm`.
    pub async fn remove_staging(&self, uids: &[Uid]) -> Result<(), QueryError> {
        let staging = "StageInFinish =?= undefined && JobStatus == 5 && HoldReasonCode == 16";
        let constraint = format!("{} && {staging}", self.my_jobs_of(uids).await?);
        self.act("condor_rm", &["-reason", REMOVED_BY_US, "-constraint", &constraint]).await
    }

    /// Removes those jobs of these objects that have not ended, with `condor_rm`. Returns how long the last part took.
    pub async fn remove_unfinished(&self, uids: &[Uid], parts: BulkOptions<'_>) -> Result<Duration, QueryError> {
        let jobs = self.my_jobs_of(uids).await?;
        let reason = format!("{REMOVED_BY_US}: activeDeadlineSeconds or maxFailedIndexes");
        let arguments = ["-reason", reason.as_str()];
        let call =
            BulkAction { tool: "condor_rm", arguments: &arguments, jobs: &jobs, state: UNFINISHED, removes: true };
        self.call_in_parts(&call, parts).await
    }

    /// Removes these jobs of one object with `condor_rm`.
    pub async fn remove_jobs(&self, uid: &Uid, ids: &[JobId]) -> Result<(), QueryError> {
        self.act_on(uid, ids, "true", "condor_rm", &["-reason", REMOVED_BY_US]).await
    }

    /// Removes those of these jobs of one object that have not ended, with `condor_rm`, because a user removed them.
    pub async fn remove_unfinished_jobs(&self, uid: &Uid, ids: &[JobId]) -> Result<(), QueryError> {
        let reason = format!("{REMOVED_BY_US}: a user of the HTCJob removed this job");
        self.act_on(uid, ids, UNFINISHED, "condor_rm", &["-reason", &reason]).await
    }

    /// Removes these jobs of deleted objects with one call of `condor_rm`.
    pub async fn remove_orphans(&self, jobs: &[&Orphan]) -> Result<(), QueryError> {
        let reason = format!("{REMOVED_BY_US}: its HTCJob is gone");
        let uids: BTreeSet<&Uid> = jobs.iter().map(|job| &job.uid).collect();
        let theirs = self.my_jobs_of(&uids.into_iter().cloned().collect::<Vec<_>>()).await?;
        let constraint = format!("{theirs} && {} && JobStatus =!= 3", listed(jobs.iter().map(|job| job.id)));
        self.act("condor_rm", &["-reason", &reason, "-constraint", &constraint]).await
    }

    /// Holds those of these jobs of one object that are idle or running, with `condor_hold`, because a user holds them.
    pub async fn hold_jobs(&self, uid: &Uid, ids: &[JobId]) -> Result<(), QueryError> {
        let subcode = Hold::FOR_USER.to_string();
        let arguments = ["-reason", "a user of the HTCJob holds this job", "-subcode", &subcode];
        self.act_on(uid, ids, LOOSE, "condor_hold", &arguments).await
    }

    /// Releases the held ones of these jobs of one object with `condor_release`, except those still waiting for their
    /// input files.
    pub async fn release_jobs(&self, uid: &Uid, ids: &[JobId]) -> Result<(), QueryError> {
        let held = format!("JobStatus == 5 && HoldReasonCode =!= {}", Hold::SPOOLING);
        let reason = "spec.suspend is false, or a user of the HTCJob releases this job";
        self.act_on(uid, ids, &held, "condor_release", &["-reason", reason]).await
    }

    /// Calls a tool for those of these jobs of one object that match an expression.
    async fn act_on(
        &self,
        uid: &Uid,
        ids: &[JobId],
        expression: &str,
        tool: &'static str,
        arguments: &[&str],
    ) -> Result<(), QueryError> {
        for ids in ids.chunks(PROCS_PER_CALL) {
            let which = listed(ids.iter().copied());
            let theirs = self.my_jobs_of(std::slice::from_ref(uid)).await?;
            let constraint = format!("{theirs} && {which} && {expression}");
            self.act(tool, &[arguments, &["-constraint", &constraint]].concat()).await?;
        }
        Ok(())
    }

    /// Holds the idle and running jobs of these objects with `condor_hold`. Its subcode marks the hold as this
    /// operator's. Returns how long the last part took.
    pub async fn hold(&self, uids: &[Uid], parts: BulkOptions<'_>) -> Result<Duration, QueryError> {
        let jobs = self.my_jobs_of(uids).await?;
        let subcode = Hold::SUSPENDED.to_string();
        let arguments = ["-reason", "the HTCJob is suspended, or its queue took its quota back", "-subcode", &subcode];
        let call = BulkAction { tool: "condor_hold", arguments: &arguments, jobs: &jobs, state: LOOSE, removes: false };
        self.call_in_parts(&call, parts).await
    }

    /// Releases the jobs of these objects that [`Self::hold`] holds, with `condor_release`. Returns how long the last
    /// part took.
    pub async fn release(&self, uids: &[Uid], parts: BulkOptions<'_>) -> Result<Duration, QueryError> {
        let held = format!(
            "JobStatus == 5 && HoldReasonCode == {} && HoldReasonSubCode == {}",
            Hold::BY_USER,
            Hold::SUSPENDED
        );
        let (jobs, arguments) = (self.my_jobs_of(uids).await?, ["-reason", "the HTCJob goes on"]);
        let call =
            BulkAction { tool: "condor_release", arguments: &arguments, jobs: &jobs, state: &held, removes: false };
        self.call_in_parts(&call, parts).await
    }

    /// Lets these ended jobs leave the queue, in parts. They stay in history as completed. Returns how long the last
    /// part took.
    ///
    /// # Errors
    /// HTCondor gave no answer, or the operator may no longer act. Earlier parts have been carried out.
    pub async fn tidy(&self, jobs: &[(&Uid, &Indices)], parts: BulkOptions<'_>) -> Result<Duration, QueryError> {
        let each = |(uid, indices): &(&'_ Uid, &Indices)| {
            let uid = (*uid).clone();
            indices.iter().map(move |index| (uid.clone(), index)).collect::<Vec<_>>()
        };
        let all: Vec<(Uid, Index)> = jobs.iter().flat_map(each).collect();
        let (mut rest, mut size) = (all.as_slice(), parts.sizes.first);
        loop {
            let (part, others) = rest.split_at(size.min(rest.len()));
            let began = Instant::now();
            self.tidy_part(part).await?;
            let took = began.elapsed();
            if others.is_empty() {
                return Ok(took);
            }
            (rest, size) = (others, parts.sizes.next(size, took));
            tokio::time::sleep(took).await;
            if !(parts.may_act)() {
                return Err(stopped(TIDY_TOOL));
            }
        }
    }

    async fn tidy_part(&self, jobs: &[(Uid, Index)]) -> Result<(), QueryError> {
        let of_each: Vec<(&Uid, Indices)> = jobs
            .chunk_by(|one, other| one.0 == other.0)
            .filter_map(|chunk| Some((&chunk.first()?.0, chunk.iter().map(|(_, index)| *index).collect())))
            .collect();
        let constraint = format!("{} && JobStatus == 4", self.jobs_by_index(&of_each).await?);
        let arguments = ["-name", self.name.as_str(), "-constraint", &constraint, "LeaveJobInQueue", "False"];
        let result = self.tools.run(TIDY_TOOL, &arguments).await;
        self.no_match_is_fine(TIDY_TOOL, result)
    }

    /// Returns a ClassAd expression for these jobs. At most 300 objects and some thousand jobs stay far below the
    /// limits of 400 alternatives and 128 KiB.
    async fn jobs_by_index(&self, jobs: &[(&Uid, Indices)]) -> Result<String, QueryError> {
        let each: Vec<String> = jobs
            .iter()
            .map(|(uid, indices)| {
                let list: Vec<String> = indices.iter().map(|index| index.to_string()).collect();
                format!("(HTCJobUID =?= {} && member(HTCJobIndex, {{{}}}))", quoted(uid.as_str()), list.join(","))
            })
            .collect();
        Ok(format!("{} && ({})", self.my_jobs().await?, each.join(" || ")))
    }

    pub(super) async fn act(&self, tool: &'static str, arguments: &[&str]) -> Result<(), QueryError> {
        let mut all = vec!["-name", self.name.as_str()];
        all.extend(arguments);
        let result = self.tools.run(tool, &all).await;
        self.no_match_is_fine(tool, result)
    }

    /// Returns success if the tool's messages say only that nothing matched. The exit status proves nothing: 1 may mean
    /// that no job matched. For an unreachable schedd the tools print the same line, but never that line alone.
    fn no_match_is_fine(&self, tool: &'static str, result: Result<ToolOutput, ToolError>) -> Result<(), QueryError> {
        match result {
            Ok(output) if output.status != Some(0) => {
                if nothing_matched(&output) {
                    Ok(())
                } else {
                    Err(self.unknown_from_output(tool, &output))
                }
            }
            result => self.check_output(tool, result).map(drop),
        }
    }
}

/// Returns a ClassAd expression for jobs by their ids.
fn listed(ids: impl Iterator<Item = JobId>) -> String {
    let list: Vec<String> = ids.map(|id| format!("\"{id}\"")).collect();
    format!("member(strcat(ClusterId, \".\", ProcId), {{{}}})", list.join(","))
}

pub(super) fn nothing_matched(output: &ToolOutput) -> bool {
    let mut lines = output.stderr.lines().map(str::trim).filter(|line| !line.is_empty()).peekable();
    let said = lines.peek().is_some();
    said && lines.all(|line| NO_MATCH.iter().any(|words| line.contains(words)))
}
