//! File access of each tool call, and the command-line prefix that enforces it.

use std::path::{Path, PathBuf};

use htc_confine::{COMMAND, Confinement, kernel_has_landlock};

/// Paths that all tools read: programs, libraries, and the system's configuration for these. Not all of `/etc`: it may
/// hold passwords and tokens.
const SYSTEM: &[&str] = &[
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib64",
    "/opt",
    "/proc",
    "/sys",
    "/dev/urandom",
    "/dev/random",
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/ca-certificates.conf",
    "/etc/condor/condor_config",
    "/etc/condor/condor_config.local",
    "/etc/condor/config.d",
    "/etc/crypto-policies",
    "/etc/gai.conf",
    "/etc/group",
    "/etc/host.conf",
    "/etc/hostname",
    "/etc/hosts",
    "/etc/krb5.conf",
    "/etc/krb5.conf.d",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/ld.so.preload",
    "/etc/localtime",
    "/etc/machine-id",
    "/etc/nsswitch.conf",
    "/etc/os-release",
    "/etc/passwd",
    "/etc/pki",
    "/etc/protocols",
    "/etc/resolv.conf",
    "/etc/services",
    "/etc/ssl",
    "/etc/timezone",
    "/run/systemd/resolve",
    "/run/resolvconf",
    "/var/lib/ca-certificates",
    "/var/lib/sss/pubconf",
];
/// Folders of an HTCondor installation that are granted beside the folder of its tools, which find libraries and
/// helpers there.
const INSTALLED: &[&str] = &["bin", "sbin", "lib", "lib32", "lib64", "libexec", "share", "etc"];
/// File that all tools write.
const SINK: &str = "/dev/null";
/// Maximum address space of a tool, in bytes. condor_q needs 32 MB for 100,000 ads, as it prints them one by one.
const MEMORY: u64 = 1 << 30;
/// Maximum size, in bytes, of a file written by a tool without a limit of its own.
const FILE_SIZE: u64 = 64 << 20;

/// File access of one call, beyond that of all calls.
#[derive(Clone, Copy, Debug, Default)]
pub struct FileAccess<'a> {
    /// Files and folders that the tool reads.
    pub reads: &'a [PathBuf],
    /// Folders that the tool writes.
    pub writes: &'a [PathBuf],
    /// Maximum size in bytes of a file that it may write. None means [`FILE_SIZE`].
    pub largest: Option<u64>,
}

/// The site's settings for confinement.
#[derive(Clone, Copy, Debug)]
pub struct ConfinementSettings<'a> {
    pub wanted: Confinement,
    /// Further paths that tools with the operator's own credentials read.
    pub reads: &'a [PathBuf],
    /// Folders that must not be visible to tools as a whole.
    pub protected: &'a [PathBuf],
}

/// Credentials of one call, and whether it may outlive the operator.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CallCredentials<'a> {
    /// Whether it has the operator's own credentials.
    pub own: bool,
    /// Folder with the credentials of another identity.
    pub folder: Option<&'a Path>,
    /// Value of `KRB5CCNAME` that replaces the operator's own.
    pub cache: Option<&'a str>,
    /// Whether the call ends with its parent.
    pub dies_with_parent: bool,
}

/// Confinement of HTCondor's tools.
#[derive(Clone, Debug, Default)]
pub(super) struct ToolConfinement {
    /// Command-line prefix of each call. Empty means that tools are not confined.
    words: Vec<String>,
    landlock: bool,
    /// Further arguments for tools with the operator's own credentials: the folder of `CONDOR_CONFIG`, which may hold
    /// the operator's tokens, and more.
    own: Vec<String>,
    /// Paths that are not granted because each contains a protected folder.
    left_out: Vec<PathBuf>,
}

