//! Calls of the member's API server. kube's client itself would wait for ever.
use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{Method, Request, StatusCode};
use kube::Client;
use kube::client::Body;

use crate::lease::WriteRight;
use runnel_agent_core::classify::CallError;

/// What a call gave.
pub type Call<T> = Result<T, CallError>;

/// Why a write was not sent: this process does not hold the Lease.
#[derive(Debug, thiserror::Error)]
#[error("this process does not hold the Lease")]
struct NotActive;

/// The server takes no more just now, and asks to wait for so long.
#[derive(Debug, thiserror::Error)]
#[error("the API server throttles")]
struct Throttled(Duration);

/// Reads kube's error. Its text is dropped: a parse error quotes what it could not parse.
pub fn call_error(error: kube::Error) -> CallError {
    match error {
        kube::Error::Api(status) => CallError::Refused(status),
        kube::Error::Service(error) if error.is::<NotActive>() => CallError::NotActive,
        kube::Error::Service(error) => {
            error.downcast_ref::<Throttled>().map_or(CallError::Unanswered, |error| CallError::Throttled(error.0))
        }
        _ => CallError::Unanswered,
    }
}

/// How long an answer is waited for.
const LIMIT: Duration = Duration::from_secs(30);

/// The answer to a call. What is not answered within 30 seconds counts as unanswered.
pub async fn with_timeout<T>(call: impl Future<Output = Result<T, kube::Error>>) -> Call<T> {
    tokio::time::timeout(LIMIT, call).await.map_err(|_| CallError::Unanswered)?.map_err(call_error)
}

/// A client that sends writes only while the right to write holds. Where the API server throttles a write, the error
/// carries how long it asks to wait.
pub fn guarded(client: Client, right: WriteRight) -> Client {
    let namespace = client.default_namespace().to_owned();
    let service = tower::service_fn(move |request: Request<Body>| {
        let (client, right) = (client.clone(), right.clone());
        async move {
            let writes = request.method() != Method::GET;
            if writes && !right.holds() {
                return Err(kube::Error::Service(Box::new(NotActive)));
            }
            let response = client.send(request).await?;
            if writes && response.status() == StatusCode::TOO_MANY_REQUESTS {
                let after = response.headers().get(RETRY_AFTER).and_then(|after| after.to_str().ok()?.parse().ok());
                return Err(kube::Error::Service(Box::new(Throttled(Duration::from_secs(after.unwrap_or(1))))));
            }
            Ok(response)
        }
    });
    Client::new(service, namespace)
}
