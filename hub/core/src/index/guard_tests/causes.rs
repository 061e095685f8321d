//! What counts together: one cause with its subject, and several causes within the limits.
use super::*;

fn nowhere() -> Value {
    json!({"clusters": {"selector": {"matchLabels": {"env": "none"}}}})
}

fn only(names: &[&str]) -> Value {
    json!({"sources": [{"resources": ["configmaps"], "names": names}]})
}

impl World {
    fn digest(&self, rule: &str) -> Option<String> {
        let pending = self.approval(rule)?;
        Some(pending.digest.clone())
    }

    /// Edits a rule, with a digest as its annotation.
    fn approve(&mut self, name: &str, spec: &Value, digest: &str) {
        let mut spec = spec.clone();
        spec["metadata"] = json!({"annotations": {"runnel.dev/approve": digest}});
        self.change(|index| index.set_rule(rule(name, "team", &spec)));
    }

    fn label_sources(&mut self, numbers: std::ops::Range<u32>, value: &str) {
        self.change(|index| {
            let mut effect = Effect::default();
            for number in numbers {
                let labels = BTreeMap::from([("set".to_owned(), value.to_owned())]);
                let source = source("team", &format!("one-{number}"));
                effect.merge(index.set_source(source, labels, Some(content())));
            }
            effect
        });
    }
}

#[test]
fn blocked_removal_counts_for_no_other_cause() {
    for at_once in [true, false] {
        let mut world = World::new();
        world.add("large", "team", 30);
        world.add("small", "other", 5);
        let narrow = only(&["small-0", "small-1", "small-2", "small-3"]);
        let large = rule("large", "team", &nowhere());
        let small = rule("small", "other", &narrow);
        if at_once {
            world.change(|index| {
                let mut effect = index.set_rule(large);
                effect.merge(index.set_rule(small));
                effect
            });
        } else {
            world.change(|index| index.set_rule(large));
            world.change(|index| index.set_rule(small));
        }
        assert_eq!(
            world.pending(),
            [("rule team/large was edited".to_owned(), 60, 1)]
        );
        let Directive::Assigned(assignment) =
            world.index.directive(&"small".into(), &MEMBERS[0].into())
        else {
            panic!("small lost its clusters")
        };
        assert!(!assignment.must_stay(&source("other", "small-4")));
    }
}

#[test]
fn small_changes_that_are_large_together_are_blocked() {
    let mut world = World::with_limits();
    world.add_many(30);
    world.change(|index| {
        let mut effect = Effect::default();
        for number in 0..30 {
            let edited = rule(&format!("r{number}"), "team", &nowhere());
            effect.merge(index.set_rule(edited));
        }
        effect
    });
    assert_eq!((world.leaving(), world.pending().len()), (0, 30));
    // Each is a change of its own. After some are approved, the others are within the limits.
    for number in 0..5 {
        let name = format!("r{number}");
        let digest = world.digest(&name).expect("the rule is blocked");
        world.approve(&name, &nowhere(), &digest);
        world.later(DELAY);
        let (blocked, gone) = if number < 4 {
            (29 - number, number + 1)
        } else {
            (0, 30)
        };
        assert_eq!(
            (world.pending().len(), world.leaving()),
            (blocked, 2 * gone)
        );
    }
}

#[test]
fn rest_of_a_cause_stays_blocked_after_a_partial_approval() {
    let mut world = World::new();
    world.add_many(30);
    world.relabel("prd");
    let first = world.digest("r9").expect("the rule is blocked");
    for number in 0..5 {
        let name = format!("r{number}");
        let digest = world.digest(&name).expect("the rule is blocked");
        world.approve(&name, &json!({}), &digest);
        world.later(DELAY);
    }
    let cause = "labels of member clusters member-1, member-2 changed".to_owned();
    assert_eq!(
        (world.leaving(), world.pending()),
        (10, vec![(cause, 50, 25)])
    );
    assert_eq!(world.digest("r9"), Some(first), "its set is the same");
    world.approve_all();
    assert_eq!((world.leaving(), world.pending()), (60, vec![]));
}

