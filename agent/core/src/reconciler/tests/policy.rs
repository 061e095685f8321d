//! The member's policy, and permissions that are missing in some namespaces.
use super::*;
use crate::policy::Area;
use crate::policy::OnRevoke;

fn policy(text: &str) -> Policy {
    Policy::parse(text).unwrap()
}

fn area(namespace: &str) -> Area {
    Area {
        resource: "configmaps".into(),
        namespace: Some(namespace.into()),
    }
}

fn reasons(state: &RuleState) -> Vec<(Reason, &str)> {
    state
        .failures
        .iter()
        .map(|failure| (failure.reason, &*failure.copy.namespace))
        .collect()
}

#[test]
fn narrower_policy_keeps_copies_and_wider_one_continues() {
    let mut world = applied();
    world.set_policy(policy("namespaces: {allowed: ['*'], denied: [b]}"));
    world.edit(&copy("b", "s0"), |object| object.live.intact = false);
    world.batch(vec![RuleDelta {
        upserts: vec![intent("s1", 2)],
        ..RuleDelta::new("r".into())
    }]);
    world.settle();
    let state = world.reported_state("r").unwrap();
    assert_eq!(
        (
            state.counts.copies,
            state.counts.applied,
            state.counts.failed
        ),
        (4, 2, 2)
    );
    assert_eq!(
        reasons(&state),
        [(Reason::Denied, "b"), (Reason::Denied, "b")]
    );
    assert!(state.failures[0].message.contains("namespaces.denied"));
    assert!(
        !world.holds(&copy("b", "s0"), "r", "s0", 1) && world.holds(&copy("b", "s1"), "r", "s1", 1)
    );
    // The policy does not deny removals, because they bring no content into the cluster.
    world.batch(vec![RuleDelta {
        tombstones: vec![tombstone("s1")],
        ..RuleDelta::new("r".into())
    }]);
    world.settle_now();
    assert!(!world.objects.contains_key(&copy("b", "s1")));
    world.set_policy(Policy::open());
    world.settle_now();
    assert!(world.holds(&copy("b", "s0"), "r", "s0", 1));
    assert_eq!(world.reported_state("r").unwrap().counts.applied, 2);
}

#[test]
fn sizes_kinds_and_creation_are_judged_before_a_write() {
    let mut world = World::new(&["team", "a"]);
    world.set_policy(policy("{maxObjectBytes: 1, kinds: [configmaps]}"));
    world.connect();
    let mut large = intent("large", 1);
    let fields = [("data".to_owned(), serde_json::json!({"k": "22"}))];
    large.payload = Payload::encode(
        Content {
            fields: fields.into(),
            ..Content::default()
        }
        .to_bytes(),
    );
    let mut secret = intent("secret", 1);
    secret.source = SourceRef::new("secrets", "team", "secret");
    let terms = Terms {
        create_namespaces: true,
        ..terms("r", &["a", "new"])
    };
    let upserts = vec![large, secret, intent("small", 1)];
    world.batch(vec![RuleDelta {
        upserts,
        ..with_terms("r", terms)
    }]);
    world.settle();
    assert_eq!(
        world.objects.keys().collect::<Vec<_>>(),
        [&copy("a", "small")]
    );
    let state = world.reported_state("r").unwrap();
    assert_eq!((state.counts.applied, state.counts.failed), (1, 5));
    let text: String = state
        .failures
        .iter()
        .map(|failure| failure.message.as_str())
        .collect();
    for field in ["maxObjectBytes", "(kinds)", "createNamespaces"] {
        assert!(text.contains(field), "{text}");
    }
    world.set_policy(policy("createNamespaces: true"));
    world.settle_now();
    assert_eq!(
        (
            world.objects.len(),
            world.reported_state("r").unwrap().counts.applied
        ),
        (6, 6)
    );
}

