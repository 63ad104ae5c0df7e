//! The promises.

use std::collections::{BTreeSet, HashSet};

use htc_machine::Index;
use htc_machine::condition::{ConditionStatus, ConditionType};
use htc_machine::facts::{Job, JobState, JobStatus};
use htc_machine::outcome::Outcome;
use htc_machine::phase::Phase;
use htc_machine::{Request, Work};
use stateright::Property;

use crate::condor::{CondorJob, Files};
use crate::state::State;
use crate::steps::{Action, Model};
use crate::world::{Broken, Slot, World, number};

fn whose_turn(action: &Action) -> usize {
    let there = if matches!(action, Action::There(_)) { TURNS / 2 } else { 0 };
    let turn = match action.anywhere() {
        Action::Take(..) | Action::Work(..) | Action::Grant(_) | Action::GiveBack(..) => 1,
        Action::Reconcile(..) | Action::ReconcileAll(_) | Action::FinishReconcile(_) => 2,
        Action::Look(..) | Action::LookIntoHistory(..) | Action::BlindLookAtOne(..) | Action::FinishLook(_) => 3,
        Action::LimitPasses => 4,
        _ => 0,
    };
    there + turn
}

pub fn properties() -> Vec<Property<Model>> {
    vec![
        Property::always(ONCE, |model, world: &State| model.holds(ONCE, world.broken != Some(Broken::RanTwice))),
        Property::always(LEFT, |model, world: &State| model.holds(LEFT, world.broken != Some(Broken::LeftBehind))),
        Property::always(BACK, |model, world: &State| model.holds(BACK, world.broken != Some(Broken::PhaseWentBack))),
        Property::always(IDS, |model, world: &State| model.holds(IDS, world.broken != Some(Broken::IdChanged))),
        Property::always(OVER, |model, world: &State| {
            model.holds(OVER, world.broken != Some(Broken::SubmittedDeleted))
        }),
        Property::always(UNWANTED, |model, world: &State| {
            model.holds(UNWANTED, world.broken != Some(Broken::SubmittedUnwanted))
        }),
        Property::always(ITEMS, |model, world: &State| model.holds(ITEMS, world.broken != Some(Broken::OtherItems))),
        Property::always(FENCE, |model, world: &State| {
            model.holds(FENCE, world.broken != Some(Broken::ToolBehindFence))
        }),
        Property::always(OUTCOME, |model, world: &State| model.holds(OUTCOME, world.broken != Some(Broken::Forgotten))),
        Property::always(COUNTED, |model, world: &State| {
            let too_much = [Some(Broken::CountedTooMuch), Some(Broken::CompletedByHearsay)];
            model.holds(COUNTED, !too_much.contains(&world.broken))
        }),
        Property::always(RIGHT, |model, world: &State| {
            model.holds(RIGHT, world.broken != Some(Broken::HtcondorOverruled))
        }),
        Property::always(REFUTED, |model, world: &State| {
            model.holds(REFUTED, world.broken != Some(Broken::RefutedWrongly))
        }),
        Property::always(AT_A_TIME, |model, world: &State| {
            let keeps = world.broken != Some(Broken::TooManyAtATime) && model.keeps_to_parallelism(world);
            model.holds(AT_A_TIME, keeps)
        }),
        Property::always(ROOM, |model, world: &State| model.holds(ROOM, model.keeps_to_room(world))),
        Property::always(ASKED_FOR, |model, world: &State| model.holds(ASKED_FOR, model.runs_what_is_asked_for(world))),
        Property::always(WAITS, |model, world: &State| {
            let told = || model.told.lock().unwrap().contains(WAITS);
            told() || model.holds(WAITS, model.goes_on(world).is_ok())
        }),
        Property::always(END, |model, world: &State| {
            let told = || model.told.lock().unwrap().contains(END);
            let looks = model.watches_the_end && world.broken.is_none();
            !looks || told() || model.holds(END, model.ends_well(world).is_ok())
        }),
    ]
}

