//! The component of the jobs API: the operator and the front under exactly its rights, each as its own service account, installed in
//! the order of docs/jobs-api.md.

use std::panic::AssertUnwindSafe;

use serde_json::{Value, json};
use testbed::{KubeOptions, Version, wait_for};

use crate::deploy::manifests::{each, find, list, path, render, render_with};
use crate::deploy::overlays::dry_run;
use crate::deploy::rbac::token_of;
use crate::deploy::rights::{self, Right};
use bed::api::OWN_SECRETS;
use bed::front::{API_SERVICE, available};
use bed::pages::{Block, blocks, read};
use bed::{ACCOUNT, Bed, LONG_SUBMISSIONS, Namespace, PATIENCE, UNTIL_LET_GO, htcjob};

const COMPONENT: &str = "../../components/jobs-api";
const FRONT: &str = "system:serviceaccount:htc-operator:htc-operator-jobs-api";
const AUTHORITY: &str = "htc-operator-jobs-api-authority";

#[test]
fn jobs_api_needs_exactly_its_rights() {
    let audit = KubeOptions { audit: true, ..KubeOptions::default() };
    let arguments = [LONG_SUBMISSIONS, &["--jobs-api-certificate-life=60s"]].concat();
    let bed = Bed::with_jobs_api_alone(Version::Sid, &audit, &arguments);
    // It makes `view` and `edit` what they are in every cluster.
    let _controllers = bed.controllers(&["clusterrole-aggregation-controller"]);
    let overlay = render_with("overlays/local", COMPONENT);
    let (mut installed, mut known) = (overlay.clone(), render("jobs-api"));
    bed.log_in(&install(&bed, &mut installed));

    let here = bed.namespace();
    let story = std::panic::catch_unwind(AssertUnwindSafe(|| story(&here, &mut known)));
    let log = bed.kube.audit_log();
    let (operator, front) = (rights::asked(&log, ACCOUNT), rights::asked(&log, FRONT));
    // A right that is missing is named before what came of it. The front asks for the ConfigMap before it may have it.
    rights::must_suffice(&operator);
    rights::must_suffice(&front.iter().filter(|asked| asked.resource != "configmaps").cloned().collect::<Vec<_>>());
    story.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    let all = [overlay, known, vec![reader()]].concat();
    let of_the_component = |right: &Right| right.role.contains("jobs-api");
    let for_it = rights::of(&all, "htc-operator", "htc-operator").into_iter().filter(of_the_component);
    let for_it: Vec<Right> = for_it.collect();
    let for_the_front = rights::of(&all, "htc-operator", "htc-operator-jobs-api");
    assert!(for_it.len() == 6 && for_the_front.len() >= 3, "{for_it:?} {for_the_front:?}");
    rights::must_be_needed(&for_it, &operator);
    // The API server's own role lets it do more with the one ConfigMap.
    let own = |right: &&Right| !right.group.is_empty() || right.resource != "configmaps" || right.verb == "get";
    rights::must_be_needed(&for_the_front.iter().filter(own).cloned().collect::<Vec<_>>(), &front);
    removed(&bed);
}

/// The role in kube-system that every API server makes.
fn reader() -> Value {
    json!({
        "kind": "Role",
        "metadata": { "name": "extension-apiserver-authentication-reader", "namespace": "kube-system" },
        "rules": [{
            "apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["extension-apiserver-authentication"],
            "verbs": ["get", "list", "watch"],
        }],
    })
}

/// Applies the overlay; the operator's token. There is no network of pods, so the fronts' Service stands for this machine.
fn install(bed: &Bed, objects: &mut [Value]) -> String {
    for object in objects.iter_mut() {
        if object["kind"] == "Service" && object["metadata"]["name"] == "htc-operator-jobs-api" {
            object["spec"] = json!({ "type": "ExternalName", "externalName": "localhost" });
        }
    }
    bed.apply_all(objects);
    bed.kube.kubectl_ok(&["apply", "-f", path("deploy/crd/users.yaml").to_str().unwrap()]).unwrap();
    token_of(bed, "htc-operator")
}

