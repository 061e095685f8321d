//! Two agents in one cluster, and clients that apply the earlier output of an agent.
use super::*;
use crate::contention;
use proptest::prelude::*;

/// Applies a copy of an earlier revision again, including its seal, as another client does.
fn reapply(world: &mut World, copy: &SourceRef, revision: u8) {
    world.edit(copy, |object| {
        object.live.sealed.as_mut().unwrap().revision = Revision([revision; 16]);
    });
}

fn edited() -> World {
    let mut world = applied();
    world.batch(vec![RuleDelta {
        upserts: vec![intent("s0", 2)],
        ..RuleDelta::new("r".into())
    }]);
    world.settle_now();
    assert!(world.holds(&copy("a", "s0"), "r", "s0", 2));
    world
}

#[test]
fn copy_rewritten_to_an_older_revision_is_contended() {
    let mut world = edited();
    let before = world.writes;
    for _ in 0..1000 {
        if world.holds(&copy("a", "s0"), "r", "s0", 2) {
            reapply(&mut world, &copy("a", "s0"), 1);
        }
        world.settle_now();
        world.now += Duration::from_secs(1);
    }
    let writes = world.writes - before;
    assert!(
        (contention::LIMIT + 1..20).contains(&writes),
        "{writes} writes in 1000 s"
    );
    let state = world.reported_state("r").unwrap();
    assert_eq!(
        (state.counts.failed, state.failures[0].reason),
        (1, Reason::Contended)
    );
}

#[test]
fn edit_of_a_source_is_no_contention() {
    let mut world = applied();
    for revision in 2..40 {
        world.batch(vec![RuleDelta {
            upserts: vec![intent("s0", revision)],
            ..RuleDelta::new("r".into())
        }]);
        world.settle_now();
        assert!(world.holds(&copy("a", "s0"), "r", "s0", revision));
    }
    assert_eq!(
        (
            world.core.totals().contentions,
            world.core.totals().drift_corrected
        ),
        (0, 0)
    );
}

#[test]
fn rewritten_copy_is_left_where_drift_is_reported() {
    let mut world = edited();
    let reports = Terms {
        drift_policy: DriftPolicy::Report,
        created_at: 101,
        ..terms("r", &["a", "b"])
    };
    world.batch(vec![with_terms("r", reports)]);
    world.settle_now();
    let before = world.writes;
    reapply(&mut world, &copy("a", "s0"), 1);
    world.settle_now();
    assert_eq!(world.writes, before);
    assert_eq!(world.reported_state("r").unwrap().counts.drifted, 1);
    // A new revision ends the drift.
    world.batch(vec![RuleDelta {
        upserts: vec![intent("s0", 3)],
        ..RuleDelta::new("r".into())
    }]);
    world.settle_now();
    assert!(world.holds(&copy("a", "s0"), "r", "s0", 3));
}

#[test]
fn waiting_for_a_contended_copy_does_not_stop_the_hub() {
    let mut world = edited();
    world.core =
        std::mem::replace(&mut world.core, core(vec![], &Policy::open())).with_bounds(1 << 20, 1);
    for _ in 0..=contention::LIMIT + 1 {
        reapply(&mut world, &copy("a", "s0"), 1);
        world.settle_now();
    }
    assert_eq!(world.core.totals().contentions, 1);
    assert!(!world.holds(&copy("a", "s0"), "r", "s0", 2), "it waits");
    assert!(world.core.has_room());
}

#[test]
fn agent_without_the_lease_writes_nothing() {
    let mut world = applied();
    let before = world.writes;
    world.core.set_active(false);
    world.delete(&copy("a", "s0"));
    world.batch(vec![RuleDelta {
        upserts: vec![intent("s1", 2)],
        ..RuleDelta::new("r".into())
    }]);
    world.settle();
    assert_eq!(world.writes, before);
    world.core.set_active(true);
    world.settle();
    assert!(
        world.holds(&copy("a", "s0"), "r", "s0", 1) && world.holds(&copy("b", "s1"), "r", "s1", 2)
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Two agents of one cluster take steps in any order, and only one receives the hub's orders.
    /// With the Lease, each edit costs one write per copy. Without it, the writes end in a
    /// contention.
    #[test]
    fn two_agents_write_each_revision_once_with_the_lease(steps in proptest::collection::vec(any::<bool>(), 200), fenced: bool) {
        let mut active = applied();
        let mut stale = World::new(&["team", "a", "b"]);
        stale.share(&active);
        stale.connect();
        let delta = RuleDelta { upserts: vec![intent("s0", 1), intent("s1", 1)], ..with_terms("r", terms("r", &["a", "b"])) };
        stale.batch(vec![delta]);
        stale.settle_now();
        if fenced {
            stale.core.set_active(false);
        }
        let before = active.writes + stale.writes;
        active.batch(vec![RuleDelta { upserts: vec![intent("s0", 2)], ..RuleDelta::new("r".into()) }]);
        for step in steps {
            let (one, other) = if step { (&mut active, &mut stale) } else { (&mut stale, &mut active) };
            one.settle_now();
            other.share(one);
            one.now += Duration::from_millis(10);
        }
        let writes = active.writes + stale.writes - before;
        if fenced {
            prop_assert!(writes <= 2, "{writes} writes");
        } else {
            prop_assert!(writes <= 2 * 2 * (contention::LIMIT + 3), "{writes} writes");
        }
    }
}
