//! HTCPool: an HTCondor pool that HTCJobs refer to.

use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use super::{Condition, HTCJobSpec, ManagedPool, ObjectName};

/// Finalizer of every HTCPool that this operator has seen. It is released when no HTCJob needs the pool.
pub const POOL_FINALIZER: &str = "htc.cern.ch/pool";
/// Type of the condition that every pool has. Managed pools have five more.
pub const READY_CONDITION: &str = "Ready";
/// Value in `allowedNamespaces` that stands for all namespaces.
const ALL: &str = "*";

/// Where the pool is, and who may use it.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[kube(
    group = "htc.cern.ch",
    version = "v1alpha1",
    kind = "HTCPool",
    plural = "htcpools",
    shortname = "htcpl",
    category = "all",
    namespaced,
    status = "HTCPoolStatus",
    derive = "PartialEq",
    derive = "Default",
    scale = r#"{"specReplicasPath":".spec.managed.workers.replicas","statusReplicasPath":".status.workers.replicas","labelSelectorPath":".status.workers.selector"}"#,
    doc = "An HTCPool is an HTCondor pool that HTCJobs can run on. HTCJobs name it in spec.pool.",
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].status",
        description = "whether HTCJobs are submitted to this pool"
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].reason",
        description = "reason of the condition Ready"
    ),
    printcolumn(name = "Schedd", type_ = "string", json_path = ".status.schedd", description = "name of the schedd"),
    printcolumn(
        name = "Workers",
        type_ = "integer",
        json_path = ".status.workers.ready",
        description = "workers of a managed pool that HTCondor knows"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].message",
        description = "explanation of the condition Ready",
        priority = 1
    )
)]
#[x_kube(
    validation = Rule::new("has(self.external) != has(self.managed)")
        .message("write either spec.external or spec.managed"),
    validation = Rule::new("has(self.external) == has(oldSelf.external)")
        .message("a pool cannot be changed into another one: create a new HTCPool")
)]
#[serde(rename_all = "camelCase")]
pub struct HTCPoolSpec {
    /// A pool that runs outside of this operator. It cannot be changed: HTCJobs are found again only where they were submitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self == oldSelf")
        .message("a pool cannot be changed into another one: create a new HTCPool"))]
    pub external: Option<ExternalPool>,

    /// A pool that the operator runs in the namespace of the HTCPool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub managed: Option<ManagedPool>,

    /// Namespaces whose HTCJobs may use the pool. `*` stands for all namespaces. Default: only the namespace of the HTCPool.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 1000),
        inner(length(min = 1, max = 63), pattern(r"^([*]|[a-z0-9]([-a-z0-9]*[a-z0-9])?)$"))
    )]
    pub allowed_namespaces: Vec<String>,
}

/// A pool that runs outside of this operator.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ExternalPool {
    /// Host of the collector, for example `cm.example.org` or `cm.example.org:9618`. Several are separated by commas.
    #[schemars(length(max = 1024))]
    #[x_kube(validation = Rule::new("self.matches('^[A-Za-z0-9][-A-Za-z0-9.]*(:[0-9]{1,5})?(,[A-Za-z0-9][-A-Za-z0-9.]*(:[0-9]{1,5})?)*$')")
        .message("collector is the collector's host, such as cm.example.org:9618; several are separated by commas, without blanks"))]
    pub collector: String,
    /// Name of the schedd that the HTCJobs are submitted to, as `condor_status -schedd` shows it.
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new("self.matches('^[A-Za-z0-9][-A-Za-z0-9._@]*$')")
        .message("schedd is the name of a schedd, as condor_status -schedd shows it"))]
    pub schedd: String,
    /// Secret in the namespace of the HTCPool. HTCJobs that name no Secret of their own are submitted with its credentials.
    /// Its keys: `token` (an HTCondor IDTOKEN), `user` and `keytab`, or `username` and `password` (Kerberos).
    /// The operator needs permission to get it; docs/credentials.md has the Role.
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$')")
        .message("credentialsSecretName is the name of a Secret in the HTCPool's own namespace: lower-case letters, digits, - and ."))]
    pub credentials_secret_name: String,
}

