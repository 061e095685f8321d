//! Releases deleted rules. The connected clusters must have removed or retained their copies, and
//! the `MemberRecord`s of the others must contain the order. A dead cluster never blocks the
//! release.
use std::time::Duration;

use runnel_proto::model::{ClusterName, RuleUid};

use super::{RuleObject, WriteError, Writer};
use crate::watch::forget;
use runnel_hub_core::index::{Cluster, Directive, Index};
use runnel_hub_core::status::{Now, SETTLING};

/// The time for connected clusters to answer before the order is stored for them too.
const PATIENCE: Duration = Duration::from_secs(30);

/// The state of a rule that is being deleted, in one cluster.
enum ReleaseState {
    /// The cluster has no copies of the rule.
    Free,
    /// The cluster may still answer.
    Awaited,
    /// The cluster keeps copies until other rules send them, however long that takes.
    KeepsCopies,
    /// The cluster cannot answer now.
    Disconnected,
}

impl Writer {
    /// Returns whether the rule was released.
    pub(super) async fn release(
        &self,
        uid: &RuleUid,
        object: &RuleObject,
        now: Now,
    ) -> Result<bool, WriteError> {
        if !self.hub_state.index.read().rules().is_removal_allowed(uid) {
            if object.is_deleted && self.hub_state.index.read().rules().is_blocked(uid) {
                let rule = object.display_name();
                tracing::warn!(%rule, "a deleted rule has copies whose removal waits for approval: they are kept");
                forget(uid, &self.hub_state, &self.object_cache);
            }
            return Ok(false);
        }
        let since = object.deleted_at.map_or(Duration::ZERO, |at| {
            Duration::try_from(now.wall.duration_since(at)).unwrap_or_default()
        });
        // Only this process knows a rule that the API server has deleted. So its orders are stored
        // at once.
        let waits = !object.is_deleted && since.min(self.uptime(now)) < PATIENCE;
        let Some(orders) = self.orders(uid, waits, now) else {
            return Ok(false);
        };
        if !orders.is_empty() {
            // The orders of all rules are written together. Then the rule is checked again.
            self.hub_state
                .queues
                .removal_orders
                .add(orders.into_iter().map(|cluster| (cluster, uid.clone())));
            return Ok(false);
        }
        let rule = object.display_name();
        if object.is_deleted {
            forget(uid, &self.hub_state, &self.object_cache);
        } else {
            self.remove_finalizer(object).await?;
        }
        self.hub_state
            .queues
            .removal_overflow
            .remove(|(_, rule)| rule == uid);
        tracing::info!(%rule, "finalizer removed from deleted rule");
        Ok(true)
    }

    /// Returns the clusters for which an order must be stored; `None` while the rule waits for the
    /// answer of a cluster.
    fn orders(&self, uid: &RuleUid, waits: bool, now: Now) -> Option<Vec<ClusterName>> {
        let index = self.hub_state.index.read();
        let overflow = self
            .hub_state
            .queues
            .removal_overflow
            .peek(|(cluster, rule)| (rule == uid).then(|| cluster.clone()));
        let mut orders = Vec::new();
        for (name, cluster) in index.clusters().iter() {
            match self.answer((uid, &index), (name, cluster), now) {
                ReleaseState::KeepsCopies => return None,
                ReleaseState::Awaited if waits => return None,
                ReleaseState::Awaited | ReleaseState::Disconnected
                    if !overflow.contains(&Some(name.clone())) =>
                {
                    orders.push(name.clone())
                }
                ReleaseState::Awaited | ReleaseState::Disconnected | ReleaseState::Free => {}
            }
        }
        Some(orders)
    }

