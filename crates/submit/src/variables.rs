//! `spec.env`: the variables of the script.

use std::collections::{BTreeMap, HashSet};

use htc_api::{EnvVar, EnvVarSource, HTCJob, HTCJobSpec, KeyRef, is_name};

use crate::files::is_key;

/// Maximum bytes of all variables together. They are copied for each job.
const MAX_BYTES: usize = 64 * 1024;
/// Read-only variables of shells. A shell exports what comes from Secrets.
const READ_ONLY: [&str; 6] = ["UID", "EUID", "PPID", "SHELLOPTS", "BASHOPTS", "BASH_VERSINFO"];

/// The variables of `spec.env`, which were validated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Variables {
    /// Names and values in the spec.
    pub plain: Vec<(String, String)>,
    /// Names of those whose values are read once and kept.
    pub read: Vec<(String, ReadFrom)>,
    /// Names of those from Secrets.
    pub secret: Vec<(String, KeyRef)>,
}

/// Where a value comes from that is read once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadFrom {
    /// Key of a ConfigMap.
    ConfigMap(KeyRef),
    /// Field of the HTCJob.
    Field(Field),
}

/// Field of the HTCJob that a variable may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Field {
    /// `metadata.name`.
    Name,
    /// `metadata.namespace`.
    Namespace,
    /// `metadata.uid`.
    Uid,
    /// `metadata.labels['KEY']`.
    Label(String),
    /// `metadata.annotations['KEY']`.
    Annotation(String),
}

/// Reason why `spec.env` cannot be used. The message follows `spec.env: `.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VariablesError {
    /// A name that no variable can have.
    #[error("{0:?} is not a valid name for a variable: use letters, digits and `_`")]
    Name(String),
    /// A name that the operator uses.
    #[error("{0} is set by htc-operator; choose another name")]
    Reserved(String),
    /// A name that a shell does not set.
    #[error("{0} cannot come from a Secret, because it is read-only in shells; choose another name")]
    ReadOnly(String),
    /// Two variables of one name.
    #[error("{0} is there twice; leave one out")]
    Twice(String),
    /// A value that no variable can have.
    #[error("the value of {0} has a NUL character, which no variable can have")]
    Nul(String),
    /// Neither or both of `value` and one source in `valueFrom`.
    #[error("{0} needs either a value or one source in valueFrom")]
    Source(String),
    /// Neither the name of an object nor one of its keys.
    #[error("the source of {0} is not the name of an object and one of its keys")]
    Key(String),
    /// Another field than those that do not change.
    #[error(
        "{0:?} is no field that a variable can have: write metadata.name, metadata.namespace, metadata.uid, metadata.labels['KEY'] or metadata.annotations['KEY']"
    )]
    Field(String),
    /// Another `HOME` than an absolute path in the spec. Apptainer's `--home` splits its value at colons.
    #[error("HOME is {0:?}: write an absolute path without a colon, such as /htc_run, as its value")]
    Home(String),
    /// More than [`MAX_BYTES`].
    #[error("it is larger than 64 KiB; put what is long into the script")]
    TooLarge,
}

impl Variables {
    /// Parses `spec.env`.
    ///
    /// # Errors
    /// A name, a value or a source is invalid.
    pub fn parse(spec: &HTCJobSpec) -> Result<Self, VariablesError> {
        let mut variables = Self::default();
        let mut names = HashSet::new();
        for variable in &spec.env {
            check_name(&variable.name)?;
            if !names.insert(&variable.name) {
                return Err(VariablesError::Twice(variable.name.clone()));
            }
            if variable.name == "HOME" && (!variable.value.starts_with('/') || variable.value.contains([':', '\n'])) {
                return Err(VariablesError::Home(variable.value.clone()));
            }
            variables.add(variable)?;
        }
        check_size(&variables.plain)?;
        Ok(variables)
    }

