//! What the operator's account may do: as in a cluster, what deploy/ lets it, and nothing else.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};
use testbed::{Account, Proxy, SERVICE_ACCOUNTS, wait_for};

use super::api::{Reader, collection_of};
use super::manifests::{render_at, render_with};
use super::{ACCOUNT, Bed, Namespace, PATIENCE, checkout, kubeconfig_with};

/// Kinds of objects that give rights.
const KINDS: &[&str] = &["ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"];

const OVERLAY: &str = "overlays/local";

/// The component of the jobs API.
pub(crate) const JOBS_API: &str = "jobs-api";

/// Arguments of the operator, the component of deploy/ that goes with each, and the folder for each namespace.
const COMPONENTS: &[(&str, &str, Option<&str>)] = &[
    ("--kubernetes-backend", "kubernetes-backend", Some("namespace-kubernetes-backend")),
    ("--queueing=kueue", "kueue", None),
];

/// What a name renders to. Each is rendered once: it takes a tenth of a second of a core.
fn once(name: &str, render: impl FnOnce() -> Vec<Value>) -> Vec<Value> {
    static RENDERED: Mutex<Option<HashMap<String, Vec<Value>>>> = Mutex::new(None);
    let mut rendered = RENDERED.lock().unwrap_or_else(PoisonError::into_inner);
    rendered.get_or_insert_default().entry(name.to_owned()).or_insert_with(render).clone()
}

fn gives_rights(object: &Value) -> bool {
    KINDS.iter().any(|kind| object["kind"] == *kind)
}

/// What lets the operator work at all.
pub(crate) fn of_base() -> Vec<Value> {
    let render = || render_at(&checkout().join("deploy").join(OVERLAY)).into_iter().filter(gives_rights).collect();
    once(OVERLAY, render)
}

/// What a component adds to that.
pub(crate) fn of_component(component: &str) -> Vec<Value> {
    let base = of_base();
    once(component, || {
        let all = render_with(OVERLAY, &format!("../../components/{component}"));
        all.into_iter().filter(|object| gives_rights(object) && !base.contains(object)).collect()
    })
}

/// What a folder such as `namespace-pools` lets the operator do in one namespace.
fn of_namespace(folder: &str, namespace: &str) -> Vec<Value> {
    let mut objects = once(folder, || render_at(&checkout().join("deploy").join(folder)));
    for object in &mut objects {
        object["metadata"]["namespace"] = namespace.into();
    }
    objects
}

/// The components that an operator with these arguments needs, and the folder for each namespace.
fn wanted(arguments: &[String]) -> impl Iterator<Item = (&'static str, Option<&'static str>)> {
    let given = |argument: &&str| arguments.iter().any(|given| given == argument);
    COMPONENTS.iter().filter(move |(argument, ..)| given(argument)).map(|(_, component, folder)| (*component, *folder))
}

/// Makes these roles and bindings, and waits until the authorizer knows them: it hears of them a little later.
pub(crate) fn grant(reader: &Reader, objects: &[Value]) {
    for object in objects {
        reader.apply(object).unwrap();
    }
    for (user, attributes) in allowed(objects) {
        wait_for("the authorizer to know", PATIENCE, || reader.allows(&user, &attributes)).unwrap();
    }
}

/// For each rule that these objects bind to a ServiceAccount: one thing that it allows, in the terms of a `SubjectAccessReview`.
fn allowed(objects: &[Value]) -> Vec<(String, Value)> {
    let mut allowed = Vec::new();
    for binding in objects.iter().filter(|object| object["roleRef"].is_object()) {
        let role = objects.iter().find(|object| {
            object["kind"] == binding["roleRef"]["kind"] && object["metadata"]["name"] == binding["roleRef"]["name"]
        });
        let role = role.expect("each role is bound where it is made");
        let subject = |part: &str| binding["subjects"][0][part].as_str().expect("a ServiceAccount").to_owned();
        let user = format!("system:serviceaccount:{}:{}", subject("namespace"), subject("name"));
        for rule in role["rules"].as_array().into_iter().flatten() {
            let resource = rule["resources"][0].as_str().unwrap_or_default();
            let (resource, sub) = resource.split_once('/').unwrap_or((resource, ""));
            let attributes = json!({
                "namespace": binding["metadata"]["namespace"], "verb": rule["verbs"][0], "group": rule["apiGroups"][0],
                "resource": resource, "subresource": sub, "name": rule["resourceNames"][0],
            });
            allowed.push((user.clone(), attributes));
        }
    }
    allowed
}

