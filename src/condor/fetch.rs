//! `condor_transfer_data`: output comes back into the folders that the jobs were submitted with, and nowhere else.
//!
//! The tool writes where the job's ad says. It puts each `SUBMIT_X` in the place of `X`, and then obeys `Iwd`,
//! `TransferOutputRemaps` and `UserLog` (`DCSchedd::receiveJobSandbox`, `FileTransfer::InitDownloadFilenameRemaps`). Who owns
//! the job may edit its ad, so only jobs whose ad says what we said are asked for. The schedd evaluates the constraint and copies
//! the ads in one turn (`Scheduler::spoolJobFiles` forks), so that nobody can change one in between; but the tool evaluates
//! the ad again, and an expression may have another value there. So not the values are compared: `unparse` gives an attribute as
//! it is written, and nothing at all for one that is not there.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use super::confined::Touches;
use super::schedd::{FETCH_TOOL, Schedd, quoted};
use super::tools::{Call, DONE};
use crate::machine::facts::Unknown;
use crate::machine::{Index, Indices, Uid};

/// Jobs of one object whose output is wanted.
#[derive(Clone, Debug)]
pub struct ToFetch<'a> {
    /// The object.
    pub uid: &'a Uid,
    /// Its jobs.
    pub indices: &'a Indices,
    /// Folder of their output. Their `Iwd` is a folder below, named by index, in [`INCOMING`].
    pub output: String,
    /// They are jobs of the Go operator that were adopted.
    pub adopted: bool,
}

/// A late job has the same index, and would write over the output of the one that counts.
const ENDED: &str = "JobStatus == 4 && (StageInFinish > HTCNotAfter) =!= true";

/// What condor_q prints of each. An attribute that was edited may have another value there than at the schedd, of any length.
const SHOWN: &[&str] = &["substr(HTCJobUID,0,40)", "ifThenElse(isInteger(HTCJobIndex),HTCJobIndex,-1)"];
/// Most bytes of these of all jobs: 64 of each of 100,000.
const REDIRECTED: usize = 64 * 100_000;

/// Folder in that of an object's output in which it arrives.
pub const INCOMING: &str = ".incoming";

/// What is no number could lead out of the folder.
const NUMBER: &str = r#"regexp("^[0-9]+$", unparse(HTCJobIndex))"#;

/// What stands in the ad of no job of ours: the tool would write elsewhere by it.
const UNSET: &[&str] = &[
    "TransferOutputRemaps",
    "SUBMIT_TransferOutputRemaps",
    "SUBMIT_TransferOutput",
    "SUBMIT_SpooledOutputFiles",
    "OutputDestination",
    "SUBMIT_OutputDestination",
    "SUBMIT_DataReuseManifestSHA256",
];
/// Nothing among the output is an address, which the tool would have a plugin of HTCondor's fetch: `file:///…`, too.
const NO_URL: &str = r#"regexp("://", strcat(unparse(SpooledOutputFiles), unparse(TransferOutput))) =!= true"#;
/// The same for jobs that this operator has submitted. They have no log, and files of these names for their output.
const OWN: &str = r#"member(unparse(UserLog), {"","undefined"}) && member(unparse(SUBMIT_UserLog), {"","undefined"}) && unparse(Out) =?= "\"out\"" && unparse(Err) =?= "\"err\"" && unparse(SUBMIT_Out) =?= "" && unparse(SUBMIT_Err) =?= """#;
/// The same for those that it has adopted: [`super::Schedd::adopt`] writes this.
const ADOPTED: &str = r#"unparse(SUBMIT_UserLog) =?= "\"log\"" && unparse(HTCJobIndex) =?= "ProcId""#;

impl ToFetch<'_> {
    /// The only folder that the tool writes to.
    fn place(&self) -> PathBuf {
        PathBuf::from(&self.output)
    }

    /// ClassAd expression for these jobs.
    fn jobs(&self) -> String {
        let list: Vec<String> = self.indices.iter().map(|index| index.to_string()).collect();
        format!("HTCJobUID =?= {} && member(HTCJobIndex, {{{}}})", quoted(self.uid.as_str()), list.join(","))
    }

    /// ClassAd expression for those of them that arrive in their own folder: their `Iwd` is written as it was submitted.
    fn in_place(&self) -> String {
        if self.adopted {
            return format!("unparse(SUBMIT_Iwd) =?= {} && {ADOPTED}", quoted(&adopted_folder(&self.output)));
        }
        let before = format!("\"{}/", self.output);
        // Versions before this one had no folder of its own for what arrives.
        format!(
            r#"substr(unparse(SUBMIT_Iwd), 0, {length}) =?= {before} && (substr(unparse(SUBMIT_Iwd), {length}) =?= strcat("{INCOMING}/", unparse(HTCJobIndex), "\"") || substr(unparse(SUBMIT_Iwd), {length}) =?= strcat(unparse(HTCJobIndex), "\""))"#,
            length = before.len(),
            before = quoted(&before),
        )
    }
}

/// `SUBMIT_Iwd` of adopted jobs, as `unparse` gives it: one text for all of them, and nobody can change a `ProcId`.
pub(super) fn adopted_folder(output: &str) -> String {
    format!("strcat({},ProcId)", quoted(&format!("{output}/{INCOMING}/")))
}

