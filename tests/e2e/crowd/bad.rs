//! Ten kinds of bad HTCJobs, and the condition that reports each.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use serde_json::{Value, json};

use bed::census::Seen;
use bed::site::Site;
use bed::{UNTIL_LET_GO, condition, is_true};

/// The pool takes no job of the HTCJob `refused`.
pub const CLOSED: &str = "SUBMIT_REQUIREMENT_NAMES = Name\nSUBMIT_REQUIREMENT_Name = !regexp(\"/refused$\", JobBatchName)\n\
                          SUBMIT_REQUIREMENT_Name_REASON = \"the pool takes no job of this name\"\n";

/// One way to be bad.
pub struct Bad {
    pub name: &'static str,
    /// What is bad about its spec.
    spec: fn(&mut Value),
    /// Runs after it has noted that it ran.
    script: &'static str,
    phase: &'static str,
    /// Active, succeeded, failed; idle, held.
    counts: [i64; 3],
    idle: i64,
    held: i64,
    /// Type, status and reason of the condition that tells it.
    told: [&'static str; 3],
    words: &'static [&'static str],
    /// Whether HTCondor has, or had, a job of it.
    accepted: bool,
    /// How often its payload may have run.
    pub runs: RangeInclusive<usize>,
}

/// Bad before it comes to HTCondor.
const NEVER_IN: Bad = Bad {
    name: "",
    spec: |_| (),
    script: "",
    phase: "Pending",
    counts: [0, 0, 0],
    idle: 0,
    held: 0,
    told: ["Submitted", "False", "InvalidSpec"],
    words: &[],
    accepted: false,
    runs: 0..=0,
};

/// Accepted by HTCondor, and failed.
const FAILED: Bad =
    Bad { phase: "Completed", counts: [0, 0, 1], told: ["Failed", "True", "JobsFailed"], accepted: true, ..NEVER_IN };

pub const BAD: &[Bad] = &[
    Bad {
        name: "imageless",
        spec: |spec| spec["script"]["image"] = "registry.invalid/team/image:1".into(),
        words: &["1 of 1 job failed", "(243): the node cannot pull or open the image in spec.script.image"],
        ..FAILED
    },
    Bad {
        name: "executable",
        spec: |spec| spec["htcopts"] = "executable = /bin/true".into(),
        words: &["spec.htcopts line 1", "executable"],
        ..NEVER_IN
    },
    Bad {
        name: "held",
        spec: |spec| spec["htcopts"] = "periodic_hold = true\nperiodic_hold_reason = \"never here\"".into(),
        script: UNTIL_LET_GO,
        phase: "Submitted",
        counts: [1, 0, 0],
        held: 1,
        told: ["Held", "True", "JobsHeld"],
        words: &["1 of 1 job held", "never here", "condor_release"],
        accepted: true,
        // It may have begun when HTCondor first looks at the expression.
        runs: 0..=1,
        ..NEVER_IN
    },
    Bad {
        name: "removed",
        spec: |spec| spec["htcopts"] = "requirements = false".into(),
        told: ["Failed", "True", "Removed"],
        words: &["1 of 1 job failed", "was removed from HTCondor"],
        ..FAILED
    },
    Bad {
        name: "refused",
        told: ["Submitted", "False", "SubmitRefused"],
        words: &["condor_submit", "no job of this name", "retrying"],
        ..NEVER_IN
    },
    Bad {
        name: "unmatched",
        spec: |spec| spec["requirements"] = "TARGET.Memory < 0".into(),
        phase: "Submitted",
        counts: [1, 0, 0],
        idle: 1,
        told: ["Submitted", "True", "Accepted"],
        accepted: true,
        ..NEVER_IN
    },
    Bad {
        name: "folderless",
        told: ["Submitted", "False", "CannotWriteFiles"],
        words: &["cannot make", "folderless", "data volume"],
        ..NEVER_IN
    },
    Bad {
        name: "killed",
        script: "kill -9 $$",
        words: &["1 of 1 job failed", "exited with 137"],
        runs: 1..=1,
        ..FAILED
    },
    Bad {
        name: "commandless",
        spec: |spec| spec["script"]["command"] = "nosuchcommand -x".into(),
        words: &["1 of 1 job failed", "(244): the image does not contain the command in spec.script.command"],
        ..FAILED
    },
    Bad {
        name: "twice",
        spec: |spec| {
            spec["resources"] = json!({ "cpus": 2 });
            spec["htcopts"] = "request_cpus = 4".into();
        },
        words: &["spec.resources.cpus: `request_cpus` conflicts with `request_cpus` on line 1"],
        ..NEVER_IN
    },
];

/// Active, succeeded, failed; 0 where nothing is said.
pub fn counts(object: &Value) -> [i64; 3] {
    ["active", "succeeded", "failed"].map(|count| object["status"][count].as_i64().unwrap_or(0))
}

impl Bad {
    pub fn object(&self, site: &Site) -> Value {
        let mut object = site.noted(self.name, 1, self.script);
        (self.spec)(&mut object["spec"]);
        object
    }

    /// What is not yet as it must be.
    pub fn wrong(&self, objects: &[Value], jobs: &BTreeMap<String, Vec<Seen>>) -> Option<String> {
        let object = objects.iter().find(|object| object["metadata"]["name"] == self.name).unwrap();
        let status = &object["status"];
        let number = |name: &str| status[name].as_i64().unwrap_or(0);
        let [kind, wanted, reason] = self.told;
        let reported = condition(object, kind).is_some_and(|condition| {
            let message = condition["message"].as_str().unwrap_or_default();
            condition["status"] == wanted
                && condition["reason"] == reason
                && self.words.iter().all(|words| message.contains(words))
        });
        let ended = self.phase == "Completed";
        let accepted = jobs
            .get(object["metadata"]["uid"].as_str().unwrap())
            .map_or(0, |jobs| jobs.iter().filter(|job| job.accepted).count());
        // Held while it runs it has been running.
        let phase = status["phase"] == self.phase || (self.held == 1 && status["phase"] == "Running");
        let right = reported
            && phase
            && counts(object) == self.counts
            && [number("idle"), number("held")] == [self.idle, self.held]
            && is_true(object, "Failed") == ended
            && !is_true(object, "Complete")
            && is_true(object, "Submitted") == self.accepted
            && is_true(object, "Held") == (self.held == 1)
            && accepted == usize::from(self.accepted);
        (!right).then(|| format!("{} with {accepted} accepted jobs: {status:#}", self.name))
    }
}
