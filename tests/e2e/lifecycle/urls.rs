//! `files[].url`: each job fetches its own file on its node.

use serde_json::json;
use testbed::{Assets, PoolOptions, Version};

use crate::lifecycle::read;
use crate::payload_script::urls::Web;
use bed::{Bed, condition, htcjob, is_true, of};

on_versions! {
    both: jobs_fetch_their_own_files_and_htcondor_keeps_none;
}

fn jobs_fetch_their_own_files_and_htcondor_keeps_none(version: Version) {
    let web = Web::new(|path, _| match path {
        "/run3/a%20b.root?n=0" => (200, "", b"first file"),
        "/run3/c.root?n=1" => (200, "", b"second file"),
        _ => (403, "", b""),
    });
    let bin = Assets::locate().unwrap().job_bin();
    let environment = format!("PATH={}:/usr/bin:/bin CURL_CA_BUNDLE={}", bin.display(), web.trust().display());
    let extra_config = format!("STARTER_JOB_ENVIRONMENT = \"{environment}\"");
    let bed = Bed::new(version, &PoolOptions { extra_config, ..PoolOptions::default() }, &["--node-fault-retries=5"]);
    bed.start_operator();
    let here = bed.namespace();
    let mut right = htcjob("right", "cat in/data.root");
    right["spec"]["items"] = json!(["a b", "c"]);
    right["spec"]["files"] = json!([{ "path": "in/data.root", "url": web.url("/run3/${item}.root?n=${index}") }]);
    let mut wrong = htcjob("wrong", "echo ran");
    wrong["spec"]["files"] = json!([{ "path": "a", "url": web.url("/forbidden?sig=5ecret") }]);
    let mut other = htcjob("other", "true");
    other["spec"]["files"] = json!([{ "path": "a", "url": "root://eos.example.org//eos/a" }]);
    here.create_all(&[right, other]);
    let uid = here.create(&wrong);
    assert!(is_true(&here.wait_ended("right"), "Complete"));
    here.wait_output("right");
    for (index, content) in [(0, "first file"), (1, "second file")] {
        assert_eq!(read(&here, "right", index, "out"), content);
        assert!(!here.output("right", index).join("in").exists());
    }
    let failed = here.wait_ended("wrong");
    let failed = condition(&failed, "Failed").unwrap()["message"].to_string();
    assert!(failed.contains("(250): a file of spec.files or a Secret does not exist, is refused"), "{failed}");
    // Other nodes would be refused, too.
    assert_eq!(bed.wait_history(&of(&uid), &["NumJobStarts", "NumHolds ?: 0"], 1), [["1", "0"]]);
    here.wait_output("wrong");
    let err = read(&here, "wrong", 0, "err");
    assert!(err.contains("error: 403") && !err.contains("5ecret"), "{err}");
    let refused = here.wait_says("other", "Submitted", "False", "InvalidSpec");
    assert!(refused.contains("--url-schemes"), "{refused}");
}
