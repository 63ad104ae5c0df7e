//! Division of a pool's workers among groups: workers of several images and of several HTCJobs.
//! Decides how many workers of each group there should be, and which are created first if not all can be.
//! Pure, as [`scale`](crate::scaling) is, which decides for each group by itself.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use crate::scaling::{EarlyExits, Goal, PodState, ScalePlan, Worker, WorkerEvidence, scale};

/// Number of early exits in a row after which an image returns its share of the workers.
const GIVES_BACK: u32 = 3;
/// Time in seconds after which other namespaces come first, if there are fewer workers than namespaces that need some.
const TURN: i64 = 3600;

/// Workers that are scaled together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WorkerGroup {
    /// Workers that HTCJobs share.
    Shared(SharedGroup),
    /// Workers of one HTCJob, by its uid.
    HTCJob(String),
}

/// Workers that HTCJobs share.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SharedGroup {
    /// Image of the workers.
    pub image: String,
    /// Namespace whose jobs alone may run there; none if jobs of all namespaces may.
    pub namespace: Option<String>,
    /// Text by which the volumes of the workers are known; empty without volumes.
    pub volumes: String,
}

/// How many shared workers there should be in all groups together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SharedGoal {
    /// A fixed number from the spec, all of the pool's own image and none of others.
    Replicas(u32),
    /// A fixed number from the spec, divided among the namespaces whose jobs need workers.
    Divided {
        /// Number of workers.
        replicas: u32,
        /// Number of workers that the jobs of each group would fill.
        needed: BTreeMap<SharedGroup, u32>,
    },
    /// As many as the jobs need.
    Autoscale {
        /// Number of workers that the jobs of each group would fill.
        needed: BTreeMap<SharedGroup, u32>,
        /// Minimum number of the pool's own image.
        min: u32,
        /// Maximum number of all groups together.
        max: u32,
        /// How long a worker must have been idle before it is removed, in seconds.
        scale_down_after: i64,
    },
}

/// Existing workers of one group, whatever number there should be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExistingWorkers {
    /// Number of workers that wait, run, or were just requested.
    pub alive: u32,
    /// Workers that ended too soon.
    pub deaths: EarlyExits,
}

impl EarlyExits {
    /// Whether so many workers of the image have failed in a row that it returns its share.
    #[must_use]
    pub const fn is_hopeless(self) -> bool {
        self.count >= GIVES_BACK
    }
}

impl ExistingWorkers {
    /// Returns the maximum number of workers. An image that fails again and again keeps its workers, and gets one more
    /// after each back-off.
    #[must_use]
    pub fn most(self, now: i64) -> u32 {
        if !self.deaths.is_hopeless() {
            u32::MAX
        } else if self.deaths.pause_ends().is_some_and(|ends| ends > now) {
            self.alive
        } else {
            self.alive.max(1)
        }
    }
}

impl SharedGoal {
    /// Returns the groups that need workers. `own`: the pool's own group.
    #[must_use]
    pub fn requested_groups<'a>(&'a self, own: &'a SharedGroup) -> BTreeSet<&'a SharedGroup> {
        let (fewest, needed) = match self {
            Self::Replicas(replicas) => (*replicas, None),
            Self::Divided { replicas, needed } => (*replicas, Some(needed)),
            Self::Autoscale { needed, min, .. } => (*min, Some(needed)),
        };
        let needed = needed.into_iter().flatten().filter(|(_, needed)| **needed > 0).map(|(group, _)| group);
        needed.chain((fewest > 0).then_some(own)).collect()
    }

    /// Returns the maximum number of workers of all images together.
    #[must_use]
    pub const fn most(&self) -> u32 {
        match self {
            Self::Replicas(replicas) | Self::Divided { replicas, .. } => *replicas,
            Self::Autoscale { max, .. } => *max,
        }
    }

    /// Returns the goal of each group: the pool's `own`, those that jobs need, and those that are `there`.
    ///
    /// If `max` is too small for all, each namespace gets one worker more in turn, and within it each image: so none
    /// gets all.
    /// Groups whose need is `unknown` keep their workers before others get any.
    #[must_use]
    pub fn goals(
        &self,
        own: &SharedGroup,
        there: &BTreeMap<SharedGroup, ExistingWorkers>,
        unknown: &BTreeSet<SharedGroup>,
        now: i64,
    ) -> BTreeMap<SharedGroup, Goal> {
        let divided = |needed: &BTreeMap<SharedGroup, u32>, fewest: u32, max: u32| {
            Division { own, there, unknown, now, max }.of(needed, fewest.min(max))
        };
        match self {
            Self::Replicas(replicas) => {
                let of = |group: SharedGroup| {
                    let replicas = if group == *own { *replicas } else { 0 };
                    (group, Goal::Replicas(replicas))
                };
                there.keys().chain([own]).cloned().map(of).collect()
            }
            Self::Divided { replicas, needed } => {
                let given = divided(needed, *replicas, *replicas).into_iter();
                given.map(|(group, (_, given))| (group, Goal::Replicas(given))).collect()
            }
            Self::Autoscale { needed, min, max, scale_down_after: after } => {
                let goal = |(group, (asked, given)): (SharedGroup, (u32, u32))| {
                    // A worker of one namespace is of no use to another. It is drained as soon as its jobs have ended.
                    let goal = if group.namespace.is_some() && given < asked {
                        Goal::Replicas(given)
                    } else {
                        Goal::Autoscale { needed: given, min: 0, max: given, scale_down_after: *after }
                    };
                    (group, goal)
                };
                divided(needed, *min, *max).into_iter().map(goal).collect()
            }
        }
    }
}

