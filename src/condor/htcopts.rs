//! `spec.htcopts`: the submit commands a user may give, parsed against an allow-list.
//!
//! The original pasted this text into the submit file. There `include command : …` runs a program in the operator (with
//! `-dry-run` too), `$ENV(X)` shows its environment and `transfer_output_remaps` writes anywhere it may write. Here every
//! line is taken apart, judged by its key and its kind of value, and written anew. `docs/htcopts.md` is the user's view.

mod attributes;
mod commands;
mod expression;
mod problem;

use std::fmt::Write as _;

pub use attributes::{AttributeError, AttributeName, Attributes};
use commands::{Command, ValueKind};
pub use expression::ExpressionProblem;
pub use problem::{HtcOptsError, HtcOptsProblem};

/// Longest text accepted, in bytes.
pub const MAX_BYTES: usize = 8 * 1024;
/// Most lines accepted, blank ones and comments included.
pub const MAX_LINES: usize = 64;
/// Longest value accepted, in bytes.
pub const MAX_VALUE_BYTES: usize = 2_000;

/// Parsed options, in the order in which they were written. The site's defaults have the same grammar.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HtcOpts {
    settings: Vec<Setting>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Setting {
    key: Key,
    value: String,
    line: usize,
}

/// What a line sets. Two keys that are equal set the same thing, whatever their spelling was.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Key {
    Command(&'static Command),
    /// `request_<name>` of a resource that the site defined itself; the whole key in lower case.
    Resource(String),
    /// `MY.<name>`; the name as written.
    Attribute(String),
}

impl HtcOpts {
    /// Parses submit commands, one per line. Blank lines and lines that begin with `#` are skipped. `+X` may set what
    /// `attributes` allow.
    ///
    /// # Errors
    /// The first line that is not allowed, with what to write instead.
    pub fn parse(text: &str, attributes: &Attributes) -> Result<Self, HtcOptsError> {
        if text.len() > MAX_BYTES {
            return Err(at(1, HtcOptsProblem::TextTooLong));
        }
        let mut parsed = Self::default();
        for (number, line) in (1..).zip(text.split('\n')) {
            if number > MAX_LINES && !line.is_empty() {
                return Err(at(number, HtcOptsProblem::TooManyLines));
            }
            parsed.line(number, line, attributes).map_err(|problem| at(number, problem))?;
        }
        Ok(parsed)
    }

    /// Submit lines in canonical form, each with a line feed; empty when there are none.
    #[must_use]
    pub fn render(&self) -> String {
        render(self.settings.iter())
    }

    /// Submit lines of `self` (a site's defaults) where `user` does not set the same thing, then those of `user`.
    #[must_use]
    pub fn render_overridden_by(&self, user: &Self) -> String {
        let kept = self.settings.iter().filter(|site| !user.settings.iter().any(|own| own.key.replaces(&site.key)));
        render(kept.chain(&user.settings))
    }

    /// Adds a submit command whose value another field of the spec gives, by the same rules.
    ///
    /// # Errors
    /// A line sets the same thing already, or the value is not of the command's kind.
    pub fn add(&mut self, command: &str, value: &str) -> Result<(), HtcOptsProblem> {
        self.line(0, &format!("{command} = {}", value.trim_matches(BLANKS)), &Attributes::default())
    }

    /// The value of a submit command, if it is given.
    #[must_use]
    pub fn command(&self, name: &str) -> Option<&str> {
        let given = |setting: &&Setting| matches!(setting.key, Key::Command(command) if command.name == name);
        self.settings.iter().find(given).map(|setting| setting.value.as_str())
    }

