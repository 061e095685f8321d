//! Objects that are deleted with their CRD. The deletion of a CRD deletes every
//! object of its kind and names none. Such a deletion has no effect on copies, and neither has a
//! list without these objects. An object with a finalizer is terminating first, which counts like its deletion.
use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ListParams, PartialObjectMeta};
use kube::core::Status;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, Resource};

use super::{CRD_UNREADABLE, OBJECTS_LOST, READ_LIMIT, WatchEvent};
use crate::ordered_lock::LeafMutex;

/// The first interval of reads of a CRD that does not exist.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How often the interval doubles.
const DOUBLINGS: u32 = 3;

/// The state of a CRD, as the API server reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CrdState {
    /// It exists.
    Present,
    /// It is being deleted, or does not exist.
    Deleted,
    /// The hub may not read it.
    Forbidden,
    /// The API server did not answer.
    Unknown,
}

/// The state that is kept between watches.
#[derive(Default)]
struct FilterState {
    /// Objects of the list that is under way.
    listed: usize,
    /// The CRD was deleted, and its objects with it. Number of objects in the last list
    /// since: the objects exist again when there are some, and two lists have the same number.
    lost: Option<usize>,
    /// Before the first list nothing is lost.
    is_fresh: bool,
    /// The number of watches that ended since the last complete list.
    failures: u32,
}

/// What is known of the CRD of a kind of sources. Clones share it, so that it outlives a watch.
#[derive(Clone, Default)]
pub(super) struct CrdMemory {
    filter: Arc<LeafMutex<FilterState>>,
    /// Whether the kind has a CRD, once that was read.
    is_defined: Arc<OnceLock<bool>>,
}

impl CrdMemory {
    /// The next list counts: the index keeps the sources that it lacks.
    pub(super) fn forget_lost(&self) {
        self.filter.lock().lost = None;
    }

    /// Reads the state of the CRD of a kind, until the API server answers. A kind without CRD, which is built into the API
    /// server or served by another one, is always present.
    pub(super) async fn read(self, client: Client, resource: Arc<str>) -> CrdState {
        if self.is_defined.get() == Some(&false) || !may_have_crd(&resource) {
            return CrdState::Present;
        }
        let found = loop {
            match find_crd(client.clone(), &resource).await {
                FoundCrd::Unknown => tokio::time::sleep(POLL_INTERVAL).await,
                found => break found,
            }
        };
        match found {
            FoundCrd::Absent if !*self.is_defined.get_or_init(|| false) => CrdState::Present,
            found => {
                if matches!(found, FoundCrd::Present | FoundCrd::Terminating) {
                    self.is_defined.get_or_init(|| true);
                }
                found.into()
            }
        }
    }
}

/// Whether a kind, as `plural[.group]`, may have a CRD: the group of a CRD has a dot.
fn may_have_crd(resource: &str) -> bool {
    let group = resource.split_once('.').map(|(_, group)| group);
    group.is_some_and(|group| group.contains('.'))
}

/// Filters the events of a kind. If the CRD is deleted or unknown, an error replaces a
/// deletion and the end of a list, and the events end. Terminating objects of a list come at its end, with one read of the CRD.
pub(super) struct DeletedCrdFilter<Read> {
    memory: Arc<LeafMutex<FilterState>>,
    reader: Read,
    retry: Duration,
}

