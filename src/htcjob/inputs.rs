//! What `spec.files` and `spec.env` take from ConfigMaps, Secrets and fields: read once, before the first submission, and
//! stored in the ledger. Of Secrets it is their checksums, with the keys of the jobs' tokens.

use std::collections::{BTreeMap, BTreeSet};

use htc_api::{FILES_OF_ANNOTATION, FrozenFile, FrozenInputs, HTCJob, InputStatus, KeyRef, SealedKey, Use};
use htc_ledger::LedgerError;
use htc_machine::Uid;
use htc_submit::files::url::UrlScheme;
use htc_submit::files::{self, Files, FilesError, FreezeError, MOST_BYTES, Source, freeze};
use htc_submit::variables::{FreezeVariablesError, ReadFrom, Variables};
use htc_support::consent::{self, SourceError};
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt as _;

use super::GatherError;
use super::config_maps::{ReadOnce, SpecState, get};
use super::memory::Content;
use super::pass::Pass;

/// Message for an HTCJob whose files are lost: nothing more is submitted.
pub(super) const LOST: &str = "spec.files, spec.env: what was read for them was lost with the operator's ledger, and their sources may have changed. Jobs that exist are followed, and no others are started: create a new HTCJob for those";

/// Keys and contents of each ConfigMap.
type Contents = BTreeMap<String, BTreeMap<String, Vec<u8>>>;

/// Reason why the inputs cannot be read. It is tried again after a pause.
#[derive(Debug, thiserror::Error)]
enum InputsError {
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error(transparent)]
    Freeze(#[from] FreezeError),
    #[error(transparent)]
    Variables(#[from] FreezeVariablesError),
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The files of an earlier HTCJob are not in the ledger.
    #[error(
        "the operator does not have the files of an HTCJob with the uid {0} in this namespace: remove the annotation {FILES_OF_ANNOTATION}, and the ConfigMaps are read as they are now"
    )]
    NotKept(String),
    #[error("the Secret {} has no key {:?}: add it, or correct the HTCJob", .0.name, .0.key)]
    NoKey(KeyRef),
    #[error("the key {:?} of the Secret {} is not text, or has a NUL character: no variable can have it", .0.key, .0.name)]
    NotText(KeyRef),
}

/// What a spec takes from elsewhere.
pub(super) struct InputSources {
    files: Files,
    variables: Variables,
}

impl InputSources {
    /// Returns the sources of a valid spec, if it has any that are read.
    pub(super) fn of(job: &HTCJob, schemes: &[UrlScheme]) -> Option<Self> {
        let files = files::parse(&job.spec.files, schemes).ok()?;
        let variables = Variables::parse(&job.spec).ok()?;
        let sources = Self { files, variables };
        let are_read =
            !sources.files.kept.is_empty() || !sources.variables.read.is_empty() || sources.keys().next().is_some();
        are_read.then_some(sources)
    }

    /// Returns the keys of Secrets.
    fn keys(&self) -> impl Iterator<Item = &KeyRef> {
        let variables = self.variables.secret.iter().map(|(_, key)| key);
        self.files.secret.iter().map(|file| &file.key).chain(variables)
    }

    /// Returns names and keys of ConfigMaps; no key for all of them. `files`: whether those of files are among them.
    fn config_maps(&self, files: bool) -> impl Iterator<Item = (&str, Option<&str>)> {
        let kept = self.files.kept.iter().filter(move |_| files);
        let files = kept.filter_map(|file| match &file.source {
            Source::ConfigMap { name, key } => Some((name.as_str(), key.as_deref())),
            Source::Inline(_) => None,
        });
        files.chain(self.variables.read.iter().filter_map(|(_, from)| match from {
            ReadFrom::ConfigMap(key) => Some((key.name.as_str(), Some(key.key.as_str()))),
            ReadFrom::Field(_) => None,
        }))
    }
}

