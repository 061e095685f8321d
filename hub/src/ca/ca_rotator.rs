//! Rotates CAs. Watches the Secrets, and switches to the CA that a user, a program or the hub
//! itself stores there. Keeps former CAs while members need them. The hub serves with all of them.
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use bytes::Bytes;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ObjectReference, Secret};
use kube::{Api, Client};
use runnel_transport::identity::{Fingerprint, ServingPair};
use runnel_transport::tls::{ServerTls, TlsError};
use rustls::pki_types::CertificateDer;
use tokio::sync::mpsc;

use super::overlap::{Needs, TrustedCas};
use super::secrets::SecretWatch;
use super::stored::{self, Data, HubIdentity, StoredError};
use super::{
    ApiError, CA_BUNDLE, CA_BUNDLE_ENTRY, CA_BUNDLE_SECRET, IDENTITY, IDENTITY_SECRET, known_in,
    write,
};
use crate::hub_state::HubState;
use crate::membership::CertificateLifetimes;
use crate::object_cache::ObjectCache;
use runnel_hub_core::status::{EventReason, Notice};

/// The validity of the hub's serving certificate, which is renewed at half of it.
const SERVING_VALIDITY: Duration = Duration::from_secs(24 * 60 * 60);
/// The interval at which the clock and the members are checked. A machine may sleep without its
/// timers noticing.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// The CA that signs now, and the CAs that members may trust.
pub struct HubCas {
    view: ArcSwap<CaView>,
    unusable: AtomicBool,
}

struct CaView {
    identity: Arc<HubIdentity>,
    known: TrustedCas,
}

impl HubCas {
    fn new(identity: Arc<HubIdentity>, known: TrustedCas) -> Arc<Self> {
        let view = ArcSwap::from_pointee(CaView { identity, known });
        Arc::new(Self {
            view,
            unusable: AtomicBool::new(false),
        })
    }

    /// Returns the CA of this identity as the only one, without a rotation.
    pub fn of(identity: HubIdentity) -> Arc<Self> {
        let known = TrustedCas::default().switched(identity.ca.certificate(), SystemTime::now());
        Self::new(Arc::new(identity), known)
    }

    /// The identity of the CA that signs now.
    pub fn identity(&self) -> Arc<HubIdentity> {
        self.view.load().identity.clone()
    }

    /// Returns the CAs that members may trust, the signing one first.
    pub fn trusted(&self) -> TrustedCas {
        self.view.load().known.clone()
    }

    /// Returns the certificates of these CAs, DER.
    pub fn certificates(&self) -> Vec<Bytes> {
        let view = self.view.load();
        view.known
            .entries()
            .iter()
            .map(|entry| Bytes::copy_from_slice(&entry.certificate))
            .collect()
    }

    /// Whether the content of the Secret is unusable.
    pub fn is_unusable(&self) -> bool {
        self.unusable.load(Ordering::Relaxed)
    }
}

/// The inputs of a [`CaRotator`].
pub struct Parts {
    /// The client for the Secrets.
    pub client: Client,
    /// The shared state of the hub's tasks.
    pub hub_state: Arc<HubState>,
    /// The members, whose certificates show which CAs they need.
    pub object_cache: Arc<ObjectCache>,
    /// The validity of certificates, and how long expired ones can be renewed.
    pub lifetimes: CertificateLifetimes,
    /// The validity of a CA that the hub creates.
    pub ca_life: Duration,
    /// The queue of Events.
    pub events: mpsc::Sender<(ObjectReference, Notice)>,
}

/// Rotates the hub's CAs.
pub struct CaRotator {
    parts: Parts,
    api: Api<Secret>,
    identity: SecretWatch,
    stored: SecretWatch,
    hub_cas: Arc<HubCas>,
    tls: Arc<ServerTls>,
    /// When the serving certificate is renewed.
    renew_at: SystemTime,
    /// Whether the Secret of CAs existed. If it disappears later, a user deleted it on purpose.
    was_stored: bool,
    /// The last logged error.
    logged: Option<String>,
}

impl CaRotator {
    /// Creates a serving certificate. `stored` contains the stored CAs.
    ///
    /// # Errors
    /// [`TlsError`], when the CA cannot sign, for example because it has expired.
    pub fn new(
        parts: Parts,
        identity: HubIdentity,
        stored: Option<TrustedCas>,
    ) -> Result<Self, TlsError> {
        let now = SystemTime::now();
        let was_stored = stored.is_some();
        let known = stored
            .unwrap_or_default()
            .switched(identity.ca.certificate(), now);
        let pairs = pairs(&identity, &known, now)?;
        let renew_at = half_validity(now, &pairs);
        let tls = Arc::new(ServerTls::of_several(&certificates(&known), pairs)?);
        let api: Api<Secret> =
            Api::namespaced(parts.client.clone(), &parts.hub_state.settings.namespace);
        let watch = |name| {
            SecretWatch::new(
                api.clone(),
                name,
                parts.hub_state.leadership.relist_barrier.subscribe(),
            )
        };
        let (identity_watch, stored_watch) = (watch(IDENTITY_SECRET), watch(CA_BUNDLE_SECRET));
        let hub_cas = HubCas::new(Arc::new(identity), known);
        parts
            .hub_state
            .ca_bundle
            .send_replace(hub_cas.certificates());
        let (identity, stored) = (identity_watch, stored_watch);
        Ok(Self {
            parts,
            api,
            identity,
            stored,
            hub_cas,
            tls,
            renew_at,
            was_stored,
            logged: None,
        })
    }

