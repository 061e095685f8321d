//! Joins a hub: exchanges a token and a key for a certificate.
use std::path::Path;
use std::time::{Duration, SystemTime};

use runnel_proto::model::clip;
use runnel_proto::wire::{CertificateResponse, JoinRequest};
use runnel_transport::grpc::runnel_client::RunnelClient;
use runnel_transport::identity::{JoinString, JoinStringError, MemberKey, PeerCertificate};
use runnel_transport::tls::{Connector, endpoint, join_config};
use rustls::pki_types::CertificateDer;
use tonic::{Code, Status};

use crate::store::{Certificate, Identity, Pending, Store};
use runnel_agent_core::backoff::{CONNECT, Jitter, renew_after};

/// Timeout of one attempt at one address.
const CALL_LIMIT: Duration = Duration::from_secs(30);
/// The longest name of a `MemberCluster`, in bytes.
const NAME_LIMIT: usize = 63;

/// The reason why there is no join string, in one sentence with a hint.
#[derive(Debug, thiserror::Error)]
pub enum JoinFileError {
    /// There is no `--join-string-file`.
    #[error(
        "this agent has not joined a hub yet: give it a join string with --join-string-file (create one with `runnel-hub token create CLUSTER`)"
    )]
    Missing,
    /// The file cannot be read.
    #[error(
        "the join string file {path} cannot be read ({source}) and no identity is stored yet: check --join-string-file"
    )]
    Unreadable {
        /// The file.
        path: String,
        /// The cause.
        source: std::io::Error,
    },
    /// The file does not contain a valid join string.
    #[error("{path}: {source}")]
    Malformed {
        /// The file.
        path: String,
        /// The cause.
        source: JoinStringError,
    },
}

/// The reason why a certificate of the hub cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum CertificateError {
    /// The certificate cannot be parsed.
    #[error("the hub gave an unreadable certificate")]
    Unreadable,
    /// The certificate is for another key.
    #[error("the hub gave a certificate for another key")]
    OtherKey,
    /// The answer contains no CA.
    #[error("the hub sent no CA")]
    NoCa,
}

/// The hub has permanently refused the join.
#[derive(Debug, thiserror::Error)]
#[error("the hub refused the join of cluster {cluster}: {message}")]
pub struct JoinRefused {
    cluster: String,
    message: String,
}

/// Reads the join string.
///
/// # Errors
/// [`JoinFileError`], in one sentence.
pub fn read_join_string(path: Option<&Path>) -> Result<JoinString, JoinFileError> {
    let path = path.ok_or(JoinFileError::Missing)?;
    let shown = || path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|source| JoinFileError::Unreadable {
        path: shown(),
        source,
    })?;
    JoinString::parse(&text).map_err(|source| JoinFileError::Malformed {
        path: shown(),
        source,
    })
}

