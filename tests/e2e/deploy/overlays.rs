//! The overlays, rendered and applied to a real API server.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use testbed::{Assets, Kube, tool, wait_for};

use crate::deploy::manifests::{config_map, container, each, find, list, path, read, render, render_with};

const KUBECTL: Duration = Duration::from_secs(60);

/// Applies objects without storing them, with the API server's own checks; what it warns of.
pub fn dry_run(kube: &Kube, objects: &[Value]) -> Result<String, String> {
    let arguments = ["apply", "--dry-run=server", "--validate=strict", "-f", "-"];
    let done = tool::run("trying objects", &mut kube.kubectl(&arguments), &list(objects), KUBECTL)
        .map_err(|e| e.to_string())?;
    if done.status.success() { Ok(done.stderr) } else { Err(done.stderr) }
}

/// The pod that the Deployment would make.
fn pod(objects: &[Value]) -> Value {
    let template = &find(objects, "Deployment", "htc-operator")["spec"]["template"];
    let mut metadata = template["metadata"].clone();
    metadata["name"] = "try".into();
    metadata["namespace"] = "htc-operator".into();
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"] })
}

#[test]
fn api_server_accepts_the_overlays() {
    let assets = Assets::locate().unwrap();
    bed::turns::take(bed::Weight::Light);
    let kube = Kube::start(&assets).unwrap();
    for folder in ["deploy/crd", "deploy/overlays/local"].map(path) {
        let apply = ["apply", "-k", folder.to_str().unwrap()];
        let first = kube.kubectl_any(&apply).unwrap();
        assert!(first.status.success() && first.stderr.is_empty(), "{}{}", first.stdout, first.stderr);
        let again = kube.kubectl_ok(&apply).unwrap();
        let changed: Vec<&str> = again.lines().filter(|line| !line.ends_with("unchanged")).collect();
        assert!(changed.is_empty(), "applying it again changes {changed:?}");
    }

    let mut cern = render("overlays/cern");
    // Its kind comes with Prometheus' operator.
    let monitor = find(&cern, "ServiceMonitor", "htc-operator").clone();
    cern.retain(|object| object != &monitor);
    assert_eq!(dry_run(&kube, &cern).as_deref(), Ok(""));
    let adopts = find(&render("overlays/cern-adopt"), "Job", "htc-operator-adopt").clone();
    assert_eq!(dry_run(&kube, std::slice::from_ref(&adopts)).as_deref(), Ok(""));
    assert_eq!(adopts["spec"]["template"]["spec"]["containers"][0]["args"], json!(["adopt"]));
    assert_eq!(dry_run(&kube, &[ingress("local")]).as_deref(), Ok(""));
    for folder in ["namespace-credentials", "namespace-items", "namespace-kubernetes-backend", "namespace-pools"] {
        let mut rights = render(folder);
        for object in &mut rights {
            object["metadata"]["namespace"] = "default".into();
        }
        assert_eq!(dry_run(&kube, &rights).as_deref(), Ok(""), "{folder}");
    }

    // The namespace enforces the Pod Security Standard `restricted`.
    for overlay in ["overlays/local", "overlays/cern"] {
        let pod = pod(&render(overlay));
        assert_eq!(dry_run(&kube, std::slice::from_ref(&pod)).as_deref(), Ok(""), "{overlay}");
        let mut worse = pod;
        worse["spec"]["containers"][0]["securityContext"]["capabilities"] = Value::Null;
        let refused = dry_run(&kube, &[worse]).unwrap_err();
        assert!(refused.contains("restricted"), "{refused}");
    }
    // The root file system cannot be written, which that standard does not ask for.
    assert_eq!(container(&render("overlays/local"))["securityContext"]["readOnlyRootFilesystem"], true);
}

