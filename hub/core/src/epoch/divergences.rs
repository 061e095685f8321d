//! The current divergences of the members.
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use runnel_proto::model::ClusterName;

use super::Divergence;

/// For how long somebody who was refused counts as being there: agents try again at least every minute.
const REMEMBERED: Duration = Duration::from_secs(180);

/// The doubts that there are about members, as they came last.
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

    /// A member has come and gives rise to none, but somebody else with its key may still be there. Returns whether that
    /// is news.
    pub fn settle(&mut self, cluster: &ClusterName) -> bool {
        let settled = self
            .of(cluster)
            .is_some_and(|divergence| !matches!(divergence, Divergence::Cloned { .. }));
        if settled {
            self.known.remove(cluster);
        }
        settled
    }

    /// Forgets whatever there was about a member.
    pub fn forget(&mut self, cluster: &ClusterName) {
        self.known.remove(cluster);
    }

    /// What there is about a member.
    pub fn of(&self, cluster: &ClusterName) -> Option<&Divergence> {
        self.known.get(cluster).map(|(divergence, _)| divergence)
    }

    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = (&ClusterName, &Divergence)> {
        self.known
            .iter()
            .map(|(cluster, (divergence, _))| (cluster, divergence))
    }

    /// Drops those about somebody who has not come again, and returns about which members. That a member is not there (any
    /// more) is somebody's doubt only as long as he comes.
    pub fn expire(
        &mut self,
        now: Instant,
        is_member: impl Fn(&ClusterName) -> bool,
    ) -> Vec<ClusterName> {
        let is_over = |name: &ClusterName, (divergence, at): &(Divergence, Instant)| {
            let passes = matches!(divergence, Divergence::Cloned { .. }) || !is_member(name);
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
        // About a member it stands until somebody confirms.
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
        // Somebody whom the hub does not know comes again.
        assert!(!divergences.set(&cluster, divergence, start + REMEMBERED / 2));
        assert!(divergences.expire(start + REMEMBERED, |_| false).is_empty());
        assert_eq!(
            divergences.expire(start + 2 * REMEMBERED, |_| false),
            [cluster]
        );
        assert_eq!(divergences.all().count(), 0);
    }
}
