//! Objects that are deleted with their CRD. The deletion of a CRD deletes every
//! object of its kind and names none. Such a deletion has no effect on copies, and neither has a
//! list without these objects.
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ListParams, PartialObjectMeta};
use kube::core::Status;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client};

use super::{READ_LIMIT, WatchEvent};
use crate::ordered_lock::LeafMutex;

/// The interval of reads of a CRD that does not exist.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The state of a CRD, as the API server reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CrdState {
    /// It exists, or the hub may not read it.
    Present,
    /// It is being deleted, or does not exist.
    Deleted,
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
        if self.is_defined.get() == Some(&false) {
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

/// Filters the events of a kind. If the CRD is deleted or unknown, an error replaces a
/// deletion and the end of a list, and the events end.
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

    /// Creates a filter that continues with what earlier watches have observed.
    pub(super) fn remembering(memory: &CrdMemory, read: Read) -> Self {
        Self {
            memory: memory.filter.clone(),
            reader: read,
            retry: POLL_INTERVAL,
        }
    }

    /// Filters a stream of events.
    pub(super) fn events<K: Send + Sync + 'static>(
        &self,
        events: BoxStream<'static, WatchEvent<K>>,
    ) -> BoxStream<'static, WatchEvent<K>> {
        let (memory, read, again) = (self.memory.clone(), self.reader.clone(), self.retry);
        let events = futures::stream::unfold(Some(events), move |state| {
            let (memory, read) = (memory.clone(), read.clone());
            async move {
                let mut events = state?;
                let event = events.next().await?;
                let counts = match &event {
                    Ok(Event::Delete(_) | Event::InitDone) => counts(&memory, &event, read().await),
                    other => {
                        note(&memory, other);
                        true
                    }
                };
                if counts {
                    return Some((event, Some(events)));
                }
                tokio::time::sleep(again).await;
                Some((Err(not_found_error()), None))
            }
        });
        events.boxed()
    }
}

fn note<K>(memory: &LeafMutex<FilterState>, event: &WatchEvent<K>) {
    let mut memory = memory.lock();
    match event {
        Ok(Event::Init) => memory.listed = 0,
        Ok(Event::InitApply(_)) => memory.listed += 1,
        Err(watcher::Error::InitialListFailed(kube::Error::Api(status))) if status.code == 404 => {
            memory.lost.get_or_insert(0);
        }
        _ => {}
    }
}

/// Whether a deletion or the end of a list counts.
fn counts<K>(memory: &LeafMutex<FilterState>, event: &WatchEvent<K>, crd: CrdState) -> bool {
    let mut memory = memory.lock();
    match (crd, event) {
        (CrdState::Unknown, _) => false,
        (CrdState::Deleted, _) => {
            memory.lost = Some(0);
            false
        }
        (CrdState::Present, Ok(Event::InitDone)) => {
            let listed = memory.listed;
            match memory.lost.replace(listed) {
                Some(before) if listed == 0 || listed != before => false,
                _ => {
                    memory.lost = None;
                    true
                }
            }
        }
        (CrdState::Present, _) => memory.lost.is_none(),
    }
}

/// The answer of an API server without the kind.
fn not_found_error() -> watcher::Error {
    watcher::Error::InitialListFailed(kube::Error::Api(Box::new(Status {
        code: 404,
        message: "the CRD is missing, or its objects are not there again".to_owned(),
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
            FoundCrd::Present | FoundCrd::Forbidden => CrdState::Present,
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

    fn list(names: &[&'static str]) -> Vec<WatchEvent<&'static str>> {
        let applied = names.iter().map(|name| Ok(Event::InitApply(*name)));
        std::iter::once(Ok(Event::Init))
            .chain(applied)
            .chain([Ok(Event::InitDone)])
            .collect()
    }

    /// Filters received events by the state of the CRD.
    async fn received<Read, ReadState>(
        defined: &DeletedCrdFilter<Read>,
        events: Vec<WatchEvent<&'static str>>,
    ) -> String
    where
        Read: Fn() -> ReadState + Clone + Send + 'static,
        ReadState: Future<Output = CrdState> + Send + 'static,
    {
        let all: Vec<_> = defined
            .events(futures::stream::iter(events).boxed())
            .collect()
            .await;
        let text = all.into_iter().map(|event| match event {
            Ok(Event::Init) => "init".to_owned(),
            Ok(Event::InitApply(name) | Event::Apply(name)) => format!("+{name}"),
            Ok(Event::InitDone) => "done".to_owned(),
            Ok(Event::Delete(name)) => format!("-{name}"),
            Err(_) => "unknown".to_owned(),
        });
        text.collect::<Vec<_>>().join(" ")
    }

    #[tokio::test]
    async fn objects_deleted_with_their_crd_are_ignored() {
        let now = Arc::new(LeafMutex::new(CrdState::Present));
        let seen = now.clone();
        let filter = DeletedCrdFilter::by(move || {
            let seen = seen.clone();
            async move { *seen.lock() }
        });
        let defined = DeletedCrdFilter {
            retry: Duration::ZERO,
            ..filter
        };
        let deletion = || vec![Ok(Event::Delete("a")), Ok(Event::Delete("b"))];
        assert_eq!(
            received(&defined, list(&["a", "b"])).await,
            "init +a +b done"
        );
        assert_eq!(received(&defined, deletion()).await, "-a -b");

        *now.lock() = CrdState::Unknown;
        assert_eq!(received(&defined, deletion()).await, "unknown");
        *now.lock() = CrdState::Present;
        assert_eq!(
            received(&defined, list(&[])).await,
            "init done",
            "nobody has deleted the CRD"
        );

        *now.lock() = CrdState::Deleted;
        assert_eq!(received(&defined, deletion()).await, "unknown");
        assert_eq!(received(&defined, list(&["b"])).await, "init +b unknown");
        // It is there again, and its objects are not yet.
        *now.lock() = CrdState::Present;
        assert_eq!(received(&defined, list(&[])).await, "init unknown");
        assert_eq!(received(&defined, list(&[])).await, "init unknown");
        assert_eq!(received(&defined, list(&["a"])).await, "init +a unknown");
        assert_eq!(
            received(&defined, list(&["a", "b"])).await,
            "init +a +b unknown"
        );
        assert_eq!(
            received(&defined, list(&["a", "b"])).await,
            "init +a +b done"
        );
        assert_eq!(received(&defined, deletion()).await, "-a -b");
    }
}
