//! No module imports one that, directly or by others, imports it.
//!
//! The rule holds at every level: the children of one module, each with all files below it, form no cycle. A module's
//! own file may use its children, and they may use it: a parent and its children are one module.
//!
//! The files are parsed. A path counts in `use`, types, expressions, patterns, macros and attributes. `crate::`, `self::`,
//! `super::` and imported names are resolved, and a re-export is followed to the file that defines the item. So a
//! `pub use` is no import itself. Code for tests does not count.
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context, Result, ensure};
use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};

use super::{CRATES, code, none, root};

/// The files that each file of a crate uses.
type Imports = BTreeMap<String, BTreeSet<String>>;

/// A path of modules and, at its end, an item.
type Names = Vec<String>;

/// Steps after which a chain of re-exports counts as endless.
const LONGEST_CHAIN: usize = 16;

/// A module of one crate: the file it is in, and what paths through it mean.
#[derive(Default)]
struct Module {
    file: String,
    children: BTreeSet<String>,
    /// What each imported or re-exported name stands for, as absolute paths below the root of the crate.
    names: BTreeMap<String, Names>,
    /// The modules of which it imports or re-exports every item.
    globs: Vec<Names>,
    /// Whether a name of it is defined here.
    items: BTreeSet<String>,
    /// The paths that its code names, in absolute form.
    used: BTreeSet<Names>,
}

/// The modules of one crate by their paths below its root.
#[derive(Default)]
struct Crate {
    modules: BTreeMap<Names, Module>,
}

impl Crate {
    /// Reads files, given as path below `src` and text.
    fn read(files: &[(String, String)]) -> Result<Self> {
        let mut all = Self::default();
        for (path, text) in files {
            let parsed = syn::parse_file(text).with_context(|| path.clone())?;
            all.add(path, module_path(path), parsed.items);
        }
        Ok(all)
    }

    fn add(&mut self, file: &str, path: Names, items: Vec<syn::Item>) {
        let children = items.iter().filter_map(|item| match item {
            syn::Item::Mod(module) if !is_for_tests(attributes(item)) => {
                Some(module.ident.to_string())
            }
            _ => None,
        });
        let mut reader = Reader {
            path: path.clone(),
            module: Module {
                file: file.to_owned(),
                children: children.collect(),
                ..Module::default()
            },
            paths: BTreeSet::new(),
            inline: Vec::new(),
        };
        for item in &items {
            reader.visit_item(item);
        }
        let Reader {
            mut module,
            paths,
            inline,
            ..
        } = reader;
        let absolute = paths
            .iter()
            .filter_map(|names| module.absolute(&path, names));
        let absolute: Vec<Names> = absolute.collect();
        module.used.extend(absolute);
        self.modules.insert(path.clone(), module);
        for (name, items) in inline {
            let mut inner = path.clone();
            inner.push(name);
            self.add(file, inner, items);
        }
    }

    /// The files that define what a path names: a module and a function may have one name.
    fn defining(&self, names: &[String], steps: usize) -> BTreeSet<String> {
        let mut at = Names::new();
        for (index, name) in names.iter().enumerate() {
            let Some(module) = self.modules.get(&at) else {
                return BTreeSet::new();
            };
            let is_last = index + 1 == names.len();
            if module.children.contains(name) && !(is_last && module.names.contains_key(name)) {
                at.push(name.clone());
                continue;
            }
            if steps == 0 {
                return BTreeSet::new();
            }
            let follow = |start: &Names| {
                let rest = names[index + 1..].iter();
                let whole: Names = start.iter().chain(rest).cloned().collect();
                self.defining(&whole, steps - 1)
            };
            if let Some(target) = module.names.get(name) {
                return follow(target);
            }
            if !module.items.contains(name) {
                let from_globs: BTreeSet<String> = module
                    .globs
                    .iter()
                    .flat_map(|glob| {
                        let mut target = glob.clone();
                        target.push(name.clone());
                        if self.defines(&target) {
                            follow(&target)
                        } else {
                            BTreeSet::new()
                        }
                    })
                    .collect();
                if !from_globs.is_empty() {
                    return from_globs;
                }
            }
            return BTreeSet::from([module.file.clone()]);
        }
        // A module itself: what is used of it is a path of its own.
        BTreeSet::new()
    }

