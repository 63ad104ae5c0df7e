//! Sees to it that the objects of a managed pool are as they should be.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

use super::error::ApplyError;
use super::found::{host_and_port, is_owned, signing_key, signing_keys};
use super::names::{Names, PORT, Role};
use super::objects::Design;
use super::rotation::{Accept, Evidence, Known, Lost, Next, Seen, Wish, next};
use crate::credentials::Tenant;
use crate::credentials::signing::{Good, Right, SigningKey, generation_of, tokens};
use crate::failpoint::{Point, around};
use crate::kubernetes::{MANAGER, limited, unless_changed};

/// Annotation of Secrets with tokens: which keys have signed them, the newest first.
const SIGNED_BY: &str = "htc.cern.ch/signing-key";

/// Annotation of these: from when the token is, in unix seconds.
const MADE: &str = "htc.cern.ch/token-made";
/// The token of a worker is good for so many seconds: for longer than the worker is there, unless a job runs longer than that.
const WORKER_TOKEN: i64 = 30 * 24 * 3600;

/// What there is of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// The newest key: its generation and its fingerprint.
    pub signing_key: Known,
    /// The keys in use.
    pub accept: Accept,
    /// Host and port of the collector.
    pub collector: String,
}

/// Writes the objects of one pool, if they are not as they should be.
pub struct Applier {
    client: Client,
    /// What has been written last, and the version that came of it.
    written: Mutex<HashMap<(String, String), (Value, String)>>,
    /// One at a time: what one has seen of the keys, another one would change meanwhile.
    turn: tokio::sync::Mutex<()>,
}