impl ToolConfinement {
    /// Creates the confinement of tools with this environment. `tools` are paths that show where tools are installed.
    pub(super) fn new(confining: ConfinementSettings<'_>, tools: &[PathBuf], environment: &[(String, String)]) -> Self {
        if confining.wanted == Confinement::Off {
            return Self::default();
        }
        // This program itself, even if its file has been replaced or removed since.
        let program = format!("/proc/{}/exe", std::process::id());
        let confine = Self::by(program, kernel_has_landlock(), confining, tools, environment);
        #[cfg(feature = "fail-points")]
        let confine = {
            let folder = |name| std::env::var_os(name).map(PathBuf::from);
            match (folder("HTC_STAND_INS"), folder("HTC_STAND_IN_FOR")) {
                (Some(folder), Some(real)) => confine.with_stand_ins(&folder, &real),
                _ => confine,
            }
        };
        confine
    }

    /// Grants access for the stand-ins of tools in tests. These write into their own folder and then execute the real
    /// tools in another folder.
    #[cfg(feature = "fail-points")]
    fn with_stand_ins(mut self, folder: &Path, real: &Path) -> Self {
        if self.landlock {
            self.words.push(write(folder));
            self.words.extend(installation(&real.join("condor_submit")).iter().map(|path| read(path)));
        }
        self
    }

    fn by(
        program: String,
        landlock: bool,
        confining: ConfinementSettings<'_>,
        tools: &[PathBuf],
        environment: &[(String, String)],
    ) -> Self {
        let words = vec![program, COMMAND.to_owned(), format!("--memory={MEMORY}")];
        let mut confine = Self { words, landlock, ..Self::default() };
        if !landlock {
            return confine;
        }
        let protected: Vec<PathBuf> = confining.protected.iter().map(|folder| real(folder)).collect();
        let installed = tools.iter().flat_map(|tool| installation(tool));
        let for_all = SYSTEM.iter().map(PathBuf::from).chain(installed).chain(configuration(environment));
        let for_all = confine.without(&protected, for_all.collect());
        let own_reads = own_configuration(environment).into_iter().chain(confining.reads.iter().cloned());
        let own_reads = confine.without(&protected, own_reads.collect());
        let cache = confine.without(&protected, own_cache(environment).into_iter().collect());
        confine.words.extend(["--landlock".to_owned(), write(Path::new(SINK))]);
        confine.words.extend(for_all.iter().map(|path| read(path)));
        confine.own = own_reads.iter().map(|path| read(path)).chain(cache.iter().map(|path| write(path))).collect();
        confine
    }

    /// Returns those of `paths` that contain no protected folder. Records the others.
    fn without(&mut self, protected: &[PathBuf], paths: Vec<PathBuf>) -> Vec<PathBuf> {
        let paths = paths.into_iter().filter(|path| !path.as_os_str().is_empty());
        let (left_out, kept) = paths.partition(|path| {
            let path = real(path);
            protected.iter().any(|folder| folder.starts_with(&path))
        });
        self.left_out.extend::<Vec<PathBuf>>(left_out);
        kept
    }

    /// Returns whether Landlock confines the tools.
    pub(super) const fn by_landlock(&self) -> bool {
        self.landlock
    }

    /// Returns the paths that are not granted, although the settings name them, because each contains a protected
    /// folder.
    pub(super) fn excluded_paths(&self) -> &[PathBuf] {
        &self.left_out
    }

    /// Returns the command-line prefix of a call with this access and these credentials.
    pub(super) fn command_prefix(&self, touches: FileAccess<'_>, with: CallCredentials<'_>) -> Vec<String> {
        if self.words.is_empty() {
            return Vec::new();
        }
        let mut words = self.words.clone();
        words.push(format!("--file-size={}", touches.largest.unwrap_or(FILE_SIZE)));
        if with.dies_with_parent {
            words.push(format!("--dies-with={}", std::process::id()));
        }
        if self.landlock {
            if with.own {
                words.extend(self.own.iter().cloned());
            }
            words.extend(with.folder.map(read));
            words.extend(with.cache.and_then(cache_path).as_deref().map(write));
            words.extend(touches.reads.iter().map(|path| read(path)));
            words.extend(touches.writes.iter().map(|path| write(path)));
        }
        words.push("--".to_owned());
        words
    }
}

