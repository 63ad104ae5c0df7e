//! The validated spec of an HTCJob on HTCondor: what its jobs run.

use std::collections::BTreeMap;

use htc_api::{ConfigMapKeyRef, FrozenFile, HTCJobSpec, ItemsFrom, MAX_QUEUE, PullSecret, Quantity};
use htc_machine::Index;
use htc_machine::indices::Indices;

use super::items::{LONGEST, is_item};
use crate::files::Files;
use crate::files::url::UrlScheme;
use crate::htcopts::{HtcOpts, HtcOptsPolicy};
use crate::payload::{Image, ImageMap, MOST_OUTPUTS, OutputPattern, Program};
use crate::pod_metadata::{self, MetadataKey};
use crate::variables::{Variables, VariablesError};
use crate::volumes::{self, ClaimFolders, JobVolumes};

/// The site's rules for specs.
#[derive(Clone, Debug, Default)]
pub struct SpecRules {
    /// The site's names of images.
    pub images: ImageMap,
    /// Options that users may set.
    pub policy: HtcOptsPolicy,
    /// Keys of labels and annotations that users may set on workers.
    pub metadata: Vec<MetadataKey>,
    /// Schemes of the URLs that jobs may fetch files from.
    pub url_schemes: Vec<UrlScheme>,
    /// Whether jobs can fetch the content of Secrets from the operator.
    pub secrets: bool,
    /// Folders of the nodes for claims.
    pub claims: ClaimFolders,
}

/// Nodes that jobs run on.
#[derive(Clone, Copy, Debug)]
pub enum Nodes<'a> {
    /// Nodes of a site, for an HTCJob of this namespace.
    Site { namespace: &'a str },
    /// Workers of a managed pool. They are Pods.
    Managed,
}

/// What the jobs of one HTCJob run, parsed from its spec.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Number of jobs.
    pub jobs: usize,
    pub image: Image,
    /// The image as the user wrote it.
    pub named: String,
    /// Registry and repository of an image that is pulled with a login.
    pub private: Option<String>,
    /// Why the registry was not asked which digest the tag means, if it should have been.
    pub digest_problem: Option<String>,
    /// What runs in the container.
    pub program: Program,
    /// The user's submit commands, including those from other fields of the spec.
    pub options: HtcOpts,
    /// The user's environment variables.
    pub env: Variables,
    /// Files that each job brings.
    pub files: Files,
    /// Output files to bring back. Empty means all files.
    pub outputs: Vec<OutputPattern>,
    /// Whether the jobs run only on workers of this HTCJob's own.
    pub mini_cluster: bool,
    /// Volumes that each job sees.
    pub volumes: JobVolumes,
}

/// User's texts of jobs to submit. They may be large, so they are copied for a submission only.
#[derive(Clone, Debug, Default)]
pub struct Texts {
    /// The script; empty if the jobs run another program.
    pub source: String,
    /// Items of these jobs, if they have any.
    pub items: BTreeMap<Index, String>,
    /// Bytes of the files of `spec.files` that each job gets. The ledger has the files: requests that wait have no copy.
    pub input_bytes: usize,
}

impl Texts {
    /// Bytes of the files that each job gets.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.source.len() + self.input_bytes
    }
}

/// What the ledger has for the jobs of one HTCJob, as it was read.
#[derive(Clone, Debug, Default)]
pub struct KeptInputs {
    /// Files of `spec.files`.
    pub files: Vec<FrozenFile>,
    /// Variables of `spec.env`, names and values.
    pub variables: Vec<(String, String)>,
}

