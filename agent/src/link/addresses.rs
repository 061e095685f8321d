//! The addresses of the hub: the stored ones, and those of a join string with other addresses of
//! the same hub.
use runnel_transport::identity::{Fingerprint, JoinString};

use super::Link;
use crate::join;
use crate::store::Identity;

/// Returns the addresses to try, in turn.
///
/// A join string of this hub counts even if its token is used, because the hub may have moved. Its
/// addresses come after the stored ones, because they may be older.
fn candidates(identity: &Identity, string: Option<&JoinString>) -> Vec<String> {
    let mut all = identity.addresses.clone();
    let named = string
        .filter(|string| is_for_joined_hub(identity, string))
        .into_iter()
        .flat_map(|string| &string.addresses);
    all.extend(
        named
            .filter(|address| !identity.addresses.contains(address))
            .cloned(),
    );
    all
}

/// Whether a join string belongs to the hub that this agent has joined: it has the hub's id, and
/// the key of a trusted CA.
fn is_for_joined_hub(identity: &Identity, string: &JoinString) -> bool {
    let cas = identity
        .certificate
        .iter()
        .flat_map(|certificate| &certificate.ca_certificates);
    let mut keys = cas.filter_map(|ca| Fingerprint::of_certificate(ca).ok());
    string.hub == identity.hub && keys.any(|key| key == string.pin)
}

impl Link {
    /// Returns the addresses to try, in turn.
    pub(super) fn candidates(&self) -> Vec<String> {
        candidates(
            &self.identity,
            join::read_join_string(self.join_file.as_deref())
                .ok()
                .as_ref(),
        )
    }

    /// Stores the addresses of the join string, if the hub was reached at one that is not stored:
    /// the hub has moved.
    pub(super) async fn reached(&mut self, address: &str) {
        if self.identity.addresses.iter().any(|known| known == address) {
            return;
        }
        let Ok(string) = join::read_join_string(self.join_file.as_deref()) else {
            return;
        };
        if !is_for_joined_hub(&self.identity, &string)
            || !string.addresses.iter().any(|named| named == address)
        {
            return;
        }
        self.identity.addresses = string.addresses;
        tracing::info!(
            address = self.identity.addresses.join(","),
            "the hub has moved: its addresses are those of the join string"
        );
        if self.store.save_identity(&self.identity).await.is_err() {
            tracing::warn!(
                "the hub's new addresses cannot be stored yet: the next renewal stores them"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use runnel_transport::identity::{Ca, Token, new_hub_id};

    use super::*;
    use crate::store::Certificate;

    #[test]
    fn addresses_of_a_join_string_count_only_for_the_same_hub() {
        let hub = new_hub_id().unwrap();
        let (own, other) = (
            Ca::generate(&hub, SystemTime::now()),
            Ca::generate(&hub, SystemTime::now()),
        );
        let (own, other) = (own.unwrap(), other.unwrap());
        let certificate = Certificate {
            own: own.certificate().clone(),
            ca_certificates: vec![own.certificate().clone()],
            renew_at: SystemTime::now(),
        };
        let identity = Identity {
            hub: hub.clone(),
            addresses: vec!["old:1".into(), "both:1".into()],
            cluster: "eu-1".into(),
            replaced_cluster: String::new(),
            key: String::new(),
            seal_key: vec![],
            token_id: String::new(),
            certificate: Some(certificate),
            pending: None,
        };
        let string = |hub: &str, ca: &Ca| JoinString {
            addresses: vec!["new:1".into(), "both:1".into()],
            hub: hub.to_owned(),
            cluster: "eu-1".into(),
            token: Token::generate().unwrap(),
            pin: ca.pin(),
        };
        assert_eq!(
            candidates(&identity, Some(&string(&hub, &own))),
            ["old:1", "both:1", "new:1"]
        );
        for foreign in [string(&hub, &other), string(&new_hub_id().unwrap(), &own)] {
            assert_eq!(candidates(&identity, Some(&foreign)), identity.addresses);
        }
        assert_eq!(candidates(&identity, None), identity.addresses);
    }
}
