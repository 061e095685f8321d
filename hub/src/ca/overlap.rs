//! The overlap of CAs: the signing one is the first in a list. Former ones stay
//! in the list, with a serving certificate that they signed in time, while a member needs them.
//!
//! A member needs a CA while it may present a certificate of it: it trusted that CA when it got the
//! certificate, and perhaps no later one. A member with a certificate of the newest CA has stored
//! all CAs of that time. So the recorded certificates determine which CAs are kept, and no member
//! has to be asked.
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use runnel_transport::identity::{Fingerprint, ServingPair, certificate_end};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde::{Deserialize, Serialize};

use crate::membership::Member;
use crate::membership::tokens::is_redeemed;

/// The limit of CAs. The sixteenth rotation while no member follows drops the oldest.
pub const LIMIT: usize = 16;

/// The serving certificate and key for members that trust a former CA and no later one. Without
/// `Debug`, because it contains a key.
pub struct OverlapIdentity {
    leaf: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
    not_after: SystemTime,
}

impl Clone for OverlapIdentity {
    fn clone(&self) -> Self {
        Self {
            leaf: self.leaf.clone(),
            key: self.key.clone_key(),
            not_after: self.not_after,
        }
    }
}

impl PartialEq for OverlapIdentity {
    fn eq(&self, other: &Self) -> bool {
        self.leaf == other.leaf
    }
}

/// One CA.
#[derive(Clone, PartialEq)]
pub struct Entry {
    /// The fingerprint of its certificate.
    pub id: Fingerprint,
    /// Its certificate.
    pub certificate: CertificateDer<'static>,
    /// The end of the validity of that certificate.
    pub not_after: SystemTime,
    /// When another CA replaced this one; `None` for the signing CA.
    pub replaced: Option<SystemTime>,
    spare: Option<OverlapIdentity>,
}

/// The CAs that members may trust, the signing one first.
#[derive(Clone, Default, PartialEq)]
pub struct TrustedCas(Vec<Entry>);

#[derive(Serialize, Deserialize)]
struct Written {
    cas: Vec<WrittenEntry>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WrittenEntry {
    certificate: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    replaced_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    serving: Option<StoredOverlapIdentity>,
}

#[derive(Serialize, Deserialize)]
struct StoredOverlapIdentity {
    certificate: String,
    key: String,
}

impl Entry {
    fn new(certificate: CertificateDer<'static>) -> Option<Self> {
        let (id, not_after) = (
            Fingerprint::of_ca(&certificate),
            certificate_end(&certificate).ok()?,
        );
        Some(Self {
            id,
            certificate,
            not_after,
            replaced: None,
            spare: None,
        })
    }

    fn read(written: &WrittenEntry) -> Option<Self> {
        let certificate = CertificateDer::from_pem_slice(written.certificate.as_bytes()).ok()?;
        let spare = written.serving.as_ref().and_then(|serving| {
            let leaf = CertificateDer::from_pem_slice(serving.certificate.as_bytes()).ok()?;
            let key = PrivateKeyDer::from_pem_slice(serving.key.as_bytes()).ok()?;
            Some(OverlapIdentity {
                not_after: certificate_end(&leaf).ok()?,
                leaf,
                key,
            })
        });
        Some(Self {
            replaced: written.replaced_at.map(SystemTime::from),
            spare,
            ..Self::new(certificate)?
        })
    }

    fn write(&self) -> WrittenEntry {
        let spare = self.spare.as_ref();
        WrittenEntry {
            certificate: pem("CERTIFICATE", &self.certificate),
            replaced_at: self.replaced.and_then(|at| Timestamp::try_from(at).ok()),
            serving: spare.map(|spare| StoredOverlapIdentity {
                certificate: pem("CERTIFICATE", &spare.leaf),
                key: pem("PRIVATE KEY", spare.key.secret_der()),
            }),
        }
    }

    /// Returns the serving certificate for the members of this CA, if one that is valid now was
    /// stored.
    pub fn serving(&self, now: SystemTime) -> Option<ServingPair> {
        let spare = self.spare.as_ref().filter(|spare| now < spare.not_after)?;
        let chain = vec![spare.leaf.clone(), self.certificate.clone()];
        Some(ServingPair {
            chain,
            key: spare.key.clone_key(),
            not_after: spare.not_after,
        })
    }
}

impl TrustedCas {
    /// Parses the output of [`Self::write`]. Returns `None` if any part is invalid.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let written: Written = serde_json::from_slice(bytes).ok()?;
        let entries = written
            .cas
            .iter()
            .map(Entry::read)
            .collect::<Option<Vec<_>>>()?;
        Some(Self(entries))
    }

