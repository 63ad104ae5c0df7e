//! What one watch of the API server has shown.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use futures::StreamExt as _;
use kube::ResourceExt as _;
use kube::api::{Api, DynamicObject};
use kube::runtime::{WatchStreamExt as _, watcher};
use serde_json::Value;

use crate::error::{Error, Result};

/// The HTCJobs of one namespace.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    /// How many there are.
    pub(crate) objects: usize,
    /// Of them: those all of whose jobs have ids in the status.
    pub(crate) with_ids: usize,
    /// Ids in all statuses.
    pub(crate) ids: usize,
    /// Of them: those with the condition Complete or Failed.
    pub(crate) finished: usize,
    /// Jobs that run, as all statuses say.
    pub(crate) running: usize,
    /// `with_ids`, `ids` and `objects` at each change.
    pub(crate) course: Vec<(Instant, usize, usize, usize)>,
}

/// One HTCJob.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shown {
    ids: usize,
    all_ids: bool,
    finished: bool,
    running: usize,
    /// When the ids of all its jobs first stood in the status.
    pub(crate) ids_at: Option<Instant>,
    /// When a job was first counted as succeeded or failed.
    pub(crate) ended_at: Option<SystemTime>,
    /// Size of the status as JSON.
    pub(crate) status_bytes: usize,
}

#[derive(Default)]
struct State {
    objects: HashMap<String, HashMap<String, Shown>>,
    tallies: HashMap<String, Tally>,
    broken: Option<String>,
}

/// Filled by a watch; asked by rows.
#[derive(Clone, Default)]
pub(crate) struct Seen(Arc<(Mutex<State>, Condvar)>);

impl Seen {
    /// Follows the watch for as long as it is polled.
    pub(crate) async fn follow(self, api: Api<DynamicObject>) {
        let stream = watcher(api, watcher::Config::default()).default_backoff();
        futures::pin_mut!(stream);
        while let Some(event) = stream.next().await {
            match event {
                Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) => self.shown(&object),
                Ok(watcher::Event::Delete(object)) => self.gone(&object),
                Ok(watcher::Event::Init | watcher::Event::InitDone) => {}
                Err(error) => self.state().broken = Some(error.to_string()),
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shown(&self, object: &DynamicObject) {
        let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
        let new = Shown::of(&object.data);
        let mut state = self.state();
        let State { objects, tallies, .. } = &mut *state;
        let tally = tallies.entry(namespace.clone()).or_default();
        let shown = objects.entry(namespace).or_default().entry(name).or_insert_with(|| {
            tally.objects += 1;
            Shown::default()
        });
        tally.with_ids = tally.with_ids + usize::from(new.all_ids) - usize::from(shown.all_ids);
        tally.ids = tally.ids + new.ids - shown.ids;
        tally.finished = tally.finished + usize::from(new.finished) - usize::from(shown.finished);
        tally.running = tally.running + new.running - shown.running;
        *shown = Shown {
            ids_at: shown.ids_at.or_else(|| new.all_ids.then(Instant::now)),
            ended_at: shown.ended_at.or(new.ended_at),
            ..new
        };
        tally.course.push((Instant::now(), tally.with_ids, tally.ids, tally.objects));
        self.0.1.notify_all();
    }

    fn gone(&self, object: &DynamicObject) {
        let namespace = object.namespace().unwrap_or_default();
        let mut state = self.state();
        let State { objects, tallies, .. } = &mut *state;
        let Some(old) = objects.entry(namespace.clone()).or_default().remove(&object.name_any()) else { return };
        let tally = tallies.entry(namespace).or_default();
        tally.objects -= 1;
        tally.with_ids -= usize::from(old.all_ids);
        tally.ids -= old.ids;
        tally.running -= old.running;
        tally.finished -= usize::from(old.finished);
        tally.course.push((Instant::now(), tally.with_ids, tally.ids, tally.objects));
        self.0.1.notify_all();
    }

    pub(crate) fn tally(&self, namespace: &str) -> Tally {
        self.state().tallies.get(namespace).cloned().unwrap_or_default()
    }

    /// All HTCJobs of a namespace.
    pub(crate) fn all(&self, namespace: &str) -> HashMap<String, Shown> {
        self.state().objects.get(namespace).cloned().unwrap_or_default()
    }

    /// Waits until the tally of a namespace is as `wanted`; when that was.
    pub(crate) fn wait(
        &self,
        what: &str,
        namespace: &str,
        limit: Duration,
        wanted: impl Fn(&Tally) -> bool,
    ) -> Result<Instant> {
        let (began, none) = (Instant::now(), Tally::default());
        let mut state = self.state();
        loop {
            if wanted(state.tallies.get(namespace).unwrap_or(&none)) {
                return Ok(Instant::now());
            }
            let left = limit.saturating_sub(began.elapsed());
            if left.is_zero() {
                let Tally { objects, with_ids, ids, finished, .. } =
                    state.tallies.get(namespace).cloned().unwrap_or_default();
                let broken = state.broken.as_ref().map(|why| format!("; the watch broke: {why}")).unwrap_or_default();
                let seen = format!("{objects} HTCJobs, {with_ids} with all ids ({ids}), {finished} finished{broken}");
                return Err(Error::Waited { what: what.to_owned(), limit, seen });
            }
            let notified = self.0.1.wait_timeout(state, left.min(Duration::from_secs(1)));
            state = notified.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Shown {
    fn of(data: &Value) -> Self {
        let status = &data["status"];
        let wanted = data["spec"]["queue"].as_u64().unwrap_or(1);
        let ids = status["jobs"].as_str().map_or(0, count);
        let number = |name: &str| status[name].as_i64().unwrap_or_default();
        let conditions = status["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
        let holds = |condition: &Value| {
            condition["status"] == "True" && (condition["type"] == "Complete" || condition["type"] == "Failed")
        };
        Self {
            ids,
            all_ids: ids as u64 >= wanted,
            finished: conditions.iter().any(holds),
            running: usize::try_from(number("running")).unwrap_or_default(),
            ids_at: None,
            ended_at: (number("succeeded") + number("failed") > 0).then(SystemTime::now),
            status_bytes: if status.is_null() { 0 } else { status.to_string().len() },
        }
    }
}

/// How many jobs ranges like `17.0-999, 18.4` name.
fn count(ranges: &str) -> usize {
    let length = |range: &str| {
        let procs = range.trim().split_once('.')?.1;
        let (first, last) = procs.split_once('-').unwrap_or((procs, procs));
        Some(last.parse::<usize>().ok()? + 1 - first.parse::<usize>().ok()?)
    };
    ranges.split(',').filter_map(length).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_id_ranges_are_counted() {
        assert_eq!(count("17.0-999,18.4"), 1001);
        assert_eq!(count("3.0"), 1);
        assert_eq!(count(""), 0);
    }
}
