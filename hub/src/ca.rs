//! The hub's identity in its Secret, and the CAs that members trust while
//! one CA replaces another.
mod ca_rotator;
mod overlap;
mod secrets;
mod stored;

use std::time::{Duration, SystemTime};

use crate::call::{ApiError, FIELD_MANAGER, with_timeout};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use ring::rand::{SecureRandom, SystemRandom};
use runnel_transport::identity::{CA_LIFETIME, IdentityError, new_hub_id};

pub use ca_rotator::{CaRotator, HubCas, Parts};
pub use overlap::TrustedCas;
use stored::{Data, Fresh};
pub use stored::{HubIdentity, StoredError};

/// Name of the Secret with the hub's identity. Back it up, because every member trusts its CA.
pub const IDENTITY_SECRET: &str = "runnel-hub-identity";
/// Name of the Secret with the CAs that members may trust, and the serving certificates that former
/// CAs signed. The leader writes it.
pub const CA_BUNDLE_SECRET: &str = "runnel-hub-ca-bundle";
/// The only key in the data of [`CA_BUNDLE_SECRET`].
const CA_BUNDLE_ENTRY: &str = "ca-bundle.json";
/// The limit of attempts at a write. Two processes may write the Secret at once; each attempt
/// starts from the current state.
const TRIES: usize = 5;

/// Why the identity cannot be read or created.
#[derive(Debug, thiserror::Error)]
pub enum CaError {
    /// The API server failed. A retry may succeed.
    #[error(
        "{0}; the hub needs to get, list, watch, create, patch and update its two Secrets in its own namespace"
    )]
    Api(#[from] ApiError),
    /// An administrator must repair the Secret.
    #[error(
        "the Secret {namespace}/{IDENTITY_SECRET} does not contain a usable identity: {source}"
    )]
    Stored {
        /// The namespace of the Secret.
        namespace: String,
        /// The cause.
        source: StoredError,
    },
    /// The operating system returned no random numbers.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// Another client changed the Secret before each of the attempts to write it.
    #[error("the Secret {namespace}/{IDENTITY_SECRET} is changed by another client all the time")]
    Busy {
        /// The namespace of the Secret.
        namespace: String,
    },
}

impl CaError {
    /// Whether a retry can help without any change by a user.
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::Api(_) | Self::Busy { .. })
    }
}

/// Reads the hub's identity, and creates it if it is missing. Several processes may do so at once
/// and all get the same one.
///
/// # Errors
/// [`CaError`]; [`CaError::is_passing`] returns whether a retry can help.
pub async fn load_or_create(client: &Client, namespace: &str) -> Result<HubIdentity, CaError> {
    edit(client, namespace, CA_LIFETIME, |_| None).await
}

/// Returns the hub's identity, or `None` if no hub has created one. Writes nothing.
///
/// # Errors
/// As [`load_or_create`].
pub async fn load(client: &Client, namespace: &str) -> Result<Option<HubIdentity>, CaError> {
    let api = Api::<Secret>::namespaced(client.clone(), namespace);
    let call = with_timeout(
        format!("read Secret {namespace}/{IDENTITY_SECRET}"),
        api.get_opt(IDENTITY_SECRET),
    );
    let Some(secret) = call.await? else {
        return Ok(None);
    };
    let read = stored::read(&secret.data.unwrap_or_default());
    read.map(Some).map_err(|source| CaError::Stored {
        namespace: namespace.to_owned(),
        source,
    })
}

/// Records these addresses in the hub's identity and returns it. Later join strings contain them.
///
/// # Errors
/// As [`load_or_create`].
pub async fn advertise(
    client: &Client,
    namespace: &str,
    addresses: &[String],
) -> Result<HubIdentity, CaError> {
    started(client, namespace, addresses, CA_LIFETIME).await
}

/// Returns the hub's identity when a hub starts. Records these addresses, if there are any, and
/// creates a CA with the validity `life` if there is none.
///
/// # Errors
/// As [`load_or_create`].
pub async fn started(
    client: &Client,
    namespace: &str,
    addresses: &[String],
    life: Duration,
) -> Result<HubIdentity, CaError> {
    let others = |identity: &HubIdentity| !addresses.is_empty() && identity.addresses != addresses;
    edit(client, namespace, life, |identity| {
        others(identity).then(|| stored::addresses(addresses))
    })
    .await
}

