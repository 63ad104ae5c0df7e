//! Volumes that jobs use, by the names of their claims.

use std::fmt;
use std::str::FromStr;

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// Regular expression for the path of a volume.
const PATH: &str = "self.matches('^(/[A-Za-z0-9_][A-Za-z0-9._-]*)+$')";
/// Rule that the path is in none of [`RESERVED_FOLDERS`].
const NOT_RESERVED: &str = "!self.matches('^/(bin|boot|dev|etc|htc_run|htcondor|htcpool|lib|lib32|lib64|libx32|opt|proc|root|run|sbin|sys|tmp|usr|var)(/|$)')";

/// Folders at the top of a container in which no volume may be: those of the image's programs and their settings, the
/// kernel's, temporary ones, and the operator's own.
///
/// On workers of managed pools HTCondor runs in the same container, with the image's shell and libraries.
pub const RESERVED_FOLDERS: [&str; 20] = [
    "bin", "boot", "dev", "etc", "htc_run", "htcondor", "htcpool", "lib", "lib32", "lib64", "libx32", "opt", "proc",
    "root", "run", "sbin", "sys", "tmp", "usr", "var",
];

/// A PersistentVolumeClaim whose files each job sees in a folder.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Volume {
    /// Name of a PersistentVolumeClaim in the HTCJob's own namespace.
    /// In an HTCondor pool that the operator does not run itself: name for which the site has named a folder of the nodes.
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$')")
        .message("claim is the name of a PersistentVolumeClaim in the HTCJob's own namespace: lower-case letters, digits, - and ."))]
    pub claim: String,
    /// Absolute path of the folder in the container, for example `/ntuples`.
    #[schemars(length(max = 256))]
    #[x_kube(
        validation = Rule::new(PATH)
            .message("path is an absolute path such as /ntuples: parts of letters, digits, -, _ and . that do not begin with - or ."),
        validation = Rule::new(NOT_RESERVED)
            .message("path is in a folder that belongs to the image or to the job: write another one, such as /ntuples")
    )]
    pub path: String,
    /// Whether the jobs can only read it. Default: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
}

/// Error: the text is no volume.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("write CLAIM:PATH, or CLAIM:PATH:ro for jobs that only read it")]
pub struct NoVolume;

/// `CLAIM:PATH`, or `CLAIM:PATH:ro` for a read-only one.
impl fmt::Display for Volume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { claim, path, read_only } = self;
        write!(f, "{claim}:{path}{}", if *read_only { ":ro" } else { "" })
    }
}

impl FromStr for Volume {
    type Err = NoVolume;

    fn from_str(text: &str) -> Result<Self, NoVolume> {
        let (claim, rest) = text.split_once(':').ok_or(NoVolume)?;
        let (path, read_only) = match rest.split_once(':') {
            None => (rest, false),
            Some((path, "ro")) => (path, true),
            Some(_) => return Err(NoVolume),
        };
        if claim.is_empty() || !path.starts_with('/') {
            return Err(NoVolume);
        }
        Ok(Self { claim: claim.to_owned(), path: path.to_owned(), read_only })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schema_and_list_have_the_same_reserved_folders() {
        assert!(NOT_RESERVED.contains(&format!("^/({})(/", RESERVED_FOLDERS.join("|"))));
    }

    #[test]
    fn text_of_a_volume_is_parsed_back() {
        for text in ["ntuples-claim:/ntuples", "a:/b/c:ro"] {
            assert_eq!(text.parse::<Volume>().map(|volume| volume.to_string()), Ok(text.to_owned()));
        }
        for wrong in ["", "a", ":/b", "a:b", "a:/b:rw", "a:/b:ro:ro"] {
            assert_eq!(wrong.parse::<Volume>(), Err(NoVolume), "{wrong}");
        }
    }
}
