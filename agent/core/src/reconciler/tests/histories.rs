//! Histories: random steps of hub, cluster and agent in any order, against a model of an API
//! server.
use super::world::*;
use crate::live::Ownership;
use crate::reconciler::*;
use proptest::prelude::*;
use runnel_proto::model::*;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A step of a history.
#[derive(Clone, Debug)]
enum Step {
    Upsert(u8, u8, u8),
    Expire(u8, u8),
    Remove(u8),
    Choose(u8, u8),
    Tamper(u8, u8),
    Strip(u8, u8),
    Delete(u8, u8),
    Foreign(u8, u8),
    DeliverEvent,
    Work,
    Lose,
    GiveOut,
    Later,
    Restart,
    HubAway,
    HubBack,
    Save(bool),
    Policy(u8),
    Refuse(u8, bool),
    Right(u8, bool),
    Suspend(u8, bool),
}

/// Returns one of the policies of a history.
fn policy(n: u8) -> Policy {
    let text = match n {
        0 => return Policy::open(),
        1 => "namespaces: {allowed: ['*'], denied: [b]}",
        2 => "{namespaces: {allowed: [team, a]}, kinds: [configmaps]}",
        3 => "{namespaces: {allowed: [a, b]}, kinds: [configmaps]}",
        4 => "kinds: [secrets]",
        _ => "maxObjectBytes: 1",
    };
    Policy::parse(text).unwrap()
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let pair = || (0u8..2, 0u8..2);
    let step = prop_oneof![
        4 => (0u8..2, 0u8..2, 1u8..4).prop_map(|(r, s, v)| Step::Upsert(r, s, v)),
        1 => pair().prop_map(|(r, s)| Step::Expire(r, s)),
        1 => (0u8..2).prop_map(Step::Remove),
        1 => (0u8..2, 0u8..4).prop_map(|(r, c)| Step::Choose(r, c)),
        1 => pair().prop_map(|(n, s)| Step::Tamper(n, s)),
        1 => pair().prop_map(|(n, s)| Step::Strip(n, s)),
        1 => pair().prop_map(|(n, s)| Step::Delete(n, s)),
        1 => pair().prop_map(|(n, s)| Step::Foreign(n, s)),
        6 => Just(Step::DeliverEvent),
        6 => Just(Step::Work),
        1 => Just(Step::Lose),
        6 => Just(Step::GiveOut),
        1 => Just(Step::Later),
        1 => Just(Step::Restart),
        1 => Just(Step::HubAway),
        1 => Just(Step::HubBack),
        3 => any::<bool>().prop_map(Step::Save),
        1 => (0u8..6).prop_map(Step::Policy),
        1 => (0u8..2, any::<bool>()).prop_map(|(n, refuse)| Step::Refuse(n, refuse)),
        1 => (0u8..2, any::<bool>()).prop_map(|(n, permit)| Step::Right(n, permit)),
        1 => (0u8..2, any::<bool>()).prop_map(|(r, suspend)| Step::Suspend(r, suspend)),
    ];
    proptest::collection::vec(step, 0..80)
}

/// Returns steps that create copies of two sources in two namespaces. The rest are mostly removals
/// and crashes.
fn removals() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        2 => (0u8..2, 1u8..3).prop_map(|(s, v)| Step::Upsert(0, s, v)),
        4 => (0u8..2).prop_map(|s| Step::Expire(0, s)),
        1 => Just(Step::Remove(0)),
        3 => (0u8..4).prop_map(|c| Step::Choose(0, c)),
        2 => Just(Step::DeliverEvent),
        8 => Just(Step::Work),
        1 => Just(Step::Lose),
        8 => Just(Step::GiveOut),
        4 => any::<bool>().prop_map(Step::Save),
        3 => Just(Step::Restart),
        2 => Just(Step::HubBack),
    ];
    let applied = || {
        let begin = [Step::Upsert(0, 0, 1), Step::Upsert(0, 1, 1), Step::GiveOut];
        let works =
            std::iter::repeat_n(Step::Work, 4).chain(std::iter::repeat_n(Step::DeliverEvent, 4));
        begin.into_iter().chain(works).chain([Step::Save(true)])
    };
    proptest::collection::vec(step, 4..40).prop_map(move |steps| applied().chain(steps).collect())
}

