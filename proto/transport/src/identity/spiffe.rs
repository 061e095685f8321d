//! SPIFFE ids, compared as a whole.
use std::fmt;

use super::IdentityError;
use super::names::{is_cluster_name, is_hub_id, is_uid};

/// The identity in a certificate.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SpiffeId {
    /// `spiffe://<hub id>/hub`
    Hub {
        /// The hub's id.
        hub_id: String,
    },
    /// `spiffe://<hub id>/cluster/<name>/<uid>`
    Cluster {
        /// The hub's id.
        hub_id: String,
        /// Name of the `MemberCluster`.
        cluster: String,
        /// Uid of the `MemberCluster`; a cluster re-created under its old name is another.
        uid: String,
    },
}

impl SpiffeId {
    /// The hub's own name.
    ///
    /// # Errors
    /// [`IdentityError::SpiffeId`], when the id could be read as something else.
    pub fn hub(hub_id: &str) -> Result<Self, IdentityError> {
        Self::Hub {
            hub_id: hub_id.to_owned(),
        }
        .checked()
    }

    /// A member's name.
    ///
    /// # Errors
    /// [`IdentityError::SpiffeId`], when a part could be read as something else.
    pub fn cluster(hub_id: &str, cluster: &str, uid: &str) -> Result<Self, IdentityError> {
        Self::Cluster {
            hub_id: hub_id.to_owned(),
            cluster: cluster.to_owned(),
            uid: uid.to_owned(),
        }
        .checked()
    }

    /// Reads exactly what [`fmt::Display`] writes.
    ///
    /// # Errors
    /// [`IdentityError::SpiffeId`], for any other text.
    pub fn parse(text: &str) -> Result<Self, IdentityError> {
        let path = text
            .strip_prefix("spiffe://")
            .ok_or(IdentityError::SpiffeId)?;
        let parts: Vec<&str> = path.split('/').collect();
        match parts[..] {
            [hub_id, "hub"] => Self::hub(hub_id),
            [hub_id, "cluster", cluster, uid] => Self::cluster(hub_id, cluster, uid),
            _ => Err(IdentityError::SpiffeId),
        }
    }

    /// The id of the hub that the name belongs to.
    pub fn hub_id(&self) -> &str {
        match self {
            Self::Hub { hub_id } | Self::Cluster { hub_id, .. } => hub_id,
        }
    }

    fn checked(self) -> Result<Self, IdentityError> {
        let usable = match &self {
            Self::Hub { hub_id } => is_hub_id(hub_id),
            Self::Cluster {
                hub_id,
                cluster,
                uid,
            } => is_hub_id(hub_id) && is_cluster_name(cluster) && is_uid(uid),
        };
        if usable {
            Ok(self)
        } else {
            Err(IdentityError::SpiffeId)
        }
    }
}

impl fmt::Display for SpiffeId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hub { hub_id } => write!(out, "spiffe://{hub_id}/hub"),
            Self::Cluster {
                hub_id,
                cluster,
                uid,
            } => write!(out, "spiffe://{hub_id}/cluster/{cluster}/{uid}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_exact_names_are_read() {
        let member = "spiffe://h/cluster/eu-3/1f-2";
        assert_eq!(
            SpiffeId::parse(member),
            SpiffeId::cluster("h", "eu-3", "1f-2")
        );
        assert_eq!(SpiffeId::parse("spiffe://h/hub"), SpiffeId::hub("h"));
        for bad in [
            "",
            "spiffe://",
            "spiffe://h",
            "spiffe://h/",
            "spiffe:///hub",
            "spiffe://h/hub/",
            "spiffe://h/HUB",
            "SPIFFE://h/hub",
            "https://h/hub",
            "spiffe://h/hub?x",
            "spiffe://h:1/hub",
            "spiffe://a@h/hub",
            "spiffe://h/cluster/eu-3",
            "spiffe://h/cluster/eu-3/",
            "spiffe://h/cluster//1f",
            "spiffe://h/cluster/eu-3/1f/x",
            "spiffe://h/cluster/eu-3/1f#x",
            "spiffe://h/cluster/EU-3/1f",
            "spiffe://h/cluster/eu%2d3/1f",
            "spiffe://h/cluster/eü-3/1f",
            " spiffe://h/hub",
            "spiffe://h/hub\n",
        ] {
            assert_eq!(
                SpiffeId::parse(bad),
                Err(IdentityError::SpiffeId),
                "{bad:?}"
            );
        }
    }

    fn part() -> impl Strategy<Value = String> {
        prop_oneof![
            "[ab/:.%]{0,6}",
            "(a|b|-|cluster|hub|/|//|spiffe:){0,4}",
            "[a-b]{1,2}",
            any::<String>(),
            Just("a/cluster/b".to_owned()),
            "(c|C|\u{441}|\u{ff43}|c\u{301})(1|10|1/|1:|1%30|1\u{660}|%31|1\\.|1 )?",
            Just("A".to_owned()),
            Just("\u{430}".to_owned()),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]

        #[test]
        fn two_names_never_cross(a in (part(), part(), part()), b in (part(), part(), part())) {
            let one = SpiffeId::cluster(&a.0, &a.1, &a.2);
            let two = SpiffeId::cluster(&b.0, &b.1, &b.2);
            if let Ok(one) = &one {
                let read = SpiffeId::parse(&one.to_string());
                prop_assert_eq!(read.as_ref(), Ok(one));
                prop_assert!([&a.0, &a.1, &a.2].iter().all(|part| !part.contains(['/', ':', '%'])));
            }
            if let (Ok(one), Ok(two)) = (one, two) {
                prop_assert_eq!(one.to_string() == two.to_string(), a == b);
            }
            if let Ok(hub) = SpiffeId::hub(&b.0) {
                let read = SpiffeId::parse(&hub.to_string());
                prop_assert_eq!(read, Ok(hub));
            }
        }

        #[test]
        fn read_identity_is_written_the_same(text in part()) {
            let text = format!("spiffe://{text}");
            if let Ok(id) = SpiffeId::parse(&text) {
                prop_assert_eq!(id.to_string(), text);
            }
        }
    }
}
