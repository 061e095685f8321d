//! Kinds of objects. A kind is a value: what an API server serves, with the rules for its content.
//!
//! [`Kind::supported`] lists the kinds that this build distributes. Watches, plans, messages, CRDs, grants and policies
//! read it. ARCHITECTURE.md lists the other places that name kinds, such as the charts.
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, LazyLock};

/// A kind of objects, as an API server serves it. Clones share it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kind(Arc<ServedKind>);

/// The names under which an API server serves a kind, and the rules for its content.
#[derive(Debug)]
pub struct ServedKind {
    /// `plural[.group]`, as in RBAC and in a rule's `resources`: the identity of the kind, on the wire too. Clusters may
    /// serve it in different versions.
    pub resource: Arc<str>,
    /// API group; empty for the core group.
    pub group: Box<str>,
    /// API version.
    pub version: Box<str>,
    /// Group and version, as in `apiVersion`.
    pub api_version: Box<str>,
    /// The kind, as in a manifest.
    pub kind: Box<str>,
    /// The plural alone, as in a URL.
    pub plural: Box<str>,
    /// The rules for its content.
    pub content: &'static ContentRules,
}

/// What Runnel knows about the content of a kind.
#[derive(Debug, PartialEq, Eq)]
pub struct ContentRules {
    /// Top-level fields that make up the content, besides labels and annotations. Empty for a kind without rules of its
    /// own: its content is every field that another cluster can have.
    pub fields: &'static [&'static str],
    /// Those of [`ContentRules::fields`] that are maps with keys of ours alone: a surplus key is removed
    /// from a copy.
    pub exact_maps: &'static [&'static str],
    /// Whether values are secret: messages of the API server about such an object are never
    /// forwarded.
    pub sensitive: bool,
    /// Values of the top-level field `type` that are never distributed (a trailing `*` matches any rest).
    pub refused_types: &'static [&'static str],
    /// Object names that every cluster makes itself and that are never distributed.
    pub refused_names: &'static [&'static str],
}

/// The rules for ConfigMaps.
const CONFIG_MAP: ContentRules = ContentRules {
    fields: &["binaryData", "data", "immutable"],
    exact_maps: &["binaryData", "data"],
    sensitive: false,
    refused_types: &[],
    refused_names: &[
        "kube-root-ca.crt",
        "openshift-service-ca.crt",
        "istio-ca-root-cert",
    ],
};

/// The rules for Secrets.
const SECRET: ContentRules = ContentRules {
    fields: &["data", "immutable", "type"],
    exact_maps: &["data"],
    sensitive: true,
    refused_types: &[
        "kubernetes.io/service-account-token",
        "bootstrap.kubernetes.io/token",
        "helm.sh/release*",
    ],
    refused_names: &[],
};

/// The rules for every other kind.
const OTHER: ContentRules = ContentRules {
    fields: &[],
    exact_maps: &[],
    sensitive: false,
    refused_types: &[],
    refused_names: &[],
};

/// The kinds of [`Kind::supported`].
static SUPPORTED: LazyLock<[Kind; 2]> = LazyLock::new(|| {
    [
        Kind::new("", "v1", "ConfigMap", "configmaps"),
        Kind::new("", "v1", "Secret", "secrets"),
    ]
});

impl Kind {
    /// A kind of this group, version, kind and plural.
    pub fn new(group: &str, version: &str, kind: &str, plural: &str) -> Self {
        let (resource, api_version): (Arc<str>, Box<str>) = match group {
            "" => (plural.into(), version.into()),
            group => (
                format!("{plural}.{group}").into(),
                format!("{group}/{version}").into(),
            ),
        };
        let content = ContentRules::of(&resource);
        Self(Arc::new(ServedKind {
            resource,
            group: group.into(),
            version: version.into(),
            api_version,
            kind: kind.into(),
            plural: plural.into(),
            content,
        }))
    }

    /// Every kind that this build distributes.
    pub fn supported() -> &'static [Kind] {
        &*SUPPORTED
    }

    /// Returns the kind with this `plural[.group]`, if this build distributes it.
    pub fn by_resource(resource: &str) -> Option<&'static Kind> {
        Self::supported()
            .iter()
            .find(|kind| &*kind.resource == resource)
    }

    /// The `plural[.group]` of every kind that this build distributes.
    pub fn resources() -> impl Iterator<Item = &'static Arc<str>> + Clone {
        Self::supported().iter().map(|kind| &kind.resource)
    }
}

impl Deref for Kind {
    type Target = ServedKind;

    fn deref(&self) -> &ServedKind {
        &self.0
    }
}

impl fmt::Display for Kind {
    /// `plural[.group]`.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.resource)
    }
}

/// Two values are equal if they name the same kind in the same version.
impl PartialEq for ServedKind {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for ServedKind {}

impl PartialOrd for ServedKind {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ServedKind {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (&self.resource, &self.version).cmp(&(&other.resource, &other.version))
    }
}

impl ContentRules {
    /// Returns the rules for the kind with this `plural[.group]`.
    pub fn of(resource: &str) -> &'static Self {
        match resource {
            "configmaps" => &CONFIG_MAP,
            "secrets" => &SECRET,
            _ => &OTHER,
        }
    }

    /// Whether objects of this `type` (absent for kinds without one) must never be distributed.
    pub fn refuses_type(&self, object_type: Option<&str>) -> bool {
        let Some(object_type) = object_type else {
            return false;
        };
        self.refused_types
            .iter()
            .any(|refused| match refused.strip_suffix('*') {
                Some(prefix) => object_type.starts_with(prefix),
                None => object_type == *refused,
            })
    }

    /// Whether an object of this name must never be distributed.
    pub fn refuses_name(&self, name: &str) -> bool {
        self.refused_names.contains(&name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_types_that_are_credentials_are_refused() {
        let secret = Kind::by_resource("secrets").unwrap();
        for refused in [
            "kubernetes.io/service-account-token",
            "bootstrap.kubernetes.io/token",
            "helm.sh/release.v1",
        ] {
            assert!(secret.content.refuses_type(Some(refused)), "{refused}");
        }
        for taken in [
            "Opaque",
            "kubernetes.io/tls",
            "kubernetes.io/service-account-tokens",
        ] {
            assert!(!secret.content.refuses_type(Some(taken)), "{taken}");
        }
        assert!(!secret.content.refuses_type(None));
    }

    #[test]
    fn exact_maps_are_fields() {
        for kind in Kind::supported() {
            let rules = kind.content;
            assert!(
                rules
                    .exact_maps
                    .iter()
                    .all(|map| rules.fields.contains(map)),
                "{kind}"
            );
        }
    }

    #[test]
    fn kind_is_named_with_its_group() {
        let policy = |version| {
            Kind::new(
                "networking.k8s.io",
                version,
                "NetworkPolicy",
                "networkpolicies",
            )
        };
        let kind = policy("v1");
        assert_eq!(&*kind.resource, "networkpolicies.networking.k8s.io");
        assert_eq!(&*kind.api_version, "networking.k8s.io/v1");
        assert!(kind.content.fields.is_empty() && !kind.content.sensitive);
        assert_eq!(kind, policy("v1"));
        assert_ne!(kind, policy("v1beta1"));
        let core = Kind::by_resource("configmaps").unwrap();
        assert_eq!((&*core.resource, &*core.api_version), ("configmaps", "v1"));
        assert_eq!(
            Kind::resources().map(|name| &**name).collect::<Vec<_>>(),
            ["configmaps", "secrets"]
        );
    }
}
