//! Builds the ConfigMap and the Job of an `HTCJob`.

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};

use htc_api::{APP_LABEL, FrozenFile, HTCJobSpec, KeyRef, KubernetesSpec, ObjectName, Resources};
use htc_machine::Uid;
use htc_machine::ids::Index;
use htc_machine::pods::DesiredJob;
use htc_submit::files::SecretFile;
use htc_submit::payload::{Piece, Program, Word};
use htc_submit::pod_metadata::{DEFAULT_ANNOTATIONS, DEFAULT_LABELS, DEFAULT_NODE_SELECTOR, with_defaults};
use htc_submit::pod_spec::{
    CpuLimits, MOUNTED, PodPlan, PodSecurity, PodSettings, SHARED_MEMORY, WORKING_DIRECTORY, toleration,
};
use k8s_openapi::ByteString;
use k8s_openapi::api::batch::v1::{
    Job, JobSpec, PodFailurePolicy, PodFailurePolicyOnPodConditionsPattern, PodFailurePolicyRule,
};
use k8s_openapi::api::core::v1::{
    Capabilities, ConfigMap, ConfigMapVolumeSource, Container, EmptyDirVolumeSource, EnvVar, EnvVarSource, KeyToPath,
    LocalObjectReference, ObjectFieldSelector, PersistentVolumeClaimVolumeSource, PodSecurityContext, PodSpec,
    PodTemplateSpec, ResourceRequirements, SeccompProfile, SecretKeySelector, SecretVolumeSource, SecurityContext,
    Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use super::{CONTAINER, HTCJOB, HTCJOB_UID};

/// Maximum size of a ConfigMap's data in the API server, in bytes.
const LARGEST: usize = 1 << 20;
/// Variables that name the folder for temporary files, as on HTCondor's nodes.
const TEMPORARY: [&str; 3] = ["TMPDIR", "TMP", "TEMP"];
/// Maximum length of the HTCJob's name in the Job's name: `-<uid8>`, and `-<index>-<5 letters>` of a Pod, must fit
/// after it.
const NAME: usize = 40;
/// Script that finds the index and the item of a Pod by line number, and puts them into the words of its program. Its
/// arguments are [`pieces`]. It uses only POSIX features, and no program of the image except its shell.
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
fi
rest=$# word=
while [ "$rest" -gt 0 ]; do
    case $1 in
        text)
            word=$word$2
            shift
            rest=$((rest - 1))
            ;;
        index) word=$word$HTCPROCID ;;
        item) word=$word$HTC_ITEM ;;
        word)
            set -- "$@" "$word"
            word=
            ;;
    esac
    shift
    rest=$((rest - 1))
done
exec "$@"
"#;

/// The `HTCJob` that owns the ConfigMap and the Job.
#[derive(Clone, Debug)]
pub struct JobOwner {
    pub name: ObjectName,
    pub uid: Uid,
    /// Value of its label [`APP_LABEL`].
    pub app: Option<String>,
}

/// Texts of the user, which may be large.
#[derive(Clone, Debug, Default)]
pub struct Texts {
    /// The script, if the Pods run one.
    pub source: Option<String>,
    /// Indexes that run, in order.
    pub indexes: Vec<Index>,
    /// Item of each of these indexes; empty if there are none.
    pub items: Vec<String>,
    /// Files that each Pod has in its working directory.
    pub files: Vec<FrozenFile>,
    /// Variables that were read, names and values.
    pub variables: Vec<(String, String)>,
}

/// The script, the items and the indexes do not fit into a ConfigMap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "script, items, indexes and files have {0} bytes together, and a ConfigMap holds {LARGEST}: put what is large where the Pods can read it, such as a volume, or make several HTCJobs"
)]
pub struct TooLarge(usize);

/// Returns the name of the Job and of its ConfigMap, which follows from the `HTCJob`'s uid. It has no dots, because
/// names of Pods are derived from it.
#[must_use]
pub fn job_name(name: &str, uid: &Uid) -> String {
    let begin: String = name.chars().take(NAME).map(|c| if c == '.' { '-' } else { c }).collect();
    let uid8 = uid.as_str().get(..8).unwrap_or(uid.as_str());
    format!("{}-{uid8}", begin.trim_end_matches('-'))
}

