//! The hub's identity in its Secret, and the authorities that members rely on while one replaces another.
mod ca_rotator;
mod overlap;
mod secrets;
mod stored;

use std::time::{Duration, SystemTime};

use crate::call::{ApiError, FIELD_MANAGER, within};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use ring::rand::{SecureRandom, SystemRandom};
use runnel_transport::identity::{AUTHORITY_LIFE, IdentityError, new_hub_id};

pub use ca_rotator::{Authorities, CaRotator, Parts};
pub use overlap::TrustedAuthorities;
use stored::{Data, Fresh};
pub use stored::{HubIdentity, StoredError};

/// The Secret that holds the hub's identity: back it up, as every member trusts what is in it.
pub const IDENTITY_SECRET: &str = "runnel-hub-identity";
/// The Secret that holds the authorities that members may rely on, and what serves those that rely on a former one. Written
/// by the replica that leads.
pub const AUTHORITIES_SECRET: &str = "runnel-hub-authorities";
/// The only entry of [`AUTHORITIES_SECRET`].
const AUTHORITIES_ENTRY: &str = "authorities.json";
/// Two processes may write the Secret at once; each try starts from what is there.
const TRIES: usize = 5;

/// Why there is no identity.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// May pass by itself.
    #[error(
        "{0}; the hub needs to get, list, watch, create, patch and update its two Secrets in its own namespace"
    )]
    Api(#[from] ApiError),
    /// An administrator must repair the Secret.
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
    #[error("the Secret {namespace}/{IDENTITY_SECRET} is changed by another client all the time")]
    Busy {
        /// Where the Secret is.
        namespace: String,
    },
}

impl AuthorityError {
    /// Whether a retry can help without any change by a user.
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::Api(_) | Self::Busy { .. })
    }
}

/// Reads the hub's identity, and creates it if it is missing. Several processes may do so at once
/// and all get the same one.
///
/// # Errors
/// [`AuthorityError`]; its `is_passing` shows whether a retry can help.
pub async fn load_or_create(
    client: &Client,
    namespace: &str,
) -> Result<HubIdentity, AuthorityError> {
    edit(client, namespace, AUTHORITY_LIFE, |_| None).await
}

/// The hub's identity, or `None` where no hub has made one yet. Writes nothing.
///
/// # Errors
/// As [`load_or_create`].
pub async fn load(client: &Client, namespace: &str) -> Result<Option<HubIdentity>, AuthorityError> {
    let api = Api::<Secret>::namespaced(client.clone(), namespace);
    let call = within(
        format!("read Secret {namespace}/{IDENTITY_SECRET}"),
        api.get_opt(IDENTITY_SECRET),
    );
    let Some(secret) = call.await? else {
        return Ok(None);
    };
    let read = stored::read(&secret.data.unwrap_or_default());
    read.map(Some).map_err(|source| AuthorityError::Stored {
        namespace: namespace.to_owned(),
        source,
    })
}

/// The hub's identity with these addresses recorded, so that join strings made later carry them.
///
/// # Errors
/// As [`load_or_create`].
pub async fn advertise(
    client: &Client,
    namespace: &str,
    addresses: &[String],
) -> Result<HubIdentity, AuthorityError> {
    started(client, namespace, addresses, AUTHORITY_LIFE).await
}

/// The hub's identity when a hub starts: with these addresses recorded, if there are any, and an authority that lives for
/// this long, if there is none.
///
/// # Errors
/// As [`load_or_create`].
pub async fn started(
    client: &Client,
    namespace: &str,
    addresses: &[String],
    life: Duration,
) -> Result<HubIdentity, AuthorityError> {
    let others = |identity: &HubIdentity| !addresses.is_empty() && identity.addresses != addresses;
    edit(client, namespace, life, |identity| {
        others(identity).then(|| stored::addresses(addresses))
    })
    .await
}

/// The authorities that were written down, if they were and can be read.
///
/// # Errors
/// [`ApiError`], when the API server does not answer or refuses.
pub async fn known(
    client: &Client,
    namespace: &str,
) -> Result<Option<TrustedAuthorities>, ApiError> {
    let api = Api::<Secret>::namespaced(client.clone(), namespace);
    let read = within(
        format!("read Secret {namespace}/{AUTHORITIES_SECRET}"),
        api.get_opt(AUTHORITIES_SECRET),
    );
    Ok(read.await?.as_ref().and_then(known_in))
}

fn known_in(secret: &Secret) -> Option<TrustedAuthorities> {
    let known = secret
        .data
        .as_ref()
        .and_then(|data| TrustedAuthorities::read(&data.get(AUTHORITIES_ENTRY)?.0));
    if known.is_none() {
        tracing::warn!(
            secret = AUTHORITIES_SECRET,
            "the former authorities are not readable: they count no more"
        );
    }
    known
}

/// Completes the Secret and adds what `change` returns, in at most one write.
async fn edit(
    client: &Client,
    namespace: &str,
    life: Duration,
    change: impl Fn(&HubIdentity) -> Option<Data>,
) -> Result<HubIdentity, AuthorityError> {
    let api = Api::<Secret>::namespaced(client.clone(), namespace);
    let unusable = |source| AuthorityError::Stored {
        namespace: namespace.to_owned(),
        source,
    };
    let name = format!("Secret {namespace}/{IDENTITY_SECRET}");
    for _ in 0..TRIES {
        let present = within(format!("read {name}"), api.get_opt(IDENTITY_SECRET)).await?;
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
            // Another client wrote or deleted it: start again with the current state.
            Err(error) if error.is_conflict() || error.is_not_found() && is_gone(&error) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(AuthorityError::Busy {
        namespace: namespace.to_owned(),
    })
}

/// Whether the answer is about the Secret, and not about its namespace.
fn is_gone(error: &ApiError) -> bool {
    let kind = error
        .status()
        .and_then(|status| status.details.as_ref())
        .map(|details| details.kind.as_str());
    kind == Some("secrets")
}

/// One of the hub's own Secrets: its name and type.
type Own = (&'static str, &'static str);
const IDENTITY: Own = (IDENTITY_SECRET, "kubernetes.io/tls");
const AUTHORITIES: Own = (AUTHORITIES_SECRET, "Opaque");

/// Returns the Secret as it was written.
async fn write(
    api: &Api<Secret>,
    (name, secret_type): Own,
    present: Option<Secret>,
    data: Data,
) -> Result<Secret, ApiError> {
    match present {
        // The resourceVersion that was read guards the write.
        Some(secret) => {
            let secret = Secret {
                data: Some(data),
                ..secret
            };
            let params = PostParams {
                field_manager: Some(FIELD_MANAGER.to_owned()),
                ..PostParams::default()
            };
            within(
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
                    // No object has this version: with it an apply creates or fails, and never merges into what is there.
                    resource_version: Some("1".to_owned()),
                    ..ObjectMeta::default()
                },
                type_: Some(secret_type.to_owned()),
                data: Some(data),
                ..Secret::default()
            };
            // An apply names what it creates, so that the right to create can be limited to this name.
            let params = PatchParams::apply(FIELD_MANAGER);
            within(
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
        life,
    })
}
