//! Tests of adoption, reported drift and contention against the model of an API server.
use super::applied;
use super::world::*;
use crate::contention;
use crate::live::Ownership;
use crate::reconciler::*;
use proptest::prelude::*;
use runnel_proto::model::*;
use std::collections::BTreeSet;
use std::time::Duration;

fn reporting(namespaces: &[&str]) -> Terms {
    Terms {
        drift_policy: DriftPolicy::Report,
        created_at: 101,
        ..terms("r", namespaces)
    }
}

/// Returns the world of [`applied`] with a rule that only reports drift.
fn applied_and_reporting() -> World {
    let mut world = applied();
    world.batch(vec![with_terms("r", reporting(&["a", "b"]))]);
    world.settle_now();
    world
}

fn counts(world: &World) -> Counts {
    world.reported_state("r").unwrap().counts
}

fn notices(world: &mut World, fits: fn(&Notice) -> bool) -> usize {
    world
        .core
        .take_notices()
        .iter()
        .filter(|notice| fits(notice))
        .count()
}

#[test]
fn foreign_object_is_forgotten_with_the_last_rule() {
    let mut world = World::new(&["team", "a"]);
    world.connect();
    world.make_foreign(&copy("a", "s0"));
    world.batch(vec![RuleDelta {
        upserts: vec![intent("s0", 1)],
        ..with_terms("r", terms("r", &["a"]))
    }]);
    world.settle_now();
    assert_eq!(counts(&world).failed, 1);
    world.remove_rule("r", DeletionPolicy::Delete);
    world.settle_now();
    assert_eq!(world.core.member.records.all().count(), 0);
    assert_eq!(world.objects.len(), 1);
}

#[test]
fn a_changed_copy_is_left_and_counted_until_its_source_changes() {
    let mut world = applied_and_reporting();
    let writes = world.writes;
    world.edit(&copy("a", "s0"), |object| object.live.intact = false);
    world.settle();
    assert_eq!(
        (
            counts(&world).drifted,
            counts(&world).applied,
            counts(&world).failed
        ),
        (1, 3, 0)
    );
    assert_eq!(
        world.reported_state("r").unwrap().failures[0].reason,
        Reason::Drifted
    );
    // A restart of the agent changes nothing, even after all delays.
    world.restart();
    world.connect();
    world.settle();
    assert_eq!((world.writes, counts(&world).drifted), (writes, 1));
    world.batch(vec![RuleDelta {
        upserts: vec![intent("s0", 2)],
        ..RuleDelta::new("r".into())
    }]);
    world.settle();
    assert!(
        world.holds(&copy("a", "s0"), "r", "s0", 2) && world.holds(&copy("b", "s0"), "r", "s0", 2)
    );
    assert_eq!((counts(&world).drifted, counts(&world).applied), (0, 4));
}

#[test]
fn a_changed_copy_that_is_changed_back_is_well_again() {
    let mut world = applied_and_reporting();
    world.edit(&copy("a", "s0"), |object| object.live.intact = false);
    world.settle();
    assert_eq!(counts(&world).drifted, 1);
    world.edit(&copy("a", "s0"), |object| object.live.intact = true);
    world.settle();
    assert_eq!((counts(&world).drifted, counts(&world).applied), (0, 4));
}

#[test]
fn deleted_copy_is_drift_until_source_changes() {
    for ends in ["an edit", "the policy"] {
        let mut world = applied_and_reporting();
        world.delete(&copy("a", "s0"));
        world.settle();
        assert!(!world.objects.contains_key(&copy("a", "s0")), "{ends}");
        assert_eq!(
            (counts(&world).drifted, counts(&world).applied),
            (1, 3),
            "{ends}"
        );
        // A new copy is created, because it never existed.
        world.batch(vec![RuleDelta {
            upserts: vec![intent("s2", 1)],
            ..RuleDelta::new("r".into())
        }]);
        world.settle();
        assert!(world.holds(&copy("a", "s2"), "r", "s2", 1), "{ends}");
        let delta = match ends {
            "an edit" => RuleDelta {
                upserts: vec![intent("s0", 2)],
                ..RuleDelta::new("r".into())
            },
            _ => with_terms("r", terms("r", &["a", "b"])),
        };
        world.batch(vec![delta]);
        world.settle();
        assert!(world.objects.contains_key(&copy("a", "s0")), "{ends}");
        assert_eq!(counts(&world).drifted, 0, "{ends}");
    }
}