#[test]
fn content_policy_applies_after_a_restart() {
    let mut world = applied();
    world.edit(&copy("a", "s0"), |object| object.live.facts.bytes = 7);
    world.restart();
    world.set_policy(policy("maxObjectBytes: 6"));
    world.connect();
    world.edit(&copy("a", "s0"), |object| object.live.intact = false);
    world.settle();
    assert_eq!(
        reasons(&world.reported_state("r").unwrap()),
        [(Reason::Denied, "a"), (Reason::Denied, "b")]
    );
    assert!(!world.holds(&copy("a", "s0"), "r", "s0", 1));
}

#[test]
fn a_namespace_refuses_copies_by_itself() {
    let mut world = applied();
    world.set_namespace(
        "b",
        Some(Namespace {
            refuses: true,
            ..Namespace::default()
        }),
    );
    world.settle_now();
    world.edit(&copy("b", "s0"), |object| object.live.intact = false);
    world.batch(vec![RuleDelta {
        upserts: vec![intent("s2", 1)],
        ..RuleDelta::new("r".into())
    }]);
    world.settle();
    let state = world.reported_state("r").unwrap();
    assert_eq!((state.counts.applied, state.counts.failed), (3, 3));
    assert!(
        state
            .failures
            .iter()
            .all(|failure| failure.message.contains("runnel.dev/inbound")),
        "{state:?}"
    );
    world.set_namespace("b", Some(Namespace::default()));
    world.settle_now();
    assert_eq!(world.reported_state("r").unwrap().counts.applied, 6);
}

#[test]
fn namespace_without_a_role_does_not_delay_others() {
    let mut world = World::new(&["team", "a", "b", "c"]);
    world.forbidden = [area("b")].into();
    world.set_policy(policy(
        "{namespaces: {allowed: [a, b]}, kinds: [configmaps]}",
    ));
    world.connect();
    let upserts = vec![intent("s0", 1)];
    world.batch(vec![RuleDelta {
        upserts,
        ..with_terms("r", terms("r", &["a", "b", "c"]))
    }]);
    world.settle();
    assert_eq!(world.objects.keys().collect::<Vec<_>>(), [&copy("a", "s0")]);
    let state = world.reported_state("r").unwrap();
    assert_eq!(
        reasons(&state),
        [(Reason::Forbidden, "b"), (Reason::Denied, "c")]
    );
    // A rule without copies in the namespace is removed completely. A rule with copies in it is
    // not.
    let there = |uid| RuleDelta {
        upserts: vec![intent("s1", 1)],
        ..with_terms(uid, terms(uid, &["a"]))
    };
    let gone = |uid: &str| RuleDelta {
        removal: Some(DeletionPolicy::Delete),
        ..RuleDelta::new(uid.into())
    };
    world.batch(vec![there("q")]);
    world.settle_now();
    world.batch(vec![gone("q"), gone("r")]);
    world.settle();
    assert!(world.reported_state("q").unwrap().gone);
    let state = world.reported_state("r").unwrap();
    assert!(!state.gone);
    assert_eq!(
        (state.counts.removing, reasons(&state)),
        (1, vec![(Reason::Forbidden, "b")])
    );
    world.permit(&area("b"));
    world.settle_now();
    assert!(world.reported_state("r").unwrap().gone && world.objects.is_empty());
}

#[test]
fn created_or_deleted_role_is_noticed_without_restart() {
    let mut world = World::new(&["team", "a", "b"]);
    world.forbidden = [area("a"), area("b")].into();
    world.set_policy(policy(
        "{namespaces: {allowed: [a, b]}, kinds: [configmaps]}",
    ));
    world.connect();
    world.batch(vec![RuleDelta {
        upserts: vec![intent("s0", 1)],
        ..with_terms("r", terms("r", &["a", "b"]))
    }]);
    world.settle();
    assert_eq!(world.reported_state("r").unwrap().counts.failed, 2);
    for namespace in ["a", "b"] {
        world.permit(&area(namespace));
        world.settle_now();
        assert!(world.holds(&copy(namespace, "s0"), "r", "s0", 1));
    }
    assert_eq!(world.reported_state("r").unwrap().counts.applied, 2);
    let writes = world.writes;
    world.forbid(&area("a"));
    world.edit(&copy("a", "s0"), |object| object.live.intact = false);
    world.settle();
    assert_eq!(
        (
            world.writes,
            world.reported_state("r").unwrap().counts.failed
        ),
        (writes, 1)
    );
    world.permit(&area("a"));
    world.settle_now();
    assert!(world.holds(&copy("a", "s0"), "r", "s0", 1));
}

