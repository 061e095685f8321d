//! Label selectors, name patterns and the choice of namespaces by both, with Kubernetes' meaning.
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

/// The operator of a [`Requirement`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Operator {
    /// The label exists with one of the values.
    In,
    /// The label is not there, or its value is none of the values.
    NotIn,
    /// The label is there.
    Exists,
    /// The label is not there.
    DoesNotExist,
}

/// A requirement on labels.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Requirement {
    /// The label's key.
    pub key: String,
    /// The operator.
    pub operator: Operator,
    /// The values to compare with; empty for `Exists` and `DoesNotExist`.
    #[serde(default)]
    pub values: Vec<String>,
}

/// A label selector: all requirements must be met. An empty one matches nothing: Runnel does not
/// treat an omission as "everything".
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Selector {
    /// The requirements.
    pub requirements: Vec<Requirement>,
}

impl fmt::Display for Requirement {
    /// Writes the requirement as kubectl reads it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, values) = (&self.key, self.values.join(", "));
        match self.operator {
            Operator::In if self.values.len() == 1 => write!(f, "{key}={values}"),
            Operator::In => write!(f, "{key} in ({values})"),
            Operator::NotIn => write!(f, "{key} notin ({values})"),
            Operator::Exists => write!(f, "{key}"),
            Operator::DoesNotExist => write!(f, "!{key}"),
        }
    }
}

impl fmt::Display for Selector {
    /// Writes the requirements with commas between them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<_> = self.requirements.iter().map(ToString::to_string).collect();
        f.write_str(&all.join(","))
    }
}

impl Selector {
    /// Whether these labels meet every requirement; `false` for a selector without requirements.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        !self.requirements.is_empty()
            && self
                .requirements
                .iter()
                .all(|requirement| requirement.matches(labels))
    }
}

impl Requirement {
    fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        let value = labels.get(&self.key);
        match self.operator {
            Operator::In => value.is_some_and(|value| self.values.contains(value)),
            Operator::NotIn => value.is_none_or(|value| !self.values.contains(value)),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
        }
    }
}

/// An object name, or a glob in which `*` matches any run of characters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Pattern(String);

impl Pattern {
    /// A pattern; `*` is its only special character.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text as written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this is an exact name, not a glob.
    pub fn is_literal(&self) -> bool {
        !self.0.contains('*')
    }

    /// Whether the name matches.
    pub fn matches(&self, name: &str) -> bool {
        if self.is_literal() {
            self.0 == name
        } else {
            wildmatch::WildMatchPattern::<'*', '\0'>::new(&self.0).matches(name)
        }
    }
}

/// Whether any of the patterns matches.
pub fn matches_any(patterns: &[Pattern], name: &str) -> bool {
    patterns.iter().any(|pattern| pattern.matches(name))
}

/// Namespaces of the system and of controllers, as globs: the creation of an object there can be
/// worth as much as a right. No glob and no selector matches them, and members open them by name.
const CLOSED_NAMESPACES: [&str; 24] = [
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
    "argo",
    "azure-arc",
    "external-dns",
    "gke-*",
    "ingress-nginx",
    "rook-ceph",
    "tekton-*",
    "traefik",
    "vault",
];

