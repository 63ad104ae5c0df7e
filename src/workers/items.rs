//! Which texts can be items, and the items of a text with one in each line.

/// Most items of one `HTCJob`, as for `spec.items`.
const MOST: usize = 10_000;
/// Most characters of one item: HTCondor keeps it in the job's ad.
pub(super) const LONGEST: usize = 1024;

/// Whether a job can get this text as its item.
pub(super) fn is_item(text: &str) -> bool {
    text.chars().count() <= LONGEST && !text.contains(char::is_control)
}

/// One item for each line, an empty one for an empty line. The error goes on after the name of the text.
pub fn items_of(text: &str) -> Result<Vec<String>, String> {
    let lines: Vec<&str> = text.lines().collect();
    if lines.is_empty() {
        return Err("has no lines: write one item in each".to_owned());
    }
    if lines.len() > MOST {
        return Err(format!("has {} lines, and an HTCJob can have {MOST} items: use several HTCJobs", lines.len()));
    }
    if let Some(wrong) = lines.iter().position(|line| !is_item(line)) {
        return Err(format!(
            "cannot be used: line {} has more than {LONGEST} characters, or a tab or another control character",
            wrong + 1
        ));
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
    fn what_cannot_be_items_is_refused_with_its_line() {
        let said = |text: &str| items_of(text).unwrap_err();
        assert!(said("").starts_with("has no lines"));
        assert!(said("a\nb\tc\n").contains("line 2 has more than 1024 characters, or a tab"));
        assert!(said("a\u{85}b").contains("line 1"));
        assert!(said(&format!("a\nb\n{}", "µ".repeat(1025))).contains("line 3"));
        assert_eq!(items_of(&"µ".repeat(1024)).map(|items| items.len()), Ok(1));
        assert!(said(&"x\n".repeat(10_001)).starts_with("has 10001 lines"));
        assert_eq!(items_of(&"x\n".repeat(10_000)).map(|items| items.len()), Ok(10_000));
    }
}
