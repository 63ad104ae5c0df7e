//! Jobs one by one: which, what they wrote, their files.

use bed::{Bed, UNTIL_LET_GO, htcjob, is_true};
use testbed::Version;

use super::users::htc;

pub fn three_of_many_fail(version: Version) {
    let bed = Bed::shared(version);
    bed.front();
    let here = &bed.namespace();
    let script =
        "case $1 in 3) echo broken >&2; exit 7;; 17) exit 1;; 200) kill -9 $$;; esac; mkdir d; echo $1 >d/number";
    let mut object = htcjob("many", script);
    object["spec"]["queue"] = 210.into();
    here.create(&object);
    let ended = here.wait_ended("many");
    assert!(is_true(&ended, "Failed"), "{ended:#}");
    here.wait_output("many");

    let (code, table, _) = htc(here, &["jobs", "many", "--failed"]);
    let names: Vec<&str> = table.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!((code, names), (0, vec!["many-3", "many-17", "many-200"]), "{table}");
    let (_, names, _) = htc(here, &["jobs", "many", "--state=Succeeded", "-o", "name"]);
    assert_eq!(names.lines().count(), 207, "{names}");
    let (code, log, _) = htc(here, &["logs", "many/3", "--err"]);
    assert_eq!((code, log.as_str()), (0, "broken\n"));
    let (code, logs, _) = htc(here, &["logs", "many", "--failed", "--err"]);
    assert!(code == 0 && logs.starts_with("==> many/3 <==\nbroken\n==> many/17 <==\n"), "{logs}");
    let (code, _, error) = htc(here, &["logs", "many"]);
    assert!(code == 2 && error.contains("HTCJob many has 210 jobs: name one of them, such as many/0"), "{error}");
    let (code, page, _) = htc(here, &["why", "many/3"]);
    assert!(code == 0 && page.starts_with("many-3 is Failed") && page.contains("  broken\n"), "{page}");
    assert!(page.contains("kubectl htc retry many --indexes 3"), "{page}");

    let folder = bed.scratch().dir(&format!("{}-files", here.name)).unwrap();
    let path = folder.to_str().unwrap();
    let (code, told, error) = htc(here, &["files", "many", path]);
    assert_eq!((code, told.as_str()), (0, format!("output of 210 of 210 jobs is in {path}\n").as_str()), "{error}");
    for index in [0, 17, 209] {
        let number = std::fs::read_to_string(folder.join(format!("{index}/d/number")));
        assert_eq!(number.ok(), (index != 17).then(|| format!("{index}\n")), "{index}");
    }
    // Nothing is replaced unasked.
    std::fs::write(folder.join("5/d/number"), "mine").unwrap();
    let (code, _, error) = htc(here, &["files", "many", path]);
    assert!(code == 0 && error.contains("skipped"), "{error}");
    assert_eq!(std::fs::read_to_string(folder.join("5/d/number")).unwrap(), "mine");
    let (code, _, error) = htc(here, &["files", "many/5", folder.join("5").to_str().unwrap()]);
    assert!(code == 2 && error.contains("exists"), "{error}");
    let (code, _, error) = htc(here, &["files", "many/5", folder.join("5").to_str().unwrap(), "--overwrite"]);
    assert_eq!((code, error.as_str()), (0, ""));
    assert_eq!(std::fs::read_to_string(folder.join("5/d/number")).unwrap(), "5\n");

    let (code, _, error) = htc(here, &["jobs", "nosuch"]);
    assert!(code == 2 && error.contains("not found"), "{error}");
    let (code, _, error) = htc(here, &["logs", "many/999"]);
    assert_eq!((code, error.as_str()), (2, "error: HTCJob many has no job 999\n"));
    let (code, _, error) = htc(here, &["jobs", "many", "--as=somebody"]);
    assert!(code == 2 && error.contains("somebody") && error.contains("forbidden"), "{error}");
}

pub fn a_log_is_followed(version: Version) {
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
