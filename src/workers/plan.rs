//! What the jobs of one HTCJob are to run, and where their files lie.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::items::{LONGEST, is_item};
use crate::api::{ConfigMapKeyRef, EnvVar, HTCJobSpec, ItemsFrom, MAX_QUEUE, ObjectName, Quantity};
use crate::condor::htcopts::{HtcOpts, Policy};
use crate::condor::payload::{Callback, Command, Image, ImageMap, MOST_OUTPUTS, OutputPattern, Payload, sandbox_files};
use crate::failpoint::{self, Point};
use crate::key::KeyRing;
use crate::machine::indices::Indices;
use crate::machine::{Index, Uid};

/// Turns specs into plans.
#[derive(Clone, Debug)]
pub struct Planner {
    /// The operator's data folder.
    pub data: PathBuf,
    /// The folder that `htc_out` is in.
    pub output_dir: PathBuf,
    /// What the site makes of image names.
    pub images: ImageMap,
    /// Folders bound into the container.
    pub binds: Vec<String>,
    /// Submit commands for every job.
    pub site_defaults: HtcOpts,
    /// What users may set.
    pub policy: Policy,
    /// Where jobs report, if they do.
    pub callback: Option<Arc<Reporting>>,
    /// Most MiB of output of one job.
    pub output_limit: Option<u64>,
    /// Bytes of the output's volume that are to stay free.
    pub keep_free: u64,
}

/// Where jobs report, and what their tokens are made with.
#[derive(Debug)]
pub struct Reporting {
    /// URL of the receiver, as worker nodes reach it.
    pub url: String,
    /// `source` of their events.
    pub source: String,
    /// The keys of the tokens.
    pub keys: KeyRing,
}

/// What the jobs of one HTCJob are to run: its spec, parsed.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Number of jobs.
    pub jobs: usize,
    /// The container image.
    pub image: Image,
    /// How the user calls it.
    pub named: String,
    /// The program in it.
    pub command: Command,
    /// The user's submit commands, with those that stand for other fields of the spec.
    pub options: HtcOpts,
    /// The user's variables, names and values.
    pub env: Vec<(String, String)>,
    /// Which of what the script leaves comes back; empty for all of it.
    pub outputs: Vec<OutputPattern>,
    /// The jobs run on workers of their own, and nowhere else.
    pub mini_cluster: bool,
}

/// What jobs that are to be submitted get as the user wrote it. It may be large, and is copied for a submission only.
#[derive(Clone, Debug, Default)]
pub struct Texts {
    /// The script.
    pub source: String,
    /// The items of these jobs, if they get any.
    pub items: BTreeMap<Index, String>,
}

/// Why a spec cannot be run; the message says what to write instead.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The number of jobs.
    #[error("spec.queue is {0}: write a number from 1 to {MAX_QUEUE}")]
    Queue(i64),
    /// Which of them.
    #[error("spec.indexes: {0}")]
    Indexes(String),
    /// The items.
    #[error("spec.items: {0}")]
    Items(String),
    /// Where the items are.
    #[error("spec.itemsFrom: {0}")]
    ItemsFrom(String),
    /// The image.
    #[error("spec.script.image: {0}")]
    Image(#[from] crate::condor::payload::ImageError),
    /// The command.
    #[error("spec.script.command: {0}")]
    Command(#[from] crate::condor::payload::CommandError),
    /// The submit commands.
    #[error("spec.{0}")]
    Options(#[from] crate::condor::htcopts::HtcOptsError),
    /// A field that stands for a submit command.
    #[error("spec.{field}: {problem}")]
    Field {
        /// Its name.
        field: &'static str,
        /// What is wrong, and what to write instead.
        problem: crate::condor::htcopts::HtcOptsProblem,
    },
    /// A resource.
    #[error("spec.resources.{field}: {problem}")]
    Resource {
        /// Its name.
        field: &'static str,
        /// What is wrong, and what to write instead.
        problem: crate::api::QuantityError,
    },
    /// A variable.
    #[error("spec.env: {0}")]
    Env(String),
    /// What is to come back.
    #[error("spec.outputs: {0}")]
    Outputs(String),
    /// The credentials.
    #[error(
        "spec.credentialsSecretName: {0:?} is not a valid name for a Secret: use lower-case letters, digits, - and ."
    )]
    Credentials(String),
}

/// Most bytes of all variables together: they are copied for each job.
const MAX_ENV_BYTES: usize = 64 * 1024;
const MIB: u64 = 1 << 20;
const KIB: u64 = 1 << 10;

impl Plan {
    /// Whether jobs of both can stand in one submit description: all that does not go into a job's row or its sandbox is the
    /// same.
    #[must_use]
    pub fn same_description(&self, other: &Self) -> bool {
        // Without `..`: a new field does not compile before somebody has said where it goes.
        let Self { options, mini_cluster, jobs: _, image: _, named: _, command: _, env: _, outputs: _ } = self;
        *options == other.options && *mini_cluster == other.mini_cluster
    }
}

