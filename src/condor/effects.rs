//! Remove, hold, release, adopt, tidy: each names the objects in its constraint, none goes by numbers alone.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::fetch::adopted_folder;
use super::left::Left;
use super::parts::{Call, InParts, stopped};
use super::schedd::{Schedd, quoted, unknown};
use super::tools::{Output, ToolError};
use crate::api::text::{WORDS, harmless};
use crate::machine::facts::{Hold, Unknown, Why};
use crate::machine::inherited::InheritedJob;
use crate::machine::judge::REMOVED_BY_US;
use crate::machine::{ClusterId, Index, Indices, JobId, Uid};

/// What the tools say, each in its own words, when nothing matched; with nothing else on standard error it is no failure.
const NO_MATCH: &[&str] =
    &["Couldn't find/", "There are no jobs in the queue", "Failed to set attribute", "Queue transaction failed"];

/// Jobs that are idle or running: also those that the schedd does not match yet (BLOCKED, PREPARING).
const LOOSE: &str = "member(JobStatus, {1,2,7,9,10})";

/// Jobs that have not ended.
const UNFINISHED: &str = "!member(JobStatus, {3,4,8})";

/// What ended jobs are let go by.
const TIDY_TOOL: &str = "condor_qedit";

/// Procs in one constraint.
const PROCS_PER_CALL: usize = 5000;

impl Schedd {
    /// `condor_rm` of all jobs of these objects.
    pub async fn remove(&self, uids: &[Uid], parts: InParts<'_>) -> Result<Duration, Unknown> {
        let (jobs, arguments) = (self.my_jobs_of(uids).await?, ["-reason", REMOVED_BY_US]);
        let call = Call { tool: "condor_rm", arguments: &arguments, jobs: &jobs, state: "true", removes: true };
        self.call_in_parts(&call, parts).await
    }

    /// `condor_rm` of those jobs of these objects whose files have not arrived.
    pub async fn remove_staging(&self, uids: &[Uid]) -> Result<(), Unknown> {
        let staging = "StageInFinish =?= undefined && JobStatus == 5 && HoldReasonCode == 16";
        let constraint = format!("{} && {staging}", self.my_jobs_of(uids).await?);
        self.act("condor_rm", &["-reason", REMOVED_BY_US, "-constraint", &constraint]).await
    }

    /// `condor_rm` of those jobs of these objects that have not ended.
    pub async fn remove_unfinished(&self, uids: &[Uid], parts: InParts<'_>) -> Result<Duration, Unknown> {
        let jobs = self.my_jobs_of(uids).await?;
        let reason = format!("{REMOVED_BY_US}: activeDeadlineSeconds or maxFailedIndexes");
        let arguments = ["-reason", reason.as_str()];
        let call = Call { tool: "condor_rm", arguments: &arguments, jobs: &jobs, state: UNFINISHED, removes: true };
        self.call_in_parts(&call, parts).await
    }

    /// `condor_rm` of these jobs of one object.
    pub async fn remove_jobs(&self, uid: &Uid, ids: &[JobId]) -> Result<(), Unknown> {
        self.act_on(uid, ids, "true", "condor_rm", &["-reason", REMOVED_BY_US]).await
    }

    /// `condor_rm` of those of these jobs of one object that have not ended: a user removes them.
    pub async fn remove_wished(&self, uid: &Uid, ids: &[JobId]) -> Result<(), Unknown> {
        let reason = format!("{REMOVED_BY_US}: a user of the HTCJob removed this job");
        self.act_on(uid, ids, UNFINISHED, "condor_rm", &["-reason", &reason]).await
    }

    /// `condor_rm` of these jobs of objects that are gone, in one call.
    pub async fn remove_left(&self, jobs: &[&Left]) -> Result<(), Unknown> {
        let reason = format!("{REMOVED_BY_US}: its HTCJob is gone");
        let uids: BTreeSet<&Uid> = jobs.iter().map(|job| &job.uid).collect();
        let theirs = self.my_jobs_of(&uids.into_iter().cloned().collect::<Vec<_>>()).await?;
        let constraint = format!("{theirs} && {} && JobStatus =!= 3", listed(jobs.iter().map(|job| job.id)));
        self.act("condor_rm", &["-reason", &reason, "-constraint", &constraint]).await
    }

