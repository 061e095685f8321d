//! Discovery of the kinds that the hub's API server serves.
use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::Client;
use kube::api::ApiResource;
use kube::discovery::{ApiCapabilities, Discovery, verbs};
use runnel_proto::model::{Kind, Kinds};
use runnel_transport::discovery::{served_kind, served_resources};

use super::READ_LIMIT;
use super::list::describe;

/// What the hub does with sources. A kind whose CRD is being deleted serves no create.
const VERBS: [&str; 4] = [verbs::GET, verbs::LIST, verbs::WATCH, verbs::CREATE];
/// Limit of the kinds that are kept: an API server becomes slow long before.
const KINDS: usize = 10_000;
/// Minimum interval between two reads.
const MIN_INTERVAL: Duration = Duration::from_secs(1);
/// Interval after a read that a watch requested, because its kind is not served.
const REQUEST_INTERVAL: Duration = Duration::from_secs(10);
/// The first and the longest interval while a kind is missing.
const FIRST_RETRY: Duration = Duration::from_secs(10);
const LONGEST_RETRY: Duration = Duration::from_secs(60);
/// Interval while no kind is missing: the preferred version of a kind may change.
const REFRESH: Duration = Duration::from_secs(600);

/// Why the kinds could not be read.
#[derive(Debug, thiserror::Error)]
pub enum DiscoveryError {
    /// The API server returned an error or cannot be reached.
    #[error("{0}")]
    Api(String),
    /// The API server did not answer in time.
    #[error("the API server did not answer in time")]
    Timeout,
}

/// Reads the kinds that the API server serves.
///
/// # Errors
/// [`DiscoveryError`], when they cannot be read.
pub async fn read_kinds(client: Client) -> Result<Kinds, DiscoveryError> {
    let reading = Discovery::new(client).run_aggregated();
    let discovery = tokio::time::timeout(READ_LIMIT, reading)
        .await
        .map_err(|_| DiscoveryError::Timeout)?
        .map_err(|error| DiscoveryError::Api(describe(&error)))?;
    Ok(kinds(served_resources(&discovery)))
}

/// Returns the kinds that can be sources, in each version, the preferred one first.
fn kinds(served: impl Iterator<Item = (ApiResource, ApiCapabilities)>) -> Kinds {
    let served = served.filter_map(|(resource, can)| served_kind(&resource, &can, &VERBS));
    let known = Kind::supported().iter().cloned();
    known.chain(served).take(KINDS).collect()
}

/// When the kinds are read again.
#[derive(Debug, Default)]
pub(super) struct DiscoverySchedule {
    /// The end of the last read.
    read_at: Option<Instant>,
    /// The needed kinds that were missing then.
    missing: BTreeSet<Arc<str>>,
    /// The interval until the next read while kinds are missing.
    retry: Duration,
    /// Whether a watch requested a read.
    requested: bool,
}

impl DiscoverySchedule {
    /// A watch has found that its kind is not served.
    pub(super) fn request(&mut self) {
        self.requested = true;
    }

    /// A read has ended. `missing`: the needed kinds that were not found; all of them, if the read failed.
    pub(super) fn ended(&mut self, now: Instant, missing: BTreeSet<Arc<str>>) {
        let is_same = self.read_at.is_some() && missing == self.missing;
        self.retry = if is_same {
            (self.retry * 2).min(LONGEST_RETRY)
        } else {
            FIRST_RETRY
        };
        (self.read_at, self.missing, self.requested) = (Some(now), missing, false);
    }

    /// Returns when the kinds are to be read; `None` while no rule needs it. `needed` are the kinds that rules name,
    /// without those that are always served.
    pub(super) fn due<'k>(
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
        let mut missing = needed
            .filter(|resource| kinds.preferred(resource).is_none())
            .peekable();
        let has_missing = missing.peek().is_some();
        let wait = if missing.any(|resource| !self.missing.contains(resource)) {
            MIN_INTERVAL
        } else if has_missing {
            jittered(self.retry)
        } else if self.requested {
            REQUEST_INTERVAL
        } else {
            REFRESH
        };
        read_at.checked_add(wait)
    }
}

/// An interval between 80 % and 100 % of this one.
fn jittered(interval: Duration) -> Duration {
    let random = RandomState::new().hash_one(()) % 200;
    interval * u32::try_from(800 + random).unwrap_or(1000) / 1000
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::discovery::Scope;

    fn served(plural: &str, version: &str, operations: &[&str]) -> (ApiResource, ApiCapabilities) {
        let resource = ApiResource {
            group: "example.org".to_owned(),
            version: version.to_owned(),
            api_version: format!("example.org/{version}"),
            kind: "Widget".to_owned(),
            plural: plural.to_owned(),
        };
        let can = ApiCapabilities {
            scope: Scope::Namespaced,
            subresources: vec![],
            operations: operations.iter().map(ToString::to_string).collect(),
        };
        (resource, can)
    }

    #[test]
    fn kinds_without_the_needed_verbs_are_not_served() {
        let all = ["create", "get", "list", "patch", "watch"];
        let found = kinds(
            [
                served("widgets", "v2", &all),
                served("widgets", "v1", &all),
                // Its CRD is being deleted.
                served("leaving", "v1", &["delete", "get", "list", "watch"]),
                served("reviews", "v1", &["create"]),
            ]
            .into_iter(),
        );
        let version = |resource: &str| {
            found
                .preferred(resource)
                .map(|kind| kind.version.to_string())
        };
        assert_eq!(version("widgets.example.org").as_deref(), Some("v2"));
        assert_eq!(
            (
                version("leaving.example.org"),
                version("reviews.example.org")
            ),
            (None, None)
        );
        assert_eq!(version("secrets").as_deref(), Some("v1"));
    }

    #[test]
    fn number_of_kinds_is_bounded() {
        let many = (0..KINDS + 10)
            .map(|n| served(&format!("w{n}"), "v1", &["create", "get", "list", "watch"]));
        assert_eq!(kinds(many).iter().count(), KINDS);
    }

    #[test]
    fn kinds_are_read_only_while_a_rule_needs_one() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let (one, two): (Arc<str>, Arc<str>) = ("a.example.org".into(), "b.example.org".into());
        let none = kinds(std::iter::empty());
        let mut schedule = DiscoverySchedule::default();
        assert_eq!(schedule.due(start, [], &none), None);
        assert_eq!(schedule.due(start, [&one], &none), Some(start));
        schedule.ended(start, [one.clone()].into());
        let due = schedule.due(start, [&one], &none).unwrap();
        assert!(due >= at(8) && due <= at(10));
        // A kind that the last read did not look for.
        assert_eq!(schedule.due(start, [&one, &two], &none), Some(at(1)));
        for _ in 0..10 {
            schedule.ended(start, [one.clone()].into());
        }
        let due = schedule.due(start, [&one], &none).unwrap();
        assert!(due >= at(48) && due <= at(60));
    }

    #[test]
    fn served_kinds_are_read_again_on_request() {
        let start = Instant::now();
        let widgets: Arc<str> = "widgets.example.org".into();
        let found =
            kinds([served("widgets", "v1", &["create", "get", "list", "watch"])].into_iter());
        let mut schedule = DiscoverySchedule::default();
        schedule.ended(start, BTreeSet::new());
        let due = |schedule: &DiscoverySchedule| schedule.due(start, [&widgets], &found);
        assert_eq!(due(&schedule), Some(start + REFRESH));
        schedule.request();
        assert_eq!(due(&schedule), Some(start + REQUEST_INTERVAL));
    }
}
