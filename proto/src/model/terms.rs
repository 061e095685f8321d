//! The terms of a rule, for all its intents.
use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{Allowance, FeedbackField, FieldPath, Grant, NamespaceChoice, RuleName};

/// The policy for a foreign object with the name of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ConflictPolicy {
    /// Leave it alone and report a conflict.
    #[default]
    Fail,
    /// Adopt it if its content equals the desired content; otherwise as `Fail`.
    AdoptIfEqual,
    /// Overwrite it; its content is lost.
    Overwrite,
}

/// The policy for a copy that differs from its intent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum DriftPolicy {
    /// Restore it.
    #[default]
    Correct,
    /// Leave it so and report it, until the source changes.
    Report,
}

/// Whether a rule's decisions are carried out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Enforcement {
    /// Decisions are carried out.
    #[default]
    Enforce,
    /// They are reported only: nothing is written.
    DryRun,
}

/// The policy for a change of an immutable copy, or of an immutable field such as a Secret's type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ImmutablePolicy {
    /// Leave the copy unchanged and report a failure.
    #[default]
    Report,
    /// Delete the copy and create it again.
    Recreate,
}

/// The policy for a copy that is no longer desired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum DeletionPolicy {
    /// Delete the copy.
    #[default]
    Delete,
    /// Keep the object without our marks.
    Retain,
}

/// What happens to the objects that a copy owns, such as the pods of a workload, when it is deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Propagation {
    /// They are deleted after it.
    #[default]
    Background,
    /// They are deleted before it.
    Foreground,
    /// They stay.
    Orphan,
}

/// Opaque digest of terms, made by the hub; an agent only gives it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TermsDigest(pub [u8; 16]);

/// Opaque digest of copies to prune, created by the agent; the hub only returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PruneDigest(pub [u8; 16]);

/// The settings of a rule for all its intents, besides their content.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// The owning rule's name.
    pub rule: RuleName,
    /// When the rule was created, in seconds since 1970. Of two rules with one copy, the older one
    /// wins.
    pub created_at: i64,
    /// Absent: the source's own namespace.
    pub namespaces: Option<NamespaceChoice>,
    /// Whether missing namespaces that are named literally are created.
    pub create_namespaces: bool,
    /// For objects that are not ours.
    pub conflict_policy: ConflictPolicy,
    /// For our copies.
    pub drift_policy: DriftPolicy,
    /// For copies that are no longer desired.
    pub deletion_policy: DeletionPolicy,
    /// For deletions of copies, those that make room for a recreated one too.
    #[serde(default, skip_serializing_if = "is_default")]
    pub propagation: Propagation,
    /// Nothing is created, corrected or removed.
    pub suspend: bool,
    /// Whether the agent writes, or only reports what it would write.
    #[serde(default)]
    pub enforcement: Enforcement,
    /// For changes that an immutable copy does not take.
    #[serde(default)]
    pub immutable_policy: ImmutablePolicy,
    /// The fields that are written at creation only.
    #[serde(default)]
    pub ignore_fields: BTreeSet<FieldPath>,
    /// The number of versions of a copy that are kept, the newest included; absent: copies are
    /// changed in place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub versions: Option<u32>,
    /// The fields of copies that the agent returns, at most [`FEEDBACK_LIMIT`](super::FEEDBACK_LIMIT).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub feedback: Vec<FeedbackField>,
    /// The grant of the rule in this cluster; absent: everything. A copy exists where the rule
    /// requests it and the grant allows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grants: Option<Vec<Grant>>,
}

/// Terms of before a field was added keep their digest.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Serialize for RuleName {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (&self.kind, &self.namespace, &self.name).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for RuleName {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (kind, namespace, name) = Deserialize::deserialize(deserializer)?;
        Ok(Self {
            kind,
            namespace,
            name,
        })
    }
}

impl Terms {
    /// Whether decisions are reported and not carried out.
    pub fn is_dry_run(&self) -> bool {
        self.enforcement == Enforcement::DryRun
    }

    /// Whether existing copies are left unchanged: the rule is suspended or a dry run.
    pub fn is_frozen(&self) -> bool {
        self.suspend || self.is_dry_run()
    }

    /// The precedence of two rules with one copy, smallest first: cluster-scoped rules, then the
    /// older, then namespace and name.
    pub fn precedence(&self) -> (bool, i64, &str, &str) {
        (
            !self.rule.is_cluster_scoped(),
            self.created_at,
            &self.rule.namespace,
            &self.rule.name,
        )
    }
}

