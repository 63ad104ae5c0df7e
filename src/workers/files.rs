//! Work on files for the workers. A volume that hangs holds up none of them for longer than a time limit.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::machine::Uid;

/// Least time that work on files may take.
const LEAST: Duration = Duration::from_secs(60);
/// What each job adds to it: its folders are made one by one, on a network file system perhaps.
const EACH_JOB: Duration = Duration::from_millis(10);
/// Most pieces of work that are under way at once, those included that hang: each keeps a thread.
const MOST: usize = 64;

/// How long work on the files of so many jobs may take.
pub(super) fn limit(jobs: usize) -> Duration {
    LEAST + EACH_JOB.saturating_mul(u32::try_from(jobs).unwrap_or(u32::MAX))
}

/// The work on files that has begun and not ended. Clones share it.
///
/// What a worker no longer waits for may go on, and end much later. Until then nothing else is done with the files of these
/// objects: it could remove what a later call has brought.
#[derive(Clone, Debug, Default)]
pub struct FileWork(Arc<Mutex<UnderWay>>);

#[derive(Debug, Default)]
struct UnderWay {
    next: u64,
    works: HashMap<u64, Vec<Uid>>,
}

/// Stands for one piece of work as long as it lasts.
struct Begun {
    all: FileWork,
    number: u64,
}

impl Drop for Begun {
    fn drop(&mut self) {
        self.all.with(|under_way| under_way.works.remove(&self.number));
    }
}

impl FileWork {
    fn with<T>(&self, work: impl FnOnce(&mut UnderWay) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Why nothing can be done with the files of this object now, in words for the user.
    pub(super) fn busy(&self, uid: &Uid) -> Option<String> {
        let busy = |under_way: &mut UnderWay| under_way.works.values().any(|uids| uids.contains(uid));
        self.with(busy).then(|| {
            "the operator's data volume has not answered an earlier call for the files of this HTCJob; check the operator's data volume".to_owned()
        })
    }

    /// Does `work` on the files of these objects, beside the async threads.
    ///
    /// # Errors
    ///
    /// In words for the user: it has not ended within `limit`, and goes on; or too much hangs already, and it was not begun.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        uids: Vec<Uid>,
        limit: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, String> {
        let number = self.with(|under_way| {
            (under_way.works.len() < MOST).then(|| {
                under_way.next += 1;
                under_way.works.insert(under_way.next, uids);
                under_way.next
            })
        });
        let Some(number) = number else {
            return Err(format!(
                "the operator's data volume does not answer: {MOST} calls wait for it; check the operator's data volume"
            ));
        };
        let begun = Begun { all: self.clone(), number };
        let handle = tokio::task::spawn_blocking(move || {
            let result = work();
            drop(begun);
            result
        });
        match tokio::time::timeout(limit, handle).await {
            Ok(Ok(result)) => Ok(result),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!(
                "the operator's data volume has not answered for {} s; check the operator's data volume",
                limit.as_secs()
            )),
        }
    }

    /// The same, unless it is to stop meanwhile: none then. What was begun goes on here, too.
    pub(super) async fn run_unless<T: Send + 'static>(
        &self,
        stop: &Notify,
        uids: Vec<Uid>,
        limit: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<Result<T, String>> {
        tokio::select! {
            result = self.run(uids, limit, work) => Some(result),
            () = stop.notified() => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    fn uid() -> Uid {
        Uid::from("11111111-3b8c-4a51-9d1f-6f1a3a5f0001")
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_hangs_fails_in_time_and_keeps_its_files_to_itself() {
        let files = FileWork::default();
        assert_eq!(files.run(vec![uid()], limit(1), || 1).await, Ok(1));
        assert_eq!(files.busy(&uid()), None);

        let (go_on, hangs) = channel::<()>();
        let hang = move || assert!(hangs.recv().is_err());
        let failed = files.run(vec![uid()], Duration::from_millis(10), hang).await.unwrap_err();
        assert!(failed.contains("has not answered") && failed.contains("check the operator's data volume"), "{failed}");
        assert!(files.busy(&uid()).is_some_and(|why| why.contains("has not answered")));
        assert_eq!(files.busy(&Uid::from("another")), None);
        drop(go_on);
        while files.busy(&uid()).is_some() {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_hangs_is_let_go_when_it_is_to_stop() {
        let (files, stop) = (FileWork::default(), Notify::new());
        let ((go_on, hangs), (tell, told)) = (channel::<()>(), tokio::sync::oneshot::channel());
        let hang = move || {
            tell.send(()).unwrap();
            assert!(hangs.recv().is_err());
        };
        let stops = async {
            told.await.unwrap();
            stop.notify_one();
        };
        let (done, ()) = tokio::join!(files.run_unless(&stop, vec![uid()], limit(1), hang), stops);
        assert_eq!(done, None);
        assert!(files.busy(&uid()).is_some(), "it goes on");
        drop(go_on);
        while files.busy(&uid()).is_some() {
            tokio::task::yield_now().await;
        }
        assert_eq!(files.run_unless(&stop, vec![uid()], limit(1), || 1).await, Some(Ok(1)));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_hangs_does_not_take_all_threads() {
        let files = FileWork::default();
        let mut waiting = Vec::new();
        for _ in 0..MOST {
            let (go_on, hangs) = channel::<()>();
            waiting.push(go_on);
            assert!(files.run(Vec::new(), Duration::ZERO, move || assert!(hangs.recv().is_err())).await.is_err());
        }
        let refused = files.run(Vec::new(), limit(1), || ()).await.unwrap_err();
        assert!(refused.contains("64 calls wait"), "{refused}");
        drop(waiting);
    }
}
