//! Tests of found copies: restored clusters, and copies that appear while the agent runs.
use super::*;
use crate::copy::IntentKey;
use crate::policy::Area;

fn area() -> Area {
    Area {
        resource: "configmaps".into(),
        namespace: None,
    }
}

fn allowing(namespaces: &str) -> Policy {
    let text = format!("{{namespaces: {{allowed: {namespaces}}}, kinds: [configmaps]}}");
    Policy::parse(&text).unwrap()
}

/// Returns the rule states that the agent sent as acked after its first frame.
fn resyncs(world: &World) -> Vec<RuleState> {
    let acked = world.sent.iter().filter_map(|frame| match frame {
        AgentFrame::AckedRules(states, _) => Some(states.clone()),
        _ => None,
    });
    acked.skip(1).flatten().collect()
}

fn wait(world: &mut World) {
    world.settle_now();
    world.now += Duration::from_secs(2);
    world.settle_now();
}

/// Returns the pairs of a rule, as for a request of the hub.
fn pairs(world: &World, uid: &str) -> Vec<(String, Revision)> {
    world
        .acked_pairs(uid)
        .into_iter()
        .map(|acked| (acked.source.name.to_string(), acked.revision))
        .collect()
}

#[test]
fn restored_cluster_is_corrected_with_any_version() {
    let mut world = applied();
    let backup = world.objects.clone();
    world.batch(vec![RuleDelta {
        upserts: vec![intent("s0", 2)],
        ..RuleDelta::new("r".into())
    }]);
    world.settle_now();
    assert!(world.holds(&copy("a", "s0"), "r", "s0", 2));
    world.objects = backup;
    world.list_area(&area());
    world.settle_now();
    for namespace in ["a", "b"] {
        assert!(
            world.holds(&copy(namespace, "s0"), "r", "s0", 2),
            "{namespace}"
        );
    }
    assert_eq!(world.reported_state("r").unwrap().counts.applied, 4);
}

#[test]
fn list_without_a_copy_that_is_written_has_it_read_again() {
    let mut world = applied();
    world.batch(vec![RuleDelta {
        upserts: vec![intent("s0", 2)],
        ..RuleDelta::new("r".into())
    }]);
    world.dispatch();
    world.core.handle(Event::CopiesListed(area()), world.now);
    // One write ends, its object is deleted, and then the list is taken. Another write ends after
    // the list is complete.
    world.work_one();
    let written = world
        .objects
        .iter()
        .find(|(_, object)| object.live.sealed.as_ref().unwrap().revision.0[0] == 2);
    let written = written.unwrap().0.clone();
    world.objects.remove(&written);
    world.undelivered.clear();
    for (copy, object) in world.objects.clone() {
        world.core.handle(Event::Copy(copy, object.live), world.now);
    }
    world.core.handle(Event::CopiesComplete(area()), world.now);
    world.settle();
    assert!(world.holds(&written, "r", "s0", 2));
}

#[test]
fn source_deleted_while_unwatched_stays_deleted() {
    let mut world = applied();
    world.set_policy(allowing("[a]"));
    world.settle_now();
    world.batch(vec![RuleDelta {
        tombstones: vec![tombstone("s0")],
        ..RuleDelta::new("r".into())
    }]);
    world.settle_now();
    assert!(!world.objects.contains_key(&copy("a", "s0")));
    world.set_policy(allowing("[a, b]"));
    wait(&mut world);
    assert!(
        !world.objects.contains_key(&copy("a", "s0")),
        "it is created again"
    );
    let resync = resyncs(&world).pop().unwrap();
    assert_eq!(
        (resync.uid.as_str(), resync.intents),
        ("r", 2),
        "the hub hears of it"
    );
    assert!(pairs(&world, "r").contains(&("s0".to_owned(), Revision([0; 16]))));
    world.batch(vec![RuleDelta {
        tombstones: vec![tombstone("s0")],
        ..RuleDelta::new("r".into())
    }]);
    world.settle();
    assert!(
        !world.objects.keys().any(|copy| *copy.name == *"s0"),
        "{:?}",
        world.objects.keys()
    );
    assert_eq!(world.reported_state("r").unwrap().counts.copies, 2);
}

