//! One leader among the hub's replicas: an election over a `Lease`, and the work of the standbys.
//!
//! All replicas watch and read, so that each can take over at once. Only the leader serves agents
//! and writes to the hub's API. The others forward the connections of agents to it
//! ([`ConnectionRouter`]), so a load balancer may send them to any replica.
//!
//! The timing is client-go's. The holder renews the Lease every `retry`, and stops leading when no
//! renewal succeeded for `renew`. Another replica takes the Lease when it has *observed* no change
//! for `lease`, by its own monotonic clock. `renew` is shorter than `lease` and is counted from
//! before the request was sent, so no two replicas lead at one time, independent of the clocks of
//! the nodes. The *epoch* is the Lease's uid and the *term* its `leaseTransitions`, raised by each
//! process that takes it. Every frame has both, so that an agent detects a deposed leader. Every
//! byte to an agent is fenced by the deadline ([`Fenced`]), so a process that was paused for longer
//! sends nothing when it continues.
//!
//! The Lease may be deleted, restored from a backup or overwritten. A process never takes a term
//! that it has observed in that epoch. After it has observed that a held Lease was deleted, it
//! waits for as long as its holder may continue. The Lease also has the history of leaders, by
//! which members detect a restored hub ([`runnel_hub_core::epoch`]). A leader that observes a lower
//! version of the Lease takes the lead again.
mod connection_guard;
mod connection_router;
mod connections;
mod elect;
mod fence;
mod forward_header;

pub use connection_guard::{ConnectionGuard, MemberKey, RegisteredSession};
pub use connection_router::{ConnectionRouter, Listeners, LocalConnections};
pub use elect::{Election, HAND_OVER_LIMIT, holder};
pub use fence::{Caller, ConnectionGuards, Fenced, fenced};
pub use runnel_hub_core::lease::{Holder, LEASE, Lead, Leader, Timing};
