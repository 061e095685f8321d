//! What may follow on the command line: for kubectl's own completion of `kubectl runnel`.
use clap::Command;

/// The script that kubectl runs: it asks this plugin.
pub const SCRIPT: &str = "#!/bin/sh
# Save as kubectl_complete-runnel in a folder of PATH, and make it executable.
exec kubectl-runnel __complete -- \"$@\"
";

/// Returns the candidates for the last word, which is not finished. Names of objects are not
/// completed.
pub fn candidates(root: &Command, words: &[String]) -> Vec<String> {
    let (last, before) = match words.split_last() {
        Some((last, before)) => (last.as_str(), before),
        None => ("", words),
    };
    let mut command = root;
    for word in before.iter().filter(|word| !word.starts_with('-')) {
        if let Some(inner) = command.find_subcommand(word) {
            command = inner;
        }
    }
    let mut found: Vec<String> = Vec::new();
    if last.starts_with('-') {
        let global = root
            .get_arguments()
            .filter(|argument| argument.is_global_set());
        let flags = command
            .get_arguments()
            .chain(global)
            .filter(|argument| !argument.is_hide_set());
        found.extend(
            flags
                .filter_map(|argument| argument.get_long())
                .map(|flag| format!("--{flag}")),
        );
    } else if let Some(values) = before.last().and_then(|flag| values_of(command, flag)) {
        found.extend(values);
    } else {
        let inner = command
            .get_subcommands()
            .filter(|inner| !inner.is_hide_set());
        found.extend(inner.map(|inner| inner.get_name().to_owned()));
        let first = command.get_positionals().next();
        found.extend(
            first
                .into_iter()
                .flat_map(|argument| argument.get_possible_values())
                .map(|v| v.get_name().to_owned()),
        );
    }
    found.retain(|candidate| candidate.starts_with(last));
    found.sort();
    found.dedup();
    found
}

fn values_of(command: &Command, flag: &str) -> Option<Vec<String>> {
    let long = flag.strip_prefix("--");
    let short = flag
        .strip_prefix('-')
        .filter(|rest| rest.chars().count() == 1)
        .and_then(|rest| rest.chars().next());
    let argument = command.get_arguments().find(|argument| {
        (long.is_some() && argument.get_long() == long)
            || (short.is_some() && argument.get_short() == short)
    })?;
    let takes_value = argument.get_action().takes_values();
    takes_value.then(|| {
        argument
            .get_possible_values()
            .iter()
            .map(|value| value.get_name().to_owned())
            .collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;
    use clap::CommandFactory;

    fn asked(words: &[&str]) -> Vec<String> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        candidates(&Cli::command(), &words)
    }

    #[test]
    fn commands_flags_and_values_are_offered() {
        assert_eq!(asked(&["exp"]), ["explain"]);
        assert_eq!(asked(&["un"]), ["uninstall", "unjoin"]);
        assert!(
            asked(&[""]).contains(&"doctor".to_owned())
                && !asked(&[""]).contains(&"__complete".to_owned())
        );
        assert_eq!(asked(&["uninstall", "--cop"]), ["--copies"]);
        assert_eq!(asked(&["uninstall", "--copies", ""]), ["delete", "keep"]);
        assert_eq!(asked(&["status", "-o", "j"]), ["json", "jsonpath="]);
        assert_eq!(
            asked(&["import", "--from", "re"]),
            ["reflector", "replicator"]
        );
        assert_eq!(
            (asked(&["pl"]), asked(&["plan", "--dry-run", ""])),
            (vec!["plan".into()], vec!["members".into()])
        );
        assert_eq!(asked(&["completion", "k"]), ["kubectl"]);
        assert!(asked(&["join", "--kubec"]).contains(&"--kubeconfig".to_owned()));
        assert!(asked(&["join", "--label", ""]).is_empty());
    }
}
