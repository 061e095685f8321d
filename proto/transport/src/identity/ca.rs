//! The hub's CA: signs identities that the hub decides, never those of a request.
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName,
    DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PublicKeyData,
    SanType, SerialNumber,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{
    CertificateDer, CertificateSigningRequestDer, PrivateKeyDer, PrivatePkcs8KeyDer,
};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::oid_registry::{OID_EC_P256, OID_KEY_TYPE_EC_PUBLIC_KEY};
use x509_parser::prelude::FromDer;

use super::certificate::{certificate_end, parse, time};
use super::{Fingerprint, IdentityError, PeerCertificate, SpiffeId, is_hub_id, random};

/// Time by which a certificate's validity starts earlier, for slow clocks.
pub const SKEW: Duration = Duration::from_secs(5 * 60);
/// The default validity of a self-signed CA: ten years.
pub const CA_LIFETIME: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);
/// The organization in the names that this system writes.
const ORGANIZATION: &str = "runnel";

/// A certificate for a member.
#[derive(Clone, Debug)]
pub struct SignedCertificate {
    /// The certificate.
    pub der: CertificateDer<'static>,
    /// The key in it.
    pub key: Fingerprint,
    /// End of validity.
    pub not_after: SystemTime,
}

/// The hub's serving certificate with its key. Without `Debug`.
pub struct ServingPair {
    /// The leaf, then the CA.
    pub chain: Vec<CertificateDer<'static>>,
    /// The leaf's key.
    pub key: PrivateKeyDer<'static>,
    /// End of validity.
    pub not_after: SystemTime,
}

impl ServingPair {
    /// When the certificate is renewed: at half of its remaining validity.
    pub fn renew_at(&self, now: SystemTime) -> SystemTime {
        now + self.not_after.duration_since(now).unwrap_or_default() / 2
    }
}

/// A CA with its key. Without `Debug`.
pub struct Ca {
    certificate: CertificateDer<'static>,
    certificate_pem: String,
    issuer: Issuer<'static, KeyPair>,
    not_before: SystemTime,
    not_after: SystemTime,
}

impl Ca {
    /// A new self-signed CA: ECDSA P-256, ten years.
    ///
    /// # Errors
    /// [`IdentityError`], when the hub id is none or the system gives no random numbers.
    pub fn generate(hub_id: &str, now: SystemTime) -> Result<Self, IdentityError> {
        Self::generate_for(hub_id, now, CA_LIFETIME)
    }

