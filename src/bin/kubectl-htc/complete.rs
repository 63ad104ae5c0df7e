//! What may stand at the end of a command that is being typed. kubectl asks the program `kubectl_complete-htc` for it, in every shell
//! that kubectl completes in, and takes cobra's form: a line for each candidate, and at the end what the shell is to do itself.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Arg, Command, ValueHint};
use kube::ResourceExt as _;
use kube::api::ListParams;
use kube::config::Kubeconfig;

use super::cluster::{Cluster, Jobs, parse_name};
use super::patience::Patience;
use super::say::{self, say};

/// Name by which kubectl looks for the program.
pub(super) const PROGRAM: &str = "kubectl_complete-htc";
/// Somebody waits with a finger on the tabulator.
const PATIENCE: Duration = Duration::from_secs(3);
/// Most names that are asked for.
const MOST: u32 = 500;

/// The shell completes names of files where no candidate fits.
const FILES: u8 = 0;
const NO_FILES: u8 = 4;

/// What is looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Wanted {
    /// These words, with what they mean.
    Words(Vec<(String, String)>),
    Contexts,
    HTCJob,
    /// Of an HTCJob whose name stands before the stroke.
    Job(String),
    Files,
    Nothing,
}

/// A command as far as it is typed.
struct Typed {
    wanted: Wanted,
    /// The word that is completed, without the flag that it is a value of.
    word: String,
    /// What stands before it, in the same word.
    before: String,
    /// Global flags with their values.
    globals: Vec<(String, String)>,
}

pub(super) async fn run(root: Command, words: &[String]) -> ExitCode {
    let Typed { wanted, word, before, globals } = read(root, words);
    let files = wanted == Wanted::Files;
    let names = async {
        match wanted {
            Wanted::Words(words) => words,
            Wanted::Contexts => contexts(&globals),
            Wanted::HTCJob => htcjobs(&cluster(&globals)).await.unwrap_or_default(),
            Wanted::Job(name) => jobs(&cluster(&globals), &name).await.unwrap_or_default(),
            Wanted::Files | Wanted::Nothing => Vec::new(),
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

/// Follows the words that are typed already.
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
        return plain(Wanted::Words(flags(command)), word);
    }
    if command.has_subcommands() {
        let all = command.get_subcommands().filter(|command| !command.is_hide_set());
        let about = |command: &Command| command.get_about().map(ToString::to_string).unwrap_or_default();
        return plain(
            Wanted::Words(all.map(|command| (command.get_name().to_owned(), about(command))).collect()),
            word,
        );
    }
    let Some(argument) = command.get_positionals().nth(place) else { return plain(Wanted::Nothing, word) };
    // A new HTCJob's name is nobody's yet.
    if argument.get_id() != "name" || command.get_name() == "submit" {
        return plain(value(argument), word);
    }
    let of_jobs = command.get_arguments().any(|argument| argument.get_help().is_some_and(is_of_jobs));
    match word.rsplit_once('/').filter(|_| of_jobs).map(|(name, _)| (name, parse_name(name))) {
        Some((written, Ok(name))) => {
            let before = format!("{written}/");
            let word = word[before.len()..].to_owned();
            Typed { before, ..plain(Wanted::Job(name), word) }
        }
        _ => plain(Wanted::HTCJob, word),
    }
}

/// Whether an argument may be one job of an HTCJob.
fn is_of_jobs(help: &clap::builder::StyledStr) -> bool {
    help.to_string().contains("NAME/INDEX")
}

/// The flag that a word is, and the value in it.
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

/// What may be the value of an argument.
fn value(argument: &Arg) -> Wanted {
    let possible = argument.get_possible_values();
    if !possible.is_empty() && argument.get_action().takes_values() {
        let about = |help: Option<&clap::builder::StyledStr>| help.map(ToString::to_string).unwrap_or_default();
        let words = possible.iter().filter(|value| !value.is_hide_set());
        return Wanted::Words(words.map(|value| (value.get_name().to_owned(), about(value.get_help()))).collect());
    }
    match (argument.get_id().as_str(), argument.get_value_hint()) {
        ("context", _) => Wanted::Contexts,
        (_, ValueHint::AnyPath | ValueHint::FilePath | ValueHint::DirPath) => Wanted::Files,
        _ => Wanted::Nothing,
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
    let state = |job: &htc_operator::api::HTCJob| job.status.as_ref().and_then(|status| status.state.clone());
    Some(listed.iter().map(|job| (job.name_any(), state(job).unwrap_or_default())).collect())
}

async fn jobs(cluster: &Cluster, name: &str) -> Option<Vec<(String, String)>> {
    let jobs = Jobs { patience: Patience::none(), ..cluster.jobs().await.ok()? };
    let procs = jobs.first_procs(name, "").await.ok()?;
    Some(procs.into_iter().map(|proc| (proc.index.to_string(), proc.state)).collect())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn read(words: &[&str]) -> Typed {
        super::read(super::super::Cli::command(), &words.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    fn words(typed: &[&str]) -> Vec<String> {
        let Typed { wanted, word, before, .. } = read(typed);
        let Wanted::Words(words) = wanted else { panic!("{typed:?}: {wanted:?}") };
        words.into_iter().filter(|(name, _)| name.starts_with(&word)).map(|(name, _)| before.clone() + &name).collect()
    }

    #[test]
    fn commands_flags_and_values_are_known() {
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
    fn names_are_those_of_the_cluster() {
        let typed = read(&["--context", "there", "-nteam", "logs", "ze"]);
        assert_eq!((typed.wanted, typed.word.as_str()), (Wanted::HTCJob, "ze"));
        let found = cluster(&typed.globals);
        assert_eq!((found.context.as_deref(), found.namespace.as_deref()), (Some("there"), Some("team")));
        let typed = read(&["logs", "htcjob/zero/1"]);
        assert_eq!(
            (typed.wanted, typed.before.as_str(), typed.word.as_str()),
            (Wanted::Job("zero".to_owned()), "htcjob/zero/", "1")
        );
        assert_eq!(read(&["wait", ""]).wanted, Wanted::HTCJob);
        assert_eq!(read(&["wait", "--timeout=10m", "z"]).wanted, Wanted::HTCJob);
        assert_eq!(read(&["submit", ""]).wanted, Wanted::Nothing, "a new name");
        assert_eq!(read(&["submit", "a", "--script", "s"]).wanted, Wanted::Files);
        assert_eq!(read(&["files", "zero", "r"]).wanted, Wanted::Files);
        assert_eq!(read(&["wait", "zero", ""]).wanted, Wanted::Nothing);
        assert_eq!(read(&["--context", "x"]).wanted, Wanted::Contexts);
        assert_eq!(read(&["wait", "--timeout", ""]).wanted, Wanted::Nothing);
    }
}
