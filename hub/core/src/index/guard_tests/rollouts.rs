//! A rollout beside the removal guard: neither what is blocked nor who blocks it makes another change of a change.
use proptest::prelude::*;

use super::*;
use crate::rollout::{Health, LeftOut, Observation, Phase, Progress, Windows, step};
use runnel_proto::model::Revision;

const RULE: &str = "one";

/// A rule with a rollout over the two members, and what each of them has of it.
struct Waves {
    world: World,
    spec: Value,
    progress: Option<Progress>,
    copies: BTreeMap<&'static str, BTreeMap<SourceRef, Revision>>,
    /// The members whose copies fail.
    failing: BTreeSet<&'static str>,
}

fn body(number: u8) -> SourceState {
    let payload =
        runnel_proto::model::Payload::encode(runnel_proto::model::Content::default().to_bytes());
    SourceState::Read(SourceContent::new(Revision([number; 16]), payload).into())
}

impl Waves {
    /// Twelve sources are in both members, and the rollout is completed.
    fn new(rollout: Value) -> Self {
        let mut waves = Self {
            world: World::with_limits(),
            spec: json!({"rollout": rollout}),
            progress: None,
            copies: MEMBERS.map(|member| (member, BTreeMap::new())).into(),
            failing: BTreeSet::new(),
        };
        waves.world.index.set_rule(rule(RULE, "team", &waves.spec));
        waves.edit(1);
        waves.world.index.reset_removal_guards();
        waves.steps();
        assert_eq!(waves.phase(), Phase::Completed);
        assert_eq!([waves.has(0), waves.has(1)], [Some(1), Some(1)]);
        waves
    }

    fn phase(&self) -> Phase {
        self.progress.as_ref().unwrap().phase
    }

    /// Sets the content of all sources.
    fn edit(&mut self, number: u8) {
        self.world.change(|index| {
            let mut effect = Effect::default();
            for name in 0..12 {
                let source = source("team", &format!("{RULE}-{name}"));
                effect.merge(index.set_source(source, BTreeMap::new(), Some(body(number))));
            }
            effect
        });
    }

    /// The content that a member has; `None` if it has none, or more than one.
    fn has(&self, member: usize) -> Option<u8> {
        let all: BTreeSet<_> = self.copies[MEMBERS[member]]
            .values()
            .map(|it| it.0[0])
            .collect();
        Some(*all.first()?).filter(|_| all.len() == 1)
    }

    fn relabel(&mut self, members: &[usize], env: &str) {
        for member in members {
            let name = MEMBERS[*member];
            self.world
                .change(|index| index.set_cluster(name.into(), cluster(env)));
        }
    }

    /// Takes steps, a second each.
    fn steps(&mut self) {
        for _ in 0..50 {
            self.step();
        }
    }

    /// Another rule is blocked, or that is undone.
    fn block_other(&mut self, is_blocked: bool) {
        let clusters = if is_blocked { "none" } else { "prod" };
        let spec = json!({"clusters": {"selector": {"matchLabels": {"env": clusters}}}});
        self.world
            .change(|index| index.set_rule(rule("two", "team", &spec)));
    }

    fn set_grant(&mut self, is_there: bool) {
        let now = is_there.then(grant);
        self.world
            .change(|index| index.set_grant("everything", now));
    }

    /// Every agent has reported to the new leader.
    fn settle(&mut self) {
        for member in MEMBERS {
            let name = ClusterName::from(member);
            let is_chosen = |index: &Index| {
                let entry = index.rules().get(&RULE.into()).unwrap();
                entry.target_clusters.clusters.contains_key(&name)
            };
            if !is_chosen(&self.world.index) && !self.copies[member].is_empty() {
                self.world
                    .change(|index| index.orphaned_cluster(&RULE.into(), &name));
            }
        }
        self.world.change(|index| {
            let mut effect = Effect::default();
            for uid in [RULE, "two"] {
                effect.merge(
                    index
                        .rules_mut()
                        .settle_guard(&uid.into(), &BTreeSet::new()),
                );
            }
            effect
        });
    }

