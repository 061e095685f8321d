//! Watches of the hub's API: rules and members whole, sources as metadata only; the content of a source is read only
//! when some rule selects it.
//!
//! A watch that is forbidden or missing gates only what needs it. Nothing is served before every watch that is needed
//! has delivered one complete list, or has been refused.
mod crd_deletion;
mod first_grant;
mod grants;
mod kind_places;
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
use runnel_api::limits::RULE_NODES;
use runnel_api::{DeletionPolicy, RemovalLimit};
use runnel_proto::json_nodes;
use runnel_transport::readable::Readable;
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::json;
use serde_json::value::RawValue;

use crate::relist_barrier::RelistSubscription;

pub use grants::{watch_crd, watch_fleet, watch_grants, watch_hub_namespaces};
pub use kinds::{DiscoveryError, read_kinds};
pub use list::{ListError, list_metadata};
pub use members::{observe_member, watch_members};
pub use reader::{body_of, expire_deleted_sources, read_once, read_sources};
pub use renderer::render_rules;
pub(crate) use rules::forget;
pub use rules::watch_rules;
pub use source_watches::watch_needed_sources;
pub use sources::{api_in, api_resource};

/// The number of objects in one page of a list. A user who may create an object can give it some
/// megabytes of labels, annotations and field managers, and a page is in memory as a whole.
const PAGE: u32 = 20;
/// The number of members in one page. The hub and its administrators alone write them, some KiB each, and there can be many.
const MEMBERS_PAGE: u32 = 200;
/// The server ends a watch after this time, and a dead connection is detected 5 s later. Until then
/// a revocation is not seen. The next watch continues where this one ended, which costs one small
/// request.
const WATCH_SECONDS: u32 = 50;
/// Time limit of one read of one object.
const READ_LIMIT: Duration = Duration::from_secs(10);

/// An event of a watch.
pub(crate) type WatchEvent<K> = Result<Event<K>, watcher::Error>;

/// The events of a kind, with backoff (0.8 s to 30 s, with jitter) on errors.
fn events<K>(api: Api<K>, page: u32) -> impl Stream<Item = WatchEvent<K>> + Send
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let config = watcher::Config::default()
        .page_size(page)
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
    /// A rule whose spec has this many JSON nodes, more than [`RULE_NODES`]. The object has another spec, of which only
    /// the terms of its removal are right.
    SpecDropped(Box<K>, usize),
    /// An object that this build cannot read, because a newer one wrote it. Only its existence is
    /// known.
    Unreadable(Box<ObjectMeta>),
}

