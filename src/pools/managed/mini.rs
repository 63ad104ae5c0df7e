//! Workers that an HTCJob has of its own: how many there should be, and what they are. Pure.

use std::collections::BTreeMap;

use super::demand::{fits, image, is_suspended};
use super::groups::{There, share};
use super::objects::{OwnWorker, WorkerKind, WorkerSize};
use super::scale::Goal;
use super::work::Work;
use crate::api::{HTCJob, ManagedPool, ObjectName};

/// What an HTCJob asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct Asks {
    /// What its workers are.
    pub kind: WorkerKind,
    /// How many there should be as far as it goes.
    pub count: u32,
}

/// What this HTCJob asks for; none if it has no workers of its own.
///
/// They are there as long as HTCondor has jobs of it: from when the first are submitted, which with an HTCQueue is after they have got
/// room, until all have ended. While it is suspended, by what it says or by its queue, there are as many as jobs that run need.
#[must_use]
pub fn asks(pool: &ManagedPool, job: &HTCJob, work: &Work, uid: &str, name: &ObjectName) -> Option<Asks> {
    let own = job.spec.mini_cluster.as_ref()?;
    let size = WorkerSize::of(pool, Some(own)).ok()?;
    let template = own.template.clone().unwrap_or_default();
    let whose = OwnWorker { uid: uid.to_owned(), name: name.clone(), template };
    let kind = WorkerKind { image: image(job.spec.image()).to_owned(), size, namespace: None, own: Some(whose) };
    let has_begun = work.begun || work.active() > 0;
    let going = job.metadata.deletion_timestamp.is_some();
    let fits = fits(pool, &job.spec);
    let filled = |jobs: usize, fits: u64| u32::try_from((jobs as u64).div_ceil(fits.max(1))).unwrap_or(u32::MAX);
    let (size, most) = own.bounds();
    let count = match fits {
        _ if work.ended || going || !has_begun => 0,
        Ok(fits) if is_suspended(job, work) => filled(work.running, fits).min(most),
        Ok(fits) => filled(work.idle + work.running, fits).max(size).min(most),
        Err(_) => 0,
    };
    Some(Asks { kind, count })
}

