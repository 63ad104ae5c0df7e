//! Every setting of the operator: flags, environment variables, defaults and units.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::condor::htcopts::{AttributeName, Attributes};
use crate::condor::payload::{Image, ImageMap, ImagePrefix};
use crate::credentials;
use crate::lease;
use crate::machine::Settings;
use crate::retention;

/// How the operator is set up. Times are written like `20s`, `500ms`, `10m`.
#[derive(Args, Clone, Debug)]
pub struct Config {
    /// Folder for the ledger (`sqlite/htcjobs.db`), the jobs' files (`sandbox`) and their output (`htc_out`).
    #[arg(long, env = "HTC_DATA_DIR", default_value = "/data")]
    pub data_dir: PathBuf,

    /// The ledger's file, if it is not in the data folder. On a volume of its own, output cannot fill it.
    #[arg(long, env = "HTC_LEDGER")]
    pub ledger: Option<PathBuf>,

    /// Name of the schedd that jobs are submitted to, as `condor_status -schedd` shows it.
    #[arg(long, env = "HTC_SCHEDD")]
    pub schedd: String,

    /// Folder of HTCondor's tools. Default: PATH. The tools read `CONDOR_CONFIG`.
    #[arg(long, env = "HTC_CONDOR_BIN")]
    pub condor_bin: Option<PathBuf>,

    /// Folder with the operator's own credentials: Secrets, each mounted in a folder of its name, each optional:
    /// `kerberos-keytab-secret` (user, keytab), `kinit-secret` (username, password), `htcondor-idtoken` (token). Default:
    /// the credentials that `CONDOR_CONFIG` names.
    #[arg(long, env = "HTC_CREDENTIALS")]
    pub credentials: Option<PathBuf>,

    /// How often credentials in use are read again: the operator's own and those of HTCJobs' Secrets.
    #[arg(long, env = "HTC_CREDENTIALS_REFRESH", default_value = "5m", value_parser = parse_duration)]
    pub credentials_refresh: Duration,

    /// Folder in which a private folder for tickets and tokens is created. Use a local file system, preferably in memory.
    /// Default: the folder for temporary files.
    #[arg(long, env = "HTC_RUN_DIR")]
    pub run_dir: Option<PathBuf>,

    /// Namespace that the operator runs in. It is part of the operator's identity in HTCondor: do not change it.
    #[arg(long, env = "HTC_OPERATOR_NAMESPACE", default_value = "htc-operator")]
    pub operator_namespace: String,

    /// Name of this operator. It is part of the operator's identity in HTCondor: do not change it.
    #[arg(long, env = "HTC_OPERATOR_NAME", default_value = "htc-operator")]
    pub operator_name: String,

    /// Name of this process in the leader election. A process that restarts under the same name leads at once, so use the
    /// name of something that runs only once at a time, such as a pod. Default: a new name at each start.
    #[arg(long, env = "HTC_IDENTITY")]
    pub identity: Option<String>,

    /// How long others wait before they take over a Lease that is not renewed. Whole seconds.
    #[arg(long, env = "HTC_LEASE_DURATION", default_value = "15s", value_parser = parse_duration)]
    pub lease_duration: Duration,

    /// How long a leader acts after its last renewal of the Lease.
    #[arg(long, env = "HTC_LEASE_RENEW_DEADLINE", default_value = "10s", value_parser = parse_duration)]
    pub lease_renew_deadline: Duration,

    /// Pause between two attempts to take or renew the Lease.
    #[arg(long, env = "HTC_LEASE_RETRY", default_value = "2s", value_parser = parse_duration)]
    pub lease_retry: Duration,

    /// Watch this namespace only.
    #[arg(long, env = "HTC_WATCH_NAMESPACE")]
    pub watch_namespace: Option<String>,

    /// `NAME=PATH`: an image name that stands for an unpacked folder or a `.sif` file on the nodes. Can be repeated; in the
    /// environment variable, separate entries with commas.
    #[arg(long = "image", env = "HTC_IMAGES", value_delimiter = ',', value_parser = parse_image)]
    pub images: Vec<(String, String)>,

