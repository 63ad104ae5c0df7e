//! Follows the `HTCJob`s of a namespace by a watch: each status that is published is seen, however short it stands.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex};

use futures::StreamExt as _;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{Config, Event, watcher};
use serde_json::Value;
use testbed::wait_for;

use crate::PATIENCE;
use crate::api::Reader;

/// Seconds after which the API server ends a watch. The next goes on from the last version; with this that is nothing rare.
const TURN: u32 = 5;

/// What a watch has shown.
#[derive(Clone, Debug, Default)]
pub struct Watched {
    /// By uid: each status that the object has had, oldest first.
    pub statuses: BTreeMap<String, Vec<Value>>,
    /// The uids of objects that were deleted while finalizers held them.
    pub deleting: BTreeSet<String>,
    /// The uids of objects that were seen to go.
    pub gone: BTreeSet<String>,
    /// How often the objects were listed: once, and again after each gap in which a version may have been missed.
    pub lists: usize,
}

/// Goes on, whatever the API server does, until it is dropped.
pub struct Watch {
    watched: Arc<Mutex<Watched>>,
    // Its task ends with it.
    _reader: Reader,
}

impl Watch {
    /// What is created from now on is seen from its first version on.
    pub(crate) fn new(kubeconfig: &Path, namespace: &str) -> Self {
        let reader = Reader::new(kubeconfig);
        let kind = GroupVersionKind::gvk("htc.cern.ch", "v1alpha1", "HTCJob");
        let resource = ApiResource::from_gvk_with_plural(&kind, "htcjobs");
        let api: Api<DynamicObject> = Api::namespaced_with(reader.client.clone(), namespace, &resource);
        let watched = Arc::<Mutex<Watched>>::default();
        let noted = Arc::clone(&watched);
        reader.runtime.spawn(async move {
            let mut events = watcher(api, Config::default().timeout(TURN)).default_backoff().boxed();
            while let Some(event) = events.next().await {
                // What fails is tried again.
                if let Ok(event) = event {
                    noted.lock().unwrap().note(event);
                }
            }
        });
        let watch = Self { watched, _reader: reader };
        wait_for("the watch to begin", PATIENCE, || watch.watched().lists > 0).unwrap();
        watch
    }

    /// What it has shown so far.
    pub fn watched(&self) -> Watched {
        self.watched.lock().unwrap().clone()
    }
}

impl Watched {
    fn note(&mut self, event: Event<DynamicObject>) {
        let (mut object, gone) = match event {
            Event::Apply(object) | Event::InitApply(object) => (object, false),
            Event::Delete(object) => (object, true),
            Event::Init => return,
            Event::InitDone => return self.lists += 1,
        };
        let uid = object.metadata.uid.unwrap();
        let status = object.data["status"].take();
        let statuses = self.statuses.entry(uid.clone()).or_default();
        if statuses.last() != Some(&status) {
            statuses.push(status);
        }
        if gone {
            self.gone.insert(uid);
        } else if object.metadata.deletion_timestamp.is_some() {
            self.deleting.insert(uid);
        }
    }
}
