//! Handles the reports of an agent: its acked set at the start of a session, the states of its
//! rules, and its refusals.
use std::collections::BTreeSet;
use std::time::Instant;

use dashmap::mapref::entry::Entry;
use jiff::Timestamp;
use runnel_proto::model::{ClusterName, CopyChange, LostWatch, RuleName, RuleState, RuleUid, clip};
use tonic::Status;

use super::admission;
use super::session::{Running, SessionContext};
use crate::metrics::PeerLimit;
use runnel_hub_core::audit::ReportedChanges;
use runnel_hub_core::index::Effect;
use runnel_hub_core::reports::{ReportState, prune_requests};
use runnel_hub_core::session::RULES_LIMIT;
use runnel_hub_core::status::SessionFacts;

/// The limit of the length of a version or uid from an agent, as in the API.
const TEXT_LIMIT: usize = 128;

impl SessionContext {
    /// Records that the agent has lost watches of its cluster, or that they work again.
    pub(super) fn lost_watches(&self, watches: Vec<LostWatch>) {
        let cluster = &self.identity.cluster;
        let resources: Vec<_> = watches.iter().map(|watch| watch.resource).collect();
        if self
            .hub_state
            .report_store
            .lock()
            .lost_watches(cluster, self.live.number, watches)
        {
            tracing::warn!(resource = ?resources, "the watches that an agent has lost in its cluster have changed");
            self.hub_state.queues.dirty_members.add([cluster.clone()]);
            self.hub_state.mark_statuses_of(cluster);
        }
    }

    /// Sends directives for rules that only the agent has. Settles stored orders for rules that the
    /// agent does not have.
    pub(super) fn claim_acked(&self) {
        let index = self.hub_state.index.read();
        let cluster = &self.identity.cluster;
        if !index
            .clusters()
            .serves_cluster(cluster, self.identity.uid())
        {
            return;
        }
        let mut session = self.live.session.lock();
        let acked: Vec<_> = session.acked_rules().cloned().collect();
        let unknown = acked.iter().filter(|uid| index.rules().get(uid).is_none());
        let directives: Vec<_> = unknown
            .map(|uid| (uid.clone(), index.directive(uid, cluster)))
            .collect();
        session.update(directives);
        // A rule that was left out of the report may be that of an order.
        let is_whole = session.left_out_rules() == 0;
        let pending = index
            .clusters()
            .get(cluster)
            .filter(|_| is_whole)
            .into_iter()
            .flat_map(|known| known.pending.keys());
        let done: Vec<_> = pending
            .filter(|uid| !acked.contains(uid))
            .map(|uid| (cluster.clone(), uid.clone()))
            .collect();
        drop(session);
        drop(index);
        self.settle(done);
    }

    fn settle(&self, done: Vec<(ClusterName, RuleUid)>) {
        if !done.is_empty() {
            self.hub_state.queues.settled_removals.add(done);
            self.hub_state
                .queues
                .dirty_members
                .add([self.identity.cluster.clone()]);
        }
    }

    /// Sends the current directives of these rules, if the hub still serves the cluster.
    fn resend(&self, rules: Vec<RuleUid>) {
        if rules.is_empty() {
            return;
        }
        let index = self.hub_state.index.read();
        if index
            .clusters()
            .serves_cluster(&self.identity.cluster, self.identity.uid())
        {
            let directives: Vec<_> = rules
                .into_iter()
                .map(|uid| (uid.clone(), index.directive(&uid, &self.identity.cluster)))
                .collect();
            drop(index);
            self.live.session.lock().update(directives);
        }
    }

    fn rejudge_prunes(&self, again: &BTreeSet<RuleUid>) {
        if !again.is_empty() {
            self.hub_state.change(|index| {
                again
                    .iter()
                    .for_each(|uid| index.rules_mut().rejudge_prune(uid, &self.identity.cluster));
                Effect {
                    judge: again.clone(),
                    ..Effect::default()
                }
            });
        }
    }
}

