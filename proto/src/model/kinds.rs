//! Kinds of objects. A kind is a value: what an API server serves, with the rules for its content.
//!
//! [`Kind::supported`] lists the kinds that this build distributes. Watches, plans, messages, CRDs, grants and policies
//! read it. ARCHITECTURE.md lists the other places that name kinds, such as the charts.
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, LazyLock};

use super::split_resource;

/// Maximum number of kinds that the policy of a member names.
pub const KINDS_LIMIT: usize = 200;

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
    /// Where its objects are.
    pub scope: Scope,
    /// The rules for its content.
    pub content: &'static ContentRules,
}

/// Where the objects of a kind are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// Each object is in a namespace.
    Namespaced,
    /// Objects belong to the whole cluster.
    Cluster,
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
    /// Names of objects that every cluster makes itself and that are never distributed (a trailing `*` matches any rest).
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

/// The rules for namespaces.
const NAMESPACE: ContentRules = ContentRules {
    refused_names: &["default", "kube-*"],
    ..OTHER
};

/// The rules for ClusterRoles. Addons have names with `system:`, too.
const CLUSTER_ROLE: ContentRules = ContentRules {
    refused_names: &[
        "admin",
        "cluster-admin",
        "edit",
        "system:aggregate-to-admin",
        "system:aggregate-to-edit",
        "system:aggregate-to-view",
        "system:auth-delegator",
        "system:basic-user",
        "system:certificates.k8s.io:*",
        "system:controller:*",
        "system:discovery",
        "system:heapster",
        "system:kube-*",
        "system:kubelet-*",
        "system:monitoring",
        "system:node*",
        "system:persistent-volume-provisioner",
        "system:public-info-viewer",
        "system:service-account-issuer-discovery",
        "system:volume-scheduler",
        "view",
    ],
    ..OTHER
};

/// The rules for ClusterRoleBindings.
const CLUSTER_ROLE_BINDING: ContentRules = ContentRules {
    refused_names: &[
        "cluster-admin",
        "system:basic-user",
        "system:controller:*",
        "system:discovery",
        "system:kube-*",
        "system:monitoring",
        "system:node*",
        "system:public-info-viewer",
        "system:service-account-issuer-discovery",
        "system:volume-scheduler",
    ],
    ..OTHER
};

/// The rules for PriorityClasses.
const PRIORITY_CLASS: ContentRules = ContentRules {
    refused_names: &["system-cluster-critical", "system-node-critical"],
    ..OTHER
};

/// The rules for FlowSchemas and PriorityLevelConfigurations.
const FLOW_CONTROL: ContentRules = ContentRules {
    refused_names: &[
        "catch-all",
        "exempt",
        "global-default",
        "system",
        "system-*",
    ],
    ..OTHER
};

/// The kinds of [`Kind::supported`].
static SUPPORTED: LazyLock<[Kind; 2]> = LazyLock::new(|| {
    [
        Kind::new("", "v1", "ConfigMap", "configmaps", Scope::Namespaced),
        Kind::new("", "v1", "Secret", "secrets", Scope::Namespaced),
    ]
});

