//! Takes in the reports of one frame of an agent: into its session, the reports of the hub and the deliveries.
//!
//! The caller holds the locks of all four once, for the whole frame. What has an effect elsewhere is a part of the
//! [`ReportOutcome`], for the time after the locks.
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use runnel_proto::model::{ClusterName, CopyChange, RuleName, RuleState, RuleUid};

use crate::index::Index;
use crate::session::Session;
use crate::status::{Deliveries, ReportStore, SentRule};

/// What the reports of an agent change.
pub struct ReportState<'a> {
    /// The index, unchanged.
    pub index: &'a Index,
    /// The session of the agent.
    pub session: &'a mut Session,
    /// The last reports of all agents.
    pub report_store: &'a mut ReportStore,
    /// The edits that are not everywhere yet.
    pub deliveries: &'a mut Deliveries,
}

/// What follows from the reports of one frame.
#[derive(Default)]
pub struct ReportOutcome {
    /// Rules whose status may be stale.
    pub changed: Vec<RuleUid>,
    /// Rules that the agent has removed as a deleted rule ordered.
    pub settled: Vec<RuleUid>,
    /// Rules whose approved removals are judged again, because the agent has used the approval up.
    pub repeated_prunes: BTreeSet<RuleUid>,
    /// Rules whose directive is sent again, because an approval lapsed.
    pub lapsed: Vec<RuleUid>,
    /// Rules of which the agent's proof does not match the copies that it reports as applied.
    pub differing: Vec<RuleUid>,
    /// Rules of which the agent requests approval of another set of removals than before.
    pub prune_requests: BTreeSet<RuleUid>,
    /// Rules that do not select the cluster, and of which its agent has copies.
    pub unchosen: Vec<RuleUid>,
    /// Whether the status of the member may be stale.
    pub is_member_changed: bool,
    /// How long an edit took to this cluster.
    pub delivered: Vec<Duration>,
    /// How long the edit of a rule took to its last cluster.
    pub rules_delivered: Vec<(RuleUid, Duration)>,
    /// What the agent did to copies of its rules, with whether the rule is rolled back.
    pub changes: Vec<(RuleUid, RuleName, Vec<CopyChange>)>,
    /// The number of reports whose failures were left out.
    pub shortened: u64,
}

impl ReportState<'_> {
    /// Takes in the reports of a cluster's agent in the session of this number.
    pub fn take_reports(
        &mut self,
        cluster: &ClusterName,
        number: u64,
        states: Vec<RuleState>,
        now: Instant,
    ) -> ReportOutcome {
        let mut outcome = ReportOutcome::default();
        for state in states {
            self.take_report(cluster, number, state, now, &mut outcome);
        }
        let selects_other = |uid: &&RuleUid| {
            let entry = self.index.rules().get(uid);
            entry.is_some_and(|entry| !entry.target_clusters.clusters.contains_key(cluster))
        };
        let unchosen = outcome.changed.iter().filter(selects_other);
        outcome.unchosen = unchosen
            .filter(|uid| self.session.has_intents(uid))
            .cloned()
            .collect();
        outcome.prune_requests =
            prune_requests(self.index, self.report_store, cluster, &outcome.changed);
        // The status of a leaving cluster shows its remaining copies.
        let known = self.index.clusters().get(cluster);
        outcome.is_member_changed |= known.is_some_and(|known| known.leaving);
        outcome.shortened = self.report_store.take_shortened();
        outcome
    }

    /// Takes the changes of copies out of a report. An agent reports about its own rules only.
    fn take_changes(&self, state: &mut RuleState, outcome: &mut ReportOutcome) {
        let changes = std::mem::take(&mut state.changes);
        if changes.is_empty() || !self.session.has_intents(&state.uid) {
            return;
        }
        // The agent alone knows the other rules, and its word is not enough for Events.
        let Some(entry) = self.index.rules().get(&state.uid) else {
            return;
        };
        let rule = entry.rule.terms.rule.clone();
        outcome.changes.push((state.uid.clone(), rule, changes));
    }

    fn take_report(
        &mut self,
        cluster: &ClusterName,
        number: u64,
        mut state: RuleState,
        now: Instant,
        outcome: &mut ReportOutcome,
    ) {
        let uid = state.uid.clone();
        self.take_changes(&mut state, outcome);
        if state.gone && self.session.record_removed(&uid, state.last_batch) {
            // The status is marked even if nothing was reported about the rule before, because its
            // release may wait for this report.
            outcome.changed.push(uid.clone());
            let known = self.index.clusters().get(cluster);
            if known.is_some_and(|known| known.pending.contains_key(&uid)) {
                outcome.settled.push(uid.clone());
            }
        }
        // A member reports its own intents only.
        if !state.gone && !self.session.has_intents(&uid) {
            return;
        }
        let waits = state.namespace_prunes.as_ref().map(|prunes| prunes.digest);
        // The agent requests approval again for removals that were approved.
        if waits.is_some_and(|asked| self.session.prune_approval_consumed(&uid, asked)) {
            outcome.repeated_prunes.insert(uid.clone());
        }
        if self.session.pending_prune_changed(&uid, waits) {
            outcome.lapsed.push(uid.clone());
        }
        let entry = self.index.rules().get(&uid);
        // A rollback is not an edit.
        let edited = entry.filter(|entry| entry.rollback().is_none());
        let assignment = || edited.and_then(|entry| entry.assignment(cluster));
        let took = self.deliveries.reported(cluster, &state, assignment, now);
        let (to_cluster, to_rule) = took.map_or((None, None), |took| (took.cluster, took.rule));
        outcome.delivered.extend(to_cluster);
        let to_rule = to_rule.map(|took| (uid.clone(), took));
        outcome.rules_delivered.extend(to_rule);
        // Failures of rules that the hub does not have are dropped.
        if entry.is_none() {
            state.failures = Vec::new();
        }
        if !self.report_store.report(cluster, number, state) {
            return;
        }
        outcome.is_member_changed |= entry.is_none();
        if entry.is_some_and(|entry| SentRule::from(entry).differs_in(self.report_store, cluster)) {
            outcome.differing.push(uid.clone());
        }
        outcome.changed.push(uid);
    }
}

