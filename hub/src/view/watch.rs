//! Watches: the changes of deliveries as a stream of events.
//!
//! A watch computes its next events when its client has read the former ones. So a client that
//! reads nothing keeps one part in the memory of the hub, whatever changes meanwhile.
use std::collections::{BTreeMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::response::Response;
use futures::stream;
use runnel_api::{VIEW_GROUP, VIEW_VERSION};
use runnel_proto::model::{ClusterName, RuleUid};
use serde_json::{Value, json};

use super::changes::{Batch, DeliveryChange, Kind, ViewScope};
use super::delivery::{Row, Scope};
use super::error::ViewError;
use super::request::{Position, Query};
use super::target::{Form, Target};
use super::watch_limit::WatchPlace;
use super::{ViewServer, body, versioned};

/// The interval of bookmarks, and of checks whether this replica still leads.
const TICK: Duration = Duration::from_secs(20);
/// The limit of deliveries in one part of a watch.
const PART: usize = 64;
/// The limit of deliveries that are read at a time to find those that match.
const READ: usize = 1000;
/// The limit of deliveries that a watch remembers as matching its selectors.
const MATCHING: usize = 20_000;

/// One watch.
struct Watch {
    server: Arc<ViewServer>,
    target: Target,
    scope: Scope,
    shown: ViewScope,
    query: Query,
    form: Form,
    /// The version after which changes are missing.
    version: u64,
    /// The next part of the deliveries that existed when the watch began.
    existing: Option<Query>,
    /// The deliveries that match, if that can change while they exist.
    matching: Option<Matching>,
    end: Instant,
    serving: Option<Instant>,
    ended: bool,
    _place: WatchPlace,
}

impl ViewServer {
    /// Starts a watch. Without a version it begins with all deliveries as added ones.
    pub(super) async fn watch(
        self: &Arc<Self>,
        target: Target,
        query: Query,
        form: Form,
        place: WatchPlace,
    ) -> Result<Response, ViewError> {
        let mut watch = Watch::new(self, target, query, form, place);
        let watch = self
            .compute(move || {
                watch.begin()?;
                Ok::<_, ViewError>(watch)
            })
            .await??;
        Ok(body(stream::unfold(watch, Watch::next)))
    }
}

impl Watch {
    fn new(
        server: &Arc<ViewServer>,
        target: Target,
        query: Query,
        form: Form,
        place: WatchPlace,
    ) -> Self {
        Self {
            end: Instant::now() + query.timeout,
            serving: server.hub_state.leadership.serving_since(),
            matching: query.selection.can_change().then(Matching::default),
            version: 0,
            existing: None,
            server: server.clone(),
            shown: ViewScope::new(&target.scope(), &query.selection),
            scope: target.scope(),
            target,
            form,
            query,
            ended: false,
            _place: place,
        }
    }

    /// Finds the version at which the watch begins.
    ///
    /// # Errors
    /// [`ViewError::Expired`], if changes since the version of the client are not known any more.
    fn begin(&mut self) -> Result<(), ViewError> {
        self.server.reader().serving_since()?;
        let all = Query {
            selection: self.query.selection.clone(),
            limit: PART,
            ..Query::default()
        };
        let Some(version) = self.query.version else {
            self.version = self.server.cover(&self.shown);
            self.existing = Some(all);
            return Ok(());
        };
        self.version = version;
        let mut batch = self.batch(version).ok_or(ViewError::Expired)?;
        let Some(mut matching) = self.matching.take() else {
            return Ok(());
        };
        // What has changed since then may have matched before.
        loop {
            for change in &batch.changes {
                matching.insert(&position_of(change))?;
            }
            if batch.is_last {
                break;
            }
            batch = self.batch(batch.version).ok_or(ViewError::Expired)?;
        }
        let mut part = Some(Query { limit: READ, ..all });
        while let Some(asked) = part {
            let page = self.server.reader().page(&self.scope, &asked)?;
            for row in &page.rows {
                matching.insert(&row.position())?;
            }
            part = page.next.map(|next| Query {
                after: Some(next),
                ..asked
            });
        }
        self.matching = Some(matching);
        Ok(())
    }

    /// Returns the next events, as lines; `None` at the end of the watch.
    async fn next(mut self) -> Option<(Vec<u8>, Self)> {
        let server = self.server.clone();
        let mut newest = server.version.subscribe();
        let mut ticked = false;
        loop {
            let leadership = &server.hub_state.leadership;
            let left = self.end.saturating_duration_since(Instant::now());
            let serves = leadership.leads() && leadership.serving_since() == self.serving;
            if self.ended || left.is_zero() || !serves {
                return None;
            }
            if ticked || self.existing.is_some() || *newest.borrow_and_update() > self.version {
                let lines;
                (lines, self) = server
                    .compute(move || (self.part(ticked), self))
                    .await
                    .ok()?;
                if !lines.is_empty() {
                    return Some((lines, self));
                }
            }
            let version = self.version;
            ticked = tokio::select! {
                changed = newest.wait_for(|newest| *newest > version) => {
                    _ = changed;
                    false
                }
                () = tokio::time::sleep(TICK.min(left)) => true,
            };
        }
    }

    /// Returns the next events that are known, as lines. With `ticked` at least a bookmark, if the
    /// client takes such.
    fn part(&mut self, ticked: bool) -> Vec<u8> {
        let mut lines = Vec::new();
        match self.add_part(&mut lines) {
            Ok(()) if ticked && lines.is_empty() && self.query.bookmarks => {
                add_line(&mut lines, "BOOKMARK", &self.bookmark());
            }
            Ok(()) => {}
            Err(error) => {
                self.ended = true;
                // A client of a replica that does not lead any more begins again at the leader.
                if !matches!(error, ViewError::Unavailable(_)) {
                    add_line(&mut lines, "ERROR", &error.status());
                }
            }
        }
        lines
    }

    fn add_part(&mut self, lines: &mut Vec<u8>) -> Result<(), ViewError> {
        if let Some(asked) = self.existing.take() {
            let page = self.server.reader().page(&self.scope, &asked)?;
            for row in page.rows {
                if let Some(matching) = &mut self.matching {
                    matching.insert(&row.position())?;
                }
                self.add_event(lines, "ADDED", row, self.version);
            }
            self.existing = page.next.map(|next| Query {
                after: Some(next),
                ..asked
            });
            return Ok(());
        }
        let batch = self.batch(self.version).ok_or(ViewError::Expired)?;
        let mut rows = self.rows(&batch.changes)?;
        for change in &batch.changes {
            let row = rows.remove(&(&change.uid, &change.cluster));
            self.add_change(lines, change, row)?;
        }
        self.version = batch.version;
        Ok(())
    }

    /// Returns the first changes after a version; `None` if they are not known any more.
    fn batch(&self, version: u64) -> Option<Batch> {
        let mut changes = self.server.changes();
        let batch = changes.after(version, &self.shown, PART)?;
        changes.read_by(&self.shown, Instant::now());
        Some(batch)
    }

    /// Returns the present deliveries that changed.
    fn rows<'c>(
        &self,
        changes: &'c [DeliveryChange],
    ) -> Result<BTreeMap<(&'c RuleUid, &'c ClusterName), Row>, ViewError> {
        let mut clusters: BTreeMap<&RuleUid, BTreeMap<ClusterName, &ClusterName>> = BTreeMap::new();
        for change in changes {
            let of_rule = clusters.entry(&change.uid).or_default();
            of_rule.insert(change.cluster.clone(), &change.cluster);
        }
        let mut rows = BTreeMap::new();
        for (uid, clusters) in clusters {
            let names: Vec<_> = clusters.keys().cloned().collect();
            for row in self.server.reader().rows(uid, &names)? {
                if let Some(cluster) = clusters.get(&row.cluster) {
                    rows.insert((uid, *cluster), row);
                }
            }
        }
        Ok(rows)
    }

    /// Adds the event of a change, if the watch selects the delivery. Its row is absent if it does
    /// not exist any more.
    fn add_change(
        &mut self,
        lines: &mut Vec<u8>,
        change: &DeliveryChange,
        row: Option<Row>,
    ) -> Result<(), ViewError> {
        let exists = row.is_some();
        let selection = &self.query.selection;
        let selected = row.filter(|row| row.is_selected(selection));
        let gone = || Row::deleted(&change.rule, &change.uid, &change.cluster);
        let (kind, row) = match (&mut self.matching, selected) {
            (None, Some(row)) if change.kind == Kind::Added => ("ADDED", row),
            (None, Some(row)) => ("MODIFIED", row),
            (None, None) => {
                let gone = gone();
                if exists || change.kind != Kind::Deleted || !gone.is_selected(selection) {
                    return Ok(());
                }
                ("DELETED", gone)
            }
            (Some(matching), Some(row)) => {
                if matching.insert(&row.position())? {
                    ("ADDED", row)
                } else {
                    ("MODIFIED", row)
                }
            }
            (Some(matching), None) => {
                if !matching.remove(&position_of(change)) {
                    return Ok(());
                }
                ("DELETED", gone())
            }
        };
        self.add_event(lines, kind, row, change.version);
        Ok(())
    }

    fn add_event(&self, lines: &mut Vec<u8>, kind: &str, row: Row, version: u64) {
        let row = versioned(row, version);
        add_line(lines, kind, &self.form.one(row, version, &self.query));
    }

    fn bookmark(&self) -> Value {
        let metadata = json!({"resourceVersion": self.version.to_string()});
        match self.form {
            Form::Object => json!({
                "kind": self.target.resource.kind,
                "apiVersion": format!("{VIEW_GROUP}/{VIEW_VERSION}"),
                "metadata": metadata,
            }),
            Form::Metadata => json!({
                "kind": "PartialObjectMetadata",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": metadata,
            }),
            Form::Table => json!({
                "kind": "Table",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": metadata,
                "columnDefinitions": [],
                "rows": [],
            }),
        }
    }
}

