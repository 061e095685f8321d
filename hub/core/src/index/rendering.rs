//! Rendering outside the lock of the index: shaped copies take time for each source and cluster.
//!
//! A change that needs rendering is recorded ([`super::Effect::render`]), and the plan stays as if the
//! change had not come yet. A [`super::RenderJob`] contains all that is needed, runs without the index,
//! and its result is swapped in. Selection and copies change together, so that no reader sees one
//! without the other. A change that makes something unknown or removes it needs no rendering and is
//! never deferred. It is applied again to the result of a job under way.
//!
//! An index without a renderer beside it renders at once.
use std::collections::{BTreeMap, BTreeSet};

use runnel_proto::model::{ClusterName, RuleUid, SourceRef};

use super::RuleEntry;
use crate::plan::{ClusterPlans, RemovalTerms, RevisionHasher, Rule, RulePlan, SourceState};

/// A rule as it will be once its copies are rendered.
struct PendingRule {
    rule: Rule,
    /// Distinguishes it from earlier and later jobs.
    serial: u64,
}

/// The state of deferred rendering.
#[derive(Default)]
pub(super) struct Rendering {
    /// Computes revisions of rendered contents.
    pub(super) revision_hasher: RevisionHasher,
    /// Whether rendering is deferred.
    is_deferred: bool,
    /// Rules as they will be once their copies are rendered.
    awaited: BTreeMap<RuleUid, PendingRule>,
    /// Counts jobs.
    last: u64,
    /// Plans to drop after the lock of the index is released.
    garbage: Vec<ClusterPlans>,
}

impl Rendering {
    pub(super) fn hashing_with(revision_hasher: RevisionHasher) -> Self {
        Self {
            revision_hasher,
            ..Self::default()
        }
    }

    /// Defers rendering from now on.
    pub(super) fn defer(&mut self) {
        self.is_deferred = true;
    }

    /// Whether rendering is deferred.
    pub(super) fn defers_rendering(&self) -> bool {
        self.is_deferred
    }

    /// The rules that are to be rendered as a whole.
    pub(super) fn awaited(&self) -> impl Iterator<Item = (&RuleUid, &Rule)> {
        let all = self.awaited.iter();
        all.map(|(uid, awaited)| (uid, &awaited.rule))
    }

    /// Returns the newest form of a rule, if it is to be rendered as a whole.
    pub(super) fn latest(&self, uid: &RuleUid) -> Option<&Rule> {
        self.awaited.get(uid).map(|awaited| &awaited.rule)
    }

    /// Returns the newest form of a rule that is to be rendered as a whole, with its serial number.
    pub(super) fn awaited_with_serial(&self, uid: &RuleUid) -> Option<(&Rule, u64)> {
        let awaited = self.awaited.get(uid)?;
        Some((&awaited.rule, awaited.serial))
    }

    /// Whether the newest form of the rule is being rendered.
    pub(super) fn is_awaited(&self, uid: &RuleUid) -> bool {
        self.awaited.contains_key(uid)
    }

    /// Renders a rule as a whole.
    pub(super) fn await_rule(&mut self, rule: Rule) {
        let serial = self.next_number();
        let uid = rule.uid.clone();
        self.awaited.insert(uid, PendingRule { rule, serial });
    }

    /// Takes a rule that was rendered, unless it has changed since.
    pub(super) fn take_awaited(&mut self, uid: &RuleUid, serial: u64) -> Option<Rule> {
        if self.awaited.get(uid)?.serial != serial {
            return None;
        }
        self.awaited.remove(uid).map(|awaited| awaited.rule)
    }

    /// Forgets a rule that is deleted, or needs no rendering.
    pub(super) fn forget(&mut self, uid: &RuleUid) {
        self.awaited.remove(uid);
    }

    /// Sets the removal terms of a rule.
    pub(super) fn set_removal(&mut self, uid: &RuleUid, removal: &RemovalTerms) {
        if let Some(awaited) = self.awaited.get_mut(uid) {
            awaited.rule.removal = removal.clone();
        }
    }

