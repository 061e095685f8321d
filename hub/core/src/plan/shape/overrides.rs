//! Overrides for some clusters.
use std::collections::BTreeMap;

use json_patch::jsonptr::PointerBuf;
use json_patch::{
    AddOperation, CopyOperation, MoveOperation, PatchErrorKind, PatchOperation, RemoveOperation,
    ReplaceOperation, TestOperation,
};
use runnel_api::{JsonText, PatchStep};
use runnel_proto::model::{
    Content, ContentRules, FIXED_FIELDS, Pattern, matches_any, pointer_unescaped,
};
use serde_json::{Map, Value};

use super::super::{ClusterChoice, RenderErrorKind, SecretRefs};
use super::valid::{CONTENT_LIMIT, json_size};
use super::{ShapeError, TemplateContext, render_error};

/// An override for the clusters that it chooses.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Override {
    clusters: ClusterChoice,
    resources: Vec<String>,
    names: Vec<Pattern>,
    pub(super) data: BTreeMap<String, String>,
    pub(super) secret_data: Vec<runnel_api::SecretValue>,
    remove: Vec<String>,
    /// Text until it is applied, like the values of the steps.
    merge_patch: Option<JsonText>,
    pub(super) json_patch: Vec<PatchStep>,
}

/// Why a patch cannot be applied. The text contains no data.
#[derive(Debug, thiserror::Error)]
enum PatchError {
    #[error("{0} cannot be patched; for labels and annotations use spec.transform")]
    Fixed(String),
    #[error("the kind has no field {0} that can be patched")]
    Unknown(String),
    #[error("step {number} ({path}): {why}")]
    Pointer {
        number: usize,
        path: String,
        why: Box<PatchError>,
    },
    #[error("step {number}: {op} needs {lacks}")]
    Incomplete {
        number: usize,
        op: String,
        lacks: &'static str,
    },
    #[error("step {number} ({op} {path}) fails: {why}")]
    Failed {
        number: usize,
        op: String,
        path: String,
        why: &'static str,
    },
    #[error("step {number} makes it too large: the copy and all added values may have {} bytes together", 2 * CONTENT_LIMIT)]
    TooLarge { number: usize },
}

impl From<&runnel_api::Override> for Override {
    fn from(spec: &runnel_api::Override) -> Self {
        Self {
            clusters: ClusterChoice::from(&spec.clusters),
            resources: spec.resources.clone(),
            names: spec.names.iter().map(Pattern::new).collect(),
            data: spec.data.clone(),
            secret_data: spec.secret_data.clone(),
            remove: spec.remove.clone(),
            merge_patch: spec
                .merge_patch
                .clone()
                .filter(|patch| patch.as_str() != "{}"),
            json_patch: spec.json_patch.clone(),
        }
    }
}

impl Override {
    /// Returns the names of the Secrets whose values it uses.
    pub(super) fn reads_secret(&self) -> impl Iterator<Item = &str> {
        self.secret_data
            .iter()
            .map(|entry| entry.value_from.secret_key_ref.name.as_str())
    }

    /// Returns the names of clusters in its choice.
    pub(super) fn named_clusters(&self) -> impl Iterator<Item = &str> {
        self.clusters.names.iter().map(String::as_str)
    }

    /// Returns the keys that it removes.
    pub(super) fn removed_keys(&self) -> impl Iterator<Item = &str> {
        self.remove.iter().map(String::as_str)
    }

    /// Whether it may add this key.
    pub(super) fn adds(&self, key: &str) -> bool {
        self.data.contains_key(key)
            || self.secret_data.iter().any(|entry| entry.key == key)
            || self.has_patch()
    }

    /// Whether the override applies to the copy of this source in this cluster.
    pub(super) fn chooses(&self, about: TemplateContext<'_>) -> bool {
        let TemplateContext {
            source,
            cluster,
            labels,
            ..
        } = about;
        let is_of_kind = |resource: &String| **resource == *source.resource;
        (self.resources.is_empty() || self.resources.iter().any(is_of_kind))
            && (self.names.is_empty() || matches_any(&self.names, &source.name))
            && self.clusters.chooses(cluster, labels)
    }

    pub(super) fn has_patch(&self) -> bool {
        self.merge_patch.is_some() || !self.json_patch.is_empty()
    }

