//! The acked state of one rule and of its intents, and the digests of its applied copies.
//!
//! Only the digests of intents that may have changed are computed again, when the agent reports.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use runnel_proto::model::{
    AckedIntent, ContentDigest, LiveDigest, Revision, RuleName, RuleUid, SetDigest, SourceRef,
    Terms, TermsDigest,
};

use super::tombstones::Removals;
use crate::copy::{CopyError, IntentKey};
use crate::policy::Facts;

/// The revision of an intent of which only copies are known.
const UNKNOWN_REVISION: Revision = Revision([0; 16]);

/// The acked state of a rule, for the hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AckedRule {
    /// The display name.
    pub rule: RuleName,
    /// Digest of its (source, revision) pairs.
    pub digest: SetDigest,
    /// Number of intents.
    pub intents: u32,
    /// The terms, as the hub named them.
    pub terms: Option<TermsDigest>,
    /// Whether it is suspended.
    pub suspended: bool,
}

/// One intent, by revision.
#[derive(Clone, Default)]
pub(super) struct IntentState {
    /// The revision in force.
    pub in_force: Option<Revision>,
    /// The policy facts of the content, if they are known.
    pub facts: Option<Facts>,
    /// A later revision that was refused: the agent reports it as acked, so that the hub does not
    /// send it again and again.
    pub refused: Option<(Revision, CopyError)>,
    /// A copy proved the intent after a restart, and the hub has not confirmed it since.
    pub restored: bool,
    /// Copies of it were found, and it is unknown whether the hub selects it. It has only these
    /// copies. It is reported under a revision that no content has, so that the hub answers with
    /// the content or with a tombstone.
    pub found: bool,
    /// The digests of its copies, if they are current.
    pub shown: Option<LiveDigest>,
}

impl IntentState {
    pub fn of(revision: Revision) -> Self {
        Self {
            in_force: Some(revision),
            ..Self::default()
        }
    }

    /// The acked revision; `None` only in between.
    pub fn revision(&self) -> Option<&Revision> {
        let found = self.found.then_some(&UNKNOWN_REVISION);
        self.refused
            .as_ref()
            .map(|(revision, _)| revision)
            .or(self.in_force.as_ref())
            .or(found)
    }
}

/// The acked state of one rule.
#[derive(Clone, Default)]
pub(super) struct Rule {
    /// The last terms of the hub. A later message may have changed the suspension.
    pub terms: Option<(Arc<Terms>, TermsDigest)>,
    pub orphaned: bool,
    /// The terms are from the store, and may be older than the last ones in force: nothing is
    /// removed by them.
    pub unconfirmed: bool,
    /// The hub has ordered the removal of the whole rule.
    pub leaving: bool,
    pub intents: BTreeMap<SourceRef, IntentState>,
    pub digest: SetDigest,
    /// The target namespaces, where the terms choose any: existing ones, and the literal ones in any case.
    pub targets: BTreeSet<Arc<str>>,
    /// Copies of this rule with an ordered removal.
    pub orders: BTreeSet<SourceRef>,
    /// The orders by source, and the stored tombstones.
    pub removals: Removals,
    /// Names that were deliberately removed from its terms while it was suspended; the removal is
    /// pending.
    pub dropped: BTreeSet<Arc<str>>,
    /// The digest of all known intents, and whether there are unknown ones.
    pub shown: (LiveDigest, bool),
}

impl Rule {
    pub fn name(&self, uid: &RuleUid) -> RuleName {
        match &self.terms {
            Some((terms, _)) => terms.rule.clone(),
            None => RuleName {
                name: uid.to_string(),
                ..RuleName::default()
            },
        }
    }

    pub fn is_dry_run(&self) -> bool {
        self.terms
            .as_ref()
            .is_some_and(|(terms, _)| terms.is_dry_run())
    }

    /// Whether existing copies are left unchanged.
    pub fn is_frozen(&self) -> bool {
        self.terms
            .as_ref()
            .is_some_and(|(terms, _)| terms.is_frozen())
    }

    pub fn is_suspended(&self) -> bool {
        self.terms.as_ref().is_some_and(|(terms, _)| terms.suspend)
    }

    /// The acked state, for the hub.
    pub fn acked(&self, uid: &RuleUid) -> AckedRule {
        AckedRule {
            rule: self.name(uid),
            digest: self.digest,
            intents: u32::try_from(self.intents.len()).unwrap_or(u32::MAX),
            // A hub that has the rule again sends its terms again, and so claims it.
            terms: self
                .terms
                .as_ref()
                .filter(|_| !self.orphaned)
                .map(|(_, digest)| *digest),
            suspended: self.is_suspended(),
        }
    }

    /// The (source, revision) pairs.
    pub fn pairs(&self) -> Vec<AckedIntent> {
        self.intents
            .iter()
            .filter_map(|(source, intent)| {
                Some(AckedIntent {
                    source: source.clone(),
                    revision: *intent.revision()?,
                })
            })
            .collect()
    }

    /// The keys of all intents.
    pub fn keys(&self, uid: &RuleUid) -> impl Iterator<Item = IntentKey> {
        self.intents.keys().map(|source| IntentKey {
            rule: uid.clone(),
            source: source.clone(),
        })
    }

