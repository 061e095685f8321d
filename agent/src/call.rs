//! Calls of the member's API server. kube's client itself would wait for ever.
use std::time::Duration;

use crate::classify::CallError;

/// What a call gave.
pub type Call<T> = Result<T, CallError>;

/// How long an answer is waited for.
const LIMIT: Duration = Duration::from_secs(30);

/// The answer to a call. What is not answered within 30 seconds counts as unanswered.
pub async fn answered<T>(call: impl Future<Output = Result<T, kube::Error>>) -> Call<T> {
    Ok(tokio::time::timeout(LIMIT, call).await.map_err(|_| CallError::Unanswered)??)
}
