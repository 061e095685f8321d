use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;
use runnel_proto::model::{
    AckedIntent, Batch, DeletionPolicy, Enforcement, HubFrame, NamespaceChoice, Pattern, Payload,
    PruneDigest, Revision, RuleState, RuleUid, SetDigest, SourceRef, Terms, TermsDigest,
};
use serde_json::json;

use super::{RULES_LIMIT, SendRestriction, Session};
use crate::guard::{GuardDecision, Item};
use crate::index::Directive;
use crate::plan::{
    ClusterAssignment, GrantedTerms, NamedTerms, PendingClaim, Rule, RulePlan, SourceContent,
    SourceState,
};

/// A minimal agent.
#[derive(Clone, Default)]
struct Agent {
    rules: BTreeMap<RuleUid, BTreeMap<SourceRef, Revision>>,
    terms: BTreeMap<RuleUid, TermsDigest>,
    orphaned: BTreeSet<RuleUid>,
    /// For each rule with terms: whether it is suspended.
    is_suspended: BTreeMap<RuleUid, bool>,
    upserts: usize,
    removed: Vec<(RuleUid, SourceRef)>,
    /// Rules without intents, each with the batch that removed it.
    gone: Vec<(RuleUid, u64)>,
}

impl Agent {
    fn take(&mut self, batch: &Batch) {
        for delta in &batch.rules {
            if let Some((terms, digest)) = &delta.terms {
                self.terms.insert(delta.uid.clone(), *digest);
                self.is_suspended.insert(delta.uid.clone(), terms.suspend);
                self.orphaned.remove(&delta.uid);
                self.rules.entry(delta.uid.clone()).or_default();
            }
            if let (Some(suspend), Some(is_suspended)) =
                (delta.suspend, self.is_suspended.get_mut(&delta.uid))
            {
                *is_suspended = suspend;
            }
            if delta.orphaned {
                self.orphaned.insert(delta.uid.clone());
            }
            for intent in &delta.upserts {
                self.upserts += 1;
                self.rules
                    .entry(delta.uid.clone())
                    .or_default()
                    .insert(intent.source.clone(), intent.revision);
            }
        }
        for delta in &batch.rules {
            for tombstone in &delta.tombstones {
                if self
                    .rules
                    .entry(delta.uid.clone())
                    .or_default()
                    .remove(&tombstone.source)
                    .is_some()
                {
                    self.removed
                        .push((delta.uid.clone(), tombstone.source.clone()));
                }
            }
            if delta.removal.is_some() {
                let stream_state = self.rules.remove(&delta.uid).unwrap_or_default();
                self.removed.extend(
                    stream_state
                        .into_keys()
                        .map(|source| (delta.uid.clone(), source)),
                );
                self.terms.remove(&delta.uid);
                self.is_suspended.remove(&delta.uid);
                self.gone.push((delta.uid.clone(), batch.nonce));
            }
        }
    }

    fn state(&self, uid: &RuleUid) -> RuleState {
        let stream_state = self.rules.get(uid).cloned().unwrap_or_default();
        RuleState {
            intents_digest: stream_state.iter().collect(),
            intents: u32::try_from(stream_state.len()).unwrap(),
            terms_digest: self
                .terms
                .get(uid)
                .copied()
                .filter(|_| !self.orphaned.contains(uid)),
            suspended: self.is_suspended.get(uid).copied().unwrap_or_default(),
            ..RuleState::new(uid.clone())
        }
    }

    fn connect(&self) -> Session {
        let mut session = Session::default();
        session.hello(self.rules.keys().map(|uid| self.state(uid)).collect());
        session.hello_done();
        session
    }

    /// Exchanges frames until neither side has one left.
    fn drain(&mut self, session: &mut Session) {
        loop {
            let questions = session.take_questions();
            for uid in &questions {
                let pairs = self.rules.get(uid).into_iter().flatten();
                let pairs = pairs.map(|(source, revision)| AckedIntent {
                    source: source.clone(),
                    revision: *revision,
                });
                session.detail(uid, pairs.collect(), true);
            }
            let Some(batch) = session.next_batch() else {
                if questions.is_empty() {
                    return;
                }
                continue;
            };
            self.take(&batch);
            session.ack(batch.nonce);
            for (uid, batch) in std::mem::take(&mut self.gone) {
                session.record_removed(&uid, batch);
            }
        }
    }
}

fn source(name: u8) -> SourceRef {
    SourceRef::new("configmaps", "a", &format!("s{name}"))
}

fn content(text: u8) -> SourceState {
    SourceState::Read(Arc::new(SourceContent::new(
        Revision([text; 16]),
        Payload::encode(vec![text]),
    )))
}

fn rule(uid: &str, suspend: bool) -> Rule {
    let object = json!({
        "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionRule",
        "metadata": {"name": uid, "namespace": "a", "uid": uid},
        "spec": {"sources": [{"resources": ["configmaps"], "names": ["*"]}], "clusters": {"all": true}, "suspend": suspend},
    });
    let object: runnel_api::DistributionRule = serde_json::from_value(object).unwrap();
    Rule::namespaced(&object, "runnel-system").unwrap()
}

fn share_of(uid: &str, suspend: bool, items: &[(u8, SourceState)]) -> ClusterAssignment {
    let rule = rule(uid, suspend);
    let mut plan = RulePlan::empty(&rule);
    for (name, body) in items {
        plan.set(&source(*name), Some(body));
    }
    plan.edits = Default::default();
    // The guard is tested elsewhere.
    let judged = GuardDecision::passing((0..=99).map(|name| Item::Source(source(name))));
    ClusterAssignment {
        cluster: "one".into(),
        authorized: GrantedTerms::unrestricted(rule.terms).authorize(&Arc::new(plan)),
        judged,
        rolled_back: None,
        claims: Arc::default(),
    }
}

fn with_terms(assignment: ClusterAssignment, terms: Terms) -> ClusterAssignment {
    let terms = GrantedTerms::unrestricted(NamedTerms::new(terms));
    ClusterAssignment {
        authorized: terms.authorize(assignment.plan()),
        ..assignment
    }
}

fn wanted(uid: &str, items: &[(u8, SourceState)]) -> (RuleUid, Directive) {
    (uid.into(), Directive::Assigned(share_of(uid, false, items)))
}

#[test]
fn a_new_agent_gets_everything_once_and_then_nothing() {
    let mut agent = Agent::default();
    let mut session = agent.connect();
    session.update([wanted("r", &[(1, content(1)), (2, content(2))])]);
    agent.drain(&mut session);
    assert_eq!(agent.upserts, 2);
    let end = session.take_snapshot_end().unwrap();
    assert_eq!(
        (end.intents, end.digest),
        (2, agent.state(&"r".into()).intents_digest)
    );
    assert_eq!(session.take_snapshot_end(), None);
    session.update([wanted("r", &[(1, content(1)), (2, content(2))])]);
    assert!(session.next_batch().is_none());
}

#[test]
fn agent_that_has_the_plan_is_sent_nothing_on_reconnect() {
    let mut agent = Agent::default();
    let mut session = agent.connect();
    session.update([wanted("r", &[(1, content(1)), (2, content(2))])]);
    agent.drain(&mut session);
    let mut again = agent.connect();
    again.update([wanted("r", &[(1, content(1)), (2, content(2))])]);
    assert!(again.take_questions().is_empty() && again.next_batch().is_none());
    assert!(again.take_snapshot_end().is_some());
}

#[test]
fn only_the_changed_source_is_sent_after_a_reconnect() {
    let mut agent = Agent::default();
    let mut session = agent.connect();
    session.update([wanted(
        "r",
        &[(1, content(1)), (2, content(2)), (3, content(3))],
    )]);
    agent.drain(&mut session);
    let mut again = agent.connect();
    again.update([wanted("r", &[(1, content(1)), (2, content(9))])]);
    assert!(
        again.take_snapshot_end().is_none(),
        "the answer is not in yet"
    );
    agent.drain(&mut again);
    assert_eq!(agent.upserts, 4);
    assert_eq!(agent.removed, [("r".into(), source(3))]);
}

