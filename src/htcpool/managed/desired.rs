//! Desired workers of a pool, from its `HTCPool` and the demand of its `HTCJob`s. Pure.

use std::collections::{BTreeMap, BTreeSet};

use htc_api::{HTCJob, Isolation, ManagedPool, ObjectName, QuantityError};
use htc_machine::demand::JobDemand;
use htc_machine::scaling::Goal;
use htc_machine::worker_groups::{ExistingWorkers, SharedGoal, SharedGroup, WorkerGroup, WorkerLimits};

use super::demand::{group_of_image, shared_group, workers_needed};
use super::objects::{Design, WorkerKind, worker_image};
use crate::htcpool::managed::mini_cluster::{MiniClusterRequest, goals, mini_cluster_request};
use crate::htcpool::managed::observations::DesiredGroup;

/// Default of `scaleDownAfterSeconds`: how long a worker stays without a job.
const AFTER: u32 = 300;

/// An `HTCJob` in the pool that may request workers.
#[derive(Clone, Debug)]
pub(super) struct WorkerRequester<'a> {
    pub(super) uid: String,
    pub(super) name: ObjectName,
    /// `None` if it cannot be decoded.
    pub(super) job: Option<&'a HTCJob>,
    /// Its demand; `None` if it is not known.
    pub(super) work: Option<JobDemand>,
}

/// The workers that are requested from a pool.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PoolDemand {
    /// Goal for the workers that `HTCJob`s share.
    wish: SharedGoal,
    /// Groups with `HTCJob`s of unknown demand. Their workers stay.
    unknown: BTreeSet<SharedGroup>,
    /// Requests for workers of one `HTCJob`, by its uid. `None` if the `HTCJob` cannot be decoded, or its demand is not
    /// known.
    own: BTreeMap<String, Option<MiniClusterRequest>>,
    /// Maximum total of the workers that belong to single `HTCJob`s.
    most_own: u32,
    /// Seconds after which a worker without a job is removed.
    after: i64,
}