impl Kind {
    /// A kind of this group, version, kind, plural and scope.
    pub fn new(group: &str, version: &str, kind: &str, plural: &str, scope: Scope) -> Self {
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
            scope,
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

/// The kinds that one API server serves, each in every version that it serves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kinds(BTreeMap<Arc<str>, Vec<Kind>>);

impl Kinds {
    /// Returns the kind in the version that the API server prefers; `None` if it is not served.
    pub fn preferred(&self, resource: &str) -> Option<&Kind> {
        self.0.get(resource)?.first()
    }

    /// Returns the kind in this version; `None` if it is not served in it.
    pub fn in_version(&self, resource: &str, version: &str) -> Option<&Kind> {
        let versions = self.0.get(resource)?;
        versions.iter().find(|kind| &*kind.version == version)
    }

    /// Returns a kind in every version in which it is served, the preferred one first.
    pub fn versions(&self, resource: &str) -> impl Iterator<Item = &Kind> {
        self.0.get(resource).into_iter().flatten()
    }

    /// Returns each kind in every version, the preferred one first.
    pub fn in_all_versions(&self) -> impl Iterator<Item = &Kind> {
        self.0.values().flatten()
    }

    /// Returns each kind in its preferred version, in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = &Kind> {
        self.0.values().filter_map(|versions| versions.first())
    }
}

impl FromIterator<Kind> for Kinds {
    /// Of the versions of a kind, the first one is the preferred one.
    fn from_iter<I: IntoIterator<Item = Kind>>(kinds: I) -> Self {
        let mut by_resource: BTreeMap<Arc<str>, Vec<Kind>> = BTreeMap::new();
        for kind in kinds {
            let versions = by_resource.entry(kind.resource.clone()).or_default();
            if !versions.contains(&kind) {
                versions.push(kind);
            }
        }
        Self(by_resource)
    }
}

/// Groups whose objects carry rights or change how the API server works.
const PRIVILEGED_GROUPS: &[&str] = &[
    "apps",
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "apiregistration.k8s.io",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "batch",
    "certificates.k8s.io",
    "discovery.k8s.io",
    "flowcontrol.apiserver.k8s.io",
    "rbac.authorization.k8s.io",
    // Of OpenShift, and of controllers that apply or change objects with the rights of the cluster's administrator.
    "apps.openshift.io",
    "argoproj.io",
    "authorization.openshift.io",
    "helm.toolkit.fluxcd.io",
    "kustomize.toolkit.fluxcd.io",
    "kyverno.io",
    "oauth.openshift.io",
    "security.openshift.io",
    "user.openshift.io",
];

/// Kinds of the core group that run programs, carry rights, send the traffic of Services anywhere or belong to the cluster.
const PRIVILEGED_RESOURCES: &[&str] = &[
    "endpoints",
    "namespaces",
    "nodes",
    "persistentvolumes",
    "pods",
    "podtemplates",
    "replicationcontrollers",
    "serviceaccounts",
];

/// Whether objects of this kind carry rights, run programs or change how the API server works. Such a kind is allowed
/// only where it is named.
pub fn is_privileged(resource: &str) -> bool {
    match split_resource(resource) {
        (plural, "") => PRIVILEGED_RESOURCES.contains(&plural),
        (_, group) => PRIVILEGED_GROUPS.contains(&group),
    }
}

/// Kinds whose objects allow more with each field that is added to them.
const WIDENED_BY_ADDITIONS: [&str; 5] = [
    "clusterrolebindings.rbac.authorization.k8s.io",
    "clusterroles.rbac.authorization.k8s.io",
    "networkpolicies.networking.k8s.io",
    "rolebindings.rbac.authorization.k8s.io",
    "roles.rbac.authorization.k8s.io",
];

/// Whether an object of this kind allows more with each field that is added to it, so that it matters that it is exactly its source.
pub fn is_widened_by_additions(resource: &str) -> bool {
    WIDENED_BY_ADDITIONS.contains(&resource)
}

impl ContentRules {
    /// Returns the rules for the kind with this `plural[.group]`.
    pub fn of(resource: &str) -> &'static Self {
        match resource {
            "configmaps" => &CONFIG_MAP,
            "secrets" => &SECRET,
            "namespaces" => &NAMESPACE,
            "clusterroles.rbac.authorization.k8s.io" => &CLUSTER_ROLE,
            "clusterrolebindings.rbac.authorization.k8s.io" => &CLUSTER_ROLE_BINDING,
            "priorityclasses.scheduling.k8s.io" => &PRIORITY_CLASS,
            "flowschemas.flowcontrol.apiserver.k8s.io"
            | "prioritylevelconfigurations.flowcontrol.apiserver.k8s.io" => &FLOW_CONTROL,
            _ => &OTHER,
        }
    }

    /// Whether copies are compared by the fields that the agent owns in them: the kind has no list of fields.
    pub fn is_owned(&self) -> bool {
        self.fields.is_empty()
    }

    /// Whether objects of this `type` (absent for kinds without one) must never be distributed.
    pub fn refuses_type(&self, object_type: Option<&str>) -> bool {
        let Some(object_type) = object_type else {
            return false;
        };
        is_among(self.refused_types, object_type)
    }

