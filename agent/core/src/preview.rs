//! Decides previewed copies like real copies, without writing. Pure.
//!
//! The records of the agent answer most of a preview. The watches do not show foreign objects, so
//! the agent reads the object that blocks a copy ([`Open`](crate::decide::PreviewInput::Open)).
//! [`preview`] then decides by the observed object.
//!
//! The answer never discloses whether a foreign Secret equals the previewed content. The author of
//! a preview chooses that content, and could guess a value with repeated previews, without a trace.
//! So both cases have the same answer ([`is_undisclosed`]). The agent sends no dry run for such a copy
//! either, because the API server may distinguish the cases.
use std::collections::{BTreeMap, BTreeSet};

use kube_core::DynamicObject;
use runnel_proto::model::{
    ContentRules, FieldDiff, FieldDigests, FieldsKey, Kind, PreviewOutcome, PreviewResult,
    PreviewedCopy, SourceRef,
};

use crate::copy::{CopyStatus, PlannedChange};
use crate::decide::{
    Action, Decision, DesiredCopy, PreviewDecision, WantedCopy, decide, differs, is_sealed_for,
    plan,
};
use crate::diff;
use crate::live::{Live, Ownership, Sealed};
use crate::records::Observed;

/// The result for one copy.
pub struct PreviewFinding {
    /// The copy.
    pub copy: SourceRef,
    /// Its source.
    pub source: SourceRef,
    /// The outcome; `None` if there is nothing to report.
    pub outcome: Option<PreviewDecision>,
    /// The paths that differ.
    pub diff: FieldDiff,
    /// The copies that must exist before this one is removed.
    pub after: Vec<SourceRef>,
}

/// Whether a rule adopts an object that Runnel did not create: it adds marks alone.
pub fn adopts(desired: &DesiredCopy, observed: &Observed) -> bool {
    let is_retained =
        matches!(observed, Observed::Live(live) if live.ownership == Ownership::Retained);
    let decision = decide(desired, observed);
    matches!(decision, Decision::Act(Action::Adopt(_))) && !is_retained
}

/// Whether the answer must not disclose if the live object equals the previewed content.
///
/// This holds for a Secret that is not the agent's own copy of this source by this rule. The author
/// of the preview may have no permission to read the Secret of another rule or source.
pub fn is_undisclosed(want: &DesiredCopy, observed: &Observed) -> bool {
    let DesiredCopy::Copy(wanted) = want else {
        return false;
    };
    let is_plain = !ContentRules::of(&wanted.intent.source.resource).sensitive;
    let key = &wanted.intent;
    let is_of_it =
        |sealed: &Sealed| sealed.rule == key.rule && sealed.source.plain() == key.source.plain();
    let is_own = |live: &Live| live.is_own() && live.sealed.as_deref().is_some_and(is_of_it);
    !is_plain && matches!(observed, Observed::Live(live) if !is_own(live))
}

/// Returns the paths in which the live object differs from the previewed content.
///
/// Values are shown only for the agent's own copy of this intent, and never for a Secret. The
/// result is empty for a Secret whose equality is [not disclosed](is_undisclosed).
pub fn diff(
    kind: &Kind,
    want: &DesiredCopy,
    observed: &Observed,
    object: &DynamicObject,
    digests: &FieldDigests,
    key: &FieldsKey,
) -> FieldDiff {
    let DesiredCopy::Copy(wanted) = want else {
        return FieldDiff::default();
    };
    if is_undisclosed(want, observed) {
        return FieldDiff::default();
    }
    let shows_values = shows_values(wanted, observed);
    let ignored = &wanted.policies.ignored;
    diff::diff(kind, object, (digests, key), ignored, shows_values)
}

/// Returns the paths in which the live object differs from the answer to a dry run of its apply, with the same values as
/// [`diff()`].
pub fn applied_diff(
    want: &DesiredCopy,
    observed: &Observed,
    object: &DynamicObject,
    applied: &DynamicObject,
) -> FieldDiff {
    match want {
        DesiredCopy::Copy(wanted) if !is_undisclosed(want, observed) => {
            let ignored = &wanted.policies.ignored;
            diff::applied_diff(object, applied, ignored, shows_values(wanted, observed))
        }
        _ => FieldDiff::default(),
    }
}

/// Whether a preview may show present values of the copy.
fn shows_values(wanted: &WantedCopy, observed: &Observed) -> bool {
    let is_own = matches!(observed, Observed::Live(live) if live.is_own());
    let is_sensitive = ContentRules::of(&wanted.intent.source.resource).sensitive;
    !is_sensitive && is_own && is_sealed_for(wanted, observed)
}