impl PoolDemand {
    /// Computes the demand from the pool's spec and the `HTCJob`s in it.
    pub(super) fn of(spec: &ManagedPool, askers: &[WorkerRequester<'_>]) -> Self {
        let number = |number: Option<i32>, default: u32| {
            number.map_or(default, |number| u32::try_from(number).unwrap_or_default())
        };
        let after = number(spec.workers.autoscaling.as_ref().and_then(|own| own.scale_down_after_seconds), AFTER);
        let needed = || workers_needed(spec, askers.iter().filter_map(|asker| Some((asker.job?, asker.work?))));
        let wish = match (&spec.workers.autoscaling, spec.workers.isolation) {
            (None, Isolation::None) => SharedGoal::Replicas(number(spec.workers.replicas, 0)),
            (None, Isolation::Namespace) => {
                SharedGoal::Divided { replicas: number(spec.workers.replicas, 0), needed: needed() }
            }
            (Some(autoscaling), _) => SharedGoal::Autoscale {
                needed: needed(),
                min: number(autoscaling.min, 0),
                max: number(Some(autoscaling.max), 0),
                scale_down_after: after.into(),
            },
        };
        let own = askers.iter().filter_map(|WorkerRequester { uid, name, job, work }| {
            let asked = match (job, work) {
                (Some(job), Some(work)) => Some(mini_cluster_request(spec, job, work, uid, name)?),
                (Some(job), None) if job.spec.mini_cluster.is_none() => return None,
                (Some(_), None) | (None, _) => None,
            };
            Some((uid.clone(), asked))
        });
        let unknown = askers.iter().filter(|asker| asker.work.is_none()).filter_map(|asker| {
            let job = asker.job.filter(|job| job.spec.mini_cluster.is_none())?;
            Some(shared_group(spec, &job.spec, &asker.name.namespace))
        });
        let unknown = unknown.collect();
        let most_own = spec.workers.mini_clusters.as_ref().map_or(0, |own| number(Some(own.max), 0));
        Self { wish, unknown, own: own.collect(), most_own, after: after.into() }
    }

    pub(super) fn most(&self) -> WorkerLimits {
        WorkerLimits { shared: self.wish.most(), own: self.most_own }
    }

    /// Returns the groups that workers are requested for.
    pub(super) fn requested_groups(&self, design: &Design<'_>) -> BTreeSet<WorkerGroup> {
        let of_pool = of_pool(design);
        let shared = self.wish.requested_groups(&of_pool).into_iter().cloned().map(WorkerGroup::Shared);
        let asks = |asked: &Option<MiniClusterRequest>| asked.as_ref().is_none_or(|asked| asked.count > 0);
        let own = self.own.iter().filter(|(_, asked)| asks(asked)).map(|(uid, _)| WorkerGroup::HTCJob(uid.clone()));
        let unknown = self.unknown.iter().cloned().map(WorkerGroup::Shared);
        shared.chain(unknown).chain(own).collect()
    }

    /// Returns the desired state of each group that is requested or has workers.
    ///
    /// # Errors
    /// A quantity that cannot be parsed.
    pub(super) fn desired_groups(
        &self,
        design: &Design<'_>,
        there: &BTreeMap<WorkerGroup, ExistingWorkers>,
        now: i64,
    ) -> Result<BTreeMap<WorkerGroup, DesiredGroup>, QuantityError> {
        let (mut shared, mut own) = (BTreeMap::new(), BTreeMap::new());
        for (group, there) in there {
            match group {
                WorkerGroup::Shared(group) => shared.insert(group.clone(), *there),
                WorkerGroup::HTCJob(uid) => own.insert(uid.clone(), *there),
            };
        }
        let mut wanted = BTreeMap::new();
        let isolated = design.spec.workers.isolation == Isolation::Namespace;
        for (group, goal) in self.wish.goals(&of_pool(design), &shared, &self.unknown, now) {
            let its = if group.namespace.is_some() == isolated {
                let kind = WorkerKind::shared(design.spec, &group)?;
                DesiredGroup { goal, template: Some(design.worker_template(&kind)), kind: Some(kind) }
            } else {
                // Workers from before tenants existed get no new job, and end after those that they have.
                DesiredGroup { goal, template: Some(String::new()), kind: None }
            };
            wanted.insert(WorkerGroup::Shared(group), its);
        }
        let counts = self.own.iter().filter_map(|(uid, asked)| Some((uid.clone(), asked.as_ref()?.count)));
        let counts = counts.filter(|(uid, count)| *count > 0 || own.contains_key(uid)).collect();
        for (uid, goal) in goals(&counts, &own, (self.most_own, self.after), now) {
            let alive = own.get(&uid).map_or(0, |there| there.alive);
            let its = match self.own.get(&uid) {
                Some(Some(asked)) => {
                    let template = Some(design.worker_template(&asked.kind));
                    DesiredGroup { goal, template, kind: Some(asked.kind.clone()) }
                }
                // The request is not known: the existing workers stay.
                Some(None) => {
                    let goal = Goal::Autoscale { needed: alive, min: 0, max: alive, scale_down_after: self.after };
                    DesiredGroup { goal, template: None, kind: None }
                }
                // The HTCJob is gone: its workers get no new job, and end after those that they have.
                None => DesiredGroup { goal, template: Some(String::new()), kind: None },
            };
            wanted.insert(WorkerGroup::HTCJob(uid), its);
        }
        Ok(wanted)
    }
}

/// Returns the group of the workers that exist without any demand.
fn of_pool(design: &Design<'_>) -> SharedGroup {
    group_of_image(design.spec, worker_image(design.spec), &design.names.pool.namespace)
}

#[cfg(test)]
mod tests {
    use htc_api::Autoscaling;
    use htc_machine::scaling::{
        AnswerQuality, Drain, EarlyExits, PodState, ScalePlan, SlotState, Worker, WorkerEvidence, scale,
    };
    use serde_json::json;

    use super::super::objects::KeyGenerations;
    use super::*;
    use crate::htcpool::managed::names::PoolNames;

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

    fn running() -> JobDemand {
        JobDemand { idle: 9, begun: true, ..JobDemand::default() }
    }

    fn ended() -> JobDemand {
        JobDemand { finished: 9, ended: true, ..JobDemand::default() }
    }

    fn wanted(
        spec: &ManagedPool,
        jobs: &[(&str, Option<&HTCJob>, Option<JobDemand>)],
        there: &[&str],
    ) -> BTreeMap<WorkerGroup, DesiredGroup> {
        let names = PoolNames::new(&name("p"), "0123456789").unwrap();
        let operator = name("o");
        let design = Design { names: &names, spec, operator: &operator, keys: KeyGenerations::FIRST, cpu_limits: None };
        let asker =
            |&(uid, job, work): &(&str, _, _)| WorkerRequester { uid: uid.to_owned(), name: name(uid), job, work };
        let jobs: Vec<WorkerRequester<'_>> = jobs.iter().map(asker).collect();
        let alive = ExistingWorkers { alive: 1, ..ExistingWorkers::default() };
        let there = there.iter().map(|uid| (WorkerGroup::HTCJob((*uid).to_owned()), alive)).collect();
        PoolDemand::of(spec, &jobs).desired_groups(&design, &there, 0).unwrap()
    }

    fn its(uid: &str) -> WorkerGroup {
        WorkerGroup::HTCJob(uid.to_owned())
    }

