//! Of which Kerberos realms the users of Secrets may be. Whoever names a realm chooses the KDC that is asked, if DNS says where
//! it is.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::path::Path;

use super::material::Kerberos;

/// Where the default realm is written unless `KRB5_CONFIG` says otherwise.
const KRB5_CONF: &str = "/etc/krb5.conf";

/// The realms that are allowed.
#[derive(Debug)]
pub(super) struct Realms(Vec<String>);

impl Realms {
    /// These; if there are none, the default realm of `krb5.conf`. If that cannot be read, no user with a realm in the name is
    /// allowed.
    pub(super) fn new(allowed: &[String]) -> Self {
        if allowed.is_empty() { Self(default_realm().into_iter().collect()) } else { Self(allowed.to_vec()) }
    }

    /// Whether this user may be used; if not, what to do. A name without a realm is in the default realm, which the site
    /// chooses.
    pub(super) fn check(&self, kerberos: &Kerberos) -> Result<(), String> {
        let (entry, user) = match kerberos {
            Kerberos::Password { user, .. } => ("username", user),
            Kerberos::Keytab { user, .. } => ("user", user),
        };
        match user.split_once('@') {
            Some((_, realm)) if !self.0.iter().any(|allowed| allowed == realm) => Err(format!(
                "the Kerberos realm of `{entry}`, {realm}, is not allowed (allowed: {}); use a user of an allowed realm, or ask \
                 the operator's administrator to allow it with --allowed-realms",
                self.in_words()
            )),
            Some(_) | None => Ok(()),
        }
    }

    /// The list, for people.
    pub(super) fn in_words(&self) -> String {
        if self.0.is_empty() { "none, as krb5.conf has no default_realm".to_owned() } else { self.0.join(", ") }
    }
}

fn default_realm() -> Option<String> {
    let files = std::env::var_os("KRB5_CONFIG").filter(|files| !files.is_empty());
    let files = files.as_deref().unwrap_or(OsStr::new(KRB5_CONF));
    std::env::split_paths(files).find_map(|file| default_in(&text_of(&file)?))
}

/// Sites without Kerberos have no such file.
fn text_of(file: &Path) -> Option<String> {
    match std::fs::read_to_string(file) {
        Ok(text) => Some(text),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => {
            tracing::warn!("cannot read {}, so its default_realm is not known: {error}", file.display());
            None
        }
    }
}

/// `default_realm` in `[libdefaults]`. What the file includes is not looked at.
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

    fn check(realms: &[&str], user: &str) -> Result<(), String> {
        let realms = Realms(realms.iter().map(|&realm| realm.to_owned()).collect());
        realms.check(&Kerberos::Password { user: user.to_owned(), password: b"hunter2".to_vec() })
    }

    #[test]
    fn the_default_realm_is_that_of_libdefaults() {
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
    fn who_is_of_another_realm_is_refused_with_the_next_step() {
        for user in ["alice", "alice@CERN.CH", "alice/admin@CERN.CH", "alice@OTHER"] {
            assert_eq!(check(&["CERN.CH", "OTHER"], user), Ok(()), "{user}");
        }
        for user in ["x@EVIL.EXAMPLE", "x@cern.ch", "x@", "x@EVIL.EXAMPLE@CERN.CH", "x@CERN.CH@EVIL.EXAMPLE"] {
            let said = check(&["CERN.CH"], user).unwrap_err();
            assert!(said.contains("allowed: CERN.CH") && said.contains("--allowed-realms"), "{said}");
            assert!(!said.contains("hunter2"), "{said}");
        }
        // Where no realm is known, none is allowed but the one that the site's Kerberos takes by itself.
        assert!(check(&[], "alice@CERN.CH").unwrap_err().contains("no default_realm"));
        assert_eq!(check(&[], "alice"), Ok(()));
    }

    #[test]
    fn what_is_given_replaces_the_default() {
        assert_eq!(Realms::new(&["A".to_owned(), "B".to_owned()]).in_words(), "A, B");
    }
}
