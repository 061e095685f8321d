//! Rollouts that go back: what copies held is kept before they are changed, and put back when the hub says so.
use std::time::Instant;

use runnel_proto::model::{Revision, RuleUid, SourceRef, Travel};

use super::Reconciler;
use crate::copy::IntentKey;
use crate::decide::{Want, WantedCopy};
use crate::job::Done;
use crate::live::Ownership;
use crate::previous::{Kept, ToKeep};
use crate::queue::Key;

impl Reconciler {
    /// What is wanted of a copy whose rule goes back: what was kept. A copy of which nothing was kept stays as it is, and one
    /// that is not there is not made. What nobody has changed since is wanted as ever.
    pub(super) fn go_back(&self, copy: &SourceRef, want: &mut Want) {
        let Want::Copy(wanted) = want else { return };
        match self.desired.travel(&wanted.intent.rule) {
            Travel::Plain => {}
            // What is written now would be lost with what is being forgotten.
            Travel::Keep(_) => wanted.hold |= self.previous.is_going(&wanted.intent),
            Travel::Revert { .. } => {
                let entry = self.previous.get(&wanted.intent);
                if entry.is_none() && !self.desired.is_changed(&wanted.intent) {
                    return;
                }
                let kept = entry.and_then(|kept| kept.revision);
                match kept.or_else(|| self.own_revision(copy, wanted)) {
                    Some(revision) => {
                        wanted.revision = Some(revision);
                        if !wanted.hold {
                            wanted.copy_error = None;
                        }
                        // The newest content may be what this cluster does not want; that content is judged when it is written.
                        wanted.denied = self.desired.denied_whatever(copy, &wanted.place);
                    }
                    None => *want = Want::Nothing,
                }
            }
        }
    }

    /// After a restart: what goes back is held, also where no copy is left that says so.
    pub(super) fn restore_kept(&mut self) {
        for (key, revision) in self.previous.revisions() {
            if self.desired.travel(&key.rule).reverts() {
                self.desired.restore_intent(&key, revision);
            }
        }
    }

    /// The revision that our own copy holds.
    fn own_revision(&self, copy: &SourceRef, wanted: &WantedCopy) -> Option<runnel_proto::model::Revision> {
        let live = self.records.live(copy).filter(|live| live.ownership == Ownership::Ours)?;
        let sealed = live.sealed.as_ref()?;
        let is_same = sealed.rule == wanted.intent.rule && sealed.source == wanted.intent.source;
        is_same.then_some(sealed.revision)
    }

    /// What must be kept before a copy is written.
    pub(super) fn to_keep(&self, copy: &SourceRef, wanted: &WantedCopy) -> Option<ToKeep> {
        let key = &wanted.intent;
        let Travel::Keep(base) = self.desired.travel(&key.rule) else { return None };
        if self.previous.get(key).is_some() {
            return None;
        }
        let revision = wanted.revision?;
        let holders: Vec<_> = self.records.holders(key).collect();
        let is_new = |sealed: &crate::live::Sealed| sealed.revision == revision;
        let former = holders.iter().filter(|(_, live)| live.is_whole() && !live.sealed.as_deref().is_some_and(is_new));
        if let Some((held, _)) = former.min_by_key(|(held, _)| *held != copy) {
            return Some(ToKeep { of: Some((*held).clone()), base });
        }
        // Copies that hold it already were there when keeping began, or are put back.
        let is_there = holders.iter().any(|(_, live)| live.sealed.as_deref().is_some_and(is_new));
        (!is_there).then_some(ToKeep { of: None, base })
    }

    /// Copies of a rule that should go back, and of which nothing was kept.
    pub(super) fn left_of(&self, uid: &RuleUid) -> u32 {
        if !self.desired.travel(uid).reverts() {
            return 0;
        }
        let is_left = |key: &IntentKey| self.previous.get(key).is_some_and(|kept| kept.revision.is_none());
        let left = self.desired.intents_of(uid).filter(is_left).map(|key| self.records.holders(&key).count());
        u32::try_from(left.sum::<usize>()).unwrap_or(u32::MAX)
    }

