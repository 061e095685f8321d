//! Adopted objects: Runnel did not create them. It changes and deletes them only if rule, grant and
//! policy all allow overwriting.
use super::world::*;
use crate::live::Ownership;
use crate::policy::{Adopt, OnRevoke};
use crate::reconciler::*;
use proptest::prelude::*;
use runnel_proto::model::*;
use std::collections::BTreeSet;
use std::time::Duration;

fn adopting(uid: &str) -> Terms {
    Terms {
        conflict_policy: ConflictPolicy::AdoptIfEqual,
        created_at: i64::from(uid == "q"),
        ..terms(uid, &["a"])
    }
}

fn send(world: &mut World, terms: Terms, revision: u8) {
    let uid = terms.rule.name.clone();
    world.batch(vec![RuleDelta {
        upserts: vec![intent("s0", revision)],
        ..with_terms(&uid, terms)
    }]);
    world.settle();
}

/// Returns a world in which rule r has adopted the object a/s0 with revision 1.
fn adopted() -> World {
    let mut world = World::new(&["team", "a"]);
    world.set_policy(Policy {
        overwrite: false,
        ..Policy::open()
    });
    world.spares = true;
    world.connect();
    world.write_foreign(&copy("a", "s0"), 1);
    send(&mut world, adopting("r"), 1);
    assert!(
        world.holds(&copy("a", "s0"), "r", "s0", 1) && world.objects[&copy("a", "s0")].live.adopted
    );
    world
}

fn failure(world: &World) -> Failure {
    world.reported_state("r").unwrap().failures[0].clone()
}

#[test]
fn adopted_object_keeps_its_content_when_the_source_changes() {
    let mut world = adopted();
    send(&mut world, adopting("r"), 2);
    assert_eq!(world.objects[&copy("a", "s0")].theirs, Some(1));
    let Failure {
        reason, message, ..
    } = failure(&world);
    assert_eq!(reason, Reason::Conflict);
    assert!(
        message.contains("did not create") && message.contains("conflictPolicy: Overwrite"),
        "{message}"
    );
    // Its owner makes the same change, so that it equals the source again.
    world.write_foreign(&copy("a", "s0"), 2);
    world.settle();
    assert!(
        world.holds(&copy("a", "s0"), "r", "s0", 2) && world.objects[&copy("a", "s0")].live.adopted
    );
}

#[test]
fn adopted_object_follows_its_source_with_overwriting_allowed() {
    let mut world = adopted();
    let overwriting = Terms {
        conflict_policy: ConflictPolicy::Overwrite,
        created_at: 7,
        ..adopting("r")
    };
    send(&mut world, overwriting.clone(), 2);
    assert_eq!(failure(&world).reason, Reason::Denied);
    assert!(failure(&world).message.contains("(policy.overwrite=false)"));
    world.set_policy(Policy::open());
    world.spares = false;
    world.settle();
    assert!(
        world.holds(&copy("a", "s0"), "r", "s0", 2)
            && !world.objects[&copy("a", "s0")].live.adopted
    );
}

#[test]
fn adopted_object_is_released_with_its_rule() {
    for restarts in [false, true] {
        let mut world = adopted();
        if restarts {
            world.restart();
            world.connect();
        }
        world.remove_rule("r", DeletionPolicy::Delete);
        world.settle();
        let object = &world.objects[&copy("a", "s0")];
        assert_eq!(
            (object.live.ownership, object.labeled),
            (Ownership::Foreign, false)
        );
        assert!(world.reported_state("r").unwrap().gone);
    }
}

#[test]
fn adopted_object_is_deleted_where_overwriting_is_allowed() {
    let mut world = adopted();
    world.set_policy(Policy::open());
    world.spares = false;
    send(
        &mut world,
        Terms {
            conflict_policy: ConflictPolicy::Overwrite,
            created_at: 7,
            ..adopting("r")
        },
        1,
    );
    world.batch(vec![RuleDelta {
        tombstones: vec![tombstone("s0")],
        ..RuleDelta::new("r".into())
    }]);
    world.settle();
    assert!(world.objects.is_empty());
}

#[test]
fn adopted_object_passes_to_another_rule_as_it_is() {
    let mut world = adopted();
    send(
        &mut world,
        Terms {
            created_at: 200,
            ..adopting("q")
        },
        1,
    );
    world.remove_rule("r", DeletionPolicy::Delete);
    world.settle();
    assert!(
        world.reported_state("r").unwrap().gone,
        "the other rule does not hold it back"
    );
    assert!(
        world.holds(&copy("a", "s0"), "q", "s0", 1) && world.objects[&copy("a", "s0")].live.adopted
    );
}

