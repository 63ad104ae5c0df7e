//! Logs of a job: while it runs, at its end, and afterwards.

use std::io::Read as _;
use std::process::{Child, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use bed::{Bed, Namespace, PATIENCE, UNTIL_LET_GO, files_below, htcjob, is_true, of};
use testbed::{Version, wait_for};

on_versions! {
    both: log_is_followed_until_the_job_ends, job_between_runs_has_no_log_and_says_why;
    trixie: analysis_says_why_a_job_is_idle, followed_log_ends_with_its_run;
    sid: file_archive_can_be_resumed;
    long: followed_log_outlasts_the_request_timeout, oversized_log_returns_the_requested_part_or_an_error;
}

/// The path of something of a job.
fn path(here: &Namespace<'_>, name: &str, what: &str) -> String {
    format!("{}/{name}/{what}", here.procs())
}

fn raw(here: &Namespace<'_>, name: &str, what: &str) -> Result<String, kube::Error> {
    here.bed.raw(&path(here, name, what))
}

/// What `seq` prints.
fn numbers(last: u32) -> String {
    (1..=last).fold(String::new(), |text, number| text + &number.to_string() + "\n")
}

/// A log that is followed: its first byte, and then all of it; and whose it is.
struct Follower(Child, mpsc::Receiver<String>, String);

impl Follower {
    fn begin(here: &Namespace<'_>, name: &str, what: &str) -> Self {
        let mut kubectl = here.bed.kube.kubectl(&["get", "--raw", &path(here, name, what)]);
        let mut child = kubectl.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (mut out, mut err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            let mut first = [0];
            let read = out.read_exact(&mut first).map(|()| first[0].into());
            let mut text = read.map_or_else(|_| String::new(), |first: char| first.to_string());
            let _ = sender.send(text.clone());
            let _ = out.read_to_string(&mut text);
            let _ = err.read_to_string(&mut text);
            let _ = sender.send(text);
        });
        Self(child, receiver, name.to_owned())
    }

    /// Waits until something has come.
    fn wait_begun(&self) {
        let first = self.1.recv_timeout(PATIENCE).expect("the log begins");
        assert!(!first.is_empty(), "there is no log: {:?}", self.1.recv_timeout(PATIENCE));
    }

    /// All of it, once it has ended.
    fn end(self, here: &Namespace<'_>) -> String {
        // The first byte may be still to come.
        let texts = || self.1.recv_timeout(PATIENCE);
        std::iter::from_fn(|| texts().ok()).last().unwrap_or_else(|| {
            let proc = here.try_kubectl(&["get", "htcproc", &self.2, "-o", "yaml"]);
            let job = of(&here.uid(self.2.rsplit_once('-').unwrap().0));
            let ads = here.bed.condor.ok("condor_q", &["-constraint", &job, "-long"]);
            panic!("the log of {} does not end: {proc:#?} {ads:#?}", self.2)
        })
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn log_is_followed_until_the_job_ends(version: Version) {
    let bed = Bed::shared(version);
    bed.front();
    let here = bed.namespace();
    let script = format!("echo first; echo trouble >&2; {UNTIL_LET_GO}; seq 1 20000; echo last");
    here.create(&htcjob("talks", &script));
    here.wait_running("talks", 1);
    let shown = wait_for("what it wrote first", PATIENCE, || {
        raw(&here, "talks-0", "log").ok().filter(|text| text == "first\n")
    });
    shown.unwrap();
    assert_eq!(raw(&here, "talks-0", "log?stream=err").unwrap(), "trouble\n");
    let (all, rest) = (
        Follower::begin(&here, "talks-0", "log?follow=true"),
        Follower::begin(&here, "talks-0", "log?follow=true&offset=6"),
    );
    let last = Follower::begin(&here, "talks-0", "log?follow=true&tailLines=1");
    let ended = here.let_go("talks");
    assert!(is_true(&ended, "Complete"), "{ended:#}");
    let numbers = numbers(20_000);
    let (all, rest, last) = (all.end(&here), rest.end(&here), last.end(&here));
    assert!(all == format!("first\n{numbers}last\n"), "{} bytes: {:.200}", all.len(), all);
    assert!(rest == format!("{numbers}last\n"), "{} bytes: {:.200}", rest.len(), rest);
    // From where the job was when it was first asked for.
    assert!(last.ends_with("last\n") && all.ends_with(&last), "{} bytes: {:.200}", last.len(), last);
    // And afterwards, from the volume.
    assert_eq!(raw(&here, "talks-0", "log").unwrap(), all);
    assert_eq!(raw(&here, "talks-0", "log?tailLines=2").unwrap(), "20000\nlast\n");
    assert_eq!(raw(&here, "talks-0", "log?limitBytes=3").unwrap(), "fir");
    assert_eq!(raw(&here, "talks-0", "log?stream=err&follow=true").unwrap(), "trouble\n");
    let refused = raw(&here, "talks-0", "log?lines=2").unwrap_err().to_string();
    assert!(refused.contains("the parameter \"lines\" is not known"), "{refused}");
}

/// A log is that of one run, and ends with it, whatever ends the run; the next run has another log.
fn followed_log_ends_with_its_run(version: Version) {
    let bed = Bed::shared(version);
    bed.front();
    let here = bed.namespace();
    let follow = |name: &str| {
        let job = format!("{name}-0");
        let has = |text: &String| text == "first\n";
        wait_for("its log", PATIENCE, || raw(&here, &job, "log").ok().filter(has)).unwrap();
        let follower = Follower::begin(&here, &job, "log?follow=true");
        follower.wait_begun();
        follower
    };
    let names = ["held", "again", "removed"];
    for name in names {
        here.create(&htcjob(name, &format!("echo first; {UNTIL_LET_GO}; echo last")));
    }
    let logs = names.map(|name| {
        here.wait_running(name, 1);
        follow(name)
    });
    let tools = ["condor_hold", "condor_vacate_job", "condor_rm"];
    for (name, tool) in names.into_iter().zip(tools) {
        bed.condor.ok(tool, &["-constraint", &of(&here.uid(name))]).unwrap();
    }
    for (name, log) in names.into_iter().zip(logs) {
        assert_eq!(log.end(&here), "first\n", "{name}");
    }
    let held = wait_for("why there is no log", PATIENCE, || match raw(&here, "held-0", "log") {
        Err(refused) if refused.to_string().contains("held-0 is Held") => Ok(refused.to_string()),
        other => Err(format!("{other:?}")),
    });
    let held = held.unwrap();
    assert!(held.contains("cannot be read") && held.contains("Release the job"), "{held}");
    let log = follow("again");
    here.let_go("again");
    assert_eq!(log.end(&here), "first\nlast\n");
}

/// The last run of each job is over, and the job has not ended. HTCondor keeps no output of a run that it interrupted,
/// and all of a run that ended by itself.
fn job_between_runs_has_no_log_and_says_why(version: Version) {
    let bed = Bed::shared(version);
    bed.front();
    let here = bed.namespace();
    let script = format!("echo first; echo trouble >&2; echo part >part; {UNTIL_LET_GO}; exit 3");
    // Each with the state in which it is left.
    let jobs = [("held", "Held"), ("vacated", "Idle"), ("kept", "Held"), ("retried", "Idle"), ("new", "Held")];
    let mut ids = Vec::new();
    for (name, _) in jobs {
        let mut object = htcjob(name, &script);
        match name {
            "kept" => object["spec"]["htcopts"] = "on_exit_hold = true".into(),
            "retried" => object["spec"]["maxRetries"] = 5.into(),
            "new" => object["spec"]["requirements"] = "TARGET.NobodyHasThis == 7".into(),
            _ => {}
        }
        here.create(&object);
    }
    for (name, _) in jobs {
        let object = if name == "new" { here.wait_phase(name, "Submitted") } else { here.wait_running(name, 1) };
        ids.push(bed::ids(&object).remove(0));
    }
    for ((name, state), id) in jobs.into_iter().zip(&ids) {
        let folders = wait_for("what it writes", PATIENCE, || {
            let folders = bed.payload_folders(&here.uid(name));
            let has = folders.iter().any(|folder| folder.join("part").exists());
            (has || name == "new").then_some(folders)
        });
        folders.unwrap();
        if state == "Idle" {
            // It would start again at once.
            bed.condor.ok("condor_qedit", &[id, "Requirements", "false"]).unwrap();
        }
        match name {
            "held" | "new" => drop(bed.condor.ok("condor_hold", &[id]).unwrap()),
            "vacated" => drop(bed.condor.ok("condor_vacate_job", &[id]).unwrap()),
            _ => bed.open_gate(&here.uid(name)),
        }
    }
    let mut wrong = Vec::new();
    for ((name, state), id) in jobs.into_iter().zip(&ids) {
        super::states::wait_state(&here, &format!("{name}-0"), state);
        let files: Vec<_> = bed.spooled(id).iter().flat_map(|folder| files_below(folder, &|_| true)).collect();
        let kept = ["out", "err", "part"].map(|what| {
            let file = files.iter().find(|path| path.file_name().is_some_and(|name| name == what))?;
            Some(std::fs::read_to_string(file).unwrap())
        });
        let all = ["first\n", "trouble\n", "part\n"].map(|text| Some(text.to_owned()));
        let expected = if ["kept", "retried"].contains(&name) { all } else { [None, None, None] };
        let why = raw(&here, &format!("{name}-0"), "log").unwrap_err().to_string();
        let unreadable = "what its last run has written cannot be read";
        let (message, what_to_do) = match (name, state) {
            ("new", _) => (", because it was not started yet".to_owned(), "Release it"),
            (_, "Held") => (format!(", and {unreadable}"), "Release the job"),
            _ => (format!(" until it runs again, and {unreadable}"), "Read what its next run writes"),
        };
        let message = format!("{name}-0 is {state}: it has no log{message}");
        // Who follows a log waits after a 400.
        let reported = why.contains("code: 400") && why.contains(&message) && why.contains(what_to_do);
        if kept != expected || !reported {
            wrong.push(format!("{name}: {kept:?} of {files:?}; {why}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    here.begin_delete_all();
}

/// The API server ends a request after 60 s (`--request-timeout`), but not that of a log.
fn followed_log_outlasts_the_request_timeout(version: Version) {
    let bed = Bed::shared(version);
    bed.front();
    let here = bed.namespace();
    here.create(&htcjob("slow", &format!("for number in $(seq 1 70); do echo $number; sleep 1; done; {UNTIL_LET_GO}")));
    let began = Instant::now();
    let follower =
        wait_for("its log", PATIENCE, || raw(&here, "slow-0", "log").ok().filter(|text| text.starts_with("1\n")))
            .map(|_| Follower::begin(&here, "slow-0", "log?follow=true"))
            .unwrap();
    wait_for("what it writes last", PATIENCE * 2, || {
        raw(&here, "slow-0", "log?tailLines=1").ok().filter(|text| text == "70\n")
    })
    .unwrap();
    assert!(began.elapsed() > Duration::from_mins(1));
    here.let_go("slow");
    assert_eq!(follower.end(&here), numbers(70));
}

fn file_archive_can_be_resumed(version: Version) {
    let bed = Bed::shared(version);
    bed.front();
    let here = bed.namespace();
    let script = "mkdir -p results/deep; seq 1 50000 >results/deep/numbers; echo plain >plain; echo done";
    here.create(&htcjob("makes", script));
    here.wait_ended("makes");
    here.wait_output("makes");
    let folder = bed.scratch().dir(&here.name).unwrap();
    let fetch = |what: &str| {
        let output = bed.kube.kubectl(&["get", "--raw", &path(&here, "makes-0", what)]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    let whole = fetch("files");
    let mut joined = whole[..70_000].to_vec();
    joined.extend(fetch("files?offset=70000"));
    assert!(joined == whole, "it goes on where it was");
    std::fs::write(folder.join("makes.tar"), &whole).unwrap();
    let unpacked =
        std::process::Command::new("tar").arg("-xf").arg(folder.join("makes.tar")).arg("-C").arg(&folder).status();
    assert!(unpacked.unwrap().success());
    let numbers = numbers(50_000);
    assert!(std::fs::read_to_string(folder.join("results/deep/numbers")).unwrap() == numbers);
    assert_eq!(std::fs::read_to_string(folder.join("out")).unwrap(), "done\n");
    let changed = raw(&here, "makes-0", "files?offset=5&etag=00").unwrap_err().to_string();
    assert!(changed.contains("begin again"), "{changed}");
}

/// HTCondor sends all output of a running job or its end: the answer is the requested part, or an error.
fn oversized_log_returns_the_requested_part_or_an_error(version: Version) {
    let bed = Bed::shared(version);
    bed.front();
    let here = bed.namespace();
    // A hole of 300 MB takes no room.
    let script = "printf first; truncate -s 200000000 /dev/stdout; printf marked >>/dev/stdout; \
                  truncate -s 300000000 /dev/stdout; echo last >>/dev/stdout";
    here.create(&htcjob("vast", &format!("{script}; {UNTIL_LET_GO}")));
    here.wait_running("vast", 1);
    let part = |what: &str| raw(&here, "vast-0", what);
    wait_for("the last line", PATIENCE, || {
        let last = part("log?tailLines=1").map_err(|error| error.to_string())?;
        if last.trim_matches('\0') == "last\n" { Ok(()) } else { Err(format!("{} bytes", last.len())) }
    })
    .unwrap();
    assert_eq!(part("log?limitBytes=5").unwrap(), "first");
    assert_eq!(part("log?offset=200000000&limitBytes=6").unwrap(), "marked");
    // Some of it came: it must not look like the end.
    assert!(part("log?offset=268000000").is_err());
    for what in ["log?offset=290000000", "log?tailLines=1&follow=true"] {
        let why = part(what).unwrap_err().to_string();
        assert!(why.contains("no more than 268435456 bytes"), "{what}: {why}");
    }
    here.delete("vast");
}

fn analysis_says_why_a_job_is_idle(version: Version) {
    let bed = Bed::shared(version);
    bed.front();
    let here = bed.namespace();
    let mut object = htcjob("large", "true");
    object["spec"]["requirements"] = "TARGET.NobodyHasThis == 7".into();
    here.create(&object);
    here.wait_phase("large", "Submitted");
    // HTCondor's tools may not answer in time beside other tests. Then the request may be made again, and nothing else is wrong.
    let analysis = wait_for("an answer of HTCondor's tools", PATIENCE, || match raw(&here, "large-0", "analysis") {
        Err(kube::Error::Api(late)) if late.code == 503 => Err(late.message),
        answer => Ok(answer),
    });
    let analysis = analysis.unwrap().unwrap();
    assert!(analysis.contains("NobodyHasThis"), "{analysis}");
    let log = raw(&here, "large-0", "log").unwrap_err().to_string();
    assert!(log.contains("large-0 is Idle: it has no log"), "{log}");
    here.delete("large");
    let gone = raw(&here, "large-0", "log").unwrap_err().to_string();
    assert!(gone.contains("NotFound") || gone.contains("not found"), "{gone}");
}
