//! Counts the copies that a removal concerns.
use std::collections::{BTreeMap, BTreeSet};

use runnel_proto::model::{ClusterName, DeletionPolicy, Pattern, SourceRef};

use super::ReportedCopiesFn;
use super::RuleEntry;
use super::clusters::Clusters;
use super::rule_lookup::Selection;
use super::rules::Rules;
use crate::guard::Item;
use crate::plan::Rule;

/// Counts copies by the reports of the agents.
#[derive(Clone, Copy)]
pub(super) struct CopyCounter<'a> {
    pub(super) rules: &'a Rules,
    pub(super) clusters: &'a Clusters,
    pub(super) selection: &'a Selection,
    pub(super) reported_copies: ReportedCopiesFn<'a>,
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
        let contested: Vec<_> = everywhere
            .iter()
            .copied()
            .filter(|intent| self.is_contested(entry, intent))
            .collect();
        let intents = there.map(|cluster| {
            let stay = |intent: &&&SourceRef| self.is_sent_by_another_rule(entry, cluster, intent);
            let own = here.get(cluster).into_iter().flatten();
            let go = everywhere.len() + own.clone().count()
                - contested.iter().chain(own).filter(stay).count();
            let pruned = prunes.get(cluster).copied().unwrap_or_default();
            let copies = self
                .copies_of_one(entry, cluster)
                .saturating_mul(go as u64)
                .saturating_add(pruned);
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
        let stay = plan
            .all_selected()
            .filter(|intent| self.is_sent_by_another_rule(entry, cluster, intent))
            .count();
        all.saturating_sub(
            self.copies_of_one(entry, cluster)
                .saturating_mul(stay as u64),
        )
    }

    fn copies_of_one(&self, entry: &RuleEntry, cluster: &ClusterName) -> u64 {
        match (self.reported_copies)(&entry.rule.uid, cluster) {
            Some(holding) if holding.intents > 0 => holding.copies.div_ceil(holding.intents),
            // The agent may have applied more than it has reported.
            Some(_) => targets(&entry.rule),
            None if self.may_have(cluster) => targets(&entry.rule),
            None => 0,
        }
    }

    pub(super) fn may_have(&self, cluster: &ClusterName) -> bool {
        self.clusters
            .get(cluster)
            .is_some_and(|cluster| cluster.was_connected)
    }

    /// Whether another rule selects the source, too.
    fn is_contested(&self, entry: &RuleEntry, intent: &SourceRef) -> bool {
        self.selection
            .of(&intent.plain())
            .any(|uid| *uid != entry.rule.uid)
    }

    /// Whether another rule sends the same copies to a cluster, so that they change hands in place.
    fn is_sent_by_another_rule(
        &self,
        entry: &RuleEntry,
        cluster: &ClusterName,
        intent: &SourceRef,
    ) -> bool {
        let plain = intent.plain();
        let others = self
            .selection
            .of(&plain)
            .filter(|uid| **uid != entry.rule.uid);
        let former = entry.target_clusters.clusters.get(cluster);
        others.filter_map(|uid| self.rules.get(uid)).any(|other| {
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
