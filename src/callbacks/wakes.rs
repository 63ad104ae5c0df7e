use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use htc_api::{ObjectName, ObservedHTCJob};
use htc_machine::Uid;
use htc_support::kubernetes::Wake;
use kube::runtime::reflector::ObjectRef;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// Shortest interval between two rounds: reports of many jobs of one object within it cause one reconcile.
const ROUND: Duration = Duration::from_millis(20);

/// Shortest interval between two wakes of one object, however much its jobs report: reading an object of 100,000 jobs
/// takes the ledger some tenths of a second, during which others wait.
const SAME_OBJECT: Duration = Duration::from_secs(1);

/// Wakes objects without making callers wait. Several wakes of an object in a short time become one.
pub(crate) struct Wakes {
    waiting: Arc<Waiting>,
    task: AbortHandle,
}

#[derive(Default)]
struct Waiting {
    objects: Mutex<HashMap<Uid, ObjectName>>,
    news: Notify,
}

impl Wakes {
    pub(crate) fn start(wake: Wake) -> Self {
        let waiting = Arc::new(Waiting::default());
        let task = tokio::spawn(rounds(Arc::clone(&waiting), wake)).abort_handle();
        Self { waiting, task }
    }

    pub(crate) fn wake(&self, uid: &Uid, name: ObjectName) {
        self.waiting.objects.lock().insert(uid.clone(), name);
        self.waiting.news.notify_one();
    }
}

impl Drop for Wakes {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Waiting {
    /// Takes the objects that may be woken now; the others stay.
    fn due(&self, woken: &HashMap<Uid, Instant>) -> HashMap<Uid, ObjectName> {
        let mut objects = self.objects.lock();
        let all = std::mem::take(&mut *objects);
        let (due, later) = all.into_iter().partition(|(uid, _)| !woken.contains_key(uid));
        *objects = later;
        if !objects.is_empty() {
            self.news.notify_one();
        }
        due
    }
}

async fn rounds(waiting: Arc<Waiting>, wake: Wake) {
    let mut woken: HashMap<Uid, Instant> = HashMap::new();
    loop {
        waiting.news.notified().await;
        woken.retain(|_, at| at.elapsed() < SAME_OBJECT);
        for (uid, name) in waiting.due(&woken) {
            if wake.send(ObjectRef::<ObservedHTCJob>::new(&name.name).within(&name.namespace)).await.is_err() {
                return;
            }
            woken.insert(uid, Instant::now());
        }
        tokio::time::sleep(ROUND).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn busy_htcjob_is_woken_at_intervals_and_others_at_once() {
        let (wake, mut woken) = tokio::sync::mpsc::channel(100);
        let wakes = Wakes::start(wake);
        let name = |name: &str| ObjectName { namespace: "physics".to_owned(), name: name.to_owned() };
        let began = Instant::now();
        let mut at = Vec::new();
        while at.len() < 3 {
            wakes.wake(&Uid::from("busy"), name("busy"));
            if let Ok(object) = tokio::time::timeout(ROUND, woken.recv()).await {
                assert_eq!(object.unwrap().name, "busy");
                at.push(began.elapsed());
            }
        }
        assert!(at[0] < SAME_OBJECT && at[1] >= at[0] + SAME_OBJECT && at[2] >= at[1] + SAME_OBJECT, "{at:?}");
        wakes.wake(&Uid::from("other"), name("other"));
        let asked = Instant::now();
        while woken.recv().await.unwrap().name != "other" {}
        assert!(asked.elapsed() < SAME_OBJECT);
        // The last report of a busy object is not forgotten.
        wakes.wake(&Uid::from("busy"), name("busy"));
        assert_eq!(woken.recv().await.unwrap().name, "busy");
    }
}
