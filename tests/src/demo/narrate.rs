//! The output of the demo: narrow, with times in a column.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write};
use std::time::Duration;

/// No line is wider.
const WIDTH: usize = 108;
const INDENT: &str = "    ";
const TIMES: usize = 12;
const CONTINUED: &str = " \\";

/// Prints the demo's story to standard output.
#[derive(Debug)]
pub struct Narrator {
    color: bool,
    steps: usize,
}

#[derive(Clone, Copy)]
enum Tone {
    Bold,
    Dim,
    Plain,
}

impl Default for Narrator {
    fn default() -> Self {
        Self::new()
    }
}

impl Narrator {
    /// In color on a terminal, unless `NO_COLOR` is set.
    #[must_use]
    pub fn new() -> Self {
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self {
            color: std::io::stdout().is_terminal() && !refused,
            steps: 0,
        }
    }

    /// Returns the number of started steps.
    #[must_use]
    pub fn steps(&self) -> usize {
        self.steps
    }

    /// A line that belongs to no step.
    pub fn title(&self, text: &str) {
        self.line(Tone::Bold, text);
    }

    /// The heading of the next step.
    pub fn step(&mut self, title: &str) {
        self.steps += 1;
        print(&format!(
            "\n{}\n",
            self.painted(Tone::Bold, &format!("{:>2}  {title}", self.steps))
        ));
    }

    /// A sentence, broken into lines.
    pub fn say(&self, text: &str) {
        for line in wrapped(text, WIDTH - INDENT.len()) {
            self.line(Tone::Plain, &format!("{INDENT}{line}"));
        }
    }

    /// Prints a finished action with its duration.
    pub fn took(&self, what: &str, time: Duration) {
        let room = WIDTH - INDENT.len() - TIMES;
        self.line(
            Tone::Plain,
            &format!("{INDENT}{:<room$}{:>TIMES$}", what, milliseconds(time)),
        );
    }

    /// A command as one would type it, and where.
    pub fn command(&self, cluster: &str, command: &str) {
        print("\n");
        let prompt = format!("{INDENT}{cluster} $ ");
        // A backslash at the end of a line, for the shell.
        let parts = wrapped(command, WIDTH - prompt.len() - CONTINUED.len());
        for (index, part) in parts.iter().enumerate() {
            let before = if index == 0 {
                prompt.clone()
            } else {
                " ".repeat(prompt.len() + 2)
            };
            let after = if index + 1 < parts.len() {
                CONTINUED
            } else {
                ""
            };
            self.line(Tone::Bold, &format!("{before}{part}{after}"));
        }
    }

    /// Prints the output of a command.
    pub fn output(&self, text: &str) {
        for line in text.trim_end().lines() {
            for part in wrapped(line, WIDTH - INDENT.len()) {
                self.line(Tone::Dim, format!("{INDENT}{part}").trim_end());
            }
        }
    }

    /// An empty line.
    pub fn pause(&self) {
        print("\n");
    }

    fn line(&self, tone: Tone, text: &str) {
        print(&format!("{}\n", self.painted(tone, text)));
    }

    fn painted(&self, tone: Tone, text: &str) -> String {
        match tone {
            Tone::Bold if self.color => format!("\x1b[1m{text}\x1b[0m"),
            Tone::Dim if self.color => format!("\x1b[2m{text}\x1b[0m"),
            _ => text.to_owned(),
        }
    }
}

// After the reader has closed the pipe (`cargo demo | head`), the demo still cleans up.
fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// A time in milliseconds, in groups of three digits: `12,345 ms`.
#[must_use]
pub fn milliseconds(time: Duration) -> String {
    let digits = time.as_millis().to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    let _ = write!(text, " ms");
    text
}

/// Breaks a line between words; short lines keep their columns.
fn wrapped(line: &str, width: usize) -> Vec<String> {
    if line.chars().count() <= width {
        return vec![line.to_owned()];
    }
    let mut lines = vec![String::new()];
    for word in line.split_whitespace() {
        let last = lines
            .last_mut()
            .filter(|last| last.chars().count() + 1 + word.chars().count() <= width);
        match last {
            Some(last) if last.is_empty() => last.push_str(word),
            Some(last) => {
                last.push(' ');
                last.push_str(word);
            }
            None => lines.push(word.to_owned()),
        }
    }
    lines.retain(|line| !line.is_empty());
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn milliseconds_are_grouped() {
        let shown: Vec<String> = [0, 41, 999, 1000, 1_234_567]
            .map(|ms| milliseconds(Duration::from_millis(ms)))
            .to_vec();
        assert_eq!(
            shown,
            ["0 ms", "41 ms", "999 ms", "1,000 ms", "1,234,567 ms"]
        );
    }

    #[test]
    fn long_lines_are_broken_and_short_ones_keep_their_columns() {
        assert_eq!(wrapped("NAME   AGE", 20), ["NAME   AGE"]);
        assert_eq!(wrapped("one two three", 8), ["one two", "three"]);
        assert_eq!(
            wrapped("a-word-that-is-long b", 8),
            ["a-word-that-is-long", "b"]
        );
    }
}
