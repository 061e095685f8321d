//! Computes the status of a rule.
use std::collections::BTreeSet;
use std::time::Instant;

use ring::digest;
use runnel_proto::model::{self, ClusterName};

use super::granted::{granted, lacks_copies};
use super::rollout_view::{
    analysis_refused, invalid_window, reverted, rolling_out, rollout_failure, rollout_reverted,
    rollout_stopped,
};
use super::rule_cluster_state::{
    RuleClusterState, absent_namespaces, from_any, is_awaited, is_reading, not_healthy_yet,
    state_of,
};
use super::unmatched::{
    kind_not_served, no_clusters, no_namespaces, no_sources, scope_mismatch, unmatched,
};
use super::view::{ConditionValue, View, counted, describe_pending};
use super::{Now, ReportStore, SETTLING};
use crate::plan::{RulePlan, UnsupportedSource};
use runnel_api::conditions::{
    ConditionStatus, ConditionType, Reason, remove_condition, set_condition, shortened,
    whole_seconds,
};
use runnel_api::{
    ClusterState, ClusterStatus, Display, RolloutStatus, RuleStatus, Summary, limits,
};

/// Returns the desired status of the rule; `None` if the current one is right, or is kept while
/// clusters reconnect after a start of the hub.
pub fn fold(view: &View<'_>, report_store: &ReportStore, now: Now) -> Option<RuleStatus> {
    let states: Vec<_> = view
        .clusters(report_store)
        .map(|cluster| (cluster.name, state_of(view, &cluster, now.instant)))
        .collect();
    let summary = summarize(view, &states);
    let mut status = view.previous.clone();
    let progress = view
        .rolling
        .as_ref()
        .and_then(|rolling| rolling.progress.as_ref());
    // A dry run keeps the progress for the time after it.
    if !view.rule.terms.is_dry_run() {
        status.rollout = progress.map(|progress| RolloutStatus {
            history: view.kept.to_vec(),
            ..progress.into()
        });
    }
    if is_status_premature(view, report_store, &summary, now.instant) {
        // Other replicas read the progress of the rollout only here.
        return (status != *view.previous).then_some(status);
    }
    status.observed_generation = Some(view.rule.generation);
    status.display = Some(Display::from(&summary));
    status.summary = Some(summary);
    status.pending_approval.clone_from(&view.pending);
    let is_everywhere = set_conditions(&mut status, view, &states, now);
    if is_everywhere {
        status.revision = Some(revision(view));
    }
    list_clusters(&mut status, view, states, now);
    (status != *view.previous).then_some(status)
}

fn summarize(view: &View<'_>, states: &[(&ClusterName, RuleClusterState)]) -> Summary {
    let sum = |count: fn(&RuleClusterState) -> i64| {
        states
            .iter()
            .map(|(_, cluster_state)| count(cluster_state))
            .sum()
    };
    Summary {
        sources: i64::try_from(view.plan.sources()).unwrap_or(i64::MAX),
        clusters: i64::try_from(states.len()).unwrap_or(i64::MAX),
        clusters_ready: sum(|cluster_state| i64::from(cluster_state.state == ClusterState::Ready)),
        copies: sum(|cluster_state| cluster_state.copies),
        copies_applied: sum(|cluster_state| cluster_state.applied),
        copies_failed: sum(|cluster_state| cluster_state.failed),
        copies_waiting: sum(|cluster_state| cluster_state.waiting),
        copies_drifted: sum(|cluster_state| cluster_state.drifted),
        copies_to_create: sum(|cluster_state| cluster_state.to_create),
        copies_to_update: sum(|cluster_state| cluster_state.to_update),
        copies_to_delete: sum(|cluster_state| cluster_state.to_delete)
            .saturating_add(removals_elsewhere(view)),
        copies_with_health: sum(|cluster_state| cluster_state.with_health),
        copies_healthy: sum(|cluster_state| cluster_state.healthy),
    }
}

