//! The desired copies of one rule in one cluster: shared content, and the terms of the cluster.
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use runnel_proto::model::{
    ClusterName, Proof, ProofKey, PruneDigest, RuleUid, SetDigest, SourceRef, Terms,
};

use super::{Authorized, GrantedTerms, RulePlan, SourceContent, is_bundle};
use crate::guard::GuardDecision;

/// Returns the digest of a plan with these terms.
pub fn digest_on(plan: &RulePlan, terms: &GrantedTerms) -> SetDigest {
    let mut sum = SetDigest::default();
    for (_, digest) in plan
        .digests
        .iter()
        .filter(|(resource, _)| terms.grants_kind(resource))
    {
        sum.merge(*digest);
    }
    sum
}

/// The proof of an agent that has applied the whole plan under these terms; `None` if the hub
/// cannot compute it.
pub fn proof_on(plan: &RulePlan, terms: &GrantedTerms, key: &ProofKey) -> Option<Proof> {
    plan.shown.proof(&plan.uid, terms, key)
}

/// The desired copies of one rule in one cluster. Code that needs them uses this type, and not the
/// plan of the rule, which holds what the rule selects.
#[derive(Clone)]
pub struct ClusterAssignment {
    /// The cluster.
    pub cluster: ClusterName,
    /// The plan for this cluster, and the terms in it.
    pub authorized: Authorized,
    /// The removal decision.
    pub judged: Arc<GuardDecision>,
    /// The plan of the failed change, during a rollback.
    pub rolled_back: Option<Arc<RulePlan>>,
    /// What other rules are to send to the cluster before the rule removes it.
    pub claims: Arc<[PendingClaim]>,
}

/// What a rule is to have in a cluster, and does not send there now.
#[derive(Clone)]
pub struct PendingClaim {
    /// The rule.
    pub uid: RuleUid,
    wanted: Authorized,
    /// What it sends.
    sent: Option<Authorized>,
    /// What the agent has of it.
    acked: Option<Authorized>,
    /// Whether it may have target namespaces in common with the former rule.
    shares_namespaces: bool,
}

impl PendingClaim {
    /// A rule that is to have the first plan and sends the second one.
    pub fn new(uid: RuleUid, wanted: Authorized, sent: Option<Authorized>) -> Self {
        Self {
            uid,
            wanted,
            sent,
            acked: None,
            shares_namespaces: true,
        }
    }

    /// Whether it may have target namespaces in common with the former rule.
    #[must_use]
    pub fn in_namespaces(mut self, shares: bool) -> Self {
        self.shares_namespaces = shares;
        self
    }

    /// The agent has this of the rule.
    #[must_use]
    pub fn holding(mut self, acked: &ClusterAssignment) -> Self {
        self.acked = Some(acked.authorized.clone());
        self
    }

    /// Whether the rule is to have the copies of an intent, does not send it, and the agent does not have it of the rule.
    pub fn awaits(&self, intent: &SourceRef) -> bool {
        let wanted = &self.wanted;
        // Unknown grants may have the kind.
        (self.shares_namespaces || intent.is_cluster_scoped())
            && Terms::grants_kind(wanted.terms(), &intent.resource)
            && wanted.plan().selects(intent)
            && !self
                .sent
                .iter()
                .chain(&self.acked)
                .any(|sent| has(sent, intent))
    }

    /// Whether the rule sends the copies of an intent.
    fn sends(&self, intent: &SourceRef) -> bool {
        let sent = self.sent.as_ref();
        (self.shares_namespaces || intent.is_cluster_scoped())
            && sent.is_some_and(|sent| has(sent, intent))
    }

    fn is(&self, other: &Self) -> bool {
        let same = |one: &Authorized, other: &Authorized| {
            Arc::ptr_eq(one.plan(), other.plan()) && one.terms() == other.terms()
        };
        let both = |one: &Option<Authorized>, other: &Option<Authorized>| match (one, other) {
            (Some(one), Some(other)) => same(one, other),
            (one, other) => one.is_none() && other.is_none(),
        };
        self.uid == other.uid
            && same(&self.wanted, &other.wanted)
            && both(&self.sent, &other.sent)
            && both(&self.acked, &other.acked)
    }
}

fn has(sent: &Authorized, intent: &SourceRef) -> bool {
    sent.plan().intents.contains_key(intent) && sent.terms().grants_kind(&intent.resource)
}

impl ClusterAssignment {
    /// The plan for this cluster.
    pub fn plan(&self) -> &Arc<RulePlan> {
        self.authorized.plan()
    }

    /// The terms in this cluster.
    pub fn terms(&self) -> &GrantedTerms {
        self.authorized.terms()
    }

    /// Whether the kind is sent to the cluster. A kind that is not granted is not sent.
    fn sends(&self, source: &SourceRef) -> bool {
        self.terms().grants_kind(&source.resource)
    }

    /// The intents.
    pub fn intents(&self) -> impl Iterator<Item = (&SourceRef, &Arc<SourceContent>)> {
        self.plan()
            .intents
            .iter()
            .filter(|(source, _)| self.sends(source))
    }

