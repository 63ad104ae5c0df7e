//! Discovery and schemas of the API. All of it is constant: no answer needs a leader or the ledger.

use htc_api::htcproc::{GROUP, HTCProcSpec, HTCProcStatus, RESOURCE, VERSION};
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use super::story::{HTCStory, STORIES};

/// Media type of a group's discovery, with its version in place of `{}`.
const AGGREGATED: [&str; 2] = ["v2", "v2beta1"];
/// Name of the schema of jobs.
const SCHEMA: &str = "ch.cern.htc.procs.v1alpha1.HTCProc";
/// Name of the schema of stories.
const STORY: &str = "ch.cern.htc.procs.v1alpha1.HTCStory";
/// Name of the schema of lists.
const LIST: &str = "ch.cern.htc.procs.v1alpha1.HTCProcList";

/// A constant answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// Media type.
    pub content_type: String,
    /// Text.
    pub body: String,
}

fn document(content_type: &str, body: &Value) -> Document {
    Document { content_type: content_type.to_owned(), body: body.to_string() }
}

/// Returns the verbs in discovery: only `get` and `list`. A client that finds `delete` or `watch` here lists all jobs,
/// or waits for their deletion with a namespace's. The other verbs can be used all the same.
fn verbs() -> Value {
    json!(["get", "list"])
}

/// Subresources of a job, each with the verb that it is used by.
pub const SUBRESOURCES: [(&str, &str); 6] = [
    ("analysis", "get"),
    ("files", "get"),
    ("hold", "create"),
    ("log", "get"),
    ("release", "create"),
    ("remove", "create"),
];

/// Subresources of a story, each with its verb: the files of all jobs of the HTCJob.
const STORY_SUBRESOURCES: [(&str, &str); 1] = [("files", "get")];

fn kind() -> Value {
    json!({ "group": GROUP, "version": VERSION, "kind": "HTCProc" })
}

fn story_kind() -> Value {
    json!({ "group": GROUP, "version": VERSION, "kind": "HTCStory" })
}

/// Returns `/apis` in an accepted form; `None` if none is accepted.
#[must_use]
pub fn groups(accept: &str) -> Option<Document> {
    let wants = |version: &str| {
        accept.split(',').any(|range| {
            let mut parts = range.split(';').map(str::trim);
            let json = parts.next().is_some_and(|kind| kind == "application/json");
            let parts: Vec<&str> = parts.collect();
            let version = format!("v={version}");
            json && parts.contains(&"g=apidiscovery.k8s.io")
                && parts.contains(&version.as_str())
                && parts.contains(&"as=APIGroupDiscoveryList")
        })
    };
    let version = AGGREGATED.into_iter().find(|version| wants(version));
    if let Some(version) = version {
        let content_type = format!("application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList");
        return Some(document(&content_type, &aggregated(version)));
    }
    let plain = |range: &str| {
        let mut parts = range.split(';').map(str::trim);
        parts.next().is_some_and(|kind| ["application/json", "application/*", "*/*", ""].contains(&kind))
            && parts.all(|part| !part.starts_with("as="))
    };
    accept.split(',').any(plain).then(|| {
        let groups = json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": [api_group()] });
        document("application/json", &groups)
    })
}

fn api_group() -> Value {
    let version = json!({ "groupVersion": format!("{GROUP}/{VERSION}"), "version": VERSION });
    json!({ "name": GROUP, "versions": [version], "preferredVersion": version })
}

/// Returns `/apis/GROUP`.
#[must_use]
pub fn group() -> Document {
    let mut group = api_group();
    group["kind"] = "APIGroup".into();
    group["apiVersion"] = "v1".into();
    document("application/json", &group)
}

