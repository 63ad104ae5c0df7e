//! The control plane. Needs `testbed setup`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

use std::thread;

use testbed::{Assets, Kube};

const CONFIG_MAP: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: kept, namespace: default}\ndata: {a: b}\n";

const CRD: &str = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.test.example}
spec:
  group: test.example
  names: {kind: Thing, plural: things}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {count: {type: integer}}}}}}
";

#[test]
fn api_server_keeps_its_objects_over_a_crash() {
    let kube = Kube::start(&Assets::locate().unwrap()).unwrap();
    assert!(kube.ready());
    kube.apply_stdin(CONFIG_MAP).unwrap();
    kube.apply_crd(CRD, "things.test.example").unwrap();
    kube.apply_stdin("{apiVersion: test.example/v1, kind: Thing, metadata: {name: one}, spec: {count: 1}}").unwrap();

    let nobody = kube.kubeconfig_for("system:serviceaccount:default:nobody", None).unwrap();
    let nobody = format!("--kubeconfig={}", nobody.display());
    assert_eq!(kube.kubectl_any(&[&nobody, "auth", "can-i", "list", "secrets"]).unwrap().stdout.trim(), "no");
    assert_eq!(kube.kubectl_ok(&["auth", "can-i", "list", "secrets"]).unwrap().trim(), "yes");

    kube.kill_apiserver().unwrap();
    assert!(!kube.ready());
    kube.start_apiserver().unwrap();
    assert_eq!(kube.kubectl_ok(&["get", "cm", "kept", "-o", "jsonpath={.data.a}"]).unwrap(), "b");
    assert_eq!(kube.kubectl_ok(&["get", "thing", "one", "-o", "jsonpath={.spec.count}"]).unwrap(), "1");

    kube.stop_apiserver().unwrap();
    assert!(!kube.ready());
    kube.start_apiserver().unwrap();
    assert!(kube.ready());
}

/// Also: servers outlive the thread that started them, although the kernel's parent-death signal goes by threads.
#[test]
fn two_control_planes_run_side_by_side() {
    let start = || Kube::start(&Assets::locate().unwrap()).unwrap();
    let (one, other) = (thread::spawn(start), thread::spawn(start));
    let (one, other) = (one.join().unwrap(), other.join().unwrap());
    one.apply_stdin(CONFIG_MAP).unwrap();
    assert!(one.kubectl_ok(&["get", "cm", "kept"]).is_ok());
    assert!(other.kubectl_any(&["get", "cm", "kept"]).unwrap().stderr.contains("NotFound"));
}
