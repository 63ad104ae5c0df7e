//! Shell completion. kubectl runs the program `kubectl_complete-htc` for it, in every shell that kubectl completes
//! in, and expects cobra's format: a line for each candidate, and at the end a directive for the shell.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Arg, Command, ValueHint};
use kube::ResourceExt as _;
use kube::api::ListParams;
use kube::config::Kubeconfig;

use super::cluster::{Cluster, JobsClient, parse_name};
use crate::retry_budget::RetryBudget;
use crate::terminal as say;
use crate::terminal::say;

/// Name by which kubectl looks for the program.
pub(super) const PROGRAM: &str = "kubectl_complete-htc";
/// Maximum time for a completion: the user is waiting at the prompt.
const PATIENCE: Duration = Duration::from_secs(3);
/// Maximum number of names requested.
const MOST: u32 = 500;

/// Directive: the shell completes names of files where no candidate fits ([`NO_FILES`]: it does not).
const FILES: u8 = 0;
const NO_FILES: u8 = 4;

/// Kind of candidates.
#[derive(Clone, Debug, PartialEq, Eq)]
enum CompletionKind {
    /// These words, with their meanings.
    Words(Vec<(String, String)>),
    Contexts,
    HTCJob,
    /// Jobs of an HTCJob whose name is before the slash.
    Job(String),
    Files,
    Nothing,
}

/// A command as far as it is typed.
struct Typed {
    wanted: CompletionKind,
    /// Word to be completed, without the flag that it is a value of.
    word: String,
    /// Text before it in the same word.
    before: String,
    /// Global flags with their values.
    globals: Vec<(String, String)>,
}

pub(super) async fn run(root: Command, words: &[String]) -> ExitCode {
    let Typed { wanted, word, before, globals } = read(root, words);
    let files = wanted == CompletionKind::Files;
    let names = async {
        match wanted {
            CompletionKind::Words(words) => words,
            CompletionKind::Contexts => contexts(&globals),
            CompletionKind::HTCJob => htcjobs(&cluster(&globals)).await.unwrap_or_default(),
            CompletionKind::Job(name) => jobs(&cluster(&globals), &name).await.unwrap_or_default(),
            CompletionKind::Files | CompletionKind::Nothing => Vec::new(),
        }
    };
    let names = tokio::time::timeout(PATIENCE, names).await.unwrap_or_default();
    for (name, about) in names.iter().filter(|(name, _)| name.starts_with(&word)) {
        let about = about.lines().next().unwrap_or_default();
        say::word(&format!("{before}{name}"), about);
    }
    say!(":{}", if files { FILES } else { NO_FILES });
    ExitCode::SUCCESS
}

/// Parses the words that are typed already.
fn read(mut root: Command, words: &[String]) -> Typed {
    root.build();
    let (word, typed) = match words.split_last() {
        Some((word, typed)) => (word.clone(), typed),
        None => (String::new(), words),
    };
    let (mut command, mut place) = (&root, 0);
    let mut globals = Vec::new();
    let mut open: Option<&Arg> = None;
    for word in typed {
        if let Some(flag) = open.take() {
            globals.push((flag.get_id().to_string(), word.clone()));
        } else if let Some((flag, value)) = flag(command, word) {
            match value {
                Some(value) => globals.push((flag.get_id().to_string(), value.to_owned())),
                None => open = Some(flag).filter(|flag| flag.get_action().takes_values()),
            }
        } else if let Some(further) = command.find_subcommand(word).filter(|_| command.has_subcommands()) {
            command = further;
        } else {
            place += 1;
        }
    }
    let plain = |wanted, word: String| Typed { wanted, word, before: String::new(), globals: globals.clone() };
    if let Some(flag) = open {
        return plain(value(flag), word);
    }
    if let (Some((flag, Some(text))), true) = (self::flag(command, &word), word.starts_with("--")) {
        let before = word[..word.len() - text.len()].to_owned();
        return Typed { before, ..plain(value(flag), text.to_owned()) };
    }
    if word.starts_with('-') {
        return plain(CompletionKind::Words(flags(command)), word);
    }
    if command.has_subcommands() {
        let all = command.get_subcommands().filter(|command| !command.is_hide_set());
        let about = |command: &Command| command.get_about().map(ToString::to_string).unwrap_or_default();
        return plain(
            CompletionKind::Words(all.map(|command| (command.get_name().to_owned(), about(command))).collect()),
            word,
        );
    }
    let Some(argument) = command.get_positionals().nth(place) else { return plain(CompletionKind::Nothing, word) };
    // The name of a new HTCJob cannot be completed.
    if argument.get_id() != "name" || command.get_name() == "submit" {
        return plain(value(argument), word);
    }
    let of_jobs = command.get_arguments().any(|argument| argument.get_help().is_some_and(is_of_jobs));
    match word.rsplit_once('/').filter(|_| of_jobs).map(|(name, _)| (name, parse_name(name))) {
        Some((written, Ok(name))) => {
            let before = format!("{written}/");
            let word = word[before.len()..].to_owned();
            Typed { before, ..plain(CompletionKind::Job(name), word) }
        }
        _ => plain(CompletionKind::HTCJob, word),
    }
}

