// What the fuzz target and the test of its corpus share.

use htc_submit::htcopts::{Attributes, HtcOpts, HtcOptsError, HtcOptsPolicy};

/// Parses `data` as a user's `htcopts` on a site that allows the attributes A and B, and a group. What is taken is written so that
/// it means the same again and cannot leave its lines; what is refused is told in plain words.
pub(crate) fn take(data: &[u8]) -> Result<HtcOpts, HtcOptsError> {
    let text = String::from_utf8_lossy(data);
    let further = ["A", "B"].iter().filter_map(|name| name.parse().ok());
    let groups = ["group_a.*"].iter().filter_map(|pattern| pattern.parse().ok()).collect();
    let policy = HtcOptsPolicy {
        attributes: Attributes::with(further),
        accounting_groups: htc_submit::htcopts::AccountingGroups::These(groups),
        ..HtcOptsPolicy::default()
    };
    let parsed = HtcOpts::parse(&text, &policy);
    match &parsed {
        Ok(options) => {
            let written = options.render();
            assert!(!written.contains(|c: char| c.is_control() && c != '\n'), "{written:?}");
            assert!(!written.contains(['$', '\\']), "{written:?}");
            for line in written.lines() {
                let (key, value) = line.split_once(" = ").unwrap_or_default();
                assert!(
                    key.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.".contains(&b)) && !key.is_empty(),
                    "{line:?}"
                );
                assert!(!value.is_empty() && value.trim() == value, "{line:?}");
            }
            let again = HtcOpts::parse(&written, &policy).map(|options| options.render());
            assert_eq!(again.as_deref(), Ok(written.as_str()));
        }
        Err(error) => {
            let said = error.to_string();
            assert!(said.starts_with("htcopts line ") && said.len() < 2000, "{said}");
            assert!(!said.contains(char::is_control), "{said:?}");
        }
    }
    parsed
}
