//! The kinds in the discovery of an API server.
use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::Client;
use kube::core::discovery::v2::{APIGroupDiscovery, APIResourceDiscovery, APIVersionDiscovery};
use runnel_proto::model::{Kind, Kinds, Scope, split_resource};

/// Interval after a read that was the last one before a change: a definition, or a kind that is needed now.
const MIN_INTERVAL: Duration = Duration::from_secs(1);
/// Interval after a read that was requested, because a kind is not served any more.
const REQUEST_INTERVAL: Duration = Duration::from_secs(10);
/// The first and the longest interval while a kind is missing.
const FIRST_RETRY: Duration = Duration::from_secs(2);
const LONGEST_RETRY: Duration = Duration::from_secs(60);
/// Interval while no kind is missing: the preferred version of a kind may change.
const REFRESH: Duration = Duration::from_secs(600);

/// When the kinds that an API server serves are read again.
#[derive(Debug, Default)]
pub struct DiscoverySchedule {
    /// The end of the last read.
    read_at: Option<Instant>,
    /// Whether a read has succeeded.
    has_read: bool,
    /// The needed kinds that were missing then; all of them, if it failed.
    missing: BTreeSet<Arc<str>>,
    /// The interval until the next read while kinds are missing.
    retry: Duration,
    /// The interval until the next read, if one was requested.
    requested: Option<Duration>,
}

impl DiscoverySchedule {
    /// A kind is not served, which the last read does not have.
    pub fn request(&mut self) {
        self.requested.get_or_insert(REQUEST_INTERVAL);
    }

    /// A definition of a kind has changed. The discovery has the change a moment later, so that the next reads follow soon,
    /// too.
    pub fn request_for_definition(&mut self) {
        self.requested = Some(MIN_INTERVAL);
        self.retry = Duration::ZERO;
    }

    /// Whether the kinds have been read.
    pub fn has_read(&self) -> bool {
        self.has_read
    }

    /// The needed kinds that the last read has not found; all of them, if it failed.
    pub fn missing(&self) -> &BTreeSet<Arc<str>> {
        &self.missing
    }

    /// A read has succeeded. `missing`: the needed kinds that were not found.
    pub fn read(&mut self, now: Instant, missing: BTreeSet<Arc<str>>) {
        self.has_read = true;
        self.ended(now, missing);
    }

    /// A read has failed. `needed`: the kinds that it was to find.
    pub fn failed(&mut self, now: Instant, needed: BTreeSet<Arc<str>>) {
        self.ended(now, needed);
    }

    fn ended(&mut self, now: Instant, missing: BTreeSet<Arc<str>>) {
        let is_same = missing == self.missing;
        self.retry = if is_same {
            (self.retry * 2).clamp(FIRST_RETRY, LONGEST_RETRY)
        } else {
            FIRST_RETRY
        };
        (self.read_at, self.missing, self.requested) = (Some(now), missing, None);
    }

    /// Returns when the kinds are to be read; `None` while none is needed. `needed` are the kinds without those that every
    /// API server serves, `kinds` those that were found.
    pub fn due<'k>(
        &self,
        now: Instant,
        needed: impl IntoIterator<Item = &'k Arc<str>>,
        kinds: &Kinds,
    ) -> Option<Instant> {
        let mut needed = needed.into_iter().peekable();
        needed.peek()?;
        let Some(read_at) = self.read_at else {
            return Some(now);
        };
        let is_missing = |resource: &Arc<str>| self.missing.contains(resource);
        let mut wait = REFRESH;
        for resource in needed {
            if is_missing(resource) {
                wait = wait.min(self.retry);
            } else if kinds.preferred(resource).is_none() {
                wait = MIN_INTERVAL;
            }
        }
        let wait = if wait < REFRESH { jittered(wait) } else { wait };
        let wait = self.requested.map_or(wait, |requested| wait.min(requested));
        read_at.checked_add(wait)
    }
}

/// An interval between 80 % and 100 % of this one.
fn jittered(interval: Duration) -> Duration {
    let random = RandomState::new().hash_one(()) % 200;
    interval * u32::try_from(800 + random).unwrap_or(1000) / 1000
}