    /// Serializes the CAs for the Secret. The result contains keys of serving certificates, but no
    /// key of a CA.
    pub fn write(&self) -> Vec<u8> {
        let cas = self.0.iter().map(Entry::write).collect();
        serde_json::to_vec(&Written { cas }).expect("lists of texts and numbers serialize")
    }

    /// Returns the CAs, the signing one first.
    pub fn entries(&self) -> &[Entry] {
        &self.0
    }

    /// Whether this certificate is that of the signing CA.
    pub fn is_current(&self, certificate: &CertificateDer<'_>) -> bool {
        self.0
            .first()
            .is_some_and(|first| &first.certificate == certificate)
    }

    /// Makes this CA the signing one. The previous one stays in the list after it. The CA may
    /// already be in the list, as a former one.
    #[must_use]
    pub fn switched(mut self, certificate: &CertificateDer<'static>, now: SystemTime) -> Self {
        if self.is_current(certificate) {
            return self;
        }
        let Some(mut first) = Entry::new(certificate.clone()) else {
            return self;
        };
        let position = self.0.iter().position(|entry| entry.id == first.id);
        first.spare = position.and_then(|position| self.0.remove(position).spare);
        for entry in &mut self.0 {
            entry.replaced = entry.replaced.or(Some(now));
        }
        self.0.insert(0, first);
        self.0.truncate(LIMIT);
        self
    }

    /// Whether the signing CA must issue another serving certificate in advance. It is used after
    /// the CA is replaced, when its key may be unavailable. At any time one must be valid for at
    /// least `overlap`.
    pub fn needs_overlap(&self, overlap: Duration, now: SystemTime) -> bool {
        let Some(first) = self.0.first() else {
            return false;
        };
        let enough = (now + overlap + overlap / 2).min(first.not_after);
        first
            .spare
            .as_ref()
            .is_none_or(|spare| spare.not_after < enough)
    }

    /// Returns the validity of such a certificate.
    pub fn overlap_validity(overlap: Duration) -> Duration {
        overlap * 2
    }

    /// Stores a serving certificate that the signing CA issued in advance.
    #[must_use]
    pub fn with_overlap(mut self, pair: ServingPair) -> Self {
        if let (Some(first), Some(leaf)) = (self.0.first_mut(), pair.chain.into_iter().next()) {
            first.spare = Some(OverlapIdentity {
                leaf,
                key: pair.key,
                not_after: pair.not_after,
            });
        }
        self
    }

    /// Drops former CAs that no member needs, that have expired, or that were replaced at least
    /// `overlap` ago.
    #[must_use]
    pub fn retired(mut self, needs: &Needs, overlap: Duration, now: SystemTime) -> Self {
        self.0.retain(|entry| {
            let Some(replaced) = entry.replaced else {
                return true;
            };
            now < entry.not_after && now < replaced + overlap && needs.needs(entry.id, now)
        });
        self
    }
}

/// Until when members need each CA. The key `None` stands for a CA that is unknown, so it keeps all
/// CAs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Needs(BTreeMap<Option<Fingerprint>, SystemTime>);

impl Needs {
    /// Adds the needs of an accepted member. It may connect with its certificates, which can be
    /// renewed for `renewable` after their end. The holder of its open join string may also
    /// connect. That string pins a CA that is unknown here.
    pub fn add(&mut self, member: &Member, renewable: Duration) {
        let (cluster, record) = (&member.cluster, member.record());
        if !cluster.spec.accepted || cluster.metadata.deletion_timestamp.is_some() {
            return;
        }
        for key in &record.identity.keys {
            let ca = key
                .ca
                .as_ref()
                .and_then(|print| Fingerprint::parse(print).ok());
            self.until(ca, SystemTime::from(key.expires_at.0) + renewable);
        }
        if let Some(open) = cluster
            .spec
            .join
            .as_ref()
            .filter(|join| !is_redeemed(&record.tokens, join))
        {
            self.until(None, SystemTime::from(open.expires_at.0));
        }
    }

    fn until(&mut self, ca: Option<Fingerprint>, until: SystemTime) {
        let known = self.0.entry(ca).or_insert(until);
        *known = (*known).max(until);
    }

    fn needs(&self, ca: Fingerprint, now: SystemTime) -> bool {
        [None, Some(ca)]
            .iter()
            .any(|key| self.0.get(key).is_some_and(|until| now < *until))
    }
}

fn pem(label: &str, der: &[u8]) -> String {
    let encoded = data_encoding::BASE64.encode(der);
    let lines = encoded.as_bytes().chunks(64).map(String::from_utf8_lossy);
    let body: Vec<_> = lines.collect();
    format!(
        "-----BEGIN {label}-----\n{}\n-----END {label}-----\n",
        body.join("\n")
    )
}

#[cfg(test)]
mod tests;
