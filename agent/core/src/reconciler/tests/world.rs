//! A small model of a member's API server for the tests of the core. It runs jobs with their
//! preconditions. Its watch delivers all events in order, but late.
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use runnel_proto::model::*;

use super::orders::Orders;
use crate::classify;
use crate::copy::CopyError;
use crate::decide::{
    DesiredObject, Done, ExpectedObject, Item, Job, Key, PreviewInput, PreviewJob, Recreate, Work,
    WriteEffect,
};
pub use crate::desired::Namespace;
use crate::desired::{AgentLocation, StoredRule};
use crate::live::{Live, Ownership, Sealed};
use crate::policy::{Adopt, Area, Facts, Policy};
use crate::preview::{PreviewFinding, answer, preview};
use crate::reconciler::{Event, Reconciler, Setup};
use crate::records::Observed;

/// An object of the cluster.
#[derive(Clone, Debug)]
pub struct Object {
    pub live: Live,
    /// Whether it has our label, so that the watch shows it.
    pub labeled: bool,
    /// Whether a foreign object equals the desired copy, except for its marks.
    pub equal: bool,
    /// The revision whose content another client wrote, until the agent overwrites it.
    pub theirs: Option<u8>,
}

impl Object {
    /// Whether it can be adopted: by its modeled content, or else by `equal`.
    fn is_adoptable(&self, body: &DesiredObject) -> bool {
        match self.theirs {
            Some(theirs) => theirs == body.revision.0[0],
            None => self.equal,
        }
    }
}

/// A cluster with an agent's core in it.
pub struct World {
    pub core: Reconciler,
    pub now: Instant,
    pub objects: BTreeMap<SourceRef, Object>,
    pub namespaces: BTreeMap<String, Namespace>,
    /// The events that the watches have not delivered yet.
    pub undelivered: VecDeque<Event>,
    pub under_way: VecDeque<Job>,
    /// Names whose objects have a finalizer: a delete leaves them until they are finalized.
    pub finalized: BTreeSet<String>,
    /// Names whose objects the API server does not delete, with its answers.
    pub refused_deletes: BTreeMap<String, CopyError>,
    /// Names whose writes the API server refuses.
    pub poisoned: BTreeSet<String>,
    /// The accounts that may not write, by name.
    pub refused_accounts: BTreeSet<String>,
    /// How often an account that may not write has tried.
    pub tries: usize,
    /// The answer of the API server to every request for a copy, if it fails.
    pub failing: Option<CopyError>,
    /// The answer to every write of a copy, if it fails: reads work. `tries` counts them.
    pub refused_writes: Option<CopyError>,
    pub writes: usize,
    pub sent: Vec<AgentFrame>,
    pub stored: Vec<StoredRule>,
    /// The policy in force.
    pub policy: Policy,
    /// Areas that the agent has no permission to watch.
    pub forbidden: BTreeSet<Area>,
    /// Kinds that the cluster does not serve.
    pub unserved: BTreeSet<Arc<str>>,
    /// The kinds that the discovery lacks although their objects exist.
    pub missing: BTreeSet<Arc<str>>,
    /// Whether the hub approves every requested removal at once.
    pub approves_prunes: bool,
    /// Whether the model fails if the agent overwrites or deletes an object that it did not create.
    pub spares: bool,
    /// Whether the agent stores terms at once.
    pub saves: bool,
    orders: Orders,
    version: u64,
}

pub fn copy(namespace: &str, name: &str) -> SourceRef {
    SourceRef::new("configmaps", namespace, name)
}

pub fn terms(name: &str, namespaces: &[&str]) -> Terms {
    Terms {
        rule: RuleName {
            kind: "DistributionRule".into(),
            namespace: "team".into(),
            name: name.into(),
        },
        created_at: 100,
        namespaces: Some(NamespaceChoice {
            names: namespaces.iter().map(|name| Pattern::new(*name)).collect(),
            ..NamespaceChoice::default()
        }),
        create_namespaces: false,
        conflict_policy: ConflictPolicy::Fail,
        drift_policy: DriftPolicy::Correct,
        deletion_policy: DeletionPolicy::Delete,
        suspend: false,
        ..Terms::default()
    }
}

/// Returns the terms of rule q, over which all other rules win.
pub fn younger(namespaces: &[&str]) -> Terms {
    Terms {
        created_at: 200,
        ..terms("q", namespaces)
    }
}