    /// `condor_hold` of those of these jobs of one object that are idle or running: a user holds them.
    pub async fn hold_jobs(&self, uid: &Uid, ids: &[JobId]) -> Result<(), Unknown> {
        let subcode = Hold::WISHED.to_string();
        let arguments = ["-reason", "a user of the HTCJob holds this job", "-subcode", &subcode];
        self.act_on(uid, ids, LOOSE, "condor_hold", &arguments).await
    }

    /// `condor_release` of those of these jobs of one object that are held, but not of those whose files are coming.
    pub async fn release_jobs(&self, uid: &Uid, ids: &[JobId]) -> Result<(), Unknown> {
        let held = format!("JobStatus == 5 && HoldReasonCode =!= {}", Hold::SPOOLING);
        let reason = "spec.suspend is false, or a user of the HTCJob releases this job";
        self.act_on(uid, ids, &held, "condor_release", &["-reason", reason]).await
    }

    /// Calls a tool for those of these jobs of one object for which an expression is true.
    async fn act_on(
        &self,
        uid: &Uid,
        ids: &[JobId],
        expression: &str,
        tool: &'static str,
        arguments: &[&str],
    ) -> Result<(), Unknown> {
        for ids in ids.chunks(PROCS_PER_CALL) {
            let which = listed(ids.iter().copied());
            let theirs = self.my_jobs_of(std::slice::from_ref(uid)).await?;
            let constraint = format!("{theirs} && {which} && {expression}");
            self.act(tool, &[arguments, &["-constraint", &constraint]].concat()).await?;
        }
        Ok(())
    }

    /// `condor_hold` of the idle and running jobs of these objects, with the subcode that says that it was us.
    pub async fn hold(&self, uids: &[Uid], parts: InParts<'_>) -> Result<Duration, Unknown> {
        let jobs = self.my_jobs_of(uids).await?;
        let subcode = Hold::SUSPENDED.to_string();
        let arguments = ["-reason", "the HTCJob is suspended, or its queue took its room back", "-subcode", &subcode];
        let call = Call { tool: "condor_hold", arguments: &arguments, jobs: &jobs, state: LOOSE, removes: false };
        self.call_in_parts(&call, parts).await
    }

    /// `condor_release` of the jobs of these objects that [`Self::hold`] holds.
    pub async fn release(&self, uids: &[Uid], parts: InParts<'_>) -> Result<Duration, Unknown> {
        let held = format!(
            "JobStatus == 5 && HoldReasonCode == {} && HoldReasonSubCode == {}",
            Hold::BY_USER,
            Hold::SUSPENDED
        );
        let (jobs, arguments) = (self.my_jobs_of(uids).await?, ["-reason", "the HTCJob goes on"]);
        let call = Call { tool: "condor_release", arguments: &arguments, jobs: &jobs, state: &held, removes: false };
        self.call_in_parts(&call, parts).await
    }

    /// Makes these jobs of the Go operator this operator's: from then on they are found, removed, held and fetched like all
    /// others. `output`: folder that their output is to come to, each into one named after its `ProcId`.
    pub async fn adopt(&self, uid: &Uid, jobs: &[InheritedJob], output: &str) -> Result<(), Unknown> {
        const TOOL: &str = "condor_qedit";
        let mut groups: BTreeMap<(&str, ClusterId), Vec<String>> = BTreeMap::new();
        for job in jobs {
            groups.entry((&*job.folder, job.id.cluster)).or_default().push(job.id.proc.to_string());
        }
        let theirs = self.not_adopted().await?;
        let (operator, uid) = (quoted(&self.operator), quoted(uid.as_str()));
        let iwd = adopted_folder(output);
        for ((folder, cluster), procs) in groups {
            for procs in procs.chunks(PROCS_PER_CALL) {
                let which = format!(
                    "ClusterId == {cluster} && member(ProcId, {{{}}}) && (SUBMIT_Iwd ?: Iwd) =?= {}",
                    procs.join(","),
                    quoted(folder)
                );
                let constraint = format!("{theirs} && {which}");
                let mut arguments = vec!["-name", self.name.as_str(), "-constraint", &constraint];
                arguments.extend(["HTCJobAttempt", "0", "HTCJobIndex", "ProcId", "HTCJobUID", &uid]);
                // condor_transfer_data writes there; the Go operator's own folder was in its container.
                arguments.extend(["SUBMIT_Iwd", &iwd, "SUBMIT_UserLog", "\"log\"", "HTCOperator", &operator]);
                arguments.extend(["SUBMIT_TransferOutputRemaps", "undefined", "TransferOutputRemaps", "undefined"]);
                match self.tools.run(TOOL, &arguments).await {
                    Ok(output) if output.status != Some(0) && nothing_matched(&output) => {
                        self.why_not_adopted(cluster, &which, &output).await?;
                    }
                    result => drop(self.answer(TOOL, result)?),
                }
            }
        }
        Ok(())
    }

