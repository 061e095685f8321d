//! Lets go of deleted rules: when the connected clusters have removed or released their copies, and the others have the
//! order written down in their `MemberCluster`. It never hangs on a cluster that is dead.
use std::collections::BTreeSet;
use std::time::Duration;

use kube::Api;
use kube::api::{Patch, PatchParams};
use runnel_proto::model::{ClusterName, RuleUid};
use serde_json::json;

use super::{RuleObject, WriteError, Writer};
use crate::crd::{MemberCluster, PendingRemoval, limits};
use crate::index::Cluster;
use crate::status::{Now, SETTLING};
use crate::watch::take_in_member;

/// How long connected clusters may take before the order is written down for them too.
const PATIENCE: Duration = Duration::from_secs(30);

/// How a cluster stands with a rule that is being deleted.
enum Answer {
    /// Nothing of the rule is there.
    Free,
    /// It may still answer.
    Awaited,
    /// It cannot answer now.
    Away,
}

impl Writer {
    /// Returns whether the rule was let go.
    pub(super) async fn release(&self, uid: &RuleUid, object: &RuleObject, now: Now) -> Result<bool, WriteError> {
        if !self.shared.index.read().may_go(uid) {
            return Ok(false);
        }
        let (awaited, away) = self.answers(uid, now);
        let since = object
            .deleted_at
            .map_or(Duration::ZERO, |at| Duration::try_from(now.wall.duration_since(at)).unwrap_or_default());
        if !awaited.is_empty() && since.min(self.uptime(now)) < PATIENCE {
            return Ok(false);
        }
        let policy = self.shared.index.read().rule(uid).map(|entry| entry.rule.terms.deletion_policy);
        let Some(policy) = policy else { return Ok(false) };
        for cluster in awaited.iter().chain(&away) {
            let removal = PendingRemoval {
                rule_uid: uid.as_str().to_owned(),
                deletion_policy: policy.into(),
                rule: self.book.name_of(uid),
            };
            if !self.remember(cluster, removal).await? {
                return Ok(false);
            }
            tracing::info!(%cluster, rule = %self.book.name_of(uid), "the copies of a deleted rule are seen to when the cluster is back");
        }
        self.remove_finalizer(object).await?;
        tracing::info!(rule = %self.book.name_of(uid), "deleted rule is let go");
        Ok(true)
    }

    fn answers(&self, uid: &RuleUid, now: Now) -> (BTreeSet<ClusterName>, BTreeSet<ClusterName>) {
        let index = self.shared.index.read();
        let (mut awaited, mut away) = (BTreeSet::new(), BTreeSet::new());
        for (name, cluster) in index.clusters() {
            match self.answer(uid, name, cluster, now) {
                Answer::Free => {}
                Answer::Awaited => _ = awaited.insert(name.clone()),
                Answer::Away => _ = away.insert(name.clone()),
            }
        }
        (awaited, away)
    }

    fn answer(&self, uid: &RuleUid, name: &ClusterName, cluster: &Cluster, now: Now) -> Answer {
        if cluster.pending.contains_key(uid) {
            return Answer::Free;
        }
        let ledger = self.shared.ledger.lock();
        // One that is shut out may be let in again, and is not waited for.
        if !cluster.accepted {
            return if cluster.was_connected { Answer::Away } else { Answer::Free };
        }
        if let Some(live) = self.shared.sessions.get(name) {
            let holds = ledger.held_rules(name).any(|(held, _)| held == uid);
            return match () {
                () if !holds && live.session.lock().is_free_of(uid) => Answer::Free,
                // It hears of no removal before an administrator confirms that it may.
                () if ledger.is_unconfirmed(name) => Answer::Away,
                () => Answer::Awaited,
            };
        }
        if !cluster.was_connected && !ledger.has_connected(name) {
            return Answer::Free;
        }
        let young = self.uptime(now) < SETTLING;
        let may_be_back = ledger.session(name, now.instant).is_some() || (young && !ledger.has_connected(name));
        if may_be_back { Answer::Awaited } else { Answer::Away }
    }

    /// Writes an order down for a cluster that is away. Returns false if somebody was faster and it must be tried
    /// again. More orders than fit mean that the copies stay: they are reported as unclaimed.
    async fn remember(&self, name: &ClusterName, removal: PendingRemoval) -> Result<bool, WriteError> {
        let Some(member) = self.book.member(name) else { return Ok(true) };
        let mut pending = member.status.as_ref().map(|status| status.pending_removals.clone()).unwrap_or_default();
        if pending.iter().any(|known| known.rule_uid == removal.rule_uid) {
            return Ok(true);
        }
        if pending.len() >= limits::PENDING_REMOVALS {
            tracing::warn!(cluster = %name, rule = removal.rule, "too many removals wait for this cluster: these copies stay there");
            return Ok(true);
        }
        pending.push(removal);
        self.set_pending(name, &member, &pending).await
    }

    /// Strikes out the orders that a cluster has carried out. Returns false if it must be tried again.
    pub(super) async fn strike_out(&self, name: &ClusterName, member: &MemberCluster) -> Result<bool, WriteError> {
        let done = self.shared.settled_removals.peek(|(cluster, uid)| (cluster == name).then(|| uid.clone()));
        let done: BTreeSet<_> = done.into_iter().flatten().collect();
        if done.is_empty() {
            return Ok(true);
        }
        let known = member.status.as_ref().map(|status| status.pending_removals.clone()).unwrap_or_default();
        let left: Vec<_> =
            known.iter().filter(|p| !done.contains(&RuleUid::from(p.rule_uid.as_str()))).cloned().collect();
        let struck = left.len() == known.len() || self.set_pending(name, member, &left).await?;
        if struck {
            self.shared.settled_removals.remove(|(cluster, uid)| cluster == name && done.contains(uid));
        }
        Ok(struck)
    }

    async fn set_pending(
        &self,
        name: &ClusterName,
        member: &MemberCluster,
        pending: &[PendingRemoval],
    ) -> Result<bool, WriteError> {
        let patch = json!({
            "metadata": {"uid": member.metadata.uid, "resourceVersion": member.metadata.resource_version},
            "status": {"pendingRemovals": pending},
        });
        let api: Api<MemberCluster> = Api::all(self.client.clone());
        let patch = Patch::Merge(patch);
        match self.unless_gone(api.patch_status(name.as_str(), &PatchParams::default(), &patch)).await {
            Ok(Some(written)) => {
                // Before the rule is let go: from then on only this says what becomes of its copies.
                take_in_member(written, &self.shared, &self.book);
                Ok(true)
            }
            Ok(None) => Ok(true),
            Err(WriteError::Changed) => Ok(false),
            Err(error) => Err(error),
        }
    }
}
