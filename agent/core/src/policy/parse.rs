//! Parses a policy. Each unknown field or value is an error with the name of the field and a hint.
use runnel_proto::model::{Kind, Pattern, is_namespace_pattern};
use serde_json::{Map, Value};

use super::{Adopt, Names, OnRevoke, Patterns, Policy};

/// The error of an invalid policy: the field and a hint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {hint}")]
pub struct PolicyError {
    /// The path of the field.
    pub field: String,
    /// The problem, and the valid values.
    pub hint: String,
}

fn error(field: &str, hint: impl Into<String>) -> PolicyError {
    PolicyError {
        field: field.to_owned(),
        hint: hint.into(),
    }
}

type Parsed<T> = Result<T, PolicyError>;

const FIELDS: [&str; 12] = [
    "namespaces",
    "kinds",
    "secretTypes",
    "deniedLabels",
    "maxCopies",
    "maxBytes",
    "maxObjectBytes",
    "adopt",
    "overwrite",
    "createNamespaces",
    "deletesPerHour",
    "onRevoke",
];
const LISTS: [&str; 2] = ["allowed", "denied"];
/// Limit of the entries of one list.
const ENTRIES: usize = 10_000;

impl Policy {
    /// Parses the text of a policy file.
    ///
    /// # Errors
    /// [`PolicyError`] for anything that is not exactly a policy.
    pub fn parse(text: &str) -> Result<Self, PolicyError> {
        let value: Value = serde_saphyr::from_str(text).map_err(|cause| {
            let cause = cause.to_string();
            error(
                "the file",
                format!("is not YAML ({})", cause.lines().next().unwrap_or_default()),
            )
        })?;
        if value.is_null() {
            return Err(error(
                "the file",
                "is empty: write {} for a policy with every default",
            ));
        }
        let map = object("the file", &value, &FIELDS)?;
        let mut policy = Self::default();
        if let Some(value) = map.get("namespaces") {
            policy.namespaces = lists(
                "namespaces",
                value,
                is_namespace_pattern,
                "a namespace's name, or a glob with *",
            )?;
        }
        if let Some(value) = map.get("kinds") {
            let kinds = strings("kinds", value)?;
            let kinds = kinds.into_iter().enumerate().map(|(at, kind)| {
                let known = Kind::by_resource(&kind).map(|known| known.resource.clone());
                known.ok_or_else(|| {
                    let known: Vec<&str> = Kind::resources().map(|known| &**known).collect();
                    error(
                        &format!("kinds[{at}]"),
                        format!("must be one of {}", known.join(", ")),
                    )
                })
            });
            policy.kinds = kinds.collect::<Parsed<_>>()?;
        }
        if let Some(value) = map.get("secretTypes") {
            policy.secret_types = lists(
                "secretTypes",
                value,
                is_type_pattern,
                "a Secret's type, or a glob with *",
            )?;
        }
        if let Some(value) = map.get("deniedLabels") {
            let labels = strings("deniedLabels", value)?;
            let labels = labels.into_iter().enumerate().map(|(at, label)| {
                let bad = || {
                    error(
                        &format!("deniedLabels[{at}]"),
                        "must be a label's key, or a glob with *",
                    )
                };
                is_label_pattern(&label)
                    .then(|| Pattern::new(label))
                    .ok_or_else(bad)
            });
            policy.denied_labels = labels.collect::<Parsed<_>>()?;
        }
        let number = |field, what: &str| match map.get(field) {
            None => Ok(None),
            Some(value) => match value.as_u64().filter(|number| *number > 0) {
                None => Err(error(
                    field,
                    format!("must be a number of {what}, 1 or more"),
                )),
                number => Ok(number),
            },
        };
        policy.max_copies = number("maxCopies", "copies")?.unwrap_or(policy.max_copies);
        policy.max_bytes = number("maxBytes", "bytes")?.unwrap_or(policy.max_bytes);
        policy.max_object_bytes =
            number("maxObjectBytes", "bytes")?.unwrap_or(policy.max_object_bytes);
        if let Some(value) = map.get("adopt") {
            policy.adopt = match value.as_str() {
                Some("Equal") => Adopt::Equal,
                Some("Never") => Adopt::Never,
                _ => return Err(error("adopt", "must be Equal or Never")),
            };
        }
        if let Some(value) = map.get("overwrite") {
            policy.overwrite = flag("overwrite", value)?;
        }
        if let Some(value) = map.get("createNamespaces") {
            policy.create_namespaces = flag("createNamespaces", value)?;
        }
        if let Some(value) = map.get("deletesPerHour") {
            let number = value
                .as_u64()
                .filter(|number| *number > 0)
                .and_then(|number| usize::try_from(number).ok());
            policy.deletes_per_hour = number
                .ok_or_else(|| error("deletesPerHour", "must be a number of copies, 1 or more"))?;
        }
        if let Some(value) = map.get("onRevoke") {
            policy.on_revoke = match value.as_str() {
                Some("Keep") => OnRevoke::Keep,
                Some("Purge") => OnRevoke::Purge,
                _ => return Err(error("onRevoke", "must be Keep or Purge")),
            };
        }
        Ok(policy)
    }
}

fn object<'a>(path: &str, value: &'a Value, fields: &[&str]) -> Parsed<&'a Map<String, Value>> {
    let fits = || format!("must be a map with {}", fields.join(", "));
    let map = value.as_object().ok_or_else(|| error(path, fits()))?;
    match map.keys().find(|key| !fields.contains(&key.as_str())) {
        None => Ok(map),
        Some(unknown) => {
            let shown: String = unknown
                .chars()
                .filter(|c| !c.is_control())
                .take(60)
                .collect();
            let path = if path == "the file" {
                shown
            } else {
                format!("{path}.{shown}")
            };
            Err(error(
                &path,
                format!(
                    "is not a field of a policy: write one of {}, or remove it",
                    fields.join(", ")
                ),
            ))
        }
    }
}

fn lists(path: &str, value: &Value, fits: fn(&str) -> bool, what: &str) -> Parsed<Names> {
    let map = object(path, value, &LISTS)?;
    let list = |name: &str| {
        let Some(value) = map.get(name) else {
            return Ok(None);
        };
        let path = format!("{path}.{name}");
        let texts = strings(&path, value)?;
        match texts.iter().position(|text| !fits(text)) {
            Some(at) => Err(error(&format!("{path}[{at}]"), format!("must be {what}"))),
            None => Ok(Some(
                texts.into_iter().map(Pattern::new).collect::<Patterns>(),
            )),
        }
    };
    let all = Names::all();
    Ok(Names {
        allowed: list("allowed")?.unwrap_or(all.allowed),
        denied: list("denied")?.unwrap_or(all.denied),
    })
}

fn strings(path: &str, value: &Value) -> Parsed<Vec<String>> {
    let list = value.as_array().filter(|list| list.len() <= ENTRIES);
    let list =
        list.ok_or_else(|| error(path, format!("must be a list of at most {ENTRIES} texts")))?;
    let text = |(at, value): (usize, &Value)| match value.as_str() {
        Some(text) => Ok(text.to_owned()),
        None => Err(error(
            &format!("{path}[{at}]"),
            "must be a text: put it in quotes",
        )),
    };
    list.iter().enumerate().map(text).collect()
}

fn flag(path: &str, value: &Value) -> Parsed<bool> {
    value
        .as_bool()
        .ok_or_else(|| error(path, "must be true or false"))
}

fn is_label_pattern(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./*".contains(&byte);
    (1..=317).contains(&text.len()) && text.bytes().all(plain)
}

fn is_type_pattern(text: &str) -> bool {
    (1..=253).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}
