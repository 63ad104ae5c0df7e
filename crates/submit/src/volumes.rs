//! Volumes of jobs: claims that Pods mount, and the folders of nodes that a site has named for claims.

use std::collections::BTreeMap;
use std::str::FromStr;

use htc_api::{HTCJobSpec, ObjectName, RESERVED_FOLDERS, Volume, is_name};

/// Folder of the nodes that the site has named for a claim, written `NAMESPACE/CLAIM=/FOLDER[:ro]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimFolder {
    claim: ObjectName,
    folder: NodeFolder,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct NodeFolder {
    path: String,
    read_only: bool,
}

/// Folders of the nodes by the claims that the site has named them for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClaimFolders(BTreeMap<ObjectName, NodeFolder>);

/// Folder of a node that a job sees in its container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundFolder {
    /// Absolute path on the node.
    pub source: String,
    /// Absolute path in the container.
    pub path: String,
    /// Whether the job can only read it.
    pub read_only: bool,
}

/// How jobs get their volumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobVolumes {
    /// `job.sh` binds these folders of the node into the container.
    Bound(Vec<BoundFolder>),
    /// The worker's Pod has mounted the claims. The text is their [`key`].
    Mounted(String),
}

/// Reason why a setting of the site cannot be used, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClaimFolderError {
    /// The text is no entry.
    #[error(
        "write NAMESPACE/CLAIM=/FOLDER, or NAMESPACE/CLAIM=/FOLDER:ro, with an absolute path of letters, digits and `-._/`, without . and .."
    )]
    NoEntry,
    /// Two entries for one claim.
    #[error("there are two entries for claim {0}: leave one out")]
    Twice(ObjectName),
}

/// Reason why the jobs cannot have their volumes. The message says what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VolumesError {
    #[error("spec.kubernetes.volumes is there as well: write spec.volumes only")]
    TwoLists,
    #[error("{0:?} is not the name of a claim: use lower-case letters, digits, - and .")]
    Claim(String),
    /// A claim that the operator has made for a managed pool.
    #[error("claim {0} belongs to an HTCPool, and its files are those of all jobs of the pool: name another claim")]
    PoolClaim(String),
    #[error(
        "{0:?} is not an absolute path such as /ntuples: write parts of letters, digits, -, _ and . that do not begin with - or ."
    )]
    Path(String),
    #[error("{0:?} is in a folder that belongs to the image or to the job: write another path, such as /ntuples")]
    Reserved(String),
    /// Two volumes of which one is in the other.
    #[error("{0:?} and {1:?} are in one another: write paths that are apart")]
    Overlap(String, String),
    /// A volume where the site binds a folder for all jobs.
    #[error("{path:?} and the folder {bind:?}, which all jobs see, are in one another: write another path")]
    SiteBind { path: String, bind: String },
    #[error(
        "the site has named no folder of its nodes for claim {0}: ask the operator's administrator for the setting --claim {0}=/FOLDER, or use backend Kubernetes or a pool whose workers mount the claim"
    )]
    NoFolder(ObjectName),
    #[error("the site lets jobs only read the folder of claim {0}: write readOnly: true")]
    ReadOnly(ObjectName),
}

impl FromStr for ClaimFolder {
    type Err = ClaimFolderError;

    fn from_str(text: &str) -> Result<Self, ClaimFolderError> {
        let (claim, path) = text.split_once('=').ok_or(ClaimFolderError::NoEntry)?;
        let claim = claim.parse().map_err(|_| ClaimFolderError::NoEntry)?;
        let (path, read_only) = path.strip_suffix(":ro").map_or((path, false), |path| (path, true));
        if !is_path(path) {
            return Err(ClaimFolderError::NoEntry);
        }
        Ok(Self { claim, folder: NodeFolder { path: path.to_owned(), read_only } })
    }
}

impl ClaimFolders {
    /// Creates the table.
    ///
    /// # Errors
    /// Two entries for one claim.
    pub fn new(entries: impl IntoIterator<Item = ClaimFolder>) -> Result<Self, ClaimFolderError> {
        let mut table = BTreeMap::new();
        for ClaimFolder { claim, folder } in entries {
            if table.insert(claim.clone(), folder).is_some() {
                return Err(ClaimFolderError::Twice(claim));
            }
        }
        Ok(Self(table))
    }

