//! What is made from Debian's packages: both versions of HTCondor, etcd, an image registry, Go, and the image that jobs
//! run in.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::cache::{Recipe, digest};
use crate::error::{Doing, Result};
use crate::packages::{Arch, Suite, relocate};
use crate::pool::Version;
use crate::tool::run_ok;

const CHECK: Duration = Duration::from_mins(1);

/// What HTCondor's daemons and tools link. Python, perl, munge, krb5, voms and scitokens are optional at run time.
const CONDOR: [&str; 11] = [
    "condor",
    "libgomp1",
    "libstdc++6",
    "libgcc-s1",
    "libc6",
    "libssl3t64",
    "libuuid1",
    "libpcre2-8-0",
    "zlib1g",
    "libzstd1",
    "libsqlite3-0",
];

/// Apptainer and what it needs to unpack an image file; Debian has it in sid only.
const APPTAINER: [&str; 6] = ["apptainer", "squashfs-tools", "libseccomp2", "liblzo2-2", "liblz4-1", "liblzma5"];

/// What a job finds in its PATH beside the machine's own programs: Apptainer, and what it calls for image files and for
/// images from a registry.
const JOB_PROGRAMS: [&str; 3] = ["apptainer", "unsquashfs", "mksquashfs"];

/// HTCondor, and in sid's tree Apptainer, relocated.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Condor<'a> {
    /// Which HTCondor.
    pub(crate) version: Version,
    /// Where its packages come from.
    pub(crate) suite: &'a Suite,
    /// For which architecture.
    pub(crate) arch: Arch,
}

impl Condor<'_> {
    fn packages(&self) -> Vec<&'static str> {
        let mut packages = CONDOR.to_vec();
        if self.version == Version::Sid {
            packages.extend(APPTAINER);
        }
        packages
    }
}

impl Recipe for Condor<'_> {
    fn key(&self) -> String {
        let mut parts = self.packages();
        if self.version == Version::Sid {
            parts.extend(JOB_PROGRAMS);
        }
        format!("condor-{}-{}-{}", self.version, self.arch.debian, digest(&parts))
    }

    fn waits_for(&self) -> String {
        let what = if self.version == Version::Sid { "HTCondor and Apptainer" } else { "HTCondor" };
        format!("{what} of Debian {}: index, packages, relocation (about 10 s)", self.suite.name())
    }

    fn make(&self, staging: &Path, home: &Path) -> Result<()> {
        self.suite.unpack(&self.packages(), staging)?;
        let libraries = staging.join("usr/lib").join(self.arch.triplet);
        for superfluous in ["gconv", "audit"] {
            crate::cache::remove(&libraries.join(superfluous))?;
        }
        let apptainer = format!("usr/lib/{}/apptainer/bin", self.arch.triplet);
        let mut folders = vec!["usr/bin", "usr/sbin", "usr/libexec/condor", "usr/lib"];
        if self.version == Version::Sid {
            folders.push(&apptainer);
        }
        relocate(staging, home, self.arch, &folders)?;
        if self.version == Version::Sid {
            // Apptainer takes usr and usr/lib for its prefixes and looks for its configuration and state below them.
            for (link, target) in [("usr/etc", "../etc"), ("usr/lib/etc", "../../etc")] {
                let link = staging.join(link);
                symlink(target, &link).doing("linking", &link)?;
            }
            for dir in ["usr/var/lib/apptainer/mnt/session", "usr/lib/var/lib/apptainer/mnt/session", JOB_BIN] {
                let dir = staging.join(dir);
                fs::create_dir_all(&dir).doing("making the folder", &dir)?;
            }
            for program in JOB_PROGRAMS {
                let link = staging.join(JOB_BIN).join(program);
                symlink(Path::new("../usr/bin").join(program), &link).doing("linking", &link)?;
            }
        }
        Ok(())
    }

    fn check(&self, home: &Path) -> Result<()> {
        run_ok("trying HTCondor", &mut Command::new(home.join("usr/bin/condor_version")), "", CHECK)?;
        if self.version == Version::Sid {
            let apptainer = home.join(JOB_BIN).join("apptainer");
            run_ok("trying Apptainer", Command::new(apptainer).arg("version"), "", CHECK)?;
        }
        Ok(())
    }
}

/// The folder in sid's tree that goes in front of a job's PATH: Apptainer and no HTCondor tools.
pub(crate) const JOB_BIN: &str = "job-bin";

/// etcd 3.5, which asks for no newer C library than Debian 12's.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Etcd<'a> {
    /// Where its package comes from.
    pub(crate) suite: &'a Suite,
    /// For which architecture.
    pub(crate) arch: Arch,
}

impl Recipe for Etcd<'_> {
    fn key(&self) -> String {
        format!("etcd-{}-{}", self.suite.name(), self.arch.debian)
    }

    fn waits_for(&self) -> String {
        format!("etcd of Debian {} (about 3 s)", self.suite.name())
    }

    fn make(&self, staging: &Path, _home: &Path) -> Result<()> {
        self.suite.unpack(&["etcd-server"], staging)
    }

    fn check(&self, home: &Path) -> Result<()> {
        run_ok("trying etcd", Command::new(home.join("usr/bin/etcd")).arg("--version"), "", CHECK).map(drop)
    }
}

/// A registry for images, docker's distribution.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ImageRegistry<'a> {
    /// Where its package comes from.
    pub(crate) suite: &'a Suite,
    /// For which architecture.
    pub(crate) arch: Arch,
}

