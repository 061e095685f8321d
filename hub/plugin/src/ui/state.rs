//! The newest state, and the updates that pages get. Pure: no I/O and no clock.
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use super::delivery_times::{DeliveryTimes, MeasuredEdit};
use super::resource::Resource;

/// The number of objects in one update of a snapshot.
const OBJECTS: usize = 200;
/// The number of cells in one update of a snapshot, about.
const CELLS: usize = 10_000;

/// What a page shows about this program.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct About {
    pub(super) version: &'static str,
    pub(super) context: String,
    pub(super) server: String,
    /// The namespace of the rules; `None`: all rules.
    pub(super) namespace: Option<String>,
    /// How far the clock of the API server is ahead of the local one.
    pub(super) clock_ahead_ms: i64,
}

/// Whether a resource is followed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SourceState {
    /// `loading`, `live`, `failed`, or `refused` if the user lacks a right.
    pub(super) state: &'static str,
    /// A sentence with a hint; empty while it is followed.
    pub(super) message: String,
    /// When that began, in milliseconds since 1970.
    pub(super) since: i64,
}

/// One update of a page.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type", rename_all = "camelCase")]
pub(super) enum Update {
    /// The first update.
    About(About),
    /// Objects that are new or changed, and the keys of deleted ones.
    Objects {
        resource: Resource,
        put: Vec<Value>,
        deleted: Vec<String>,
    },
    /// The cells of the matrix by rule and cluster. An empty text: the delivery does not exist any more.
    Cells {
        put: BTreeMap<String, BTreeMap<String, String>>,
    },
    /// A resource that is followed, or is not.
    Source {
        resource: Resource,
        #[serde(flatten)]
        state: SourceState,
    },
    /// Edits that all clusters have.
    Edits { put: Vec<MeasuredEdit> },
    /// The snapshot is complete.
    Ready,
}

/// One row of a table of deliveries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WatchedDelivery {
    /// `namespace/name`, or `name` of a cluster rule.
    pub(super) rule: String,
    pub(super) cluster: String,
    /// The first letter of the state; lowercase if the cluster does not have the newest revision. A reason can follow.
    pub(super) text: String,
    /// Changes with everything that the row shows.
    pub(super) digest: u64,
}

/// The columns of a table that a cell depends on.
const DIGESTED: [&str; 8] = [
    "State", "Applied", "Failed", "Waiting", "Reason", "Drifted", "Proof", "Message",
];

impl WatchedDelivery {
    /// Reads one row of a table; `None` if a column is missing.
    pub(super) fn read(columns: &[String], cells: &[Value]) -> Option<Self> {
        let cell = |name: &str| cells.get(columns.iter().position(|column| column == name)?);
        let text = |name: &str| cell(name)?.as_str();
        let (rule, cluster) = (text("Rule")?, text("Cluster")?);
        let newest = cell("Newest")?.as_bool()?;
        let mut letter = letter(text("State")?).to_owned();
        if !newest {
            letter.make_ascii_lowercase();
        }
        let reason = text("Reason").unwrap_or_default();
        let mut hasher = DefaultHasher::new();
        newest.hash(&mut hasher);
        for name in DIGESTED {
            cell(name).map(Value::to_string).hash(&mut hasher);
        }
        Some(Self {
            rule: match text("Namespace").unwrap_or_default() {
                "" => rule.to_owned(),
                namespace => format!("{namespace}/{rule}"),
            },
            cluster: cluster.to_owned(),
            text: if letter == "R" {
                letter
            } else {
                format!("{letter}{reason}")
            },
            digest: hasher.finish(),
        })
    }
}

/// The letter of a state of a delivery.
fn letter(state: &str) -> &'static str {
    match state {
        "Failed" => "F",
        "Drifted" => "D",
        "Unreachable" => "U",
        "Waiting" => "W",
        "DryRun" => "Y",
        "Ready" => "R",
        // Also the states of newer hubs.
        _ => "P",
    }
}

/// One delivery.
#[derive(Debug)]
struct DeliveryCell {
    text: String,
    digest: u64,
    /// The list that had it.
    list: u32,
}

impl DeliveryCell {
    /// Whether an edit is on its way to the cluster. A failed or unreachable one is not waited for.
    fn is_outdated(&self) -> bool {
        self.text
            .starts_with(|letter: char| letter.is_ascii_lowercase() && !matches!(letter, 'f' | 'u'))
    }
}

struct Object {
    value: Value,
    list: u32,
}

