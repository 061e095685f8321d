//! Rollouts that go back.
use super::*;
use crate::copy::IntentKey;
use proptest::prelude::*;

fn said(travel: Travel) -> RuleDelta {
    RuleDelta { travel: Some(travel), ..RuleDelta::new("r".into()) }
}

fn edit(revision: u8, travel: Travel) -> RuleDelta {
    RuleDelta { upserts: vec![intent("s0", revision)], ..said(travel) }
}

fn keep(base: u8) -> Travel {
    Travel::Keep(base.to_string())
}

fn failed(base: u8) -> Travel {
    Travel::Revert { target: "t".to_owned(), base: base.to_string() }
}

fn kept(world: &World, name: &str) -> Option<Option<u8>> {
    let key = IntentKey { rule: "r".into(), source: copy("team", name) };
    world.kept.get(&key).map(|kept| kept.revision.map(|revision| revision.0[0]))
}

fn holds(world: &World, revision: u8) -> bool {
    ["a", "b"].iter().all(|namespace| world.holds(&copy(namespace, "s0"), "r", "s0", revision))
}

#[test]
fn what_copies_held_is_kept_before_they_change_and_put_back() {
    let mut world = applied();
    world.batch(vec![edit(2, keep(1))]);
    world.settle_now();
    assert!(holds(&world, 2));
    assert_eq!((kept(&world, "s0"), kept(&world, "s1")), (Some(Some(1)), None), "only what changes");
    world.batch(vec![said(failed(1))]);
    world.settle_now();
    assert!(holds(&world, 1));
    let state = world.reported_state("r").unwrap();
    assert_eq!((state.travel, state.left, state.counts.applied, state.counts.copies), (failed(1), 0, 4, 4));
    assert_eq!(kept(&world, "s0"), Some(Some(1)), "it stays the last good one");
    // Somebody spoils a copy that went back; the hub is away, and the agent begins again.
    world.restart();
    world.edit(&copy("a", "s0"), |object| object.live.intact = false);
    world.delete(&copy("b", "s0"));
    world.settle();
    assert!(holds(&world, 1));
    // The same of what goes while nobody is there to see it.
    for namespace in ["a", "b"] {
        world.objects.remove(&copy(namespace, "s0"));
    }
    world.restart();
    world.settle();
    assert!(holds(&world, 1));
    // The hub goes on from there.
    world.connect();
    world.batch(vec![said(failed(1))]);
    world.settle();
    assert!(holds(&world, 1));
    assert_eq!(world.reported_state("r").unwrap().travel, failed(1));
    // A newer edit goes through, and nothing is kept any more.
    world.batch(vec![edit(3, keep(1))]);
    world.settle_now();
    assert!(holds(&world, 3));
    assert_eq!(kept(&world, "s0"), Some(Some(1)));
    world.batch(vec![said(Travel::Plain)]);
    world.settle_now();
    assert!(holds(&world, 3) && world.kept.is_empty());
    assert_eq!(world.reported_state("r").unwrap().travel, Travel::Plain);
    // What it goes back to from then on is that.
    world.batch(vec![edit(4, keep(3))]);
    world.settle_now();
    world.batch(vec![said(failed(3))]);
    world.settle_now();
    assert!(holds(&world, 3));
}

#[test]
fn created_copies_stay_counted_and_failed_ones_are_not_retried() {
    let mut world = applied();
    world.poisoned.insert("s3".to_owned());
    let upserts = vec![intent("s0", 2), intent("s2", 1), intent("s3", 1)];
    world.batch(vec![RuleDelta { upserts, ..said(keep(1)) }]);
    world.settle_now();
    assert_eq!(world.reported_state("r").unwrap().counts.failed, 2);
    assert_eq!(kept(&world, "s2"), Some(None));
    world.batch(vec![said(failed(1))]);
    world.settle();
    let state = world.reported_state("r").unwrap();
    assert_eq!((state.left, state.counts.failed, state.counts.applied), (2, 0, 6));
    assert!(holds(&world, 1) && world.holds(&copy("a", "s2"), "r", "s2", 1));
    assert!(!world.objects.contains_key(&copy("a", "s3")));
    // A rule that goes takes along what was kept of it.
    world.batch(vec![RuleDelta { removal: Some(DeletionPolicy::Delete), ..RuleDelta::new("r".into()) }]);
    world.settle();
    assert!(world.objects.is_empty() && world.kept.is_empty());
}

