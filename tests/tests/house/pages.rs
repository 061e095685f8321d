//! README and the manual: their length, the length of their sentences, their links, and the table of contents.
use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use runnel_tests::files::files_below;

use super::{none, root};

const MANUAL: &str = "deploy/manual/src";

/// Lines of the README, lines of a page of the manual, words of a sentence.
const README: usize = 200;
const PAGE: usize = 300;
const WORDS: usize = 30;

/// The pages of the manual with their text, as paths from the root.
fn pages() -> Result<Vec<(String, String)>> {
    let paths = files_below(&root().join(MANUAL), "md")?;
    ensure!(paths.len() > 20, "only {} pages", paths.len());
    let relative = |path: &PathBuf| {
        Ok((
            path.strip_prefix(root())?.display().to_string(),
            fs::read_to_string(path)?,
        ))
    };
    paths.iter().map(relative).collect()
}

fn read(path: &str) -> Result<(String, String)> {
    Ok((
        path.to_owned(),
        fs::read_to_string(root().join(path)).with_context(|| path.to_owned())?,
    ))
}

/// The text outside of fenced code.
fn without_code(text: &str) -> String {
    let mut fenced = false;
    let keep = |line: &&str| {
        let is_fence = line.trim_start().starts_with("```");
        fenced ^= is_fence;
        !fenced && !is_fence
    };
    text.lines()
        .filter(keep)
        .fold(String::new(), |text, line| text + line + "\n")
}

/// The sentences of the prose and of the cells of tables: no code, no headings. An item of a list is
/// a paragraph of its own.
fn sentences(text: &str) -> Vec<String> {
    let mut paragraphs = vec![String::new()];
    for line in without_code(text).lines() {
        let line = line.trim();
        let is_item = ["- ", "* "].iter().any(|mark| line.starts_with(mark))
            || line
                .split_once(". ")
                .is_some_and(|(number, _)| number.bytes().all(|b| b.is_ascii_digit()));
        if line.is_empty()
            || is_item
            || line.starts_with('|')
            || line.starts_with('#')
            || line.starts_with("<!--")
        {
            paragraphs.push(String::new());
        }
        if line.starts_with('#') || line.starts_with("<!--") {
            continue;
        }
        if line.starts_with('|') {
            let cells = line.replace("\\|", "/");
            paragraphs.extend(cells.split('|').map(|cell| cell.trim().to_owned()));
            paragraphs.push(String::new());
            continue;
        }
        if let Some(last) = paragraphs.last_mut() {
            last.push_str(line);
            last.push(' ');
        }
    }
    let mut found = Vec::new();
    for paragraph in paragraphs {
        let mut sentence: Vec<&str> = Vec::new();
        for word in paragraph.split_whitespace() {
            sentence.push(word);
            if word
                .trim_end_matches(['*', ')', '"', '`'])
                .ends_with(['.', '?', '!', ':'])
            {
                found.push(sentence.join(" "));
                sentence.clear();
            }
        }
        found.push(sentence.join(" "));
    }
    found.retain(|sentence| !sentence.is_empty());
    found
}

/// The text without the targets of its links.
fn without_targets(text: &str) -> String {
    let mut parts = text.split("](");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        text + part.split_once(')').map_or(part, |(_, rest)| rest)
    })
}

/// The anchors of a page, as GitHub and mdBook make them of its headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = without_code(text);
    let headings = headings.lines().filter(|line| line.starts_with('#'));
    let slug = |line: &str| {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept = title
            .chars()
            .filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_' | ' '));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(slug).collect()
}

/// The targets of the links of a page.
fn links(text: &str) -> Vec<String> {
    let plain = without_code(text);
    let targets = plain
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split_once(')'));
    targets.map(|(target, _)| target.to_owned()).collect()
}

