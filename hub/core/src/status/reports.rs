//! Takes in the reports of one frame of an agent: into its session, the reports of the hub and the deliveries.
//!
//! The caller holds the locks of all four once, for the whole frame. What has an effect elsewhere is a part of the
//! [`ReportOutcome`], for the time after the locks.
//!
//! # Delivery times
//! The delivery of an edit begins when a watch of the hub delivers a new version of a source. It ends
//! for a cluster when its agent reports every copy of the rule applied, and for the rule when this
//! holds in the last of its clusters. The time of the watch event is the best one there is: the API
//! server stores times of writes in whole seconds, and none for a write that only removes fields.
//!
//! An edit is measured only in clusters that are connected when it comes and do not have it
//! already. A cluster that catches up later says nothing about the delivery time, nor does a failed
//! copy: the rule waits for neither. A failed cluster that succeeds before the others counts. A
//! cluster that awaits its wave counts for the rule. Overlapping edits of one rule count as one,
//! from the first on.
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use runnel_proto::model::{ClusterName, CopyChange, RuleName, RuleState, RuleUid};

use super::{ReportStore, SentRule};
use crate::index::Index;
use crate::plan::ClusterAssignment;
use crate::session::Session;

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

/// Edits in transit.
#[derive(Default)]
pub struct Deliveries {
    in_progress: BTreeMap<ClusterName, BTreeMap<RuleUid, ClusterDelivery>>,
    /// Only while some cluster is waited for.
    rules: BTreeMap<RuleUid, RuleDelivery>,
}

/// An edit in transit to one cluster.
struct ClusterDelivery {
    since: Instant,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    InTransit,
    /// The cluster's turn in a rollout had not come.
    AwaitingWave,
    /// A copy has failed: the measurement does not wait for it.
    Failed,
}

/// An edit in transit to all clusters of a rule.
struct RuleDelivery {
    since: Instant,
    /// Number of clusters that are waited for.
    clusters: usize,
    /// The latest delivery so far.
    last: Option<Instant>,
}

/// The durations of finished deliveries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeliveryTimes {
    /// To the cluster that reported.
    pub cluster: Option<Duration>,
    /// To the last cluster of the rule.
    pub rule: Option<Duration>,
}

impl Deliveries {
    /// An edit that was observed at `since` is sent to a cluster, or will be in the cluster's wave.
    pub fn begin(&mut self, cluster: &ClusterName, rule: &RuleUid, since: Instant, awaits: bool) {
        let ways = self.in_progress.entry(cluster.clone()).or_default();
        if ways.get(rule).is_some_and(|way| way.state != State::Failed) {
            return;
        }
        ways.insert(
            rule.clone(),
            ClusterDelivery {
                since,
                state: if awaits {
                    State::AwaitingWave
                } else {
                    State::InTransit
                },
            },
        );
        self.rules
            .entry(rule.clone())
            .or_insert(RuleDelivery {
                since,
                clusters: 0,
                last: None,
            })
            .clusters += 1;
    }

    /// Handles an agent's report about a rule with the desired `assignment`, which is computed only
    /// for pending deliveries. Returns the finished deliveries.
    pub fn reported(
        &mut self,
        cluster: &ClusterName,
        state: &RuleState,
        assignment: impl FnOnce() -> Option<ClusterAssignment>,
        now: Instant,
    ) -> Option<DeliveryTimes> {
        let ways = self.in_progress.get_mut(cluster)?;
        let way = ways.get_mut(&state.uid)?;
        let assignment = assignment();
        let (before, since) = (way.state, way.since);
        let over = state.gone || assignment.is_none();
        let failed = !over && state.counts.failed > 0;
        let holds = assignment.as_ref().is_some_and(|assignment| {
            let same = state.intents_digest == assignment.digest()
                && state.terms_digest == Some(assignment.terms().digest);
            same && state.counts.is_settled()
        });
        if failed {
            way.state = State::Failed
        } else if over || holds {
            ways.remove(&state.uid);
            if ways.is_empty() {
                self.in_progress.remove(cluster);
            }
        } else {
            return None;
        }
        let applied = holds && !over && !failed;
        if let Some(whole) = self.rules.get_mut(&state.uid).filter(|_| applied) {
            whole.last = Some(now);
        }
        let rule = if before == State::Failed {
            None
        } else {
            self.record_cluster_done(&state.uid)
        };
        let took =
            (applied && before == State::InTransit).then(|| now.saturating_duration_since(since));
        Some(DeliveryTimes {
            cluster: took,
            rule,
        })
    }

