//! Names and numbers that must not be mixed up.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use strum::{Display, EnumIter, EnumString, IntoStaticStr};

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(std::sync::Arc<str>);

        impl $name {
            /// The text itself.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        /// A map by name can be asked with a `&str`: both have the same hash and order.
        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.into())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

name! {
    /// Kubernetes' uid of one `HTCJob`: two objects of the same name, one after the other, differ in it.
    Uid
}
name! {
    /// Name of a schedd as its collector knows it, e.g. `schedd@test`.
    ScheddName
}
impl ScheddName {
    /// Whether both name one schedd: HTCondor compares names of machines and daemons without regard to case.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        self.as_str().eq_ignore_ascii_case(other.as_str())
    }
}
number! {
    /// Which submission of an `HTCJob` this is, from 1.
    Attempt(u32)
}
number! {
    /// Number of a job within its `HTCJob`, from 0; the script's argument.
    Index(u32)
}
number! {
    /// `ClusterId`, HTCondor's number of one `condor_submit`.
    ClusterId(u64)
}
number! {
    /// `JobQueueBirthdate` of a schedd (unix seconds): it changes when the job queue is lost, after which ids start again.
    Birthdate(i64)
}
number! {
    /// A moment on the clock of who runs the jobs, unix seconds: the schedd's, as job ads have it, or the cluster's, as Pods have it. Never
    /// compared with [`Timestamp`].
    SchedDate(i64)
}
number! {
    /// A moment on the operator's own clock, unix milliseconds. Within one run of the operator it never goes back.
    Timestamp(i64)
}

impl Attempt {
    /// Of jobs that the Go operator submitted.
    pub const INHERITED: Self = Self(0);
}

impl Timestamp {
    /// This moment plus `duration`, saturating.
    #[must_use]
    pub fn plus(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)))
    }

    /// So long before; none if that is before time begins.
    #[must_use]
    pub fn before(self, duration: Duration) -> Option<Self> {
        let milliseconds = i64::try_from(duration.as_millis()).ok()?;
        self.0.checked_sub(milliseconds).map(Self)
    }

    /// Time from `earlier` to this moment; zero if it is the other way round.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Display, EnumIter, EnumString, IntoStaticStr)]
pub enum Kind {
    /// Attach the finalizer and the claim.
    AttachFinalizer,
    /// `condor_submit`
    Submit,
    /// `condor_qedit` that makes jobs of the Go operator this operator's.
    Adopt,
    /// `condor_rm`
    Remove,
    /// `condor_hold`
    Hold,
    /// `condor_release`
    Release,
    /// `condor_transfer_data`
    Fetch,
    /// `condor_qedit … LeaveJobInQueue False`
    Tidy,
    /// Release the finalizer.
    ReleaseFinalizer,
    /// Delete the object, some time after its end.
    DeleteObject,
}

/// Names one request for good.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RequestKey {
    /// The object.
    pub uid: Uid,
    /// What it does.
    pub kind: Kind,
    /// The attempt it belongs to; for a submission, the one it makes.
    pub attempt: Attempt,
    /// Which of its kind, from 1.
    pub step: u32,
}

/// HTCondor's `cluster.proc`. Unique only together with the schedd and its [`Birthdate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId {
    /// `ClusterId`
    pub cluster: ClusterId,
    /// `ProcId`
    pub proc: u32,
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.cluster, self.proc)
    }
}

/// The text is not of the form `cluster.proc`.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an HTCondor job id (cluster.proc)")]
pub struct NotAJobId(String);

impl FromStr for JobId {
    type Err = NotAJobId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.split_once('.')
            .and_then(|(cluster, proc)| {
                Some(Self { cluster: ClusterId(cluster.parse().ok()?), proc: proc.parse().ok()? })
            })
            .ok_or_else(|| NotAJobId(text.to_owned()))
    }
}

/// Ends a list that goes on.
pub const CUT: &str = ",…";

/// Job ids as ranges of procs within clusters, e.g. `884426.0-999,884427.3`; `ids` must be sorted.
/// Stops with `,…` before it grows past `limit` bytes.
#[must_use]
pub fn id_ranges(ids: &[JobId], limit: usize) -> String {
    let mut text = String::new();
    for range in ranges(ids) {
        let comma = usize::from(!text.is_empty());
        if text.len() + comma + range.len() + CUT.len() > limit {
            text.push_str(CUT);
            return text;
        }
        text.push_str(&","[..comma]);
        text.push_str(&range);
    }
    text
}