/// Divides workers among the groups that need them.
struct Division<'a> {
    own: &'a SharedGroup,
    there: &'a BTreeMap<SharedGroup, ExistingWorkers>,
    unknown: &'a BTreeSet<SharedGroup>,
    now: i64,
    max: u32,
}

impl Division<'_> {
    /// Returns what each group needs and gets. At least `fewest` are of the pool's own image.
    fn of(&self, needed: &BTreeMap<SharedGroup, u32>, fewest: u32) -> BTreeMap<SharedGroup, (u32, u32)> {
        let mut asked: BTreeMap<SharedGroup, u32> =
            self.there.keys().chain([self.own]).map(|group| (group.clone(), 0)).collect();
        asked.extend(needed.iter().map(|(group, needed)| (group.clone(), (*needed).min(self.most(group)))));
        let mut given: BTreeMap<SharedGroup, u32> =
            self.unknown.iter().map(|group| (group.clone(), self.alive(group))).collect();
        let of_own: BTreeMap<SharedGroup, u32> = asked
            .iter()
            .filter(|(group, _)| self.is_of_own(group))
            .map(|(group, asked)| (group.clone(), *asked))
            .collect();
        let asking = asked.iter().filter(|(_, asked)| **asked > 0).map(|(group, _)| &group.namespace);
        let is_scarce = asking.collect::<BTreeSet<_>>().len() > self.max as usize;
        let owner = |group: &SharedGroup| (is_scarce.then(|| self.place(group)), group.namespace.clone());
        // The minimum is given first to groups of the pool's image that need workers. The rest of it stays ready.
        let others: u32 = given.iter().filter(|(group, _)| !self.is_of_own(group)).map(|(_, given)| *given).sum();
        given = divide_workers(&of_own, given, fewest.saturating_add(others), owner);
        self.keep(&mut given, fewest);
        let given = divide_workers(&asked, given, self.max, owner);
        given
            .into_iter()
            .map(|(group, given)| (group.clone(), (asked.get(&group).copied().unwrap_or_default(), given)))
            .collect()
    }

    /// Returns the position of a namespace in the order. It changes after each [`TURN`], and does not depend on which
    /// other namespaces there are.
    fn place(&self, group: &SharedGroup) -> u64 {
        let turn = self.now.div_euclid(TURN);
        let mut hasher = DefaultHasher::new();
        (turn, group.namespace.as_deref()).hash(&mut hasher);
        hasher.finish()
    }

    /// Assigns the minimum workers that no jobs need: existing workers keep their group, new ones join the pool's own.
    fn keep(&self, given: &mut BTreeMap<SharedGroup, u32>, fewest: u32) {
        let has: u32 = given.iter().filter(|(group, _)| self.is_of_own(group)).map(|(_, given)| *given).sum();
        let mut left = fewest.saturating_sub(has);
        let others = self.there.keys().filter(|group| self.is_of_own(group) && *group != self.own);
        for group in others {
            let given = given.entry(group.clone()).or_default();
            let more = self.alive(group).min(self.most(group)).saturating_sub(*given).min(left);
            *given += more;
            left -= more;
        }
        let own = given.entry(self.own.clone()).or_default();
        *own = (*own).max(own.saturating_add(left).min(self.most(self.own)));
    }

    fn is_of_own(&self, group: &SharedGroup) -> bool {
        group.image == self.own.image
            && group.namespace.is_some() == self.own.namespace.is_some()
            && group.volumes == self.own.volumes
    }

    fn alive(&self, group: &SharedGroup) -> u32 {
        self.there.get(group).map_or(0, |there| there.alive)
    }

    fn most(&self, group: &SharedGroup) -> u32 {
        self.there.get(group).map_or(u32::MAX, |there| there.most(self.now))
    }
}

