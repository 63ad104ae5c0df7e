//! Messages about how long output is kept.

use std::time::Duration;

use super::Decider;

impl Decider<'_> {
    /// Returns the end of a sentence that says where the output is.
    pub(super) fn says_how_long_kept(&self) -> String {
        let ttl = self.facts.object.spec.as_ref().ok().and_then(|spec| spec.ttl);
        let deletion = match ttl {
            Some(ttl) if ttl.is_zero() => " (at its end: spec.ttlSecondsAfterFinished)".to_owned(),
            Some(ttl) => format!(" ({} after its end: spec.ttlSecondsAfterFinished)", time(ttl)),
            None => String::new(),
        };
        match self.settings.keep_output {
            Duration::MAX => format!("; it stays there after the HTCJob is deleted{deletion}"),
            Duration::ZERO => format!("; it is removed when the HTCJob is deleted{deletion}"),
            kept => format!("; it is removed {} after the HTCJob is deleted{deletion}", time(kept)),
        }
    }
}

/// Formats a time: `30 days`, `1 hour`, `90 s`.
fn time(time: Duration) -> String {
    let seconds = time.as_secs();
    for (unit, name) in [(86_400, "day"), (3600, "hour"), (60, "minute")] {
        if seconds >= unit && seconds.is_multiple_of(unit) {
            let count = seconds / unit;
            return format!("{count} {name}{}", if count == 1 { "" } else { "s" });
        }
    }
    format!("{seconds} s")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retention_is_written_in_the_largest_whole_unit() {
        let times = [0, 59, 90, 120, 3600, 7200, 86_400, 2_592_000].map(|seconds| time(Duration::from_secs(seconds)));
        assert_eq!(times, ["0 s", "59 s", "90 s", "2 minutes", "1 hour", "2 hours", "1 day", "30 days"]);
    }
}
