//! A model of the hub's index and session and the agent's core, pure: rules are created and deleted
//! in any order, among other events. After a rule is deleted and all work is done, no copy of it is
//! left.
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use runnel_proto::model::*;
use serde_json::json;

use runnel_agent_core::copy::CopyError;
use runnel_agent_core::decide::{DesiredObject as Written, Done, ExpectedObject, Job, Key, Work};
use runnel_agent_core::desired::{AgentLocation, Namespace};
use runnel_agent_core::live::{Live, Ownership, Sealed};
use runnel_agent_core::policy::{Facts, Policy};
use runnel_agent_core::reconciler::{Event, Reconciler, Setup};
use runnel_agent_core::records::Observed;
use runnel_hub_core::guard::DELAY;
use runnel_hub_core::index::{Cluster, Directive, Index, ReportedCopies, ScopeState};
use runnel_hub_core::now::Now;
use runnel_hub_core::plan::{Rule, RuleGrant, SourceContent, SourceState, WatchScope};
use runnel_hub_core::session::Session;

const NAMESPACE: &str = "team";
const CLUSTER: &str = "member";
const SOURCES: u8 = 2;

/// A step in the lives of rules.
#[derive(Clone, Debug)]
enum Step {
    /// A person creates a rule for one of the sources.
    Create(u8),
    /// The API server begins to work on the deletion of a rule: it reads its finalizers.
    BeginDelete(u8),
    /// It ends its oldest deletion, by the finalizers that it has read.
    EndDelete,
    /// The hub receives the oldest change of a rule.
    Watch,
    /// The hub processes a rule.
    Write(u8),
    /// The session reads claims from the index.
    Read,
    /// The hub's watch catches up.
    CatchUp,
    /// The hub sends the next batch.
    Send,
    /// The agent handles the oldest frame.
    Receive,
    /// The agent sends the next frame.
    Speak,
    /// The hub handles the oldest frame.
    Handle,
    /// A watch event reaches the agent.
    Deliver,
    /// The member's API server carries a request out and answers.
    Work,
    /// The API server handles a request, and the answer is lost.
    Lose,
    /// The agent starts the due jobs.
    GiveOut,
    /// The stream breaks, and another one begins.
    Reconnect,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..SOURCES).prop_map(Step::Create),
        4 => any::<u8>().prop_map(Step::BeginDelete),
        3 => Just(Step::EndDelete),
        5 => Just(Step::Watch),
        5 => any::<u8>().prop_map(Step::Write),
        3 => Just(Step::Read),
        3 => Just(Step::CatchUp),
        4 => Just(Step::Send),
        4 => Just(Step::Receive),
        4 => Just(Step::Speak),
        4 => Just(Step::Handle),
        4 => Just(Step::Deliver),
        5 => Just(Step::Work),
        1 => Just(Step::Lose),
        5 => Just(Step::GiveOut),
        1 => Just(Step::Reconnect),
    ];
    proptest::collection::vec(step, 0..150)
}

/// A rule in the hub's API.
#[derive(Clone, Debug)]
struct ApiRule {
    source: u8,
    has_finalizer: bool,
    is_deleting: bool,
}

/// The state of a rule's object in the hub.
struct Known {
    rule: ApiRule,
    /// The API server has deleted it past its finalizer.
    is_gone: bool,
}

struct World {
    now: Instant,
    created: usize,
    api: BTreeMap<RuleUid, ApiRule>,
    /// Deletions under way, each with whether a finalizer was read.
    deletions: VecDeque<(RuleUid, bool)>,
    /// The undelivered events of the hub's watch: a rule, and whether it was deleted.
    changes: VecDeque<(RuleUid, ApiRule, bool)>,
    known: BTreeMap<RuleUid, Known>,
    index: Index,
    session: Session,
    claims: Option<(Vec<(RuleUid, Directive)>, u64)>,
    down: VecDeque<HubFrame>,
    up: VecDeque<AgentFrame>,
    core: Reconciler,
    objects: BTreeMap<SourceRef, Live>,
    untold: VecDeque<Event>,
    under_way: VecDeque<Job>,
    version: u64,
}

