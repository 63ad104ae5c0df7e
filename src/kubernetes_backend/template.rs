//! The ConfigMap and the Job of an `HTCJob`.

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};

use k8s_openapi::api::batch::v1::{
    Job, JobSpec, PodFailurePolicy, PodFailurePolicyOnPodConditionsPattern, PodFailurePolicyRule,
};
use k8s_openapi::api::core::v1::{
    Capabilities, ConfigMap, ConfigMapVolumeSource, Container, EnvVar, EnvVarSource, LocalObjectReference,
    ObjectFieldSelector, PersistentVolumeClaimVolumeSource, PodSecurityContext, PodSpec, PodTemplateSpec,
    ResourceRequirements, SeccompProfile, SecurityContext, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use super::plan::{PodPlan, Site, toleration};
use super::{CONTAINER, HTCJOB, HTCJOB_UID, MOUNTED};
use crate::api::{APP_LABEL, HTCJobSpec, ObjectName, Resources};
use crate::machine::Uid;
use crate::machine::ids::Index;
use crate::machine::pods::Adjust;

/// Most bytes of a ConfigMap's data, by the API server.
const LARGEST: usize = 1 << 20;
/// Most letters of the HTCJob's name in the Job's: `-<uid8>`, and `-<index>-<5 letters>` of a Pod, must fit behind it.
const NAME: usize = 40;
/// Finds the index and the item of a Pod by its line. Only what POSIX has, and no program of the image but its shell.
const RUN: &str = r#"#!/bin/sh
completion=$HTCPROCID
find_line() {
    number=0
    while IFS= read -r line; do
        if [ "$number" -eq "$completion" ]; then return 0; fi
        number=$((number + 1))
    done <"$1"
    echo "there is no line $completion in $1" >&2
    exit 1
}
if [ -e /etc/htcjob/indexes ]; then
    find_line /etc/htcjob/indexes
    HTCPROCID=$line
    export HTCPROCID
fi
if [ -e /etc/htcjob/items ]; then
    find_line /etc/htcjob/items
    HTC_ITEM=$line
    export HTC_ITEM
    exec "$@" /etc/htcjob/script "$HTCPROCID" "$HTC_ITEM"
fi
exec "$@" /etc/htcjob/script "$HTCPROCID"
"#;

/// The `HTCJob` that they are for.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Its name.
    pub name: ObjectName,
    /// Its uid.
    pub uid: Uid,
    /// Its label [`APP_LABEL`].
    pub app: Option<String>,
}

/// What the user wrote, and may be large.
#[derive(Clone, Debug, Default)]
pub struct Texts {
    /// The script.
    pub source: String,
    /// The indexes that are to run, in order.
    pub indexes: Vec<Index>,
    /// The item of each of them; empty if they have none.
    pub items: Vec<String>,
}

/// The script, the items and the indexes do not fit into a ConfigMap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "script, items and indexes have {0} bytes together, and a ConfigMap has room for {LARGEST}: put what is large where the Pods can read it, such as a volume, or make several HTCJobs"
)]
pub struct TooLarge(usize);

/// Name of the Job, and of its ConfigMap: it follows from the `HTCJob`'s uid. No dots: names of Pods are made of it.
#[must_use]
pub fn job_name(name: &str, uid: &Uid) -> String {
    let begin: String = name.chars().take(NAME).map(|c| if c == '.' { '-' } else { c }).collect();
    let uid8 = uid.as_str().get(..8).unwrap_or(uid.as_str());
    format!("{}-{uid8}", begin.trim_end_matches('-'))
}

impl Texts {
    /// Whether Kubernetes' completion indexes are the `HTCJob`'s.
    fn is_plain(&self) -> bool {
        self.indexes.iter().zip(0..).all(|(index, number)| index.0 == number)
    }

    /// Whether a Pod has to look up what it is.
    fn is_looked_up(&self) -> bool {
        !self.is_plain() || !self.items.is_empty()
    }

    /// What stands in the ConfigMap.
    ///
    /// # Errors
    /// It is too large.
    pub fn data(&self) -> Result<BTreeMap<String, String>, TooLarge> {
        let mut data = BTreeMap::from([("script".to_owned(), self.source.clone())]);
        if !self.is_plain() {
            data.insert("indexes".to_owned(), lines(&self.indexes));
        }
        if !self.items.is_empty() {
            data.insert("items".to_owned(), lines(&self.items));
        }
        if self.is_looked_up() {
            data.insert("run".to_owned(), RUN.to_owned());
        }
        match data.values().map(String::len).sum() {
            bytes if bytes > LARGEST => Err(TooLarge(bytes)),
            _ => Ok(data),
        }
    }
}

