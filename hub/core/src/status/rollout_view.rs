//! The state of a rollout by the reports of the agents, and its part of the status.
use std::borrow::Cow;
use std::collections::BTreeSet;

use runnel_proto::model::{ClusterName, Reason as CopyFailure};

use super::report_store::RuleReport;
use super::rule_cluster_state::{
    ProofState, has_applied_plan, health_state, is_awaited, is_comparable, is_failure, is_pruning,
    is_reading, proved, state_of,
};
use super::view::{
    ClusterView, ConditionValue, Rolling, View, annotate_command, approve_command, counted,
};
use super::{Now, ReportStore, SETTLING};
use crate::index::{Cluster, Index, StoredState};
use crate::plan::{RollbackBlocker, Rule, SourceState};
use crate::rollout::{
    Gate, Health, LeftOut, Observation, Phase, Progress, Rollout, RolloutPosition, Windows, step,
};
use runnel_api::conditions::{ConditionStatus, Reason, shortened};
use runnel_api::{ClusterState, REVERT_TO, limits};

impl View<'_> {
    /// Whether a cluster's turn has not come.
    pub(super) fn awaits(&self, cluster: &ClusterName) -> bool {
        let is_let_in = |rolling: &Rolling<'_>| {
            rolling
                .gate
                .as_ref()
                .is_some_and(|gate| gate.admits(rolling.target, cluster))
        };
        !self.rule.terms.suspend
            && self
                .rolling
                .as_ref()
                .is_some_and(|rolling| !is_let_in(rolling))
    }

    /// Whether a cluster is rolled back, or has been.
    pub(super) fn is_rollback(&self, cluster: &ClusterName) -> bool {
        let gate = self
            .rolling
            .as_ref()
            .and_then(|rolling| Some((rolling.gate.as_ref()?, rolling.target)));
        gate.is_some_and(|(gate, target)| gate.is_rolling_back() && gate.admits(target, cluster))
    }

    /// Returns the windows of the chosen clusters that have any.
    fn windows(&self) -> impl Iterator<Item = (&ClusterName, &Windows)> {
        let members = self.target_clusters.clusters.keys();
        members.filter_map(|name| {
            let windows = &self.members.get(name)?.windows;
            (!windows.is_empty()).then_some((name, windows))
        })
    }

    /// Returns the progress of the rollout.
    pub fn progress(&self) -> Option<&Progress> {
        self.rolling.as_ref()?.progress.as_ref()
    }

    /// Returns the state of the completed rollout to store, or `Some(None)` to delete the stored one;
    /// `None` if it stays unchanged.
    pub fn state_to_store(&mut self, index: &Index) -> Option<Option<StoredState>> {
        let uid = &self.rule.uid;
        let entry = index.rules().get(uid)?;
        if entry.rule.terms.is_dry_run() {
            return None;
        }
        let rollout = entry.rule.rollout.as_ref();
        let keeps = rollout.is_some_and(|rollout| rollout.history > 0);
        let progress = self.progress();
        if !keeps {
            let is_in_use = entry.rule.revert.is_some()
                || progress.is_some_and(|progress| progress.phase.is_rollback());
            let stored = index.rules().completed().get(uid);
            return stored.filter(|_| !is_in_use).map(|_| None);
        }
        let is_completed = |progress: &&Progress| {
            progress.phase == Phase::Completed && progress.revision == entry.target()
        };
        let progress = progress.filter(is_completed)?;
        let revision = progress.revision.clone();
        if entry.rule.lacks_state()
            || entry.former_state().is_decided(&revision)
            || index.rules().completed().blocker().is_some()
        {
            return None;
        }
        let state = entry.completed_state(progress.ended_at);
        self.record_state_stored(state.as_ref().map(drop));
        Some(Some(StoredState {
            revision,
            state: Ok(state.ok()?),
        }))
    }

    /// Takes the next step of the rule's rollout, if it is due: the view then has what the status
    /// should state. Returns the gate for the time after the write.
    ///
    /// While the plan of the rule is unknown, or the rule is suspended or being deleted, everything
    /// stays as it is.
    pub fn take_step(
        &mut self,
        turns: Vec<RolloutPosition>,
        report_store: &ReportStore,
        now: Now,
    ) -> Option<Gate> {
        self.rolling.as_ref()?;
        let is_settled = self.rule.terms.suspend
            || self.rule.deleting
            || self.target_clusters.unknown
            || self.rule.lacks_state();
        // Nor is the target known while a Secret that it takes values from has not been read.
        let is_read =
            |body: &SourceState| !matches!(body, SourceState::Unread | SourceState::Unreadable);
        let is_known = self.unreadable.is_empty()
            && self.plan.unreadable.is_empty()
            && !is_reading(self)
            && self.plan.secret_refs.values().all(is_read);
        if is_settled || !is_known {
            return None;
        }
        let known = self.progress().filter(|progress| {
            progress.revision == self.rolling.as_ref().map_or("", |it| it.target)
        });
        let back = known.is_some_and(|progress| progress.phase.is_rollback());
        self.compare_with_former(back);
        let mut rolling = self.rolling.take()?;
        let known = rolling
            .progress
            .as_ref()
            .filter(|progress| progress.revision == rolling.target);
        let base = match known {
            Some(progress) if !progress.is_completed() => progress.base.as_deref(),
            _ => rolling
                .progress
                .as_ref()
                .and_then(Progress::completed_target),
        };
        let has_former = rolling.former.is_of(base).is_ok();
        let target = rolling.target.to_owned();
        let waits_for_health = rolling.rollout.waits_for_health && !back;
        let is_rendered = !back || rolling.former.plans(self.rule, rolling.newest.1).is_some();
        let health = |turn: &RolloutPosition| {
            let is_chosen = rolling.newest.1.clusters.contains_key(&turn.cluster);
            if !is_chosen && rolling.removals_wait.contains(&turn.cluster) {
                return Health::Unavailable;
            }
            let cluster = self.cluster(report_store, &turn.cluster);
            match health(self, &cluster, waits_for_health, now) {
                Health::Unavailable => Health::Unavailable,
                // What the cluster has cannot be compared yet.
                _ if !is_rendered => Health::Pending,
                health => health,
            }
        };
        let clusters: Vec<_> = turns
            .into_iter()
            .map(|turn| (health(&turn), turn))
            .map(|(how, it)| (it, how))
            .collect();
        // A new leader does not know the clusters yet in which removals wait: any member may be one.
        let is_starting = now.instant.saturating_duration_since(self.hub_started) < SETTLING;
        let may_have_copies = |(name, member): (&ClusterName, &Cluster)| {
            let is_awaited = || is_awaited(self, &self.cluster(report_store, name), now.instant);
            member.is_eligible() && member.was_connected && is_awaited()
        };
        let settling = rolling.left_out == LeftOut::Unknown
            || (is_starting && self.members.iter().any(may_have_copies))
            || clusters.iter().any(|(turn, _)| {
                let cluster = self.cluster(report_store, &turn.cluster);
                is_awaited(self, &cluster, now.instant)
            });
        // Clusters that another process admitted are known once they connect.
        let is_new = settling || rolling.gate.is_none();
        let is_at_work = |cluster: &ClusterView<'_>, rule_report: &RuleReport| {
            rule_report.counts.copies_in_progress() > 0
                && has_applied_plan(self, cluster, rule_report)
        };
        let at_work = if is_new {
            clusters_where(self, report_store, &clusters, is_at_work)
        } else {
            BTreeSet::new()
        };
        let is_empty = |turn: &&RolloutPosition| {
            let cluster = self.cluster(report_store, &turn.cluster);
            let is_nothing = |report: &RuleReport| report.intents == 0 && report.counts.copies == 0;
            cluster.rule_report.is_none_or(is_nothing)
        };
        let pending = clusters.iter().filter(|(_, how)| *how == Health::Pending);
        let empty = pending.map(|(turn, _)| turn).filter(is_empty);
        let empty = empty.map(|turn| turn.cluster.clone()).collect();
        let seen = Observation {
            target: rolling.target,
            clusters,
            settling,
            at_work,
            has_former,
            approval: self.rule.removal.approve.as_deref(),
            windows: self.windows().collect(),
            check: rolling.check,
            is_check_refused: rolling.refused_url.is_some(),
            was_paused: rolling.was_paused,
            removals_wait: !rolling.removals_wait.is_empty(),
            left_out: rolling.left_out,
            empty,
        };
        let (mut progress, gate) = step(
            rolling.rollout,
            rolling.progress.as_ref(),
            rolling.gate.as_deref(),
            &seen,
            now,
        );
        let counts = |turn: &RolloutPosition| {
            progress.has_reached(turn) || gate.admits(&target, &turn.cluster)
        };
        let failing = seen
            .clusters
            .iter()
            .find(|(turn, how)| *how == Health::Failed && counts(turn));
        let first = progress.failure.take();
        if progress.phase.is_rollback() || progress.phase == Phase::Stopped {
            let example = || {
                let (turn, _) = failing?;
                let cluster = self.cluster(report_store, &turn.cluster);
                let why = state_of(self, &cluster, now.instant).message;
                Some(shortened(&format!("{}: {why}", turn.cluster)))
            };
            // It stays, because its cause may be gone when a person looks.
            progress.failure = first
                .or_else(|| analysis_failure(rolling.rollout, &progress))
                .or_else(example);
        }
        let blocker = rolling.former.is_of(progress.completed_target()).err();
        progress.rollback_blocker = blocker
            .filter(|_| rolling.rollout.reverts)
            .map(|blocker| blocker.message());
        rolling.progress = Some(progress);
        rolling.gate = Some(Cow::Owned(gate.clone()));
        self.rolling = Some(rolling);
        self.compare_with_former(gate.is_rolling_back());
        Some(gate)
    }

    /// Compares clusters with the former state during a rollback, otherwise with the target.
    pub(super) fn compare_with_former(&mut self, back: bool) {
        let Some(rolling) = &self.rolling else { return };
        let (former, newest) = (rolling.former, rolling.newest);
        let plans = || former.plans(self.rule, newest.1);
        (self.cluster_plans, self.target_clusters) = back.then(plans).flatten().unwrap_or(newest);
    }

    /// Records whether the state of the completed target was stored.
    pub fn record_state_stored(&mut self, kept: Result<(), &RollbackBlocker>) {
        if let Some(rolling) = self.rolling.as_mut().filter(|it| it.rollout.reverts)
            && let Some(progress) = &mut rolling.progress
        {
            progress.rollback_blocker = kept.err().map(RollbackBlocker::message);
        }
    }
}

