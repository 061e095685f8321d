//! Writes finalizers and statuses of rules, statuses of members and of the Fleet, and Events. Other
//! modules write only their own objects: the CA, joins, the Lease, the first grant, reviews. It
//! writes only while this process leads, and checks the deadline before each write.
//!
//! A status is written at most once a second and only if it changed. An edit that reaches every
//! cluster within a second costs one write, whatever the number of clusters. A failed write is
//! logged and retried.
mod events;
mod fleet;
mod members;
mod pending;
mod release;
mod removals;
mod rollback_store;
mod rules;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use runnel_proto::model::{ClusterName, RuleUid};
use tokio::sync::mpsc;
use tracing::Instrument;

pub use events::{WAITING, publish_events};
pub use fleet::FleetWriter;
pub use removals::RemovalRecorder;
pub use rollback_store::RollbackStore;

use crate::hub_state::{HubState, until};
use crate::object_cache::{ObjectCache, RuleObject};
use runnel_api::{GROUP, VERSION};
use runnel_hub_core::now::is_ahead;
use runnel_hub_core::status::{InProgress, Notice, Now, Pace, SETTLING, View, in_progress};

/// The limit of concurrent writes.
const WRITES: usize = 8;
/// The time within which changes are handled together.
const GATHER: Duration = Duration::from_millis(10);
/// The interval of checks that depend on time: unreachable clusters, the end of settling, pending
/// deletions.
const TICK: Duration = Duration::from_secs(1);
/// The interval at which every member is checked, independent of its reports.
pub const CHECK_INTERVAL: Duration = Duration::from_secs(15);
/// The time limit of one write.
const WRITE_LIMIT: Duration = Duration::from_secs(10);

/// The number of conflicts in a row after which the hub logs a warning. The watch usually delivers
/// the newer object within a moment; if it does not, it never will.
const CONFLICTS: u32 = 10;

/// Writes the statuses and finalizers.
pub struct Writer {
    client: Client,
    hub_state: Arc<HubState>,
    object_cache: Arc<ObjectCache>,
    events: mpsc::Sender<(ObjectReference, Notice)>,
    paces: BTreeMap<RuleUid, Pace>,
    /// Where a change of a rule was in progress when that was last looked for.
    in_progress: BTreeMap<RuleUid, InProgress>,
    members: BTreeSet<ClusterName>,
    /// Those of them that have become unreachable. Their statuses are written before those of
    /// rules.
    silent: BTreeSet<ClusterName>,
    retries: Vec<(Instant, Retry)>,
    conflicts: Conflicts,
    /// The start of service for which the end of settling was last reported.
    settled: Option<Instant>,
    /// When every member was last checked.
    checked_at: Instant,
    /// When it last looked for work that depends on time, to notice a clock that is set back.
    ticked_at: jiff::Timestamp,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Retry {
    Rule(RuleUid),
    Member(ClusterName),
}

/// The work that is due for a rule.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RuleWork {
    /// Only the release of a deleted rule; its status is not due.
    Release,
    /// Release and status. `overdue`: a change has been in progress for so long that the status
    /// must report it.
    ReleaseAndStatus { overdue: bool },
}

/// The result of the work on a rule.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RuleWorkResult {
    /// A deleted rule must still be released, and its status must be checked.
    Unreleased,
    /// No work is left.
    Nothing,
    /// Its status was written.
    Written,
}

/// Whether the rule is deleted and still has the finalizer.
fn is_to_be_released(rule: &RuleObject) -> bool {
    rule.deleting && rule.has_finalizer
}

/// The number of conflicts in a row, by object: the write expected another version of it.
#[derive(Default)]
struct Conflicts(BTreeMap<Retry, u32>);

impl Conflicts {
    /// Records the result of a write. Returns whether its conflicts must be logged.
    fn record_result<T>(&mut self, about: Retry, result: &Result<T, WriteError>) -> bool {
        match result {
            Ok(_) => drop(self.0.remove(&about)),
            Err(WriteError::Changed) => {
                let count = self.0.entry(about).or_default();
                *count += 1;
                return count.is_multiple_of(CONFLICTS);
            }
            Err(_) => {}
        }
        false
    }
}

