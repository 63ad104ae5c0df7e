//! Removals, holds and releases of very many jobs, in parts.
//!
//! The schedd's time for removals grows with the square of the jobs that are being removed at its next check of the
//! queue (`PERIODIC_EXPR_INTERVAL`). With 87,000 at once, 25.14.1 gives no answer for fifteen minutes; 4,000 leave
//! within seconds. So the next part of a removal is sent when the previous one has left the queue.

use std::time::{Duration, Instant};

use htc_machine::JobId;
use htc_machine::facts::{QueryError, QueryErrorKind};

use super::schedd::{Schedd, unknown};

/// Duration below which the next part is larger.
const QUICK: Duration = Duration::from_millis(500);
/// Duration above which the next part is smaller.
const SLOW: Duration = Duration::from_secs(1);
/// Maximum wait for a part to leave the queue. Jobs on lost nodes stay longer.
const LEAVE: Duration = Duration::from_secs(30);
/// Maximum time for all parts of one request. The rest is requested again later, so that a hold or a deletion of the
/// same object does not wait longer.
const LONGEST: Duration = Duration::from_secs(120);
/// Minimum pause between two checks whether a part has left.
const LOOK: Duration = Duration::from_millis(300);

/// Returns the error for a tool that was stopped before all parts were done.
pub(super) fn stopped(tool: &str) -> QueryError {
    let message = format!(
        "{tool} was stopped half way, as this operator may not act now; the rest of the jobs follow as soon as an operator may"
    );
    unknown(QueryErrorKind::Incomplete, message)
}

/// Limits on how many jobs are acted on at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartSizes {
    /// Jobs in the first part.
    pub first: usize,
    /// Minimum jobs in a part.
    pub least: usize,
    /// Maximum jobs in a part, and maximum jobs that are acted on without parts.
    pub most: usize,
}

impl PartSizes {
    /// Derives the sizes from the number of jobs in one submission, which is at least 1.
    #[must_use]
    pub const fn of_submissions(jobs: usize) -> Self {
        Self { first: 2 * jobs, least: jobs.div_ceil(2), most: 8 * jobs }
    }

    /// Returns the size of the next part, after one of this size took this long.
    pub(super) fn next(self, size: usize, took: Duration) -> usize {
        let next = match took {
            took if took < QUICK => size * 2,
            took if took > SLOW => size / 2,
            _ => size,
        };
        next.clamp(self.least, self.most)
    }
}

/// A tool call for many jobs.
pub(super) struct BulkAction<'a> {
    pub(super) tool: &'static str,
    /// All arguments but the constraint.
    pub(super) arguments: &'a [&'a str],
    /// `ClassAd` expression for the jobs of the objects.
    pub(super) jobs: &'a str,
    /// `ClassAd` expression for those of them that the tool acts on, by their state.
    pub(super) state: &'a str,
    /// Whether the call makes the jobs leave the queue.
    pub(super) removes: bool,
}

/// State of a part of a removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PartRemoval {
    /// None of its jobs is in the queue.
    Gone,
    /// Some of its jobs are still being removed.
    Lingering,
}

/// Options that decide whether a tool is called once for very many jobs, or in parts.
#[derive(Clone, Copy)]
pub struct BulkOptions<'a> {
    /// Number of jobs, as far as it is known.
    pub jobs: usize,
    pub sizes: PartSizes,
    /// Returns whether this operator may still act. Called before each part.
    pub may_act: &'a (dyn Fn() -> bool + Sync),
}

impl Schedd {
    /// Calls a tool for the jobs of an action: once if they are few, else in parts by their ids. The pauses between the
    /// parts are as long as the calls took, so that the schedd has at least half of its time for others. Ends early
    /// after [`LONGEST`]. Returns how long the last part took, or zero if it ended early.
    ///
    /// # Errors
    /// HTCondor gave no answer, or the operator may no longer act. Earlier parts have been carried out.
    pub(super) async fn call_in_parts(
        &self,
        call: &BulkAction<'_>,
        parts: BulkOptions<'_>,
    ) -> Result<Duration, QueryError> {
        let since = Instant::now();
        if parts.jobs > parts.sizes.most {
            let mut rest = self.ids_of(call).await?;
            rest.sort_unstable();
            let mut size = parts.sizes.first;
            while rest.len() > parts.sizes.most {
                if !(parts.may_act)() {
                    return Err(stopped(call.tool));
                }
                if since.elapsed() > LONGEST {
                    return Ok(Duration::ZERO);
                }
                let part: Vec<JobId> = rest.drain(..size.min(rest.len())).collect();
                let Some(last) = part.last() else { break };
                let within = format!("{} && {}", call.jobs, up_to(*last));
                let began = Instant::now();
                self.call_for(call, &within).await?;
                let took = began.elapsed();
                size = parts.sizes.next(size, took);
                if call.removes && self.wait_until_left(&within).await? == PartRemoval::Lingering {
                    size = parts.sizes.next(size, LEAVE);
                }
                tracing::debug!(jobs = part.len(), left = rest.len(), ?took, tool = call.tool, "part of the jobs done");
                tokio::time::sleep(took).await;
            }
        }
        // Last part, with the jobs that have appeared since.
        let began = Instant::now();
        self.call_for(call, call.jobs).await?;
        Ok(began.elapsed())
    }

