//! The state of one rule in a session: the intents of the agent, and the step from them to a plan.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use runnel_proto::model::{
    DeletionPolicy, PruneDigest, Revision, RuleState, SetDigest, SourceRef, TermsDigest,
};

use crate::index::Directive;
use crate::plan::{ClusterAssignment, SourceContent};

/// The agent's state of one rule.
#[derive(Default)]
pub(super) struct RuleStreamState {
    /// The terms that it has, or will have when what waits is sent.
    pub(super) terms: Option<TermsDigest>,
    /// The terms that it has.
    pub(super) sent_terms: Option<TermsDigest>,
    /// Whether the rule is suspended there, or will be when the pending messages are sent; `None`:
    /// unknown, or not sent yet.
    pub(super) is_suspended: Option<bool>,
    /// The suspension that was sent; `None` before.
    pub(super) sent_suspended: Option<bool>,
    pub(super) items: Items,
    /// The copies in namespaces that are no longer targets that the agent may remove, or may when what waits is sent.
    pub(super) prune: Option<PruneDigest>,
    /// The batch that named them, once it is sent.
    pub(super) prune_sent: Option<u64>,
    /// An approval that lapsed because the agent reported another set.
    pub(super) lapsed: Option<PruneDigest>,
    /// The last reported digest of waiting prunes.
    pub(super) waits: Option<PruneDigest>,
    /// The last batch that named the rule.
    pub(super) named: u64,
    /// The order to remove the rule that the agent has not answered.
    pub(super) removing: Option<DeletionPolicy>,
    pub(super) sent_orphaned: bool,
    /// The agent connected with it, and it has not equaled the desired state since. Its origin is
    /// uncertain.
    pub(super) former: bool,
    /// The last directive of the hub.
    pub(super) directive: Option<Directive>,
}

impl RuleStreamState {
    pub(super) fn claimed_by_agent(state: &RuleState) -> Self {
        let items = Items::Digest {
            digest: state.intents_digest,
            intents: u64::from(state.intents),
        };
        let waits = state
            .namespace_prunes
            .as_ref()
            .map(|namespace_prunes| namespace_prunes.digest);
        let (terms, sent_terms) = (state.terms_digest, state.terms_digest);
        Self {
            terms,
            sent_terms,
            items,
            waits,
            former: true,
            ..Self::default()
        }
    }

    /// Whether a report is missing before the agent is up to date.
    pub(super) fn is_waiting(&self) -> bool {
        let suspended = matches!(&self.directive, Some(Directive::Assigned(assignment) | Directive::Cordoned(assignment)) if assignment.terms.suspend);
        match (&self.directive, &self.items) {
            (_, Items::PartialPairs(_)) => true,
            (
                Some(Directive::Assigned(_) | Directive::Cordoned(_)),
                Items::Digest { .. } | Items::Uncertain,
            ) => !suspended,
            _ => false,
        }
    }

    /// Whether the hub has the rule and the rule selects this cluster.
    pub(super) fn is_claimed(&self) -> bool {
        // An agent that received that the rule is orphaned has received nothing else since.
        let is_suspended = matches!(
            self.directive,
            Some(
                Directive::Unknown
                    | Directive::AwaitingWave(_)
                    | Directive::RemovalBlocked
                    | Directive::Cordoned(_)
            )
        );
        self.removing.is_none()
            && !self.sent_orphaned
            && !(is_suspended && self.sent_terms.is_none())
    }
}

/// The (source, revision) pairs of an agent for one rule.
pub(super) enum Items {
    /// The pairs are unknown.
    Uncertain,
    /// Only the digest of the pairs is known.
    Digest { digest: SetDigest, intents: u64 },
    /// The pairs are requested; these have been received.
    PartialPairs(BTreeMap<SourceRef, Revision>),
    /// All pairs are known.
    Pairs(BTreeMap<SourceRef, Revision>),
    /// The intents of the assignment, and in `beyond` those that must stay though they are not in
    /// it.
    ClusterAssignment {
        assignment: ClusterAssignment,
        over_limit: BTreeMap<SourceRef, Revision>,
    },
}

impl Default for Items {
    fn default() -> Self {
        Items::Pairs(BTreeMap::new())
    }
}

/// The step from the agent's pairs to an assignment.
pub(super) struct Delta {
    pub(super) items: Items,
    pub(super) upserts: Vec<(SourceRef, Arc<SourceContent>)>,
    pub(super) tombstones: Vec<SourceRef>,
}

impl Items {
    pub(super) fn exactly(assignment: ClusterAssignment) -> Self {
        Items::ClusterAssignment {
            assignment,
            over_limit: BTreeMap::new(),
        }
    }

    /// Whether the agent certainly has no intents.
    pub(super) fn is_known_empty(&self) -> bool {
        match self {
            Items::Uncertain | Items::Digest { .. } | Items::PartialPairs(_) => false,
            Items::Pairs(pairs) => pairs.is_empty(),
            Items::ClusterAssignment {
                assignment,
                over_limit: beyond,
            } => assignment.plan.intents.is_empty() && beyond.is_empty(),
        }
    }

    /// Whether the intents equal the assignment.
    pub(super) fn are_exact(&self) -> bool {
        matches!(self, Items::ClusterAssignment { over_limit, .. } if over_limit.is_empty())
    }

