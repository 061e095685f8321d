//! The one-time secret of a join.
use std::fmt;

use ring::digest;

use super::names::BASE32;
use super::{IdentityError, random};

/// The prefix of a token's hash.
pub const TOKEN_HASH_PREFIX: &str = "sha256:";

const ID: usize = 8;
const SECRET: usize = 26;

/// A join token, `<id>.<secret>`: 40 bits of id and 128 bits of secret. Its `Debug` contains only
/// the id.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// A new random token.
    ///
    /// # Errors
    /// [`IdentityError::Crypto`], when the system gives no random numbers.
    pub fn generate() -> Result<Self, IdentityError> {
        let (id, secret) = (random::<5>()?, random::<16>()?);
        Ok(Self(format!(
            "{}.{}",
            BASE32.encode(&id),
            BASE32.encode(&secret)
        )))
    }

    /// Reads a token.
    ///
    /// # Errors
    /// [`IdentityError::Token`], for any other text.
    pub fn parse(text: &str) -> Result<Self, IdentityError> {
        let is_base32 = |part: &str| {
            part.bytes()
                .all(|byte| matches!(byte, b'a'..=b'z' | b'2'..=b'7'))
        };
        match text.split_once('.') {
            Some((id, secret))
                if id.len() == ID
                    && secret.len() == SECRET
                    && is_base32(id)
                    && is_base32(secret) =>
            {
                Ok(Self(text.to_owned()))
            }
            _ => Err(IdentityError::Token),
        }
    }

    /// Returns the id, which is not secret.
    pub fn id(&self) -> &str {
        &self.0[..ID]
    }

    /// The whole token, for the join request and the join string only.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Returns the stored form of the token: `sha256:` and its hash.
    pub fn hash(&self) -> String {
        let hash = digest::digest(&digest::SHA256, self.0.as_bytes());
        format!(
            "{TOKEN_HASH_PREFIX}{}",
            data_encoding::HEXLOWER.encode(hash.as_ref())
        )
    }

    /// Whether the token has this hash; takes constant time for hashes of the right length.
    pub fn matches(&self, hash: &str) -> bool {
        let own = self.hash();
        let differing = own
            .bytes()
            .zip(hash.bytes())
            .fold(0, |all, (a, b)| all | (a ^ b));
        own.len() == hash.len() && std::hint::black_box(differing) == 0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Token({}.***)", self.id())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_matches_its_own_hash_only() {
        let (one, two) = (Token::generate().unwrap(), Token::generate().unwrap());
        assert!(one.matches(&one.hash()));
        assert!(!one.matches(&two.hash()));
        assert!(!one.matches(&one.hash()[..70]));
        assert!(!one.matches(""));
        assert!(one.hash().starts_with(TOKEN_HASH_PREFIX) && one.hash().len() == 71);
        assert_eq!(Token::parse(one.expose()), Ok(one.clone()));
        assert!(!format!("{one:?}").contains(&one.expose()[ID + 1..]));
    }

    #[test]
    fn other_texts_are_no_tokens() {
        let good = Token::generate().unwrap();
        let (id, secret) = good.expose().split_once('.').unwrap();
        for bad in [
            "".to_owned(),
            id.to_owned(),
            format!("{id}.{secret}a"),
            format!("{secret}.{id}"),
            good.expose().to_uppercase(),
        ] {
            assert_eq!(Token::parse(&bad), Err(IdentityError::Token));
        }
    }
}