#[test]
fn copy_deleted_with_its_namespace_is_no_drift() {
    let mut world = applied_and_reporting();
    world.set_namespace("a", None);
    world.settle();
    assert_eq!((counts(&world).drifted, counts(&world).waiting), (0, 2));
    world.set_namespace("a", Some(Namespace::default()));
    world.settle();
    assert!(world.holds(&copy("a", "s0"), "r", "s0", 1));
    assert_eq!((counts(&world).drifted, counts(&world).applied), (0, 4));
}

/// As a deletion in the foreground does, or one of an object with a finalizer.
#[test]
fn copy_that_others_delete_slowly_is_drift_as_any_other() {
    let delete = |world: &mut World, seconds: u64| {
        world.edit(&copy("a", "s0"), |object| {
            object.live.terminating = Some("is being deleted here".into());
        });
        world.settle_now();
        world.now += Duration::from_secs(seconds);
        world.settle_now();
        world.delete(&copy("a", "s0"));
        world.settle();
    };
    for seconds in [1, 60] {
        let mut world = applied_and_reporting();
        delete(&mut world, seconds);
        assert!(!world.objects.contains_key(&copy("a", "s0")));
        assert_eq!((counts(&world).drifted, counts(&world).applied), (1, 3));
        let mut world = applied();
        world.core.take_notices();
        delete(&mut world, seconds);
        assert_eq!(counts(&world).applied, 4);
        let corrected = |notice: &Notice| matches!(notice, Notice::DriftCorrected(..));
        assert_eq!(notices(&mut world, corrected), 1, "{seconds}");
    }
}

#[test]
fn reporting_rule_transfers_and_removes_its_copies() {
    let mut world = applied_and_reporting();
    world.edit(&copy("a", "s0"), |object| object.live.intact = false);
    world.delete(&copy("b", "s0"));
    world.settle();
    assert_eq!(counts(&world).drifted, 2);
    world.remove_rule("r", DeletionPolicy::Delete);
    world.settle();
    assert!(world.objects.is_empty());
}

#[test]
fn an_object_that_is_not_ours_is_adopted_only_when_it_is_equal() {
    let mut world = World::new(&["team", "a", "b"]);
    world.connect();
    for namespace in ["a", "b"] {
        world.make_foreign(&copy(namespace, "s0"));
    }
    world.edit(&copy("a", "s0"), |object| object.equal = true);
    let adopting = Terms {
        conflict_policy: ConflictPolicy::AdoptIfEqual,
        ..terms("r", &["a", "b"])
    };
    world.batch(vec![RuleDelta {
        upserts: vec![intent("s0", 1)],
        ..with_terms("r", adopting)
    }]);
    world.settle();
    assert!(world.holds(&copy("a", "s0"), "r", "s0", 1));
    assert_eq!(
        world.objects[&copy("b", "s0")].live.ownership,
        Ownership::Foreign
    );
    assert_eq!(
        (counts(&world).applied, counts(&world).failed, world.writes),
        (1, 1, 1)
    );
    assert_eq!(
        world.reported_state("r").unwrap().failures[0].reason,
        Reason::Conflict
    );
    // The object becomes equal without an event. The agent finds out by a recheck.
    world.edit(&copy("b", "s0"), |object| object.equal = true);
    world.settle();
    assert!(world.holds(&copy("b", "s0"), "r", "s0", 1));
}

