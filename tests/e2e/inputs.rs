//! `files[].url` with the servers that sites have, nginx and XRootD: what jobs get from them, and what happens when they refuse it, ask
//! to wait, or are away.

use serde_json::{Value, json};
use testbed::{Account, Assets, Nginx, PoolOptions, Scratch, Version, XRootD};

use crate::lifecycle::read;
use crate::payload_script::https::Authority;
use bed::{Bed, condition, htcjob, is_true, of};

on_versions! {
    both: jobs_fetch_from_nginx_and_xrootd, file_that_a_server_refuses_fails_the_job_at_once, job_runs_again_when_its_server_is_back;
}

/// A SHA-256 that no file here has.
const ANOTHER: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// Servers, and a pool whose nodes have what it takes to fetch from them.
struct Site {
    // Fields drop in this order: the jobs before what they fetch from.
    bed: Bed,
    nginx: Nginx,
    xrootd: XRootD,
    _authority: Authority,
    _tools: Scratch,
}

impl Site {
    /// With `sleepless`, jobs do not wait between two tries to fetch a file.
    fn new(version: Version, sleepless: bool, rules: &[&str]) -> Self {
        let (assets, authority, tools) = (Assets::locate().unwrap(), Authority::new(), Scratch::new().unwrap());
        let [certificate, key] = authority.pem("127.0.0.1");
        let nginx = Nginx::start(&assets, &certificate, &key).unwrap();
        let xrootd = XRootD::start(&assets).unwrap();
        let folder = tools.dir("bin").unwrap();
        if sleepless {
            Account::unprivileged().write(&folder.join("sleep"), "#!/bin/sh\n", 0o755).unwrap();
        }
        let path = [folder, assets.job_bin(), assets.xrootd_bin()].map(|folder| folder.display().to_string()).join(":");
        let environment = format!("PATH={path}:/usr/bin:/bin CURL_CA_BUNDLE={}", authority.file().display());
        let extra_config = format!("STARTER_JOB_ENVIRONMENT = \"{environment}\"");
        let options = PoolOptions { extra_config, ..PoolOptions::default() };
        let bed = Bed::new(version, &options, &[rules, &["--url-schemes=https,root"]].concat());
        bed.start_operator();
        Self { bed, nginx, xrootd, _authority: authority, _tools: tools }
    }
}

/// An HTCJob that brings these files: paths and URLs.
fn bringing(name: &str, files: &[(&str, String)], source: &str) -> Value {
    let mut object = htcjob(name, source);
    object["spec"]["files"] = files.iter().map(|(path, url)| json!({ "path": path, "url": url })).collect();
    object
}

fn jobs_fetch_from_nginx_and_xrootd(version: Version) {
    let site = Site::new(version, false, &["--node-fault-retries=5"]);
    let (nginx, xrootd, here) = (&site.nginx, &site.xrootd, site.bed.namespace());
    for item in ["run3/a", "run3/b"] {
        nginx.put(&format!("/data/{item}.txt"), &format!("{item} of nginx\n")).unwrap();
        xrootd.put(&format!("/eos/team/{item}.root"), &format!("{item} of XRootD\n")).unwrap();
    }
    nginx.put("/signed/x", "signed\n").unwrap();
    nginx.put("/busy/x", "not busy\n").unwrap();
    let files = [
        ("in/web", nginx.url("/data/${item}.txt")),
        ("in/grid", xrootd.url("/eos/team/${item}.root")),
        ("signed", nginx.signed("/signed/x", 3600).unwrap()),
    ];
    let mut right = bringing("right", &files, "cat in/web in/grid signed");
    right["spec"]["items"] = json!(["run3/a", "run3/b"]);
    // The second request comes too early.
    let busy = bringing("busy", &[("a", nginx.url("/busy/x")), ("b", nginx.url("/busy/x"))], "cat a b");
    let [right_uid, busy_uid] = [&right, &busy].map(|object| here.create(object));

    let ended = here.wait_ended("right");
    assert!(is_true(&ended, "Complete"), "{}\n{ended:#}", read(&here, "right", 0, "err"));
    for (index, item) in [(0, "run3/a"), (1, "run3/b")] {
        assert_eq!(read(&here, "right", index, "out"), format!("{item} of nginx\n{item} of XRootD\nsigned\n"));
        assert_eq!(nginx.answers(&format!("/data/{item}.txt")), ["200"]);
        assert!(!here.output("right", index).join("in").exists());
    }
    assert_eq!(site.bed.wait_history(&of(&right_uid), &["NumJobStarts"], 2), [["1"], ["1"]]);

    let ended = here.wait_ended("busy");
    assert!(is_true(&ended, "Complete"), "{}\n{ended:#}", read(&here, "busy", 0, "err"));
    assert_eq!(read(&here, "busy", 0, "out"), "not busy\nnot busy\n");
    let answers = nginx.answers("/busy/x");
    assert!(answers.contains(&"429".to_owned()) && answers.last().is_some_and(|last| last == "200"), "{answers:?}");
    assert_eq!(site.bed.wait_history(&of(&busy_uid), &["NumJobStarts", "NumHolds ?: 0"], 1), [["1", "0"]]);
    assert!(ended["status"]["nodeFaults"].is_null(), "{ended:#}");
}

