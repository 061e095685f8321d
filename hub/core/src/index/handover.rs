//! Copies that change hands: a rule no longer selects them, and another rule does.
//!
//! The removal by the former rule waits in each cluster until the other rule sends the copies there. A rule that waits for
//! its wave, or that sends nothing for any other reason, would create them only later.
use std::collections::BTreeSet;
use std::sync::Arc;

use runnel_proto::model::{ClusterName, DeletionPolicy, RuleUid, SourceRef};

use super::rule_lookup::Selection;
use super::rules::Rules;
use super::{Directive, Index, RuleEntry};
use crate::plan::{PendingClaim, Rule};

/// Finds the rules that select the same sources.
#[derive(Clone, Copy)]
pub(super) struct Claims<'a> {
    pub(super) rules: &'a Rules,
    pub(super) selection: &'a Selection,
}

impl<'a> Claims<'a> {
    /// Returns the other rules that send manifests of bundles.
    pub(super) fn senders_of_manifests(&self, entry: &RuleEntry) -> Vec<&'a RuleEntry> {
        let all = self.rules.iter().map(|(_, other)| other);
        all.filter(|other| other.rule.uid != entry.rule.uid && other.plan.has_manifests())
            .collect()
    }

    /// Returns the other rules that select the source, or a bundle with it. `senders` are those that send manifests.
    pub(super) fn others<'s>(
        &self,
        entry: &'s RuleEntry,
        senders: &'s [&'a RuleEntry],
        intent: &SourceRef,
    ) -> impl Iterator<Item = &'a RuleEntry> + use<'s, 'a> {
        let plain = intent.plain();
        let (rules, selection) = (self.rules, self.selection);
        let selecting: Vec<_> = selection
            .of(&plain)
            .filter(|uid| **uid != entry.rule.uid)
            .filter_map(|uid| rules.get(uid))
            .collect();
        // A DistributionRule has the sources of its own namespace alone.
        let is_here = move |other: &RuleEntry| {
            let rule = &other.rule.terms.rule;
            (rule.is_cluster_scoped() || *rule.namespace == *plain.namespace)
                && other.plan.bundle_of(&plain).is_some()
        };
        let sending = senders.iter().copied().filter(move |other| is_here(other));
        selecting.into_iter().chain(sending)
    }

    /// The rules that select what the rule removes, or, if `whole`, anything that it has. One look-up for each source, once
    /// for all clusters.
    fn claimants(&self, entry: &RuleEntry, whole: bool) -> Arc<BTreeSet<RuleUid>> {
        let mut known = entry.claimants.0.lock();
        let known = &mut known[usize::from(whole)];
        let serial = self.selection.serial();
        if let Some((at, claimants)) = known
            && *at == serial
        {
            return claimants.clone();
        }
        let senders = self.senders_of_manifests(entry);
        let all = entry.plan.all_selected().filter(|_| whole);
        let intents = entry.guard.left_intents().chain(all);
        let claimants = intents.flat_map(|intent| self.others(entry, &senders, intent));
        let claimants = Arc::new(claimants.map(|other| other.rule.uid.clone()).collect());
        *known = Some((serial, Arc::clone(&claimants)));
        claimants
    }

    /// What other rules are to send to a cluster in place of the rule. Those that send all of it now count where copies change
    /// hands.
    fn of(&self, entry: &RuleEntry, cluster: &ClusterName, whole: bool) -> Vec<PendingClaim> {
        let claimants = self.claimants(entry, whole);
        let others = claimants.iter().filter_map(|uid| self.rules.get(uid));
        let claim = |other: &RuleEntry| {
            let shares = may_share(&entry.rule, &other.rule);
            let with_sent = entry.guard.decision().hands_over();
            Some(other.claim(cluster, with_sent)?.in_namespaces(shares))
        };
        others.filter_map(claim).collect()
    }
}

/// Whether two rules may have target namespaces in common: not, if both name them and no name is equal.
fn may_share(one: &Rule, other: &Rule) -> bool {
    let named = |rule: &Rule| {
        let choice = rule.terms.namespaces.as_ref()?;
        choice.names_all().then(|| {
            choice
                .wanted_literals()
                .map(str::to_owned)
                .collect::<BTreeSet<_>>()
        })
    };
    match (named(one), named(other)) {
        (Some(one), Some(other)) => !one.is_disjoint(&other),
        _ => true,
    }
}

impl RuleEntry {
    /// Whether the rule sends what it selects to a cluster now.
    pub(super) fn sends_in(&self, cluster: &ClusterName) -> bool {
        let targets = &self.target_clusters;
        !self.rule.deleting
            && targets.clusters.contains_key(cluster)
            && !targets.unknown
            && !self.holds_back(cluster)
    }

    /// Whether a cluster that the rule selects may lack some of what it selects.
    pub(super) fn holds_back(&self, cluster: &ClusterName) -> bool {
        self.target_clusters.cordoned.contains(cluster)
            || self.rule.terms.is_frozen()
            || self.awaits(cluster)
            || self.is_withheld()
            || self.lacks(cluster)
    }

