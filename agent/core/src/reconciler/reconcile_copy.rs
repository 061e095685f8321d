//! Looking at one copy: decide, say how it is, and ask for the work that it needs.
use std::time::Instant;

use runnel_proto::model::{Reason, Revision, RuleUid, SourceRef};

use super::{Notice, Reconciler};
use crate::backoff::RECHECK;
use crate::copy::IntentKey;
use crate::copy::{CopyError, CopyStatus, PlannedChange};
use crate::decide::{Action, Decision, TargetNamespace, Want, decide, planned};
use crate::queue::Key;
use crate::{deletes, differ};

impl Reconciler {
    /// Looks at a copy because what is wanted may have changed: an earlier failure counts no more.
    pub(super) fn reconcile_now(&mut self, copy: &SourceRef, now: Instant) {
        if self.failed.remove(copy).is_some() {
            self.queue.add_fresh(&Self::key(copy));
        }
        self.reconcile_copy(copy, now);
    }

    /// Looks at a copy.
    pub(super) fn reconcile_copy(&mut self, copy: &SourceRef, now: Instant) {
        if !self.started {
            return;
        }
        // What a run is just writing decides whose the copy is; it is looked at again when the run has ended, and
        // once more when it was read, where nobody knows whether the write was carried out.
        let running = self.runs.contains_key(copy);
        if !running && !self.reread.contains(copy) {
            self.drop_stale_orders(copy);
        }
        let mut want = self.want(copy);
        // What rests now is asked about again: it may rest for long.
        if !matches!(&want, Want::Gone(_, _, order) if !order.deferred) {
            self.namespace_prunes.forget(copy);
        }
        self.note_lost(copy, &mut want);
        let Some(ready) = self.gate(copy, &want) else { return };
        match ready {
            Decision::Forget if running && matches!(want, Want::Gone(..)) => {
                self.rest(copy, &want, Some(CopyStatus::Removing(None)), now);
            }
            Decision::Forget if matches!(want, Want::Gone(..)) && self.must_read(copy) => {
                self.rest(copy, &want, Some(CopyStatus::Removing(None)), now);
            }
            Decision::Forget => {
                if let Want::Gone(key, ..) = &want {
                    self.desired.resolve(key, copy);
                    self.report.touch(&key.rule);
                    return self.reconcile_copy(copy, now);
                }
                self.rest(copy, &want, None, now);
            }
            Decision::Noop(outcome) => self.rest(copy, &want, Some(outcome), now),
            Decision::Act(action) => self.ask(copy, &want, &action, now),
        }
    }

    /// Whether an order for a copy cannot be dropped before a read. A watch may show an object that is gone, and hide the copy
    /// that stands in its place: only what the API server has answered ends an order.
    fn must_read(&mut self, copy: &SourceRef) -> bool {
        if self.records.is_only_watched(copy) && self.is_watched(copy) {
            self.reread.insert(copy.clone());
        }
        self.reread.contains(copy)
    }

    /// Forgets orders for a copy that now belongs to somebody else.
    fn drop_stale_orders(&mut self, copy: &SourceRef) {
        let moot = self.records.live(copy).map(|live| self.desired.moot(copy, live)).unwrap_or_default();
        if moot.is_empty() || self.must_read(copy) {
            return;
        }
        for key in moot {
            self.desired.resolve(&key, copy);
            self.report.touch(&key.rule);
        }
    }

    /// What should become of a copy, and how far its namespace is.
    pub(super) fn want(&self, copy: &SourceRef) -> Want {
        if let Some(purged) = self.purged(copy) {
            return purged;
        }
        let mut want = self.desired.want(copy, self.records.live(copy));
        if let Want::Copy(wanted) = &mut want
            && let TargetNamespace::ToCreate(failed) = &mut wanted.place
        {
            *failed = self.namespace_failed.get(&copy.namespace).cloned();
        }
        if let Want::Gone(key, _, order) = &mut want {
            let stands = |(key, revision, copy): &(IntentKey, Revision, SourceRef)| {
                self.records.live(copy).is_some_and(|live| live.holds(&key.rule, &key.source, revision))
            };
            order.deferred |= !self.desired.successors(key, copy).iter().all(stands);
            if self.desired.keeps(key, copy, &self.records) {
                want = Want::Kept(key.clone(), !order.deferred);
            }
        }
        if let Want::Copy(wanted) = &mut want {
            wanted.policies.version = self.desired.version(&wanted.intent, copy, &self.records);
        }
        self.ask_to_go(copy, &mut want);
        self.add_history(copy, &mut want);
        self.apply_quota(copy, &mut want);
        want
    }

