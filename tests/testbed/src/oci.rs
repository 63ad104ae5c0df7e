//! Images without a registry: an OCI archive made of folders, as `ctr image import` takes it.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::error::{Doing, Result};
use crate::tool::run_ok;

const LIMIT: Duration = Duration::from_mins(3);
const MEDIA: &str = "application/vnd.oci.image";

/// Writes an image called `name` into the archive `file`: one layer for each folder, and `config`, a JSON object with
/// `Entrypoint`, `User` and the like. `work` is an empty folder for it.
pub(crate) fn archive(name: &str, layers: &[&Path], config: &str, work: &Path, file: &Path) -> Result<()> {
    let blobs = work.join("blobs/sha256");
    fs::create_dir_all(&blobs).doing("making the folder", &blobs)?;
    let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let mut described = Vec::new();
    let mut digests = Vec::new();
    for folder in layers {
        let layer = work.join("layer");
        let mut tar = Command::new("tar");
        tar.args([
            "--create",
            "--sort=name",
            "--owner=0",
            "--group=0",
            "--numeric-owner",
            "--exclude=./.complete",
            "--file",
        ]);
        run_ok("packing an image", tar.arg(&layer).arg("--directory").arg(folder).arg("."), "", LIMIT)?;
        let blob = store(&layer, &blobs)?;
        described.push(blob.described(&format!("{MEDIA}.layer.v1.tar"), ""));
        digests.push(format!("\"sha256:{}\"", blob.digest));
    }
    let text = format!(
        r#"{{"architecture":"{architecture}","os":"linux","config":{config},"rootfs":{{"type":"layers","diff_ids":[{}]}}}}"#,
        digests.join(",")
    );
    let config = store_text(&text, work, &blobs)?.described(&format!("{MEDIA}.config.v1+json"), "");
    let text = format!(
        r#"{{"schemaVersion":2,"mediaType":"{MEDIA}.manifest.v1+json","config":{config},"layers":[{}]}}"#,
        described.join(",")
    );
    let more = format!(
        r#","platform":{{"architecture":"{architecture}","os":"linux"}},"annotations":{{"io.containerd.image.name":"{name}"}}"#
    );
    let manifest = store_text(&text, work, &blobs)?.described(&format!("{MEDIA}.manifest.v1+json"), &more);
    for (name, text) in [
        ("oci-layout", r#"{"imageLayoutVersion":"1.0.0"}"#.to_owned()),
        ("index.json", format!(r#"{{"schemaVersion":2,"manifests":[{manifest}]}}"#)),
    ] {
        let path = work.join(name);
        fs::write(&path, text).doing("writing", &path)?;
    }
    let mut tar = Command::new("tar");
    tar.args(["--create", "--file"]).arg(file).arg("--directory").arg(work).args(["oci-layout", "index.json", "blobs"]);
    run_ok("packing an image", &mut tar, "", LIMIT)?;
    crate::cache::remove(work)
}

struct Blob {
    digest: String,
    size: u64,
}

impl Blob {
    fn described(&self, media: &str, more: &str) -> String {
        format!(r#"{{"mediaType":"{media}","digest":"sha256:{}","size":{}{more}}}"#, self.digest, self.size)
    }
}

fn store_text(text: &str, work: &Path, blobs: &Path) -> Result<Blob> {
    let path = work.join("text");
    fs::write(&path, text).doing("writing", &path)?;
    store(&path, blobs)
}

/// Moves a file to where its digest says.
fn store(file: &Path, blobs: &Path) -> Result<Blob> {
    let line = run_ok("computing a digest", Command::new("sha256sum").arg(file), "", LIMIT)?;
    let digest = line.split_whitespace().next().unwrap_or_default().to_owned();
    let size = fs::metadata(file).doing("looking at", file)?.len();
    fs::rename(file, blobs.join(&digest)).doing("moving", file)?;
    Ok(Blob { digest, size })
}
