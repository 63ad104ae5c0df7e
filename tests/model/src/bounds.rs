//! The bounds of an exploration: what there is, what can go wrong, and how often.

/// Kinds of trouble; each that happens counts once against [`Scene::troubles`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Trouble {
    /// The operator crashes.
    Crash,
    /// condor_submit makes its jobs and hangs before it has sent their files.
    SlowSubmitter,
    /// condor_submit ends well; the schedd is slow to take note of the files.
    SlowStaging,
    /// condor_submit brings in the first of its jobs, and goes on with the others as if that were another submission.
    HalfSubmission,
    /// condor_submit dies, before or after it has made its jobs.
    DyingSubmitter,
    /// Jobs remove themselves while their files are coming.
    StagingFails,
    /// A submitter's limit passes while it lives or its files are coming.
    LimitPasses,
    /// A person removes a job with condor_rm.
    RemovedByHand,
    /// HTCondor loses a job that a status lists, and all trace of it.
    NoTrace,
    /// Removed jobs stay in the queue for a while.
    LingeringRemoval,
    /// A tool other than condor_submit fails.
    FailingTool,
    /// A transfer of output hangs, or what it has brought is not taken in, until that is stopped or a time limit passes.
    HangingTransfer,
    /// A tool works, but its answer is lost.
    LostAnswer,
    /// The Lease is renewed late: the fence is closed for a moment, after the intents of a submission are durable.
    Lapse,
    /// The schedd does not answer a look.
    Silence,
    /// The answers of a look come late.
    SlowLook,
    /// One look at all jobs shows none.
    BlindLook,
    /// One look at the jobs of an object with which something is about to happen shows none.
    BlindLookAtOne,
    /// Another schedd answers a look, with an older birthdate, or a newer one.
    OtherSchedd,
    /// A reconcile is slow between its first fact and its last.
    SlowReconcile,
    /// The watch lags behind.
    StaleCache,
    /// A Kubernetes write of a reconcile is lost, or refused by a conflict.
    LostWrite,
    /// History drops its oldest ad.
    Rotation,
    /// The schedd loses its queue.
    Reset,
    /// The operator is started with another `--schedd`, younger than the first. A person starts it with the one that a condition
    /// names.
    OtherName,
    /// etcd is restored from a copy: what was deleted lives again. A person deletes what says that it was deleted before.
    OldObjects,
    /// The ledger is lost.
    LostLedger,
    /// The ledger is replaced by an old copy.
    OldLedger,
    /// The first operator is paused in a submission, and a second takes over. At all other times that is as if the ledger were
    /// lost.
    SecondOperator,
    /// An object is suspended.
    Suspend,
    /// A user changes `spec.parallelism`: no job, one, or two at a time.
    Parallelism,
    /// The queue is deleted. An administrator makes it again.
    QueueGoes,
    /// Kueue takes back what it has admitted an object with.
    Evict,
    /// The deadline of an object passes.
    Deadline,
    /// A user holds or removes a single job.
    Wish,
    /// A user changes the ConfigMap that the items of an object are in.
    NewItems,
    /// The node of a job dies right after its payload has ended and that was reported.
    DyingNode,
    /// The node of a job is at fault: `job.sh` ends before its payload begins, and HTCondor holds the job for a pause.
    NodeFault,
}

/// What the Go operator has left of each object: it had submitted all its jobs at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GoOperator {
    /// The jobs are in the queue; the status and the database name them.
    Waiting,
    /// They have left the queue; the status and the database name them.
    Left,
    /// They are in the queue; the Go operator ended before it had written down any.
    Unwritten,
}

/// Why nothing of an object ever gets into HTCondor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// Its submissions are not begun: its Secret is missing.
    NotBegun,
    /// The schedd refuses them.
    BySchedd,
}

