//! What is answered instead of an object: Kubernetes' `Status`.

use serde_json::{Value, json};

use super::{GROUP, RESOURCE};

/// Why a request is refused, as the API server says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The HTTP status.
    pub code: u16,
    /// Its reason, one word: clients decide by it.
    pub reason: &'static str,
    /// What is wrong and what to do.
    pub message: String,
    /// The object that was asked for.
    pub name: Option<String>,
    /// When to ask again, in seconds. Clients do so by themselves.
    pub retry_after: Option<u32>,
}

impl Failure {
    fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), name: None, retry_after: None }
    }

    /// 400: the request cannot be understood.
    #[must_use]
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    /// 400: a parameter of the query cannot have this value.
    #[must_use]
    pub fn wrong_parameter(name: &str, value: &str) -> Self {
        Self::bad_request(format!("the parameter {name} cannot be {value:?}"))
    }

    /// 400: the query has a parameter that nobody reads.
    #[must_use]
    pub fn unknown_parameter(name: &str) -> Self {
        Self::bad_request(format!("the parameter {name:?} is not known"))
    }

    /// 403: RBAC does not allow it.
    #[must_use]
    pub fn forbidden(message: impl Into<String>) -> Self {
        Self::new(403, "Forbidden", message)
    }

    /// 404: there is no such job.
    #[must_use]
    pub fn no_such_proc(name: &str) -> Self {
        Self::no_such(RESOURCE, name)
    }

    /// 404: there is no object of this resource and name.
    #[must_use]
    pub fn no_such(resource: &str, name: &str) -> Self {
        let message = format!("{resource}.{GROUP} \"{name}\" not found");
        Self { name: Some(name.to_owned()), ..Self::new(404, "NotFound", message) }
    }

    /// 404: there is the job, but not this of it.
    #[must_use]
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(404, "NotFound", message)
    }

    /// 404: nothing is served at this path.
    #[must_use]
    pub fn no_such_path() -> Self {
        Self::new(404, "NotFound", "the server could not find the requested resource")
    }

    /// 405: not this verb.
    #[must_use]
    pub fn not_allowed(message: impl Into<String>) -> Self {
        Self::new(405, "MethodNotAllowed", message)
    }

    /// 406: not in this form.
    #[must_use]
    pub fn not_acceptable() -> Self {
        Self::new(406, "NotAcceptable", "only application/json is served")
    }

    /// 409: it is no longer what it was.
    #[must_use]
    pub fn conflict(message: impl Into<String>) -> Self {
        Self::new(409, "Conflict", message)
    }

    /// 410: what is asked for is too old.
    #[must_use]
    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    /// 422: it is understood, and cannot be done.
    #[must_use]
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(422, "Invalid", message)
    }

    /// 429: too many at once.
    #[must_use]
    pub fn too_many(message: impl Into<String>) -> Self {
        Self { retry_after: Some(2), ..Self::new(429, "TooManyRequests", message) }
    }

    /// 500: a fault.
    #[must_use]
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(500, "InternalError", message)
    }

    /// 503: in a moment.
    #[must_use]
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self { retry_after: Some(2), ..Self::new(503, "ServiceUnavailable", message) }
    }

    /// The body.
    #[must_use]
    pub fn status(&self) -> Value {
        let mut details = json!({ "group": GROUP, "kind": RESOURCE });
        if let Some(name) = &self.name {
            details["name"] = name.clone().into();
        }
        if self.reason == "Invalid" {
            // kubectl shows these, and not the message.
            details["causes"] = json!([{ "reason": "FieldValueInvalid", "message": self.message, "field": "query" }]);
        }
        if let Some(seconds) = self.retry_after {
            details["retryAfterSeconds"] = seconds.into();
        }
        json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "details": details,
            "code": self.code,
        })
    }
}
