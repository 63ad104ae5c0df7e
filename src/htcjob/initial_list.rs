//! Logs once that every object of the initial list has been reconciled.

use std::collections::HashSet;

use htc_api::ObservedHTCJob;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::Event;
use parking_lot::{Mutex, MutexGuard};

/// Objects of the initial list that have not been reconciled yet. `None` once all were.
#[derive(Debug)]
pub(super) struct InitialList(Mutex<Option<UnreconciledObjects>>);

#[derive(Debug, Default)]
struct UnreconciledObjects {
    objects: HashSet<ObjectRef<ObservedHTCJob>>,
    /// Number of objects, once the list is complete.
    listed: Option<usize>,
}

impl Default for InitialList {
    fn default() -> Self {
        Self(Mutex::new(Some(UnreconciledObjects::default())))
    }
}

impl InitialList {
    fn waiting(&self) -> MutexGuard<'_, Option<UnreconciledObjects>> {
        self.0.lock()
    }

    /// Handles an event of the watch.
    pub(super) fn seen(&self, event: &Event<ObservedHTCJob>) {
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

    /// Records that an object was reconciled without an error.
    pub(super) fn reconciled(&self, object: &ObjectRef<ObservedHTCJob>) {
        let mut waiting = self.waiting();
        let Some(first) = waiting.as_mut() else { return };
        first.objects.remove(object);
        tell_if_done(&mut waiting);
    }
}

fn tell_if_done(waiting: &mut Option<UnreconciledObjects>) {
    let done = waiting.as_ref().filter(|first| first.objects.is_empty()).and_then(|first| first.listed);
    if let Some(objects) = done {
        tracing::info!(objects, "initial list of HTCJobs reconciled");
        *waiting = None;
    }
}
