//! Server-side apply takes JSON, and the API server reads it as YAML 1.1, which refuses some characters and folds others.
use http::Request;
use http::header::CONTENT_TYPE;

/// Whether a YAML reader changes or refuses a character that JSON may have in a text.
fn is_lost(character: char) -> bool {
    matches!(
        character,
        '\u{7f}'..='\u{9f}' | '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}'
    )
}

/// Escapes these characters in the body of an apply. In JSON they occur only within texts.
pub(super) fn escape_apply(request: &mut Request<Vec<u8>>) {
    let media_type = request.headers().get(CONTENT_TYPE);
    if media_type.is_none_or(|media_type| media_type != "application/apply-patch+yaml") {
        return;
    }
    if let Ok(text) = std::str::from_utf8(request.body())
        && text.contains(is_lost)
    {
        let escape = |character: char| match character {
            lost if is_lost(lost) => format!("\\u{:04x}", u32::from(lost)),
            kept => kept.to_string(),
        };
        let escaped: String = text.chars().map(escape).collect();
        *request.body_mut() = escaped.into_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::api::{Patch, PatchParams};
    use kube::core::Request as Asked;
    use serde_json::{Value, json};

    #[test]
    fn apply_has_no_character_that_yaml_loses() {
        let all: String = (0..=0x2_0000).filter_map(char::from_u32).collect();
        let body = json!({"data": {"all": all, "plain": "ä😀"}});
        let params = PatchParams::apply("x");
        let asked = |patch: &Patch<Value>| {
            let mut request = Asked::new("/x").patch("a", &params, patch).unwrap();
            escape_apply(&mut request);
            String::from_utf8(request.into_body()).unwrap()
        };
        let text = asked(&Patch::Apply(body.clone()));
        assert!(!text.contains(is_lost) && text.contains("ä😀"));
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), body);
        // Other requests are read as JSON.
        let merged = asked(&Patch::Merge(body));
        assert!(merged.contains(is_lost));
    }
}
