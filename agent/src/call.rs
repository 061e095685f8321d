//! Calls of the member's API server with a timeout, which kube's client does not have.
use std::time::Duration;

use kube::api::DynamicObject;
use runnel_agent_core::classify::CallError;
use runnel_transport::readable::Readable;

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
        kube::Error::SerdeError(_) => CallError::Unreadable,
        _ => CallError::Unanswered,
    }
}

/// Returns the object of an answer. A Status is one, too.
pub fn decoded(answer: &str) -> Call<DynamicObject> {
    match serde_json::from_str(answer) {
        Ok(Readable::Read(object)) => Ok(*object),
        Ok(Readable::TooManyNodes(_) | Readable::Unreadable(_)) => Err(CallError::TooLarge),
        Err(_) => Err(CallError::Unreadable),
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

#[cfg(test)]
mod tests {
    use runnel_agent_core::classify::copy_error;
    use runnel_proto::json_nodes::OBJECT_NODES;
    use runnel_proto::model::Reason;

    use super::*;

    #[test]
    fn answer_that_is_not_decoded_is_no_missing_answer() {
        let object = |data: &str| format!("{{\"metadata\":{{\"name\":\"a\"}},\"data\":{data}}}");
        let many = format!("[{}0]", "0,".repeat(OBJECT_NODES));
        let deep = format!("{}0{}", "[".repeat(200), "]".repeat(200));
        for (answer, reason, text) in [
            (object(&many), Reason::TooLarge, "60000 JSON values"),
            (object(&deep), Reason::TooLarge, "nested"),
            ("<html>".to_owned(), Reason::Unavailable, "cannot read"),
        ] {
            let refused = copy_error(&decoded(&answer).err().unwrap());
            assert_eq!(refused.reason, reason);
            assert!(refused.message.contains(text), "{}", refused.message);
        }
        let times = r#"{"metadata":{"name":"a","managedFields":[{"manager":"m","time":"9999-12-31T23:59:59Z"}]}}"#;
        assert_eq!(
            decoded(times).ok().unwrap().metadata.name.as_deref(),
            Some("a")
        );
        let status = r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success","details":{"name":"a"}}"#;
        assert!(
            decoded(status)
                .ok()
                .unwrap()
                .metadata
                .deletion_timestamp
                .is_none()
        );
    }
}
