//! The watch itself: it goes on where it ended, and tells when it may have missed something.

use serde_json::{Value, json};
use testbed::{Fault, PoolOptions, Rule, Version, wait_for};

use bed::{Bed, PATIENCE, htcjob};

#[test]
fn watch_records_each_status_and_detects_gaps() {
    let bed = Bed::new(Version::Trixie, &PoolOptions::default(), &[]);
    let proxy = bed.kube.proxy().unwrap();
    bed.through(&proxy);
    let here = bed.namespace();
    let watch = here.watch();
    let uid = here.create(&htcjob("seen", "true"));
    let say = |attempt: i64| {
        here.patch_status("htcjob", "seen", &json!({ "status": { "attempt": attempt } }));
    };
    let begun = || proxy.seen().iter().filter(|seen| seen.path.contains("watch=")).count();
    say(1);
    say(2);
    let before = begun();
    wait_for("two more watches", PATIENCE, || begun() >= before + 2).unwrap();
    say(3);
    let watched = wait_for("the watch to show each status", PATIENCE, || {
        let watched = watch.watched();
        let statuses = watched.statuses.get(&uid).into_iter().flatten();
        let shown: Vec<Value> = statuses.map(|status| status["attempt"].clone()).collect();
        if shown == [Value::Null, 1.into(), 2.into(), 3.into()] { Ok(watched) } else { Err(format!("{shown:?}")) }
    });
    assert_eq!(watched.unwrap().lists, 1, "a watch that ends goes on");

    proxy.add(Rule::new("WATCH", "/htcjobs", Fault::Expire(0)).times(1));
    wait_for("the objects to be listed anew", PATIENCE, || watch.watched().lists == 2).unwrap();
    here.delete("seen");
    wait_for("the watch to show that it is gone", PATIENCE, || watch.watched().gone.contains(&uid)).unwrap();
}
