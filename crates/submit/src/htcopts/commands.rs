//! The submit commands that `htcopts` may contain, and hints for the best known of the others.

use super::attributes;

/// Required form of a command's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CommandValueKind {
    /// Any `ClassAd` expression.
    Expression,
    /// A whole number between the two bounds.
    Integer(i64, i64),
    /// A number, with or without a decimal point.
    Decimal,
    /// `true` or `false`.
    Boolean,
    /// A number with an optional unit (K, M, G, T, each with an optional B), or an expression.
    Quantity,
    /// A number with an optional unit.
    Size,
    /// A group or user name: letters, digits and `_ . @ -`.
    Name,
    /// Names of limits, separated by commas, each with an optional `:count`.
    Limits,
    /// The word `never`.
    Never,
    /// A string in double quotes of at most [`MAX_TEXT`] characters.
    Text,
}

/// Maximum characters of a reason.
const MAX_TEXT: usize = 256;

/// One allowed submit command.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SubmitCommand {
    /// HTCondor's name for it.
    pub(super) name: &'static str,
    pub(super) kind: CommandValueKind,
    /// Whether a job with it may be held, removed or rerun after its payload has ended.
    pub(super) may_rerun: bool,
}

const fn plain(name: &'static str, kind: CommandValueKind) -> SubmitCommand {
    SubmitCommand { name, kind, may_rerun: false }
}

const fn rerun(name: &'static str, kind: CommandValueKind) -> SubmitCommand {
    SubmitCommand { name, kind, may_rerun: true }
}

const SECONDS_OR_EXPRESSION: CommandValueKind = CommandValueKind::Expression;
const INT: i64 = i32::MAX as i64;

/// The allow-list. `docs/htcopts.md` has the same table; a test compares them.
pub(super) const COMMANDS: [SubmitCommand; 36] = [
    plain("accounting_group", CommandValueKind::Name),
    plain("accounting_group_user", CommandValueKind::Name),
    rerun("allowed_execute_duration", SECONDS_OR_EXPRESSION),
    rerun("allowed_job_duration", SECONDS_OR_EXPRESSION),
    plain("concurrency_limits", CommandValueKind::Limits),
    plain("gpus_maximum_capability", CommandValueKind::Decimal),
    plain("gpus_minimum_capability", CommandValueKind::Decimal),
    plain("gpus_minimum_memory", CommandValueKind::Size),
    plain("gpus_minimum_runtime", CommandValueKind::Decimal),
    plain("job_max_vacate_time", SECONDS_OR_EXPRESSION),
    plain("keep_claim_idle", SECONDS_OR_EXPRESSION),
    plain("max_job_retirement_time", SECONDS_OR_EXPRESSION),
    rerun("max_retries", CommandValueKind::Integer(0, 1_000)),
    plain("nice_user", CommandValueKind::Boolean),
    plain("notification", CommandValueKind::Never),
    rerun("on_exit_hold", CommandValueKind::Expression),
    rerun("on_exit_hold_reason", CommandValueKind::Text),
    rerun("on_exit_hold_subcode", CommandValueKind::Expression),
    rerun("on_exit_remove", CommandValueKind::Expression),
    rerun("periodic_hold", CommandValueKind::Expression),
    rerun("periodic_hold_reason", CommandValueKind::Text),
    rerun("periodic_hold_subcode", CommandValueKind::Expression),
    rerun("periodic_release", CommandValueKind::Expression),
    rerun("periodic_remove", CommandValueKind::Expression),
    rerun("periodic_vacate", CommandValueKind::Expression),
    plain("priority", CommandValueKind::Integer(-INT, INT)),
    plain("rank", CommandValueKind::Expression),
    plain("request_cpus", CommandValueKind::Expression),
    plain("request_disk", CommandValueKind::Quantity),
    plain("request_gpus", CommandValueKind::Expression),
    plain("request_memory", CommandValueKind::Quantity),
    plain("require_gpus", CommandValueKind::Expression),
    plain("requirements", CommandValueKind::Expression),
    rerun("retry_until", CommandValueKind::Expression),
    rerun("success_exit_code", CommandValueKind::Integer(0, 255)),
    plain("want_graceful_removal", CommandValueKind::Expression),
];

