//! Calls that fetch files are cut off in the middle, and repeated.

use std::fs;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use bed::{Bed, LONG_SUBMISSIONS, Namespace, PATIENCE, htcjob};
use rustix::process::{Pid, Signal, kill_process};
use testbed::{KubeOptions, Version, wait_for};

use super::submit_and_retry::{command, htc};

on_versions! {
    long: download_cut_off_by_the_api_server_is_resumed, interrupted_download_is_resumed;
}

/// So many that unpacking them takes a while.
const MANY: usize = 6000;
/// Bytes that take a while to come.
const LARGE: u64 = 80_000_000;
/// Between two looks at how far it is: a hundredth of what it takes, or less.
const BRIEF: Duration = Duration::from_millis(2);

fn entries(folder: &Path) -> usize {
    fs::read_dir(folder).map_or(0, Iterator::count)
}

/// Runs it until `far` is true, and kills it there.
fn cut(here: &Namespace<'_>, arguments: &[&str], far: impl Fn() -> bool) {
    let mut child = command(here, arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    while !far() {
        assert_eq!(child.try_wait().unwrap(), None, "it has ended, which is too early");
        thread::sleep(BRIEF);
    }
    child.kill().unwrap();
    assert!(!child.wait().unwrap().success(), "it was over before it was killed");
}

fn interrupted_download_is_resumed(version: Version) {
    let bed = Bed::shared(version);
    bed.front();
    let here = &bed.namespace();
    let script = format!(
        "case $1 in 0) mkdir d; for n in $(seq {MANY}); do echo $n >d/$n; done;; *) head -c {LARGE} /dev/zero >data;; esac"
    );
    let mut object = htcjob("cut", &script);
    object["spec"]["queue"] = 2.into();
    here.create(&object);
    here.wait_ended("cut");
    here.wait_output("cut");
    let folder = bed.scratch().dir(&format!("{}-files", here.name)).unwrap();
    let path = folder.to_str().unwrap();

    // While it unpacks the files of one of several jobs.
    let (parcel, first) = (folder.join(".cut-0.part"), folder.join("0"));
    cut(here, &["files", "cut", path], || entries(&parcel.join("unpacking/d")) > 10);
    assert!(!first.exists(), "half of the files must not look like all of them");
    // While it fetches those of the next; the first are all there by then.
    let archive = folder.join(".cut-1.part/archive.tar");
    cut(here, &["files", "cut", path], || fs::metadata(&archive).is_ok_and(|file| file.len() > 1_000_000));
    assert_eq!(entries(&first.join("d")), MANY);
    assert!(!parcel.exists());
    let fetched = fs::metadata(&archive).unwrap().len();
    assert!(fetched < LARGE, "{fetched} bytes have come: all");
    // What has come is not fetched once more, or this would be gone.
    let mut file = fs::OpenOptions::new().write(true).open(&archive).unwrap();
    file.seek(SeekFrom::Start(5000)).unwrap();
    file.write_all(b"mark").unwrap();
    let (code, stdout, error) = htc(here, &["files", "cut", path]);
    assert_eq!((code, stdout), (0, format!("output of 2 of 2 jobs is in {path}\n")), "{error}");
    assert!(error.contains("/0: there is something already; skipped"), "{error}");
    let data = fs::read(folder.join("1/data")).unwrap();
    assert_eq!(data.len() as u64, LARGE);
    // Compared as a whole: byte by byte it takes seconds without optimization.
    let written = data.chunks(512).filter(|part| **part != [0; 512][..part.len()]).flatten();
    assert_eq!(written.filter(|byte| **byte != 0).count(), 4);
    assert_eq!(entries(&folder), 2, "nothing else is left");

    // Of one job, into a folder in which there is something already.
    let own = bed.scratch().dir(&format!("{}-one", here.name)).unwrap();
    fs::write(own.join("notes"), "mine").unwrap();
    let one = own.to_str().unwrap();
    cut(here, &["files", "cut/0", one], || entries(&own.join(".cut-0.part/unpacking/d")) > 10);
    let (code, stdout, error) = htc(here, &["files", "cut/0", one]);
    assert_eq!((code, error.as_str()), (0, ""), "{stdout}");
    assert_eq!((entries(&own.join("d")), entries(&own)), (MANY, 4), "d, err, out and notes");
}

/// Whether the API server has cut off an archive because of its time limit.
fn cut_off(bed: &Bed) -> Result<(), String> {
    let metrics = bed.raw("/metrics").map_err(|error| error.to_string())?;
    let ended: Vec<&str> =
        metrics.lines().filter(|line| line.starts_with("apiserver_request_terminations_total{")).collect();
    let of_files = [r#"code="504""#, r#"resource="htcprocs""#, r#"subresource="files""#];
    let is_one = |line: &&str| of_files.iter().all(|label| line.contains(label));
    if ended.iter().any(is_one) { Ok(()) } else { Err(ended.join("\n")) }
}

/// The API server ends each answer after a minute, and this one after some seconds.
fn download_cut_off_by_the_api_server_is_resumed(version: Version) {
    let limit = 10;
    let kube = KubeOptions { request_timeout: limit, ..KubeOptions::default() };
    let bed = Bed::with_jobs_api_alone(version, &kube, LONG_SUBMISSIONS);
    bed.start_operator();
    bed.front();
    let here = &bed.namespace();
    here.create(&htcjob("large", &format!("head -c {LARGE} /dev/zero >data")));
    here.wait_ended("large");
    here.wait_output("large");
    let folder = bed.scratch().dir(&format!("{}-large", here.name)).unwrap();
    let path = folder.to_str().unwrap();
    let mut caller =
        command(here, &["files", "large/0", path]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let archive = folder.join(".large-0.part/archive.tar");
    let come = || fs::metadata(&archive).map_or(0, |file| file.len());
    while come() < 1_000_000 {
        assert_eq!(caller.try_wait().unwrap(), None, "it has ended, which is too early");
        thread::sleep(BRIEF);
    }
    let began = Instant::now();
    // It reads no further, so that the rest cannot come in time. The API server looks at the time when it can write again.
    let pid = Pid::from_raw(caller.id().try_into().unwrap()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    let before = come();
    let over = wait_for("its time to be over", PATIENCE, || began.elapsed() > Duration::from_secs(limit.into()));
    kill_process(pid, Signal::CONT).unwrap();
    over.unwrap();
    assert!(before < LARGE, "all has come: {before} bytes");
    let ended = caller.wait_with_output().unwrap();
    assert!(ended.status.success(), "{ended:?}");
    wait_for("the API server to say that it has cut it off", PATIENCE, || cut_off(&bed)).unwrap();
    let data = fs::read(folder.join("data")).unwrap();
    assert!(data.len() as u64 == LARGE && data.iter().all(|byte| *byte == 0), "{} bytes", data.len());
}
