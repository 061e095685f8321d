//! Lists and watches one resource, for as long as the program runs.
use std::time::{Duration, Instant};

use futures::StreamExt;
use http::{Request, header};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use kube::Client;
use kube::core::WatchEvent;
use serde::Deserialize;
use serde_json::Value;

use super::super::hints::{self, Endpoint};
use super::feed::Feed;
use super::resource::{Resource, Scope};
use super::state::{Origin, WatchedDelivery, key};

/// The time limit of one page of a list.
const PAGE_LIMIT: Duration = Duration::from_secs(60);
/// The length of a watch in seconds; the next one follows it.
const WATCH_SECONDS: u32 = 290;
/// A watch that ends earlier counts as failed.
const SHORT: Duration = Duration::from_secs(1);
/// The delays after failures in a row. The last one repeats.
const DELAYS: [Duration; 4] = [
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
];
/// The delay after a refusal, which does not pass by itself.
const REFUSED: Duration = Duration::from_secs(30);
/// The number of events that are read together.
const BATCH: usize = 1024;

/// A page of a list or a table, or the table of a watch event.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct TablePage {
    metadata: ListMeta,
    items: Vec<Value>,
    column_definitions: Vec<Column>,
    rows: Vec<Row>,
}

#[derive(Deserialize)]
struct Column {
    name: String,
}

#[derive(Deserialize)]
struct Row {
    cells: Vec<Value>,
}

impl TablePage {
    fn rows(&self) -> Vec<WatchedDelivery> {
        let columns = self.column_definitions.iter();
        let columns: Vec<_> = columns.map(|column| column.name.clone()).collect();
        let rows = self.rows.iter();
        rows.filter_map(|row| WatchedDelivery::read(&columns, &row.cells))
            .collect()
    }
}

/// Why a list or watch ended.
#[derive(Debug)]
enum FollowError {
    /// The API server answered with an error, or not at all.
    Call(Box<kube::Error>),
    /// The API server took too long.
    Timeout,
    /// A watch ended at once.
    Short,
    /// There are more objects than this program keeps.
    TooMany(usize),
}

impl From<kube::Error> for FollowError {
    fn from(error: kube::Error) -> Self {
        Self::Call(Box::new(error))
    }
}

impl FollowError {
    fn code(&self) -> Option<u16> {
        match self {
            Self::Call(error) => match &**error {
                kube::Error::Api(status) => Some(status.code),
                _ => None,
            },
            _ => None,
        }
    }

    /// Returns a sentence with a hint.
    fn text(&self, resource: Resource, place: &Endpoint) -> String {
        let words = resource.words();
        match self {
            Self::Call(_) if resource.is_table() && matches!(self.code(), Some(404 | 503)) => {
                format!(
                    "cannot list the {words}: the view API does not answer now; if this lasts, `kubectl get apiservice \
                 v1alpha1.view.runnel.dev` shows the cause (value `view.enabled` of the chart runnel-hub)"
                )
            }
            Self::Call(error) => hints::call(place, &format!("list the {words}"), error),
            Self::Timeout => {
                let cause = hints::unreachable(place, "timed out");
                format!("cannot list the {words}: {cause}")
            }
            Self::Short => format!("{place} ends watches of the {words} at once: trying again"),
            Self::TooMany(limit) => format!(
                "there are more than {limit} {words}: show the rules of one namespace with -n NAMESPACE"
            ),
        }
    }

    /// Returns how long to wait after this many failures in a row.
    fn delay(&self, failures: usize) -> Duration {
        match self {
            Self::TooMany(_) => REFUSED,
            _ if matches!(self.code(), Some(401 | 403)) => REFUSED,
            _ => DELAYS[failures.min(DELAYS.len()) - 1],
        }
    }
}

/// Follows a resource without end.
pub(super) async fn follow(
    client: &Client,
    place: &Endpoint,
    resource: Resource,
    scope: &Scope,
    feed: &Feed,
) {
    let path = resource.path(scope);
    let follower = Follower {
        client,
        resource,
        path: &path,
        feed,
    };
    feed.change(|state, now| state.set_source(resource, "loading", "", now));
    let (mut version, mut failures) = (None, 0);
    loop {
        let error = match follower.round(&mut version).await {
            Ok(()) => {
                failures = 0;
                continue;
            }
            Err(error) => error,
        };
        if error.code() == Some(410) {
            version = None;
            continue;
        }
        failures += 1;
        let text = error.text(resource, place);
        let word = if error.code() == Some(403) {
            "refused"
        } else {
            "failed"
        };
        feed.change(|state, now| state.set_source(resource, word, &text, now));
        tokio::time::sleep(error.delay(failures)).await;
    }
}

struct Follower<'a> {
    client: &'a Client,
    resource: Resource,
    path: &'a str,
    feed: &'a Feed,
}

