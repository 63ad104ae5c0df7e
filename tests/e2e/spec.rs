//! Each field of the spec, as an attribute of the job and in its end.

use bed::{Bed, Namespace, UNTIL_LET_GO, condition, htcjob, ids, is_true, of};
use rstest::rstest;
use serde_json::{Value, json};
use testbed::Version::{self, Sid, Trixie};
use testbed::{Account, Assets, PoolOptions, Scratch, wait_for};

fn with(name: &str, source: &str, fields: &Value) -> Value {
    let mut object = htcjob(name, source);
    for (field, value) in fields.as_object().unwrap() {
        object["spec"][field] = value.clone();
    }
    object
}

fn counts(object: &Value) -> [i64; 3] {
    ["active", "succeeded", "failed"].map(|count| object["status"][count].as_i64().unwrap_or(-1))
}

fn output(here: &Namespace<'_>, name: &str, file: &str) -> String {
    here.wait_output(name);
    std::fs::read_to_string(here.output(name, 0).join(file)).unwrap()
}

#[rstest]
#[case::trixie(Trixie)]
#[ignore = "HTCondor's version makes no difference: make test-long"]
#[case::sid(Sid)]
fn resources_and_requirements_reach_the_job(#[case] version: Version) {
    let bed = Bed::shared(version);
    let here = bed.namespace();
    let resources = json!({ "cpus": "1500m", "memory": "64.5Mi", "disk": "10M", "gpus": 0 });
    let fields = json!({ "resources": resources, "requirements": "TARGET.Memory > 1 && TARGET.OpSys == \"LINUX\"" });
    let uid = here.create(&with("fits", "true", &fields));
    let ended = here.wait_ended("fits");
    assert!(is_true(&ended, "Complete"), "{ended:#}");
    here.wait_nothing_left(&uid);
    let asked = ["RequestCpus", "RequestMemory", "RequestDisk", "RequestGPUs", "JobStatus"];
    assert_eq!(bed.history(&of(&uid), &asked), [["2", "65", "9766", "0", "4"]]);

    // No machine will do: it stays idle, and goes when it is deleted.
    let never = here.create(&with("never", "true", &json!({ "requirements": "TARGET.Memory < 0" })));
    here.wait("never", "accepted", |object| is_true(object, "Submitted") && object["status"]["idle"] == 1);
    let long = bed.condor.ok("condor_q", &["-long", &ids(&here.get("never"))[0]]).unwrap();
    assert!(!never.is_empty() && long.contains("TARGET.Memory < 0"), "{long}");
    here.delete("never");
}

#[rstest]
fn htcopts_reach_the_job(#[values(Trixie, Sid)] version: Version) {
    let bed = Bed::shared(version);
    let here = bed.namespace();
    let options = "request_cpus = 3\n# one more than two\npriority = -7\n+JobFlavour = \"espresso\"\n";
    let uid = here.create(&with("options", "true", &json!({ "htcopts": options })));
    let ended = here.wait_ended("options");
    assert!(is_true(&ended, "Complete"), "{ended:#}");
    here.wait_nothing_left(&uid);
    assert_eq!(bed.history(&of(&uid), &["RequestCpus", "JobPrio", "JobFlavour"]), [["3", "-7", "espresso"]]);
}

