//! Logs of jobs to which something happens: held and released, removed, evicted, and read while the operator is busy or away.

use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use bed::gates::Gates;
use bed::{Bed, LONG_SUBMISSIONS, Namespace, PATIENCE, UNTIL_LET_GO, htcjob, is_true, of};
use testbed::{Version, wait_for};

use super::submit_and_retry::{command, htc};

on_versions! {
    trixie: log_is_followed_over_a_hold_and_a_release, log_is_followed_over_an_eviction;
    sid: log_is_followed_from_start_to_end, log_is_followed_until_its_job_is_removed;
    long: log_is_followed_while_the_operator_is_busy_or_down;
}

/// A call of `kubectl htc`, and what it has said so far to standard output and standard error.
struct Caller {
    child: Child,
    streams: [(Receiver<Vec<u8>>, Vec<u8>); 2],
}

impl Caller {
    fn begin(here: &Namespace<'_>, arguments: &[&str]) -> Self {
        let mut child = command(here, arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (out, err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        Self { child, streams: [(parts(out), Vec::new()), (parts(err), Vec::new())] }
    }

    /// What it has said by now.
    fn streams_so_far(&mut self) -> [String; 2] {
        self.streams.each_mut().map(|(parts, text)| {
            text.extend(parts.try_iter().flatten());
            String::from_utf8_lossy(text).into_owned()
        })
    }

    /// Waits until it has said this, and nothing more, to standard output.
    fn wait_stdout(&mut self, wanted: &str) {
        let shown = wait_for("what the job wrote", PATIENCE, || {
            let [out, err] = self.streams_so_far();
            if out == wanted { Ok(()) } else { Err(format!("{out:?} is not {wanted:?}: {err}")) }
        });
        shown.unwrap();
    }

    /// Waits until it has said this to standard error.
    fn wait_stderr(&mut self, wanted: &str) {
        wait_for(&format!("it to say {wanted:?}"), PATIENCE, || {
            let [out, err] = self.streams_so_far();
            if err.contains(wanted) { Ok(()) } else { Err(format!("{out}{err}")) }
        })
        .unwrap();
    }

    /// Its exit code, standard output and standard error.
    fn end(mut self) -> (i32, String, String) {
        let ended = wait_for("it to end", PATIENCE, || match self.child.try_wait().unwrap() {
            Some(status) => Ok(status),
            None => Err(self.streams_so_far().concat()),
        });
        let code = ended.unwrap().code().unwrap_or(-1);
        // The pipes are shut by now.
        let rest = self.streams.each_mut().map(|(parts, text)| {
            text.extend(parts.iter().flatten());
            String::from_utf8_lossy(text).into_owned()
        });
        let [out, err] = rest;
        (code, out, err)
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What is read, as it comes.
pub(super) fn parts(mut from: impl std::io::Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut part = [0; 4096];
        while let Ok(read @ 1..) = from.read(&mut part) {
            if sender.send(part[..read].to_vec()).is_err() {
                return;
            }
        }
    });
    receiver
}

/// The log of the only job of an HTCJob, once it ends so.
fn log(here: &Namespace<'_>, name: &str, end: &str) -> String {
    let path = format!("{}/{name}-0/log", here.procs());
    wait_for("a log", PATIENCE, || {
        let log = here.bed.raw(&path).map_err(|error| error.to_string())?;
        if log.ends_with(end) { Ok(log) } else { Err(log) }
    })
    .unwrap()
}

fn log_is_followed_from_start_to_end(version: Version) {
    let bed = Bed::shared(version);
    bed.front();
    let here = &bed.namespace();
    let mut object = htcjob("talks", &format!("echo one; {UNTIL_LET_GO}; echo two"));
    object["spec"]["suspend"] = true.into();
    here.create(&object);
    let followed = std::thread::scope(|scope| {
        let followed = scope.spawn(|| htc(here, &["logs", "talks", "-f"]));
        here.suspend("talks", false);
        here.let_go("talks");
        followed.join().unwrap()
    });
    assert_eq!((followed.0, followed.1.as_str()), (0, "one\ntwo\n"), "{}", followed.2);
}

/// HTCondor starts the job again. Each run writes its number, and the second writes more than the first: its log begins
/// with its first byte, and nothing of the first run is repeated.
fn log_is_followed_over_an_eviction(version: Version) {
    followed_into_the_next_run(version, |here, _| {
        here.bed.condor.ok("condor_vacate_job", &["-constraint", &of(&here.uid("fit"))]).unwrap();
    });
}

fn log_is_followed_over_a_hold_and_a_release(version: Version) {
    followed_into_the_next_run(version, |here, follower| {
        assert_eq!(htc(here, &["hold", "fit/0"]).0, 0);
        follower.wait_stderr("fit-0 is Held: waiting\n");
        assert_eq!(htc(here, &["release", "fit/0"]).0, 0);
    });
}

fn followed_into_the_next_run(version: Version, interrupt: impl FnOnce(&Namespace<'_>, &mut Caller)) {
    let bed = Bed::shared(version);
    bed.front();
    let here = &bed.namespace();
    here.create(&htcjob("fit", &format!("date +%s%N; seq 1 50; {UNTIL_LET_GO}; echo last")));
    here.wait_running("fit", 1);
    let first = log(here, "fit", "\n50\n");
    let mut follower = Caller::begin(here, &["logs", "fit", "-f"]);
    follower.wait_stdout(&first);
    interrupt(here, &mut follower);
    let second =
        wait_for("the second run's log", PATIENCE, || Some(log(here, "fit", "\n50\n")).filter(|log| *log != first));
    let second = second.unwrap();
    // The end of the run is what is followed: it comes after all that was written before it.
    here.let_go("fit");
    let (code, out, err) = follower.end();
    assert_eq!((code, out), (0, format!("{first}{second}last\n")), "{err}");
    assert_eq!(err.matches("fit-0 was started again\n").count(), 1, "{err}");
}

fn log_is_followed_until_its_job_is_removed(version: Version) {
    let bed = Bed::shared(version);
    bed.front();
    let here = &bed.namespace();
    here.create(&htcjob("fit", &format!("seq 1 50; {UNTIL_LET_GO}")));
    here.wait_running("fit", 1);
    let first = log(here, "fit", "\n50\n");
    let mut follower = Caller::begin(here, &["logs", "fit", "-f"]);
    follower.wait_stdout(&first);
    assert_eq!(htc(here, &["remove", "fit/0"]).0, 0);
    let (code, out, err) = follower.end();
    assert_eq!((code, out), (0, first), "{err}");
    assert!(err.ends_with("fit-0 is Removed: it has no log\n"), "{err}");
}

/// The job has ended, and its output comes in a moment, or does not come; and a log goes on although the operator is killed.
fn log_is_followed_while_the_operator_is_busy_or_down(version: Version) {
    let gates = Gates::new(version);
    let argument = gates.argument();
    let bed = Bed::with_jobs_api(version, &[LONG_SUBMISSIONS, &[argument.as_str()]].concat());
    bed.start_operator();
    bed.front();
    let here = &bed.namespace();
    followed_over_the_end_of_the_leader(here);

    gates.shut("condor_transfer_data");
    here.create(&htcjob("soon", "echo done"));
    wait_succeeded(here, "soon-0");
    let said = |name: &str| format!("{name}-0 has ended and its output has not arrived yet");
    let trying = |name: &str| format!("{}: trying again for 30 s\n", said(name));
    let mut caller = Caller::begin(here, &["logs", "soon/0"]);
    caller.wait_stderr(&trying("soon"));
    gates.open("condor_transfer_data");
    assert_eq!(caller.end(), (0, "done\n".to_owned(), trying("soon")));

    gates.shut("condor_transfer_data");
    here.create(&htcjob("late", "echo done"));
    wait_succeeded(here, "late-0");
    let began = Instant::now();
    let (code, out, err) = htc(here, &["logs", "late/0"]);
    assert_eq!((code, out.as_str()), (2, ""), "{err}");
    assert_eq!(err, format!("{}error: {}: try again\n", trying("late"), said("late")));
    assert!(began.elapsed().as_secs() >= 20, "{:?}", began.elapsed());
    gates.open("condor_transfer_data");
}

/// Its output is still to come.
fn wait_succeeded(here: &Namespace<'_>, job: &str) {
    wait_for("the job to have ended", PATIENCE, || {
        let found = here.proc(job);
        if found["status"]["state"] == "Succeeded" { Ok(()) } else { Err(found.to_string()) }
    })
    .unwrap();
}

fn followed_over_the_end_of_the_leader(here: &Namespace<'_>) {
    let bed = here.bed;
    let script = format!("seq 1 50; {UNTIL_LET_GO}; rm go; seq 51 100; {UNTIL_LET_GO}; echo last");
    let uid = here.create(&htcjob("fit", &script));
    here.wait_running("fit", 1);
    let first = log(here, "fit", "\n50\n");
    let mut follower = Caller::begin(here, &["logs", "fit", "-f"]);
    follower.wait_stdout(&first);
    bed.kill_operator();
    follower.wait_stderr("no htc-operator leads at the moment");
    bed.open_gate(&uid);
    bed.start_operator();
    let second = log(here, "fit", "\n100\n");
    follower.wait_stdout(&second);
    assert!(is_true(&here.let_go("fit"), "Complete"));
    let (code, out, err) = follower.end();
    assert_eq!((code, out), (0, format!("{second}last\n")), "{err}");
    assert!(!err.contains("was started again"), "{err}");
}
