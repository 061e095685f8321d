//! The brake: an *indirect* removal of more than a rule's limit is held until a person releases exactly that set. Pure.
//!
//! Nothing is removed that was not judged here. What a rule no longer wants comes in by [`Brake::remove`], with its
//! cause, and stays wherever it is until [`Brake::judge`] lets it pass. A deliberate act (one source, one rule or one
//! literal name that was deleted) passes; anything else is weighed. Indirect removals of the last minute add up, so many
//! small ones are judged as the large one that they are. What is held stays held, and whatever comes in meanwhile joins
//! it, until somebody names the digest of the whole set.
//!
//! # What a digest releases
//! The set that it was made of, wherever parts of it still are. Another process of the hub does not know that set, so a
//! rule's status keeps ([`Memory`]) the digest, the number of copies, and a digest of what the rule wanted besides:
//! while the rule wants the same, what agents still hold beyond it is the same set or what is left of it, up to that
//! number of copies.
//!
//! # What agents compute
//! Which copies are in namespaces that are no longer targets only the agents know: they ask, and what passes is named back
//! to them, see [`Named`]. These are removals like the others: all of a rule's count together, and while some are held
//! the others join them, though each has a digest of its own.
//!
//! What an object that is not Runnel's holds is lost when it is overwritten, so that is braked as well, in the same way, by
//! the same limit and the same annotation, but beside the removals: neither holds up the other.
mod asked;
mod digest;
#[cfg(test)]
mod given_up_tests;
mod item;
mod judged;
mod known;
mod limit;
mod named;
mod passing;
mod past;
mod put_off;
mod shown;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use runnel_proto::model::{ClusterName, SourceRef};

pub use digest::{digest_of, wanted_digest};
pub use item::{Cause, Item};
pub use judged::Judged;
use known::is_released;
pub use known::{Circumstances, Memory};
pub use limit::Limit;
use limit::Spent;
pub use named::{Matter, Named, Permits, Waiting};
use past::Past;
use put_off::PutOff;

/// Indirect removals within this time add up, and deletions within it are one act.
pub const WINDOW: Duration = Duration::from_secs(60);
/// More deletions than this within [`WINDOW`] are not deliberate ones any more.
pub const DELIBERATE: usize = 10;
/// The deletion of a rule that is above its limit is judged after this: that of its namespace, or of many others, may be heard
/// a little later. What
/// agents say of namespaces given up passes when nothing else has come for so long.
pub const DELAY: Duration = Duration::from_secs(1);
/// How many removals one rule's brake remembers to have let pass, besides those of its last judgement. What is forgotten
/// is judged again.
const REMEMBERED: usize = 20_000;

/// The brake of one rule.
#[derive(Clone, Default)]
pub struct Brake {
    judged: Arc<Judged>,
    /// What was not judged yet, and so stays.
    open: BTreeMap<Item, Cause>,
    /// Indirect removals that passed.
    spent: Spent,
    /// What would have passed in clusters that are away.
    put_off: PutOff,
    spent_takeovers: Spent,
    /// When the rule's deletion was first seen.
    deletion_seen: Option<Instant>,
    past: Past,
    /// When sources were found to have been deleted while nobody looked, within [`WINDOW`].
    missed: VecDeque<Instant>,
    /// How many of its copies agents may still hold that this process does not know of.
    rest: u64,
    takeovers: Named,
    given_up: Named,
}

impl Brake {
    /// A brake that remembers what the rule's status says of removals, of takeovers and of what is in namespaces given up.
    pub fn remembering(memory: Option<&Memory>, takeovers: Option<&Memory>, given_up: Option<&Memory>) -> Self {
        let past = Past::remembering(memory);
        let rest = past.released.as_ref().map_or(0, |released| released.copies);
        Self {
            past,
            rest,
            takeovers: Named::remembering(Matter::Takeovers, takeovers),
            given_up: Named::remembering(Matter::GivenUp, given_up),
            ..Self::default()
        }
    }

    /// What was judged, to be shared with sessions.
    pub fn judged(&self) -> &Arc<Judged> {
        &self.judged
    }

