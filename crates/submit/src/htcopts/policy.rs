//! The site's rules for `htcopts`, where sites differ.

use std::str::FromStr;

use super::attributes::Attributes;

/// Options that users may set. The default applies to a site without settings of its own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HtcOptsPolicy {
    /// Attributes allowed in `+X = …`.
    pub attributes: Attributes,
    pub accounting_groups: AccountingGroups,
    pub priorities: PriorityRange,
}

/// The accounting groups that users may name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AccountingGroups {
    /// All groups, for the site's own options.
    Any,
    /// Groups that match one of these patterns.
    These(Vec<GroupPattern>),
}

/// An accounting group. With `.*` at its end it includes all groups below.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupPattern {
    name: String,
    below: bool,
}

/// Values that `priority` may have, both ends included. HTCondor orders the jobs of one submitter by it, and all
/// HTCJobs without a Secret have the same submitter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PriorityRange {
    least: i32,
    most: i32,
}

/// A setting in an invalid format.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    #[error(
        "{0:?} is not an accounting group: write a name such as `group_physics.run2`, or `group_physics.*` for it and all below it"
    )]
    Group(String),
    #[error("{0:?} is not a range: write two whole numbers, the smaller one first, such as `-1000..0`")]
    Priorities(String),
}

impl HtcOptsPolicy {
    /// Rules for the site's own defaults: every group and every priority.
    #[must_use]
    pub const fn of_the_site(attributes: Attributes) -> Self {
        let priorities = PriorityRange { least: i32::MIN, most: i32::MAX };
        Self { attributes, accounting_groups: AccountingGroups::Any, priorities }
    }
}

impl Default for AccountingGroups {
    fn default() -> Self {
        Self::These(Vec::new())
    }
}

impl AccountingGroups {
    /// Returns whether users may use this group, `group` or `group.user`. HTCondor ignores case in it.
    pub(super) fn allow(&self, name: &str) -> bool {
        match self {
            Self::Any => true,
            Self::These(patterns) => patterns.iter().any(|pattern| pattern.fits(name)),
        }
    }

    /// Lists the allowed groups for a message.
    pub(super) fn listed(&self) -> String {
        match self {
            Self::These(patterns) if !patterns.is_empty() => {
                let patterns: Vec<_> = patterns.iter().map(GroupPattern::to_string).collect();
                format!("allowed are {}", patterns.join(", "))
            }
            _ => "none is allowed".to_owned(),
        }
    }
}

impl GroupPattern {
    fn fits(&self, name: &str) -> bool {
        match name.split_at_checked(self.name.len()) {
            Some((same, rest)) => {
                same.eq_ignore_ascii_case(&self.name) && (rest.is_empty() || self.below && rest.starts_with('.'))
            }
            None => false,
        }
    }
}

impl std::fmt::Display for GroupPattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{}", self.name, if self.below { ".*" } else { "" })
    }
}

impl FromStr for GroupPattern {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, PolicyError> {
        let (name, below) = text.strip_suffix(".*").map_or((text, false), |name| (name, true));
        if !is_group(name) {
            return Err(PolicyError::Group(text.to_owned()));
        }
        Ok(Self { name: name.to_owned(), below })
    }
}

impl PriorityRange {
    pub(super) fn contains(self, priority: i64) -> bool {
        (i64::from(self.least)..=i64::from(self.most)).contains(&priority)
    }
}

impl Default for PriorityRange {
    fn default() -> Self {
        Self { least: -1000, most: 0 }
    }
}

impl std::fmt::Display for PriorityRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}..{}", self.least, self.most)
    }
}

impl FromStr for PriorityRange {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, PolicyError> {
        let ends = text.split_once("..").and_then(|(least, most)| Some((least.parse().ok()?, most.parse().ok()?)));
        match ends {
            Some((least, most)) if least <= most => Ok(Self { least, most }),
            _ => Err(PolicyError::Priorities(text.to_owned())),
        }
    }
}

/// Returns whether the text is names joined by dots, as HTCondor writes groups and their users.
pub(super) fn is_group(text: &str) -> bool {
    (1..=128).contains(&text.len())
        && text.split('.').all(|part| {
            part.starts_with(|c: char| c.is_ascii_alphanumeric())
                && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"_@-".contains(&b))
        })
}

/// Returns the group in a literal such as `"group.user"`.
pub(super) fn quoted_group(value: &str) -> Option<&str> {
    value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).filter(|name| is_group(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounting_group_is_allowed_by_name_or_by_its_parent() {
        let groups = AccountingGroups::These(["group_a", "group_b.*"].map(|text| text.parse().unwrap()).to_vec());
        for name in ["group_a", "GROUP_A", "group_b", "group_b.c", "group_b.c.user"] {
            assert!(groups.allow(name), "{name}");
        }
        for name in ["group_a.c", "group_", "group_aa", "group_bc", "group_bb.c", "c.group_b", "", "é"] {
            assert!(!groups.allow(name), "{name}");
        }
        assert_eq!(groups.listed(), "allowed are group_a, group_b.*");
        assert!(!AccountingGroups::default().allow("group_a") && AccountingGroups::Any.allow("x"));
        for text in ["", ".*", "*", "a.*.b", "a..b", "a b", ".a", "a.", "\"a\"", "a,b"] {
            assert!(text.parse::<GroupPattern>().is_err(), "{text}");
        }
    }

    #[test]
    fn priority_range_has_two_bounds() {
        let range: PriorityRange = "-5..10".parse().unwrap();
        assert!(range.contains(-5) && range.contains(10) && !range.contains(-6) && !range.contains(11));
        assert_eq!(range.to_string(), "-5..10");
        for text in ["", "5", "..", "1..", "..1", "2..1", "a..b", "0...1", "-99999999999..0"] {
            assert!(text.parse::<PriorityRange>().is_err(), "{text}");
        }
        let usual = PriorityRange::default();
        assert!(usual.contains(0) && usual.contains(-20) && !usual.contains(1));
        assert_eq!(usual.to_string().parse(), Ok(usual));
        assert!(!usual.contains(2_147_483_647));
    }
}
