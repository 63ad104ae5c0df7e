//! Who may use the machine now. `make test` starts all tests at once, and each waits here until there is room for it: tests on
//! real servers mostly wait, so many of them fill a core, but not any number.
//!
//! A test asks by its first use of a server, or names its weight in its first line. It keeps its turn until its thread
//! ends. The heaviest go first, and of the same weight those that took longest in the last run: nothing long is left for
//! the end, when little else would run beside it. While the cores have been idle for a while, more may run than their weights say.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

/// What one core takes at a time, whatever it is: three tests with servers of their own. With 16 from the first on, all servers begin
/// at once, and time limits ended what would have come about.
const UNITS_OF_A_CORE: u32 = 9;
/// At most so many times that, while the cores are idle.
const MOST_TIMES: u32 = 2;
/// Share of all cores that is idle then. On a machine that is slow, or has other work, nothing is, and their weights alone count.
const IDLE: f64 = 0.15;
/// How often the cores are looked at, and how much one look counts: what a test takes as it begins is seen before the next one may.
const LOOK: Duration = Duration::from_millis(500);
const COUNTS: f64 = 0.12;
/// Memory that must be free for more tests, in KiB: what a test with servers of its own needs, twice.
const MEMORY: u64 = 3 << 20;

/// The file with the times of each test in the last run that it was in: lines of `name start waited took`, in ms, the start since 1970.
/// The last line of a name counts.
const TIMES: &str = "HTC_TEST_TIMES";

/// The file that names the tests that failed in a wait that ran out, a line each: these may be tried again.
const WAITED: &str = "HTC_TEST_WAITED";

/// How much of the machine a test needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Weight {
    /// Nothing else may run meanwhile: it measures. These come last.
    Quiet,
    /// One process at a time, or a namespace on servers that others use, too.
    Light,
    /// Servers and an operator of its own.
    Servers,
    /// Hundreds of `HTCJob`s, or several sets of servers.
    Heavy,
}

impl Weight {
    fn units(self, all: u32) -> u32 {
        match self {
            Self::Light => 2,
            Self::Servers => 3,
            Self::Heavy => all / 2,
            Self::Quiet => all,
        }
    }
}

/// Longer runs come first within a weight.
type Order = (Weight, Duration);

struct Machine {
    all: u32,
    /// Units of all that run.
    used: u32,
    /// One that measures runs.
    quiet: bool,
    /// Share of all cores that was idle lately, while there is memory; none since one was let in for it.
    idle: f64,
    waiting: Vec<(Order, thread::ThreadId)>,
    before: HashMap<String, Duration>,
    times: Option<PathBuf>,
}

static MACHINE: LazyLock<Mutex<Machine>> = LazyLock::new(|| Mutex::new(Machine::new()));
static CHANGED: Condvar = Condvar::new();

thread_local! {
    static TURN: RefCell<Option<Turn>> = const { RefCell::new(None) };
}

/// Longest text of a failure that is told at once, in letters.
const TOLD: usize = 2000;

/// The first words of each failure come at once: the test program keeps what a test prints until all are done, and some runs do
/// not come to that.
static TELL: Once = Once::new();

fn tell_at_once() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        before(panic);
        let own = thread::current();
        let message = panic.to_string();
        if testbed::ran_out(&message) {
            crate::promise::write_down(WAITED);
        }
        let text: String = message.chars().take(TOLD).collect();
        let _ = writeln!(std::io::stderr(), "{} {text}", own.name().unwrap_or("a thread"));
    }));
}

/// Waits for this test's turn, once: what it asks for later, it has.
pub fn take(weight: Weight) {
    TELL.call_once(tell_at_once);
    TURN.with(|turn| {
        turn.borrow_mut().get_or_insert_with(|| Turn::wait(weight));
    });
}

/// How many tests with servers of their own wait for their turn.
pub(crate) fn with_servers_to_come() -> usize {
    let machine = machine();
    machine.waiting.iter().filter(|((weight, _), _)| *weight >= Weight::Servers).count()
}

impl Machine {
    fn new() -> Self {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let all = UNITS_OF_A_CORE * u32::try_from(cores).unwrap();
        let times = std::env::var_os(TIMES).map(PathBuf::from);
        let text = times.as_ref().and_then(|times| std::fs::read_to_string(times).ok()).unwrap_or_default();
        let last: BTreeMap<&str, &str> =
            text.lines().filter_map(|line| Some((line.split_whitespace().next()?, line))).collect();
        let took = |line: &str| line.split_whitespace().nth(3)?.parse().ok().map(Duration::from_millis);
        let before = last.iter().filter_map(|(name, line)| Some(((*name).to_owned(), took(line)?))).collect();
        if let Some(times) = &times {
            let lines: String = last.values().flat_map(|line| [*line, "\n"]).collect();
            std::fs::write(times, lines).unwrap();
        }
        thread::spawn(watch);
        Self { all, used: 0, quiet: false, idle: 0.0, waiting: Vec::new(), before, times }
    }

