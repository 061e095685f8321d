//! Objects in the making.

use data_encoding::BASE64;
use runnel_proto::model::split_resource;
use serde_json::{Value, json};

/// An object that is not in any cluster yet.
#[derive(Clone, Debug)]
pub struct Draft(Value);

impl Draft {
    /// A ConfigMap without content.
    #[must_use]
    pub fn config_map(namespace: &str, name: &str) -> Self {
        Self(
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": namespace, "name": name}}),
        )
    }

    /// A Secret without content; its type is `Opaque` unless [`Draft::with`] sets another one.
    #[must_use]
    pub fn secret(namespace: &str, name: &str) -> Self {
        Self(
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": namespace, "name": name}}),
        )
    }

    /// A namespace.
    #[must_use]
    pub fn namespace(name: &str) -> Self {
        Self(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}))
    }

    /// A CustomResourceDefinition of namespaced objects: the kind as `plural.group`, and its versions with their schemas of
    /// `spec`, of which the first one is stored.
    #[must_use]
    pub fn definition(resource: &str, kind: &str, versions: &[(&str, &Value)]) -> Self {
        let (plural, group) = split_resource(resource);
        let status = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        let version = |(at, (name, spec)): (usize, &(&str, &Value))| {
            json!({
                "name": name, "served": true, "storage": at == 0, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec, "status": status}}},
            })
        };
        let versions: Vec<Value> = versions.iter().enumerate().map(version).collect();
        Self(json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": resource},
            "spec": {
                "group": group, "scope": "Namespaced",
                "names": {"kind": kind, "plural": plural, "singular": kind.to_lowercase()},
                "versions": versions,
            },
        }))
    }

    /// Adds a label.
    #[must_use]
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.0["metadata"]["labels"][key] = json!(value);
        self
    }

    /// Adds an annotation.
    #[must_use]
    pub fn annotation(mut self, key: &str, value: &str) -> Self {
        self.0["metadata"]["annotations"][key] = json!(value);
        self
    }

    /// Adds a text to `data`, encoded as the kind demands.
    #[must_use]
    pub fn data(mut self, key: &str, text: &str) -> Self {
        let is_secret = self.0["kind"] == "Secret";
        self.0["data"][key] = if is_secret {
            json!(BASE64.encode(text.as_bytes()))
        } else {
            json!(text)
        };
        self
    }

    /// Sets a field at the top.
    #[must_use]
    pub fn with(mut self, field: &str, value: Value) -> Self {
        self.0[field] = value;
        self
    }

    /// The object.
    #[must_use]
    pub fn json(&self) -> Value {
        self.0.clone()
    }
}

/// A rule that is not on the hub yet. It selects nothing and has no targets until they are set.
#[derive(Clone, Debug)]
pub struct RuleDraft(Value);

impl RuleDraft {
    /// A `DistributionRule`.
    #[must_use]
    pub fn new(namespace: &str, name: &str) -> Self {
        Self::of(
            "DistributionRule",
            json!({"namespace": namespace, "name": name}),
        )
    }

    /// A `ClusterDistributionRule`.
    #[must_use]
    pub fn cluster_scoped(name: &str) -> Self {
        Self::of("ClusterDistributionRule", json!({"name": name}))
    }

    fn of(kind: &str, metadata: Value) -> Self {
        // In writing: half of the few copies of a test is no limit then.
        let limit = json!({"count": 10, "percent": 21});
        let spec = json!({"sources": [], "clusters": {}, "removalLimit": limit});
        Self(
            json!({"apiVersion": "runnel.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}),
        )
    }

    /// Selects ConfigMaps and Secrets with this label.
    #[must_use]
    pub fn labeled(self, key: &str, value: &str) -> Self {
        self.source(json!({"resources": ["configmaps", "secrets"], "selector": {"matchLabels": {key: value}}}))
    }

    /// Selects ConfigMaps and Secrets with these names or globs.
    #[must_use]
    pub fn named(self, names: &[&str]) -> Self {
        self.source(json!({"resources": ["configmaps", "secrets"], "names": names}))
    }

    /// Adds an entry to `sources`.
    #[must_use]
    pub fn source(mut self, entry: Value) -> Self {
        if let Some(sources) = self.0["spec"]["sources"].as_array_mut() {
            sources.push(entry);
        }
        self
    }

    /// Targets every cluster.
    #[must_use]
    pub fn everywhere(self) -> Self {
        self.with("clusters", json!({"all": true}))
    }

    /// Targets the clusters with these names.
    #[must_use]
    pub fn to(self, clusters: &[&str]) -> Self {
        self.with("clusters", json!({"names": clusters}))
    }

    /// Targets namespaces with these names or globs.
    #[must_use]
    pub fn into(self, namespaces: &[&str]) -> Self {
        self.with("namespaces", json!({"names": namespaces}))
    }

    /// Sets a field of the spec.
    #[must_use]
    pub fn with(mut self, field: &str, value: Value) -> Self {
        self.0["spec"][field] = value;
        self
    }

    /// The rule.
    #[must_use]
    pub fn json(&self) -> Value {
        self.0.clone()
    }
}