/// HTCondor's tools would read such a file as the operator, and show its text to the user.
///
/// Against b8ba2a8: succeeds. The first HTCJob is accepted by HTCondor with that attribute, and is then held for a reason that has the
/// file's text.
#[rstest]
fn attributes_that_read_files_of_the_operator_are_refused(#[values(Trixie, Sid)] version: Version) {
    let bed = Bed::shared(version);
    let here = bed.namespace();
    let secret = bed.data.join("secret");
    Account::unprivileged().write(&secret, "sesame-opens-the-pod\n", 0o600).unwrap();
    let uids: Vec<String> = ["+DataReuseManifestSHA256", "my.datareusemanifestsha256", "+NobodyKnowsIt"]
        .iter()
        .enumerate()
        .map(|(number, attribute)| {
            let options = format!("rank = 1\n{attribute} = \"{}\"", secret.display());
            here.create(&with(&format!("reads-{number}"), "true", &json!({ "htcopts": options })))
        })
        .collect();
    // One that is run shows that there was time enough to run the others.
    here.create(&htcjob("fine", "true"));
    here.wait_ended("fine");
    for (number, uid) in uids.iter().enumerate() {
        let object = here.get(&format!("reads-{number}"));
        let submitted = condition(&object, "Submitted").unwrap();
        assert_eq!((submitted["status"].as_str(), submitted["reason"].as_str()), (Some("False"), Some("InvalidSpec")));
        assert!(submitted["message"].as_str().unwrap().starts_with("spec.htcopts line 2: `+"), "{submitted}");
        for jobs in [bed.queue(&of(uid), &["ClusterId"]), bed.history(&of(uid), &["ClusterId"])] {
            assert!(jobs.is_empty(), "{jobs:?}");
        }
    }
    for reported in [here.kubectl(&["get", "htcjobs,events", "-o", "yaml"]), bed.logs()] {
        assert!(!reported.contains("sesame"), "{reported}");
    }
}

#[rstest]
fn attributes_allowed_by_the_site_reach_the_job(#[values(Trixie)] version: Version) {
    let bed = Bed::shared(version);
    let here = bed.namespace();
    let uid = here.create(&with("own", "true", &json!({ "htcopts": "+runnumber = 12\n+Dataset = \"raw\"" })));
    let ended = here.wait_ended("own");
    assert!(is_true(&ended, "Complete"), "{ended:#}");
    here.wait_nothing_left(&uid);
    assert_eq!(bed.history(&of(&uid), &["RunNumber", "Dataset"]), [["12", "raw"]]);
    here.create(&with("unknown", "true", &json!({ "htcopts": "+Detector = 1" })));
    let refused = here.wait("unknown", "InvalidSpec", |object| {
        condition(object, "Submitted").is_some_and(|condition| condition["reason"] == "InvalidSpec")
    });
    let message = condition(&refused, "Submitted").unwrap()["message"].as_str().unwrap();
    assert!(message.contains("RunNumber, Dataset. The operator's administrator can allow more"), "{message}");
}

#[rstest]
fn fields_that_conflict_with_htcopts_are_refused(#[values(Trixie)] version: Version) {
    let bed = Bed::shared(version);
    let here = bed.namespace();
    for (name, fields, words) in [
        (
            "cpus",
            json!({ "resources": { "cpus": 2 }, "htcopts": "request_cpus = 4" }),
            "spec.resources.cpus: `request_cpus` conflicts with `request_cpus` on line 1",
        ),
        (
            "retries",
            json!({ "maxRetries": 2, "htcopts": "+MaxRuntime = 1\nmax_retries = 4" }),
            "spec.maxRetries: `max_retries` conflicts with `max_retries` on line 2",
        ),
        ("dollar", json!({ "requirements": "TARGET.Memory > $(X)" }), "spec.requirements: `$` is not allowed"),
        ("open", json!({ "requirements": "(TARGET.Memory" }), "spec.requirements: `requirements` expects a ClassAd"),
    ] {
        here.create(&with(name, "true", &fields));
        let refused = here.wait(name, "InvalidSpec", |object| {
            condition(object, "Submitted").is_some_and(|condition| condition["reason"] == "InvalidSpec")
        });
        let message = condition(&refused, "Submitted").unwrap()["message"].as_str().unwrap();
        assert!(message.contains(words), "{message}");
        here.delete(name);
    }
}

