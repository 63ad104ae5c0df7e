//! The validated spec of an `HTCJob` on Kubernetes: what its Pods run. Every field has a meaning here or is refused.

use std::collections::BTreeSet;
use std::path::Path;

use htc_api::{
    Backend, ClaimVolume, HTCJobSpec, KubernetesSpec, PullSecret, Quantity, Resources, Toleration, Volume, is_name,
};

use strum::{EnumString, VariantNames};

use crate::files::Files;
use crate::payload::{Image, ImageMap, Program};
use crate::pod_metadata::{self, MetadataKey};
use crate::spec::PlanError;
use crate::spec::{check_items, check_pull_secrets, image_field};
use crate::variables::Variables;
use crate::volumes::{VolumesError, is_of_pool};

/// Folder in the container where the script is mounted.
pub const MOUNTED: &str = "/etc/htcjob";
/// Working directory of Pods that have files, as on HTCondor's nodes.
pub const WORKING_DIRECTORY: &str = "/htc_run";
/// Folder in the container for shared memory.
pub const SHARED_MEMORY: &str = "/dev/shm";
/// Folders that no volume of a user's may hide, and what is there.
const TAKEN: [(&str, &str); 3] = [
    (MOUNTED, "where the script is"),
    (WORKING_DIRECTORY, "where the files of the job are"),
    (SHARED_MEMORY, "where shared memory is"),
];

/// The site's settings for Pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodSettings {
    /// Whether this operator runs jobs as Pods.
    pub enabled: bool,
    /// Name of the resource for GPUs, such as `nvidia.com/gpu`.
    pub gpu_resource: String,
    /// User id of all Pods. None means that of the image.
    pub run_as_user: Option<i64>,
    /// Pod Security Standard of all Pods, except in namespaces that admit only stricter ones.
    pub security: PodSecurity,
    /// Group id of all Pods' volumes. None leaves them unchanged.
    pub fs_group: Option<i64>,
    /// ServiceAccounts that an `HTCJob` may use.
    pub service_accounts: Vec<String>,
    /// Keys of labels and annotations that users may set.
    pub metadata: Vec<MetadataKey>,
    /// CPU limits of containers. None means none for payload Pods, and the request for workers of pools.
    pub cpu_limits: Option<CpuLimits>,
}

/// Pod Security Standard that Pods satisfy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, EnumString, VariantNames)]
#[strum(serialize_all = "lowercase")]
pub enum PodSecurity {
    /// Pods do not run as root. Kubelet starts no image whose user is root or a name, which may be root's.
    #[default]
    Restricted,
    /// Pods run as the user of their image. In all else they satisfy `restricted`.
    Baseline,
}

/// Limit of the CPU time of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumString, VariantNames)]
#[strum(serialize_all = "lowercase")]
pub enum CpuLimits {
    /// No limit: a container may use idle cores of its node.
    None,
    /// The container's CPU request.
    Requests,
}

/// What the Pods of one `HTCJob` run, parsed from its spec.
#[derive(Clone, Debug, PartialEq)]
pub struct PodPlan {
    /// Name of the image, as docker writes it.
    pub image: String,
    /// What runs in the container.
    pub program: Program,
    /// The user's environment variables.
    pub env: Variables,
    /// Files that each Pod has in its working directory.
    pub files: Files,
    /// Resources of each Pod.
    pub resources: Resources,
    /// Maximum retries of each index.
    pub retries: i32,
    /// Number of failed indexes above which the others are not run.
    pub max_failed: Option<i32>,
    /// Whether each job has an item.
    pub(super) has_items: bool,
    /// Fields that only Pods have.
    pub pods: KubernetesSpec,
}

