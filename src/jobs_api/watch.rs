//! Watches: sends the changes of jobs as they happen.

mod htcjobs;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use actix_web::web::Bytes;
use htc_api::htcproc::{API_VERSION, HTCProc};
use htc_ledger::LedgerError;
use htc_machine::ids::{Index, Uid};
use htc_machine::indices::Indices;
use serde_json::{Value, json};
use tokio::time::Instant;

use self::htcjobs::WatchedHTCJobs;
use super::{Records, now};
use crate::backends::RecordedProc;
use crate::backends::procs::Parent;
use crate::jobs_api::pager::JobPager;
use crate::jobs_api::resource::list::{Form, Query, Watch};
use crate::jobs_api::resource::selection::Selection;
use crate::jobs_api::resource::status_error::StatusError;
use crate::jobs_api::resource::table;

/// Pause between two reads of the ledger.
const PAUSE: Duration = Duration::from_millis(500);
/// Interval between two bookmarks, which give the client a version up to which it has missed nothing.
const BOOKMARK: Duration = Duration::from_secs(60);
/// Maximum time without sending anything, so that a broken connection is noticed.
const SIGN_OF_LIFE: Duration = Duration::from_secs(30);
/// Duration of a watch in seconds whose client does not request one.
const USUAL: u64 = 1800;
/// Maximum number of changes read in one step of the ledger.
const PART: usize = 1000;

/// Reason why jobs of an `HTCJob` are sent.
#[derive(Clone, Debug)]
enum WatchUpdate {
    /// All existing jobs, to a client that requests them first.
    Initial,
    /// The `HTCJob`'s items were counted: sends the jobs that are requested only since then. Contains the jobs that
    /// were requested before.
    ItemsCounted(Indices),
    /// The `HTCJob` was added.
    Added,
    /// The `HTCJob` was deleted. The ledger keeps its rows for a while.
    Deleted(Uid),
    /// The `HTCJob` was cut short: jobs that were not submitted never will be.
    GivenUp,
}

/// A watch.
pub(super) struct WatchStream {
    records: Records,
    selection: Selection,
    form: Form,
    bookmarks: bool,
    /// All changes up to this version have been sent.
    told: i64,
    /// `HTCJob`s whose jobs have been sent.
    htcjobs: WatchedHTCJobs,
    /// Jobs that are in the selection, if jobs can enter and leave it.
    inside: BTreeMap<Uid, BTreeSet<u32>>,
    /// Jobs that were sent with their HTCJob before their change was read: their version, by HTCJob and index.
    ahead: BTreeMap<Uid, BTreeMap<u32, i64>>,
    /// Jobs that are being sent, before anything else. An HTCJob may have 100,000 jobs, so it goes part by part.
    walk: Option<(JobPager, WatchUpdate)>,
    /// `HTCJob`s whose jobs are sent next.
    next: VecDeque<(Parent, WatchUpdate)>,
    /// Jobs whose state has changed since the watch's version, until they are sent: it is not known whether they were
    /// selected then.
    unclear: BTreeMap<Uid, BTreeSet<u32>>,
    columns: bool,
    until: Instant,
    bookmark: Instant,
    heard: Instant,
}

