//! Fetches output by `condor_transfer_data` into the folders that the jobs were submitted with, and nowhere else.
//!
//! The tool writes where the job's ad says. It replaces each `X` by `SUBMIT_X`, and then follows `Iwd`,
//! `TransferOutputRemaps` and `UserLog` (`DCSchedd::receiveJobSandbox`, `FileTransfer::InitDownloadFilenameRemaps`).
//! The job's owner may edit its ad. So only jobs whose ad has the submitted values are fetched.
//!
//! The schedd evaluates the constraint and copies the ads in one step (`Scheduler::spoolJobFiles` forks), so that an ad
//! cannot change in between. But the tool evaluates the ad again, and an expression may have another value there. So
//! the constraint compares unevaluated attributes: `unparse` returns an attribute as it is written, and an empty string
//! for a missing one.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use htc_machine::facts::QueryError;
use htc_machine::{Index, Indices, Uid};

use super::schedd::{FETCH_TOOL, Schedd, quoted};
use super::tools::{MAX_ACTION_OUTPUT, ToolInvocation};
use crate::confinement::FileAccess;

/// Jobs of one object whose output is to be fetched.
#[derive(Clone, Debug)]
pub struct FetchRequest<'a> {
    pub uid: &'a Uid,
    pub indices: &'a Indices,
    /// Folder of their output. Each job's `Iwd` is a subfolder of [`INCOMING`] in it, named by the job's index.
    pub output: String,
    /// Whether they are adopted jobs of the Go operator.
    pub adopted: bool,
}

/// ClassAd expression for ended jobs whose output counts. A late job has the same index as a job that counts, and would
/// overwrite its output.
const ENDED: &str = "JobStatus == 4 && (StageInFinish > HTCNotAfter) =!= true";

/// Values that condor_q prints of each redirected job. An edited attribute may have another value there than in the
/// schedd, of any length.
const SHOWN: &[&str] = &["substr(HTCJobUID,0,40)", "ifThenElse(isInteger(HTCJobIndex),HTCJobIndex,-1)"];
/// Maximum bytes of these values for all jobs: 64 bytes for each of 100,000 jobs.
const REDIRECTED: usize = 64 * 100_000;

/// Name of the folder for arriving output, within an object's output folder.
pub const INCOMING: &str = ".incoming";

/// ClassAd expression for jobs whose index is a number. Anything else could lead out of the folder.
const NUMBER: &str = r#"regexp("^[0-9]+$", unparse(HTCJobIndex))"#;

/// Attributes that jobs of this operator never have. They would make the tool write elsewhere.
const UNSET: &[&str] = &[
    "TransferOutputRemaps",
    "SUBMIT_TransferOutputRemaps",
    "SUBMIT_TransferOutput",
    "SUBMIT_SpooledOutputFiles",
    "OutputDestination",
    "SUBMIT_OutputDestination",
    "SUBMIT_DataReuseManifestSHA256",
];
/// ClassAd expression for jobs with no URL among their output files. The tool would let a plugin of HTCondor fetch it,
/// `file:///…` included.
const NO_URL: &str = r#"regexp("://", strcat(unparse(SpooledOutputFiles), unparse(TransferOutput))) =!= true"#;
/// ClassAd expression for jobs with the attributes that this operator submits: no log, and these file names for their
/// output.
const OWN: &str = r#"member(unparse(UserLog), {"","undefined"}) && member(unparse(SUBMIT_UserLog), {"","undefined"}) && unparse(Out) =?= "\"out\"" && unparse(Err) =?= "\"err\"" && unparse(SUBMIT_Out) =?= "" && unparse(SUBMIT_Err) =?= """#;
/// ClassAd expression for jobs with the attributes that [`super::Schedd::adopt`] writes.
const ADOPTED: &str = r#"unparse(SUBMIT_UserLog) =?= "\"log\"" && unparse(HTCJobIndex) =?= "ProcId""#;

impl FetchRequest<'_> {
    /// Returns the only folder that the tool may write to.
    fn place(&self) -> PathBuf {
        PathBuf::from(&self.output)
    }

    /// Returns a ClassAd expression for these jobs.
    fn jobs(&self) -> String {
        let list: Vec<String> = self.indices.iter().map(|index| index.to_string()).collect();
        format!("HTCJobUID =?= {} && member(HTCJobIndex, {{{}}})", quoted(self.uid.as_str()), list.join(","))
    }

    /// Returns a ClassAd expression for those of these jobs whose `Iwd` is still their own folder, as written at
    /// submission.
    fn in_place(&self) -> String {
        if self.adopted {
            return format!("unparse(SUBMIT_Iwd) =?= {} && {ADOPTED}", quoted(&adopted_folder(&self.output)));
        }
        let before = format!("\"{}/", self.output);
        // Earlier versions had no separate folder for arriving output.
        format!(
            r#"substr(unparse(SUBMIT_Iwd), 0, {length}) =?= {before} && (substr(unparse(SUBMIT_Iwd), {length}) =?= strcat("{INCOMING}/", unparse(HTCJobIndex), "\"") || substr(unparse(SUBMIT_Iwd), {length}) =?= strcat(unparse(HTCJobIndex), "\""))"#,
            length = before.len(),
            before = quoted(&before),
        )
    }
}

/// Returns `SUBMIT_Iwd` of adopted jobs, as `unparse` prints it. It is one text for all jobs, as a `ProcId` cannot be
/// edited.
pub(super) fn adopted_folder(output: &str) -> String {
    format!("strcat({},ProcId)", quoted(&format!("{output}/{INCOMING}/")))
}