/// Returns the number of copies that a dry run would remove from clusters that are no longer
/// chosen.
fn removals_elsewhere(view: &View<'_>) -> i64 {
    let elsewhere = view
        .planned_removals
        .iter()
        .filter(|(cluster, _)| !view.target_clusters.clusters.contains_key(*cluster));
    i64::try_from(
        elsewhere
            .map(|(_, copies)| *copies)
            .fold(0, u64::saturating_add),
    )
    .unwrap_or(i64::MAX)
}

/// A hub that just started writes only improvements and definite failures: while a cluster may
/// still connect, the persisted status stays.
fn is_status_premature(
    view: &View<'_>,
    report_store: &ReportStore,
    summary: &Summary,
    now: Instant,
) -> bool {
    let just_started = now.saturating_duration_since(view.hub_started) < SETTLING;
    // Later the hub waits for no cluster.
    let awaited = just_started
        && (is_reading(view)
            || view
                .clusters(report_store)
                .any(|cluster| is_awaited(view, &cluster, now)));
    let known = view.previous.observed_generation == Some(view.rule.generation);
    let failures_before = view
        .previous
        .summary
        .is_some_and(|summary| summary.copies_failed > 0);
    let new_failures = summary.copies_failed > 0 && !failures_before;
    awaited && known && !new_failures
}

/// Returns the digest of plan and terms.
fn revision(view: &View<'_>) -> String {
    let mut context = digest::Context::new(&digest::SHA256);
    context.update(&view.plan.digest.to_bytes());
    let sent = view
        .target_clusters
        .clusters
        .keys()
        .map(|cluster| (cluster, view.sent(cluster).digest));
    for (cluster, digest) in sent.filter(|(_, digest)| *digest != view.plan.digest) {
        context.update(cluster.as_str().as_bytes());
        context.update(&digest.to_bytes());
    }
    let digests: BTreeSet<_> = view
        .target_clusters
        .clusters
        .values()
        .map(|terms| terms.digest.0)
        .collect();
    for digest in digests {
        context.update(&digest);
    }
    data_encoding::HEXLOWER.encode(&context.finish().as_ref()[..8])
}

/// What a condition is about.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Judged {
    /// The copies equal their sources.
    Applied,
    /// They are healthy, too, if they have a health.
    Healthy,
}

impl Judged {
    fn state_of(self, cluster_state: &RuleClusterState) -> ClusterState {
        match self {
            Self::Applied => cluster_state.applied_state,
            Self::Healthy => cluster_state.state,
        }
    }
}

/// Returns whether every copy is applied in every chosen cluster.
fn set_conditions(
    status: &mut RuleStatus,
    view: &View<'_>,
    states: &[(&ClusterName, RuleClusterState)],
    now: Now,
) -> bool {
    let generation = Some(view.rule.generation);
    let mut set = |condition_type, verdict: ConditionValue| {
        let ConditionValue {
            status: holds,
            reason,
            message,
        } = verdict;
        set_condition(
            &mut status.conditions,
            condition_type,
            holds,
            reason,
            &message,
            generation,
            now.wall,
        );
    };
    let connected: Vec<_> = states
        .iter()
        .filter(|(_, cluster_state)| cluster_state.is_connected)
        .collect();
    let all: Vec<_> = states.iter().collect();
    let applied = verdict(view, &all, None, Judged::Applied);
    // Names that match nothing need no other content.
    let is_everywhere = applied.status == ConditionStatus::True;
    let has_health = all.iter().any(|(_, state)| state.with_health > 0);
    let ready = match unmatched(view) {
        None if !has_health => applied,
        unmatched => verdict(view, &all, unmatched, Judged::Healthy),
    };
    set(ConditionType::Ready, ready);
    set(
        ConditionType::Applied,
        if connected.is_empty() && !all.is_empty() {
            unreachable(&all)
        } else {
            verdict(view, &connected, None, Judged::Applied)
        },
    );
    let in_progress = |judged: Judged| {
        let mut states = all.iter();
        states.any(|(_, state)| judged.state_of(state) == ClusterState::Progressing)
    };
    let progressing = if is_reading(view) || in_progress(Judged::Applied) {
        Some((
            Reason::Progressing,
            "changes are being sent to the clusters",
        ))
    } else if in_progress(Judged::Healthy) {
        Some((
            Reason::AwaitingHealth,
            "copies are applied and not healthy yet",
        ))
    } else {
        None
    };
    let text: [(ConditionType, Option<ConditionValue>); 9] = [
        (ConditionType::Granted, granted(view)),
        (ConditionType::Reconciling, reconciling(view, progressing)),
        (ConditionType::Stalled, stalled(view)),
        (ConditionType::ApprovalRequired, approval_required(view)),
        (ConditionType::RolloutStopped, rollout_stopped(view)),
        (ConditionType::RolloutReverted, rollout_reverted(view)),
        (ConditionType::Reverted, reverted(view)),
        (ConditionType::Suspended, suspended(view)),
        (ConditionType::DryRun, dry_run(view, &all)),
    ];
    for (condition_type, verdict) in text {
        match verdict {
            Some(ConditionValue {
                status: holds,
                reason,
                message,
            }) => {
                set_condition(
                    &mut status.conditions,
                    condition_type,
                    holds,
                    reason,
                    &message,
                    generation,
                    now.wall,
                );
            }
            None => remove_condition(&mut status.conditions, condition_type),
        }
    }
    is_everywhere
}

