//! Maps the end of a stream to the reaction of the agent.
use std::time::Duration;

use runnel_proto::REASON_METADATA;
use tonic::{Code, Status};

use crate::join::error_chain;

/// The reason for the end of a stream.
pub(super) enum StreamEnd {
    /// A planned end. Contains the delay before the reconnect.
    Planned(Duration),
    /// The hub refuses this agent.
    Refused(String),
    /// The hub has revoked this cluster.
    Revoked(String),
    /// The hub reports that the certificate has expired, independent of the local clock.
    Expired,
    /// Another session of this cluster has begun.
    Replaced,
    /// A temporary failure.
    Failed(String),
    /// The core was dropped.
    Over,
}

/// Maps a failure before the first frame. With TLS 1.3, a refused certificate shows only here.
pub(super) fn from_connect_error(status: &Status) -> StreamEnd {
    match status.code() {
        Code::Unknown | Code::Cancelled | Code::Unavailable | Code::Internal
            if status.message().contains("error") =>
        {
            let text = "the hub ended the connection before its first frame: it may not accept this agent's certificate; \
                        see the hub's log, and whether the MemberCluster is there and accepted";
            StreamEnd::Failed(format!("{text} ({})", error_chain(status)))
        }
        _ => refused(status),
    }
}

pub(super) fn refused(status: &Status) -> StreamEnd {
    let reason = status
        .metadata()
        .get(REASON_METADATA)
        .and_then(|reason| reason.to_str().ok());
    match status.code() {
        // The agent receives a status only from a hub whose certificate was verified.
        _ if matches!(reason, Some("not-accepted" | "revoked" | "gone")) => {
            StreamEnd::Revoked(status.message().to_owned())
        }
        _ if reason == Some("expired") => StreamEnd::Expired,
        _ if reason == Some("replaced") => StreamEnd::Replaced,
        _ if matches!(reason, Some("key-unknown" | "expired-too-long")) => {
            StreamEnd::Refused(status.message().to_owned())
        }
        Code::Unauthenticated | Code::PermissionDenied => StreamEnd::Refused(format!(
            "{}: see that the MemberCluster is there and has spec.accepted: true, or join again with a new join string",
            status.message()
        )),
        _ if status.message().is_empty() => {
            StreamEnd::Failed(format!("the stream ended ({:?})", status.code()))
        }
        _ => StreamEnd::Failed(status.message().to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::metadata::MetadataValue;

    fn status(code: Code, reason: &'static str) -> Status {
        let mut status = Status::new(code, "why");
        status
            .metadata_mut()
            .insert(REASON_METADATA, MetadataValue::from_static(reason));
        status
    }

    #[test]
    fn only_a_revocation_status_revokes() {
        for reason in ["not-accepted", "revoked", "gone"] {
            for code in [Code::FailedPrecondition, Code::Unauthenticated] {
                assert!(
                    matches!(
                        from_connect_error(&status(code, reason)),
                        StreamEnd::Revoked(_)
                    ),
                    "{reason}"
                );
                assert!(
                    matches!(refused(&status(code, reason)), StreamEnd::Revoked(_)),
                    "{reason}"
                );
            }
        }
        for reason in ["key-unknown", "expired-too-long"] {
            assert!(
                matches!(
                    refused(&status(Code::Unauthenticated, reason)),
                    StreamEnd::Refused(_)
                ),
                "{reason}"
            );
        }
        assert!(matches!(
            refused(&status(Code::Unauthenticated, "expired")),
            StreamEnd::Expired
        ));
        assert!(matches!(
            refused(&status(Code::Aborted, "replaced")),
            StreamEnd::Replaced
        ));
        for reason in ["", "Gone", "new-word"] {
            let ended = refused(&status(Code::Unauthenticated, reason));
            assert!(matches!(ended, StreamEnd::Refused(_)), "{reason}");
        }
        assert!(matches!(
            refused(&Status::unavailable("the hub is starting")),
            StreamEnd::Failed(_)
        ));
        assert!(matches!(
            refused(&Status::unauthenticated("no certificate")),
            StreamEnd::Refused(_)
        ));
    }
}