impl Follower<'_> {
    /// Lists if there is no version to continue from, and watches until the watch ends.
    async fn round(&self, version: &mut Option<String>) -> Result<(), FollowError> {
        let mut from = match version.take() {
            Some(known) => known,
            None => self.list().await?,
        };
        let begin = Instant::now();
        let ended = self.watch(&mut from).await;
        *version = Some(from);
        match ended {
            Ok(()) if begin.elapsed() < SHORT => Err(FollowError::Short),
            ended => ended,
        }
    }

    /// Lists everything, and returns the version of the list.
    async fn list(&self) -> Result<String, FollowError> {
        let (resource, feed) = (self.resource, self.feed);
        feed.change(|state, _| {
            state.begin_list(resource);
            None
        });
        let (mut token, mut count) = (String::new(), 0);
        loop {
            let query = form_urlencoded::Serializer::new(String::new())
                .append_pair("limit", &resource.page().to_string())
                .append_pair("continue", &token)
                .finish();
            let answer = self.client.request::<TablePage>(self.request(&query)?);
            let page = tokio::time::timeout(PAGE_LIMIT, answer)
                .await
                .map_err(|_| FollowError::Timeout)??;
            let (next, version) = (
                page.metadata.continue_.clone(),
                page.metadata.resource_version.clone(),
            );
            count += page.items.len() + page.rows.len();
            // Of Events the newest are kept.
            if count > resource.limit() && resource != Resource::Events {
                return Err(FollowError::TooMany(resource.limit()));
            }
            feed.change(|state, now| {
                if resource.is_table() {
                    state.put_rows(resource, page.rows(), Origin::List, now)
                } else {
                    state.put_objects(resource, page.items, now)
                }
            });
            token = next.unwrap_or_default();
            if token.is_empty() {
                feed.change(|state, now| {
                    let mut updates = state.end_list(resource, now);
                    updates.extend(state.set_source(resource, "live", "", now));
                    updates
                });
                return Ok(version.unwrap_or_default());
            }
        }
    }

    /// Watches from a version on, which it advances, until the watch ends.
    async fn watch(&self, version: &mut String) -> Result<(), FollowError> {
        let query = form_urlencoded::Serializer::new(String::new())
            .append_pair("watch", "true")
            .append_pair("allowWatchBookmarks", "true")
            .append_pair("timeoutSeconds", &WATCH_SECONDS.to_string())
            .append_pair("resourceVersion", version)
            .finish();
        let events = self
            .client
            .request_events::<Value>(self.request(&query)?)
            .await?;
        let resource = self.resource;
        self.feed
            .change(|state, now| state.set_source(resource, "live", "", now));
        let mut events = std::pin::pin!(events.ready_chunks(BATCH));
        while let Some(batch) = events.next().await {
            // An error ends the watch after the events before it.
            let mut failed = None;
            let (mut put, mut deleted) = (Vec::new(), Vec::new());
            for event in batch {
                match event {
                    Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)) => {
                        advance(version, &object);
                        self.apply(&mut deleted, true);
                        put.push(object);
                    }
                    Ok(WatchEvent::Deleted(object)) => {
                        advance(version, &object);
                        self.apply(&mut put, false);
                        deleted.push(object);
                    }
                    Ok(WatchEvent::Bookmark(bookmark)) => {
                        *version = bookmark.metadata.resource_version;
                    }
                    Ok(WatchEvent::Error(status)) => failed = Some(kube::Error::Api(status)),
                    Err(error) => failed = Some(error),
                }
            }
            self.apply(&mut put, false);
            self.apply(&mut deleted, true);
            if self.feed.cells() > Resource::Deliveries.limit() {
                return Err(FollowError::TooMany(Resource::Deliveries.limit()));
            }
            if let Some(error) = failed {
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// Applies gathered events of one kind, so that the order of events is kept.
    fn apply(&self, gathered: &mut Vec<Value>, delete: bool) {
        let objects = std::mem::take(gathered);
        if objects.is_empty() {
            return;
        }
        let resource = self.resource;
        self.feed
            .change(|state, now| match (resource.is_table(), delete) {
                (false, false) => state.put_objects(resource, objects, now),
                (false, true) => state.delete_objects(resource, objects.iter().map(key).collect()),
                (true, false) => state.put_rows(resource, table_rows(objects), Origin::Watch, now),
                (true, true) => {
                    let rows = table_rows(objects).into_iter();
                    let rows: Vec<_> = rows.map(|row| (row.rule, row.cluster)).collect();
                    state.delete_rows(&rows, Origin::Watch, now)
                }
            });
    }

    fn request(&self, query: &str) -> Result<Request<Vec<u8>>, FollowError> {
        let accept = if self.resource.is_table() {
            "application/json;as=Table;g=meta.k8s.io;v=v1"
        } else {
            "application/json"
        };
        let request = Request::get(format!("{}{query}", self.path))
            .header(header::ACCEPT, accept)
            .body(Vec::new());
        request.map_err(|error| kube::Error::HttpError(error).into())
    }
}

/// Reads the rows of the tables of watch events.
fn table_rows(objects: Vec<Value>) -> Vec<WatchedDelivery> {
    let tables = objects.into_iter().map(serde_json::from_value::<TablePage>);
    tables.flatten().flat_map(|table| table.rows()).collect()
}

