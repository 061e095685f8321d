//! Selects the hub's serving certificate while one CA replaces another: the newest one that
//! the agent can verify. The agent lists its CAs in its ClientHello (extension
//! certificate_authorities). Subjects of CAs may be equal, so artificial names of their
//! digests distinguish them.
use std::sync::Arc;

use rustls::DistinguishedName;
use rustls::pki_types::CertificateDer;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::{TlsError, provider};
use crate::identity::{Fingerprint, ServingPair};

/// DER of the object identifier of a common name, 2.5.4.3.
const COMMON_NAME: [u8; 5] = [0x06, 0x03, 0x55, 0x04, 0x03];

/// `SEQUENCE { SET { SEQUENCE { commonName, UTF8String "sha256:..." } } }`. Everything is shorter than 128 bytes, so each
/// length is one byte.
pub(super) fn hint(print: Fingerprint) -> DistinguishedName {
    let tagged = |tag: u8, parts: &[&[u8]]| {
        let body = parts.concat();
        let mut all = vec![tag, u8::try_from(body.len()).unwrap_or_default()];
        all.extend(body);
        all
    };
    let text = tagged(0x0c, &[print.to_string().as_bytes()]);
    let name = tagged(0x30, &[&COMMON_NAME, &text]);
    DistinguishedName::in_sequence(&tagged(0x31, &[&name]))
}

/// Returns the hint of an agent with these CAs to the server: which certificates the agent can
/// verify.
pub(super) fn hints(cas: &[CertificateDer<'_>]) -> Vec<DistinguishedName> {
    cas.iter().map(|ca| hint(Fingerprint::of_ca(ca))).collect()
}

/// A serving certificate, and its CA's name in the hints of agents.
#[derive(Debug)]
struct Choice {
    names: Vec<DistinguishedName>,
    key: Arc<CertifiedKey>,
}

/// The certificates to serve with, the newest CA's first.
#[derive(Debug)]
pub(super) struct Choices(Vec<Choice>);

impl Choices {
    pub(super) fn new(pairs: Vec<ServingPair>) -> Result<Self, TlsError> {
        let choices = pairs.into_iter().map(|pair| {
            let ca = pair.chain.get(1);
            let mut names: Vec<_> = ca.iter().map(|ca| hint(Fingerprint::of_ca(ca))).collect();
            // A join string pins the key.
            names.extend(
                ca.and_then(|ca| Fingerprint::of_certificate(ca).ok())
                    .map(hint),
            );
            let key = CertifiedKey::from_der(pair.chain, pair.key, &provider())?;
            Ok(Choice {
                names,
                key: Arc::new(key),
            })
        });
        Ok(Self(choices.collect::<Result<_, TlsError>>()?))
    }

    /// The newest certificate that the client can verify; the oldest one for a client without a
    /// known hint.
    fn choose(&self, hinted: &[DistinguishedName]) -> Option<&Choice> {
        let is_hinted =
            |name: &DistinguishedName| hinted.iter().any(|hint| hint.as_ref() == name.as_ref());
        let newest = self
            .0
            .iter()
            .find(|choice| choice.names.iter().any(is_hinted));
        newest.or(self.0.last())
    }
}

impl ResolvesServerCert for Choices {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let hinted = hello.certificate_authorities().unwrap_or_default();
        self.choose(hinted).map(|choice| choice.key.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use x509_parser::prelude::FromDer;
    use x509_parser::x509::X509Name;

    use super::*;
    use crate::identity::Ca;

    #[test]
    fn a_hint_is_a_name_that_others_can_read() {
        let print = Fingerprint::of_key(b"key");
        let name = hint(print);
        let (rest, read) = X509Name::from_der(name.as_ref()).unwrap();
        assert!(rest.is_empty());
        assert_eq!(read.to_string(), format!("CN={print}"));
    }

    #[test]
    fn newest_hinted_version_is_chosen_else_the_oldest() {
        let now = SystemTime::now();
        let [old, new, foreign] = [(); 3].map(|()| Ca::generate("hubid", now).unwrap());
        let pair = |ca: &Ca| ca.sign_hub("hubid", now, Duration::from_secs(60)).unwrap();
        let (old_pair, new_pair) = (pair(&old), pair(&new));
        let leaves = (old_pair.chain[0].clone(), new_pair.chain[0].clone());
        let choices = Choices::new(vec![new_pair, old_pair]).unwrap();
        let chosen =
            |hinted: &[DistinguishedName]| choices.choose(hinted).unwrap().key.cert[0].clone();
        let [old_name, new_name, foreign_name] =
            [&old, &new, &foreign].map(|ca| hint(Fingerprint::of_ca(ca.certificate())));
        assert_eq!(chosen(std::slice::from_ref(&old_name)), leaves.0);
        assert_eq!(
            chosen(&[old_name, foreign_name.clone(), new_name]),
            leaves.1
        );
        assert_eq!(chosen(&[hint(new.pin())]), leaves.1);
        assert_eq!(chosen(&[hint(old.pin())]), leaves.0);
        assert_eq!(chosen(&[foreign_name]), leaves.0);
        assert_eq!(chosen(&[]), leaves.0);
    }
}
