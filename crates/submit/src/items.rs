//! Validation of items, and reading them from a text with one item per line.

/// Maximum items of one `HTCJob`, as for `spec.items`.
const MOST: usize = 10_000;
/// Maximum characters of one item. HTCondor keeps it in the job's ad.
pub(super) const LONGEST: usize = 1024;

/// Returns whether a text can be an item.
pub(super) fn is_item(text: &str) -> bool {
    text.chars().count() <= LONGEST && !text.contains(char::is_control)
}

/// Reason why a text has no items. The message continues after the name of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ItemsError {
    #[error("has no lines: write one item in each")]
    Empty,
    #[error("has {0} lines, and an HTCJob can have {MOST} items: use several HTCJobs")]
    TooMany(usize),
    /// Number of the first such line.
    #[error("cannot be used: line {0} has more than {LONGEST} characters, or a tab or another control character")]
    Line(usize),
}

/// Returns one item for each line, with an empty item for an empty line.
pub fn items_of(text: &str) -> Result<Vec<String>, ItemsError> {
    let lines: Vec<&str> = text.lines().collect();
    if lines.is_empty() {
        return Err(ItemsError::Empty);
    }
    if lines.len() > MOST {
        return Err(ItemsError::TooMany(lines.len()));
    }
    if let Some(wrong) = lines.iter().position(|line| !is_item(line)) {
        return Err(ItemsError::Line(wrong + 1));
    }
    Ok(lines.into_iter().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_an_item() {
        for (text, items) in [
            ("a\nb c\n", &["a", "b c"][..]),
            ("a\r\nb", &["a", "b"]),
            ("\na\n\nb\n", &["", "a", "", "b"]),
            ("\n", &[""]),
        ] {
            assert_eq!(items_of(text).unwrap(), items, "{text:?}");
        }
    }

    #[test]
    fn invalid_items_are_refused_with_their_line() {
        let said = |text: &str| items_of(text).unwrap_err().to_string();
        assert!(said("").starts_with("has no lines"));
        assert!(said("a\nb\tc\n").contains("line 2 has more than 1024 characters, or a tab"));
        assert!(said("a\u{85}b").contains("line 1"));
        assert!(said(&format!("a\nb\n{}", "µ".repeat(1025))).contains("line 3"));
        assert_eq!(items_of(&"µ".repeat(1024)).map(|items| items.len()), Ok(1));
        assert!(said(&"x\n".repeat(10_001)).starts_with("has 10001 lines"));
        assert_eq!(items_of(&"x\n".repeat(10_000)).map(|items| items.len()), Ok(10_000));
    }
}