#[test]
fn adoption_needs_the_grant_and_the_policy() {
    for (policy, granted, expected) in [
        (Adopt::Equal, false, Reason::Conflict),
        (Adopt::Never, true, Reason::Denied),
        (Adopt::Never, false, Reason::Conflict),
    ] {
        let mut world = World::new(&["team", "a"]);
        world.set_policy(Policy {
            adopt: policy,
            overwrite: false,
            ..Policy::open()
        });
        world.connect();
        world.write_foreign(&copy("a", "s0"), 1);
        let grant = Grant {
            resources: vec!["configmaps".to_owned()],
            adopt: granted,
            ..Grant::default()
        };
        send(
            &mut world,
            Terms {
                grants: Some(vec![grant]),
                ..adopting("r")
            },
            1,
        );
        assert_eq!((failure(&world).reason, world.writes), (expected, 0));
        assert!(
            policy == Adopt::Equal
                || !granted
                || failure(&world).message.contains("(policy.adopt=Never)")
        );
    }
}

#[test]
fn retained_copy_is_taken_back_only_where_the_policy_adopts() {
    for policy in [Adopt::Equal, Adopt::Never] {
        let mut world = World::new(&["team", "a"]);
        world.set_policy(Policy {
            adopt: policy,
            ..Policy::open()
        });
        world.connect();
        let retaining = Terms {
            deletion_policy: DeletionPolicy::Retain,
            ..terms("r", &["a"])
        };
        send(&mut world, retaining.clone(), 1);
        world.remove_rule("r", DeletionPolicy::Retain);
        world.settle();
        assert_eq!(
            world.objects[&copy("a", "s0")].live.ownership,
            Ownership::Retained
        );
        send(&mut world, retaining, 1);
        let back = world.holds(&copy("a", "s0"), "r", "s0", 1)
            && !world.objects[&copy("a", "s0")].live.adopted;
        assert_eq!(back, policy == Adopt::Equal);
        assert!(back || failure(&world).message.contains("(policy.adopt=Never)"));
    }
}

#[test]
fn unsealed_object_is_not_corrected_after_a_restart() {
    let mut world = adopted();
    // Its owner replaces the whole object except its managed fields.
    world.write_foreign(&copy("a", "s0"), 3);
    world.edit(&copy("a", "s0"), unseal);
    world.restart();
    world.connect();
    send(&mut world, adopting("r"), 1);
    assert_eq!(world.objects[&copy("a", "s0")].theirs, Some(3));
    assert_eq!(failure(&world).reason, Reason::Conflict);
}

#[test]
fn unsealed_copy_is_corrected_by_its_agent() {
    let mut world = World::new(&["team", "a"]);
    world.connect();
    send(&mut world, terms("r", &["a"]), 1);
    world.edit(&copy("a", "s0"), unseal);
    world.settle();
    assert!(
        world.holds(&copy("a", "s0"), "r", "s0", 1)
            && !world.objects[&copy("a", "s0")].live.adopted
    );
}

/// Removes our marks from an object, as a full replacement does. Its managed fields remain.
fn unseal(object: &mut Object) {
    if object.live.ownership == Ownership::Ours {
        object.labeled = false;
        (object.live.sealed, object.live.intact, object.live.adopted) = (None, false, true);
    }
}

/// A step of a history.
#[derive(Clone, Debug)]
enum Step {
    Write(u8, u8),
    Unseal(u8),
    Remove(u8),
    Terms(u8, u8, bool, bool),
    Upsert(u8, u8, u8),
    Tombstone(u8, u8),
    Leave(u8, bool),
    Policy(bool, bool, bool),
    Revoke,
    Deliver,
    Work,
    Lose,
    GiveOut,
    Later,
    Restart,
    HubAway,
    Connect,
    Settle,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (0u8..2, 1u8..4).prop_map(|(copy, revision)| Step::Write(copy, revision)),
        1 => (0u8..2).prop_map(Step::Unseal),
        1 => (0u8..2).prop_map(Step::Remove),
        4 => (0u8..2, 0u8..3, any::<bool>(), any::<bool>()).prop_map(|(r, c, i, d)| Step::Terms(r, c, i, d)),
        4 => (0u8..2, 0u8..2, 1u8..4).prop_map(|(r, s, v)| Step::Upsert(r, s, v)),
        2 => (0u8..2, 0u8..2).prop_map(|(r, s)| Step::Tombstone(r, s)),
        2 => (0u8..2, any::<bool>()).prop_map(|(r, retain)| Step::Leave(r, retain)),
        1 => (any::<bool>(), any::<bool>(), any::<bool>()).prop_map(|(a, n, p)| Step::Policy(a, n, p)),
        1 => Just(Step::Revoke),
        3 => Just(Step::Deliver),
        3 => Just(Step::Work),
        1 => Just(Step::Lose),
        3 => Just(Step::GiveOut),
        1 => Just(Step::Later),
        1 => Just(Step::Restart),
        1 => Just(Step::HubAway),
        1 => Just(Step::Connect),
        4 => Just(Step::Settle),
    ];
    proptest::collection::vec(step, 0..60)
}

