//! The states of a worker, as the operator sees it, and what leads from one to the next: the one table of them.

use strum::IntoEnumIterator as _;

use super::scale::{Pod, Slot, Worker};
use crate::machine::chart::File;
use crate::machine::states::{self, picture, row};

/// The state of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, strum::Display, strum::EnumIter)]
pub enum State {
    /// Its pod is made, and no container of it has begun.
    Waiting,
    /// Its pod has begun, and HTCondor says nothing of it: it may have jobs.
    Unseen,
    /// The same for so long that it counts as dead.
    Absent,
    /// It has no job.
    Idle,
    /// It has jobs.
    Busy,
    /// It takes no more jobs.
    Draining,
    /// Somebody has deleted its pod.
    Leaving,
    /// Its pod has ended.
    Ended,
}

/// What can follow what. `from`: none, there is no such worker yet; `to`: none, it is gone.
pub type Row = states::Row<State, &'static str>;

/// The table.
pub const TABLE: [Row; 32] = {
    use State::{Absent, Busy, Draining, Ended, Idle, Leaving, Unseen, Waiting};
    [
        row(None, Some(Waiting), "Made"),
        row(Some(Waiting), None, "Withdrawn"),
        row(Some(Waiting), Some(Unseen), "Began"),
        row(Some(Unseen), Some(Idle), "Seen"),
        row(Some(Unseen), Some(Busy), "Seen"),
        row(Some(Unseen), Some(Draining), "Seen"),
        row(Some(Idle), Some(Busy), "JobStarted"),
        row(Some(Busy), Some(Idle), "LastJobEnded"),
        row(Some(Idle), Some(Draining), "Drained"),
        row(Some(Busy), Some(Draining), "Drained"),
        row(Some(Idle), Some(Unseen), "CollectorBeganAnew"),
        row(Some(Busy), Some(Unseen), "CollectorBeganAnew"),
        row(Some(Draining), Some(Unseen), "CollectorAndOperatorBeganAnew"),
        row(Some(Unseen), Some(Absent), "NotNamed"),
        row(Some(Absent), Some(Idle), "Seen"),
        row(Some(Absent), Some(Busy), "Seen"),
        row(Some(Absent), Some(Draining), "Seen"),
        row(Some(Absent), Some(Unseen), "OperatorBeganAnew"),
        row(Some(Absent), Some(Leaving), "Discarded"),
        row(Some(Draining), Some(Ended), "LastJobEnded"),
        row(Some(Waiting), Some(Ended), "Lost"),
        row(Some(Unseen), Some(Ended), "Lost"),
        row(Some(Absent), Some(Ended), "Lost"),
        row(Some(Idle), Some(Ended), "Lost"),
        row(Some(Busy), Some(Ended), "Lost"),
        row(Some(Waiting), Some(Leaving), "DeletedBySomebody"),
        row(Some(Unseen), Some(Leaving), "DeletedBySomebody"),
        row(Some(Idle), Some(Leaving), "DeletedBySomebody"),
        row(Some(Busy), Some(Leaving), "DeletedBySomebody"),
        row(Some(Draining), Some(Leaving), "DeletedBySomebody"),
        row(Some(Leaving), None, "Gone"),
        row(Some(Ended), None, "Removed"),
    ]
};

impl State {
    /// That of a worker. One that has accepted to drain does so, whatever the collector knows yet.
    #[must_use]
    pub const fn of(worker: &Worker) -> Self {
        match (worker.pod, worker.slot) {
            (Pod::Waiting { .. } | Pod::Made { .. }, _) => Self::Waiting,
            (Pod::Ended, _) => Self::Ended,
            (Pod::Leaving, _) => Self::Leaving,
            (Pod::Running, _) if worker.drained => Self::Draining,
            (Pod::Running, Slot::Unseen) => Self::Unseen,
            (Pod::Running, Slot::Absent { .. }) => Self::Absent,
            (Pod::Running, Slot::Idle { .. }) => Self::Idle,
            (Pod::Running, Slot::Busy) => Self::Busy,
            (Pod::Running, Slot::Draining) => Self::Draining,
        }
    }

    const fn meaning(self) -> &'static str {
        match self {
            Self::Waiting => "Its pod is made, and its daemons have not begun.",
            Self::Unseen => "Its daemons have begun, and the collector does not name it: it may have jobs.",
            Self::Absent => {
                "The collector has not named it for five minutes: another takes its place, and it goes if it has no job."
            }
            Self::Idle => "It has no job.",
            Self::Busy => "It has jobs.",
            Self::Draining => "It takes no more jobs, and ends after those that it has.",
            Self::Leaving => "Its pod is deleted. Another worker takes its place.",
            Self::Ended => "Its pod has ended, and is deleted.",
        }
    }
}

/// The table as a picture: a file of `statecharts/`.
#[must_use]
pub fn file() -> File {
    let meanings = State::iter().map(|state| (state, state.meaning()));
    File {
        name: "worker.mmd",
        contents: picture("The states of a worker of a managed pool", "src/pools/managed/states.rs", &TABLE, meanings),
    }
}