    /// What passed must be judged anew, where it has not gone yet.
    pub fn doubt(&mut self) {
        if !self.judged.passed.is_empty() || !self.judged.let_go.is_empty() {
            let judged = Arc::make_mut(&mut self.judged);
            judged.passed.clear();
            judged.let_go.clear();
        }
    }

    /// Nothing of the rule is removed any more, only left without marks: what is held is to be judged anew.
    pub fn reopen(&mut self) {
        if !self.judged.held.is_empty() {
            let held = std::mem::take(&mut Arc::make_mut(&mut self.judged).held);
            self.open.extend(held.into_iter().map(|item| (item, Cause::Indirect)));
        }
        self.past.let_go();
    }

    /// What the rule wants has changed: nothing that goes from now on is left of an earlier release.
    pub fn wants_something_else(&mut self) {
        self.rest = 0;
    }

    /// Something is not wanted any more. It stays until it is judged.
    pub fn remove(&mut self, item: Item, cause: Cause) {
        if !self.judged.passes(&item) && !self.judged.holds(&item) {
            let known = self.open.entry(item).or_insert(cause);
            *known = cause.max(*known);
        }
    }

    /// Something is wanted, perhaps again.
    pub fn keep(&mut self, item: &Item) {
        self.open.remove(item);
        if *item == Item::Rule {
            self.deletion_seen = None;
        }
        if self.judged.passes(item) || self.judged.holds(item) {
            let judged = Arc::make_mut(&mut self.judged);
            judged.passed.remove(item);
            judged.held.remove(item);
        }
    }

    /// Everything that is wanted again.
    pub fn keep_wanted(&mut self, is_wanted: impl Fn(&Item) -> bool) {
        let all = self.judged.passed.iter().chain(&self.judged.held).chain(self.open.keys());
        let back: Vec<_> = all.filter(|item| is_wanted(item)).cloned().collect();
        back.iter().for_each(|item| self.keep(item));
    }

    /// Nothing is said to this cluster any more, or it leaves: what it holds is not for the brake.
    pub fn forget(&mut self, gone: &ClusterName) {
        self.keep_wanted(|item| match item {
            Item::Cluster(cluster) | Item::Kind(cluster, _) | Item::Copy(cluster, _) => cluster == gone,
            Item::Rule | Item::Name(_) | Item::Source(_) => false,
        });
    }

    /// Whether something waits to be judged, or what was judged may have to be judged anew.
    pub fn is_open(&self) -> bool {
        let asked = [(&self.takeovers, &self.judged.permits), (&self.given_up, &self.judged.let_go)];
        let is_asked = |(named, permits): &(&Named, &Permits)| named.is_holding() || !permits.is_empty();
        !self.open.is_empty() || asked.iter().any(is_asked)
    }

    /// A cluster's agent asks again for what it was let overwrite, or let go: that is to be judged anew.
    pub fn has_used_up(&mut self, matter: Matter, cluster: &ClusterName) {
        let judged = Arc::make_mut(&mut self.judged);
        match matter {
            Matter::Takeovers => judged.permits.remove(cluster),
            Matter::GivenUp => judged.let_go.remove(cluster),
        };
    }

    /// Whether a removal is held, by this process or by the one before.
    pub fn is_holding(&self) -> bool {
        !self.judged.held.is_empty() || self.past.carried.is_some()
    }

    /// When the deletion of the rule, or what agents ask for, is to be judged.
    pub fn due(&self) -> Option<Instant> {
        let deletion = self.deletion_seen.filter(|_| self.open.contains_key(&Item::Rule)).map(|seen| seen + DELAY);
        deletion.into_iter().chain(self.given_up.due()).min()
    }

    /// Every agent has said what it holds, but for those that are `away`: what an earlier process held is held by this
    /// one, or is over. What those hold is no less doubtful when they come back.
    pub fn settle(&mut self, away: &BTreeSet<ClusterName>) -> bool {
        let (takeovers, given_up) = (self.takeovers.settle(away), self.given_up.settle(away));
        self.past.settle(away) || takeovers || given_up
    }

    /// Whether a cluster that comes back may hold something that an earlier process held; asked once, when it says what.
    pub fn was_awaited(&mut self, cluster: &ClusterName) -> bool {
        self.past.awaited.remove(cluster)
    }

