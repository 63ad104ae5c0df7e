//! Kueue's controller beside a control plane, with its CRDs and webhooks.

use std::fs;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};

use crate::account::Account;
use crate::assets::locate_kueue;
use crate::error::{Doing, Error, Result};
use crate::kube::Kube;
use crate::kueue_recipe::KueueRecipe;
use crate::owned::{Owned, Spec};
use crate::ports::Port;
use crate::scratch::Scratch;
use crate::wait::wait_for;

/// Until it answers: a few seconds on a quiet machine.
const READY: Duration = Duration::from_mins(2);
const STOP: Duration = Duration::from_secs(15);

/// The groups whose objects its webhooks look at here.
const LOOKED_AT: [&str; 2] = ["kueue.x-k8s.io", "batch"];

/// A running Kueue; ends with this value.
#[derive(Debug)]
pub struct Kueue {
    // Fields drop in this order.
    process: Mutex<Option<Owned>>,
    spec: Spec,
    port: Port,
    scratch: Scratch,
}

impl Kueue {
    /// Installs it beside this control plane and starts it; returns when it answers.
    pub fn start(kube: &Kube) -> Result<Self> {
        Self::start_with(kube, &json!({}))
    }

    /// The same with these fields of its configuration beside, or instead of, the usual ones.
    pub fn start_with(kube: &Kube, more: &Value) -> Result<Self> {
        let home = locate_kueue()?;
        let (scratch, port) = (Scratch::new()?, Port::reserve()?);
        install(kube, &home)?;
        let certs = scratch.dir("certs")?;
        let account = Account::unprivileged();
        let authority = kube.authority();
        for (file, from) in [("tls.crt", authority.server_certificate()), ("tls.key", authority.server_key())] {
            account.write(&certs.join(file), fs::read(&from).doing("reading", &from)?, 0o600)?;
        }
        let config = scratch.path().join("config.json");
        account.write(&config, configuration(port.number, &certs, more).to_string(), 0o644)?;
        let spec = Spec::new(KueueRecipe::program(&home), scratch.path().join("kueue.log"))
            .env("KUEUE_METRICS_CERTS", &certs)
            .arg(format!("--config={}", config.display()))
            .arg(format!("--kubeconfig={}", kube.kubeconfig().display()))
            .arg("--feature-gates=VisibilityOnDemand=false,MultiKueue=false");
        let kueue = Self { process: Mutex::new(None), spec, port, scratch };
        kueue.run()?;
        kube.apply_stdin(&webhooks(kube, &home, kueue.port.number)?)?;
        kueue.wait_ready(kube)?;
        Ok(kueue)
    }

    fn run(&self) -> Result<()> {
        *self.process() = Some(Owned::spawn(&self.spec)?);
        Ok(())
    }

    /// Starts it again after [`Self::stop`].
    pub fn start_again(&self, kube: &Kube) -> Result<()> {
        self.run()?;
        self.wait_ready(kube)
    }

    /// Stops it. Its webhooks are asked all the same: nothing of it can be changed meanwhile.
    pub fn stop(&self) -> Result<()> {
        if let Some(process) = self.process().take() {
            process.terminate()?;
            process.wait_timeout(STOP)?;
        }
        Ok(())
    }

    /// What it has logged.
    #[must_use]
    pub fn log(&self) -> String {
        self.process().as_ref().map(Owned::log_text).unwrap_or_default()
    }

    fn wait_ready(&self, kube: &Kube) -> Result<()> {
        let flavor = json!({
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": { "name": "testbed-asks" },
        });
        let path = self.scratch.path().join("flavor.json");
        Account::unprivileged().write(&path, flavor.to_string(), 0o644)?;
        let file = path.display().to_string();
        wait_for("Kueue to answer", READY, || {
            self.process().as_ref().map_or(Ok(()), Owned::must_run).map_err(|error| error.to_string())?;
            kube.kubectl_ok(&["create", "--dry-run=server", "-f", &file]).map(drop).map_err(|error| error.to_string())
        })
    }

    fn process(&self) -> MutexGuard<'_, Option<Owned>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn configuration(port: u16, certs: &std::path::Path, more: &Value) -> Value {
    let mut all = json!({
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "health": { "healthProbeBindAddress": "0" },
        "metrics": { "bindAddress": "0" },
        "leaderElection": { "leaderElect": false },
        "webhook": { "host": "127.0.0.1", "port": port, "certDir": certs },
        "internalCertManagement": { "enable": false },
        "integrations": { "frameworks": ["batch/job"] },
    });
    for (field, value) in more.as_object().into_iter().flatten() {
        all[field] = value.clone();
    }
    all
}

/// Its kinds, and its namespace.
fn install(kube: &Kube, home: &std::path::Path) -> Result<()> {
    let crds = KueueRecipe::crds(home).display().to_string();
    // Some are too large for the annotation of a client's apply.
    kube.kubectl_ok(&["apply", "--server-side", "-f", &crds])?;
    kube.kubectl_ok(&["wait", "--for=condition=Established", "--timeout=50s", "-f", &crds])?;
    kube.apply_stdin(r#"{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kueue-system"}}"#)?;
    wait_for("Workloads to be served", READY, || {
        kube.kubectl_ok(&["get", "workloads.kueue.x-k8s.io", "--all-namespaces"]).map(drop)
    })
}

/// Its webhooks, at an address of this machine instead of a Service.
fn webhooks(kube: &Kube, home: &std::path::Path, port: u16) -> Result<String> {
    let file: PathBuf = KueueRecipe::webhooks(home);
    let output = kube.kubectl_ok(&["create", "--dry-run=client", "-o", "json", "-f", &file.display().to_string()])?;
    let unreadable = |error: serde_json::Error| Error::Machine {
        problem: format!("the webhooks of Kueue cannot be read: {error}"),
        remedy: "run `testbed setup --kueue` again".to_owned(),
    };
    let authority = kube.authority().ca();
    let authority = BASE64.encode(fs::read(&authority).doing("reading", &authority)?);
    let mut all = Vec::new();
    for object in serde_json::Deserializer::from_str(&output).into_iter::<Value>() {
        let mut object = object.map_err(unreadable)?;
        let Some(hooks) = object["webhooks"].as_array_mut() else { continue };
        hooks.retain(|hook| {
            let groups = hook["rules"][0]["apiGroups"].as_array().cloned().unwrap_or_default();
            groups.iter().any(|group| LOOKED_AT.iter().any(|looked_at| group == looked_at))
        });
        for hook in hooks {
            let path = hook["clientConfig"]["service"]["path"].as_str().unwrap_or_default().to_owned();
            let url = format!("https://127.0.0.1:{port}{path}");
            hook["clientConfig"] = json!({ "url": url, "caBundle": authority });
        }
        all.push(object);
    }
    Ok(json!({ "apiVersion": "v1", "kind": "List", "items": all }).to_string())
}