impl<K: Resource> DecodedObject<K> {
    /// Returns the object, and the JSON nodes of its spec if it was dropped; `None` for an unreadable one.
    fn decoded(self) -> Option<(Box<K>, Option<usize>)> {
        match self {
            DecodedObject::Read(object) => Some((object, None)),
            DecodedObject::SpecDropped(object, nodes) => Some((object, Some(nodes))),
            DecodedObject::Unreadable(_) => None,
        }
    }

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
        let text = <Box<RawValue> as Deserialize>::deserialize(deserializer)?;
        if let Some((text, nodes)) = without_large_spec(text.get())
            && let Ok(Readable::Read(object)) = serde_json::from_str(&text)
        {
            return Ok(DecodedObject::SpecDropped(object, nodes));
        }
        let object = serde_json::from_str(text.get()).map_err(D::Error::custom)?;
        Ok(match object {
            Readable::Read(object) => DecodedObject::Read(object),
            Readable::Unreadable(known) | Readable::TooManyNodes(known) => {
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

/// Returns the text of a rule with another spec, and the JSON nodes of its own, if they are too many to decode.
fn without_large_spec(object: &str) -> Option<(String, usize)> {
    #[derive(Deserialize)]
    struct RuleText<'a> {
        #[serde(borrow)]
        kind: Cow<'a, str>,
        #[serde(borrow)]
        spec: &'a RawValue,
    }
    #[derive(Default, Deserialize, Serialize)]
    #[serde(rename_all = "camelCase", default)]
    struct RemovalSpec {
        deletion_policy: DeletionPolicy,
        removal_limit: RemovalLimit,
    }
    if json_nodes::count(object.as_bytes()) <= RULE_NODES {
        return None;
    }
    let rule: RuleText<'_> = serde_json::from_str(object).ok()?;
    let spec = rule.spec.get();
    let nodes = json_nodes::count(spec.as_bytes());
    if nodes <= RULE_NODES
        || !["DistributionRule", "ClusterDistributionRule"].contains(&&*rule.kind)
    {
        return None;
    }
    let kept: RemovalSpec = serde_json::from_str(spec).unwrap_or_default();
    let mut kept = serde_json::to_value(kept).ok()?;
    // It is at rest in every cluster, so that no copy is removed for not being selected.
    kept["sources"] = json!([]);
    kept["clusters"] = json!({"all": true});
    let (before, after) = object.split_once(spec)?;
    Some((format!("{before}{kept}{after}"), nodes))
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
            DecodedObject::Read(object) | DecodedObject::SpecDropped(object, _) => object.meta(),
            DecodedObject::Unreadable(meta) => meta,
        }
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        match self {
            DecodedObject::Read(object) | DecodedObject::SpecDropped(object, _) => {
                object.meta_mut()
            }
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
fn own_events<K>(
    client: Client,
    page: u32,
) -> impl Stream<Item = WatchEvent<DecodedObject<K>>> + Send
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    events(Api::<DecodedObject<K>>::all(client), page).inspect(|event| {
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

/// The reason of the error of a kind whose CRD the hub may not list.
const CRD_UNREADABLE: &str = "CustomResourceDefinitionForbidden";

/// Whether the hub may not list the CRD of a kind, so that it is unknown why its objects are deleted.
fn is_crd_unreadable(error: &watcher::Error) -> bool {
    matches!(
        error,
        watcher::Error::InitialListFailed(kube::Error::Api(status)) if status.reason == CRD_UNREADABLE
    )
}

/// The reason of the error of a kind whose CRD was deleted with all objects, and is there again.
const OBJECTS_LOST: &str = "ObjectsLost";

/// Whether the CRD of a kind was deleted with all objects, and is there again.
fn has_lost_objects(error: &watcher::Error) -> bool {
    matches!(
        error,
        watcher::Error::InitialListFailed(kube::Error::Api(status)) if status.reason == OBJECTS_LOST
    )
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
        403 if status.reason == CRD_UNREADABLE => Some(format!(
            "forbidden: {what}, and list on its CustomResourceDefinition"
        )),
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

/// Delay before a refused watch is retried, at first.
const MIN_REFUSAL_DELAY: Duration = Duration::from_secs(5);
/// The longest delay.
const MAX_REFUSAL_DELAY: Duration = Duration::from_secs(60);

/// Finds the failures of a watch that are to be logged: the first, one for another reason, and the end.
#[derive(Default)]
pub(super) struct FailureLog(Option<String>);

impl FailureLog {
    /// Whether a failure was not logged yet.
    pub(super) fn is_news(&mut self, why: &str) -> bool {
        self.0.replace(why.to_owned()).as_deref() != Some(why)
    }

    /// Whether logged failures end with this event of the watch. A list may be refused at its end.
    pub(super) fn ends<K>(&mut self, event: &WatchEvent<K>) -> bool {
        is_accepted(event) && self.0.take().is_some()
    }
}

/// Whether the API server has accepted the request of a watch, and the hub its answer.
fn is_accepted<K>(event: &WatchEvent<K>) -> bool {
    !matches!(event, Ok(Event::Init | Event::InitApply(_)) | Err(_))
}

/// The state of a watch.
pub(super) struct WatchHealth {
    /// Since when it is refused repeatedly.
    refused: Option<Instant>,
    /// The number of refusals since.
    refusals: u32,
    /// The failures that were logged.
    log: FailureLog,
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
            refusals: 0,
            log: FailureLog::default(),
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

    /// Records an event. Returns whether logged failures end with it.
    pub(super) fn record<K>(&mut self, event: &WatchEvent<K>, now: Instant) -> bool {
        if !matches!(event, Ok(Event::Init) | Err(_)) {
            (self.progress, self.is_abandoned, self.error) = (now, false, None);
        }
        if is_accepted(event) {
            (self.refused, self.refusals) = (None, 0);
        }
        self.log.ends(event)
    }

    /// Whether a failure was not logged yet.
    pub(super) fn is_news(&mut self, why: &str) -> bool {
        self.log.is_news(why)
    }

    /// Returns the delay until a refused watch is retried: until it is confirmed the shortest one, and then each time twice
    /// as long.
    pub(super) fn refusal_delay(&self) -> Duration {
        let doublings = self.refusals.saturating_sub(2).min(4);
        (MIN_REFUSAL_DELAY * 2_u32.pow(doublings)).min(MAX_REFUSAL_DELAY)
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
        self.refusals = self.refusals.saturating_add(1);
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

    fn rule_with(values: usize) -> serde_json::Value {
        let step = json!({"op": "add", "path": "/data/x", "value": vec![json!({"a": 0}); values]});
        json!({
            "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionRule",
            "metadata": {"name": "r", "namespace": "a", "uid": "u", "generation": 2},
            "spec": {
                "sources": [{"resources": ["configmaps"], "names": ["*"]}],
                "clusters": {"names": ["one"]},
                "overrides": [{"clusters": {"all": true}, "jsonPatch": [step]}],
                "deletionPolicy": "Retain",
            },
        })
    }

    #[test]
    fn rule_with_many_nodes_is_read_without_its_spec() {
        let read = |object: &serde_json::Value| {
            let object: DecodedObject<runnel_api::DistributionRule> =
                serde_json::from_str(&object.to_string()).unwrap();
            object.decoded().unwrap()
        };
        let (object, nodes) = read(&rule_with(RULE_NODES / 2 - 20));
        assert_eq!((nodes, object.spec.sources.len()), (None, 1));
        let (object, nodes) = read(&rule_with(150_000));
        assert!(nodes.is_some_and(|nodes| nodes > 300_000));
        assert!(object.spec.sources.is_empty() && object.spec.terms.overrides.is_empty());
        assert!(object.spec.terms.clusters.all);
        assert_eq!(object.spec.terms.deletion_policy, DeletionPolicy::Retain);
        assert_eq!(object.metadata.generation, Some(2));
        // Another kind keeps its spec, or is not decoded.
        let mut other = rule_with(150_000);
        other["kind"] = json!("Fleet");
        let object: DecodedObject<runnel_api::DistributionRule> =
            serde_json::from_str(&other.to_string()).unwrap();
        assert!(matches!(object, DecodedObject::Unreadable(_)));
    }

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
        patience.record(&Ok(Event::Delete(())), at(11));
        assert!(!patience.refused(at(12)), "it was allowed meanwhile");
        patience.failed("answers 500".to_owned());
        assert!(
            !patience.refused(at(30)),
            "another failure says nothing about rights"
        );
    }

    #[test]
    fn refused_watch_is_retried_each_minute_and_logged_once() {
        let start = Instant::now();
        let (mut patience, mut delays, mut lines) = (WatchHealth::new(start), vec![], 0);
        for _ in 0..8 {
            // A list that is refused at its end is no success.
            assert!(!patience.record(&Ok(Event::InitApply(())), start));
            patience.refused(start);
            lines += u32::from(patience.is_news("forbidden"));
            delays.push(patience.refusal_delay().as_secs());
        }
        assert_eq!((lines, delays), (1, vec![5, 5, 10, 20, 40, 60, 60, 60]));
        assert!(patience.is_news("not served"), "another reason");
        assert!(patience.record(&Ok(Event::<()>::InitDone), start));
        assert!(!patience.record(&Ok(Event::<()>::InitDone), start));
        patience.refused(start);
        assert_eq!(patience.refusal_delay(), MIN_REFUSAL_DELAY);
    }

    #[test]
    fn silent_list_is_abandoned_once_a_round() {
        let start = Instant::now();
        let mut patience = WatchHealth::new(start);
        assert_eq!(patience.ends(), Some(start + LIST_TIMEOUT));
        let later = start + Duration::from_secs(20);
        patience.record(&Ok(Event::InitApply(())), later);
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
        patience.record(&Ok(Event::InitApply(())), next);
        patience.begin(next);
        assert_eq!(patience.ends(), Some(next + LIST_TIMEOUT));
    }
}