pub const ONCE: &str = "at most one job of each index runs its payload";
const LEFT: &str = "nothing of an object that is gone is in HTCondor";
const BACK: &str = "phases never go back";
const IDS: &str = "ids change only with the attempt";
pub const OVER: &str = "what was being deleted is not submitted";
pub const UNWANTED: &str = "what a user has held or removed is not submitted";
const ITEMS: &str = "all jobs of an object get their items from the same contents of its ConfigMap";
const FENCE: &str = "no tool is begun behind a fence";
pub const OUTCOME: &str = "an outcome is that of a payload, unless somebody else made it";
const COUNTED: &str = "nothing counts as ended that can go on, and only HTCondor's word completes";
const RIGHT: &str = "what HTCondor has said since a report is right";
const REFUTED: &str = "no true end is refuted";
const AT_A_TIME: &str = "HTCondor has no more jobs of an object at a time than it may have";
const ROOM: &str = "HTCondor has no more jobs at a time than their queue has room for";
const ASKED_FOR: &str = "no job is submitted that is not asked for";
const WAITS: &str = "no deletion, hold or deadline waits for a transfer";
pub const END: &str = "everything comes to a good end";

impl Model {
    /// The checker keeps the last broken state that it sees; the first has the shortest story.
    fn holds(&self, promise: &'static str, holds: bool) -> bool {
        holds || !self.told.lock().unwrap().insert(promise)
    }
}

/// Most steps to a good end.
const PATIENCE: usize = 400;
/// HTCondor, workers, reconciles, looks, and limits that harm nobody take turns; and those of the second pool.
const TURNS: usize = 10;

/// A fair run: nothing goes wrong any more, and everybody has his turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Course {
    ToTheEnd,
    /// While a transfer hangs: no time limit ends it, no job starts or ends, and nobody resumes what is suspended.
    BesideATransfer,
}

impl Model {
    /// What came too late runs no payload, and does not count.
    fn is_open(job: &CondorJob) -> bool {
        !matches!(job.ad.status, JobStatus::Completed | JobStatus::Removed) && !job.overdue && !job.late()
    }

    /// What is submitted must have room beside what HTCondor has, and gets yet, by the parallelism that holds now.
    pub fn watch_parallelism(&self, world: &mut World, request: &Request) {
        let Work::Submit(indices, _) = &request.work else { return };
        let object = number(&request.key.uid);
        let now = world.object(object).and_then(|job| job.parallelism).or(self.scene.parallelism);
        let queued = world.queued().filter(|job| job.object == object && Self::is_open(job)).map(|job| job.ad.index);
        let rows = world.submitting().filter(|submitter| submitter.cluster.is_none()).flat_map(|other| &other.rows);
        let coming = rows.filter(|(owner, ..)| *owner == object).map(|(_, _, index)| *index);
        let all: BTreeSet<Index> = queued.chain(coming).chain(indices.iter()).collect();
        if now.is_some_and(|most| all.len() > most as usize) {
            world.breaks(Broken::TooManyAtATime);
        }
    }

    /// Never more than it ever might.
    fn keeps_to_parallelism(&self, world: &World) -> bool {
        let Some(most) = self.scene.parallelism else { return true };
        let has = |object: u8| world.queued().filter(|job| job.object == object && Self::is_open(job)).count();
        let most = |object: u8| world.object(object).map_or(most, |job| most.max(job.widest)) as usize;
        (0..).take(world.objects.len()).all(|object| has(object) <= most(object))
    }

    fn runs_what_is_asked_for(&self, world: &World) -> bool {
        !self.scene.not_the_first || world.queued().all(|job| job.ad.index > Index(0))
    }

    /// Whether the world comes to a good end when nothing goes wrong any more and everybody has his turn. If not, the
    /// steps that lead to the bad one.
    pub fn ends_well(&self, world: &State) -> Result<(), Vec<Action>> {
        self.run_fairly(world, Course::ToTheEnd)
    }

    /// Whether what is urgent comes about although a transfer hangs. If not, the steps that lead to where nothing goes on.
    pub fn goes_on(&self, world: &State) -> Result<(), Vec<Action>> {
        let hangs = |world: &World| {
            (0..world.operators.len()).any(|op| world.operators[op].leads && Self::transfer_hangs(world, op))
        };
        let hangs_there = world.other_pool().is_some() && {
            let mut world = World::clone(world);
            world.change_pool();
            hangs(&world)
        };
        if hangs_there || hangs(world) { self.run_fairly(world, Course::BesideATransfer) } else { Ok(()) }
    }