    /// `PREFIX=TARGET`: in image names that start with PREFIX, replaces PREFIX by TARGET, a folder of unpacked images on the
    /// nodes or another registry. Can be repeated; in the environment variable, separate entries with commas.
    #[arg(long = "image-prefix", env = "HTC_IMAGE_PREFIXES", value_delimiter = ',')]
    pub image_prefixes: Vec<ImagePrefix>,

    /// Folders to bind into the payload's container, on nodes that have them.
    #[arg(long = "bind", env = "HTC_BINDS", value_delimiter = ',', default_values_t = ["/cvmfs", "/afs", "/eos"].map(str::to_owned))]
    pub binds: Vec<String>,

    /// Submit commands for every job, one `key = value` per line. An HTCJob's htcopts override them.
    #[arg(long, env = "HTC_SITE_DEFAULTS", default_value = "")]
    pub site_defaults: String,

    /// An attribute that `+NAME = …` in htcopts may set, beside those that docs/htcopts.md lists. Names that HTCondor uses itself
    /// are refused. May be repeated; in the variable, separated by commas.
    #[arg(long = "allow-attribute", env = "HTC_ALLOW_ATTRIBUTE", value_name = "NAME", value_delimiter = ',')]
    pub allow_attributes: Vec<AttributeName>,

    /// Time between two looks at all jobs while something is active. Which jobs have changed is asked more often: every second
    /// while that is cheap.
    #[arg(long, env = "HTC_TRACKER_INTERVAL", default_value = "20s", value_parser = parse_duration)]
    pub tracker_interval: Duration,

    /// Pause between two queries while a change is expected.
    #[arg(long, env = "HTC_SOON", default_value = "1s", value_parser = parse_duration)]
    pub soon: Duration,

    /// Time limit of one run of an HTCondor tool, except submissions.
    #[arg(long, env = "HTC_TOOL_LIMIT", default_value = "60s", value_parser = parse_duration)]
    pub tool_limit: Duration,

    /// Time limit of one query of HTCondor's history, which reads all of it.
    #[arg(long, env = "HTC_HISTORY_LIMIT", default_value = "5m", value_parser = parse_duration)]
    pub history_limit: Duration,

    /// Time limit of one transfer of output.
    #[arg(long, env = "HTC_TRANSFER_LIMIT", default_value = "1h", value_parser = parse_duration)]
    pub transfer_limit: Duration,

    /// Time limit of a transfer for several HTCJobs together. If it takes longer, it is retried for each HTCJob alone.
    #[arg(long, env = "HTC_TRANSFER_LIMIT_TOGETHER", default_value = "10m", value_parser = parse_duration)]
    pub transfer_limit_together: Duration,

    /// Time limit of a submission without files. Each megabyte, and each 50 jobs, add a second.
    #[arg(long, env = "HTC_SUBMIT_LIMIT", default_value = "60s", value_parser = parse_duration)]
    pub submit_limit: Duration,

    /// Maximum time limit of a submission.
    #[arg(long, env = "HTC_SUBMIT_LIMIT_MAX", default_value = "600s", value_parser = parse_duration)]
    pub submit_limit_max: Duration,

    /// A job does not count if its files reach HTCondor later than this after the submission's time limit.
    #[arg(long, env = "HTC_LATE_MARGIN", default_value = "30s", value_parser = parse_duration)]
    pub late_margin: Duration,

    /// A submission whose end was not seen counts as dead this long after its time limit.
    #[arg(long, env = "HTC_DEAD_MARGIN", default_value = "60s", value_parser = parse_duration)]
    pub dead_margin: Duration,

    /// How long a job may stay in staging after its submission has ended.
    #[arg(long, env = "HTC_STAGING_LIMIT", default_value = "120s", value_parser = parse_duration)]
    pub staging_limit: Duration,

    /// How long a new JobQueueBirthdate must be seen before the schedd's queue counts as lost.
    #[arg(long, env = "HTC_BIRTHDATE_STEADY", default_value = "300s", value_parser = parse_duration)]
    pub birthdate_steady: Duration,

