//! What passes as it is, and what is weighed against the limit.
use std::collections::BTreeSet;
use std::time::Instant;

use super::{Brake, Cause, Circumstances, DELAY, DELIBERATE, Item, Limit, WINDOW};

/// Why something passes without a release of its own.
pub(super) enum Passes {
    /// Nothing is removed.
    Freely,
    /// It is what is left of the set that was released last.
    AsRestOfRelease,
    /// The limit allows it, with what passed lately.
    WithinLimit,
}

impl Brake {
    /// Takes out of what is open what can be judged now: what passes as it is, and what is to be weighed.
    pub(super) fn sort_out(&mut self, known: &Circumstances<'_>, now: Instant) -> (BTreeSet<Item>, BTreeSet<Item>) {
        if self.open.contains_key(&Item::Rule) {
            let seen = *self.deletion_seen.get_or_insert(now);
            let waits = now.saturating_duration_since(seen) < DELAY;
            // What may go in any case waits for nothing.
            if waits && !self.goes_in_any_case(known, now) {
                return Default::default();
            }
        }
        let open = std::mem::take(&mut self.open);
        let names = open.values().filter(|cause| **cause == Cause::Named).count();
        self.missed.retain(|at| now.saturating_duration_since(*at) < WINDOW);
        self.missed.extend(open.values().filter(|cause| **cause == Cause::Missed).map(|_| now));
        let missed = self.missed.len();
        let carried = self.past.carried.is_some();
        let is_deliberate = |(item, cause): &(Item, Cause)| match cause {
            Cause::Named => names <= DELIBERATE,
            // It may be among what an earlier process held because too much was deleted.
            Cause::Deleted | Cause::Missed if *item != Item::Rule && carried => false,
            Cause::Missed if missed > DELIBERATE => false,
            Cause::Deleted | Cause::Missed => !(known.doubtful)(item),
            Cause::Indirect | Cause::Carried => false,
        };
        let (deliberate, indirect): (Vec<_>, Vec<_>) = open.into_iter().partition(is_deliberate);
        let items = |pairs: Vec<(Item, Cause)>| pairs.into_iter().map(|(item, _)| item).collect();
        (items(deliberate), items(indirect))
    }

    /// Whether the rule may go whatever else is heard of: though its deletion counted as an indirect one.
    fn goes_in_any_case(&mut self, known: &Circumstances<'_>, now: Instant) -> bool {
        let is_carried = self.open.values().any(|cause| *cause == Cause::Carried);
        self.may_pass(&BTreeSet::from([Item::Rule]), is_carried, known, now).is_some()
    }

    /// Why these may pass as they are; `None` if they are to be held.
    pub(super) fn may_pass(
        &mut self,
        items: &BTreeSet<Item>,
        is_carried: bool,
        known: &Circumstances<'_>,
        now: Instant,
    ) -> Option<Passes> {
        if known.limit == Limit::NONE {
            return Some(Passes::Freely);
        }
        if is_carried || self.is_holding() || self.given_up.is_holding() {
            return None;
        }
        let copies = (known.weigh)(items);
        let released = self.past.released.as_ref().filter(|_| self.rest >= copies);
        if released.is_some_and(|released| released.wanted == (known.wanted)()) {
            return Some(Passes::AsRestOfRelease);
        }
        // Agents may still count what went a moment ago, so what is there now is all that there was.
        let copies = copies.saturating_add(self.put_off.besides(items, now));
        self.spent.allows(known.limit, copies, known.all, now).then_some(Passes::WithinLimit)
    }

    /// Lets this go where it is known what goes. What a cluster holds that is away was only estimated: that is judged again
    /// when the cluster is back.
    pub(super) fn pass_present(&mut self, items: BTreeSet<Item>, by: Passes, known: &Circumstances<'_>, now: Instant) {
        let (away, present): (BTreeSet<_>, BTreeSet<_>) = items.into_iter().partition(|item| (known.is_away)(item));
        match by {
            Passes::Freely => {}
            Passes::AsRestOfRelease => self.rest = self.rest.saturating_sub((known.weigh)(&present)),
            Passes::WithinLimit => {
                self.spent.add((known.weigh)(&present), now);
                for item in away {
                    let copies = (known.weigh)(&BTreeSet::from([item.clone()]));
                    self.put_off.add(item, copies, now);
                }
            }
        }
        self.pass(present);
    }
}
