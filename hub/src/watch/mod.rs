//! Watches of the hub's API: rules and members whole, sources as metadata only; the content of a source is read only
//! when some rule selects it.
//!
//! A watch that is forbidden or missing gates only what needs it. Nothing is served before every watch that is needed
//! has delivered one complete list, or has been refused.
mod definitions;
mod grants;
mod members;
mod reader;
mod rules;
mod sources;

use std::time::Duration;

use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use kube::core::DeserializeGuard;
use kube::core::error_boundary::InvalidObject;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use std::fmt::Debug;

pub use definitions::watch_definition;
pub use grants::{watch_grants, watch_hub_namespaces};
pub use members::{take_in_member, watch_members};
pub use reader::{bury_sources, read_sources};
pub use rules::{RuleKind, watch_rules};
pub use sources::watch_sources;
use tokio::sync::watch;

/// Objects in one page of a list.
const PAGE: u32 = 500;
/// The server ends a watch after this long, and a connection that died without a word is noticed 5 s afterwards: until then
/// a revocation is not seen. The next watch goes on where this one ended, which costs one small request.
const WATCH_SECONDS: u32 = 50;
/// How long one read of one object may take.
const READ_LIMIT: Duration = Duration::from_secs(10);

type Heard<K> = Result<Event<K>, watcher::Error>;

/// The events of a kind, with backoff (0.8 s to 30 s, with jitter) on errors.
fn events<K>(api: Api<K>) -> impl Stream<Item = Heard<K>> + Send
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let config = watcher::Config::default().page_size(PAGE).timeout(WATCH_SECONDS);
    watcher::watcher(api, config).default_backoff()
}

/// The events of the one object of this name.
fn events_of<K>(api: Api<K>, name: &str) -> impl Stream<Item = Heard<K>> + Send + use<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let config = watcher::Config::default().fields(&format!("metadata.name={name}")).timeout(WATCH_SECONDS);
    watcher::watcher(api, config).default_backoff()
}

/// The events of one watch, which begins anew with a new list in each round (see [`crate::rounds`]).
struct Anew<K> {
    rounds: watch::Receiver<u64>,
    begin: Box<dyn Fn() -> BoxStream<'static, Heard<K>> + Send>,
    events: BoxStream<'static, Heard<K>>,
    /// The round that the events belong to.
    round: u64,
}

impl<K> Anew<K> {
    fn new(
        mut rounds: watch::Receiver<u64>,
        begin: impl Fn() -> BoxStream<'static, Heard<K>> + Send + 'static,
    ) -> Self {
        let round = *rounds.borrow_and_update();
        Self { rounds, events: begin(), begin: Box::new(begin), round }
    }

    /// Begins anew, with a new list.
    fn again(&mut self) {
        self.round = *self.rounds.borrow_and_update();
        self.events = (self.begin)();
    }

    /// The next event; `None`, if the watch was begun anew instead.
    async fn next(&mut self) -> Option<Heard<K>> {
        let event = tokio::select! {
            biased;
            Ok(()) = self.rounds.changed() => None,
            event = self.events.next() => event,
        };
        if event.is_none() {
            self.again();
        }
        event
    }
}

/// The events of a kind of Runnel's own. An object that this build cannot read (made by a newer one) is told and left
/// out, rather than breaking the whole watch.
fn own_events<K>(client: Client) -> impl Stream<Item = Heard<K>> + Send
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    events(Api::<DeserializeGuard<K>>::all(client)).filter_map(|event| async {
        match event {
            Ok(Event::Apply(guard)) => readable(guard).map(|object| Ok(Event::Apply(object))),
            Ok(Event::InitApply(guard)) => readable(guard).map(|object| Ok(Event::InitApply(object))),
            Ok(Event::Delete(guard)) => readable(guard).map(|object| Ok(Event::Delete(object))),
            Ok(Event::Init) => Some(Ok(Event::Init)),
            Ok(Event::InitDone) => Some(Ok(Event::InitDone)),
            Err(error) => Some(Err(error)),
        }
    })
}

fn readable<K: Resource<DynamicType = ()>>(guard: DeserializeGuard<K>) -> Option<K> {
    let explain = |invalid: &InvalidObject| {
        let (namespace, name) = (&invalid.metadata.namespace, &invalid.metadata.name);
        let kind = K::kind(&());
        tracing::error!(?namespace, ?name, why = invalid.error, "cannot read a {kind}: upgrade the hub, or correct it");
    };
    guard.0.inspect_err(explain).ok()
}

/// The API server's answer to a watch, if it is a refusal that a person must see to. `what` is the right that is
/// missing, if it is one.
fn refusal(error: &watcher::Error, what: &str) -> Option<String> {
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
        404 => Some("the API server does not know it".to_owned()),
        _ => None,
    }
}

/// Uid of the `kube-system` namespace, which tells clusters apart.
///
/// # Errors
/// A sentence that says what the API server answered.
pub async fn cluster_uid(client: &Client) -> Result<String, String> {
    use k8s_openapi::api::core::v1::Namespace;
    use kube::api::PartialObjectMeta;
    let api: Api<PartialObjectMeta<Namespace>> = Api::all(client.clone());
    match tokio::time::timeout(READ_LIMIT, api.get_metadata("kube-system")).await {
        Ok(Ok(namespace)) => Ok(namespace.metadata.uid.unwrap_or_default()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("the API server did not answer in time".to_owned()),
    }
}
