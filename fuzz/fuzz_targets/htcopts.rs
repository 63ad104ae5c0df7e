//! Any bytes as `spec.htcopts`: they are refused in plain words, or mean what they say.
#![no_main]

mod htcopts {
    include!(concat!(env!("CARGO_MANIFEST_DIR"), "/htcopts.rs"));
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ = htcopts::take(data);
});
