//! What the tools print, read as the operator reads it, for those who try to break that: `fuzz/answer.rs`.

use super::ads::AdReader;
use super::row::{Row, Rows};
use crate::machine::facts::Ad;

/// One ad of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Printed {
    /// `ClusterId.ProcId`, -1 for what is no number.
    pub id: String,
    /// `HTCJobUID`
    pub uid: Option<String>,
    /// The ad, if it has what every job of ours has.
    pub ad: Option<Ad>,
}

/// The ads of an answer that comes in pieces of so many bytes, or why it counts as none.
///
/// # Errors
///
/// In words: it is empty, cut short, or no list of ads.
pub fn read(answer: &[u8], piece: usize) -> Result<Vec<Printed>, &'static str> {
    let mut ads = Vec::new();
    let each = |row: &Row| ads.push(Printed { id: row.id(), uid: row.uid().map(str::to_owned), ad: row.ad() });
    let mut reader = AdReader::new(Rows::new(each));
    answer.chunks(piece.max(1)).for_each(|bytes| reader.take(bytes));
    reader.end().map(drop)?;
    Ok(ads)
}