fn story(here: &Namespace<'_>, known: &mut [Value]) {
    let bed = here.bed;
    bed.start_operator();
    let front = bed.front_as(&token_of(bed, "htc-operator-jobs-api"));
    // The front waits for the right to read whom it may let in, which it says, and is ready before the API is known.
    wait_for("the front to have a certificate", PATIENCE, || {
        let log = front.log();
        if log.contains("serving certificate loaded") { Ok(()) } else { Err(format!("{log}\n{}", bed.log())) }
    })
    .unwrap();
    let (ready, why) = front.readiness().unwrap();
    assert!(!ready && why.contains("whom the API server trusts"), "{why}");
    let file = path("deploy/jobs-api/reader.yaml");
    bed.kube.kubectl_ok(&["apply", "-f", file.to_str().unwrap()]).unwrap();
    wait_for("the front to be ready", PATIENCE, || match front.readiness() {
        Ok((true, _)) => Ok(()),
        other => Err(format!("{other:?}\n{}", front.log())),
    })
    .unwrap();
    assert_eq!(dry_run(&bed.kube, known).as_deref(), Ok(""));
    let service = known.iter_mut().find(|object| object["kind"] == "APIService").unwrap();
    service["spec"]["service"]["port"] = front.port.number.into();
    bed.apply_all(known);
    bed.wait_known();
    assert_eq!(available(bed)["status"], "True");
    view_and_edit(here);
    only_who_edits_acts(here);
    renewed(bed);
    only_its_own(bed);
}

/// What the roles that everybody has let people do.
fn view_and_edit(here: &Namespace<'_>) {
    let (viewer, editor) = (here.person("viewer", &["view"]), here.person("editor", &["edit"]));
    let there = here.bed.namespace();
    // Roles are aggregated a moment after they are made.
    viewer.comes_to_see(&["get", "htcjobs"]);
    wait_for("the right to make HTCJobs", PATIENCE, || {
        let output = editor.kubectl(&["auth", "can-i", "create", "htcjobs"]).stdout;
        if output.trim() == "yes" { Ok(()) } else { Err(output) }
    })
    .unwrap();
    let file = here.bed.scratch().path().join("fit.json");
    std::fs::write(&file, htcjob("fit", &format!("echo begun; {UNTIL_LET_GO}; echo done; exit 3")).to_string())
        .unwrap();
    editor.sees(&["create", "-f", file.to_str().unwrap()]);
    here.wait_running("fit", 1);
    let job = here.procs() + "/fit-0";
    let log = format!("{job}/log");
    for person in [&viewer, &editor] {
        assert!(person.comes_to_see(&["get", "htcprocs"]).contains("Running"));
        wait_for("the log of a job that runs", PATIENCE, || {
            let log = person.sees(&["get", "--raw", &log]);
            if log == "begun\n" { Ok(()) } else { Err(log) }
        })
        .unwrap();
    }
    let watch = viewer.begins(&["get", "htcprocs", "-w"]);
    here.let_go("fit");
    here.wait_output("fit");
    bed::person::wait_printed(&watch, "the end of the job", |text| text.contains("Failed"));
    for person in [&viewer, &editor] {
        let failed = person.sees(&["get", "htcprocs", "--field-selector=status.state=Failed", "-o", "name"]);
        assert_eq!(failed.trim(), "htcproc.procs.htc.cern.ch/fit-0");
        assert_eq!(person.sees(&["get", "--raw", &log]), "begun\ndone\n");
        assert!(person.sees(&["get", "--raw", &format!("{job}/files")]).len() > 512);
        assert!(person.sees(&["get", "htcstory", "fit"]).contains(" Submitted "));
        for arguments in [["get", "htcprocs", "-n", &there.name], ["delete", "htcprocs", "fit-0", "--wait=false"]] {
            assert!(person.is_refused(&arguments).contains("Forbidden"), "{arguments:?}");
        }
    }
    let analysis = ["get", "--raw", &format!("{job}/analysis")];
    let why = editor.is_refused(&analysis);
    assert!(why.contains("only idle jobs are analysed"), "{why}");
    let why = viewer.is_refused(&analysis);
    assert!(why.contains("Forbidden") && why.contains("htcprocs/analysis"), "{why}");
    let mut idle = htcjob("idle", "true");
    idle["spec"]["requirements"] = "TARGET.NobodyHasThis == 7".into();
    here.create(&idle);
    here.wait_phase("idle", "Submitted");
    let analysis = editor.comes_to_see(&["get", "--raw", &format!("{}/idle-0/analysis", here.procs())]);
    assert!(analysis.contains("NobodyHasThis"), "{analysis}");
    here.delete("idle");
}

