// What the fuzz target and the test of its corpus share.

use htcondor::fuzzing::{ParsedAd, read};

/// Longest reason that is kept, in characters, and what its end may say.
const REASON: usize = 1100;

/// Reads `data` as the answer of `condor_q -json`. In which pieces it comes makes no difference; a list of ads that is JSON is read, with
/// one ad for each; and what people will see of an ad is short and harmless.
pub(crate) fn take(data: &[u8]) -> Result<Vec<ParsedAd>, &'static str> {
    let whole = read(data, data.len());
    for piece in [1, 3] {
        assert_eq!(read(data, piece), whole);
    }
    if let Ok(serde_json::Value::Array(all)) = serde_json::from_slice(data)
        && all.iter().all(serde_json::Value::is_object)
    {
        assert_eq!(whole.as_ref().map(Vec::len), Ok(all.len()));
    }
    for ad in whole.iter().flatten().filter_map(|printed| printed.ad.as_ref()) {
        for reason in [&ad.hold.reason, &ad.remove_reason] {
            assert!(reason.chars().count() <= REASON && !reason.contains(char::is_control), "{reason:?}");
        }
    }
    whole
}
