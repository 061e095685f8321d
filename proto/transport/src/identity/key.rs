//! A member's key and the request for its certificate.
use rcgen::{CertificateParams, DistinguishedName, KeyPair, PublicKeyData};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use super::{Fingerprint, IdentityError};

/// A member's ECDSA P-256 key. Without `Debug`; it leaves the process only as [`MemberKey::to_pem`].
pub struct MemberKey(KeyPair);

impl MemberKey {
    /// A new key.
    ///
    /// # Errors
    /// [`IdentityError::Crypto`], when the system gives no random numbers.
    pub fn generate() -> Result<Self, IdentityError> {
        KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)
            .map(Self)
            .map_err(|_| IdentityError::Crypto)
    }

    /// Reads what [`MemberKey::to_pem`] wrote.
    ///
    /// # Errors
    /// [`IdentityError::Crypto`], for anything else.
    pub fn from_pem(pem: &str) -> Result<Self, IdentityError> {
        match KeyPair::from_pem(pem) {
            Ok(key) if key.algorithm() == &rcgen::PKCS_ECDSA_P256_SHA256 => Ok(Self(key)),
            _ => Err(IdentityError::Crypto),
        }
    }

    /// Returns the private key as PKCS#8 PEM, for its Secret.
    pub fn to_pem(&self) -> String {
        self.0.serialize_pem()
    }

    /// The private key for a TLS configuration.
    pub fn to_der(&self) -> PrivateKeyDer<'static> {
        PrivatePkcs8KeyDer::from(self.0.serialize_der()).into()
    }

    /// The public key's fingerprint.
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of_key(&self.0.subject_public_key_info())
    }

    /// Returns a PKCS#10 request in DER, signed by this key. It requests no names: the hub decides
    /// the content of the certificate.
    ///
    /// # Errors
    /// [`IdentityError::Crypto`], when signing fails.
    pub fn certificate_request(&self) -> Result<Vec<u8>, IdentityError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        let request = params
            .serialize_request(&self.0)
            .map_err(|_| IdentityError::Crypto)?;
        Ok(request.der().to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_reads_back() {
        let key = MemberKey::generate().unwrap();
        let again = MemberKey::from_pem(&key.to_pem()).unwrap();
        assert_eq!(key.fingerprint(), again.fingerprint());
        assert!(MemberKey::from_pem("no key").is_err());
        let other_kind = KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
        assert!(MemberKey::from_pem(&other_kind.serialize_pem()).is_err());
    }
}
