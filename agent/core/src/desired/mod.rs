//! The desired set of this cluster: terms and intents per rule, the claims of intents on copies,
//! and the orders to remove copies.
//!
//! A revision stands for a payload; the payloads are in [`crate::cache`]. Reverse indexes limit the
//! cost of an edit to the copies of its source, and the cost of a namespace event to the copies of
//! that namespace.
mod orders;
mod places;
mod preview;
mod restore;
mod shown;
mod take;
#[cfg(test)]
mod tests;
mod tombstones;
mod versions;
mod wants;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use runnel_proto::model::{
    AckedIntent, Revision, RuleName, RuleUid, SetDigest, Shown, SourceRef, Terms, TermsDigest,
};

use crate::copy::CopyError;
use crate::copy::IntentKey;
use crate::policy::{Facts, Policy};
use crate::small_set::SmallSet;

use orders::Ordered;
pub use places::Namespace;
pub use restore::StoredRule;
pub use shown::Shows;
pub use take::Taken;
use tombstones::Removals;
pub use tombstones::Tombstones;

/// The revision of an intent of which only copies are known.
const UNKNOWN_REVISION: Revision = Revision([0; 16]);

/// One intent, by revision.
#[derive(Clone, Default)]
struct IntentState {
    /// The revision in force.
    in_force: Option<Revision>,
    /// What the policy judges of it, if that is known.
    facts: Option<Facts>,
    /// A later revision that was refused: the agent reports it as acked, so that the hub does not
    /// send it again and again.
    refused: Option<(Revision, CopyError)>,
    /// A copy proved the intent after a restart, and the hub has not confirmed it since.
    restored: bool,
    /// Copies of it were found, and it is unknown whether the hub wants it. It has no copies but
    /// these, and is reported under a revision that no content has, so that the hub answers with
    /// the content or with a tombstone.
    found: bool,
    /// The digests of its copies, if they are current.
    shown: Option<Shown>,
}

impl IntentState {
    fn of(revision: Revision) -> Self {
        Self {
            in_force: Some(revision),
            ..Self::default()
        }
    }

    /// The acked revision; `None` only in between.
    fn revision(&self) -> Option<&Revision> {
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
struct Rule {
    /// The last terms of the hub. A later message may have changed the suspension.
    terms: Option<(Arc<Terms>, TermsDigest)>,
    orphaned: bool,
    /// The terms are those of the store, and may be older than what was in force: nothing is removed by them.
    unconfirmed: bool,
    /// The hub has ordered the removal of the whole rule.
    leaving: bool,
    intents: BTreeMap<SourceRef, IntentState>,
    digest: SetDigest,
    /// The target namespaces, where the terms choose any: existing ones, and the literal ones in any case.
    targets: BTreeSet<Arc<str>>,
    /// Copies of this rule that were ordered to go.
    orders: BTreeSet<SourceRef>,
    /// The same by source, and the tombstones that are stored.
    removals: Removals,
    /// Names that were taken out of its terms on purpose while it was suspended, so that nothing went by that yet.
    dropped: BTreeSet<Arc<str>>,
    /// What all intents show of which that is known, and whether there are others.
    shown: (Shown, bool),
}

impl Rule {
    fn name(&self, uid: &RuleUid) -> RuleName {
        match &self.terms {
            Some((terms, _)) => terms.rule.clone(),
            None => RuleName {
                name: uid.to_string(),
                ..RuleName::default()
            },
        }
    }

    fn is_dry_run(&self) -> bool {
        self.terms
            .as_ref()
            .is_some_and(|(terms, _)| terms.is_dry_run())
    }

    /// Whether existing copies stay as they are.
    fn is_frozen(&self) -> bool {
        self.terms
            .as_ref()
            .is_some_and(|(terms, _)| terms.is_frozen())
    }

    fn is_suspended(&self) -> bool {
        self.terms.as_ref().is_some_and(|(terms, _)| terms.suspend)
    }
}

/// Where this agent lives.
#[derive(Clone, Debug)]
pub struct Home {
    /// Runnel's own namespace in the member cluster.
    pub namespace: String,
    /// Uid of the member's `kube-system` namespace.
    pub cluster_uid: String,
}

/// The desired set of this cluster.
#[derive(Clone)]
pub struct Desired {
    home: Home,
    policy: Arc<Policy>,
    hub_cluster_uid: Option<String>,
    namespaces: BTreeMap<Arc<str>, Namespace>,
    rules: BTreeMap<RuleUid, Rule>,
    /// Rules that choose namespaces, or are granted them, by glob or label: a namespace's event may change their targets.
    broad: BTreeSet<RuleUid>,
    /// The intents that want a copy.
    claims: BTreeMap<SourceRef, SmallSet<IntentKey>>,
    /// The intents that ordered a copy to be removed, and how.
    orders: BTreeMap<SourceRef, BTreeMap<IntentKey, Ordered>>,
    /// Rules of which nothing is left since this was last asked for.
    gone: Vec<Gone>,
    /// How often what is to be stored has changed.
    generation: u64,
}

/// A rule of which nothing is left, as far as the agent can see.
#[derive(Clone, Debug)]
pub struct Gone {
    /// The rule.
    pub uid: RuleUid,
    /// How it was called.
    pub rule: RuleName,
    /// The namespaces of its copies, if the rule named any.
    pub targets: Option<BTreeSet<Arc<str>>>,
}

/// The acked state of a rule, for the hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AckedRule {
    /// How it is called.
    pub rule: RuleName,
    /// Digest of its (source, revision) pairs.
    pub digest: SetDigest,
    /// How many intents.
    pub intents: u32,
    /// The terms, as the hub named them.
    pub terms: Option<TermsDigest>,
    /// Whether it is suspended.
    pub suspended: bool,
}

impl Desired {
    /// An empty set, under a policy.
    pub fn new(home: Home, policy: Arc<Policy>) -> Self {
        Self {
            home,
            policy,
            hub_cluster_uid: None,
            namespaces: BTreeMap::new(),
            rules: BTreeMap::new(),
            broad: BTreeSet::new(),
            claims: BTreeMap::new(),
            orders: BTreeMap::new(),
            gone: vec![],
            generation: 0,
        }
    }

