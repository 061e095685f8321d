//! Renews the certificate: around half of its lifetime, and after its expiry.
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use runnel_proto::wire::RenewRequest;
use runnel_transport::grpc::runnel_client::RunnelClient;
use runnel_transport::identity::{JoinString, MemberKey};
use tonic::Status;
use tonic::transport::Channel;

use super::ended::{StreamEnd, from_connect_error};
use super::history_token::with_history_token;
use super::{FIRST_FRAME, Link, LinkEvent, channel, client, connector};
use crate::join::{self, NotJoined};
use crate::store::{Identity, Store};

/// Timeout of one attempt to join again at one address. The agent does not try the old stream
/// meanwhile.
const JOIN_LIMIT: Duration = Duration::from_secs(10);

/// The error of a renewal.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotRenewed {
    /// The hub refused the renewal.
    #[error("{}", .0.message())]
    Refused(Status),
    /// Any other failure.
    #[error("{0}")]
    Failed(String),
}

impl Link {
    /// Renews an expired certificate. The hub allows this for a while after the expiry. Later, the
    /// agent needs a new join string.
    ///
    /// Returns the end of the attempt if it failed.
    pub(super) async fn expired(
        &mut self,
        address: &str,
        reported_by_hub: bool,
    ) -> Option<StreamEnd> {
        // The local clock is not evidence: if it is ahead, every certificate has expired.
        if !reported_by_hub {
            return None;
        }
        tracing::info!(cluster = %self.identity.cluster, "the certificate has expired: renewing it");
        let channel = match channel(&self.identity, address).await {
            Ok(connected) => connected.channel,
            Err(ended) => return Some(ended),
        };
        match Renewal::of(self)
            .request_certificate(client(channel))
            .await
            .map(|renewed| self.identity = renewed)
        {
            Ok(()) => None,
            Err(NotRenewed::Refused(status)) => {
                let ended = from_connect_error(&status);
                if matches!(ended, StreamEnd::Revoked(_)) {
                    let _ = self.events.send(LinkEvent::Revoked).await;
                }
                Some(ended)
            }
            Err(NotRenewed::Failed(text)) => Some(StreamEnd::Failed(format!(
                "the certificate has expired: {text}"
            ))),
        }
    }

    /// Joins with a new join string, if there is one. Only if the existing identity does not work,
    /// because a join replaces the old key.
    pub(super) async fn rejoin(&mut self, ended: StreamEnd) -> Option<StreamEnd> {
        let string = join::read_join_string(self.join_file.as_deref()).ok();
        let is_new = |string: &JoinString| string.token.id() != self.identity.token_id;
        let Some(string) = string.filter(is_new) else {
            return Some(ended);
        };
        if string.hub != self.identity.hub {
            tracing::warn!(
                "the join string is that of another hub, and is not used: to leave this one for good, remove tls.crt from \
                 the Secret {} and restart the agent",
                crate::store::IDENTITY_SECRET
            );
            return Some(ended);
        }
        tracing::info!(cluster = %string.cluster, "joining again, with the new join string");
        // One attempt only: the hub may accept this agent again, or a person may correct the join
        // string.
        let mut stored = Some(self.identity.clone());
        let joined = join::join_once(
            &self.store,
            &string,
            &mut stored,
            &self.cluster_uid,
            (self.jitter.draw(), JOIN_LIMIT),
        )
        .await;
        match (joined, stored) {
            (Ok(identity), _) => {
                let is_renamed = identity.cluster != self.identity.cluster;
                self.identity = identity;
                // Copies name the MemberCluster, so every task must have the new name.
                is_renamed.then_some(StreamEnd::Over)
            }
            // The stored identity keeps the key that the token may already be used with.
            (Err(error), kept) => {
                self.identity = kept.unwrap_or_else(|| self.identity.clone());
                match error {
                    NotJoined::Refused(refused) => Some(StreamEnd::Refused(refused.to_string())),
                    NotJoined::Passing(message) => {
                        tracing::warn!(cluster = %string.cluster, "joining again failed: {message}");
                        Some(ended)
                    }
                }
            }
        }
    }
}

/// The input of a renewal. The stream continues meanwhile.
pub(super) struct Renewal {
    identity: Identity,
    store: Store,
    /// The hub's history token. With it, a hub that has forgotten the agent revokes nothing.
    history_token: Option<Bytes>,
    /// The random number that determines the time of the next renewal.
    draw: f64,
}

impl Renewal {
    pub(super) fn of(link: &mut Link) -> Self {
        let (identity, store, history_token) = (
            link.identity.clone(),
            link.store.clone(),
            link.history_token.newest(),
        );
        Self {
            identity,
            store,
            history_token,
            draw: link.jitter.draw(),
        }
    }

    /// Gets a certificate for a new key, and stores both before they are used.
    pub(super) async fn request_certificate(
        self,
        mut client: RunnelClient<Channel>,
    ) -> Result<Identity, NotRenewed> {
        let failed = |error: &dyn std::fmt::Display| NotRenewed::Failed(error.to_string());
        let key = MemberKey::generate().map_err(|error| failed(&error))?;
        let request = key.certificate_request().map_err(|error| failed(&error))?;
        let request = RenewRequest {
            certificate_request: request.into(),
        };
        let call = tokio::time::timeout(
            FIRST_FRAME,
            client.renew(with_history_token(self.history_token.as_ref(), request)),
        )
        .await;
        let call = call.map_err(|_| failed(&"the hub did not answer"))?;
        let response = call.map_err(NotRenewed::Refused)?.into_inner();
        let certificate = join::certificate(response, &key, SystemTime::now(), self.draw)
            .map_err(|text| failed(&text))?;
        let renewed = Identity {
            key: key.to_pem(),
            certificate: Some(certificate),
            ..self.identity
        };
        // A certificate that is unusable or not stored must not replace a working one.
        connector(&renewed).map_err(|error| failed(&error))?;
        self.store
            .save_identity(&renewed)
            .await
            .map_err(|_| failed(&"the new one cannot be stored"))?;
        Ok(renewed)
    }
}
