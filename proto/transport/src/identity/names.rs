//! The parts of identities. None of them can contain a separator of a SPIFFE id.
use std::sync::LazyLock;

use data_encoding::{Encoding, Specification};
use http::uri::Authority;

use super::{IdentityError, random};
use runnel_proto::model::is_label;

/// Lower-case base32 without padding.
pub(super) static BASE32: LazyLock<Encoding> = LazyLock::new(|| {
    let mut specification = Specification::new();
    specification
        .symbols
        .push_str("abcdefghijklmnopqrstuvwxyz234567");
    specification
        .encoding()
        .expect("the specification is constant and has 32 symbols")
});

/// Whether this can be a hub's id: a DNS label, so that it is a label value and a trust domain as well.
pub fn is_hub_id(text: &str) -> bool {
    is_label(text)
}

/// Whether this can be the name of a `MemberCluster`: a DNS subdomain of at most 63 characters,
/// because it is used as a label value.
pub fn is_cluster_name(text: &str) -> bool {
    text.len() <= 63 && text.split('.').all(is_label)
}

/// Whether this can be an object's uid.
pub(super) fn is_uid(text: &str) -> bool {
    is_label(text)
}

/// Whether this is `host:port`; an IPv6 host has brackets.
pub fn is_address(text: &str) -> bool {
    let Ok(authority) = text.parse::<Authority>() else {
        return false;
    };
    let port = authority.port_u16().is_some_and(|port| port != 0);
    port && !authority.host().is_empty() && !text.contains('@')
}

/// A new random hub id: 80 bits.
///
/// # Errors
/// [`IdentityError::Crypto`], when the system gives no random numbers.
pub fn new_hub_id() -> Result<String, IdentityError> {
    Ok(BASE32.encode(&random::<10>()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_kubernetes_refuses_are_refused() {
        for good in ["a", "eu-3", "eu.west-1.example", "0"] {
            assert!(is_cluster_name(good), "{good}");
        }
        let long = "a.".repeat(32) + "a";
        for bad in [
            "", "-a", "a-", "a..b", ".a", "a.", "A", "ä", "a/b", "a:b", "a b", "a%2f", "a_b", &long,
        ] {
            assert!(!is_cluster_name(bad), "{bad}");
        }
    }

    #[test]
    fn addresses_have_a_host_and_a_port() {
        for good in ["hub.example:8443", "10.0.0.1:1", "[::1]:8443", "hub:65535"] {
            assert!(is_address(good), "{good}");
        }
        for bad in [
            "",
            "hub",
            "hub:",
            ":1",
            "hub:0",
            "hub:65536",
            "https://hub:1",
            "hub:1/x",
            "a@hub:1",
            "::1",
            "h b:1",
        ] {
            assert!(!is_address(bad), "{bad}");
        }
    }

    #[test]
    fn a_new_hub_id_is_a_hub_id_and_new() {
        let (one, two) = (new_hub_id().unwrap(), new_hub_id().unwrap());
        assert!(is_hub_id(&one) && one.len() == 16);
        assert_ne!(one, two);
    }
}