/// Returns the stored CAs; `None` if the Secret is missing or unreadable.
///
/// # Errors
/// [`ApiError`], when the API server refuses the request or does not answer.
pub async fn stored(client: &Client, namespace: &str) -> Result<Option<TrustedCas>, ApiError> {
    let api = Api::<Secret>::namespaced(client.clone(), namespace);
    let read = with_timeout(
        format!("read Secret {namespace}/{CA_BUNDLE_SECRET}"),
        api.get_opt(CA_BUNDLE_SECRET),
    );
    Ok(read.await?.as_ref().and_then(known_in))
}

fn known_in(secret: &Secret) -> Option<TrustedCas> {
    let cas = secret
        .data
        .as_ref()
        .and_then(|data| TrustedCas::read(&data.get(CA_BUNDLE_ENTRY)?.0));
    if cas.is_none() {
        tracing::warn!(
            secret = CA_BUNDLE_SECRET,
            "the former CAs are not readable and are not trusted any more"
        );
    }
    cas
}

/// Adds the missing entries of the Secret and those that `change` returns, in at most one write.
async fn edit(
    client: &Client,
    namespace: &str,
    life: Duration,
    change: impl Fn(&HubIdentity) -> Option<Data>,
) -> Result<HubIdentity, CaError> {
    let api = Api::<Secret>::namespaced(client.clone(), namespace);
    let unusable = |source| CaError::Stored {
        namespace: namespace.to_owned(),
        source,
    };
    let name = format!("Secret {namespace}/{IDENTITY_SECRET}");
    for _ in 0..TRIES {
        let present = with_timeout(format!("read {name}"), api.get_opt(IDENTITY_SECRET)).await?;
        let mut data = present
            .as_ref()
            .and_then(|secret| secret.data.clone())
            .unwrap_or_default();
        let missing = stored::missing(&data, fresh(life)?).map_err(unusable)?;
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
        match write(&api, IDENTITY, present, data).await {
            Ok(_) => return Ok(identity),
            // Another client wrote or deleted the Secret: start again with the current state.
            Err(error)
                if error.is_conflict() || error.is_not_found() && is_secret_missing(&error) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(CaError::Busy {
        namespace: namespace.to_owned(),
    })
}

/// Whether a 404 answer is about the Secret, and not about its namespace.
fn is_secret_missing(error: &ApiError) -> bool {
    let kind = error
        .status()
        .and_then(|status| status.details.as_ref())
        .map(|details| details.kind.as_str());
    kind == Some("secrets")
}

/// The name and type of one of the hub's own Secrets.
type SecretId = (&'static str, &'static str);
const IDENTITY: SecretId = (IDENTITY_SECRET, "kubernetes.io/tls");
const CA_BUNDLE: SecretId = (CA_BUNDLE_SECRET, "Opaque");

/// Writes the Secret and returns it as the API server stored it.
async fn write(
    api: &Api<Secret>,
    (name, secret_type): SecretId,
    present: Option<Secret>,
    data: Data,
) -> Result<Secret, ApiError> {
    match present {
        // The resourceVersion that was read makes the write fail if the Secret has changed.
        Some(secret) => {
            let secret = Secret {
                data: Some(data),
                ..secret
            };
            let params = PostParams {
                field_manager: Some(FIELD_MANAGER.to_owned()),
                ..PostParams::default()
            };
            with_timeout(
                format!("update Secret {name}"),
                api.replace(name, &params, &secret),
            )
            .await
        }
        None => {
            let labels = [
                ("app.kubernetes.io/name", "runnel"),
                ("app.kubernetes.io/component", "hub"),
            ];
            let labels = labels
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into();
            let secret = Secret {
                metadata: ObjectMeta {
                    name: Some(name.to_owned()),
                    labels: Some(labels),
                    // No object has version 1. With it an apply creates the Secret or fails; it
                    // never merges.
                    resource_version: Some("1".to_owned()),
                    ..ObjectMeta::default()
                },
                type_: Some(secret_type.to_owned()),
                data: Some(data),
                ..Secret::default()
            };
            // An apply request contains the name, so RBAC can limit the right to create to this
            // name.
            let params = PatchParams::apply(FIELD_MANAGER);
            with_timeout(
                format!("create Secret {name}"),
                api.patch(name, &params, &Patch::Apply(&secret)),
            )
            .await
        }
    }
}

fn fresh(life: Duration) -> Result<Fresh, IdentityError> {
    let mut revision_key = [0; 32];
    SystemRandom::new()
        .fill(&mut revision_key)
        .map_err(|_| IdentityError::Crypto)?;
    Ok(Fresh {
        hub_id: new_hub_id()?,
        revision_key,
        now: SystemTime::now(),
        lifetime: life,
    })
}
