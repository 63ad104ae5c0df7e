//! `spec.container`: what a job runs without a script.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// What each job runs without a script: a program of the image, or the image's own entrypoint.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct ContainerSpec {
    /// Container image, as in spec.script.image.
    #[schemars(length(max = 1024))]
    #[x_kube(validation = Rule::new("self.trim() != ''")
        .message("image is empty: write the container image, for example `python:3.12`"))]
    pub image: String,
    /// Program in the image, and its first arguments. Default: the image's own entrypoint.
    /// The program itself, the first word, is the same for all jobs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(length(max = 8192)))]
    #[x_kube(validation = Rule::new("size(self) == 0 || self[0].matches('^[^-=][^=]*$')")
        .message("command begins with the program to run, for example `python3`: without =, and not beginning with -"))]
    pub command: Vec<String>,
    /// Arguments. Without a command they take the place of those that the image has for its entrypoint.
    /// In command and args, `${index}` is the job's index and `${item}` its item. `$${` is a plain `${`.
    /// No shell expands them, and nothing else has a meaning.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(length(max = 8192)))]
    pub args: Vec<String>,
}