/// One in each line.
fn lines(all: &[impl Display]) -> String {
    all.iter().fold(String::new(), |mut lines, one| {
        let _ = writeln!(lines, "{one}");
        lines
    })
}

fn metadata(of: &Identity, controller: bool) -> ObjectMeta {
    let mut labels = BTreeMap::from([
        (HTCJOB_UID.to_owned(), of.uid.to_string()),
        ("app.kubernetes.io/managed-by".to_owned(), "htc-operator".to_owned()),
    ]);
    labels.extend(of.app.iter().map(|app| (APP_LABEL.to_owned(), app.clone())));
    let owner = OwnerReference {
        api_version: "htc.cern.ch/v1alpha1".to_owned(),
        kind: "HTCJob".to_owned(),
        name: of.name.name.clone(),
        uid: of.uid.to_string(),
        controller: Some(true),
        ..OwnerReference::default()
    };
    ObjectMeta {
        name: controller.then(|| job_name(&of.name.name, &of.uid)),
        namespace: controller.then(|| of.name.namespace.clone()),
        labels: Some(labels),
        annotations: Some(BTreeMap::from([(HTCJOB.to_owned(), of.name.name.clone())])),
        owner_references: controller.then(|| vec![owner]),
        ..ObjectMeta::default()
    }
}

/// The ConfigMap, which the Pods mount.
///
/// # Errors
/// It would be too large.
pub fn config_map(of: &Identity, texts: &Texts) -> Result<ConfigMap, TooLarge> {
    Ok(ConfigMap {
        metadata: metadata(of, true),
        data: Some(texts.data()?),
        immutable: Some(true),
        ..ConfigMap::default()
    })
}

/// The Job, suspended: it is resumed once it is recorded.
#[must_use]
pub fn job(of: &Identity, plan: &PodPlan, site: &Site, texts: &Texts, wanted: Adjust) -> Job {
    let completions = i32::try_from(texts.indexes.len()).unwrap_or(i32::MAX);
    let disruption = PodFailurePolicyRule {
        action: "Ignore".to_owned(),
        on_pod_conditions: Some(vec![PodFailurePolicyOnPodConditionsPattern {
            type_: "DisruptionTarget".to_owned(),
            status: "True".to_owned(),
        }]),
        ..PodFailurePolicyRule::default()
    };
    Job {
        metadata: metadata(of, true),
        spec: Some(JobSpec {
            completion_mode: Some("Indexed".to_owned()),
            completions: Some(completions),
            parallelism: Some(i32::try_from(wanted.parallelism).unwrap_or(i32::MAX)),
            suspend: Some(true),
            backoff_limit_per_index: Some(plan.retries),
            max_failed_indexes: plan.max_failed,
            active_deadline_seconds: wanted.deadline.map(|limit| i64::try_from(limit.as_secs()).unwrap_or(i64::MAX)),
            // A lost machine is no retry, and its index does not run twice.
            pod_failure_policy: Some(PodFailurePolicy { rules: vec![disruption] }),
            pod_replacement_policy: Some("Failed".to_owned()),
            template: PodTemplateSpec { metadata: Some(metadata(of, false)), spec: Some(pod(of, plan, site, texts)) },
            ..JobSpec::default()
        }),
        status: None,
    }
}

fn pod(of: &Identity, plan: &PodPlan, site: &Site, texts: &Texts) -> PodSpec {
    let pods = &plan.pods;
    let account = pods.service_account_name.clone();
    let mut volumes = vec![Volume {
        name: "htcjob".to_owned(),
        config_map: Some(ConfigMapVolumeSource {
            name: job_name(&of.name.name, &of.uid),
            default_mode: Some(0o555),
            ..ConfigMapVolumeSource::default()
        }),
        ..Volume::default()
    }];
    let mount = |name: &str, path: &str, read_only| VolumeMount {
        name: name.to_owned(),
        mount_path: path.to_owned(),
        read_only: Some(read_only),
        ..VolumeMount::default()
    };
    let mut mounts = vec![mount("htcjob", MOUNTED, true)];
    for (number, volume) in pods.volumes.iter().enumerate() {
        let name = format!("claim-{number}");
        mounts.push(mount(&name, &volume.mount_path, volume.read_only));
        volumes.push(Volume {
            name,
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: volume.claim.clone(),
                read_only: Some(volume.read_only),
            }),
            ..Volume::default()
        });
    }
    let secrets = pods.image_pull_secrets.iter().map(|secret| LocalObjectReference { name: secret.name.clone() });
    PodSpec {
        automount_service_account_token: Some(account.is_some()),
        service_account_name: account,
        enable_service_links: Some(false),
        restart_policy: Some("Never".to_owned()),
        security_context: Some(PodSecurityContext {
            run_as_non_root: Some(true),
            run_as_user: site.run_as_user,
            fs_group: site.fs_group,
            // A large volume is not gone through at each start of a Pod.
            fs_group_change_policy: site.fs_group.map(|_| "OnRootMismatch".to_owned()),
            seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".to_owned(), ..SeccompProfile::default() }),
            ..PodSecurityContext::default()
        }),
        containers: vec![container(of, plan, site, texts, mounts)],
        volumes: Some(volumes),
        image_pull_secrets: Some(secrets.collect()),
        node_selector: Some(pods.node_selector.clone()).filter(|labels| !labels.is_empty()),
        tolerations: Some(pods.tolerations.iter().map(toleration).collect()),
        priority_class_name: pods.priority_class_name.clone(),
        ..PodSpec::default()
    }
}

