//! Grants: which rules may send what to which clusters, and who may write rules.

#[path = "grants/live.rs"]
mod live;
#[path = "grants/matrix.rs"]
mod matrix;
#[path = "grants/oracle.rs"]
mod oracle;
