//! Copies of kinds without namespaces.
use super::*;

const PRIORITIES: &str = "priorityclasses.scheduling.k8s.io";

fn object(resource: &str, name: &str) -> SourceRef {
    SourceRef::new(resource, "", name)
}

fn sent(source: SourceRef, revision: u8) -> Intent {
    let content = Content {
        version: Some("v1".into()),
        ..content(revision)
    };
    Intent {
        source,
        revision: Revision([revision; 16]),
        payload: Payload::encode(content.to_bytes()),
    }
}

/// The terms of a rule of the whole cluster.
fn of_cluster(namespaces: &[&str]) -> Terms {
    Terms {
        rule: RuleName {
            kind: "ClusterDistributionRule".into(),
            namespace: String::new(),
            name: "r".into(),
        },
        ..terms("r", namespaces)
    }
}

/// A cluster that takes priority classes and namespaces.
fn world() -> World {
    let mut world = World::new(&["team", "a", "b"]);
    let mut policy = Policy::open();
    for kind in [PRIORITIES, NAMESPACES] {
        policy.cluster_kinds.insert(kind.into());
    }
    world.set_policy(policy);
    world.connect();
    world
}

fn counts(world: &World) -> (u32, u32) {
    let counts = world.reported_state("r").unwrap().counts;
    (counts.copies, counts.applied)
}

#[test]
fn source_without_namespace_has_one_copy() {
    let mut world = world();
    let high = object(PRIORITIES, "high");
    let upserts = vec![sent(high.clone(), 1), intent("settings", 1)];
    world.batch(vec![RuleDelta {
        upserts,
        ..with_terms("r", of_cluster(&["a", "b"]))
    }]);
    world.settle_now();
    assert_eq!(counts(&world), (3, 3));
    assert!(world.objects.contains_key(&high));

    // Neither the lists of namespaces nor a namespace that goes affects it.
    world.list();
    world.set_namespace("b", None);
    world.settle_now();
    assert_eq!(counts(&world).1, 2);
    assert!(world.objects.contains_key(&high));

    // Drift is corrected, and a deleted copy is made again.
    world.edit(&high, |object| object.live.intact = false);
    world.settle_now();
    assert!(world.objects[&high].live.intact);
    world.delete(&high);
    world.settle_now();
    assert!(world.objects.contains_key(&high));

    // A restart writes nothing.
    let writes = world.writes;
    world.restart();
    world.connect();
    world.settle();
    assert_eq!((world.writes, counts(&world).1), (writes, 2));

    world.remove_rule("r", DeletionPolicy::Delete);
    world.settle_now();
    assert!(!world.objects.contains_key(&high));
    assert!(world.reported_state("r").unwrap().gone);
}

#[test]
fn tombstone_removes_a_copy_without_namespace() {
    let mut world = world();
    let [high, low] = ["high", "low"].map(|name| object(PRIORITIES, name));
    world.batch(vec![RuleDelta {
        upserts: vec![sent(high.clone(), 1), sent(low.clone(), 1)],
        ..with_terms("r", of_cluster(&[]))
    }]);
    world.settle_now();
    assert_eq!(counts(&world), (2, 2));
    let tombstones = vec![Tombstone {
        source: high.clone(),
        deletion_policy: DeletionPolicy::Delete,
    }];
    world.batch(vec![RuleDelta {
        tombstones,
        ..RuleDelta::new("r".into())
    }]);
    world.settle_now();
    assert!(!world.objects.contains_key(&high) && world.objects.contains_key(&low));
}

#[test]
fn foreign_object_without_namespace_is_left_alone() {
    let mut world = world();
    let high = object(PRIORITIES, "high");
    world.make_foreign(&high);
    world.batch(vec![RuleDelta {
        upserts: vec![sent(high.clone(), 1)],
        ..with_terms("r", of_cluster(&[]))
    }]);
    world.settle_now();
    let state = world.reported_state("r").unwrap();
    assert_eq!(state.failures[0].reason, Reason::Conflict);
    assert_eq!(state.failures[0].copy, high);
    assert_eq!(world.objects[&high].live.ownership, Ownership::Foreign);
    world.remove_rule("r", DeletionPolicy::Delete);
    world.settle_now();
    assert!(world.objects.contains_key(&high));
}

#[test]
fn rule_of_a_namespace_has_no_copy_without_one() {
    let mut world = world();
    let high = object(PRIORITIES, "high");
    world.batch(vec![RuleDelta {
        upserts: vec![sent(high.clone(), 1), intent("settings", 1)],
        ..with_terms("r", terms("r", &["a"]))
    }]);
    world.settle_now();
    assert_eq!(counts(&world), (1, 1));
    assert!(!world.objects.contains_key(&high));
}

#[test]
fn kind_without_namespaces_is_denied_unless_it_is_named() {
    let mut world = World::new(&["team", "a"]);
    world.connect();
    world.batch(vec![RuleDelta {
        upserts: vec![sent(object(PRIORITIES, "high"), 1)],
        ..with_terms("r", of_cluster(&[]))
    }]);
    world.settle_now();
    let failure = &world.reported_state("r").unwrap().failures[0];
    assert_eq!(failure.reason, Reason::Denied);
    assert!(failure.message.contains("(clusterKinds)"), "{failure:?}");
}

#[test]
fn namespace_as_a_copy_is_limited_like_the_copies_in_it() {
    let mut world = world();
    world.set_namespace(
        "closed",
        Some(Namespace {
            refuses: true,
            ..Namespace::default()
        }),
    );
    world.settle_now();
    let names = ["shop", "runnel-system", "closed", "kube-system", "default"];
    let upserts = names.map(|name| sent(object(NAMESPACES, name), 1));
    world.batch(vec![RuleDelta {
        upserts: upserts.into(),
        ..with_terms("r", of_cluster(&[]))
    }]);
    world.settle_now();
    let made = names.map(|name| world.objects.contains_key(&object(NAMESPACES, name)));
    assert_eq!(made, [true, false, false, false, false]);
    let state = world.reported_state("r").unwrap();
    assert!(
        state
            .failures
            .iter()
            .all(|failure| failure.reason == Reason::Denied),
        "{:?}",
        state.failures
    );
}
