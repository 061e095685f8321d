//! Errors of the view API, as the `Status` objects of Kubernetes.
use axum::Json;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use serde_json::{Value, json};

/// After how many seconds a client may try again.
const RETRY_SECONDS: u32 = 5;

/// Why a request is refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum ViewError {
    /// A parameter is wrong.
    #[error("{0}")]
    BadRequest(String),
    /// A parameter is not supported here; clients fall back.
    #[error("{0}")]
    Invalid(String),
    /// The front proxy named no user.
    #[error("the request names no user: only the API server may forward requests")]
    Unauthenticated,
    /// The user lacks the right.
    #[error("{0}")]
    Forbidden(String),
    /// There is no such object or path.
    #[error("{0} not found")]
    NotFound(String),
    /// The request is about something that does not exist.
    #[error("{0}")]
    Missing(String),
    /// The resource has no such verb.
    #[error(
        "the resource does not support this method: `kubectl api-resources --api-group view.runnel.dev -o wide` lists the verbs"
    )]
    Method,
    /// The client cannot read what this API answers.
    #[error(
        "the view API answers in application/json only, with as=Table or as=PartialObjectMetadata"
    )]
    NotAcceptable,
    /// The object is in another format.
    #[error("the object has the content type {0:?}: send application/json")]
    MediaType(String),
    /// A member cluster did not answer.
    #[error("{0}")]
    Timeout(String),
    /// The changes since a version are not known any more.
    #[error("too old resource version: list again")]
    Expired,
    /// What changed since the first page of a list is not known any more. A client that accepts that goes on with this
    /// token.
    #[error("the list is too old to continue: list again")]
    ExpiredPage(String),
    /// The user, or all users together, do too much at a time.
    #[error("{0}")]
    Busy(String),
    /// This replica cannot answer now.
    #[error("{0}")]
    Unavailable(String),
}

impl ViewError {
    /// An internal failure.
    pub(super) fn broken() -> Self {
        Self::Unavailable("the hub could not answer: try again".to_owned())
    }

    fn code(&self) -> (StatusCode, &'static str) {
        match self {
            Self::BadRequest(_) => (StatusCode::BAD_REQUEST, "BadRequest"),
            Self::Invalid(_) => (StatusCode::UNPROCESSABLE_ENTITY, "Invalid"),
            Self::Unauthenticated => (StatusCode::UNAUTHORIZED, "Unauthorized"),
            Self::Forbidden(_) => (StatusCode::FORBIDDEN, "Forbidden"),
            Self::NotFound(_) | Self::Missing(_) => (StatusCode::NOT_FOUND, "NotFound"),
            Self::Method => (StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed"),
            Self::NotAcceptable => (StatusCode::NOT_ACCEPTABLE, "NotAcceptable"),
            Self::MediaType(_) => (StatusCode::UNSUPPORTED_MEDIA_TYPE, "UnsupportedMediaType"),
            Self::Timeout(_) => (StatusCode::GATEWAY_TIMEOUT, "Timeout"),
            Self::Expired | Self::ExpiredPage(_) => (StatusCode::GONE, "Expired"),
            Self::Busy(_) => (StatusCode::TOO_MANY_REQUESTS, "TooManyRequests"),
            Self::Unavailable(_) => (StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable"),
        }
    }

    /// Returns the `Status` object.
    pub(super) fn status(&self) -> Value {
        let (code, reason) = self.code();
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.to_string(),
            "reason": reason,
            "code": code.as_u16(),
        });
        match self {
            Self::Busy(_) => status["details"] = json!({"retryAfterSeconds": RETRY_SECONDS}),
            Self::ExpiredPage(token) => status["metadata"]["continue"] = json!(token),
            _ => {}
        }
        status
    }
}

impl IntoResponse for ViewError {
    fn into_response(self) -> Response {
        let mut response = (self.code().0, Json(self.status())).into_response();
        let header = match self {
            // The API server keeps connections. A new one leads to the replica that leads now.
            Self::Unavailable(_) => (header::CONNECTION, HeaderValue::from_static("close")),
            Self::Busy(_) => (header::RETRY_AFTER, HeaderValue::from(RETRY_SECONDS)),
            _ => return response,
        };
        response.headers_mut().insert(header.0, header.1);
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replica_that_cannot_answer_ends_the_connection() {
        let closes = |error: ViewError| {
            let response = error.into_response();
            response.headers().contains_key(header::CONNECTION)
        };
        assert!(closes(ViewError::Unavailable("starting".to_owned())));
        assert!(!closes(ViewError::NotFound("a delivery".to_owned())));
        assert!(!closes(ViewError::Expired));
    }

    #[test]
    fn busy_answer_names_the_time_of_the_next_attempt() {
        let error = ViewError::Busy("too many watches".to_owned());
        let status = error.status();
        assert_eq!(
            (&status["code"], &status["details"]["retryAfterSeconds"]),
            (&json!(429), &json!(RETRY_SECONDS))
        );
        let response = error.into_response();
        assert_eq!(response.headers()[header::RETRY_AFTER], "5");
    }
}