    /// The rules with any state.
    pub fn rules(&self) -> impl Iterator<Item = &RuleUid> {
        self.rules.keys()
    }

    /// The acked state of a rule.
    pub fn acked(&self, uid: &RuleUid) -> Option<AckedRule> {
        let rule = self.rules.get(uid)?;
        Some(AckedRule {
            rule: rule.name(uid),
            digest: rule.digest,
            intents: u32::try_from(rule.intents.len()).unwrap_or(u32::MAX),
            // A hub that knows the rule again sends its terms again, and so claims it.
            terms: rule
                .terms
                .as_ref()
                .filter(|_| !rule.orphaned)
                .map(|(_, digest)| *digest),
            suspended: rule.is_suspended(),
        })
    }

    /// The intents of a rule.
    pub fn intents_of<'a>(&'a self, uid: &'a RuleUid) -> impl Iterator<Item = IntentKey> + 'a {
        let sources = self
            .rules
            .get(uid)
            .into_iter()
            .flat_map(|rule| rule.intents.keys());
        sources.map(|source| IntentKey {
            rule: uid.clone(),
            source: source.clone(),
        })
    }

    /// The (source, revision) pairs of a rule.
    pub fn pairs(&self, uid: &RuleUid) -> Vec<AckedIntent> {
        let intents = self
            .rules
            .get(uid)
            .into_iter()
            .flat_map(|rule| &rule.intents);
        intents
            .filter_map(|(source, intent)| {
                Some(AckedIntent {
                    source: source.clone(),
                    revision: *intent.revision()?,
                })
            })
            .collect()
    }

    /// The number of intents of all rules except orphaned ones, and the sum of their digests.
    pub fn sum(&self) -> (u64, SetDigest) {
        let known = self
            .rules
            .values()
            .filter(|rule| !rule.orphaned && !rule.leaving);
        known.fold((0, SetDigest::default()), |(count, mut digest), rule| {
            digest.merge(rule.digest);
            (count + rule.intents.len() as u64, digest)
        })
    }

    /// The revision of an intent that is in force.
    pub fn in_force(&self, key: &IntentKey) -> Option<&Revision> {
        self.intent_of(key)?.in_force.as_ref()
    }

    /// Whether an intent is acked.
    pub fn has(&self, key: &IntentKey) -> bool {
        self.intent_of(key).is_some()
    }

    fn intent_of(&self, key: &IntentKey) -> Option<&IntentState> {
        self.rules.get(&key.rule)?.intents.get(&key.source)
    }

    /// The copies that an intent claims.
    pub fn copies(&self, key: &IntentKey) -> Vec<SourceRef> {
        self.rules
            .get(&key.rule)
            .map(|rule| self.expand(rule, &key.source))
            .unwrap_or_default()
    }