/// `edit` lets people hold, release and remove single jobs, and `view` does not; both ask why a job is idle as far as they may.
fn only_who_edits_acts(here: &Namespace<'_>) {
    let (viewer, editor) = (here.person("looks", &["view"]), here.person("acts", &["edit"]));
    let mut object = htcjob("two", UNTIL_LET_GO);
    object["spec"]["queue"] = 2.into();
    here.create(&object);
    here.wait_running("two", 2);
    for person in [&viewer, &editor] {
        person.comes_to_see(&["get", "htcprocs"]);
    }
    for action in ["hold", "release", "remove"] {
        let to = format!("{}/two-0/{action}", here.procs());
        let why = viewer.is_refused(&["create", "--raw", &to, "-f", "/dev/null"]);
        assert!(why.contains(&format!("cannot create resource \"htcprocs/{action}\"")), "{why}");
        let (code, _, error) = viewer.htc(&[action, "two/0"]);
        assert!(code == 2 && error.contains("forbidden"), "{error}");
    }
    let does = |arguments: &[&str], expected: &str| {
        let (code, stdout, error) = editor.htc(arguments);
        assert_eq!((code, stdout.as_str()), (0, expected), "{error}");
    };
    does(&["hold", "two/0"], "htcproc.procs.htc.cern.ch/two-0 hold requested\n");
    here.wait("two", "one job is held", |object| object["status"]["held"] == 1);
    does(&["release", "two/0"], "htcproc.procs.htc.cern.ch/two-0 release requested\n");
    here.wait_running("two", 2);
    does(&["remove", "two/1"], "htcproc.procs.htc.cern.ch/two-1 remove requested\n");
    here.let_go("two");
    let ended = here.wait_ended("two");
    assert_eq!(ended["status"]["failedIndexes"], "1", "{ended:#}");
    for person in [&viewer, &editor] {
        let (code, page, error) = person.htc(&["why", "two"]);
        assert!(code == 0 && page.contains("removed by a user"), "{page}{error}");
    }
}

fn secret(bed: &Bed, name: &str) -> Value {
    bed.object(OWN_SECRETS, name).unwrap()
}

/// The front's certificate, and the authority once its time has come: what everybody is told goes along.
fn renewed(bed: &Bed) {
    let bundle = || {
        let known = bed.object("/apis/apiregistration.k8s.io/v1/apiservices", API_SERVICE).unwrap();
        known["spec"]["caBundle"].as_str().unwrap_or_default().to_owned()
    };
    let (before, first) = (bundle(), secret(bed, "htc-operator-jobs-api-front"));
    assert!(!before.is_empty());
    // As if it had lived for half of its life, which takes six minutes here.
    let mut authorities: Value = serde_json::from_str(&bed.own_secret(AUTHORITY, "authorities")).unwrap();
    for authority in authorities.as_array_mut().unwrap() {
        authority["since"] = (authority["since"].as_i64().unwrap() - 400).into();
    }
    let patch = json!({ "stringData": { "authorities": authorities.to_string() } });
    bed.merge(OWN_SECRETS, AUTHORITY, &patch);
    wait_for("a new authority that the API server knows, and the front's certificate", PATIENCE, || {
        let front = secret(bed, "htc-operator-jobs-api-front");
        let new = bundle() != before && front["data"]["tls.crt"] != first["data"]["tls.crt"];
        if new && front["data"]["ca.crt"] == bundle().as_str() { Ok(()) } else { Err(bed.log()) }
    })
    .unwrap();
    bed.wait_known();
}

