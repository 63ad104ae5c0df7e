use kube::runtime::reflector::{self, store::Writer};
use kube::runtime::watcher::Event;
use tempfile::TempDir;
use tokio::sync::{broadcast, watch};

use super::*;
use crate::api::{ConfigMapKeyRef, HTCJob, HTCJobSpec, ItemsFrom, ObjectName, Observed, Phase};
use crate::health::Health;
use crate::jobs_api::Steps;
use crate::ledger::{Ledger, Save};
use crate::machine::facts::{Hold, Job, JobState, Known, Runs};
use crate::machine::ids::{Attempt, Birthdate, ClusterId, JobId, SchedDate, ScheddName, Timestamp};
use crate::machine::outcome::Outcome;
use crate::metrics::Metrics;

const JOBS: u32 = 3500;

fn name() -> ObjectName {
    ObjectName { namespace: "here".to_owned(), name: "large".to_owned() }
}

fn observed(name: &str, spec: HTCJobSpec) -> Observed {
    let mut htcjob = HTCJob::new(name, spec);
    (htcjob.metadata.namespace, htcjob.metadata.uid) = (Some("here".to_owned()), Some(format!("{name}-uid")));
    crate::api::Guarded(Ok(htcjob))
}

fn htcjob(queue: u32) -> Observed {
    observed("large", HTCJobSpec { queue: Some(queue.into()), ..HTCJobSpec::default() })
}

struct World {
    _folder: TempDir,
    writer: Writer<Observed>,
    records: Records,
}

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(&folder.path().join("x.db"), &Metrics::default(), &Health::default()).unwrap();
        let (objects, writer) = reflector::store();
        let (listed, touched) = (watch::channel(true).1, broadcast::Sender::new(16));
        let records = Records { objects, listed, touched, ledger, steps: Steps::default(), operator: String::new() };
        Self { _folder: folder, writer, records }
    }

    /// Nobody is told.
    fn comes_unheard(&mut self, object: Observed) {
        self.writer.apply_watcher_event(&Event::Apply(object));
    }

    fn is_touched(&self, name: Option<&str>) {
        let name = name.map(|name| ObjectName { name: name.to_owned(), ..self::name() });
        let _ = self.records.touched.send(name);
    }

    fn comes(&mut self, object: Observed) {
        self.comes_unheard(object);
        self.is_touched(Some("large"));
    }

    fn goes(&mut self, object: Observed) {
        self.writer.apply_watcher_event(&Event::Delete(object));
        self.is_touched(Some("large"));
    }

    async fn is_recorded(&self, given_up: u32) {
        self.decides(|save| save.known.given_up = given_up).await;
    }

    /// What a decision records.
    async fn decides(&self, change: impl FnOnce(&mut Save)) {
        let known = Known {
            phase: Phase::Running,
            new: true,
            started: None,
            completed: None,
            cut_short: None,
            given_up: 0,
            released: false,
            queue: None,
            conditions: Vec::new(),
        };
        let mut save = Save {
            uid: "large-uid".into(),
            name: name(),
            pool: None,
            known,
            jobs: Vec::new(),
            settled: None,
            absent: None,
            wishes: Vec::new(),
            schedd: ScheddName::from("schedd@test"),
            sandbox: String::new(),
            transitions: Vec::new(),
            inherited: [].into(),
            refuted: Vec::new(),
            gives_back: Indices::default(),
            now: Timestamp(7),
        };
        change(&mut save);
        self.records.ledger.save(save).await.unwrap();
    }

    async fn watch(&self, words: &str) -> Result<Watching, Failure> {
        let query = Query::parse(&format!("watch=1&{words}"), None).unwrap();
        Watching::begin(self.records.clone(), None, &query, query.watch.unwrap()).await
    }
}

/// Kinds and indexes.
fn frames(text: &str) -> Vec<(String, u64)> {
    let frame = |line: &str| {
        let frame: Value = serde_json::from_str(line).unwrap();
        (frame["type"].as_str().unwrap().to_owned(), frame["object"]["spec"]["index"].as_u64().unwrap())
    };
    text.lines().map(frame).collect()
}

