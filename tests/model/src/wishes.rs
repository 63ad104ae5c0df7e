//! Users who hold, release and remove single jobs.

use htc_machine::actions::{JobAction, RequestedAction, StoredAction};
use htc_machine::facts::{Hold, JobStatus};
use htc_machine::phase::Phase;
use htc_machine::{Index, JobId, Request, Work};

use crate::bounds::Trouble;
use crate::condor::CondorJob;
use crate::steps::{Action, Model};
use crate::world::{Broken, Rows, World};

impl Rows {
    /// As `ledger::wishes` does: whether this can be wished of a job now.
    fn takes(&self, index: Index, wanted: JobAction) -> bool {
        let goes_on = self.known.as_ref().is_some_and(|known| known.phase < Phase::Completed);
        let ended = self.jobs.get(&index).is_some_and(|job| job.outcome().is_some());
        let standing = self.wishes.of(index).map(RequestedAction::action);
        goes_on && !ended && standing != Some(wanted) && standing != Some(JobAction::Remove)
    }
}

impl Model {
    /// What users can wish now.
    pub fn wishes(&self, world: &World, actions: &mut Vec<Action>) {
        if !self.scene.kinds.contains(&Trouble::Wish) {
            return;
        }
        self.each_job(world, |object, index, rows| {
            let wanted = [JobAction::Hold, JobAction::Remove].into_iter().filter(|wanted| rows.takes(index, *wanted));
            actions.extend(wanted.map(|wanted| Action::Wish(object, index, wanted)));
        });
        self.releases(world, actions);
    }

    /// Who holds a job releases it in the end.
    pub fn releases(&self, world: &World, actions: &mut Vec<Action>) {
        self.each_job(world, |object, index, rows| {
            let suspended = world.object(object).is_some_and(|job| job.suspend);
            let held = rows.wishes.is(index, JobAction::Hold) && rows.takes(index, JobAction::Release);
            if held && !suspended {
                actions.push(Action::Wish(object, index, JobAction::Release));
            }
        });
    }

    fn each_job(&self, world: &World, mut work: impl FnMut(u8, Index, &Rows)) {
        let leader = Self::leader(world);
        for (object, queue) in (0..).zip(self.queues) {
            if world.object(object).is_none_or(|job| job.deleting) {
                continue;
            }
            let rows = &world.operators[leader].ledger.rows[usize::from(object)];
            (0..*queue).for_each(|index| work(object, Index(index), rows));
        }
    }

    /// A wish comes in.
    pub fn wish(world: &mut World, object: u8, index: Index, wanted: JobAction) {
        if wanted != JobAction::Release {
            world.troubles = world.troubles.saturating_sub(1);
        }
        if wanted == JobAction::Remove {
            world.excuse(object, index);
        }
        let (leader, now) = (Self::leader(world), world.tick());
        let untold = Some("a user".to_owned());
        let wished = StoredAction { number: 0, action: RequestedAction::new(wanted, now), unreported: untold };
        world.operators[leader].ledger.rows[usize::from(object)].wishes.insert(index, wished);
    }

    /// Whether a user waits for a job to be held or removed that HTCondor has.
    pub fn has_a_wish(world: &World, object: u8) -> bool {
        let rows = &world.operators[Self::leader(world)].ledger.rows[usize::from(object)];
        world.queued().filter(|job| job.object == object).any(|job| {
            let loose = matches!(job.ad.status, JobStatus::Idle | JobStatus::Running);
            let recorded = rows.jobs.get(&job.ad.index).is_some_and(|known| known.id == job.ad.id);
            recorded
                && match rows.wishes.of(job.ad.index).map(RequestedAction::action) {
                    Some(JobAction::Hold) => loose,
                    Some(JobAction::Remove) => loose || job.ad.status == JobStatus::Held,
                    Some(JobAction::Release) | None => false,
                }
        })
    }

    /// Whether a user wants this job to be held.
    pub fn is_held_by_user(world: &World, job: &CondorJob) -> bool {
        let rows = &world.operators[Self::leader(world)].ledger.rows[usize::from(job.object)];
        rows.wishes.is(job.ad.index, JobAction::Hold)
    }

    /// What a user has held or removed must not be submitted once the operator has seen that.
    pub fn watch_submissions(world: &mut World, rows: &Rows, request: &Request) {
        let Work::Submit(indices, _) = &request.work else { return };
        let unwanted = |(index, wished): (Index, &StoredAction)| {
            wished.unreported.is_none() && wished.action.prevents_submission() && indices.contains(index)
        };
        if rows.wishes.iter().any(unwanted) {
            world.breaks(Broken::SubmittedUnwanted);
        }
    }
}

impl World {
    /// `condor_hold` of these jobs.
    pub fn hold_jobs(&mut self, object: u8, ids: &[JobId]) {
        for job in self.schedd.queue.iter_mut().filter(|job| job.is_of(object) && ids.contains(&job.ad.id)) {
            if matches!(job.ad.status, JobStatus::Idle | JobStatus::Running) {
                job.ad.status = JobStatus::Held;
                job.ad.hold = Hold { code: Hold::BY_USER, subcode: Hold::FOR_USER, reason: String::new(), since: None };
            }
        }
    }

    /// `condor_release` of these jobs.
    pub fn release_jobs(&mut self, object: u8, ids: &[JobId]) {
        for job in self.schedd.queue.iter_mut().filter(|job| job.is_of(object) && ids.contains(&job.ad.id)) {
            if job.ad.status == JobStatus::Held && job.ad.hold.code != Hold::SPOOLING {
                job.ad.status = JobStatus::Idle;
            }
        }
    }
}
