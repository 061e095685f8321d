//! What an agent says about itself: what it holds when it connects, its reports, what it refuses.
use std::collections::BTreeSet;
use std::time::Instant;

use dashmap::mapref::entry::Entry;
use jiff::Timestamp;
use runnel_proto::PROTOCOL_MAX;
use runnel_proto::model::{ClusterName, Refusal, RuleState, RuleUid};
use tonic::Status;

use super::admission;
use super::session::Running;
use crate::brake::Matter;
use crate::index::Effect;
use crate::status::{Sent, SessionFacts};

/// The longest version or uid that is taken from an agent, as the API takes it.
const TEXT_LIMIT: usize = 128;

fn short(mut text: String) -> String {
    let end = (0..=TEXT_LIMIT.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or_default();
    text.truncate(end);
    text
}

/// Failures are kept of rules that the hub knows: nobody looks at others, of which an agent can make up as many as it
/// likes.
fn without_unknown_failures(mut states: Vec<RuleState>, is_known: impl Fn(&RuleUid) -> bool) -> Vec<RuleState> {
    for state in states.iter_mut().filter(|state| !state.failures.is_empty() && !is_known(&state.uid)) {
        state.failures = Vec::new();
    }
    states
}

impl Running {
    /// The agent has said what it holds: from now on the hub counts it as connected.
    pub(super) fn register(&mut self) {
        let Some(hello) = self.hello.clone() else { return };
        let cluster = self.identity.cluster.clone();
        if !self.leads() {
            return;
        }
        if !self.take_place() {
            return self.end(Status::aborted("another session of this cluster took over"));
        }
        self.lasts();
        // From here on a change of the member wakes the session; what changed before is seen now.
        if let Err(refusal) = admission(&self.shared, &self.book, &self.identity) {
            return self.cut(&refusal);
        }
        let held = std::mem::take(&mut self.held);
        tracing::info!(%cluster, agent = hello.agent_version, rules = held.len(), "agent connected");
        let facts = SessionFacts {
            agent_version: short(hello.agent_version),
            kubernetes_version: short(hello.kubernetes_version),
            cluster_uid: short(hello.cluster_uid),
            protocol: hello.protocol_max.min(PROTOCOL_MAX),
            key: self.identity.certificate.key.to_string(),
            certificate_expires: Timestamp::try_from(self.identity.certificate.not_after).unwrap_or(Timestamp::MAX),
        };
        {
            let mut session = self.live.session.lock();
            session.speak(hello.protocol_max.min(PROTOCOL_MAX));
            session.hold(self.hold());
            session.hello(held.clone());
            session.hello_done();
        }
        let rules: Vec<_> = held.iter().map(|state| state.uid.clone()).collect();
        let with_copies = held.iter().filter(|state| state.intents > 0 || state.counts.copies > 0);
        let with_copies = with_copies.map(|state| state.uid.clone()).collect();
        self.shared.ledger.lock().connected(&cluster, self.live.number, facts, held);
        self.note_hold();
        self.shared.change(|index| index.holds_only(&cluster, &with_copies));
        self.shared.mark_rules_of(&cluster);
        // What agents ask for is judged by what waits now, and said only then.
        self.judge_asked(&cluster, &rules);
        self.update();
        self.claim_held();
    }

    /// Becomes the session of its cluster, unless a later one is there.
    fn take_place(&mut self) -> bool {
        match self.shared.sessions.entry(self.identity.cluster.clone()) {
            Entry::Occupied(present) if present.get().number > self.live.number => return false,
            Entry::Occupied(mut present) => present.insert(self.live.clone()).wake.notify_one(),
            Entry::Vacant(place) => drop(place.insert(self.live.clone())),
        }
        self.registered = true;
        self.metrics.connected(1);
        true
    }

    /// What the hub says about rules that only the agent, or only an order written down for it, speaks of.
    fn claim_held(&self) {
        let index = self.shared.index.read();
        let cluster = &self.identity.cluster;
        if !index.talks_to(cluster, self.identity.uid()) {
            return;
        }
        let mut session = self.live.session.lock();
        let held: Vec<_> = session.held_rules().cloned().collect();
        let unknown = held.iter().filter(|uid| index.rule(uid).is_none());
        let claims: Vec<_> = unknown.map(|uid| (uid.clone(), index.claim(uid, cluster))).collect();
        session.update(claims);
        let pending = index.cluster(cluster).into_iter().flat_map(|known| known.pending.keys());
        let done: Vec<_> =
            pending.filter(|uid| !held.contains(uid)).map(|uid| (cluster.clone(), uid.clone())).collect();
        drop(session);
        drop(index);
        self.settle(done);
    }

    fn settle(&self, done: Vec<(ClusterName, RuleUid)>) {
        if !done.is_empty() {
            self.shared.settled_removals.add(done);
            self.shared.dirty_members.add([self.identity.cluster.clone()]);
        }
    }

    pub(super) fn modest(&self, states: Vec<RuleState>) -> Vec<RuleState> {
        let index = self.shared.index.read();
        without_unknown_failures(states, |uid| index.rule(uid).is_some())
    }

    pub(super) fn reported(&mut self, rules: Vec<RuleState>) {
        let cluster = self.identity.cluster.clone();
        let (mut changed, mut again, mut lapsed) = (Vec::new(), BTreeSet::new(), Vec::new());
        for state in self.modest(rules) {
            let uid = state.uid.clone();
            if state.gone && self.live.session.lock().gone(&uid) {
                let ordered = self.shared.index.read().cluster(&cluster).is_some_and(|c| c.pending.contains_key(&uid));
                if ordered {
                    self.settle(vec![(cluster.clone(), uid.clone())]);
                }
            }
            let unknown = self.shared.index.read().rule(&uid).is_none();
            // A member speaks of what it holds, and of nothing else.
            let counts = state.gone || self.live.session.lock().holds(&uid);
            if counts {
                self.measure(&state);
                let matters = [Matter::Takeovers, Matter::GivenUp].into_iter().zip(self.asks_again(&state));
                again.extend(matters.filter(|(_, asks)| *asks).map(|(matter, _)| (uid.clone(), matter)));
                let waits = state.given_up.as_ref().map(|given_up| given_up.digest);
                lapsed.extend(self.live.session.lock().waits_to_go(&uid, waits).then(|| uid.clone()));
            }
            if !counts {
                continue;
            }
            let news = self.shared.ledger.lock().report(&cluster, self.live.number, state);
            if news && self.differs(&uid) {
                tracing::warn!(%cluster, rule = %uid, "the agent shows other copies than it says it has applied");
            }
            if news {
                changed.push(uid);
                if unknown {
                    self.shared.dirty_members.add([cluster.clone()]);
                }
            }
        }
        let leaving = self.shared.index.read().cluster(&cluster).is_some_and(|cluster| cluster.leaving);
        if leaving {
            self.shared.dirty_members.add([cluster.clone()]);
        }
        self.judge_unchosen(&cluster, &changed);
        self.judge_asked(&cluster, &changed);
        self.judge_again(&again);
        self.say_again(lapsed);
        self.shared.dirty_rules.add(changed);
    }

    /// What was named and lapsed is named again, where it still may go.
    fn say_again(&self, rules: Vec<RuleUid>) {
        let index = self.shared.index.read();
        if !rules.is_empty() && index.talks_to(&self.identity.cluster, self.identity.uid()) {
            let claims: Vec<_> =
                rules.into_iter().map(|uid| (uid.clone(), index.claim(&uid, &self.identity.cluster))).collect();
            drop(index);
            self.live.session.lock().update(claims);
        }
    }

    /// What waits for the hub's word is judged when it is another set than it was.
    fn judge_asked(&self, cluster: &ClusterName, rules: &[RuleUid]) {
        let judge: BTreeSet<_> = {
            let (index, ledger) = (self.shared.index.read(), self.shared.ledger.lock());
            let said = |uid: &RuleUid| ledger.holding(uid, cluster).unwrap_or_default();
            rules.iter().filter(|uid| index.asks_anew(uid, cluster, said(uid))).cloned().collect()
        };
        if !judge.is_empty() {
            self.shared.change(|_| Effect { judge, ..Effect::default() });
        }
    }

    /// Whether what was permitted waits all the same: of what is to be overwritten, and of what is to go.
    fn asks_again(&self, state: &RuleState) -> [bool; 2] {
        let mut session = self.live.session.lock();
        let takeovers = state.takeovers.filter(|_| state.counts.under_way() == 0);
        let given_up = state.given_up.as_ref();
        [
            takeovers.is_some_and(|asked| session.has_used_up(&state.uid, asked.digest)),
            given_up.is_some_and(|asked| session.has_used_up_let_go(&state.uid, asked.digest)),
        ]
    }

    fn judge_again(&self, again: &BTreeSet<(RuleUid, Matter)>) {
        if !again.is_empty() {
            self.shared.change(|index| {
                again.iter().for_each(|(uid, matter)| index.has_used_up(uid, *matter, &self.identity.cluster));
                Effect { judge: again.iter().map(|(uid, _)| uid.clone()).collect(), ..Effect::default() }
            });
        }
    }

    /// What a cluster holds of a rule that does not choose it can be judged now that it is counted.
    fn judge_unchosen(&self, cluster: &ClusterName, rules: &[RuleUid]) {
        let unchosen: Vec<_> = {
            let index = self.shared.index.read();
            let elsewhere =
                |uid: &&RuleUid| index.rule(uid).is_some_and(|entry| !entry.goes.clusters.contains_key(cluster));
            rules.iter().filter(elsewhere).collect()
        };
        for uid in unchosen.into_iter().filter(|uid| self.live.session.lock().holds(uid)) {
            self.shared.change(|index| index.stray_cluster(uid, cluster));
        }
    }

    /// Whether the agent shows something else than what it says it has applied.
    fn differs(&self, rule: &RuleUid) -> bool {
        let index = self.shared.index.read();
        let entry = index.rule(rule);
        entry.is_some_and(|entry| Sent::from(entry).differs_in(&self.shared.ledger.lock(), &self.identity.cluster))
    }

    /// Counts an edit that has now been applied in the session's cluster, or in all of its rule.
    fn measure(&self, state: &RuleState) {
        let index = self.shared.index.read();
        let share = index.rule(&state.uid).and_then(|entry| entry.share(&self.identity.cluster));
        let took =
            self.shared.deliveries.lock().reported(&self.identity.cluster, state, share.as_ref(), Instant::now());
        if let Some(took) = took.and_then(|took| took.cluster) {
            self.metrics.delivered(took);
        }
        if let Some(took) = took.and_then(|took| took.rule) {
            self.metrics.rule_delivered(&state.uid, took);
        }
    }

    pub(super) fn refused(&self, refused: &[Refusal]) {
        for refusal in refused {
            let Refusal { rule, source, reason, message: why, .. } = refusal;
            let cluster = &self.identity.cluster;
            tracing::warn!(%cluster, %rule, %source, reason = reason.as_str(), why, "the agent refused an intent");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use runnel_proto::model::{Failure, Reason, SourceRef};

    #[test]
    fn failures_are_kept_of_known_rules_only() {
        let state = |uid: &str| RuleState {
            intents: 1,
            failures: vec![Failure {
                reason: Reason::Forbidden,
                copy: SourceRef::new("configmaps", "team", "app"),
                message: "forbidden".to_owned(),
            }],
            ..RuleState::new(uid.into())
        };
        let kept = without_unknown_failures(vec![state("known"), state("invented")], |uid| *uid == "known".into());
        assert_eq!(kept.iter().map(|state| state.failures.len()).collect::<Vec<_>>(), [1, 0]);
    }
}
