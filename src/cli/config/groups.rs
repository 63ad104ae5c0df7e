//! The settings, in the groups that `--help` shows.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use htc_confine::Confinement;
use htc_machine::amounts::Resource;
use htc_submit::files::url::UrlScheme;
use htc_submit::htcopts::{AttributeName, GroupPattern, PriorityRange};
use htc_submit::payload::{ImagePrefix, ImageScheme};
use htc_submit::pod_metadata::{DEFAULT_ALLOWED, MetadataKey};
use htc_submit::pod_spec::{CpuLimits, PodSecurity, PodSettings};
use htc_submit::volumes::ClaimFolder;
use htc_support::image_registry::RegistryAddress;
use strum::VariantNames as _;

use super::values::{parse_duration, parse_image, parse_keep, parse_metadata_key, parse_realm, parse_size};
use crate::htcqueue::Queueing;

/// Which HTCJobs this operator works on, and who it is among others.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Kubernetes")]
pub struct KubernetesArgs {
    /// Namespace that the operator runs in. It is part of the operator's identity in HTCondor: do not change it.
    #[arg(long, env = "HTC_OPERATOR_NAMESPACE", default_value = "htc-operator")]
    pub operator_namespace: String,

    /// Name of this operator. It is part of the operator's identity in HTCondor: do not change it.
    #[arg(long, env = "HTC_OPERATOR_NAME", default_value = "htc-operator")]
    pub operator_name: String,

    /// Watch this namespace only.
    #[arg(long, env = "HTC_WATCH_NAMESPACE")]
    pub watch_namespace: Option<String>,

    /// Maximum number of HTCJobs that are reconciled at the same time.
    #[arg(long, env = "HTC_MAX_CONCURRENT_RECONCILES", default_value_t = 32)]
    pub max_concurrent_reconciles: u16,
}

/// Jobs as Pods on the cluster's own nodes.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Kubernetes backend")]
pub struct PodsArgs {
    /// Run HTCJobs with `spec.backend: Kubernetes` as Pods. It needs the rights of deploy/components/kubernetes-backend.
    #[arg(long, env = "HTC_KUBERNETES_BACKEND")]
    pub kubernetes_backend: bool,

    /// Name of the resource that `spec.resources.gpus` asks for.
    #[arg(long, env = "HTC_KUBERNETES_GPU_RESOURCE", default_value = "nvidia.com/gpu")]
    pub kubernetes_gpu_resource: String,

    /// User id that the Pods run as. Default: that of the image, which must be a number and not 0.
    #[arg(long, env = "HTC_KUBERNETES_RUN_AS_USER", value_parser = clap::value_parser!(i64).range(1..))]
    pub kubernetes_run_as_user: Option<i64>,

    /// Pod Security Standard of the Pods. With `baseline` they run as the user of their image, also if it is root or a name, except in
    /// namespaces with the label `pod-security.kubernetes.io/enforce: restricted`.
    #[arg(
        long,
        env = "HTC_KUBERNETES_POD_SECURITY",
        default_value = "restricted",
        value_parser = PossibleValuesParser::new(PodSecurity::VARIANTS).try_map(|name| name.parse::<PodSecurity>())
    )]
    pub kubernetes_pod_security: PodSecurity,

    /// Group id that owns the files of volumes of the Pods and that the Pods have besides their own, so that they may write there.
    /// Default: none.
    #[arg(long, env = "HTC_KUBERNETES_FS_GROUP", value_parser = clap::value_parser!(i64).range(1..))]
    pub kubernetes_fs_group: Option<i64>,

    /// A ServiceAccount that HTCJobs may name: their Pods get its token. Default: none. Can be repeated; in the environment
    /// variable, separate names with commas.
    #[arg(
        long = "kubernetes-service-account",
        env = "HTC_KUBERNETES_SERVICE_ACCOUNTS",
        value_name = "NAME",
        value_delimiter = ','
    )]
    pub kubernetes_service_accounts: Vec<String>,

    /// A key of labels and annotations that users may set on their Pods and on workers of managed pools, or with `/*` at its end all keys
    /// of a domain. Can be repeated; in the environment variable, separate keys with commas. An empty value allows none.
    #[arg(
        long = "allow-pod-metadata",
        env = "HTC_ALLOW_POD_METADATA",
        value_name = "KEY",
        value_parser = parse_metadata_key,
        value_delimiter = ',',
        default_value = DEFAULT_ALLOWED
    )]
    pub allow_pod_metadata: Vec<Option<MetadataKey>>,

    /// CPU limits of Pods and of workers of managed pools: `none`, or `requests`, which is what the container requests. Default: none
    /// for Pods, and the request for workers.
    #[arg(
        long,
        env = "HTC_KUBERNETES_CPU_LIMITS",
        value_parser = PossibleValuesParser::new(CpuLimits::VARIANTS).try_map(|name| name.parse::<CpuLimits>())
    )]
    pub kubernetes_cpu_limits: Option<CpuLimits>,
}

