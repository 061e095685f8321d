//! Sentences, broken into lines.
use std::fmt::Write;

/// Writes `text` with `first` before its first line and `rest` before the others, no line wider than `width` characters but
/// for a word that is. What would end a line or speaks to a terminal becomes a blank.
pub fn wrapped(out: &mut String, (first, rest): (&str, &str), text: &str, width: usize) {
    let mut line = first.to_owned();
    let mut is_empty = true;
    for word in on_one_line(text).split_whitespace() {
        if !is_empty && line.chars().count() + 1 + word.chars().count() > width {
            let _ = writeln!(out, "{}", line.trim_end());
            line = rest.to_owned();
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line.push_str(word);
        is_empty = false;
    }
    let _ = writeln!(out, "{}", line.trim_end());
}

/// Without what would end a line or speaks to a terminal.
pub fn on_one_line(text: &str) -> String {
    let breaks = |c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}');
    text.chars().map(|c| if breaks(c) { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_line_is_wider_and_no_word_is_lost() {
        let mut out = String::new();
        wrapped(&mut out, ("# ", "#   "), "one two three four\u{1b}[2J\nfive", 11);
        assert_eq!(out, "# one two\n#   three\n#   four\n#   [2J\n#   five\n");
    }

    #[test]
    fn a_word_that_is_wider_stands_alone_and_nothing_is_a_line() {
        let mut out = String::new();
        wrapped(&mut out, ("", "  "), "a bbbbbbbbbbbb c", 5);
        wrapped(&mut out, ("- ", "  "), " \n", 5);
        assert_eq!(out, "a\n  bbbbbbbbbbbb\n  c\n-\n");
    }
}
