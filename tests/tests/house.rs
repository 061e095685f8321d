//! Rules of the code base that no compiler checks: which crates do no I/O, which modules may import each other, where tasks
//! run, how long a file may be.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use runnel_tests::files::files_below;

#[path = "house/commands.rs"]
mod commands;
#[path = "house/control_flow.rs"]
mod control_flow;
#[path = "house/gitops.rs"]
mod gitops;
#[path = "house/imports.rs"]
mod imports;
#[path = "house/manual.rs"]
mod manual;
#[path = "house/no_io.rs"]
mod no_io;
#[path = "house/pages.rs"]
mod pages;
#[path = "house/reference.rs"]
mod reference;
#[path = "house/rights.rs"]
mod rights;
#[path = "house/selects.rs"]
mod selects;
#[path = "house/type_names.rs"]
mod type_names;
#[path = "house/vocabulary.rs"]
mod vocabulary;
#[path = "house/words.rs"]
mod words;

/// Lines of a file without its tests. A file is one concept; one that is longer than this is most likely two.
const LONGEST: usize = 800;

/// The crates of the product: how `tests/README.md` names one, and its folder.
const CRATES: [(&str, &str); 8] = [
    ("proto", "proto"),
    ("transport", "proto/transport"),
    ("api", "hub/api"),
    ("hub core", "hub/core"),
    ("plugin", "hub/plugin"),
    ("hub", "hub"),
    ("agent core", "agent/core"),
    ("agent", "agent"),
];

/// A file of Rust without its tests and comments: the lines that are left, numbered from 1.
struct Code {
    path: String,
    lines: Vec<(usize, String)>,
    length: usize,
}

#[test]
fn hub_and_agent_do_not_depend_on_each_other() -> Result<()> {
    let mut wrong = Vec::new();
    for (folder, other) in [
        ("hub", "runnel_agent"),
        ("agent", "runnel_hub"),
        ("proto", "runnel_"),
    ] {
        for file in code(&[&format!("{folder}/src")])? {
            for (number, _) in file.lines.iter().filter(|(_, line)| imports(line, other)) {
                let hint = "what both need belongs into proto";
                wrong.push(format!(
                    "{}:{number}: {folder} uses {other}: {hint}",
                    file.path
                ));
            }
        }
        let manifest = fs::read_to_string(root().join(folder).join("Cargo.toml"))?;
        let dependency = format!("{}.", other.replace('_', "-"));
        if folder != "proto" && manifest.lines().any(|line| line.starts_with(&dependency)) {
            wrong.push(format!(
                "{folder}/Cargo.toml: depends on {}",
                other.replace('_', "-")
            ));
        }
    }
    none(wrong)
}

#[test]
fn tasks_are_in_one_set() -> Result<()> {
    let mut wrong = Vec::new();
    for file in product_code()? {
        if file.path.ends_with("/main.rs") {
            continue;
        }
        for (number, _) in file
            .lines
            .iter()
            .filter(|(_, line)| line.contains("tokio::spawn"))
        {
            let hint = "put it into the set of tasks that main watches: one that nobody watches ends unseen";
            wrong.push(format!(
                "{}:{number}: tokio::spawn outside main.rs: {hint}",
                file.path
            ));
        }
    }
    none(wrong)
}

#[test]
fn locks_of_the_hub_have_a_rank() -> Result<()> {
    let mut wrong = Vec::new();
    for file in code(&["hub/src"])? {
        if file.path.ends_with("/ordered_lock.rs") {
            continue;
        }
        let plain = |line: &str| line.contains("parking_lot") || line.contains("std::sync::Mutex");
        for (number, _) in file.lines.iter().filter(|(_, line)| plain(line)) {
            wrong.push(format!(
                "{}:{number}: use a lock of ordered_lock.rs",
                file.path
            ));
        }
    }
    none(wrong)
}

#[test]
fn files_stay_small() -> Result<()> {
    let mut wrong = Vec::new();
    for file in product_code()?.into_iter().chain(code(&["tests/src"])?) {
        if file.length > LONGEST {
            let length = file.length;
            wrong.push(format!(
                "{}: {length} lines without its tests, at most {LONGEST}: divide it",
                file.path
            ));
        }
    }
    none(wrong)
}

#[test]
fn word_is_matched_as_a_whole() {
    assert!(contains_word("x.await?", ".await") && contains_word("x.await", ".await"));
    assert!(
        !contains_word("x.awaited", ".await") && contains_word("a.awaited || b.await;", ".await")
    );
}