/// A named resource stands in for the devices. HTCondor says which it assigned, and the container is asked for with them.
#[rstest]
#[case::sid(Sid)]
#[ignore = "HTCondor's version makes no difference: make test-long"]
#[case::trixie(Trixie)]
fn gpus_reach_the_container(#[case] version: Version) {
    let (assets, scratch) = (Assets::locate().unwrap(), Scratch::new().unwrap());
    let bin = scratch.dir("bin").unwrap();
    let real = assets.job_bin();
    let wrapper =
        format!("#!/bin/sh\necho \"$@\" >>{}/called\nexec {}/apptainer \"$@\"\n", bin.display(), real.display());
    Account::unprivileged().write(&bin.join("apptainer"), wrapper, 0o755).unwrap();
    let path = format!("{}:{}:/usr/bin:/bin", bin.display(), real.display());
    let extra_config = format!("MACHINE_RESOURCE_GPUs = CUDA0, CUDA1\nSTARTER_JOB_ENVIRONMENT = \"PATH={path}\"\n");
    let bed = Bed::new(version, &PoolOptions { extra_config, ..PoolOptions::default() }, &[]);
    bed.start_operator();
    let here = bed.namespace();
    let source = "case $_CONDOR_AssignedGPUs in CUDA[01]) echo \"${CUDA_VISIBLE_DEVICES:+told}\" ;; esac";
    for (name, gpus, printed, asked) in [("with", 1, "told\n", true), ("without", 0, "", false)] {
        let _ = std::fs::remove_file(bin.join("called"));
        here.create(&with(name, source, &json!({ "resources": { "gpus": gpus } })));
        let ended = here.wait_ended(name);
        assert!(is_true(&ended, "Complete"), "{ended:#}");
        let called = std::fs::read_to_string(bin.join("called")).unwrap();
        assert_eq!(called.contains(" --nv "), asked, "{called}");
        assert_eq!((output(&here, name, "out"), output(&here, name, "err")), (printed.to_owned(), String::new()));
    }
}

#[rstest]
#[case::trixie(Trixie)]
#[ignore = "HTCondor's version makes no difference: make test-long"]
#[case::sid(Sid)]
fn env_reaches_only_the_script(#[case] version: Version) {
    let bed = Bed::shared(version);
    let here = bed.namespace();
    let value = " two  words, $HOME `id` 'one' \"two\" \\n 100% ä\nsecond line\n\n";
    let env = json!([
        { "name": "ODD", "value": value },
        { "name": "EMPTY", "value": "" },
        { "name": "PATH", "value": "/opt/first:/usr/bin:/bin" },
        { "name": "SECRET", "value": "sesame-opens" },
    ]);
    let source = "printf '%s|%s|%s' \"$ODD\" \"${EMPTY-unset}\" \"$PATH\"; until [ -e go ]; do sleep 0.2; done";
    let uid = here.create(&with("env", source, &json!({ "env": env })));
    here.wait_phase("env", "Running");
    let id = ids(&here.get("env")).remove(0);
    let long = bed.condor.ok("condor_q", &["-long", &id]).unwrap();
    assert!(long.contains(&uid) && !long.contains("sesame"), "{long}");
    let ended = here.let_go("env");
    assert!(is_true(&ended, "Complete"), "{ended:#}");
    assert_eq!(output(&here, "env", "out"), format!("{value}||/opt/first:/usr/bin:/bin"));
    assert!(!bed.condor.ok("condor_history", &["-long", &id]).unwrap().contains("sesame"));
}

#[rstest]
#[case::sid(Sid)]
#[ignore = "HTCondor's version makes no difference: make test-long"]
#[case::trixie(Trixie)]
fn max_retries_reruns_failed_jobs(#[case] version: Version) {
    let bed = Bed::shared(version);
    let here = bed.namespace();
    let retried = here.create(&with("retried", "exit 3", &json!({ "maxRetries": 2 })));
    let once = here.create(&with("once", "exit 3", &json!({ "maxRetries": 0 })));
    for (name, uid, runs) in [("retried", retried, "3"), ("once", once, "1")] {
        let ended = here.wait_ended(name);
        assert_eq!(counts(&ended), [0, 0, 1], "{ended:#}");
        here.wait_nothing_left(&uid);
        assert_eq!(bed.history(&of(&uid), &["NumJobCompletions", "ExitCode"]), [[runs, "3"]], "{name}");
    }
}

