//! The terms of a rule, for all its intents.
use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{FieldPath, Grant, Pattern, RuleName, Selector, matches_any};

/// Namespaces of the system and of controllers, as globs: the creation of an object there can be
/// worth as much as a right. No glob and no selector matches them, and members open them by name.
const CLOSED_NAMESPACES: [&str; 15] = [
    "kube-*",
    "*-system",
    "openshift",
    "openshift-*",
    "argocd",
    "argo-cd",
    "cert-manager",
    "cattle-*",
    "linkerd*",
    "calico-*",
    "kyverno",
    "tigera-operator",
    "external-secrets",
    "open-cluster-management*",
    "velero",
];

/// Whether a namespace is one of the system or of a controller: it takes copies only by its very name, and only where the
/// member's policy names it.
pub fn is_closed_namespace(name: &str) -> bool {
    CLOSED_NAMESPACES.iter().any(|closed| {
        match (closed.strip_prefix('*'), closed.strip_suffix('*')) {
            (Some(end), _) => name.ends_with(end),
            (None, Some(start)) => name.starts_with(start),
            (None, None) => name == *closed,
        }
    })
}

/// What to do with an object that is not ours and has the name of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ConflictPolicy {
    /// Leave it alone and report a conflict.
    #[default]
    Fail,
    /// Take it over if its content equals the desired content; otherwise as `Fail`.
    AdoptIfEqual,
    /// Take it over in any case; what it held is lost.
    Overwrite,
}

/// What to do with a copy that differs from its intent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum DriftPolicy {
    /// Put it back.
    #[default]
    Correct,
    /// Leave it so and report it, until the source changes.
    Report,
}

/// Whether a rule's decisions are carried out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Enforcement {
    /// They are carried out.
    #[default]
    Enforce,
    /// They are reported only: nothing is written.
    DryRun,
}

/// What to do where a change meets an immutable copy, or an immutable field such as a Secret's type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ImmutablePolicy {
    /// Leave the copy as it is and report a failure.
    #[default]
    Report,
    /// Delete the copy and create it again.
    Recreate,
}

/// What happens to a copy that is no longer desired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum DeletionPolicy {
    /// It is deleted.
    #[default]
    Delete,
    /// It stays, without our marks.
    Retain,
}

/// Opaque digest of terms, made by the hub; an agent only gives it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TermsDigest(pub [u8; 16]);

/// Opaque digest of copies that are to go, made by the agent; a hub only gives it
/// back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AskedDigest(pub [u8; 16]);

/// Target namespaces by name, glob and label; entries add up, `exclude` subtracts.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NamespaceChoice {
    /// Names and globs. Globs never match [closed](is_closed_namespace) namespaces or that of Runnel; an exact name may.
    pub names: Vec<Pattern>,
    /// By label. Never matches closed namespaces or that of Runnel.
    pub selector: Option<Selector>,
    /// Names and globs that are subtracted.
    pub exclude: Vec<Pattern>,
}

impl NamespaceChoice {
    /// Whether a namespace is a target. `runnel_namespace` is the one that Runnel itself lives in.
    pub fn includes(
        &self,
        name: &str,
        labels: &BTreeMap<String, String>,
        runnel_namespace: &str,
    ) -> bool {
        self.takes(name, Some(labels), runnel_namespace)
    }

    /// The same of a namespace that may not exist: then it has no `labels`, and only its name counts.
    pub fn takes(
        &self,
        name: &str,
        labels: Option<&BTreeMap<String, String>>,
        runnel_namespace: &str,
    ) -> bool {
        self.takes_unless(
            is_closed_namespace(name) || name == runnel_namespace,
            name,
            labels,
        )
    }

    /// Whether it covers a namespace of the hub, whose rules get the grant. Nothing is written
    /// there, so only the namespaces of Kubernetes and Runnel must be named exactly.
    pub fn allows_hub_namespace(
        &self,
        name: &str,
        labels: Option<&BTreeMap<String, String>>,
        runnel_namespace: &str,
    ) -> bool {
        self.takes_unless(
            name.starts_with("kube-") || name == runnel_namespace,
            name,
            labels,
        )
    }

    fn takes_unless(
        &self,
        reserved: bool,
        name: &str,
        labels: Option<&BTreeMap<String, String>>,
    ) -> bool {
        if matches_any(&self.exclude, name) {
            return false;
        }
        if self.literals().any(|literal| literal == name) {
            return true;
        }
        let by_label = || {
            self.selector
                .as_ref()
                .zip(labels)
                .is_some_and(|(selector, labels)| selector.matches(labels))
        };
        !reserved && (matches_any(&self.names, name) || by_label())
    }

    /// The exact names, excluded ones too.
    pub fn literals(&self) -> impl Iterator<Item = &str> {
        self.names
            .iter()
            .filter(|pattern| pattern.is_literal())
            .map(Pattern::as_str)
    }

