//! Every command that a page or a note of a chart shows parses with the definitions of the command line.
use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context, Result, ensure};
use clap::{Command, CommandFactory, error::ErrorKind};
use runnel_tests::files::files_below;

use super::{none, root};

/// A command as a page shows it.
#[derive(Debug, PartialEq, Eq)]
struct ShownCommand {
    words: Vec<String>,
    /// Whether it is in a block of code, which a reader runs as it is. A piece of code in a sentence may lack arguments.
    whole: bool,
}

/// The definition of a program, and the words after its name. None for other programs.
fn program(words: &[String]) -> Option<(Command, &[String])> {
    let (first, rest) = words.split_first()?;
    match (first.rsplit('/').next()?, rest.first().map(String::as_str)) {
        ("kubectl", Some("runnel")) => Some((kubectl_runnel::args::Cli::command(), &rest[1..])),
        ("kubectl-runnel", _) => Some((kubectl_runnel::args::Cli::command(), rest)),
        ("runnel-hub", _) => Some((runnel_hub::config::Cli::command(), rest)),
        ("runnel-agent", _) => Some((runnel_agent::config::Cli::command(), rest)),
        _ => None,
    }
}

/// The commands of a page: lines of blocks of `sh` and lines after a prompt in `text`, and code within sentences.
fn shown_on_page(text: &str) -> Vec<ShownCommand> {
    let (mut all, mut block, mut lines) = (Vec::new(), None, text.lines());
    let mut prose = String::new();
    while let Some(line) = lines.next() {
        if let Some(language) = line.trim_start().strip_prefix("```") {
            block = block.is_none().then(|| language.to_owned());
            continue;
        }
        match block.as_deref() {
            None => prose = prose + line + "\n",
            Some("sh") => all.extend(shown_on_line(&continued(line, &mut lines))),
            Some(_) if line.contains("$ ") => {
                all.extend(shown_on_line(&continued(line, &mut lines)));
            }
            Some(_) => {}
        }
    }
    for span in prose.split('`').skip(1).step_by(2) {
        let words = words_of(&span.replace("\\|", "|").replace('\n', " "));
        if words.len() > 1 {
            all.push(ShownCommand {
                words,
                whole: false,
            });
        }
    }
    all
}

/// The commands of the notes of a chart, each on a line of its own.
fn shown_in_notes(text: &str) -> Vec<ShownCommand> {
    let (mut all, mut lines) = (Vec::new(), text.lines());
    while let Some(line) = lines.next() {
        all.extend(shown_on_line(&continued(line, &mut lines)));
    }
    all.retain(|shown| shown.words.len() > 2);
    all
}

/// A line with those that a backslash at its end continues.
fn continued<'a>(line: &str, lines: &mut impl Iterator<Item = &'a str>) -> String {
    let mut whole = line.to_owned();
    while let Some(begin) = whole.strip_suffix('\\') {
        let Some(next) = lines.next() else { break };
        whole = format!("{begin} {}", next.trim());
    }
    whole
}

/// The commands of one line of a shell.
fn shown_on_line(line: &str) -> Vec<ShownCommand> {
    let line = line.split_once("$ ").map_or(line, |(_, command)| command);
    let line = line.split_once(" # ").map_or(line, |(command, _)| command);
    let commands = line.split([';', '|', '&']).map(words_of);
    commands
        .filter(|words| words.len() > 1)
        .map(|words| ShownCommand { words, whole: true })
        .collect()
}

/// The words of a command: without quotes, redirections, and the marks of what may be left out or chosen.
fn words_of(command: &str) -> Vec<String> {
    let mut command = command.to_owned();
    while let Some((before, rest)) = command.split_once("{{") {
        let after = rest.split_once("}}").map_or("", |(_, after)| after);
        command = format!("{before}VALUE{after}");
    }
    let words = command.split_whitespace().map(|word| {
        let word = word.trim_matches(['[', ']', '"', '\'']);
        // Of a choice, the first.
        word.split('|').next().unwrap_or_default().to_owned()
    });
    let is_argument = |word: &String| !word.starts_with(['>', '<']);
    let words = words.take_while(is_argument);
    words
        .filter(|word| !word.is_empty() && word != "...")
        .collect()
}

