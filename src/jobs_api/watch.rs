//! What has changed, and goes on changing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use actix_web::web::Bytes;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::serve::table;
use super::walk::Walk;
use super::{Jobs, now};
use crate::ledger::{LedgerError, ProcRow, RunRow};
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

/// A watch.
pub(super) struct Watching {
    jobs: Jobs,
    namespace: Option<String>,
    selection: Selection,
    form: Form,
    bookmarks: bool,
    /// All changes up to this version are told.
    told: i64,
    /// The `HTCJob`s whose jobs were told.
    parents: BTreeMap<Uid, Parent>,
    /// Those of which it was told that what is not recorded was given up.
    given_up: BTreeSet<Uid>,
    /// Of a selection that jobs come into and leave: those that are in it.
    inside: BTreeMap<Uid, BTreeSet<u32>>,
    /// HTCJob, index and version of jobs that were told with their HTCJob, and whose change is still to come.
    ahead: BTreeSet<(String, u32, i64)>,
    /// What is to be told before anything else.
    first: Option<Walk>,
    /// Changes up to this version were made before the watch began: whether a job was in the selection before them is not known.
    began: i64,
    columns: bool,
    until: Instant,
    bookmark: Instant,
    heard: Instant,
}

impl Watching {
    /// From a version on, which a list has given; or from all that there is.
    pub(super) async fn begin(
        jobs: Jobs,
        namespace: Option<&str>,
        query: &Query,
        watch: Watch,
    ) -> Result<Self, Failure> {
        let began = jobs.ledger.sequence();
        if watch.since.is_some_and(|since| since > began) {
            return Err(Failure::expired("the version is not of this operator's ledger: list again"));
        }
        let selection = query.selection.clone();
        let mut parents = jobs.parents(namespace, &selection).await?;
        if let Some(since) = watch.since {
            if jobs.ledger.let_go_since(namespace.map(str::to_owned), since).await? {
                return Err(Failure::expired("HTCJobs have gone since that version: list again"));
            }
            // The others are new to who knows what there was then.
            let then = jobs.ledger.recorded_until(since).await?;
            parents.retain(|parent| then.contains(&parent.uid));
        }
        let seconds = watch.seconds.unwrap_or(USUAL);
        let mut watching = Self {
            namespace: namespace.map(str::to_owned),
            form: query.form,
            bookmarks: watch.bookmarks,
            told: watch.since.unwrap_or(began),
            parents: parents.into_iter().map(|parent| (parent.uid.clone(), parent)).collect(),
            given_up: jobs.ledger.given_up().await?,
            inside: BTreeMap::new(),
            ahead: BTreeSet::new(),
            first: None,
            began,
            columns: true,
            until: Instant::now() + Duration::from_secs(seconds),
            bookmark: Instant::now() + BOOKMARK,
            heard: Instant::now(),
            selection,
            jobs,
        };
        let walk = Walk::new(watching.jobs.clone(), namespace, watching.selection.clone(), None).await?;
        if watch.since.is_none() {
            watching.first = Some(walk);
        } else if watching.selection.can_change() {
            watching.remember(walk).await?;
        }
        Ok(watching)
    }

