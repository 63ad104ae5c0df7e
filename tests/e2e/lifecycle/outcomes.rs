//! Ends of jobs: exit codes, output, and HTCondor's history.

use std::path::Path;

use rstest::rstest;
use serde_json::json;
use testbed::Version::{self, Sid, Trixie};
use testbed::{Account, PoolOptions, Scratch};

use crate::lifecycle::{UNTIL_LET_GO, condition_parts, counts, ids, in_history, of, read};
use bed::{Bed, Namespace, htcjob, is_true};

#[rstest]
#[case::sid(Sid)]
#[ignore = "HTCondor's version makes no difference: make test-long"]
#[case::trixie(Trixie)]
fn exit_code_0_succeeds(#[case] version: Version) {
    let bed = Bed::shared(version);
    let here = bed.namespace();
    // Outputs that are called like the files it was started from.
    let uid = here.create(&htcjob("zero", "echo A; echo made > made.txt; echo mine | tee job.sh > script.sh"));
    let ended = here.wait_ended("zero");
    assert!(is_true(&ended, "Complete"), "{ended:#}");
    assert_eq!(ended["status"]["phase"], "Completed");
    assert_eq!(counts(&ended), [0, 1, 0]);
    for (file, text) in [("out", "A\n"), ("err", ""), ("made.txt", "made\n"), ("job.sh", "mine\n")] {
        assert_eq!(read(&here, "zero", 0, file), text, "{file}");
    }
    assert!(!here.output("zero", 0).join("script.sh").exists());
    let sandbox = bed.data.join("sandbox").join(&uid);
    let job_sh = std::fs::read_to_string(sandbox.join("job.sh")).unwrap();
    assert_eq!(job_sh, include_str!("../../../crates/submit/src/payload/job.sh"));
    assert!(std::fs::read_to_string(sandbox.join("script.sh")).unwrap().starts_with("echo A;"));
    here.wait_nothing_left(&uid);
    bed.wait_spool_free(&ids(&ended));
    assert_eq!(in_history(bed, &of(&uid), &["JobStatus", "ExitCode", "NumJobStarts"]), ["4", "0", "1"]);
}

/// What HTCondor's variables name, and where a script writes temporary files, is on the scratch disk and has room.
#[rstest]
fn script_has_its_ads_and_writable_temporary_folders(#[values(Trixie, Sid)] version: Version) {
    let bed = Bed::shared(version);
    let here = bed.namespace();
    let script = r#"set -e
        for folder in "$TMPDIR" "$TMP" "$TEMP" "$_CONDOR_SCRATCH_DIR" /var/tmp "$HOME"; do echo x >"$folder/written"; done
        grep -q '^ClusterId' "$_CONDOR_JOB_AD"; grep -q '^Cpus' "$_CONDOR_MACHINE_AD"
        echo x >"$(mktemp)"; dd if=/dev/zero of=/tmp/large bs=1M count=200 2>/dev/null; wc -c </tmp/large
        echo result >"$_CONDOR_SCRATCH_DIR/result""#;
    here.create(&htcjob("places", script));
    let ended = here.wait_ended("places");
    assert!(is_true(&ended, "Complete"), "{ended:#}");
    assert_eq!(read(&here, "places", 0, "out").trim(), "209715200");
    assert_eq!(read(&here, "places", 0, "result"), "result\n");
}

/// HTCondor 25.14 has job states of its own for jobs that it does not match yet.
#[test]
fn job_in_preparation_is_idle() {
    let options = PoolOptions {
        extra_config: "JOB_PREPARING_TASK_NAMES = SLOW\nJOB_PREPARING_TASK_SLOW_EXECUTABLE = /bin/true\nJOB_PREPARING_INTERVAL = 20\n"
            .to_owned(),
        ..PoolOptions::default()
    };
    let bed = Bed::new(Sid, &options, &[]);
    bed.start_operator();
    let here = bed.namespace();
    let uid = here.create(&htcjob("prepared", "true"));
    here.wait("prepared", "idle", |object| object["status"]["idle"] == 1);
    bed.wait_ledger(&format!("select jobStatus from htcjobs where uid = '{uid}'"), &[&["10"]]);
    let seen = here.get("prepared");
    assert!(!bed::condition(&seen, "Tracked").is_some_and(|condition| condition["status"] == "False"), "{seen:#}");
    // 25.14.1 never ends the preparation of a job with spooled files.
    here.delete("prepared");
    here.wait_nothing_left(&uid);
}