impl Running {
    /// Registers the session after the agent has reported its acked set. From then on the hub
    /// counts the agent as connected.
    pub(super) fn register(&mut self) {
        let Some(hello) = self.hello.clone() else {
            return;
        };
        let cluster = self.context.identity.cluster.clone();
        if !self.leads() {
            return;
        }
        if !self.become_current() {
            return self.end(Status::aborted("another session of this cluster took over"));
        }
        self.lasts();
        // From here on a change of the member wakes the session. This check covers earlier changes.
        if let Err(refusal) = admission(
            &self.context.hub_state,
            &self.context.object_cache,
            &self.context.identity,
        ) {
            return self.cut(&refusal);
        }
        // A user may have confirmed a divergence since the agent's Hello was judged. No other check
        // follows.
        if self.is_confirmed() {
            return self.require_reconnect();
        }
        let acked = std::mem::take(&mut self.acked);
        let (left_out, shortened) = acked.left_out_and_shortened();
        self.context
            .metrics
            .limited(PeerLimit::Hello, left_out as u64);
        self.context
            .metrics
            .limited(PeerLimit::Details, shortened as u64);
        self.bounds.registered();
        let acked = acked.into_states();
        if self.context.may_log() {
            tracing::info!(
                agent = hello.agent_version,
                rules = acked.len(),
                "agent connected"
            );
        }
        let facts = SessionFacts {
            agent_version: clip(&hello.agent_version, TEXT_LIMIT).to_owned(),
            kubernetes_version: clip(&hello.kubernetes_version, TEXT_LIMIT).to_owned(),
            cluster_uid: clip(&hello.cluster_uid, TEXT_LIMIT).to_owned(),
            key: self.context.identity.certificate.key.to_string(),
            boot_id: clip(&hello.boot_id, TEXT_LIMIT).to_owned(),
            certificate_expires: Timestamp::try_from(self.context.identity.certificate.not_after)
                .unwrap_or(Timestamp::MAX),
        };
        {
            let mut session = self.context.live.session.lock();
            session.set_restriction(self.epoch.restriction());
            session.hello(acked.clone());
            session.leave_out_rules(left_out);
            session.hello_done();
        }
        let rules: Vec<_> = acked.iter().map(|state| state.uid.clone()).collect();
        let with_copies = acked
            .iter()
            .filter(|state| state.intents > 0 || state.counts.copies > 0);
        let with_copies = with_copies.map(|state| state.uid.clone()).collect();
        let key = facts.key.clone();
        let shares_key = {
            let mut report_store = self.context.hub_state.report_store.lock();
            let shares_key = report_store.displaces(&cluster, &facts, Instant::now());
            report_store.connected(&cluster, self.context.live.number, facts, acked);
            shares_key
        };
        if shares_key {
            tracing::error!(%key, "two agents use the key of this cluster alternately: an attacker may have a copy of it");
        }
        self.record_restriction();
        if left_out == 0 {
            self.context
                .hub_state
                .change(|index| index.rules_mut().drop_missing_rules(&cluster, &with_copies));
        }
        self.context.hub_state.mark_statuses_of(&cluster);
        // The requests of agents are judged together with the pending removals, and answered after
        // that.
        self.judge_prune_requests(&cluster, &rules);
        self.update();
        self.context.claim_acked();
    }

    /// Handles another report of the acked intents of some rules.
    pub(super) fn resynced(&mut self, states: Vec<RuleState>) {
        let cluster = &self.context.identity.cluster;
        let uids: Vec<_> = states
            .iter()
            .filter(|state| !state.gone)
            .map(|state| state.uid.clone())
            .collect();
        if self.context.may_log() {
            tracing::info!(
                rules = uids.len(),
                "unknown copies were found in a cluster: requesting their state from its agent"
            );
        }
        let left_out = self.context.live.session.lock().resync(states.clone());
        self.context
            .metrics
            .limited(PeerLimit::Hello, left_out as u64);
        let index = self.context.hub_state.index.read();
        if index
            .clusters()
            .serves_cluster(cluster, self.context.identity.uid())
        {
            let directives: Vec<_> = uids
                .iter()
                .map(|uid| (uid.clone(), index.directive(uid, cluster)))
                .collect();
            drop(index);
            self.context.live.session.lock().update(directives);
        } else {
            drop(index);
        }
        self.reported(states);
        self.context.judge_orphaned();
    }

    /// Makes this the session of its cluster, unless a later one exists.
    fn become_current(&mut self) -> bool {
        match self
            .context
            .hub_state
            .sessions
            .entry(self.context.identity.cluster.clone())
        {
            Entry::Occupied(present) if present.get().number > self.context.live.number => {
                return false;
            }
            Entry::Occupied(mut present) => {
                present.insert(self.context.live.clone()).wake.notify_one()
            }
            Entry::Vacant(place) => drop(place.insert(self.context.live.clone())),
        }
        self.registered = true;
        self.context.metrics.connected(1);
        true
    }

