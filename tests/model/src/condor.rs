//! HTCondor: the queue, history, and the running condor_submits.

use std::sync::Arc;

use htc_machine::facts::{Ad, Exit, Hold, JobStatus, RunHistory, WaitsFor, Witness};
use htc_machine::request::RemovalScope;
use htc_machine::{Attempt, Birthdate, ClusterId, Index, JobId, SchedDate, ScheddName, Timestamp};

use crate::pools::OtherPool;
use crate::shared::Shared;
use crate::world::{Broken, FAR, Slot, World, by_us};

/// `HTCNotAfter` of every ad: dates matter only in that one lies before or after this.
const NOT_AFTER: SchedDate = SchedDate(5);
const TOO_LATE: SchedDate = SchedDate(6);
/// Somebody else's job that left the queue before all this.
const BEFORE: &str = "before";
/// Younger than what the first schedd becomes by losing its queue.
const YOUNGER: Birthdate = Birthdate(1000);

/// One schedd.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Schedd {
    pub name: ScheddName,
    pub birthdate: Birthdate,
    pub next_cluster: u64,
    pub queue: Vec<CondorJob>,
    /// In the order in which they left the queue.
    pub history: Vec<Former>,
}

/// A schedd that the operator does not ask now, with the condor_submits that speak to it. It stands still: to the operator it is
/// all the same when something happens there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Elsewhere {
    pub schedd: Shared<Schedd>,
    pub submitters: Vec<Submitter>,
    /// If the operator works with it as well.
    pub pool: Option<OtherPool>,
}

/// A job in the queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CondorJob {
    pub object: u8,
    pub ad: Ad,
    /// The limit of its submission, as long as its files are not here.
    pub limit: Timestamp,
    pub files: Files,
    /// Its submitter was begun after its time, by an operator that was stopped after it had computed how much was left. Such a
    /// job is late and never runs its payload, but when its object is at rest or gone nobody looks for it: the one thing that
    /// can be left behind.
    pub overdue: bool,
    /// Its payload has run; not if it was only started on a node that is at fault.
    pub ran: bool,
    /// It has ended in vain, and was begun again.
    pub again: bool,
    /// It carries this operator's attributes; a job of the Go operator that is not adopted does not.
    pub marked: bool,
}

/// What of a job's files the schedd has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Files {
    /// Its submitter is still to send them.
    Awaited,
    /// All are sent; the schedd is about to take note of it.
    Sent,
    /// `StageInFinish` is set.
    Here,
    /// Its submitter died.
    Never,
}

/// A job in history.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Former {
    /// `GlobalJobId`
    pub id: String,
    /// None for somebody else's job.
    pub job: Option<(u8, Ad)>,
    /// It carried this operator's attributes.
    pub marked: bool,
}

/// A condor_submit that runs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Submitter {
    pub number: u8,
    pub rows: Vec<(u8, Attempt, Index)>,
    /// The items of each object, as it has them.
    pub items: Vec<Option<u8>>,
    /// When `timeout` kills it.
    pub limit: Timestamp,
    /// `HTCNotAfter` had passed before it began: the operator was stopped in between.
    pub overdue: bool,
    /// The cluster it has made.
    pub cluster: Option<ClusterId>,
}

impl Schedd {
    pub fn new(foreign: bool) -> Self {
        let before = Former { id: BEFORE.to_owned(), job: None, marked: false };
        Self {
            name: "first".into(),
            birthdate: Birthdate(1),
            next_cluster: 1,
            queue: Vec::new(),
            history: if foreign { vec![before] } else { Vec::new() },
        }
    }

    fn second(foreign: bool) -> Self {
        Self { name: "second".into(), birthdate: YOUNGER, ..Self::new(foreign) }
    }

    /// The queue's answer, by object.
    pub fn ads(&self, objects: usize) -> Vec<Arc<Vec<Ad>>> {
        (0..objects)
            .map(|object| {
                let its = self.queue.iter().filter(|job| usize::from(job.object) == object && job.marked);
                Arc::new(its.map(|job| job.ad.clone()).collect())
            })
            .collect()
    }

    /// History's ads of one object.
    pub fn former(&self, object: u8) -> Arc<[Ad]> {
        self.history
            .iter()
            .filter(|former| former.marked)
            .filter_map(|former| former.job.as_ref())
            .filter(|(owner, _)| *owner == object)
            .map(|(_, ad)| ad.clone())
            .collect()
    }

    pub fn newest(&self) -> Witness {
        self.history.last().map_or(Witness::Empty, |former| Witness::Newest(former.id.clone()))
    }

    /// Whether something is there that left the queue before all objects were made.
    pub fn reaches_the_beginning(&self) -> bool {
        self.history.iter().any(|former| former.id == BEFORE)
    }

    /// History drops its oldest job; of those that left last, it always has some.
    pub fn rotate(&mut self, nth: u8) {
        self.history.remove(0);
        if self.history.is_empty() {
            self.history.push(Former { id: format!("other {nth}"), job: None, marked: false });
        }
    }