    /// Every copy that an intent wants or has ordered to be removed.
    pub fn all_copies(&self) -> impl Iterator<Item = &SourceRef> {
        self.claims.keys().chain(self.orders.keys())
    }

    /// The rules without any remaining state since the last call, except those that may have copies
    /// in a namespace of `unseen`; a rule without named namespaces may have copies in any.
    pub fn take_gone(&mut self, unseen: &BTreeSet<Option<Arc<str>>>) -> Vec<Gone> {
        let hidden = |gone: &Gone| match &gone.targets {
            _ if unseen.contains(&None) => true,
            Some(targets) => targets
                .iter()
                .any(|target| unseen.contains(&Some(target.clone()))),
            None => !unseen.is_empty(),
        };
        let (kept, reported) = std::mem::take(&mut self.gone).into_iter().partition(hidden);
        self.gone = kept;
        reported
    }

    /// Puts another policy in force. What it no longer has watched needs no order any more.
    pub fn set_policy(&mut self, policy: Arc<Policy>) {
        self.policy = policy;
        let unseen: Vec<_> = self
            .orders
            .keys()
            .filter(|copy| self.policy.area(copy).is_none())
            .cloned()
            .collect();
        for copy in unseen {
            self.drop_orders(&copy);
        }
    }

    /// Forgets every order for a copy.
    fn drop_orders(&mut self, copy: &SourceRef) {
        for key in self
            .orders
            .get(copy)
            .into_iter()
            .flat_map(BTreeMap::keys)
            .cloned()
            .collect::<Vec<_>>()
        {
            self.resolve(&key, copy);
        }
    }

    /// Sets the state of an intent and updates the digest.
    fn set_intent(&mut self, key: &IntentKey, intent: Option<IntentState>) {
        let Some(rule) = self.rules.get_mut(&key.rule) else {
            return;
        };
        let before = match intent {
            Some(intent) => {
                if let Some(revision) = intent.revision() {
                    rule.digest.insert(&key.source, revision);
                }
                rule.shown.1 = true;
                rule.intents.insert(key.source.clone(), intent)
            }
            None => rule.intents.remove(&key.source),
        };
        if let Some(revision) = before.as_ref().and_then(IntentState::revision) {
            rule.digest.remove(&key.source, revision);
        }
        if let Some(shown) = before.and_then(|before| before.shown) {
            rule.shown.0.take_away(shown);
        }
    }

    fn claim(&mut self, key: &IntentKey, copy: &SourceRef) {
        self.show_again(key);
        self.claims
            .entry(copy.clone())
            .or_default()
            .insert(key.clone());
        self.resolve(key, copy);
        self.take_versions_back(key, copy);
    }

    fn unclaim(&mut self, key: &IntentKey, copy: &SourceRef) {
        self.show_again(key);
        if let Some(claims) = self.claims.get_mut(copy) {
            claims.remove(key);
            if claims.is_empty() {
                self.claims.remove(copy);
            }
        }
    }

    /// Claims that differ from what the rules want, for tests: who wants a copy is computed from rules, intents and
    /// namespaces, and kept up to date with each of them.
    #[cfg(test)]
    pub fn wrong_claims(&self) -> Vec<(IntentKey, SourceRef)> {
        let kept = self
            .claims
            .iter()
            .flat_map(|(copy, keys)| keys.iter().map(|key| (key.clone(), copy.clone())));
        let kept: BTreeSet<_> = kept.collect();
        let keys = self.rules.keys().flat_map(|uid| self.intents_of(uid));
        let wanted = keys.flat_map(|key| {
            self.copies(&key)
                .into_iter()
                .map(move |copy| (key.clone(), copy))
        });
        kept.symmetric_difference(&wanted.collect())
            .cloned()
            .collect()
    }

    /// Whether the terms of a rule are only remembered.
    pub fn is_unconfirmed(&self, uid: &RuleUid) -> bool {
        self.rules.get(uid).is_some_and(|rule| rule.unconfirmed)
    }

    fn drop_if_gone(&mut self, uid: &RuleUid) {
        let Some(rule) = self.rules.get(uid) else {
            return;
        };
        if rule.leaving && rule.intents.is_empty() && rule.orders.is_empty() {
            let targets = rule
                .terms
                .as_ref()
                .and_then(|(terms, _)| terms.namespaces.as_ref());
            let targets = targets.map(|_| rule.targets.clone());
            self.gone.push(Gone {
                uid: uid.clone(),
                rule: rule.name(uid),
                targets,
            });
            self.rules.remove(uid);
            self.broad.remove(uid);
        }
    }
}
