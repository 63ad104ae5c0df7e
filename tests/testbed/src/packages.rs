//! Debian packages without installing them: apt with a state of its own, so signatures are checked and the machine's
//! own apt is left alone; and binaries made to run from any folder, on any older Debian.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use crate::cache::{digest, remove};
use crate::error::{Doing, Error, Result};
use crate::scratch::Scratch;
use crate::tool::run_ok;

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
const DOWNLOAD: Duration = Duration::from_mins(10);
const UNPACK: Duration = Duration::from_mins(2);

/// What packages carry that no test needs.
const SUPERFLUOUS: [&str; 8] = ["doc", "man", "info", "locale", "lintian", "bug", "perl5", "python3"];

/// One Debian suite. Its index is fetched at the first use and dropped with this value.
#[derive(Debug)]
pub(crate) struct Suite {
    name: &'static str,
    index: OnceLock<Scratch>,
}

impl Suite {
    /// The suite called `name`.
    #[must_use]
    pub(crate) fn new(name: &'static str) -> Self {
        Self { name, index: OnceLock::new() }
    }

    /// The suite's name.
    #[must_use]
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// Downloads `packages` (no dependencies are added) and unpacks them into `root`.
    pub(crate) fn unpack(&self, packages: &[&str], root: &Path) -> Result<()> {
        let folder = self.index()?;
        let debs = folder.join(format!("debs-{}", digest(packages)));
        fs::create_dir_all(&debs).doing("making the folder", &debs)?;
        let doing = format!("downloading packages of Debian {}", self.name);
        run_ok(&doing, apt(folder).current_dir(&debs).arg("download").args(packages), "", DOWNLOAD)?;
        fs::create_dir_all(root).doing("making the folder", root)?;
        for entry in fs::read_dir(&debs).doing("listing", &debs)? {
            let deb = entry.doing("listing", &debs)?.path();
            run_ok("unpacking a Debian package", Command::new("dpkg-deb").arg("-x").arg(&deb).arg(root), "", UNPACK)?;
        }
        for name in SUPERFLUOUS {
            remove(&root.join("usr/share").join(name))?;
        }
        remove(&debs)
    }

    /// Downloads `packages` with everything that they depend on (apt's own choice, without recommendations) and unpacks it
    /// into `root`. Nothing is configured: no script of a package runs.
    pub(crate) fn install(&self, packages: &[&str], root: &Path) -> Result<()> {
        let folder = self.index()?;
        let archives = folder.join("cache/archives");
        let doing = format!("downloading packages of Debian {} and what they depend on", self.name);
        let mut install = apt(folder);
        install.args(["install", "--download-only", "--yes", "--no-install-recommends"]).args(packages);
        run_ok(&doing, &mut install, "", DOWNLOAD)?;
        fs::create_dir_all(root).doing("making the folder", root)?;
        let mut debs = Vec::new();
        for entry in fs::read_dir(&archives).doing("listing", &archives)? {
            let path = entry.doing("listing", &archives)?.path();
            debs.extend(path.extension().is_some_and(|extension| extension == "deb").then_some(path));
        }
        // The links from /bin to /usr/bin and the like are base-files': they must be there before what goes through them.
        debs.sort_by_key(|deb| {
            let name = deb.file_name().unwrap_or_default().to_string_lossy().into_owned();
            (!name.starts_with("base-files_"), name)
        });
        for deb in &debs {
            run_ok("unpacking a Debian package", Command::new("dpkg-deb").arg("-x").arg(deb).arg(root), "", UNPACK)?;
            fs::remove_file(deb).doing("removing", deb)?;
        }
        for name in ["doc", "man", "info", "locale", "lintian", "bug"] {
            remove(&root.join("usr/share").join(name))?;
        }
        Ok(())
    }

