//! Submit descriptions: one for many jobs. Pure functions.
//!
//! Everything that differs between jobs with the same options is in the job's row or in the files of its sandbox. So
//! jobs of many HTCJobs share one `condor_submit -spool -terse -`. The order is: the site's defaults, the user's
//! options, and then the operator's own commands, which nothing before them can change.

pub mod files;
mod node_faults;

use std::collections::HashSet;
use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::htcopts::HtcOpts;
use super::payload::{INPUT_TAR, JOB_SH, PAYLOAD_CONF, SCRIPT_SH, TOKEN, without_scheme};

pub use node_faults::NodeFaultRules;

/// One job, which becomes one row and one proc.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueItem<'a> {
    /// `metadata.uid` of its HTCJob, which becomes `HTCJobUID`.
    pub uid: &'a str,
    /// Attempt of that HTCJob, from 1: `HTCJobAttempt`.
    pub attempt: u32,
    /// Index of the job in that HTCJob, from 0: `HTCJobIndex`, the script's first argument and `HTCPROCID`.
    pub index: u32,
    /// `namespace/name`, which becomes `JobBatchName`.
    pub batch_name: &'a str,
    /// Absolute folder with the files of [`super::payload::sandbox_files`].
    pub sandbox: &'a str,
    /// Absolute existing folder where `condor_transfer_data` writes the output.
    pub output: &'a str,
    /// The script's second argument, if it has one.
    pub item: Option<&'a str>,
    /// Image as its HTCJob names it: [`IMAGE_ATTRIBUTE`], by which workers that are containers of one image select
    /// their jobs.
    pub image: &'a str,
}

/// Settings shared by all jobs of one description.
#[derive(Debug, Clone, Copy)]
pub struct ClusterSettings<'a> {
    /// Name of this operator, unique among all clusters: `HTCOperator`.
    pub operator: &'a str,
    /// Deadline for the arrival of a job's input files: a job whose files arrive later does not run (`HTCNotAfter`). In
    /// Unix seconds of the schedd's clock, margin included.
    pub not_after: i64,
    /// The site's options, which `options` override.
    pub site_defaults: &'a HtcOpts,
    pub options: &'a HtcOpts,
    /// Whether the jobs run only on workers of their HTCJob's own.
    pub mini_cluster: bool,
    /// Volumes that a worker must have mounted ([`crate::volumes::key`]). None means none.
    pub volumes: Option<&'a str>,
    /// Identity of the workers that may run the jobs, as the collector has authenticated it. None means any.
    pub workers: Option<&'a str>,
    /// Whether the sandboxes contain a token for the jobs' reports.
    pub callback: bool,
    /// Whether the sandboxes contain an archive with the jobs' files.
    pub files: bool,
    /// Maximum MiB of output of one job. HTCondor holds a job that leaves more (`HoldReasonCode` 33). None means the
    /// pool's own limit.
    pub output_limit: Option<u64>,
    /// When jobs run again after faults of their nodes.
    pub node_faults: NodeFaultRules,
}

/// A value that cannot be written into a submit description. Users' texts are validated before. So the cause is a wrong
/// setting (such as a data folder with a blank in its path) or a defect.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DescriptionError {
    #[error("a submit description needs at least one job")]
    NoJobs,
    /// A value with characters that its kind may not have.
    #[error("{what} {value:?} cannot be written into a submit description: use letters, digits and `{allowed}` only")]
    Characters {
        /// Kind of the value, for the message.
        what: &'static str,
        value: String,
        /// Characters that are allowed beside letters and digits.
        allowed: &'static str,
    },
    /// A path that is not absolute, or has `.` or `..` in it.
    #[error("{what} {value:?} must be an absolute path without `.` and `..`")]
    Path {
        /// Use of the path, for the message.
        what: &'static str,
        value: String,
    },
    /// A deadline before 1970.
    #[error("the deadline {0} is not a time in seconds since 1970")]
    Deadline(i64),
    /// Two rows for one index, or two jobs with one output folder.
    #[error("{what} {value:?} stands in two rows")]
    Twice {
        /// Kind of the value, for the message.
        what: &'static str,
        value: String,
    },
}

/// ClassAd expression for ended jobs that stay in the queue. It is condor_submit's own expression for `-spool`, except
/// for jobs whose input files arrived too late: their output is not wanted, and if their HTCJob is gone, no operator
/// would remove them.
///
/// Such a job may also be kept by its user's options: run again by `on_exit_remove`, held by `on_exit_hold`, idle for
/// ever by `requirements`. So [`LATE`] is a reason to remove it, beside the user's own.
const LEAVE_IN_QUEUE: &str = "JobStatus == 4 && (StageInFinish ?: 0) <= HTCNotAfter && \
                              ((CompletionDate ?: 0) == 0 || time() - CompletionDate < 864000)";

