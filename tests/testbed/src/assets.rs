//! Where everything lies that the servers are started from, and how it gets there.

use std::env;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::thread;

use crate::account::Account;
use crate::cache::{Cache, Recipe};
use crate::error::Result;
use crate::file_servers_recipe::FileServers;
use crate::go::GoTool;
use crate::htcondor_image::HtcondorImage;
use crate::kerberos::Kerberos;
use crate::kubernetes::{Kubernetes, PROGRAMS, Part};
use crate::kueue_recipe::KueueRecipe;
use crate::node_recipe::ContainerRuntime;
use crate::operator_image::OperatorImage;
use crate::packages::{Arch, Suite};
use crate::pool::Version;
use crate::recipes::{Condor, Etcd, Go, Image, ImageRegistry, JOB_BIN};

/// Debian's release with HTCondor 23.9, etcd 3.5, an image registry, file servers and the payload's programs.
const STABLE: &str = "trixie";
/// Debian's moving suite, with the latest HTCondor, Apptainer and Go.
const LATEST: &str = "sid";

type Get<'a> = &'a (dyn Fn(&dyn Recipe, bool) -> Result<PathBuf> + Sync);
type More<'a> = &'a dyn Fn(&dyn Recipe) -> Result<PathBuf>;

/// The paths of everything in the cache.
#[derive(Debug, Clone)]
pub struct Assets {
    cache: PathBuf,
    kube_apiserver: PathBuf,
    kubectl: PathBuf,
    kube_controller_manager: PathBuf,
    etcd: PathBuf,
    trixie: PathBuf,
    sid: PathBuf,
    image: PathBuf,
    python: PathBuf,
    registry: PathBuf,
    operator_image: PathBuf,
    kerberos: PathBuf,
    file_servers: PathBuf,
}

impl Assets {
    /// Finds what [`Assets::setup`] made; an error names what is missing and how to get it. A program looks once: it is thousands of
    /// files, and tests ask hundreds of times.
    pub fn locate() -> Result<Self> {
        static FOUND: OnceLock<Assets> = OnceLock::new();
        if let Some(found) = FOUND.get() {
            return Ok(found.clone());
        }
        let cache = Cache::locate()?;
        let found = Self::assemble(&cache, &|recipe, _| cache.require(recipe), &|recipe| cache.require(recipe))?;
        Ok(FOUND.get_or_init(|| found).clone())
    }

    /// Makes what is not in the cache yet. With `refresh` everything from Debian is made again.
    pub fn setup(refresh: bool) -> Result<Self> {
        let cache = Cache::locate()?;
        let ensure = |recipe: &dyn Recipe, from_debian| cache.ensure(recipe, refresh && from_debian);
        Self::assemble(&cache, &ensure, &|recipe| ensure(recipe, true))
    }

    /// Makes only what one pool of [`Version::Sid`] and an API server need. What else there is may be missing.
    pub(crate) fn setup_for_demo() -> Result<Self> {
        let cache = Cache::locate()?;
        Self::assemble(&cache, &|recipe, _| cache.ensure(recipe, false), &|recipe| Ok(cache.place(recipe)))
    }

    /// `get` gives an artefact's folder; its second argument is true for what comes from Debian. `more` does so for what the
    /// demo can do without, all of it from Debian.
    fn assemble(cache: &Cache, get: Get<'_>, more: More<'_>) -> Result<Self> {
        thread::scope(|scope| {
            // It takes minutes and is mostly computing, the others seconds and are mostly downloads.
            let kubernetes = scope.spawn(|| kubernetes(cache, get));
            let rest = Self::from_debian(cache, get, more);
            let [kube_apiserver, kubectl, kube_controller_manager] =
                kubernetes.join().unwrap_or_else(|panic| resume_unwind(panic))?;
            Ok(Self { kube_apiserver, kubectl, kube_controller_manager, ..rest? })
        })
    }