#[rstest]
#[case::trixie(Trixie)]
#[ignore = "HTCondor's version makes no difference: make test-long"]
#[case::sid(Sid)]
fn deadline_removes_unfinished_jobs(#[case] version: Version) {
    let bed = Bed::shared(version);
    let here = bed.namespace();
    // The first job ends by itself, the second never would, the third never starts.
    let source = format!("echo index $1; [ $1 = 0 ] && exit 0; {UNTIL_LET_GO}");
    let fields = json!({ "queue": 3, "activeDeadlineSeconds": 1000, "requirements": "MY.HTCJobIndex < 2" });
    let uid = here.create(&with("late", &source, &fields));
    here.wait("late", "one ended, one runs, one waits", |object| {
        ["succeeded", "running", "idle"].iter().all(|count| object["status"][*count] == 1)
    });
    here.merge("late", &json!({ "spec": { "activeDeadlineSeconds": 1 } }));
    let ended = here.wait_ended("late");
    assert_eq!(counts(&ended), [0, 1, 2], "{ended:#}");
    assert_eq!(condition(&ended, "Failed").unwrap()["reason"], "DeadlineExceeded");
    here.wait_event("late", "DeadlineExceeded");
    let events = here.events("late");
    let told: Vec<&String> =
        events.iter().filter(|(reason, _)| reason == "DeadlineExceeded").map(|(_, words)| words).collect();
    assert!(told.len() == 1 && told[0].contains("activeDeadlineSeconds (1) has passed"), "{events:?}");
    assert_eq!(output(&here, "late", "out"), "index 0\n");
    here.wait_nothing_left(&uid);
    let mut rows = bed.history(&of(&uid), &["HTCJobIndex", "JobStatus"]);
    rows.sort();
    assert_eq!(rows, [["0", "4"], ["1", "3"], ["2", "3"]]);
}

#[rstest]
#[ignore = "another test shows the same promise: make test-long"]
#[case::sid(Sid)]
#[ignore = "another test shows the same promise: make test-long"]
#[case::trixie(Trixie)]
fn suspension_stops_the_deadline_clock(#[case] version: Version) {
    let bed = Bed::shared(version);
    let here = bed.namespace();
    here.create(&with("clock", UNTIL_LET_GO, &json!({ "activeDeadlineSeconds": 40 })));
    here.wait_phase("clock", "Running");
    let began = std::time::Instant::now();
    here.suspend("clock", true);
    here.wait("clock", "held", |object| object["status"]["held"] == 1);
    wait_for("the deadline's time to pass", bed::PATIENCE, || began.elapsed().as_secs() > 41).unwrap();
    assert_eq!(here.get("clock")["status"]["held"], 1);
    here.suspend("clock", false);
    here.wait("clock", "it runs again", |object| object["status"]["running"] == 1);
    assert!(is_true(&here.let_go("clock"), "Complete"));
}

#[rstest]
#[case::sid(Sid)]
#[ignore = "HTCondor's version makes no difference: make test-long"]
#[case::trixie(Trixie)]
fn ttl_deletes_the_htcjob_after_its_end(#[case] version: Version) {
    let bed = Bed::shared(version);
    let here = bed.namespace();
    let uid = here.create(&with("brief", "echo kept", &json!({ "ttlSecondsAfterFinished": 0 })));
    here.create(&with("kept", "true", &json!({ "ttlSecondsAfterFinished": 100_000 })));
    here.wait_gone("brief");
    assert!(bed.queue(&of(&uid), &["ClusterId"]).is_empty());
    assert_eq!(output(&here, "brief", "out"), "kept\n");
    let ended = here.wait_ended("kept");
    assert!(is_true(&ended, "Complete"));
    // Its end is long over by another measure.
    here.merge("kept", &json!({ "spec": { "ttlSecondsAfterFinished": 1 } }));
    here.wait_gone("kept");
}
