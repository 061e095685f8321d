//! Decides previewed copies like real copies, without writing. Pure.
//!
//! The records of the agent answer most of it. A foreign object in the place of a copy is unknown
//! to the watches, so the agent reads it for the answer
//! ([`Open`](crate::job::CopyKnowledge::Open)), and [`preview`] decides by the observed object.
//!
//! The answer never contains whether a foreign Secret equals the previewed content. The author of a
//! preview chooses that content, and could guess a value with one preview after the other, without
//! a trace. So both cases have the same answer ([`is_untold`]). No dry run is sent for such a copy
//! either, because the API server may distinguish the cases.
use std::collections::{BTreeMap, BTreeSet};

use kube::core::DynamicObject;
use runnel_proto::model::{
    FieldDiff, FieldDigests, FieldsKey, Kind, PreviewOutcome, PreviewResult, PreviewedCopy,
    SourceRef,
};

use crate::copy::CopyStatus;
use crate::decide::{Action, Decision, Want, decide, differs, is_of_this_intent};
use crate::differ;
use crate::job::Decided;
use crate::live::{Live, Sealed};
use crate::records::Observed;

/// What was found out of one copy.
pub struct Found {
    /// The copy.
    pub copy: SourceRef,
    /// Its source.
    pub source: SourceRef,
    /// What becomes of it; `None`: nothing that is worth a word.
    pub outcome: Option<Decided>,
    /// In what it differs.
    pub diff: FieldDiff,
    /// The copies that must stand before this one goes.
    pub after: Vec<SourceRef>,
}

/// Whether it is not told if what stands there equals what would be written: it is a Secret, and not the agent's own copy of
/// this source by this rule. What another rule made, or this one of another source, may be what the person may not read.
pub fn is_untold(want: &Want, observed: &Observed) -> bool {
    let Want::Copy(wanted) = want else {
        return false;
    };
    let is_plain =
        Kind::by_resource(&wanted.intent.source.resource).is_some_and(|kind| !kind.sensitive);
    let key = &wanted.intent;
    let is_of_it =
        |sealed: &Sealed| sealed.rule == key.rule && sealed.source.plain() == key.source.plain();
    let is_own = |live: &Live| live.is_own() && live.sealed.as_deref().is_some_and(is_of_it);
    !is_plain && matches!(observed, Observed::Live(live) if !is_own(live))
}

/// The paths in which what stands there differs from what would be written. Values are shown of the agent's own copy of this
/// intent only, and of no Secret. None of a Secret of which [nothing is told](is_untold).
pub fn diff(
    want: &Want,
    observed: &Observed,
    object: &DynamicObject,
    digests: &FieldDigests,
    key: &FieldsKey,
) -> FieldDiff {
    let Want::Copy(wanted) = want else {
        return FieldDiff::default();
    };
    match Kind::by_resource(&wanted.intent.source.resource) {
        Some(kind) if !is_untold(want, observed) => {
            let is_own = matches!(observed, Observed::Live(live) if live.is_own());
            let shows_values = !kind.sensitive && is_own && is_of_this_intent(wanted, observed);
            differ::diff(
                kind,
                object,
                (digests, key),
                &wanted.policies.ignored,
                shows_values,
            )
        }
        _ => FieldDiff::default(),
    }
}

/// What would become of a copy where this stands. `is_equal`: whether its fields are those of the intent; it makes no
/// difference where that [is not told](is_untold).
pub fn preview(want: &Want, observed: &Observed, is_equal: bool) -> Option<Decided> {
    let plain = |previewed| Some((previewed, None));
    match decide(want, observed) {
        Decision::Forget => None,
        Decision::Noop(outcome) => match outcome {
            CopyStatus::Applied => plain(PreviewOutcome::Unchanged),
            CopyStatus::UnderWay => plain(PreviewOutcome::Rest),
            CopyStatus::Failed(copy_error) => Some((PreviewOutcome::Refused, Some(copy_error))),
            CopyStatus::Waiting => plain(PreviewOutcome::Wait),
            CopyStatus::Drifted(copy_error) => Some((PreviewOutcome::Unchanged, Some(copy_error))),
            CopyStatus::Removing(_) => plain(PreviewOutcome::Rest),
            CopyStatus::Planned(..) => plain(PreviewOutcome::Rest),
            CopyStatus::PruneRequested => plain(PreviewOutcome::GiveUp),
        },
        Decision::Act(action) => match action {
            Action::CreateNamespace | Action::Create => plain(PreviewOutcome::Create),
            Action::Read => None,
            Action::Change(_) => plain(PreviewOutcome::Change),
            Action::Adopt(_) if is_untold(want, observed) => plain(PreviewOutcome::AdoptIfEqual),
            Action::Adopt(_) if is_equal => plain(PreviewOutcome::Adopt),
            Action::Adopt(_) => refused(observed),
            Action::Overwrite(_) if is_equal && !is_untold(want, observed) => {
                plain(PreviewOutcome::Adopt)
            }
            Action::Overwrite(_) => plain(PreviewOutcome::Overwrite),
            Action::Compare(_) | Action::Demote(_) => plain(PreviewOutcome::Unchanged),
            Action::Delete(_) => plain(PreviewOutcome::Remove),
            Action::Retain(_) => plain(PreviewOutcome::Retain),
        },
    }
}

