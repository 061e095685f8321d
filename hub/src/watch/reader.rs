//! Reads the content of selected sources, and expires deleted ones after their grace period.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use http::StatusCode;
use kube::api::{DynamicObject, GetParams, Request};
use kube::{Client, Resource, ResourceExt};
use runnel_proto::json_nodes::{self, OBJECT_NODES};
use runnel_proto::model::{Kind, SourceRef};
use runnel_transport::pages::{PageSize, parse_page};
use runnel_transport::readable::Readable;

use super::READ_LIMIT;
use super::list::{ListError, describe, page, page_params};
use super::sources::api_resource;
use crate::hub_state::{HubState, until};
use crate::relist_barrier::Watched;
use runnel_hub_core::audit::{ChangeCause, ChangeKind};
use runnel_hub_core::index::{Index, version_number};
use runnel_hub_core::plan::{SourceState, UnsupportedSource, is_never_a_source, read_source};
use tokio::sync::{AcquireError, Semaphore, SemaphorePermit};

/// Reads at a time.
const READS: usize = 8;
/// Time limit of a list with all of its pages: other lists wait for it.
const LIST_LIMIT: Duration = Duration::from_secs(30);
/// The code of the answer of an API server whose cache has not reached a version in time.
const TOO_NEW: u16 = StatusCode::GATEWAY_TIMEOUT.as_u16();
/// The JSON nodes that may be decoded at a time by reads of single objects, each of which costs about 1 KiB.
static DECODING: Semaphore = Semaphore::const_new(OBJECT_NODES);
/// Objects with at most this many nodes take none of it, so that large ones do not delay them.
const SMALL: usize = 2_000;
/// Delay before an unreadable source is read again.
const RETRY_DELAY: Duration = Duration::from_secs(5);

/// Reads the sources that the index requests; one read per source and one list at a time. Never
/// returns.
pub async fn read_sources(client: Client, hub_state: Arc<HubState>) {
    let mut queue = ReadQueue::default();
    let mut reads: FuturesUnordered<BoxFuture<'static, ReadResult>> = FuturesUnordered::new();
    let mut failed: Vec<(Instant, SourceRef)> = Vec::new();
    loop {
        let now = Instant::now();
        queue.add(hub_state.queues.to_read.take());
        queue.add(
            failed
                .extract_if(.., |(at, _)| *at <= now)
                .map(|(_, source)| source),
        );
        while reads.len() < READS {
            let all = |scope: &ListScope| {
                hub_state
                    .index
                    .read()
                    .sources()
                    .count_in(&scope.resource, &scope.namespace)
            };
            let Some(next) = queue.next(|scope| is_ready(&hub_state, scope), all) else {
                break;
            };
            let (client, hub_state) = (client.clone(), hub_state.clone());
            reads.push(match next {
                NextRead::One(source) => read(client, hub_state, source).boxed(),
                NextRead::List(scope, wanted) => {
                    read_by_list(client, hub_state, scope, wanted, LIST_LIMIT).boxed()
                }
            });
        }
        let next_try = failed.iter().map(|(at, _)| *at).min();
        tokio::select! {
            () = hub_state.queues.to_read.added() => {}
            Some(done) = reads.next(), if !reads.is_empty() => match done {
                ReadResult::One(source, is_done) => {
                    queue.read(&source, |source| hub_state.index.read().sources().is_read(source));
                    if !is_done {
                        failed.push((Instant::now() + RETRY_DELAY, source));
                    }
                }
                ReadResult::List(scope, wanted, left) => {
                    let index = hub_state.index.read();
                    queue.listed(scope, &wanted, left, |source| index.sources().is_read(source));
                }
            },
            () = until(next_try) => {}
        }
    }
}

/// The result of a read.
enum ReadResult {
    /// The result for this source: whether nothing must be retried.
    One(SourceRef, bool),
    /// A list for several sources, and those that are still unread.
    List(ListScope, BTreeSet<SourceRef>, BTreeSet<SourceRef>),
}