fn source(number: u8) -> SourceRef {
    SourceRef::new("configmaps", NAMESPACE, &format!("s{number}"))
}

fn content() -> Content {
    let fields = BTreeMap::from([("data".to_owned(), json!({"k": "v"}))]);
    Content {
        fields,
        ..Content::default()
    }
}

fn rule(uid: &RuleUid, rule: &ApiRule, is_deleting: bool) -> Rule {
    let mut object = json!({
        "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionRule",
        "metadata": {"name": uid.as_str(), "namespace": NAMESPACE, "uid": uid.as_str(), "generation": 1},
        "spec": {
            "sources": [{"resources": ["configmaps"], "names": [format!("s{}", rule.source)]}],
            "clusters": {"all": true},
        },
    });
    if is_deleting {
        object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    }
    let object: runnel_api::DistributionRule = serde_json::from_value(object).expect("a rule");
    Rule::namespaced(&object, "runnel-system").expect("a rule")
}

fn index() -> Index {
    let spec = json!({
        "rules": {"namespaces": {"all": true}}, "resources": ["configmaps"], "clusters": {"all": true},
        "namespaces": {"all": true},
    });
    let grant = json!({
        "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionGrant", "metadata": {"name": "g"}, "spec": spec,
    });
    let grant = RuleGrant::read(&serde_json::from_value(grant).expect("a grant"));
    let mut index = Index::default();
    index.set_grants(Some(BTreeMap::from([("g".to_owned(), grant)])));
    index.set_scope(WatchScope::everywhere("configmaps"), ScopeState::Known);
    let cluster = Cluster {
        uid: "m".to_owned(),
        accepted: true,
        was_connected: true,
        ..Cluster::default()
    };
    index.set_cluster(CLUSTER.into(), cluster);
    for number in 0..SOURCES {
        let body = SourceContent::new(Revision([1; 16]), Payload::encode(content().to_bytes()));
        index.set_source(
            source(number),
            BTreeMap::new(),
            Some(SourceState::Read(Arc::new(body))),
        );
    }
    index.reset_removal_guards();
    index
}

fn core() -> Reconciler {
    let text = String::from;
    Reconciler::new(Setup {
        location: AgentLocation {
            namespace: text("runnel-system"),
            cluster_uid: text("m"),
        },
        hello: Hello {
            protocol_min: runnel_proto::PROTOCOL_MIN,
            protocol_max: runnel_proto::PROTOCOL_MAX,
            agent_version: text("0"),
            kubernetes_version: text("v1"),
            boot_id: text("b"),
            cluster_uid: text("m"),
        },
        stored: vec![],
        hub_cluster_uid: Some(text("h")),
        policy: Arc::new(Policy::open()),
        seed: 1,
    })
}

impl World {
    fn new() -> Self {
        let mut world = Self {
            now: Instant::now(),
            created: 0,
            api: BTreeMap::new(),
            deletions: VecDeque::new(),
            changes: VecDeque::new(),
            known: BTreeMap::new(),
            index: index(),
            session: Session::default(),
            claims: None,
            down: VecDeque::new(),
            up: VecDeque::new(),
            core: core(),
            objects: BTreeMap::new(),
            untold: VecDeque::new(),
            under_way: VecDeque::new(),
            version: 0,
        };
        world.deliver(Event::NamespacesListed);
        world.deliver(Event::Namespace(NAMESPACE.into(), Namespace::default()));
        world.deliver(Event::NamespacesComplete);
        for area in Policy::open().areas() {
            world.deliver(Event::CopiesListed(area.clone()));
            world.deliver(Event::CopiesComplete(area));
        }
        world.reconnect();
        world
    }

    fn deliver(&mut self, event: Event) {
        self.core.handle(event, self.now);
    }

