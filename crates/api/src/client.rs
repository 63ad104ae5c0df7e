//! Readable messages for errors of clients of the API server.

/// Returns a readable message of an error. kube's own message for an answer of the API server includes the Rust debug
/// output of that answer.
#[must_use]
pub fn describe_error(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        kube::Error::Api(status) if !status.reason.is_empty() => format!("{} ({})", status.reason, status.code),
        kube::Error::Api(status) => format!("the API server answers with {}", status.code),
        kube::Error::Service(source) => chain("cannot reach the API server", &**source),
        kube::Error::HyperError(source) => chain("cannot reach the API server", source),
        other => other.to_string(),
    }
}

/// Joins `what`, an error and its sources. Sources whose message is already included are left out.
#[must_use]
pub fn chain(what: &str, error: &(dyn std::error::Error + 'static)) -> String {
    let mut said = what.to_owned();
    let mut next = Some(error);
    while let Some(error) = next {
        let words = error.to_string();
        if !said.contains(&words) {
            said = format!("{said}: {words}");
        }
        next = error.source();
    }
    said
}