#[test]
fn hub_without_a_rule_removes_nothing_and_reports_it() {
    let mut agent = Agent::default();
    let mut session = agent.connect();
    session.update([wanted("r", &[(1, content(1))])]);
    agent.drain(&mut session);
    let mut amnesiac = agent.connect();
    amnesiac.update([("r".into(), Directive::Orphaned)]);
    agent.drain(&mut amnesiac);
    assert!(agent.removed.is_empty() && agent.orphaned.contains(&"r".into()));
    assert_eq!(amnesiac.take_snapshot_end().unwrap().intents, 0);
}

#[test]
fn late_answer_does_not_count_for_an_unsent_order() {
    let (mut agent, uid) = (Agent::default(), RuleUid::from("r"));
    let mut session = agent.connect();
    let send = |session: &mut Session, agent: &mut Agent| {
        let batch = session.next_batch().unwrap();
        agent.take(&batch);
        session.ack(batch.nonce);
    };
    let unwanted = || [("r".into(), Directive::Removed(DeletionPolicy::Delete))];
    session.update([wanted("r", &[(1, content(1))])]);
    send(&mut session, &mut agent);
    session.update(unwanted());
    send(&mut session, &mut agent);
    // Before the answer arrives, the rule is created again with its copies, and deleted again.
    session.update([wanted("r", &[(1, content(1))])]);
    send(&mut session, &mut agent);
    session.update(unwanted());
    agent.removed.clear();
    assert!(
        !session.record_removed(&uid, 3) && !session.is_free_of(&uid, 0),
        "the agent holds copies again"
    );
    // The hub forgets the rule before the order has left: it does not leave any more.
    session.update([("r".into(), Directive::Orphaned)]);
    agent.gone.clear();
    agent.drain(&mut session);
    assert!(agent.removed.is_empty() && agent.orphaned.contains(&uid));
}

#[test]
fn answer_to_the_first_removal_does_not_answer_the_second() {
    let (mut agent, uid) = (Agent::default(), RuleUid::from("r"));
    let mut session = agent.connect();
    for directive in [
        wanted("r", &[(1, content(1))]).1,
        Directive::Removed(DeletionPolicy::Delete),
    ]
    .iter()
    .cycle()
    .take(4)
    {
        session.update([("r".into(), directive.clone())]);
        let batch = session.next_batch().unwrap();
        agent.take(&batch);
    }
    let answers = std::mem::take(&mut agent.gone);
    assert_eq!(answers, [(uid.clone(), 2), (uid.clone(), 4)]);
    assert!(
        !session.record_removed(&uid, 2) && !session.is_free_of(&uid, 0),
        "the second order is under way"
    );
    assert!(session.record_removed(&uid, 4) && session.is_free_of(&uid, 0));
}

#[test]
fn session_is_free_of_a_rule_only_once_it_has_caught_up() {
    let (mut agent, uid) = (Agent::default(), RuleUid::from("r"));
    let mut session = agent.connect();
    // The claims of version 1 are on their way to the session while the rule is deleted in version 2.
    assert!(session.is_free_of(&uid, 0) && !session.is_free_of(&uid, 2));
    session.catch_up([wanted("r", &[(1, content(1))])], 1);
    agent.drain(&mut session);
    assert!(!session.is_free_of(&uid, 2));
    session.catch_up(
        [("r".into(), Directive::Removed(DeletionPolicy::Delete))],
        2,
    );
    assert!(!session.is_free_of(&uid, 2));
    agent.drain(&mut session);
    assert!(session.is_free_of(&uid, 2) && !session.is_free_of(&uid, 3));
}

#[test]
fn unreadable_source_keeps_copies_until_deselected() {
    let mut agent = Agent::default();
    let mut session = agent.connect();
    session.update([wanted("r", &[(1, content(1)), (2, content(2))])]);
    agent.drain(&mut session);
    session.update([wanted(
        "r",
        &[(1, content(1)), (2, SourceState::Unreadable)],
    )]);
    agent.drain(&mut session);
    assert!(agent.removed.is_empty());
    session.update([wanted("r", &[(1, content(1))])]);
    agent.drain(&mut session);
    assert_eq!(agent.removed, [("r".into(), source(2))]);
}

#[test]
fn unwanted_copy_waits_for_the_source_being_read() {
    let mut agent = Agent::default();
    let mut session = agent.connect();
    session.update([wanted("r", &[(1, content(1))])]);
    agent.drain(&mut session);
    session.update([wanted("r", &[(2, SourceState::Unread)])]);
    agent.drain(&mut session);
    assert!(agent.removed.is_empty());
    session.update([wanted("r", &[(2, content(2))])]);
    agent.drain(&mut session);
    assert_eq!(agent.removed, [("r".into(), source(1))]);
    assert!(agent.rules[&"r".into()].contains_key(&source(2)));
}

#[test]
fn member_with_newer_state_is_sent_nothing() {
    let mut agent = Agent::default();
    let before = [
        wanted("r1", &[(1, content(1)), (2, content(2))]),
        wanted("r2", &[(3, content(3))]),
    ];
    let mut session = agent.connect();
    session.update(before);
    agent.drain(&mut session);
    let stream_state = agent.rules.clone();
    let mut session = agent.connect();
    session.set_restriction(SendRestriction::Everything);
    let policy = DeletionPolicy::Delete;
    session.update([
        wanted("r1", &[(1, content(9))]),
        ("r2".into(), Directive::Removed(policy)),
        wanted("r3", &[(4, content(4))]),
    ]);
    session.request_content(&"r1".into(), vec![source(1)]);
    session.update([("r2".into(), Directive::Orphaned)]);
    agent.drain(&mut session);
    assert!(
        agent.rules == stream_state
            && session.take_snapshot_end().is_none()
            && session.take_orphaned_intents().is_empty()
    );
}

#[test]
fn rejoined_member_is_brought_up_to_date_and_loses_nothing() {
    let mut agent = Agent::default();
    let mut session = agent.connect();
    session.update([
        wanted("r1", &[(1, content(1)), (2, content(2))]),
        wanted("r2", &[(3, content(3))]),
    ]);
    agent.drain(&mut session);
    let after = || {
        [
            wanted("r1", &[(1, content(9))]),
            ("r2".into(), Directive::Removed(DeletionPolicy::Delete)),
        ]
    };
    for (restriction, removed) in [
        (SendRestriction::Removals, 0),
        (SendRestriction::Nothing, 2),
    ] {
        let mut session = agent.connect();
        session.set_restriction(restriction);
        // A resent source is stored twice.
        session.update(after());
        agent.drain(&mut session);
        session.update(after());
        agent.drain(&mut session);
        assert_eq!((agent.upserts, agent.removed.len()), (4, removed));
        assert_eq!(
            !session.withheld().is_empty(),
            restriction == SendRestriction::Removals
        );
        assert_eq!(
            session.has_only_desired_intents(),
            restriction == SendRestriction::Nothing
        );
        assert!(session.take_snapshot_end().is_some());
    }
    // An agent with exactly the desired state gets no request.
    let mut session = agent.connect();
    session.set_restriction(SendRestriction::Removals);
    session.update(after());
    agent.drain(&mut session);
    assert!(session.withheld().is_empty() && session.has_only_desired_intents());
}

