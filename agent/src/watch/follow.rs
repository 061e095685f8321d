//! A list and watch of one source, which continues after errors.
use std::convert::Infallible;
use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::StreamExt;
use kube::Client;
use kube::api::{GetParams, ListParams, Request, WatchParams};
use kube::core::{ListMeta, Status, WatchEvent};
use runnel_transport::ops::MovingPart;
use runnel_transport::pages::{PageSize, parse_page, read_page};
use runnel_transport::readable::{Identity, Readable};
use serde::de::DeserializeOwned;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tracing::Instrument;

use runnel_agent_core::reconciler::Event;

/// Returns what a person can do about a failed read or watch.
pub(super) fn hint(code: u16) -> &'static str {
    match code {
        0 => "the API server does not answer",
        401 => "the API server does not accept the agent's credentials",
        403 => "grant the agent the rights of its chart",
        404 => "the kind may not be served any more",
        410 => "the watch was too old and starts again",
        _ => "see the API server's log",
    }
}

/// Time without an answer after which a watch is reported as lost. With [`GRACE`] and the duration
/// of the watch of namespaces, a hanging API server is detected within 30 seconds.
const LOST_AFTER: Duration = Duration::from_secs(20);
/// Tolerance for the end of a watch after its requested duration.
const GRACE: Duration = Duration::from_secs(5);
/// Delay before a forbidden watch is retried.
const AFTER_REFUSAL: Duration = Duration::from_secs(5);
/// Time after which an open watch without a failure counts as working, even without events.
const SETTLED: Duration = Duration::from_secs(1);
/// Number of watches in a row that fail right after they open, after which everything is listed.
/// This skips events that the watches cannot deliver.
const FAILED_WATCHES: usize = 3;
/// Time between lists of one source below which the second list is delayed.
const MIN_LIST_INTERVAL: Duration = Duration::from_secs(30);
/// The delays after other failures, in milliseconds.
const BACKOFF: [u64; 4] = [500, 1_000, 2_000, 5_000];

/// The source of a watch, and the events for its objects.
pub(super) trait Source: Send {
    /// The type of the objects.
    type Object: DeserializeOwned + Clone + Debug + Send + 'static;
    /// Returns the event for the beginning of a list.
    fn list_started(&self) -> Event;
    /// Returns the events for an object of a list or of the watch.
    fn object_events(&self, object: Self::Object, listed: bool) -> Vec<Event>;
    /// Returns the event for a deleted object.
    fn deletion_event(&self, object: Self::Object) -> Option<Event>;
    /// Returns the event for an object of the watch that was not decoded: a former state of it is out of date.
    fn unreadable(&self, _: Identity) -> Option<Event> {
        None
    }
    /// Returns the event for the end of a list.
    fn complete(&self) -> Event;
    /// Returns the event for a missing permission.
    fn forbidden(&self, status: &Status) -> Event;
    /// Returns the event for a lost watch, with the last HTTP status.
    fn lost(&self, status: u16) -> Event;
    /// Returns the event for a watch that the API server answers again.
    fn resumed(&self) -> Event;
    /// Returns the resourceVersion of an object.
    fn version(object: &Self::Object) -> Option<&str>;
    /// Returns the name of an object.
    fn object_name(object: &Self::Object) -> Option<&str>;
    /// Returns the path at which an object must be read again, because its managed fields are of another version.
    fn other_version(&self, _: &Self::Object) -> Option<Request> {
        None
    }
    /// Handles that the API server does not know the kind.
    fn not_found(&self) {}
    /// Returns the resource, and the namespace if the watch covers only one.
    fn name(&self) -> (&str, Option<&str>);
}

/// The receiver was dropped.
pub(super) struct ReceiverDropped;

/// The end of a watch.
enum WatchEnd {
    /// The watch reached its duration.
    InOrder,
    /// The connection was closed earlier: the API server may have been restarted.
    Early,
    /// The server has dropped the version.
    Expired,
    /// The server refused, or did not answer.
    Failed(WatchError),
}