#[test]
fn overlay_objects_refer_to_existing_objects() {
    for overlay in ["overlays/local", "overlays/cern"] {
        let objects = render(overlay);
        let namespaced = |object: &&Value| {
            !["Namespace", "CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding"]
                .contains(&object["kind"].as_str().unwrap())
        };
        for object in objects.iter().filter(namespaced) {
            assert_eq!(object["metadata"]["namespace"], "htc-operator", "{overlay}: {object}");
        }
        let deployment = find(&objects, "Deployment", "htc-operator");
        let template = &deployment["spec"]["template"];
        let ports: BTreeSet<&str> =
            each(&container(&objects)["ports"]).map(|port| port["name"].as_str().unwrap()).collect();
        for service in objects.iter().filter(|object| object["kind"] == "Service") {
            let selector = service["spec"]["selector"].as_object().unwrap();
            assert!(
                selector.iter().all(|(label, value)| template["metadata"]["labels"][label] == *value),
                "{overlay}: {service} selects nothing"
            );
            for port in each(&service["spec"]["ports"]) {
                assert!(ports.contains(port["targetPort"].as_str().unwrap()), "{overlay}: {port}");
            }
        }
        let ingress = ingress(overlay.trim_start_matches("overlays/"));
        let backend = &ingress["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"];
        let service = find(&objects, "Service", backend["name"].as_str().unwrap());
        assert!(each(&service["spec"]["ports"]).any(|port| port["name"] == backend["port"]["name"]), "{backend}");
        for volume in each(&template["spec"]["volumes"]) {
            if let Some(claim) = volume["persistentVolumeClaim"]["claimName"].as_str() {
                find(&objects, "PersistentVolumeClaim", claim);
            }
            if let Some(name) = volume["configMap"]["name"].as_str() {
                find(&objects, "ConfigMap", name);
            }
            // Which credentials there are is up to the site.
            assert!(volume["secret"].is_null() || volume["secret"]["optional"] == true, "{volume}");
        }
        let settings = container(&objects)["envFrom"][0]["configMapRef"]["name"].as_str().unwrap();
        find(&objects, "ConfigMap", settings);
    }
}

/// Output of users' jobs fills neither the ledger's volume nor that of the jobs' files.
#[test]
fn output_has_its_own_volume() {
    let objects = render("overlays/local");
    let container = container(&objects);
    let folder = |variable: &str| {
        let mut found = each(&container["env"]).filter(|it| it["name"] == variable);
        found.next().and_then(|it| it["value"].as_str()).map(str::to_owned)
    };
    let claim = |folder: Option<String>| {
        let mount = each(&container["volumeMounts"]).find(|mount| mount["mountPath"].as_str() == folder.as_deref());
        let name = mount.unwrap()["name"].clone();
        let pod = &find(&objects, "Deployment", "htc-operator")["spec"]["template"]["spec"];
        let volume = each(&pod["volumes"]).find(|volume| volume["name"] == name).unwrap();
        volume["persistentVolumeClaim"]["claimName"].as_str().unwrap().to_owned()
    };
    assert_eq!(claim(folder("HTC_DATA_DIR")), "htc-operator-state");
    assert_eq!(claim(folder("HTC_OUTPUT_DIR")), "htc-operator-data");
    assert_eq!(folder("HTC_LEDGER"), None, "it is in the data folder");
    for name in ["htc-operator-state", "htc-operator-data"] {
        assert!(find(&objects, "PersistentVolumeClaim", name)["spec"]["storageClassName"].is_null());
    }
    // The ledger stays where the operator of 2020 has it, until somebody moves it.
    let cern = render("overlays/cern");
    let env = &crate::deploy::manifests::container(&cern)["env"];
    assert!(each(env).any(|it| it["name"] == "HTC_LEDGER" && it["value"] == "/data/sqlite/htcjobs.db"), "{env}");
}