    /// Sets or removes an intent, and updates the digest.
    pub fn set_intent(&mut self, source: &SourceRef, intent: Option<IntentState>) {
        let before = match intent {
            Some(intent) => {
                if let Some(revision) = intent.revision() {
                    self.digest.insert(source, revision);
                }
                self.shown.1 = true;
                self.intents.insert(source.clone(), intent)
            }
            None => self.intents.remove(source),
        };
        if let Some(revision) = before.as_ref().and_then(IntentState::revision) {
            self.digest.remove(source, revision);
        }
        if let Some(shown) = before.and_then(|before| before.shown) {
            self.shown.0.subtract(shown);
        }
    }

    /// Whether the hub ordered the removal of the rule, and nothing of it is left.
    pub fn is_removed_completely(&self) -> bool {
        self.leaving && self.intents.is_empty() && self.orders.is_empty()
    }

    /// Returns the number of versions to keep, the newest included.
    pub fn versions(&self) -> Option<usize> {
        let (terms, _) = self.terms.as_ref()?;
        usize::try_from(terms.versions?).ok()
    }

    /// The versions of the same source beside this one.
    pub fn other_versions<'a>(&'a self, key: &'a IntentKey) -> impl Iterator<Item = &'a SourceRef> {
        let plain = key.source.plain();
        let first = plain.clone();
        let same = self
            .intents
            .range(first..)
            .map(|(source, _)| source)
            .take_while(move |one| one.plain() == plain);
        same.filter(|source| **source != key.source && source.is_version())
    }

    /// All digests are to be computed again.
    pub fn recompute_all_digests(&mut self) {
        self.intents
            .values_mut()
            .for_each(|intent| intent.shown = None);
        self.shown = (LiveDigest::default(), true);
    }

    /// The digests of an intent's copies are to be computed again.
    pub fn recompute_digest(&mut self, source: &SourceRef) {
        let shown = self
            .intents
            .get_mut(source)
            .and_then(|intent| intent.shown.take());
        if let Some(shown) = shown {
            self.shown.0.subtract(shown);
            self.shown.1 = true;
        }
    }

    /// Whether a source without an acked intent is removed: another version of it may be acked.
    fn is_removed(&self, uid: &RuleUid, source: &SourceRef) -> bool {
        let key = || IntentKey {
            rule: uid.clone(),
            source: source.clone(),
        };
        !self.intents.contains_key(source)
            && (self.versions().is_none() || self.other_versions(&key()).next().is_none())
    }

    /// Renews the tombstones that are to be stored, of which there is room for so many.
    pub fn renew_tombstones(
        &mut self,
        uid: &RuleUid,
        removals: &BTreeSet<IntentKey>,
        room: &mut usize,
    ) {
        let mut renewed = std::mem::take(&mut self.removals);
        let under_way = removals.iter().filter(|key| key.rule == *uid);
        renewed.renew(
            |source| {
                self.intents
                    .get(source)
                    .map_or(self.unconfirmed, |intent| intent.found)
            },
            self.unconfirmed || self.intents.values().any(|intent| intent.found),
            |source| self.is_removed(uid, source),
            under_way.map(|key| &key.source),
            room,
        );
        self.removals = renewed;
    }

    /// The sum of the digests of the intents, given the state of their copies; `None` if it is
    /// unknown.
    pub fn intents_digest(
        &mut self,
        copies_of: impl Fn(&Self, &SourceRef) -> Vec<SourceRef>,
        shows: impl Fn(&SourceRef) -> CopyDigest,
    ) -> Option<LiveDigest> {
        if self.shown.1 {
            let unknown = self
                .intents
                .iter()
                .filter(|(_, intent)| intent.shown.is_none());
            let parts: Option<Vec<_>> = unknown
                .map(|(source, _)| {
                    let part = self.intent_digests(source, copies_of(self, source), &shows)?;
                    Some((source.clone(), part))
                })
                .collect();
            for (source, part) in parts? {
                if let Some(intent) = self.intents.get_mut(&source) {
                    intent.shown = Some(part);
                    self.shown.0.merge(part);
                }
            }
            self.shown.1 = false;
        }
        Some(self.shown.0)
    }

    /// Returns the digests of one intent's copies, each content once. An intent without a copy
    /// counts as it was sent.
    fn intent_digests(
        &self,
        source: &SourceRef,
        copies: Vec<SourceRef>,
        shows: &impl Fn(&SourceRef) -> CopyDigest,
    ) -> Option<LiveDigest> {
        let intent = self
            .intents
            .get(source)
            .filter(|intent| intent.refused.is_none())?;
        let mut contents = vec![];
        for copy in copies {
            match shows(&copy) {
                CopyDigest::Nothing => {}
                CopyDigest::Content(content) => contents.push(content?),
            }
        }
        if contents.is_empty() {
            // The sent content, with the ignored fields.
            let ignores = self
                .terms
                .as_ref()
                .is_none_or(|(terms, _)| !terms.ignore_fields.is_empty());
            contents.push(intent.facts.as_ref()?.digest.filter(|_| !ignores)?);
        }
        contents.sort_unstable();
        contents.dedup();
        let mut part = LiveDigest::default();
        contents
            .into_iter()
            .for_each(|content| part.insert(source, content));
        Some(part)
    }
}

/// What one copy shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyDigest {
    /// It is not applied: it waits for its namespace.
    Nothing,
    /// The copy is applied, with this digest; `None` if it is unknown.
    Content(Option<ContentDigest>),
}