pub fn with_terms(uid: &str, terms: Terms) -> RuleDelta {
    let digest = TermsDigest([terms.created_at.to_le_bytes()[0]; 16]);
    RuleDelta {
        terms: Some((terms, digest)),
        ..RuleDelta::new(uid.into())
    }
}

/// Returns the content of a revision.
pub fn content(revision: u8) -> Content {
    Content {
        fields: BTreeMap::from([(
            "data".to_owned(),
            serde_json::json!({"k": revision.to_string()}),
        )]),
        ..Content::default()
    }
}

/// Returns the policy facts of content.
fn facts(copy: &SourceRef, content: &Content) -> Facts {
    Facts::of(ContentRules::of(&copy.resource), content)
}

/// Returns the proof that the hub expects for these applied sources, by name and revision.
pub fn proof_of<'a>(uid: &str, sources: impl IntoIterator<Item = (&'a str, u8)>) -> Proof {
    let mut shown = LiveDigest::default();
    for (name, revision) in sources {
        shown.insert(
            &copy("team", name),
            ContentDigest::of(&content(revision), &BTreeSet::new()),
        );
    }
    proof_key().proof(&uid.into(), shown)
}

fn proof_key() -> ProofKey {
    ProofKey::new([9; 32])
}

pub fn intent(name: &str, revision: u8) -> Intent {
    let payload = Payload::encode(content(revision).to_bytes());
    Intent {
        source: copy("team", name),
        revision: Revision([revision; 16]),
        payload,
    }
}

pub fn tombstone(name: &str) -> Tombstone {
    Tombstone {
        source: copy("team", name),
        deletion_policy: DeletionPolicy::Delete,
    }
}

pub fn core(stored: Vec<StoredRule>, policy: &Policy) -> Reconciler {
    Reconciler::new(Setup {
        location: AgentLocation {
            namespace: "runnel-system".into(),
            cluster_uid: "member".into(),
        },
        hello: Hello {
            protocol_min: 1,
            protocol_max: 1,
            agent_version: "0".into(),
            kubernetes_version: "v1".into(),
            boot_id: "b".into(),
            cluster_uid: "member".into(),
        },
        stored,
        hub_cluster_uid: Some("hub".into()),
        policy: Arc::new(policy.clone()),
        seed: 1,
    })
}

impl World {
    /// Returns a cluster with these namespaces, and an agent that has just started.
    pub fn new(namespaces: &[&str]) -> Self {
        let policy = Policy::open();
        let mut world = Self {
            core: core(vec![], &policy),
            now: Instant::now(),
            objects: BTreeMap::new(),
            namespaces: namespaces
                .iter()
                .map(|name| ((*name).to_owned(), Namespace::default()))
                .collect(),
            undelivered: VecDeque::new(),
            under_way: VecDeque::new(),
            finalized: BTreeSet::new(),
            refused_deletes: BTreeMap::new(),
            poisoned: BTreeSet::new(),
            refused_accounts: BTreeSet::new(),
            tries: 0,
            failing: None,
            refused_writes: None,
            writes: 0,
            sent: vec![],
            stored: vec![],
            policy,
            forbidden: BTreeSet::new(),
            unserved: BTreeSet::new(),
            missing: BTreeSet::new(),
            approves_prunes: true,
            spares: false,
            saves: true,
            orders: Orders::default(),
            version: 100,
        };
        world.list();
        world
    }

    fn handle(&mut self, event: Event) {
        self.core.handle(event, self.now);
    }

    /// Delivers the first lists of the watches.
    pub fn list(&mut self) {
        self.handle(Event::NamespacesListed);
        for (name, namespace) in self.namespaces.clone() {
            self.handle(Event::Namespace(name.as_str().into(), namespace));
        }
        self.handle(Event::NamespacesComplete);
        for area in self.policy.areas() {
            self.list_area(&area);
        }
    }

    /// Serves the kind of an area.
    pub fn serve(&mut self, area: &Area) {
        self.unserved.remove(&area.resource);
        self.missing.remove(&area.resource);
        self.list_area(area);
    }

    /// Deletes the kind of an area, with all its objects. Its watch delivers nothing more.
    pub fn unserve(&mut self, area: &Area) {
        self.unserved.insert(area.resource.clone());
        self.objects
            .retain(|copy, _| copy.resource != area.resource);
        self.undelivered.retain(|event| {
            !matches!(event, Event::Copy(copy, _) | Event::CopyDeleted(copy, _) if copy.resource == area.resource)
        });
        self.list_area(area);
    }

