//! The contract between the hub and the agents, and what both processes have in common.
//!
//! - [`wire`]: the types generated from `proto/sync.proto`, whose comments are the protocol's specification.
//!   They stay at the edge: only [`convert`] and the two gRPC endpoints see them.
//! - [`model`]: the words of the domain (rules, sources, intents, revisions, reports). Pure: no I/O, no clock.
//! - [`convert`]: wire to model and back, total: any bytes give a value or a named refusal, never a panic.
//! - [`json_nodes`]: the nodes of a JSON text, counted before it is decoded.
//! - [`lease`]: who of several processes leads, by a Kubernetes Lease. Pure.
//!
//! The crate does no I/O and knows no clock; `runnel-transport` carries its messages.
#![cfg_attr(
    not(test),
    deny(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        clippy::disallowed_macros
    )
)]

pub mod closed_list;
pub mod convert;
pub mod json_nodes;
pub mod lease;
pub mod model;

/// Types generated from `sync.proto`.
#[allow(missing_docs, clippy::all)]
pub mod wire {
    include!(concat!(env!("OUT_DIR"), "/runnel.v1.rs"));

    impl std::fmt::Debug for Intent {
        fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            out.debug_struct("Intent")
                .field("source", &self.source)
                .field("size", &self.size)
                .finish_non_exhaustive()
        }
    }

    impl std::fmt::Debug for SnapshotBegin {
        fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            out.debug_struct("SnapshotBegin")
                .field("hub_id", &self.hub_id)
                .finish_non_exhaustive()
        }
    }

    impl std::fmt::Debug for JoinRequest {
        fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            out.debug_struct("JoinRequest")
                .field("cluster", &self.cluster)
                .finish_non_exhaustive()
        }
    }
}

/// The oldest protocol version of this build.
pub const PROTOCOL_MIN: u32 = 1;
/// The newest protocol version of this build.
pub const PROTOCOL_MAX: u32 = 1;

/// The request metadata with the agent's history token; see `sync.proto`.
pub const HISTORY_TOKEN_METADATA: &str = "runnel-history-token-bin";
/// The longest history token, in bytes.
pub const HISTORY_TOKEN_LIMIT: usize = 256;

/// The status metadata with the reason of a refusal, a word from the list in `sync.proto`.
pub const REASON_METADATA: &str = "runnel-reason";

/// The maximum size of a gRPC message, in bytes.
/// The largest object of an API server (1.5 MiB) fits compressed; agent frames are far smaller
/// ([`model::AGENT_FRAME_LIMIT`]).
pub const FRAME_LIMIT: usize = 4 * 1024 * 1024;