/// Returns the folders of a tool's installation: that of the tool, and the usual ones beside it, such as `lib` beside
/// `bin`.
fn installation(tool: &Path) -> Vec<PathBuf> {
    let Some(folder) = tool.parent().and_then(|folder| folder.canonicalize().ok()) else { return Vec::new() };
    if SYSTEM.iter().any(|path| folder.starts_with(path)) {
        return Vec::new();
    }
    let above = folder.parent().filter(|above| above.parent().is_some());
    let beside: Vec<PathBuf> =
        above.into_iter().flat_map(|above| INSTALLED.iter().map(move |name| above.join(name))).collect();
    std::iter::once(folder).chain(beside).collect()
}

/// Returns the configuration files that all tools read.
fn configuration(environment: &[(String, String)]) -> Vec<PathBuf> {
    let condor = value(environment, "CONDOR_CONFIG").map(PathBuf::from).into_iter();
    let condor = condor.flat_map(|file| [file.with_file_name("config.d"), file]);
    let kerberos = value(environment, "KRB5_CONFIG").into_iter().flat_map(|files| files.split(':').map(PathBuf::from));
    condor.chain(kerberos).collect()
}

/// Returns the folder of the configuration, which only tools with the operator's own credentials read as a whole.
fn own_configuration(environment: &[(String, String)]) -> Option<PathBuf> {
    let file = value(environment, "CONDOR_CONFIG").unwrap_or("/etc/condor/condor_config");
    Path::new(file).parent().map(Path::to_owned)
}

/// Returns the path of the operator's own Kerberos tickets. A tool stores its ticket for the service there.
fn own_cache(environment: &[(String, String)]) -> Option<PathBuf> {
    match value(environment, "KRB5CCNAME") {
        Some(name) => cache_path(name),
        None => Some(PathBuf::from(format!("/tmp/krb5cc_{}", rustix::process::getuid().as_raw()))),
    }
}

/// Returns the file or folder of a ticket cache, or none if it is elsewhere, e.g. in the kernel's keyring.
fn cache_path(name: &str) -> Option<PathBuf> {
    let path = name.strip_prefix("FILE:").or_else(|| name.strip_prefix("DIR:")).unwrap_or(name);
    // `DIR::` names one cache in a folder.
    let path = path.strip_prefix(':').unwrap_or(path);
    path.starts_with('/').then(|| PathBuf::from(path))
}

fn value<'a>(environment: &'a [(String, String)], name: &str) -> Option<&'a str> {
    let found = environment.iter().find(|(other, _)| other == name);
    found.map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
}

/// Resolves the symbolic links of the existing part of a path.
fn real(path: &Path) -> PathBuf {
    let there = path.ancestors().find_map(|above| Some((above, above.canonicalize().ok()?)));
    let real = there.and_then(|(above, real)| Some(real.join(path.strip_prefix(above).ok()?)));
    real.unwrap_or_else(|| path.to_owned())
}

fn read(path: &Path) -> String {
    format!("--read={}", path.display())
}