    /// Removes the kind of an area from the discovery. Its objects stay.
    pub fn hide(&mut self, area: &Area) {
        self.missing.insert(area.resource.clone());
        self.undelivered.retain(|event| {
            !matches!(event, Event::Copy(copy, _) | Event::CopyDeleted(copy, _) if copy.resource == area.resource)
        });
        self.list_area(area);
    }

    /// Delivers the first list of an area, or its error.
    pub fn list_area(&mut self, area: &Area) {
        if self.unserved.contains(&area.resource) {
            let copy_error = classify::not_served(&area.resource);
            return self.handle(Event::KindDeleted(area.clone(), copy_error));
        }
        if self.missing.contains(&area.resource) {
            let copy_error = classify::not_served(&area.resource);
            return self.handle(Event::CopiesForbidden(area.clone(), copy_error));
        }
        if self.forbidden.contains(area) {
            let copy_error = CopyError::new(Reason::Forbidden, "no Role");
            return self.handle(Event::CopiesForbidden(area.clone(), copy_error));
        }
        self.handle(Event::CopiesListed(area.clone()));
        for (copy, object) in self.objects.clone() {
            if object.labeled && self.policy.area(&copy).as_ref() == Some(area) {
                self.handle(Event::Copy(copy, object.live));
            }
        }
        self.handle(Event::CopiesComplete(area.clone()));
    }

    /// Changes the policy file: watches end, the agent receives the policy, and new watches begin.
    pub fn set_policy(&mut self, policy: Policy) {
        let before = self.policy.areas();
        self.undelivered.retain(|event| match event {
            Event::Copy(copy, _) | Event::CopyDeleted(copy, _) => {
                policy.area(copy).is_some_and(|area| before.contains(&area))
            }
            _ => true,
        });
        self.policy = policy;
        // The agent drops the orders for copies that the policy hides.
        self.orders.forget();
        self.handle(Event::Policy(Arc::new(self.policy.clone())));
        for area in self.policy.areas().difference(&before) {
            self.list_area(area);
        }
    }

    /// Sets the widest policy with all permissions, and opens all namespaces.
    pub fn allow_everything(&mut self) {
        for area in std::mem::take(&mut self.forbidden) {
            if self.policy.areas().contains(&area) {
                self.list_area(&area);
            }
        }
        self.set_policy(Policy::open());
        for name in self.namespaces.keys().cloned().collect::<Vec<_>>() {
            self.set_namespace(&name, Some(Namespace::default()));
        }
        self.settle_now();
    }

    /// Removes the permission to watch an area.
    pub fn forbid(&mut self, area: &Area) {
        if self.policy.areas().contains(area) && self.forbidden.insert(area.clone()) {
            let policy = &self.policy;
            self.undelivered.retain(|event| match event {
                Event::Copy(copy, _) | Event::CopyDeleted(copy, _) => {
                    policy.area(copy).as_ref() != Some(area)
                }
                _ => true,
            });
            self.list_area(area);
        }
    }

    /// Grants the permission to watch an area, and restarts its watch.
    pub fn permit(&mut self, area: &Area) {
        if self.forbidden.remove(area) && self.policy.areas().contains(area) {
            self.list_area(area);
        }
    }

    /// Whether a write for a rule is under way.
    pub fn writes_for(&self, rule: &RuleUid) -> bool {
        self.under_way.iter().any(|job| match &job.work {
            Work::Create(body)
            | Work::Change(_, body)
            | Work::Adopt(_, body)
            | Work::Overwrite(_, body) => body.intent.rule == *rule,
            _ => false,
        })
    }

    /// Stops the agent as a crash does, and starts it again.
    pub fn restart(&mut self) {
        self.under_way.clear();
        self.undelivered.clear();
        self.core = core(self.stored.clone(), &self.policy);
        self.list();
    }

    pub fn connect(&mut self) {
        self.handle(Event::HubConnected);
        let proof_key = Some(proof_key());
        let begin = SnapshotBegin {
            protocol: 1,
            hub_id: "h".into(),
            hub_cluster_uid: "hub".into(),
            behind: false,
            proof_key,
        };
        self.handle(Event::Hub(HubFrame::SnapshotBegin(begin), vec![]));
    }

    /// Returns the acked intents of a rule.
    pub fn acked_pairs(&self, uid: &str) -> Vec<AckedIntent> {
        self.core.member.desired.rules().pairs(&uid.into())
    }

