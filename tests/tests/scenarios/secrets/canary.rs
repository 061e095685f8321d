//! A value that can be found in any encoding.

use std::fmt::Write;

use anyhow::{Result, bail, ensure};
use data_encoding::{BASE64, BASE64URL, HEXLOWER, HEXUPPER};
use serde_json::json;

/// Contains characters that JSON, URLs and shells escape.
const TEXT: &str = "Kanarie\"zwitschert4711/laut+und=oft&\u{e4}\\end";
/// The value of another client in its place.
const OTHER: &str = "Dompfaff\"imgebuesch0815/pfeift+leise=nie&\u{f6}\\end";
/// The values, and every form in which they would be a leak.
pub struct Canary {
    forms: Vec<(String, String)>,
}

impl Canary {
    pub fn new() -> Self {
        let mut forms = Vec::new();
        for text in [TEXT, OTHER] {
            forms.extend(forms_of(text));
        }
        Self { forms }
    }

    pub fn text(&self) -> &str {
        TEXT
    }

    pub fn other(&self) -> &str {
        OTHER
    }

    /// Checks that no form of it is in `bytes`.
    pub fn is_not_in(&self, what: &str, bytes: &[u8]) -> Result<()> {
        let text = String::from_utf8_lossy(bytes);
        for (form, needle) in &self.forms {
            if let Some(at) = text.find(needle) {
                let before: String = text[..at].chars().rev().take(300).collect();
                let before: String = before.chars().rev().collect();
                bail!("{form} is in {what}, behind: {before}");
            }
        }
        Ok(())
    }

    /// Checks that the search finds every form.
    pub fn is_found_where_it_is(&self) -> Result<()> {
        let base64 = |before: &str| BASE64.encode(format!("{before}{TEXT} and more").as_bytes());
        let json = json!({"text": TEXT}).to_string();
        let debug = format!("{:?}", TEXT.as_bytes());
        let quoted = format!("{TEXT:?}");
        for text in [
            TEXT.to_owned(),
            base64(""),
            base64("1"),
            base64("22"),
            base64("333"),
            json,
            debug,
            quoted,
        ] {
            ensure!(
                self.is_not_in("a test", format!("before {text} after").as_bytes())
                    .is_err(),
                "{text}"
            );
        }
        ensure!(
            self.is_not_in(
                "a test",
                format!("{{\"log\": {}}}", json!(json!({"text": TEXT}).to_string())).as_bytes()
            )
            .is_err()
        );
        self.is_not_in("a test", b"nothing of it")
    }
}

fn forms_of(text: &str) -> Vec<(String, String)> {
    let bytes = text.as_bytes();
    let mut forms: Vec<(String, String)> = vec![
        ("the plain value".into(), text.to_owned()),
        // What no escape changes; it is in every kind of escaped text.
        (
            "a part of the value".into(),
            text.chars()
                .skip_while(|c| *c != '"')
                .skip(1)
                .take_while(|c| *c != '/')
                .collect(),
        ),
        ("the value in hexadecimal".into(), HEXLOWER.encode(bytes)),
        ("the value in hexadecimal".into(), HEXUPPER.encode(bytes)),
        ("the value as numbers".into(), numbers(bytes)),
        ("the value for a URL".into(), for_url(bytes)),
        (
            "the value in JSON".into(),
            json!(text).to_string().trim_matches('"').to_owned(),
        ),
    ];
    for offset in 0..3 {
        // Behind so many other bytes, without the characters that other bytes have a part in.
        let padded = [vec![0; offset], bytes.to_vec()].concat();
        for (name, encoded) in [
            ("base64", BASE64.encode(&padded)),
            ("base64url", BASE64URL.encode(&padded)),
        ] {
            let (from, to) = ((offset * 8).div_ceil(6), padded.len() * 8 / 6);
            forms.push((
                format!("the value in {name}, offset {offset}"),
                encoded[from..to].to_owned(),
            ));
        }
    }
    forms
}

fn numbers(bytes: &[u8]) -> String {
    let each: Vec<String> = bytes.iter().map(u8::to_string).collect();
    each.join(", ")
}

fn for_url(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(byte) {
            text.push(char::from(*byte));
        } else {
            let _ = write!(text, "%{byte:02X}");
        }
        text
    })
}
