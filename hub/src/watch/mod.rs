//! Watches of the hub's API: rules and members whole, sources as metadata only; the content of a source is read only
//! when some rule selects it.
//!
//! A watch that is forbidden or missing gates only what needs it. Nothing is served before every watch that is needed
//! has delivered one complete list, or has been refused.
mod crd_deletion;
mod first_grant;
mod grants;
mod kinds;
mod list;
mod members;
mod origins;
mod reader;
mod renderer;
mod rules;
mod source_watches;
mod sources;

use std::borrow::Cow;
use std::fmt::Debug;
use std::time::{Duration, Instant};

use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use kube::core::ObjectMeta;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, Resource};
use runnel_transport::readable::Readable;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};

use crate::relist_barrier::RelistSubscription;

pub use grants::{watch_crd, watch_fleet, watch_grants, watch_hub_namespaces};
pub use kinds::{DiscoveryError, read_kinds};
pub use list::{ListError, list_metadata};
pub use members::{observe_member, watch_members};
pub use reader::{body_of, expire_deleted_sources, read_sources};
pub use renderer::render_rules;
pub(crate) use rules::forget;
pub use rules::watch_rules;
pub use source_watches::watch_needed_sources;
pub use sources::{api_in, api_resource};

/// The number of objects in one page of a list. A user who may create an object can give it some
/// megabytes of labels, annotations and field managers, and a page is in memory as a whole.
const PAGE: u32 = 20;
/// The server ends a watch after this time, and a dead connection is detected 5 s later. Until then
/// a revocation is not seen. The next watch continues where this one ended, which costs one small
/// request.
const WATCH_SECONDS: u32 = 50;
/// Time limit of one read of one object.
const READ_LIMIT: Duration = Duration::from_secs(10);

/// An event of a watch.
pub(crate) type WatchEvent<K> = Result<Event<K>, watcher::Error>;

/// The events of a kind, with backoff (0.8 s to 30 s, with jitter) on errors.
fn events<K>(api: Api<K>) -> impl Stream<Item = WatchEvent<K>> + Send
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let config = watcher::Config::default()
        .page_size(PAGE)
        .timeout(WATCH_SECONDS);
    watcher::watcher(api, config).default_backoff()
}

/// The events of the one object of this name.
pub(crate) fn events_of<K>(
    api: Api<K>,
    name: &str,
) -> impl Stream<Item = WatchEvent<K>> + Send + use<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let config = watcher::Config::default()
        .fields(&format!("metadata.name={name}"))
        .timeout(WATCH_SECONDS);
    watcher::watcher(api, config).default_backoff()
}

/// The events of one watch, which starts again with a new list in each round (see
/// [`crate::relist_barrier`]).
pub(crate) struct RelistingWatch<K> {
    rounds: RelistSubscription,
    begin: Box<dyn Fn() -> BoxStream<'static, WatchEvent<K>> + Send>,
    events: BoxStream<'static, WatchEvent<K>>,
    /// The round that the events belong to.
    round: u64,
    /// Whether this watch has had a list in this round.
    listed: bool,
    /// The watch relists without a request: its events wait for a renewal of the Lease.
    awaits_renewal: bool,
    /// The event that waits for the renewal, and since when.
    waiting: Option<(Instant, WatchEvent<K>)>,
}

impl<K> RelistingWatch<K> {
    pub(crate) fn new(
        mut rounds: RelistSubscription,
        begin: impl Fn() -> BoxStream<'static, WatchEvent<K>> + Send + 'static,
    ) -> Self {
        let round = *rounds.requested.borrow_and_update();
        let events = begin();
        Self {
            rounds,
            events,
            begin: Box::new(begin),
            round,
            listed: false,
            awaits_renewal: false,
            waiting: None,
        }
    }

    /// Starts again with a new list.
    fn relist(&mut self) {
        self.round = *self.rounds.requested.borrow_and_update();
        self.events = (self.begin)();
        (self.listed, self.awaits_renewal, self.waiting) = (false, false, None);
    }

    /// Starts again without a request: its events wait for a renewal of the lead.
    fn relist_unrequested(&mut self) {
        self.relist();
        self.listed = true;
    }

