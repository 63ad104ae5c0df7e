//! What each step does.

use htc_machine::facts::JobStatus;
use htc_machine::{Index, JobId, Timestamp};

use crate::condor::{Files, Schedd};
use crate::operator::Voice;
use crate::queue::Workload;
use crate::shared::Shared;
use crate::steps::{Action, Model};
use crate::story::Teller;
use crate::workers::Luck;
use crate::world::{Ledger, Memory, Slot, World};

impl Model {
    fn change_there(&self, world: &mut World, action: &Action, tell: &mut Teller) {
        world.change_pool();
        self.change(world, action, tell);
        self.come_to_rest(world);
        world.change_pool();
    }

    fn crash(&self, world: &mut World, op: usize) {
        world.troubles -= 1;
        let objects = world.objects.len();
        world.operators[op].start(objects);
        if let Some(pool) = world.other_pool_mut() {
            pool.memory = Memory::new(objects).into();
            pool.forgotten |= self.broken.forgets_pools;
            world.change_pool();
            self.come_to_rest(world);
            world.change_pool();
        }
    }

    pub fn change(&self, world: &mut World, action: &Action, tell: &mut Teller) {
        match action {
            Action::There(action) => self.change_there(world, action, tell),
            Action::Reconcile(op, object, writes) => {
                if *writes == crate::operator::Writes::Lost {
                    world.troubles -= 1;
                }
                if let Some(reading) = self.read(world, *op, *object) {
                    self.reconcile(world, *op, reading, *writes, tell);
                }
            }
            Action::ReconcileAll(op) => self.reconcile_all(world, *op, tell),
            Action::BeginReconcile(op, object) => {
                world.troubles -= 1;
                world.operators[*op].memory.reading = self.read(world, *op, *object);
            }
            Action::FinishReconcile(op) => {
                if let Some(reading) = world.operators[*op].memory.reading.take() {
                    self.reconcile(world, *op, reading, crate::operator::Writes::Done, tell);
                }
            }
            Action::Grant(op) => self.grant(world, *op, tell),
            Action::Take(op, lane) => self.take(world, *op, *lane, tell),
            Action::Work(op, lane, luck) => {
                if *luck != Luck::Well {
                    world.troubles -= 1;
                }
                self.work(world, *op, *lane, *luck, tell);
            }
            Action::Hang(op) => Self::hang(world, *op),
            Action::TransferLimit(op) => self.end_transfer(world, *op, tell),
            Action::Look(op, voice) => {
                if *voice != Voice::Schedd {
                    world.troubles -= 1;
                }
                if let Some(look) = self.ask_queue(world, *op, *voice) {
                    self.finish_look(world, *op, look, *voice);
                }
                if self.scene.in_step {
                    self.reconcile_all(world, *op, tell);
                }
            }
            Action::LookIntoHistory(op, object) => self.look_into_history(world, *op, *object),
            Action::BlindLookAtOne(op, object) => {
                world.troubles -= 1;
                self.look_at_one_blindly(world, *op, *object);
            }
            Action::LookAtSubmitters(op) => self.look_at_submitters(world, *op),
            Action::BeginLook(op) => {
                world.troubles -= 1;
                let look = self.ask_queue(world, *op, Voice::Schedd);
                world.operators[*op].memory.look = look;
            }
            Action::FinishLook(op) => {
                if let Some(look) = world.operators[*op].memory.look.take() {
                    self.finish_look(world, *op, look, Voice::Schedd);
                }
            }
            Action::Stall(op) => {
                world.troubles -= 1;
                world.operators[*op].memory.stalled = true;
            }
            Action::CatchUp(op) => world.operators[*op].memory.stalled = false,
            Action::Create(_)
            | Action::Delete(_)
            | Action::Suspend(_)
            | Action::Parallelism(..)
            | Action::Deadline(_)
            | Action::Resume(_) => self.ask(world, action),
            Action::SeeQueue(op) => Self::see_queue(world, *op),
            Action::QueueGoes => {
                world.troubles -= 1;
                world.queue_is_gone = true;
            }
            Action::QueueComes => world.queue_is_gone = false,
            Action::Admit(object) => world.workloads[usize::from(*object)] = Workload::Admitted,
            Action::Evict(object) => {
                world.troubles -= 1;
                world.workloads[usize::from(*object)] = Workload::Evicted;
            }
            Action::PauseEnds(object) => world.pausing[usize::from(*object)] = false,
            Action::GiveBack(op, object) => Self::give_back(world, *op, *object),
            Action::Wish(object, index, wanted) => Self::wish(world, *object, *index, *wanted),
            Action::Crash(op) => self.crash(world, *op),
            Action::Adopt(dies) => self.adopt(world, *dies),
            Action::Report(op, sent) => self.report(world, *op, sent, tell),
            Action::NewItems(_)
            | Action::LoseLedger
            | Action::Restore
            | Action::Copy
            | Action::TakeOver
            | Action::Wake
            | Action::OtherName
            | Action::NameThatIsAskedFor
            | Action::Backup
            | Action::RestoreObjects => self.upheaval(world, action),
            _ => self.condor(world, action),
        }
    }

