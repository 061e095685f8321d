//! JSON values that stay text until they are used: decoded, a value costs up to 80 times the bytes of its text.
use std::sync::Arc;

use serde::de::Deserializer;
use serde::ser::{Error, Serializer};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Any JSON value, as compact text with sorted keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonText(Arc<str>);

impl JsonText {
    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Decodes the value.
    pub fn value(&self) -> Value {
        // It was written from a value.
        serde_json::from_str(&self.0).unwrap_or_default()
    }
}

impl From<&Value> for JsonText {
    fn from(value: &Value) -> Self {
        Self(value.to_string().into())
    }
}

impl<'de> Deserialize<'de> for JsonText {
    /// Decodes the value for a moment: the buffers of flattened structs cannot give their text.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Value::deserialize(deserializer).map(|value| Self::from(&value))
    }
}

impl Serialize for JsonText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let value: Value = serde_json::from_str(&self.0).map_err(S::Error::custom)?;
        value.serialize(serializer)
    }
}
