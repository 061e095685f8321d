//! Counts the copies that a removal concerns.
use std::collections::{BTreeMap, BTreeSet};

use runnel_proto::model::{ClusterName, DeletionPolicy, Pattern, SourceRef};

use super::ReportedCopiesFn;
use super::RuleEntry;
use super::clusters::Clusters;
use super::rule_lookup::Selection;
use super::rules::Rules;
use crate::guard::Item;
use crate::plan::{Rule, RulePlan};

/// Counts copies by the reports of the agents.
#[derive(Clone, Copy)]
pub(super) struct CopyCounter<'a> {
    pub(super) rules: &'a Rules,
    pub(super) clusters: &'a Clusters,
    pub(super) selection: &'a Selection,
    pub(super) reported_copies: ReportedCopiesFn<'a>,
}

/// A number of intents, or of the copies of one: in namespaces, and of kinds without namespaces.
#[derive(Clone, Copy, Default)]
struct ByScope {
    namespaced: u64,
    cluster: u64,
}

impl ByScope {
    /// Counts intents.
    fn of<'a>(intents: impl Iterator<Item = &'a SourceRef>) -> Self {
        intents.fold(Self::default(), |mut sum, intent| {
            if intent.is_cluster_scoped() {
                sum.cluster += 1;
            } else {
                sum.namespaced += 1;
            }
            sum
        })
    }

    /// Returns the copies of these intents, without `stay` of them.
    fn copies(self, stay: Self, of_one: Self) -> u64 {
        let product = |intents: u64, stay: u64, of_one: u64| {
            intents.saturating_sub(stay).saturating_mul(of_one)
        };
        let namespaced = product(self.namespaced, stay.namespaced, of_one.namespaced);
        namespaced.saturating_add(product(self.cluster, stay.cluster, of_one.cluster))
    }
}

