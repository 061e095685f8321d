//! What Kubernetes takes for a name.

/// Whether this can be the name of a namespace: a DNS label of RFC 1123, up to 63 characters.
pub fn is_label(text: &str) -> bool {
    text.len() <= 63 && is_part(text)
}

/// Whether this can be the name of an object: a DNS subdomain of RFC 1123, up to 253 characters.
pub fn is_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_part)
}

fn is_part(part: &str) -> bool {
    let edge = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let ends = part.bytes().next().is_some_and(edge) && part.bytes().next_back().is_some_and(edge);
    ends && part.bytes().all(|byte| edge(byte) || byte == b'-')
}

/// Whether this can be the name in the key of a label or annotation, or a label's value that is not empty: up to 63
/// letters, digits, `-`, `_` and `.`, with a letter or digit at both ends.
pub fn is_name_part(text: &str) -> bool {
    let edge = |c: char| c.is_ascii_alphanumeric();
    let legal = |c: char| edge(c) || matches!(c, '-' | '_' | '.');
    text.len() <= 63 && text.starts_with(edge) && text.ends_with(edge) && text.chars().all(legal)
}
