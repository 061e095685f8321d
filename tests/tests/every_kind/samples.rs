//! The objects of `built_in.yaml`, `cluster_scoped.yaml` and `custom.yaml`.
use std::collections::BTreeMap;

use anyhow::{Context, Result};
use runnel_tests::scene::Draft;
use runnel_tests::specimens::Specimen;
use serde::Deserialize;
use serde_json::{Value, json};

/// The name of a sample that has no other one.
const NAME: &str = "sample";

/// An object of one kind, and what is done to it, as the files have it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sample {
    /// The kind, as `plural[.group]`.
    resource: String,
    /// Whether the kind has no namespaces.
    #[serde(default)]
    cluster: bool,
    /// The name of the object.
    #[serde(default)]
    name: Option<String>,
    /// The source, without name and namespace.
    #[serde(default)]
    object: Value,
    #[serde(default)]
    edit: Option<Value>,
    #[serde(default)]
    prune: Vec<String>,
    #[serde(default)]
    sets: Vec<String>,
    #[serde(default)]
    foreign: Option<Value>,
    /// Of a custom kind: its name.
    #[serde(default)]
    kind: Option<String>,
    /// Of a custom kind: the schemas of `spec` by version; the first one in the order of priority is stored.
    #[serde(default)]
    versions: BTreeMap<String, Value>,
    /// Of a custom kind: the spec of the object.
    #[serde(default)]
    spec: Value,
}

impl Sample {
    /// The object, in a namespace if its kind has them.
    fn specimen(self, namespace: &str) -> Specimen {
        let definition = self.definition();
        let mut source = self.object;
        source["metadata"] = json!({
            "name": self.name.as_deref().unwrap_or(NAME),
            "labels": {"tier": "gold", "color": "blue"},
            "annotations": {"example.com/note": "a note"},
        });
        if !self.cluster {
            source["metadata"]["namespace"] = json!(namespace);
        }
        Specimen {
            resource: self.resource,
            source,
            edit: self.edit,
            prune: self.prune,
            sets: self.sets,
            foreign: self.foreign,
            definition,
        }
    }

    /// The CustomResourceDefinition, for a custom kind.
    fn definition(&self) -> Option<Value> {
        let kind = self.kind.as_ref()?;
        let versions = self.versions.iter();
        let versions: Vec<_> = versions.map(|(name, spec)| (&**name, spec)).collect();
        let mut definition = Draft::definition(&self.resource, kind, &versions).json();
        if self.cluster {
            definition["spec"]["scope"] = json!("Cluster");
        }
        Some(definition)
    }
}

/// Returns the objects of built-in and custom kinds.
///
/// # Errors
/// If a file cannot be read.
pub fn samples(namespace: &str) -> Result<Vec<Specimen>> {
    let read = |text: &str| serde_saphyr::from_str::<Vec<Sample>>(text);
    let mut all = read(include_str!("built_in.yaml")).context("built_in.yaml")?;
    all.extend(read(include_str!("cluster_scoped.yaml")).context("cluster_scoped.yaml")?);
    for mut sample in read(include_str!("custom.yaml")).context("custom.yaml")? {
        let group = sample.resource.split_once('.').context("no group")?.1;
        let version = sample.versions.keys().next().context("no version")?;
        sample.object = json!({
            "apiVersion": format!("{group}/{version}"),
            "kind": sample.kind,
            "spec": sample.spec,
        });
        all.push(sample);
    }
    let specimens = all.into_iter().map(|sample| sample.specimen(namespace));
    Ok(specimens.collect())
}
