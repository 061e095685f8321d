//! The state of one rule in one cluster.
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use runnel_proto::model::{
    self, ClusterName, Failure, LostWatch, NAMESPACES_LIMIT, ProofKey, SourceRef, WaitingNamespaces,
};

use super::report_store::RuleReport;
use super::view::{ClusterView, counted};
use super::{ReportStore, SETTLING, View};
use crate::index::RuleEntry;
use crate::plan::{
    ClusterPlans, GrantedTerms, RenderError, RenderErrorKind, RulePlan, TargetClusters, digest_on,
    proof_on,
};
use crate::session::RULES_LIMIT;
use runnel_api::conditions::Reason;
use runnel_api::{ClusterState, ClusterStatus};

/// The message for a cluster that reports everything as applied and proves something else.
const DIFFERS: &str =
    "its agent reports every copy as applied, but its proof does not match what the hub has sent";

/// Whether an agent has proved its report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProofState {
    /// The member's API has everything that was sent.
    Yes,
    /// The member's API has other content.
    No,
    /// There is nothing to compare yet: not every copy is applied, or one side has no digest.
    NotCompared,
}

/// The state of one rule in one cluster.
pub(super) struct RuleClusterState {
    pub(super) state: ClusterState,
    /// The state without the health of copies.
    pub(super) applied_state: ClusterState,
    pub(super) copies: i64,
    pub(super) applied: i64,
    pub(super) failed: i64,
    pub(super) waiting: i64,
    pub(super) drifted: i64,
    pub(super) to_create: i64,
    pub(super) to_update: i64,
    pub(super) to_delete: i64,
    pub(super) with_health: i64,
    pub(super) healthy: i64,
    pub(super) unhealthy: i64,
    pub(super) awaiting_health: i64,
    pub(super) reason: Reason,
    pub(super) message: String,
    /// The namespaces for which copies wait.
    pub(super) absent: WaitingNamespaces,
    /// Whether the cluster counts as connected.
    pub(super) is_connected: bool,
    /// Whether its agent is connected and cannot read its copies.
    pub(super) is_blind: bool,
}

/// Where a change of a rule is in progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InProgress {
    /// The hub is still determining what the rule selects.
    Reading,
    /// This cluster has not reported its copies of the newest plan, and others may not have either.
    In(ClusterName),
}

/// Returns where a change of the rule is in progress; `None` if every cluster has reported its copies of the newest plan, or is
/// unreachable. Looks first at `former`, the answer of the last time: it stays the answer for as long as that cluster takes, and
/// then the others need not be read.
pub fn in_progress(
    view: &View<'_>,
    report_store: &ReportStore,
    former: Option<&InProgress>,
    now: Instant,
) -> Option<InProgress> {
    if is_reading(view) {
        return Some(InProgress::Reading);
    }
    let chosen = &view.target_clusters.clusters;
    let former = match former {
        Some(InProgress::In(name)) if chosen.contains_key(name) => {
            Some(view.cluster(report_store, name))
        }
        Some(_) | None => None,
    };
    former
        .into_iter()
        .chain(view.clusters(report_store))
        .find(|cluster| state(view, cluster, now) == ClusterState::Progressing)
        .map(|cluster| InProgress::In(cluster.name.clone()))
}

/// Whether the hub is still determining what the rule selects: a source is not read, or a kind is
/// not listed, for the first time. Reports about a part of the sources are incomplete.
pub(super) fn is_reading(view: &View<'_>) -> bool {
    let not_listed = |scope| !view.unreadable.contains_key(scope);
    !view.plan.unread.is_empty() || view.plan.unknown.iter().any(not_listed)
}

/// Whether the hub started so recently that a missing connection of the cluster proves nothing.
pub(super) fn is_awaited(view: &View<'_>, cluster: &ClusterView<'_>, now: Instant) -> bool {
    !cluster.has_connected()
        && !is_absent(view, cluster)
        && now.saturating_duration_since(view.hub_started) < SETTLING
}