    /// The content of an intent, if there is one from this source.
    pub fn content(&self, source: &SourceRef) -> Option<&Arc<SourceContent>> {
        self.plan()
            .intents
            .get(source)
            .filter(|_| self.sends(source))
    }

    /// The name of an intent as the hub has it already, if there is one from this source.
    pub fn known_name(&self, source: &SourceRef) -> Option<&SourceRef> {
        self.plan().intents.key(source)
    }

    /// Whether all of the plan is sent to the cluster.
    pub fn sends_all(&self) -> bool {
        self.plan()
            .digests
            .keys()
            .all(|kind| self.terms().grants_kind(kind))
    }

    /// Digest of the intents.
    pub fn digest(&self) -> SetDigest {
        digest_on(self.plan(), self.terms())
    }

    /// Whether content is still being read for the first time, so that there will be more intents.
    pub fn is_growing(&self) -> bool {
        let mut unread = self.plan().unread.iter();
        unread.any(|source| is_bundle(source) || self.sends(source))
    }

    /// Whether a source must not be removed: its state is unknown, or the guard blocks its removal.
    /// With versioned names, another name is an edit, not a removal. Copies that a rolled back
    /// change created are not blocked. A dry run removes nothing.
    pub fn must_stay(&self, source: &SourceRef) -> bool {
        let is_edit =
            || self.terms().versions.is_some() && self.has_source(source) && source.is_version();
        self.terms().is_dry_run()
            || self.is_unknown(source)
            || self.awaits_handover(source)
            || !(is_edit() || self.is_rolled_back(source) || self.passes(source))
    }

    fn passes(&self, intent: &SourceRef) -> bool {
        let is_taken = || self.claims.iter().any(|claim| claim.sends(intent));
        let is_selected = self.intent_of_source(intent).is_some();
        self.judged
            .passes_intent(&self.cluster, intent, is_selected, is_taken)
    }

    /// Whether another rule is to send the copies of an intent first.
    fn awaits_handover(&self, intent: &SourceRef) -> bool {
        self.claims.iter().any(|claim| claim.awaits(intent))
    }

    /// Whether the change from which the cluster is rolled back has created a source: the former state does not have it.
    fn is_rolled_back(&self, source: &SourceRef) -> bool {
        let changed = self.rolled_back.as_ref();
        changed.is_some_and(|changed| changed.intents.contains_key(source))
            && !self.plan().intents.contains_key(source)
    }

    /// Returns the approved removals of copies in namespaces that are no longer targets. They wait for other rules that
    /// select the same sources.
    pub fn prune(&self) -> Option<PruneDigest> {
        let claimed = || {
            self.intents()
                .any(|(intent, _)| self.awaits_handover(intent))
        };
        self.judged.prune(&self.cluster).filter(|_| !claimed())
    }

    /// Whether the state of a source is unknown: it must not be removed or changed. A source
    /// without a grant is undesired in any case.
    pub fn is_unknown(&self, source: &SourceRef) -> bool {
        Terms::grants_kind(self.terms(), &source.resource) && self.plan().is_unknown(source)
    }

    /// Whether an unwanted source stays only because its removal is not judged yet.
    pub fn is_unjudged(&self, source: &SourceRef) -> bool {
        !self.is_unknown(source)
            && !self.terms().is_dry_run()
            && self.must_stay(source)
            && !self.awaits_handover(source)
            && !self.judged.blocks_intent(&self.cluster, source)
    }

    /// The intents in which this can differ from what `former` was, if there are but few.
    pub fn change_since(&self, former: &ClusterAssignment) -> Option<Cow<'_, BTreeSet<SourceRef>>> {
        if former.terms().grants != self.terms().grants {
            None
        } else if former.plan().digest == self.plan().digest {
            Some(Cow::default())
        } else {
            self.plan().edits.since(former.plan().digest)
        }
    }

    /// Whether the source of an intent is sent, under any name.
    pub fn has_source(&self, intent: &SourceRef) -> bool {
        self.intent_of_source(intent)
            .is_some_and(|other| self.sends(other))
    }

    /// The first intent of the same source, sent or not.
    fn intent_of_source(&self, intent: &SourceRef) -> Option<&SourceRef> {
        let plain = intent.plain();
        let mut named = self.plan().intents.from(&plain).map(|(other, _)| other);
        named.next().filter(|other| other.plain() == plain)
    }

    /// Whether two are one and the same, so that nothing need be compared.
    pub fn is(&self, other: &ClusterAssignment) -> bool {
        Arc::ptr_eq(self.plan(), other.plan())
            && Arc::ptr_eq(&self.judged, &other.judged)
            && self.rolled_back.as_ref().map(Arc::as_ptr)
                == other.rolled_back.as_ref().map(Arc::as_ptr)
            && self.terms().grants == other.terms().grants
            && self.terms().enforcement == other.terms().enforcement
            && self.claims.len() == other.claims.len()
            && self
                .claims
                .iter()
                .zip(&*other.claims)
                .all(|(claim, other)| claim.is(other))
    }
}