    /// Decodes the merge patch. The schema refuses all but objects.
    pub(super) fn merge_patch(&self) -> Map<String, Value> {
        match self.merge_patch.as_ref().map(JsonText::value) {
            Some(Value::Object(patch)) => patch,
            _ => Map::new(),
        }
    }

    /// The bytes of both patches, which are decoded for each copy.
    pub(super) fn patch_bytes(&self) -> usize {
        let values = self
            .json_patch
            .iter()
            .filter_map(|step| step.value.as_ref());
        values
            .chain(&self.merge_patch)
            .map(|patch| patch.as_str().len())
            .sum()
    }

    /// Applies the override, if it matches source and cluster. Every reader of the rule sees its fields,
    /// so none is used in a Secret. No content of a Secret is used in another object.
    pub(super) fn apply(
        &self,
        number: usize,
        rules: &ContentRules,
        content: &mut Content,
        about: TemplateContext<'_>,
        secret_refs: &SecretRefs<'_>,
    ) -> Result<(), ShapeError> {
        if !self.chooses(about) {
            return Ok(());
        }
        let field = format!("spec.overrides[{number}]");
        if rules.sensitive && (!self.data.is_empty() || self.has_patch()) {
            let message = format!(
                "{field} for {}: a rule must not hold what belongs into a Secret; name the other kinds in resources of the entry",
                about.source
            );
            return Err(render_error(RenderErrorKind::Transform, message).into());
        }
        if !rules.sensitive && !self.secret_data.is_empty() {
            let message = format!(
                "{field}.secretData for {}: what is in a Secret goes into copies of Secrets only; set resources: [secrets] \
                 in the entry",
                about.source
            );
            return Err(render_error(RenderErrorKind::Transform, message).into());
        }
        if !self.data.is_empty() && rules.exact_maps.is_empty() {
            let message = format!(
                "{field}.data for {}: only ConfigMaps have data; use mergePatch or jsonPatch, or set resources: [configmaps] in the entry",
                about.source
            );
            return Err(render_error(RenderErrorKind::Transform, message).into());
        }
        if !rules.exact_maps.is_empty() {
            self.set_keys(&field, content, about, secret_refs)?;
        }
        if self.has_patch() {
            let fields = std::mem::take(&mut content.fields);
            content.fields = self.patched(rules, fields).map_err(|(patch, why)| {
                let message = format!("{field}.{patch} does not fit {}: {why}", about.source);
                render_error(RenderErrorKind::Transform, message)
            })?;
        }
        Ok(())
    }

    /// Sets and removes keys of `data`, and removes keys of `binaryData`.
    fn set_keys(
        &self,
        field: &str,
        content: &mut Content,
        about: TemplateContext<'_>,
        secret_refs: &SecretRefs<'_>,
    ) -> Result<(), ShapeError> {
        let mut data = match content.fields.remove("data") {
            Some(Value::Object(data)) => data,
            _ => Map::new(),
        };
        data.extend(
            self.data
                .iter()
                .map(|(key, value)| (key.clone(), Value::String(value.clone()))),
        );
        for entry in &self.secret_data {
            let from = &entry.value_from.secret_key_ref;
            let value = secret_refs.value(&about.source.namespace, &from.name, &from.key);
            let value = value.map_err(|lacks| {
                let field = format!("{field}.secretData[{}]", entry.key);
                render_error(
                    RenderErrorKind::Value,
                    format!("{field} for {}: {lacks}", about.source),
                )
            })?;
            data.insert(entry.key.clone(), value.ok_or(ShapeError::Awaited)?);
        }
        for key in &self.remove {
            data.remove(key);
            if let Some(binary) = content
                .fields
                .get_mut("binaryData")
                .and_then(Value::as_object_mut)
            {
                binary.remove(key);
            }
        }
        if !data.is_empty() {
            content
                .fields
                .insert("data".to_owned(), Value::Object(data));
        }
        Ok(())
    }