/// Whether no agent has ever joined as this cluster.
fn is_absent(view: &View<'_>, cluster: &ClusterView<'_>) -> bool {
    let member = view.members.get(cluster.name);
    member.is_some_and(|member| !member.was_connected)
}

/// The state alone, which is read far more often than the whole entry.
fn state(view: &View<'_>, cluster: &ClusterView<'_>, now: Instant) -> ClusterState {
    judge_health(applied_state(view, cluster, now), cluster.rule_report)
}

/// Adds the health of copies to a state without it. It decides only where everything else is as it should be.
fn judge_health(applied_state: ClusterState, rule_report: Option<&RuleReport>) -> ClusterState {
    match applied_state {
        ClusterState::Ready => health_state(rule_report),
        other => other,
    }
}

/// The state of a cluster that has every copy applied.
pub(super) fn health_state(rule_report: Option<&RuleReport>) -> ClusterState {
    let counts = rule_report.map(|rule_report| rule_report.counts);
    match counts {
        Some(counts) if counts.unhealthy > 0 => ClusterState::Failed,
        Some(counts) if counts.awaiting_health() > 0 => ClusterState::Progressing,
        _ => ClusterState::Ready,
    }
}

/// The state without the health of copies.
fn applied_state(view: &View<'_>, cluster: &ClusterView<'_>, now: Instant) -> ClusterState {
    if is_awaited(view, cluster, now) {
        return ClusterState::Progressing;
    }
    if !cluster.is_connected(now) {
        return ClusterState::Unreachable;
    }
    if let Some(watch) = cluster.lost_watch(view) {
        return if is_forbidden(&watch) {
            ClusterState::Failed
        } else {
            ClusterState::Unreachable
        };
    }
    if cluster.is_over_limit(view) {
        return ClusterState::Failed;
    }
    let Some(rule_report) = cluster.rule_report else {
        let awaits_turn =
            view.awaits(cluster.name) || view.target_clusters.cordoned.contains(cluster.name);
        return if cluster.is_unconfirmed(view) || (awaits_turn && !is_reading(view)) {
            ClusterState::Waiting
        } else {
            ClusterState::Progressing
        };
    };
    let counts = rule_report.counts;
    // Copies that cannot be removed fail the cluster. The message names the cause.
    if rule_report.counts.failed > 0
        || (counts.removing > 0 && rule_report.details().failures.iter().any(is_failure))
    {
        ClusterState::Failed
    } else if (view.awaits(cluster.name) && !is_reading(view))
        || (view.is_rollback(cluster.name)
            && has_applied_plan(view, cluster, rule_report)
            && counts.is_settled())
    {
        ClusterState::Waiting
    } else if !cluster.sent.render_errors.is_empty() {
        ClusterState::Failed
    } else if is_behind(view, cluster, rule_report) || is_unconfirmed(view, cluster, rule_report) {
        ClusterState::Waiting
    } else if is_reading(view)
        || is_pruning(view, rule_report)
        || !has_applied_plan(view, cluster, rule_report)
        || !counts.is_settled()
        || counts.failed > 0
    {
        ClusterState::Progressing
    } else if counts.to_create > 0
        || counts.to_update > 0
        || to_delete(view, cluster, rule_report) > 0
    {
        ClusterState::DryRun
    } else if counts.drifted > 0 {
        ClusterState::Drifted
    } else if proved(view, cluster, rule_report) == ProofState::No {
        ClusterState::Failed
    } else if counts.waiting > 0 {
        ClusterState::Waiting
    } else {
        ClusterState::Ready
    }
}

/// Returns the number of copies that a dry run would remove: by the agent's report and by order of
/// the hub.
fn to_delete(view: &View<'_>, cluster: &ClusterView<'_>, rule_report: &RuleReport) -> i64 {
    let ordered = view
        .planned_removals
        .get(cluster.name)
        .copied()
        .unwrap_or_default();
    i64::try_from(ordered.saturating_add(rule_report.counts.to_delete.into())).unwrap_or(i64::MAX)
}

