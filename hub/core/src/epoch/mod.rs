//! Whether this hub is the one that its members have heard before: pure.
//!
//! A hub whose etcd was restored from an older backup cannot know it: nothing in its API says that there was more. Its
//! members can. Each time that a process takes the lead, the Lease gets an entry for it (its [`LeaderHistory`]): the term, a random
//! number, and the Lease's last version in the hands of the one before. While it leads, the hub tells its members what it
//! has come to, as a [`HistoryToken`]: epoch, term, random number and the version of its last renewal, sealed with the hub's
//! key. An agent stores the newest one and shows it when it connects. All that is ever told is at most what the next to
//! lead finds in the Lease, so a witness that says more was told by a hub whose time was lost ([`judge`]), however far the
//! versions have come since and whoever led then. A renewal comes every two seconds by default. What was told between a
//! backup and the next renewal (two seconds, or as long as the API server lets a renewal wait) may go unnoticed where
//! nothing was told after it. The Lease keeps the newest 256 entries, and of all others the highest version: what a member
//! remembers from before those is known, so that neither a long absence nor a hub that crashes again and again raises a
//! doubt. In return a restore goes unnoticed by a member that comes back more than 256 changes of the leader after it.
//!
//! The same tells two hubs with one identity apart: a witness that was told after this process took the lead, and not by
//! it, was told by another hub that lives. And as a witness names the `MemberCluster` and the cluster that it was told to,
//! it tells a cluster that joined anew under a name that was another's, and one that was made from the image of another.
//!
//! What follows from a [`Divergence`] is the session's and the status's affair: nothing that the hub says changes or removes a
//! copy ([`Divergence::restriction`]), the condition on the `MemberCluster` says what was seen, and an administrator confirms by the
//! annotation [`CONFIRMED`], whose value names exactly this doubt, so that none that was left behind confirms a later one.
mod divergence;
mod divergences;
mod history_token;
mod leader_history;
#[cfg(test)]
mod tests;

pub use divergence::{CONFIRMED, Divergence, Facts, judge};
pub use divergences::Divergences;
pub use history_token::{HistoryToken, TokenRecipient};
pub use leader_history::{LINE, LeaderHistory, LeaderPosition};
