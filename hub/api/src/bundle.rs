//! Bundles: manifests of objects that exist in member clusters only.
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{limits, schema};

/// Manifests that have no effect on the hub.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "runnel.dev",
    version = "v1alpha1",
    kind = "ManifestBundle",
    namespaced,
    doc = "Holds manifests of objects for member clusters. They have no effect on the hub. A rule selects a bundle as any other source, by resources: [manifestbundles.runnel.dev]. Each manifest is a source of its own, with its own copies: as if the object itself were in the namespace of the bundle.",
    shortname = "mbundle",
    category = "runnel",
    derive = "PartialEq",
    derive = "Default"
)]
#[serde(rename_all = "camelCase")]
pub struct ManifestBundleSpec {
    /// The manifests, with apiVersion, kind and metadata.name. The rule decides the namespaces, so metadata.namespace is
    /// not allowed; of the metadata only name, labels and annotations are. Secrets are refused: distribute the Secret
    /// itself. Only ClusterDistributionRules send manifests of kinds without namespaces. At least one, at most 100.
    #[schemars(transform = schema::manifests)]
    pub manifests: Vec<Value>,
    /// The kinds of manifests that the API server of the hub does not serve, and custom kinds without namespaces. At most
    /// 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::list(limits::MANIFESTS))]
    pub kinds: Vec<BundleKind>,
}

/// A kind of manifests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BundleKind {
    /// Group and version, as in the manifest.
    #[schemars(transform = schema::filled_text(317))]
    pub api_version: String,
    /// The kind, as in the manifest.
    #[schemars(transform = schema::filled_text(63))]
    pub kind: String,
    /// The plural, as in the name of the CustomResourceDefinition before the first dot.
    #[schemars(transform = schema::filled_text(63))]
    pub plural: String,
    /// Whether objects of the kind are in a namespace.
    #[serde(default)]
    pub scope: BundleKindScope,
}

/// Where the objects of a kind are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum BundleKindScope {
    /// Each object is in a namespace.
    #[default]
    Namespaced,
    /// Objects belong to the whole cluster.
    Cluster,
}