/// Whether the member's API server refuses the watch to the agent.
fn is_forbidden(watch: &LostWatch) -> bool {
    matches!(watch.status, 401 | 403)
}

/// Returns the message about a lost watch, with a fix.
pub(super) fn without_watch(watch: &LostWatch) -> String {
    let resource = &watch.resource;
    let cause = match watch.status {
        0 => "the member's API server does not answer its agent".to_owned(),
        401 => {
            "the member's API server does not accept the credentials of its agent (401)".to_owned()
        }
        403 => {
            format!(
                "the agent lacks the right to list and watch {resource} (403); grant it the rights of its chart"
            )
        }
        404 => {
            format!(
                "the member's API server does not serve {resource} now (404), and its objects may still exist: check its \
                 CustomResourceDefinition or APIService there"
            )
        }
        status => {
            format!(
                "the member's API server answers {status} to a watch of {resource}; see its log"
            )
        }
    };
    format!("{cause}; the counts are the last observed values")
}

pub(super) fn state_of(
    view: &View<'_>,
    cluster: &ClusterView<'_>,
    now: Instant,
) -> RuleClusterState {
    let (rule_report, name) = (cluster.rule_report, cluster.name);
    let applied_state = applied_state(view, cluster, now);
    let state = judge_health(applied_state, rule_report);
    let is_by_health = state != applied_state;
    // For an unreachable cluster only.
    let before = || {
        view.previous
            .clusters
            .iter()
            .find(|known| known.name == name.as_str())
    };
    let counts = rule_report
        .map(|rule_report| rule_report.counts)
        .unwrap_or_default();
    let lost_watch = cluster
        .lost_watch(view)
        .filter(|_| cluster.is_connected(now));
    let (reason, message) = match state {
        ClusterState::Failed if let Some(watch) = &lost_watch => {
            (model::Reason::Forbidden.into(), without_watch(watch))
        }
        ClusterState::Failed if is_by_health => unhealthy(rule_report),
        ClusterState::Progressing if is_by_health => (
            Reason::AwaitingHealth,
            not_healthy_yet(counts.awaiting_health().into()),
        ),
        ClusterState::Failed if cluster.is_over_limit(view) => (Reason::RuleLimit, over_limit_message(cluster)),
        ClusterState::Failed
            if rule_report.is_some_and(|all| proved(view, cluster, all) == ProofState::No) =>
        {
            (Reason::DigestMismatch, DIFFERS.to_owned())
        }
        ClusterState::Failed | ClusterState::Drifted => worst(rule_report)
            .or_else(|| from_cluster(cluster.sent))
            .unwrap_or_else(failed),
        ClusterState::Unreachable if let Some(watch) = &lost_watch => {
            (Reason::MemberAPIUnavailable, without_watch(watch))
        }
        ClusterState::Unreachable => {
            let has_joined = view.members.contains_key(name) && !is_absent(view, cluster);
            silent(
                cluster.has_connected() || has_joined || before().is_some_and(was_connected),
            )
        }
        ClusterState::Waiting
            if rule_report.map_or(cluster.is_unconfirmed(view), |rule_report| {
                is_unconfirmed(view, cluster, rule_report)
            }) =>
        {
            (
                Reason::Unconfirmed,
                format!(
                    "it waits for an administrator: see the conditions of MemberCluster {name}"
                ),
            )
        }
        ClusterState::Waiting
            if view.awaits(name) && !view.target_clusters.cordoned.contains(name) =>
        {
            (
                Reason::RollingOut,
                "the cluster waits for its wave in the rollout: its copies are left unchanged".to_owned(),
            )
        }
        ClusterState::Waiting if view.is_rollback(name) => (
            Reason::Reverted,
            "its copies are as the last completed rollout sent them: the newest one failed"
                .to_owned(),
        ),
        ClusterState::Waiting
            if view.awaits(name)
                || rule_report.is_none_or(|rule_report| is_behind(view, cluster, rule_report)) =>
        {
            (
                Reason::Cordoned,
                "its copies are left unchanged, and nothing new is sent until spec.cordoned is false".to_owned(),
            )
        }
        ClusterState::Waiting => {
            let namespaces = rule_report.map(|rule_report| absent_namespaces([&rule_report.details().waiting]));
            let message = match (counts.waiting, namespaces.flatten()) {
                (1, None) => "1 copy waits for a namespace that does not exist".to_owned(),
                (more, None) => format!("{more} copies wait for namespaces that do not exist"),
                (1, Some(namespaces)) => format!("1 copy waits: {namespaces}"),
                (more, Some(namespaces)) => format!("{more} copies wait: {namespaces}"),
            };
            (Reason::CopiesWaiting, message)
        }
        ClusterState::Progressing if is_awaited(view, cluster, now) => (
            Reason::Progressing,
            "the agent has not connected since the hub started".to_owned(),
        ),
        ClusterState::Progressing => delayed(rule_report).unwrap_or_else(|| {
            (Reason::Progressing, "copies are being applied".to_owned())
        }),
        // The first change that is reported, with paths of fields.
        ClusterState::DryRun => worst(rule_report).unwrap_or_else(|| {
            (
                model::Reason::DryRun.into(),
                "copies would change".to_owned(),
            )
        }),
        ClusterState::Ready => (Reason::AllApplied, String::new()),
    };
    let cluster_state = RuleClusterState {
        state,
        applied_state,
        copies: counts.copies.into(),
        applied: counts.applied.into(),
        failed: rule_report
            .map_or(0, |rule_report| rule_report.counts.failed)
            .into(),
        waiting: counts.waiting.into(),
        drifted: counts.drifted.into(),
        to_create: counts.to_create.into(),
        to_update: counts.to_update.into(),
        to_delete: rule_report.map_or(0, |rule_report| to_delete(view, cluster, rule_report)),
        with_health: counts.with_health.into(),
        healthy: counts.healthy.into(),
        unhealthy: counts.unhealthy.into(),
        awaiting_health: counts.awaiting_health().into(),
        reason,
        message,
        absent: rule_report
            .map(|rule_report| rule_report.details().waiting.clone())
            .unwrap_or_default(),
        is_connected: cluster.is_connected(now),
        is_blind: lost_watch.is_some(),
    };
    // The hub only has a report from before its start.
    let before = if rule_report.is_none() && state == ClusterState::Unreachable {
        before()
    } else {
        None
    };
    match before {
        Some(before) => RuleClusterState {
            copies: before.applied
                + before.failed
                + before.waiting
                + before.drifted
                + before.to_create
                + before.to_update,
            applied: before.applied,
            failed: before.failed,
            waiting: before.waiting,
            drifted: before.drifted,
            to_create: before.to_create,
            to_update: before.to_update,
            to_delete: before.to_delete,
            with_health: before.with_health,
            healthy: before.healthy,
            ..cluster_state
        },
        None => cluster_state,
    }
}

