//! The time of the last data of each watch of the API server. Bookmarks count: an API server sends
//! one about once a minute without changes. So a hanging watch is distinguishable from a quiet
//! cluster.
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{SystemTime, UNIX_EPOCH};

use futures::future::BoxFuture;
use http::{Request, Response, Uri};
use http_body::{Body, Frame, SizeHint};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use tower::{Layer, Service};

#[derive(Debug, Default)]
struct Times {
    next: u64,
    /// The open watches, by number, with the time of their last data.
    open: BTreeMap<u64, SystemTime>,
    /// The time of the last data of any watch, including ended ones.
    last: Option<SystemTime>,
}

impl Times {
    /// Several watches of a kind are as fresh as the oldest of them.
    fn last_event_time(&self) -> Option<SystemTime> {
        self.open.values().min().copied().or(self.last)
    }
}

/// The time of the last data of watches, by resource. A layer for the client of the watches, and a
/// collector of `runnel_watch_last_event_timestamp_seconds`. Clones share their state.
#[derive(Clone, Debug, Default)]
pub struct WatchTimes(Arc<Mutex<BTreeMap<String, Times>>>);

impl WatchTimes {
    fn times(&self) -> MutexGuard<'_, BTreeMap<String, Times>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The watch was ended on purpose: missing data is normal.
    pub fn forget(&self, resource: &str) {
        self.times().remove(resource);
    }

    fn open(&self, resource: String) -> Open {
        let number = {
            let mut all = self.times();
            let times = all.entry(resource.clone()).or_default();
            times.next += 1;
            times.next
        };
        let open = Open {
            of: self.clone(),
            resource,
            number,
        };
        open.received();
        open
    }
}

/// A watch that is open.
struct Open {
    of: WatchTimes,
    resource: String,
    number: u64,
}

impl Open {
    fn received(&self) {
        let now = SystemTime::now();
        if let Some(times) = self.of.times().get_mut(&self.resource) {
            times.open.insert(self.number, now);
            times.last = Some(now);
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if let Some(times) = self.of.times().get_mut(&self.resource) {
            times.open.remove(&self.number);
        }
    }
}

impl Collector for WatchTimes {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let help = "When the watch of a resource last received data; of several the oldest time";
        let name = "runnel_watch_last_event_timestamp_seconds";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (resource, times) in &*self.times() {
            let Some(at) = times.last_event_time() else {
                continue;
            };
            let seconds = at
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default()
                .as_secs_f64();
            ConstGauge::new(seconds)
                .encode(family.encode_family(&[("resource", resource.as_str())])?)?;
        }
        Ok(())
    }
}

/// Returns the watched resource of a request: the plural in its path; `None` unless it is a watch.
fn watched(uri: &Uri) -> Option<String> {
    if !uri
        .query()?
        .split('&')
        .any(|pair| pair == "watch=true" || pair == "watch=1")
    {
        return None;
    }
    let mut parts = uri.path().trim_matches('/').split('/');
    match parts.next()? {
        "api" => parts.next()?,
        "apis" => parts.nth(1)?,
        _ => return None,
    };
    let rest: Vec<_> = parts.collect();
    match rest.as_slice() {
        [resource] | ["namespaces", _, resource] => Some((*resource).to_owned()),
        _ => None,
    }
}

impl<S> Layer<S> for WatchTimes {
    type Service = Timed<S>;

    fn layer(&self, inner: S) -> Timed<S> {
        Timed {
            inner,
            times: self.clone(),
        }
    }
}

/// The service of a client with timed watches.
#[derive(Clone)]
pub struct Timed<S> {
    inner: S,
    times: WatchTimes,
}

impl<S, A, B> Service<Request<A>> for Timed<S>
where
    S: Service<Request<A>, Response = Response<B>>,
    S::Future: Send + 'static,
    S::Error: 'static,
{
    type Response = Response<TimedBody<B>>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Self::Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let resource = watched(request.uri());
        let times = self.times.clone();
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await?;
            let open = resource
                .filter(|_| answer.status().is_success())
                .map(|resource| times.open(resource));
            Ok(answer.map(|body| TimedBody {
                body: Box::pin(body),
                open,
            }))
        })
    }
}

/// The body of an answer; that of a watch records the time of its data.
pub struct TimedBody<B> {
    body: Pin<Box<B>>,
    open: Option<Open>,
}

impl<B: Body> Body for TimedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let frame = ready!(self.body.as_mut().poll_frame(context));
        match (&frame, &self.open) {
            (Some(Ok(_)), Some(open)) => open.received(),
            (Some(Ok(_)), None) => {}
            (Some(Err(_)) | None, _) => self.open = None,
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_watches_are_timed_and_by_their_resource() {
        let watched = |uri: &str| watched(&uri.parse().unwrap());
        assert_eq!(
            watched("/api/v1/secrets?watch=true&timeoutSeconds=290").as_deref(),
            Some("secrets")
        );
        assert_eq!(
            watched("/api/v1/namespaces/a/secrets?a=b&watch=true").as_deref(),
            Some("secrets")
        );
        assert_eq!(
            watched("/api/v1/namespaces?watch=true").as_deref(),
            Some("namespaces")
        );
        let own = "https://host/apis/runnel.dev/v1alpha1/distributionrules?watch=true";
        assert_eq!(watched(own).as_deref(), Some("distributionrules"));
        assert_eq!(watched("/api/v1/secrets?limit=500"), None);
        assert_eq!(watched("/api/v1/namespaces/a/secrets/s"), None);
    }

    #[test]
    fn most_silent_of_several_watches_is_shown() {
        let times = WatchTimes::default();
        let shown = || {
            times
                .times()
                .get("secrets")
                .and_then(Times::last_event_time)
        };
        let (one, other) = (
            times.open("secrets".to_owned()),
            times.open("secrets".to_owned()),
        );
        let old = SystemTime::now() - std::time::Duration::from_secs(100);
        times
            .times()
            .get_mut("secrets")
            .unwrap()
            .open
            .insert(one.number, old);
        other.received();
        assert_eq!(shown(), Some(old));
        drop(one);
        assert!(shown() > Some(old));
        let last = shown();
        drop(other);
        assert_eq!(shown(), last);
        times.forget("secrets");
        assert_eq!(shown(), None);
    }
}