    /// All but Kubernetes' programs.
    fn from_debian(cache: &Cache, get: Get<'_>, more: More<'_>) -> Result<Self> {
        let arch = Arch::current()?;
        let (stable, latest) = (Suite::new(STABLE), Suite::new(LATEST));
        let trixie = more(&Condor { version: Version::Trixie, suite: &stable, arch })?;
        let sid = get(&Condor { version: Version::Sid, suite: &latest, arch }, true)?;
        let [image, python] = [false, true].map(|python| Image { suite: &stable, arch, python });
        let image = image.root(&get(&image, true)?);
        let python = python.root(&more(&python)?);
        let registry = more(&ImageRegistry { suite: &stable, arch })?.join("usr/bin/docker-registry");
        let operator_image = more(&OperatorImage { suite: &stable, arch })?;
        let kerberos = more(&Kerberos { suite: &stable, arch })?;
        let file_servers = more(&FileServers { suite: &stable, arch })?;
        let etcd = match provided("etcd") {
            Some(path) => path,
            None => get(&Etcd { suite: &stable, arch }, true)?.join("usr/bin/etcd"),
        };
        Ok(Self {
            cache: cache.root().to_owned(),
            kube_apiserver: PathBuf::new(),
            kubectl: PathBuf::new(),
            kube_controller_manager: PathBuf::new(),
            etcd,
            trixie,
            sid,
            image,
            python,
            registry,
            operator_image,
            kerberos,
            file_servers,
        })
    }

    /// The cache's folder.
    #[must_use]
    pub fn cache(&self) -> &Path {
        &self.cache
    }

    /// The API server.
    #[must_use]
    pub fn kube_apiserver(&self) -> &Path {
        &self.kube_apiserver
    }

    /// kubectl of the API server's version.
    #[must_use]
    pub fn kubectl(&self) -> &Path {
        &self.kubectl
    }

    /// The controllers of the API server's version.
    #[must_use]
    pub fn kube_controller_manager(&self) -> &Path {
        &self.kube_controller_manager
    }

    /// etcd.
    #[must_use]
    pub fn etcd(&self) -> &Path {
        &self.etcd
    }

    /// The root folder of an HTCondor; its `RELEASE_DIR` is `usr` below.
    #[must_use]
    pub fn condor(&self, version: Version) -> &Path {
        match version {
            Version::Trixie => &self.trixie,
            Version::Sid => &self.sid,
        }
    }

    /// The folder of that HTCondor's tools.
    #[must_use]
    pub fn condor_bin(&self, version: Version) -> PathBuf {
        self.condor(version).join("usr/bin")
    }

    /// The image registry's program.
    #[must_use]
    pub fn registry(&self) -> &Path {
        &self.registry
    }

    /// The root folder of Kerberos: a KDC and `kinit`.
    #[must_use]
    pub fn kerberos(&self) -> &Path {
        &self.kerberos
    }

    /// nginx.
    #[must_use]
    pub(crate) fn nginx(&self) -> PathBuf {
        FileServers::nginx(&self.file_servers)
    }

    /// The folder of XRootD's programs, and of those alone: with `xrdcp`, for a job's PATH.
    #[must_use]
    pub fn xrootd_bin(&self) -> PathBuf {
        FileServers::xrootd_bin(&self.file_servers)
    }

    /// The folder with `apptainer` and what it calls, for the front of a job's PATH.
    #[must_use]
    pub fn job_bin(&self) -> PathBuf {
        self.sid.join(JOB_BIN)
    }

    /// The payload's image, an unpacked root folder called `centos` with busybox and bash, readable by everyone.
    #[must_use]
    pub fn image(&self) -> &Path {
        &self.image
    }

    /// The root folder of the operator's image, without its program. The account [`IMAGE_ACCOUNT`](crate::IMAGE_ACCOUNT)
    /// has an entry in its passwd.
    #[must_use]
    pub fn operator_image(&self) -> &Path {
        &self.operator_image
    }

    /// The same with Python, called `python`.
    #[must_use]
    pub fn python(&self) -> &Path {
        &self.python
    }

    /// An error when the account that servers run as cannot enter the cache.
    pub fn must_be_reachable(&self) -> Result<()> {
        Account::unprivileged().must_reach(&self.cache.join("x"))
    }
}