    /// Returns the number of the last job.
    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// Returns the number of a new job.
    pub(super) fn next_number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Drops plans after the lock of the index is released.
    pub(super) fn drop_unlocked(&mut self, cluster_plans: ClusterPlans) {
        if self.is_deferred {
            self.garbage.push(cluster_plans);
        }
    }

    /// Returns the plans to drop.
    pub(super) fn take_garbage(&mut self) -> Vec<ClusterPlans> {
        std::mem::take(&mut self.garbage)
    }
}

impl RuleEntry {
    /// Whether the plan for a cluster is not rendered yet.
    pub(super) fn lacks(&self, cluster: &ClusterName) -> bool {
        self.sent().0.plan(cluster, &self.plan).is_none()
    }

    /// The sources whose copies wait to be rendered.
    pub fn unrendered_sources(&self) -> impl Iterator<Item = &SourceRef> {
        self.unrendered.sources()
    }

    /// Whether copies of the source may be rendered again before long.
    pub fn is_unrendered(&self, source: &SourceRef) -> bool {
        let RenderBacklog {
            sources,
            rerender,
            since,
            ..
        } = &self.unrendered;
        *rerender || since.is_some() || sources.contains(&source.plain())
    }

    /// Whether changes of the rule wait to be rendered.
    pub(super) fn waits(&self) -> bool {
        !self.unrendered.is_empty() || self.unrendered.is_outdated()
    }
}

/// Sets a Secret whose values are used; dependent copies are rendered, or unknown until it is read.
pub(super) fn set_referenced_now(
    rule: &Rule,
    plan: &mut RulePlan,
    cluster_plans: &mut ClusterPlans,
    secret: &SourceRef,
    body: Option<&SourceState>,
    unrendered: &mut RenderBacklog,
    revision_hasher: &RevisionHasher,
) {
    if !matches!(body, Some(SourceState::Unread)) {
        unrendered.sources.insert(secret.clone());
        return;
    }
    if plan.set_referenced(secret, body) {
        cluster_plans.set_referenced_unread(rule, plan, secret, revision_hasher);
    }
}

pub(super) fn has_content(body: Option<&SourceState>) -> bool {
    matches!(body, Some(SourceState::Read(_) | SourceState::Stale(_)))
}

/// The changes of a rule that wait to be rendered.
#[derive(Default)]
pub(super) struct RenderBacklog {
    pub(super) sources: BTreeSet<SourceRef>,
    pub(super) clusters: BTreeSet<ClusterName>,
    /// Everything is to be rendered again: it exceeded the budget of the rule, or its references
    /// were unknown.
    pub(super) rerender: bool,
    /// Changes that the running job does not include, because they were rendered at once.
    pub(super) since: Option<(u64, BTreeSet<SourceRef>)>,
    /// The last job at the time when agents may have been sent newer content by another leader:
    /// until a later one is done, nothing is sent of the rule.
    pub(super) outdated: Option<u64>,
}

impl RenderBacklog {
    pub(super) fn is_empty(&self) -> bool {
        self.sources.is_empty() && self.clusters.is_empty() && !self.rerender
    }

    /// Returns the changes that the job of this number does not include, if that job is running.
    pub(super) fn ends(&mut self, number: u64) -> Option<BTreeSet<SourceRef>> {
        self.since
            .take_if(|(under_way, _)| *under_way == number)
            .map(|(_, since)| since)
    }

    /// Whether agents may have newer content than the index.
    pub(super) fn is_outdated(&self) -> bool {
        self.outdated.is_some()
    }

    /// All of it is to be rendered again.
    pub(super) fn mark_all(&mut self) {
        self.rerender = true;
    }

    /// The sources that wait to be rendered.
    pub(super) fn sources(&self) -> impl Iterator<Item = &SourceRef> {
        self.sources.iter()
    }

    /// A source changes at once.
    pub(super) fn remove_source(&mut self, source: &SourceRef) {
        self.sources.remove(source);
        self.note(source);
    }

    pub(super) fn note(&mut self, source: &SourceRef) {
        if let Some((_, since)) = &mut self.since {
            since.insert(source.clone());
        }
    }
}