/// The hub's side of a history: the rules and sources that it distributes.
#[derive(Default)]
struct Hub {
    rules: BTreeMap<String, (Vec<String>, BTreeMap<String, u8>)>,
    connected: bool,
    /// Whether every rule is a dry run.
    dry_run: bool,
    /// The rules that are suspended until the steps have ended.
    suspended: BTreeSet<String>,
}

const CHOICES: [&[&str]; 4] = [&["a", "b"], &["a"], &["*"], &["b"]];

fn names(namespace: u8, source: u8) -> SourceRef {
    copy(["a", "b"][usize::from(namespace)], &format!("s{source}"))
}

impl Hub {
    fn terms_of(&self, uid: &str, namespaces: &[String]) -> RuleDelta {
        let names: Vec<_> = namespaces.iter().map(String::as_str).collect();
        let enforcement = if self.dry_run {
            Enforcement::DryRun
        } else {
            Enforcement::Enforce
        };
        with_terms(
            uid,
            Terms {
                created_at: i64::from(uid == "r1"),
                enforcement,
                suspend: self.suspended.contains(uid),
                ..terms(uid, &names)
            },
        )
    }

    fn delta(&self, uid: &str) -> RuleDelta {
        match self.rules.get(uid) {
            Some((namespaces, sources)) => RuleDelta {
                upserts: sources
                    .iter()
                    .map(|(name, revision)| intent(name, *revision))
                    .collect(),
                ..self.terms_of(uid, namespaces)
            },
            None => RuleDelta {
                removal: Some(DeletionPolicy::Delete),
                ..RuleDelta::new(uid.into())
            },
        }
    }

    /// Opens a new stream: the hub sends everything again, with tombstones for all other acked
    /// intents.
    fn reconnect(&mut self, world: &mut World) {
        world.connect();
        self.connected = true;
        let deltas = ["r0", "r1"].map(|uid| self.correction(world, uid));
        world.batch(deltas.into());
    }

    /// Returns the desired state of a rule, with tombstones for all other acked intents.
    fn correction(&self, world: &World, uid: &str) -> RuleDelta {
        let mut delta = self.delta(uid);
        for acked in world.acked_pairs(uid) {
            let wanted = self
                .rules
                .get(uid)
                .is_some_and(|(_, sources)| sources.contains_key(&*acked.source.name));
            if !wanted && delta.removal.is_none() {
                delta.tombstones.push(tombstone(&acked.source.name));
            }
        }
        delta
    }

    /// Runs everything, and corrects each rule of which the agent has found copies.
    fn settle(&self, world: &mut World) {
        for _ in 0..100 {
            let before = world.sent.len();
            world.settle();
            let resyncs = world.sent[before..].iter().flat_map(|frame| match frame {
                AgentFrame::AckedRules(states, _) => states.as_slice(),
                _ => &[],
            });
            let found: BTreeSet<_> = resyncs.map(|state| state.uid.clone()).collect();
            if found.is_empty() {
                return;
            }
            let deltas = found.iter().map(|uid| self.correction(world, uid.as_str()));
            world.batch(deltas.collect());
        }
        panic!("the agent finds the same copies again and again");
    }

    fn send(&mut self, world: &mut World, delta: RuleDelta) {
        if self.connected {
            world.batch(vec![delta]);
        }
    }

