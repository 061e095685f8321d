//! Counts the copies that a removal concerns.
use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use runnel_proto::model::{ClusterName, DeletionPolicy, NamespaceChoice, SourceRef};

use super::ReportedCopiesFn;
use super::RuleEntry;
use super::clusters::Clusters;
use super::handover::Claims;
use super::rule_lookup::Selection;
use super::rules::Rules;
use crate::guard::{Conditions, Item};
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
    /// names in the rule. A copy that another rule sends to the same cluster is handed over, and
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
        let items: BTreeSet<_> = items.collect();
        let claims = self.claims();
        let senders = claims.senders_of_manifests(entry);
        let is_contested =
            |intent: &&SourceRef| claims.others(entry, &senders, intent).next().is_some();
        let of_rule = OnceCell::new();
        let whole = |cluster: &ClusterName| {
            let contested: &BTreeSet<_> = of_rule.get_or_init(|| {
                let all = entry.plan.all_selected().filter(is_contested);
                all.cloned().collect()
            });
            let copies = self.copies(entry, &senders, cluster, contested);
            (cluster.clone(), copies)
        };
        // Where the rule has copies, whether it selects the cluster or not.
        let holds = |cluster: &ClusterName| {
            (self.reported_copies)(&entry.rule.uid, cluster).is_some_and(|acked| acked.copies > 0)
        };
        let awaited = |name: &ClusterName| {
            let cluster = Item::Cluster(name.clone());
            items.contains(&cluster) || entry.guard.keeps(&cluster)
        };
        let chosen = &entry.target_clusters.clusters;
        let may_hold =
            |name: &&ClusterName| chosen.contains_key(*name) || holds(name) || awaited(name);
        if items.contains(&Item::Rule) {
            // Its order goes to every cluster that may have copies.
            let names = self.clusters.names();
            return names
                .filter(|name| may_hold(name) || self.is_silent(entry, name))
                .map(whole)
                .collect();
        }
        let mut prunes: BTreeMap<ClusterName, u64> = BTreeMap::new();
        let (mut clusters, mut everywhere, mut here) =
            (BTreeSet::new(), Vec::new(), BTreeMap::new());
        for item in &items {
            match item {
                Item::Rule => {}
                Item::Cluster(cluster) => drop(clusters.insert(cluster)),
                Item::Kind(cluster, kind) => {
                    let intents = intents_of_kind(entry, cluster, kind);
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
        let there = self.clusters.names().filter(may_hold);
        // In a cluster that loses all copies, nothing is counted twice.
        let there = there.filter(|name| !clusters.contains(name));
        // Only items that another rule selects are counted one by one.
        let contested: Vec<_> = everywhere.iter().copied().filter(is_contested).collect();
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

    /// Returns what [`Self::count`] does not count of these items: copies that another rule sends to some cluster, where they
    /// change hands, and those of clusters that have not reported and are not chosen.
    pub(super) fn conditions(&self, entry: &RuleEntry, items: &BTreeSet<Item>) -> Conditions {
        if entry.rule.terms.deletion_policy == DeletionPolicy::Retain {
            return Conditions::default();
        }
        let chosen = &entry.target_clusters.clusters;
        let is_unseen =
            |name: &&ClusterName| self.is_silent(entry, name) && !chosen.contains_key(*name);
        let unseen = self.clusters.names().filter(is_unseen).cloned().collect();
        let claims = self.claims();
        let senders = claims.senders_of_manifests(entry);
        let intents = items.iter().flat_map(|item| match item {
            Item::Kind(cluster, kind) => intents_of_kind(entry, cluster, kind),
            _ => item.intent().into_iter().collect(),
        });
        let is_sent = |intent: &&SourceRef| {
            claims.others(entry, &senders, intent).next().is_some()
                && self
                    .clusters
                    .names()
                    .any(|cluster| self.is_sent_by_another_rule(entry, &senders, cluster, intent))
        };
        let handed_over = intents.filter(is_sent).map(SourceRef::plain).collect();
        Conditions::new(handed_over, items, unseen)
    }

    /// Counts all copies that a rule has, to which its limit in percent refers. Unreported copies count
    /// as none.
    ///
    /// Nothing verifies the counts of a member, and a count that is too high would widen the limit
    /// for all others. So a cluster adds no more copies than the rule can have there: one of each
    /// source (those that are no longer wanted included) in each namespace that it names, in each
    /// version that it keeps. If the hub does not know the namespaces (globs, selectors, former targets), the
    /// cluster with the most copies adds no more than that number or all others together: no
    /// member alone can more than double the count of the others. If one cluster has all copies,
    /// there is no other one to protect.
    pub(super) fn all_copies(&self, entry: &RuleEntry) -> u64 {
        let leaving = entry.guard.leaving();
        let names_all = names_all(&entry.rule);
        let reported = self.clusters.names().filter_map(|cluster| {
            let reported = (self.reported_copies)(&entry.rule.uid, cluster)?;
            let plan = entry.cluster_plans.plan_of(cluster).unwrap_or(&entry.plan);
            let intents = leaving.saturating_add(plan.sources() as u64);
            let most = max_copies(&entry.rule, intents);
            let is_bounded = names_all && reported.prunes.is_none();
            let copies = if is_bounded {
                reported.copies.min(most)
            } else {
                reported.copies
            };
            Some((copies, if is_bounded { u64::MAX } else { most }))
        });
        let reported: Vec<_> = reported.filter(|(copies, _)| *copies > 0).collect();
        let all = reported
            .iter()
            .fold(0u64, |all, (copies, _)| all.saturating_add(*copies));
        let (largest, most) = reported.iter().copied().max().unwrap_or_default();
        let others = all.saturating_sub(largest);
        if reported.len() > 1 {
            others.saturating_add(largest.min(others.max(most)))
        } else {
            all
        }
    }

    fn claims(&self) -> Claims<'_> {
        Claims {
            rules: self.rules,
            selection: self.selection,
        }
    }

    /// Returns the number of copies in a cluster that are removed with the rule. `contested` are the sources that other
    /// rules select, too. Nothing tells which ones an agent has that has fewer than the rule selects: then as few as possible
    /// change hands.
    fn copies(
        &self,
        entry: &RuleEntry,
        senders: &[&RuleEntry],
        cluster: &ClusterName,
        contested: &BTreeSet<SourceRef>,
    ) -> u64 {
        let holding = (self.reported_copies)(&entry.rule.uid, cluster);
        let all = match holding {
            Some(holding) => holding.copies,
            // The sources may have gone before the rule.
            None if self.may_have(cluster) => {
                targets(&entry.rule).saturating_mul(entry.plan.sources().max(1) as u64)
            }
            None => 0,
        };
        let plan = sent_plan(entry, cluster)
            .filter(|_| !contested.is_empty() && !entry.holds_back(cluster));
        let Some(plan) = plan else {
            return all;
        };
        let (stay, leave): (Vec<_>, Vec<_>) = plan.all_selected().partition(|intent| {
            contested.contains(&intent.plain())
                && self.is_sent_by_another_rule(entry, senders, cluster, intent)
        });
        let planned = stay.len() + leave.len();
        let lacking = holding.map_or(0, |it| (planned as u64).saturating_sub(it.intents));
        let lacking = usize::try_from(lacking).unwrap_or(usize::MAX);
        let stay = ByScope::of(stay.into_iter().skip(lacking));
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

    /// Whether some cluster may have copies of the rule, and has not reported.
    pub(super) fn is_unreported(&self, entry: &RuleEntry) -> bool {
        let mut names = self.clusters.names();
        names.any(|name| self.is_silent(entry, name))
    }

    fn is_silent(&self, entry: &RuleEntry, cluster: &ClusterName) -> bool {
        self.may_have(cluster) && (self.reported_copies)(&entry.rule.uid, cluster).is_none()
    }

    pub(super) fn may_have(&self, cluster: &ClusterName) -> bool {
        self.clusters
            .get(cluster)
            .is_some_and(|cluster| cluster.was_connected)
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
        self.claims().others(entry, senders, intent).any(|other| {
            let Some(terms) = other.target_clusters.clusters.get(cluster) else {
                return false;
            };
            let reaches = terms.namespaces == entry.rule.terms.namespaces
                && (terms.grants.is_none()
                    || former.is_some_and(|former| former.grants == terms.grants));
            let sends = || {
                other
                    .assignment(cluster)
                    .is_some_and(|assignment| assignment.content(intent).is_some())
            };
            reaches && other.sends_in(cluster) && sends()
        })
    }
}

/// Returns the intents of a kind that the rule selects, or sends to the cluster: while it is rolled back, those differ.
fn intents_of_kind<'a>(
    entry: &'a RuleEntry,
    cluster: &ClusterName,
    kind: &Arc<str>,
) -> Vec<&'a SourceRef> {
    let of_kind = |intent: &&SourceRef| intent.resource == *kind;
    let mut intents: Vec<_> = entry.plan.all_selected().filter(of_kind).collect();
    let selected: BTreeSet<_> = intents.iter().map(|intent| intent.plain()).collect();
    let sent = sent_plan(entry, cluster).into_iter();
    let sent = sent.flat_map(RulePlan::all_selected).filter(of_kind);
    intents.extend(sent.filter(|intent| !selected.contains(&intent.plain())));
    intents
}

/// Returns the plan that a cluster is sent; `None` if the rule does not target it.
fn sent_plan<'a>(entry: &'a RuleEntry, cluster: &ClusterName) -> Option<&'a RulePlan> {
    let (plans, _) = entry.sent();
    plans.plan(cluster, &entry.plan).map(AsRef::as_ref)
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

/// The most copies that a rule can have of so many intents in one cluster, in the namespaces that it names; of others, one.
fn max_copies(rule: &Rule, intents: u64) -> u64 {
    intents
        .saturating_mul(targets(rule))
        .saturating_mul(rule.terms.versions.unwrap_or(1).max(1).into())
}

/// Whether the rule names its namespaces one by one.
fn names_all(rule: &Rule) -> bool {
    let choice = rule.terms.namespaces.as_ref();
    choice.is_none_or(NamespaceChoice::names_all)
}
