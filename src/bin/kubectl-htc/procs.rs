//! Jobs of an HTCJob, through the API server's jobs API, as the user.

use std::time::Duration;

use futures::StreamExt as _;
use htc_operator::procs::State;
use http::{Method, Request};
use http_body_util::BodyExt as _;
use kube::client::Body;
use serde_json::Value;
use strum::VariantArray as _;

use super::Failure;
use super::cluster::{Jobs, parse_name};
use super::words::Words;

/// Where HTCProcs are.
const BASE: &str = "/apis/procs.htc.cern.ch/v1alpha1/namespaces";
/// How many are asked for at once.
const PAGE: usize = 500;

/// An HTCJob, or one of its jobs: `zero`, `zero/17`, `htcjob/zero/17`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Which {
    pub(super) htcjob: String,
    pub(super) index: Option<u32>,
}

/// Reads what [`Which`] says.
pub(super) fn parse_which(text: &str) -> Result<Which, String> {
    let (name, index) = match text.rsplit_once('/') {
        Some((name, index)) if !index.is_empty() && index.bytes().all(|byte| byte.is_ascii_digit()) => {
            (name, Some(index.parse().map_err(|_| format!("{index} is not the index of a job"))?))
        }
        _ => (text, None),
    };
    Ok(Which { htcjob: parse_name(name)?, index })
}

/// Selects the jobs that have failed, as `status.failedIndexes` lists them. Selectors have no "or": the others are left out.
pub(super) fn failed_only() -> String {
    let others = State::VARIANTS.iter().filter(|state| !state.has_failed());
    others.map(|state| format!("status.state!={state}")).collect::<Vec<_>>().join(",")
}

/// An HTCProc, as far as it is used here.
#[derive(Clone, Debug)]
pub(super) struct Proc {
    pub(super) name: String,
    pub(super) index: u32,
    pub(super) state: String,
    pub(super) attempts: u64,
    pub(super) fetched: bool,
    /// What else its status says, for people.
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

    /// It was removed, or HTCondor has lost it: it has not ended by itself.
    pub(super) fn is_gone(&self) -> bool {
        matches!(self.state.as_str(), "Removed" | "Lost")
    }
}

/// An answer whose body comes part by part.
pub(super) struct Answer {
    pub(super) headers: http::HeaderMap,
    parts: futures::stream::BoxStream<'static, Result<Vec<u8>, String>>,
}

impl Answer {
    /// The next part; none at the end.
    pub(super) async fn next(&mut self) -> Option<Result<Vec<u8>, String>> {
        self.parts.next().await
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }
}

/// Why a request came to nothing.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) code: u16,
    pub(super) message: String,
    /// When to ask again.
    retry_after: Option<Duration>,
}

impl Refused {
    /// By nobody: `code` says what has gone wrong.
    pub(super) fn nobody(code: u16, message: impl Words) -> Self {
        Self { code, message: message.words(), retry_after: None }
    }

    /// The message, for who is told what is done about it.
    pub(super) fn why(&self) -> &str {
        self.message.trim_end_matches(": try again")
    }

    /// It may be answered a moment later.
    pub(super) const fn may_pass(&self) -> bool {
        matches!(self.code, 0 | 429 | 500 | 502 | 503 | 504)
    }
}

impl Jobs {
    /// Something of one job.
    pub(super) async fn of_job(&self, name: &str, what: &str) -> Result<Answer, Refused> {
        self.ask(&format!("{BASE}/{}/htcprocs/{name}/{what}", self.namespace), "*/*").await
    }

    async fn ask(&self, path: &str, accept: &str) -> Result<Answer, Refused> {
        self.send(Method::GET, path, accept).await
    }

    /// One job, by its own name.
    pub(super) async fn one(&self, name: &str) -> Result<Proc, Refused> {
        self.object(&format!("{BASE}/{}/htcprocs/{name}", self.namespace)).await.map(|object| Proc::read(&object))
    }

    /// What the operator has recorded of an HTCJob: an HTCStory.
    pub(super) async fn story(&self, htcjob: &str) -> Result<Value, Refused> {
        self.object(&format!("{BASE}/{}/htcstories/{htcjob}", self.namespace)).await
    }

    async fn object(&self, path: &str) -> Result<Value, Refused> {
        let mut answer = self.ask(path, "application/json").await?;
        let mut body = Vec::new();
        while let Some(part) = answer.next().await {
            body.extend(part.map_err(|why| Refused::nobody(0, why))?);
        }
        serde_json::from_slice(&body).map_err(|error| Refused::nobody(0, error))
    }

    /// Asks that something is done about one job.
    pub(super) async fn post(&self, name: &str, action: &str) -> Result<(), Refused> {
        let path = format!("{BASE}/{}/htcprocs/{name}/{action}", self.namespace);
        self.send(Method::POST, &path, "application/json").await.map(drop)
    }

    async fn send(&self, method: Method, path: &str, accept: &str) -> Result<Answer, Refused> {
        loop {
            let answer = self.send_once(method.clone(), path, accept).await;
            let Err(refused @ Refused { retry_after: Some(pause), .. }) = &answer else {
                self.patience.is_answered();
                return answer;
            };
            if !self.patience.waits(*pause, refused.why()).await {
                return answer;
            }
        }
    }

