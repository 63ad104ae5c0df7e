//! Calls that fetch files are cut off in the middle, and repeated.

use std::fs;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::process::Stdio;

use bed::{Bed, Namespace, htcjob};
use testbed::Version;

use super::users::{command, htc};

/// So many that unpacking them takes a while.
const MANY: usize = 6000;
/// Bytes that take a while to come.
const LARGE: u64 = 150_000_000;

fn entries(folder: &Path) -> usize {
    fs::read_dir(folder).map_or(0, Iterator::count)
}

/// Runs it until `far` is true, and kills it there.
fn cut(here: &Namespace<'_>, arguments: &[&str], far: impl Fn() -> bool) {
    let mut child = command(here, arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    while !far() {
        assert_eq!(child.try_wait().unwrap(), None, "it has ended, which is too early");
    }
    child.kill().unwrap();
    assert!(!child.wait().unwrap().success(), "it was over before it was killed");
}

pub fn a_call_that_is_cut_off_is_gone_on_with(version: Version) {
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
    let (code, told, error) = htc(here, &["files", "cut", path]);
    assert_eq!((code, told), (0, format!("output of 2 of 2 jobs is in {path}\n")), "{error}");
    assert!(error.contains("/0: there is something already; skipped"), "{error}");
    let data = fs::read(folder.join("1/data")).unwrap();
    assert_eq!(data.len() as u64, LARGE);
    assert_eq!(data.iter().filter(|byte| **byte != 0).count(), 4);
    assert_eq!(entries(&folder), 2, "nothing else is left");

    // Of one job, into a folder in which there is something already.
    let own = bed.scratch().dir(&format!("{}-one", here.name)).unwrap();
    fs::write(own.join("notes"), "mine").unwrap();
    let one = own.to_str().unwrap();
    cut(here, &["files", "cut/0", one], || entries(&own.join(".cut-0.part/unpacking/d")) > 10);
    let (code, told, error) = htc(here, &["files", "cut/0", one]);
    assert_eq!((code, error.as_str()), (0, ""), "{told}");
    assert_eq!((entries(&own.join("d")), entries(&own)), (MANY, 4), "d, err, out and notes");
}
