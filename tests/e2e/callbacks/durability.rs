//! Many callbacks at once: durability after SIGKILL and on a full disk.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bed::desk::KEY;
use bed::http::{self, Connection};
use bed::{PATIENCE, UNTIL_LET_GO, htcjob};
use htc_submit::job_token::TokenKeys;
use serde_json::json;
use testbed::Version::{Sid, Trixie};
use testbed::wait_for;

use crate::callbacks::jobs::Site;
use crate::callbacks::readiness;

const CALLBACKS: usize = 2_000;
const SENDERS: usize = 32;
/// Of each the ledger knows the newest start and the three before: those of one storm, and the one that it reports itself.
const JOBS: usize = CALLBACKS.div_ceil(3);
/// The HTCJob's name.
const NAME: &str = "storm";

/// Sends `count` events as fast as it goes; the ids of those that got a 2xx, and how long that took. `at` is called when so
/// many have been answered.
fn storm(
    site: &Site,
    uid: &str,
    ids: &[String],
    prefix: &str,
    at: (usize, &(dyn Fn() + Sync)),
) -> (BTreeSet<String>, Duration) {
    let token = TokenKeys::parse(KEY).unwrap().token(&uid.into());
    let (next, finished, accepted) = (AtomicUsize::new(0), AtomicUsize::new(0), Mutex::new(BTreeSet::new()));
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..SENDERS {
            scope.spawn(|| {
                let mut connection = None;
                loop {
                    let number = next.fetch_add(1, Ordering::SeqCst);
                    if number >= CALLBACKS {
                        return;
                    }
                    let event = format!("{prefix}-{number}");
                    let headers = http::headers_of_start(&token, uid, &event);
                    let body = json!({ "name": NAME, "jobid": ids[number % ids.len()] }).to_string();
                    let answer = (|| {
                        let connection = match &mut connection {
                            Some(connection) => connection,
                            none => none.insert(Connection::open(site.address())?),
                        };
                        connection.send(&http::request(&headers, body.as_bytes()))?;
                        connection.answer()
                    })();
                    match answer {
                        Ok(answer) if answer.status == 204 => {
                            accepted.lock().unwrap().insert(event);
                        }
                        Ok(answer) => assert!(matches!(answer.status, 429 | 503), "{answer:?}"),
                        // Killed: whether it was stored is not known.
                        Err(_) => connection = None,
                    }
                    if finished.fetch_add(1, Ordering::SeqCst) + 1 == at.0 {
                        at.1();
                    }
                }
            });
        }
    });
    (accepted.into_inner().unwrap(), began.elapsed())
}

fn running(site: &Site, jobs: usize) -> (String, Vec<String>) {
    let here = site.bed.namespace();
    let mut object = htcjob(NAME, UNTIL_LET_GO);
    object["spec"]["queue"] = jobs.into();
    let uid = here.create(&object);
    // A status names 100 at most.
    let query = format!("select jobId from htcjobs where uid = '{uid}' order by idx");
    let ids = wait_for("all jobs recorded", PATIENCE, || {
        let ids = site.bed.ledger(&query).unwrap_or_default().concat();
        (ids.len() == jobs).then_some(ids)
    });
    (uid, ids.unwrap())
}

/// The events that the ledger knows: the newest of each job, and those that it has replaced last.
fn stored(site: &Site, uid: &str, prefix: &str) -> BTreeSet<String> {
    let query = format!(
        "with known as (
             select event from callbacks where uid = '{uid}'
             union select value from callbacks, json_each(earlier) where uid = '{uid}'
         ) select event from known where event like '{prefix}-%'"
    );
    site.bed.ledger(&query).unwrap().concat().into_iter().collect()
}

/// How many rows there are of starts, which is all that these jobs report here.
fn rows(site: &Site, uid: &str) -> String {
    site.bed
        .ledger(&format!("select count(*) from callbacks where uid = '{uid}' and retcode is null"))
        .unwrap()
        .concat()
        .concat()
}

/// A job that it has not gets another answer than that it is to be sent again.
fn wait_until_it_receives(site: &Site, uid: &str) {
    wait_for("the receiver", PATIENCE, || {
        let data = json!({ "name": NAME, "jobid": "999999.0" });
        site.send(uid, uid, "htcjob.cloudevent.started", "nobody", &data).is_ok_and(|answer| answer.status == 404)
    })
    .unwrap();
}