    /// How long `Complete` and `Failed` wait for the output.
    #[arg(long, env = "HTC_OUTPUT_WAIT", default_value = "600s", value_parser = parse_duration)]
    pub output_wait: Duration,

    /// Maximum output of one job, in bytes or with K, M, G or T (powers of 1024), rounded up to MiB. HTCondor holds a job that
    /// exceeds it. 0: the pool's own limit.
    #[arg(long, env = "HTC_OUTPUT_LIMIT", default_value = "1G", value_parser = parse_size)]
    pub output_limit: u64,

    /// Free space to keep on the data volume, in bytes. Below it no output is fetched. 0: no limit.
    #[arg(long, env = "HTC_KEEP_FREE", default_value = "1G", value_parser = parse_size)]
    pub keep_free: u64,

    /// How long the output of a deleted HTCJob is kept. `forever`: no limit.
    #[arg(long, env = "HTC_KEEP_OUTPUT", default_value = "30d", value_parser = parse_keep)]
    pub keep_output: Duration,

    /// How long the ledger's rows of a deleted HTCJob are kept, at least as long as its output. `forever`: no limit.
    #[arg(long, env = "HTC_KEEP_ROWS", default_value = "30d", value_parser = parse_keep)]
    pub keep_rows: Duration,

    /// How often expired output and rows are removed, and the keys of the jobs' tokens are read again.
    #[arg(long, env = "HTC_HOUSEKEEPING", default_value = "60s", value_parser = parse_duration)]
    pub housekeeping: Duration,

    /// Minimum time between two fetches of output while other jobs of the HTCJob still run.
    #[arg(long, env = "HTC_FETCH_EVERY", default_value = "60s", value_parser = parse_duration)]
    pub fetch_every: Duration,

    /// First pause after HTCondor refused a request. Each further pause is twice as long.
    #[arg(long, env = "HTC_PAUSE_FIRST", default_value = "5s", value_parser = parse_duration)]
    pub pause_first: Duration,

    /// Maximum pause.
    #[arg(long, env = "HTC_PAUSE_MAX", default_value = "600s", value_parser = parse_duration)]
    pub pause_max: Duration,

    /// Maximum number of HTCJobs in one run of a tool.
    #[arg(long, env = "HTC_BATCH_OBJECTS", default_value_t = 50)]
    pub batch_objects: usize,

    /// Maximum number of jobs in one submission.
    #[arg(long, env = "HTC_BATCH_JOBS", default_value_t = 500)]
    pub batch_jobs: usize,

    /// URL at which worker nodes reach this operator's receiver. Jobs report their start and end to it. Default: jobs do not
    /// report.
    #[arg(long, env = "HTC_CALLBACK_URL")]
    pub callback_url: Option<String>,

    /// Address and port of the receiver, `POST /cloudevents`. Default: no receiver.
    #[arg(long, env = "HTC_CALLBACK_LISTEN")]
    pub callback_listen: Option<SocketAddr>,

    /// CloudEvents attribute `source` of the jobs' reports.
    #[arg(long, env = "HTC_CALLBACK_SOURCE", default_value = "cern.ch")]
    pub callback_source: String,

    /// File with the keys of the jobs' tokens, one per line. The first signs, all are accepted. Default: the Secret
    /// `<operator name>-callback-keys`, which the operator creates.
    #[arg(long, env = "HTC_CALLBACK_KEY_FILE")]
    pub callback_key_file: Option<PathBuf>,

    /// The receiver's certificate chain, PEM. If set, the receiver speaks TLS only. It is read again when it changes.
    #[arg(long, env = "HTC_CALLBACK_TLS_CERT", requires = "callback_tls_key")]
    pub callback_tls_cert: Option<PathBuf>,

    /// The private key of the receiver's certificate, PEM.
    #[arg(long, env = "HTC_CALLBACK_TLS_KEY", requires = "callback_tls_cert")]
    pub callback_tls_key: Option<PathBuf>,

    /// Address and port of `/healthz`, `/readyz` and `/metrics`. Default: they are not served.
    #[arg(long, env = "HTC_HTTP_LISTEN")]
    pub http_listen: Option<SocketAddr>,