#[test]
fn rejoined_member_keeps_only_its_former_copies() {
    let mut agent = Agent::default();
    let mut session = agent.connect();
    session.update([
        wanted("r1", &[(1, content(1)), (2, content(2))]),
        wanted("r2", &[(3, content(3))]),
    ]);
    agent.drain(&mut session);
    let mut session = agent.connect();
    session.set_restriction(SendRestriction::Removals);
    // The second rule is undecided: it keeps its copies, and blocks no other rule.
    session.update([
        wanted("r1", &[(1, content(1)), (2, content(2))]),
        ("r2".into(), Directive::Unknown),
    ]);
    session.update([wanted("r3", &[(4, content(4)), (5, content(5))])]);
    agent.drain(&mut session);
    assert!(session.withheld().is_empty() && !session.has_only_desired_intents());
    session.update([
        wanted("r1", &[(1, content(1))]),
        wanted("r3", &[(4, content(4))]),
    ]);
    agent.drain(&mut session);
    assert_eq!(
        (agent.removed.len(), !session.withheld().is_empty()),
        (2, false)
    );
    session.update([("r2".into(), Directive::Removed(DeletionPolicy::Delete))]);
    agent.drain(&mut session);
    assert_eq!(
        (agent.removed.len(), !session.withheld().is_empty()),
        (2, true)
    );
}

#[test]
fn transferred_source_is_upserted_before_removal() {
    let mut agent = Agent::default();
    let mut session = agent.connect();
    let big = |text: u8| {
        let mut noise = Vec::with_capacity(900_000);
        let mut state = u64::from(text) + 1;
        while noise.len() < 900_000 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            noise.push((state >> 33) as u8);
        }
        SourceState::Read(Arc::new(SourceContent::new(
            Revision([text; 16]),
            Payload::encode(noise),
        )))
    };
    session.update([
        wanted("old", &[(1, big(1)), (2, big(2))]),
        wanted("new", &[]),
    ]);
    agent.drain(&mut session);
    session.update([
        wanted("old", &[]),
        wanted("new", &[(1, big(1)), (2, big(2))]),
    ]);
    let mut removals_seen = false;
    while let Some(batch) = session.next_batch() {
        let has_upserts = batch.rules.iter().any(|delta| !delta.upserts.is_empty());
        assert!(
            !(removals_seen && has_upserts),
            "an upsert after a tombstone"
        );
        removals_seen |= batch.rules.iter().any(|delta| !delta.tombstones.is_empty());
        agent.take(&batch);
        session.ack(batch.nonce);
    }
    assert!(removals_seen);
}

#[test]
fn the_window_bounds_what_is_under_way() {
    let mut session = Agent::default().connect();
    let many: Vec<_> = (0..=255).map(|name| (name, content(name))).collect();
    for rule in 0..20 {
        session.update([wanted(&format!("r{rule}"), &many)]);
        session.next_batch();
    }
    let waiting = session.next_batch();
    assert!(waiting.is_none());
    session.ack(1);
    assert!(session.next_batch().is_some());
}

#[test]
fn suspended_rule_sends_terms_only() {
    let mut agent = Agent::default();
    let mut session = agent.connect();
    session.update([wanted("r", &[(1, content(1))])]);
    agent.drain(&mut session);
    session.request_content(&"r".into(), vec![source(1), source(7)]);
    agent.drain(&mut session);
    assert_eq!(agent.upserts, 2);
    session.update([(
        "r".into(),
        Directive::Assigned(share_of("r", true, &[(2, content(2))])),
    )]);
    agent.drain(&mut session);
    assert_eq!((agent.upserts, agent.removed.len()), (2, 0));
    session.update([wanted("r", &[(2, content(2))])]);
    agent.drain(&mut session);
    assert_eq!((agent.upserts, agent.removed.len()), (3, 1));
}

#[test]
fn dry_run_sends_content_and_no_tombstones() {
    let dry = |items: &[(u8, SourceState)]| {
        let assignment = share_of("r", false, items);
        let terms = Terms {
            enforcement: Enforcement::DryRun,
            ..Terms::clone(assignment.terms())
        };
        Directive::Assigned(with_terms(assignment, terms))
    };
    let mut agent = Agent::default();
    let mut session = agent.connect();
    session.update([wanted("r", &[(1, content(1))])]);
    agent.drain(&mut session);
    session.update([("r".into(), dry(&[(2, content(2))]))]);
    agent.drain(&mut session);
    assert_eq!((agent.upserts, agent.removed.len()), (2, 0));
    let mut again = agent.connect();
    again.update([("r".into(), dry(&[(2, content(2))]))]);
    agent.drain(&mut again);
    assert_eq!(
        (agent.upserts, agent.removed.len()),
        (2, 0),
        "a new stream removes nothing either"
    );
    again.update([wanted("r", &[(2, content(2))])]);
    agent.drain(&mut again);
    assert_eq!(
        (agent.upserts, agent.removed.len()),
        (2, 1),
        "enforcement removes what is no longer selected"
    );
}

#[test]
fn early_requests_are_served_once_the_rule_is_known() {
    let mut agent = Agent::default();
    let mut session = agent.connect();
    session.update([wanted("r", &[(1, content(1))])]);
    agent.drain(&mut session);
    let mut again = agent.connect();
    again.request_content(&"r".into(), vec![source(1)]);
    again.update([wanted("r", &[(1, content(1))])]);
    agent.drain(&mut again);
    assert_eq!(agent.upserts, 2);
}

/// Sources of the longest names, as a member might make them up.
fn invented(from: usize, count: usize) -> Vec<SourceRef> {
    let long = "n".repeat(240);
    (from..from + count)
        .map(|n| SourceRef::new(&long, &long, &format!("{long}{n:010}")))
        .collect()
}

#[test]
fn unserved_requests_are_bounded() {
    let mut agent = Agent::default();
    let mut session = agent.connect();
    session.update([
        wanted("r", &[(1, content(1))]),
        wanted("gone", &[(1, content(1))]),
    ]);
    agent.drain(&mut session);
    // The agent's intents differ from the plan, so requests wait for the report.
    let mut again = agent.connect();
    again.update([
        wanted("r", &[(1, content(2))]),
        ("gone".into(), Directive::Orphaned),
    ]);
    again.request_content(&"r".into(), invented(0, 100));
    again.request_content(&"gone".into(), vec![source(1)]);
    again.request_content(&"never".into(), vec![source(1)]);
    assert_eq!(again.used_bytes(), 0);
    again.request_content(&"r".into(), vec![source(1)]);
    assert!(again.used_bytes() > 0);
    again.update([("r".into(), Directive::Orphaned)]);
    assert_eq!(again.used_bytes(), 0);
}

#[test]
fn reports_of_an_agent_share_one_bound_that_frees() {
    let limit = 64 * 1024 * 1024;
    let mut session = Session::default();
    let state = |uid: &str| RuleState {
        intents: 1,
        ..Agent::default().state(&uid.into())
    };
    let uids: Vec<String> = (0..100).map(|n| format!("r{n:02}")).collect();
    session.hello(uids.iter().map(|uid| state(uid)).collect());
    session.hello_done();
    // Requests for rules about which the hub has not sent anything.
    for uid in &uids[..50] {
        session.request_content(&uid.as_str().into(), invented(0, 1000));
    }
    session.update(uids[50..].iter().map(|uid| wanted(uid, &[(1, content(1))])));
    let pairs = |from| {
        let stream_state = invented(from, 1000).into_iter();
        stream_state
            .map(|source| AckedIntent {
                source,
                revision: Revision([1; 16]),
            })
            .collect::<Vec<_>>()
    };
    for uid in &uids[50..] {
        session.detail(&uid.as_str().into(), pairs(0), false);
    }
    assert!(
        session.used_bytes() > limit / 2 && session.used_bytes() <= limit,
        "{}",
        session.used_bytes()
    );
    // The hub sends: requests that wait for nothing are dropped, and there is room again.
    session.update(
        uids[..50]
            .iter()
            .map(|uid| (uid.as_str().into(), Directive::Orphaned)),
    );
    let before = session.used_bytes();
    session.detail(&"r51".into(), pairs(5000), false);
    assert!(session.used_bytes() > before);
    // A repeated report uses no more memory.
    let kept = session.used_bytes();
    for _ in 0..100 {
        session.detail(&"r51".into(), pairs(5000), false);
    }
    assert_eq!(session.used_bytes(), kept);
}

