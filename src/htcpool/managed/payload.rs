//! Confinement of the payloads on the workers of a managed pool.
//!
//! Each payload may touch the files and the processes of its own job, and no others of its worker. Payloads have the
//! account of the worker's HTCondor, whose token would let them advertise workers of their own. HTCondor's starter
//! starts each job by [`WRAPPER`], which takes these rights from it.

use htc_confine::job_wrapper::PayloadConfinement;
use htcondor::startds::PAYLOADS_ATTRIBUTE;

use super::paths::RELEASE;

/// Program that confines a job: [`htc_confine::job_wrapper`], in the file tree with HTCondor.
const WRAPPER: &str = "/htcondor/usr/libexec/condor/htc-job-wrapper";
/// File with the configuration that depends on the node, in the folder [`RELEASE`].
///
/// A worker cannot write there, and a payload cannot `chmod`: a starter that may not open the file would start the next
/// job without a wrapper.
const FILE: &str = "wrapper.conf";
/// Mount point of that folder in the init container of a worker.
pub(super) const TREE: &str = "/htcpool/tree";

/// Returns the script for the init container of a worker: writes whether jobs can be confined on the node.
///
/// An image of an earlier version has no wrapper.
pub(super) fn prepare() -> String {
    let old = PayloadConfinement::ImageTooOld;
    format!(
        r#"if [ -x {WRAPPER} ]; then
    confined=$({WRAPPER} --landlock)
    printf '%s\n' 'USER_JOB_WRAPPER = {WRAPPER}' "{PAYLOADS_ATTRIBUTE} = \"$confined\""
else
    echo '{PAYLOADS_ATTRIBUTE} = "{old}"'
fi >{TREE}/{FILE}
"#
    )
}

/// Returns the lines for the configuration of workers.
pub(super) fn config() -> String {
    format!("include ifexist : {RELEASE}/{FILE}\n")
}

#[cfg(test)]
mod tests {
    use htc_confine::job_wrapper::{EXECUTE_FOLDER, LIBEXEC, POOL_FOLDER, WORK_VARIABLE};

    use super::super::paths::{CONFIG, LOCAL, SECRET, SPOOL};
    use super::*;

    #[test]
    fn wrapper_hides_the_folders_of_htcondor_from_jobs() {
        assert_eq!(EXECUTE_FOLDER, format!("{LOCAL}/execute"));
        assert_eq!(WORK_VARIABLE, htc_submit::payload::WORK_VARIABLE);
        assert!(WRAPPER.starts_with(&format!("{RELEASE}/{LIBEXEC}/")), "{WRAPPER}");
        for folder in [CONFIG, LOCAL, SPOOL, SECRET] {
            assert!(folder.starts_with(&format!("{POOL_FOLDER}/")), "{folder}");
        }
    }

    #[test]
    fn worker_of_an_older_image_reports_image_too_old() {
        assert!(prepare().contains("echo 'HTCPayloads = \"ImageTooOld\"'"), "{}", prepare());
    }
}
