//! What the Pods of one `HTCJob` are to run: its spec, parsed. Every field has a meaning here or is refused.

use std::collections::BTreeSet;

use super::MOUNTED;
use crate::api::{
    Backend, ClaimVolume, HTCJobSpec, KubernetesSpec, PullSecret, Quantity, Resources, Script, Toleration, is_name,
};
use crate::condor::payload::{Command, CommandError, Image, ImageError, ImageMap};
use crate::workers::{PlanError, Planner};

/// What the site says about Pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// This operator runs jobs as Pods.
    pub enabled: bool,
    /// The resource that GPUs are, such as `nvidia.com/gpu`.
    pub gpu_resource: String,
    /// User id that all Pods run as; none for that of the image.
    pub run_as_user: Option<i64>,
    /// Group id of all Pods' volumes; none leaves them as they are.
    pub fs_group: Option<i64>,
    /// ServiceAccounts that an `HTCJob` may name.
    pub service_accounts: Vec<String>,
}

/// What the Pods of one `HTCJob` are to run.
#[derive(Clone, Debug, PartialEq)]
pub struct PodPlan {
    /// The image, as docker writes it.
    pub(super) image: String,
    /// The program in it, with its options.
    pub(super) command: Vec<String>,
    /// The user's variables, names and values.
    pub(super) env: Vec<(String, String)>,
    /// What each Pod asks for.
    pub(super) resources: Resources,
    /// How often an index is tried again.
    pub(super) retries: i32,
    /// When more indexes have failed, the others are not run.
    pub(super) max_failed: Option<i32>,
    /// Each job gets an item.
    pub(super) has_items: bool,
    /// What only Pods have.
    pub(super) pods: KubernetesSpec,
}

/// Why a spec cannot be run as Pods; the message says what to write instead.
#[derive(Debug, thiserror::Error)]
pub enum PodPlanError {
    /// A field that has no meaning for Pods.
    #[error("spec.{field} has no meaning with backend Kubernetes: {instead}")]
    Meaningless {
        /// The field.
        field: &'static str,
        /// What to do instead.
        instead: &'static str,
    },
    /// What HTCondor's jobs would be refused for, too.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The image.
    #[error("spec.script.image: {0}")]
    Image(#[from] ImageError),
    /// An image that only Apptainer runs.
    #[error(
        "spec.script.image: {0:?} is not a name in a registry: write one as docker does, such as `python:3.12`. Backend HTCondor runs image folders and .sif files"
    )]
    ImageFile(String),
    /// An image with a scheme.
    #[error(
        "spec.script.image: {0:?} has a scheme: write the name as docker does, such as `registry.example.org/team/image:tag`"
    )]
    ImageScheme(String),
    /// The command.
    #[error("spec.script.command: {0}")]
    Command(#[from] CommandError),
    /// A number that does not fit.
    #[error("spec.{0} is {1}: write a number from 0 to 100000")]
    Number(&'static str, i64),
    /// What only Pods have.
    #[error("spec.kubernetes.{field}: {problem}")]
    Pods {
        /// The field.
        field: &'static str,
        /// What is wrong, and what to write instead.
        problem: String,
    },
}

impl PodPlan {
    /// Parses a spec.
    pub fn parse(spec: &HTCJobSpec, site: &Site) -> Result<Self, PodPlanError> {
        // A field that is added to the spec must be given a meaning here, or be refused.
        let HTCJobSpec {
            name: _,
            script: Script { image, command, source: _, queue: _ },
            // How many jobs there are, and which, decides `machine::facts::Spec`.
            queue: _,
            indexes: _,
            items,
            items_from,
            parallelism: _,
            max_failed_indexes,
            htcopts,
            resources,
            env: _,
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
                "the files of a Pod go with it; let the script write to a volume of spec.kubernetes.volumes",
            ),
        ];
        if let Some((field, _, instead)) = meaningless.into_iter().find(|(_, given, _)| *given) {
            return Err(PodPlanError::Meaningless { field, instead });
        }
        Planner::check_items(spec)?;
        let resources = resources.clone().unwrap_or_default();
        check_resources(&resources)?;
        let pods = kubernetes.clone().unwrap_or_default();
        check_pods(&pods, site)?;
        Ok(Self {
            image: name_of_image(image)?,
            command: Command::parse(command)?.words().map(str::to_owned).collect(),
            env: Planner::variables(spec)?,
            resources,
            retries: number("maxRetries", max_retries.unwrap_or_default())?,
            max_failed: max_failed_indexes.map(|most| number("maxFailedIndexes", most)).transpose()?,
            has_items: !items.is_empty() || items_from.is_some(),
            pods,
        })
    }
}

fn number(field: &'static str, number: i64) -> Result<i32, PodPlanError> {
    let fits = i32::try_from(number).ok().filter(|number| (0..=100_000).contains(number));
    fits.ok_or(PodPlanError::Number(field, number))
}

fn name_of_image(text: &str) -> Result<String, PodPlanError> {
    let is_file = std::path::Path::new(text).extension().is_some_and(|end| end.eq_ignore_ascii_case("sif"));
    if text.starts_with('/') || is_file {
        return Err(PodPlanError::ImageFile(text.to_owned()));
    }
    if text.contains("://") {
        return Err(PodPlanError::ImageScheme(text.to_owned()));
    }
    match Image::resolve(text, &ImageMap::default())? {
        Image::Registry(name) => Ok(name),
        Image::Folder(path) | Image::UsersFolder(path) => Err(PodPlanError::ImageFile(path)),
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

fn check_pods(pods: &KubernetesSpec, site: &Site) -> Result<(), PodPlanError> {
    let KubernetesSpec {
        image_pull_secrets,
        volumes,
        service_account_name,
        // What these may have is the API server's to say, and it says so when the Job is created.
        node_selector: _,
        tolerations: _,
        priority_class_name,
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
        let path = mount_path.strip_suffix('/').unwrap_or(mount_path);
        // A path has one spelling: otherwise the script's could be written in another one.
        let plain =
            path.strip_prefix('/').is_some_and(|path| path.split('/').all(|part| !["", ".", ".."].contains(&part)));
        if !plain || path.contains([':', '\0']) {
            let problem = format!(
                "mountPath {mount_path:?} is no absolute path: write one such as /ntuples, without :, //, . and .."
            );
            return wrong("volumes", problem);
        }
        if path == MOUNTED || path.starts_with(&format!("{MOUNTED}/")) {
            return wrong("volumes", format!("mountPath {mount_path:?} is where the script is: write another path"));
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
    match priority_class_name.as_ref().filter(|name| !is_name(name)) {
        Some(name) => wrong("priorityClassName", no_name(name)),
        None => Ok(()),
    }
}

/// As Kubernetes has it.
pub(super) fn toleration(toleration: &Toleration) -> k8s_openapi::api::core::v1::Toleration {
    let Toleration { key, operator, value, effect, toleration_seconds } = toleration.clone();
    k8s_openapi::api::core::v1::Toleration { key, operator, value, effect, toleration_seconds }
}