impl<Read, ReadState> DeletedCrdFilter<Read>
where
    Read: Fn() -> ReadState + Clone + Send + 'static,
    ReadState: Future<Output = CrdState> + Send + 'static,
{
    /// Creates a filter for the kind whose CRD `read` reads.
    pub(super) fn by(read: Read) -> Self {
        Self::remembering(&CrdMemory::default(), read)
    }

    /// The first list of this process counts, though the kind was not served before: without it nothing else is served either.
    pub(super) fn trusting_the_first_list(self) -> Self {
        self.memory.lock().is_fresh = true;
        self
    }

    /// Creates a filter that continues with what earlier watches have observed.
    pub(super) fn remembering(memory: &CrdMemory, read: Read) -> Self {
        Self {
            memory: memory.filter.clone(),
            reader: read,
            retry: POLL_INTERVAL,
        }
    }

    /// Filters a stream of events.
    pub(super) fn events<K: Resource + Send + Sync + 'static>(
        &self,
        events: BoxStream<'static, WatchEvent<K>>,
    ) -> BoxStream<'static, WatchEvent<K>> {
        let (memory, read, retry) = (self.memory.clone(), self.reader.clone(), self.retry);
        let pending = PendingEvents::of(events);
        let events = futures::stream::unfold(Some(pending), move |state| {
            let (memory, read) = (memory.clone(), read.clone());
            async move {
                let mut pending = state?;
                let is_checked = pending.is_checked;
                let event = pending.next(&memory).await?;
                if is_checked || !is_deletion(&event) {
                    return Some((event, Some(pending)));
                }
                let crd = read().await;
                if counts(&memory, &event, crd) {
                    return Some((pending.checked(event), Some(pending)));
                }
                let failures = memory.lock().failures.min(DOUBLINGS);
                tokio::time::sleep(retry * 2_u32.pow(failures)).await;
                let listed = memory.lock().listed;
                Some((Err(uncounted(crd, listed)), None))
            }
        });
        events.boxed()
    }
}

/// The events of a watch, with the terminating objects of a list at its end.
struct PendingEvents<K> {
    events: BoxStream<'static, WatchEvent<K>>,
    /// The terminating objects of the list that is under way, or has ended.
    terminating: VecDeque<K>,
    /// The list has ended and counts: what is left of it comes next.
    is_checked: bool,
}

impl<K: Resource + Send + Sync + 'static> PendingEvents<K> {
    fn of(events: BoxStream<'static, WatchEvent<K>>) -> Self {
        Self {
            events,
            terminating: VecDeque::new(),
            is_checked: false,
        }
    }

    async fn next(&mut self, memory: &LeafMutex<FilterState>) -> Option<WatchEvent<K>> {
        if self.is_checked {
            return Some(Ok(self.left_of_list()));
        }
        loop {
            let event = self.events.next().await?;
            note(memory, &event);
            match event {
                Ok(Event::InitApply(object)) if is_terminating(&object) => {
                    self.terminating.push_back(object);
                }
                event => {
                    if matches!(event, Ok(Event::Init)) {
                        self.terminating.clear();
                    }
                    return Some(event);
                }
            }
        }
    }

    /// The event that comes first, now that this one counts.
    fn checked(&mut self, event: WatchEvent<K>) -> WatchEvent<K> {
        if !matches!(event, Ok(Event::InitDone)) {
            return event;
        }
        Ok(self.left_of_list())
    }

    fn left_of_list(&mut self) -> Event<K> {
        let object = self.terminating.pop_front();
        self.is_checked = object.is_some();
        object.map_or(Event::InitDone, Event::InitApply)
    }
}

fn is_terminating<K: Resource>(object: &K) -> bool {
    object.meta().deletion_timestamp.is_some()
}

/// Whether an event shows that objects are deleted, or will be.
fn is_deletion<K: Resource>(event: &WatchEvent<K>) -> bool {
    match event {
        Ok(Event::Delete(_) | Event::InitDone) => true,
        Ok(Event::Apply(object)) => is_terminating(object),
        Ok(Event::Init | Event::InitApply(_)) | Err(_) => false,
    }
}

fn note<K: Resource>(memory: &LeafMutex<FilterState>, event: &WatchEvent<K>) {
    let mut memory = memory.lock();
    match event {
        Ok(Event::Init) => memory.listed = 0,
        Ok(Event::InitApply(object)) if !is_terminating(object) => memory.listed += 1,
        Err(watcher::Error::InitialListFailed(kube::Error::Api(status)))
            if status.code == 404 && !memory.is_fresh =>
        {
            memory.lost.get_or_insert(0);
        }
        _ => {}
    }
}