#[rstest]
#[case::trixie(Trixie)]
#[ignore = "HTCondor's version makes no difference: make test-long"]
#[case::sid(Sid)]
fn exit_codes_are_reported(#[case] version: Version) {
    let bed = Bed::shared(version);
    let here = bed.namespace();
    let cases = [
        // The original's example retcode/notzero.yaml.
        ("notzero", "#!/bin/bash\ncommandt-that-doesnt-exist\n", 127),
        ("seven", "echo seven; exit 7", 7),
        ("killed-inside", "kill -9 $$", 137),
        ("own-255", "exit 255", 255),
    ];
    let uids = cases.map(|(name, source, _)| here.create(&htcjob(name, source)));
    for ((name, _, code), uid) in cases.into_iter().zip(uids) {
        let ended = here.wait_ended(name);
        let id = ids(&ended).remove(0);
        assert_eq!(counts(&ended), [0, 0, 1], "{name}");
        let message = format!("1 of 1 job failed; job 0 ({id}) exited with {code}");
        let err = read(&here, name, 0, "err");
        let wrote = err.lines().last().map(|last| format!("{message}; the err of job 0 ends with: {last}"));
        assert_eq!(
            condition_parts(&ended, "Failed"),
            ["True", "JobsFailed", wrote.as_ref().unwrap_or(&message)],
            "{name}"
        );
        assert!(!is_true(&ended, "Complete"), "{name}");
        here.wait_nothing_left(&uid);
        let code = code.to_string();
        assert_eq!(in_history(bed, &of(&uid), &["JobStatus", "ExitCode"]), ["4", &code], "{name}");
        // The original's code for a failed job, and ten for its output, which is here.
        bed.wait_ledger(
            &format!("select htcjobName, jobId, status, exitCode from htcjobs where uid = '{uid}'"),
            &[&[name, &id, "17", &code]],
        );
    }
    assert_eq!(read(&here, "seven", 0, "out"), "seven\n");
    assert!(read(&here, "notzero", 0, "err").contains("commandt-that-doesnt-exist"));
}

#[rstest]
#[case::sid(Sid)]
#[ignore = "HTCondor's version makes no difference: make test-long"]
#[case::trixie(Trixie)]
fn job_killed_from_outside_failed_by_signal(#[case] version: Version) {
    let bed = Bed::shared(version);
    let here = bed.namespace();
    let uid = here.create(&htcjob("killed", &format!("echo here > part; {UNTIL_LET_GO}")));
    here.wait_running("killed", 1);
    bed.kill_job(&uid, "part");
    let ended = here.wait_ended("killed");
    let message = format!("1 of 1 job failed; job 0 ({}) was killed by signal 9", ids(&ended)[0]);
    // The shell in the container may have a last word about it.
    let [status, reason, text] = condition_parts(&ended, "Failed");
    assert_eq!([status.as_str(), reason.as_str()], ["True", "JobsFailed"]);
    assert!(text == message || text.starts_with(&format!("{message}; the err of job 0 ends with: ")), "{text}");
    assert!(!here.output("killed", 0).join("part").exists(), "nobody was left to hand it over");
    here.wait_nothing_left(&uid);
    let attributes = ["JobStatus", "ExitBySignal", "ExitSignal", "NumJobStarts"];
    assert_eq!(in_history(bed, &of(&uid), &attributes), ["4", "true", "9", "1"]);
}

