//! Several `HTCJob`s of one name never mix.

use std::path::Path;

use rstest::rstest;
use testbed::Version::{self, Sid, Trixie};
use testbed::wait_for;

use crate::lifecycle::{UNTIL_LET_GO, counts, ids, in_history, of, read};
use bed::{Bed, PATIENCE, htcjob, is_true};

#[rstest]
#[case::trixie(Trixie)]
#[ignore = "HTCondor's version makes no difference: make test-long"]
#[case::sid(Sid)]
fn htcjobs_of_one_name_in_two_namespaces_are_separate(#[case] version: Version) {
    let bed = Bed::shared(version);
    let (one, two) = (bed.namespace(), bed.namespace());
    let mut second = htcjob("same", "echo two; exit 3");
    second["spec"]["queue"] = 2.into();
    let uids = [one.create(&htcjob("same", "echo one")), two.create(&second)];
    let ended = [one.wait_ended("same"), two.wait_ended("same")];
    assert_eq!(ended.each_ref().map(counts), [[0, 1, 0], [0, 0, 2]]);
    assert!(is_true(&ended[0], "Complete") && is_true(&ended[1], "Failed"));
    assert!(ids(&ended[0]).iter().all(|id| !ids(&ended[1]).contains(id)));
    assert_eq!(read(&one, "same", 0, "out"), "one\n");
    assert!(!one.output("same", 1).exists());
    assert_eq!([0, 1].map(|index| read(&two, "same", index, "out")), ["two\n", "two\n"]);
    for (uid, jobs) in uids.iter().zip([1, 2]) {
        bed.wait_ledger(
            &format!("select count(*) from htcjobs where htcjobName = 'same' and uid = '{uid}'"),
            &[&[&jobs.to_string()]],
        );
    }
}

#[rstest]
#[case::sid(Sid)]
#[ignore = "HTCondor's version makes no difference: make test-long"]
#[case::trixie(Trixie)]
fn recreated_htcjob_shares_nothing_with_its_predecessor(#[case] version: Version) {
    let bed = Bed::shared(version);
    let here = bed.namespace();
    let mut first = htcjob("again", &format!("echo first; [ $1 = 0 ] || {{ {UNTIL_LET_GO}; }}"));
    first["spec"]["queue"] = 2.into();
    let old = here.create(&first);
    here.wait("again", "the first job's end", |object| counts(object) == [1, 1, 0]);
    let fetched = here.output("again", 0).join("out");
    wait_for("the first job's output", PATIENCE, || fetched.exists()).unwrap();
    let old_folder = here.output("again", 0).parent().unwrap().canonicalize().unwrap();
    // Its second job still runs: HTCondor is told to remove it, and the object goes when it is gone.
    here.delete("again");
    let new = here.create(&htcjob("again", "echo second"));
    assert_ne!(old, new);
    let ended = here.wait_ended("again");
    assert!(is_true(&ended, "Complete"), "{ended:#}");
    assert_eq!(counts(&ended), [0, 1, 0]);
    assert_eq!(ids(&ended).len(), 1);

    let latest = here.output("again", 0).parent().unwrap().to_owned();
    assert_eq!(std::fs::read_link(&latest).unwrap(), Path::new(&new[..8]));
    assert_eq!(read(&here, "again", 0, "out"), "second\n");
    assert_ne!(latest.canonicalize().unwrap(), old_folder);
    assert_eq!(std::fs::read_to_string(old_folder.join("0/out")).unwrap(), "first\n");
    assert!(old_folder.ends_with(&old[..8]));
    here.wait_nothing_left(&new);
    assert!(bed.queue(&of(&old), &["ClusterId"]).is_empty());
    let removed = format!("{} && HTCJobIndex == 1", of(&old));
    assert_eq!(in_history(bed, &removed, &["JobStatus"]), ["3"]);
    assert_eq!(in_history(bed, &of(&new), &["JobStatus", "ExitCode"]), ["4", "0"]);
}