/// A list and watch of one source.
pub(super) struct Follow<S> {
    client: Client,
    path: Request,
    /// Whether only the metadata of the objects is read.
    pub(super) metadata: bool,
    /// The selector of labels.
    pub(super) labels: Option<String>,
    /// The duration of one watch, in seconds.
    life: u32,
    source: S,
    events: mpsc::Sender<Event>,
    /// The limit of the pages that are read at once.
    pages: Arc<Semaphore>,
    /// The size of the pages, adapted to earlier lists.
    page_size: PageSize,
    answered_at: Instant,
    lost: Option<u16>,
    /// Whether a list or watch was forbidden since the last list.
    refused: bool,
    failures: usize,
    /// The number of watches in a row that failed right after they opened.
    failed_watches: usize,
    /// Time after the last answer until a failure is reported.
    pub(super) lost_after: Duration,
    /// The watch as a part of the agent that must move.
    pub(super) part: Option<MovingPart>,
}

impl<S: Source> Follow<S> {
    pub(super) fn new(
        client: Client,
        path: String,
        source: S,
        events: mpsc::Sender<Event>,
        pages: Arc<Semaphore>,
        lifetime: u32,
    ) -> Self {
        let path = Request::new(path);
        let (metadata, labels, answered_at) = (false, None, Instant::now());
        Self {
            client,
            path,
            metadata,
            labels,
            life: lifetime,
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
            part: None,
        }
    }

    /// Watches until the receiver is dropped.
    pub(super) async fn run(mut self) {
        let (resource, namespace) = self.source.name();
        let span = tracing::info_span!("watch", resource, namespace);
        let Err(ReceiverDropped) = self.run_once().instrument(span).await;
    }

    async fn run_once(&mut self) -> Result<Infallible, ReceiverDropped> {
        loop {
            self.moved();
            self.send(self.source.list_started()).await?;
            match self.list().await? {
                Ok(version) => {
                    // A complete list also shows that the server answers.
                    (self.refused, self.lost, self.answered_at) = (false, None, Instant::now());
                    self.send(self.source.complete()).await?;
                    let listed_at = Instant::now();
                    self.watch(version).await?;
                    if listed_at.elapsed() < MIN_LIST_INTERVAL {
                        self.wait().await;
                    }
                }
                Err(error) => self.failed(&error).await?,
            }
        }
    }

    async fn send(&self, event: Event) -> Result<(), ReceiverDropped> {
        let sent = self.events.send(event).await;
        self.moved();
        sent.map_err(|_| ReceiverDropped)
    }

    /// Records that the watch moves, also while the API server fails. Each step between two calls has a timeout.
    fn moved(&self) {
        if let Some(part) = &self.part {
            part.moved();
        }
    }

    /// Records that a watch works.
    async fn is_answered(&mut self) -> Result<(), ReceiverDropped> {
        (self.answered_at, self.failures, self.failed_watches) = (Instant::now(), 0, 0);
        if self.lost.take().is_some() {
            self.send(self.source.resumed()).await?;
        }
        Ok(())
    }

    /// Lists everything, and returns the version from which to watch.
    async fn list(&mut self) -> Result<Result<String, WatchError>, ReceiverDropped> {
        let mut next = None;
        loop {
            let mut permit = std::pin::pin!(self.pages.clone().acquire_owned());
            // Each page of the lists before this one has a timeout, and there may be many.
            let _permit = loop {
                self.moved();
                if let Ok(permit) = timeout(ANSWER, &mut permit).await {
                    break permit.map_err(|_| ReceiverDropped)?;
                }
            };
            self.moved();
            let size = self.page_size;
            let bytes = match self.page(size.limit(), next.as_deref(), size.bytes()).await {
                Ok(Some(bytes)) => bytes,
                Ok(None) if self.page_size.shrink() => continue,
                // The page may be too large for the timeout, so that the next list uses smaller
                // pages.
                Err(WatchError::Timeout) => {
                    self.page_size.record_timeout();
                    return Ok(Err(WatchError::Timeout));
                }
                Ok(None) => return Ok(Err(WatchError::Unreadable)),
                Err(error) => return Ok(Err(error)),
            };
            self.page_size.record_page_size(bytes.len());
            let (mut events, mut unreadable, mut others) = (vec![], 0u32, vec![]);
            let metadata = parse(&bytes, |object| match object {
                Readable::Read(object) => match self.source.other_version(&object) {
                    Some(path) => others.push((path, *object)),
                    None => events.extend(self.source.object_events(*object, true)),
                },
                Readable::Unreadable(_) | Readable::TooManyNodes(_) => unreadable += 1,
            });
            let metadata = match metadata {
                Ok(metadata) => metadata,
                Err(error) => return Ok(Err(error)),
            };
            drop(bytes);
            if unreadable > 0 {
                tracing::warn!("a list has {unreadable} unreadable objects: they are skipped");
            }
            for event in events {
                self.send(event).await?;
            }
            for (path, object) in others {
                let object = self.read_again(path, object).await;
                for event in self.source.object_events(object, true) {
                    self.send(event).await?;
                }
            }
            next = metadata.continue_.filter(|token| !token.is_empty());
            if next.is_none() {
                self.page_size.complete();
                return Ok(metadata.resource_version.ok_or(WatchError::Unreadable));
            }
        }
    }

