//! What is done while a test's main part is.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Does `again` again and again, in a thread of its own, while `work` is done; what came of both. It ends with `work`, also if that
/// fails.
pub fn beside<T: Send, U>(mut state: T, mut again: impl FnMut(&mut T) + Send, work: impl FnOnce() -> U) -> (U, T) {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            while !over.load(Ordering::SeqCst) {
                again(&mut state);
            }
            state
        });
        let end = Ends(&over);
        let done = work();
        drop(end);
        (done, other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

/// Says that something is over when it is dropped.
pub(crate) struct Ends<'a>(pub &'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