    fn leave(&mut self, place: usize) {
        let job = self.queue.remove(place);
        let id = format!("{}#{}", self.birthdate, job.ad.id);
        self.history.push(Former { id, job: Some((job.object, job.ad)), marked: job.marked });
    }

    /// Lets those jobs leave of which `which` says so.
    pub fn leave_all(&mut self, which: impl Fn(&CondorJob) -> bool) {
        while let Some(place) = self.queue.iter().position(&which) {
            self.leave(place);
        }
    }
}

impl CondorJob {
    /// Whether a constraint that names the object's uid finds it.
    pub fn is_of(&self, object: u8) -> bool {
        self.object == object && self.marked
    }

    pub fn staging(&self) -> bool {
        self.files != Files::Here && self.ad.status == JobStatus::Held
    }

    pub fn late(&self) -> bool {
        self.ad.staged_in.is_some_and(|date| date > NOT_AFTER)
    }

    /// Whether HTCondor holds it after a fault of its node, and will release it by itself.
    pub const fn pauses(&self) -> bool {
        self.ad.runs.waits_for.is_some()
    }

    /// It is started on a node that is at fault. Its payload does not run.
    pub fn fail_on_its_node(&mut self) {
        self.ad.started = true;
        self.ad.status = JobStatus::Held;
        self.ad.hold = Hold { code: Hold::BY_POLICY, subcode: 0, reason: String::new(), since: None };
        self.ad.runs.waits_for = Some(WaitsFor::OtherNode);
    }

    pub fn end_pause(&mut self) {
        self.ad.status = JobStatus::Idle;
        self.ad.hold = Hold { code: 0, subcode: 0, reason: String::new(), since: None };
        self.ad.runs.waits_for = None;
    }

    fn index(&self) -> usize {
        self.ad.index.0 as usize
    }
}

impl World {
    /// condor_submit makes its jobs; all of them or none.
    pub fn create_jobs(&mut self, place: usize, files: Files) {
        let cluster = ClusterId(self.schedd.next_cluster);
        self.schedd.next_cluster += 1;
        let submitter = &mut self.submitters[place];
        submitter.cluster = Some(cluster);
        let mut others = false;
        let hold = Hold { code: Hold::SPOOLING, subcode: 0, reason: String::new(), since: None };
        for (proc, (object, attempt, index)) in (0..).zip(submitter.rows.clone()) {
            let (items, first) = (submitter.items[usize::from(object)], &mut self.seen.items[usize::from(object)]);
            others |= first.is_some() && *first != items;
            *first = first.or(items);
            let ad = Ad {
                id: JobId { cluster, proc },
                attempt,
                index,
                not_after: Some(NOT_AFTER),
                status: JobStatus::Held,
                hold: hold.clone(),
                staged_in: None,
                staged_out: None,
                exit: None,
                completed: false,
                started: false,
                remove_reason: String::new(),
                runs: RunHistory::default(),
            };
            let limit = if submitter.overdue { Timestamp(0) } else { submitter.limit };
            let overdue = submitter.overdue;
            self.schedd.queue.push(CondorJob {
                object,
                ad,
                limit,
                files,
                overdue,
                again: false,
                ran: false,
                marked: true,
            });
        }
        if others {
            self.breaks(Broken::OtherItems);
        }
        self.nothing_is_left();
    }

    /// Files of `cluster` that are not here yet are now `files`.
    pub fn files_of(&mut self, cluster: Option<ClusterId>, files: Files) {
        for job in &mut self.schedd.queue {
            if Some(job.ad.id.cluster) == cluster && job.staging() && job.files != Files::Never {
                job.files = files;
            }
        }
    }

    /// The schedd takes note that it has the files of `cluster`: in time, or late.
    pub fn land(&mut self, cluster: ClusterId) {
        for job in &mut self.schedd.queue {
            if job.ad.id.cluster == cluster && job.files == Files::Sent && job.ad.status == JobStatus::Held {
                job.files = Files::Here;
                job.ad.status = JobStatus::Idle;
                job.ad.staged_in = Some(if job.limit.0 >= FAR { NOT_AFTER } else { TOO_LATE });
                job.limit = Timestamp(0);
            }
        }
    }

    /// A job starts. The lock in job.sh keeps a late one from its payload.
    pub fn start(&mut self, place: usize, reports: bool) {
        let job = &mut self.schedd.queue[place];
        job.ad.status = JobStatus::Running;
        job.ad.started = true;
        if job.late() {
            return;
        }
        let first = !job.ran;
        job.ran = true;
        if reports {
            self.send_report(place, None);
        }
        let job = &self.schedd.queue[place];
        if first {
            let (object, index) = (usize::from(job.object), job.index());
            let ran = &mut self.seen.ran[object][index];
            *ran += 1;
            if *ran > 1 {
                self.breaks(Broken::RanTwice);
            }
        }
    }