/// ClassAd expression for jobs of which all else that decides where they write is as it was submitted.
fn unchanged(adopted: bool) -> String {
    let mut parts: Vec<String> =
        UNSET.iter().map(|name| format!(r#"member(unparse({name}), {{"","undefined"}})"#)).collect();
    parts.push(NO_URL.to_owned());
    if !adopted {
        parts.extend([NUMBER.to_owned(), OWN.to_owned()]);
    }
    parts.join(" && ")
}

/// ClassAd expression for those of these jobs that go to their own place, or for the others.
fn going(jobs: &[ToFetch<'_>], elsewhere: bool) -> String {
    let group = |adopted: bool| {
        let own = || jobs.iter().filter(|job| job.adopted == adopted);
        let any = |each: Vec<String>| each.join(" || ");
        let in_place = any(own().map(|job| format!("({} && {})", job.jobs(), job.in_place())).collect());
        let (all, unchanged) = (any(own().map(ToFetch::jobs).collect()), unchanged(adopted));
        match elsewhere {
            _ if in_place.is_empty() => None,
            true => Some(format!("(({all}) && (({in_place}) && {unchanged}) =!= true)")),
            false => Some(format!("(({in_place}) && {unchanged})")),
        }
    };
    format!("({})", [false, true].into_iter().filter_map(group).collect::<Vec<_>>().join(" || "))
}

impl Schedd {
    /// `condor_transfer_data` of these ended jobs, and of no others: 25.14 lets what was fetched leave the queue. Each
    /// arrives in its folder, which must be there. `limit`: how long that may take; `largest`: the largest file, in bytes.
    pub async fn fetch(&self, jobs: &[ToFetch<'_>], limit: Duration, largest: Option<u64>) -> Result<(), Unknown> {
        let mine = self.mine().await?;
        let constraint = format!("{mine} && {ENDED} && {}", going(jobs, false));
        let arguments = vec!["-name", self.name.as_str(), "-constraint", &constraint];
        let writes: Vec<PathBuf> = jobs.iter().map(ToFetch::place).collect();
        let touches = Touches { reads: &[], writes: &writes, largest: Some(largest.unwrap_or(u64::MAX)) };
        let tool = FETCH_TOOL;
        let (input, most_bytes) = (Vec::new(), DONE);
        let call = Call { tool, arguments, input, limit, most_bytes, outlives_us: false, holds: None, touches };
        self.answer(tool, self.tools.call(call).await).map(drop)
    }

    /// Those of these ended jobs that [`Self::fetch`] leaves alone, because they would write elsewhere.
    pub async fn redirected(&self, jobs: &[ToFetch<'_>]) -> Result<HashMap<Uid, Indices>, Unknown> {
        const TOOL: &str = "condor_q";
        let mine = self.mine().await?;
        let constraint = format!("{mine} && {ENDED} && {}", going(jobs, true));
        let mut arguments = vec!["-allusers", "-name", self.name.as_str(), "-constraint", &constraint, "-af"];
        arguments.extend(SHOWN);
        let output = self.question(TOOL, &arguments, self.tools.limit, REDIRECTED).await?;
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

    fn to_fetch<'a>(uid: &'a Uid, indices: &'a Indices, adopted: bool) -> ToFetch<'a> {
        ToFetch { uid, indices, output: "/d/htc_out/n/x/11111111".to_owned(), adopted }
    }

    #[test]
    fn a_folder_is_compared_as_it_is_written() {
        let (uid, indices) = (Uid::from("11111111-2"), Indices::first(2));
        let own = to_fetch(&uid, &indices, false).in_place();
        let start = r#"substr(unparse(SUBMIT_Iwd), 0, 25) =?= "\"/d/htc_out/n/x/11111111/" && "#;
        assert!(own.starts_with(start), "{own}");
        assert!(own.contains(r#"strcat(".incoming/", unparse(HTCJobIndex), "\"")"#), "{own}");
        assert!(unchanged(false).contains(NUMBER), "what is no number leads out of the folder");
        let adopted = to_fetch(&uid, &indices, true).in_place();
        let iwd = r#"unparse(SUBMIT_Iwd) =?= "strcat(\"/d/htc_out/n/x/11111111/.incoming/\",ProcId)" && "#;
        assert!(adopted.starts_with(iwd), "{adopted}");
    }

    /// One argument has 128 KiB; the longest name of a namespace and that of an HTCJob have 63 and 253 characters.
    #[test]
    fn many_objects_fit_into_one_argument() {
        let uid = Uid::from("11111111-3b8c-4a51-9d1f-6f1a3a5f0001");
        let indices = Indices::first(40);
        let output = format!("/data/htc_out/{}/{}/11111111", "n".repeat(63), "x".repeat(253));
        let jobs: Vec<_> = (0..100)
            .map(|_| ToFetch { uid: &uid, indices: &indices, output: output.clone(), adopted: false })
            .collect();
        for elsewhere in [false, true] {
            let expression = going(&jobs, elsewhere);
            assert!(expression.len() < 124 << 10, "{}", expression.len());
        }
    }
}