/// Kinds, as the discovery of an API server shows them.
#[derive(Debug, Default)]
pub struct ServedKinds {
    /// The kinds that are served, in every version that is known.
    pub kinds: Kinds,
    /// The API groups of which versions may be missing, because the API server cannot reach an aggregated API of them.
    pub stale: BTreeSet<String>,
    /// The API groups that the discovery shows.
    pub groups: BTreeSet<String>,
}

impl ServedKinds {
    /// Whether versions of a kind may be missing, because the API server cannot reach an aggregated API of its group.
    pub fn is_unreadable(&self, resource: &str) -> bool {
        self.stale.contains(split_resource(resource).1)
    }

    /// Adds the versions of the known kinds that are not among them, for the kinds with this property: the discovery is no
    /// proof that they are not served.
    pub fn keep(&mut self, known: &Kinds, is_unknown: impl Fn(&Self, &str) -> bool) {
        let is_kept = |kind: &&Kind| {
            let found = self.kinds.in_version(&kind.resource, &kind.version);
            found.is_none() && is_unknown(self, &kind.resource)
        };
        let kept = known.in_all_versions().filter(is_kept);
        let all = self.kinds.in_all_versions().chain(kept);
        self.kinds = all.cloned().collect();
    }
}

/// Reads the kinds of these names, `plural[.group]`, that an API server serves with all these verbs, in every version. `None`:
/// those of any name.
///
/// # Errors
/// The error of the API server.
pub async fn read_served(
    client: Client,
    named: Option<&BTreeSet<Arc<str>>>,
    verbs: &[&str],
) -> Result<ServedKinds, kube::Error> {
    let mut groups = client.list_api_groups_aggregated().await?.items;
    let is_core = |name: &Arc<str>| split_resource(name).1.is_empty();
    if named.is_none_or(|named| named.iter().any(is_core)) {
        groups.extend(client.list_core_api_versions_aggregated().await?.items);
    }
    Ok(served_kinds(groups, named, verbs))
}

