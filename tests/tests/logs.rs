//! The keys of log lines are promised to operators: nothing is logged under any other.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Result, ensure};
use runnel_tests::files::files_below;
use runnel_transport::ops::LOG_KEYS;

const CALLS: [&str; 5] = ["error!(", "warn!(", "info!(", "debug!(", "trace!("];
const SPANS: [&str; 2] = ["info_span!(", "debug_span!("];

/// The arguments of a call before its sentence, split at the commas.
fn fields(call: &str) -> Vec<String> {
    let (mut fields, mut field, mut depth, mut chars) =
        (Vec::new(), String::new(), 0, call.chars());
    while let Some(c) = chars.next() {
        match c {
            // The sentence; a text that is a value comes after its `=`.
            '"' if depth == 0 && !field.contains('=') => return fields,
            '"' => {
                let mut escaped = false;
                for inner in chars.by_ref() {
                    match inner {
                        '"' if !escaped => break,
                        '\\' => escaped = !escaped,
                        _ => escaped = false,
                    }
                }
            }
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' if depth == 0 => break,
            ')' | ']' | '}' => depth -= 1,
            ',' if depth == 0 => fields.push(std::mem::take(&mut field)),
            c => field.push(c),
        }
    }
    fields.extend(Some(field).filter(|field| !field.trim().is_empty()));
    fields
}

fn key(field: &str) -> String {
    let name = field.split('=').next().unwrap_or_default().trim();
    name.trim_start_matches(['%', '?']).trim().to_owned()
}

#[test]
fn every_log_line_has_promised_keys_only() -> Result<()> {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let mut all = Vec::new();
    for folder in [
        "hub/src",
        "agent/src",
        "proto/src",
        "proto/transport/src",
        "hub/api/src",
        "hub/core/src",
        "hub/plugin/src",
        "agent/core/src",
    ] {
        all.extend(files_below(&root.join(folder), "rs")?);
    }
    let (mut seen, mut strange) = (BTreeSet::new(), Vec::new());
    for path in all {
        let text = fs::read_to_string(&path)?;
        for call in CALLS.iter().chain(&SPANS) {
            for (at, _) in text.match_indices(&format!("tracing::{call}")) {
                let rest = &text[at + "tracing::".len() + call.len()..];
                // The name of a span comes before its fields.
                let rest = if SPANS.contains(call) {
                    rest.split_once(',').map_or(rest, |(_, rest)| rest)
                } else {
                    rest
                };
                for key in fields(rest).iter().map(|field| key(field)) {
                    if LOG_KEYS.iter().any(|(known, _)| *known == key) && key != "message" {
                        _ = seen.insert(key)
                    } else {
                        strange.push(format!("{}: {key}", path.strip_prefix(root)?.display()))
                    }
                }
            }
        }
    }
    ensure!(
        strange.is_empty(),
        "keys that proto/transport/src/ops/logs.rs does not promise (take one of those, or add it): {strange:#?}"
    );
    ensure!(seen.len() > 15, "only these keys were found: {seen:?}");
    Ok(())
}

#[test]
fn fields_are_found_before_the_sentence() {
    let found =
        fields(r#"%cluster, why = describe(&a, "x, y"), rule = f("a"), "a sentence, {}", x)"#);
    let keys: Vec<_> = found.iter().map(|field| key(field)).collect();
    assert_eq!(keys, ["cluster", "why", "rule"]);
    assert!(fields(r#""only, a sentence", x)"#).is_empty());
    assert_eq!(fields(" rule = %name(&uid), copy);").len(), 2);
}