    fn reconnect(&mut self) {
        self.down.clear();
        self.up.clear();
        self.claims = None;
        self.deliver(Event::HubLost);
        self.deliver(Event::HubConnected);
        self.session = Session::default();
        // The stream becomes a session only after the agent has reported its intents.
        while let Some(frame) = self.core.next_frame(self.now) {
            if let AgentFrame::AckedRules(rules, last) = frame {
                self.session.hello(rules);
                if last {
                    self.session.hello_done();
                }
            }
        }
        let begin = SnapshotBegin {
            protocol: runnel_proto::PROTOCOL_MAX,
            hub_id: "h".to_owned(),
            hub_cluster_uid: "h".to_owned(),
            behind: false,
            proof_key: None,
        };
        self.down.push_back(HubFrame::SnapshotBegin(begin));
        self.read();
        self.catch_up();
        let cluster = ClusterName::from(CLUSTER);
        let copies_there: Vec<_> = self.session.acked_rules().cloned().collect();
        let unknown = copies_there
            .into_iter()
            .filter(|uid| self.index.rules().get(uid).is_none());
        let claims: Vec<_> = unknown
            .map(|uid| (uid.clone(), self.index.directive(&uid, &cluster)))
            .collect();
        self.session.update(claims);
    }

    fn create(&mut self, source: u8) {
        self.created += 1;
        let uid = RuleUid::from(format!("r{}", self.created).as_str());
        let rule = ApiRule {
            source,
            has_finalizer: false,
            is_deleting: false,
        };
        self.api.insert(uid.clone(), rule.clone());
        self.changes.push_back((uid, rule, false));
    }

    fn begin_delete(&mut self, number: u8) {
        let alive: Vec<_> = self
            .api
            .iter()
            .filter(|(_, rule)| !rule.is_deleting)
            .collect();
        if let Some((uid, rule)) = alive.get(usize::from(number) % alive.len().max(1)) {
            self.deletions
                .push_back(((*uid).clone(), rule.has_finalizer));
        }
    }

    fn end_delete(&mut self) {
        let Some((uid, read_finalizer)) = self.deletions.pop_front() else {
            return;
        };
        if read_finalizer && let Some(rule) = self.api.get_mut(&uid) {
            rule.is_deleting = true;
            self.changes.push_back((uid, rule.clone(), false));
        } else if let Some(rule) = self.api.remove(&uid) {
            self.changes.push_back((uid, rule, true));
        }
    }

    fn set_rule(&mut self, uid: &RuleUid, of: &ApiRule, is_deleting: bool) {
        self.index.set_rule(rule(uid, of, is_deleting));
        let holds = |_: &RuleUid, _: &ClusterName| {
            Some(ReportedCopies {
                copies: 1,
                intents: 1,
                ..ReportedCopies::default()
            })
        };
        let judged = BTreeSet::from([uid.clone()]);
        let at = |instant| Now {
            instant,
            wall: jiff::Timestamp::UNIX_EPOCH,
        };
        self.index.judge(&judged, &holds, at(self.now));
        // Its namespace could have been deleted with it; no other event comes.
        self.index.judge(&judged, &holds, at(self.now + DELAY));
    }

    /// As the hub's watch of rules does it.
    fn watch(&mut self) {
        let Some((uid, rule, is_gone)) = self.changes.pop_front() else {
            return;
        };
        let is_known = self.index.rules().get(&uid).is_some();
        if is_gone && !(is_known && rule.has_finalizer && !rule.is_deleting) {
            self.known.remove(&uid);
            self.index.remove_rule(&uid);
            return;
        }
        if rule.has_finalizer || is_known {
            self.set_rule(&uid, &rule, rule.is_deleting || is_gone);
        }
        self.known.insert(uid, Known { rule, is_gone });
    }

