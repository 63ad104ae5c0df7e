//! Any bytes as the answer of one of HTCondor's tools: it is read as JSON is, or counts as none.
#![no_main]

mod answer {
    include!(concat!(env!("CARGO_MANIFEST_DIR"), "/answer.rs"));
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ = answer::take(data);
});
