//! Builds Kubernetes' own programs as a Go dependency: the embedded `go.mod` and `go.sum` pin every byte.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::cache::{Recipe, digest, remove};
use crate::error::{Doing, Result};
use crate::progress::{self, Meter};
use crate::tool::{run, run_ok, run_ok_watched};

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

const DOWNLOAD: Duration = Duration::from_mins(10);
const BUILD: Duration = Duration::from_mins(40);
const ATTEMPTS: u32 = 4;

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

/// A Go compiler.
#[derive(Debug, Clone)]
pub(crate) struct GoTool {
    /// Its `go`.
    pub(crate) program: PathBuf,
    /// GOROOT, where the program does not know it by itself.
    pub(crate) root: Option<PathBuf>,
}

impl GoTool {
    /// The `go` in PATH when it is a 1.26: 1.27 breaks the `OpenAPI` of Kubernetes 1.36, older ones do not build it.
    #[must_use]
    pub(crate) fn in_path() -> Option<Self> {
        let done =
            run("asking for Go's version", Command::new("go").env("GOTOOLCHAIN", "local").arg("version"), "", DOWNLOAD)
                .ok()?;
        let version = done.stdout.split_whitespace().nth(2)?.strip_prefix("go")?.to_owned();
        let fits = version == "1.26" || version.starts_with("1.26.");
        fits.then(|| Self { program: PathBuf::from("go"), root: None })
    }

    fn command(&self, staging: &Path) -> Command {
        let mut go = Command::new(&self.program);
        if let Some(root) = &self.root {
            go.env("GOROOT", root);
        }
        go.current_dir(staging.join("module"))
            .env("GOPATH", staging.join("gopath"))
            .env("GOCACHE", staging.join("gocache"))
            .env("GOFLAGS", "-mod=readonly")
            .env("GOTOOLCHAIN", "local")
            .env("GOWORK", "off")
            .env("CGO_ENABLED", "0")
            .env_remove("GOMODCACHE")
            .env_remove("GOOS")
            .env_remove("GOARCH");
        go
    }
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
        let go = self.go.as_ref().ok_or_else(|| crate::Error::Machine {
            problem: "no Go compiler".to_owned(),
            remedy: "run `testbed setup`, which finds or fetches one".to_owned(),
        })?;
        let module = staging.join("module");
        fs::create_dir(&module).doing("making the folder", &module)?;
        for (file, text) in [("go.mod", GO_MOD), ("go.sum", &self.part.sums())] {
            let path = module.join(file);
            fs::write(&path, text).doing("writing", &path)?;
        }
        let fetch = || {
            let mut list = go.command(staging);
            list.args(["list", "-modcacherw", "-deps", "-f", "{{.ImportPath}}"]).args(self.packages());
            run_ok("downloading Kubernetes' source from the Go module proxy", &mut list, "", DOWNLOAD)
        };
        let mut attempt = 1;
        let packages = loop {
            match fetch() {
                Ok(list) => break list.lines().count(),
                Err(error) if attempt == ATTEMPTS => return Err(error),
                Err(error) => {
                    progress::say(&format!("{error}\n  trying again ({attempt} of {ATTEMPTS} attempts failed)"));
                    attempt += 1;
                }
            }
        };
        let mut meter = Meter::new("Kubernetes' packages", packages);
        let bin = staging.join("bin");
        fs::create_dir(&bin).doing("making the folder", &bin)?;
        let mut build = go.command(staging);
        build
            .args(["build", "-v", "-modcacherw", "-buildvcs=false"])
            .args(Self::flags())
            .arg("-o")
            .arg(&bin)
            .args(self.packages());
        run_ok_watched("building Kubernetes", &mut build, BUILD, move |_| meter.count())?;
        for folder in ["gocache", "gopath", "module"] {
            remove(&staging.join(folder))?;
        }
        Ok(())
    }

    fn check(&self, home: &Path) -> Result<()> {
        let program = home.join("bin").join(self.part.programs()[0]);
        run_ok("trying Kubernetes", Command::new(program).arg("--version"), "", DOWNLOAD).map(drop)
    }
}
