//! Workers that were requested, and that the watch has not reported yet.
//!
//! The watch reports changes in their order, but late. It may have reported the deletion of a worker before the
//! creation of its replacement: without this record a second replacement would be created.

use std::collections::BTreeMap;
use std::sync::Arc;

use htc_machine::scaling::{PodState, SlotState, Worker};
use htc_machine::worker_groups::WorkerGroup;
use k8s_openapi::api::core::v1::Pod as KubePod;
use kube::ResourceExt as _;
use kube::runtime::watcher::Event;

use super::names::PoolNames;

/// The requested workers, by number.
#[derive(Debug, Default)]
pub(super) struct Expectations(BTreeMap<u32, Expected>);

/// A worker that was requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Expected {
    number: u32,
    pub(super) group: WorkerGroup,
    /// [`TEMPLATE_ANNOTATION`](super::objects::TEMPLATE_ANNOTATION) of its pod.
    template: String,
    /// Uid of its pod, if the API server has returned it.
    uid: Option<String>,
    /// The API server has confirmed the creation.
    created: bool,
    /// A list has begun since the request: if that does not have the worker, it is gone.
    relisted: bool,
    /// The list under way has the worker.
    in_current_list: bool,
}

impl Expected {
    pub(super) const fn number(&self) -> u32 {
        self.number
    }

    /// Returns the worker as input for a decision.
    pub(super) fn worker(&self, template: Option<&str>) -> Worker {
        let (number, sure) = (self.number, self.created);
        let current = template.is_none_or(|template| self.template == template);
        Worker {
            number,
            pod_state: PodState::Requested { confirmed: sure },
            slot_state: SlotState::Unseen,
            up_to_date: current,
            drain_accepted: false,
        }
    }
}

impl Expectations {
    /// Records a request before it is sent. Until the answer it is not known whether the worker was created.
    pub(super) fn expect_creation(&mut self, number: u32, group: &WorkerGroup, template: &str) {
        let (group, template) = (group.clone(), template.to_owned());
        let one =
            Expected { number, group, template, uid: None, created: false, relisted: false, in_current_list: false };
        self.0.insert(number, one);
    }

    /// Records that the pod exists. It is this one, or one of its name that the watch will report as well.
    pub(super) fn creation_observed(&mut self, number: u32, uid: Option<String>) {
        if let Some(one) = self.0.get_mut(&number) {
            (one.uid, one.created) = (uid, true);
        }
    }

    /// Returns whether a worker with this uid was created that the watch has not reported yet.
    pub(super) fn has(&self, uid: &str) -> bool {
        self.0.values().any(|one| one.uid.as_deref() == Some(uid))
    }

    /// Records that the API server has refused the creation.
    pub(super) fn creation_failed(&mut self, number: u32) {
        self.0.remove(&number);
    }

    /// Takes over an event of the watch. The pods that it reports are known from the watch from now on.
    pub(super) fn observe(&mut self, event: &Event<KubePod>, names: &PoolNames) {
        match event {
            Event::Init => self.0.values_mut().for_each(|one| (one.relisted, one.in_current_list) = (true, false)),
            // The store shows the listed pods once the list is complete.
            Event::InitApply(pod) => {
                if let Some(one) = self.is(pod, names) {
                    one.in_current_list = true;
                }
            }
            Event::InitDone => self.0.retain(|_, one| !one.relisted && !one.in_current_list),
            Event::Apply(pod) | Event::Delete(pod) => {
                if let Some(number) = self.is(pod, names).map(|one| one.number) {
                    self.0.remove(&number);
                }
            }
        }
    }

    fn is(&mut self, pod: &KubePod, names: &PoolNames) -> Option<&mut Expected> {
        let one = self.0.get_mut(&names.worker_number(&pod.name_any())?)?;
        // A former pod of this name is not this worker.
        one.uid.as_ref().is_none_or(|uid| pod.metadata.uid.as_ref() == Some(uid)).then_some(one)
    }

