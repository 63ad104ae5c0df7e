//! What columns have as a word.

use std::str::FromStr;

use super::LedgerError;
use crate::machine::ids::Uid;

/// Of the row of `what`. A later version may have written a word that this one does not know.
pub(super) fn parse<T: FromStr>(what: &Uid, text: &str) -> Result<T, LedgerError> {
    text.parse().map_err(|_| LedgerError::row(what, &format!("`{text}` is not known to this version")))
}
