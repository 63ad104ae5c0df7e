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
    "/dev/zero",
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

/// How the tools are confined.
#[derive(Clone, Debug)]
pub(super) struct Confine {
    /// The words before each call; none: they are not.
    words: Vec<String>,
    landlock: bool,
    /// The folder of `CONDOR_CONFIG`, which may have the operator's own tokens.
    own: Vec<String>,
}

impl Confine {
    /// For tools with this environment, found in these places.
    pub(super) fn new(wanted: Confinement, tools: &[PathBuf], environment: &[(String, String)]) -> Self {
        let none = Self { words: Vec::new(), landlock: false, own: Vec::new() };
        match (wanted, std::env::current_exe()) {
            (Confinement::Off, _) => none,
            (Confinement::Auto | Confinement::Required, Ok(program)) => {
                Self::by(&program.display().to_string(), kernel_has_landlock(), tools, environment)
            }
            // What cannot be named is not started, and says so.
            (Confinement::Auto | Confinement::Required, Err(_)) => {
                Self::by(env!("CARGO_PKG_NAME"), kernel_has_landlock(), tools, environment)
            }
        }
    }

    fn by(program: &str, landlock: bool, tools: &[PathBuf], environment: &[(String, String)]) -> Self {
        let mut confine = Self { words: Vec::new(), landlock, own: Vec::new() };
        confine.words = vec![program.to_owned(), COMMAND.to_owned(), format!("--memory={MEMORY}")];
        if !landlock {
            return confine;
        }
        confine.words.push("--landlock".to_owned());
        confine.words.push(format!("--write={SINK}"));
        confine.words.extend(SYSTEM.iter().map(|path| read(path)));
        // They may find their libraries beside them, in `lib` beside `bin`.
        let installation = |tool: &PathBuf| {
            let folder = tool.parent()?.canonicalize().ok()?;
            folder.parent().filter(|above| above.parent().is_some()).map(|above| read(&above.display()))
        };
        confine.words.extend(tools.iter().filter_map(installation));
        for (name, value) in environment {
            match name.as_str() {
                "CONDOR_CONFIG" => {
                    let folder = Path::new(value).parent().unwrap_or(Path::new("/"));
                    confine.words.push(read(value));
                    confine.words.push(read(&folder.join("config.d").display()));
                    confine.own.push(read(&folder.display()));
                }
                "KRB5_CONFIG" => confine.words.push(read(value)),
                // Those of the operator's own environment.
                "KRB5CCNAME" => confine.own.push(read(value.trim_start_matches("FILE:"))),
                _ => {}
            }
        }
        if !environment.iter().any(|(name, _)| name == "CONDOR_CONFIG") {
            confine.own.push(read("/etc/condor"));
        }
        confine
    }

    /// Whether Landlock confines them.
    pub(super) const fn by_landlock(&self) -> bool {
        self.landlock
    }

    /// The words before a tool; `own`: it has the operator's own credentials, `credentials`: the folder with those of who has
    /// others.
    pub(super) fn words(&self, touches: Touches<'_>, own: bool, credentials: Option<&Path>) -> Vec<String> {
        if self.words.is_empty() {
            return Vec::new();
        }
        let mut words = self.words.clone();
        words.push(format!("--file-size={}", touches.largest.unwrap_or(FILE_SIZE)));
        if self.landlock {
            if own {
                words.extend(self.own.iter().cloned());
            }
            words.extend(credentials.map(|path| read(&path.display())));
            words.extend(touches.reads.iter().map(|path| read(&path.display())));
            words.extend(touches.writes.iter().map(|path| format!("--write={}", path.display())));
        }
        words.push("--".to_owned());
        words
    }
}

fn read(path: &(impl std::fmt::Display + ?Sized)) -> String {
    format!("--read={path}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment() -> Vec<(String, String)> {
        [("PATH", "/usr/bin"), ("CONDOR_CONFIG", "/c/condor_config"), ("KRB5CCNAME", "FILE:/k/own")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .to_vec()
    }

    fn words(landlock: bool, own: bool) -> Vec<String> {
        let confine =
            Confine::by("/p", landlock, &[PathBuf::from("/usr/bin/env"), PathBuf::from("/bin/sh")], &environment());
        let (reads, writes) = ([PathBuf::from("/data/sandbox/u")], [PathBuf::from("/data/out")]);
        let touches = Touches { reads: &reads, writes: &writes, largest: Some(7) };
        confine.words(touches, own, Some(Path::new("/run/secrets/a")))
    }

    #[test]
    fn a_tool_has_what_its_call_and_its_identity_need() {
        let of_secret = words(true, false);
        assert_eq!(of_secret[..2], ["/p", COMMAND]);
        assert_eq!(of_secret.last().unwrap(), "--");
        let has = |words: &[String], word: &str| words.iter().any(|other| other == word);
        for word in ["--landlock", "--file-size=7", "--read=/data/sandbox/u", "--write=/data/out", "--write=/dev/null"]
        {
            assert!(has(&of_secret, word), "{word}: {of_secret:?}");
        }
        assert_eq!(of_secret.iter().filter(|word| word.starts_with("--write=")).count(), 2);
        for word in ["--read=/c/condor_config", "--read=/c/config.d", "--read=/run/secrets/a", "--read=/usr"] {
            assert!(has(&of_secret, word), "{word}: {of_secret:?}");
        }
        // The operator's own tokens and ticket are no other's.
        let own = words(true, true);
        for word in ["--read=/c", "--read=/k/own"] {
            assert!(has(&own, word) && !has(&of_secret, word), "{word}");
        }
        for folder in ["/", "/etc", "/data", "/run", "/tmp", "/var", "/home", "/dev"] {
            assert!(!has(&own, &read(folder)), "{folder}");
        }
    }

    #[test]
    fn without_landlock_resources_are_limited_all_the_same() {
        assert_eq!(words(false, true), ["/p", COMMAND, "--memory=1073741824", "--file-size=7", "--"]);
        let off = Confine::new(Confinement::Off, &[], &environment());
        assert!(off.words(Touches::default(), true, None).is_empty() && !off.by_landlock());
    }
}