/// Returns a ClassAd expression for jobs whose other attributes that decide where the tool writes are as submitted.
fn unchanged(adopted: bool) -> String {
    let mut parts: Vec<String> =
        UNSET.iter().map(|name| format!(r#"member(unparse({name}), {{"","undefined"}})"#)).collect();
    parts.push(NO_URL.to_owned());
    if !adopted {
        parts.extend([NUMBER.to_owned(), OWN.to_owned()]);
    }
    parts.join(" && ")
}

/// Returns a ClassAd expression for those of these jobs that write to their own folder only, or for the other ones.
fn going(jobs: &[FetchRequest<'_>], elsewhere: bool) -> String {
    let group = |adopted: bool| {
        let own = || jobs.iter().filter(|job| job.adopted == adopted);
        let any = |each: Vec<String>| each.join(" || ");
        let in_place = any(own().map(|job| format!("({} && {})", job.jobs(), job.in_place())).collect());
        let (all, unchanged) = (any(own().map(FetchRequest::jobs).collect()), unchanged(adopted));
        match elsewhere {
            _ if in_place.is_empty() => None,
            true => Some(format!("(({all}) && (({in_place}) && {unchanged}) =!= true)")),
            false => Some(format!("(({in_place}) && {unchanged})")),
        }
    };
    format!("({})", [false, true].into_iter().filter_map(group).collect::<Vec<_>>().join(" || "))
}

impl Schedd {
    /// Fetches the output of these ended jobs by `condor_transfer_data`. It must name no other jobs: 25.14 lets fetched
    /// jobs leave the queue. The output of each job arrives in its folder, which must exist. `limit` is the time limit,
    /// `largest` the size of the largest file in bytes.
    pub async fn fetch(
        &self,
        jobs: &[FetchRequest<'_>],
        limit: Duration,
        largest: Option<u64>,
    ) -> Result<(), QueryError> {
        let mine = self.my_jobs().await?;
        let constraint = format!("{mine} && {ENDED} && {}", going(jobs, false));
        let arguments = vec!["-name", self.name.as_str(), "-constraint", &constraint];
        let writes: Vec<PathBuf> = jobs.iter().map(FetchRequest::place).collect();
        let touches = FileAccess { reads: &[], writes: &writes, largest: Some(largest.unwrap_or(u64::MAX)) };
        let tool = FETCH_TOOL;
        let (input, most_bytes) = (Vec::new(), MAX_ACTION_OUTPUT);
        let call = ToolInvocation {
            tool,
            arguments,
            input,
            limit,
            max_output: most_bytes,
            outlives_operator: false,
            inherited_lock: None,
            access: touches,
        };
        self.check_output(tool, self.tools.call(call).await).map(drop)
    }

    /// Returns those of these ended jobs that [`Self::fetch`] skips, because their output would be written elsewhere.
    pub async fn redirected(&self, jobs: &[FetchRequest<'_>]) -> Result<HashMap<Uid, Indices>, QueryError> {
        const TOOL: &str = "condor_q";
        let mine = self.my_jobs().await?;
        let constraint = format!("{mine} && {ENDED} && {}", going(jobs, true));
        let mut arguments = vec!["-allusers", "-name", self.name.as_str(), "-constraint", &constraint, "-af"];
        arguments.extend(SHOWN);
        let output = self.ask(TOOL, &arguments, self.tools.limit, REDIRECTED).await?;
        let text = String::from_utf8_lossy(&output.stdout);
        let mut found: HashMap<Uid, Vec<Index>> = HashMap::new();
        for line in text.lines() {
            if let Some((uid, index)) = line.split_once(' ')
                && let Ok(index) = index.trim().parse()
            {
                found.entry(Uid::from(uid)).or_default().push(Index(index));
            }
        }
        Ok(found.into_iter().map(|(uid, indices)| (uid, indices.into_iter().collect())).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to_fetch<'a>(uid: &'a Uid, indices: &'a Indices, adopted: bool) -> FetchRequest<'a> {
        FetchRequest { uid, indices, output: "/d/htc_out/n/x/11111111".to_owned(), adopted }
    }

    #[test]
    fn output_folder_is_compared_as_an_unparsed_expression() {
        let (uid, indices) = (Uid::from("11111111-2"), Indices::first(2));
        let own = to_fetch(&uid, &indices, false).in_place();
        let start = r#"substr(unparse(SUBMIT_Iwd), 0, 25) =?= "\"/d/htc_out/n/x/11111111/" && "#;
        assert!(own.starts_with(start), "{own}");
        assert!(own.contains(r#"strcat(".incoming/", unparse(HTCJobIndex), "\"")"#), "{own}");
        assert!(unchanged(false).contains(NUMBER), "a value that is not a number leads out of the folder");
        let adopted = to_fetch(&uid, &indices, true).in_place();
        let iwd = r#"unparse(SUBMIT_Iwd) =?= "strcat(\"/d/htc_out/n/x/11111111/.incoming/\",ProcId)" && "#;
        assert!(adopted.starts_with(iwd), "{adopted}");
    }

    /// One argument has at most 128 KiB. The longest names of a namespace and of an HTCJob have 63 and 253 characters.
    #[test]
    fn expression_for_a_hundred_htcjobs_fits_one_argument() {
        let uid = Uid::from("11111111-3b8c-4a51-9d1f-6f1a3a5f0001");
        let indices = Indices::first(40);
        let output = format!("/data/htc_out/{}/{}/11111111", "n".repeat(63), "x".repeat(253));
        let jobs: Vec<_> = (0..100)
            .map(|_| FetchRequest { uid: &uid, indices: &indices, output: output.clone(), adopted: false })
            .collect();
        for elsewhere in [false, true] {
            let expression = going(&jobs, elsewhere);
            assert!(expression.len() < 124 << 10, "{}", expression.len());
        }
    }
}
