//! The difference between copies and their sources for one cluster: name, keys, labels, annotations
//! and type, filled variables, and overrides. Pure.
//!
//! Each step reports what it cannot do, with the field and the source, and never with a value of an
//! object.
mod overrides;
mod pointers;
mod shaped_fields;
mod substitute;
mod template;
#[cfg(test)]
mod tests;
mod valid;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use data_encoding::HEXLOWER;
use ring::digest::{Context, SHA256};
use runnel_proto::model::{
    Content, ContentRules, MANAGED_BY_LABEL, Pattern, RESERVED_PREFIX, Revision, SourceRef,
    VERSION_DIGITS, is_subdomain, matches_any, pointer_unescaped,
};
use serde_json::{Map, Value};

use super::content::may_be_allowed;
use super::{RenderError, RenderErrorKind, SecretRefs};
use overrides::Override;
use pointers::Pointers;
pub use shaped_fields::ShapedField;
use substitute::Substitute;
pub use template::{TemplateContext, TemplateInputs};

/// The most bytes to which the template of a name is filled; no name is longer, and the message shows how it begins.
const NAME_LIMIT: usize = 1024;

/// The form that a rule gives to its copies.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shape {
    name: Option<String>,
    /// Whether the name contains a digest of the content.
    versioned: bool,
    include: Vec<Pattern>,
    exclude: Vec<Pattern>,
    rename: BTreeMap<String, String>,
    labels: Marks,
    annotations: Marks,
    secret_type: Option<String>,
    remove_fields: Pointers,
    substitute: Substitute,
    overrides: Vec<Override>,
}

/// An exact key or field in the spec of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedKey<'a> {
    /// Where the rule names it.
    pub by: NamedBy,
    /// The key, as copies call it, or the pointer.
    pub key: &'a str,
}

/// A field of a rule that names keys or fields of its sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamedBy {
    /// `spec.substitute.keys`.
    SubstituteKeys,
    /// `remove` of the override with this position.
    Remove(usize),
    /// `spec.transform.removeFields`, at this position.
    RemoveFields(usize),
    /// `spec.substitute.fields`, at this position.
    SubstituteFields(usize),
}

/// The transformation of labels, or of annotations.
#[derive(Clone, Debug, Default, PartialEq)]
struct Marks {
    add: BTreeMap<String, String>,
    drop: Vec<Pattern>,
    allow: Vec<Pattern>,
}

impl From<&runnel_api::Marks> for Marks {
    fn from(spec: &runnel_api::Marks) -> Self {
        Self {
            add: spec.add.clone(),
            drop: patterns(&spec.drop),
            allow: patterns(&spec.allow),
        }
    }
}

/// Why there is no content.
#[derive(Clone, Debug, PartialEq)]
pub enum ShapeError {
    /// The copy cannot be rendered as the rule requires.
    Failed(RenderError),
    /// A value of it is still being read.
    Awaited,
}

impl From<RenderError> for ShapeError {
    fn from(render_error: RenderError) -> Self {
        ShapeError::Failed(render_error)
    }
}

fn patterns(texts: &[String]) -> Vec<Pattern> {
    texts.iter().map(Pattern::new).collect()
}

fn render_error(why: RenderErrorKind, message: impl Into<Arc<str>>) -> RenderError {
    RenderError {
        why,
        message: message.into(),
    }
}

impl Shape {
    /// Reads the fields of a rule.
    pub fn new(spec: &runnel_api::RuleTerms) -> Self {
        let transform = spec.transform.clone().unwrap_or_default();
        let keys = transform.keys.unwrap_or_default();
        let marks =
            |spec: &Option<runnel_api::Marks>| spec.as_ref().map(Into::into).unwrap_or_default();
        Self {
            name: transform.name,
            versioned: transform.versioned_name.is_some(),
            include: patterns(&keys.include),
            exclude: patterns(&keys.exclude),
            rename: keys.rename,
            labels: marks(&transform.labels),
            annotations: marks(&transform.annotations),
            secret_type: transform.secret_type,
            remove_fields: Pointers::new("spec.transform.removeFields", &transform.remove_fields),
            substitute: spec.substitute.as_ref().map(Into::into).unwrap_or_default(),
            overrides: spec.overrides.iter().map(Into::into).collect(),
        }
    }