/// Returns whether an argument may be one job of an HTCJob.
fn is_of_jobs(help: &clap::builder::StyledStr) -> bool {
    help.to_string().contains("NAME/INDEX")
}

/// Returns the flag that a word is, and the value in it.
fn flag<'a, 'w>(command: &'a Command, word: &'w str) -> Option<(&'a Arg, Option<&'w str>)> {
    let mut all = command.get_arguments();
    if let Some(long) = word.strip_prefix("--") {
        let (name, value) = long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value)));
        return all.find(|flag| flag.get_long() == Some(name)).map(|flag| (flag, value));
    }
    let mut short = word.strip_prefix('-')?.chars();
    let letter = short.next()?;
    let rest = short.as_str();
    let value = (!rest.is_empty()).then(|| rest.strip_prefix('=').unwrap_or(rest));
    all.find(|flag| flag.get_short() == Some(letter)).map(|flag| (flag, value))
}

/// Returns the kind of an argument's values.
fn value(argument: &Arg) -> CompletionKind {
    let possible = argument.get_possible_values();
    if !possible.is_empty() && argument.get_action().takes_values() {
        let about = |help: Option<&clap::builder::StyledStr>| help.map(ToString::to_string).unwrap_or_default();
        let words = possible.iter().filter(|value| !value.is_hide_set());
        return CompletionKind::Words(
            words.map(|value| (value.get_name().to_owned(), about(value.get_help()))).collect(),
        );
    }
    match (argument.get_id().as_str(), argument.get_value_hint()) {
        ("context", _) => CompletionKind::Contexts,
        (_, ValueHint::AnyPath | ValueHint::FilePath | ValueHint::DirPath) => CompletionKind::Files,
        _ => CompletionKind::Nothing,
    }
}

fn flags(command: &Command) -> Vec<(String, String)> {
    let about = |flag: &Arg| flag.get_help().map(ToString::to_string).unwrap_or_default();
    let shown = command.get_arguments().filter(|flag| !flag.is_hide_set());
    shown.filter_map(|flag| Some((format!("--{}", flag.get_long()?), about(flag)))).collect()
}

fn cluster(globals: &[(String, String)]) -> Cluster {
    let last = |id: &str| globals.iter().rev().find(|(flag, _)| flag == id).map(|(_, value)| value.clone());
    let groups = globals.iter().filter(|(flag, _)| flag == "impersonate_groups").map(|(_, value)| value.clone());
    Cluster {
        namespace: last("namespace"),
        context: last("context"),
        kubeconfig: last("kubeconfig").map(Into::into),
        impersonate: last("impersonate"),
        impersonate_groups: groups.collect(),
    }
}