/// Whether sources may be read from there now. While the hub does not serve, they wait until all of them are known: then
/// one list reads them.
fn is_ready(hub_state: &HubState, scope: &ListScope) -> bool {
    let place = hub_state
        .settings
        .scope
        .place(&scope.resource, &scope.namespace);
    hub_state.leadership.serving_since().is_some()
        || hub_state
            .leadership
            .relist_barrier
            .have_all([Watched::Sources(place)])
}

/// Reads these sources into the index by a list. Sources that are not reached within `limit` are
/// returned, to be read individually.
async fn read_by_list(
    client: Client,
    hub_state: Arc<HubState>,
    scope: ListScope,
    wanted: BTreeSet<SourceRef>,
    limit: Duration,
) -> ReadResult {
    let mut left = wanted.clone();
    let list = list(&client, &hub_state, &scope, &mut left);
    let listed = tokio::time::timeout(limit, list).await;
    if let Err(why) = listed.unwrap_or(Err(ListError::Timeout)) {
        let (resource, namespace) = (&scope.resource, &scope.namespace);
        tracing::warn!(%resource, %namespace, %why, "cannot list sources with their content; reading them one by one");
    }
    ReadResult::List(scope, wanted, left)
}

/// Removes the sources of a list from `left`, until nothing is left to read or too much of the list
/// is not selected.
async fn list(
    client: &Client,
    hub_state: &Arc<HubState>,
    scope: &ListScope,
    left: &mut BTreeSet<SourceRef>,
) -> Result<(), ListError> {
    let kind = hub_state
        .kind(&scope.resource)
        .ok_or(ListError::NotServed)?;
    let namespace = Some(&*scope.namespace).filter(|namespace| !namespace.is_empty());
    let path = Request::new(DynamicObject::url_path(&api_resource(&kind), namespace));
    let (mut size, mut next, mut shown, wanted) =
        (PageSize::default(), None::<String>, 0, left.len());
    let mut all_readable = true;
    loop {
        let request = path.list(&page_params(size, next.as_deref()));
        let request = request.map_err(|_| ListError::NoSuchRequest)?;
        let bytes = match page(client, request, size).await? {
            Some(bytes) => bytes,
            None if size.shrink() => continue,
            None => return Err(ListError::TooLarge),
        };
        size.record_page_size(bytes.len());
        let (hub_state, kind, requested) = (hub_state.clone(), kind.clone(), left.clone());
        // Beside the threads that serve agents.
        let read = move || observe_page(&hub_state, &kind, &requested, &bytes);
        let taken = tokio::task::spawn_blocking(read).await;
        let Ok(Some(ListedPage {
            listed: seen,
            count,
            readable,
            continue_token,
        })) = taken
        else {
            return Err(ListError::Unreadable);
        };
        shown += count;
        all_readable &= readable;
        left.retain(|source| !seen.contains(source));
        if continue_token.is_none() && all_readable {
            // A source that is not in the list is deleted. The watch delivers the deletion.
            left.clear();
        }
        // Otherwise the list has more objects that are not known as sources.
        let is_worth_it = (wanted - left.len()) * 2 >= shown;
        if left.is_empty() || !is_worth_it || continue_token.is_none() {
            return Ok(());
        }
        next = continue_token;
    }
}

/// The content of one page.
struct ListedPage {
    /// The selected objects.
    listed: BTreeSet<SourceRef>,
    /// Number of objects.
    count: usize,
    /// Whether all of them could be read.
    readable: bool,
    /// The token for the next page.
    continue_token: Option<String>,
}

/// Observes the selected objects of a page.
fn observe_page(
    hub_state: &HubState,
    kind: &Kind,
    wanted: &BTreeSet<SourceRef>,
    bytes: &[u8],
) -> Option<ListedPage> {
    let mut page = ListedPage {
        listed: BTreeSet::new(),
        count: 0,
        readable: true,
        continue_token: None,
    };
    let metadata = parse_page(bytes, |object| {
        page.count += 1;
        let Readable::<DynamicObject>::Read(object) = object else {
            // It is read alone.
            page.readable = false;
            return;
        };
        let source = SourceRef::new(
            &kind.resource,
            &object.namespace().unwrap_or_default(),
            &object.name_any(),
        );
        if wanted.contains(&source) {
            observe(hub_state, kind, &source, *object);
            page.listed.insert(source);
        }
    });
    page.continue_token = metadata.ok()?.continue_.filter(|token| !token.is_empty());
    Some(page)
}

