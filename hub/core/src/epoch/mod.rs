//! Recognizes a hub that was restored from a backup, or copied: pure.
//!
//! A hub whose etcd was restored from an older backup cannot detect it: its API contains no trace
//! of the lost changes. Its members can. Each process that takes the lead adds an entry to the
//! Lease (its [`LeaderHistory`]): the term, a random number, and the version of the Lease that the
//! former leader reached. A leader that releases the Lease writes that version itself, because the
//! release makes a higher one. While a hub leads, it sends its members its position as a
//! [`HistoryToken`]: epoch, term, random number and the version of its last renewal, sealed with
//! the hub's key. An agent stores the newest one and sends it when it connects. A token never has a
//! higher version than the next leader finds in the Lease. So a token with a higher one comes from
//! a hub whose time was lost ([`judge`]), however many versions and leaders follow. A renewal comes
//! every two seconds by default. What was sent between a backup and the next renewal (two seconds,
//! or as long as the API server delays a renewal) may go unnoticed where nothing was sent after it.
//! The Lease keeps the newest 256 entries, and of all others the highest version: older tokens
//! count as known, so that neither a long absence nor a hub that crashes again and again is a
//! divergence. In return a member that comes back more than 256 changes of the leader after a
//! restore does not notice it.
//!
//! The token also tells two hubs with one identity apart. A token that was sent after this process
//! took the lead, and not by this process, proves another running hub. A token names the
//! `MemberCluster` and the cluster of its agent. So it shows a cluster that joined again under the
//! name of another one, and a cluster that was created from the image of another one.
//!
//! The session and the status act on a [`Divergence`]. The hub neither changes nor removes a copy
//! there ([`Divergence::restriction`]), and a condition on the `MemberCluster` describes it. An
//! administrator confirms it by the annotation [`CONFIRMED`]. Its value names exactly this
//! divergence, so that an old annotation confirms no later one.
mod divergence;
mod divergences;
mod history_token;
mod leader_history;
#[cfg(test)]
mod tests;

pub use divergence::{CONFIRMED, Divergence, Facts, REPLACES, judge};
pub use divergences::Divergences;
pub use history_token::{HistoryToken, TokenRecipient};
pub use leader_history::{LEADER_HISTORY, LeaderHistory, LeaderPosition};