/// Returns the reads per minute of a cluster with so many foreign objects in the way of copies.
fn reads_per_minute(conflict_policy: ConflictPolicy, dry_run: bool, foreign: usize) -> Vec<usize> {
    let mut world = World::new(&["team", "a"]);
    world.connect();
    let mut terms = terms("r", &["a"]);
    terms.conflict_policy = conflict_policy;
    if dry_run {
        terms.enforcement = Enforcement::DryRun;
    }
    let names: Vec<_> = (0..100).map(|number| format!("x{number}")).collect();
    for name in names.iter().take(foreign) {
        world.make_foreign(&copy("a", name));
    }
    world.batch(vec![RuleDelta {
        upserts: names.iter().map(|name| intent(name, 1)).collect(),
        ..with_terms("r", terms)
    }]);
    world.settle_now();
    let (begin, mut reads) = (world.now, vec![0; 30]);
    while let Some(now) = world.core.next_due(world.now) {
        let minute = usize::try_from((now - begin).as_secs() / 60).unwrap();
        let Some(reads) = reads.get_mut(minute) else {
            break;
        };
        world.now = now;
        world.dispatch();
        *reads += world.under_way.len();
        world.settle_now();
    }
    reads
}

#[test]
fn reads_of_what_no_watch_shows_become_rare() {
    for (conflict_policy, dry_run, foreign) in [
        (ConflictPolicy::Fail, false, 100),
        (ConflictPolicy::AdoptIfEqual, false, 100),
        (ConflictPolicy::Fail, true, 0),
    ] {
        let reads = reads_per_minute(conflict_policy, dry_run, foreign);
        assert!(reads.iter().all(|reads| *reads <= 300), "{reads:?}");
        assert!(reads[0] >= 100, "{reads:?}");
        // About once in four minutes each.
        let last: usize = reads[20..].iter().sum();
        assert!((200..=400).contains(&last), "{reads:?}");
    }
}

#[test]
fn foreign_object_is_overwritten_only_where_all_allow_it() {
    for allowed in [true, false] {
        let mut world = World::new(&["team", "a"]);
        world.set_policy(Policy {
            overwrite: allowed,
            ..Policy::open()
        });
        world.connect();
        world.make_foreign(&copy("a", "s0"));
        world.edit(&copy("a", "s0"), |object| {
            object.live.others = Some("helm".into())
        });
        let terms = Terms {
            conflict_policy: ConflictPolicy::Overwrite,
            ..terms("r", &["a"])
        };
        world.batch(vec![RuleDelta {
            upserts: vec![intent("s0", 1)],
            ..with_terms("r", terms)
        }]);
        world.settle();
        let text = |notice: &Notice| matches!(notice, Notice::Overwritten(_, _, Some(who)) if &**who == "helm");
        assert_eq!(world.holds(&copy("a", "s0"), "r", "s0", 1), allowed);
        assert_eq!(notices(&mut world, text), usize::from(allowed));
        assert_eq!(world.core.totals().overwritten, u64::from(allowed));
        if !allowed {
            assert_eq!(
                world.reported_state("r").unwrap().failures[0].reason,
                Reason::Denied
            );
            // The agent creates the copy when the name becomes free.
            world.delete(&copy("a", "s0"));
            world.settle();
            assert!(world.holds(&copy("a", "s0"), "r", "s0", 1));
        }
    }
}

#[test]
fn source_in_hub_cluster_is_never_taken_over() {
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
    world.make_foreign(&copy("a", "s0"));
    let terms = Terms {
        conflict_policy: ConflictPolicy::Overwrite,
        ..terms("r", &["a"])
    };
    let mut other = intent("s0", 2);
    other.source = copy("a", "s0");
    let of_others = RuleDelta {
        upserts: vec![other],
        ..with_terms("q", super::world::terms("q", &["team"]))
    };
    world.batch(vec![
        of_others,
        RuleDelta {
            upserts: vec![intent("s0", 1)],
            ..with_terms("r", terms)
        },
    ]);
    world.settle();
    assert_eq!(
        world.objects[&copy("a", "s0")].live.ownership,
        Ownership::Foreign
    );
    assert_eq!(
        world.reported_state("r").unwrap().failures[0].reason,
        Reason::Conflict
    );
}

