//! The output of all jobs of an `HTCJob` as one tar archive, each job's in a folder named by its index. Of one job at a time is known what
//! it has left. A client whose connection ends goes on with the job that was cut; its folder says which.

use std::collections::VecDeque;
use std::path::PathBuf;

use actix_web::HttpResponse;
use actix_web::web::Bytes;
use futures::StreamExt as _;
use rustix::fs::{AtFlags, statat};
use rustix::io::Errno;

use super::{Archive, END, Entries, MEDIA_TYPE, sent, zeros};
use crate::backends::{self, Asked, Recorded};
use crate::jobs_api::volume::Volume;
use crate::jobs_api::{Jobs, in_span, now};
use crate::ledger::Ledger;
use crate::machine::ids::Index;
use crate::procs::Parent;
use crate::procs::answer::Failure;
use crate::procs::list::parameters;

/// Most jobs that are looked at in one step of the ledger.
const PART: usize = 1000;

/// What is wanted of the archive.
#[derive(Debug, Default, PartialEq, Eq)]
struct WholeQuery {
    /// From this job on.
    index: Index,
    /// Of the `HTCJob` with this uid, and of no other of its name.
    uid: Option<String>,
}

impl WholeQuery {
    fn parse(query: &str) -> Result<Self, Failure> {
        let mut wanted = Self::default();
        for (name, value) in parameters(query)? {
            match name.as_str() {
                "index" => {
                    let wrong = || Failure::wrong_parameter(&name, &value);
                    wanted.index = Index(value.parse().map_err(|_| wrong())?);
                }
                "uid" => wanted.uid = Some(value),
                "pretty" | "timeout" => {}
                _ => return Err(Failure::unknown_parameter(&name)),
            }
        }
        Ok(wanted)
    }
}

/// Answers with the archive.
pub(in crate::jobs_api) async fn whole(
    jobs: &Jobs,
    user: &str,
    parent: Parent,
    query: &str,
) -> Result<HttpResponse, Failure> {
    let wanted = WholeQuery::parse(query)?;
    if let Some(instead) = backends::instead(parent.backend(), Asked::Files) {
        return Err(Failure::bad_request(format!("each job of {} runs as a Pod: {instead}", parent.name)));
    }
    if wanted.uid.is_some_and(|uid| uid != parent.uid.as_str()) {
        return Err(Failure::conflict(format!("{} is another HTCJob now: begin again", parent.name)));
    }
    let turn = jobs.turns.archive(user).await?;
    let folder = jobs.planner.output(&parent.htcjob(), &parent.uid);
    let outputs =
        Outputs { ledger: jobs.records.ledger.clone(), parent, from: Some(wanted.index), found: VecDeque::new() };
    let whole = Whole { outputs, folder, volume: jobs.volume.clone(), job: None, begun: false, over: false };
    // The first part tells whether there is an answer at all.
    let Some((first, rest)) = whole.next().await? else {
        return Err(Failure::internal("the archive has no end"));
    };
    let parts = futures::stream::iter([Ok(first)]).chain(sent(rest, turn, Whole::next));
    Ok(HttpResponse::Ok().content_type(MEDIA_TYPE).streaming(in_span(parts)))
}

/// The jobs whose output is recorded to be here, by index.
struct Outputs {
    ledger: Ledger,
    parent: Parent,
    /// Where the ledger is read on; none at its end.
    from: Option<Index>,
    /// Those that were read.
    found: VecDeque<Index>,
}

impl Outputs {
    async fn next(&mut self) -> Result<Option<Index>, Failure> {
        while self.found.is_empty()
            && let Some(from) = self.from
        {
            let procs = Recorded::read(&self.ledger, &self.parent, from, PART, now()).await?.procs;
            let last = procs.last().filter(|_| procs.len() >= PART).and_then(|last| last.spec.index.checked_add(1));
            self.from = last.map(Index);
            self.found =
                procs.iter().filter(|proc| proc.status.output_fetched).map(|proc| Index(proc.spec.index)).collect();
        }
        let next = self.found.pop_front();
        // Its output may be removed then: what was not found is not known to be none.
        if next.is_none() && !self.ledger.let_go(vec![self.parent.uid.clone()]).await?.is_empty() {
            return Err(Failure::not_found(format!("the HTCJob {} was deleted meanwhile", self.parent.name)));
        }
        Ok(next)
    }
}

/// The archive on its way.
struct Whole {
    outputs: Outputs,
    /// Where the folder of each job is.
    folder: PathBuf,
    volume: Volume,
    /// The job that is sent.
    job: Option<Archive>,
    /// Whether there was any.
    begun: bool,
    over: bool,
}