    /// Whether the module of a path defines or passes on its last name.
    fn defines(&self, path: &[String]) -> bool {
        path.split_last().is_some_and(|(name, module)| {
            self.modules.get(module).is_some_and(|module| {
                module.items.contains(name)
                    || module.names.contains_key(name)
                    || module.children.contains(name)
            })
        })
    }

    fn imports(&self) -> Imports {
        let mut imports = Imports::new();
        for module in self.modules.values() {
            let used = module
                .used
                .iter()
                .flat_map(|names| self.defining(names, LONGEST_CHAIN));
            let used = used.filter(|file| *file != module.file);
            imports.entry(module.file.clone()).or_default().extend(used);
        }
        imports
    }
}

impl Module {
    /// The absolute path of what code in the module at `path` names, or none if the name is not one of this crate.
    fn absolute(&self, path: &[String], names: &[String]) -> Option<Names> {
        let (first, rest) = names.split_first()?;
        let with = |start: &[String]| start.iter().chain(rest).cloned().collect::<Names>();
        match first.as_str() {
            "crate" => Some(rest.to_vec()),
            "self" => Some(with(path)),
            "super" => {
                let (mut up, mut rest) = (path.len().checked_sub(1)?, rest);
                while let Some(("super", after)) = rest
                    .split_first()
                    .map(|(name, after)| (name.as_str(), after))
                {
                    (up, rest) = (up.checked_sub(1)?, after);
                }
                Some(path[..up].iter().chain(rest).cloned().collect())
            }
            _ if self.children.contains(first) && !rest.is_empty() => {
                let mut start = path.to_vec();
                start.push(first.clone());
                Some(with(&start))
            }
            _ => match self.names.get(first) {
                Some(target) => Some(with(target)),
                // What a glob imports has no name here.
                None if self.globs.is_empty() => None,
                None => Some(path.iter().chain(names).cloned().collect()),
            },
        }
    }
}

/// Collects what one module declares and names.
struct Reader {
    path: Names,
    module: Module,
    paths: BTreeSet<Names>,
    inline: Vec<(String, Vec<syn::Item>)>,
}

impl Reader {
    fn use_tree(&mut self, tree: &syn::UseTree, mut prefix: Names, passes_on: bool) {
        match tree {
            syn::UseTree::Path(part) => {
                prefix.push(part.ident.to_string());
                self.use_tree(&part.tree, prefix, passes_on);
            }
            syn::UseTree::Group(group) => {
                for tree in &group.items {
                    self.use_tree(tree, prefix.clone(), passes_on);
                }
            }
            syn::UseTree::Name(name) => {
                let ident = name.ident.to_string();
                if ident != "self" {
                    prefix.push(ident);
                }
                let local = prefix.last().cloned().unwrap_or_default();
                self.import(local, prefix, passes_on);
            }
            syn::UseTree::Rename(rename) => {
                if rename.ident != "self" {
                    prefix.push(rename.ident.to_string());
                }
                self.import(rename.rename.to_string(), prefix, passes_on);
            }
            syn::UseTree::Glob(_) => {
                if let Some(target) = self.own_path(&prefix) {
                    self.module.globs.push(target);
                }
            }
        }
    }

    fn import(&mut self, local: String, names: Names, passes_on: bool) {
        let Some(target) = self.own_path(&names) else {
            return;
        };
        if !passes_on {
            self.module.used.insert(target.clone());
        }
        if local != "_" {
            self.module.names.insert(local, target);
        }
    }

