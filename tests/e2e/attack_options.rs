//! Attacks on other namespaces by options of an HTCJob, on real servers.

use std::process::Command;

use bed::{Bed, PATIENCE, condition, htcjob, ids, is_true, of};
use htc_submit::description::{ClusterSettings, NodeFaultRules, QueueItem, submit_description};
use htc_submit::htcopts::HtcOpts;
use htc_submit::payload::{Image, Payload, sandbox_files};
use rstest::rstest;
use serde_json::{Value, json};
use testbed::Version::{self, Sid, Trixie};
use testbed::{Account, Assets, tool, wait_for};

const MARKER: &str = "sesame-opens-the-pod";

fn with(name: &str, fields: &Value) -> Value {
    let mut object = htcjob(name, "true");
    for (field, value) in fields.as_object().unwrap() {
        object["spec"][field] = value.clone();
    }
    object
}

/// No setting opens the first lock for such a name.
///
/// Against b8ba2a8: cannot succeed, because it has no `--allow-attribute`; there the attributes that are not known are allowed.
#[test]
fn operator_refuses_to_allow_attributes_of_htcondor() {
    for name in ["DataReuseManifestSHA256", "TransferOutputRemaps", "SUBMIT_Iwd", "Iwd"] {
        let mut operator = Command::new(env!("CARGO_BIN_EXE_htc-operator"));
        operator.args(["run", "--schedd", "s", &format!("--allow-attribute={name}")]);
        let ended = tool::run("starting the operator", &mut operator, "", PATIENCE).unwrap();
        assert_eq!(ended.status.code(), Some(2), "{ended:?}");
        assert!(ended.stderr.contains("cannot be allowed"), "{ended:?}");
    }
}

/// Were the name allowed all the same, the operator's own lines would take its effect away.
///
/// Against b8ba2a8: the operator does not take part in this test. There the attribute is allowed and submitted, as
/// `spec::attributes_that_read_files_of_the_operator_are_refused` shows, and nothing takes its effect away: it is the second half here.
#[rstest]
fn operator_files_stay_unread_even_if_the_attribute_is_allowed(#[values(Trixie, Sid)] version: Version) {
    let bed = Bed::shared(version);
    let account = Account::unprivileged();
    let scratch = bed.scratch().dir(&format!("manifest-{version:?}")).unwrap();
    let secret = scratch.join("secret");
    account.write(&secret, format!("{MARKER}\n"), 0o600).unwrap();
    let (image, command) = (
        Image::of_the_site(Assets::locate().unwrap().image().to_str().unwrap()).unwrap(),
        htc_submit::payload::Program::script("bash").unwrap(),
    );
    let payload = Payload {
        name: "m",
        image: &image,
        image_name: "centos",
        private: false,
        image_cache: None,
        program: &command,
        source: "true",
        binds: &[],
        volumes: &[],
        callback: None,
        files: &[],
        fetched: &[],
        secret_files: &[],
        secret_env: &[],
        env: &[],
        outputs: &[],
    };
    for file in sandbox_files(&payload).unwrap() {
        account.write(&scratch.join(file.name), file.contents, file.mode).unwrap();
    }
    let none = HtcOpts::default();
    let describe = |uid: &str, output: &std::path::Path| {
        let common = ClusterSettings {
            operator: "attack/options/x",
            not_after: 4_000_000_000,
            site_defaults: &none,
            options: &none,
            callback: false,
            files: false,
            output_limit: None,
            node_faults: NodeFaultRules { retries: 0, pause: 30 },
            mini_cluster: false,
            volumes: None,
            workers: None,
        };
        let job = QueueItem {
            uid,
            attempt: 1,
            index: 0,
            batch_name: "attack/options",
            sandbox: scratch.to_str().unwrap(),
            output: output.to_str().unwrap(),
            item: None,
            image: "python:3.12",
        };
        let attack = format!("MY.DataReuseManifestSHA256 = \"{}\"\n", secret.display());
        attack + &submit_description(&common, &[job]).unwrap()
    };
    let output = scratch.join("output");
    account.make_dir(&output, 0o755).unwrap();

    // As the operator submits it: the job runs, and the file is nowhere.
    let id = bed.condor.submit(&describe("attack-locked", &output)).unwrap();
    let ad = |id: &str| bed.condor.ok("condor_q", &["-allusers", "-long", id]).unwrap();
    wait_for("the job to end", PATIENCE, || ad(&id).contains("\nJobStatus = 4\n")).unwrap();
    let locked = ad(&id);
    assert!(locked.contains("ExitCode = 0") && !locked.contains(MARKER), "{locked}");
    assert!(!bed.spooled(&id).iter().any(|path| path.ends_with("secret")), "{:?}", bed.spooled(&id));

    // Without those lines it is on hold, with the file's text for a reason.
    let open: String = describe("attack-open", &output)
        .lines()
        .filter(|line| !line.starts_with("MY.DataReuse") || line.contains("secret"))
        .map(|line| line.to_owned() + "\n")
        .collect();
    let open = bed.condor.submit(&open).unwrap();
    wait_for("the attack to succeed", PATIENCE, || ad(&open).contains(MARKER)).unwrap();
    for id in [id, open] {
        bed.condor.ok("condor_rm", &[&id]).unwrap();
    }
}