    /// Reads an object in another version. Returns the object as it is if that fails: the core then reads it itself.
    async fn read_again(&self, path: Request, object: S::Object) -> S::Object {
        self.moved();
        let Some(request) =
            S::object_name(&object).and_then(|name| path.get(name, &GetParams::default()).ok())
        else {
            return object;
        };
        let text = in_time(self.client.request_text(request)).await;
        match text.ok().and_then(|text| serde_json::from_str(&text).ok()) {
            Some(Readable::Read(read)) => *read,
            _ => object,
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

    /// Watches until a list is necessary.
    async fn watch(&mut self, mut version: String) -> Result<(), ReceiverDropped> {
        let mut is_stale = false;
        loop {
            self.moved();
            if is_stale {
                match self.has_version_regressed(&version).await {
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
                WatchEnd::InOrder => {}
                WatchEnd::Early => {
                    is_stale = true;
                    self.wait().await;
                }
                WatchEnd::Expired => return Ok(()),
                WatchEnd::Failed(error) => {
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

    /// Whether the API server's current version is older than an earlier one, or cannot be
    /// compared.
    async fn has_version_regressed(&self, before: &str) -> Result<bool, WatchError> {
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
            .ok_or(WatchError::Unreadable)?;
        let metadata = parse(&bytes, |_: serde::de::IgnoredAny| {})?;
        let number = |version: &str| version.parse::<u64>().ok();
        let now = metadata.resource_version.as_deref().and_then(number);
        // If the versions cannot be compared, they may have gone back.
        Ok(now
            .zip(number(before))
            .is_none_or(|(now, before)| now < before))
    }

    async fn watch_once(&mut self, version: &mut String) -> Result<WatchEnd, ReceiverDropped> {
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
            return Ok(WatchEnd::Failed(WatchError::Unanswered));
        };
        let begin = Instant::now();
        let lifetime = Duration::from_secs(self.life.into());
        let stream = match in_time(self.client.request_events::<Readable<S::Object>>(request)).await
        {
            Ok(stream) => stream,
            Err(WatchError::Refused(status)) if status.code == 410 => return Ok(WatchEnd::Expired),
            Err(error) => return Ok(WatchEnd::Failed(error)),
        };
        if self.refused {
            // The watch is allowed again. A list shows the changes meanwhile.
            return Ok(WatchEnd::Expired);
        }
        let mut stream = std::pin::pin!(stream);
        let (settled, end) = (Instant::now() + SETTLED, begin + lifetime + GRACE);
        // A response that fails right after its beginning does not count as an answer.
        let mut works = false;
        loop {
            let next =
                match timeout_at(if works { end } else { end.min(settled) }, stream.next()).await {
                    Ok(next) => next,
                    Err(_) if works => return Ok(WatchEnd::Failed(WatchError::Unanswered)),
                    Err(_) => {
                        works = true;
                        self.is_answered().await?;
                        continue;
                    }
                };
            let event = match next {
                None if begin.elapsed() + GRACE >= lifetime => return Ok(WatchEnd::InOrder),
                None if works => return Ok(WatchEnd::Early),
                None => return Ok(self.broke(works, WatchError::Unanswered)),
                Some(Ok(WatchEvent::Error(status))) if status.code == 410 => {
                    return Ok(WatchEnd::Expired);
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
                    let object = match self.source.other_version(&object) {
                        Some(path) => self.read_again(path, *object).await,
                        None => *object,
                    };
                    for event in self.source.object_events(object, false) {
                        self.send(event).await?;
                    }
                }
                WatchEvent::Deleted(Readable::Read(object)) => {
                    self.passed(S::version(&object), version);
                    if let Some(event) = self.source.deletion_event(*object) {
                        self.send(event).await?;
                    }
                }
                WatchEvent::Added(
                    Readable::Unreadable(object) | Readable::TooManyNodes(object),
                )
                | WatchEvent::Modified(
                    Readable::Unreadable(object) | Readable::TooManyNodes(object),
                )
                | WatchEvent::Deleted(
                    Readable::Unreadable(object) | Readable::TooManyNodes(object),
                ) => {
                    tracing::debug!(
                        name = object.name,
                        namespace = object.namespace,
                        "an object cannot be read"
                    );
                    self.passed(object.resource_version.as_deref(), version);
                    if let Some(event) = self.source.unreadable(*object) {
                        self.send(event).await?;
                    }
                }
                WatchEvent::Bookmark(bookmark) => *version = bookmark.metadata.resource_version,
                WatchEvent::Error(_) => {}
            }
        }
    }

    /// Records the failure of an open watch. `worked`: whether the watch had worked before.
    fn broke(&mut self, worked: bool, error: WatchError) -> WatchEnd {
        if !worked {
            self.failed_watches = self.failed_watches.saturating_add(1);
        }
        WatchEnd::Failed(error)
    }

    fn passed(&self, passed: Option<&str>, version: &mut String) {
        if let Some(passed) = passed {
            passed.clone_into(version);
        }
    }

    /// Logs the failure of a watch, and waits until the next attempt. A missing permission is
    /// logged once, because it may persist.
    async fn failed(&mut self, error: &WatchError) -> Result<(), ReceiverDropped> {
        if let WatchError::Refused(status) = error
            && status.code == 403
        {
            if !std::mem::replace(&mut self.refused, true) {
                tracing::warn!("this cannot be watched here yet: {}", hint(403));
            }
            // The core ends a reported loss with this event.
            (self.answered_at, self.lost) = (Instant::now(), None);
            self.send(self.source.forbidden(status)).await?;
            sleep(AFTER_REFUSAL).await;
            return Ok(());
        }
        let code = error.code();
        if code == 404 {
            self.source.not_found();
        }
        let hint = match error {
            WatchError::Unreadable => "the answer cannot be read: it may come from a proxy",
            _ => hint(code),
        };
        tracing::warn!(status = code, "a watch failed; trying again: {hint}");
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

/// Timeout of an answer, and of each page.
const ANSWER: Duration = Duration::from_secs(30);

/// The error of a list or a watch.
enum WatchError {
    /// The API server refused the request.
    Refused(Box<Status>),
    /// The answer is not what was requested, or one object of it has too many bytes.
    Unreadable,
    /// There was no answer.
    Unanswered,
    /// There was no answer in time.
    Timeout,
}

impl WatchError {
    /// Returns the HTTP status, 0 for none.
    fn code(&self) -> u16 {
        match self {
            Self::Refused(status) => status.code,
            Self::Unreadable | Self::Unanswered | Self::Timeout => 0,
        }
    }
}

/// The error's text is not used: it may quote an object.
impl From<kube::Error> for WatchError {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::Refused(status),
            _ => Self::Unanswered,
        }
    }
}

/// Returns the result of a call, with a timeout of [`ANSWER`].
async fn in_time<T, E: Into<WatchError>>(
    call: impl Future<Output = Result<T, E>>,
) -> Result<T, WatchError> {
    match timeout(ANSWER, call).await {
        Ok(answer) => answer.map_err(Into::into),
        Err(_) => Err(WatchError::Timeout),
    }
}

/// Returns the answer to a request; `None` if it has more than `limit` bytes, whose rest is not
/// read.
async fn read(
    client: &Client,
    request: http::Request<Vec<u8>>,
    limit: usize,
) -> Result<Option<Vec<u8>>, WatchError> {
    in_time(async {
        let body = client.request_stream(request).await?;
        read_page(body, limit)
            .await
            .map_err(|_| WatchError::Unanswered)
    })
    .await
}

/// Parses a list and passes its objects to `each` one by one. Only one parsed object is in memory
/// at any time.
fn parse<T: DeserializeOwned>(bytes: &[u8], each: impl FnMut(T)) -> Result<ListMeta, WatchError> {
    parse_page(bytes, each).map_err(|_| WatchError::Unreadable)
}
