//! Signing keys whose tokens a pool's daemons accept, as the daemons report them.
//!
//! A daemon sends the file names of its `SEC_PASSWORD_DIRECTORY` to each client that is to authenticate. It may also
//! name files that were there earlier (`m_cached_policy_ad` of HTCondor's `condor_secman.cpp`). In pods of managed
//! pools these files never change.

use std::collections::BTreeSet;

use htc_machine::facts::{QueryError, QueryErrorKind};
use htc_machine::text::{MAX_MESSAGE, sanitize};

use super::schedd::{NUMBERS, Schedd, unknown};

const TOOL: &str = "condor_ping";
/// Attribute of a security session: names of keys, separated by commas.
const KEYS: &str = "IssuerKeys";

impl Schedd {
    /// Returns the names of the keys whose tokens the collector accepts.
    pub async fn issuer_keys_of_collector(&self) -> Result<BTreeSet<String>, QueryError> {
        self.issuer_keys(&["-type", "collector", "READ", "-af", KEYS]).await
    }

    /// Returns the names of the keys whose tokens the schedd accepts.
    pub async fn issuer_keys_of_schedd(&self) -> Result<BTreeSet<String>, QueryError> {
        self.issuer_keys(&["-type", "schedd", "-name", self.name.as_str(), "READ", "-af", KEYS]).await
    }

    async fn issuer_keys(&self, arguments: &[&str]) -> Result<BTreeSet<String>, QueryError> {
        let output = self.ask_collector(TOOL, arguments, NUMBERS).await?;
        let text = String::from_utf8_lossy(&output.stdout);
        read(&text).ok_or_else(|| {
            let said = sanitize(text.trim(), MAX_MESSAGE);
            unknown(
                QueryErrorKind::Incomplete,
                format!("{TOOL} says {said:?} where the names of signing keys should be"),
            )
        })
    }
}

fn read(text: &str) -> Option<BTreeSet<String>> {
    let names: BTreeSet<String> =
        text.split([',', ' ', '\n']).filter(|name| !name.is_empty()).map(str::to_owned).collect();
    (!names.is_empty() && !names.contains("undefined")).then_some(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_names_are_parsed_and_an_empty_list_is_no_answer() {
        let names = |names: &[&str]| Some(names.iter().map(|name| (*name).to_owned()).collect());
        assert_eq!(read("htcpool, htcpool-2\n"), names(&["htcpool", "htcpool-2"]));
        assert_eq!(read("htcpool\n"), names(&["htcpool"]));
        for nothing in ["", "\n", "undefined\n"] {
            assert_eq!(read(nothing), None, "{nothing:?}");
        }
    }
}