    /// Maximum number of HTCJobs that are reconciled at the same time.
    #[arg(long, env = "HTC_CONCURRENCY", default_value_t = 32)]
    pub concurrency: u16,
}

impl Config {
    /// Refuses settings that cannot work, in words that say what to write.
    pub fn validate(&self) -> Result<(), String> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+@".contains(c);
        let data = self.data_dir.to_str().unwrap_or_default();
        if !data.starts_with('/') || !data.chars().all(plain) {
            return Err(format!(
                "--data-dir {}: write an absolute path of letters, digits and /._-+@",
                self.data_dir.display()
            ));
        }
        if self.batch_objects == 0 || self.batch_jobs == 0 || self.concurrency == 0 {
            return Err("--batch-objects, --batch-jobs and --concurrency must be at least 1".to_owned());
        }
        if self.batch_objects > 300 || self.batch_jobs > 10_000 {
            return Err(
                "--batch-objects may be 300 at most and --batch-jobs 10000: HTCondor's expressions have limits"
                    .to_owned(),
            );
        }
        if self.dead_margin < self.late_margin {
            return Err("--dead-margin must not be shorter than --late-margin".to_owned());
        }
        if self.lease_renew_deadline >= self.lease_duration || self.lease_retry >= self.lease_renew_deadline {
            return Err(
                "--lease-retry must be shorter than --lease-renew-deadline, and that shorter than --lease-duration"
                    .to_owned(),
            );
        }
        if self.lease_duration.subsec_nanos() != 0 || self.lease_duration.is_zero() {
            return Err("--lease-duration must be whole seconds".to_owned());
        }
        if let Some(url) = &self.callback_url {
            let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://")).unwrap_or_default();
            let plain = |c: char| c.is_ascii_alphanumeric() || "-._~:/[]%".contains(c);
            if rest.is_empty() || rest.starts_with('/') || url.len() > 1024 || !rest.chars().all(plain) {
                return Err(format!("--callback-url {url}: write http:// or https://, a host and a path"));
            }
        }
        let in_uri = |c: char| c.is_ascii_alphanumeric() || "-._~:/".contains(c);
        if !(1..=256).contains(&self.callback_source.len()) || !self.callback_source.chars().all(in_uri) {
            return Err("--callback-source must be 1 to 256 letters, digits and -._~:/".to_owned());
        }
        if self.housekeeping.is_zero() || self.credentials_refresh.is_zero() {
            return Err("--housekeeping and --credentials-refresh must not be zero".to_owned());
        }
        if let Some(folder) = self.credentials.as_ref().filter(|folder| !folder.is_dir()) {
            return Err(format!("--credentials {}: there is no such folder", folder.display()));
        }
        let setup = self.credentials_setup();
        let run = setup.run_dir.to_str().unwrap_or_default();
        if !run.starts_with('/') || !run.chars().all(plain) {
            return Err(format!(
                "--run-dir {}: write an absolute path of letters, digits and /._-+@",
                setup.run_dir.display()
            ));
        }
        credentials::check_run_dir(&setup.run_dir)?;
        if self.submit_limit > self.submit_limit_max {
            return Err("--submit-limit must not be longer than --submit-limit-max".to_owned());
        }
        self.image_map().map(drop)
    }

    /// The ledger's file.
    #[must_use]
    pub fn ledger(&self) -> PathBuf {
        self.ledger.clone().unwrap_or_else(|| self.data_dir.join("sqlite/htcjobs.db"))
    }

    /// Where credentials come from, and go to.
    #[must_use]
    pub fn credentials_setup(&self) -> credentials::Setup {
        credentials::Setup {
            own: self.credentials.clone(),
            run_dir: self.run_dir.clone().unwrap_or_else(credentials::usual_run_dir),
            refresh: self.credentials_refresh,
        }
    }

    /// Most MiB of output of one job.
    #[must_use]
    pub fn output_limit(&self) -> Option<u64> {
        (self.output_limit > 0).then(|| self.output_limit.div_ceil(1 << 20))
    }

    /// How long what is left of HTCJobs that are gone is kept.
    #[must_use]
    pub const fn keep_times(&self) -> retention::Times {
        retention::Times { output: self.keep_output, rows: self.keep_rows, every: self.housekeeping }
    }

    /// The attributes that htcopts may set.
    #[must_use]
    pub fn attributes(&self) -> Attributes {
        Attributes::with(self.allow_attributes.iter().cloned())
    }

    /// What the site makes of image names.
    pub fn image_map(&self) -> Result<ImageMap, String> {
        ImageMap::with(self.images.iter().cloned(), self.image_prefixes.iter().cloned())
            .map_err(|error| format!("--image-prefix: {error}"))
    }

    /// Name of this process among those that want to lead.
    #[must_use]
    pub fn identity(&self) -> String {
        self.identity.clone().unwrap_or_else(|| {
            let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
            format!("{host}_{}_{}", std::process::id(), jiff::Timestamp::now().as_millisecond())
        })
    }

    /// client-go's times of leader election.
    #[must_use]
    pub const fn lease_times(&self) -> lease::Times {
        lease::Times {
            duration: self.lease_duration,
            renew_deadline: self.lease_renew_deadline,
            retry: self.lease_retry,
        }
    }

    /// What the state machine goes by.
    #[must_use]
    pub fn settings(&self) -> Settings {
        Settings {
            staging: self.staging_limit,
            dead_margin: self.dead_margin,
            late_margin: self.late_margin,
            output_wait: self.output_wait,
            birthdate_steady: self.birthdate_steady,
            submit_max: self.submit_limit_max,
            pause_first: self.pause_first,
            pause_max: self.pause_max,
            fetch_every: self.fetch_every,
            eager: Settings::default().eager,
            soon: self.soon,
            jobs_per_attempt: self.batch_jobs,
            refused_more: None,
        }
    }
}

