//! What an agent holds of one rule, and the step from there to a plan.
use std::collections::BTreeMap;
use std::sync::Arc;

use runnel_proto::model::{DeletionPolicy, Revision, RuleState, SetDigest, SourceRef, TermsDigest};

use crate::index::Claim;
use crate::plan::{RulePlan, SourceContent};

/// What an agent holds of one rule.
#[derive(Default)]
pub(super) struct Held {
    pub(super) terms: Option<TermsDigest>,
    pub(super) items: Items,
    /// The order to remove the rule that the agent has not answered.
    pub(super) removing: Option<DeletionPolicy>,
    pub(super) told_unclaimed: bool,
    /// What the hub last said.
    pub(super) claim: Option<Claim>,
}

impl Held {
    pub(super) fn claimed_by_agent(state: &RuleState) -> Self {
        let items = Items::Digest { digest: state.intents_digest, intents: u64::from(state.intents) };
        Self { terms: state.terms_digest, items, ..Self::default() }
    }

    /// Whether something must come in before the agent is up to date.
    pub(super) fn is_waiting(&self) -> bool {
        let suspended = matches!(&self.claim, Some(Claim::Wanted(plan)) if plan.terms.suspend);
        match (&self.claim, &self.items) {
            (_, Items::Asked(_)) => true,
            (Some(Claim::Wanted(_)), Items::Digest { .. } | Items::Uncertain) => !suspended,
            _ => false,
        }
    }

    /// Whether the hub knows the rule and wants it here.
    pub(super) fn is_claimed(&self) -> bool {
        self.removing.is_none() && !self.told_unclaimed
    }
}

/// The (source, revision) pairs that an agent holds of one rule.
pub(super) enum Items {
    /// Nothing is known.
    Uncertain,
    /// Only their digest is known.
    Digest { digest: SetDigest, intents: u64 },
    /// The agent was asked; these have come in.
    Asked(BTreeMap<SourceRef, Revision>),
    /// These.
    Pairs(BTreeMap<SourceRef, Revision>),
    /// Those of the plan, and `beyond`: what the plan cannot tell anything about, and so left alone.
    Plan { plan: Arc<RulePlan>, beyond: BTreeMap<SourceRef, Revision> },
}

impl Default for Items {
    fn default() -> Self {
        Items::Pairs(BTreeMap::new())
    }
}

/// How to get from what is held to a plan.
pub(super) struct Step {
    pub(super) items: Items,
    pub(super) upserts: Vec<(SourceRef, Arc<SourceContent>)>,
    pub(super) tombstones: Vec<SourceRef>,
}

impl Items {
    pub(super) fn exactly(plan: Arc<RulePlan>) -> Self {
        Items::Plan { plan, beyond: BTreeMap::new() }
    }

    /// The number of pairs and their digest.
    pub(super) fn account(&self) -> (u64, SetDigest) {
        match self {
            Items::Uncertain => (0, SetDigest::default()),
            Items::Digest { digest, intents } => (*intents, *digest),
            Items::Asked(pairs) | Items::Pairs(pairs) => (pairs.len() as u64, pairs.iter().collect()),
            Items::Plan { plan, beyond } => {
                let mut digest = plan.digest;
                digest.merge(beyond.iter().collect());
                ((plan.intents.len() + beyond.len()) as u64, digest)
            }
        }
    }

    fn revision(&self, source: &SourceRef) -> Option<Revision> {
        match self {
            Items::Uncertain | Items::Digest { .. } => None,
            Items::Asked(pairs) | Items::Pairs(pairs) => pairs.get(source).copied(),
            Items::Plan { plan, beyond } => {
                plan.intents.get(source).map(|content| content.revision).or_else(|| beyond.get(source).copied())
            }
        }
    }

    fn sources(&self) -> Box<dyn Iterator<Item = &SourceRef> + '_> {
        match self {
            Items::Uncertain | Items::Digest { .. } => Box::new(std::iter::empty()),
            Items::Asked(pairs) | Items::Pairs(pairs) => Box::new(pairs.keys()),
            Items::Plan { plan, beyond } => Box::new(plan.intents.keys().chain(beyond.keys())),
        }
    }

    /// The step from these pairs to a plan. Where the plan is known to differ in one source only, only that one is
    /// looked at, besides what was left alone before.
    pub(super) fn step_to(&self, plan: &Arc<RulePlan>) -> Step {
        let mut step = Step { items: Items::default(), upserts: vec![], tombstones: vec![] };
        let mut beyond = BTreeMap::new();
        match (self, &plan.change) {
            (Items::Plan { plan: former, beyond: known }, _) if Arc::ptr_eq(former, plan) => beyond.clone_from(known),
            (Items::Plan { plan: former, beyond: known }, Some((before, source))) if former.digest == *before => {
                for source in known.keys().filter(|known| *known != source).chain([source]) {
                    self.compare(source, plan, &mut step, &mut beyond);
                }
            }
            _ => {
                let gone = self.sources().filter(|source| !plan.intents.contains_key(source));
                for source in gone.chain(plan.intents.keys()) {
                    self.compare(source, plan, &mut step, &mut beyond);
                }
            }
        }
        step.items = Items::Plan { plan: plan.clone(), beyond };
        step
    }

    fn compare(
        &self,
        source: &SourceRef,
        plan: &RulePlan,
        step: &mut Step,
        beyond: &mut BTreeMap<SourceRef, Revision>,
    ) {
        let held = self.revision(source);
        match (held, plan.intents.get(source)) {
            (Some(held), Some(content)) if held == content.revision => {}
            (_, Some(content)) => step.upserts.push((source.clone(), content.clone())),
            (Some(held), None) if plan.is_unknown(source) => {
                beyond.insert(source.clone(), held);
            }
            (Some(_), None) => step.tombstones.push(source.clone()),
            (None, None) => {}
        }
    }
}