/// Divides up to `max` workers.
/// Each owner in turn gets one more for the group of its own that has got least here, as long as that group needs more
/// than it is `given` already.
pub fn divide_workers<K: Clone + Ord, O: Ord>(
    asked: &BTreeMap<K, u32>,
    mut given: BTreeMap<K, u32>,
    max: u32,
    owner: impl Fn(&K) -> O,
) -> BTreeMap<K, u32> {
    let mut left = max.saturating_sub(given.values().sum());
    for group in asked.keys() {
        given.entry(group.clone()).or_default();
    }
    let before = given.clone();
    let mut each: BTreeMap<O, Vec<&K>> = BTreeMap::new();
    for group in asked.keys() {
        each.entry(owner(group)).or_default().push(group);
    }
    while left > 0 {
        let mut satisfied = true;
        for groups in each.values() {
            let has = |group: &K| given.get(group).copied().unwrap_or_default();
            let lacking = groups.iter().filter(|group| asked.get(**group).is_some_and(|asked| *asked > has(group)));
            let least = lacking.min_by_key(|group| has(group) - before.get(**group).copied().unwrap_or_default());
            if let (true, Some(group)) = (left > 0, least) {
                *given.entry((*group).clone()).or_default() += 1;
                left -= 1;
                satisfied = false;
            }
        }
        if satisfied {
            break;
        }
    }
    given
}

/// Maximum number of workers that are not being removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerLimits {
    /// Maximum number of workers that all HTCJobs share.
    pub shared: u32,
    /// Maximum number of workers that belong to one HTCJob each, of all HTCJobs together.
    pub own: u32,
}

/// Decides for all workers of a pool. The two kinds of groups do not use each other's limits, and each number is given
/// once.
#[must_use]
pub fn scale_pool(
    groups: &BTreeMap<WorkerGroup, WorkerEvidence>,
    most: WorkerLimits,
) -> BTreeMap<WorkerGroup, ScalePlan> {
    let of = |which: fn(&WorkerGroup) -> bool| -> BTreeMap<WorkerGroup, WorkerEvidence> {
        groups.iter().filter(|(group, _)| which(group)).map(|(group, its)| (group.clone(), its.clone())).collect()
    };
    let (mut shared, mut own) =
        (of(|group| matches!(group, WorkerGroup::Shared(_))), of(|group| matches!(group, WorkerGroup::HTCJob(_))));
    let all = groups.values().flat_map(|group| &group.workers).map(|worker| worker.number);
    let mut taken: BTreeSet<u32> = all.collect();
    for evidence in shared.values_mut() {
        evidence.taken_numbers.extend(&taken);
    }
    let mut plans = scale_all(&shared, most.shared);
    taken.extend(plans.values().flat_map(|plan| &plan.create));
    for evidence in own.values_mut() {
        evidence.taken_numbers.extend(&taken);
    }
    plans.extend(scale_all(&own, most.own));
    plans
}

/// Decides for each group. All groups together have at most `most` workers that are not being removed.
/// If there is no place for a worker that jobs wait for, idle workers are removed at once.
///
/// Whether a worker accepts no more jobs is known from HTCondor only, and anyone with a worker's token can forge that.
/// Therefore there are never more than twice as many pods that this operator has not drained.
///
/// A worker that may or may not have been created, and is not needed any more, does not count: if it does not exist,
/// nothing would ever report that.
/// If it exists, there is one worker too many until the watch shows it.
#[must_use]
pub fn scale_all<K: Clone + Ord>(groups: &BTreeMap<K, WorkerEvidence>, most: u32) -> BTreeMap<K, ScalePlan> {
    let is_unsure = |worker: &&Worker| worker.pod_state == PodState::Requested { confirmed: false };
    let (unsure, sure): (Vec<&Worker>, Vec<&Worker>) =
        groups.values().flat_map(|group| &group.workers).partition(is_unsure);
    let count = |which: fn(&Worker) -> bool| sure.iter().filter(|worker| which(worker)).count() as u64;
    let most = u64::from(most);
    let free = most.saturating_sub(count(Worker::counts)).min((2 * most).saturating_sub(count(Worker::is_there)));
    // Workers that may or may not exist share the free places when they are requested again; new workers get the rest.
    let (mut again, mut room) = (free, free.saturating_sub(unsure.len() as u64));
    let counted = |evidence: &WorkerEvidence| evidence.workers.iter().filter(|worker| worker.counts()).count() as u64;
    let lacking = |evidence: &WorkerEvidence| u64::from(evidence.goal.wanted()).saturating_sub(counted(evidence));
    let crowded = groups.values().map(lacking).sum::<u64>() > room;
    let mut taken: BTreeSet<u32> =
        groups.values().flat_map(|group| &group.workers).map(|worker| worker.number).collect();
    let mut plans = BTreeMap::new();
    for (group, evidence) in groups {
        let mut evidence = evidence.clone();
        if let (true, Goal::Autoscale { scale_down_after: after, .. }) = (crowded, &mut evidence.goal) {
            *after = 0;
        }
        evidence.taken_numbers.extend(&taken);
        evidence.max_create = u32::try_from(room).unwrap_or(u32::MAX);
        let mut plan = scale(&evidence);
        let own: BTreeSet<u32> = evidence.workers.iter().map(|worker| worker.number).collect();
        plan.create.retain(|number| {
            let may = !own.contains(number) || again > 0;
            again = again.saturating_sub(own.contains(number).into());
            may
        });
        room -= plan.create.iter().filter(|number| !own.contains(number)).count() as u64;
        taken.extend(&plan.create);
        plans.insert(group.clone(), plan);
    }
    plans
}

#[cfg(test)]
mod tests;
