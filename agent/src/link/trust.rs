//! Updates the hub's CAs when they change.
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use runnel_transport::tls::{UNTRUSTED, is_signed_by};
use rustls::pki_types::CertificateDer;

use super::ended::StreamEnd;
use super::handover::StreamReplacement;
use super::{Link, connector};
use crate::store::{Certificate, Identity};

/// Time in which the members renew after the hub got a new CA, so that not all renew at
/// once.
const SPREAD: Duration = Duration::from_secs(600);

impl Link {
    /// Applies the CAs that the hub sent, after a renewal under way. That renewal stores
    /// the identity itself.
    pub(super) async fn trust(
        &mut self,
        swap: StreamReplacement,
        reported: &mut Option<Vec<Bytes>>,
    ) -> StreamReplacement {
        if matches!(swap, StreamReplacement::Renewing(_)) {
            return swap;
        }
        let Some(cas) = reported.take() else {
            return swap;
        };
        let due = self.renews_at();
        self.trust_in(cas).await;
        match swap {
            StreamReplacement::Renew(_) if self.renews_at() != due => self.swap(),
            swap => swap,
        }
    }

    /// Trusts these CAs, and renews soon if the first of them did not sign the current
    /// certificate.
    async fn trust_in(&mut self, cas: Vec<Bytes>) {
        let Some(present) = self.identity.certificate.clone() else {
            return;
        };
        let cas: Vec<_> = cas
            .iter()
            .map(|der| CertificateDer::from(der.to_vec()))
            .collect();
        let Some(first) = cas.first() else {
            return;
        };
        let mut next = Certificate {
            ca_certificates: cas.clone(),
            ..present.clone()
        };
        if !is_signed_by(&present.own, first) {
            let within = SPREAD
                .min(self.remaining_validity() / 10)
                .mul_f64(self.jitter.draw());
            next.renew_at = next.renew_at.min(SystemTime::now() + within);
        }
        if next.ca_certificates == present.ca_certificates && next.renew_at == present.renew_at {
            return;
        }
        let next = Identity {
            certificate: Some(next),
            ..self.identity.clone()
        };
        // Unusable CAs must not replace working ones.
        if let Err(error) = connector(&next) {
            tracing::warn!(%error, "the hub sent CAs that cannot be used: continuing with the former ones");
            return;
        }
        if self.store.save_identity(&next).await.is_err() {
            tracing::warn!("the hub's new CAs cannot be stored yet: the next renewal stores them");
        }
        tracing::info!("the hub's CAs have changed: there are {}", cas.len());
        self.identity = next;
    }

    /// Joins again if the agent does not trust its hub, or the hub refuses it, and there is a new
    /// join string.
    pub(super) async fn unwanted(&mut self, ended: StreamEnd) -> StreamEnd {
        let helps = match &ended {
            StreamEnd::Failed(text) => text.contains(UNTRUSTED),
            StreamEnd::Refused(_) | StreamEnd::Revoked(_) => true,
            _ => false,
        };
        if helps {
            self.rejoin(ended)
                .await
                .unwrap_or(StreamEnd::Planned(Duration::ZERO))
        } else {
            ended
        }
    }

    /// Returns when the next certificate is requested.
    pub(super) fn renews_at(&self) -> Option<SystemTime> {
        self.identity
            .certificate
            .as_ref()
            .map(|certificate| certificate.renew_at)
    }
}
