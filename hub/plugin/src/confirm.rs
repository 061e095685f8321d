//! Asks for confirmation before a command removes something.
use std::io::{BufRead, IsTerminal, Write};

use super::wrap::printable;
use super::{FAILED, ended, usage};

/// Asks the user on the terminal whether to continue. `yes`: the user has answered already, with
/// `--yes`.
///
/// # Errors
/// A usage error without a terminal; a failure if the user refuses.
pub(super) fn confirm(question: &str, yes: bool) -> anyhow::Result<()> {
    if yes {
        return Ok(());
    }
    if !std::io::stdin().is_terminal() {
        return Err(usage(
            "no terminal for the confirmation: confirm what is listed with --yes",
        ));
    }
    eprint!("{} [y/N] ", printable(question));
    std::io::stderr().flush()?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    if is_yes(&answer) {
        Ok(())
    } else {
        Err(ended(FAILED, "not confirmed: nothing was changed"))
    }
}

fn is_yes(answer: &str) -> bool {
    matches!(answer.trim(), "y" | "Y" | "yes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_clear_yes_confirms() {
        assert!(["y\n", "Y", "yes\n"].into_iter().all(is_yes));
        assert!(!["", "\n", "n", "yep", "no"].into_iter().any(is_yes));
    }
}
