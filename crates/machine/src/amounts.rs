//! Amounts of the resources that queues limit.

use std::fmt;

use strum::{Display, EnumCount, EnumIter, EnumString, IntoEnumIterator as _, IntoStaticStr, VariantNames};

/// Resource that a queue limits.
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
    VariantNames,
    IntoStaticStr,
)]
#[strum(serialize_all = "lowercase")]
pub enum Resource {
    /// Number of jobs.
    Jobs,
    /// CPU cores.
    Cpus,
    /// Memory in MiB.
    Memory,
    /// GPUs.
    Gpus,
}

impl Resource {
    /// Formats an amount of the resource for people.
    #[must_use]
    pub fn amount_text(self, amount: u64) -> String {
        match self {
            Self::Jobs | Self::Cpus | Self::Gpus => amount.to_string(),
            Self::Memory => format!("{amount}Mi"),
        }
    }
}

/// Set of resources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ResourceSet([bool; Resource::COUNT]);

impl ResourceSet {
    /// Builds the set of these resources.
    #[must_use]
    pub fn of(resources: &[Resource]) -> Self {
        let mut all = Self::default();
        for resource in resources {
            all.0[*resource as usize] = true;
        }
        all
    }

    /// Returns the first resource in the set that satisfies `such`.
    pub fn first(&self, such: impl Fn(Resource) -> bool) -> Option<Resource> {
        Resource::iter().find(|resource| self.0[*resource as usize] && such(*resource))
    }
}

/// An amount of each resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Amounts([u64; Resource::COUNT]);

/// A limit for each resource; none for no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct QuotaLimits([Option<u64>; Resource::COUNT]);

impl Amounts {
    /// Builds amounts from a list; the other resources are 0.
    #[must_use]
    pub fn of(amounts: &[(Resource, u64)]) -> Self {
        let mut all = Self::default();
        for (resource, amount) in amounts {
            all.0[*resource as usize] = *amount;
        }
        all
    }

    /// Returns the amount of this resource.
    #[must_use]
    pub const fn get(&self, resource: Resource) -> u64 {
        self.0[resource as usize]
    }

    /// Multiplies all amounts by `count`.
    #[must_use]
    pub fn times(&self, count: u64) -> Self {
        Self(self.0.map(|amount| amount.saturating_mul(count)))
    }

    /// Adds both amounts.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|place| self.0[place].saturating_add(other.0[place])))
    }

    /// Formats the amounts for the ledger: `jobs=1 cpus=4 memory=2048 gpus=0`.
    #[must_use]
    pub fn to_ledger_text(&self) -> String {
        let all: Vec<String> = Resource::iter().map(|resource| format!("{resource}={}", self.get(resource))).collect();
        all.join(" ")
    }

    /// Parses the ledger's text. A resource that is not in it is 0. None if the text is something else.
    #[must_use]
    pub fn from_ledger_text(text: &str) -> Option<Self> {
        let one = |word: &str| {
            let (name, amount) = word.split_once('=')?;
            Some((name.parse().ok()?, amount.parse().ok()?))
        };
        let all: Option<Vec<(Resource, u64)>> = text.split_whitespace().map(one).collect();
        Some(Self::of(&all.filter(|all| !all.is_empty())?))
    }
}

impl QuotaLimits {
    /// Builds limits from a list; the other resources have no limit.
    #[must_use]
    pub fn of(limits: &[(Resource, u64)]) -> Self {
        let mut all = Self::default();
        for (resource, limit) in limits {
            all.0[*resource as usize] = Some(*limit);
        }
        all
    }

    /// Returns as much of `more` as the limits leave beside `used`.
    #[must_use]
    pub fn left_of(&self, used: &Amounts, more: &Amounts) -> Amounts {
        Amounts(std::array::from_fn(|place| {
            self.0[place].map_or(more.0[place], |limit| more.0[place].min(limit.saturating_sub(used.0[place])))
        }))
    }

    /// Returns the limit of this resource; none for no limit.
    #[must_use]
    pub const fn get(&self, resource: Resource) -> Option<u64> {
        self.0[resource as usize]
    }

    /// Returns the resources that are limited, with their limits.
    pub fn iter(&self) -> impl Iterator<Item = (Resource, u64)> + '_ {
        Resource::iter().filter_map(|resource| Some((resource, self.get(resource)?)))
    }

    /// Returns how many jobs of `each` fit beside `used`; none if no resource that they need is limited.
    #[must_use]
    pub fn fit(&self, used: &Amounts, each: &Amounts) -> Option<u64> {
        let needed = self.iter().filter(|(resource, _)| each.get(*resource) > 0);
        needed.map(|(resource, limit)| limit.saturating_sub(used.get(resource)) / each.get(resource)).min()
    }

    /// Returns the first resource of which one more job of `each` would exceed the limit, beside `used`.
    #[must_use]
    pub fn short_of(&self, used: &Amounts, each: &Amounts) -> Option<Resource> {
        let lacks = |(resource, limit): &(Resource, u64)| {
            let more = each.get(*resource);
            more > 0 && used.get(*resource).saturating_add(more) > *limit
        };
        self.iter().find(lacks).map(|(resource, _)| resource)
    }
}

/// Lists the resources that are not 0, and jobs always: `3 jobs, 12 cpus, 24576Mi memory`.
impl fmt::Display for Amounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let some = Resource::iter().filter(|resource| *resource == Resource::Jobs || self.get(*resource) > 0);
        let words: Vec<String> =
            some.map(|resource| format!("{} {resource}", resource.amount_text(self.get(resource)))).collect();
        f.write_str(&words.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fit_is_bounded_by_the_scarcest_resource() {
        let limits = QuotaLimits::of(&[(Resource::Jobs, 10), (Resource::Memory, 1000)]);
        let each = Amounts::of(&[(Resource::Jobs, 1), (Resource::Cpus, 64), (Resource::Memory, 300)]);
        let used = |jobs, memory| Amounts::of(&[(Resource::Jobs, jobs), (Resource::Memory, memory)]);
        assert_eq!(limits.fit(&used(0, 0), &each), Some(3));
        assert_eq!(limits.fit(&used(9, 0), &each), Some(1));
        assert_eq!(limits.fit(&used(12, 0), &each), Some(0), "more than the limit is used");
        assert_eq!(QuotaLimits::of(&[(Resource::Gpus, 0)]).fit(&used(0, 0), &each), None, "none of it is needed");
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
    fn amounts_round_trip_as_ledger_text() {
        let each = Amounts::of(&[(Resource::Jobs, 1), (Resource::Memory, 300), (Resource::Gpus, 8)]);
        assert_eq!(each.to_ledger_text(), "jobs=1 cpus=0 memory=300 gpus=8");
        assert_eq!(Amounts::from_ledger_text(&each.to_ledger_text()), Some(each));
        for other in ["", "jobs", "jobs=x", "tapes=1"] {
            assert_eq!(Amounts::from_ledger_text(other), None, "{other:?}");
        }
    }
}