/// Returns the text about the namespaces for which copies wait, with the first names and the number of others; `None`
/// if no agent has named one.
pub(super) fn absent_namespaces<'a>(
    waiting: impl IntoIterator<Item = &'a WaitingNamespaces>,
) -> Option<String> {
    let mut named = BTreeSet::new();
    let mut most = 0;
    let mut is_whole = true;
    for of_cluster in waiting {
        let first: Vec<_> = of_cluster.first.iter().map(String::as_str).collect();
        let count = usize::try_from(of_cluster.count).unwrap_or(usize::MAX);
        is_whole &= first.len() >= count;
        most = most.max(count);
        named.extend(first);
    }
    let first: Vec<_> = named.iter().copied().take(NAMESPACES_LIMIT).collect();
    // Of further namespaces in several clusters it is not known which are the same.
    let count = if is_whole {
        named.len()
    } else {
        most.max(named.len())
    };
    let names = first.join(", ");
    match (first.as_slice(), count.saturating_sub(first.len())) {
        ([], _) => None,
        ([_], 0) => Some(format!("the namespace {names} does not exist")),
        (_, 0) => Some(format!("the namespaces {names} do not exist")),
        (_, 1) => Some(format!("the namespaces {names} and 1 other do not exist")),
        (_, more) => Some(format!(
            "the namespaces {names} and {more} others do not exist"
        )),
    }
}

