//! What users ask for of single jobs: that one is held, released or removed.

use std::collections::BTreeMap;

use strum::{Display, EnumString, IntoStaticStr};

use super::ids::{Index, Timestamp};
use super::indices::Indices;

/// What can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Display, EnumString, IntoStaticStr)]
pub enum Wanted {
    /// The job is held until it is released, however often others release it; one that waits is not submitted.
    Hold,
    /// The job is released, once, whoever holds it.
    Release,
    /// The job is removed, or never submitted: it counts as failed. For good.
    Remove,
}

impl Wanted {
    /// What a user does who asks for it.
    #[must_use]
    pub const fn does(self) -> &'static str {
        match self {
            Self::Hold => "holds",
            Self::Release => "releases",
            Self::Remove => "removes",
        }
    }
}

/// A wish, and how far it has come.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Wish {
    /// See [`Wanted::Hold`].
    Hold,
    /// See [`Wanted::Release`]. It is over once an answer from after `since` shows that the job is not held, or once a release that
    /// was asked for then has ended well.
    Release {
        /// When it was wished.
        since: Timestamp,
        /// When it was last asked for.
        asked: Option<Timestamp>,
    },
    /// See [`Wanted::Remove`].
    Remove {
        /// HTCondor never had the job, and never will have it: that was proved.
        withdrawn: bool,
    },
}

impl Wish {
    /// As it begins, at this time.
    #[must_use]
    pub const fn new(wanted: Wanted, since: Timestamp) -> Self {
        match wanted {
            Wanted::Hold => Self::Hold,
            Wanted::Release => Self::Release { since, asked: None },
            Wanted::Remove => Self::Remove { withdrawn: false },
        }
    }

    /// What was asked for.
    #[must_use]
    pub const fn wanted(&self) -> Wanted {
        match self {
            Self::Hold => Wanted::Hold,
            Self::Release { .. } => Wanted::Release,
            Self::Remove { .. } => Wanted::Remove,
        }
    }

    /// Whether its job is not to be submitted.
    #[must_use]
    pub const fn keeps_back(&self) -> bool {
        match self {
            Self::Hold | Self::Remove { .. } => true,
            Self::Release { .. } => false,
        }
    }
}

/// A wish as the ledger has it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Wished {
    /// Its number in the ledger: one that replaces another has another number.
    pub number: i64,
    /// What is wished.
    pub wish: Wish,
    /// Whose wish it is, as long as no Event tells of it; and before that what it has replaced of which none tells either: `ann
    /// holds, then bob`.
    pub untold: Option<String>,
}

/// The wishes about the jobs of one object; at most one about each.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Wishes(BTreeMap<Index, Wished>);

impl Wishes {
    /// What is wished of this job.
    #[must_use]
    pub fn of(&self, index: Index) -> Option<&Wish> {
        self.0.get(&index).map(|wished| &wished.wish)
    }

    /// Whether this is wished of the job.
    #[must_use]
    pub fn is(&self, index: Index, wanted: Wanted) -> bool {
        self.of(index).is_some_and(|wish| wish.wanted() == wanted)
    }

    /// All of them, by index.
    pub fn iter(&self) -> impl Iterator<Item = (Index, &Wished)> {
        self.0.iter().map(|(index, wished)| (*index, wished))
    }

    /// All of them, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (Index, &mut Wished)> {
        self.0.iter_mut().map(|(index, wished)| (*index, wished))
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether some job is to be released.
    #[must_use]
    pub fn releases(&self) -> bool {
        self.0.values().any(|wished| wished.wish.wanted() == Wanted::Release)
    }

    /// Puts one in the place of what was wished of that job.
    pub fn insert(&mut self, index: Index, wished: Wished) {
        self.0.insert(index, wished);
    }

    /// Takes away those that are over.
    pub fn retain(&mut self, keep: impl Fn(Index, &Wish) -> bool) {
        self.0.retain(|index, wished| keep(*index, &wished.wish));
    }

    /// Jobs that are not to be submitted.
    #[must_use]
    pub fn kept_back(&self) -> Indices {
        self.matching(Wish::keeps_back)
    }

    /// Jobs that users removed before HTCondor had them, which is proved.
    #[must_use]
    pub fn withdrawn(&self) -> Indices {
        self.matching(|wish| *wish == Wish::Remove { withdrawn: true })
    }

    fn matching(&self, which: impl Fn(&Wish) -> bool) -> Indices {
        self.0.iter().filter(|(_, wished)| which(&wished.wish)).map(|(index, _)| *index).collect()
    }

    /// What was changed or taken away since `before`, by number.
    #[must_use]
    pub fn changes(&self, before: &Self) -> Vec<Change> {
        let changed = |(index, wished): (&Index, &Wished)| {
            let now = self.0.get(index).filter(|now| now.number == wished.number);
            (now != Some(wished)).then(|| Change { index: *index, number: wished.number, now: now.cloned() })
        };
        before.0.iter().filter_map(changed).collect()
    }
}

impl FromIterator<(Index, Wished)> for Wishes {
    fn from_iter<T: IntoIterator<Item = (Index, Wished)>>(wishes: T) -> Self {
        Self(wishes.into_iter().collect())
    }
}

/// What a decision makes of a wish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The job.
    pub index: Index,
    /// The wish's number: one that has replaced it meanwhile is not touched.
    pub number: i64,
    /// The wish as it is now; none if it is over.
    pub now: Option<Wished>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wish_that_was_replaced_is_not_changed() {
        let wished = |number, wish| Wished { number, wish, untold: None };
        let before: Wishes = [
            (Index(0), wished(1, Wish::Hold)),
            (Index(1), wished(2, Wish::new(Wanted::Remove, Timestamp(5)))),
            (Index(2), wished(3, Wish::new(Wanted::Release, Timestamp(5)))),
        ]
        .into_iter()
        .collect();
        let mut after = before.clone();
        assert!(after.changes(&before).is_empty());
        after.insert(Index(1), wished(2, Wish::Remove { withdrawn: true }));
        after.retain(|index, _| index != Index(2));
        let changes: Vec<_> =
            after.changes(&before).into_iter().map(|change| (change.number, change.now.is_some())).collect();
        assert_eq!(changes, [(2, true), (3, false)]);
        assert_eq!((after.withdrawn().to_string(), after.kept_back().to_string()), ("1".into(), "0-1".into()));
    }
}