    /// The folder with apt's state and the suite's index.
    fn index(&self) -> Result<&Path> {
        if let Some(scratch) = self.index.get() {
            return Ok(scratch.path());
        }
        if !Path::new(KEYRING).exists() {
            return Err(Error::Machine {
                problem: format!("Debian's archive keyring {KEYRING} is missing"),
                remedy: "install the package debian-archive-keyring".to_owned(),
            });
        }
        let scratch = Scratch::new()?;
        let folder = scratch.path();
        for dir in ["state/lists/partial", "cache/archives/partial"] {
            let dir = folder.join(dir);
            fs::create_dir_all(&dir).doing("making the folder", &dir)?;
        }
        let source =
            format!("deb [arch={} signed-by={KEYRING}] {} {} main\n", Arch::current()?.debian, mirror()?, self.name);
        for (file, text) in [("sources.list", source.as_str()), ("status", "")] {
            let path = folder.join(file);
            fs::write(&path, text).doing("writing", &path)?;
        }
        run_ok(&format!("fetching the index of Debian {}", self.name), apt(folder).arg("update"), "", DOWNLOAD)?;
        Ok(self.index.get_or_init(|| scratch).path())
    }
}

/// apt-get with all its state in `folder`.
fn apt(folder: &Path) -> Command {
    let mut apt = Command::new("apt-get");
    apt.env("LC_ALL", "C").env("DEBIAN_FRONTEND", "noninteractive").arg("-qq");
    for (option, path) in [
        ("Dir::Etc::SourceList", folder.join("sources.list")),
        ("Dir::Etc::SourceParts", PathBuf::from("/dev/null")),
        ("Dir::State", folder.join("state")),
        ("Dir::State::status", folder.join("status")),
        ("Dir::Cache", folder.join("cache")),
    ] {
        apt.arg("-o").arg(format!("{option}={}", path.display()));
    }
    // The sandbox account could not enter the private folder. An index past its date is still signed: sid's mirror
    // may be frozen, and a frozen sid serves as well. `update` must not call a failed download a warning.
    for option in [
        "APT::Sandbox::User=",
        "APT::Default-Release=",
        "Acquire::Check-Valid-Until=false",
        "Acquire::Retries=4",
        "Acquire::Languages=none",
        "Acquire::PDiffs=false",
        "APT::Update::Error-Mode=any",
        "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false",
        "Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled=false",
    ] {
        apt.args(["-o", option]);
    }
    apt
}

/// Debian's mirror: `HTC_TESTBED_MIRROR`, else the one that this machine's own apt uses for its release.
fn mirror() -> Result<String> {
    if let Ok(mirror) = std::env::var("HTC_TESTBED_MIRROR") {
        return Ok(mirror);
    }
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let codename =
        release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME=")).unwrap_or("stable").trim_matches('"');
    let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
    if let Ok(dir) = fs::read_dir("/etc/apt/sources.list.d") {
        files.extend(dir.filter_map(|entry| Some(entry.ok()?.path())));
    }
    files.sort();
    files
        .iter()
        .filter_map(|path| Some((path, fs::read_to_string(path).ok()?)))
        .find_map(|(path, text)| match path.extension()?.to_str()? {
            "sources" => mirror_in_deb822(&text, codename),
            "list" => mirror_in_list(&text, codename),
            _ => None,
        })
        .ok_or_else(|| Error::Machine {
            problem: format!("no Debian mirror for {codename} in this machine's apt sources"),
            remedy: "set HTC_TESTBED_MIRROR to the URL of a Debian mirror".to_owned(),
        })
}

/// One-line format: `deb [options] URI suite component…`.
fn mirror_in_list(text: &str, codename: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let line = line.trim().strip_prefix("deb ")?.trim_start();
        let line = match line.strip_prefix('[') {
            Some(rest) => rest.split_once(']')?.1,
            None => line,
        };
        let mut words = line.split_whitespace();
        let (uri, suite) = (words.next()?, words.next()?);
        (suite == codename && words.any(|w| w == "main")).then(|| uri.to_owned())
    })
}

