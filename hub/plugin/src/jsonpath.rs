//! Templates of `-o jsonpath=TEMPLATE`, in the language of kubectl: text, `{.path}`, `{"text"}`, `{range .path}`, `{end}`.
use std::str::FromStr;

use jsonpath_rust::JsonPath;
use serde_json::Value;

/// A template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    /// A path, in the syntax of RFC 9535.
    Path(String),
    Range(String, Vec<Part>),
}

/// Why a template cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// There is no path in it.
    #[error("the template has no path: write for example {{.metadata.name}}")]
    NoPath,
    /// A brace is not closed.
    #[error("the template has a `{{` without `}}`")]
    Unclosed,
    /// A range has no end, or an end has no range.
    #[error("the template needs one {{end}} for each {{range}}")]
    Range,
    /// A path is wrong.
    #[error(
        "the template has the path `{0}`, which cannot be read: write for example .metadata.name"
    )]
    Path(String),
}

impl FromStr for Template {
    type Err = TemplateError;

    fn from_str(text: &str) -> Result<Self, TemplateError> {
        let mut open = vec![Vec::new()];
        let mut ranges: Vec<String> = Vec::new();
        let mut rest = text;
        while let Some(begin) = rest.find('{') {
            push_text(&mut open, &rest[..begin]);
            let (inner, after) = inside(&rest[begin + 1..]).ok_or(TemplateError::Unclosed)?;
            rest = after;
            let inner = inner.trim();
            if let Some(path) = inner.strip_prefix("range ") {
                ranges.push(translated(path.trim())?);
                open.push(Vec::new());
            } else if inner == "end" {
                let path = ranges.pop().ok_or(TemplateError::Range)?;
                let parts = open.pop().ok_or(TemplateError::Range)?;
                push(&mut open, Part::Range(path, parts));
            } else if let Some(text) = quoted(inner) {
                push_text(&mut open, &text);
            } else {
                push(&mut open, Part::Path(translated(inner)?));
            }
        }
        push_text(&mut open, rest);
        match (open.pop(), ranges.is_empty()) {
            (Some(parts), true) if parts.iter().any(|part| !matches!(part, Part::Text(_))) => {
                Ok(Self(parts))
            }
            (_, true) => Err(TemplateError::NoPath),
            (_, false) => Err(TemplateError::Range),
        }
    }
}

impl Template {
    /// Returns the text for an object. A path that leads nowhere gives no text.
    pub fn text(&self, object: &Value) -> String {
        let mut text = String::new();
        write(&self.0, object, &mut text);
        text
    }
}

fn write(parts: &[Part], object: &Value, out: &mut String) {
    for part in parts {
        match part {
            Part::Text(text) => out.push_str(text),
            Part::Path(path) => {
                let found: Vec<_> = found(object, path).into_iter().map(shown).collect();
                out.push_str(&found.join(" "));
            }
            Part::Range(path, parts) => {
                for item in found(object, path) {
                    write(parts, item, out);
                }
            }
        }
    }
}

fn found<'a>(object: &'a Value, path: &str) -> Vec<&'a Value> {
    object.query(path).unwrap_or_default()
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

fn push(open: &mut [Vec<Part>], part: Part) {
    if let Some(parts) = open.last_mut() {
        parts.push(part);
    }
}

fn push_text(open: &mut [Vec<Part>], text: &str) {
    if !text.is_empty() {
        push(open, Part::Text(text.to_owned()));
    }
}

/// Splits a text behind the brace that closes an open one. Braces in quotes do not count.
fn inside(text: &str) -> Option<(&str, &str)> {
    let (mut quote, mut escaped) = (None, false);
    for (at, letter) in text.char_indices() {
        match (quote, letter) {
            _ if escaped => escaped = false,
            (_, '\\') => escaped = true,
            (Some(open), _) if open == letter => quote = None,
            (None, '"' | '\'') => quote = Some(letter),
            (None, '}') => return Some((&text[..at], &text[at + 1..])),
            _ => {}
        }
    }
    None
}

/// Returns the text in quotes, with `\n` and the like replaced.
fn quoted(text: &str) -> Option<String> {
    if let Some(inner) = text.strip_prefix('\'') {
        let inner = inner.strip_suffix('\'')?.replace('"', "\\\"");
        return serde_json::from_str(&format!("\"{inner}\"")).ok();
    }
    text.starts_with('"')
        .then(|| serde_json::from_str(text).ok())?
}