/// The path of a link from a page, with `.` and `..` taken out.
fn resolve(page: &str, target: &str) -> PathBuf {
    let mut path = PathBuf::from(page);
    path.pop();
    for part in Path::new(target).components() {
        match part {
            Component::ParentDir => drop(path.pop()),
            Component::Normal(name) => path.push(name),
            _ => {}
        }
    }
    path
}

#[test]
fn readme_and_pages_are_short() -> Result<()> {
    let mut wrong = Vec::new();
    let mut check = |path: &str, text: &str, most: usize| {
        let lines = text.lines().count();
        if lines > most {
            wrong.push(format!(
                "{path}: {lines} lines, at most {most}: shorten or divide it"
            ));
        }
    };
    let (path, text) = read("README.md")?;
    check(&path, &text, README);
    pages()?
        .iter()
        .for_each(|(path, text)| check(path, text, PAGE));
    none(wrong)
}

#[test]
fn readme_and_manual_have_short_sentences() -> Result<()> {
    let mut wrong = Vec::new();
    let others = [
        "README.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "tests/README.md",
        "tests/SPEED.md",
    ];
    let others = others.into_iter().map(read).collect::<Result<Vec<_>>>()?;
    for (path, text) in pages()?.into_iter().chain(others) {
        let all = sentences(&text);
        ensure!(!all.is_empty(), "{path} has no sentence");
        for sentence in all {
            // A piece of code counts as one word, and a link as its text.
            let plain = without_targets(&sentence);
            let pieces = plain.split('`').enumerate();
            let prose = pieces.map(|(index, piece)| if index % 2 == 0 { piece } else { "X" });
            let words = prose
                .collect::<String>()
                .split_whitespace()
                .filter(|word| word.chars().any(char::is_alphanumeric))
                .count();
            if words > WORDS {
                wrong.push(format!(
                    "{path}: {words} words, at most {WORDS}: {sentence}"
                ));
            }
        }
    }
    none(wrong)
}

#[test]
fn every_relative_link_resolves() -> Result<()> {
    let mut wrong = Vec::new();
    let mut all = pages()?;
    for path in [
        "README.md",
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "deploy/README.md",
        "GLOSSARY.md",
    ] {
        all.push(read(path)?);
    }
    for (path, text) in &all {
        for link in links(text) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (target, anchor) = link
                .split_once('#')
                .map_or((link.as_str(), None), |(path, to)| (path, Some(to)));
            let file = if target.is_empty() {
                PathBuf::from(path)
            } else {
                resolve(path, target)
            };
            let full = root().join(&file);
            if !full.exists() {
                wrong.push(format!("{path}: {link}: there is no {}", file.display()));
            } else if let Some(anchor) = anchor {
                let known = full.is_file() && anchors(&fs::read_to_string(&full)?).contains(anchor);
                if !known {
                    wrong.push(format!(
                        "{path}: {link}: {} has no heading {anchor}",
                        file.display()
                    ));
                }
            }
            // A page of the book links to files outside of it by address: the book is read elsewhere, too.
            if path.starts_with(MANUAL) && !file.starts_with(MANUAL) {
                wrong.push(format!(
                    "{path}: {link}: leaves the book: quote the path instead"
                ));
            }
        }
    }
    none(wrong)
}

/// The files and folders that a text names in backticks: what has a file's ending, or a `/`.
fn named_files(text: &str) -> BTreeSet<&str> {
    const ENDINGS: [&str; 8] = [
        ".json", ".md", ".proto", ".rs", ".snap", ".toml", ".tpl", ".yaml",
    ];
    let is_file = |name: &&str| {
        let is_path = name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"._-/".contains(&b));
        is_path && (name.contains('/') || ENDINGS.iter().any(|ending| name.ends_with(ending)))
    };
    text.split('`').skip(1).step_by(2).filter(is_file).collect()
}

