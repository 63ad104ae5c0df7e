//! Output of all jobs of an `HTCJob` as one tar archive, each job's in a folder named by its index. Only one job's
//! file list is in memory at a time. A client whose connection ends continues with the job that was cut; its folder
//! tells which.

use std::collections::VecDeque;
use std::path::PathBuf;

use actix_web::HttpResponse;
use actix_web::web::Bytes;
use futures::StreamExt as _;
use htc_ledger::Ledger;
use htc_machine::ids::Index;
use rustix::fs::{AtFlags, statat};
use rustix::io::Errno;

use super::{Archive, ArchiveEntries, END, MEDIA_TYPE, sent, zeros};
use crate::backends::procs::Parent;
use crate::backends::{self, JobFeature, RecordedProcs};
use crate::jobs_api::output_volume::OutputVolume;
use crate::jobs_api::resource::list::parameters;
use crate::jobs_api::resource::status_error::StatusError;
use crate::jobs_api::{JobsService, in_span, now};

/// Maximum number of jobs read in one step of the ledger.
const PART: usize = 1000;

/// Query of a request for the archive.
#[derive(Debug, Default, PartialEq, Eq)]
struct WholeQuery {
    /// First job to send.
    index: Index,
    /// Uid of the `HTCJob`: no other one of its name is sent.
    uid: Option<String>,
}

impl WholeQuery {
    fn parse(query: &str) -> Result<Self, StatusError> {
        let mut wanted = Self::default();
        for (name, value) in parameters(query)? {
            match name.as_str() {
                "index" => {
                    let wrong = || StatusError::wrong_parameter(&name, &value);
                    wanted.index = Index(value.parse().map_err(|_| wrong())?);
                }
                "uid" => wanted.uid = Some(value),
                "pretty" | "timeout" => {}
                _ => return Err(StatusError::unknown_parameter(&name)),
            }
        }
        Ok(wanted)
    }
}

/// Answers with the archive.
pub(in crate::jobs_api) async fn whole(
    jobs: &JobsService,
    user: &str,
    parent: Parent,
    query: &str,
) -> Result<HttpResponse, StatusError> {
    let wanted = WholeQuery::parse(query)?;
    if let Some(instead) = backends::alternative_to(parent.backend(), JobFeature::Files) {
        return Err(StatusError::bad_request(format!("each job of {} runs as a Pod: {instead}", parent.name)));
    }
    if wanted.uid.is_some_and(|uid| uid != parent.uid.as_str()) {
        return Err(StatusError::conflict(format!("{} is another HTCJob now: begin again", parent.name)));
    }
    let turn = jobs.limits.archive(user).await?;
    let folder = jobs.layout.output(&parent.htcjob(), &parent.uid);
    let outputs =
        Outputs { ledger: jobs.records.ledger.clone(), parent, from: Some(wanted.index), found: VecDeque::new() };
    let whole = HTCJobArchive { outputs, folder, volume: jobs.volume.clone(), job: None, begun: false, over: false };
    // The first part decides whether there is an answer at all.
    let Some((first, rest)) = whole.next().await? else {
        return Err(StatusError::internal("the archive has no end"));
    };
    let parts = futures::stream::iter([Ok(first)]).chain(sent(rest, turn, HTCJobArchive::next));
    Ok(HttpResponse::Ok().content_type(MEDIA_TYPE).streaming(in_span(parts)))
}

/// Jobs whose output is recorded as stored, by index.
struct Outputs {
    ledger: Ledger,
    parent: Parent,
    /// Index at which the ledger is read next; `None` at its end.
    from: Option<Index>,
    /// Indexes that were read.
    found: VecDeque<Index>,
}