/// Neither can do with the cluster's APIs, Secrets and users' jobs what it does not need.
fn only_its_own(bed: &Bed) {
    let patch = r#"{"spec":{"caBundle":""}}"#;
    for account in [ACCOUNT, FRONT] {
        let why =
            bed.kube.kubectl_ok(&["patch", "apiservice", "v1.apps", "--type=merge", "-p", patch, "--as", account]);
        assert!(why.unwrap_err().to_string().contains("Forbidden"), "{account}");
    }
    for (account, arguments) in [
        (ACCOUNT, ["create", "apiservices"]),
        (ACCOUNT, ["update", "apiservices/v1alpha1.procs.htc.cern.ch"]),
        (ACCOUNT, ["delete", "apiservices/v1alpha1.procs.htc.cern.ch"]),
        (ACCOUNT, ["list", "secrets"]),
        (ACCOUNT, ["create", "subjectaccessreviews.authorization.k8s.io"]),
        (FRONT, ["patch", "apiservices/v1alpha1.procs.htc.cern.ch"]),
        (FRONT, ["get", "secrets/htc-operator-jobs-api-authority"]),
        (FRONT, ["get", "secrets/htc-operator-callback-keys"]),
        (FRONT, ["create", "secrets"]),
        (FRONT, ["update", "secrets/htc-operator-jobs-api-front"]),
        (FRONT, ["get", "htcjobs"]),
        (FRONT, ["get", "htcprocs"]),
        (FRONT, ["create", "tokenreviews.authentication.k8s.io"]),
    ] {
        let whole = [&["-n", "htc-operator", "auth", "can-i"], &arguments[..], &["--as", account]].concat();
        let output = bed.kube.kubectl_any(&whole).unwrap().stdout;
        assert_eq!(output.trim(), "no", "{account}: {arguments:?}");
    }
}

/// By the commands of the page, after which nothing of it is left: no right, and none of its keys.
fn removed(bed: &Bed) {
    bed.stop_operator();
    let page = read("docs/jobs-api.md");
    let removes = |block: &Block| block.language == "console" && block.text.contains(" delete ");
    let commands: String = blocks(&page).into_iter().filter(removes).map(|block| block.text).collect();
    assert!(!left(bed).is_empty());
    for command in commands.lines() {
        let words = command.strip_prefix("$ kubectl ").unwrap().split(' ');
        let words = words.map(|word| match word.strip_prefix("deploy/") {
            Some(_) => path(word).display().to_string(),
            None => word.to_owned(),
        });
        let words: Vec<String> = words.collect();
        bed.kube.kubectl_ok(&words.iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
    }
    assert_eq!(left(bed), Vec::<String>::new());
}

/// What there is of the API, and for it.
fn left(bed: &Bed) -> Vec<String> {
    let kinds = "deployments,poddisruptionbudgets,services,networkpolicies,serviceaccounts,secrets,roles,rolebindings,clusterroles,\
                 clusterrolebindings,apiservices";
    let names = bed.kube.kubectl_ok(&["get", kinds, "--all-namespaces", "-o", "name"]).unwrap();
    let of_it = |name: &&str| ["jobs-api", "htcprocs", "procs.htc.cern.ch"].iter().any(|part| name.contains(part));
    names.lines().filter(of_it).map(str::to_owned).collect()
}

/// The labels of a Deployment's pods.
fn labels<'a>(objects: &'a [Value], deployment: &str) -> &'a Value {
    &find(objects, "Deployment", deployment)["spec"]["template"]["metadata"]["labels"]
}

