//! The page about rights has what the charts grant, and nothing else.
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context, Result, ensure};
use runnel_tests::files::files_below;

use super::{none, root};

const GOLDEN: &str = "tests/tests/charts/golden";
const PAGE: &str = "deploy/manual/src/rights.md";

/// The verbs of Kubernetes.
const VERBS: [&str; 9] = [
    "create",
    "delete",
    "deletecollection",
    "get",
    "impersonate",
    "list",
    "patch",
    "update",
    "watch",
];

/// The verbs of an account by resource, and by whether only objects of certain names are meant.
type Rights = BTreeMap<(String, bool), BTreeSet<String>>;

fn add(rights: &mut Rights, resource: &str, by_name: bool, verbs: &[String]) {
    let known = rights.entry((resource.to_owned(), by_name)).or_default();
    known.extend(verbs.iter().cloned());
}

/// The rights that the goldens whose names begin like this give to the process.
fn granted(prefix: &str) -> Result<Rights> {
    let mut rights = Rights::new();
    for path in files_below(&root().join(GOLDEN), "txt")? {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if !name.starts_with(prefix) {
            continue;
        }
        for line in fs::read_to_string(&path)?.lines() {
            let Some((role, right)) = line.split_once(": ") else {
                continue;
            };
            if role.contains("(for people)") {
                continue;
            }
            let words: Vec<&str> = right.split(' ').collect();
            let [verbs, resources, ..] = words.as_slice() else {
                continue;
            };
            let verbs: Vec<String> = verbs.split(',').map(str::to_owned).collect();
            for resource in resources.split(',') {
                add(&mut rights, resource, words.contains(&"named"), &verbs);
            }
        }
    }
    Ok(rights)
}

/// The rights in the table below a heading of the page: verbs in prose, resources as code. What follows a semicolon and
/// names no resource belongs to the resources before it. A resource that `known` lacks is an error.
fn described(page: &str, heading: &str, known: &BTreeSet<String>) -> Result<Rights> {
    let (_, below) = page
        .split_once(&format!("\n## {heading}\n"))
        .with_context(|| format!("{PAGE} has no heading {heading}"))?;
    let rows = below.lines().skip_while(|line| !line.starts_with('|'));
    let rows = rows.skip(2).take_while(|line| line.starts_with('|'));
    let mut rights = Rights::new();
    for row in rows {
        let cell = row.trim_start_matches('|').split(" | ").next();
        let mut resources: Vec<String> = Vec::new();
        for part in cell.unwrap_or_default().split(';') {
            let mut verbs = Vec::new();
            let mut own = Vec::new();
            for (index, piece) in part.split('`').enumerate() {
                let is_code = index % 2 == 1;
                let words = piece.split(|c: char| !c.is_ascii_alphabetic());
                if !is_code {
                    let words = words.filter(|word| VERBS.contains(word));
                    verbs.extend(words.map(str::to_owned));
                } else if piece == "policy.kinds" {
                    own.extend(["configmaps", "secrets"].map(str::to_owned));
                } else {
                    let plural = piece.strip_prefix("events.k8s.io/").unwrap_or(piece);
                    let is_plural = plural.bytes().all(|b| b.is_ascii_lowercase() || b == b'/');
                    if is_plural {
                        ensure!(
                            known.contains(plural),
                            "{PAGE}: no chart grants {plural}: {row}"
                        );
                        own.push(plural.to_owned());
                    }
                }
            }
            if !own.is_empty() {
                resources = own;
            }
            ensure!(!verbs.is_empty(), "{PAGE}: no verb in a row: {row}");
            for resource in &resources {
                add(&mut rights, resource, part.contains("by name"), &verbs);
            }
        }
    }
    Ok(rights)
}

#[test]
fn page_about_rights_agrees_with_the_charts() -> Result<()> {
    let page = fs::read_to_string(root().join(PAGE))?;
    let mut wrong = Vec::new();
    for (heading, prefix) in [("Hub", "hub"), ("Agent", "agent")] {
        let granted = granted(prefix)?;
        ensure!(granted.len() > 3, "no golden {prefix}");
        let known = granted
            .keys()
            .map(|(resource, _)| resource.clone())
            .collect();
        let described = described(&page, heading, &known)?;
        let all: BTreeSet<_> = granted.keys().chain(described.keys()).collect();
        for key in all {
            let (in_chart, on_page) = (granted.get(key), described.get(key));
            if in_chart != on_page {
                let (resource, by_name) = key;
                let by_name = if *by_name { " by name" } else { "" };
                wrong.push(format!(
                    "{heading}: {resource}{by_name}: the charts grant {in_chart:?}, the page has {on_page:?}"
                ));
            }
        }
    }
    none(wrong)
}

#[test]
fn every_role_for_people_is_on_the_page() -> Result<()> {
    let page = fs::read_to_string(root().join(PAGE))?;
    let golden = fs::read_to_string(root().join(GOLDEN).join("hub.txt"))?;
    let roles = golden.lines().filter_map(|line| {
        line.strip_prefix("ClusterRole ")?
            .split_once(" (for people)")
    });
    let missing = roles.filter(|(role, _)| !page.contains(&format!("`{role}`")));
    none(
        missing
            .map(|(role, _)| format!("{PAGE} does not name {role}"))
            .collect(),
    )
}

#[test]
fn rights_are_read_from_rows() -> Result<()> {
    let page = "\n## Hub\n\n| right | where |\n|---|---|\n| get, list `secrets` `a-b`, by name; create | here |\n\
        | watch `pods`; patch with `x.y` | here |\n\n## Agent\n";
    let known = BTreeSet::from(["secrets", "pods"].map(str::to_owned));
    let rights = described(page, "Hub", &known)?;
    let verbs = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    let expected = Rights::from([
        (("secrets".to_owned(), true), verbs(&["get", "list"])),
        (("secrets".to_owned(), false), verbs(&["create"])),
        (("pods".to_owned(), false), verbs(&["watch", "patch"])),
    ]);
    ensure!(rights == expected, "{rights:?}");
    ensure!(
        described(page, "Hub", &BTreeSet::new()).is_err(),
        "unknown resources pass"
    );
    Ok(())
}
