mod accounts;
mod adoption;
mod audit;
mod closed_kinds;
mod cluster_scoped;
mod contention;
mod decisions;
mod drift_and_conflicts;
mod dry_run;
mod finished;
mod found;
mod histories;
mod inspected;
mod kinds;
mod lost;
mod namespace_prunes;
mod orders;
mod phases;
mod policy;
mod preview;
mod proof;
mod quota;
mod renames;
mod rule_lifecycles;
mod stored;
mod versions;
mod world;

use super::*;
use crate::backoff::POLL;
use crate::live::Ownership;
use crate::policy::Area;
use runnel_proto::model::*;
use std::time::Duration;
use world::*;

/// Returns a cluster with namespaces a and b, and rule r with sources s0 and s1 applied in both.
fn applied() -> World {
    let mut world = World::new(&["team", "a", "b"]);
    world.connect();
    let delta = RuleDelta {
        upserts: vec![intent("s0", 1), intent("s1", 1)],
        ..with_terms("r", terms("r", &["a", "b"]))
    };
    world.batch(vec![delta]);
    world.settle_now();
    world
}

#[test]
fn sent_copies_are_created_acked_and_reported() {
    let world = applied();
    for namespace in ["a", "b"] {
        assert!(world.holds(&copy(namespace, "s0"), "r", "s0", 1));
        assert!(world.holds(&copy(namespace, "s1"), "r", "s1", 1));
    }
    assert_eq!(world.writes, 4);
    assert!(world.sent.contains(&AgentFrame::Ack(1, vec![])));
    let state = world.reported_state("r").unwrap();
    assert_eq!(
        (state.counts.copies, state.counts.applied, state.intents),
        (4, 4, 2)
    );
    assert!(world.objects.values().all(|object| object.labeled));
}

#[test]
fn restart_writes_nothing_and_acks_everything() {
    let mut world = applied();
    let before = world.reported_state("r").unwrap();
    world.restart();
    world.connect();
    world.settle();
    assert_eq!(world.writes, 4);
    assert_eq!(world.reported_state("r").unwrap(), before);
}

#[test]
fn drift_is_corrected_from_a_twin_after_restart_without_hub() {
    let mut world = applied();
    world.restart();
    world.edit(&copy("a", "s0"), |object| object.live.intact = false);
    world.settle_now();
    assert!(world.holds(&copy("a", "s0"), "r", "s0", 1));
    world.delete(&copy("b", "s1"));
    world.settle_now();
    assert!(world.holds(&copy("b", "s1"), "r", "s1", 1));
}

#[test]
fn damaged_copy_without_twin_is_requested_from_the_hub() {
    let mut world = applied();
    for namespace in ["a", "b"] {
        world.edit(&copy(namespace, "s0"), |object| object.live.intact = false);
    }
    world.restart();
    world.settle();
    assert!(!world.holds(&copy("a", "s0"), "r", "s0", 1));
    world.connect();
    world.settle_now();
    assert!(world.sent.contains(&AgentFrame::ContentRequest(
        "r".into(),
        vec![copy("team", "s0")]
    )));
    let state = world.reported_state("r").unwrap();
    assert_eq!(
        (state.counts.failed, state.failures[0].reason),
        (2, Reason::WaitingForHub)
    );
    world.batch(vec![RuleDelta {
        upserts: vec![intent("s0", 1)],
        ..RuleDelta::new("r".into())
    }]);
    world.settle_now();
    assert!(world.holds(&copy("a", "s0"), "r", "s0", 1));
    assert_eq!(world.reported_state("r").unwrap().counts.applied, 4);
}

#[test]
fn missing_content_is_requested_again_without_a_loop() {
    let mut world = applied();
    for namespace in ["a", "b"] {
        world.edit(&copy(namespace, "s0"), |object| object.live.intact = false);
    }
    world.restart();
    world.connect();
    world.settle_now();
    let asked = |world: &World| {
        world
            .sent
            .iter()
            .filter(|frame| matches!(frame, AgentFrame::ContentRequest(..)))
            .count()
    };
    assert_eq!(asked(&world), 1);
    for _ in 0..29 {
        world.now += Duration::from_secs(1);
        world.settle_now();
    }
    assert_eq!(asked(&world), 2);
    assert!(world.core.next_due(world.now).is_some());
}

