//! Lives of HTCJobs while the operator is killed and started, and their ends.

use std::cell::RefCell;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

use bed::site::Site;
use bed::{Namespace, PATIENCE};
use htc_support::failpoint::Point;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use strum::IntoStaticStr;
use testbed::{Account, Port, Version, wait_for};

#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum Story {
    /// Two HTCJobs at once, so that they share the calls, complete and are deleted.
    Completed,
    /// One is suspended while it runs, and resumed.
    Suspended,
    /// One is deleted while it runs.
    Deleted,
    /// The schedd refuses the jobs of one, and it is deleted.
    Refused,
    /// The operator is told to stop in the middle of a submission.
    Stopped,
    /// It deletes itself some time after its end.
    Expired,
    /// The Lease says that another ledger led last.
    Swapped,
    /// Two HTCJobs in a queue that has room for one job.
    Queued,
}

/// Lives of the operator: what happens, and where it dies, one place after another. Each point is in one of them, mostly
/// right after the one that comes before it, so that what was not done, or not written down, is repeated and dies again.
pub const LIVES: &[(Story, &[Point])] = {
    use Point::*;
    use Story::{Completed, Deleted, Expired, Queued, Refused, Stopped, Suspended, Swapped};
    &[
        // First, while the data folder is still empty.
        (Completed, &[BeforeLedgerMade, LedgerWithoutId, AfterLedgerMade]),
        (Completed, &[BeforeFinalizerAttached, AfterFinalizerAttached, BeforeStatusWritten, AfterStatusWritten]),
        (Completed, &[BeforeLeaseTaken, AfterLeaseTaken, BeforeLeaseRenewed, AfterLeaseRenewed]),
        (Completed, &[BeforeDecisionSaved, AfterDecisionSaved]),
        (Completed, &[BeforeSandboxWritten, AfterSandboxWritten, BeforeOutputFolders, AfterOutputFolders]),
        (Completed, &[BeforeSubmitIntents, AfterSubmitIntents]),
        (Completed, &[BeforeCondorSubmit, AfterCondorSubmit]),
        (Completed, &[CondorSubmitStarted, CondorSubmitFed]),
        (Completed, &[CondorSubmitFed, BeforeSubmitterGone, AfterSubmitterGone]),
        (Completed, &[BeforeSubmitResults]),
        (Completed, &[AfterSubmitResults]),
        (Completed, &[BeforeOtherIntents, AfterOtherIntents, BeforeCondorTransferData, AfterCondorTransferData]),
        (Completed, &[BeforeCondorQedit, AfterCondorQedit]),
        (Completed, &[BeforeOtherResults, AfterOtherResults]),
        (Completed, &[BeforeCallbackStored, AfterCallbackStored]),
        (Completed, &[BeforeEventWritten, AfterEventWritten, BeforeEventsMarked, AfterEventsMarked]),
        (Completed, &[BeforeFinalizerReleased, AfterFinalizerReleased]),
        (Deleted, &[BeforeOtherIntents, AfterOtherIntents, BeforeCondorRm, AfterCondorRm]),
        (Deleted, &[BeforeOtherResults, AfterOtherResults, BeforeFinalizerReleased, AfterFinalizerReleased]),
        (Suspended, &[BeforeCondorHold, AfterCondorHold, BeforeCondorRelease, AfterCondorRelease]),
        (Refused, &[AfterCondorSubmit, BeforeSubmitResults, AfterSubmitResults]),
        (Expired, &[BeforeObjectDeleted, AfterObjectDeleted]),
        (Stopped, &[BeforeNotRun]),
        (Stopped, &[AfterNotRun]),
        (Stopped, &[BeforeLeaseReleased]),
        (Stopped, &[AfterLeaseReleased]),
        (Swapped, &[BeforeLedgerAnew, AfterLedgerAnew]),
        (Queued, &[BeforeGrants, AfterGrants]),
    ]
};

/// A bed on which stories are played one after another.
pub struct Stage {
    site: Site,
    /// Where jobs report.
    _port: Port,
    namespace: String,
    /// Each HTCJob: its name, and its uid; how often each of its payloads must have run, where that is certain.
    played: RefCell<Vec<(String, String, Vec<usize>)>>,
}

