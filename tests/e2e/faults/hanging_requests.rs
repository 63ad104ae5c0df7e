//! Requests about one namespace hang: other namespaces are not delayed.

use std::time::Duration;

use bed::site::Site;
use bed::{Bed, Namespace, PATIENCE};
use serde_json::{Value, json};
use testbed::{Fault, KubeOptions, Proxy, Rule, Version, wait_for};

use crate::kubernetes_backend::kubelet::{Kubelet, is_fetched};
use crate::kubernetes_backend::stage::{Owned as _, Stage, pods};
use crate::pools::managed;
use crate::pools::site::find;
use crate::queue::site::labelled;

on_versions! {
    trixie:
        hanging_workload_requests_delay_no_other_namespace,
        hanging_managed_pool_requests_delay_no_other_pool,
        hanging_log_requests_delay_no_other_namespace;
}

/// More than all turns that there are for the writes of Workloads.
const WORKLOADS: usize = 60;
/// HTCJobs whose logs hang: three times as many as may be asked for logs in one namespace.
const LOGS: u32 = 12;
/// How long the operator waits for an answer of the API server.
const GIVEN_UP: Duration = Duration::from_secs(15);

fn hang(proxy: &Proxy, method: &'static str, here: &Namespace<'_>, path: &str) {
    proxy.add(Rule::new(method, &format!("/namespaces/{}/{path}", here.name), Fault::Hang));
}

fn wait_hangs(proxy: &Proxy) {
    wait_for("a request to hang", PATIENCE, || proxy.spoiled(&Fault::Hang) > 0).unwrap();
}

/// The kind alone: nobody admits any.
fn install_workloads(bed: &Bed) {
    bed.apply(&json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {
            "name": "workloads.kueue.x-k8s.io",
            "annotations": { "api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/kueue" },
        },
        "spec": {
            "group": "kueue.x-k8s.io", "scope": "Namespaced", "names": { "kind": "Workload", "plural": "workloads" },
            "versions": [{
                "name": "v1beta2", "served": true, "storage": true, "subresources": { "status": {} },
                "schema": { "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } },
            }],
        },
    }));
    bed.kube
        .kubectl_ok(&["wait", "--for=condition=Established", "--timeout=50s", "crd/workloads.kueue.x-k8s.io"])
        .unwrap();
}

fn hanging_workload_requests_delay_no_other_namespace(version: Version) {
    let arguments = ["--queueing=kueue", "--kueue-resource=jobs"];
    let site = Site::alone(version, &KubeOptions::default(), &arguments);
    install_workloads(&site.bed);
    let proxy = site.bed.kube.proxy().unwrap();
    site.bed.through(&proxy);
    let (hangs, here) = (site.bed.namespace(), site.bed.namespace());
    let queued = |name: &str| labelled(site.noted(name, 1, ""), "batch");
    hangs.create_all(&(0..WORKLOADS).map(|nth| queued(&format!("waits-{nth}"))).collect::<Vec<_>>());
    hang(&proxy, "POST", &hangs, "workloads");
    site.bed.start_operator();
    wait_hangs(&proxy);
    here.create(&queued("one"));
    let made = |here: &Namespace<'_>| {
        site.bed.objects(&format!("/apis/kueue.x-k8s.io/v1beta2/namespaces/{}/workloads", here.name)).len()
    };
    wait_for("its Workload", PATIENCE, || made(&here) == 1).unwrap();
    let hanging = proxy.spoiled(&Fault::Hang);
    assert!(hanging < WORKLOADS / 2, "{hanging} of the other namespace were served before it");
    proxy.clear();
    wait_for("the other Workloads", PATIENCE, || made(&hangs) == WORKLOADS).unwrap();
}

fn hanging_managed_pool_requests_delay_no_other_pool(version: Version) {
    let site = Site::with(version, "", &["--credentials-refresh=2s"]);
    let proxy = site.bed.kube.proxy().unwrap();
    site.bed.through(&proxy);
    site.bed.start_operator();
    let (hangs, here) = (site.bed.namespace(), site.bed.namespace());
    for namespace in [&hangs, &here] {
        namespace.let_operator("namespace-pools");
    }
    hang(&proxy, "POST", &hangs, "services");
    managed::apply(&hangs, managed::pool(&managed::fixed(1)));
    wait_hangs(&proxy);
    managed::apply(&here, managed::pool(&managed::fixed(1)));
    let services = |here: &Namespace<'_>| site.bed.objects(&format!("/api/v1/namespaces/{}/services", here.name)).len();
    wait_for("what the other pool consists of", PATIENCE, || services(&here) > 0).unwrap();
    let seen = proxy.seen();
    let hung = seen.iter().find(|seen| seen.fault.is_some()).unwrap().at;
    let own = seen.iter().find(|seen| seen.path.contains(&format!("{}/services", here.name))).unwrap().at;
    let after = own - hung;
    println!("{version}: the other pool is made {after:?} after the first one hangs");
    assert!(after < GIVEN_UP, "it came after {after:?}, when what hung was given up");
    proxy.clear();
    for namespace in [&hangs, &here] {
        wait_for("the pool", PATIENCE, || services(namespace) > 0).unwrap();
        namespace.remove("htcpool", managed::POOL);
        wait_for("it to be gone", PATIENCE, || find(namespace, managed::POOL).is_none()).unwrap();
    }
}

fn hanging_log_requests_delay_no_other_namespace(version: Version) {
    let stage = Stage::new(version);
    let proxy = stage.bed.kube.proxy().unwrap();
    stage.bed.through(&proxy);
    stage.bed.start_operator();
    stage.bed.front();
    let (hangs, here) = (stage.namespace(), stage.namespace());
    let kubelet = Kubelet::start(&stage.bed);
    hang(&proxy, "GET", &hangs, "pods/");
    let ends = |here: &Namespace<'_>| {
        let pod = kubelet.take(here, 0);
        here.run(0);
        kubelet.writes(&pod, b"one\n");
        kubelet.ends(&pod);
        here.end(0, 0);
    };
    let names: Vec<String> = (0..LOGS).map(|nth| format!("ends-{nth}")).collect();
    hangs.create_all(&names.iter().map(|name| pods(name, 1)).collect::<Vec<Value>>());
    hangs.wait_pods("one of each", |pods| pods.len() == names.len());
    for _ in &names {
        ends(&hangs);
    }
    wait_hangs(&proxy);
    here.create(&pods("one", 1));
    ends(&here);
    wait_for("its log", PATIENCE, || is_fetched(&here.proc("one-0"))).unwrap();
    let hanging = proxy.spoiled(&Fault::Hang);
    println!("{version}: {hanging} logs had been asked for");
    assert!(hanging < names.len(), "{hanging} logs of the other namespace were asked for before it");
    proxy.clear();
    for name in &names {
        wait_for("the other logs", PATIENCE, || is_fetched(&hangs.proc(&format!("{name}-0")))).unwrap();
    }
}
