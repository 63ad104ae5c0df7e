//! Sets of job indices, kept as ranges: an `HTCJob` may have 100,000 jobs, and their indices are nearly always
//! consecutive.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use super::ids::Index;

/// Suffix of a list that was cut.
const CUT: &str = ",…";

/// A set of [`Index`], as sorted, separate ranges; written `0-4,7`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Indices(Vec<(u32, u32)>);

impl Indices {
    /// Returns the indices `0..count`.
    #[must_use]
    pub fn first(count: u32) -> Self {
        count.checked_sub(1).map_or_else(Self::default, |last| Self(vec![(0, last)]))
    }

    /// Parses indexes and ranges in any order, overlapping or not; none if the text is malformed.
    #[must_use]
    pub fn in_any_order(text: &str) -> Option<Self> {
        let pieces: Option<Vec<Self>> = text.split(',').map(|piece| piece.parse().ok()).collect();
        pieces.map(|pieces| Self::union(&pieces))
    }

    /// Returns the number of indices.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.iter().map(|&(first, last)| (last - first) as usize + 1).sum()
    }

    /// Returns the largest index.
    #[must_use]
    pub fn last(&self) -> Option<Index> {
        self.0.last().map(|&(_, last)| Index(last))
    }

    /// Whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `index` is in the set.
    #[must_use]
    pub fn contains(&self, index: Index) -> bool {
        let after = self.0.partition_point(|&(first, _)| first <= index.0);
        after.checked_sub(1).is_some_and(|range| self.0[range].1 >= index.0)
    }

    /// Returns the indices in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = Index> + '_ {
        self.0.iter().flat_map(|&(first, last)| RangeInclusive::new(first, last)).map(Index)
    }

    /// Returns the indices from `first` on, in ascending order.
    pub fn iter_from(&self, first: Index) -> impl Iterator<Item = Index> + '_ {
        let ranges = self.0.iter().filter(move |(_, last)| *last >= first.0);
        ranges.flat_map(move |&(from, last)| RangeInclusive::new(from.max(first.0), last)).map(Index)
    }

    /// Returns the indices of this set that are not in `other`.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        self.iter().filter(|index| !other.contains(*index)).collect()
    }

    /// Returns the indices that are in any of these sets.
    #[must_use]
    pub fn union(sets: &[Self]) -> Self {
        let mut all: Vec<(u32, u32)> = sets.iter().flat_map(|set| set.0.iter().copied()).collect();
        all.sort_unstable();
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        for (first, last) in all {
            match ranges.last_mut() {
                Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
                _ => ranges.push((first, last)),
            }
        }
        Self(ranges)
    }

    /// Formats the ranges in at most `limit` bytes. A list that was cut ends with `,…`.
    #[must_use]
    pub fn within(&self, limit: usize) -> String {
        let text = self.to_string();
        if text.len() <= limit {
            return text;
        }
        let cut = text[..=limit.saturating_sub(CUT.len())].rfind(',').unwrap_or_default();
        format!("{}{CUT}", &text[..cut])
    }

    /// Returns the smallest `count` indices.
    #[must_use]
    pub fn take(&self, count: usize) -> Self {
        self.iter().take(count).collect()
    }
}

/// Collects indices in any order; duplicates count once.
impl FromIterator<Index> for Indices {
    fn from_iter<I: IntoIterator<Item = Index>>(numbers: I) -> Self {
        let mut all: Vec<u32> = numbers.into_iter().map(|index| index.0).collect();
        all.sort_unstable();
        all.dedup();
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        for number in all {
            match ranges.last_mut() {
                Some((_, last)) if last.checked_add(1) == Some(number) => *last = number,
                _ => ranges.push((number, number)),
            }
        }
        Self(ranges)
    }
}

impl fmt::Display for Indices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, (first, last)) in self.0.iter().enumerate() {
            let comma = if nth > 0 { "," } else { "" };
            if first == last {
                write!(f, "{comma}{first}")?;
            } else {
                write!(f, "{comma}{first}-{last}")?;
            }
        }
        Ok(())
    }
}

/// Error for a text that is not a list of ranges such as `0-4,7`.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a list of ranges such as 0-4,7")]
pub struct NotIndices(String);

impl FromStr for Indices {
    type Err = NotIndices;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        for piece in text.split(',').filter(|piece| !piece.is_empty()) {
            let (first, last) = piece.split_once('-').unwrap_or((piece, piece));
            let range = first.parse().ok().zip(last.parse().ok());
            let after = ranges.last().map(|&(_, last)| last);
            match range {
                Some((first, last)) if first <= last && after.is_none_or(|after: u32| after < first) => {
                    ranges.push((first, last));
                }
                _ => return Err(NotIndices(text.to_owned())),
            }
        }
        Ok(Self(ranges))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn indices_behave_as_a_set(numbers in proptest::collection::vec(0_u32..40, 0..40), others in proptest::collection::vec(0_u32..40, 0..40)) {
            let set: Indices = numbers.iter().copied().map(Index).collect();
            let other: Indices = others.iter().copied().map(Index).collect();
            let model: BTreeSet<u32> = numbers.iter().copied().collect();
            let rest: BTreeSet<u32> = model.difference(&others.iter().copied().collect()).copied().collect();
            prop_assert_eq!(set.iter().map(|index| index.0).collect::<Vec<_>>(), model.iter().copied().collect::<Vec<_>>());
            prop_assert_eq!(set.len(), model.len());
            let both: Indices = set.iter().chain(other.iter()).collect();
            prop_assert_eq!(Indices::union(&[set.clone(), other.clone()]), both);
            prop_assert_eq!(set.without(&other).iter().map(|index| index.0).collect::<Vec<_>>(), rest.into_iter().collect::<Vec<_>>());
            prop_assert_eq!(set.to_string().parse::<Indices>(), Ok(set.clone()));
            for number in 0..41 {
                prop_assert_eq!(set.contains(Index(number)), model.contains(&number));
            }
        }
    }

    #[test]
    fn indices_are_truncated_with_an_ellipsis() {
        let set: Indices = [1, 3, 5, 6, 7, 100].into_iter().map(Index).collect();
        assert_eq!(set.to_string(), "1,3,5-7,100");
        assert_eq!(set.within(11), "1,3,5-7,100");
        assert_eq!(set.within(10), "1,3,…");
        for limit in 5..11 {
            assert!(set.within(limit).len() <= limit, "{limit}");
        }
    }

    #[test]
    fn indices_are_parsed_strictly() {
        assert_eq!("0-4,7".parse::<Indices>().map(|set| set.len()), Ok(6));
        for bad in ["4-0", "a", "1,1", "3,1", "1-2-3"] {
            assert!(bad.parse::<Indices>().is_err(), "{bad}");
        }
    }
}
