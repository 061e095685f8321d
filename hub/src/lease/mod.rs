//! One leader among the hub's replicas: an election over a `Lease`, and what the others do meanwhile.
//!
//! All replicas watch and read, so that each is warm; one of them leads, and only that one serves agents and writes to
//! the hub's API. The others pass the connections of agents on to it ([`ConnectionRouter`]), so it does not matter to which replica
//! a load balancer sends them.
//!
//! The timing is client-go's: who holds the Lease renews it every `retry`, and stops leading when no renewal succeeded
//! for `renew`; another takes it when it has *seen* no change for `lease`, by its own monotonic clock. As `renew` is
//! shorter than `lease` and is counted from before the request was sent, no two lead at one time, whatever the clocks of
//! the nodes say. The *epoch* is the Lease's uid and the *term* its `leaseTransitions`, raised by each process that takes
//! it: they stand in every frame, so that an agent notices a leader that was deposed. Every byte to an agent is fenced by
//! the deadline ([`Fenced`]), so a process that was paused for longer says nothing when it wakes.
//!
//! The Lease may be deleted, restored from a backup or filled with rubbish: a process never takes a term that it has seen
//! in that epoch, and who sees a held Lease vanish waits for as long as its holder may go on. Who has led stands in it too,
//! by which members notice a hub that was restored ([`runnel_hub_core::epoch`]); who leads and sees the Lease's version go back takes
//! the lead anew.
mod connection_router;
mod connections;
mod elect;
mod fence;
mod passed_on;

pub use connection_router::{Accepted, ConnectionRouter};
pub use connections::MemberKey;
pub use elect::{Election, HAND_OVER_LIMIT, holder};
pub use fence::{Caller, ConnectionGuard, ConnectionGuards, Fenced, RegisteredSession, fenced};
pub use runnel_hub_core::lease::{Holder, LEASE, Lead, Leader, Timing};
