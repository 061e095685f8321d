//! Grants: which rules may send which kinds to which clusters and namespaces.
use kube_derive::CustomResource;
use runnel_proto::model::{self, Pattern};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Clusters, LabelSelector, limits, schema, schema::Item};

/// What the DistributionRules of some namespaces may send where. Grants add up; rules can do only what a grant allows.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "runnel.dev",
    version = "v1alpha1",
    kind = "DistributionGrant",
    doc = "Allows the DistributionRules of some namespaces to send some kinds to some clusters and namespaces. For administrators. Grants add up, and apply continuously: copies that are no longer granted are removed by each rule's deletionPolicy. A ClusterDistributionRule needs no grant.",
    shortname = "dgrant",
    category = "runnel",
    derive = "PartialEq",
    derive = "Default"
)]
#[serde(rename_all = "camelCase")]
pub struct DistributionGrantSpec {
    /// The hub namespaces whose rules get the grant.
    pub rules: GrantedRules,
    /// The kinds that may be sent, as `plural` or `plural.group`, such as configmaps and
    /// networkpolicies.networking.k8s.io. At least one.
    #[schemars(transform = schema::filled_set("resources", 16, Item::Resource, "list the kinds that may be sent, such as [configmaps, secrets]"))]
    pub resources: Vec<String>,
    /// The member clusters that the rules may send to. At least one of selector, names and all;
    /// they add up.
    pub clusters: Clusters,
    /// The namespaces in those clusters that may have copies. A copy exists where its rule requests
    /// it and a grant allows it.
    pub namespaces: GrantedNamespaces,
    /// The policies that the rules may use there.
    #[serde(default)]
    pub policies: GrantedPolicies,
    /// The most copies that the rules of one namespace may have in one member cluster. Of several grants for one copy
    /// the higher limit applies; absent: any number. Existing copies above it stay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(transform = schema::in_range(1, 1_000_000_000))]
    pub max_copies: Option<i64>,
    /// The limit of the total size of such copies, in bytes. Of several grants for one copy the
    /// highest limit applies; absent: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(transform = schema::in_range(1, 1_000_000_000_000_000))]
    pub max_bytes: Option<i64>,
}

/// The rules that get a grant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GrantedRules {
    /// The hub namespaces whose DistributionRules get the grant. At least one of names, selector
    /// and all; they add up.
    pub namespaces: GrantedNamespaces,
}

/// Selects namespaces. A namespace that no entry matches is not granted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::rule(
    "has(self.selector) || (has(self.names) && size(self.names) > 0) || (has(self.all) && self.all)",
    "namespaces chooses nothing: set names or selector, or all: true for every namespace",
))]
pub struct GrantedNamespaces {
    /// Exact names, and globs in which `*` matches any run of characters. Globs never match `kube-*` or the namespace
    /// of Runnel itself; an exact name may. At most 128.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::set("namespaces.names", limits::NAMESPACES, Item::NamespacePattern))]
    #[schemars(transform = schema::no_reserved_glob("namespaces.names"))]
    pub names: Vec<String>,
    /// Chooses namespaces by their labels. Never matches `kube-*` or the namespace of Runnel itself. It may not be empty;
    /// for every namespace write `all: true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "LabelSelector", transform = schema::filled_selector("namespaces.selector", "for every namespace remove it and write all: true"))]
    pub selector: Option<LabelSelector>,
    /// Whether every namespace is selected, including `kube-*` and Runnel's own.
    #[serde(default)]
    pub all: bool,
}

/// The policies that rules may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GrantedPolicies {
    /// Whether a rule may have `conflictPolicy: Overwrite`. If not, Fail applies to the rule.
    #[serde(default)]
    pub overwrite: bool,
    /// Whether a rule may have `conflictPolicy: AdoptIfEqual`. If not, Fail applies to the rule.
    #[serde(default)]
    pub adopt: bool,
    /// Whether a rule may have `createNamespaces: true`. If not, missing namespaces are not
    /// created.
    #[serde(default)]
    pub create_namespaces: bool,
}

impl GrantedNamespaces {
    /// Returns the choice of the planner and the agents; `None`: every namespace.
    pub fn choice(&self) -> Option<model::NamespaceChoice> {
        let names = self.names.iter().map(Pattern::new).collect();
        let selector = self.selector.as_ref().map(Into::into);
        (!self.all).then(|| model::NamespaceChoice {
            names,
            selector,
            exclude: vec![],
        })
    }
}