/// What there should be of each HTCJob's: of those that ask, and of those that have some. Where `max` is too small for all of them each gets
/// one more in turn. Those that are not needed any more go after so many seconds, and at once when nothing is asked for.
#[must_use]
pub fn goals(
    asked: &BTreeMap<String, u32>,
    there: &BTreeMap<String, There>,
    (max, after): (u32, i64),
    now: i64,
) -> BTreeMap<String, Goal> {
    let may = |uid: &String, count: u32| count.min(there.get(uid).map_or(u32::MAX, |there| there.most(now)));
    let mut counts: BTreeMap<String, u32> = there.keys().map(|uid| (uid.clone(), 0)).collect();
    counts.extend(asked.iter().map(|(uid, count)| (uid.clone(), may(uid, *count))));
    let given = share(&counts, BTreeMap::new(), max, |_| ());
    let goal = |(uid, count): (String, u32)| {
        let ended = asked.get(&uid).is_none_or(|count| *count == 0);
        let goal = Goal::Follow { needed: count, min: 0, max: count, after: if ended { 0 } else { after } };
        (uid, goal)
    };
    given.into_iter().map(goal).collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::pools::managed::scale::Deaths;
    use crate::pools::managed::work::Rest;

    const NOW: i64 = 1_000_000;

    fn pool() -> ManagedPool {
        let pool = json!({
            "image": "htcondor:1", "schedd": { "storage": { "size": "1Gi" } },
            "workers": { "image": "i", "resources": { "cpus": 2, "memory": "4Gi", "disk": "9Gi" }, "miniClusters": { "max": 9 } },
        });
        serde_json::from_value(pool).unwrap()
    }

    fn job(spec: &Value) -> HTCJob {
        let mut object = json!({
            "apiVersion": "htc.cern.ch/v1alpha1", "kind": "HTCJob", "metadata": { "name": "j" },
            "spec": { "script": { "image": "docker://i", "command": "sh", "source": "x" },
                "miniCluster": { "size": 1, "maxSize": 3 } },
            // Whoever may write statuses can say anything there.
            "status": { "phase": "Running", "active": 99, "running": 99 },
        });
        for (key, value) in spec.as_object().unwrap() {
            object["spec"][key] = value.clone();
        }
        serde_json::from_value(object).unwrap()
    }

    fn name() -> ObjectName {
        ObjectName { namespace: "n".to_owned(), name: "j".to_owned() }
    }

    const fn begun([idle, running, held]: [usize; 3]) -> Work {
        Work {
            idle,
            running,
            held,
            queue: None,
            over: 0,
            rest: Rest::Waits,
            suspended: false,
            begun: true,
            ended: false,
        }
    }

    #[rstest]
    #[case::nothing_is_submitted(json!({}), Work { rest: Rest::Comes, ..Work::default() }, 0)]
    #[case::a_part_is(json!({}), Work { begun: false, ..begun([1, 0, 0]) }, 1)]
    #[case::two_on_each(json!({}), begun([3, 0, 0]), 2)]
    #[case::no_more_than_most(json!({}), begun([9, 0, 0]), 3)]
    #[case::no_fewer_than_its_size(json!({}), begun([0, 0, 1]), 1)]
    #[case::held_ones_need_none(json!({ "miniCluster": { "size": 0, "maxSize": 3 } }), begun([0, 0, 1]), 0)]
    #[case::suspended(json!({ "suspend": true }), begun([0, 0, 9]), 0)]
    #[case::suspended_and_some_run(json!({ "suspend": true }), begun([7, 2, 0]), 1)]
    #[case::suspended_by_its_queue(json!({}), Work { suspended: true, ..begun([7, 2, 0]) }, 1)]
    #[case::ended(json!({}), Work { ended: true, ..begun([0, 0, 0]) }, 0)]
    #[case::going(json!({}), Work { ended: true, ..begun([0, 5, 0]) }, 0)]
    #[case::not_allowed(json!({ "miniCluster": { "image": "other" } }), begun([0, 5, 0]), 0)]
    fn workers_are_there_while_there_are_jobs(#[case] spec: Value, #[case] work: Work, #[case] expected: u32) {
        let asks = asks(&pool(), &job(&spec), &work, "u", &name()).unwrap();
        assert_eq!(asks.count, expected);
    }

    #[test]
    fn one_that_is_deleted_or_has_none_asks_for_nothing() {
        let running = begun([0, 5, 0]);
        let mut deleted = job(&json!({}));
        deleted.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        assert_eq!(asks(&pool(), &deleted, &running, "u", &name()).unwrap().count, 0);
        let mut shared = job(&json!({}));
        shared.spec.mini_cluster = None;
        assert_eq!(asks(&pool(), &shared, &running, "u", &name()), None);
    }

    #[test]
    fn its_workers_are_containers_of_its_image() {
        let kind = |spec: Value| asks(&pool(), &job(&spec), &Work::default(), "u", &name()).unwrap().kind;
        assert_eq!(kind(json!({})).image, "i");
        let other = kind(json!({ "miniCluster": { "image": "other:1", "resources": { "cpus": 1 } } }));
        assert_eq!((other.image.as_str(), other.size.cpus, other.size.memory), ("other:1", 1, 4096));
        assert_eq!(other.own.map(|own| (own.uid, own.name)), Some(("u".to_owned(), name())));
    }

    #[rstest]
    #[case::each_what_it_asks_for(&[("a", 2), ("b", 1)], 9, &[("a", 2), ("b", 1), ("gone", 0)])]
    #[case::in_turn(&[("a", 9), ("b", 2)], 4, &[("a", 2), ("b", 2), ("gone", 0)])]
    fn htcjobs_share_what_there_may_be(
        #[case] asked: &[(&str, u32)],
        #[case] max: u32,
        #[case] expected: &[(&str, u32)],
    ) {
        let asked = asked.iter().map(|(uid, count)| ((*uid).to_owned(), *count)).collect();
        let there = BTreeMap::from([("gone".to_owned(), There::default())]);
        let goals = goals(&asked, &there, (max, 300), NOW);
        let wanted: Vec<(&str, u32)> = goals.iter().map(|(uid, goal)| (uid.as_str(), goal.wanted())).collect();
        assert_eq!(wanted, expected);
    }

    #[test]
    fn those_of_one_that_has_ended_go_at_once_and_of_one_that_fails_the_others_get_the_room() {
        let asked = BTreeMap::from([("a".to_owned(), 3), ("b".to_owned(), 3), ("ended".to_owned(), 0)]);
        let failing = There { deaths: Deaths { count: 3, last: NOW }, ..There::default() };
        let goals = goals(&asked, &BTreeMap::from([("a".to_owned(), failing)]), (3, 300), NOW);
        let follow = |needed, after| Goal::Follow { needed, min: 0, max: needed, after };
        assert_eq!((goals["a"], goals["b"], goals["ended"]), (follow(0, 300), follow(3, 300), follow(0, 0)));
    }
}
