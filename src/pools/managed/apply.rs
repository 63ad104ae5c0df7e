//! Sees to it that the objects of a managed pool are as they should be.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

use super::error::ApplyError;
use super::found::{host_and_port, is_owned, signing_key};
use super::names::{Names, PORT, Role};
use super::objects::Design;
use crate::credentials::Tenant;
use crate::credentials::signing::{Good, KEY_NAME, Right, SigningKey};
use crate::failpoint::{Point, around};
use crate::kubernetes::{MANAGER, limited};

/// Annotation of Secrets with tokens: which key has signed them.
const SIGNED_BY: &str = "htc.cern.ch/signing-key";

/// Annotation of these: from when the token is, in unix seconds.
const MADE: &str = "htc.cern.ch/token-made";
/// The token of a worker is good for so many seconds: for longer than the worker is there, unless a job runs longer than that.
const WORKER_TOKEN: i64 = 30 * 24 * 3600;

/// What there is of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// Which key it has.
    pub signing_key: String,
    /// Host and port of the collector.
    pub collector: String,
}

/// Writes the objects of one pool, if they are not as they should be.
pub struct Applier {
    client: Client,
    /// What has been written last, and the version that came of it.
    written: Mutex<HashMap<(String, String), (Value, String)>>,
}

impl Applier {
    /// Nothing is written yet.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self { client, written: Mutex::default() }
    }

    /// All objects but the workers. `had_key`: the pool has had a signing key before.
    pub async fn apply(&self, design: &Design<'_>, had_key: bool, now: i64) -> Result<Applied, ApplyError> {
        let key = self.key(design, had_key).await?;
        self.tokens(design, &key, now).await?;
        let mut collector = None;
        for object in design.objects() {
            let made = self.ensure(design, &object).await?;
            if object["kind"] == "Service" && object["metadata"]["name"] == design.names.of(Role::CentralManager) {
                collector = made.data["spec"]["clusterIP"].as_str().map(|address| host_and_port(address, PORT));
            }
        }
        let changed =
            || ApplyError::Changed { kind: "Service".to_owned(), name: design.names.of(Role::CentralManager) };
        Ok(Applied { signing_key: key.fingerprint(), collector: collector.ok_or_else(changed)? })
    }

    /// It is made if there never was one, and never written again.
    async fn key(&self, design: &Design<'_>, had_key: bool) -> Result<SigningKey, ApplyError> {
        if let Some(key) = signing_key(&self.client, design.names).await? {
            return Ok(key);
        }
        let name = design.names.signing_key();
        if had_key {
            return Err(ApplyError::KeyGone(name));
        }
        let key = SigningKey::random()?;
        let mut object = design.secret(&name, &json!({}), &json!({ KEY_NAME: STANDARD.encode(key.file()) }));
        // Nobody is to change it by accident: all tokens of the pool would be worth nothing.
        object["immutable"] = true.into();
        self.make(&object).await?;
        tracing::info!("the signing key of the pool is made: Secret {name}");
        Ok(key)
    }

    /// The signing key of a pool that has one.
    pub async fn signing_key(&self, names: &Names) -> Result<SigningKey, ApplyError> {
        signing_key(&self.client, names).await?.ok_or_else(|| ApplyError::KeyGone(names.signing_key()))
    }

    /// The token of a worker: in a Secret that goes with its pod, which has this uid. One that is there already stays.
    pub async fn worker_token(
        &self,
        design: &Design<'_>,
        (number, uid): (u32, &str),
        tenant: &Tenant,
        (key, now): (&SigningKey, i64),
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
        let token = key.token(&names.trust_domain(), &tenant.identity(&names.domain()), &rights, good)?;
        let data = json!({ "token": STANDARD.encode(format!("{token}\n")) });
        let object = design.worker_secret(&name, (&pod, uid), &data);
        match there {
            None => self.create(&object).await?,
            Some(_) => self.overwrite(&object).await?,
        };
        Ok(())
    }

    /// The central manager's, the schedd's and the operator's, which are made anew long before they end: with the least rights that they need.
    async fn tokens(&self, design: &Design<'_>, key: &SigningKey, now: i64) -> Result<(), ApplyError> {
        let names = design.names;
        let of = |role: Role, rights: Vec<Right>| (names.token(role), names.identity(role), rights, true);
        let holders = [
            // Who checks tokens has the key, and could make itself any.
            of(Role::CentralManager, Vec::new()),
            of(Role::Schedd, vec![Right::Read, Right::AdvertiseMaster, Right::AdvertiseSchedd]),
            (names.operator_token(), names.operator(), vec![Right::Read, Right::Write, Right::Administrator], false),
        ];
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &names.pool.namespace);
        let good = Good::renewed(now);
        for (name, identity, rights, with_key) in holders {
            let there = limited("read the Secret", &name, api.get_opt(&name)).await?;
            if let Some(secret) = &there {
                if !is_owned(secret, design.names) {
                    return Err(ApplyError::NotOurs { kind: "Secret".to_owned(), name });
                }
                let is = |annotation: &str, value: &String| secret.annotations().get(annotation) == Some(value);
                if is(SIGNED_BY, &key.fingerprint()) && is(MADE, &good.from.to_string()) {
                    continue;
                }
            }
            let token = key.token(&names.trust_domain(), &identity, &rights, good)?;
            let mut data = json!({ "token": STANDARD.encode(format!("{token}\n")) });
            if with_key {
                data[KEY_NAME] = STANDARD.encode(key.file()).into();
            }
            let object =
                design.secret(&name, &json!({ SIGNED_BY: key.fingerprint(), MADE: good.from.to_string() }), &data);
            match there {
                None => self.make(&object).await?,
                Some(_) => self.overwrite(&object).await?,
            };
        }
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