/// ClassAd expression for jobs whose input files arrived too late.
const LATE: &str = "(StageInFinish ?: 0) > HTCNotAfter";

/// Attribute of jobs: the image as their HTCJob names it, without a scheme.
pub const IMAGE_ATTRIBUTE: &str = "HTCImage";

/// Attribute of jobs whose HTCJob has workers of its own: the HTCJob's uid. Such workers run only these jobs, and these
/// jobs run on no other workers.
pub const MINI_CLUSTER_ATTRIBUTE: &str = "HTCMiniCluster";
/// Attribute of slots: uid of the HTCJob that owns the worker, or [`NO_OWNER`] for shared workers.
pub const WORKER_MINI_CLUSTER_ATTRIBUTE: &str = "HTCWorkerMiniCluster";
/// Attribute of jobs whose workers have mounted volumes: [`crate::volumes::key`] of these. Such jobs run only there, and no
/// others do.
pub const VOLUMES_ATTRIBUTE: &str = "HTCVolumes";
/// Attribute of slots: [`crate::volumes::key`] of the worker's volumes, or [`NO_OWNER`].
pub const WORKER_VOLUMES_ATTRIBUTE: &str = "HTCWorkerVolumes";
/// Placeholder for the HTCJob's uid in the commands shared by all jobs of a description.
pub const OWN_UID: &str = "$(htc_uid)";
/// Value that is neither the uid of an HTCJob nor a user.
pub const NO_OWNER: &str = "-";

/// Value for a missing item or image. Items are `=` and base64 otherwise. No character of these has a meaning for
/// condor_submit.
const NO_ITEM: &str = "-";

const ID_CHARACTERS: &str = "-._";
const NAME_CHARACTERS: &str = "-._/:@";
const PATH_CHARACTERS: &str = "-._/:@+=~";

/// Renders the standard input of `condor_submit -spool -terse -`.
///
/// # Errors
/// A value has no safe spelling. Nothing is rendered then.
pub fn submit_description(common: &ClusterSettings, jobs: &[QueueItem]) -> Result<String, DescriptionError> {
    characters("the operator's name", common.operator, NAME_CHARACTERS)?;
    if common.not_after < 0 {
        return Err(DescriptionError::Deadline(common.not_after));
    }
    let rows = rows(jobs)?;
    let (options, operator, not_after) =
        (common.site_defaults.render_overridden_by(common.options), common.operator, common.not_after);
    let remove = match common.options.command("periodic_remove").or(common.site_defaults.command("periodic_remove")) {
        Some(wanted) => format!("{LATE} || ({wanted})"),
        None => LATE.to_owned(),
    };
    let (bound, node_faults) = (bound(common)?, node_faults::lines(common));
    let token = if common.callback { format!(",$(htc_sandbox)/{TOKEN}") } else { String::new() };
    let (executable, folder) = (format!("$(htc_sandbox)/{JOB_SH}"), "$(htc_output)");
    let archive = if common.files { format!(",$(htc_sandbox)/{INPUT_TAR}") } else { String::new() };
    let input = format!("$(htc_sandbox)/{SCRIPT_SH},$(htc_sandbox)/{PAYLOAD_CONF}{archive}{token}");
    let files = files::lines(&executable, folder, &input);
    let output_limit =
        common.output_limit.map(|limit| format!("max_transfer_output_mb = {limit}\n")).unwrap_or_default();
    Ok(format!(
        r#"{options}universe = vanilla
executable = {executable}
transfer_executable = true
arguments = $(htc_index) $(htc_item)
getenv = false
should_transfer_files = YES
when_to_transfer_output = ON_EXIT
transfer_input_files = {input}
initialdir = {folder}
output = out
error = err
notification = never
coresize = 0
leave_in_queue = {LEAVE_IN_QUEUE}
periodic_remove = {remove}
{node_faults}{output_limit}batch_name = $(htc_batch)
{files}MY.HTCJobUID = "$(htc_uid)"
MY.HTCJobAttempt = $(htc_attempt)
MY.HTCJobIndex = $(htc_index)
MY.HTCOperator = "{operator}"
MY.HTCNotAfter = {not_after}
MY.{IMAGE_ATTRIBUTE} = "$(htc_image)"
{bound}queue htc_uid,htc_attempt,htc_index,htc_batch,htc_sandbox,htc_output,htc_image,htc_item from (
{rows})
"#
    ))
}

