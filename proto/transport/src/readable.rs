//! Decodes each object of an API server separately: an unreadable one does not fail its list or
//! watch.
//! Any writer of an object can set times in `managedFields` that `jiff::Timestamp` does not support
//! (after 9999-12-30). Such a time is skipped.
use runnel_proto::json_nodes::{self, MANAGED_FIELDS_NODES, OBJECT_NODES};
use std::collections::BTreeMap;

use serde::de::{DeserializeOwned, Deserializer, Error};
use serde::{Deserialize, de};
use serde_json::Value;
use serde_json::value::RawValue;

/// An object, or the identity of an unreadable one. In a watch event the type must come before the
/// object, as API servers write it.
#[derive(Clone, Debug)]
pub enum Readable<T> {
    /// The object.
    Read(Box<T>),
    /// It exists; its content is unknown.
    Unreadable(Box<Identity>),
    /// It was not decoded: see [`has_many_nodes`].
    TooManyNodes(Box<Identity>),
}

/// The metadata of every object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Identity {
    /// Its name.
    pub name: Option<String>,
    /// Its namespace.
    pub namespace: Option<String>,
    /// Its uid.
    pub uid: Option<String>,
    /// Its version.
    pub resource_version: Option<String>,
    /// Its labels, if they can be read: they may be what makes the object unreadable.
    #[serde(deserialize_with = "labels")]
    pub labels: Option<BTreeMap<String, String>>,
}

fn labels<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<BTreeMap<String, String>>, D::Error> {
    let text = <Box<RawValue> as de::Deserialize>::deserialize(deserializer)?;
    Ok(serde_json::from_str(text.get()).unwrap_or_default())
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for Readable<T> {
    /// The error does not quote the object.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct RawObject {
            metadata: Identity,
        }
        let text = <Box<RawValue> as de::Deserialize>::deserialize(deserializer)?;
        let text = text.get();
        let identity = || {
            serde_json::from_str(text)
                .map(|object: RawObject| Box::new(object.metadata))
                .map_err(|_| D::Error::custom("an object has no metadata"))
        };
        if has_many_nodes(text) {
            return identity().map(Self::TooManyNodes);
        }
        if let Some(object) = serde_json::from_str(text)
            .ok()
            .or_else(|| without_times(text))
        {
            return Ok(Self::Read(Box::new(object)));
        }
        identity().map(Self::Unreadable)
    }
}

/// Whether an object has more nodes than [`OBJECT_NODES`], or its `managedFields` more than [`MANAGED_FIELDS_NODES`], so
/// that it must not be decoded.
pub fn has_many_nodes(object: &str) -> bool {
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct Metadata<'a> {
        #[serde(borrow)]
        managed_fields: Option<&'a RawValue>,
    }
    #[derive(Deserialize)]
    struct Object<'a> {
        #[serde(borrow, default)]
        metadata: Metadata<'a>,
    }
    let nodes = json_nodes::count(object.as_bytes());
    if nodes <= OBJECT_NODES {
        return false;
    }
    let managed = serde_json::from_str(object)
        .ok()
        .and_then(|object: Object<'_>| object.metadata.managed_fields)
        .map_or(0, |fields| json_nodes::count(fields.get().as_bytes()));
    managed > MANAGED_FIELDS_NODES || nodes - managed > OBJECT_NODES
}

/// The object without the times of its `managedFields`.
fn without_times<T: DeserializeOwned>(text: &str) -> Option<T> {
    let mut object: Value = serde_json::from_str(text).ok()?;
    for entry in object
        .pointer_mut("/metadata/managedFields")?
        .as_array_mut()?
    {
        if let Some(entry) = entry.as_object_mut() {
            entry.remove("time");
        }
    }
    serde_json::from_value(object).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::ConfigMap;
    use serde_json::json;

    fn object(time: &str) -> Value {
        let entry = json!({"manager": "m", "operation": "Update", "apiVersion": "v1", "time": time, "fieldsType": "FieldsV1",
            "fieldsV1": {"f:data": {}}});
        let metadata = json!({"name": "a", "namespace": "n", "uid": "u", "resourceVersion": "7", "managedFields": [entry]});
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"k": "v"}})
    }

    fn read(object: &Value) -> Readable<ConfigMap> {
        serde_json::from_str(&object.to_string()).unwrap()
    }

    #[test]
    fn object_with_an_invalid_time_is_read_without_it() {
        for (time, is_kept) in [
            ("2026-01-01T00:00:00Z", true),
            ("9999-12-31T23:59:59Z", false),
        ] {
            assert_eq!(
                serde_json::from_value::<ConfigMap>(object(time)).is_ok(),
                is_kept
            );
            let Readable::Read(map) = read(&object(time)) else {
                panic!("{time} is unreadable")
            };
            let fields = map.metadata.managed_fields.unwrap();
            assert_eq!(
                (fields[0].manager.as_deref(), fields[0].time.is_some()),
                (Some("m"), is_kept)
            );
        }
    }

    #[test]
    fn object_with_many_nodes_is_not_decoded() {
        let mut large = object("2026-01-01T00:00:00Z");
        large["x"] = vec![json!({"a": 0}); OBJECT_NODES / 2].into();
        assert!(large.to_string().len() < 1_500_000);
        let Readable::TooManyNodes(identity) = read(&large) else {
            panic!("it is decoded")
        };
        assert_eq!(identity.uid.as_deref(), Some("u"));
        // The names of managed fields are no content.
        let mut managed = object("2026-01-01T00:00:00Z");
        let fields = |count: usize| -> Value {
            let fields = (0..count).map(|number| (format!("f:{number}"), json!({})));
            Value::Object(fields.collect())
        };
        managed["metadata"]["managedFields"][0]["fieldsV1"] = fields(OBJECT_NODES);
        assert!(matches!(read(&managed), Readable::Read(_)));
        managed["metadata"]["managedFields"][0]["fieldsV1"] = fields(MANAGED_FIELDS_NODES);
        assert!(matches!(read(&managed), Readable::TooManyNodes(_)));
    }

    #[test]
    fn unreadable_object_keeps_its_identity() {
        let mut broken = object("2026-01-01T00:00:00Z");
        broken["data"] = json!(["secret"]);
        let Readable::Unreadable(identity) = read(&broken) else {
            panic!("it is read")
        };
        assert_eq!(
            (
                identity.name.as_deref(),
                identity.resource_version.as_deref()
            ),
            (Some("a"), Some("7"))
        );
        let mut deep = "1".to_owned();
        for _ in 0..200 {
            deep = format!("{{\"a\":{deep}}}");
        }
        let text = format!(
            "{{\"metadata\":{{\"name\":\"a\",\"managedFields\":[{{\"fieldsV1\":{deep}}}]}}}}"
        );
        assert!(matches!(
            serde_json::from_str(&text),
            Ok(Readable::<ConfigMap>::Unreadable(_))
        ));
        let error = serde_json::from_str::<Readable<ConfigMap>>(r#"["value"]"#)
            .unwrap_err()
            .to_string();
        assert!(!error.contains("value"), "{error}");
    }
}