    /// As the hub's writer does.
    fn write(&mut self, number: u8) {
        let uids: Vec<_> = self.known.keys().cloned().collect();
        let Some(uid) = uids.get(usize::from(number) % uids.len().max(1)) else {
            return;
        };
        let Some(Known { rule, is_gone }) = self.known.get(uid) else {
            return;
        };
        if !rule.is_deleting && !is_gone {
            let missing = self
                .api
                .get_mut(uid)
                .filter(|now| !now.has_finalizer && !now.is_deleting);
            if let Some(now) = missing.filter(|_| !rule.has_finalizer) {
                now.has_finalizer = true;
                self.changes.push_back((uid.clone(), now.clone(), false));
            }
            return;
        }
        let version = self.index.rules().version_of(uid).unwrap_or_default();
        if !self.index.rules().is_removal_allowed(uid) || !self.session.is_free_of(uid, version) {
            return;
        }
        if *is_gone {
            self.known.remove(uid);
            self.index.remove_rule(uid);
        } else if let Some(rule) = self.api.remove(uid) {
            self.changes.push_back((uid.clone(), rule, true));
        }
    }

    fn read(&mut self) {
        if self.claims.is_none() {
            self.claims = Some(
                self.index
                    .directives_since(&CLUSTER.into(), self.session.version()),
            );
        }
    }

    fn catch_up(&mut self) {
        if let Some((claims, version)) = self.claims.take() {
            self.session.catch_up(claims, version);
        }
    }

    fn send(&mut self) {
        let questions = self.session.take_questions();
        if !questions.is_empty() {
            self.down.push_back(HubFrame::DetailRequest(questions));
        } else if let Some(batch) = self.session.next_batch() {
            self.down.push_back(HubFrame::Batch(batch));
        } else if let Some(end) = self.session.take_snapshot_end() {
            self.down.push_back(HubFrame::SnapshotEnd(end));
        }
    }

    fn receive(&mut self) {
        if let Some(frame) = self.down.pop_front() {
            self.deliver(Event::Hub(frame, vec![]));
        }
    }

    fn speak(&mut self) {
        let frame = self.core.next_frame(self.now);
        self.up.extend(frame);
    }

    fn handle(&mut self) {
        match self.up.pop_front() {
            Some(AgentFrame::Detail(uid, intents, last)) => {
                self.session.detail(&uid, intents, last);
            }
            Some(AgentFrame::Ack(nonce, _)) => self.session.ack(nonce),
            Some(AgentFrame::ContentRequest(uid, sources)) => {
                self.session.request_content(&uid, sources)
            }
            Some(AgentFrame::Report(states)) => {
                for state in states.iter().filter(|state| state.gone) {
                    self.session.record_removed(&state.uid, state.last_batch);
                }
            }
            _ => {}
        }
    }

    fn give_out(&mut self) {
        while let Some(job) = self.core.next_job(self.now) {
            self.under_way.push_back(job);
        }
    }

    fn work(&mut self, is_answered: bool) {
        let Some(job) = self.under_way.pop_front() else {
            return;
        };
        let key = job.key.clone();
        let done = self.carry_out(job);
        let lost = || Done {
            copy_error: Some(CopyError::new(Reason::Unavailable, "no answer")),
            ..Done::new(key)
        };
        self.deliver(Event::Done(Box::new(if is_answered {
            done
        } else {
            lost()
        })));
    }

    fn carry_out(&mut self, job: Job) -> Done {
        let mut done = Done::new(job.key.clone());
        let Key::Copy(copy) = job.key else {
            return done;
        };
        match job.work {
            Work::Create(body) => self.apply(&copy, None, &body, &mut done),
            Work::Change(target, body) => self.apply(&copy, Some(&target), &body, &mut done),
            Work::Delete(target) if self.is(&copy, &target) => {
                let gone = self.objects.remove(&copy);
                self.untold
                    .extend(gone.map(|live| Event::CopyDeleted(copy, live.uid)));
                done.observed = Some(Observed::Absent);
                done.passed.push(target.version);
            }
            _ => done.observed = Some(self.observed(&copy)),
        }
        done
    }

    fn observed(&self, copy: &SourceRef) -> Observed {
        self.objects
            .get(copy)
            .map_or(Observed::Absent, |live| Observed::Live(live.clone()))
    }

    fn is(&self, copy: &SourceRef, target: &ExpectedObject) -> bool {
        self.objects
            .get(copy)
            .is_some_and(|live| live.uid == target.uid && live.version == target.version)
    }

