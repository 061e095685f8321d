//! The facts of a session, for benchmarks with reports.

use jiff::Timestamp;
use runnel_hub_core::status::SessionFacts;

/// What an agent has told of its member.
pub fn facts() -> SessionFacts {
    SessionFacts {
        agent_version: "0.1.0".to_owned(),
        kubernetes_version: "v1.36.3".to_owned(),
        cluster_uid: "u".to_owned(),
        key: String::new(),
        boot_id: String::new(),
        certificate_expires: Timestamp::UNIX_EPOCH,
    }
}