    /// Returns the folders for the volumes of an HTCJob in this namespace. `binds` are folders that all jobs see.
    ///
    /// # Errors
    /// The site has named no folder for a claim of this namespace, or only one to read, or `binds` has a folder at the
    /// same place.
    pub fn bind(
        &self,
        namespace: &str,
        volumes: &[Volume],
        binds: &[String],
    ) -> Result<Vec<BoundFolder>, VolumesError> {
        let bind = |Volume { claim, path, read_only }: &Volume| {
            let claim = ObjectName { namespace: namespace.to_owned(), name: claim.clone() };
            let folder = self.0.get(&claim).ok_or_else(|| VolumesError::NoFolder(claim.clone()))?;
            if folder.read_only && !read_only {
                return Err(VolumesError::ReadOnly(claim));
            }
            if let Some(bind) = binds.iter().find(|bind| overlap(path, bind)) {
                return Err(VolumesError::SiteBind { path: path.clone(), bind: bind.clone() });
            }
            Ok(BoundFolder { source: folder.path.clone(), path: path.clone(), read_only: *read_only })
        };
        volumes.iter().map(bind).collect()
    }
}

impl JobVolumes {
    /// Returns the key of the volumes that the job's worker must have mounted, if it must have any.
    #[must_use]
    pub fn of_worker(&self) -> Option<&str> {
        match self {
            Self::Bound(_) => None,
            Self::Mounted(key) => Some(key.as_str()).filter(|key| !key.is_empty()),
        }
    }

    /// Returns the folders that `job.sh` binds.
    #[must_use]
    pub fn bound(&self) -> &[BoundFolder] {
        match self {
            Self::Bound(folders) => folders,
            Self::Mounted(_) => &[],
        }
    }
}

/// Returns `spec.volumes`, checked.
///
/// # Errors
/// A claim or a path that no job can have.
pub fn parse(spec: &HTCJobSpec) -> Result<&[Volume], VolumesError> {
    let volumes = spec.volumes.as_slice();
    if !volumes.is_empty() && spec.kubernetes.as_ref().is_some_and(|pods| !pods.volumes.is_empty()) {
        return Err(VolumesError::TwoLists);
    }
    for (number, Volume { claim, path, read_only: _ }) in volumes.iter().enumerate() {
        if !is_name(claim) {
            return Err(VolumesError::Claim(claim.clone()));
        }
        if is_of_pool(claim) {
            return Err(VolumesError::PoolClaim(claim.clone()));
        }
        if !is_path(path) {
            return Err(VolumesError::Path(path.clone()));
        }
        if path.split('/').nth(1).is_some_and(|top| RESERVED_FOLDERS.contains(&top)) {
            return Err(VolumesError::Reserved(path.clone()));
        }
        if let Some(other) = volumes.iter().take(number).find(|other| overlap(path, &other.path)) {
            return Err(VolumesError::Overlap(other.path.clone(), path.clone()));
        }
    }
    Ok(volumes)
}

/// Returns whether the operator makes claims of this name for managed pools: the spool of the schedd, and what the
/// central manager keeps.
#[must_use]
pub fn is_of_pool(claim: &str) -> bool {
    let of_schedd = claim.strip_prefix("spool-").and_then(|rest| rest.rsplit_once("-schedd-"));
    of_schedd.is_some_and(|(_, ordinal)| ordinal.chars().all(|c| c.is_ascii_digit()))
        || claim.ends_with("-central-manager")
}

/// Returns the text by which workers with these volumes are known. It is the same for each order, and empty without
/// volumes.
#[must_use]
pub fn key(volumes: &[Volume]) -> String {
    let mut texts: Vec<String> = volumes.iter().map(ToString::to_string).collect();
    texts.sort();
    texts.join(",")
}

/// Returns the volumes of a [`key`]; none for a text that is no key.
#[must_use]
pub fn of_key(key: &str) -> Vec<Volume> {
    let volumes = key.split(',').filter(|text| !text.is_empty()).map(str::parse);
    volumes.collect::<Result<_, _>>().unwrap_or_default()
}

/// Returns whether this is an absolute path with one spelling, of characters without a meaning for Apptainer's binds.
fn is_path(path: &str) -> bool {
    let is_part = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
            && part.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c))
    };
    path.strip_prefix('/').is_some_and(|path| path.split('/').all(is_part))
}

/// Returns whether one path is in the other, or both are the same.
fn overlap(one: &str, other: &str) -> bool {
    let whole = |path: &str| format!("{}/", path.trim_end_matches('/'));
    let (one, other) = (whole(one), whole(other));
    one.starts_with(&other) || other.starts_with(&one)
}

#[cfg(test)]
mod tests {
    use htc_api::{ClaimVolume, KubernetesSpec};

    use super::*;

    fn volume(text: &str) -> Volume {
        text.parse().unwrap()
    }

    fn spec(volumes: &[&str]) -> HTCJobSpec {
        HTCJobSpec { volumes: volumes.iter().map(|text| volume(text)).collect(), ..HTCJobSpec::default() }
    }

