//! How a rollout does, as the agents' reports have it, and what the status says of it.
use std::borrow::Cow;

use runnel_proto::model::{ClusterName, Reason as Trouble};

use super::fold::{Verdict, counted};
use super::ledger::Account;
use super::standing::{
    failed_copies, holds_the_plan, is_awaited, is_comparable, is_failure, is_given_up, is_reading, is_too_old, standing,
};
use super::{Ledger, Now, View};
use crate::crd::conditions::{ConditionStatus, Reason};
use crate::rollout::{Gate, Health, Observation, Phase, Progress, Rollout, Turn, step};

/// A rollout as it is.
pub struct Rolling<'a> {
    /// How the rule wants it.
    pub rollout: &'a Rollout,
    /// What is rolled out.
    pub target: &'a str,
    /// Who may have it.
    pub gate: Option<Cow<'a, Gate>>,
    /// How far it has come.
    pub progress: Option<Progress>,
    /// A cluster that fails, and why.
    pub failing: Option<(ClusterName, String)>,
}

impl View<'_> {
    /// Whether a cluster's turn has not come.
    pub(super) fn awaits(&self, cluster: &ClusterName) -> bool {
        let is_let_in =
            |rolling: &Rolling<'_>| rolling.gate.as_ref().is_some_and(|gate| gate.lets_in(rolling.target, cluster));
        !self.rule.terms.suspend && self.rolling.as_ref().is_some_and(|rolling| !is_let_in(rolling))
    }

    /// Takes the next step of the rule's rollout, if it may: what the view says of it is what the status should say then.
    /// Returns who may have the target once that is written.
    ///
    /// While the hub cannot tell what the rule wants, or the rule rests or goes, everything stays as it is.
    pub fn take_step(&mut self, turns: Vec<Turn>, ledger: &Ledger, now: Now) -> Option<Gate> {
        let rests = self.rule.terms.suspend || self.rule.deleting || self.goes.unknown;
        let is_known = self.unreadable.is_empty() && self.plan.unreadable.is_empty() && !is_reading(self);
        if rests || !is_known {
            return None;
        }
        let mut rolling = self.rolling.take()?;
        let health = |turn: &Turn| health(self, ledger, &turn.cluster, now);
        let clusters: Vec<_> = turns.into_iter().map(|turn| (health(&turn), turn)).map(|(how, it)| (it, how)).collect();
        let settling = clusters.iter().any(|(turn, _)| is_awaited(self, ledger, &turn.cluster, now.instant));
        let seen = Observation { target: rolling.target, clusters, settling };
        let (progress, gate) = step(rolling.rollout, rolling.progress.as_ref(), rolling.gate.as_deref(), &seen, now);
        let failing = seen.clusters.iter().find(|(turn, how)| *how == Health::Failed && progress.has_reached(turn));
        rolling.failing = failing.map(|(turn, _)| {
            let message = standing(self, ledger, &turn.cluster, now.instant).message;
            (turn.cluster.clone(), message)
        });
        rolling.progress = Some(progress);
        rolling.gate = Some(Cow::Owned(gate.clone()));
        self.rolling = Some(rolling);
        Some(gate)
    }
}

/// How a cluster is with what the rule wants now.
fn health(view: &View<'_>, ledger: &Ledger, cluster: &ClusterName, now: Now) -> Health {
    let is_silent = is_awaited(view, ledger, cluster, now.instant) || ledger.session(cluster, now.instant).is_none();
    if is_silent {
        return Health::Away;
    }
    if is_too_old(view, ledger, cluster, now.instant) {
        return Health::Failed;
    }
    let account = ledger.account(cluster, &view.rule.uid).filter(|account| holds_the_plan(view, cluster, account));
    let Some(account) = account else {
        let takes_nothing = view.goes.cordoned.contains(cluster) || ledger.is_unconfirmed(cluster);
        return if takes_nothing { Health::Away } else { Health::Pending };
    };
    let counts = account.counts;
    match () {
        () if counts.under_way() > 0 || is_given_up(view, account) => Health::Pending,
        () if !view.sent(cluster).withheld.is_empty() => Health::Failed,
        () if (failed_copies(view, account) > 0 || counts.removing > 0) && has_failed(account) => Health::Failed,
        () if counts.failed > 0 || counts.removing > 0 => Health::Pending,
        () if is_comparable(view, cluster) => Health::Applied,
        () => Health::Quiet,
    }
}