    /// The decision, unless the watch of the copy's area has not delivered its list: then nothing is decided.
    fn gate(&mut self, copy: &SourceRef, want: &Want) -> Option<Decision> {
        // Not written in any case, or not there to be seen.
        let settled = match want {
            Want::Copy(wanted) => wanted.denied.is_some() || !self.desired.has_namespace(&copy.namespace),
            Want::Nothing | Want::Kept(..) | Want::Gone(..) => false,
        };
        let watched = self.watched(copy).filter(|_| !settled);
        let out_of_sight = watched.is_none() && self.namespaces_unknown().is_none();
        if out_of_sight && matches!(want, Want::Gone(..)) && !settled {
            return Some(Decision::Forget);
        }
        let unknown = self.namespaces_unknown().filter(|_| *want != Want::Nothing);
        if let Some(copy_error) = unknown.or_else(|| self.watched(copy).filter(|_| !settled)?.forbidden.clone()) {
            self.queue.cancel(&Self::key(copy));
            self.room.leave(copy);
            self.namespace_prunes.forget(copy);
            self.record_outcome(
                copy,
                want,
                Some(match want {
                    Want::Gone(..) => CopyStatus::Removing(Some(copy_error)),
                    Want::Copy(_) | Want::Kept(..) | Want::Nothing => CopyStatus::Failed(copy_error),
                }),
            );
            return None;
        }
        if self.watched(copy).is_some_and(|watched| !watched.complete && !settled) {
            self.room.leave(copy);
            self.record_outcome(copy, want, Some(CopyStatus::UnderWay));
            return None;
        }
        Some(decide(want, self.records.observed(copy)))
    }

    fn rest(&mut self, copy: &SourceRef, want: &Want, outcome: Option<CopyStatus>, now: Instant) {
        self.failed.remove(copy);
        self.room.leave(copy);
        self.drifted.remove(copy);
        if !matches!(outcome, Some(CopyStatus::Drifted(_) | CopyStatus::Planned(..))) {
            self.compared.remove(copy);
            self.rewritten.remove(copy);
        }
        if outcome.is_none() {
            self.contentions.forget(copy);
        }
        let key = Self::key(copy);
        if self.reread.contains(copy) {
            self.queue.add(&key);
            return self.record_outcome(copy, want, outcome);
        }
        self.queue.cancel(&key);
        if *want == Want::Nothing && self.records.live(copy).is_none() {
            self.records.forget(copy);
        }
        if let (Want::Copy(wanted), Some(CopyStatus::Applied)) = (want, &outcome) {
            for before in self.desired.predecessors(&wanted.intent, copy) {
                self.reconcile_copy(&before, now);
            }
        }
        self.recheck_quota(copy, want, now);
        if self.is_unseen(copy, want) {
            // Nobody tells us when a foreign object goes, or what becomes of a copy without our label.
            let delay = RECHECK.jittered(u32::MAX, self.jitter.draw());
            self.queue.add_at(&key, now + delay);
        }
        self.record_outcome(copy, want, outcome);
    }

    /// Asks for an action.
    fn ask(&mut self, copy: &SourceRef, want: &Want, action: &Action, now: Instant) {
        let key = Self::key(copy);
        if *action == Action::CreateNamespace {
            self.queue.add(&Key::Namespace(copy.namespace.clone()));
            return self.record_outcome(copy, want, Some(CopyStatus::UnderWay));
        }
        if let Want::Copy(wanted) = want
            && let Some(revision) = wanted.revision
            && self.lacks_content(copy, &wanted.intent, &revision)
        {
            self.queue.cancel(&key);
            self.room.leave(copy);
            if self.wanting.insert(wanted.intent.clone())
                && let Some(session) = &mut self.session
            {
                session.ask.insert(wanted.intent.clone());
            }
            let outcome = match action {
                Action::Compare(_) if wanted.dry_run => planned(PlannedChange::Update, "would be updated"),
                // That it differs is known, only in what is not.
                Action::Compare(_) => {
                    let others = self.records.live(copy).and_then(|live| live.others.as_deref());
                    CopyStatus::Drifted(differ::unread(others))
                }
                _ => {
                    let message = "the content is needed and only the hub has it";
                    CopyStatus::Failed(CopyError::new(Reason::WaitingForHub, message))
                }
            };
            return self.record_outcome(copy, want, Some(outcome));
        }
        if self.waits_for_store(copy, want, action) {
            self.queue.cancel(&key);
            return self.record_outcome(copy, want, Some(CopyStatus::Removing(self.store_error())));
        }
        if let Some(later) = self.delete_later(action, now) {
            self.queue.add_at(&key, later);
            let waits = deletes::waits(self.policy.deletes_per_hour);
            return self.record_outcome(copy, want, Some(CopyStatus::Removing(Some(waits))));
        }
        let about = about(want);
        match self.failed.get(copy) {
            Some(failed) if Some(&failed.about) == about.as_ref() => {
                let copy_error = failed.copy_error.clone();
                self.room.leave(copy);
                self.queue.add(&key);
                return self.record_outcome(copy, want, Some(failure(want, copy_error)));
            }
            Some(_) => {
                self.failed.remove(copy);
                self.queue.add_fresh(&key);
            }
            None => {}
        }
        self.drifted.remove(copy);
        if !matches!(action, Action::Compare(_)) {
            self.note_drift(copy, want);
        }
        let later = self.contentions.not_before(copy, now).filter(|_| self.drifted.contains_key(copy));
        match later {
            Some(later) => self.queue.add_at(&key, later),
            // What waited for a fight, or to be looked at again, has something to do now.
            None => self.queue.add_now(&key),
        }
        if later.is_some() {
            // It may wait for minutes, and must not hold the hub back.
            self.room.leave(copy);
        } else if let Want::Copy(wanted) = want {
            let bytes = self.cache.size(&wanted.intent);
            self.room.enter(copy, &wanted.intent, bytes);
        }
        let outcome = match want {
            Want::Gone(..) => CopyStatus::Removing(None),
            Want::Copy(wanted) => wanted.contention.clone().map_or(CopyStatus::UnderWay, CopyStatus::Failed),
            Want::Nothing | Want::Kept(..) => CopyStatus::UnderWay,
        };
        self.record_outcome(copy, want, Some(outcome));
    }