    /// Returns the next event; `None`, if the watch was started again instead.
    pub(crate) async fn next(&mut self) -> Option<WatchEvent<K>> {
        if self.waiting.is_none() {
            let event = tokio::select! {
                biased;
                Ok(()) = self.rounds.requested.changed() => None,
                event = self.events.next() => event,
            };
            match event {
                Some(event) if self.is_unrequested(&event) => {
                    self.waiting = Some((Instant::now(), event))
                }
                Some(event) => return Some(event),
                None => {
                    self.relist();
                    return None;
                }
            }
        }
        let read_at = self
            .waiting
            .as_ref()
            .map_or_else(Instant::now, |(at, _)| *at);
        let mut renewed = self.rounds.renewed.clone();
        let begins = tokio::select! {
            biased;
            Ok(()) = self.rounds.requested.changed() => true,
            // An error is the end of the process.
            _ = renewed.wait_for(|sent| sent.is_none_or(|sent| sent > read_at)) => false,
        };
        if begins {
            self.relist();
        }
        self.waiting.take().map(|(_, event)| event)
    }

    /// Whether an event begins a list that was not requested.
    fn is_unrequested(&mut self, event: &WatchEvent<K>) -> bool {
        match event {
            Ok(Event::Init) => {
                self.awaits_renewal = std::mem::replace(&mut self.listed, true);
                false
            }
            Ok(Event::InitApply(_) | Event::InitDone) => std::mem::take(&mut self.awaits_renewal),
            Ok(Event::Apply(_) | Event::Delete(_)) | Err(_) => false,
        }
    }
}

/// An object of a kind of Runnel's own, or a namespace.
#[derive(Clone, Debug)]
enum DecodedObject<K> {
    /// The decoded object.
    Read(Box<K>),
    /// An object that this build cannot read, because a newer one wrote it. Only its existence is
    /// known.
    Unreadable(Box<ObjectMeta>),
}

impl<K: Resource> DecodedObject<K> {
    fn name(&self) -> String {
        self.meta().name.clone().unwrap_or_default()
    }
}

impl<K> From<K> for DecodedObject<K> {
    fn from(object: K) -> Self {
        DecodedObject::Read(Box::new(object))
    }
}

impl<'de, K: DeserializeOwned> Deserialize<'de> for DecodedObject<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Readable::deserialize(deserializer).map(|object| match object {
            Readable::Read(object) => DecodedObject::Read(object),
            Readable::Unreadable(known) => {
                let (name, namespace, uid, resource_version) = (
                    known.name,
                    known.namespace,
                    known.uid,
                    known.resource_version,
                );
                DecodedObject::Unreadable(Box::new(ObjectMeta {
                    name,
                    namespace,
                    uid,
                    resource_version,
                    ..ObjectMeta::default()
                }))
            }
        })
    }
}

impl<K: Resource> Resource for DecodedObject<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn metadata_api() -> bool {
        K::metadata_api()
    }

    fn kind(kind: &K::DynamicType) -> Cow<'_, str> {
        K::kind(kind)
    }

    fn group(kind: &K::DynamicType) -> Cow<'_, str> {
        K::group(kind)
    }

    fn version(kind: &K::DynamicType) -> Cow<'_, str> {
        K::version(kind)
    }

    fn plural(kind: &K::DynamicType) -> Cow<'_, str> {
        K::plural(kind)
    }

    fn meta(&self) -> &ObjectMeta {
        match self {
            DecodedObject::Read(object) => object.meta(),
            DecodedObject::Unreadable(meta) => meta,
        }
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        match self {
            DecodedObject::Read(object) => object.meta_mut(),
            DecodedObject::Unreadable(meta) => meta,
        }
    }
}

/// Maps the objects of an event.
fn mapped<K, T>(event: WatchEvent<K>, map: impl FnOnce(K) -> T) -> WatchEvent<T> {
    event.map(|event| match event {
        Event::Apply(object) => Event::Apply(map(object)),
        Event::InitApply(object) => Event::InitApply(map(object)),
        Event::Delete(object) => Event::Delete(map(object)),
        Event::Init => Event::Init,
        Event::InitDone => Event::InitDone,
    })
}

/// The events of a kind of Runnel's own. An object that this build cannot read does not break the whole watch.
fn own_events<K>(client: Client) -> impl Stream<Item = WatchEvent<DecodedObject<K>>> + Send
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    events(Api::<DecodedObject<K>>::all(client)).inspect(|event| {
        if let Ok(
            Event::Apply(DecodedObject::Unreadable(meta))
            | Event::InitApply(DecodedObject::Unreadable(meta)),
        ) = event
        {
            let (namespace, name, kind) = (&meta.namespace, &meta.name, K::kind(&()));
            tracing::error!(
                ?namespace,
                ?name,
                "cannot read a {kind}: upgrade the hub, or correct it"
            );
        }
    })
}

