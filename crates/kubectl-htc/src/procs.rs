//! Client of the API server's jobs API, with the user's own rights.

use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use htc_api::htcproc::State;
use http::{Method, Request};
use http_body_util::BodyExt as _;
use kube::client::Body;
use serde_json::Value;
use strum::VariantArray as _;

use super::CommandFailure;
use super::cluster::{JobsClient, parse_name};
use super::words::Describe;

/// Path of HTCProcs.
const BASE: &str = "/apis/procs.htc.cern.ch/v1alpha1/namespaces";
/// Number of jobs in one page.
const PAGE: usize = 500;

/// An HTCJob, or one of its jobs: `zero`, `zero/17`, `htcjob/zero/17`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct JobSelector {
    pub(super) htcjob: String,
    pub(super) index: Option<u32>,
}

/// Parses a [`JobSelector`].
pub(super) fn parse_which(text: &str) -> Result<JobSelector, String> {
    let (name, index) = match text.rsplit_once('/') {
        Some((name, index)) if !index.is_empty() && index.bytes().all(|byte| byte.is_ascii_digit()) => {
            (name, Some(index.parse().map_err(|_| format!("{index} is not the index of a job"))?))
        }
        _ => (text, None),
    };
    Ok(JobSelector { htcjob: parse_name(name)?, index })
}

/// Returns a selector of the failed jobs, as `status.failedIndexes` lists them. Selectors have no "or", so it
/// excludes all other states.
pub(super) fn failed_only() -> String {
    let others = State::VARIANTS.iter().filter(|state| !state.has_failed());
    others.map(|state| format!("status.state!={state}")).collect::<Vec<_>>().join(",")
}

/// The fields of an HTCProc that this program uses.
#[derive(Clone, Debug)]
pub(super) struct Proc {
    pub(super) name: String,
    pub(super) index: u32,
    pub(super) state: String,
    pub(super) attempts: u64,
    pub(super) fetched: bool,
    /// Other fields of its status, for people.
    pub(super) status: Vec<(String, String)>,
}

impl Proc {
    fn read(object: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Self {
            name: text(&object["metadata"]["name"]),
            index: object["spec"]["index"].as_u64().and_then(|index| index.try_into().ok()).unwrap_or_default(),
            state: text(&object["status"]["state"]),
            attempts: object["status"]["attempts"].as_u64().unwrap_or_default(),
            fetched: object["status"]["outputFetched"].as_bool().unwrap_or_default(),
            status: object["status"]
                .as_object()
                .into_iter()
                .flatten()
                .filter(|(key, _)| !["state", "attempts"].contains(&key.as_str()))
                .map(|(key, value)| (key.clone(), value.as_str().map_or_else(|| value.to_string(), str::to_owned)))
                .collect(),
        }
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.state.as_str(), "Succeeded" | "Failed") || self.is_gone()
    }

    /// Returns whether it was removed, or HTCondor has lost it: it has not ended by itself.
    pub(super) fn is_gone(&self) -> bool {
        matches!(self.state.as_str(), "Removed" | "Lost")
    }
}

/// An answer whose body arrives part by part.
pub(super) struct StreamedAnswer {
    pub(super) headers: http::HeaderMap,
    parts: futures::stream::BoxStream<'static, Result<Vec<u8>, kube::Error>>,
}

impl StreamedAnswer {
    /// Returns the next part; `None` at the end.
    pub(super) async fn next(&mut self) -> Option<Result<Vec<u8>, kube::Error>> {
        self.parts.next().await
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }
}

/// Reason why a request failed.
#[derive(Debug)]
pub(super) struct ApiRefusal {
    pub(super) code: u16,
    pub(super) message: String,
    /// When to retry.
    retry_after: Option<Duration>,
}

impl ApiRefusal {
    /// Returns an error that no server reported: `code` identifies it.
    pub(super) fn local(code: u16, message: impl Describe) -> Self {
        Self { code, message: message.describe(), retry_after: None }
    }

    /// Returns the message without its request to try again, for users to whom the next step is reported.
    pub(super) fn why(&self) -> &str {
        self.message.trim_end_matches(": try again")
    }

