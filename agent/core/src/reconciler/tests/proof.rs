//! Tests of proofs: a proof equals the hub's expectation exactly if every copy is as it was sent.
use super::*;
use std::collections::BTreeSet;

fn proved(world: &mut World) -> Option<Proof> {
    world.settle_now();
    world.reported_state("r").unwrap().proof
}

#[test]
fn edit_is_proved_when_all_its_copies_have_it() {
    let mut world = applied();
    assert_eq!(
        proved(&mut world),
        Some(proof_of("r", [("s0", 1), ("s1", 1)]))
    );
    world.batch(vec![RuleDelta {
        upserts: vec![intent("s0", 2)],
        ..RuleDelta::new("r".into())
    }]);
    assert_eq!(
        proved(&mut world),
        Some(proof_of("r", [("s0", 2), ("s1", 1)]))
    );
    let between: Vec<_> = world
        .reported_states("r")
        .into_iter()
        .filter(|state| state.counts.copies_in_progress() > 0)
        .collect();
    assert!(
        between.iter().all(|state| state.proof.is_none()),
        "{between:?}"
    );
    world.batch(vec![RuleDelta {
        tombstones: vec![tombstone("s1")],
        ..RuleDelta::new("r".into())
    }]);
    assert_eq!(proved(&mut world), Some(proof_of("r", [("s0", 2)])));
}

#[test]
fn one_wrong_copy_of_many_changes_the_proof() {
    let mut world = applied();
    let right = proved(&mut world);
    let other = || Some(ContentDigest::of(&content(7), &BTreeSet::new()));
    // The agent has recorded wrong content as correct.
    let before = world.objects[&copy("b", "s1")].live.facts.digest;
    world.edit(&copy("b", "s1"), |object| {
        object.live.facts.digest = other()
    });
    let wrong = proved(&mut world);
    assert!(wrong.is_some() && wrong != right, "{wrong:?}");
    assert_eq!(world.reported_state("r").unwrap().counts.applied, 4);
    // The proof also differs if all copies of a source are wrong in the same way.
    world.edit(&copy("a", "s1"), |object| {
        object.live.facts.digest = other()
    });
    assert_eq!(
        proved(&mut world),
        Some(proof_of("r", [("s0", 1), ("s1", 7)]))
    );
    for namespace in ["a", "b"] {
        world.edit(&copy(namespace, "s1"), |object| {
            object.live.facts.digest = before
        });
    }
    assert_eq!(proved(&mut world), right);
}

#[test]
fn failing_drifting_or_pending_rule_proves_nothing() {
    let mut world = applied();
    let right = proved(&mut world);
    world.poisoned.insert("s0".into());
    world.edit(&copy("a", "s0"), |object| object.live.intact = false);
    assert_eq!(proved(&mut world), None);
    world.poisoned.clear();
    world.settle();
    assert_eq!(proved(&mut world), right);
    let report = Terms {
        drift_policy: DriftPolicy::Report,
        created_at: 101,
        ..terms("r", &["a", "b"])
    };
    world.batch(vec![with_terms("r", report)]);
    assert_eq!(proved(&mut world), right);
    world.edit(&copy("a", "s0"), |object| object.live.intact = false);
    assert_eq!(proved(&mut world), None);
}

#[test]
fn copies_waiting_for_namespaces_count_as_sent() {
    let mut world = World::new(&["team", "a"]);
    world.connect();
    let delta = |terms| RuleDelta {
        upserts: vec![intent("s0", 1)],
        ..with_terms("r", terms)
    };
    world.batch(vec![delta(terms("r", &["later"]))]);
    assert_eq!(proved(&mut world), Some(proof_of("r", [("s0", 1)])));
    assert_eq!(world.reported_state("r").unwrap().counts.waiting, 1);
    world.set_namespace("later", Some(Namespace::default()));
    assert_eq!(proved(&mut world), Some(proof_of("r", [("s0", 1)])));

    let ignore_fields = BTreeSet::from([FieldPath::parse("/data/k").unwrap()]);
    let left = Terms {
        ignore_fields: ignore_fields.clone(),
        created_at: 101,
        ..terms("r", &["a", "later"])
    };
    world.batch(vec![with_terms("r", left.clone())]);
    let mut shown = LiveDigest::default();
    shown.insert(
        &copy("team", "s0"),
        ContentDigest::of(&content(1), &ignore_fields),
    );
    assert_eq!(
        proved(&mut world),
        Some(ProofKey::new([9; 32]).proof(&"r".into(), shown))
    );
    // Without a copy, the agent cannot compute the digest without the ignored fields.
    let nowhere = Terms {
        created_at: 102,
        namespaces: terms("r", &["nowhere"]).namespaces,
        ..left
    };
    world.batch(vec![with_terms("r", nowhere)]);
    assert_eq!(proved(&mut world), None);
}

#[test]
fn another_key_gives_another_proof_and_none_gives_none() {
    let mut world = applied();
    let first = proved(&mut world);
    for key in [Some(ProofKey::new([8; 32])), None] {
        world.core.handle(Event::HubConnected, world.now);
        let (hub_id, hub_cluster_uid) = ("h".to_owned(), "hub".to_owned());
        let begin = SnapshotBegin {
            protocol: 1,
            hub_id,
            hub_cluster_uid,
            behind: false,
            proof_key: key.clone(),
        };
        world.core.handle(
            Event::Hub(HubFrame::SnapshotBegin(begin), vec![]),
            world.now,
        );
        let proved_now = proved(&mut world);
        assert_eq!(proved_now.is_some(), key.is_some());
        assert_ne!(proved_now, first);
    }
}
