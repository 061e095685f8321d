//! Small fleets, written limits, and what happened to sources.
use super::*;
use crate::plan::UnsupportedSource;

fn nowhere(limit: &Value) -> Value {
    json!({"clusters": {"selector": {"matchLabels": {"env": "none"}}}, "removalLimit": limit})
}

fn none() -> FleetTerms {
    FleetTerms {
        fleet: Limit::NONE,
        member: Limit::NONE,
        ..FleetTerms::default()
    }
}

#[test]
fn most_of_a_small_fleet_needs_approval() {
    let mut world = World::new();
    world.add("one", "team", 2);
    world.change(|index| index.set_grant("everything", None));
    assert_eq!(
        world.pending(),
        [("grant everything was deleted".to_owned(), 4, 1)]
    );
    // Half of it needs none, and three copies never do.
    let mut world = World::new();
    world.add("one", "team", 4);
    let half = json!({"sources": [{"resources": ["configmaps"], "names": ["one-0", "one-1"]}]});
    let half = rule("one", "team", &half);
    world.change(|index| index.set_rule(half));
    assert_eq!(world.pending().len(), 0);
}

#[test]
fn written_limit_has_no_default_beside_it() {
    for (limit, is_blocked) in [
        (json!({"count": 5}), true),
        (json!({"count": 12}), false),
        (json!({"percent": 40}), true),
        (json!({"percent": 50}), false),
        (json!({"count": 5, "percent": 50}), false),
    ] {
        let mut world = World::new();
        world.index.set_fleet_terms(none());
        world.add("one", "team", 12);
        let mut half = json!({"sources": [{"resources": ["configmaps"], "names": ["one-0", "one-1", "one-2", "one-3", "one-4", "one-5"]}]});
        half["removalLimit"] = limit.clone();
        world.change(|index| index.set_rule(rule("one", "team", &half)));
        assert_eq!(world.approval("one").is_some(), is_blocked, "{limit}");
    }
}

#[test]
fn percent_is_of_what_is_there_in_any_namespaces() {
    for namespaces in [
        json!(null),
        json!({"names": ["a"]}),
        json!({"names": ["a*"]}),
    ] {
        for (left, percent, is_blocked) in [
            (12, 20, false),
            (11, 20, true),
            (6, 60, false),
            (5, 60, true),
            (0, 100, false),
            (0, 99, true),
        ] {
            let mut world = World::new();
            world.index.set_fleet_terms(none());
            let mut spec = json!({"removalLimit": {"percent": percent}});
            if !namespaces.is_null() {
                spec["namespaces"] = namespaces.clone();
            }
            world.index.set_rule(rule("one", "team", &spec));
            world.add("one", "team", 15);
            world.change(|index| index.set_rule(rule("one", "team", &spec)));
            let names: Vec<_> = (0..left).map(|number| format!("one-{number}")).collect();
            spec["sources"] =
                json!([{"resources": ["configmaps"], "names": ["none-*"], "selector": null}]);
            if !names.is_empty() {
                spec["sources"][0]["names"] = json!(names);
            }
            world.change(|index| index.set_rule(rule("one", "team", &spec)));
            let what = format!("{namespaces} {left} {percent}");
            assert_eq!(world.approval("one").is_some(), is_blocked, "{what}");
        }
    }
}

#[test]
fn source_that_is_not_distributed_any_more_is_limited() {
    for (refused, cause) in [
        (UnsupportedSource::Annotation, None),
        (
            UnsupportedSource::Controlled,
            Some("controllers took over sources in namespace team"),
        ),
        (
            UnsupportedSource::Type,
            Some("sources in namespace team are no longer distributed"),
        ),
        (UnsupportedSource::TooLarge, None),
    ] {
        let mut world = World::new();
        world.add("one", "team", 12);
        world.change(|index| {
            let mut effect = Effect::default();
            for number in 0..12 {
                let source = source("team", &format!("one-{number}"));
                let state = Some(SourceState::Refused(refused));
                effect.merge(index.set_source(source, BTreeMap::new(), state));
            }
            effect
        });
        let known = world.approval("one").map(|pending| pending.cause.clone());
        assert_eq!(known.as_deref(), cause, "{refused:?}");
        // Only what its owner excluded is removed.
        let passes = world.passes_source("one", "one-0");
        assert_eq!(
            passes,
            refused == UnsupportedSource::Annotation,
            "{refused:?}"
        );
    }
}

#[test]
fn new_name_for_all_copies_is_an_edit_of_the_rule() {
    let mut world = World::new();
    world.add("one", "team", 12);
    let renamed = json!({"transform": {"name": "new-${source.name}"}});
    world.change(|index| index.set_rule(rule("one", "team", &renamed)));
    assert_eq!(
        world.pending(),
        [("rule team/one was edited".to_owned(), 24, 1)]
    );
}

#[test]
fn approval_lists_each_cause_with_its_copies() {
    let mut world = World::new();
    world.add("one", "team", 40);
    let fewer = json!({"sources": [{"resources": ["configmaps"], "names": ["one-1*"]}]});
    world.change(|index| index.set_rule(rule("one", "team", &fewer)));
    assert_eq!(world.approval("one").unwrap().causes, []);
    world.change(|index| index.set_cluster(MEMBERS[0].into(), cluster("prd")));
    let pending = world.approval("one").unwrap().clone();
    let causes: Vec<_> = pending
        .causes
        .iter()
        .map(|it| (&*it.cause, it.copies))
        .collect();
    assert_eq!(
        causes,
        [
            ("rule team/one was edited", 58),
            ("labels of member cluster member-1 changed", 40)
        ]
    );
    let fleet = &world.index.rules().pending_causes()[0];
    assert_eq!(fleet.approval.causes, pending.causes);
    world.change(|index| index.set_rule(rule("one", "team", &nowhere(&json!({})))));
    assert_eq!(world.leaving(), 0);
}

#[test]
fn removed_sources_are_forgotten_once_agents_have_removed_them() {
    let mut world = World::new();
    world.add("one", "team", 200);
    let names: Vec<_> = (0..100).map(|number| format!("one-{number}")).collect();
    world.delete_sources("team", &names);
    let guard = |world: &World| {
        world
            .index
            .rules()
            .get(&"one".into())
            .unwrap()
            .guard
            .clone()
    };
    assert!(guard(&world).is_worth_forgetting() && world.passes_source("one", "one-7"));
    world.index.rules_mut().forget_removed(&"one".into());
    assert!(!guard(&world).is_worth_forgetting() && !world.passes_source("one", "one-7"));
}