fn aggregated(version: &str) -> Value {
    let subresources = |all: &[(&str, &str)], kind: Value| -> Vec<Value> {
        all.iter().map(|(name, verb)| json!({ "subresource": name, "responseKind": kind, "verbs": [verb] })).collect()
    };
    let stories = json!({
        "resource": STORIES,
        "responseKind": story_kind(),
        "scope": "Namespaced",
        "singularResource": "htcstory",
        "verbs": ["get"],
        "subresources": subresources(&STORY_SUBRESOURCES, story_kind()),
    });
    let resource = json!({
        "resource": RESOURCE,
        "responseKind": kind(),
        "scope": "Namespaced",
        "singularResource": "htcproc",
        "verbs": verbs(),
        "shortNames": ["htcp"],
        "subresources": subresources(&SUBRESOURCES, kind()),
    });
    json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": format!("apidiscovery.k8s.io/{version}"),
        "metadata": {},
        "items": [{
            "metadata": { "name": GROUP },
            "versions": [{ "version": VERSION, "freshness": "Current", "resources": [resource, stories] }],
        }],
    })
}

/// Returns `/apis/GROUP/VERSION`.
#[must_use]
pub fn resources() -> Document {
    let mut resources = vec![json!({
        "name": RESOURCE,
        "singularName": "htcproc",
        "namespaced": true,
        "kind": "HTCProc",
        "verbs": verbs(),
        "shortNames": ["htcp"],
    })];
    let subresource = |resource: &str, kind: &str, (name, verb): &(&str, &str)| {
        json!({
            "name": format!("{resource}/{name}"),
            "singularName": "",
            "namespaced": true,
            "kind": kind,
            "verbs": [verb],
        })
    };
    resources.extend(SUBRESOURCES.iter().map(|its| subresource(RESOURCE, "HTCProc", its)));
    resources.push(json!({
        "name": STORIES,
        "singularName": "htcstory",
        "namespaced": true,
        "kind": "HTCStory",
        "verbs": ["get"],
    }));
    resources.extend(STORY_SUBRESOURCES.iter().map(|its| subresource(STORIES, "HTCStory", its)));
    let list = json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": format!("{GROUP}/{VERSION}"),
        "resources": resources,
    });
    document("application/json", &list)
}

/// Returns `/openapi/v2`: empty, as clients use `/openapi/v3`.
#[must_use]
pub fn openapi_v2() -> Document {
    let nothing = json!({ "swagger": "2.0", "info": { "title": "htc-operator", "version": VERSION }, "paths": {} });
    document("application/json", &nothing)
}

/// Returns `/openapi/v3`, which names the document.
#[must_use]
pub fn openapi_v3_paths() -> Document {
    let path = format!("apis/{GROUP}/{VERSION}");
    let hash = env!("CARGO_PKG_VERSION");
    let at = json!({ "serverRelativeURL": format!("/openapi/v3/{path}?hash={hash}") });
    document("application/json", &json!({ "paths": { path: at } }))
}