#[test]
fn saved_copy_that_is_created_again_is_reported_and_left() {
    let mut world = applied();
    let (place, saved) = (copy("a", "s0"), world.objects[&copy("a", "s0")].clone());
    world.batch(vec![RuleDelta {
        tombstones: vec![tombstone("s0")],
        ..RuleDelta::new("r".into())
    }]);
    world.settle();
    let writes = world.writes;
    world.make(&place, saved.clone());
    wait(&mut world);
    assert_eq!(world.writes, writes);
    assert_eq!(resyncs(&world).pop().unwrap().intents, 2);
    // The hub sends the intent, so that the agent corrects the copy and creates it in every
    // namespace.
    world.batch(vec![RuleDelta {
        upserts: vec![intent("s0", 3)],
        ..RuleDelta::new("r".into())
    }]);
    world.settle();
    assert!(world.holds(&place, "r", "s0", 3) && world.holds(&copy("b", "s0"), "r", "s0", 3));
    // A copy of a deleted rule.
    world.remove_rule("r", DeletionPolicy::Delete);
    world.settle();
    assert!(world.objects.is_empty() && world.reported_state("r").unwrap().gone);
    world.make(&place, saved);
    wait(&mut world);
    assert_eq!(resyncs(&world).pop().unwrap().uid.as_str(), "r");
    assert!(world.objects.contains_key(&place));
    world.remove_rule("r", DeletionPolicy::Delete);
    world.settle();
    assert!(world.objects.is_empty());
}

#[test]
fn copies_sealed_with_a_lost_key_are_reported_and_removable() {
    let mut world = applied();
    for object in world.objects.values_mut() {
        let sealed = object.live.sealed.take().unwrap();
        object.live.unproved = Some(Box::new(IntentKey {
            rule: sealed.rule,
            source: sealed.source,
        }));
        object.live.intact = false;
    }
    // The agent joined again: its terms and key are lost.
    world.stored.clear();
    world.restart();
    world.connect();
    wait(&mut world);
    let acked = world.reported_state("r").unwrap();
    assert_eq!((acked.intents, acked.terms_digest), (2, None));
    assert!(
        pairs(&world, "r")
            .iter()
            .all(|(_, revision)| *revision == Revision([0; 16]))
    );
    // The hub sends the intent of s0 and a tombstone for s1.
    let delta = RuleDelta {
        upserts: vec![intent("s0", 1)],
        ..with_terms("r", terms("r", &["a", "b"]))
    };
    world.batch(vec![delta]);
    world.batch(vec![RuleDelta {
        tombstones: vec![tombstone("s1")],
        ..RuleDelta::new("r".into())
    }]);
    world.settle();
    assert_eq!(world.objects.len(), 2);
    assert!(
        world.holds(&copy("a", "s0"), "r", "s0", 1) && world.holds(&copy("b", "s0"), "r", "s0", 1)
    );
}

#[test]
fn order_for_another_rule_leaves_an_unproved_copy() {
    let mut world = applied();
    let place = copy("a", "s0");
    let other = IntentKey {
        rule: "q".into(),
        source: copy("team", "s0"),
    };
    world.batch(vec![RuleDelta {
        tombstones: vec![tombstone("s0")],
        ..RuleDelta::new("r".into())
    }]);
    world.edit(&place, |object| {
        object.live.sealed = None;
        (object.live.unproved, object.live.intact) = (Some(Box::new(other)), false);
    });
    world.settle();
    assert!(world.objects.contains_key(&place) && !world.objects.contains_key(&copy("b", "s0")));
}

