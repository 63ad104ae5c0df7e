//! What has changed, and goes on changing.

mod htcjobs;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use actix_web::web::Bytes;
use serde_json::{Value, json};
use tokio::time::Instant;

use self::htcjobs::HTCJobs;
use super::walk::Walk;
use super::{Records, now};
use crate::backends::Row;
use crate::ledger::LedgerError;
use crate::machine::ids::{Index, Uid};
use crate::machine::indices::Indices;
use crate::procs::answer::Failure;
use crate::procs::list::{Form, Query, Watch};
use crate::procs::selection::Selection;
use crate::procs::{API_VERSION, HTCProc, Parent, table};

/// Pause between two looks at the ledger.
const PAUSE: Duration = Duration::from_millis(500);
/// How often who wants to know is told up to which version nothing has been missed.
const BOOKMARK: Duration = Duration::from_secs(60);
/// How often something is sent at least, so that a connection on which nothing comes is known to be broken.
const SIGN_OF_LIFE: Duration = Duration::from_secs(30);
/// How long a watch lasts whose client does not say.
const USUAL: u64 = 1800;
/// Most changes that are read in one step of the ledger.
const PART: usize = 1000;

/// What is told of the jobs that a walk comes by.
#[derive(Clone, Debug)]
enum Tell {
    /// All that there is, to who asks for that first.
    First,
    /// Those that are asked for since the `HTCJob`'s items were counted, and were not asked for before.
    More(Indices),
    /// The `HTCJob` has come.
    Come,
    /// It has gone. The ledger keeps its rows for a while.
    Gone(Uid),
    /// It was cut short: what was not submitted never will be.
    GivenUp,
}

/// A watch.
pub(super) struct Watching {
    records: Records,
    selection: Selection,
    form: Form,
    bookmarks: bool,
    /// All changes up to this version are told.
    told: i64,
    /// The `HTCJob`s whose jobs were told.
    htcjobs: HTCJobs,
    /// Of a selection that jobs come into and leave: those that are in it.
    inside: BTreeMap<Uid, BTreeSet<u32>>,
    /// By HTCJob and index, the version of jobs that were told with their HTCJob, and whose change is still to come.
    ahead: BTreeMap<Uid, BTreeMap<u32, i64>>,
    /// What is told at the moment, before anything else: a part of the walk at a step, for an HTCJob may have 100,000 jobs.
    walk: Option<(Walk, Tell)>,
    /// `HTCJob`s of which that is told next.
    next: VecDeque<(Parent, Tell)>,
    /// Those whose state has changed since the watch's version, until they are told: it is not known whether they were selected then.
    unclear: BTreeMap<Uid, BTreeSet<u32>>,
    columns: bool,
    until: Instant,
    bookmark: Instant,
    heard: Instant,
}

