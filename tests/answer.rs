//! The corpus of the fuzz target of what HTCondor's tools print, whose every file says in its name what becomes of it. No servers.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "clippy counts only functions with #[test] as tests, not what they share"
)]

mod answer {
    include!(concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/answer.rs"));
}

#[test]
fn corpus_of_the_fuzz_target_is_parsed_as_named() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/answer");
    let mut kinds = std::collections::BTreeSet::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let whole = std::fs::read(&path).unwrap();
        let taken = match answer::take(&whole) {
            Ok(_) => "Read",
            Err("it is empty") => "Empty",
            Err("it is cut short") => "CutShort",
            Err("it is not a list of ads") => "Broken",
            Err(other) => panic!("{name}: {other}"),
        };
        assert_eq!(name.split('-').next(), Some(taken), "{name}");
        kinds.insert(taken);
        // Every beginning of it, and it with every byte changed, in the manner of a fuzzer.
        for at in 0..whole.len().min(200) {
            let _ = answer::take(&whole[..at]);
            for other in [b' ', b'"', b'\\', b'{', b'[', b']', b',', 0x80, whole[at] ^ 1] {
                let mut changed = whole.clone();
                changed[at] = other;
                let _ = answer::take(&changed);
            }
        }
    }
    assert_eq!(kinds.len(), 4, "{kinds:?}");
}