/// Whether something failed that does not pass by itself. The worst stands first.
fn has_failed(account: &Account) -> bool {
    account.failures.iter().any(|failure| is_failure(failure) && failure.reason < Trouble::NamespaceTerminating)
}

/// Nothing further is sent, because too many clusters failed.
pub(super) fn rollout_stopped(view: &View<'_>) -> Option<Verdict> {
    let (rolling, progress) = progress_of(view)?;
    if progress.phase != Phase::Stopped {
        return None;
    }
    let (failed, limit) = (progress.failed, rolling.rollout.max_failures);
    let example = rolling.failing.as_ref().map(|(cluster, why)| format!("; in {cluster}: {why}")).unwrap_or_default();
    let message = format!(
        "the rollout stopped in wave {}: {} failed, and spec.rollout.maxFailures is {limit}{example}. Nothing further is \
         sent. An edit of the source or the rule begins a new rollout; to go on with this one all the same set \
         maxFailures to {failed} or more; to try on once the failures are cured set paused to true and to false again",
        progress.wave,
        clusters(failed),
    );
    Some(Verdict::new(ConditionStatus::True, Reason::TooManyFailures, message))
}

/// A change is on its way, wave by wave.
pub(super) fn rolling_out(view: &View<'_>) -> Option<Verdict> {
    let (rolling, progress) = progress_of(view)?;
    let far = format!("{} of {} reached", progress.reached, clusters(progress.clusters));
    let wave = format!("wave {}", progress.wave);
    let (reason, message) = match progress.phase {
        Phase::Completed | Phase::Stopped => return None,
        Phase::Paused => {
            (Reason::RolloutPaused, format!("{far}, and spec.rollout.paused is true: nothing further is sent"))
        }
        Phase::Progressing if progress.wave == 0 => (Reason::RollingOut, "the first wave has not begun".to_owned()),
        Phase::Progressing => (Reason::RollingOut, format!("{wave} is under way, {far}")),
        Phase::Soaking => {
            let soak = jiff::SignedDuration::try_from(rolling.rollout.soak).unwrap_or_default();
            let until = progress.applied_at.and_then(|at| at.checked_add(soak).ok());
            let until = until.map(|at| format!(" until {at:.0}")).unwrap_or_default();
            (Reason::RollingOut, format!("{wave} is applied and is watched{until}, {far}"))
        }
    };
    let message = message + &superseded(progress);
    Some(Verdict::new(ConditionStatus::False, reason, message))
}

/// Changes that newer ones overtook before every cluster had them.
fn superseded(progress: &Progress) -> String {
    let Some(since) = progress.unfinished_since.filter(|_| progress.superseded > 0) else { return String::new() };
    let number = i64::try_from(progress.superseded).unwrap_or(i64::MAX);
    let (changes, were) = (counted(number, "change", "changes"), if number == 1 { "was" } else { "were" });
    format!("; {changes} before it {were} superseded on the way, since {since:.0}")
}

fn progress_of<'a>(view: &'a View<'_>) -> Option<(&'a Rolling<'a>, &'a Progress)> {
    let rolling = view.rolling.as_ref()?;
    let progress = rolling.progress.as_ref().filter(|progress| progress.revision == rolling.target)?;
    Some((rolling, progress))
}

fn clusters(number: u64) -> String {
    counted(i64::try_from(number).unwrap_or(i64::MAX), "cluster", "clusters")
}