/// The error of one attempt to join.
#[derive(Debug, thiserror::Error)]
pub enum NotJoined {
    /// The hub has refused this join string permanently.
    #[error(transparent)]
    Refused(#[from] JoinRefused),
    /// A temporary failure, or one that another join string may fix.
    #[error("{0}")]
    Passing(String),
}

/// Joins the hub, and retries until it succeeds. It reads the file again before each retry, because
/// `string` may be mistyped.
///
/// # Errors
/// [`JoinRefused`], if a retry cannot help.
pub async fn join(
    store: &Store,
    file: Option<&Path>,
    mut string: JoinString,
    mut stored: Option<Identity>,
    cluster_uid: &str,
    jitter: &mut Jitter,
) -> Result<Identity, JoinRefused> {
    let mut failures = 0;
    loop {
        let draw = (jitter.draw(), CALL_LIMIT);
        match join_once(store, &string, &mut stored, cluster_uid, draw).await {
            Ok(identity) => return Ok(identity),
            Err(NotJoined::Refused(refused)) => return Err(refused),
            Err(NotJoined::Passing(message)) => {
                failures += 1;
                let delay = CONNECT.jittered(failures, jitter.draw());
                tracing::warn!(cluster = %string.cluster, retry_in = ?delay, "joining the hub failed: {message}");
                tokio::time::sleep(delay).await;
            }
        }
        if let Ok(now) = read_join_string(file) {
            string = now;
        }
    }
}

/// Tries once to join the hub, at each of its addresses with the timeout `limit`, and stores the
/// identity. `cluster_uid` is the uid of the member's `kube-system` namespace.
///
/// The key is stored before it is used, so that a stop in between costs no token. An existing
/// certificate is stored with it, until the hub has accepted the join. `stored` returns the stored
/// identity for the next attempt.
///
/// # Errors
/// [`NotJoined`], which distinguishes permanent and temporary failures.
pub async fn join_once(
    store: &Store,
    join: &JoinString,
    stored: &mut Option<Identity>,
    cluster_uid: &str,
    (draw, limit): (f64, Duration),
) -> Result<Identity, NotJoined> {
    let (before, mut identity) =
        prepared(join, stored.take()).map_err(|error| NotJoined::Passing(error.to_string()))?;
    *stored = Some(before.clone());
    let change = (&before, &mut identity);
    match attempt(store, join, change, cluster_uid, (draw, limit)).await {
        Ok(()) => {
            tracing::info!(cluster = %identity.cluster, hub = %identity.hub, "joined the hub");
            Ok(identity)
        }
        Err(Failed::ForGood(message)) => Err(JoinRefused {
            cluster: join.cluster.clone(),
            message,
        }
        .into()),
        Err(Failed::Passing(message)) => Err(NotJoined::Passing(message)),
    }
}

enum Failed {
    ForGood(String),
    Passing(String),
}

/// Returns the identity to store before the token is used, and the identity of the join. The same
/// token keeps its key, and the seal key survives a change of the hub key.
fn prepared(join: &JoinString, stored: Option<Identity>) -> anyhow::Result<(Identity, Identity)> {
    let begun = stored
        .as_ref()
        .and_then(|stored| match (&stored.certificate, &stored.pending) {
            (None, _) => Some((&stored.token_id, &stored.key)),
            (Some(_), pending) => pending
                .as_ref()
                .map(|pending| (&pending.token_id, &pending.key)),
        });
    let key = match begun.filter(|(token_id, _)| *token_id == join.token.id()) {
        Some((_, key)) => key.clone(),
        None => MemberKey::generate()?.to_pem(),
    };
    let seal_key = match &stored {
        Some(stored) => stored.seal_key.clone(),
        None => {
            let random = ring::rand::generate::<[u8; 32]>(&ring::rand::SystemRandom::new());
            random
                .map_err(|_| anyhow::anyhow!("the system gives no random numbers"))?
                .expose()
                .to_vec()
        }
    };
    let joined = Identity {
        hub: join.hub.clone(),
        addresses: join.addresses.clone(),
        cluster: join.cluster.clone(),
        replaced_cluster: String::new(),
        key: key.clone(),
        seal_key,
        token_id: join.token.id().to_owned(),
        certificate: None,
        pending: None,
    };
    let before = match stored.filter(|stored| stored.certificate.is_some()) {
        Some(stored) => Identity {
            pending: Some(Pending {
                key,
                token_id: joined.token_id.clone(),
            }),
            ..stored
        },
        None => joined.clone(),
    };
    Ok((before, joined))
}

async fn attempt(
    store: &Store,
    join: &JoinString,
    (before, identity): (&Identity, &mut Identity),
    cluster_uid: &str,
    (draw, limit): (f64, Duration),
) -> Result<(), Failed> {
    let passing = |text: &str| Failed::Passing(text.to_owned());
    let unsaved = |_| {
        passing(
            "the identity cannot be stored: the agent needs the rights on Secrets of its own namespace",
        )
    };
    store.save_identity(before).await.map_err(unsaved)?;
    let key =
        MemberKey::from_pem(&identity.key).map_err(|error| Failed::ForGood(error.to_string()))?;
    let certificate_request = key
        .certificate_request()
        .map_err(|error| Failed::Passing(error.to_string()))?;
    let request = JoinRequest {
        cluster: join.cluster.clone(),
        token: join.token.expose().to_owned(),
        certificate_request: certificate_request.into(),
        cluster_uid: cluster_uid.to_owned(),
    };
    let mut last = passing("the join string names no address");
    for address in &join.addresses {
        match call(address, join, request.clone(), limit).await {
            Ok(response) => {
                let replaced_cluster = clip(&response.replaced_cluster, NAME_LIMIT).to_owned();
                let certificate = certificate(response, &key, SystemTime::now(), draw);
                let joined = Identity {
                    certificate: Some(certificate.map_err(|error| passing(&error.to_string()))?),
                    replaced_cluster,
                    ..identity.clone()
                };
                store.save_identity(&joined).await.map_err(unsaved)?;
                *identity = joined;
                return Ok(());
            }
            Err(failed @ Failed::ForGood(_)) => return Err(failed),
            Err(failed @ Failed::Passing(_)) => last = failed,
        }
    }
    Err(last)
}

async fn call(
    address: &str,
    join: &JoinString,
    request: JoinRequest,
    limit: Duration,
) -> Result<CertificateResponse, Failed> {
    let passing = |error: &dyn std::fmt::Display| Failed::Passing(error.to_string());
    let config =
        join_config(join.pin, &join.hub).map_err(|error| Failed::ForGood(error.to_string()))?;
    let endpoint = endpoint(address).map_err(|error| passing(&error))?;
    let attempt = async {
        let channel = endpoint
            .connect_with_connector(Connector::new(config))
            .await;
        let channel = channel.map_err(|error| Failed::Passing(error_chain(&error)))?;
        let response = RunnelClient::new(channel).join(request).await;
        response
            .map(tonic::Response::into_inner)
            .map_err(|status| refusal(&status))
    };
    tokio::time::timeout(limit, attempt)
        .await
        .unwrap_or_else(|_| {
            Err(Failed::Passing(format!(
                "the hub at {address} did not answer"
            )))
        })
}

fn refusal(status: &Status) -> Failed {
    let text = status.message().to_owned();
    match status.code() {
        Code::Unauthenticated | Code::InvalidArgument | Code::PermissionDenied | Code::NotFound => {
            Failed::ForGood(text)
        }
        // Spent and expired tokens are permanent failures. A cluster that is not accepted yet is a
        // temporary one.
        Code::FailedPrecondition if text.contains("accept") => Failed::Passing(text),
        Code::FailedPrecondition => Failed::ForGood(text),
        _ => Failed::Passing(text),
    }
}

/// Parses a certificate that the hub has issued for a key. `draw` determines the time of its
/// renewal, see [`renew_after`].
///
/// # Errors
/// [`CertificateError`], if the certificate is not valid for this key.
pub fn certificate(
    response: CertificateResponse,
    key: &MemberKey,
    now: SystemTime,
    draw: f64,
) -> Result<Certificate, CertificateError> {
    let own = CertificateDer::from(response.certificate.to_vec());
    let read = PeerCertificate::from_der(&own).map_err(|_| CertificateError::Unreadable)?;
    if read.key != key.fingerprint() {
        return Err(CertificateError::OtherKey);
    }
    if response.ca_certificates.is_empty() {
        return Err(CertificateError::NoCa);
    }
    if !read.is_valid_at(now) {
        tracing::warn!(
            "this machine's clock is wrong: by it, the certificate that the hub has just issued is not valid now"
        );
    }
    let lifetime = read.remaining_validity(now);
    let cas = response
        .ca_certificates
        .into_iter()
        .map(|der| CertificateDer::from(der.to_vec()))
        .collect();
    Ok(Certificate {
        own,
        ca_certificates: cas,
        renew_at: now + renew_after(lifetime, draw),
    })
}

/// Returns an error with its causes, in one line. tonic's own text is only "transport error".
pub fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text = if text == "transport error" {
                inner_text
            } else {
                format!("{text}: {inner_text}")
            };
        }
        cause = inner.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use runnel_transport::identity::{Ca, Token, new_hub_id};

    fn string(hub: &str, ca: &Ca) -> JoinString {
        JoinString {
            addresses: vec!["hub:8443".to_owned()],
            hub: hub.to_owned(),
            cluster: "eu-1".to_owned(),
            token: Token::generate().unwrap(),
            pin: ca.pin(),
        }
    }

    #[test]
    fn certificate_stays_until_new_join_is_accepted() {
        let hub = new_hub_id().unwrap();
        let ca = Ca::generate(&hub, SystemTime::now()).unwrap();
        let first = string(&hub, &ca);
        let (before, joined) = prepared(&first, None).unwrap();
        assert!(before.certificate.is_none() && before.key == joined.key);
        // The agent was stopped before the hub answered.
        let (_, again) = prepared(&first, Some(before.clone())).unwrap();
        assert_eq!(
            (again.key, again.seal_key),
            (joined.key.clone(), joined.seal_key.clone())
        );
        // After a refused first join and with another join string, only the seal key is kept.
        let (other, _) = prepared(&string(&hub, &ca), Some(before)).unwrap();
        assert!(other.key != joined.key && other.seal_key == joined.seal_key);

        let own = CertificateDer::from(vec![1, 2, 3]);
        let certificate = Certificate {
            own,
            ca_certificates: vec![ca.certificate().clone()],
            renew_at: SystemTime::now(),
        };
        let joined = Identity {
            certificate: Some(certificate.clone()),
            ..joined
        };
        let second = string(&hub, &ca);
        let (before, again) = prepared(&second, Some(joined.clone())).unwrap();
        assert_eq!(
            (&before.key, &before.token_id),
            (&joined.key, &joined.token_id)
        );
        assert_eq!(
            before.certificate.as_ref().map(|kept| &kept.own),
            Some(&certificate.own)
        );
        assert!(
            again.certificate.is_none()
                && again.key != joined.key
                && again.token_id == second.token.id()
        );
        assert_eq!(
            before.pending.as_ref().map(|pending| &pending.key),
            Some(&again.key)
        );
        let (_, retried) = prepared(&second, Some(before.clone())).unwrap();
        assert_eq!(retried.key, again.key);
        // A third string gets a new key, with the same certificate.
        let (before, third) = prepared(&string(&hub, &ca), Some(before)).unwrap();
        assert!(third.key != again.key && before.key == joined.key && before.certificate.is_some());
    }

    #[test]
    fn clock_that_is_wrong_does_not_renew_without_end() {
        let hub = new_hub_id().unwrap();
        let now = SystemTime::now();
        let (day, lifetime) = (Duration::from_secs(86_400), Duration::from_secs(3600));
        let ca = Ca::generate(&hub, now).unwrap();
        let key = MemberKey::generate().unwrap();
        let request = key.certificate_request().unwrap();
        let signed = ca
            .sign_member(&request, &hub, "eu-1", "uid", now, lifetime)
            .unwrap();
        for here in [now, now + day, now - day] {
            let cas = vec![ca.certificate().to_vec().into()];
            let response = CertificateResponse {
                certificate: signed.der.to_vec().into(),
                ca_certificates: cas,
                replaced_cluster: String::new(),
            };
            let renew_at = certificate(response, &key, here, 0.5).unwrap().renew_at;
            let after = renew_at.duration_since(here).unwrap();
            assert!(after > lifetime / 3 && after < lifetime, "{after:?}");
        }
    }
}