fn container(of: &Identity, plan: &PodPlan, site: &Site, texts: &Texts, mounts: Vec<VolumeMount>) -> Container {
    let (command, args) = if texts.is_looked_up() {
        (vec!["/bin/sh".to_owned(), format!("{MOUNTED}/run")], plan.command.clone())
    } else {
        // Kubernetes puts the variable's value there: the image needs no shell.
        (plan.command.clone(), vec![format!("{MOUNTED}/script"), "$(HTCPROCID)".to_owned()])
    };
    let variable = |name: &str, value: &str| EnvVar {
        name: name.to_owned(),
        // Kubernetes expands $(NAME) in values; $$ is a $.
        value: Some(value.replace('$', "$$")),
        value_from: None,
    };
    let index = EnvVar {
        name: "HTCPROCID".to_owned(),
        value: None,
        value_from: Some(EnvVarSource {
            field_ref: Some(ObjectFieldSelector {
                field_path: "metadata.annotations['batch.kubernetes.io/job-completion-index']".to_owned(),
                ..ObjectFieldSelector::default()
            }),
            ..EnvVarSource::default()
        }),
    };
    let mut env = vec![index, variable("JOB_NAME", &of.name.name)];
    env.extend(plan.env.iter().map(|(name, value)| variable(name, value)));
    Container {
        name: CONTAINER.to_owned(),
        image: Some(plan.image.clone()),
        command: Some(command),
        args: Some(args),
        env: Some(env),
        resources: Some(resources(&plan.resources, site)),
        volume_mounts: Some(mounts),
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            capabilities: Some(Capabilities { drop: Some(vec!["ALL".to_owned()]), add: None }),
            ..SecurityContext::default()
        }),
        ..Container::default()
    }
}

/// What each Pod of these requests, and the nodes that it may run on: the spec of a Pod that says nothing else.
#[must_use]
pub fn asked_for(spec: &HTCJobSpec, site: &Site) -> PodSpec {
    let pods = spec.kubernetes.clone().unwrap_or_default();
    let ResourceRequirements { requests, limits, .. } = resources(&spec.resources.clone().unwrap_or_default(), site);
    let mut requests = requests.unwrap_or_default();
    // What has a limit is requested, if nothing else is said.
    for (name, limit) in limits.unwrap_or_default() {
        requests.entry(name).or_insert(limit);
    }
    PodSpec {
        restart_policy: Some("Never".to_owned()),
        containers: vec![Container {
            name: CONTAINER.to_owned(),
            image: Some("none".to_owned()),
            resources: Some(ResourceRequirements { requests: Some(requests), ..ResourceRequirements::default() }),
            ..Container::default()
        }],
        node_selector: Some(pods.node_selector).filter(|labels| !labels.is_empty()),
        tolerations: Some(pods.tolerations.iter().map(toleration).collect()),
        ..PodSpec::default()
    }
}

/// Cores are shares, and may be exceeded while the node has them; memory and disk are limits.
fn resources(resources: &Resources, site: &Site) -> ResourceRequirements {
    let Resources { cpus, memory, disk, gpus } = resources;
    let (mut requests, mut limits) = (BTreeMap::new(), BTreeMap::new());
    let quantity = |quantity: &crate::api::Quantity| Quantity(quantity.to_string());
    requests.extend(cpus.iter().map(|cpus| ("cpu".to_owned(), quantity(cpus))));
    for (name, given) in [("memory", memory), ("ephemeral-storage", disk)] {
        if let Some(given) = given {
            requests.insert(name.to_owned(), quantity(given));
            limits.insert(name.to_owned(), quantity(given));
        }
    }
    let gpus = gpus.filter(|gpus| *gpus > 0);
    limits.extend(gpus.map(|gpus| (site.gpu_resource.clone(), Quantity(gpus.to_string()))));
    ResourceRequirements { requests: Some(requests), limits: Some(limits), claims: None }
}