/// Advances the version to that of an object.
fn advance(version: &mut String, object: &Value) {
    if let Some(newer) = object["metadata"]["resourceVersion"].as_str() {
        newer.clone_into(version);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::{Arc, Mutex};

    use http::Response;
    use kube::client::Body;
    use serde_json::json;

    use super::*;
    use crate::ui::feed::tests::feed;

    /// A client that gets these answers in turn, and the requests that it sent.
    fn client(answers: Vec<(u16, String)>) -> (Client, Arc<Mutex<Vec<String>>>) {
        let answers = Arc::new(Mutex::new(VecDeque::from(answers)));
        let sent = Arc::new(Mutex::new(Vec::new()));
        let requests = sent.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let uri = request.uri().to_string();
            sent.lock().unwrap().push(uri);
            let answer = answers.lock().unwrap().pop_front();
            async move {
                let (code, body) = answer.ok_or("no more answers")?;
                let response = Response::builder().status(code);
                Ok::<_, tower::BoxError>(response.body(Body::from(body.into_bytes()))?)
            }
        });
        (Client::new(service, "default"), requests)
    }

    fn table(rows: &[(&str, &str)], version: &str, token: &str) -> serde_json::Value {
        let columns = ["Namespace", "Rule", "Cluster", "State", "Reason", "Newest"];
        let columns: Vec<_> = columns.map(|name| json!({"name": name})).into();
        let rows: Vec<_> = rows
            .iter()
            .map(|(cluster, state)| json!({"cells": ["a", "r", cluster, state, "", true]}))
            .collect();
        json!({
            "kind": "Table", "apiVersion": "meta.k8s.io/v1",
            "metadata": {"resourceVersion": version, "continue": token},
            "columnDefinitions": columns, "rows": rows,
        })
    }

    fn follower<'a>(client: &'a Client, feed: &'a Feed) -> Follower<'a> {
        Follower {
            client,
            resource: Resource::Deliveries,
            path: "/deliveries?includeObject=None&",
            feed,
        }
    }

    #[tokio::test]
    async fn list_is_read_in_pages_and_watch_continues_it() {
        let event = |kind: &str, state: &str, version: &str| {
            json!({"type": kind, "object": table(&[("c1", state)], version, "")}).to_string() + "\n"
        };
        let bookmark = json!({"type": "BOOKMARK", "object": table(&[], "9", "")});
        let events = [
            event("MODIFIED", "Failed", "7"),
            event("DELETED", "Failed", "8"),
            format!("{bookmark}\n"),
        ];
        let (client, requests) = client(vec![
            (200, table(&[("c1", "Ready")], "5", "next").to_string()),
            (200, table(&[("c2", "Ready")], "5", "").to_string()),
            (200, events.concat()),
        ]);
        let feed = feed();
        let (_, mut updates) = feed.subscribe();
        let mut version = None;
        let ended = follower(&client, &feed).round(&mut version).await;
        assert!(matches!(ended, Err(FollowError::Short)), "{ended:?}");
        assert_eq!(version.as_deref(), Some("9"));
        assert_eq!(feed.cells(), 1);
        let requests = requests.lock().unwrap().clone();
        assert!(
            requests[1].ends_with("limit=5000&continue=next"),
            "{requests:?}"
        );
        assert!(requests[2].ends_with("resourceVersion=5"), "{requests:?}");
        let mut frames = Vec::new();
        while let Ok(frame) = updates.try_recv() {
            frames.push(frame);
        }
        for expected in [
            r#"{"a/r":{"c1":"R"}}"#,
            r#"{"a/r":{"c2":"R"}}"#,
            r#"{"a/r":{"c1":"F"}}"#,
            r#"{"a/r":{"c1":""}}"#,
        ] {
            assert!(
                frames.iter().any(|frame| frame.contains(expected)),
                "{expected}: {frames:?}"
            );
        }
    }

    #[tokio::test]
    async fn errors_name_a_hint_and_a_delay() {
        let place = Endpoint {
            role: "the hub",
            context: "hub".to_owned(),
            server: "https://hub".to_owned(),
        };
        let status = |code: u16, message: &str| {
            let status = json!({"kind": "Status", "status": "Failure", "code": code, "message": message, "reason": ""});
            (code, status.to_string())
        };
        let answers = vec![
            status(503, "away"),
            status(403, "forbidden: cannot list"),
            status(410, "too old"),
        ];
        let (client, _) = client(answers);
        let feed = feed();
        let follower = follower(&client, &feed);
        let away = follower.round(&mut None).await.unwrap_err();
        let text = away.text(Resource::Deliveries, &place);
        assert!(text.contains("the view API does not answer"), "{text}");
        assert!(away.delay(1) < away.delay(2) && away.delay(99) == DELAYS[3]);
        let refused = follower.round(&mut None).await.unwrap_err();
        let text = refused.text(Resource::Deliveries, &place);
        assert!(text.contains("ask its administrator"), "{text}");
        assert_eq!(refused.delay(1), REFUSED);
        let mut version = Some("5".to_owned());
        let expired = follower.round(&mut version).await.unwrap_err();
        assert_eq!(expired.code(), Some(410));
    }
}