/// Prefixes of refused commands, with what to write instead. The first match applies.
const INSTEAD: [(&str, &str); 44] = [
    ("executable", "the operator sets it itself; the program goes into spec.script.source"),
    ("arguments", "the operator sets it itself; the script gets the job's index as its first argument"),
    ("transfer_", "the operator sets what is transferred; fetch further input in the script"),
    ("should_transfer", "the operator sets it itself"),
    ("when_to_transfer", "the operator sets it itself"),
    ("preserve_relative", "the operator sets what is transferred"),
    ("encrypt_", "the operator sets what is transferred"),
    ("dont_encrypt", "the operator sets what is transferred"),
    ("output", "the operator sets it itself; standard output becomes the file `out`"),
    ("stdout", "the operator sets it itself; standard output becomes the file `out`"),
    ("error", "the operator sets it itself; standard error becomes the file `err`"),
    ("stderr", "the operator sets it itself; standard error becomes the file `err`"),
    ("stream_", "the operator fetches out and err when the job has ended"),
    ("input", "there is no standard input; put the data into the script, or fetch it there"),
    ("stdin", "there is no standard input; put the data into the script, or fetch it there"),
    ("log", "the operator follows the job itself; see its status and Events"),
    ("initial", "the operator sets the folders itself"),
    ("remote_", "the operator sets the folders itself"),
    ("job_iwd", "the operator sets the folders itself"),
    ("queue", "the number of jobs is spec.queue"),
    ("env", "variables for the script go into spec.env"),
    ("getenv", "variables for the script go into spec.env"),
    ("get_env", "variables for the script go into spec.env"),
    ("universe", "the operator runs every job as a container; the image is spec.script.image"),
    ("docker_", "the image is spec.script.image"),
    ("container_", "the image is spec.script.image"),
    ("batch_", "the operator sets it itself, to namespace/name"),
    ("x509", "credentials cannot be given here; ask the operator's administrator"),
    ("use_", "credentials cannot be given here; ask the operator's administrator"),
    ("scitoken", "credentials cannot be given here; ask the operator's administrator"),
    ("send_credential", "credentials cannot be given here; ask the operator's administrator"),
    ("delegate_", "credentials cannot be given here; ask the operator's administrator"),
    ("leave_in_queue", "the operator sets it itself"),
    ("hold", "write spec.suspend: true"),
    ("max_materialize", "jobs of the operator are never materialized late"),
    ("max_idle", "jobs of the operator are never materialized late"),
    ("materialize_", "jobs of the operator are never materialized late"),
    ("prio", "write `priority`"),
    ("request_cpu", "write `request_cpus`"),
    ("request_gpu", "write `request_gpus`"),
    ("request_mem", "write `request_memory`"),
    ("retry_request_", "older HTCondor does not know it; write `request_memory` as an expression"),
    ("notify_user", "the operator sends no mail; see status and Events"),
    ("cron_", "a job runs once; use a Kubernetes CronJob that creates HTCJobs"),
];

/// Returns the allowed command of that name. `key` is in lower case.
pub(super) fn find(key: &str) -> Option<&'static SubmitCommand> {
    COMMANDS.iter().find(|command| command.name == key)
}

/// Returns whether the key is `request_<name>` of a resource that the site defined. HTCondor writes it as the attribute
/// `Request<name>`, so it must not be one of HTCondor's own (`request_edchroot` would set `RequestedChroot`).
pub(super) fn is_custom_resource(key: &str) -> bool {
    let own = |name: &str| {
        ["cpu", "gpu", "mem", "disk", "ed", "id", "result", "virtual"].iter().any(|first| name.starts_with(first))
    };
    key.strip_prefix("request_").is_some_and(|name| attributes::is_name(name) && !own(name))
}

