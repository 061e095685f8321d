//! The copies of a rule are written in the order of their kinds, and removed in reverse.
use std::collections::BTreeSet;

use super::*;
use crate::decide::{Key, Work};
use crate::phase::Phase;
use crate::policy::Area;

const ROLES: &str = "roles.rbac.authorization.k8s.io";
const BINDINGS: &str = "rolebindings.rbac.authorization.k8s.io";
const DEPLOYMENTS: &str = "deployments.apps";
const WIDGETS: &str = "widgets.example.org";
/// The kinds, in the order in which they are written. No order of names or of the batch is the same.
const KINDS: [&str; 7] = [
    ROLES,
    "configmaps",
    "secrets",
    BINDINGS,
    "services",
    DEPLOYMENTS,
    WIDGETS,
];

fn of_kind(resource: &str, name: &str, revision: u8) -> Intent {
    let mut content = content(revision);
    if Kind::by_resource(resource).is_none() {
        content.version = Some("v1".into());
    }
    Intent {
        source: SourceRef::new(resource, "team", name),
        revision: Revision([revision; 16]),
        payload: Payload::encode(content.to_bytes()),
    }
}

fn world() -> World {
    let mut world = World::new(&["team", "a"]);
    let mut policy = Policy::open();
    policy.kinds.extend(KINDS.map(Arc::from));
    world.set_policy(policy);
    world.connect();
    world
}

fn of_every_kind(revision: u8) -> RuleDelta {
    let copies = KINDS
        .iter()
        .flat_map(|kind| [1, 2].map(|number| of_kind(kind, &format!("n{number}"), revision)));
    RuleDelta {
        upserts: copies.collect(),
        ..with_terms("r", terms("r", &["a"]))
    }
}

/// Runs everything that is due, and returns the phases of the written and removed copies in their order.
fn run(world: &mut World) -> Vec<Phase> {
    let mut order = vec![];
    loop {
        world.dispatch();
        let phases = world.under_way.iter().filter_map(|job| match &job.key {
            Key::Copy(copy) if !matches!(job.work, Work::Read) => Some(Phase::of(&copy.resource)),
            _ => None,
        });
        let under_way: BTreeSet<_> = phases.collect();
        assert!(under_way.len() < 2, "{under_way:?} at once");
        order.extend(under_way);
        if !(world.work_one() || world.deliver_one()) {
            assert!(world.core.member.jobs.phases.is_empty());
            order.dedup();
            return order;
        }
    }
}

fn phases() -> Vec<Phase> {
    let mut phases: Vec<_> = KINDS.iter().map(|kind| Phase::of(kind)).collect();
    phases.dedup();
    phases
}

#[test]
fn kinds_are_written_in_order_and_removed_in_reverse() {
    let mut world = world();
    let reversed: Vec<_> = phases().into_iter().rev().collect();
    world.batch(vec![of_every_kind(1)]);
    assert_eq!(run(&mut world), phases());
    world.batch(vec![of_every_kind(2)]);
    assert_eq!(run(&mut world), phases(), "a change keeps the order, too");
    assert_eq!(world.reported_state("r").unwrap().counts.applied, 14);

    world.remove_rule("r", DeletionPolicy::Delete);
    assert_eq!(run(&mut world), reversed);
    assert!(world.objects.is_empty());
}

/// A rule with an operator and an object of its kind, whose finalizer only the operator removes.
fn with_operator() -> World {
    let mut world = world();
    let upserts = [
        (WIDGETS, "db"),
        (DEPLOYMENTS, "operator"),
        (ROLES, "operator"),
    ];
    world.batch(vec![RuleDelta {
        upserts: upserts.map(|(kind, name)| of_kind(kind, name, 1)).into(),
        ..with_terms("r", terms("r", &["a"]))
    }]);
    run(&mut world);
    world.finalized.insert("db".into());
    world
}

fn db() -> SourceRef {
    SourceRef::new(WIDGETS, "a", "db")
}

/// Runs everything that is due within a time, in steps of a second.
fn pass(world: &mut World, seconds: u64) {
    for _ in 0..seconds {
        world.now += Duration::from_secs(1);
        world.dispatch();
        while world.work_one() || world.deliver_one() {
            world.dispatch();
        }
    }
}

/// The Events about deletions that take long, since the last call.
fn long_deletions(world: &mut World) -> usize {
    let notices = world.core.take_notices();
    let is_about = |notice: &&Notice| {
        matches!(notice, Notice::Failed(copy, _, copy_error)
            if *copy == db() && copy_error.reason == Reason::WaitingForDependency)
    };
    notices.iter().filter(is_about).count()
}

#[test]
fn operator_stays_until_its_objects_are_gone() {
    let mut world = with_operator();
    world.remove_rule("r", DeletionPolicy::Delete);
    pass(&mut world, 200);
    assert_eq!(world.objects.len(), 3);
    let failure = &world.reported_state("r").unwrap().failures[0];
    assert_eq!(failure.copy, db());
    assert_eq!(failure.reason, Reason::WaitingForDependency);
    assert_eq!(failure.message, "is being deleted here");
    assert_eq!(long_deletions(&mut world), 1);

    // The operator removes the finalizer.
    world.delete(&db());
    pass(&mut world, 1);
    assert!(world.objects.is_empty());
    assert!(world.core.member.jobs.phases.is_empty());
}