impl PodsArgs {
    /// What the site says about Pods.
    #[must_use]
    pub fn site(&self) -> PodSettings {
        PodSettings {
            enabled: self.kubernetes_backend,
            gpu_resource: self.kubernetes_gpu_resource.clone(),
            run_as_user: self.kubernetes_run_as_user,
            security: self.kubernetes_pod_security,
            fs_group: self.kubernetes_fs_group,
            service_accounts: self.kubernetes_service_accounts.clone(),
            metadata: self.allow_pod_metadata.iter().flatten().cloned().collect(),
            cpu_limits: self.kubernetes_cpu_limits,
        }
    }
}

/// Which of several processes acts.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Leader election")]
pub struct ElectionArgs {
    /// Name of this process in the leader election. A process that restarts under the same name leads at once, so use the
    /// name of something that runs only once at a time, such as a pod. Default: a new name at each start.
    #[arg(long, env = "HTC_IDENTITY")]
    pub identity: Option<String>,

    /// How long others wait before they take over a Lease that is not renewed. Whole seconds.
    #[arg(long, env = "HTC_LEADER_ELECT_LEASE_DURATION", default_value = "15s", value_parser = parse_duration)]
    pub leader_elect_lease_duration: Duration,

    /// How long a leader acts after its last renewal of the Lease.
    #[arg(long, env = "HTC_LEADER_ELECT_RENEW_DEADLINE", default_value = "10s", value_parser = parse_duration)]
    pub leader_elect_renew_deadline: Duration,

    /// Pause between two attempts to take or renew the Lease.
    #[arg(long, env = "HTC_LEADER_ELECT_RETRY_PERIOD", default_value = "2s", value_parser = parse_duration)]
    pub leader_elect_retry_period: Duration,
}

/// How many jobs may be in HTCondor at a time, and whose.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Queues")]
pub struct QueueingArgs {
    /// Who decides when jobs may be submitted. `embedded`: this operator, by HTCQueues. `kueue`: Kueue, by a Workload for each
    /// HTCJob. `none`: there are no queues, and an HTCJob with the label kueue.x-k8s.io/queue-name waits.
    #[arg(long, env = "HTC_QUEUEING", value_enum, default_value = "none")]
    pub queueing: Queueing,

    /// What is requested of Kueue for each job in HTCondor, under names such as htc.cern.ch/jobs. The ClusterQueues must cover all
    /// of it. May be repeated, or be separated by commas.
    #[arg(
        long = "kueue-resource",
        env = "HTC_KUEUE_RESOURCES",
        value_name = "RESOURCE",
        value_parser = PossibleValuesParser::new(Resource::VARIANTS).try_map(|name| name.parse::<Resource>()),
        value_delimiter = ',',
        default_value = "jobs,cpus,gpus"
    )]
    pub kueue_resources: Vec<Resource>,
}

/// The schedd, its tools, and what one call of them may hold.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "HTCondor")]
pub struct CondorArgs {
    /// Name of the schedd that jobs are submitted to, as `condor_status -schedd` shows it. Without it only HTCJobs run that name an
    /// HTCPool, or run as Pods.
    #[arg(long, env = "HTC_SCHEDD", default_value = "", hide_default_value = true)]
    pub schedd: String,

