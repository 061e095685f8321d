//! The rules of the index, each with the version in which it changed last.
//!
//! A change of a rule gives it a new version and returns the clusters that are concerned.
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use runnel_api::{CauseCount, KeptRevision, PendingApproval};
use runnel_proto::model::{ClusterName, RuleUid};

use super::PendingCause;
use super::changes::record_unselected;
use super::clusters::Clusters;
use super::rollouts::{CompletedStates, StoredState};
use super::rule_lookup::KnownClaimants;
use super::{Effect, RuleEntry};
use crate::guard::{Cause, CauseKind, GuardDecision, Item, digest_of_all};
use crate::plan::{RollbackBlocker, TargetClusters, WatchScope};
use crate::rollout::{AllowedUrls, CheckResult, Gate, Rollout};

/// The decisions about rules before a judgment, to find those that changed.
pub(super) type FormerDecisions = BTreeMap<RuleUid, Arc<GuardDecision>>;

/// How long the removal of a deleted rule waits for an observed rule: one that gets no finalizer keeps no other from being
/// deleted.
pub(super) const EXPECTED_LIMIT: Duration = Duration::from_secs(10);

/// Sums the causes of the approvals of several rules, most copies first.
fn sum_of_causes<'a>(rules: impl Iterator<Item = &'a PendingApproval>) -> Vec<CauseCount> {
    let mut sums = BTreeMap::<String, i64>::new();
    let mut has_several = false;
    for pending in rules {
        has_several |= !pending.causes.is_empty();
        let single = CauseCount {
            cause: pending.cause.clone(),
            copies: pending.copies,
        };
        let all = if pending.causes.is_empty() {
            std::slice::from_ref(&single)
        } else {
            &pending.causes
        };
        for count in all {
            let sum = sums.entry(count.cause.clone()).or_default();
            *sum = sum.saturating_add(count.copies);
        }
    }
    let mut all: Vec<_> = sums
        .into_iter()
        .filter(|_| has_several)
        .map(|(cause, copies)| CauseCount { cause, copies })
        .collect();
    all.sort_by_key(|count| Reverse(count.copies));
    all.truncate(runnel_api::limits::CAUSES);
    all
}

/// Number of rules named for a cause.
const NAMES: usize = 5;

/// The rules.
#[derive(Default)]
pub struct Rules {
    entries: BTreeMap<RuleUid, RuleEntry>,
    changes: ChangeLog,
    /// The states of completed rollouts.
    completed: CompletedStates,
    /// The last result of the analysis of each rule that has one.
    checks: BTreeMap<RuleUid, CheckResult>,
    /// Observed rules that are not planned yet, with the time at which they were first observed.
    expected: BTreeMap<RuleUid, Instant>,
    /// The URLs that an analysis may request.
    pub(super) allowed_urls: AllowedUrls,
}

impl Rules {
    /// Returns a rule.
    pub fn get(&self, uid: &RuleUid) -> Option<&RuleEntry> {
        self.entries.get(uid)
    }

    pub(super) fn get_mut(&mut self, uid: &RuleUid) -> Option<&mut RuleEntry> {
        self.entries.get_mut(uid)
    }