impl WatchStream {
    /// Begins at a version that a list has returned, or with all existing jobs.
    pub(super) async fn begin(
        records: Records,
        namespace: Option<&str>,
        query: &Query,
        watch: Watch,
    ) -> Result<Self, StatusError> {
        let began = records.ledger.sequence();
        if let Some(since) = watch.since {
            records.must_have_had(since)?;
        }
        let selection = query.selection.clone();
        let htcjobs = WatchedHTCJobs::listed(records.clone(), namespace, &selection).await?;
        let (mut next, mut known) = (VecDeque::new(), VecDeque::new());
        if let Some(since) = watch.since {
            htcjobs.must_be_whole_since(since).await?;
            // Other `HTCJob`s are new to a client that knows the state at that version.
            let then = records.ledger.recorded_until(since).await?;
            for parent in htcjobs.parents().cloned() {
                if then.contains(&parent.uid) {
                    known.push_back(parent);
                } else {
                    next.push_back((parent, WatchUpdate::Added));
                }
            }
        }
        let seconds = watch.seconds.unwrap_or(USUAL);
        let mut watching = Self {
            form: query.form,
            bookmarks: watch.bookmarks,
            told: watch.since.unwrap_or(began),
            htcjobs,
            inside: BTreeMap::new(),
            unclear: BTreeMap::new(),
            ahead: BTreeMap::new(),
            walk: None,
            next,
            columns: true,
            until: Instant::now() + Duration::from_secs(seconds),
            bookmark: Instant::now() + BOOKMARK,
            heard: Instant::now(),
            selection,
            records,
        };
        if watch.since.is_none() {
            let all = watching.htcjobs.parents().cloned().collect();
            let walk = JobPager::through(watching.records.clone(), all, watching.selection.clone());
            watching.walk = Some((walk, WatchUpdate::Initial));
        } else if watching.selection.can_change() {
            let walk = JobPager::through(watching.records.clone(), known, watching.selection.at_any_time());
            watching.remember(walk).await?;
        }
        Ok(watching)
    }

    /// Records which jobs were in the selection at the watch's version, and for which that is not known.
    async fn remember(&mut self, mut walk: JobPager) -> Result<(), StatusError> {
        while let Some(procs) = walk.next().await? {
            for proc in procs {
                if proc.name.stated > self.told {
                    let uid = Uid::from(proc.name.htcjob_uid.as_str());
                    self.unclear.entry(uid).or_default().insert(proc.spec.index);
                } else if self.selection.matches(&proc) {
                    self.enter(&proc);
                }
            }
        }
        // A job without a row was recorded with its present state.
        self.htcjobs.check_unchanged_since(self.told).await
    }