    pub(super) fn lacks_content(&self, copy: &SourceRef, intent: &IntentKey, revision: &Revision) -> bool {
        !self.cache.has(intent, revision) && self.twin(copy, intent, revision).is_none()
    }

    /// Another copy that holds the same, intact.
    pub(super) fn twin(&self, copy: &SourceRef, intent: &IntentKey, revision: &Revision) -> Option<SourceRef> {
        let mut holders = self.records.holders(intent);
        holders
            .find(|(other, live)| {
                *other != copy && live.is_whole() && live.holds(&intent.rule, &intent.source, revision)
            })
            .map(|(twin, _)| twin.clone())
    }

    /// Says how a copy is, for every rule that has to do with it.
    fn record_outcome(&mut self, copy: &SourceRef, want: &Want, outcome: Option<CopyStatus>) {
        let mut outcomes = self.desired.others(copy);
        match (want, outcome) {
            (Want::Copy(wanted), Some(outcome)) => {
                let before = self.report.outcome(copy, &wanted.intent.rule);
                if let CopyStatus::Failed(copy_error) | CopyStatus::Drifted(copy_error) = &outcome
                    && is_news(copy_error.reason)
                    && before != Some(&outcome)
                    // Where no copy may be, nothing else is written either.
                    && self.desired.closed(&copy.namespace).is_none()
                {
                    self.notices.push(Notice::Failed(copy.clone(), copy_error.clone()));
                }
                outcomes.push((wanted.intent.rule.clone(), outcome));
                self.desired.show_again(&wanted.intent);
            }
            (Want::Gone(key, ..), Some(removing)) => {
                for (_, outcome) in outcomes.iter_mut().filter(|(uid, _)| *uid == key.rule) {
                    *outcome = removing.clone();
                }
                outcomes.extend(self.idle_winner(copy, &removing));
            }
            // Who counts the copies of a rule does not count what it was before.
            (Want::Kept(key, _), _) => outcomes.retain(|(uid, _)| *uid != key.rule),
            (Want::Nothing, _) | (_, None) => {}
        }
        self.report.set(copy, outcomes);
    }

    /// How a copy is for the rule that wins it and cannot have it, while it is to go for another one.
    fn idle_winner(&self, copy: &SourceRef, removing: &CopyStatus) -> Option<(RuleUid, CopyStatus)> {
        let (rule, wanted) = self.desired.idle_winner(copy)?;
        // That may wait for a person. Meanwhile nothing is under way here.
        let wanted = wanted.filter(|_| *removing == CopyStatus::PruneRequested);
        let decision = wanted.map(|wanted| decide(&Want::Copy(Box::new(wanted)), self.records.observed(copy)));
        match decision {
            Some(Decision::Noop(outcome)) => Some((rule, outcome)),
            _ => Some((rule, CopyStatus::UnderWay)),
        }
    }
}

/// What a failure is about: another intent or revision deserves a new try.
pub(super) fn about(want: &Want) -> Option<(IntentKey, Option<Revision>)> {
    match want {
        Want::Nothing => None,
        Want::Copy(wanted) => Some((wanted.intent.clone(), wanted.revision)),
        Want::Gone(key, ..) | Want::Kept(key, _) => Some((key.clone(), None)),
    }
}

/// Whether people in this cluster should hear of such a failure: it is for them to end it.
fn is_news(reason: Reason) -> bool {
    use Reason::{Conflict, Contended, Denied, Drifted, Immutable, Invalid};
    matches!(reason, Conflict | Denied | Invalid | Immutable | Drifted | Contended)
}

fn failure(want: &Want, copy_error: CopyError) -> CopyStatus {
    match want {
        Want::Gone(..) => CopyStatus::Removing(Some(copy_error)),
        Want::Copy(_) | Want::Kept(..) | Want::Nothing => CopyStatus::Failed(copy_error),
    }
}