#[test]
fn what_is_damaged_is_not_kept_and_a_twin_of_it_is() {
    let mut world = applied();
    world.edit(&copy("a", "s0"), |object| object.live.intact = false);
    world.tell_one();
    world.batch(vec![edit(2, keep(1))]);
    world.settle_now();
    assert_eq!(kept(&world, "s0"), Some(Some(1)), "the other copy held it");
    world.batch(vec![said(failed(1))]);
    world.settle_now();
    assert!(holds(&world, 1));
}

#[test]
fn what_is_of_an_older_base_is_worth_nothing() {
    let mut world = applied();
    world.batch(vec![edit(2, keep(1))]);
    world.settle_now();
    // It was taken everywhere while the agent was away, and the next one went wrong before it was back.
    world.restart();
    world.connect();
    world.batch(vec![said(failed(2))]);
    world.settle_now();
    assert!(holds(&world, 2) && world.kept.is_empty());
    let state = world.reported_state("r").unwrap();
    assert_eq!((state.counts.applied, state.travel), (4, failed(2)));
    world.batch(vec![edit(3, keep(2))]);
    world.settle_now();
    assert_eq!(kept(&world, "s0"), Some(Some(2)));
    // Where the hub revokes the cluster and its policy purges, nothing is left of that either.
    let mut policy = Policy::open();
    policy.on_revoke = crate::policy::OnRevoke::Purge;
    world.set_policy(policy);
    world.core.handle(Event::Revoked, world.now);
    world.settle();
    assert!(world.objects.is_empty() && world.kept.is_empty());
}

#[test]
fn untouched_copies_are_corrected_also_after_a_restart() {
    let mut world = applied();
    world.batch(vec![edit(2, keep(1))]);
    world.settle_now();
    world.batch(vec![said(failed(1))]);
    world.settle_now();
    for restarts in [false, true] {
        if restarts {
            world.restart();
        }
        world.delete(&copy("b", "s1"));
        world.settle();
        assert!(world.holds(&copy("b", "s1"), "r", "s1", 1), "restarted: {restarts}");
    }
    // What is sent to go on with is not written before it is said that it goes on.
    world.connect();
    let more = vec![intent("s0", 3), intent("s1", 3), intent("s4", 3)];
    world.batch(vec![RuleDelta { upserts: more, ..RuleDelta::new("r".into()) }]);
    world.settle_now();
    assert!(holds(&world, 1) && world.holds(&copy("b", "s1"), "r", "s1", 1));
    assert!(!world.objects.contains_key(&copy("a", "s4")));
    world.batch(vec![said(keep(1))]);
    world.settle_now();
    assert!(holds(&world, 3) && world.holds(&copy("b", "s1"), "r", "s1", 3));
    assert!(world.objects.contains_key(&copy("a", "s4")));
    assert_eq!((kept(&world, "s0"), kept(&world, "s1")), (Some(Some(1)), Some(Some(1))));
}

#[test]
fn removed_copies_stay_removed_when_the_rest_rolls_back() {
    let mut world = applied();
    let both = vec![intent("s0", 2), intent("s1", 2)];
    world.batch(vec![RuleDelta { upserts: both, ..said(keep(1)) }]);
    world.settle_now();
    assert_eq!(kept(&world, "s1"), Some(Some(1)));
    world.batch(vec![RuleDelta { tombstones: vec![tombstone("s1")], ..RuleDelta::new("r".into()) }]);
    world.settle_now();
    assert_eq!(kept(&world, "s1"), None);
    world.batch(vec![said(failed(1))]);
    world.settle_now();
    world.restart();
    world.settle();
    assert!(holds(&world, 1) && !world.objects.contains_key(&copy("a", "s1")));
}

#[test]
fn what_is_kept_too_late_is_forgotten() {
    let mut world = applied();
    world.batch(vec![edit(2, keep(1))]);
    // Its write is under way when it is said that nothing need be kept.
    world.give_out();
    world.batch(vec![said(Travel::Plain)]);
    world.settle();
    assert!(holds(&world, 2) && world.kept.is_empty());
}

