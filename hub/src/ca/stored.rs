//! Reads the hub's identity from the data of its Secret, and creates missing entries.
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use k8s_openapi::ByteString;
use runnel_proto::model::RevisionKey;
use runnel_transport::identity::{Ca, IdentityError, MemberKey, is_address, is_hub_id};
use runnel_transport::tls::is_signed_by;

/// The CA's certificate, PEM; the names are those of a `kubernetes.io/tls` Secret.
const CERTIFICATE: &str = "tls.crt";
/// The CA's private key, PEM.
const KEY: &str = "tls.key";
/// The hub's id.
const HUB_ID: &str = "hub-id";
/// The key for revisions, 32 bytes.
const REVISION_KEY: &str = "revision-key";
/// The addresses of the hub for agents, one `host:port` a line.
const ADDRESSES: &str = "addresses";

/// The data of a Secret.
pub type Data = BTreeMap<String, ByteString>;

/// The hub's identity. Without `Debug`, because it contains keys.
pub struct HubIdentity {
    /// The hub's id.
    pub hub_id: String,
    /// The CA that signs the certificates of the hub and its members.
    pub ca: Ca,
    /// The key for revisions.
    pub revision_key: RevisionKey,
    /// The addresses of the hub for agents, `host:port` each; empty until they are configured.
    pub addresses: Vec<String>,
}