    /// Sends rules that were beyond the agent's limit and now fit. Marks the statuses of the
    /// others.
    pub(super) fn send_rules_beyond_limit(&mut self) {
        let (with_room, beyond) = {
            let mut session = self.context.live.session.lock();
            let with_room = session.over_limit_with_room();
            let beyond = with_room
                .is_empty()
                .then(|| session.take_over_limit_change());
            (with_room, beyond)
        };
        let beyond = beyond.unwrap_or_else(|| {
            self.context.resend(with_room);
            self.context.live.session.lock().take_over_limit_change()
        });
        let Some(beyond) = beyond else { return };
        let cluster = &self.context.identity.cluster;
        tracing::warn!(
            rules = beyond.len(),
            "rules are not sent: the cluster has {RULES_LIMIT} rules, which is the limit"
        );
        let changed = self.context.hub_state.report_store.lock().set_over_limit(
            cluster,
            self.context.live.number,
            beyond,
        );
        self.mark_statuses(changed);
    }

    /// Handles the reports of one frame.
    pub(super) fn reported(&mut self, states: Vec<RuleState>) {
        let cluster = self.context.identity.cluster.clone();
        let outcome = {
            let index = self.context.hub_state.index.read();
            let mut session = self.context.live.session.lock();
            let mut report_store = self.context.hub_state.report_store.lock();
            let mut deliveries = self.context.hub_state.deliveries.lock();
            let mut state = ReportState {
                index: &index,
                session: &mut session,
                report_store: &mut report_store,
                deliveries: &mut deliveries,
            };
            state.take_reports(&cluster, self.context.live.number, states, Instant::now())
        };
        self.record_changes(&cluster, &outcome.changes);
        for took in outcome.delivered {
            self.context.metrics.delivered(took);
        }
        for (uid, took) in outcome.rules_delivered {
            self.context.metrics.rule_delivered(&uid, took);
        }
        self.context
            .metrics
            .limited(PeerLimit::Details, outcome.shortened);
        for uid in outcome.differing.iter().filter(|_| self.context.may_log()) {
            let rule = self.context.object_cache.name_of(uid);
            tracing::warn!(%rule, "the agent's proof does not match the copies that it reports as applied");
        }
        let settled = outcome.settled.into_iter();
        self.context
            .settle(settled.map(|uid| (cluster.clone(), uid)).collect());
        if outcome.is_member_changed {
            self.context
                .hub_state
                .queues
                .dirty_members
                .add([cluster.clone()]);
        }
        // The copies of a rule that does not select this cluster are judged, because the cluster
        // counts as connected now.
        for uid in &outcome.unchosen {
            self.context
                .hub_state
                .change(|index| index.orphaned_cluster(uid, &cluster));
        }
        self.judge(outcome.prune_requests);
        self.context.rejudge_prunes(&outcome.repeated_prunes);
        self.context.resend(outcome.lapsed);
        self.send_rules_beyond_limit();
        self.mark_statuses(outcome.changed);
        self.reconnect_for_left_out_rules();
    }

    /// Records what the agent did to copies, for the log and Events.
    fn record_changes(
        &self,
        cluster: &ClusterName,
        changes: &[(RuleUid, RuleName, Vec<CopyChange>)],
    ) {
        if changes.is_empty() {
            return;
        }
        let now = Instant::now();
        let mut audit = self.context.hub_state.audit.lock();
        for (uid, rule, changes) in changes {
            let reported = ReportedChanges {
                uid,
                rule,
                cluster,
                changes,
                connected_at: self.context.live.since,
            };
            audit.record(&reported, now);
        }
    }

    /// Judges the removals for which the agent requests approval, if the set has changed.
    pub(super) fn judge_prune_requests(&mut self, cluster: &ClusterName, rules: &[RuleUid]) {
        let requested = {
            let index = self.context.hub_state.index.read();
            prune_requests(
                &index,
                &self.context.hub_state.report_store.lock(),
                cluster,
                rules,
            )
        };
        self.judge(requested);
    }

    fn judge(&mut self, rules: BTreeSet<RuleUid>) {
        let judge = self.judged_now(rules);
        if !judge.is_empty() {
            self.context.hub_state.change(|_| Effect {
                judge,
                ..Effect::default()
            });
        }
    }
}