/// Returns the outcome of a copy for an observed object: the [`plan`] of a dry run, with details.
///
/// `is_equal`: whether the object's fields equal those of the intent; `None` if that is unknown. It has no effect if the
/// equality is [not disclosed](is_undisclosed).
pub fn preview(
    want: &DesiredCopy,
    observed: &Observed,
    is_equal: Option<bool>,
) -> Option<PreviewDecision> {
    let status = match plan(want, observed) {
        Decision::Forget | Decision::Act(Action::Read) => return None,
        // The fields that differ stay as they are.
        Decision::Act(_) => return Some((PreviewOutcome::Unchanged, None)),
        Decision::Noop(status) => status,
    };
    let is_equal = is_equal.filter(|_| !is_undisclosed(want, observed));
    let previewed = match status {
        CopyStatus::Failed(copy_error) => {
            return Some((PreviewOutcome::Refused, Some(copy_error)));
        }
        CopyStatus::Drifted(copy_error) => {
            return Some((PreviewOutcome::Unchanged, Some(copy_error)));
        }
        CopyStatus::Delayed(copy_error) => {
            return Some((PreviewOutcome::Wait, Some(copy_error)));
        }
        CopyStatus::Applied => PreviewOutcome::Unchanged,
        CopyStatus::UnderWay | CopyStatus::Removing(_) => PreviewOutcome::Noop,
        CopyStatus::Waiting => PreviewOutcome::Wait,
        CopyStatus::PruneRequested => PreviewOutcome::Prune,
        CopyStatus::Planned(change, _) => match change {
            PlannedChange::Create => PreviewOutcome::Create,
            PlannedChange::Change => PreviewOutcome::Change,
            PlannedChange::AdoptIfEqual if is_equal.is_none() => PreviewOutcome::AdoptIfEqual,
            PlannedChange::AdoptIfEqual if is_equal == Some(false) => return refused(observed),
            PlannedChange::Overwrite if is_equal != Some(true) => PreviewOutcome::Overwrite,
            PlannedChange::AdoptIfEqual | PlannedChange::Overwrite => PreviewOutcome::Adopt,
            PlannedChange::Remove => PreviewOutcome::Remove,
            PlannedChange::Prune => PreviewOutcome::Prune,
            PlannedChange::Retain => PreviewOutcome::Retain,
        },
    };
    Some((previewed, None))
}

fn refused(observed: &Observed) -> Option<PreviewDecision> {
    match observed {
        Observed::Live(live) => Some((PreviewOutcome::Refused, Some(differs(live)))),
        _ => None,
    }
}

/// Whether the outcome is a write.
pub fn writes(previewed: PreviewOutcome) -> bool {
    use PreviewOutcome::{Adopt, AdoptIfEqual, Change, Create, Overwrite};
    matches!(
        previewed,
        Create | Change | Adopt | AdoptIfEqual | Overwrite
    )
}

/// Builds the answer, ordered by copy. A copy that waits for another copy stays unchanged if that
/// other copy will not exist.
pub fn answer(question: u64, found: Vec<PreviewFinding>, more: u32) -> PreviewResult {
    let keeps_object =
        |outcome: &PreviewDecision| writes(outcome.0) || outcome.0 == PreviewOutcome::Unchanged;
    let present: BTreeSet<_> = found
        .iter()
        .filter(|one| one.outcome.as_ref().is_some_and(keeps_object))
        .map(|one| one.copy.clone())
        .collect();
    let outcome = found.into_iter().filter_map(|one| {
        let waits = one.after.iter().any(|before| !present.contains(before));
        let (previewed, copy_error) = one.outcome?;
        let previewed = if waits {
            PreviewOutcome::Noop
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

    fn wanted(resource: &str) -> DesiredCopy {
        DesiredCopy::Copy(Box::new(WantedCopy {
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
            finished: false,
            orphaned: false,
            compared: None,
        }))
    }

    /// Returns a copy that a rule wrote; `None`: a foreign object.
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
            is_shared: false,
            is_widened: false,
            terminating: None,
            number: 0,
            newest: false,
            names_member: true,
            applied_at: 0,
            health: None,
            finished: false,
            feedback: None,
        })
    }

    fn changes(resource: &str, rule: Option<&str>) -> Vec<FieldChange> {
        let kind = Kind::by_resource(resource).unwrap();
        let object = json!({
            "apiVersion": "v1", "kind": &*kind.kind, "metadata": {"name": "s", "namespace": "a"},
            "data": {"color": "c4n4ry"},
        });
        let digests = FieldDigests::from([("/data/color".to_owned(), [0; 16])]);
        let object = serde_json::from_value(object).unwrap();
        diff(
            kind,
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
