//! A site's copy of the checkout, and kubectl in it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::Cluster;
use crate::demo::{failed, run};
use crate::error::{Doing as _, Result};
use crate::htcondor_image::own_programs;
use crate::oci;
use crate::tool::run_ok;
use crate::wait::wait_for;

const LIMIT: Duration = Duration::from_mins(3);
/// For each step; most take seconds on a quiet machine.
pub(super) const PATIENCE: Duration = Duration::from_mins(10);

/// The image `htcondor`, as examples/pools name it.
pub(super) const HTCONDOR: &str = "registry.example.org/htcondor:1";
/// What jobs of examples/pools run in, as the node calls it.
pub(super) const PYTHON: &str = "docker.io/library/python:3.12";

/// What the operator itself keeps.
const OPERATOR_VOLUMES: [&str; 2] = ["operator-1", "operator-2"];

/// Makes volumes the default of claims.
const CLASS: &str = r#"
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata:
  name: node
  annotations: {storageclass.kubernetes.io/is-default-class: "true"}
provisioner: kubernetes.io/no-provisioner
volumeBindingMode: WaitForFirstConsumer
"#;

/// A volume of the node, for a claim that asks.
const VOLUME: &str = r"apiVersion: v1
kind: PersistentVolume
metadata:
  name: NAME
spec:
  capacity: {storage: 50Gi}
  accessModes: [ReadWriteOnce]
  storageClassName: node
  local: {path: FOLDER}
  nodeAffinity:
    required:
      nodeSelectorTerms:
        - matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [node]}]
";

/// Workers ask for whole cores, and this machine may have two: each pod is counted as if it asked for little. What it may take is as it says.
const FEW_CORES: &str = r#"---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata:
  name: few-cores
spec:
  matchConstraints:
    resourceRules:
      - {apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}
  failurePolicy: Fail
  reinvocationPolicy: Never
  mutations:
    - patchType: JSONPatch
      jsonPatch:
        expression: >-
          object.spec.containers[0].?resources.?requests[?"cpu"].hasValue()
          ? [JSONPatch{op: "replace", path: "/spec/containers/0/resources/requests/cpu", value: "50m"}] : []
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata:
  name: few-cores
spec:
  policyName: few-cores
"#;

/// What who installs the operator has before him.
pub(super) struct Site<'a> {
    pub(super) cluster: &'a Cluster,
    /// The copy of the checkout's folders.
    pub(super) folder: PathBuf,
    /// The folder of the operator's program, and of `kubectl-htc`.
    programs: PathBuf,
}

impl<'a> Site<'a> {
    /// With the images and the volumes that it takes, the operator's image from `program`.
    pub(super) fn new(cluster: &'a Cluster, program: &Path, checkout: &Path) -> Result<Self> {
        let folder = cluster.scratch.path().join("site");
        fs::create_dir(&folder).doing("making the folder", &folder)?;
        let mut copy = Command::new("cp");
        copy.arg("-r").arg("--").args(["crd", "deploy", "docs", "examples"].map(|folder| checkout.join(folder)));
        run_ok("copying the checkout", copy.arg(&folder), "", LIMIT)?;
        let programs = program.parent().unwrap_or(checkout);
        let programs = programs.canonicalize().doing("finding", programs)?;
        let site = Self { cluster, folder, programs };
        site.images(program, checkout)?;
        cluster.kube.apply_stdin(CLASS)?;
        OPERATOR_VOLUMES.iter().try_for_each(|name| site.add_volume(name))?;
        cluster.kube.apply_stdin(FEW_CORES)?;
        Ok(site)
    }

    /// Makes a volume of the first node, for the next claim that asks: each pool takes one.
    pub(super) fn add_volume(&self, name: &str) -> Result<()> {
        let folder = self.cluster.scratch.path().join("volumes").join(name);
        fs::create_dir_all(&folder).doing("making the folder", &folder)?;
        let volume = VOLUME.replace("NAME", name).replace("FOLDER", &folder.display().to_string());
        self.cluster.kube.apply_stdin(&volume).map(drop)
    }