    /// Handles a lost connection: later deliveries to the cluster are not measured. Returns the
    /// durations of rules that only waited for this cluster.
    pub fn lost(&mut self, cluster: &ClusterName) -> Vec<(RuleUid, Duration)> {
        let ways = self.in_progress.remove(cluster).unwrap_or_default();
        let waited = ways
            .into_iter()
            .filter(|(_, way)| way.state != State::Failed);
        waited
            .filter_map(|(uid, _)| Some((uid.clone(), self.record_cluster_done(&uid)?)))
            .collect()
    }

    /// Drops the deliveries to a cluster that gets nothing. Returns as [`Deliveries::lost`].
    pub fn retain(
        &mut self,
        is_sent: impl Fn(&ClusterName, &RuleUid) -> bool,
    ) -> Vec<(RuleUid, Duration)> {
        let mut dropped = Vec::new();
        self.in_progress.retain(|cluster, ways| {
            ways.retain(|uid, way| {
                let sent = is_sent(cluster, uid);
                dropped.extend((!sent && way.state != State::Failed).then(|| uid.clone()));
                sent
            });
            !ways.is_empty()
        });
        dropped
            .into_iter()
            .filter_map(|uid| Some((uid.clone(), self.record_cluster_done(&uid)?)))
            .collect()
    }

