//! Parses and checks the content of Secrets, or of the folders that they are mounted into.

use std::fmt;

use super::token;

/// A Kerberos user with its password or keytab.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Kerberos {
    /// `username` and `password`.
    Password {
        /// User as `kinit` expects it: with or without `@REALM`.
        user: String,
        /// Password for the standard input of `kinit`.
        password: Vec<u8>,
    },
    /// `user` and `keytab`.
    Keytab {
        /// User as `kinit` expects it.
        user: String,
        /// Content of the keytab.
        keytab: Vec<u8>,
    },
}

/// Credentials as the user supplied them. They are never printed.
#[derive(Clone, PartialEq, Eq, Default)]
pub(super) struct Material {
    pub(super) kerberos: Option<Kerberos>,
    pub(super) token: Option<String>,
}

impl fmt::Debug for Material {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Material(kerberos: {}, token: {})", self.kerberos.is_some(), self.token.is_some())
    }
}

/// Maximum length of a password, in bytes.
const PASSWORD: usize = 64 * 1024;
/// Maximum length of a token, in bytes.
const TOKEN: usize = 8 * 1024;
/// Maximum length of a keytab, in bytes.
const KEYTAB: usize = 64 * 1024;
/// Maximum length of a user's name, in characters.
const NAME: usize = 256;