#[test]
fn overlays_differ_in_storage_ingress_and_monitor() {
    let (local, cern) = (render("overlays/local"), render("overlays/cern"));
    let claim = find(&local, "PersistentVolumeClaim", "htc-operator-data");
    assert!(claim["spec"]["storageClassName"].is_null(), "the cluster's default class: {claim}");
    assert!(!local.iter().any(|object| ["Ingress", "ServiceMonitor"].contains(&object["kind"].as_str().unwrap())));

    let claim = find(&cern, "PersistentVolumeClaim", "pvc-cephfs-cms");
    assert_eq!(claim["spec"]["storageClassName"], "csi-cephfs-cms");
    let ingress = find(&cern, "Ingress", "cloudevents-ingress");
    let rule = &ingress["spec"]["rules"][0];
    assert_eq!([&rule["host"], &rule["http"]["paths"][0]["path"]], ["cms-batch-test.cern.ch", "/cloudevents"]);
    let monitor = find(&cern, "ServiceMonitor", "htc-operator");
    let port = &monitor["spec"]["endpoints"][0]["port"];
    let service = find(&cern, "Service", "htc-operator-metrics");
    assert!(each(&service["spec"]["ports"]).any(|has| has["name"] == *port));
    let selector = monitor["spec"]["selector"]["matchLabels"].as_object().unwrap();
    assert!(selector.iter().all(|(label, value)| service["metadata"]["labels"][label] == *value), "{selector:?}");
}

/// The Ingress of an overlay, which the one for a cluster without anything special has in its folder only.
fn ingress(overlay: &str) -> Value {
    serde_saphyr::from_str(&read(&format!("deploy/overlays/{overlay}/ingress.yaml"))).unwrap()
}

/// Tokens of jobs go through it, and other hosts of the cluster are not its business.
#[test]
fn ingress_has_host_and_tls() {
    for overlay in ["local", "cern"] {
        let ingress = ingress(overlay);
        let rules: Vec<&Value> = each(&ingress["spec"]["rules"]).collect();
        assert!(!rules.is_empty(), "{overlay}");
        for rule in rules {
            assert!(rule["host"].is_string(), "{overlay}: {rule}");
            assert!(each(&ingress["spec"]["tls"]).any(|tls| each(&tls["hosts"]).any(|host| *host == rule["host"])));
        }
    }
}

/// Pods of the operator and of the jobs API keep what the Pod Security Standard `restricted` demands.
#[test]
fn openshift_component_leaves_no_fixed_user_ids() {
    let components = "../../components/jobs-api\n  - ../../components/openshift";
    for overlay in ["overlays/local", "overlays/cern"] {
        let objects = render_with(overlay, components);
        for name in ["htc-operator", "htc-operator-jobs-api"] {
            let pod = &find(&objects, "Deployment", name)["spec"]["template"]["spec"];
            let contexts = each(&pod["containers"]).chain(each(&pod["initContainers"])).chain([pod]);
            for context in contexts.map(|part| &part["securityContext"]) {
                for id in ["runAsUser", "runAsGroup", "fsGroup"] {
                    assert!(context[id].is_null(), "{overlay}: {name} has {id}: {context}");
                }
            }
            assert_eq!(pod["securityContext"]["runAsNonRoot"], true, "{overlay}: {name}");
            assert!(pod["securityContext"]["seccompProfile"].is_object(), "{overlay}: {name}");
        }
    }
}

/// The CRD belongs to all operators of a cluster.
#[test]
fn removing_an_operator_keeps_the_crd_and_all_htcjobs() {
    let kube = Kube::start(&Assets::locate().unwrap()).unwrap();
    let [kind, overlay] = ["deploy/crd", "deploy/overlays/local"].map(|folder| path(folder).display().to_string());
    kube.kubectl_ok(&["apply", "-k", &kind]).unwrap();
    kube.kubectl_ok(&["apply", "-k", &overlay]).unwrap();
    let spec = json!({ "script": { "image": "centos", "command": "bash", "source": "true" } });
    let metadata = json!({ "name": "theirs", "namespace": "default" });
    let theirs = json!({ "apiVersion": "htc.cern.ch/v1alpha1", "kind": "HTCJob", "metadata": metadata, "spec": spec });
    wait_for("the kind", KUBECTL, || kube.apply_stdin(&theirs.to_string()).map(drop)).unwrap();
    let removed = kube.kubectl_ok(&["delete", "-k", &overlay, "--wait=false"]).unwrap();
    assert!(removed.contains("deployment.apps \"htc-operator\""), "{removed}");
    kube.kubectl_ok(&["get", "clusterroles", "htcjobs-view", "htcjobs-edit"]).unwrap();
    let left = kube.kubectl_ok(&["get", "htcjob", "theirs", "-o", "jsonpath={.metadata}"]).unwrap();
    assert!(!left.contains("deletionTimestamp"), "{left}");
    for overlay in ["overlays/local", "overlays/cern"] {
        assert!(!render(overlay).iter().any(|object| object["kind"] == "CustomResourceDefinition"), "{overlay}");
    }
}