    fn answer(
        &self,
        (uid, index): (&RuleUid, &Index),
        (name, cluster): (&ClusterName, &Cluster),
        now: Now,
    ) -> ReleaseState {
        if cluster.pending.contains_key(uid) {
            return ReleaseState::Free;
        }
        // A cluster that is not accepted may be accepted later, but the rule does not wait for it.
        if !cluster.accepted {
            return if cluster.was_connected {
                ReleaseState::Disconnected
            } else {
                ReleaseState::Free
            };
        }
        if let Some(live) = self.hub_state.sessions.get(name) {
            let version = index.rules().version_of(uid).unwrap_or_default();
            let session = live.session.lock();
            let report_store = self.hub_state.report_store.lock();
            let holds = report_store
                .acked_rules(name)
                .any(|(acked, _)| acked == uid);
            if !holds && session.is_free_of(uid, version) {
                return ReleaseState::Free;
            }
            if session.version() < version {
                // A change of a rule does not wake every session.
                live.wake.notify_one();
            }
            // It receives no removal before an administrator has confirmed the divergence.
            return if report_store.is_unconfirmed(name) {
                ReleaseState::Disconnected
            } else if matches!(index.directive(uid, name), Directive::AwaitingHandover(..)) {
                ReleaseState::KeepsCopies
            } else {
                ReleaseState::Awaited
            };
        }
        let report_store = self.hub_state.report_store.lock();
        if !cluster.was_connected && !report_store.has_connected(name) {
            return ReleaseState::Free;
        }
        let young = self.uptime(now) < SETTLING;
        let may_be_back = report_store.session(name, now.instant).is_some()
            || (young && !report_store.has_connected(name));
        if may_be_back {
            ReleaseState::Awaited
        } else {
            ReleaseState::Disconnected
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hub_state::{HubState, Settings};
    use runnel_api::{DistributionRule, MemberCluster, MemberRecordSpec};
    use runnel_hub_core::plan::Rule;
    use serde_json::{Value, json};
    use std::sync::Arc;
    use std::time::Instant;

    /// Returns the clusters for which a new process of the hub stores an order if a member has this
    /// status and record.
    fn orders(status: &Value, record: Value) -> Vec<ClusterName> {
        let hub_state = HubState::new(Settings::for_tests());
        let member: MemberCluster = serde_json::from_value(json!({
            "apiVersion": "runnel.dev/v1alpha1", "kind": "MemberCluster", "metadata": {"name": "eu-1", "uid": "m"},
            "spec": {"accepted": true}, "status": status,
        }))
        .unwrap();
        let rule: DistributionRule = serde_json::from_value(json!({
            "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionRule",
            "metadata": {"name": "r", "namespace": "a", "uid": "r", "deletionTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"sources": [{"resources": ["configmaps"], "names": ["*"]}], "clusters": {"all": true}},
        }))
        .unwrap();
        let record: MemberRecordSpec = serde_json::from_value(record).unwrap();
        let cluster = Cluster::read(&member, &record);
        hub_state.change(|index| index.set_cluster("eu-1".into(), cluster));
        hub_state.change(|index| index.set_rule(Rule::namespaced(&rule, "runnel-system").unwrap()));
        let client =
            kube::Client::try_from(kube::Config::new("http://127.0.0.1:1".parse().unwrap()))
                .unwrap();
        let writer = Writer::new(
            client,
            hub_state,
            Arc::default(),
            tokio::sync::mpsc::channel(1).0,
        );
        let now = Now {
            instant: Instant::now(),
            wall: jiff::Timestamp::now(),
        };
        writer.orders(&"r".into(), false, now).unwrap()
    }

    #[tokio::test]
    async fn rejoined_cluster_gets_the_order_of_a_deleted_rule() {
        let key = json!({"fingerprint": "sha256:1", "issuedAt": "2026-01-01T00:00:00Z", "expiresAt": "2027-01-01T00:00:00Z"});
        let eu = [ClusterName::from("eu-1")];
        let record = json!({"memberUid": "m", "identity": {"keys": [key]}});
        let none = json!({"memberUid": "m"});
        assert_eq!(orders(&json!({"clusterUid": "c"}), record.clone()), eu);
        // The cluster has joined again and not connected since, or a restore has lost its status: its copies are those of
        // before.
        assert_eq!(orders(&json!({}), record), eu);
        assert_eq!(orders(&json!({"clusterUid": "c"}), none.clone()), eu);
        assert_eq!(orders(&json!({}), none), [], "it has never joined");
    }
}