    /// What users do with their `HTCJob`s.
    fn ask(&self, world: &mut World, action: &Action) {
        match action {
            Action::Create(object) => world.objects[usize::from(*object)] = Slot::There(Shared::default()),
            Action::Delete(object) => {
                if let Some(job) = world.object_mut(*object) {
                    job.deleting = true;
                    if !self.is_held(job.finalizer) {
                        world.objects[usize::from(*object)] = Slot::Gone;
                        world.nothing_is_left();
                    }
                }
            }
            Action::Suspend(object) => {
                world.troubles -= 1;
                world.object_mut(*object).unwrap().suspend = true;
            }
            Action::Parallelism(object, most) => {
                let job = world.object_mut(*object).unwrap();
                let paused = job.parallelism == Some(0);
                (job.parallelism, job.widest) = (Some(*most), job.widest.max(*most));
                // Nobody leaves it at none for ever.
                world.troubles -= u8::from(!(paused && *most == 1));
            }
            Action::Deadline(object) => {
                world.troubles -= 1;
                world.object_mut(*object).unwrap().deadline = true;
                for index in 0..self.queues[usize::from(*object)] {
                    world.excuse(*object, Index(index));
                }
            }
            Action::Resume(object) => world.object_mut(*object).unwrap().suspend = false,
            _ => unreachable!("{action:?} is not a user's"),
        }
    }

    fn reconcile_all(&self, world: &mut World, op: usize, tell: &mut Teller) {
        for object in 0..u8::try_from(world.objects.len()).unwrap() {
            if let Some(reading) = self.read(world, op, object) {
                self.reconcile(world, op, reading, crate::operator::Writes::Done, tell);
            }
        }
    }

    fn upheaval(&self, world: &mut World, action: &Action) {
        let objects = world.objects.len();
        let id = world.next_ledger;
        match action {
            Action::LoseLedger => {
                world.troubles -= 1;
                world.next_ledger += 1;
                world.operators[0].ledger = Ledger::new(id, objects);
                world.operators[0].start(objects);
            }
            Action::NewItems(object) => {
                world.troubles -= 1;
                world.config_maps[usize::from(*object)] = 1;
            }
            Action::Copy => world.copy = Some(world.operators[0].ledger.clone()),
            Action::Restore => {
                world.troubles -= 1;
                world.next_ledger += 1;
                if let Some(copy) = world.copy.take() {
                    world.operators[0].ledger = copy.distrusted(id);
                }
                world.operators[0].start(objects);
            }
            Action::TakeOver => {
                world.troubles -= 1;
                world.operators[0].awake = false;
                world.operators[0].leads = false;
                // It makes no new decision any more: all that matters of it are its batches and what waits for them.
                let old = std::mem::replace(&mut world.operators[0].memory, Memory::new(objects).into());
                world.operators[0].memory.batches.clone_from(&old.batches);
                world.operators[0].memory.lanes.clone_from(&old.lanes);
                world.operators[0].memory.registry.clone_from(&old.registry);
                world.operators[1].leads = true;
                world.operators[1].start(objects);
            }
            Action::Wake => world.operators[0].awake = true,
            Action::OtherName | Action::NameThatIsAskedFor => {
                world.troubles -= u8::from(*action == Action::OtherName);
                world.change_schedd(self.scene.old_history);
                if self.broken.names_come_again {
                    world.schedd.name = Schedd::new(false).name;
                }
                world.operators[0].start(objects);
            }
            Action::Backup => world.backup = Some(world.objects.clone()),
            Action::RestoreObjects => {
                world.troubles -= 1;
                world.objects = world.backup.take().unwrap();
            }
            _ => {}
        }
    }