/// Reason why a spec cannot be run. The message says what to write instead.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    #[error("spec.queue is {0}: write a number from 1 to {MAX_QUEUE}")]
    Queue(i64),
    #[error("spec.indexes: {0}")]
    Indexes(String),
    #[error("spec.items: {0}")]
    Items(String),
    #[error("spec.itemsFrom: {0}")]
    ItemsFrom(String),
    /// A label or an annotation of the workers that belong to the HTCJob.
    #[error("spec.miniCluster.template.{field}: {problem}")]
    Worker {
        field: &'static str,
        /// What is wrong, and what to write instead.
        problem: String,
    },
    #[error("spec.{field}: {problem}")]
    Image {
        field: &'static str,
        /// What is wrong, and what to write instead.
        problem: crate::payload::ImageError,
    },
    #[error(transparent)]
    Program(#[from] crate::payload::ProgramError),
    #[error("spec.{0}")]
    Options(#[from] crate::htcopts::HtcOptsError),
    /// A field that is translated into a submit command.
    #[error("spec.{field}: {problem}")]
    Field {
        field: &'static str,
        /// What is wrong, and what to write instead.
        problem: crate::htcopts::HtcOptsProblem,
    },
    #[error("spec.resources.{field}: {problem}")]
    Resource {
        field: &'static str,
        /// What is wrong, and what to write instead.
        problem: htc_api::QuantityError,
    },
    #[error("spec.env: {0}")]
    Env(#[from] VariablesError),
    /// Secrets that the jobs have no way to.
    #[error(
        "spec.{0}: the content of a Secret reaches jobs over TLS only, and this operator has no --callback-url with https://: leave it out, or ask the operator's administrator"
    )]
    NoChannel(&'static str),
    #[error("spec.imagePullSecrets: {0:?} is not a valid name for a Secret: use lower-case letters, digits, - and .")]
    PullSecret(String),
    #[error(
        "spec.imagePullSecrets: the workers of a managed pool pull images with the pool's own Secrets: leave it out, and ask the pool's administrator to add the registry to spec.managed.imagePullSecrets"
    )]
    PoolPulls,
    #[error("spec.files: {0}")]
    Files(#[from] crate::files::FilesError),
    #[error("spec.volumes: {0}")]
    Volumes(#[from] volumes::VolumesError),
    #[error("spec.outputs: {0}")]
    Outputs(String),
    #[error(
        "spec.credentialsSecretName: {0:?} is not a valid name for a Secret: use lower-case letters, digits, - and ."
    )]
    Credentials(String),
}

const MIB: u64 = 1 << 20;
const KIB: u64 = 1 << 10;

impl Plan {
    /// Returns whether jobs of both plans can share one submit description: everything that is neither in a job's row
    /// nor in its sandbox is the same.
    #[must_use]
    pub fn same_description(&self, other: &Self) -> bool {
        // No `..` here: a new field must not compile until it is decided where it belongs.
        let Self {
            options,
            mini_cluster,
            files,
            volumes,
            jobs: _,
            image: _,
            named: _,
            private: _,
            digest_problem: _,
            program: _,
            env: _,
            outputs: _,
        } = self;
        *options == other.options
            && *mini_cluster == other.mini_cluster
            && volumes.of_worker() == other.volumes.of_worker()
            && files.kept.is_empty() == other.files.kept.is_empty()
    }
}

impl SpecRules {
    /// Parses a spec with this number of jobs.
    pub fn plan(&self, spec: &HTCJobSpec, jobs: usize, nodes: Nodes<'_>) -> Result<Plan, PlanError> {
        if let Some(name) = spec.credentials_secret_name.as_ref().filter(|name| !htc_api::is_name(name)) {
            return Err(PlanError::Credentials(name.clone()));
        }
        check_items(spec)?;
        let files = crate::files::parse(&spec.files, &self.url_schemes)?;
        files.check_items(!spec.items.is_empty() || spec.items_from.is_some())?;
        let env = Variables::parse(spec)?;
        let named = [("files", !files.secret.is_empty()), ("env", !env.secret.is_empty())];
        if let Some((field, _)) = named.into_iter().find(|(_, named)| *named && !self.secrets) {
            return Err(PlanError::NoChannel(field));
        }
        if let Some(template) = spec.mini_cluster.as_ref().and_then(|own| own.template.as_ref()) {
            pod_metadata::check(&template.pod_labels, &template.pod_annotations, &self.metadata)
                .map_err(|(field, problem)| PlanError::Worker { field, problem })?;
        }
        let image = Image::resolve(spec.named_image(), &self.images)
            .map_err(|problem| PlanError::Image { field: image_field(spec), problem })?;
        self.check_pull_secrets(spec, nodes)?;
        Ok(Plan {
            jobs,
            program: Program::parse(spec)?,
            named: spec.image().to_owned(),
            private: image.repository().filter(|_| !spec.image_pull_secrets.is_empty()),
            image,
            digest_problem: None,
            options: options(spec, &self.policy)?,
            env,
            files,
            outputs: outputs(spec)?,
            mini_cluster: spec.mini_cluster.is_some(),
            volumes: self.volumes(spec, nodes)?,
        })
    }

