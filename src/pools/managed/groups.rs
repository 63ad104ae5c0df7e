//! Workers of several images, and of several HTCJobs, in one pool: how many of each there should be, and which are made first when not all can
//! be. Pure, as [`scale`](super::scale) is, which decides for each group by itself.

use std::collections::{BTreeMap, BTreeSet};

use sha2::{Digest as _, Sha256};

use super::scale::{Deaths, Evidence, Goal, Plan, Pod, Worker, scale};

/// When so many workers of an image have ended too soon, and none has not, the image gives back its share of the room.
const GIVES_BACK: u32 = 3;
/// Where there are fewer workers than namespaces that want some, other namespaces come first after so many seconds.
const TURN: i64 = 3600;

/// Workers that are decided about together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Group {
    /// Workers that HTCJobs share.
    Shared(Shared),
    /// Those of one HTCJob, by its uid.
    HTCJob(String),
}

/// Workers that HTCJobs share.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shared {
    /// The image of the workers.
    pub image: String,
    /// The namespace whose jobs alone run there. None: those of all namespaces.
    pub namespace: Option<String>,
}

/// What there should be of all shared workers together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wish {
    /// As many of the pool's own image as somebody has written, and none of others.
    Replicas(u32),
    /// The same, divided among the namespaces whose jobs need them.
    Divided {
        /// How many.
        replicas: u32,
        /// Workers that the jobs of each group fill.
        needed: BTreeMap<Shared, u32>,
    },
    /// As many as the jobs need.
    Follow {
        /// Workers that the jobs of each group fill.
        needed: BTreeMap<Shared, u32>,
        /// Fewest of the pool's own image.
        min: u32,
        /// Most of all groups together.
        max: u32,
        /// How long one has had nothing to do when it goes, in seconds.
        after: i64,
    },
}

/// What is known of the workers of one image, whatever there should be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct There {
    /// Those that wait, run, or were made just now.
    pub alive: u32,
    /// Those that ended too soon.
    pub deaths: Deaths,
}

impl Deaths {
    /// No worker of the image has stayed so far.
    #[must_use]
    pub const fn is_hopeless(self) -> bool {
        self.count >= GIVES_BACK
    }
}

impl There {
    /// Most that there should be: an image that fails again and again keeps what it has, and gets one more after each pause.
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

impl Wish {
    /// Groups that workers are asked for; `own`: that of the pool.
    #[must_use]
    pub fn asked<'a>(&'a self, own: &'a Shared) -> BTreeSet<&'a Shared> {
        let (fewest, needed) = match self {
            Self::Replicas(replicas) => (*replicas, None),
            Self::Divided { replicas, needed } => (*replicas, Some(needed)),
            Self::Follow { needed, min, .. } => (*min, Some(needed)),
        };
        let needed = needed.into_iter().flatten().filter(|(_, needed)| **needed > 0).map(|(group, _)| group);
        needed.chain((fewest > 0).then_some(own)).collect()
    }

    /// Most workers of all images together.
    #[must_use]
    pub const fn most(&self) -> u32 {
        match self {
            Self::Replicas(replicas) | Self::Divided { replicas, .. } => *replicas,
            Self::Follow { max, .. } => *max,
        }
    }

