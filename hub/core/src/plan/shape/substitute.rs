//! Variables in the texts of copies.
use data_encoding::BASE64;
use runnel_proto::model::{
    Content, ContentRules, FieldPath, FieldStep, Pattern, SourceRef, matches_any, pointer_escaped,
};
use serde_json::Value;

use super::super::{RenderError, RenderErrorKind};
use super::pointers::Pointers;
use super::template::{self, TemplateError};
use super::valid::{CONTENT_LIMIT, SIZE_LIMIT};
use super::{TemplateContext, render_error};

/// Where variables are filled.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Substitute {
    /// Keys of `data`.
    pub(super) keys: Vec<Pattern>,
    /// Fields of the content.
    pub(super) fields: Pointers,
}

/// Why a text in a field cannot be filled.
struct Unfilled {
    /// The steps to the text, the last one first.
    steps: Vec<String>,
    kind: RenderErrorKind,
    message: String,
}

impl From<&runnel_api::Substitute> for Substitute {
    fn from(spec: &runnel_api::Substitute) -> Self {
        Self {
            keys: spec.keys.iter().map(Pattern::new).collect(),
            fields: Pointers::new("spec.substitute.fields", &spec.fields),
        }
    }
}

impl Substitute {
    /// Whether nothing is filled.
    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.fields.is_empty()
    }

    /// Calls `take` with each text in which variables are filled. `rename` gives the name that a key has in copies.
    pub(super) fn each_text(
        &self,
        rules: &ContentRules,
        content: &Content,
        rename: impl Fn(&str) -> String,
        mut take: impl FnMut(&str),
    ) {
        let data = content.fields.get("data").and_then(Value::as_object);
        let data = data.filter(|_| !rules.exact_maps.is_empty());
        for (key, value) in data.into_iter().flatten() {
            if matches_any(&self.keys, &rename(key)) {
                let text = value.as_str().unwrap_or_default();
                take(&text_of(rules, text).unwrap_or_default());
            }
        }
        if self.fields.is_empty() {
            return;
        }
        let mut fields = content.fields.clone();
        let paths = self.paths();
        let mut note = |text: &str| {
            take(text);
            Ok(None)
        };
        for (name, value) in &mut fields {
            // A text that cannot be filled is an error of the copy, not of this reading.
            let _ = fill_below(value, &below_name(&paths, name), &mut note);
        }
    }

    /// Fills the variables.
    pub(super) fn apply(
        &self,
        rules: &ContentRules,
        content: &mut Content,
        about: TemplateContext<'_>,
    ) -> Result<(), RenderError> {
        if !rules.exact_maps.is_empty() {
            self.fill_keys(rules, content, about)?;
        }
        self.fill_fields(rules, content, about)
    }

    /// Fills the chosen keys of `data`; `binaryData` is unchanged.
    fn fill_keys(
        &self,
        rules: &ContentRules,
        content: &mut Content,
        about: TemplateContext<'_>,
    ) -> Result<(), RenderError> {
        let data = content.fields.get_mut("data");
        let Some(data) = data.and_then(Value::as_object_mut) else {
            return Ok(());
        };
        // No object is larger, so nothing is filled any further.
        let mut room = SIZE_LIMIT;
        for (key, value) in data
            .iter_mut()
            .filter(|(key, _)| matches_any(&self.keys, key))
        {
            let field = || format!("spec.substitute for {key} of {}", about.source);
            let text = text_of(rules, value.as_str().unwrap_or_default());
            let text = text.ok_or_else(|| {
                render_error(
                    RenderErrorKind::Transform,
                    format!("{}: the value is no text", field()),
                )
            })?;
            let filled = template::fill(&text, about, room).map_err(|unfilled| {
                render_error(
                    kind_of(&unfilled),
                    format!("{}: {}", field(), unfilled.describe(!rules.sensitive)),
                )
            })?;
            room = room.saturating_sub(filled.len());
            *value = Value::String(if rules.sensitive {
                BASE64.encode(filled.as_bytes())
            } else {
                filled
            });
        }
        Ok(())
    }

    /// Fills every text in the chosen fields, once.
    fn fill_fields(
        &self,
        rules: &ContentRules,
        content: &mut Content,
        about: TemplateContext<'_>,
    ) -> Result<(), RenderError> {
        self.fields.check(about.source)?;
        let is_value = |path: &FieldPath| {
            path.top_field()
                .is_some_and(|field| rules.exact_maps.contains(&field))
        };
        if rules.sensitive && self.fields.paths().any(is_value) {
            let message = format!(
                "spec.substitute.fields for {}: values of Secrets are filled by spec.substitute.keys; use a rule of its \
                 own for Secrets",
                about.source
            );
            return Err(render_error(RenderErrorKind::Transform, message));
        }
        let paths = self.paths();
        let mut room = CONTENT_LIMIT;
        let mut fill = |text: &str| {
            let filled = template::fill(text, about, room).map_err(|unfilled| Unfilled {
                steps: vec![],
                kind: kind_of(&unfilled),
                message: unfilled.describe(true),
            })?;
            room = room.saturating_sub(filled.len());
            Ok(Some(filled))
        };
        for (name, value) in &mut content.fields {
            let below = below_name(&paths, name);
            let filled = match value {
                // Their variables are filled already.
                Value::Object(data) if name == "data" && !self.keys.is_empty() => {
                    let others = data
                        .iter_mut()
                        .filter(|(key, _)| !matches_any(&self.keys, key));
                    others.into_iter().try_for_each(|(key, value)| {
                        fill_below(value, &below_name(&below, key), &mut fill)
                            .map_err(|unfilled| unfilled.inside(key))
                    })
                }
                value => fill_below(value, &below, &mut fill),
            };
            filled.map_err(|unfilled| unfilled.inside(name).describe(about.source))?;
        }
        Ok(())
    }

    fn paths(&self) -> Vec<Box<[FieldStep]>> {
        let paths = self.fields.paths().map(FieldPath::steps);
        paths.filter(|steps| !steps.is_empty()).collect()
    }
}