#[rstest]
#[case::trixie(Trixie)]
#[ignore = "HTCondor's version makes no difference: make test-long"]
#[case::sid(Sid)]
fn each_job_has_its_index(#[case] version: Version) {
    let bed = Bed::shared(version);
    let here = bed.namespace();
    let source = "echo \"$1 $HTCPROCID $JOB_NAME\"; echo \"$1\" > number";
    let mut three = htcjob("three", source);
    three["spec"]["queue"] = 3.into();
    // Where the original's README has it.
    let mut two = htcjob("two", source);
    two["spec"]["script"]["queue"] = 2.into();
    let mut four = htcjob("four", source);
    four["spec"]["queue"] = 4.into();
    four["spec"]["script"]["queue"] = 4.into();
    let objects = [(htcjob("first", source), "first", 1), (three, "three", 3), (two, "two", 2), (four, "four", 4)];
    // Those that come while the first is handed over share one cluster: there the number is not HTCondor's ProcId.
    here.create_all(&objects.each_ref().map(|(object, ..)| object.clone()));
    for (_, name, queue) in objects {
        let ended = here.wait_ended(name);
        assert!(is_true(&ended, "Complete"), "{ended:#}");
        assert_eq!(counts(&ended), [0, queue.into(), 0]);
        let all = if queue == 1 { "0".to_owned() } else { format!("0-{}", queue - 1) };
        assert_eq!(
            (&ended["status"]["completedIndexes"], &ended["status"]["failedIndexes"]),
            (&json!(all), &json!(null))
        );
        assert_eq!(ids(&ended).len(), queue as usize);
        for index in 0..queue {
            assert_eq!(read(&here, name, index, "out"), format!("{index} {index} {name}\n"));
            assert_eq!(read(&here, name, index, "number"), format!("{index}\n"));
        }
        assert!(!here.output(name, queue).exists());
        here.wait_nothing_left(&here.uid(name));
        bed.wait_spool_free(&ids(&ended));
        eprintln!("{version}: {name} was {:?}", ids(&ended));
    }
}

#[rstest]
#[case::sid(Sid)]
#[ignore = "HTCondor's version makes no difference: make test-long"]
#[case::trixie(Trixie)]
fn only_indexes_in_the_spec_run(#[case] version: Version) {
    let here = Bed::shared(version).namespace();
    let mut some = htcjob("some", "echo $1; [ $1 != 17 ]");
    (some["spec"]["queue"], some["spec"]["indexes"]) = (1000.into(), "200-202,3,17".into());
    let mut beyond = htcjob("beyond", "true");
    (beyond["spec"]["queue"], beyond["spec"]["indexes"]) = (10.into(), "9-10".into());
    here.create_all(&[some, beyond]);
    let ended = here.wait_ended("some");
    assert_eq!((counts(&ended), ids(&ended).len()), ([0, 4, 1], 5));
    let status = &ended["status"];
    assert_eq!((&status["total"], &status["completedIndexes"]), (&json!(5), &json!("3,200-202")), "{ended:#}");
    assert_eq!(status["failedIndexes"], "17");
    assert_eq!(read(&here, "some", 202, "out"), "202\n");
    assert!(!here.output("some", 0).exists() && !here.output("some", 4).exists());
    let reported = here.wait("beyond", "a refusal", |object| object["status"]["state"] == "InvalidSpec");
    let message = "spec.indexes: \"9-10\" is neither an index from 0 to 9 nor a range of them such as 3-7";
    assert_eq!(reported["status"]["message"], message);
}

