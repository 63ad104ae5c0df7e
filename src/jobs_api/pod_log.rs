//! The log of a Pod as its node has it: until it is kept, and while the Pod runs. The API server begins a log at its first byte or at
//! its last lines; what comes before the byte that is wanted is left out here.

use futures::AsyncReadExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, LogParams};

use super::log::{PART, Source};
use crate::api::Guarded;
use crate::kubernetes::{ApiError, is_controlled, limited};
use crate::procs::answer::Failure;
use crate::workers::CONTAINER;

impl Source {
    /// Shows what the Pod has written; if that is wanted, until its container ends.
    pub(super) async fn show_pod(&mut self) -> Result<(), Failure> {
        let name = self.found.proc.name.name();
        let Some(pod) = self.found.proc.status.id.clone() else {
            let state = self.found.proc.status.state;
            return Err(Failure::bad_request(format!("{name} is {state} and has no Pod: it has no log")));
        };
        let tail = self.wanted.tail_lines.filter(|_| !self.shown);
        let parameters = LogParams {
            container: Some(CONTAINER.to_owned()),
            follow: self.wanted.follow,
            tail_lines: tail.map(|lines| i64::try_from(lines).unwrap_or(i64::MAX)),
            ..LogParams::default()
        };
        let api: Api<Pod> = Api::namespaced(self.jobs.client.clone(), &self.found.parent.namespace);
        let job = self.jobs.records.ledger.job_of(self.found.parent.uid.clone()).await?;
        let guarded: Api<Guarded<Pod>> = Api::namespaced(self.jobs.client.clone(), &self.found.parent.namespace);
        let there = limited("get Pod", &pod, guarded.get(&pod)).await.map_err(|error| self.no_log(&pod, &error))?;
        // Another one of its name is not its.
        if !job.is_some_and(|job| is_controlled(&there, job.as_str())) {
            return Err(self.is_gone(&pod));
        }
        let log = limited("read the log of Pod", &pod, api.log_stream(&pod, &parameters)).await;
        let mut log = std::pin::pin!(log.map_err(|error| self.no_log(&pod, &error))?);
        let (mut next, mut buffer) = (0_u64, vec![0; PART]);
        let from = if tail.is_some() { 0 } else { self.at };
        loop {
            let came = tokio::select! {
                came = log.read(&mut buffer) => came,
                // Who follows is told at once that there is a log, if an empty one.
                () = tokio::time::sleep(super::log::LOOK), if !self.told => {
                    self.begin().await?;
                    continue;
                }
                () = self.parts.closed() => return Ok(()),
            };
            let came =
                came.map_err(|error| Failure::unavailable(format!("the log of Pod {pod} has ended: {error}")))?;
            if came == 0 {
                return self.begin().await;
            }
            let skipped = usize::try_from(from.saturating_sub(next)).unwrap_or(usize::MAX).min(came);
            next += came as u64;
            // What was sent is not sent again, be it from the Pod or from the volume. Where the last lines are in the log is not known.
            if tail.is_none() {
                self.at = self.at.max(next);
            }
            if skipped < came && !self.send(&buffer[skipped..came]).await {
                return Ok(());
            }
        }
    }

    fn is_gone(&self, pod: &str) -> Failure {
        let name = self.found.proc.name.name();
        Failure::not_found(format!("the log of {name} is not kept, and its Pod {pod} is gone: its log went with it"))
    }

    fn no_log(&self, pod: &str, error: &ApiError) -> Failure {
        let name = self.found.proc.name.name();
        match error.code() {
            Some(404) => self.is_gone(pod),
            // The container has not started.
            Some(400) => Failure::bad_request(format!("{name} has no log yet: {error}")),
            Some(403) => Failure::unavailable(format!(
                "{error}. An administrator of the namespace can allow it: kubectl apply --namespace NAMESPACE -k deploy/namespace-kubernetes-backend"
            )),
            Some(_) | None => Failure::unavailable(error.to_string()),
        }
    }
}
