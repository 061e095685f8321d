//! Tables: what `kubectl get` prints.
use jiff::Timestamp;
use kube::api::ObjectMeta;
use serde_json::{Value, json};

use super::request::IncludeObject;

/// A column: its name, type, priority (0: always, 1: wide) and description.
pub(super) type Column = (&'static str, &'static str, u8, &'static str);

/// An object of the view API.
pub(super) trait ViewObject: Send + 'static {
    /// The columns of its table.
    const COLUMNS: &'static [Column];

    /// Returns its metadata.
    fn metadata(&self) -> &ObjectMeta;

    /// Returns its metadata, to change them.
    fn metadata_mut(&mut self) -> &mut ObjectMeta;

    /// Returns the cells of its row, as many as there are columns.
    fn cells(&self, now: Timestamp) -> Value;

    /// Returns the whole object.
    fn object(&self) -> Value;
}

/// Returns a table with these rows.
pub(super) fn table<O: ViewObject>(
    rows: &[O],
    metadata: &Value,
    include: IncludeObject,
    now: Timestamp,
) -> Value {
    let columns: Vec<_> = O::COLUMNS
        .iter()
        .map(|(name, kind, priority, description)| {
            json!({
                "name": name,
                "type": kind,
                "format": if *name == "Name" { "name" } else { "" },
                "description": description,
                "priority": priority,
            })
        })
        .collect();
    let rows: Vec<_> = rows
        .iter()
        .map(|row| table_row(row, include, now))
        .collect();
    json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": columns,
        "rows": rows,
    })
}

fn table_row(row: &impl ViewObject, include: IncludeObject, now: Timestamp) -> Value {
    let object = match include {
        IncludeObject::None => None,
        IncludeObject::Metadata => Some(partial(row)),
        IncludeObject::Object => Some(row.object()),
    };
    let mut made = json!({"cells": row.cells(now)});
    if let Some(object) = object {
        made["object"] = object;
    }
    made
}

/// Returns the metadata of an object as an object.
pub(super) fn partial(row: &impl ViewObject) -> Value {
    json!({
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": row.metadata(),
    })
}