/// The Deployments whose pods these labels select.
fn selected(objects: &[Value], labels_wanted: &Value) -> Vec<String> {
    let wanted = labels_wanted.as_object().unwrap();
    assert!(!wanted.is_empty(), "an empty selector selects all pods");
    let deployments = objects.iter().filter(|object| object["kind"] == "Deployment");
    let names = deployments.map(|deployment| deployment["metadata"]["name"].as_str().unwrap().to_owned());
    names.filter(|name| wanted.iter().all(|(label, value)| labels(objects, name)[label] == *value)).collect()
}

#[test]
fn selectors_separate_front_and_operator_pods() {
    const LEADER: &str = "htc-operator";
    const FRONT: &str = "htc-operator-jobs-api";
    for overlay in ["overlays/local", "overlays/cern"] {
        let objects = render_with(overlay, COMPONENT);
        for (kind, name, of) in [
            ("Service", "cloudevents-service", LEADER),
            ("Service", "htc-operator-metrics", LEADER),
            ("Service", "htc-operator-jobs-api-leader", LEADER),
            ("Service", FRONT, FRONT),
            ("NetworkPolicy", LEADER, LEADER),
            ("NetworkPolicy", "htc-operator-jobs-api-leader", LEADER),
            ("NetworkPolicy", FRONT, FRONT),
            ("PodDisruptionBudget", FRONT, FRONT),
            ("Deployment", LEADER, LEADER),
            ("Deployment", FRONT, FRONT),
        ] {
            let spec = &find(&objects, kind, name)["spec"];
            let selector = match kind {
                "Service" => &spec["selector"],
                "NetworkPolicy" => &spec["podSelector"]["matchLabels"],
                _ => &spec["selector"]["matchLabels"],
            };
            assert_eq!(selected(&objects, selector), [of], "{overlay}: {kind} {name}");
        }
        let selecting = ["Service", "NetworkPolicy", "PodDisruptionBudget", "Deployment"];
        let all = objects.iter().filter(|object| selecting.contains(&object["kind"].as_str().unwrap())).count();
        assert_eq!(all, 10, "{overlay}: something selects pods that this test does not know");
        for deployment in [LEADER, FRONT] {
            let account = &find(&objects, "Deployment", deployment)["spec"]["template"]["spec"]["serviceAccountName"];
            assert_eq!(account, deployment);
        }
        // Each port of a Service is one of its pods.
        for (service, deployment) in [(FRONT, FRONT), ("htc-operator-jobs-api-leader", LEADER)] {
            for port in each(&find(&objects, "Service", service)["spec"]["ports"]) {
                assert!(number(&objects, deployment, &port["targetPort"]) > 0, "{port}");
            }
        }
    }
}

/// The number of a container's port.
fn number(objects: &[Value], deployment: &str, name: &Value) -> u64 {
    let containers = &find(objects, "Deployment", deployment)["spec"]["template"]["spec"]["containers"];
    let ports = each(&containers[0]["ports"]);
    let found = ports.filter(|port| port["name"] == *name || port["containerPort"] == *name);
    found.map(|port| port["containerPort"].as_u64().unwrap()).next().unwrap_or_default()
}

/// Who may connect to a port of a Deployment's pods: `None` is everybody.
fn may_enter(objects: &[Value], deployment: &str, port: u64) -> Vec<Option<Value>> {
    let policies = objects.iter().filter(|object| object["kind"] == "NetworkPolicy");
    let its = policies.filter(|policy| {
        selected(objects, &policy["spec"]["podSelector"]["matchLabels"]).iter().any(|its| its == deployment)
    });
    let rules = its.flat_map(|policy| each(&policy["spec"]["ingress"]));
    rules
        .filter(|rule| each(&rule["ports"]).any(|its| number(objects, deployment, &its["port"]) == port))
        .flat_map(|rule| match rule["from"].as_array() {
            None => vec![None],
            Some(from) => from.iter().cloned().map(Some).collect(),
        })
        .collect()
}