fn served_kinds(
    groups: Vec<APIGroupDiscovery>,
    named: Option<&BTreeSet<Arc<str>>>,
    verbs: &[&str],
) -> ServedKinds {
    let (mut kinds, mut stale, mut shown) = (vec![], BTreeSet::new(), BTreeSet::new());
    for group in groups {
        let name = group.metadata.and_then(|metadata| metadata.name);
        let name = name.unwrap_or_default();
        let is_stale =
            |version: &APIVersionDiscovery| version.freshness.as_deref() != Some("Current");
        if group.versions.iter().any(is_stale) {
            stale.insert(name.clone());
        }
        // The preferred version is the first.
        for version in group.versions {
            let number = version.version.unwrap_or_default();
            let has_all = |resource: &APIResourceDiscovery| {
                let mut verbs = verbs.iter();
                verbs.all(|verb| resource.verbs.iter().any(|offered| offered == verb))
            };
            let resources = version.resources.into_iter().filter(has_all);
            kinds.extend(resources.filter_map(|resource| {
                let scope = match resource.scope.as_deref() {
                    Some("Namespaced") => Scope::Namespaced,
                    _ => Scope::Cluster,
                };
                let plural = resource.resource?;
                let kind = resource.response_kind?.kind?;
                let kind = Kind::new(&name, &number, &kind, &plural, scope);
                let is_named = named.is_none_or(|named| named.contains(&kind.resource));
                is_named.then_some(kind)
            }));
        }
        shown.insert(name);
    }
    ServedKinds {
        kinds: kinds.into_iter().collect(),
        stale,
        groups: shown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIDGETS: &str = "widgets.example.org";

    fn kinds_of_widgets() -> Kinds {
        let kind = Kind::new("example.org", "v1", "Widget", "widgets", Scope::Namespaced);
        [kind].into_iter().collect()
    }

    #[test]
    fn group_that_is_not_reached_leaves_its_kinds_unknown() {
        let widgets = serde_json::json!({"resource": "widgets", "scope": "Namespaced", "verbs": ["get", "list"],
            "responseKind": {"group": "example.org", "version": "v1", "kind": "Widget"}});
        let version = |version: &str, freshness: &str, resources: &[&serde_json::Value]| serde_json::json!({"version": version, "freshness": freshness, "resources": resources});
        let group = |name: &str, versions: serde_json::Value| -> APIGroupDiscovery {
            let group = serde_json::json!({"metadata": {"name": name}, "versions": versions});
            serde_json::from_value(group).unwrap()
        };
        let gears: Arc<str> = "gears.example.com".into();
        let named = BTreeSet::from([WIDGETS.into(), gears.clone()]);
        let read = |groups| served_kinds(groups, Some(&named), &["get", "list"]);
        let current = version("v1", "Current", &[&widgets]);
        let served = group("example.org", serde_json::json!([current]));
        let down = group(
            "example.com",
            serde_json::json!([version("v3", "Stale", &[])]),
        );
        let both = read(vec![served.clone(), down]);
        assert_eq!(
            both.kinds.preferred(WIDGETS),
            kinds_of_widgets().preferred(WIDGETS)
        );
        assert!(both.is_unreadable(&gears) && !both.is_unreadable(WIDGETS));
        assert_eq!(read(vec![served.clone()]).stale, BTreeSet::new());
        // One version of a group may be known, and another one not.
        let versions = serde_json::json!([
            version("v2", "Stale", &[]),
            version("v1", "Current", &[&widgets])
        ]);
        let partly = read(vec![group("example.org", versions)]);
        assert!(partly.kinds.preferred(WIDGETS).is_some());
        assert!(partly.is_unreadable(WIDGETS));
        for verb in ["get", "create"] {
            let found = served_kinds(vec![served.clone()], None, &["list", verb]);
            assert_eq!(found.kinds.preferred(WIDGETS).is_some(), verb == "get");
        }
    }

    #[test]
    fn kinds_are_read_only_while_one_is_needed() {
        let start = Instant::now();
        let after = |due: Option<Instant>| due.unwrap().duration_since(start).as_secs_f64();
        let (one, two): (Arc<str>, Arc<str>) = ("a.example.org".into(), "b.example.org".into());
        let none = Kinds::default();
        let mut schedule = DiscoverySchedule::default();
        assert_eq!(schedule.due(start, [], &none), None);
        assert_eq!(schedule.due(start, [&one], &none), Some(start));
        schedule.read(start, [one.clone()].into());
        let due = after(schedule.due(start, [&one], &none));
        assert!((1.6..=2.0).contains(&due), "{due}");
        // A kind that the last read did not look for.
        let due = after(schedule.due(start, [&one, &two], &none));
        assert!(due <= 1.0, "{due}");
        for _ in 0..10 {
            schedule.read(start, [one.clone()].into());
        }
        let due = after(schedule.due(start, [&one], &none));
        assert!((48.0..=60.0).contains(&due), "{due}");
        // Its definition is seen.
        schedule.request_for_definition();
        let due = after(schedule.due(start, [&one], &none));
        assert!(due <= 1.0, "{due}");
        schedule.read(start, [one.clone()].into());
        let due = after(schedule.due(start, [&one], &none));
        assert!((1.6..=2.0).contains(&due), "{due}");
    }

    #[test]
    fn served_kinds_are_read_again_on_request() {
        let start = Instant::now();
        let (resource, found) = (Arc::from(WIDGETS), kinds_of_widgets());
        let mut schedule = DiscoverySchedule::default();
        schedule.read(start, BTreeSet::new());
        let due = |schedule: &DiscoverySchedule| schedule.due(start, [&resource], &found);
        assert_eq!(due(&schedule), Some(start + REFRESH));
        schedule.request();
        assert_eq!(due(&schedule), Some(start + REQUEST_INTERVAL));
        schedule.request_for_definition();
        schedule.request();
        assert_eq!(due(&schedule), Some(start + MIN_INTERVAL));
    }

    #[test]
    fn failed_read_is_repeated_soon_although_kinds_are_known() {
        let start = Instant::now();
        let (resource, found) = (Arc::<str>::from(WIDGETS), kinds_of_widgets());
        let mut schedule = DiscoverySchedule::default();
        schedule.failed(start, [resource.clone()].into());
        assert!(!schedule.has_read());
        schedule.read(start, BTreeSet::new());
        assert!(schedule.has_read());
        schedule.failed(start, [resource.clone()].into());
        assert!(schedule.has_read());
        let due = schedule.due(start, [&resource], &found).unwrap();
        assert!(due <= start + FIRST_RETRY);
    }
}
