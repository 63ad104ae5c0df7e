//! The states of an `HTCPool`, and what leads from one to the next: the one table of them.

use strum::IntoEnumIterator as _;

use crate::machine::chart::File;
use crate::machine::facts::Why;
use crate::machine::states::{self, picture, row};

#[cfg(test)]
mod tests;

/// Reason of a pool whose schedd has not been heard yet.
pub(super) const ASKING: &str = "Asking";
/// Reason of one that is deleted while `HTCJob`s are in it.
pub(super) const IN_USE: &str = "InUse";
/// Reason of one whose schedd answers.
pub(super) const ANSWERING: &str = "Answering";
/// Reason of one whose schedd is another pool's.
pub(super) const SAME_SCHEDD: &str = "SameSchedd";
/// Reason of one that another pool's `HTCJob`s are in.
pub(super) const ANOTHER_POOL: &str = "AnotherPool";

/// How an `HTCPool` stands, by the reason of its condition `Ready`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, strum::Display, strum::EnumIter)]
pub enum State {
    /// What it needs cannot be made, or its spec names no pool.
    NotMade,
    /// `HTCJob`s are in another pool that had its name.
    AnotherPool,
    /// Its schedd has not answered yet.
    Asking,
    /// Its schedd does not answer.
    Silent,
    /// Its schedd is that of an older pool.
    SameSchedd,
    /// Its schedd answers.
    Answering,
    /// It is being deleted, and `HTCJob`s are in it.
    InUse,
}

/// What can follow what. `from`: none, nothing has been said of it yet; `to`: none, its finalizer is gone.
pub type Row = states::Row<State, Trigger>;

/// What leads from one state to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, strum::Display, strum::EnumIter)]
pub enum Trigger {
    /// It has the finalizer, and what it needs was made, or refused.
    Guarded,
    /// The same was tried again.
    TriedAgain,
    /// Its schedd was asked who it is.
    Asked,
    /// The schedd of an older pool has been asked, or that pool is gone.
    OlderPool,
    /// The operator was started again, or the collector has another address.
    BegunAnew,
    /// It is being deleted.
    Deleted,
    /// It is being deleted, and no `HTCJob` is in it any more.
    LetGo,
}

/// The table.
pub const TABLE: [Row; 49] = {
    use State::{AnotherPool, Answering, Asking, InUse, NotMade, SameSchedd, Silent};
    use Trigger::{Asked, BegunAnew, Deleted, Guarded, LetGo, OlderPool, TriedAgain};
    [
        row(None, Some(NotMade), Guarded),
        row(None, Some(AnotherPool), Guarded),
        row(None, Some(Asking), Guarded),
        row(Some(NotMade), None, Deleted),
        row(Some(NotMade), None, LetGo),
        row(Some(NotMade), Some(AnotherPool), TriedAgain),
        row(Some(NotMade), Some(Asking), TriedAgain),
        row(Some(NotMade), Some(InUse), TriedAgain),
        row(Some(AnotherPool), None, Deleted),
        row(Some(AnotherPool), None, LetGo),
        row(Some(AnotherPool), Some(NotMade), TriedAgain),
        row(Some(AnotherPool), Some(Asking), TriedAgain),
        row(Some(AnotherPool), Some(InUse), TriedAgain),
        row(Some(Asking), None, Deleted),
        row(Some(Asking), Some(NotMade), BegunAnew),
        row(Some(Asking), Some(AnotherPool), BegunAnew),
        row(Some(Asking), Some(Silent), Asked),
        row(Some(Asking), Some(Silent), OlderPool),
        row(Some(Asking), Some(SameSchedd), Asked),
        row(Some(Asking), Some(SameSchedd), OlderPool),
        row(Some(Asking), Some(Answering), Asked),
        row(Some(Asking), Some(Answering), OlderPool),
        row(Some(Asking), Some(InUse), Deleted),
        row(Some(Silent), None, Deleted),
        row(Some(Silent), Some(NotMade), BegunAnew),
        row(Some(Silent), Some(AnotherPool), BegunAnew),
        row(Some(Silent), Some(SameSchedd), Asked),
        row(Some(Silent), Some(SameSchedd), OlderPool),
        row(Some(Silent), Some(Answering), Asked),
        row(Some(Silent), Some(Answering), OlderPool),
        row(Some(Silent), Some(InUse), Deleted),
        row(Some(SameSchedd), None, Deleted),
        row(Some(SameSchedd), Some(NotMade), BegunAnew),
        row(Some(SameSchedd), Some(AnotherPool), BegunAnew),
        row(Some(SameSchedd), Some(Silent), Asked),
        row(Some(SameSchedd), Some(Silent), OlderPool),
        row(Some(SameSchedd), Some(Answering), Asked),
        row(Some(SameSchedd), Some(Answering), OlderPool),
        row(Some(SameSchedd), Some(InUse), Deleted),
        row(Some(Answering), None, Deleted),
        row(Some(Answering), Some(NotMade), BegunAnew),
        row(Some(Answering), Some(AnotherPool), BegunAnew),
        row(Some(Answering), Some(Silent), Asked),
        row(Some(Answering), Some(SameSchedd), Asked),
        row(Some(Answering), Some(SameSchedd), OlderPool),
        row(Some(Answering), Some(InUse), Deleted),
        row(Some(InUse), None, LetGo),
        row(Some(InUse), Some(NotMade), BegunAnew),
        row(Some(InUse), Some(AnotherPool), BegunAnew),
    ]
};

impl State {
    /// By the reason of the condition `Ready`.
    #[must_use]
    pub fn of(reason: &str) -> Self {
        match reason {
            ANOTHER_POOL => Self::AnotherPool,
            ASKING => Self::Asking,
            SAME_SCHEDD => Self::SameSchedd,
            ANSWERING => Self::Answering,
            IN_USE => Self::InUse,
            why if Why::iter().any(|one| one.to_string() == why) => Self::Silent,
            _ => Self::NotMade,
        }
    }

    /// It is known by what schedds have answered.
    pub(super) const fn is_told_by_schedds(self) -> bool {
        matches!(self, Self::Asking | Self::Silent | Self::SameSchedd | Self::Answering)
    }

    const fn meaning(self) -> &'static str {
        match self {
            Self::NotMade => "What it needs cannot be made, or its spec names no pool.",
            Self::AnotherPool => "HTCJobs are in another pool that had its name: nothing is asked or submitted.",
            Self::Asking => "Its schedd has not answered yet, or that of an older pool, which may be the same.",
            Self::Silent => "Its schedd does not answer, or refuses the credentials. HTCJobs in it wait.",
            Self::SameSchedd => "Its schedd is that of an older pool: nothing is submitted.",
            Self::Answering => "Its schedd answers.",
            Self::InUse => "It is being deleted. HTCJobs are in it, and no others come.",
        }
    }
}

/// The table as a picture: a file of `statecharts/`. One arrow for each pair of states.
#[must_use]
pub fn file() -> File {
    let meanings = State::iter().map(|state| (state, state.meaning()));
    File { name: "pool.mmd", contents: picture("The states of an HTCPool", "src/pools/states.rs", &TABLE, meanings) }
}
