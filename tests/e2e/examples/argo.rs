//! The workflow: its resource step as Argo runs it, with the rights of `argo/rbac.yaml` only.
//!
//! Argo's executor runs `kubectl create -f manifest -o json`, then reads the object every 5 s and evaluates the two conditions,
//! which are label selectors over the object's fields (workflow/executor/resource.go of Argo 3.7).

use std::fs;

use rstest::rstest;
use serde_json::{Value, json};
use testbed::Version::{self, Sid, Trixie};
use testbed::{tool, wait_for};

use crate::examples::{Site, folder, follow};
use bed::{self, Namespace};

/// A template whose parameters stand for what they stand for.
struct Step {
    manifest: String,
    success: String,
    failure: String,
}

impl Step {
    /// The resource step of `argo/workflow.yaml`, for so many jobs.
    fn read(queue: u32) -> Self {
        let text = fs::read_to_string(folder().join("argo/workflow.yaml")).unwrap();
        let workflow: Value = serde_saphyr::from_str(&text).unwrap();
        let templates = workflow["spec"]["templates"].as_array().unwrap();
        let step = templates.iter().find(|template| template["resource"].is_object()).unwrap();
        assert_eq!(step["resource"]["action"], "create");
        assert_eq!(step["inputs"]["parameters"], json!([{ "name": "queue" }]));
        let parameters = workflow["spec"]["arguments"]["parameters"].as_array().unwrap();
        assert!(parameters.iter().any(|parameter| parameter["name"] == "results"));
        let text = |field: &str| {
            let text = step["resource"][field].as_str().unwrap();
            let text = text.replace("{{inputs.parameters.queue}}", &queue.to_string());
            // Jobs of the test bed have no EOS.
            let text = text.replace("{{workflow.parameters.results}}/{{workflow.name}}", ".");
            let text = text.replace("{{workflow.name}}", "wf");
            assert!(!text.contains("{{"), "{field}: an unknown parameter: {text}");
            text
        };
        Self { manifest: text("manifest"), success: text("successCondition"), failure: text("failureCondition") }
    }
}

/// The service account of the workflow's steps.
struct Account<'a> {
    here: &'a Namespace<'a>,
    kubeconfig: std::path::PathBuf,
}

impl<'a> Account<'a> {
    fn of(here: &'a Namespace<'a>) -> Self {
        let user = format!("system:serviceaccount:{}:argo-htcjob", here.name);
        Self { here, kubeconfig: here.bed.kube.kubeconfig_for(&user, None).unwrap() }
    }

    fn kubectl(&self, arguments: &[&str], input: &str) -> Result<String, String> {
        let mut command = self.here.bed.kube.kubectl(&["-n", &self.here.name]);
        command.args(arguments).env("KUBECONFIG", &self.kubeconfig);
        let done = tool::run("asking as the workflow", &mut command, input, bed::PATIENCE).unwrap();
        if done.status.success() { Ok(done.stdout) } else { Err(done.stderr) }
    }

    /// Does the step; whether it succeeded, and the object as it was then.
    fn perform(&self, step: &Step) -> (bool, Value) {
        let created: Value =
            serde_json::from_str(&self.kubectl(&["create", "-f", "-", "-o", "json"], &step.manifest).unwrap()).unwrap();
        let name = created["metadata"]["name"].as_str().unwrap().to_owned();
        let ended = wait_for(&format!("a condition of {name}"), bed::PATIENCE, || {
            let object = self.kubectl(&["get", "htcjob", &name, "-o", "json"], "").unwrap();
            let object: Value = serde_json::from_str(&object).unwrap();
            if holds(&step.failure, &object) {
                return Some((false, object));
            }
            holds(&step.success, &object).then_some((true, object))
        });
        ended.unwrap_or_else(|error| panic!("{error}\n{:#}", self.here.get(&name)))
    }
}

/// Whether a label selector holds of an object's fields: all requirements, separated by commas; what is not there equals
/// nothing and is neither more nor less than anything.
fn holds(selector: &str, object: &Value) -> bool {
    selector.split(',').all(|requirement| {
        let words: Vec<&str> = requirement.split_whitespace().collect();
        let [key, operator, wanted] = words[..] else { panic!("no requirement: {requirement}") };
        let field = key.split('.').fold(object, |value, part| &value[part]);
        let number = || Some((field.as_i64()?, wanted.parse::<i64>().ok()?));
        match operator {
            "==" | "=" => !field.is_null() && field.to_string().trim_matches('"') == wanted,
            ">" => number().is_some_and(|(there, wanted)| there > wanted),
            "<" => number().is_some_and(|(there, wanted)| there < wanted),
            other => panic!("no operator: {other}"),
        }
    })
}

#[rstest]
#[case::sid(Sid)]
#[ignore = "HTCondor's version makes no difference: make test-long"]
#[case::trixie(Trixie)]
fn workflow_step_succeeds_with_its_htcjob(#[case] version: Version) {
    let here = follow(&Site::shared(version).bed, "argo/rbac.yaml");
    let (succeeded, object) = Account::of(&here).perform(&Step::read(5));
    assert!(succeeded && object["status"]["succeeded"] == 5, "{object:#}");
    let name = object["metadata"]["name"].as_str().unwrap();
    assert!(name.starts_with("wf-"), "{name}");
    here.wait_output(name);
    for index in 0..5 {
        let result = here.output(name, index).join(index.to_string());
        assert_eq!(fs::read_to_string(result).unwrap(), format!("{index}\n"));
    }
}

#[rstest]
#[case::trixie(Trixie)]
#[ignore = "HTCondor's version makes no difference: make test-long"]
#[case::sid(Sid)]
fn workflow_step_fails_when_a_job_fails(#[case] version: Version) {
    let here = follow(&Site::shared(version).bed, "argo/rbac.yaml");
    let mut step = Step::read(3);
    assert!(step.manifest.contains("mkdir -p"));
    step.manifest = step.manifest.replace("mkdir -p", "[ $1 != 1 ] || exit 3; mkdir -p");
    let (succeeded, object) = Account::of(&here).perform(&step);
    assert!(!succeeded && object["status"]["failed"] == 1, "{object:#}");
}

#[test]
fn workflow_account_has_only_the_rights_it_needs() {
    let here = follow(&Site::shared(Sid).bed, "argo/rbac.yaml");
    let user = format!("system:serviceaccount:{}:argo-htcjob", here.name);
    let may = |verb: &str, group: &str, resource: &str| {
        let asked = json!({ "verb": verb, "group": group, "resource": resource, "namespace": here.name });
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "spec": { "user": user, "resourceAttributes": asked },
        });
        let mut kubectl = here.bed.kube.kubectl(&["create", "-f", "-", "-o", "json"]);
        let answer = tool::run_ok("asking for rights", &mut kubectl, &review.to_string(), bed::PATIENCE).unwrap();
        serde_json::from_str::<Value>(&answer).unwrap()["status"]["allowed"] == true
    };
    for verb in ["create", "get"] {
        assert!(may(verb, "htc.cern.ch", "htcjobs"), "{verb}");
    }
    for verb in ["create", "patch"] {
        assert!(may(verb, "argoproj.io", "workflowtaskresults"), "{verb}");
    }
    for (verb, group, resource) in [
        ("delete", "htc.cern.ch", "htcjobs"),
        ("patch", "htc.cern.ch", "htcjobs"),
        ("update", "htc.cern.ch", "htcjobs/status"),
        ("get", "", "secrets"),
        ("list", "", "pods"),
    ] {
        assert!(!may(verb, group, resource), "{verb} {resource}");
    }
}