    /// Those that are in the selection, and were so when the watch's version was.
    async fn remember(&mut self, mut walk: Walk) -> Result<(), LedgerError> {
        while let Some(procs) = walk.next().await? {
            let told = self.told;
            for proc in procs.iter().filter(|proc| proc.name.version <= told) {
                self.enter(proc);
            }
        }
        Ok(())
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
        if let Some(mut walk) = self.first.take()
            && let Some(procs) = walk.next().await?
        {
            self.first = Some(walk);
            for proc in &procs {
                self.enter(proc);
                self.write(&mut text, "ADDED", proc);
            }
            return Ok(text);
        }
        // What is let go after that is told with a later version.
        let newest = self.jobs.ledger.sequence();
        self.tell_parents(&mut text).await?;
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

    /// `HTCJob`s that have come and gone.
    async fn tell_parents(&mut self, text: &mut String) -> Result<(), LedgerError> {
        let now: BTreeMap<Uid, Parent> = self
            .jobs
            .parents(self.namespace.as_deref(), &self.selection)
            .await?
            .into_iter()
            .map(|parent| (parent.uid.clone(), parent))
            .collect();
        let (new, gone): (Vec<Parent>, Vec<Parent>) = (
            now.iter().filter(|(uid, _)| !self.parents.contains_key(*uid)).map(|(_, parent)| parent.clone()).collect(),
            self.parents.iter().filter(|(uid, _)| !now.contains_key(*uid)).map(|(_, parent)| parent.clone()).collect(),
        );
        // How many items a ConfigMap has is known a little later than the HTCJob.
        let more: Vec<(Parent, Indices)> = now
            .iter()
            .filter_map(|(uid, parent)| Some((parent, &self.parents.get(uid)?.asked_for)))
            .filter(|(parent, before)| parent.asked_for != **before)
            .map(|(parent, before)| (parent.clone(), before.clone()))
            .collect();
        self.parents = now;
        for (parent, before) in more {
            let waits = |proc: &HTCProc| proc.status.id.is_none() && !before.contains(Index(proc.spec.index));
            for proc in self.all_of(&parent).await?.into_iter().filter(waits) {
                self.enter(&proc);
                self.frame(text, "ADDED", proc);
            }
        }
        for parent in gone {
            // The ledger keeps its rows for a while.
            for proc in self.all_of(&parent).await? {
                if self.leave(&proc) {
                    self.frame(text, "DELETED", proc);
                }
            }
            self.inside.remove(&parent.uid);
        }
        for parent in new {
            for proc in self.all_of(&parent).await? {
                self.enter(&proc);
                if proc.name.version > self.told {
                    self.ahead.insert(change(&proc));
                }
                self.frame(text, "ADDED", proc);
            }
        }
        Ok(())
    }

    /// All jobs of an object that are, or were, in the selection.
    async fn all_of(&self, parent: &Parent) -> Result<Vec<HTCProc>, LedgerError> {
        let mut walk = Walk::of(self.jobs.clone(), parent.clone());
        let mut all = Vec::new();
        while let Some(procs) = walk.next().await? {
            let was =
                |proc: &HTCProc| self.inside.get(&parent.uid).is_some_and(|inside| inside.contains(&proc.spec.index));
            all.extend(procs.into_iter().filter(|proc| self.selection.matches(proc) || was(proc)));
        }
        Ok(all)
    }

    /// Up to that version.
    async fn tell_changes(&mut self, text: &mut String, newest: i64) -> Result<(), LedgerError> {
        while newest > self.told {
            let mut changed = self.jobs.ledger.procs_changed(self.told, PART).await?;
            let mut runs = self.jobs.ledger.runs_changed(self.told, PART).await?;
            let last = changed.last().map(|(_, row)| row.changed).filter(|_| changed.len() >= PART);
            let last_run = runs.last().map(|(_, row)| row.changed).filter(|_| runs.len() >= PART);
            let until = [last, last_run].into_iter().flatten().fold(newest, i64::min);
            // What has changed since then would be told twice.
            changed.retain(|(_, row)| row.changed <= until);
            runs.retain(|(_, row)| row.changed <= until);
            self.tell_given_up(text).await?;
            let mut procs = self.wished(until).await?;
            for of_one in changed.chunk_by(|(one, _), (other, _)| one == other) {
                for part in of_one.chunks(PART) {
                    procs.extend(self.recorded(part).await?);
                }
            }
            for of_one in runs.chunk_by(|(one, _), (other, _)| one == other) {
                procs.extend(self.of_pods(of_one).await?);
            }
            procs.sort_by_key(|proc| proc.name.version);
            let mut procs = procs.into_iter().peekable();
            while let Some(proc) = procs.next() {
                let version = proc.name.version;
                // Who goes on from there misses none of those that one transaction has changed.
                if procs.peek().is_none_or(|next| next.name.version > version) {
                    self.told = version;
                }
                if !self.ahead.remove(&change(&proc)) {
                    self.tell_one(text, proc, version <= self.began);
                }
            }
            self.told = until;
            self.ahead.retain(|(_, _, version)| *version > until);
            if text.len() > 1 << 20 {
                break;
            }
        }
        Ok(())
    }

    /// `HTCJob`s that were cut short: what was not submitted never will be.
    async fn tell_given_up(&mut self, text: &mut String) -> Result<(), LedgerError> {
        let now = self.jobs.ledger.given_up().await?;
        let before = std::mem::replace(&mut self.given_up, now.clone());
        let new: Vec<Parent> = now.difference(&before).filter_map(|uid| self.parents.get(uid)).cloned().collect();
        for parent in new {
            let mut walk = Walk::of(self.jobs.clone(), parent);
            while let Some(procs) = walk.next().await? {
                for proc in procs.into_iter().filter(|proc| proc.status.id.is_none()) {
                    self.tell_one(text, proc, false);
                }
            }
        }
        Ok(())
    }

    /// Jobs that are not recorded and of which users want something, of the versions up to `until`.
    async fn wished(&self, until: i64) -> Result<Vec<HTCProc>, LedgerError> {
        let mut all = Vec::new();
        for (uid, index, wish) in self.jobs.ledger.wishes_changed(self.told, until).await? {
            let given_up = self.given_up.contains(&uid);
            let Some(parent) = self.parents.get(&uid).filter(|parent| parent.asked_for.contains(index)) else {
                continue;
            };
            let mut procs = vec![HTCProc::not_recorded(parent, index, given_up, Some(&wish))];
            self.jobs.add_items(parent, &mut procs).await?;
            all.extend(procs);
        }
        Ok(all)
    }

    /// Jobs of one `HTCJob`.
    async fn recorded(&self, changed: &[(Uid, ProcRow)]) -> Result<Vec<HTCProc>, LedgerError> {
        let Some(parent) = changed.first().and_then(|(uid, _)| self.parents.get(uid)) else { return Ok(Vec::new()) };
        let mut procs: Vec<HTCProc> = changed.iter().map(|(_, row)| HTCProc::recorded(parent, row, now())).collect();
        self.jobs.add_items(parent, &mut procs).await?;
        Ok(procs)
    }

    /// The same of one whose jobs are Pods.
    async fn of_pods(&self, changed: &[(Uid, RunRow)]) -> Result<Vec<HTCProc>, LedgerError> {
        let Some(parent) = changed.first().and_then(|(uid, _)| self.parents.get(uid)) else { return Ok(Vec::new()) };
        let mut procs: Vec<HTCProc> = changed.iter().map(|(_, row)| HTCProc::of_pod(parent, row, now())).collect();
        self.jobs.add_items(parent, &mut procs).await?;
        Ok(procs)
    }

    /// Tells of one job that has changed, before the watch began or since.
    fn tell_one(&mut self, text: &mut String, proc: HTCProc, before_the_watch: bool) {
        let matches = self.selection.matches(&proc);
        if !self.selection.can_change() {
            if matches {
                self.frame(text, "MODIFIED", proc);
            }
            return;
        }
        match (matches, if matches { !self.enter(&proc) } else { self.leave(&proc) }) {
            (true, true) => self.frame(text, "MODIFIED", proc),
            (true, false) => self.frame(text, "ADDED", proc),
            (false, true) => self.frame(text, "DELETED", proc),
            (false, false) if before_the_watch => self.frame(text, "DELETED", proc),
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
                let mut object = table(&rows, &json!({ "resourceVersion": proc.name.version.to_string() }));
                if !std::mem::take(&mut self.columns) {
                    object["columnDefinitions"] = Value::Null;
                }
                object
            }
        };
        push(text, kind, &object);
    }
}

fn change(proc: &HTCProc) -> (String, u32, i64) {
    (proc.name.htcjob_uid.clone(), proc.spec.index, proc.name.version)
}

fn push(text: &mut String, kind: &str, object: &Value) {
    text.push_str(&json!({ "type": kind, "object": object }).to_string());
    text.push('\n');
}
