//! The leader's port.

use std::net::SocketAddr;

use actix_web::http::StatusCode;
use actix_web::http::header::{ACCEPT, RETRY_AFTER};
use actix_web::web::Bytes;
use actix_web::{HttpRequest, HttpResponse, web};
use futures::Stream;
use htc_api::htcproc::{API_VERSION, HTCProc, ProcName};
use htc_ledger::LedgerError;
use serde_json::json;
use tracing::Instrument as _;

use super::log_query::LogQuery;
use super::watch::WatchStream;
use super::{FoundJob, JobsService, Records, files, in_span, log, now};
use crate::backends::JobFeature;
use crate::backends::procs::Parent;
use crate::http::ListenError;
use crate::http::connection_limiter::ConnectionLimits;
use crate::http::mtls::{ServerCertificate, TrustedClients, server_config};
use crate::http::port::Port;
use crate::http::port::{Clients, serve as serve_port};
use crate::jobs_api::actions as wish;
use crate::jobs_api::files::htcjob_archive as whole;
use crate::jobs_api::pager::JobPager;
use crate::jobs_api::resource::list::{Cursor, Form, Query};
use crate::jobs_api::resource::request_path::{ObjectKind, RequestPath};
use crate::jobs_api::resource::status_error::StatusError;
use crate::jobs_api::resource::story::{HTCStory, STORIES};
use crate::jobs_api::resource::table;

/// Number of threads of the port.
const THREADS: usize = 2;

/// Only fronts complete their handshakes.
const LIMITS: ConnectionLimits = ConnectionLimits { waiting: 512, per_address: 64, known: 1024 };

/// The leader's port: served until it is dropped.
pub type LeaderPort = Port;

/// Serves the jobs to the clients in `accepted`.
pub fn listen(
    address: SocketAddr,
    jobs: JobsService,
    shown: ServerCertificate,
    accepted: TrustedClients,
) -> Result<LeaderPort, ListenError> {
    let config = server_config(shown, accepted)?;
    serve_port(address, THREADS, LIMITS, Clients::Certified(config), move |app| {
        app.app_data(web::Data::new(jobs.clone())).default_service(web::to(answer));
    })
}

async fn answer(request: HttpRequest, jobs: web::Data<JobsService>) -> HttpResponse {
    let Some(target) = RequestPath::parse(request.uri().path()) else { return refuse(&StatusError::no_such_path()) };
    let RequestPath { kind, namespace, name, .. } = &target;
    let (namespace, name) = (namespace.as_deref(), name.as_deref());
    // Every log line from here on names the object of the request.
    let span = tracing::error_span!("request", resource = kind.resource(), namespace, name);
    match serve(&request, target, &jobs).instrument(span).await {
        Ok(response) => response,
        Err(failure) => refuse(&failure),
    }
}