/// Whether a deletion or the end of a list counts.
fn counts<K>(memory: &LeafMutex<FilterState>, event: &WatchEvent<K>, crd: CrdState) -> bool {
    let mut memory = memory.lock();
    let is_end = matches!(event, Ok(Event::InitDone));
    let counts = match crd {
        CrdState::Unknown => false,
        CrdState::Deleted => {
            memory.lost = Some(0);
            false
        }
        CrdState::Forbidden => {
            if !is_end {
                memory.lost = Some(0);
            }
            false
        }
        CrdState::Present if is_end => {
            let listed = memory.listed;
            match memory.lost.replace(listed) {
                Some(before) if listed == 0 || listed != before => false,
                _ => {
                    (memory.lost, memory.is_fresh) = (None, false);
                    true
                }
            }
        }
        CrdState::Present => memory.lost.is_none(),
    };
    // The next list confirms one that has objects.
    let is_confirmed_soon = crd == CrdState::Present && memory.listed > 0;
    memory.failures = if counts || is_confirmed_soon {
        0
    } else {
        memory.failures + 1
    };
    counts
}

/// The error that replaces a deletion or the end of a list of this many objects.
fn uncounted(crd: CrdState, listed: usize) -> watcher::Error {
    let (code, reason, message) = match crd {
        CrdState::Present if listed == 0 => (503, OBJECTS_LOST, "the CRD is there without objects"),
        CrdState::Present => (503, "", "the objects of the CRD are not there again"),
        CrdState::Unknown => (503, "", "the API server did not return the CRD"),
        CrdState::Forbidden => (403, CRD_UNREADABLE, "the hub may not list the CRD"),
        CrdState::Deleted => (404, "", "the CRD is missing"),
    };
    watcher::Error::InitialListFailed(kube::Error::Api(Box::new(Status {
        code,
        reason: reason.to_owned(),
        message: message.to_owned(),
        ..Status::default()
    })))
}

/// What a list of a CRD by its name shows.
enum FoundCrd {
    Present,
    Terminating,
    Absent,
    /// The hub may not read it.
    Forbidden,
    /// The API server did not answer.
    Unknown,
}

impl From<FoundCrd> for CrdState {
    fn from(found: FoundCrd) -> Self {
        match found {
            FoundCrd::Present => CrdState::Present,
            FoundCrd::Forbidden => CrdState::Forbidden,
            FoundCrd::Terminating | FoundCrd::Absent => CrdState::Deleted,
            FoundCrd::Unknown => CrdState::Unknown,
        }
    }
}

/// Reads a CRD.
pub(super) async fn read_crd(client: Client, name: &str) -> CrdState {
    find_crd(client, name).await.into()
}