/// Whether a name is a file or folder, from the root or as the end of a longer path. A module may lack its ending.
fn is_there(name: &str, files: &[String]) -> bool {
    let name = name.trim_end_matches('/');
    let ends = |path: &str| path == name || path.ends_with(&format!("/{name}"));
    files.iter().any(|file| {
        let path = file.strip_suffix(".rs").unwrap_or(file);
        let folders = file.match_indices('/').map(|(at, _)| &file[..at]);
        ends(file) || (name.contains('/') && (ends(path) || folders.into_iter().any(ends)))
    })
}

#[test]
fn architecture_names_existing_files() -> Result<()> {
    let page = fs::read_to_string(root().join("ARCHITECTURE.md"))?;
    let files = tracked_files()?;
    let text = without_code(&page);
    let named = named_files(&text);
    ensure!(named.len() > 80, "only {} files are named", named.len());
    let missing = named.into_iter().filter(|name| !is_there(name, &files));
    none(
        missing
            .map(|name| format!("ARCHITECTURE.md names {name}, which does not exist"))
            .collect(),
    )
}

/// The files that git tracks.
fn tracked_files() -> Result<Vec<String>> {
    let output = Command::new("git")
        .arg("ls-files")
        .current_dir(root())
        .output()?;
    ensure!(output.status.success(), "git ls-files fails");
    Ok(String::from_utf8(output.stdout)?
        .lines()
        .map(str::to_owned)
        .collect())
}

#[test]
fn named_files_are_found_as_paths_ends_and_modules() {
    let text = "`a/b.rs`, `b.rs` and `spec.rollout`, `kubectl x/y`, `a/b`";
    assert_eq!(named_files(text), BTreeSet::from(["a/b", "a/b.rs", "b.rs"]));
    let files = ["x/a/b.rs".to_owned()];
    for there in ["x/a/b.rs", "a/b.rs", "b.rs", "a/b", "x/a/"] {
        assert!(is_there(there, &files), "{there}");
    }
    for missing in ["a.rs", "b", "y/a/b.rs", "a/b/c", "/b.md"] {
        assert!(!is_there(missing, &files), "{missing}");
    }
}

#[test]
fn summary_lists_every_page_once() -> Result<()> {
    let (_, summary) = read(&format!("{MANUAL}/SUMMARY.md"))?;
    let listed: Vec<String> = links(&summary)
        .into_iter()
        .map(|link| format!("{MANUAL}/{link}"))
        .collect();
    let once: BTreeSet<&String> = listed.iter().collect();
    ensure!(once.len() == listed.len(), "SUMMARY.md lists a page twice");
    let pages: BTreeSet<String> = pages()?.into_iter().map(|(path, _)| path).collect();
    let is_page = |path: &&String| !path.ends_with("/SUMMARY.md");
    let missing = pages
        .iter()
        .filter(is_page)
        .filter(|path| !once.contains(path));
    none(
        missing
            .map(|path| format!("SUMMARY.md does not list {path}"))
            .collect(),
    )
}

#[test]
fn sentences_are_counted_without_code_and_headings() {
    let text = "# A title. Of two\n\nOne two. Three\nfour:\n\n```sh\nno prose here.\n```\n\n| a | b. |\n\n- five six\n- seven (eight.) Nine\n";
    assert_eq!(
        sentences(text),
        [
            "One two.",
            "Three four:",
            "a",
            "b.",
            "- five six",
            "- seven (eight.)",
            "Nine"
        ]
    );
}

#[test]
fn anchors_and_links_are_those_of_the_markdown() {
    let text = "# Rights, and why\n\nSee [a](b.md#c-d) and [e](#rights-and-why).\n\n```sh\n# no heading [x](y)\n```\n";
    assert!(anchors(text).contains("rights-and-why") && anchors(text).len() == 1);
    assert_eq!(links(text), ["b.md#c-d", "#rights-and-why"]);
    assert_eq!(
        resolve("deploy/manual/src/reference/rules.md", "../concepts.md"),
        Path::new("deploy/manual/src/concepts.md")
    );
}
