//! What the operator writes for its HTCJobs, written by a client that does nothing else.

use std::time::{Duration, Instant};

use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Event;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::{Cluster, PARALLEL, Requests, htcjob};
use crate::error::{Asking as _, Error, Result};

/// With this annotation the operator leaves an HTCJob alone.
const OPERATOR: &str = "htc.cern.ch/operator";
const NOBODY: &str = "bench/nobody";
const MANAGER: &str = "bare-client";

/// One HTCJob of the operator's, and one of its Events, as moulds for those of a bare client.
#[derive(Clone, Debug)]
pub(crate) struct Written {
    object: DynamicObject,
    event: Event,
}

/// How many requests of each kind, for so many HTCJobs.
#[derive(Clone, Copy, Debug)]
struct Kinds {
    objects: u64,
    patches: u64,
    statuses: u64,
    events: u64,
}

impl Kinds {
    /// Those of the HTCJob with this number: all together make the whole.
    fn of(&self, number: u64) -> [u64; 3] {
        [self.patches, self.statuses, self.events]
            .map(|all| all / self.objects + u64::from(number < all % self.objects))
    }
}

impl Cluster {
    /// What the operator has written for the HTCJob `name`.
    pub(crate) fn written(&self, namespace: &str, name: &str) -> Result<Written> {
        self.runtime.block_on(async {
            let object = self.api(namespace).get(name).await.asking("get an HTCJob")?;
            let events: Api<Event> = Api::namespaced(self.client.clone(), namespace);
            let about = ListParams::default().fields(&format!("involvedObject.name={name}"));
            let events = events.list(&about).await.asking("list Events")?;
            let event = events.items.into_iter().next_back();
            let event = event.ok_or_else(|| Error::Unexpected(format!("there is no Event about {name}")))?;
            Ok(Written { object, event })
        })
    }

    /// Creates `count` HTCJobs, and makes as many requests of each kind for them as `requests` has; until the last is
    /// answered.
    pub(crate) fn write_bare(
        &self,
        namespace: &str,
        count: u32,
        requests: &Requests,
        written: &Written,
    ) -> Result<Duration> {
        let kinds = Kinds {
            objects: count.into(),
            patches: requests.of("htcjobs", "PATCH"),
            statuses: requests.of("htcjobs", "APPLY"),
            events: requests.of("events", "POST"),
        };
        let began = Instant::now();
        let all = futures::stream::iter(0..count).map(|number| self.write_one(namespace, number, kinds, written));
        self.runtime.block_on(all.buffer_unordered(PARALLEL).try_collect::<Vec<()>>())?;
        Ok(began.elapsed())
    }

    async fn write_one(&self, namespace: &str, number: u32, kinds: Kinds, written: &Written) -> Result<()> {
        let [patches, statuses, events] = kinds.of(number.into());
        let name = format!("j{number}");
        let api = self.api(namespace);
        let mut object = htcjob(&name, 1, "true");
        object["metadata"]["annotations"] = json!({ OPERATOR: NOBODY });
        let object: DynamicObject = serde_json::from_value(object).asking("make an HTCJob")?;
        let created = api.create(&PostParams::default(), &object).await.asking("create an HTCJob")?;
        let finalizers = &written.object.metadata.finalizers;
        for _ in 0..patches {
            let mut annotations = written.object.metadata.annotations.clone().unwrap_or_default();
            annotations.insert(OPERATOR.to_owned(), NOBODY.to_owned());
            let patch = json!({ "metadata": { "uid": created.metadata.uid, "finalizers": finalizers, "annotations": annotations } });
            let parameters = PatchParams::default();
            api.patch(&name, &parameters, &Patch::Merge(patch)).await.asking("attach a finalizer")?;
        }
        for nth in 0..statuses {
            let mut status = written.object.data["status"].clone();
            // None is equal to the one before: that would not be written at all.
            status["observedGeneration"] = json!(nth + 1);
            let patch = json!({
                "apiVersion": "htc.cern.ch/v1alpha1",
                "kind": "HTCJob",
                "metadata": { "name": name, "uid": created.metadata.uid },
                "status": status,
            });
            let parameters = PatchParams::apply(MANAGER).force();
            api.patch_status(&name, &parameters, &Patch::Apply(patch)).await.asking("write a status")?;
        }
        let told: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        for nth in 0..events {
            let mut event = written.event.clone();
            event.metadata = ObjectMeta { name: Some(format!("{name}.{nth}")), ..ObjectMeta::default() };
            event.involved_object.name = Some(name.clone());
            event.involved_object.namespace = Some(namespace.to_owned());
            event.involved_object.uid.clone_from(&created.metadata.uid);
            told.create(&PostParams::default(), &event).await.asking("create an Event")?;
        }
        Ok(())
    }

    /// Deletes what [`Self::write_bare`] has made: nobody else releases it.
    pub(crate) fn remove_bare(&self, namespace: &str) -> Result<()> {
        let api = self.api(namespace);
        let all = futures::stream::iter(self.seen.all(namespace).into_keys()).map(|name| {
            let api = &api;
            async move {
                let release: Value = json!({ "metadata": { "finalizers": null } });
                api.patch(&name, &PatchParams::default(), &Patch::Merge(release)).await?;
                api.delete(&name, &DeleteParams::default()).await.map(drop)
            }
        });
        let removed = self.runtime.block_on(all.buffer_unordered(PARALLEL).try_collect::<Vec<()>>());
        removed.map(drop).asking("remove HTCJobs")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_divided_among_objects_without_loss() {
        let kinds = Kinds { objects: 3, patches: 3, statuses: 4, events: 2 };
        let each: Vec<[u64; 3]> = (0..3).map(|number| kinds.of(number)).collect();
        assert_eq!(each, [[1, 2, 1], [1, 1, 1], [1, 1, 0]]);
    }
}
