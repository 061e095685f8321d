//! The desired copies of one rule in one cluster: shared content, and the terms of the cluster.
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Deref;
use std::sync::Arc;

use ring::digest;
use runnel_proto::model::{
    ClusterName, Proof, ProofKey, PruneDigest, SetDigest, SourceRef, Terms, TermsDigest,
};

use super::{RulePlan, SourceContent, is_bundle};
use crate::guard::GuardDecision;

/// Terms and their digest. Clusters with equal terms share them.
#[derive(Clone, Debug)]
pub struct NamedTerms {
    terms: Arc<Terms>,
    /// The digest of the terms.
    pub digest: TermsDigest,
}

impl NamedTerms {
    /// These terms, with the digest that names them.
    pub fn new(terms: Terms) -> Self {
        Self {
            digest: digest_of(&terms),
            terms: Arc::new(terms),
        }
    }

    /// The terms, to be shared.
    pub fn to_shared(&self) -> Arc<Terms> {
        self.terms.clone()
    }
}

impl PartialEq for NamedTerms {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

impl Eq for NamedTerms {}

impl Deref for NamedTerms {
    type Target = Terms;

    fn deref(&self) -> &Terms {
        &self.terms
    }
}

/// Digest of terms: the first 16 bytes of SHA-256 over their canonical JSON. Only ever compared with itself.
fn digest_of(terms: &Terms) -> TermsDigest {
    let canonical = serde_json::to_vec(terms).expect("terms have only texts as keys of maps");
    let mut short = [0; 16];
    short.copy_from_slice(&digest::digest(&digest::SHA256, &canonical).as_ref()[..16]);
    TermsDigest(short)
}

/// Returns the digest of a plan with these terms.
pub fn digest_on(plan: &RulePlan, terms: &Terms) -> SetDigest {
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
pub fn proof_on(plan: &RulePlan, terms: &Terms, key: &ProofKey) -> Option<Proof> {
    plan.shown.proof(&plan.uid, terms, key)
}

/// The desired copies of one rule in one cluster. Code that needs them uses this type, and not the
/// plan of the rule, which holds what the rule selects.
#[derive(Clone)]
pub struct ClusterAssignment {
    /// The cluster.
    pub cluster: ClusterName,
    /// The plan for this cluster.
    pub plan: Arc<RulePlan>,
    /// The terms in this cluster.
    pub terms: NamedTerms,
    /// The removal decision.
    pub judged: Arc<GuardDecision>,
    /// The plan of the failed change, during a rollback.
    pub rolled_back: Option<Arc<RulePlan>>,
}

impl ClusterAssignment {
    /// Whether the kind is sent to the cluster. A kind that is not granted is not sent.
    fn sends(&self, source: &SourceRef) -> bool {
        self.terms.grants_kind(&source.resource)
    }

    /// The intents.
    pub fn intents(&self) -> impl Iterator<Item = (&SourceRef, &Arc<SourceContent>)> {
        self.plan
            .intents
            .iter()
            .filter(|(source, _)| self.sends(source))
    }

    /// The content of an intent, if there is one from this source.
    pub fn content(&self, source: &SourceRef) -> Option<&Arc<SourceContent>> {
        self.plan.intents.get(source).filter(|_| self.sends(source))
    }

    /// The name of an intent as the hub has it already, if there is one from this source.
    pub fn known_name(&self, source: &SourceRef) -> Option<&SourceRef> {
        self.plan.intents.key(source)
    }

    /// Whether all of the plan is sent to the cluster.
    pub fn sends_all(&self) -> bool {
        self.plan
            .digests
            .keys()
            .all(|kind| self.terms.grants_kind(kind))
    }

    /// Digest of the intents.
    pub fn digest(&self) -> SetDigest {
        digest_on(&self.plan, &self.terms)
    }

    /// Whether content is still being read for the first time, so that there will be more intents.
    pub fn is_growing(&self) -> bool {
        let mut unread = self.plan.unread.iter();
        unread.any(|source| is_bundle(source) || self.sends(source))
    }

    /// Whether a source must not be removed: its state is unknown, or the guard blocks its removal.
    /// With versioned names, another name is an edit, not a removal. Copies that a rolled back
    /// change created are not blocked. A dry run removes nothing.
    pub fn must_stay(&self, source: &SourceRef) -> bool {
        let is_edit =
            || self.terms.versions.is_some() && self.has_source(source) && source.is_version();
        self.terms.is_dry_run()
            || self.is_unknown(source)
            || !(is_edit()
                || self.is_rolled_back(source)
                || self.judged.passes_intent(&self.cluster, source))
    }

    /// Whether a source that is not selected was sent by the change from which the cluster is
    /// rolled back.
    fn is_rolled_back(&self, source: &SourceRef) -> bool {
        self.rolled_back
            .as_ref()
            .is_some_and(|plan| plan.intents.contains_key(source))
    }

    /// Returns the approved removals of copies in namespaces that are no longer targets.
    pub fn prune(&self) -> Option<PruneDigest> {
        self.judged.prune(&self.cluster)
    }

    /// Whether the state of a source is unknown: it must not be removed or changed. A source
    /// without a grant is undesired in any case.
    pub fn is_unknown(&self, source: &SourceRef) -> bool {
        self.sends(source) && self.plan.is_unknown(source)
    }

    /// Whether an unwanted source stays only because its removal is not judged yet.
    pub fn is_unjudged(&self, source: &SourceRef) -> bool {
        !self.is_unknown(source)
            && !self.terms.is_dry_run()
            && self.must_stay(source)
            && !self.judged.blocks_intent(&self.cluster, source)
    }

    /// The intents in which this can differ from what `former` was, if there are but few.
    pub fn change_since(&self, former: &ClusterAssignment) -> Option<Cow<'_, BTreeSet<SourceRef>>> {
        if former.terms.grants != self.terms.grants {
            None
        } else if former.plan.digest == self.plan.digest {
            Some(Cow::default())
        } else {
            self.plan.edits.since(former.plan.digest)
        }
    }

    /// Whether the source of an intent is sent, under any name.
    pub fn has_source(&self, intent: &SourceRef) -> bool {
        let plain = intent.plain();
        let mut named = self.plan.intents.from(&plain).map(|(other, _)| other);
        named
            .next()
            .is_some_and(|other| other.plain() == plain && self.sends(other))
    }

    /// Whether two are one and the same, so that nothing need be compared.
    pub fn is(&self, other: &ClusterAssignment) -> bool {
        Arc::ptr_eq(&self.plan, &other.plan)
            && Arc::ptr_eq(&self.judged, &other.judged)
            && self.rolled_back.as_ref().map(Arc::as_ptr)
                == other.rolled_back.as_ref().map(Arc::as_ptr)
            && self.terms.grants == other.terms.grants
            && self.terms.enforcement == other.terms.enforcement
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use runnel_proto::model::{DeletionPolicy, DriftPolicy, NamespaceChoice, Pattern};

    use super::*;

    fn terms() -> impl Strategy<Value = Terms> {
        let namespaces = proptest::option::of(proptest::collection::vec("[a-c*]{1,2}", 0..3));
        (
            any::<bool>(),
            any::<bool>(),
            any::<bool>(),
            0i64..2,
            namespaces,
            proptest::option::of(1u32..3),
        )
            .prop_map(
                |(suspend, reports, retains, created_at, namespaces, versions)| Terms {
                    suspend,
                    created_at,
                    drift_policy: if reports {
                        DriftPolicy::Report
                    } else {
                        DriftPolicy::Correct
                    },
                    deletion_policy: if retains {
                        DeletionPolicy::Retain
                    } else {
                        DeletionPolicy::Delete
                    },
                    namespaces: namespaces.map(|names| NamespaceChoice {
                        names: names.iter().map(Pattern::new).collect(),
                        ..NamespaceChoice::default()
                    }),
                    versions,
                    ..Terms::default()
                },
            )
    }

    proptest! {
        #[test]
        fn digests_are_equal_only_for_equal_terms(one in terms(), other in terms()) {
            prop_assert_eq!(digest_of(&one) == digest_of(&other), one == other);
            prop_assert_eq!(digest_of(&one), digest_of(&one.clone()));
        }
    }
}
