//! What each call of a tool may touch, and the words before it on the command line that see to it.

use std::path::{Path, PathBuf};

use crate::confine::{COMMAND, Confinement, kernel_has_landlock};

/// What all tools read: programs and libraries, and what these look up of the machine. `/etc` not as a whole: it may have
/// passwords and tokens.
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
/// What is granted of an installation of HTCondor's, beside the folder of its tools: they find libraries and helpers there.
const INSTALLED: &[&str] = &["bin", "sbin", "lib", "lib32", "lib64", "libexec", "share", "etc"];
/// What all tools write.
const SINK: &str = "/dev/null";
/// Largest address space of a tool, in bytes. condor_q has 100,000 ads in 32 MB: it prints one after the other.
const MEMORY: u64 = 1 << 30;
/// Largest file of a tool that writes but little, in bytes.
const FILE_SIZE: u64 = 64 << 20;

/// What one call needs beside what all need.
#[derive(Clone, Copy, Debug, Default)]
pub struct Touches<'a> {
    /// Files and folders that it reads.
    pub reads: &'a [PathBuf],
    /// Folders that it writes.
    pub writes: &'a [PathBuf],
    /// Largest file that it may write, in bytes; none: [`FILE_SIZE`].
    pub largest: Option<u64>,
}

/// What the settings say of confinement.
#[derive(Clone, Copy, Debug)]
pub struct Confining<'a> {
    /// Whether there is any.
    pub wanted: Confinement,
    /// What tools in the operator's own name read beside all else.
    pub reads: &'a [PathBuf],
    /// Folders that no tool may see as a whole.
    pub protected: &'a [PathBuf],
}

/// The credentials of one call, and whether it may go on without the operator.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct With<'a> {
    /// It has the operator's own.
    pub own: bool,
    /// The folder with those of who has others.
    pub folder: Option<&'a Path>,
    /// The value of `KRB5CCNAME` that takes the place of the operator's own.
    pub cache: Option<&'a str>,
    /// It ends with its parent.
    pub dies_with_parent: bool,
}

/// How the tools are confined.
#[derive(Clone, Debug, Default)]
pub(super) struct Confine {
    /// The words before each call; none: they are not.
    words: Vec<String>,
    landlock: bool,
    /// Words for tools in the operator's own name: the folder of `CONDOR_CONFIG`, which may have the operator's tokens, and more.
    own: Vec<String>,
    /// What tools would read, or write, if nothing that is protected were in it.
    left_out: Vec<PathBuf>,
}

