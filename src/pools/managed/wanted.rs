//! What there should be of all workers of a pool: from what its `HTCPool` says, and what the `HTCJob`s in it need. Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::demand::{needed, shared};
use super::groups::{Group, Most, Shared, There, Wish};
use super::mini::{Asks, asks, goals};
use super::objects::{Design, WorkerKind, worker_image};
use super::scale::Goal;
use super::seen::Wanted;
use super::work::Work;
use crate::api::{HTCJob, Isolation, ManagedPool, ObjectName, QuantityError};

/// How long a worker has had no job when it goes, in seconds, where nobody says it.
const AFTER: u32 = 300;

/// An `HTCJob` in the pool that may ask for workers.
#[derive(Clone, Debug)]
pub(super) struct Asker<'a> {
    pub(super) uid: String,
    pub(super) name: ObjectName,
    /// None if it cannot be read.
    pub(super) job: Option<&'a HTCJob>,
    /// None if that is not known.
    pub(super) work: Option<Work>,
}

/// What is asked for.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Demand {
    /// Of workers that HTCJobs share.
    wish: Wish,
    /// Groups with `HTCJob`s whose jobs are not known. Their workers stay.
    unknown: BTreeSet<Shared>,
    /// Of workers of one `HTCJob`, by its uid; none of one that cannot be read, or of which it is not known what it has to do.
    own: BTreeMap<String, Option<Asks>>,
    /// Most of these.
    most_own: u32,
    /// How long a worker has had no job when it goes, in seconds.
    after: i64,
}

