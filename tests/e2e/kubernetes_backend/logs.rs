//! Logs of Pods: from their node while they exist, and from the volume afterwards.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use bed::{Bed, Namespace, PATIENCE, is_true};
use serde_json::json;
use testbed::{KubeOptions, Version, wait_for};

use super::kubelet::{Kubelet, is_fetched, kept, log};
use super::stage::{Owned as _, Stage, pods};
use crate::plugin::submit_and_retry::{command, htc};

on_versions! {
    trixie: log_comes_from_the_pod_and_then_from_the_volume;
    long:
        unavailable_log_is_retried_and_delays_deletion_briefly,
        rotated_log_reports_missing_lines,
        logs_of_failed_jobs_skip_deleted_pods,
        saved_log_is_cut_at_the_output_limit;
}

fn wait_kept(here: &Namespace<'_>, proc: &str) {
    wait_for(&format!("the log of {proc}"), PATIENCE, || {
        let proc = here.proc(proc);
        if is_fetched(&proc) { Ok(()) } else { Err(proc["status"].to_string()) }
    })
    .unwrap_or_else(|error| panic!("{error}\n{}", here.bed.log()));
}

fn log_comes_from_the_pod_and_then_from_the_volume(version: Version) {
    let stage = Stage::start(version);
    stage.bed.front();
    let here = stage.namespace();
    let kubelet = Kubelet::start(&stage.bed);
    here.create(&pods("talks", 2));
    let pods = [0, 1].map(|index| kubelet.take(&here, index));
    here.run(0);
    here.wait("talks", "one runs", |object| object["status"]["running"] == 1);
    kubelet.writes(&pods[0], b"one\ntwo\n");
    assert_eq!(log(&here, "talks-0", "").unwrap(), "one\ntwo\n");
    assert_eq!(log(&here, "talks-0", "tailLines=1").unwrap(), "two\n");
    assert_eq!(log(&here, "talks-0", "offset=4").unwrap(), "two\n");
    assert_eq!(log(&here, "talks-0", "offset=2&limitBytes=3").unwrap(), "e\nt");
    let refused = log(&here, "talks-0", "stream=err").unwrap_err();
    assert!(refused.contains("one log: ask for stream=out"), "{refused}");
    // It is followed, from the Pod to its end and no further.
    let mut follows = command(&here, &["logs", "talks/0", "-f"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(follows.stdout.take().unwrap()).lines();
    let mut next = || lines.next().unwrap().unwrap();
    assert_eq!([next(), next()], ["one", "two"]);
    kubelet.writes(&pods[0], b"three\n");
    assert_eq!(next(), "three");
    kubelet.writes(&pods[0], b"four\n");
    assert_eq!(next(), "four");
    // The last lines, and what comes after them: it ends with the container, whose end nobody has told yet.
    let mut last = command(&here, &["logs", "talks/0", "-f", "--tail=1"]).stdout(Stdio::piped()).spawn().unwrap();
    let is_followed = |asked: &&String| asked.contains(&pods[0]) && asked.contains("follow=true");
    let followed = || kubelet.asked().iter().filter(is_followed).count();
    wait_for("the Pod to be asked for the last lines", PATIENCE, || followed() == 2).unwrap();
    kubelet.ends(&pods[0]);
    wait_for("the last lines to end", PATIENCE, || last.try_wait().unwrap().is_some()).unwrap();
    assert_eq!(String::from_utf8(last.wait_with_output().unwrap().stdout).unwrap(), "four\n");
    // Who follows all of it waits for the ledger's word, and is sent nothing twice meanwhile.
    wait_for("the Pod to be asked again", PATIENCE, || followed() > 3).unwrap();
    here.end(0, 0);
    assert!(follows.wait().unwrap().success() && lines.next().is_none());
    // It is kept while the other job has not even begun.
    wait_kept(&here, "talks-0");
    assert_eq!(std::fs::read_to_string(kept(&here, "talks", 0)).unwrap(), "one\ntwo\nthree\nfour\n");
    kubelet.writes(&pods[1], b"bad\n");
    kubelet.ends(&pods[1]);
    here.end(1, 3);
    here.wait_ended("talks");
    wait_kept(&here, "talks-1");
    assert_eq!(here.proc("talks-1")["status"]["outputBytes"], 4);
    // Their Pods go; the logs stay.
    for pod in &pods {
        here.kill_pod(pod);
    }
    let asked = kubelet.asked().len();
    assert_eq!(htc(&here, &["logs", "talks/1"]), (0, "bad\n".to_owned(), String::new()));
    assert_eq!(log(&here, "talks-0", "tailLines=2").unwrap(), "three\nfour\n");
    assert_eq!(kubelet.asked().len(), asked, "the node is not asked any more");
    here.delete("talks");
    assert!(kept(&here, "talks", 1).exists(), "as HTCondor's output: --output-retention removes it");
    here.wait_all_gone();
}

/// A node keeps only the newest part of a long log. A client that resumes after a broken connection is warned if lines
/// may be missing.
fn rotated_log_reports_missing_lines(version: Version) {
    let stage = Stage::start(version);
    stage.bed.front();
    let here = stage.namespace();
    let kubelet = Kubelet::start(&stage.bed);
    here.create(&pods("long", 1));
    let pod = kubelet.take(&here, 0);
    here.run(0);
    here.wait("long", "it runs", |object| object["status"]["running"] == 1);
    kubelet.writes(&pod, b"one\ntwo\n");
    let mut follows =
        command(&here, &["logs", "long/0", "-f"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(follows.stdout.take().unwrap()).lines();
    let (sender, receiver) = std::sync::mpsc::channel();
    let stderr = BufReader::new(follows.stderr.take().unwrap()).lines();
    std::thread::spawn(move || stderr.map_while(Result::ok).try_for_each(|line| sender.send(line)));
    let mut next = || lines.next().unwrap().unwrap();
    assert_eq!([next(), next()], ["one", "two"]);
    // Shorter than what was read, and then longer: that it ends too early is not all that tells.
    for left in ["six\n".to_owned(), "seven\n".repeat(100)] {
        kubelet.rotates(&pod, left.as_bytes());
        let words = receiver.recv_timeout(PATIENCE).expect("it says that lines may be missing");
        assert!(words.contains("lines may be missing"), "{words}");
        for line in left.lines() {
            assert_eq!(next(), line);
        }
    }
    kubelet.writes(&pod, b"eight\n");
    assert_eq!(next(), "eight");
    // Who does not say from which line it counts is told, too, where bytes are asked for that there are not.
    let refused = log(&here, "long-0", "offset=5000").unwrap_err();
    assert!(refused.contains("lines may be missing"), "{refused}");
    let refused = log(&here, "long-0", "offset=5000&follow=true").unwrap_err();
    assert!(refused.contains("lines may be missing"), "{refused}");
    kubelet.ends(&pod);
    here.end(0, 0);
    assert!(follows.wait().unwrap().success() && lines.next().is_none());
    wait_kept(&here, "long-0");
    let refused = log(&here, "long-0", "offset=5000").unwrap_err();
    assert!(refused.contains("606 bytes of the log of long-0 are kept"), "{refused}");
    here.delete("long");
}

fn logs_of_failed_jobs_skip_deleted_pods(version: Version) {
    let stage = Stage::start(version);
    stage.bed.front();
    let here = stage.namespace();
    let kubelet = Kubelet::start(&stage.bed);
    let mut object = pods("cut", 2);
    object["spec"]["maxFailedIndexes"] = 0.into();
    here.create(&object);
    let pod = kubelet.take(&here, 1);
    kubelet.writes(&pod, b"bad\n");
    kubelet.ends(&pod);
    here.run(0);
    here.wait("cut", "one runs", |object| object["status"]["running"] == 1);
    here.end(1, 9);
    here.wait_ended("cut");
    wait_kept(&here, "cut-1");
    wait_for("the Pod that was removed to be gone", PATIENCE, || here.pods().len() == 1).unwrap();
    let (code, logs, why) = htc(&here, &["logs", "cut", "--failed"]);
    assert_eq!((code, logs.as_str()), (0, "==> cut/1 <==\nbad\n==> cut/0 <==\n"), "{why}");
    assert!(why.contains("is gone: its log went with it"), "{why}");
    here.delete("cut");
}

fn unavailable_log_is_retried_and_delays_deletion_briefly(version: Version) {
    let stage = Stage::start(version);
    stage.bed.front();
    let here = stage.namespace();
    let kubelet = Kubelet::start(&stage.bed);
    kubelet.is_broken(true);
    here.create(&pods("later", 1));
    let pod = kubelet.take(&here, 0);
    kubelet.writes(&pod, b"kept\n");
    kubelet.ends(&pod);
    here.end(0, 0);
    assert!(is_true(&here.wait_ended("later"), "Complete"));
    wait_for("the node to be asked", PATIENCE, || !kubelet.asked().is_empty()).unwrap();
    assert!(!is_fetched(&here.proc("later-0")));
    // Somebody deletes it while its log is not kept yet: it waits for that.
    here.begin_delete("later");
    here.wait("later", "it is being deleted", |object| object["status"]["phase"] == "Terminating");
    assert!(!here.jobs().is_empty());
    let path = kept(&here, "later", 0);
    kubelet.is_broken(false);
    here.wait_gone("later");
    let text = std::fs::read_to_string(&path);
    assert_eq!(text.unwrap_or_else(|error| panic!("{error}\n{}", stage.bed.log())), "kept\n");
    // It never can be.
    kubelet.is_broken(true);
    here.create(&pods("never", 1));
    let pod = kubelet.take(&here, 0);
    kubelet.ends(&pod);
    here.end(0, 0);
    here.wait_ended("never");
    here.begin_delete("never");
    here.wait_gone("never");
    // A Pod of somebody else takes its name: what that writes is not its log.
    here.create(&pods("taken", 1));
    let pod = kubelet.take(&here, 0);
    kubelet.ends(&pod);
    here.end(0, 0);
    here.wait_ended("taken");
    here.kill_pod(&pod);
    let other = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": pod, "namespace": here.name },
        "spec": { "containers": [{ "name": "job", "image": "theirs" }] } });
    stage.bed.apply(&other);
    kubelet.take_named(&here, &pod);
    kubelet.writes(&pod, b"another's\n");
    kubelet.ends(&pod);
    kubelet.is_broken(false);
    let refused = log(&here, "taken-0", "").unwrap_err();
    assert!(refused.contains("is gone: its log went with it"), "{refused}");
    here.kill_pod(&pod);
    here.delete("taken");
    here.wait_all_gone();
}

fn saved_log_is_cut_at_the_output_limit(version: Version) {
    let limit = ["--kubernetes-backend", "--output-limit=1M"];
    let bed = Bed::with_jobs_api_alone(version, &KubeOptions::default(), &limit);
    let stage = Stage::of(bed);
    stage.bed.start_operator();
    stage.bed.front();
    let here = stage.namespace();
    let kubelet = Kubelet::start(&stage.bed);
    here.create(&pods("large", 1));
    let pod = kubelet.take(&here, 0);
    kubelet.writes(&pod, &vec![b'x'; 3 << 20]);
    kubelet.ends(&pod);
    here.end(0, 0);
    here.wait_ended("large");
    wait_kept(&here, "large-0");
    assert_eq!(std::fs::metadata(kept(&here, "large", 0)).unwrap().len(), 1 << 20);
    here.delete("large");
}
