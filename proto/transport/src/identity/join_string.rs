//! The one string that a cluster's administrator needs to join it.
use std::fmt;

use data_encoding::BASE64URL_NOPAD;
use serde::{Deserialize, Serialize};

use super::{Fingerprint, Token, is_address, is_cluster_name, is_hub_id};

/// The prefix of every join string: for people, and for scanners that look for leaked secrets.
pub const JOIN_PREFIX: &str = "runnel-join-v1.";
/// The prefix of join strings of any version.
const ANY_PREFIX: &str = "runnel-join-v";
/// Longer texts are refused.
const LENGTH_LIMIT: usize = 16 * 1024;

/// Everything an agent needs to join, the token included. `Debug` leaves the token out.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinString {
    /// The addresses of the hub, `host:port` each, in the order to try them.
    pub addresses: Vec<String>,
    /// The hub's id.
    pub hub: String,
    /// Name of the `MemberCluster`.
    pub cluster: String,
    /// The one-time secret.
    pub token: Token,
    /// The public key of the hub's CA.
    pub pin: Fingerprint,
}

/// Why a join string cannot be used: one sentence with the part and a hint, never the text itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinStringError {
    /// The text is empty.
    #[error("the join string is empty: give the whole output of `runnel-hub token create`")]
    Empty,
    /// Some other text.
    #[error(
        "this is not a join string, which begins with `{JOIN_PREFIX}`: give the whole output of `runnel-hub token create`"
    )]
    Prefix,
    /// Written by a newer hub.
    #[error(
        "the join string is of a version that this agent does not support: upgrade the agent to the hub's version"
    )]
    Version,
    /// Far too long.
    #[error(
        "the join string is too long: give the output of `runnel-hub token create` and nothing else"
    )]
    TooLong,
    /// Characters were changed, lost or added.
    #[error(
        "the join string is damaged behind its prefix: copy it again, in one piece and without line breaks"
    )]
    Damaged,
    /// The end is missing or a part is.
    #[error("the join string is incomplete: copy it again to its very end")]
    Incomplete,
    /// No usable address.
    #[error(
        "the join string's addresses are not all `host:port`: create a new one with `runnel-hub token create --advertise HOST:PORT`"
    )]
    Addresses,
    /// The hub's id is none.
    #[error(
        "the join string's hub id is not valid: create a new join string with `runnel-hub token create`"
    )]
    Hub,
    /// The cluster's name is none.
    #[error(
        "the join string's cluster name is not valid: create a new join string with `runnel-hub token create`"
    )]
    Cluster,
    /// The token is none.
    #[error(
        "the join string's token is not valid: create a new join string with `runnel-hub token create`"
    )]
    Token,
    /// The pin is none.
    #[error(
        "the join string's pin (the hash of the hub's key) is not valid: create a new join string with `runnel-hub token create`"
    )]
    Pin,
}

/// The encoded form. Fields may be added; a reader ignores unknown ones.
#[derive(Serialize, Deserialize)]
struct Written {
    addresses: Vec<String>,
    hub: String,
    cluster: String,
    token: String,
    pin: String,
}

impl JoinString {
    /// Returns the text. It contains the token: print it once, for the user who requested it.
    pub fn encode(&self) -> String {
        let written = Written {
            addresses: self.addresses.clone(),
            hub: self.hub.clone(),
            cluster: self.cluster.clone(),
            token: self.token.expose().to_owned(),
            pin: self.pin.to_hex(),
        };
        let json = serde_json::to_vec(&written).expect("texts serialize");
        format!("{JOIN_PREFIX}{}", BASE64URL_NOPAD.encode(&json))
    }

    /// Parses a join string; surrounding white space is ignored.
    ///
    /// # Errors
    /// [`JoinStringError`], with the invalid part and a hint.
    pub fn parse(text: &str) -> Result<Self, JoinStringError> {
        let text = text.trim();
        if text.is_empty() {
            return Err(JoinStringError::Empty);
        }
        if text.len() > LENGTH_LIMIT {
            return Err(JoinStringError::TooLong);
        }
        let Some(body) = text.strip_prefix(JOIN_PREFIX) else {
            return Err(foreign_prefix(text));
        };
        let json = BASE64URL_NOPAD
            .decode(body.as_bytes())
            .map_err(|_| damage(body))?;
        let written: Written =
            serde_json::from_slice(&json).map_err(|error| match error.classify() {
                serde_json::error::Category::Eof | serde_json::error::Category::Data => {
                    JoinStringError::Incomplete
                }
                _ => JoinStringError::Damaged,
            })?;
        Self::checked(written)
    }