/// Why the data of a Secret is not a valid identity. Contains no part of the data.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoredError {
    /// A certificate without key, or a key without certificate.
    #[error(
        "it has only one of {CERTIFICATE} and {KEY}: restore the other, or remove both so that the hub creates a new CA"
    )]
    HalfCa,
    /// An entry exists and is invalid.
    #[error("its entry {0} is not usable: restore it from a backup")]
    Entry(&'static str),
    /// The identity belongs to another hub.
    #[error(
        "its entry {HUB_ID} is not the one with which the hub started: restore it from a backup"
    )]
    OtherHub,
    /// A check of the CA failed.
    #[error("{0}")]
    Unverifiable(&'static str),
    /// The CA cannot be used.
    #[error("{0}: restore {CERTIFICATE} and {KEY} from a backup")]
    Ca(#[from] IdentityError),
}

/// New values for missing entries.
pub struct Fresh {
    /// A hub id.
    pub hub_id: String,
    /// A key for revisions.
    pub revision_key: [u8; 32],
    /// The current time.
    pub now: SystemTime,
    /// The validity of a new CA.
    pub lifetime: Duration,
}

/// Returns the missing entries of an identity; empty if it is complete. Existing entries stay
/// unchanged.
///
/// # Errors
/// [`StoredError`], when the certificate or the key of a CA is missing, or no CA can be created.
pub fn missing(data: &Data, fresh: Fresh) -> Result<Data, StoredError> {
    let mut added = Data::new();
    let hub_id = match data.get(HUB_ID) {
        Some(_) => text(data, HUB_ID)?,
        None => {
            added.insert(
                HUB_ID.to_owned(),
                ByteString(fresh.hub_id.clone().into_bytes()),
            );
            fresh.hub_id
        }
    };
    if !data.contains_key(REVISION_KEY) {
        added.insert(
            REVISION_KEY.to_owned(),
            ByteString(fresh.revision_key.to_vec()),
        );
    }
    match (filled(data, CERTIFICATE), filled(data, KEY)) {
        (true, true) => {}
        (false, false) => {
            added.extend(ca(&hub_id, fresh.lifetime, fresh.now)?);
        }
        _ => return Err(StoredError::HalfCa),
    }
    Ok(added)
}

/// Parses a complete identity.
///
/// # Errors
/// [`StoredError`], with the invalid entry.
pub fn read(data: &Data) -> Result<HubIdentity, StoredError> {
    let hub_id = text(data, HUB_ID)?;
    if !is_hub_id(&hub_id) {
        return Err(StoredError::Entry(HUB_ID));
    }
    let revision_key = data
        .get(REVISION_KEY)
        .map(|bytes| &bytes.0[..])
        .unwrap_or_default();
    // With a short key values could be guessed from their revisions.
    if revision_key.len() < 16 {
        return Err(StoredError::Entry(REVISION_KEY));
    }
    let addresses = match data.get(ADDRESSES) {
        Some(_) => text(data, ADDRESSES)?,
        None => String::new(),
    };
    let addresses: Vec<String> = addresses.split_whitespace().map(str::to_owned).collect();
    if !addresses.iter().all(|address| is_address(address)) {
        return Err(StoredError::Entry(ADDRESSES));
    }
    Ok(HubIdentity {
        ca: Ca::from_pem(&text(data, CERTIFICATE)?, &text(data, KEY)?)?,
        revision_key: RevisionKey::new(revision_key),
        hub_id,
        addresses,
    })
}

/// Returns the entries to write while the hub runs: a new CA, if the former one was deleted or half
/// of the validity of a self-signed one is over. A CA from another source must be renewed by that
/// source.
///
/// # Errors
/// [`StoredError`], when the rest of the identity is missing or unusable, or belongs to another
/// hub.
pub fn renewed(
    data: &Data,
    hub_id: &str,
    life: Duration,
    now: SystemTime,
) -> Result<Option<Data>, StoredError> {
    if text(data, HUB_ID)? != hub_id {
        return Err(StoredError::OtherHub);
    }
    match (filled(data, CERTIFICATE), filled(data, KEY)) {
        (true, true) => {}
        (false, false) => return Ok(Some(ca(hub_id, life, now)?)),
        _ => return Err(StoredError::HalfCa),
    }
    let present = read(data)?.ca;
    let due = present.is_self_issued() && present.renew_at() <= now;
    Ok(if due {
        Some(ca(hub_id, life, now)?)
    } else {
        None
    })
}

/// Checks that an identity can replace the one with which the hub started: it belongs to the same
/// hub, and the certificates of its CA verify.
///
/// # Errors
/// [`StoredError`], with the cause.
pub fn verify_identity(
    identity: &HubIdentity,
    hub_id: &str,
    now: SystemTime,
) -> Result<(), StoredError> {
    if identity.hub_id != hub_id {
        return Err(StoredError::OtherHub);
    }
    let (minute, key) = (Duration::from_secs(60), MemberKey::generate()?);
    let ca = &identity.ca;
    ca.sign_hub(hub_id, now, minute)?;
    let signed = ca.sign_member(
        &key.certificate_request()?,
        hub_id,
        "probe",
        "probe",
        now,
        minute,
    )?;
    let is_verified = is_signed_by(&signed.der, ca.certificate());
    if is_verified {
        Ok(())
    } else {
        Err(StoredError::Unverifiable(UNVERIFIABLE))
    }
}

const UNVERIFIABLE: &str = "clients that trust this CA do not accept what it signs (a name constraint, or a subject that \
                       is encoded in an unusual way): use a plain CA certificate";

fn ca(hub_id: &str, life: Duration, now: SystemTime) -> Result<Data, StoredError> {
    let ca = Ca::generate_for(hub_id, now, life)?;
    let entries = [
        (CERTIFICATE, ca.certificate_pem().to_owned()),
        (KEY, ca.key_pem()),
    ];
    Ok(entries
        .map(|(name, pem)| (name.to_owned(), ByteString(pem.into())))
        .into())
}

/// Returns the entry with these addresses.
pub fn addresses(addresses: &[String]) -> Data {
    Data::from([(
        ADDRESSES.to_owned(),
        ByteString(addresses.join("\n").into_bytes()),
    )])
}

fn filled(data: &Data, entry: &str) -> bool {
    data.get(entry).is_some_and(|bytes| !bytes.0.is_empty())
}

fn text(data: &Data, entry: &'static str) -> Result<String, StoredError> {
    let bytes = data.get(entry).ok_or(StoredError::Entry(entry))?;
    String::from_utf8(bytes.0.clone()).map_err(|_| StoredError::Entry(entry))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fresh() -> Fresh {
        let now = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_800_000_000);
        Fresh {
            hub_id: "hubid".into(),
            revision_key: [7; 32],
            now,
            lifetime: Duration::from_secs(1000),
        }
    }

    #[test]
    fn empty_secret_is_filled_and_full_one_is_unchanged() {
        let data = missing(&Data::new(), fresh()).unwrap();
        let identity = read(&data).ok().unwrap();
        assert_eq!(
            (identity.hub_id.as_str(), identity.addresses.len()),
            ("hubid", 0)
        );
        assert!(
            missing(
                &data,
                Fresh {
                    hub_id: "other".into(),
                    ..fresh()
                }
            )
            .unwrap()
            .is_empty()
        );
    }

    #[test]
    fn given_ca_is_kept() {
        let ca = Ca::generate("elsewhere", fresh().now).unwrap();
        let mut data = Data::from([
            (
                CERTIFICATE.to_owned(),
                ByteString(ca.certificate_pem().into()),
            ),
            (KEY.to_owned(), ByteString(ca.key_pem().into())),
        ]);
        let added = missing(&data, fresh()).unwrap();
        assert_eq!(added.keys().collect::<Vec<_>>(), [HUB_ID, REVISION_KEY]);
        data.extend(added);
        assert_eq!(read(&data).ok().unwrap().ca.pin(), ca.pin());
    }

    #[test]
    fn unusable_parts_are_named_and_never_replaced() {
        let whole = missing(&Data::new(), fresh()).unwrap();
        for (entry, bytes) in [
            (HUB_ID, "A/b"),
            (REVISION_KEY, "short"),
            (ADDRESSES, "nowhere"),
        ] {
            let mut data = whole.clone();
            data.insert(entry.to_owned(), ByteString(bytes.into()));
            assert_eq!(read(&data).err(), Some(StoredError::Entry(entry)));
        }
        let mut half = whole.clone();
        half.remove(KEY);
        assert_eq!(missing(&half, fresh()).err(), Some(StoredError::HalfCa));
        let mut broken = whole;
        broken.insert(KEY.to_owned(), ByteString("no key".into()));
        assert!(matches!(read(&broken).err(), Some(StoredError::Ca(_))));
    }

    #[test]
    fn ca_is_replaced_when_removed_or_half_over() {
        let Fresh {
            now,
            lifetime: life,
            ..
        } = fresh();
        let whole = missing(&Data::new(), fresh()).unwrap();
        let half = life / 2;
        let renew = |data: &Data, at| renewed(data, "hubid", life, at);
        assert_eq!(renew(&whole, now), Ok(None));
        let new = renew(&whole, now + half).unwrap().unwrap();
        assert_eq!(new.keys().collect::<Vec<_>>(), [CERTIFICATE, KEY]);
        let mut bare = whole.clone();
        bare.remove(KEY);
        assert_eq!(renew(&bare, now), Err(StoredError::HalfCa));
        bare.insert(CERTIFICATE.to_owned(), ByteString(vec![]));
        bare.extend(renew(&bare, now).unwrap().unwrap());
        assert!(read(&bare).is_ok_and(|read| verify_identity(&read, "hubid", now).is_ok()));
        assert_eq!(
            renewed(&whole, "other", life, now),
            Err(StoredError::OtherHub)
        );
        assert_eq!(renew(&Data::new(), now), Err(StoredError::Entry(HUB_ID)));
    }

    #[test]
    fn foreign_ca_is_used_and_never_renewed() {
        let now = fresh().now;
        let mut data = missing(&Data::new(), fresh()).unwrap();
        let (certificate, key) = foreign();
        data.insert(CERTIFICATE.to_owned(), ByteString(certificate.into()));
        data.insert(KEY.to_owned(), ByteString(key.into()));
        assert_eq!(renewed(&data, "hubid", Duration::ZERO, now), Ok(None));
        let taken = read(&data).ok().unwrap();
        assert_eq!(verify_identity(&taken, "hubid", now), Ok(()));
        assert_eq!(
            verify_identity(&taken, "other", now),
            Err(StoredError::OtherHub)
        );
        let late = taken.ca.not_after();
        assert!(matches!(
            verify_identity(&taken, "hubid", late),
            Err(StoredError::Ca(IdentityError::CaExpired))
        ));
    }

    /// Returns the certificate and key of a CA from another program, PEM.
    fn foreign() -> (String, String) {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
    }

    #[test]
    fn addresses_read_back() {
        let mut data = missing(&Data::new(), fresh()).unwrap();
        data.extend(addresses(&["hub:1".into(), "[::1]:2".into()]));
        assert_eq!(read(&data).ok().unwrap().addresses, ["hub:1", "[::1]:2"]);
    }
}