/// Refused at once, and nothing of it comes to HTCondor.
///
/// Against b8ba2a8: succeeds. All ten are accepted.
#[rstest]
fn oversized_values_high_priorities_and_foreign_groups_are_refused(#[values(Trixie, Sid)] version: Version) {
    let bed = Bed::shared(version);
    let here = bed.namespace();
    let attribute = format!("+ProjectName = \"{}\"", "x".repeat(1900));
    let grown = format!("+JobCategory = strcat({})", ["ProjectName"; 100].join(","));
    let refused = [
        ("grown", json!({ "htcopts": format!("{attribute}\n{grown}") }), "spec.htcopts line 2: "),
        (
            "reason",
            json!({ "htcopts": "periodic_hold = true\nperiodic_hold_reason = strcat(Iwd, Iwd)", "queue": 60 }),
            "spec.htcopts line 2: `periodic_hold_reason` expects one text in double quotes",
        ),
        (
            "requirements",
            json!({ "requirements": format!("size(strcat({})) > 0", ["Iwd"; 17].join(",")) }),
            "spec.requirements: `requirements` expects a ClassAd expression",
        ),
        (
            "pattern",
            json!({ "requirements": "regexp(\"(a+)+b\", TARGET.Machine)" }),
            "a regular expression is not allowed: a group with",
        ),
        (
            "spaces",
            json!({ "requirements": "regexp(\"^(a +) +[bc]\", \"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\", \"x\")" }),
            "the options of `regexp(…)` may be `f`, `g`, `i` and `s` only",
        ),
        (
            "slow",
            json!({ "htcopts": "periodic_hold = regexp(\"a.*b.*c\", Iwd)", "queue": 60 }),
            "its regular expressions can take too long",
        ),
        ("priority", json!({ "htcopts": "priority = 2147483647", "queue": 2 }), "`priority` may be -1000..0 here"),
        (
            "group",
            json!({ "htcopts": "accounting_group = group_a" }),
            "the accounting group `group_a` is not allowed here",
        ),
        (
            "user",
            json!({ "htcopts": "accounting_group_user = other" }),
            "`accounting_group_user` needs `accounting_group`",
        ),
        (
            "attribute",
            json!({ "htcopts": "+AccountingGroup = \"group_a.other\"" }),
            "`group_a.other` is not allowed here",
        ),
    ];
    let uids: Vec<String> = refused.iter().map(|(name, fields, _)| here.create(&with(name, fields))).collect();
    for ((name, _, words), uid) in refused.iter().zip(&uids) {
        let object = here.wait(name, "InvalidSpec", |object| {
            condition(object, "Submitted").is_some_and(|condition| condition["reason"] == "InvalidSpec")
        });
        let message = condition(&object, "Submitted").unwrap()["message"].as_str().unwrap();
        assert!(message.contains(words), "{name}: {message}");
        let of = of(uid);
        for jobs in [bed.queue(&of, &["ClusterId"]), bed.history(&of, &["ClusterId"])] {
            assert!(jobs.is_empty(), "{name}: {jobs:?}");
        }
    }
}

/// A reason written by a user is kept where it is harmless; otherwise it is shortened and put on one line.
///
/// Against b8ba2a8: succeeds. What turns text is in the condition as it was written.
#[rstest]
fn hold_reason_from_htcopts_is_sanitized(#[values(Trixie, Sid)] version: Version) {
    let bed = Bed::shared(version);
    let here = bed.namespace();
    let reason = format!("held \u{202e}desrever\u{2028}{}", "é".repeat(200));
    let options = format!("periodic_hold = true\nperiodic_hold_reason = \"{reason}\"");
    here.create(&with("held", &json!({ "htcopts": options })));
    let object = here.wait("held", "Held", |object| is_true(object, "Held"));
    let message = condition(&object, "Held").unwrap()["message"].as_str().unwrap();
    assert!(message.contains("held \u{fffd}desrever\u{fffd}éé"), "{message:?}");
    assert!(!ids(&object).is_empty());
    let events: Vec<String> = here.events("held").into_iter().map(|(_, words)| words).collect();
    for reported in [events.join("\n"), bed.log(), object["status"].to_string()] {
        assert!(!reported.contains("\u{202e}desrever"), "{reported}");
    }
    here.delete("held");
}