/// Whether a namespace belongs to the system or to a controller: it is a target only by its exact
/// name, and only if the member's policy names it.
pub fn is_closed_namespace(name: &str) -> bool {
    CLOSED_NAMESPACES.iter().any(|closed| {
        match (closed.strip_prefix('*'), closed.strip_suffix('*')) {
            (Some(end), _) => name.ends_with(end),
            (None, Some(start)) => name.starts_with(start),
            (None, None) => name == *closed,
        }
    })
}

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
    /// Whether a namespace is a target. `runnel_namespace` is Runnel's own namespace.
    pub fn includes(
        &self,
        name: &str,
        labels: &BTreeMap<String, String>,
        runnel_namespace: &str,
    ) -> bool {
        self.includes_name(name, Some(labels), runnel_namespace)
    }

    /// As [`Self::includes`], for a namespace that may not exist: then it has no `labels`, and only
    /// its name counts.
    pub fn includes_name(
        &self,
        name: &str,
        labels: Option<&BTreeMap<String, String>>,
        runnel_namespace: &str,
    ) -> bool {
        self.matches_unless_reserved(
            is_closed_namespace(name) || name == runnel_namespace,
            name,
            labels,
        )
    }

    /// Whether the choice includes a hub namespace whose rules get a grant. Nothing is written
    /// there, so only the namespaces of Kubernetes and Runnel must be named exactly.
    pub fn allows_hub_namespace(
        &self,
        name: &str,
        labels: Option<&BTreeMap<String, String>>,
        runnel_namespace: &str,
    ) -> bool {
        self.matches_unless_reserved(
            name.starts_with("kube-") || name == runnel_namespace,
            name,
            labels,
        )
    }

    fn matches_unless_reserved(
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

    /// Returns the exact names that were removed from `former`, if nothing else changed.
    pub fn dropped_literals<'a>(&self, former: &'a NamespaceChoice) -> BTreeSet<&'a str> {
        let globs = |choice: &NamespaceChoice| -> Vec<Pattern> {
            choice
                .names
                .iter()
                .filter(|name| !name.is_literal())
                .cloned()
                .collect()
        };
        let is_rest_unchanged = (&self.selector, &self.exclude)
            == (&former.selector, &former.exclude)
            && globs(self) == globs(former)
            && self
                .literals()
                .all(|name| former.literals().any(|before| before == name));
        let dropped = former
            .literals()
            .filter(|name| is_rest_unchanged && self.literals().all(|now| now != *name));
        dropped.collect()
    }

    /// Whether the choice names its namespaces one by one.
    pub fn names_all(&self) -> bool {
        self.selector.is_none() && self.names.iter().all(Pattern::is_literal)
    }

    /// Returns the exact names, which are targets even if the namespaces do not exist.
    pub fn wanted_literals(&self) -> impl Iterator<Item = &str> {
        self.literals()
            .filter(|name| !matches_any(&self.exclude, name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect()
    }

    fn selector(key: &str, operator: Operator, values: &[&str]) -> Selector {
        let values = values.iter().map(|v| (*v).to_owned()).collect();
        Selector {
            requirements: vec![Requirement {
                key: key.to_owned(),
                operator,
                values,
            }],
        }
    }

    #[test]
    fn operators_mean_what_kubernetes_means() {
        let prod = labels(&[("env", "prod")]);
        let none = labels(&[]);
        let cases = [
            (
                selector("env", Operator::In, &["prod", "test"]),
                true,
                false,
            ),
            (selector("env", Operator::NotIn, &["prod"]), false, true),
            (selector("env", Operator::Exists, &[]), true, false),
            (selector("env", Operator::DoesNotExist, &[]), false, true),
            (Selector::default(), false, false),
        ];
        for (selector, on_prod, on_none) in cases {
            assert_eq!(selector.matches(&prod), on_prod, "{selector:?}");
            assert_eq!(selector.matches(&none), on_none, "{selector:?}");
        }
    }

    #[test]
    fn star_matches_any_run_of_characters() {
        for (pattern, name, fits) in [
            ("tls-*", "tls-a", true),
            ("tls-*", "tls-", true),
            ("tls-*", "xtls-a", false),
            ("*", "anything", true),
            ("*-ca", "my-ca", true),
            ("a*c*e", "abcde", true),
            ("a*c*e", "abde", false),
            ("a.c", "abc", false),
            ("ca", "ca", true),
            ("ca", "cab", false),
        ] {
            assert_eq!(
                Pattern::new(pattern).matches(name),
                fits,
                "{pattern} {name}"
            );
        }
    }

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
            "argo-test",
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