impl Writer {
    /// Creates a writer. It sends Events to `events` (see [`publish_events`]).
    pub fn new(
        client: Client,
        hub_state: Arc<HubState>,
        object_cache: Arc<ObjectCache>,
        events: mpsc::Sender<(ObjectReference, Notice)>,
    ) -> Self {
        Self {
            client,
            hub_state,
            object_cache,
            events,
            paces: BTreeMap::new(),
            in_progress: BTreeMap::new(),
            members: BTreeSet::new(),
            silent: BTreeSet::new(),
            retries: Vec::new(),
            conflicts: Conflicts::default(),
            settled: None,
            checked_at: Instant::now(),
            ticked_at: jiff::Timestamp::MIN,
        }
    }

    /// Writes until the process ends.
    pub async fn run(mut self) {
        let mut beat = tokio::time::interval(TICK);
        let mut next = None;
        loop {
            tokio::select! {
                () = self.hub_state.queues.dirty_rules.added() => tokio::time::sleep(GATHER).await,
                () = self.hub_state.queues.dirty_members.added() => tokio::time::sleep(GATHER).await,
                _ = beat.tick() => self.tick(),
                () = until(next) => {}
            }
            // One time for the whole pass, so that the status of a cluster is written before a rule
            // that refers to it.
            let now = wall_now();
            self.gather(now.instant);
            next = None;
            // The process may have lost the lead and taken it again in between.
            if self.serves() {
                let silent = std::mem::take(&mut self.silent);
                self.write_members(silent, now).await;
                next = self.write_rules(now).await;
                let members = std::mem::take(&mut self.members);
                self.write_members(members, now).await;
            }
        }
    }

    fn serves(&self) -> bool {
        serves(&self.hub_state)
    }

    /// Queues the work that depends on time alone.
    fn tick(&mut self) {
        let now = Instant::now();
        let serving = self.hub_state.leadership.serving_since();
        if self.settled != serving
            && serving.is_some_and(|since| now.saturating_duration_since(since) >= SETTLING)
        {
            self.settled = serving;
            self.hub_state.mark_all_statuses();
        }
        self.report_changes(now);
        if now.saturating_duration_since(self.checked_at) >= CHECK_INTERVAL {
            self.checked_at = now;
            // No event reports the expiry of a certificate.
            self.hub_state
                .queues
                .dirty_members
                .add(self.object_cache.members());
        }
        let is_member = |name: &ClusterName| {
            self.object_cache
                .with_member(name, |member| member.is_some())
        };
        let expired = self
            .hub_state
            .leadership
            .divergences
            .lock()
            .expire(now, is_member);
        self.hub_state.queues.dirty_members.add(expired);
        let wall = jiff::Timestamp::now();
        // Rollouts that wait for a moment find another one if the clock was set back.
        let is_set_back = is_ahead(self.ticked_at, wall);
        self.ticked_at = wall;
        let until = if is_set_back {
            jiff::Timestamp::MAX
        } else {
            wall
        };
        let rolling = self.hub_state.index.read().rules().rolling(until);
        self.hub_state.queues.dirty_rules.add(rolling);
        let deleting = self.object_cache.deleting();
        self.hub_state.queues.dirty_rules.add(deleting);
        self.paces
            .retain(|_, pace| pace.is_dirty() || pace.is_recent(now));
        for (_, retry) in self.retries.extract_if(.., |(at, _)| *at <= now) {
            match retry {
                Retry::Rule(uid) => self.hub_state.queues.dirty_rules.add([uid]),
                Retry::Member(name) => self.hub_state.queues.dirty_members.add([name]),
            }
        }
    }

    /// Logs what agents did to copies, and queues the Events: one per rule, cluster and cause.
    fn report_changes(&self, now: Instant) {
        let (lines, left_out) = self.hub_state.audit.lock().take_lines(now);
        for line in lines {
            tracing::info!("{line}");
            // The rule may be deleted by now.
            let namespace = &line.rule.namespace;
            let reference = ObjectReference {
                api_version: Some(format!("{GROUP}/{VERSION}")),
                kind: Some(line.rule.kind.clone()),
                namespace: Some(namespace.clone()).filter(|name| !name.is_empty()),
                name: Some(line.rule.name.clone()),
                uid: Some(line.uid.to_string()),
                ..ObjectReference::default()
            };
            if self.events.try_send((reference, line.notice())).is_err() {
                tracing::debug!(rule = %line.rule, "too many Events at once: one is dropped");
            }
        }
        if left_out > 0 {
            tracing::warn!(
                copies = left_out,
                "changes of copies were not logged, because too many rules changed at once"
            );
        }
    }

