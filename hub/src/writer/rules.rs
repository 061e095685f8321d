//! Writes the finalizers and the status of one rule.
use std::collections::BTreeSet;
use std::time::Instant;

use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, PatchOperation, TestOperation};
use kube::Api;
use kube::api::{DynamicObject, Patch, PatchParams};
use runnel_proto::model::{ClusterName, RuleUid};
use serde::Deserialize;
use serde_json::json;

use super::{RuleObject, RuleWork, RuleWorkResult, WriteError, Writer, is_to_be_released};
use runnel_api::{FINALIZER, RuleStatus};
use runnel_hub_core::audit::{ChangeCause, ChangeKind};
use runnel_hub_core::index::{Cluster, Index, StoredState};
use runnel_hub_core::rollout::Gate;
use runnel_hub_core::status::{Now, SETTLING, View, fold, notices};

impl Writer {
    /// Does the work that is due for a rule.
    pub(super) async fn write_rule(
        &self,
        uid: &RuleUid,
        work: RuleWork,
        now: Now,
    ) -> Result<RuleWorkResult, WriteError> {
        let Some(object) = self.object_cache.rule(uid) else {
            return Ok(RuleWorkResult::Nothing);
        };
        if !object.deleting && !object.has_finalizer {
            self.add_finalizer(&object).await?;
            return Ok(RuleWorkResult::Nothing);
        }
        if is_to_be_released(&object) && self.release(uid, &object, now).await? {
            return Ok(RuleWorkResult::Nothing);
        }
        let RuleWork::ReleaseAndStatus { overdue } = work else {
            return Ok(RuleWorkResult::Unreleased);
        };
        if object.is_deleted {
            return Ok(RuleWorkResult::Nothing);
        }
        self.settle_guard(uid, now);
        self.forget_removed(uid);
        let written = self.write_status(uid, &object, overdue, now).await?;
        Ok(if written {
            RuleWorkResult::Written
        } else {
            RuleWorkResult::Nothing
        })
    }

    /// Settles the removal guard of a rule at the end of settling. By then every cluster has
    /// reported or was disconnected for long, so no state of an earlier process is missing.
    fn settle_guard(&self, uid: &RuleUid, now: Now) {
        let away: BTreeSet<_> = {
            let index = self.hub_state.index.read();
            if !index.rules().is_blocked(uid) || self.uptime(now) < SETTLING {
                return;
            }
            let report_store = self.hub_state.report_store.lock();
            let silent = |(name, cluster): &(&ClusterName, &Cluster)| {
                cluster.accepted && cluster.was_connected && !report_store.has_connected(name)
            };
            index
                .clusters()
                .iter()
                .filter(silent)
                .map(|(name, _)| name.clone())
                .collect()
        };
        self.hub_state
            .change(|index| index.rules_mut().settle_guard(uid, &away));
    }

    /// Forgets the removals of a rule that every agent has carried out, once they are many.
    fn forget_removed(&self, uid: &RuleUid) {
        let is_due = {
            let index = self.hub_state.index.read();
            let report_store = self.hub_state.report_store.lock();
            let entry = index.rules().get(uid);
            let entry = entry.filter(|entry| entry.guard.is_worth_forgetting());
            entry.is_some_and(|entry| report_store.has_only_selected(entry, index.clusters()))
        };
        if is_due {
            let forget = |index: &mut Index| index.rules_mut().forget_removed(uid);
            self.hub_state.change_quietly(forget);
        }
    }