/// Returns the files in the ledger. Reads all inputs if the ledger has none, with the files of the HTCJob in the
/// annotation, if there is one; after a failure only once a pause has passed.
pub(super) async fn kept(
    pass: &Pass<'_>,
    job: &HTCJob,
    sources: &InputSources,
    state: &SpecState,
) -> Result<ReadOnce<Vec<InputStatus>>, GatherError> {
    let Pass { context, uid, .. } = pass;
    if let Some(kept) = context.ledger.kept_inputs(uid).await? {
        context.memory.read_succeeded(uid, Content::Files);
        return Ok(ReadOnce::Kept(kept));
    }
    if let Some(known) = ReadOnce::before_reading(pass, Content::Files, state) {
        return Ok(known);
    }
    Ok(match read(pass, job, sources).await {
        Ok(inputs) => ReadOnce::Kept(context.ledger.keep_inputs(uid, inputs).await?),
        Err(error) => ReadOnce::failed(pass, Content::Files, &error),
    })
}

async fn read(pass: &Pass<'_>, job: &HTCJob, sources: &InputSources) -> Result<FrozenInputs, InputsError> {
    let former = job.annotations().get(FILES_OF_ANNOTATION);
    let contents = read_config_maps(pass, sources, former.is_none()).await?;
    Ok(FrozenInputs {
        files: match former {
            Some(uid) => files_of(pass, uid, sources).await?,
            None => freeze(&sources.files.kept, &contents)?,
        },
        variables: sources.variables.freeze(job, &contents)?,
        secrets: seal(pass, sources).await?,
    })
}

/// Returns the files that are stored for an earlier HTCJob of the namespace with the same `spec.files`.
async fn files_of(pass: &Pass<'_>, uid: &str, sources: &InputSources) -> Result<Vec<FrozenFile>, InputsError> {
    let kept = &sources.files.kept;
    let frozen = pass.context.ledger.files_in(&pass.name.namespace, &Uid::from(uid)).await?;
    freeze(kept, &files::config_maps(kept, &frozen)).map_err(|_| InputsError::NotKept(uid.to_owned()))
}

/// Reads the ConfigMaps, each once. `files`: whether those of files are among them.
async fn read_config_maps(pass: &Pass<'_>, sources: &InputSources, files: bool) -> Result<Contents, InputsError> {
    let names: BTreeSet<&str> = sources.config_maps(files).map(|(name, _)| name).collect();
    let (mut contents, mut bytes) = (Contents::new(), 0);
    for name in names {
        let map = get(pass, Content::Files, name).await?;
        let text = map.data.into_iter().flatten().map(|(key, text)| (key, text.into_bytes()));
        let binary = map.binary_data.into_iter().flatten().map(|(key, bytes)| (key, bytes.0));
        let is_named = |key: &str| {
            sources.config_maps(files).any(|(other, wanted)| other == name && wanted.is_none_or(|wanted| wanted == key))
        };
        let keys: BTreeMap<String, Vec<u8>> = text.chain(binary).filter(|(key, _)| is_named(key)).collect();
        bytes += keys.values().map(Vec::len).sum::<usize>();
        if bytes > MOST_BYTES {
            return Err(FreezeError::from(FilesError::TooLarge(bytes)).into());
        }
        contents.insert(name.to_owned(), keys);
    }
    Ok(contents)
}

/// Reads the Secrets, each once, and seals their keys. Pods get the content from Kubernetes, and there may be no keys to seal
/// with.
async fn seal(pass: &Pass<'_>, sources: &InputSources) -> Result<Vec<SealedKey>, InputsError> {
    let context = pass.context;
    let keys = context.planner.callback.as_ref().map(|callback| callback.keys.current());
    let (mut sealed, mut secret): (Vec<SealedKey>, Option<(&str, Secret)>) = (Vec::new(), None);
    for key in sources.keys().collect::<BTreeSet<_>>() {
        let data = match secret.take_if(|(name, _)| *name == key.name) {
            Some((_, read)) => read,
            None => consent::read(&context.client, Use::SecretFiles, &pass.name.namespace, &key.name).await?,
        };
        let bytes = data.data.as_ref().and_then(|data| data.get(&key.key));
        let bytes = bytes.ok_or_else(|| InputsError::NoKey(key.clone()))?.0.as_slice();
        let is_text = std::str::from_utf8(bytes).is_ok_and(|text| !text.contains('\0'));
        if !is_text && sources.variables.secret.iter().any(|(_, variable)| variable == key) {
            return Err(InputsError::NotText(key.clone()));
        }
        let seal = keys.as_ref().map(|keys| keys.seal(&pass.uid, bytes)).unwrap_or_default();
        sealed.push(SealedKey { key: key.clone(), seal });
        secret = Some((&key.name, data));
    }
    Ok(sealed)
}
