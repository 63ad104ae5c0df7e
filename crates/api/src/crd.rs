use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, ValidationRule,
};
use kube::CustomResourceExt;

use super::{HTCJob, HTCPool, HTCQueue};

/// Fields of the spec that may be changed at any time. All others are fixed once the HTCJob exists.
const MUTABLE: [&str; 4] = ["suspend", "parallelism", "activeDeadlineSeconds", "ttlSecondsAfterFinished"];

const IMMUTABLE: &str = "the spec cannot be changed once the HTCJob exists (only suspend, parallelism, activeDeadlineSeconds and ttlSecondsAfterFinished can): delete the HTCJob and create it again";

/// Returns the CustomResourceDefinition of the HTCJob.
#[must_use]
pub fn crd() -> CustomResourceDefinition {
    fix_spec(HTCJob::crd())
}

/// Returns [`crd`] as YAML, as in `crd/`.
pub fn crd_yaml() -> Result<String, serde_saphyr::ser::Error> {
    serde_saphyr::to_string(&crd())
}

/// Returns the CustomResourceDefinition of the HTCPool.
#[must_use]
pub fn pool_crd() -> CustomResourceDefinition {
    HTCPool::crd()
}

/// Returns [`pool_crd`] as YAML, as in `crd/`.
pub fn pool_crd_yaml() -> Result<String, serde_saphyr::ser::Error> {
    serde_saphyr::to_string(&pool_crd())
}

/// Returns the CustomResourceDefinition of the HTCQueue.
#[must_use]
pub fn queue_crd() -> CustomResourceDefinition {
    HTCQueue::crd()
}

/// Returns [`queue_crd`] as YAML, as in `crd/`.
pub fn queue_crd_yaml() -> Result<String, serde_saphyr::ser::Error> {
    serde_saphyr::to_string(&queue_crd())
}

/// Adds rules to every field of the spec's schema that forbid a change after creation, except for the mutable ones.
#[must_use]
pub fn fix_spec(mut crd: CustomResourceDefinition) -> CustomResourceDefinition {
    let schemas = crd.spec.versions.iter_mut().filter_map(|version| version.schema.as_mut());
    let objects = schemas.filter_map(|schema| schema.open_api_v3_schema.as_mut());
    objects.filter_map(|object| object.properties.as_mut()?.get_mut("spec")).for_each(fix);
    crd
}

/// Adds a transition rule to each immutable field, and one to the whole spec. A rule on a field costs nothing if the
/// field is not set, but is not evaluated when the field is added or removed. That is left to the rule on the whole
/// spec, which most writes do not change.
fn fix(spec: &mut JSONSchemaProps) {
    let fields = spec.properties.iter_mut().flatten().filter(|(name, _)| !MUTABLE.contains(&name.as_str()));
    let mut presence = Vec::new();
    for (name, field) in fields {
        field.x_kubernetes_validations.get_or_insert_default().push(immutable("self == oldSelf".to_owned()));
        presence.push(format!("has(self.{name}) == has(oldSelf.{name})"));
    }
    if !presence.is_empty() {
        let rule = format!("self == oldSelf || ({})", presence.join(" && "));
        spec.x_kubernetes_validations.get_or_insert_default().insert(0, immutable(rule));
    }
}

fn immutable(rule: String) -> ValidationRule {
    ValidationRule { rule, message: Some(IMMUTABLE.to_owned()), ..ValidationRule::default() }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Returns the schema of the spec.
    fn spec(crd: &mut CustomResourceDefinition) -> &mut JSONSchemaProps {
        let schema = crd.spec.versions[0].schema.as_mut().unwrap();
        schema.open_api_v3_schema.as_mut().unwrap().properties.as_mut().unwrap().get_mut("spec").unwrap()
    }

    #[test]
    fn new_spec_field_is_immutable_by_default() {
        let mut crd = HTCJob::crd();
        let novel = JSONSchemaProps { type_: Some("string".to_owned()), ..JSONSchemaProps::default() };
        spec(&mut crd).properties.as_mut().unwrap().insert("novel".to_owned(), novel);
        let mut crd = fix_spec(crd);
        let spec = spec(&mut crd);
        let rules = |schema: &JSONSchemaProps| -> Vec<String> {
            let rules = schema.x_kubernetes_validations.iter().flatten();
            rules.filter(|rule| rule.message.as_deref() == Some(IMMUTABLE)).map(|rule| rule.rule.clone()).collect()
        };
        let whole = rules(spec).concat();
        let presence = whole.strip_prefix("self == oldSelf || (").unwrap().strip_suffix(')').unwrap();
        let compared: BTreeSet<&str> = presence.split(" && ").collect();
        for (name, field) in spec.properties.as_ref().unwrap() {
            let fixed = !MUTABLE.contains(&name.as_str());
            assert_eq!(rules(field) == ["self == oldSelf"], fixed, "{name}");
            assert_eq!(compared.contains(&*format!("has(self.{name}) == has(oldSelf.{name})")), fixed, "{name}");
        }
        assert!(presence.contains("novel"), "{presence}");
        assert!(MUTABLE.iter().all(|name| spec.properties.as_ref().unwrap().contains_key(*name)));
    }
}