    /// Names of the submit commands that may be given, sorted. `request_<name>` of a site's own resources comes on top.
    pub fn commands() -> impl Iterator<Item = &'static str> {
        commands::COMMANDS.iter().map(|command| command.name)
    }

    /// True when no option is set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.settings.is_empty()
    }

    /// True when HTCondor may hold, remove or run a job again after its payload ended, so that an end reported by the job
    /// itself is not yet an outcome. `success_exit_code` and `retry_until` alone bring `DEFAULT_JOB_MAX_RETRIES` (2).
    #[must_use]
    pub fn may_rerun(&self) -> bool {
        self.settings.iter().any(|setting| match setting.key {
            Key::Command(command) if command.name == "max_retries" => setting.value != "0",
            Key::Command(command) => command.may_rerun,
            Key::Resource(_) | Key::Attribute(_) => false,
        })
    }

    fn line(&mut self, number: usize, line: &str, attributes: &Attributes) -> Result<(), HtcOptsProblem> {
        if let Some(control) = line.chars().find(|c| c.is_control() && *c != '\t') {
            return Err(HtcOptsProblem::ControlCharacter(u32::from(control)));
        }
        let line = line.trim_matches(BLANKS);
        if line.ends_with('\\') {
            return Err(HtcOptsProblem::Backslash);
        }
        if line.is_empty() || line.starts_with('#') {
            return Ok(());
        }
        if line.contains('$') {
            return Err(HtcOptsProblem::Dollar);
        }
        if line.contains('\\') {
            return Err(HtcOptsProblem::Backslash);
        }
        let (key, value) = split(line)?;
        if value.is_empty() {
            return Err(HtcOptsProblem::NoValue(shown(key)));
        }
        if value.len() > MAX_VALUE_BYTES {
            return Err(HtcOptsProblem::ValueTooLong(shown(key)));
        }
        let key = Key::parse(key, attributes)?;
        if let Some(earlier) = self.settings.iter().find(|earlier| earlier.key.excludes(&key)) {
            return Err(HtcOptsProblem::Twice { key: key.render(), other: earlier.key.render(), line: earlier.line });
        }
        check(&key, value)?;
        let value = value.replace('\t', " ");
        self.settings.push(Setting { key, value, line: number });
        Ok(())
    }
}

const BLANKS: [char; 2] = [' ', '\t'];

/// Words that begin a statement of the submit language instead of an assignment.
const STATEMENTS: [&str; 9] = ["include", "if", "elif", "else", "endif", "use", "queue", "error", "warning"];

fn at(line: usize, problem: HtcOptsProblem) -> HtcOptsError {
    HtcOptsError { line, problem }
}

fn render<'a>(settings: impl Iterator<Item = &'a Setting>) -> String {
    settings.fold(String::new(), |mut text, setting| {
        let _ = writeln!(text, "{} = {}", setting.key.render(), setting.value);
        text
    })
}

/// User text as an error message shows it: no control or other surprising characters, at most 60 of them.
fn shown(text: &str) -> String {
    let mut shown: String = text.chars().take(60).flat_map(char::escape_debug).collect();
    if text.chars().nth(60).is_some() {
        shown.push('…');
    }
    shown
}

fn split(line: &str) -> Result<(&str, &str), HtcOptsProblem> {
    let first = line.split(|c: char| BLANKS.contains(&c) || c == ':').next().unwrap_or_default();
    let assigned = line.split_once('=').map(|(key, value)| (key.trim_matches(BLANKS), value.trim_matches(BLANKS)));
    match assigned {
        Some((key, _)) if key.ends_with('@') => Err(HtcOptsProblem::HereDocument),
        Some((key, value)) if !key.is_empty() && !key.contains(|c: char| BLANKS.contains(&c) || c == ':') => {
            Ok((key, value))
        }
        _ if STATEMENTS.iter().any(|word| first.eq_ignore_ascii_case(word)) => {
            Err(HtcOptsProblem::Statement(shown(first)))
        }
        _ => Err(HtcOptsProblem::NotAnAssignment(shown(line))),
    }
}

