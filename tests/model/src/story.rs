//! Counter-examples as stories: one line for each step.

use crate::operator::{Voice, Writes};
use crate::steps::{Action, Model};
use crate::world::{World, name};

/// Takes notes while a step is made, if somebody listens.
pub struct Teller(Option<Vec<String>>);

impl Teller {
    pub const fn silent() -> Self {
        Self(None)
    }

    pub const fn new() -> Self {
        Self(Some(Vec::new()))
    }

    pub fn say(&mut self, words: impl FnOnce() -> String) {
        if let Some(lines) = &mut self.0 {
            lines.push(words());
        }
    }

    pub fn lines(self) -> Vec<String> {
        self.0.unwrap_or_default()
    }
}

impl Model {
    /// What happens along `actions`, from the beginning.
    pub fn story(&self, actions: &[Action]) -> Vec<String> {
        let mut world = self.beginning();
        let mut lines: Vec<String> = self
            .scene
            .go_operator
            .map(|left| format!("     what the Go operator has left: {left:?}"))
            .into_iter()
            .collect();
        for (nth, action) in actions.iter().enumerate() {
            let mut tell = Teller::new();
            let words = self.words(&world, action);
            let next = self.apply(&world, action, &mut tell);
            lines.push(format!("{:3}. {words}", nth + 1));
            lines.extend(tell.lines());
            world = next;
        }
        if let Some(broken) = world.broken {
            lines.push(format!("     => {broken:?}"));
        }
        lines
    }

