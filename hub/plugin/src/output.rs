//! The output formats of rules and members, as `kubectl get` has them.
use std::ffi::OsStr;
use std::str::FromStr;

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use serde_json::Value;

use super::jsonpath::{Template, TemplateError};

/// An output format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListOutput {
    /// A table with more columns.
    Wide,
    /// JSON.
    Json,
    /// YAML.
    Yaml,
    /// The names, as `kind.group/name`.
    Name,
    /// The text of a template.
    JsonPath(Template),
}

/// A format that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OutputError {
    /// No such format.
    #[error("write wide, json, yaml, name or jsonpath=TEMPLATE")]
    Unknown,
    /// A wrong template.
    #[error(transparent)]
    Template(#[from] TemplateError),
}

impl FromStr for ListOutput {
    type Err = OutputError;

    fn from_str(text: &str) -> Result<Self, OutputError> {
        match text.split_once('=') {
            Some(("jsonpath", template)) => Ok(Self::JsonPath(template.parse()?)),
            Some(_) => Err(OutputError::Unknown),
            None => match text {
                "wide" => Ok(Self::Wide),
                "json" => Ok(Self::Json),
                "yaml" => Ok(Self::Yaml),
                "name" => Ok(Self::Name),
                _ => Err(OutputError::Unknown),
            },
        }
    }
}

/// Reads a format from the command line, and offers the known ones to completion.
#[derive(Clone, Copy, Debug)]
pub struct ListOutputParser;

impl TypedValueParser for ListOutputParser {
    type Value = ListOutput;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<ListOutput, clap::Error> {
        StringValueParser::new()
            .try_map(|text| text.parse::<ListOutput>())
            .parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let known = ["wide", "json", "yaml", "name", "jsonpath="];
        Some(Box::new(known.into_iter().map(PossibleValue::new)))
    }
}

impl ListOutput {
    /// Formats an object or a list for machines; `None` for a table.
    ///
    /// # Errors
    /// When it cannot be written as YAML.
    pub fn text(&self, object: &Value) -> anyhow::Result<Option<String>> {
        Ok(match self {
            Self::Wide => None,
            Self::Json => Some(serde_json::to_string_pretty(object)? + "\n"),
            Self::Yaml => Some(serde_saphyr::to_string(object)?),
            Self::Name => Some(names(object)),
            Self::JsonPath(template) => Some(template.text(object)),
        })
    }
}

/// Returns the names of the objects of a list, or of one object, a line each.
fn names(object: &Value) -> String {
    match object["items"].as_array() {
        Some(items) => items.iter().map(name).collect(),
        None => name(object),
    }
}

fn name(object: &Value) -> String {
    let text = |pointer: &str| {
        let value = object.pointer(pointer);
        value.and_then(Value::as_str).unwrap_or_default()
    };
    let group = text("/apiVersion")
        .split_once('/')
        .map_or("", |(group, _)| group);
    let kind = text("/kind").to_lowercase();
    format!("{kind}.{group}/{}\n", text("/metadata/name"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn formats_are_those_of_kubectl() {
        let object = json!({
            "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionRule", "metadata": {"name": "a"},
        });
        let list = json!({"kind": "List", "items": [object, object]});
        let text = |format: &str, value: &Value| {
            format.parse::<ListOutput>().unwrap().text(value).unwrap()
        };
        assert_eq!(text("wide", &object), None);
        let line = "distributionrule.runnel.dev/a\n";
        assert_eq!(text("name", &object).unwrap(), line);
        assert_eq!(text("name", &list).unwrap(), line.repeat(2));
        let template = "jsonpath={.items[*].metadata.name}";
        assert_eq!(text(template, &list).unwrap(), "a a");
        assert!(
            text("yaml", &object)
                .unwrap()
                .contains("kind: DistributionRule")
        );
        for wrong in ["", "table", "json=x", "jsonpath", "jsonpath=.a"] {
            assert!(wrong.parse::<ListOutput>().is_err(), "{wrong}");
        }
    }
}