/// Reads one source into the index.
async fn read(client: Client, hub_state: Arc<HubState>, source: SourceRef) -> ReadResult {
    // A kind that is served again is listed again, and its objects are read then.
    let Some(kind) = hub_state.kind(&source.resource) else {
        return ReadResult::One(source, true);
    };
    let min_version = hub_state.index.read().sources().min_version(&source);
    let answer = get(&client, &kind, &source, min_version);
    let done = match tokio::time::timeout(READ_LIMIT, answer).await {
        Ok(Ok(Some(text))) => {
            let _permit = room(&text).await;
            match serde_json::from_str(&text) {
                Ok(Readable::Read(object)) => {
                    drop(text);
                    observe(&hub_state, &kind, &source, *object);
                    true
                }
                Ok(Readable::TooManyNodes(object)) => {
                    let version = version_number(object.resource_version.as_deref());
                    let refused = SourceState::Refused(UnsupportedSource::TooLarge);
                    let labels = object.labels.unwrap_or_default();
                    observe_body(&hub_state, &source, version, labels, refused);
                    true
                }
                Ok(Readable::Unreadable(_)) | Err(_) => unreadable(
                    &hub_state,
                    &source,
                    "it is not an object as Kubernetes has them",
                ),
            }
        }
        // The watch delivers the deletion.
        Ok(Ok(None)) => true,
        Ok(Err(error)) => unreadable(&hub_state, &source, &describe(&error)),
        Err(_) => unreadable(&hub_state, &source, "the API server did not answer in time"),
    };
    ReadResult::One(source, done)
}

/// Reads a source for a question: the index does not get to know it.
pub async fn read_once(client: &Client, hub_state: &HubState, source: &SourceRef) -> SourceState {
    let Some(kind) = hub_state.kind(&source.resource) else {
        return SourceState::Unreadable;
    };
    let answer = get(client, &kind, source, None);
    let Ok(Ok(Some(text))) = tokio::time::timeout(READ_LIMIT, answer).await else {
        return SourceState::Unreadable;
    };
    let _permit = room(&text).await;
    match serde_json::from_str::<Readable<DynamicObject>>(&text) {
        Ok(Readable::Read(object)) => body_of(hub_state, &kind, source, &object),
        Ok(Readable::TooManyNodes(_)) => SourceState::Refused(UnsupportedSource::TooLarge),
        Ok(Readable::Unreadable(_)) | Err(_) => SourceState::Unreadable,
    }
}

