//! Whether a Secret or a ConfigMap may be used for `HTCJob`s: it says so itself, by a label. That the operator may read it does not
//! suffice: a Role may let it read the object for a pool or for Pods.

use kube::ResourceExt;

use super::ObjectName;

/// Label of a Secret or ConfigMap: what `HTCJob`s of its namespace may use it for.
pub const USE: &str = "htc.cern.ch/use";

/// What an `HTCJob` uses another object for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Use {
    /// A ConfigMap: `spec.itemsFrom`.
    Items,
    /// A Secret: `spec.credentialsSecretName`.
    Credentials,
}

/// The object has no label that allows the use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the {} {object} has no label that lets HTCJobs use it: whoever may change it can run `{}`, and then everybody who may create HTCJobs in the namespace can {}",
    .wanted.kind(), .wanted.command(object), .wanted.consequence()
)]
pub struct NoConsent {
    wanted: Use,
    object: ObjectName,
}

impl Use {
    /// The value of the label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Items => "items",
            Self::Credentials => "credentials",
        }
    }

    /// The kind of such an object.
    #[must_use]
    pub const fn kind(self) -> &'static str {
        match self {
            Self::Items => "ConfigMap",
            Self::Credentials => "Secret",
        }
    }

    const fn consequence(self) -> &'static str {
        match self {
            Self::Items => "read it",
            Self::Credentials => "submit with it",
        }
    }

    /// The command that sets the label.
    #[must_use]
    pub fn command(self, object: &ObjectName) -> String {
        let (kind, label) = (self.kind().to_lowercase(), self.label());
        format!("kubectl --namespace {} label --overwrite {kind} {} {USE}={label}", object.namespace, object.name)
    }

    /// Whether the object lets `HTCJob`s use it so.
    ///
    /// # Errors
    ///
    /// Its label is another one, or missing.
    pub fn is_allowed_by(self, object: &impl ResourceExt) -> Result<(), NoConsent> {
        if object.labels().get(USE).is_some_and(|label| label == self.label()) {
            return Ok(());
        }
        let object = ObjectName { namespace: object.namespace().unwrap_or_default(), name: object.name_any() };
        Err(NoConsent { wanted: self, object })
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Secret;
    use serde_json::json;

    use super::*;

    #[test]
    fn an_object_is_used_for_what_its_label_says_alone() {
        let secret = |labels| -> Secret {
            let metadata = json!({ "name": "s", "namespace": "n", "labels": labels });
            serde_json::from_value(json!({ "metadata": metadata })).unwrap()
        };
        assert_eq!(Use::Credentials.is_allowed_by(&secret(json!({ USE: "credentials" }))), Ok(()));
        for other in [json!({}), json!({ USE: "items" }), json!({ USE: "" }), json!({ "use": "credentials" })] {
            let refused = Use::Credentials.is_allowed_by(&secret(other)).unwrap_err().to_string();
            assert!(refused.starts_with("the Secret n/s has no label"), "{refused}");
            assert!(
                refused.contains("`kubectl --namespace n label --overwrite secret s htc.cern.ch/use=credentials`"),
                "{refused}"
            );
        }
    }
}
