//! What is limited, and how much of it.

use std::fmt;

use clap::ValueEnum;
use strum::{Display, EnumCount, EnumIter, EnumString, IntoEnumIterator as _, IntoStaticStr};

/// What a queue limits.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Display,
    EnumCount,
    EnumIter,
    EnumString,
    IntoStaticStr,
    ValueEnum,
)]
#[strum(serialize_all = "lowercase")]
pub enum Resource {
    /// Jobs.
    Jobs,
    /// Cores.
    Cpus,
    /// Memory in MiB.
    Memory,
    /// GPUs.
    Gpus,
}

impl Resource {
    /// An amount of it, for people.
    #[must_use]
    pub fn shown(self, amount: u64) -> String {
        match self {
            Self::Jobs | Self::Cpus | Self::Gpus => amount.to_string(),
            Self::Memory => format!("{amount}Mi"),
        }
    }
}

/// Some of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ResourceSet([bool; Resource::COUNT]);

impl ResourceSet {
    /// These.
    #[must_use]
    pub fn of(resources: &[Resource]) -> Self {
        let mut all = Self::default();
        for resource in resources {
            all.0[*resource as usize] = true;
        }
        all
    }

    /// The first of them that is such.
    pub fn first(&self, such: impl Fn(Resource) -> bool) -> Option<Resource> {
        Resource::iter().find(|resource| self.0[*resource as usize] && such(*resource))
    }
}

/// So much of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Amounts([u64; Resource::COUNT]);

/// At most so much of each; none: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Limits([Option<u64>; Resource::COUNT]);

impl Amounts {
    /// Of these, and nothing of the others.
    #[must_use]
    pub fn of(amounts: &[(Resource, u64)]) -> Self {
        let mut all = Self::default();
        for (resource, amount) in amounts {
            all.0[*resource as usize] = *amount;
        }
        all
    }

    /// How much of this.
    #[must_use]
    pub const fn get(&self, resource: Resource) -> u64 {
        self.0[resource as usize]
    }

    /// So many times as much.
    #[must_use]
    pub fn times(&self, count: u64) -> Self {
        Self(self.0.map(|amount| amount.saturating_mul(count)))
    }

    /// Both together.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|place| self.0[place].saturating_add(other.0[place])))
    }

    /// As the ledger keeps it: `jobs=1 cpus=4 memory=2048 gpus=0`.
    #[must_use]
    pub fn kept(&self) -> String {
        let all: Vec<String> = Resource::iter().map(|resource| format!("{resource}={}", self.get(resource))).collect();
        all.join(" ")
    }

    /// The same, read again; what it does not name is 0. None if it is something else.
    #[must_use]
    pub fn of_kept(text: &str) -> Option<Self> {
        let one = |word: &str| {
            let (name, amount) = word.split_once('=')?;
            Some((name.parse().ok()?, amount.parse().ok()?))
        };
        let all: Option<Vec<(Resource, u64)>> = text.split_whitespace().map(one).collect();
        Some(Self::of(&all.filter(|all| !all.is_empty())?))
    }
}

impl Limits {
    /// Of these, and none of the others.
    #[must_use]
    pub fn of(limits: &[(Resource, u64)]) -> Self {
        let mut all = Self::default();
        for (resource, limit) in limits {
            all.0[*resource as usize] = Some(*limit);
        }
        all
    }

    /// As much of `more` as the limits leave beside `used`.
    #[must_use]
    pub fn left_of(&self, used: &Amounts, more: &Amounts) -> Amounts {
        Amounts(std::array::from_fn(|place| {
            self.0[place].map_or(more.0[place], |limit| more.0[place].min(limit.saturating_sub(used.0[place])))
        }))
    }

    /// That of this.
    #[must_use]
    pub const fn get(&self, resource: Resource) -> Option<u64> {
        self.0[resource as usize]
    }

    /// What is limited, and to how much.
    pub fn iter(&self) -> impl Iterator<Item = (Resource, u64)> + '_ {
        Resource::iter().filter_map(|resource| Some((resource, self.get(resource)?)))
    }

    /// How many jobs of `each` fit beside `used`; none if nothing that they need is limited.
    #[must_use]
    pub fn fit(&self, used: &Amounts, each: &Amounts) -> Option<u64> {
        let needed = self.iter().filter(|(resource, _)| each.get(*resource) > 0);
        needed.map(|(resource, limit)| limit.saturating_sub(used.get(resource)) / each.get(resource)).min()
    }

    /// The first thing of which one more job of `each` would use too much beside `used`.
    #[must_use]
    pub fn short_of(&self, used: &Amounts, each: &Amounts) -> Option<Resource> {
        let lacks = |(resource, limit): &(Resource, u64)| {
            let more = each.get(*resource);
            more > 0 && used.get(*resource).saturating_add(more) > *limit
        };
        self.iter().find(lacks).map(|(resource, _)| resource)
    }
}

/// `3 jobs, 12 cpus, 24576Mi memory`: what there is some of.
impl fmt::Display for Amounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let some = Resource::iter().filter(|resource| *resource == Resource::Jobs || self.get(*resource) > 0);
        let words: Vec<String> =
            some.map(|resource| format!("{} {resource}", resource.shown(self.get(resource)))).collect();
        f.write_str(&words.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_is_what_the_scarcest_leaves() {
        let limits = Limits::of(&[(Resource::Jobs, 10), (Resource::Memory, 1000)]);
        let each = Amounts::of(&[(Resource::Jobs, 1), (Resource::Cpus, 64), (Resource::Memory, 300)]);
        let used = |jobs, memory| Amounts::of(&[(Resource::Jobs, jobs), (Resource::Memory, memory)]);
        assert_eq!(limits.fit(&used(0, 0), &each), Some(3));
        assert_eq!(limits.fit(&used(9, 0), &each), Some(1));
        assert_eq!(limits.fit(&used(12, 0), &each), Some(0), "more than the limit is used");
        assert_eq!(Limits::of(&[(Resource::Gpus, 0)]).fit(&used(0, 0), &each), None, "none of it is needed");
        assert_eq!(limits.short_of(&used(0, 800), &each), Some(Resource::Memory));
        assert_eq!(limits.short_of(&used(10, 0), &each), Some(Resource::Jobs));
        assert_eq!(limits.short_of(&used(9, 700), &each), None);
        assert_eq!(each.times(2).to_string(), "2 jobs, 128 cpus, 600Mi memory");
        assert_eq!(
            limits.left_of(&used(1, 900), &each.times(100)).get(Resource::Jobs),
            limits.get(Resource::Jobs).unwrap() - 1
        );
    }

    #[test]
    fn what_is_kept_is_read_again() {
        let each = Amounts::of(&[(Resource::Jobs, 1), (Resource::Memory, 300), (Resource::Gpus, 8)]);
        assert_eq!(each.kept(), "jobs=1 cpus=0 memory=300 gpus=8");
        assert_eq!(Amounts::of_kept(&each.kept()), Some(each));
        for other in ["", "jobs", "jobs=x", "tapes=1"] {
            assert_eq!(Amounts::of_kept(other), None, "{other:?}");
        }
    }
}
