//! The intents of a simulated agent, applied as `sync.proto` defines it.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;
use runnel_proto::model::{
    AckedIntent, Batch, Content, ContentDigest, Counts, LiveDigest, Payload, ProofKey, Revision,
    RuleDelta, RuleName, RuleState, RuleUid, SetDigest, SourceRef, Terms, TermsDigest,
};

/// How many digests of contents are remembered.
const DIGESTS: usize = 20_000;

/// Digests of contents by their revisions, shared by all agents of the process: see [`AckedRule`].
static KNOWN: Mutex<BTreeMap<Revision, ContentDigest>> = Mutex::new(BTreeMap::new());

/// All intents of an agent; clones share the payloads.
#[derive(Clone, Default)]
pub struct Holdings {
    rules: BTreeMap<RuleUid, AckedRule>,
    /// The hub's proof key.
    proof_key: Option<ProofKey>,
}

/// The intents of one rule.
#[derive(Clone, Default)]
pub struct AckedRule {
    /// The terms and their digest.
    pub terms: Option<(Terms, TermsDigest)>,
    /// The intents.
    pub intents: BTreeMap<SourceRef, (Revision, Payload)>,
    /// The digests of the copies.
    contents: BTreeMap<SourceRef, ContentDigest>,
    /// Whether the hub reported that it does not have the rule.
    pub orphaned: bool,
    /// The digest of the intents, updated incrementally, to keep the agents' cost low on a shared
    /// machine.
    digest: SetDigest,
    /// The digest of the copies, each exactly as it was sent.
    shown: LiveDigest,
}

impl Holdings {
    /// Returns the intents by rule.
    #[must_use]
    pub fn rules(&self) -> &BTreeMap<RuleUid, AckedRule> {
        &self.rules
    }

    /// Returns the intents of one rule.
    #[must_use]
    pub fn rule(&self, uid: &RuleUid) -> Option<&AckedRule> {
        self.rules.get(uid)
    }

    /// Returns the content of a source, of any rule.
    #[must_use]
    pub fn content(&self, source: &SourceRef) -> Option<Content> {
        let (_, payload) = self
            .rules
            .values()
            .find_map(|rule| rule.intents.get(source))?;
        payload.decode().ok()
    }

    /// Returns all sources, of any rule.
    pub fn sources(&self) -> impl Iterator<Item = &SourceRef> {
        self.rules.values().flat_map(|rule| rule.intents.keys())
    }

    /// Sets the key for proofs.
    pub fn prove_with(&mut self, key: Option<ProofKey>) {
        self.proof_key = key;
    }

    /// Applies a batch. Returns the state of every rule in it, for a report.
    pub fn apply_batch(&mut self, batch: &Batch) -> Vec<RuleState> {
        batch
            .rules
            .iter()
            .map(|delta| self.take_delta(delta, batch.nonce))
            .collect()
    }

    fn take_delta(&mut self, delta: &RuleDelta, last_batch: u64) -> RuleState {
        let key = self.proof_key.as_ref();
        let rule = self.rules.entry(delta.uid.clone()).or_default();
        if let Some(terms) = &delta.terms {
            rule.terms = Some(terms.clone());
            rule.orphaned = false;
        }
        if let (Some(suspend), Some((terms, _))) = (delta.suspend, &mut rule.terms) {
            terms.suspend = suspend;
        }
        for intent in &delta.upserts {
            rule.record_holding(&intent.source, intent.revision, &intent.payload);
        }
        for tombstone in &delta.tombstones {
            rule.approved(&tombstone.source);
        }
        rule.orphaned |= delta.orphaned;
        if delta.removal.is_some() {
            let gone = RuleState {
                gone: true,
                last_batch,
                ..rule.state(&delta.uid, key)
            };
            self.rules.remove(&delta.uid);
            return RuleState {
                intents: 0,
                intents_digest: SetDigest::default(),
                counts: Counts::default(),
                ..gone
            };
        }
        rule.state(&delta.uid, key)
    }

    /// The state of every rule, as a new stream begins with it.
    #[must_use]
    pub fn states(&self) -> Vec<RuleState> {
        self.rules
            .iter()
            .map(|(uid, rule)| rule.state(uid, self.proof_key.as_ref()))
            .collect()
    }

