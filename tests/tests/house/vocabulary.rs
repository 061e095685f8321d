//! Names with words of the former private vocabulary are refused.
use std::collections::BTreeSet;
use std::fs;

use anyhow::Result;
use runnel_tests::files::files_below;

use super::{none, root};

/// Parts of names that have a standard word, which is the second one.
const REFUSED: &[(&str, &str)] = &[
    ("anew", "again, relist"),
    ("brake", "guard"),
    ("braked", "guarded"),
    ("bury", "expire"),
    ("burial", "expiry"),
    ("cure", "hint"),
    ("cures", "hints"),
    ("disbelieve", "invalidate"),
    ("doubt", "divergence, stale"),
    ("doubts", "divergences"),
    ("dying", "terminating"),
    ("fight", "contention"),
    ("fights", "contends"),
    ("foresee", "preview"),
    ("foreseen", "preview"),
    ("hear", "receive, handle"),
    ("heard", "received"),
    ("heed", "check"),
    ("heeded", "checked"),
    ("held", "acked, blocked"),
    ("keeper", "rotator"),
    ("lend", "reference"),
    ("lent", "referenced"),
    ("modest", "limited"),
    ("nobody", "none"),
    ("rehearse", "dry_run"),
    ("rests", "is_suspended, is_idle"),
    ("said", "reported, output"),
    ("saw", "observed"),
    ("sheaf", "chunks"),
    ("sighting", "observed version"),
    ("stray", "orphan"),
    ("strays", "orphans"),
    ("suppose", "preview"),
    ("supposed", "preview"),
    ("supposition", "preview"),
    ("told", "sent, reported"),
    ("travel", "rollback"),
    ("trouble", "error"),
    ("vanish", "mark_deleted"),
    ("vanished", "deleted"),
    ("whatif", "preview"),
    ("whoever", "a noun"),
    ("whom", "a noun"),
    ("witness", "history token"),
];

/// Word pairs that are refused only together.
const REFUSED_TOGETHER: &[(&str, &str)] = &[
    ("given_up", "namespace_prunes"),
    ("let_go", "approve"),
    ("lets_go", "approves"),
    ("what_becomes", "a noun"),
];

/// Words that no text of a program has: messages, logs, statuses. The second one is the standard word.
const REFUSED_IN_TEXTS: &[(&str, &str)] = &[
    ("anew", "again"),
    ("given up", "pruned"),
    ("gives up", "stops"),
    ("heeded", "checked"),
    ("heldrules", "AckedRules"),
    ("let go", "approved"),
    ("lets go", "approves"),
    ("looked after", "checked"),
    ("seen to", "handled"),
    ("whoever", "a noun"),
];

/// Prefixes of names that are clauses and not nouns.
const CLAUSES: &[&str] = &[
    "who_",
    "whose_",
    "whoever_",
    "what_is_",
    "what_was_",
    "what_the_",
];

/// The parts of a name, in lower case: of `GivenUp` and `given_up` `given` and `up`.
fn parts(name: &str) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    let mut begins = true;
    for (at, letter) in name.char_indices() {
        let before_is_lower =
            name[..at].ends_with(|last: char| last.is_lowercase() || last.is_numeric());
        begins |= letter.is_uppercase() && before_is_lower;
        if letter == '_' {
            begins = true;
            continue;
        }
        if begins {
            all.push(String::new());
            begins = false;
        }
        if let Some(last) = all.last_mut() {
            last.extend(letter.to_lowercase());
        }
    }
    all
}

/// The standard word for a name of the private language.
fn standard_word(name: &str) -> Option<&'static str> {
    let parts = parts(name);
    let one = REFUSED
        .iter()
        .find(|(word, _)| parts.iter().any(|part| part == word));
    let joined = parts.join("_");
    let together = || {
        REFUSED_TOGETHER
            .iter()
            .find(|(words, _)| joined.contains(words))
    };
    let clause = || {
        CLAUSES
            .iter()
            .any(|clause| joined.starts_with(clause))
            .then_some("a noun")
    };
    one.or_else(together).map(|(_, word)| *word).or_else(clause)
}

/// The names in code, without comments and the texts of strings.
fn names(text: &str) -> BTreeSet<&str> {
    tokens(text).0
}