    /// Delivers the end of the hub's snapshot.
    pub fn confirm(&mut self) {
        let (intents, digest) = self.core.member.desired.rules().sum();
        self.handle(Event::Hub(
            HubFrame::SnapshotEnd(SnapshotEnd { intents, digest }),
            vec![],
        ));
    }

    pub fn batch(&mut self, rules: Vec<RuleDelta>) {
        // The agent ignores the orders of a hub that has revoked its cluster.
        if !self.core.member.revoked {
            self.orders.sent(&rules);
        }
        self.handle(Event::Hub(
            HubFrame::Batch(Batch { nonce: 1, rules }),
            vec![],
        ));
    }

    /// Copies the objects that another agent of the same cluster has written.
    pub fn share(&mut self, with: &World) {
        self.version = self.version.max(with.version);
        for (copy, object) in &with.objects {
            let known = self.objects.get(copy).map(|known| &known.live.version);
            if known != Some(&object.live.version) {
                self.objects.insert(copy.clone(), object.clone());
                self.undelivered
                    .push_back(Event::Copy(copy.clone(), object.live.clone()));
            }
        }
    }

    pub fn deliver_one(&mut self) -> bool {
        let Some(event) = self.undelivered.pop_front() else {
            return false;
        };
        self.handle(event);
        true
    }

    /// Collects the jobs and frames of the core.
    pub fn dispatch(&mut self) {
        loop {
            while let Some(job) = self.core.next_job(self.now) {
                self.check(&job);
                self.under_way.push_back(job);
            }
            let asked = self.handle_output();
            let saved = self.saves && self.save(true);
            if asked.is_empty() && !saved {
                break;
            }
            for (uid, digest) in asked {
                self.approve_prunes(uid.as_str(), digest);
            }
        }
    }

    /// Stores the terms of the agent, or fails. Returns whether there was anything to store.
    pub fn save(&mut self, works: bool) -> bool {
        let Some((_, rules)) = self.core.take_store() else {
            return false;
        };
        if works {
            self.stored = rules;
        }
        let refused = CopyError::new(Reason::Unavailable, "no answer");
        self.core
            .stored(if works { Ok(()) } else { Err(refused) }, self.now);
        true
    }

    /// Collects the frames of the core, and returns the removals that it requests if the hub
    /// approves them.
    fn handle_output(&mut self) -> Vec<(RuleUid, PruneDigest)> {
        let mut asked = vec![];
        while let Some(frame) = self.core.next_frame(self.now) {
            if let AgentFrame::Report(states) | AgentFrame::AckedRules(states, _) = &frame
                && self.approves_prunes
            {
                asked.extend(states.iter().filter_map(|state| {
                    Some((state.uid.clone(), state.namespace_prunes.as_ref()?.digest))
                }));
            }
            self.sent.push(frame);
        }
        asked
    }

    /// Checks that a job neither writes what the policy denies, nor concerns a copy without a
    /// watch.
    fn check(&self, job: &Job) {
        let refuses = |namespace: &str| {
            self.namespaces
                .get(namespace)
                .is_some_and(|namespace| namespace.refuses)
        };
        match (&job.key, &job.work) {
            (Key::Namespace(name), _) => {
                let denied = self
                    .policy
                    .denies_namespace(name, "runnel-system")
                    .or(self.policy.denies_creation(name));
                assert_eq!(denied, None, "{name} is created");
            }
            (Key::Question(_), _) => {}
            (Key::Copy(copy), work) => {
                assert!(
                    self.policy.area(copy).is_some(),
                    "{copy} is worked on out of sight"
                );
                if let Work::Create(body)
                | Work::Change(_, body)
                | Work::Adopt(_, body)
                | Work::Overwrite(_, body) = work
                {
                    let denied = self.policy.denies_place(copy, "runnel-system");
                    assert_eq!(
                        denied.or(self.policy.denies_kind(copy)),
                        None,
                        "{copy} is written"
                    );
                    assert_eq!(*body.limits.policy, self.policy);
                    // The watch of namespaces is late, too.
                    assert!(
                        !refuses(&copy.namespace) || !self.undelivered.is_empty(),
                        "{copy} is written"
                    );
                }
            }
        }
    }

    /// Runs the oldest job at the API server. The agent receives its result at once.
    pub fn work_one(&mut self) -> bool {
        let Some(job) = self.under_way.pop_front() else {
            return false;
        };
        let done = self.carry_out(job);
        self.handle(Event::Done(Box::new(done)));
        true
    }