impl Key {
    fn parse(key: &str, attributes: &Attributes) -> Result<Self, HtcOptsProblem> {
        let attribute = key.strip_prefix('+').or_else(|| {
            key.get(..3).filter(|scope| scope.eq_ignore_ascii_case("MY.")).and_then(|scope| key.strip_prefix(scope))
        });
        if let Some(name) = attribute {
            if !attributes::is_name(name) {
                return Err(HtcOptsProblem::NotAnAttributeName(shown(key)));
            }
            if attributes.allows(name) {
                return Ok(Self::Attribute(name.to_owned()));
            }
            let name = name.to_owned();
            return Err(match attributes::reserved(&name) {
                Some(instead) => HtcOptsProblem::ReservedAttribute { name, instead },
                None => HtcOptsProblem::UnknownAttribute { name, allowed: attributes.listed() },
            });
        }
        let lower = key.to_ascii_lowercase();
        if let Some(command) = commands::find(&lower) {
            return Ok(Self::Command(command));
        }
        if commands::is_custom_resource(&lower) {
            return Ok(Self::Resource(lower));
        }
        Err(HtcOptsProblem::NotAllowed { key: shown(key), instead: commands::instead(&lower) })
    }

    fn render(&self) -> String {
        match self {
            Self::Command(command) => command.name.to_owned(),
            Self::Resource(key) => key.clone(),
            Self::Attribute(name) => format!("MY.{name}"),
        }
    }

    fn same(&self, other: &Self) -> bool {
        self.render().eq_ignore_ascii_case(&other.render())
    }

    /// The part this key plays for the attribute `AccountingGroup`, which four keys set.
    fn accounting(&self) -> Option<Accounting> {
        match self {
            Self::Command(command) => match command.name {
                "accounting_group" => Some(Accounting::Group),
                "accounting_group_user" => Some(Accounting::User),
                "nice_user" => Some(Accounting::Whole),
                _ => None,
            },
            Self::Attribute(name) if name.eq_ignore_ascii_case("AccountingGroup") => Some(Accounting::Whole),
            Self::Attribute(_) | Self::Resource(_) => None,
        }
    }

    /// True when both cannot stand in one text.
    fn excludes(&self, other: &Self) -> bool {
        self.same(other)
            || match (self.accounting(), other.accounting()) {
                (Some(one), Some(two)) => one == Accounting::Whole || two == Accounting::Whole,
                _ => false,
            }
    }

