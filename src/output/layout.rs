//! Folders of sandboxes and of output.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, symlink};
use std::path::{Path, PathBuf};

use htc_api::ObjectName;
use htc_machine::indices::Indices;
use htc_machine::{Index, Uid};
use htc_support::failpoint;
use htc_support::failpoint::Point;

use super::error::VolumeError;

/// Folders of sandboxes and of output, and limits of the output.
#[derive(Clone, Debug)]
pub struct OutputLayout {
    /// The operator's data folder.
    pub data: PathBuf,
    /// Folder that contains `htc_out`.
    pub output_dir: PathBuf,
    /// Maximum MiB of one job's output.
    pub output_limit: Option<u64>,
    /// Bytes of the output's volume that are kept free.
    pub keep_free: u64,
}

impl OutputLayout {
    /// Returns the folder that the jobs of an object are submitted from.
    #[must_use]
    pub fn sandbox(&self, uid: &Uid) -> PathBuf {
        self.data.join("sandbox").join(uid.as_str())
    }

    /// Returns the folder of the output of an object's jobs.
    #[must_use]
    pub fn output(&self, name: &ObjectName, uid: &Uid) -> PathBuf {
        Self::output_below(&self.output_dir, name, uid)
    }

    /// As [`Self::output`], below `output_dir`.
    #[must_use]
    pub fn output_below(output_dir: &Path, name: &ObjectName, uid: &Uid) -> PathBuf {
        named_below(output_dir, name).join(short(uid))
    }

    pub(super) fn named(&self, name: &ObjectName) -> PathBuf {
        named_below(&self.output_dir, name)
    }

    /// Returns the folder of the output of one job.
    #[must_use]
    pub fn job_output(&self, name: &ObjectName, uid: &Uid, index: Index) -> PathBuf {
        self.output(name, uid).join(index.to_string())
    }

    /// Creates the folders in which the output of these jobs arrives, and the link `latest` to the final folder.
    pub fn make_output(&self, name: &ObjectName, uid: &Uid, indices: &Indices) -> Result<(), VolumeError> {
        failpoint::at(Point::BeforeOutputFolders);
        for index in indices.iter() {
            let folder = self.job_incoming(name, uid, index);
            make_folder(&folder).map_err(VolumeError::failed("make", &folder))?;
        }
        let link = self.named(name).join("latest");
        if fs::read_link(&link).is_ok_and(|target| target == Path::new(short(uid))) {
            failpoint::at(Point::AfterOutputFolders);
            return Ok(());
        }
        let new = self.named(name).join(format!(".latest-{}", short(uid)));
        let _ = fs::remove_file(&new);
        symlink(short(uid), &new).and_then(|()| fs::rename(&new, &link)).map_err(VolumeError::failed("make", &link))?;
        failpoint::at(Point::AfterOutputFolders);
        Ok(())
    }
}

fn named_below(output_dir: &Path, name: &ObjectName) -> PathBuf {
    output_dir.join("htc_out").join(&name.namespace).join(&name.name)
}

/// Returns the first eight characters of a uid.
pub(super) fn short(uid: &Uid) -> &str {
    uid.as_str().get(..8).unwrap_or(uid.as_str())
}

pub fn make_folder(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o755).create(path)
}