impl Planner {
    /// Parses a spec that asks for so many jobs.
    pub fn plan(&self, spec: &HTCJobSpec, jobs: usize) -> Result<Plan, PlanError> {
        if let Some(name) = spec.credentials_secret_name.as_ref().filter(|name| !crate::api::is_name(name)) {
            return Err(PlanError::Credentials(name.clone()));
        }
        check_items(spec)?;
        Ok(Plan {
            jobs,
            image: Image::resolve(&spec.script.image, &self.images)?,
            named: spec.image().to_owned(),
            command: Command::parse(&spec.script.command)?,
            options: options(spec, &self.policy)?,
            env: env(spec)?,
            outputs: outputs(spec)?,
            mini_cluster: spec.mini_cluster.is_some(),
        })
    }

    /// The user's variables, names and values.
    pub fn variables(spec: &HTCJobSpec) -> Result<Vec<(String, String)>, PlanError> {
        env(spec)
    }

    /// Whether the items, or where they are, can be what the spec says.
    pub fn check_items(spec: &HTCJobSpec) -> Result<(), PlanError> {
        check_items(spec)
    }

    /// Number of jobs that the spec asks for; `read`: how many items were read from its ConfigMap.
    pub fn queue(spec: &HTCJobSpec, read: Option<u32>) -> Result<u32, PlanError> {
        let asked = read.map(i64::from).or_else(|| spec.jobs());
        let asked = asked.ok_or_else(|| PlanError::ItemsFrom("the items have not been read".to_owned()))?;
        u32::try_from(asked).ok().filter(|_| (1..=MAX_QUEUE).contains(&asked)).ok_or(PlanError::Queue(asked))
    }

    /// Which of the jobs of the queue are to run, if the spec says so: in any order, and overlapping or not.
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

    /// Folder that the jobs of an object are submitted from.
    #[must_use]
    pub fn sandbox(&self, uid: &Uid) -> PathBuf {
        self.data.join("sandbox").join(uid.as_str())
    }

    /// Folder that the output of an object's jobs comes to.
    #[must_use]
    pub fn output(&self, name: &ObjectName, uid: &Uid) -> PathBuf {
        self.named(name).join(short(uid))
    }

    pub(super) fn named(&self, name: &ObjectName) -> PathBuf {
        self.output_dir.join("htc_out").join(&name.namespace).join(&name.name)
    }

    /// Folder that the output of one job comes to.
    #[must_use]
    pub fn job_output(&self, name: &ObjectName, uid: &Uid, index: Index) -> PathBuf {
        self.output(name, uid).join(index.to_string())
    }

    /// Writes the files of the sandbox and makes the folders that the output arrives in. What is there as it should be stays.
    pub fn prepare(
        &self,
        name: &ObjectName,
        uid: &Uid,
        plan: &Plan,
        source: &str,
        indices: &Indices,
    ) -> Result<(), String> {
        let token = self.callback.as_ref().map(|reporting| (reporting, reporting.keys.current().token(uid)));
        let payload = Payload {
            name: &name.name,
            image: &plan.image,
            named: &plan.named,
            command: &plan.command,
            source,
            binds: &self.binds,
            callback: token.as_ref().map(|(reporting, token)| Callback {
                url: &reporting.url,
                source: &reporting.source,
                uid: uid.as_str(),
                token,
            }),
            env: &plan.env,
            outputs: &plan.outputs,
        };
        let files = sandbox_files(&payload).map_err(|error| error.to_string())?;
        let sandbox = self.sandbox(uid);
        let failed = |path: &Path| {
            let path = path.display().to_string();
            move |error: std::io::Error| format!("cannot write {path}: {error}; check the operator's data volume")
        };
        failpoint::at(Point::BeforeSandboxWritten);
        make_folder(&sandbox).map_err(failed(&sandbox))?;
        for file in files {
            let path = sandbox.join(file.name);
            if fs::read(&path).map_or(true, |there| there != file.contents) {
                write_whole(&path, file.mode, &file.contents).map_err(failed(&path))?;
            }
        }
        failpoint::at(Point::AfterSandboxWritten);
        self.make_output(name, uid, indices)
    }

    /// Makes the folders that the output of these jobs arrives in, and the link `latest` to the place that it goes to.
    pub fn make_output(&self, name: &ObjectName, uid: &Uid, indices: &Indices) -> Result<(), String> {
        let failed = |path: &Path| {
            let path = path.display().to_string();
            move |error: std::io::Error| format!("cannot make {path}: {error}; check the operator's data volume")
        };
        failpoint::at(Point::BeforeOutputFolders);
        for index in indices.iter() {
            let folder = self.job_incoming(name, uid, index);
            make_folder(&folder).map_err(failed(&folder))?;
        }
        let link = self.named(name).join("latest");
        if fs::read_link(&link).is_ok_and(|target| target == Path::new(short(uid))) {
            failpoint::at(Point::AfterOutputFolders);
            return Ok(());
        }
        let new = self.named(name).join(format!(".latest-{}", short(uid)));
        let _ = fs::remove_file(&new);
        symlink(short(uid), &new).and_then(|()| fs::rename(&new, &link)).map_err(failed(&link))?;
        failpoint::at(Point::AfterOutputFolders);
        Ok(())
    }
}

