//! Checks for errors that a member's API server would return, before anything is sent.
use std::collections::BTreeSet;

use data_encoding::BASE64;
use runnel_proto::json_nodes::CONTENT_NODES;
use runnel_proto::model::{Content, ContentRules, is_label_key, is_label_value};
use serde_json::{Map, Value};

/// The most bytes that the values of an object may have together.
pub(super) const SIZE_LIMIT: usize = 1024 * 1024;
/// The most bytes of the JSON of all fields: an API server stores no larger object.
pub(super) const CONTENT_LIMIT: usize = 1536 * 1024;
/// The deepest content. An encoder or decoder of a member may not read more.
const DEPTH_LIMIT: usize = 100;
/// The most bytes that the annotations of an object may have together.
const ANNOTATIONS_LIMIT: usize = 256 * 1024;
/// The longest key of an object.
const KEY_LIMIT: usize = 253;

/// Why an object of this kind and content would be refused; without any value.
pub fn flaw(rules: &ContentRules, content: &Content) -> Option<String> {
    if let Some(flaw) = metadata_error(content) {
        return Some(flaw);
    }
    let nodes = content.nodes();
    if nodes > CONTENT_NODES {
        return Some(format!(
            "it has {nodes} JSON values, and {CONTENT_NODES} are the most"
        ));
    }
    if rules.exact_maps.is_empty() {
        return fields_error(content);
    }
    let maps = || {
        rules
            .exact_maps
            .iter()
            .filter_map(|field| map(content, field))
    };
    let mut seen = BTreeSet::new();
    for (key, value) in maps().flatten() {
        if !is_key(key) {
            return Some(format!(
                "the key {key:?} is not one that Kubernetes takes: up to {KEY_LIMIT} letters, digits, '-', '_' and '.', \
                 not . or beginning with .."
            ));
        }
        if !seen.insert(key) {
            return Some(format!("the key {key} would be in data and in binaryData"));
        }
        if !value.is_string() {
            return Some(format!("the value of {key} is no text"));
        }
    }
    let size: usize = maps().flatten().map(|(_, value)| size(rules, value)).sum();
    if size > SIZE_LIMIT {
        return Some(format!(
            "its values have {size} bytes together, and {SIZE_LIMIT} are the most"
        ));
    }
    if !rules.sensitive {
        return None;
    }
    let object_type = content.fields.get("type").and_then(Value::as_str);
    if rules.refuses_type(object_type) {
        return Some(format!(
            "Secrets of the type {} are never distributed",
            object_type.unwrap_or_default()
        ));
    }
    type_flaw(object_type.unwrap_or("Opaque"), map(content, "data"))
}

/// Returns the error of the fields of a kind without rules of its own.
fn fields_error(content: &Content) -> Option<String> {
    if !content
        .fields
        .values()
        .all(|value| is_flat(value, DEPTH_LIMIT))
    {
        return Some(format!(
            "its fields are nested deeper than {DEPTH_LIMIT} levels"
        ));
    }
    let size: usize = content.fields.values().map(json_size).sum();
    (size > CONTENT_LIMIT).then(|| {
        format!("its fields have {size} bytes of JSON together, and {CONTENT_LIMIT} are the most")
    })
}

/// Whether a value has at most this many levels of maps and lists.
fn is_flat(value: &Value, levels: usize) -> bool {
    let below = levels.checked_sub(1);
    let is_below_flat = |value: &Value| below.is_some_and(|below| is_flat(value, below));
    match value {
        Value::Object(fields) => below.is_some() && fields.values().all(is_below_flat),
        Value::Array(items) => below.is_some() && items.iter().all(is_below_flat),
        _ => true,
    }
}

/// The bytes of a value as JSON.
pub(super) fn json_size(value: &Value) -> usize {
    serde_json::to_vec(value).map_or(usize::MAX, |json| json.len())
}

