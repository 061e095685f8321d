//! The rendered sources of a rule: each under the name of its copies, without those that cannot be
//! rendered.
use std::collections::BTreeSet;
use std::sync::Arc;

use runnel_proto::model::SourceRef;

use super::{CowSortedMap, RulePlan, SourceChoice, SourceContent, SourceState, WatchScope};

/// Why a selected source is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RenderErrorKind {
    /// Another source of the rule has the same copy name.
    Ambiguous,
    /// The name is none for an object.
    Name,
    /// The rule's transformation does not fit the source.
    Transform,
    /// A variable is unknown, or a label is missing.
    Variable,
    /// A referenced Secret or its key is missing or unreadable.
    Value,
    /// Any API server would refuse the object.
    Object,
    /// The copies of the rule take more than a rule may have.
    Budget,
}

/// The error of a selected source that is not sent. Existing copies are left unchanged.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RenderError {
    /// The kind of the error.
    pub why: RenderErrorKind,
    /// The message, with field and source. Never contains a value of an object.
    pub message: Arc<str>,
}

/// The rendering result of a source.
#[derive(Clone)]
pub(super) enum RenderOutcome {
    /// Copies of this name; the content is absent while it is not known.
    Copy(Arc<str>, Option<Arc<SourceContent>>),
    /// The source cannot be rendered, for this reason; without a name if the name is invalid.
    Failed(Option<Arc<str>>, RenderError),
}

impl RenderOutcome {
    fn name(&self) -> Option<&Arc<str>> {
        match self {
            RenderOutcome::Copy(name, _) => Some(name),
            RenderOutcome::Failed(name, _) => name.as_ref(),
        }
    }

    /// Its identity among other outcomes.
    pub(super) fn key(&self) -> OutcomeKey {
        match self {
            RenderOutcome::Copy(name, content) => OutcomeKey::Copy(
                name.clone(),
                content.as_ref().map(|content| content.revision.0),
            ),
            RenderOutcome::Failed(name, why) => OutcomeKey::Failed(name.clone(), why.clone()),
        }
    }
}

/// The identity of an outcome.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum OutcomeKey {
    Copy(Arc<str>, Option<[u8; 16]>),
    Failed(Option<Arc<str>>, RenderError),
}

/// A rendered plan that clusters share, with its inputs.
#[derive(Clone)]
pub struct RenderedPlan {
    pub(super) plan: Arc<RulePlan>,
    outcomes: CowSortedMap<SourceRef, RenderOutcome>,
    /// The sources of each copy.
    wanted: CowSortedMap<SourceRef, BTreeSet<SourceRef>>,
    /// The rule's entries, if the copies of all sources meet in the same namespaces: a copy of several sources is that of the one
    /// whose namespace is named first.
    source_order: Option<Arc<[SourceChoice]>>,
}

impl RenderedPlan {
    /// Creates an empty plan for a selection.
    pub(super) fn nothing(selection: &RulePlan, source_order: Option<Arc<[SourceChoice]>>) -> Self {
        let (unknown, shown) = (selection.unknown.clone(), selection.shown.emptied());
        let plan = RulePlan {
            unknown,
            shown,
            selects_bundles: selection.selects_bundles,
            ..RulePlan::of(&selection.uid, &selection.scope)
        };
        Self {
            plan: plan.into(),
            outcomes: CowSortedMap::default(),
            wanted: CowSortedMap::default(),
            source_order,
        }
    }

    /// Creates a plan from a stored one. It does not change any more.
    pub(super) fn restored(plan: Arc<RulePlan>) -> Self {
        Self {
            plan,
            outcomes: CowSortedMap::default(),
            wanted: CowSortedMap::default(),
            source_order: None,
        }
    }

    /// Whether two are equal, independent of later changes.
    pub(super) fn has_equal_content(&self, other: &RenderedPlan) -> bool {
        self.plan.has_equal_content(&other.plan) && self.wanted == other.wanted
    }

    /// Sets the scopes of the rule's sources that are not listed now.
    pub(super) fn set_unknown(&mut self, unknown: &BTreeSet<WatchScope>) {
        Arc::make_mut(&mut self.plan).unknown.clone_from(unknown);
    }