#[test]
fn nothing_is_decided_before_every_list_is_complete() {
    let mut world = applied();
    world.objects.remove(&copy("a", "s0"));
    world.core = world::core(world.stored.clone(), &world.policy);
    let (now, area) = (
        world.now,
        Area {
            resource: "configmaps".into(),
            namespace: None,
        },
    );
    for event in [
        Event::NamespacesListed,
        Event::CopiesListed(area.clone()),
        Event::CopiesComplete(area),
    ] {
        world.core.handle(event, now);
        assert!(!world.core.has_started());
        assert!(world.core.next_job(now).is_none());
    }
    assert!(world.core.take_store().is_none());
}

#[test]
fn a_tombstone_removes_and_a_removed_rule_is_reported_gone() {
    let mut world = applied();
    world.batch(vec![RuleDelta {
        tombstones: vec![tombstone("s0")],
        ..RuleDelta::new("r".into())
    }]);
    world.settle_now();
    assert_eq!(world.objects.len(), 2);
    assert_eq!(world.reported_state("r").unwrap().intents, 1);
    world.remove_rule("r", DeletionPolicy::Retain);
    world.settle_now();
    assert!(
        world
            .objects
            .values()
            .all(|object| object.live.ownership == Ownership::Retained && !object.labeled)
    );
    assert!(world.reported_state("r").unwrap().gone);
    assert!(world.stored.is_empty());
    world.remove_rule("never-acked", DeletionPolicy::Delete);
    world.settle_now();
    assert!(world.reported_state("never-acked").unwrap().gone);
}

#[test]
fn a_copy_is_handed_from_one_rule_to_another_without_a_gap() {
    let mut world = applied();
    let younger = younger(&["a", "b"]);
    world.batch(vec![
        RuleDelta {
            tombstones: vec![tombstone("s0")],
            ..RuleDelta::new("r".into())
        },
        RuleDelta {
            upserts: vec![intent("s0", 1)],
            ..with_terms("q", younger)
        },
    ]);
    let uid = world.objects[&copy("a", "s0")].live.uid.clone();
    world.settle_now();
    assert!(world.holds(&copy("a", "s0"), "q", "s0", 1));
    assert_eq!(
        world.objects[&copy("a", "s0")].live.uid,
        uid,
        "it was never deleted"
    );
    world.settle();
    let counts = world.reported_state("r").unwrap().counts;
    assert_eq!((counts.copies, counts.removing), (2, 0), "{counts:?}");
}

#[test]
fn rule_is_gone_once_a_younger_one_has_all_its_copies() {
    let mut world = applied();
    let younger = younger(&["a", "b"]);
    world.batch(vec![
        RuleDelta {
            removal: Some(DeletionPolicy::Delete),
            ..RuleDelta::new("r".into())
        },
        RuleDelta {
            upserts: vec![intent("s0", 1), intent("s1", 1)],
            ..with_terms("q", younger)
        },
    ]);
    world.settle();
    assert!(world.holds(&copy("a", "s0"), "q", "s0", 1));
    assert!(world.reported_state("r").unwrap().gone);
}

#[test]
fn older_rule_wins_a_copy_and_the_other_reports_it() {
    let mut world = applied();
    let younger = younger(&["a"]);
    world.batch(vec![RuleDelta {
        upserts: vec![intent("s0", 2)],
        ..with_terms("q", younger)
    }]);
    world.settle_now();
    assert!(world.holds(&copy("a", "s0"), "r", "s0", 1));
    let state = world.reported_state("q").unwrap();
    assert_eq!(state.failures[0].reason, Reason::Superseded);
    assert_eq!(
        state.failures[0].message,
        "team/r wins this copy: it is older"
    );
    // The rule that has a copy keeps it, also from an older rule that wants it later.
    let mut late = terms("late", &["a", "b"]);
    late.created_at = 0;
    world.batch(vec![RuleDelta {
        upserts: vec![intent("s0", 3)],
        ..with_terms("late", late)
    }]);
    world.settle_now();
    assert!(world.holds(&copy("a", "s0"), "r", "s0", 1));
    let state = world.reported_state("late").unwrap();
    assert_eq!(
        state.failures[0].message,
        "team/r wins this copy: it has this copy already"
    );
    world.remove_rule("late", DeletionPolicy::Delete);
    world.settle_now();
    assert!(world.holds(&copy("a", "s0"), "r", "s0", 1));
    // An orphaned rule loses contested copies to other rules, and keeps its other copies.
    world.batch(vec![RuleDelta {
        orphaned: true,
        ..RuleDelta::new("r".into())
    }]);
    world.settle_now();
    assert!(world.holds(&copy("a", "s0"), "q", "s0", 2));
    assert!(world.holds(&copy("b", "s0"), "r", "s0", 1));
}

