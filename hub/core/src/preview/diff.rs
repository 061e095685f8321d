//! The changes of one copy, as text.
//! The agent lists the paths, with short present values if it may
//! ([`runnel_proto::model::FieldChange`]). The hub adds the new values. No line contains a value of
//! a sensitive kind, whatever an agent sends.
use std::collections::BTreeSet;

use runnel_proto::model::{
    Content, ContentRules, DIFF_LIMIT, FieldChange, FieldDiff, FieldEdit, FieldsKey, Kind,
    PreviewOutcome, PreviewedCopy, pointer_escaped, pointer_unescaped, short_value,
};
use serde_json::Value;

use crate::plan::SourceContent;

/// Returns at most [`DIFF_LIMIT`] lines, and one with the number of others; none for a copy that is
/// not written.
///
/// `former` is what the copy has by the saved rule: of a kind without listed fields the agent compares whole top-level
/// fields.
pub(super) fn lines(
    copy: &PreviewedCopy,
    content: Option<&SourceContent>,
    former: Option<&SourceContent>,
) -> Vec<String> {
    let resource = &copy.copy.resource;
    let decoded =
        |content: Option<&SourceContent>| content.and_then(|content| content.payload.decode().ok());
    let content = || decoded(content);
    match copy.previewed {
        PreviewOutcome::Create => {
            let Some(content) = content() else {
                return vec![];
            };
            text(resource, &added(resource, &content), Some(&content))
        }
        PreviewOutcome::Change | PreviewOutcome::Overwrite | PreviewOutcome::Adopt
            if copy.diff != FieldDiff::default() =>
        {
            let content = content();
            let edited = match (Kind::by_resource(resource), &content, decoded(former)) {
                (None, Some(content), Some(former)) => below(&copy.diff, &former, content),
                _ => copy.diff.clone(),
            };
            text(resource, &edited, content.as_ref())
        }
        _ => vec![],
    }
}

/// Every field is new.
fn added(resource: &str, content: &Content) -> FieldDiff {
    let paths: Vec<String> = match Kind::by_resource(resource) {
        Some(kind) => FieldsKey([0; 32])
            .digests(kind.content, content)
            .into_keys()
            .collect(),
        None => leaves(content),
    };
    let mut diff = FieldDiff::default();
    for path in paths {
        diff.push(FieldChange {
            path,
            edit: FieldEdit::Add,
            old: None,
        });
    }
    diff
}

/// Replaces top-level fields, which differ also by defaults of the member's API server, by the paths in which the former
/// and the new content differ. Without such paths the copy was changed in the member, and the fields stay as they are.
fn below(diff: &FieldDiff, former: &Content, content: &Content) -> FieldDiff {
    let mut found = FieldDiff::default();
    let fields: BTreeSet<_> = former.fields.keys().chain(content.fields.keys()).collect();
    for field in fields {
        let values = (former.fields.get(field), content.fields.get(field));
        compare(&format!("/{}", pointer_escaped(field)), values, &mut found);
    }
    let is_whole = |change: &FieldChange| change.path.rfind('/') == Some(0);
    if found == FieldDiff::default() || !diff.changes.iter().any(is_whole) {
        return diff.clone();
    }
    found.more = found.more.saturating_add(diff.more);
    let others = diff.changes.iter().filter(|change| !is_whole(change));
    others.for_each(|change| found.push(change.clone()));
    found
}

/// Adds the paths in which two values differ. Lists of different lengths are one value.
fn compare(path: &str, values: (Option<&Value>, Option<&Value>), diff: &mut FieldDiff) {
    let edit = match values {
        (Some(Value::Object(before)), Some(Value::Object(now))) => {
            let fields: BTreeSet<_> = before.keys().chain(now.keys()).collect();
            for field in fields {
                let path = format!("{path}/{}", pointer_escaped(field));
                compare(&path, (before.get(field), now.get(field)), diff);
            }
            return;
        }
        (Some(Value::Array(before)), Some(Value::Array(now))) if before.len() == now.len() => {
            for (index, (before, now)) in before.iter().zip(now).enumerate() {
                compare(&format!("{path}/{index}"), (Some(before), Some(now)), diff);
            }
            return;
        }
        (before, now) if before == now => return,
        (None, _) => FieldEdit::Add,
        (_, None) => FieldEdit::Remove,
        _ => FieldEdit::Change,
    };
    diff.push(FieldChange {
        path: path.to_owned(),
        edit,
        old: None,
    });
}