#[test]
fn report_answered_with_2xx_survives_sigkill() {
    let site = Site::new(Trixie, &[]);
    site.bed.start_operator();
    let (uid, ids) = running(&site, JOBS);
    let killed = || site.bed.kill_operator();
    let (mut taken, _) = storm(&site, &uid, &ids, "first", (CALLBACKS / 2, &killed));
    if taken.len() == CALLBACKS {
        // The killer was held up until all were answered.
        site.bed.start_operator();
        wait_until_it_receives(&site, &uid);
        (taken, _) = storm(&site, &uid, &ids, "first", (CALLBACKS / 2, &killed));
    }
    assert!((CALLBACKS / 4..CALLBACKS).contains(&taken.len()), "{} of {CALLBACKS} answered", taken.len());
    let kept = stored(&site, &uid, "first");
    let lost: Vec<_> = taken.difference(&kept).collect();
    assert!(lost.is_empty(), "{} of {} lost: {lost:?}", lost.len(), taken.len());
    println!("{} answered before the kill, {} in the ledger", taken.len(), kept.len());

    // The next one takes the rest, and what was sent before has no further effect.
    site.bed.start_operator();
    wait_until_it_receives(&site, &uid);
    // A machine that stands still for a while has some sent again, as jobs do.
    let until_taken = |prefix: &str| {
        wait_for(&format!("all of the {prefix} storm to be taken"), PATIENCE, || {
            let (taken, took) = storm(&site, &uid, &ids, prefix, (usize::MAX, &|| ()));
            if taken.len() == CALLBACKS { Ok(took) } else { Err(format!("{} of {CALLBACKS}", taken.len())) }
        })
        .unwrap()
    };
    let took = until_taken("second");
    assert_eq!(stored(&site, &uid, "second").len(), CALLBACKS);
    until_taken("second");
    assert_eq!(stored(&site, &uid, "second").len(), CALLBACKS, "twice is once");
    assert_eq!(rows(&site, &uid), JOBS.to_string(), "of each job its newest start");
    #[allow(clippy::cast_precision_loss, reason = "two thousand")]
    let rate = CALLBACKS as f64 / took.as_secs_f64();
    println!("{CALLBACKS} durable callbacks over {SENDERS} connections in {took:.2?}: {rate:.0}/s");
}

#[test]
#[ignore = "another test shows the same promise: make test-long"]
fn full_disk_answers_503_and_loses_no_report() {
    let mut site = Site::new(Sid, &[]);
    site.bed.mount_volume("size=8m");
    site.bed.start_operator();
    let (uid, ids) = running(&site, JOBS);
    let number = std::cell::Cell::new(0);
    // Of each job a few, so that the file has to grow.
    let send = |event: &str| {
        let data = json!({ "name": NAME, "jobid": ids[number.replace(number.get() + 1) % ids.len()] });
        site.send(&uid, &uid, "htcjob.cloudevent.started", event, &data).unwrap()
    };
    assert_eq!(send("storm-before").status, 204);
    let pid = site.bed.operator_pid();
    // The operator takes some of it meanwhile: until nothing is left, not a number of bytes.
    site.bed.volume().run("cat /dev/zero >filler 2>/dev/null; true");
    let mut taken = BTreeSet::from(["storm-before".to_owned()]);
    // What is already allocated takes a few more.
    let refused = wait_for("a 503", PATIENCE, || {
        let event = format!("storm-{}-{}", number.get(), "x".repeat(100));
        let answer = send(&event);
        if answer.status == 204 {
            taken.insert(event);
        }
        (answer.status == 503).then_some(answer)
    });
    let refused = refused.unwrap();
    assert!(refused.head.to_ascii_lowercase().contains("retry-after: "), "{}", refused.head);
    assert_eq!(refused.reason(), "Unavailable");
    readiness::wait(site.monitor_address(), &["ledger-writable"]);
    site.bed.volume().empty();
    wait_for("the receiver to store again", PATIENCE, || send("storm-after").status == 204).unwrap();
    taken.insert("storm-after".to_owned());
    assert_eq!(site.bed.operator_pid(), pid, "without a restart");
    readiness::wait(site.monitor_address(), &[]);
    let kept = stored(&site, &uid, "storm");
    assert!(taken.is_subset(&kept), "{:?} are lost", taken.difference(&kept));
}