#[test]
fn tests_and_comments_are_not_code() {
    let text = "a\n// b\n#[cfg(test)]\nmod tests;\n#[cfg(test)]\nmod more {\n    c\n}\nd\n";
    let (lines, length) = without_tests(text);
    let kept: Vec<(usize, &str)> = lines
        .iter()
        .map(|(number, line)| (*number, line.as_str()))
        .collect();
    assert_eq!(
        kept,
        [(1, "a"), (3, "#[cfg(test)]"), (4, "mod tests;"), (9, "d")]
    );
    assert_eq!(length, 5);
}

fn none(wrong: Vec<String>) -> Result<()> {
    ensure!(
        wrong.is_empty(),
        "{} against the rules of the house:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    Ok(())
}

/// Whether the line contains the whole word.
fn contains_word(line: &str, word: &str) -> bool {
    let whole = |rest: &str| !rest.starts_with(|next: char| next.is_alphanumeric() || next == '_');
    let ends_open = word.ends_with(|last: char| last.is_alphanumeric());
    line.match_indices(word)
        .any(|(at, _)| !ends_open || whole(&line[at + word.len()..]))
}

fn imports(line: &str, other: &str) -> bool {
    let uses_itself = other == "runnel_";
    line.contains(&format!("{other}::")) || (uses_itself && line.contains("use runnel_"))
}

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// The files of all crates of the product that are no tests.
fn product_code() -> Result<Vec<Code>> {
    let folders = CRATES.map(|(_, folder)| format!("{folder}/src"));
    code(&folders.each_ref().map(String::as_str))
}

/// The files of these folders that are no tests, in the order of their names.
fn code(folders: &[&str]) -> Result<Vec<Code>> {
    let mut paths = Vec::new();
    for folder in folders {
        let folder = root().join(folder);
        let all = files_below(&folder, "rs")?.into_iter();
        paths.extend(all.filter(|path| {
            path.strip_prefix(&folder)
                .is_ok_and(|inner| !is_test(inner))
        }));
    }
    paths.sort();
    let mut read = Vec::new();
    for path in paths {
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let (lines, length) = without_tests(&text);
        read.push(Code {
            path: path.strip_prefix(root())?.display().to_string(),
            lines,
            length,
        });
    }
    Ok(read)
}

/// Whether a path below a folder of code belongs to its tests.
fn is_test(path: &Path) -> bool {
    path.iter().any(|part| {
        let name = Path::new(part)
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy();
        name == "tests" || name.ends_with("_tests")
    })
}

/// What is left without comments and `#[cfg(test)] mod ... { }`, and how long the file is without the latter.
fn without_tests(text: &str) -> (Vec<(usize, String)>, usize) {
    let lines: Vec<&str> = text.lines().collect();
    let (mut kept, mut length, mut in_tests) = (Vec::new(), 0, false);
    for (index, line) in lines.iter().enumerate() {
        let next = lines.get(index + 1).copied().unwrap_or_default();
        in_tests |= *line == "#[cfg(test)]" && next.starts_with("mod ") && next.ends_with('{');
        if in_tests {
            in_tests = *line != "}";
            continue;
        }
        length += 1;
        if !line.trim_start().starts_with("//") {
            kept.push((index + 1, (*line).to_owned()));
        }
    }
    (kept, length)
}

/// The tests that the list of edge cases names are there, each in the file that it names.
#[test]
fn every_test_that_is_named_for_an_edge_case_exists() -> Result<()> {
    let list = fs::read_to_string(root().join("tests/README.md"))?;
    let named = tests_named_in(&list);
    ensure!(named.len() > 40, "only {} tests are named", named.len());
    let mut sources = Vec::new();
    let folders = CRATES
        .iter()
        .map(|(_, folder)| format!("{folder}/src"))
        .chain(["tests/tests".to_owned()]);
    for folder in folders {
        for file in files_below(&root().join(folder), "rs")? {
            let text = fs::read_to_string(&file)?;
            sources.push((file.strip_prefix(root())?.display().to_string(), text));
        }
    }
    let is_there = |(module, name): &(String, String)| {
        sources
            .iter()
            .any(|(path, text)| is_part_of(path, module) && text.contains(&format!("fn {name}(")))
    };
    let missing = named.iter().filter(|named| !is_there(named));
    none(
        missing
            .map(|(module, name)| {
                format!("tests/README.md names {name} in {module}, where it is not")
            })
            .collect(),
    )
}

/// The tests that a text quotes as `file::name`, `crate module::name`, or `::name` for the file named last: the path
/// without `.rs`, and the name.
fn tests_named_in(text: &str) -> Vec<(String, String)> {
    let is_name = |text: &str| {
        !text.is_empty()
            && text
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
    };
    let (mut last, mut named) = (String::new(), Vec::new());
    for quoted in text.split('`').skip(1).step_by(2) {
        let Some((module, name)) = quoted.rsplit_once("::").filter(|(_, name)| is_name(name))
        else {
            continue;
        };
        let in_crate = CRATES.iter().find_map(|(name, folder)| {
            Some((folder, module.strip_prefix(name)?.strip_prefix(' ')?))
        });
        let path = match in_crate {
            Some((folder, module)) => format!("{folder}/src/{}", module.replace(' ', "/")),
            None => format!("tests/tests/{}", module.replace(' ', "/")),
        };
        if !module.is_empty() {
            last = path.trim_end_matches(".rs").to_owned();
        }
        named.push((last.clone(), name.to_owned()));
    }
    named
}

/// Whether a file is a module, its tests, or within it. A folder `tests` of a crate's module need not be named.
fn is_part_of(path: &str, module: &str) -> bool {
    let short = |path: &str| {
        path.replacen(
            "/tests/",
            if path.starts_with("tests/") {
                "/tests/"
            } else {
                "/"
            },
            1,
        )
    };
    let (path, module) = (short(path), short(module));
    let rest = path
        .strip_prefix(&module)
        .and_then(|rest| rest.strip_suffix(".rs"));
    rest.is_some_and(|rest| rest.is_empty() || rest == "_tests" || rest.starts_with('/'))
}

#[test]
fn named_test_belongs_to_the_file_before_it() {
    let text = "`a/b.rs::one`, `::two`, `hub status::three`, `agent core histories.rs::four`, `no_test`, `x::NoTest`";
    let named = tests_named_in(text);
    let expected = [
        ("tests/tests/a/b", "one"),
        ("tests/tests/a/b", "two"),
        ("hub/src/status", "three"),
        ("agent/core/src/histories", "four"),
    ];
    assert_eq!(
        named,
        expected.map(|(module, name)| (module.to_owned(), name.to_owned()))
    );
    assert!(
        is_part_of("hub/src/status/tests/more.rs", "hub/src/status")
            && is_part_of("a/b_tests.rs", "a/b")
    );
    assert!(is_part_of(
        "agent/core/src/a/tests/quota.rs",
        "agent/core/src/a/quota"
    ));
    assert!(
        is_part_of("a/b.rs", "a/b")
            && !is_part_of("a/bc.rs", "a/b")
            && !is_part_of("a/b.md", "a/b")
    );
}

/// Characters of a test's name: subject, condition, result.
const TEST_NAME: usize = 60;

#[test]
fn test_names_are_short() -> Result<()> {
    let mut wrong = Vec::new();
    for folder in ["proto", "hub", "agent", "tests/src", "tests/tests"] {
        for file in files_below(&root().join(folder), "rs")? {
            let text = fs::read_to_string(&file)?;
            let names = test_names(&text)
                .into_iter()
                .filter(|name| name.len() > TEST_NAME);
            let path = file.strip_prefix(root())?.display();
            wrong.extend(
                names.map(|name| format!("{path}: {name}: at most {TEST_NAME} characters")),
            );
        }
    }
    none(wrong)
}

/// The names of the functions that are tests.
fn test_names(text: &str) -> Vec<&str> {
    let (mut is_test, mut names) = (false, Vec::new());
    for line in text.lines().map(str::trim) {
        let named = line
            .trim_start_matches("async ")
            .strip_prefix("fn ")
            .and_then(|rest| rest.split('(').next());
        match named {
            Some(name) if is_test => names.push(name),
            _ if line.starts_with("#[test]") || line.starts_with("#[tokio::test") => is_test = true,
            _ => {}
        }
        is_test &= named.is_none();
    }
    names
}

#[test]
fn names_of_tests_are_found() {
    let text = "fn a() {}\n#[test]\nfn b() {}\n#[tokio::test(x)]\n#[cfg(unix)]\nasync fn c() {}\nfn d() {}\n";
    assert_eq!(test_names(text), ["b", "c"]);
}