#[test]
fn rule_that_has_a_copy_keeps_it_over_a_restart() {
    let mut world = applied();
    let mut older = terms("older", &["a"]);
    older.created_at = 0;
    world.restart();
    world.connect();
    world.batch(vec![RuleDelta {
        upserts: vec![intent("s0", 3)],
        ..with_terms("older", older)
    }]);
    world.settle_now();
    assert!(world.holds(&copy("a", "s0"), "r", "s0", 1));
    // A rule that no longer wants it leaves it.
    world.batch(vec![RuleDelta {
        tombstones: vec![tombstone("s0")],
        ..RuleDelta::new("r".into())
    }]);
    world.settle_now();
    assert!(world.holds(&copy("a", "s0"), "older", "s0", 3));
}

#[test]
fn two_sources_of_one_rule_for_one_copy_are_both_left() {
    let mut world = World::new(&["team", "a"]);
    world.connect();
    let mut other = intent("s0", 2);
    other.source = copy("other", "s0");
    let upserts = vec![intent("s0", 1), other];
    world.batch(vec![RuleDelta {
        upserts,
        ..with_terms("r", terms("r", &["a"]))
    }]);
    world.settle_now();
    assert!(world.objects.is_empty());
    let state = world.reported_state("r").unwrap();
    assert_eq!(
        (state.counts.copies, state.failures[0].reason),
        (1, Reason::AmbiguousSource)
    );
}

#[test]
fn namespace_chosen_by_name_glob_and_label_counts_once() {
    let mut world = World::new(&["app-1"]);
    world.connect();
    let mut chosen = terms("r", &["app-1", "app-*", "*"]);
    if let Some(namespaces) = &mut chosen.namespaces {
        namespaces.selector = Some(Selector::default());
    }
    world.batch(vec![RuleDelta {
        upserts: vec![intent("s0", 1)],
        ..with_terms("r", chosen)
    }]);
    world.settle_now();
    assert_eq!((world.objects.len(), world.writes), (1, 1));
    let counts = world.reported_state("r").unwrap().counts;
    assert_eq!((counts.copies, counts.applied), (1, 1));
}

#[test]
fn coming_namespaces_get_copies_and_leaving_ones_lose_them() {
    let mut world = World::new(&["team", "app-1"]);
    world.connect();
    world.batch(vec![RuleDelta {
        upserts: vec![intent("s0", 1)],
        ..with_terms("r", terms("r", &["app-*", "later"]))
    }]);
    world.settle_now();
    assert_eq!(world.objects.len(), 1);
    assert_eq!(world.reported_state("r").unwrap().counts.waiting, 1);
    for name in ["app-2", "later"] {
        world.set_namespace(name, Some(Namespace::default()));
        world.settle_now();
    }
    assert_eq!(world.objects.len(), 3);
    world.batch(vec![with_terms("r", terms("r", &["app-2", "later"]))]);
    world.settle_now();
    assert_eq!(world.objects.len(), 2);
    assert!(!world.objects.contains_key(&copy("app-1", "s0")));
    let writes = world.writes;
    world.set_namespace(
        "later",
        Some(Namespace {
            terminating: true,
            ..Namespace::default()
        }),
    );
    world.settle_now();
    assert_eq!(
        world.reported_state("r").unwrap().failures[0].reason,
        Reason::NamespaceTerminating
    );
    world.set_namespace("later", None);
    world.settle_now();
    assert_eq!((world.objects.len(), world.writes), (1, writes));
    assert_eq!(world.reported_state("r").unwrap().counts.waiting, 1);
}