    /// Runs all jobs under way. The watches deliver their changes before the API server answers.
    pub fn work_all_after_the_watches(&mut self) {
        let jobs: Vec<_> = self.under_way.drain(..).collect();
        let answers: Vec<_> = jobs.into_iter().map(|job| self.carry_out(job)).collect();
        while self.deliver_one() {}
        self.dispatch();
        for done in answers {
            self.handle(Event::Done(Box::new(done)));
        }
    }

    /// Runs the oldest job, but its answer is lost.
    pub fn lose_one(&mut self) {
        let Some(job) = self.under_way.pop_front() else {
            return;
        };
        let Done { key, .. } = self.carry_out(job);
        let copy_error = Some(CopyError::new(Reason::Unavailable, "no answer"));
        self.handle(Event::Done(Box::new(Done {
            copy_error,
            ..Done::new(key)
        })));
    }

    /// Runs everything that is due at this time.
    pub fn settle_now(&mut self) {
        for _ in 0..10_000 {
            self.dispatch();
            if !(self.work_one() || self.deliver_one()) {
                assert_eq!(self.core.member.desired.owners().stale_claims(), []);
                return;
            }
        }
        panic!("it does not come to rest");
    }

    /// Runs everything, including delayed work.
    pub fn settle(&mut self) {
        self.settle_now();
        for _ in 0..20 {
            self.now += Duration::from_secs(400);
            self.settle_now();
        }
    }

    fn next_version(&mut self) -> String {
        self.version += 1;
        self.version.to_string()
    }

    fn notify(&mut self, copy: &SourceRef, was_labeled: bool) {
        if self
            .policy
            .area(copy)
            .is_none_or(|area| self.forbidden.contains(&area))
        {
            return;
        }
        match self.objects.get(copy) {
            Some(object) if object.labeled => {
                self.undelivered
                    .push_back(Event::Copy(copy.clone(), object.live.clone()));
            }
            Some(object) if was_labeled => {
                self.undelivered
                    .push_back(Event::CopyDeleted(copy.clone(), object.live.uid.clone()));
            }
            Some(_) | None => {}
        }
    }

    /// Changes an object as another client.
    pub fn edit(&mut self, copy: &SourceRef, change: impl FnOnce(&mut Object)) {
        let version = self.next_version();
        let Some(object) = self.objects.get_mut(copy) else {
            return;
        };
        let was = object.labeled;
        change(object);
        object.live.version = version.as_str().into();
        self.notify(copy, was);
    }

    /// Deletes an object as another client.
    pub fn delete(&mut self, copy: &SourceRef) {
        let shown = self
            .policy
            .area(copy)
            .is_some_and(|area| !self.forbidden.contains(&area));
        if let Some(object) = self.objects.remove(copy)
            && object.labeled
            && shown
        {
            self.undelivered
                .push_back(Event::CopyDeleted(copy.clone(), object.live.uid));
        }
    }

    /// Creates a saved object again as another client.
    pub fn make(&mut self, copy: &SourceRef, saved: Object) {
        let version = self.next_version();
        self.objects.insert(copy.clone(), saved);
        self.edit(copy, |object| {
            object.live.uid = format!("u{version}").as_str().into()
        });
    }

    /// Creates a foreign object as another client.
    pub fn make_foreign(&mut self, copy: &SourceRef) {
        let has_place = copy.is_cluster_scoped() || self.namespaces.contains_key(&*copy.namespace);
        if self.objects.contains_key(copy) || !has_place {
            return;
        }
        let version = self.next_version();
        let live = Live {
            uid: format!("u{version}").as_str().into(),
            version: version.as_str().into(),
            ownership: Ownership::Foreign,
            adopted: false,
            sealed: None,
            unproved: None,
            intact: false,
            facts: Facts::default(),
            others: None,
            is_shared: false,
            is_widened: false,
            terminating: None,
            number: 0,
            newest: false,
            names_member: true,
            applied_at: 0,
            health: None,
            finished: false,
            feedback: None,
        };
        self.objects.insert(
            copy.clone(),
            Object {
                live,
                labeled: false,
                equal: false,
                theirs: None,
            },
        );
    }

