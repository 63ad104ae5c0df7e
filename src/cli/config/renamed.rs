//! Old names of settings, which are accepted for one release.

use std::ffi::OsString;

use clap::{Arg, Command};

/// Flags: the name and the old name.
const FLAGS: &[(&str, &str)] = &[
    ("allow-realm", "allowed-realms"),
    ("cleanup-interval", "housekeeping"),
    ("health-probe-bind-address", "http-listen"),
    ("history-retention", "keep-rows"),
    ("history-timeout", "history-limit"),
    ("kueue-resource", "kueue-resources"),
    ("leader-elect-lease-duration", "lease-duration"),
    ("leader-elect-renew-deadline", "lease-renew-deadline"),
    ("leader-elect-retry-period", "lease-retry"),
    ("log-level", "log"),
    ("max-concurrent-reconciles", "concurrency"),
    ("metrics-bind-address", "http-listen"),
    ("min-free-space", "keep-free"),
    ("output-retention", "keep-output"),
    ("poll-interval", "tracker-interval"),
    ("poll-min-interval", "soon"),
    ("retry-backoff", "pause-first"),
    ("retry-backoff-max", "pause-max"),
    ("staging-timeout", "staging-limit"),
    ("submit-timeout", "submit-limit"),
    ("submit-timeout-max", "submit-limit-max"),
    ("tool-timeout", "tool-limit"),
    ("transfer-timeout", "transfer-limit"),
    ("transfer-timeout-together", "transfer-limit-together"),
];

/// Environment variables: the name and the old name.
const VARIABLES: &[(&str, &str)] = &[
    ("HTC_ALLOW_ACCOUNTING_GROUPS", "HTC_ALLOW_ACCOUNTING_GROUP"),
    ("HTC_ALLOW_ATTRIBUTES", "HTC_ALLOW_ATTRIBUTE"),
    ("HTC_ALLOW_REALMS", "HTC_ALLOWED_REALMS"),
    ("HTC_CLEANUP_INTERVAL", "HTC_HOUSEKEEPING"),
    ("HTC_CONFINEMENT_READS", "HTC_CONFINEMENT_READ"),
    ("HTC_HEALTH_PROBE_BIND_ADDRESS", "HTC_HTTP_LISTEN"),
    ("HTC_HISTORY_RETENTION", "HTC_KEEP_ROWS"),
    ("HTC_HISTORY_TIMEOUT", "HTC_HISTORY_LIMIT"),
    ("HTC_LEADER_ELECT_LEASE_DURATION", "HTC_LEASE_DURATION"),
    ("HTC_LEADER_ELECT_RENEW_DEADLINE", "HTC_LEASE_RENEW_DEADLINE"),
    ("HTC_LEADER_ELECT_RETRY_PERIOD", "HTC_LEASE_RETRY"),
    ("HTC_LOG_LEVEL", "HTC_LOG"),
    ("HTC_MAX_CONCURRENT_RECONCILES", "HTC_CONCURRENCY"),
    ("HTC_METRICS_BIND_ADDRESS", "HTC_HTTP_LISTEN"),
    ("HTC_MIN_FREE_SPACE", "HTC_KEEP_FREE"),
    ("HTC_OUTPUT_RETENTION", "HTC_KEEP_OUTPUT"),
    ("HTC_POLL_INTERVAL", "HTC_TRACKER_INTERVAL"),
    ("HTC_POLL_MIN_INTERVAL", "HTC_SOON"),
    ("HTC_RETRY_BACKOFF", "HTC_PAUSE_FIRST"),
    ("HTC_RETRY_BACKOFF_MAX", "HTC_PAUSE_MAX"),
    ("HTC_STAGING_TIMEOUT", "HTC_STAGING_LIMIT"),
    ("HTC_SUBMIT_TIMEOUT", "HTC_SUBMIT_LIMIT"),
    ("HTC_SUBMIT_TIMEOUT_MAX", "HTC_SUBMIT_LIMIT_MAX"),
    ("HTC_TOOL_TIMEOUT", "HTC_TOOL_LIMIT"),
    ("HTC_TRANSFER_TIMEOUT", "HTC_TRANSFER_LIMIT"),
    ("HTC_TRANSFER_TIMEOUT_TOGETHER", "HTC_TRANSFER_LIMIT_TOGETHER"),
];

