//! What a control plane stores, so that one that has served a test can serve the next as if it were new: starting one costs
//! three seconds of a core, and a run of all tests needs more than a hundred.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::tool::run_ok;

const LIMIT: Duration = Duration::from_secs(20);
/// etcd takes 128 operations in a transaction.
const AT_ONCE: usize = 100;
/// Below these the API server itself writes now and then.
const ITS_OWN: [&str; 6] = [
    "/registry/leases/",
    "/registry/peerserverleases/",
    "/registry/masterleases/",
    "/registry/events/",
    "/registry/ranges/",
    "/registry/apiregistration",
];

/// Each stored key, with the revision in which it last changed.
#[derive(Debug)]
pub(crate) struct Storage(BTreeMap<String, String>);

impl Storage {
    /// What etcd at this URL has.
    pub(crate) fn look(etcd: &str) -> Result<Self> {
        let range = json!({ "key": STANDARD.encode("/registry/"), "range_end": STANDARD.encode("/registry0"), "keys_only": true });
        let answer = ask(etcd, "range", &range)?;
        let keys = answer["kvs"].as_array().into_iter().flatten().filter_map(|kv| {
            let key = STANDARD.decode(kv["key"].as_str()?).ok()?;
            Some((String::from_utf8(key).ok()?, kv["mod_revision"].to_string()))
        });
        Ok(Self(keys.collect()))
    }

    /// Deletes what came later. False if something that was there has changed: then the servers are not as they were.
    pub(crate) fn restore(&self, etcd: &str) -> Result<bool> {
        let now = Self::look(etcd)?;
        let same = |(key, revision): (&String, &String)| {
            ITS_OWN.iter().any(|own| key.starts_with(own)) || now.0.get(key) == Some(revision)
        };
        if !self.0.iter().all(same) {
            return Ok(false);
        }
        let later: Vec<&String> = now.0.keys().filter(|key| !self.0.contains_key(*key)).collect();
        for keys in later.chunks(AT_ONCE) {
            let delete = |key: &&String| json!({ "request_delete_range": { "key": STANDARD.encode(key.as_bytes()) } });
            ask(etcd, "txn", &json!({ "success": keys.iter().map(delete).collect::<Vec<_>>() }))?;
        }
        Ok(true)
    }
}

/// What etcd had below a folder of keys, byte for byte: [`Kube::put_back`](crate::Kube::put_back).
#[derive(Debug, Clone)]
pub struct Stored(Vec<Value>);

impl Stored {
    /// Copies what etcd at this URL has below `folder`, which ends with a slash.
    pub(crate) fn copy(etcd: &str, folder: &str) -> Result<Self> {
        let end = folder.strip_suffix('/').map_or_else(|| folder.to_owned(), |folder| format!("{folder}0"));
        let range = json!({ "key": STANDARD.encode(folder), "range_end": STANDARD.encode(end) });
        let kvs = ask(etcd, "range", &range)?["kvs"].take();
        let put = |kv: &Value| json!({ "request_put": { "key": kv["key"], "value": kv["value"] } });
        Ok(Self(kvs.as_array().into_iter().flatten().map(put).collect()))
    }

    /// Writes it again, whatever is there now.
    pub(crate) fn put(&self, etcd: &str) -> Result<()> {
        for puts in self.0.chunks(AT_ONCE) {
            ask(etcd, "txn", &json!({ "success": puts }))?;
        }
        Ok(())
    }

    /// How many keys it has.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.0.len()
    }
}

/// One call of etcd's JSON gateway.
fn ask(etcd: &str, call: &str, body: &Value) -> Result<Value> {
    let mut curl = Command::new("curl");
    curl.args(["-q", "--silent", "--show-error", "--fail", "--noproxy", "*", "--data-binary", "@-"]);
    let answer = run_ok("asking etcd", curl.arg(format!("{etcd}/v3/kv/{call}")), &body.to_string(), LIMIT)?;
    serde_json::from_str(&answer).map_err(|error| Error::Machine {
        problem: format!("etcd's answer cannot be read: {error}"),
        remedy: "look at etcd.log".to_owned(),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use std::time::Duration;

    use crate::{Assets, Kube, wait_for};

    const MADE: &str = "{apiVersion: v1, kind: ConfigMap, metadata: {name: made, namespace: default}}";

    #[test]
    fn restore_removes_later_objects_and_ignores_renewed_leases() {
        let kube = Kube::start(&Assets::locate().unwrap()).unwrap();
        kube.remember().unwrap();
        let before = kube.storage().unwrap().0;
        kube.apply_stdin(MADE).unwrap();
        // Each 10 s; else every control plane but the most short-lived would be thrown away.
        wait_for("the API server to renew its leases", Duration::from_secs(60), || {
            let now = kube.storage().unwrap().0;
            let kinds = ["/registry/leases/", "/registry/peerserverleases/"];
            kinds.iter().all(|kind| before.iter().any(|(key, was)| key.starts_with(kind) && now.get(key) != Some(was)))
        })
        .unwrap();
        assert!(kube.restore().unwrap());
        assert_eq!(kube.kubectl_ok(&["get", "configmaps", "-o", "name"]).unwrap(), "");

        kube.apply_stdin(MADE).unwrap();
        let uid = || kube.kubectl_ok(&["get", "configmap", "made", "-o", "jsonpath={.metadata.uid}"]).unwrap();
        let (was, copy) = (uid(), kube.copy_stored("configmaps", "default").unwrap());
        kube.kubectl_ok(&["delete", "configmap", "made"]).unwrap();
        kube.put_back(&copy).unwrap();
        assert_eq!((copy.keys(), uid()), (1, was), "it lives again");
        assert!(kube.restore().unwrap());

        kube.kubectl_ok(&["label", "namespace", "default", "changed=true"]).unwrap();
        assert!(!kube.restore().unwrap(), "what was there before has changed");
    }
}