    fn has_room(&self, weight: Weight) -> bool {
        let with_it = self.used + weight.units(self.all);
        match weight {
            Weight::Quiet => self.used == 0,
            _ if self.quiet => false,
            _ => with_it <= self.all || (self.idle >= IDLE && with_it <= self.all * MOST_TIMES),
        }
    }

    fn begin(&mut self, weight: Weight) {
        if self.used + weight.units(self.all) > self.all {
            self.idle = 0.0;
        }
        self.used += weight.units(self.all);
        self.quiet = weight == Weight::Quiet;
    }

    fn end(&mut self, weight: Weight) {
        self.used -= weight.units(self.all);
        self.quiet = false;
    }
}

/// Sees how idle the cores are for as long as this program runs.
fn watch() {
    let mut before = cores();
    loop {
        thread::sleep(LOOK);
        let now = cores();
        let (all, idle) = (now.0 - before.0, now.1 - before.1);
        before = now;
        let share = if all > 0.0 && memory() >= MEMORY { idle / all } else { 0.0 };
        let mut machine = machine();
        machine.idle += COUNTS * (share - machine.idle);
        let more = machine.idle >= IDLE;
        drop(machine);
        if more {
            CHANGED.notify_all();
        }
    }
}

/// Time of all cores since the machine began, and how much of that they were idle; proc_stat(5).
fn cores() -> (f64, f64) {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let first = text.lines().next().unwrap_or_default();
    let times: Vec<f64> = first.split_whitespace().skip(1).take(8).filter_map(|time| time.parse().ok()).collect();
    (times.iter().sum(), times.iter().skip(3).take(2).sum())
}

/// Free memory in KiB; proc_meminfo(5).
fn memory() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or_default()
}

fn machine() -> MutexGuard<'static, Machine> {
    MACHINE.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Turn {
    name: String,
    weight: Weight,
    start: SystemTime,
    waited: Duration,
    began: Instant,
}

impl Turn {
    fn wait(weight: Weight) -> Self {
        let (asked, own) = (Instant::now(), thread::current());
        let name = own.name().unwrap_or("?").to_owned();
        let mut machine = machine();
        let order = (weight, machine.before.get(&name).copied().unwrap_or_default());
        machine.waiting.push((order, own.id()));
        // The heaviest that waits is the next: lighter ones that fit before it would keep it waiting for ever.
        let is_next = |machine: &Machine| {
            let first = machine.waiting.iter().max_by_key(|(order, _)| *order).map(|(_, thread)| *thread);
            first == Some(own.id()) && machine.has_room(weight)
        };
        while !is_next(&machine) {
            machine = CHANGED.wait(machine).unwrap_or_else(PoisonError::into_inner);
        }
        machine.waiting.retain(|(_, thread)| *thread != own.id());
        machine.begin(weight);
        drop(machine);
        CHANGED.notify_all();
        Self { name, weight, start: SystemTime::now(), waited: asked.elapsed(), began: Instant::now() }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut machine = machine();
        machine.end(self.weight);
        if let Some(times) = &machine.times {
            let start = self.start.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            let took = self.began.elapsed();
            let [start, waited, took] = [start, self.waited, took].map(|time| time.as_millis());
            let line = format!("{} {start} {waited} {took}\n", self.name);
            // A time that is not written down is no reason to fail a test.
            let _ = OpenOptions::new().append(true).open(times).and_then(|mut file| file.write_all(line.as_bytes()));
        }
        drop(machine);
        CHANGED.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(used: u32, idle: f64) -> Machine {
        Machine { all: 18, used, quiet: false, idle, waiting: Vec::new(), before: HashMap::new(), times: None }
    }

    #[test]
    fn weights_are_exceeded_only_while_cores_are_idle() {
        let busy = machine(18, 0.1);
        assert!(!busy.has_room(Weight::Light));
        assert!(machine(16, 0.1).has_room(Weight::Light));
        let mut idle = machine(18, 0.5);
        assert!(idle.has_room(Weight::Servers));
        idle.begin(Weight::Servers);
        assert!(!idle.has_room(Weight::Light), "what it takes is to be seen first");
        assert!(!machine(36, 0.9).has_room(Weight::Light), "not any number");
        assert!(!machine(30, 0.9).has_room(Weight::Heavy));
    }

    #[test]
    fn measuring_test_runs_alone() {
        assert!(!machine(2, 0.9).has_room(Weight::Quiet));
        let mut alone = machine(0, 0.9);
        assert!(alone.has_room(Weight::Quiet));
        alone.begin(Weight::Quiet);
        assert!(!alone.has_room(Weight::Light) && !alone.has_room(Weight::Quiet));
        alone.end(Weight::Quiet);
        assert!(alone.has_room(Weight::Light));
    }
}
