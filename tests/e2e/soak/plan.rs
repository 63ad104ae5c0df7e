//! Plans of the `HTCJob`s of one round.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use bed::dice::Dice;
use bed::htcjob;

/// How much of everything there is in one round.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// How often each fate comes.
    each: usize,
    /// `HTCJob`s that are created at once: the first submission takes about thirty, which is how many are reconciled at a time, and while
    /// it is under way the others gather for the next, which takes fifty.
    crowd: usize,
    /// How many large ones there are.
    large: usize,
    /// Jobs of each of them.
    many: usize,
}

/// In `make test`.
pub const SMALL: Size = Size { each: 1, crowd: 30, large: 1, many: LARGE_FROM };
/// In `make soak`.
pub const WHOLE: Size = Size { each: 3, crowd: 96, large: LARGE.len(), many: 200 };

impl Size {
    /// How often `HTCJob`s are created while the operator is killed: each fate, one by one, those of very many jobs, and a crowd. One more comes
    /// after that.
    pub fn creations(self) -> usize {
        self.each * FATES.len() + self.large + 1
    }
}

/// Jobs of the one that comes when nobody is killed any more: it shows how long places stay free.
const UNDISTURBED: usize = 8;

/// Jobs of a large one, at least: more than a status names.
const LARGE_FROM: usize = 110;

/// What somebody does to an `HTCJob`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Left,
    /// Each of its payloads fails once, and HTCondor begins it again.
    Retried,
    /// With this `spec.parallelism`.
    AtATime(usize),
    /// With one at a time, and later none and up to [`WIDEST`].
    AtATimeChanges,
    /// With items, of which not all are asked for.
    SomeItems,
    /// In the queue, which has room for [`QUOTA`] jobs.
    Queued,
    /// The same, and suspended while it waits or has room; later resumed.
    QueuedSuspended,
    /// The same, and deleted while it waits or has room.
    QueuedDeleted,
    /// Created with `spec.suspend`, later resumed.
    CreatedSuspended,
    Suspended,
    HeldByHand,
    /// Deleted once it has come to this phase.
    Deleted(&'static str),
    SuspendedThenDeleted,
    HeldThenDeleted,
}

/// The HTCQueue.
pub const QUEUE: &str = "soak";
/// Jobs that it lets run.
pub const QUOTA: usize = 3;

/// Most jobs at a time of one whose `spec.parallelism` changes.
pub const WIDEST: usize = 3;
/// Items that are not asked for.
const NOT_ASKED_FOR: usize = 5;

const FATES: [Fate; 20] = [
    Fate::Left,
    Fate::Left,
    Fate::Left,
    Fate::Retried,
    Fate::AtATime(1),
    Fate::AtATime(2),
    Fate::AtATimeChanges,
    Fate::SomeItems,
    Fate::Queued,
    Fate::QueuedSuspended,
    Fate::QueuedDeleted,
    Fate::CreatedSuspended,
    Fate::Suspended,
    Fate::HeldByHand,
    Fate::Deleted(""),
    Fate::Deleted("Submitted"),
    Fate::Deleted("Running"),
    Fate::Deleted("Completed"),
    Fate::SuspendedThenDeleted,
    Fate::HeldThenDeleted,
];

/// Fates of large ones; where there are fewer, some of these at random. Who is deleted matches no machine: no pool of this size runs so
/// many containers in the time.
const LARGE: [Fate; 3] = [Fate::Deleted("Submitted"), Fate::SuspendedThenDeleted, Fate::HeldThenDeleted];

/// Fates in a crowd.
const CROWDED: [Fate; 3] = [Fate::Left, Fate::Deleted("Submitted"), Fate::Deleted("Running")];

/// What the driver does, and when.
#[derive(Clone, Debug)]
pub struct Step {
    /// Not before the `HTCJob` has come to this phase; empty for any.
    pub phase: &'static str,
    /// And this long after the step before, or after that phase was seen.
    pub pause: Duration,
    pub act: Act,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    Suspend,
    Resume,
    Hold,
    Release,
    Delete,
    /// Changes `spec.parallelism`.
    AtATime(usize),
}

/// One `HTCJob` and its fate.
#[derive(Clone, Debug)]
pub struct Plan {
    pub name: String,
    pub fate: Fate,
    /// Exit code of each job's payload.
    pub codes: Vec<u8>,
    /// How long each payload runs.
    pub payload: Duration,
    pub steps: Vec<Step>,
}