/// Reads an object in this version or a newer one. The API server answers from its cache, which had the version when its watch
/// delivered it, and asks etcd only without a version.
async fn get(
    client: &Client,
    kind: &Kind,
    source: &SourceRef,
    min_version: Option<u64>,
) -> kube::Result<Option<String>> {
    let path = DynamicObject::url_path(&api_resource(kind), source.optional_namespace());
    let path = Request::new(path);
    if let Some(version) = min_version {
        match text(
            client,
            &path,
            &source.name,
            &GetParams::at(&version.to_string()),
        )
        .await
        {
            Ok(text) => return Ok(Some(text)),
            Err(kube::Error::Api(status)) if status.is_not_found() => return Ok(None),
            // Another API server may be far behind the one that delivered the version.
            Err(kube::Error::Api(status)) if status.code == TOO_NEW => {}
            Err(error) => return Err(error),
        }
    }
    match text(client, &path, &source.name, &GetParams::default()).await {
        Ok(text) => Ok(Some(text)),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

async fn text(
    client: &Client,
    path: &Request,
    name: &str,
    params: &GetParams,
) -> kube::Result<String> {
    let request = path.get(name, params).map_err(kube::Error::BuildRequest)?;
    client.request_text(request).await
}

/// Waits until an object may be decoded.
async fn room(object: &str) -> Result<SemaphorePermit<'static>, AcquireError> {
    let nodes = json_nodes::count(object.as_bytes());
    let nodes = if nodes > SMALL {
        nodes.min(OBJECT_NODES)
    } else {
        0
    };
    DECODING
        .acquire_many(u32::try_from(nodes).unwrap_or_default())
        .await
}

fn unreadable(hub_state: &HubState, source: &SourceRef, why: &str) -> bool {
    tracing::warn!(%source, why, "cannot read a source; its copies are left unchanged; retrying");
    hub_state.change(|index| index.record_read_failure(source));
    false
}

fn observe(hub_state: &HubState, kind: &Kind, source: &SourceRef, mut object: DynamicObject) {
    object.metadata.managed_fields = None;
    let labels = object.labels().clone();
    if object.metadata.deletion_timestamp.is_some()
        || is_never_a_source(kind, &source.name, &labels)
    {
        return;
    }
    let version = version_number(object.metadata.resource_version.as_deref());
    let body = body_of(hub_state, kind, source, &object);
    if let SourceState::Read(content) = &body
        && content.has_unknown_kind()
    {
        // The kind may be new on the hub.
        hub_state.kind_missing.notify_one();
    }
    observe_body(hub_state, source, version, labels, body);
}

fn observe_body(
    hub_state: &HubState,
    source: &SourceRef,
    version: u64,
    labels: BTreeMap<String, String>,
    body: SourceState,
) {
    let is_edited = hub_state.edits.lock().contains_key(source);
    let read = |index: &mut Index| {
        let effect = index.read(source, version, labels, body);
        hub_state.follow_edit(index, source, &effect);
        effect
    };
    // A first read is the consequence of a new rule or of another edit, which is the cause.
    if is_edited {
        let cause = || ChangeCause::of(ChangeKind::SourceChanged, source.to_string());
        hub_state.change_because(cause, read);
    } else {
        hub_state.change(read);
    }
}

/// The content of an object as the API server gave it, or why it is none.
pub fn body_of(
    hub_state: &HubState,
    kind: &Kind,
    source: &SourceRef,
    object: &DynamicObject,
) -> SourceState {
    let Ok(object) = serde_json::to_value(object) else {
        return SourceState::Unreadable;
    };
    let kinds = hub_state.kinds.borrow();
    let key = &hub_state.settings.revision_key;
    read_source(kind, source, &object, &kinds, key)
}

/// Expires deleted sources after their grace period, and judges removals when they are due. Runs
/// until the end of the process.
pub async fn expire_deleted_sources(hub_state: Arc<HubState>) {
    let grace = hub_state.settings.source_gone_grace;
    loop {
        let (next, judgment) = {
            let index = hub_state.index.read();
            // A replica that does not serve judges nothing, and checks again when it begins to
            // serve.
            let judgment = index
                .fleet_guard()
                .due()
                .filter(|_| hub_state.leadership.serving_since().is_some());
            (index.sources().next_expiry(grace), judgment)
        };
        tokio::select! {
            () = hub_state.deadline_changed.notified() => {}
            () = until(next) => hub_state.change_because(|| ChangeCause::new(ChangeKind::SourceDeleted), |index| index.expire_deleted(Instant::now(), grace)),
            () = until(judgment) => hub_state.judge_due(),
        }
    }
}

/// Number of sources of one kind and namespace from which on a list is cheaper.
pub(super) const LIST_THRESHOLD: usize = 20;

/// The scope of one list: a kind and a place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ListScope {
    /// The kind, as `plural[.group]`.
    pub(super) resource: Arc<str>,
    /// The namespace; empty for a kind without namespaces.
    pub(super) namespace: Arc<str>,
}

impl ListScope {
    fn of(source: &SourceRef) -> Self {
        Self {
            resource: source.resource.clone(),
            namespace: source.namespace.clone(),
        }
    }
}

/// The next read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NextRead {
    /// One source.
    One(SourceRef),
    /// Several sources, by a list.
    List(ListScope, BTreeSet<SourceRef>),
}

