//! Writes the status of one member, and retires its keys.
use kube::api::{Patch, PatchParams};
use kube::{Api, Resource};
use runnel_proto::model::ClusterName;
use serde_json::json;

use super::{WriteError, Writer};
use crate::member_records::write_record;
use crate::membership::Member;
use crate::membership::decide::renewable_until;
use crate::membership::keys::used;
use crate::watch::observe_member;
use runnel_api::conditions::{ConditionType, condition};
use runnel_api::{MemberCluster, MemberClusterStatus, MemberRecordSpec};
use runnel_hub_core::status::{MemberView, Notice, Now, SETTLING, connection_notice, fold_member};

/// The conditions of a member that report a problem.
const ALARMS: [ConditionType; 5] = [
    ConditionType::PossibleKeyTheft,
    ConditionType::KeyShared,
    ConditionType::RestoredFromBackup,
    ConditionType::Duplicate,
    ConditionType::PreviousMembership,
];

impl Writer {
    pub(super) async fn write_member(
        &self,
        name: &ClusterName,
        now: Now,
    ) -> Result<(), WriteError> {
        self.retire_keys(name, now).await?;
        let Some(member) = self.object_cache.member(name) else {
            return Ok(());
        };
        let Some(status) = self.member_status(name, &member, now) else {
            return Ok(());
        };
        let metadata = &member.cluster.metadata;
        let patch = Patch::Merge(json!({
            "metadata": {"uid": metadata.uid, "resourceVersion": metadata.resource_version},
            "status": {
                "observedGeneration": status.observed_generation,
                "conditions": status.conditions,
                "certificate": status.certificate,
                "agentVersion": status.agent_version,
                "kubernetesVersion": status.kubernetes_version,
                "clusterUid": status.cluster_uid,
                "orphanedRules": status.orphaned_rules,
            },
        }));
        let api: Api<MemberCluster> = Api::all(self.client.clone());
        let written = self
            .ignoring_missing(api.patch_status(name.as_str(), &PatchParams::default(), &patch))
            .await?;
        if let Some(written) = written {
            self.publish_alarms(name, &member.cluster, &written);
            self.object_cache.set_member(name.clone(), written);
        }
        Ok(())
    }

    /// Retires the older keys of a member at the first session with a newer one. The write requires
    /// the version that was read, so no other writer can change the keys in between.
    async fn retire_keys(&self, name: &ClusterName, now: Now) -> Result<(), WriteError> {
        let Some(member) = self.object_cache.member(name) else {
            return Ok(());
        };
        let key = self
            .hub_state
            .report_store
            .lock()
            .session(name, now.instant)
            .map(|session| session.key.clone());
        let record = member.record();
        let limit = self.hub_state.settings.expired_renewal_limit;
        let Some(identity) = key.and_then(|key| used(&record.identity, &key, limit, now.wall))
        else {
            return Ok(());
        };
        let record = MemberRecordSpec {
            identity,
            ..record.clone()
        };
        let written = self
            .ignoring_missing(write_record(&self.client, &member, record))
            .await?;
        if let Some(written) = written {
            tracing::info!(cluster = %name, "the agent uses its new key: the older ones are retired");
            observe_member(written, &self.hub_state, &self.object_cache);
        }
        Ok(())
    }

    /// Publishes an Event for each condition that has appeared and that needs an administrator, and
    /// for a lost or regained connection.
    fn publish_alarms(&self, name: &ClusterName, before: &MemberCluster, after: &MemberCluster) {
        let status = |member: &MemberCluster| member.status.clone().unwrap_or_default();
        if let Some(notice) = connection_notice(name, &status(before), &status(after)) {
            let _ = self.events.try_send((after.object_ref(&()), notice));
        }
        for alarm in ALARMS {
            let raised = |member: &MemberCluster| {
                condition(&member.status.as_ref()?.conditions, alarm).cloned()
            };
            if let (None, Some(raised)) = (raised(before), raised(after)) {
                let notice = Notice::new(true, alarm, raised.message);
                let _ = self.events.try_send((after.object_ref(&()), notice));
            }
        }
    }

    fn member_status(
        &self,
        name: &ClusterName,
        member: &Member,
        now: Now,
    ) -> Option<MemberClusterStatus> {
        let unknown = MemberClusterStatus::default();
        let previous = member.cluster.status.as_ref().unwrap_or(&unknown);
        let index = self.hub_state.index.read();
        let cluster = index.clusters().get(name)?;
        let report_store = self.hub_state.report_store.lock();
        let known = |uid| index.rules().get(uid).is_some() || cluster.pending.contains_key(uid);
        let orphaned = report_store
            .acked_rules(name)
            .filter(|(uid, _)| !known(*uid))
            .collect();
        let in_use = report_store
            .acked_rules(name)
            .filter_map(|(uid, _)| index.rules().get(uid))
            .flat_map(|entry| entry.rule.resources());
        let divergences = self.hub_state.leadership.divergences.lock();
        let just_started = self.uptime(now) < SETTLING;
        let view = MemberView {
            generation: member.cluster.metadata.generation.unwrap_or_default(),
            accepted: cluster.accepted,
            cordoned: cluster.cordoned,
            leaving: cluster.leaving,
            // A session that the hub ended on purpose does not return by itself. So its end is
            // written at once.
            session: report_store
                .session(name, now.instant)
                .filter(|_| cluster.accepted),
            acked: report_store
                .acked_rules(name)
                .filter(|(uid, _)| known(*uid))
                .count(),
            retained: report_store.retained(name),
            orphaned,
            awaited: just_started && !report_store.has_connected(name),
            renewable_until: renewable_until(
                &member.record().identity.keys,
                self.hub_state.settings.expired_renewal_limit,
            ),
            divergence: divergences.of(name).map(|divergence| (name, divergence)),
            lost_watch: report_store
                .first_lost_watch(name, in_use)
                .filter(|_| report_store.session(name, now.instant).is_some()),
            windows_error: cluster.windows.error(),
            key_shared: report_store.is_key_shared(name, now.instant),
            identity: &member.record().identity,
            previous,
        };
        fold_member(&view, now)
    }
}