/// Everything that pages show.
pub(super) struct PageState {
    about: About,
    objects: BTreeMap<Resource, BTreeMap<String, Object>>,
    cells: BTreeMap<String, BTreeMap<String, DeliveryCell>>,
    sources: BTreeMap<Resource, SourceState>,
    times: DeliveryTimes,
    /// The number of the newest list of each resource.
    lists: BTreeMap<Resource, u32>,
}

/// Whether rows come from a list or from a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    List,
    Watch,
}

impl PageState {
    /// Creates a state without objects.
    pub(super) fn new(about: About) -> Self {
        Self {
            about,
            objects: BTreeMap::new(),
            cells: BTreeMap::new(),
            sources: BTreeMap::new(),
            times: DeliveryTimes::default(),
            lists: BTreeMap::new(),
        }
    }

    /// Begins a list of a resource.
    pub(super) fn begin_list(&mut self, resource: Resource) {
        *self.lists.entry(resource).or_default() += 1;
    }

    /// Ends a list: what it did not have is deleted.
    pub(super) fn end_list(&mut self, resource: Resource, now: Timestamp) -> Vec<Update> {
        let list = self.list(resource);
        if resource.is_table() {
            let of_resource = |rule: &str| is_of(resource, rule);
            let gone: Vec<_> = self
                .cells
                .iter()
                .filter(|(rule, _)| of_resource(rule))
                .flat_map(|(rule, clusters)| {
                    let gone = clusters.iter().filter(|(_, cell)| cell.list != list);
                    gone.map(|(cluster, _)| (rule.clone(), cluster.clone()))
                })
                .collect();
            return self.delete_rows(&gone, Origin::List, now);
        }
        let gone = self.objects.get(&resource).into_iter().flatten();
        let gone = gone.filter(|(_, object)| object.list != list);
        let gone: Vec<_> = gone.map(|(key, _)| key.clone()).collect();
        self.delete_objects(resource, gone)
    }

    /// Records objects; returns those that changed.
    pub(super) fn put_objects(
        &mut self,
        resource: Resource,
        values: Vec<Value>,
        now: Timestamp,
    ) -> Vec<Update> {
        let list = self.list(resource);
        let mut edits = Vec::new();
        let known = self.objects.entry(resource).or_default();
        let mut put = Vec::new();
        for mut value in values {
            resource.reduce(&mut value);
            let key = key(&value);
            let revision = |value: &Value| value["status"]["revision"].as_str().map(str::to_owned);
            let before = known.get(&key);
            if before.is_some_and(|before| before.value == value) {
                if let Some(object) = known.get_mut(&key) {
                    object.list = list;
                }
                continue;
            }
            let (was, is) = (
                before.and_then(|before| revision(&before.value)),
                revision(&value),
            );
            if matches!(resource, Resource::Rules | Resource::ClusterRules)
                && was.is_some()
                && was != is
            {
                edits.extend(self.times.revised(&key, now));
            }
            put.push(value.clone());
            known.insert(key, Object { value, list });
        }
        let mut deleted = Vec::new();
        let surplus = known.len().saturating_sub(resource.limit());
        if surplus > 0 {
            let mut oldest: Vec<_> = known
                .iter()
                .map(|(key, object)| (time_of(&object.value).to_owned(), key.clone()))
                .collect();
            oldest.sort();
            for (_, key) in oldest.into_iter().take(surplus) {
                known.remove(&key);
                deleted.push(key);
            }
        }
        let mut updates = Vec::new();
        if !put.is_empty() || !deleted.is_empty() {
            updates.push(Update::Objects {
                resource,
                put,
                deleted,
            });
        }
        if !edits.is_empty() {
            updates.push(Update::Edits { put: edits });
        }
        updates
    }

    /// Deletes objects by their keys.
    pub(super) fn delete_objects(&mut self, resource: Resource, keys: Vec<String>) -> Vec<Update> {
        let Some(known) = self.objects.get_mut(&resource) else {
            return Vec::new();
        };
        let deleted: Vec<_> = keys
            .into_iter()
            .filter(|key| known.remove(key).is_some())
            .collect();
        if matches!(resource, Resource::Rules | Resource::ClusterRules) {
            deleted.iter().for_each(|rule| self.times.forget(rule));
        }
        if deleted.is_empty() {
            return Vec::new();
        }
        vec![Update::Objects {
            resource,
            put: Vec::new(),
            deleted,
        }]
    }