#[test]
fn report_equal_to_the_plan_costs_no_memory() {
    let mut session = Session::default();
    session.hello(vec![RuleState {
        intents: 1,
        ..Agent::default().state(&"r".into())
    }]);
    session.hello_done();
    let items: Vec<_> = (0..200).map(|number| (number, content(1))).collect();
    session.update([wanted("r", &items)]);
    assert_eq!(session.take_questions().len(), 1);
    let pair = |source: SourceRef| AckedIntent {
        source,
        revision: Revision([9; 16]),
    };
    session.detail(
        &"r".into(),
        (0..200).map(|number| pair(source(number))).collect(),
        false,
    );
    assert_eq!(session.used_bytes(), 0);
    session.detail(
        &"r".into(),
        vec![pair(SourceRef::new("secrets", "else", "foreign"))],
        true,
    );
    assert!(session.used_bytes() == 0 || session.used_bytes() < 1000);
}

/// The reported intents of two rules: more long names of the first rule than the budget allows,
/// some of the second one, and one desired name of both.
struct LongReports {
    session: Session,
    stream_state: BTreeMap<RuleUid, BTreeMap<SourceRef, Revision>>,
}

impl LongReports {
    fn new() -> Self {
        let mut reports = Self {
            session: Session::default(),
            stream_state: BTreeMap::new(),
        };
        for rule in ["r", "s"] {
            let names = Self::foreign(rule).chain([source(1)]);
            let stream_state: BTreeMap<_, _> =
                names.map(|name| (name, Revision([1; 16]))).collect();
            let intents = u32::try_from(stream_state.len()).unwrap();
            reports.session.hello(vec![RuleState {
                intents,
                ..Agent::default().state(&rule.into())
            }]);
            reports.stream_state.insert(rule.into(), stream_state);
        }
        reports.session.hello_done();
        reports
    }

    fn foreign(rule: &str) -> impl Iterator<Item = SourceRef> {
        let long = "n".repeat(240);
        let numbers = if rule == "r" {
            0..100_000
        } else {
            100_000..100_100
        };
        numbers
            .map(move |number| SourceRef::new("configmaps", &long, &format!("{long}{number:010}")))
    }

    fn assignment(rule: &str) -> ClusterAssignment {
        let judged = GuardDecision::passing(Self::foreign(rule).map(Item::Source));
        ClusterAssignment {
            judged,
            ..share_of(rule, false, &[(1, content(1))])
        }
    }

    /// Runs until neither side has a frame left. Returns whether the snapshot has ended.
    fn settle(&mut self) -> bool {
        for _ in 0..10_000 {
            let questions = self.session.take_questions();
            let asked = !questions.is_empty();
            for uid in questions {
                let stream_state = self.stream_state[&uid].iter();
                let pairs: Vec<_> = stream_state
                    .map(|(s, r)| AckedIntent {
                        source: s.clone(),
                        revision: *r,
                    })
                    .collect();
                let last = pairs.len().div_ceil(5000) - 1;
                for (number, part) in pairs.chunks(5000).enumerate() {
                    self.session.detail(&uid, part.to_vec(), number == last);
                    assert!(self.session.used_bytes() <= 64 * 1024 * 1024);
                }
            }
            let mut sent = false;
            while let Some(batch) = self.session.next_batch() {
                sent = true;
                for delta in &batch.rules {
                    for gone in &delta.tombstones {
                        self.stream_state
                            .get_mut(&delta.uid)
                            .unwrap()
                            .remove(&gone.source);
                    }
                }
                self.session.ack(batch.nonce);
            }
            if !asked && !sent {
                return self.session.take_snapshot_end().is_some();
            }
        }
        panic!("it does not come to rest");
    }

    fn left(&self) -> Vec<usize> {
        self.stream_state.values().map(BTreeMap::len).collect()
    }
}

#[test]
fn report_beyond_the_budget_is_taken_in_parts() {
    let mut reports = LongReports::new();
    for rule in ["r", "s"] {
        reports.session.update([(
            rule.into(),
            Directive::Assigned(LongReports::assignment(rule)),
        )]);
    }
    assert!(reports.settle());
    assert_eq!(reports.left(), [1, 1]);
}

#[test]
fn report_without_room_is_taken_when_there_is_room() {
    let mut reports = LongReports::new();
    // The removal of the first rule's intents is not decided yet.
    let unjudged = share_of("r", false, &[(1, content(1))]);
    reports
        .session
        .update([("r".into(), Directive::Assigned(unjudged))]);
    reports.session.update([(
        "s".into(),
        Directive::Assigned(LongReports::assignment("s")),
    )]);
    reports.settle();
    assert_eq!(reports.left(), [100_001, 101]);
    reports.session.update([(
        "r".into(),
        Directive::Assigned(LongReports::assignment("r")),
    )]);
    reports.settle();
    assert_eq!(reports.left(), [1, 1]);
}

#[test]
fn rules_beyond_the_limit_wait_for_room() {
    let mut session = Session::default();
    session.hello_done();
    let directives: Vec<_> = (0..RULES_LIMIT + 3)
        .map(|number| wanted(&format!("r{number:05}"), &[]))
        .collect();
    session.update(directives.clone());
    let last = |uids: &[usize]| -> BTreeSet<RuleUid> {
        uids.iter().map(|n| format!("r{n:05}").into()).collect()
    };
    assert_eq!(session.acked_rules().count(), RULES_LIMIT);
    assert_eq!(
        session.take_over_limit_change(),
        Some(last(&[RULES_LIMIT, RULES_LIMIT + 1, RULES_LIMIT + 2]))
    );
    assert_eq!(session.take_over_limit_change(), None);
    assert!(session.over_limit_with_room().is_empty());
    // One pending rule is deleted, and one sent rule: it uses a slot until the agent has removed
    // it.
    let deleted = [
        (directives[RULES_LIMIT].0.clone(), Directive::Orphaned),
        unwanted("r00007"),
    ];
    session.update(deleted);
    while let Some(batch) = session.next_batch() {
        session.ack(batch.nonce);
    }
    assert!(
        session.over_limit_with_room().is_empty() && session.acked_rules().count() == RULES_LIMIT
    );
    assert!(is_gone(&mut session, "r00007"));
    assert_eq!(
        session.over_limit_with_room(),
        [format!("r{:05}", RULES_LIMIT + 1).into()]
    );
    session.update([directives[RULES_LIMIT + 1].clone()]);
    assert_eq!(
        session.take_over_limit_change(),
        Some(last(&[RULES_LIMIT + 2]))
    );
    assert_eq!(session.acked_rules().count(), RULES_LIMIT);
}

#[test]
fn left_out_rules_free_no_room() {
    let mut session = Session::default();
    session.hello_done();
    assert!(session.is_free_of(&"r".into(), 0));
    session.leave_out_rules(1);
    assert!(!session.is_free_of(&"r".into(), 0));
}

fn unwanted(uid: &str) -> (RuleUid, Directive) {
    (uid.into(), Directive::Removed(DeletionPolicy::Delete))
}

fn is_gone(session: &mut Session, uid: &str) -> bool {
    session.record_removed(&uid.into(), u64::MAX)
}

#[test]
fn removing_rule_waits_for_the_report_of_the_new_owner() {
    let mut agent = Agent::default();
    let mut session = agent.connect();
    session.update([
        wanted("old", &[(1, content(1))]),
        wanted("new", &[(2, content(2))]),
    ]);
    agent.drain(&mut session);
    // While the agent is disconnected, the source moves to the other rule: the pairs of both are
    // requested.
    let mut again = agent.connect();
    again.update([
        wanted("old", &[]),
        wanted("new", &[(1, content(1)), (2, content(2))]),
    ]);
    let questions = again.take_questions();
    assert_eq!(questions.len(), 2);
    let pair = |source, text| AckedIntent {
        source,
        revision: Revision([text; 16]),
    };
    again.detail(&"old".into(), vec![pair(source(1), 1)], true);
    assert!(
        again.next_batch().is_none(),
        "the taker's account is not in"
    );
    again.detail(&"new".into(), vec![pair(source(2), 2)], true);
    let batch = again.next_batch().unwrap();
    assert_eq!(
        batch
            .rules
            .iter()
            .map(|delta| (delta.upserts.len(), delta.tombstones.len()))
            .max(),
        Some((1, 0))
    );
    assert!(batch.rules.iter().any(|delta| delta.tombstones.len() == 1));
}

