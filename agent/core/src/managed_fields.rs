//! Reads the fields that the agent applied from `managedFields`.
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::core::{DynamicObject, ObjectMeta};
use runnel_proto::model::{FieldMap, FieldPath};

/// The field manager of the agent.
pub const FIELD_MANAGER: &str = "runnel-agent";

/// Returns the entry of the agent's own server-side apply.
pub fn apply_entry(metadata: &ObjectMeta) -> Option<&ManagedFieldsEntry> {
    metadata
        .managed_fields
        .as_ref()?
        .iter()
        .find(|entry| is_our_apply(entry))
}

/// Whether this entry is the agent's own server-side apply.
pub fn is_our_apply(entry: &ManagedFieldsEntry) -> bool {
    let of_whole_object = entry.subresource.as_deref().unwrap_or_default().is_empty();
    entry.manager.as_deref() == Some(FIELD_MANAGER)
        && entry.operation.as_deref() == Some("Apply")
        && of_whole_object
}

/// Whether the agent owns a field: it applied the field, and no other client has changed it since.
pub fn owns(object: &DynamicObject, path: &FieldPath) -> bool {
    let fields = apply_entry(&object.metadata)
        .and_then(|entry| entry.fields_v1.as_ref())
        .map(|fields| &fields.0);
    let map = match path.map {
        FieldMap::Data | FieldMap::BinaryData => path
            .map
            .field()
            .and_then(|field| fields?.get(format!("f:{field}"))),
        FieldMap::Labels => fields.and_then(|fields| fields.get("f:metadata")?.get("f:labels")),
        FieldMap::Annotations => {
            fields.and_then(|fields| fields.get("f:metadata")?.get("f:annotations"))
        }
    };
    map.is_some_and(|map| map.get(format!("f:{}", path.key)).is_some())
}