impl Demand {
    /// By a pool and the `HTCJob`s in it.
    pub(super) fn of(spec: &ManagedPool, askers: &[Asker<'_>]) -> Self {
        let number = |number: Option<i32>, default: u32| {
            number.map_or(default, |number| u32::try_from(number).unwrap_or_default())
        };
        let after = number(spec.workers.autoscaling.as_ref().and_then(|own| own.scale_down_after_seconds), AFTER);
        let needed = || needed(spec, askers.iter().filter_map(|asker| Some((asker.job?, asker.work?))));
        let wish = match (&spec.workers.autoscaling, spec.workers.isolation) {
            (None, Isolation::None) => Wish::Replicas(number(spec.workers.replicas, 0)),
            (None, Isolation::Namespace) => {
                Wish::Divided { replicas: number(spec.workers.replicas, 0), needed: needed() }
            }
            (Some(autoscaling), _) => Wish::Follow {
                needed: needed(),
                min: number(autoscaling.min, 0),
                max: number(Some(autoscaling.max), 0),
                after: after.into(),
            },
        };
        let own = askers.iter().filter_map(|Asker { uid, name, job, work }| {
            let asked = match (job, work) {
                (Some(job), Some(work)) => Some(asks(spec, job, work, uid, name)?),
                (Some(job), None) if job.spec.mini_cluster.is_none() => return None,
                (Some(_), None) | (None, _) => None,
            };
            Some((uid.clone(), asked))
        });
        let unknown = askers.iter().filter(|asker| asker.work.is_none()).filter_map(|asker| {
            let job = asker.job.filter(|job| job.spec.mini_cluster.is_none())?;
            Some(shared(spec, job.spec.image(), &asker.name.namespace))
        });
        let unknown = unknown.collect();
        let most_own = spec.workers.mini_clusters.as_ref().map_or(0, |own| number(Some(own.max), 0));
        Self { wish, unknown, own: own.collect(), most_own, after: after.into() }
    }

    pub(super) fn most(&self) -> Most {
        Most { shared: self.wish.most(), own: self.most_own }
    }

    /// Whom workers are asked for.
    pub(super) fn asked(&self, design: &Design<'_>) -> BTreeSet<Group> {
        let of_pool = of_pool(design);
        let shared = self.wish.asked(&of_pool).into_iter().cloned().map(Group::Shared);
        let asks = |asked: &Option<Asks>| asked.as_ref().is_none_or(|asked| asked.count > 0);
        let own = self.own.iter().filter(|(_, asked)| asks(asked)).map(|(uid, _)| Group::HTCJob(uid.clone()));
        let unknown = self.unknown.iter().cloned().map(Group::Shared);
        shared.chain(unknown).chain(own).collect()
    }

    /// What there should be of each group that is asked for or there.
    ///
    /// # Errors
    /// A quantity that is none.
    pub(super) fn wanted(
        &self,
        design: &Design<'_>,
        there: &BTreeMap<Group, There>,
        now: i64,
    ) -> Result<BTreeMap<Group, Wanted>, QuantityError> {
        let (mut shared, mut own) = (BTreeMap::new(), BTreeMap::new());
        for (group, there) in there {
            match group {
                Group::Shared(group) => shared.insert(group.clone(), *there),
                Group::HTCJob(uid) => own.insert(uid.clone(), *there),
            };
        }
        let mut wanted = BTreeMap::new();
        let isolated = design.spec.workers.isolation == Isolation::Namespace;
        for (group, goal) in self.wish.goals(&of_pool(design), &shared, &self.unknown, now) {
            let its = if group.namespace.is_some() == isolated {
                let kind = WorkerKind::shared(design.spec, &group)?;
                Wanted { goal, template: Some(design.worker_template(&kind)), kind: Some(kind) }
            } else {
                // From before workers had tenants: no job is to begin there, and those that run come to their end.
                Wanted { goal, template: Some(String::new()), kind: None }
            };
            wanted.insert(Group::Shared(group), its);
        }
        let counts = self.own.iter().filter_map(|(uid, asked)| Some((uid.clone(), asked.as_ref()?.count)));
        let counts = counts.filter(|(uid, count)| *count > 0 || own.contains_key(uid)).collect();
        for (uid, goal) in goals(&counts, &own, (self.most_own, self.after), now) {
            let alive = own.get(&uid).map_or(0, |there| there.alive);
            let its = match self.own.get(&uid) {
                Some(Some(asked)) => {
                    let template = Some(design.worker_template(&asked.kind));
                    Wanted { goal, template, kind: Some(asked.kind.clone()) }
                }
                // Nobody knows what it asks for: what there is stays.
                Some(None) => {
                    let goal = Goal::Follow { needed: alive, min: 0, max: alive, after: self.after };
                    Wanted { goal, template: None, kind: None }
                }
                // The HTCJob is gone: no job of it is to begin there, and those that run come to their end.
                None => Wanted { goal, template: Some(String::new()), kind: None },
            };
            wanted.insert(Group::HTCJob(uid), its);
        }
        Ok(wanted)
    }
}

/// The workers that exist before jobs need any.
fn of_pool(design: &Design<'_>) -> Shared {
    shared(design.spec, worker_image(design.spec), &design.names.pool.namespace)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::objects::InUse;
    use super::*;
    use crate::api::Autoscaling;
    use crate::pools::managed::names::Names;
    use crate::pools::managed::scale::{Answer, Deaths, Drain, Evidence, Plan, Pod, Slot, Worker, scale};

    fn pool() -> ManagedPool {
        let pool = json!({
            "image": "htcondor:1", "schedd": { "storage": { "size": "1Gi" } },
            "workers": { "image": "i", "replicas": 2, "miniClusters": { "max": 3 } },
        });
        serde_json::from_value(pool).unwrap()
    }

    fn name(name: &str) -> ObjectName {
        ObjectName { namespace: "n".to_owned(), name: name.to_owned() }
    }

    fn job() -> HTCJob {
        let object = json!({
            "apiVersion": "htc.cern.ch/v1alpha1", "kind": "HTCJob", "metadata": { "name": "j" },
            "spec": { "script": { "image": "i", "command": "sh", "source": "x" }, "miniCluster": { "maxSize": 9 } },
        });
        serde_json::from_value(object).unwrap()
    }

    fn running() -> Work {
        Work { idle: 9, begun: true, ..Work::default() }
    }

    fn ended() -> Work {
        Work { over: 9, ended: true, ..Work::default() }
    }

    fn wanted(
        spec: &ManagedPool,
        jobs: &[(&str, Option<&HTCJob>, Option<Work>)],
        there: &[&str],
    ) -> BTreeMap<Group, Wanted> {
        let names = Names::new(&name("p"), "0123456789").unwrap();
        let operator = name("o");
        let design = Design { names: &names, spec, operator: &operator, keys: InUse::FIRST };
        let asker = |&(uid, job, work): &(&str, _, _)| Asker { uid: uid.to_owned(), name: name(uid), job, work };
        let jobs: Vec<Asker<'_>> = jobs.iter().map(asker).collect();
        let alive = There { alive: 1, ..There::default() };
        let there = there.iter().map(|uid| (Group::HTCJob((*uid).to_owned()), alive)).collect();
        Demand::of(spec, &jobs).wanted(&design, &there, 0).unwrap()
    }

    fn its(uid: &str) -> Group {
        Group::HTCJob(uid.to_owned())
    }

    #[test]
    fn workers_of_one_htcjob_are_beside_those_of_the_pool() {
        let job = job();
        let jobs = [("u-1", Some(&job), Some(running())), ("u-2", Some(&job), Some(ended()))];
        let wanted = wanted(&pool(), &jobs, &[]);
        assert_eq!(wanted[&Group::Shared(shared(&pool(), "i", "n"))].goal, Goal::Replicas(2));
        // The pool has room for three of nine.
        assert_eq!(wanted[&its("u-1")].goal.wanted(), 3);
        assert_eq!(wanted[&its("u-1")].kind.as_ref().unwrap().own.as_ref().unwrap().name, name("u-1"));
        assert!(!wanted.contains_key(&its("u-2")), "it has none, and needs none");
    }

    #[test]
    fn what_becomes_of_workers_when_their_htcjob_has_ended_is_gone_or_cannot_be_read() {
        let job = job();
        let there = ["ended", "gone", "unread", "unknown"];
        let jobs = [("ended", Some(&job), Some(ended())), ("unread", None, None), ("unknown", Some(&job), None)];
        let wanted = wanted(&pool(), &jobs, &there);
        let plan = |uid: &str, slot: Slot| {
            let Wanted { goal, template, .. } = &wanted[&its(uid)];
            let current = template.as_ref().is_none_or(|template| !template.is_empty());
            let workers = vec![Worker { number: 0, pod: Pod::Running, slot, current, drained: false }];
            let (deaths, taken) = (Deaths::default(), BTreeSet::new());
            scale(&Evidence { now: 1000, goal: *goal, workers, answer: Answer::Known, deaths, taken, room: 9 })
        };
        let drained = |how| Plan { drain: vec![(0, how)], ..Plan::default() };
        let idle = Slot::Idle { since: 1000 };
        assert_eq!((plan("ended", idle), plan("ended", Slot::Busy)), (drained(Drain::IfIdle), Plan::default()));
        assert_eq!((plan("gone", idle), plan("gone", Slot::Busy)), (drained(Drain::IfIdle), drained(Drain::Graceful)));
        for uid in ["unread", "unknown"] {
            assert_eq!((plan(uid, idle), plan(uid, Slot::Busy)), (Plan::default(), Plan::default()), "{uid}");
        }
    }

    #[test]
    fn a_pool_that_allows_it_no_more_lets_the_workers_come_to_their_end() {
        let (mut pool, job) = (pool(), job());
        pool.workers.mini_clusters = None;
        let wanted = wanted(&pool, &[("u-1", Some(&job), Some(running()))], &["u-1"]);
        assert_eq!(wanted[&its("u-1")].goal, Goal::Follow { needed: 0, min: 0, max: 0, after: 0 });
    }

    #[test]
    fn workers_stay_until_it_is_known_what_their_htcjobs_have_to_do() {
        let (mut pool, mut job) = (pool(), job());
        job.spec.mini_cluster = None;
        pool.workers.replicas = None;
        pool.workers.autoscaling = Some(Autoscaling { max: 9, ..Autoscaling::default() });
        let image = Group::Shared(shared(&pool, "i", "n"));
        let demand = |work: Option<Work>| {
            Demand::of(&pool, &[Asker { uid: "u".to_owned(), name: name("u"), job: Some(&job), work }])
        };
        let goal = |work: Option<Work>, alive: u32| {
            let names = Names::new(&name("p"), "0123456789").unwrap();
            let design = Design { names: &names, spec: &pool, operator: &name("o"), keys: InUse::FIRST };
            let there = BTreeMap::from([(image.clone(), There { alive, ..There::default() })]);
            demand(work).wanted(&design, &there, 0).unwrap()[&image].goal.wanted()
        };
        assert_eq!((goal(None, 3), goal(None, 0), goal(Some(Work::default()), 3)), (3, 0, 0));
        // Nor is it forgotten before why others have ended.
        let asked = |demand: Demand| {
            let names = Names::new(&name("p"), "0123456789").unwrap();
            demand.asked(&Design { names: &names, spec: &pool, operator: &name("o"), keys: InUse::FIRST })
        };
        assert_eq!(asked(demand(None)), BTreeSet::from([image.clone()]));
        assert!(asked(demand(Some(Work::default()))).is_empty());
    }
}
