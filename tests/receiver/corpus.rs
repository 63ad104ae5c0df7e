//! The corpus of the fuzz target, whose every file says in its name what becomes of it.

mod request {
    include!(concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/request.rs"));
}

#[test]
fn the_corpus_of_the_fuzz_target_is_taken_as_its_names_say() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/callback");
    let mut kinds = std::collections::BTreeSet::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let whole = std::fs::read(&path).unwrap();
        let taken = match request::take(&whole) {
            Ok(_) => "Taken",
            Err(refusal) => refusal.into(),
        };
        assert_eq!(name.split('-').next(), Some(taken), "{name}");
        kinds.insert(taken);
        // Every beginning of it, and it with every byte changed, in the manner of a fuzzer.
        for at in 0..whole.len() {
            let _ = request::take(&whole[..at]);
            for other in [0, b'"', b'\n', b'}', 0x80, whole[at] ^ 1] {
                let mut changed = whole.clone();
                changed[at] = other;
                let _ = request::take(&changed);
            }
        }
    }
    assert_eq!(kinds.len(), 6, "{kinds:?}");
}
