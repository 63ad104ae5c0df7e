//! Identities on this machine, with a `condor_ping` of the tests' own.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use tempfile::TempDir;

use super::*;
use crate::clock::Clock;
use crate::condor::{Confining, KnownUsers, Tools};
use crate::confine::Confinement;
use crate::health::Health;
use crate::machine::ScheddName;

/// Answers who it is, and notes that; never to those whose folder has `evil` in its name.
const PING: &str = r#"#!/bin/sh
echo "$_CONDOR_SEC_TOKEN_DIRECTORY" >>"$(dirname "$0")/pings"
case "$_CONDOR_SEC_TOKEN_DIRECTORY" in *evil*) exec sleep 1000 ;; esac
echo alice@test
"#;

struct Site {
    credentials: Arc<Credentials>,
    schedd: Arc<Schedd>,
    folder: TempDir,
}

impl Site {
    fn new(namespace_identities: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let bin = folder.path().join("bin");
        fs::create_dir_all(&bin).unwrap();
        fs::write(bin.join("condor_ping"), PING).unwrap();
        fs::set_permissions(bin.join("condor_ping"), fs::Permissions::from_mode(0o755)).unwrap();
        let off = Confining { wanted: Confinement::Off, reads: &[], protected: &[] };
        let limit = Duration::from_secs(5);
        let tools = Tools::new(Some(&bin), off, limit, limit, limit, Metrics::default());
        let (name, users) = (ScheddName::from("schedd"), KnownUsers::default());
        let schedd = Schedd::new(name, "operator".to_owned(), tools, Clock::default(), users, Health::default());
        let schedd = Arc::new(schedd);
        let run_dir = folder.path().to_owned();
        let (refresh, allowed_realms) = (Duration::from_secs(300), vec!["TEST".to_owned()]);
        let setup =
            Setup { own: Own::Configured, signer: None, run_dir, refresh, namespace_identities, allowed_realms };
        let credentials = Credentials::new(setup, Arc::clone(&schedd), None, Metrics::default());
        Self { credentials, schedd, folder }
    }

    fn pings(&self) -> usize {
        fs::read_to_string(self.folder.path().join("bin/pings")).map_or(0, |text| text.lines().count())
    }

    /// What a Secret with this token is, mounted.
    fn source(&self, subject: &str) -> Source {
        let folder = self.folder.path().join("mounted");
        fs::create_dir_all(folder.join("htcondor-idtoken")).unwrap();
        let claims = URL_SAFE_NO_PAD.encode(format!(r#"{{"sub":"{subject}"}}"#));
        fs::write(folder.join("htcondor-idtoken/token"), format!("eyJ9.{claims}.c2ln")).unwrap();
        Source::Mounted(folder)
    }

    async fn refresh(&self, holder: &Holder, subject: &str) {
        let refresh = self.credentials.setup.refresh;
        assert!(holder.begin());
        holder.refresh(self.source(subject), refresh, &self.credentials.turns).await;
    }
}

fn secret(namespace: &str, name: &str) -> Identity {
    Identity::Secret { namespace: namespace.to_owned(), name: name.to_owned() }
}

fn message(at_hand: &AtHand) -> &str {
    if let AtHand::Bad(unknown) = at_hand { &unknown.message } else { "" }
}

#[tokio::test]
async fn nothing_is_at_hand_before_the_schedd_has_said_who_it_is() {
    let site = Site::new(20);
    let (clock, identity) = (site.schedd.clock, secret("a", "token"));
    let holder = site.credentials.holder(&identity).unwrap();
    let shown = |holder: &Holder| holder.shown(clock.now(), Duration::from_secs(300)).0;
    assert!(matches!(shown(&holder), AtHand::NotYet));
    assert_eq!(site.schedd.users.known_since(&identity), None);
    site.refresh(&holder, "alice").await;
    assert!(matches!(shown(&holder), AtHand::Good(_)), "{:?}", shown(&holder));
    assert!(site.schedd.users.known_since(&identity).is_some());
    // It is asked again when other credentials are there, and only then.
    site.refresh(&holder, "alice").await;
    assert_eq!(site.pings(), 1);
    site.refresh(&holder, "alice2").await;
    assert_eq!(site.pings(), 2);
}

#[tokio::test]
async fn one_whose_tool_does_not_end_is_paused_and_no_other() {
    let site = Site::new(20);
    let evil = secret("a", "evil");
    let holder = site.credentials.holder(&evil).unwrap();
    // The schedd answers the operator meanwhile.
    let answers = async {
        while site.schedd.identity().await.is_ok() {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    tokio::select! {
        () = site.refresh(&holder, "eve") => {}
        () = answers => {}
    }
    let pings = site.pings();
    let at_hand = site.credentials.at_hand(&evil);
    let expected = "condor_ping did not end within 5 s and was killed, with the credentials in the Secret a/evil";
    assert!(message(&at_hand).contains(expected), "{at_hand:?}");
    assert!(matches!(site.credentials.at_hand(&secret("a", "good")), AtHand::NotYet));
    assert!(matches!(site.credentials.at_hand(&Identity::Operator), AtHand::Good(_)));
    assert_eq!(site.pings(), pings, "it is not asked again during the pause");
}

#[tokio::test]
async fn a_namespace_has_a_number_of_secrets_in_use_and_the_next_one_waits() {
    let site = Site::new(2);
    for identity in [secret("a", "1"), secret("a", "2"), secret("b", "1")] {
        assert!(matches!(site.credentials.at_hand(&identity), AtHand::NotYet), "{identity}");
    }
    let third = site.credentials.at_hand(&secret("a", "3"));
    assert!(message(&third).contains("2 other Secrets of namespace a are in use"), "{third:?}");
    assert!(message(&third).contains("--namespace-identities"), "{third:?}");
    assert!(matches!(site.credentials.at_hand(&secret("b", "2")), AtHand::NotYet));
    // What nobody has used for a while makes room; what somebody has does not.
    let held = site.credentials.holder(&secret("a", "1")).unwrap();
    let users = |identity: &Identity| Arc::strong_count(&site.credentials.holders.lock().unwrap()[identity]);
    while users(&secret("a", "2")) > 1 {
        tokio::task::yield_now().await;
    }
    let later = site.schedd.clock.now().plus(IDLE * 2);
    let mut holders = site.credentials.holders.lock().unwrap();
    assert_eq!(site.credentials.make_room(&mut holders, "a", later), Ok(()));
    assert!(holders.contains_key(&secret("a", "1")) && !holders.contains_key(&secret("a", "2")));
    drop(held);
}
