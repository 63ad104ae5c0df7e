//! `spec.htcopts`: the submit commands a user may give, parsed against an allow-list.
//!
//! The original pasted this text into the submit file. There `include command : …` runs a program in the operator (with
//! `-dry-run` too), `$ENV(X)` shows its environment and `transfer_output_remaps` writes anywhere it may write. Here every
//! line is taken apart, judged by its key and its kind of value, and written anew. `docs/htcopts.md` is the user's view.

mod attributes;
mod commands;
mod expression;
mod policy;
mod problem;

use std::fmt::Write as _;

use attributes::AttributeKind;
pub use attributes::{AttributeError, AttributeName, Attributes};
use commands::{Command, ValueKind};
pub use expression::ExpressionProblem;
use expression::Extent;
pub use policy::{AccountingGroups, GroupPattern, Policy, PolicyError, PriorityRange};
pub use problem::{HtcOptsError, HtcOptsProblem, ReferenceProblem};

/// Longest text accepted, in bytes.
pub const MAX_BYTES: usize = 8 * 1024;
/// Most lines accepted, blank ones and comments included.
pub const MAX_LINES: usize = 64;
/// Longest value accepted, in bytes.
pub const MAX_VALUE_BYTES: usize = 2_000;
/// Most steps of the regular expressions of a value that others may refer to: one search in an attribute. A long value can
/// refer to it some hundred times.
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
    /// Of an expression; none for other values, which are short and refer to nothing.
    extent: Option<Extent>,
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
    /// Parses submit commands, one per line. Blank lines and lines that begin with `#` are skipped. Attributes, accounting
    /// groups and priorities are those that `policy` allows.
    ///
    /// # Errors
    /// The first line that is not allowed, with what to write instead.
    pub fn parse(text: &str, policy: &Policy) -> Result<Self, HtcOptsError> {
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
        self.line(0, &format!("{command} = {}", value.trim_matches(BLANKS)), &Policy::default())?;
        self.check_references().map_err(|error| error.problem)
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

    fn line(&mut self, number: usize, line: &str, policy: &Policy) -> Result<(), HtcOptsProblem> {
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
        self.settings.push(Setting { key, value, extent, line: number });
        Ok(())
    }

    /// The group that the usage counts for, and its user, are the site's to allow.
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

    /// What refers to another line's attribute is as large and as slow as that: it has to be small, and to refer to none in turn.
    fn check_references(&self) -> Result<(), HtcOptsError> {
        let set: Vec<(&Setting, Vec<String>)> =
            self.settings.iter().map(|setting| (setting, setting.key.attributes())).collect();
        let referred = |setting: &Setting| {
            let names = setting.extent.as_ref().map(|extent| extent.references.clone()).unwrap_or_default();
            set.iter().filter(move |(_, own)| own.iter().any(|name| names.contains(name))).map(|(other, _)| *other)
        };
        for setting in &self.settings {
            for other in referred(setting) {
                let large = |extent: &Extent| extent.bytes > expression::ATTRIBUTE || extent.steps > MAX_REFERRED_STEPS;
                let why = if referred(other).next().is_some() {
                    ReferenceProblem::Chain
                } else if other.extent.as_ref().is_some_and(large) {
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

    /// The attributes of the ad that the line decides, in lower case.
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

/// Checks that text is in double quotes and a number is not. HTCondor reads a word without quotes as the name of an attribute, which
/// no job has: the value is undefined then, and the site's default applies without a word.
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

/// What the value comes to, if it is an expression.
fn check(key: &Key, value: &str, policy: &Policy) -> Result<Option<Extent>, HtcOptsProblem> {
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
            ValueKind::Expression
        }
        Key::Resource(_) => ValueKind::Expression,
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
