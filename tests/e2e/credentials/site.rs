//! A bed whose operator reads credentials often, and where they lie.

use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use base64::Engine as _;
use serde_json::{Value, json};
use testbed::{Account, PoolOptions, Version, wait_for};

use bed::{Bed, Namespace, PATIENCE, Promise, condition, files_below, htcjob, of};

pub struct Site {
    pub bed: Bed,
    pub run: PathBuf,
}

impl Site {
    /// Servers without the operator.
    pub fn new(version: Version, arguments: &[&str]) -> Self {
        Self::with(version, "", arguments)
    }

    pub fn with(version: Version, extra_config: &str, arguments: &[&str]) -> Self {
        let options = PoolOptions { extra_config: extra_config.to_owned(), ..PoolOptions::default() };
        let bed = Bed::new(version, &options, &[&["--credentials-refresh=2s"][..], arguments].concat());
        let run = bed.scratch().path().join("run");
        Account::unprivileged().make_dir(&run, 0o755).unwrap();
        bed.set_env("HTC_RUN_DIR", run.to_str().unwrap());
        Self { bed, run }
    }

    pub fn start(version: Version) -> Self {
        let site = Self::new(version, &[]);
        site.bed.start_operator();
        site
    }

    /// A token of the pool for `identity`, as the site's admin makes it.
    pub fn token(&self, identity: &str, more: &[&str]) -> String {
        let arguments = [&["-identity", identity, "-key", "POOL"][..], more].concat();
        self.bed.pool.tool("condor_token_create", &arguments).unwrap().trim().to_owned()
    }

    /// The files that the operator has now of one Secret.
    pub fn copies(&self, namespace: &str, secret: &str) -> Vec<PathBuf> {
        let part = format!("/secrets/{namespace}/{secret}/");
        files_below(&self.run, &|_| true).into_iter().filter(|path| path.to_string_lossy().contains(&part)).collect()
    }

    /// Nobody but the operator can look into what it has of credentials.
    pub fn assert_closed(&self) {
        for path in files_below(&self.run, &|_| true) {
            let Ok(found) = std::fs::metadata(&path) else { continue };
            assert_eq!(found.mode() & 0o77, 0, "{}", path.display());
            assert_eq!(found.uid(), Account::unprivileged().uid);
        }
    }

    /// Waits until the operator has nothing any more of one Secret.
    pub fn wait_forgotten(&self, namespace: &str, secret: &str) {
        wait_for("the copies to be gone", PATIENCE, || {
            let left = self.copies(namespace, secret);
            if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
        })
        .unwrap();
    }

    /// None of these stands in the log, the ledger, an Event, or a file of the operator's data.
    pub fn assert_secret(&self, here: &Namespace<'_>, secrets: &[&str]) {
        let mut texts = vec![("the log".to_owned(), self.bed.logs().into_bytes())];
        texts.push(("the Events".to_owned(), json!(here.all_events()).to_string().into_bytes()));
        texts.push(("the HTCJobs".to_owned(), json!(here.all()).to_string().into_bytes()));
        for path in files_below(&self.bed.data, &|_| true) {
            texts.push((path.display().to_string(), std::fs::read(&path).unwrap_or_default()));
        }
        let _promise = Promise;
        for secret in secrets {
            for (place, text) in &texts {
                assert!(!text.windows(secret.len()).any(|part| part == secret.as_bytes()), "{place}");
            }
        }
    }
}

/// Creates or changes a Secret; the values may be any bytes.
pub fn put_secret(here: &Namespace<'_>, name: &str, entries: &[(&str, &[u8])]) {
    let encode = |value: &[u8]| base64::engine::general_purpose::STANDARD.encode(value);
    let data: serde_json::Map<String, Value> =
        entries.iter().map(|(entry, value)| ((*entry).to_owned(), encode(value).into())).collect();
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "data": data,
        "metadata": { "name": name, "namespace": here.name, "labels": { "htc.cern.ch/use": "credentials" } },
    });
    here.replace("secret", &secret);
}

/// An `HTCJob` with the credentials of a Secret.
pub fn with_secret(name: &str, secret: &str, source: &str) -> Value {
    let mut object = htcjob(name, source);
    object["spec"]["credentialsSecretName"] = secret.into();
    object
}

/// Waits until a condition is False for this reason, with these words in its message; the message.
pub fn wait_says(here: &Namespace<'_>, name: &str, kind: &str, reason: &str, words: &str) -> String {
    let says = |object: &Value| {
        condition(object, kind).is_some_and(|condition| {
            let has_words = condition["message"].as_str().is_some_and(|message| message.contains(words));
            condition["status"] == "False" && condition["reason"] == reason && has_words
        })
    };
    let object = here.wait(name, &format!("{kind} False {reason}: {words}"), says);
    condition(&object, kind).unwrap()["message"].as_str().unwrap().to_owned()
}

/// Users of the jobs in the queue of one object, each once.
pub fn users(bed: &Bed, uid: &str) -> Vec<String> {
    let mut users: Vec<String> = bed.queue(&of(uid), &["User"]).into_iter().map(|row| row[0].clone()).collect();
    users.sort_unstable();
    users.dedup();
    users
}
