//! Reads and changes objects straight at the API server: a kubectl for each time would take more of the machine than what is tested.

use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::Request;
use kube::core::params::{DeleteParams, GetParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind, Resource as _};
use serde_json::{Value, json};
use testbed::wait_for;
use tokio::runtime::Runtime;

use super::pages::read;
use super::{Bed, Namespace, PATIENCE};

/// The Secrets of the operator.
pub const OWN_SECRETS: &str = "/api/v1/namespaces/htc-operator/secrets";
/// The Leases of the operator.
pub const OWN_LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/htc-operator/leases";
pub const QUEUES: &str = "/apis/htc.cern.ch/v1alpha1/htcqueues";

pub struct Reader {
    pub runtime: Runtime,
    pub client: Client,
}

/// How long the API server may be away in the middle of a test that does not expect it.
const AWAY: Duration = Duration::from_secs(20);

impl Reader {
    pub fn new(kubeconfig: &Path) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let client = runtime.block_on(async {
            let file = Kubeconfig::read_from(kubeconfig).unwrap();
            let config = kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.unwrap();
            Client::try_from(config).unwrap()
        });
        Self { runtime, client }
    }

    /// One object; none if there is none of this name.
    pub fn object(&self, collection: &str, name: &str) -> Option<Value> {
        self.ask(collection, Some(name))
    }

    /// Creates an object.
    pub fn create(&self, collection: &str, object: &Value) -> Result<Value, kube::Error> {
        let body = serde_json::to_vec(object).unwrap();
        let request = Request::new(collection).create(&PostParams::default(), body).unwrap();
        self.runtime.block_on(self.client.request(request))
    }

    /// Deletes an object, and does not wait until it is gone; with `grace`, what ends is given so many seconds.
    pub fn delete(&self, collection: &str, name: &str, grace: Option<u32>) -> Result<Value, kube::Error> {
        let params = DeleteParams { grace_period_seconds: grace, ..DeleteParams::background() };
        let request = Request::new(collection).delete(name, &params).unwrap();
        self.runtime.block_on(self.client.request(request))
    }

    /// Makes an object what is given here, as `kubectl apply --server-side` does; namespaced objects say where they are.
    pub fn apply(&self, object: &Value) -> Result<Value, kube::Error> {
        let params = PatchParams::apply("kubectl").force().validation_strict();
        let name = object["metadata"]["name"].as_str().expect("the object has a name");
        let request = Request::new(collection_of(object)).patch(name, &params, &Patch::Apply(object)).unwrap();
        self.runtime.block_on(self.client.request(request))
    }

    /// Merges a patch into an object's status.
    pub fn merge_status(&self, collection: &str, name: &str, patch: &Value) -> Result<Value, kube::Error> {
        let params = PatchParams::default();
        let request = Request::new(collection).patch_subresource("status", name, &params, &Patch::Merge(patch));
        self.runtime.block_on(self.client.request(request.unwrap()))
    }

    /// Merges a patch into an object.
    pub fn merge(&self, collection: &str, name: &str, patch: &Value) -> Result<Value, kube::Error> {
        let request = Request::new(collection).patch(name, &PatchParams::default(), &Patch::Merge(patch)).unwrap();
        self.runtime.block_on(self.client.request(request))
    }

    /// All objects of a collection.
    pub fn objects(&self, collection: &str) -> Vec<Value> {
        let list = self.ask(collection, None).map(|mut list| list["items"].take());
        let Some(Value::Array(items)) = list else { panic!("{collection} is no collection: {list:?}") };
        items
    }

    fn ask(&self, collection: &str, name: Option<&str>) -> Option<Value> {
        let request = || match name {
            Some(name) => Request::new(collection).get(name, &GetParams::default()).unwrap(),
            None => Request::new(collection).list(&ListParams::default()).unwrap(),
        };
        let answer = || {
            let ask = async { tokio::time::timeout(AWAY, self.client.request::<Value>(request())).await };
            match self.runtime.block_on(ask) {
                Ok(Ok(object)) => Ok(Some(object)),
                Ok(Err(kube::Error::Api(status))) if status.code == 404 => Ok(None),
                Ok(Err(error)) => Err(error.to_string()),
                Err(_) => Err("no answer".to_owned()),
            }
        };
        wait_for("the API server to answer", AWAY, answer).unwrap()
    }
}

impl Bed {
    /// An object of a collection such as `/api/v1/namespaces`; none if there is none of this name.
    pub fn object(&self, collection: &str, name: &str) -> Option<Value> {
        self.reader.object(collection, name)
    }

    /// Creates an object in a collection.
    pub fn create(&self, collection: &str, object: &Value) -> Result<Value, kube::Error> {
        self.reader.create(collection, object)
    }

    /// Makes an object what is given here: [`Reader::apply`].
    pub fn apply(&self, object: &Value) {
        self.reader.apply(object).unwrap();
    }

    /// The same for several, one after the other.
    pub fn apply_all(&self, objects: &[Value]) {
        for object in objects {
            self.apply(object);
        }
    }

    /// What the API server answers to a GET of a path, as text.
    pub fn raw(&self, path: &str) -> Result<String, kube::Error> {
        let request = http::Request::get(path).body(Vec::new()).unwrap();
        self.reader.runtime.block_on(self.reader.client.request_text(request))
    }

