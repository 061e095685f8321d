//! Copies: the intent and the revision of a copy, and its outcome.
use std::collections::BTreeMap;
use std::sync::Arc;

use runnel_proto::model::{Payload, Reason, Revision, RuleUid, SourceRef, is_label};

/// The identity of an intent.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct IntentKey {
    /// The rule.
    pub rule: RuleUid,
    /// The source.
    pub source: SourceRef,
}

/// Returns the copies in a namespace among the keys of a map, kind by kind.
pub fn in_namespace<'a, T>(
    map: &'a BTreeMap<SourceRef, T>,
    namespace: &str,
) -> impl Iterator<Item = &'a SourceRef> + use<'a, T> {
    let namespace: Arc<str> = namespace.into();
    resources(map).flat_map(move |resource| {
        let namespace = namespace.clone();
        map.range(SourceRef::new(resource, &namespace, "")..)
            .map(|(copy, _)| copy)
            .take_while(move |copy| copy.resource == *resource && copy.namespace == namespace)
    })
}

/// Returns the copies of a kind among the keys of a map.
pub fn of_kind<'a, T>(
    map: &'a BTreeMap<SourceRef, T>,
    resource: &'a str,
) -> impl Iterator<Item = &'a SourceRef> + use<'a, T> {
    let copies = map.range(SourceRef::new(resource, "", "")..);
    copies
        .map(|(copy, _)| copy)
        .take_while(move |copy| *copy.resource == *resource)
}

/// Returns each kind among the keys of a map once.
fn resources<T>(map: &BTreeMap<SourceRef, T>) -> impl Iterator<Item = &Arc<str>> {
    let first = map.keys().next().map(|copy| &copy.resource);
    std::iter::successors(first, move |resource| {
        // No other name sorts between a kind and its name with a zero byte.
        let next = SourceRef::new(&format!("{resource}\0"), "", "");
        map.range(next..).next().map(|(copy, _)| &copy.resource)
    })
}

/// Returns the value of the label with the rule; `None` if the uid, which the hub chooses, cannot
/// be one.
pub fn rule_label(rule: &RuleUid) -> Option<&str> {
    is_label(rule.as_str()).then(|| rule.as_str())
}

/// A payload of a batch. Without `Debug`: it contains content.
pub struct NewPayload {
    /// The intent of the payload.
    pub key: IntentKey,
    /// Its revision.
    pub revision: Revision,
    /// The content.
    pub payload: Payload,
}

/// The status of a copy, for the report of its rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyStatus {
    /// The copy does not equal its intent yet. There is no error.
    UnderWay,
    /// The copy equals its intent, by the last answers of the API server.
    Applied,
    /// The copy differs from its intent, and the last attempt failed.
    Failed(CopyError),
    /// Its namespace does not exist yet.
    Waiting,
    /// The copy waits for another object, which is under way. Contains what it waits for.
    Delayed(CopyError),
    /// Another client changed or deleted the copy, and the agent does not correct it.
    Drifted(CopyError),
    /// The copy is to be removed and still exists. Contains the error of the last attempt.
    Removing(Option<CopyError>),
    /// The copy is to be removed because its namespace is no longer a target. The removal waits for
    /// the hub's approval.
    PruneRequested,
    /// The rule is a dry run: this change would be made.
    Planned(PlannedChange, CopyError),
}

/// A planned change of a copy, for a rule that is a dry run and for a preview.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlannedChange {
    /// The copy would be created.
    Create,
    /// The copy would be changed.
    Change,
    /// An object that is not ours would be adopted if it is equal.
    AdoptIfEqual,
    /// An object that is not ours would be overwritten.
    Overwrite,
    /// The copy would be deleted.
    Remove,
    /// The copy would be deleted once the hub has approved that.
    Prune,
    /// The copy would be left without marks.
    Retain,
}

impl PlannedChange {
    /// Whether an object that exists would be written.
    pub fn is_update(self) -> bool {
        matches!(self, Self::Change | Self::AdoptIfEqual | Self::Overwrite)
    }

    /// Whether the copy would be removed.
    pub fn is_removal(self) -> bool {
        matches!(self, Self::Remove | Self::Prune | Self::Retain)
    }
}

/// The error of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyError {
    /// The kind of failure.
    pub reason: Reason,
    /// The message for a person, without content.
    pub message: Arc<str>,
}

impl CopyError {
    /// Returns an error.
    pub fn new(reason: Reason, message: impl Into<Arc<str>>) -> Self {
        Self {
            reason,
            message: message.into(),
        }
    }

    /// Whether the API server refuses the content for the object that exists.
    pub fn refuses_content(&self) -> bool {
        matches!(self.reason, Reason::Invalid | Reason::Immutable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_every_kind_in_a_namespace_are_found() {
        let copy = |text: &str| SourceRef::parse(text).unwrap();
        let all = [
            "configmaps/a/x",
            "configmaps/b/x",
            "deployments.apps/a/x",
            "deployments.apps/aa/x",
            "deployments.apps.example.org/b/x",
            "secrets/a/x",
            "secrets/a/y",
        ];
        let map: BTreeMap<_, _> = all.map(|text| (copy(text), ())).into();
        let found = |namespace: &str| -> Vec<String> {
            in_namespace(&map, namespace)
                .map(ToString::to_string)
                .collect()
        };
        let expected = [
            "configmaps/a/x",
            "deployments.apps/a/x",
            "secrets/a/x",
            "secrets/a/y",
        ];
        assert_eq!(found("a"), expected);
        assert_eq!(
            found("b"),
            ["configmaps/b/x", "deployments.apps.example.org/b/x"]
        );
        assert_eq!(found("c"), Vec::<String>::new());
        assert_eq!(in_namespace(&BTreeMap::<_, ()>::new(), "a").count(), 0);
    }
}