    fn step(&mut self, world: &mut World, step: &Step) {
        match step {
            Step::Upsert(rule, source, revision) => {
                let (uid, name) = (format!("r{rule}"), format!("s{source}"));
                let all = || (vec!["a".to_owned(), "b".to_owned()], BTreeMap::new());
                self.rules
                    .entry(uid.clone())
                    .or_insert_with(all)
                    .1
                    .insert(name, *revision);
                let delta = self.delta(&uid);
                self.send(world, delta);
            }
            Step::Expire(rule, source) => {
                let (uid, name) = (format!("r{rule}"), format!("s{source}"));
                if let Some((_, sources)) = self.rules.get_mut(&uid)
                    && sources.remove(&name).is_some()
                {
                    let delta = RuleDelta {
                        tombstones: vec![tombstone(&name)],
                        ..RuleDelta::new(uid.as_str().into())
                    };
                    self.send(world, delta);
                }
            }
            Step::Remove(rule) => {
                let uid = format!("r{rule}");
                if self.rules.remove(&uid).is_some() {
                    let delta = self.delta(&uid);
                    self.send(world, delta);
                }
            }
            Step::Choose(rule, choice) => {
                let uid = format!("r{rule}");
                if let Some((namespaces, _)) = self.rules.get_mut(&uid) {
                    *namespaces = CHOICES[usize::from(*choice)]
                        .iter()
                        .map(|name| (*name).to_owned())
                        .collect();
                    let namespaces = namespaces.clone();
                    let delta = self.terms_of(&uid, &namespaces);
                    self.send(world, delta);
                }
            }
            Step::Suspend(rule, suspend) => {
                let uid = format!("r{rule}");
                if *suspend {
                    self.suspended.insert(uid.clone());
                } else {
                    self.suspended.remove(&uid);
                }
                if let Some((namespaces, _)) = self.rules.get(&uid) {
                    let delta = self.terms_of(&uid, namespaces);
                    self.send(world, delta);
                }
            }
            Step::Tamper(n, s) => world.edit(&names(*n, *s), |object| object.live.intact = false),
            Step::Strip(n, s) => world.edit(&names(*n, *s), |object| {
                (object.labeled, object.live.intact) = (false, false);
            }),
            Step::Delete(n, s) => world.delete(&names(*n, *s)),
            Step::Foreign(n, s) => world.make_foreign(&names(*n, *s)),
            Step::DeliverEvent => drop(world.deliver_one()),
            Step::Work => drop(world.work_one()),
            Step::Lose => world.lose_one(),
            Step::GiveOut => world.dispatch(),
            Step::Later => world.now += Duration::from_secs(7),
            Step::Restart => {
                world.restart();
                self.connected = false;
            }
            Step::Policy(n) => world.set_policy(policy(*n)),
            Step::Refuse(n, refuses) => {
                let name = ["a", "b"][usize::from(*n)];
                world.set_namespace(
                    name,
                    Some(Namespace {
                        refuses: *refuses,
                        ..Namespace::default()
                    }),
                );
            }
            Step::Right(n, permit) => {
                if let Some(area) = world.policy.area(&names(*n, 0)) {
                    if *permit {
                        world.permit(&area)
                    } else {
                        world.forbid(&area)
                    }
                }
            }
            Step::HubBack if !self.connected => self.reconnect(world),
            Step::HubBack => {}
            Step::Save(works) => drop(world.save(*works)),
            Step::HubAway => {
                world.core.handle(Event::HubLost, world.now);
                self.connected = false;
            }
        }
    }

    /// Checks the proofs. A rule whose copies are all applied or waiting must have the proof that
    /// the hub expects. Other rules must have none.
    fn is_shown_proofs(&self, world: &World) -> Result<(), TestCaseError> {
        for (uid, (_, sources)) in &self.rules {
            let Some(state) = world.reported_state(uid) else {
                continue;
            };
            let wanted = proof_of(
                uid,
                sources
                    .iter()
                    .map(|(name, revision)| (name.as_str(), *revision)),
            );
            let all = state.counts.applied + state.counts.waiting == state.counts.copies;
            prop_assert_eq!(
                state.proof,
                all.then_some(wanted),
                "{} {:?}",
                uid,
                state.counts
            );
        }
        Ok(())
    }

    /// Returns the rules that want a copy, with its revision: the one that has it keeps it.
    fn wants(&self, namespace: &str, name: &str) -> Vec<(&str, u8)> {
        let rules = ["r0", "r1"].into_iter().filter_map(|uid| {
            let (namespaces, sources) = self.rules.get(uid)?;
            let chosen = namespaces
                .iter()
                .any(|chosen| chosen == namespace || chosen == "*");
            Some((uid, *sources.get(name).filter(|_| chosen)?))
        });
        rules.collect()
    }
}