    /// Returns the TLS state for the listener.
    pub fn tls(&self) -> Arc<ServerTls> {
        self.tls.clone()
    }

    /// Returns the CAs, for the code that signs certificates and sends the trusted CAs to members.
    pub fn hub_cas(&self) -> Arc<HubCas> {
        self.hub_cas.clone()
    }

    /// Rotates CAs until the process ends.
    pub async fn run(mut self) {
        let mut lead = self.parts.hub_state.leadership.lead.subscribe();
        loop {
            match self.secrets_status().await {
                Ok(Some(judged)) => {
                    self.log_identity_error(judged.err().map(|error| error.to_string()))
                }
                Ok(None) => {}
                // The watch delivers what another writer has written.
                Err(error) if error.is_conflict() => {
                    tracing::debug!(%error, "the hub's Secrets have changed; looking again");
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot check the hub's CA; retrying")
                }
            }
            self.renew_serving();
            tokio::select! {
                () = tokio::time::sleep(CHECK_INTERVAL) => {}
                () = self.identity.changed() => {}
                () = self.stored.changed() => {}
                // Both Secrets are relisted: another replica may have written a state that this one
                // has not observed.
                _ = lead.changed() => {}
            }
        }
    }

    /// Reads the Secrets once. Returns an error of the identity, with which the hub keeps its
    /// former one; `None` if the content of the Secrets is unknown.
    async fn secrets_status(&mut self) -> Result<Option<Result<(), StoredError>>, ApiError> {
        let now = SystemTime::now();
        let (Some(secret), Some(_)) = (self.identity.current(), self.stored.current()) else {
            return Ok(None);
        };
        let secret = secret.cloned();
        let present = self.hub_cas.identity();
        let (identity, judged) = match self.read_identity(secret, now).await? {
            Ok(Some(read)) if read.ca.certificate() != present.ca.certificate() => {
                (Arc::new(read), Ok(()))
            }
            Ok(_) => (present, Ok(())),
            Err(error) => (present, Err(error)),
        };
        let Some(secret) = self.stored.current() else {
            return Ok(None);
        };
        let stored = secret.and_then(known_in);
        let base = match &stored {
            Some(stored) => stored.clone(),
            None if self.was_stored => TrustedCas::default(),
            None => self.hub_cas.trusted(),
        };
        if !self.parts.hub_state.leadership.leads() {
            // The leader stores a CA before it switches to it. Other replicas switch after that.
            if base.is_current(identity.ca.certificate()) {
                self.adopt(identity, base);
            }
            self.was_stored |= stored.is_some();
            return Ok(Some(judged));
        }
        let next = self.next(base, &identity, now);
        if stored.as_ref() != Some(&next) {
            let data = Data::from([(CA_BUNDLE_ENTRY.to_owned(), ByteString(next.write()))]);
            let written = write(&self.api, CA_BUNDLE, secret.cloned(), data).await?;
            self.stored.record_write(written);
        }
        self.was_stored = true;
        self.adopt(identity, next);
        Ok(Some(judged))
    }

    /// Returns the CAs to store: with the CA of `identity` as the signing one, and without CAs that
    /// no member needs.
    fn next(&self, base: TrustedCas, identity: &HubIdentity, now: SystemTime) -> TrustedCas {
        let (hub_state, lives) = (&self.parts.hub_state, self.parts.lifetimes);
        let overlap = lives.certificate + lives.expired_renewal;
        let mut next = base.switched(identity.ca.certificate(), now);
        if next.needs_overlap(overlap, now) {
            match identity
                .ca
                .sign_hub(&identity.hub_id, now, TrustedCas::overlap_validity(overlap))
            {
                Ok(pair) => next = next.with_overlap(pair),
                Err(error) => tracing::error!(%error, "the hub's CA cannot sign"),
            }
        }
        // Before the members are listed, it is unknown which CAs they need.
        if next.entries().len() == 1 || hub_state.leadership.serving_since().is_none() {
            return next;
        }
        let mut needs = Needs::default();
        self.parts
            .object_cache
            .each_member(|member| needs.add(&member, lives.expired_renewal));
        next.retired(&needs, overlap, now)
    }

