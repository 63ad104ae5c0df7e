//! What the Go operator has left: its finalizer, and jobs. They carry no attribute of this operator, and none of its questions finds them,
//! before they are adopted by the command.

use htc_machine::decide::{adopted_job, adoption};
use htc_machine::facts::{Ad, Hold, JobStatus, Listed, RunHistory};
use htc_machine::inherited::InheritedJob;
use htc_machine::judge::AdSource;
use htc_machine::{Attempt, ClusterId, Index, JobId, SchedDate, Timestamp};

use crate::bounds::GoOperator;
use crate::condor::{CondorJob, Files};
use crate::steps::Model;
use crate::world::{HtcJob, World};

/// The Go operator's database is this ledger's file.
const ITS_LEDGER: u8 = 1;

fn id(object: u8, index: u32) -> JobId {
    JobId { cluster: ClusterId(u64::from(object) + 1), proc: index }
}

fn job(object: u8, index: u32) -> CondorJob {
    let ad = Ad {
        id: id(object, index),
        attempt: Attempt::INHERITED,
        index: Index(index),
        not_after: None,
        status: JobStatus::Idle,
        hold: Hold { code: 0, subcode: 0, reason: String::new(), since: None },
        staged_in: Some(SchedDate(2)),
        staged_out: None,
        exit: None,
        completed: false,
        started: false,
        remove_reason: String::new(),
        runs: RunHistory::default(),
    };
    CondorJob {
        object,
        ad,
        limit: Timestamp(0),
        files: Files::Here,
        overdue: false,
        again: false,
        ran: false,
        marked: false,
    }
}

impl Model {
    /// Submits all jobs of all objects as the Go operator did.
    pub fn had_go_operator(&self, world: &mut World) {
        let Some(left) = self.scene.go_operator else { return };
        for (object, queue) in (0..).zip(self.queues) {
            world.schedd.queue.extend((0..*queue).map(|index| job(object, index)));
            world.schedd.next_cluster = u64::from(object) + 2;
            if let Some(job) = world.object_mut(object) {
                let unwritten = left == GoOperator::Unwritten;
                job.published.listed = if unwritten { Listed::Nothing } else { Listed::Partly };
            }
        }
        if left == GoOperator::Left {
            for place in 0..world.schedd.queue.len() {
                world.start(place, false);
                world.end(place, false);
            }
            world.schedd.leave_all(|_| true);
        }
    }

    /// As `controller::gather` finds it.
    pub fn is_unadopted(&self, view: &HtcJob) -> bool {
        self.scene.go_operator.is_some() && view.claim.is_none() && !view.finalizer
    }

    /// Whether the command would adopt jobs: the status and the database name them.
    pub fn can_adopt(&self, world: &World) -> bool {
        let written = matches!(self.scene.go_operator, Some(GoOperator::Waiting | GoOperator::Left));
        written && world.operators[0].ledger.id == ITS_LEDGER && self.unadopted(world).next().is_some()
    }

    fn unadopted<'a>(&'a self, world: &'a World) -> impl Iterator<Item = u8> + 'a {
        let objects = (0..).take(world.objects.len());
        objects.filter(|object| world.object(*object).is_some_and(|job| self.is_unadopted(job)))
    }

    /// What `htc-operator adopt` does while the operator is stopped, which is started again afterwards; with `dies`, only as far as the
    /// ledger.
    pub fn adopt(&self, world: &mut World, dies: bool) {
        let objects: Vec<u8> = self.unadopted(world).collect();
        world.operators[0].start(self.queues.len());
        let (birthdate, schedd, now) = (world.schedd.birthdate, world.schedd.name.clone(), world.tick());
        for object in objects {
            for index in 0..self.queues[usize::from(object)] {
                let id = id(object, index);
                let theirs =
                    InheritedJob { id, index: Index(index), folder: "/tmp".into(), outcome: None, fetched: false };
                let is_it = |owner: u8, ad: &Ad| owner == object && ad.id == id && ad.attempt == Attempt::INHERITED;
                let queued = world.schedd.queue.iter_mut().find(|job| is_it(job.object, &job.ad));
                let seen = if let Some(job) = queued {
                    job.marked = true;
                    Some((job.ad.clone(), AdSource::Queue))
                } else {
                    let mut former = world.schedd.history.iter().filter_map(|former| former.job.as_ref());
                    former.find(|(owner, ad)| is_it(*owner, ad)).map(|(_, ad)| (ad.clone(), AdSource::History))
                };
                let seen = seen.as_ref().map(|(ad, place)| (ad, *place));
                let row = adopted_job(&theirs, seen, birthdate, SchedDate(1), now);
                let rows = &mut world.operators[0].ledger.rows[usize::from(object)];
                rows.jobs.insert(Index(index), row);
                rows.schedds.insert(Index(index), schedd.clone());
            }
            let operator = &mut world.operators[0];
            let rows = &mut operator.ledger.rows[usize::from(object)];
            let (known, _) = adoption(&rows.load(), 0);
            rows.known = Some(known);
            let claim = operator.ledger.id;
            if let Some(job) = world.object_mut(object).filter(|_| !dies) {
                (job.finalizer, job.claim) = (!job.deleting, Some(claim));
            }
        }
    }

    /// The Go operator's finalizer stands until ours takes its place, and holds an object that is being deleted as well.
    pub fn is_held(&self, finalizer: bool) -> bool {
        finalizer || self.scene.go_operator.is_some()
    }
}
