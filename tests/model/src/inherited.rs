//! What the Go operator has left: its finalizer, what it wrote of its jobs, and the jobs, whose ads do not say whose they are.

use htc_operator::machine::facts::{Ad, Hold, JobStatus, Listed, Runs};
use htc_operator::machine::inherited::{Inherited, InheritedJob};
use htc_operator::machine::{Attempt, ClusterId, Index, JobId, SchedDate, Timestamp};

use crate::bounds::GoOperator;
use crate::condor::{CondorJob, Files};
use crate::steps::Model;
use crate::world::World;

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
        marked: false,
        runs: Runs::default(),
    };
    CondorJob { object, ad, limit: Timestamp(0), files: Files::Here, overdue: false, again: false }
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

    /// Whether an operator knows the ids of the Go operator's jobs, by which alone they are found until they are adopted.
    pub fn knows_old_ids(&self, world: &World, op: usize) -> bool {
        let written = matches!(self.scene.go_operator, Some(GoOperator::Waiting | GoOperator::Left));
        written && world.operators[op].ledger.id == ITS_LEDGER
    }

    /// As `controller::gather` finds it.
    pub fn inherited(&self, world: &World, op: usize, object: u8) -> Option<Inherited> {
        self.scene.go_operator?;
        if !self.knows_old_ids(world, op) {
            return Some(Inherited::Unclear(String::new()));
        }
        let job = |index| InheritedJob {
            id: id(object, index),
            index: Index(index),
            folder: "/tmp/htcjob".into(),
            outcome: None,
            fetched: false,
        };
        Some(Inherited::Jobs((0..self.queues[usize::from(object)]).map(job).collect()))
    }

    /// The Go operator's finalizer stands until ours goes, and holds an object that is being deleted as well.
    pub fn is_held(&self, finalizer: bool) -> bool {
        finalizer || self.scene.go_operator.is_some()
    }
}