    /// Returns the identity in the Secret. The leader creates a new CA if one is due. Other
    /// replicas return `None` until then.
    async fn read_identity(
        &mut self,
        secret: Option<Secret>,
        now: SystemTime,
    ) -> Result<Result<Option<HubIdentity>, StoredError>, ApiError> {
        let mut data = secret
            .as_ref()
            .and_then(|secret| secret.data.clone())
            .unwrap_or_default();
        let hub_id = &self.parts.hub_state.settings.hub_id;
        match stored::renewed(&data, hub_id, self.parts.ca_life, now) {
            Ok(None) => {}
            Ok(Some(_)) if !self.parts.hub_state.leadership.leads() => return Ok(Ok(None)),
            Ok(Some(new)) => {
                data.extend(new);
                let written = write(&self.api, IDENTITY, secret, data.clone()).await?;
                self.identity.record_write(written);
                tracing::info!("the hub created a new CA");
            }
            Err(error) => return Ok(Err(error)),
        }
        let read = stored::read(&data);
        Ok(read.and_then(|read| stored::verify_identity(&read, hub_id, now).map(|()| Some(read))))
    }

    /// Switches to these CAs.
    fn adopt(&mut self, identity: Arc<HubIdentity>, known: TrustedCas) {
        let before = self.hub_cas.trusted();
        if before == known {
            return;
        }
        let now = SystemTime::now();
        let set = pairs(&identity, &known, now).and_then(|pairs| {
            self.renew_at = half_validity(now, &pairs);
            self.tls.set(&certificates(&known), pairs)
        });
        if let Err(error) = set {
            tracing::error!(%error, "the hub cannot serve with its new CA, and continues with the former one");
            return;
        }
        let ids = |known: &TrustedCas| {
            known
                .entries()
                .iter()
                .map(|entry| entry.id)
                .collect::<Vec<Fingerprint>>()
        };
        let (former, present) = (ids(&before), ids(&known));
        self.hub_cas
            .view
            .store(Arc::new(CaView { identity, known }));
        for gone in former.iter().filter(|id| !present.contains(id)) {
            tracing::info!(ca = %gone, "a former CA is no longer needed and is not trusted any more");
        }
        if let Some(first) = present
            .first()
            .filter(|first| former.first() != Some(*first))
        {
            let kept = present.len() - 1;
            tracing::info!(ca = %first, "a new CA signs; {kept} former CAs are kept for members that need them");
        }
        self.parts.hub_state.ca_bundle.send_if_modified(|bundle| {
            let new = self.hub_cas.certificates();
            let differs = *bundle != new;
            *bundle = new;
            differs
        });
    }

    /// Renews the serving certificate at half of its validity. Open connections keep the former
    /// one.
    fn renew_serving(&mut self) {
        let now = SystemTime::now();
        if now < self.renew_at {
            return;
        }
        let (identity, known) = (self.hub_cas.identity(), self.hub_cas.trusted());
        let set = pairs(&identity, &known, now).and_then(|pairs| {
            self.renew_at = half_validity(now, &pairs);
            self.tls.set(&certificates(&known), pairs)
        });
        match set {
            Ok(()) => tracing::info!("the hub serves with a new certificate"),
            Err(error) => {
                tracing::error!(%error, "the hub cannot create a new serving certificate")
            }
        }
    }

    /// Logs an error of the identity once, and its recovery once.
    fn log_identity_error(&mut self, wrong: Option<String>) {
        if self.logged == wrong {
            return;
        }
        self.hub_cas
            .unusable
            .store(wrong.is_some(), Ordering::Relaxed);
        match &wrong {
            Some(why) => {
                tracing::error!(
                    why,
                    "the Secret {IDENTITY_SECRET} cannot be used: the hub continues with its former identity"
                );
                self.event(
                    EventReason::IdentityUnusable,
                    format!("the hub continues with its former CA: {why}"),
                );
            }
            None => tracing::info!("the Secret {IDENTITY_SECRET} can be used again"),
        }
        self.logged = wrong;
    }

    fn event(&self, reason: EventReason, message: String) {
        if !self.parts.hub_state.leadership.leads() {
            return;
        }
        let reference = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Secret".to_owned()),
            namespace: Some(self.parts.hub_state.settings.namespace.clone()),
            name: Some(IDENTITY_SECRET.to_owned()),
            ..ObjectReference::default()
        };
        // If the queue is full, the log still contains the message.
        let _ = self
            .parts
            .events
            .try_send((reference, Notice::new(true, reason, message)));
    }
}

fn certificates(known: &TrustedCas) -> Vec<CertificateDer<'static>> {
    known
        .entries()
        .iter()
        .map(|entry| entry.certificate.clone())
        .collect()
}

/// Returns the serving certificates: a new one of the signing CA, then those of former CAs.
fn pairs(
    identity: &HubIdentity,
    known: &TrustedCas,
    now: SystemTime,
) -> Result<Vec<ServingPair>, TlsError> {
    let mut pairs = vec![
        identity
            .ca
            .sign_hub(&identity.hub_id, now, SERVING_VALIDITY)?,
    ];
    pairs.extend(
        known
            .entries()
            .iter()
            .skip(1)
            .filter_map(|entry| entry.serving(now)),
    );
    Ok(pairs)
}

/// Returns when the first certificate, which starts now, is renewed.
fn half_validity(now: SystemTime, pairs: &[ServingPair]) -> SystemTime {
    pairs.first().map_or(now, |pair| pair.renew_at(now))
}