impl Applier {
    /// Nothing is written yet.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self { client, written: Mutex::default(), turn: tokio::sync::Mutex::default() }
    }

    /// All objects but the workers. `known`: the newest key that the status of the `HTCPool` names. `evidence`: of a rotation that is under
    /// way.
    pub async fn apply(
        &self,
        design: &Design<'_>,
        known: Option<&Known>,
        evidence: Option<&Evidence>,
        now: i64,
    ) -> Result<Applied, ApplyError> {
        let _turn = self.turn.lock().await;
        let wish = Wish::of(design.spec);
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

    /// Makes and deletes keys until nothing of that is to be done: which keys are in use, these keys, and the newest that there is.
    async fn keys(
        &self,
        design: &Design<'_>,
        (wish, known): (Wish, Option<&Known>),
        evidence: Option<&Evidence>,
    ) -> Result<(Accept, Vec<SigningKey>, Known), ApplyError> {
        let names = design.names;
        let mut keys = signing_keys(&self.client, names, known, wish).await?;
        let given = self.given(names).await?;
        loop {
            let seen = Seen { wish, known, keys: &keys, given: &given, evidence };
            let lost = |lost| match lost {
                Lost::Gone(generation) => ApplyError::KeyGone(names.signing_key(generation)),
                Lost::Other(generation) => ApplyError::KeyChanged(names.signing_key(generation)),
            };
            match next(&seen).map_err(lost)? {
                Next::Make(generation) => keys.insert(0, self.make_key(design, generation).await?),
                Next::Delete(generation) => {
                    self.delete_key(names, generation).await?;
                    keys.retain(|key| key.generation() != generation);
                }
                Next::Accept(accept) => {
                    let newest =
                        keys.first().map(|key| Known { generation: key.generation(), fingerprint: key.fingerprint() });
                    let newest = newest.ok_or_else(|| ApplyError::KeyGone(names.signing_key(accept.newest)))?;
                    let generations = accept.generations();
                    keys.retain(|key| generations.contains(&key.generation()));
                    return Ok((accept, keys, newest));
                }
            }
        }
    }

    /// It is never written again.
    async fn make_key(&self, design: &Design<'_>, generation: u32) -> Result<SigningKey, ApplyError> {
        let name = design.names.signing_key(generation);
        let key = SigningKey::random(generation)?;
        let mut object = design.secret(&name, &json!({}), &json!({ key.name(): STANDARD.encode(key.file()) }));
        // Nobody is to change it by accident: all tokens of the pool would be worth nothing.
        object["immutable"] = true.into();
        self.make(&object).await?;
        tracing::info!("a signing key of the pool is made: Secret {name}");
        Ok(key)
    }

    async fn delete_key(&self, names: &Names, generation: u32) -> Result<(), ApplyError> {
        let name = names.signing_key(generation);
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &names.pool.namespace);
        let parameters = DeleteParams::default();
        let request = api.delete(&name, &parameters);
        if unless_changed(limited("delete the Secret", &name, request).await)? {
            tracing::info!("no daemon accepts tokens of the signing key in Secret {name}: it is deleted");
        }
        Ok(())
    }

    /// Generations of the keys in the Secrets of the daemons that accept tokens.
    async fn given(&self, names: &Names) -> Result<Vec<BTreeSet<u32>>, ApplyError> {
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &names.pool.namespace);
        let mut given = Vec::new();
        for role in [Role::CentralManager, Role::Schedd] {
            let name = names.token(role);
            if let Some(secret) = limited("read the Secret", &name, api.get_opt(&name)).await? {
                given.push(
                    secret.data.iter().flat_map(|data| data.keys()).filter_map(|name| generation_of(name)).collect(),
                );
            }
        }
        Ok(given)
    }

    /// The signing keys of these generations, of a pool that has them.
    pub async fn signing_keys(&self, names: &Names, generations: &[u32]) -> Result<Vec<SigningKey>, ApplyError> {
        let mut keys = Vec::new();
        for generation in generations {
            let key = signing_key(&self.client, names, *generation).await?;
            keys.push(key.ok_or_else(|| ApplyError::KeyGone(names.signing_key(*generation)))?);
        }
        Ok(keys)
    }

    /// The token of a worker: in a Secret that goes with its pod, which has this uid. One that is there already stays.
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
        let there = limited("read the Secret", &name, api.get_opt(&name)).await?;
        if let Some(secret) = &there {
            let owners = secret.owner_references();
            if owners.iter().any(|owner| owner.uid == uid) {
                return Ok(());
            }
            // That of a former pod of this name, which the garbage collector has not deleted yet.
            if !owners.iter().any(|owner| owner.kind == "Pod" && owner.name == pod) {
                return Err(ApplyError::NotOurs { kind: "Secret".to_owned(), name });
            }
        }
        let rights = [Right::Read, Right::AdvertiseMaster, Right::AdvertiseStartd];
        let good = Good { from: now, until: Some(now + WORKER_TOKEN) };
        let token = tokens(keys, &names.trust_domain(), &tenant.identity(&names.domain()), &rights, good)?;
        let data = json!({ "token": STANDARD.encode(format!("{token}\n")) });
        let object = design.worker_secret(&name, (&pod, uid), &data);
        match there {
            None => self.create(&object).await?,
            Some(_) => self.overwrite(&object).await?,
        };
        Ok(())
    }

    /// The central manager's, the schedd's and the operator's, which are made anew long before they end: with the least rights that they need.
    async fn tokens(&self, design: &Design<'_>, keys: &[SigningKey], now: i64) -> Result<(), ApplyError> {
        let names = design.names;
        let of = |role: Role, rights: Vec<Right>| (names.token(role), names.identity(role), rights, true);
        let holders = [
            // Who checks tokens has the keys, and could make itself any.
            of(Role::CentralManager, Vec::new()),
            of(Role::Schedd, vec![Right::Read, Right::AdvertiseMaster, Right::AdvertiseSchedd]),
            (names.operator_token(), names.operator(), vec![Right::Read, Right::Write, Right::Administrator], false),
        ];
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &names.pool.namespace);
        let good = Good::renewed(now);
        let signed_by = keys.iter().map(SigningKey::fingerprint).collect::<Vec<_>>().join(",");
        let files: BTreeMap<String, Vec<u8>> = keys.iter().map(|key| (key.name(), key.file())).collect();
        for (name, identity, rights, with_keys) in holders {
            let there = limited("read the Secret", &name, api.get_opt(&name)).await?;
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

    /// Writes a Secret again, and takes away what is not in it any more. Server-side apply would leave that: whoever creates an object owns
    /// its entries in another way than who applies it.
    async fn replace(&self, mut object: Value, there: &Secret) -> Result<(), ApplyError> {
        for entry in there.data.iter().flat_map(|data| data.keys()) {
            if object["data"][entry].is_null() {
                object["data"][entry] = Value::Null;
            }
        }
        object["metadata"]["uid"] = there.uid().into();
        let (kind, name) = called(&object);
        let (request, patch) = (self.api(&object), Patch::Merge(&object));
        let parameters = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        let written = request.patch(&name, &parameters, &patch);
        limited("write", &format!("{kind} {name}"), written).await?;
        Ok(())
    }

    /// Creates it, or writes it again if it is not as it was when it was written last.
    async fn ensure(&self, design: &Design<'_>, object: &Value) -> Result<DynamicObject, ApplyError> {
        let (kind, name) = called(object);
        let there = limited("read the object", &format!("{kind} {name}"), self.api(object).get_opt(&name)).await?;
        let made = match there {
            None => self.make(object).await?,
            Some(there) if !is_owned(&there, design.names) => {
                return Err(ApplyError::NotOurs { kind, name });
            }
            Some(there) if self.is_as_written(object, &there) => return Ok(there),
            Some(_) => self.overwrite(object).await?,
        };
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        written.insert((kind, name), (object.clone(), version(&made)));
        Ok(made)
    }

    fn is_as_written(&self, object: &Value, there: &DynamicObject) -> bool {
        let written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        written.get(&called(object)).is_some_and(|(last, made)| last == object && *made == version(there))
    }

    async fn make(&self, object: &Value) -> Result<DynamicObject, ApplyError> {
        around(Point::BeforePoolObjectMade, self.create(object), Point::AfterPoolObjectMade).await
    }

    /// Creates an object; one of its name that came meanwhile is not touched.
    pub async fn create(&self, object: &Value) -> Result<DynamicObject, ApplyError> {
        let (kind, name) = called(object);
        let parameters = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
        let Some(body) = dynamic(object) else { return Err(ApplyError::Changed { kind, name }) };
        let request = self.api(object);
        match limited("create", &format!("{kind} {name}"), request.create(&parameters, &body)).await {
            Ok(made) => Ok(made),
            Err(error) if error.code() == Some(409) => Err(ApplyError::Changed { kind, name }),
            Err(error) => Err(error.into()),
        }
    }

    async fn overwrite(&self, object: &Value) -> Result<DynamicObject, ApplyError> {
        let (kind, name) = called(object);
        let request = self.api(object);
        let (parameters, patch) = (PatchParams::apply(MANAGER).force(), Patch::Apply(object));
        Ok(limited("apply", &format!("{kind} {name}"), request.patch(&name, &parameters, &patch)).await?)
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

/// The keys in the Secret are these.
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

/// Changes with what people or operators write, and with nothing else.
fn version(object: &DynamicObject) -> String {
    let generation = object.metadata.generation.map(|generation| generation.to_string());
    generation.or_else(|| object.resource_version()).unwrap_or_default()
}