    /// What there should be of each group: of the pool's `own`, of those that jobs need, and of those `there`.
    ///
    /// Where `max` is too small for all of them each namespace gets one more in turn, and in it each image: so none gets all. Groups of
    /// which it is `unknown` what is needed keep what they have before others get anything.
    #[must_use]
    pub fn goals(
        &self,
        own: &Shared,
        there: &BTreeMap<Shared, There>,
        unknown: &BTreeSet<Shared>,
        now: i64,
    ) -> BTreeMap<Shared, Goal> {
        let divided = |needed: &BTreeMap<Shared, u32>, fewest: u32, max: u32| {
            Division { own, there, unknown, now, max }.of(needed, fewest.min(max))
        };
        match self {
            Self::Replicas(replicas) => {
                let of = |group: Shared| {
                    let replicas = if group == *own { *replicas } else { 0 };
                    (group, Goal::Replicas(replicas))
                };
                there.keys().chain([own]).cloned().map(of).collect()
            }
            Self::Divided { replicas, needed } => {
                let given = divided(needed, *replicas, *replicas).into_iter();
                given.map(|(group, (_, given))| (group, Goal::Replicas(given))).collect()
            }
            Self::Follow { needed, min, max, after } => {
                let goal = |(group, (asked, given)): (Shared, (u32, u32))| {
                    // A worker of one namespace is of no use to another. It is drained as soon as its jobs have ended.
                    let goal = if group.namespace.is_some() && given < asked {
                        Goal::Replicas(given)
                    } else {
                        Goal::Follow { needed: given, min: 0, max: given, after: *after }
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
    own: &'a Shared,
    there: &'a BTreeMap<Shared, There>,
    unknown: &'a BTreeSet<Shared>,
    now: i64,
    max: u32,
}

impl Division<'_> {
    /// What each group asks for and gets. There are at least `fewest` of the pool's own image.
    fn of(&self, needed: &BTreeMap<Shared, u32>, fewest: u32) -> BTreeMap<Shared, (u32, u32)> {
        let mut asked: BTreeMap<Shared, u32> =
            self.there.keys().chain([self.own]).map(|group| (group.clone(), 0)).collect();
        asked.extend(needed.iter().map(|(group, needed)| (group.clone(), (*needed).min(self.most(group)))));
        let mut given: BTreeMap<Shared, u32> =
            self.unknown.iter().map(|group| (group.clone(), self.alive(group))).collect();
        let of_own: BTreeMap<Shared, u32> = asked
            .iter()
            .filter(|(group, _)| self.is_of_own(group))
            .map(|(group, asked)| (group.clone(), *asked))
            .collect();
        let asking = asked.iter().filter(|(_, asked)| **asked > 0).map(|(group, _)| &group.namespace);
        let is_scarce = asking.collect::<BTreeSet<_>>().len() > self.max as usize;
        let owner = |group: &Shared| (is_scarce.then(|| self.place(group)), group.namespace.clone());
        // The minimum goes first to the groups of the pool's image that need workers. The rest of it stays ready.
        let others: u32 = given.iter().filter(|(group, _)| !self.is_of_own(group)).map(|(_, given)| *given).sum();
        given = share(&of_own, given, fewest.saturating_add(others), owner);
        self.keep(&mut given, fewest);
        let given = share(&asked, given, self.max, owner);
        given
            .into_iter()
            .map(|(group, given)| (group.clone(), (asked.get(&group).copied().unwrap_or_default(), given)))
            .collect()
    }

    /// The place of a namespace in line. It is another one after each [`TURN`], and does not depend on who else is in line.
    fn place(&self, group: &Shared) -> [u8; 32] {
        let turn = self.now.div_euclid(TURN);
        Sha256::digest(format!("{turn} {}", group.namespace.as_deref().unwrap_or_default())).into()
    }

    /// Assigns the minimum workers that no jobs need: existing workers keep their group, new ones join the pool's own.
    fn keep(&self, given: &mut BTreeMap<Shared, u32>, fewest: u32) {
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

    fn is_of_own(&self, group: &Shared) -> bool {
        group.image == self.own.image && group.namespace.is_some() == self.own.namespace.is_some()
    }

    fn alive(&self, group: &Shared) -> u32 {
        self.there.get(group).map_or(0, |there| there.alive)
    }

    fn most(&self, group: &Shared) -> u32 {
        self.there.get(group).map_or(u32::MAX, |there| there.most(self.now))
    }
}

/// What each gets of `max`: each owner in turn gets one more for that of its groups that has got least here, as long as it asks for more
/// than it is `given` already.
pub(super) fn share<K: Clone + Ord, O: Ord>(
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

/// Most workers that stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Most {
    /// Of those that all HTCJobs share.
    pub shared: u32,
    /// Of those that are one HTCJob's own, of all HTCJobs together.
    pub own: u32,
}

/// Decides for all workers of a pool: neither kind takes the other's room, and each number is given once.
#[must_use]
pub fn scale_pool(groups: &BTreeMap<Group, Evidence>, most: Most) -> BTreeMap<Group, Plan> {
    let of = |which: fn(&Group) -> bool| -> BTreeMap<Group, Evidence> {
        groups.iter().filter(|(group, _)| which(group)).map(|(group, its)| (group.clone(), its.clone())).collect()
    };
    let (mut shared, mut own) =
        (of(|group| matches!(group, Group::Shared(_))), of(|group| matches!(group, Group::HTCJob(_))));
    let all = groups.values().flat_map(|group| &group.workers).map(|worker| worker.number);
    let mut taken: BTreeSet<u32> = all.collect();
    for evidence in shared.values_mut() {
        evidence.taken.extend(&taken);
    }
    let mut plans = scale_all(&shared, most.shared);
    taken.extend(plans.values().flat_map(|plan| &plan.make));
    for evidence in own.values_mut() {
        evidence.taken.extend(&taken);
    }
    plans.extend(scale_all(&own, most.own));
    plans
}

/// Decides for each image. All of them together have no more workers than `most` that stay: where there is no room for one that jobs
/// wait for, those that have nothing to do go at once.
///
/// That a worker takes no more jobs is HTCondor's word, which somebody with a worker's token can forge: so there are never more than twice
/// as many pods that this operator has not sent away.
///
/// A worker of which it is not known whether it was made, and that is wanted no more, takes no room: if it is not there, nothing would ever
/// say so. If it is, there is one too many until the watch shows it.
#[must_use]
pub fn scale_all<K: Clone + Ord>(groups: &BTreeMap<K, Evidence>, most: u32) -> BTreeMap<K, Plan> {
    let is_unsure = |worker: &&Worker| worker.pod == Pod::Made { sure: false };
    let (unsure, sure): (Vec<&Worker>, Vec<&Worker>) =
        groups.values().flat_map(|group| &group.workers).partition(is_unsure);
    let count = |which: fn(&Worker) -> bool| sure.iter().filter(|worker| which(worker)).count() as u64;
    let most = u64::from(most);
    let free = most.saturating_sub(count(Worker::counts)).min((2 * most).saturating_sub(count(Worker::is_there)));
    // Those of which it is not known whether they are there share it when they are asked for again; new ones get what they leave.
    let (mut again, mut room) = (free, free.saturating_sub(unsure.len() as u64));
    let counted = |evidence: &Evidence| evidence.workers.iter().filter(|worker| worker.counts()).count() as u64;
    let lacking = |evidence: &Evidence| u64::from(evidence.goal.wanted()).saturating_sub(counted(evidence));
    let crowded = groups.values().map(lacking).sum::<u64>() > room;
    let mut taken: BTreeSet<u32> =
        groups.values().flat_map(|group| &group.workers).map(|worker| worker.number).collect();
    let mut plans = BTreeMap::new();
    for (group, evidence) in groups {
        let mut evidence = evidence.clone();
        if let (true, Goal::Follow { after, .. }) = (crowded, &mut evidence.goal) {
            *after = 0;
        }
        evidence.taken.extend(&taken);
        evidence.room = u32::try_from(room).unwrap_or(u32::MAX);
        let mut plan = scale(&evidence);
        let own: BTreeSet<u32> = evidence.workers.iter().map(|worker| worker.number).collect();
        plan.make.retain(|number| {
            let may = !own.contains(number) || again > 0;
            again = again.saturating_sub(own.contains(number).into());
            may
        });
        room -= plan.make.iter().filter(|number| !own.contains(number)).count() as u64;
        taken.extend(&plan.make);
        plans.insert(group.clone(), plan);
    }
    plans
}

#[cfg(test)]
mod tests;