    /// Whether an object is to be removed, held, let go, or ended by its deadline, and is not yet.
    fn is_urgent(world: &World, object: u8) -> bool {
        let Some(job) = world.object(object) else { return false };
        let has = |statuses: &[JobStatus]| {
            world.queued().any(|job| job.object == object && statuses.contains(&job.ad.status))
        };
        let hold = job.suspend && has(&[JobStatus::Idle, JobStatus::Running]);
        let end = job.deadline && !job.suspend && has(&[JobStatus::Idle, JobStatus::Running, JobStatus::Held]);
        let ours = |job: &CondorJob| job.ad.status == JobStatus::Held && job.ad.hold.is_ours();
        let to_release = |job: &CondorJob| job.object == object && ours(job) && !Self::is_held_by_user(world, job);
        let release = !job.suspend && world.queued().any(to_release);
        job.deleting || hold || release || end || Self::has_a_wish(world, object)
    }

    fn run_fairly(&self, world: &State, course: Course) -> Result<(), Vec<Action>> {
        let mut now = world.clone();
        let (mut passed, mut steps, mut turn) = (HashSet::new(), Vec::new(), 0);
        let objects = 0..u8::try_from(world.objects.len()).unwrap();
        loop {
            if course == Course::BesideATransfer && !objects.clone().any(|object| Self::is_urgent(&now, object)) {
                break;
            }
            if self.good.lock().unwrap().contains(&(now.print(), course)) {
                break;
            }
            if course == Course::ToTheEnd && self.scene.refused.is_some() && self.good_end(&now) {
                break;
            }
            if !passed.insert((now.print(), turn)) || steps.len() > PATIENCE {
                return Err(steps);
            }
            let is_looked_at = steps.is_empty();
            let Some((action, next)) = self.fair_step(&now, &mut turn, course, is_looked_at) else {
                if course == Course::ToTheEnd && self.good_end(&now) {
                    break;
                }
                return Err(steps);
            };
            if next.broken.is_some() {
                break;
            }
            steps.push(action);
            now = next;
        }
        self.good.lock().unwrap().extend(passed.into_iter().map(|(print, _)| (print, course)));
        Ok(())
    }

    /// The next step of whoever's turn it is, or of the next one who can make one. `is_looked_at`: from the state that the checker
    /// looks at.
    fn fair_step(
        &self,
        world: &State,
        turn: &mut usize,
        course: Course,
        is_looked_at: bool,
    ) -> Option<(Action, State)> {
        let mut actions = Vec::new();
        self.progress(world, &mut actions);
        if course == Course::BesideATransfer {
            actions.retain(|action| !matches!(action.anywhere(), Action::Start(_) | Action::End(_)));
        } else {
            let slots = (0..).zip(&world.objects);
            actions.extend(slots.filter_map(|(object, slot)| match slot {
                Slot::There(job) if job.suspend => Some(Action::Resume(object)),
                Slot::There(job) if job.parallelism == Some(0) => Some(Action::Parallelism(object, 1)),
                _ => None,
            }));
            self.releases(world, &mut actions);
        }
        if world.next_limit().is_some_and(|limit| Self::limit_harms_nobody(world, limit)) {
            actions.push(Action::LimitPasses);
        }
        let step = |action: &Action| {
            let next = if is_looked_at { self.first_step(world, action) } else { self.step(world, action) };
            next.map(|next| (action.clone(), next))
        };
        for later in 0..TURNS {
            let now = (*turn + later) % TURNS;
            if let Some(step) = actions.iter().filter(|action| whose_turn(action) == now).find_map(step) {
                *turn = (now + 1) % TURNS;
                return Some(step);
            }
        }
        // Pauses grow, until all else has come about meanwhile.
        let mut late: Vec<Action> = Self::pauses(world).map(Action::PauseEnds).collect();
        late.push(Action::LimitPasses);
        if course == Course::ToTheEnd {
            Self::transfer_limits(world, &mut late);
            Self::there(world, &mut late, Self::transfer_limits);
        }
        late.iter().find_map(step)
    }

