//! The agent's own two Secrets: its identity, and the terms of its rules. Neither is ever logged.
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use data_encoding::BASE64;
use futures::future::BoxFuture;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use runnel_proto::model::{Revision, SourceRef, Terms, TermsDigest};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::call::with_timeout;
use runnel_agent_core::classify::CallError;
use runnel_agent_core::desired::{FinishedCopy, StoredRule, Tombstones};

/// The Secret with the identity of the agent.
pub const IDENTITY_SECRET: &str = "runnel-agent-identity";
/// The Secret with the terms of the rules.
pub const TERMS_SECRET: &str = "runnel-agent-terms";
/// Field manager of the Secrets. It differs from the one of copies, so that the Secrets never look
/// like copies.
const MANAGER: &str = "runnel-agent-store";
/// Field manager of the history token. It differs from the one of the identity, whose applies would
/// otherwise remove the token.
const HISTORY_TOKEN_MANAGER: &str = "runnel-agent-history-token";
/// Key of the hub's history token in the identity's Secret.
const HISTORY_TOKEN: &str = "hub-history-token";
/// Limit of the size of the stored terms after decompression, in bytes.
const TERMS_LIMIT: usize = 64 * 1024 * 1024;
/// Limit of the size of the stored terms, in bytes: an API server accepts about 1 MiB for a Secret.
const TERMS_SIZE: usize = 1_000_000;

/// A write of a Secret under way.
pub type StoreFuture = BoxFuture<'static, Result<(), CallError>>;

/// The identity of the agent. Without `Debug`: it contains keys.
#[derive(Clone)]
pub struct Identity {
    /// The hub's id.
    pub hub: String,
    /// The addresses of the hub, `host:port` each.
    pub addresses: Vec<String>,
    /// Name of the `MemberCluster`.
    pub cluster: String,
    /// The `MemberCluster` that this one has replaced, or an empty name.
    pub replaced_cluster: String,
    /// The private key, PEM.
    pub key: String,
    /// The key of the seals. It survives every renewal of the certificate.
    pub seal_key: Vec<u8>,
    /// The id of the token for which the key is or was used.
    pub token_id: String,
    /// The certificate, after the hub has issued it.
    pub certificate: Option<Certificate>,
    /// A join under way. The existing certificate stays until the hub has accepted the join.
    pub pending: Option<Pending>,
}

/// The key and token of a join under way.
#[derive(Clone)]
pub struct Pending {
    /// The private key, PEM.
    pub key: String,
    /// The id of the token.
    pub token_id: String,
}

/// A certificate that the hub has issued.
#[derive(Clone)]
pub struct Certificate {
    /// The agent's own certificate.
    pub own: CertificateDer<'static>,
    /// The hub's CAs.
    pub ca_certificates: Vec<CertificateDer<'static>>,
    /// The time of the next renewal.
    pub renew_at: SystemTime,
}

/// Reads and writes the two Secrets.
#[derive(Clone)]
pub struct Store {
    api: Api<Secret>,
}

#[derive(Serialize, Deserialize)]
struct WrittenTerms {
    hub: String,
    hub_cluster_uid: Option<String>,
    rules: Vec<WrittenRule>,
}

/// Serializes and compresses the terms. If they exceed `size` bytes, no rules are stored.
///
/// An agent without terms changes nothing until it receives its hub's terms. An agent that cannot
/// store at all could not remove copies.
fn packed_terms(mut written: WrittenTerms, size: usize) -> std::io::Result<Vec<u8>> {
    loop {
        let bytes = zstd::bulk::compress(&serde_json::to_vec(&written)?, 3)?;
        if bytes.len() <= size || written.rules.is_empty() {
            return Ok(bytes);
        }
        tracing::warn!(
            rules = written.rules.len(),
            "the terms of so many rules do not fit Secret {TERMS_SECRET}: none is stored"
        );
        written.rules = Vec::new();
    }
}

#[derive(Serialize, Deserialize)]
struct WrittenRule {
    uid: String,
    terms: Terms,
    digest: TermsDigest,
    #[serde(default)]
    orphaned: bool,
    #[serde(default)]
    tombstones: Vec<WrittenSource>,
    #[serde(default)]
    any_tombstone: bool,
    #[serde(default)]
    kinds: Option<BTreeSet<String>>,
    #[serde(default)]
    finished: Vec<WrittenFinished>,
}