impl Texts {
    /// Whether Kubernetes' completion indexes equal the `HTCJob`'s indexes.
    fn is_plain(&self) -> bool {
        self.indexes.iter().zip(0..).all(|(index, number)| index.0 == number)
    }

    /// Whether a Pod has to look up its index or its item.
    fn is_looked_up(&self) -> bool {
        !self.is_plain() || !self.items.is_empty()
    }

    /// Returns the data of the ConfigMap.
    ///
    /// # Errors
    /// It is too large.
    pub fn data(&self) -> Result<BTreeMap<String, String>, TooLarge> {
        let mut data = BTreeMap::new();
        data.extend(self.source.iter().map(|source| ("script".to_owned(), source.clone())));
        if !self.is_plain() {
            data.insert("indexes".to_owned(), lines(&self.indexes));
        }
        if !self.items.is_empty() {
            data.insert("items".to_owned(), lines(&self.items));
        }
        if self.is_looked_up() {
            data.insert("run".to_owned(), RUN.to_owned());
        }
        let texts: usize = data.values().map(String::len).sum();
        match texts + self.files.iter().map(|file| file.content.len()).sum::<usize>() {
            bytes if bytes > LARGEST => Err(TooLarge(bytes)),
            _ => Ok(data),
        }
    }

    /// Returns the files as binary data of the ConfigMap.
    fn binary_data(&self) -> Option<BTreeMap<String, ByteString>> {
        let data =
            self.files.iter().zip(0..).map(|(file, number)| (file_key(number), ByteString(file.content.clone())));
        Some(data.collect()).filter(|data: &BTreeMap<_, _>| !data.is_empty())
    }
}

/// Gives group and others what the owner may read and run: files of a ConfigMap belong to root, and no Pod runs as root.
const fn readable_by_all(mode: u32) -> u32 {
    let owner = (mode >> 6) & 0o5;
    mode | owner << 3 | owner
}

/// Returns the key of a file in the ConfigMap.
fn file_key(number: usize) -> String {
    format!("file-{number}")
}

/// Joins the values, one per line.
fn lines(all: &[impl Display]) -> String {
    all.iter().fold(String::new(), |mut lines, one| {
        let _ = writeln!(lines, "{one}");
        lines
    })
}

fn metadata(of: &JobOwner, controller: bool) -> ObjectMeta {
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

/// Returns the metadata of the Pods. The user's keys are never the operator's own: [`htc_submit::pod_metadata::check`] refuses them.
fn pod_metadata(of: &JobOwner, pods: &KubernetesSpec) -> ObjectMeta {
    let mut metadata = metadata(of, false);
    metadata.labels.get_or_insert_default().extend(with_defaults(&DEFAULT_LABELS, &pods.pod_labels));
    metadata.annotations.get_or_insert_default().extend(with_defaults(&DEFAULT_ANNOTATIONS, &pods.pod_annotations));
    metadata
}

/// Builds the ConfigMap that the Pods mount.
///
/// # Errors
/// It would be too large.
pub fn config_map(of: &JobOwner, texts: &Texts) -> Result<ConfigMap, TooLarge> {
    Ok(ConfigMap {
        metadata: metadata(of, true),
        data: Some(texts.data()?),
        binary_data: texts.binary_data(),
        immutable: Some(true),
    })
}

/// Builds the Job. It is created suspended, and resumed once it is recorded.
#[must_use]
pub fn job(of: &JobOwner, plan: &PodPlan, site: &PodSettings, texts: &Texts, wanted: DesiredJob) -> Job {
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
            // A Pod lost by a disruption does not count as a retry. A replacement is created only after the old Pod has
            // failed, so that an index never runs twice at once.
            pod_failure_policy: Some(PodFailurePolicy { rules: vec![disruption] }),
            pod_replacement_policy: Some("Failed".to_owned()),
            template: PodTemplateSpec {
                metadata: Some(pod_metadata(of, &plan.pods)),
                spec: Some(pod(of, plan, site, texts)),
            },
            ..JobSpec::default()
        }),
        status: None,
    }
}

