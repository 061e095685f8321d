//! Paths and values of objects.
use runnel_proto::model::pointer_escaped;
use serde_json::{Value, json};

/// Returns the pointers of all single values of an object that a source has, without its name.
pub fn leaves(object: &Value) -> Vec<String> {
    let mut found = Vec::new();
    collect(object, String::new(), &mut found);
    found.retain(|pointer| {
        ![
            "/apiVersion",
            "/kind",
            "/metadata/name",
            "/metadata/namespace",
        ]
        .contains(&&**pointer)
    });
    found
}

fn collect(value: &Value, pointer: String, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (field, value) in fields {
                collect(
                    value,
                    format!("{pointer}/{}", pointer_escaped(field)),
                    found,
                );
            }
        }
        Value::Array(items) => {
            for (number, item) in items.iter().enumerate() {
                collect(item, format!("{pointer}/{number}"), found);
            }
        }
        _ => found.push(pointer),
    }
}

/// Returns the pointers of all lists with several items in an object, the deepest first.
pub fn lists(object: &Value) -> Vec<String> {
    let mut found = Vec::new();
    collect_lists(object, String::new(), &mut found);
    found.reverse();
    found
}

fn collect_lists(value: &Value, pointer: String, found: &mut Vec<String>) {
    if value.as_array().is_some_and(|items| items.len() > 1) {
        found.push(pointer.clone());
    }
    match value {
        Value::Object(fields) => {
            for (field, value) in fields {
                let pointer = format!("{pointer}/{}", pointer_escaped(field));
                collect_lists(value, pointer, found);
            }
        }
        Value::Array(items) => {
            for (number, item) in items.iter().enumerate() {
                collect_lists(item, format!("{pointer}/{number}"), found);
            }
        }
        _ => {}
    }
}

/// Fields by which lists tell their items apart. With another value the item is another one, which may stay beside ours.
const KEYS: &[&str] = &["containerPort", "mountPath", "name", "port", "protocol"];

/// Whether a value identifies an item of a list.
pub fn is_key(pointer: &str) -> bool {
    let mut parts = pointer.rsplit('/');
    let is_named = parts.next().is_some_and(|field| KEYS.contains(&field));
    is_named
        && parts
            .next()
            .is_some_and(|part| part.parse::<usize>().is_ok())
}

/// Returns the differences between a source and a copy in the fields that `wanted` has. The API server may have another form
/// of their values than `wanted`.
pub fn differences(wanted: &Value, source: &Value, copy: &Value) -> Vec<String> {
    let differs = |pointer: &String| source.pointer(pointer) != copy.pointer(pointer);
    let differing = leaves(wanted).into_iter().filter(differs);
    differing
        .map(|pointer| {
            let (is, should) = (copy.pointer(&pointer), source.pointer(&pointer));
            format!("{pointer} is {is:?} instead of {should:?}")
        })
        .collect()
}

/// Returns another value of the same type.
pub fn other_value(value: &Value) -> Value {
    match value {
        Value::Bool(is) => json!(!is),
        Value::Number(number) if number.is_i64() => {
            json!(number.as_i64().unwrap_or_default().saturating_add(1))
        }
        Value::Number(number) => json!(number.as_f64().unwrap_or_default() + 0.5),
        Value::String(text) if text == "true" => json!("false"),
        // The same number of units, so that quantities, durations and base64 stay valid.
        Value::String(text) => match text.find(|c: char| c.is_ascii_digit() && c != '9') {
            Some(at) => {
                let digit = text.as_bytes()[at] + 1;
                let mut changed = text.clone().into_bytes();
                changed[at] = digit;
                Value::String(String::from_utf8_lossy(&changed).into_owned())
            }
            None => json!(format!("{text}x")),
        },
        other => other.clone(),
    }
}
