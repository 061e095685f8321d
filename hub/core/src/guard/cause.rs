//! Why items are no longer selected.
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use runnel_api::CauseCount;

/// How many subjects a cause names.
const SUBJECTS: usize = 3;

/// What happened. Of two causes of an item, the later one in this list counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CauseKind {
    /// A reconnected cluster, the subject, has copies that the rule does not select. A cause that
    /// the hub observed itself is more precise.
    Reconnected,
    /// Its literal name was taken out of a list of the rule.
    NameRemoved,
    /// The source or the rule was deleted, or the cluster leaves. The subject is the namespace of a deleted source or
    /// bundle, if there is one.
    Deleted,
    /// The source or the rule was deleted, and the number of such deletes is under the limit. The
    /// subject is the deleted object.
    LimitedDeletion,
    /// A namespace on the hub is being deleted.
    NamespaceDeleted,
    /// The CRD of its kind is being deleted.
    CrdDeleted,
    /// Sources of a namespace were deleted while the hub was away.
    Missed,
    /// A rule was edited.
    RuleEdited,
    /// A rule was reverted to a former state, or its revert ended.
    RuleReverted,
    /// Labels of sources in a namespace changed.
    SourceLabels,
    /// Controllers took over sources in a namespace.
    Controlled,
    /// Sources in a namespace are not distributed any more, for another reason than the annotation of their owner.
    Refused,
    /// A member cluster changed.
    Clusters,
    /// The labels of a namespace of the hub, by which grants choose, changed.
    HubNamespaces,
    /// A grant changed.
    Grants,
    /// A grant was deleted.
    GrantDeleted,
    /// Namespaces in member clusters are no longer targets of a rule.
    TargetNamespaces,
    /// A reconnected cluster has copies that the rule did not select, perhaps from blocked removals
    /// of an earlier process of the hub.
    Carried,
}

impl CauseKind {
    /// The cause of this kind with the name of its subject.
    pub fn of(self, subject: impl Into<Arc<str>>) -> Cause {
        Cause {
            kind: self,
            subject: subject.into(),
        }
    }

    /// Whether a user deleted exactly this item.
    pub fn is_deliberate(self) -> bool {
        matches!(self, CauseKind::NameRemoved | CauseKind::Deleted)
    }

    /// Whether the process cannot tell more than that a reported copy is not selected.
    pub fn is_found(self) -> bool {
        matches!(
            self,
            CauseKind::Reconnected | CauseKind::Missed | CauseKind::Carried
        )
    }

    fn describe(self, subjects: &BTreeSet<&str>) -> String {
        let named = |noun: &str| named(noun, subjects);
        match self {
            CauseKind::NameRemoved | CauseKind::RuleEdited => {
                format!("{} was edited", named("rule"))
            }
            CauseKind::RuleReverted => {
                format!("{} was reverted, or its revert ended", named("rule"))
            }
            CauseKind::Deleted | CauseKind::LimitedDeletion => {
                format!("{} was deleted", list(subjects))
            }
            CauseKind::NamespaceDeleted => format!("{} on the hub was deleted", named("namespace")),
            CauseKind::CrdDeleted => format!("{} was deleted", named("CRD")),
            CauseKind::Missed
            | CauseKind::SourceLabels
            | CauseKind::Controlled
            | CauseKind::Refused => {
                // Sources without namespaces have no subject.
                let place = if subjects.is_empty() {
                    String::new()
                } else {
                    format!(" in {}", named("namespace"))
                };
                match self {
                    CauseKind::Missed => {
                        format!("sources{place} were deleted while the hub was away")
                    }
                    CauseKind::SourceLabels => format!("labels of sources{place} changed"),
                    CauseKind::Controlled => format!("controllers took over sources{place}"),
                    _ => format!("sources{place} are no longer distributed"),
                }
            }
            CauseKind::Clusters => format!("labels of {} changed", named("member cluster")),
            CauseKind::HubNamespaces => {
                format!("labels of {} on the hub changed", named("namespace"))
            }
            CauseKind::Grants => format!("{} changed", named("grant")),
            CauseKind::GrantDeleted => format!("{} was deleted", named("grant")),
            CauseKind::TargetNamespaces => format!(
                "namespaces in member clusters are no longer targets of {}",
                named("rule")
            ),
            CauseKind::Reconnected | CauseKind::Carried => format!(
                "{} reconnected with copies that are not selected",
                named("member cluster")
            ),
        }
    }
}