    async fn call_for(&self, call: &BulkAction<'_>, jobs: &str) -> Result<(), QueryError> {
        let constraint = format!("{jobs} && {}", call.state);
        self.act(call.tool, &[call.arguments, &["-constraint", &constraint]].concat()).await
    }

    async fn ids_of(&self, call: &BulkAction<'_>) -> Result<Vec<JobId>, QueryError> {
        let mut ids = Vec::new();
        let constraint = format!("{} && {} && JobStatus =!= 3", call.jobs, call.state);
        self.each_queued(&constraint, "ClusterId,ProcId", self.tools.limit, None, |row| ids.extend(row.job_id()))
            .await?;
        Ok(ids)
    }

    /// Waits until none of these jobs is being removed, for [`LEAVE`] at most.
    ///
    /// # Errors
    /// HTCondor gave no answer: the schedd is too busy for another part.
    async fn wait_until_left(&self, jobs: &str) -> Result<PartRemoval, QueryError> {
        let since = Instant::now();
        let removed = format!("{jobs} && JobStatus == 3");
        loop {
            let began = Instant::now();
            if !self.has_queued(&removed).await? {
                return Ok(PartRemoval::Gone);
            }
            if since.elapsed() > LEAVE {
                return Ok(PartRemoval::Lingering);
            }
            tokio::time::sleep(LOOK.max(began.elapsed() * 3)).await;
        }
    }
}

/// Returns a `ClassAd` expression for the jobs up to and including this one.
fn up_to(last: JobId) -> String {
    let JobId { cluster, proc } = last;
    format!("(ClusterId < {cluster} || (ClusterId == {cluster} && ProcId <= {proc}))")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;
    use std::sync::atomic::{AtomicU32, Ordering};

    use htc_api::Identity;
    use htc_confine::Confinement;
    use htc_machine::ClusterId;
    use htc_support::clock::Clock;
    use htc_support::health::Health;
    use htc_support::metrics::Metrics;

    use super::*;
    use crate::known_users::KnownUsers;
    use crate::{ConfinementSettings, Tools};

    /// A schedd with 20 jobs, of which none is being removed.
    const CONDOR_Q: &str = r#"#!/bin/sh
case "$*" in *"-limit 1"*) exit ;; esac
echo '['
for proc in 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18; do echo "{\"ClusterId\": 1, \"ProcId\": $proc},"; done
echo '{"ClusterId": 1, "ProcId": 19}]'
"#;

    fn schedd(folder: &Path) -> Schedd {
        for (tool, script) in [("condor_q", CONDOR_Q), ("condor_rm", "#!/bin/sh\necho >>${0%/*}/calls\n")] {
            std::fs::write(folder.join(tool), script).unwrap();
            std::fs::set_permissions(folder.join(tool), std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        let limit = Duration::from_secs(60);
        let off = ConfinementSettings { wanted: Confinement::Off, reads: &[], protected: &[] };
        let tools = Tools::new(Some(&folder.to_owned()), off, limit, limit, limit, Metrics::default());
        let users = KnownUsers::new([(Identity::Operator, "operator@test".to_owned())]);
        Schedd::new("s".into(), "op".to_owned(), tools, Clock::default(), users, Health::default())
    }

    #[tokio::test]
    async fn stopped_bulk_action_names_its_tool_and_the_next_step() {
        let folder = tempfile::tempdir().unwrap();
        let asked = AtomicU32::new(0);
        let may_act = || asked.fetch_add(1, Ordering::Relaxed) == 0;
        let parts = BulkOptions { jobs: 20, sizes: PartSizes::of_submissions(1), may_act: &may_act };
        let call = BulkAction { tool: "condor_rm", arguments: &[], jobs: "true", state: "true", removes: true };
        let unknown = schedd(folder.path()).call_in_parts(&call, parts).await.unwrap_err();
        let names = |word: &str| unknown.message.contains(word);
        assert!(names("condor_rm was stopped half way") && names("the rest of the jobs follow"), "{unknown:?}");
        assert_eq!(std::fs::read_to_string(folder.path().join("calls")).unwrap().lines().count(), 1);
    }

    #[test]
    fn part_size_grows_while_calls_are_fast_and_shrinks_when_slow() {
        let sizes = PartSizes::of_submissions(500);
        assert_eq!(sizes, PartSizes { first: 1000, least: 250, most: 4000 });
        let after = |millis: &[u64]| {
            millis.iter().fold(sizes.first, |size, millis| sizes.next(size, Duration::from_millis(*millis)))
        };
        assert_eq!(after(&[100]), 2000);
        assert_eq!(after(&[100; 9]), 4000);
        assert_eq!(after(&[700]), 1000);
        assert_eq!(after(&[2000]), 500);
        assert_eq!(after(&[2000; 9]), 250);
        assert_eq!(PartSizes::of_submissions(1), PartSizes { first: 2, least: 1, most: 8 });
    }

    #[test]
    fn part_constraint_ends_at_its_last_job() {
        let last = JobId { cluster: ClusterId(7), proc: 3 };
        assert_eq!(up_to(last), "(ClusterId < 7 || (ClusterId == 7 && ProcId <= 3))");
    }
}