/// Returns the commands that restrict jobs to the workers that may run them, in addition to the user's requirements.
///
/// A slot advertises its own owner, and a payload that poses as a worker can advertise anything. But
/// `AuthenticatedIdentity` comes from the collector: it replaces the slot's value, and negotiator and schedd keep it
/// (HTCondor's `collector_engine.cpp`, `schedd.cpp`).
fn bound(common: &ClusterSettings) -> Result<String, DescriptionError> {
    let mut required = Vec::new();
    if common.mini_cluster {
        required.push(format!("TARGET.{WORKER_MINI_CLUSTER_ATTRIBUTE} =?= MY.{MINI_CLUSTER_ATTRIBUTE}"));
    }
    if let Some(volumes) = common.volumes {
        characters("the volumes", volumes, "-._/:,")?;
        required.push(format!("TARGET.{WORKER_VOLUMES_ATTRIBUTE} =?= MY.{VOLUMES_ATTRIBUTE}"));
    }
    if let Some(identity) = common.workers {
        characters("the identity of the workers", &identity.replace(OWN_UID, "u"), "-._@")?;
        required.push(format!("TARGET.AuthenticatedIdentity =?= \"{identity}\""));
    }
    required.extend(node_faults::avoidance(common.node_faults));
    if required.is_empty() {
        return Ok(String::new());
    }
    let wanted = common.options.command("requirements").or(common.site_defaults.command("requirements"));
    let required: Vec<String> = wanted.map(|wanted| format!("({wanted})")).into_iter().chain(required).collect();
    let mut own =
        if common.mini_cluster { format!("MY.{MINI_CLUSTER_ATTRIBUTE} = \"{OWN_UID}\"\n") } else { String::new() };
    if let Some(volumes) = common.volumes {
        let _ = writeln!(own, "MY.{VOLUMES_ATTRIBUTE} = \"{volumes}\"");
    }
    Ok(format!("{own}requirements = {}\n", required.join(" && ")))
}

fn rows(jobs: &[QueueItem]) -> Result<String, DescriptionError> {
    if jobs.is_empty() {
        return Err(DescriptionError::NoJobs);
    }
    let (mut ids, mut outputs, mut text) = (HashSet::new(), HashSet::new(), String::new());
    for job in jobs {
        let QueueItem { uid, attempt, index, batch_name, sandbox, output, item, image } = *job;
        characters("the uid", uid, ID_CHARACTERS)?;
        characters("the batch name", batch_name, NAME_CHARACTERS)?;
        path("the sandbox", sandbox)?;
        path("the output folder", output)?;
        if !ids.insert((uid, index)) {
            return Err(DescriptionError::Twice { what: "the job", value: format!("{uid} {index}") });
        }
        if !outputs.insert(output) {
            return Err(DescriptionError::Twice { what: "the output folder", value: output.to_owned() });
        }
        let item = item.map_or_else(|| NO_ITEM.to_owned(), |item| format!("={}", STANDARD.encode(item)));
        // An image name with other characters is one of the site's own names. No worker is a container of it.
        let image = without_scheme(image);
        let image = if characters("the image", image, PATH_CHARACTERS).is_ok() { image } else { NO_ITEM };
        let _ = writeln!(text, "{uid},{attempt},{index},{batch_name},{sandbox},{output},{image},{item}");
    }
    Ok(text)
}

fn characters(what: &'static str, value: &str, allowed: &'static str) -> Result<(), DescriptionError> {
    let fits = value.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '/')
        && value.chars().all(|c| c.is_ascii_alphanumeric() || allowed.contains(c));
    if fits { Ok(()) } else { Err(DescriptionError::Characters { what, value: value.to_owned(), allowed }) }
}