    /// Writes a foreign object as another client, also over an object that Runnel adopted.
    pub fn write_foreign(&mut self, copy: &SourceRef, revision: u8) {
        self.make_foreign(copy);
        let is_theirs = |object: &Object| {
            object.theirs.is_some() || object.live.ownership == Ownership::Foreign
        };
        if self.objects.get(copy).is_some_and(is_theirs) {
            self.edit(copy, |object| {
                let sealed = object
                    .live
                    .sealed
                    .as_ref()
                    .filter(|sealed| sealed.ignored.is_empty());
                object.live.intact &= sealed.is_none_or(|sealed| sealed.revision.0[0] == revision);
                object.theirs = Some(revision);
            });
        }
    }

    pub fn set_namespace(&mut self, name: &str, namespace: Option<Namespace>) {
        match namespace {
            Some(namespace) => {
                self.namespaces.insert(name.to_owned(), namespace.clone());
                self.undelivered
                    .push_back(Event::Namespace(name.into(), namespace));
            }
            None => {
                self.namespaces.remove(name);
                let copies: Vec<_> = self
                    .objects
                    .keys()
                    .filter(|copy| *copy.namespace == *name)
                    .cloned()
                    .collect();
                for copy in copies {
                    self.delete(&copy);
                }
                self.undelivered
                    .push_back(Event::NamespaceDeleted(name.into()));
            }
        }
    }

    /// Computes the answer to a preview. Nothing is written.
    fn run_read(&mut self, job: Job) -> Done {
        let mut done = Done::new(job.key);
        let Work::Preview(preview_job) = job.work else {
            return done;
        };
        let PreviewJob {
            question,
            items,
            more,
            ..
        } = *preview_job;
        let found = items.into_iter().map(
            |Item {
                 copy,
                 source,
                 known,
                 after,
                 ..
             }| {
                let outcome = match known {
                    PreviewInput::Decided(outcome) => Some(outcome),
                    PreviewInput::Open(open) => {
                        let observed = if open.needs_read() {
                            self.observed(&copy)
                        } else {
                            open.observed
                        };
                        let is_equal = self.objects.get(&copy).is_some_and(|object| object.equal);
                        preview(&open.desired, &observed, Some(is_equal))
                    }
                };
                PreviewFinding {
                    copy,
                    source,
                    outcome,
                    diff: FieldDiff::default(),
                    after,
                }
            },
        );
        done.preview_result = Some(answer(question, found.collect(), more));
        done
    }

