//! Reads fields of objects as JSON.
use jiff::Timestamp;
use runnel_api::conditions::ConditionType;
use serde_json::Value;

/// A text at a path such as `/metadata/name`; empty where there is none.
pub fn text<'a>(object: &'a Value, path: &str) -> &'a str {
    object
        .pointer(path)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

/// A number at a path; 0 where there is none.
pub fn number(object: &Value, path: &str) -> i64 {
    object
        .pointer(path)
        .and_then(Value::as_i64)
        .unwrap_or_default()
}

/// A list at a path; empty where there is none.
pub fn list<'a>(object: &'a Value, path: &str) -> &'a [Value] {
    object
        .pointer(path)
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default()
}

/// A time at a path.
pub fn time(object: &Value, path: &str) -> Option<Timestamp> {
    text(object, path).parse().ok()
}

/// A condition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Condition<'a> {
    /// `True`, `False` or `Unknown`; empty where there is none.
    pub status: &'a str,
    /// One word.
    pub reason: &'a str,
    /// A sentence.
    pub message: &'a str,
    /// Since when.
    pub since: Option<Timestamp>,
}

impl Condition<'_> {
    /// Whether it is `True`.
    pub fn holds(&self) -> bool {
        self.status == "True"
    }
}

/// A condition of an object of Runnel's own.
pub fn condition(object: &Value, kind: ConditionType) -> Condition<'_> {
    condition_named(object, kind.as_str())
}

/// The condition of that type.
pub fn condition_named<'a>(object: &'a Value, kind: &str) -> Condition<'a> {
    let found = list(object, "/status/conditions")
        .iter()
        .find(|condition| text(condition, "/type") == kind);
    found.map_or_else(Condition::default, |found| Condition {
        status: text(found, "/status"),
        reason: text(found, "/reason"),
        message: text(found, "/message"),
        since: time(found, "/lastTransitionTime"),
    })
}

/// `namespace/name`, or `name`.
pub fn full_name(object: &Value) -> String {
    let (namespace, name) = (
        text(object, "/metadata/namespace"),
        text(object, "/metadata/name"),
    );
    if namespace.is_empty() {
        name.to_owned()
    } else {
        format!("{namespace}/{name}")
    }
}

/// The object without what only API servers read.
pub fn tidy(mut object: Value) -> Value {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    object
}