/// Returns the condition Reconciling. `progressing`: the reason and message if clusters are in progress.
fn reconciling(
    view: &View<'_>,
    progressing: Option<(Reason, &'static str)>,
) -> Option<ConditionValue> {
    let at_work =
        |reason, message: String| Some(ConditionValue::new(ConditionStatus::True, reason, message));
    if view.rule.deleting {
        let message = "the copies of the deleted rule are being removed";
        return at_work(Reason::Deleting, message.to_owned());
    }
    if view.rule.terms.is_frozen() {
        return None;
    }
    // A rollout that a person paused, or that failed, makes no progress.
    let is_rolling = |rollout: &ConditionValue| {
        matches!(
            rollout.reason,
            Reason::RollingOut | Reason::AwaitingApproval | Reason::AwaitingWindow
        )
    };
    if let Some(rollout) = rolling_out(view)
        .filter(is_rolling)
        .filter(|_| stalled(view).is_none())
    {
        return at_work(rollout.reason, rollout.message);
    }
    let (reason, message) = progressing.filter(|_| view.overdue)?;
    at_work(reason, message.to_owned())
}

fn suspended(view: &View<'_>) -> Option<ConditionValue> {
    let message = "spec.suspend is true: nothing is created, corrected or removed";
    let is_suspended = view.rule.terms.suspend && view.rule.too_many_nodes.is_none();
    is_suspended.then(|| ConditionValue::new(ConditionStatus::True, Reason::Suspended, message))
}

/// Sums up the reports of a dry run.
fn dry_run(
    view: &View<'_>,
    states: &[&(&ClusterName, RuleClusterState)],
) -> Option<ConditionValue> {
    if !view.rule.terms.is_dry_run() {
        return None;
    }
    let sum = |count: fn(&RuleClusterState) -> i64| {
        states
            .iter()
            .map(|(_, cluster_state)| count(cluster_state))
            .sum::<i64>()
    };
    let message = format!(
        "spec.enforcement is DryRun: nothing is written; agents would create {}, update {}, delete {}; {} failed",
        sum(|cluster_state| cluster_state.to_create),
        sum(|cluster_state| cluster_state.to_update),
        sum(|cluster_state| cluster_state.to_delete).saturating_add(removals_elsewhere(view)),
        sum(|cluster_state| cluster_state.failed),
    );
    Some(ConditionValue::new(
        ConditionStatus::True,
        model::Reason::DryRun,
        message,
    ))
}

fn stalled(view: &View<'_>) -> Option<ConditionValue> {
    if let Some(nodes) = view.rule.too_many_nodes {
        let message = format!(
            "the spec has {nodes} JSON values, and {} are the most: it is not used, and existing copies are left \
             unchanged; use smaller values in spec.overrides, or several rules",
            limits::RULE_NODES
        );
        let reason = Reason::SpecTooLarge;
        return Some(ConditionValue::new(ConditionStatus::True, reason, message));
    }
    if let Some(unavailable) = reverted(view).filter(|_| view.rule.lacks_state()) {
        return Some(ConditionValue {
            status: ConditionStatus::True,
            ..unavailable
        });
    }
    if view.target_clusters.unknown {
        return granted(view).map(|known| ConditionValue {
            status: ConditionStatus::True,
            ..known
        });
    }
    let mut unreadable = view.unreadable.iter().filter(|(scope, _)| {
        !view.not_served.contains(&scope.resource) && !view.mismatched.contains(scope)
    });
    let message = if let Some((scope, why)) = unreadable.next() {
        let more = match unreadable.count() + 1 {
            1 => String::new(),
            all => format!(
                " Nor can {}.",
                counted(
                    i64::try_from(all - 1).unwrap_or(i64::MAX),
                    "other place",
                    "other places"
                )
            ),
        };
        format!(
            "{scope} cannot be read on the hub ({why}); existing copies are left unchanged.{more}"
        )
    } else if let Some(known) = scope_mismatch(view).or_else(|| kind_not_served(view)) {
        return Some(known);
    } else if let Some(source) = view.plan.unreadable.first() {
        let why = match view.plan.refused.get(source) {
            Some(_) => "is larger than an agent accepts",
            None => "cannot be read on the hub",
        };
        format!("{source} {why}; existing copies are left unchanged")
    } else {
        let rolling = || rollout_stopped(view).or_else(|| rollout_failure(view));
        return render_errors(view)
            .or_else(|| approval_required(view))
            .or_else(rolling)
            .or_else(|| invalid_window(view))
            .or_else(|| analysis_refused(view));
    };
    Some(ConditionValue::new(
        ConditionStatus::True,
        Reason::SourceUnreadable,
        message,
    ))
}

/// Selected sources that cannot be sent, which a user has to correct.
fn render_errors(view: &View<'_>) -> Option<ConditionValue> {
    let (reason, message) = from_any(view)?;
    Some(ConditionValue::new(ConditionStatus::True, reason, message))
}

fn approval_required(view: &View<'_>) -> Option<ConditionValue> {
    // A dry run removes nothing. With enforcement, blocked items count again.
    if view.rule.terms.is_dry_run() && !view.rule.deleting {
        return None;
    }
    let message = describe_pending(view.rule, view.pending.as_ref()?);
    Some(ConditionValue::new(
        ConditionStatus::True,
        Reason::RemovalLimit,
        message,
    ))
}

/// As [`approval_required`], for Ready and Applied: the message is long, and two conditions have it.
fn approval_hint(view: &View<'_>) -> Option<ConditionValue> {
    let message = "a removal of copies waits for approval: see the condition ApprovalRequired";
    let required = approval_required(view)?;
    Some(ConditionValue::new(
        required.status,
        required.reason,
        message,
    ))
}

/// Returns the value of Ready or Applied. `unmatched` are names that match nothing: more urgent than copies that wait,
/// less urgent than copies that failed or are on their way.
fn verdict(
    view: &View<'_>,
    states: &[&(&ClusterName, RuleClusterState)],
    unmatched: Option<ConditionValue>,
    judged: Judged,
) -> ConditionValue {
    use ConditionStatus::{False, True};
    if let Some(hint) = approval_hint(view).filter(|_| view.rule.deleting) {
        return ConditionValue::new(False, hint.reason, hint.message);
    }
    if view.rule.deleting {
        return ConditionValue::new(
            False,
            Reason::Deleting,
            "the rule is being deleted: waiting for its copies to be removed",
        );
    }
    if let Some(ConditionValue {
        reason, message, ..
    }) = suspended(view)
        .or_else(|| stalled(view))
        .or_else(|| dry_run(view, states))
    {
        return ConditionValue::new(False, reason, message);
    }
    if is_reading(view) {
        return ConditionValue::new(
            False,
            Reason::Progressing,
            "the hub is reading what spec.sources selects",
        );
    }
    if view.plan.sources() == 0 {
        return ConditionValue::new(
            False,
            Reason::NoSources,
            with_refused(view.plan, &no_sources(view)),
        );
    }
    if states.is_empty() && !view.target_clusters.not_granted.is_empty() {
        return granted(view).unwrap_or_else(|| ConditionValue::new(False, Reason::NotGranted, ""));
    }
    if states.is_empty() {
        return ConditionValue::new(False, Reason::NoClusters, no_clusters(view));
    }
    let in_state = |state| {
        states
            .iter()
            .filter(move |(_, cluster_state)| judged.state_of(cluster_state) == state)
    };
    let count = |state| i64::try_from(in_state(state).count()).unwrap_or(i64::MAX);
    if let Some((cluster, worst)) =
        in_state(ClusterState::Failed).min_by_key(|(_, cluster_state)| rank(cluster_state.reason))
    {
        let copies: i64 = states
            .iter()
            .map(|(_, cluster_state)| cluster_state.failed)
            .sum();
        let clusters = count(ClusterState::Failed);
        let what = match copies {
            0 if worst.reason == Reason::Copy(model::Reason::Unhealthy) => {
                let unhealthy: i64 = states.iter().map(|(_, state)| state.unhealthy).sum();
                format!("{} unhealthy", counted(unhealthy, "copy is", "copies are"))
            }
            0 if worst.is_blind => "the copies are not known".to_owned(),
            0 if worst.reason == Reason::RuleLimit => "the rule is not sent".to_owned(),
            0 if worst.reason == Reason::DigestMismatch => {
                "copies are not as they should be".to_owned()
            }
            0 => "copies cannot be removed".to_owned(),
            more => format!("{} failed", counted(more, "copy", "copies")),
        };
        let scope = match clusters {
            1 => format!("in {cluster}"),
            more => format!("in {more} clusters, among them {cluster}"),
        };
        let message = format!("{what} {scope}: {}", worst.message);
        return ConditionValue::new(False, worst.reason, message);
    }
    if let Some(under_way) = rolling_out(view) {
        return under_way;
    }
    let (unhealthy, sent): (Vec<_>, Vec<_>) = in_state(ClusterState::Progressing)
        .copied()
        .partition(|(_, state)| state.reason == Reason::AwaitingHealth);
    let clusters = |number: usize| {
        let number = i64::try_from(number).unwrap_or(i64::MAX);
        counted(number, "cluster", "clusters")
    };
    if !sent.is_empty() {
        let mut message = format!("copies are being sent to {}", clusters(sent.len()));
        let waits = |state: &RuleClusterState| {
            state.reason == Reason::Copy(model::Reason::WaitingForDependency)
        };
        if let Some((cluster, delayed)) = sent.iter().find(|(_, state)| waits(state)) {
            message = format!("{message}; in {cluster}: {}", delayed.message);
        }
        return ConditionValue::new(False, Reason::Progressing, message);
    }
    if let Some((cluster, worst)) = in_state(ClusterState::Drifted).next() {
        let copies: i64 = in_state(ClusterState::Drifted)
            .map(|(_, cluster_state)| cluster_state.drifted)
            .sum();
        let (copies, clusters) = (
            counted(copies, "copy", "copies"),
            count(ClusterState::Drifted),
        );
        let scope = match clusters {
            1 => format!("in {cluster}"),
            more => format!("in {more} clusters, among them {cluster}"),
        };
        let message = format!("{copies} drifted {scope}: {}", worst.message);
        return ConditionValue::new(False, model::Reason::Drifted, message);
    }
    if !unhealthy.is_empty() {
        let copies = unhealthy.iter().map(|(_, state)| state.awaiting_health);
        let message = format!(
            "{} in {}",
            not_healthy_yet(copies.sum()),
            clusters(unhealthy.len())
        );
        return ConditionValue::new(False, Reason::AwaitingHealth, message);
    }
    if let Some(unmatched) = unmatched {
        return unmatched;
    }
    if let Some((first, waits)) =
        in_state(ClusterState::Waiting).find(|(_, s)| s.reason == Reason::Unconfirmed)
    {
        let message = match in_state(ClusterState::Waiting)
            .filter(|(_, s)| s.reason == Reason::Unconfirmed)
            .count()
        {
            1 => format!("{first} is left unchanged: {}", waits.message),
            more => format!(
                "{more} clusters keep what they have, among them {first}: {}",
                waits.message
            ),
        };
        return ConditionValue::new(False, Reason::Unconfirmed, message);
    }
    if let Some((first, behind)) =
        in_state(ClusterState::Waiting).find(|(_, s)| s.reason == Reason::Cordoned)
    {
        let clusters = in_state(ClusterState::Waiting)
            .filter(|(_, s)| s.reason == Reason::Cordoned)
            .count();
        let message = match clusters {
            1 => format!("{first} is cordoned: {}", behind.message),
            more => format!(
                "{more} clusters are cordoned, among them {first}: {}",
                behind.message
            ),
        };
        return ConditionValue::new(False, Reason::Cordoned, message);
    }
    // Clusters that return after their rollout was completed, and clusters that were rolled back.
    if let Some((first, waits)) =
        in_state(ClusterState::Waiting).find(|(_, s)| s.reason != Reason::CopiesWaiting)
    {
        let clusters = in_state(ClusterState::Waiting)
            .filter(|(_, s)| s.reason == waits.reason)
            .count();
        let message = match (waits.reason == Reason::RollingOut, clusters) {
            (true, 1) => {
                format!("{first} waits for its turn in the rollout: it keeps what it has")
            }
            (true, more) => format!(
                "{more} clusters wait for their turn in the rollout, among them {first}: they keep what they have"
            ),
            (false, 1) => format!("{first}: {}", waits.message),
            (false, more) => {
                format!("{more} clusters, among them {first}: {}", waits.message)
            }
        };
        return ConditionValue::new(False, waits.reason, message);
    }
    if count(ClusterState::Waiting) > 0 {
        let copies: i64 = in_state(ClusterState::Waiting)
            .map(|(_, cluster_state)| cluster_state.waiting)
            .sum();
        let clusters = count(ClusterState::Waiting);
        let (copies, clusters) = (
            counted(copies, "copy", "copies"),
            counted(clusters, "cluster", "clusters"),
        );
        let namespaces = absent_namespaces(
            in_state(ClusterState::Waiting).map(|(_, cluster_state)| &cluster_state.absent),
        )
        .unwrap_or_else(|| "the namespaces do not exist".to_owned());
        let message = format!("{copies} waiting in {clusters}: {namespaces} there");
        return ConditionValue::new(False, Reason::CopiesWaiting, message);
    }
    let (absent, away): (Vec<_>, Vec<_>) = in_state(ClusterState::Unreachable)
        .copied()
        .partition(|(_, cluster_state)| cluster_state.reason == Reason::NeverConnected);
    if !away.is_empty() || absent.len() == states.len() {
        return unreachable(states);
    }
    if lacks_copies(view)
        && let Some(missing) = granted(view)
    {
        return missing;
    }
    let has_none = states
        .iter()
        .all(|(_, cluster_state)| cluster_state.copies == 0);
    if has_none && let Some(message) = no_namespaces(view, states.len() - absent.len()) {
        let is_limited =
            granted(view).is_some_and(|granted| granted.reason == Reason::PartiallyGranted);
        let message = if is_limited {
            format!("{message}, or no DistributionGrant allows those that match")
        } else {
            message
        };
        return ConditionValue::new(False, Reason::NoNamespaces, message);
    }
    // Without unmatched names, health is judged only if some copy has one.
    let all = if judged == Judged::Healthy {
        "every copy is applied and healthy"
    } else {
        "every copy is applied"
    };
    let message = match absent.as_slice() {
        [] => all.to_owned(),
        [(one, _)] => format!("{all}; {one} has never connected"),
        [(one, _), ..] => format!(
            "{all}; {} clusters have never connected, among them {one}",
            absent.len()
        ),
    };
    ConditionValue::new(True, Reason::AllApplied, with_refused(view.plan, &message))
}

fn unreachable(states: &[&(&ClusterName, RuleClusterState)]) -> ConditionValue {
    let all = || {
        states
            .iter()
            .filter(|(_, cluster_state)| cluster_state.state == ClusterState::Unreachable)
    };
    let away: Vec<_> = all()
        .filter(|(_, cluster_state)| cluster_state.reason != Reason::NeverConnected)
        .collect();
    let silent = if away.is_empty() {
        all().collect()
    } else {
        away
    };
    let Some((first, _)) = silent.first() else {
        return ConditionValue::new(
            ConditionStatus::False,
            Reason::Progressing,
            "no cluster has connected yet",
        );
    };
    let blind: Vec<_> = silent
        .iter()
        .filter(|(_, cluster_state)| cluster_state.reason == Reason::MemberAPIUnavailable)
        .collect();
    if let Some((cluster, worst)) = blind.first().filter(|_| blind.len() == silent.len()) {
        let message = match blind.len() {
            1 => format!(
                "nothing is known of the copies in {cluster}: {}",
                worst.message
            ),
            more => {
                format!(
                    "nothing is known of the copies in {more} clusters, among them {cluster}: {}",
                    worst.message
                )
            }
        };
        return ConditionValue::new(
            ConditionStatus::Unknown,
            Reason::MemberAPIUnavailable,
            message,
        );
    }
    let is_absent = silent
        .iter()
        .all(|(_, cluster_state)| cluster_state.reason == Reason::NeverConnected);
    let message = match (silent.len(), is_absent) {
        (1, false) => format!("cluster {first} is not connected"),
        (1, true) => format!("cluster {first} has never connected"),
        (more, false) => format!("{more} clusters are not connected, among them {first}"),
        (more, true) => format!("{more} clusters have never connected, among them {first}"),
    };
    ConditionValue::new(
        ConditionStatus::Unknown,
        Reason::ClustersUnreachable,
        message,
    )
}

fn rank(reason: Reason) -> usize {
    match reason {
        Reason::Copy(reason) => reason.rank(),
        _ => usize::MAX,
    }
}

fn with_refused(plan: &RulePlan, message: &str) -> String {
    // Those of which copies stay are an error of their own.
    let never = || {
        plan.refused
            .iter()
            .filter(|(_, refused)| !refused.keeps_copies())
    };
    let Some((source, refused)) = never().next() else {
        return message.to_owned();
    };
    let why = match refused {
        UnsupportedSource::Type => "its type is a credential of this cluster or a Helm release",
        UnsupportedSource::TooLarge => "it is too large",
        UnsupportedSource::Annotation => {
            "its annotation runnel.dev/distribute is false; remove that to distribute it"
        }
        UnsupportedSource::Controlled => UnsupportedSource::Controlled.reason(),
    };
    match never().count() {
        1 => format!("{message}; {source} is selected and never distributed: {why}"),
        more => format!(
            "{message}; {more} selected objects are never distributed, among them {source}: {why}"
        ),
    }
}

/// The worst first, then by name; times stay as long as the state does.
fn list_clusters(
    status: &mut RuleStatus,
    view: &View<'_>,
    mut states: Vec<(&ClusterName, RuleClusterState)>,
    now: Now,
) {
    states.sort_by(|(left, a), (right, b)| (a.state, left).cmp(&(b.state, right)));
    status.truncated = states.len() > limits::STATUS_CLUSTERS;
    states.truncate(limits::STATUS_CLUSTERS);
    let since = |cluster: &ClusterName, state: ClusterState| {
        let known = view
            .previous
            .clusters
            .iter()
            .find(|known| known.name == cluster.as_str() && known.state == state);
        known
            .and_then(|known| known.since.clone())
            .unwrap_or_else(|| whole_seconds(now.wall))
    };
    let entries = states
        .into_iter()
        .map(|(cluster, cluster_state)| ClusterStatus {
            name: cluster.as_str().to_owned(),
            state: cluster_state.state,
            applied: cluster_state.applied,
            failed: cluster_state.failed,
            waiting: cluster_state.waiting,
            drifted: cluster_state.drifted,
            to_create: cluster_state.to_create,
            to_update: cluster_state.to_update,
            to_delete: cluster_state.to_delete,
            with_health: cluster_state.with_health,
            healthy: cluster_state.healthy,
            reason: cluster_state.reason.as_str().to_owned(),
            message: shortened(&cluster_state.message),
            since: Some(since(cluster, cluster_state.state)),
        });
    status.clusters = entries.collect();
}