#[test]
fn copy_that_changes_hands_goes_with_the_upsert_of_the_heir() {
    let (former, heir) = (RuleUid::from("former"), RuleUid::from("heir"));
    let claimed = share_of("heir", false, &[(1, content(2))]);
    let claim = PendingClaim::new(heir.clone(), claimed.authorized.clone(), None);
    let claims: Arc<[PendingClaim]> = Arc::new([claim]);
    for is_whole in [false, true] {
        let mut agent = Agent::default();
        let mut session = agent.connect();
        session.update([wanted("former", &[(1, content(1)), (2, content(1))])]);
        agent.drain(&mut session);
        let kept = if is_whole {
            vec![]
        } else {
            vec![(2, content(1))]
        };
        let without = share_of("former", false, &kept);
        let directive = |claims: &Arc<[PendingClaim]>| match (is_whole, claims.is_empty()) {
            (true, true) => Directive::Removed(DeletionPolicy::Delete),
            (true, false) => Directive::AwaitingHandover(DeletionPolicy::Delete, claims.clone()),
            (false, _) => Directive::Assigned(ClusterAssignment {
                claims: claims.clone(),
                ..without.clone()
            }),
        };
        session.update([(former.clone(), directive(&claims))]);
        assert!(session.next_batch().is_none());
        assert!(session.take_orphaned_intents().is_empty());
        assert!(session.handovers().contains(&former));
        // The wave comes. The order of the directives does not matter.
        session.update([
            (former.clone(), directive(&Arc::default())),
            (heir.clone(), Directive::Assigned(claimed.clone())),
        ]);
        let batch = session.next_batch().unwrap();
        let of = |uid: &RuleUid| batch.rules.iter().find(|delta| delta.uid == *uid).unwrap();
        assert_eq!(of(&heir).upserts.len(), 1);
        assert_eq!(of(&former).removal.is_some(), is_whole);
        assert_eq!(of(&former).tombstones.len(), usize::from(!is_whole));
        assert!(!session.handovers().contains(&former));
        // The agent has the copy of the heir already: nothing waits for a later wave of it.
        let mut session = Agent::default().connect();
        session.update([
            wanted("former", &[(1, content(1))]),
            wanted("heir", &[(1, content(2))]),
        ]);
        while session.next_batch().is_some() {}
        session.update([
            (heir.clone(), Directive::AwaitingWave(claimed.clone())),
            (former.clone(), directive(&claims)),
        ]);
        let batch = session.next_batch().unwrap();
        let delta = &batch.rules[0];
        assert!(delta.removal.is_some() || !delta.tombstones.is_empty());
    }
}

#[test]
fn order_waits_for_the_heir_of_copies_that_the_agent_has() {
    let (former, claimed) = (
        RuleUid::from("former"),
        share_of("heir", false, &[(1, content(2))]),
    );
    let claim = PendingClaim::new("heir".into(), claimed.authorized.clone(), None);
    for (name, stays) in [(1, true), (2, false)] {
        let mut agent = Agent::default();
        let mut session = agent.connect();
        session.update([wanted("former", &[(name, content(1))])]);
        agent.drain(&mut session);
        // The hub knows the names of the copies from the agent alone.
        let mut session = agent.connect();
        let order = Directive::AwaitingHandover(DeletionPolicy::Delete, [claim.clone()].into());
        session.update([(former.clone(), order)]);
        agent.drain(&mut session);
        assert_eq!(agent.rules.contains_key(&former), stays);
    }
}

#[test]
fn prune_approval_is_sent_once_and_again_after_a_lapse() {
    let digest = |name| PruneDigest([name; 16]);
    let assignment = |suspend, name: Option<u8>| {
        let assignment = share_of("r", suspend, &[(1, content(1))]);
        let judged = name.map_or_else(
            || assignment.judged.clone(),
            |name| GuardDecision::passing([Item::Prune("one".into(), digest(name))]),
        );
        ClusterAssignment {
            judged,
            ..assignment
        }
    };
    let message = |session: &mut Session| {
        let batches = std::iter::from_fn(|| session.next_batch());
        batches
            .flat_map(|batch| batch.rules)
            .filter_map(|delta| delta.prune)
            .collect::<Vec<_>>()
    };
    let uid = RuleUid::from("r");
    let mut agent = Agent::default();
    let mut session = agent.connect();
    session.update([(uid.clone(), Directive::Assigned(assignment(false, None)))]);
    agent.drain(&mut session);
    session.update([(uid.clone(), Directive::Assigned(assignment(true, Some(1))))]);
    assert!(message(&mut session).is_empty(), "it is suspended");
    for (name, directive) in [
        (1, Directive::Assigned(assignment(false, Some(1)))),
        (2, Directive::Cordoned(assignment(false, Some(2)))),
    ] {
        assert!(!session.pending_prune_changed(&uid, Some(digest(name))));
        session.update([(uid.clone(), directive.clone())]);
        assert_eq!(message(&mut session).len(), 1);
        session.update([(uid.clone(), directive)]);
        assert!(message(&mut session).is_empty(), "it is said once");
    }
    // The agent requests that again, then something else, and then that again, which nothing has
    // canceled.
    assert!(!session.pending_prune_changed(&uid, Some(digest(2))));
    assert!(!session.pending_prune_changed(&uid, Some(digest(3))));
    assert!(session.pending_prune_changed(&uid, Some(digest(2))));
    session.update([(uid.clone(), Directive::Cordoned(assignment(false, Some(2))))]);
    assert_eq!(message(&mut session), [digest(2)]);
    assert!(
        !session.pending_prune_changed(&uid, None)
            && !session.pending_prune_changed(&uid, Some(digest(4)))
    );
    // Canceled before it was sent.
    session.update([(uid.clone(), Directive::Assigned(assignment(false, Some(4))))]);
    session.update([(uid.clone(), Directive::Assigned(assignment(false, None)))]);
    assert!(message(&mut session).is_empty());
    // It was judged with terms that the cordoned cluster has not received.
    session.update([(uid.clone(), Directive::Assigned(assignment(true, None)))]);
    assert!(message(&mut session).is_empty());
    session.update([(uid, Directive::Cordoned(assignment(false, Some(5))))]);
    assert!(message(&mut session).is_empty());
}

#[test]
fn repeated_prune_approval_precedes_the_snapshot_end() {
    let digest = |name| PruneDigest([name; 16]);
    let assignment = share_of("r", false, &[(1, content(1))]);
    let letting = |name| ClusterAssignment {
        judged: GuardDecision::passing([Item::Prune("one".into(), digest(name))]),
        ..assignment.clone()
    };
    let message = |session: &mut Session| {
        let batches = std::iter::from_fn(|| session.next_batch());
        batches
            .flat_map(|batch| batch.rules)
            .filter_map(|delta| delta.prune)
            .collect::<Vec<_>>()
    };
    let uid = RuleUid::from("r");
    let asks = |name| runnel_proto::model::NamespacePrunes {
        copies: 1,
        digest: digest(name),
        namespaces: vec![],
    };
    for (first, again) in [(Some(1), false), (Some(2), true), (None, true)] {
        let mut session = Session::default();
        let state = RuleState {
            namespace_prunes: first.map(asks),
            ..Agent::default().state(&uid)
        };
        session.hello(vec![state]);
        session.hello_done();
        session.update([(uid.clone(), Directive::Assigned(letting(1)))]);
        assert_eq!(message(&mut session), [digest(1)]);
        assert_eq!(
            session.pending_prune_changed(&uid, Some(digest(1))),
            again,
            "{first:?}"
        );
        session.update([(uid.clone(), Directive::Assigned(letting(1)))]);
        assert_eq!(message(&mut session).len(), usize::from(again));
        assert!(
            !session.pending_prune_changed(&uid, Some(digest(1))),
            "{first:?}"
        );
    }
}

