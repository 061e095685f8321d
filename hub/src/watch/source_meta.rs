//! What the hub reads of the metadata of an object that may be a source.
use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Resource;
use kube::api::{ApiResource, DynamicObject};
use kube::core::{DynamicResourceScope, ObjectMeta};
use serde::{Deserialize, Deserializer};

/// The metadata of an object without annotations and `managedFields`. A user who may create an
/// object can give it some megabytes of both, and parsed they take a multiple of that: they are
/// skipped.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct SourceMeta {
    #[serde(deserialize_with = "kept")]
    metadata: ObjectMeta,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Kept {
    name: Option<String>,
    namespace: Option<String>,
    resource_version: Option<String>,
    labels: Option<BTreeMap<String, String>>,
    deletion_timestamp: Option<Time>,
}

fn kept<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let Kept {
        name,
        namespace,
        resource_version,
        labels,
        deletion_timestamp,
    } = Kept::deserialize(deserializer)?;
    Ok(ObjectMeta {
        name,
        namespace,
        resource_version,
        labels,
        deletion_timestamp,
        ..ObjectMeta::default()
    })
}

impl Resource for SourceMeta {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn metadata_api() -> bool {
        true
    }

    fn kind(kind: &ApiResource) -> Cow<'_, str> {
        DynamicObject::kind(kind)
    }

    fn group(kind: &ApiResource) -> Cow<'_, str> {
        DynamicObject::group(kind)
    }

    fn version(kind: &ApiResource) -> Cow<'_, str> {
        DynamicObject::version(kind)
    }

    fn plural(kind: &ApiResource) -> Cow<'_, str> {
        DynamicObject::plural(kind)
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::ResourceExt;
    use serde_json::json;

    #[test]
    fn metadata_of_a_source_is_read_without_annotations() {
        let object = json!({
            "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
            "metadata": {
                "name": "a", "namespace": "team", "uid": "u", "resourceVersion": "7", "labels": {"app": "x"},
                "annotations": {"note": "large"}, "deletionTimestamp": "2026-01-01T00:00:00Z",
                "managedFields": [{"manager": "m", "fieldsV1": {"f:metadata": {}}}],
            },
        });
        let read: SourceMeta = serde_json::from_value(object).unwrap();
        assert_eq!(
            (read.name_any(), read.namespace(), read.resource_version()),
            ("a".into(), Some("team".into()), Some("7".into()))
        );
        assert_eq!(read.labels().get("app").map(String::as_str), Some("x"));
        assert!(read.metadata.deletion_timestamp.is_some());
        assert!(read.annotations().is_empty() && read.managed_fields().is_empty());
        assert!(SourceMeta::metadata_api());
    }
}