#[test]
fn the_policy_of_the_cluster_holds_for_what_goes_back() {
    let mut world = World::new(&["team", "a"]);
    world.set_policy(Policy { create_namespaces: true, ..Policy::open() });
    world.connect();
    let terms = Terms { create_namespaces: true, ..terms("r", &["a", "new"]) };
    world.batch(vec![RuleDelta { upserts: vec![intent("s0", 1)], ..with_terms("r", terms) }]);
    world.settle();
    world.batch(vec![edit(2, keep(1))]);
    world.settle();
    world.batch(vec![said(failed(1))]);
    world.settle();
    assert!(world.holds(&copy("new", "s0"), "r", "s0", 1));
    world.set_policy(Policy { create_namespaces: false, ..Policy::open() });
    world.settle();
    world.set_namespace("new", None);
    world.settle();
    let state = world.reported_state("r").unwrap();
    assert_eq!((state.counts.applied, state.counts.failed, state.failures[0].reason), (1, 1, Reason::Denied));
}

#[test]
fn copies_left_are_counted_while_the_rule_rolls_back() {
    let left = |world: &mut World| {
        world.settle();
        world.reported_state("r").unwrap().left
    };
    let mut world = applied();
    // The change touches one and makes two, of which one cannot be made.
    world.poisoned.insert("s3".to_owned());
    let upserts = vec![intent("s0", 2), intent("s2", 1), intent("s3", 1)];
    world.batch(vec![RuleDelta { upserts, ..said(keep(1)) }]);
    assert_eq!(left(&mut world), 0, "nothing goes back yet");
    world.batch(vec![said(failed(1))]);
    assert_eq!(left(&mut world), 2, "both copies of s2: nothing else was made, and s0 goes back");
    // It is said again after a restart, also while the hub is away, and in the first words to the next hub.
    world.restart();
    world.settle();
    world.sent.clear();
    world.connect();
    assert_eq!(left(&mut world), 2);
    let first = world.reported_states("r").first().map(|state| state.left);
    assert_eq!(first, Some(2), "a hub that has just begun hears it at once");
    // What somebody deletes does not come again, and is not left any more.
    world.delete(&copy("b", "s2"));
    assert_eq!(left(&mut world), 1);
    world.batch(vec![RuleDelta { tombstones: vec![tombstone("s2")], ..RuleDelta::new("r".into()) }]);
    assert_eq!(left(&mut world), 0);
    // Where it goes on from there, nothing is left behind.
    let mut world = applied();
    world.batch(vec![RuleDelta { upserts: vec![intent("s2", 1)], ..said(keep(1)) }]);
    world.settle();
    world.batch(vec![said(failed(1))]);
    assert_eq!(left(&mut world), 2);
    world.batch(vec![said(keep(1))]);
    assert_eq!(left(&mut world), 0);
}

/// What an agent cannot take in.
fn refused(name: &str, revision: u8) -> Intent {
    Intent { payload: Payload::from_wire(Encoding::Plain, "{".into(), 1), ..intent(name, revision) }
}

