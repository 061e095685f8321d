//! Watches that fail, or cannot be begun.
use super::*;
use crate::policy::Area;

fn area(resource: &str) -> Area {
    Area {
        resource: resource.into(),
        namespace: None,
    }
}

/// Returns the last lost watches that the hub received.
fn sent_lost(world: &World) -> Option<Vec<(&str, u16)>> {
    let lost = world.sent.iter().rev().find_map(|frame| match frame {
        AgentFrame::LostWatches(watches) => Some(watches),
        _ => None,
    });
    lost.map(|watches| {
        watches
            .iter()
            .map(|watch| (&*watch.resource, watch.status))
            .collect()
    })
}

fn receive(world: &mut World, event: Event) {
    world.core.handle(event, world.now);
    world.settle_now();
}

#[test]
fn lost_watch_is_reported_and_nothing_proved_until_it_is_back() {
    let mut world = applied();
    assert!(world.reported_state("r").unwrap().proof.is_some());
    assert_eq!(sent_lost(&world), None);
    receive(
        &mut world,
        Event::WatchLost(WatchScope::Copies(area("configmaps")), 0),
    );
    receive(&mut world, Event::WatchLost(WatchScope::Namespaces, 0));
    assert_eq!(
        sent_lost(&world),
        Some(vec![("configmaps", 0), ("namespaces", 0)])
    );
    world.batch(vec![with_terms(
        "r",
        Terms {
            created_at: 101,
            ..terms("r", &["a", "b"])
        },
    )]);
    world.settle_now();
    let state = world.reported_state("r").unwrap();
    assert_eq!((state.counts.applied, state.proof), (4, None));
    receive(&mut world, Event::WatchResumed(WatchScope::Namespaces));
    assert_eq!(sent_lost(&world), Some(vec![("configmaps", 0)]));
    assert_eq!(world.reported_state("r").unwrap().proof, None);
    // The agent reports the changes before the message that no watch is lost.
    world.objects.remove(&copy("a", "s0"));
    world.poisoned.insert("s0".into());
    world.list_area(&area("configmaps"));
    world.settle_now();
    assert_eq!(sent_lost(&world), Some(vec![]));
    let states: Vec<_> = world.sent.iter().rev().take(2).collect();
    assert!(matches!(
        states[0],
        AgentFrame::LostWatches(_) | AgentFrame::Report(_)
    ));
    let at = world
        .sent
        .iter()
        .rposition(|frame| matches!(frame, AgentFrame::LostWatches(_)))
        .unwrap();
    let before = world.sent[..at].iter().rev().find_map(|frame| match frame {
        AgentFrame::Report(states) => Some(states[0].counts.applied),
        _ => None,
    });
    assert_eq!(before, Some(3));
}

#[test]
fn new_stream_reports_lost_watches_again() {
    let mut world = applied();
    receive(
        &mut world,
        Event::WatchLost(WatchScope::Copies(area("secrets")), 500),
    );
    world.sent.clear();
    world.connect();
    world.settle_now();
    assert_eq!(sent_lost(&world), Some(vec![("secrets", 500)]));
    world.sent.clear();
    receive(
        &mut world,
        Event::WatchResumed(WatchScope::Copies(area("secrets"))),
    );
    assert_eq!(sent_lost(&world), Some(vec![]));
}