/// Reason why a spec cannot be run as Pods. The message says what to write instead.
#[derive(Debug, thiserror::Error)]
pub enum PodPlanError {
    /// A field that has no meaning for Pods.
    #[error("spec.{field} has no meaning with backend Kubernetes: {instead}")]
    Meaningless {
        field: &'static str,
        /// What to do instead.
        instead: &'static str,
    },
    /// An error that the spec would also have on HTCondor.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// An image that only Apptainer runs.
    #[error(
        "spec.{0}: {1:?} is not a name in a registry: write one as docker does, such as `python:3.12`. Backend HTCondor runs image folders and .sif files"
    )]
    ImageFile(&'static str, String),
    /// An image with a scheme.
    #[error(
        "spec.{0}: {1:?} has a scheme: write the name as docker does, such as `registry.example.org/team/image:tag`"
    )]
    ImageScheme(&'static str, String),
    /// Only a shell in the Pod finds the job's index or item, and a Pod that runs the image's entrypoint has none.
    #[error(
        "spec.{0}: with backend Kubernetes the image's own entrypoint cannot have it: write spec.container.command, or several HTCJobs"
    )]
    Entrypoint(&'static str),
    /// A number out of range.
    #[error("spec.{0} is {1}: write a number from 0 to 100000")]
    Number(&'static str, i64),
    /// A field that only Pods have.
    #[error("spec.kubernetes.{field}: {problem}")]
    Pods {
        field: &'static str,
        /// What is wrong, and what to write instead.
        problem: String,
    },
}

impl PodPlan {
    /// Parses a spec.
    pub fn parse(spec: &HTCJobSpec, site: &PodSettings) -> Result<Self, PodPlanError> {
        // A new field of the spec must get a meaning here, or be refused.
        let HTCJobSpec {
            name: _,
            // Their image and program are read below.
            script: _,
            container: _,
            // `machine::facts::Spec` decides how many jobs there are, and which.
            queue: _,
            indexes,
            items,
            items_from,
            parallelism: _,
            max_failed_indexes,
            htcopts,
            resources,
            env: _,
            files,
            image_pull_secrets,
            volumes: _,
            outputs,
            requirements,
            max_retries,
            credentials_secret_name,
            pool,
            mini_cluster,
            backend,
            kubernetes,
            active_deadline_seconds: _,
            ttl_seconds_after_finished: _,
            suspend: _,
        } = spec;
        debug_assert_eq!(backend.unwrap_or_default(), Backend::Kubernetes);
        let meaningless = [
            ("htcopts", htcopts.is_some(), "leave it out; spec.resources, spec.env and spec.kubernetes are for Pods"),
            ("requirements", requirements.is_some(), "choose nodes by spec.kubernetes.nodeSelector"),
            ("credentialsSecretName", credentials_secret_name.is_some(), "leave it out: nobody logs in to HTCondor"),
            ("pool", pool.is_some(), "leave it out: the jobs run on the cluster's own nodes"),
            ("miniCluster", mini_cluster.is_some(), "leave it out: each job is a Pod of its own"),
            (
                "outputs",
                !outputs.is_empty(),
                "the files of a Pod go with it; let the script write to a volume of spec.volumes",
            ),
            (
                "files[].url",
                files.iter().any(|file| file.url.is_some()),
                "an image may have no program that fetches it; fetch it in the script, or put it on a volume of spec.kubernetes.volumes",
            ),
        ];
        if let Some((field, _, instead)) = meaningless.into_iter().find(|(_, given, _)| *given) {
            return Err(PodPlanError::Meaningless { field, instead });
        }
        check_items(spec)?;
        let program = Program::parse(spec).map_err(PlanError::from)?;
        let looked_up =
            [("indexes", indexes.is_some()), ("items", !items.is_empty()), ("itemsFrom", items_from.is_some())];
        if let Some((field, _)) = looked_up.into_iter().find(|(_, given)| *given)
            && matches!(program, Program::Entrypoint(_))
        {
            return Err(PodPlanError::Entrypoint(field));
        }
        let resources = resources.clone().unwrap_or_default();
        check_resources(&resources)?;
        let mut pods = kubernetes.clone().unwrap_or_default();
        check_pods(&pods, site)?;
        check_pull_secrets(image_pull_secrets)?;
        pods.image_pull_secrets.extend(image_pull_secrets.iter().cloned());
        pods.volumes.extend(crate::volumes::parse(spec).map_err(PlanError::from)?.iter().map(claim_volume));
        Ok(Self {
            image: name_of_image(image_field(spec), spec.named_image())?,
            program,
            env: Variables::parse(spec).map_err(PlanError::from)?,
            resources,
            retries: number("maxRetries", max_retries.unwrap_or_default())?,
            max_failed: max_failed_indexes.map(|most| number("maxFailedIndexes", most)).transpose()?,
            files: crate::files::parse(files, &[]).map_err(PlanError::from)?,
            has_items: !items.is_empty() || items_from.is_some(),
            pods,
        })
    }
}

fn number(field: &'static str, number: i64) -> Result<i32, PodPlanError> {
    let fits = i32::try_from(number).ok().filter(|number| (0..=100_000).contains(number));
    fits.ok_or(PodPlanError::Number(field, number))
}

fn name_of_image(field: &'static str, text: &str) -> Result<String, PodPlanError> {
    let is_file = Path::new(text).extension().is_some_and(|end| end.eq_ignore_ascii_case("sif"));
    if text.starts_with('/') || is_file {
        return Err(PodPlanError::ImageFile(field, text.to_owned()));
    }
    if text.contains("://") {
        return Err(PodPlanError::ImageScheme(field, text.to_owned()));
    }
    let image = Image::resolve(text, &ImageMap::default()).map_err(|problem| PlanError::Image { field, problem })?;
    match image {
        Image::Registry(name) => Ok(name),
        Image::Folder(path) | Image::UsersFolder(path) | Image::Remote(path) => {
            Err(PodPlanError::ImageFile(field, path))
        }
    }
}

fn check_resources(resources: &Resources) -> Result<(), PodPlanError> {
    let Resources { cpus, memory, disk, gpus: _ } = resources;
    let check = |field, quantity: &Option<Quantity>| match quantity {
        Some(quantity) => quantity.in_units_of(1).map(drop).map_err(|problem| PlanError::Resource { field, problem }),
        None => Ok(()),
    };
    Ok(check("cpus", cpus).and_then(|()| check("memory", memory)).and_then(|()| check("disk", disk))?)
}

fn check_pods(pods: &KubernetesSpec, site: &PodSettings) -> Result<(), PodPlanError> {
    let KubernetesSpec {
        image_pull_secrets,
        volumes,
        service_account_name,
        // The API server checks these when the Job is created.
        node_selector: _,
        tolerations: _,
        priority_class_name,
        pod_labels,
        pod_annotations,
    } = pods;
    let wrong = |field, problem: String| Err(PodPlanError::Pods { field, problem });
    let no_name = |name: &str| format!("{name:?} is not a name of an object: use lower-case letters, digits, - and .");
    if let Some(PullSecret { name }) = image_pull_secrets.iter().find(|secret| !is_name(&secret.name)) {
        return wrong("imagePullSecrets", no_name(name));
    }
    let mut paths = BTreeSet::new();
    for ClaimVolume { claim, mount_path, read_only: _ } in volumes {
        if !is_name(claim) {
            return wrong("volumes", no_name(claim));
        }
        if is_of_pool(claim) {
            return wrong("volumes", VolumesError::PoolClaim(claim.clone()).to_string());
        }
        let path = mount_path.strip_suffix('/').unwrap_or(mount_path);
        // A path must have one spelling, so that the script's path cannot be given in another one.
        let plain =
            path.strip_prefix('/').is_some_and(|path| path.split('/').all(|part| !["", ".", ".."].contains(&part)));
        if !plain || path.contains([':', '\0']) {
            let problem = format!(
                "mountPath {mount_path:?} is no absolute path: write one such as /ntuples, without :, //, . and .."
            );
            return wrong("volumes", problem);
        }
        if let Some((_, what)) = TAKEN.iter().find(|(taken, _)| Path::new(path).starts_with(taken)) {
            return wrong("volumes", format!("mountPath {mount_path:?} is {what}: write another path"));
        }
        if !paths.insert(path) {
            return wrong("volumes", format!("mountPath {mount_path:?} is there twice: write another path"));
        }
    }
    if let Some(name) = service_account_name
        && !site.service_accounts.contains(name)
    {
        let problem = format!(
            "ServiceAccount {name:?} is not among those that this operator's administrator allows (--kubernetes-service-account): leave it out, or ask for it"
        );
        return wrong("serviceAccountName", problem);
    }
    if let Err((field, problem)) = pod_metadata::check(pod_labels, pod_annotations, &site.metadata) {
        return wrong(field, problem);
    }
    match priority_class_name.as_ref().filter(|name| !is_name(name)) {
        Some(name) => wrong("priorityClassName", no_name(name)),
        None => Ok(()),
    }
}

fn claim_volume(Volume { claim, path, read_only }: &Volume) -> ClaimVolume {
    ClaimVolume { claim: claim.clone(), mount_path: path.clone(), read_only: *read_only }
}

/// Converts to the type of the Kubernetes API.
#[must_use]
pub fn toleration(toleration: &Toleration) -> k8s_openapi::api::core::v1::Toleration {
    let Toleration { key, operator, value, effect, toleration_seconds } = toleration.clone();
    k8s_openapi::api::core::v1::Toleration { key, operator, value, effect, toleration_seconds }
}