    fn step(&mut self) {
        self.deliver();
        self.world.later(Duration::from_secs(1));
        let (index, now) = (&self.world.index, self.world.now);
        let entry = index.rules().get(&RULE.into()).unwrap();
        let removals = entry.clusters_with_waiting_removals(index.clusters());
        let left_out = entry.left_out();
        let health = |name: &ClusterName| {
            let copies = &self.copies[name.as_str()];
            let Some(assignment) = entry.assignment(name).filter(|_| !removals.contains(name))
            else {
                return Health::Unavailable;
            };
            let mut wanted = assignment.intents();
            let has_all =
                wanted.all(|(source, content)| copies.get(source) == Some(&content.revision));
            if !has_all {
                Health::Pending
            } else if self.failing.contains(name.as_str()) {
                Health::Failed
            } else if left_out == LeftOut::Blocked {
                Health::Quiet
            } else if copies.len() > assignment.intents().count() {
                Health::Pending
            } else {
                Health::Applied
            }
        };
        let turns = entry.rollout_order(index.clusters(), self.progress.as_ref());
        let clusters: Vec<_> = turns
            .into_iter()
            .map(|turn| (health(&turn.cluster), turn))
            .map(|(health, turn)| (turn, health))
            .collect();
        let has_nothing = |name: &&ClusterName| self.copies[name.as_str()].is_empty();
        let names = clusters.iter().map(|(turn, _)| &turn.cluster);
        let empty = names.filter(has_nothing).cloned().collect();
        let observation = Observation {
            target: entry.target(),
            clusters,
            settling: left_out == LeftOut::Unknown,
            at_work: BTreeSet::new(),
            has_former: false,
            approval: None,
            windows: BTreeMap::new(),
            check: None,
            is_check_refused: false,
            was_paused: entry.was_paused,
            removals_wait: !removals.is_empty(),
            left_out,
            empty,
        };
        let rollout = entry.rule.rollout.as_ref().unwrap();
        let (before, gate) = (self.progress.as_ref(), entry.gate.as_ref());
        let (progress, gate) = step(rollout, before, gate, &observation, now);
        self.progress = Some(progress);
        self.world.index.rules_mut().set_gate(&RULE.into(), gate);
        self.deliver();
    }

    /// Agents do at once what the hub sends.
    fn deliver(&mut self) {
        for (member, copies) in &mut self.copies {
            let name = ClusterName::from(*member);
            match self.world.index.directive(&RULE.into(), &name) {
                Directive::Assigned(assignment) => {
                    copies.retain(|source, _| {
                        assignment.content(source).is_some() || assignment.must_stay(source)
                    });
                    let sent = assignment.intents();
                    copies.extend(sent.map(|(source, it)| (source.clone(), it.revision)));
                }
                Directive::Removed(_) => copies.clear(),
                _ => {}
            }
            self.world
                .set_reported_copies(RULE, member, copies.len() as u64);
        }
    }

    /// Another process leads: it has the status, and what agents report.
    fn restart(&mut self) {
        let mut same = rule(RULE, "team", &self.spec);
        same.removal.pending = self.world.approval(RULE).cloned();
        self.world.change(|index| index.set_rule(same));
        self.world.index.reset_removal_guards();
    }
}

#[test]
fn rollout_does_not_complete_without_blocked_clusters() {
    for members in [&[0, 1][..], &[1]] {
        let mut waves = Waves::new(json!({"maxConcurrency": 1}));
        let windows = vec![runnel_api::Window {
            schedule: "0 0 1 1 *".to_owned(),
            duration_seconds: 60,
            time_zone: "UTC".to_owned(),
        }];
        waves.relabel(members, "none");
        assert!(!waves.world.pending().is_empty(), "the guard blocks it");
        waves.edit(2);
        waves.steps();
        assert_eq!(waves.phase(), Phase::Progressing);
        assert_eq!(waves.has(1), Some(1));
        assert_eq!(waves.has(0), Some(if members.contains(&0) { 1 } else { 2 }));
        let gate = |waves: &Waves| {
            let entry = waves.world.index.rules().get(&RULE.into()).unwrap();
            entry.gate.clone().unwrap()
        };
        assert!(gate(&waves).is_settled, "nothing but an event goes on");
        // They come back while no window is open.
        let mut closed = rule(RULE, "team", &waves.spec);
        let rollout = closed.rollout.as_mut().unwrap();
        rollout.windows = Windows::read(&windows, "spec.rollout.windows");
        waves.world.change(|index| index.set_rule(closed));
        waves.relabel(members, "prod");
        waves.steps();
        assert_eq!(
            (waves.phase(), waves.has(1)),
            (Phase::AwaitingWindow, Some(1))
        );
        let open = rule(RULE, "team", &waves.spec);
        waves.world.change(|index| index.set_rule(open));
        waves.steps();
        assert_eq!((waves.phase(), waves.has(1)), (Phase::Completed, Some(2)));
    }
}

#[test]
fn approved_removal_of_a_cluster_ends_the_rollout() {
    let mut waves = Waves::new(json!({}));
    waves.relabel(&[1], "none");
    waves.edit(2);
    waves.steps();
    assert_eq!((waves.phase(), waves.has(0)), (Phase::Progressing, Some(2)));
    waves.world.approve_all();
    waves.steps();
    assert_eq!((waves.phase(), waves.has(1)), (Phase::Completed, None));
}

