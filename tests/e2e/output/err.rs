//! The end of a failed job's `err` in its HTCJob.

use testbed::Version;

use bed::site::Site;
use bed::{Namespace, condition, htcjob, ids};

on_versions! {
    trixie: failed_condition_quotes_the_end_of_err;
    sid: hostile_err_files_are_harmless;
}

/// What `Failed` says once the end of `err` is known.
fn failed(here: &Namespace<'_>, name: &str) -> String {
    let wrote = |object: &serde_json::Value| {
        let message = condition(object, "Failed")?["message"].as_str()?.to_owned();
        message.contains(" ends with: ").then_some(message)
    };
    let object = here.wait(name, "Failed with the end of err", |object| wrote(object).is_some());
    wrote(&object).unwrap()
}

/// The messages of its Events with this reason.
fn events(here: &Namespace<'_>, name: &str, reason: &str) -> Vec<String> {
    here.events(name).into_iter().filter(|(other, _)| other == reason).map(|(_, message)| message).collect()
}

fn failed_condition_quotes_the_end_of_err(version: Version) {
    let site = Site::start(version);
    let here = site.bed.namespace();
    let mut noisy = htcjob(
        "noisy",
        "echo \"from $1\" >&2; [ $1 != 0 ] || exit 0; [ $1 = 1 ] || exit 4\n\
         for n in {1..30}; do echo \"line $n\" >&2; done; printf '\\e[31mboom\\e[0m\\xff\\tit broke\\r\\n\\n' >&2; exit 3",
    );
    noisy["spec"]["queue"] = 3.into();
    here.create(&noisy);
    here.create(&htcjob("huge", "head -c 5000000 /dev/zero | tr '\\0' x >&2; echo END >&2; exit 1"));
    here.create(&htcjob("silent", "echo only out; exit 7"));
    here.create(&htcjob("fine", "echo on err >&2"));

    let message = failed(&here, "noisy");
    let ids_of_noisy = ids(&here.get("noisy"));
    let lines: Vec<String> = (22..=30).map(|line| format!("line {line}")).collect();
    let wanted = format!(
        "2 of 3 jobs failed: exit code 3 (1), exit code 4 (1); job 1 ({}) exited with 3; the err of job 1 ends with: {} | \u{fffd}[31mboom\u{fffd}[0m\u{fffd} it broke",
        ids_of_noisy[1],
        lines.join(" | ")
    );
    assert_eq!(message, wanted);
    let object = here.wait_ended("noisy");
    let status = &object["status"];
    assert_eq!([&status["state"], &status["completedIndexes"], &status["failedIndexes"]], ["Failed", "0", "1-2"]);
    assert_eq!(condition(&object, "Failed").unwrap()["reason"], "JobsFailed");
    here.wait_event("noisy", "JobsFailed");
    assert_eq!(events(&here, "noisy", "JobsFailed"), [message.as_str()], "the Event that tells it");
    assert_eq!(events(&here, "noisy", "Failed").len(), 1, "the end itself is told once, before the output is here");

    let message = failed(&here, "huge");
    assert!(message.len() < 700 && message.ends_with("xxxEND"), "{message}");

    let ended = here.wait_ended("silent");
    let message = condition(&ended, "Failed").unwrap()["message"].as_str().unwrap();
    assert_eq!(message, format!("1 of 1 job failed; job 0 ({}) exited with 7", ids(&ended)[0]));
    here.wait_says("silent", "OutputFetched", "True", "Fetched");
    let ended = here.wait_ended("fine");
    assert!(!condition(&ended, "Complete").unwrap()["message"].as_str().unwrap().contains("err"), "{ended:#}");
    for name in ["silent", "fine"] {
        assert!(events(&here, name, "JobsFailed").is_empty(), "{name}");
    }
    // What stood in the ledger stands there after a restart, and is not told again.
    site.assert_events_match_journal(&here);
    assert_eq!(events(&here, "noisy", "JobsFailed").len(), 1);
    assert_eq!(failed(&here, "noisy"), wanted);
}

/// Jobs that put something else in the place of their `err`, and beside it.
fn hostile_err_files_are_harmless(version: Version) {
    let site = Site::start(version);
    let here = site.bed.namespace();
    let swap = |with: &str| format!("echo mine >&2; rm -f _condor_stderr; {with} _condor_stderr; exit 3");
    here.create(&htcjob("pipe", &swap("mkfifo")));
    here.create(&htcjob("link", &swap("ln -s /etc/passwd")));
    here.create(&htcjob(
        "beside",
        "ln -s /etc/passwd link; ln -s / root; ln -s missing dangling; echo mine >&2; exit 3",
    ));
    let left =
        |links: u8| format!("mine | htc-operator: links do not come back as output ({links}): copy what they lead to");
    let special =
        "mine | htc-operator: sockets, pipes and devices do not come back as output (1): write files".to_owned();
    for (name, err) in [("pipe", special), ("link", left(1)), ("beside", left(3))] {
        let message = failed(&here, name);
        assert!(message.ends_with(&format!("; the err of job 0 ends with: {err}")), "{message}");
        let files = bed::files_below(&here.output(name, 0), &|_| true);
        assert_eq!(files.len(), 2, "out and err: {files:?}");
        for file in files {
            let kind = std::fs::symlink_metadata(&file).unwrap().file_type();
            println!("{version}: {name}: {}: {kind:?}", file.display());
            assert!(kind.is_file(), "{}: {kind:?}", file.display());
        }
    }
}