impl CopyCounter<'_> {
    /// Counts the copies of items: from the agents' reports, or without a report from the literal
    /// names in the rule. A copy that another rule selects in the same cluster is handed over, and
    /// is no removal.
    pub(super) fn count<'a>(
        &self,
        entry: &RuleEntry,
        items: impl Iterator<Item = &'a Item>,
    ) -> BTreeMap<ClusterName, u64> {
        if entry.rule.terms.deletion_policy == DeletionPolicy::Retain {
            // Copies that are only retained are not removed.
            return BTreeMap::new();
        }
        let whole = |cluster: &ClusterName| (cluster.clone(), self.copies(entry, cluster));
        let items: BTreeSet<_> = items.collect();
        if items.contains(&Item::Rule) {
            return entry.target_clusters.clusters.keys().map(whole).collect();
        }
        let mut prunes: BTreeMap<ClusterName, u64> = BTreeMap::new();
        let (mut clusters, mut everywhere, mut here) =
            (BTreeSet::new(), Vec::new(), BTreeMap::new());
        for item in items {
            match item {
                Item::Rule => {}
                Item::Cluster(cluster) => drop(clusters.insert(cluster)),
                Item::Kind(cluster, kind) => {
                    let of_kind = |source: &&SourceRef| source.resource == *kind;
                    let intents: Vec<_> = entry.plan.all_selected().filter(of_kind).collect();
                    here.entry(cluster).or_insert_with(Vec::new).extend(intents);
                }
                Item::Copy(cluster, intent) => {
                    here.entry(cluster).or_insert_with(Vec::new).push(intent)
                }
                Item::Name(intent) | Item::Source(intent) => everywhere.push(intent),
                Item::Prune(cluster, digest) => {
                    let asked = (self.reported_copies)(&entry.rule.uid, cluster)
                        .and_then(|acked| acked.prunes);
                    let copies = asked
                        .filter(|asked| asked.digest == *digest)
                        .map_or(0, |asked| asked.objects.into());
                    prunes.insert(cluster.clone(), copies);
                }
            }
        }
        // Where the rule has copies, the copies of its sources would be removed as soon as the rule
        // selects the cluster again.
        let holds = |cluster: &ClusterName| {
            (self.reported_copies)(&entry.rule.uid, cluster).is_some_and(|acked| acked.copies > 0)
        };
        let there = self
            .clusters
            .names()
            .filter(|name| entry.target_clusters.clusters.contains_key(*name) || holds(name));
        // In a cluster that loses all copies, nothing is counted twice.
        let there = there.filter(|name| !clusters.contains(name));
        // Only items that another rule selects are counted one by one.
        let senders = self.senders_of_manifests(entry);
        let contested: Vec<_> = everywhere
            .iter()
            .copied()
            .filter(|intent| self.others(entry, &senders, intent).next().is_some())
            .collect();
        let everywhere = ByScope::of(everywhere.into_iter());
        let planned = cluster_scoped(&entry.plan);
        let intents = there.map(|cluster| {
            let own = || here.get(cluster).into_iter().flatten().copied();
            let stay = contested.iter().copied().chain(own());
            let stay =
                ByScope::of(stay.filter(|intent| {
                    self.is_sent_by_another_rule(entry, &senders, cluster, intent)
                }));
            let own = ByScope::of(own());
            let all = ByScope {
                namespaced: everywhere.namespaced + own.namespaced,
                cluster: everywhere.cluster + own.cluster,
            };
            let pruned = prunes.get(cluster).copied().unwrap_or_default();
            let of_one = self.copies_of_one(entry, cluster, planned + all.cluster);
            let copies = all.copies(stay, of_one).saturating_add(pruned);
            (cluster.clone(), copies)
        });
        clusters
            .iter()
            .map(|cluster| whole(cluster))
            .chain(intents)
            .filter(|(_, copies)| *copies > 0)
            .collect()
    }

    /// Counts all copies of a rule, to which its limit in percent refers. Unreported copies count
    /// as none.
    ///
    /// Nothing verifies the counts of a member, and a count that is too high would widen the limit
    /// for all others. So a cluster adds no more copies than the rule can have there: one of each
    /// source (`leaving` of which are no longer wanted) in each namespace that it names, in each
    /// version that it keeps. If the rule does not name them (globs, selectors), the hub does not
    /// know the namespaces of a member, and a cluster adds no more than all others together: no
    /// member alone can more than double the count of the others. If one cluster has all copies,
    /// there is no other one to protect.
    pub(super) fn all_copies(&self, entry: &RuleEntry) -> u64 {
        let (decision, leaving) = (entry.guard.decision(), entry.guard.leaving());
        let outside = self.clusters.names().filter(|name| {
            !entry.target_clusters.clusters.contains_key(*name)
                && decision.blocks(&Item::Cluster((*name).clone()))
        });
        let message = entry
            .target_clusters
            .clusters
            .keys()
            .chain(outside)
            .filter_map(|cluster| {
                let copies = (self.reported_copies)(&entry.rule.uid, cluster)?.copies;
                let plan = entry.cluster_plans.plan_of(cluster).unwrap_or(&entry.plan);
                let intents = leaving.saturating_add(plan.sources() as u64);
                Some(copies.min(max_copies(&entry.rule, intents).unwrap_or(u64::MAX)))
            });
        let message: Vec<_> = message.filter(|copies| *copies > 0).collect();
        let (all, largest) = message.iter().fold((0u64, 0), |(all, largest), copies| {
            (all.saturating_add(*copies), largest.max(*copies))
        });
        let others = all.saturating_sub(largest);
        if max_copies(&entry.rule, 0).is_none() && message.len() > 1 {
            others.saturating_mul(2).min(all)
        } else {
            all
        }
    }

    /// Returns the number of copies in a cluster that are removed with the rule.
    fn copies(&self, entry: &RuleEntry, cluster: &ClusterName) -> u64 {
        let all = match (self.reported_copies)(&entry.rule.uid, cluster) {
            Some(holding) => holding.copies,
            None if self.may_have(cluster) => {
                targets(&entry.rule).saturating_mul(entry.plan.sources() as u64)
            }
            None => 0,
        };
        let Some(plan) = entry.cluster_plans.plan(cluster, &entry.plan) else {
            return all;
        };
        let senders = self.senders_of_manifests(entry);
        let stay = plan.all_selected();
        let stay = ByScope::of(
            stay.filter(|intent| self.is_sent_by_another_rule(entry, &senders, cluster, intent)),
        );
        let of_one = self.copies_of_one(entry, cluster, cluster_scoped(plan));
        all.saturating_sub(stay.copies(ByScope::default(), of_one))
    }

    /// Returns the copies of one source in a cluster. `cluster_scoped` is the number of sources without namespaces that the
    /// cluster may have.
    fn copies_of_one(
        &self,
        entry: &RuleEntry,
        cluster: &ClusterName,
        cluster_scoped: u64,
    ) -> ByScope {
        let expected = ByScope {
            namespaced: targets(&entry.rule),
            cluster: entry.rule.terms.versions.unwrap_or(1).max(1).into(),
        };
        match (self.reported_copies)(&entry.rule.uid, cluster) {
            Some(holding) if holding.intents > 0 => {
                let of_cluster = cluster_scoped.min(holding.intents);
                let rest = holding.intents - of_cluster;
                let one = expected.cluster.min(holding.copies);
                let copies = holding
                    .copies
                    .saturating_sub(of_cluster.saturating_mul(one));
                if rest == 0 {
                    let one = holding.copies.div_ceil(holding.intents);
                    return ByScope {
                        namespaced: one,
                        cluster: one,
                    };
                }
                ByScope {
                    namespaced: copies.div_ceil(rest),
                    cluster: one,
                }
            }
            // The agent may have applied more than it has reported.
            Some(_) => expected,
            None if self.may_have(cluster) => expected,
            None => ByScope::default(),
        }
    }

    pub(super) fn may_have(&self, cluster: &ClusterName) -> bool {
        self.clusters
            .get(cluster)
            .is_some_and(|cluster| cluster.was_connected)
    }

    /// Returns the other rules that send manifests of bundles.
    fn senders_of_manifests(&self, entry: &RuleEntry) -> Vec<&RuleEntry> {
        let all = self.rules.iter().map(|(_, other)| other);
        all.filter(|other| other.rule.uid != entry.rule.uid && other.plan.has_manifests())
            .collect()
    }

    /// Returns the other rules that select the source, or a bundle with it. `senders` are those that send manifests.
    fn others<'s>(
        &'s self,
        entry: &'s RuleEntry,
        senders: &'s [&RuleEntry],
        intent: &SourceRef,
    ) -> impl Iterator<Item = &'s RuleEntry> {
        let plain = intent.plain();
        let selecting: Vec<_> = self
            .selection
            .of(&plain)
            .filter(|uid| **uid != entry.rule.uid)
            .filter_map(|uid| self.rules.get(uid))
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

    /// Whether another rule sends the same copies to a cluster, so that they change hands in place.
    fn is_sent_by_another_rule(
        &self,
        entry: &RuleEntry,
        senders: &[&RuleEntry],
        cluster: &ClusterName,
        intent: &SourceRef,
    ) -> bool {
        let former = entry.target_clusters.clusters.get(cluster);
        self.others(entry, senders, intent).any(|other| {
            let target_clusters = &other.target_clusters;
            let Some(terms) = target_clusters.clusters.get(cluster) else {
                return false;
            };
            let frozen = target_clusters.unknown
                || target_clusters.cordoned.contains(cluster)
                || terms.is_frozen()
                || other.rule.deleting;
            let reaches = terms.namespaces == entry.rule.terms.namespaces
                && (terms.grants.is_none()
                    || former.is_some_and(|former| former.grants == terms.grants));
            let sends = || {
                other
                    .assignment(cluster)
                    .is_some_and(|assignment| assignment.content(intent).is_some())
            };
            !frozen && reaches && sends()
        })
    }
}

/// Returns the number of sources of kinds without namespaces.
fn cluster_scoped(plan: &RulePlan) -> u64 {
    ByScope::of(plan.all_selected()).cluster
}

/// The namespaces that a rule names literally; one, if it names none.
fn targets(rule: &Rule) -> u64 {
    let literals = rule
        .terms
        .namespaces
        .as_ref()
        .map_or(0, |choice| choice.wanted_literals().count());
    literals.max(1) as u64
}

/// The most copies that a rule can have of so many intents in one cluster; `None`, if it does not name its namespaces.
fn max_copies(rule: &Rule, intents: u64) -> Option<u64> {
    let choice = rule.terms.namespaces.as_ref();
    let names_all = choice.is_none_or(|choice| {
        choice.selector.is_none() && choice.names.iter().all(Pattern::is_literal)
    });
    let copies = intents
        .saturating_mul(targets(rule))
        .saturating_mul(rule.terms.versions.unwrap_or(1).max(1).into());
    names_all.then_some(copies)
}