fn refused(observed: &Observed) -> Option<Decided> {
    match observed {
        Observed::Live(live) => Some((PreviewOutcome::Refused, Some(differs(live)))),
        _ => None,
    }
}

/// Whether it is a write.
pub fn writes(previewed: PreviewOutcome) -> bool {
    use PreviewOutcome::{Adopt, AdoptIfEqual, Change, Create, Overwrite};
    matches!(
        previewed,
        Create | Change | Adopt | AdoptIfEqual | Overwrite
    )
}

/// The answer: what was found, in order. What must wait for another copy that will not stand stays.
pub fn answer(question: u64, found: Vec<Found>, more: u32) -> PreviewResult {
    let stand = |outcome: &Decided| writes(outcome.0) || outcome.0 == PreviewOutcome::Unchanged;
    let standing: BTreeSet<_> = found
        .iter()
        .filter(|one| one.outcome.as_ref().is_some_and(stand))
        .map(|one| one.copy.clone())
        .collect();
    let outcome = found.into_iter().filter_map(|one| {
        let waits = one.after.iter().any(|before| !standing.contains(before));
        let (previewed, copy_error) = one.outcome?;
        let previewed = if waits {
            PreviewOutcome::Rest
        } else {
            previewed
        };
        let copy_error =
            copy_error.map(|copy_error| (copy_error.reason, copy_error.message.to_string()));
        let (source, diff) = (
            one.source,
            if writes(previewed) {
                one.diff
            } else {
                FieldDiff::default()
            },
        );
        Some((
            one.copy.clone(),
            PreviewedCopy {
                copy: one.copy,
                source,
                previewed,
                copy_error,
                diff,
            },
        ))
    });
    let copies = outcome.collect::<BTreeMap<_, _>>().into_values().collect();
    PreviewResult {
        question,
        copies,
        more,
        last: true,
        unanswered: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use runnel_proto::model::{FieldChange, FieldEdit, Revision};
    use serde_json::json;

    use super::*;
    use crate::copy::IntentKey;
    use crate::decide::{Policies, TargetNamespace, WantedCopy};
    use crate::live::Ownership;
    use crate::policy::Facts;

    fn wanted(resource: &str) -> Want {
        Want::Copy(Box::new(WantedCopy {
            intent: IntentKey {
                rule: "r".into(),
                source: SourceRef::new(resource, "team", "s"),
            },
            rule: runnel_proto::model::RuleName::default(),
            revision: Some(Revision([2; 16])),
            place: TargetNamespace::Ready,
            suspend: false,
            dry_run: false,
            copy_error: None,
            is_ambiguous: false,
            denied: None,
            policies: Policies::default(),
            contention: None,
            lost: false,
            rewritten: false,
            compared: None,
        }))
    }

    /// A copy that a rule wrote; `None`: an object that is not Runnel's.
    fn observed(resource: &str, rule: Option<&str>) -> Observed {
        let sealed = rule.map(|rule| {
            Box::new(Sealed {
                rule: rule.into(),
                source: SourceRef::new(resource, "team", "s"),
                revision: Revision([1; 16]),
                ignored: BTreeSet::new(),
            })
        });
        Observed::Live(Live {
            uid: "uid".into(),
            version: "1".into(),
            ownership: if rule.is_some() {
                Ownership::Ours
            } else {
                Ownership::Foreign
            },
            adopted: false,
            unproved: None,
            intact: true,
            facts: Facts::default(),
            others: None,
            sealed,
            terminating: false,
            number: 0,
            newest: false,
            applied_at: 0,
        })
    }

    fn changes(resource: &str, rule: Option<&str>) -> Vec<FieldChange> {
        let kind = Kind::by_resource(resource).unwrap();
        let object = json!({
            "apiVersion": "v1", "kind": kind.kind, "metadata": {"name": "s", "namespace": "a"},
            "data": {"color": "c4n4ry"},
        });
        let digests = FieldDigests::from([("/data/color".to_owned(), [0; 16])]);
        let object = serde_json::from_value(object).unwrap();
        diff(
            &wanted(resource),
            &observed(resource, rule),
            &object,
            &digests,
            &FieldsKey([1; 32]),
        )
        .changes
    }

    #[test]
    fn diff_shows_values_of_own_config_maps_alone() {
        let change = |old: Option<&str>| {
            vec![FieldChange {
                path: "/data/color".into(),
                edit: FieldEdit::Change,
                old: old.map(Into::into),
            }]
        };
        assert_eq!(changes("configmaps", Some("r")), change(Some("\"c4n4ry\"")));
        assert_eq!(changes("configmaps", Some("other")), change(None));
        assert_eq!(changes("configmaps", None), change(None));
        assert_eq!(changes("secrets", Some("r")), change(None));
    }

    #[test]
    fn secret_of_others_has_no_diff() {
        assert_eq!(changes("secrets", Some("other")), []);
        assert_eq!(changes("secrets", None), []);
    }
}