fn contexts(globals: &[(String, String)]) -> Vec<(String, String)> {
    let read = match cluster(globals).kubeconfig {
        Some(file) => Kubeconfig::read_from(file),
        None => Kubeconfig::read(),
    };
    let contexts = read.map(|kubeconfig| kubeconfig.contexts).unwrap_or_default();
    contexts.into_iter().map(|context| (context.name, String::new())).collect()
}

async fn htcjobs(cluster: &Cluster) -> Option<Vec<(String, String)>> {
    let jobs = cluster.jobs().await.ok()?;
    let listed = jobs.api.list(&ListParams::default().limit(MOST)).await.ok()?;
    let state = |job: &htc_api::HTCJob| job.status.as_ref().and_then(|status| status.state.clone());
    Some(listed.iter().map(|job| (job.name_any(), state(job).unwrap_or_default())).collect())
}

async fn jobs(cluster: &Cluster, name: &str) -> Option<Vec<(String, String)>> {
    let jobs = JobsClient { patience: RetryBudget::none(), ..cluster.jobs().await.ok()? };
    let procs = jobs.first_procs(name, "").await.ok()?;
    Some(procs.into_iter().map(|proc| (proc.index.to_string(), proc.state)).collect())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn read(words: &[&str]) -> Typed {
        super::read(super::super::PluginCli::command(), &words.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    fn words(typed: &[&str]) -> Vec<String> {
        let Typed { wanted, word, before, .. } = read(typed);
        let CompletionKind::Words(words) = wanted else { panic!("{typed:?}: {wanted:?}") };
        words.into_iter().filter(|(name, _)| name.starts_with(&word)).map(|(name, _)| before.clone() + &name).collect()
    }

    #[test]
    fn commands_flags_and_values_are_completed() {
        assert_eq!(words(&["w"]), ["wait", "why"]);
        assert_eq!(words(&["-n", "team", "st"]), ["story"]);
        assert_eq!(words(&["jobs", "zero", "--fa"]), ["--failed"]);
        assert!(words(&["jobs", "--"]).contains(&"--namespace".to_owned()), "that of all commands as well");
        assert_eq!(words(&["jobs", "zero", "-o", ""]), ["wide", "name", "json", "yaml"]);
        assert_eq!(words(&["jobs", "zero", "--output=j"]), ["--output=json"]);
        assert_eq!(words(&["completion", "z"]), ["zsh"]);
        assert_eq!(words(&["submit", "a", "--dry-run", "c"]), ["client"]);
        assert!(!words(&[""]).iter().any(|name| name.starts_with('_')));
    }

    #[test]
    fn names_are_completed_from_the_cluster() {
        let typed = read(&["--context", "there", "-nteam", "logs", "ze"]);
        assert_eq!((typed.wanted, typed.word.as_str()), (CompletionKind::HTCJob, "ze"));
        let found = cluster(&typed.globals);
        assert_eq!((found.context.as_deref(), found.namespace.as_deref()), (Some("there"), Some("team")));
        let typed = read(&["logs", "htcjob/zero/1"]);
        assert_eq!(
            (typed.wanted, typed.before.as_str(), typed.word.as_str()),
            (CompletionKind::Job("zero".to_owned()), "htcjob/zero/", "1")
        );
        assert_eq!(read(&["wait", ""]).wanted, CompletionKind::HTCJob);
        assert_eq!(read(&["wait", "--timeout=10m", "z"]).wanted, CompletionKind::HTCJob);
        assert_eq!(read(&["submit", ""]).wanted, CompletionKind::Nothing, "a new name");
        assert_eq!(read(&["submit", "a", "--script", "s"]).wanted, CompletionKind::Files);
        assert_eq!(read(&["files", "zero", "r"]).wanted, CompletionKind::Files);
        assert_eq!(read(&["wait", "zero", ""]).wanted, CompletionKind::Nothing);
        assert_eq!(read(&["--context", "x"]).wanted, CompletionKind::Contexts);
        assert_eq!(read(&["wait", "--timeout", ""]).wanted, CompletionKind::Nothing);
    }
}