/// What one server refuses is refused on all nodes.
fn file_that_a_server_refuses_fails_the_job_at_once(version: Version) {
    let site = Site::new(version, false, &["--node-fault-retries=5", "--node-fault-pause=1s"]);
    let (nginx, xrootd, here) = (&site.nginx, &site.xrootd, site.bed.namespace());
    for path in ["/closed/x", "/signed/x", "/data/x"] {
        nginx.put(path, "x\n").unwrap();
    }
    xrootd.put_closed("/eos/team/closed").unwrap();
    let expired = nginx.signed("/signed/x", -60).unwrap();
    let (_, query) = expired.split_once('?').unwrap();
    let cases = [
        ("closed", nginx.url("/closed/x"), None, "The requested URL returned error: 403"),
        ("expired", expired.clone(), None, "The requested URL returned error: 410"),
        ("another", nginx.url("/data/x"), Some(ANOTHER), "is another one"),
        ("missing", xrootd.url("/eos/team/none"), None, "[3011] Unable to open /eos/team/none; no such file"),
        ("hidden", xrootd.url("/eos/team/closed"), None, "[3010] Unable to open /eos/team/closed; permission denied"),
    ];
    let uids = cases.each_ref().map(|(name, url, sha256, _)| {
        let mut object = bringing(name, &[("in", url.clone())], "echo ran");
        if let Some(sha256) = sha256 {
            object["spec"]["files"][0]["sha256"] = (*sha256).into();
        }
        here.create(&object)
    });
    for ((name, _, _, cause), uid) in cases.iter().zip(&uids) {
        let ended = here.wait_ended(name);
        let failed = condition(&ended, "Failed").map_or("", |failed| failed["message"].as_str().unwrap());
        assert!(
            failed.contains("(250): a file of spec.files or a Secret does not exist, is refused"),
            "{name}: {ended:#}"
        );
        assert_eq!(site.bed.wait_history(&of(uid), &["NumJobStarts", "NumHolds ?: 0"], 1), [["1", "0"]], "{name}");
        let err = read(&here, name, 0, "err");
        let last = err.lines().last().unwrap_or_default();
        assert!(last.contains("htc-operator: the file in ") && last.contains(cause), "{name}: {err}");
        assert!(!err.contains(query), "{name}: {err}");
    }
    for (path, answer) in [("/closed/x", "403"), ("/signed/x", "410"), ("/data/x", "200")] {
        assert_eq!(nginx.answers(path), [answer], "{path}");
    }
    for path in ["/eos/team/none", "/eos/team/closed"] {
        assert_eq!(xrootd.refusals(path), 1, "{path}");
    }
}

/// Both servers are away when the jobs first run, and HTCondor avoids the only machine for a minute then.
fn job_runs_again_when_its_server_is_back(version: Version) {
    let site = Site::new(version, true, &["--node-fault-retries=2", "--node-fault-pause=1s"]);
    let (nginx, xrootd, here) = (&site.nginx, &site.xrootd, site.bed.namespace());
    nginx.put("/data/x", "of nginx\n").unwrap();
    xrootd.put("/eos/team/x", "of XRootD\n").unwrap();
    nginx.stop().unwrap();
    xrootd.stop().unwrap();
    let jobs = [("web", nginx.url("/data/x"), "of nginx\n"), ("grid", xrootd.url("/eos/team/x"), "of XRootD\n")];
    let uids = jobs.each_ref().map(|(name, url, _)| here.create(&bringing(name, &[("in", url.clone())], "cat in")));
    for (name, ..) in &jobs {
        let seen = here.wait(name, "a fault of a node", |object| is_true(object, "NodeFaults"));
        let message = condition(&seen, "NodeFaults").unwrap()["message"].as_str().unwrap();
        assert!(message.contains("the node could not fetch a file of spec.files"), "{name}: {message}");
        assert!(!is_true(&seen, "Held") && !is_true(&seen, "Failed"), "{seen:#}");
    }
    nginx.start_again().unwrap();
    xrootd.start_again().unwrap();
    for ((name, _, content), uid) in jobs.iter().zip(&uids) {
        let ended = here.wait_ended(name);
        assert!(is_true(&ended, "Complete"), "{}\n{ended:#}", read(&here, name, 0, "err"));
        assert_eq!(read(&here, name, 0, "out"), *content);
        assert_eq!(ended["status"]["nodeFaults"]["runs"], 1, "{ended:#}");
        assert_eq!(site.bed.wait_history(&of(uid), &["NumJobStarts"], 1), [["2"]], "{name}");
    }
}
