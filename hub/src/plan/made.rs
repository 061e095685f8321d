//! What of a rule's sources is sent: each under the name of its copies, and none that cannot be what the rule wants.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use runnel_proto::model::SourceRef;

use super::{Body, RulePlan, SourceContent};

/// Why a selected source is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    /// Another source of the rule wants the same copy.
    Ambiguous,
}

/// That a selected source is not sent. What stands of it stays as it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Withheld {
    /// Why.
    pub why: Why,
    /// A sentence for a person: which field and which source. Never holds a value of an object.
    pub message: Arc<str>,
}

/// What a source becomes.
#[derive(Clone)]
pub(super) struct Outcome {
    /// The name of its copies.
    pub(super) name: Arc<str>,
    /// Absent while it is not known.
    pub(super) content: Option<Arc<SourceContent>>,
}

/// What is sent, and what it was made of.
#[derive(Clone)]
pub struct Made {
    pub(super) plan: Arc<RulePlan>,
    outcomes: BTreeMap<SourceRef, Outcome>,
    /// Who wants which copy.
    wanted: BTreeMap<SourceRef, BTreeSet<SourceRef>>,
}

impl Made {
    /// Nothing yet, of what this selects.
    pub(super) fn nothing(selection: &RulePlan) -> Self {
        let plan = RulePlan { unknown: selection.unknown.clone(), ..RulePlan::of(&selection.uid, &selection.scope) };
        Self { plan: plan.into(), outcomes: BTreeMap::new(), wanted: BTreeMap::new() }
    }

    /// Takes in what a source is and becomes.
    pub(super) fn set(&mut self, source: &SourceRef, body: Option<&Body>, outcome: Option<Outcome>) {
        let Self { plan, outcomes, wanted } = self;
        let plan = Arc::make_mut(plan);
        let before = plan.digest;
        let (mut touched, mut copies) = (BTreeSet::new(), BTreeSet::new());
        if let Some(former) = outcomes.remove(source) {
            let (copy, intent) = (copy(source, &former.name), source.as_copy(&former.name));
            if let Some(others) = wanted.get_mut(&copy) {
                others.remove(source);
            }
            plan.take_out(&intent);
            touched.insert(intent);
            copies.insert(copy);
        }
        plan.withheld.remove(source);
        plan.note(source, body);
        if let Some(outcome) = outcome {
            let copy = copy(source, &outcome.name);
            wanted.entry(copy.clone()).or_default().insert(source.clone());
            copies.insert(copy);
            outcomes.insert(source.clone(), outcome);
        }
        for copy in copies {
            settle(&copy, outcomes, wanted, plan, &mut touched);
        }
        plan.change = Some((before, touched));
    }
}

/// Decides who has a copy: one source that wants it, or none of several.
fn settle(
    copy: &SourceRef,
    outcomes: &BTreeMap<SourceRef, Outcome>,
    wanted: &mut BTreeMap<SourceRef, BTreeSet<SourceRef>>,
    plan: &mut RulePlan,
    touched: &mut BTreeSet<SourceRef>,
) {
    let Some(sources) = wanted.get(copy) else { return };
    for source in sources {
        let Some(outcome) = outcomes.get(source) else { continue };
        let intent = source.as_copy(&outcome.name);
        plan.take_out(&intent);
        plan.withheld.remove(source);
        match (sources.iter().find(|other| *other != source), &outcome.content) {
            (Some(other), _) => drop(plan.withheld.insert(source.clone(), ambiguous(source, other, &outcome.name))),
            (None, Some(content)) => plan.put_in(intent.clone(), content.clone()),
            (None, None) => {}
        }
        touched.insert(intent);
    }
    if sources.is_empty() {
        wanted.remove(copy);
    }
}

/// What stands for a copy in all the namespaces that it goes to.
fn copy(source: &SourceRef, name: &str) -> SourceRef {
    source.as_copy(name).copy_in(&Arc::from(""))
}

fn ambiguous(source: &SourceRef, other: &SourceRef, name: &str) -> Withheld {
    let (one, two) = (source.min(other), source.max(other));
    let message = format!(
        "{one} and {two} both want the copy {name} in the same namespaces, so neither is sent; narrow spec.sources, or \
         use a rule for each"
    );
    Withheld { why: Why::Ambiguous, message: message.into() }
}

#[cfg(test)]
#[path = "made_tests.rs"]
mod tests;