impl Terms {
    /// Whether any copy of a kind is granted at all.
    pub fn grants_kind(&self, resource: &str) -> bool {
        self.grants
            .as_ref()
            .is_none_or(|grants| grants.iter().any(|grant| grant.is_of_kind(resource)))
    }

    /// Returns the allowance for copies of a kind in a namespace; `None`: no copy is allowed.
    /// Without `labels` the namespace does not exist. `runnel_namespace` is Runnel's own namespace.
    ///
    /// An empty `namespace` is the cluster: only cluster-scoped rules, which need no grant, have copies of kinds without
    /// namespaces.
    pub fn allowance(
        &self,
        resource: &str,
        namespace: &str,
        labels: Option<&BTreeMap<String, String>>,
        runnel_namespace: &str,
    ) -> Option<Allowance> {
        if namespace.is_empty() && !self.rule.is_cluster_scoped() {
            return None;
        }
        let Some(grants) = &self.grants else {
            return Some(Allowance::UNLIMITED);
        };
        let fits = |grant: &&Grant| {
            grant.is_of_kind(resource) && grant.includes(namespace, labels, runnel_namespace)
        };
        grants
            .iter()
            .filter(fits)
            .fold(None, |sum: Option<Allowance>, grant| {
                let (max_copies, max_bytes) = (Some(0), Some(0));
                Some(
                    sum.unwrap_or(Allowance {
                        max_copies,
                        max_bytes,
                        ..Allowance::default()
                    })
                    .and(grant),
                )
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Pattern;

    fn terms(grants: Option<Vec<Grant>>) -> Terms {
        Terms {
            rule: RuleName {
                namespace: "shop".into(),
                ..RuleName::default()
            },
            create_namespaces: true,
            grants,
            ..Terms::default()
        }
    }

    fn grant(resource: &str, names: &[&str]) -> Grant {
        let names = names.iter().map(|name| Pattern::new(*name)).collect();
        let namespaces = Some(NamespaceChoice {
            names,
            ..NamespaceChoice::default()
        });
        Grant {
            resources: vec![resource.to_owned()],
            namespaces,
            ..Grant::default()
        }
    }

    #[test]
    fn grants_add_up_per_kind_and_namespace() {
        let own = |resource: &str, namespace: &str, terms: &Terms| {
            terms.allowance(resource, namespace, Some(&BTreeMap::new()), "runnel-system")
        };
        let all = terms(None);
        assert_eq!(
            own("secrets", "kube-system", &all),
            Some(Allowance::UNLIMITED)
        );
        let creates = Grant {
            create_namespaces: true,
            ..grant("configmaps", &["b"])
        };
        let some = terms(Some(vec![grant("configmaps", &["team-*", "b"]), creates]));
        assert_eq!(
            own("configmaps", "team-a", &some),
            Some(Allowance::default())
        );
        assert_eq!(
            own("configmaps", "b", &some),
            Some(Allowance {
                create_namespaces: true,
                ..Allowance::default()
            })
        );
        assert_eq!(own("configmaps", "c", &some), None);
        assert_eq!(own("secrets", "b", &some), None);
        assert!(some.grants_kind("configmaps") && !some.grants_kind("secrets"));
        assert_eq!(own("configmaps", "b", &terms(Some(vec![]))), None);
    }

    #[test]
    fn only_cluster_scoped_rule_has_cluster_scoped_copies() {
        let priorities = "priorityclasses.scheduling.k8s.io";
        let all = Grant {
            resources: vec![priorities.to_owned()],
            ..Grant::default()
        };
        let of_cluster = Terms::default();
        for (terms, expected) in [
            (&of_cluster, Some(Allowance::UNLIMITED)),
            (&terms(None), None),
            (&terms(Some(vec![all])), None),
        ] {
            assert_eq!(
                terms.allowance(priorities, "", None, "runnel-system"),
                expected
            );
        }
    }

    #[test]
    fn higher_limit_of_two_grants_applies() {
        let limit = |max_copies, max_bytes| Grant {
            max_copies,
            max_bytes,
            ..grant("secrets", &["a"])
        };
        let limits = |grants: Vec<Grant>| {
            let allowance = terms(Some(grants))
                .allowance("secrets", "a", None, "r")
                .unwrap();
            (allowance.max_copies, allowance.max_bytes)
        };
        assert_eq!(limits(vec![limit(Some(3), None)]), (Some(3), None));
        assert_eq!(
            limits(vec![limit(Some(3), Some(9)), limit(Some(5), Some(7))]),
            (Some(5), Some(9))
        );
        assert_eq!(
            limits(vec![limit(Some(3), Some(9)), limit(None, Some(7))]),
            (None, Some(9))
        );
    }
}