impl Reader {
    /// Whether the API server would let a user do this, in the terms of a `SubjectAccessReview`.
    fn allows(&self, user: &str, attributes: &Value) -> bool {
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "spec": { "user": user, "resourceAttributes": attributes },
        });
        let answer = self.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", &review).unwrap();
        answer["status"]["allowed"] == true
    }
}

impl Bed {
    /// From its next start on the operator is this ServiceAccount to the API server.
    pub fn become_user(&self, user: &str) {
        let config = std::fs::read(self.kube.kubeconfig_for(user, Some(SERVICE_ACCOUNTS)).unwrap()).unwrap();
        Account::unprivileged().write(&self.kubeconfig, config, 0o600).unwrap();
    }

    /// From its next start on the operator reaches the API server only through this proxy.
    pub fn through(&self, proxy: &Proxy) {
        let config = serde_json::json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "proxy",
            "contexts": [{ "name": "proxy", "context": { "cluster": "proxy", "user": "nobody" } }],
            "clusters": [{ "name": "proxy", "cluster": { "server": proxy.url() } }],
            "users": [{ "name": "nobody", "user": {} }],
        });
        Account::unprivileged().write(&self.kubeconfig, config.to_string(), 0o600).unwrap();
    }

    /// From its next start on the operator shows the API server this token and nothing else.
    pub fn log_in(&self, token: &str) {
        Account::unprivileged().write(&self.kubeconfig, kubeconfig_with(&self.kube, token), 0o600).unwrap();
    }

    /// Lets the operator do what an administrator lets it for its arguments.
    pub(crate) fn grant_components(&self) {
        for (component, _) in wanted(&self.arguments) {
            grant(&self.reader, &of_component(component));
        }
    }

    /// The same in a namespace.
    pub(crate) fn grant_folders(&self, namespace: &str) {
        for folder in wanted(&self.arguments).filter_map(|(_, folder)| folder) {
            grant(&self.reader, &of_namespace(folder, namespace));
        }
    }

    /// Takes away what lets the operator work, for a test that lets it do less.
    pub fn without_rights(&self) {
        self.take_away(&of_base());
    }

    /// Takes the rights of a component away, as where nobody has installed it.
    pub fn without_component(&self, component: &str) {
        self.take_away(&of_component(component));
    }

    fn take_away(&self, objects: &[Value]) {
        for binding in objects.iter().filter(|object| object["roleRef"].is_object()) {
            self.delete(&collection_of(binding), binding["metadata"]["name"].as_str().unwrap());
        }
        for (user, attributes) in allowed(objects) {
            wait_for("the authorizer to know", PATIENCE, || !self.reader.allows(&user, &attributes)).unwrap();
        }
    }

    /// Lets an operator with this `--operator-name` have its own Lease and Secret, as `deploy/base` does with this name.
    pub fn let_lead(&self, operator: &str) {
        let mut objects = of_base();
        objects.retain(|object| ["Role", "RoleBinding"].iter().any(|kind| object["kind"] == *kind));
        let renamed = |name: &mut Value| *name = name.as_str().unwrap().replacen("htc-operator", operator, 1).into();
        for object in &mut objects {
            renamed(&mut object["metadata"]["name"]);
            object.pointer_mut("/roleRef/name").into_iter().for_each(renamed);
            for rule in object.get_mut("rules").and_then(Value::as_array_mut).into_iter().flatten() {
                let names = rule.get_mut("resourceNames").and_then(Value::as_array_mut);
                names.into_iter().flatten().for_each(renamed);
            }
        }
        grant(&self.reader, &objects);
    }

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
        self.reader.allows(user, attributes)
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

impl Namespace<'_> {
    /// Lets the operator do here what a folder of deploy/ says, such as `namespace-pools`.
    pub fn let_operator(&self, folder: &str) {
        grant(&self.bed.reader, &of_namespace(folder, &self.name));
    }

    /// Lets the operator read one Secret, by deploy/namespace-credentials with its name.
    pub fn let_read_secret(&self, name: &str) {
        self.let_read("namespace-credentials", name);
    }

    /// Lets the operator read one ConfigMap, by deploy/namespace-items with its name.
    pub fn let_read_config_map(&self, name: &str) {
        self.let_read("namespace-items", name);
    }

    fn let_read(&self, folder: &str, name: &str) {
        let mut objects = of_namespace(folder, &self.name);
        for object in &mut objects {
            let role = format!("{}-{name}", object["metadata"]["name"].as_str().unwrap());
            if object["roleRef"].is_object() {
                object["roleRef"]["name"] = role.clone().into();
            } else {
                object["rules"][0]["resourceNames"] = json!([name]);
            }
            object["metadata"]["name"] = role.into();
        }
        grant(&self.bed.reader, &objects);
    }
}
