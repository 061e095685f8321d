//! What agents show that have applied all of a plan: one sum for each kind, kept as the plan changes, so that a report costs one
//! comparison whatever the number of sources; and one keyed digest for all clusters that get all of it.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use runnel_proto::model::{FieldPath, Proof, ProofKey, RuleUid, Shown, SourceRef, Terms};

use super::SourceContent;

/// The sums of one plan.
#[derive(Clone, Default)]
pub(super) struct Expected {
    kinds: BTreeMap<Arc<str>, Shown>,
    /// What the rule leaves alone in copies.
    ignored: Arc<BTreeSet<FieldPath>>,
    /// Intents whose content cannot be digested.
    unknown: usize,
    /// The proof of all kinds together, once somebody has asked since they changed.
    whole: OnceLock<Proof>,
}

impl Expected {
    /// Of nothing yet, where copies are compared without these fields.
    pub(super) fn without(ignored: &BTreeSet<FieldPath>) -> Self {
        Self { ignored: Arc::new(ignored.clone()), ..Self::default() }
    }

    /// Of nothing, on the same terms.
    pub(super) fn anew(&self) -> Self {
        Self { ignored: self.ignored.clone(), ..Self::default() }
    }

    /// Whether two leave the same alone.
    pub(super) fn is_like(&self, other: &Expected) -> bool {
        self.ignored == other.ignored
    }

    pub(super) fn put_in(&mut self, intent: &SourceRef, content: &SourceContent) {
        self.whole = OnceLock::new();
        match content.digest_without(&self.ignored) {
            Some(digest) => self.kinds.entry(intent.resource.clone()).or_default().insert(intent, digest),
            None => self.unknown += 1,
        }
    }

    pub(super) fn take_out(&mut self, intent: &SourceRef, content: &SourceContent) {
        self.whole = OnceLock::new();
        match content.digest_without(&self.ignored) {
            Some(digest) => self.kinds.entry(intent.resource.clone()).or_default().remove(intent, digest),
            None => self.unknown = self.unknown.saturating_sub(1),
        }
    }

    /// What an agent proves that has applied all that is sent to it on these terms; `None` where the hub cannot tell.
    pub(super) fn proof(&self, rule: &RuleUid, terms: &Terms, key: &ProofKey) -> Option<Proof> {
        if self.unknown > 0 {
            return None;
        }
        let sum = |kinds: &mut dyn Iterator<Item = &Shown>| {
            let mut sum = Shown::default();
            kinds.for_each(|shown| sum.merge(*shown));
            key.proof(rule, sum)
        };
        if self.kinds.keys().all(|kind| terms.grants_kind(kind)) {
            return Some(*self.whole.get_or_init(|| sum(&mut self.kinds.values())));
        }
        let granted = self.kinds.iter().filter(|(kind, _)| terms.grants_kind(kind));
        Some(sum(&mut granted.map(|(_, shown)| shown)))
    }
}
