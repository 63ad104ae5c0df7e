//! What the jobs of one HTCJob are to run, and where their files lie.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::api::{HTCJobSpec, MAX_QUEUE};
use crate::condor::htcopts::HtcOpts;
use crate::condor::payload::{Callback, Command, Image, ImageMap, Payload, sandbox_files};
use crate::failpoint::{self, Point};
use crate::key::Keys;
use crate::ledger::ObjectName;
use crate::machine::indices::Indices;
use crate::machine::{Index, Uid};

/// Turns specs into plans.
#[derive(Clone, Debug)]
pub struct Planner {
    /// The operator's data folder.
    pub data: PathBuf,
    /// Image names and their folders.
    pub images: ImageMap,
    /// Folders bound into the container.
    pub binds: Vec<String>,
    /// Submit commands for every job.
    pub site_defaults: HtcOpts,
    /// Where jobs report, if they do.
    pub callback: Option<Arc<Reporting>>,
}

/// Where jobs report, and what their tokens are made with.
#[derive(Debug)]
pub struct Reporting {
    /// URL of the receiver, as worker nodes reach it.
    pub url: String,
    /// `source` of their events.
    pub source: String,
    /// The keys of the tokens.
    pub keys: Arc<Keys>,
}

/// What the jobs of one HTCJob are to run: its spec, parsed.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Number of jobs.
    pub queue: u32,
    /// The container image.
    pub image: Image,
    /// The program in it.
    pub command: Command,
    /// The script.
    pub source: String,
    /// The user's submit commands.
    pub options: HtcOpts,
}

/// Why a spec cannot be run; the message says what to write instead.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The number of jobs.
    #[error("spec.queue is {0}: write a number from 1 to {MAX_QUEUE}")]
    Queue(i64),
    /// The image.
    #[error("spec.script.image: {0}")]
    Image(#[from] crate::condor::payload::ImageError),
    /// The command.
    #[error("spec.script.command: {0}")]
    Command(#[from] crate::condor::payload::CommandError),
    /// The submit commands.
    #[error("spec.{0}")]
    Options(#[from] crate::condor::htcopts::HtcOptsError),
}

impl Planner {
    /// Parses a spec.
    pub fn plan(&self, spec: &HTCJobSpec) -> Result<Plan, PlanError> {
        let asked = spec.jobs();
        let queue =
            u32::try_from(asked).ok().filter(|_| (1..=MAX_QUEUE).contains(&asked)).ok_or(PlanError::Queue(asked))?;
        Ok(Plan {
            queue,
            image: Image::resolve(&spec.script.image, &self.images)?,
            command: Command::parse(&spec.script.command)?,
            source: spec.script.source.clone(),
            options: HtcOpts::parse(spec.htcopts.as_deref().unwrap_or_default())?,
        })
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

    fn named(&self, name: &ObjectName) -> PathBuf {
        self.data.join("htc_out").join(&name.namespace).join(&name.name)
    }

    /// Folder that the output of one job comes to.
    #[must_use]
    pub fn job_output(&self, name: &ObjectName, uid: &Uid, index: Index) -> PathBuf {
        self.output(name, uid).join(index.to_string())
    }

    /// Writes the files of the sandbox and makes the output folders. What is there already stays.
    pub fn prepare(&self, name: &ObjectName, uid: &Uid, plan: &Plan, indices: &Indices) -> Result<(), String> {
        let token = self.callback.as_ref().map(|reporting| (reporting, reporting.keys.token(uid)));
        let payload = Payload {
            name: &name.name,
            image: &plan.image,
            command: &plan.command,
            source: &plan.source,
            binds: &self.binds,
            callback: token.as_ref().map(|(reporting, token)| Callback {
                url: &reporting.url,
                source: &reporting.source,
                uid: uid.as_str(),
                token,
            }),
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
            if !path.exists() {
                write_whole(&path, file.mode, &file.contents).map_err(failed(&path))?;
            }
        }
        failpoint::at(Point::AfterSandboxWritten);
        self.make_output(name, uid, indices)
    }

    /// Makes the output folders of these jobs, and the link `latest` beside them.
    pub fn make_output(&self, name: &ObjectName, uid: &Uid, indices: &Indices) -> Result<(), String> {
        let failed = |path: &Path| {
            let path = path.display().to_string();
            move |error: std::io::Error| format!("cannot make {path}: {error}; check the operator's data volume")
        };
        failpoint::at(Point::BeforeOutputFolders);
        for index in indices.iter() {
            let folder = self.job_output(name, uid, index);
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

/// The first eight characters of a uid.
fn short(uid: &Uid) -> &str {
    uid.as_str().get(..8).unwrap_or(uid.as_str())
}

fn make_folder(path: &Path) -> std::io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o755).create(path)
}

/// Writes a file under another name first, so that it is there whole or not at all.
fn write_whole(path: &Path, mode: u32, contents: &[u8]) -> std::io::Result<()> {
    let new = path.with_extension("new");
    let _ = fs::remove_file(&new);
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&new)?;
    file.write_all(contents)?;
    file.sync_all()?;
    fs::rename(&new, path)
}
