//! Answers the hub's requests for the states of copies from the records, without a read.
use std::collections::BTreeSet;
use std::ops::Bound;

use runnel_proto::model::{
    COPIES_LIMIT, CopyList, CopyOutcome, CopyState, Inspect, Inspected, ListCopies, ListedCopy,
    LiveObject, NamespaceState, Reason, RuleUid, STATES_LIMIT, SourceRef,
};

use super::decider::Decider;
use crate::copy::CopyStatus;
use crate::feedback;
use crate::live::{Live, Ownership};

impl Decider<'_> {
    /// Returns the state of a copy.
    pub(super) fn inspected(&self, question: &Inspect) -> Inspected {
        let copy = &question.copy;
        let states = self.report.of_copy(copy).iter().take(STATES_LIMIT);
        Inspected {
            question: question.question,
            namespace: self.namespace_of(copy),
            states: states.map(|(rule, outcome)| state(rule, outcome)).collect(),
            live: self
                .records
                .live(copy)
                .map(|live| self.live_object(copy, live)),
        }
    }

    /// Returns a page of the copies of a rule.
    pub(super) fn listed(&self, question: &ListCopies) -> CopyList {
        if let Some(only) = &question.only {
            return CopyList {
                question: question.question,
                copies: self.listed_copy(&question.rule, only).into_iter().collect(),
                more: false,
                last: true,
            };
        }
        let all: BTreeSet<_> = self.desired.owners().copies_of(&question.rule).collect();
        let after = question
            .after
            .as_ref()
            .map_or(Bound::Unbounded, Bound::Excluded);
        let limit = usize::try_from(question.limit)
            .unwrap_or(COPIES_LIMIT)
            .min(COPIES_LIMIT);
        let mut copies = all
            .range((after, Bound::Unbounded))
            .filter_map(|copy| self.listed_copy(&question.rule, copy));
        let page = copies.by_ref().take(limit).collect();
        CopyList {
            question: question.question,
            copies: page,
            more: copies.next().is_some(),
            last: true,
        }
    }

    /// Returns a copy as the agent reports it to a rule; `None` if it reports nothing.
    fn listed_copy(&self, rule: &RuleUid, copy: &SourceRef) -> Option<ListedCopy> {
        let (outcome, copy_error) = outcome_of(self.report.outcome(copy, rule)?);
        let fields = self.desired.rules().feedback_of(rule);
        let source = self.desired.copies().source_of(rule, copy);
        let live = self.records.live(copy);
        let sealed = live.filter(|live| {
            let sealed = live.sealed.as_ref();
            sealed.is_some_and(|sealed| sealed.rule == *rule)
        });
        let created = sealed.filter(|live| live.is_own());
        Some(ListedCopy {
            copy: copy.clone(),
            source: source.map(|source| source.plain()),
            outcome,
            copy_error,
            applied_at: sealed.map_or(0, |live| live.applied_at),
            health: match live {
                Some(_) => created.and_then(|live| live.health.as_deref().cloned()),
                None if outcome == CopyOutcome::Applied => {
                    self.history.finished_health(copy).cloned()
                }
                None => None,
            },
            feedback: feedback::named(
                fields,
                copy,
                created.and_then(|live| live.feedback.as_deref()),
            ),
        })
    }

    fn live_object(&self, copy: &SourceRef, live: &Live) -> LiveObject {
        let sealed = live.sealed.as_ref();
        let rule = sealed.map(|sealed| &sealed.rule);
        let fields = rule.map_or(&[][..], |rule| self.desired.rules().feedback_of(rule));
        // The state of what others have created is theirs.
        let created = Some(live).filter(|live| live.is_own());
        LiveObject {
            ours: live.ownership == Ownership::Ours,
            intact: live.intact,
            sealed: sealed
                .map(|sealed| (sealed.rule.clone(), sealed.source.clone(), sealed.revision)),
            applied_at: live.applied_at,
            uid: live.uid.to_string(),
            health: created.and_then(|live| live.health.as_deref().cloned()),
            feedback: feedback::named(
                fields,
                copy,
                created.and_then(|live| live.feedback.as_deref()),
            ),
            widened: live.is_widened,
        }
    }

    fn namespace_of(&self, copy: &SourceRef) -> NamespaceState {
        let name = &*copy.namespace;
        if self.desired.cluster().denies_place(copy).is_some() {
            NamespaceState::Closed
        } else if self.desired.cluster().is_terminating(name) {
            NamespaceState::Terminating
        } else if self.desired.cluster().has_namespace(name) {
            NamespaceState::Ready
        } else if self.watches.has_namespaces() {
            NamespaceState::Missing
        } else {
            NamespaceState::Unknown
        }
    }
}

fn state(rule: &RuleUid, outcome: &CopyStatus) -> CopyState {
    let (outcome, copy_error) = outcome_of(outcome);
    CopyState {
        rule: rule.clone(),
        outcome,
        copy_error,
    }
}

fn outcome_of(outcome: &CopyStatus) -> (CopyOutcome, Option<(Reason, String)>) {
    let (outcome, copy_error) = match outcome {
        CopyStatus::UnderWay => (CopyOutcome::UnderWay, None),
        CopyStatus::Delayed(copy_error) => (CopyOutcome::UnderWay, Some(copy_error)),
        CopyStatus::Applied => (CopyOutcome::Applied, None),
        CopyStatus::Failed(copy_error) => (CopyOutcome::Failed, Some(copy_error)),
        CopyStatus::Waiting => (CopyOutcome::Waiting, None),
        CopyStatus::Drifted(copy_error) => (CopyOutcome::Drifted, Some(copy_error)),
        CopyStatus::Removing(copy_error) => (CopyOutcome::Removing, copy_error.as_ref()),
        CopyStatus::Planned(_, copy_error) => (CopyOutcome::Waiting, Some(copy_error)),
        CopyStatus::PruneRequested => (CopyOutcome::PruneRequested, None),
    };
    let copy_error =
        copy_error.map(|copy_error| (copy_error.reason, copy_error.message.to_string()));
    (outcome, copy_error)
}