    /// A job ends.
    pub fn end(&mut self, place: usize, reports: bool) {
        if reports && !self.schedd.queue[place].late() {
            self.send_report(place, Some(0));
        }
        let job = &mut self.schedd.queue[place];
        job.ad.status = JobStatus::Completed;
        job.ad.completed = true;
        job.ad.exit = Some(Exit::Code(if job.late() { 241 } else { 0 }));
    }

    /// A payload ends, and may report it, with an exit code after which HTCondor begins the job again; or its node dies in this
    /// moment.
    pub fn end_in_vain(&mut self, place: usize, code: i32, reports: bool) {
        let job = &mut self.schedd.queue[place];
        (job.ad.status, job.again) = (JobStatus::Idle, true);
        let (object, id) = (job.object, job.ad.id);
        if reports {
            self.send_report(place, Some(code));
            self.undo_report(object, id);
        }
    }

    /// `condor_rm` of those jobs of which `which` says so. `lingering`: their nodes do not answer, and they stay for a while.
    pub fn remove(&mut self, which: impl Fn(&CondorJob) -> bool, reason: &str, lingering: bool) {
        let before = self.schedd.queue.len();
        for job in &mut self.schedd.queue {
            if which(job) && job.ad.status != JobStatus::Removed {
                job.ad.status = JobStatus::Removed;
                job.ad.hold = Hold { code: 0, subcode: 0, reason: String::new(), since: None };
                reason.clone_into(&mut job.ad.remove_reason);
                job.limit = Timestamp(0);
            }
        }
        if !lingering {
            self.schedd.leave_all(|job| job.ad.status == JobStatus::Removed);
        }
        debug_assert!(self.schedd.queue.len() <= before);
    }

    pub fn remove_scope(&mut self, object: u8, scope: &RemovalScope, lingering: bool) {
        match scope {
            RemovalScope::All => self.remove(|job| job.is_of(object), &by_us(), lingering),
            RemovalScope::Staging => self.remove(|job| job.is_of(object) && job.staging(), &by_us(), lingering),
            RemovalScope::Unfinished => {
                let unfinished = |job: &CondorJob| job.is_of(object) && job.ad.status != JobStatus::Completed;
                self.remove(unfinished, &by_us(), lingering);
            }
            RemovalScope::Requested(ids) => {
                let unfinished = |job: &CondorJob| {
                    job.is_of(object) && ids.contains(&job.ad.id) && job.ad.status != JobStatus::Completed
                };
                self.remove(unfinished, &by_us(), lingering);
            }
            RemovalScope::Extra(ids) => {
                self.remove(|job| job.is_of(object) && ids.contains(&job.ad.id), &by_us(), lingering);
            }
        }
    }

    /// A person, or a policy, ends a job of this index: what becomes of it is not the operator's doing.
    pub fn excuse(&mut self, object: u8, index: Index) {
        self.seen.excused[usize::from(object)][index.0 as usize] = true;
    }

    /// From its next start on the operator asks the other schedd.
    pub fn change_schedd(&mut self, foreign: bool) {
        let other = self.elsewhere.take();
        let second = || Elsewhere { schedd: Schedd::second(foreign).into(), submitters: Vec::new(), pool: None };
        let Elsewhere { schedd, submitters, pool } = other.unwrap_or_else(second);
        let schedd = std::mem::replace(&mut self.schedd, schedd);
        let submitters = std::mem::replace(&mut self.submitters, submitters);
        self.elsewhere = Some(Elsewhere { schedd, submitters, pool });
    }

    /// Does this at each schedd.
    pub fn at_each_schedd(&mut self, work: impl Fn(&mut Self)) {
        work(self);
        if self.elsewhere.is_some() {
            self.change_schedd(false);
            work(self);
            self.change_schedd(false);
        }
    }

    /// The jobs in the queues of all schedds.
    pub fn queued(&self) -> impl Iterator<Item = &CondorJob> {
        let elsewhere = self.elsewhere.iter().flat_map(|other| &other.schedd.queue);
        self.schedd.queue.iter().chain(elsewhere)
    }

    /// All condor_submits that run.
    pub fn submitting(&self) -> impl Iterator<Item = &Submitter> {
        let elsewhere = self.elsewhere.iter().flat_map(|other| &other.submitters);
        self.submitters.iter().chain(elsewhere)
    }

    /// The schedd begins with an empty queue.
    pub fn reset_queue(&mut self) {
        for job in std::mem::take(&mut self.schedd.queue) {
            self.excuse(job.object, job.ad.index);
        }
        self.schedd.birthdate.0 += 1;
        self.schedd.next_cluster = 1;
        for submitter in std::mem::take(&mut self.submitters) {
            // Those that had spoken to it fail; the others have not begun.
            if submitter.cluster.is_none() {
                self.submitters.push(submitter);
            }
        }
    }

    /// Whether a job of an object that was released is in the queue.
    pub fn nothing_is_left(&mut self) {
        let gone = |object: u8| self.objects[usize::from(object)] == Slot::Gone;
        if self.queued().any(|job| gone(job.object) && !job.overdue) {
            self.breaks(Broken::LeftBehind);
        }
    }
}
