//! Calls to the hub's API server, with a time limit and an error type.
use std::future::Future;
use std::time::Duration;

/// The field manager of the hub's own Secrets, grants and records.
pub(crate) const FIELD_MANAGER: &str = "runnel-hub";
/// The time limit of one call to the API server.
const CALL_LIMIT: Duration = Duration::from_secs(15);

/// Why a call to the API server failed.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The API server returned an error, or could not be reached.
    #[error("cannot {action}: {source}")]
    Kube {
        /// The action, for the message.
        action: String,
        /// The error of the client.
        source: Box<kube::Error>,
    },
    /// The call exceeded the time limit.
    #[error("cannot {action}: the API server did not answer within {} seconds", CALL_LIMIT.as_secs())]
    Timeout {
        /// The action, for the message.
        action: String,
    },
}

impl ApiError {
    /// Returns the `Status` of the API server, if it returned one.
    pub(crate) fn status(&self) -> Option<&kube::core::Status> {
        match self {
            Self::Kube { source, .. } => match source.as_ref() {
                kube::Error::Api(status) => Some(status),
                _ => None,
            },
            Self::Timeout { .. } => None,
        }
    }

    pub(crate) fn is_conflict(&self) -> bool {
        self.status().is_some_and(|status| status.code == 409)
    }

    /// Whether the API server denied the call (403).
    pub fn is_forbidden(&self) -> bool {
        self.status().is_some_and(|status| status.code == 403)
    }

    pub(crate) fn is_not_found(&self) -> bool {
        self.status().is_some_and(|status| status.code == 404)
    }
}

/// Runs one call to the API server with a time limit.
pub(crate) async fn with_timeout<T>(
    action: impl Into<String>,
    call: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, ApiError> {
    match tokio::time::timeout(CALL_LIMIT, call).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(source)) => Err(ApiError::Kube {
            action: action.into(),
            source: Box::new(source),
        }),
        Err(_) => Err(ApiError::Timeout {
            action: action.into(),
        }),
    }
}
