use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kube::runtime::reflector::ObjectRef;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::api::{ObjectName, Observed, Wake};
use crate::machine::Uid;

/// Least time between two rounds: what many jobs of one object report in it is one look at the object.
const ROUND: Duration = Duration::from_millis(20);

/// Wakes objects without keeping anybody waiting. An object that is to be woken several times in a short time is woken once.
pub(super) struct Wakes {
    waiting: Arc<Waiting>,
    task: AbortHandle,
}

#[derive(Default)]
struct Waiting {
    objects: Mutex<HashMap<Uid, ObjectName>>,
    news: Notify,
}

impl Wakes {
    pub(super) fn start(wake: Wake) -> Self {
        let waiting = Arc::new(Waiting::default());
        let task = tokio::spawn(rounds(Arc::clone(&waiting), wake)).abort_handle();
        Self { waiting, task }
    }

    pub(super) fn wake(&self, uid: &Uid, name: ObjectName) {
        self.waiting.objects.lock().unwrap_or_else(PoisonError::into_inner).insert(uid.clone(), name);
        self.waiting.news.notify_one();
    }
}

impl Drop for Wakes {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn rounds(waiting: Arc<Waiting>, wake: Wake) {
    loop {
        waiting.news.notified().await;
        let objects = std::mem::take(&mut *waiting.objects.lock().unwrap_or_else(PoisonError::into_inner));
        for name in objects.into_values() {
            if wake.send(ObjectRef::<Observed>::new(&name.name).within(&name.namespace)).await.is_err() {
                return;
            }
        }
        tokio::time::sleep(ROUND).await;
    }
}
