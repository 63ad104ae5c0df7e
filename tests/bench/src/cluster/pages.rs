//! Lists page by page, and watches, as kubectl asks for them.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use futures::{AsyncBufReadExt as _, TryStreamExt as _};
use http::Request;
use http::header::ACCEPT;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::Value;

use super::{Cluster, PATIENCE};
use crate::error::{Asking as _, Error, Result};

/// What kubectl accepts.
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";

/// How often at least it is looked whether a watch is over.
const LOOK: Duration = Duration::from_millis(200);

/// A list.
pub(crate) struct Pages {
    /// Rows of all pages.
    pub(crate) rows: usize,
    /// Seconds from each request to its whole answer.
    pub(crate) took: Vec<f64>,
}

impl Cluster {
    /// Asks for all pages of a list, one after the other.
    pub(crate) fn pages(&self, path: &str, limit: usize) -> Result<Pages> {
        let mut pages = Pages { rows: 0, took: Vec::new() };
        let sign = if path.contains('?') { '&' } else { '?' };
        let mut token = String::new();
        loop {
            let request = Request::get(format!("{path}{sign}limit={limit}&continue={token}")).header(ACCEPT, TABLE);
            let request = request.body(Vec::new()).asking("ask for a list")?;
            let began = Instant::now();
            let text = self.runtime.block_on(self.client.request_text(request)).asking("ask for a list")?;
            pages.took.push(began.elapsed().as_secs_f64());
            let table: Value = serde_json::from_str(&text).asking("read a list")?;
            pages.rows += table["rows"].as_array().map_or(0, Vec::len);
            match table["metadata"]["continue"].as_str().filter(|token| !token.is_empty()) {
                Some(next) => next.clone_into(&mut token),
                None => return Ok(pages),
            }
        }
    }

    /// Begins a watch, and ends it when it has told of so many objects.
    pub(crate) fn watch_all(&self, path: &str, wanted: usize) -> Result<()> {
        let request = Request::get(format!("{path}?watch=1")).header(ACCEPT, TABLE).body(Vec::new());
        let request = request.asking("begin a watch")?;
        let frames = async {
            let mut lines = self.client.request_stream(request).await.asking("begin a watch")?.lines();
            let mut seen = 0;
            while seen < wanted {
                match lines.try_next().await.asking("read a watch")? {
                    Some(line) => seen += usize::from(line.contains("\"ADDED\"")),
                    None => return Err(Error::Unexpected(format!("a watch ended after {seen} of {wanted} objects"))),
                }
            }
            Ok(())
        };
        self.runtime.block_on(async {
            let late = |_| Error::Unexpected(format!("a watch has not told of {wanted} objects in time"));
            tokio::time::timeout(PATIENCE * 5, frames).await.map_err(late)?
        })
    }

    /// Where a watch may begin that tells only of what changes from now on.
    pub(crate) fn version(&self, path: &str) -> Result<String> {
        let request = Request::get(format!("{path}?limit=1")).body(Vec::new()).asking("ask for a list")?;
        let text = self.runtime.block_on(self.client.request_text(request)).asking("ask for a list")?;
        let list: Value = serde_json::from_str(&text).asking("read a list")?;
        let version = list["metadata"]["resourceVersion"].as_str();
        version.map(str::to_owned).ok_or_else(|| Error::Unexpected("a list has no resourceVersion".to_owned()))
    }

    /// Watches from `version` on, as a program does that wants whole objects, until `changes` are over.
    pub(crate) fn watch_changes(&self, path: &str, version: &str, changes: &Changes) -> Result<()> {
        let request = Request::get(format!("{path}?watch=1&resourceVersion={version}")).body(Vec::new());
        let request = request.asking("begin a watch")?;
        self.runtime.block_on(async {
            let mut lines = self.client.request_stream(request).await.asking("begin a watch")?.lines();
            while !changes.over.load(Ordering::SeqCst) {
                let Ok(line) = tokio::time::timeout(LOOK, lines.try_next()).await else { continue };
                let Some(line) = line.asking("read a watch")? else {
                    return Err(Error::Unexpected("a watch ended before it was over".to_owned()));
                };
                changes.told(&serde_json::from_str(&line).asking("read a watch")?);
            }
            Ok(())
        })
    }
}

/// What a watch has told so far of jobs that start and end.
#[derive(Default)]
pub(crate) struct Changes {
    over: AtomicBool,
    told: Mutex<Told>,
}

#[derive(Default)]
struct Told {
    started: HashSet<String>,
    ended: HashSet<String>,
    delays: Vec<f64>,
}

impl Changes {
    /// Ends the watch.
    pub(crate) fn end(&self) {
        self.over.store(true, Ordering::SeqCst);
    }

    fn all(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn told(&self, frame: &Value) {
        let now = SystemTime::now();
        let (name, status) = (frame["object"]["metadata"]["name"].as_str(), &frame["object"]["status"]);
        let Some(name) = name.map(str::to_owned) else { return };
        let mut told = self.all();
        match status["state"].as_str() {
            Some("Running") => drop(told.started.insert(name)),
            Some("Succeeded") => {
                // One that was not seen running did.
                told.started.insert(name.clone());
                let at = serde_json::from_value::<Time>(status["completionTime"].clone()).ok();
                let at = at.and_then(|at| u64::try_from(at.0.as_second()).ok()).map(Duration::from_secs);
                // Its further frames are about its output.
                if let (true, Some(at)) = (told.ended.insert(name), at) {
                    let delay = now.duration_since(SystemTime::UNIX_EPOCH + at).unwrap_or_default();
                    told.delays.push(delay.as_secs_f64());
                }
            }
            _ => {}
        }
    }

    /// How many jobs have started.
    pub(crate) fn starts(&self) -> usize {
        self.all().started.len()
    }

    /// How many have ended.
    pub(crate) fn ends(&self) -> usize {
        self.all().delays.len()
    }

    /// Seconds from each end to its frame, but for the first so many ends, in order. HTCondor tells an end's whole second, so that each is up
    /// to one too long.
    pub(crate) fn delays(&self, but: usize) -> Vec<f64> {
        let mut delays: Vec<f64> = self.all().delays.iter().skip(but).copied().collect();
        delays.sort_by(f64::total_cmp);
        delays
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_start_and_end_is_counted_once() {
        let changes = Changes::default();
        let frame = |name: &str, state: &str| {
            let status = serde_json::json!({ "state": state, "completionTime": "2026-01-02T03:04:05Z" });
            serde_json::json!({ "type": "MODIFIED", "object": { "metadata": { "name": name }, "status": status } })
        };
        for (name, state) in [
            ("a-0", "Running"),
            ("a-0", "Running"),
            ("a-1", "Idle"),
            ("a-0", "Succeeded"),
            ("a-0", "Succeeded"),
            ("a-2", "Succeeded"),
        ] {
            changes.told(&frame(name, state));
        }
        assert_eq!((changes.starts(), changes.ends(), changes.delays(1).len()), (2, 2, 1));
        assert!(changes.delays(0)[0] > 3600.0, "it ended long ago");
    }
}