    async fn send_once(&self, method: Method, path: &str, accept: &str) -> Result<Answer, Refused> {
        let request = Request::builder().method(method).uri(path).header("Accept", accept);
        let request = request.body(Body::empty()).map_err(|error| Refused::nobody(0, error))?;
        let answer = self.procs.send(request).await.map_err(|error| Refused::nobody(0, error))?;
        let (code, headers) = (answer.status(), answer.headers().clone());
        let parts = answer.into_body().into_data_stream().map(|part| match part {
            Ok(part) => Ok(part.to_vec()),
            Err(error) => Err(error.to_string()),
        });
        let mut answer = Answer { headers, parts: parts.boxed() };
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
        Err(Refused { code: code.as_u16(), message: told.unwrap_or_else(plain), retry_after })
    }

    /// The jobs of an HTCJob in this form, page by page; `selector`: of these fields.
    pub(super) async fn pages(&self, htcjob: &str, selector: &str, accept: &str) -> Result<Vec<Value>, Failure> {
        let mut pages = Vec::new();
        self.each_page(htcjob, selector, accept, |page| pages.push(page)).await?;
        Ok(pages)
    }

    /// The same, without all pages in memory.
    pub(super) async fn each_page(
        &self,
        htcjob: &str,
        selector: &str,
        accept: &str,
        mut take: impl FnMut(Value),
    ) -> Result<(), Failure> {
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

    async fn page(&self, htcjob: &str, selector: &str, accept: &str, token: &str) -> Result<Value, Failure> {
        let doing = format!("list the jobs of HTCJob {}/{htcjob}", self.namespace);
        let more = if selector.is_empty() { String::new() } else { format!(",{selector}") };
        let fields = format!("spec.htcJob={htcjob}{more}").replace('=', "%3D").replace(',', "%2C");
        let query = format!("limit={PAGE}&continue={token}&fieldSelector={fields}");
        let path = format!("{BASE}/{}/htcprocs?{query}", self.namespace);
        let refused = |refused: Refused| match refused.code {
            404 => Failure::new(&doing, "this cluster has no jobs API (docs/jobs-api.md): ask its administrator"),
            _ => Failure::new(&doing, refused.message),
        };
        let mut answer = self.ask(&path, accept).await.map_err(refused)?;
        let mut body = Vec::new();
        while let Some(part) = answer.next().await {
            body.extend(part.map_err(|error| Failure::new(&doing, error))?);
        }
        serde_json::from_slice(&body).map_err(|error| Failure::new(&doing, error))
    }

    /// The first jobs of an HTCJob, as many as one answer has.
    pub(super) async fn first_procs(&self, htcjob: &str, selector: &str) -> Result<Vec<Proc>, Failure> {
        let page = self.page(htcjob, selector, "application/json", "").await?;
        Ok(page["items"].as_array().into_iter().flatten().map(Proc::read).collect())
    }

    /// The jobs of an HTCJob, by index; `failed`: those that have failed.
    pub(super) async fn procs(&self, which: &Which, failed: bool) -> Result<Vec<Proc>, Failure> {
        let one = which.index.map(|index| format!("spec.index={index}"));
        let selector = one.into_iter().chain(failed.then(failed_only)).collect::<Vec<_>>().join(",");
        let pages = self.pages(&which.htcjob, &selector, "application/json").await?;
        let items = pages.iter().filter_map(|page| page["items"].as_array()).flatten();
        let procs: Vec<Proc> = items.map(Proc::read).collect();
        match (procs.is_empty(), which.index) {
            (true, Some(index)) if failed => {
                Err(Failure(format!("HTCJob {} has no job {index} that has failed", which.htcjob)))
            }
            (true, Some(index)) => Err(Failure(format!("HTCJob {} has no job {index}", which.htcjob))),
            _ => Ok(procs),
        }
    }
}

#[cfg(test)]
mod tests {
    use htc_operator::machine::Index;
    use htc_operator::procs::selection::Selection;
    use htc_operator::procs::{HTCProc, Parent};

    use super::*;

    #[test]
    fn those_that_failed_are_those_that_the_status_lists() {
        let selection = Selection::parse(None, Some(&failed_only())).unwrap();
        let mut proc = HTCProc::not_recorded(&Parent::default(), Index(7), false, None);
        for state in State::VARIANTS {
            proc.status.state = *state;
            let listed = matches!(state, State::Failed | State::Removed | State::Lost);
            assert_eq!(selection.matches(&proc), listed, "{state}");
        }
    }

    #[test]
    fn jobs_are_named_after_their_htcjob() {
        let which = |htcjob: &str, index| Ok(Which { htcjob: htcjob.to_owned(), index });
        assert_eq!(parse_which("zero"), which("zero", None));
        assert_eq!(parse_which("zero/17"), which("zero", Some(17)));
        assert_eq!(parse_which("htcjob/zero"), which("zero", None));
        assert_eq!(parse_which("htcj/zero/0"), which("zero", Some(0)));
        for wrong in ["pod/zero", "zero/1/2", "zero/99999999999"] {
            assert!(parse_which(wrong).is_err(), "{wrong}");
        }
    }
}
