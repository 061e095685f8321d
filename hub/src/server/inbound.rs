//! Handles the frames of an agent within the limits of its session ([`Bounds`](super::limits::Bounds)). Frames that
//! cannot be read after the Hello are ignored.
use std::collections::BTreeSet;
use std::time::Instant;

use dashmap::mapref::entry::Entry;
use jiff::Timestamp;
use runnel_proto::convert::FrameError;
use runnel_proto::model::{
    AgentFrame, ClusterName, CopyChange, HubFrame, LostWatch, Refusal, RuleName, RuleState,
    RuleUid, clip,
};
use runnel_proto::{convert, wire};
use tonic::Status;

use super::admission;
use super::session::{Running, SessionContext};
use crate::membership::decide::replaced;
use crate::metrics::PeerLimit;
use runnel_hub_core::audit::ReportedChanges;
use runnel_hub_core::index::Effect;
use runnel_hub_core::session::RULES_LIMIT;
use runnel_hub_core::status::{ReportState, SessionFacts, prune_requests};

/// The number of refusals that one session logs.
const REFUSALS_LOGGED: u64 = 10;
/// The number of pairs of a rule that cost as much as one state.
const PAIRS: usize = 16;
/// The agent must reconnect as soon as this many of the rules that were left out of its report fit,
/// or all of them.
const RECONNECT_RULES: usize = 1000;

/// Returns the cost of a frame in rule states, besides one for the frame itself.
fn cost_of(frame: &AgentFrame) -> usize {
    match frame {
        AgentFrame::AckedRules(states, _) | AgentFrame::Report(states) => states.len(),
        AgentFrame::Ack(_, refused) => refused.len(),
        AgentFrame::Detail(_, pairs, _) => pairs.len() / PAIRS,
        AgentFrame::ContentRequest(_, sources) => sources.len() / PAIRS,
        AgentFrame::PreviewResult(answer) => answer.copies.len() / PAIRS,
        AgentFrame::CopyList(answer) => answer.copies.len() / PAIRS,
        AgentFrame::Hello(_)
        | AgentFrame::Handover
        | AgentFrame::Inspected(_)
        | AgentFrame::LostWatches(_)
        | AgentFrame::Keepalive => 0,
    }
}

impl SessionContext {
    /// Whether a line about this member may be logged now. Logs the number of lines that were
    /// skipped since the last one.
    pub(super) fn may_log(&self) -> bool {
        let line = self.peers.line(self.identity.uid(), Instant::now());
        if let Some(skipped) = line.filter(|skipped| *skipped > 0) {
            tracing::info!(skipped, "lines about this member were not logged");
        }
        line.is_some()
    }

    /// Counts and ignores a frame of a newer or broken agent that cannot be read.
    fn pass_over_frame(&self, error: &FrameError) {
        self.metrics.limited(PeerLimit::Frames, 1);
        tracing::debug!(%error, "a frame of an agent is passed over");
    }

    /// Counts and ignores items of a frame that cannot be read.
    fn pass_over_items(&self, items: usize) {
        self.metrics.limited(PeerLimit::Items, items as u64);
        if items > 0 {
            tracing::debug!(count = items, "items of an agent's frame are passed over");
        }
    }
}

impl Running {
    pub(super) fn handle_frame(&mut self, frame: wire::AgentFrame) {
        self.bounds.spend_reads(1, &self.context.metrics);
        let (frame, refused) = match convert::agent_frame(frame) {
            Ok(read) => read,
            Err(error) if self.hello.is_none() => {
                return self.end(Status::invalid_argument(error.to_string()));
            }
            Err(error) => return self.context.pass_over_frame(&error),
        };
        self.context.pass_over_items(refused);
        self.bounds
            .spend_reads(cost_of(&frame), &self.context.metrics);
        match (frame, self.hello.is_some(), self.registered) {
            (AgentFrame::Hello(hello), false, _) => self.start_session(hello),
            (AgentFrame::AckedRules(rules, last), true, false) => {
                self.bounds.extend();
                self.extend_hello();
                let index = self.context.hub_state.index.read();
                self.acked
                    .add(rules, |uid| index.rules().get(uid).is_some());
                drop(index);
                if last {
                    self.register();
                }
            }
            (AgentFrame::AckedRules(rules, _), true, true) => self.resynced(rules),
            (AgentFrame::LostWatches(watches), _, true) => self.context.lost_watches(watches),
            (AgentFrame::Detail(uid, intents, last), _, true) => {
                self.context.live.session.lock().detail(&uid, intents, last);
                self.context.judge_orphaned();
            }
            (AgentFrame::Ack(nonce, refused), _, true) => {
                self.context.live.session.lock().ack(nonce);
                self.refused(&refused);
            }
            (AgentFrame::Report(rules), _, true) => self.reported(rules),
            (AgentFrame::ContentRequest(uid, sources), _, true) => self
                .context
                .live
                .session
                .lock()
                .request_content(&uid, sources),
            (AgentFrame::Inspected(answer), _, true) => {
                self.context.live.inquiries.answered(*answer)
            }
            (AgentFrame::PreviewResult(answer), _, true) => {
                self.context.live.inquiries.preview_result(answer)
            }
            (AgentFrame::CopyList(answer), _, true) => {
                self.context.live.inquiries.copy_list(answer)
            }
            (AgentFrame::Handover, _, true) => self.out.hand_over(Instant::now()),
            (AgentFrame::Keepalive, true, _) => {}
            _ => self.end(Status::failed_precondition(
                "a frame out of order: Hello, AckedRules, then all others",
            )),
        }
    }