    /// The pairs of one rule.
    #[must_use]
    pub fn detail(&self, uid: &RuleUid) -> Vec<AckedIntent> {
        let intents = self
            .rules
            .get(uid)
            .into_iter()
            .flat_map(|rule| &rule.intents);
        intents
            .map(|(source, (revision, _))| AckedIntent {
                source: source.clone(),
                revision: *revision,
            })
            .collect()
    }

    /// Number and digest of the intents of all rules that the hub has, as in the end of a snapshot.
    #[must_use]
    pub fn account(&self) -> (u64, SetDigest) {
        let mut whole = (0, SetDigest::default());
        for rule in self.rules.values().filter(|rule| !rule.orphaned) {
            whole.0 += rule.intents.len() as u64;
            whole.1.merge(rule.digest);
        }
        whole
    }
}

impl AckedRule {
    /// The agent's report of it: every copy is applied, and every named namespace exists. It has a
    /// proof with this key, unless the rule ignores fields.
    #[must_use]
    pub fn state(&self, uid: &RuleUid, key: Option<&ProofKey>) -> RuleState {
        let terms = self.terms.as_ref();
        let suspended = terms.is_some_and(|(terms, _)| terms.suspend);
        let ignores = terms.is_some_and(|(terms, _)| !terms.ignore_fields.is_empty());
        let can_prove = !ignores && !suspended && self.contents.len() == self.intents.len();
        let places = terms
            .and_then(|(terms, _)| terms.namespaces.as_ref())
            .map_or(1, |n| n.wanted_literals().count());
        let copies = if suspended {
            0
        } else {
            u32::try_from(places * self.intents.len()).unwrap_or(u32::MAX)
        };
        RuleState {
            rule: terms.map_or_else(RuleName::default, |(terms, _)| terms.rule.clone()),
            intents_digest: self.digest,
            intents: u32::try_from(self.intents.len()).unwrap_or(u32::MAX),
            terms_digest: terms.map(|(_, digest)| *digest).filter(|_| !self.orphaned),
            counts: Counts {
                copies,
                applied: copies,
                ..Counts::default()
            },
            suspended,
            proof: key
                .filter(|_| can_prove)
                .map(|key| key.proof(uid, self.shown)),
            ..RuleState::new(uid.clone())
        }
    }

    fn record_holding(&mut self, source: &SourceRef, revision: Revision, payload: &Payload) {
        self.approved(source);
        self.digest.insert(source, &revision);
        if let Some(content) = digest_of(&revision, payload) {
            self.shown.insert(source, content);
            self.contents.insert(source.clone(), content);
        }
        self.intents
            .insert(source.clone(), (revision, payload.clone()));
    }

    fn approved(&mut self, source: &SourceRef) {
        if let Some((revision, _)) = self.intents.remove(source) {
            self.digest.remove(source, &revision);
        }
        if let Some(content) = self.contents.remove(source) {
            self.shown.remove(source, content);
        }
    }
}

/// Returns the digest of a copy with this content; `None` if it cannot be decoded. Cached by
/// revision.
pub(crate) fn digest_of(revision: &Revision, payload: &Payload) -> Option<ContentDigest> {
    if let Some(known) = KNOWN.lock().get(revision) {
        return Some(*known);
    }
    let digest = ContentDigest::of_copy(&payload.decode().ok()?, revision, &BTreeSet::new());
    let mut known = KNOWN.lock();
    if known.len() >= DIGESTS {
        known.clear();
    }
    known.insert(*revision, digest);
    Some(digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_is_that_of_the_acked_intents() {
        let source = |name: &str| SourceRef::new("configmaps", "speed", name);
        let (mut rule, nothing) = (AckedRule::default(), Payload::encode(Vec::new()));
        for (name, revision) in [("one", 1), ("two", 2), ("one", 3), ("three", 4)] {
            rule.record_holding(&source(name), Revision([revision; 16]), &nothing);
        }
        rule.approved(&source("two"));
        rule.approved(&source("never"));
        let whole: SetDigest = rule
            .intents
            .iter()
            .map(|(source, (revision, _))| (source, revision))
            .collect();
        assert_eq!(rule.intents.len(), 2);
        assert_eq!(
            rule.state(&"u".to_owned().into(), None).intents_digest,
            whole
        );
    }
}
