//! The crates that decide do no I/O: not through a dependency, and not through the standard library.
use std::fs;
use std::process::Command;

use anyhow::{Result, ensure};

use super::{contains_word, none, product_code, root};

/// The crates that decide: name and folder.
const NO_IO: [(&str, &str); 4] = [
    ("runnel-proto", "proto"),
    ("runnel-api", "hub/api"),
    ("runnel-hub-core", "hub/core"),
    ("runnel-agent-core", "agent/core"),
];

/// Packages that open sockets and files, run tasks, start processes or draw randomness. None may be anywhere below such a
/// crate. Tools and dependencies for tests do not count.
const IO: [&str; 29] = [
    "async-io",
    "async-std",
    "aws-lc-rs",
    "axum",
    "clap",
    "futures",
    "futures-util",
    "getrandom",
    "hyper",
    "hyper-util",
    "inotify",
    "kube",
    "kube-client",
    "kube-runtime",
    "mio",
    "openssl",
    "rand",
    "rand_core",
    "rcgen",
    "reqwest",
    "runnel-transport",
    "rustix",
    "rustls",
    "smol",
    "socket2",
    "tempfile",
    "tokio",
    "tonic",
    "tower",
];

/// Edges of the tree that may be there: a package, and the package with I/O that it uses.
///
/// ring seeds its random generator with getrandom. `clippy.toml` denies the generator.
const ALLOWED: [(&str, &str); 1] = [("ring", "getrandom")];

/// The lints that keep clock, environment, files and randomness out of a crate without I/O; see `clippy.toml`.
const DENIED: &str = "\
    #![cfg_attr(not(test),deny(clippy::disallowed_methods,clippy::disallowed_types,clippy::disallowed_macros))]";

#[test]
fn crates_that_decide_do_no_io() -> Result<()> {
    let mut wrong = Vec::new();
    for (name, folder) in NO_IO {
        let ways = ways_to_io(&tree_of(name)?);
        wrong.extend(ways.into_iter().map(|way| format!("{way}: this is I/O")));
        let lib = fs::read_to_string(root().join(folder).join("src/lib.rs"))?;
        let lib: String = lib.split_whitespace().collect();
        if !lib.replace(",)", ")").contains(DENIED) {
            wrong.push(format!(
                "{folder}/src/lib.rs: does not deny what clippy.toml disallows"
            ));
        }
    }
    none(wrong)
}

/// The modules of the hub that decide without I/O, as ARCHITECTURE.md names them.
const NO_IO_OF_HUB: [&str; 5] = [
    "ca/overlap",
    "membership/decide",
    "membership/departures",
    "view/copy_reasons",
    "writer/pending",
];

/// What only code with I/O has: it waits, calls a server, or reads a clock.
const IO_CALLS: [&str; 5] = [".await", "async fn", "kube::Client", "tokio::", "::now()"];

#[test]
fn modules_of_the_hub_that_decide_do_no_io() -> Result<()> {
    let page = fs::read_to_string(root().join("ARCHITECTURE.md"))?;
    let mut wrong = Vec::new();
    for module in NO_IO_OF_HUB {
        let file = format!("hub/src/{module}.rs");
        let folder = format!("hub/src/{module}/");
        let files: Vec<_> = product_code()?
            .into_iter()
            .filter(|code| code.path == file || code.path.starts_with(&folder))
            .collect();
        if files.is_empty() || !page.contains(&format!("`{module}`")) {
            wrong.push(format!(
                "{module}: not a module of hub/src, or not named in ARCHITECTURE.md"
            ));
        }
        for code in files {
            let calls = code
                .lines
                .iter()
                .filter(|(_, line)| IO_CALLS.iter().any(|call| contains_word(line, call)));
            wrong.extend(calls.map(|(number, line)| {
                format!("{}:{number}: this is I/O: {}", code.path, line.trim())
            }));
        }
    }
    none(wrong)
}

/// What a crate depends on when it is built alone, with its own features: a line for each package, with its depth.
fn tree_of(name: &str) -> Result<String> {
    let arguments = ["tree", "--locked", "--offline", "--package", name];
    let format = [
        "--edges",
        "normal,no-proc-macro",
        "--prefix",
        "depth",
        "--format",
        " {p}",
    ];
    let output = Command::new(env!("CARGO"))
        .args(arguments)
        .args(format)
        .current_dir(root())
        .output()?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "cargo tree: {error}");
    Ok(String::from_utf8(output.stdout)?)
}

/// The ways from the first package of a tree to a package with I/O.
fn ways_to_io(tree: &str) -> Vec<String> {
    let (mut way, mut found) = (Vec::<&str>::new(), Vec::new());
    for line in tree.lines() {
        let mut words = line.split_whitespace();
        let depth = words.next().and_then(|depth| depth.parse().ok());
        let (Some(depth), Some(name)) = (depth, words.next()) else {
            continue;
        };
        way.truncate(depth);
        let is_allowed = way
            .last()
            .is_some_and(|user| ALLOWED.contains(&(*user, name)));
        way.push(name);
        if IO.contains(&name) && !is_allowed {
            found.push(way.join(" -> "));
        }
    }
    found
}

#[test]
fn io_is_found_below_other_dependencies() {
    let tree =
        "0 a v1 (/a)\n1 ring v0\n2 getrandom v0\n1 b v1\n2 c v1 (*)\n2 tokio v1\n1 getrandom v0\n";
    assert_eq!(ways_to_io(tree), ["a -> b -> tokio", "a -> getrandom"]);
}