    fn api_of(&self, object: &RuleObject) -> Api<DynamicObject> {
        match &object.namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &object.api),
            None => Api::all_with(self.client.clone(), &object.api),
        }
    }

    async fn add_finalizer(&self, object: &RuleObject) -> Result<(), WriteError> {
        let mut finalizers = object.finalizers.clone();
        finalizers.push(FINALIZER.to_owned());
        self.set_finalizers(object, &finalizers).await
    }

    pub(super) async fn remove_finalizer(&self, object: &RuleObject) -> Result<(), WriteError> {
        let others = object
            .finalizers
            .iter()
            .filter(|finalizer| *finalizer != FINALIZER);
        self.set_finalizers(object, &others.cloned().collect::<Vec<_>>())
            .await
    }

    /// Sets the finalizers if the object has the observed version.
    async fn set_finalizers(
        &self,
        object: &RuleObject,
        finalizers: &[String],
    ) -> Result<(), WriteError> {
        let patch = json!({
            "metadata": {
                "uid": object.reference.uid,
                "resourceVersion": object.resource_version,
                "finalizers": finalizers,
            },
        });
        let api = self.api_of(object);
        let done = self
            .ignoring_missing(api.patch(
                &object.name,
                &PatchParams::default(),
                &Patch::Merge(patch),
            ))
            .await;
        match done {
            // Another writer has changed the object. The watch delivers the newer object, which
            // triggers a retry.
            Err(WriteError::Changed) => Ok(()),
            other => other.map(|_| ()),
        }
    }

    /// Returns whether the status was written.
    async fn write_status(
        &self,
        uid: &RuleUid,
        object: &RuleObject,
        overdue: bool,
        now: Now,
    ) -> Result<bool, WriteError> {
        let (next, gate, completed) = {
            let started = self
                .hub_state
                .leadership
                .serving_since()
                .unwrap_or(now.instant);
            let index = self.hub_state.index.read();
            let report_store = self.hub_state.report_store.lock();
            let Some(mut view) =
                View::of(&index, &report_store, uid, &object.status, started, overdue)
            else {
                return Ok(false);
            };
            let entry = index.rules().get(uid);
            let order = entry
                .map(|entry| entry.rollout_order(index.clusters(), view.progress()))
                .unwrap_or_default();
            let gate = view.take_step(order, &report_store, now);
            let completed = view.state_to_store(&index);
            (fold(&view, &report_store, now), gate, completed)
        };
        // The status of another writer is overwritten.
        let again = || object.replaced.is_some().then(|| object.status.clone());
        let Some(status) = next.or_else(again) else {
            self.record_state_stored(uid, completed);
            self.set_gate(uid, gate);
            return Ok(false);
        };
        // With the version the write conflicts with any later write, such as one of a replica that
        // took the lead.
        let patch = status_patch(uid, object.newest_version(), &status);
        let api = self.api_of(object);
        let params = PatchParams::default();
        let patch: Patch<()> = Patch::Json(patch);
        self.object_cache.writes_rule(uid, true);
        let written = self
            .ignoring_missing(api.patch_status(&object.name, &params, &patch))
            .await;
        self.object_cache.writes_rule(uid, false);
        if let Some(written) = written? {
            // The status as the API server returns it, so that it can be compared with the one that
            // the watch delivers.
            let stored = written
                .data
                .get("status")
                .and_then(|stored| RuleStatus::deserialize(stored).ok());
            let stored = stored.unwrap_or_else(|| status.clone());
            if self
                .object_cache
                .wrote_rule(uid, stored, written.metadata.resource_version)
            {
                self.hub_state.queues.dirty_rules.add([uid.clone()]);
            }
            self.publish_events(object, &status);
            self.record_state_stored(uid, completed);
            self.set_gate(uid, gate);
        }
        Ok(true)
    }

    /// Stores the state of a completed rollout, so that a later rollout can be rolled back to it.
    fn record_state_stored(&self, uid: &RuleUid, completed: Option<Option<StoredState>>) {
        if let Some(state) = completed {
            self.hub_state
                .change(|index| index.set_completed_state(uid, state));
            self.hub_state.queues.completed_rules.add([uid.clone()]);
        }
    }

    /// Sets the gate of the next wave. This happens only after the progress of the rollout is
    /// written, so that a new leader can continue.
    fn set_gate(&self, uid: &RuleUid, gate: Option<Gate>) {
        let Some(gate) = gate else {
            return;
        };
        let back_to = |index: &Index| index.rules().back_to(uid);
        let is_rollback =
            gate.back_to.is_some() && back_to(&self.hub_state.index.read()) != gate.back_to;
        let set = |index: &mut Index| index.set_gate(uid, gate);
        if is_rollback {
            let cause = || ChangeCause::new(ChangeKind::RolledBack);
            self.hub_state.change_because(cause, set);
        } else {
            self.hub_state.audit.lock().renew(uid, Instant::now());
            self.hub_state.change(set);
        }
    }

    /// Queues the Events for a change of the status. They are best effort: an Event that does not
    /// fit into the queue is dropped.
    fn publish_events(&self, object: &RuleObject, status: &RuleStatus) {
        for notice in notices(&object.status, status) {
            if notice.reason == runnel_api::conditions::ConditionType::ApprovalRequired.into() {
                tracing::warn!(rule = %object.name, namespace = object.namespace, "{}", notice.message);
            }
            if self
                .events
                .try_send((object.reference.clone(), notice))
                .is_err()
            {
                tracing::debug!(rule = %object.name, "too many Events at once: one is dropped");
            }
        }
    }
}

/// Returns the JSON patch of a status. It fails if the name belongs to another rule now.
fn status_patch(uid: &RuleUid, version: Option<String>, status: &RuleStatus) -> json_patch::Patch {
    let path = |tokens: &[&str]| PointerBuf::from_tokens(tokens.iter().copied());
    let status = serde_json::to_value(status).expect("a status has only texts as keys of maps");
    json_patch::Patch(vec![
        PatchOperation::Test(TestOperation {
            path: path(&["metadata", "uid"]),
            value: json!(uid.as_str()),
        }),
        PatchOperation::Add(AddOperation {
            path: path(&["metadata", "resourceVersion"]),
            value: json!(version),
        }),
        PatchOperation::Add(AddOperation {
            path: path(&["status"]),
            value: status,
        }),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_patch_tests_the_uid_and_sets_version_and_status() {
        let status = RuleStatus {
            observed_generation: Some(3),
            ..RuleStatus::default()
        };
        let patch = status_patch(&RuleUid::from("u"), Some("7".to_owned()), &status);
        let expected = json!([
            {"op": "test", "path": "/metadata/uid", "value": "u"},
            {"op": "add", "path": "/metadata/resourceVersion", "value": "7"},
            {"op": "add", "path": "/status", "value": status},
        ]);
        assert_eq!(serde_json::to_value(&patch).unwrap(), expected);
        assert_eq!(expected[2]["value"]["observedGeneration"], 3);
    }
}