#[test]
fn namespaces_are_created_only_when_asked() {
    let mut world = World::new(&["team"]);
    world.connect();
    let terms = Terms {
        create_namespaces: true,
        ..terms("r", &["new"])
    };
    world.batch(vec![RuleDelta {
        upserts: vec![intent("s0", 1), intent("s1", 1)],
        ..with_terms("r", terms)
    }]);
    world.settle_now();
    assert!(world.holds(&copy("new", "s0"), "r", "s0", 1));
}

#[test]
fn suspended_rule_changes_nothing_until_resumed() {
    let mut world = applied();
    let suspended = Terms {
        suspend: true,
        ..terms("r", &["a"])
    };
    world.batch(vec![with_terms("r", suspended)]);
    world.edit(&copy("a", "s0"), |object| object.live.intact = false);
    world.settle();
    assert_eq!((world.writes, world.objects.len()), (4, 4));
    world.batch(vec![with_terms("r", terms("r", &["a"]))]);
    world.settle_now();
    assert!(world.holds(&copy("a", "s0"), "r", "s0", 1));
    assert_eq!(
        world.objects.len(),
        2,
        "namespace b left the choice meanwhile"
    );
}

#[test]
fn foreign_object_is_left_alone_until_it_is_deleted() {
    let mut world = World::new(&["team", "a"]);
    world.connect();
    world.make_foreign(&copy("a", "s0"));
    world.batch(vec![RuleDelta {
        upserts: vec![intent("s0", 1)],
        ..with_terms("r", terms("r", &["a"]))
    }]);
    world.settle();
    assert_eq!(
        world.objects[&copy("a", "s0")].live.ownership,
        Ownership::Foreign
    );
    assert_eq!(
        world.reported_state("r").unwrap().failures[0].reason,
        Reason::Conflict
    );
    world.delete(&copy("a", "s0"));
    world.now += POLL.limit;
    world.settle_now();
    assert!(world.holds(&copy("a", "s0"), "r", "s0", 1));
}

#[test]
fn a_copy_without_our_label_is_found_and_put_back() {
    let mut world = applied();
    world.edit(&copy("a", "s0"), |object| {
        (object.labeled, object.live.intact) = (false, false);
    });
    world.settle_now();
    assert!(world.holds(&copy("a", "s0"), "r", "s0", 1));
    assert_eq!(world.core.totals().drift_corrected, 1);
}

#[test]
fn bad_object_delays_no_other_and_is_retried_on_change() {
    let mut world = World::new(&["team", "a"]);
    world.connect();
    world.poisoned.insert("s0".into());
    let upserts = (0..40).map(|n| intent(&format!("s{n}"), 1)).collect();
    world.batch(vec![RuleDelta {
        upserts,
        ..with_terms("r", terms("r", &["a"]))
    }]);
    world.settle_now();
    assert_eq!(world.objects.len(), 39);
    let state = world.reported_state("r").unwrap();
    assert_eq!((state.counts.applied, state.counts.failed), (39, 1));
    world.poisoned.clear();
    world.batch(vec![RuleDelta {
        upserts: vec![intent("s0", 2)],
        ..RuleDelta::new("r".into())
    }]);
    world.settle_now();
    assert!(world.holds(&copy("a", "s0"), "r", "s0", 2));
}

#[test]
fn contended_copy_is_corrected_ever_more_slowly() {
    let mut world = applied();
    let begin = world.writes;
    for _ in 0..100 {
        world.edit(&copy("a", "s0"), |object| object.live.intact = false);
        world.settle_now();
        world.now += Duration::from_millis(100);
    }
    assert!(world.writes - begin < 12, "{} writes", world.writes - begin);
    world.settle();
    assert!(world.holds(&copy("a", "s0"), "r", "s0", 1));
}