/// Translates a path of kubectl to RFC 9535: `.metadata.labels.a\.b` is `$["metadata"]["labels"]["a.b"]`.
fn translated(path: &str) -> Result<String, TemplateError> {
    let wrong = || TemplateError::Path(path.to_owned());
    let mut rest = path.trim_start_matches(['$', '@']);
    let mut out = "$".to_owned();
    if rest == "." {
        return Ok(out);
    }
    if !rest.is_empty() && !rest.starts_with(['.', '[']) {
        return Err(wrong());
    }
    while !rest.is_empty() {
        if rest.starts_with('[') {
            let end = bracket_end(rest).ok_or_else(wrong)?;
            out.push_str(&rest[..end]);
            rest = &rest[end..];
            continue;
        }
        if let Some(after) = rest.strip_prefix("..") {
            out.push_str("..");
            rest = after;
        } else {
            rest = rest.strip_prefix('.').ok_or_else(wrong)?;
        }
        let (name, after) = name(rest);
        rest = after;
        match name.as_str() {
            // `.items.[0]` is the same as `.items[0]`.
            "" if rest.starts_with('[') => {}
            "" => return Err(wrong()),
            "*" => out.push_str("[*]"),
            name => out.push_str(&format!("[{}]", Value::from(name))),
        }
    }
    Value::Null.query(&out).map_err(|_| wrong())?;
    Ok(out)
}

/// Splits a name from the path behind it.
fn name(path: &str) -> (String, &str) {
    let (mut name, mut escaped) = (String::new(), false);
    for (at, letter) in path.char_indices() {
        match letter {
            _ if escaped => {
                name.push(letter);
                escaped = false;
            }
            '\\' => escaped = true,
            '.' | '[' => return (name, &path[at..]),
            _ => name.push(letter),
        }
    }
    (name, "")
}

/// Returns the position behind the bracket that closes the first one.
fn bracket_end(text: &str) -> Option<usize> {
    let (mut depth, mut quote) = (0, None);
    for (at, letter) in text.char_indices() {
        match (quote, letter) {
            (Some(open), _) if open == letter => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(letter),
            (None, '[') => depth += 1,
            (None, ']') => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(at + 1);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn shown(template: &str) -> String {
        let list = json!({"items": [
            {"metadata": {"name": "a", "labels": {"example.com/env": "prod"}}, "status": {"conditions": [
                {"type": "Ready", "status": "True"}, {"type": "Granted", "status": "False"},
            ]}},
            {"metadata": {"name": "b"}, "status": {"summary": {"copies": 3}}},
        ]});
        template.parse::<Template>().unwrap().text(&list)
    }

    #[test]
    fn templates_of_kubectl_are_understood() {
        for (template, expected) in [
            ("{.items[*].metadata.name}", "a b"),
            ("{.items[0].metadata.name}", "a"),
            ("name={$.items[1].metadata.name}!", "name=b!"),
            (
                r#"{range .items[*]}{.metadata.name}{"\t"}{.status.summary.copies}{"\n"}{end}"#,
                "a\t\nb\t3\n",
            ),
            (
                r#"{.items[*].status.conditions[?(@.type=="Ready")].status}"#,
                "True",
            ),
            (r"{.items[*].metadata.labels.example\.com/env}", "prod"),
            ("{.items[*].metadata.labels['example.com/env']}", "prod"),
            ("{.items[1].status.summary}", r#"{"copies":3}"#),
            ("{.nothing.here}", ""),
            ("{..name}", "a b"),
            ("{.items[*].metadata.name}{' }'}", "a b }"),
        ] {
            assert_eq!(shown(template), expected, "{template}");
        }
    }

    #[test]
    fn wrong_templates_are_refused() {
        for (template, error) in [
            ("", TemplateError::NoPath),
            (".metadata.name", TemplateError::NoPath),
            ("{.metadata", TemplateError::Unclosed),
            ("{range .items[*]}{.a}", TemplateError::Range),
            ("{.a}{end}", TemplateError::Range),
            ("{.a[}", TemplateError::Path(".a[".to_owned())),
            ("{.a[?(x)]}", TemplateError::Path(".a[?(x)]".to_owned())),
            ("{metadata}", TemplateError::Path("metadata".to_owned())),
        ] {
            assert_eq!(template.parse::<Template>(), Err(error), "{template}");
        }
    }
}