    /// Whether copies are what their sources are, in name and content.
    pub fn is_plain(&self) -> bool {
        *self == Self::default()
    }

    /// Whether copies may be other objects than their sources: by their name, or by any of their fields.
    pub fn makes_other_objects(&self) -> bool {
        self.name.is_some()
            || !self.remove_fields.is_empty()
            || !self.substitute.fields.is_empty()
            || self.overrides.iter().any(Override::has_patch)
    }

    /// Whether copies have a label or annotation of this path although it is left out by default.
    pub fn allows(&self, path: &str) -> bool {
        let allows = |place, marks: &Marks| {
            let key = path.strip_prefix(place).map(pointer_unescaped);
            key.is_some_and(|key| may_be_allowed(&key) && matches_any(&marks.allow, &key))
        };
        allows("/metadata/labels/", &self.labels)
            || allows("/metadata/annotations/", &self.annotations)
    }

    /// Whether copies contain a value of a Secret of this name.
    pub fn reads_secret(&self, name: &str) -> bool {
        self.secrets_read().any(|lender| lender == name)
    }

    /// Returns the names of the Secrets whose values are used in copies.
    pub fn secrets_read(&self) -> impl Iterator<Item = &str> {
        self.overrides.iter().flat_map(Override::reads_secret)
    }

    /// Whether only the name of copies may be another one.
    pub fn leaves_content(&self) -> bool {
        let Self {
            name: _,
            versioned: _,
            include,
            exclude,
            rename,
            labels,
            annotations,
            secret_type,
            remove_fields,
            substitute,
            overrides,
        } = self;
        let has_marks = |marks: &Marks| *marks != Marks::default();
        include.is_empty()
            && exclude.is_empty()
            && rename.is_empty()
            && !has_marks(labels)
            && !has_marks(annotations)
            && secret_type.is_none()
            && *remove_fields == Pointers::default()
            && substitute.is_empty()
            && overrides.is_empty()
    }

    /// The bytes of patches that are decoded and applied to a copy.
    pub fn patch_bytes(&self, about: TemplateContext<'_>) -> usize {
        let chosen = self.overrides.iter().filter(|entry| entry.chooses(about));
        chosen.map(Override::patch_bytes).sum()
    }

    /// Whether copies in one cluster may differ from those in another.
    pub fn differs_by_cluster(&self) -> bool {
        let names = self
            .name
            .as_deref()
            .is_some_and(template::depends_on_cluster);
        names || !self.substitute.is_empty() || !self.overrides.is_empty()
    }

