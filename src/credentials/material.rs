//! What a Secret, or the folders that Secrets are mounted into, must have in it to be credentials.

use std::fmt;

use super::token;

/// A Kerberos user and what shows that it is them.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Kerberos {
    /// `username` and `password`.
    Password {
        /// As `kinit` takes it: with or without `@REALM`.
        user: String,
        /// It is given to `kinit` on its standard input.
        password: Vec<u8>,
    },
    /// `user` and `keytab`.
    Keytab {
        /// As `kinit` takes it.
        user: String,
        /// The file, whole.
        keytab: Vec<u8>,
    },
}

/// Credentials, as they are given. They are never shown.
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

/// Most bytes of a password.
const PASSWORD: usize = 64 * 1024;
/// Most bytes of a token.
const TOKEN: usize = 8 * 1024;
/// Most bytes of a keytab.
const KEYTAB: usize = 64 * 1024;
/// Most characters of a user's name.
const NAME: usize = 256;

impl Material {
    /// From the entries of a Secret. The message says what is missing, and quotes nothing of what is there.
    pub(super) fn from_entries(get: impl Fn(&str) -> Option<Vec<u8>>) -> Result<Self, String> {
        let kerberos = match (get("user"), get("keytab"), get("username"), get("password")) {
            (Some(user), Some(keytab), _, _) => {
                Some(Kerberos::Keytab { user: name("user", user)?, keytab: at_most(KEYTAB, "keytab", keytab)? })
            }
            (_, _, Some(user), Some(password)) => {
                Some(Kerberos::Password { user: name("username", user)?, password: one_line("password", password)? })
            }
            (Some(_), None, _, _) => return Err("it has `user` but no `keytab`".to_owned()),
            (None, Some(_), _, _) => return Err("it has `keytab` but no `user`".to_owned()),
            (None, None, Some(_), None) => return Err("it has `username` but no `password`".to_owned()),
            (None, None, None, Some(_)) => return Err("it has `password` but no `username`".to_owned()),
            (None, None, None, None) => None,
        };
        let token = match get("token") {
            Some(bytes) => {
                let bytes = at_most(TOKEN, "token", bytes)?;
                Some(token::check(&bytes).map_err(|problem| format!("`token` {problem}"))?)
            }
            None => None,
        };
        Ok(Self { kerberos, token })
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.kerberos.is_none() && self.token.is_none()
    }
}

fn at_most(limit: usize, entry: &str, bytes: Vec<u8>) -> Result<Vec<u8>, String> {
    if bytes.len() <= limit {
        return Ok(bytes);
    }
    Err(format!("`{entry}` has {} bytes, and may have {limit} at most: put one that is smaller there", bytes.len()))
}

/// A line break at the end, as most editors leave it, is none of it.
fn one_line(entry: &str, mut bytes: Vec<u8>) -> Result<Vec<u8>, String> {
    for end in [b'\n', b'\r'] {
        if bytes.last() == Some(&end) {
            bytes.pop();
        }
    }
    let fits =
        !bytes.is_empty() && bytes.len() <= PASSWORD && !bytes.iter().any(|byte| [b'\n', b'\r', 0].contains(byte));
    if fits { Ok(bytes) } else { Err(format!("`{entry}` is empty, or more than one line")) }
}

fn name(entry: &str, bytes: Vec<u8>) -> Result<String, String> {
    let bytes = one_line(entry, bytes)?;
    let plain = |text: &String| {
        text.len() <= NAME && !text.starts_with('-') && text.chars().all(|c| c.is_ascii_graphic() && c != '\\')
    };
    let text = String::from_utf8(bytes).ok().filter(plain);
    text.ok_or_else(|| format!("`{entry}` is not the name of a Kerberos user: write USER or USER@REALM"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(entries: &[(&str, &str)]) -> Result<Material, String> {
        Material::from_entries(|wanted| {
            entries.iter().find(|(name, _)| *name == wanted).map(|(_, value)| value.as_bytes().to_vec())
        })
    }

    #[test]
    fn each_way_is_recognised() {
        let password = read(&[("username", "alice\n"), ("password", "se cret\r\n")]).unwrap();
        let expected = Kerberos::Password { user: "alice".to_owned(), password: b"se cret".to_vec() };
        assert!(password.kerberos == Some(expected) && password.token.is_none());
        let keytab = read(&[("user", "alice@CERN.CH"), ("keytab", "\u{5}\u{2}\n"), ("password", "x")]).unwrap();
        let expected = Kerberos::Keytab { user: "alice@CERN.CH".to_owned(), keytab: b"\x05\x02\n".to_vec() };
        assert!(keytab.kerberos == Some(expected));
        assert!(read(&[("other", "x")]).unwrap().is_empty());
    }

    #[test]
    fn what_is_too_large_is_refused_with_the_limit() {
        let keytab = |size: usize| read(&[("user", "alice"), ("keytab", "k".repeat(size).as_str())]);
        assert!(keytab(KEYTAB).is_ok());
        assert!(keytab(KEYTAB + 1).unwrap_err().contains("`keytab` has 65537 bytes, and may have 65536 at most"));
        let token = |size: usize| read(&[("token", "t".repeat(size).as_str())]).unwrap_err();
        assert!(token(TOKEN).contains("is no IDTOKEN"));
        assert!(token(TOKEN + 1).contains("`token` has 8193 bytes, and may have 8192 at most"));
    }

    #[test]
    fn what_is_wrong_is_said_and_nothing_is_quoted() {
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
            let said = read(entries).unwrap_err();
            assert!(said.contains(about) && !said.contains("hunter2"), "{entries:?}: {said}");
        }
        let material = read(&[("username", "alice"), ("password", "hunter2")]).unwrap();
        assert!(!format!("{material:?}").contains("hunter2"));
    }
}