/// Reads what [`id_ranges`] has written; none if that stopped at its limit, if it is anything else, or if it is more than `most`
/// ids.
#[must_use]
pub fn read_id_ranges(text: &str, most: usize) -> Option<Vec<JobId>> {
    let mut ids: Vec<JobId> = Vec::new();
    for range in text.split(',') {
        let (first, last) = range.split_once('-').map_or((range, None), |(first, last)| (first, Some(last)));
        let first: JobId = first.parse().ok()?;
        let last = last.map_or(Some(first.proc), |last| last.parse().ok())?;
        let in_order = last >= first.proc && ids.last().is_none_or(|before| *before < first);
        if !in_order || (last - first.proc) as usize >= most.saturating_sub(ids.len()) {
            return None;
        }
        ids.extend((first.proc..=last).map(|proc| JobId { proc, ..first }));
    }
    Some(ids)
}

/// Most bytes of job ids in one log line.
pub const IDS_IN_LINE: usize = 8 * 1024;

/// All ids as ranges, in as many lines of about `limit` bytes as that takes; `ids` must be sorted.
#[must_use]
pub fn id_lines(ids: &[JobId], limit: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for range in ranges(ids) {
        match lines.last_mut() {
            Some(line) if line.len() + 1 + range.len() <= limit => {
                line.push(',');
                line.push_str(&range);
            }
            Some(_) | None => lines.push(range),
        }
    }
    lines
}

fn ranges(ids: &[JobId]) -> impl Iterator<Item = String> {
    let follows = |one: &JobId, next: &JobId| one.cluster == next.cluster && one.proc.checked_add(1) == Some(next.proc);
    ids.chunk_by(follows).filter_map(|run| match run {
        [] => None,
        [only] => Some(only.to_string()),
        [first, .., last] => Some(format!("{first}-{}", last.proc)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(list: &[(u64, u32)]) -> Vec<JobId> {
        list.iter().map(|&(cluster, proc)| JobId { cluster: ClusterId(cluster), proc }).collect()
    }

    #[test]
    fn ranges_join_within_one_cluster() {
        assert_eq!(id_ranges(&ids(&[(7, 0), (7, 1), (7, 2), (7, 5), (8, 6)]), 1000), "7.0-2,7.5,8.6");
        assert_eq!(id_ranges(&[], 1000), "");
    }

    #[test]
    fn ranges_stop_at_the_limit() {
        let text = id_ranges(&ids(&[(1, 0), (2, 0), (3, 0), (4, 0)]), 12);
        assert_eq!(text, "1.0,2.0,…");
        assert!(text.len() <= 12);
    }

    #[test]
    fn ranges_are_read_as_they_are_written_or_not_at_all() {
        let list = ids(&[(7, 0), (7, 1), (7, 2), (7, 5), (8, 0), (8, 6)]);
        assert_eq!(read_id_ranges(&id_ranges(&list, 1000), list.len()), Some(list.clone()));
        assert_eq!(read_id_ranges(&id_ranges(&list, 1000), list.len() - 1), None, "more than there may be");
        assert_eq!(read_id_ranges("1.0-4294967295", 100_000), None);
        assert_eq!(read_id_ranges(&id_ranges(&list, 9), 1000), None, "cut");
        for bad in ["", ",", "7", "7.0,", "7.1-0", "7.0-", "7.0,7.0", "7.0-2,7.2", "8.0,7.0", "7.0-8.1", "7.0, 7.1"] {
            assert_eq!(read_id_ranges(bad, 1000), None, "{bad}");
        }
    }

    #[test]
    fn lines_name_every_id() {
        let list = ids(&[(1, 0), (1, 1), (2, 0), (3, 0), (4, 0)]);
        assert_eq!(id_lines(&list, 9), ["1.0-1,2.0", "3.0,4.0"]);
        assert_eq!(id_lines(&list, 0), ["1.0-1", "2.0", "3.0", "4.0"]);
        assert!(id_lines(&[], 10).is_empty());
    }

    #[test]
    fn ids_are_read_strictly() {
        assert_eq!("12.3".parse(), Ok(ids(&[(12, 3)])[0]));
        for bad in ["12", "12.", ".3", "12.3.4", "a.b", "-1.0"] {
            assert!(bad.parse::<JobId>().is_err(), "{bad}");
        }
    }
}
