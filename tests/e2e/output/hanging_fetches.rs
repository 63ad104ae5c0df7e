//! Fetches that fail, and the others.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use serde_json::json;
use testbed::{Version, wait_for};

use bed::PATIENCE;
use bed::site::{Site, says};

on_versions! {
    trixie: hanging_fetch_delays_no_hold_release_or_deadline;
    sid: hanging_fetch_delays_no_deletion;
    long: failing_fetches_share_one_time_limit, failing_fetch_delays_no_other_htcjob;
}

const OTHERS: [&str; 3] = ["one", "two", "three"];
/// They end together with the one that hangs.
const COMPANIONS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

/// The transfer of one HTCJob hangs, with others and then alone; the output folder of another cannot be written. The
/// others get their output once the hanging one is tried alone, and three more get it at once.
fn failing_fetch_delays_no_other_htcjob(version: Version) {
    let site = Site::with(version, "", &["--transfer-timeout-together=5s"]);
    site.bed.start_operator();
    let here = site.bed.namespace();
    let all = [&["stuck", "unwritable"], &OTHERS[..], &COMPANIONS].concat();
    site.start_lasting(&here, &all);
    let place = site.gates.place("transfers");
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
    let folder = here.output("unwritable", 0).parent().unwrap().to_owned();
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

/// Transfers of one namespace hang, with limits of ten minutes and an hour. Deletions do not wait for them, another
/// namespace gets its output meanwhile, and no transfer keeps running.
fn hanging_fetch_delays_no_deletion(version: Version) {
    let site = Site::with(version, "", &[]);
    site.bed.start_operator();
    let (here, there) = (site.bed.namespace(), site.bed.namespace());
    let names = ["first", "second", "stuck", "beside"];
    site.start_lasting(&here, &names);
    site.start_lasting(&there, &["other"]);
    let place = site.gates.place("transfers");
    let uids = names.map(|name| here.uid(name));
    site.gates.replace(
        "condor_transfer_data",
        &format!(
            "case \"$*\" in *{}*)\n\
                 echo $$ \"$*\" >>{}/hanging\n\
                 while :; do sleep 1; done;;\n\
             esac\nreal=$1; shift; exec $real \"$@\"\n",
            uids.join("*|*"),
            place.display(),
        ),
    );
    let hanging = || fs::read_to_string(place.join("hanging")).unwrap_or_default();
    let transfers = |count: usize| {
        wait_for("a transfer that hangs", PATIENCE, || hanging().lines().count() == count).unwrap();
    };
    // So many workers one namespace has.
    for (count, name) in ["first", "second"].into_iter().enumerate() {
        site.finish(name);
        transfers(count + 1);
    }
    for name in ["stuck", "beside"] {
        site.finish(name);
        here.wait(name, "an end", |object| object["status"]["succeeded"] == 1);
    }
    site.finish("other");
    there.wait_says("other", "OutputFetched", "True", "Fetched");
    assert_eq!(hanging().lines().count(), 2, "{}", hanging());

    let delete = |name: &str| {
        let began = Instant::now();
        here.begin_delete(name);
        here.wait_gone(name);
        println!("{version}: {name} was gone {:.1?} after its deletion", began.elapsed());
    };
    delete("first");
    transfers(3);
    let both = hanging().lines().last().unwrap().to_owned();
    assert!(both.contains(uids[2].as_str()) && both.contains(uids[3].as_str()), "they go together: {both}");
    delete("beside");
    transfers(4);
    assert!(here.events("stuck").iter().all(|(reason, _)| reason != "OperatorStopping"), "{:?}", here.events("stuck"));
    delete("stuck");
    delete("second");
    for (name, uid) in names.iter().zip(&uids) {
        site.bed.assert_removed(uid, name);
    }
    let lives = |line: &str| {
        let pid = line.split(' ').next().unwrap();
        fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|words| words.contains("condor_transfer_data"))
    };
    assert!(!hanging().lines().any(lives), "{}", hanging());
    site.assert_complete_once(&there, "other", 1);
}

