//! What the operator's account may do.

use serde_json::{Value, json};
use testbed::wait_for;

use super::{ACCOUNT, Bed, PATIENCE};

impl Bed {
    /// Whether the operator's ClusterRole lets it list HTCJobs.
    pub fn may_list(&self, allowed: bool) {
        let mut role = self.object("/apis/rbac.authorization.k8s.io/v1/clusterroles", "htc-operator").unwrap();
        let mut rules = role["rules"].as_array_mut().unwrap().iter_mut();
        let of_htcjobs = rules.find(|rule| rule["resources"] == json!(["htcjobs"])).unwrap();
        let verbs = of_htcjobs["verbs"].as_array_mut().unwrap();
        verbs.retain(|verb| verb != "list");
        verbs.extend(allowed.then(|| "list".into()));
        let rules = json!({ "rules": role["rules"] });
        self.merge("/apis/rbac.authorization.k8s.io/v1/clusterroles", "htc-operator", &rules);
        let attributes = json!({ "group": "htc.cern.ch", "resource": "htcjobs", "verb": "list" });
        wait_for("the authorizer to know", PATIENCE, || self.allows(ACCOUNT, &attributes) == allowed).unwrap();
    }

    /// Whether the API server would let a user do this, in the terms of a `SubjectAccessReview`.
    pub fn allows(&self, user: &str, attributes: &Value) -> bool {
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "spec": { "user": user, "resourceAttributes": attributes },
        });
        let answer = self.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", &review).unwrap();
        answer["status"]["allowed"] == true
    }

    /// Binds a role to a subject in a namespace; both as a `RoleBinding` has them, without `apiGroup`.
    pub fn bind(&self, namespace: &str, name: &str, role: (&str, &str), subject: (&str, &str)) {
        let group = "rbac.authorization.k8s.io";
        let binding = json!({
            "apiVersion": format!("{group}/v1"), "kind": "RoleBinding",
            "metadata": { "name": name, "namespace": namespace },
            "roleRef": { "apiGroup": group, "kind": role.0, "name": role.1 },
            "subjects": [{ "apiGroup": group, "kind": subject.0, "name": subject.1 }],
        });
        self.apply(&binding);
    }
}