    #[allow(clippy::too_many_lines, reason = "a table")]
    fn words(&self, world: &World, action: &Action) -> String {
        let who = |op: &usize| match (self.scene.two_operators, op) {
            (false, _) => "the operator",
            (true, 0) => "the first operator",
            (true, _) => "the second operator",
        };
        let cluster = |nth: &usize| {
            let rows = &world.submitters[*nth].rows;
            let of: Vec<String> = rows
                .iter()
                .map(|(object, attempt, index)| format!("job {index} of {} (attempt {attempt})", name(*object)))
                .collect();
            of.join(" and ")
        };
        let job = |place: &usize| {
            let job = &world.schedd.queue[*place];
            format!("job {} ({}, index {}, attempt {})", job.ad.id, name(job.object), job.ad.index, job.ad.attempt)
        };
        match action {
            Action::There(action) => {
                let mut there = world.clone();
                there.change_pool();
                format!("in the second pool, {}", self.words(&there, action))
            }
            Action::Reconcile(op, object, writes) => {
                format!("{} reconciles {}{}", who(op), name(*object), written(*writes))
            }
            Action::ReconcileAll(op) => format!("{} reconciles all", who(op)),
            Action::BeginReconcile(op, object) => format!(
                "{} begins to reconcile {}: it reads what is in flight and the evidence",
                who(op),
                name(*object)
            ),
            Action::FinishReconcile(op) => format!("{} finishes the reconcile", who(op)),
            Action::Take(op, lane) => format!("a worker ({lane:?}) of {} takes what waits", who(op)),
            Action::Work(op, lane, luck) => format!(
                "the worker ({lane:?}) of {} goes on{}",
                who(op),
                if *luck == crate::workers::Luck::Well { String::new() } else { format!(" ({luck:?})") }
            ),
            Action::Grant(op) => format!("the keeper of queues of {} goes on", who(op)),
            Action::PauseEnds(object) => format!("the pause of {} is over", name(*object)),
            Action::SeeQueue(op) => format!("{} sees whether the queue is there", who(op)),
            Action::QueueGoes => "the queue is deleted".to_owned(),
            Action::QueueComes => "the queue is made again".to_owned(),
            Action::Hang(op) => format!("the transfer of {} hangs from now on", who(op)),
            Action::TransferLimit(op) => format!("the time limit of the transfer of {} passes", who(op)),
            Action::Look(op, voice) => format!("{} asks HTCondor{}", who(op), heard(*voice)),
            Action::LookIntoHistory(op, object) => format!("{} asks history about {}", who(op), name(*object)),
            Action::BlindLookAtOne(op, object) => {
                format!("{} asks HTCondor about {} alone; the answer shows no jobs", who(op), name(*object))
            }
            Action::BeginLook(op) => format!("{} asks the queue; the answer is slow", who(op)),
            Action::FinishLook(op) => format!("{} has the answer, and history's", who(op)),
            Action::CatchUp(op) => format!("the watch of {} catches up", who(op)),
            Action::Stall(op) => format!("the watch of {} lags behind", who(op)),
            Action::Create(object) => format!("{} is created", name(*object)),
            Action::Delete(object) => format!("{} is deleted", name(*object)),
            Action::Parallelism(object, most) => format!("{} may have {most} jobs at a time", name(*object)),
            Action::Suspend(object) => format!("{} is suspended", name(*object)),
            Action::Admit(object) => format!("Kueue admits {}", name(*object)),
            Action::Evict(object) => format!("Kueue evicts {}", name(*object)),
            Action::GiveBack(op, object) => format!("{} gives the quota of {} back", who(op), name(*object)),
            Action::NewItems(object) => format!("a user changes the items of {}", name(*object)),
            Action::Deadline(object) => format!("the deadline of {} passes", name(*object)),
            Action::Resume(object) => format!("{} is resumed", name(*object)),
            Action::Wish(object, index, wanted) => {
                format!("a user wants of job {index} of {}: {wanted}", name(*object))
            }
            Action::Submit(nth) => format!("condor_submit brings in {}", cluster(nth)),
            Action::SubmitSlowly(nth) => format!("condor_submit makes {}; the files are slow", cluster(nth)),
            Action::SubmitFirst(nth) => format!("condor_submit brings in the first of {}", cluster(nth)),
            Action::LookAtSubmitters(op) => {
                format!("{} sees that a submitter has ended whose end nobody saw", who(op))
            }
            Action::SubmitEndsEarly(nth) => {
                format!("condor_submit makes {} and ends; the schedd is slow to take note of the files", cluster(nth))
            }
            Action::Send(nth) => format!("condor_submit sends the files of {} and ends", cluster(nth)),
            Action::SubmitterDies(nth) => format!("condor_submit of {} dies", cluster(nth)),
            Action::Land(id) => {
                let late =
                    world.schedd.queue.iter().any(|job| job.ad.id.cluster == *id && job.limit.0 < crate::world::FAR);
                format!("the files of cluster {id} are in{}", if late { ", too late" } else { "" })
            }
            Action::StagingFails(id) => format!("cluster {id} removes itself: staging of its files failed"),
            Action::Start(place) => {
                let late = world.schedd.queue[*place].late();
                format!(
                    "{} starts{}",
                    job(place),
                    if late { "; it is late and does not run its payload" } else { " and runs its payload" }
                )
            }
            Action::End(place) => format!("{} ends", job(place)),
            Action::Report(op, sent) => format!("{} hears from {sent}", who(op)),
            Action::NodeDies(place) => format!("{} reports its end, and its node dies; it is to run again", job(place)),
            Action::Purge => "the nodes of removed jobs answer; they leave the queue".to_owned(),
            Action::NodeFault(place) => {
                format!("{} is started on a node that is at fault, and held for a pause", job(place))
            }
            Action::PauseOver(place) => format!("the pause of {} is over", job(place)),
            Action::NoTrace(place) => format!("{} vanishes, and HTCondor's history does not show it", job(place)),
            Action::RemoveByHand(place) => format!("somebody removes {} with condor_rm", job(place)),
            Action::LimitPasses => "the earliest time limit of a submission passes".to_owned(),
            Action::Crash(op) => format!("{} crashes and is started again", who(op)),
            Action::Adopt(false) => "htc-operator adopt is run, and the operator started again".to_owned(),
            Action::Adopt(true) => "htc-operator adopt is run, and dies before it claims the objects".to_owned(),
            Action::Rotate => "history drops its oldest job".to_owned(),
            Action::Reset => "the schedd begins anew with an empty queue".to_owned(),
            Action::LoseLedger => "the ledger is lost; the operator begins with a new one".to_owned(),
            Action::Copy => "somebody takes a copy of the ledger".to_owned(),
            Action::Restore => "the operator is started on the old copy of its ledger; it takes a new id".to_owned(),
            Action::TakeOver => {
                "the first operator is paused; the second, with a ledger of its own, takes over".to_owned()
            }
            Action::Wake => "the first operator wakes up".to_owned(),
            Action::OtherName | Action::NameThatIsAskedFor => {
                let by = if *action == Action::OtherName { "" } else { ", as it says" };
                let there = world.elsewhere.as_ref().map_or("second", |other| other.schedd.name.as_str());
                format!("the operator is started with --schedd={there}{by}")
            }
            Action::Backup => "somebody takes a copy of etcd's data".to_owned(),
            Action::RestoreObjects => "etcd is restored from that copy".to_owned(),
        }
    }
}

fn written(writes: Writes) -> &'static str {
    match writes {
        Writes::Done => "",
        Writes::Lost => "; its Kubernetes write is lost",
    }
}

fn heard(voice: Voice) -> String {
    match voice {
        Voice::Schedd => String::new(),
        Voice::Nobody => "; nobody answers".to_owned(),
        Voice::Blind => "; the answer shows no jobs".to_owned(),
        Voice::Other(birthdate) => format!("; another schedd answers (born at {birthdate})"),
    }
}
