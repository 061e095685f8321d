//! Watches: the changes of deliveries as a stream of events.
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::response::Response;
use runnel_api::{VIEW_GROUP, VIEW_VERSION};
use serde_json::{Value, json};

use super::changes::{Change, Kind};
use super::delivery::Row;
use super::error::ViewError;
use super::request::{Position, Query};
use super::target::{Form, Target};
use super::{ViewServer, body, run_blocking, versioned};

/// The interval of bookmarks, and of checks whether this replica still leads.
const TICK: Duration = Duration::from_secs(20);
/// The size after which events are sent, in bytes.
const CHUNK: usize = 64 * 1024;

/// One watch.
struct Watch {
    server: Arc<ViewServer>,
    target: Target,
    query: Query,
    form: Form,
    /// The version after which changes are missing.
    version: u64,
    /// The deliveries that match, if that can change while they exist.
    matching: Option<BTreeSet<Position>>,
    /// Events that are not sent yet.
    ready: VecDeque<Vec<u8>>,
    end: Instant,
    serving: Option<Instant>,
    ended: bool,
}

impl ViewServer {
    /// Starts a watch. Without a version it begins with all deliveries as added ones.
    pub(super) async fn watch(
        self: &Arc<Self>,
        target: Target,
        query: Query,
        form: Form,
    ) -> Result<Response, ViewError> {
        let (server, scope, selection) = (self.clone(), target.scope(), query.selection.clone());
        let needs_rows = query.version.is_none() || selection.can_change();
        let (version, rows) = run_blocking(move || {
            let version = server.cover(&scope);
            let rows = if needs_rows {
                let all = Query {
                    selection,
                    limit: usize::MAX,
                    ..Query::default()
                };
                server.reader().page(&scope, &all)?.rows
            } else {
                Vec::new()
            };
            Ok::<_, ViewError>((version, rows))
        })
        .await??;
        let mut watch = Watch {
            end: Instant::now() + query.timeout,
            serving: self.hub_state.leadership.serving_since(),
            matching: query
                .selection
                .can_change()
                .then(|| rows.iter().map(Row::position).collect()),
            version: query.version.unwrap_or(version),
            server: self.clone(),
            target,
            form,
            query,
            ready: VecDeque::new(),
            ended: false,
        };
        if watch.query.version.is_none() {
            for row in rows {
                watch.event("ADDED", versioned(row, version));
            }
        } else if watch.changes().is_none() {
            return Err(ViewError::Expired);
        }
        let events = futures::stream::unfold(watch, |mut watch| async move {
            let events = watch.next().await?;
            Some((events, watch))
        });
        Ok(body(events))
    }
}

impl Watch {
    /// Returns the next events, as lines; `None` at the end of the watch.
    async fn next(&mut self) -> Option<Vec<u8>> {
        loop {
            let mut lines = Vec::new();
            while lines.len() < CHUNK
                && let Some(line) = self.ready.pop_front()
            {
                lines.extend(line);
            }
            if !lines.is_empty() {
                return Some(lines);
            }
            let leadership = &self.server.hub_state.leadership;
            let left = self.end.saturating_duration_since(Instant::now());
            let serves = leadership.leads() && leadership.serving_since() == self.serving;
            if self.ended || left.is_zero() || !serves {
                return None;
            }
            let mut newest = self.server.version.subscribe();
            let version = self.version;
            let ticked = tokio::select! {
                changed = newest.wait_for(|newest| *newest > version) => {
                    _ = changed;
                    false
                }
                () = tokio::time::sleep(TICK.min(left)) => true,
            };
            self.follow();
            if ticked && self.query.bookmarks {
                self.bookmark();
            }
        }
    }

    fn changes(&self) -> Option<Vec<Change>> {
        let mut changes = self.server.changes.lock();
        let scope = self.target.scope();
        changes.read_by(&scope, Instant::now());
        changes.since(self.version, &scope)
    }

    /// Turns the changes since the last call into events.
    fn follow(&mut self) {
        let newest = self.server.changes.lock().version();
        let Some(changes) = self.changes() else {
            self.line("ERROR", &ViewError::Expired.status());
            self.ended = true;
            return;
        };
        for change in changes {
            self.version = self.version.max(change.version);
            if self.concerns(&change) {
                self.change(&change);
            }
        }
        self.version = self.version.max(newest);
    }

    fn concerns(&self, change: &Change) -> bool {
        let selection = &self.query.selection;
        let is = |only: Option<&str>, value: &str| only.is_none_or(|only| only == value);
        is(selection.rule(), &change.rule.name) && is(selection.cluster(), change.cluster.as_str())
    }

    fn change(&mut self, change: &Change) {
        let position = Position {
            namespace: change.rule.namespace.clone(),
            rule: change.rule.name.clone(),
            cluster: change.cluster.as_str().to_owned(),
            copy: None,
        };
        let row = match change.kind {
            Kind::Deleted => None,
            _ => {
                let read = self.server.reader().row(&change.uid, &change.cluster);
                read.ok().flatten()
            }
        };
        let selected = row.filter(|row| row.is_selected(&self.query.selection));
        let (was, kind) = match &mut self.matching {
            None => (true, change.kind),
            Some(matching) => {
                let was = if selected.is_some() {
                    !matching.insert(position)
                } else {
                    matching.remove(&position)
                };
                (was, if was { Kind::Modified } else { Kind::Added })
            }
        };
        match selected {
            Some(row) if kind == Kind::Added => self.event("ADDED", versioned(row, change.version)),
            Some(row) => self.event("MODIFIED", versioned(row, change.version)),
            None if was => {
                let row = Row::deleted(&change.rule, &change.uid, &change.cluster);
                self.event("DELETED", versioned(row, change.version));
            }
            None => {}
        }
    }

    fn event(&mut self, kind: &str, row: Row) {
        let version = self.version;
        let object = self.form.one(row, version, &self.query);
        self.line(kind, &object);
    }

    fn bookmark(&mut self) {
        let object = json!({
            "kind": self.target.resource.kind,
            "apiVersion": format!("{VIEW_GROUP}/{VIEW_VERSION}"),
            "metadata": {"resourceVersion": self.version.to_string()},
        });
        let object = match self.form {
            Form::Object => object,
            Form::Metadata => json!({
                "kind": "PartialObjectMetadata",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": object["metadata"],
            }),
            Form::Table => json!({
                "kind": "Table",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": object["metadata"],
                "columnDefinitions": [],
                "rows": [],
            }),
        };
        self.line("BOOKMARK", &object);
    }

    fn line(&mut self, kind: &str, object: &Value) {
        let event = json!({"type": kind, "object": object});
        let mut line = serde_json::to_vec(&event).expect("an event is JSON");
        line.push(b'\n');
        self.ready.push_back(line);
    }
}
