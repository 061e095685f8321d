//! Property of short-lived rules: each is created, hands its copies over and is deleted. The agent
//! reports a rule as gone only when no copy of it exists and no write for it is under way.
use super::world::*;
use proptest::prelude::*;
use runnel_proto::model::*;

/// A step in the lives of rules.
#[derive(Clone, Debug)]
enum Step {
    /// A new rule selects a source.
    Create(u8),
    /// The content that one of the rules selects is edited.
    Edit(u8, u8),
    /// One of the rules is deleted.
    Remove(u8),
    /// Another client deletes a copy.
    Delete(u8),
    /// A watch event arrives.
    Deliver,
    /// The API server handles a request and answers.
    Work,
    /// The API server handles a request, and the answer is lost.
    Lose,
    /// The agent starts the jobs that are due.
    GiveOut,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0u8..2).prop_map(Step::Create),
        1 => (any::<u8>(), 1u8..4).prop_map(|(rule, revision)| Step::Edit(rule, revision)),
        4 => any::<u8>().prop_map(Step::Remove),
        1 => (0u8..2).prop_map(Step::Delete),
        5 => Just(Step::Deliver),
        6 => Just(Step::Work),
        1 => Just(Step::Lose),
        6 => Just(Step::GiveOut),
    ];
    proptest::collection::vec(step, 0..60)
}

/// A cluster, and its existing rules.
struct LifecycleWorld {
    world: World,
    /// Uid and source of each existing rule.
    rules: Vec<(String, String)>,
    created: i64,
}

impl LifecycleWorld {
    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match step {
            Step::Create(source) => {
                self.created += 1;
                let (uid, name) = (format!("r{}", self.created), format!("s{source}"));
                // Every second rule has precedence over all earlier ones.
                let created_at = if self.created % 2 == 0 {
                    -self.created
                } else {
                    self.created
                };
                let delta = RuleDelta {
                    upserts: vec![intent(&name, 1)],
                    ..with_terms(
                        &uid,
                        Terms {
                            created_at,
                            ..terms(&uid, &["a"])
                        },
                    )
                };
                self.world.batch(vec![delta]);
                self.rules.push((uid, name));
            }
            Step::Edit(rule, revision) => {
                if let Some((uid, name)) =
                    self.rules.get(usize::from(*rule) % self.rules.len().max(1))
                {
                    let upserts = vec![intent(name, *revision)];
                    self.world.batch(vec![RuleDelta {
                        upserts,
                        ..RuleDelta::new(uid.as_str().into())
                    }]);
                }
            }
            Step::Remove(rule) => {
                if !self.rules.is_empty() {
                    let (uid, _) = self.rules.remove(usize::from(*rule) % self.rules.len());
                    self.remove(&uid);
                }
            }
            Step::Delete(source) => self.world.delete(&copy("a", &format!("s{source}"))),
            Step::Deliver => drop(self.world.deliver_one()),
            Step::Work => drop(self.world.work_one()),
            Step::Lose => self.world.lose_one(),
            Step::GiveOut => self.world.dispatch(),
        }
        self.check()
    }

    fn remove(&mut self, uid: &str) {
        let removal = Some(DeletionPolicy::Delete);
        self.world.batch(vec![RuleDelta {
            removal,
            ..RuleDelta::new(uid.into())
        }]);
    }

    /// Checks that no rule that the agent has reported as gone has a copy or a write under way.
    fn check(&self) -> Result<(), TestCaseError> {
        let states = self.world.sent.iter().flat_map(|frame| match frame {
            AgentFrame::Report(states) => states.as_slice(),
            _ => &[],
        });
        for state in states.filter(|state| state.gone) {
            for (copy, object) in &self.world.objects {
                let of = object.live.sealed.as_ref().map(|sealed| &sealed.rule);
                prop_assert!(
                    of != Some(&state.uid),
                    "{} is gone and has {copy}",
                    state.uid
                );
            }
            prop_assert!(
                !self.world.writes_for(&state.uid),
                "{} is gone and is being written",
                state.uid
            );
        }
        Ok(())
    }
}

fn begin() -> LifecycleWorld {
    let mut world = World::new(&["team", "a"]);
    world.connect();
    world.confirm();
    LifecycleWorld {
        world,
        rules: vec![],
        created: 0,
    }
}

fn play(steps: &[Step]) -> Result<(), TestCaseError> {
    let mut lives = begin();
    for step in steps {
        lives.step(step)?;
    }
    for (uid, _) in std::mem::take(&mut lives.rules) {
        lives.remove(&uid);
    }
    lives.world.settle();
    lives.check()?;
    let left: Vec<_> = lives.world.objects.keys().collect();
    prop_assert!(left.is_empty(), "copies without a rule: {left:?}");
    for number in 1..=lives.created {
        let uid = format!("r{number}");
        prop_assert!(
            lives
                .world
                .reported_state(&uid)
                .is_some_and(|state| state.gone),
            "{uid} is not reported as gone: {:?}",
            lives.world.reported_states(&uid)
        );
    }
    prop_assert_eq!(lives.world.core.counts(), Counts::default());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2048, ..ProptestConfig::default() })]
    #[test]
    fn deleted_rule_leaves_no_copy(steps in steps()) {
        play(&steps)?;
    }

    #[test]
    fn reported_copies_exist_in_the_member(steps in steps()) {
        let mut lives = begin();
        for step in &steps {
            lives.step(step)?;
        }
        lives.world.settle();
        for (uid, _) in &lives.rules {
            let of_rule = |object: &&Object| {
                object.live.sealed.as_ref().is_some_and(|sealed| sealed.rule.as_str() == uid)
            };
            let existing = lives.world.objects.values().filter(of_rule).count();
            let counts = lives.world.reported_state(uid).map(|state| state.counts);
            prop_assert_eq!(counts.map(|counts| counts.existing() as usize), Some(existing), "{}", uid);
        }
    }
}