    /// Whether there is a variable of this name.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        let mut names = self.plain.iter().map(|(name, _)| name).chain(self.read.iter().map(|(name, _)| name));
        names.any(|other| other == name) || self.secret.iter().any(|(other, _)| other == name)
    }

    fn add(&mut self, EnvVar { name, value, value_from }: &EnvVar) -> Result<(), VariablesError> {
        let Some(from) = value_from else {
            if value.contains('\0') {
                return Err(VariablesError::Nul(name.clone()));
            }
            self.plain.push((name.clone(), value.clone()));
            return Ok(());
        };
        let key = |key: &KeyRef| {
            let fits = is_name(&key.name) && is_key(&key.key);
            if fits { Ok(key.clone()) } else { Err(VariablesError::Key(name.clone())) }
        };
        let EnvVarSource { secret_key_ref, config_map_key_ref, field_ref } = from;
        match (secret_key_ref, config_map_key_ref, field_ref) {
            (Some(_), None, None) if READ_ONLY.contains(&name.as_str()) => {
                return Err(VariablesError::ReadOnly(name.clone()));
            }
            (Some(secret), None, None) if value.is_empty() => self.secret.push((name.clone(), key(secret)?)),
            (None, Some(map), None) if value.is_empty() => {
                self.read.push((name.clone(), ReadFrom::ConfigMap(key(map)?)));
            }
            (None, None, Some(field)) if value.is_empty() => {
                self.read.push((name.clone(), ReadFrom::Field(Field::parse(&field.field_path)?)));
            }
            (_, _, _) => return Err(VariablesError::Source(name.clone())),
        }
        Ok(())
    }

    /// Returns the values of the variables that are read. `config_maps`: keys and contents of each ConfigMap that is named.
    ///
    /// # Errors
    /// A key is missing, is not text, or the values are too large.
    pub fn freeze(
        &self,
        job: &HTCJob,
        config_maps: &BTreeMap<String, BTreeMap<String, Vec<u8>>>,
    ) -> Result<Vec<(String, String)>, FreezeVariablesError> {
        let value = |from: &ReadFrom| -> Result<String, FreezeVariablesError> {
            match from {
                ReadFrom::Field(field) => Ok(field.of(job)),
                ReadFrom::ConfigMap(key) => {
                    let content = config_maps.get(&key.name).and_then(|keys| keys.get(&key.key));
                    let content = content.ok_or_else(|| FreezeVariablesError::NoKey(key.clone()))?;
                    let text = String::from_utf8(content.clone()).ok().filter(|text| !text.contains('\0'));
                    text.ok_or_else(|| FreezeVariablesError::NotText(key.clone()))
                }
            }
        };
        let read: Vec<(String, String)> = self
            .read
            .iter()
            .map(|(name, from)| Ok((name.clone(), value(from)?)))
            .collect::<Result<_, FreezeVariablesError>>()?;
        check_size(self.plain.iter().chain(&read))?;
        Ok(read)
    }
}

/// Reason why the values of variables cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FreezeVariablesError {
    /// The ConfigMap does not have the key.
    #[error("the ConfigMap {} has no key {:?}: add it, or correct spec.env", .0.name, .0.key)]
    NoKey(KeyRef),
    /// The value cannot be that of a variable.
    #[error("the key {:?} of the ConfigMap {} is not text, or has a NUL character", .0.key, .0.name)]
    NotText(KeyRef),
    /// The values are too large.
    #[error("spec.env: {0}")]
    TooLarge(#[from] VariablesError),
}

fn check_name(name: &str) -> Result<(), VariablesError> {
    let fits = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if !fits {
        return Err(VariablesError::Name(name.to_owned()));
    }
    if ["HTCPROCID", "HTC_ITEM", "JOB_NAME"].contains(&name) {
        return Err(VariablesError::Reserved(name.to_owned()));
    }
    Ok(())
}

fn check_size<'a>(all: impl IntoIterator<Item = &'a (String, String)>) -> Result<(), VariablesError> {
    let bytes: usize = all.into_iter().map(|(name, value)| name.len() + value.len()).sum();
    if bytes > MAX_BYTES { Err(VariablesError::TooLarge) } else { Ok(()) }
}

/// Returns the fields of the `HTCJob` that its variables take, also if other parts of `spec.env` are invalid.
#[must_use]
pub fn fields(spec: &HTCJobSpec) -> Vec<Field> {
    let sources = spec.env.iter().filter_map(|variable| variable.value_from.as_ref()?.field_ref.as_ref());
    sources.filter_map(|field| Field::parse(&field.field_path).ok()).collect()
}

impl Field {
    fn parse(path: &str) -> Result<Self, VariablesError> {
        let key = |of: &str| {
            let key = path.strip_prefix(of)?.strip_prefix("['")?.strip_suffix("']")?;
            (!key.is_empty() && !key.contains('\'')).then(|| key.to_owned())
        };
        let labelled = || key("metadata.labels").map(Self::Label);
        let annotated = || key("metadata.annotations").map(Self::Annotation);
        match path {
            "metadata.name" => Some(Self::Name),
            "metadata.namespace" => Some(Self::Namespace),
            "metadata.uid" => Some(Self::Uid),
            _ => labelled().or_else(annotated),
        }
        .ok_or_else(|| VariablesError::Field(path.to_owned()))
    }