    fn apply(
        &mut self,
        copy: &SourceRef,
        target: Option<&ExpectedObject>,
        body: &Written,
        done: &mut Done,
    ) {
        let is_free = target.map_or(!self.objects.contains_key(copy), |target| {
            self.is(copy, target)
        });
        if is_free {
            self.version += 1;
            let version: Arc<str> = self.version.to_string().as_str().into();
            let sealed = Sealed {
                rule: body.intent.rule.clone(),
                source: body.intent.source.clone(),
                revision: body.revision,
                ignored: BTreeSet::new(),
            };
            let live = Live {
                uid: target.map_or_else(|| version.clone(), |target| target.uid.clone()),
                version,
                ownership: Ownership::Ours,
                sealed: Some(Box::new(sealed)),
                unproved: None,
                intact: true,
                adopted: false,
                facts: Facts::default().digested(&content(), &body.revision, &BTreeSet::new()),
                others: None,
                is_shared: false,
                is_widened: false,
                finished: false,
                terminating: None,
                number: 0,
                newest: false,
                names_member: true,
                applied_at: 0,
                health: None,
                feedback: None,
            };
            self.objects.insert(copy.clone(), live.clone());
            self.untold.push_back(Event::Copy(copy.clone(), live));
            done.passed
                .extend(target.map(|target| target.version.clone()));
        }
        done.observed = Some(self.observed(copy));
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Create(source) => self.create(*source),
            Step::BeginDelete(number) => self.begin_delete(*number),
            Step::EndDelete => self.end_delete(),
            Step::Watch => self.watch(),
            Step::Write(number) => self.write(*number),
            Step::Read => self.read(),
            Step::CatchUp => self.catch_up(),
            Step::Send => self.send(),
            Step::Receive => self.receive(),
            Step::Speak => self.speak(),
            Step::Handle => self.handle(),
            Step::Deliver => {
                if let Some(event) = self.untold.pop_front() {
                    self.deliver(event);
                }
            }
            Step::Work => self.work(true),
            Step::Lose => self.work(false),
            Step::GiveOut => self.give_out(),
            Step::Reconnect => self.reconnect(),
        }
    }

    /// Processes events until no work is left.
    fn settle(&mut self) {
        for round in 0..60 {
            if round % 20 == 19 {
                self.now += Duration::from_secs(400);
            }
            for number in 0..u8::try_from(self.known.len()).unwrap_or(u8::MAX) {
                self.write(number);
            }
            for _ in 0..10 {
                let all = [
                    Step::EndDelete,
                    Step::Watch,
                    Step::Read,
                    Step::CatchUp,
                    Step::Send,
                    Step::Receive,
                ];
                let agent = [
                    Step::GiveOut,
                    Step::Work,
                    Step::Deliver,
                    Step::Speak,
                    Step::Handle,
                ];
                all.iter().chain(&agent).for_each(|step| self.step(step));
            }
        }
    }
}

fn play(steps: &[Step]) -> Result<(), TestCaseError> {
    let mut world = World::new();
    steps.iter().for_each(|step| world.step(step));
    world.settle();
    for (copy, live) in &world.objects {
        let rule = live.sealed.as_ref().map(|sealed| &sealed.rule);
        prop_assert!(
            rule.is_some_and(|rule| world.api.contains_key(rule)),
            "{copy} is of {rule:?}, which is gone"
        );
    }
    while !world.api.values().all(|rule| rule.is_deleting) {
        world.begin_delete(0);
        world.end_delete();
        world.settle();
    }
    world.settle();
    prop_assert!(
        world.api.is_empty(),
        "rules are not released: {:?}",
        world.api
    );
    prop_assert!(
        world.objects.is_empty(),
        "copies without a rule: {:?}",
        world.objects.keys()
    );
    prop_assert_eq!(
        world.session.acked_rules().count(),
        0,
        "the hub waits for an agent that has nothing"
    );
    prop_assert_eq!(
        world.core.counts(),
        Counts::default(),
        "the agent defends something"
    );
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn rule_deleted_from_the_api_leaves_no_copy(steps in steps()) {
        play(&steps)?;
    }
}