#[test]
fn failed_content_stays_away_though_its_replacement_fails() {
    for (goes_on, at_once, restarts) in [
        (keep(1), true, false),
        (keep(1), false, false),
        (keep(1), false, true),
        (Travel::Plain, true, false),
        (Travel::Plain, false, false),
    ] {
        let mut world = applied();
        let upserts = vec![intent("s0", 2), intent("s1", 2), intent("s2", 2)];
        world.batch(vec![RuleDelta { upserts, ..said(keep(1)) }]);
        world.settle_now();
        world.batch(vec![said(failed(1))]);
        world.settle_now();
        assert!(holds(&world, 1));
        // Of all that is to come instead only one can be read.
        let upserts = vec![refused("s0", 3), intent("s1", 3), refused("s2", 3)];
        if !at_once {
            let upserts = upserts.clone();
            world.batch(vec![RuleDelta { upserts, ..RuleDelta::new("r".into()) }]);
        }
        if restarts {
            world.restart();
            world.connect();
        }
        let upserts = if at_once || restarts { upserts } else { vec![] };
        world.batch(vec![RuleDelta { upserts, ..said(goes_on.clone()) }]);
        world.delete(&copy("b", "s0"));
        world.delete(&copy("b", "s2"));
        world.settle();
        assert!(holds(&world, 1), "{goes_on:?}, at once: {at_once}, restarts: {restarts}");
        assert!(world.holds(&copy("a", "s1"), "r", "s1", 3));
        // Nothing was kept of what the change made: that stays, and no more of it is made.
        assert!(world.holds(&copy("a", "s2"), "r", "s2", 2) && !world.objects.contains_key(&copy("b", "s2")));
        let counts = world.reported_state("r").unwrap().counts;
        assert_eq!((counts.copies, counts.applied, counts.failed), (6, 2, 4));
        // The next one that it can read is written, and what is kept of that is still what did well.
        world.batch(vec![edit(4, goes_on.clone())]);
        world.settle_now();
        assert!(holds(&world, 4));
        if goes_on == keep(1) {
            world.batch(vec![said(failed(1))]);
            world.settle_now();
            assert!(holds(&world, 1));
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Edit,
    /// What comes after what went wrong cannot be taken in.
    Refused,
    Completed,
    Failed,
    Work,
    Lose,
    Tell,
    Restart,
    Spoil(bool),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        2 => Just(Step::Edit),
        1 => Just(Step::Refused),
        1 => Just(Step::Completed),
        2 => Just(Step::Failed),
        6 => Just(Step::Work),
        1 => Just(Step::Lose),
        3 => Just(Step::Tell),
        1 => Just(Step::Restart),
        1 => any::<bool>().prop_map(Step::Spoil),
    ];
    proptest::collection::vec(step, 0..60)
}

proptest! {
    /// Whatever happens in between: told to go back, every copy holds what was last taken everywhere.
    #[test]
    fn whatever_happens_copies_go_back_to_what_did_well(steps in steps()) {
        let mut world = applied();
        let (mut good, mut newest, mut revision) = (1, 1, 1u8);
        let (mut travel, mut is_refused) = (Travel::Plain, false);
        let newest_of = |revision: u8, is_refused: bool, travel: &Travel| {
            let newest = if is_refused { refused("s0", revision) } else { intent("s0", revision) };
            RuleDelta { upserts: vec![newest], ..said(travel.clone()) }
        };
        for step in steps {
            world.give_out();
            match step {
                Step::Edit => {
                    revision += 1;
                    (newest, travel, is_refused) = (revision, keep(good), false);
                    world.batch(vec![edit(newest, keep(good))]);
                }
                Step::Refused if travel.reverts() => {
                    revision += 1;
                    (newest, travel, is_refused) = (revision, keep(good), true);
                    world.batch(vec![newest_of(newest, true, &travel)]);
                    // Who is restarted before it has put back all of it goes by what stands there.
                    world.settle();
                }
                // The hub says so when every copy has it.
                Step::Completed if travel == keep(good) && !is_refused => {
                    world.settle();
                    (good, travel) = (newest, Travel::Plain);
                    world.batch(vec![said(Travel::Plain)]);
                }
                Step::Failed if travel == keep(good) => {
                    travel = failed(good);
                    world.batch(vec![said(failed(good))]);
                }
                Step::Work => drop(world.work_one()),
                Step::Lose => world.lose_one(),
                Step::Tell => drop(world.tell_one()),
                Step::Restart => {
                    world.restart();
                    world.connect();
                    world.batch(vec![newest_of(newest, is_refused, &travel)]);
                }
                Step::Spoil(first) => {
                    let namespace = if first { "a" } else { "b" };
                    world.edit(&copy(namespace, "s1"), |object| object.live.intact = false);
                }
                Step::Completed | Step::Failed | Step::Refused => {}
            }
        }
        world.settle();
        let expected = if travel.reverts() || is_refused { good } else { newest };
        prop_assert!(holds(&world, expected), "{travel:?}: {expected} of good {good} and newest {newest}");
        if travel == keep(good) {
            world.batch(vec![said(failed(good))]);
            world.settle();
            prop_assert!(holds(&world, good));
        }
        world.batch(vec![edit(200, keep(good))]);
        world.settle();
        world.batch(vec![said(Travel::Plain)]);
        world.settle();
        prop_assert!(holds(&world, 200) && world.kept.is_empty());
    }
}