/// Adds the old names of flags as hidden aliases. Reads an old variable where the new one is not set.
#[must_use]
pub fn accept_old_names(command: Command) -> Command {
    with_old_names(command, &|name| std::env::var_os(name))
}

fn with_old_names(command: Command, value: &impl Fn(&str) -> Option<OsString>) -> Command {
    let command = command.mut_args(|arg| with_old_variable(with_old_flag(arg), value));
    command.mut_subcommands(|subcommand| with_old_names(subcommand, value))
}

fn with_old_flag(arg: Arg) -> Arg {
    match FLAGS.iter().find(|(name, _)| arg.get_long() == Some(name)) {
        Some((_, old)) => arg.alias(*old),
        None => arg,
    }
}

fn with_old_variable(arg: Arg, value: &impl Fn(&str) -> Option<OsString>) -> Arg {
    let known = VARIABLES.iter().find(|(name, _)| arg.get_env().is_some_and(|variable| variable == *name));
    match known {
        Some((name, old)) if value(name).is_none() && value(old).is_some() => arg.env(*old),
        _ => arg,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::Args as _;

    use super::*;
    use crate::cli::config::Config;
    use crate::jobs_api::front::FrontConfig;

    fn commands() -> Command {
        let log = Arg::new("log").long("log-level").env("HTC_LOG_LEVEL");
        let (run, front) = (Command::new("run"), Command::new("jobs-api"));
        let subcommands = [Config::augment_args(run), FrontConfig::augment_args(front)];
        Command::new("htc-operator").arg(log).subcommands(subcommands)
    }

    #[test]
    fn old_flags_set_the_same_setting() {
        let line = ["htc-operator", "--log=warn", "run", "--keep-free=7", "--http-listen=127.0.0.1:1"];
        let matches = accept_old_names(commands()).try_get_matches_from(line).unwrap();
        let (_, run) = matches.subcommand().unwrap();
        assert_eq!(matches.get_one::<String>("log").unwrap(), "warn");
        assert_eq!(run.get_one::<u64>("min_free_space"), Some(&7));
        assert!(run.contains_id("metrics_bind_address"));
    }

    #[test]
    fn old_variables_are_read_where_the_new_one_is_not_set() {
        let variable = |set: &'static [&str]| {
            let value = |name: &str| set.contains(&name).then(OsString::new);
            let run = with_old_names(commands(), &value).find_subcommand("run").unwrap().clone();
            let arg = run.get_arguments().find(|arg| arg.get_id() == "min_free_space").unwrap().clone();
            arg.get_env().unwrap().to_owned()
        };
        assert_eq!(variable(&["HTC_KEEP_FREE"]), "HTC_KEEP_FREE");
        assert_eq!(variable(&["HTC_KEEP_FREE", "HTC_MIN_FREE_SPACE"]), "HTC_MIN_FREE_SPACE");
        assert_eq!(variable(&[]), "HTC_MIN_FREE_SPACE");
    }

    #[test]
    fn every_renamed_setting_exists_and_no_old_name_does() {
        let command = commands();
        let settings: Vec<&Arg> =
            command.get_arguments().chain(command.get_subcommands().flat_map(Command::get_arguments)).collect();
        let flags: BTreeSet<&str> = settings.iter().filter_map(|arg| arg.get_long()).collect();
        let variables: BTreeSet<&str> =
            settings.iter().filter_map(|arg| arg.get_env().and_then(|name| name.to_str())).collect();
        for (names, known) in [(FLAGS, flags), (VARIABLES, variables)] {
            for (name, old) in names {
                assert!(known.contains(name) && !known.contains(old), "{name}, before {old}");
            }
        }
    }
}