#[test]
fn approved_prune_still_waiting_is_judged_after_the_snapshot() {
    let digest = |name| PruneDigest([name; 16]);
    let assignment = share_of("r", false, &[(1, content(1))]);
    let letting = |name| ClusterAssignment {
        judged: GuardDecision::passing([Item::Prune("one".into(), digest(name))]),
        ..assignment.clone()
    };
    let uid = RuleUid::from("r");
    let mut session = Agent::default().connect();
    // With unconfirmed terms an agent removes nothing, and requests the same until the snapshot
    // ends.
    session.update([(uid.clone(), Directive::Assigned(letting(1)))]);
    while let Some(batch) = session.next_batch() {
        session.ack(batch.nonce);
    }
    assert!(!session.prune_approval_consumed(&uid, digest(1)));
    assert!(session.take_snapshot_end().is_some());
    assert!(
        !session.prune_approval_consumed(&uid, digest(1)),
        "that end may be under way"
    );
    session.update([(uid.clone(), Directive::Assigned(letting(2)))]);
    let batch = session.next_batch().unwrap();
    assert!(
        !session.prune_approval_consumed(&uid, digest(2)),
        "what the agent says now it said before it heard"
    );
    session.ack(batch.nonce);
    assert!(
        !session.prune_approval_consumed(&uid, digest(1)),
        "that is another set, and judged as such"
    );
    assert!(session.prune_approval_consumed(&uid, digest(2)));
    assert!(!session.prune_approval_consumed(&uid, digest(2)), "once");
    // It was judged, and passed again.
    session.update([(uid.clone(), Directive::Assigned(letting(2)))]);
    assert_eq!(
        session.next_batch().unwrap().rules[0].prune,
        Some(digest(2))
    );
    assert!(!session.prune_approval_consumed(&uid, digest(2)));
}