/// All that one look finds, step by step.
async fn steps(watching: &mut Watching) -> Vec<Vec<(String, u64)>> {
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
async fn of_a_large_htcjob_a_part_is_told_at_a_step() {
    let mut world = World::new();
    // The second one keeps in mind which jobs are in its selection.
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
async fn only_what_has_changed_is_looked_at() {
    let mut world = World::new();
    world.comes_unheard(htcjob(2));
    let mut watching = world.watch("").await.unwrap();
    assert_eq!(steps(&mut watching).await.concat().len(), 2);
    let other = |name: &str| observed(name, HTCJobSpec::default());
    world.comes_unheard(other("a"));
    world.comes_unheard(other("b"));
    world.is_recorded(0).await;
    assert!(steps(&mut watching).await.is_empty(), "nobody has said that there is something to look at");
    world.is_touched(Some("a"));
    assert_eq!(steps(&mut watching).await.concat().len(), 1);
    world.is_touched(None);
    assert_eq!(steps(&mut watching).await.concat().len(), 1, "all are looked at, and `a` is known");
    world.comes_unheard(other("c"));
    for _ in 0..100 {
        world.is_touched(Some("a"));
    }
    assert_eq!(steps(&mut watching).await.concat().len(), 1, "who was told too much looks at all");
}

/// Of 3,500 jobs some were told of what has happened to them all, when the watch was cut.
async fn those_who_go_on_from(world: &World, version: &str, all: Vec<Vec<(String, u64)>>, kind: &str) {
    let refused = world.watch(&format!("resourceVersion={version}")).await.err().map(|failure| failure.code);
    assert_eq!(refused, Some(410), "the others would never be told");
    let all: Vec<(String, u64)> = all.concat();
    let expected: Vec<(String, u64)> = (0..JOBS).map(|index| (kind.to_owned(), index.into())).collect();
    assert!(all == expected, "{} of {JOBS}", all.len());
    assert!(world.watch(&format!("resourceVersion={}", world.records.ledger.sequence())).await.is_ok());
}

/// What is told first, and its version.
async fn first(watching: &mut Watching) -> (Vec<(String, u64)>, String) {
    let text = watching.step().await.unwrap();
    let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    (frames(&text), last["object"]["metadata"]["resourceVersion"].as_str().unwrap().to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_that_was_cut_while_it_told_of_jobs_that_were_given_up_is_not_gone_on_with() {
    let mut world = World::new();
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
async fn a_watch_that_was_cut_while_it_told_of_jobs_that_are_gone_is_not_gone_on_with() {
    for words in ["", "&fieldSelector=status.state%3DWaiting"] {
        let mut world = World::new();
        world.comes_unheard(htcjob(JOBS));
        world.is_recorded(0).await;
        let since = world.records.ledger.sequence();
        let mut watching = world.watch(&format!("resourceVersion={since}{words}")).await.unwrap();
        assert!(steps(&mut watching).await.is_empty());
        world.decides(|save| save.known.released = true).await;
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
        runs: Runs { host: Some(host.into()), ..Runs::default() },
    };
    (Index(index), job)
}

/// Between a list and the watch that goes on from it jobs have changed, some of them without leaving the selection or coming into it.
#[tokio::test(flavor = "multi_thread")]
async fn who_goes_on_is_told_what_a_change_is_for_the_selection() {
    let mut world = World::new();
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

/// The job has been held since, and runs again; it ends before anything is told.
#[tokio::test(flavor = "multi_thread")]
async fn what_leaves_the_selection_while_a_watch_begins_is_told() {
    let mut world = World::new();
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
async fn a_watch_that_was_cut_while_it_told_of_items_is_not_gone_on_with() {
    let mut world = World::new();
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

/// Between the moment when it is looked what changed as a whole and the one when jobs are looked at, those without a row were given up.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_given_up_while_a_watch_begins_is_not_gone_on_with() {
    let mut world = World::new();
    world.comes_unheard(htcjob(2));
    world.is_recorded(0).await;
    let since = world.records.ledger.sequence();
    let words = format!("resourceVersion={since}&fieldSelector=status.state%3DWaiting");
    let mut watching = world.watch(&words).await.unwrap();
    world.is_recorded(2).await;
    let walk = || {
        let parents = watching.htcjobs.parents().cloned().collect();
        Walk::through(watching.records.clone(), parents, watching.selection.at_any_time())
    };
    let (first, second) = (walk(), walk());
    assert_eq!(watching.remember(first).await.map_err(|failure| failure.code), Err(410));
    watching.told = world.records.ledger.sequence();
    assert_eq!(watching.remember(second).await, Ok(()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_before_an_htcjob_went_by_force_is_not_gone_on_with() {
    let mut world = World::new();
    let stays = observed("stays", HTCJobSpec::default());
    world.comes_unheard(stays.clone());
    world.comes_unheard(htcjob(2));
    world
        .decides(|save| (save.uid, save.name) = ("stays-uid".into(), ObjectName { name: "stays".to_owned(), ..name() }))
        .await;
    world.is_recorded(0).await;
    let since = format!("resourceVersion={}", world.records.ledger.sequence());
    let mut live = world.watch(&since).await.unwrap();
    // Its finalizer is removed: the ledger is told nothing.
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
async fn lists_of_one_user_are_read_one_step_at_a_time() {
    let mut world = World::new();
    world.comes(htcjob(5));
    let records = |user: &str| Records { steps: world.records.steps.of(user), ..world.records.clone() };
    let walk = async |user: &str| {
        let mut walk = Walk::new(records(user), None, Selection::default(), None).await.unwrap();
        tokio::time::timeout(Duration::from_millis(100), walk.next_of(5)).await.map(|part| part.unwrap().unwrap().len())
    };
    let anns = records("ann").steps.next().await;
    assert!(walk("ann").await.is_err(), "another step is read for this user");
    assert_eq!(walk("bob").await.unwrap(), 5);
    drop(anns);
    assert_eq!(walk("ann").await.unwrap(), 5);
}