    /// Returns whether it may succeed a moment later.
    pub(super) const fn is_transient(&self) -> bool {
        matches!(self.code, 0 | 429 | 500 | 502 | 503 | 504)
    }
}

impl JobsClient {
    /// Requests a subresource of one job.
    pub(super) async fn of_job(&self, name: &str, what: &str) -> Result<StreamedAnswer, ApiRefusal> {
        self.ask(&format!("{BASE}/{}/htcprocs/{name}/{what}", self.namespace), "*/*").await
    }

    async fn ask(&self, path: &str, accept: &str) -> Result<StreamedAnswer, ApiRefusal> {
        self.send(Method::GET, path, accept).await
    }

    /// Returns one job, by its own name.
    pub(super) async fn one(&self, name: &str) -> Result<Proc, ApiRefusal> {
        self.object(&format!("{BASE}/{}/htcprocs/{name}", self.namespace)).await.map(|object| Proc::read(&object))
    }

    /// Returns the story of an HTCJob, as recorded by the operator: an HTCStory.
    pub(super) async fn story(&self, htcjob: &str) -> Result<Value, ApiRefusal> {
        self.object(&format!("{BASE}/{}/htcstories/{htcjob}", self.namespace)).await
    }

    async fn object(&self, path: &str) -> Result<Value, ApiRefusal> {
        let mut answer = self.ask(path, "application/json").await?;
        let mut body = Vec::new();
        while let Some(part) = answer.next().await {
            body.extend(part.map_err(|why| ApiRefusal::local(0, why))?);
        }
        serde_json::from_slice(&body).map_err(|error| ApiRefusal::local(0, error))
    }

    /// Requests an action on one job.
    pub(super) async fn post(&self, name: &str, action: &str) -> Result<(), ApiRefusal> {
        let path = format!("{BASE}/{}/htcprocs/{name}/{action}", self.namespace);
        self.send(Method::POST, &path, "application/json").await.map(drop)
    }

    async fn send(&self, method: Method, path: &str, accept: &str) -> Result<StreamedAnswer, ApiRefusal> {
        loop {
            let answer = self.send_once(method.clone(), path, accept).await;
            let Err(refused @ ApiRefusal { retry_after: Some(pause), .. }) = &answer else {
                self.patience.is_answered();
                return answer;
            };
            if !self.patience.waits(*pause, refused.why()).await {
                return answer;
            }
        }
    }

    async fn send_once(&self, method: Method, path: &str, accept: &str) -> Result<StreamedAnswer, ApiRefusal> {
        let request = Request::builder().method(method).uri(path).header("Accept", accept);
        let request = request.body(Body::empty()).map_err(|error| ApiRefusal::local(0, error))?;
        let answer = self.procs.send(request).await.map_err(|error| ApiRefusal::local(0, error))?;
        let (code, headers) = (answer.status(), answer.headers().clone());
        let parts = answer.into_body().into_data_stream().map_ok(|part| part.to_vec());
        let mut answer = StreamedAnswer { headers, parts: parts.boxed() };
        if code.is_success() {
            return Ok(answer);
        }
        let mut body = Vec::new();
        while let Some(Ok(part)) = answer.next().await {
            body.extend(part);
        }
        let status: Value = serde_json::from_slice(&body).unwrap_or_default();
        let told = status["message"].as_str().map(str::to_owned);
        let plain = || String::from_utf8_lossy(&body).trim().to_owned();
        let seconds = answer.header("retry-after").and_then(|seconds| seconds.parse().ok());
        let retry_after = seconds.map(Duration::from_secs);
        Err(ApiRefusal { code: code.as_u16(), message: told.unwrap_or_else(plain), retry_after })
    }

    /// Returns the jobs of an HTCJob in this form, page by page. `selector`: field selector.
    pub(super) async fn pages(&self, htcjob: &str, selector: &str, accept: &str) -> Result<Vec<Value>, CommandFailure> {
        let mut pages = Vec::new();
        self.each_page(htcjob, selector, accept, |page| pages.push(page)).await?;
        Ok(pages)
    }

