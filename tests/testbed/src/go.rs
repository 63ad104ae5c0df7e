//! Builds programs from Go modules: an embedded `go.mod` and `go.sum` pin every byte.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::cache::remove;
use crate::error::{Doing, Error, Result};
use crate::progress::{self, Meter};
use crate::tool::{run, run_ok, run_ok_watched};

const DOWNLOAD: Duration = Duration::from_mins(10);
const ATTEMPTS: u32 = 4;

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
        go.current_dir(module(staging))
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

/// What is built.
pub(crate) struct Build<'a> {
    /// Where it is made.
    pub(crate) staging: &'a Path,
    /// With which compiler.
    pub(crate) go: &'a GoTool,
    /// What it is called.
    pub(crate) what: &'static str,
    /// The packages of its programs.
    pub(crate) packages: Vec<String>,
    /// `go build`'s.
    pub(crate) flags: Vec<String>,
    /// For the build.
    pub(crate) limit: Duration,
}

fn module(staging: &Path) -> PathBuf {
    staging.join("module")
}

impl<'a> Build<'a> {
    /// Writes the module. The compiler is that of the recipe, which has none where only a place is asked for.
    pub(crate) fn begin(
        staging: &'a Path,
        go: Option<&'a GoTool>,
        what: &'static str,
        (go_mod, go_sum): (&str, &str),
    ) -> Result<Self> {
        let go = go.ok_or_else(|| Error::Machine {
            problem: "no Go compiler".to_owned(),
            remedy: "run `testbed setup`, which finds or fetches one".to_owned(),
        })?;
        let module = module(staging);
        fs::create_dir(&module).doing("making the folder", &module)?;
        for (file, text) in [("go.mod", go_mod), ("go.sum", go_sum)] {
            let path = module.join(file);
            fs::write(&path, text).doing("writing", &path)?;
        }
        Ok(Self { staging, go, what, packages: Vec::new(), flags: Vec::new(), limit: DOWNLOAD })
    }

    /// The folder of the module's own packages.
    pub(crate) fn module(&self) -> PathBuf {
        module(self.staging)
    }

    /// Downloads a module; its folder, until the end of the build.
    pub(crate) fn download(&self, module: &str) -> Result<PathBuf> {
        self.fetch(&["list", "-modcacherw", "-m", "-f", "{{.Path}}", module])?;
        let fetch = || self.run(&["mod", "download", "-modcacherw", "-json", module]);
        let message = persist(fetch)?;
        let dir = serde_json::from_str::<serde_json::Value>(&message)
            .ok()
            .and_then(|message| message["Dir"].as_str().map(PathBuf::from));
        dir.ok_or_else(|| Error::Machine {
            problem: format!("`go mod download` does not say where {module} is: {message}"),
            remedy: "run `testbed setup` again".to_owned(),
        })
    }

    fn run(&self, arguments: &[&str]) -> Result<String> {
        let doing = format!("downloading {}'s source from the Go module proxy", self.what);
        run_ok(&doing, self.go.command(self.staging).args(arguments), "", DOWNLOAD)
    }

    fn fetch(&self, arguments: &[&str]) -> Result<String> {
        persist(|| self.run(arguments))
    }

    /// Downloads what is needed and builds it into the folder `bin`. `meter` is what the progress is told of.
    pub(crate) fn finish(self, meter: &'static str) -> Result<()> {
        let packages: Vec<&str> = self.packages.iter().map(String::as_str).collect();
        let list = [&["list", "-modcacherw", "-deps", "-f", "{{.ImportPath}}"][..], &packages].concat();
        let count = self.fetch(&list)?.lines().count();
        let mut meter = Meter::new(meter, count);
        let bin = self.staging.join("bin");
        fs::create_dir(&bin).doing("making the folder", &bin)?;
        let mut build = self.go.command(self.staging);
        build
            .args(["build", "-v", "-modcacherw", "-buildvcs=false"])
            .args(&self.flags)
            .arg("-o")
            .arg(bin.join(""))
            .args(packages);
        run_ok_watched(&format!("building {}", self.what), &mut build, self.limit, move |_| meter.count())?;
        for folder in ["gocache", "gopath", "module"] {
            remove(&self.staging.join(folder))?;
        }
        Ok(())
    }
}

/// Tries again what fails on the way.
fn persist(fetch: impl Fn() -> Result<String>) -> Result<String> {
    let mut attempt = 1;
    loop {
        match fetch() {
            Ok(message) => return Ok(message),
            Err(error) if attempt == ATTEMPTS => return Err(error),
            Err(error) => {
                progress::say(&format!("{error}\n  trying again ({attempt} of {ATTEMPTS} attempts failed)"));
                attempt += 1;
            }
        }
    }
}