    fn gather(&mut self, now: Instant) {
        let silent = self
            .hub_state
            .report_store
            .lock()
            .take_newly_unreachable(now);
        for cluster in silent {
            tracing::warn!(%cluster, "cluster is not connected any more");
            self.hub_state.mark_statuses_of(&cluster);
            self.silent.insert(cluster);
        }
        let dirty = self.hub_state.queues.dirty_rules.take();
        // Without the view API no task would take them out.
        if self.hub_state.settings.serves_views {
            self.hub_state
                .queues
                .viewed_rules
                .add(dirty.iter().cloned());
        }
        for uid in dirty {
            self.paces.entry(uid).or_default().mark(now);
        }
        // `append` would rebuild the whole set for each wake-up of a hub that starts.
        self.members
            .extend(self.hub_state.queues.dirty_members.take());
    }

    /// Returns the work that is due for a rule, and when to check again. [`Self::is_settled`] is
    /// called once, because it may read all clusters of the rule.
    fn due(
        &self,
        uid: &RuleUid,
        pace: &Pace,
        progress: &mut Option<InProgress>,
        now: Instant,
    ) -> (Option<RuleWork>, Option<Instant>) {
        let status = pace.due(|| self.is_settled(uid, progress, now));
        if status.is_some_and(|at| at <= now) {
            return (
                Some(RuleWork::ReleaseAndStatus {
                    overdue: pace.is_overdue(now),
                }),
                None,
            );
        }
        let released = pace.release_due().is_some_and(|at| at <= now)
            && self
                .object_cache
                .with_rule(uid, |rule| rule.is_some_and(is_to_be_released));
        (released.then_some(RuleWork::Release), status)
    }

    /// Whether the status of a rule can be written at once: no change is in progress, or the rule
    /// still needs the finalizer. The status of a deleted rule is written at once only if removals
    /// need approval; otherwise the rule disappears soon. `progress`: where a change is in progress.
    fn is_settled(&self, uid: &RuleUid, progress: &mut Option<InProgress>, now: Instant) -> bool {
        let started = self.hub_state.leadership.serving_since().unwrap_or(now);
        let index = self.hub_state.index.read();
        let report_store = self.hub_state.report_store.lock();
        self.object_cache.with_rule(uid, |object| {
            let Some(object) = object.filter(|object| object.has_finalizer) else {
                return true;
            };
            if object.deleting {
                return index.rules().is_blocked(uid);
            }
            let view = View::of(&index, &report_store, uid, &object.status, started, false);
            *progress =
                view.and_then(|view| in_progress(&view, &report_store, progress.as_ref(), now));
            progress.is_none()
        })
    }

    /// Returns for how long the hub has been serving.
    fn uptime(&self, now: Now) -> Duration {
        self.hub_state
            .leadership
            .serving_since()
            .map(|since| now.instant.saturating_duration_since(since))
            .unwrap_or_default()
    }