#[test]
fn unwatched_removal_is_carried_out_once_watched() {
    let mut world = World::new(&["team", "a", "b"]);
    world.set_policy(policy(
        "{namespaces: {allowed: [a, b]}, kinds: [configmaps]}",
    ));
    world.connect();
    let upserts = vec![intent("s0", 1), intent("s1", 1)];
    world.batch(vec![RuleDelta {
        upserts,
        ..with_terms("r", terms("r", &["a", "b"]))
    }]);
    world.settle_now();
    world.forbidden = [area("b")].into();
    world.restart();
    world.connect();
    world.batch(vec![RuleDelta {
        tombstones: vec![tombstone("s0")],
        ..RuleDelta::new("r".into())
    }]);
    world.settle();
    world.permit(&area("b"));
    world.settle();
    assert_eq!(
        world.objects.keys().collect::<Vec<_>>(),
        [&copy("a", "s1"), &copy("b", "s1")]
    );
}

#[test]
fn revoked_cluster_purges_copies_by_its_policy() {
    let mut world = applied();
    world.make_foreign(&copy("a", "s9"));
    world.set_policy(Policy {
        on_revoke: OnRevoke::Purge,
        ..Policy::open()
    });
    world.core.handle(Event::Revoked, world.now);
    world.core.handle(Event::HubLost, world.now);
    world.settle();
    assert_eq!(world.objects.keys().collect::<Vec<_>>(), [&copy("a", "s9")]);
    world.connect();
    world.settle_now();
    assert_eq!(world.objects.len(), 5);
}

#[test]
fn deletes_per_hour_are_limited_for_any_hub() {
    let mut world = applied();
    world.set_policy(policy("deletesPerHour: 3"));
    let gone = vec![tombstone("s0"), tombstone("s1")];
    world.batch(vec![RuleDelta {
        tombstones: gone,
        ..RuleDelta::new("r".into())
    }]);
    world.settle_now();
    assert_eq!(world.objects.len(), 1, "four were to go");
    world.now += crate::report::INTERVAL;
    world.settle_now();
    let state = world.reported_state("r").unwrap();
    assert_eq!((state.counts.copies, state.counts.removing), (0, 1));
    assert_eq!(state.failures[0].reason, Reason::DeleteLimit);
    assert!(state.failures[0].message.contains("deletesPerHour"));
    // Another order does not lift the limit. It ends with time.
    world.remove_rule("r", DeletionPolicy::Delete);
    world.settle_now();
    assert_eq!(world.objects.len(), 1);
    world.now += std::time::Duration::from_secs(3600);
    world.settle_now();
    assert!(world.objects.is_empty());
    assert!(world.reported_state("r").is_none_or(|state| state.gone));
}

#[test]
fn revoked_cluster_keeps_copies_and_gets_no_orders() {
    let mut world = applied();
    world.core.handle(Event::Revoked, world.now);
    world.edit(&copy("a", "s0"), |object| object.live.intact = false);
    world.delete(&copy("b", "s0"));
    world.batch(vec![RuleDelta {
        tombstones: vec![tombstone("s1")],
        ..RuleDelta::new("r".into())
    }]);
    world.core.handle(Event::HubLost, world.now);
    world.settle();
    let holds = |world: &World| {
        let first = world.holds(&copy("a", "s0"), "r", "s0", 1)
            && world.holds(&copy("b", "s0"), "r", "s0", 1);
        first && world.objects.len() == 4
    };
    assert!(
        holds(&world),
        "what was edited and deleted is put back, and no order is carried out"
    );
    world.connect();
    world.settle_now();
    assert!(holds(&world));
}