    /// What the rule is to have in a cluster, if it does not send all of it now, or `with_sent`. A dry run claims nothing.
    fn claim(&self, cluster: &ClusterName, with_sent: bool) -> Option<PendingClaim> {
        let terms = self.target_clusters.clusters.get(cluster)?;
        let plan = self.cluster_plans.plan(cluster, &self.plan);
        let wanted = plan.unwrap_or(&self.plan);
        let sent = self
            .assignment(cluster)
            .filter(|_| self.sends_in(cluster))
            .map(|sent| sent.authorized);
        let is_whole = sent.as_ref().is_some_and(|sent| {
            let plan = sent.plan();
            Arc::ptr_eq(plan, wanted) && plan.unread.is_empty() && plan.unreadable.is_empty()
        });
        let claims =
            !self.rule.deleting && !self.rule.terms.is_dry_run() && (with_sent || !is_whole);
        claims.then(|| PendingClaim::new(self.rule.uid.clone(), terms.authorize(wanted), sent))
    }
}

/// The order to remove all copies, after what other rules are to send.
fn removal_before(policy: DeletionPolicy, claims: &Arc<[PendingClaim]>) -> Directive {
    if claims.is_empty() {
        Directive::Removed(policy)
    } else {
        Directive::AwaitingHandover(policy, claims.clone())
    }
}

impl Index {
    /// The stored order of a deleted rule. The agent alone has the names of its copies: the session compares them with what
    /// other rules are to send.
    pub(super) fn stored_removal(
        &self,
        cluster: &ClusterName,
        policy: DeletionPolicy,
    ) -> Directive {
        removal_before(policy, &self.all_claims(cluster).into())
    }

    /// What any rules are to send to a cluster and do not send now.
    fn all_claims(&self, cluster: &ClusterName) -> Vec<PendingClaim> {
        let others = self.planner.rules.iter();
        others
            .filter_map(|(_, other)| other.claim(cluster, false))
            .collect()
    }

    /// The claims as they concern a rule that is removed. An order without its rule does not tell where its copies are.
    fn claims_beside(&self, removed: &RuleUid, all: &[PendingClaim]) -> Arc<[PendingClaim]> {
        let rule = |uid: &RuleUid| self.planner.rules.get(uid).map(|entry| &entry.rule);
        let removed = rule(removed);
        let claim = |claim: &PendingClaim| {
            let pair = removed.zip(rule(&claim.uid));
            let shares = pair.is_none_or(|(removed, other)| may_share(removed, other));
            claim.clone().in_namespaces(shares)
        };
        all.iter().map(claim).collect()
    }

    /// The directives of [`Index::directives_since`], and again those of rules whose removals wait, as these change with other
    /// rules. Where the hub does not have the names of what a rule removes, the session compares them with what any rule is to
    /// send.
    pub fn directives_for(
        &self,
        cluster: &ClusterName,
        since: u64,
        waiting: BTreeSet<RuleUid>,
        is_known: impl Fn(&RuleUid) -> bool,
    ) -> (Vec<(RuleUid, Directive)>, u64) {
        let (mut directives, version) = self.directives_since(cluster, since);
        directives.retain(|(uid, _)| !waiting.contains(uid));
        let changed = directives.len();
        directives.extend(waiting.into_iter().map(|uid| {
            let directive = self.directive(&uid, cluster);
            (uid, directive)
        }));
        let mut all = None;
        for (number, (uid, directive)) in directives.iter_mut().enumerate() {
            if let Directive::Removed(policy) | Directive::AwaitingHandover(policy, _) = directive
                && (number >= changed || !is_known(uid))
            {
                let all = all.get_or_insert_with(|| self.all_claims(cluster));
                *directive = removal_before(*policy, &self.claims_beside(uid, all));
            }
        }
        (directives, version)
    }

    /// A directive that removes copies, with what other rules are to send first.
    pub(super) fn after_handover(
        &self,
        entry: &RuleEntry,
        cluster: &ClusterName,
        mut directive: Directive,
    ) -> Directive {
        let claims = Claims {
            rules: &self.planner.rules,
            selection: &self.planner.selection,
        };
        let decision = entry.guard.decision();
        match directive {
            Directive::Assigned(ref mut assignment) | Directive::Cordoned(ref mut assignment)
                if decision.passes_in_clusters() =>
            {
                assignment.claims = claims.of(entry, cluster, decision.passes_selected()).into();
                directive
            }
            Directive::Removed(policy) => {
                let claims = claims.of(entry, cluster, true);
                let plan = entry.cluster_plans.plan(cluster, &entry.plan);
                let has = || {
                    let selected = plan.unwrap_or(&entry.plan).all_selected();
                    selected.chain(entry.guard.left_intents())
                };
                if claims.iter().any(|claim| has().any(|it| claim.awaits(it))) {
                    Directive::AwaitingHandover(policy, claims.into())
                } else {
                    directive
                }
            }
            directive => directive,
        }
    }
}
