//! Tokens, keys and certificates of members. This module only decides; [`crate::join`] writes.
use std::time::Duration;

pub mod attempts;
pub mod decide;
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