    fn check_pull_secrets(&self, spec: &HTCJobSpec, nodes: Nodes<'_>) -> Result<(), PlanError> {
        check_pull_secrets(&spec.image_pull_secrets)?;
        match nodes {
            _ if spec.image_pull_secrets.is_empty() => Ok(()),
            Nodes::Managed => Err(PlanError::PoolPulls),
            Nodes::Site { .. } if !self.secrets => Err(PlanError::NoChannel("imagePullSecrets")),
            Nodes::Site { .. } => Ok(()),
        }
    }

    fn volumes(&self, spec: &HTCJobSpec, nodes: Nodes<'_>) -> Result<JobVolumes, PlanError> {
        let volumes = volumes::parse(spec)?;
        Ok(match nodes {
            Nodes::Site { namespace } => {
                JobVolumes::Bound(self.claims.bind(namespace, volumes, self.images.bound_folders())?)
            }
            Nodes::Managed => JobVolumes::Mounted(volumes::key(volumes)),
        })
    }
}

/// Checks the names in `spec.imagePullSecrets`.
pub(crate) fn check_pull_secrets(secrets: &[PullSecret]) -> Result<(), PlanError> {
    match secrets.iter().find(|secret| !htc_api::is_name(&secret.name)) {
        Some(secret) => Err(PlanError::PullSecret(secret.name.clone())),
        None => Ok(()),
    }
}

/// Returns the field of the spec that has the image.
#[must_use]
pub const fn image_field(spec: &HTCJobSpec) -> &'static str {
    if spec.container.is_some() { "container.image" } else { "script.image" }
}

/// Returns the number of jobs that the spec requests. `read` is the number of items read from its ConfigMap.
pub fn queue(spec: &HTCJobSpec, read: Option<u32>) -> Result<u32, PlanError> {
    let asked = read.map(i64::from).or_else(|| spec.job_count());
    let asked = asked.ok_or_else(|| PlanError::ItemsFrom("the items have not been read".to_owned()))?;
    u32::try_from(asked).ok().filter(|_| (1..=MAX_QUEUE).contains(&asked)).ok_or(PlanError::Queue(asked))
}

/// Returns the indexes of the jobs to run, if the spec lists them. They may be in any order and may overlap.
pub fn indexes(spec: &HTCJobSpec, queue: u32) -> Result<Option<Indices>, PlanError> {
    let Some(text) = &spec.indexes else { return Ok(None) };
    let wrong = |piece: &str| {
        PlanError::Indexes(format!(
            "{piece:?} is neither an index from 0 to {} nor a range of them such as 3-7",
            queue - 1
        ))
    };
    let ranges = text.split(',').map(|piece| {
        let range: Indices = piece.parse().map_err(|_| wrong(piece))?;
        let last = range.last().ok_or_else(|| wrong(piece))?;
        if last.0 < queue { Ok(range) } else { Err(wrong(piece)) }
    });
    Ok(Some(Indices::union(&ranges.collect::<Result<Vec<_>, _>>()?)))
}

/// Returns the user's submit commands, including those from other fields. A setting that is given twice is an error, as
/// in htcopts.
fn options(spec: &HTCJobSpec, policy: &HtcOptsPolicy) -> Result<HtcOpts, PlanError> {
    let mut options = HtcOpts::parse(spec.htcopts.as_deref().unwrap_or_default(), policy)?;
    let mut add = |field, command, value: &str| {
        options.add(command, value).map_err(|problem| PlanError::Field { field, problem })
    };
    if let Some(resources) = &spec.resources {
        let quantity = |field, quantity: &Option<Quantity>, unit: u64| match quantity {
            Some(quantity) => {
                quantity.in_units_of(unit).map(Some).map_err(|problem| PlanError::Resource { field, problem })
            }
            None => Ok(None),
        };
        if let Some(cpus) = quantity("cpus", &resources.cpus, 1)? {
            add("resources.cpus", "request_cpus", &cpus.to_string())?;
        }
        if let Some(memory) = quantity("memory", &resources.memory, MIB)? {
            add("resources.memory", "request_memory", &memory.to_string())?;
        }
        if let Some(disk) = quantity("disk", &resources.disk, KIB)? {
            add("resources.disk", "request_disk", &disk.to_string())?;
        }
        if let Some(gpus) = resources.gpus {
            add("resources.gpus", "request_gpus", &gpus.to_string())?;
        }
    }
    if let Some(requirements) = &spec.requirements {
        add("requirements", "requirements", requirements)?;
    }
    if let Some(retries) = spec.max_retries {
        add("maxRetries", "max_retries", &retries.to_string())?;
    }
    Ok(options)
}

