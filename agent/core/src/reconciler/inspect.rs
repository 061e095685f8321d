//! Answers the hub's request for the state of one copy from the records, without a read.
use runnel_proto::model::{
    CopyOutcome, CopyState, Inspect, Inspected, LiveObject, NamespaceState, RuleUid, STATES_LIMIT,
    SourceRef,
};

use super::Reconciler;
use crate::copy::CopyStatus;
use crate::live::{Live, Ownership};

impl Reconciler {
    /// Returns the state of a copy.
    pub(super) fn inspected(&self, question: &Inspect) -> Inspected {
        let copy = &question.copy;
        let states = self.report.of_copy(copy).iter().take(STATES_LIMIT);
        Inspected {
            question: question.question,
            namespace: self.namespace_of(copy),
            states: states.map(|(rule, outcome)| state(rule, outcome)).collect(),
            live: self.records.live(copy).map(live),
        }
    }

    fn namespace_of(&self, copy: &SourceRef) -> NamespaceState {
        let name = &*copy.namespace;
        if self.desired.cluster().denies_namespace(name).is_some() {
            NamespaceState::Closed
        } else if self.desired.cluster().is_terminating(name) {
            NamespaceState::Terminating
        } else if self.desired.cluster().has_namespace(name) {
            NamespaceState::Ready
        } else if !self.watches.namespaces_complete {
            NamespaceState::Unknown
        } else {
            NamespaceState::Missing
        }
    }
}

fn state(rule: &RuleUid, outcome: &CopyStatus) -> CopyState {
    let (outcome, copy_error) = match outcome {
        CopyStatus::UnderWay => (CopyOutcome::UnderWay, None),
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
    CopyState {
        rule: rule.clone(),
        outcome,
        copy_error,
    }
}

fn live(live: &Live) -> LiveObject {
    let sealed = live.sealed.as_ref();
    LiveObject {
        ours: live.ownership == Ownership::Ours,
        intact: live.intact,
        sealed: sealed.map(|sealed| (sealed.rule.clone(), sealed.source.clone(), sealed.revision)),
        applied_at: live.applied_at,
        uid: live.uid.to_string(),
    }
}
