//! Applies the desired objects of a managed pool.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use htc_support::failpoint::{Point, around};
use htc_support::kubernetes::{FIELD_MANAGER, unless_changed, with_timeout};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::{Client, ResourceExt};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::error::ApplyError;
use super::names::{PORT, PoolNames, Role};
use super::objects::Design;
use super::rotation::{
    AcceptedKeys, KeyLoss, PublishedKey, RequestedKeys, RotationEvidence, RotationInput, RotationStep, next_step,
};
use crate::backends::condor::credentials::Tenant;
use crate::backends::condor::credentials::signing::{
    AuthorizationLevel, SigningKey, TokenValidity, generation_of, tokens,
};
use crate::htcpool::managed::existing::{host_and_port, is_owned, signing_key, signing_keys};

/// Annotation of Secrets with tokens: fingerprints of the keys that have signed them, the newest first.
const SIGNED_BY: &str = "htc.cern.ch/signing-key";

/// Annotation of Secrets with tokens: when the token was issued, in unix seconds.
const MADE: &str = "htc.cern.ch/token-made";
/// Validity of a worker's token in seconds: longer than the worker exists, unless a job runs longer than that.
const WORKER_TOKEN: i64 = 30 * 24 * 3600;

/// Result of applying the objects of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// The newest key.
    pub signing_key: PublishedKey,
    /// The keys in use.
    pub accept: AcceptedKeys,
    /// Host and port of the collector.
    pub collector: String,
}

/// Writes the objects of one pool that are not as desired.
pub struct Applier {
    client: Client,
    /// By kind and name: the object as it was written last, and its version after that.
    written: Mutex<HashMap<(String, String), (Value, String)>>,
    /// Serializes the calls of `apply`: each decides by the keys that it has read.
    turn: tokio::sync::Mutex<()>,
}

