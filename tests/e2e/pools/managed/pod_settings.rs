//! Metadata and user of a managed pool's pods, as the API server admits them. No pod runs.

use bed::{Namespace, PATIENCE};
use serde_json::{Value, json};
use testbed::{Version, wait_for};

use super::super::site::{delete, wait_condition, wait_ready};
use super::{Cluster, POOL, apply, fixed, pool};
use crate::deploy::overlays::dry_run;

on_versions! {
    trixie: pool_pods_have_default_metadata_and_listed_keys_only;
    sid: pool_pods_of_the_cluster_user_pass_a_user_id_policy;
}

/// Name of the policy, and its message.
const POLICY: &str = "user-ids";
const DENIAL: &str = "runAsUser is not in the range of the namespace";

/// Waits until each role has a pod; all pods.
fn wait_all_roles(here: &Namespace<'_>) -> Vec<Value> {
    wait_for("pods of all roles", PATIENCE, || {
        let pods = here.bed.objects(&format!("/api/v1/namespaces/{}/pods", here.name));
        let has = |role: &str| pods.iter().any(|pod| pod["metadata"]["labels"]["htc.cern.ch/role"] == role);
        if ["central-manager", "schedd", "worker"].into_iter().all(has) { Ok(pods) } else { Err(format!("{pods:#?}")) }
    })
    .unwrap()
}

/// The site's list is for workers; the other pods have the defaults alone.
fn pool_pods_have_default_metadata_and_listed_keys_only(version: Version) {
    let cluster = Cluster::with(version, true, &["--allow-pod-metadata=example.org/*"]);
    let here = cluster.namespace();
    let with = |key: &str| {
        let mut workers = fixed(1);
        workers["podAnnotations"] = json!({ key: "x" });
        pool(&workers)
    };
    apply(&here, with("other.org/team"));
    let message = wait_ready(&here, POOL, "InvalidSpec");
    for part in ["spec.managed.workers.podAnnotations: \"other.org/team\"", "--allow-pod-metadata: example.org/*"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    delete(&here, POOL);

    apply(&here, with("example.org/team"));
    for pod in wait_all_roles(&here) {
        let (labels, annotations) = (&pod["metadata"]["labels"], &pod["metadata"]["annotations"]);
        assert_eq!(labels["sidecar.istio.io/inject"], "false", "{labels:#}");
        for (key, value) in [
            ("linkerd.io/inject", "disabled"),
            ("cluster-autoscaler.kubernetes.io/safe-to-evict", "false"),
            ("karpenter.sh/do-not-disrupt", "true"),
        ] {
            assert_eq!(annotations[key], value, "{key}: {annotations:#}");
        }
        let is_worker = labels["htc.cern.ch/role"] == "worker";
        assert_eq!(annotations["example.org/team"] == "x", is_worker, "{annotations:#}");
    }
    delete(&here, POOL);
}

/// Demands of pods in these namespaces what OpenShift demands: no user, or one of the namespace's range.
fn restrict_user_ids(cluster: &Cluster, namespaces: &[&str]) {
    let in_range = |context: &str| {
        format!(
            "!has({context}) || !has({context}.runAsUser) || \
             ({context}.runAsUser >= 1000660000 && {context}.runAsUser <= 1000669999)"
        )
    };
    let validation = |expression: String| json!({ "expression": expression, "message": DENIAL });
    let each = |list: &str| format!("object.spec.{list}.all(one, {})", in_range("one.securityContext"));
    let group = "admissionregistration.k8s.io/v1";
    let selector = json!({ "key": "kubernetes.io/metadata.name", "operator": "In", "values": namespaces });
    cluster.bed.apply_all(&[
        json!({
            "apiVersion": group, "kind": "ValidatingAdmissionPolicy", "metadata": { "name": POLICY },
            "spec": {
                "matchConstraints": { "resourceRules": [{
                    "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"],
                }] },
                "validations": [
                    validation(in_range("object.spec.securityContext")),
                    validation(each("containers")),
                    validation(format!("!has(object.spec.initContainers) || {}", each("initContainers"))),
                ],
            },
        }),
        json!({
            "apiVersion": group, "kind": "ValidatingAdmissionPolicyBinding", "metadata": { "name": POLICY },
            "spec": {
                "policyName": POLICY, "validationActions": ["Deny"],
                "matchResources": { "namespaceSelector": { "matchExpressions": [selector] } },
            },
        }),
    ]);
    let restricted = json!({ "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } });
    let security = json!({ "runAsNonRoot": true, "runAsUser": 65534, "seccompProfile": { "type": "RuntimeDefault" } });
    for namespace in namespaces {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "tried", "namespace": namespace },
            "spec": {
                "securityContext": security,
                "containers": [{ "name": "c", "image": "i", "securityContext": restricted }],
            },
        });
        wait_for("the policy to take effect", PATIENCE, || {
            match dry_run(&cluster.bed.kube, std::slice::from_ref(&pod)) {
                Err(refusal) if refusal.contains(DENIAL) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .unwrap();
    }
}

/// The fixed user is refused, and the condition quotes the policy.
fn pool_pods_of_the_cluster_user_pass_a_user_id_policy(version: Version) {
    let cluster = Cluster::start(version, true);
    let (fixed_user, cluster_user) = (cluster.namespace(), cluster.namespace());
    restrict_user_ids(&cluster, &[&fixed_user.name, &cluster_user.name]);
    let mut of_the_cluster = pool(&fixed(1));
    of_the_cluster["spec"]["managed"]["podUser"] = "Cluster".into();
    apply(&fixed_user, pool(&fixed(1)));
    apply(&cluster_user, of_the_cluster);

    let message = wait_condition(&fixed_user, POOL, "WorkersReady", "CreateRefused");
    assert!(message.contains(POLICY) && message.contains(DENIAL), "{message}");
    for pod in wait_all_roles(&cluster_user) {
        let security = &pod["spec"]["securityContext"];
        assert!(security["runAsUser"].is_null() && security["fsGroup"].is_null(), "{security:#}");
    }
    let refused = cluster.bed.objects(&format!("/api/v1/namespaces/{}/pods", fixed_user.name));
    assert!(refused.is_empty(), "{refused:#?}");
    for here in [&fixed_user, &cluster_user] {
        delete(here, POOL);
    }
}