/// Returns `/openapi/v3/apis/GROUP/VERSION`.
#[must_use]
pub fn openapi_v3() -> Document {
    let reference = |name: &str| json!({ "$ref": format!("#/components/schemas/{name}") });
    let get = |action: &str, kind: Value, schema: &str, parameters: &Value| {
        let name = kind["kind"].as_str().unwrap_or_default();
        let content = json!({ "application/json": { "schema": reference(schema) } });
        json!({
            "get": {
                "description": "reads what is known of HTCJobs",
                "operationId": format!("{action}{name}"),
                "x-kubernetes-action": action,
                "x-kubernetes-group-version-kind": kind,
                "responses": { "200": { "description": "OK", "content": content } },
            },
            "parameters": parameters,
        })
    };
    let parameter =
        |name: &str| json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } });
    let base = format!("/apis/{GROUP}/{VERSION}");
    let mut paths = Map::new();
    paths.insert(format!("{base}/{RESOURCE}"), get("list", kind(), LIST, &json!([])));
    let namespaced = format!("{base}/namespaces/{{namespace}}/{RESOURCE}");
    paths.insert(namespaced.clone(), get("list", kind(), LIST, &json!([parameter("namespace")])));
    paths.insert(
        format!("{namespaced}/{{name}}"),
        get("get", kind(), SCHEMA, &json!([parameter("namespace"), parameter("name")])),
    );
    paths.insert(
        format!("{base}/namespaces/{{namespace}}/{STORIES}/{{name}}"),
        get("get", story_kind(), STORY, &json!([parameter("namespace"), parameter("name")])),
    );
    let text = |description: &str| json!({ "type": "string", "description": description });
    let api_version = text("procs.htc.cern.ch/v1alpha1");
    let metadata = json!({ "type": "object", "description": "Standard object's metadata." });
    let proc = json!({
        "type": "object",
        "description": "An HTCProc is one job of an HTCJob. It cannot be created or changed: the HTCJob says what runs.",
        "properties": {
            "apiVersion": api_version,
            "kind": text("HTCProc"),
            "metadata": metadata,
            "spec": schema_of::<HTCProcSpec>(),
            "status": schema_of::<HTCProcStatus>(),
        },
        "x-kubernetes-group-version-kind": [kind()],
    });
    let mut story = schema_of::<HTCStory>();
    story["properties"]["apiVersion"] = api_version.clone();
    story["properties"]["kind"] = text("HTCStory");
    story["properties"]["metadata"] = metadata.clone();
    story["x-kubernetes-group-version-kind"] = json!([story_kind()]);
    let list = json!({
        "type": "object",
        "description": "A list of HTCProcs.",
        "properties": {
            "apiVersion": api_version,
            "kind": text("HTCProcList"),
            "metadata": { "type": "object", "description": "Standard list metadata." },
            "items": { "type": "array", "items": reference(SCHEMA) },
        },
        "x-kubernetes-group-version-kind": [{ "group": GROUP, "version": VERSION, "kind": "HTCProcList" }],
    });
    let whole = json!({
        "openapi": "3.0.0",
        "info": { "title": "htc-operator", "version": VERSION },
        "paths": paths,
        "components": { "schemas": { SCHEMA: proc, LIST: list, STORY: story } },
    });
    document("application/json", &whole)
}

fn schema_of<T: schemars::JsonSchema>() -> Value {
    let mut settings = SchemaSettings::openapi3();
    settings.inline_subschemas = true;
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    if let Some(fields) = schema.as_object_mut() {
        fields.remove("$schema");
        fields.remove("title");
    }
    schema
}

#[cfg(test)]
mod tests {
    use super::*;

    const APISERVER: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";

    #[test]
    fn discovery_is_in_the_requested_format() {
        let newest = groups(APISERVER).unwrap();
        assert_eq!(newest.content_type, "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList");
        assert!(newest.body.contains(r#""apiVersion":"apidiscovery.k8s.io/v2""#), "{}", newest.body);
        let older = groups("application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList").unwrap();
        assert!(older.body.contains(r#""apiVersion":"apidiscovery.k8s.io/v2beta1""#), "{}", older.body);
        assert!(groups("application/json").unwrap().body.contains("APIGroupList"));
        assert_eq!(groups("application/vnd.kubernetes.protobuf"), None);
    }

    /// A controller that finds other verbs here keeps all jobs in memory, or waits for their deletion; a category
    /// would list them with `all`.
    #[test]
    fn discovery_hides_watch_and_delete_from_controllers() {
        for body in [groups(APISERVER).unwrap().body, resources().body] {
            let value: Value = serde_json::from_str(&body).unwrap();
            let parts = [&value["items"][0]["versions"][0]["resources"][0], &value["resources"][0]];
            let resource = parts.into_iter().find(|part| part.is_object()).unwrap();
            assert_eq!(resource["verbs"], json!(["get", "list"]), "{body}");
            assert!(resource.get("categories").is_none(), "{body}");
        }
    }

    #[test]
    fn every_field_has_a_description() {
        let whole: Value = serde_json::from_str(&openapi_v3().body).unwrap();
        let schema = &whole["components"]["schemas"][SCHEMA]["properties"];
        let story = &whole["components"]["schemas"][STORY]["properties"];
        for part in
            [&schema["spec"], &schema["status"], &story["transitions"]["items"], &json!({ "properties": story })]
        {
            let properties = part["properties"].as_object().unwrap();
            for (name, field) in properties {
                assert!(field["description"].is_string(), "{name}: {field}");
            }
        }
        assert!(!whole.to_string().contains("$defs"), "{whole}");
    }
}