#[test]
fn rest_of_a_rule_gets_a_digest_that_approves_it() {
    let mut world = World::new();
    world.add("one", "team", 12);
    world.change(|index| index.set_rule(rule("one", "team", &only(&["one-0*", "one-1*"]))));
    let first = world.digest("one").expect("the rule is blocked");
    world.change(|index| index.set_rule(rule("one", "team", &only(&["one-1*"]))));
    world.approve("one", &only(&["one-1*"]), &first);
    world.later(DELAY);
    let rest = world.digest("one").expect("one-0 is blocked");
    assert_ne!(rest, first);
    assert_eq!(world.pending()[0].1, 2);
    world.approve("one", &only(&["one-1*"]), &rest);
    assert!(world.passes_source("one", "one-0"));
    assert_eq!(world.pending(), []);
}

#[test]
fn approved_removal_does_not_count_for_the_next_change() {
    let mut world = World::new();
    world.add("one", "team", 12);
    let (kept, fewer) = (only(&["one-0*", "one-1*"]), only(&["one-1*"]));
    world.change(|index| index.set_rule(rule("one", "team", &kept)));
    let digest = world.digest("one").expect("the rule is blocked");
    world.approve("one", &kept, &digest);
    assert_eq!(world.pending(), []);
    world.change(|index| index.set_rule(rule("one", "team", &fewer)));
    assert!(world.passes_source("one", "one-0"));
}

#[test]
fn rest_within_the_limits_passes_once_the_others_are_undone() {
    let mut world = World::new();
    let by_label = json!({"sources": [{"resources": ["configmaps"], "selector": {"matchLabels": {"set": "a"}}}]});
    world.add("one", "team", 20);
    world.label_sources(0..20, "a");
    world.change(|index| index.set_rule(rule("one", "team", &by_label)));
    world.label_sources(0..12, "b");
    assert_eq!(
        world.pending(),
        [(
            "labels of sources in namespace team changed".to_owned(),
            24,
            1
        )]
    );
    world.label_sources(3..12, "a");
    world.later(DELAY);
    assert_eq!(world.pending(), []);
    let passed = (0..20).filter(|number| world.passes_source("one", &format!("one-{number}")));
    assert_eq!(passed.collect::<Vec<_>>(), [0, 1, 2]);
}

#[test]
fn blocked_delete_of_one_rule_blocks_no_delete_of_another() {
    let gone = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    let mut world = World::new();
    world.add("big", "team", 40);
    world.add("small", "other", 1);
    let terms = FleetTerms {
        limits_deliberate_deletes: true,
        ..FleetTerms::default()
    };
    world.change(|index| index.set_fleet_terms(terms));
    world.change(|index| index.set_rule(rule("big", "team", &gone)));
    world.change(|index| index.set_rule(rule("small", "other", &gone)));
    assert!(
        world.index.rules().is_removal_allowed(&"small".into())
            && !world.index.rules().is_removal_allowed(&"big".into())
    );
    assert_eq!(
        world.pending(),
        [("rule team/big was deleted".to_owned(), 80, 1)]
    );
}

#[test]
fn digest_names_the_cause_and_its_subject() {
    let blocked = |cause: Cause| {
        let mut guard = RemovalGuard::default();
        let item = Item::Source(source("team", "s"));
        guard.block([item].into(), &cause);
        guard.describe(
            "r",
            &BTreeMap::from([(MEMBERS[0].into(), 12)]),
            &BTreeMap::new(),
            World::new().now,
        );
        let pending = guard.pending().expect("an item is blocked");
        (pending.cause.clone(), pending.digest.clone())
    };
    let (grant, other) = (
        blocked(CauseKind::Grants.of("a")),
        blocked(CauseKind::Grants.of("b")),
    );
    let namespace = blocked(CauseKind::HubNamespaces.of("a"));
    assert_eq!(grant.0, "grant a changed");
    assert_eq!(blocked(CauseKind::Grants.of("a")), grant);
    assert!(grant.1 != other.1 && grant.1 != namespace.1);
}

#[test]
fn new_leader_names_the_cause_of_the_former_one() {
    let mut world = World::new();
    world.add("one", "team", 12);
    world.change(|index| index.set_grant("everything", None));
    let blocked = world.approval("one").cloned();
    let mut next = World::new();
    next.index.set_grant("everything", None);
    let mut carried = rule("one", "team", &json!({}));
    carried.removal.pending = blocked.clone();
    next.index.set_rule(carried);
    next.index.reset_removal_guards();
    for member in MEMBERS {
        next.set_reported_copies("one", member, 12);
        next.change(|index| index.orphaned_cluster(&"one".into(), &member.into()));
    }
    let found = next.approval("one");
    assert_eq!(found, blocked.as_ref());
    assert_eq!(
        found.map(|pending| pending.cause.as_str()),
        Some("grant everything was deleted")
    );
}
