//! Limit of open files. The connections of both ports need open files beside everything else: the usual limit is
//! 1,024, and anybody who can reach a port could use up all of them.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// More than all connections may need: each needs two, and there are 3 threads with 1,025 connections each.
const WANTED: u64 = 8_192;

/// Raises the soft limit, as far as the hard one allows.
pub(super) fn raise() {
    let limit = getrlimit(Resource::Nofile);
    if limit.maximum.is_some_and(|most| most < WANTED) {
        tracing::warn!(limit = limit.maximum, wanted = WANTED, "open files limit low");
    }
    let Some(raised) = raised(&limit) else { return };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, wanted = WANTED, "open files limit not raised");
    }
}

/// Returns the new limit; `None` if the present one is enough.
fn raised(limit: &Rlimit) -> Option<Rlimit> {
    // `None` means no limit.
    let possible = limit.maximum.map_or(WANTED, |most| most.min(WANTED));
    let is_less = limit.current.is_some_and(|now| now < possible);
    is_less.then_some(Rlimit { current: Some(possible), maximum: limit.maximum })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_files_limit_is_raised_up_to_the_hard_limit_and_never_lowered() {
        let limit = |current, maximum| Rlimit { current, maximum };
        for (before, after) in [
            (limit(Some(1_024), Some(524_288)), Some(WANTED)),
            (limit(Some(1_024), None), Some(WANTED)),
            (limit(Some(1_024), Some(4_096)), Some(4_096)),
            (limit(Some(4_096), Some(4_096)), None),
            (limit(Some(20_000), Some(20_000)), None),
            (limit(None, None), None),
        ] {
            let found = raised(&before);
            assert_eq!(found.as_ref().map(|found| found.current), after.map(Some), "{before:?}");
            assert!(found.is_none_or(|found| found.maximum == before.maximum));
        }
    }
}
