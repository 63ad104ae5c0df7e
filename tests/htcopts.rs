//! The corpus of the fuzz target of `spec.htcopts`, whose every file says in its name what becomes of it. No servers.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "clippy counts only functions with #[test] as tests, not what they share"
)]

mod htcopts {
    include!(concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/htcopts.rs"));
}

#[test]
fn corpus_of_the_fuzz_target_is_parsed_as_named() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/htcopts");
    let mut kinds = std::collections::BTreeSet::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let whole = std::fs::read(&path).unwrap();
        let taken: &str = match htcopts::take(&whole) {
            Ok(_) => "Taken",
            Err(error) => error.problem.into(),
        };
        assert_eq!(name.split('-').next(), Some(taken), "{name}");
        kinds.insert(taken);
        // Every beginning of it, and it with every byte changed, in the manner of a fuzzer.
        for at in 0..whole.len() {
            let _ = htcopts::take(&whole[..at]);
            for other in [b' ', b'"', b'\n', b'(', b'[', b'=', 0x80, whole[at] ^ 1] {
                let mut changed = whole.clone();
                changed[at] = other;
                let _ = htcopts::take(&changed);
            }
        }
    }
    assert_eq!(kinds.len(), 21, "{kinds:?}");
}
