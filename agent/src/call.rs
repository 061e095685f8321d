//! Calls of the member's API server with a timeout, which kube's client does not have.
use std::time::Duration;

use runnel_agent_core::classify::CallError;

/// The result of a call.
pub type Call<T> = Result<T, CallError>;

/// The error of a write that was not sent, because this process does not hold the Lease.
#[derive(Debug, thiserror::Error)]
#[error("this process does not hold the Lease")]
pub struct NotActive;

/// The server is throttling requests, and asks for this delay.
#[derive(Debug, thiserror::Error)]
#[error("the API server throttles")]
pub struct Throttled(pub Duration);

/// Converts kube's error. Its text is dropped, because a parse error quotes its input.
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

/// Timeout of a call.
const LIMIT: Duration = Duration::from_secs(30);

/// Returns the answer to a call, or [`CallError::Unanswered`] after 30 seconds.
pub async fn with_timeout<T>(call: impl Future<Output = Result<T, kube::Error>>) -> Call<T> {
    tokio::time::timeout(LIMIT, call)
        .await
        .map_err(|_| CallError::Unanswered)?
        .map_err(call_error)
}
