//! `deploy/README.md` has every value of the charts with its default, as the schemas and values.yaml say.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use runnel_tests::helm::chart;
use serde_json::Value;

use super::render::CHARTS;

/// The rows of the table: value, default, meaning.
fn rows(schema: &Value, values: &Value, path: &str, table: &mut String) -> Result<()> {
    for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
        let (value, here) = (&values[name], format!("{path}{name}"));
        if schema["properties"].is_object() {
            rows(schema, value, &format!("{here}."), table)?;
            continue;
        }
        if here == "global" {
            continue;
        }
        let mut meaning = schema["description"].as_str().unwrap_or_default().replace('|', "\\|");
        if let Some(choices) = schema["enum"].as_array() {
            let choices: Vec<String> = choices
                .iter()
                .filter(|choice| *choice != "")
                .map(|choice| choice.to_string().replace('"', "`"))
                .collect();
            let _ = write!(meaning, " One of {}.", choices.join(", "));
        }
        let default = match value {
            Value::String(text) if !text.is_empty() => text.clone(),
            other => other.to_string(),
        };
        writeln!(table, "| `{here}` | `{default}` | {meaning} |")?;
    }
    Ok(())
}

fn table(name: &str) -> Result<String> {
    let values: Value = serde_saphyr::from_str(&fs::read_to_string(chart(name).join("values.yaml"))?)?;
    let schema: Value = serde_json::from_str(&fs::read_to_string(chart(name).join("values.schema.json"))?)?;
    let mut table = "| value | default | meaning |\n|---|---|---|\n".to_owned();
    rows(&schema, &values, "", &mut table)?;
    Ok(table)
}

#[test]
fn the_manual_has_every_value() -> Result<()> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/README.md");
    let found = fs::read_to_string(&path)?;
    let mut wanted = found.clone();
    for name in CHARTS {
        let (begin, end) = (format!("<!-- values of {name} -->\n"), "<!-- end of values -->");
        let from = wanted.find(&begin).with_context(|| format!("no {begin}"))? + begin.len();
        let to = from + wanted[from..].find(end).with_context(|| format!("no {end}"))?;
        wanted.replace_range(from..to, &table(name)?);
    }
    if std::env::var_os("RUNNEL_UPDATE").is_some() {
        fs::write(&path, &wanted)?;
        return Ok(());
    }
    ensure!(
        found == wanted,
        "the tables of deploy/README.md are not those of the charts; write them anew with\n  \
         RUNNEL_UPDATE=1 cargo test -p runnel-tests --test charts manual"
    );
    Ok(())
}