    fn folders(entries: &[&str]) -> ClaimFolders {
        ClaimFolders::new(entries.iter().map(|entry| entry.parse().unwrap())).unwrap()
    }

    #[test]
    fn paths_are_plain_and_apart() {
        let said = |volumes: &[&str]| parse(&spec(volumes)).map(<[_]>::len);
        assert_eq!(said(&["a:/ntuples", "a:/data/v1.2_x-y:ro", "b:/ntuples2"]), Ok(3));
        for path in
            ["/", "/a/", "//a", "/a//b", "/a/../b", "/a/./b", "/..", "/.a", "/-a", "/a,b", "/a b", "/ä", "/a\nb"]
        {
            assert_eq!(said(&[&format!("c:{path}")]), Err(VolumesError::Path(path.to_owned())), "{path:?}");
        }
        for path in ["/tmp", "/etc/x", "/htc_run", "/htc_run/x", "/dev/shm", "/proc/self", "/usr/lib", "/var/tmp"] {
            assert_eq!(said(&[&format!("c:{path}")]), Err(VolumesError::Reserved(path.to_owned())), "{path}");
        }
        for (one, other) in [("/a", "/a"), ("/a", "/a/b"), ("/a/b/c", "/a/b")] {
            let overlap = VolumesError::Overlap(one.to_owned(), other.to_owned());
            assert_eq!(said(&[&format!("c:{one}"), &format!("d:{other}")]), Err(overlap));
        }
    }

    #[test]
    fn claims_of_pools_are_refused() {
        let refused = |claim: &str| parse(&spec(&[&format!("{claim}:/x")])).is_err();
        assert!(refused("spool-lhc-schedd-0") && refused("lhc-central-manager") && refused("Data"));
        assert!(!refused("spool-lhc-schedd-data") && !refused("ntuples-claim") && !refused("spool"));
    }

    #[test]
    fn volumes_are_listed_in_one_field() {
        let old = KubernetesSpec { volumes: vec![ClaimVolume::default()], ..KubernetesSpec::default() };
        let both = HTCJobSpec { kubernetes: Some(old), ..spec(&["a:/a"]) };
        assert_eq!(parse(&both), Err(VolumesError::TwoLists));
    }

    #[test]
    fn folder_belongs_to_a_claim_of_one_namespace() {
        let table = folders(&["atlas/data=/eos/atlas/data", "cms/data=/eos/cms/data:ro"]);
        let bind = |namespace: &str, text: &str| table.bind(namespace, &[volume(text)], &["/cvmfs/".to_owned()]);
        let bound = |source: &str, path: &str, read_only| {
            Ok(vec![BoundFolder { source: source.to_owned(), path: path.to_owned(), read_only }])
        };
        assert_eq!(bind("atlas", "data:/in"), bound("/eos/atlas/data", "/in", false));
        assert_eq!(bind("atlas", "data:/in:ro"), bound("/eos/atlas/data", "/in", true));
        assert_eq!(bind("cms", "data:/in:ro"), bound("/eos/cms/data", "/in", true));
        let name = |text: &str| text.parse::<ObjectName>().unwrap();
        assert_eq!(bind("cms", "data:/in"), Err(VolumesError::ReadOnly(name("cms/data"))));
        assert_eq!(bind("lhcb", "data:/in"), Err(VolumesError::NoFolder(name("lhcb/data"))));
        for path in ["/cvmfs", "/cvmfs/x"] {
            assert!(matches!(bind("atlas", &format!("data:{path}")), Err(VolumesError::SiteBind { .. })), "{path}");
        }
    }

    #[test]
    fn entry_names_a_claim_and_a_plain_path() {
        for wrong in
            ["", "a/b", "a=/x", "a/b=x", "a/b=/", "a/b=/x,y", "a/b=/x:/y", "a/b=/x/../y", "a/b=/x:rw", "a/b/c=/x"]
        {
            assert_eq!(wrong.parse::<ClaimFolder>(), Err(ClaimFolderError::NoEntry), "{wrong}");
        }
        let twice = ["a/b=/x", "a/b=/y"].map(|entry| entry.parse().unwrap());
        assert!(matches!(ClaimFolders::new(twice), Err(ClaimFolderError::Twice(_))));
    }

    #[test]
    fn key_does_not_depend_on_the_order() {
        let volumes = [volume("b:/x:ro"), volume("a:/y")];
        let key = key(&volumes);
        assert_eq!((key.as_str(), of_key(&key).len()), ("a:/y,b:/x:ro", 2));
        assert_eq!(super::key(&of_key(&key)), key);
        assert_eq!((super::key(&[]).as_str(), of_key("x"), of_key("")), ("", Vec::new(), Vec::new()));
    }
}