    /// Sets the state and outcome of a source.
    pub(super) fn set(
        &mut self,
        source: &SourceRef,
        body: Option<&SourceState>,
        outcome: Option<RenderOutcome>,
    ) {
        let Self {
            plan,
            outcomes,
            wanted,
            source_order,
        } = self;
        let (meet, source_order) = (
            source_order.is_some(),
            source_order.as_deref().unwrap_or_default(),
        );
        let plan = Arc::make_mut(plan);
        let before = plan.digest;
        let (mut touched, mut copies) = (BTreeSet::new(), BTreeSet::new());
        if let Some(name) = outcomes
            .remove(source)
            .as_ref()
            .and_then(RenderOutcome::name)
        {
            let (copy, intent) = (copy(source, name, meet), source.as_copy(name));
            if let Some(others) = wanted.get_mut(&copy) {
                others.remove(source);
            }
            plan.remove_content(&intent);
            touched.insert(intent);
            copies.insert(copy);
        }
        plan.render_errors.remove(source);
        plan.note(source, body);
        if matches!(
            (body, &outcome),
            (
                Some(SourceState::Read(_)),
                Some(RenderOutcome::Copy(_, None))
            )
        ) {
            // A part of its content is still being read.
            plan.unread.insert(source.clone());
        }
        if let Some(outcome) = outcome {
            if let Some(name) = outcome.name() {
                let copy = copy(source, name, meet);
                if let Some(sources) = wanted.get_or_default(&copy) {
                    sources.insert(source.clone());
                }
                copies.insert(copy);
            } else if let RenderOutcome::Failed(_, why) = &outcome {
                plan.render_errors.insert(source.clone(), why.clone());
            }
            outcomes.insert(source.clone(), outcome);
        }
        for copy in copies {
            settle(&copy, source_order, outcomes, wanted, plan, &mut touched);
        }
        plan.edits.note(before, touched.into());
    }
}

/// Assigns a copy to its source: the only one, or the one whose namespace the rule names first. The others count as not selected. A
/// copy with several sources of the same rank is assigned to none.
fn settle(
    copy: &SourceRef,
    source_order: &[SourceChoice],
    outcomes: &CowSortedMap<SourceRef, RenderOutcome>,
    wanted: &mut CowSortedMap<SourceRef, BTreeSet<SourceRef>>,
    plan: &mut RulePlan,
    touched: &mut BTreeSet<SourceRef>,
) {
    let Some(sources) = wanted.get(copy) else {
        return;
    };
    let rank = |source: &&SourceRef| SourceChoice::rank(source_order, source);
    let first = sources.iter().map(|source| rank(&source)).min();
    let first: Vec<_> = sources
        .iter()
        .filter(|source| Some(rank(source)) == first)
        .collect();
    for source in sources {
        let Some(outcome) = outcomes.get(source) else {
            continue;
        };
        let Some(name) = outcome.name() else { continue };
        let intent = source.as_copy(name);
        plan.remove_content(&intent);
        plan.render_errors.remove(source);
        touched.insert(intent.clone());
        if !first.contains(&source) {
            continue;
        }
        match (outcome, first.iter().find(|other| **other != source)) {
            (RenderOutcome::Failed(_, why), _) => {
                drop(plan.render_errors.insert(source.clone(), why.clone()))
            }
            (RenderOutcome::Copy(..), Some(other)) => {
                plan.render_errors
                    .insert(source.clone(), ambiguous(source, other, name));
            }
            (RenderOutcome::Copy(_, Some(content)), None) => plan.put_in(intent, content.clone()),
            (RenderOutcome::Copy(_, None), None) => {}
        }
    }
    if sources.is_empty() {
        wanted.remove(copy);
    }
}

/// The key of a copy among those of the rule.
fn copy(source: &SourceRef, name: &str, meet: bool) -> SourceRef {
    let namespace = if meet {
        Arc::from("")
    } else {
        source.namespace.clone()
    };
    source.as_copy(name).copy_in(&namespace)
}

fn ambiguous(source: &SourceRef, other: &SourceRef, name: &str) -> RenderError {
    let (one, two) = (source.min(other), source.max(other));
    let message = format!(
        "{one} and {two} both have the copy {name} in the same namespaces, so neither is sent; narrow spec.sources, or \
         rename one by spec.transform.name"
    );
    RenderError {
        why: RenderErrorKind::Ambiguous,
        message: message.into(),
    }
}

#[cfg(test)]
#[path = "rendered_plan_tests.rs"]
mod tests;
