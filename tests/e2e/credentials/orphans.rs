//! Jobs in users' names that belong to no HTCJob.

use std::collections::BTreeMap;
use std::path::PathBuf;

use testbed::{Account, Version, wait_for};

use crate::credentials::site::{Site, let_read, put_secret, with_secret};
use bed::{Bed, PATIENCE, UNTIL_LET_GO, ids};

/// The ledger's folder, byte by byte.
fn ledger_files(bed: &Bed) -> BTreeMap<PathBuf, Vec<u8>> {
    let entries = std::fs::read_dir(bed.data.join("sqlite")).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

/// `check` finds them by the names that the ledger knows, whether an operator has it or not, and leaves it as it is.
pub fn named_by_check_with_and_without_an_operator(version: Version) {
    let site = Site::start(version);
    let bed = &site.bed;
    let here = bed.namespace();
    put_secret(&here, "mine", &[("token", site.token("alice@test", &[]).as_bytes())]);
    let_read(&here, "mine");
    let uid = here.create(&with_secret("left", "mine", UNTIL_LET_GO));
    here.create(&with_secret("stays", "mine", UNTIL_LET_GO));
    let left = ids(&here.wait_phase("left", "Running")).remove(0);
    here.wait_phase("stays", "Running");
    let (well, said) = bed.check();
    assert!(well && said.contains("ok    orphans: none") && !said.contains("own name"), "{said}");

    // It dies with all that it wrote in the log, and somebody takes the finalizer away.
    bed.kill_operator();
    here.force_away("left");
    let named = format!("WRONG orphans: 1 jobs in HTCondor belong to no HTCJob: {left};");
    let before = ledger_files(bed);
    assert!(before.keys().any(|path| path.ends_with("htcjobs.db-wal")), "{:?}", before.keys());
    let (well, said) = bed.check();
    assert!(!well && said.contains(&named) && said.contains("is writable; ledger "), "{said}");
    assert!(ledger_files(bed) == before, "check has changed the ledger");

    bed.start_operator();
    wait_for("the orphan to be counted", PATIENCE, || bed.log().contains("orphans=1")).unwrap();
    let (well, said) = bed.check();
    assert!(!well && said.contains(&named) && said.contains("is in use by a running operator"), "{said}");
    // Nobody but that user may remove it, and the Secret is there.
    let (well, said) = bed.orphans(&["--pool", "default", "--remove"]);
    assert!(
        well && said.contains(&format!("{left}   ")) && said.contains("left   Running   alice@test   yes"),
        "{said}"
    );
    here.wait_nothing_left(&uid);
    assert_eq!(here.get("stays")["status"]["phase"], "Running");

    // Without what the ledger knows it says what it cannot see.
    bed.stop_operator();
    here.force_away("stays");
    // And it does not act for who gives it no credentials any more.
    here.kubectl(&["delete", "secret", "mine"]);
    let (well, said) = bed.orphans(&["--remove"]);
    assert!(!well && said.contains("alice@test   no") && said.contains("there is no Secret"), "{said}");
    for path in ledger_files(bed).into_keys() {
        std::fs::remove_file(path).unwrap();
    }
    let (_, said) = bed.check();
    assert!(said.contains("ok    orphans: none") && said.contains("own jobs were checked: no ledger"), "{said}");
    let file = bed.data.join("sqlite/htcjobs.db");
    Account::unprivileged().write(&file, "no database ".repeat(1000), 0o644).unwrap();
    let (well, said) = bed.check();
    let why = format!("only the operator's own jobs were checked: cannot open the ledger {}", file.display());
    assert!(!well && said.contains("WRONG database: ") && said.contains(&why), "{said}");
    assert_eq!(ledger_files(bed).len(), 1);
}
