//! Restricts the Kerberos realms of users of Secrets. A user who may choose the realm chooses the KDC that is
//! contacted, if the KDC's address comes from DNS.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::path::Path;

use super::material::{Kerberos, MaterialError};

/// File with the default realm, unless `KRB5_CONFIG` names another.
const KRB5_CONF: &str = "/etc/krb5.conf";

/// The allowed realms.
#[derive(Debug)]
pub(super) struct Realms(Vec<String>);

impl Realms {
    /// Allows these realms, or the default realm of `krb5.conf` if there are none. If that is unreadable, no user name
    /// with a realm is allowed.
    pub(super) fn new(allowed: &[String]) -> Self {
        if allowed.is_empty() { Self(default_realm().into_iter().collect()) } else { Self(allowed.to_vec()) }
    }

    /// Checks this user. A name without a realm is in the default realm, which the site
    /// chooses.
    pub(super) fn check(&self, kerberos: &Kerberos) -> Result<(), MaterialError> {
        let (entry, user) = match kerberos {
            Kerberos::Password { user, .. } => ("username", user),
            Kerberos::Keytab { user, .. } => ("user", user),
        };
        match user.split_once('@') {
            Some((_, realm)) if !self.0.iter().any(|allowed| allowed == realm) => {
                Err(MaterialError::RealmNotAllowed { entry, realm: realm.to_owned(), allowed: self.in_words() })
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Returns the list for log messages.
    pub(super) fn in_words(&self) -> String {
        if self.0.is_empty() { "none, as krb5.conf has no default_realm".to_owned() } else { self.0.join(", ") }
    }
}

fn default_realm() -> Option<String> {
    let files = std::env::var_os("KRB5_CONFIG").filter(|files| !files.is_empty());
    let files = files.as_deref().unwrap_or(OsStr::new(KRB5_CONF));
    std::env::split_paths(files).find_map(|file| default_in(&text_of(&file)?))
}

/// Reads the file. Sites without Kerberos have none.
fn text_of(file: &Path) -> Option<String> {
    match std::fs::read_to_string(file) {
        Ok(text) => Some(text),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => {
            tracing::warn!(file = %file.display(), %error, "Kerberos configuration unreadable, default_realm unknown");
            None
        }
    }
}

/// Returns `default_realm` in `[libdefaults]`. Ignores included files.
fn default_in(text: &str) -> Option<String> {
    let mut within = false;
    for line in text.lines().map(str::trim) {
        if line.starts_with('[') {
            within = line.starts_with("[libdefaults]");
        } else if within
            && let Some((name, value)) = line.split_once('=')
            && name.trim_end().trim_end_matches('*') == "default_realm"
        {
            return Some(value.trim().trim_matches('"').to_owned()).filter(|realm| !realm.is_empty());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(realms: &[&str], user: &str) -> Result<(), MaterialError> {
        let realms = Realms(realms.iter().map(|&realm| realm.to_owned()).collect());
        realms.check(&Kerberos::Password { user: user.to_owned(), password: b"hunter2".to_vec() })
    }

    #[test]
    fn default_realm_is_read_from_libdefaults() {
        let text = "# default_realm = A\n[realms]\n default_realm = B\n[libdefaults]\n; default_realm = C\n \
                    default_realm = CERN.CH\n default_realm = D\n";
        assert_eq!(default_in(text).as_deref(), Some("CERN.CH"));
        assert_eq!(default_in("[libdefaults]\ndefault_realm*=\"CERN.CH\"").as_deref(), Some("CERN.CH"));
        for none in
            ["", "default_realm = A", "[libdefaults]\n default_realm =\n", "[libdefaults]\n dns_lookup_kdc = true"]
        {
            assert_eq!(default_in(none), None, "{none}");
        }
    }

    #[test]
    fn user_of_another_realm_is_refused_with_a_remedy() {
        for user in ["alice", "alice@CERN.CH", "alice/admin@CERN.CH", "alice@OTHER"] {
            assert_eq!(check(&["CERN.CH", "OTHER"], user), Ok(()), "{user}");
        }
        for user in ["x@EVIL.EXAMPLE", "x@cern.ch", "x@", "x@EVIL.EXAMPLE@CERN.CH", "x@CERN.CH@EVIL.EXAMPLE"] {
            let said = check(&["CERN.CH"], user).unwrap_err().to_string();
            assert!(said.contains("allowed: CERN.CH") && said.contains("--allow-realm"), "{said}");
            assert!(!said.contains("hunter2"), "{said}");
        }
        // If no realm is known, only names without a realm are allowed; the site's Kerberos puts them into its default
        // realm.
        assert!(check(&[], "alice@CERN.CH").unwrap_err().to_string().contains("no default_realm"));
        assert_eq!(check(&[], "alice"), Ok(()));
    }

    #[test]
    fn given_realms_replace_the_default() {
        assert_eq!(Realms::new(&["A".to_owned(), "B".to_owned()]).in_words(), "A, B");
    }
}
