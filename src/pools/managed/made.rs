//! Workers that were asked for and that the watch has not shown yet.
//!
//! The watch tells things in their order, but later than they happen. It may have shown that a worker is gone, and not yet the one that was
//! made in its place: without this a third one would be made.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod as KubePod;
use kube::ResourceExt as _;
use kube::runtime::watcher::Event;

use super::groups::Group;
use super::names::Names;
use super::scale::{Pod, Slot, Worker};

/// By number.
#[derive(Debug, Default)]
pub(super) struct Made(BTreeMap<u32, One>);

/// A worker that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct One {
    number: u32,
    pub(super) group: Group,
    /// What it is made from.
    template: String,
    /// Its pod's, if the API server has told it.
    uid: Option<String>,
    /// The API server has it.
    sure: bool,
    /// A list was begun since: that one has it, or it is gone.
    listed: bool,
    /// The list under way has it.
    shown: bool,
}

impl One {
    pub(super) const fn number(&self) -> u32 {
        self.number
    }

    /// As a decision sees it.
    pub(super) fn worker(&self, template: Option<&str>) -> Worker {
        let (number, sure) = (self.number, self.sure);
        let current = template.is_none_or(|template| self.template == template);
        Worker { number, pod: Pod::Made { sure }, slot: Slot::Unseen, current, drained: false }
    }
}

impl Made {
    /// Before it is asked for: whether it was made is not known until there is an answer.
    pub(super) fn asks(&mut self, number: u32, group: &Group, template: &str) {
        let (group, template) = (group.clone(), template.to_owned());
        let one = One { number, group, template, uid: None, sure: false, listed: false, shown: false };
        self.0.insert(number, one);
    }

    /// It is there: this pod, or one of its name that the watch will show as well.
    pub(super) fn is_there(&mut self, number: u32, uid: Option<String>) {
        if let Some(one) = self.0.get_mut(&number) {
            (one.uid, one.sure) = (uid, true);
        }
    }

    /// One with this uid was made, and the watch has not shown it yet.
    pub(super) fn has(&self, uid: &str) -> bool {
        self.0.values().any(|one| one.uid.as_deref() == Some(uid))
    }

    /// The API server has refused it.
    pub(super) fn refused(&mut self, number: u32) {
        self.0.remove(&number);
    }

    /// The watch shows this. From then on it is known from there.
    pub(super) fn watched(&mut self, event: &Event<KubePod>, names: &Names) {
        match event {
            Event::Init => self.0.values_mut().for_each(|one| (one.listed, one.shown) = (true, false)),
            // What is listed is seen when all of it is.
            Event::InitApply(pod) => {
                if let Some(one) = self.is(pod, names) {
                    one.shown = true;
                }
            }
            Event::InitDone => self.0.retain(|_, one| !one.listed && !one.shown),
            Event::Apply(pod) | Event::Delete(pod) => {
                if let Some(number) = self.is(pod, names).map(|one| one.number) {
                    self.0.remove(&number);
                }
            }
        }
    }

    fn is(&mut self, pod: &KubePod, names: &Names) -> Option<&mut One> {
        let one = self.0.get_mut(&names.worker_number(&pod.name_any())?)?;
        // A former one of its name is another one.
        one.uid.as_ref().is_none_or(|uid| pod.metadata.uid.as_ref() == Some(uid)).then_some(one)
    }

    /// Those that are none of these pods.
    pub(super) fn not_in<'a>(
        &'a self,
        pods: &[Arc<KubePod>],
        names: &Names,
    ) -> impl Iterator<Item = &'a One> + use<'a> {
        let there: Vec<u32> = pods.iter().filter_map(|pod| names.worker_number(&pod.name_any())).collect();
        self.0.values().filter(move |one| !there.contains(&one.number))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::ObjectName;

    fn names() -> Names {
        Names::new(&ObjectName { namespace: "n".to_owned(), name: "p".to_owned() }, "uid").unwrap()
    }

    fn group() -> Group {
        Group::Shared(super::super::groups::Shared { image: "i".to_owned(), namespace: None })
    }

    fn pod(number: u32, uid: &str) -> KubePod {
        serde_json::from_value(json!({ "metadata": { "name": names().worker(number), "uid": uid } })).unwrap()
    }

    fn made(number: u32, uid: &str) -> Made {
        let mut made = Made::default();
        made.asks(number, &group(), "t");
        made.is_there(number, Some(uid.to_owned()));
        made
    }

    fn left(made: &Made) -> Vec<(u32, bool)> {
        made.not_in(&[], &names()).map(|one| (one.number, one.sure)).collect()
    }

    #[test]
    fn what_was_made_is_remembered_until_the_watch_shows_it_or_its_end() {
        for event in [Event::Apply(pod(1, "u")), Event::Delete(pod(1, "u"))] {
            let mut made = made(1, "u");
            made.watched(&Event::Delete(pod(0, "former")), &names());
            made.watched(&Event::Delete(pod(1, "former")), &names());
            assert_eq!(left(&made), [(1, true)]);
            assert_eq!(made.not_in(&[Arc::new(pod(1, "u"))], &names()).count(), 0, "it is shown");
            made.watched(&event, &names());
            assert_eq!(left(&made), []);
        }
    }

    #[test]
    fn a_list_proves_that_it_is_gone_only_if_it_was_begun_later() {
        let all = |made: &mut Made, events: Vec<Event<KubePod>>| {
            for event in &events {
                made.watched(event, &names());
            }
        };
        let mut before = made(1, "u");
        all(&mut before, vec![Event::Init]);
        assert_eq!(left(&before), [(1, true)], "the list has not said anything yet");
        all(&mut before, vec![Event::InitDone]);
        assert_eq!(left(&before), []);

        let mut during = Made::default();
        during.watched(&Event::Init, &names());
        during.asks(1, &group(), "t");
        during.is_there(1, Some("u".to_owned()));
        all(&mut during, vec![Event::InitDone]);
        assert_eq!(left(&during), [(1, true)]);

        // The list has it: it is seen when the list is whole.
        let mut shown = Made::default();
        shown.watched(&Event::Init, &names());
        shown.asks(1, &group(), "t");
        all(&mut shown, vec![Event::InitApply(pod(1, "u"))]);
        assert_eq!(left(&shown), [(1, false)]);
        all(&mut shown, vec![Event::InitDone]);
        assert_eq!(left(&shown), []);
    }

    #[test]
    fn without_an_answer_it_is_not_known_whether_it_is_there() {
        let mut made = Made::default();
        made.asks(1, &group(), "t");
        let worker =
            |made: &Made, template: &str| made.not_in(&[], &names()).next().map(|one| one.worker(Some(template)));
        let unsure = worker(&made, "t").unwrap();
        assert_eq!((unsure.pod, unsure.current), (Pod::Made { sure: false }, true));
        assert!(!worker(&made, "other").unwrap().current);
        made.is_there(1, None);
        assert_eq!(worker(&made, "t").unwrap().pod, Pod::Made { sure: true });
        made.refused(1);
        assert_eq!(left(&made), []);
    }
}
