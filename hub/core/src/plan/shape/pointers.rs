//! Fields that a rule names by JSON pointers.
use runnel_proto::model::{Content, FieldPath, SourceRef};

use super::super::{RenderError, RenderErrorKind};
use super::{NamedBy, NamedKey, render_error};

/// The pointers of one field of a rule.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Pointers {
    /// The field of the rule.
    field: &'static str,
    /// The texts, and the paths that they are.
    all: Vec<(String, Option<FieldPath>)>,
}

impl Pointers {
    /// Reads the pointers in a field of a rule.
    pub(super) fn new(field: &'static str, texts: &[String]) -> Self {
        let read = |text: &String| (text.clone(), FieldPath::parse(text));
        let all: Vec<_> = texts.iter().map(read).collect();
        // Equal to a rule without the field.
        let field = if all.is_empty() { "" } else { field };
        Self { field, all }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Returns the fields.
    pub(super) fn paths(&self) -> impl Iterator<Item = &FieldPath> {
        self.all.iter().filter_map(|(_, path)| path.as_ref())
    }

    /// Returns each pointer with the place where the rule names it.
    pub(super) fn named(&self, by: fn(usize) -> NamedBy) -> impl Iterator<Item = NamedKey<'_>> {
        self.all
            .iter()
            .enumerate()
            .map(move |(number, (text, _))| NamedKey {
                by: by(number),
                key: text,
            })
    }

    /// Whether the content has the field with this position.
    pub(super) fn is_found(&self, position: usize, content: &Content) -> bool {
        let path = self.all.get(position).and_then(|(_, path)| path.as_ref());
        path.is_some_and(|path| path.is_in(&content.fields))
    }

    /// Checks that each is a pointer to a field. The API server has checked it for rules that are stored.
    pub(super) fn check(&self, source: &SourceRef) -> Result<(), RenderError> {
        let Some((text, _)) = self.all.iter().find(|(_, path)| path.is_none()) else {
            return Ok(());
        };
        let message = format!(
            "{} for {source}: {text:?} is no pointer to a field of copies; write one such as /spec/replicas or \
             /spec/ports/[name=web]/nodePort",
            self.field
        );
        Err(render_error(RenderErrorKind::Transform, message))
    }
}
