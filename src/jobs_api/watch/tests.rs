use htc_api::{ConfigMapKeyRef, HTCJob, HTCJobSpec, ItemsFrom, ObjectName, ObservedHTCJob, Phase};
use htc_ledger::{Ledger, Save};
use htc_machine::facts::{Hold, Job, JobState, ObjectRow, RunHistory};
use htc_machine::ids::{Attempt, Birthdate, ClusterId, JobId, SchedDate, ScheddName, Timestamp};
use htc_machine::outcome::Outcome;
use htc_support::health::Health;
use htc_support::metrics::Metrics;
use kube::runtime::reflector::{self, store::Writer};
use kube::runtime::watcher::Event;
use tempfile::TempDir;
use tokio::sync::{broadcast, watch};

use super::*;
use crate::jobs_api::LedgerSteps;

const JOBS: u32 = 3500;

fn name() -> ObjectName {
    ObjectName { namespace: "here".to_owned(), name: "large".to_owned() }
}

fn observed(name: &str, spec: HTCJobSpec) -> ObservedHTCJob {
    let mut htcjob = HTCJob::new(name, spec);
    (htcjob.metadata.namespace, htcjob.metadata.uid) = (Some("here".to_owned()), Some(format!("{name}-uid")));
    htc_api::Guarded(Ok(htcjob))
}

fn htcjob(queue: u32) -> ObservedHTCJob {
    observed("large", HTCJobSpec { queue: Some(queue.into()), ..HTCJobSpec::default() })
}

struct WatchFixture {
    _folder: TempDir,
    writer: Writer<ObservedHTCJob>,
    records: Records,
}

impl WatchFixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(&folder.path().join("x.db"), &Metrics::default(), &Health::default()).unwrap();
        let (objects, writer) = reflector::store();
        let (listed, touched) = (watch::channel(true).1, broadcast::Sender::new(16));
        let records = Records {
            objects,
            listed,
            changes: touched,
            ledger,
            ledger_steps: LedgerSteps::default(),
            operator: String::new(),
        };
        Self { _folder: folder, writer, records }
    }

    /// Adds an object without notifying the watches.
    fn comes_unheard(&mut self, object: ObservedHTCJob) {
        self.writer.apply_watcher_event(&Event::Apply(object));
    }

    fn is_touched(&self, name: Option<&str>) {
        let name = name.map(|name| ObjectName { name: name.to_owned(), ..self::name() });
        let _ = self.records.changes.send(name);
    }

    fn comes(&mut self, object: ObservedHTCJob) {
        self.comes_unheard(object);
        self.is_touched(Some("large"));
    }

    fn goes(&mut self, object: ObservedHTCJob) {
        self.writer.apply_watcher_event(&Event::Delete(object));
        self.is_touched(Some("large"));
    }

    async fn is_recorded(&self, given_up: u32) {
        self.decides(|save| save.row.given_up = given_up).await;
    }

    /// Records a decision.
    async fn decides(&self, change: impl FnOnce(&mut Save)) {
        let known = ObjectRow {
            phase: Phase::Running,
            new: true,
            started: None,
            completed: None,
            cut_short: None,
            given_up: 0,
            released: false,
            last_queue: None,
            conditions: Vec::new(),
        };
        let mut save = Save {
            uid: "large-uid".into(),
            name: name(),
            pool: None,
            row: known,
            jobs: Vec::new(),
            settled: None,
            absent: None,
            action_updates: Vec::new(),
            schedd: ScheddName::from("schedd@test"),
            sandbox: String::new(),
            transitions: Vec::new(),
            refuted: Vec::new(),
            returned_quota: Indices::default(),
            now: Timestamp(7),
        };
        change(&mut save);
        self.records.ledger.save(save).await.unwrap();
    }

    async fn watch(&self, words: &str) -> Result<WatchStream, StatusError> {
        let query = Query::parse(&format!("watch=1&{words}"), None).unwrap();
        WatchStream::begin(self.records.clone(), None, &query, query.watch.unwrap()).await
    }
}