    #[test]
    fn mini_cluster_workers_are_separate_from_pool_workers() {
        let job = job();
        let jobs = [("u-1", Some(&job), Some(running())), ("u-2", Some(&job), Some(ended()))];
        let wanted = wanted(&pool(), &jobs, &[]);
        assert_eq!(wanted[&WorkerGroup::Shared(group_of_image(&pool(), "i", "n"))].goal, Goal::Replicas(2));
        // The pool may have three of the nine requested workers.
        assert_eq!(wanted[&its("u-1")].goal.wanted(), 3);
        assert_eq!(wanted[&its("u-1")].kind.as_ref().unwrap().own.as_ref().unwrap().name, name("u-1"));
        assert!(!wanted.contains_key(&its("u-2")), "it has none, and needs none");
    }

    #[test]
    fn mini_cluster_is_drained_only_if_its_htcjob_has_ended_or_is_gone() {
        let job = job();
        let there = ["ended", "gone", "unread", "unknown"];
        let jobs = [("ended", Some(&job), Some(ended())), ("unread", None, None), ("unknown", Some(&job), None)];
        let wanted = wanted(&pool(), &jobs, &there);
        let plan = |uid: &str, slot: SlotState| {
            let DesiredGroup { goal, template, .. } = &wanted[&its(uid)];
            let current = template.as_ref().is_none_or(|template| !template.is_empty());
            let workers = vec![Worker {
                number: 0,
                pod_state: PodState::Running,
                slot_state: slot,
                up_to_date: current,
                drain_accepted: false,
            }];
            let (deaths, taken) = (EarlyExits::default(), BTreeSet::new());
            scale(&WorkerEvidence {
                now: 1000,
                goal: *goal,
                workers,
                answer: AnswerQuality::Known,
                deaths,
                taken_numbers: taken,
                max_create: 9,
            })
        };
        let drained = |how| ScalePlan { drain: vec![(0, how)], ..ScalePlan::default() };
        let idle = SlotState::Idle { since: 1000 };
        assert_eq!(
            (plan("ended", idle), plan("ended", SlotState::Busy)),
            (drained(Drain::IfIdle), ScalePlan::default())
        );
        assert_eq!(
            (plan("gone", idle), plan("gone", SlotState::Busy)),
            (drained(Drain::IfIdle), drained(Drain::Graceful))
        );
        for uid in ["unread", "unknown"] {
            assert_eq!(
                (plan(uid, idle), plan(uid, SlotState::Busy)),
                (ScalePlan::default(), ScalePlan::default()),
                "{uid}"
            );
        }
    }

    #[test]
    fn disallowed_mini_cluster_workers_finish_their_jobs() {
        let (mut pool, job) = (pool(), job());
        pool.workers.mini_clusters = None;
        let wanted = wanted(&pool, &[("u-1", Some(&job), Some(running()))], &["u-1"]);
        assert_eq!(wanted[&its("u-1")].goal, Goal::Autoscale { needed: 0, min: 0, max: 0, scale_down_after: 0 });
    }

    #[test]
    fn workers_stay_while_demand_is_unknown() {
        let (mut pool, mut job) = (pool(), job());
        job.spec.mini_cluster = None;
        pool.workers.replicas = None;
        pool.workers.autoscaling = Some(Autoscaling { max: 9, ..Autoscaling::default() });
        let image = WorkerGroup::Shared(group_of_image(&pool, "i", "n"));
        let demand = |work: Option<JobDemand>| {
            PoolDemand::of(&pool, &[WorkerRequester { uid: "u".to_owned(), name: name("u"), job: Some(&job), work }])
        };
        let goal = |work: Option<JobDemand>, alive: u32| {
            let names = PoolNames::new(&name("p"), "0123456789").unwrap();
            let design = Design {
                names: &names,
                spec: &pool,
                operator: &name("o"),
                keys: KeyGenerations::FIRST,
                cpu_limits: None,
            };
            let there = BTreeMap::from([(image.clone(), ExistingWorkers { alive, ..ExistingWorkers::default() })]);
            demand(work).desired_groups(&design, &there, 0).unwrap()[&image].goal.wanted()
        };
        assert_eq!((goal(None, 3), goal(None, 0), goal(Some(JobDemand::default()), 3)), (3, 0, 0));
        // The record of early exits stays, too.
        let asked = |demand: PoolDemand| {
            let names = PoolNames::new(&name("p"), "0123456789").unwrap();
            demand.requested_groups(&Design {
                names: &names,
                spec: &pool,
                operator: &name("o"),
                keys: KeyGenerations::FIRST,
                cpu_limits: None,
            })
        };
        assert_eq!(asked(demand(None)), BTreeSet::from([image.clone()]));
        assert!(asked(demand(Some(JobDemand::default()))).is_empty());
    }
}