impl Outputs {
    async fn next(&mut self) -> Result<Option<Index>, StatusError> {
        while self.found.is_empty()
            && let Some(from) = self.from
        {
            let procs = RecordedProcs::read(&self.ledger, &self.parent, from, PART, now()).await?.procs;
            let last = procs.last().filter(|_| procs.len() >= PART).and_then(|last| last.spec.index.checked_add(1));
            self.from = last.map(Index);
            self.found =
                procs.iter().filter(|proc| proc.status.output_fetched).map(|proc| Index(proc.spec.index)).collect();
        }
        let next = self.found.pop_front();
        // Once the HTCJob was released, its output may be removed: files that were not found may have existed.
        if next.is_none() && !self.ledger.let_go(vec![self.parent.uid.clone()]).await?.is_empty() {
            return Err(StatusError::not_found(format!("the HTCJob {} was deleted meanwhile", self.parent.name)));
        }
        Ok(next)
    }
}

/// The archive while it is sent.
struct HTCJobArchive {
    outputs: Outputs,
    /// Parent of the jobs' folders.
    folder: PathBuf,
    volume: OutputVolume,
    /// Archive of the job that is sent.
    job: Option<Archive>,
    /// At least one job had output.
    begun: bool,
    over: bool,
}

impl HTCJobArchive {
    async fn next(mut self) -> Result<Option<(Bytes, Self)>, StatusError> {
        while !self.over {
            if let Some(job) = self.job.take() {
                if let Some((part, rest)) = job.next().await? {
                    self.job = Some(rest);
                    return Ok(Some((part, self)));
                }
            } else if let Some(index) = self.outputs.next().await? {
                self.job = self.archive(index).await?;
                self.begun = true;
            } else {
                // The ledger may have forgotten an HTCJob that was deleted, and its deletion; its folder is removed
                // before that.
                if self.begun {
                    self.is_there().await?;
                }
                self.over = true;
                return Ok(Some((Bytes::from(zeros(END)), self)));
            }
        }
        Ok(None)
    }

    async fn is_there(&self) -> Result<(), StatusError> {
        let (volume, folder) = (self.volume.clone(), self.folder.clone());
        self.volume.step(move || volume.folder(&folder).map(drop)).await
    }

