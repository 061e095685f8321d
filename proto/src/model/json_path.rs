//! A path to one field of an object, in a part of the language of kubectl and of columns of CustomResourceDefinitions.
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

/// The longest path, in bytes.
pub const JSON_PATH_LIMIT: usize = 256;
/// The most steps of a path.
const STEPS_LIMIT: usize = 16;

/// A path to a field of `status` or `spec`. Its steps are names (`.readyReplicas`), the first item of a list (`[0]`), and the
/// first item whose field has a value (`[?(@.type=="Ready")]`). Clones share it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct JsonPath(Arc<Parsed>);

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Parsed {
    text: Box<str>,
    steps: Box<[PathStep]>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum PathStep {
    Name(Box<str>),
    First,
    FirstWith(Box<str>, Box<str>),
}

impl JsonPath {
    /// Parses a path. Returns `None` if it is no path of this language.
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() > JSON_PATH_LIMIT {
            return None;
        }
        let (mut steps, mut rest) = (vec![], text);
        while !rest.is_empty() {
            let (step, after) = step(rest)?;
            steps.push(step);
            rest = after;
        }
        let begins = matches!(steps.first(), Some(PathStep::Name(name)) if matches!(&**name, "status" | "spec"));
        (begins && (2..=STEPS_LIMIT).contains(&steps.len())).then(|| {
            Self(Arc::new(Parsed {
                text: text.into(),
                steps: steps.into(),
            }))
        })
    }

    /// Returns the value of the field in an object.
    pub fn find<'v>(&self, object: &'v Value) -> Option<&'v Value> {
        let mut steps = self.0.steps.iter();
        steps.try_fold(object, |value, step| match step {
            PathStep::Name(name) => value.as_object()?.get(&**name),
            PathStep::First => value.as_array()?.first(),
            PathStep::FirstWith(field, text) => {
                let mut items = value.as_array()?.iter();
                items.find(|item| item.get(&**field).and_then(Value::as_str) == Some(text))
            }
        })
    }
}

/// Reads the first step. Returns it with the rest of the text.
fn step(text: &str) -> Option<(PathStep, &str)> {
    if let Some(rest) = text.strip_prefix("[0]") {
        return Some((PathStep::First, rest));
    }
    if let Some(rest) = text.strip_prefix("[?(@.") {
        let (field, rest) = name(rest)?;
        let rest = rest.strip_prefix("==\"")?;
        let (value, rest) = rest.split_once('"')?;
        let is_value = !value.is_empty() && !value.contains('\\');
        let rest = rest.strip_prefix(")]").filter(|_| is_value)?;
        return Some((PathStep::FirstWith(field.into(), value.into()), rest));
    }
    let (name, rest) = name(text.strip_prefix('.')?)?;
    Some((PathStep::Name(name.into()), rest))
}

/// Splits a name from the text behind it.
fn name(text: &str) -> Option<(&str, &str)> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    let end = text.find(|c| !is_part(c)).unwrap_or(text.len());
    (end > 0).then(|| text.split_at(end))
}

impl fmt::Display for JsonPath {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0.text)
    }
}

impl Serialize for JsonPath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0.text)
    }
}

impl<'de> Deserialize<'de> for JsonPath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| serde::de::Error::custom("no path to a field"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn paths_find_fields_of_status_and_spec() {
        let object = json!({
            "spec": {"replicas": 3},
            "status": {
                "loadBalancer": {"ingress": [{"ip": "192.0.2.1"}, {"ip": "192.0.2.2"}]},
                "conditions": [{"type": "Available", "status": "True"}, {"type": "Ready", "status": "False"}],
            },
        });
        for (path, value) in [
            (".spec.replicas", Some(json!(3))),
            (
                ".status.loadBalancer.ingress[0].ip",
                Some(json!("192.0.2.1")),
            ),
            (
                ".status.conditions[?(@.type==\"Ready\")].status",
                Some(json!("False")),
            ),
            (".status.conditions[?(@.type==\"Stalled\")].status", None),
            (".status.phase", None),
            (".status.conditions.status", None),
            (".spec[0]", None),
        ] {
            let parsed = JsonPath::parse(path).unwrap();
            assert_eq!(parsed.find(&object), value.as_ref(), "{path}");
            assert_eq!(parsed.to_string(), path);
        }
    }

    #[test]
    fn other_paths_are_refused() {
        let long = format!(".status{}", ".a".repeat(JSON_PATH_LIMIT / 2));
        let deep = format!(".status{}", ".a".repeat(STEPS_LIMIT));
        for path in [
            "",
            ".",
            ".status",
            "status.phase",
            ".metadata.name",
            ".data.password",
            ".status..phase",
            ".status.",
            "$.status.phase",
            ".status[1]",
            ".status[*].a",
            ".status.a[?(@.b=='c')]",
            ".status.a[?(@.b==\"\")]",
            ".status.a[?(@.b==\"c\"].d",
            ".status.a b",
            "{.status.phase}",
            &long,
            &deep,
        ] {
            assert_eq!(JsonPath::parse(path), None, "{path}");
        }
    }
}
