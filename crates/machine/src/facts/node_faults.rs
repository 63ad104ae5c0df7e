//! Runs of a job that ended by faults of their nodes.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::ids::SchedDate;
use crate::payload_failure::PayloadFailure;

/// Runs of one job that ended by faults of their nodes, and after which HTCondor ran the job again or will.
///
/// HTCondor itself counts them: its reason for holding the job after such a run begins with this as text, and has what
/// the reason of the hold before had.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeFaults {
    /// Number of such runs.
    pub count: u32,
    /// Number of runs that may end so, the last of which ends the job.
    pub of: u32,
    /// End of the last of them.
    pub at: SchedDate,
    /// `Machine` of each, in order, separated by commas.
    pub machines: Arc<str>,
    /// Code of `job.sh` at the end of the last of them.
    pub code: i32,
}

/// First words of the text.
const BEGIN: &str = "Node fault ";
/// Maximum bytes of the machines' names. The rest is not kept.
const MACHINES: usize = 1024;

impl NodeFaults {
    /// Parses the text at the beginning of HTCondor's reason for a hold. None: the job was held for something else.
    #[must_use]
    pub fn from_hold(reason: &str) -> Option<Self> {
        reason.split_once(';').map_or(reason, |(text, _)| text).parse().ok()
    }

    /// Failure at the end of the last of these runs.
    #[must_use]
    pub fn cause(&self) -> Option<PayloadFailure> {
        PayloadFailure::from_code(self.code)
    }

    /// Machine of the last of these runs.
    #[must_use]
    pub fn last_machine(&self) -> &str {
        self.machines.rsplit(',').next().unwrap_or_default()
    }
}

impl fmt::Display for NodeFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { count, of, at, machines, code } = self;
        write!(f, "{BEGIN}{count} of {of} at {} on {machines} with {code}", at.0)
    }
}

/// Error for a text that does not name faults of nodes.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` does not name faults of nodes")]
pub struct NoNodeFaults(String);

impl FromStr for NodeFaults {
    type Err = NoNodeFaults;

    fn from_str(text: &str) -> Result<Self, NoNodeFaults> {
        let parse = || {
            let words: Vec<&str> = text.strip_prefix(BEGIN)?.split(' ').collect();
            let [count, "of", of, "at", at, "on", machines, "with", code] = words[..] else { return None };
            let fits = |c: char| c.is_ascii_alphanumeric() || "-._,?".contains(c);
            let machines = machines.get(..MACHINES).unwrap_or(machines);
            let faults = Self {
                count: count.parse().ok()?,
                of: of.parse().ok()?,
                at: SchedDate(at.parse().ok()?),
                machines: machines.chars().all(fits).then(|| machines.into())?,
                code: code.parse().ok()?,
            };
            Some(faults)
        };
        parse().ok_or_else(|| NoNodeFaults(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_read_from_the_reason_of_a_hold() {
        let text = "Node fault 2 of 6 at 1796033508 on a.cern.ch,b.cern.ch with 243";
        let faults = NodeFaults::from_hold(&format!("{text}; the job has not failed")).unwrap();
        assert_eq!((faults.count, faults.of, faults.at, faults.code), (2, 6, SchedDate(1_796_033_508), 243));
        assert_eq!((faults.last_machine(), faults.cause()), ("b.cern.ch", Some(PayloadFailure::ImageUnavailable)));
        assert_eq!((faults.to_string().as_str(), text.parse()), (text, Ok(faults)));
    }

    #[test]
    fn other_reasons_of_holds_have_no_faults() {
        for reason in [
            "",
            "Spooling input data files",
            "Node fault",
            "Node fault x of 6 at 1 on a with 243",
            "Node fault 1 of 6 at 1 on a b with 243",
            "Node fault 1 of 6 at 1 on <b> with 243",
            "see: Node fault 1 of 6 at 1 on a with 243",
        ] {
            assert_eq!(NodeFaults::from_hold(reason), None, "{reason}");
        }
    }
}