/// Whether a cluster has not reported, or not yet.
fn is_silent(view: &View<'_>, cluster: &ClusterView<'_>, now: Now) -> bool {
    is_awaited(view, cluster, now.instant) || !cluster.is_connected(now.instant)
}

/// Returns the health of a cluster with respect to the current target or the rollback.
fn health(view: &View<'_>, cluster: &ClusterView<'_>, waits_for_health: bool, now: Now) -> Health {
    if is_silent(view, cluster, now) {
        return Health::Unavailable;
    }
    let rule_report = cluster
        .rule_report
        .filter(|rule_report| has_applied_plan(view, cluster, rule_report));
    let Some(rule_report) = rule_report else {
        let takes_nothing =
            view.target_clusters.cordoned.contains(cluster.name) || cluster.is_unconfirmed(view);
        return if takes_nothing {
            Health::Unavailable
        } else {
            Health::Pending
        };
    };
    let counts = rule_report.counts;
    if counts.copies_in_progress() > 0 || is_pruning(view, rule_report) {
        Health::Pending
    } else if !cluster.sent.render_errors.is_empty()
        || ((rule_report.counts.failed > 0 || counts.removing > 0) && has_failed(rule_report))
    {
        Health::Failed
    } else if counts.failed > 0 || counts.removing > 0 {
        Health::Pending
    } else if proved(view, cluster, rule_report) == ProofState::No {
        Health::Failed
    } else if waits_for_health && let Some(health) = unhealthy(rule_report) {
        health
    } else if is_comparable(view, cluster) {
        Health::Applied
    } else {
        Health::Quiet
    }
}

