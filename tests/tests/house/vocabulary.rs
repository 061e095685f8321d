//! Names with words of the former private vocabulary are refused.
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use runnel_tests::files::files_below;

use super::{none, root};

/// Parts of names that have a standard word, which is the second one.
const REFUSED: &[(&str, &str)] = &[
    ("afresh", "again, relist"),
    ("anew", "again, relist"),
    ("authorities", "CAs, CA bundle"),
    ("authority", "CA"),
    ("brake", "guard"),
    ("braked", "guarded"),
    ("burial", "expiry"),
    ("bury", "expire"),
    ("circumstances", "input"),
    ("complain", "log"),
    ("cure", "hint"),
    ("cures", "hints"),
    ("deal", "plans"),
    ("deals", "plans"),
    ("disbelieve", "invalidate"),
    ("doubt", "divergence, stale"),
    ("doubts", "divergences"),
    ("dying", "terminating"),
    ("fares", "state"),
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
    ("leash", "guard"),
    ("ledger", "report store"),
    ("lend", "reference"),
    ("lent", "referenced"),
    ("look", "read, check"),
    ("looks", "reads, checks"),
    ("lots", "effective terms"),
    ("mind", "event loop"),
    ("minter", "hasher"),
    ("modest", "limited"),
    ("moot", "stale"),
    ("nobody", "none"),
    ("patiently", "retry"),
    ("presence", "connectivity"),
    ("rehearse", "dry_run"),
    ("rests", "is_suspended, is_idle"),
    ("ripening", "debounce"),
    ("said", "reported, output"),
    ("saw", "observed"),
    ("sheaf", "chunks"),
    ("sheet", "chunk"),
    ("sheets", "chunks"),
    ("sight", "observed"),
    ("sighting", "observed version"),
    ("standing", "state, position"),
    ("stray", "orphan"),
    ("strays", "orphans"),
    ("suppose", "preview"),
    ("supposed", "preview"),
    ("supposition", "preview"),
    ("thief", "attacker"),
    ("thieves", "attackers"),
    ("tie", "guard state"),
    ("ties", "guard states"),
    ("told", "sent, reported"),
    ("travel", "rollback"),
    ("travels", "is sent"),
    ("trouble", "error"),
    ("unclaimed", "orphaned"),
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
    ("granted_in_part", "partially_granted"),
    ("has_used_up", "approval_consumed"),
    ("in_doubt", "diverged"),
    ("knows_more", "is ahead"),
    ("let_go", "approve"),
    ("lets_go", "approves"),
    ("permit_at_last", "flush_approval"),
    ("put_off", "deferred"),
    ("seen_to", "handled"),
    ("waits_to_go", "pending_prune_changed"),
    ("what_becomes", "a noun"),
];

/// Names of types and variants of the former vocabulary. Other names may contain these words.
const REFUSED_NAMES: &[(&str, &str)] = &[
    ("Anew", "Relist"),
    ("Book", "ObjectCache"),
    ("Braked", "RemovalBlocked"),
    ("Claim", "Directive"),
    ("Core", "Reconciler"),
    ("Cut", "ClusterPlan"),
    ("Differs", "DigestMismatch, Different"),
    ("Door", "ConnectionRouter"),
    ("Few", "SmallSet"),
    ("FormerCopies", "CopiesFromPreviousMembership"),
    ("Goes", "TargetClusters"),
    ("GrantedInPart", "PartiallyGranted"),
    ("Keeper", "CaRotator"),
    ("Line", "LeaderHistory"),
    ("Lives", "CertificateLifetimes"),
    ("Lot", "EffectiveTerms"),
    ("Made", "RenderedPlan"),
    ("Matter", "ApprovalKind"),
    ("MemberKnowsMore", "HubStateBehind"),
    ("Named", "a noun"),
    ("Past", "PersistedState"),
    ("Permits", "PendingApprovals"),
    ("Place", "WatchScope, NamespaceState, Endpoint"),
    ("PutOff", "DeferredRemovals"),
    ("Rejoined", "PreviousMembership"),
    ("Reverts", "RollingBack"),
    ("Room", "InflightBudget"),
    ("Rounds", "RelistBarrier"),
    ("RulesUnknown", "UnknownRules"),
    ("Share", "ClusterAssignment"),
    ("Shared", "a state"),
    ("Shown", "a noun"),
    ("Taking", "LeaderTerm"),
    ("Unclaimed", "OrphanedCopies"),
    ("Withheld", "RenderError"),
];

/// Names of libraries that contain a refused word: the authority of a URI (`http`) and fields of X.509 and TLS.
const NAMES_OF_LIBRARIES: &[&str] = &[
    "authority",
    "Authority",
    "certificate_authorities",
    "use_authority_key_identifier_extension",
];

/// Files that use the authority of a URI.
const USERS_OF_URIS: &[&str] = &["identity/names.rs", "tls/client.rs", "tls/proxy.rs"];

/// Words that no text has: messages, logs, statuses, comments, charts, the manual. The second one is the standard word.
const REFUSED_IN_TEXTS: &[(&str, &str)] = &[
    ("afresh", "again"),
    ("anew", "again"),
    ("fares", "a state"),
    ("given up", "pruned"),
    ("gives up", "stops"),
    ("he", "a noun"),
    ("heeded", "checked"),
    ("heldrules", "AckedRules"),
    ("his", "a noun"),
    ("let go", "approved"),
    ("lets go", "approves"),
    ("looked after", "checked"),
    ("seen to", "handled"),
    ("sheaf", "chunks"),
    ("thief", "attacker"),
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
    let exact = || REFUSED_NAMES.iter().find(|(refused, _)| *refused == name);
    let found = one.or_else(together).or_else(exact);
    found.map(|(_, word)| *word).or_else(clause)
}