/// Why an item is no longer selected. Removals of equal causes belong together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cause {
    /// What happened.
    pub kind: CauseKind,
    /// The name of the object to which it happened.
    pub subject: Arc<str>,
}

/// A clause for people about the strongest kind among causes; `None` without causes.
pub(super) fn describe<'a>(causes: impl Iterator<Item = &'a Cause> + Clone) -> Option<String> {
    let kind = strongest(causes.clone())?;
    let subjects = causes
        .filter(|cause| cause.kind == kind)
        .map(|cause| &*cause.subject)
        .filter(|subject| !subject.is_empty())
        .collect();
    let text = kind.describe(&subjects);
    Some(text.chars().take(runnel_api::limits::MESSAGE).collect())
}

/// Several causes of different kinds with their numbers of copies, most copies first; nothing for one kind.
pub(super) fn counts(by_cause: &BTreeMap<Cause, u64>) -> Vec<CauseCount> {
    let kinds: BTreeSet<_> = by_cause.keys().map(|cause| cause.kind).collect();
    let count = |kind: CauseKind| {
        let of_kind = || by_cause.iter().filter(move |(cause, _)| cause.kind == kind);
        let copies = of_kind().fold(0u64, |sum, (_, copies)| sum.saturating_add(*copies));
        CauseCount {
            cause: describe(of_kind().map(|(cause, _)| cause)).unwrap_or_default(),
            copies: i64::try_from(copies).unwrap_or(i64::MAX),
        }
    };
    if kinds.len() < 2 {
        return Vec::new();
    }
    let mut counts: Vec<_> = kinds.into_iter().map(count).collect();
    counts.sort_by_key(|count| Reverse(count.copies));
    counts.truncate(runnel_api::limits::CAUSES);
    counts
}

/// The kind that counts among causes.
pub(super) fn strongest<'a>(causes: impl Iterator<Item = &'a Cause>) -> Option<CauseKind> {
    causes.map(|cause| cause.kind).max()
}

fn named(noun: &str, subjects: &BTreeSet<&str>) -> String {
    match subjects.len() {
        0 => format!("{noun}s"),
        1 => format!("{noun} {}", list(subjects)),
        _ => format!("{noun}s {}", list(subjects)),
    }
}

fn list(subjects: &BTreeSet<&str>) -> String {
    let first: Vec<_> = subjects.iter().take(SUBJECTS).copied().collect();
    let more = subjects.len() - first.len();
    let first = first.join(", ");
    if more > 0 {
        format!("{first} and {more} more")
    } else {
        first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strongest_kind_names_its_subjects() {
        let one = [CauseKind::Clusters.of("eu-1")];
        assert_eq!(
            describe(one.iter()).unwrap(),
            "labels of member cluster eu-1 changed"
        );
        let many: Vec<_> = (1..=5)
            .map(|number| CauseKind::Clusters.of(format!("eu-{number}")))
            .chain([CauseKind::RuleEdited.of("team/one")])
            .collect();
        assert_eq!(
            describe(many.iter()).unwrap(),
            "labels of member clusters eu-1, eu-2, eu-3 and 2 more changed"
        );
        assert_eq!(
            describe([CauseKind::SourceLabels.of("")].iter()).unwrap(),
            "labels of sources changed"
        );
        assert_eq!(
            describe([CauseKind::Missed.of("shop")].iter()).unwrap(),
            "sources in namespace shop were deleted while the hub was away"
        );
        assert_eq!(
            describe([CauseKind::Grants.of("")].iter()).unwrap(),
            "grants changed"
        );
        assert_eq!(describe([].iter()), None);
    }
}