#[test]
fn strangers_objects_with_our_label_are_not_remembered() {
    let mut world = applied();
    let known = world.core.member.records.all().count();
    for number in 0..3_000 {
        let place = copy("a", &format!("x{number}"));
        world.make_foreign(&place);
        world.edit(&place, |object| {
            object.labeled = true;
            if number % 2 == 0 {
                let key = IntentKey {
                    rule: format!("u{number}").into(),
                    source: place.clone(),
                };
                (object.live.ownership, object.live.unproved) =
                    (Ownership::Ours, Some(Box::new(key)));
            }
        });
    }
    world.settle_now();
    assert_eq!(world.core.member.records.all().count(), known + 1_500);
    for number in 0..3_000 {
        let place = copy("b", &format!("x{number}"));
        world.make_foreign(&place);
        world.edit(&place, |object| {
            let key = IntentKey {
                rule: "u".into(),
                source: place.clone(),
            };
            (object.live.ownership, object.live.unproved) = (Ownership::Ours, Some(Box::new(key)));
            object.labeled = true;
        });
    }
    world.settle_now();
    assert_eq!(
        world.core.member.records.all().count(),
        known + 2_000,
        "the bound"
    );
}

#[test]
fn restart_between_two_intact_revisions_waits_for_the_hub() {
    let mut world = applied();
    world.edit(&copy("b", "s0"), |object| {
        object.live.sealed.as_mut().unwrap().revision = Revision([7; 16]);
        object.live.applied_at += 1_000;
    });
    world.restart();
    world.settle();
    assert!(
        world.holds(&copy("a", "s0"), "r", "s0", 1),
        "the newest is not spread"
    );
    world.connect();
    assert!(pairs(&world, "r").contains(&("s0".to_owned(), Revision([0; 16]))));
    world.batch(vec![RuleDelta {
        upserts: vec![intent("s0", 1)],
        ..RuleDelta::new("r".into())
    }]);
    world.settle();
    assert!(world.holds(&copy("b", "s0"), "r", "s0", 1));
}

#[test]
fn forged_revision_of_a_damaged_copy_does_not_stop_correction() {
    let mut world = applied();
    world.edit(&copy("b", "s0"), |object| {
        object.live.sealed.as_mut().unwrap().revision = Revision([7; 16]);
        (object.live.intact, object.live.applied_at) = (false, object.live.applied_at + 1_000);
    });
    world.restart();
    world.settle();
    assert!(
        world.holds(&copy("b", "s0"), "r", "s0", 1),
        "put back from its twin"
    );
}

#[test]
fn rule_is_not_gone_when_copies_are_found_after_its_removal() {
    let mut world = applied();
    world.forbid(&area());
    world.restart();
    world.connect();
    world.remove_rule("r", DeletionPolicy::Delete);
    world.confirm();
    wait(&mut world);
    world.permit(&area());
    wait(&mut world);
    let states = world.reported_states("r");
    assert!(
        states.iter().all(|state| !state.gone),
        "gone although 4 copies exist"
    );
    assert_eq!(resyncs(&world).pop().unwrap().intents, 2);
    world.remove_rule("r", DeletionPolicy::Delete);
    world.settle();
    assert!(world.objects.is_empty() && world.reported_state("r").unwrap().gone);
}

#[test]
fn found_copy_outside_the_targets_goes_when_its_source_is_sent() {
    let mut world = applied();
    world.set_policy(allowing("[a]"));
    world.batch(vec![RuleDelta {
        tombstones: vec![tombstone("s0")],
        ..with_terms("r", terms("r", &["a"]))
    }]);
    world.settle_now();
    world.set_policy(allowing("[a, b]"));
    wait(&mut world);
    assert!(world.holds(&copy("b", "s0"), "r", "s0", 1), "only found");
    world.batch(vec![RuleDelta {
        upserts: vec![intent("s0", 2)],
        ..RuleDelta::new("r".into())
    }]);
    wait(&mut world);
    assert!(world.holds(&copy("a", "s0"), "r", "s0", 2));
    assert!(!world.objects.contains_key(&copy("b", "s0")));
}

