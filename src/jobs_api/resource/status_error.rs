//! Answer instead of an object: Kubernetes' `Status`.

use htc_api::htcproc::{GROUP, RESOURCE};
use serde_json::{Value, json};

/// Reason why a request is refused, in the API server's format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusError {
    /// HTTP status.
    pub code: u16,
    /// Reason in one word: clients decide by it.
    pub reason: &'static str,
    /// What is wrong and what to do.
    pub message: String,
    /// The requested object.
    pub name: Option<String>,
    /// When to retry, in seconds. Clients do so by themselves.
    pub retry_after: Option<u32>,
}

impl StatusError {
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

    /// 400: the query has an unknown parameter.
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

    /// 404: the job exists, but not this part of it.
    #[must_use]
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(404, "NotFound", message)
    }

    /// 404: nothing is served at this path.
    #[must_use]
    pub fn no_such_path() -> Self {
        Self::new(404, "NotFound", "the server could not find the requested resource")
    }

    /// 405: the verb is not supported.
    #[must_use]
    pub fn not_allowed(message: impl Into<String>) -> Self {
        Self::new(405, "MethodNotAllowed", message)
    }

    /// 406: the requested form is not supported.
    #[must_use]
    pub fn not_acceptable() -> Self {
        Self::new(406, "NotAcceptable", "only application/json is served")
    }

    /// 409: the object has changed.
    #[must_use]
    pub fn conflict(message: impl Into<String>) -> Self {
        Self::new(409, "Conflict", message)
    }

    /// 410: the requested version is too old.
    #[must_use]
    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    /// 422: the request is understood, and cannot be done.
    #[must_use]
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(422, "Invalid", message)
    }

    /// 429: too many requests at once.
    #[must_use]
    pub fn too_many(message: impl Into<String>) -> Self {
        Self { retry_after: Some(2), ..Self::new(429, "TooManyRequests", message) }
    }

    /// 500: a fault of the operator.
    #[must_use]
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(500, "InternalError", message)
    }

    /// 503: retry in a moment.
    #[must_use]
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self { retry_after: Some(2), ..Self::new(503, "ServiceUnavailable", message) }
    }

    /// Returns the body.
    #[must_use]
    pub fn status(&self) -> Value {
        let mut details = json!({ "group": GROUP, "kind": RESOURCE });
        if let Some(name) = &self.name {
            details["name"] = name.clone().into();
        }
        if self.reason == "Invalid" {
            // kubectl prints the causes, and not the message.
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