/// Returns the attributes of a job's ad, in lower case, that a line with this command sets.
pub(super) fn attributes_of(command: &str) -> Vec<String> {
    let further: &[&str] = match command {
        "accounting_group" | "accounting_group_user" => &["acctgroup", "acctgroupuser"],
        "nice_user" => &["accountinggroup", "acctgroup", "acctgroupuser", "maxjobretirementtime"],
        "gpus_maximum_capability" => &["gpusmaxcapability", "requiregpus"],
        "gpus_minimum_capability" => &["gpusmincapability", "requiregpus"],
        "gpus_minimum_memory" => &["gpusminmemory", "requiregpus"],
        "gpus_minimum_runtime" => &["gpusminruntime", "requiregpus"],
        "max_retries" | "retry_until" => &["jobmaxretries", "onexithold", "onexitremove"],
        "success_exit_code" => &["jobmaxretries", "jobsuccessexitcode", "onexithold", "onexitremove"],
        "priority" => &["jobprio"],
        _ => &[],
    };
    let own = match command {
        "accounting_group" | "accounting_group_user" => "accountinggroup".to_owned(),
        other => other.replace('_', ""),
    };
    further.iter().map(|name| (*name).to_owned()).chain([own]).collect()
}

/// Returns what to write instead of a command that is not allowed.
pub(super) fn instead(key: &str) -> &'static str {
    INSTEAD
        .iter()
        .find(|(first, _)| key.starts_with(first))
        .map_or("it is not in the list of allowed submit commands (docs/htcopts.md)", |(_, instead)| instead)
}

impl CommandValueKind {
    /// Returns the expected value for the error message. None where expressions are allowed, as these have messages of
    /// their own.
    pub(super) fn wanted(self) -> Option<&'static str> {
        match self {
            Self::Expression | Self::Quantity => None,
            Self::Integer(0, 255) => Some("a whole number from 0 to 255"),
            Self::Integer(0, _) => Some("a whole number from 0 to 1000"),
            Self::Integer(..) => Some("a whole number"),
            Self::Decimal => Some("a number such as 8 or 8.6"),
            Self::Boolean => Some("true or false"),
            Self::Size => Some("a number with a unit, such as 4000M or 4G"),
            Self::Name => Some("a name of letters, digits, `_`, `.`, `@` and `-`, without quotes"),
            Self::Limits => Some("names separated by commas, each with an optional count, such as `db,licence:2`"),
            Self::Never => Some("`never`: the operator sends no mail"),
            Self::Text => Some("one text in double quotes, of at most 256 characters; nothing is computed there"),
        }
    }

    /// Returns whether the value is valid without being parsed as an expression.
    pub(super) fn fits(self, value: &str) -> bool {
        match self {
            Self::Expression => false,
            Self::Integer(least, most) => {
                is_number(value.strip_prefix('-').unwrap_or(value), false)
                    && value.parse::<i64>().is_ok_and(|number| (least..=most).contains(&number))
            }
            Self::Decimal => is_number(value, true),
            Self::Boolean => ["true", "false"].iter().any(|word| value.eq_ignore_ascii_case(word)),
            Self::Quantity | Self::Size => {
                let number = value.trim_end_matches(['b', 'B']);
                let number = if value.len() - number.len() > 1 { value } else { number };
                let number = number.strip_suffix(['K', 'k', 'M', 'm', 'G', 'g', 'T', 't']).unwrap_or(number);
                is_number(number.trim_end_matches(' '), true)
            }
            Self::Name => is_word(value, "_.@-"),
            Self::Limits => value.split(',').all(|limit| {
                let (name, count) = limit.trim_matches(' ').split_once(':').unwrap_or((limit.trim_matches(' '), "1"));
                is_limit(name) && is_number(count, false)
            }),
            Self::Never => value.eq_ignore_ascii_case("never"),
            Self::Text => {
                let inside = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
                inside.is_some_and(|text| !text.contains(['"', '\t']) && text.chars().count() <= MAX_TEXT)
            }
        }
    }
}