    /// Ends the stream, because newer streams of this member began before the agent reported its
    /// acked set on this one.
    pub(super) fn superseded(&mut self) {
        let text = "other streams of this cluster began before the agent had reported its intents on this one";
        self.end(Status::resource_exhausted(text));
    }

    /// Handles the refusals of the agent. A session logs the first few; the others are only
    /// counted.
    fn refused(&mut self, refused: &[Refusal]) {
        for refusal in refused {
            self.bounds.refusals += 1;
            if self.bounds.refusals > REFUSALS_LOGGED {
                continue;
            }
            let Refusal {
                rule,
                source,
                reason,
                message: why,
                ..
            } = refusal;
            tracing::warn!(%rule, %source, reason = reason.as_str(), why, "the agent refused an intent");
            if self.bounds.refusals == REFUSALS_LOGGED {
                tracing::warn!("further refusals of this session are only counted");
            }
        }
        self.context.metrics.refused_by_agents(refused.len() as u64);
    }

    /// Marks the statuses of these rules as stale. Above the rate limit the statuses are marked
    /// later.
    pub(super) fn mark_statuses(&mut self, rules: Vec<RuleUid>) {
        let soon = self.bounds.statuses_now(rules, &self.context.metrics);
        self.context.hub_state.queues.dirty_rules.add(soon);
    }

    /// Returns the rules that may be judged now. The others are judged later.
    pub(super) fn judged_now(&mut self, rules: BTreeSet<RuleUid>) -> BTreeSet<RuleUid> {
        self.bounds.judgments_now(rules, &self.context.metrics)
    }

    /// Handles the delayed rules that are due.
    pub(super) fn handle_deferred(&mut self) {
        let late = std::mem::take(&mut self.bounds.deferred_statuses);
        self.mark_statuses(late.into_iter().collect());
        let late: Vec<_> = std::mem::take(&mut self.bounds.deferred_judgments)
            .into_iter()
            .collect();
        let cluster = self.context.identity.cluster.clone();
        self.judge_prune_requests(&cluster, &late);
        self.bounds.defer(Instant::now());
    }

    /// Makes an agent with more rules than a session stores reconnect when enough of the left-out
    /// rules fit.
    pub(super) fn reconnect_for_left_out_rules(&mut self) {
        let session = self.context.live.session.lock();
        let left_out = session.left_out_rules().min(RECONNECT_RULES);
        let has_room = left_out > 0 && session.acked_rules().count() + left_out <= RULES_LIMIT;
        drop(session);
        if has_room {
            self.out.end_with(HubFrame::Drain(0), Status::ok(""));
        }
    }
}

/// The limit of the length of a version or uid from an agent, as in the API.
const TEXT_LIMIT: usize = 128;

impl SessionContext {
    /// Records that the agent has lost watches of its cluster, or that they work again.
    pub(super) fn lost_watches(&self, watches: Vec<LostWatch>) {
        let cluster = &self.identity.cluster;
        let resources: Vec<_> = watches.iter().map(|watch| watch.resource.clone()).collect();
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
        let known = self.context.object_cache.member(&cluster);
        let former = known.as_ref().and_then(|known| replaced(&known.cluster));
        let registered = {
            let mut report_store = self.context.hub_state.report_store.lock();
            // The status does not name the cluster of a member that has just connected.
            match report_store.other_in_cluster(&cluster, &facts.cluster_uid) {
                Some(other) if Some(other.as_str()) != former => Err(other),
                other => {
                    let shares_key = report_store.displaces(&cluster, &facts, Instant::now());
                    report_store.connected(&cluster, self.context.live.number, facts, acked);
                    Ok((shares_key, other.is_some()))
                }
            }
        };
        let (shares_key, replaces) = match registered {
            Ok(shares_key) => shares_key,
            Err(first) => return self.refuse_second(first),
        };
        let former = former.filter(|_| replaces).map(ClusterName::from);
        let sessions = &self.context.hub_state.sessions;
        if let Some(live) = former.and_then(|former| sessions.get(&former)) {
            let _ = live.replaced_by.set(cluster.clone());
            live.wake.notify_one();
        }
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