/// Returns a refusal as a Kubernetes `Status`.
pub(crate) fn refuse(failure: &StatusError) -> HttpResponse {
    let code = StatusCode::from_u16(failure.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = HttpResponse::build(code);
    if let Some(seconds) = failure.retry_after {
        response.insert_header((RETRY_AFTER, seconds.to_string()));
    }
    response.json(failure.status())
}

impl From<LedgerError> for StatusError {
    fn from(error: LedgerError) -> Self {
        tracing::warn!(%error, "ledger unreadable, request failed");
        Self::unavailable(format!("the operator cannot read its ledger: {error}"))
    }
}

async fn serve(request: &HttpRequest, target: RequestPath, jobs: &JobsService) -> Result<HttpResponse, StatusError> {
    jobs.records.must_be_complete()?;
    let user = request.headers().get("X-Remote-User").and_then(|user| std::str::from_utf8(user.as_bytes()).ok());
    let user = user.unwrap_or("somebody");
    let records = Records { ledger_steps: jobs.records.ledger_steps.of(user), ..jobs.records.clone() };
    if let Some(wanted) = target.action(request.method().as_str())? {
        let (namespace, name) = (target.namespace.unwrap_or_default(), target.name.unwrap_or_default());
        return wish::request_action(jobs, &namespace, &name, wanted, user).await;
    }
    let namespace = target.namespace.as_deref();
    let words = request.uri().query().unwrap_or_default();
    match (target.kind, &target.name) {
        (ObjectKind::Procs, _) => {}
        (ObjectKind::Stories, None) => return Err(StatusError::no_such_path()),
        (ObjectKind::Stories, Some(name)) => {
            let namespace = namespace.unwrap_or_default();
            let accept = request.headers().get(ACCEPT).and_then(|accept| accept.to_str().ok());
            return match target.subresource.as_deref() {
                None => story(jobs, namespace, name, Query::parse(words, accept)?.form).await,
                Some("files") => whole::whole(jobs, user, parent(jobs, namespace, name).await?, words).await,
                Some(_) => Err(StatusError::no_such_path()),
            };
        }
    }
    if let (Some(name), Some(subresource)) = (&target.name, &target.subresource) {
        let find = jobs.find(namespace.unwrap_or_default(), name);
        return match subresource.as_str() {
            "log" => log::log(jobs, user, find.await?, LogQuery::parse(words)?).await,
            "files" => {
                let found = find.await?;
                found.require_feature(JobFeature::Files)?;
                files::files(jobs, user, found, files::FilesQuery::parse(words)?).await
            }
            "analysis" => {
                let found = find.await?;
                found.require_feature(JobFeature::Analysis)?;
                analysis(jobs, user, &found).await
            }
            _ => Err(StatusError::no_such_path()),
        };
    }
    let accept = request.headers().get(ACCEPT).and_then(|accept| accept.to_str().ok());
    let query = Query::parse(words, accept)?;
    match (target.name, target.subresource) {
        (_, Some(_)) => Err(StatusError::no_such_path()),
        (Some(name), None) => get(jobs, namespace.unwrap_or_default(), &name, query.form).await,
        (None, None) => match query.watch {
            Some(watch) => {
                let watching = WatchStream::begin(records, namespace, &query, watch).await?;
                Ok(stream(futures::stream::unfold(watching, WatchStream::next)))
            }
            None => list(records, namespace, query).await,
        },
    }
}

fn stream(parts: impl Stream<Item = Result<Bytes, LedgerError>> + 'static) -> HttpResponse {
    HttpResponse::Ok().content_type("application/json").streaming(in_span(parts))
}

async fn get(jobs: &JobsService, namespace: &str, name: &str, form: Form) -> Result<HttpResponse, StatusError> {
    let version = jobs.records.ledger.sequence();
    let proc = jobs.find(namespace, name).await?.proc;
    Ok(HttpResponse::Ok().json(match form {
        Form::Objects => proc.object(),
        Form::Table(include) => {
            let rows = json!([table::row(&proc, include, now())]);
            table::whole(&rows, &json!({ "resourceVersion": version.to_string() }))
        }
    }))
}

/// Returns the `HTCJob` whose story has this name.
async fn parent(jobs: &JobsService, namespace: &str, name: &str) -> Result<Parent, StatusError> {
    jobs.records.parent(namespace, name).await?.ok_or_else(|| StatusError::no_such(STORIES, name))
}

/// Answers with the story of an `HTCJob`.
async fn story(jobs: &JobsService, namespace: &str, name: &str, form: Form) -> Result<HttpResponse, StatusError> {
    let parent = parent(jobs, namespace, name).await?;
    let rows = jobs.records.ledger.story(parent.uid.clone()).await?;
    Ok(HttpResponse::Ok().json(HTCStory::of(&parent, rows).answer(form)))
}

/// Answers why a job is idle, in HTCondor's words.
async fn analysis(jobs: &JobsService, user: &str, found: &FoundJob) -> Result<HttpResponse, StatusError> {
    let _turn = jobs.limits.analysis(user).await?;
    let schedd = jobs.schedd(&found.parent)?;
    let analysis = schedd.analyze(&found.parent.uid, found.index).await;
    match analysis.map_err(|unknown| StatusError::unavailable(unknown.message))? {
        Some(text) => Ok(HttpResponse::Ok().content_type("text/plain; charset=utf-8").body(text + "\n")),
        None => Err(StatusError::bad_request(format!(
            "only idle jobs are analysed: {} is {}",
            found.proc.name.name(),
            found.proc.status.state
        ))),
    }
}

async fn list(records: Records, namespace: Option<&str>, query: Query) -> Result<HttpResponse, StatusError> {
    let newest = records.ledger.sequence();
    if let Some(from) = &query.from {
        records.must_have_had(from.version)?;
    }
    let version = query.from.as_ref().map_or(newest, |from| from.version);
    let walk = JobPager::new(records, namespace, query.selection, query.from.as_ref()).await?;
    let page =
        Page { walk, form: query.form, left: query.limit, version, last: None, written: 0, begun: false, over: false };
    // The first part decides whether there is an answer at all.
    let (first, page) = page.next().await?;
    let rest = futures::stream::unfold(page, |page| async move {
        if page.over {
            return None;
        }
        match page.next().await {
            Ok((part, page)) => Some((Ok(part), page)),
            Err(error) => {
                tracing::warn!(%error, "ledger unreadable, list cut short");
                None
            }
        }
    });
    let first = futures::stream::iter([Ok::<_, LedgerError>(first)]);
    Ok(stream(futures::StreamExt::chain(first, rest)))
}

/// One answer to a list. Its metadata come last: whether there are more jobs is known at the end.
struct Page {
    walk: JobPager,
    form: Form,
    left: Option<usize>,
    version: i64,
    last: Option<Cursor>,
    written: usize,
    begun: bool,
    over: bool,
}

impl Page {
    /// Returns the next part of the text.
    async fn next(mut self) -> Result<(Bytes, Self), LedgerError> {
        let mut text = if self.begun { String::new() } else { self.head() };
        self.begun = true;
        while !self.over {
            // One job more than requested shows that there are more.
            let most = self.left.map_or(usize::MAX, |left| left.saturating_add(1));
            let Some(procs) = self.walk.next_of(most).await? else {
                self.end(&mut text, None);
                break;
            };
            for proc in &procs {
                if self.left == Some(0) {
                    let token = self.last.as_ref().map(Cursor::token);
                    self.end(&mut text, token);
                    break;
                }
                self.write(&mut text, proc);
            }
            if !text.is_empty() {
                break;
            }
        }
        Ok((Bytes::from(text), self))
    }

    fn head(&self) -> String {
        match self.form {
            Form::Objects => format!(r#"{{"kind":"HTCProcList","apiVersion":"{API_VERSION}","items":["#),
            Form::Table(_) => {
                let columns = table::columns();
                format!(r#"{{"kind":"Table","apiVersion":"meta.k8s.io/v1","columnDefinitions":{columns},"rows":["#)
            }
        }
    }

    fn write(&mut self, text: &mut String, proc: &HTCProc) {
        let object = match self.form {
            Form::Objects => proc.object(),
            Form::Table(include) => table::row(proc, include, now()),
        };
        if self.written > 0 {
            text.push(',');
        }
        text.push_str(&object.to_string());
        self.written += 1;
        self.left = self.left.map(|left| left.saturating_sub(1));
        let ProcName { namespace, htcjob, index, .. } = proc.name.clone();
        self.last = Some(Cursor { namespace, htcjob, index, version: self.version });
    }

    fn end(&mut self, text: &mut String, token: Option<String>) {
        let mut metadata = json!({ "resourceVersion": self.version.to_string() });
        if let Some(token) = token {
            metadata["continue"] = token.into();
        }
        text.push_str("],\"metadata\":");
        text.push_str(&metadata.to_string());
        text.push('}');
        self.over = true;
    }
}