impl Plan {
    /// The plans of one round, in the order of their creation; those in one list are created at once.
    pub fn round(size: Size, dice: &mut Dice) -> Vec<Vec<Self>> {
        let single = FATES.iter().cycle().take(size.each * FATES.len()).map(|fate| (*fate, 0));
        let first = usize::try_from(dice.below(LARGE.len() as u64)).unwrap();
        let large = LARGE.iter().cycle().skip(first).take(size.large).map(|fate| (*fate, size.many));
        let mut kinds: Vec<(Fate, usize)> = single.chain(large).collect();
        for last in (1..kinds.len()).rev() {
            kinds.swap(last, usize::try_from(dice.below(last as u64 + 1)).unwrap());
        }
        let number = |(number, (fate, jobs)): (usize, (Fate, usize)), dice: &mut Dice| {
            let jobs = match (fate, jobs) {
                (Fate::AtATime(most), _) => 2 * most + 1,
                (Fate::AtATimeChanges, _) => 2 * WIDEST,
                (Fate::Queued | Fate::QueuedSuspended | Fate::QueuedDeleted, _) => QUOTA - 1,
                (_, 0) => *dice.one_of(&[1, 1, 1, 1, 3]),
                (_, jobs) => jobs,
            };
            Self::new(format!("s{number}"), fate, jobs, dice)
        };
        let mut plans: Vec<Vec<Self>> = kinds.into_iter().enumerate().map(|kind| vec![number(kind, dice)]).collect();
        let fates = CROWDED.iter().cycle().take(size.crowd).enumerate();
        let crowd = fates.map(|(number, fate)| Self::new(format!("c{number}"), *fate, 1, dice)).collect();
        // In their midst: there are kills enough before and after it.
        let place = plans.len() / 4 + usize::try_from(dice.below(plans.len() as u64 / 2)).unwrap();
        plans.insert(place, crowd);
        plans.push(vec![Self::new("undisturbed".to_owned(), Fate::AtATime(2), UNDISTURBED, dice)]);
        plans
    }

    fn new(name: String, fate: Fate, jobs: usize, dice: &mut Dice) -> Self {
        let codes = (0..jobs).map(|_| *dice.one_of(&[0, 0, 0, 7])).collect();
        let steps =
            steps(fate, if jobs >= LARGE_FROM { &["", "Submitted"] } else { &["", "Submitted", "Running"] }, dice);
        // What meets a job while it runs needs one that runs for a while.
        let awaited = steps.iter().any(|step| step.phase == "Running");
        let payload = if awaited { dice.milliseconds(4000, 9000) } else { dice.milliseconds(100, 4000) };
        Self { name, fate, codes, payload, steps }
    }

    /// Whether it has so many jobs that no machine is to run them.
    fn is_large(&self) -> bool {
        self.codes.len() >= LARGE_FROM
    }

    pub fn is_deleted(&self) -> bool {
        self.steps.iter().any(|step| step.act == Act::Delete)
    }

    /// Whether it is in the queue.
    pub fn is_queued(&self) -> bool {
        matches!(self.fate, Fate::Queued | Fate::QueuedSuspended | Fate::QueuedDeleted)
    }

    /// Whether HTCondor may begin its jobs again.
    pub fn may_begin_again(&self) -> bool {
        self.fate == Fate::Retried || self.may_be_held()
    }

    /// Whether its jobs are held, by whomever, and released.
    pub fn may_be_held(&self) -> bool {
        self.steps.iter().any(|step| matches!(step.act, Act::Suspend | Act::Hold))
    }

    /// Whether its jobs may be stopped while they run.
    pub fn may_be_stopped(&self) -> bool {
        self.steps.iter().any(|step| matches!(step.act, Act::Suspend | Act::Hold | Act::Delete))
    }

    /// Most of its jobs that HTCondor may have at a time, if that is limited.
    pub fn at_a_time(&self) -> Option<usize> {
        match self.fate {
            Fate::AtATime(most) => Some(most),
            Fate::AtATimeChanges => Some(WIDEST),
            _ => None,
        }
    }

    /// Whether each job must have had its end.
    pub fn runs_to_its_end(&self) -> bool {
        !self.is_deleted() || self.fate == Fate::Deleted("Completed")
    }

