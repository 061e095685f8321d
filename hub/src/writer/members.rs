//! Writes about one member.
use kube::Api;
use kube::api::{Patch, PatchParams};
use runnel_proto::model::{ClusterName, RuleName};
use serde_json::json;

use super::{WriteError, Writer};
use crate::crd::{MemberCluster, MemberClusterStatus};
use crate::join::decide::{keys, renewable_until};
use crate::status::{MemberView, Now, SETTLING, fold_member};

impl Writer {
    pub(super) async fn write_member(&self, name: &ClusterName, now: Now) -> Result<(), WriteError> {
        let Some(member) = self.book.member(name) else {
            self.shared.settled_removals.remove(|(cluster, _)| cluster == name);
            return Ok(());
        };
        if !self.strike_out(name, &member).await? {
            // The watch brings the newer object, and with it another try.
            return Ok(());
        }
        let Some(member) = self.book.member(name) else { return Ok(()) };
        let Some(status) = self.member_status(name, &member, now) else { return Ok(()) };
        let patch = Patch::Merge(json!({
            "metadata": {"uid": member.metadata.uid, "resourceVersion": member.metadata.resource_version},
            "status": {
                "observedGeneration": status.observed_generation,
                "conditions": status.conditions,
                "certificate": status.certificate,
                "agentVersion": status.agent_version,
                "kubernetesVersion": status.kubernetes_version,
                "clusterUid": status.cluster_uid,
            },
        }));
        let api: Api<MemberCluster> = Api::all(self.client.clone());
        let written = self.unless_gone(api.patch_status(name.as_str(), &PatchParams::default(), &patch)).await?;
        if let Some(written) = written {
            self.book.set_member(name.clone(), written);
        }
        Ok(())
    }

    fn member_status(&self, name: &ClusterName, member: &MemberCluster, now: Now) -> Option<MemberClusterStatus> {
        let previous = member.status.clone().unwrap_or_default();
        let index = self.shared.index.read();
        let cluster = index.cluster(name)?;
        let ledger = self.shared.ledger.lock();
        let known = |uid| index.rule(uid).is_some() || cluster.pending.contains_key(uid);
        let unclaimed: Vec<&RuleName> =
            ledger.held_rules(name).filter(|(uid, _)| !known(*uid)).map(|(_, rule)| rule).collect();
        let young = self.uptime(now) < SETTLING;
        let view = MemberView {
            generation: member.metadata.generation.unwrap_or_default(),
            accepted: cluster.accepted,
            leaving: cluster.leaving,
            // A session that was cut on purpose does not come back by itself, so its end is told at once.
            session: ledger.session(name, now.instant).filter(|_| cluster.accepted),
            held: ledger.held_rules(name).count(),
            unclaimed,
            awaited: young && !ledger.has_connected(name),
            renewable_until: renewable_until(keys(member), self.shared.settings.expired_renewal_limit),
            previous: &previous,
        };
        fold_member(&view, now)
    }
}
