//! File operations for the workers. Each has a time limit, so that a volume that hangs does not block the workers for
//! longer.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use htc_machine::Uid;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::error::VolumeError;

/// Time limit of a file operation without its jobs.
const LEAST: Duration = Duration::from_secs(60);
/// Addition to the time limit for each job: its folders are made one by one, perhaps on a network file system.
const EACH_JOB: Duration = Duration::from_millis(10);
/// Maximum number of operations at a time, including those that hang: each occupies a thread.
const MOST: usize = 64;

/// Returns the time limit of an operation on the files of so many jobs.
#[must_use]
pub fn limit(jobs: usize) -> Duration {
    LEAST + EACH_JOB.saturating_mul(u32::try_from(jobs).unwrap_or(u32::MAX))
}

/// File operations that have begun and not ended. Clones share them.
///
/// An operation that its worker no longer waits for may go on, and end much later. Until then nothing else is done
/// with the files of its objects: a late operation could remove what a later call has fetched.
#[derive(Clone, Debug, Default)]
pub struct FileWork(Arc<Mutex<UnderWay>>);

#[derive(Debug, Default)]
struct UnderWay {
    next: u64,
    works: HashMap<u64, Vec<Uid>>,
}

/// Guard of one running operation; it is dropped when the operation ends.
struct FileWorkGuard {
    all: FileWork,
    number: u64,
}

impl Drop for FileWorkGuard {
    fn drop(&mut self) {
        self.all.with(|under_way| under_way.works.remove(&self.number));
    }
}

impl FileWork {
    fn with<T>(&self, work: impl FnOnce(&mut UnderWay) -> T) -> T {
        work(&mut self.0.lock())
    }

    /// Returns why nothing can be done with the files of this object now.
    #[must_use]
    pub fn busy(&self, uid: &Uid) -> Option<VolumeError> {
        let busy = |under_way: &mut UnderWay| under_way.works.values().any(|uids| uids.contains(uid));
        self.with(busy).then_some(VolumeError::Busy)
    }

    /// Runs `work` on the files of these objects, outside the async threads.
    ///
    /// # Errors
    ///
    /// The operation has not ended within `limit`, and goes on; or too many operations hang already, and it was not
    /// begun.
    pub async fn run<T: Send + 'static>(
        &self,
        uids: Vec<Uid>,
        limit: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, VolumeError> {
        let number = self.with(|under_way| {
            (under_way.works.len() < MOST).then(|| {
                under_way.next += 1;
                under_way.works.insert(under_way.next, uids);
                under_way.next
            })
        });
        let Some(number) = number else {
            return Err(VolumeError::TooMany(MOST));
        };
        let begun = FileWorkGuard { all: self.clone(), number };
        let handle = tokio::task::spawn_blocking(move || {
            let result = work();
            drop(begun);
            result
        });
        match tokio::time::timeout(limit, handle).await {
            Ok(Ok(result)) => Ok(result),
            Ok(Err(error)) => Err(VolumeError::Panicked(error)),
            Err(_) => Err(VolumeError::TimedOut(limit)),
        }
    }

    /// As [`Self::run`], but stops waiting at `stop` and returns `None`. An operation that has begun goes on here,
    /// too.
    pub async fn run_unless<T: Send + 'static>(
        &self,
        stop: &Notify,
        uids: Vec<Uid>,
        limit: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<Result<T, VolumeError>> {
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
    async fn hanging_call_times_out_and_keeps_its_object_busy() {
        let files = FileWork::default();
        assert_eq!(files.run(vec![uid()], limit(1), || 1).await.unwrap(), 1);
        assert!(files.busy(&uid()).is_none());

        let (go_on, hangs) = channel::<()>();
        let hang = move || assert!(hangs.recv().is_err());
        let failed = files.run(vec![uid()], Duration::from_millis(10), hang).await.unwrap_err().to_string();
        assert!(failed.contains("has not answered") && failed.contains("check the operator's data volume"), "{failed}");
        assert!(files.busy(&uid()).is_some_and(|why| why.to_string().contains("has not answered")));
        assert!(files.busy(&Uid::from("another")).is_none());
        drop(go_on);
        while files.busy(&uid()).is_some() {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn hanging_call_is_abandoned_on_stop() {
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
        assert!(done.is_none());
        assert!(files.busy(&uid()).is_some(), "it goes on");
        drop(go_on);
        while files.busy(&uid()).is_some() {
            tokio::task::yield_now().await;
        }
        assert!(matches!(files.run_unless(&stop, vec![uid()], limit(1), || 1).await, Some(Ok(1))));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn hanging_calls_are_limited() {
        let files = FileWork::default();
        let mut waiting = Vec::new();
        for _ in 0..MOST {
            let (go_on, hangs) = channel::<()>();
            waiting.push(go_on);
            assert!(files.run(Vec::new(), Duration::ZERO, move || assert!(hangs.recv().is_err())).await.is_err());
        }
        let refused = files.run(Vec::new(), limit(1), || ()).await.unwrap_err().to_string();
        assert!(refused.contains("64 calls wait"), "{refused}");
        drop(waiting);
    }
}
