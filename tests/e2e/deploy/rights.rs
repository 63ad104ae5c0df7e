//! Rights that roles grant, and rights that an account has used.

use std::fmt;
use std::path::Path;

use serde_json::Value;

use crate::deploy::manifests::each;

/// One thing that a role lets a service account do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Right {
    /// Kind and name of the role.
    pub role: String,
    /// Where it holds; everywhere if there is none.
    pub namespace: Option<String>,
    pub verb: String,
    pub group: String,
    /// With a `/` and the subresource if there is one.
    pub resource: String,
    /// The only object that it holds for.
    pub name: Option<String>,
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { role, verb, group, resource, .. } = self;
        write!(f, "{role}: {verb} {resource}.{group}")?;
        self.name.iter().try_for_each(|name| write!(f, " {name}"))
    }
}

/// One request, as the API server's audit log has it.
#[derive(Clone, Debug)]
pub struct Asked {
    pub verb: String,
    pub group: String,
    pub resource: String,
    pub namespace: String,
    pub name: String,
    /// It was refused for want of a right.
    pub forbidden: bool,
    line: String,
}

impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line)
    }
}

impl Right {
    /// Whether this request needed it.
    fn is_used_by(&self, asked: &Asked) -> bool {
        !asked.forbidden
            && (&self.verb, &self.group, &self.resource) == (&asked.verb, &asked.group, &asked.resource)
            && self.namespace.as_ref().is_none_or(|namespace| *namespace == asked.namespace)
            && self.name.as_ref().is_none_or(|name| *name == asked.name)
    }
}

/// All that these objects let a service account do.
pub fn of(objects: &[Value], namespace: &str, account: &str) -> Vec<Right> {
    let is_ours = |subject: &&Value| {
        subject["kind"] == "ServiceAccount" && subject["name"] == account && subject["namespace"] == namespace
    };
    let bindings = objects.iter().filter(|object| {
        matches!(object["kind"].as_str(), Some("ClusterRoleBinding" | "RoleBinding"))
            && each(&object["subjects"]).any(|subject| is_ours(&subject))
    });
    bindings
        .flat_map(|binding| {
            let (kind, name) = (&binding["roleRef"]["kind"], &binding["roleRef"]["name"]);
            let role = objects.iter().find(|object| object["kind"] == *kind && object["metadata"]["name"] == *name);
            let role = role.unwrap_or_else(|| panic!("there is no {kind} {name}"));
            let place = (binding["kind"] == "RoleBinding").then(|| text(&binding["metadata"]["namespace"]));
            each(&role["rules"])
                .flat_map(move |rule| of_rule(rule, &format!("{} {}", text(kind), text(name)), place.as_deref()))
        })
        .collect()
}

fn of_rule(rule: &Value, granted_by: &str, namespace: Option<&str>) -> Vec<Right> {
    let mut names: Vec<Option<String>> = each(&rule["resourceNames"]).map(|name| Some(text(name))).collect();
    if names.is_empty() {
        names.push(None);
    }
    let mut rights = Vec::new();
    for verb in each(&rule["verbs"]) {
        for group in each(&rule["apiGroups"]) {
            for resource in each(&rule["resources"]) {
                for name in &names {
                    rights.push(Right {
                        role: granted_by.to_owned(),
                        namespace: namespace.map(str::to_owned),
                        verb: text(verb),
                        group: text(group),
                        resource: text(resource),
                        name: name.clone(),
                    });
                }
            }
        }
    }
    assert!(!rights.is_empty(), "a rule of {granted_by} allows nothing: {rule}");
    rights
}

/// What a service account has asked for.
pub fn asked(log: &Path, account: &str) -> Vec<Asked> {
    let log = std::fs::read_to_string(log).unwrap();
    // The last line may not be whole yet.
    let lines = log.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    let events = lines.map(|line| serde_json::from_str::<Value>(line).unwrap());
    events
        .filter(|event| event["user"]["username"] == account && event["objectRef"].is_object())
        .map(|event| {
            let object = &event["objectRef"];
            let sub = object["subresource"].as_str().map(|sub| format!("/{sub}")).unwrap_or_default();
            Asked {
                verb: text(&event["verb"]),
                group: text(&object["apiGroup"]),
                resource: text(&object["resource"]) + &sub,
                namespace: text(&object["namespace"]),
                name: text(&object["name"]),
                forbidden: event["responseStatus"]["code"] == 403
                    || event["annotations"]["authorization.k8s.io/decision"] == "forbid",
                line: format!("{} {}", text(&event["verb"]), text(&event["requestURI"])),
            }
        })
        .collect()
}

/// The rights that none of these requests needed.
pub fn unused<'a>(rights: &'a [Right], asked: &[Asked]) -> Vec<&'a Right> {
    rights.iter().filter(|right| !asked.iter().any(|asked| right.is_used_by(asked))).collect()
}

/// Fails if a request was refused; each is named.
pub fn must_suffice(asked: &[Asked]) {
    let refused: Vec<String> = asked.iter().filter(|asked| asked.forbidden).map(ToString::to_string).collect();
    let shown = &refused[..refused.len().min(10)];
    assert!(refused.is_empty(), "the operator lacks rights; it was refused\n{}", shown.join("\n"));
}

/// Fails if a right was not used; each is named.
pub fn must_be_needed(rights: &[Right], asked: &[Asked]) {
    let unused: Vec<String> = unused(rights, asked).into_iter().map(ToString::to_string).collect();
    assert!(unused.is_empty(), "the operator has rights that it never used\n{}", unused.join("\n"));
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