#[test]
fn headings_of_many_rules_are_sent_in_bounded_batches() {
    // Small messages share a batch; a large one may exceed the limit alone.
    for (rules, names, least) in [(200, 8, 10), (40, 200, 1)] {
        let mut session = Agent::default().connect();
        for number in 0..rules {
            let uid = format!("r{number}");
            let assignment = share_of(&uid, false, &[]);
            let names = (0..names)
                .map(|n| Pattern::new(format!("{n:0250}")))
                .collect();
            let choice = NamespaceChoice {
                names,
                ..NamespaceChoice::default()
            };
            let terms = Terms {
                namespaces: Some(choice),
                ..Terms::clone(assignment.terms())
            };
            let directive = Directive::Assigned(with_terms(assignment, terms));
            session.update([(uid.as_str().into(), directive)]);
        }
        let (mut seen, mut batches) = (0, 0);
        while let Some(batch) = session.next_batch() {
            let wire = runnel_proto::convert::hub_frame_to_wire(&HubFrame::Batch(batch.clone()));
            let size = prost::Message::encoded_len(&wire);
            let heading = names * 256 + 512;
            assert!(
                size <= super::outbox::BATCH_BYTES + heading,
                "{size} bytes with headings of {heading}"
            );
            assert!(
                batch.rules.len() >= least || seen + batch.rules.len() == rules,
                "{} rules",
                batch.rules.len()
            );
            (seen, batches) = (seen + batch.rules.len(), batches + 1);
            session.ack(batch.nonce);
        }
        assert_eq!(seen, rules);
        assert!(batches > 2, "all in {batches} batches");
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// The directive about a rule: items as (source, text); text 0 means unreadable.
    Wanted {
        rule: u8,
        items: BTreeMap<u8, u8>,
        suspend: bool,
    },
    Unwanted(u8),
    OrphanedCopies(u8),
    /// The rule is suspended and does not choose the cluster.
    AckedSet(u8),
    /// The cluster is cordoned.
    Cordoned(u8, BTreeMap<u8, u8>),
    /// The grants of the rule are unknown.
    Unknown(u8),
    /// The cluster's turn in a rollout has not come.
    Awaits(u8, BTreeMap<u8, u8>, bool),
    /// The rule is rolled back. Sends this many batches.
    Send(u8),
    Answer,
    Reconnect,
}

fn step() -> impl Strategy<Value = Step> {
    let items = proptest::collection::btree_map(0..4u8, 0..4u8, 0..4);
    prop_oneof![
        4 => (0..3u8, items.clone(), proptest::bool::weighted(0.1)).prop_map(|(rule, items, suspend)| Step::Wanted { rule, items, suspend }),
        1 => (0..3u8).prop_map(Step::Unwanted),
        1 => (0..3u8).prop_map(Step::OrphanedCopies),
        1 => (0..3u8).prop_map(Step::AckedSet),
        2 => (0..3u8, items.clone()).prop_map(|(rule, items)| Step::Cordoned(rule, items)),
        2 => (0..3u8, items.clone(), any::<bool>()).prop_map(|(rule, items, suspend)| Step::Awaits(rule, items, suspend)),
        1 => (0..3u8).prop_map(Step::Unknown),
        3 => (1..3u8).prop_map(Step::Send),
        2 => Just(Step::Answer),
        1 => Just(Step::Reconnect),
    ]
}

fn directive(rule: u8, items: &BTreeMap<u8, u8>, suspend: bool) -> Directive {
    let items: Vec<_> = items
        .iter()
        .map(|(s, t)| {
            (
                *s,
                if *t == 0 {
                    SourceState::Unreadable
                } else {
                    content(*t)
                },
            )
        })
        .collect();
    Directive::Assigned(share_of(&format!("r{rule}"), suspend, &items))
}

fn answer(agent: &Agent, session: &mut Session) {
    for uid in session.take_questions() {
        let pairs = agent.rules.get(&uid).into_iter().flatten();
        let pairs = pairs.map(|(source, revision)| AckedIntent {
            source: source.clone(),
            revision: *revision,
        });
        session.detail(&uid, pairs.collect(), true);
    }
}

/// Every removal must be justified: at the moment of sending, the newest directive of the rule must
/// be decided about the source and not contain it.
fn warranted(batch: &Batch, directives: &BTreeMap<RuleUid, Directive>) -> bool {
    batch
        .rules
        .iter()
        .all(|delta| match directives.get(&delta.uid) {
            Some(Directive::Assigned(assignment)) => {
                let fits = |source: &SourceRef| {
                    assignment.content(source).is_none() && !assignment.is_unknown(source)
                };
                delta.removal.is_none()
                    && delta
                        .tombstones
                        .iter()
                        .all(|tombstone| fits(&tombstone.source))
            }
            Some(Directive::Removed(_)) => true,
            Some(Directive::Cordoned(assignment)) => {
                let fits = |source: &SourceRef| {
                    assignment.content(source).is_none() && !assignment.is_unknown(source)
                };
                let nothing_new =
                    delta.terms.is_none() && delta.upserts.is_empty() && delta.removal.is_none();
                nothing_new
                    && delta
                        .tombstones
                        .iter()
                        .all(|tombstone| fits(&tombstone.source))
            }
            // The suspension is sent.
            Some(Directive::AwaitingWave(assignment)) => {
                let no_items = delta.upserts.is_empty()
                    && delta.tombstones.is_empty()
                    && delta.removal.is_none();
                no_items
                    && delta.terms.is_none()
                    && delta
                        .suspend
                        .is_none_or(|suspend| suspend == assignment.terms().suspend)
            }
            Some(
                Directive::Unknown | Directive::RemovalBlocked | Directive::AwaitingHandover(..),
            ) => {
                delta.terms.is_none()
                    && delta.upserts.is_empty()
                    && delta.tombstones.is_empty()
                    && delta.removal.is_none()
            }
            Some(Directive::Suspended(_) | Directive::Orphaned) | None => {
                delta.removal.is_none() && delta.tombstones.is_empty()
            }
        })
}

#[test]
fn suspension_is_sent_before_the_turn_of_a_cluster() {
    let items = [(1, content(1))];
    let edited = |suspend: bool| {
        let assignment = share_of("r", suspend, &[(1, content(2))]);
        let terms = Terms {
            deletion_policy: DeletionPolicy::Retain,
            ..Terms::clone(assignment.terms())
        };
        with_terms(assignment, terms)
    };
    let uid = RuleUid::from("r");
    let directive = Directive::AwaitingWave;
    for by_terms in [false, true] {
        let mut agent = Agent::default();
        let mut session = agent.connect();
        session.update([(
            "r".into(),
            Directive::Assigned(share_of("r", false, &items)),
        )]);
        agent.drain(&mut session);
        let terms = agent.terms[&uid];
        // The rule is suspended, with uniform plans or during a rollout.
        let is_suspended = share_of("r", true, &items);
        session.update([(
            "r".into(),
            if by_terms {
                Directive::Assigned(is_suspended)
            } else {
                directive(is_suspended)
            },
        )]);
        agent.drain(&mut session);
        let sent_terms = agent.terms[&uid];
        assert!(agent.is_suspended[&uid] && (sent_terms != terms) == by_terms);
        // An edit of a suspended rule is sent to no agent before the rule resumes.
        session.update([("r".into(), directive(edited(true)))]);
        agent.drain(&mut session);
        // Also if the report arrives at the end, or while the agent was disconnected.
        for reconnects in [false, true] {
            let mut agent = agent.clone();
            let mut session = agent.connect();
            if !reconnects {
                session.update([("r".into(), directive(edited(true)))]);
            }
            session.update([("r".into(), directive(edited(false)))]);
            agent.drain(&mut session);
            assert_eq!(
                (agent.is_suspended[&uid], agent.terms[&uid], agent.upserts),
                (false, sent_terms, 1)
            );
            let mut again = agent.connect();
            again.update([("r".into(), directive(edited(false)))]);
            assert!(again.next_batch().is_none(), "once");
            // The same terms with another suspension are sent again.
            for suspend in [true, false] {
                again.update([(
                    "r".into(),
                    Directive::Assigned(share_of("r", suspend, &items)),
                )]);
                agent.drain(&mut again);
                assert_eq!(agent.is_suspended[&uid], suspend);
            }
            assert_eq!((agent.terms[&uid], agent.upserts), (terms, 1));
        }
    }
}

#[test]
fn rollback_removes_created_copies_and_restores_the_rest() {
    let former = share_of("r", false, &[(1, content(1)), (2, content(1))]);
    let failed = share_of("r", false, &[(1, content(2)), (3, content(1))]);
    let rollback = || ClusterAssignment {
        // The guard passes nothing.
        judged: Arc::default(),
        rolled_back: Some(failed.plan().clone()),
        ..former.clone()
    };
    for reconnects in [false, true] {
        let mut agent = Agent::default();
        let mut session = agent.connect();
        session.update([("r".into(), Directive::Assigned(former.clone()))]);
        agent.drain(&mut session);
        session.update([("r".into(), Directive::Assigned(failed.clone()))]);
        agent.drain(&mut session);
        assert_eq!(agent.removed, [("r".into(), source(2))]);
        // A former copy with a blocked removal.
        agent
            .rules
            .get_mut(&"r".into())
            .unwrap()
            .insert(source(4), Revision([1; 16]));
        if reconnects {
            session = agent.connect();
        } else {
            session.resync(vec![agent.state(&"r".into())]);
        }
        agent.removed.clear();
        session.update([("r".into(), Directive::AwaitingWave(rollback()))]);
        agent.drain(&mut session);
        assert!(
            agent.removed.is_empty() && agent.rules[&"r".into()][&source(1)] == Revision([2; 16])
        );
        session.update([("r".into(), Directive::Assigned(rollback()))]);
        agent.drain(&mut session);
        let one = Revision([1; 16]);
        assert_eq!(
            agent.rules[&"r".into()],
            BTreeMap::from([(source(1), one), (source(2), one), (source(4), one)])
        );
        assert_eq!(agent.removed, [("r".into(), source(3))]);
    }
}

#[test]
fn cluster_awaiting_its_turn_is_sent_only_what_it_has() {
    let mut agent = Agent::default();
    let mut session = agent.connect();
    let awaits = |items: &[(u8, SourceState)]| {
        [(
            "r".into(),
            Directive::AwaitingWave(share_of("r", false, items)),
        )]
    };
    session.update(awaits(&[(1, content(1))]));
    agent.drain(&mut session);
    assert_eq!(agent.upserts, 0, "what is new waits, too");
    session.update([wanted("r", &[(1, content(1)), (2, content(2))])]);
    agent.drain(&mut session);
    assert_eq!(agent.upserts, 2);
    // One source is edited, one removed, one added.
    let next = [(1, content(9)), (3, content(3))];
    session.update(awaits(&next));
    agent.drain(&mut session);
    assert_eq!((agent.upserts, agent.removed.len()), (2, 0));
    // Pending content is withdrawn, too.
    session.update([wanted("r", &next)]);
    session.update(awaits(&next));
    agent.drain(&mut session);
    assert_eq!((agent.upserts, agent.removed.len()), (2, 0));

    // After a restart of the hub: intents that are still desired are sent again when the agent
    // requests them.
    let mut again = agent.connect();
    let edited = [(1, content(9)), (2, content(2))];
    again.update(awaits(&edited));
    again.request_content(&"r".into(), vec![source(1), source(2)]);
    agent.drain(&mut again);
    assert_eq!((agent.upserts, agent.removed.len()), (3, 0));
    assert!(again.take_snapshot_end().is_some());
    // The cluster's wave begins.
    again.update([wanted("r", &edited)]);
    agent.drain(&mut again);
    assert_eq!(agent.upserts, 4);
}

#[test]
fn copies_in_a_cordoned_cluster_are_kept_as_they_are() {
    let mut agent = Agent::default();
    let mut session = agent.connect();
    let cordoned = |items: &[(u8, SourceState)]| {
        [("r".into(), Directive::Cordoned(share_of("r", false, items)))]
    };
    session.update([wanted("r", &[(1, content(1)), (2, content(2))])]);
    agent.drain(&mut session);
    session.update(cordoned(&[(1, content(9)), (3, content(3))]));
    agent.drain(&mut session);
    assert_eq!((agent.upserts, agent.removed.len()), (2, 1));
    // The agent's own content is sent again on request, new content is not.
    session.request_content(&"r".into(), vec![source(1)]);
    agent.drain(&mut session);
    assert_eq!(agent.upserts, 2);
    session.update(cordoned(&[(1, content(1)), (3, content(3))]));
    session.request_content(&"r".into(), vec![source(1), source(3)]);
    agent.drain(&mut session);
    assert_eq!(agent.upserts, 3);
    let mut again = agent.connect();
    again.update(cordoned(&[(1, content(9))]));
    agent.drain(&mut again);
    assert!(agent.upserts == 3 && again.take_snapshot_end().is_some());
    again.update([wanted("r", &[(1, content(9)), (3, content(3))])]);
    agent.drain(&mut again);
    assert_eq!(agent.upserts, 5);
}

#[test]
fn copies_in_a_cordoned_cluster_stay_for_an_unknown_rule() {
    let mut agent = Agent::default();
    let mut session = agent.connect();
    session.update([wanted("r", &[(1, content(1))])]);
    agent.drain(&mut session);
    session.update([("r".into(), Directive::Orphaned)]);
    agent.drain(&mut session);
    session.update([("r".into(), Directive::Cordoned(share_of("r", false, &[])))]);
    answer(&agent, &mut session);
    session.update([("r".into(), Directive::Orphaned)]);
    agent.drain(&mut session);
    assert_eq!(agent.rules[&RuleUid::from("r")].len(), 1);
}

#[test]
fn order_that_was_never_sent_is_dropped_with_an_orphaned_rule() {
    let mut agent = Agent::default();
    let mut session = agent.connect();
    session.update([wanted("r", &[])]);
    session.update([("r".into(), Directive::Orphaned)]);
    agent.drain(&mut session);
    assert!(agent.rules.is_empty(), "{:?}", agent.rules);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn any_history_ends_in_the_desired_state(steps in proptest::collection::vec(step(), 1..40)) {
        let mut agent = Agent::default();
        let mut session = agent.connect();
        let mut directives: BTreeMap<RuleUid, Directive> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Wanted { rule, items, suspend } => {
                    let directive = directive(rule, &items, suspend);
                    directives.insert(format!("r{rule}").into(), directive.clone());
                    session.update([(format!("r{rule}").into(), directive)]);
                }
                Step::Unwanted(rule) => {
                    let directive = Directive::Removed(DeletionPolicy::Delete);
                    directives.insert(format!("r{rule}").into(), directive.clone());
                    session.update([(format!("r{rule}").into(), directive)]);
                }
                Step::OrphanedCopies(rule) => {
                    directives.insert(format!("r{rule}").into(), Directive::Orphaned);
                    session.update([(format!("r{rule}").into(), Directive::Orphaned)]);
                }
                Step::AckedSet(rule) => {
                    let directive = Directive::Suspended(share_of(&format!("r{rule}"), true, &[]));
                    directives.insert(format!("r{rule}").into(), directive.clone());
                    session.update([(format!("r{rule}").into(), directive)]);
                }
                Step::Cordoned(rule, items) => {
                    let Directive::Assigned(assignment) = directive(rule, &items, false) else { unreachable!() };
                    let directive = Directive::Cordoned(assignment);
                    directives.insert(format!("r{rule}").into(), directive.clone());
                    session.update([(format!("r{rule}").into(), directive)]);
                }
                Step::Awaits(rule, items, suspend) => {
                    let Directive::Assigned(assignment) = directive(rule, &items, suspend) else { unreachable!() };
                    let directive = Directive::AwaitingWave(assignment);
                    directives.insert(format!("r{rule}").into(), directive.clone());
                    session.update([(format!("r{rule}").into(), directive)]);
                }
                Step::Unknown(rule) => {
                    let directive = if rule % 2 == 0 { Directive::Unknown } else { Directive::RemovalBlocked };
                    directives.insert(format!("r{rule}").into(), directive.clone());
                    session.update([(format!("r{rule}").into(), directive)]);
                }
                Step::Send(count) => for _ in 0..count {
                    let Some(batch) = session.next_batch() else { break };
                    prop_assert!(warranted(&batch, &directives));
                    agent.take(&batch);
                    session.ack(batch.nonce);
                },
                Step::Answer => {
                    answer(&agent, &mut session);
                    for (uid, batch) in std::mem::take(&mut agent.gone) {
                        session.record_removed(&uid, batch);
                    }
                }
                Step::Reconnect => {
                    agent.gone.clear();
                    session = agent.connect();
                    session.update(directives.clone());
                }
            }
        }
        agent.drain(&mut session);
        for (uid, directive) in &directives {
            let stream_state = agent.rules.get(uid).cloned().unwrap_or_default();
            if let Directive::Assigned(assignment) | Directive::AwaitingWave(assignment) = directive {
                let is_suspended = agent.is_suspended.get(uid).filter(|_| !agent.orphaned.contains(uid));
                prop_assert!(is_suspended.is_none_or(|is_suspended| *is_suspended == assignment.terms().suspend), "{} rests: {:?}", uid, is_suspended);
            }
            match directive {
                Directive::Assigned(assignment) if !assignment.terms().suspend => {
                    for (source, content) in assignment.intents() {
                        prop_assert_eq!(stream_state.get(source), Some(&content.revision), "{} {}", uid, source);
                    }
                    let surplus = stream_state.keys().filter(|source| assignment.content(source).is_none());
                    prop_assert!(surplus.clone().all(|source| assignment.is_unknown(source)), "{} holds {:?}", uid, surplus.collect::<Vec<_>>());
                    prop_assert_eq!(agent.terms.get(uid), Some(&assignment.terms().digest));
                }
                Directive::Cordoned(assignment) => {
                    let surplus = stream_state.keys().filter(|source| assignment.content(source).is_none());
                    prop_assert!(surplus.clone().all(|source| assignment.is_unknown(source)), "{} holds {:?}", uid, surplus.collect::<Vec<_>>());
                }
                Directive::Removed(_) => prop_assert!(stream_state.is_empty(), "{} holds {:?}", uid, stream_state),
                _ => {}
            }
        }
        // Both sides agree on the account, so the agent can check the end of a snapshot.
        let mut fresh = agent.connect();
        fresh.update(directives.clone());
        agent.drain(&mut fresh);
        let end = fresh.take_snapshot_end();
        prop_assert!(end.is_some());
        let mut digest = SetDigest::default();
        let known = agent.rules.iter().filter(|(uid, _)| !agent.orphaned.contains(*uid));
        for (_, pairs) in known {
            digest.merge(pairs.iter().collect());
        }
        prop_assert_eq!(end.unwrap().digest, digest);
    }
}

