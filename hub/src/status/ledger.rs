//! What the agents last said.
use std::collections::BTreeMap;
use std::time::Instant;

use jiff::Timestamp;
use runnel_proto::model::{
    ClusterName, Counts, Failure, RuleName, RuleState, RuleUid, SetDigest, Takeovers, TermsDigest,
};

use super::SILENCE;
use crate::index::Holding;

/// An agent's last word about one rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Account {
    pub(super) intents_digest: SetDigest,
    pub(super) terms_digest: Option<TermsDigest>,
    pub(super) intents: u32,
    pub(super) counts: Counts,
    pub(super) failures: Vec<Failure>,
    /// What is to be overwritten, as it was when nothing else was under way: what is being found out is not all of it.
    pub(super) takeovers: Option<Takeovers>,
    /// How many of the copies that failed wait to be overwritten.
    pub(super) waiting_takeovers: u32,
}

/// What a session says about its member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionFacts {
    /// Version of the agent.
    pub agent_version: String,
    /// Version of the member's API server.
    pub kubernetes_version: String,
    /// Uid of the member's `kube-system` namespace.
    pub cluster_uid: String,
    /// The protocol that is spoken.
    pub protocol: u32,
    /// The fingerprint of the key that it is held with.
    pub key: String,
    /// When the certificate of the session expires.
    pub certificate_expires: Timestamp,
}

#[derive(Default)]
struct Presence {
    session: Option<SessionFacts>,
    /// Which session speaks for the cluster; what an older one still says is void.
    number: u64,
    lost_at: Option<Instant>,
    /// Whether its silence has been told.
    silence_told: bool,
    accounts: BTreeMap<RuleUid, Account>,
    /// Rules that the agent holds and how they are called.
    names: BTreeMap<RuleUid, RuleName>,
}

/// What the agents last said, by cluster.
#[derive(Default)]
pub struct Ledger {
    clusters: BTreeMap<ClusterName, Presence>,
    /// What the rules of clusters that leave retain there.
    retained: BTreeMap<ClusterName, Vec<(RuleName, u32)>>,
}

impl Ledger {
    /// An agent is connected and says all that it holds; what it said before is void. `number` tells its session from
    /// later ones.
    pub fn connected(&mut self, cluster: &ClusterName, number: u64, facts: SessionFacts, states: Vec<RuleState>) {
        let presence = self.clusters.entry(cluster.clone()).or_default();
        presence.session = Some(facts);
        presence.number = number;
        presence.accounts.clear();
        presence.names.clear();
        presence.lost_at = None;
        presence.silence_told = false;
        for state in states {
            self.report(cluster, number, state);
        }
    }

    /// An agent's session ended.
    pub fn disconnected(&mut self, cluster: &ClusterName, number: u64, now: Instant) {
        if let Some(presence) = self.clusters.get_mut(cluster).filter(|presence| presence.number == number) {
            presence.lost_at.get_or_insert(now);
        }
    }

    /// The clusters that have become silent since the last call.
    pub fn take_silenced(&mut self, now: Instant) -> Vec<ClusterName> {
        let mut silent = Vec::new();
        for (cluster, presence) in &mut self.clusters {
            let over = presence.lost_at.is_some_and(|lost| now.saturating_duration_since(lost) >= SILENCE);
            if over && !presence.silence_told {
                presence.silence_told = true;
                silent.push(cluster.clone());
            }
        }
        silent
    }

    /// An agent reports on a rule. Returns whether that is news.
    pub fn report(&mut self, cluster: &ClusterName, number: u64, state: RuleState) -> bool {
        let Some(presence) = self.clusters.get_mut(cluster).filter(|presence| presence.number == number) else {
            return false;
        };
        if state.gone {
            presence.names.remove(&state.uid);
            return presence.accounts.remove(&state.uid).is_some();
        }
        presence.names.insert(state.uid.clone(), state.rule);
        let before = presence.accounts.get(&state.uid).and_then(|account| account.takeovers);
        let account = Account {
            takeovers: if state.counts.is_settled() { state.takeovers } else { before },
            waiting_takeovers: state.takeovers.map_or(0, |takeovers| takeovers.objects),
            intents_digest: state.intents_digest,
            terms_digest: state.terms_digest,
            intents: state.intents,
            counts: state.counts,
            failures: state.failures,
        };
        presence.accounts.insert(state.uid, account.clone()) != Some(account)
    }