/// Returns kinds and indexes of frames.
fn frames(text: &str) -> Vec<(String, u64)> {
    let frame = |line: &str| {
        let frame: Value = serde_json::from_str(line).unwrap();
        (frame["type"].as_str().unwrap().to_owned(), frame["object"]["spec"]["index"].as_u64().unwrap())
    };
    text.lines().map(frame).collect()
}

/// Returns everything that one read finds, step by step.
async fn steps(watching: &mut WatchStream) -> Vec<Vec<(String, u64)>> {
    let mut steps = Vec::new();
    loop {
        let text = watching.step().await.unwrap();
        if text.is_empty() {
            return steps;
        }
        steps.push(frames(&text));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn large_htcjob_is_watched_in_parts() {
    let mut world = WatchFixture::new();
    // The second watch records which jobs are in its selection.
    for words in ["", "fieldSelector=status.state%3DWaiting"] {
        let mut watching = world.watch(words).await.unwrap();
        assert!(steps(&mut watching).await.is_empty());
        for kind in ["ADDED", "DELETED"] {
            if kind == "ADDED" {
                world.comes(htcjob(JOBS));
            } else {
                world.goes(htcjob(JOBS));
            }
            let steps = steps(&mut watching).await;
            let most = steps.iter().map(Vec::len).max();
            assert!(most <= Some(PART), "{kind}: {most:?} jobs at a step");
            let all: Vec<(String, u64)> = steps.concat();
            let expected: Vec<(String, u64)> = (0..JOBS).map(|index| (kind.to_owned(), index.into())).collect();
            assert!(all == expected, "{words}, {kind}: {} of {JOBS}", all.len());
        }
        assert!(watching.inside.is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_reads_only_changed_htcjobs() {
    let mut world = WatchFixture::new();
    world.comes_unheard(htcjob(2));
    let mut watching = world.watch("").await.unwrap();
    assert_eq!(steps(&mut watching).await.concat().len(), 2);
    let other = |name: &str| observed(name, HTCJobSpec::default());
    world.comes_unheard(other("a"));
    world.comes_unheard(other("b"));
    world.is_recorded(0).await;
    assert!(steps(&mut watching).await.is_empty(), "no change was announced");
    world.is_touched(Some("a"));
    assert_eq!(steps(&mut watching).await.concat().len(), 1);
    world.is_touched(None);
    assert_eq!(steps(&mut watching).await.concat().len(), 1, "all are looked at, and `a` is known");
    world.comes_unheard(other("c"));
    for _ in 0..100 {
        world.is_touched(Some("a"));
    }
    assert_eq!(steps(&mut watching).await.concat().len(), 1, "a watch with too many notices reads all");
}

/// The watch was cut when only some of the 3,500 jobs' changes had been sent.
async fn those_who_go_on_from(world: &WatchFixture, version: &str, all: Vec<Vec<(String, u64)>>, kind: &str) {
    let refused = world.watch(&format!("resourceVersion={version}")).await.err().map(|failure| failure.code);
    assert_eq!(refused, Some(410), "the others would never be reported");
    let all: Vec<(String, u64)> = all.concat();
    let expected: Vec<(String, u64)> = (0..JOBS).map(|index| (kind.to_owned(), index.into())).collect();
    assert!(all == expected, "{} of {JOBS}", all.len());
    assert!(world.watch(&format!("resourceVersion={}", world.records.ledger.sequence())).await.is_ok());
}

/// Returns the first frames, and their version.
async fn first(watching: &mut WatchStream) -> (Vec<(String, u64)>, String) {
    let text = watching.step().await.unwrap();
    let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    (frames(&text), last["object"]["metadata"]["resourceVersion"].as_str().unwrap().to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_cut_amid_given_up_jobs_cannot_resume() {
    let mut world = WatchFixture::new();
    world.comes_unheard(htcjob(JOBS));
    world.is_recorded(0).await;
    let mut watching = world.watch(&format!("resourceVersion={}", world.records.ledger.sequence())).await.unwrap();
    assert!(steps(&mut watching).await.is_empty());
    world.is_recorded(JOBS).await;
    let (told, version) = first(&mut watching).await;
    assert!(told.len() < 3500, "{}", told.len());
    let all = [vec![told], steps(&mut watching).await].concat();
    those_who_go_on_from(&world, &version, all, "MODIFIED").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_cut_amid_deleted_jobs_cannot_resume() {
    for words in ["", "&fieldSelector=status.state%3DWaiting"] {
        let mut world = WatchFixture::new();
        world.comes_unheard(htcjob(JOBS));
        world.is_recorded(0).await;
        let since = world.records.ledger.sequence();
        let mut watching = world.watch(&format!("resourceVersion={since}{words}")).await.unwrap();
        assert!(steps(&mut watching).await.is_empty());
        world.decides(|save| save.row.released = true).await;
        world.goes(htcjob(JOBS));
        let (told, version) = first(&mut watching).await;
        assert!(told.len() < 3500, "{}", told.len());
        let all = [vec![told], steps(&mut watching).await].concat();
        those_who_go_on_from(&world, &version, all, "DELETED").await;
    }
}

fn job(index: u32, state: JobState, host: &str) -> (Index, Job) {
    let job = Job {
        id: JobId { cluster: ClusterId(1), proc: index },
        attempt: Attempt(1),
        birthdate: Birthdate(1),
        recorded: Timestamp(1),
        staged_in: SchedDate(1),
        started: true,
        state,
        fetched: false,
        gone: false,
        runs: RunHistory { host: Some(host.into()), ..RunHistory::default() },
    };
    (Index(index), job)
}

/// Between a list and the watch that continues from it jobs have changed, some of them without leaving or entering
/// the selection.
#[tokio::test(flavor = "multi_thread")]
async fn resumed_watch_maps_changes_to_its_selection() {
    let mut world = WatchFixture::new();
    world.comes_unheard(htcjob(4));
    let jobs = |host: &str, states: [JobState; 4]| -> Vec<(Index, Job)> {
        states.into_iter().zip(0..).map(|(state, index)| job(index, state, host)).collect()
    };
    let ended = || JobState::Ended(Outcome::Succeeded);
    let before = jobs("one", [JobState::Running, JobState::Running, JobState::Idle, JobState::Idle]);
    world.decides(|save| save.jobs = before).await;
    let since = world.records.ledger.sequence();
    let after = jobs("other", [JobState::Running, ended(), JobState::Idle, JobState::Running]);
    world.decides(|save| save.jobs = after).await;
    for (state, expected) in [
        ("Running", vec![("MODIFIED", 0), ("DELETED", 1), ("ADDED", 3)]),
        ("Idle", vec![("DELETED", 1), ("MODIFIED", 2), ("DELETED", 3)]),
    ] {
        let words = format!("resourceVersion={since}&fieldSelector=status.state%3D{state}");
        let mut told = steps(&mut world.watch(&words).await.unwrap()).await.concat();
        told.sort_by_key(|(_, index)| *index);
        let expected: Vec<(String, u64)> = expected.into_iter().map(|(kind, index)| (kind.to_owned(), index)).collect();
        assert_eq!(told, expected, "{state}");
    }
}

/// The job has been held since, and runs again; it ends before anything is sent.
#[tokio::test(flavor = "multi_thread")]
async fn job_leaving_the_selection_during_watch_start_is_deleted() {
    let mut world = WatchFixture::new();
    world.comes_unheard(htcjob(2));
    let hold = || JobState::Held(Hold { code: 1, subcode: 0, reason: String::new(), since: None });
    let is = |states: [JobState; 2]| -> Vec<(Index, Job)> {
        states.into_iter().zip(0..).map(|(state, index)| job(index, state, "one")).collect()
    };
    world.decides(|save| save.jobs = is([JobState::Running, JobState::Running])).await;
    let since = world.records.ledger.sequence();
    world.decides(|save| save.jobs = is([hold(), JobState::Running])).await;
    world.decides(|save| save.jobs = is([JobState::Running, JobState::Running])).await;
    let words = format!("resourceVersion={since}&fieldSelector=status.state%3DRunning");
    let mut watching = world.watch(&words).await.unwrap();
    let ended = || JobState::Ended(Outcome::Succeeded);
    world.decides(|save| save.jobs = is([ended(), ended()])).await;
    let mut told = steps(&mut watching).await.concat();
    told.sort_by_key(|(_, index)| *index);
    assert_eq!(told, [("DELETED".to_owned(), 0), ("DELETED".to_owned(), 1)]);
    assert!(watching.unclear.values().all(BTreeSet::is_empty));
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_cut_amid_new_items_cannot_resume() {
    let mut world = WatchFixture::new();
    let items_from = ItemsFrom { config_map_key_ref: ConfigMapKeyRef { name: "c".to_owned(), key: "k".to_owned() } };
    world.comes_unheard(observed("large", HTCJobSpec { items_from: Some(items_from), ..HTCJobSpec::default() }));
    world.is_recorded(0).await;
    let mut watching = world.watch(&format!("resourceVersion={}", world.records.ledger.sequence())).await.unwrap();
    assert!(steps(&mut watching).await.is_empty());
    world.records.ledger.keep_items(&"large-uid".into(), vec!["x".to_owned(); JOBS as usize]).await.unwrap();
    let (told, version) = first(&mut watching).await;
    assert!(told.len() < 3500, "{}", told.len());
    let all = [vec![told], steps(&mut watching).await].concat();
    those_who_go_on_from(&world, &version, all, "ADDED").await;
}

/// Jobs without a row are given up after the check for changes as a whole, and before the jobs are read.
#[tokio::test(flavor = "multi_thread")]
async fn watch_that_starts_while_jobs_are_given_up_gets_410() {
    let mut world = WatchFixture::new();
    world.comes_unheard(htcjob(2));
    world.is_recorded(0).await;
    let since = world.records.ledger.sequence();
    let words = format!("resourceVersion={since}&fieldSelector=status.state%3DWaiting");
    let mut watching = world.watch(&words).await.unwrap();
    world.is_recorded(2).await;
    let walk = || {
        let parents = watching.htcjobs.parents().cloned().collect();
        JobPager::through(watching.records.clone(), parents, watching.selection.at_any_time())
    };
    let (first, second) = (walk(), walk());
    assert_eq!(watching.remember(first).await.map_err(|failure| failure.code), Err(410));
    watching.told = world.records.ledger.sequence();
    assert_eq!(watching.remember(second).await, Ok(()));
}

#[tokio::test(flavor = "multi_thread")]
async fn version_before_a_forced_deletion_cannot_resume() {
    let mut world = WatchFixture::new();
    let stays = observed("stays", HTCJobSpec::default());
    world.comes_unheard(stays.clone());
    world.comes_unheard(htcjob(2));
    world
        .decides(|save| (save.uid, save.name) = ("stays-uid".into(), ObjectName { name: "stays".to_owned(), ..name() }))
        .await;
    world.is_recorded(0).await;
    let since = format!("resourceVersion={}", world.records.ledger.sequence());
    let mut live = world.watch(&since).await.unwrap();
    // Its finalizer is removed: the ledger does not learn of that.
    world.goes(htcjob(2));
    assert_eq!(steps(&mut live).await.concat().len(), 2, "DELETED of each of its jobs");
    for _ in 0..2 {
        let refused = world.watch(&since).await.err();
        assert!(refused.is_some_and(|why| why.code == 410 && why.message.contains("have gone since")));
    }
    let now = world.records.ledger.sequence();
    assert!(world.watch(&format!("resourceVersion={now}")).await.is_ok());
    assert_eq!(world.records.ledger.sequence(), now, "it is noted once");
}

#[tokio::test]
async fn lists_of_one_user_are_read_one_at_a_time() {
    let mut world = WatchFixture::new();
    world.comes(htcjob(5));
    let records = |user: &str| Records { ledger_steps: world.records.ledger_steps.of(user), ..world.records.clone() };
    let walk = async |user: &str| {
        let mut walk = JobPager::new(records(user), None, Selection::default(), None).await.unwrap();
        tokio::time::timeout(Duration::from_millis(100), walk.next_of(5)).await.map(|part| part.unwrap().unwrap().len())
    };
    let anns = records("ann").ledger_steps.acquire().await;
    assert!(walk("ann").await.is_err(), "another step is read for this user");
    assert_eq!(walk("bob").await.unwrap(), 5);
    drop(anns);
    assert_eq!(walk("ann").await.unwrap(), 5);
}
