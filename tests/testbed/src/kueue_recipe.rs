//! Builds Kueue's controller from its Go module, and keeps its CRDs and webhooks.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::cache::{Recipe, digest};
use crate::error::{Doing, Error, Result};
use crate::go::{Build, GoTool};
use crate::tool::run_ok;

/// The release built, as in `kueue/go.mod`.
const VERSION: &str = "v0.19.2";

const MODULE: &str = "sigs.k8s.io/kueue";
const GO_MOD: &str = include_str!("../kueue/go.mod");
const GO_SUM: &str = include_str!("../kueue/go.sum");

/// Where it looks for the certificate of its metrics, and the variable that says where instead. This one line is different: nothing
/// may be written into a machine's `/etc` for tests.
const FIXED: (&str, &str) = ("\"/etc/kueue/metrics/certs\"", "os.Getenv(\"KUEUE_METRICS_CERTS\")");

const BUILD: Duration = Duration::from_hours(1);
const CHECK: Duration = Duration::from_mins(1);

/// Kueue built from source.
#[derive(Debug, Clone)]
pub(crate) struct KueueRecipe {
    /// The `go` program; `None` where only the artefact's place is asked for.
    pub(crate) go: Option<GoTool>,
    /// The architecture, in the words of Debian and Go alike.
    pub(crate) arch: &'static str,
}

impl KueueRecipe {
    /// Its program.
    pub(crate) fn program(home: &Path) -> PathBuf {
        home.join("bin/kueue")
    }

    /// The folder of its CRDs.
    pub(crate) fn crds(home: &Path) -> PathBuf {
        home.join("crds")
    }

    /// Its webhooks, as they are where it runs in a cluster.
    pub(crate) fn webhooks(home: &Path) -> PathBuf {
        home.join("webhooks.yaml")
    }

    fn flags() -> Vec<String> {
        vec!["-trimpath".to_owned(), format!("-ldflags=-s -w -X {MODULE}/pkg/version.GitVersion={VERSION}")]
    }
}

impl Recipe for KueueRecipe {
    fn key(&self) -> String {
        let flags = Self::flags().join(" ");
        format!("kueue-{VERSION}-{}-{}", self.arch, digest(&[GO_MOD, GO_SUM, &flags, FIXED.1]))
    }

    fn waits_for(&self) -> String {
        format!("Kueue {VERSION}: its controller built from source, once (12 to 27 min on 2 cores)")
    }

    fn make(&self, staging: &Path, _home: &Path) -> Result<()> {
        let build = Build::begin(staging, self.go.as_ref(), "Kueue", (GO_MOD, GO_SUM))?;
        let source = build.download(MODULE)?;
        let main = source.join("cmd/kueue/main.go");
        let text = fs::read_to_string(&main).doing("reading", &main)?;
        if text.matches(FIXED.0).count() != 1 {
            return Err(Error::Machine {
                problem: format!("{} is not the one that is known", main.display()),
                remedy: "see how it finds the certificate of its metrics".to_owned(),
            });
        }
        let own = build.module().join("kueue");
        fs::create_dir(&own).doing("making the folder", &own)?;
        let own = own.join("main.go");
        fs::write(&own, text.replace(FIXED.0, FIXED.1)).doing("writing", &own)?;
        let components = source.join("config/components");
        let copy = |from: &Path, to: &Path| fs::copy(from, to).map(drop).doing("copying", from);
        copy(&components.join("webhook/manifests.yaml"), &Self::webhooks(staging))?;
        let crds = Self::crds(staging);
        fs::create_dir(&crds).doing("making the folder", &crds)?;
        let bases = components.join("crd/bases");
        for entry in fs::read_dir(&bases).doing("listing", &bases)? {
            let entry = entry.doing("listing", &bases)?;
            copy(&entry.path(), &crds.join(entry.file_name()))?;
        }
        let packages = vec!["./kueue".to_owned()];
        Build { packages, flags: Self::flags(), limit: BUILD, ..build }.finish("Kueue's packages")
    }

    fn check(&self, home: &Path) -> Result<()> {
        // It says how it is used, and has no flag that only says its version.
        let mut help = Command::new("sh");
        help.args(["-c", "\"$0\" --help 2>&1 | grep -q feature-gates"]).arg(Self::program(home));
        run_ok("trying Kueue", &mut help, "", CHECK).map(drop)
    }
}