    fn carry_out(&mut self, job: Job) -> Done {
        let mut done = Done::new(job.key.clone());
        let copy = match &job.key {
            Key::Namespace(name) => {
                self.set_namespace(name, Some(Namespace::default()));
                return done;
            }
            Key::Copy(copy) => copy.clone(),
            Key::Question(_) => return self.run_read(job),
        };
        if self.failing.is_some() {
            done.copy_error.clone_from(&self.failing);
            return done;
        }
        if self.refused_writes.is_some() && !matches!(job.work, Work::Read) {
            self.tries += 1;
            done.copy_error.clone_from(&self.refused_writes);
            return done;
        }
        let account = job.account.as_ref().map(|account| account.name.to_string());
        if account.is_some_and(|account| self.refused_accounts.contains(&account))
            && !matches!(job.work, Work::Read)
        {
            self.tries += 1;
            done.copy_error = Some(CopyError::new(Reason::Forbidden, "may not"));
            return done;
        }
        match job.work {
            Work::CreateNamespace | Work::Preview(_) => {}
            Work::Read => done.observed = Some(self.observed(&copy)),
            Work::Create(body) => self.write(&copy, None, &body, &mut done, false),
            Work::Change(target, body) | Work::Overwrite(target, body)
                if self.makes_way(&copy, &target, &body) =>
            {
                self.writes += 1;
                self.edit(&copy, |object| {
                    object.live.terminating = Some("is being deleted here".into());
                });
                (done.observed, done.wrote, done.deleted) =
                    (Some(self.observed(&copy)), Some(WriteEffect::Deleted), true);
                done.passed.push(target.version);
            }
            Work::Change(target, body) => {
                // An API server refuses the write of an object that has another version by now.
                let there = self.objects.get(&copy).filter(|_| self.is(&copy, &target));
                let ours = there.is_none_or(|object| object.live.ownership == Ownership::Ours);
                assert!(ours, "a foreign object was changed");
                self.write(&copy, Some(&target), &body, &mut done, false);
            }
            Work::Adopt(target, body) => match self.objects.get(&copy) {
                Some(_) if self.policy.adopt == Adopt::Never => {
                    done.copy_error = self.policy.denies_adopting();
                }
                Some(object) if self.is(&copy, &target) && !object.is_adoptable(&body) => {
                    (done.copy_error, done.observed) =
                        (Some(body.unequal(&object.live)), Some(self.observed(&copy)));
                }
                there => {
                    let created =
                        there.is_some_and(|object| object.live.ownership == Ownership::Retained);
                    self.write(&copy, Some(&target), &body, &mut done, !created);
                    done.wrote = done.wrote.map(|_| WriteEffect::Adopted);
                }
            },
            Work::Overwrite(target, body) => {
                assert!(self.policy.overwrite, "{copy} is overwritten");
                self.write(&copy, Some(&target), &body, &mut done, false);
                done.wrote = done.wrote.map(|_| WriteEffect::Overwrote);
            }
            Work::Compare(target, _) => {
                done.observed = Some(self.observed(&copy));
                let copy_error = CopyError::new(Reason::Drifted, "changed here");
                done.compared = self
                    .is(&copy, &target)
                    .then(|| Box::new((target.version, copy_error)));
            }
            Work::Delete(_) if self.refused_deletes.contains_key(&*copy.name) => {
                done.copy_error = self.refused_deletes.get(&*copy.name).cloned();
            }
            Work::Delete(target) if self.is(&copy, &target) => {
                let created = self
                    .objects
                    .get(&copy)
                    .is_none_or(|object| object.theirs.is_none());
                assert!(
                    created || !self.spares,
                    "{copy} is deleted, which Runnel did not create"
                );
                self.writes += 1;
                if let Some(key) = self
                    .objects
                    .get(&copy)
                    .and_then(|object| object.live.intent())
                {
                    self.orders.removed(&copy, key);
                }
                if self.finalized.contains(&*copy.name) {
                    self.edit(&copy, |object| {
                        object.live.terminating = Some("is being deleted here".into());
                    });
                } else {
                    self.delete(&copy);
                }
                (done.observed, done.wrote) =
                    (Some(self.observed(&copy)), Some(WriteEffect::Deleted));
                done.passed.push(target.version);
            }
            Work::Retain(target, _) if self.is(&copy, &target) => {
                self.writes += 1;
                self.edit(&copy, |object| {
                    object.labeled = false;
                    let adopted = std::mem::take(&mut object.live.adopted);
                    object.live.ownership = if adopted {
                        Ownership::Foreign
                    } else {
                        Ownership::Retained
                    };
                    (object.live.sealed, object.live.intact) = (None, false);
                });
                (done.observed, done.wrote) =
                    (Some(self.observed(&copy)), Some(WriteEffect::Retained));
                done.passed.push(target.version);
            }
            Work::Demote(target) if self.is(&copy, &target) => {
                self.writes += 1;
                self.edit(&copy, |object| object.live.newest = false);
                (done.observed, done.wrote) =
                    (Some(self.observed(&copy)), Some(WriteEffect::Changed));
                done.passed.push(target.version);
            }
            Work::Delete(_) | Work::Retain(..) | Work::Demote(_) => {
                done.observed = Some(self.observed(&copy))
            }
        }
        done
    }

    /// Whether an object is deleted to be created again, and its finalizers keep it: all of them are immutable.
    fn makes_way(&self, copy: &SourceRef, target: &ExpectedObject, body: &DesiredObject) -> bool {
        let name = &*copy.name;
        let is_kept = self.finalized.contains(name) && !self.poisoned.contains(name);
        is_kept && body.recreate == Recreate::Yes && self.is(copy, target)
    }

    fn observed(&self, copy: &SourceRef) -> Observed {
        self.objects.get(copy).map_or(Observed::Absent, |object| {
            Observed::Live(object.live.clone())
        })
    }

    fn is(&self, copy: &SourceRef, target: &ExpectedObject) -> bool {
        self.objects.get(copy).is_some_and(|object| {
            object.live.uid == target.uid && object.live.version == target.version
        })
    }