    /// An entry of a Secret of the operator.
    pub fn own_secret(&self, name: &str, entry: &str) -> String {
        entry_of(&self.object(OWN_SECRETS, name).expect("the Secret is there"), entry)
    }

    /// Deletes an object of a collection, and does not wait until it is gone.
    pub fn delete(&self, collection: &str, name: &str) {
        self.reader.delete(collection, name, None).unwrap();
    }

    /// Merges a patch into an object of a collection.
    pub fn merge(&self, collection: &str, name: &str, patch: &Value) {
        self.reader.merge(collection, name, patch).unwrap();
    }

    /// Merges a patch into the status of an object of a collection.
    pub fn merge_status(&self, collection: &str, name: &str, patch: &Value) {
        self.reader.merge_status(collection, name, patch).unwrap();
    }

    /// The objects in a file below deploy/.
    pub fn deploy(&self, file: &str) -> Vec<Value> {
        documents(&read(&format!("deploy/{file}")))
    }

    /// All objects of a collection such as `/api/v1/namespaces/default/pods`.
    pub fn objects(&self, collection: &str) -> Vec<Value> {
        self.reader.objects(collection)
    }
}

/// Objects of other kinds than `HTCJob`; a kind is called as kubectl takes it, such as `pod`.
impl Namespace<'_> {
    /// Where the objects of a kind are.
    pub fn collection(&self, kind: &str) -> String {
        let version = match kind {
            "htcjob" | "htcpool" => "htc.cern.ch/v1alpha1",
            "job" => "batch/v1",
            "networkpolicy" => "networking.k8s.io/v1",
            "rolebinding" => "rbac.authorization.k8s.io/v1",
            "statefulset" => "apps/v1",
            _ => "v1",
        };
        collection(version, Some(&self.name), kind)
    }

    pub fn object(&self, kind: &str, name: &str) -> Option<Value> {
        self.bed.object(&self.collection(kind), name)
    }

    /// Makes a Secret of one entry.
    pub fn secret(&self, name: &str, entry: &str, value: &str) {
        let metadata = json!({ "name": name, "namespace": self.name });
        let secret =
            json!({ "apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": { entry: value } });
        self.bed.create(&self.collection("secret"), &secret).unwrap();
    }

    /// Lets HTCJobs use this Secret or ConfigMap, by its label.
    pub fn let_use(&self, kind: &str, name: &str) {
        let value = if kind == "secret" { "credentials" } else { "items" };
        self.kubectl(&["label", "--overwrite", kind, name, &format!("htc.cern.ch/use={value}")]);
    }

    /// An entry of a Secret.
    pub fn secret_entry(&self, name: &str, entry: &str) -> String {
        entry_of(&self.object("secret", name).expect("the Secret is there"), entry)
    }

    /// Makes an object anew, in the place of one of its name.
    pub fn replace(&self, kind: &str, object: &Value) {
        let name = object["metadata"]["name"].as_str().unwrap();
        if self.object(kind, name).is_some() {
            self.remove(kind, name);
        }
        self.bed.apply(object);
    }

    /// Merges a patch into an object.
    pub fn patch(&self, kind: &str, name: &str, patch: &Value) {
        self.bed.merge(&self.collection(kind), name, patch);
    }

    /// Merges a patch into an object's status.
    pub fn patch_status(&self, kind: &str, name: &str, patch: &Value) {
        self.try_patch_status(kind, name, patch).unwrap();
    }

    /// The same, where the object may be gone.
    pub fn try_patch_status(&self, kind: &str, name: &str, patch: &Value) -> Result<Value, kube::Error> {
        self.bed.reader.merge_status(&self.collection(kind), name, patch)
    }

    /// Deletes an object, and does not wait until it is gone.
    pub fn begin_remove(&self, kind: &str, name: &str) {
        self.bed.reader.delete(&self.collection(kind), name, None).unwrap();
    }

    /// Deletes an object and waits until it is gone.
    pub fn remove(&self, kind: &str, name: &str) {
        self.begin_remove(kind, name);
        wait_for(&format!("{kind} {name} to be gone"), PATIENCE, || self.object(kind, name).is_none()).unwrap();
    }

    /// Deletes a Pod at once, as nobody asks its node.
    pub fn kill_pod(&self, name: &str) {
        self.try_kill_pod(name).unwrap();
    }

    /// The same, where the Pod may be gone.
    pub fn try_kill_pod(&self, name: &str) -> Result<Value, kube::Error> {
        self.bed.reader.delete(&self.collection("pod"), name, Some(0))
    }
}

/// The documents in a YAML file.
pub fn documents(text: &str) -> Vec<Value> {
    text.split("\n---\n").map(|document| serde_saphyr::from_str(document).unwrap()).collect()
}

/// Where objects like this one are.
pub fn collection_of(object: &Value) -> String {
    let text = |value: &Value| value.as_str().expect("the object says what it is").to_owned();
    let namespace = object["metadata"]["namespace"].as_str();
    collection(&text(&object["apiVersion"]), namespace, &text(&object["kind"]))
}

fn collection(version: &str, namespace: Option<&str>, kind: &str) -> String {
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    DynamicObject::url_path(&ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind)), namespace)
}

fn entry_of(secret: &Value, entry: &str) -> String {
    let value = base64::engine::general_purpose::STANDARD.decode(secret["data"][entry].as_str().unwrap());
    String::from_utf8(value.unwrap()).unwrap()
}
