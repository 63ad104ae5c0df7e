//! Workers of several images, and of several HTCJobs, in one pool: how many of each there should be, and which are made first when not all can
//! be. Pure, as [`scale`](super::scale) is, which decides for each group by itself.

use std::collections::{BTreeMap, BTreeSet};

use super::scale::{Deaths, Evidence, Goal, Plan, Pod, Worker, scale};

/// When so many workers of an image have ended too soon, and none has not, the image gives back its share of the room.
const GIVES_BACK: u32 = 3;

/// Workers that are decided about together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Group {
    /// Those of an image that are no HTCJob's own.
    Image(String),
    /// Those of one HTCJob, by its uid.
    HTCJob(String),
}

/// What there should be of all images together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wish {
    /// As many of the pool's own image as somebody has written, and none of others.
    Replicas(u32),
    /// As many as the jobs need.
    Follow {
        /// Workers that the jobs of each image fill.
        needed: BTreeMap<String, u32>,
        /// Fewest of the pool's own image.
        min: u32,
        /// Most of all images together.
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
    /// Images that workers are asked for; `own`: that of the pool.
    #[must_use]
    pub fn asked<'a>(&'a self, own: &'a str) -> BTreeSet<&'a str> {
        let (fewest, needed) = match self {
            Self::Replicas(replicas) => (*replicas, None),
            Self::Follow { needed, min, .. } => (*min, Some(needed)),
        };
        let needed = needed.into_iter().flatten().filter(|(_, needed)| **needed > 0).map(|(image, _)| image.as_str());
        needed.chain((fewest > 0).then_some(own)).collect()
    }

    /// Most workers of all images together.
    #[must_use]
    pub const fn most(&self) -> u32 {
        match self {
            Self::Replicas(replicas) => *replicas,
            Self::Follow { max, .. } => *max,
        }
    }

    /// What there should be of each image: of the pool's `own`, of those that jobs need, and of those `there`.
    ///
    /// Where `max` is too small for all of them each gets one more in turn, so none gets all. Images of which it is `unknown` what is
    /// needed keep what they have before others get anything.
    #[must_use]
    pub fn goals(
        &self,
        own: &str,
        there: &BTreeMap<String, There>,
        unknown: &BTreeSet<String>,
        now: i64,
    ) -> BTreeMap<String, Goal> {
        let images = there.keys().map(String::as_str).chain([own]).map(str::to_owned);
        match self {
            Self::Replicas(replicas) => {
                let of = |image: String| {
                    let replicas = if image == own { *replicas } else { 0 };
                    (image, Goal::Replicas(replicas))
                };
                images.map(of).collect()
            }
            Self::Follow { needed, min, max, after } => {
                let mut asked: BTreeMap<String, u32> = images.map(|image| (image, 0)).collect();
                asked.extend(needed.iter().map(|(image, needed)| (image.clone(), *needed)));
                let most = |image: &str| there.get(image).map_or(u32::MAX, |there| there.most(now));
                for (image, asked) in &mut asked {
                    *asked = (*asked).min(most(image));
                }
                let fewest = (*min).min(*max).min(most(own));
                let alive = |image: &String| there.get(image).map_or(0, |there| there.alive);
                let mut kept: BTreeMap<String, u32> =
                    unknown.iter().map(|image| (image.clone(), alive(image))).collect();
                let owns = kept.entry(own.to_owned()).or_default();
                *owns = fewest.max(*owns);
                let given = share(&asked, kept, *max);
                let goal = |needed: u32| Goal::Follow { needed, min: 0, max: needed, after: *after };
                given.into_iter().map(|(image, given)| (image, goal(given))).collect()
            }
        }
    }
}

/// What each gets of `max`: one more in turn, as long as it asks for more than it is `given` already.
pub(super) fn share(
    asked: &BTreeMap<String, u32>,
    mut given: BTreeMap<String, u32>,
    max: u32,
) -> BTreeMap<String, u32> {
    let mut left = max.saturating_sub(given.values().sum());
    for name in asked.keys() {
        given.entry(name.clone()).or_default();
    }
    loop {
        let before = left;
        for (name, given) in &mut given {
            if left > 0 && asked.get(name).is_some_and(|asked| asked > given) {
                *given += 1;
                left -= 1;
            }
        }
        if left == before {
            return given;
        }
    }
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
        (of(|group| matches!(group, Group::Image(_))), of(|group| matches!(group, Group::HTCJob(_))));
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