impl Confine {
    /// For tools with this environment, found in these places.
    pub(super) fn new(confining: Confining<'_>, tools: &[PathBuf], environment: &[(String, String)]) -> Self {
        if confining.wanted == Confinement::Off {
            return Self::default();
        }
        // This very program, even if its file has been replaced or removed since.
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

    /// Lets the tools be stand-ins of a test, which write into their own folder and then become the real tools of another folder.
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
        confining: Confining<'_>,
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

    /// Those of `paths` that have nothing in them that is protected. The others are noted.
    fn without(&mut self, protected: &[PathBuf], paths: Vec<PathBuf>) -> Vec<PathBuf> {
        let paths = paths.into_iter().filter(|path| !path.as_os_str().is_empty());
        let (left_out, kept) = paths.partition(|path| {
            let path = real(path);
            protected.iter().any(|folder| folder.starts_with(&path))
        });
        self.left_out.extend::<Vec<PathBuf>>(left_out);
        kept
    }

    /// Whether Landlock confines them.
    pub(super) const fn by_landlock(&self) -> bool {
        self.landlock
    }

    /// What they may not touch, although the settings say so, because of what is in it.
    pub(super) fn left_out(&self) -> &[PathBuf] {
        &self.left_out
    }

    /// The words before a tool with these credentials.
    pub(super) fn words(&self, touches: Touches<'_>, with: With<'_>) -> Vec<String> {
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

/// What belongs to a tool: its folder, and the usual ones beside that, such as `lib` beside `bin`.
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

/// The configuration that all tools read.
fn configuration(environment: &[(String, String)]) -> Vec<PathBuf> {
    let condor = value(environment, "CONDOR_CONFIG").map(PathBuf::from).into_iter();
    let condor = condor.flat_map(|file| [file.with_file_name("config.d"), file]);
    let kerberos = value(environment, "KRB5_CONFIG").into_iter().flat_map(|files| files.split(':').map(PathBuf::from));
    condor.chain(kerberos).collect()
}

/// What only the operator's own tools read of it: the whole folder.
fn own_configuration(environment: &[(String, String)]) -> Option<PathBuf> {
    let file = value(environment, "CONDOR_CONFIG").unwrap_or("/etc/condor/condor_config");
    Path::new(file).parent().map(Path::to_owned)
}

/// Where the operator's own tickets are. A tool stores its ticket for the service there.
fn own_cache(environment: &[(String, String)]) -> Option<PathBuf> {
    match value(environment, "KRB5CCNAME") {
        Some(name) => cache_path(name),
        None => Some(PathBuf::from(format!("/tmp/krb5cc_{}", rustix::process::getuid().as_raw()))),
    }
}

/// The file or folder of a ticket cache; none if it is elsewhere, as in the kernel's keyring.
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

/// A path without links, as far as it is there.
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

    fn confine(landlock: bool, protected: &[&str], values: &[(&str, &str)]) -> Confine {
        let (reads, protected) = ([PathBuf::from("/more")], protected.iter().map(PathBuf::from).collect::<Vec<_>>());
        let confining = Confining { wanted: Confinement::Auto, reads: &reads, protected: &protected };
        Confine::by(
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
        let touches = Touches { reads: &reads, writes: &writes, largest: Some(7) };
        let (folder, cache) = (Some(Path::new("/run/secrets/a")), Some("FILE:/run/secrets/a/ccache"));
        confine(landlock, &[], &VALUES).words(touches, With { own, folder, cache, dies_with_parent: true })
    }

    fn own_words(confine: &Confine) -> Vec<String> {
        confine.words(Touches::default(), With { own: true, ..With::default() })
    }

    fn has(words: &[String], word: &str) -> bool {
        words.iter().any(|other| other == word)
    }

    #[test]
    fn a_tool_has_what_its_call_and_its_identity_need() {
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
        // The ticket for the service goes into the cache.
        assert!(has(&of_secret, "--write=/run/secrets/a/ccache"), "{of_secret:?}");
        assert_eq!(of_secret.iter().filter(|word| word.starts_with("--write=")).count(), 3);
        for word in ["--read=/c/condor_config", "--read=/c/config.d", "--read=/run/secrets/a", "--read=/usr"] {
            assert!(has(&of_secret, word), "{word}: {of_secret:?}");
        }
        // The operator's own tokens and ticket are no other's.
        let own = words(true, true);
        for word in ["--read=/c", "--write=/k/own", "--read=/more"] {
            assert!(has(&own, word) && !has(&of_secret, word), "{word}");
        }
        for folder in ["/", "/etc", "/data", "/run", "/tmp", "/var", "/home", "/dev", "/dev/zero"] {
            assert!(!has(&own, &read(Path::new(folder))), "{folder}");
        }
    }

    #[test]
    fn tickets_are_found_where_kerberos_has_them() {
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
    fn what_is_empty_is_not_granted() {
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
    fn what_has_protected_folders_in_it_is_left_out() {
        let values = [("CONDOR_CONFIG", "/data/condor_config"), ("KRB5CCNAME", "DIR:/run")];
        let confine = confine(true, &["/data", "/run/htc", "/more/ledger", "/credentials"], &values);
        let words = own_words(&confine);
        for word in ["--read=/data", "--write=/run", "--read=/more"] {
            assert!(!has(&words, word), "{word}: {words:?}");
        }
        assert!(has(&words, "--read=/data/condor_config") && has(&words, "--read=/data/config.d"), "{words:?}");
        assert_eq!(confine.left_out(), ["/data", "/more", "/run"].map(PathBuf::from));
    }

    #[test]
    fn a_link_hides_no_protected_folder() {
        let scratch = tempfile::tempdir().unwrap();
        let (data, link) = (scratch.path().join("data"), scratch.path().join("link"));
        std::os::unix::fs::symlink(scratch.path(), &link).unwrap();
        let config = link.join("condor_config");
        let confine = confine(true, &[data.to_str().unwrap()], &[("CONDOR_CONFIG", config.to_str().unwrap())]);
        assert_eq!(confine.left_out(), [link]);
    }

    #[test]
    fn of_an_installation_the_usual_folders_are_granted() {
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
    fn stand_ins_write_their_own_folder_only() {
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
    fn without_landlock_resources_are_limited_all_the_same() {
        let dies_with = format!("--dies-with={}", std::process::id());
        assert_eq!(
            words(false, true),
            ["/p", COMMAND, "--memory=1073741824", "--file-size=7", dies_with.as_str(), "--"]
        );
        let off = Confining { wanted: Confinement::Off, reads: &[], protected: &[] };
        let off = Confine::new(off, &[], &environment(&VALUES));
        assert!(own_words(&off).is_empty() && !off.by_landlock());
    }

    #[test]
    fn the_step_is_this_very_program() {
        let auto = Confining { wanted: Confinement::Auto, reads: &[], protected: &[] };
        let program = own_words(&Confine::new(auto, &[], &[])).remove(0);
        assert_eq!(program, format!("/proc/{}/exe", std::process::id()));
        assert_eq!(std::fs::read_link(program).unwrap(), std::env::current_exe().unwrap());
    }
}