/// Reason why the entries of a Secret cannot be used. Each says what to write, and never quotes a value that is secret.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum MaterialError {
    #[error("it has `{has}` but no `{lacks}`")]
    Incomplete { has: &'static str, lacks: &'static str },
    #[error("`{entry}` is too large: {bytes} bytes, the limit is {limit}")]
    TooLarge { entry: &'static str, bytes: usize, limit: usize },
    #[error("`{0}` is empty, or more than one line")]
    NotOneLine(&'static str),
    #[error("`{0}` is not the name of a Kerberos user: write USER or USER@REALM")]
    NotAUser(&'static str),
    #[error("`token` is no IDTOKEN: write what condor_token_create or condor_token_fetch prints, as it is")]
    NotAToken,
    #[error(
        "the Kerberos realm of `{entry}`, {realm}, is not allowed (allowed: {allowed}); use a user of an allowed realm, or ask \
         the operator's administrator to allow it with --allow-realm"
    )]
    RealmNotAllowed { entry: &'static str, realm: String, allowed: String },
}

impl Material {
    /// Parses the entries of a Secret.
    pub(super) fn from_entries(get: impl Fn(&str) -> Option<Vec<u8>>) -> Result<Self, MaterialError> {
        let incomplete = |has, lacks| Err(MaterialError::Incomplete { has, lacks });
        let kerberos = match (get("user"), get("keytab"), get("username"), get("password")) {
            (Some(user), Some(keytab), _, _) => {
                Some(Kerberos::Keytab { user: name("user", user)?, keytab: at_most(KEYTAB, "keytab", keytab)? })
            }
            (_, _, Some(user), Some(password)) => {
                Some(Kerberos::Password { user: name("username", user)?, password: one_line("password", password)? })
            }
            (Some(_), None, _, _) => return incomplete("user", "keytab"),
            (None, Some(_), _, _) => return incomplete("keytab", "user"),
            (None, None, Some(_), None) => return incomplete("username", "password"),
            (None, None, None, Some(_)) => return incomplete("password", "username"),
            (None, None, None, None) => None,
        };
        let token = match get("token") {
            Some(bytes) => {
                let bytes = at_most(TOKEN, "token", bytes)?;
                Some(token::parse(&bytes).ok_or(MaterialError::NotAToken)?)
            }
            None => None,
        };
        Ok(Self { kerberos, token })
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.kerberos.is_none() && self.token.is_none()
    }
}

fn at_most(limit: usize, entry: &'static str, bytes: Vec<u8>) -> Result<Vec<u8>, MaterialError> {
    if bytes.len() <= limit {
        return Ok(bytes);
    }
    Err(MaterialError::TooLarge { entry, bytes: bytes.len(), limit })
}

/// Removes the line break at the end that most editors add, and refuses any other.
fn one_line(entry: &'static str, mut bytes: Vec<u8>) -> Result<Vec<u8>, MaterialError> {
    for end in [b'\n', b'\r'] {
        if bytes.last() == Some(&end) {
            bytes.pop();
        }
    }
    let fits =
        !bytes.is_empty() && bytes.len() <= PASSWORD && !bytes.iter().any(|byte| [b'\n', b'\r', 0].contains(byte));
    if fits { Ok(bytes) } else { Err(MaterialError::NotOneLine(entry)) }
}

fn name(entry: &'static str, bytes: Vec<u8>) -> Result<String, MaterialError> {
    let bytes = one_line(entry, bytes)?;
    let plain = |text: &String| {
        text.len() <= NAME && !text.starts_with('-') && text.chars().all(|c| c.is_ascii_graphic() && c != '\\')
    };
    let text = String::from_utf8(bytes).ok().filter(plain);
    text.ok_or(MaterialError::NotAUser(entry))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(entries: &[(&str, &str)]) -> Result<Material, MaterialError> {
        Material::from_entries(|wanted| {
            entries.iter().find(|(name, _)| *name == wanted).map(|(_, value)| value.as_bytes().to_vec())
        })
    }

    #[test]
    fn each_kind_of_credentials_is_recognised() {
        let password = read(&[("username", "alice\n"), ("password", "se cret\r\n")]).unwrap();
        let expected = Kerberos::Password { user: "alice".to_owned(), password: b"se cret".to_vec() };
        assert!(password.kerberos == Some(expected) && password.token.is_none());
        let keytab = read(&[("user", "alice@CERN.CH"), ("keytab", "\u{5}\u{2}\n"), ("password", "x")]).unwrap();
        let expected = Kerberos::Keytab { user: "alice@CERN.CH".to_owned(), keytab: b"\x05\x02\n".to_vec() };
        assert!(keytab.kerberos == Some(expected));
        assert!(read(&[("other", "x")]).unwrap().is_empty());
    }

    #[test]
    fn oversized_entry_is_refused_with_the_limit() {
        let keytab = |size: usize| read(&[("user", "alice"), ("keytab", "k".repeat(size).as_str())]);
        assert!(keytab(KEYTAB).is_ok());
        let said = keytab(KEYTAB + 1).unwrap_err().to_string();
        assert!(said.contains("`keytab` is too large: 65537 bytes, the limit is 65536"), "{said}");
        let token = |size: usize| read(&[("token", "t".repeat(size).as_str())]).unwrap_err().to_string();
        assert!(token(TOKEN).contains("is no IDTOKEN"));
        assert!(token(TOKEN + 1).contains("`token` is too large: 8193 bytes, the limit is 8192"));
    }

    #[test]
    fn invalid_secret_is_refused_without_quoting_it() {
        for (entries, about) in [
            (&[("username", "alice")][..], "no `password`"),
            (&[("password", "hunter2")], "no `username`"),
            (&[("user", "alice")], "no `keytab`"),
            (&[("keytab", "hunter2")], "no `user`"),
            (&[("username", "al ice"), ("password", "hunter2")], "the name of a Kerberos user"),
            (&[("username", "-R"), ("password", "hunter2")], "the name of a Kerberos user"),
            (&[("username", "alice"), ("password", "\n")], "`password` is empty"),
            (&[("username", "alice"), ("password", "hunter2\nhunter2")], "more than one line"),
            (&[("token", "hunter2")], "`token`"),
        ] {
            let said = read(entries).unwrap_err().to_string();
            assert!(said.contains(about) && !said.contains("hunter2"), "{entries:?}: {said}");
        }
        let material = read(&[("username", "alice"), ("password", "hunter2")]).unwrap();
        assert!(!format!("{material:?}").contains("hunter2"));
    }
}
