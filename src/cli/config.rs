//! Every setting of the operator: flags, environment variables, defaults and units.

pub mod error;
mod groups;
mod renamed;
mod values;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
pub use groups::{
    CallbackArgs, CondorArgs, ContainerArgs, CredentialsArgs, DataArgs, ElectionArgs, JobsApiArgs, KubernetesArgs,
    MonitoringArgs, OutputArgs, PodsArgs, QueueingArgs, TimingArgs,
};
pub use renamed::accept_old_names;

use htc_confine::{Confinement, kernel_has_landlock};
use htc_machine::Settings;
use htc_submit::description::NodeFaultRules;
use htc_submit::htcopts::{AccountingGroups, Attributes, HtcOptsPolicy};
use htc_submit::payload::{Image, ImageMap};
use htc_submit::volumes::ClaimFolders;
use htc_support::metrics::Metrics;
use htcondor::{ConfinementSettings, Tools};

use crate::backends::condor::credentials;
use crate::leader as lease;
use crate::output::retention;
use error::ConfigError;

/// Rule for folders of the operator.
const PLAIN_PATH: &str = "write an absolute path of letters, digits and /._-+@";

/// How the operator is set up. Times are written like `20s`, `500ms`, `10m`.
#[derive(Args, Clone, Debug)]
pub struct Config {
    /// Which HTCJobs this operator works on, and who it is among others.
    #[command(flatten)]
    pub kubernetes: KubernetesArgs,
    /// Jobs as Pods on the cluster's own nodes.
    #[command(flatten)]
    pub pods: PodsArgs,
    /// Which of several processes acts.
    #[command(flatten)]
    pub election: ElectionArgs,
    /// The schedd, its tools, and what one call of them may hold.
    #[command(flatten)]
    pub condor: CondorArgs,
    /// In whose name HTCondor is asked.
    #[command(flatten)]
    pub credentials: CredentialsArgs,
    /// What the containers of the jobs are made of.
    #[command(flatten)]
    pub containers: ContainerArgs,
    /// Where things are kept, and for how long.
    #[command(flatten)]
    pub data: DataArgs,
    /// How output comes back.
    #[command(flatten)]
    pub output: OutputArgs,
    /// How often HTCondor is asked, and how long answers may take.
    #[command(flatten)]
    pub timing: TimingArgs,
    /// What jobs report of themselves.
    #[command(flatten)]
    pub callbacks: CallbackArgs,
    /// How many jobs may be in HTCondor at a time, and whose.
    #[command(flatten)]
    pub queueing: QueueingArgs,
    /// Each job as an object of the API.
    #[command(flatten)]
    pub jobs_api: JobsApiArgs,
    /// Health and metrics.
    #[command(flatten)]
    pub monitoring: MonitoringArgs,
}

