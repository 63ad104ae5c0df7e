//! Reads and changes objects straight at the API server: a kubectl for each time would take more of the machine than what is tested.

use std::path::Path;
use std::time::Duration;

use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::Request;
use kube::core::params::{DeleteParams, GetParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::Value;
use testbed::wait_for;
use tokio::runtime::Runtime;

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

    /// Deletes an object, and does not wait until it is gone.
    pub fn delete(&self, collection: &str, name: &str) -> Result<Value, kube::Error> {
        let request = Request::new(collection).delete(name, &DeleteParams::default()).unwrap();
        self.runtime.block_on(self.client.request(request))
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
