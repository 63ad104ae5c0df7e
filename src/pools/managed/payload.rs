//! The payloads on the workers of a managed pool: each may touch the files and the processes of its own job, and no others of its worker.
//!
//! They have the account of the worker's HTCondor, whose token would let them advertise workers of their own. HTCondor's starter
//! starts each job by [`WRAPPER`], which takes that from it.

use super::paths::RELEASE;
use crate::condor::startds::PAYLOADS;
use crate::confine::job_wrapper::Payloads;

/// What confines a job: [`crate::confine::job_wrapper`], in the tree with HTCondor.
const WRAPPER: &str = "/htcondor/usr/libexec/condor/htc-job-wrapper";
/// Lines of the configuration that depend on the node, in the folder [`RELEASE`]. A worker cannot write there, and a payload cannot `chmod`: a
/// starter that may not open the file would start the next job without a wrapper.
const FILE: &str = "wrapper.conf";
/// Where the container that prepares a worker's has that folder.
pub(super) const TREE: &str = "/htcpool/tree";

/// For the container that prepares a worker's: writes whether jobs can be confined there to a file of the configuration. An image of
/// an earlier version has no wrapper.
pub(super) fn prepare() -> String {
    let old = Payloads::ImageTooOld;
    format!(
        r#"if [ -x {WRAPPER} ]; then
    confined=$({WRAPPER} --landlock)
    printf '%s\n' 'USER_JOB_WRAPPER = {WRAPPER}' "{PAYLOADS} = \"$confined\""
else
    echo '{PAYLOADS} = "{old}"'
fi >{TREE}/{FILE}
"#
    )
}

/// Lines of the configuration of workers.
pub(super) fn config() -> String {
    format!("include ifexist : {RELEASE}/{FILE}\n")
}

#[cfg(test)]
mod tests {
    use super::super::paths::{CONFIG, LOCAL, SECRET, SPOOL};
    use super::*;
    use crate::confine::job_wrapper::{EXECUTE, LIBEXEC, POOL};

    #[test]
    fn all_that_is_htcondors_is_where_the_wrapper_takes_it_from_jobs() {
        assert_eq!(EXECUTE, format!("{LOCAL}/execute"));
        assert!(WRAPPER.starts_with(&format!("{RELEASE}/{LIBEXEC}/")), "{WRAPPER}");
        for folder in [CONFIG, LOCAL, SPOOL, SECRET] {
            assert!(folder.starts_with(&format!("{POOL}/")), "{folder}");
        }
    }

    #[test]
    fn a_worker_of_an_older_image_says_so() {
        assert!(prepare().contains("echo 'HTCPayloads = \"ImageTooOld\"'"), "{}", prepare());
    }
}