    /// Folder of HTCondor's tools. Default: PATH. The tools read `CONDOR_CONFIG`.
    #[arg(long, env = "HTC_CONDOR_BIN")]
    pub condor_bin: Option<PathBuf>,

    /// Whether HTCondor's tools are confined by the kernel's Landlock to the files that each call needs. `auto`: if the kernel has
    /// it.
    #[arg(long, env = "HTC_CONFINEMENT", value_enum, default_value = "auto")]
    pub confinement: Confinement,

    /// A file or folder that confined tools read when they act in the operator's own name, such as more configuration of HTCondor's.
    /// May be repeated; in the variable, separated by commas.
    #[arg(long = "confinement-read", env = "HTC_CONFINEMENT_READS", value_name = "PATH", value_delimiter = ',')]
    pub confinement_reads: Vec<PathBuf>,

    /// Submit commands for every job, one `key = value` per line. An HTCJob's htcopts override them.
    #[arg(long, env = "HTC_SITE_DEFAULTS", default_value = "")]
    pub site_defaults: String,

    /// How often HTCondor runs a job again after runs that ended by faults of their nodes: no container runtime, an image that cannot be
    /// had, damaged files. These runs are no failures of the job. 0: such a job fails at once.
    #[arg(long, env = "HTC_NODE_FAULT_RETRIES", default_value_t = 5, value_parser = clap::value_parser!(u32).range(..=20))]
    pub node_fault_retries: u32,

    /// Pause before a job runs again after the first fault of a node; n² times as long after the n-th. The job avoids the
    /// machine for 60 pauses. If a registry refuses more requests, the pause is ten times as long.
    #[arg(long, env = "HTC_NODE_FAULT_PAUSE", default_value = "30s", value_parser = parse_duration)]
    pub node_fault_pause: Duration,

    /// Maximum size of `spec.files` of all jobs of one HTCJob together, in bytes or with K, M, G or T (powers of 1024). The schedd keeps
    /// a copy for each job in its spool. 0: no limit.
    #[arg(long, env = "HTC_INPUTS_LIMIT", default_value = "1G", value_parser = parse_size)]
    pub inputs_limit: u64,

    /// A scheme of the URLs in `spec.files`, which jobs fetch on their nodes: `https` and `http` by curl, `root` by xrdcp, `osdf` and
    /// `pelican` by pelican. Can be repeated, or be separated by commas.
    #[arg(
        long = "url-schemes",
        env = "HTC_URL_SCHEMES",
        value_name = "SCHEME",
        value_parser = PossibleValuesParser::new(UrlScheme::VARIANTS).try_map(|name| name.parse::<UrlScheme>()),
        value_delimiter = ',',
        default_value = "https"
    )]
    pub url_schemes: Vec<UrlScheme>,

    /// An attribute that `+NAME = …` in htcopts may set, beside those that docs/htcopts.md lists. Names that HTCondor uses itself
    /// are refused. May be repeated; in the variable, separated by commas.
    #[arg(long = "allow-attribute", env = "HTC_ALLOW_ATTRIBUTES", value_name = "NAME", value_delimiter = ',')]
    pub allow_attributes: Vec<AttributeName>,

    /// An accounting group that htcopts may name, as `accounting_group` (with `.user` if there is an `accounting_group_user`) or
    /// `+AccountingGroup`; with `.*` at its end also all below it. Default: none. May be repeated; in the variable, separated by
    /// commas.
    #[arg(
        long = "allow-accounting-group",
        env = "HTC_ALLOW_ACCOUNTING_GROUPS",
        value_name = "PATTERN",
        value_delimiter = ','
    )]
    pub allow_accounting_groups: Vec<GroupPattern>,

    /// The values of `priority` that htcopts may set. HTCondor orders the jobs of one submitter by it, and without Secrets all
    /// namespaces are one submitter.
    #[arg(
        long,
        env = "HTC_PRIORITY_RANGE",
        value_name = "MIN..MAX",
        default_value_t = PriorityRange::default(),
        allow_hyphen_values = true
    )]
    pub priority_range: PriorityRange,

    /// Maximum number of jobs of one namespace that are in HTCondor and have not ended. Further jobs are submitted when others end.
    /// 0: no limit.
    #[arg(long, env = "HTC_NAMESPACE_ACTIVE_JOBS", default_value_t = 0)]
    pub namespace_active_jobs: usize,

    /// Maximum number of HTCJobs in one run of a tool.
    #[arg(long, env = "HTC_BATCH_OBJECTS", default_value_t = 50)]
    pub batch_objects: usize,

    /// Maximum number of jobs in one submission.
    #[arg(long, env = "HTC_BATCH_JOBS", default_value_t = 500)]
    pub batch_jobs: usize,
}

