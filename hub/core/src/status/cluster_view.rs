//! A cluster of a rule, and all that is known of it.
use std::time::Instant;

use runnel_proto::model::{ClusterName, LostWatch, ProofKey};

use super::report_store::{Connectivity, RuleReport, SessionFacts};
use super::{ReportStore, View};
use crate::plan::{NamedTerms, RulePlan};

/// A cluster of a rule with all of its state. A status reads it many times, so it is looked up
/// once.
pub(super) struct ClusterView<'a> {
    pub(super) name: &'a ClusterName,
    /// The terms of the rule there.
    pub(super) terms: Option<&'a NamedTerms>,
    /// What is sent there.
    pub(super) sent: &'a RulePlan,
    presence: Option<&'a Connectivity>,
    /// Its agent's last word on the rule.
    pub(super) account: Option<&'a RuleReport>,
    /// The key under which agents prove their copies.
    pub(super) proof_key: Option<&'a ProofKey>,
}

impl View<'_> {
    /// A cluster of the rule, or one that was.
    pub(super) fn cluster<'s>(
        &'s self,
        report_store: &'s ReportStore,
        name: &'s ClusterName,
    ) -> ClusterView<'s> {
        self.cluster_on(report_store, name, self.target_clusters.clusters.get(name))
    }

    /// The clusters of the rule.
    pub(super) fn clusters<'s>(
        &'s self,
        report_store: &'s ReportStore,
    ) -> impl Iterator<Item = ClusterView<'s>> {
        self.target_clusters
            .clusters
            .iter()
            .map(move |(name, terms)| self.cluster_on(report_store, name, Some(terms)))
    }

    fn cluster_on<'s>(
        &'s self,
        report_store: &'s ReportStore,
        name: &'s ClusterName,
        terms: Option<&'s NamedTerms>,
    ) -> ClusterView<'s> {
        let presence = report_store.presence(name);
        let account = presence.and_then(|presence| presence.account(&self.rule.uid));
        ClusterView {
            name,
            terms,
            sent: self.sent(name),
            presence,
            account,
            proof_key: report_store.proof_key.as_ref(),
        }
    }
}

impl<'a> ClusterView<'a> {
    /// The session of its agent, while that counts as connected.
    pub(super) fn session(&self, now: Instant) -> Option<&'a SessionFacts> {
        self.presence?.session(now)
    }

    pub(super) fn is_connected(&self, now: Instant) -> bool {
        self.session(now).is_some()
    }

    /// Whether it has connected since the hub started.
    pub(super) fn has_connected(&self) -> bool {
        self.presence.is_some_and(Connectivity::has_connected)
    }

    /// Whether messages to it are restricted until an administrator confirms.
    pub(super) fn is_unconfirmed(&self) -> bool {
        self.presence.is_some_and(Connectivity::is_unconfirmed)
    }

    /// Whether the rule is not sent to it, because the agent has its maximum of rules.
    pub(super) fn is_beyond(&self, view: &View<'_>) -> bool {
        self.presence
            .is_some_and(|presence| presence.is_beyond(&view.rule.uid))
    }

    /// The number of rules that are not sent to it, because the agent has its maximum.
    pub(super) fn rules_beyond(&self) -> usize {
        self.presence.map_or(0, Connectivity::rules_beyond)
    }

    /// The watch of the member's API that its agent has lost and without which nothing is known of the rule's copies.
    pub(super) fn lost_watch(&self, view: &View<'_>) -> Option<LostWatch> {
        self.presence?.lost_watch(view.rule.resources())
    }
}
