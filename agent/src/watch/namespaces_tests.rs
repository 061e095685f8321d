use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use futures::stream::{self, StreamExt};
use http::{Request, Response, StatusCode};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::*;

const DEADLINE: Duration = Duration::from_secs(60);

/// The answer of an API server to a watch.
#[derive(Clone, Debug)]
enum Watch {
    /// The watch delivers these events and stays open.
    Shows(Vec<String>),
    /// The watch delivers these events and ends.
    Ends(Vec<String>),
    Forbidden,
}

/// A fake API server with some namespaces. It records the requests.
struct FakeApi {
    namespaces: Vec<Value>,
    /// The number of namespaces on the first page. The second page fails.
    first_page: Option<usize>,
    /// The answers to the watches. The last answer is repeated.
    watches: Mutex<VecDeque<Watch>>,
    asked: Mutex<Vec<&'static str>>,
}

fn namespace(name: &str, time: &str) -> Value {
    let entry = json!({"manager": "m", "operation": "Update", "apiVersion": "v1", "time": time, "fieldsType": "FieldsV1",
        "fieldsV1": {"f:metadata": {}}});
    json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
        "metadata": {"name": name, "uid": name, "resourceVersion": "5", "managedFields": [entry]}})
}

fn plain(name: &str) -> Value {
    namespace(name, "2026-01-01T00:00:00Z")
}

/// Returns an event of a watch, with its type first, as the API server writes it.
fn event(kind: &str, object: Value) -> String {
    format!("{{\"type\":\"{kind}\",\"object\":{object}}}")
}

fn status(code: u16) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": "no", "code": code})
}

impl FakeApi {
    fn new(namespaces: Vec<Value>, watches: impl IntoIterator<Item = Watch>) -> Self {
        let watches = Mutex::new(watches.into_iter().collect());
        Self {
            namespaces,
            first_page: None,
            watches,
            asked: Mutex::default(),
        }
    }

    fn client(self: &Arc<Self>) -> Client {
        let api = self.clone();
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let answer = api.answer(request.uri().query().unwrap_or_default());
            async move { Ok::<_, Infallible>(answer) }
        });
        Client::new(service, "default")
    }

    fn answer(&self, query: &str) -> Response<Body> {
        let answer = |code, body: Value| {
            Response::builder()
                .status(code)
                .body(Body::from(body.to_string()))
                .unwrap()
        };
        let has = |pair: &str| query.split('&').any(|it| it.starts_with(pair));
        if !has("watch=") {
            self.asked
                .lock()
                .push(if has("limit=1") && !has("limit=100") {
                    "version"
                } else {
                    "list"
                });
            if has("continue=") {
                return answer(StatusCode::INTERNAL_SERVER_ERROR, status(500));
            }
            let shown = self.first_page.unwrap_or(self.namespaces.len());
            let more = self.first_page.map(|_| "more");
            let items = &self.namespaces[..shown];
            return answer(
                StatusCode::OK,
                json!({"metadata": {"resourceVersion": "7", "continue": more}, "items": items}),
            );
        }
        self.asked.lock().push("watch");
        let mut watches = self.watches.lock();
        let watch = if watches.len() > 1 {
            watches.pop_front()
        } else {
            watches.front().cloned()
        };
        let lines = |events: Vec<String>| {
            stream::iter(events).map(|event| Ok::<_, Infallible>(Bytes::from(format!("{event}\n"))))
        };
        match watch.unwrap() {
            Watch::Shows(events) => {
                Response::new(Body::from_stream(lines(events).chain(stream::pending())))
            }
            Watch::Ends(events) => Response::new(Body::from_stream(lines(events))),
            Watch::Forbidden => answer(StatusCode::FORBIDDEN, status(403)),
        }
    }

    fn asked(&self, what: &str) -> usize {
        self.asked
            .lock()
            .iter()
            .filter(|asked| **asked == what)
            .count()
    }
}