/// The names in code and the texts of its strings, without comments.
fn tokens(text: &str) -> (BTreeSet<&str>, Vec<&str>) {
    let (mut all, mut texts) = (BTreeSet::new(), Vec::new());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("r\"") || rest.starts_with("r#") {
            let length = raw_string(rest);
            texts.extend(length.map(|length| &rest[..length]));
            length.unwrap_or(1)
        } else if first == '"' {
            let length = string(rest);
            texts.push(&rest[..length]);
            length
        } else if rest.starts_with("'\"'") || rest.starts_with("'\\") {
            2
        } else if first.is_alphabetic() || first == '_' {
            let length = rest
                .find(|letter: char| !letter.is_alphanumeric() && letter != '_')
                .unwrap_or(rest.len());
            all.insert(&rest[..length]);
            length
        } else {
            first.len_utf8()
        };
        rest = &rest[length..];
    }
    (all, texts)
}

/// The standard word for a word of a text, if the text has one that is refused.
fn standard_word_in(text: &str) -> Option<(&'static str, &'static str)> {
    let text = text.to_lowercase();
    let words: Vec<&str> = text
        .split(|letter: char| !letter.is_alphanumeric())
        .filter(|word| !word.is_empty())
        .collect();
    let plain = format!(" {} ", words.join(" "));
    let refused = |(word, _): &&(&str, &str)| plain.contains(&format!(" {word} "));
    REFUSED_IN_TEXTS.iter().find(refused).copied()
}

/// The length of a string that begins here.
fn string(text: &str) -> usize {
    let mut escaped = true;
    let end = text.char_indices().find(|(_, letter)| {
        let is_end = *letter == '"' && !escaped;
        escaped = *letter == '\\' && !escaped;
        is_end
    });
    end.map_or(text.len(), |(at, _)| at + 1)
}

/// The length of a raw string, if one begins here.
fn raw_string(text: &str) -> Option<usize> {
    let marks = text[1..].find(|letter| letter != '#')?;
    let content = text[1 + marks..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(marks));
    Some(text.len() - content.len() + content.find(&end)? + end.len())
}

#[test]
fn names_are_standard_words() -> Result<()> {
    let mut wrong = Vec::new();
    for folder in ["hub", "agent", "proto", "tests"] {
        for path in files_below(&root().join(folder), "rs")? {
            let text = fs::read_to_string(&path)?;
            for name in names(&text) {
                let Some(word) = standard_word(name) else {
                    continue;
                };
                wrong.push(format!("{}: {name}: write: {word}", path.display()));
            }
        }
    }
    none(wrong)
}

#[test]
fn texts_are_standard_words() -> Result<()> {
    let mut wrong = Vec::new();
    for folder in ["hub", "agent", "proto", "tests"] {
        for path in files_below(&root().join(folder), "rs")? {
            if path.ends_with("house/vocabulary.rs") {
                continue;
            }
            let code = fs::read_to_string(&path)?;
            for text in tokens(&code).1 {
                let Some((word, standard)) = standard_word_in(text) else {
                    continue;
                };
                wrong.push(format!(
                    "{}: {text}: {word}: write: {standard}",
                    path.display()
                ));
            }
        }
    }
    none(wrong)
}

#[test]
fn words_of_texts_are_found() {
    let code = "// \"anew\"\nlet a = \"it is Let\\n go\"; b(r#\"whoever\"#, '\"', \"outlet good\")";
    let (_, texts) = tokens(code);
    let found: Vec<_> = texts
        .iter()
        .filter_map(|text| standard_word_in(text).map(|(word, _)| word))
        .collect();
    assert_eq!((texts.len(), found), (3, vec!["whoever"]));
    assert!(standard_word_in("it was\n  let\n go").is_some());
}

#[test]
fn names_are_found_and_split_into_words() {
    assert_eq!(parts("given_upTo42HTTP"), ["given", "up", "to42", "http"]);
    let text = "// told\nlet a_1 = \"held \\\" said\"; r#\"saw \" saw\"#; '\"'; B::c(\"\")";
    assert_eq!(names(text), BTreeSet::from(["B", "a_1", "c", "let"]));
    for refused in [
        "held_rules",
        "HeldRules",
        "notGivenUp",
        "who_leads",
        "HELD",
        "let_go_of",
    ] {
        assert!(standard_word(refused).is_some(), "{refused}");
    }
    for standard in [
        "sheriff",
        "withheld_",
        "restore",
        "whole",
        "threshold",
        "acked_rules",
    ] {
        assert!(standard_word(standard).is_none(), "{standard}");
    }
}