    /// Records rows of a table; returns the cells that changed.
    pub(super) fn put_rows(
        &mut self,
        resource: Resource,
        rows: Vec<WatchedDelivery>,
        origin: Origin,
        now: Timestamp,
    ) -> Vec<Update> {
        let list = self.list(resource);
        let mut put: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
        let mut turned = BTreeMap::new();
        for row in rows {
            let cell = DeliveryCell {
                text: row.text.clone(),
                digest: row.digest,
                list,
            };
            let is_outdated = cell.is_outdated();
            let clusters = self.cells.entry(row.rule.clone()).or_default();
            let before = clusters.insert(row.cluster.clone(), cell);
            let was_outdated = before.as_ref().is_some_and(DeliveryCell::is_outdated);
            count(&mut turned, &row.rule, was_outdated, is_outdated);
            if before.is_none_or(|before| before.digest != row.digest) {
                put.entry(row.rule)
                    .or_default()
                    .insert(row.cluster, row.text);
            }
        }
        self.updates(put, turned, origin, now)
    }

    /// Deletes deliveries, by rule and cluster.
    pub(super) fn delete_rows(
        &mut self,
        rows: &[(String, String)],
        origin: Origin,
        now: Timestamp,
    ) -> Vec<Update> {
        let mut put: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
        let mut turned = BTreeMap::new();
        for (rule, cluster) in rows {
            let Some(clusters) = self.cells.get_mut(rule) else {
                continue;
            };
            let Some(before) = clusters.remove(cluster) else {
                continue;
            };
            if clusters.is_empty() {
                self.cells.remove(rule);
            }
            count(&mut turned, rule, before.is_outdated(), false);
            put.entry(rule.clone())
                .or_default()
                .insert(cluster.clone(), String::new());
        }
        self.updates(put, turned, origin, now)
    }

    fn updates(
        &mut self,
        put: BTreeMap<String, BTreeMap<String, String>>,
        turned: BTreeMap<String, (usize, usize)>,
        origin: Origin,
        now: Timestamp,
    ) -> Vec<Update> {
        let watched = origin == Origin::Watch;
        let edits: Vec<_> = turned
            .into_iter()
            .filter_map(|(rule, counts)| self.times.record(&rule, counts, watched, now))
            .collect();
        let cells = (!put.is_empty()).then_some(Update::Cells { put });
        let edits = (!edits.is_empty()).then_some(Update::Edits { put: edits });
        cells.into_iter().chain(edits).collect()
    }

    /// The number of deliveries.
    pub(super) fn cells(&self) -> usize {
        self.cells.values().map(BTreeMap::len).sum()
    }

    /// Records whether a resource is followed; returns an update if that is new.
    pub(super) fn set_source(
        &mut self,
        resource: Resource,
        state: &'static str,
        message: &str,
        now: Timestamp,
    ) -> Option<Update> {
        let before = self.sources.get(&resource);
        if before.is_some_and(|before| before.state == state && before.message == message) {
            return None;
        }
        let since = before.filter(|before| before.state == state);
        let state = SourceState {
            state,
            message: message.to_owned(),
            since: since.map_or(now.as_millisecond(), |before| before.since),
        };
        self.sources.insert(resource, state.clone());
        Some(Update::Source { resource, state })
    }

    /// Returns everything, for a page that begins.
    pub(super) fn snapshot(&self) -> Vec<Update> {
        let mut all = vec![Update::About(self.about.clone())];
        all.extend(self.sources.iter().map(|(resource, state)| Update::Source {
            resource: *resource,
            state: state.clone(),
        }));
        for (resource, objects) in &self.objects {
            let values: Vec<_> = objects.values().map(|object| &object.value).collect();
            all.extend(values.chunks(OBJECTS).map(|chunk| Update::Objects {
                resource: *resource,
                put: chunk.iter().map(|value| (*value).clone()).collect(),
                deleted: Vec::new(),
            }));
        }
        let (mut put, mut cells) = (BTreeMap::new(), 0);
        for (rule, clusters) in &self.cells {
            let row = clusters.iter();
            let row: BTreeMap<_, _> = row
                .map(|(cluster, cell)| (cluster.clone(), cell.text.clone()))
                .collect();
            cells += row.len();
            put.insert(rule.clone(), row);
            if cells >= CELLS {
                all.push(Update::Cells {
                    put: std::mem::take(&mut put),
                });
                cells = 0;
            }
        }
        all.push(Update::Cells { put });
        all.push(Update::Edits {
            put: self.times.measured().cloned().collect(),
        });
        all.push(Update::Ready);
        all
    }

    fn list(&self, resource: Resource) -> u32 {
        self.lists.get(&resource).copied().unwrap_or_default()
    }
}