impl Config {
    /// Refuses settings that cannot work, in words that say what to write.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+@".contains(c);
        let rule = |flags, rule| Err(ConfigError::Rule { flags, rule });
        let folders = [("--data-dir", Some(&self.data.data_dir)), ("--output-dir", self.data.output_dir.as_ref())];
        for (flag, folder) in folders {
            let path = folder.map_or("/", |folder| folder.to_str().unwrap_or_default());
            if !path.starts_with('/') || !path.chars().all(plain) {
                return Err(ConfigError::value(flag, path, PLAIN_PATH));
            }
        }
        if self.condor.batch_objects == 0
            || self.condor.batch_jobs == 0
            || self.kubernetes.max_concurrent_reconciles == 0
        {
            return rule("--batch-objects, --batch-jobs and --max-concurrent-reconciles", "be at least 1");
        }
        if self.condor.batch_objects > 300 || self.condor.batch_jobs > 10_000 {
            return Err(ConfigError::LargeBatch);
        }
        self.validate_confinement()?;
        if self.timing.dead_margin < self.timing.late_margin {
            return rule("--dead-margin", "not be shorter than --late-margin");
        }
        if self.election.leader_elect_renew_deadline >= self.election.leader_elect_lease_duration
            || self.election.leader_elect_retry_period >= self.election.leader_elect_renew_deadline
        {
            return rule(
                "--leader-elect-retry-period",
                "be shorter than --leader-elect-renew-deadline, and that shorter than --leader-elect-lease-duration",
            );
        }
        if self.election.leader_elect_lease_duration.subsec_nanos() != 0
            || self.election.leader_elect_lease_duration.is_zero()
        {
            return rule("--leader-elect-lease-duration", "be whole seconds");
        }
        if let Some(url) = &self.callbacks.callback_url {
            let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://")).unwrap_or_default();
            let plain = |c: char| c.is_ascii_alphanumeric() || "-._~:/[]%".contains(c);
            if rest.is_empty() || rest.starts_with('/') || url.len() > 1024 || !rest.chars().all(plain) {
                return Err(ConfigError::value("--callback-url", url, "write http:// or https://, a host and a path"));
            }
        }
        let in_uri = |c: char| c.is_ascii_alphanumeric() || "-._~:/".contains(c);
        if !(1..=256).contains(&self.callbacks.callback_source.len())
            || !self.callbacks.callback_source.chars().all(in_uri)
        {
            return rule("--callback-source", "be 1 to 256 letters, digits and -._~:/");
        }
        if self.data.cleanup_interval.is_zero() || self.credentials.credentials_refresh.is_zero() {
            return rule("--cleanup-interval and --credentials-refresh", "not be zero");
        }
        if self.jobs_api.jobs_api_certificate_life < Duration::from_secs(60) {
            return rule("--jobs-api-certificate-life", "be at least 60s");
        }
        if self.credentials.namespace_identities == 0 {
            return rule("--namespace-identities", "be at least 1");
        }
        if let Some(folder) = self.credentials.credentials.as_ref().filter(|folder| !folder.is_dir()) {
            return Err(ConfigError::value("--credentials", folder.display(), "there is no such folder"));
        }
        let setup = self.credentials_config();
        let run = setup.run_dir.to_str().unwrap_or_default();
        if !run.starts_with('/') || !run.chars().all(plain) {
            return Err(ConfigError::value("--run-dir", setup.run_dir.display(), PLAIN_PATH));
        }
        credentials::check_run_dir(&setup.run_dir)?;
        if self.timing.submit_timeout > self.timing.submit_timeout_max {
            return rule("--submit-timeout", "not be longer than --submit-timeout-max");
        }
        self.claims()?;
        self.validate_image_cache()?;
        self.image_map().map(drop)
    }

    fn validate_image_cache(&self) -> Result<(), ConfigError> {
        let Some(cache) = &self.containers.image_cache else { return Ok(()) };
        let wrong = |problem| Err(ConfigError::value("--image-cache", cache, problem));
        if Image::of_the_site(cache).is_err() {
            return wrong("write an absolute path of letters, digits and `-._/:@+=`, without `.` and `..`");
        }
        let in_each_other = |bind: &String| {
            let (cache, bind) = (Path::new(cache), Path::new(bind));
            cache.starts_with(bind) || bind.starts_with(cache)
        };
        if self.binds().iter().any(in_each_other) {
            return wrong("jobs see folders of --bind and could change the images there: choose another folder");
        }
        Ok(())
    }

    fn validate_confinement(&self) -> Result<(), ConfigError> {
        let relative = self.condor.confinement_reads.iter().find(|path| path.is_relative());
        if let Some(path) = relative {
            return Err(ConfigError::value("--confinement-read", path.display(), "write an absolute path"));
        }
        if self.condor.confinement != Confinement::Required {
            return Ok(());
        }
        if !kernel_has_landlock() {
            return Err(ConfigError::NoLandlock);
        }
        match excluded_paths_message(&self.tools(Metrics::default())) {
            Some(why) => Err(ConfigError::ExcludedPaths(why)),
            None => Ok(()),
        }
    }

    /// HTCondor's tools, whose calls are measured.
    #[must_use]
    pub fn tools(&self, metrics: Metrics) -> Tools {
        let protected = self.protected();
        let (wanted, reads) = (self.condor.confinement, &self.condor.confinement_reads);
        let confining = ConfinementSettings { wanted, reads, protected: &protected };
        let (limit, history_limit, transfer_limit) =
            (self.timing.tool_timeout, self.timing.history_timeout, self.output.transfer_timeout);
        Tools::new(self.condor.condor_bin.as_ref(), confining, limit, history_limit, transfer_limit, metrics)
    }

    /// Folders that no tool may see as a whole: what is in them belongs to others.
    fn protected(&self) -> Vec<PathBuf> {
        let credentials = self.credentials_config();
        let ledger = self.ledger().parent().map(Path::to_owned);
        let folders = [self.data.data_dir.clone(), self.output_dir(), credentials.run_dir];
        folders.into_iter().chain(self.credentials.credentials.clone()).chain(ledger).collect()
    }

    /// The ledger's file.
    #[must_use]
    pub fn ledger(&self) -> PathBuf {
        self.data.ledger.clone().unwrap_or_else(|| self.data.data_dir.join("sqlite/htcjobs.db"))
    }

    /// The folder that `htc_out` is in.
    #[must_use]
    pub fn output_dir(&self) -> PathBuf {
        self.data.output_dir.clone().unwrap_or_else(|| self.data.data_dir.clone())
    }

    /// Where credentials come from, and go to.
    #[must_use]
    pub fn credentials_config(&self) -> credentials::CredentialsConfig {
        credentials::CredentialsConfig {
            signer: None,
            own: self
                .credentials
                .credentials
                .clone()
                .map_or(credentials::OperatorCredentials::Configured, credentials::OperatorCredentials::Mounted),
            run_dir: self.credentials.run_dir.clone().unwrap_or_else(credentials::usual_run_dir),
            refresh: self.credentials.credentials_refresh,
            namespace_identities: self.credentials.namespace_identities,
            allowed_realms: self.credentials.allowed_realms.clone(),
        }
    }

    /// Rules for runs that end by faults of their nodes.
    #[must_use]
    pub fn node_faults(&self) -> NodeFaultRules {
        let pause = u32::try_from(self.condor.node_fault_pause.as_secs()).unwrap_or(u32::MAX);
        NodeFaultRules { retries: self.condor.node_fault_retries, pause }
    }

    /// Most MiB of output of one job.
    #[must_use]
    pub fn output_limit(&self) -> Option<u64> {
        (self.output.output_limit > 0).then(|| self.output.output_limit.div_ceil(1 << 20))
    }

    /// How long what is left of HTCJobs that are gone is kept.
    #[must_use]
    pub const fn keep_times(&self) -> retention::RetentionTimes {
        retention::RetentionTimes {
            output: self.data.output_retention,
            rows: self.data.history_retention,
            every: self.data.cleanup_interval,
        }
    }

    /// What htcopts may set.
    #[must_use]
    pub fn policy(&self) -> HtcOptsPolicy {
        HtcOptsPolicy {
            attributes: self.attributes(),
            accounting_groups: AccountingGroups::These(self.condor.allow_accounting_groups.clone()),
            priorities: self.condor.priority_range,
        }
    }

    fn attributes(&self) -> Attributes {
        Attributes::with(self.condor.allow_attributes.iter().cloned())
    }

    /// What the site makes of image names.
    pub fn image_map(&self) -> Result<ImageMap, ConfigError> {
        let map =
            ImageMap::with(self.containers.images.iter().cloned(), self.containers.image_prefixes.iter().cloned())?;
        Ok(map.with_bound_folders(self.binds()).with_schemes(self.containers.image_schemes.clone()))
    }

    /// Folders of the nodes that are bound into containers.
    #[must_use]
    pub fn binds(&self) -> Vec<String> {
        self.containers.binds.iter().filter(|bind| !bind.is_empty()).cloned().collect()
    }

    /// Folders of the nodes for claims.
    pub fn claims(&self) -> Result<ClaimFolders, ConfigError> {
        Ok(ClaimFolders::new(self.containers.claims.iter().cloned())?)
    }

    /// What is wrong with a callback URL without TLS, and what to do about it.
    #[must_use]
    pub fn callbacks_in_clear(&self) -> Option<String> {
        let url = self.callbacks.callback_url.as_ref().filter(|url| url.starts_with("http://"))?;
        Some(format!(
            "--callback-url {url}: jobs send their tokens without encryption, so that others on the network can read them \
             and report in a job's place; use https://, with TLS in your Ingress or with --callback-tls-cert and \
             --callback-tls-key"
        ))
    }

    /// Name of this process among those that want to lead.
    #[must_use]
    pub fn identity(&self) -> String {
        self.election.identity.clone().unwrap_or_else(|| {
            let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
            format!("{host}_{}_{}", std::process::id(), jiff::Timestamp::now().as_millisecond())
        })
    }

    /// client-go's times of leader election.
    #[must_use]
    pub const fn lease_times(&self) -> lease::LeaseTimes {
        lease::LeaseTimes {
            duration: self.election.leader_elect_lease_duration,
            renew_deadline: self.election.leader_elect_renew_deadline,
            retry: self.election.leader_elect_retry_period,
        }
    }

    /// What the state machine goes by.
    #[must_use]
    pub fn settings(&self) -> Settings {
        Settings {
            staging: self.timing.staging_timeout,
            dead_margin: self.timing.dead_margin,
            late_margin: self.timing.late_margin,
            output_wait: self.output.output_wait,
            birthdate_steady: self.timing.birthdate_steady,
            submit_max: self.timing.submit_timeout_max,
            backoff_first: self.timing.retry_backoff,
            backoff_max: self.timing.retry_backoff_max,
            fetch_every: self.output.fetch_every,
            keep_output: self.data.output_retention,
            eager: Settings::default().eager,
            silence: self.timing.poll_interval.saturating_mul(3),
            soon: self.timing.poll_min_interval,
            jobs_per_attempt: self.condor.batch_jobs,
            namespace_limit: None,
            size_refusal: None,
        }
    }
}