/// Bounds of one exploration.
#[derive(Clone, Debug)]
pub struct Scene {
    pub name: &'static str,
    /// Number of jobs of each object.
    pub queues: &'static [u32],
    /// `spec.parallelism` of each object.
    pub parallelism: Option<u32>,
    /// `spec.indexes` of each object: all but the first. The queue has one job more then.
    pub not_the_first: bool,
    /// How many troubles may happen, and of which kinds.
    pub troubles: u8,
    pub kinds: &'static [Trouble],
    /// How many of the objects may be deleted.
    pub deletes: u8,
    /// Objects are created one by one, at any time; otherwise they are there at the beginning.
    pub creates: bool,
    pub two_operators: bool,
    /// A job starts and ends in two steps.
    pub slow_jobs: bool,
    /// A crash can come between a tool and its result, for other tools than condor_submit, too.
    pub slow_tools: bool,
    /// Fetched jobs leave the queue by themselves, as with HTCondor 25.14.
    pub leaves_when_fetched: bool,
    /// Objects are reconciled one right after the other, and after each look; quick tools take one step.
    pub in_step: bool,
    /// History has a job of somebody else from before.
    pub old_history: bool,
    /// Reasons of conditions under which an object may wait for an admin for ever.
    pub admins: &'static [&'static str],
    /// Jobs may get lost.
    pub losses: bool,
    /// Jobs report their starts and ends.
    pub reports: bool,
    /// Each payload fails when it runs first, and HTCondor begins it again.
    pub retries: bool,
    /// History may be asked without asking the queue again.
    pub history_apart: bool,
    /// There are two pools with the same ids, and the objects are in them in turn.
    pub two_pools: bool,
    /// The objects are in a queue that has room for so many jobs.
    pub room: Option<u64>,
    /// Kueue says which objects have that room.
    pub kueue: bool,
    /// Items come from a ConfigMap.
    pub items: bool,
    /// The first object is refused for ever.
    pub refused: Option<Refusal>,
    /// The objects are the Go operator's, and this one has just taken its place.
    pub go_operator: Option<GoOperator>,
}

impl Scene {
    pub const fn new(name: &'static str, queues: &'static [u32], troubles: u8, kinds: &'static [Trouble]) -> Self {
        Self {
            name,
            queues,
            parallelism: None,
            not_the_first: false,
            troubles,
            kinds,
            deletes: 1,
            creates: false,
            two_operators: false,
            slow_jobs: false,
            slow_tools: false,
            leaves_when_fetched: true,
            in_step: queues.len() > 1,
            old_history: true,
            admins: &[],
            losses: false,
            reports: false,
            retries: false,
            history_apart: false,
            two_pools: false,
            room: None,
            kueue: false,
            items: false,
            refused: None,
            go_operator: None,
        }
    }
}

/// What is broken outside of `decide` and `judge`: the glue and the other layers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sabotage {
    /// The ledger is read before the registry.
    pub record_before_in_flight: bool,
    /// What is in flight is no fact.
    pub forgets_in_flight: bool,
    /// The registry lets a second request of an object in.
    pub registry_lets_all_in: bool,
    /// What waits for its worker and is cancelled is free only when its turn comes.
    pub frees_in_turn: bool,
    /// Two submissions may have the same attempt.
    pub attempts_have_no_key: bool,
    /// An answer is dated when it comes, not when it was asked for.
    pub dates_answers_late: bool,
    /// An earlier operator's submitter is not waited for.
    pub no_wait_for_strangers: bool,
    /// After a crash, all objects are taken for those of the first pool.
    pub forgets_pools: bool,
    /// As long as it is not known which queue applies, none does.
    pub takes_unknown_for_none: bool,
    /// Kueue's quota is given back as soon as it is wanted.
    pub gives_back_at_once: bool,
    /// Room is given back as soon as a job reports its end.
    pub frees_by_report: bool,
    /// A parallelism that was changed stays what it was.
    pub reads_parallelism_once: bool,
    /// A parallelism that was lowered stays what it was.
    pub never_narrows: bool,
    /// Items are read whenever they are wanted.
    pub reads_items_again: bool,
    /// Another schedd has the name of the first.
    pub names_come_again: bool,
    /// A status lists what its ledger has, whatever was listed before.
    pub lists_its_own_only: bool,
}