impl Watching {
    /// From a version on, which a list has given; or from all that there is.
    pub(super) async fn begin(
        records: Records,
        namespace: Option<&str>,
        query: &Query,
        watch: Watch,
    ) -> Result<Self, Failure> {
        let began = records.ledger.sequence();
        if let Some(since) = watch.since {
            records.must_have_had(since)?;
        }
        let selection = query.selection.clone();
        let htcjobs = HTCJobs::listed(records.clone(), namespace, &selection).await?;
        let (mut next, mut known) = (VecDeque::new(), VecDeque::new());
        if let Some(since) = watch.since {
            htcjobs.must_be_whole_since(since).await?;
            // The others are new to who knows what there was then.
            let then = records.ledger.recorded_until(since).await?;
            for parent in htcjobs.parents().cloned() {
                if then.contains(&parent.uid) { known.push_back(parent) } else { next.push_back((parent, Tell::Come)) }
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
            let walk = Walk::through(watching.records.clone(), all, watching.selection.clone());
            watching.walk = Some((walk, Tell::First));
        } else if watching.selection.can_change() {
            let walk = Walk::through(watching.records.clone(), known, watching.selection.at_any_time());
            watching.remember(walk).await?;
        }
        Ok(watching)
    }

    /// Which were in the selection when the watch's version was, and of which that is not known.
    async fn remember(&mut self, mut walk: Walk) -> Result<(), Failure> {
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
        // A job without a row was remembered as it is since then.
        self.htcjobs.must_be_unchanged_as_a_whole_since(self.told).await
    }

    /// The next frames; none at the end.
    pub(super) async fn next(mut self) -> Option<(Result<Bytes, LedgerError>, Self)> {
        loop {
            let text = match self.step().await {
                Ok(text) => text,
                Err(error) => {
                    tracing::warn!(%error, "a watch of jobs ends: the ledger cannot be read");
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
        // What is let go after that is told with a later version.
        let newest = self.records.ledger.sequence();
        let since = (newest > self.told).then_some(self.told);
        self.next.extend(self.htcjobs.look(since).await?);
        // The watch's version stays where it is until all of that is told: who goes on from there is told all of it once more.
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

    /// The next part of what is to be told before any change, if there is something.
    async fn tell_next(&mut self, text: &mut String) -> Result<(), LedgerError> {
        while text.is_empty() {
            let begin = |(parent, tell)| (Walk::of(self.records.clone(), parent), tell);
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
                (None, Tell::Gone(uid)) => {
                    self.inside.remove(uid);
                    self.unclear.remove(uid);
                }
                (None, _) => {}
            }
        }
        Ok(())
    }

    /// Tells of one job that a walk has come by.
    fn tell(&mut self, text: &mut String, proc: HTCProc, tell: &Tell) {
        let uid = Uid::from(proc.name.htcjob_uid.as_str());
        let index = proc.spec.index;
        // A walk through one HTCJob comes by all of its jobs.
        let has = |jobs: &BTreeMap<Uid, BTreeSet<u32>>| jobs.get(&uid).is_some_and(|jobs| jobs.contains(&index));
        let ours = self.selection.matches(&proc) || has(&self.inside) || has(&self.unclear);
        match tell {
            Tell::First => {
                self.enter(&proc);
                self.write(text, "ADDED", &proc);
            }
            Tell::GivenUp => {
                if proc.status.id.is_none() {
                    self.tell_one(text, proc);
                }
            }
            _ if !ours => {}
            Tell::More(before) => {
                if proc.status.id.is_none() && !before.contains(Index(index)) {
                    self.enter(&proc);
                    self.frame(text, "ADDED", proc);
                }
            }
            Tell::Come => {
                self.enter(&proc);
                if proc.name.version > self.told {
                    self.ahead.entry(uid).or_default().insert(index, proc.name.version);
                }
                self.frame(text, "ADDED", proc);
            }
            Tell::Gone(_) => {
                let unclear = self.clear(&proc);
                if self.leave(&proc) || unclear {
                    self.frame(text, "DELETED", proc);
                }
            }
        }
    }

    /// Up to that version.
    async fn tell_changes(&mut self, text: &mut String, newest: i64) -> Result<(), LedgerError> {
        while newest > self.told {
            let (changed, until) = Row::changed(&self.records.ledger, self.told, newest, PART).await?;
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
                // Who goes on from there misses none of those that one transaction has changed.
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

    /// Jobs that are not recorded and of which users want something, of the versions up to `until`.
    async fn wished(&self, until: i64) -> Result<Vec<HTCProc>, LedgerError> {
        let mut all = Vec::new();
        for (uid, index, wish) in self.records.ledger.wishes_changed(self.told, until).await? {
            let given_up = self.htcjobs.has_given_up(&uid);
            let Some(parent) = self.htcjobs.get(&uid).filter(|parent| parent.asked_for.contains(index)) else {
                continue;
            };
            let mut procs = vec![HTCProc::not_recorded(parent, index, given_up, Some(&wish))];
            self.records.add_items(parent, &mut procs).await?;
            all.extend(procs);
        }
        Ok(all)
    }

    /// Jobs of one `HTCJob`.
    async fn recorded(&self, changed: &[(Uid, Row)]) -> Result<Vec<HTCProc>, LedgerError> {
        let Some(parent) = changed.first().and_then(|(uid, _)| self.htcjobs.get(uid)) else { return Ok(Vec::new()) };
        let mut procs: Vec<HTCProc> = changed.iter().map(|(_, row)| row.proc(parent, now())).collect();
        self.records.add_items(parent, &mut procs).await?;
        Ok(procs)
    }

    /// Tells of one job that has changed.
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

    /// Whether it was outside of the selection until now.
    fn enter(&mut self, proc: &HTCProc) -> bool {
        !self.selection.can_change()
            || self.inside.entry(Uid::from(proc.name.htcjob_uid.as_str())).or_default().insert(proc.spec.index)
    }

    /// Whether it was inside of the selection until now.
    fn leave(&mut self, proc: &HTCProc) -> bool {
        !self.selection.can_change()
            || self
                .inside
                .get_mut(&Uid::from(proc.name.htcjob_uid.as_str()))
                .is_some_and(|inside| inside.remove(&proc.spec.index))
    }

    /// Whether it was not known until now if it was in the selection when the watch's version was.
    fn clear(&mut self, proc: &HTCProc) -> bool {
        let jobs = self.unclear.get_mut(&Uid::from(proc.name.htcjob_uid.as_str()));
        jobs.is_some_and(|jobs| jobs.remove(&proc.spec.index))
    }

    /// Whether this change of a job was told with its `HTCJob`.
    fn was_told_ahead(&mut self, proc: &HTCProc) -> bool {
        let jobs = self.ahead.get_mut(&Uid::from(proc.name.htcjob_uid.as_str()));
        let Some(jobs) = jobs.filter(|jobs| jobs.get(&proc.spec.index) == Some(&proc.name.version)) else {
            return false;
        };
        jobs.remove(&proc.spec.index).is_some()
    }

    /// Its version is the one from which another watch can go on.
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
