//! Enums that are stored as text.

use std::str::FromStr;

use htc_machine::ids::Uid;

use super::LedgerError;

/// Parses a word in a row of object `what`. Fails on a word that only a later version knows.
pub(super) fn parse<T: FromStr>(what: &Uid, text: &str) -> Result<T, LedgerError> {
    text.parse().map_err(|_| LedgerError::row(what, &format!("`{text}` is not known to this version")))
}
