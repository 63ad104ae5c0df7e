//! The shadows of a managed pool: each may touch the files of its own job, and no others.
//!
//! A shadow makes remote calls for its starter, and a payload may replace that one. Some of these calls HTCondor checks by nothing: `link`,
//! `symlink`, `chmod` (`NTreceivers.cpp`, 23.9.6 and 25.13.2). The account of the shadow is that of the schedd, which has the pool's signing
//! key and the spool folders of all jobs. So the schedd starts [`SCRIPT`] in its place, which gives up all but one job's folders by Landlock.

use super::paths::{CONFIG, LOCAL, NODE, SPOOL};
use crate::condor::schedd::SHADOWS;

/// What the schedd starts for each run of a job.
pub(super) const SCRIPT: &str = include_str!("shadow.sh");
/// Its entry in the ConfigMap, and its name in the folder [`CONFIG`].
pub(super) const NAME: &str = "shadow";
/// What it needs in the tree with HTCondor: the program `htc-confine`.
pub(super) const CONFINE: &str = "/htcondor/usr/libexec/condor/htc-confine";

/// Whether the shadows of a pool are confined: the word in the attribute [`SHADOWS`] of the schedd's ad.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, strum::Display, strum::EnumString, strum::EnumIter, strum::IntoStaticStr,
)]
pub(super) enum Shadows {
    /// They are.
    Confined,
    /// They are not: the image with HTCondor has no program for it.
    ImageTooOld,
    /// They are not: that program cannot confine anything on this node.
    NoLandlock,
}

/// For the container that prepares the schedd's: tries whether a program can be confined here, and writes what comes of it to a file of the
/// configuration. An image of an earlier version has no such program.
///
/// Landlock does not keep a shadow from `chmod`. A schedd that cannot open its own files any more can after its pod began anew. The file of
/// the configuration is where it cannot be changed: without it, a schedd that configures itself anew would start HTCondor's own shadow.
pub(super) fn prepare() -> String {
    let (confined, old, none) = (Shadows::Confined, Shadows::ImageTooOld, Shadows::NoLandlock);
    format!(
        r#"chmod u+rwX {SPOOL}/spool {SPOOL}/spool/* 2>/dev/null || true
mkdir -p {LOCAL}/shadow
if [ ! -x {CONFINE} ]; then
    echo '{SHADOWS} = "{old}"'
elif {CONFINE} --landlock --read=/ --files={LOCAL}/shadow -- /bin/sh -c :; then
    echo '{SHADOWS} = "{confined}"'
    echo 'SHADOW = {CONFIG}/{NAME}'
else
    echo '{SHADOWS} = "{none}"'
fi >{NODE}/shadow.conf
"#
    )
}

/// Lines of the schedd's configuration. The files that all shadows write are in a folder of their own; a shadow of 25 also writes the ads of
/// its job to a history of runs, which nobody reads. With a life of 0 seconds a shadow serves one run of one job.
pub(super) fn config() -> String {
    format!(
        r"SHADOW_LOG = $(LOCAL_DIR)/shadow/ShadowLog
SHADOW_LOCK = $(LOCAL_DIR)/shadow/ShadowLock
SHADOW_STATS_LOG = $(LOCAL_DIR)/shadow/XferStatsLog
SHADOW_RECONNECT_LOG = $(LOCAL_DIR)/shadow/ShadowReconnectLog
SHADOW_WORKLIFE = 0
JOB_EPOCH_HISTORY =
include ifexist : {NODE}/shadow.conf
SCHEDD_ATTRS = $(SCHEDD_ATTRS) {SHADOWS}
"
    )
}

#[cfg(test)]
mod tests {
    use strum::IntoEnumIterator as _;

    use super::*;
    use crate::pools::managed::paths::RELEASE;

    #[test]
    fn script_confines_to_one_jobs_folders() {
        let confined = SCRIPT.split_once("\nexec ").unwrap().1;
        let granted = |option: &str| -> Vec<&str> {
            confined.split_whitespace().filter_map(|word| word.strip_prefix(option)).collect()
        };
        assert_eq!(granted("--files="), [r#""$job""#, r#""$job.tmp""#, r#""$job.swap""#]);
        assert_eq!(granted("--write="), ["/dev/null"]);
        assert_eq!(granted("--logs="), [format!("{LOCAL}/shadow")]);
        assert!(confined.starts_with(&format!("{CONFINE} --landlock ")), "{confined}");
        assert!(confined.ends_with("-- /htcondor/usr/sbin/condor_shadow \"$@\"\n"), "{confined}");
        // Neither key nor token, nor what is not one job's.
        for path in granted("--read=") {
            for kept in [LOCAL, SPOOL, "/etc", "/htcpool"] {
                assert!(!std::path::Path::new(kept).starts_with(path), "{path}");
            }
            for kept in ["passwords.d", "tokens.d", "job_queue"] {
                assert!(!path.contains(kept), "{path}");
            }
        }
        assert!(SCRIPT.contains(&format!("job={SPOOL}/spool/")) && CONFINE.starts_with(RELEASE));
    }

    /// As a shell reads it, without the program that it starts.
    #[test]
    fn script_refuses_what_is_no_job() {
        for word in ["", "1", "1.", ".1", "1.2.3", "1.x", "../1.2", "-f"] {
            let shell = std::process::Command::new("/bin/sh").args(["-c", SCRIPT, "shadow", word]).output().unwrap();
            let said = String::from_utf8_lossy(&shell.stderr).into_owned();
            assert!(shell.status.code() == Some(1) && said.contains("is no job"), "{word}: {said}");
        }
    }

    #[test]
    fn each_word_is_written_by_the_container_that_prepares() {
        for word in Shadows::iter() {
            assert!(prepare().contains(&format!("{SHADOWS} = \"{word}\"")), "{word}");
        }
        // What the configuration includes is what the container writes.
        let file = format!("{NODE}/shadow.conf");
        assert!(prepare().contains(&file) && config().contains(&file) && SCRIPT.contains(&format!("--read={file}")));
    }
}
