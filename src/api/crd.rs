use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;

use super::HTCJob;

/// The `CustomResourceDefinition` of the `HTCJob`.
#[must_use]
pub fn crd() -> CustomResourceDefinition {
    HTCJob::crd()
}

/// [`crd`] as the YAML that stands in `crd/`.
pub fn crd_yaml() -> Result<String, serde_saphyr::ser::Error> {
    serde_saphyr::to_string(&crd())
}