impl Stage {
    pub fn new(version: Version) -> Self {
        let port = Port::reserve().unwrap();
        let url = format!("--callback-url=http://127.0.0.1:{}/cloudevents", port.number);
        let listen = format!("--callback-listen=127.0.0.1:{}", port.number);
        let site = Site::with(version, "", &[&url, &listen, "--queueing=embedded"]);
        let mut config = fs::OpenOptions::new().append(true).open(site.bed.pool.config()).unwrap();
        let closed = "SUBMIT_REQUIREMENT_NAMES = Wanted\nSUBMIT_REQUIREMENT_Wanted = RemoteJob =!= true\n\
                      SUBMIT_REQUIREMENT_Wanted_REASON = \"nobody wants this job\"";
        writeln!(config, "{closed}").unwrap();
        site.bed.pool.tool("condor_reconfig", &["-schedd"]).unwrap();
        let namespace = site.bed.namespace().name;
        Self { site, _port: port, namespace, played: RefCell::default() }
    }

    /// One where what the operator has not brought to the disk is lost whenever it dies.
    pub fn without_power(version: Version) -> Self {
        let mut stage = Self::new(version);
        stage.site.bed.keep_what_is_on_the_disk();
        stage
    }

    /// What all operators here have logged.
    pub fn logs(&self) -> String {
        self.site.bed.logs()
    }

    /// Plays a story with an operator that dies at `places`, one after another, of which it must come to the first `certain`.
    pub fn play(&self, story: Story, title: &str, places: &[String], certain: usize) {
        let here = Namespace { bed: &self.site.bed, name: self.namespace.clone() };
        if story == Story::Swapped {
            self.site.bed.kill_operator();
            let swap = ["annotate", "lease", "htc-operator", "htc.cern.ch/ledger=another", "--overwrite"];
            self.site.bed.kube.kubectl_ok(&[&["-n", "htc-operator"], &swap[..]].concat()).unwrap();
        }
        self.site.bed.dying_at(places, certain, || match story {
            Story::Completed | Story::Swapped => self.completed(&here, title),
            Story::Suspended => self.suspended(&here, title),
            Story::Deleted => self.deleted(&here, title),
            Story::Refused => self.refused(&here, title),
            Story::Expired => self.expired(&here, title),
            Story::Stopped => self.stopped(&here, title),
            Story::Queued => self.queued(&here, title),
        });
    }

    fn completed(&self, here: &Namespace<'_>, title: &str) {
        let (one, two) = (format!("{title}-1"), format!("{title}-2"));
        here.create_all(&[self.site.noted(&one, 1, ""), self.site.noted(&two, 2, "")]);
        for (name, jobs) in [(&one, 1), (&two, 2)] {
            self.site.assert_complete_once(here, name, jobs);
        }
        let uids = [&one, &two].map(|name| here.uid(name));
        here.kubectl(&["delete", "htcjob", &one, &two, "--wait=false"]);
        self.gone(here, &one, &uids[0], vec![1]);
        self.gone(here, &two, &uids[1], vec![1, 1]);
    }