    /// Returns the top-level fields after both patches, or the field of the override that fails and why.
    fn patched(
        &self,
        rules: &ContentRules,
        fields: BTreeMap<String, Value>,
    ) -> Result<BTreeMap<String, Value>, (&'static str, PatchError)> {
        let mut document = Value::Object(fields.into_iter().collect());
        let merge_patch = self.merge_patch();
        for field in merge_patch.keys() {
            check_field(rules, field).map_err(|why| ("mergePatch", why))?;
        }
        for (field, value) in &merge_patch {
            json_patch::merge(&mut document[field], value);
        }
        self.patch(rules, &mut document)
            .map_err(|why| ("jsonPatch", why))?;
        let is_empty =
            |value: &Value| value.is_null() || value.as_object().is_some_and(Map::is_empty);
        let fields = match document {
            Value::Object(fields) => fields,
            _ => Map::new(),
        };
        Ok(fields
            .into_iter()
            .filter(|(_, value)| !is_empty(value))
            .collect())
    }

    /// Applies the JSON patch. Its steps can double the document, so all that they add is counted.
    fn patch(&self, rules: &ContentRules, document: &mut Value) -> Result<(), PatchError> {
        if self.json_patch.is_empty() {
            return Ok(());
        }
        let mut size = json_size(document);
        for (number, step) in self.json_patch.iter().enumerate() {
            for pointer in [Some(&step.path), step.from.as_ref()].into_iter().flatten() {
                check_pointer(rules, pointer).map_err(|why| PatchError::Pointer {
                    number,
                    path: pointer.clone(),
                    why: why.into(),
                })?;
            }
            let operation = operation(step).ok_or_else(|| PatchError::Incomplete {
                number,
                op: step.op.clone(),
                lacks: if ["copy", "move"].contains(&&*step.op) {
                    "from"
                } else {
                    "a value"
                },
            })?;
            size += match &operation {
                PatchOperation::Add(add) => json_size(&add.value),
                PatchOperation::Replace(replace) => json_size(&replace.value),
                PatchOperation::Copy(copy) => {
                    document.pointer(copy.from.as_str()).map_or(0, json_size)
                }
                PatchOperation::Remove(_) | PatchOperation::Move(_) | PatchOperation::Test(_) => 0,
            };
            if size > 2 * CONTENT_LIMIT {
                return Err(PatchError::TooLarge { number });
            }
            json_patch::patch(document, &[operation]).map_err(|error| PatchError::Failed {
                number,
                op: step.op.clone(),
                path: step.path.clone(),
                why: match error.kind {
                    PatchErrorKind::TestFailed => "another value is there",
                    PatchErrorKind::InvalidFromPointer => "from leads to no field",
                    PatchErrorKind::CannotMoveInsideItself => "a field cannot move into itself",
                    _ => "the path leads to no field",
                },
            })?;
        }
        Ok(())
    }
}

/// Returns the operation of a step; `None` if it lacks something.
fn operation(step: &PatchStep) -> Option<PatchOperation> {
    let pointer = |text: &str| PointerBuf::parse(text).ok();
    let path = pointer(&step.path)?;
    let from = || pointer(step.from.as_deref()?);
    let value = || step.value.as_ref().map(JsonText::value);
    Some(match step.op.as_str() {
        "add" => PatchOperation::Add(AddOperation {
            path,
            value: value()?,
        }),
        "replace" => PatchOperation::Replace(ReplaceOperation {
            path,
            value: value()?,
        }),
        "test" => PatchOperation::Test(TestOperation {
            path,
            value: value()?,
        }),
        "remove" => PatchOperation::Remove(RemoveOperation { path }),
        "copy" => PatchOperation::Copy(CopyOperation {
            path,
            from: from()?,
        }),
        "move" => PatchOperation::Move(MoveOperation {
            path,
            from: from()?,
        }),
        _ => return None,
    })
}

/// Checks that a pointer leads to a field that may be patched, or into one.
fn check_pointer(rules: &ContentRules, pointer: &str) -> Result<(), PatchError> {
    let top = pointer.strip_prefix('/').unwrap_or_default();
    let top = top.split('/').next().unwrap_or_default();
    check_field(rules, &pointer_unescaped(top))
}

/// Checks that a top-level field of copies may be patched.
fn check_field(rules: &ContentRules, field: &str) -> Result<(), PatchError> {
    if FIXED_FIELDS.contains(&field) {
        return Err(PatchError::Fixed(field.to_owned()));
    }
    if field.is_empty() || !(rules.fields.is_empty() || rules.fields.contains(&field)) {
        return Err(PatchError::Unknown(field.to_owned()));
    }
    Ok(())
}
