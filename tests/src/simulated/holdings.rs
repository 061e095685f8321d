//! What a simulated agent holds: the desired set, taken in as `sync.proto` says.

use std::collections::BTreeMap;

use runnel_proto::model::{
    Batch, Content, Counts, HeldIntent, Payload, Revision, RuleDelta, RuleName, RuleState, RuleUid, SetDigest,
    SourceRef, Terms, TermsDigest,
};

/// Everything that an agent holds; cloning shares the payloads.
#[derive(Clone, Default)]
pub struct Holdings {
    rules: BTreeMap<RuleUid, HeldRule>,
}

/// What an agent holds of one rule.
#[derive(Clone, Default)]
pub struct HeldRule {
    /// The terms and their digest.
    pub terms: Option<(Terms, TermsDigest)>,
    /// The intents.
    pub intents: BTreeMap<SourceRef, (Revision, Payload)>,
    /// Whether the hub said that it does not know the rule.
    pub unclaimed: bool,
    /// The digest of the intents, kept as they change: to hash them all for each batch would be the agents' work, and many
    /// of them share a machine with the hub that is measured.
    digest: SetDigest,
}

impl Holdings {
    /// What is held of each rule.
    #[must_use]
    pub fn rules(&self) -> &BTreeMap<RuleUid, HeldRule> {
        &self.rules
    }

    /// What is held of one rule.
    #[must_use]
    pub fn rule(&self, uid: &RuleUid) -> Option<&HeldRule> {
        self.rules.get(uid)
    }

    /// The content held of a source, by whichever rule.
    #[must_use]
    pub fn content(&self, source: &SourceRef) -> Option<Content> {
        let (_, payload) = self.rules.values().find_map(|rule| rule.intents.get(source))?;
        payload.decode().ok()
    }

    /// All sources held, by whichever rule.
    pub fn sources(&self) -> impl Iterator<Item = &SourceRef> {
        self.rules.values().flat_map(|rule| rule.intents.keys())
    }

    /// Takes a batch in. Returns the state of every rule that it names, for a report.
    pub fn take_in(&mut self, batch: &Batch) -> Vec<RuleState> {
        batch.rules.iter().map(|delta| self.take_delta(delta)).collect()
    }

    fn take_delta(&mut self, delta: &RuleDelta) -> RuleState {
        let rule = self.rules.entry(delta.uid.clone()).or_default();
        if let Some(terms) = &delta.terms {
            rule.terms = Some(terms.clone());
            rule.unclaimed = false;
        }
        for intent in &delta.upserts {
            rule.hold(&intent.source, intent.revision, &intent.payload);
        }
        for tombstone in &delta.tombstones {
            rule.let_go(&tombstone.source);
        }
        rule.unclaimed |= delta.unclaimed;
        if delta.removal.is_some() {
            let gone = RuleState { gone: true, ..rule.state(&delta.uid) };
            self.rules.remove(&delta.uid);
            return RuleState { intents: 0, intents_digest: SetDigest::default(), counts: Counts::default(), ..gone };
        }
        rule.state(&delta.uid)
    }

    /// The state of every rule, as a new stream begins with it.
    #[must_use]
    pub fn states(&self) -> Vec<RuleState> {
        self.rules.iter().map(|(uid, rule)| rule.state(uid)).collect()
    }

    /// The pairs of one rule.
    #[must_use]
    pub fn detail(&self, uid: &RuleUid) -> Vec<HeldIntent> {
        let intents = self.rules.get(uid).into_iter().flat_map(|rule| &rule.intents);
        intents.map(|(source, (revision, _))| HeldIntent { source: source.clone(), revision: *revision }).collect()
    }

    /// Number and digest of the intents of all rules that the hub knows: what the end of a snapshot says.
    #[must_use]
    pub fn account(&self) -> (u64, SetDigest) {
        let mut whole = (0, SetDigest::default());
        for rule in self.rules.values().filter(|rule| !rule.unclaimed) {
            whole.0 += rule.intents.len() as u64;
            whole.1.merge(rule.digest);
        }
        whole
    }
}

impl HeldRule {
    /// What the agent says of it: every copy is applied, and every namespace that is named exists.
    #[must_use]
    pub fn state(&self, uid: &RuleUid) -> RuleState {
        let terms = self.terms.as_ref();
        let suspended = terms.is_some_and(|(terms, _)| terms.suspend);
        let places = terms.and_then(|(terms, _)| terms.namespaces.as_ref()).map_or(1, |n| n.wanted_literals().count());
        let copies = if suspended { 0 } else { u32::try_from(places * self.intents.len()).unwrap_or(u32::MAX) };
        RuleState {
            uid: uid.clone(),
            rule: terms.map_or_else(RuleName::default, |(terms, _)| terms.rule.clone()),
            intents_digest: self.digest,
            intents: u32::try_from(self.intents.len()).unwrap_or(u32::MAX),
            terms_digest: terms.map(|(_, digest)| *digest).filter(|_| !self.unclaimed),
            counts: Counts { copies, applied: copies, ..Counts::default() },
            failures: Vec::new(),
            gone: false,
            takeovers: None,
            given_up: None,
            travel: Default::default(),
            left: 0,
        }
    }

    fn hold(&mut self, source: &SourceRef, revision: Revision, payload: &Payload) {
        self.let_go(source);
        self.digest.insert(source, &revision);
        self.intents.insert(source.clone(), (revision, payload.clone()));
    }

    fn let_go(&mut self, source: &SourceRef) {
        if let Some((revision, _)) = self.intents.remove(source) {
            self.digest.remove(source, &revision);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_is_that_of_what_is_held_whatever_came_and_went() {
        let source = |name: &str| SourceRef::new("configmaps", "speed", name);
        let (mut rule, nothing) = (HeldRule::default(), Payload::encode(Vec::new()));
        for (name, revision) in [("one", 1), ("two", 2), ("one", 3), ("three", 4)] {
            rule.hold(&source(name), Revision([revision; 16]), &nothing);
        }
        rule.let_go(&source("two"));
        rule.let_go(&source("never"));
        let whole: SetDigest = rule.intents.iter().map(|(source, (revision, _))| (source, revision)).collect();
        assert_eq!(rule.intents.len(), 2);
        assert_eq!(rule.state(&"u".to_owned().into()).intents_digest, whole);
    }
}
