//! Entry point for fuzzing the parser of the tools' output: `fuzz/answer.rs`.

use htc_machine::facts::Ad;

use super::ads::AdReader;
use super::row::{Row, Rows};

/// One ad of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParsedAd {
    /// `ClusterId.ProcId`, with -1 for anything that is no number.
    pub id: String,
    /// `HTCJobUID`
    pub uid: Option<String>,
    /// The ad, if it has what every job of this operator has.
    pub ad: Option<Ad>,
}

/// Reads an answer in pieces of `piece` bytes. Returns its ads.
///
/// # Errors
///
/// The reason in words: the answer is empty, cut short, or no list of ads.
pub fn read(answer: &[u8], piece: usize) -> Result<Vec<ParsedAd>, &'static str> {
    let mut ads = Vec::new();
    let each = |row: &Row| ads.push(ParsedAd { id: row.id(), uid: row.uid().map(str::to_owned), ad: row.ad() });
    let mut reader = AdReader::new(Rows::new(each));
    answer.chunks(piece.max(1)).for_each(|bytes| reader.take(bytes));
    reader.end().map(drop)?;
    Ok(ads)
}