#[test]
fn contention_is_reported_once_and_ends_when_quiet() {
    let mut world = applied();
    let turn = |world: &mut World| {
        world.edit(&copy("a", "s0"), |object| {
            (object.live.intact, object.live.others) = (false, Some("argocd-controller".into()));
        });
        world.settle_now();
    };
    for _ in 0..contention::LIMIT {
        turn(&mut world);
        assert_eq!((counts(&world).applied, counts(&world).failed), (4, 0));
    }
    turn(&mut world);
    assert!(
        world.holds(&copy("a", "s0"), "r", "s0", 1),
        "it is still put back"
    );
    let state = world.reported_state("r").unwrap();
    assert_eq!(
        (state.counts.failed, state.failures[0].reason),
        (1, Reason::Contended)
    );
    assert!(
        state.failures[0].message.starts_with("argocd-controller "),
        "{}",
        state.failures[0].message
    );
    // The contention continues: each correction is delayed, and the report does not change.
    for _ in 0..10 {
        turn(&mut world);
        assert!(
            !world.holds(&copy("a", "s0"), "r", "s0", 1),
            "it is not put back at once"
        );
        world.now += Duration::from_secs(240);
        world.settle_now();
        assert!(world.holds(&copy("a", "s0"), "r", "s0", 1));
        assert_eq!(world.reported_state("r").unwrap().failures, state.failures);
    }
    let all = world.core.take_notices();
    let contentions = all
        .iter()
        .filter(|notice| matches!(notice, Notice::Failed(_, _, copy_error) if copy_error.reason == Reason::Contended));
    assert_eq!(contentions.count(), 1, "{all:?}");
    assert_eq!(
        all.iter()
            .filter(|notice| matches!(notice, Notice::DriftCorrected(..)))
            .count(),
        contention::LIMIT
    );
    assert_eq!(world.core.totals().contentions, 1);
    world.now += contention::WINDOW;
    assert!(
        world
            .core
            .next_due(world.now - Duration::from_secs(1))
            .is_some(),
        "nothing else wakes the agent"
    );
    world.settle_now();
    assert_eq!((counts(&world).applied, counts(&world).failed), (4, 0));
    assert_eq!(world.core.totals().contentions, 0);
}

#[test]
fn new_revision_of_a_contended_copy_is_applied_at_once() {
    let mut world = applied();
    for _ in 0..=contention::LIMIT + 1 {
        world.edit(&copy("a", "s0"), |object| object.live.intact = false);
        world.settle_now();
    }
    assert_eq!(counts(&world).failed, 1);
    // A new revision is written at once, too.
    world.edit(&copy("a", "s0"), |object| object.live.intact = false);
    world.settle_now();
    world.batch(vec![RuleDelta {
        upserts: vec![intent("s0", 2)],
        ..RuleDelta::new("r".into())
    }]);
    world.settle_now();
    assert!(world.holds(&copy("a", "s0"), "r", "s0", 2));
    world.edit(&copy("a", "s0"), |object| object.live.intact = false);
    world.settle_now();
    world.batch(vec![RuleDelta {
        tombstones: vec![tombstone("s0")],
        ..RuleDelta::new("r".into())
    }]);
    world.settle_now();
    assert!(!world.objects.contains_key(&copy("a", "s0")));
    assert_eq!(world.core.totals().contentions, 0);
}

