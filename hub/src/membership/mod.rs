//! What a member needs to be let in: tokens, keys and certificates. Decides only; [`crate::join`] writes.
use std::time::Duration;

pub mod attempts;
pub mod decide;
pub mod keys;
pub mod tokens;

/// How long what a member gets is good.
#[derive(Clone, Copy, Debug)]
pub struct CertificateLifetimes {
    /// How long a certificate lives; the agent renews it at half of that.
    pub certificate: Duration,
    /// How long after its end it can still be renewed.
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
