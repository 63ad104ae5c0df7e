//! An image registry on loopback, without TLS.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::account::Account;
use crate::assets::Assets;
use crate::error::{Error, Result};
use crate::owned::{Owned, Spec};
use crate::ports::Port;
use crate::scratch::Scratch;
use crate::tool::run_ok;
use crate::wait::wait_for;

/// Less than a second on a quiet machine.
const READY: Duration = Duration::from_secs(60);
/// For one request, or one tool.
const CALL: Duration = Duration::from_mins(1);

/// Name and password of the one who may pull and push, if accounts are wanted.
pub(crate) const LOGIN: &str = "fsauerbu:YOUR_PASSWORD";
/// The same for the registry.
pub(crate) const HASHED: &str = "fsauerbu:$2y$05$htcoperatortestbedsale/Qg/GtHomGs333b814YNuvlzu5/2Qrm\n";

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// A running registry; ends with this value.
#[derive(Debug)]
pub struct Registry {
    // Fields drop in this order: the server before its folder.
    server: Owned,
    port: Port,
    /// Login that it wants.
    login: Option<&'static str>,
    pushing: Mutex<()>,
    scratch: Scratch,
}

impl Registry {
    /// Starts a registry without images and without accounts.
    pub fn start(assets: &Assets) -> Result<Self> {
        Self::launch(assets, None)
    }

    /// Starts a registry without images that wants [`LOGIN`].
    pub fn with_login(assets: &Assets) -> Result<Self> {
        Self::launch(assets, Some(LOGIN))
    }

    fn launch(assets: &Assets, login: Option<&'static str>) -> Result<Self> {
        assets.must_be_reachable()?;
        let scratch = Scratch::new()?;
        let port = Port::reserve()?;
        let store = scratch.dir("store")?;
        let accounts = scratch.path().join("accounts");
        Account::unprivileged().write(&accounts, HASHED, 0o644)?;
        let auth = format!("auth: {{htpasswd: {{realm: team, path: {}}}}}\n", accounts.display());
        let auth = login.map_or("", |_| auth.as_str());
        let config = format!(
            "version: 0.1\nlog:\n  level: warn\nstorage:\n  filesystem:\n    rootdirectory: {}\nhttp:\n  addr: 127.0.0.1:{}\n{auth}",
            store.display(),
            port.number
        );
        let file = scratch.path().join("config.yml");
        Account::unprivileged().write(&file, config, 0o644)?;
        let server = Spec::new(assets.registry(), scratch.path().join("registry.log")).arg("serve").arg(&file);
        let registry = Self { server: Owned::spawn(&server)?, port, login, pushing: Mutex::default(), scratch };
        wait_for("the image registry", READY, || registry.request(&["--head", &registry.url("")]))
            .map_err(|error| registry.server.must_run().err().unwrap_or(error))?;
        Ok(registry)
    }

    /// What stands before the name of an image in it: `127.0.0.1:port`.
    #[must_use]
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port.number)
    }

    /// How often the image of that name has been pulled, or its manifest at least.
    #[must_use]
    pub fn pulls(&self, name: &str) -> usize {
        let request = format!("\"GET /v2/{name}/manifests/");
        self.server.log_text().lines().filter(|line| line.contains(&request)).count()
    }

    /// Makes an image with one layer from an unpacked root folder; gives its digest. `name` is as in `team/tiny`.
    pub fn push(&self, name: &str, tag: &str, root: &Path) -> Result<String> {
        self.push_with(name, tag, root, "{}")
    }

    /// Makes an image with a `config`, a JSON object with `Entrypoint`, `Cmd` and the like; gives its digest.
    pub fn push_with(&self, name: &str, tag: &str, root: &Path, config: &str) -> Result<String> {
        // The files of each push have the same names.
        let _one = self.pushing.lock().unwrap_or_else(PoisonError::into_inner);
        let layer = self.scratch.path().join("layer.tar");
        let mut tar = Command::new("tar");
        tar.args(["--create", "--sort=name", "--owner=0", "--group=0", "--mtime=@0", "--file"]).arg(&layer);
        run_ok("packing an image", tar.arg("--directory").arg(root).arg("."), "", CALL)?;
        let (layer_digest, layer_size) = self.upload(name, &layer)?;
        let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
        let config = format!(
            r#"{{"architecture":"{architecture}","os":"linux","config":{config},"rootfs":{{"type":"layers","diff_ids":["{layer_digest}"]}}}}"#
        );
        let (config_digest, config_size) = self.upload(name, &self.file("config.json", &config)?)?;
        let manifest = format!(
            r#"{{"schemaVersion":2,"mediaType":"{MANIFEST}",
"config":{{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"{config_digest}","size":{config_size}}},
"layers":[{{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":"{layer_digest}","size":{layer_size}}}]}}"#
        );
        let manifest = self.file("manifest.json", &manifest)?;
        self.put(&self.url(&format!("{name}/manifests/{tag}")), MANIFEST, &manifest)?;
        digest(&manifest)
    }

    /// Uploads a blob; gives its digest and its size.
    fn upload(&self, name: &str, blob: &Path) -> Result<(String, u64)> {
        let answer = self.request(&["--request", "POST", "--include", &self.url(&format!("{name}/blobs/uploads/"))])?;
        let place = answer.lines().find_map(|line| {
            let (field, value) = line.split_once(':')?;
            field.eq_ignore_ascii_case("location").then(|| value.trim().to_owned())
        });
        let place = place.ok_or_else(|| Error::Machine {
            problem: format!("the image registry's answer to an upload has no Location: {answer}"),
            remedy: "look into its log".to_owned(),
        })?;
        let digest = digest(blob)?;
        let and = if place.contains('?') { '&' } else { '?' };
        self.put(&format!("{place}{and}digest={digest}"), "application/octet-stream", blob)?;
        let size = fs::metadata(blob).map_or(0, |file| file.len());
        Ok((digest, size))
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}/v2/{path}", self.address())
    }

    fn file(&self, name: &str, text: &str) -> Result<std::path::PathBuf> {
        let path = self.scratch.path().join(name);
        Account::unprivileged().write(&path, text, 0o644)?;
        Ok(path)
    }

    fn put(&self, url: &str, kind: &str, file: &Path) -> Result<()> {
        let (kind, data) = (format!("Content-Type: {kind}"), format!("@{}", file.display()));
        self.request(&["--request", "PUT", "--header", &kind, "--data-binary", &data, url]).map(drop)
    }

    /// No proxy of this machine stands between the test bed and itself.
    fn request(&self, arguments: &[&str]) -> Result<String> {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--fail-with-body", "--noproxy", "*"]).args(arguments);
        let user = self.login.iter().flat_map(|login| ["--user", login]);
        run_ok("asking the image registry", curl.args(user), "", CALL)
    }
}

/// A file's digest as registries write it.
fn digest(file: &Path) -> Result<String> {
    let line = run_ok("computing a digest", Command::new("sha256sum").arg(file), "", CALL)?;
    Ok(format!("sha256:{}", line.split_whitespace().next().unwrap_or_default()))
}
