//! A receiver in this process, with a ledger that has one HTCJob of two jobs.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use htc_ledger::Ledger;
use htc_operator::callbacks::Receiver;
use htc_operator::http::port::Port;
use htc_operator::http::tls::Certificate;
use htc_submit::job_token::{KeyRing, TokenKeys};
use htc_support::clock::Clock;
use htc_support::health::Health;
use htc_support::metrics::Metrics;
use tokio::runtime::Runtime;

use crate::http::{self, Answer};

pub const KEY: &str = "0123456789abcdef0123456789abcdef";
pub const UID: &str = "0b5ea2a4-3b8c-4a51-9d1f-6f1a3a5f0001";
/// The HTCJob's name.
pub const NAME: &str = "zero";

pub struct Desk {
    pub address: SocketAddr,
    pub keys: Arc<TokenKeys>,
    receiver: Receiver,
    ledger: Ledger,
    folder: tempfile::TempDir,
    // Dropped in this order: the port is stopped while its runtime lives.
    _port: Port,
    runtime: Runtime,
}

impl Desk {
    /// One that takes events in.
    pub fn new() -> Self {
        let desk = Self::standing_by(None);
        desk.open();
        desk
    }

    /// One whose operator does not lead.
    pub fn standing_by(certificate: Option<(&Path, &Path)>) -> Self {
        let runtime = Runtime::new().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("htcjobs.db");
        let ledger = Ledger::open(&path, &Metrics::default(), &Health::default()).unwrap();
        runtime.block_on(ledger.close());
        drop(ledger);
        rusqlite::Connection::open(&path)
            .unwrap()
            .execute_batch(&format!(
                "insert into objects(uid, namespace, name, phase, isNew, epoch, released, conditions, knownAt)
                 values ('{UID}', 'physics', '{NAME}', 'Running', 1, 1, 0, '[]', 0);
                 insert into htcjobs(htcjobName, jobId, status, uid, idx, attempt, birthdate)
                 values ('{NAME}', '12.0', 1, '{UID}', 0, 1, 1000), ('{NAME}', '12.1', 1, '{UID}', 1, 1, 1000);
                 insert into submissions(uid, attempt, indices, schedd, birthdate, intentAt, intentDate, notAfter, witness, identity, state)
                 values ('{UID}', 1, '0-1', 's', 1000, 0, 0, 0, '', 'o', 'open');"
            ))
            .unwrap();
        let ledger = Ledger::open(&path, &Metrics::default(), &Health::default()).unwrap();
        let keys = Arc::new(TokenKeys::parse(KEY).unwrap());
        let receiver = Receiver::new(KeyRing::new(TokenKeys::clone(&keys)), Metrics::default());
        let port = {
            let _inside = runtime.enter();
            let certificate = certificate.map(|(chain, key)| Certificate::read(chain, key).unwrap());
            receiver.listen("127.0.0.1:0".parse().unwrap(), certificate).unwrap()
        };
        Self { address: port.address, keys, receiver, ledger, folder, _port: port, runtime }
    }

    /// Its operator leads from now on.
    pub fn open(&self) {
        let _inside = self.runtime.enter();
        let (wake, mut wakes) = tokio::sync::mpsc::channel(16);
        self.runtime.spawn(async move { while wakes.recv().await.is_some() {} });
        // No API server answers there.
        let nowhere = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        let client = kube::Client::try_from(nowhere).unwrap();
        self.receiver.open(self.ledger.clone(), Clock::default(), wake, client);
    }

    pub fn token(&self) -> String {
        self.keys.token(&UID.into())
    }

    /// The headers of a whole event in binary mode.
    pub fn headers(&self, event: &str) -> Vec<(String, String)> {
        http::headers(&[
            ("Authorization", &format!("Bearer {}", self.token())),
            ("Content-Type", "application/json"),
            ("ce-specversion", "1.0"),
            ("ce-type", "htcjob.cloudevent"),
            ("ce-source", "cern.ch"),
            ("ce-subject", UID),
            ("ce-id", event),
        ])
    }

    pub fn post(&self, headers: &[(String, String)], body: &[u8]) -> Answer {
        http::post(self.address, headers, body).unwrap()
    }

    /// Ends it; what the ledger's file has then: job, event and exit code (-1 for a start).
    pub fn rows(self) -> Vec<(String, String, i64)> {
        self.runtime.block_on(self.ledger.close());
        let connection = rusqlite::Connection::open(self.folder.path().join("htcjobs.db")).unwrap();
        let mut statement = connection
            .prepare("select jobId, event, coalesce(retcode, -1) from callbacks order by jobId, event")
            .unwrap();
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).unwrap();
        rows.map(Result::unwrap).collect()
    }
}

/// What a job says at its end.
pub fn ended(id: &str, code: &str) -> Vec<u8> {
    serde_json::json!({ "name": NAME, "jobid": id, "retcode": code }).to_string().into_bytes()
}