    /// Returns the value; an empty one if the HTCJob does not have the field, as Kubernetes does for Pods.
    fn of(&self, job: &HTCJob) -> String {
        let metadata = &job.metadata;
        match self {
            Self::Name => metadata.name.as_ref(),
            Self::Namespace => metadata.namespace.as_ref(),
            Self::Uid => metadata.uid.as_ref(),
            Self::Label(key) => metadata.labels.as_ref().and_then(|labels| labels.get(key)),
            Self::Annotation(key) => metadata.annotations.as_ref().and_then(|annotations| annotations.get(key)),
        }
        .cloned()
        .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use htc_api::FieldRef;

    use super::*;

    fn job(env: Vec<EnvVar>) -> HTCJob {
        let mut job = HTCJob::new("fit", HTCJobSpec { env, ..HTCJobSpec::default() });
        job.metadata.namespace = Some("physics".to_owned());
        job.metadata.uid = Some("u".to_owned());
        job.metadata.labels = Some(BTreeMap::from([("team/a".to_owned(), "x".to_owned())]));
        job.metadata.annotations = Some(BTreeMap::from([("n".to_owned(), "two\nlines".to_owned())]));
        job
    }

    fn variable(name: &str, value_from: EnvVarSource) -> EnvVar {
        EnvVar { name: name.to_owned(), value_from: Some(value_from), ..EnvVar::default() }
    }

    fn key(name: &str) -> KeyRef {
        KeyRef { name: name.to_owned(), key: "k".to_owned() }
    }

    fn secret(name: &str) -> EnvVarSource {
        EnvVarSource { secret_key_ref: Some(key(name)), ..EnvVarSource::default() }
    }

    fn config_map(name: &str) -> EnvVarSource {
        EnvVarSource { config_map_key_ref: Some(key(name)), ..EnvVarSource::default() }
    }

    fn field(path: &str) -> EnvVarSource {
        EnvVarSource { field_ref: Some(FieldRef { field_path: path.to_owned() }), ..EnvVarSource::default() }
    }

    #[test]
    fn variables_have_one_source_each() {
        let plain = |name: &str| EnvVar { name: name.to_owned(), value: "1".to_owned(), value_from: None };
        let of = |env: Vec<EnvVar>| Variables::parse(&job(env).spec);
        let all = vec![plain("A"), variable("B", secret("s")), variable("C", config_map("m"))];
        let variables = of(all).unwrap();
        assert_eq!(variables.plain, [("A".to_owned(), "1".to_owned())]);
        assert_eq!(variables.secret, [("B".to_owned(), key("s"))]);
        assert_eq!(variables.read, [("C".to_owned(), ReadFrom::ConfigMap(key("m")))]);
        let two = EnvVarSource { config_map_key_ref: Some(key("m")), ..secret("s") };
        let name = || "A".to_owned();
        for (wrong, error) in [
            (vec![EnvVar { value: "1".to_owned(), ..variable("A", secret("s")) }], VariablesError::Source(name())),
            (vec![variable("A", EnvVarSource::default())], VariablesError::Source(name())),
            (vec![variable("A", two)], VariablesError::Source(name())),
            (vec![variable("A", secret("S"))], VariablesError::Key(name())),
            (vec![plain("A"), plain("A")], VariablesError::Twice(name())),
            (vec![plain("HTC_ITEM")], VariablesError::Reserved("HTC_ITEM".to_owned())),
            (vec![variable("UID", secret("s"))], VariablesError::ReadOnly("UID".to_owned())),
            (vec![plain("1")], VariablesError::Name("1".to_owned())),
            (vec![EnvVar { value: "a\0".to_owned(), ..plain("A") }], VariablesError::Nul(name())),
        ] {
            assert_eq!(of(wrong), Err(error));
        }
        for path in ["spec.queue", "metadata.labels", "metadata.labels['']", "metadata.labels['a'b']", "status.phase"] {
            assert_eq!(of(vec![variable("A", field(path))]), Err(VariablesError::Field(path.to_owned())));
        }
    }

    #[test]
    fn values_are_those_of_fields_and_config_maps() {
        let paths = [
            "metadata.name",
            "metadata.namespace",
            "metadata.uid",
            "metadata.labels['team/a']",
            "metadata.annotations['n']",
            "metadata.labels['none']",
        ];
        let fields = ["A", "B", "C", "D", "E", "F"].into_iter().zip(paths);
        let fields = fields.map(|(name, path)| variable(name, field(path)));
        let job = job(fields.chain([variable("G", config_map("m"))]).collect());
        let variables = Variables::parse(&job.spec).unwrap();
        let maps =
            |content: &[u8]| BTreeMap::from([("m".to_owned(), BTreeMap::from([("k".to_owned(), content.to_vec())]))]);
        let read = variables.freeze(&job, &maps(b"v")).unwrap();
        let values: Vec<&str> = read.iter().map(|(_, value)| value.as_str()).collect();
        assert_eq!(values, ["fit", "physics", "u", "x", "two\nlines", "", "v"]);
        assert!(matches!(variables.freeze(&job, &BTreeMap::new()), Err(FreezeVariablesError::NoKey(_))));
        for content in [&b"\xff"[..], b"a\0b"] {
            assert!(matches!(variables.freeze(&job, &maps(content)), Err(FreezeVariablesError::NotText(_))));
        }
        let large = "x".repeat(MAX_BYTES);
        assert!(matches!(variables.freeze(&job, &maps(large.as_bytes())), Err(FreezeVariablesError::TooLarge(_))));
    }
}
