//! Conditions are written with `if` and `else if`.
use std::fs;

use anyhow::Result;
use runnel_tests::files::files_below;

use super::{none, root};

/// Whether a line matches on nothing, or has an arm for `true` or `false`.
fn hides_a_condition(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    let arm = |value: &str| {
        code.match_indices(value).any(|(at, _)| {
            let (before, after) = (code[..at].trim_end(), code[at + value.len()..].trim_start());
            let is_pattern = before.is_empty() || before.ends_with(['{', ',']);
            is_pattern
                && (after.starts_with("=>") || (after.starts_with("if ") && after.contains("=>")))
        })
    };
    code.contains("match () ") || arm("true") || arm("false")
}

#[test]
fn conditions_are_not_hidden_in_a_match() -> Result<()> {
    let mut wrong = Vec::new();
    for folder in ["hub", "agent", "proto", "tests"] {
        for path in files_below(&root().join(folder), "rs")? {
            if path.ends_with("house/control_flow.rs") {
                continue;
            }
            let text = fs::read_to_string(&path)?;
            for (number, line) in text
                .lines()
                .enumerate()
                .filter(|(_, line)| hides_a_condition(line))
            {
                wrong.push(format!(
                    "{}:{}: write if and else if: {}",
                    path.display(),
                    number + 1,
                    line.trim()
                ));
            }
        }
    }
    none(wrong)
}

#[test]
fn matches_on_values_are_no_hidden_conditions() {
    for hidden in [
        "let a = match () {",
        "    true => 1,",
        "false if b => {",
        "match a { true => 1, false => 2 }",
    ] {
        assert!(hides_a_condition(hidden), "{hidden}");
    }
    for open in [
        "Some(true) => 1,",
        "(false, _) => 1,",
        "a == true",
        "// true => 1",
        "if true { 1 }",
        "match a {",
    ] {
        assert!(!hides_a_condition(open), "{open}");
    }
}
