//! Adoption of jobs of the Go operator of 2020. They are found by job id, user and submit folder, and become this
//! operator's jobs.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use htc_machine::facts::{QueryError, QueryErrorKind};
use htc_machine::inherited::InheritedJob;
use htc_machine::text::{MAX_MESSAGE, sanitize};
use htc_machine::{ClusterId, JobId, Uid};

use super::effects::{PROCS_PER_CALL, nothing_matched};
use super::fetch::adopted_folder;
use super::row::{INHERITED_ATTRIBUTES, Row};
use super::schedd::{Schedd, of_users, quoted, unknown};
use super::tools::ToolOutput;
use crate::listing::AdListing;

/// ClassAd expression for jobs that no operator of this kind has submitted or adopted.
const NOT_ADOPTED: &str = "HTCOperator =?= undefined && HTCJobUID =?= undefined";

/// Maximum clusters in one constraint.
const CLUSTERS_PER_CALL: usize = 5000;

/// Jobs of the Go operator, by object.
pub type WantedInherited = HashMap<Uid, Arc<[InheritedJob]>>;

/// Returns ClassAd expressions that match these jobs, and perhaps others. They do not name the user: a job of another
/// user exists, though it cannot be adopted.
fn inherited(wanted: &WantedInherited) -> Vec<String> {
    let clusters: BTreeSet<u64> = wanted.values().flat_map(|jobs| jobs.iter().map(|job| job.id.cluster.0)).collect();
    let clusters: Vec<String> = clusters.iter().map(u64::to_string).collect();
    let expression = |chunk: &[String]| format!("{NOT_ADOPTED} && member(ClusterId, {{{}}})", chunk.join(","));
    clusters.chunks(CLUSTERS_PER_CALL).map(expression).collect()
}

/// Adds the ad of a job of the Go operator if it is one of the wanted jobs. Job ids are reused when a queue begins
/// anew, so the submit folder must match, too.
fn pick(shown: &mut AdListing, wanted: &ById<'_>, row: &Row) {
    let (Some(id), Some(folder)) = (row.job_id(), row.folder()) else { return };
    for (uid, job) in wanted.get(&id).into_iter().flatten().filter(|(_, job)| *job.folder == *folder) {
        match row.inherited_ad(job.index) {
            Some(ad) => shown.ads.entry((*uid).clone()).or_default().push(ad),
            None => shown.add_unreadable((*uid).clone(), row),
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

impl Schedd {
    /// Returns those of these jobs of the Go operator that are in the queue and not adopted. Must be called before the
    /// query for adopted jobs: a job that is adopted in between is then seen twice instead of missed.
    pub async fn queue_of_inherited(&self, wanted: &WantedInherited) -> Result<AdListing, QueryError> {
        let (mut shown, by_id) = (AdListing::default(), by_id(wanted));
        for constraint in inherited(wanted) {
            let each = |row: &Row| pick(&mut shown, &by_id, row);
            self.each_queued(&constraint, INHERITED_ATTRIBUTES, self.tools.limit, None, each).await?;
        }
        Ok(shown)
    }

    /// Returns the users of those of these jobs that are in the queue and not adopted.
    async fn users_of_inherited(&self, which: &str) -> Result<BTreeSet<String>, QueryError> {
        let mut users = BTreeSet::new();
        let wanted = format!("{NOT_ADOPTED} && {which}");
        let each = |row: &Row| users.extend(row.user().map(str::to_owned));
        self.each_queued(&wanted, "ClusterId,ProcId,User", self.tools.limit, None, each).await?;
        Ok(users)
    }

    /// Returns those of these jobs of the Go operator in history that were not adopted.
    pub async fn history_of_inherited(&self, wanted: &WantedInherited) -> Result<AdListing, QueryError> {
        let (mut shown, by_id) = (AdListing::default(), by_id(wanted));
        let own_users = self.own_users().await?;
        for constraint in inherited(wanted) {
            let each = |row: &Row| {
                // A job of another user is one of a queue that began anew, with a reused id.
                if row.user().is_some_and(|user| own_users.iter().any(|own| own == user)) {
                    pick(&mut shown, &by_id, row);
                }
            };
            let arguments = ["-constraint", &constraint];
            self.history_with(INHERITED_ATTRIBUTES, &arguments, self.tools.history_limit, None, each).await?;
        }
        Ok(shown)
    }

    /// Makes these jobs of the Go operator this operator's. From then on they are found, removed, held and fetched like
    /// all others. `output` is the folder for their output, with a subfolder for each job named by its `ProcId`.
    pub async fn adopt(&self, uid: &Uid, jobs: &[InheritedJob], output: &str) -> Result<(), QueryError> {
        const TOOL: &str = "condor_qedit";
        let mut groups: BTreeMap<(&str, ClusterId), Vec<String>> = BTreeMap::new();
        for job in jobs {
            groups.entry((&*job.folder, job.id.cluster)).or_default().push(job.id.proc.to_string());
        }
        // Only their user shows that they are this operator's.
        let theirs = format!("{NOT_ADOPTED} && {}", of_users(&self.own_users().await?));
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
                // condor_transfer_data writes there. The Go operator's own folder was in its container.
                arguments.extend(["SUBMIT_Iwd", &iwd, "SUBMIT_UserLog", "\"log\"", "HTCOperator", &operator]);
                arguments.extend(["SUBMIT_TransferOutputRemaps", "undefined", "TransferOutputRemaps", "undefined"]);
                match self.tools.run(TOOL, &arguments).await {
                    Ok(output) if output.status != Some(0) && nothing_matched(&output) => {
                        self.why_not_adopted(cluster, &which, &output).await?;
                    }
                    result => drop(self.check_output(TOOL, result)?),
                }
            }
        }
        Ok(())
    }

    /// Returns why jobs were not adopted. condor_qedit prints the same message for jobs of another user and for jobs
    /// that have just left the queue. The latter is no error: such jobs are looked up as usual.
    async fn why_not_adopted(&self, cluster: ClusterId, which: &str, output: &ToolOutput) -> Result<(), QueryError> {
        let users = self.users_of_inherited(which).await?;
        let ours = self.own_users().await?;
        let jobs = format!("jobs of the Go operator in cluster {cluster}");
        match users.iter().find(|user| !ours.contains(*user)) {
            None if users.is_empty() => Ok(()),
            None => Err(unknown(
                QueryErrorKind::Incomplete,
                format!("{jobs} were not adopted, and it is tried again: {}", sanitize(&output.stderr, MAX_MESSAGE)),
            )),
            Some(user) => {
                let message = format!(
                    "{jobs} cannot be adopted: they are of {user}, and not of the user that the operator is to schedd {}, {}; give it that user's credentials",
                    self.name,
                    self.ask_user().await?
                );
                Err(unknown(QueryErrorKind::CredentialsRefused, message))
            }
        }
    }
}
