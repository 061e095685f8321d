//! Tokens, keys and certificates of members. This module only decides; [`crate::join`] writes.
use std::sync::Arc;
use std::time::Duration;

use runnel_api::{MemberCluster, MemberRecord, MemberRecordSpec, NO_RECORD};

pub mod attempts;
pub mod decide;
pub mod departures;
pub mod keys;
pub mod tokens;

/// The lifetimes of the certificates of members.
#[derive(Clone, Copy, Debug)]
pub struct CertificateLifetimes {
    /// The validity of a certificate; the agent renews it at half of that.
    pub certificate: Duration,
    /// The time after its end for which it can still be renewed.
    pub expired_renewal: Duration,
}

impl Default for CertificateLifetimes {
    fn default() -> Self {
        let day = Duration::from_secs(24 * 60 * 60);
        Self {
            certificate: day,
            expired_renewal: 30 * day,
        }
    }
}

/// A `MemberCluster` with its record.
#[derive(Clone, Debug)]
pub struct Member {
    /// The `MemberCluster`.
    pub cluster: Arc<MemberCluster>,
    /// The record for exactly this `MemberCluster`.
    stored: Option<Arc<MemberRecord>>,
}

impl Member {
    /// Joins the two objects. A record that names another uid does not count: it is of a `MemberCluster` that had this name
    /// before, and its deletion has revoked its keys.
    pub fn new(cluster: Arc<MemberCluster>, record: Option<Arc<MemberRecord>>) -> Self {
        let uid = cluster.metadata.uid.as_deref().unwrap_or_default();
        let stored = record.filter(|record| record.spec.member_uid == uid);
        Self { cluster, stored }
    }

    /// Returns the keys, tokens and pending removals: none, if there is no record.
    pub fn record(&self) -> &MemberRecordSpec {
        self.stored
            .as_ref()
            .map_or(&NO_RECORD, |stored| &stored.spec)
    }

    /// Returns the object of the record.
    pub fn stored(&self) -> Option<&MemberRecord> {
        self.stored.as_deref()
    }
}
