//! Lists objects and watches them, while the receiver exists.
//!
//! A watch that cannot continue lists again: after the API server has dropped the version, and
//! after its versions went back, as by a restore of etcd. The latter is checked after each
//! irregular end of a watch, because an API server accepts a watch from a future version and sends
//! nothing.
use std::convert::Infallible;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::StreamExt;
use kube::Client;
use kube::api::{ListParams, Request, WatchParams};
use kube::core::{Status, WatchEvent};
use runnel_transport::readable::Readable;
use serde::de::DeserializeOwned;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, sleep, timeout_at};
use tracing::Instrument;

use super::hint;
use super::pages::{PageSize, WatchError, in_time, parse, read};
use runnel_agent_core::reconciler::Event;

/// An API server that has not answered a watch for so long is reported: together with [`GRACE`] and the life of the watch of
/// namespaces that is noticed within 30 seconds.
const LOST_AFTER: Duration = Duration::from_secs(20);
/// How much later than asked for a server may end a watch.
const GRACE: Duration = Duration::from_secs(5);
/// How long a refused watch waits until it is tried again.
const AFTER_REFUSAL: Duration = Duration::from_secs(5);
/// A watch that has been open for so long without a failure works, also where nothing happens.
const SETTLED: Duration = Duration::from_secs(1);
/// After so many watches in a row that failed as soon as they were open, everything is listed: what they cannot show is passed over.
const FAILED_WATCHES: usize = 3;
/// Lists of one source that are less apart than this wait for one another.
const BETWEEN_LISTS: Duration = Duration::from_secs(30);
/// The waits after other failures.
const BACKOFF: [u64; 4] = [500, 1_000, 2_000, 5_000];

/// What is watched, and what becomes of what the watch shows.
pub(super) trait Source: Send {
    /// An object as it is read.
    type Object: DeserializeOwned + Clone + Debug + Send + 'static;
    /// A list begins.
    fn begins(&self) -> Event;
    /// An object exists; of a list or of the watch.
    fn seen(&self, object: Self::Object, listed: bool) -> Vec<Event>;
    /// An object is gone.
    fn gone(&self, object: Self::Object) -> Option<Event>;
    /// The list is complete.
    fn complete(&self) -> Event;
    /// The agent may not watch it.
    fn forbidden(&self, status: &Status) -> Event;
    /// The API server has not answered for a while; with the last HTTP status.
    fn lost(&self, status: u16) -> Event;
    /// It answers again.
    fn resumed(&self) -> Event;
    /// The version of an object.
    fn version(object: &Self::Object) -> Option<&str>;
    /// The resource, and the namespace where it is watched in one.
    fn name(&self) -> (&'static str, Option<&str>);
}

/// The receiver is gone.
struct Closed;

/// How a watch ended.
enum Ended {
    /// At the end of its time.
    InOrder,
    /// The connection was closed before: the API server may have been restarted.
    Early,
    /// The server has forgotten the version.
    Expired,
    /// The server refused, or was silent.
    Failed(WatchError),
}

/// A list and watch of one source.
pub(super) struct Follow<S> {
    pub(super) client: Client,
    pub(super) path: Request,
    /// Only the metadata of the objects is read.
    pub(super) metadata: bool,
    pub(super) labels: Option<String>,
    /// How long one watch lasts.
    pub(super) life: u32,
    pub(super) source: S,
    pub(super) events: mpsc::Sender<Event>,
    /// How many pages are read at once.
    pub(super) pages: Arc<Semaphore>,
    /// How large pages may be, as the lists so far have shown.
    page_size: PageSize,
    answered_at: Instant,
    lost: Option<u16>,
    /// A list or watch was forbidden since the last list.
    refused: bool,
    failures: usize,
    /// How many watches in a row have failed as soon as they were open.
    failed_watches: usize,
    /// How long after the last answer a failure is reported.
    pub(super) lost_after: Duration,
}

impl<S: Source> Follow<S> {
    pub(super) fn new(
        client: Client,
        path: String,
        source: S,
        events: mpsc::Sender<Event>,
        pages: Arc<Semaphore>,
        life: u32,
    ) -> Self {
        let path = Request::new(path);
        let (metadata, labels, answered_at) = (false, None, Instant::now());
        Self {
            client,
            path,
            metadata,
            labels,
            life,
            source,
            events,
            pages,
            page_size: PageSize::default(),
            answered_at,
            lost: None,
            refused: false,
            failures: 0,
            failed_watches: 0,
            lost_after: LOST_AFTER,
        }
    }

    /// Watches until the receiver is gone.
    pub(super) async fn run(mut self) {
        let (resource, namespace) = self.source.name();
        let span = tracing::info_span!("watch", resource, namespace);
        let Err(Closed) = self.go().instrument(span).await;
    }