/// The parts of a file of Rust.
#[derive(Default)]
struct Tokens<'a> {
    /// The names in code.
    names: BTreeSet<&'a str>,
    /// The texts of strings.
    strings: Vec<&'a str>,
    /// The lines of comments, without their quoted code.
    comments: Vec<String>,
}

/// Divides a file of Rust.
fn tokens(text: &str) -> Tokens<'_> {
    let mut all = Tokens::default();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = if rest.starts_with("//") {
            let length = rest.find('\n').unwrap_or(rest.len());
            all.comments.push(without_quotes(&rest[..length]));
            length
        } else if rest.starts_with("r\"") || rest.starts_with("r#") {
            let length = raw_string(rest);
            all.strings.extend(length.map(|length| &rest[..length]));
            length.unwrap_or(1)
        } else if first == '"' {
            let length = string(rest);
            all.strings.push(&rest[..length]);
            length
        } else if rest.starts_with("'\"'") || rest.starts_with("'\\") {
            2
        } else if first.is_alphabetic() || first == '_' {
            let length = rest
                .find(|letter: char| !letter.is_alphanumeric() && letter != '_')
                .unwrap_or(rest.len());
            all.names.insert(&rest[..length]);
            length
        } else {
            first.len_utf8()
        };
        rest = &rest[length..];
    }
    all
}

/// A text without what it quotes in backticks.
fn without_quotes(text: &str) -> String {
    text.split('`').step_by(2).collect()
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

/// The files of Rust with their texts, except this one.
fn rust_files() -> Result<Vec<(PathBuf, String)>> {
    let mut all = Vec::new();
    for folder in ["hub", "agent", "proto", "tests"] {
        for path in files_below(&root().join(folder), "rs")? {
            if !path.ends_with("house/vocabulary.rs") {
                let text = fs::read_to_string(&path)?;
                all.push((path, text));
            }
        }
    }
    Ok(all)
}

/// Whether a name with a refused word is that of a library.
fn is_of_a_library(path: &Path, name: &str) -> bool {
    let uses_uris = USERS_OF_URIS.iter().any(|file| path.ends_with(file));
    NAMES_OF_LIBRARIES.contains(&name) && (uses_uris || name.contains('_'))
}

#[test]
fn names_are_standard_words() -> Result<()> {
    let mut wrong = Vec::new();
    for (path, text) in rust_files()? {
        for name in tokens(&text).names {
            if let Some(word) = standard_word(name).filter(|_| !is_of_a_library(&path, name)) {
                wrong.push(format!("{}: {name}: write: {word}", path.display()));
            }
        }
    }
    none(wrong)
}

#[test]
fn texts_are_standard_words() -> Result<()> {
    let mut wrong = Vec::new();
    let mut check = |path: &Path, text: &str| {
        if let Some((word, standard)) = standard_word_in(text) {
            wrong.push(format!(
                "{}: {text}: {word}: write: {standard}",
                path.display()
            ));
        }
    };
    for (path, code) in rust_files()? {
        let Tokens {
            strings, comments, ..
        } = tokens(&code);
        strings.iter().for_each(|text| check(&path, text));
        comments.iter().for_each(|text| check(&path, text));
    }
    for (folder, ending) in [
        ("deploy/charts", "yaml"),
        ("deploy/charts", "json"),
        ("deploy/charts", "tpl"),
        ("deploy/charts", "txt"),
        ("deploy/manual/src", "md"),
        ("proto", "proto"),
    ] {
        for path in files_below(&root().join(folder), ending)? {
            let text = fs::read_to_string(&path)?;
            text.lines()
                .for_each(|line| check(&path, &without_quotes(line)));
        }
    }
    none(wrong)
}

#[test]
fn words_of_texts_are_found() {
    let code = "// \"anew\"\nlet a = \"it is Let\\n go\"; b(r#\"whoever\"#, '\"', \"outlet good\")";
    let Tokens {
        strings, comments, ..
    } = tokens(code);
    let found: Vec<_> = strings
        .iter()
        .filter_map(|text| standard_word_in(text).map(|(word, _)| word))
        .collect();
    assert_eq!((strings.len(), found), (3, vec!["whoever"]));
    assert_eq!(comments, ["// \"anew\""]);
    assert_eq!(without_quotes("a `whoever` b"), "a  b");
    assert!(standard_word_in("it was\n  let\n go").is_some());
}

#[test]
fn names_are_found_and_split_into_words() {
    assert_eq!(parts("given_upTo42HTTP"), ["given", "up", "to42", "http"]);
    let text = "// told\nlet a_1 = \"held \\\" said\"; r#\"saw \" saw\"#; '\"'; B::c(\"\")";
    assert_eq!(tokens(text).names, BTreeSet::from(["B", "a_1", "c", "let"]));
    for refused in [
        "held_rules",
        "HeldRules",
        "notGivenUp",
        "who_leads",
        "HELD",
        "let_go_of",
        "Shared",
        "Authorities",
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
        "shared",
        "KeyShared",
    ] {
        assert!(standard_word(standard).is_none(), "{standard}");
    }
}
