//! The hub's identity in its Secret, and the certificate that it serves with.
mod stored;

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use k8s_openapi::api::core::v1::Secret;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use ring::rand::{SecureRandom, SystemRandom};
use runnel_proto::identity::{IdentityError, new_hub_id};
use runnel_proto::tls::{ServerTls, TlsError};
use tokio_util::sync::CancellationToken;

use stored::{Data, Fresh};
pub use stored::{HubIdentity, StoredError};

/// The Secret that holds the hub's identity: back it up, as every member trusts what is in it.
pub const IDENTITY_SECRET: &str = "runnel-hub-identity";
/// How long the hub's serving certificate lives; it is made anew at half of it.
const SERVING_LIFE: Duration = Duration::from_secs(24 * 60 * 60);
/// A machine may sleep without its timers noticing, so the clock is looked at this often.
const SERVING_CHECK: Duration = Duration::from_secs(10 * 60);
/// A call to the API server that takes longer is given up.
const CALL_LIMIT: Duration = Duration::from_secs(15);
/// Two processes may write the Secret at once; each try starts from what is there.
const TRIES: usize = 5;

/// Why the API server did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// It answered with an error, or not at all.
    #[error("cannot {action}: {source}")]
    Kube {
        /// What was tried.
        action: String,
        /// The answer.
        source: Box<kube::Error>,
    },
    /// It took too long.
    #[error("cannot {action}: the API server did not answer within {} seconds", CALL_LIMIT.as_secs())]
    Timeout {
        /// What was tried.
        action: String,
    },
}

impl ApiError {
    /// The API server's own answer, if there was one.
    pub(crate) fn status(&self) -> Option<&kube::core::Status> {
        match self {
            Self::Kube { source, .. } => match source.as_ref() {
                kube::Error::Api(status) => Some(status),
                _ => None,
            },
            Self::Timeout { .. } => None,
        }
    }

    pub(crate) fn is_conflict(&self) -> bool {
        self.status().is_some_and(|status| status.code == 409)
    }

    pub(crate) fn is_not_found(&self) -> bool {
        self.status().is_some_and(|status| status.code == 404)
    }
}

/// One call to the API server, within a time limit.
pub(crate) async fn within<T>(
    action: impl Into<String>,
    call: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, ApiError> {
    match tokio::time::timeout(CALL_LIMIT, call).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(source)) => Err(ApiError::Kube { action: action.into(), source: Box::new(source) }),
        Err(_) => Err(ApiError::Timeout { action: action.into() }),
    }
}

/// Why there is no identity.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// May pass by itself.
    #[error("{0}; the hub needs to get, create and update Secrets in its own namespace")]
    Api(#[from] ApiError),
    /// A person must look at the Secret.
    #[error("the Secret {namespace}/{IDENTITY_SECRET} does not hold a usable identity: {source}")]
    Stored {
        /// Where the Secret is.
        namespace: String,
        /// What is wrong with it.
        source: StoredError,
    },
    /// The system gives no random numbers.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// Other processes kept writing.
    #[error("the Secret {namespace}/{IDENTITY_SECRET} is being changed by somebody else all the time")]
    Busy {
        /// Where the Secret is.
        namespace: String,
    },
}

impl AuthorityError {
    /// Whether trying again may help without anybody doing anything.
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::Api(_) | Self::Busy { .. })
    }
}

/// The hub's identity, made where it is missing. Several processes may do so at once and all get the same one.
///
/// # Errors
/// [`AuthorityError`], which tells by `is_passing` whether to try again.
pub async fn load_or_create(client: &Client, namespace: &str) -> Result<HubIdentity, AuthorityError> {
    edit(client, namespace, |_| None).await
}

/// The hub's identity, or `None` where no hub has made one yet. Writes nothing.
///
/// # Errors
/// As [`load_or_create`].
pub async fn load(client: &Client, namespace: &str) -> Result<Option<HubIdentity>, AuthorityError> {
    let api = Api::<Secret>::namespaced(client.clone(), namespace);
    let call = within(format!("read Secret {namespace}/{IDENTITY_SECRET}"), api.get_opt(IDENTITY_SECRET));
    let Some(secret) = call.await? else { return Ok(None) };
    let read = stored::read(&secret.data.unwrap_or_default());
    read.map(Some).map_err(|source| AuthorityError::Stored { namespace: namespace.to_owned(), source })
}

/// The hub's identity with these addresses recorded, so that join strings made later carry them.
///
/// # Errors
/// As [`load_or_create`].
pub async fn advertise(client: &Client, namespace: &str, addresses: &[String]) -> Result<HubIdentity, AuthorityError> {
    edit(client, namespace, |identity| (identity.addresses != addresses).then(|| stored::addresses(addresses))).await
}

