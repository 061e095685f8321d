//! One call to the hub's API server: its time limit, and what may go wrong.
use std::future::Future;
use std::time::Duration;

/// The field manager of the hub's own Secrets and grants.
pub(crate) const FIELD_MANAGER: &str = "runnel-hub";
/// A call to the API server that takes longer fails.
const CALL_LIMIT: Duration = Duration::from_secs(15);

/// Why the API server did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// It answered with an error, or not at all.
    #[error("cannot {action}: {source}")]
    Kube {
        /// What was tried.
        action: String,
        /// The answer.
        source: Box<kube::Error>,
    },
    /// It took too long.
    #[error("cannot {action}: the API server did not answer within {} seconds", CALL_LIMIT.as_secs())]
    Timeout {
        /// What was tried.
        action: String,
    },
}

impl ApiError {
    /// The API server's own answer, if there was one.
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

    /// Whether a right is missing.
    pub fn is_forbidden(&self) -> bool {
        self.status().is_some_and(|status| status.code == 403)
    }

    pub(crate) fn is_not_found(&self) -> bool {
        self.status().is_some_and(|status| status.code == 404)
    }
}

/// One call to the API server, within a time limit.
pub(crate) async fn within<T>(
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