    /// Whether something is held in just this cluster.
    pub fn holds_in(&self, cluster: &ClusterName) -> bool {
        let from = Item::Kind(cluster.clone(), "".into());
        let is_here = |item: &Item| matches!(item, Item::Kind(name, _) | Item::Copy(name, _) if name == cluster);
        let copy = Item::Copy(cluster.clone(), SourceRef::new("", "", ""));
        let held = &self.judged.held;
        held.contains(&Item::Cluster(cluster.clone()))
            || [from, copy].into_iter().any(|from| held.range(from..).next().is_some_and(is_here))
    }

    /// How many intents are to go, as far as that was not judged or is held.
    pub fn leaving(&self) -> u64 {
        let is_intent = |item: &&Item| matches!(item, Item::Copy(..) | Item::Name(_) | Item::Source(_));
        self.open.keys().chain(&self.judged.held).filter(is_intent).count() as u64
    }

    /// How many more sources that nobody knows may wait: an agent can invent as many as it likes.
    pub fn room(&self) -> usize {
        REMEMBERED.saturating_sub(self.open.len() + self.judged.held.len())
    }

    /// Whether nobody has said this before.
    pub fn is_news(&self, item: &Item) -> bool {
        !self.open.contains_key(item) && !self.judged.passes(item) && !self.judged.holds(item)
    }

    /// Judges what is open, and lets go of what is released. Returns whether anything changed.
    pub fn judge(&mut self, known: &Circumstances<'_>, now: Instant) -> bool {
        let before = self.judged.clone();
        let is_carried = self.open.values().any(|cause| *cause == Cause::Carried);
        let (deliberate, indirect) = self.sort_out(known, now);
        self.pass(deliberate);
        if !indirect.is_empty() {
            match self.may_pass(&indirect, is_carried, known, now) {
                Some(by) => self.pass_present(indirect, by, known, now),
                None => Arc::make_mut(&mut self.judged).held.extend(indirect),
            }
        }
        let released = self.heed_release(known);
        self.judge_named(known, now);
        released || *before != *self.judged
    }

    fn heed_release(&mut self, known: &Circumstances<'_>) -> bool {
        let Some(shown) = self.shown(known).filter(|shown| is_released(known.release, &shown.digest)) else {
            return false;
        };
        let held = std::mem::take(&mut Arc::make_mut(&mut self.judged).held);
        let done = (known.weigh)(&held);
        self.pass(held);
        self.past.let_go();
        self.past.previous.clone_from(&shown.digest);
        self.rest = shown.copies.saturating_sub(done);
        self.past.released = Some(Memory { released: true, ..shown });
        true
    }

    fn pass(&mut self, items: BTreeSet<Item>) {
        if items.is_empty() {
            return;
        }
        let judged = Arc::make_mut(&mut self.judged);
        // Never what passes now: it would never go.
        if judged.passed.len() + items.len() > REMEMBERED {
            judged.passed.clear();
        }
        judged.passed.extend(items);
    }

    /// What the status says: what is held, or what was released last. `None` if there is nothing to say.
    pub fn memory(&self, known: &Circumstances<'_>) -> Option<Memory> {
        self.shown(known).or_else(|| self.released())
    }

    /// What was released last: all that there is to say while nothing is held.
    pub fn released(&self) -> Option<Memory> {
        self.past.released.clone()
    }

    /// The set that is held now, as people see it.
    fn shown(&self, known: &Circumstances<'_>) -> Option<Memory> {
        let held = &self.judged.held;
        if !self.is_holding() {
            return None;
        }
        let (copies, wanted) = ((known.weigh)(held), (known.wanted)());
        // What another process held, as far as agents have spoken of it.
        if let Some(carried) = self.past.carried.as_ref().filter(|c| c.wanted == wanted && c.copies >= copies) {
            return Some(carried.clone());
        }
        let digest = digest_of(known.uid, &self.past.previous, held);
        let previous = self.past.previous.clone();
        (!held.is_empty()).then_some(Memory { digest, copies, wanted, released: false, previous })
    }

    /// Everything that is held.
    pub fn held(&self) -> &BTreeSet<Item> {
        &self.judged.held
    }
}
