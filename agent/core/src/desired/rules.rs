//! The rules of the desired set with their acked intents, and those that have ended. The digests of
//! applied copies are computed again only for intents that may have changed, when the agent reports.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use runnel_proto::model::{
    AckedIntent, ContentDigest, CopyMode, FeedbackField, LiveDigest, NAMESPACES, Propagation,
    Revision, RuleName, RuleUid, SetDigest, SourceRef, Terms, TermsDigest,
};

use super::tombstones::{Removals, STORED_LIMIT, Tombstones};
use crate::copy::{CopyError, IntentKey};
use crate::phase::Phase;
use crate::policy::{Area, Facts, Policy};
use crate::records::Records;

/// Returns the fields that a rule has returned, with the rule's namespace on the hub.
pub fn returned_fields(terms: &Terms) -> impl Iterator<Item = (&str, &FeedbackField)> {
    let namespace = &*terms.rule.namespace;
    terms.feedback.iter().map(move |field| (namespace, field))
}

/// A rule without remaining copies, as far as the agent knows.
#[derive(Clone, Debug)]
pub struct FinishedRule {
    /// The rule.
    pub uid: RuleUid,
    /// The display name.
    pub rule: RuleName,
    /// The namespaces of its copies, if the rule named any.
    pub targets: Option<BTreeSet<Arc<str>>>,
    /// The kinds of its copies, if all of them are known.
    pub kinds: Option<BTreeSet<Arc<str>>>,
}

impl FinishedRule {
    /// Whether the rule may have copies in an area.
    fn may_have_copies_in(&self, area: &Area) -> bool {
        let has_kind = |kinds: &BTreeSet<_>| kinds.contains(&area.resource);
        let is_target = |targets: &BTreeSet<_>| {
            area.namespace
                .as_ref()
                .is_none_or(|name| targets.contains(name))
        };
        self.kinds.as_ref().is_none_or(has_kind) && self.targets.as_ref().is_none_or(is_target)
    }
}

/// The terms of one rule as they are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRule {
    /// The rule.
    pub uid: RuleUid,
    /// Its terms.
    pub terms: Terms,
    /// Their digest, as the hub gave it.
    pub digest: TermsDigest,
    /// The hub has reported that it does not have the rule.
    pub orphaned: bool,
    /// Sources whose copies were being removed.
    pub tombstones: Tombstones,
    /// The kinds of its copies that the policy allowed while it had any, if all of them are known.
    pub kinds: Option<BTreeSet<Arc<str>>>,
    /// The copies that ran to their end.
    pub finished: Vec<FinishedCopy>,
}

/// A copy that ran to its end, as Jobs do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FinishedCopy {
    /// The copy.
    pub copy: SourceRef,
    /// Its source.
    pub source: SourceRef,
    /// The revision with which it ran.
    pub revision: Revision,
}

/// The rules with any state.
#[derive(Clone, Default)]
pub struct Rules {
    by_uid: BTreeMap<RuleUid, Rule>,
    /// Rules that choose namespaces, or are granted them, by glob or label: a namespace's event may
    /// change their targets.
    broad: BTreeSet<RuleUid>,
    /// Rules that have fields of copies returned.
    with_feedback: BTreeSet<RuleUid>,
    /// How often the fields that rules have returned have changed.
    feedback_changes: u64,
    /// Finished rules since the last call.
    finished_rules: Vec<FinishedRule>,
}