/// Makes the Secret whole, and adds what `change` wants, in at most one write.
async fn edit(
    client: &Client,
    namespace: &str,
    change: impl Fn(&HubIdentity) -> Option<Data>,
) -> Result<HubIdentity, AuthorityError> {
    let api = Api::<Secret>::namespaced(client.clone(), namespace);
    let unusable = |source| AuthorityError::Stored { namespace: namespace.to_owned(), source };
    let name = format!("Secret {namespace}/{IDENTITY_SECRET}");
    for _ in 0..TRIES {
        let present = within(format!("read {name}"), api.get_opt(IDENTITY_SECRET)).await?;
        let mut data = present.as_ref().and_then(|secret| secret.data.clone()).unwrap_or_default();
        let missing = stored::missing(&data, fresh()?).map_err(unusable)?;
        let mut changed = !missing.is_empty();
        data.extend(missing);
        let identity = stored::read(&data).map_err(unusable)?;
        if let Some(more) = change(&identity) {
            data.extend(more);
            changed = true;
        }
        if !changed {
            return Ok(identity);
        }
        let identity = stored::read(&data).map_err(unusable)?;
        match write(&api, &name, present, data).await {
            Ok(()) => return Ok(identity),
            // Somebody else wrote, or removed it: begin with what is there now.
            Err(error) if error.is_conflict() || error.is_not_found() && is_gone(&error) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(AuthorityError::Busy { namespace: namespace.to_owned() })
}

/// Whether the answer speaks of the Secret, not of its namespace.
fn is_gone(error: &ApiError) -> bool {
    let kind = error.status().and_then(|status| status.details.as_ref()).map(|details| details.kind.as_str());
    kind == Some("secrets")
}

async fn write(api: &Api<Secret>, name: &str, present: Option<Secret>, data: Data) -> Result<(), ApiError> {
    let params = PostParams { field_manager: Some("runnel-hub".to_owned()), ..PostParams::default() };
    match present {
        // The resourceVersion that was read guards the write.
        Some(secret) => {
            let secret = Secret { data: Some(data), ..secret };
            within(format!("update {name}"), api.replace(IDENTITY_SECRET, &params, &secret)).await.map(drop)
        }
        None => {
            let labels = [("app.kubernetes.io/name", "runnel"), ("app.kubernetes.io/component", "hub")];
            let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
            let secret = Secret {
                metadata: ObjectMeta {
                    name: Some(IDENTITY_SECRET.to_owned()),
                    labels: Some(labels),
                    ..ObjectMeta::default()
                },
                type_: Some("kubernetes.io/tls".to_owned()),
                data: Some(data),
                ..Secret::default()
            };
            within(format!("create {name}"), api.create(&params, &secret)).await.map(drop)
        }
    }
}

fn fresh() -> Result<Fresh, IdentityError> {
    let mut revision_key = [0; 32];
    SystemRandom::new().fill(&mut revision_key).map_err(|_| IdentityError::Crypto)?;
    Ok(Fresh { hub_id: new_hub_id()?, revision_key, now: SystemTime::now() })
}

/// The TLS settings that the hub serves with, and their renewal.
pub struct Serving {
    identity: Arc<HubIdentity>,
    tls: Arc<ServerTls>,
    renew_at: SystemTime,
}

impl Serving {
    /// Makes a serving certificate.
    ///
    /// # Errors
    /// [`TlsError`], when the authority cannot sign, as when its own time is over.
    pub fn new(identity: Arc<HubIdentity>) -> Result<Self, TlsError> {
        let now = SystemTime::now();
        let pair = identity.authority.sign_hub(&identity.hub_id, now, SERVING_LIFE)?;
        let renew_at = half_way(now, pair.not_after);
        let tls = Arc::new(ServerTls::new(&[identity.authority.certificate().clone()], pair)?);
        Ok(Self { identity, tls, renew_at })
    }

    /// For the listener.
    pub fn tls(&self) -> Arc<ServerTls> {
        self.tls.clone()
    }

    /// Makes a new certificate at half of each one's life, until `shutdown`. Live connections are not touched.
    ///
    /// # Errors
    /// [`TlsError`], when the authority can sign no more.
    pub async fn run(mut self, shutdown: CancellationToken) -> Result<(), TlsError> {
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                () = tokio::time::sleep(SERVING_CHECK) => {}
            }
            let now = SystemTime::now();
            if now < self.renew_at {
                continue;
            }
            let identity = &self.identity;
            let pair = identity.authority.sign_hub(&identity.hub_id, now, SERVING_LIFE)?;
            self.renew_at = half_way(now, pair.not_after);
            self.tls.set(&[identity.authority.certificate().clone()], pair)?;
            tracing::info!("the hub serves with a new certificate");
        }
    }
}

fn half_way(from: SystemTime, to: SystemTime) -> SystemTime {
    from + to.duration_since(from).unwrap_or_default() / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renewal_is_at_half_life() {
        let from = SystemTime::UNIX_EPOCH;
        assert_eq!(half_way(from, from + Duration::from_secs(10)), from + Duration::from_secs(5));
        assert_eq!(half_way(from + Duration::from_secs(1), from), from + Duration::from_secs(1));
    }
}
