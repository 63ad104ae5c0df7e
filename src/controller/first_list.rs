//! Says once when every object that was there at the start has been reconciled.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::Event;

use crate::api::Observed;

/// The objects of the first list that have not been reconciled.
#[derive(Debug)]
pub(super) struct FirstList(Mutex<Option<Waiting>>);

#[derive(Debug, Default)]
struct Waiting {
    objects: HashSet<ObjectRef<Observed>>,
    /// How many there were, once all of them are known.
    listed: Option<usize>,
}

impl Default for FirstList {
    fn default() -> Self {
        Self(Mutex::new(Some(Waiting::default())))
    }
}

impl FirstList {
    fn waiting(&self) -> MutexGuard<'_, Option<Waiting>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The watch shows something.
    pub(super) fn seen(&self, event: &Event<Observed>) {
        let mut waiting = self.waiting();
        let Some(first) = waiting.as_mut() else { return };
        match event {
            Event::Init if first.listed.is_none() => first.objects.clear(),
            Event::InitApply(object) if first.listed.is_none() => {
                first.objects.insert(ObjectRef::from_obj(object));
            }
            Event::InitDone if first.listed.is_none() => first.listed = Some(first.objects.len()),
            Event::Delete(object) => {
                first.objects.remove(&ObjectRef::from_obj(object));
            }
            Event::Init | Event::InitApply(_) | Event::InitDone | Event::Apply(_) => {}
        }
        tell_if_done(&mut waiting);
    }

    /// An object has been reconciled without an error.
    pub(super) fn reconciled(&self, object: &ObjectRef<Observed>) {
        let mut waiting = self.waiting();
        let Some(first) = waiting.as_mut() else { return };
        first.objects.remove(object);
        tell_if_done(&mut waiting);
    }
}

fn tell_if_done(waiting: &mut Option<Waiting>) {
    let done = waiting.as_ref().filter(|first| first.objects.is_empty()).and_then(|first| first.listed);
    if let Some(objects) = done {
        tracing::info!(objects, "every HTCJob that was there at the start has been reconciled");
        *waiting = None;
    }
}