    fn checked(written: Written) -> Result<Self, JoinStringError> {
        if written.addresses.is_empty()
            || !written.addresses.iter().all(|address| is_address(address))
        {
            return Err(JoinStringError::Addresses);
        }
        if !is_hub_id(&written.hub) {
            return Err(JoinStringError::Hub);
        }
        if !is_cluster_name(&written.cluster) {
            return Err(JoinStringError::Cluster);
        }
        Ok(Self {
            addresses: written.addresses,
            hub: written.hub,
            cluster: written.cluster,
            token: Token::parse(&written.token).map_err(|_| JoinStringError::Token)?,
            pin: Fingerprint::from_hex(&written.pin).map_err(|_| JoinStringError::Pin)?,
        })
    }
}

fn foreign_prefix(text: &str) -> JoinStringError {
    let number = text
        .strip_prefix(ANY_PREFIX)
        .and_then(|rest| rest.split_once('.'))
        .map(|(number, _)| number);
    match number {
        Some(number) if !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()) => {
            JoinStringError::Version
        }
        _ if JOIN_PREFIX.starts_with(text) => JoinStringError::Incomplete,
        _ => JoinStringError::Prefix,
    }
}

/// A cut can leave a number of characters that is no whole number of bytes.
fn damage(body: &str) -> JoinStringError {
    let clean = body
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
    if clean {
        JoinStringError::Incomplete
    } else {
        JoinStringError::Damaged
    }
}

impl fmt::Debug for JoinString {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("JoinString")
            .field("addresses", &self.addresses)
            .field("hub", &self.hub)
            .field("cluster", &self.cluster)
            .field("token", &self.token)
            .field("pin", &self.pin)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn example() -> JoinString {
        JoinString {
            addresses: vec!["hub.example:8443".into(), "[::1]:8443".into()],
            hub: "hubid".into(),
            cluster: "eu-3".into(),
            token: Token::generate().unwrap(),
            pin: Fingerprint::of_key(b"ca"),
        }
    }

    fn with(part: &str, value: serde_json::Value) -> String {
        let text = example().encode();
        let json = BASE64URL_NOPAD
            .decode(&text.as_bytes()[JOIN_PREFIX.len()..])
            .unwrap();
        let mut json: serde_json::Value = serde_json::from_slice(&json).unwrap();
        json[part] = value;
        format!(
            "{JOIN_PREFIX}{}",
            BASE64URL_NOPAD.encode(json.to_string().as_bytes())
        )
    }

    #[test]
    fn it_reads_back_and_keeps_its_token_to_itself() {
        let join = example();
        assert_eq!(
            JoinString::parse(&format!(" {}\n", join.encode())),
            Ok(join.clone())
        );
        assert!(!format!("{join:?}").contains(&join.token.expose()[9..]));
        assert!(JoinString::parse(&with("later", true.into())).is_ok());
    }

    #[test]
    fn each_malformation_has_its_own_sentence() {
        let good = example().encode();
        let broken = format!("{JOIN_PREFIX}+{}", &good[JOIN_PREFIX.len() + 1..]);
        let cases = [
            ("  ".to_owned(), JoinStringError::Empty),
            ("hello".to_owned(), JoinStringError::Prefix),
            (good[1..].to_owned(), JoinStringError::Prefix),
            ("runnel-jo".to_owned(), JoinStringError::Incomplete),
            (good.replace("v1.", "v2."), JoinStringError::Version),
            ("x".repeat(20_000), JoinStringError::TooLong),
            (broken, JoinStringError::Damaged),
            (
                format!("{}\n{}", &good[..40], &good[40..]),
                JoinStringError::Damaged,
            ),
            (
                good[..good.len() - 5].to_owned(),
                JoinStringError::Incomplete,
            ),
            (JOIN_PREFIX.to_owned(), JoinStringError::Incomplete),
            (
                with("hub", serde_json::Value::Null),
                JoinStringError::Incomplete,
            ),
            (
                with("addresses", serde_json::json!([])),
                JoinStringError::Addresses,
            ),
            (
                with("addresses", serde_json::json!(["hub"])),
                JoinStringError::Addresses,
            ),
            (with("hub", "A/b".into()), JoinStringError::Hub),
            (with("cluster", "Eu_3".into()), JoinStringError::Cluster),
            (with("token", "abc".into()), JoinStringError::Token),
            (with("pin", "sha256:00".into()), JoinStringError::Pin),
        ];
        for (text, error) in cases {
            assert_eq!(JoinString::parse(&text), Err(error), "{text}");
            assert!(error.to_string().contains(": "), "{error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_gives_a_value_or_a_sentence(text: String, cut in 0usize..400) {
            let _ = JoinString::parse(&text);
            let _ = JoinString::parse(&format!("{JOIN_PREFIX}{text}"));
            let good = example().encode();
            let cut = cut.min(good.len() - 1);
            prop_assert!(JoinString::parse(&good[..cut]).is_err());
        }
    }
}
