//! What lies in the hub's identity Secret: read, and made whole where something is missing.
use std::collections::BTreeMap;
use std::time::SystemTime;

use k8s_openapi::ByteString;
use runnel_proto::identity::{Authority, IdentityError, is_address, is_hub_id};
use runnel_proto::model::RevisionKey;

/// The authority's certificate, PEM; the names are those of a `kubernetes.io/tls` Secret.
const CERTIFICATE: &str = "tls.crt";
/// The authority's key, PEM.
const KEY: &str = "tls.key";
/// The hub's id.
const HUB_ID: &str = "hub-id";
/// The key of revisions, 32 bytes.
const REVISION_KEY: &str = "revision-key";
/// Where agents reach the hub, one `host:port` a line.
const ADDRESSES: &str = "addresses";

/// The data of a Secret.
pub type Data = BTreeMap<String, ByteString>;

/// The hub's identity. Without `Debug`.
pub struct HubIdentity {
    /// The hub's id.
    pub hub_id: String,
    /// Signs the certificates of the hub and its members.
    pub authority: Authority,
    /// Makes revisions.
    pub revision_key: RevisionKey,
    /// Where agents reach the hub, `host:port` each; empty until somebody says it.
    pub addresses: Vec<String>,
}

/// Why a Secret does not hold an identity. Says nothing of what is in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoredError {
    /// A certificate without key, or a key without certificate.
    #[error("it has only one of {CERTIFICATE} and {KEY}: restore the other, or remove both to make a new authority")]
    HalfAuthority,
    /// An entry is there and unusable.
    #[error("its entry {0} is not usable: restore it from a backup")]
    Entry(&'static str),
    /// The authority does not work.
    #[error("{0}: restore {CERTIFICATE} and {KEY} from a backup")]
    Authority(#[from] IdentityError),
}

/// Fresh parts, of which those are taken that are missing.
pub struct Fresh {
    /// A hub id.
    pub hub_id: String,
    /// A key for revisions.
    pub revision_key: [u8; 32],
    /// The time.
    pub now: SystemTime,
}

/// The entries that are missing for a whole identity; empty when it is whole. What is there stays as it is.
///
/// # Errors
/// [`StoredError`], when only half of an authority is there or no new one can be made.
pub fn missing(data: &Data, fresh: Fresh) -> Result<Data, StoredError> {
    let mut added = Data::new();
    let hub_id = match data.get(HUB_ID) {
        Some(_) => text(data, HUB_ID)?,
        None => {
            added.insert(HUB_ID.to_owned(), ByteString(fresh.hub_id.clone().into_bytes()));
            fresh.hub_id
        }
    };
    if !data.contains_key(REVISION_KEY) {
        added.insert(REVISION_KEY.to_owned(), ByteString(fresh.revision_key.to_vec()));
    }
    match (filled(data, CERTIFICATE), filled(data, KEY)) {
        (true, true) => {}
        (false, false) => {
            let authority = Authority::generate(&hub_id, fresh.now)?;
            added.insert(CERTIFICATE.to_owned(), ByteString(authority.certificate_pem().into()));
            added.insert(KEY.to_owned(), ByteString(authority.key_pem().into()));
        }
        _ => return Err(StoredError::HalfAuthority),
    }
    Ok(added)
}

/// The identity in a whole Secret.
///
/// # Errors
/// [`StoredError`], which names the entry that cannot be used.
pub fn read(data: &Data) -> Result<HubIdentity, StoredError> {
    let hub_id = text(data, HUB_ID)?;
    if !is_hub_id(&hub_id) {
        return Err(StoredError::Entry(HUB_ID));
    }
    let revision_key = data.get(REVISION_KEY).map(|bytes| &bytes.0[..]).unwrap_or_default();
    // A short key would let values be guessed from their revisions.
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
        authority: Authority::from_pem(&text(data, CERTIFICATE)?, &text(data, KEY)?)?,
        revision_key: RevisionKey::new(revision_key),
        hub_id,
        addresses,
    })
}

/// The entry that records addresses.
pub fn addresses(addresses: &[String]) -> Data {
    Data::from([(ADDRESSES.to_owned(), ByteString(addresses.join("\n").into_bytes()))])
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
        Fresh { hub_id: "hubid".into(), revision_key: [7; 32], now }
    }

    #[test]
    fn an_empty_secret_becomes_whole_and_a_whole_one_stays() {
        let data = missing(&Data::new(), fresh()).unwrap();
        let identity = read(&data).ok().unwrap();
        assert_eq!((identity.hub_id.as_str(), identity.addresses.len()), ("hubid", 0));
        assert!(missing(&data, Fresh { hub_id: "other".into(), ..fresh() }).unwrap().is_empty());
    }

    #[test]
    fn a_given_authority_is_kept() {
        let authority = Authority::generate("elsewhere", fresh().now).unwrap();
        let mut data = Data::from([
            (CERTIFICATE.to_owned(), ByteString(authority.certificate_pem().into())),
            (KEY.to_owned(), ByteString(authority.key_pem().into())),
        ]);
        let added = missing(&data, fresh()).unwrap();
        assert_eq!(added.keys().collect::<Vec<_>>(), [HUB_ID, REVISION_KEY]);
        data.extend(added);
        assert_eq!(read(&data).ok().unwrap().authority.pin(), authority.pin());
    }

    #[test]
    fn what_is_there_and_unusable_is_named_and_never_replaced() {
        let whole = missing(&Data::new(), fresh()).unwrap();
        for (entry, bytes) in [(HUB_ID, "A/b"), (REVISION_KEY, "short"), (ADDRESSES, "nowhere")] {
            let mut data = whole.clone();
            data.insert(entry.to_owned(), ByteString(bytes.into()));
            assert_eq!(read(&data).err(), Some(StoredError::Entry(entry)));
        }
        let mut half = whole.clone();
        half.remove(KEY);
        assert_eq!(missing(&half, fresh()).err(), Some(StoredError::HalfAuthority));
        let mut broken = whole;
        broken.insert(KEY.to_owned(), ByteString("no key".into()));
        assert!(matches!(read(&broken).err(), Some(StoredError::Authority(_))));
    }

    #[test]
    fn addresses_read_back() {
        let mut data = missing(&Data::new(), fresh()).unwrap();
        data.extend(addresses(&["hub:1".into(), "[::1]:2".into()]));
        assert_eq!(read(&data).ok().unwrap().addresses, ["hub:1", "[::1]:2"]);
    }
}