#[test]
fn kind_that_cannot_be_listed_stops_no_other_kind() {
    let mut world = applied();
    world.core = world::core(world.stored.clone(), &world.policy);
    let (now, broken) = (world.now, area("secrets"));
    world.core.handle(Event::NamespacesListed, now);
    for name in ["team", "a", "b"] {
        world
            .core
            .handle(Event::Namespace(name.into(), Namespace::default()), now);
    }
    world.core.handle(Event::NamespacesComplete, now);
    world.core.handle(Event::CopiesListed(broken.clone()), now);
    world.list_area(&area("configmaps"));
    assert!(!world.core.has_started());
    world.core.handle(
        Event::WatchLost(WatchScope::Copies(broken.clone()), 500),
        now,
    );
    assert!(world.core.has_started());
    world.connect();
    let mut secret = intent("s9", 1);
    secret.source = SourceRef::new("secrets", "team", "s9");
    world.batch(vec![RuleDelta {
        upserts: vec![secret],
        ..RuleDelta::new("r".into())
    }]);
    world.edit(&copy("a", "s0"), |object| object.live.intact = false);
    world.settle();
    assert!(
        world.holds(&copy("a", "s0"), "r", "s0", 1),
        "the other kind is kept right"
    );
    assert_eq!(sent_lost(&world), Some(vec![("secrets", 500)]));
    let state = world.reported_state("r").unwrap();
    assert_eq!((state.counts.applied, state.counts.failed), (4, 2));
    let failure = &state.failures[0];
    assert_eq!(failure.reason, Reason::Unavailable);
    assert!(
        failure.message.contains("kubectl get secrets"),
        "{}",
        failure.message
    );
    world.list_area(&broken);
    world.settle();
    assert_eq!(
        (
            world.reported_state("r").unwrap().counts.applied,
            sent_lost(&world)
        ),
        (6, Some(vec![]))
    );
}

#[test]
fn agent_without_namespaces_connects_and_writes_nothing() {
    let mut world = applied();
    world.core = world::core(world.stored.clone(), &world.policy);
    world.delete(&copy("b", "s1"));
    world.undelivered.clear();
    let (now, writes) = (world.now, world.writes);
    world.core.handle(Event::NamespacesListed, now);
    for resource in ["configmaps", "secrets"] {
        world.list_area(&area(resource));
    }
    assert!(!world.core.has_started());
    world
        .core
        .handle(Event::WatchLost(WatchScope::Namespaces, 403), now);
    assert!(world.core.has_started());
    world.connect();
    world.settle();
    let state = world.reported_state("r").unwrap();
    assert_eq!(
        (state.intents, state.counts.copies, state.counts.failed),
        (2, 4, 4)
    );
    assert_eq!(state.failures[0].reason, Reason::Forbidden);
    assert!(
        state.failures[0]
            .message
            .contains("kubectl auth can-i list namespaces"),
        "{}",
        state.failures[0].message
    );
    world.batch(vec![RuleDelta {
        tombstones: vec![tombstone("s0")],
        ..RuleDelta::new("r".into())
    }]);
    world.settle();
    assert_eq!(world.writes, writes, "nothing is decided");
    for (name, namespace) in world.namespaces.clone() {
        world
            .core
            .handle(Event::Namespace(name.as_str().into(), namespace), world.now);
    }
    world.core.handle(Event::NamespacesComplete, world.now);
    world.settle();
    let acked: Vec<_> = world.objects.keys().cloned().collect();
    assert_eq!(
        acked,
        [copy("a", "s1"), copy("b", "s1")],
        "the order was taken in, and the rest is kept right"
    );
    assert_eq!(sent_lost(&world), Some(vec![]));
}

#[test]
fn refused_update_is_tried_at_growing_intervals() {
    let mut world = World::new(&["a"]);
    world.connect();
    let send = |world: &mut World, revision: u8| {
        world.batch(vec![RuleDelta {
            upserts: vec![intent("x", revision)],
            ..with_terms("r", terms("r", &["a"]))
        }]);
    };
    send(&mut world, 1);
    world.settle();
    world.refused_writes = Some(CopyError::new(Reason::Unavailable, "webhook is down"));
    send(&mut world, 2);
    for _ in 0..600 * 4 {
        world.settle_now();
        world.now += Duration::from_millis(250);
    }
    // A minute of growth, and then two to four tries a minute.
    assert!((18..=48).contains(&world.tries), "{}", world.tries);
    world.refused_writes = None;
    world.settle();
    assert!(world.holds(&copy("a", "x"), "r", "x", 2));
}
