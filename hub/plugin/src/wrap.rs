//! Sentences, broken into lines.
use std::fmt::Write;

use runnel_proto::model::{plain_lines, plain_text};
use textwrap::{Options, WordSplitter};

/// Writes `text` with `first` before its first line and `rest` before the others. Lines are at most
/// `width` columns wide, except for longer words. Line ends and control characters become blanks.
pub fn wrapped(out: &mut String, (first, rest): (&str, &str), text: &str, width: usize) {
    let words = on_one_line(text)
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    if words.is_empty() {
        let _ = writeln!(out, "{}", first.trim_end());
        return;
    }
    let options = Options::new(width)
        .initial_indent(first)
        .subsequent_indent(rest);
    let options = options
        .break_words(false)
        .word_splitter(WordSplitter::NoHyphenation);
    for line in textwrap::wrap(&words, options) {
        let _ = writeln!(out, "{}", line.trim_end());
    }
}

/// Removes characters that end a line, control a terminal or are invisible.
pub fn on_one_line(text: &str) -> String {
    plain_text(text, usize::MAX)
}

/// Filters everything that is printed: it keeps lines, tabs and the colors of tables, and removes
/// all other control characters and invisible text.
pub fn printable(text: &str) -> String {
    let mut printable = String::with_capacity(text.len());
    let mut parts = text.split(ESCAPE);
    printable.push_str(&lines(parts.next().unwrap_or_default()));
    for part in parts {
        printable.push(if COLORS.iter().any(|color| part.starts_with(color)) {
            ESCAPE
        } else {
            ' '
        });
        printable.push_str(&lines(part));
    }
    printable
}

const ESCAPE: char = '\u{1b}';
/// Returns the rest of an escape sequence that [`super::table`] writes.
const COLORS: [&str; 4] = ["[39m", "[38;5;1m", "[38;5;2m", "[38;5;3m"];

fn lines(text: &str) -> String {
    text.split('\t')
        .map(plain_lines)
        .collect::<Vec<_>>()
        .join("\t")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrapped_lines_fit_and_lose_no_word() {
        let mut out = String::new();
        wrapped(
            &mut out,
            ("# ", "#   "),
            "one two three four\u{1b}[2J\nfive",
            11,
        );
        assert_eq!(out, "# one two\n#   three\n#   four\n#   [2J\n#   five\n");
    }

    #[test]
    fn printed_text_keeps_lines_and_colors_alone() {
        let colored = "NAME\tREADY\na\t\u{1b}[38;5;1mFalse\u{1b}[39m\n";
        assert_eq!(printable(colored), colored);
        let hostile = "a\u{1b}]52;c;eA==\u{7}\r\u{1b}[2K\u{1b}[1;31mb\u{202e}c\u{200b}\u{9b}2J\n";
        assert_eq!(printable(hostile), "a ]52;c;eA==   [2K [1;31mbc 2J\n");
    }

    #[test]
    fn wide_word_gets_a_line_and_empty_text_none() {
        let mut out = String::new();
        wrapped(&mut out, ("", "  "), "a bbbbbbbbbbbb c", 5);
        wrapped(&mut out, ("- ", "  "), " \n", 5);
        assert_eq!(out, "a\n  bbbbbbbbbbbb\n  c\n-\n");
    }
}