/// Returns the health of a cluster whose applied copies are not all healthy.
fn unhealthy(rule_report: &RuleReport) -> Option<Health> {
    match health_state(Some(rule_report)) {
        ClusterState::Failed => Some(Health::Failed),
        ClusterState::Progressing => Some(Health::Unready),
        _ => None,
    }
}

/// The reporting clusters with this property.
fn clusters_where(
    view: &View<'_>,
    report_store: &ReportStore,
    clusters: &[(RolloutPosition, Health)],
    is_so: impl Fn(&ClusterView<'_>, &RuleReport) -> bool,
) -> BTreeSet<ClusterName> {
    let received_of = clusters
        .iter()
        .filter(|(_, how)| *how != Health::Unavailable)
        .map(|(turn, _)| &turn.cluster);
    let reports_failure = |name: &&ClusterName| {
        let cluster = view.cluster(report_store, name);
        cluster
            .rule_report
            .is_some_and(|rule_report| is_so(&cluster, rule_report))
    };
    received_of.filter(reports_failure).cloned().collect()
}

/// Whether a failure needs an action. The worst comes first.
fn has_failed(rule_report: &RuleReport) -> bool {
    rule_report
        .details()
        .failures
        .iter()
        .any(|failure| is_failure(failure) && failure.reason < CopyFailure::NamespaceTerminating)
}

/// Nothing further is sent, because too many clusters failed.
pub(super) fn rollout_stopped(view: &View<'_>) -> Option<ConditionValue> {
    let (rolling, progress) = progress_of(view)?;
    if progress.phase != Phase::Stopped {
        return None;
    }
    let (failed, limit) = (progress.failed, rolling.rollout.max_failures);
    if let Some(analysis) = analysis_failure(rolling.rollout, progress) {
        let message = format!(
            "the rollout stopped in wave {}: {analysis}{}. Nothing further is sent. An edit of the source or the rule begins a \
             new rollout; to check the wave again set paused to true and to false again",
            progress.wave,
            not_rolled_back(rolling, progress),
        );
        return Some(ConditionValue::new(
            ConditionStatus::True,
            Reason::AnalysisFailed,
            message,
        ));
    }
    let example = example(progress);
    let stays = not_rolled_back(rolling, progress);
    let message = format!(
        "the rollout stopped in wave {}: {} failed, and spec.rollout.maxFailures is {limit}{example}{stays}. Nothing further is \
         sent. An edit of the source or the rule begins a new rollout; to continue this one all the same set \
         maxFailures to {failed} or more; to try on once the failures are cured set paused to true and to false again",
        progress.wave,
        clusters(failed),
    );
    Some(ConditionValue::new(
        ConditionStatus::True,
        Reason::TooManyFailures,
        message,
    ))
}

/// Why a stopped rollout is not rolled back, if it should be.
fn not_rolled_back(rolling: &Rolling<'_>, progress: &Progress) -> String {
    match &progress.rollback_blocker {
        _ if !rolling.rollout.reverts => String::new(),
        _ if progress.is_completed() => {
            ". It had been completed, so it is not rolled back".to_owned()
        }
        Some(blocker) => format!(". It is not rolled back: {blocker}"),
        None => String::new(),
    }
}

/// The checks that failed, if they ended the rollout.
fn analysis_failure(rollout: &Rollout, progress: &Progress) -> Option<String> {
    let checks = progress.checks.as_ref()?;
    let limit = rollout.analysis.as_ref()?.failure_limit;
    if progress.failed > rollout.max_failures || !progress.has_failed_analysis(rollout) {
        return None;
    }
    let failed = counted(checks.failed, "check", "checks");
    Some(format!(
        "{failed} of its analysis failed, and spec.rollout.analysis.failureLimit is {limit}; the last one: {}",
        checks.message
    ))
}

/// The reason for which a rollout ended.
fn failure_reason(rolling: &Rolling<'_>, progress: &Progress) -> Reason {
    match analysis_failure(rolling.rollout, progress) {
        Some(_) => Reason::AnalysisFailed,
        None => Reason::TooManyFailures,
    }
}

/// The hub may not make the checks.
pub(super) fn analysis_refused(view: &View<'_>) -> Option<ConditionValue> {
    let url = view.rolling.as_ref()?.refused_url.as_ref()?;
    let message = format!(
        "spec.rollout.analysis: the hub may not request {url}, so no change is rolled out. Its administrator allows URLs with \
         analysis.allowedURLs of the hub's chart"
    );
    Some(ConditionValue::new(
        ConditionStatus::True,
        Reason::AnalysisRefused,
        message,
    ))
}

/// The rollout is being rolled back, or has been.
pub(super) fn rollout_reverted(view: &View<'_>) -> Option<ConditionValue> {
    let (rolling, progress) = progress_of(view)?;
    let is_over = progress.phase == Phase::Reverted;
    let (holds, reason) = if is_over {
        (ConditionStatus::True, failure_reason(rolling, progress))
    } else {
        (ConditionStatus::False, Reason::RollingBack)
    };
    Some(ConditionValue::new(holds, reason, rollback_message(view)?))
}

/// Returns the failure of the rollout as a condition value.
pub(super) fn rollout_failure(view: &View<'_>) -> Option<ConditionValue> {
    let (rolling, progress) = progress_of(view)?;
    Some(ConditionValue::new(
        ConditionStatus::True,
        failure_reason(rolling, progress),
        rollback_message(view)?,
    ))
}

/// The first failure, as a part of a message.
fn example(progress: &Progress) -> String {
    let failure = progress.failure.as_ref();
    failure.map(|why| format!("; in {why}")).unwrap_or_default()
}

fn rollback_message(view: &View<'_>) -> Option<String> {
    let (rolling, progress) = progress_of(view)?;
    if !progress.phase.is_rollback() {
        return None;
    }
    let (failed, limit) = (progress.failed, rolling.rollout.max_failures);
    let example = example(progress);
    let (reverted, reached) = (progress.reverted, clusters(progress.reached));
    let how = match progress.phase {
        Phase::Reverting => {
            format!("Of {reached} that it reached, {reverted} are rolled back so far")
        }
        _ if reverted == progress.reached => {
            format!("Of {reached} that it reached, all are rolled back")
        }
        _ => format!(
            "Of {reached} that it reached, {reverted} are rolled back; the others could not, or are not connected and will be \
             when they are"
        ),
    };
    let cause = analysis_failure(rolling.rollout, progress).unwrap_or_else(|| {
        format!(
            "{} failed, and spec.rollout.maxFailures is {limit}{example}",
            clusters(failed)
        )
    });
    Some(format!(
        "the rollout went wrong in wave {}: {cause}. {how}. An \
         edit of the source or the rule begins a new rollout; to try this one again once the failures are fixed set paused \
         to true and to false again",
        progress.wave,
    ))
}

/// The rule is reverted, or is to be.
pub(super) fn reverted(view: &View<'_>) -> Option<ConditionValue> {
    let revert = view.rule.revert.as_ref()?;
    let revision = &revert.revision;
    let end = format!(
        "To end the revert: {}",
        annotate_command(view.rule, &format!("{REVERT_TO}-"))
    );
    let blocker = match &revert.state {
        Ok(state) => {
            let completed = state
                .completed_at
                .map(|at| format!(", completed at {at:.0}"));
            let message = format!(
                "the rule is reverted to revision {revision}{}: edits of the rule and of its sources are not sent, except of its \
                 clusters, its rollout, its removalLimit, suspend and enforcement. {end}",
                completed.unwrap_or_default()
            );
            return Some(ConditionValue::new(
                ConditionStatus::True,
                Reason::Reverted,
                message,
            ));
        }
        Err(RollbackBlocker::NoneCompleted) => {
            let kept: Vec<_> = view
                .kept
                .iter()
                .map(|kept| kept.revision.as_str())
                .collect();
            match kept.as_slice() {
                [] => "no state of the rule is kept".to_owned(),
                _ => format!("no such state is kept; these are: {}", kept.join(", ")),
            }
        }
        Err(RollbackBlocker::Damaged) => "its stored state is damaged".to_owned(),
        Err(blocker) => blocker.message(),
    };
    let message = format!(
        "the rule cannot be reverted to revision {revision}: {blocker}. Nothing is sent or removed. {end}"
    );
    let reason = Reason::RevisionUnavailable;
    Some(ConditionValue::new(ConditionStatus::False, reason, message))
}

/// A change is on its way, wave by wave.
pub(super) fn rolling_out(view: &View<'_>) -> Option<ConditionValue> {
    let (rolling, progress) = progress_of(view)?;
    let far = format!(
        "{} of {} reached",
        progress.reached,
        clusters(progress.clusters)
    );
    let wave = format!("wave {}", progress.wave);
    let (reason, message) = match progress.phase {
        Phase::Completed | Phase::Stopped | Phase::Reverting | Phase::Reverted => return None,
        Phase::Paused => (
            Reason::RolloutPaused,
            format!("{far}, and spec.rollout.paused is true: nothing further is sent"),
        ),
        Phase::Progressing if progress.wave == 0 => (
            Reason::RollingOut,
            "the first wave has not begun".to_owned(),
        ),
        Phase::Progressing if let Some(names) = waiting_removals(rolling, progress) => (
            Reason::RollingOut,
            format!(
                "{wave} is done, {far}. {names} may still have older copies, because their removal waits: the rollout goes on \
                 when the rule selects them again or the removal is approved"
            ),
        ),
        Phase::Progressing => (Reason::RollingOut, format!("{wave} is in progress, {far}")),
        Phase::AwaitingApproval => (
            Reason::AwaitingApproval,
            format!("{far}; {}", approval_required(view.rule, progress)?),
        ),
        Phase::AwaitingWindow => (
            Reason::AwaitingWindow,
            format!(
                "{far}; nothing further is sent: {}",
                closed_windows(view, progress)
            ),
        ),
        Phase::Soaking => {
            let soak = jiff::SignedDuration::try_from(rolling.rollout.soak).unwrap_or_default();
            let until = progress.applied_at.and_then(|at| at.checked_add(soak).ok());
            let until = until
                .map(|at| format!(" until {at:.0}"))
                .unwrap_or_default();
            (
                Reason::RollingOut,
                format!(
                    "{wave} is applied and is watched{until}, {far}{}",
                    checked(progress)
                ),
            )
        }
    };
    let message = message + &superseded(progress);
    Some(ConditionValue::new(ConditionStatus::False, reason, message))
}

/// The names of the clusters for which alone the rollout waits, because the removal of their copies does.
fn waiting_removals(rolling: &Rolling<'_>, progress: &Progress) -> Option<String> {
    let is_waiting = rolling.gate.as_ref().is_some_and(|gate| gate.is_settled);
    let names: Vec<_> = rolling
        .removals_wait
        .iter()
        .map(ClusterName::as_str)
        .collect();
    let shown = names.iter().take(limits::PENDING_NAMES).copied();
    let more = match names.len().saturating_sub(limits::PENDING_NAMES) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let names = shown.collect::<Vec<_>>().join(", ") + &more;
    (is_waiting && !names.is_empty() && progress.phase == Phase::Progressing).then_some(names)
}

/// The checks of a wave that soaks.
fn checked(progress: &Progress) -> String {
    let Some(checks) = &progress.checks else {
        return String::new();
    };
    let made = counted(checks.made, "check", "checks");
    format!(
        "; {made} of its analysis, {} failed; the last one: {}",
        checks.failed, checks.message
    )
}

/// The wave that waits, and the command that approves it.
fn approval_required(rule: &Rule, progress: &Progress) -> Option<String> {
    let pending = progress.pending_wave.as_ref()?;
    let names = pending.names.iter().take(limits::PENDING_NAMES);
    let shown: Vec<_> = names.map(String::as_str).collect();
    let more = match pending.clusters.saturating_sub(shown.len() as u64) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Some(format!(
        "wave {} ({}{more}) waits for approval. To begin exactly this wave: {}",
        pending.wave,
        shown.join(", "),
        approve_command(rule, &pending.digest),
    ))
}

/// The windows of the rule cannot be read.
pub(super) fn invalid_window(view: &View<'_>) -> Option<ConditionValue> {
    let why = view.rolling.as_ref()?.rollout.windows.error()?;
    let message = format!("{why}. No change is rolled out until it is corrected");
    Some(ConditionValue::new(
        ConditionStatus::True,
        Reason::InvalidWindow,
        message,
    ))
}

/// When a window opens for clusters that wait, or why that is not known.
fn closed_windows(view: &View<'_>, progress: &Progress) -> String {
    if let Some(at) = progress.opens_at {
        return format!("a window opens at {at:.0}");
    }
    let unreadable = view
        .windows()
        .find_map(|(name, windows)| Some((name, windows.error()?)));
    match unreadable {
        Some((name, why)) => format!("MemberCluster {name} has windows that cannot be read: {why}"),
        None => {
            "no time is known at which windows of the rule and of its clusters are open together"
                .to_owned()
        }
    }
}

/// Changes that newer ones overtook before every cluster had them.
fn superseded(progress: &Progress) -> String {
    let Some(since) = progress
        .unfinished_since
        .filter(|_| progress.superseded > 0)
    else {
        return String::new();
    };
    let number = progress.superseded;
    let (changes, were) = (
        counted(number, "change", "changes"),
        if number == 1 { "was" } else { "were" },
    );
    format!("; {changes} before it {were} superseded since {since:.0}")
}

fn progress_of<'a>(view: &'a View<'_>) -> Option<(&'a Rolling<'a>, &'a Progress)> {
    let rolling = view.rolling.as_ref()?;
    let progress = rolling
        .progress
        .as_ref()
        .filter(|progress| progress.revision == rolling.target)?;
    Some((rolling, progress))
}

fn clusters(number: u64) -> String {
    counted(number, "cluster", "clusters")
}