/// Observed state of the HTCPool.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct HTCPoolStatus {
    /// Generation of the spec that the status refers to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Name of the schedd.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub schedd: Option<String>,
    /// Ready: whether HTCJobs are submitted to this pool. Of a managed pool also WorkersReady: whether there are as many workers as wanted;
    /// ImagesUsable: whether workers can be made of the images that HTCJobs wait for; ShadowsConfined: whether the schedd's shadows reach
    /// no files but those of their own job; PayloadsConfined: whether jobs reach no files and no processes of their worker but their own; and
    /// SigningKeyRotated: whether tokens of the newest signing key alone are accepted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// Which signing key the pool of a managed HTCPool has. The key itself is in a Secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub signing_key: Option<String>,
    /// Generation of that key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signing_key_generation: Option<i32>,
    /// Workers of a managed pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<WorkersStatus>,
}

/// Workers of a managed pool.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct WorkersStatus {
    /// Pods of workers that are there and are not being drained.
    pub replicas: i32,
    /// Workers that HTCondor's collector knows.
    pub ready: i32,
    /// Workers that run jobs.
    pub busy: i32,
    /// Workers that take no jobs any more and end when those that they have end.
    pub draining: i32,
    /// Label selector of the pods, for the scale subresource.
    #[schemars(length(max = 512))]
    pub selector: String,
}

impl HTCPoolSpec {
    /// Whether HTCJobs of `namespace` may use the pool, which is in namespace `own`.
    #[must_use]
    pub fn allows(&self, own: &str, namespace: &str) -> bool {
        if self.allowed_namespaces.is_empty() {
            return own == namespace;
        }
        self.allowed_namespaces.iter().any(|allowed| allowed == ALL || allowed == namespace)
    }
}

impl HTCPool {
    /// Returns the condition `Ready`.
    #[must_use]
    pub fn ready_condition(&self) -> Option<&Condition> {
        self.status.as_ref()?.conditions.iter().find(|condition| condition.type_ == READY_CONDITION)
    }
}

/// Returns the HTCPool of an HTCJob in `namespace` with this spec; `None` for the pool of the operator's flags.
#[must_use]
pub fn pool_of(namespace: &str, spec: &HTCJobSpec) -> Option<ObjectName> {
    let pool = spec.pool.as_deref()?;
    let (namespace, name) = pool.split_once('/').unwrap_or((namespace, pool));
    Some(ObjectName { namespace: namespace.to_owned(), name: name.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pool_allows_its_own_namespace_or_the_listed_ones() {
        let allowing = |namespaces: &[&str]| HTCPoolSpec {
            allowed_namespaces: namespaces.iter().map(|name| (*name).to_owned()).collect(),
            ..HTCPoolSpec::default()
        };
        let may = |namespaces: &[&str], namespace| allowing(namespaces).allows("own", namespace);
        assert!(may(&[], "own") && !may(&[], "other"));
        assert!(may(&["other"], "other") && !may(&["other"], "own") && !may(&["oth"], "other"));
        assert!(may(&["a", "*"], "own") && may(&["*"], "other"));
    }

    #[test]
    fn pool_without_namespace_is_in_the_namespace_of_the_htcjob() {
        let of = |pool: Option<&str>| {
            let spec = HTCJobSpec { pool: pool.map(str::to_owned), ..HTCJobSpec::default() };
            pool_of("physics", &spec).map(|name| name.to_string())
        };
        assert_eq!(of(None), None);
        assert_eq!(of(Some("lhc")).as_deref(), Some("physics/lhc"));
        assert_eq!(of(Some("grid/lhc")).as_deref(), Some("grid/lhc"));
    }

    #[test]
    fn pool_stored_before_managed_pools_existed_is_decoded() {
        let stored = serde_json::json!({
            "apiVersion": "htc.cern.ch/v1alpha1", "kind": "HTCPool", "metadata": { "name": "lhc" },
            "spec": {
                "external": { "collector": "cm:9618", "schedd": "schedd", "credentialsSecretName": "token" },
                "allowedNamespaces": ["physics"],
            },
            "status": { "observedGeneration": 1, "conditions": [] },
        });
        let pool: HTCPool = serde_json::from_value(stored).unwrap();
        assert!(pool.spec.managed.is_none());
        assert_eq!(pool.spec.external.unwrap().schedd, "schedd");
        let status = pool.status.unwrap();
        assert_eq!((status.observed_generation, status.signing_key, status.workers.is_none()), (Some(1), None, true));
    }
}
