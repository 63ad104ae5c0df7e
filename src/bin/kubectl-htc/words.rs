//! What went wrong, in words for people. kube's own errors show Rust's values, thus they have no other way into a message.

/// What says why something failed.
pub(super) trait Words {
    /// The words.
    fn words(self) -> String;
}

impl Words for kube::Error {
    fn words(self) -> String {
        htc_operator::kubernetes::words(&self)
    }
}

/// Errors whose own words are for people.
macro_rules! plain {
    ($($kind:ty),*) => {
        $(impl Words for $kind {
            fn words(self) -> String {
                self.to_string()
            }
        })*
    };
}
plain!(&str, String, std::io::Error, serde_json::Error, http::Error, serde_saphyr::ser::Error);
