//! Deletes workers that the collector does not know.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod as KubePod;
use kube::ResourceExt as _;

use super::Caretaker;
use crate::kubernetes::ApiError;
use crate::pools::Pool;
use crate::pools::managed::groups::Group;
use crate::pools::managed::scale::Plan;

impl Caretaker {
    /// Deletes those on which the schedd has no job. A startd that the collector does not know gets none; it may have one from before the
    /// collector lost it.
    pub(super) async fn discard(
        &self,
        plans: &BTreeMap<Group, Plan>,
        pool: &Pool,
        pods: &[Arc<KubePod>],
    ) -> Result<(), ApiError> {
        let numbers: Vec<u32> = plans.values().flat_map(|plan| plan.discard.clone()).collect();
        let is_one = |pod: &&Arc<KubePod>| {
            self.names.worker_number(&pod.name_any()).is_some_and(|number| numbers.contains(&number))
        };
        for pod in pods.iter().filter(is_one) {
            let name = pod.name_any();
            match pool.schedd.has_job_on(&self.names.startd(&name)).await {
                Ok(false) => {
                    self.delete(pod, false).await?;
                    tracing::warn!("worker {name} has not joined HTCondor, and has no job: it is deleted");
                }
                Ok(true) => tracing::debug!("worker {name} is not known to the collector, and has a job: it stays"),
                Err(unknown) => {
                    tracing::warn!("whether worker {name} has a job is not known: {}", unknown.message);
                    break;
                }
            }
        }
        Ok(())
    }
}