/// Returns the events that the core receives, up to the last of `until`. A namespace appears as its
/// name.
async fn receives(api: &Arc<FakeApi>, until: &[&str]) -> Vec<String> {
    let (events, mut received) = mpsc::channel(8);
    let mut follow = Follow::new(
        api.client(),
        Namespace::url_path(&(), None),
        Namespaces,
        events,
        Arc::new(Semaphore::new(1)),
        HEARTBEAT_SECONDS,
    );
    (follow.metadata, follow.lost_after) = (true, Duration::from_secs(1));
    let mut names = vec![];
    let collect = async {
        let mut left: VecDeque<_> = until.iter().collect();
        while let Some(next) = left.front() {
            let name = match received.recv().await.unwrap() {
                Event::NamespacesListed => "listed".to_owned(),
                Event::NamespacesComplete => "complete".to_owned(),
                Event::Namespace(name, _) => name.to_string(),
                Event::WatchLost(_, status) => format!("lost {status}"),
                Event::WatchResumed(_) => "resumed".to_owned(),
                _ => "other".to_owned(),
            };
            if name == **next {
                left.pop_front();
            }
            names.push(name);
        }
    };
    tokio::select! {
        () = follow.run() => unreachable!(),
        in_time = tokio::time::timeout(DEADLINE, collect) => assert!(in_time.is_ok(), "{names:?}; {:?}", api.asked.lock()),
    }
    names
}

#[tokio::test]
async fn object_that_cannot_be_read_is_left_out_and_stops_nothing() {
    let late = "9999-12-31T23:59:59Z";
    let broken = || json!({"metadata": {"name": "broken", "resourceVersion": "9", "labels": [1]}});
    let shown = vec![
        event("ADDED", broken()),
        event("ADDED", namespace("c", late)),
    ];
    let objects = vec![namespace("a", late), broken(), plain("b")];
    let api = Arc::new(FakeApi::new(objects, [Watch::Shows(shown)]));
    assert_eq!(
        receives(&api, &["c"]).await,
        ["listed", "a", "b", "complete", "c"]
    );
}

#[tokio::test]
async fn watch_that_fails_when_open_is_lost_and_listed_again() {
    for watch in [
        Watch::Ends(vec![event("ERROR", status(500))]),
        Watch::Ends(vec![]),
    ] {
        let code = if matches!(&watch, Watch::Ends(events) if events.is_empty()) {
            "lost 0"
        } else {
            "lost 500"
        };
        let api = Arc::new(FakeApi::new(vec![plain("a")], [watch]));
        let received = receives(&api, &["complete", code, "listed", "complete"]).await;
        assert_eq!(
            received,
            ["listed", "a", "complete", code, "listed", "a", "complete"]
        );
    }
}

#[tokio::test]
async fn list_that_fails_after_its_first_page_is_lost() {
    let api = FakeApi::new(vec![plain("a"), plain("b")], [Watch::Shows(vec![])]);
    let api = Arc::new(FakeApi {
        first_page: Some(1),
        ..api
    });
    assert!(
        receives(&api, &["lost 500"])
            .await
            .ends_with(&["lost 500".to_owned()])
    );
}

#[tokio::test]
async fn forbidden_watch_is_tried_without_lists_until_it_is_allowed() {
    let api = FakeApi::new(
        vec![plain("a")],
        [Watch::Forbidden, Watch::Forbidden, Watch::Shows(vec![])],
    );
    let api = Arc::new(api);
    let received = receives(&api, &["complete", "lost 403", "lost 403", "complete"]).await;
    assert_eq!(
        received,
        [
            "listed", "a", "complete", "lost 403", "lost 403", "listed", "a", "complete"
        ]
    );
    assert_eq!(api.asked("list"), 2);
}

#[tokio::test]
async fn lists_of_an_api_server_that_forgets_at_once_are_apart() {
    let api = Arc::new(FakeApi::new(
        vec![],
        [Watch::Ends(vec![event("ERROR", status(410))])],
    ));
    let begin = std::time::Instant::now();
    receives(&api, &["complete", "complete", "complete"]).await;
    assert!(
        begin.elapsed() >= Duration::from_millis(1500),
        "two waits, of 0.5 s and 1 s"
    );
}