/// Returns the terms of a rule. `denier`: 0: the member's policy denies overwriting, 1: the grant,
/// 2: the rule.
fn rule_terms(denier: u8, uid: &str, conflict: u8, ignores: bool, recreates: bool) -> Terms {
    let all = [
        ConflictPolicy::Fail,
        ConflictPolicy::AdoptIfEqual,
        ConflictPolicy::Overwrite,
    ];
    let conflict_policy = match all[usize::from(conflict)] {
        ConflictPolicy::Overwrite if denier == 2 => ConflictPolicy::AdoptIfEqual,
        other => other,
    };
    let grant = Grant {
        resources: vec!["configmaps".to_owned()],
        adopt: true,
        ..Grant::default()
    };
    Terms {
        conflict_policy,
        ignore_fields: ignores
            .then(|| FieldPath::parse("/data/k").unwrap())
            .into_iter()
            .collect(),
        immutable_policy: if recreates {
            ImmutablePolicy::Recreate
        } else {
            ImmutablePolicy::Report
        },
        drift_policy: if ignores && recreates {
            DriftPolicy::Report
        } else {
            DriftPolicy::Correct
        },
        grants: (denier == 1).then(|| vec![grant]),
        ..adopting(uid)
    }
}

/// Plays a history with arbitrary orders of the hub. The model of the API server fails on a write
/// that changes or deletes an object that Runnel did not create.
fn play(denier: u8, steps: &[Step]) -> Result<(), TestCaseError> {
    let mut world = World::new(&["team", "a"]);
    world.spares = true;
    let policy = |adopt: bool, all: bool, purge: bool| Policy {
        overwrite: denier != 0,
        adopt: if adopt { Adopt::Equal } else { Adopt::Never },
        kinds: if all {
            Policy::open().kinds
        } else {
            ["secrets".into()].into()
        },
        on_revoke: if purge {
            OnRevoke::Purge
        } else {
            OnRevoke::Keep
        },
        ..Policy::open()
    };
    world.set_policy(policy(true, true, false));
    world.connect();
    let uid = |rule: u8| ["r", "q"][usize::from(rule)];
    let place = |name: u8| copy("a", &format!("s{name}"));
    let mut owned = BTreeSet::new();
    for step in steps {
        match step {
            Step::Write(name, revision) => {
                world.write_foreign(&place(*name), *revision);
                if world
                    .objects
                    .get(&place(*name))
                    .is_some_and(|object| object.theirs.is_some())
                {
                    owned.insert(place(*name));
                }
            }
            Step::Unseal(name) => world.edit(&place(*name), unseal),
            Step::Remove(name) => {
                owned.remove(&place(*name));
                world.delete(&place(*name));
            }
            Step::Terms(rule, conflict, ignores, recreates) => {
                let terms = rule_terms(denier, uid(*rule), *conflict, *ignores, *recreates);
                world.batch(vec![with_terms(uid(*rule), terms)]);
            }
            Step::Upsert(rule, name, revision) => {
                let upserts = vec![intent(&format!("s{name}"), *revision)];
                world.batch(vec![RuleDelta {
                    upserts,
                    ..RuleDelta::new(uid(*rule).into())
                }]);
            }
            Step::Tombstone(rule, name) => {
                let tombstones = vec![tombstone(&format!("s{name}"))];
                world.batch(vec![RuleDelta {
                    tombstones,
                    ..RuleDelta::new(uid(*rule).into())
                }]);
            }
            Step::Leave(rule, retain) => {
                let removal = Some(if *retain {
                    DeletionPolicy::Retain
                } else {
                    DeletionPolicy::Delete
                });
                world.batch(vec![RuleDelta {
                    removal,
                    ..RuleDelta::new(uid(*rule).into())
                }]);
            }
            Step::Policy(adopt, all, purge) => world.set_policy(policy(*adopt, *all, *purge)),
            Step::Revoke => world.core.handle(Event::Revoked, world.now),
            Step::Deliver => drop(world.deliver_one()),
            Step::Work => drop(world.work_one()),
            Step::Lose => world.lose_one(),
            Step::GiveOut => world.dispatch(),
            Step::Later => world.now += Duration::from_secs(7),
            Step::Restart => world.restart(),
            Step::HubAway => world.core.handle(Event::HubLost, world.now),
            Step::Connect => world.connect(),
            Step::Settle => world.settle_now(),
        }
    }
    world.settle();
    for copy in owned {
        prop_assert!(
            world
                .objects
                .get(&copy)
                .is_some_and(|object| object.theirs.is_some()),
            "{copy} is lost"
        );
    }
    Ok(())
}

proptest! {
    /// If overwriting is denied, no history changes or deletes the content of an object that Runnel
    /// did not create.
    #[test]
    fn no_history_touches_what_runnel_did_not_create(denier in 0u8..3, steps in steps()) {
        play(denier, &steps)?;
    }
}
