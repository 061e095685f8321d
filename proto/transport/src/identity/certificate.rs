//! Reads the fields of a certificate.
use std::fmt;
use std::time::{Duration, SystemTime};

use ring::digest;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use super::{IdentityError, SpiffeId};

/// SHA-256 of a public key (its DER `SubjectPublicKeyInfo`), or of a CA's certificate, written `sha256:<hex>`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    const PREFIX: &str = "sha256:";

    /// The fingerprint of a DER `SubjectPublicKeyInfo`.
    pub fn of_key(spki: &[u8]) -> Self {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(digest::digest(&digest::SHA256, spki).as_ref());
        Self(bytes)
    }

    /// The fingerprint of the key in a DER certificate.
    ///
    /// # Errors
    /// [`IdentityError::Certificate`], when it is not one.
    pub fn of_certificate(der: &[u8]) -> Result<Self, IdentityError> {
        Ok(Self::of_key(parse(der)?.tbs_certificate.subject_pki.raw))
    }

    /// The fingerprint of a CA's whole certificate (DER). It distinguishes CAs that share a name or
    /// a key.
    pub fn of_ca(der: &[u8]) -> Self {
        Self::of_key(der)
    }

    /// Reads what [`fmt::Display`] writes.
    ///
    /// # Errors
    /// [`IdentityError::Fingerprint`], for any other text.
    pub fn parse(text: &str) -> Result<Self, IdentityError> {
        let hex = text
            .strip_prefix(Self::PREFIX)
            .ok_or(IdentityError::Fingerprint)?;
        Self::from_hex(hex)
    }

    /// The hexadecimal digits alone.
    pub fn to_hex(self) -> String {
        data_encoding::HEXLOWER.encode(&self.0)
    }

    /// Reads what [`Fingerprint::to_hex`] writes.
    ///
    /// # Errors
    /// [`IdentityError::Fingerprint`], for any other text.
    pub fn from_hex(hex: &str) -> Result<Self, IdentityError> {
        let bytes = data_encoding::HEXLOWER
            .decode(hex.as_bytes())
            .map_err(|_| IdentityError::Fingerprint)?;
        bytes
            .try_into()
            .map(Self)
            .map_err(|_| IdentityError::Fingerprint)
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}{}", Self::PREFIX, self.to_hex())
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

/// The fields of a certificate. The verifier decides whether to trust the certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerCertificate {
    /// The identity of the holder.
    pub id: SpiffeId,
    /// Its key.
    pub key: Fingerprint,
    /// Start of validity.
    pub not_before: SystemTime,
    /// End of validity.
    pub not_after: SystemTime,
    /// Whether it is valid for server authentication.
    pub server: bool,
    /// Whether it is valid for client authentication.
    pub client: bool,
}

impl PeerCertificate {
    /// Reads a DER certificate. It must name exactly one URI, of the form of [`SpiffeId`].
    ///
    /// # Errors
    /// [`IdentityError`], with the cause.
    pub fn from_der(der: &[u8]) -> Result<Self, IdentityError> {
        let certificate = parse(der)?;
        let names = certificate
            .subject_alternative_name()
            .map_err(|_| IdentityError::Certificate)?;
        let names = names
            .map(|extension| &extension.value.general_names[..])
            .unwrap_or_default();
        let uris: Vec<&str> = names
            .iter()
            .filter_map(|name| match name {
                GeneralName::URI(uri) => Some(*uri),
                _ => None,
            })
            .collect();
        let [uri] = uris[..] else {
            return Err(IdentityError::NotOneIdentity(uris.len()));
        };
        let usage = certificate
            .extended_key_usage()
            .map_err(|_| IdentityError::Certificate)?;
        Ok(Self {
            id: SpiffeId::parse(uri)?,
            key: Fingerprint::of_key(certificate.tbs_certificate.subject_pki.raw),
            not_before: time(certificate.validity().not_before.timestamp()),
            not_after: time(certificate.validity().not_after.timestamp()),
            server: usage.as_ref().is_some_and(|usage| usage.value.server_auth),
            client: usage.as_ref().is_some_and(|usage| usage.value.client_auth),
        })
    }
}

impl PeerCertificate {
    /// Whether the certificate is valid at this time. For a new certificate: whether the clock is
    /// right.
    pub fn is_valid_at(&self, now: SystemTime) -> bool {
        (self.not_before..self.not_after).contains(&now)
    }

    /// Returns the remaining validity by this clock; the whole validity by a clock that must be
    /// wrong, as the issuer assumes it.
    pub fn remaining_validity(&self, now: SystemTime) -> Duration {
        let from = if self.is_valid_at(now) {
            now
        } else {
            self.not_before
        };
        self.not_after.duration_since(from).unwrap_or_default()
    }
}

/// Returns the end of any certificate, such as a CA's.
///
/// # Errors
/// [`IdentityError::Certificate`], when it is not one.
pub fn certificate_end(der: &[u8]) -> Result<SystemTime, IdentityError> {
    Ok(time(parse(der)?.validity().not_after.timestamp()))
}

/// One whole certificate, nothing behind it.
pub(super) fn parse(der: &[u8]) -> Result<X509Certificate<'_>, IdentityError> {
    match X509Certificate::from_der(der) {
        Ok(([], certificate)) => Ok(certificate),
        _ => Err(IdentityError::Certificate),
    }
}

/// Seconds since 1970, those before it count as 1970.
pub(super) fn time(seconds: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds.max(0).unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_fingerprint_reads_back_and_nothing_else_does() {
        let print = Fingerprint::of_key(b"key");
        assert_eq!(Fingerprint::parse(&print.to_string()), Ok(print));
        let upper = print.to_string().to_uppercase();
        for bad in ["", "sha256:", "sha256:00", &print.to_hex(), &upper] {
            assert_eq!(
                Fingerprint::parse(bad),
                Err(IdentityError::Fingerprint),
                "{bad}"
            );
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes: Vec<u8>) {
            prop_assert!(PeerCertificate::from_der(&bytes).is_err());
        }
    }
}