/// The rules among these of which the agent of a cluster requests approval of another set of removals than before.
pub fn prune_requests(
    index: &Index,
    report_store: &ReportStore,
    cluster: &ClusterName,
    rules: &[RuleUid],
) -> BTreeSet<RuleUid> {
    let differs = |uid: &&RuleUid| {
        let holding = report_store
            .reported_copies(uid, cluster)
            .unwrap_or_default();
        let digest = holding.prunes.map(|asked| asked.digest);
        let entry = index.rules().get(uid);
        entry.is_some_and(|entry| entry.guard.prune_differs(cluster, digest))
    };
    rules.iter().filter(differs).cloned().collect()
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use runnel_proto::model::{Counts, Failure, Reason, SourceRef};

    use super::*;
    use crate::status::SessionFacts;

    fn state(rule: &str) -> RuleState {
        RuleState {
            intents: 1,
            counts: Counts {
                copies: 1,
                failed: 1,
                ..Counts::default()
            },
            failures: vec![Failure {
                reason: Reason::Forbidden,
                copy: SourceRef::new("secrets", "a", "b"),
                message: "why".into(),
            }],
            ..RuleState::new(rule.into())
        }
    }

    #[test]
    fn report_of_unknown_rule_keeps_no_failures() {
        let (index, now) = (Index::default(), Instant::now());
        let mut session = Session::default();
        let (mut report_store, mut deliveries) = (ReportStore::default(), Deliveries::default());
        let facts = SessionFacts {
            agent_version: String::new(),
            kubernetes_version: String::new(),
            cluster_uid: String::new(),
            key: String::new(),
            boot_id: String::new(),
            certificate_expires: Timestamp::UNIX_EPOCH,
        };
        let cluster = ClusterName::from("eu-1");
        report_store.connected(&cluster, 1, facts, vec![]);
        session.hello(vec![state("acked")]);
        session.hello_done();
        let mut report = |number, states| {
            let mut all = ReportState {
                index: &index,
                session: &mut session,
                report_store: &mut report_store,
                deliveries: &mut deliveries,
            };
            all.take_reports(&cluster, number, states, now)
        };

        // The agent has no copies of the other rule: it may not report about it.
        let outcome = report(1, vec![state("acked"), state("other")]);
        assert_eq!(outcome.changed, ["acked".into()]);
        assert!(outcome.is_member_changed && outcome.unchosen.is_empty());
        let without_failures = RuleState {
            failures: vec![],
            ..state("acked")
        };
        assert!(report(1, vec![without_failures]).changed.is_empty());
        let repeated = report(1, vec![state("acked")]);
        assert!(repeated.changed.is_empty() && !repeated.is_member_changed);
        let earlier_session = report(0, vec![RuleState::new("acked".into())]);
        assert!(earlier_session.changed.is_empty());
    }
}
