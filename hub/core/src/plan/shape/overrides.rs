//! Overrides for some clusters.
use std::collections::BTreeMap;

use runnel_proto::model::{Content, Kind};
use serde_json::{Map, Value, json};

use super::super::{ClusterChoice, RenderErrorKind, SecretRefs};
use super::{ShapeError, TemplateContext, render_error};

/// An override for the clusters that it chooses.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Override {
    clusters: ClusterChoice,
    data: BTreeMap<String, String>,
    secret_data: Vec<runnel_api::SecretValue>,
    remove: Vec<String>,
    patch: Vec<runnel_api::PatchStep>,
}

/// Why a JSON patch cannot be applied. The text contains no data.
#[derive(Debug, thiserror::Error)]
enum PatchError {
    #[error("step {number} is not about /data/KEY")]
    NotData { number: usize },
    #[error("step {number} lacks what {op} needs")]
    Incomplete { number: usize, op: String },
    #[error("step {number} ({op} {path}) fails")]
    Failed {
        number: usize,
        op: String,
        path: String,
    },
}

impl From<&runnel_api::Override> for Override {
    fn from(spec: &runnel_api::Override) -> Self {
        Self {
            clusters: ClusterChoice::from(&spec.clusters),
            data: spec.data.clone(),
            secret_data: spec.secret_data.clone(),
            remove: spec.remove.clone(),
            patch: spec.json_patch.clone(),
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
            || !self.patch.is_empty()
    }

    /// Whether the override applies to this cluster.
    pub(super) fn chooses(&self, about: TemplateContext<'_>) -> bool {
        self.clusters.chooses(about.cluster, about.labels)
    }

    /// Applies the override, if it matches the cluster. Every reader of the rule sees its fields,
    /// so none is used in a Secret. No content of a Secret is used in another object.
    pub(super) fn apply(
        &self,
        number: usize,
        kind: &Kind,
        content: &mut Content,
        about: TemplateContext<'_>,
        secret_refs: &SecretRefs<'_>,
    ) -> Result<(), ShapeError> {
        if !self.chooses(about) {
            return Ok(());
        }
        let field = format!("spec.overrides[{number}]");
        if kind.content.sensitive && !(self.data.is_empty() && self.patch.is_empty()) {
            let message = format!(
                "{field} for {}: a rule must not hold what belongs into a Secret; use a rule of its own for ConfigMaps",
                about.source
            );
            return Err(render_error(RenderErrorKind::Transform, message).into());
        }
        if !kind.content.sensitive && !self.secret_data.is_empty() {
            let message = format!(
                "{field}.secretData for {}: what is in a Secret goes into copies of Secrets only; use a rule of its own \
                 for them",
                about.source
            );
            return Err(render_error(RenderErrorKind::Transform, message).into());
        }
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
        if !self.patch.is_empty() {
            data = self.patched(data).map_err(|why| {
                render_error(
                    RenderErrorKind::Transform,
                    format!(
                        "{field}.jsonPatch does not fit the data of {}: {why}",
                        about.source
                    ),
                )
            })?;
        }
        if !data.is_empty() {
            content
                .fields
                .insert("data".to_owned(), Value::Object(data));
        }
        Ok(())
    }

    fn patched(&self, data: Map<String, Value>) -> Result<Map<String, Value>, PatchError> {
        let mut document = json!({"data": data});
        for (number, step) in self.patch.iter().enumerate() {
            let path = |text: &str| {
                text.strip_prefix("/data/")
                    .is_some_and(|key| !key.is_empty() && !key.contains('/'))
            };
            if !path(&step.path) || step.from.as_deref().is_some_and(|from| !path(from)) {
                return Err(PatchError::NotData { number });
            }
            let operation = serde_json::to_value(step)
                .and_then(serde_json::from_value::<json_patch::PatchOperation>);
            let operation = operation.map_err(|_| PatchError::Incomplete {
                number,
                op: step.op.clone(),
            })?;
            json_patch::patch(&mut document, &[operation]).map_err(|_| PatchError::Failed {
                number,
                op: step.op.clone(),
                path: step.path.clone(),
            })?;
        }
        match document["data"].take() {
            Value::Object(data) => Ok(data),
            _ => Ok(Map::new()),
        }
    }
}