/// A copy that ran to its end.
#[derive(Serialize, Deserialize)]
struct WrittenFinished {
    copy: WrittenSource,
    source: WrittenSource,
    revision: [u8; 16],
}

/// A source, and the name of its copies.
#[derive(Serialize, Deserialize)]
struct WrittenSource {
    resource: String,
    namespace: String,
    name: String,
    copy: String,
}

impl Store {
    /// Returns a store for the Secrets in this namespace.
    pub fn new(client: Client, namespace: &str) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
        }
    }

    /// Returns the identity of the agent, if it is stored and readable.
    ///
    /// # Errors
    /// [`CallError`], if the API server does not answer or refuses.
    pub async fn identity(&self) -> Result<Option<Identity>, CallError> {
        let Some(data) = self.load(IDENTITY_SECRET).await? else {
            return Ok(None);
        };
        let identity = read_identity(&data);
        if identity.is_none() {
            tracing::warn!(
                secret = IDENTITY_SECRET,
                "the stored identity is not readable: a join string is needed"
            );
        }
        Ok(identity)
    }

    /// Stores the identity of the agent.
    ///
    /// # Errors
    /// [`CallError`], if the API server does not answer or refuses.
    pub async fn save_identity(&self, identity: &Identity) -> Result<(), CallError> {
        self.save(IDENTITY_SECRET, written_identity(identity)).await
    }

    /// Returns the hub cluster's uid and the terms of this hub's rules. Both are empty if they are
    /// missing or unreadable.
    ///
    /// # Errors
    /// [`CallError`], if the API server does not answer or refuses.
    pub async fn terms(&self, hub: &str) -> Result<(Option<String>, Vec<StoredRule>), CallError> {
        let Some(data) = self.load(TERMS_SECRET).await? else {
            return Ok((None, vec![]));
        };
        let Some(written) = data.get("terms").and_then(|bytes| read_terms(bytes)) else {
            tracing::warn!(
                secret = TERMS_SECRET,
                "the stored terms are not readable: the hub will send them again"
            );
            return Ok((None, vec![]));
        };
        if written.hub != hub {
            return Ok((None, vec![]));
        }
        let rules = written.rules.into_iter().map(|rule| StoredRule {
            uid: rule.uid.into(),
            terms: rule.terms,
            digest: rule.digest,
            orphaned: rule.orphaned,
            tombstones: Tombstones {
                sources: rule.tombstones.iter().map(read_source).collect(),
                any: rule.any_tombstone,
            },
            kinds: rule
                .kinds
                .map(|kinds| kinds.into_iter().map(Into::into).collect()),
            finished: rule.finished.iter().map(read_finished).collect(),
        });
        Ok((written.hub_cluster_uid, rules.collect()))
    }

    /// Stores the terms of this hub's rules.
    ///
    /// # Errors
    /// [`CallError`], if the API server does not answer or refuses.
    pub async fn save_terms(
        &self,
        hub: &str,
        hub_cluster_uid: Option<String>,
        rules: Vec<StoredRule>,
    ) -> Result<(), CallError> {
        let rules = rules.into_iter().map(|rule| WrittenRule {
            uid: rule.uid.to_string(),
            terms: rule.terms,
            digest: rule.digest,
            orphaned: rule.orphaned,
            tombstones: rule.tombstones.sources.iter().map(written_source).collect(),
            any_tombstone: rule.tombstones.any,
            kinds: rule
                .kinds
                .map(|kinds| kinds.iter().map(ToString::to_string).collect()),
            finished: rule.finished.iter().map(written_finished).collect(),
        });
        let written = WrittenTerms {
            hub: hub.to_owned(),
            hub_cluster_uid,
            rules: rules.collect(),
        };
        let bytes = packed_terms(written, TERMS_SIZE).map_err(|_| CallError::Unanswered)?;
        self.save(TERMS_SECRET, BTreeMap::from([("terms".to_owned(), bytes)]))
            .await
    }

    /// Returns the stored history token of the hub.
    ///
    /// # Errors
    /// [`CallError`], if the API server does not answer or refuses.
    pub async fn history_token(&self) -> Result<Option<Vec<u8>>, CallError> {
        Ok(self
            .load(IDENTITY_SECRET)
            .await?
            .and_then(|mut data| data.remove(HISTORY_TOKEN)))
    }

    /// Stores the history token in the identity's Secret, whose other fields have another field
    /// manager.
    ///
    /// # Errors
    /// [`CallError`], if the API server does not answer or refuses.
    pub async fn save_history_token(&self, words: &[u8]) -> Result<(), CallError> {
        let patch = Patch::Merge(json!({"data": {HISTORY_TOKEN: BASE64.encode(words)}}));
        let params = PatchParams {
            field_manager: Some(HISTORY_TOKEN_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        with_timeout(self.api.patch(IDENTITY_SECRET, &params, &patch))
            .await
            .map(drop)
    }

    async fn load(&self, name: &str) -> Result<Option<BTreeMap<String, Vec<u8>>>, CallError> {
        let secret = with_timeout(self.api.get_opt(name)).await?;
        let data = secret.map(|secret| secret.data.unwrap_or_default());
        Ok(data.map(|data| {
            data.into_iter()
                .map(|(key, ByteString(bytes))| (key, bytes))
                .collect()
        }))
    }

    async fn save(&self, name: &str, data: BTreeMap<String, Vec<u8>>) -> Result<(), CallError> {
        let data: BTreeMap<_, _> = data
            .into_iter()
            .map(|(key, bytes)| (key, BASE64.encode(&bytes)))
            .collect();
        let body = json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name, "labels": {"app.kubernetes.io/part-of": "runnel"}},
            "type": "Opaque",
            "data": data,
        });
        let params = PatchParams::apply(MANAGER).force();
        let patch = Patch::Apply(body);
        with_timeout(self.api.patch(name, &params, &patch))
            .await
            .map(drop)
    }
}

