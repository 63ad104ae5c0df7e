//! Error messages for people. kube's own errors contain Rust's values, so they reach messages only through this
//! module.

use kube::config::{InferConfigError, KubeconfigError};

/// Something that describes why an operation failed.
pub(super) trait Describe {
    fn describe(self) -> String;
}

impl Describe for kube::Error {
    fn describe(self) -> String {
        htc_api::client::describe_error(&self)
    }
}

/// Implements [`Describe`] for errors whose own text is for people.
macro_rules! plain {
    ($($kind:ty),*) => {
        $(impl Describe for $kind {
            fn describe(self) -> String {
                self.to_string()
            }
        })*
    };
}
plain!(&str, String, std::io::Error, serde_json::Error, http::Error, serde_saphyr::ser::Error);
plain!(KubeconfigError, InferConfigError);