    /// A cluster is revoked or deleted: nothing of it is known any more.
    pub fn forget(&mut self, cluster: &ClusterName) {
        self.clusters.remove(cluster);
        self.retained.remove(cluster);
    }

    /// A cluster begins to leave, or no longer does; `retains` tells the rules whose copies stay there.
    pub fn leaves(&mut self, cluster: &ClusterName, leaving: bool, retains: impl Fn(&RuleUid) -> bool) {
        if !leaving {
            self.retained.remove(cluster);
        } else if !self.retained.contains_key(cluster) && self.has_connected(cluster) {
            let held = self.held_copies(cluster).filter(|(uid, ..)| retains(uid));
            let retained = held.map(|(_, rule, copies)| (rule.clone(), copies)).collect();
            self.retained.insert(cluster.clone(), retained);
        }
    }

    /// What the rules of a cluster that leaves retain there, as it was when it began to leave.
    pub fn retained(&self, cluster: &ClusterName) -> &[(RuleName, u32)] {
        self.retained.get(cluster).map(Vec::as_slice).unwrap_or_default()
    }

    /// The rules that a cluster holds copies of, and how many.
    pub fn held_copies(&self, cluster: &ClusterName) -> impl Iterator<Item = (&RuleUid, &RuleName, u32)> {
        let presence = self.clusters.get(cluster);
        presence.into_iter().flat_map(|presence| {
            presence.names.iter().map(|(uid, rule)| {
                let copies = presence.accounts.get(uid).map_or(0, |account| account.counts.applied);
                (uid, rule, copies)
            })
        })
    }

    /// The session of a cluster that counts as connected: it is, or was a moment ago.
    pub fn session(&self, cluster: &ClusterName, now: Instant) -> Option<&SessionFacts> {
        let presence = self.clusters.get(cluster)?;
        let fresh = presence.lost_at.is_none_or(|lost| now.saturating_duration_since(lost) < SILENCE);
        presence.session.as_ref().filter(|_| fresh)
    }

    /// Whether the cluster has connected since the hub started.
    pub fn has_connected(&self, cluster: &ClusterName) -> bool {
        self.clusters.get(cluster).is_some_and(|presence| presence.session.is_some())
    }

    /// The rules that a cluster holds something of, as its agent calls them.
    pub fn held_rules(&self, cluster: &ClusterName) -> impl Iterator<Item = (&RuleUid, &RuleName)> {
        self.clusters.get(cluster).into_iter().flat_map(|presence| &presence.names)
    }

    /// When the certificate of the cluster's newest session expires.
    pub fn certificate_expires(&self, cluster: &ClusterName) -> Option<Timestamp> {
        Some(self.clusters.get(cluster)?.session.as_ref()?.certificate_expires)
    }

    /// The sum of all copies, as (state, number), for metrics.
    pub fn copies(&self) -> Counts {
        let accounts = self.clusters.values().flat_map(|presence| presence.accounts.values());
        accounts.fold(Counts::default(), |mut sum, account| {
            let counts = account.counts;
            sum.copies = sum.copies.saturating_add(counts.copies);
            sum.applied = sum.applied.saturating_add(counts.applied);
            sum.failed = sum.failed.saturating_add(counts.failed);
            sum.waiting = sum.waiting.saturating_add(counts.waiting);
            sum.drifted = sum.drifted.saturating_add(counts.drifted);
            sum.removing = sum.removing.saturating_add(counts.removing);
            sum
        })
    }

    /// What a cluster last said that it holds of a rule.
    pub fn holding(&self, rule: &RuleUid, cluster: &ClusterName) -> Option<Holding> {
        let account = self.account(cluster, rule)?;
        let takeovers = account.takeovers.filter(|takeovers| takeovers.objects > 0);
        Some(Holding { copies: account.counts.copies.into(), intents: account.intents.into(), takeovers })
    }

    pub(super) fn account(&self, cluster: &ClusterName, rule: &RuleUid) -> Option<&Account> {
        self.clusters.get(cluster)?.accounts.get(rule)
    }
}