fn write(path: &Path) -> String {
    format!("--write={}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(values: &[(&str, &str)]) -> Vec<(String, String)> {
        values.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn confine(landlock: bool, protected: &[&str], values: &[(&str, &str)]) -> ToolConfinement {
        let (reads, protected) = ([PathBuf::from("/more")], protected.iter().map(PathBuf::from).collect::<Vec<_>>());
        let confining = ConfinementSettings { wanted: Confinement::Auto, reads: &reads, protected: &protected };
        ToolConfinement::by(
            "/p".to_owned(),
            landlock,
            confining,
            &["/usr/bin/env".into(), "/bin/sh".into()],
            &environment(values),
        )
    }

    const VALUES: [(&str, &str); 3] =
        [("PATH", "/usr/bin"), ("CONDOR_CONFIG", "/c/condor_config"), ("KRB5CCNAME", "FILE:/k/own")];

    fn words(landlock: bool, own: bool) -> Vec<String> {
        let (reads, writes) = ([PathBuf::from("/data/sandbox/u")], [PathBuf::from("/data/out")]);
        let touches = FileAccess { reads: &reads, writes: &writes, largest: Some(7) };
        let (folder, cache) = (Some(Path::new("/run/secrets/a")), Some("FILE:/run/secrets/a/ccache"));
        confine(landlock, &[], &VALUES)
            .command_prefix(touches, CallCredentials { own, folder, cache, dies_with_parent: true })
    }

    fn own_words(confine: &ToolConfinement) -> Vec<String> {
        confine.command_prefix(FileAccess::default(), CallCredentials { own: true, ..CallCredentials::default() })
    }

    fn has(words: &[String], word: &str) -> bool {
        words.iter().any(|other| other == word)
    }

    #[test]
    fn tool_is_granted_the_paths_of_its_call_and_identity() {
        let dies_with = format!("--dies-with={}", std::process::id());
        let of_secret = words(true, false);
        assert_eq!(of_secret[..2], ["/p", COMMAND]);
        assert_eq!(of_secret.last().unwrap(), "--");
        for word in [
            "--landlock",
            "--file-size=7",
            dies_with.as_str(),
            "--read=/data/sandbox/u",
            "--write=/data/out",
            "--write=/dev/null",
        ] {
            assert!(has(&of_secret, word), "{word}: {of_secret:?}");
        }
        // The ticket for the service is stored in the cache.
        assert!(has(&of_secret, "--write=/run/secrets/a/ccache"), "{of_secret:?}");
        assert_eq!(of_secret.iter().filter(|word| word.starts_with("--write=")).count(), 3);
        for word in ["--read=/c/condor_config", "--read=/c/config.d", "--read=/run/secrets/a", "--read=/usr"] {
            assert!(has(&of_secret, word), "{word}: {of_secret:?}");
        }
        // Tools of other identities cannot read the operator's own tokens and ticket.
        let own = words(true, true);
        for word in ["--read=/c", "--write=/k/own", "--read=/more"] {
            assert!(has(&own, word) && !has(&of_secret, word), "{word}");
        }
        for folder in ["/", "/etc", "/data", "/run", "/tmp", "/var", "/home", "/dev", "/dev/zero"] {
            assert!(!has(&own, &read(Path::new(folder))), "{folder}");
        }
    }

    #[test]
    fn ticket_cache_path_follows_krb5ccname() {
        let usual = format!("--write=/tmp/krb5cc_{}", rustix::process::getuid().as_raw());
        for (name, word) in [
            ("FILE:/k/c", "--write=/k/c"),
            ("DIR:/k/d", "--write=/k/d"),
            ("DIR::/k/d/tkt", "--write=/k/d/tkt"),
            ("/k/c", "--write=/k/c"),
            ("", usual.as_str()),
        ] {
            let words = own_words(&confine(true, &[], &[("KRB5CCNAME", name)]));
            assert!(has(&words, word), "{name}: {words:?}");
        }
        assert!(has(&own_words(&confine(true, &[], &[])), &usual));
        let keyring = own_words(&confine(true, &[], &[("KRB5CCNAME", "KEYRING:persistent:1")]));
        assert!(!keyring.iter().any(|word| word.contains("KEYRING")), "{keyring:?}");
    }

    #[test]
    fn empty_path_is_not_granted() {
        for config in ["", "ONLY_ENV", "condor_config"] {
            let words = own_words(&confine(
                true,
                &[],
                &[("CONDOR_CONFIG", config), ("KRB5CCNAME", "FILE:"), ("KRB5_CONFIG", ""), ("TZ", "")],
            ));
            assert!(!has(&words, "--read=") && !has(&words, "--write="), "{words:?}");
        }
        let words = own_words(&confine(true, &[], &[("KRB5_CONFIG", "/a:/b")]));
        assert!(has(&words, "--read=/a") && has(&words, "--read=/b"), "{words:?}");
    }

    #[test]
    fn folder_that_contains_a_protected_one_is_excluded() {
        let values = [("CONDOR_CONFIG", "/data/condor_config"), ("KRB5CCNAME", "DIR:/run")];
        let confine = confine(true, &["/data", "/run/htc", "/more/ledger", "/credentials"], &values);
        let words = own_words(&confine);
        for word in ["--read=/data", "--write=/run", "--read=/more"] {
            assert!(!has(&words, word), "{word}: {words:?}");
        }
        assert!(has(&words, "--read=/data/condor_config") && has(&words, "--read=/data/config.d"), "{words:?}");
        assert_eq!(confine.excluded_paths(), ["/data", "/more", "/run"].map(PathBuf::from));
    }

    #[test]
    fn symbolic_link_does_not_hide_a_protected_folder() {
        let scratch = tempfile::tempdir().unwrap();
        let (data, link) = (scratch.path().join("data"), scratch.path().join("link"));
        std::os::unix::fs::symlink(scratch.path(), &link).unwrap();
        let config = link.join("condor_config");
        let confine = confine(true, &[data.to_str().unwrap()], &[("CONDOR_CONFIG", config.to_str().unwrap())]);
        assert_eq!(confine.excluded_paths(), [link]);
    }

    #[test]
    fn usual_folders_of_an_installation_are_granted() {
        let scratch = tempfile::tempdir().unwrap();
        let above = scratch.path().canonicalize().unwrap();
        std::fs::create_dir(above.join("bin")).unwrap();
        let granted = installation(&above.join("bin/condor_q"));
        for name in ["bin", "sbin", "lib", "lib64", "libexec", "share", "etc"] {
            assert!(granted.contains(&above.join(name)), "{name}: {granted:?}");
        }
        assert!(!granted.contains(&above), "{granted:?}");
        assert!(installation(Path::new("/usr/bin/env")).is_empty());
    }

    #[cfg(feature = "fail-points")]
    #[test]
    fn stand_ins_write_only_their_own_folder() {
        let scratch = tempfile::tempdir().unwrap();
        let real = scratch.path().canonicalize().unwrap().join("bin");
        std::fs::create_dir(&real).unwrap();
        let without = own_words(&confine(true, &[], &VALUES));
        let mut with = own_words(&confine(true, &[], &VALUES).with_stand_ins(Path::new("/gates"), &real));
        assert!(has(&with, "--write=/gates") && has(&with, &read(&real)), "{with:?}");
        let above = real.parent().unwrap().to_owned();
        with.retain(|word| word != "--write=/gates" && !INSTALLED.iter().any(|name| *word == read(&above.join(name))));
        assert_eq!(with, without);
        let off = confine(false, &[], &VALUES).with_stand_ins(Path::new("/gates"), &real);
        assert_eq!(own_words(&off), own_words(&confine(false, &[], &VALUES)));
    }

    #[test]
    fn resources_are_limited_without_landlock_too() {
        let dies_with = format!("--dies-with={}", std::process::id());
        assert_eq!(
            words(false, true),
            ["/p", COMMAND, "--memory=1073741824", "--file-size=7", dies_with.as_str(), "--"]
        );
        let off = ConfinementSettings { wanted: Confinement::Off, reads: &[], protected: &[] };
        let off = ToolConfinement::new(off, &[], &environment(&VALUES));
        assert!(own_words(&off).is_empty() && !off.by_landlock());
    }

    #[test]
    fn confinement_step_is_the_running_program() {
        let auto = ConfinementSettings { wanted: Confinement::Auto, reads: &[], protected: &[] };
        let program = own_words(&ToolConfinement::new(auto, &[], &[])).remove(0);
        assert_eq!(program, format!("/proc/{}/exe", std::process::id()));
        assert_eq!(std::fs::read_link(program).unwrap(), std::env::current_exe().unwrap());
    }
}
