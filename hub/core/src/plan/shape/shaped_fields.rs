//! Which fields of a copy its rule shapes, for a person. Without values.
use runnel_proto::model::pointer_escaped;
use serde_json::{Map, Value};

use super::{NamedBy, Override, Shape, TemplateContext};

/// A field of a copy that its rule shapes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShapedField {
    /// The field of the copy, as a JSON pointer; empty for all of it.
    pub field: String,
    /// The field of the rule.
    pub by: String,
}

impl ShapedField {
    /// A field that the rule's field `by` shapes.
    pub fn new(field: impl Into<String>, by: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            by: by.into(),
        }
    }

    fn key(key: &str, by: impl Into<String>) -> Self {
        Self::new(format!("/data/{}", pointer_escaped(key)), by)
    }
}

impl Shape {
    /// Returns the fields that the rule leaves out, fills or sets in the copy of this source in this cluster, in the order
    /// of the steps.
    pub fn shaped_fields(&self, about: TemplateContext<'_>) -> Vec<ShapedField> {
        let mut shaped = vec![];
        if self.name.is_some() || self.versioned {
            let by = if self.versioned {
                "versionedName"
            } else {
                "name"
            };
            shaped.push(ShapedField::new(
                "/metadata/name",
                format!("spec.transform.{by}"),
            ));
        }
        for (map, marks) in [("labels", &self.labels), ("annotations", &self.annotations)] {
            shaped.extend(marks.add.keys().map(|key| {
                let field = format!("/metadata/{map}/{}", pointer_escaped(key));
                ShapedField::new(field, format!("spec.transform.{map}.add"))
            }));
        }
        let removed = self.remove_fields.named(NamedBy::RemoveFields);
        shaped.extend(
            removed.map(|named| ShapedField::new(named.key, "spec.transform.removeFields")),
        );
        let filled = self.substitute.keys.iter();
        shaped.extend(filled.map(|key| ShapedField::key(key.as_str(), "spec.substitute.keys")));
        let filled = self.substitute.fields.named(NamedBy::SubstituteFields);
        shaped.extend(filled.map(|named| ShapedField::new(named.key, "spec.substitute.fields")));
        for (number, entry) in self.overrides.iter().enumerate() {
            if entry.chooses(about) {
                entry.add_shaped_fields(number, &mut shaped);
            }
        }
        shaped
    }
}

impl Override {
    fn add_shaped_fields(&self, number: usize, shaped: &mut Vec<ShapedField>) {
        let by = |field: &str| format!("spec.overrides[{number}].{field}");
        let keys = self.data.keys();
        shaped.extend(keys.map(|key| ShapedField::key(key, by("data"))));
        let secrets = self.secret_data.iter();
        shaped.extend(secrets.map(|entry| ShapedField::key(&entry.key, by("secretData"))));
        shaped.extend(
            self.removed_keys()
                .map(|key| ShapedField::key(key, by("remove"))),
        );
        let mut merged = vec![];
        add_leaves(&self.merge_patch(), "", &mut merged);
        shaped.extend(
            merged
                .into_iter()
                .map(|field| ShapedField::new(field, by("mergePatch"))),
        );
        let steps = self.json_patch.iter().filter(|step| step.op != "test");
        shaped.extend(steps.map(|step| ShapedField::new(&step.path, by("jsonPatch"))));
    }
}

/// Adds the pointers of the values of a merge patch.
fn add_leaves(patch: &Map<String, Value>, pointer: &str, found: &mut Vec<String>) {
    for (name, value) in patch {
        let pointer = format!("{pointer}/{}", pointer_escaped(name));
        match value {
            Value::Object(below) if !below.is_empty() => add_leaves(below, &pointer, found),
            _ => found.push(pointer),
        }
    }
}
