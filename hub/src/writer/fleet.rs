//! Writes the status of the `Fleet`: the overview, and the pending approvals. It is written at most
//! once a second. A cause that begins or ceases to wait for approval is an Event and a log line.
use std::sync::Arc;
use std::time::Instant;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, Resource};
use runnel_api::conditions::{ConditionType, condition};
use runnel_api::{FLEET, Fleet, FleetSpec, FleetStatus};
use runnel_hub_core::status::{FleetCounts, Notice, Now, SETTLING, fleet_notices, fold_fleet};
use serde_json::json;
use tokio::sync::mpsc;

use super::{ObjectCache, TICK, WriteError, describe, ignoring_missing, serves};
use crate::hub_state::HubState;

/// Writes the status of the `Fleet`.
pub struct FleetWriter {
    client: Client,
    hub_state: Arc<HubState>,
    object_cache: Arc<ObjectCache>,
    events: mpsc::Sender<(ObjectReference, Notice)>,
}

impl FleetWriter {
    /// Creates a writer. It sends Events to `events`.
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
        }
    }

    /// Writes the status until the process ends.
    pub async fn run(self) {
        let mut beat = tokio::time::interval(TICK);
        beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let (mut written, mut failing, mut served) = (None, false, None);
        loop {
            beat.tick().await;
            if !serves(&self.hub_state) {
                written = None;
                continue;
            }
            // Another leader may have written the status since.
            let since = self.hub_state.leadership.serving_since();
            if served != since {
                (served, written) = (since, None);
            }
            let stored = self.hub_state.fleet_status.borrow().clone();
            let previous = written.clone().or_else(|| stored.clone());
            let status = self.status(&previous.clone().unwrap_or_default());
            let is_same = previous.as_ref() == Some(&status);
            if is_same || (previous.is_some() && self.is_settling(&status)) {
                continue;
            }
            match self.write(&status).await {
                Ok(fleet) => {
                    self.publish(&previous.unwrap_or_default(), &status, fleet.as_ref());
                    (written, failing) = (Some(status), false);
                }
                Err(error) if !failing => {
                    tracing::warn!(why = %describe(&error), "cannot write the status of the Fleet; trying again");
                    failing = true;
                }
                Err(_) => {}
            }
        }
    }

    /// Whether more clusters may connect to a hub that has just begun to serve. Until then the
    /// status stays unchanged.
    fn is_settling(&self, status: &FleetStatus) -> bool {
        let is_young = self
            .hub_state
            .leadership
            .serving_since()
            .is_some_and(|since| since.elapsed() < SETTLING);
        let all_connected = status
            .clusters
            .split_once('/')
            .is_some_and(|(connected, all)| connected == all);
        is_young && !all_connected && status.pending == 0
    }

    fn status(&self, previous: &FleetStatus) -> FleetStatus {
        let now = Now {
            instant: Instant::now(),
            wall: jiff::Timestamp::now(),
        };
        let (pending, clusters, uids) = {
            let index = self.hub_state.index.read();
            let accepted: Vec<_> = index
                .clusters()
                .iter()
                .filter(|(_, cluster)| cluster.accepted)
                .map(|(name, _)| name.clone())
                .collect();
            let uids: Vec<_> = index.rules().uids().cloned().collect();
            (index.rules().pending_causes(), accepted, uids)
        };
        let mut counts = FleetCounts {
            clusters: clusters.len() as u64,
            rules: uids.len() as u64,
            ..FleetCounts::default()
        };
        {
            let report_store = self.hub_state.report_store.lock();
            let connected = clusters
                .iter()
                .filter(|name| report_store.session(name, now.instant).is_some());
            counts.connected = connected.count() as u64;
        }
        for uid in uids {
            self.object_cache.with_rule(&uid, |object| {
                let Some(status) = object.map(|object| &object.status) else {
                    return;
                };
                counts.ready += u64::from(
                    condition(&status.conditions, ConditionType::Ready)
                        .is_some_and(|ready| ready.status == "True"),
                );
                if let Some(summary) = status.summary {
                    counts.copies += u64::try_from(summary.copies).unwrap_or_default();
                    counts.applied += u64::try_from(summary.copies_applied).unwrap_or_default();
                }
            });
        }
        fold_fleet(previous, &counts, &pending, now)
    }

    /// Logs the causes that begin or cease to wait for approval, and queues their Events.
    fn publish(&self, previous: &FleetStatus, status: &FleetStatus, fleet: Option<&Fleet>) {
        for notice in fleet_notices(previous, status) {
            tracing::info!(reason = %notice.reason, "{}", notice.message);
            let reference = fleet.map(|fleet| fleet.object_ref(&()));
            let event = reference.map(|reference| (reference, notice));
            if event.is_some_and(|event| self.events.try_send(event).is_err()) {
                tracing::debug!("too many Events at once: one of the Fleet is dropped");
            }
        }
    }

    /// Writes the status, and the object if it does not exist. Returns the object.
    async fn write(&self, status: &FleetStatus) -> Result<Option<Fleet>, WriteError> {
        let api: Api<Fleet> = Api::all(self.client.clone());
        let patch = Patch::Merge(json!({
            "apiVersion": Fleet::api_version(&()), "kind": Fleet::kind(&()), "status": status,
        }));
        let params = PatchParams::default();
        let patched = || api.patch_status(FLEET, &params, &patch);
        if let Some(fleet) = ignoring_missing(&self.hub_state, patched()).await? {
            return Ok(Some(fleet));
        }
        let fleet = Fleet::new(FLEET, FleetSpec::default());
        ignoring_missing(&self.hub_state, api.create(&PostParams::default(), &fleet)).await?;
        ignoring_missing(&self.hub_state, patched()).await
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::time::Duration;

    use kube::client::Body;
    use parking_lot::Mutex;

    use super::*;
    use crate::hub_state::Settings;

    /// An API that stores nothing, and the times of the status writes.
    fn api(writes: Arc<Mutex<Vec<tokio::time::Instant>>>) -> Client {
        let service = tower::service_fn(move |request: http::Request<Body>| {
            assert_eq!(request.method(), "PATCH");
            assert!(request.uri().path().ends_with("/fleets/default/status"));
            writes.lock().push(tokio::time::Instant::now());
            let fleet = serde_json::to_vec(&Fleet::new(FLEET, FleetSpec::default()))
                .expect("a Fleet is JSON");
            async move { Ok::<_, Infallible>(http::Response::new(Body::from(fleet))) }
        });
        Client::new(service, "default")
    }

    #[tokio::test(start_paused = true)]
    async fn status_is_written_at_most_once_a_second() {
        let hub_state = HubState::new(Settings::for_tests());
        hub_state.set_lead(Some(crate::lease::Lead {
            epoch: "uid".to_owned(),
            term: 1,
            valid_until: Instant::now() + Duration::from_secs(600),
        }));
        hub_state
            .leadership
            .ready
            .send_replace(Some(Instant::now()));
        let (writes, start) = (Arc::default(), tokio::time::Instant::now());
        let (events, _waiting) = mpsc::channel(1);
        let client = api(Arc::clone(&writes));
        let writer = FleetWriter::new(client, hub_state.clone(), Arc::default(), events);
        let task = tokio::spawn(writer.run());
        let mut number = 0;
        // Something changes ten times a second.
        while start.elapsed() < Duration::from_secs(5) {
            number += 1;
            let rule = serde_json::json!({
                "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionRule",
                "metadata": {"name": format!("r{number}"), "namespace": "a", "uid": format!("r{number}"), "generation": 1},
                "spec": {"sources": [{"resources": ["configmaps"], "names": ["*"]}], "clusters": {"all": true}},
            });
            let rule = serde_json::from_value(rule).expect("a rule");
            let rule = runnel_hub_core::plan::Rule::namespaced(&rule, "runnel-system")
                .expect("a valid rule");
            hub_state.change(|index| index.set_rule(rule));
            tokio::time::advance(Duration::from_millis(100)).await;
            tokio::task::yield_now().await;
        }
        task.abort();
        let writes = writes.lock();
        assert!((4..=6).contains(&writes.len()), "{writes:?}");
        for pair in writes.windows(2) {
            assert!(
                pair[1] - pair[0] >= TICK - Duration::from_millis(100),
                "{writes:?}"
            );
        }
    }
}
