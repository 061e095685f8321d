//! Rules that are a dry run: every copy is decided and reported, and nothing is written.
use proptest::prelude::*;

use super::preview::{answers, question};
use super::world::*;
use super::*;

fn dry_run(namespaces: &[&str]) -> RuleDelta {
    with_terms(
        "r",
        Terms {
            enforcement: Enforcement::DryRun,
            ..terms("r", namespaces)
        },
    )
}

fn counts(world: &World) -> Counts {
    world.reported_state("r").unwrap().counts
}

#[test]
fn new_dry_run_reports_creates_and_conflicts() {
    let mut world = World::new(&["team", "a", "b"]);
    world.make_foreign(&copy("b", "s0"));
    world.connect();
    world.batch(vec![RuleDelta {
        upserts: vec![intent("s0", 1), intent("s1", 1)],
        ..dry_run(&["a", "b"])
    }]);
    world.settle_now();
    assert_eq!(
        counts(&world),
        Counts {
            copies: 4,
            to_create: 3,
            failed: 1,
            absent: 4,
            ..Counts::default()
        }
    );
    let state = world.reported_state("r").unwrap();
    assert_eq!(
        state.failures[0].reason,
        Reason::Conflict,
        "the worst comes first"
    );
    assert_eq!(state.failures[1].reason, Reason::DryRun);
    assert_eq!(state.failures[1].message, "would be created");
    assert_eq!(world.writes, 0);

    world.batch(vec![with_terms("r", terms("r", &["a", "b"]))]);
    world.settle_now();
    assert_eq!(
        counts(&world),
        Counts {
            copies: 4,
            applied: 3,
            failed: 1,
            absent: 1,
            ..Counts::default()
        }
    );
}

#[test]
fn enforced_rule_that_becomes_dry_run_is_frozen() {
    let mut world = applied();
    let writes = world.writes;
    world.batch(vec![dry_run(&["a", "b"])]);
    world.settle_now();
    assert_eq!(
        counts(&world),
        Counts {
            copies: 4,
            applied: 4,
            ..Counts::default()
        }
    );
    world.delete(&copy("a", "s0"));
    world.edit(&copy("b", "s0"), |object| object.live.intact = false);
    world.batch(vec![RuleDelta {
        upserts: vec![intent("s1", 2)],
        ..RuleDelta::new("r".into())
    }]);
    world.settle();
    assert_eq!(
        counts(&world),
        Counts {
            copies: 4,
            to_create: 1,
            to_update: 3,
            absent: 1,
            ..Counts::default()
        }
    );
    let state = world.reported_state("r").unwrap();
    assert!(
        state
            .failures
            .iter()
            .any(|failure| failure.message.starts_with("would be updated: ")),
        "{state:?}"
    );
    assert_eq!(world.writes, writes);

    world.batch(vec![with_terms("r", terms("r", &["a", "b"]))]);
    world.settle();
    assert_eq!(
        counts(&world),
        Counts {
            copies: 4,
            applied: 4,
            ..Counts::default()
        }
    );
    assert!(
        world.holds(&copy("a", "s1"), "r", "s1", 2) && world.holds(&copy("a", "s0"), "r", "s0", 1)
    );
}

#[test]
fn narrowed_dry_run_reports_deletes_that_wait() {
    let mut world = applied();
    let writes = world.writes;
    world.batch(vec![dry_run(&["b"])]);
    world.settle();
    assert_eq!(
        counts(&world),
        Counts {
            copies: 2,
            applied: 2,
            to_delete: 2,
            ..Counts::default()
        }
    );
    assert!(
        world
            .reported_state("r")
            .unwrap()
            .namespace_prunes
            .is_none(),
        "the removal guard counts nothing of it"
    );
    world.batch(vec![dry_run(&["a", "b"])]);
    world.settle();
    assert_eq!(
        counts(&world),
        Counts {
            copies: 4,
            applied: 4,
            ..Counts::default()
        }
    );
    assert_eq!(world.writes, writes);
}