    /// The Dockerfile's stages without a container engine, and what jobs run in.
    fn images(&self, program: &Path, checkout: &Path) -> Result<()> {
        let dockerfile = checkout.join("Dockerfile");
        let text = fs::read_to_string(&dockerfile).doing("reading", &dockerfile)?;
        let (cluster, work) = (self.cluster, self.cluster.scratch.path());
        let layer = work.join("layer");
        let bin = layer.join("usr/local/bin");
        fs::create_dir_all(&bin).doing("making the folder", &bin)?;
        fs::copy(program, bin.join("htc-operator")).doing("copying", program)?;
        let operator = stage(&text, "")?;
        let config = format!(
            r#"{{"Entrypoint": {}, "Cmd": {}, "User": "{}", "Env": ["PATH={STANDARD}"]}}"#,
            instruction_argument(operator, "ENTRYPOINT")?,
            instruction_argument(operator, "CMD")?,
            instruction_argument(operator, "USER")?
        );
        self.import("docker.io/library/htc-operator:dev", &[cluster.assets.operator_image(), &layer], &config)?;
        let htcondor = stage(&text, " AS htcondor")?;
        let path = instruction_argument(htcondor, "ENV PATH")?.trim_start_matches('=').replace("$PATH", STANDARD);
        let config = format!(r#"{{"User": "{}", "Env": ["PATH={path}"]}}"#, instruction_argument(htcondor, "USER")?);
        let layer = work.join("htcondor-layer");
        own_programs(&self.programs, &layer)?;
        self.import(HTCONDOR, &[cluster.htcondor_image(), &layer], &config)?;
        self.import(PYTHON, &[cluster.assets.python()], &format!(r#"{{"Env": ["PATH={STANDARD}"]}}"#))
    }

    pub(super) fn import(&self, name: &str, layers: &[&Path], config: &str) -> Result<()> {
        self.image(name, layers, config, |archive| self.cluster.import(archive))
    }

    /// Puts an image into the registry that wants a login.
    pub(super) fn publish(&self, name: &str, layers: &[&Path], config: &str) -> Result<()> {
        self.image(name, layers, config, |archive| self.cluster.publish(archive, name))
    }

    fn image(&self, name: &str, layers: &[&Path], config: &str, then: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
        let work = self.cluster.scratch.path();
        let archive = work.join("image.tar");
        oci::archive(name, layers, config, &work.join("image"), &archive)?;
        then(&archive)?;
        fs::remove_file(&archive).doing("removing", &archive)
    }

    /// Shows a command and runs it.
    pub(super) fn kubectl(&self, line: &str) -> Result<()> {
        let arguments: Vec<&str> = line.split(' ').collect();
        run(&format!("kubectl {line}"), self.cluster.kube.kubectl(&arguments).current_dir(&self.folder))
    }

    /// What kubectl says.
    pub(super) fn ask(&self, line: &str) -> Result<String> {
        self.cluster.kube.kubectl_ok(&line.split(' ').collect::<Vec<_>>())
    }

    /// A line of a page, for a shell.
    pub(super) fn shell(&self, line: &str) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-euc", &format!("kubectl() {{ \"$KUBECTL\" \"$@\"; }}; {line}")]).current_dir(&self.folder);
        let kube = &self.cluster.kube;
        shell.env("KUBECTL", kube.kubectl(&[]).get_program()).env("KUBECONFIG", kube.kubeconfig());
        let path = std::env::var("PATH").unwrap_or_default();
        shell.env("PATH", format!("{}:{path}", self.programs.display()));
        shell
    }

    /// What a line for a shell says.
    pub(super) fn says(&self, line: &str) -> Result<String> {
        run_ok("asking the cluster", &mut self.shell(line), "", LIMIT)
    }

    /// Runs a line for a shell until it says what is wanted; what it has said.
    pub(super) fn until(&self, line: &str, wanted: impl Fn(&str) -> bool) -> Result<String> {
        wait_for(&format!("`{line}` to show what it should"), PATIENCE, || {
            let message = self.says(line).map_err(|error| error.to_string())?;
            if wanted(message.trim()) { Ok(message.trim().to_owned()) } else { Err(message) }
        })
    }

    /// Makes an object, or changes it.
    pub(super) fn apply(&self, object: &Value) -> Result<()> {
        self.cluster.kube.apply_stdin(&object.to_string()).map(drop)
    }

    /// A page of the documentation.
    pub(super) fn page(&self, name: &str) -> Result<String> {
        let path = self.folder.join("docs").join(name);
        fs::read_to_string(&path).doing("reading", &path)
    }
}

/// Debian's images have it.
pub(super) const STANDARD: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The last stage of a Dockerfile whose FROM ends so.
fn stage<'a>(dockerfile: &'a str, ends: &str) -> Result<&'a str> {
    let stages = dockerfile.split("\nFROM ").skip(1);
    let is_it = |stage: &&str| {
        let from = stage.lines().next().unwrap_or_default();
        if ends.is_empty() { !from.contains(" AS ") } else { from.ends_with(ends) }
    };
    stages.filter(is_it).last().ok_or_else(|| failed("make an image", format!("the Dockerfile has no stage{ends}")))
}

/// What an instruction of a stage says.
fn instruction_argument<'a>(stage: &'a str, instruction: &str) -> Result<&'a str> {
    let line = stage.lines().rev().find_map(|line| line.strip_prefix(instruction));
    line.map(str::trim_start).ok_or_else(|| failed("make an image", format!("the Dockerfile has no {instruction}")))
}