    /// The exact names that were taken out of `former`, if that is all that became of it.
    pub fn dropped_literals<'a>(&self, former: &'a NamespaceChoice) -> BTreeSet<&'a str> {
        let globs = |choice: &NamespaceChoice| -> Vec<Pattern> {
            choice
                .names
                .iter()
                .filter(|name| !name.is_literal())
                .cloned()
                .collect()
        };
        let rest_stays = (&self.selector, &self.exclude) == (&former.selector, &former.exclude)
            && globs(self) == globs(former)
            && self
                .literals()
                .all(|name| former.literals().any(|before| before == name));
        let dropped = former
            .literals()
            .filter(|name| rest_stays && self.literals().all(|now| now != *name));
        dropped.collect()
    }

    /// The exact names that are targets whether or not such a namespace exists.
    pub fn wanted_literals(&self) -> impl Iterator<Item = &str> {
        self.literals()
            .filter(|name| !matches_any(&self.exclude, name))
    }
}

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
    /// Nothing is created, corrected or removed.
    pub suspend: bool,
    /// Whether the agent writes, or only reports what it would write.
    #[serde(default)]
    pub enforcement: Enforcement,
    /// For changes that an immutable copy does not take.
    #[serde(default)]
    pub immutable_policy: ImmutablePolicy,
    /// What is written when a copy is created, and never compared or written again.
    #[serde(default)]
    pub ignore_fields: BTreeSet<FieldPath>,
    /// The number of versions of a copy that are kept, the newest included, if the rule uses
    /// versioned names; absent: copies are changed in place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub versions: Option<u32>,
    /// The grant of the rule in this cluster; absent: everything. A copy exists where the rule
    /// requests it and the grant allows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grants: Option<Vec<Grant>>,
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

    /// Whether existing copies stay as they are: the rule is suspended or a dry run.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chart_closes_the_same_namespaces() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../deploy/charts/runnel-agent/templates/_helpers.tpl"
        );
        let helpers = std::fs::read_to_string(path).unwrap();
        let (_, definition) = helpers
            .split_once("{{- define \"runnel-agent.reserved\" -}}\n")
            .unwrap();
        let (list, _) = definition.split_once("\n{{- end -}}").unwrap();
        let closed: Vec<String> = serde_json::from_str(list).unwrap();
        assert_eq!(closed, CLOSED_NAMESPACES, "{path}");
    }
    use crate::model::{Operator, Requirement};

    #[test]
    fn globs_and_selectors_skip_reserved_namespaces() {
        let everything = NamespaceChoice {
            names: vec![Pattern::new("*")],
            ..NamespaceChoice::default()
        };
        let none = BTreeMap::new();
        assert!(everything.includes("team-a", &none, "runnel-system"));
        assert!(!everything.includes("kube-system", &none, "runnel-system"));
        assert!(!everything.includes("runnel-system", &none, "runnel-system"));

        for closed in [
            "istio-system",
            "openshift",
            "openshift-etcd",
            "argocd",
            "cert-manager",
            "linkerd-viz",
            "velero",
        ] {
            assert!(
                !everything.includes(closed, &none, "runnel-system"),
                "{closed}"
            );
            assert!(
                everything.allows_hub_namespace(closed, Some(&none), "runnel-system"),
                "{closed}"
            );
        }
        for open in [
            "systems",
            "my-openshift",
            "argo",
            "cert-manager-test",
            "system",
        ] {
            assert!(everything.includes(open, &none, "runnel-system"), "{open}");
        }

        let exact = NamespaceChoice {
            names: vec![Pattern::new("kube-system")],
            ..NamespaceChoice::default()
        };
        assert!(exact.includes("kube-system", &none, "runnel-system"));

        let labels = BTreeMap::from([("team".to_owned(), "a".to_owned())]);
        let team = Requirement {
            key: "team".into(),
            operator: Operator::Exists,
            values: vec![],
        };
        let by_label = NamespaceChoice {
            selector: Some(Selector {
                requirements: vec![team],
            }),
            exclude: vec![Pattern::new("*-old")],
            ..NamespaceChoice::default()
        };
        assert!(by_label.includes("x", &labels, "runnel-system"));
        assert!(!by_label.includes("x-old", &labels, "runnel-system"));
        assert!(!by_label.includes("kube-x", &labels, "runnel-system"));
        assert!(!by_label.includes("x", &none, "runnel-system"));
    }

    #[test]
    fn excluded_literal_is_not_selected() {
        let choice = NamespaceChoice {
            names: vec![Pattern::new("a"), Pattern::new("b"), Pattern::new("c-*")],
            exclude: vec![Pattern::new("b")],
            selector: None,
        };
        assert_eq!(choice.wanted_literals().collect::<Vec<_>>(), ["a"]);
    }
}
