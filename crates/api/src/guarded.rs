//! Decoding of objects that users may have made invalid.

use std::borrow::Cow;
use std::fmt::Debug;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::Resource;
use kube::core::error_boundary::InvalidObject;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

/// Fields that are kept of undecodable metadata. The API server has checked them, or they are plain text.
const PLAIN: [&str; 8] =
    ["name", "namespace", "uid", "resourceVersion", "generation", "labels", "annotations", "finalizers"];

/// Object that is listed or watched together with others. An object that cannot be decoded does not break the answer
/// about the others, and keeps as much of its metadata as can be decoded.
///
/// `kube::core::DeserializeGuard` does the same, but only if the metadata can be decoded. A user who may change an
/// object can write any time into its `managedFields`, for example 9999-12-31T23:59:59Z. The API server accepts that
/// time and `jiff` does not. The operator does not use `managedFields`, so they are removed before decoding.
#[derive(Clone, Debug)]
pub struct Guarded<K>(pub Result<K, InvalidObject>);

impl<'de, K: DeserializeOwned> Deserialize<'de> for Guarded<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut object = Value::deserialize(deserializer)?;
        let metadata = object.get_mut("metadata").and_then(Value::as_object_mut);
        if let Some(metadata) = metadata {
            metadata.remove("managedFields");
        }
        Ok(Self(K::deserialize(&object).map_err(|error| InvalidObject {
            error: error.to_string(),
            metadata: object.get("metadata").and_then(Value::as_object).map(metadata_of).unwrap_or_default(),
        })))
    }
}

/// Decodes as much of the metadata as possible. A deletion timestamp is never lost, although its value may be.
fn metadata_of(metadata: &Map<String, Value>) -> ObjectMeta {
    ObjectMeta::deserialize(metadata).unwrap_or_else(|_| {
        let plain = metadata.iter().filter(|(key, _)| PLAIN.contains(&key.as_str()));
        let plain: Map<String, Value> = plain.map(|(key, value)| (key.clone(), value.clone())).collect();
        let deleted = metadata.contains_key("deletionTimestamp").then_some(Time(jiff::Timestamp::UNIX_EPOCH));
        ObjectMeta { deletion_timestamp: deleted, ..ObjectMeta::deserialize(&plain).unwrap_or_default() }
    })
}

impl<K: Resource> Resource for Guarded<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(of: &Self::DynamicType) -> Cow<'_, str> {
        K::kind(of)
    }

    fn group(of: &Self::DynamicType) -> Cow<'_, str> {
        K::group(of)
    }

    fn version(of: &Self::DynamicType) -> Cow<'_, str> {
        K::version(of)
    }

    fn plural(of: &Self::DynamicType) -> Cow<'_, str> {
        K::plural(of)
    }

    fn meta(&self) -> &ObjectMeta {
        match &self.0 {
            Ok(object) => object.meta(),
            Err(invalid) => &invalid.metadata,
        }
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        match &mut self.0 {
            Ok(object) => object.meta_mut(),
            Err(invalid) => &mut invalid.metadata,
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use kube::ResourceExt as _;
    use kube::core::ObjectList;
    use serde_json::json;

    use super::*;

    fn pod(metadata: &Value, spec: &Value) -> Value {
        let mut metadata = metadata.clone();
        metadata["name"] = "a".into();
        json!({ "metadata": metadata, "spec": spec })
    }

    #[test]
    fn undecodable_object_does_not_fail_the_list() {
        let entry = json!({ "manager": "x", "operation": "Update", "time": "9999-12-31T23:59:59Z" });
        let late = pod(&json!({ "managedFields": [entry] }), &json!({ "containers": [] }));
        let good = pod(&json!({}), &json!({ "containers": [] }));
        let bad = pod(&json!({ "uid": "u" }), &json!({ "containers": 3 }));
        let deleted = json!({ "uid": "v", "finalizers": ["f"], "deletionTimestamp": "9999-12-31T23:59:59Z" });
        let list = json!({ "metadata": {}, "items": [late, good, bad, pod(&deleted, &json!({ "containers": [] }))] });
        let list: ObjectList<Guarded<Pod>> = serde_json::from_value(list).unwrap();
        let [late, good, bad, deleted] = list.items.as_slice() else { panic!("four") };
        assert!(late.0.is_ok() && good.0.is_ok());
        assert!(bad.0.is_err() && bad.uid().as_deref() == Some("u") && bad.name_any() == "a");
        assert!(deleted.0.is_err() && deleted.meta().deletion_timestamp.is_some());
        assert_eq!((deleted.finalizers(), deleted.uid().as_deref()), (&["f".to_owned()][..], Some("v")));
    }
}