/// Tolerated drift is no failure of a write, and neither is the health of a copy, or a copy that waits for another object.
pub(super) fn is_failure(failure: &Failure) -> bool {
    !matches!(
        failure.reason,
        model::Reason::Drifted
            | model::Reason::DryRun
            | model::Reason::Unhealthy
            | model::Reason::WaitingForDependency
    )
}

fn was_connected(before: &ClusterStatus) -> bool {
    before.reason != Reason::NeverConnected.as_str()
}

fn silent(was_connected: bool) -> (Reason, String) {
    if was_connected {
        (
            Reason::SessionLost,
            "the agent is not connected; the counts are the last reported values".to_owned(),
        )
    } else {
        (
            Reason::NeverConnected,
            "the agent is not connected".to_owned(),
        )
    }
}

/// Quotes the text of an agent, which any member can choose, so that it is not mistaken for a text
/// of the hub.
fn worst(rule_report: Option<&RuleReport>) -> Option<(Reason, String)> {
    let mut failures = rule_report?.details().failures.iter();
    failures
        .find(|failure| failure.reason != model::Reason::Unhealthy)
        .map(quoted)
}

fn quoted(failure: &Failure) -> (Reason, String) {
    let Failure {
        reason,
        copy,
        message,
    } = failure;
    (
        (*reason).into(),
        format!("{copy}: its agent reports: {message}"),
    )
}

/// Returns the reason and message about the first copy that waits for another object.
fn delayed(rule_report: Option<&RuleReport>) -> Option<(Reason, String)> {
    let waits = |failure: &&Failure| failure.reason == model::Reason::WaitingForDependency;
    rule_report?
        .details()
        .failures
        .iter()
        .find(waits)
        .map(quoted)
}

/// Returns the reason and message of a cluster whose only failures are unhealthy copies. The message of an object is
/// quoted like that of an agent.
fn unhealthy(rule_report: Option<&RuleReport>) -> (Reason, String) {
    let failures = rule_report.map_or(&[][..], |rule_report| &rule_report.details().failures);
    let first = failures
        .iter()
        .find(|failure| failure.reason == model::Reason::Unhealthy);
    let message = match first {
        Some(first) if first.message.is_empty() => format!("{} has failed there", first.copy),
        Some(first) => format!("{} reports: {}", first.copy, first.message),
        None => "copies have failed there".to_owned(),
    };
    (model::Reason::Unhealthy.into(), message)
}

/// Returns the message about copies that are in progress.
pub(super) fn not_healthy_yet(copies: i64) -> String {
    let copies = counted(copies, "copy is", "copies are");
    format!("{copies} applied and not healthy yet")
}

/// Returns the message about a rule over the limit of a cluster.
fn over_limit_message(cluster: &ClusterView<'_>) -> String {
    format!(
        "the rule is not sent: the cluster holds {RULES_LIMIT} rules, the most for one cluster, and {} more choose it. Delete \
         rules, or have them choose fewer clusters",
        cluster.rules_over_limit()
    )
}

/// Whether copies in former target namespaces are being removed. Blocked ones stay.
pub(super) fn is_pruning(view: &View<'_>, rule_report: &RuleReport) -> bool {
    rule_report.details().namespace_prunes.is_some() && !view.blocks_prunes
}

fn failed() -> (Reason, String) {
    (Reason::CopiesFailed, "copies failed".to_owned())
}

/// Whether a cordoned cluster lacks the rule's current state.
fn is_behind(view: &View<'_>, cluster: &ClusterView<'_>, rule_report: &RuleReport) -> bool {
    view.target_clusters.cordoned.contains(cluster.name)
        && !is_reading(view)
        && !has_applied_plan(view, cluster, rule_report)
}