fn pod(of: &JobOwner, plan: &PodPlan, site: &PodSettings, texts: &Texts) -> PodSpec {
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
    if has_files(plan, texts) {
        volumes.push(Volume {
            name: "work".to_owned(),
            empty_dir: Some(EmptyDirVolumeSource::default()),
            ..Volume::default()
        });
        mounts.push(mount("work", WORKING_DIRECTORY, false));
    }
    if !texts.files.is_empty() {
        let items = texts.files.iter().zip(0..).map(|(file, number)| KeyToPath {
            key: file_key(number),
            path: file_key(number),
            mode: i32::try_from(readable_by_all(file.mode)).ok(),
        });
        volumes.push(Volume {
            name: "files".to_owned(),
            config_map: Some(ConfigMapVolumeSource {
                name: job_name(&of.name.name, &of.uid),
                items: Some(items.collect()),
                ..ConfigMapVolumeSource::default()
            }),
            ..Volume::default()
        });
        mounts.extend(texts.files.iter().zip(0..).map(|(file, number)| VolumeMount {
            sub_path: Some(file_key(number)),
            ..mount("files", &format!("{WORKING_DIRECTORY}/{}", file.path), true)
        }));
    }
    for (number, file) in plan.files.secret.iter().enumerate() {
        let name = format!("secret-{number}");
        mounts.push(VolumeMount {
            sub_path: Some("content".to_owned()),
            ..mount(&name, &format!("{WORKING_DIRECTORY}/{}", file.path), true)
        });
        volumes.push(Volume { name, secret: Some(secret_volume(file)), ..Volume::default() });
    }
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
    // Without it a container has 64 MB.
    mounts.push(mount("shm", SHARED_MEMORY, false));
    volumes.push(Volume {
        name: "shm".to_owned(),
        empty_dir: Some(EmptyDirVolumeSource {
            medium: Some("Memory".to_owned()),
            size_limit: plan.resources.memory.as_ref().map(|memory| Quantity(memory.to_string())),
        }),
        ..Volume::default()
    });
    let secrets = pods.image_pull_secrets.iter().map(|secret| LocalObjectReference { name: secret.name.clone() });
    PodSpec {
        automount_service_account_token: Some(account.is_some()),
        service_account_name: account,
        enable_service_links: Some(false),
        restart_policy: Some("Never".to_owned()),
        security_context: Some(PodSecurityContext {
            run_as_non_root: (site.security == PodSecurity::Restricted).then_some(true),
            run_as_user: site.run_as_user,
            fs_group: site.fs_group,
            // Avoids a change of ownership of a large volume at each start of a Pod.
            fs_group_change_policy: site.fs_group.map(|_| "OnRootMismatch".to_owned()),
            seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".to_owned(), ..SeccompProfile::default() }),
            ..PodSecurityContext::default()
        }),
        containers: vec![container(of, plan, site, texts, mounts)],
        volumes: Some(volumes),
        image_pull_secrets: Some(secrets.collect()),
        node_selector: Some(with_defaults(&DEFAULT_NODE_SELECTOR, &pods.node_selector)),
        tolerations: Some(pods.tolerations.iter().map(toleration).collect()),
        priority_class_name: pods.priority_class_name.clone(),
        ..PodSpec::default()
    }
}

/// Whether Pods have files in their working directory.
const fn has_files(plan: &PodPlan, texts: &Texts) -> bool {
    !texts.files.is_empty() || !plan.files.secret.is_empty()
}

fn secret_volume(file: &SecretFile) -> SecretVolumeSource {
    let item = KeyToPath {
        key: file.key.key.clone(),
        path: "content".to_owned(),
        mode: i32::try_from(readable_by_all(file.mode)).ok(),
    };
    SecretVolumeSource {
        secret_name: Some(file.key.name.clone()),
        items: Some(vec![item]),
        ..SecretVolumeSource::default()
    }
}