impl Rules {
    /// The uids of the rules.
    pub fn uids(&self) -> impl Iterator<Item = &RuleUid> {
        self.by_uid.keys()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&RuleUid, &Rule)> {
        self.by_uid.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (&RuleUid, &mut Rule)> {
        self.by_uid.iter_mut()
    }

    pub(super) fn get(&self, uid: &RuleUid) -> Option<&Rule> {
        self.by_uid.get(uid)
    }

    pub(super) fn get_mut(&mut self, uid: &RuleUid) -> Option<&mut Rule> {
        self.by_uid.get_mut(uid)
    }

    /// Returns a rule that the hub has sent. All kinds of a new rule are known.
    pub(super) fn get_or_new(&mut self, uid: &RuleUid) -> &mut Rule {
        self.by_uid.entry(uid.clone()).or_insert_with(|| Rule {
            kinds: Some(BTreeSet::new()),
            ..Rule::default()
        })
    }

    pub(super) fn get_or_default(&mut self, uid: &RuleUid) -> &mut Rule {
        self.by_uid.entry(uid.clone()).or_default()
    }

    pub(super) fn insert(&mut self, uid: RuleUid, rule: Rule) {
        self.by_uid.insert(uid, rule);
    }

    /// Forgets a rule that has no state.
    pub(super) fn forget(&mut self, uid: &RuleUid) {
        self.set_feedback(uid, &[]);
        self.by_uid.remove(uid);
        self.broad.remove(uid);
    }

    /// The rules whose targets depend on the namespaces that exist.
    pub(super) fn broad(&self) -> impl Iterator<Item = &RuleUid> {
        self.broad.iter()
    }

    /// Records whether the targets of a rule depend on the namespaces that exist.
    pub(super) fn set_broad(&mut self, uid: &RuleUid, is_broad: bool) {
        if is_broad {
            self.broad.insert(uid.clone());
        } else {
            self.broad.remove(uid);
        }
    }

    /// Records the fields of copies that a rule has returned by its new terms, before these replace the former ones.
    pub(super) fn set_feedback(&mut self, uid: &RuleUid, fields: &[FeedbackField]) {
        if self.feedback_of(uid) == fields {
            return;
        }
        if fields.is_empty() {
            self.with_feedback.remove(uid);
        } else {
            self.with_feedback.insert(uid.clone());
        }
        self.feedback_changes += 1;
    }

    /// How often the fields that rules have returned have changed.
    pub fn feedback_changes(&self) -> u64 {
        self.feedback_changes
    }

    /// Returns the fields that a rule has returned.
    pub fn feedback_of(&self, uid: &RuleUid) -> &[FeedbackField] {
        let terms = self.by_uid.get(uid).and_then(|rule| rule.terms.as_ref());
        terms.map_or(&[], |(terms, _)| &terms.feedback)
    }

    /// Returns the fields that any rule has returned, with the rule's namespace on the hub.
    pub fn feedback(&self) -> impl Iterator<Item = (&str, &FeedbackField)> {
        let rules = self.with_feedback.iter().filter_map(|uid| self.get(uid));
        let terms = rules.filter_map(|rule| rule.terms.as_ref());
        terms.flat_map(|(terms, _)| returned_fields(terms))
    }

    /// Records that nothing of a rule is left.
    pub(super) fn finish(&mut self, finished: FinishedRule) {
        self.finished_rules.push(finished);
    }

    /// Records that a rule is not removed any more.
    pub(super) fn reopen(&mut self, uid: &RuleUid) {
        self.finished_rules.retain(|gone| gone.uid != *uid);
    }

    /// The acked state of a rule.
    pub fn acked(&self, uid: &RuleUid) -> Option<AckedRule> {
        self.by_uid.get(uid).map(|rule| rule.acked(uid))
    }

    /// The name of a rule. An unknown rule has no namespace.
    pub fn name(&self, uid: &RuleUid) -> RuleName {
        self.by_uid
            .get(uid)
            .map(|rule| rule.name(uid))
            .unwrap_or_default()
    }

    /// How copies of a rule are deleted.
    pub fn propagation(&self, uid: &RuleUid) -> Propagation {
        let terms = self.by_uid.get(uid).and_then(|rule| rule.terms.as_ref());
        terms
            .map(|(terms, _)| terms.propagation)
            .unwrap_or_default()
    }

    /// The intents of a rule.
    pub fn intents_of<'a>(&'a self, uid: &'a RuleUid) -> impl Iterator<Item = IntentKey> + 'a {
        self.by_uid
            .get(uid)
            .into_iter()
            .flat_map(|rule| rule.keys(uid))
    }

    /// The (source, revision) pairs of a rule.
    pub fn pairs(&self, uid: &RuleUid) -> Vec<AckedIntent> {
        self.by_uid.get(uid).map(Rule::pairs).unwrap_or_default()
    }

    /// Whether the terms of a rule are known, and with them its name.
    pub fn has_terms(&self, uid: &RuleUid) -> bool {
        self.get(uid).is_some_and(|rule| rule.terms.is_some())
    }

    /// Whether the sources of a rule have kinds of several phases.
    pub fn has_phases(&self, uid: &RuleUid) -> bool {
        self.get(uid).is_some_and(|rule| rule.phases.len() > 1)
    }

    /// The number of intents of all rules except orphaned ones, and the sum of their digests.
    pub fn sum(&self) -> (u64, SetDigest) {
        let known = self
            .by_uid
            .values()
            .filter(|rule| !rule.orphaned && !rule.leaving);
        known.fold((0, SetDigest::default()), |(count, mut digest), rule| {
            digest.merge(rule.digest);
            (count + rule.intents.len() as u64, digest)
        })
    }

    /// Returns the policy facts of an intent's content, if they are known.
    pub fn facts(&self, key: &IntentKey) -> Option<&Facts> {
        self.intent_of(key)?.facts.as_ref()
    }

    pub(super) fn intent_of(&self, key: &IntentKey) -> Option<&IntentState> {
        self.by_uid.get(&key.rule)?.intents.get(&key.source)
    }

    pub(super) fn set_intent(&mut self, key: &IntentKey, intent: Option<IntentState>) {
        if let Some(rule) = self.by_uid.get_mut(&key.rule) {
            rule.set_intent(&key.source, intent);
        }
    }

    /// Whether the terms of a rule are only remembered.
    pub fn is_unconfirmed(&self, uid: &RuleUid) -> bool {
        self.by_uid.get(uid).is_some_and(|rule| rule.unconfirmed)
    }

    /// Whether a rule keeps versions.
    pub fn has_versions(&self, uid: &RuleUid) -> bool {
        self.by_uid
            .get(uid)
            .is_some_and(|rule| rule.versions().is_some())
    }

    /// How many bytes the values of an intent's copies have, if that is known.
    pub fn bytes(&self, key: &IntentKey) -> Option<u64> {
        Some(self.facts(key)?.bytes)
    }

    /// The rules of the same namespace of the hub, a rule itself included, and that namespace.
    pub fn rules_of_namespace(&self, uid: &RuleUid) -> (String, BTreeSet<RuleUid>) {
        let namespace = |rule: &Rule| {
            rule.terms
                .as_ref()
                .map(|(terms, _)| terms.rule.namespace.clone())
        };
        let Some(own) = self.by_uid.get(uid).and_then(namespace) else {
            return Default::default();
        };
        let beside = self
            .by_uid
            .iter()
            .filter(|(_, rule)| namespace(rule).as_ref() == Some(&own));
        let beside = beside.map(|(uid, _)| uid.clone()).collect();
        (own, beside)
    }

    /// The rules without any remaining state since the last call, except those that may have copies in one of these areas. A
    /// rule of which copies were found since has state again.
    pub fn take_finished(&mut self, unlisted: &BTreeSet<Area>) -> Vec<FinishedRule> {
        let hidden =
            |gone: &FinishedRule| unlisted.iter().any(|area| gone.may_have_copies_in(area));
        let by_uid = &self.by_uid;
        let (kept, reported) = std::mem::take(&mut self.finished_rules)
            .into_iter()
            .partition(|gone| hidden(gone) || by_uid.contains_key(&gone.uid));
        self.finished_rules = kept;
        reported
    }

    /// The terms to store, while these removals are under way.
    pub fn stored(&mut self, removals: &BTreeSet<IntentKey>, policy: &Policy) -> Vec<StoredRule> {
        let mut room = STORED_LIMIT;
        for (uid, rule) in self.by_uid.iter_mut() {
            rule.renew_tombstones(uid, removals, &mut room);
        }
        let rules = self.by_uid.iter();
        rules
            .filter(|(_, rule)| !rule.leaving || !rule.closed.is_empty())
            .filter_map(|(uid, rule)| {
                let (terms, digest) = rule.terms.as_ref()?;
                let (terms, orphaned) = (Terms::clone(terms), rule.orphaned);
                let mut tombstones = rule.removals.stored().clone();
                tombstones.any |= rule.leaving;
                let may_have =
                    |kind: &Arc<str>| policy.allows_kind(kind) || rule.closed.contains(kind);
                let kinds = rule.kinds.as_ref();
                let kinds = kinds.map(|kinds| {
                    kinds
                        .iter()
                        .filter(|kind| may_have(kind))
                        .cloned()
                        .collect()
                });
                Some(StoredRule {
                    uid: uid.clone(),
                    terms,
                    digest: *digest,
                    orphaned,
                    tombstones,
                    kinds,
                    finished: vec![],
                })
            })
            .collect()
    }

    /// Whether the copies of a rule may depend on a watch of these objects: they have the kind, or namespaces.
    pub fn may_have_kind(&self, uid: &RuleUid, resource: &str) -> bool {
        let kinds = self.by_uid.get(uid).and_then(|rule| rule.kinds.as_ref());
        resource == NAMESPACES || kinds.is_none_or(|kinds| kinds.contains(resource))
    }

    /// Whether a rule may have a copy of a kind that the policy allows no more.
    pub fn is_closed(&self, uid: &RuleUid, copy: &SourceRef) -> bool {
        let rule = self.by_uid.get(uid);
        rule.is_some_and(|rule| rule.closed.contains(&copy.resource))
    }

    /// Records of which rules a policy closes kinds with copies, and which kinds it opens. `unlisted`: the areas whose copies
    /// are unknown.
    pub(super) fn close_kinds(
        &mut self,
        policy: &Policy,
        records: &Records,
        unlisted: &BTreeSet<Area>,
    ) {
        let mut with_copies: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        for (key, copies) in records.intents() {
            let kinds = copies.iter().map(|copy| copy.resource.clone());
            with_copies.entry(&key.rule).or_default().extend(kinds);
        }
        let unlisted: BTreeSet<_> = unlisted.iter().map(|area| &area.resource).collect();
        for (uid, rule) in &mut self.by_uid {
            let known = with_copies.remove(uid).unwrap_or_default();
            let unknown = rule.kinds.iter().flatten();
            let unknown = unknown.filter(|kind| unlisted.contains(kind));
            let kinds = unknown.chain(&known).chain(&rule.closed);
            let kinds = kinds.filter(|kind| !policy.allows_kind(kind));
            rule.closed = kinds.cloned().collect();
        }
    }

    /// Marks the digests of an intent's copies as outdated.
    pub fn recompute_digest(&mut self, key: &IntentKey) {
        if let Some(rule) = self.get_mut(&key.rule) {
            rule.recompute_digest(&key.source);
        }
    }

    /// Records an intent of which only copies were found.
    pub(super) fn restore_found(&mut self, key: &IntentKey) {
        self.set_intent(
            key,
            Some(IntentState {
                restored: true,
                found: true,
                ..IntentState::default()
            }),
        );
    }

    pub(super) fn drop_if_finished(&mut self, uid: &RuleUid) {
        let Some(rule) = self.by_uid.get(uid) else {
            return;
        };
        if rule.is_finished() {
            let targets = rule
                .terms
                .as_ref()
                .and_then(|(terms, _)| terms.namespaces.as_ref());
            let targets = targets.map(|_| rule.targets.clone());
            self.finished_rules.push(FinishedRule {
                uid: uid.clone(),
                rule: rule.name(uid),
                targets,
                kinds: rule.kinds.clone(),
            });
            self.forget(uid);
        }
    }
}

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
    /// What the agent does with its copies beyond their fields.
    pub mode: Option<CopyMode>,
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
    /// The number of intents in each phase of kinds.
    pub phases: BTreeMap<Phase, usize>,
    /// The kinds that its intents have ever had, if all of them are known.
    pub kinds: Option<BTreeSet<Arc<str>>>,
    /// Kinds that the policy allows no more, of which it may still have copies.
    pub closed: BTreeSet<Arc<str>>,
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
                if let Some(kinds) = &mut self.kinds {
                    kinds.insert(source.resource.clone());
                }
                let before = self.intents.insert(source.clone(), intent);
                if before.is_none() {
                    *self.phases.entry(Phase::of(&source.resource)).or_default() += 1;
                }
                before
            }
            None => self.intents.remove(source).inspect(|_| {
                let phase = Phase::of(&source.resource);
                let left = self.phases.remove(&phase).unwrap_or_default();
                if left > 1 {
                    self.phases.insert(phase, left - 1);
                }
            }),
        };
        if let Some(revision) = before.as_ref().and_then(IntentState::revision) {
            self.digest.remove(source, revision);
        }
        if let Some(shown) = before.and_then(|before| before.shown) {
            self.shown.0.subtract(shown);
        }
    }

    /// Whether it has neither intents nor orders.
    pub fn is_empty(&self) -> bool {
        self.intents.is_empty() && self.orders.is_empty()
    }

    /// Whether the hub ordered the removal of the rule or does not know it, and nothing of it is left.
    pub fn is_finished(&self) -> bool {
        (self.leaving || self.orphaned) && self.is_empty() && self.closed.is_empty()
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

/// The part of one copy in the digest of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyDigest {
    /// The agent has not written it: it waits for its namespace, or is adopted.
    Nothing,
    /// The copy is applied, with this digest; `None` if it is unknown.
    Content(Option<ContentDigest>),
}