    /// Of each intent of a rule that goes back, where the hub had sent another content: what was put back, or is to be. None:
    /// nothing was kept, and its copies stay as they are.
    pub(super) fn back_to(&self, uid: &RuleUid) -> Vec<(IntentKey, Option<Revision>)> {
        let own = |key: &IntentKey| {
            let mut ours = self.records.holders(key).filter(|(_, live)| live.ownership == Ownership::Ours);
            ours.find_map(|(_, live)| Some(live.sealed.as_ref()?.revision))
        };
        let went_wrong = |key: &IntentKey| match self.previous.get(key) {
            Some(kept) => Some(kept.revision),
            None => self.desired.is_changed(key).then(|| own(key)),
        };
        self.desired.intents_of(uid).filter_map(|key| went_wrong(&key).map(|to| (key, to))).collect()
    }

    /// A rule goes on from a rollback. What is in force by then is what the hub wants, but where that was refused: there it is
    /// what went wrong, and stays replaced by what was put back.
    pub(super) fn stay_back(&mut self, back_to: Vec<(IntentKey, Option<Revision>)>) {
        for (key, revision) in back_to {
            if self.desired.is_refused(&key) {
                self.desired.put_back(&key, revision);
            }
        }
    }

    /// Takes in what the hub said of a rule: what is kept and not needed any more is forgotten, and nobody asks for content
    /// that is not to be written.
    pub(super) fn follow_travel(&mut self, uid: &RuleUid) {
        if self.desired.travel(uid).reverts() {
            self.wanting.retain(|key| key.rule != *uid);
        }
        self.give_up_kept(uid);
    }

    /// What is kept of a rule and not needed any more is to be forgotten.
    pub(super) fn give_up_kept(&mut self, uid: &RuleUid) {
        if self.previous.give_up(uid, self.desired.travel(uid).base()) {
            self.queue.add(&Key::Kept(uid.clone()));
        }
    }

    /// What is kept of an intent that is no more is not put back, whatever else of its rule is.
    pub(super) fn forget_kept(&mut self, key: &IntentKey) {
        if self.previous.forget(key) {
            self.queue.add(&Key::Kept(key.rule.clone()));
        }
    }

    /// Takes in what was kept before a copy was written. Meanwhile the hub may have said that it is not needed any more.
    pub(super) fn has_kept(&mut self, key: IntentKey, kept: Kept) {
        let is_of_now = self.desired.travel(&key.rule).base() == Some(kept.base.as_str());
        let uid = key.rule.clone();
        self.previous.add(key.clone(), kept);
        if !self.desired.has(&key) {
            self.forget_kept(&key);
        }
        if !is_of_now {
            self.give_up_kept(&uid);
        }
    }

    /// Nothing of any rule is to be left here.
    pub(super) fn forget_everything_kept(&mut self) {
        for uid in self.previous.rules().into_keys() {
            if self.previous.give_up(&uid, None) {
                self.queue.add(&Key::Kept(uid));
            }
        }
    }

    /// Takes in that what was kept of a rule is forgotten, or is not yet.
    pub(super) fn forgotten(&mut self, uid: &RuleUid, done: &Done, now: Instant) {
        self.previous.gone(uid, &done.forgot);
        match &done.copy_error {
            Some(copy_error) => self.retry(&done.key, copy_error, done.retry_after, now),
            None => {
                self.queue.done(&done.key, now);
                // More may have been given up meanwhile, and what waited for this may be written now.
                if self.previous.going(uid).is_some() {
                    self.queue.add(&done.key);
                }
                let keys: Vec<_> = self.desired.intents_of(uid).collect();
                for copy in keys.iter().flat_map(|key| self.desired.copies(key)).collect::<Vec<_>>() {
                    self.reconcile_copy(&copy, now);
                }
            }
        }
    }
}
