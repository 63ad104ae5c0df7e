//! How often the operator looks at HTCondor: what time it takes to see something is counted in looks, which come as often as the
//! machine allows.

use super::Bed;

/// Questions about all HTCJobs that HTCondor has answered.
#[derive(Clone, Copy, Debug)]
pub struct Looks {
    /// About all their jobs.
    pub all: usize,
    /// Which of them have changed.
    pub changed: usize,
}

impl Looks {
    /// One that was under way, and two that were asked for since.
    pub const SECOND: Self = Self { all: 3, changed: 3 };

    #[must_use]
    pub const fn since(self, before: Self) -> Self {
        Self { all: self.all - before.all, changed: self.changed - before.changed }
    }

    #[must_use]
    pub const fn within(self, most: Self) -> bool {
        self.all <= most.all && self.changed <= most.changed
    }
}

impl Bed {
    /// Those of the operator that runs, by its log.
    pub fn looks(&self) -> Looks {
        let log = self.log();
        let answered = log.lines().filter(|line| line.contains(r#"tool="condor_q" outcome="ok""#));
        let (mut all, mut changed) = (0, 0);
        for line in answered {
            all += usize::from(line.contains(r#"look{htcjobs="all"}"#));
            changed += usize::from(line.contains(r#"look{htcjobs="changed"}"#));
        }
        assert!(all + changed > 0, "the log has no looks:\n{log}");
        Looks { all, changed }
    }
}