/// Returns the error of labels and annotations.
fn metadata_error(content: &Content) -> Option<String> {
    let keys = content.labels.keys().map(|key| ("label", key));
    let mut keys = keys.chain(content.annotations.keys().map(|key| ("annotation", key)));
    if let Some((what, key)) = keys.find(|(_, key)| !is_label_key(key)) {
        return Some(format!(
            "{key:?} is no key of a {what}: write up to 63 letters, digits, '-', '_' and '.', after a DNS name and '/' if you like"
        ));
    }
    if let Some((key, _)) = content
        .labels
        .iter()
        .find(|(_, value)| !is_label_value(value))
    {
        return Some(format!(
            "the label {key} has a value that is none: up to 63 letters, digits, '-', '_' and '.'"
        ));
    }
    let size: usize = content
        .annotations
        .iter()
        .map(|(key, value)| key.len() + value.len())
        .sum();
    (size > ANNOTATIONS_LIMIT).then(|| {
        format!("its annotations have {size} bytes together, and {ANNOTATIONS_LIMIT} are the most")
    })
}

/// Returns the error of a Secret's data by its type.
fn type_flaw(object_type: &str, data: Option<&Map<String, Value>>) -> Option<String> {
    let value = |key: &str| data.and_then(|data| data.get(key)).and_then(Value::as_str);
    let lacks = |key: &str| {
        value(key)
            .is_none()
            .then(|| format!("a Secret of the type {object_type} needs the key {key}"))
    };
    let no_json = |key: &str| {
        let json = value(key).and_then(|text| BASE64.decode(text.as_bytes()).ok());
        let reads =
            json.is_some_and(|json| serde_json::from_slice::<serde::de::IgnoredAny>(&json).is_ok());
        (!reads).then(|| format!("{key} of a Secret of the type {object_type} must be JSON"))
    };
    match object_type {
        "kubernetes.io/tls" => lacks("tls.crt").or_else(|| lacks("tls.key")),
        "kubernetes.io/dockerconfigjson" => {
            lacks(".dockerconfigjson").or_else(|| no_json(".dockerconfigjson"))
        }
        "kubernetes.io/dockercfg" => lacks(".dockercfg").or_else(|| no_json(".dockercfg")),
        "kubernetes.io/ssh-auth" => value("ssh-privatekey").is_none_or(str::is_empty).then(|| {
            format!("a Secret of the type {object_type} needs the key ssh-privatekey, not empty")
        }),
        "kubernetes.io/basic-auth" => (value("username").is_none() && value("password").is_none())
            .then(|| {
                format!("a Secret of the type {object_type} needs the key username or password")
            }),
        _ => None,
    }
}

fn map<'a>(content: &'a Content, field: &str) -> Option<&'a Map<String, Value>> {
    content.fields.get(field).and_then(Value::as_object)
}

fn is_key(key: &str) -> bool {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !key.is_empty()
        && key.len() <= KEY_LIMIT
        && key != "."
        && !key.starts_with("..")
        && key.chars().all(legal)
}