    /// Every rule.
    pub fn iter(&self) -> impl Iterator<Item = (&RuleUid, &RuleEntry)> {
        self.entries.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (&RuleUid, &mut RuleEntry)> {
        self.entries.iter_mut()
    }

    /// Every uid.
    pub fn uids(&self) -> impl Iterator<Item = &RuleUid> {
        self.entries.keys()
    }

    /// Records that a rule was observed that will be planned: it waits for its finalizer, or is to be rendered.
    pub fn expect(&mut self, uid: RuleUid, now: Instant) {
        self.expected.entry(uid).or_insert(now);
    }

    /// Forgets which rules were observed, at the begin of a list.
    pub fn forget_expected(&mut self) {
        self.expected.clear();
    }

    /// A rule is planned, or does not exist any more.
    pub(super) fn end_expectation(&mut self, uid: &RuleUid) {
        self.expected.remove(uid);
    }

    /// Whether rules were observed that may take over the copies of another one, and are not planned yet.
    pub(super) fn expects_rules(&self, now: Instant) -> bool {
        let is_recent = |since: &Instant| now.saturating_duration_since(*since) < EXPECTED_LIMIT;
        self.expected.values().any(is_recent)
    }

    /// Stores a rule without a new version.
    pub(super) fn insert(&mut self, uid: RuleUid, entry: RuleEntry) {
        self.entries.insert(uid, entry);
    }

    /// Takes a rule out that [`Rules::insert`] stores again, or [`Rules::forget`] forgets.
    pub(super) fn take(&mut self, uid: &RuleUid) -> Option<RuleEntry> {
        self.entries.remove(uid)
    }

    /// Lists a rule of this version as deleted.
    pub(super) fn forget(&mut self, uid: &RuleUid, version: u64) {
        self.changes.remove(version);
        self.changes.forget(uid);
        self.checks.remove(uid);
    }

    /// Lists a rule as changed if it is deleted: there is a new order about it.
    pub(super) fn note_absent(&mut self, uid: &RuleUid) {
        if !self.entries.contains_key(uid) {
            self.changes.forget(uid);
        }
    }

    /// Returns the version in which a rule changed last.
    pub fn version_of(&self, uid: &RuleUid) -> Option<u64> {
        self.entries.get(uid).map(|entry| entry.version)
    }

    /// Returns the newest version of all rules.
    pub(super) fn version(&self) -> u64 {
        self.changes.version
    }

    /// The rules that changed or were deleted after this version.
    pub(super) fn changed_since(&self, version: u64) -> impl Iterator<Item = &RuleUid> {
        self.changes.since(version)
    }

    /// Whether rules were forgotten after `since` that [`super::Index::directives_since`] does not
    /// return any more: a session has to ask for each of its rules.
    pub fn has_forgotten_since(&self, since: u64) -> bool {
        self.changes.has_forgotten_since(since)
    }

    /// Marks a rule as changed for every session.
    pub(super) fn touch(&mut self, uid: &RuleUid, effect: &mut Effect) {
        self.renew(uid);
        if let Some(entry) = self.entries.get(uid) {
            let clusters = entry.target_clusters.clusters.keys();
            effect.clusters.extend(clusters.cloned());
        }
        effect.rules.insert(uid.clone());
    }

    /// Gives a rule a new version without waking any session. The cost does not depend on the
    /// number of clusters.
    pub(super) fn renew(&mut self, uid: &RuleUid) {
        if let Some(entry) = self.entries.get_mut(uid) {
            entry.version = self.changes.record(uid, entry.version);
            entry.target = OnceLock::new();
            entry.claimants = KnownClaimants::default();
            entry.former.renew();
        }
    }

    /// Sets the chosen clusters of a rule after a change of its grants.
    pub(super) fn set_target_clusters(
        &mut self,
        uid: &RuleUid,
        now: TargetClusters,
        cause: &Cause,
        clusters: &Clusters,
    ) -> Effect {
        let mut effect = Effect::default();
        let entry = self.entries.get_mut(uid);
        let Some(entry) = entry else { return effect };
        if entry.target_clusters == now && entry.target_clusters.has_same_grants(&now) {
            return effect;
        }
        let former = std::mem::replace(&mut entry.target_clusters, now);
        if former == entry.target_clusters {
            // Only a former state may contain the kinds whose grants changed.
            entry.former.renew();
            if entry.is_rolling_back() {
                self.touch(uid, &mut effect);
            }
            return effect;
        }
        let takes_part = |name: &ClusterName| clusters.is_eligible(name);
        record_unselected(&former, entry, takes_part, |_| cause.clone());
        entry.keep_selected();
        if entry.guard.is_open() {
            effect.judge.insert(uid.clone());
        }
        effect.clusters.extend(former.clusters.into_keys());
        self.touch(uid, &mut effect);
        effect
    }

    /// Sets the unknown scopes of a rule.
    pub(super) fn set_unknown(&mut self, uid: &RuleUid, unknown: BTreeSet<WatchScope>) -> Effect {
        let mut effect = Effect::default();
        let entry = self.entries.get_mut(uid);
        let Some(entry) = entry.filter(|entry| entry.plan.unknown != unknown) else {
            return effect;
        };
        entry.cluster_plans.set_unknown(&unknown);
        Arc::make_mut(&mut entry.plan).unknown = unknown;
        entry.keep_selected();
        if entry.guard.is_open() {
            effect.judge.insert(uid.clone());
        }
        self.touch(uid, &mut effect);
        effect
    }

    /// Resets guards and gates: from now on this process decides, by the blocked sets and the
    /// rollout progress in the statuses.
    pub(super) fn reset_guards(&mut self) {
        for entry in self.entries.values_mut() {
            entry.guard = entry.rule.removal.guard();
            entry.gate = None;
            if entry.rule.deleting {
                entry.guard.remove(Item::Rule, CauseKind::Deleted.of(""));
            }
        }
    }

    /// The limits of the fleet changed: what is blocked is judged again.
    pub(super) fn apply_changed_limits(&mut self) {
        for entry in self.entries.values_mut() {
            entry.guard.apply_changed_limits();
        }
    }

    /// Returns the rules with removals to judge.
    pub(super) fn with_removals(&self) -> BTreeSet<RuleUid> {
        let open = self.iter().filter(|(_, entry)| entry.guard.is_open());
        open.map(|(uid, _)| uid.clone()).collect()
    }

    /// Whether the removal of a deleted rule has passed the guard.
    pub fn is_removal_allowed(&self, uid: &RuleUid) -> bool {
        self.get(uid)
            .is_none_or(|entry| entry.guard.decision().passes(&Item::Rule))
    }

    /// Whether removals of a rule wait for approval.
    pub fn is_blocked(&self, uid: &RuleUid) -> bool {
        self.get(uid).is_some_and(|entry| entry.guard.is_blocking())
    }

    /// Returns the pending approvals of the fleet, by cause.
    pub fn pending_causes(&self) -> Vec<PendingCause> {
        self.blocked_causes().map(|(cause, _)| cause).collect()
    }

    /// The pending approvals by cause, with their rules.
    pub(super) fn blocked_causes(&self) -> impl Iterator<Item = (PendingCause, Vec<RuleUid>)> {
        let mut causes: BTreeMap<&str, Vec<(&RuleUid, &RuleEntry, &PendingApproval)>> =
            BTreeMap::new();
        for (uid, entry) in self.iter() {
            if let Some(pending) = entry.guard.pending() {
                causes
                    .entry(&pending.cause)
                    .or_default()
                    .push((uid, entry, pending));
            }
        }
        causes.into_iter().map(|(cause, rules)| {
            let sum = |of: fn(&PendingApproval) -> i64| {
                rules
                    .iter()
                    .map(|(.., pending)| of(pending))
                    .fold(0, i64::saturating_add)
            };
            let approval = PendingApproval {
                digest: digest_of_all(
                    cause,
                    rules.iter().map(|(.., pending)| pending.digest.as_str()),
                ),
                cause: cause.to_owned(),
                causes: sum_of_causes(rules.iter().map(|(.., pending)| *pending)),
                copies: sum(|pending| pending.copies),
                clusters: rules
                    .iter()
                    .map(|(.., pending)| pending.clusters)
                    .max()
                    .unwrap_or_default(),
                names: rules
                    .iter()
                    .take(NAMES)
                    .map(|(_, entry, _)| entry.rule.terms.rule.to_string())
                    .collect(),
                since: rules
                    .iter()
                    .filter_map(|(.., pending)| pending.since.clone())
                    .min(),
            };
            let uids = rules.iter().map(|(uid, ..)| (*uid).clone()).collect();
            (
                PendingCause {
                    approval,
                    rules: rules.len() as u64,
                },
                uids,
            )
        })
    }

    /// Forgets the passed removals of a rule, because every agent reports exactly what the rule selects.
    pub fn forget_removed(&mut self, uid: &RuleUid) {
        if let Some(entry) = self.entries.get_mut(uid) {
            entry.guard.forget_removed();
        }
    }

    /// Judges removals of a cluster again, because its agent repeats the request after they passed.
    pub fn rejudge_prune(&mut self, uid: &RuleUid, cluster: &ClusterName) {
        if let Some(entry) = self.entries.get_mut(uid) {
            entry.guard.rejudge_prune(cluster);
        }
    }

    /// Handles the report of a reconnected cluster: it has no copies of rules other than these.
    pub fn drop_missing_rules(
        &mut self,
        cluster: &ClusterName,
        rules: &BTreeSet<RuleUid>,
    ) -> Effect {
        let mut effect = Effect::default();
        let others = self.iter_mut().filter(|(uid, _)| !rules.contains(*uid));
        for (uid, entry) in others.filter(|(_, entry)| entry.guard.blocks_in(cluster)) {
            entry.guard.forget(cluster);
            effect.rules.insert(uid.clone());
        }
        effect
    }

    /// Every agent has reported its intents, except those in `away`: copies of an earlier process
    /// are reported by now, or removed.
    pub fn settle_guard(&mut self, uid: &RuleUid, away: &BTreeSet<ClusterName>) -> Effect {
        let mut effect = Effect::default();
        if self
            .get_mut(uid)
            .is_some_and(|entry| entry.guard.settle(away))
        {
            effect.rules.insert(uid.clone());
            effect.judge.insert(uid.clone());
        }
        effect
    }

    /// Gives the rules new versions whose decision is not that of `before` any more.
    pub(super) fn record_decisions(
        &mut self,
        before: FormerDecisions,
        clusters: &Clusters,
    ) -> Effect {
        let mut effect = Effect::default();
        for (uid, former) in before {
            let Some(entry) = self.get(&uid) else {
                continue;
            };
            let decision = entry.guard.decision().clone();
            effect.rules.insert(uid.clone());
            if decision == former {
                continue;
            }
            match decision.differing_prunes(&former) {
                // Removals of one cluster do not concern the others.
                Some(clusters) => {
                    self.renew(&uid);
                    effect.clusters.extend(clusters);
                }
                None => self.touch(&uid, &mut effect),
            }
            if decision.differs_elsewhere(&former) {
                // Clusters that are no longer selected are concerned, too.
                effect.clusters.extend(clusters.names().cloned());
            }
        }
        effect
    }

    /// Returns the target to which the gate of a rule lets its clusters return.
    pub fn back_to(&self, uid: &RuleUid) -> Option<String> {
        self.get(uid)?.gate.as_ref()?.back_to.clone()
    }

    /// Sets the gate of a rule: its clusters may have its target. The caller has written the
    /// progress to the status before.
    pub(super) fn set_gate(&mut self, uid: &RuleUid, gate: Gate) -> Effect {
        let mut effect = Effect::default();
        let Some(entry) = self.entries.get_mut(uid) else {
            return effect;
        };
        if gate.is_paused && !entry.rule.is_paused() {
            // The rollout goes on with the next step.
            effect.rules.insert(uid.clone());
        }
        entry.was_paused &= !gate.is_paused;
        if entry.gate.as_ref() == Some(&gate) {
            return effect;
        }
        let waiting = |entry: &RuleEntry| {
            let all = entry.target_clusters.clusters.keys();
            all.filter(|cluster| entry.awaits(cluster))
                .cloned()
                .collect::<Vec<_>>()
        };
        let before = waiting(entry);
        let back_to = gate.back_to.clone();
        let before_back_to = entry.gate.replace(gate).map(|gate| gate.back_to);
        let set_gate = before.into_iter().filter(|cluster| !entry.awaits(cluster));
        effect.clusters.extend(set_gate);
        if before_back_to != Some(back_to) {
            let clusters = entry.target_clusters.clusters.keys();
            effect.clusters.extend(clusters.cloned());
        }
        if !effect.clusters.is_empty() {
            self.renew(uid);
        }
        effect.rules.insert(uid.clone());
        effect
    }

    /// Returns the rules with an unfinished rollout that do not wait for a later window.
    pub fn rolling(&self, now: Timestamp) -> Vec<RuleUid> {
        let rolling = self.iter().filter(|(_, entry)| entry.is_rolling(now));
        rolling.map(|(uid, _)| uid.clone()).collect()
    }

    /// Returns the last result of the analysis of a rule.
    pub fn check(&self, uid: &RuleUid) -> Option<&CheckResult> {
        self.checks.get(uid)
    }

    /// Sets the result of the analysis of a rule.
    pub fn set_check(&mut self, uid: &RuleUid, result: CheckResult) -> Effect {
        let mut effect = Effect::default();
        if self.entries.contains_key(uid) {
            self.checks.insert(uid.clone(), result);
            effect.statuses.insert(uid.clone());
        }
        effect
    }

    /// Returns the URL of the analysis of a rule that the hub may not request.
    pub fn refused_url(&self, rollout: &Rollout) -> Option<String> {
        let url = rollout.analysis.as_ref()?.check.url();
        (!self.allowed_urls.allows(&url)).then_some(url)
    }

    /// Returns the states of completed rollouts.
    pub fn completed(&self) -> &CompletedStates {
        &self.completed
    }

    /// Sets the stored state of a rule's last completed rollout; `None`: there is none.
    pub(super) fn set_completed_state(
        &mut self,
        uid: &RuleUid,
        state: Option<StoredState>,
    ) -> Effect {
        self.completed.set(uid, state);
        self.renew_former(uid)
    }

    /// Sets all stored states. `missing` is the reason for which any other rule has none.
    pub(super) fn set_completed_states(
        &mut self,
        states: BTreeMap<RuleUid, StoredState>,
        missing: RollbackBlocker,
    ) -> Effect {
        self.completed = CompletedStates::of(states, missing);
        let mut effect = Effect::default();
        for uid in self.uids().cloned().collect::<Vec<_>>() {
            effect.merge(self.renew_former(&uid));
        }
        effect
    }

    /// Sets the states that are kept of a rule.
    pub(super) fn set_kept_states(&mut self, uid: &RuleUid, kept: Vec<KeptRevision>) -> Effect {
        self.completed.set_kept(uid, kept);
        Effect {
            statuses: [uid.clone()].into(),
            ..Effect::default()
        }
    }

    fn renew_former(&mut self, uid: &RuleUid) -> Effect {
        let (mut effect, stored) = (Effect::default(), self.completed.rollback_plan(uid));
        let Some(entry) = self.entries.get_mut(uid) else {
            return effect;
        };
        entry.former = stored.reusing(&mut entry.former);
        effect.rules.insert(uid.clone());
        if entry.is_rolling_back() {
            self.touch(uid, &mut effect);
        }
        effect
    }
}

/// Deleted rules that are listed for sessions that have not received the deletion.
pub(super) const FORGOTTEN_LIMIT: usize = 1024;

/// The newest version of each rule.
#[derive(Default)]
struct ChangeLog {
    version: u64,
    changes: BTreeMap<u64, RuleUid>,
    forgotten: BTreeMap<u64, RuleUid>,
    /// The version of the newest deleted rule that is not listed any more.
    forgotten_before: u64,
}

impl ChangeLog {
    /// Gives a rule a new version, instead of `former`.
    fn record(&mut self, uid: &RuleUid, former: u64) -> u64 {
        self.version += 1;
        self.changes.remove(&former);
        self.changes.insert(self.version, uid.clone());
        self.version
    }

    /// The rule of this version is not in the index any more.
    fn remove(&mut self, version: u64) {
        self.changes.remove(&version);
    }

    /// Lists a rule that is not in the index.
    fn forget(&mut self, uid: &RuleUid) {
        self.version += 1;
        self.forgotten.insert(self.version, uid.clone());
        while self.forgotten.len() > FORGOTTEN_LIMIT
            && let Some((version, _)) = self.forgotten.pop_first()
        {
            self.forgotten_before = version;
        }
    }

    /// The rules with a newer version.
    fn since(&self, version: u64) -> impl Iterator<Item = &RuleUid> {
        let newer = (Bound::Excluded(version), Bound::Unbounded);
        self.changes
            .range(newer)
            .chain(self.forgotten.range(newer))
            .map(|(_, uid)| uid)
    }

    /// Whether rules that were deleted after this version are not listed any more.
    fn has_forgotten_since(&self, version: u64) -> bool {
        version > 0 && version < self.forgotten_before
    }
}