#[test]
fn overlay_settings_are_known_to_the_operator() {
    let mut help = Command::new(bed::program());
    help.env_clear().args(["run", "--help"]);
    let help = tool::run_ok("asking for the settings", &mut help, "", KUBECTL).unwrap();
    let is_setting = |name: &str| help.contains(&format!("[env: {name}="));
    assert!(is_setting("HTC_SCHEDD") && !is_setting("HTC_SCHED"));
    for overlay in ["overlays/local", "overlays/cern"] {
        let objects = render(overlay);
        let environment = each(&container(&objects)["env"]).map(|variable| variable["name"].as_str().unwrap());
        let settings = config_map(&objects, "htc-operator-settings")["data"].as_object().unwrap();
        let all: Vec<&str> = environment.chain(settings.keys().map(String::as_str)).collect();
        for name in all.iter().filter(|name| name.starts_with("HTC_")) {
            assert!(is_setting(name), "{overlay}: the operator has no setting {name}");
        }
        assert!(all.contains(&"HTC_SCHEDD") && all.contains(&"CONDOR_CONFIG"), "{overlay}: {all:?}");
    }
    // What is only written in comments must be right, too.
    for line in read("deploy/overlays/local/settings.env").lines() {
        if let Some((name, _)) = line.trim_start_matches("# ").split_once('=').filter(|(name, _)| !name.contains(' ')) {
            assert!(is_setting(name), "settings.env: the operator has no setting {name}");
        }
    }
}

/// The page's commands that need pods are run by `make cluster`, which runs all of them; the others here.
#[test]
fn installation_page_commands_work() {
    const NEED_PODS: &[&str] = &["rollout", "exec", "wait", "describe"];
    bed::turns::take(bed::Weight::Light);
    let kube = Kube::start(&Assets::locate().unwrap()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut copy = Command::new("cp");
    copy.arg("-r").args(["crd", "deploy", "examples"].map(path)).arg(folder.path());
    tool::run_ok("copying", &mut copy, "", KUBECTL).unwrap();
    let overlays = folder.path().join("deploy/overlays");
    let mut copy = Command::new("cp");
    copy.arg("-r").arg(overlays.join("local")).arg(overlays.join("mine"));
    tool::run_ok("copying", &mut copy, "", KUBECTL).unwrap();
    std::fs::write(folder.path().join("token"), "a token").unwrap();
    let page = read("docs/install.md");
    let blocks = page.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let mut ran = 0;
    for line in blocks.flat_map(str::lines) {
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words[0], "kubectl", "docs/install.md: {line}");
        // Nothing takes a namespace's objects away without controllers.
        let waits = words.contains(&"delete") && words.contains(&"-k");
        if waits || words.iter().any(|word| NEED_PODS.contains(word)) {
            continue;
        }
        // A new kind is known some time after its definition.
        wait_for(line, KUBECTL, || {
            let mut kubectl = kube.kubectl(&words[1..]);
            tool::run_ok(line, kubectl.current_dir(folder.path()), "", KUBECTL).map(drop)
        })
        .unwrap();
        ran += 1;
    }
    assert!(ran >= 6, "only {ran} commands were run");
}