/// The bytes of a value. Values of Secrets are base64 on the wire.
fn size(rules: &ContentRules, value: &Value) -> usize {
    let text = value.as_str().unwrap_or_default();
    let padding = text.bytes().rev().take_while(|byte| *byte == b'=').count();
    if rules.sensitive {
        (text.len() / 4 * 3).saturating_sub(padding)
    } else {
        text.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use runnel_proto::model::is_subdomain;
    use serde_json::json;

    fn secret(object_type: &str, data: Value) -> Option<String> {
        let fields = [
            ("type".to_owned(), json!(object_type)),
            ("data".to_owned(), data),
        ];
        flaw(
            ContentRules::of("secrets"),
            &Content {
                fields: fields.into(),
                ..Content::default()
            },
        )
    }

    fn config_map(fields: Value) -> Option<String> {
        let fields = fields.as_object().unwrap().clone().into_iter().collect();
        flaw(
            ContentRules::of("configmaps"),
            &Content {
                fields,
                ..Content::default()
            },
        )
    }

    #[test]
    fn secrets_have_the_keys_of_their_type() {
        let json_text = BASE64.encode(b"{\"auths\":{}}");
        let no_json = BASE64.encode(b"s3cret");
        for (object_type, good, bad, key) in [
            (
                "kubernetes.io/tls",
                json!({"tls.crt": "", "tls.key": ""}),
                json!({"tls.crt": ""}),
                "tls.key",
            ),
            (
                "kubernetes.io/tls",
                json!({"tls.crt": "", "tls.key": ""}),
                json!({"tls.key": ""}),
                "tls.crt",
            ),
            (
                "kubernetes.io/dockerconfigjson",
                json!({".dockerconfigjson": json_text}),
                json!({".dockerconfigjson": no_json}),
                ".dockerconfigjson",
            ),
            (
                "kubernetes.io/dockerconfigjson",
                json!({".dockerconfigjson": json_text}),
                json!({}),
                ".dockerconfigjson",
            ),
            (
                "kubernetes.io/dockercfg",
                json!({".dockercfg": json_text}),
                json!({".dockercfg": no_json}),
                ".dockercfg",
            ),
            (
                "kubernetes.io/ssh-auth",
                json!({"ssh-privatekey": "eA=="}),
                json!({"ssh-privatekey": ""}),
                "ssh-privatekey",
            ),
            (
                "kubernetes.io/basic-auth",
                json!({"password": "eA=="}),
                json!({"pass": "eA=="}),
                "username",
            ),
        ] {
            assert_eq!(secret(object_type, good), None, "{object_type}");
            let flaw = secret(object_type, bad).unwrap();
            assert!(
                flaw.contains(key) && !flaw.contains("s3cret") && !flaw.contains(&no_json),
                "{flaw}"
            );
        }
        assert!(secret("kubernetes.io/service-account-token", json!({})).is_some());
        assert_eq!(secret("example.com/any", json!({})), None);
    }

    #[test]
    fn keys_and_sizes_are_those_that_kubernetes_takes() {
        for (key, fits) in [
            ("a.b_c-D", true),
            ("..data", false),
            (".", false),
            (".x", true),
            ("a/b", false),
            ("", false),
        ] {
            assert_eq!(
                config_map(json!({"data": {key: "v"}})).is_none(),
                fits,
                "{key:?}"
            );
        }
        assert!(
            config_map(json!({"data": {"k": ""}, "binaryData": {"k": ""}}))
                .unwrap()
                .contains("binaryData")
        );
        assert!(config_map(json!({"data": {"k": "x".repeat(SIZE_LIMIT)}})).is_none());
        assert!(config_map(json!({"data": {"k": "x".repeat(SIZE_LIMIT), "l": "x"}})).is_some());
    }

    #[test]
    fn size_and_depth_of_any_kind_are_bounded() {
        let flaw = |value: Value| {
            let fields = [("spec".to_owned(), value)].into();
            let content = Content {
                fields,
                ..Content::default()
            };
            flaw(ContentRules::of("widgets.example.org"), &content)
        };
        let text = |bytes: usize| json!("x".repeat(bytes - 2));
        assert_eq!(flaw(text(CONTENT_LIMIT)), None);
        let large = flaw(text(CONTENT_LIMIT + 1)).unwrap();
        assert!(
            large.contains("1572865") && large.contains("1572864"),
            "{large}"
        );
        let deep = |levels: usize| (0..levels).fold(json!(1), |value, _| json!([value]));
        assert_eq!(flaw(deep(DEPTH_LIMIT)), None);
        assert!(flaw(deep(DEPTH_LIMIT + 1)).unwrap().contains("100 levels"));
    }

    #[test]
    fn names_are_those_of_objects() {
        for (name, fits) in [
            ("a", true),
            ("a.b-c", true),
            ("A", false),
            ("a..b", false),
            ("-a", false),
            ("a-.b", false),
            ("", false),
        ] {
            assert_eq!(is_subdomain(name), fits, "{name:?}");
        }
        assert!(!is_subdomain(&"a".repeat(254)));
    }
}