#[test]
fn found_copies_that_a_rule_took_over_are_not_reported_again() {
    let mut world = applied();
    let (place, saved) = (copy("a", "s0"), world.objects[&copy("a", "s0")].clone());
    world.remove_rule("r", DeletionPolicy::Delete);
    world.settle();
    let suspended = |suspend| {
        let terms = Terms {
            suspend,
            ..terms("q", &["a"])
        };
        RuleDelta {
            upserts: vec![intent("s0", 1)],
            ..with_terms("q", terms)
        }
    };
    world.batch(vec![suspended(true)]);
    world.settle_now();
    world.make(&place, saved);
    wait(&mut world);
    assert_eq!(resyncs(&world).pop().unwrap().uid.as_str(), "r");
    world.batch(vec![
        suspended(false),
        RuleDelta {
            orphaned: true,
            ..RuleDelta::new("r".into())
        },
    ]);
    world.settle();
    assert!(world.holds(&place, "q", "s0", 1));
    let before = world.sent.len();
    world.connect();
    world.settle_now();
    let acked = world.sent[before..].iter().filter_map(|frame| match frame {
        AgentFrame::AckedRules(states, _) => Some(states),
        _ => None,
    });
    let rules: Vec<_> = acked.flatten().map(|state| state.uid.as_str()).collect();
    assert_eq!(rules, ["q"]);
}

#[test]
fn deleted_copy_of_an_orphaned_rule_stays_deleted() {
    let mut world = applied();
    let all = ["s0", "s1"].map(|name| [copy("a", name), copy("b", name)]);
    let all: Vec<_> = all.into_iter().flatten().collect();
    world.batch(vec![RuleDelta {
        orphaned: true,
        ..RuleDelta::new("r".into())
    }]);
    world.settle();
    // What exists is corrected.
    world.edit(&all[1], |object| object.live.intact = false);
    world.delete(&all[0]);
    world.settle();
    assert!(!world.objects.contains_key(&all[0]));
    assert!(world.objects[&all[1]].live.intact);
    world.restart();
    world.connect();
    world.settle();
    assert!(!world.objects.contains_key(&all[0]));
    assert!(world.objects.contains_key(&all[1]));
    world.set_namespace("b", None);
    world.set_namespace("b", Some(Namespace::default()));
    for copy in &all[1..] {
        world.delete(copy);
    }
    world.settle();
    assert!(world.objects.is_empty());
    assert!(world.reported_state("r").unwrap().gone, "no copy is left");
}

#[test]
fn rule_that_the_hub_has_again_restores_its_copies() {
    let mut world = applied();
    let orphaned = |orphaned| RuleDelta {
        orphaned,
        ..RuleDelta::new("r".into())
    };
    world.batch(vec![orphaned(true)]);
    world.settle();
    world.delete(&copy("a", "s0"));
    world.settle();
    assert!(!world.objects.contains_key(&copy("a", "s0")));
    world.batch(vec![orphaned(false)]);
    world.settle();
    assert!(world.holds(&copy("a", "s0"), "r", "s0", 1));
}

#[test]
fn marks_of_another_rule_on_a_drifted_copy_are_no_found_copy() {
    let mut world = applied();
    let reports = Terms {
        drift_policy: DriftPolicy::Report,
        ..terms("r", &["a", "b"])
    };
    world.batch(vec![with_terms("r", reports)]);
    world.settle();
    let place = copy("a", "s0");
    world.edit(&place, |object| {
        object.live.sealed.as_mut().unwrap().rule = "x".into();
    });
    world.settle();
    assert_eq!(world.reported_state("r").unwrap().counts.drifted, 1);
    assert_eq!(resyncs(&world), []);
}
