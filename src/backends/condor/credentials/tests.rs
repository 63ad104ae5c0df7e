//! Tests of identities on this machine, with a fake `condor_ping`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use htc_confine::Confinement;
use htc_machine::ScheddName;
use htc_support::clock::Clock;
use htc_support::health::Health;
use htcondor::{ConfinementSettings, KnownUsers, Tools};
use tempfile::TempDir;

use super::*;

/// Prints the user and logs each call. Never answers if the folder has `evil` in its name.
const PING: &str = r#"#!/bin/sh
echo "$_CONDOR_SEC_TOKEN_DIRECTORY" >>"$(dirname "$0")/pings"
case "$_CONDOR_SEC_TOKEN_DIRECTORY" in *evil*) exec sleep 1000 ;; esac
echo alice@test
"#;

struct CredentialsFixture {
    credentials: Arc<Credentials>,
    schedd: Arc<Schedd>,
    folder: TempDir,
}

impl CredentialsFixture {
    fn new(namespace_identities: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let bin = folder.path().join("bin");
        fs::create_dir_all(&bin).unwrap();
        fs::write(bin.join("condor_ping"), PING).unwrap();
        fs::set_permissions(bin.join("condor_ping"), fs::Permissions::from_mode(0o755)).unwrap();
        let off = ConfinementSettings { wanted: Confinement::Off, reads: &[], protected: &[] };
        let limit = Duration::from_secs(5);
        let tools = Tools::new(Some(&bin), off, limit, limit, limit, Metrics::default());
        let (name, users) = (ScheddName::from("schedd"), KnownUsers::default());
        let schedd = Schedd::new(name, "operator".to_owned(), tools, Clock::default(), users, Health::default());
        let schedd = Arc::new(schedd);
        let run_dir = folder.path().to_owned();
        let (refresh, allowed_realms) = (Duration::from_secs(300), vec!["TEST".to_owned()]);
        let setup = CredentialsConfig {
            own: OperatorCredentials::Configured,
            signer: None,
            run_dir,
            refresh,
            namespace_identities,
            allowed_realms,
        };
        let credentials = Credentials::new(setup, Arc::clone(&schedd), None, Metrics::default());
        Self { credentials, schedd, folder }
    }

    fn pings(&self) -> usize {
        fs::read_to_string(self.folder.path().join("bin/pings")).map_or(0, |text| text.lines().count())
    }

    /// Returns a source like a mounted Secret with this token.
    fn source(&self, subject: &str) -> Source {
        let folder = self.folder.path().join("mounted");
        fs::create_dir_all(folder.join("htcondor-idtoken")).unwrap();
        let claims = URL_SAFE_NO_PAD.encode(format!(r#"{{"sub":"{subject}"}}"#));
        fs::write(folder.join("htcondor-idtoken/token"), format!("eyJ9.{claims}.c2ln")).unwrap();
        Source::Mounted(folder)
    }

    async fn refresh(&self, holder: &IdentityCredentials, subject: &str) {
        let refresh = self.credentials.setup.refresh;
        assert!(holder.try_begin_refresh());
        holder.refresh(self.source(subject), refresh, &self.credentials.introductions).await;
    }
}

fn secret(namespace: &str, name: &str) -> Identity {
    Identity::Secret { namespace: namespace.to_owned(), name: name.to_owned() }
}

fn message(at_hand: &CredentialStatus) -> &str {
    if let CredentialStatus::Failed(unknown) = at_hand { &unknown.message } else { "" }
}

#[tokio::test]
async fn credentials_are_pending_until_the_schedd_names_the_user() {
    let site = CredentialsFixture::new(20);
    let (clock, identity) = (site.schedd.clock, secret("a", "token"));
    let holder = site.credentials.holder(&identity).unwrap();
    let shown = |holder: &IdentityCredentials| holder.status(clock.now(), Duration::from_secs(300)).0;
    assert!(matches!(shown(&holder), CredentialStatus::Pending));
    assert_eq!(site.schedd.users.known_since(&identity), None);
    site.refresh(&holder, "alice").await;
    assert!(matches!(shown(&holder), CredentialStatus::Ready(_)), "{:?}", shown(&holder));
    assert!(site.schedd.users.known_since(&identity).is_some());
    // The schedd is asked again only after the credentials have changed.
    site.refresh(&holder, "alice").await;
    assert_eq!(site.pings(), 1);
    site.refresh(&holder, "alice2").await;
    assert_eq!(site.pings(), 2);
}

#[tokio::test]
async fn only_the_identity_of_a_hanging_tool_backs_off() {
    let site = CredentialsFixture::new(20);
    let evil = secret("a", "evil");
    let holder = site.credentials.holder(&evil).unwrap();
    // Meanwhile the schedd still answers the operator.
    let answers = async {
        while site.schedd.ask_user().await.is_ok() {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    tokio::select! {
        () = site.refresh(&holder, "eve") => {}
        () = answers => {}
    }
    let pings = site.pings();
    let at_hand = site.credentials.status(&evil);
    let expected = "condor_ping did not end within 5 s and was killed, with the credentials in the Secret a/evil";
    assert!(message(&at_hand).contains(expected), "{at_hand:?}");
    assert!(matches!(site.credentials.status(&secret("a", "good")), CredentialStatus::Pending));
    assert!(matches!(site.credentials.status(&Identity::Operator), CredentialStatus::Ready(_)));
    assert_eq!(site.pings(), pings, "it is not asked again during the pause");
}

#[tokio::test]
async fn number_of_secrets_in_use_per_namespace_is_limited() {
    let site = CredentialsFixture::new(2);
    for identity in [secret("a", "1"), secret("a", "2"), secret("b", "1")] {
        assert!(matches!(site.credentials.status(&identity), CredentialStatus::Pending), "{identity}");
    }
    let third = site.credentials.status(&secret("a", "3"));
    assert!(message(&third).contains("2 other Secrets of namespace a are in use"), "{third:?}");
    assert!(message(&third).contains("--namespace-identities"), "{third:?}");
    assert!(matches!(site.credentials.status(&secret("b", "2")), CredentialStatus::Pending));
    // An unused Secret is dropped for another one; a Secret in use is not.
    let held = site.credentials.holder(&secret("a", "1")).unwrap();
    let users = |identity: &Identity| Arc::strong_count(&site.credentials.holders.lock()[identity]);
    while users(&secret("a", "2")) > 1 {
        tokio::task::yield_now().await;
    }
    let later = site.schedd.clock.now().plus(IDLE * 2);
    let mut holders = site.credentials.holders.lock();
    assert_eq!(site.credentials.make_room(&mut holders, "a", later), Ok(()));
    assert!(holders.contains_key(&secret("a", "1")) && !holders.contains_key(&secret("a", "2")));
    drop(held);
}
