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

/// The last column of a table without objects: their namespace is nowhere else.
const NAMESPACE: Column = ("Namespace", "string", 1, "The namespace of the object.");

/// Returns a table with one row.
pub(super) fn table<O: ViewObject>(
    row: &O,
    metadata: &Value,
    include: IncludeObject,
    now: Timestamp,
) -> Value {
    json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": columns::<O>(include),
        "rows": [table_row(row, include, now)],
    })
}

/// Returns the definitions of the columns of a table.
pub(super) fn columns<O: ViewObject>(include: IncludeObject) -> Vec<Value> {
    let namespace = (include == IncludeObject::None).then_some(&NAMESPACE);
    let columns = O::COLUMNS.iter().chain(namespace);
    let columns = columns.map(|(name, kind, priority, description)| {
        json!({
            "name": name,
            "type": kind,
            "format": if *name == "Name" { "name" } else { "" },
            "description": description,
            "priority": priority,
        })
    });
    columns.collect()
}

/// Returns one row of a table.
pub(super) fn table_row(row: &impl ViewObject, include: IncludeObject, now: Timestamp) -> Value {
    let object = match include {
        IncludeObject::None => None,
        IncludeObject::Metadata => Some(partial(row)),
        IncludeObject::Object => Some(row.object()),
    };
    let mut cells = row.cells(now);
    if let Some(object) = object {
        return json!({"cells": cells, "object": object});
    }
    if let Value::Array(cells) = &mut cells {
        let namespace = row.metadata().namespace.as_deref();
        cells.push(namespace.unwrap_or_default().into());
    }
    json!({"cells": cells})
}

/// Returns the metadata of an object as an object.
pub(super) fn partial(row: &impl ViewObject) -> Value {
    json!({
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": row.metadata(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct NamedObject(ObjectMeta);

    impl ViewObject for NamedObject {
        const COLUMNS: &'static [Column] = &[("Name", "string", 0, "The name.")];

        fn metadata(&self) -> &ObjectMeta {
            &self.0
        }

        fn metadata_mut(&mut self) -> &mut ObjectMeta {
            &mut self.0
        }

        fn cells(&self, _now: Timestamp) -> Value {
            json!([self.0.name])
        }

        fn object(&self) -> Value {
            json!({"metadata": self.0})
        }
    }

    #[test]
    fn table_without_objects_has_their_namespaces() {
        let named = |namespace: Option<&str>| {
            NamedObject(ObjectMeta {
                name: Some("a".to_owned()),
                namespace: namespace.map(str::to_owned),
                ..ObjectMeta::default()
            })
        };
        let table = |row: &NamedObject, include| {
            super::table(row, &json!({}), include, Timestamp::UNIX_EPOCH)
        };
        let (shop, cluster) = (named(Some("shop")), named(None));
        let without = table(&shop, IncludeObject::None);
        assert_eq!(without["columnDefinitions"][1]["name"], "Namespace");
        assert_eq!(without["rows"], json!([{"cells": ["a", "shop"]}]));
        let without = table(&cluster, IncludeObject::None);
        assert_eq!(without["rows"], json!([{"cells": ["a", ""]}]));
        let with = table(&shop, IncludeObject::Object);
        assert_eq!(with["columnDefinitions"].as_array().unwrap().len(), 1);
        assert_eq!(with["rows"][0]["cells"], json!(["a"]));
        assert_eq!(with["rows"][0]["object"]["metadata"]["namespace"], "shop");
    }
}