/// The sources that wait to be read. No source is read twice at a time, and one list is read at a time.
#[derive(Default)]
pub(super) struct ReadQueue {
    waiting: BTreeMap<ListScope, BTreeSet<SourceRef>>,
    in_progress: BTreeSet<SourceRef>,
    is_listing: bool,
    /// Scopes without a list: it failed or is not worth it. Their pending sources are read
    /// individually.
    one_by_one: BTreeSet<ListScope>,
}

impl ReadQueue {
    /// Adds sources to the queue.
    pub(super) fn add(&mut self, sources: impl IntoIterator<Item = SourceRef>) {
        for source in sources {
            self.waiting
                .entry(ListScope::of(&source))
                .or_default()
                .insert(source);
        }
    }

    /// Returns what to read next, or the time of the next retry. `is_ready`: whether sources in
    /// this scope may be read. `all`: the number of known sources there, selected or not, because a
    /// list returns all of them.
    pub(super) fn next(
        &mut self,
        is_ready: impl Fn(&ListScope) -> bool,
        all: impl Fn(&ListScope) -> usize,
    ) -> Option<NextRead> {
        for (scope, sources) in &self.waiting {
            if !is_ready(scope) {
                continue;
            }
            if sources.len() >= LIST_THRESHOLD && !self.one_by_one.contains(scope) {
                if self.is_listing {
                    continue;
                }
                // If most sources are not selected, a list costs more than it saves.
                if 2 * sources.len() >= all(scope) {
                    let wanted: BTreeSet<_> =
                        sources.difference(&self.in_progress).cloned().collect();
                    if wanted.len() >= LIST_THRESHOLD {
                        self.is_listing = true;
                        return Some(self.take_next(NextRead::List(scope.clone(), wanted)));
                    }
                }
                self.one_by_one.insert(scope.clone());
            }
            if let Some(source) = sources
                .iter()
                .find(|source| !self.in_progress.contains(*source))
            {
                return Some(self.take_next(NextRead::One(source.clone())));
            }
        }
        None
    }

    fn take_next(&mut self, next: NextRead) -> NextRead {
        let scope = match &next {
            NextRead::One(source) => ListScope::of(source),
            NextRead::List(scope, _) => scope.clone(),
        };
        let Some(waiting) = self.waiting.get_mut(&scope) else {
            return next;
        };
        match &next {
            NextRead::One(source) => self.in_progress.extend(waiting.take(source)),
            NextRead::List(_, sources) => {
                waiting.retain(|source| !sources.contains(source));
                self.in_progress.extend(sources.iter().cloned());
            }
        }
        self.drop_if_empty(&scope);
        next
    }

    /// Ends the read of one source.
    pub(super) fn read(&mut self, source: &SourceRef, is_read: impl Fn(&SourceRef) -> bool) {
        self.finish_read(source, &is_read);
    }

    /// Ends a list. The sources in `left`, which it did not contain, are read individually.
    pub(super) fn listed(
        &mut self,
        scope: ListScope,
        wanted: &BTreeSet<SourceRef>,
        left: BTreeSet<SourceRef>,
        is_read: impl Fn(&SourceRef) -> bool,
    ) {
        self.is_listing = false;
        for source in wanted {
            self.finish_read(source, &is_read);
        }
        if !left.is_empty() {
            self.add(left);
            self.one_by_one.insert(scope);
        }
    }

    /// A source that was requested while it was read may be read already.
    fn finish_read(&mut self, source: &SourceRef, is_read: &impl Fn(&SourceRef) -> bool) {
        self.in_progress.remove(source);
        let scope = ListScope::of(source);
        let Some(waiting) = self.waiting.get_mut(&scope) else {
            return;
        };
        if waiting.contains(source) && is_read(source) {
            waiting.remove(source);
            self.drop_if_empty(&scope);
        }
    }

    fn drop_if_empty(&mut self, scope: &ListScope) {
        if self.waiting.get(scope).is_some_and(BTreeSet::is_empty) {
            self.waiting.remove(scope);
            self.one_by_one.remove(scope);
        }
    }
}

#[cfg(test)]
mod read_queue_tests {
    use super::*;

    fn sources(namespace: &str, range: std::ops::Range<usize>) -> Vec<SourceRef> {
        range
            .map(|number| SourceRef::new("configmaps", namespace, &format!("s{number:04}")))
            .collect()
    }