    /// Everything is over, or waits for an admin and says so. What is refused for ever holds up no other.
    fn good_end(&self, world: &World) -> bool {
        (0..).zip(&world.objects).all(|(object, slot)| match slot {
            Slot::NotYet | Slot::Gone => true,
            Slot::There(job) => {
                self.refusal(object).is_some()
                    || self.waits_for_admin(world, object)
                    || (!job.deleting && self.is_over(world, object) && job.published.phase == Some(Phase::Completed))
            }
        })
    }

    pub fn leader(world: &World) -> usize {
        world.operators.iter().rposition(|operator| operator.leads).unwrap_or(0)
    }

    /// Completed, nothing that does not count is left in the queue, and no output is still to be fetched.
    fn is_over(&self, world: &World, object: u8) -> bool {
        let rows = &world.operators[Self::leader(world)].ledger.rows[usize::from(object)];
        let completed = rows.known.as_ref().is_some_and(|known| known.phase == Phase::Completed);
        let extra =
            world.queued().any(|job| job.object == object && !job.overdue && (job.late() || job.files != Files::Here));
        completed && !extra && !rows.jobs.values().any(Job::has_output)
    }

    /// A condition says what an admin can do.
    fn waits_for_admin(&self, world: &World, object: u8) -> bool {
        self.scene.admins.iter().any(|reason| Self::says(world, object, reason))
    }

    /// The operator is started with the schedd that a condition names.
    pub fn is_sent_elsewhere(world: &World, object: u8) -> bool {
        let (Some(other), Some(job)) = (&world.elsewhere, world.object(object)) else { return false };
        if other.pool.is_some() {
            return false;
        }
        let record = world.operators[Self::leader(world)].ledger.rows[usize::from(object)].load();
        let recorded = record.schedds.iter().chain(record.attempts.iter().map(|attempt| &attempt.schedd));
        let unknown = record.jobs.is_empty() && record.attempts.is_empty();
        let published = job.published.schedd.iter().filter(|_| unknown);
        let named = recorded.chain(published).any(|name| *name == other.schedd.name);
        named && Self::says(world, object, "AnotherSchedd")
    }

    /// A condition says that something is not so, and this is why.
    pub fn says(world: &World, object: u8, reason: &str) -> bool {
        let rows = &world.operators[Self::leader(world)].ledger.rows[usize::from(object)];
        let Some(known) = &rows.known else { return false };
        known.conditions.iter().any(|condition| {
            let about = matches!(
                condition.kind,
                ConditionType::Submitted | ConditionType::JobsRemoved | ConditionType::Tracked
            );
            about && condition.status == ConditionStatus::False && condition.reason == reason
        })
    }

    /// An end that the ledger has must be that of a job that ran its payload, or somebody else's doing.
    pub fn nothing_forgotten(&self, world: &mut World, op: usize, object: u8) {
        let place = usize::from(object);
        let rows = &world.operators[op].ledger.rows[place];
        let forgotten = rows.jobs.iter().any(|(index, job)| {
            let index = index.0 as usize;
            let ended = match &job.state {
                JobState::Ended(Outcome::Lost(_)) => !self.scene.losses,
                JobState::Ended(_) => true,
                JobState::Idle | JobState::Running | JobState::Held(_) => false,
            };
            ended && world.seen.ran[place][index] == 0 && !world.seen.excused[place][index]
        });
        let live = |index: usize| {
            world.queued().any(|job| {
                usize::from(job.object) == place
                    && job.ad.index.0 as usize == index
                    && job.files == Files::Here
                    && !job.late()
                    && !job.ad.completed
            })
        };
        let lost_alive = rows
            .jobs
            .iter()
            .any(|(index, job)| matches!(job.state, JobState::Ended(Outcome::Lost(_))) && live(index.0 as usize));
        // What was given up after the deadline must not be accepted any more.
        let given_up = rows.known.as_ref().is_some_and(|known| known.given_up > 0);
        let missing = |index: &u32| !rows.jobs.contains_key(&Index(*index));
        let given_up_alive = given_up && (0..self.queues[place]).filter(missing).any(|index| live(index as usize));
        // Nor what a user has removed before.
        let withdrawn_alive = rows.wishes.withdrawn().iter().any(|index| live(index.0 as usize));
        let deleting = world.object(object).is_none_or(|job| job.deleting);
        if (forgotten || lost_alive || given_up_alive || withdrawn_alive) && !deleting {
            world.breaks(Broken::Forgotten);
        }
    }
}