/// In whose name HTCondor is asked.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Credentials")]
pub struct CredentialsArgs {
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

    /// Maximum number of Secrets of one namespace whose credentials are in use at once. HTCJobs with more Secrets wait.
    #[arg(long, env = "HTC_NAMESPACE_IDENTITIES", default_value_t = 20)]
    pub namespace_identities: usize,

    /// A Kerberos realm that the users in HTCJobs' Secrets may be in. Default: the `default_realm` in `krb5.conf`; if there is none,
    /// users without a realm in their names only. Can be repeated; in the environment variable, separate realms with commas.
    #[arg(
        long = "allow-realm",
        env = "HTC_ALLOW_REALMS",
        value_name = "REALM",
        value_delimiter = ',',
        value_parser = parse_realm
    )]
    pub allowed_realms: Vec<String>,
}

/// What the containers of the jobs are made of.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Containers")]
pub struct ContainerArgs {
    /// `NAME=PATH`: an image name that stands for an unpacked folder or a `.sif` file on the nodes. Can be repeated; in the
    /// environment variable, separate entries with commas.
    #[arg(long = "image", env = "HTC_IMAGES", value_delimiter = ',', value_parser = parse_image)]
    pub images: Vec<(String, String)>,

    /// `PREFIX=TARGET`: in image names that start with PREFIX, replaces PREFIX by TARGET, a folder of unpacked images on the
    /// nodes or another registry. Can be repeated; in the environment variable, separate entries with commas.
    #[arg(long = "image-prefix", env = "HTC_IMAGE_PREFIXES", value_delimiter = ',')]
    pub image_prefixes: Vec<ImagePrefix>,

    /// A scheme that image names may have, beside `docker`: `oras`, or `https` for `.sif` files on web servers. The nodes download them. Can
    /// be repeated; in the environment variable, separate schemes with commas. Default: none.
    #[arg(
        long = "image-scheme",
        env = "HTC_IMAGE_SCHEMES",
        value_name = "SCHEME",
        value_parser = PossibleValuesParser::new(ImageScheme::VARIANTS).try_map(|name| name.parse::<ImageScheme>()),
        value_delimiter = ','
    )]
    pub image_schemes: Vec<ImageScheme>,

    /// Folders to bind into the payload's container, on nodes that have them. Users may name images by path in these only.
    #[arg(long = "bind", env = "HTC_BINDS", value_delimiter = ',', default_values_t = ["/cvmfs", "/afs", "/eos"].map(str::to_owned))]
    pub binds: Vec<String>,

    /// `NAMESPACE/CLAIM=/FOLDER[:ro]`: the folder of the nodes that HTCJobs of NAMESPACE see for the volume CLAIM (`spec.volumes`), with `:ro`
    /// only to read. Can be repeated; in the environment variable, separate entries with commas.
    #[arg(long = "claim", env = "HTC_CLAIMS", value_delimiter = ',')]
    pub claims: Vec<ClaimFolder>,
    /// A registry, such as `docker.io` or `registry.example.org`, that is asked for the digest of an image's tag before an HTCJob is first
    /// submitted, so that all its jobs run the same image. `http://` before it: it has no TLS. Can be repeated; in the environment
    /// variable, separate registries with commas. Default: none, and each job pulls what the tag means then.
    #[arg(long = "resolve-digests", env = "HTC_RESOLVE_DIGESTS", value_name = "REGISTRY", value_delimiter = ',')]
    pub resolve_digests: Vec<RegistryAddress>,

    /// Folder on the nodes in which jobs keep images of registries, each user in a folder of their own, so that a node pulls an image once.
    /// An administrator creates it on each node, on a local disk, with mode 1777. Default: each job pulls for itself.
    #[arg(long, env = "HTC_IMAGE_CACHE", value_name = "FOLDER")]
    pub image_cache: Option<String>,
}