/// Describes a failed watch without text that may quote objects.
pub(crate) fn failure(error: &watcher::Error) -> String {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status))
        | watcher::Error::WatchError(status) => {
            format!("answers {} {}", status.code, status.reason)
        }
        _ => "cannot be reached".to_owned(),
    }
}

/// Whether the API server does not serve the kind of a watch.
fn is_not_served(error: &watcher::Error) -> bool {
    matches!(
        error,
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status))
            if status.code == 404
    )
}

/// Returns the API server's refusal of a watch, if a user must fix it. `what` is the missing
/// permission.
pub(crate) fn refusal(error: &watcher::Error, what: &str) -> Option<String> {
    let status = match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status))
        | watcher::Error::WatchError(status) => status,
        _ => return None,
    };
    match status.code {
        401 => Some("the API server does not accept the hub's credentials".to_owned()),
        403 => Some(format!("forbidden: {what}")),
        404 => Some("the API server does not serve it".to_owned()),
        _ => None,
    }
}

/// Why the uid of the cluster could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ClusterUidError {
    /// The API server refused the request or could not be reached.
    #[error(transparent)]
    Api(#[from] kube::Error),
    /// The API server did not answer in time.
    #[error("the API server did not answer in time")]
    Timeout,
}

/// Returns the uid of the `kube-system` namespace, which identifies a cluster.
///
/// # Errors
/// [`ClusterUidError`], when the namespace cannot be read.
pub async fn cluster_uid(client: &Client) -> Result<String, ClusterUidError> {
    use k8s_openapi::api::core::v1::Namespace;
    use kube::api::PartialObjectMeta;
    let api: Api<PartialObjectMeta<Namespace>> = Api::all(client.clone());
    match tokio::time::timeout(READ_LIMIT, api.get_metadata("kube-system")).await {
        Ok(namespace) => Ok(namespace?.metadata.uid.unwrap_or_default()),
        Err(_) => Err(ClusterUidError::Timeout),
    }
}

/// The time for which a refusal must be repeated before it counts.
const REFUSED_FOR: Duration = Duration::from_secs(10);
/// Time without data after which a list is not waited for.
const LIST_TIMEOUT: Duration = Duration::from_secs(30);

/// The state of a watch.
pub(super) struct WatchHealth {
    /// Since when it is refused repeatedly.
    refused: Option<Instant>,
    /// The time of the last data or list request.
    progress: Instant,
    /// Whether this relist has its list, or continues without it.
    settled: bool,
    /// Whether the list is not waited for, and no data has arrived since.
    is_abandoned: bool,
    /// The last error of the API server.
    error: Option<String>,
}

impl WatchHealth {
    /// Records a list request.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            refused: None,
            progress: now,
            settled: false,
            is_abandoned: false,
            error: None,
        }
    }

    /// The list of a new round was requested. If the list of the round before did not arrive, the
    /// leader does not wait again: it would serve no agent meanwhile.
    pub(super) fn begin(&mut self, now: Instant) {
        self.settled = false;
        if !self.is_abandoned {
            self.progress = now;
        }
    }

    /// Something came.
    pub(super) fn progress(&mut self, now: Instant) {
        (self.refused, self.progress, self.is_abandoned, self.error) = (None, now, false, None);
    }

    /// The list of this round is not waited for any longer.
    pub(super) fn stop_waiting(&mut self) {
        self.is_abandoned = true;
    }

    /// Ends the wait for this relist's list: it is complete, or the watch is unavailable.
    pub(super) fn settle(&mut self) {
        self.settled = true;
    }

    /// Records a refusal. Returns whether refusals have been repeated for [`REFUSED_FOR`].
    pub(super) fn refused(&mut self, now: Instant) -> bool {
        match self.refused {
            Some(since) => now.saturating_duration_since(since) >= REFUSED_FOR,
            None => {
                self.refused = Some(now);
                false
            }
        }
    }

    /// It failed in another way.
    pub(super) fn failed(&mut self, error: String) {
        (self.refused, self.error) = (None, Some(error));
    }

    /// Returns when the leader stops waiting for the list of this round.
    pub(super) fn ends(&self) -> Option<Instant> {
        (!self.settled)
            .then_some(self.progress)
            .and_then(|progress| progress.checked_add(LIST_TIMEOUT))
    }

    /// Returns the reason why there is no list, for messages.
    pub(super) fn error_message(&self) -> String {
        let error = self.error.as_deref().unwrap_or("does not answer");
        format!("the API server {error}; the hub tries again, and its log has details")
    }
}