    /// The absolute path of an import, if it is from this crate.
    fn own_path(&self, names: &[String]) -> Option<Names> {
        if names.len() == 1 && self.module.children.contains(&names[0]) {
            return Some(self.path.iter().chain(names).cloned().collect());
        }
        self.module.absolute(&self.path, names)
    }

    /// The paths within the tokens of a macro or an attribute.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path = Names::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(ident) => {
                    if colons != 2 {
                        self.end_path(&mut path);
                    }
                    path.push(ident.to_string());
                    colons = 0;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                TokenTree::Group(group) => {
                    self.end_path(&mut path);
                    colons = 0;
                    self.tokens(group.stream());
                }
                TokenTree::Literal(literal) => {
                    self.end_path(&mut path);
                    colons = 0;
                    let text = literal.to_string();
                    if let Ok(inner) = syn::parse_str::<syn::Path>(text.trim_matches('"')) {
                        // Such as `#[serde(with = "crate::module")]`: a path to a module uses what is in it.
                        let names = inner.segments.iter().map(|part| part.ident.to_string());
                        let names: Names = names.collect();
                        self.end_path(&mut names.iter().cloned().chain(["*".to_owned()]).collect());
                        self.end_path(&mut names.clone());
                    }
                }
                TokenTree::Punct(_) => {
                    self.end_path(&mut path);
                    colons = 0;
                }
            }
        }
        self.end_path(&mut path);
    }

    fn end_path(&mut self, path: &mut Names) {
        let path = std::mem::take(path);
        // A single lower-case word is a variable or a function of the same file more often than an import.
        let is_type = |name: &String| name.starts_with(|first: char| first.is_uppercase());
        if path.len() > 1 || path.first().is_some_and(is_type) {
            self.paths.insert(path);
        }
    }
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if is_for_tests(attributes(item)) {
            return;
        }
        let defined = match item {
            syn::Item::Mod(module) => {
                if let Some((_, items)) = &module.content {
                    let items = items.clone();
                    self.inline.push((module.ident.to_string(), items));
                }
                return;
            }
            syn::Item::Use(item) => {
                let passes_on = !matches!(item.vis, syn::Visibility::Inherited);
                self.use_tree(&item.tree, Names::new(), passes_on);
                return;
            }
            syn::Item::Const(item) => Some(&item.ident),
            syn::Item::Enum(item) => Some(&item.ident),
            syn::Item::Fn(item) => Some(&item.sig.ident),
            syn::Item::Macro(item) => item.ident.as_ref(),
            syn::Item::Static(item) => Some(&item.ident),
            syn::Item::Struct(item) => Some(&item.ident),
            syn::Item::Trait(item) => Some(&item.ident),
            syn::Item::Type(item) => Some(&item.ident),
            syn::Item::Union(item) => Some(&item.ident),
            _ => None,
        };
        self.module.items.extend(defined.map(ToString::to_string));
        visit::visit_item(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !is_for_tests(&item.attrs) {
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names = path
            .segments
            .iter()
            .map(|segment| segment.ident.to_string());
        self.end_path(&mut names.collect());
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, called: &'ast syn::Macro) {
        self.visit_path(&called.path);
        self.tokens(called.tokens.clone());
    }

    fn visit_attribute(&mut self, attribute: &'ast syn::Attribute) {
        match &attribute.meta {
            syn::Meta::List(list) => self.tokens(list.tokens.clone()),
            syn::Meta::Path(_) | syn::Meta::NameValue(_) => {}
        }
    }

    // `pub(super)` uses nothing of the parent.
    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}
}

fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Const(item) => &item.attrs,
        syn::Item::Enum(item) => &item.attrs,
        syn::Item::ExternCrate(item) => &item.attrs,
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Macro(item) => &item.attrs,
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Static(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        syn::Item::Trait(item) => &item.attrs,
        syn::Item::Type(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Whether attributes leave an item out of the product: `#[cfg(test)]`, also within `all`.
fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        syn::Meta::List(list) if list.path.is_ident("cfg") => {
            let condition = list.tokens.to_string();
            condition == "test" || condition.starts_with("all") && condition.contains("test")
        }
        _ => false,
    })
}