    /// True when a user's `self` takes the place of a site's `default`.
    fn replaces(&self, default: &Self) -> bool {
        self.excludes(default)
            || (self.accounting() == Some(Accounting::Group) && default.accounting() == Some(Accounting::User))
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Accounting {
    Group,
    User,
    Whole,
}

fn check(key: &Key, value: &str) -> Result<(), HtcOptsProblem> {
    let kind = match key {
        Key::Command(command) => command.kind,
        Key::Resource(_) | Key::Attribute(_) => ValueKind::Expression,
    };
    if kind.fits(value) {
        return Ok(());
    }
    match kind.wanted() {
        None => {
            expression::check(value).map_err(|problem| HtcOptsProblem::NotAnExpression { key: key.render(), problem })
        }
        Some(wanted) => Err(HtcOptsProblem::WrongValue { key: key.render(), wanted, value: shown(value) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On a site that allows the attributes A and X.
    fn parse(text: &str) -> Result<HtcOpts, HtcOptsError> {
        HtcOpts::parse(text, &Attributes::with(["A", "X"].map(|name| name.parse().unwrap())))
    }

    #[test]
    fn lines_are_written_anew() {
        let text = "# c $x\n\n +JobFlavour= \"espresso\" \n\tmy.MaxRuntime =10\nREQUEST_MEMORY = 2 GB\nrequest_Licences = 1\nrank =\tMemory +\t1\n";
        let options = parse(text).unwrap();
        let lines = "MY.JobFlavour = \"espresso\"\nMY.MaxRuntime = 10\nrequest_memory = 2 GB\nrequest_licences = 1\nrank = Memory + 1\n";
        assert_eq!(options.render(), lines);
        assert_eq!(parse(lines).unwrap().render(), lines);
        assert!(!options.is_empty() && !options.may_rerun());
        for empty in ["", "\n", "  # only = a comment\n\n"] {
            assert!(parse(empty).unwrap().is_empty());
            assert_eq!(parse(empty).unwrap().render(), "");
        }
    }

    #[test]
    fn messages_say_where_what_and_what_instead() {
        let cases = [
            (
                "rank = 1\nexecutable = x",
                "htcopts line 2: `executable` is not allowed: the operator sets it itself; the program goes into spec.script.source",
            ),
            (
                "+Z = 1",
                "htcopts line 1: `+Z` is not allowed here; allowed are AccountingGroup, BigMemJob, CephFS_IO, ContainerOS, DESIRED_Sites, FERMIHTC_AutoRelease, FERMIHTC_GraceLifetime, FERMIHTC_GraceMemory, GPUJobLength, JobCategory, JobDurationCategory, JobFlavor, JobFlavour, JobType, MaxRuntime, MaxRuntimeHours, MaxWallTimeMins, MyProject, ProjectName, REQUIRED_OS, RemoteJob, UNDESIRED_Sites, WantFlocking, WantGPULab, WantGlideIn, WantOS, is_resumable, A, X. The operator's administrator can allow more with --allow-attribute",
            ),
            (
                "+DataReuseManifestSHA256 = \"/etc/passwd\"",
                "htcopts line 1: `+DataReuseManifestSHA256` is not allowed: HTCondor uses this name, or names that begin so, itself; choose another name",
            ),
            ("+RequestMemory = 1", "htcopts line 1: `+RequestMemory` is not allowed: write `request_memory = …`"),
            (
                "+A = 1\n# x\nMY.a = 2",
                "htcopts line 3: `MY.a` conflicts with `MY.A` on line 1: both set the same thing; remove one of them",
            ),
            ("queue 5", "htcopts line 1: `queue` is not allowed: only `key = value` lines are"),
            (
                "+X = espresso beans",
                "htcopts line 1: `MY.X` expects a ClassAd expression (a string in double quotes, a number, or for example `TARGET.Memory > 2000`): `b` is not allowed here (put text in double quotes)",
            ),
            (
                "a\x1b[31m",
                "htcopts line 1: there is a control character (U+001B); write plain text with Unix line ends",
            ),
        ];
        for (text, message) in cases {
            assert_eq!(parse(text).unwrap_err().to_string(), message);
        }
        let long = parse(&"ä".repeat(500)).unwrap_err().to_string();
        assert!(long.chars().count() < 200, "{long}");
    }

    #[test]
    fn size_is_bounded() {
        assert!(parse(&"#".repeat(MAX_BYTES + 1)).is_err());
        assert!(parse(&"#\n".repeat(MAX_LINES)).is_ok());
        assert!(parse(&"#\n".repeat(MAX_LINES + 1)).is_err());
        assert!(parse(&format!("+X = \"{}\"", "x".repeat(MAX_VALUE_BYTES))).is_err());
    }

    #[test]
    fn retries_holds_and_periodic_commands_may_rerun() {
        for text in [
            "max_retries = 1",
            "retry_until = 3",
            "success_exit_code = 1",
            "on_exit_hold = true",
            "periodic_remove = false",
            "allowed_job_duration = 9",
        ] {
            assert!(parse(text).unwrap().may_rerun(), "{text}");
        }
        for text in ["", "max_retries = 0", "+X = 1", "request_cpus = 2", "rank = 1"] {
            assert!(!parse(text).unwrap().may_rerun(), "{text}");
        }
    }

    #[test]
    fn a_user_overrides_the_site_by_meaning() {
        let merged = |site: &str, user: &str| parse(site).unwrap().render_overridden_by(&parse(user).unwrap());
        assert_eq!(merged("+MaxRuntime = 1200\nrank = 1", "my.maxRUNTIME = 10"), "rank = 1\nMY.maxRUNTIME = 10\n");
        assert_eq!(
            merged("accounting_group = a\naccounting_group_user = b", "+AccountingGroup = \"c\""),
            "MY.AccountingGroup = \"c\"\n"
        );
        assert_eq!(
            merged("accounting_group = a\naccounting_group_user = b", "accounting_group = c"),
            "accounting_group = c\n"
        );
        assert_eq!(
            merged("accounting_group = a", "accounting_group_user = b"),
            "accounting_group = a\naccounting_group_user = b\n"
        );
        assert_eq!(merged("", ""), "");
    }
}
