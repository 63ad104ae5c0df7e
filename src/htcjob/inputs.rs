//! What `spec.files` and `spec.env` take from ConfigMaps, Secrets and fields: read once, before the first submission, and
//! stored in the ledger. Of Secrets it is their checksums, with the keys of the jobs' tokens.

use std::collections::{BTreeMap, BTreeSet};

use htc_api::{
    Backend, FILES_OF_ANNOTATION, FrozenFile, FrozenInputs, HTCJob, InputStatus, KeyRef, PullLogin, SealedKey, Use,
};
use htc_ledger::LedgerError;
use htc_machine::Uid;
use htc_submit::files::{self, Files, FilesError, FreezeError, MOST_BYTES, Source, freeze};
use htc_submit::payload::Image;
use htc_submit::spec::SpecRules;
use htc_submit::variables::{FreezeVariablesError, ReadFrom, Variables};
use htc_support::consent::{self, SourceError};
use htc_support::registry_login::{Login, LoginError};
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
pub(super) enum InputsError {
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
    #[error("spec.imagePullSecrets: the Secret {0} {1}")]
    Login(String, LoginError),
    #[error("spec.imagePullSecrets: none of the Secrets has a login for {0}: add one, or leave them out")]
    NoLogin(String),
    #[error("the Secret {} has no key {:?}: add it, or correct the HTCJob", .0.name, .0.key)]
    NoKey(KeyRef),
    #[error("the key {:?} of the Secret {} is not text, or has a NUL character: no variable can have it", .0.key, .0.name)]
    NotText(KeyRef),
    #[error(
        "the key {:?} of the Secret {} has {bytes} bytes: at most {MOST_SECRET_BYTES} are possible; put what is larger where the jobs can fetch it, and the credentials for that into the Secret", .key.key, .key.name
    )]
    SecretTooLarge { key: KeyRef, bytes: usize },
}

/// Maximum bytes of a key of a Secret. Each job fetches it, and the operator has a copy for each request.
const MOST_SECRET_BYTES: usize = 64 * 1024;

/// What a spec takes from elsewhere.
pub(super) struct InputSources {
    files: Files,
    variables: Variables,
    pull: Option<PullLogin>,
}

impl InputSources {
    /// Returns the sources of a valid spec, if it has any that are read.
    pub(super) fn of(job: &HTCJob, rules: &SpecRules) -> Option<Self> {
        let files = files::parse(&job.spec.files, &rules.url_schemes).ok()?;
        let variables = Variables::parse(&job.spec).ok()?;
        let sources = Self { files, variables, pull: pull_login(job, rules) };
        (sources.have_content() || sources.pull.is_some()).then_some(sources)
    }

    /// Whether the jobs get anything that must not change between them.
    fn have_content(&self) -> bool {
        !self.files.kept.is_empty() || !self.variables.read.is_empty() || self.keys().next().is_some()
    }

    /// Returns the keys of Secrets.
    fn keys(&self) -> impl Iterator<Item = &KeyRef> {
        let variables = self.variables.secret.iter().map(|(_, key)| key);
        self.files.secret.iter().map(|file| &file.key).chain(variables)
    }

    /// Returns names and keys of ConfigMaps; no key for all of them. Those of `spec.files` are included if `files`.
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
    // A login may be read at any time.
    let state = &SpecState { submitted: state.submitted && sources.have_content(), ..*state };
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
        pull: match &sources.pull {
            Some(pull) => Some(login(pass, pull).await.map(|_| pull.clone())?),
            None => None,
        },
    })
}

/// Returns where the jobs of HTCondor have the login for their image from, if they need one.
pub(super) fn pull_login(job: &HTCJob, rules: &SpecRules) -> Option<PullLogin> {
    let secrets: Vec<String> = job.spec.image_pull_secrets.iter().map(|secret| secret.name.clone()).collect();
    if secrets.is_empty() || job.spec.backend() != Backend::HTCondor {
        return None;
    }
    let repository = Image::resolve(job.spec.named_image(), &rules.images).ok()?.repository()?;
    Some(PullLogin { repository, secrets })
}

/// Reads the login for an image.
pub(super) async fn login(pass: &Pass<'_>, pull: &PullLogin) -> Result<Login, InputsError> {
    for name in &pull.secrets {
        let (client, namespace) = (&pass.context.client, &pass.name.namespace);
        let secret: Secret = consent::read(client, Use::ImagePull, namespace, name).await?;
        let found = Login::in_secret(&secret, &pull.repository);
        if let Some(login) = found.map_err(|error| InputsError::Login(name.clone(), error))? {
            return Ok(login);
        }
    }
    Err(InputsError::NoLogin(pull.repository.clone()))
}

/// Returns the files that are stored for an earlier HTCJob of the namespace with the same `spec.files`.
async fn files_of(pass: &Pass<'_>, uid: &str, sources: &InputSources) -> Result<Vec<FrozenFile>, InputsError> {
    let kept = &sources.files.kept;
    let frozen = pass.context.ledger.files_in(&pass.name.namespace, &Uid::from(uid)).await?;
    freeze(kept, &files::config_maps(kept, &frozen)).map_err(|_| InputsError::NotKept(uid.to_owned()))
}

/// Reads the ConfigMaps, each once. Those of `spec.files` are included if `files`.
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
        if bytes.len() > MOST_SECRET_BYTES {
            return Err(InputsError::SecretTooLarge { key: key.clone(), bytes: bytes.len() });
        }
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