    fn write(
        &mut self,
        copy: &SourceRef,
        target: Option<&ExpectedObject>,
        body: &DesiredObject,
        done: &mut Done,
        adopted: bool,
    ) {
        if target.is_none() {
            self.orders.created(copy, &body.intent);
        }
        let namespace = self.namespaces.get(&*copy.namespace);
        if self.poisoned.contains(&*copy.name)
            || (!copy.is_cluster_scoped()
                && namespace.is_none_or(|namespace| namespace.terminating))
        {
            done.copy_error = Some(CopyError::new(Reason::Invalid, "no"));
            return;
        }
        let free = match target {
            None => !self.objects.contains_key(copy),
            Some(target) => self.is(copy, target),
        };
        if !free {
            done.observed = Some(self.observed(copy));
            return;
        }
        let theirs = self.objects.get(copy).and_then(|object| object.theirs);
        let changed = theirs.is_some_and(|theirs| theirs != body.revision.0[0]);
        assert!(
            !changed || !(adopted || self.spares),
            "{copy} is changed, which Runnel did not create"
        );
        assert!(
            theirs.is_none() || adopted || !self.spares,
            "{copy} is taken for one that Runnel created"
        );
        self.writes += 1;
        let version = self.next_version();
        let uid = target.map_or_else(
            || format!("u{version}").as_str().into(),
            |target| target.uid.clone(),
        );
        let (rule, source) = (body.intent.rule.clone(), body.intent.source.clone());
        let live = Live {
            uid,
            version: version.as_str().into(),
            ownership: Ownership::Ours,
            adopted,
            sealed: Some(Box::new(Sealed {
                rule,
                source,
                revision: body.revision,
                ignored: body.ignored.clone(),
            })),
            unproved: None,
            intact: true,
            facts: facts(copy, &content(body.revision.0[0])).digested(
                &content(body.revision.0[0]),
                &body.revision,
                &body.ignored,
            ),
            others: None,
            is_shared: false,
            is_widened: false,
            terminating: None,
            number: body.version.unwrap_or_default(),
            newest: body.version.is_some(),
            names_member: true,
            applied_at: i64::try_from(self.version).unwrap(),
            health: None,
            finished: false,
            feedback: None,
        };
        let object = match self.objects.remove(copy).filter(|_| adopted) {
            Some(object) => Object {
                live: live.clone(),
                labeled: true,
                ..object
            },
            None => {
                let theirs = None;
                Object {
                    live: live.clone(),
                    labeled: true,
                    equal: true,
                    theirs,
                }
            }
        };
        self.objects.insert(copy.clone(), object);
        self.notify(copy, true);
        done.observed = Some(Observed::Live(live));
        done.passed
            .extend(target.map(|target| target.version.clone()));
        done.wrote = Some(if target.is_some() {
            WriteEffect::Changed
        } else {
            WriteEffect::Created
        });
    }

    pub fn holds(&self, copy: &SourceRef, rule: &str, name: &str, revision: u8) -> bool {
        self.objects.get(copy).is_some_and(|object| {
            object.labeled
                && object.live.has_revision(
                    &rule.into(),
                    &self::copy("team", name),
                    &Revision([revision; 16]),
                )
        })
    }

    /// Delivers the removal of a rule.
    pub fn remove_rule(&mut self, uid: &str, policy: DeletionPolicy) {
        self.batch(vec![RuleDelta {
            removal: Some(policy),
            ..RuleDelta::new(uid.into())
        }]);
    }

    /// Delivers the hub's approval of removals from namespaces that are no longer targets.
    pub fn approve_prunes(&mut self, uid: &str, digest: PruneDigest) {
        self.batch(vec![RuleDelta {
            prune: Some(digest),
            ..RuleDelta::new(uid.into())
        }]);
    }

    /// Returns the last state of a rule that was sent.
    pub fn reported_state(&self, uid: &str) -> Option<RuleState> {
        self.reported_states(uid).pop()
    }

    /// Returns all states of a rule that were sent, without the changes that led to them.
    pub fn reported_states(&self, uid: &str) -> Vec<RuleState> {
        let states = self.sent.iter().flat_map(|frame| match frame {
            AgentFrame::Report(states) | AgentFrame::AckedRules(states, _) => states.clone(),
            _ => vec![],
        });
        let of_rule = states.filter(|state| state.uid.as_str() == uid);
        let without_changes = of_rule.map(|state| RuleState {
            changes: vec![],
            feedback: vec![],
            ..state
        });
        without_changes.collect()
    }

    /// Returns all changes of copies of a rule that were reported.
    pub fn reported_changes(&self, uid: &str) -> Vec<CopyChange> {
        let states = self.sent.iter().flat_map(|frame| match frame {
            AgentFrame::Report(states) => states.as_slice(),
            _ => &[],
        });
        let of_rule = states.filter(|state| state.uid.as_str() == uid);
        of_rule.flat_map(|state| state.changes.clone()).collect()
    }
}