#[test]
fn network_policies_admit_front_to_leader_and_api_server_to_front() {
    let objects = render_with("overlays/local", COMPONENT);
    let front = find(&objects, "NetworkPolicy", "htc-operator-jobs-api");
    let target = &find(&objects, "Service", "htc-operator-jobs-api-leader")["spec"]["ports"][0];
    let leader = number(&objects, "htc-operator", &target["targetPort"]);
    let listens = &crate::deploy::manifests::container(&objects)["env"];
    let address = each(listens).find(|it| it["name"] == "HTC_JOBS_API_LISTEN").unwrap()["value"].as_str().unwrap();
    assert_eq!((leader, target["port"].as_u64()), (8444, Some(8444)));
    assert_eq!(address, "0.0.0.0:8444");
    let out = each(&front["spec"]["egress"]).filter(|rule| each(&rule["ports"]).any(|port| port["port"] == leader));
    let to: Vec<&Value> = out.flat_map(|rule| each(&rule["to"])).collect();
    let to: Vec<String> = to.iter().flat_map(|to| selected(&objects, &to["podSelector"]["matchLabels"])).collect();
    assert_eq!(to, ["htc-operator"]);
    for port in [53, 443, 6443] {
        let open = each(&front["spec"]["egress"]).filter(|rule| rule["to"].is_null());
        assert!(open.flat_map(|rule| each(&rule["ports"])).any(|its| its["port"] == port), "{port}");
    }
    // The leader is there for fronts alone, and the front for whoever has the API server's certificate.
    let into_leader = may_enter(&objects, "htc-operator", leader);
    let [Some(from)] = &into_leader[..] else { panic!("{into_leader:?}") };
    assert!(from["namespaceSelector"].is_null() && from["ipBlock"].is_null(), "{from}");
    assert_eq!(selected(&objects, &from["podSelector"]["matchLabels"]), ["htc-operator-jobs-api"]);
    let api = number(&objects, "htc-operator-jobs-api", &"api".into());
    assert_eq!((api, may_enter(&objects, "htc-operator-jobs-api", api)), (10250, vec![None]));
    // Kubelet's probes come from the pod's own node, which a NetworkPolicy does not keep out.
    assert_eq!(may_enter(&objects, "htc-operator-jobs-api", 8081), []);
    let without = render("overlays/local");
    assert_eq!(may_enter(&without, "htc-operator", leader), [], "without the component nobody reaches that port");
}

/// The namespace enforces the Pod Security Standard `restricted`.
#[test]
fn front_pods_meet_the_restricted_standard() {
    bed::turns::take(bed::Weight::Light);
    let kube = testbed::Kube::start(&testbed::Assets::locate().unwrap()).unwrap();
    let objects = render_with("overlays/local", COMPONENT);
    kube.apply_stdin(&list(&objects)).unwrap();
    assert_eq!(dry_run(&kube, &[objects.clone(), render("jobs-api")].concat()).as_deref(), Ok(""));
    let template = &find(&objects, "Deployment", "htc-operator-jobs-api")["spec"]["template"];
    let mut metadata = template["metadata"].clone();
    (metadata["name"], metadata["namespace"]) = ("try".into(), "htc-operator".into());
    let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"] });
    assert_eq!(dry_run(&kube, std::slice::from_ref(&pod)).as_deref(), Ok(""));
    let mut worse = pod.clone();
    worse["spec"]["containers"][0]["securityContext"]["capabilities"] = Value::Null;
    assert!(dry_run(&kube, &[worse]).unwrap_err().contains("restricted"));
    assert_eq!(pod["spec"]["containers"][0]["securityContext"]["readOnlyRootFilesystem"], true);
    assert!(each(&pod["spec"]["volumes"]).next().is_none(), "it holds nothing");
}