    /// Returns the next frames; `None` at the end.
    pub(super) async fn next(mut self) -> Option<(Result<Bytes, LedgerError>, Self)> {
        loop {
            let text = match self.step().await {
                Ok(text) => text,
                Err(error) => {
                    tracing::warn!(%error, "ledger unreadable, watch ended");
                    return None;
                }
            };
            let quiet = text.is_empty() && self.heard.elapsed() >= SIGN_OF_LIFE;
            if quiet || !text.is_empty() {
                self.heard = Instant::now();
                let text = if quiet { "\n".to_owned() } else { text };
                return Some((Ok(Bytes::from(text)), self));
            }
            if Instant::now() >= self.until {
                return None;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn step(&mut self) -> Result<String, LedgerError> {
        let mut text = String::new();
        self.tell_next(&mut text).await?;
        if !text.is_empty() {
            return Ok(text);
        }
        // A later release is sent with a later version.
        let newest = self.records.ledger.sequence();
        let since = (newest > self.told).then_some(self.told);
        self.next.extend(self.htcjobs.look(since).await?);
        // The watch's version stays until all of that is sent. A client that continues from there gets all of it once
        // more.
        self.tell_next(&mut text).await?;
        if self.is_telling() {
            return Ok(text);
        }
        self.tell_changes(&mut text, newest).await?;
        if text.is_empty() && self.bookmarks && Instant::now() >= self.bookmark {
            self.bookmark = Instant::now() + BOOKMARK;
            let object = json!({
                "kind": "HTCProc",
                "apiVersion": API_VERSION,
                "metadata": { "resourceVersion": self.told.to_string() },
            });
            push(&mut text, "BOOKMARK", &object);
        }
        Ok(text)
    }

    fn is_telling(&self) -> bool {
        self.walk.is_some() || !self.next.is_empty()
    }

    /// Sends the next part of what comes before any change, if there is something.
    async fn tell_next(&mut self, text: &mut String) -> Result<(), LedgerError> {
        while text.is_empty() {
            let begin = |(parent, tell)| (JobPager::of(self.records.clone(), parent), tell);
            let Some((mut walk, tell)) = self.walk.take().or_else(|| self.next.pop_front().map(begin)) else {
                return Ok(());
            };
            match (walk.next().await?, &tell) {
                (Some(procs), _) => {
                    for proc in procs {
                        self.tell(text, proc, &tell);
                    }
                    self.walk = Some((walk, tell));
                }
                (None, WatchUpdate::Deleted(uid)) => {
                    self.inside.remove(uid);
                    self.unclear.remove(uid);
                }
                (None, _) => {}
            }
        }
        Ok(())
    }

    /// Sends one job of a part, if it is to be sent.
    fn tell(&mut self, text: &mut String, proc: HTCProc, tell: &WatchUpdate) {
        let uid = Uid::from(proc.name.htcjob_uid.as_str());
        let index = proc.spec.index;
        // A pager through one HTCJob returns all of its jobs.
        let has = |jobs: &BTreeMap<Uid, BTreeSet<u32>>| jobs.get(&uid).is_some_and(|jobs| jobs.contains(&index));
        let ours = self.selection.matches(&proc) || has(&self.inside) || has(&self.unclear);
        match tell {
            WatchUpdate::Initial => {
                self.enter(&proc);
                self.write(text, "ADDED", &proc);
            }
            WatchUpdate::GivenUp => {
                if proc.status.id.is_none() {
                    self.tell_one(text, proc);
                }
            }
            _ if !ours => {}
            WatchUpdate::ItemsCounted(before) => {
                if proc.status.id.is_none() && !before.contains(Index(index)) {
                    self.enter(&proc);
                    self.frame(text, "ADDED", proc);
                }
            }
            WatchUpdate::Added => {
                self.enter(&proc);
                if proc.name.version > self.told {
                    self.ahead.entry(uid).or_default().insert(index, proc.name.version);
                }
                self.frame(text, "ADDED", proc);
            }
            WatchUpdate::Deleted(_) => {
                let unclear = self.clear(&proc);
                if self.leave(&proc) || unclear {
                    self.frame(text, "DELETED", proc);
                }
            }
        }
    }

    /// Sends the changes up to that version.
    async fn tell_changes(&mut self, text: &mut String, newest: i64) -> Result<(), LedgerError> {
        while newest > self.told {
            let (changed, until) = RecordedProc::changed_since(&self.records.ledger, self.told, newest, PART).await?;
            let mut procs = self.wished(until).await?;
            for of_one in changed.chunk_by(|(one, _), (other, _)| one == other) {
                for part in of_one.chunks(PART) {
                    procs.extend(self.recorded(part).await?);
                }
            }
            procs.sort_by_key(|proc| proc.name.version);
            let mut procs = procs.into_iter().peekable();
            while let Some(proc) = procs.next() {
                let version = proc.name.version;
                // A client that continues from there must miss none of the jobs that one transaction has changed.
                if procs.peek().is_none_or(|next| next.name.version > version) {
                    self.told = version;
                }
                if !self.was_told_ahead(&proc) {
                    self.tell_one(text, proc);
                }
            }
            self.told = until;
            self.ahead.retain(|_, jobs| {
                jobs.retain(|_, version| *version > until);
                !jobs.is_empty()
            });
            if text.len() > 1 << 20 {
                break;
            }
        }
        Ok(())
    }

    /// Returns jobs that are not recorded and have a requested action, of the versions up to `until`.
    async fn wished(&self, until: i64) -> Result<Vec<HTCProc>, LedgerError> {
        let mut all = Vec::new();
        for (uid, index, wish) in self.records.ledger.actions_changed(self.told, until).await? {
            let given_up = self.htcjobs.has_given_up(&uid);
            let Some(parent) = self.htcjobs.get(&uid).filter(|parent| parent.asked_for.contains(index)) else {
                continue;
            };
            let mut procs = vec![crate::backends::procs::not_recorded(parent, index, given_up, Some(&wish))];
            self.records.add_items(parent, &mut procs).await?;
            all.extend(procs);
        }
        Ok(all)
    }

    /// Returns the changed jobs of one `HTCJob`.
    async fn recorded(&self, changed: &[(Uid, RecordedProc)]) -> Result<Vec<HTCProc>, LedgerError> {
        let Some(parent) = changed.first().and_then(|(uid, _)| self.htcjobs.get(uid)) else { return Ok(Vec::new()) };
        let mut procs: Vec<HTCProc> = changed.iter().map(|(_, row)| row.proc(parent, now())).collect();
        self.records.add_items(parent, &mut procs).await?;
        Ok(procs)
    }

    /// Sends one job that has changed.
    fn tell_one(&mut self, text: &mut String, proc: HTCProc) {
        let matches = self.selection.matches(&proc);
        if !self.selection.can_change() {
            if matches {
                self.frame(text, "MODIFIED", proc);
            }
            return;
        }
        let unclear = self.clear(&proc);
        match (matches, if matches { !self.enter(&proc) } else { self.leave(&proc) }) {
            (true, true) => self.frame(text, "MODIFIED", proc),
            (true, false) => self.frame(text, "ADDED", proc),
            (false, true) => self.frame(text, "DELETED", proc),
            (false, false) if unclear => self.frame(text, "DELETED", proc),
            (false, false) => {}
        }
    }

    /// Adds the job to the selection. Returns whether it was outside until now.
    fn enter(&mut self, proc: &HTCProc) -> bool {
        !self.selection.can_change()
            || self.inside.entry(Uid::from(proc.name.htcjob_uid.as_str())).or_default().insert(proc.spec.index)
    }

    /// Removes the job from the selection. Returns whether it was inside until now.
    fn leave(&mut self, proc: &HTCProc) -> bool {
        !self.selection.can_change()
            || self
                .inside
                .get_mut(&Uid::from(proc.name.htcjob_uid.as_str()))
                .is_some_and(|inside| inside.remove(&proc.spec.index))
    }

    /// Returns whether it was unknown until now if the job was in the selection at the watch's version.
    fn clear(&mut self, proc: &HTCProc) -> bool {
        let jobs = self.unclear.get_mut(&Uid::from(proc.name.htcjob_uid.as_str()));
        jobs.is_some_and(|jobs| jobs.remove(&proc.spec.index))
    }

    /// Returns whether this change was sent with the job's `HTCJob`.
    fn was_told_ahead(&mut self, proc: &HTCProc) -> bool {
        let jobs = self.ahead.get_mut(&Uid::from(proc.name.htcjob_uid.as_str()));
        let Some(jobs) = jobs.filter(|jobs| jobs.get(&proc.spec.index) == Some(&proc.name.version)) else {
            return false;
        };
        jobs.remove(&proc.spec.index).is_some()
    }

    /// Writes a frame. Its version is one from which another watch can continue.
    fn frame(&mut self, text: &mut String, kind: &str, mut proc: HTCProc) {
        proc.name.version = self.told;
        self.write(text, kind, &proc);
    }

    fn write(&mut self, text: &mut String, kind: &str, proc: &HTCProc) {
        let object = match self.form {
            Form::Objects => proc.object(),
            Form::Table(include) => {
                let rows = json!([table::row(proc, include, now())]);
                let mut object = table::whole(&rows, &json!({ "resourceVersion": proc.name.version.to_string() }));
                if !std::mem::take(&mut self.columns) {
                    object["columnDefinitions"] = Value::Null;
                }
                object
            }
        };
        push(text, kind, &object);
    }
}

fn push(text: &mut String, kind: &str, object: &Value) {
    text.push_str(&json!({ "type": kind, "object": object }).to_string());
    text.push('\n');
}

#[cfg(test)]
mod tests;
