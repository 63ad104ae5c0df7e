//! Why a managed pool is not as it should be.

use crate::kubernetes::ApiError;

/// Reason where a signing key is gone, or is another one than tokens were made with.
pub(super) const KEY_MISSING: &str = "SigningKeyMissing";

/// Why a pool is not as it should be.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The API server.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// There is an object of this name that is not the pool's.
    #[error(
        "there is a {kind} {name} that does not belong to this HTCPool: delete it, or create the HTCPool with another name"
    )]
    NotOurs {
        /// Its kind.
        kind: String,
        /// Its name.
        name: String,
    },
    /// The pool had a signing key, and has none now.
    #[error(
        "the Secret {0} is gone, and with it a key that tokens of this pool are signed with: restore the Secret, or give the key up, as docs/pools.md says"
    )]
    KeyGone(String),
    /// There is another key in its place.
    #[error(
        "the Secret {0} has another key than the one that tokens of this pool are signed with: restore the Secret, or give the key up, as docs/pools.md says"
    )]
    KeyChanged(String),
    /// It is there and has none in it.
    #[error("the Secret {name} has no signing key as its entry {entry}: {why}; restore the Secret")]
    NoKey {
        /// Its name.
        name: String,
        /// What the entry is called.
        entry: String,
        /// What is wrong.
        why: String,
    },
    /// The machine has no random numbers.
    #[error("cannot make a signing key: {0}")]
    Random(#[from] getrandom::Error),
    /// Something changes at this moment.
    #[error("{kind} {name} has changed meanwhile")]
    Changed {
        /// Its kind.
        kind: String,
        /// Its name.
        name: String,
    },
}

impl ApplyError {
    /// The reason in the condition `Ready`.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NotOurs { .. } => "NameTaken",
            Self::KeyGone(_) | Self::KeyChanged(_) | Self::NoKey { .. } => KEY_MISSING,
            Self::Api(refused) if refused.code() == Some(403) => "NotPermitted",
            Self::Api(_) | Self::Random(_) | Self::Changed { .. } => "NotMade",
        }
    }

    /// This operator may not write now: nothing was sent, and the next leader does it.
    #[must_use]
    pub const fn is_fence_closed(&self) -> bool {
        matches!(self, Self::Api(error) if error.is_fence_closed())
    }

    /// The API server has said no: nothing was made.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Api(error) if error.code().is_some_and(|code| (400..500).contains(&code)))
    }
}