impl Unfilled {
    fn inside(mut self, step: &str) -> Self {
        self.steps.push(pointer_escaped(step));
        self
    }

    fn describe(mut self, source: &SourceRef) -> RenderError {
        self.steps.reverse();
        let pointer = self.steps.join("/");
        let message = format!(
            "spec.substitute.fields for /{pointer} of {source}: {}",
            self.message
        );
        render_error(self.kind, message)
    }
}

/// Returns what is left of the paths that lead into the field with this name. A path that ends above it stays empty.
fn below_name<'p>(paths: &'p [impl AsRef<[FieldStep]>], name: &str) -> Vec<&'p [FieldStep]> {
    below(
        paths,
        |step| matches!(step, FieldStep::Name(own) if **own == *name),
    )
}

fn below<'p>(
    paths: &'p [impl AsRef<[FieldStep]>],
    leads: impl Fn(&FieldStep) -> bool,
) -> Vec<&'p [FieldStep]> {
    let rest = |path: &'p _| match AsRef::<[FieldStep]>::as_ref(path).split_first() {
        None => Some(&[][..]),
        Some((step, rest)) => leads(step).then_some(rest),
    };
    paths.iter().filter_map(rest).collect()
}

/// Calls `fill` with each text to which, or into which, one of the paths leads, and replaces it by the answer.
fn fill_below(
    value: &mut Value,
    paths: &[&[FieldStep]],
    fill: &mut impl FnMut(&str) -> Result<Option<String>, Unfilled>,
) -> Result<(), Unfilled> {
    if paths.is_empty() {
        return Ok(());
    }
    match value {
        Value::String(text) if paths.iter().any(|path| path.is_empty()) => {
            if let Some(filled) = fill(text)? {
                *text = filled;
            }
            Ok(())
        }
        Value::Object(fields) => fields.iter_mut().try_for_each(|(name, value)| {
            fill_below(value, &below_name(paths, name), fill)
                .map_err(|unfilled| unfilled.inside(name))
        }),
        Value::Array(items) => items.iter_mut().enumerate().try_for_each(|(number, item)| {
            let inside = below(paths, |step| step.selects(item));
            fill_below(item, &inside, fill).map_err(|unfilled| unfilled.inside(&number.to_string()))
        }),
        _ => Ok(()),
    }
}

fn kind_of(unfilled: &TemplateError<'_>) -> RenderErrorKind {
    if *unfilled == TemplateError::TooLong {
        RenderErrorKind::Object
    } else {
        RenderErrorKind::Variable
    }
}

/// Returns a value of `data` as text. Values of Secrets are base64.
fn text_of(rules: &ContentRules, value: &str) -> Option<String> {
    if !rules.sensitive {
        return Some(value.to_owned());
    }
    String::from_utf8(BASE64.decode(value.as_bytes()).ok()?).ok()
}