/// Each of [`PROGRAMS`].
fn kubernetes(cache: &Cache, get: Get<'_>) -> Result<[PathBuf; 3]> {
    match PROGRAMS.map(provided) {
        [Some(kube_apiserver), Some(kubectl), Some(controllers)] => Ok([kube_apiserver, kubectl, controllers]),
        some => {
            let kubernetes = with_go(cache, get, Arch::current()?, &Suite::new(LATEST), Part::ApiServer);
            let bin = get(&kubernetes, false)?.join("bin");
            let mut built = PROGRAMS.map(|program| bin.join(program)).into_iter();
            Ok(some.map(|path| {
                let built = built.next().unwrap_or_default();
                path.unwrap_or(built)
            }))
        }
    }
}

/// Kubernetes' recipe, with a Go compiler if it is not in the cache yet.
fn with_go(cache: &Cache, get: Get<'_>, arch: Arch, latest: &Suite, part: Part) -> Kubernetes {
    let mut kubernetes = Kubernetes { go: None, arch: arch.debian, part };
    if cache.find(&kubernetes).is_none() {
        kubernetes.go = go(get, arch, latest);
    }
    kubernetes
}

/// A Go compiler. A `locate` shall complain about what it lacks, not about Go.
fn go(get: Get<'_>, arch: Arch, latest: &Suite) -> Option<GoTool> {
    GoTool::in_path().or_else(|| {
        let root = Go::root(&get(&Go { suite: latest, arch }, true).ok()?);
        Some(GoTool { program: root.join("bin/go"), root: Some(root) })
    })
}

/// The folder of Kueue: its controller and its manifests.
pub(crate) fn locate_kueue() -> Result<PathBuf> {
    Cache::locate()?.require(&KueueRecipe { go: None, arch: Arch::current()?.debian })
}

/// The same; makes it if it is not in the cache yet.
pub(crate) fn setup_kueue() -> Result<PathBuf> {
    let (cache, arch) = (Cache::locate()?, Arch::current()?);
    let mut kueue = KueueRecipe { go: None, arch: arch.debian };
    if cache.find(&kueue).is_none() {
        kueue.go = go(&|recipe, _| cache.ensure(recipe, false), arch, &Suite::new(LATEST));
    }
    cache.ensure(&kueue, false)
}

/// The paths of what a cluster with a node needs beside [`Assets`].
#[derive(Debug, Clone)]
pub(crate) struct ClusterAssets {
    /// The folder of kube-scheduler, kubelet and kube-proxy.
    pub(crate) kubernetes: PathBuf,
    /// The container runtime's root folder.
    pub(crate) runtime: PathBuf,
    /// The root folder of the image `htcondor`.
    pub(crate) htcondor_image: PathBuf,
}

impl ClusterAssets {
    /// Finds what [`ClusterAssets::setup`] made.
    pub(crate) fn locate() -> Result<Self> {
        let cache = Cache::locate()?;
        Self::assemble(&cache, &|recipe, _| cache.require(recipe))
    }

    /// Makes what is not in the cache yet.
    pub(crate) fn setup(refresh: bool) -> Result<Self> {
        let cache = Cache::locate()?;
        Self::assemble(&cache, &|recipe, from_debian| cache.ensure(recipe, refresh && from_debian))
    }

    fn assemble(cache: &Cache, get: Get<'_>) -> Result<Self> {
        let (arch, stable, latest) = (Arch::current()?, Suite::new(STABLE), Suite::new(LATEST));
        let htcondor_image = get(&HtcondorImage { suite: &stable, arch }, true)?;
        let runtime = get(&ContainerRuntime { suite: &latest, arch }, true)?;
        let kubernetes = get(&with_go(cache, get, arch, &latest, Part::Cluster), false)?.join("bin");
        Ok(Self { kubernetes, runtime, htcondor_image })
    }
}

/// A program in `KUBEBUILDER_ASSETS`: envtest's folder has kube-apiserver, etcd and kubectl.
fn provided(program: &str) -> Option<PathBuf> {
    let path = Path::new(&env::var_os("KUBEBUILDER_ASSETS")?).join(program);
    path.is_file().then_some(path)
}