/// What the tools are not allowed to touch although they may need it, and what to do about it.
#[must_use]
pub fn excluded_paths_message(tools: &Tools) -> Option<String> {
    let paths: Vec<String> = tools.excluded_paths().iter().map(|path| path.display().to_string()).collect();
    (!paths.is_empty()).then(|| {
        format!(
            "HTCondor's tools may not read {}, because the data, the ledger, the credentials or --run-dir are there; move \
             HTCondor's files, such as CONDOR_CONFIG, into a folder of their own",
            paths.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    /// A command line with nothing but callbacks.
    #[derive(clap::Parser)]
    struct TestArgs {
        #[command(flatten)]
        config: Config,
    }

    #[test]
    fn callback_url_without_tls_causes_a_warning() {
        let of = |url: &str| {
            let line = ["htc-operator", "--data-dir=/data", "--schedd=s", url];
            TestArgs::try_parse_from(line.into_iter().filter(|word| !word.is_empty()))
                .unwrap()
                .config
                .callbacks_in_clear()
        };
        let warning = of("--callback-url=http://here/cloudevents").unwrap();
        assert!(warning.contains("http://here/cloudevents: ") && warning.contains("--callback-tls-cert"), "{warning}");
        assert_eq!((of("--callback-url=https://here/cloudevents"), of("")), (None, None));
    }
}
