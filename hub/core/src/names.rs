//! What Kubernetes takes for a name.

/// Whether this can be the name in the key of a label or annotation, or a label's value that is not empty: up to 63
/// letters, digits, `-`, `_` and `.`, with a letter or digit at both ends.
pub fn is_name_part(text: &str) -> bool {
    let edge = |c: char| c.is_ascii_alphanumeric();
    let legal = |c: char| edge(c) || matches!(c, '-' | '_' | '.');
    text.len() <= 63 && text.starts_with(edge) && text.ends_with(edge) && text.chars().all(legal)
}