/// The user's submit commands and the fields that stand for one. What is given twice is an error, as it is in htcopts.
fn options(spec: &HTCJobSpec, policy: &Policy) -> Result<HtcOpts, PlanError> {
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

fn check_items(spec: &HTCJobSpec) -> Result<(), PlanError> {
    if let Some(ItemsFrom { config_map_key_ref: ConfigMapKeyRef { name, key } }) = &spec.items_from {
        if !spec.items.is_empty() {
            return Err(PlanError::ItemsFrom("spec.items is there as well: write one of them".to_owned()));
        }
        let is_key = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        if !crate::api::is_name(name) || key.is_empty() || !key.chars().all(is_key) {
            return Err(PlanError::ItemsFrom(format!(
                "{name:?} and {key:?} are no name of a ConfigMap and one of its keys"
            )));
        }
    }
    let items = &spec.items;
    if items.is_empty() {
        return Ok(());
    }
    let jobs = spec.jobs().unwrap_or_default();
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

fn env(spec: &HTCJobSpec) -> Result<Vec<(String, String)>, PlanError> {
    let name_fits = |name: &str| {
        name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    let mut names = std::collections::HashSet::new();
    for EnvVar { name, value } in &spec.env {
        if !name_fits(name) {
            return Err(PlanError::Env(format!(
                "{name:?} is not a valid name for a variable: use letters, digits and `_`"
            )));
        }
        if ["HTCPROCID", "HTC_ITEM", "JOB_NAME"].contains(&name.as_str()) {
            return Err(PlanError::Env(format!("{name} is set by htc-operator; choose another name")));
        }
        if !names.insert(name) {
            return Err(PlanError::Env(format!("{name} is there twice; leave one out")));
        }
        if value.contains('\0') {
            return Err(PlanError::Env(format!("the value of {name} has a NUL character, which no variable can have")));
        }
    }
    if spec.env.iter().map(|variable| variable.name.len() + variable.value.len()).sum::<usize>() > MAX_ENV_BYTES {
        return Err(PlanError::Env("it is larger than 64 KiB; put what is long into the script".to_owned()));
    }
    Ok(spec.env.iter().map(|variable| (variable.name.clone(), variable.value.clone())).collect())
}

fn outputs(spec: &HTCJobSpec) -> Result<Vec<OutputPattern>, PlanError> {
    if spec.outputs.len() > MOST_OUTPUTS {
        return Err(PlanError::Outputs(format!("write at most {MOST_OUTPUTS}: one pattern can match many files")));
    }
    let parse = |text: &String| OutputPattern::parse(text).map_err(|error| PlanError::Outputs(error.to_string()));
    spec.outputs.iter().map(parse).collect()
}

/// The first eight characters of a uid.
pub(super) fn short(uid: &Uid) -> &str {
    uid.as_str().get(..8).unwrap_or(uid.as_str())
}

pub(super) fn make_folder(path: &Path) -> std::io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o755).create(path)
}

/// Writes a file under another name first: no reader sees half of it. It is not brought to the disk: after a power failure
/// it is compared with what it should be before it is used again.
fn write_whole(path: &Path, mode: u32, contents: &[u8]) -> std::io::Result<()> {
    let new = path.with_extension("new");
    let _ = fs::remove_file(&new);
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&new)?;
    file.write_all(contents)?;
    fs::rename(&new, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_with_workers_of_their_own_are_not_described_with_others() {
        let plan = |mini_cluster| Plan {
            jobs: 1,
            image: Image::Registry("i".to_owned()),
            named: "i".to_owned(),
            command: Command::parse("sh").unwrap(),
            options: HtcOpts::default(),
            env: Vec::new(),
            outputs: Vec::new(),
            mini_cluster,
        };
        assert!(plan(true).same_description(&plan(true)) && !plan(true).same_description(&plan(false)));
    }

    #[test]
    fn indexes_are_of_the_queue() {
        let indexes = |text: &str| {
            let spec = HTCJobSpec { indexes: Some(text.to_owned()), ..HTCJobSpec::default() };
            Planner::indexes(&spec, 10).map(|set| set.map(|set| set.to_string())).map_err(|error| error.to_string())
        };
        assert_eq!(Planner::indexes(&HTCJobSpec::default(), 10).unwrap(), None);
        assert_eq!(indexes("7,2-4,3-5,0"), Ok(Some("0,2-5,7".to_owned())));
        assert_eq!(indexes("9"), Ok(Some("9".to_owned())));
        for (wrong, piece) in [("3,10", "10"), ("8-10", "8-10"), ("4-3", "4-3"), ("1,,2", ""), ("x", "x"), ("", "")] {
            let said =
                format!("spec.indexes: {piece:?} is neither an index from 0 to 9 nor a range of them such as 3-7");
            assert_eq!(indexes(wrong), Err(said), "{wrong}");
        }
    }
}