#[test]
fn object_that_never_goes_holds_later_ones_for_minutes() {
    let mut world = with_operator();
    world.remove_rule("r", DeletionPolicy::Delete);
    pass(&mut world, 299);
    assert_eq!(world.objects.len(), 3);
    pass(&mut world, 3);
    assert_eq!(world.objects.keys().collect::<Vec<_>>(), [&db()]);
    let writes = world.writes;
    pass(&mut world, 700);
    assert_eq!(world.writes, writes);
    assert_eq!(world.reported_state("r").unwrap().counts.removing, 1);
}

#[test]
fn refused_removal_holds_later_ones_for_minutes() {
    for reason in [Reason::Forbidden, Reason::Denied, Reason::NotEmpty] {
        let mut world = with_operator();
        world
            .refused_deletes
            .insert("db".into(), CopyError::new(reason, "not now"));
        world.remove_rule("r", DeletionPolicy::Delete);
        pass(&mut world, 299);
        assert_eq!(world.objects.len(), 3, "{reason}");
        let failure = &world.reported_state("r").unwrap().failures[0];
        assert_eq!((&failure.copy, failure.reason), (&db(), reason));
        pass(&mut world, 3);
        let left: Vec<_> = world.objects.keys().collect();
        assert_eq!(left, [&db()], "{reason}");

        // Allowed at last, its deletion is only that of itself.
        world.refused_deletes.clear();
        world.finalized.clear();
        pass(&mut world, 301);
        assert!(world.objects.is_empty(), "{reason}");
        assert!(world.core.member.jobs.phases.is_empty());
    }
}

#[test]
fn removal_refused_for_a_while_keeps_the_order() {
    let mut world = with_operator();
    let refused = CopyError::new(Reason::Denied, "not now");
    world.refused_deletes.insert("db".into(), refused);
    world.remove_rule("r", DeletionPolicy::Delete);
    pass(&mut world, 60);
    world.refused_deletes.clear();
    // Its deletion waits for its finalizer. The whole removal has one bound.
    pass(&mut world, 239);
    assert_eq!(world.objects.len(), 3);
    pass(&mut world, 3);
    assert_eq!(world.objects.keys().collect::<Vec<_>>(), [&db()]);
}

#[test]
fn unreadable_copy_holds_later_removals_for_minutes() {
    let mut world = with_operator();
    let area = Area {
        resource: WIDGETS.into(),
        namespace: None,
    };
    let forbidden = CopyError::new(Reason::Forbidden, "may not");
    let forbidden = Event::CopiesForbidden(area, forbidden);
    world.core.handle(forbidden, world.now);
    world.remove_rule("r", DeletionPolicy::Delete);
    pass(&mut world, 299);
    assert_eq!(world.objects.len(), 3);
    pass(&mut world, 3);
    assert_eq!(world.objects.keys().collect::<Vec<_>>(), [&db()]);
    assert!(world.core.member.jobs.phases.is_empty());
}

#[test]
fn limit_of_deletes_keeps_the_order() {
    let mut world = world();
    world.policy.deletes_per_hour = 1;
    world.set_policy(world.policy.clone());
    // No order of names is that of the removal.
    let upserts = [(WIDGETS, "w"), (DEPLOYMENTS, "d"), ("configmaps", "c")];
    world.batch(vec![RuleDelta {
        upserts: upserts.map(|(kind, name)| of_kind(kind, name, 1)).into(),
        ..with_terms("r", terms("r", &["a"]))
    }]);
    run(&mut world);
    world.remove_rule("r", DeletionPolicy::Delete);
    let mut left = vec![];
    for _ in 0..3 {
        pass(&mut world, 10);
        let kinds = world.objects.keys().map(|copy| copy.resource.to_string());
        left.push(kinds.collect::<Vec<_>>());
        world.now += Duration::from_secs(3600);
    }
    let expected = [vec!["configmaps", DEPLOYMENTS], vec!["configmaps"], vec![]];
    assert_eq!(left, expected);
}

#[test]
fn wanted_copy_that_hangs_in_deletion_is_delayed() {
    let mut world = with_operator();
    let begin = |world: &mut World| {
        world.edit(&db(), |object| {
            object.live.terminating = Some("is being deleted here".into())
        });
        pass(world, 29);
    };
    begin(&mut world);
    assert_eq!(world.reported_state("r").unwrap().failures, []);
    pass(&mut world, 3);
    let state = world.reported_state("r").unwrap();
    assert_eq!(state.failures[0].reason, Reason::WaitingForDependency);
    assert_eq!((state.counts.applied, state.counts.failed), (2, 0));
    assert_eq!(long_deletions(&mut world), 1);

    // It is gone, and made again. The time of its successor counts from its own deletion.
    world.delete(&db());
    pass(&mut world, 2);
    assert_eq!(world.reported_state("r").unwrap().counts.applied, 3);
    begin(&mut world);
    assert_eq!(world.reported_state("r").unwrap().failures, []);
}