/// The path of the module of a file, given by its path below `src`.
fn module_path(file: &str) -> Names {
    let mut names: Names = file
        .trim_end_matches(".rs")
        .split('/')
        .map(str::to_owned)
        .collect();
    if names
        .last()
        .is_some_and(|last| last == "mod" || last == "lib")
    {
        names.pop();
    }
    names
}

/// The cycles between the children of one module, each child with everything below it, at every level of a crate.
fn cycles(imports: &Imports) -> Vec<String> {
    let paths: BTreeMap<&str, Names> = imports
        .keys()
        .map(|file| (file.as_str(), module_path(file)))
        .collect();
    let parents: BTreeSet<&[String]> = paths
        .values()
        .flat_map(|path| (0..path.len()).map(|depth| &path[..depth]))
        .collect();
    let mut found = Vec::new();
    for parent in parents {
        let child = |file: &str| paths.get(file)?.strip_prefix(parent)?.first();
        let (mut graph, mut edges) = (Graph::new(), BTreeMap::<_, Vec<String>>::new());
        for (file, used) in imports {
            let Some(from) = child(file) else { continue };
            let node = graph.entry(from).or_default();
            for other in used {
                if let Some(to) = child(other).filter(|to| *to != from) {
                    node.insert(to);
                    edges
                        .entry((from, to))
                        .or_default()
                        .push(format!("{file} -> {other}"));
                }
            }
        }
        for names in components(&graph) {
            let within = edges
                .iter()
                .filter(|((from, to), _)| names.contains(from) && names.contains(to));
            let within: Vec<&str> = within
                .flat_map(|(_, edges)| edges)
                .map(String::as_str)
                .collect();
            let names: Vec<&str> = names.into_iter().map(String::as_str).collect();
            found.push(format!("{}: {}", names.join(", "), within.join("; ")));
        }
    }
    found
}

/// Modules with one parent, and which of them each uses.
type Graph<'a> = BTreeMap<&'a String, BTreeSet<&'a String>>;

/// The groups of more than one module of which each reaches all others.
fn components<'a>(graph: &Graph<'a>) -> BTreeSet<Vec<&'a String>> {
    let reach = |from: &'a String| {
        let (mut seen, mut left) = (BTreeSet::new(), vec![from]);
        while let Some(module) = left.pop() {
            for next in graph.get(module).into_iter().flatten() {
                if seen.insert(*next) {
                    left.push(next);
                }
            }
        }
        seen
    };
    let reached: BTreeMap<&String, BTreeSet<&'a String>> = graph
        .keys()
        .map(|module| (*module, reach(module)))
        .collect();
    let both = |module: &'a String| {
        let others = reached[module].iter().copied();
        others
            .filter(|other| reached.get(other).is_some_and(|back| back.contains(module)))
            .collect::<Vec<_>>()
    };
    graph
        .keys()
        .map(|module| both(module))
        .filter(|group| group.len() > 1)
        .collect()
}

#[test]
fn modules_have_no_import_cycle() -> Result<()> {
    let mut wrong = Vec::new();
    for (_, folder) in CRATES {
        let source = root().join(folder).join("src");
        let mut files = Vec::new();
        for file in code(&[&format!("{folder}/src")])? {
            let path = root().join(&file.path);
            let below = path.strip_prefix(&source)?.display().to_string();
            if below != "main.rs" {
                files.push((below, fs::read_to_string(&path)?));
            }
        }
        let imports = Crate::read(&files)?.imports();
        ensure!(imports.len() > 1, "{folder}: no modules found");
        wrong.extend(
            cycles(&imports)
                .into_iter()
                .map(|cycle| format!("{folder}: {cycle}")),
        );
    }
    none(wrong)
}

