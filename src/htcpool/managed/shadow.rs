//! Confinement of the shadows of a managed pool: each may touch the files of its own job only.
//!
//! A shadow carries out remote calls of its starter, and a payload may replace the starter. HTCondor does not check
//! some of these calls: `link`, `symlink`, `chmod` (`NTreceivers.cpp`, 23.9.6 and 25.13.2). The shadow's account is
//! that of the schedd, which has the pool's signing key and the spool folders of all jobs. So the schedd starts
//! [`SCRIPT`] instead, which gives up access to all folders but those of one job, by Landlock, and then runs the
//! shadow.

use super::paths::{CONFIG, LOCAL, NODE, SPOOL};
use htcondor::schedd::SHADOWS_ATTRIBUTE;

/// Script that the schedd starts for each run of a job.
pub(super) const SCRIPT: &str = include_str!("shadow.sh");
/// Entry of the script in the ConfigMap, and its file name in the folder [`CONFIG`].
pub(super) const NAME: &str = "shadow";
/// The program `htc-confine` in the file tree with HTCondor. The script needs it.
pub(super) const CONFINE: &str = "/htcondor/usr/libexec/condor/htc-confine";

/// Whether the shadows of a pool are confined: value of the attribute [`SHADOWS_ATTRIBUTE`] in the schedd's ad.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, strum::Display, strum::EnumString, strum::EnumIter, strum::IntoStaticStr,
)]
pub(super) enum ShadowConfinement {
    /// Each shadow reaches the files of its own job only.
    Confined,
    /// Not confined: the image with HTCondor has no `htc-confine`.
    ImageTooOld,
    /// Not confined: `htc-confine` cannot confine anything on this node.
    NoLandlock,
}

/// Returns the script for the schedd's init container: tries whether a program can be confined on this node.
///
/// It writes the result to a file of the configuration. An image of an earlier version has no `htc-confine`.
///
/// Landlock does not keep a shadow from `chmod`. A schedd that has lost access to its own files gets it back when its
/// pod restarts. The file of the configuration is in a folder where it cannot be changed: without it a reconfigured
/// schedd would start HTCondor's own shadow.
pub(super) fn prepare() -> String {
    let (confined, old, none) =
        (ShadowConfinement::Confined, ShadowConfinement::ImageTooOld, ShadowConfinement::NoLandlock);
    format!(
        r#"chmod u+rwX {SPOOL}/spool {SPOOL}/spool/* 2>/dev/null || true
mkdir -p {LOCAL}/shadow
if [ ! -x {CONFINE} ]; then
    echo '{SHADOWS_ATTRIBUTE} = "{old}"'
elif {CONFINE} --landlock --read=/ --files={LOCAL}/shadow -- /bin/sh -c :; then
    echo '{SHADOWS_ATTRIBUTE} = "{confined}"'
    echo 'SHADOW = {CONFIG}/{NAME}'
else
    echo '{SHADOWS_ATTRIBUTE} = "{none}"'
fi >{NODE}/shadow.conf
"#
    )
}

/// Returns the lines for the schedd's configuration.
///
/// Files that all shadows write are in a folder of their own. A shadow of version 25 also writes its job's ads to an
/// epoch history, which is turned off as it has no reader. With a work life of 0 seconds a shadow serves one run of one
/// job.
pub(super) fn config() -> String {
    format!(
        r"SHADOW_LOG = $(LOCAL_DIR)/shadow/ShadowLog
SHADOW_LOCK = $(LOCAL_DIR)/shadow/ShadowLock
SHADOW_STATS_LOG = $(LOCAL_DIR)/shadow/XferStatsLog
SHADOW_RECONNECT_LOG = $(LOCAL_DIR)/shadow/ShadowReconnectLog
SHADOW_WORKLIFE = 0
JOB_EPOCH_HISTORY =
include ifexist : {NODE}/shadow.conf
SCHEDD_ATTRS = $(SCHEDD_ATTRS) {SHADOWS_ATTRIBUTE}
"
    )
}

#[cfg(test)]
mod tests {
    use strum::IntoEnumIterator as _;

    use super::*;
    use crate::htcpool::managed::paths::RELEASE;

    #[test]
    fn script_confines_to_the_folders_of_one_job() {
        let confined = SCRIPT.split_once("\nexec ").unwrap().1;
        let granted = |option: &str| -> Vec<&str> {
            confined.split_whitespace().filter_map(|word| word.strip_prefix(option)).collect()
        };
        assert_eq!(granted("--files="), [r#""$job""#, r#""$job.tmp""#, r#""$job.swap""#]);
        assert_eq!(granted("--write="), ["/dev/null"]);
        assert_eq!(granted("--logs="), [format!("{LOCAL}/shadow")]);
        assert!(confined.starts_with(&format!("{CONFINE} --landlock ")), "{confined}");
        assert!(confined.ends_with("-- /htcondor/usr/sbin/condor_shadow \"$@\"\n"), "{confined}");
        // It includes neither key nor token, nor files of other jobs.
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

    /// Runs the script in a shell, without the program that it starts.
    #[test]
    fn script_refuses_an_invalid_job_id() {
        for word in ["", "1", "1.", ".1", "1.2.3", "1.x", "../1.2", "-f"] {
            let shell = std::process::Command::new("/bin/sh").args(["-c", SCRIPT, "shadow", word]).output().unwrap();
            let said = String::from_utf8_lossy(&shell.stderr).into_owned();
            assert!(shell.status.code() == Some(1) && said.contains("is no job"), "{word}: {said}");
        }
    }

    #[test]
    fn init_container_writes_each_confinement_word() {
        for word in ShadowConfinement::iter() {
            assert!(prepare().contains(&format!("{SHADOWS_ATTRIBUTE} = \"{word}\"")), "{word}");
        }
        // The init container writes the file that the configuration includes.
        let file = format!("{NODE}/shadow.conf");
        assert!(prepare().contains(&file) && config().contains(&file) && SCRIPT.contains(&format!("--read={file}")));
    }
}
