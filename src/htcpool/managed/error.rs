//! Errors in applying the objects of a managed pool.

use htc_support::kubernetes::ApiError;

/// Reason: a signing key is gone, or is not the one that tokens were signed with.
pub(super) const KEY_MISSING: &str = "SigningKeyMissing";

/// Reason why the objects of a managed pool cannot be applied.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// Error of the API server.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// An object of this name exists, and does not belong to the pool.
    #[error(
        "there is a {kind} {name} that does not belong to this HTCPool: delete it, or create the HTCPool with another name"
    )]
    NotOurs {
        /// Kind of the object.
        kind: String,
        /// Name of the object.
        name: String,
    },
    /// A signing key that the pool had is gone.
    #[error(
        "the Secret {0} is gone, and with it a key that tokens of this pool are signed with: restore the Secret, or give the key up, as docs/pools.md says"
    )]
    KeyGone(String),
    /// The Secret has another key than the pool had.
    #[error(
        "the Secret {0} has another key than the one that tokens of this pool are signed with: restore the Secret, or give the key up, as docs/pools.md says"
    )]
    KeyChanged(String),
    /// The Secret exists, and has no valid key.
    #[error("the Secret {name} has no signing key as its entry {entry}: {why}; restore the Secret")]
    NoKey {
        /// Name of the Secret.
        name: String,
        /// Name of the missing or invalid entry.
        entry: String,
        /// Reason why it is not valid.
        why: String,
    },
    /// The system has no random numbers.
    #[error("cannot make a signing key: {0}")]
    Random(#[from] getrandom::Error),
    /// The object has changed in the meantime.
    #[error("{kind} {name} has changed meanwhile")]
    Changed {
        /// Kind of the object.
        kind: String,
        /// Name of the object.
        name: String,
    },
}

impl ApplyError {
    /// Returns the reason for the condition `Ready`.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NotOurs { .. } => "NameTaken",
            Self::KeyGone(_) | Self::KeyChanged(_) | Self::NoKey { .. } => KEY_MISSING,
            Self::Api(refused) if refused.code() == Some(403) => "NotPermitted",
            Self::Api(_) | Self::Random(_) | Self::Changed { .. } => "NotMade",
        }
    }

    /// Returns whether this operator may not write now. Nothing was sent; the next leader does it.
    #[must_use]
    pub const fn is_fence_closed(&self) -> bool {
        matches!(self, Self::Api(error) if error.is_fence_closed())
    }

    /// Returns whether the API server has refused the request (4xx): nothing was created.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Api(error) if error.code().is_some_and(|code| (400..500).contains(&code)))
    }
}