fn container(of: &JobOwner, plan: &PodPlan, site: &PodSettings, texts: &Texts, mounts: Vec<VolumeMount>) -> Container {
    let (command, args) = command_line(&plan.program, !texts.items.is_empty());
    let (command, args) = if texts.is_looked_up() {
        (vec!["/bin/sh".to_owned(), format!("{MOUNTED}/run")], pieces(&[command, args].concat()))
    } else {
        (expanded(&command), expanded(&args))
    };
    let variable =
        |name: &str, value: &str| EnvVar { name: name.to_owned(), value: Some(literal(value)), value_from: None };
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
    let is_given = |name: &str| plan.env.has(name);
    env.extend(TEMPORARY.iter().filter(|name| !is_given(name)).map(|name| variable(name, "/tmp")));
    env.extend(plan.env.plain.iter().chain(&texts.variables).map(|(name, value)| variable(name, value)));
    env.extend(plan.env.secret.iter().map(|(name, KeyRef { name: secret, key })| EnvVar {
        name: name.clone(),
        value: None,
        value_from: Some(EnvVarSource {
            secret_key_ref: Some(SecretKeySelector {
                name: secret.clone(),
                key: key.clone(),
                ..SecretKeySelector::default()
            }),
            ..EnvVarSource::default()
        }),
    }));
    Container {
        name: CONTAINER.to_owned(),
        image: Some(plan.image.clone()),
        command: Some(command).filter(|command| !command.is_empty()),
        args: Some(args).filter(|args| !args.is_empty()),
        env: Some(env),
        working_dir: has_files(plan, texts).then(|| WORKING_DIRECTORY.to_owned()),
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

/// Returns the words of the container's command and of its arguments. Without a command, the container runs the image's
/// entrypoint.
fn command_line(program: &Program, has_items: bool) -> (Vec<Word>, Vec<Word>) {
    match program {
        Program::Script(command) => {
            let script = [Word::from(&*format!("{MOUNTED}/script")), Piece::Index.into()];
            let item = has_items.then(|| Piece::Item.into());
            (command.words().map(Word::from).collect(), script.into_iter().chain(item).collect())
        }
        Program::Command { program, arguments } => (vec![Word::from(program.as_str())], arguments.clone()),
        Program::Entrypoint(arguments) => (Vec::new(), arguments.clone()),
    }
}

/// Returns the words as Kubernetes expands them, so that the image needs no shell.
fn expanded(words: &[Word]) -> Vec<String> {
    let piece = |piece: &Piece| match piece {
        Piece::Text(text) => literal(text),
        Piece::Index => "$(HTCPROCID)".to_owned(),
        Piece::Item => "$(HTC_ITEM)".to_owned(),
    };
    words.iter().map(|word| word.pieces().iter().map(piece).collect()).collect()
}

/// Returns the words as arguments of [`RUN`]: each piece, and `word` after the last one of a word.
fn pieces(words: &[Word]) -> Vec<String> {
    let piece = |piece: &Piece| match piece {
        Piece::Text(text) => vec!["text".to_owned(), literal(text)],
        Piece::Index => vec!["index".to_owned()],
        Piece::Item => vec!["item".to_owned()],
    };
    words.iter().flat_map(|word| word.pieces().iter().flat_map(piece).chain(["word".to_owned()])).collect()
}

/// Returns the text so that Kubernetes does not expand it. It expands `$(NAME)` in values and arguments; `$$` is a
/// literal `$`.
fn literal(text: &str) -> String {
    text.replace('$', "$$")
}

/// Returns a Pod spec with only the resource requests and the node constraints of each Pod.
#[must_use]
pub fn pod_requests(spec: &HTCJobSpec, site: &PodSettings) -> PodSpec {
    let pods = spec.kubernetes.clone().unwrap_or_default();
    let ResourceRequirements { requests, limits, .. } = resources(&spec.resources.clone().unwrap_or_default(), site);
    let mut requests = requests.unwrap_or_default();
    // A limit is also the request, unless the user gives another request.
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

/// CPU is a request, which a Pod may exceed while the node has idle cores unless the site limits it. Memory and disk are
/// limits.
fn resources(resources: &Resources, site: &PodSettings) -> ResourceRequirements {
    let Resources { cpus, memory, disk, gpus } = resources;
    let (mut requests, mut limits) = (BTreeMap::new(), BTreeMap::new());
    let quantity = |quantity: &htc_api::Quantity| Quantity(quantity.to_string());
    requests.extend(cpus.iter().map(|cpus| ("cpu".to_owned(), quantity(cpus))));
    if site.cpu_limits == Some(CpuLimits::Requests) {
        limits.clone_from(&requests);
    }
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
