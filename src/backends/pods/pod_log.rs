//! Reads the log of a Pod from its node.

use futures::FutureExt as _;
use futures::future::BoxFuture;
use htc_api::Guarded;
use htc_machine::runs::JobUid;
use htc_support::kubernetes::{ApiError, is_controlled, with_timeout};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, LogParams};

use super::CONTAINER;
use crate::backends::kept_logs::{LogPart, LogSource, LogStream, NoLog};

/// Length of a line's timestamp, `2026-01-02T03:04:05.678901234`, in bytes: kubelet puts it before the line.
const TIMESTAMP: i64 = 29;

/// Source of the logs of one Job's Pods.
pub struct PodLogs {
    pub client: Client,
    /// Namespace of the Pods.
    pub namespace: String,
    /// Uid of their Job.
    pub job: JobUid,
}

impl LogSource for PodLogs {
    fn open<'a>(&'a self, pod: &'a str, wanted: LogPart) -> BoxFuture<'a, Result<LogStream, NoLog>> {
        self.ask(pod, wanted).boxed()
    }

    fn first_line<'a>(&'a self, pod: &'a str) -> BoxFuture<'a, Result<Option<Timestamp>, NoLog>> {
        self.ask_first_line(pod).boxed()
    }
}

impl PodLogs {
    async fn ask(&self, pod: &str, LogPart { follow, tail_lines, limit_bytes }: LogPart) -> Result<LogStream, NoLog> {
        let guarded: Api<Guarded<Pod>> = Api::namespaced(self.client.clone(), &self.namespace);
        let there = with_timeout("get Pod", &pod, guarded.get_opt(pod)).await.map_err(|error| no_log(&error))?;
        self.may_have_one(there)?;
        let parameters = LogParams {
            container: Some(CONTAINER.to_owned()),
            follow,
            tail_lines: tail_lines.map(|lines| i64::try_from(lines).unwrap_or(i64::MAX)),
            limit_bytes: limit_bytes.and_then(|most| i64::try_from(most).ok()),
            ..LogParams::default()
        };
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let log = with_timeout("read the log of Pod", &pod, api.log_stream(pod, &parameters)).await;
        log.map(|log| Box::pin(log) as LogStream).map_err(|error| no_log(&error))
    }

    /// Reads the time of the first line. A node drops the oldest lines of a long log without notice.
    async fn ask_first_line(&self, pod: &str) -> Result<Option<Timestamp>, NoLog> {
        let parameters = LogParams {
            container: Some(CONTAINER.to_owned()),
            timestamps: true,
            limit_bytes: Some(TIMESTAMP),
            ..LogParams::default()
        };
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let text = with_timeout("read the log of Pod", &pod, api.logs(pod, &parameters)).await;
        // The node's time zone follows the timestamp. It is ignored because it does not change.
        text.map(|text| format!("{text}Z").parse().ok()).map_err(|error| no_log(&error))
    }

    fn may_have_one(&self, there: Option<Guarded<Pod>>) -> Result<(), NoLog> {
        // Another Pod of the same name does not belong to this Job.
        let pod = there.filter(|pod| is_controlled(pod, self.job.as_str())).ok_or(NoLog::Gone)?;
        let has_node = pod.0.as_ref().ok().map(|pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some()));
        match has_node {
            Some(false) => Err(NoLog::Nothing),
            // Whether a Pod that cannot be decoded has a node is left to the API server's answer.
            Some(true) | None => Ok(()),
        }
    }
}

fn no_log(error: &ApiError) -> NoLog {
    match error.code() {
        Some(404) => NoLog::Gone,
        // The container has not started yet.
        Some(400) => NoLog::NotYet(error.to_string()),
        Some(403) => NoLog::Failed(format!(
            "{error}. An administrator of the namespace can allow it: kubectl apply --namespace NAMESPACE -k deploy/namespace-kubernetes-backend"
        )),
        Some(_) | None => NoLog::Failed(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[tokio::test]
    async fn undecodable_pod_is_not_gone() {
        let config = kube::Config::new("https://127.0.0.1:1".parse().unwrap());
        let logs =
            PodLogs { client: Client::try_from(config).unwrap(), namespace: "n".to_owned(), job: JobUid::from("j") };
        let asked = |there: Option<Value>| logs.may_have_one(there.map(|there| serde_json::from_value(there).unwrap()));
        let pod = |uid: &str, spec: &Value| {
            let owner =
                json!({ "apiVersion": "batch/v1", "kind": "Job", "name": "sums", "uid": uid, "controller": true });
            Some(json!({ "metadata": { "name": "sums-0-x", "ownerReferences": [owner] }, "spec": spec }))
        };
        let on_a_node = json!({ "nodeName": "n1", "containers": [] });
        assert_eq!(asked(pod("j", &on_a_node)), Ok(()));
        assert_eq!(asked(pod("j", &json!({ "nodeName": 7 }))), Ok(()), "it may have one");
        assert_eq!(asked(pod("j", &json!({ "containers": [] }))), Err(NoLog::Nothing));
        for gone in [None, pod("another", &on_a_node), pod("another", &json!({ "nodeName": 7 }))] {
            assert_eq!(asked(gone), Err(NoLog::Gone));
        }
    }
}