/// The cycles of a crate whose files are given as path and text.
fn cycles_of(files: &[(&str, &str)]) -> Vec<String> {
    let files: Vec<_> = files
        .iter()
        .map(|(path, text)| ((*path).to_owned(), (*text).to_owned()))
        .collect();
    cycles(&Crate::read(&files).expect("valid Rust").imports())
}

#[test]
fn each_form_of_an_import_is_found_in_a_cycle() {
    let back = ("b.rs", "use super::a::Y; pub struct X; pub fn f() {}");
    for form in [
        "use crate::b::X;",
        "use super::b::X;",
        "use crate::{a::Z, b::{self as other, X}};",
        "use crate::X;",
        "use crate::*; fn g(_: X) {}",
        "fn g() { crate::b::f() }",
        "use crate::b; fn g() { b::f() }",
        "fn g() { use super::b; b::f() }",
        "fn g(_: &super::b::X) {}",
        "fn g() { println!(\"{}\", crate::b::f()) }",
        "macro_rules! m { () => { $crate::b::f() } }",
        "#[serde(with = \"crate::b\")] struct S;",
        "#[serde(default = \"crate::b::f\")] struct S;",
        "mod inner { use super::super::b::X; }",
        "mod inner { use crate::b::X; }",
    ] {
        let files = [
            ("lib.rs", "mod a; mod b; pub use b::X;"),
            ("a.rs", form),
            back,
        ];
        assert_eq!(
            cycles_of(&files),
            ["a, b: a.rs -> b.rs; b.rs -> a.rs"],
            "{form}"
        );
    }
}

#[test]
fn cycle_is_found_below_a_module_and_through_several() {
    let below = [
        ("lib.rs", "mod p;"),
        ("p/mod.rs", "mod a; mod b; mod c; pub use c::{C, f as g};"),
        ("p/a.rs", "use super::b::B;"),
        ("p/b.rs", "fn x() { super::g() }"),
        ("p/c.rs", "use super::a::A;"),
    ];
    assert_eq!(
        cycles_of(&below),
        ["a, b, c: p/a.rs -> p/b.rs; p/b.rs -> p/c.rs; p/c.rs -> p/a.rs"]
    );
    // No two files import each other, but the modules do.
    let through = [
        ("lib.rs", "mod p; mod q;"),
        ("p.rs", "mod a; mod b; pub use a::A;"),
        ("p/a.rs", "pub struct A;"),
        ("p/b.rs", "use crate::q::Q;"),
        ("q.rs", "use crate::p::A; pub struct Q;"),
    ];
    assert_eq!(
        cycles_of(&through),
        ["p, q: p/b.rs -> q.rs; q.rs -> p/a.rs"]
    );
}

#[test]
fn parents_tests_and_other_crates_are_no_cycle() {
    let files = [
        ("lib.rs", "mod p; mod b; use p::P; fn f(_: P) {}"),
        ("p.rs", "mod a; use a::A; pub struct P(A);"),
        (
            "p/a.rs",
            "use super::P; pub(super) struct A; #[cfg(test)] mod tests { use crate::b::B; }",
        ),
        (
            "b.rs",
            "use crate::p::P; use other::p::Q; #[cfg(test)] use crate::p::R; #[cfg(all(test, unix))] fn f() { crate::p::g() }",
        ),
    ];
    assert_eq!(cycles_of(&files), Vec::<String>::new());
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
        if !listed.is_sorted() {
            wrong.push(format!(
                "ARCHITECTURE.md: the modules of {name} are not sorted by name"
            ));
        }
        let listed: BTreeSet<String> = listed.into_iter().collect();
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
fn listed_modules(page: &str, name: &str) -> Vec<String> {
    let heading = format!("### `{name}`");
    let below = page.lines().skip_while(|line| *line != heading).skip(1);
    let rows = below
        .take_while(|line| !line.starts_with('#'))
        .filter_map(|line| line.strip_prefix("| `"));
    rows.filter_map(|row| row.split('`').next())
        .map(str::to_owned)
        .collect()
}
