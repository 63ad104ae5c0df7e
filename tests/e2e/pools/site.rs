//! A site whose operator has a second pool, of the other version.

use serde_json::{Value, json};
use testbed::{Pool, PoolOptions, Version, wait_for};

use bed::site::Site;
use bed::{Namespace, PATIENCE, condition, is_true, of};

/// The other one.
pub fn other(version: Version) -> Version {
    match version {
        Version::Trixie => Version::Sid,
        Version::Sid => Version::Trixie,
    }
}

/// How the second pool is called.
const SECOND: &str = "second";

pub struct Pools {
    pub site: Site,
    /// Without an `HTCPool` so far.
    pub second: Pool,
}

impl Pools {
    pub fn start(version: Version) -> Self {
        let site = Site::with(version, "", &["--credentials-refresh=2s"]);
        site.bed.start_operator();
        let second = Pool::start(&site.bed.assets, other(version), &PoolOptions::default()).unwrap();
        Self { site, second }
    }

    /// An `HTCPool` for the second pool, with the Secret that it needs.
    pub fn describe(&self, here: &Namespace<'_>, name: &str, allowed: &[&str]) {
        describe(here, name, &self.second, allowed);
    }

    /// An `HTCJob` for it that notes that it ran.
    pub fn noted(&self, name: &str, queue: u32, pool: &str) -> Value {
        with_pool(self.site.noted(name, queue, ""), pool)
    }

    /// The same, which runs until it is told to finish.
    pub fn lasting(&self, name: &str, queue: u32, pool: &str) -> Value {
        with_pool(self.site.lasting(name, queue), pool)
    }

    /// The same for each name, of one job in the pool `second` of the namespace, which is described first; all of them run.
    pub fn start_lasting(&self, here: &Namespace<'_>, names: &[&str]) {
        self.describe(here, SECOND, &[]);
        for name in names {
            here.create(&self.lasting(name, 1, SECOND));
            here.wait_phase(name, "Running");
        }
    }

    /// It has succeeded, its one job ran once, and it is deleted.
    pub fn ends_well(&self, here: &Namespace<'_>, name: &str) {
        let ended = here.wait_ended(name);
        assert!(is_true(&ended, "Complete"), "{ended:#}\n{}", self.site.bed.logs());
        assert_eq!(self.site.runs(name, 0), 1, "{name}");
        here.delete(name);
    }

    /// Ids of an object's jobs in the queue of the second pool.
    pub fn queue(&self, uid: &str) -> Vec<String> {
        let words = ["-allusers", "-constraint", &of(uid), "-af:j", "JobStatus"];
        let message = self.second.tool("condor_q", &words).unwrap();
        message.lines().map(|line| line.split(' ').next().unwrap().to_owned()).collect()
    }

    /// How many of its jobs the first pool has or had.
    pub fn in_first(&self, uid: &str) -> usize {
        let bed = &self.site.bed;
        bed.queue(&of(uid), &["ClusterId"]).len() + bed.history(&of(uid), &["ClusterId"]).len()
    }
}

pub fn with_pool(mut object: Value, pool: &str) -> Value {
    object["spec"]["pool"] = pool.into();
    object
}

/// An `HTCPool` with the Secret that it needs.
pub fn describe(here: &Namespace<'_>, name: &str, pool: &Pool, allowed: &[&str]) {
    let token = pool.tool("condor_token_create", &["-identity", "pools@test", "-key", "POOL"]).unwrap();
    let secret = format!("{name}-token");
    here.secret(&secret, "token", token.trim());
    here.let_read_secret(&secret);
    apply(here, name, pool, &secret, allowed);
}

/// An `HTCPool` with this Secret.
pub fn apply(here: &Namespace<'_>, name: &str, pool: &Pool, secret: &str, allowed: &[&str]) {
    let external =
        json!({ "collector": pool.address(), "schedd": pool.schedd_name(), "credentialsSecretName": secret });
    let object = json!({
        "apiVersion": "htc.cern.ch/v1alpha1", "kind": "HTCPool", "metadata": { "name": name, "namespace": here.name },
        "spec": { "external": external, "allowedNamespaces": allowed },
    });
    here.bed.apply(&object);
}

/// Nothing keeps it.
pub fn delete(here: &Namespace<'_>, name: &str) {
    here.remove("htcpool", name);
}

/// Waits until an `HTCPool` that is being deleted is gone.
pub fn wait_gone(here: &Namespace<'_>, name: &str) {
    let gone = || find(here, name).map_or(Ok(()), Err);
    wait_for(&format!("HTCPool {name} to be gone"), PATIENCE, gone).unwrap();
}

/// The `HTCPool`, if there is one.
pub fn find(here: &Namespace<'_>, name: &str) -> Option<Value> {
    here.bed.object(&format!("/apis/htc.cern.ch/v1alpha1/namespaces/{}/htcpools", here.name), name)
}

/// Waits until the pool's condition `Ready` has this reason; its message.
pub fn wait_ready(here: &Namespace<'_>, name: &str, reason: &str) -> String {
    wait_ready_says(here, name, reason, "")
}

/// The same, until its message has these words.
pub fn wait_ready_says(here: &Namespace<'_>, name: &str, reason: &str, words: &str) -> String {
    let mut message = String::new();
    wait_for(&format!("HTCPool {name} to say {reason} {words}"), PATIENCE, || {
        let object = find(here, name).ok_or("there is none")?;
        let said = |ready: &&Value| ready["reason"] == reason && ready["message"].as_str().unwrap().contains(words);
        let Some(ready) = condition(&object, "Ready").filter(said) else { return Err(object.to_string()) };
        ready["message"].as_str().unwrap().clone_into(&mut message);
        Ok(())
    })
    .unwrap();
    message
}

/// Waits until the pool's condition of this type has this reason; its message.
pub fn wait_condition(here: &Namespace<'_>, name: &str, kind: &str, reason: &str) -> String {
    wait_for(&format!("HTCPool {name} to say {kind} {reason}"), PATIENCE, || {
        let object = find(here, name).ok_or("there is none")?;
        let message = condition(&object, kind).filter(|message| message["reason"] == reason);
        message.map(|message| message["message"].as_str().unwrap().to_owned()).ok_or_else(|| object.to_string())
    })
    .unwrap()
}

/// Reasons of the Events about an `HTCPool`, in order of the alphabet.
pub fn events(here: &Namespace<'_>, name: &str) -> Vec<String> {
    let about = |event: &Value| event["involvedObject"]["kind"] == "HTCPool" && event["involvedObject"]["name"] == name;
    let events = here.all_events();
    let mut reasons: Vec<String> =
        events.iter().filter(|event| about(event)).map(|event| event["reason"].as_str().unwrap().to_owned()).collect();
    reasons.sort_unstable();
    reasons
}

/// Waits until one more Event is told, and no other.
pub fn wait_events(here: &Namespace<'_>, name: &str, reasons: &[&str]) {
    let told = || {
        let mut told = events(here, name);
        // It is told only if the schedd is slow.
        told.retain(|reason| reason != "QueryingHTCondor");
        told
    };
    let come = || if told() == reasons { Ok(()) } else { Err(told().join(" ")) };
    wait_for("the Events of an HTCPool", PATIENCE, come).unwrap();
}
