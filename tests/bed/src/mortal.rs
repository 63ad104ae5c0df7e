//! An operator that dies at named points ([`htc_support::failpoint`]) and is started again each time.

use std::collections::VecDeque;
use std::os::unix::process::ExitStatusExt as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use testbed::wait_for;

use super::beside::Ends;
use super::{Bed, PATIENCE};

/// The times that a dead submitter is waited for, shorter than usual: many are.
const SHORTER: &[&str] = &["--submit-timeout=4s", "--submit-timeout-max=8s", "--late-margin=2s", "--dead-margin=2s"];

impl Bed {
    /// Starts the operator; with `place`, e.g. `after-condor-rm` or `before-decision-saved:3`, so that it dies there. The
    /// bed's own arguments take the place of the usual ones.
    pub fn start_mortal_operator(&self, place: Option<&str>) {
        let own: Vec<&str> = SHORTER.iter().copied().chain(self.arguments.iter().map(String::as_str)).collect();
        self.run_operator(&own, place);
    }

    /// Runs `story` with an operator that dies at each of `places`, one after another, and in the end is started without.
    /// A story that does not come to the first `certain` of them fails.
    pub fn dying_at(&self, places: &[String], certain: usize, story: impl FnOnce()) {
        self.kill_operator();
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let (started, met) = std::sync::mpsc::channel();
            let over = &over;
            let keeper = scope.spawn(move || self.keep(places, over, &started));
            met.recv().unwrap();
            // The keeper ends with the story, also if that fails.
            let end = Ends(over);
            story();
            for place in &places[..certain] {
                wait_for(&format!("the operator to die at {place}"), PATIENCE, || met.try_recv().ok()).unwrap();
            }
            drop(end);
            let left = keeper.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            if left > 0 {
                self.kill_operator();
                self.start_mortal_operator(None);
            }
        });
        // Before that, it dies of SIGTERM.
        wait_for("the operator to run", PATIENCE, || self.log().contains("htc-operator runs")).unwrap();
    }

    /// Says when the operator was started, and each time that it has died as it was told to. Gives how many places it was
    /// not seen to come to. One that was told to stop, and had no time to come to its place, is to come to it later.
    fn keep(&self, places: &[String], over: &AtomicBool, say: &std::sync::mpsc::Sender<()>) -> usize {
        let mut places: VecDeque<&str> = places.iter().map(String::as_str).collect();
        self.start_mortal_operator(places.front().copied());
        say.send(()).unwrap();
        while !over.load(Ordering::SeqCst) {
            if let Some((status, log)) = self.operator_ended() {
                let place = places.front().copied();
                let sign = place.map(|place| format!("killed at {place}"));
                let as_told = status.signal() == Some(9) && sign.is_some_and(|sign| log.contains(&sign));
                let in_order = status.success() && log.contains("stopping limit_seconds");
                assert!(
                    as_told || in_order,
                    "the operator should have died at {place:?}, but ended with {status}:\n{log}"
                );
                if as_told {
                    places.pop_front();
                    self.lose_what_is_not_on_the_disk();
                }
                self.start_mortal_operator(places.front().copied());
                if as_told {
                    let _ = say.send(());
                }
            }
            thread::sleep(Duration::from_millis(10));
        }
        places.len()
    }
}