    /// As [`Self::pages`], without all pages in memory.
    pub(super) async fn each_page(
        &self,
        htcjob: &str,
        selector: &str,
        accept: &str,
        mut take: impl FnMut(Value),
    ) -> Result<(), CommandFailure> {
        let mut token = String::new();
        loop {
            let page = self.page(htcjob, selector, accept, &token).await?;
            page["metadata"]["continue"].as_str().unwrap_or_default().clone_into(&mut token);
            take(page);
            if token.is_empty() {
                return Ok(());
            }
        }
    }

    async fn page(&self, htcjob: &str, selector: &str, accept: &str, token: &str) -> Result<Value, CommandFailure> {
        let doing = format!("list the jobs of HTCJob {}/{htcjob}", self.namespace);
        let more = if selector.is_empty() { String::new() } else { format!(",{selector}") };
        let fields = format!("spec.htcJob={htcjob}{more}").replace('=', "%3D").replace(',', "%2C");
        let query = format!("limit={PAGE}&continue={token}&fieldSelector={fields}");
        let path = format!("{BASE}/{}/htcprocs?{query}", self.namespace);
        let refused = |refused: ApiRefusal| match refused.code {
            404 => {
                CommandFailure::new(&doing, "this cluster has no jobs API (docs/jobs-api.md): ask its administrator")
            }
            _ => CommandFailure::new(&doing, refused.message),
        };
        let mut answer = self.ask(&path, accept).await.map_err(refused)?;
        let mut body = Vec::new();
        while let Some(part) = answer.next().await {
            body.extend(part.map_err(|error| CommandFailure::new(&doing, error))?);
        }
        serde_json::from_slice(&body).map_err(|error| CommandFailure::new(&doing, error))
    }

    /// Returns the first jobs of an HTCJob, as many as one answer has.
    pub(super) async fn first_procs(&self, htcjob: &str, selector: &str) -> Result<Vec<Proc>, CommandFailure> {
        let page = self.page(htcjob, selector, "application/json", "").await?;
        Ok(page["items"].as_array().into_iter().flatten().map(Proc::read).collect())
    }

    /// Returns the jobs of an HTCJob, by index. `failed`: only those that have failed.
    pub(super) async fn procs(&self, which: &JobSelector, failed: bool) -> Result<Vec<Proc>, CommandFailure> {
        let one = which.index.map(|index| format!("spec.index={index}"));
        let selector = one.into_iter().chain(failed.then(failed_only)).collect::<Vec<_>>().join(",");
        let pages = self.pages(&which.htcjob, &selector, "application/json").await?;
        let items = pages.iter().filter_map(|page| page["items"].as_array()).flatten();
        let procs: Vec<Proc> = items.map(Proc::read).collect();
        match (procs.is_empty(), which.index) {
            (true, Some(index)) if failed => {
                Err(CommandFailure(format!("HTCJob {} has no job {index} that has failed", which.htcjob)))
            }
            (true, Some(index)) => Err(CommandFailure(format!("HTCJob {} has no job {index}", which.htcjob))),
            _ => Ok(procs),
        }
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn failed_selector_excludes_all_other_states() {
        let others = ["Waiting", "Idle", "Running", "Held", "Succeeded"];
        assert_eq!(failed_only(), others.map(|state| format!("status.state!={state}")).join(","));
    }

    #[test]
    fn job_argument_is_htcjob_and_optional_index() {
        let which = |htcjob: &str, index| Ok(JobSelector { htcjob: htcjob.to_owned(), index });
        assert_eq!(parse_which("zero"), which("zero", None));
        assert_eq!(parse_which("zero/17"), which("zero", Some(17)));
        assert_eq!(parse_which("htcjob/zero"), which("zero", None));
        assert_eq!(parse_which("htcj/zero/0"), which("zero", Some(0)));
        for wrong in ["pod/zero", "zero/1/2", "zero/99999999999"] {
            assert!(parse_which(wrong).is_err(), "{wrong}");
        }
    }
}