/// Whether a cluster with a send restriction lacks the rule's current state.
fn is_unconfirmed(view: &View<'_>, cluster: &ClusterView<'_>, rule_report: &RuleReport) -> bool {
    cluster.is_unconfirmed(view)
        && !is_reading(view)
        && !has_applied_plan(view, cluster, rule_report)
}

/// Whether a cluster has the newest revision of every source and has applied all of them, except
/// copies that wait for their namespaces. False for every cluster while the hub cannot determine
/// the newest revision.
pub(super) fn is_newest(
    view: &View<'_>,
    cluster: &ClusterView<'_>,
    rule_report: &RuleReport,
) -> bool {
    let Some(terms) = cluster.terms else {
        return false;
    };
    let same = rule_report.intents_digest == digest_on(cluster.sent, terms);
    let counts = rule_report.counts;
    let applied = counts.applied.saturating_add(counts.waiting) == counts.copies
        && !view.is_rollback(cluster.name);
    let applied = applied && cluster.lost_watch(view).is_none();
    is_comparable(view, cluster) && cluster.sent.unread.is_empty() && same && applied
}

/// Whether a cluster has proved that its API has the content of the plan.
pub(super) fn proved(
    view: &View<'_>,
    cluster: &ClusterView<'_>,
    rule_report: &RuleReport,
) -> ProofState {
    let Some(terms) = cluster.terms else {
        return ProofState::NotCompared;
    };
    SentRule::of(view).proved(cluster.sent, terms, cluster.proof_key, rule_report)
}

/// The sent state of a rule that proofs refer to.
pub struct SentRule<'a> {
    plan: &'a RulePlan,
    cluster_plans: &'a ClusterPlans,
    target_clusters: &'a TargetClusters,
    /// A removal that the hub decided on is blocked.
    acked: bool,
}

impl<'a> From<&'a RuleEntry> for SentRule<'a> {
    fn from(entry: &'a RuleEntry) -> Self {
        Self {
            plan: &entry.plan,
            cluster_plans: entry.sent().0,
            target_clusters: entry.sent().1,
            acked: entry.guard.blocks_removals(),
        }
    }
}

impl<'a> SentRule<'a> {
    /// As above, for a known entry.
    pub(super) fn of(view: &View<'a>) -> Self {
        Self {
            plan: view.plan,
            cluster_plans: view.cluster_plans,
            target_clusters: view.target_clusters,
            acked: view.blocks_removals,
        }
    }

    /// Returns the number of clusters that report every copy as applied with a different proof.
    pub fn differing(&self, report_store: &ReportStore) -> usize {
        self.target_clusters
            .clusters
            .keys()
            .filter(|cluster| self.differs_in(report_store, cluster))
            .count()
    }

    /// Whether the agent's last report in its newest session has a different proof.
    pub fn differs_in(&self, report_store: &ReportStore, cluster: &ClusterName) -> bool {
        let (rule_report, terms) = (
            report_store.rule_report(cluster, &self.plan.uid),
            self.target_clusters.clusters.get(cluster),
        );
        let plan = self
            .cluster_plans
            .plan_of(cluster)
            .map_or(self.plan, |made| made);
        rule_report.zip(terms).is_some_and(|(rule_report, terms)| {
            self.proved(plan, terms, report_store.proof_key.as_ref(), rule_report) == ProofState::No
        })
    }

    /// Not compared: undecided sources, and reports about another or an incomplete plan.
    fn proved(
        &self,
        plan: &RulePlan,
        terms: &GrantedTerms,
        key: Option<&ProofKey>,
        rule_report: &RuleReport,
    ) -> ProofState {
        let (Some(text), Some(key)) = (rule_report.proof, key) else {
            return ProofState::NotCompared;
        };
        let is_known =
            self.plan.unread.is_empty() && self.plan.unknown.is_empty() && can_be_compared(plan);
        let same = rule_report.terms_digest == Some(terms.digest)
            && rule_report.intents_digest == digest_on(plan, terms);
        let counts = rule_report.counts;
        let all =
            counts.is_settled() && counts.applied.saturating_add(counts.waiting) == counts.copies;
        if !is_known || self.acked || !same || !all {
            return ProofState::NotCompared;
        }
        match proof_on(plan, terms, key) {
            None => ProofState::NotCompared,
            Some(expected) if expected == text => ProofState::Yes,
            Some(_) => ProofState::No,
        }
    }
}

