//! Older versions of copies whose name contains a digest of their content.
use super::*;

fn name(content: u8) -> String {
    format!("s0-{content:010}")
}

fn versioned(keep: u32, namespaces: &[&str]) -> RuleDelta {
    with_terms(
        "r",
        Terms {
            versions: Some(keep),
            created_at: i64::from(keep),
            ..terms("r", namespaces)
        },
    )
}

fn upsert(content: u8) -> Intent {
    let intent = intent("s0", content);
    Intent {
        source: intent.source.as_copy(&name(content)),
        ..intent
    }
}

fn drops_version(content: u8) -> Tombstone {
    Tombstone {
        source: copy("team", "s0").as_copy(&name(content)),
        deletion_policy: DeletionPolicy::Delete,
    }
}

/// Returns a world with a rule that keeps three versions, and the first version in the namespaces a
/// and b.
fn first() -> World {
    let mut world = World::new(&["team", "a", "b"]);
    world.connect();
    world.batch(vec![RuleDelta {
        upserts: vec![upsert(1)],
        ..versioned(3, &["a", "b"])
    }]);
    world.settle();
    world
}

/// Changes the content of the source.
fn edit(world: &mut World, from: u8, to: u8) {
    let delta = RuleDelta::new("r".into());
    let (upserts, tombstones) = (vec![upsert(to)], vec![drops_version(from)]);
    world.batch(vec![
        RuleDelta {
            upserts,
            ..delta.clone()
        },
        RuleDelta {
            tombstones,
            ..delta
        },
    ]);
    world.settle();
}

/// Restarts the agent, without or with a hub that sends nothing new.
fn restart(world: &mut World, connects: bool) {
    world.restart();
    if connects {
        world.connect();
        world.confirm();
    }
    world.settle();
}

/// Checks that these versions exist, that the first one has the label of the newest, and that the
/// counts include only it.
fn check_versions(world: &World, namespaces: &[&str], contents: &[u8]) {
    for namespace in namespaces {
        let here = world
            .objects
            .iter()
            .filter(|(copy, object)| *copy.namespace == **namespace && object.labeled);
        let mut here: Vec<_> = here
            .map(|(copy, object)| (object.live.newest, copy.name.to_string()))
            .collect();
        here.sort();
        let mut expected: Vec<_> = contents
            .iter()
            .map(|content| (*content == contents[0], name(*content)))
            .collect();
        expected.sort();
        assert_eq!(here, expected, "in {namespace}");
    }
    let counts = world.reported_state("r").unwrap().counts;
    assert_eq!((counts.copies, counts.applied, counts.removing), (2, 2, 0));
}

#[test]
fn newest_versions_stay_and_a_returning_one_is_newest() {
    let mut world = first();
    for content in 2..=5 {
        edit(&mut world, content - 1, content);
    }
    check_versions(&world, &["a", "b"], &[5, 4, 3]);
    // Earlier content returns: its version is the newest again, and no new object.
    let uid = world.objects[&copy("a", &name(3))].live.uid.clone();
    edit(&mut world, 5, 3);
    check_versions(&world, &["a", "b"], &[3, 5, 4]);
    assert_eq!(world.objects[&copy("a", &name(3))].live.uid, uid);
    edit(&mut world, 3, 6);
    check_versions(&world, &["a", "b"], &[6, 3, 5]);
    // A deleted older version is not created again, and another one stays one edit longer.
    world.delete(&copy("a", &name(3)));
    world.settle();
    check_versions(&world, &["a"], &[6, 5]);
    edit(&mut world, 6, 7);
    check_versions(&world, &["a"], &[7, 6, 5]);
    check_versions(&world, &["b"], &[7, 6, 3]);
    // A lost label is restored.
    world.edit(&copy("a", &name(7)), |object| object.live.newest = false);
    world.settle();
    check_versions(&world, &["a"], &[7, 6, 5]);
    // The rule keeps fewer versions, and later none, so that copies are changed in place.
    world.batch(vec![versioned(2, &["a", "b"])]);
    world.settle();
    check_versions(&world, &["a", "b"], &[7, 6]);
    let delta = with_terms(
        "r",
        Terms {
            created_at: 9,
            ..terms("r", &["a", "b"])
        },
    );
    let (upserts, tombstones) = (vec![intent("s0", 7)], vec![drops_version(7)]);
    world.batch(vec![
        RuleDelta { upserts, ..delta },
        RuleDelta {
            tombstones,
            ..RuleDelta::new("r".into())
        },
    ]);
    world.settle();
    assert!(world.holds(&copy("a", "s0"), "r", "s0", 7) && world.objects.len() == 2);
}

#[test]
fn versions_outlive_restarts_and_the_newest_is_reported() {
    let mut world = first();
    for content in 2..=4 {
        edit(&mut world, content - 1, content);
    }
    edit(&mut world, 4, 2);
    let acked = |world: &World| world.core.member.desired.rules().pairs(&"r".into());
    let (writes, before) = (world.writes, acked(&world));
    assert_eq!(before.len(), 1);
    for connects in [false, true] {
        restart(&mut world, connects);
        assert_eq!(
            (world.writes, acked(&world)),
            (writes, before.clone()),
            "{connects}"
        );
        assert_eq!(world.objects.len(), 6);
    }
    // The agent knows the order of the versions, and removes the oldest.
    edit(&mut world, 2, 5);
    check_versions(&world, &["a", "b"], &[5, 2, 4]);
    // A restart between the creation of the newest version and the update of the others.
    let delta = RuleDelta::new("r".into());
    world.batch(vec![
        RuleDelta {
            upserts: vec![upsert(6)],
            ..delta.clone()
        },
        RuleDelta {
            tombstones: vec![drops_version(5)],
            ..delta
        },
    ]);
    world.dispatch();
    assert!(world.work_one());
    world.restart();
    world.connect();
    world.settle();
    edit(&mut world, 5, 6);
    world.confirm();
    world.settle();
    check_versions(&world, &["a", "b"], &[6, 5, 2]);
}

