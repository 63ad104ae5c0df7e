//! Which signing keys the daemons of a pool accept tokens of, by their own word.
//!
//! A daemon says the names of the files in `SEC_PASSWORD_DIRECTORY` to each client that is to authenticate itself. It may name files that were
//! there earlier (`m_cached_policy_ad` of HTCondor's `condor_secman.cpp`): the files of pods of managed pools are the same from their beginning.

use std::collections::BTreeSet;

use super::schedd::{NUMBERS, Schedd, unknown};
use crate::api::text::{WORDS, harmless};
use crate::machine::facts::{Unknown, Why};

const TOOL: &str = "condor_ping";
/// Attribute of a security session: names of the keys, separated by commas.
const KEYS: &str = "IssuerKeys";

impl Schedd {
    /// Names of the keys whose tokens the collector accepts.
    pub async fn issuer_keys_of_collector(&self) -> Result<BTreeSet<String>, Unknown> {
        self.issuer_keys(&["-type", "collector", "READ", "-af", KEYS]).await
    }

    /// Names of the keys whose tokens the schedd accepts.
    pub async fn issuer_keys_of_schedd(&self) -> Result<BTreeSet<String>, Unknown> {
        self.issuer_keys(&["-type", "schedd", "-name", self.name.as_str(), "READ", "-af", KEYS]).await
    }

    async fn issuer_keys(&self, arguments: &[&str]) -> Result<BTreeSet<String>, Unknown> {
        let output = self.question_to_collector(TOOL, arguments, NUMBERS).await?;
        let text = String::from_utf8_lossy(&output.stdout);
        read(&text).ok_or_else(|| {
            let said = harmless(text.trim(), WORDS);
            unknown(Why::Incomplete, format!("{TOOL} says {said:?} where the names of signing keys should be"))
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
    fn names_are_read_and_no_names_are_no_answer() {
        let names = |names: &[&str]| Some(names.iter().map(|name| (*name).to_owned()).collect());
        assert_eq!(read("htcpool, htcpool-2\n"), names(&["htcpool", "htcpool-2"]));
        assert_eq!(read("htcpool\n"), names(&["htcpool"]));
        for nothing in ["", "\n", "undefined\n"] {
            assert_eq!(read(nothing), None, "{nothing:?}");
        }
    }
}