#[test]
fn found_copies_of_more_rules_than_a_session_keeps_are_left_out() {
    let mut session = Session::default();
    session.hello_done();
    let state = |number: usize| RuleState {
        intents: 1,
        ..RuleState::new(format!("r{number:05}").into())
    };
    assert_eq!(session.resync((0..RULES_LIMIT).map(state).collect()), 0);
    for _ in 0..3 {
        assert_eq!(
            session.resync((RULES_LIMIT - 1..RULES_LIMIT + 2).map(state).collect()),
            2
        );
    }
    assert_eq!(
        (session.acked_rules().count(), session.left_out_rules()),
        (RULES_LIMIT, 2)
    );
}

#[test]
fn found_copies_are_removed_or_sent_again_after_a_resync() {
    let mut agent = Agent::default();
    let mut session = agent.connect();
    let plan = || wanted("r", &[(1, content(1)), (2, content(2))]);
    session.update([plan()]);
    agent.drain(&mut session);
    agent.upserts = 0;
    // One intent with another desired state, one of a deselected source, and one of an unknown
    // rule.
    let unknown = Revision([0; 16]);
    agent
        .rules
        .entry("r".into())
        .or_default()
        .extend([(source(2), unknown), (source(3), unknown)]);
    agent
        .rules
        .entry("q".into())
        .or_default()
        .insert(source(1), unknown);
    session.resync(["r", "q"].map(|uid| agent.state(&uid.into())).into());
    session.update([plan(), ("q".into(), Directive::Orphaned)]);
    agent.drain(&mut session);
    assert_eq!(agent.removed, [("r".into(), source(3))]);
    assert_eq!(
        (agent.upserts, agent.rules[&"r".into()][&source(2)]),
        (1, Revision([2; 16]))
    );
    assert!(agent.orphaned.contains(&"q".into()));
    // All intents of a deleted rule are removed.
    agent
        .rules
        .entry("q".into())
        .or_default()
        .insert(source(4), unknown);
    session.resync(vec![agent.state(&"q".into())]);
    session.update([("q".into(), Directive::Removed(DeletionPolicy::Delete))]);
    agent.drain(&mut session);
    assert!(!agent.rules.contains_key(&"q".into()));
}

#[test]
fn copies_found_during_the_removal_of_their_rule_are_removed() {
    let mut agent = Agent::default();
    let mut session = agent.connect();
    session.update([wanted("r", &[(1, content(1))])]);
    agent.drain(&mut session);
    let removed = || ("r".into(), Directive::Removed(DeletionPolicy::Delete));
    session.update([removed()]);
    let batch = session.next_batch().unwrap();
    agent.take(&batch);
    session.ack(batch.nonce);
    // A copy of the rule is still being removed, so that it is not gone, and another one appears.
    agent.gone.clear();
    let found = agent.rules.entry("r".into()).or_default();
    found.insert(source(2), Revision([0; 16]));
    session.resync(vec![agent.state(&"r".into())]);
    session.update([removed()]);
    agent.drain(&mut session);
    assert!(!agent.rules.contains_key(&"r".into()));
}
