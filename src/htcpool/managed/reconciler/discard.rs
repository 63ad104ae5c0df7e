//! Deletes workers that the collector does not know.

use std::collections::BTreeMap;
use std::sync::Arc;

use htc_machine::scaling::ScalePlan;
use htc_machine::worker_groups::WorkerGroup;
use htc_support::kubernetes::ApiError;
use k8s_openapi::api::core::v1::Pod as KubePod;
use kube::ResourceExt as _;

use super::ManagedPoolReconciler;
use crate::htcpool::Pool;

impl ManagedPoolReconciler {
    /// Deletes those workers that the schedd has no job on.
    ///
    /// A startd that the collector does not know gets no new jobs, but may still run one from before the collector lost
    /// it.
    pub(super) async fn discard(
        &self,
        plans: &BTreeMap<WorkerGroup, ScalePlan>,
        pool: &Pool,
        pods: &[Arc<KubePod>],
    ) -> Result<(), ApiError> {
        let numbers: Vec<u32> = plans.values().flat_map(|plan| plan.delete_unknown.clone()).collect();
        let is_one = |pod: &&Arc<KubePod>| {
            self.names.worker_number(&pod.name_any()).is_some_and(|number| numbers.contains(&number))
        };
        for pod in pods.iter().filter(is_one) {
            let name = pod.name_any();
            match pool.schedd.has_job_on(&self.names.startd(&name)).await {
                Ok(false) => {
                    self.delete(pod, false).await?;
                    tracing::warn!(worker = name, "worker that did not join HTCondor deleted");
                }
                Ok(true) => tracing::debug!(worker = name, "worker unknown to the collector has a job, kept"),
                Err(unknown) => {
                    tracing::warn!(worker = name, why = %unknown.message, "jobs of a worker unknown");
                    break;
                }
            }
        }
        Ok(())
    }
}