impl Recipe for ImageRegistry<'_> {
    fn key(&self) -> String {
        format!("registry-{}-{}", self.suite.name(), self.arch.debian)
    }

    fn waits_for(&self) -> String {
        format!("an image registry of Debian {} (about 3 s)", self.suite.name())
    }

    fn make(&self, staging: &Path, _home: &Path) -> Result<()> {
        self.suite.unpack(&["docker-registry"], staging)
    }

    fn check(&self, home: &Path) -> Result<()> {
        let mut registry = Command::new(home.join("usr/bin/docker-registry"));
        run_ok("trying the image registry", registry.arg("--version"), "", CHECK).map(drop)
    }
}

/// The Go that builds Kubernetes 1.36, for machines without it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Go<'a> {
    /// Where its packages come from.
    pub(crate) suite: &'a Suite,
    /// For which architecture.
    pub(crate) arch: Arch,
}

impl Go<'_> {
    /// GOROOT below the artefact's folder.
    #[must_use]
    pub(crate) fn root(home: &Path) -> PathBuf {
        home.join("usr/lib/go-1.26")
    }
}

impl Recipe for Go<'_> {
    fn key(&self) -> String {
        format!("go-1.26-{}-{}", self.suite.name(), self.arch.debian)
    }

    fn waits_for(&self) -> String {
        format!("Go 1.26 of Debian {}, since PATH has none (about 10 s)", self.suite.name())
    }

    fn make(&self, staging: &Path, _home: &Path) -> Result<()> {
        self.suite.unpack(&["golang-1.26-go", "golang-1.26-src"], staging)?;
        crate::cache::remove(&staging.join("usr/share/go-1.26/test"))
    }

    fn check(&self, home: &Path) -> Result<()> {
        let root = Self::root(home);
        run_ok("trying Go", Command::new(root.join("bin/go")).env("GOROOT", &root).arg("version"), "", CHECK).map(drop)
    }
}

/// What Python's interpreter needs in an image of its own.
const PYTHON: [&str; 5] = ["python3.13-minimal", "libpython3.13-minimal", "libc6", "libexpat1", "zlib1g"];

/// What jobs run in: a plain root folder with busybox and bash, as Apptainer takes it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Image<'a> {
    /// Where its packages come from.
    pub(crate) suite: &'a Suite,
    /// For which architecture.
    pub(crate) arch: Arch,
    /// Has Python's interpreter, too.
    pub(crate) python: bool,
}

impl Image<'_> {
    /// The root folder, named as the image that tests ask for.
    #[must_use]
    pub(crate) fn root(self, home: &Path) -> PathBuf {
        home.join(if self.python { "python" } else { "centos" })
    }

    /// Python's interpreter and its C library, beside what is there. The image's `usr` is a link to its root.
    fn add_python(self, unpacked: &Path, root: &Path) -> Result<()> {
        self.suite.unpack(&PYTHON, unpacked)?;
        let mut copy = Command::new("cp");
        copy.args(["--archive", "--no-clobber"]).arg(unpacked.join("usr/.")).arg(root);
        run_ok("filling an image", &mut copy, "", CHECK)?;
        let link = root.join("bin/python3");
        symlink("python3.13", &link).doing("linking", &link)
    }
}

impl Recipe for Image<'_> {
    fn key(&self) -> String {
        let what = if self.python { "python" } else { "image" };
        format!("{what}-{}-{}", self.suite.name(), self.arch.debian)
    }

    fn waits_for(&self) -> String {
        let with = if self.python { ", with Python" } else { "" };
        format!("an image that jobs run in, from busybox and bash{with} (about 3 s)")
    }

    fn make(&self, staging: &Path, _home: &Path) -> Result<()> {
        let unpacked = staging.join("unpacked");
        self.suite.unpack(&["busybox-static", "bash-static"], &unpacked)?;
        let root = self.root(staging);
        // Apptainer mounts or makes these; it cannot make them itself in a folder that belongs to someone else.
        for dir in [
            "bin", "etc", "tmp", "var/tmp", "proc", "sys", "dev", "root", "home", "run", "mnt", "opt", "srv", "htc_run",
        ] {
            let dir = root.join(dir);
            fs::create_dir_all(&dir).doing("making the folder", &dir)?;
        }
        for (link, target) in [("usr", "."), ("sbin", "bin")] {
            let link = root.join(link);
            symlink(target, &link).doing("linking", &link)?;
        }
        for (program, name) in [("busybox", "busybox"), ("bash-static", "bash")] {
            let from =
                ["usr/bin", "bin"].iter().map(|dir| unpacked.join(dir).join(program)).find(|path| path.is_file());
            let from = from.unwrap_or_else(|| unpacked.join("usr/bin").join(program));
            let to = root.join("bin").join(name);
            fs::rename(&from, &to).doing("moving", &from)?;
        }
        let busybox = root.join("bin/busybox");
        let applets = run_ok("listing busybox's applets", Command::new(&busybox).arg("--list"), "", CHECK)?;
        for applet in applets.lines().filter(|name| !["busybox", "bash"].contains(name)) {
            let link = root.join("bin").join(applet);
            symlink("busybox", &link).doing("linking", &link)?;
        }
        for (file, text) in [
            ("passwd", "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/tmp:/bin/sh\n"),
            ("group", "root:x:0:\nnogroup:x:65534:\n"),
            ("hosts", "127.0.0.1 localhost\n"),
            ("nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n"),
            ("resolv.conf", ""),
            ("localtime", ""),
        ] {
            let path = root.join("etc").join(file);
            fs::write(&path, text).doing("writing", &path)?;
        }
        crate::cache::remove(&unpacked)?;
        if self.python {
            self.add_python(&unpacked, &root)?;
            crate::cache::remove(&unpacked)?;
        }
        Ok(())
    }
}