/// Returns the paths of all values of a content. A list is one value.
fn leaves(content: &Content) -> Vec<String> {
    fn collect(path: &str, value: &Value, all: &mut Vec<String>) {
        match value {
            Value::Object(fields) if !fields.is_empty() => {
                for (field, value) in fields {
                    collect(&format!("{path}/{}", pointer_escaped(field)), value, all);
                }
            }
            _ => all.push(path.to_owned()),
        }
    }
    let mut all = Vec::new();
    for (field, value) in &content.fields {
        collect(&format!("/{}", pointer_escaped(field)), value, &mut all);
    }
    for (of, pairs) in [
        ("annotations", &content.annotations),
        ("labels", &content.labels),
    ] {
        all.extend(
            pairs
                .keys()
                .map(|key| format!("/metadata/{of}/{}", pointer_escaped(key))),
        );
    }
    all
}

/// Returns the new value at a path, if it is short: a text, a number or a boolean.
fn value_at(content: &Content, path: &str) -> Option<String> {
    if let Some(key) = path.strip_prefix("/metadata/labels/") {
        let key = pointer_unescaped(key);
        return content.labels.get(&key).map(|value| short_value(value));
    }
    let (field, rest) = match path.strip_prefix('/')?.split_once('/') {
        Some((field, rest)) => (field, format!("/{rest}")),
        None => (path.strip_prefix('/')?, String::new()),
    };
    let value = content
        .fields
        .get(field)
        .filter(|_| field != "binaryData")?;
    match value.pointer(&rest)? {
        Value::String(text) => Some(short_value(text)),
        value @ (Value::Number(_) | Value::Bool(_)) => Some(value.to_string()),
        _ => None,
    }
}