    /// Returns the exact keys and fields that the rule names to change or to remove them.
    pub fn named_keys(&self) -> Vec<NamedKey<'_>> {
        let substituted = self.substitute.keys.iter().filter(|key| key.is_literal());
        let substituted = substituted.map(|key| NamedKey {
            by: NamedBy::SubstituteKeys,
            key: key.as_str(),
        });
        let removed = self
            .overrides
            .iter()
            .enumerate()
            .flat_map(|(number, entry)| {
                entry.removed_keys().map(move |key| NamedKey {
                    by: NamedBy::Remove(number),
                    key,
                })
            })
            .filter(|named| !self.overrides.iter().any(|entry| entry.adds(named.key)));
        substituted
            .chain(removed)
            .chain(self.remove_fields.named(NamedBy::RemoveFields))
            .chain(self.substitute.fields.named(NamedBy::SubstituteFields))
            .collect()
    }

    /// Returns the positions in [`Shape::named_keys`] of the keys and fields that copies of this content have.
    pub fn found_keys(&self, content: &Content) -> Vec<usize> {
        let named = self.named_keys();
        if named.is_empty() {
            return Vec::new();
        }
        let keys = |field: &str| -> BTreeSet<&str> {
            let map = content.fields.get(field).and_then(Value::as_object);
            map.into_iter()
                .flat_map(Map::keys)
                .filter(|key| self.is_copied(key))
                .map(|key| self.rename.get(key).unwrap_or(key).as_str())
                .collect()
        };
        let (texts, bytes) = (keys("data"), keys("binaryData"));
        let is_found = |named: &NamedKey<'_>| match named.by {
            NamedBy::SubstituteKeys => texts.contains(named.key),
            NamedBy::Remove(_) => texts.contains(named.key) || bytes.contains(named.key),
            NamedBy::RemoveFields(at) => self.remove_fields.is_found(at, content),
            NamedBy::SubstituteFields(at) => self.substitute.fields.is_found(at, content),
        };
        let found = named.iter().enumerate().filter(|(_, key)| is_found(key));
        found.map(|(position, _)| position).collect()
    }

    /// Whether copies get this key of their source.
    fn is_copied(&self, key: &str) -> bool {
        (self.include.is_empty() || matches_any(&self.include, key))
            && !matches_any(&self.exclude, key)
    }

    /// Returns the names of clusters that each override names, with its position.
    pub fn named_clusters(&self) -> impl Iterator<Item = (usize, &str)> {
        self.overrides
            .iter()
            .enumerate()
            .flat_map(|(number, entry)| entry.named_clusters().map(move |name| (number, name)))
    }

    /// Returns the cluster properties that the copies of a source depend on.
    pub fn reads(&self, source: &SourceRef, content: &Content) -> TemplateInputs {
        let rules = ContentRules::of(&source.resource);
        let rename = |key: &str| self.rename.get(key).map_or(key, String::as_str).to_owned();
        let mut reads = TemplateInputs::default();
        self.substitute
            .each_text(rules, content, rename, |text| reads.note(text));
        reads
    }

    /// Returns these properties of a cluster as text; equal texts give equal contents.
    pub fn read(&self, reads: &TemplateInputs, about: TemplateContext<'_>) -> String {
        let chooses = |change: &Override| if change.chooses(about) { '1' } else { '0' };
        let mut read: String = self.overrides.iter().map(chooses).collect();
        reads.read(about, &mut read);
        read
    }

    /// The name of the copies with this content, given the result of [`Shape::name`]. The digest is
    /// computed from the revision, which is keyed, and the source. It reveals nothing about the
    /// content, not even that two sources are equal, and stays the same after a restart.
    pub fn versioned(&self, name: Arc<str>, source: &SourceRef, revision: &Revision) -> Arc<str> {
        if !self.versioned {
            return name;
        }
        let mut digest = Context::new(&SHA256);
        digest.update(&revision.0);
        digest.update(source.plain().to_string().as_bytes());
        format!(
            "{name}-{}",
            HEXLOWER.encode(&digest.finish().as_ref()[..VERSION_DIGITS / 2])
        )
        .into()
    }

    /// The name of the copies; without the digest of their content, where they are called by that as well.
    ///
    /// # Errors
    /// When it cannot be made, or is none for an object.
    pub fn name(&self, about: TemplateContext<'_>) -> Result<Arc<str>, RenderError> {
        let name = self.plain_name(about)?;
        if self.versioned && name.len() + 1 + VERSION_DIGITS > 253 {
            let message = format!(
                "spec.transform.versionedName for {}: {:?} and a digest are longer than 253 characters; give a shorter \
                 spec.transform.name",
                about.source,
                cut(&name)
            );
            return Err(render_error(RenderErrorKind::Name, message));
        }
        Ok(name)
    }

    fn plain_name(&self, about: TemplateContext<'_>) -> Result<Arc<str>, RenderError> {
        let Some(template) = &self.name else {
            return Ok(about.source.name.clone());
        };
        let field = format!("spec.transform.name for {}", about.source);
        let name = template::fill(template, about, NAME_LIMIT).map_err(|unfilled| {
            render_error(
                RenderErrorKind::Variable,
                format!("{field}: {}", unfilled.describe(true)),
            )
        })?;
        if !is_subdomain(&name) {
            let message = format!(
                "{field} gives {:?}, and an object cannot be called so: a name has up to 253 lowercase letters, digits, \
                 '-' and '.', with a letter or digit at both ends",
                cut(&name)
            );
            return Err(render_error(RenderErrorKind::Name, message));
        }
        if ContentRules::of(&about.source.resource).refuses_name(&name) {
            let message = format!("{field} gives {name:?}, which every cluster makes itself");
            return Err(render_error(RenderErrorKind::Name, message));
        }
        Ok(name.into())
    }

    /// Renders the content of the copies. `denied` are the labels and annotations of the source
    /// that are not copied unless the rule allows them. `secret_refs` are the Secrets whose values
    /// go into copies of other sources.
    ///
    /// # Errors
    /// When the copy cannot be rendered, cannot be rendered yet, or an API server would refuse it.
    pub fn content(
        &self,
        mut content: Content,
        denied: &Content,
        about: TemplateContext<'_>,
        secret_refs: &SecretRefs<'_>,
    ) -> Result<Content, ShapeError> {
        let rules = ContentRules::of(&about.source.resource);
        self.labels
            .apply("labels", &mut content.labels, &denied.labels)?;
        self.annotations
            .apply("annotations", &mut content.annotations, &denied.annotations)?;
        self.choose_keys(rules, &mut content, about.source)?;
        if let Some(secret_type) = self
            .secret_type
            .as_ref()
            .filter(|_| rules.fields.contains(&"type"))
        {
            content
                .fields
                .insert("type".to_owned(), Value::String(secret_type.clone()));
        }
        self.remove_fields.check(about.source)?;
        self.remove_fields
            .paths()
            .for_each(|path| content.remove(path));
        self.substitute.apply(rules, &mut content, about)?;
        for (number, change) in self.overrides.iter().enumerate() {
            change.apply(number, rules, &mut content, about, secret_refs)?;
        }
        match valid::flaw(rules, &content) {
            None => Ok(content),
            Some(flaw) => {
                let message = format!(
                    "the copies of {} would be refused by any API server: {flaw}",
                    about.source
                );
                Err(render_error(RenderErrorKind::Object, message).into())
            }
        }
    }

    fn choose_keys(
        &self,
        rules: &ContentRules,
        content: &mut Content,
        source: &SourceRef,
    ) -> Result<(), RenderError> {
        if self.include.is_empty() && self.exclude.is_empty() && self.rename.is_empty() {
            return Ok(());
        }
        let mut taken = BTreeMap::new();
        for field in rules.exact_maps {
            let Some(Value::Object(map)) = content.fields.remove(*field) else {
                continue;
            };
            let mut kept = Map::new();
            for (key, value) in map.into_iter().filter(|(key, _)| self.is_copied(key)) {
                let name = self.rename.get(&key).unwrap_or(&key).clone();
                if let Some(other) = taken.insert(name.clone(), key.clone()) {
                    let message = format!(
                        "spec.transform.keys.rename for {source}: {other} and {key} would both be called {name}; exclude \
                         or rename one"
                    );
                    return Err(render_error(RenderErrorKind::Transform, message));
                }
                kept.insert(name, value);
            }
            if !kept.is_empty() {
                content
                    .fields
                    .insert((*field).to_owned(), Value::Object(kept));
            }
        }
        Ok(())
    }
}

impl Marks {
    fn apply(
        &self,
        field: &str,
        marks: &mut BTreeMap<String, String>,
        denied: &BTreeMap<String, String>,
    ) -> Result<(), RenderError> {
        let own = |key: &&String| key.starts_with(RESERVED_PREFIX) || *key == MANAGED_BY_LABEL;
        if let Some(key) = self.add.keys().find(own) {
            let message = format!(
                "spec.transform.{field}.add: {key} is a mark of Runnel's own; choose another key"
            );
            return Err(render_error(RenderErrorKind::Transform, message));
        }
        let allowed = denied
            .iter()
            .filter(|(key, _)| matches_any(&self.allow, key));
        marks.extend(allowed.map(|(key, value)| (key.clone(), value.clone())));
        marks.retain(|key, _| !matches_any(&self.drop, key));
        marks.extend(
            self.add
                .iter()
                .map(|(key, value)| (key.clone(), value.clone())),
        );
        Ok(())
    }
}

/// Returns the beginning of a name, long enough for a person to recognize it.
fn cut(name: &str) -> String {
    name.chars().take(80).collect()
}