/// Where things are kept, and for how long.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Ledger and data")]
pub struct DataArgs {
    /// Folder for the ledger (`sqlite/htcjobs.db`), the jobs' files (`sandbox`), and their output (`htc_out`) unless `--output-dir`
    /// names another.
    #[arg(long, env = "HTC_DATA_DIR", default_value = "/data")]
    pub data_dir: PathBuf,

    /// Folder for the jobs' output (`htc_out`), if it is not the data folder. On a volume of its own, output fills neither the
    /// ledger nor the jobs' files. Jobs in HTCondor know this path: do not change it while there are any.
    #[arg(long, env = "HTC_OUTPUT_DIR")]
    pub output_dir: Option<PathBuf>,

    /// The ledger's file, if it is not in the data folder. On a volume of its own, output cannot fill it.
    #[arg(long, env = "HTC_LEDGER")]
    pub ledger: Option<PathBuf>,

    /// Free space to keep on the volume of the output, in bytes or with Ki, Mi, Gi or Ti. A transfer begins only if the largest output of one job fits
    /// beside it, and is stopped when less than half of it is free. 0: no limit.
    #[arg(long, env = "HTC_MIN_FREE_SPACE", default_value = "1Gi", value_parser = parse_size)]
    pub min_free_space: u64,

    /// How long the output of a deleted HTCJob is kept. `forever`: no limit.
    #[arg(long, env = "HTC_OUTPUT_RETENTION", default_value = "30d", value_parser = parse_keep)]
    pub output_retention: Duration,

    /// How long the ledger's rows of a deleted HTCJob are kept, at least as long as its output. `forever`: no limit.
    #[arg(long, env = "HTC_HISTORY_RETENTION", default_value = "30d", value_parser = parse_keep)]
    pub history_retention: Duration,

    /// How often expired output and rows are removed, and the keys of the jobs' tokens are read again.
    #[arg(long, env = "HTC_CLEANUP_INTERVAL", default_value = "60s", value_parser = parse_duration)]
    pub cleanup_interval: Duration,
}

/// How output comes back.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Output")]
pub struct OutputArgs {
    /// Maximum output of one job, in bytes or with Ki, Mi, Gi or Ti, rounded up to MiB. HTCondor holds a job that
    /// exceeds it. 0: the pool's own limit.
    #[arg(long, env = "HTC_OUTPUT_LIMIT", default_value = "1Gi", value_parser = parse_size)]
    pub output_limit: u64,

    /// Maximum output that is kept for the HTCJobs of one namespace, in bytes or with Ki, Mi, Gi or Ti. Above it nothing
    /// more is fetched for that namespace. Transfers under way may exceed it. 0: no limit.
    #[arg(long, env = "HTC_NAMESPACE_OUTPUT_LIMIT", default_value = "0", value_parser = parse_size)]
    pub namespace_output_limit: u64,

    /// How long `Complete` and `Failed` wait for the output.
    #[arg(long, env = "HTC_OUTPUT_WAIT", default_value = "600s", value_parser = parse_duration)]
    pub output_wait: Duration,

    /// Minimum time between two fetches of output while other jobs of the HTCJob still run.
    #[arg(long, env = "HTC_FETCH_EVERY", default_value = "60s", value_parser = parse_duration)]
    pub fetch_every: Duration,

    /// Time limit of one transfer of output.
    #[arg(long, env = "HTC_TRANSFER_TIMEOUT", default_value = "1h", value_parser = parse_duration)]
    pub transfer_timeout: Duration,

    /// Time limit of a transfer for several HTCJobs together. If it takes longer, it is retried for each HTCJob alone.
    #[arg(long, env = "HTC_TRANSFER_TIMEOUT_TOGETHER", default_value = "10m", value_parser = parse_duration)]
    pub transfer_timeout_together: Duration,
}