    /// Returns the output of this job; `None` if just that folder was removed.
    async fn archive(&self, index: Index) -> Result<Option<Archive>, StatusError> {
        let inside = PathBuf::from(index.to_string());
        let (volume, folder, name) = (self.volume.clone(), self.folder.clone(), inside.clone());
        let there = self.volume.step(move || match statat(volume.folder(&folder)?, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Ok(false),
            found => Ok(found.map(|_| true)?),
        });
        if !there.await? {
            return Ok(None);
        }
        let entries = ArchiveEntries::under(&self.volume, self.folder.clone(), inside).await?;
        Ok(Some(Archive { entries, volume: self.volume.clone(), number: 0, at: 0, end: 0 }))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use htc_api::{ObjectName, Phase};
    use htc_ledger::{RequestResult, Save};
    use htc_machine::facts::{Job, JobState, ObjectRow, RunHistory};
    use htc_machine::outcome::Outcome;
    use htc_machine::{
        Attempt, Birthdate, ClusterId, Indices, JobId, RequestKey, RequestKind, SchedDate, ScheddName, Timestamp, Uid,
    };
    use htc_support::health::Health;
    use htc_support::metrics::Metrics;

    use super::*;

    const SMALL: &str = "small";

    fn whole(folder: &Path, ledger: &Ledger, found: &[u32]) -> HTCJobArchive {
        let outputs = Outputs {
            ledger: ledger.clone(),
            parent: Parent::default(),
            from: None,
            found: found.iter().copied().map(Index).collect(),
        };
        HTCJobArchive {
            outputs,
            folder: folder.to_owned(),
            volume: OutputVolume::new(folder.to_owned()),
            job: None,
            begun: false,
            over: false,
        }
    }

    async fn bytes(mut whole: HTCJobArchive) -> Result<Vec<u8>, (Vec<u8>, StatusError)> {
        let mut all = Vec::new();
        loop {
            match whole.next().await {
                Ok(Some((part, rest))) => {
                    all.extend_from_slice(&part);
                    whole = rest;
                }
                Ok(None) => return Ok(all),
                Err(failure) => return Err((all, failure)),
            }
        }
    }

    fn paths(archive: &[u8]) -> Vec<String> {
        let mut archive = tar::Archive::new(archive);
        archive.entries().unwrap().map(|entry| entry.unwrap().path().unwrap().display().to_string()).collect()
    }

    fn has_an_end(archive: &[u8]) -> bool {
        archive.len() >= 1024 && archive[archive.len() - 1024..].iter().all(|byte| *byte == 0)
    }

    fn ledger(folder: &Path) -> Ledger {
        Ledger::open(&folder.join("htcjobs.db"), &Metrics::default(), &Health::default()).unwrap()
    }

    fn saved(phase: Phase, released: bool, jobs: u32) -> Save {
        let job = |proc| Job {
            id: JobId { cluster: ClusterId(12), proc },
            attempt: Attempt(1),
            birthdate: Birthdate(1000),
            recorded: Timestamp(6),
            staged_in: SchedDate(2000),
            started: true,
            state: JobState::Ended(Outcome::Succeeded),
            fetched: false,
            gone: false,
            runs: RunHistory::default(),
        };
        let known = ObjectRow {
            phase,
            new: true,
            started: None,
            completed: None,
            cut_short: None,
            given_up: 0,
            released,
            last_queue: None,
            conditions: Vec::new(),
        };
        Save {
            returned_quota: Indices::default(),
            uid: Uid::from("u"),
            name: ObjectName { namespace: "physics".to_owned(), name: "zero".to_owned() },
            pool: None,
            row: known,
            jobs: (0..jobs).map(|index| (Index(index), job(index))).collect(),
            settled: None,
            absent: None,
            action_updates: Vec::new(),
            schedd: ScheddName::from("schedd@test"),
            sandbox: "/data/sandbox/x".to_owned(),
            transitions: Vec::new(),
            refuted: Vec::new(),
            now: Timestamp(100),
        }
    }

    /// Records jobs that have ended, and that the output of those in `fetched` has arrived.
    async fn save_fetched(ledger: &Ledger, jobs: u32, fetched: &str) -> Uid {
        ledger.save(saved(Phase::Completed, false, jobs)).await.unwrap();
        let result = RequestResult {
            key: RequestKey { uid: Uid::from("u"), kind: RequestKind::Fetch, attempt: Attempt(1), step: 1 },
            at: Timestamp(9),
            failure: None,
            fetched: fetched.parse().unwrap(),
            sizes: std::collections::BTreeMap::default(),
            refused: Vec::new(),
            omitted: std::collections::BTreeMap::new(),
        };
        ledger.resolve(vec![result]).await.unwrap();
        Uid::from("u")
    }

    #[tokio::test]
    async fn archive_resumed_at_any_job_is_identical() {
        let folder = tempfile::tempdir().unwrap();
        let (ledger, output) = (ledger(folder.path()), folder.path().join("output"));
        for (path, text) in [("0/out", SMALL), ("2/out", ""), ("2/deep/er", SMALL), ("10/data", &"x".repeat(700_000))] {
            let path = output.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        fs::create_dir(output.join("3")).unwrap();
        // The output of job 1 was removed by hand.
        let all = bytes(whole(&output, &ledger, &[0, 1, 2, 3, 10])).await.unwrap();
        assert_eq!(paths(&all), ["0", "0/out", "2", "2/deep", "2/out", "2/deep/er", "3", "10", "10/data"]);
        assert!(has_an_end(&all));
        for rest in [[1, 2, 3, 10].as_slice(), &[2, 3, 10], &[3, 10], &[10], &[]] {
            let rest = bytes(whole(&output, &ledger, rest)).await.unwrap();
            assert!(all.ends_with(&rest) && rest.len() < all.len(), "{} bytes", rest.len());
        }
        assert_eq!(bytes(whole(&output, &ledger, &[])).await.unwrap(), [0; 1024]);
    }

    #[tokio::test]
    async fn unreadable_output_truncates_the_archive() {
        let folder = tempfile::tempdir().unwrap();
        let (ledger, output) = (ledger(folder.path()), folder.path().join("output"));
        for job in ["0", "1"] {
            fs::create_dir_all(output.join(job)).unwrap();
            fs::write(output.join(job).join("out"), SMALL).unwrap();
        }
        let (_, begun) = whole(&output, &ledger, &[0, 1]).next().await.unwrap().unwrap();
        fs::write(output.join("0/out"), "longer than it was").unwrap();
        let (sent, failure) = bytes(begun).await.unwrap_err();
        assert!(failure.message.contains("changed") && !has_an_end(&sent), "{failure:?}");

        let uid = save_fetched(&ledger, 2, "0-1").await;
        let mut archive = whole(&output, &ledger, &[]);
        archive.outputs.parent.uid = uid;
        archive.outputs.from = Some(Index(0));
        let (_, begun) = archive.next().await.unwrap().unwrap();
        ledger.save(saved(Phase::Terminating, true, 0)).await.unwrap();
        let (sent, failure) = bytes(begun).await.unwrap_err();
        assert_eq!((failure.code, has_an_end(&sent)), (404, false), "{}", failure.message);
    }

    #[tokio::test]
    async fn output_deleted_meanwhile_truncates_the_archive() {
        let folder = tempfile::tempdir().unwrap();
        let (ledger, output) = (ledger(folder.path()), folder.path().join("output"));
        fs::create_dir_all(output.join("0")).unwrap();
        let (_, begun) = whole(&output, &ledger, &[0]).next().await.unwrap().unwrap();
        fs::remove_dir_all(&output).unwrap();
        let (sent, failure) = bytes(begun).await.unwrap_err();
        assert_eq!((failure.code, sent.len()), (404, 0), "{}", failure.message);
    }

    #[tokio::test]
    async fn symbolic_link_in_place_of_a_job_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (ledger, output) = (ledger(folder.path()), folder.path().join("output"));
        for job in [output.join("0"), folder.path().join("theirs")] {
            fs::create_dir_all(&job).unwrap();
            fs::write(job.join("out"), SMALL).unwrap();
        }
        symlink(folder.path().join("theirs"), output.join("1")).unwrap();
        let (sent, failure) = bytes(whole(&output, &ledger, &[0, 1])).await.unwrap_err();
        assert_eq!(
            (failure.code, paths(&sent)),
            (500, vec!["0".to_owned(), "0/out".to_owned()]),
            "{}",
            failure.message
        );
    }

    /// As if another volume were mounted in its place.
    #[tokio::test]
    async fn missing_output_folder_is_not_an_empty_archive() {
        let folder = tempfile::tempdir().unwrap();
        let (sent, failure) =
            bytes(whole(&folder.path().join("output"), &ledger(folder.path()), &[0, 1])).await.unwrap_err();
        assert_eq!((failure.code, sent.len()), (404, 0), "{}", failure.message);
    }

    #[tokio::test]
    async fn jobs_with_output_are_archived_once_and_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = ledger(folder.path());
        let uid = save_fetched(&ledger, 3000, "0,7-998,1000-1001,2999").await;
        let of = async |from| {
            let parent = Parent { uid: uid.clone(), ..Parent::default() };
            let mut outputs =
                Outputs { ledger: ledger.clone(), parent, from: Some(Index(from)), found: VecDeque::new() };
            let mut all = Vec::new();
            while let Some(index) = outputs.next().await.unwrap() {
                all.push(index.0);
            }
            all
        };
        let expected: Vec<u32> = [0].into_iter().chain(7..=998).chain(1000..=1001).chain([2999]).collect();
        assert_eq!(of(0).await, expected);
        assert_eq!(of(1000).await, [1000, 1001, 2999]);
        assert_eq!(of(u32::MAX).await, Vec::<u32>::new());
    }

    #[test]
    fn unknown_archive_parameters_are_refused() {
        let uid = Some("a-b".to_owned());
        assert_eq!(WholeQuery::parse("index=7&uid=a-b"), Ok(WholeQuery { index: Index(7), uid }));
        assert_eq!(WholeQuery::parse("pretty=1"), Ok(WholeQuery::default()));
        for query in ["index=-1", "index=", "index=4294967296", "index=1&index=2", "offset=7", "etag=00"] {
            assert_eq!(WholeQuery::parse(query).map_err(|failure| failure.code), Err(400), "{query}");
        }
    }
}