fn written_source(source: &SourceRef) -> WrittenSource {
    let (resource, namespace) = (source.resource.to_string(), source.namespace.to_string());
    WrittenSource {
        resource,
        namespace,
        name: source.name.to_string(),
        copy: source.copy_name().to_string(),
    }
}

fn read_source(written: &WrittenSource) -> SourceRef {
    SourceRef::new(&written.resource, &written.namespace, &written.name).as_copy(&written.copy)
}

fn written_finished(finished: &FinishedCopy) -> WrittenFinished {
    WrittenFinished {
        copy: written_source(&finished.copy),
        source: written_source(&finished.source),
        revision: finished.revision.0,
    }
}

fn read_finished(written: &WrittenFinished) -> FinishedCopy {
    FinishedCopy {
        copy: read_source(&written.copy),
        source: read_source(&written.source),
        revision: Revision(written.revision),
    }
}

fn read_terms(bytes: &[u8]) -> Option<WrittenTerms> {
    let plain = zstd::bulk::decompress(bytes, TERMS_LIMIT).ok()?;
    serde_json::from_slice(&plain).ok()
}

fn written_identity(identity: &Identity) -> BTreeMap<String, Vec<u8>> {
    let mut data = BTreeMap::from([
        ("hub-id".to_owned(), identity.hub.clone().into_bytes()),
        (
            "hub-addresses".to_owned(),
            identity.addresses.join("\n").into_bytes(),
        ),
        ("cluster".to_owned(), identity.cluster.clone().into_bytes()),
        (
            "replaced-cluster".to_owned(),
            identity.replaced_cluster.clone().into_bytes(),
        ),
        ("tls.key".to_owned(), identity.key.clone().into_bytes()),
        ("seal.key".to_owned(), identity.seal_key.clone()),
        (
            "token-id".to_owned(),
            identity.token_id.clone().into_bytes(),
        ),
    ]);
    if let Some(certificate) = &identity.certificate {
        data.insert(
            "tls.crt".to_owned(),
            pem(std::slice::from_ref(&certificate.own)).into_bytes(),
        );
        data.insert(
            "ca.crt".to_owned(),
            pem(&certificate.ca_certificates).into_bytes(),
        );
        let seconds = certificate
            .renew_at
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs();
        data.insert("renew-at".to_owned(), seconds.to_string().into_bytes());
    }
    if let Some(pending) = &identity.pending {
        data.insert("pending.key".to_owned(), pending.key.clone().into_bytes());
        data.insert(
            "pending.token-id".to_owned(),
            pending.token_id.clone().into_bytes(),
        );
    }
    data
}

fn read_identity(data: &BTreeMap<String, Vec<u8>>) -> Option<Identity> {
    let text = |key: &str| {
        data.get(key)
            .and_then(|bytes| String::from_utf8(bytes.clone()).ok())
    };
    Some(Identity {
        hub: text("hub-id")?,
        addresses: text("hub-addresses")?.lines().map(str::to_owned).collect(),
        cluster: text("cluster")?,
        replaced_cluster: text("replaced-cluster").unwrap_or_default(),
        key: text("tls.key")?,
        seal_key: data.get("seal.key").filter(|key| key.len() >= 16)?.clone(),
        token_id: text("token-id").unwrap_or_default(),
        certificate: read_certificate(data),
        pending: text("pending.key")
            .zip(text("pending.token-id"))
            .map(|(key, token_id)| Pending { key, token_id }),
    })
}

