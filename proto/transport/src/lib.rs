//! What both processes need for I/O: how they reach and authenticate each other, and what each owes its operator.
//!
//! - [`api_client`]: the client for an API server.
//! - [`discovery`]: the kinds that an API server serves.
//! - [`grpc`]: the gRPC clients and servers of `sync.proto`.
//! - [`identity`]: who a peer is: SPIFFE names, fingerprints of keys, the join string.
//! - [`tls`]: TLS 1.3 settings of both ends, and proxies.
//! - [`ops`]: logs, metrics, health, shutdown.
//! - [`pages`]: lists of an API server, in pages that are bounded in bytes.
//! - [`readable`]: objects of an API server, each read by itself.
pub mod api_client;
pub mod discovery;
pub mod identity;
pub mod ops;
pub mod pages;
pub mod readable;
pub mod tls;

/// Clients and servers generated from `sync.proto`.
#[allow(missing_docs, clippy::all)]
pub mod grpc {
    tonic::include_proto!("runnel.v1");
}