/// Stanzas of `Field: value` lines, separated by empty lines.
fn mirror_in_deb822(text: &str, codename: &str) -> Option<String> {
    text.split("\n\n").find_map(|stanza| {
        let words = |field: &str| {
            stanza
                .lines()
                .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))
                .map(|value| value.split_whitespace().collect::<Vec<_>>())
                .unwrap_or_default()
        };
        let fits = words("Types").contains(&"deb")
            && words("Suites").contains(&codename)
            && words("Components").contains(&"main");
        fits.then(|| words("URIs").first().map(|uri| (*uri).to_owned()))?
    })
}

/// Debian's names for this machine's architecture.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arch {
    /// As in package names.
    pub(crate) debian: &'static str,
    /// The folder of its libraries below `usr/lib`.
    pub(crate) triplet: &'static str,
    /// The dynamic loader's file name in that folder.
    pub(crate) loader: &'static str,
}

impl Arch {
    /// The architecture this program was built for.
    pub(crate) fn current() -> Result<Self> {
        match std::env::consts::ARCH {
            "x86_64" => Ok(Self { debian: "amd64", triplet: "x86_64-linux-gnu", loader: "ld-linux-x86-64.so.2" }),
            "aarch64" => Ok(Self { debian: "arm64", triplet: "aarch64-linux-gnu", loader: "ld-linux-aarch64.so.1" }),
            other => Err(Error::Machine {
                problem: format!("no HTCondor packages are known for {other}"),
                remedy: "use a machine with x86_64 or aarch64".to_owned(),
            }),
        }
    }
}

/// Makes the binaries and libraries in `folders` below `staging` use the C library and the other libraries unpacked
/// beside them. They are to be run from below `home`.
pub(crate) fn relocate(staging: &Path, home: &Path, arch: Arch, folders: &[&str]) -> Result<()> {
    let libraries = format!("{0}/usr/lib:{0}/usr/lib/{1}", home.display(), arch.triplet);
    let loader = format!("{}/usr/lib/{}/{}", home.display(), arch.triplet, arch.loader);
    for folder in folders {
        let folder = staging.join(folder);
        for entry in fs::read_dir(&folder).doing("listing", &folder)? {
            let path = entry.doing("listing", &folder)?.path();
            if !is_elf(&path)? {
                continue;
            }
            let patchelf = |args: &[&str]| {
                run_ok("relocating a binary", Command::new("patchelf").args(args).arg(&path), "", UNPACK)
            };
            let library = path.file_name().is_some_and(|name| name.to_string_lossy().contains(".so"));
            // A static program has neither a loader nor a path for libraries.
            if !library && patchelf(&["--print-interpreter"]).is_err() {
                continue;
            }
            if !library {
                patchelf(&["--set-interpreter", &loader])?;
            }
            // DT_RPATH and not DT_RUNPATH: it holds for the libraries of libraries, too.
            patchelf(&["--force-rpath", "--set-rpath", &libraries])?;
        }
    }
    Ok(())
}

fn is_elf(path: &Path) -> Result<bool> {
    if !fs::symlink_metadata(path).doing("looking at", path)?.is_file() {
        return Ok(false);
    }
    let mut magic = [0; 4];
    let mut file = File::open(path).doing("opening", path)?;
    Ok(file.read_exact(&mut magic).is_ok() && magic == *b"\x7fELF")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mirror_is_found_in_either_format() {
        let list = "# x\ndeb https://other/apt cloud-trixie main\ndeb [signed-by=/k arch=amd64] http://m/debian trixie main contrib\n";
        assert_eq!(mirror_in_list(list, "trixie").as_deref(), Some("http://m/debian"));
        let deb822 = "Types: deb\nURIs: https://s/sec\nSuites: trixie-security\nComponents: main\n\n\
                      Types: deb\n# note\nURIs: http://m/debian\nSuites: trixie trixie-updates\nComponents: main\n";
        assert_eq!(mirror_in_deb822(deb822, "trixie").as_deref(), Some("http://m/debian"));
        assert_eq!(mirror_in_deb822(deb822, "sid"), None);
    }
}
