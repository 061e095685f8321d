//! The doubts that there are about members.
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use runnel_proto::model::ClusterName;

use super::Doubt;

/// For how long somebody who was refused counts as being there: agents try again at least every minute.
const REMEMBERED: Duration = Duration::from_secs(180);

/// The doubts that there are about members, as they came last.
#[derive(Debug, Default)]
pub struct Doubts {
    known: BTreeMap<ClusterName, (Doubt, Instant)>,
}

impl Doubts {
    /// A member has given rise to one. Returns whether that is news.
    pub fn set(&mut self, cluster: &ClusterName, doubt: Doubt, now: Instant) -> bool {
        let before = self.known.insert(cluster.clone(), (doubt.clone(), now));
        before.is_none_or(|(before, _)| before != doubt)
    }

    /// A member has come and gives rise to none, but somebody else with its key may still be there. Returns whether that
    /// is news.
    pub fn settle(&mut self, cluster: &ClusterName) -> bool {
        let settled = self.of(cluster).is_some_and(|doubt| !matches!(doubt, Doubt::Cloned { .. }));
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
    pub fn of(&self, cluster: &ClusterName) -> Option<&Doubt> {
        self.known.get(cluster).map(|(doubt, _)| doubt)
    }

    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = (&ClusterName, &Doubt)> {
        self.known.iter().map(|(cluster, (doubt, _))| (cluster, doubt))
    }

    /// Drops those about somebody who has not come again, and returns about which members.
    pub fn expire(&mut self, now: Instant) -> Vec<ClusterName> {
        let over = |(doubt, at): &(Doubt, Instant)| {
            matches!(doubt, Doubt::Cloned { .. }) && now.saturating_duration_since(*at) >= REMEMBERED
        };
        let gone: Vec<_> = self.known.iter().filter(|(_, known)| over(known)).map(|(name, _)| name.clone()).collect();
        self.known.retain(|_, known| !over(known));
        gone
    }
}
