//! `spec.htcopts`: the submit commands that a user may give, parsed against an allow-list.
//!
//! The Go operator pasted this text into the submit file. There `include command : …` runs a program in the operator
//! (even with `-dry-run`), `$ENV(X)` reveals its environment, and `transfer_output_remaps` writes wherever it may
//! write. Here each line is parsed, checked by its key and its kind of value, and rendered anew. `docs/htcopts.md`
//! describes this for users.

mod attributes;
mod commands;
mod expression;
mod policy;
mod problem;

use std::fmt::Write as _;

use attributes::AttributeKind;
pub use attributes::{AttributeError, AttributeName, Attributes};
use commands::{CommandValueKind, SubmitCommand};
use expression::ExpressionBounds;
pub use expression::ExpressionProblem;
pub use policy::{AccountingGroups, GroupPattern, HtcOptsPolicy, PolicyError, PriorityRange};
pub use problem::{HtcOptsError, HtcOptsProblem, ReferenceProblem};

/// Maximum length of the text in bytes.
pub const MAX_BYTES: usize = 8 * 1024;
/// Maximum number of lines, including blank ones and comments.
pub const MAX_LINES: usize = 64;
/// Maximum length of a value in bytes.
pub const MAX_VALUE_BYTES: usize = 2_000;
/// Maximum steps of the regular expressions in a value that other lines may refer to: one search in an attribute. A
/// long value can refer to it some hundred times.
const MAX_REFERRED_STEPS: u64 = 1 << 8;

/// Parsed options, in the order in which they were written. The site's defaults have the same grammar.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HtcOpts {
    settings: Vec<Setting>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Setting {
    key: Key,
    value: String,
    /// Bounds of an expression. None for other values, which are short and refer to nothing.
    bounds: Option<ExpressionBounds>,
    line: usize,
}

/// Setting that a line makes. Equal keys make the same setting, in whatever spelling.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Key {
    Command(&'static SubmitCommand),
    /// `request_<name>` of a resource that the site has defined. The whole key is in lower case.
    Resource(String),
    /// `MY.<name>`, with the name as written.
    Attribute(String),
}

impl HtcOpts {
    /// Parses submit commands, one per line. Skips blank lines and lines that begin with `#`. `policy` decides which
    /// attributes, accounting groups and priorities are allowed.
    ///
    /// # Errors
    /// The first line that is not allowed, and what to write instead.
    pub fn parse(text: &str, policy: &HtcOptsPolicy) -> Result<Self, HtcOptsError> {
        if text.len() > MAX_BYTES {
            return Err(at(1, HtcOptsProblem::TextTooLong));
        }
        let mut parsed = Self::default();
        for (number, line) in (1..).zip(text.split('\n')) {
            if number > MAX_LINES && !line.is_empty() {
                return Err(at(number, HtcOptsProblem::TooManyLines));
            }
            parsed.line(number, line, policy).map_err(|problem| at(number, problem))?;
        }
        parsed.check_accounting_group(&policy.accounting_groups)?;
        parsed.check_references()?;
        Ok(parsed)
    }

    /// Returns the submit lines in canonical form, each with a line feed. Empty if there are none.
    #[must_use]
    pub fn render(&self) -> String {
        render(self.settings.iter())
    }

    /// Returns the submit lines of `self` (a site's defaults) whose settings `user` does not override, then those of
    /// `user`.
    #[must_use]
    pub fn render_overridden_by(&self, user: &Self) -> String {
        let kept = self.settings.iter().filter(|site| !user.settings.iter().any(|own| own.key.replaces(&site.key)));
        render(kept.chain(&user.settings))
    }

    /// Adds a submit command whose value comes from another field of the spec, by the same rules.
    ///
    /// # Errors
    /// A line makes this setting already, or the value is not of the command's kind.
    pub fn add(&mut self, command: &str, value: &str) -> Result<(), HtcOptsProblem> {
        self.line(0, &format!("{command} = {}", value.trim_matches(BLANKS)), &HtcOptsPolicy::default())?;
        self.check_references().map_err(|error| error.problem)
    }

