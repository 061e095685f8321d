//! No module imports another one that, directly or by others, imports it.
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Result, ensure};

use super::{CRATES, code, none, root};

/// The modules that each module of a crate uses.
type Imports = BTreeMap<String, BTreeSet<String>>;

#[test]
fn modules_have_no_import_cycle() -> Result<()> {
    let mut wrong = Vec::new();
    for (_, folder) in CRATES {
        let source = format!("{folder}/src");
        let mut imports = Imports::new();
        for file in code(&[&source])? {
            let Some(module) = module_of(file.path.strip_prefix(&source).unwrap_or_default())
            else {
                continue;
            };
            let text = file
                .lines
                .iter()
                .map(|(_, line)| line.as_str())
                .collect::<Vec<_>>()
                .join("\n");
            imports.entry(module).or_default().extend(imported(&text));
        }
        ensure!(imports.len() > 1, "{folder}: no modules found");
        wrong.extend(cycle(&imports).map(|cycle| format!("{folder}: {}", cycle.join(" -> "))));
    }
    none(wrong)
}

/// The top-level module of a file, given by its path below `src`; none for the root of the crate.
fn module_of(path: &str) -> Option<String> {
    let first = path
        .trim_start_matches('/')
        .split('/')
        .next()?
        .trim_end_matches(".rs");
    (!["", "lib", "main"].contains(&first)).then(|| first.to_owned())
}

/// The top-level modules that a text names after `crate::`, also in braces.
fn imported(text: &str) -> BTreeSet<String> {
    let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let mut found = BTreeSet::new();
    for (at, _) in text.match_indices("crate::") {
        if text[..at].ends_with(|before: char| is_word(before) || before == '$') {
            continue;
        }
        let rest = &text[at + "crate::".len()..];
        let names = match rest.strip_prefix('{') {
            Some(list) => outermost(list),
            None => vec![rest.split(|c| !is_word(c)).next().unwrap_or_default()],
        };
        found.extend(
            names
                .into_iter()
                .filter(|name| !name.is_empty())
                .map(str::to_owned),
        );
    }
    found
}

/// The first word of each entry of a list in braces, of which the opening one is gone.
fn outermost(list: &str) -> Vec<&str> {
    let (mut depth, mut begin, mut entries) = (0, 0, Vec::new());
    for (at, c) in list.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => {
                entries.push(&list[begin..at]);
                break;
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                entries.push(&list[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    entries
        .into_iter()
        .map(|entry| entry.trim().split("::").next().unwrap_or_default())
        .collect()
}

/// A way from a module back to itself, if there is one.
fn cycle(imports: &Imports) -> Option<Vec<String>> {
    let mut left = imports.clone();
    // What imports nothing that is left is in no cycle.
    loop {
        let free: Vec<String> = left
            .iter()
            .filter(|(module, used)| {
                !used
                    .iter()
                    .any(|one| one != *module && left.contains_key(one))
            })
            .map(|(module, _)| module.clone())
            .collect();
        if free.is_empty() {
            break;
        }
        left.retain(|module, _| !free.contains(module));
    }
    let mut way: Vec<String> = vec![left.keys().next()?.clone()];
    loop {
        let last = way.last()?;
        let next = left
            .get(last)?
            .iter()
            .find(|one| *one != last && left.contains_key(*one))?
            .clone();
        let known = way.iter().position(|module| *module == next);
        way.push(next);
        if let Some(known) = known {
            return Some(way.split_off(known));
        }
    }
}

#[test]
fn imports_are_read_from_braces_and_paths() {
    let text = "use crate::a::B;\nuse crate::{c, d::{E, f}, g};\nlet x = crate::h::i();\nuse $crate::j;\nuse other_crate::k;";
    let found: Vec<_> = imported(text).into_iter().collect();
    assert_eq!(found, ["a", "c", "d", "g", "h"]);
    assert_eq!(module_of("/plan/rule.rs").as_deref(), Some("plan"));
    assert_eq!(
        (module_of("/seal.rs").as_deref(), module_of("/lib.rs")),
        (Some("seal"), None)
    );
}

#[test]
fn import_cycle_is_found_with_its_modules() {
    let imports = |edges: &[(&str, &str)]| {
        let mut all = Imports::new();
        for (from, to) in edges {
            all.entry((*from).to_owned())
                .or_default()
                .insert((*to).to_owned());
        }
        all
    };
    assert_eq!(
        cycle(&imports(&[("a", "b"), ("b", "c"), ("d", "a"), ("a", "a")])),
        None
    );
    let found = cycle(&imports(&[
        ("d", "a"),
        ("a", "b"),
        ("b", "c"),
        ("c", "a"),
        ("c", "e"),
    ]));
    assert_eq!(
        found,
        Some(["a", "b", "c", "a"].map(str::to_owned).to_vec())
    );
}

/// ARCHITECTURE.md has a line for each top-level module of each crate, and for no other.
#[test]
fn architecture_lists_every_module() -> Result<()> {
    let page = fs::read_to_string(root().join("ARCHITECTURE.md"))?;
    let mut wrong = Vec::new();
    for (_, folder) in CRATES {
        let manifest = fs::read_to_string(root().join(folder).join("Cargo.toml"))?;
        let name = manifest
            .lines()
            .find_map(|line| line.strip_prefix("name = "))
            .unwrap_or_default()
            .trim_matches('"');
        let source = format!("{folder}/src");
        let modules: BTreeSet<String> = code(&[&source])?
            .iter()
            .filter_map(|file| module_of(file.path.strip_prefix(&source).unwrap_or_default()))
            .collect();
        let listed = listed_modules(&page, name);
        let missing = modules
            .difference(&listed)
            .map(|module| format!("ARCHITECTURE.md: {name} lacks `{module}`"));
        wrong.extend(
            missing.chain(
                listed
                    .difference(&modules)
                    .map(|module| format!("ARCHITECTURE.md: {name} has no `{module}`")),
            ),
        );
    }
    none(wrong)
}

/// The first cells of the table below the heading of a crate.
fn listed_modules(page: &str, name: &str) -> BTreeSet<String> {
    let heading = format!("### `{name}`");
    let below = page.lines().skip_while(|line| *line != heading).skip(1);
    let rows = below
        .take_while(|line| !line.starts_with('#'))
        .filter_map(|line| line.strip_prefix("| `"));
    rows.filter_map(|row| row.split('`').next())
        .map(str::to_owned)
        .collect()
}