fn path(what: &'static str, value: &str) -> Result<(), DescriptionError> {
    let absolute =
        value.strip_prefix('/').is_some_and(|rest| rest.split('/').all(|part| !matches!(part, "" | "." | "..")));
    if !absolute {
        return Err(DescriptionError::Path { what, value: value.to_owned() });
    }
    characters(what, value, PATH_CHARACTERS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::htcopts::HtcOptsPolicy;

    const fn settings<'a>(site_defaults: &'a HtcOpts, options: &'a HtcOpts) -> ClusterSettings<'a> {
        ClusterSettings {
            operator: "o",
            not_after: 7,
            site_defaults,
            options,
            callback: false,
            files: false,
            output_limit: None,
            node_faults: NodeFaultRules { retries: 0, pause: 30 },
            mini_cluster: false,
            volumes: None,
            workers: None,
        }
    }

    const JOB: QueueItem<'_> = QueueItem {
        uid: "u",
        attempt: 1,
        index: 0,
        batch_name: "n/x",
        sandbox: "/s",
        output: "/o",
        item: None,
        image: "i",
    };

    #[test]
    fn lines_of_the_operator_come_last() {
        let options = HtcOpts::parse("rank = Memory\nnotification = never", &HtcOptsPolicy::default()).unwrap();
        let site = HtcOpts::default();
        let common = ClusterSettings { operator: "o/n/x", callback: true, ..settings(&site, &options) };
        let job = QueueItem {
            uid: "u-1",
            attempt: 3,
            index: 4,
            batch_name: "ns/n",
            sandbox: "/s/1",
            output: "/o/1/4",
            item: None,
            image: "docker://python:3.12",
        };
        let text = submit_description(
            &common,
            &[job, QueueItem { index: 5, output: "/o/1/5", item: Some("ä, $(x)"), image: "my image", ..job }],
        )
        .unwrap();
        assert!(text.starts_with("rank = Memory\nnotification = never\nuniverse = vanilla\n"));
        assert!(text.contains("payload.conf,$(htc_sandbox)/callback.token\n"), "{text}");
        assert!(text.contains("\ncoresize = 0\n"), "{text}");
        assert!(
            text.ends_with(
                " from (\nu-1,3,4,ns/n,/s/1,/o/1/4,python:3.12,-\nu-1,3,5,ns/n,/s/1,/o/1/5,-,=w6QsICQoeCk=\n)\n"
            ),
            "{text}"
        );
    }

    #[test]
    fn dedicated_workers_are_required_along_with_user_requirements() {
        let opts = |text: &str| HtcOpts::parse(text, &HtcOptsPolicy::default()).unwrap();
        let bound_to = |site: &str, user: &str, mini_cluster: bool, workers: Option<&str>| {
            let (site, user) = (opts(site), opts(user));
            let common = ClusterSettings { mini_cluster, workers, ..settings(&site, &user) };
            let text = submit_description(&common, &[JOB]).unwrap();
            let line = |begin: &str| text.lines().rfind(|line| line.starts_with(begin)).unwrap_or_default().to_owned();
            (line("requirements"), line("MY.HTCMiniCluster"))
        };
        let bound = |site: &str, user: &str, mini_cluster: bool| bound_to(site, user, mini_cluster, None);
        let own = "TARGET.HTCWorkerMiniCluster =?= MY.HTCMiniCluster";
        assert_eq!(
            bound("", "", true),
            (format!("requirements = {own}"), "MY.HTCMiniCluster = \"$(htc_uid)\"".to_owned())
        );
        assert_eq!(bound("", "requirements = A || B", true).0, format!("requirements = (A || B) && {own}"));
        assert_eq!(bound("requirements = A", "", true).0, format!("requirements = (A) && {own}"));
        assert_eq!(bound("", "requirements = A", false), ("requirements = A".to_owned(), String::new()));
        let authenticated = "TARGET.AuthenticatedIdentity =?= ";
        let shared = bound_to("", "requirements = A || B", false, Some("worker-ns-a@p"));
        let wanted = format!("requirements = (A || B) && {authenticated}\"worker-ns-a@p\"");
        assert_eq!(shared, (wanted, String::new()));
        let its = bound_to("", "", true, Some("worker-mc-$(htc_uid)@p")).0;
        assert_eq!(its, format!("requirements = {own} && {authenticated}\"worker-mc-$(htc_uid)@p\""));
    }

    #[test]
    fn jobs_with_volumes_require_a_worker_that_has_mounted_them() {
        let none = HtcOpts::default();
        let common = ClusterSettings { volumes: Some("data:/in:ro,x:/y"), ..settings(&none, &none) };
        let text = submit_description(&common, &[JOB]).unwrap();
        let lines = "MY.HTCVolumes = \"data:/in:ro,x:/y\"\nrequirements = TARGET.HTCWorkerVolumes =?= MY.HTCVolumes\n";
        assert!(text.contains(lines), "{text}");
        let bad = ClusterSettings { volumes: Some("a:/b\" || true"), ..common };
        assert!(submit_description(&bad, &[JOB]).is_err());
    }

    #[test]
    fn periodic_remove_always_includes_late_jobs() {
        let opts = |text: &str| HtcOpts::parse(text, &HtcOptsPolicy::default()).unwrap();
        let removed = |site: &str, user: &str| {
            let (site, user) = (opts(site), opts(user));
            let common = settings(&site, &user);
            let text = submit_description(&common, &[JOB]).unwrap();
            text.lines().rfind(|line| line.starts_with("periodic_remove")).unwrap().to_owned()
        };
        let late = "periodic_remove = (StageInFinish ?: 0) > HTCNotAfter";
        assert_eq!(removed("", "on_exit_hold = true"), late);
        assert_eq!(removed("periodic_remove = JobStatus == 5", ""), format!("{late} || (JobStatus == 5)"));
        let both = removed("periodic_remove = JobStatus == 5", "Periodic_Remove = NumJobStarts > 3");
        assert_eq!(both, format!("{late} || (NumJobStarts > 3)"));
    }

    #[test]
    fn policies_of_users_apply_only_to_ends_of_payloads() {
        let line = |user: &str, retries: u32, begin: &str| {
            let (site, user) = (HtcOpts::default(), HtcOpts::parse(user, &HtcOptsPolicy::default()).unwrap());
            let common =
                ClusterSettings { node_faults: NodeFaultRules { retries, pause: 30 }, ..settings(&site, &user) };
            let text = submit_description(&common, &[JOB]).unwrap();
            text.lines().rfind(|line| line.starts_with(begin)).map(str::to_owned)
        };
        let found = |user, retries, begin| line(user, retries, begin).unwrap_or_default();
        let fault = "(HTCNodeFault && HTCNodeFaults < 5)";
        assert_eq!(found("", 5, "on_exit_hold ="), format!("on_exit_hold = {fault} || false"));
        let held = found("on_exit_hold = ExitCode =!= 0", 5, "on_exit_hold =");
        assert_eq!(held, format!("on_exit_hold = {fault} || (!HTCOwnEnd && (ExitCode =!= 0))"));
        assert!(found("on_exit_hold_reason = \"x\"", 5, "on_exit_hold_reason").ends_with(", \"x\")"));
        assert_eq!(line("", 5, "on_exit_remove"), None, "HTCondor's default");
        assert_eq!(found("on_exit_remove = A || B", 5, "on_exit_remove"), "on_exit_remove = HTCOwnEnd || (A || B)");
        for (user, retries) in [("max_retries = 3", "3"), ("success_exit_code = 4", "2"), ("max_retries = 0", "0")] {
            assert_eq!(found(user, 5, "on_exit_remove"), "on_exit_remove = HTCOwnEnd", "{user}");
            let kept = format!("MY.JobMaxRetries = {retries} + (NumHoldsByReason.JobPolicy ?: 0)");
            assert_eq!(found(user, 5, "MY.JobMaxRetries"), kept, "{user}");
        }
        let released = found("periodic_release = NumHolds < 3", 5, "periodic_release");
        assert!(
            released.ends_with(" && (NumHolds < 3))") && released.contains("|| (!(HoldReasonCode == 3"),
            "{released}"
        );
        let avoided = found("requirements = A || B", 5, "requirements");
        assert!(
            avoided.starts_with(
                "requirements = (A || B) && !(HTCHadNodeFaults && !regexp(\" with 248;\", LastHoldReason) && "
            ),
            "{avoided}"
        );
        assert!(avoided.ends_with(" + 1800 * HTCNodeFaults * HTCNodeFaults)"), "{avoided}");
        assert_eq!(line("", 0, "requirements"), None);
    }

    #[test]
    fn value_that_breaks_a_queue_row_is_an_error() {
        let none = HtcOpts::default();
        let common = settings(&none, &none);
        assert_eq!(submit_description(&common, &[]), Err(DescriptionError::NoJobs));
        assert!(submit_description(&ClusterSettings { not_after: -1, ..common }, &[JOB]).is_err());
        assert!(submit_description(&ClusterSettings { operator: "a\"b", ..common }, &[JOB]).is_err());
        assert!(submit_description(&ClusterSettings { workers: Some("a\" || true"), ..common }, &[JOB]).is_err());
        assert!(submit_description(&common, &[JOB, JOB]).is_err(), "one index twice");
        assert!(submit_description(&common, &[JOB, QueueItem { index: 1, ..JOB }]).is_err(), "one folder twice");
        for text in ["", "a,b", "a b", "a\nb", "a\"b", "$(x)", "a)", "ä", "(", "#a"] {
            let path = format!("/{text}");
            let bad = [
                QueueItem { uid: text, ..JOB },
                QueueItem { batch_name: text, ..JOB },
                QueueItem { sandbox: &path, ..JOB },
                QueueItem { output: &path, ..JOB },
            ];
            for job in bad {
                assert!(submit_description(&common, &[job]).is_err(), "{job:?}");
            }
        }
        for path in ["s", "/a/../b", "/a/./b", "//a", "/a/", "~/a"] {
            assert!(submit_description(&common, &[QueueItem { sandbox: path, ..JOB }]).is_err(), "{path}");
        }
    }
}