    fn condor(&self, world: &mut World, action: &Action) {
        match action {
            Action::Submit(nth) => {
                world.create_jobs(*nth, Files::Sent);
                let submitter = world.submitters.remove(*nth);
                world.land(submitter.cluster.unwrap());
            }
            Action::SubmitSlowly(nth) => {
                world.troubles -= 1;
                world.create_jobs(*nth, Files::Awaited);
            }
            Action::SubmitFirst(nth) => {
                world.troubles -= 1;
                let rest = world.submitters[*nth].rows.split_off(1);
                world.create_jobs(*nth, Files::Sent);
                let submitter = &mut world.submitters[*nth];
                submitter.rows = rest;
                let cluster = submitter.cluster.take().unwrap();
                world.land(cluster);
            }
            Action::SubmitEndsEarly(nth) => {
                world.troubles -= 1;
                world.create_jobs(*nth, Files::Sent);
                world.submitters.remove(*nth);
            }
            Action::Send(nth) => {
                let submitter = world.submitters.remove(*nth);
                world.files_of(submitter.cluster, Files::Sent);
            }
            Action::SubmitterDies(nth) => {
                world.troubles -= 1;
                let submitter = world.submitters.remove(*nth);
                world.files_of(submitter.cluster, Files::Never);
            }
            Action::Land(cluster) => world.land(*cluster),
            Action::StagingFails(cluster) => {
                world.troubles -= 1;
                world.remove(
                    |job| job.ad.id.cluster == *cluster && job.staging(),
                    "Staging of job files failed",
                    false,
                );
            }
            Action::Start(place) => {
                world.start(*place, self.scene.reports);
                if !self.scene.slow_jobs {
                    world.end(*place, self.scene.reports);
                }
            }
            Action::End(place) => {
                let job = &world.schedd.queue[*place];
                if self.scene.retries && !job.late() && !job.again {
                    world.end_in_vain(*place, 1, self.scene.reports);
                } else {
                    world.end(*place, self.scene.reports);
                }
            }
            Action::NodeDies(place) => {
                world.troubles -= 1;
                world.end_in_vain(*place, 0, true);
            }
            Action::NodeFault(place) => {
                world.troubles -= 1;
                world.schedd.queue[*place].fail_on_its_node();
            }
            Action::PauseOver(place) => world.schedd.queue[*place].end_pause(),
            Action::Purge => world.schedd.leave_all(|job| job.ad.status == JobStatus::Removed),
            Action::RemoveByHand(place) => {
                world.troubles -= 1;
                let job = &world.schedd.queue[*place];
                let (id, object, index): (JobId, _, _) = (job.ad.id, job.object, job.ad.index);
                world.excuse(object, index);
                world.remove(|job| job.ad.id == id, "via condor_rm (by user somebody)", false);
            }
            Action::NoTrace(place) => {
                world.troubles -= 1;
                let job = world.schedd.queue.remove(*place);
                world.excuse(job.object, job.ad.index);
            }
            Action::Rotate => {
                world.schedd.rotate(world.troubles);
                world.troubles -= 1;
            }
            Action::Reset => {
                world.troubles -= 1;
                world.reset_queue();
            }
            Action::LimitPasses => self.limit_passes(world),
            _ => {}
        }
    }

    fn limit_passes(&self, world: &mut World) {
        let Some(limit) = world.first_limit() else { return };
        if !Self::limit_harms_nobody(world, limit) {
            world.troubles = world.troubles.saturating_sub(1);
        }
        world.at_each_schedd(|world| {
            while let Some(nth) = world.submitters.iter().position(|submitter| submitter.limit == limit) {
                let submitter = world.submitters.remove(nth);
                world.files_of(submitter.cluster, Files::Never);
            }
        });
        let now: Timestamp = world.tick();
        world.times(&mut |time| {
            if *time == limit.0 {
                *time = now.0;
            }
        });
    }
}