impl Applier {
    /// Creates an applier that has written nothing yet.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self { client, written: Mutex::default(), turn: tokio::sync::Mutex::default() }
    }

    /// Applies all objects but the workers.
    ///
    /// `known`: the newest key in the status of the `HTCPool`. `evidence`: for a rotation that is under way.
    pub async fn apply(
        &self,
        design: &Design<'_>,
        known: Option<&PublishedKey>,
        evidence: Option<&RotationEvidence>,
        now: i64,
    ) -> Result<Applied, ApplyError> {
        let _turn = self.turn.lock().await;
        let wish = RequestedKeys::of(design.spec);
        let (accept, keys, signing_key) = self.keys(design, (wish, known), evidence).await?;
        self.tokens(design, &keys, now).await?;
        let design = &Design { keys: accept.in_use(), ..*design };
        let mut collector = None;
        for object in design.objects() {
            let made = self.ensure(design, &object).await?;
            if object["kind"] == "Service" && object["metadata"]["name"] == design.names.of(Role::CentralManager) {
                collector = made.data["spec"]["clusterIP"].as_str().map(|address| host_and_port(address, PORT));
            }
        }
        let changed =
            || ApplyError::Changed { kind: "Service".to_owned(), name: design.names.of(Role::CentralManager) };
        Ok(Applied { signing_key, accept, collector: collector.ok_or_else(changed)? })
    }

    /// Creates and deletes keys until none is left to create or delete.
    ///
    /// Returns which keys are in use, these keys, and the newest existing one.
    async fn keys(
        &self,
        design: &Design<'_>,
        (wish, known): (RequestedKeys, Option<&PublishedKey>),
        evidence: Option<&RotationEvidence>,
    ) -> Result<(AcceptedKeys, Vec<SigningKey>, PublishedKey), ApplyError> {
        let names = design.names;
        let mut keys = signing_keys(&self.client, names, known, wish).await?;
        let given = self.given(names).await?;
        loop {
            let seen = RotationInput { wish, known, keys: &keys, given: &given, evidence };
            let lost = |lost| match lost {
                KeyLoss::Missing(generation) => ApplyError::KeyGone(names.signing_key(generation)),
                KeyLoss::Replaced(generation) => ApplyError::KeyChanged(names.signing_key(generation)),
            };
            match next_step(&seen).map_err(lost)? {
                RotationStep::Make(generation) => keys.insert(0, self.make_key(design, generation).await?),
                RotationStep::Delete(generation) => {
                    self.delete_key(names, generation).await?;
                    keys.retain(|key| key.generation() != generation);
                }
                RotationStep::Accept(accept) => {
                    let newest = keys
                        .first()
                        .map(|key| PublishedKey { generation: key.generation(), fingerprint: key.fingerprint() });
                    let newest = newest.ok_or_else(|| ApplyError::KeyGone(names.signing_key(accept.newest)))?;
                    let generations = accept.generations();
                    keys.retain(|key| generations.contains(&key.generation()));
                    return Ok((accept, keys, newest));
                }
            }
        }
    }

    /// Creates a signing key in a Secret that is never written again.
    async fn make_key(&self, design: &Design<'_>, generation: u32) -> Result<SigningKey, ApplyError> {
        let name = design.names.signing_key(generation);
        let key = SigningKey::random(generation)?;
        let mut object = design.secret(&name, &json!({}), &json!({ key.name(): STANDARD.encode(key.file()) }));
        // Protects from accidental changes: all tokens of the pool would become invalid.
        object["immutable"] = true.into();
        self.make(&object).await?;
        tracing::info!(secret = name, "signing key created");
        Ok(key)
    }

    async fn delete_key(&self, names: &PoolNames, generation: u32) -> Result<(), ApplyError> {
        let name = names.signing_key(generation);
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &names.pool.namespace);
        let parameters = DeleteParams::default();
        let request = api.delete(&name, &parameters);
        if unless_changed(with_timeout("delete the Secret", &name, request).await)? {
            tracing::info!(secret = name, "unused signing key deleted");
        }
        Ok(())
    }

    /// Returns the generations of the keys in the Secret of each daemon that verifies tokens.
    async fn given(&self, names: &PoolNames) -> Result<Vec<BTreeSet<u32>>, ApplyError> {
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &names.pool.namespace);
        let mut given = Vec::new();
        for role in [Role::CentralManager, Role::Schedd] {
            let name = names.token(role);
            if let Some(secret) = with_timeout("read the Secret", &name, api.get_opt(&name)).await? {
                given.push(
                    secret.data.iter().flat_map(|data| data.keys()).filter_map(|name| generation_of(name)).collect(),
                );
            }
        }
        Ok(given)
    }

    /// Returns the signing keys of these generations. A missing one is an error.
    pub async fn signing_keys(&self, names: &PoolNames, generations: &[u32]) -> Result<Vec<SigningKey>, ApplyError> {
        let mut keys = Vec::new();
        for generation in generations {
            let key = signing_key(&self.client, names, *generation).await?;
            keys.push(key.ok_or_else(|| ApplyError::KeyGone(names.signing_key(*generation)))?);
        }
        Ok(keys)
    }

    /// Creates the Secret with the token of a worker, owned by the pod with this uid. An existing one stays.
    pub async fn worker_token(
        &self,
        design: &Design<'_>,
        (number, uid): (u32, &str),
        tenant: &Tenant,
        (keys, now): (&[SigningKey], i64),
    ) -> Result<(), ApplyError> {
        let names = design.names;
        let (pod, name) = (names.worker(number), names.worker_token(number, tenant));
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &names.pool.namespace);
        let there = with_timeout("read the Secret", &name, api.get_opt(&name)).await?;
        if let Some(secret) = &there {
            let owners = secret.owner_references();
            if owners.iter().any(|owner| owner.uid == uid) {
                return Ok(());
            }
            // The Secret may be that of a former pod of this name, before the garbage collector deletes it.
            if !owners.iter().any(|owner| owner.kind == "Pod" && owner.name == pod) {
                return Err(ApplyError::NotOurs { kind: "Secret".to_owned(), name });
            }
        }
        let rights =
            [AuthorizationLevel::Read, AuthorizationLevel::AdvertiseMaster, AuthorizationLevel::AdvertiseStartd];
        let good = TokenValidity { from: now, until: Some(now + WORKER_TOKEN) };
        let token = tokens(keys, &names.trust_domain(), &tenant.identity(&names.domain()), &rights, good)?;
        let data = json!({ "token": STANDARD.encode(format!("{token}\n")) });
        let object = design.worker_secret(&name, (&pod, uid), &data);
        match there {
            None => self.create(&object).await?,
            Some(_) => self.overwrite(&object).await?,
        };
        Ok(())
    }

    /// Writes the tokens of central manager, schedd and operator, each with the least rights that it needs.
    ///
    /// They are renewed long before they expire.
    async fn tokens(&self, design: &Design<'_>, keys: &[SigningKey], now: i64) -> Result<(), ApplyError> {
        let names = design.names;
        let of = |role: Role, rights: Vec<AuthorizationLevel>| (names.token(role), names.identity(role), rights, true);
        let holders = [
            // No limits: daemons that verify tokens have the keys, and could sign any token for themselves.
            of(Role::CentralManager, Vec::new()),
            of(
                Role::Schedd,
                vec![
                    AuthorizationLevel::Read,
                    AuthorizationLevel::AdvertiseMaster,
                    AuthorizationLevel::AdvertiseSchedd,
                ],
            ),
            (
                names.operator_token(),
                names.operator(),
                vec![AuthorizationLevel::Read, AuthorizationLevel::Write, AuthorizationLevel::Administrator],
                false,
            ),
        ];
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &names.pool.namespace);
        let good = TokenValidity::renewed(now);
        let signed_by = keys.iter().map(SigningKey::fingerprint).collect::<Vec<_>>().join(",");
        let files: BTreeMap<String, Vec<u8>> = keys.iter().map(|key| (key.name(), key.file())).collect();
        for (name, identity, rights, with_keys) in holders {
            let there = with_timeout("read the Secret", &name, api.get_opt(&name)).await?;
            let files = if with_keys { &files } else { &BTreeMap::new() };
            if let Some(secret) = &there {
                if !is_owned(secret, design.names) {
                    return Err(ApplyError::NotOurs { kind: "Secret".to_owned(), name });
                }
                let is = |annotation: &str, value: &String| secret.annotations().get(annotation) == Some(value);
                if is(SIGNED_BY, &signed_by) && is(MADE, &good.from.to_string()) && has_keys(secret, files) {
                    continue;
                }
            }
            let token = tokens(keys, &names.trust_domain(), &identity, &rights, good)?;
            let mut data = json!({ "token": STANDARD.encode(format!("{token}\n")) });
            for (entry, file) in files {
                data[entry] = STANDARD.encode(file).into();
            }
            let object = design.secret(&name, &json!({ SIGNED_BY: signed_by, MADE: good.from.to_string() }), &data);
            match there {
                None => self.make(&object).await.map(drop)?,
                Some(there) => self.replace(object, &there).await?,
            }
        }
        Ok(())
    }

    /// Overwrites a Secret, and removes entries that it no longer has.
    ///
    /// Server-side apply would leave these: the entries of a created object have another owner (operation `Update`)
    /// than those of an applied one.
    async fn replace(&self, mut object: Value, there: &Secret) -> Result<(), ApplyError> {
        for entry in there.data.iter().flat_map(|data| data.keys()) {
            if object["data"][entry].is_null() {
                object["data"][entry] = Value::Null;
            }
        }
        object["metadata"]["uid"] = there.uid().into();
        let (kind, name) = called(&object);
        let (request, patch) = (self.api(&object), Patch::Merge(&object));
        let parameters = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let written = request.patch(&name, &parameters, &patch);
        with_timeout("write", &format!("{kind} {name}"), written).await?;
        Ok(())
    }

    /// Creates the object, or writes it again if it has changed since it was written last.
    async fn ensure(&self, design: &Design<'_>, object: &Value) -> Result<DynamicObject, ApplyError> {
        let (kind, name) = called(object);
        let there = with_timeout("read the object", &format!("{kind} {name}"), self.api(object).get_opt(&name)).await?;
        let made = match there {
            None => self.make(object).await?,
            Some(there) if !is_owned(&there, design.names) => {
                return Err(ApplyError::NotOurs { kind, name });
            }
            Some(there) if self.is_as_written(object, &there) => return Ok(there),
            Some(_) => self.overwrite(object).await?,
        };
        let mut written = self.written.lock();
        written.insert((kind, name), (object.clone(), version(&made)));
        Ok(made)
    }

    fn is_as_written(&self, object: &Value, there: &DynamicObject) -> bool {
        let written = self.written.lock();
        written.get(&called(object)).is_some_and(|(last, made)| last == object && *made == version(there))
    }

    async fn make(&self, object: &Value) -> Result<DynamicObject, ApplyError> {
        around(Point::BeforePoolObjectMade, self.create(object), Point::AfterPoolObjectMade).await
    }

    /// Creates an object. An existing one of its name is not touched.
    pub async fn create(&self, object: &Value) -> Result<DynamicObject, ApplyError> {
        let (kind, name) = called(object);
        let parameters = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        let Some(body) = dynamic(object) else { return Err(ApplyError::Changed { kind, name }) };
        let request = self.api(object);
        match with_timeout("create", &format!("{kind} {name}"), request.create(&parameters, &body)).await {
            Ok(made) => Ok(made),
            Err(error) if error.code() == Some(409) => Err(ApplyError::Changed { kind, name }),
            Err(error) => Err(error.into()),
        }
    }

    async fn overwrite(&self, object: &Value) -> Result<DynamicObject, ApplyError> {
        let (kind, name) = called(object);
        let request = self.api(object);
        let (parameters, patch) = (PatchParams::apply(FIELD_MANAGER).force(), Patch::Apply(object));
        Ok(with_timeout("apply", &format!("{kind} {name}"), request.patch(&name, &parameters, &patch)).await?)
    }

    fn api(&self, object: &Value) -> Api<DynamicObject> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let api_version = text(&object["apiVersion"]);
        let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
        let kind = GroupVersionKind::gvk(group, version, &text(&object["kind"]));
        let namespace = text(&object["metadata"]["namespace"]);
        Api::namespaced_with(self.client.clone(), &namespace, &ApiResource::from_gvk(&kind))
    }
}

/// Returns whether the Secret has exactly these keys.
fn has_keys(secret: &Secret, files: &BTreeMap<String, Vec<u8>>) -> bool {
    let there = secret.data.iter().flatten().filter(|(name, _)| generation_of(name).is_some());
    there.map(|(name, bytes)| (name, &bytes.0)).eq(files)
}

fn dynamic(object: &Value) -> Option<DynamicObject> {
    serde_json::from_value(object.clone()).ok()
}

fn called(object: &Value) -> (String, String) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    (text(&object["kind"]), text(&object["metadata"]["name"]))
}

/// Returns a version that changes when the content of the object is written, and not with its status.
///
/// This is the generation; for kinds without one, the resourceVersion.
fn version(object: &DynamicObject) -> String {
    let generation = object.metadata.generation.map(|generation| generation.to_string());
    generation.or_else(|| object.resource_version()).unwrap_or_default()
}