    /// The object. Its payload notes its start and its end in `records`, by the ad that HTCondor put beside it, and writes
    /// what it noted into its output.
    pub fn object(&self, records: &Path) -> Value {
        // Each job has its own item, or fails in a way in which none is to fail.
        let items = self.fate == Fate::SomeItems;
        let its_own = if items { "[ \"$2\" = \"item $1\" ] && [ \"$HTC_ITEM\" = \"$2\" ] || exit 9\n" } else { "" };
        let mut exits = String::new();
        // HTCondor keeps what the first run has left. It fails in a way in which the second never does.
        let retried = self.fate == Fate::Retried;
        let first = if retried { "[ -e tried ] || { touch tried; exit 5; }\n" } else { "" };
        for (index, code) in self.codes.iter().enumerate() {
            let _ = write!(exits, "{index}) exit {code} ;; ");
        }
        let script = format!(
            r#"while read -r key _ value; do
    case $key in
        ClusterId) cluster=$value ;;
        ProcId) proc=$value ;;
        HTCJobUID) uid=${{value//\"/}} ;;
    esac
done </htc_run/.job.ad
token=$RANDOM$RANDOM$RANDOM
note() {{ echo "$uid $1 $cluster.$proc $token $2" >>{records}; }}
note "$1" start
sleep {seconds:.1}
echo "$JOB_NAME $1 $token"
echo "$token" >result
note "$1" end
{first}{its_own}case $1 in {exits}esac
"#,
            records = records.display(),
            seconds = self.payload.as_secs_f64(),
        );
        let mut object = htcjob(&self.name, &script);
        object["spec"]["queue"] = self.codes.len().into();
        object["spec"]["suspend"] = (self.fate == Fate::CreatedSuspended).into();
        if retried {
            object["spec"]["htcopts"] = "max_retries = 1".into();
        }
        match self.fate {
            Fate::AtATime(most) => object["spec"]["parallelism"] = most.into(),
            Fate::AtATimeChanges => object["spec"]["parallelism"] = 1.into(),
            _ => {}
        }
        if items {
            let asked_for = self.codes.len();
            object["spec"].as_object_mut().unwrap().remove("queue");
            object["spec"]["items"] = (0..asked_for + NOT_ASKED_FOR).map(|index| format!("item {index}")).collect();
            object["spec"]["indexes"] = format!("0-{}", asked_for - 1).into();
        }
        if self.is_queued() {
            object["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = QUEUE.into();
        }
        if self.is_large() {
            object["spec"]["requirements"] = "false".into();
        }
        object
    }
}

/// What is to be done, and in which of these phases.
fn steps(fate: Fate, phases: &[&'static str], dice: &mut Dice) -> Vec<Step> {
    let later = |dice: &mut Dice, act| Step { phase: "", pause: dice.milliseconds(200, 5000), act };
    let met = |dice: &mut Dice, phases: &[&'static str], act| {
        let phase = *dice.one_of(phases);
        Step { phase, pause: dice.milliseconds(0, 1500), act }
    };
    match fate {
        Fate::Left | Fate::Retried | Fate::AtATime(_) | Fate::SomeItems | Fate::Queued => Vec::new(),
        Fate::AtATimeChanges => {
            let first = met(dice, phases, Act::AtATime(0));
            [first].into_iter().chain([2, WIDEST, 1].map(|most| later(dice, Act::AtATime(most)))).collect()
        }
        Fate::CreatedSuspended => vec![later(dice, Act::Resume)],
        Fate::Suspended | Fate::QueuedSuspended => {
            vec![met(dice, phases, Act::Suspend), later(dice, Act::Resume)]
        }
        Fate::HeldByHand => vec![met(dice, &phases[1..], Act::Hold), later(dice, Act::Release)],
        Fate::Deleted(phase) => vec![met(dice, &[phase], Act::Delete)],
        Fate::QueuedDeleted => vec![met(dice, phases, Act::Delete)],
        Fate::SuspendedThenDeleted => {
            vec![met(dice, phases, Act::Suspend), later(dice, Act::Delete)]
        }
        Fate::HeldThenDeleted => vec![met(dice, &phases[1..], Act::Hold), later(dice, Act::Delete)],
    }
}
