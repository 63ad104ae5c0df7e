//! Builds Kubernetes' own programs as a Go dependency: the embedded `go.mod` and `go.sum` pin every byte.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::cache::{Recipe, digest};
use crate::error::Result;
use crate::go::{Build, GoTool};
use crate::tool::run_ok;

/// The release built, as in `kubernetes/go.mod`.
pub(crate) const VERSION: &str = "v1.36.3";

/// What all tests need. The `go.sum` also covers kube-scheduler.
pub(crate) const PROGRAMS: [&str; 3] = ["kube-apiserver", "kubectl", "kube-controller-manager"];

/// What makes a cluster with a node of it.
const CLUSTER_PROGRAMS: [&str; 3] = ["kube-scheduler", "kubelet", "kube-proxy"];

const GO_MOD: &str = include_str!("../kubernetes/go.mod");
const GO_SUM: &str = include_str!("../kubernetes/go.sum");
/// What kubelet and kube-proxy need beside that.
const CLUSTER_SUM: &str = include_str!("../kubernetes/cluster.sum");

/// Which programs, in one artefact.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// [`PROGRAMS`].
    ApiServer,
    /// What a cluster with a node has beside the API server.
    Cluster,
}

impl Part {
    const fn programs(self) -> &'static [&'static str] {
        match self {
            Self::ApiServer => &PROGRAMS,
            Self::Cluster => &CLUSTER_PROGRAMS,
        }
    }

    fn sums(self) -> String {
        match self {
            Self::ApiServer => GO_SUM.to_owned(),
            Self::Cluster => GO_SUM.to_owned() + CLUSTER_SUM,
        }
    }
}

const CHECK: Duration = Duration::from_mins(10);
const BUILD: Duration = Duration::from_mins(40);

/// Kubernetes built from source.
#[derive(Debug, Clone)]
pub(crate) struct Kubernetes {
    /// The `go` program; `None` where only the artefact's place is asked for.
    pub(crate) go: Option<GoTool>,
    /// The architecture, in the words of Debian and Go alike.
    pub(crate) arch: &'static str,
    /// Which of its programs.
    pub(crate) part: Part,
}

impl Kubernetes {
    fn packages(&self) -> impl Iterator<Item = String> {
        self.part.programs().iter().map(|program| format!("k8s.io/kubernetes/cmd/{program}"))
    }

    fn flags() -> [String; 2] {
        let x = "k8s.io/component-base/version";
        [
            "-trimpath".to_owned(),
            format!("-ldflags=-s -w -X {x}.gitVersion={VERSION} -X {x}.gitMajor=1 -X {x}.gitMinor=36"),
        ]
    }
}

impl Recipe for Kubernetes {
    fn key(&self) -> String {
        let programs = self.part.programs().join(" ");
        let flags = Self::flags().join(" ");
        let name = match self.part {
            Part::ApiServer => "kubernetes",
            Part::Cluster => "kubernetes-cluster",
        };
        format!("{name}-{VERSION}-{}-{}", self.arch, digest(&[GO_MOD, &self.part.sums(), &programs, &flags]))
    }

    fn waits_for(&self) -> String {
        format!("Kubernetes {VERSION}: {} built from source, once (4 min on 2 cores)", self.part.programs().join(", "))
    }

    fn make(&self, staging: &Path, _home: &Path) -> Result<()> {
        let build = Build::begin(staging, self.go.as_ref(), "Kubernetes", (GO_MOD, &self.part.sums()))?;
        let (packages, flags) = (self.packages().collect(), Self::flags().to_vec());
        Build { packages, flags, limit: BUILD, ..build }.finish("Kubernetes' packages")
    }

    fn check(&self, home: &Path) -> Result<()> {
        let program = home.join("bin").join(self.part.programs()[0]);
        run_ok("trying Kubernetes", Command::new(program).arg("--version"), "", CHECK).map(drop)
    }
}