#[cfg(test)]
mod tests {
    use crate::ordered_lock::LeafMutex;
    use futures::FutureExt;
    use futures::channel::mpsc;

    use super::*;
    use crate::relist_barrier::RelistBarrier;

    #[test]
    fn unrequested_list_waits_for_a_renewal_of_the_lead() {
        let (rounds, before) = (RelistBarrier::default(), Instant::now());
        rounds.renewed(Some(before));
        let (sender, message) = mpsc::unbounded::<WatchEvent<&str>>();
        let message = LeafMutex::new(Some(message));
        let begin = move || {
            message
                .lock()
                .take()
                .map_or_else(|| futures::stream::pending().boxed(), StreamExt::boxed)
        };
        let mut events = RelistingWatch::new(rounds.subscribe(), begin);
        let list = |name| {
            for event in [
                Event::Init,
                Event::InitApply(name),
                Event::InitDone,
                Event::Apply(name),
            ] {
                sender.unbounded_send(Ok(event)).unwrap();
            }
        };
        let mut next = || match events.next().now_or_never() {
            Some(Some(Ok(event))) => format!("{event:?}"),
            Some(_) => "relist".to_owned(),
            None => "waits".to_owned(),
        };
        list("a");
        assert_eq!(
            [next(), next(), next(), next()],
            ["Init", "InitApply(\"a\")", "InitDone", "Apply(\"a\")"]
        );
        list("b");
        assert_eq!([next(), next(), next()], ["Init", "waits", "waits"]);
        rounds.renewed(Some(before));
        assert_eq!(next(), "waits");
        rounds.renewed(Some(Instant::now()));
        assert_eq!(
            [next(), next(), next()],
            ["InitApply(\"b\")", "InitDone", "Apply(\"b\")"]
        );
        // Without the lead nothing is sent. With a new lead all is relisted.
        list("c");
        assert_eq!([next(), next()], ["Init", "waits"]);
        rounds.renewed(None);
        assert_eq!(
            [next(), next(), next()],
            ["InitApply(\"c\")", "InitDone", "Apply(\"c\")"]
        );
        rounds.renewed(Some(before));
        list("d");
        assert_eq!([next(), next()], ["Init", "waits"]);
        rounds.begin();
        assert_eq!([next(), next()], ["relist", "waits"]);
    }

    #[test]
    fn refusal_counts_only_when_repeated() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut patience = WatchHealth::new(start);
        assert!(!patience.refused(at(0)) && !patience.refused(at(5)) && patience.refused(at(10)));
        patience.progress(at(11));
        assert!(!patience.refused(at(12)), "it was allowed meanwhile");
        patience.failed("answers 500".to_owned());
        assert!(
            !patience.refused(at(30)),
            "another failure says nothing about rights"
        );
    }

    #[test]
    fn silent_list_is_abandoned_once_a_round() {
        let start = Instant::now();
        let mut patience = WatchHealth::new(start);
        assert_eq!(patience.ends(), Some(start + LIST_TIMEOUT));
        let later = start + Duration::from_secs(20);
        patience.progress(later);
        assert_eq!(
            patience.ends(),
            Some(later + LIST_TIMEOUT),
            "a long list takes its time"
        );
        patience.failed("answers 500".to_owned());
        assert!(patience.error_message().contains("answers 500"));
        patience.settle();
        assert_eq!(patience.ends(), None);
        patience.begin(later);
        assert_eq!(patience.ends(), Some(later + LIST_TIMEOUT));
        // The next round does without it at once, until something comes.
        patience.stop_waiting();
        patience.settle();
        let next = later + 10 * LIST_TIMEOUT;
        patience.begin(next);
        assert!(patience.ends().is_some_and(|ends| ends < next));
        patience.progress(next);
        patience.begin(next);
        assert_eq!(patience.ends(), Some(next + LIST_TIMEOUT));
    }
}