/// Counts the clusters of a rule that became outdated and current.
fn count(turned: &mut BTreeMap<String, (usize, usize)>, rule: &str, was: bool, is: bool) {
    if was != is {
        let counts = turned.entry(rule.to_owned()).or_default();
        if is {
            counts.0 += 1;
        } else {
            counts.1 += 1;
        }
    }
}

/// Whether a rule is one of those whose deliveries this resource has.
fn is_of(resource: Resource, rule: &str) -> bool {
    rule.contains('/') == (resource == Resource::Deliveries)
}

/// The key of an object: `namespace/name` or `name`.
pub(super) fn key(object: &Value) -> String {
    let metadata = &object["metadata"];
    let name = metadata["name"].as_str().unwrap_or_default();
    match metadata["namespace"].as_str().unwrap_or_default() {
        "" => name.to_owned(),
        namespace => format!("{namespace}/{name}"),
    }
}

/// The time by which the oldest objects are found.
fn time_of(object: &Value) -> &str {
    [
        &object["series"]["lastObservedTime"],
        &object["eventTime"],
        &object["metadata"]["creationTimestamp"],
    ]
    .into_iter()
    .find_map(Value::as_str)
    .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn at(millisecond: i64) -> Timestamp {
        Timestamp::from_millisecond(millisecond).unwrap()
    }

    fn state() -> PageState {
        PageState::new(About {
            version: "0",
            context: "hub".to_owned(),
            server: "https://hub".to_owned(),
            namespace: None,
            clock_ahead_ms: 0,
        })
    }

    fn row(rule: &str, cluster: &str, text: &str, digest: u64) -> WatchedDelivery {
        WatchedDelivery {
            rule: rule.to_owned(),
            cluster: cluster.to_owned(),
            text: text.to_owned(),
            digest,
        }
    }

    fn shown(updates: &[Update]) -> Value {
        serde_json::to_value(updates).unwrap()
    }

    #[test]
    fn row_of_a_table_is_a_letter_and_a_reason() {
        let columns = [
            "Rule",
            "Cluster",
            "State",
            "Applied",
            "Reason",
            "Newest",
            "Age",
            "Namespace",
        ];
        let columns = columns.map(str::to_owned);
        let read = |state: &str, reason: &str, newest: bool, age: &str, namespace: &str| {
            let cells = json!(["r", "eu-1", state, "1/1", reason, newest, age, namespace]);
            WatchedDelivery::read(&columns, cells.as_array().unwrap()).unwrap()
        };
        let ready = read("Ready", "AllApplied", true, "1s", "shop");
        assert_eq!((&*ready.rule, &*ready.text), ("shop/r", "R"));
        let older = read("Ready", "RollingOut", false, "1s", "");
        assert_eq!((&*older.rule, &*older.text), ("r", "rRollingOut"));
        let failed = read("Failed", "Conflict", true, "1s", "shop");
        assert_eq!(failed.text, "FConflict");
        let aged = read("Ready", "AllApplied", true, "2s", "shop");
        assert_eq!(aged.digest, ready.digest);
        assert_ne!(older.digest, ready.digest);
        assert_eq!(WatchedDelivery::read(&columns[1..], &[json!("eu-1")]), None);
    }

    #[test]
    fn only_changed_cells_are_sent() {
        let (mut state, deliveries) = (state(), Resource::Deliveries);
        let rows = vec![row("a/r", "c1", "R", 1), row("a/r", "c2", "FConflict", 2)];
        let updates = state.put_rows(deliveries, rows, Origin::List, at(0));
        let expected = json!([{"type": "cells", "put": {"a/r": {"c1": "R", "c2": "FConflict"}}}]);
        assert_eq!(shown(&updates), expected);
        let same = vec![row("a/r", "c1", "R", 1), row("a/r", "c2", "FConflict", 3)];
        let updates = state.put_rows(deliveries, same, Origin::Watch, at(0));
        assert_eq!(
            shown(&updates),
            json!([{"type": "cells", "put": {"a/r": {"c2": "FConflict"}}}])
        );
        assert_eq!(state.cells(), 2);
    }

    #[test]
    fn second_list_deletes_what_it_does_not_have() {
        let mut state = state();
        let (deliveries, rules) = (Resource::Deliveries, Resource::Rules);
        let rule = |name: &str| json!({"metadata": {"name": name, "namespace": "a"}});
        state.begin_list(deliveries);
        let rows = vec![row("a/r", "c1", "R", 1), row("a/r", "c2", "R", 1)];
        state.put_rows(deliveries, rows, Origin::List, at(0));
        state.put_rows(
            Resource::ClusterDeliveries,
            vec![row("b", "c1", "R", 1)],
            Origin::List,
            at(0),
        );
        assert!(state.end_list(deliveries, at(0)).is_empty());
        state.begin_list(rules);
        state.put_objects(rules, vec![rule("r"), rule("s")], at(0));
        assert!(state.end_list(rules, at(0)).is_empty());

        state.begin_list(deliveries);
        let kept = vec![row("a/r", "c2", "R", 1)];
        assert!(
            state
                .put_rows(deliveries, kept, Origin::List, at(0))
                .is_empty()
        );
        let updates = state.end_list(deliveries, at(0));
        assert_eq!(
            shown(&updates),
            json!([{"type": "cells", "put": {"a/r": {"c1": ""}}}])
        );
        state.begin_list(rules);
        assert!(state.put_objects(rules, vec![rule("s")], at(0)).is_empty());
        let updates = state.end_list(rules, at(0));
        let expected =
            json!([{"type": "objects", "resource": "rules", "put": [], "deleted": ["a/r"]}]);
        assert_eq!(shown(&updates), expected);
        assert_eq!(state.cells(), 2);
    }

    #[test]
    fn edit_is_measured_while_cells_are_outdated() {
        let (mut state, deliveries) = (state(), Resource::Deliveries);
        let both = |text: &str, digest| {
            vec![
                row("a/r", "c1", text, digest),
                row("a/r", "c2", text, digest),
            ]
        };
        state.put_rows(deliveries, both("R", 1), Origin::List, at(0));
        state.put_rows(deliveries, both("pProgressing", 2), Origin::Watch, at(1000));
        let updates = state.put_rows(deliveries, both("R", 1), Origin::Watch, at(1700));
        let expected =
            json!({"type": "edits", "put": [{"rule": "a/r", "endedAt": 1700, "took": 700}]});
        assert_eq!(shown(&updates)[1], expected);
        let rule = |revision: &str| json!({"metadata": {"name": "r", "namespace": "a"}, "status": {"revision": revision}});
        state.put_objects(Resource::Rules, vec![rule("1")], at(0));
        let updates = state.put_objects(Resource::Rules, vec![rule("2")], at(1800));
        assert_eq!(updates.len(), 1, "the revision of the measured edit");
        let updates = state.put_objects(Resource::Rules, vec![rule("3")], at(2000));
        assert_eq!(shown(&updates)[1]["put"][0]["took"], Value::Null);
    }

    #[test]
    fn oldest_events_beyond_the_limit_are_dropped() {
        let mut state = state();
        let event = |number: usize| {
            json!({
                "metadata": {"name": format!("e{}", 9999 - number), "namespace": "a"},
                "eventTime": format!("2026-11-25T07:00:{number:06}Z"),
            })
        };
        let limit = Resource::Events.limit();
        let events = (0..limit).map(event).collect();
        state.put_objects(Resource::Events, events, at(0));
        let updates = state.put_objects(Resource::Events, vec![event(limit)], at(0));
        assert_eq!(shown(&updates)[0]["deleted"], json!(["a/e9999"]));
        assert_eq!(state.objects[&Resource::Events].len(), limit);
    }

    #[test]
    fn snapshot_begins_with_about_and_ends_with_ready() {
        let mut state = state();
        let rows = (0..CELLS + 1).map(|number| row("a/r", &format!("c{number}"), "R", 1));
        state.put_rows(Resource::Deliveries, rows.collect(), Origin::List, at(0));
        state.put_rows(
            Resource::ClusterDeliveries,
            vec![row("b", "c", "R", 1)],
            Origin::List,
            at(0),
        );
        let objects =
            (0..OBJECTS + 1).map(|number| json!({"metadata": {"name": number.to_string()}}));
        state.put_objects(Resource::Members, objects.collect(), at(0));
        assert!(
            state
                .set_source(Resource::Members, "live", "", at(5))
                .is_some()
        );
        assert!(
            state
                .set_source(Resource::Members, "live", "", at(9))
                .is_none()
        );
        let all = shown(&state.snapshot());
        let types: Vec<_> = all
            .as_array()
            .unwrap()
            .iter()
            .map(|update| update["type"].clone())
            .collect();
        let expected = [
            "about", "source", "objects", "objects", "cells", "cells", "edits", "ready",
        ];
        assert_eq!(types, expected);
        assert_eq!(all[1]["since"], 5);
    }
}
