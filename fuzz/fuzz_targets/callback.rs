//! Any bytes as a request of a job: it is taken or refused for good, and nothing else happens.
#![no_main]

mod request {
    include!(concat!(env!("CARGO_MANIFEST_DIR"), "/request.rs"));
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ = request::take(data);
});
