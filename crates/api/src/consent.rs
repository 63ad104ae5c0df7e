//! Consent of a Secret or ConfigMap to its use by HTCJobs, given by a label on it. The operator's permission to read it
//! is not enough: a Role may let it read the object for a pool or for Pods only.

use kube::ResourceExt;

use super::ObjectName;

/// Label of a Secret or ConfigMap. Its value is the use that HTCJobs of its namespace may make of it.
pub const USE_LABEL: &str = "htc.cern.ch/use";

/// Use of another object by an HTCJob.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Use {
    /// Use of a ConfigMap by `spec.itemsFrom`.
    Items,
    /// Use of a ConfigMap by `spec.files`.
    Files,
    /// Use of a Secret by `spec.credentialsSecretName`.
    Credentials,
    /// Use of a Secret by `spec.files` or `spec.env`.
    SecretFiles,
    /// Use of a Secret by `spec.imagePullSecrets`.
    ImagePull,
}

/// Error: the object has no label that allows the use.
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
    /// Returns the value of the label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Items => "items",
            Self::Files | Self::SecretFiles => "files",
            Self::Credentials => "credentials",
            Self::ImagePull => "images",
        }
    }

    /// Returns the kind of the object that is used.
    #[must_use]
    pub const fn kind(self) -> &'static str {
        match self {
            Self::Items | Self::Files => "ConfigMap",
            Self::Credentials | Self::SecretFiles | Self::ImagePull => "Secret",
        }
    }

    const fn consequence(self) -> &'static str {
        match self {
            Self::Items | Self::Files | Self::SecretFiles => "read it",
            Self::Credentials => "submit with it",
            Self::ImagePull => "pull images with it",
        }
    }

    /// Returns the command that sets the label.
    #[must_use]
    pub fn command(self, object: &ObjectName) -> String {
        let (kind, label) = (self.kind().to_lowercase(), self.label());
        format!("kubectl --namespace {} label --overwrite {kind} {} {USE_LABEL}={label}", object.namespace, object.name)
    }

    /// Checks that the object allows this use by HTCJobs.
    ///
    /// # Errors
    ///
    /// Fails if the label has another value or is missing.
    pub fn is_allowed_by(self, object: &impl ResourceExt) -> Result<(), NoConsent> {
        if object.labels().get(USE_LABEL).is_some_and(|label| label == self.label()) {
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
    fn object_is_used_only_as_its_label_allows() {
        let secret = |labels| -> Secret {
            let metadata = json!({ "name": "s", "namespace": "n", "labels": labels });
            serde_json::from_value(json!({ "metadata": metadata })).unwrap()
        };
        assert_eq!(Use::Credentials.is_allowed_by(&secret(json!({ USE_LABEL: "credentials" }))), Ok(()));
        for other in
            [json!({}), json!({ USE_LABEL: "items" }), json!({ USE_LABEL: "" }), json!({ "use": "credentials" })]
        {
            let refused = Use::Credentials.is_allowed_by(&secret(other)).unwrap_err().to_string();
            assert!(refused.starts_with("the Secret n/s has no label"), "{refused}");
            assert!(
                refused.contains("`kubectl --namespace n label --overwrite secret s htc.cern.ch/use=credentials`"),
                "{refused}"
            );
        }
    }
}