    fn next(queue: &mut ReadQueue, all: usize) -> Option<NextRead> {
        queue.next(|_| true, |_| all)
    }

    #[test]
    fn few_sources_are_read_one_by_one_and_none_twice_at_a_time() {
        let mut queue = ReadQueue::default();
        let few = sources("a", 0..2);
        queue.add(few.clone());
        assert_eq!(next(&mut queue, 2), Some(NextRead::One(few[0].clone())));
        // It has changed while it is read.
        queue.add([few[0].clone()]);
        assert_eq!(next(&mut queue, 2), Some(NextRead::One(few[1].clone())));
        assert_eq!(next(&mut queue, 2), None);
        queue.read(&few[0], |_| false);
        assert_eq!(next(&mut queue, 2), Some(NextRead::One(few[0].clone())));
    }

    #[test]
    fn many_sources_are_listed_one_namespace_at_a_time() {
        let mut queue = ReadQueue::default();
        queue.add(
            sources("a", 0..1000)
                .into_iter()
                .chain(sources("b", 0..30))
                .chain(sources("c", 0..1)),
        );
        let Some(NextRead::List(scope, wanted)) = next(&mut queue, 1000) else {
            panic!("no list")
        };
        assert_eq!((&*scope.namespace, wanted.len()), ("a", 1000));
        // Another namespace waits for its list, single sources do not.
        assert_eq!(
            next(&mut queue, 30),
            Some(NextRead::One(sources("c", 0..1).remove(0)))
        );
        assert_eq!(next(&mut queue, 30), None);
        queue.add(sources("a", 7..8));
        assert_eq!(next(&mut queue, 30), None, "it is being read");
        queue.add(sources("a", 500..900));
        let has_changed = &sources("a", 7..8)[0];
        queue.listed(scope, &wanted, BTreeSet::new(), |source| {
            source != has_changed
        });
        assert_eq!(
            next(&mut queue, 30),
            Some(NextRead::One(sources("a", 7..8).remove(0))),
            "it has changed since"
        );
        assert!(
            matches!(next(&mut queue, 30), Some(NextRead::List(scope, _)) if &*scope.namespace == "b")
        );
    }

    #[test]
    fn few_selected_among_many_are_read_one_by_one() {
        let mut queue = ReadQueue::default();
        queue.add(sources("a", 0..30));
        for read in 0..30 {
            assert!(
                matches!(next(&mut queue, 61), Some(NextRead::One(_))),
                "{read}"
            );
        }
        assert_eq!(next(&mut queue, 61), None);
        // It was decided for those alone.
        queue.add(sources("a", 100..140));
        assert!(
            matches!(next(&mut queue, 61), Some(NextRead::List(_, wanted)) if wanted.len() == 40)
        );
    }

    #[test]
    fn sources_that_a_list_left_out_are_read_one_by_one() {
        let mut queue = ReadQueue::default();
        queue.add(sources("a", 0..50));
        let Some(NextRead::List(scope, wanted)) = next(&mut queue, 50) else {
            panic!("no list")
        };
        queue.listed(
            scope,
            &wanted,
            sources("a", 10..50).into_iter().collect(),
            |_| true,
        );
        for read in 0..40 {
            assert!(
                matches!(next(&mut queue, 50), Some(NextRead::One(_))),
                "{read}"
            );
        }
        assert_eq!(next(&mut queue, 50), None);
    }

    #[test]
    fn sources_of_a_place_that_is_being_listed_wait() {
        let mut queue = ReadQueue::default();
        queue.add(sources("a", 0..3).into_iter().chain(sources("b", 0..1)));
        let ready = |scope: &ListScope| &*scope.namespace == "b";
        assert!(
            matches!(queue.next(ready, |_| 9), Some(NextRead::One(source)) if &*source.namespace == "b")
        );
        assert_eq!(queue.next(ready, |_| 9), None);
        assert!(queue.next(|_| true, |_| 9).is_some());
    }
}

#[cfg(test)]
#[path = "reader_tests.rs"]
mod tests;
