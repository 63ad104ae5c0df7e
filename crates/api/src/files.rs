//! Files that a job brings.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use super::env::KeyRef;

/// One file, or one folder of files, that each job finds below its working directory.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[x_kube(
    validation = Rule::new("[has(self.configMap), has(self.inline), has(self.url), has(self.secret)].exists_one(given, given)")
        .message("a file has one source: write one of configMap, inline, url and secret"),
    validation = Rule::new("!has(self.sha256) || has(self.url)")
        .message("sha256 is for files with a url: the others are read once, and kept").field_path(".sha256")
)]
#[serde(rename_all = "camelCase")]
pub struct FileSource {
    /// Path below the working directory of the job, for example `conf/cuts.yaml`. Its folders are created.
    /// With a configMap without a key, it is a folder that has a file for each key.
    #[schemars(length(min = 1, max = 256), pattern(r"^[^\x00-\x1f\x7f\\*?\[\]]*$"))]
    #[x_kube(validation = Rule::new("!self.matches('(^|/)[.]{0,2}(/|$)')")
        .message("path is a path below the job's working directory, such as conf/cuts.yaml: without .., and not beginning or ending with /"))]
    pub path: String,
    /// Takes the file from a ConfigMap of the same namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map: Option<FileConfigMap>,
    /// Content of the file, as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 65_536))]
    pub inline: Option<String>,
    /// Takes the file from a key of a Secret of the same namespace, which needs the label `htc.cern.ch/use: files`.
    /// Each job gets it from the operator over TLS. It is in no copy that HTCondor keeps, and does not come back as output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<KeyRef>,
    /// URL that each job fetches the file from on its node, before the script: `https://host.example.org/data/${item}`.
    /// `${index}` and `${item}` stand for those of the job, in the path or the query. The site allows certain schemes only.
    /// Everybody who may read the HTCJob can read it. Do not store passwords here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024), pattern(r"^[a-z]+://[^\x00-\x20\x7f]*$"))]
    #[x_kube(validation = Rule::new("!self.matches('^[a-z]+://[^/?#]*@')")
        .message("url has a user or a password before the host: leave them out"))]
    pub url: Option<String>,
    /// SHA-256 of the file at the url, in hexadecimal digits. A job that gets another file does not run. Default: any file is right.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64), pattern("^[0-9a-f]{64}$"))]
    pub sha256: Option<String>,
    /// Permissions of the file, for example 0755. Default: 0644; 0400 for a file from a Secret. JSON has no octal numbers: there, 0755 is 493.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self >= 256 && self <= 511")
        .message("mode is from 0400 to 0777: the owner must be able to read the file"))]
    pub mode: Option<i32>,
}

/// ConfigMap that files are taken from.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct FileConfigMap {
    /// Name of the ConfigMap. It needs the label `htc.cern.ch/use: files`.
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$')")
        .message("name is the name of a ConfigMap in the HTCJob's own namespace: lower-case letters, digits, - and ."))]
    pub name: String,
    /// Key in its `data` or `binaryData`. Default: all keys, each a file of that name in the folder `path`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new("self.matches('^[-._a-zA-Z0-9]+$')")
        .message("key is a key of the ConfigMap: letters, digits, -, _ and ."))]
    pub key: Option<String>,
}

/// A file that the jobs of the HTCJob get. It was read once, before the first job was submitted.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
pub struct InputStatus {
    /// Path below the working directory of the job.
    #[schemars(length(max = 512))]
    pub path: String,
    /// Size of the file in bytes.
    pub bytes: i64,
    /// SHA-256 of the content, in hexadecimal digits.
    #[schemars(length(max = 64))]
    pub sha256: String,
}

/// A file with the content that all jobs of an HTCJob get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrozenFile {
    /// Path below the working directory of the job.
    pub path: String,
    /// Unix permissions.
    pub mode: u32,
    /// SHA-256 of the content, in hexadecimal digits.
    pub sha256: String,
    /// Content of the file.
    pub content: Vec<u8>,
}

impl FrozenFile {
    /// Returns what the status has of the file.
    #[must_use]
    pub fn status(&self) -> InputStatus {
        let bytes = i64::try_from(self.content.len()).unwrap_or(i64::MAX);
        InputStatus { path: self.path.clone(), bytes, sha256: self.sha256.clone() }
    }
}

/// Content that all jobs of an HTCJob get, as it was read before the first of them was submitted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FrozenInputs {
    /// Files from ConfigMaps and from the spec.
    pub files: Vec<FrozenFile>,
    /// Variables from ConfigMaps and fields, names and values.
    pub variables: Vec<(String, String)>,
    /// Keys of Secrets. Their content stays in the Secrets.
    pub secrets: Vec<SealedKey>,
    /// Secrets with the login of the image's registry, if the image is pulled with one.
    pub pull: Option<PullLogin>,
}

/// Where jobs have the login from with which they pull their image. A login may change: the image is the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PullLogin {
    /// Registry and repository of the image, as in `registry.example.org/team/fit`.
    pub repository: String,
    /// Names of Secrets. The first one with a login for the repository counts.
    pub secrets: Vec<String>,
}

/// Key of a Secret, and what tells whether its content has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedKey {
    /// The key.
    pub key: KeyRef,
    /// Keyed checksum of the content. It cannot be compared with guesses of the content.
    pub seal: String,
}
