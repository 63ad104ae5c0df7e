//! `itemsFrom`: items that are read from a ConfigMap once, and kept.

use serde_json::{Value, json};
use testbed::{Version, wait_for};

use crate::lifecycle::{condition_parts, read};
use bed::site::Site;
use bed::{Bed, Namespace, PATIENCE, htcjob, is_true};

on_versions! {
    trixie: invalid_config_map_is_reported_and_awaited;
    sid: config_map_items_are_read_once;
}

fn put(here: &Namespace<'_>, name: &str, data: &Value) {
    let config_map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "data": data,
        "metadata": { "name": name, "namespace": here.name, "labels": { "htc.cern.ch/use": "items" } },
    });
    here.replace("configmap", &config_map);
    here.let_read_config_map(name);
}

fn from(mut object: Value, name: &str) -> Value {
    object["spec"]["itemsFrom"] = json!({ "configMapKeyRef": { "name": name, "key": "list" } });
    object["spec"].as_object_mut().unwrap().remove("queue");
    object
}

/// Whatever becomes of the ConfigMap, also for the jobs that are submitted last and by the next leader.
fn config_map_items_are_read_once(version: Version) {
    let site = Site::start(version);
    let here = site.bed.namespace();
    let items = ["one", "two words", "", "$(Process) `id` 'x' \"y\""];
    put(&here, "inputs", &json!({ "list": format!("{}\n", items.join("\n")) }));
    let mut object = from(site.lasting("kept", 4), "inputs");
    let script = object["spec"]["script"]["source"].as_str().unwrap().to_owned();
    object["spec"]["script"]["source"] = format!("{script}\nprintf '%s|%s\\n' \"$2\" \"$HTC_ITEM\"").into();
    object["spec"]["parallelism"] = 1.into();
    here.create(&object);
    assert_eq!(here.wait_running("kept", 1)["status"]["total"], 4);
    put(&here, "inputs", &json!({ "list": "other\nitems\n" }));
    site.bed.kill_operator();
    site.bed.start_operator();
    site.finish("kept");
    wait_for("another job", PATIENCE, || site.runs("kept", 1) == 1).unwrap();
    here.remove("configmap", "inputs");
    site.assert_complete_once(&here, "kept", 4);
    for (index, item) in (0..).zip(items) {
        assert_eq!(read(&here, "kept", index, "out"), format!("finished\n{item}|{item}\n"));
    }
}

/// Each says what it waits for; nothing is submitted before, and nothing is lost when it comes.
fn invalid_config_map_is_reported_and_awaited(version: Version) {
    let bed = Bed::shared(version);
    let (here, there) = (bed.namespace(), bed.namespace());
    // Of the same name, in another namespace.
    put(&there, "missing", &json!({ "list": "not yours\n" }));
    here.let_read_config_map("missing");
    put(&here, "other-key", &json!({ "lists": "a\n" }));
    put(&here, "long", &json!({ "list": "x\n".repeat(10_001) }));
    put(&here, "tab", &json!({ "list": "a\nb\tc\n" }));
    put(&here, "few", &json!({ "list": "a\nb\n" }));
    let cases = [
        ("missing", "there is no ConfigMap"),
        ("other-key", "has no key \"list\""),
        ("long", "has 10001 lines"),
        ("tab", "line 2 has"),
        ("few", "has 2 lines, and spec.queue is 3"),
    ];
    let mut uids = Vec::new();
    for (name, _) in cases {
        let mut object = from(htcjob(name, "test \"$2\" = right"), name);
        if name == "few" {
            object["spec"]["queue"] = 3.into();
        }
        uids.push(here.create(&object));
    }
    here.create(&from(htcjob("deleted", "true"), "missing"));
    for (name, words) in cases {
        let message = here.wait_says(name, "Submitted", "False", "ItemsUnavailable");
        assert!(message.contains(words) && message.contains(&format!("{}/{name}", here.name)), "{message}");
        let status = &here.get(name)["status"];
        assert_eq!((&status["state"], &status["total"]), (&json!("ItemsUnavailable"), &Value::Null), "{status}");
    }
    here.delete("deleted");
    assert!(uids.iter().all(|uid| bed.jobs_of(uid).is_empty()));
    for (name, _) in cases {
        put(&here, name, &json!({ "list": "right\n".repeat(if name == "few" { 3 } else { 1 }) }));
    }
    for (name, _) in cases {
        let ended = here.wait_ended(name);
        assert!(is_true(&ended, "Complete"), "{ended:#}");
        assert_eq!(condition_parts(&ended, "Submitted")[1], "Accepted");
        assert_eq!(here.story(name, "Fetched")[..2], ["Pending", "ItemsUnavailable"]);
        assert_eq!(here.count_events(name, "ItemsUnavailable"), 1);
    }
}