    /// Returns the workers that are none of these pods.
    pub(super) fn missing_from<'a>(
        &'a self,
        pods: &[Arc<KubePod>],
        names: &PoolNames,
    ) -> impl Iterator<Item = &'a Expected> + use<'a> {
        let there: Vec<u32> = pods.iter().filter_map(|pod| names.worker_number(&pod.name_any())).collect();
        self.0.values().filter(move |one| !there.contains(&one.number))
    }
}

#[cfg(test)]
mod tests {
    use htc_api::ObjectName;
    use serde_json::json;

    use super::*;

    fn names() -> PoolNames {
        PoolNames::new(&ObjectName { namespace: "n".to_owned(), name: "p".to_owned() }, "uid").unwrap()
    }

    fn group() -> WorkerGroup {
        WorkerGroup::Shared(htc_machine::worker_groups::SharedGroup {
            image: "i".to_owned(),
            namespace: None,
            volumes: String::new(),
        })
    }

    fn pod(number: u32, uid: &str) -> KubePod {
        serde_json::from_value(json!({ "metadata": { "name": names().worker(number), "uid": uid } })).unwrap()
    }

    fn made(number: u32, uid: &str) -> Expectations {
        let mut made = Expectations::default();
        made.expect_creation(number, &group(), "t");
        made.creation_observed(number, Some(uid.to_owned()));
        made
    }

    fn left(made: &Expectations) -> Vec<(u32, bool)> {
        made.missing_from(&[], &names()).map(|one| (one.number, one.created)).collect()
    }

    #[test]
    fn expected_creation_is_kept_until_the_watch_observes_it() {
        for event in [Event::Apply(pod(1, "u")), Event::Delete(pod(1, "u"))] {
            let mut made = made(1, "u");
            made.observe(&Event::Delete(pod(0, "former")), &names());
            made.observe(&Event::Delete(pod(1, "former")), &names());
            assert_eq!(left(&made), [(1, true)]);
            assert_eq!(made.missing_from(&[Arc::new(pod(1, "u"))], &names()).count(), 0, "the watch has it");
            made.observe(&event, &names());
            assert_eq!(left(&made), []);
        }
    }

    #[test]
    fn only_a_later_list_proves_an_expected_pod_gone() {
        let all = |made: &mut Expectations, events: Vec<Event<KubePod>>| {
            for event in &events {
                made.observe(event, &names());
            }
        };
        let mut before = made(1, "u");
        all(&mut before, vec![Event::Init]);
        assert_eq!(left(&before), [(1, true)], "the list is not complete yet");
        all(&mut before, vec![Event::InitDone]);
        assert_eq!(left(&before), []);

        let mut during = Expectations::default();
        during.observe(&Event::Init, &names());
        during.expect_creation(1, &group(), "t");
        during.creation_observed(1, Some("u".to_owned()));
        all(&mut during, vec![Event::InitDone]);
        assert_eq!(left(&during), [(1, true)]);

        // The worker is in the list, and is visible once the list is complete.
        let mut shown = Expectations::default();
        shown.observe(&Event::Init, &names());
        shown.expect_creation(1, &group(), "t");
        all(&mut shown, vec![Event::InitApply(pod(1, "u"))]);
        assert_eq!(left(&shown), [(1, false)]);
        all(&mut shown, vec![Event::InitDone]);
        assert_eq!(left(&shown), []);
    }

    #[test]
    fn unanswered_creation_is_unconfirmed() {
        let mut made = Expectations::default();
        made.expect_creation(1, &group(), "t");
        let worker = |made: &Expectations, template: &str| {
            made.missing_from(&[], &names()).next().map(|one| one.worker(Some(template)))
        };
        let unsure = worker(&made, "t").unwrap();
        assert_eq!((unsure.pod_state, unsure.up_to_date), (PodState::Requested { confirmed: false }, true));
        assert!(!worker(&made, "other").unwrap().up_to_date);
        made.creation_observed(1, None);
        assert_eq!(worker(&made, "t").unwrap().pod_state, PodState::Requested { confirmed: true });
        made.creation_failed(1);
        assert_eq!(left(&made), []);
    }
}