/// Plays a history and checks its end: the cluster equals the hub's desired state, and nothing more
/// is written.
///
/// Foreign objects stay: the model of the API server fails on a write to one. The policy and the
/// permissions change meanwhile. A write that the policy denies fails in [`World::dispatch`].
fn play(steps: &[Step]) -> Result<(), TestCaseError> {
    play_with(steps, false)
}

/// Plays a history like [`play`]. If `dry_run`, every rule is a dry run until the steps have ended,
/// and nothing is written before.
fn play_with(steps: &[Step], dry_run: bool) -> Result<(), TestCaseError> {
    let mut world = World::new(&["team", "a", "b"]);
    // The agent stores only in `Step::Save`, so that it can crash before and after.
    world.saves = false;
    let mut hub = Hub {
        dry_run,
        ..Hub::default()
    };
    hub.reconnect(&mut world);
    for step in steps {
        hub.step(&mut world, step);
    }
    world.saves = true;
    world.settle_now();
    hub.suspended.clear();
    world.allow_everything();
    if dry_run {
        hub.reconnect(&mut world);
        hub.settle(&mut world);
        prop_assert_eq!(world.writes, 0, "a dry run writes");
        for uid in hub.rules.keys() {
            let counts = world
                .reported_state(uid)
                .map(|state| state.counts)
                .unwrap_or_default();
            prop_assert!(
                counts.is_settled() && counts.applied == 0,
                "{} {:?}",
                uid,
                counts
            );
        }
        hub.dry_run = false;
    }
    hub.reconnect(&mut world);
    hub.settle(&mut world);
    for namespace in ["team", "a", "b"] {
        for name in ["s0", "s1"] {
            let place = copy(namespace, name);
            let object = world.objects.get(&place);
            if object.is_some_and(|object| object.live.ownership == Ownership::Foreign) {
                continue;
            }
            let wanted = hub.wants(namespace, name);
            let holds = |(uid, revision): &(&str, u8)| world.holds(&place, uid, name, *revision);
            // A copy that lost its label while nothing was watched is unknown.
            prop_assert!(
                if wanted.is_empty() {
                    object.is_none_or(|object| !object.labeled)
                } else {
                    wanted.iter().any(holds)
                },
                "{place} of {wanted:?}: {object:?}"
            );
        }
    }
    hub.is_shown_proofs(&world)?;
    let writes = world.writes;
    hub.settle(&mut world);
    prop_assert_eq!(world.writes, writes, "something is written again and again");
    world.restart();
    hub.reconnect(&mut world);
    hub.settle(&mut world);
    prop_assert_eq!(world.writes, writes, "a restart writes");
    hub.is_shown_proofs(&world)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, ..ProptestConfig::default() })]
    /// [`Orders`](super::orders::Orders) checks the invariant of removals in every step.
    #[test]
    fn crash_creates_nothing_again_that_was_removed(steps in removals()) {
        play(&steps)?;
    }
}

proptest! {
    #[test]
    fn dry_run_writes_nothing_and_then_enforces(steps in steps()) {
        play_with(&steps, true)?;
    }
}

proptest! {
    #[test]
    fn every_history_ends_in_the_desired_state(steps in steps()) {
        play(&steps)?;
    }
}

/// Found by proptest: a narrower policy hid the copies while their rule was deleted, and a wider
/// one shows them again.
#[test]
fn rule_removal_includes_copies_found_later() {
    use Step::{GiveOut, Policy, Remove, Upsert};
    play(&[Upsert(0, 0, 1), GiveOut, Remove(0), Policy(2), Policy(5)]).unwrap();
}

