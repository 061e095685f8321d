//! A cluster that its hub has revoked, and has accepted again.
use super::*;

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