fn read_certificate(data: &BTreeMap<String, Vec<u8>>) -> Option<Certificate> {
    let read = |key: &str| {
        CertificateDer::pem_slice_iter(data.get(key)?)
            .collect::<Result<Vec<_>, _>>()
            .ok()
    };
    let seconds = data
        .get("renew-at")
        .and_then(|bytes| std::str::from_utf8(bytes).ok()?.parse().ok());
    Some(Certificate {
        own: read("tls.crt")?.into_iter().next()?,
        ca_certificates: read("ca.crt").filter(|all| !all.is_empty())?,
        renew_at: UNIX_EPOCH + Duration::from_secs(seconds.unwrap_or_default()),
    })
}

/// Formats certificates as PEM.
fn pem(certificates: &[CertificateDer<'_>]) -> String {
    let mut text = String::new();
    for certificate in certificates {
        text.push_str("-----BEGIN CERTIFICATE-----\n");
        let encoded = BASE64.encode(certificate);
        for line in encoded.as_bytes().chunks(64) {
            text.push_str(&String::from_utf8_lossy(line));
            text.push('\n');
        }
        text.push_str("-----END CERTIFICATE-----\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_tombstone_reads_back() {
        let source = SourceRef::new("configmaps", "team", "settings");
        for source in [source.as_copy("settings-eu"), source] {
            assert_eq!(read_source(&written_source(&source)), source);
        }
    }

    #[test]
    fn terms_that_do_not_fit_are_not_stored() {
        let rules = |size| {
            let rule = WrittenRule {
                uid: "r".into(),
                terms: Terms::default(),
                digest: TermsDigest([0; 16]),
                orphaned: false,
                tombstones: vec![],
                any_tombstone: false,
                kinds: None,
                finished: vec![],
            };
            let written = WrittenTerms {
                hub: "hub".into(),
                hub_cluster_uid: None,
                rules: vec![rule],
            };
            let plain =
                zstd::bulk::decompress(&packed_terms(written, size).unwrap(), 1 << 20).unwrap();
            serde_json::from_slice::<WrittenTerms>(&plain)
                .unwrap()
                .rules
                .len()
        };
        assert_eq!((rules(TERMS_SIZE), rules(10)), (1, 0));
    }

    use runnel_transport::identity::{Ca, MemberKey};

    #[test]
    fn an_identity_reads_back() {
        let now = UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let hub = runnel_transport::identity::new_hub_id().unwrap();
        let ca = Ca::generate(&hub, now).unwrap();
        let key = MemberKey::generate().unwrap();
        let request = key.certificate_request().unwrap();
        let signed = ca
            .sign_member(&request, &hub, "eu-1", "uid", now, Duration::from_secs(60))
            .unwrap();
        let mut identity = Identity {
            hub,
            addresses: vec!["a:1".into(), "b:2".into()],
            cluster: "eu-1".into(),
            replaced_cluster: String::new(),
            key: key.to_pem(),
            seal_key: vec![7; 32],
            token_id: "abcdefgh".into(),
            certificate: None,
            pending: None,
        };
        let pending = read_identity(&written_identity(&identity)).unwrap();
        assert!(pending.certificate.is_none());
        identity.certificate = Some(Certificate {
            own: signed.der.clone(),
            ca_certificates: vec![ca.certificate().clone()],
            renew_at: now,
        });
        let pending = Pending {
            key: MemberKey::generate().unwrap().to_pem(),
            token_id: "hgfedcba".into(),
        };
        identity.pending = Some(pending.clone());
        let read = read_identity(&written_identity(&identity)).unwrap();
        let kept = read.pending.unwrap();
        assert_eq!((kept.key, kept.token_id), (pending.key, pending.token_id));
        let certificate = read.certificate.unwrap();
        assert_eq!((certificate.own, certificate.renew_at), (signed.der, now));
        assert_eq!(certificate.ca_certificates, [ca.certificate().clone()]);
        assert_eq!(
            (read.hub, read.addresses, read.seal_key),
            (identity.hub, identity.addresses, identity.seal_key)
        );
    }
}