/// What is wrong with a command of ours.
fn problem(shown: &ShownCommand) -> Option<String> {
    let (command, arguments) = program(&shown.words)?;
    let placeholder = |word: &String| word.chars().all(|c| c.is_ascii_uppercase());
    if arguments.first().is_none_or(placeholder) {
        return None;
    }
    let name = command.get_name().to_owned();
    let error = command
        .try_get_matches_from([name].iter().chain(arguments))
        .err()?;
    let lacks_arguments = matches!(
        error.kind(),
        ErrorKind::MissingRequiredArgument
            | ErrorKind::MissingSubcommand
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    );
    // A sentence may name a flag without its value.
    let ends_with_flag = arguments.last().is_some_and(|last| last.starts_with('-'));
    let lacks_value = error.kind() == ErrorKind::InvalidValue
        && ends_with_flag
        && error.to_string().contains("a value is required");
    let is_fine = matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
    ) || ((lacks_arguments || lacks_value) && !shown.whole);
    let text = error.to_string();
    (!is_fine).then(|| text.lines().next().unwrap_or_default().to_owned())
}

/// The pages, and the notes of the charts, as paths from the root with their commands.
fn all_shown() -> Result<Vec<(String, Vec<ShownCommand>)>> {
    let mut paths = Vec::new();
    for folder in ["deploy", "hub", "agent", "proto"] {
        paths.extend(files_below(&root().join(folder), "md")?);
        paths.extend(files_below(&root().join(folder), "txt")?);
    }
    for folder in ["", "tests"] {
        for entry in fs::read_dir(root().join(folder))? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "md") {
                paths.push(path);
            }
        }
    }
    let mut all = Vec::new();
    for path in paths {
        let name = path.strip_prefix(root())?.display().to_string();
        let text = fs::read_to_string(&path).with_context(|| name.clone())?;
        let shown = if name.ends_with(".md") {
            shown_on_page(&text)
        } else {
            shown_in_notes(&text)
        };
        all.push((name, shown));
    }
    Ok(all)
}

#[test]
fn shown_commands_parse() -> Result<()> {
    let (mut number, mut wrong) = (0, Vec::new());
    for (path, shown) in all_shown()? {
        for shown in &shown {
            number += usize::from(program(&shown.words).is_some());
            let command = shown.words.join(" ");
            wrong.extend(problem(shown).map(|problem| format!("{path}: {command}: {problem}")));
        }
    }
    ensure!(number > 80, "only {number} commands are shown");
    none(wrong)
}

#[test]
fn table_of_commands_has_every_subcommand() -> Result<()> {
    let page = fs::read_to_string(root().join("deploy/manual/src/cli.md"))?;
    let (_, rows) = page
        .split_once("\n| command |")
        .context("cli.md has no table of commands")?;
    let rows = rows.lines().skip(2).take_while(|row| row.starts_with('|'));
    let cells = rows.filter_map(|row| row.split(" | ").next());
    let shown: BTreeSet<String> = cells
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .filter_map(|span| span.split_whitespace().next())
        .map(str::to_owned)
        .collect();
    let command = kubectl_runnel::args::Cli::command();
    let known: BTreeSet<String> = command
        .get_subcommands()
        .filter(|command| !command.is_hide_set())
        .map(|command| command.get_name().to_owned())
        .collect();
    ensure!(
        shown == known,
        "cli.md has {shown:?}, the program {known:?}"
    );
    Ok(())
}

#[test]
fn commands_are_found_and_wrong_ones_refused() {
    let page = "Run `kubectl runnel approve [RULE]`, not `kubectl get x`.\n\n```sh\nhelm x; runnel-hub crds \\\n  --help # all\n```\n\n\
        ```text\nkubectl runnel says\nhub $ kubectl runnel status -A | grep x\n```\n";
    let found = shown_on_page(page);
    let ours: Vec<String> = found
        .iter()
        .filter(|shown| program(&shown.words).is_some())
        .map(|shown| shown.words.join(" "))
        .collect();
    assert_eq!(
        ours,
        [
            "runnel-hub crds --help",
            "kubectl runnel status -A",
            "kubectl runnel approve RULE",
        ]
    );
    let is_wrong = |command: &str, whole| {
        let words = words_of(command);
        problem(&ShownCommand { words, whole }).is_some()
    };
    for good in [
        "kubectl runnel status RULE -o wide",
        "kubectl runnel COMMAND",
        "kubectl runnel uninstall --copies=keep|delete",
        "runnel-hub token create eu-1 > eu-1.join",
    ] {
        assert!(!is_wrong(good, true), "{good}");
    }
    for bad in [
        "kubectl runnel approved",
        "kubectl runnel status --no-such-flag",
        "kubectl runnel status -o html",
        "runnel-hub token make eu-1",
        "runnel-agent run --no-such-flag",
    ] {
        assert!(is_wrong(bad, false) && is_wrong(bad, true), "{bad}");
    }
    assert!(is_wrong("kubectl runnel explain", true) && !is_wrong("kubectl runnel explain", false));
}