impl Whole {
    async fn next(mut self) -> Result<Option<(Bytes, Self)>, Failure> {
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
                // The ledger may have forgotten an HTCJob that was deleted, and that it was; its folder goes before that.
                if self.begun {
                    self.is_there().await?;
                }
                self.over = true;
                return Ok(Some((Bytes::from(zeros(END)), self)));
            }
        }
        Ok(None)
    }

    async fn is_there(&self) -> Result<(), Failure> {
        let (volume, folder) = (self.volume.clone(), self.folder.clone());
        self.volume.step(move || volume.folder(&folder).map(drop)).await
    }

    /// What this job has left; none if somebody has removed that, and that alone.
    async fn archive(&self, index: Index) -> Result<Option<Archive>, Failure> {
        let inside = PathBuf::from(index.to_string());
        let (volume, folder, name) = (self.volume.clone(), self.folder.clone(), inside.clone());
        let there = self.volume.step(move || match statat(volume.folder(&folder)?, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Ok(false),
            found => Ok(found.map(|_| true)?),
        });
        if !there.await? {
            return Ok(None);
        }
        let entries = Entries::under(&self.volume, self.folder.clone(), inside).await?;
        Ok(Some(Archive { entries, volume: self.volume.clone(), number: 0, at: 0, end: 0 }))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use super::*;

    const SMALL: &str = "small";

    fn whole(folder: &Path, ledger: &Ledger, found: &[u32]) -> Whole {
        let outputs = Outputs {
            ledger: ledger.clone(),
            parent: Parent::default(),
            from: None,
            found: found.iter().copied().map(Index).collect(),
        };
        Whole {
            outputs,
            folder: folder.to_owned(),
            volume: Volume::new(folder.to_owned()),
            job: None,
            begun: false,
            over: false,
        }
    }

    async fn bytes(mut whole: Whole) -> Result<Vec<u8>, (Vec<u8>, Failure)> {
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
        Ledger::open_alone(&folder.join("htcjobs.db")).unwrap()
    }

    #[tokio::test]
    async fn from_any_job_on_it_is_the_rest_of_the_same_archive() {
        let folder = tempfile::tempdir().unwrap();
        let (ledger, output) = (ledger(folder.path()), folder.path().join("output"));
        for (path, text) in [("0/out", SMALL), ("2/out", ""), ("2/deep/er", SMALL), ("10/data", &"x".repeat(700_000))] {
            let path = output.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        fs::create_dir(output.join("3")).unwrap();
        // Somebody has removed what job 1 had left.
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
    async fn what_cannot_be_read_leaves_no_end() {
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

        let uid = ledger.save_fetched(2, "0-1").await;
        let mut archive = whole(&output, &ledger, &[]);
        archive.outputs.parent.uid = uid;
        archive.outputs.from = Some(Index(0));
        let (_, begun) = archive.next().await.unwrap().unwrap();
        ledger.save_let_go().await;
        let (sent, failure) = bytes(begun).await.unwrap_err();
        assert_eq!((failure.code, has_an_end(&sent)), (404, false), "{}", failure.message);
    }

    #[tokio::test]
    async fn what_is_forgotten_meanwhile_leaves_no_end() {
        let folder = tempfile::tempdir().unwrap();
        let (ledger, output) = (ledger(folder.path()), folder.path().join("output"));
        fs::create_dir_all(output.join("0")).unwrap();
        let (_, begun) = whole(&output, &ledger, &[0]).next().await.unwrap().unwrap();
        fs::remove_dir_all(&output).unwrap();
        let (sent, failure) = bytes(begun).await.unwrap_err();
        assert_eq!((failure.code, sent.len()), (404, 0), "{}", failure.message);
    }

    #[tokio::test]
    async fn a_link_in_the_place_of_a_job_leads_nowhere() {
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

    /// As where another volume is in its place.
    #[tokio::test]
    async fn what_is_gone_for_all_jobs_is_not_taken_for_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let (sent, failure) =
            bytes(whole(&folder.path().join("output"), &ledger(folder.path()), &[0, 1])).await.unwrap_err();
        assert_eq!((failure.code, sent.len()), (404, 0), "{}", failure.message);
    }

    #[tokio::test]
    async fn of_many_jobs_those_with_output_come_once_and_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = ledger(folder.path());
        let uid = ledger.save_fetched(3000, "0,7-998,1000-1001,2999").await;
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
    fn only_what_is_known_is_asked_for() {
        let uid = Some("a-b".to_owned());
        assert_eq!(WholeQuery::parse("index=7&uid=a-b"), Ok(WholeQuery { index: Index(7), uid }));
        assert_eq!(WholeQuery::parse("pretty=1"), Ok(WholeQuery::default()));
        for query in ["index=-1", "index=", "index=4294967296", "index=1&index=2", "offset=7", "etag=00"] {
            assert_eq!(WholeQuery::parse(query).map_err(|failure| failure.code), Err(400), "{query}");
        }
    }
}
