//! Stores the removals for disconnected members: one write for each member, independent of the
//! number of rules.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use kube::Client;
use runnel_proto::model::{ClusterName, RuleUid};

use super::pending::PendingList;
use super::{GATHER, ObjectCache, WRITES, WriteError, describe, ignoring_missing, serves};
use crate::hub_state::HubState;
use crate::member_records::write_record;
use crate::membership::Member;
use crate::watch::observe_member;
use runnel_api::{MemberRecordSpec, PendingRemoval};

/// The delay before a failed write is retried. After a conflict the newer object arrives within a
/// moment.
const RETRY: Duration = Duration::from_millis(200);

/// Updates the pending removals in the records of all members: adds the removal orders of deleted rules, and
/// drops those that were carried out.
pub struct RemovalRecorder {
    client: Client,
    hub_state: Arc<HubState>,
    object_cache: Arc<ObjectCache>,
}

impl RemovalRecorder {
    /// Creates a recorder.
    pub fn new(client: Client, hub_state: Arc<HubState>, object_cache: Arc<ObjectCache>) -> Self {
        Self {
            client,
            hub_state,
            object_cache,
        }
    }

    /// Records removals until the process ends.
    pub async fn run(self) {
        loop {
            tokio::select! {
                () = self.hub_state.queues.removal_orders.added() => {}
                () = self.hub_state.queues.settled_removals.added() => {}
            }
            tokio::time::sleep(GATHER).await;
            while self.record_all().await {
                tokio::time::sleep(RETRY).await;
            }
        }
    }

    /// Records all pending changes. Returns whether a change must be retried.
    async fn record_all(&self) -> bool {
        if !serves(&self.hub_state) {
            // A rule that still waits for a member queues its orders again.
            self.hub_state.queues.removal_orders.take();
            // The settled removals are written when this process serves again, or dropped with its
            // lead.
            return !self
                .hub_state
                .queues
                .settled_removals
                .peek(|_| ())
                .is_empty();
        }
        let mut orders: BTreeMap<ClusterName, BTreeSet<RuleUid>> = BTreeMap::new();
        for (cluster, uid) in self.hub_state.queues.removal_orders.take() {
            orders.entry(cluster).or_default().insert(uid);
        }
        for cluster in self
            .hub_state
            .queues
            .settled_removals
            .peek(|(cluster, _)| cluster.clone())
        {
            orders.entry(cluster).or_default();
        }
        let rules: BTreeSet<_> = orders.values().flatten().cloned().collect();
        let writes = orders.into_iter().map(|(cluster, rules)| async move {
            let result = self.record(&cluster, &rules).await;
            (cluster, rules, result)
        });
        let results: Vec<_> = futures::stream::iter(writes)
            .buffer_unordered(WRITES)
            .collect()
            .await;
        let mut failed = false;
        for (cluster, rules, result) in results {
            let Err(error) = result else { continue };
            if !matches!(error, WriteError::NotLeading | WriteError::Changed) {
                tracing::warn!(%cluster, why = %describe(&error), "cannot write down what is to be removed; trying again");
            }
            self.hub_state
                .queues
                .removal_orders
                .add(rules.into_iter().map(|uid| (cluster.clone(), uid)));
            failed = true;
        }
        self.hub_state.queues.dirty_rules.add(rules);
        failed
    }

    async fn record(
        &self,
        name: &ClusterName,
        rules: &BTreeSet<RuleUid>,
    ) -> Result<(), WriteError> {
        let settled = self
            .hub_state
            .queues
            .settled_removals
            .peek(|(cluster, uid)| (cluster == name).then(|| uid.clone()));
        let done: BTreeSet<_> = settled.into_iter().flatten().collect();
        let drop_released = || {
            self.hub_state
                .queues
                .settled_removals
                .remove(|(cluster, uid)| cluster == name && done.contains(uid))
        };
        let Some(member) = self.object_cache.member(name) else {
            drop_released();
            return Ok(());
        };
        let known = &member.record().pending_removals;
        let list = PendingList::new(known, &done, self.removals(rules));
        if list.removals != *known {
            self.write(&member, list.removals).await?;
            self.settle_carried_out(name, rules);
            for uid in rules {
                tracing::info!(cluster = %name, rule = %self.object_cache.name_of(uid), "the copies of a deleted rule are removed when the cluster is back");
            }
        }
        drop_released();
        if !list.overflow.is_empty() {
            let rules = list.overflow.len();
            tracing::warn!(cluster = %name, rules, "too many removals are pending for this cluster: the copies of these rules are retained there");
            let overflow = list
                .overflow
                .iter()
                .map(|removal| (name.clone(), removal.rule_uid.as_str().into()));
            self.hub_state.queues.removal_overflow.add(overflow);
        }
        Ok(())
    }

    /// Settles the orders that a member has carried out while they were written, because it does
    /// not report them again.
    fn settle_carried_out(&self, name: &ClusterName, rules: &BTreeSet<RuleUid>) {
        let Some(live) = self.hub_state.sessions.get(name).map(|live| live.clone()) else {
            return;
        };
        let index = self.hub_state.index.read();
        let session = live.session.lock();
        let is_free = |uid: &&RuleUid| {
            session.is_free_of(uid, index.rules().version_of(uid).unwrap_or_default())
        };
        let free: Vec<_> = rules
            .iter()
            .filter(is_free)
            .map(|uid| (name.clone(), uid.clone()))
            .collect();
        if !free.is_empty() {
            self.hub_state.queues.settled_removals.add(free);
        }
    }

    /// Returns the orders for these rules, without those that were released meanwhile.
    fn removals(&self, rules: &BTreeSet<RuleUid>) -> Vec<PendingRemoval> {
        let index = self.hub_state.index.read();
        let removal = |uid: &RuleUid| {
            let entry = index.rules().get(uid).filter(|entry| entry.rule.deleting)?;
            Some(PendingRemoval {
                rule_uid: uid.as_str().to_owned(),
                deletion_policy: entry.rule.terms.deletion_policy.into(),
                rule: self.object_cache.name_of(uid),
            })
        };
        rules.iter().filter_map(removal).collect()
    }

    async fn write(
        &self,
        member: &Member,
        pending_removals: Vec<PendingRemoval>,
    ) -> Result<(), WriteError> {
        let record = MemberRecordSpec {
            pending_removals,
            ..member.record().clone()
        };
        let write = write_record(&self.client, member, record);
        if let Some(written) = ignoring_missing(&self.hub_state, write).await? {
            // The stored state must include the order before the rule is released. After that only
            // the order contains the decision about its copies.
            observe_member(written, &self.hub_state, &self.object_cache);
        }
        Ok(())
    }
}