    /// Returns the value of a submit command, if it is set.
    #[must_use]
    pub fn command(&self, name: &str) -> Option<&str> {
        let given = |setting: &&Setting| matches!(setting.key, Key::Command(command) if command.name == name);
        self.settings.iter().find(given).map(|setting| setting.value.as_str())
    }

    /// Returns the names of the allowed submit commands, sorted. `request_<name>` of a site's own resources is allowed,
    /// too.
    pub fn commands() -> impl Iterator<Item = &'static str> {
        commands::COMMANDS.iter().map(|command| command.name)
    }

    /// Returns whether no option is set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.settings.is_empty()
    }

    /// Returns whether HTCondor may hold, remove or rerun a job after its payload has ended. Then an end that the job
    /// itself reports is not yet final. `success_exit_code` and `retry_until` alone imply `DEFAULT_JOB_MAX_RETRIES`
    /// (2).
    #[must_use]
    pub fn may_rerun(&self) -> bool {
        self.settings.iter().any(|setting| match setting.key {
            Key::Command(command) if command.name == "max_retries" => setting.value != "0",
            Key::Command(command) => command.may_rerun,
            Key::Resource(_) | Key::Attribute(_) => false,
        })
    }

    fn line(&mut self, number: usize, line: &str, policy: &HtcOptsPolicy) -> Result<(), HtcOptsProblem> {
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
        let key = Key::parse(key, &policy.attributes)?;
        if let Some(earlier) = self.settings.iter().find(|earlier| earlier.key.excludes(&key)) {
            return Err(HtcOptsProblem::Twice { key: key.render(), other: earlier.key.render(), line: earlier.line });
        }
        let extent = check(&key, value, policy)?;
        let value = value.replace('\t', " ");
        self.settings.push(Setting { key, value, bounds: extent, line: number });
        Ok(())
    }

    /// Checks that the site allows the accounting group, and its user.
    fn check_accounting_group(&self, allowed: &AccountingGroups) -> Result<(), HtcOptsError> {
        let part = |wanted| self.settings.iter().find(|setting| setting.key.accounting() == Some(wanted));
        let (line, name) = match (part(Accounting::Group), part(Accounting::User), part(Accounting::Whole)) {
            (Some(group), Some(user), _) => (user.line, format!("{}.{}", group.value, user.value)),
            (Some(group), None, _) => (group.line, group.value.clone()),
            (None, Some(_), _) if matches!(allowed, AccountingGroups::Any) => return Ok(()),
            (None, Some(user), _) => return Err(at(user.line, HtcOptsProblem::UserWithoutGroup)),
            (None, None, Some(Setting { key: Key::Attribute(_), value, line, .. })) => {
                (*line, policy::quoted_group(value).unwrap_or_default().to_owned())
            }
            (None, None, _) => return Ok(()),
        };
        if allowed.allow(&name) {
            return Ok(());
        }
        Err(at(line, HtcOptsProblem::AccountingGroup { name: shown(&name), allowed: allowed.listed() }))
    }

    /// Checks references to attributes that other lines set. Such a reference is as large and as slow to evaluate as
    /// the other line's value. So that value must be small, and must contain no such reference itself.
    fn check_references(&self) -> Result<(), HtcOptsError> {
        let set: Vec<(&Setting, Vec<String>)> =
            self.settings.iter().map(|setting| (setting, setting.key.attributes())).collect();
        let referred = |setting: &Setting| {
            let names = setting.bounds.as_ref().map(|extent| extent.references.clone()).unwrap_or_default();
            set.iter().filter(move |(_, own)| own.iter().any(|name| names.contains(name))).map(|(other, _)| *other)
        };
        for setting in &self.settings {
            for other in referred(setting) {
                let large = |extent: &ExpressionBounds| {
                    extent.bytes > expression::ATTRIBUTE || extent.steps > MAX_REFERRED_STEPS
                };
                let why = if referred(other).next().is_some() {
                    ReferenceProblem::Chain
                } else if other.bounds.as_ref().is_some_and(large) {
                    ReferenceProblem::Large
                } else {
                    continue;
                };
                let (key, other) = (setting.key.render(), other.key.render());
                return Err(at(setting.line, HtcOptsProblem::Reference { key, other, why }));
            }
        }
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

/// Escapes and shortens user text for an error message: no control characters or other surprises, at most 60
/// characters.
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
            return Err(match attributes::instead(&name).or_else(|| attributes::reserved(&name)) {
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

    /// Returns the attributes of the ad that the line sets, in lower case.
    fn attributes(&self) -> Vec<String> {
        match self {
            Self::Command(command) => commands::attributes_of(command.name),
            Self::Resource(key) => vec![key.replacen('_', "", 1)],
            Self::Attribute(name) => vec![name.to_ascii_lowercase()],
        }
    }

    fn same(&self, other: &Self) -> bool {
        self.render().eq_ignore_ascii_case(&other.render())
    }

    /// Returns which part of the attribute `AccountingGroup` this key sets. Four keys set it.
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

    /// Returns whether both keys must not be in one text.
    fn excludes(&self, other: &Self) -> bool {
        self.same(other)
            || match (self.accounting(), other.accounting()) {
                (Some(one), Some(two)) => one == Accounting::Whole || two == Accounting::Whole,
                _ => false,
            }
    }

    /// Returns whether a user's `self` overrides a site's `default`.
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

/// Checks that text is in double quotes and a number is not. HTCondor takes a word without quotes for the name of an
/// attribute, which no job has. Then the value is undefined, and the site's default silently applies.
fn check_quotes(name: &str, value: &str) -> Result<(), HtcOptsProblem> {
    let is_one_of = |words: [&str; 2]| words.iter().any(|word| word.eq_ignore_ascii_case(value));
    let is_boolean = is_one_of(["true", "false"]);
    let is_word = attributes::is_name(value) && !is_boolean && !is_one_of(["undefined", "error"]);
    let between = |quote: char| value.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote));
    let (inner, single) = (between('"'), between('\''));
    let (name, value) = (name.to_owned(), shown(inner.or(single).unwrap_or(value)));
    match attributes::kind(&name) {
        _ if is_word || single.is_some() => Err(HtcOptsProblem::NotQuoted { name, value }),
        AttributeKind::Text if is_boolean || (inner.is_none() && value.parse::<f64>().is_ok()) => {
            Err(HtcOptsProblem::NotQuoted { name, value })
        }
        AttributeKind::Number if inner.is_some_and(|inner| !inner.contains('"')) => {
            Err(HtcOptsProblem::Quoted { name, value })
        }
        AttributeKind::Text | AttributeKind::Number | AttributeKind::Expression => Ok(()),
    }
}

/// Checks a value. Returns its bounds if it is an expression.
fn check(key: &Key, value: &str, policy: &HtcOptsPolicy) -> Result<Option<ExpressionBounds>, HtcOptsProblem> {
    let wrong = |wanted| HtcOptsProblem::WrongValue { key: key.render(), wanted, value: shown(value) };
    let kind = match key {
        Key::Command(command) => command.kind,
        Key::Attribute(_) if key.accounting().is_some() => {
            return match policy::quoted_group(value) {
                Some(_) => Ok(None),
                None => Err(wrong("a group in double quotes, such as `\"group_physics.run2\"`")),
            };
        }
        Key::Attribute(name) => {
            check_quotes(name, value)?;
            CommandValueKind::Expression
        }
        Key::Resource(_) => CommandValueKind::Expression,
    };
    if kind.fits(value) {
        let priority = matches!(key, Key::Command(command) if command.name == "priority");
        if priority && !value.parse().is_ok_and(|number| policy.priorities.contains(number)) {
            let range = policy.priorities.to_string();
            return Err(HtcOptsProblem::Priority { value: shown(value), range });
        }
        return Ok(None);
    }
    match kind.wanted() {
        None => expression::check(value)
            .map(Some)
            .map_err(|problem| HtcOptsProblem::NotAnExpression { key: key.render(), problem }),
        Some(wanted) => Err(wrong(wanted)),
    }
}

#[cfg(test)]
mod tests;
