//! Ends the operator again and again, at times and in ways that dice say.

use std::fmt;
use std::os::unix::process::ExitStatusExt as _;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::soak::Soak;
use crate::soak::checker::{Rule, Violation};
use crate::soak::submitter::Call;
use bed::PATIENCE;
use bed::dice::Dice;

/// A submitter that fell asleep wakes up when its jobs come too late: `--submit-timeout` and `--late-margin` of the test
/// bed, and a little more.
const ASLEEP: Duration = Duration::from_secs(10 + 5 + 3);
/// How long a submitter is waited for before the operator is killed anyway.
const NO_SUBMITTER: Duration = Duration::from_secs(3);

/// Kills after which it is told how far the soak is.
const PROGRESS: usize = 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    Kill,
    /// SIGTERM
    Terminate,
    /// SIGSTOP, and SIGKILL after this time.
    Hang(Duration),
    /// SIGKILL once condor_submit runs, which lives on.
    WhileSubmitting,
    /// The same, and condor_submit falls asleep and lands late.
    Asleep,
}

/// How often what was done.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub kills: usize,
    pub terminated: usize,
    pub hanging: usize,
    /// A condor_submit ran when its operator ended.
    pub submitting: usize,
    pub asleep: usize,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} kills ({} by SIGTERM, {} after a SIGSTOP, {} while condor_submit ran, of which {} fell asleep)",
            self.kills, self.terminated, self.hanging, self.submitting, self.asleep
        )
    }
}

impl Tally {
    pub fn add(&mut self, other: Self) {
        self.kills += other.kills;
        self.terminated += other.terminated;
        self.hanging += other.hanging;
        self.submitting += other.submitting;
        self.asleep += other.asleep;
    }
}

/// Starts the operator and ends it, `kills` times, and leaves it running. `soak.killed` counts along.
pub fn kill(soak: &Soak, dice: &mut Dice, kills: usize) -> (Tally, Vec<Violation>) {
    let (mut tally, mut violations) = (Tally::default(), Vec::new());
    let mut asleep = Asleep::default();
    for _ in 0..kills {
        let crowded = start_next(soak, *dice.one_of(&[0, 0, 5, 30]));
        let calls = soak.submitter.calls().len();
        let (mut after, mut manner) = (life(dice), manner(dice));
        if crowded {
            // Some time about that of the submission that takes as many as go together.
            after = dice.milliseconds(2000, 6000);
            manner = *dice.one_of(&[Manner::Kill, Manner::Kill, Manner::Terminate]);
        }
        if matches!(manner, Manner::WhileSubmitting | Manner::Asleep) {
            wait_for_submitter(soak, calls);
            thread::sleep(dice.milliseconds(0, 600));
        } else {
            thread::sleep(after);
        }
        if let Some((status, log)) = soak.bed.operator_ended() {
            violations.push(Violation::new(Rule::OperatorEnded, "", format!("{status}: {}", last_lines(&log))));
        }
        let running = soak.submitter.calls().into_iter().skip(calls).rfind(|call| call.runs());
        if manner == Manner::Asleep && running.is_none() {
            manner = Manner::Kill;
        }
        if let Some(wrong) = end(soak, manner, running, &mut asleep) {
            violations.push(Violation::new(Rule::OperatorEnded, "", wrong));
        }
        tally.kills += 1;
        tally.submitting += usize::from(running.is_some());
        tally.terminated += usize::from(manner == Manner::Terminate);
        tally.hanging += usize::from(matches!(manner, Manner::Hang(_)));
        tally.asleep += usize::from(manner == Manner::Asleep);
        let killed = 1 + soak.killed.fetch_add(1, Ordering::Relaxed);
        if killed.is_multiple_of(PROGRESS) {
            soak.progress(killed);
        }
        asleep.wake_up();
    }
    start_next(soak, 0);
    soak.rests.store(true, Ordering::Relaxed);
    while !asleep.0.is_empty() {
        thread::sleep(Duration::from_millis(200));
        asleep.wake_up();
    }
    (tally, violations)
}

/// Starts the operator, unless just now a crowd is created; whether one was since the last start. condor_submit pauses for
/// these tenths of a second, and after a crowd for one second: while the first submission waits, the others gather.
fn start_next(soak: &Soak, pause: u64) -> bool {
    let _next = soak.next_life.lock().unwrap();
    let crowded = soak.crowded.swap(false, Ordering::Relaxed);
    soak.submitter.set_pause(if crowded { 10 } else { pause });
    soak.bed.start_operator();
    soak.wakes_up();
    crowded
}

/// How long the operator lives: often it is still starting, mostly it has just begun to work, now and then it gets on.
fn life(dice: &mut Dice) -> Duration {
    match dice.below(10) {
        0 | 1 => dice.milliseconds(0, 400),
        2..=7 => dice.milliseconds(400, 3000),
        _ => dice.milliseconds(3000, 8000),
    }
}

fn manner(dice: &mut Dice) -> Manner {
    match dice.below(20) {
        0..=9 => Manner::Kill,
        10..=12 => Manner::Terminate,
        13 | 14 => Manner::Hang(dice.milliseconds(1000, 2000)),
        15..=18 => Manner::WhileSubmitting,
        _ => Manner::Asleep,
    }
}

/// Ends the operator; what was wrong with that.
fn end(soak: &Soak, manner: Manner, running: Option<Call>, asleep: &mut Asleep) -> Option<String> {
    soak.sleeps();
    match manner {
        Manner::Kill | Manner::WhileSubmitting => soak.bed.kill_operator(),
        Manner::Terminate => {
            let status = soak.bed.terminate_operator();
            // One that has just begun does not handle it yet.
            let in_order = status.success() || status.signal() == Some(Signal::TERM.as_raw());
            return (!in_order).then(|| format!("SIGTERM ended it with {status}"));
        }
        Manner::Hang(long) => {
            soak.bed.pause_operator();
            thread::sleep(long);
            soak.bed.kill_operator();
        }
        Manner::Asleep => {
            soak.bed.kill_operator();
            if let Some(call) = running {
                call.fall_asleep();
                asleep.0.push((call, Instant::now()));
            }
        }
    }
    None
}

fn wait_for_submitter(soak: &Soak, calls: usize) {
    let began = Instant::now();
    while began.elapsed() < NO_SUBMITTER && soak.submitter.calls().len() == calls {
        thread::sleep(Duration::from_millis(10));
    }
}

/// Submitters that sleep, and since when. None outlives this value.
#[derive(Default)]
struct Asleep(Vec<(Call, Instant)>);

impl Asleep {
    /// Wakes up those that have slept long enough, and waits for their ends.
    fn wake_up(&mut self) {
        self.0.retain(|(call, since)| {
            if since.elapsed() < ASLEEP {
                return true;
            }
            call.wake_up();
            let began = Instant::now();
            while call.runs() && began.elapsed() < PATIENCE {
                thread::sleep(Duration::from_millis(20));
            }
            call.end();
            false
        });
    }
}

impl Drop for Asleep {
    fn drop(&mut self) {
        self.0.iter().for_each(|(call, _)| call.end());
    }
}

fn last_lines(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}
