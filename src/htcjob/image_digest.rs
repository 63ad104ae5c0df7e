//! The digest of an image's tag: asked for once, before the first submission, and stored in the ledger.

use std::collections::HashMap;
use std::time::Duration;

use htc_ledger::ImageDigest;
use htc_machine::Timestamp;
use htc_machine::facts::Unreadable;
use htc_machine::text::sanitize;
use htc_submit::payload::{Image, Manifest, is_digest};
use htc_submit::spec::Plan;
use htc_support::image_registry::RegistryAddress;
use htc_support::registry_login::Login;
use parking_lot::Mutex;

use super::config_maps::{SpecState, before_record};
use super::pass::Pass;
use super::{GatherError, inputs};

/// Time for which a registry's answer is used for other HTCJobs. Many with one image are often created together.
const FRESH: Duration = Duration::from_secs(30);
/// Maximum length of a problem in the status, in bytes.
const PROBLEM: usize = 300;

/// Problem of an answer that is no digest.
const NO_SHA_256: &str = "the registry's digest is not a SHA-256";

/// Registries that may be asked, and their last answers.
#[derive(Debug, Default)]
pub struct ImageDigests {
    registries: Vec<RegistryAddress>,
    answers: Mutex<HashMap<Question, (Timestamp, ImageDigest)>>,
}

/// What an answer is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Question {
    Tag(Manifest),
    /// All tags of a registry: it cannot be asked.
    Registry(String),
}

impl ImageDigests {
    /// Creates the table for these registries.
    #[must_use]
    pub fn of(registries: Vec<RegistryAddress>) -> Self {
        Self { registries, answers: Mutex::default() }
    }

    fn registry_of(&self, manifest: &Manifest) -> Option<&RegistryAddress> {
        self.registries.iter().find(|registry| registry.name() == manifest.registry)
    }

    /// Asks a registry. The answer is not kept for other HTCJobs, which may have no login.
    async fn ask_with_login(&self, registry: &RegistryAddress, manifest: &Manifest, login: &Login) -> ImageDigest {
        let digest = registry.digest(&manifest.repository, &manifest.tag, Some(login)).await;
        let digest = digest.map_err(|error| sanitize(&error.to_string(), PROBLEM))?;
        if is_digest(&digest) { Ok(digest) } else { Err(NO_SHA_256.to_owned()) }
    }

    async fn ask(&self, registry: &RegistryAddress, manifest: Manifest, now: Timestamp) -> ImageDigest {
        let (all, tag) = (Question::Registry(manifest.registry.clone()), Question::Tag(manifest.clone()));
        let known = {
            let mut answers = self.answers.lock();
            answers.retain(|_, (at, _)| now < at.plus(FRESH));
            answers.get(&all).or_else(|| answers.get(&tag)).map(|(_, answer)| answer.clone())
        };
        if let Some(answer) = known {
            return answer;
        }
        let (question, answer) = match registry.digest(&manifest.repository, &manifest.tag, None).await {
            Ok(digest) if is_digest(&digest) => (tag, Ok(digest)),
            Ok(_) => (tag, Err(NO_SHA_256.to_owned())),
            Err(error) if error.is_of_registry() => (all, Err(error.to_string())),
            Err(error) => (tag, Err(error.to_string())),
        };
        let answer = answer.map_err(|problem| sanitize(&problem, PROBLEM));
        self.answers.lock().insert(question, (now, answer.clone()));
        answer
    }
}

/// Returns the plan with the digest in the ledger in the place of the image's tag.
pub(super) async fn pinned(
    pass: &Pass<'_>,
    plan: Plan,
    state: &SpecState,
) -> Result<Result<Plan, Unreadable>, GatherError> {
    Ok(kept(pass, &plan.image, state).await?.map(|kept| match kept {
        Some(Ok(digest)) => Plan { image: plan.image.with_digest(&digest), ..plan },
        Some(Err(problem)) => Plan { digest_problem: Some(problem), ..plan },
        None => plan,
    }))
}

/// Returns the digest in the ledger. Asks the registry if the ledger has none, but not once jobs were submitted: they
/// have the tag. `None`: the site wants no digest.
async fn kept(
    pass: &Pass<'_>,
    image: &Image,
    state: &SpecState,
) -> Result<Result<Option<ImageDigest>, Unreadable>, GatherError> {
    let Pass { context, uid, .. } = pass;
    let Some(manifest) = image.manifest() else { return Ok(Ok(None)) };
    let registry = context.image_digests.registry_of(&manifest);
    if registry.is_none() && pass.status().is_none_or(|status| status.image_digest.is_none()) {
        return Ok(Ok(None));
    }
    let kept = context.ledger.image(uid).await?;
    let Some(registry) = registry.filter(|_| kept.is_none() && !state.submitted) else { return Ok(Ok(kept)) };
    if let Some(not_yet) = before_record("digest of the image", state) {
        return Ok(Err(not_yet));
    }
    let pull = pass.object.0.as_ref().ok().and_then(|job| inputs::pull_login(job, &context.planner.rules));
    let answer = match pull {
        Some(pull) => match inputs::login(pass, &pull).await {
            Ok(login) => context.image_digests.ask_with_login(registry, &manifest, &login).await,
            Err(error) => Err(sanitize(&error.to_string(), PROBLEM)),
        },
        None => context.image_digests.ask(registry, manifest, pass.now()).await,
    };
    Ok(Ok(Some(context.ledger.keep_image(uid, answer).await?)))
}