/// How often HTCondor is asked, and how long answers may take.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Timing")]
pub struct TimingArgs {
    /// Time between two looks at all jobs while something is active. Which jobs have changed is asked more often: every second
    /// while that is cheap.
    #[arg(long, env = "HTC_POLL_INTERVAL", default_value = "20s", value_parser = parse_duration)]
    pub poll_interval: Duration,

    /// Pause between two queries while a change is expected.
    #[arg(long, env = "HTC_POLL_MIN_INTERVAL", default_value = "1s", value_parser = parse_duration)]
    pub poll_min_interval: Duration,

    /// First pause after HTCondor refused a request. Each further pause is twice as long.
    #[arg(long, env = "HTC_RETRY_BACKOFF", default_value = "5s", value_parser = parse_duration)]
    pub retry_backoff: Duration,

    /// Maximum pause.
    #[arg(long, env = "HTC_RETRY_BACKOFF_MAX", default_value = "600s", value_parser = parse_duration)]
    pub retry_backoff_max: Duration,

    /// Time limit of one run of an HTCondor tool, except submissions.
    #[arg(long, env = "HTC_TOOL_TIMEOUT", default_value = "60s", value_parser = parse_duration)]
    pub tool_timeout: Duration,

    /// Time limit of one query of HTCondor's history, which reads all of it.
    #[arg(long, env = "HTC_HISTORY_TIMEOUT", default_value = "5m", value_parser = parse_duration)]
    pub history_timeout: Duration,

    /// Time limit of a submission without files. Each megabyte, and each 50 jobs, add a second.
    #[arg(long, env = "HTC_SUBMIT_TIMEOUT", default_value = "60s", value_parser = parse_duration)]
    pub submit_timeout: Duration,

    /// Maximum time limit of a submission.
    #[arg(long, env = "HTC_SUBMIT_TIMEOUT_MAX", default_value = "600s", value_parser = parse_duration)]
    pub submit_timeout_max: Duration,

    /// A job does not count if its files reach HTCondor later than this after the submission's time limit.
    #[arg(long, hide_short_help = true, env = "HTC_LATE_MARGIN", default_value = "30s", value_parser = parse_duration)]
    pub late_margin: Duration,

    /// A submission whose end was not seen counts as dead this long after its time limit.
    #[arg(long, hide_short_help = true, env = "HTC_DEAD_MARGIN", default_value = "60s", value_parser = parse_duration)]
    pub dead_margin: Duration,

    /// How long a job may stay in staging after its submission has ended.
    #[arg(long, hide_short_help = true, env = "HTC_STAGING_TIMEOUT", default_value = "120s", value_parser = parse_duration)]
    pub staging_timeout: Duration,

    /// How long a new JobQueueBirthdate must be seen before the schedd's queue counts as lost.
    #[arg(long, hide_short_help = true, env = "HTC_BIRTHDATE_STEADY", default_value = "300s", value_parser = parse_duration)]
    pub birthdate_steady: Duration,
}

/// What jobs report of themselves.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Callbacks")]
pub struct CallbackArgs {
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
}

/// Each job as an object of the API.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Jobs API")]
pub struct JobsApiArgs {
    /// Address and port at which the fronts of the jobs API (`htc-operator jobs-api`) reach this operator. Default: there is no jobs
    /// API.
    #[arg(long, env = "HTC_JOBS_API_LISTEN")]
    pub jobs_api_listen: Option<SocketAddr>,

    /// How long certificates of the jobs API are valid. They are renewed after half of that. Their authority is valid 12 times as
    /// long.
    #[arg(long, env = "HTC_JOBS_API_CERTIFICATE_LIFE", default_value = "30d", value_parser = parse_duration)]
    pub jobs_api_certificate_life: Duration,
}

/// Health and metrics.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Monitoring")]
pub struct MonitoringArgs {
    /// Address and port of `/healthz`, `/readyz` and `/metrics`. Default: they are not served.
    #[arg(long, visible_alias = "health-probe-bind-address", env = "HTC_METRICS_BIND_ADDRESS")]
    pub metrics_bind_address: Option<SocketAddr>,
}