/// What a job says that failed before its payload, in HTCondor, in Kubernetes and in its own error file.
fn failed_before_the_payload(here: &Namespace<'_>, name: &str, code: i32, sentence: &str, line: &str) {
    let uid = here.uid(name);
    let ended = here.wait_ended(name);
    let id = ids(&ended).remove(0);
    assert_eq!(counts(&ended), [0, 0, 1]);
    let (begin, end) =
        (format!("1 of 1 job failed; job 0 ({id}) could not run its script on "), format!(" ({code}): {sentence}"));
    let message = here.event_message(name, "Failed");
    assert!(message.starts_with(&begin) && message.ends_with(&end), "{message}");
    let [status, reason, text] = condition_parts(&ended, "Failed");
    assert_eq!([status.as_str(), reason.as_str()], ["True", "JobsFailed"]);
    assert!(text.starts_with(&format!("{message}; the err of job 0 ends with: ")), "{text}");
    assert!(text.contains(&format!("htc-operator: {line}")), "{text}");
    assert_eq!(here.event_message(name, "Failed"), message);
    assert_eq!(here.event_message(name, "JobsFailed"), text);
    let err = read(here, name, 0, "err");
    assert!(err.lines().last().is_some_and(|last| last.starts_with(&format!("htc-operator: {line}"))), "{name}: {err}");
    assert_eq!(read(here, name, 0, "out"), "", "the payload never ran");
    here.wait_nothing_left(&uid);
    let attributes = ["ExitSignal", "NumJobStarts", "NumShadowStarts"];
    assert_eq!(
        in_history(here.bed, &of(&uid), &attributes),
        [&(code - 200).to_string(), "1", "1"],
        "{name}: one start"
    );
}

#[rstest]
#[case::trixie(Trixie)]
#[ignore = "HTCondor's version makes no difference: make test-long"]
#[case::sid(Sid)]
fn missing_image_or_command_is_reported(#[case] version: Version) {
    let bed = Bed::shared(version);
    let here = bed.namespace();
    for (name, image, command) in [
        ("no-folder", "/cvmfs/nosuch/image", "bash"),
        ("no-registry", "registry.invalid/team/image:1", "bash"),
        ("no-command", "centos", "nosuchcommand -x"),
    ] {
        let mut object = htcjob(name, "echo ran");
        object["spec"]["script"]["image"] = image.into();
        object["spec"]["script"]["command"] = command.into();
        here.create(&object);
    }
    let image = "the node cannot pull or open the image in spec.script.image or spec.container.image, or cannot start a container from it; see the file err";
    failed_before_the_payload(&here, "no-folder", 243, image, "the image /cvmfs/nosuch/image cannot be had on ");
    failed_before_the_payload(
        &here,
        "no-registry",
        243,
        image,
        "the image docker://registry.invalid/team/image:1 cannot be had on ",
    );
    let command = "the image does not contain the command in spec.script.command or spec.container.command, or has no entrypoint; see the file err";
    failed_before_the_payload(&here, "no-command", 244, command, "the command nosuchcommand is not in the image /");
}

#[rstest]
#[case::sid(Sid)]
#[ignore = "HTCondor's version makes no difference: make test-long"]
#[case::trixie(Trixie)]
fn missing_container_runtime_is_reported(#[case] version: Version) {
    let scratch = Scratch::new().unwrap();
    let bin = scratch.dir("bin").unwrap();
    for program in ["uname", "mkdir", "chmod", "rm", "grep", "tail"] {
        let found = ["/usr/bin", "/bin"].map(|folder| Path::new(folder).join(program));
        std::os::unix::fs::symlink(found.iter().find(|path| path.exists()).unwrap(), bin.join(program)).unwrap();
    }
    Account::unprivileged().must_reach(&bin).unwrap();
    let extra_config = format!("STARTER_JOB_ENVIRONMENT = \"PATH={}\"", bin.display());
    let bed = Bed::new(version, &PoolOptions { extra_config, ..PoolOptions::default() }, &[]);
    bed.start_operator();
    let here = bed.namespace();
    here.create(&htcjob("bare", "echo ran"));
    let sentence = "the node has neither Apptainer nor Singularity in its PATH";
    failed_before_the_payload(&here, "bare", 242, sentence, "neither apptainer nor singularity is in PATH on ");
    // Nobody else uses this pool: all that is left is what HTCondor had at its start.
    bed.wait_spool_free(&ids(&here.get("bare")));
    assert!(bed.queue("true", &["ClusterId"]).is_empty());
    let spool = std::fs::read_dir(bed.pool.spool_dir()).unwrap().flatten();
    let folders: Vec<_> = spool.filter(|entry| entry.path().is_dir()).map(|entry| entry.file_name()).collect();
    assert!(folders.iter().all(|name| name == "local_univ_execute"), "{folders:?}");
}