async fn find_crd(client: Client, name: &str) -> FoundCrd {
    let api: Api<PartialObjectMeta<CustomResourceDefinition>> = Api::all(client);
    let only = ListParams::default().fields(&format!("metadata.name={name}"));
    let listed = tokio::time::timeout(READ_LIMIT, api.list_metadata(&only)).await;
    match listed {
        Ok(Ok(list)) => match list.items.first() {
            Some(found) if found.metadata.deletion_timestamp.is_none() => FoundCrd::Present,
            Some(_) => FoundCrd::Terminating,
            None => FoundCrd::Absent,
        },
        Ok(Err(kube::Error::Api(status))) if status.code == 403 => FoundCrd::Forbidden,
        Ok(Err(_)) | Err(_) => FoundCrd::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::ConfigMap;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use kube::ResourceExt;

    /// An object of this name; `!` marks a terminating one.
    fn object(name: &str) -> ConfigMap {
        let mut object = ConfigMap::default();
        object.metadata.name = Some(name.to_owned());
        object.metadata.deletion_timestamp = name
            .ends_with('!')
            .then_some(Time(jiff::Timestamp::UNIX_EPOCH));
        object
    }

    fn list(names: &[&str]) -> Vec<WatchEvent<ConfigMap>> {
        let applied = names.iter().map(|name| Ok(Event::InitApply(object(name))));
        std::iter::once(Ok(Event::Init))
            .chain(applied)
            .chain([Ok(Event::InitDone)])
            .collect()
    }

    /// A filter, and the state of the CRD that it reads.
    struct Story {
        crd: Arc<LeafMutex<CrdState>>,
        memory: CrdMemory,
        reads: Arc<LeafMutex<usize>>,
    }

    impl Story {
        fn begin() -> Self {
            Self {
                crd: Arc::new(LeafMutex::new(CrdState::Present)),
                memory: CrdMemory::default(),
                reads: Arc::default(),
            }
        }

        fn set(&self, crd: CrdState) {
            *self.crd.lock() = crd;
        }

        /// Filters received events by the state of the CRD.
        async fn received(&self, events: Vec<WatchEvent<ConfigMap>>) -> String {
            let (crd, reads) = (self.crd.clone(), self.reads.clone());
            let filter = DeletedCrdFilter::remembering(&self.memory, move || {
                *reads.lock() += 1;
                let crd = *crd.lock();
                async move { crd }
            });
            let filter = DeletedCrdFilter {
                retry: Duration::ZERO,
                ..filter
            };
            let all: Vec<_> = filter
                .events(futures::stream::iter(events).boxed())
                .collect()
                .await;
            let text = all.into_iter().map(|event| match event {
                Ok(Event::Init) => "init".to_owned(),
                Ok(Event::InitApply(object) | Event::Apply(object)) => {
                    format!("+{}", object.name_any())
                }
                Ok(Event::InitDone) => "done".to_owned(),
                Ok(Event::Delete(object)) => format!("-{}", object.name_any()),
                Err(watcher::Error::InitialListFailed(kube::Error::Api(status))) => {
                    status.code.to_string()
                }
                Err(_) => "failed".to_owned(),
            });
            text.collect::<Vec<_>>().join(" ")
        }
    }

    fn deletion() -> Vec<WatchEvent<ConfigMap>> {
        vec![
            Ok(Event::Delete(object("a"))),
            Ok(Event::Delete(object("b"))),
        ]
    }

    #[tokio::test]
    async fn objects_deleted_with_their_crd_are_ignored() {
        let story = Story::begin();
        assert_eq!(story.received(list(&["a", "b"])).await, "init +a +b done");
        assert_eq!(story.received(deletion()).await, "-a -b");

        story.set(CrdState::Unknown);
        assert_eq!(story.received(deletion()).await, "503");
        story.set(CrdState::Present);
        assert_eq!(
            story.received(list(&[])).await,
            "init done",
            "nobody has deleted the CRD"
        );

        story.set(CrdState::Deleted);
        assert_eq!(story.received(deletion()).await, "404");
        assert_eq!(story.received(list(&["b"])).await, "init +b 404");
        // It is there again, and its objects are not yet.
        story.set(CrdState::Present);
        assert_eq!(story.received(list(&[])).await, "init 503");
        assert_eq!(story.received(list(&[])).await, "init 503");
        assert_eq!(story.received(list(&["a"])).await, "init +a 503");
        assert_eq!(story.received(list(&["a", "b"])).await, "init +a +b 503");
        assert_eq!(story.received(list(&["a", "b"])).await, "init +a +b done");
        assert_eq!(story.received(deletion()).await, "-a -b");
    }

    #[tokio::test]
    async fn objects_terminating_with_their_crd_are_ignored() {
        let story = Story::begin();
        let marked = || {
            vec![
                Ok(Event::Apply(object("a!"))),
                Ok(Event::Apply(object("b"))),
            ]
        };
        assert_eq!(story.received(marked()).await, "+a! +b");
        for (crd, code) in [
            (CrdState::Unknown, "503"),
            (CrdState::Deleted, "404"),
            (CrdState::Forbidden, "403"),
        ] {
            story.set(crd);
            assert_eq!(story.received(marked()).await, code);
            assert_eq!(
                story.received(list(&["a!", "b", "c!"])).await,
                format!("init +b {code}")
            );
        }
        // After an unreadable CRD a list counts once it is confirmed.
        story.set(CrdState::Present);
        assert_eq!(story.received(marked()).await, "503");
        assert_eq!(story.received(list(&["a!", "b"])).await, "init +b 503");
        *story.reads.lock() = 0;
        assert_eq!(
            story.received(list(&["a!", "b", "c!"])).await,
            "init +b +a! +c! done"
        );
        assert_eq!(*story.reads.lock(), 1, "one read for the whole list");
    }

    #[test]
    fn only_a_group_with_a_dot_may_have_a_crd() {
        let may_have_crd = |resource| may_have_crd(resource);
        assert!(may_have_crd("widgets.example.org") && may_have_crd("routes.gateway.k8s.io"));
        assert!(!may_have_crd("configmaps") && !may_have_crd("deployments.apps"));
    }
}