    /// As [`Self::generate`], with another validity.
    ///
    /// # Errors
    /// As [`Self::generate`].
    pub fn generate_for(
        hub_id: &str,
        now: SystemTime,
        life: Duration,
    ) -> Result<Self, IdentityError> {
        if !is_hub_id(hub_id) {
            return Err(IdentityError::SpiffeId);
        }
        let key = new_key()?;
        let mut params = CertificateParams::default();
        params.not_before = (now - SKEW).into();
        params.not_after = (now + life).into();
        params.serial_number = Some(serial()?);
        params.distinguished_name = name(&format!("hub {hub_id}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params
            .self_signed(&key)
            .map_err(|_| IdentityError::Crypto)?;
        Self::from_pem(&certificate.pem(), &key.serialize_pem())
    }

    /// Parses a CA from PEM: its own certificate first, and its private key.
    ///
    /// # Errors
    /// [`IdentityError`], with the problem.
    pub fn from_pem(certificate_pem: &str, key_pem: &str) -> Result<Self, IdentityError> {
        let der = CertificateDer::from_pem_slice(certificate_pem.as_bytes())
            .map_err(|_| IdentityError::CaPem("certificate"))?;
        let key = KeyPair::from_pem(key_pem).map_err(|_| IdentityError::CaPem("key"))?;
        let certificate = parse(&der)?;
        if certificate.tbs_certificate.subject_pki.raw != key.subject_public_key_info() {
            return Err(IdentityError::CaKey);
        }
        if !certificate.is_ca() {
            return Err(IdentityError::NotCa);
        }
        let (not_before, not_after) = (
            certificate.validity().not_before,
            certificate.validity().not_after,
        );
        let (not_before, not_after) = (time(not_before.timestamp()), time(not_after.timestamp()));
        let issuer = Issuer::from_ca_cert_der(&der, key).map_err(|_| IdentityError::NotCa)?;
        Ok(Self {
            certificate: der.into_owned(),
            certificate_pem: certificate_pem.to_owned(),
            issuer,
            not_before,
            not_after,
        })
    }

    /// The certificate.
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// The certificate as PEM.
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// Returns the private key as PEM, for its Secret.
    pub fn key_pem(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    /// Returns the pin for join strings.
    pub fn pin(&self) -> Fingerprint {
        Fingerprint::of_key(&self.issuer.key().subject_public_key_info())
    }

    /// Whether a hub created it for itself, so that only the hub renews it.
    pub fn is_self_issued(&self) -> bool {
        let Ok(certificate) = parse(&self.certificate) else {
            return false;
        };
        let organization = certificate.subject().iter_organization().next();
        let is_own = organization.and_then(|name| name.as_str().ok()) == Some(ORGANIZATION);
        is_own && certificate.subject() == certificate.issuer()
    }

    /// Returns the renewal time of a self-signed CA: half of its validity.
    pub fn renew_at(&self) -> SystemTime {
        self.not_before
            + self
                .not_after
                .duration_since(self.not_before)
                .unwrap_or_default()
                / 2
    }

    /// Returns the expiry of the CA's own certificate.
    pub fn not_after(&self) -> SystemTime {
        self.not_after
    }

    /// Signs a member's certificate. Uses only the public key of the request (DER, PKCS#10), which
    /// must be ECDSA P-256 with a valid signature; other parts are ignored or refused.
    ///
    /// # Errors
    /// [`IdentityError`], with the problem of the request, the names or the CA.
    pub fn sign_member(
        &self,
        request: &[u8],
        hub_id: &str,
        cluster: &str,
        uid: &str,
        now: SystemTime,
        lifetime: Duration,
    ) -> Result<SignedCertificate, IdentityError> {
        let id = SpiffeId::cluster(hub_id, cluster, uid)?;
        let key = request_key(request)?;
        let request =
            CertificateSigningRequestParams::from_der(&CertificateSigningRequestDer::from(request))
                .map_err(|_| IdentityError::Request)?;
        let params = self.leaf(
            &id,
            "member",
            ExtendedKeyUsagePurpose::ClientAuth,
            now,
            lifetime,
        )?;
        let signed = params
            .signed_by(&request.public_key, &self.issuer)
            .map_err(|_| IdentityError::Crypto)?;
        let written = PeerCertificate::from_der(signed.der())?;
        // The key that was judged is the key that was signed.
        if written.key != key {
            return Err(IdentityError::RequestKey);
        }
        Ok(SignedCertificate {
            der: signed.der().clone(),
            key,
            not_after: written.not_after,
        })
    }

    /// Makes the hub's serving certificate and a key for it.
    ///
    /// # Errors
    /// [`IdentityError`], when the hub id is none or signing fails.
    pub fn sign_hub(
        &self,
        hub_id: &str,
        now: SystemTime,
        lifetime: Duration,
    ) -> Result<ServingPair, IdentityError> {
        let key = new_key()?;
        let params = self.leaf(
            &SpiffeId::hub(hub_id)?,
            "hub",
            ExtendedKeyUsagePurpose::ServerAuth,
            now,
            lifetime,
        )?;
        let signed = params
            .signed_by(&key, &self.issuer)
            .map_err(|_| IdentityError::Crypto)?;
        Ok(ServingPair {
            not_after: PeerCertificate::from_der(signed.der())?.not_after,
            chain: vec![signed.der().clone(), self.certificate.clone()],
            key: PrivatePkcs8KeyDer::from(key.serialize_der()).into(),
        })
    }

    /// Creates a serving certificate for a Service of the hub, with a key for it. Its names are DNS
    /// names, such as `runnel-hub.runnel-system.svc`.
    ///
    /// # Errors
    /// [`IdentityError`], when the hub id or a name is invalid, or signing fails.
    pub fn sign_service(
        &self,
        hub_id: &str,
        names: &[String],
        now: SystemTime,
        lifetime: Duration,
    ) -> Result<ServingPair, IdentityError> {
        let key = new_key()?;
        let mut params = self.leaf(
            &SpiffeId::hub(hub_id)?,
            "view",
            ExtendedKeyUsagePurpose::ServerAuth,
            now,
            lifetime,
        )?;
        // The identity of the hub is for its members only.
        params.subject_alt_names = names
            .iter()
            .map(|name| name.clone().try_into().map(SanType::DnsName))
            .collect::<Result<_, _>>()
            .map_err(|_| IdentityError::Crypto)?;
        let signed = params
            .signed_by(&key, &self.issuer)
            .map_err(|_| IdentityError::Crypto)?;
        Ok(ServingPair {
            not_after: certificate_end(signed.der())?,
            chain: vec![signed.der().clone(), self.certificate.clone()],
            key: PrivatePkcs8KeyDer::from(key.serialize_der()).into(),
        })
    }

    fn leaf(
        &self,
        id: &SpiffeId,
        subject: &str,
        usage: ExtendedKeyUsagePurpose,
        now: SystemTime,
        lifetime: Duration,
    ) -> Result<CertificateParams, IdentityError> {
        // A CA that is not valid yet is trusted all the same: it was created while a clock was
        // ahead.
        if now >= self.not_after {
            return Err(IdentityError::CaExpired);
        }
        let uri = id
            .to_string()
            .try_into()
            .map_err(|_| IdentityError::SpiffeId)?;
        let mut params = CertificateParams::default();
        params.not_before = (now - SKEW).into();
        params.not_after = (now + lifetime).min(self.not_after).into();
        params.serial_number = Some(serial()?);
        params.distinguished_name = name(subject);
        params.subject_alt_names = vec![SanType::URI(uri)];
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        params.use_authority_key_identifier_extension = true;
        Ok(params)
    }
}

fn new_key() -> Result<KeyPair, IdentityError> {
    KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).map_err(|_| IdentityError::Crypto)
}

fn name(common_name: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::OrganizationName, ORGANIZATION);
    name.push(DnType::CommonName, common_name);
    name
}

/// 127 random bits; positive, and never zero.
fn serial() -> Result<SerialNumber, IdentityError> {
    let mut bytes = random::<16>()?;
    bytes[0] = (bytes[0] & 0x7f) | 0x40;
    Ok(SerialNumber::from_slice(&bytes))
}

/// Returns the key of a request, by the key's own parameters: the signature's algorithm does not
/// name the curve.
fn request_key(der: &[u8]) -> Result<Fingerprint, IdentityError> {
    let Ok(([], request)) = X509CertificationRequest::from_der(der) else {
        return Err(IdentityError::Request);
    };
    let key = &request.certification_request_info.subject_pki;
    let curve = key
        .algorithm
        .parameters
        .as_ref()
        .and_then(|parameters| parameters.as_oid().ok());
    let point = &key.subject_public_key.data;
    let is_p256 = key.algorithm.algorithm == OID_KEY_TYPE_EC_PUBLIC_KEY
        && curve.is_some_and(|curve| curve == OID_EC_P256)
        && point.len() == 65
        && point.first() == Some(&4);
    if is_p256 {
        Ok(Fingerprint::of_key(key.raw))
    } else {
        Err(IdentityError::RequestKey)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::MemberKey;
    use proptest::prelude::*;

    const DAY: Duration = Duration::from_secs(24 * 60 * 60);

    fn now() -> SystemTime {
        time(1_800_000_000)
    }

    fn ca() -> Ca {
        Ca::generate("hubid", now()).unwrap()
    }

    fn sign(ca: &Ca, request: &[u8]) -> Result<SignedCertificate, IdentityError> {
        ca.sign_member(request, "hubid", "eu-3", "uid-1", now(), DAY)
    }

    #[test]
    fn member_certificate_has_the_names_of_the_hub() {
        let key = MemberKey::generate().unwrap();
        let signed = sign(&ca(), &key.certificate_request().unwrap()).unwrap();
        let read = PeerCertificate::from_der(&signed.der).unwrap();
        assert_eq!(
            read.id,
            SpiffeId::cluster("hubid", "eu-3", "uid-1").unwrap()
        );
        assert_eq!((read.key, read.not_after), (key.fingerprint(), now() + DAY));
        assert!(read.client && !read.server);
        let certificate = parse(&signed.der).unwrap();
        assert_eq!(
            time(certificate.validity().not_before.timestamp()),
            now() - SKEW
        );
        assert!(!certificate.is_ca() && certificate.basic_constraints().unwrap().is_some());
    }

    #[test]
    fn extra_requests_of_a_csr_are_ignored() {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::Any,
        ];
        params.subject_alt_names = vec![
            SanType::URI("spiffe://hubid/hub".try_into().unwrap()),
            SanType::DnsName("hub.example".try_into().unwrap()),
        ];
        params.distinguished_name = name("system:masters");
        let request = params.serialize_request(&key).unwrap();
        let signed = sign(&ca(), request.der()).unwrap();
        let read = PeerCertificate::from_der(&signed.der).unwrap();
        assert!(matches!(read.id, SpiffeId::Cluster { .. }) && read.client && !read.server);
        let certificate = parse(&signed.der).unwrap();
        assert!(!certificate.is_ca());
        assert_eq!(
            certificate
                .subject_alternative_name()
                .unwrap()
                .unwrap()
                .value
                .general_names
                .len(),
            1
        );
        assert!(!certificate.subject().to_string().contains("masters"));
        assert!(
            !certificate
                .key_usage()
                .unwrap()
                .unwrap()
                .value
                .key_cert_sign()
        );
    }

    #[test]
    fn requests_of_other_keys_or_with_a_wrong_signature_are_refused() {
        let ca = ca();
        for algorithm in [&rcgen::PKCS_ED25519, &rcgen::PKCS_ECDSA_P384_SHA384] {
            let key = KeyPair::generate_for(algorithm).unwrap();
            let request = CertificateParams::default()
                .serialize_request(&key)
                .unwrap();
            assert_eq!(
                sign(&ca, request.der()).unwrap_err(),
                IdentityError::RequestKey
            );
        }
        let mut forged = MemberKey::generate()
            .unwrap()
            .certificate_request()
            .unwrap();
        let last = forged.len() - 1;
        forged[last] ^= 1;
        assert_eq!(sign(&ca, &forged).unwrap_err(), IdentityError::Request);
        let mut longer = MemberKey::generate()
            .unwrap()
            .certificate_request()
            .unwrap();
        longer.push(0);
        assert_eq!(sign(&ca, &longer).unwrap_err(), IdentityError::Request);
    }

    #[test]
    fn names_that_are_not_names_are_not_signed() {
        let request = MemberKey::generate()
            .unwrap()
            .certificate_request()
            .unwrap();
        for (hub, cluster, uid) in [
            ("a/b", "c", "d"),
            ("a", "c/x", "d"),
            ("a", "c", ""),
            ("a", "C", "d"),
        ] {
            let signed = ca().sign_member(&request, hub, cluster, uid, now(), DAY);
            assert_eq!(signed.unwrap_err(), IdentityError::SpiffeId);
        }
        assert!(Ca::generate("A B", now()).is_err());
    }

    #[test]
    fn ca_reads_back_and_mismatched_pair_does_not() {
        let (one, two) = (ca(), ca());
        let again = Ca::from_pem(one.certificate_pem(), &one.key_pem()).unwrap();
        assert_eq!(again.pin(), one.pin());
        assert_eq!(
            one.pin(),
            Fingerprint::of_certificate(one.certificate()).unwrap()
        );
        assert!(again.is_self_issued() && again.renew_at() > now() + 4 * 365 * DAY);
        let mixed = Ca::from_pem(one.certificate_pem(), &two.key_pem());
        assert_eq!(mixed.err(), Some(IdentityError::CaKey));
        assert_eq!(
            Ca::from_pem("x", "y").err(),
            Some(IdentityError::CaPem("certificate"))
        );
    }

    #[test]
    fn no_certificate_outlives_its_ca() {
        let ca = ca();
        let request = MemberKey::generate()
            .unwrap()
            .certificate_request()
            .unwrap();
        let late = ca.not_after() - Duration::from_secs(60);
        let signed = ca
            .sign_member(&request, "hubid", "a", "b", late, DAY)
            .unwrap();
        assert_eq!(signed.not_after, ca.not_after());
        let over = ca.sign_member(&request, "hubid", "a", "b", ca.not_after(), DAY);
        assert_eq!(over.unwrap_err(), IdentityError::CaExpired);
    }

    #[test]
    fn the_serving_pair_is_the_hubs_and_for_servers_only() {
        let ca = ca();
        let pair = ca.sign_hub("hubid", now(), DAY).unwrap();
        let read = PeerCertificate::from_der(&pair.chain[0]).unwrap();
        assert_eq!(read.id, SpiffeId::hub("hubid").unwrap());
        assert!(read.server && !read.client);
        assert_eq!(&pair.chain[1], ca.certificate());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_damaged_request_is_refused_or_signed_for_its_key(at: prop::sample::Index, to: u8) {
            let ca = ca();
            let key = MemberKey::generate().unwrap();
            let mut request = key.certificate_request().unwrap();
            let at = at.index(request.len());
            request[at] = to;
            // A request is signed with its key. Any other key results from the damage, and is never
            // accepted.
            if let Ok(signed) = sign(&ca, &request) {
                prop_assert_eq!(PeerCertificate::from_der(&signed.der).unwrap().key, key.fingerprint());
            }
        }
    }
}
