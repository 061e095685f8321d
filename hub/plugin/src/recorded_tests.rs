//! Output of `kubectl runnel status` for the statuses that the hub's tests record.
use std::fs;
use std::path::Path;

use serde_json::Value;

use super::*;

/// Every recorded status: the test that recorded it, and the rule as the API server stores it.
fn recorded() -> Vec<(String, Value)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../core/src/status/tests/snapshots");
    let mut found: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .filter_map(|entry| {
            let path = entry.unwrap().path();
            let name = path
                .file_stem()?
                .to_str()?
                .rsplit_once("__tests__")?
                .1
                .to_owned();
            let text = fs::read_to_string(&path).unwrap();
            let (_, body) = text.strip_prefix("---\n")?.split_once("\n---\n")?;
            let object: Value = serde_json::from_str(body).ok()?;
            // Some snapshots are parts of a status, or several rules.
            object["metadata"].is_object().then_some((name, object))
        })
        .collect();
    found.sort_by(|one, other| one.0.cmp(&other.0));
    found
}

/// As in a terminal: a line that is too long continues in the next one.
fn folded(page: &str, columns: usize) -> String {
    let mut text = format!("{columns:-<columns$}\n");
    for line in page.lines() {
        let letters: Vec<_> = line.chars().collect();
        let parts: Vec<String> = letters
            .chunks(columns)
            .map(|part| part.iter().collect())
            .collect();
        text += &parts
            .iter()
            .map(|part| part.trim_end())
            .collect::<Vec<_>>()
            .join("\n");
        text.push('\n');
    }
    text
}

#[test]
fn recorded_statuses_are_shown() {
    let all = recorded();
    assert!(all.len() >= 17, "{} statuses are recorded", all.len());
    for (name, mut object) in all {
        // The recorded objects contain only the status.
        object["spec"] = serde_json::json!({"sources": [], "clusters": {}});
        let made_at: Timestamp = object["metadata"]["creationTimestamp"]
            .as_str()
            .unwrap()
            .parse()
            .unwrap();
        let now = made_at + std::time::Duration::from_secs(3600);
        let object = Rule::read(&object).unwrap();
        let table = rules(std::slice::from_ref(&object), true, false, now).text(false);
        let text = format!("{table}\n{}", rule(&object, now, false));
        // No line ends with blanks that an editor would take away.
        let page = text
            .lines()
            .fold(String::new(), |all, line| all + line.trim_end() + "\n");
        let shown = if name.starts_with("rollouts") {
            folded(&page, 80) + "\n" + &folded(&page, 160)
        } else {
            page
        };
        insta::assert_snapshot!(name, shown);
    }
}