    /// Records that one cluster less is waited for.
    fn record_cluster_done(&mut self, rule: &RuleUid) -> Option<Duration> {
        let whole = self.rules.get_mut(rule)?;
        whole.clusters = whole.clusters.saturating_sub(1);
        if whole.clusters > 0 {
            return None;
        }
        let whole = self.rules.remove(rule)?;
        whole
            .last
            .map(|last| last.saturating_duration_since(whole.since))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use jiff::Timestamp;
    use runnel_proto::model::{Counts, Failure, Payload, Reason, Revision, SourceRef};
    use serde_json::json;

    use super::*;
    use crate::plan::{Rule, RulePlan, SourceContent, SourceState};
    use crate::status::SessionFacts;
    use runnel_api::DistributionRule;

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

    fn assignment(revision: u8) -> ClusterAssignment {
        let object: DistributionRule = serde_json::from_value(json!({
        "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionRule",
        "metadata": {"name": "r", "namespace": "a", "uid": "r", "generation": 1},
        "spec": {"sources": [{"resources": ["configmaps"], "names": ["*"]}], "clusters": {"all": true}},
    }))
    .unwrap();
        let rule = Rule::namespaced(&object, "runnel-system").unwrap();
        let mut plan = RulePlan::empty(&rule);
        let content = SourceContent::new(Revision([revision; 16]), Payload::encode(vec![]));
        plan.set(
            &SourceRef::new("configmaps", "a", "s"),
            Some(&SourceState::Read(Arc::new(content))),
        );
        let (cluster, plan, judged) = ("one".into(), Arc::new(plan), Arc::default());
        ClusterAssignment {
            cluster,
            authorized: crate::plan::GrantedTerms::unrestricted(rule.terms).authorize(&plan),
            judged,
            rolled_back: None,
            claims: Arc::default(),
        }
    }

    fn counted_state(assignment: &ClusterAssignment, applied: u32, failed: u32) -> RuleState {
        RuleState {
            rule: assignment.terms().rule.clone(),
            intents_digest: assignment.digest(),
            intents: 1,
            terms_digest: Some(assignment.terms().digest),
            counts: Counts {
                copies: 2,
                applied,
                failed,
                ..Counts::default()
            },
            ..RuleState::new(assignment.plan().uid.clone())
        }
    }

    fn took(cluster: Option<u64>, rule: Option<u64>) -> Option<DeliveryTimes> {
        Some(DeliveryTimes {
            cluster: cluster.map(Duration::from_secs),
            rule: rule.map(Duration::from_secs),
        })
    }

    struct Timeline {
        start: Instant,
        deliveries: Deliveries,
        new: ClusterAssignment,
    }

    impl Timeline {
        fn new() -> Self {
            Self {
                start: Instant::now(),
                deliveries: Deliveries::default(),
                new: assignment(2),
            }
        }

        fn begin(&mut self, cluster: &str, after: u64, awaits: bool) {
            let since = self.start + Duration::from_secs(after);
            self.deliveries
                .begin(&cluster.into(), &self.new.plan().uid, since, awaits);
        }

        fn report(
            &mut self,
            cluster: &str,
            after: u64,
            applied: u32,
            failed: u32,
        ) -> Option<DeliveryTimes> {
            let state = counted_state(&self.new, applied, failed);
            let now = self.start + Duration::from_secs(after);
            self.deliveries
                .reported(&cluster.into(), &state, || Some(self.new.clone()), now)
        }

        fn lost(&mut self, cluster: &str) -> Vec<Duration> {
            self.deliveries
                .lost(&cluster.into())
                .into_iter()
                .map(|(_, took)| took)
                .collect()
        }

        fn is_over(&self) -> bool {
            self.deliveries.in_progress.is_empty() && self.deliveries.rules.is_empty()
        }
    }

    #[test]
    fn edit_is_delivered_when_all_newest_copies_are_applied() {
        let mut story = Timeline::new();
        story.begin("one", 0, false);
        story.begin("one", 1, false);
        let (one, old) = (ClusterName::from("one"), assignment(1));
        let now = story.start + Duration::from_secs(2);
        assert_eq!(
            story.deliveries.reported(
                &one,
                &counted_state(&old, 2, 0),
                || Some(story.new.clone()),
                now
            ),
            None
        );
        assert_eq!(story.report("one", 3, 1, 0), None);
        assert_eq!(story.report("one", 4, 2, 0), took(Some(4), Some(4)));
        assert_eq!(story.report("one", 5, 2, 0), None);
        assert!(story.is_over());
    }

    #[test]
    fn a_rule_is_delivered_when_the_last_cluster_has_it() {
        let mut story = Timeline::new();
        story.begin("one", 0, false);
        story.begin("two", 0, false);
        // The cluster's wave begins later.
        story.begin("three", 0, true);
        assert_eq!(story.report("two", 1, 2, 0), took(Some(1), None));
        // Another edit before the first one is everywhere.
        story.begin("two", 2, false);
        assert_eq!(story.report("two", 3, 2, 0), took(Some(1), None));
        assert_eq!(story.report("one", 4, 2, 0), took(Some(4), None));
        assert_eq!(story.report("three", 9, 2, 0), took(None, Some(9)));
        assert!(story.is_over());
        story.begin("one", 10, false);
        assert_eq!(story.report("one", 11, 2, 0), took(Some(1), Some(1)));
    }

    #[test]
    fn failed_cluster_is_not_waited_for_longer() {
        let mut story = Timeline::new();
        story.begin("one", 0, false);
        story.begin("two", 0, false);
        assert_eq!(story.report("one", 1, 1, 1), took(None, None));
        assert_eq!(story.report("one", 2, 1, 1), took(None, None));
        // It comes round before the other has it.
        assert_eq!(story.report("one", 3, 2, 0), took(None, None));
        assert_eq!(story.report("two", 4, 2, 0), took(Some(4), Some(4)));
        assert!(story.is_over());

        story.begin("one", 10, false);
        story.begin("two", 10, false);
        assert_eq!(story.report("two", 11, 2, 0), took(Some(1), None));
        assert_eq!(story.report("one", 12, 1, 1), took(None, Some(1)));
        assert_eq!(story.report("one", 60, 2, 0), took(None, None), "long over");
        assert!(story.is_over());
        // Only failed: nothing was delivered.
        story.begin("one", 70, false);
        assert_eq!(story.report("one", 71, 1, 1), took(None, None));
        // The next edit is measured again.
        story.begin("one", 80, false);
        assert_eq!(story.report("one", 81, 2, 0), took(Some(1), Some(1)));
        assert!(story.is_over());
    }

    #[test]
    fn clusters_that_go_away_are_not_waited_for() {
        let mut story = Timeline::new();
        story.begin("one", 0, false);
        assert!(story.lost("one").is_empty());
        assert_eq!(story.report("one", 1, 2, 0), None);
        assert!(story.is_over());

        story.begin("one", 10, false);
        story.begin("two", 10, false);
        assert_eq!(story.report("one", 13, 2, 0), took(Some(3), None));
        // The time at which the loss of the other one was noticed does not matter.
        assert_eq!(story.lost("two"), [Duration::from_secs(3)]);
        assert!(story.is_over());

        story.begin("one", 20, false);
        story.begin("two", 20, false);
        assert_eq!(story.report("two", 21, 2, 0), took(Some(1), None));
        let kept = story
            .deliveries
            .retain(|cluster, _| *cluster != "one".into());
        assert_eq!(
            kept,
            [(story.new.plan().uid.clone(), Duration::from_secs(1))]
        );
        assert!(story.is_over());
    }

    #[test]
    fn deleted_or_moved_rule_is_not_measured() {
        let mut story = Timeline::new();
        story.begin("one", 0, false);
        let (one, state) = (ClusterName::from("one"), counted_state(&story.new, 2, 0));
        assert_eq!(
            story
                .deliveries
                .reported(&one, &state, || None, story.start),
            took(None, None)
        );
        assert!(story.is_over());
    }
}
