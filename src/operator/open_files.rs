//! Room for the connections of both ports, beside all else that needs open files: the usual limit is 1,024, and whoever can
//! reach a port could have all of them.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// More than all connections may have, of which each needs two: 3 threads with 1,025 each.
const WANTED: u64 = 8_192;

/// Raises the soft limit, as far as the hard one lets it.
pub(super) fn raise() {
    let limit = getrlimit(Resource::Nofile);
    if limit.maximum.is_some_and(|most| most < WANTED) {
        tracing::warn!(limit = limit.maximum, wanted = WANTED, "very many connections could take all open files");
    }
    let Some(raised) = raised(&limit) else { return };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, wanted = WANTED, "the limit of open files cannot be raised");
    }
}

/// What the limit should be; none if it is that already.
fn raised(limit: &Rlimit) -> Option<Rlimit> {
    // None is no limit.
    let possible = limit.maximum.map_or(WANTED, |most| most.min(WANTED));
    let is_less = limit.current.is_some_and(|now| now < possible);
    is_less.then_some(Rlimit { current: Some(possible), maximum: limit.maximum })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_raised_as_far_as_it_may_and_never_lowered() {
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