/// Checks `spec.items` and `spec.itemsFrom`.
pub fn check_items(spec: &HTCJobSpec) -> Result<(), PlanError> {
    if let Some(ItemsFrom { config_map_key_ref: ConfigMapKeyRef { name, key } }) = &spec.items_from {
        if !spec.items.is_empty() {
            return Err(PlanError::ItemsFrom("spec.items is there as well: write one of them".to_owned()));
        }
        let is_key = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        if !htc_api::is_name(name) || key.is_empty() || !key.chars().all(is_key) {
            return Err(PlanError::ItemsFrom(format!(
                "{name:?} is not a valid ConfigMap name, or {key:?} not a valid key"
            )));
        }
    }
    let items = &spec.items;
    if items.is_empty() {
        return Ok(());
    }
    let jobs = spec.job_count().unwrap_or_default();
    if i64::try_from(items.len()) != Ok(jobs) {
        return Err(PlanError::Items(format!("there are {} for {jobs} jobs: leave spec.queue out", items.len())));
    }
    match items.iter().position(|item| !is_item(item)) {
        Some(index) => Err(PlanError::Items(format!(
            "the item of job {index} is longer than {LONGEST} characters or has a line feed or another control character"
        ))),
        None => Ok(()),
    }
}

fn outputs(spec: &HTCJobSpec) -> Result<Vec<OutputPattern>, PlanError> {
    if spec.outputs.len() > MOST_OUTPUTS {
        return Err(PlanError::Outputs(format!("write at most {MOST_OUTPUTS}: one pattern can match many files")));
    }
    let parse = |text: &String| OutputPattern::parse(text).map_err(|error| PlanError::Outputs(error.to_string()));
    spec.outputs.iter().map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn htcjobs_with_dedicated_workers_or_mounted_volumes_have_their_own_description() {
        let with = |mini_cluster, volumes| Plan {
            jobs: 1,
            image: Image::Registry("i".to_owned()),
            named: "i".to_owned(),
            private: None,
            digest_problem: None,
            program: Program::script("sh").unwrap(),
            options: HtcOpts::default(),
            env: Variables::default(),
            files: Files::default(),
            outputs: Vec::new(),
            mini_cluster,
            volumes,
        };
        let mounted = |key: &str| with(false, JobVolumes::Mounted(key.to_owned()));
        assert!(mounted("a:/a").same_description(&mounted("a:/a")));
        assert!(!mounted("a:/a").same_description(&mounted("a:/b")) && !mounted("a:/a").same_description(&mounted("")));
        let plan = |mini_cluster| with(mini_cluster, JobVolumes::Bound(Vec::new()));
        assert!(mounted("").same_description(&plan(false)));
        assert!(plan(true).same_description(&plan(true)) && !plan(true).same_description(&plan(false)));
    }

    #[test]
    fn indexes_are_within_the_queue() {
        let indexes = |text: &str| {
            let spec = HTCJobSpec { indexes: Some(text.to_owned()), ..HTCJobSpec::default() };
            super::indexes(&spec, 10).map(|set| set.map(|set| set.to_string())).map_err(|error| error.to_string())
        };
        assert_eq!(super::indexes(&HTCJobSpec::default(), 10).unwrap(), None);
        assert_eq!(indexes("7,2-4,3-5,0"), Ok(Some("0,2-5,7".to_owned())));
        assert_eq!(indexes("9"), Ok(Some("9".to_owned())));
        for (wrong, piece) in [("3,10", "10"), ("8-10", "8-10"), ("4-3", "4-3"), ("1,,2", ""), ("x", "x"), ("", "")] {
            let said =
                format!("spec.indexes: {piece:?} is neither an index from 0 to 9 nor a range of them such as 3-7");
            assert_eq!(indexes(wrong), Err(said), "{wrong}");
        }
    }
}
