//! An image registry that wants a login, under the name that docs/kubernetes-backend.md has for one.

use std::fs;
use std::process::Command;
use std::time::Duration;

use super::{ADDRESS, Cluster};
use crate::error::{Doing as _, Result};
use crate::owned::{Owned, Spec};
use crate::registry::HASHED;
pub(super) use crate::registry::LOGIN;
use crate::tool::run_ok;
use crate::wait::wait_for;

/// The page's, as kubelet's machine finds it: by /etc/hosts, and without TLS.
pub(super) const HOST: &str = "gitlab-registry.cern.ch";
/// Less than a second on a quiet machine.
const READY: Duration = Duration::from_mins(1);

/// Starts it without images; it ends with this value.
pub(super) fn start(cluster: &Cluster) -> Result<Owned> {
    let folder = cluster.scratch.path().join("registry");
    fs::create_dir(&folder).doing("making the folder", &folder)?;
    let store = folder.display();
    let config = format!(
        "version: 0.1\nlog: {{level: warn}}\nstorage: {{filesystem: {{rootdirectory: {store}/store}}}}\n\
         http: {{addr: '{ADDRESS}:80'}}\nauth: {{htpasswd: {{realm: team, path: {store}/accounts}}}}\n"
    );
    for (name, text) in [("config.yml", config.as_str()), ("accounts", HASHED)] {
        let path = folder.join(name);
        fs::write(&path, text).doing("writing", &path)?;
    }
    // Port 80 is root's.
    let server = Spec::new(cluster.assets.registry(), folder.join("log")).privileged();
    let server = Owned::spawn(&server.arg("serve").arg(folder.join("config.yml")))?;
    let head = |login: &[&str]| {
        let mut curl = Command::new("curl");
        curl.args(["-q", "--silent", "--show-error", "--noproxy", "*", "--output", "/dev/null", "--write-out"]);
        curl.arg("%{http_code}").args(login).arg(format!("http://{HOST}/v2/"));
        run_ok("asking the image registry", &mut curl, "", READY)
    };
    for (login, wanted) in [(&["--user", LOGIN][..], "200"), (&[], "401")] {
        wait_for("the image registry", READY, || match head(login) {
            Ok(status) if status == wanted => Ok(()),
            Ok(status) => Err(status),
            Err(error) => Err(error.to_string()),
        })
        .map_err(|error| server.must_run().err().unwrap_or(error))?;
    }
    Ok(server)
}
