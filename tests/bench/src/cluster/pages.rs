//! Lists page by page, and watches, as kubectl asks for them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures::{AsyncBufReadExt as _, TryStreamExt as _};
use http::Request;
use http::header::ACCEPT;
use serde_json::Value;

use super::{Cluster, PATIENCE};
use crate::error::{Asking as _, Error, Result};

/// What kubectl accepts.
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";

/// How often it is looked whether a watch is over.
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

    /// Watches from `version` on until it is `over`, and a start was told; how many were.
    pub(crate) fn watch_starts(&self, path: &str, version: &str, over: &AtomicBool) -> Result<usize> {
        let request = Request::get(format!("{path}?watch=1&resourceVersion={version}")).header(ACCEPT, TABLE);
        let request = request.body(Vec::new()).asking("begin a watch")?;
        let mut seen = 0;
        let frames = async {
            let mut lines = self.client.request_stream(request).await.asking("begin a watch")?.lines();
            while seen == 0 || !over.load(Ordering::SeqCst) {
                let Ok(line) = tokio::time::timeout(LOOK, lines.try_next()).await else { continue };
                match line.asking("read a watch")? {
                    Some(line) => seen += usize::from(line.contains("\"MODIFIED\"") && line.contains("\"Running\"")),
                    None => return Err(Error::Unexpected(format!("a watch ended after {seen} starts"))),
                }
            }
            Ok(())
        };
        self.runtime.block_on(async {
            let late = |_| Error::Unexpected("a watch has told of no start in time".to_owned());
            tokio::time::timeout(PATIENCE * 5, frames).await.map_err(late)?
        })?;
        Ok(seen)
    }
}
