//! Types for names and numbers that must not be mixed up.

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
            /// Returns the text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        /// Lets a map that is keyed by this name be searched with a `&str`: both have the same hash and order.
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
    /// Kubernetes' uid of one `HTCJob`. Two successive objects of the same name have different uids.
    Uid
}
name! {
    /// Name of a schedd as its collector knows it, e.g. `schedd@test`.
    ScheddName
}
impl ScheddName {
    /// Whether both names mean one schedd: HTCondor compares names of machines and daemons without regard to case.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        self.as_str().eq_ignore_ascii_case(other.as_str())
    }
}
number! {
    /// Number of a submission of an `HTCJob`, from 1.
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
    /// `JobQueueBirthdate` of a schedd, in Unix seconds. It changes when the job queue is lost, after which ids start
    /// again.
    Birthdate(i64)
}
number! {
    /// Point in time on the backend's clock, in Unix seconds: the schedd's, as in job ads, or the cluster's, as in
    /// Pods.
    /// Never compared with [`Timestamp`].
    SchedDate(i64)
}
number! {
    /// Point in time on the operator's own clock, in Unix milliseconds. Within one run of the operator it never goes
    /// back.
    Timestamp(i64)
}

impl Attempt {
    /// Attempt number of jobs that the Go operator submitted.
    pub const INHERITED: Self = Self(0);
}

impl Timestamp {
    /// Adds `duration`, saturating.
    #[must_use]
    pub fn plus(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)))
    }

    /// Subtracts `duration`; none if the result cannot be represented.
    #[must_use]
    pub fn before(self, duration: Duration) -> Option<Self> {
        let milliseconds = i64::try_from(duration.as_millis()).ok()?;
        self.0.checked_sub(milliseconds).map(Self)
    }

    /// Returns the time from `earlier` to this moment; zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

/// Kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Display, EnumIter, EnumString, IntoStaticStr)]
pub enum RequestKind {
    /// Attach the finalizer and the claim.
    AttachFinalizer,
    /// `condor_submit`
    Submit,
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

/// Key that identifies one request for good.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RequestKey {
    /// UID of the object.
    pub uid: Uid,
    /// Kind of the request.
    pub kind: RequestKind,
    /// Attempt that the request belongs to; for a submission, the one that it makes.
    pub attempt: Attempt,
    /// Number of the request among those of its kind, from 1.
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

/// Error for a text that is not of the form `cluster.proc`.
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

/// Suffix of a list that was cut.
pub const CUT: &str = ",…";

/// Formats job ids as ranges of procs within clusters, e.g. `884426.0-999,884427.3`. `ids` must be sorted.
/// Ends with `,…` before the text exceeds `limit` bytes.
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

/// Parses the text of [`id_ranges`]; none if it was cut at its limit, is malformed, or has more than `most` ids.
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

/// Maximum number of bytes of job ids in one log line.
pub const IDS_IN_LINE: usize = 8 * 1024;

/// Formats all ids as ranges, in as many lines of about `limit` bytes as needed. `ids` must be sorted.
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
    fn job_id_ranges_join_within_one_cluster() {
        assert_eq!(id_ranges(&ids(&[(7, 0), (7, 1), (7, 2), (7, 5), (8, 6)]), 1000), "7.0-2,7.5,8.6");
        assert_eq!(id_ranges(&[], 1000), "");
    }

    #[test]
    fn job_id_ranges_stop_at_the_limit() {
        let text = id_ranges(&ids(&[(1, 0), (2, 0), (3, 0), (4, 0)]), 12);
        assert_eq!(text, "1.0,2.0,…");
        assert!(text.len() <= 12);
    }

    #[test]
    fn job_id_ranges_round_trip_or_are_rejected() {
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
    fn job_id_lines_list_every_id() {
        let list = ids(&[(1, 0), (1, 1), (2, 0), (3, 0), (4, 0)]);
        assert_eq!(id_lines(&list, 9), ["1.0-1,2.0", "3.0,4.0"]);
        assert_eq!(id_lines(&list, 0), ["1.0-1", "2.0", "3.0", "4.0"]);
        assert!(id_lines(&[], 10).is_empty());
    }

    #[test]
    fn job_id_is_parsed_strictly() {
        assert_eq!("12.3".parse(), Ok(ids(&[(12, 3)])[0]));
        for bad in ["12", "12.", ".3", "12.3.4", "a.b", "-1.0"] {
            assert!(bad.parse::<JobId>().is_err(), "{bad}");
        }
    }
}