    /// The number of pairs and their digest.
    pub(super) fn account(&self) -> (u64, SetDigest) {
        match self {
            Items::Uncertain => (0, SetDigest::default()),
            Items::Digest { digest, intents } => (*intents, *digest),
            Items::PartialPairs(pairs) | Items::Pairs(pairs) => {
                (pairs.len() as u64, pairs.iter().collect())
            }
            Items::ClusterAssignment {
                assignment,
                over_limit: beyond,
            } => {
                let mut digest = assignment.digest();
                digest.merge(beyond.iter().collect());
                ((assignment.intents().count() + beyond.len()) as u64, digest)
            }
        }
    }

    pub(super) fn revision(&self, source: &SourceRef) -> Option<Revision> {
        match self {
            Items::Uncertain | Items::Digest { .. } => None,
            Items::PartialPairs(pairs) | Items::Pairs(pairs) => pairs.get(source).copied(),
            Items::ClusterAssignment {
                assignment,
                over_limit: beyond,
            } => assignment
                .content(source)
                .map(|content| content.revision)
                .or_else(|| beyond.get(source).copied()),
        }
    }

    fn sources(&self) -> Box<dyn Iterator<Item = &SourceRef> + '_> {
        match self {
            Items::Uncertain | Items::Digest { .. } => Box::new(std::iter::empty()),
            Items::PartialPairs(pairs) | Items::Pairs(pairs) => Box::new(pairs.keys()),
            Items::ClusterAssignment {
                assignment,
                over_limit: beyond,
            } => Box::new(
                assignment
                    .intents()
                    .map(|(source, _)| source)
                    .chain(beyond.keys()),
            ),
        }
    }

    /// Returns these pairs without those that may be removed because the assignment certainly does
    /// not contain them, and the sources of the latter.
    pub(super) fn without_surplus(
        &self,
        assignment: &ClusterAssignment,
    ) -> (BTreeMap<SourceRef, Revision>, Vec<SourceRef>) {
        let (mut kept, mut gone) = (BTreeMap::new(), vec![]);
        for source in self.sources() {
            let Some(revision) = self.revision(source) else {
                continue;
            };
            // A copy with a former name is kept until the copy with the new name can be created.
            if assignment.content(source).is_some()
                || assignment.has_source(source)
                || assignment.must_stay(source)
            {
                kept.insert(source.clone(), revision);
            } else {
                gone.push(source.clone());
            }
        }
        (kept, gone)
    }

    /// The unwanted pairs that stay only because their removal is not judged yet.
    pub(super) fn unjudged(&self, assignment: &ClusterAssignment) -> BTreeSet<SourceRef> {
        let beyond: Box<dyn Iterator<Item = &SourceRef>> = match self {
            Items::Uncertain | Items::Digest { .. } | Items::PartialPairs(_) => {
                Box::new(std::iter::empty())
            }
            Items::Pairs(pairs) => {
                Box::new(pairs.keys().filter(|source| !assignment.has_source(source)))
            }
            Items::ClusterAssignment {
                over_limit: beyond, ..
            } => Box::new(beyond.keys()),
        };
        beyond
            .filter(|source| assignment.is_unjudged(source))
            .cloned()
            .collect()
    }

    /// The step from these pairs to an assignment. If it differs in few known intents, only those
    /// are compared, and those that were left alone before.
    pub(super) fn step_to(&self, assignment: &ClusterAssignment) -> Delta {
        let mut step = Delta {
            items: Items::default(),
            upserts: vec![],
            tombstones: vec![],
        };
        let mut beyond = BTreeMap::new();
        let change = match self {
            Items::ClusterAssignment {
                assignment: former,
                over_limit: known,
            } if former.is(assignment) => {
                beyond.clone_from(known);
                step.items = Items::ClusterAssignment {
                    assignment: assignment.clone(),
                    over_limit: beyond,
                };
                return step;
            }
            Items::ClusterAssignment {
                assignment: former,
                over_limit: known,
            } => assignment
                .change_since(former)
                .map(|touched| (touched, known)),
            _ => None,
        };
        match change {
            Some((touched, known)) => {
                for source in known
                    .keys()
                    .filter(|known| !touched.contains(*known))
                    .chain(touched.iter())
                {
                    self.compare(source, assignment, &mut step, &mut beyond);
                }
            }
            None => {
                let gone = self
                    .sources()
                    .filter(|source| assignment.content(source).is_none());
                for source in gone.chain(assignment.intents().map(|(source, _)| source)) {
                    self.compare(source, assignment, &mut step, &mut beyond);
                }
            }
        }
        step.items = Items::ClusterAssignment {
            assignment: assignment.clone(),
            over_limit: beyond,
        };
        step
    }

    fn compare(
        &self,
        source: &SourceRef,
        assignment: &ClusterAssignment,
        step: &mut Delta,
        beyond: &mut BTreeMap<SourceRef, Revision>,
    ) {
        let stream = self.revision(source);
        match (stream, assignment.content(source)) {
            (Some(stream), Some(content)) if stream == content.revision => {}
            (_, Some(content)) => step.upserts.push((source.clone(), content.clone())),
            // While content is being read for the first time, it may be the replacement of this
            // one. The replacement comes first.
            (Some(stream), None) if assignment.must_stay(source) || assignment.is_growing() => {
                beyond.insert(source.clone(), stream);
            }
            (Some(_), None) => step.tombstones.push(source.clone()),
            (None, None) => {}
        }
    }
}