/// The digests of the deliveries that match the selectors of a watch. A watch of 20,000 of them
/// needs some hundred KiB.
#[derive(Default)]
struct Matching(HashSet<u64>);

impl Matching {
    /// Adds a delivery. Returns whether it did not match before.
    ///
    /// # Errors
    /// [`ViewError::BadRequest`], above the limit.
    fn insert(&mut self, position: &Position) -> Result<bool, ViewError> {
        let digest = digest(position);
        if self.0.len() >= MATCHING && !self.0.contains(&digest) {
            return Err(ViewError::BadRequest(format!(
                "more than {MATCHING} deliveries match the selectors of this watch: select one rule or one cluster, such as --field-selector cluster=NAME"
            )));
        }
        Ok(self.0.insert(digest))
    }

    /// Removes a delivery. Returns whether it matched.
    fn remove(&mut self, position: &Position) -> bool {
        self.0.remove(&digest(position))
    }
}

fn digest(position: &Position) -> u64 {
    let mut hasher = DefaultHasher::new();
    let Position {
        namespace,
        rule,
        cluster,
        copy: _,
    } = position;
    (namespace, rule, cluster).hash(&mut hasher);
    hasher.finish()
}

fn position_of(change: &DeliveryChange) -> Position {
    Position {
        namespace: change.rule.namespace.clone(),
        rule: change.rule.name.clone(),
        cluster: change.cluster.as_str().to_owned(),
        copy: None,
    }
}

fn add_line(lines: &mut Vec<u8>, kind: &str, object: &Value) {
    let event = json!({"type": kind, "object": object});
    serde_json::to_writer(&mut *lines, &event).expect("an event is JSON");
    lines.push(b'\n');
}

#[cfg(test)]
#[path = "watch_tests.rs"]
mod tests;