fn text(resource: &str, diff: &FieldDiff, content: Option<&Content>) -> Vec<String> {
    let shown = !ContentRules::of(resource).sensitive;
    let new = |path: &str| value_at(content?, path);
    let line = |change: &FieldChange| {
        let FieldChange { path, edit, old } = change;
        let (old, new) = (
            old.as_deref().filter(|_| shown),
            new(path).filter(|_| shown),
        );
        match (edit, old, new) {
            (FieldEdit::Add, _, Some(new)) => format!("+ {path}: {new}"),
            (FieldEdit::Add, ..) => format!("+ {path}"),
            (FieldEdit::Change, Some(old), Some(new)) => format!("~ {path}: {old} -> {new}"),
            (FieldEdit::Change, _, Some(new)) => format!("~ {path}: -> {new}"),
            (FieldEdit::Change, ..) => format!("~ {path}"),
            (FieldEdit::Remove, Some(old), _) => format!("- {path}: {old}"),
            (FieldEdit::Remove, ..) => format!("- {path}"),
        }
    };
    let mut lines: Vec<String> = diff.changes.iter().take(DIFF_LIMIT).map(line).collect();
    let more = diff
        .changes
        .len()
        .saturating_sub(DIFF_LIMIT)
        .saturating_add(diff.more as usize);
    if more > 0 {
        lines.push(format!("and {more} more"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use runnel_proto::model::{Payload, Revision, SourceRef};
    use serde_json::{Value, json};

    use super::*;

    fn body(data: Value) -> SourceContent {
        let labels = BTreeMap::from([("team".to_owned(), "a".to_owned())]);
        let fields = BTreeMap::from([("data".to_owned(), data)]);
        let content = Content {
            fields,
            labels,
            ..Content::default()
        };
        SourceContent::new(Revision([1; 16]), Payload::encode(content.to_bytes()))
    }

    fn copy(resource: &str, previewed: PreviewOutcome, diff: FieldDiff) -> PreviewedCopy {
        let copy = SourceRef::new(resource, "a", "x");
        PreviewedCopy {
            source: copy.clone(),
            copy,
            previewed,
            copy_error: None,
            diff,
        }
    }

    fn change(path: &str, edit: FieldEdit) -> FieldChange {
        FieldChange {
            path: path.into(),
            edit,
            old: Some("\"c4n4ry-old\"".into()),
        }
    }

    #[test]
    fn config_map_lines_have_both_values_and_secret_lines_none() {
        let diff = FieldDiff {
            changes: vec![
                change("/data/color", FieldEdit::Change),
                change("/data/gone", FieldEdit::Remove),
                change("/metadata/labels/team", FieldEdit::Add),
                change("/immutable", FieldEdit::Change),
            ],
            more: 2,
        };
        let new = body(json!({"color": "c4n4ry-new"}));
        let answer = lines(
            &copy("configmaps", PreviewOutcome::Change, diff.clone()),
            Some(&new),
            None,
        );
        let expected = [
            r#"~ /data/color: "c4n4ry-old" -> "c4n4ry-new""#,
            r#"- /data/gone: "c4n4ry-old""#,
            r#"+ /metadata/labels/team: "a""#,
            "~ /immutable",
            "and 2 more",
        ];
        assert_eq!(answer, expected);
        let answer = lines(
            &copy("secrets", PreviewOutcome::Change, diff),
            Some(&new),
            None,
        );
        let expected = [
            "~ /data/color",
            "- /data/gone",
            "+ /metadata/labels/team",
            "~ /immutable",
            "and 2 more",
        ];
        assert_eq!(answer, expected);
    }

    #[test]
    fn copy_of_any_kind_lists_its_values() {
        let fields = json!({"spec": {"replicas": 2, "paused": false, "ports": [{"port": 80}], "empty": {}, "a/b": "x"}});
        let content = Content {
            fields: serde_json::from_value(fields).unwrap(),
            labels: BTreeMap::from([("example.org/team".to_owned(), "a".to_owned())]),
            ..Content::default()
        };
        let new = SourceContent::new(Revision([1; 16]), Payload::encode(content.to_bytes()));
        let created = copy(
            "deployments.apps",
            PreviewOutcome::Create,
            FieldDiff::default(),
        );
        let expected = [
            r#"+ /spec/a~1b: "x""#,
            "+ /spec/empty",
            "+ /spec/paused: false",
            "+ /spec/ports",
            "+ /spec/replicas: 2",
            r#"+ /metadata/labels/example.org~1team: "a""#,
        ];
        assert_eq!(lines(&created, Some(&new), None), expected);
        let diff = FieldDiff {
            changes: vec![change("/spec/replicas", FieldEdit::Change)],
            more: 0,
        };
        let changed = copy("deployments.apps", PreviewOutcome::Change, diff);
        assert_eq!(
            lines(&changed, Some(&new), None),
            [r#"~ /spec/replicas: "c4n4ry-old" -> 2"#]
        );
    }

    #[test]
    fn edit_of_any_kind_names_the_paths_that_it_changes() {
        let of = |spec: Value| {
            let fields = serde_json::from_value(json!({"spec": spec})).unwrap();
            let content = Content {
                fields,
                ..Content::default()
            };
            SourceContent::new(Revision([1; 16]), Payload::encode(content.to_bytes()))
        };
        let former = of(json!({"replicas": 2, "image": ["a:1", "b:1"], "gone": 1, "args": ["x"]}));
        let new = of(json!({"replicas": 3, "image": ["a:2", "b:1"], "new": {}, "args": []}));
        let diff = FieldDiff {
            changes: vec![
                change("/metadata/labels/team", FieldEdit::Add),
                change("/spec", FieldEdit::Change),
            ],
            more: 0,
        };
        let changed = copy("deployments.apps", PreviewOutcome::Change, diff);
        let expected = [
            "~ /spec/args",
            "- /spec/gone",
            r#"~ /spec/image/0: -> "a:2""#,
            "+ /spec/new",
            "~ /spec/replicas: -> 3",
            "+ /metadata/labels/team",
        ];
        assert_eq!(lines(&changed, Some(&new), Some(&former)), expected);
        let drifted = ["+ /metadata/labels/team", "~ /spec"];
        assert_eq!(lines(&changed, Some(&new), Some(&new)), drifted);
    }

    #[test]
    fn created_copy_lists_its_keys_up_to_the_limit() {
        let data: serde_json::Map<String, Value> = (0..DIFF_LIMIT)
            .map(|n| (format!("k{n:02}"), json!("v")))
            .collect();
        let new = body(Value::Object(data));
        let answer = lines(
            &copy("configmaps", PreviewOutcome::Create, FieldDiff::default()),
            Some(&new),
            None,
        );
        assert_eq!(
            (answer.len(), answer[0].as_str()),
            (DIFF_LIMIT + 1, r#"+ /data/k00: "v""#)
        );
        assert_eq!(answer[DIFF_LIMIT], "and 1 more");
        let answer = lines(
            &copy("secrets", PreviewOutcome::Create, FieldDiff::default()),
            Some(&new),
            None,
        );
        assert_eq!(answer[0], "+ /data/k00");
    }

    #[test]
    fn copy_that_is_not_written_has_no_lines() {
        let diff = || FieldDiff {
            changes: vec![change("/data/a", FieldEdit::Change)],
            more: 0,
        };
        for previewed in [
            PreviewOutcome::AdoptIfEqual,
            PreviewOutcome::Refused,
            PreviewOutcome::Unchanged,
            PreviewOutcome::Remove,
        ] {
            assert!(
                lines(
                    &copy("secrets", previewed, diff()),
                    Some(&body(json!({"a": "1"}))),
                    None
                )
                .is_empty()
            );
        }
    }
}