#[test]
fn stopped_change_is_not_sent_again_without_an_edit() {
    let mut waves = Waves::new(json!({"maxConcurrency": 1}));
    waves.world.add("two", "team", 12);
    waves.steps();
    waves.relabel(&[1], "none");
    waves.failing.insert(MEMBERS[0]);
    waves.edit(2);
    waves.steps();
    assert_eq!(waves.phase(), Phase::Stopped);
    let stopped = waves.progress.clone();
    waves.relabel(&[1], "prod");
    let is_as_before = |waves: &mut Waves, why: &str| {
        waves.steps();
        let (before, now) = (stopped.as_ref().unwrap(), waves.progress.as_ref().unwrap());
        assert_eq!(
            (now.phase, &now.revision, now.started_at, waves.has(1)),
            (Phase::Stopped, &before.revision, before.started_at, Some(1)),
            "{why}"
        );
    };
    is_as_before(&mut waves, "its label is back");
    // The removal of copies is blocked, and another process leads.
    waves.relabel(&[1], "none");
    waves.restart();
    is_as_before(&mut waves, "a new leader");
    waves
        .world
        .change(|index| index.orphaned_cluster(&RULE.into(), &MEMBERS[1].into()));
    is_as_before(&mut waves, "its agent reports");
    waves.world.change(|index| {
        index
            .rules_mut()
            .settle_guard(&RULE.into(), &BTreeSet::new())
    });
    is_as_before(&mut waves, "every agent has reported");
    waves.relabel(&[1], "prod");
    is_as_before(&mut waves, "it is selected again");
    // Another rule undoes what is blocked of it.
    waves.relabel(&[1], "none");
    waves.block_other(true);
    is_as_before(&mut waves, "another rule is blocked");
    waves.block_other(false);
    is_as_before(&mut waves, "another rule undoes it");
    waves.relabel(&[1], "prod");
    // A grant is narrowed and restored.
    waves.set_grant(false);
    is_as_before(&mut waves, "nothing is granted");
    waves.set_grant(true);
    is_as_before(&mut waves, "it is granted again");
    waves.failing.clear();
    waves.edit(3);
    waves.steps();
    assert_eq!((waves.phase(), waves.has(1)), (Phase::Completed, Some(3)));
}

#[test]
fn approved_removal_of_sources_goes_through_the_waves_again() {
    for restarts in [false, true] {
        let mut waves = Waves::new(json!({"maxConcurrency": 1, "soakSeconds": 20}));
        waves.spec["sources"] = json!([{"resources": ["configmaps"], "names": ["one-0"]}]);
        let edited = rule(RULE, "team", &waves.spec);
        waves.world.change(|index| index.set_rule(edited));
        for _ in 0..5 {
            waves.steps();
        }
        assert!(waves.phase() == Phase::Completed && !waves.world.pending().is_empty());
        let numbers = |waves: &Waves| MEMBERS.map(|member| waves.copies[member].len());
        assert_eq!(numbers(&waves), [12, 12]);
        if restarts {
            waves.restart();
            waves.step();
            assert_eq!(
                waves.phase(),
                Phase::Completed,
                "it is not known what is blocked"
            );
            let digest = waves.world.approval(RULE).unwrap().digest.clone();
            let orphaned = (1..12).map(|number| source("team", &format!("one-{number}")));
            let orphaned: BTreeSet<_> = orphaned.collect();
            for member in MEMBERS {
                waves.world.change(|index| {
                    index.orphaned_intents(&RULE.into(), &member.into(), orphaned.clone())
                });
            }
            assert_eq!(waves.world.approval(RULE).unwrap().digest, digest);
            waves.steps();
            assert_eq!(waves.phase(), Phase::Completed);
        }
        waves.world.approve_all();
        waves.deliver();
        assert_eq!(numbers(&waves), [12, 12], "the gate is shut");
        waves.step();
        waves.step();
        assert_eq!(numbers(&waves), [1, 12], "the first wave");
        waves.steps();
        assert_eq!((waves.phase(), numbers(&waves)), (Phase::Completed, [1, 1]));
    }
}

