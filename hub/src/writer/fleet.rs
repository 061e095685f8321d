//! Writes the status of the `Fleet`: the overview, and the pending approvals. It is written at most
//! once a second.
use std::sync::Arc;
use std::time::Instant;

use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, Resource};
use runnel_api::conditions::{ConditionType, condition};
use runnel_api::{FLEET, Fleet, FleetSpec, FleetStatus};
use runnel_hub_core::status::{FleetCounts, Now, SETTLING, fold_fleet};
use serde_json::json;

use super::{BEAT, ObjectCache, WriteError, describe, ignoring_missing, serves};
use crate::hub_state::HubState;

/// Writes the status of the `Fleet`.
pub struct FleetWriter {
    client: Client,
    hub_state: Arc<HubState>,
    object_cache: Arc<ObjectCache>,
}

impl FleetWriter {
    /// Creates a writer.
    pub fn new(client: Client, hub_state: Arc<HubState>, object_cache: Arc<ObjectCache>) -> Self {
        Self {
            client,
            hub_state,
            object_cache,
        }
    }

    /// Writes the status until the process ends.
    pub async fn run(self) {
        let mut beat = tokio::time::interval(BEAT);
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
                Ok(()) => (written, failing) = (Some(status), false),
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
                .filter(|(_, cluster)| cluster.accepted)
                .map(|(name, _)| name.clone())
                .collect();
            let uids: Vec<_> = index.rules().map(|(uid, _)| uid.clone()).collect();
            (index.pending_causes(), accepted, uids)
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

    async fn write(&self, status: &FleetStatus) -> Result<(), WriteError> {
        let api: Api<Fleet> = Api::all(self.client.clone());
        let patch = Patch::Merge(json!({
            "apiVersion": Fleet::api_version(&()), "kind": Fleet::kind(&()), "status": status,
        }));
        let params = PatchParams::default();
        let patched = || api.patch_status(FLEET, &params, &patch);
        if ignoring_missing(&self.hub_state, patched())
            .await?
            .is_none()
        {
            let fleet = Fleet::new(FLEET, FleetSpec::default());
            ignoring_missing(&self.hub_state, api.create(&PostParams::default(), &fleet)).await?;
            ignoring_missing(&self.hub_state, patched()).await?;
        }
        Ok(())
    }
}