/// Found by proptest: the terms of r0 no longer contained the copy while its write for r0 was under
/// way in the place of r1.
#[test]
fn write_under_way_is_removed_though_another_rule_has_it() {
    use Step::{Choose, Expire, GiveOut, Remove, Upsert, Work};
    let steps = [
        Upsert(1, 0, 1),
        GiveOut,
        Upsert(0, 0, 1),
        Work,
        GiveOut,
        Choose(0, 3),
        Work,
        GiveOut,
        Expire(1, 0),
        Remove(0),
        Upsert(0, 1, 1),
    ];
    play(&steps).unwrap();
}

/// The answer to the write of such a history was lost.
#[test]
fn possible_write_is_removed_once_it_was_read() {
    use Step::{Choose, Expire, GiveOut, Lose, Remove, Upsert, Work};
    let steps = [
        Upsert(1, 0, 1),
        GiveOut,
        Work,
        Work,
        Upsert(0, 0, 1),
        GiveOut,
        Choose(0, 3),
        Lose,
        Expire(1, 0),
        Remove(0),
        Upsert(0, 1, 1),
    ];
    play(&steps).unwrap();
}

/// Found by proptest: a copy was created without a watch. It was found while the rest of its rule
/// could not be removed.
#[test]
fn discovered_copies_of_a_removed_rule_are_removed() {
    use Step::{Choose, GiveOut, HubAway, Policy, Remove, Right, Upsert};
    let steps = [
        Upsert(0, 0, 1),
        Choose(0, 2),
        GiveOut,
        Policy(3),
        Remove(0),
        HubAway,
        Right(0, false),
        Upsert(0, 0, 1),
    ];
    play(&steps).unwrap();
}

/// Found by proptest: one of two copies was created without a watch. It was found while the other
/// could not be removed.
#[test]
fn discovered_copies_are_removed_with_the_others() {
    use Step::{Expire, GiveOut, Policy, Right, Upsert};
    play(&[
        Upsert(1, 1, 1),
        GiveOut,
        Right(0, false),
        Policy(2),
        Expire(1, 1),
        Policy(5),
    ])
    .unwrap();
}

/// Found by proptest: the removal for r0 came while the policy hid the copy. Its write ended while
/// only a removal for r1 concerned the copy.
#[test]
fn copy_is_removed_though_another_rule_gave_it_up() {
    use Step::{DeliverEvent, Expire, GiveOut, Policy, Remove, Upsert, Work};
    play(&[
        Upsert(0, 1, 1),
        Upsert(1, 1, 1),
        GiveOut,
        Policy(2),
        Expire(0, 1),
        Policy(0),
        Upsert(0, 0, 1),
        Work,
        Remove(1),
        DeliverEvent,
    ])
    .unwrap();
}

/// The other rule was suspended when its terms gave the copy up, so that it ordered no removal.
#[test]
fn copy_is_removed_though_a_suspended_rule_gave_it_up() {
    use Step::{Choose, DeliverEvent, Expire, GiveOut, Policy, Remove, Suspend, Upsert, Work};
    play(&[
        Upsert(0, 1, 1),
        Upsert(1, 1, 1),
        Suspend(1, true),
        GiveOut,
        Policy(2),
        Expire(0, 1),
        Policy(0),
        Work,
        Work,
        DeliverEvent,
        DeliverEvent,
        Choose(1, 1),
        Remove(1),
    ])
    .unwrap();
}

/// Found by proptest: the copy was shown again while only a suspended rule claimed it.
#[test]
fn copy_is_removed_though_a_suspended_rule_claims_it() {
    use Step::{Expire, GiveOut, HubAway, Policy, Remove, Suspend, Upsert};
    play(&[
        Upsert(0, 0, 1),
        GiveOut,
        Suspend(1, true),
        Policy(2),
        Remove(0),
        Upsert(1, 0, 1),
        HubAway,
        Remove(1),
        Upsert(0, 0, 1),
        Expire(0, 0),
    ])
    .unwrap();
}

#[test]
fn unwatched_removal_is_not_reported() {
    use Step::{Choose, HubBack, Later, Policy, Refuse, Upsert};
    play_with(
        &[
            Upsert(1, 0, 1),
            Later,
            HubBack,
            Refuse(0, false),
            Choose(1, 1),
            Policy(2),
        ],
        true,
    )
    .unwrap();
}
