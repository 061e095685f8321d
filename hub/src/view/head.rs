//! What names an object of a request, read before the rest of it.
use runnel_proto::model::RuleName;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::ViewError;

/// What names an object.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Head {
    pub(super) api_version: String,
    pub(super) kind: String,
    pub(super) metadata: HeadMetadata,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct HeadMetadata {
    pub(super) namespace: String,
    pub(super) name: String,
}

impl Head {
    /// Reads what names an object, and decodes nothing else of it.
    pub(super) fn read(object: &RawValue) -> Result<Self, ViewError> {
        decoded(object.get())
    }

    /// Returns the name of the object.
    pub(super) fn into_name(self) -> RuleName {
        RuleName {
            kind: self.kind,
            namespace: self.metadata.namespace,
            name: self.metadata.name,
        }
    }
}

/// Decodes a JSON text.
pub(super) fn decoded<'b, T: Deserialize<'b>>(text: &'b str) -> Result<T, ViewError> {
    serde_json::from_str(text)
        .map_err(|error| ViewError::BadRequest(format!("the object cannot be read: {error}")))
}
