//! The sealed token by which an agent identifies the hub's state; opaque to the agent.
use bytes::Bytes;
use data_encoding::HEXLOWER;
use ring::digest;
use runnel_proto::model::RevisionKey;

use super::leader_history::LeaderTerm;

/// The version of the form, which is sealed too.
const FORM: u8 = 1;
const SEAL: usize = 16;
const SEALED_BYTES: usize = 1 + 8 * 7;

/// The recipient of a history token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenRecipient {
    /// A digest of the `MemberCluster`.
    pub member: [u8; 8],
    /// A digest of the cluster.
    pub cluster: [u8; 8],
}

impl TokenRecipient {
    /// A member, by the uid of its `MemberCluster`, and its cluster, by that of its `kube-system` namespace.
    pub fn new(member: &str, cluster: &str) -> Self {
        Self {
            member: named(member),
            cluster: named(cluster),
        }
    }
}

/// The first bytes of a digest.
fn named(uid: &str) -> [u8; 8] {
    let mut short = [0; 8];
    short.copy_from_slice(&digest::digest(&digest::SHA256, uid.as_bytes()).as_ref()[..8]);
    short
}

/// The position of the hub when it issued a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryToken {
    /// The recipient.
    pub to: TokenRecipient,
    /// A digest of the epoch.
    pub epoch: [u8; 8],
    /// The term.
    pub term: u64,
    /// The random number of the process.
    pub random: [u8; 8],
    /// The Lease's version at its last renewal.
    pub version: u64,
    /// The issue time, in Unix seconds by the hub's clock.
    pub issued_at: u64,
}

/// Sixteen digits as bytes; other text by its digest.
fn digits(text: &str) -> [u8; 8] {
    match u64::from_str_radix(text, 16) {
        Ok(number) if text.len() == 16 => number.to_be_bytes(),
        _ => named(text),
    }
}

impl HistoryToken {
    /// Returns the token that the leader of this entry issues.
    pub fn of(
        leader_term: &LeaderTerm,
        (version, issued_at): (u64, u64),
        to: TokenRecipient,
    ) -> Self {
        let (epoch, random) = (digits(&leader_term.epoch), digits(&leader_term.random));
        Self {
            to,
            epoch,
            term: leader_term.term,
            random,
            version,
            issued_at,
        }
    }

    /// The wire format.
    pub fn seal(&self, key: &RevisionKey) -> Bytes {
        let mut bytes = Vec::with_capacity(SEALED_BYTES + SEAL);
        bytes.push(FORM);
        let numbers = [self.term, self.version, self.issued_at].map(u64::to_be_bytes);
        for part in [self.to.member, self.to.cluster, self.epoch, self.random]
            .iter()
            .chain(&numbers)
        {
            bytes.extend_from_slice(part);
        }
        bytes.extend_from_slice(&key.seal(&bytes));
        bytes.into()
    }

    /// Reads what [`HistoryToken::seal`] wrote; `None`, if that was not done with this key.
    pub fn open(bytes: &[u8], key: &RevisionKey) -> Option<Self> {
        let (bytes, seal) = bytes.split_at_checked(SEALED_BYTES)?;
        // A client that guesses seals gets the result only after it has opened a whole stream, so
        // that the time of this comparison reveals nothing.
        if bytes.first() != Some(&FORM) || key.seal(bytes).as_slice() != seal {
            return None;
        }
        let mut parts = bytes[1..]
            .chunks_exact(8)
            .map(|part| <[u8; 8]>::try_from(part).unwrap_or_default());
        let mut next = || parts.next().unwrap_or_default();
        let (to, epoch, random) = (
            TokenRecipient {
                member: next(),
                cluster: next(),
            },
            next(),
            next(),
        );
        let [term, version, issued_at] = [next(), next(), next()].map(u64::from_be_bytes);
        Some(Self {
            to,
            epoch,
            term,
            random,
            version,
            issued_at,
        })
    }

    /// Whether the leader of this entry issued it.
    pub fn is_of(&self, leader_term: &LeaderTerm) -> bool {
        (self.epoch, self.term, self.random)
            == (
                digits(&leader_term.epoch),
                leader_term.term,
                digits(&leader_term.random),
            )
    }

    /// Returns the issuer: its term and its process.
    pub fn by(&self) -> String {
        format!("{}-{}", self.term, HEXLOWER.encode(&self.random))
    }
}