#[test]
fn unreadable_items_are_refused_and_count_as_acked() {
    let mut world = applied();
    let mut unknown = intent("s2", 1);
    unknown.source = SourceRef::new("widgets.example.org", "team", "s2");
    let mut broken = intent("s0", 2);
    broken.payload = Payload::from_wire(Encoding::Plain, "{".into(), 1);
    world.batch(vec![RuleDelta {
        upserts: vec![unknown, broken],
        ..RuleDelta::new("r".into())
    }]);
    world.settle_now();
    assert!(
        world.holds(&copy("a", "s0"), "r", "s0", 1),
        "what was in force stays"
    );
    let state = world.reported_state("r").unwrap();
    assert_eq!(
        (state.intents, state.counts.copies, state.counts.failed),
        (3, 6, 4)
    );
    let refused = world.sent.iter().find_map(|frame| match frame {
        AgentFrame::Ack(_, refused) if !refused.is_empty() => Some(refused.len()),
        _ => None,
    });
    assert_eq!(refused, Some(2));
}

#[test]
fn the_hubs_own_cluster_never_touches_a_source() {
    let mut world = World::new(&["team", "a"]);
    world.connect();
    let begin = SnapshotBegin {
        protocol: 1,
        hub_id: "h".into(),
        hub_cluster_uid: "member".into(),
        behind: false,
        proof_key: None,
    };
    world.core.handle(
        Event::Hub(HubFrame::SnapshotBegin(begin), vec![]),
        world.now,
    );
    world.batch(vec![RuleDelta {
        upserts: vec![intent("s0", 1)],
        ..with_terms("r", terms("r", &["team", "a"]))
    }]);
    world.settle_now();
    assert_eq!(world.objects.keys().collect::<Vec<_>>(), [&copy("a", "s0")]);
    assert_eq!(world.reported_state("r").unwrap().counts.copies, 1);
}

#[test]
fn too_much_unapplied_payload_pauses_the_hub() {
    let mut world = World::new(&["team", "a"]);
    world.core = world::core(vec![], &Policy::open()).with_bounds(1 << 20, 10);
    world.list();
    world.connect();
    world.batch(vec![RuleDelta {
        upserts: vec![intent("s0", 1)],
        ..with_terms("r", terms("r", &["a"]))
    }]);
    assert!(!world.core.has_room());
    let frames: Vec<_> = std::iter::from_fn(|| world.core.next_frame(world.now)).collect();
    assert!(
        !frames
            .iter()
            .any(|frame| matches!(frame, AgentFrame::Ack(..)))
    );
    world.settle_now();
    assert!(world.core.has_room());
    assert!(world.sent.contains(&AgentFrame::Ack(1, vec![])));
}

#[test]
fn suspended_rule_keeps_its_terms_and_resumes() {
    let word = |suspend| RuleDelta {
        suspend: Some(suspend),
        ..RuleDelta::new("r".into())
    };
    let mut world = applied();
    let terms_of = |world: &World| {
        let state = world.reported_state("r").unwrap();
        (state.suspended, state.terms_digest)
    };
    let (_, digest) = terms_of(&world);
    world.batch(vec![word(true)]);
    world.edit(&copy("a", "s0"), |object| object.live.intact = false);
    world.settle();
    assert_eq!(terms_of(&world), (true, digest));
    assert!(
        !world.holds(&copy("a", "s0"), "r", "s0", 1),
        "nothing is corrected"
    );
    world.restart();
    world.settle();
    assert!(
        !world.holds(&copy("a", "s0"), "r", "s0", 1),
        "nor after a restart"
    );
    world.connect();
    world.settle();
    assert_eq!(terms_of(&world), (true, digest));
    world.batch(vec![word(false)]);
    world.settle();
    assert_eq!(terms_of(&world), (false, digest));
    assert!(world.holds(&copy("a", "s0"), "r", "s0", 1));
    // Namespaces removed from the terms during the suspension are pruned when it ends.
    world.batch(vec![with_terms(
        "r",
        Terms {
            suspend: true,
            ..terms("r", &["a"])
        },
    )]);
    world.settle();
    assert!(terms_of(&world).0 && world.objects.contains_key(&copy("b", "s0")));
    world.batch(vec![word(false)]);
    world.settle();
    assert!(
        !world.objects.contains_key(&copy("b", "s0"))
            && world.objects.contains_key(&copy("a", "s0"))
    );
}
