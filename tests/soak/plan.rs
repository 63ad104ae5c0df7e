//! What is to happen to each `HTCJob` of one round.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::bed::dice::Dice;
use crate::bed::htcjob;

/// `HTCJob`s of one round: each fate five times.
pub const ROUND: usize = 5 * FATES.len();

/// What somebody does to an `HTCJob`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Left,
    /// Created with `spec.suspend`, later resumed.
    CreatedSuspended,
    Suspended,
    HeldByHand,
    /// Deleted once it has come to this phase.
    Deleted(&'static str),
    SuspendedThenDeleted,
    HeldThenDeleted,
}

const FATES: [Fate; 12] = [
    Fate::Left,
    Fate::Left,
    Fate::Left,
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
    /// The plans of one round, in the order of their creation.
    pub fn round(dice: &mut Dice) -> Vec<Self> {
        let mut fates: Vec<Fate> = FATES.iter().copied().cycle().take(ROUND).collect();
        for last in (1..fates.len()).rev() {
            fates.swap(last, usize::try_from(dice.below(last as u64 + 1)).unwrap());
        }
        fates.into_iter().enumerate().map(|(number, fate)| Self::new(number, fate, dice)).collect()
    }

    fn new(number: usize, fate: Fate, dice: &mut Dice) -> Self {
        let codes = (0..=dice.below(3)).map(|_| *dice.one_of(&[0, 0, 0, 7])).collect();
        let steps = steps(fate, dice);
        // What meets a job while it runs needs one that runs for a while.
        let awaited = steps.iter().any(|step| step.phase == "Running");
        let payload = if awaited { dice.milliseconds(4000, 9000) } else { dice.milliseconds(100, 4000) };
        Self { name: format!("s{number}"), fate, codes, payload, steps }
    }

    pub fn is_deleted(&self) -> bool {
        self.steps.iter().any(|step| step.act == Act::Delete)
    }

    /// Whether its jobs may be stopped while they run, after which HTCondor begins them again.
    pub fn may_begin_again(&self) -> bool {
        self.steps.iter().any(|step| matches!(step.act, Act::Suspend | Act::Hold))
    }

    /// Whether each job must have had its end.
    pub fn runs_to_its_end(&self) -> bool {
        !self.is_deleted() || self.fate == Fate::Deleted("Completed")
    }

    /// The object. Its payload notes its start and its end in `records`, by the ad that HTCondor put beside it, and writes
    /// what it noted into its output.
    pub fn object(&self, records: &Path) -> Value {
        let mut exits = String::new();
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
case $1 in {exits}esac
"#,
            records = records.display(),
            seconds = self.payload.as_secs_f64(),
        );
        let mut object = htcjob(&self.name, &script);
        object["spec"]["queue"] = self.codes.len().into();
        object["spec"]["suspend"] = (self.fate == Fate::CreatedSuspended).into();
        object
    }
}

fn steps(fate: Fate, dice: &mut Dice) -> Vec<Step> {
    let later = |dice: &mut Dice, act| Step { phase: "", pause: dice.milliseconds(200, 5000), act };
    let met = |dice: &mut Dice, phases: &[&'static str], act| {
        let phase = *dice.one_of(phases);
        Step { phase, pause: dice.milliseconds(0, 1500), act }
    };
    match fate {
        Fate::Left => Vec::new(),
        Fate::CreatedSuspended => vec![later(dice, Act::Resume)],
        Fate::Suspended => {
            vec![met(dice, &["", "Submitted", "Running"], Act::Suspend), later(dice, Act::Resume)]
        }
        Fate::HeldByHand => vec![met(dice, &["Submitted", "Running"], Act::Hold), later(dice, Act::Release)],
        Fate::Deleted(phase) => vec![met(dice, &[phase], Act::Delete)],
        Fate::SuspendedThenDeleted => {
            vec![met(dice, &["", "Submitted", "Running"], Act::Suspend), later(dice, Act::Delete)]
        }
        Fate::HeldThenDeleted => vec![met(dice, &["Submitted", "Running"], Act::Hold), later(dice, Act::Delete)],
    }
}
