//! Writes the sandbox of an HTCJob: the files that its jobs are submitted with.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;

use htc_api::ObjectName;
use htc_machine::Uid;
use htc_machine::indices::Indices;
use htc_submit::description::NodeFaultRules;
use htc_submit::htcopts::HtcOpts;
use htc_submit::job_token::KeyRing;
use htc_submit::payload::{Callback, ImageCache, Payload, PayloadError, sandbox_files};
use htc_submit::spec::{KeptInputs, Plan, SpecRules, Texts};
use htc_support::failpoint;
use htc_support::failpoint::Point;

use crate::output::error::VolumeError;
use crate::output::layout::{OutputLayout, make_folder};

/// Settings of the site for all submissions.
#[derive(Clone, Debug)]
pub struct Planner {
    /// Rules of the site for specs.
    pub rules: SpecRules,
    /// Paths of sandboxes and output.
    pub layout: OutputLayout,
    /// Folders to bind into the container.
    pub binds: Vec<String>,
    /// Folder of the nodes for images of registries.
    pub image_cache: Option<String>,
    /// Maximum bytes of `spec.files` of all jobs of one HTCJob together; 0 for no limit.
    pub inputs_limit: u64,
    /// Submit commands for every job.
    pub site_defaults: HtcOpts,
    /// When jobs run again after faults of their nodes.
    pub node_faults: NodeFaultRules,
    /// Where jobs send reports, if they do.
    pub callback: Option<Arc<CallbackConfig>>,
}

/// Receiver of the jobs' reports, and the keys of their tokens.
#[derive(Debug)]
pub struct CallbackConfig {
    /// URL of the receiver, as worker nodes reach it.
    pub url: String,
    /// `source` attribute of the events.
    pub source: String,
    /// Keys that sign the tokens.
    pub keys: KeyRing,
}

/// Reason why the files of an HTCJob were not written.
#[derive(Debug, thiserror::Error)]
pub(super) enum SandboxError {
    /// There is no plan for the jobs.
    #[error("the spec cannot be read any more")]
    UnreadableSpec,
    #[error(transparent)]
    Payload(#[from] PayloadError),
    #[error(transparent)]
    Volume(#[from] VolumeError),
}

impl Planner {
    /// Writes the files of the sandbox and creates the folders for the output. Files that are up to date are not
    /// rewritten.
    pub(super) fn prepare(
        &self,
        name: &ObjectName,
        uid: &Uid,
        plan: &Plan,
        texts: &Texts,
        inputs: &KeptInputs,
        indices: &Indices,
    ) -> Result<(), SandboxError> {
        let token = self.callback.as_ref().map(|reporting| (reporting, reporting.keys.current().token(uid)));
        let env: Vec<(String, String)> = plan.env.plain.iter().chain(&inputs.variables).cloned().collect();
        let payload = Payload {
            name: &name.name,
            image: &plan.image,
            image_name: &plan.named,
            private: plan.private.is_some(),
            image_cache: self.image_cache.as_deref().map(|folder| ImageCache { folder, uid: uid.as_str() }),
            program: &plan.program,
            source: &texts.source,
            binds: &self.binds,
            volumes: plan.volumes.bound(),
            callback: token.as_ref().map(|(reporting, token)| Callback {
                url: &reporting.url,
                source: &reporting.source,
                uid: uid.as_str(),
                token,
            }),
            env: &env,
            files: &inputs.files,
            fetched: &plan.files.fetched,
            secret_files: &plan.files.secret,
            secret_env: &plan.env.secret,
            outputs: &plan.outputs,
        };
        let files = sandbox_files(&payload)?;
        let sandbox = self.layout.sandbox(uid);
        failpoint::at(Point::BeforeSandboxWritten);
        make_folder(&sandbox).map_err(VolumeError::failed("write", &sandbox))?;
        for file in files {
            let path = sandbox.join(file.name);
            if fs::read(&path).map_or(true, |there| there != file.contents) {
                write_whole(&path, file.mode, &file.contents).map_err(VolumeError::failed("write", &path))?;
            }
        }
        failpoint::at(Point::AfterSandboxWritten);
        Ok(self.layout.make_output(name, uid, indices)?)
    }
}

/// Writes a file atomically, by renaming a temporary one. It is not flushed to disk: after a power failure its content
/// is compared again before it is used.
fn write_whole(path: &Path, mode: u32, contents: &[u8]) -> std::io::Result<()> {
    let new = path.with_extension("new");
    let _ = fs::remove_file(&new);
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&new)?;
    file.write_all(contents)?;
    fs::rename(&new, path)
}
