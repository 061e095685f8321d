//! A crate has no two types of one name, so that a name found by text search is one type.
use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result};
use proc_macro2::TokenTree;
use runnel_tests::files::files_below;
use syn::{Attribute, Ident, Item};

use super::{CRATES, is_test, none, root};

/// A defined type: its name, and whether a `cfg` selects it among definitions of one file.
struct Definition {
    name: String,
    is_selected: bool,
}

/// The types that items define: structs, enums, unions, traits and aliases. Code for tests does not count.
fn definitions(items: &[Item], found: &mut Vec<Definition>) {
    let mut add = |name: &Ident, attributes: &[Attribute]| {
        found.push(Definition {
            name: name.to_string(),
            is_selected: has_cfg(attributes),
        });
    };
    for item in items {
        match item {
            Item::Struct(item) => add(&item.ident, &item.attrs),
            Item::Enum(item) => add(&item.ident, &item.attrs),
            Item::Union(item) => add(&item.ident, &item.attrs),
            Item::Trait(item) => add(&item.ident, &item.attrs),
            Item::Type(item) => add(&item.ident, &item.attrs),
            Item::Macro(item)
                if item
                    .mac
                    .path
                    .segments
                    .iter()
                    .any(|part| part.ident == "closed_list") =>
            {
                let tokens: Vec<TokenTree> = item.mac.tokens.clone().into_iter().collect();
                for pair in tokens.windows(2) {
                    if let [TokenTree::Ident(word), TokenTree::Ident(name)] = pair
                        && word == "enum"
                    {
                        add(name, &[]);
                    }
                }
            }
            _ => {}
        }
    }
    for item in items {
        if let Item::Mod(module) = item
            && !has_cfg(&module.attrs)
            && let Some((_, items)) = &module.content
        {
            definitions(items, found);
        }
    }
}

fn has_cfg(attributes: &[Attribute]) -> bool {
    attributes
        .iter()
        .any(|attribute| attribute.path().is_ident("cfg"))
}

/// The names that several definitions have, with the files. Alternatives that `cfg` selects in one file are one type.
fn repeated<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Vec<String>> {
    let mut all: BTreeMap<String, Vec<(&str, bool)>> = BTreeMap::new();
    for (path, text) in files {
        let mut found = Vec::new();
        definitions(
            &syn::parse_file(text)
                .with_context(|| path.to_owned())?
                .items,
            &mut found,
        );
        for Definition { name, is_selected } in found {
            all.entry(name).or_default().push((path, is_selected));
        }
    }
    all.retain(|_, places| {
        let first = places[0].0;
        places.len() > 1
            && !places
                .iter()
                .all(|(path, is_selected)| *is_selected && *path == first)
    });
    let line = |(name, places): (String, Vec<(&str, bool)>)| {
        let paths: Vec<&str> = places.into_iter().map(|(path, _)| path).collect();
        format!("{name}: {}", paths.join(", "))
    };
    Ok(all.into_iter().map(line).collect())
}

#[test]
fn types_of_one_crate_have_different_names() -> Result<()> {
    let mut wrong = Vec::new();
    let folders = CRATES.iter().map(|(_, folder)| *folder);
    for folder in folders.chain(["tests"]) {
        let source = root().join(folder).join("src");
        let mut files = Vec::new();
        for path in files_below(&source, "rs")? {
            if !is_test(path.strip_prefix(&source)?) {
                files.push((
                    path.strip_prefix(root())?.display().to_string(),
                    fs::read_to_string(&path)?,
                ));
            }
        }
        let files = files
            .iter()
            .map(|(path, text)| (path.as_str(), text.as_str()));
        wrong.extend(
            repeated(files)?
                .into_iter()
                .map(|name| format!("{folder}: two types have the name {name}")),
        );
    }
    none(wrong)
}

#[test]
fn repeated_names_are_found_in_modules_and_lists() {
    let first = "struct A; mod m { pub enum B {} } closed_list! { /// a\n pub enum C { D, } }";
    let second = "type A = u8; trait B {} #[cfg(test)] mod tests { struct E; } struct E; fn f() { struct G; }";
    let third = "enum C {} #[cfg(a)] struct F; #[cfg(not(a))] struct F; struct G;";
    let names = repeated([("1", first), ("2", second), ("3", third)]).unwrap();
    assert_eq!(names, ["A: 1, 2", "B: 1, 2", "C: 1, 3"]);
    assert_eq!(
        repeated([("1", "#[cfg(a)] struct F;"), ("2", "#[cfg(b)] struct F;")]).unwrap(),
        ["F: 1, 2"]
    );
}
