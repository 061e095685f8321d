//! Decodes each object of an API server separately: an unreadable one does not fail its list or
//! watch.
//! Any writer of an object can set times in `managedFields` that `jiff::Timestamp` does not support
//! (after 9999-12-30). Such a time is skipped.
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
        if let Some(object) = serde_json::from_str(text)
            .ok()
            .or_else(|| without_times(text))
        {
            return Ok(Self::Read(Box::new(object)));
        }
        let unread: RawObject = serde_json::from_str(text)
            .map_err(|_| D::Error::custom("an object has no metadata"))?;
        Ok(Self::Unreadable(Box::new(unread.metadata)))
    }
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