    /// Whether an object of this name must never be distributed.
    pub fn refuses_name(&self, name: &str) -> bool {
        is_among(self.refused_names, name)
    }
}

/// Whether a list has a text, or a prefix of it with a trailing `*`.
fn is_among(listed: &[&str], text: &str) -> bool {
    listed.iter().any(|entry| match entry.strip_suffix('*') {
        Some(prefix) => text.starts_with(prefix),
        None => text == *entry,
    })
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
    fn objects_that_each_cluster_has_itself_are_refused() {
        for (resource, refused, taken) in [
            ("namespaces", ["default", "kube-system"], "shop"),
            (
                "clusterroles.rbac.authorization.k8s.io",
                ["cluster-admin", "system:nodes"],
                "system:metrics-server",
            ),
            (
                "priorityclasses.scheduling.k8s.io",
                ["system-cluster-critical", "system-node-critical"],
                "system-of-mine",
            ),
            (
                "flowschemas.flowcontrol.apiserver.k8s.io",
                ["exempt", "system-nodes"],
                "mine",
            ),
        ] {
            let rules = ContentRules::of(resource);
            assert!(rules.is_owned(), "{resource}");
            assert!(
                refused.iter().all(|name| rules.refuses_name(name)),
                "{resource}"
            );
            assert!(!rules.refuses_name(taken), "{resource}");
        }
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
                Scope::Namespaced,
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

    #[test]
    fn kinds_give_the_preferred_version_first() {
        let kind = |version| Kind::new("example.org", version, "Widget", "widgets", Scope::Cluster);
        let kinds: Kinds = [kind("v2"), kind("v1"), kind("v2")].into_iter().collect();
        let widgets = "widgets.example.org";
        assert_eq!(kinds.preferred(widgets), Some(&kind("v2")));
        assert_eq!(kinds.in_version(widgets, "v1"), Some(&kind("v1")));
        assert_eq!(kinds.in_version(widgets, "v3"), None);
        assert_eq!(kinds.preferred("widgets"), None);
        assert_eq!(kinds.iter().collect::<Vec<_>>(), [&kind("v2")]);
    }

    #[test]
    fn kinds_with_rights_are_privileged() {
        for privileged in [
            "serviceaccounts",
            "pods",
            "deployments.apps",
            "rolebindings.rbac.authorization.k8s.io",
            "customresourcedefinitions.apiextensions.k8s.io",
            "rolebindings.authorization.openshift.io",
            "securitycontextconstraints.security.openshift.io",
            "deploymentconfigs.apps.openshift.io",
            "applications.argoproj.io",
            "kustomizations.kustomize.toolkit.fluxcd.io",
            "clusterpolicies.kyverno.io",
        ] {
            assert!(is_privileged(privileged), "{privileged}");
        }
        for plain in [
            "configmaps",
            "services",
            "networkpolicies.networking.k8s.io",
        ] {
            assert!(!is_privileged(plain), "{plain}");
        }
    }

    #[test]
    fn charts_have_the_same_privileged_kinds() {
        let sorted = |list: &[&str]| {
            let mut list: Vec<String> = list.iter().map(|&one| one.to_owned()).collect();
            list.sort();
            list
        };
        for chart in ["runnel-agent", "runnel-hub"] {
            let root = env!("CARGO_MANIFEST_DIR");
            let path = format!("{root}/../deploy/charts/{chart}/templates/_helpers.tpl");
            let helpers = std::fs::read_to_string(&path).unwrap();
            let define = format!("{{{{- define \"{chart}.privileged\" -}}}}\n");
            let (_, rest) = helpers.split_once(&define).unwrap();
            let (list, _) = rest.split_once("{{- end -}}").unwrap();
            let list: serde_json::Value = serde_json::from_str(list).unwrap();
            let of = |field: &str| {
                let all = list[field].as_array().unwrap().iter();
                let all: Vec<_> = all.map(|one| one.as_str().unwrap()).collect();
                sorted(&all)
            };
            assert_eq!(of("groups"), sorted(PRIVILEGED_GROUPS), "{path}");
            assert_eq!(of("resources"), sorted(PRIVILEGED_RESOURCES), "{path}");
        }
    }
}