    fn queued(&self, here: &Namespace<'_>, title: &str) {
        let queue = format!(
            r#"{{"apiVersion":"htc.cern.ch/v1alpha1","kind":"HTCQueue","metadata":{{"name":"{title}"}},
                "spec":{{"namespaceSelector":{{}},"quota":{{"jobs":1}}}}}}"#
        );
        self.site.bed.kube.apply_stdin(&queue).unwrap();
        let names = [1, 2].map(|number| format!("{title}-{number}"));
        for name in &names {
            let mut object = self.site.noted(name, 1, "");
            object["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = title.into();
            here.create(&object);
        }
        for name in &names {
            self.site.assert_complete_once(here, name, 1);
            let uid = here.uid(name);
            here.begin_delete(name);
            self.gone(here, name, &uid, vec![1]);
        }
    }

    fn suspended(&self, here: &Namespace<'_>, name: &str) {
        let uid = here.create(&self.site.lasting(name, 1));
        here.wait(name, "its job runs", |object| object["status"]["running"] == 1);
        wait_for("its payload", PATIENCE, || self.site.runs(name, 0) == 1).unwrap();
        here.suspend(name, true);
        here.wait(name, "its job is held", |object| object["status"]["held"] == 1);
        here.suspend(name, false);
        here.wait(name, "its job runs again", |object| object["status"]["running"] == 1);
        self.site.finish(name);
        let ended = here.wait_ended(name);
        assert_eq!(ended["status"]["succeeded"], 1, "{ended:#}");
        here.wait_nothing_left(&uid);
        let jobs = self.site.bed.assert_once(&uid, name, 1);
        // HTCondor begins a held job anew.
        assert_eq!((jobs[0].starts, self.site.runs(name, 0)), (2, 2), "{jobs:#?}");
        here.begin_delete(name);
        self.gone(here, name, &uid, vec![2]);
    }

    fn deleted(&self, here: &Namespace<'_>, name: &str) {
        let uid = here.create(&self.site.lasting(name, 2));
        here.wait(name, "both jobs run", |object| object["status"]["running"] == 2);
        wait_for("both payloads", PATIENCE, || (0..2).all(|index| self.site.runs(name, index) == 1)).unwrap();
        here.begin_delete(name);
        self.gone(here, name, &uid, vec![1, 1]);
    }

    fn refused(&self, here: &Namespace<'_>, name: &str) {
        let mut object = self.site.noted(name, 1, "");
        object["spec"]["htcopts"] = "+RemoteJob = true".into();
        let uid = here.create(&object);
        let message = here.wait_says(name, "Submitted", "False", "SubmitRefused");
        assert!(message.contains("nobody wants this job"), "{message}");
        assert_eq!(here.get(name)["status"]["phase"], "Pending");
        here.begin_delete(name);
        self.gone(here, name, &uid, vec![0]);
        let seen = self.site.bed.jobs_of(&uid);
        assert!(seen.is_empty(), "{seen:#?}");
    }

    fn expired(&self, here: &Namespace<'_>, name: &str) {
        let mut object = self.site.noted(name, 1, "");
        object["spec"]["ttlSecondsAfterFinished"] = 0.into();
        let uid = here.create(&object);
        self.gone(here, name, &uid, vec![1]);
    }

    /// The operator gives itself little time to stop, in which it may not come to its place: then once more.
    fn stopped(&self, here: &Namespace<'_>, title: &str) {
        let deaths = || self.site.bed.logs().matches("killed at").count();
        let before = deaths();
        let came = (1..=5).any(|turn| {
            self.stopped_once(here, &format!("{title}-{turn}"));
            deaths() > before
        });
        assert!(came, "it stopped five times, and never came to its place");
    }

    fn stopped_once(&self, here: &Namespace<'_>, name: &str) {
        self.site.gates.shut("condor_history");
        let uid = here.create(&self.site.noted(name, 1, ""));
        self.site.gates.wait_at("condor_history");
        let pipe = self.pipe_in_sandbox(&uid);
        self.site.gates.open("condor_history");
        // The submission has begun, and looks at what is in its way.
        let writer = wait_for("a reader", PATIENCE, || {
            fs::OpenOptions::new().write(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(&pipe)
        })
        .unwrap();
        let operator = Pid::from_raw(i32::try_from(self.site.bed.operator_pid()).unwrap()).unwrap();
        kill_process(operator, Signal::TERM).unwrap();
        wait_for("the operator to hear it", PATIENCE, || self.site.bed.log().contains("stopping limit_seconds"))
            .unwrap();
        drop(writer);
        self.site.assert_complete_once(here, name, 1);
        here.begin_delete(name);
        self.gone(here, name, &uid, vec![1]);
    }

    /// A named pipe where a file of the jobs will be written: it holds up a submission between its begin and its intents.
    fn pipe_in_sandbox(&self, uid: &str) -> PathBuf {
        let account = Account::unprivileged();
        let sandboxes = self.site.bed.data.join("sandbox");
        let sandbox = sandboxes.join(uid);
        for folder in [&sandboxes, &sandbox] {
            if !folder.exists() {
                account.make_dir(folder, 0o755).unwrap();
            }
        }
        let pipe = sandbox.join("job.sh");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        account.own(&pipe).unwrap();
        pipe
    }

    /// Waits until an object is gone; HTCondor has nothing of it then. What was seen of it is looked at once more at the end.
    fn gone(&self, here: &Namespace<'_>, name: &str, uid: &str, runs: Vec<usize>) {
        here.wait_gone(name);
        self.site.bed.assert_removed(uid, name);
        self.played.borrow_mut().push((name.to_owned(), uid.to_owned(), runs));
    }

    /// Nothing of all that was deleted has come back, and every row of the journal is an Event.
    pub fn assert_all_events_written_and_nothing_left(&self) {
        let here = Namespace { bed: &self.site.bed, name: self.namespace.clone() };
        self.site.assert_events_match_journal(&here);
        let left = self.site.bed.queue("true", &["HTCJobUID", "ClusterId", "JobStatus"]);
        assert!(left.is_empty(), "left in the queue: {left:?}");
        for (name, uid, runs) in self.played.borrow().iter() {
            self.site.bed.assert_removed(uid, name);
            let ids: Vec<String> = self.site.bed.jobs_of(uid).into_iter().map(|job| job.id).collect();
            self.site.bed.wait_spool_free(&ids);
            let ran: Vec<usize> = (0..).zip(runs).map(|(index, _)| self.site.runs(name, index)).collect();
            assert_eq!(&ran, runs, "{name}: how often each payload ran");
        }
        assert!(here.all().is_empty());
    }
}
