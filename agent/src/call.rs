//! Calls of the member's API server. kube's client itself would wait for ever.
use std::time::Duration;

use runnel_agent_core::classify::CallError;

/// What a call gave.
pub type Call<T> = Result<T, CallError>;

/// Why a write was not sent: this process does not hold the Lease.
#[derive(Debug, thiserror::Error)]
#[error("this process does not hold the Lease")]
pub struct NotActive;

/// The server takes no more just now, and asks to wait for so long.
#[derive(Debug, thiserror::Error)]
#[error("the API server throttles")]
pub struct Throttled(pub Duration);

/// Reads kube's error. Its text is dropped: a parse error quotes what it could not parse.
pub fn call_error(error: kube::Error) -> CallError {
    match error {
        kube::Error::Api(status) => CallError::Refused(status),
        kube::Error::Service(error) if error.is::<NotActive>() => CallError::NotActive,
        kube::Error::Service(error) => error
            .downcast_ref::<Throttled>()
            .map_or(CallError::Unanswered, |error| CallError::Throttled(error.0)),
        _ => CallError::Unanswered,
    }
}

/// How long an answer is waited for.
const LIMIT: Duration = Duration::from_secs(30);

/// The answer to a call. What is not answered within 30 seconds counts as unanswered.
pub async fn with_timeout<T>(call: impl Future<Output = Result<T, kube::Error>>) -> Call<T> {
    tokio::time::timeout(LIMIT, call)
        .await
        .map_err(|_| CallError::Unanswered)?
        .map_err(call_error)
}