#[test]
fn dry_run_takes_no_copy_from_an_enforced_rule() {
    let mut world = applied();
    let older = Terms {
        created_at: -1,
        enforcement: Enforcement::DryRun,
        ..terms("q", &["a"])
    };
    world.batch(vec![RuleDelta {
        upserts: vec![intent("s0", 2)],
        ..with_terms("q", older)
    }]);
    world.settle_now();
    let state = world.reported_state("q").unwrap();
    assert_eq!(
        (state.counts.failed, state.failures[0].reason),
        (1, Reason::Superseded)
    );
    world.delete(&copy("a", "s0"));
    world.settle();
    assert!(
        world.holds(&copy("a", "s0"), "r", "s0", 1),
        "the enforced rule goes on"
    );
}

/// Returns the counts of a preview's answer.
fn previewed(answer: &PreviewResult) -> Counts {
    let mut counts = Counts::default();
    for copy in &answer.copies {
        let count = match copy.previewed {
            PreviewOutcome::Create => &mut counts.to_create,
            PreviewOutcome::Change
            | PreviewOutcome::Adopt
            | PreviewOutcome::AdoptIfEqual
            | PreviewOutcome::Overwrite => &mut counts.to_update,
            PreviewOutcome::Remove | PreviewOutcome::Prune | PreviewOutcome::Retain => {
                &mut counts.to_delete
            }
            PreviewOutcome::Unchanged => &mut counts.applied,
            PreviewOutcome::Refused => &mut counts.failed,
            PreviewOutcome::Wait => &mut counts.waiting,
            PreviewOutcome::HandOver | PreviewOutcome::Blocked | PreviewOutcome::Noop => {
                panic!("{copy:?}")
            }
        };
        *count += 1;
    }
    counts.copies = u32::try_from(answer.copies.len()).unwrap() - counts.to_delete;
    counts
}

proptest! {
    /// The counts of a dry run are those of a plan of the same rule.
    #[test]
    fn dry_run_and_plan_report_the_same(
        before in proptest::sample::subsequence(vec!["a", "b"], 0..=2),
        after in proptest::sample::subsequence(vec!["a", "b", "c", "missing"], 1..=4),
        revision in 1u8..3,
        policy in 0usize..3,
        foreign in any::<[bool; 3]>(),
        damaged in any::<bool>(),
    ) {
        let conflict_policy = [
            ConflictPolicy::Fail,
            ConflictPolicy::AdoptIfEqual,
            ConflictPolicy::Overwrite,
        ][policy];
        let mut world = World::new(&["team", "a", "b", "c"]);
        world.connect();
        if !before.is_empty() {
            world.batch(vec![RuleDelta {
                upserts: vec![intent("s0", 1), intent("s1", 1)],
                ..with_terms("r", terms("r", &before))
            }]);
            world.settle();
        }
        for (namespace, _) in ["a", "b", "c"].iter().zip(foreign).filter(|(_, foreign)| *foreign) {
            let there = copy(namespace, "s0");
            world.make_foreign(&there);
            world.edit(&there, |object| object.equal = true);
        }
        let dry = Terms {
            enforcement: Enforcement::DryRun,
            conflict_policy,
            ..terms("r", &after)
        };
        let writes = world.writes;
        world.batch(vec![RuleDelta {
            upserts: vec![intent("s0", revision), intent("s1", 1)],
            ..with_terms("r", dry.clone())
        }]);
        if damaged {
            world.edit(&copy("a", "s1"), |object| object.live.intact = false);
        }
        world.settle();
        let asked = question("r", Some(dry), &[("s0", revision), ("s1", 1)], &[]);
        let event = Event::Hub(HubFrame::PreviewRequest(Box::new(asked)), vec![]);
        world.core.handle(event, world.now);
        world.settle();
        let reported = Counts {
            absent: 0,
            ..counts(&world)
        };
        prop_assert_eq!(reported, previewed(&answers(&world).pop().unwrap()));
        prop_assert_eq!(world.writes, writes);
    }
}