#[test]
fn failed_copy_delays_no_later_one() {
    let mut world = world();
    world.poisoned.insert("bad".into());
    let upserts = [(ROLES, "bad"), (BINDINGS, "good"), (DEPLOYMENTS, "good")]
        .map(|(kind, name)| of_kind(kind, name, 1));
    world.batch(vec![RuleDelta {
        upserts: upserts.into(),
        ..with_terms("r", terms("r", &["a"]))
    }]);
    run(&mut world);
    let counts = world.reported_state("r").unwrap().counts;
    assert_eq!((counts.applied, counts.failed), (2, 1));

    // The copy is tried again, and the others stay as they are.
    world.poisoned.clear();
    world.now += Duration::from_secs(400);
    run(&mut world);
    assert_eq!(world.reported_state("r").unwrap().counts.applied, 3);
}

#[test]
fn copies_of_an_unlisted_kind_hold_later_ones() {
    let mut world = World::new(&["team", "a"]);
    world.connect();
    let upserts = [ROLES, BINDINGS].map(|kind| of_kind(kind, "one", 1));
    world.batch(vec![RuleDelta {
        upserts: upserts.into(),
        ..with_terms("r", terms("r", &["a"]))
    }]);
    run(&mut world);
    assert_eq!(world.reported_state("r").unwrap().counts.failed, 2);

    // The policy allows both kinds. That of the binding, which needs the role, is listed first.
    world.policy.kinds.extend([ROLES, BINDINGS].map(Arc::from));
    let policy = Event::Policy(Arc::new(world.policy.clone()));
    world.core.handle(policy, world.now);
    let area = |kind: &str| Area {
        resource: kind.into(),
        namespace: None,
    };
    world.list_area(&area(BINDINGS));
    world.dispatch();
    assert!(world.under_way.is_empty(), "the binding comes first");
    world.list_area(&area(ROLES));
    assert_eq!(run(&mut world), [Phase::Rights, Phase::Bindings]);
    assert_eq!(world.reported_state("r").unwrap().counts.applied, 2);

    // A kind that cannot be listed holds none.
    let forbidden = Event::CopiesForbidden(area(ROLES), CopyError::new(Reason::Forbidden, "x"));
    world.core.handle(forbidden, world.now);
    let change = [ROLES, BINDINGS].map(|kind| of_kind(kind, "one", 2));
    world.batch(vec![RuleDelta {
        upserts: change.into(),
        ..with_terms("r", terms("r", &["a"]))
    }]);
    assert_eq!(run(&mut world), [Phase::Bindings]);
}

#[test]
fn rules_do_not_wait_for_each_other() {
    let mut world = world();
    let one = RuleDelta {
        upserts: vec![of_kind("configmaps", "one", 1)],
        ..with_terms("one", terms("one", &["a"]))
    };
    let other = RuleDelta {
        upserts: vec![of_kind(DEPLOYMENTS, "two", 1)],
        ..with_terms("two", terms("two", &["a"]))
    };
    world.batch(vec![one, other]);
    world.dispatch();
    assert_eq!(world.under_way.len(), 2);
}

#[test]
fn rule_with_one_phase_is_not_tracked() {
    let mut world = world();
    let upserts = ["configmaps", "secrets"].map(|kind| of_kind(kind, "one", 1));
    world.batch(vec![RuleDelta {
        upserts: upserts.into(),
        ..with_terms("r", terms("r", &["a"]))
    }]);
    world.dispatch();
    assert_eq!(world.under_way.len(), 2);
    assert!(world.core.member.jobs.phases.is_empty());
}

#[test]
fn namespace_that_goes_frees_the_copies_that_wait() {
    let mut world = world();
    let mut delta = of_every_kind(1);
    delta.terms = with_terms("r", terms("r", &["a", "b"])).terms;
    world.set_namespace("b", Some(Namespace::default()));
    while world.deliver_one() {}
    world.batch(vec![delta]);
    world.dispatch();
    world.set_namespace("b", None);
    run(&mut world);
    let counts = world.reported_state("r").unwrap().counts;
    assert_eq!((counts.applied, counts.waiting), (14, 14));
}

#[test]
fn copy_of_another_rule_leaves_the_order_of_the_first() {
    let mut world = world();
    let upserts =
        [(ROLES, "one"), (DEPLOYMENTS, "shared")].map(|(kind, name)| of_kind(kind, name, 1));
    world.batch(vec![RuleDelta {
        upserts: upserts.into(),
        ..with_terms("r", terms("r", &["a"]))
    }]);
    world.dispatch();
    assert_eq!(world.under_way.len(), 1, "the second copy waits");

    let mut older = terms("older", &["a"]);
    older.created_at = 50;
    world.batch(vec![RuleDelta {
        upserts: vec![of_kind(DEPLOYMENTS, "shared", 2)],
        ..with_terms("older", older)
    }]);
    world.dispatch();
    assert_eq!(
        world.under_way.len(),
        2,
        "the rule that has it now has no phases"
    );
}