/// Returns whether the text is an attribute name, or two joined by a dot (`licence.matlab`), as HTCondor requires for
/// limits.
fn is_limit(text: &str) -> bool {
    let name = |part: &str| attributes::is_name(part);
    text.split_once('.').map_or(name(text), |(family, member)| name(family) && name(member))
}

fn is_word(text: &str, further: &str) -> bool {
    (1..=128).contains(&text.len())
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || further.contains(c))
}

/// Returns whether the text is digits without a leading zero, with a decimal point and further digits if `decimal`
/// allows it.
fn is_number(text: &str, decimal: bool) -> bool {
    let digits = |text: &str| (1..=15).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    let whole = |text: &str| digits(text) && (text == "0" || !text.starts_with('0'));
    match text.split_once('.') {
        Some((before, after)) => decimal && whole(before) && digits(after),
        None => whole(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = include_str!("../../../../docs/htcopts.md");

    #[test]
    fn documentation_lists_the_allowed_commands() {
        let table = PAGE.split("## Submit commands").nth(1).and_then(|rest| rest.split("\n\n").nth(1)).unwrap();
        let documented: Vec<_> = table.lines().skip(2).map(|row| row.split('`').nth(1).unwrap()).collect();
        let allowed: Vec<_> = COMMANDS.iter().map(|command| command.name).collect();
        assert_eq!(documented, allowed);
        assert!(allowed.is_sorted());
    }

    #[test]
    fn command_values_are_checked_by_kind() {
        let cases = [
            (CommandValueKind::Integer(0, 255), "0 255 7", "256 -1 007 1.5 x 1e3 0x1"),
            (CommandValueKind::Integer(-INT, INT), "-5 0 20", "- --1 99999999999"),
            (CommandValueKind::Decimal, "8 8.6 0.5", "8. .5 1.2.3 -1 x"),
            (CommandValueKind::Boolean, "true False", "1 yes \"true\""),
            (CommandValueKind::Size, "4 4G 4GB 1.5Gb 2000M 3T 100B", "G 4X 4BB -1G 4GG 1e3M 04G"),
            (CommandValueKind::Name, "group_u_X.y a-b a@b", "\"a\" .a a,b ä a$"),
            (CommandValueKind::Limits, "db db,licence:2 a.b:10", "db, db:-1 1k a.b.c db:x"),
            (CommandValueKind::Never, "never Never", "always error"),
            (CommandValueKind::Text, "\"\" \"täxt\"", "x 1 \" \"a\"\"b\" strcat(\"a\") \"a\",\"b\" \"a\tb\""),
        ];
        for (kind, good, bad) in cases {
            good.split(' ').for_each(|value| assert!(kind.fits(value), "{kind:?} {value}"));
            bad.split(' ').for_each(|value| assert!(!kind.fits(value), "{kind:?} {value}"));
        }
        assert!(CommandValueKind::Size.fits("4 GB"));
        for (characters, fits) in [(256, true), (257, false)] {
            assert_eq!(CommandValueKind::Text.fits(&format!("\"{}\"", "ä".repeat(characters))), fits);
        }
    }

    #[test]
    fn custom_resource_is_not_an_attribute_of_htcondor() {
        for key in ["request_licences", "request_fpga2"] {
            assert!(is_custom_resource(key), "{key}");
        }
        for key in
            ["request_", "request_1x", "request_edchroot", "request_id", "request_cpu", "request_x.y", "requestx"]
        {
            assert!(!is_custom_resource(key), "{key}");
        }
    }
}