/// Whether the agent's intents can be compared with the plan. They cannot if the plan is undecided
/// about a source, if the guard blocks one, or in a dry run, where sources that are no longer
/// selected stay with the agent.
pub(super) fn is_comparable(view: &View<'_>, cluster: &ClusterView<'_>) -> bool {
    can_be_compared(cluster.sent) && !view.blocks_removals && !view.rule.terms.is_dry_run()
}

/// Whether a plan is decided about every source.
fn can_be_compared(plan: &RulePlan) -> bool {
    plan.unreadable.is_empty() && plan.unknown.is_empty() && plan.render_errors.is_empty()
}

/// Whether the report is about the newest plan or, if the plans cannot be compared, about the
/// newest terms. Such a rule is stalled anyway.
pub(super) fn has_applied_plan(
    view: &View<'_>,
    cluster: &ClusterView<'_>,
    rule_report: &RuleReport,
) -> bool {
    let Some(terms) = cluster.terms else {
        return false;
    };
    let same_terms = rule_report.terms_digest == Some(terms.digest);
    same_terms
        && (!is_comparable(view, cluster)
            || rule_report.intents_digest == digest_on(cluster.sent, terms))
}

/// The word for it.
fn reason(why: RenderErrorKind) -> Reason {
    match why {
        RenderErrorKind::Ambiguous => Reason::Copy(model::Reason::AmbiguousSource),
        RenderErrorKind::Name => Reason::InvalidName,
        RenderErrorKind::Transform => Reason::TransformFailed,
        RenderErrorKind::Variable => Reason::VariableMissing,
        RenderErrorKind::Value => Reason::ValueMissing,
        RenderErrorKind::Object => Reason::InvalidCopy,
        RenderErrorKind::Budget => Reason::RenderBudgetExceeded,
    }
}

/// Returns the first render error of a cluster's plan.
pub(super) fn from_cluster(sent: &RulePlan) -> Option<(Reason, String)> {
    let render_errors = &sent.render_errors;
    let (_, first) = render_errors.first_key_value()?;
    let more = match render_errors.len() {
        1 => String::new(),
        all => format!(" (and {} more of the sources)", all - 1),
    };
    Some((reason(first.why), format!("{}{more}", first.message)))
}

/// Returns the first render error of any plan, and their number.
pub(super) fn from_any(view: &View<'_>) -> Option<(Reason, String)> {
    let mut first: Option<(&ClusterName, &RenderError)> = None;
    let mut clusters = 0;
    let mut sources: BTreeSet<&SourceRef> = BTreeSet::new();
    // Clusters with the same content share it: each plan is checked once.
    let mut seen: BTreeMap<*const RulePlan, bool> = BTreeMap::new();
    for cluster in view.target_clusters.clusters.keys() {
        let sent = view.sent(cluster);
        let lacks = *seen.entry(std::ptr::from_ref(sent)).or_insert_with(|| {
            sources.extend(sent.render_errors.keys());
            !sent.render_errors.is_empty()
        });
        clusters += usize::from(lacks);
        first = first.or_else(|| Some((cluster, sent.render_errors.first_key_value()?.1)));
    }
    let (cluster, render_errors) = first?;
    let scope = match clusters {
        all if all == view.target_clusters.clusters.len()
            && !view.cluster_plans.differs_by_cluster() =>
        {
            String::new()
        }
        1 => format!(" to {cluster}"),
        all => format!(" to {all} clusters, among them {cluster}"),
    };
    let (what, of) = match sources.len() {
        1 => ("1 source is".to_owned(), "it"),
        more => (format!("{more} sources are"), "them"),
    };
    let message = format!(
        "{what} not sent{scope}, and existing copies of {of} are left unchanged: {}",
        render_errors.message
    );
    Some((reason(render_errors.why), message))
}