    async fn go(&mut self) -> Result<Infallible, Closed> {
        loop {
            self.send(self.source.begins()).await?;
            match self.list().await? {
                Ok(version) => {
                    // The list says more than that the server answers.
                    (self.refused, self.lost, self.answered_at) = (false, None, Instant::now());
                    self.send(self.source.complete()).await?;
                    let listed_at = Instant::now();
                    self.watch(version).await?;
                    if listed_at.elapsed() < BETWEEN_LISTS {
                        self.wait().await;
                    }
                }
                Err(error) => self.failed(&error).await?,
            }
        }
    }

    async fn send(&self, event: Event) -> Result<(), Closed> {
        self.events.send(event).await.map_err(|_| Closed)
    }

    /// A watch works.
    async fn is_answered(&mut self) -> Result<(), Closed> {
        (self.answered_at, self.failures, self.failed_watches) = (Instant::now(), 0, 0);
        if self.lost.take().is_some() {
            self.send(self.source.resumed()).await?;
        }
        Ok(())
    }

    /// Lists everything, and returns the version from which to watch.
    async fn list(&mut self) -> Result<Result<String, WatchError>, Closed> {
        let mut next = None;
        loop {
            let _permit = self
                .pages
                .clone()
                .acquire_owned()
                .await
                .map_err(|_| Closed)?;
            let size = self.page_size;
            let bytes = match self.page(size.limit(), next.as_deref(), size.bytes()).await {
                Ok(Some(bytes)) => bytes,
                Ok(None) if self.page_size.shrink() => continue,
                // A page may be too large for its time: the next list has smaller ones.
                Err(WatchError::Late) => {
                    self.page_size.late();
                    return Ok(Err(WatchError::Late));
                }
                Ok(None) => return Ok(Err(WatchError::Unanswered)),
                Err(error) => return Ok(Err(error)),
            };
            self.page_size.fits(bytes.len());
            let (mut events, mut unreadable) = (vec![], 0u32);
            let metadata = parse(&bytes, |object| match object {
                Readable::Read(object) => events.extend(self.source.seen(*object, true)),
                Readable::Unreadable(_) => unreadable += 1,
            });
            let metadata = match metadata {
                Ok(metadata) => metadata,
                Err(error) => return Ok(Err(error)),
            };
            drop(bytes);
            if unreadable > 0 {
                tracing::warn!(
                    "a list has {unreadable} objects that cannot be read: they are left out"
                );
            }
            for event in events {
                self.send(event).await?;
            }
            next = metadata.continue_.filter(|token| !token.is_empty());
            if next.is_none() {
                self.page_size.complete();
                return Ok(metadata.resource_version.ok_or(WatchError::Unanswered));
            }
        }
    }

    async fn page(
        &self,
        limit: u32,
        next: Option<&str>,
        bytes: usize,
    ) -> Result<Option<Vec<u8>>, WatchError> {
        let mut params = ListParams {
            label_selector: self.labels.clone(),
            ..ListParams::default()
        }
        .limit(limit);
        if let Some(token) = next {
            params = params.continue_token(token);
        }
        let request = if self.metadata {
            self.path.list_metadata(&params)
        } else {
            self.path.list(&params)
        };
        read(
            &self.client,
            request.map_err(|_| WatchError::Unanswered)?,
            bytes,
        )
        .await
    }