#[test]
fn ignored_fields_are_written_once_from_the_hubs_content() {
    let mut world = applied();
    let writes = world.writes;
    let ignored = BTreeSet::from([FieldPath::parse("/data/k").unwrap()]);
    let ignoring = Terms {
        ignore_fields: ignored,
        created_at: 102,
        ..terms("r", &["a", "b"])
    };
    world.batch(vec![with_terms("r", ignoring)]);
    world.settle();
    assert_eq!(
        world.writes,
        writes + 4,
        "what is left alone stands on each copy"
    );
    world.restart();
    world.connect();
    world.settle();
    assert_eq!((world.writes, counts(&world).applied), (writes + 4, 4));
    // No copy is a twin any more: others may have changed its ignored field.
    world.delete(&copy("a", "s0"));
    world.settle_now();
    assert!(world.sent.contains(&AgentFrame::ContentRequest(
        "r".into(),
        vec![copy("team", "s0")]
    )));
    world.batch(vec![RuleDelta {
        upserts: vec![intent("s0", 1)],
        ..RuleDelta::new("r".into())
    }]);
    world.settle_now();
    assert!(world.holds(&copy("a", "s0"), "r", "s0", 1));
}

proptest! {
    /// People change copies and their own objects at random. The agent changes a foreign object
    /// only if the rule allows it. The end state follows the policy, and then nothing more is
    /// written.
    #[test]
    fn every_policy_has_its_own_end(
        conflict in 0usize..3,
        reports in any::<bool>(),
        steps in proptest::collection::vec((0u8..6, 0u8..2, 0u8..2, any::<bool>()), 0..40),
    ) {
        let conflict_policy = [ConflictPolicy::Fail, ConflictPolicy::AdoptIfEqual, ConflictPolicy::Overwrite][conflict];
        let drift_policy = if reports { DriftPolicy::Report } else { DriftPolicy::Correct };
        let mut world = World::new(&["team", "a", "b"]);
        world.connect();
        let rule = Terms { conflict_policy, drift_policy, ..terms("r", &["a", "b"]) };
        let mut revisions = [1u8; 2];
        let all = |revisions: &[u8; 2]| vec![intent("s0", revisions[0]), intent("s1", revisions[1])];
        let mut begun = false;
        for (kind, namespace, source, flag) in steps {
            let place = copy(["a", "b"][usize::from(namespace)], &format!("s{source}"));
            match kind {
                0 => {
                    world.make_foreign(&place);
                    world.edit(&place, |object| object.equal |= flag && object.live.ownership == Ownership::Foreign);
                }
                1 => world.edit(&place, |object| object.live.intact = flag && object.live.ownership == Ownership::Ours),
                2 => world.delete(&place),
                3 => {
                    begun = true;
                    revisions[usize::from(source)] += 1;
                    world.batch(vec![RuleDelta { upserts: all(&revisions), ..with_terms("r", rule.clone()) }]);
                }
                4 => world.now += Duration::from_secs(3),
                _ => world.settle_now(),
            }
        }
        if !begun {
            world.batch(vec![RuleDelta { upserts: all(&revisions), ..with_terms("r", rule.clone()) }]);
        }
        world.settle();
        let drifted = world.reported_state("r").unwrap().counts.drifted;
        let mut left = 0;
        for namespace in ["a", "b"] {
            for (source, revision) in revisions.iter().enumerate() {
                let place = copy(namespace, &format!("s{source}"));
                let right = world.holds(&place, "r", &format!("s{source}"), *revision);
                match world.objects.get(&place) {
                    _ if right => {}
                    Some(object) if object.live.ownership == Ownership::Foreign => {
                        let stays = match conflict_policy {
                            ConflictPolicy::Fail => true,
                            ConflictPolicy::AdoptIfEqual => !object.equal,
                            ConflictPolicy::Overwrite => false,
                        };
                        prop_assert!(stays, "{place}: {object:?}");
                    }
                    other => {
                        prop_assert!(reports, "{place}: {other:?}");
                        left += 1;
                    }
                }
            }
        }
        prop_assert_eq!(drifted, left, "every copy that is left as it is, is counted");
        let writes = world.writes;
        world.settle();
        prop_assert_eq!(world.writes, writes, "something is written again and again");
    }
}