/// The transfer for an HTCJob's completed job hangs. Its other job is held, released, and removed at its deadline all
/// the same, and the output arrives once transfers work again.
fn hanging_fetch_delays_no_hold_release_or_deadline(version: Version) {
    let site = Site::with(version, "", &["--fetch-every=1s"]);
    let place = site.gates.place("transfers");
    testbed::Account::unprivileged().write(&place.join("hang"), "", 0o644).unwrap();
    let at = place.display();
    site.gates.replace(
        "condor_transfer_data",
        &format!(
            "echo $$ >>{at}/hanging\nwhile [ -e {at}/hang ]; do sleep 0.1; done\nreal=$1; shift; exec $real \"$@\"\n"
        ),
    );
    let transfers = |count: usize| {
        let hanging = || fs::read_to_string(place.join("hanging")).unwrap_or_default().lines().count();
        wait_for("a transfer that hangs", PATIENCE, || if hanging() == count { Ok(()) } else { Err(hanging()) })
            .unwrap();
    };
    site.bed.start_operator();
    let here = site.bed.namespace();
    let mut object = site.lasting("parts", 2);
    let source =
        object["spec"]["script"]["source"].as_str().unwrap().replace("while [", "while [ $HTCPROCID = 1 ] && [");
    object["spec"]["script"]["source"] = source.into();
    let uid = here.create(&object);
    let wait = |what: &str, count: &str, number: u32| {
        let began = Instant::now();
        let object = here.wait("parts", what, |object| object["status"][count] == number);
        println!("{version}: {what} after {:.1?}", began.elapsed());
        object
    };
    transfers(1);
    here.suspend("parts", true);
    wait("it is held", "held", 1);
    transfers(2);
    here.suspend("parts", false);
    wait("it is let go", "held", 0);
    transfers(3);
    here.merge("parts", &json!({ "spec": { "activeDeadlineSeconds": 1 } }));
    let object = wait("it is removed", "failed", 1);
    assert_eq!((&object["status"]["succeeded"], &object["status"]["active"]), (&1.into(), &0.into()), "{object:#}");
    assert!(here.events("parts").iter().all(|(reason, _)| reason != "OperatorStopping"), "{:?}", here.events("parts"));

    fs::remove_file(place.join("hang")).unwrap();
    here.wait_says("parts", "OutputFetched", "True", "Fetched");
    here.delete("parts");
    site.bed.assert_removed(&uid, "parts");
}

/// So many fetches that fail at once.
const MANY: usize = 30;
/// Tries a minute that they have together, and how many workers try at the same time.
const TRIES_A_MINUTE: f64 = 60.0;
const WORKERS: f64 = 4.0;

/// All tries of failing fetches share one limit; a deleted HTCJob does not wait for its turn; and fetches that work
/// again have no such limit.
fn failing_fetches_share_one_time_limit(version: Version) {
    let site = Site::with(version, "", &["--retry-backoff-max=2s"]);
    site.gates.replace("condor_transfer_data", "echo no >&2; exit 1");
    site.bed.start_operator();
    let here = site.bed.namespace();
    let names: Vec<String> = (0..MANY).map(|number| format!("f{number}")).collect();
    here.create_all(&names.iter().map(|name| site.noted(name, 1, "")).collect::<Vec<_>>());
    for name in &names {
        here.wait_says(name, "OutputFetched", "False", "ScheddUnreachable");
    }
    let transfers = || site.gates.times("condor_transfer_data");
    let before = transfers();
    let (tries, since) = (before.len(), *before.last().unwrap());
    // By their pauses alone they would come to 15 a second.
    wait_for("more tries", PATIENCE, || transfers().len() >= tries + 20).unwrap();
    let after = transfers();
    let allowed = (after.last().unwrap() - since) * TRIES_A_MINUTE / 60.0 + 2.0 * WORKERS;
    let more = u32::try_from(after.len() - tries).unwrap();
    assert!(f64::from(more) <= allowed, "{more} tries, {allowed:.0} allowed");

    let tries = transfers().len();
    let began = Instant::now();
    here.kubectl(&["delete", "htcjob", "f0", "f1", "f2", "--wait=false"]);
    for name in &names[..3] {
        here.wait_gone(name);
    }
    // In the order of their turns the last of three would come after some twenty others, one a second.
    let (more, took) = (transfers().len() - tries, began.elapsed());
    let question = site.bed.question_time();
    println!(
        "{version}: three that were deleted were gone after {more} more tries, {took:.1?}; condor_q {question:.2?}"
    );
    assert!(
        took < Duration::from_secs(12) + 20 * question,
        "{took:.1?}, {more} more tries; condor_q takes {question:.2?}"
    );

    site.gates.restore("condor_transfer_data");
    for name in &names[3..] {
        here.wait_says(name, "OutputFetched", "True", "Fetched");
    }
}
