//! The current divergences of the members.
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use runnel_proto::model::ClusterName;

use super::Divergence;

/// How long a refused client counts as present. Agents retry at least every minute.
const REMEMBERED: Duration = Duration::from_secs(180);

/// The newest divergence of each member.
#[derive(Debug, Default)]
pub struct Divergences {
    known: BTreeMap<ClusterName, (Divergence, Instant)>,
}

impl Divergences {
    /// A member has given rise to one. Returns whether that is news.
    pub fn set(&mut self, cluster: &ClusterName, divergence: Divergence, now: Instant) -> bool {
        let before = self
            .known
            .insert(cluster.clone(), (divergence.clone(), now));
        before.is_none_or(|(before, _)| before != divergence)
    }

    /// A member has connected without a divergence, but another client with its key may still be
    /// present. Returns whether this is a change.
    pub fn settle(&mut self, cluster: &ClusterName) -> bool {
        let settled = self
            .of(cluster)
            .is_some_and(|divergence| !divergence.is_of_other_client());
        if settled {
            self.known.remove(cluster);
        }
        settled
    }

    /// Forgets every divergence of a member.
    pub fn forget(&mut self, cluster: &ClusterName) {
        self.known.remove(cluster);
    }

    /// Returns the divergence of a member.
    pub fn of(&self, cluster: &ClusterName) -> Option<&Divergence> {
        self.known.get(cluster).map(|(divergence, _)| divergence)
    }

    /// Returns all divergences.
    pub fn all(&self) -> impl Iterator<Item = (&ClusterName, &Divergence)> {
        self.known
            .iter()
            .map(|(cluster, (divergence, _))| (cluster, divergence))
    }

    /// Drops the divergences of clients that have not returned, and returns their members. A
    /// divergence of a client without a member lasts only while the client retries.
    pub fn expire(
        &mut self,
        now: Instant,
        is_member: impl Fn(&ClusterName) -> bool,
    ) -> Vec<ClusterName> {
        let is_over = |name: &ClusterName, (divergence, at): &(Divergence, Instant)| {
            let is_refused = matches!(divergence, Divergence::SecondMembership { .. });
            let passes = is_refused || divergence.is_of_other_client() || !is_member(name);
            passes && now.saturating_duration_since(*at) >= REMEMBERED
        };
        let gone: Vec<_> = self
            .known
            .iter()
            .filter(|(name, known)| is_over(name, known))
            .map(|(name, _)| name.clone())
            .collect();
        self.known.retain(|name, _| !gone.contains(name));
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divergence_of_a_deleted_member_expires() {
        let (start, cluster) = (Instant::now(), ClusterName::from("eu-1"));
        let divergence = Divergence::Restored {
            by: "3/p".to_owned(),
            issued_at: jiff::Timestamp::UNIX_EPOCH,
        };
        let mut divergences = Divergences::default();
        assert!(divergences.set(&cluster, divergence.clone(), start));
        // The divergence of a member lasts until a user confirms it.
        assert!(
            divergences
                .expire(start + 10 * REMEMBERED, |_| true)
                .is_empty()
        );
        assert!(
            divergences
                .expire(start + REMEMBERED / 2, |_| false)
                .is_empty()
        );
        // An unknown client retries.
        assert!(!divergences.set(&cluster, divergence, start + REMEMBERED / 2));
        assert!(divergences.expire(start + REMEMBERED, |_| false).is_empty());
        assert_eq!(
            divergences.expire(start + 2 * REMEMBERED, |_| false),
            [cluster]
        );
        assert_eq!(divergences.all().count(), 0);
    }
}