#[test]
fn failing_version_removes_no_older_one() {
    let mut world = first();
    for content in 2..=3 {
        edit(&mut world, content - 1, content);
    }
    world.poisoned.insert(name(4));
    edit(&mut world, 3, 4);
    for content in 1..=3 {
        let object = &world.objects[&copy("a", &name(content))];
        assert_eq!(
            (object.labeled, object.live.newest),
            (true, content == 3),
            "{content}"
        );
    }
    assert_eq!(world.reported_state("r").unwrap().counts.failed, 2);
    world.poisoned.clear();
    world.settle();
    check_versions(&world, &["a", "b"], &[4, 3, 2]);
}

#[test]
fn versions_go_with_source_namespace_and_rule() {
    let three = || {
        let mut world = first();
        world.batch(vec![RuleDelta {
            upserts: vec![intent("s1", 1)],
            ..RuleDelta::new("r".into())
        }]);
        for content in 2..=3 {
            edit(&mut world, content - 1, content);
        }
        assert_eq!(world.objects.len(), 8);
        world
    };
    let gone = |world: &World, namespace: &str| {
        !world
            .objects
            .keys()
            .any(|copy| *copy.namespace == *namespace && copy.name.starts_with("s0"))
    };
    let mut world = three();
    world.batch(vec![RuleDelta {
        tombstones: vec![drops_version(3)],
        ..RuleDelta::new("r".into())
    }]);
    world.settle();
    assert!(
        gone(&world, "a") && gone(&world, "b") && world.objects.len() == 2,
        "the source"
    );
    // The last deletion policy applies to all versions.
    let mut world = three();
    let retain = Tombstone {
        deletion_policy: DeletionPolicy::Retain,
        ..drops_version(3)
    };
    world.batch(vec![RuleDelta {
        tombstones: vec![retain],
        ..RuleDelta::new("r".into())
    }]);
    world.settle();
    assert!(
        world.objects.len() == 8
            && world
                .objects
                .values()
                .filter(|object| object.labeled)
                .count()
                == 2
    );

    let mut world = three();
    world.batch(vec![RuleDelta {
        upserts: vec![],
        ..versioned(4, &["a"])
    }]);
    world.settle();
    assert!(gone(&world, "b") && !gone(&world, "a"), "the namespace");
    // A namespace that is added later gets only the newest version.
    world.batch(vec![versioned(3, &["a", "b"])]);
    world.settle();
    let newest = world
        .objects
        .keys()
        .filter(|copy| *copy.namespace == *"b" && copy.name.starts_with("s0"))
        .count();
    assert_eq!(newest, 1);

    for restarts in [false, true] {
        let mut world = three();
        if restarts {
            world.restart();
            world.connect();
        }
        world.remove_rule("r", DeletionPolicy::Delete);
        world.settle();
        assert!(world.objects.is_empty(), "the rule, {restarts}");
    }
}

#[test]
fn two_desired_versions_do_not_contend() {
    let mut world = first();
    edit(&mut world, 1, 2);
    let delta = RuleDelta::new("r".into());
    // The tombstone for the former version arrives later, for new content and for earlier content.
    for (from, to) in [(2, 3), (3, 1)] {
        world.batch(vec![RuleDelta {
            upserts: vec![upsert(to)],
            ..delta.clone()
        }]);
        world.settle();
        let writes = world.writes;
        world.settle();
        assert_eq!(world.writes, writes, "they contend");
        world.batch(vec![RuleDelta {
            tombstones: vec![drops_version(from)],
            ..delta.clone()
        }]);
        world.settle();
    }
    check_versions(&world, &["a", "b"], &[1, 3, 2]);
}

#[test]
fn renamed_copy_is_removed_only_by_a_tombstone() {
    let mut world = World::new(&["team", "a"]);
    world.connect();
    world.batch(vec![RuleDelta {
        upserts: vec![intent("s0", 1)],
        ..with_terms("r", terms("r", &["a"]))
    }]);
    world.settle();
    world.batch(vec![RuleDelta {
        upserts: vec![upsert(1)],
        ..versioned(3, &["a"])
    }]);
    world.settle();
    let labeled = |world: &World, name: &str| {
        world
            .objects
            .get(&copy("a", name))
            .is_some_and(|object| object.labeled)
    };
    assert!(labeled(&world, "s0") && labeled(&world, &name(1)));
    for connects in [false, true] {
        restart(&mut world, connects);
        assert!(
            labeled(&world, "s0") && labeled(&world, &name(1)),
            "{connects}"
        );
    }
    edit(&mut world, 1, 2);
    world.edit(&copy("a", "s0"), |object| object.live.newest = true);
    world.settle();
    assert!(labeled(&world, "s0") && labeled(&world, &name(1)) && labeled(&world, &name(2)));
    let tombstone = Tombstone {
        source: copy("team", "s0"),
        deletion_policy: DeletionPolicy::Delete,
    };
    world.batch(vec![RuleDelta {
        tombstones: vec![tombstone],
        ..RuleDelta::new("r".into())
    }]);
    world.settle();
    assert!(!labeled(&world, "s0") && labeled(&world, &name(1)) && labeled(&world, &name(2)));
}