    /// condor_qedit has the same words for jobs that are somebody else's and for jobs that have just left the queue, which is
    /// nothing wrong: they are looked for as ever.
    async fn why_not_adopted(&self, cluster: ClusterId, which: &str, output: &Output) -> Result<(), Unknown> {
        let users = self.users_of_inherited(which).await?;
        let ours = self.own_users().await?;
        let jobs = format!("jobs of the Go operator in cluster {cluster}");
        match users.iter().find(|user| !ours.contains(*user)) {
            None if users.is_empty() => Ok(()),
            None => Err(unknown(
                Why::Incomplete,
                format!("{jobs} were not adopted, and it is tried again: {}", harmless(&output.stderr, WORDS)),
            )),
            Some(user) => {
                let message = format!(
                    "{jobs} cannot be adopted: they are of {user}, and not of the user that the operator is to schedd {}, {}; give it that user's credentials",
                    self.name,
                    self.identity().await?
                );
                Err(unknown(Why::CredentialsRefused, message))
            }
        }
    }

    /// Lets these ended jobs leave the queue, in parts; they stay in history as completed. How long the last part took.
    ///
    /// # Errors
    /// HTCondor gave no answer, or the operator may no longer act. Parts before that were carried out.
    pub async fn tidy(&self, jobs: &[(&Uid, &Indices)], parts: InParts<'_>) -> Result<Duration, Unknown> {
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

    async fn tidy_part(&self, jobs: &[(Uid, Index)]) -> Result<(), Unknown> {
        let of_each: Vec<(&Uid, Indices)> = jobs
            .chunk_by(|one, other| one.0 == other.0)
            .filter_map(|chunk| Some((&chunk.first()?.0, chunk.iter().map(|(_, index)| *index).collect())))
            .collect();
        let constraint = format!("{} && JobStatus == 4", self.jobs_by_index(&of_each).await?);
        let arguments = ["-name", self.name.as_str(), "-constraint", &constraint, "LeaveJobInQueue", "False"];
        let result = self.tools.run(TIDY_TOOL, &arguments).await;
        self.no_match_is_fine(TIDY_TOOL, result)
    }

    /// ClassAd expression for these jobs; at most 300 objects and some thousand jobs stay far from the limits of 400 alternatives and
    /// 128 KiB.
    async fn jobs_by_index(&self, jobs: &[(&Uid, Indices)]) -> Result<String, Unknown> {
        let each: Vec<String> = jobs
            .iter()
            .map(|(uid, indices)| {
                let list: Vec<String> = indices.iter().map(|index| index.to_string()).collect();
                format!("(HTCJobUID =?= {} && member(HTCJobIndex, {{{}}}))", quoted(uid.as_str()), list.join(","))
            })
            .collect();
        Ok(format!("{} && ({})", self.mine().await?, each.join(" || ")))
    }

    pub(super) async fn act(&self, tool: &'static str, arguments: &[&str]) -> Result<(), Unknown> {
        let mut all = vec!["-name", self.name.as_str()];
        all.extend(arguments);
        let result = self.tools.run(tool, &all).await;
        self.no_match_is_fine(tool, result)
    }

    /// The exit status proves nothing: 1 may mean that no job matched. An unreachable schedd gives the same line, but never
    /// that line alone.
    fn no_match_is_fine(&self, tool: &'static str, result: Result<Output, ToolError>) -> Result<(), Unknown> {
        match result {
            Ok(output) if output.status != Some(0) => {
                if nothing_matched(&output) {
                    Ok(())
                } else {
                    Err(self.trouble(tool, &output))
                }
            }
            result => self.answer(tool, result).map(drop),
        }
    }
}

/// ClassAd expression for jobs by their ids.
fn listed(ids: impl Iterator<Item = JobId>) -> String {
    let list: Vec<String> = ids.map(|id| format!("\"{id}\"")).collect();
    format!("member(strcat(ClusterId, \".\", ProcId), {{{}}})", list.join(","))
}

fn nothing_matched(output: &Output) -> bool {
    let mut lines = output.stderr.lines().map(str::trim).filter(|line| !line.is_empty()).peekable();
    let said = lines.peek().is_some();
    said && lines.all(|line| NO_MATCH.iter().any(|words| line.contains(words)))
}
