//! Fetches that fail, and the others.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use testbed::{Version, wait_for};

use bed::PATIENCE;
use bed::site::{Site, says};

const OTHERS: [&str; 3] = ["one", "two", "three"];
/// They end together with the one that hangs.
const COMPANIONS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

/// The transfer of one HTCJob hangs, with others and then alone; the output folder of another cannot be written: those that it
/// hung with get theirs when it is tried alone, and three more at once.
pub fn one_that_fails_holds_up_no_other(version: Version) {
    let site = Site::with(version, "", &["--transfer-limit-together=5s"]);
    site.bed.start_operator();
    let here = site.bed.namespace();
    let all = [&["stuck", "unwritable"], &OTHERS[..], &COMPANIONS].concat();
    site.start_lasting(&here, &all);
    let place = site.bed.pool.scratch().dir("transfers").unwrap();
    testbed::Account::unprivileged().write(&place.join("hang"), "", 0o644).unwrap();
    let (at, uid) = (place.display(), here.uid("stuck"));
    site.gates.replace(
        "condor_transfer_data",
        &format!(
            "case \"$*\" in *{uid}*)\n\
                 echo $$ >>{at}/hanging\n\
                 while [ -e {at}/hang ]; do sleep 0.1; done;;\n\
             esac\nreal=$1; shift; exec $real \"$@\"\n"
        ),
    );
    let folder = here.output("unwritable", 0);
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o555)).unwrap();

    for name in ["stuck"].into_iter().chain(COMPANIONS) {
        site.finish(name);
    }
    let message = here.wait_says("stuck", "OutputFetched", "False", "ScheddUnreachable");
    assert!(message.contains("condor_transfer_data"), "{message}");
    let hanging = || fs::read_to_string(place.join("hanging")).unwrap_or_default();
    wait_for("the second transfer to hang", PATIENCE, || hanging().lines().count() == 2).unwrap();

    for name in COMPANIONS {
        here.wait_says(name, "OutputFetched", "True", "Fetched");
    }

    site.finish("unwritable");
    for name in OTHERS {
        site.finish(name);
    }
    for name in OTHERS {
        here.wait_says(name, "OutputFetched", "True", "Fetched");
    }
    let message = here.wait_says("unwritable", "OutputFetched", "False", "FetchFailed");
    assert!(message.contains("cannot write"), "{message}");
    assert_eq!(hanging().lines().count(), 2, "the same transfer hangs all the while");
    assert!(says(&here.get("stuck"), "OutputFetched", "False", "ScheddUnreachable"), "{:#}", here.get("stuck"));

    fs::remove_file(place.join("hang")).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
    for name in all {
        here.wait_says(name, "OutputFetched", "True", "Fetched");
        site.assert_complete_once(&here, name, 1);
    }
}