    /// Runs a write while this process leads and has relisted. Returns `None` if the object does
    /// not exist.
    async fn ignoring_missing<T>(
        &self,
        call: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<Option<T>, WriteError> {
        ignoring_missing(&self.hub_state, call).await
    }

    /// Writes the statuses that are due. Returns when a rule must be checked again.
    async fn write_rules(&mut self, now: Now) -> Option<Instant> {
        let mut due = Vec::new();
        let mut next: Option<Instant> = None;
        let mut former = std::mem::take(&mut self.in_progress);
        for (uid, pace) in &self.paces {
            let mut progress = former.remove(uid);
            let (work, later) = self.due(uid, pace, &mut progress, now.instant);
            due.extend(work.map(|work| (uid.clone(), work)));
            self.in_progress
                .extend(progress.map(|progress| (uid.clone(), progress)));
            next = next.into_iter().chain(later).min();
        }
        let this = &*self;
        let writes = due.into_iter().map(|(uid, work)| async move {
            let span = tracing::info_span!("write", rule = %this.object_cache.name_of(&uid));
            let result = this.write_rule(&uid, work, now).instrument(span).await;
            (uid, work, result)
        });
        let results: Vec<_> = futures::stream::iter(writes)
            .buffer_unordered(WRITES)
            .collect()
            .await;
        for (uid, work, result) in results {
            if self
                .conflicts
                .record_result(Retry::Rule(uid.clone()), &result)
            {
                let rule = self.object_cache.name_of(&uid);
                tracing::warn!(%rule, "cannot write about a rule: the hub sees another version of it than the API server has, {CONFLICTS} times in a row; trying again. If this continues, restart the hub");
            }
            let outcome = result.unwrap_or_else(|error| {
                // This process may renew a lead that has lapsed, and then no other process checks
                // the rule. So the write is retried.
                if !matches!(error, WriteError::NotLeading | WriteError::Changed) {
                    tracing::warn!(rule = %self.object_cache.name_of(&uid), why = %describe(&error), "cannot write about a rule; trying again");
                }
                self.retries.push((retry_at(&error), Retry::Rule(uid.clone())));
                if work == RuleWork::Release { RuleWorkResult::Unreleased } else { RuleWorkResult::Written }
            });
            if self.object_cache.with_rule(&uid, |rule| rule.is_none()) {
                self.paces.remove(&uid);
            } else if let Some(pace) = self.paces.get_mut(&uid) {
                match outcome {
                    RuleWorkResult::Unreleased => pace.tried_release(),
                    RuleWorkResult::Written | RuleWorkResult::Nothing => {
                        pace.done(Instant::now(), outcome == RuleWorkResult::Written)
                    }
                }
            }
        }
        next
    }

    async fn write_members(&mut self, due: BTreeSet<ClusterName>, now: Now) {
        let this = &*self;
        let writes = due.into_iter().map(|name| async move {
            let result = this.write_member(&name, now).await;
            (name, result)
        });
        let results: Vec<_> = futures::stream::iter(writes)
            .buffer_unordered(WRITES)
            .collect()
            .await;
        for (name, result) in results {
            if self
                .conflicts
                .record_result(Retry::Member(name.clone()), &result)
            {
                tracing::warn!(cluster = %name, "cannot write about a member: the hub sees another version of it than the API server has, {CONFLICTS} times in a row; trying again. If this continues, restart the hub");
            }
            if let Err(error) = result {
                if !matches!(error, WriteError::NotLeading | WriteError::Changed) {
                    tracing::warn!(cluster = %name, why = %describe(&error), "cannot write about a member; trying again");
                }
                self.retries.push((retry_at(&error), Retry::Member(name)));
            }
        }
    }
}

/// Whether this process leads and every watch has delivered a list. Before that the state is
/// incomplete.
fn serves(hub_state: &HubState) -> bool {
    hub_state.leadership.serving_since().is_some() && hub_state.leadership.leads()
}

/// Runs a write while this process leads and has relisted. Returns `None` if the object does not
/// exist.
async fn ignoring_missing<T>(
    hub_state: &HubState,
    call: impl Future<Output = Result<T, kube::Error>>,
) -> Result<Option<T>, WriteError> {
    if !serves(hub_state) {
        return Err(WriteError::NotLeading);
    }
    match with_timeout(call).await {
        Ok(done) => Ok(Some(done)),
        Err(WriteError::Api(kube::Error::Api(status))) if status.code == 404 => Ok(None),
        Err(WriteError::Api(kube::Error::Api(status))) if status.code == 409 => {
            Err(WriteError::Changed)
        }
        Err(error) => Err(error),
    }
}

/// Returns when a failed write is retried. After a conflict the newer object arrives within a
/// moment.
fn retry_at(error: &WriteError) -> Instant {
    match error {
        WriteError::Changed => Instant::now(),
        _ => Instant::now() + 2 * TICK,
    }
}

fn wall_now() -> Now {
    Now {
        instant: Instant::now(),
        wall: jiff::Timestamp::now(),
    }
}

/// Why a write failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteError {
    /// The API server refused the write or could not be reached.
    #[error(transparent)]
    Api(#[from] kube::Error),
    /// The API server did not answer in time.
    #[error("the API server did not answer in time")]
    Timeout,
    /// The object has changed since it was observed, perhaps by a replica that leads now.
    #[error("the object has changed")]
    Changed,
    /// This process does not lead; another replica may.
    #[error("this replica does not lead any more")]
    NotLeading,
}

async fn with_timeout<T>(
    call: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, WriteError> {
    Ok(tokio::time::timeout(WRITE_LIMIT, call)
        .await
        .map_err(|_| WriteError::Timeout)??)
}

fn describe(error: &WriteError) -> String {
    match error {
        WriteError::Api(kube::Error::Api(status)) if status.code == 403 => {
            format!("forbidden: the hub lacks a right ({})", status.message)
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conflicts_in_a_row_are_logged_until_a_write() {
        let mut conflicts = Conflicts::default();
        let (rule, member) = (Retry::Rule("a".into()), Retry::Member("a".into()));
        let changed = || Err::<(), _>(WriteError::Changed);
        let messages = |conflicts: &mut Conflicts, times: usize| {
            (0..times)
                .filter(|_| conflicts.record_result(rule.clone(), &changed()))
                .count()
        };
        assert_eq!(messages(&mut conflicts, 9), 0);
        assert!(!conflicts.record_result(member, &changed()));
        assert_eq!(messages(&mut conflicts, 1), 1);
        assert_eq!(messages(&mut conflicts, 10), 1);
        assert_eq!(messages(&mut conflicts, 9), 0);
        assert!(!conflicts.record_result(rule.clone(), &Ok(())));
        assert_eq!(messages(&mut conflicts, 9), 0);
        assert!(conflicts.0.len() == 2);
    }

    fn writer(hub_state: &Arc<HubState>, object_cache: &Arc<ObjectCache>) -> Writer {
        let client =
            Client::try_from(kube::Config::new("http://127.0.0.1:1".parse().unwrap())).unwrap();
        Writer::new(
            client,
            hub_state.clone(),
            object_cache.clone(),
            mpsc::channel(1).0,
        )
    }

    #[tokio::test]
    async fn deleted_rule_is_due_at_once_after_a_status_write() {
        let (hub_state, object_cache) = (
            HubState::new(crate::hub_state::Settings::for_tests()),
            Arc::<ObjectCache>::default(),
        );
        let writer = writer(&hub_state, &object_cache);
        let mut object = serde_json::json!({
            "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionRule",
            "metadata": {"name": "r", "namespace": "a", "uid": "r", "finalizers": [runnel_api::FINALIZER]},
            "spec": {"sources": [{"resources": ["configmaps"], "names": ["*"]}], "clusters": {"all": true}},
        });
        let (uid, start) = (RuleUid::from("r"), Instant::now());
        let see = |object: &serde_json::Value| {
            let rule: runnel_api::DistributionRule =
                serde_json::from_value(object.clone()).unwrap();
            object_cache.set_rule(uid.clone(), RuleObject::of(&rule, true), true);
        };
        let mut pace = Pace::default();
        // As many writes as may follow each other at once.
        while pace.due(|| true).is_none_or(|due| due <= start) {
            pace.mark(start);
            pace.done(start, true);
            pace.mark(start);
        }
        pace.done(start, false);
        let changed = start + TICK / 10;
        pace.mark(changed);
        see(&object);
        let waits = (None, Some(start + TICK));
        assert!(
            writer.due(&uid, &pace, &mut None, changed) == waits,
            "a status waits"
        );
        object["metadata"]["deletionTimestamp"] = serde_json::json!("2026-01-01T00:00:00Z");
        see(&object);
        let (work, later) = writer.due(&uid, &pace, &mut None, changed);
        assert!(work == Some(RuleWork::Release), "the finalizer does not");
        assert!(later >= Some(start + TICK));
        pace.tried_release();
        let (work, later) = writer.due(&uid, &pace, &mut None, changed);
        assert!(
            work.is_none() && later >= Some(start + TICK),
            "until something changes"
        );
        let after = start + TICK * 3;
        assert!(
            writer.due(&uid, &pace, &mut None, after)
                == (Some(RuleWork::ReleaseAndStatus { overdue: true }), None)
        );
    }

    #[tokio::test]
    async fn nothing_is_written_before_a_regained_lead_has_relisted() {
        let hub_state = HubState::new(crate::hub_state::Settings::for_tests());
        let writer = writer(&hub_state, &Arc::default());
        let write = async || writer.ignoring_missing(async { Ok(()) }).await;
        let lead = |term| crate::lease::Lead {
            epoch: "uid".to_owned(),
            term,
            valid_until: Instant::now() + Duration::from_secs(60),
        };
        hub_state.set_lead(Some(lead(1)));
        hub_state
            .leadership
            .ready
            .send_replace(Some(Instant::now()));
        assert!(matches!(write().await, Ok(Some(()))));
        hub_state.set_lead(None);
        assert!(matches!(write().await, Err(WriteError::NotLeading)));
        hub_state.set_lead(Some(lead(2)));
        assert!(
            hub_state.leadership.leads() && matches!(write().await, Err(WriteError::NotLeading))
        );
        hub_state
            .leadership
            .ready
            .send_replace(Some(Instant::now()));
        assert!(matches!(write().await, Ok(Some(()))));
    }
}