fn parse_image(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').filter(|(name, path)| !name.is_empty() && path.starts_with('/'));
    let (name, path) = pair.ok_or_else(|| "write NAME=/absolute/path".to_owned())?;
    Image::resolve(path, &ImageMap::new()).map_err(|error| error.to_string())?;
    Ok((name.to_owned(), path.to_owned()))
}

fn parse_duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let milliseconds = match unit {
        "ms" => 1,
        "s" | "" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err("write a whole number with ms, s, m, h or d".to_owned()),
    };
    number
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(milliseconds))
        .map(Duration::from_millis)
        .ok_or_else(|| "write a whole number with ms, s, m, h or d".to_owned())
}

fn parse_keep(text: &str) -> Result<Duration, String> {
    if text == "forever" { Ok(Duration::MAX) } else { parse_duration(text) }
}

fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let bytes = match unit {
        "" => Some(1),
        "K" => Some(1 << 10),
        "M" => Some(1 << 20),
        "G" => Some(1 << 30),
        "T" => Some(1_u64 << 40),
        _ => None,
    };
    number
        .parse::<u64>()
        .ok()
        .zip(bytes)
        .and_then(|(number, bytes)| number.checked_mul(bytes))
        .ok_or_else(|| "write a whole number of bytes, or one with K, M, G or T".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse_duration("20s"), Ok(Duration::from_secs(20)));
        assert_eq!(parse_duration("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(parse_duration("30d"), Ok(Duration::from_secs(30 * 86_400)));
        assert_eq!(parse_keep("forever"), Ok(Duration::MAX));
        for bad in ["", "s", "1.5s", "-1s", "1w", "forever", "99999999999999999999s"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_have_units_of_1024() {
        assert_eq!(parse_size("0"), Ok(0));
        assert_eq!(parse_size("2K"), Ok(2048));
        assert_eq!(parse_size("1G"), Ok(1 << 30));
        for bad in ["", "G", "1.5G", "-1", "1g", "1 G", "1GB", "99999999T", "forever"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn images_are_pairs_of_name_and_path() {
        assert_eq!(parse_image("centos=/images/c"), Ok(("centos".to_owned(), "/images/c".to_owned())));
        for bad in ["centos", "=/x", "centos=relative", "centos=/my images"] {
            assert!(parse_image(bad).is_err(), "{bad}");
        }
    }
}