    /// Watches until a list is needed.
    async fn watch(&mut self, mut version: String) -> Result<(), Closed> {
        let mut is_stale = false;
        loop {
            if is_stale {
                match self.has_gone_back(&version).await {
                    Ok(true) => {
                        tracing::warn!("the API server's versions went back: listing again");
                        return Ok(());
                    }
                    Ok(false) => is_stale = false,
                    Err(error) => {
                        self.failed(&error).await?;
                        if self.refused {
                            return Ok(());
                        }
                        continue;
                    }
                }
            }
            match self.watch_once(&mut version).await? {
                Ended::InOrder => {}
                Ended::Early => {
                    is_stale = true;
                    self.wait().await;
                }
                Ended::Expired => return Ok(()),
                Ended::Failed(error) => {
                    is_stale = true;
                    self.failed(&error).await?;
                    if self.failed_watches >= FAILED_WATCHES {
                        self.failed_watches = 0;
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Whether the API server's present version is older than one that it has given before.
    async fn has_gone_back(&self, before: &str) -> Result<bool, WatchError> {
        let params = ListParams {
            label_selector: self.labels.clone(),
            ..ListParams::default()
        }
        .limit(1);
        let request = self
            .path
            .list_metadata(&params)
            .map_err(|_| WatchError::Unanswered)?;
        let bytes = read(&self.client, request, PageSize::default().bytes())
            .await?
            .ok_or(WatchError::Unanswered)?;
        let metadata = parse(&bytes, |_: serde::de::IgnoredAny| {})?;
        let number = |version: &str| version.parse::<u64>().ok();
        let now = metadata.resource_version.as_deref().and_then(number);
        // Versions that cannot be compared say nothing.
        Ok(now
            .zip(number(before))
            .is_none_or(|(now, before)| now < before))
    }

    async fn watch_once(&mut self, version: &mut String) -> Result<Ended, Closed> {
        let params = WatchParams {
            label_selector: self.labels.clone(),
            ..WatchParams::default()
        }
        .timeout(self.life);
        let request = if self.metadata {
            self.path.watch_metadata(&params, version)
        } else {
            self.path.watch(&params, version)
        };
        let Ok(request) = request else {
            return Ok(Ended::Failed(WatchError::Unanswered));
        };
        let begin = Instant::now();
        let life = Duration::from_secs(self.life.into());
        let stream = match in_time(self.client.request_events::<Readable<S::Object>>(request)).await
        {
            Ok(stream) => stream,
            Err(WatchError::Refused(status)) if status.code == 410 => return Ok(Ended::Expired),
            Err(error) => return Ok(Ended::Failed(error)),
        };
        if self.refused {
            // It is allowed again: a list shows what happened meanwhile.
            return Ok(Ended::Expired);
        }
        let mut stream = std::pin::pin!(stream);
        let (settled, end) = (Instant::now() + SETTLED, begin + life + GRACE);
        // A server that fails as soon as it has begun to answer has not answered.
        let mut works = false;
        loop {
            let next =
                match timeout_at(if works { end } else { end.min(settled) }, stream.next()).await {
                    Ok(next) => next,
                    Err(_) if works => return Ok(Ended::Failed(WatchError::Unanswered)),
                    Err(_) => {
                        works = true;
                        self.is_answered().await?;
                        continue;
                    }
                };
            let event = match next {
                None if begin.elapsed() + GRACE >= life => return Ok(Ended::InOrder),
                None if works => return Ok(Ended::Early),
                None => return Ok(self.broke(works, WatchError::Unanswered)),
                Some(Ok(WatchEvent::Error(status))) if status.code == 410 => {
                    return Ok(Ended::Expired);
                }
                Some(Ok(WatchEvent::Error(status))) => {
                    return Ok(self.broke(works, WatchError::Refused(status)));
                }
                Some(Ok(event)) => event,
                Some(Err(error)) => return Ok(self.broke(works, error.into())),
            };
            if !std::mem::replace(&mut works, true) {
                self.is_answered().await?;
            }
            self.answered_at = Instant::now();
            match event {
                WatchEvent::Added(Readable::Read(object))
                | WatchEvent::Modified(Readable::Read(object)) => {
                    self.passed(S::version(&object), version);
                    for event in self.source.seen(*object, false) {
                        self.send(event).await?;
                    }
                }
                WatchEvent::Deleted(Readable::Read(object)) => {
                    self.passed(S::version(&object), version);
                    if let Some(event) = self.source.gone(*object) {
                        self.send(event).await?;
                    }
                }
                WatchEvent::Added(Readable::Unreadable(object))
                | WatchEvent::Modified(Readable::Unreadable(object))
                | WatchEvent::Deleted(Readable::Unreadable(object)) => {
                    tracing::debug!(
                        name = object.name,
                        namespace = object.namespace,
                        "an object cannot be read"
                    );
                    self.passed(object.resource_version.as_deref(), version);
                }
                WatchEvent::Bookmark(bookmark) => *version = bookmark.metadata.resource_version,
                WatchEvent::Error(_) => {}
            }
        }
    }

    /// An open watch has failed; whether it had worked before.
    fn broke(&mut self, worked: bool, error: WatchError) -> Ended {
        if !worked {
            self.failed_watches = self.failed_watches.saturating_add(1);
        }
        Ended::Failed(error)
    }

    fn passed(&self, passed: Option<&str>, version: &mut String) {
        if let Some(passed) = passed {
            passed.clone_into(version);
        }
    }

    /// Says why the watch failed, and waits until it is to be tried again: a missing right is said once, as it may stay missing
    /// for long.
    async fn failed(&mut self, error: &WatchError) -> Result<(), Closed> {
        if let WatchError::Refused(status) = error
            && status.code == 403
        {
            if !std::mem::replace(&mut self.refused, true) {
                tracing::warn!("this cannot be watched here yet: {}", hint(403));
            }
            // The core forgets a loss with it.
            (self.answered_at, self.lost) = (Instant::now(), None);
            self.send(self.source.forbidden(status)).await?;
            sleep(AFTER_REFUSAL).await;
            return Ok(());
        }
        let code = error.code();
        tracing::warn!(
            status = code,
            "a watch failed; trying again: {}",
            hint(code)
        );
        let begin = Instant::now();
        let wait = self.next_wait();
        let lost_at = self.answered_at + self.lost_after;
        if self.lost != Some(code) && (self.lost.is_some() || lost_at <= begin + wait) {
            sleep(lost_at.saturating_duration_since(begin)).await;
            self.lost = Some(code);
            self.send(self.source.lost(code)).await?;
        }
        sleep(wait.saturating_sub(begin.elapsed())).await;
        Ok(())
    }

    fn next_wait(&mut self) -> Duration {
        let wait = BACKOFF
            .get(self.failures)
            .or(BACKOFF.last())
            .copied()
            .unwrap_or_default();
        self.failures = self.failures.saturating_add(1);
        Duration::from_millis(wait)
    }

    async fn wait(&mut self) {
        let wait = self.next_wait();
        sleep(wait).await;
    }
}