#[test]
fn cluster_that_returns_with_older_copies_waits_for_windows() {
    let mut waves = Waves::new(json!({}));
    // Its copies are older, and the hub had not known of them.
    let target = waves.progress.as_ref().unwrap().revision.clone();
    let older = waves.copies[MEMBERS[1]].clone();
    for has_copies in [true, false] {
        waves.relabel(&[1], "none");
        waves.world.approve_all();
        waves.steps();
        assert_eq!(waves.has(1), None);
        if has_copies {
            let older = older
                .keys()
                .map(|source| (source.clone(), Revision([0; 16])));
            waves.copies.insert(MEMBERS[1], older.collect());
        }
        let mut closed = rule(RULE, "team", &waves.spec);
        let never = vec![runnel_api::Window {
            schedule: "0 0 1 1 *".to_owned(),
            duration_seconds: 60,
            time_zone: "UTC".to_owned(),
        }];
        closed.rollout.as_mut().unwrap().windows = Windows::read(&never, "spec.rollout.windows");
        waves.world.change(|index| index.set_rule(closed));
        waves.relabel(&[1], "prod");
        waves.steps();
        assert_eq!(waves.phase(), Phase::Completed);
        assert_eq!(waves.progress.as_ref().unwrap().revision, target);
        assert_eq!(waves.has(1), Some(if has_copies { 0 } else { 1 }));
        let open = rule(RULE, "team", &waves.spec);
        waves.world.change(|index| index.set_rule(open));
        waves.steps();
        assert_eq!(waves.has(1), Some(1));
    }
}

#[test]
fn stopped_rollout_goes_on_after_a_pause_that_ended_at_once() {
    let mut waves = Waves::new(json!({"maxConcurrency": 1}));
    waves.failing.insert(MEMBERS[0]);
    waves.edit(2);
    waves.steps();
    assert_eq!(waves.phase(), Phase::Stopped);
    waves.failing.clear();
    for is_paused in [true, false] {
        let mut observed = rule(RULE, "team", &waves.spec);
        observed.rollout.as_mut().unwrap().paused = is_paused;
        waves.world.change(|index| index.set_rule(observed));
    }
    waves.steps();
    assert_eq!((waves.phase(), waves.has(1)), (Phase::Completed, Some(2)));
    let entry = waves.world.index.rules().get(&RULE.into()).unwrap();
    assert!(!entry.was_paused);
}

#[derive(Clone, Debug)]
enum Event {
    Relabel(usize, bool),
    Edit { is_bad: bool },
    Grant(bool),
    Restart,
    Settle,
    Approve,
    BlockOther(bool),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        4 => (0..2usize, any::<bool>()).prop_map(|(member, is_chosen)| Event::Relabel(member, is_chosen)),
        3 => any::<bool>().prop_map(|is_bad| Event::Edit { is_bad }),
        1 => any::<bool>().prop_map(Event::Grant),
        1 => Just(Event::Restart),
        2 => Just(Event::Settle),
        1 => Just(Event::Approve),
        2 => any::<bool>().prop_map(Event::BlockOther),
    ];
    proptest::collection::vec(event, 0..20)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A bad change reaches one cluster and no other, whatever the guard does, and a good one reaches all.
    #[test]
    fn bad_change_reaches_one_cluster_beside_any_removals(events in events()) {
        let mut waves = Waves::new(json!({"maxConcurrency": 1}));
        waves.world.add("two", "team", 12);
        waves.steps();
        let (mut number, mut is_bad, mut is_completed) = (1, false, false);
        let mut reached = BTreeSet::new();
        for event in events {
            match event {
                Event::Relabel(member, true) => waves.relabel(&[member], "prod"),
                Event::Relabel(member, false) => waves.relabel(&[member], "none"),
                Event::Edit { is_bad: next } => {
                    (number, is_bad) = (number + 1, next);
                    waves.failing = MEMBERS.into_iter().filter(|_| next).collect();
                    waves.edit(number);
                    reached.clear();
                    is_completed = false;
                }
                Event::Grant(is_there) => waves.set_grant(is_there),
                Event::Restart => waves.restart(),
                Event::Settle => waves.settle(),
                Event::Approve => waves.world.approve_all(),
                Event::BlockOther(is_blocked) => waves.block_other(is_blocked),
            }
            for _ in 0..6 {
                waves.step();
                let has_it = |member: &&str| {
                    let mut all = waves.copies[*member].values();
                    all.any(|revision| revision.0[0] == number)
                };
                reached.extend(MEMBERS.into_iter().filter(|member| has_it(member)));
                if is_bad && !is_completed && waves.phase() == Phase::Completed {
                    // It was completed without clusters, so those that come have nothing to lose.
                    is_completed = true;
                    prop_assert!(waves.copies.values().all(BTreeMap::is_empty), "it completed");
                }
                prop_assert!(
                    !is_bad || is_completed || reached.len() <= 1,
                    "{reached:?} have {number}"
                );
            }
        }
        waves.failing.clear();
        waves.relabel(&[0, 1], "prod");
        waves.set_grant(true);
        waves.settle();
        waves.edit(number + 1);
        waves.steps();
        prop_assert_eq!((waves.has(0), waves.has(1)), (Some(number + 1), Some(number + 1)));
        prop_assert_eq!(waves.phase(), Phase::Completed);
    }
}
