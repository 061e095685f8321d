//! The answers to the hub's requests for single copies.
use super::world::*;
use crate::reconciler::ANSWERS_LIMIT;
use crate::reconciler::*;
use runnel_proto::model::*;

fn asked(world: &mut World, namespace: &str) -> Inspected {
    let copy = copy(namespace, "s0");
    let frame = HubFrame::Inspect(Inspect { question: 7, copy });
    world.core.handle(Event::Hub(frame, vec![]), world.now);
    while let Some(frame) = world.core.next_frame(world.now) {
        if let AgentFrame::Inspected(answer) = frame {
            return *answer;
        }
    }
    panic!("the agent does not answer")
}

#[test]
fn agent_explains_each_copy_as_it_reports_it() {
    let mut world = World::new(&["team", "a", "b"]);
    world.connect();
    world.make_foreign(&copy("b", "s0"));
    let terms: Terms = terms("r", &["a", "b", "later"]);
    world.batch(vec![RuleDelta {
        upserts: vec![intent("s0", 1)],
        ..with_terms("r", terms)
    }]);
    world.settle();

    let here = asked(&mut world, "a");
    assert_eq!((here.question, here.namespace), (7, NamespaceState::Ready));
    assert_eq!(
        here.states,
        [CopyState {
            rule: "r".into(),
            outcome: CopyOutcome::Applied,
            copy_error: None
        }]
    );
    let live = here.live.unwrap();
    assert!(live.ours && live.intact);
    assert_eq!(live.sealed.map(|(rule, ..)| rule), Some("r".into()));

    let result = asked(&mut world, "b");
    let copy_error = result.states[0].copy_error.clone().unwrap();
    assert_eq!(
        (result.states[0].outcome, copy_error.0),
        (CopyOutcome::Failed, Reason::Conflict)
    );

    let later = asked(&mut world, "later");
    assert_eq!(
        (later.namespace, later.states[0].outcome),
        (NamespaceState::Missing, CopyOutcome::Waiting)
    );
    assert_eq!(
        asked(&mut world, "team"),
        Inspected {
            question: 7,
            namespace: NamespaceState::Ready,
            states: vec![],
            live: None
        }
    );
}

#[test]
fn explanation_has_the_fields_that_the_sealed_rule_returns() {
    let mut world = World::new(&["team", "a"]);
    world.connect();
    let path = |text: &str| JsonPath::parse(text).unwrap();
    let field = |resource: &str, name: &str, at: &str| FeedbackField {
        resource: resource.into(),
        name: name.into(),
        path: path(at),
    };
    let mut terms: Terms = terms("r", &["a"]);
    terms.feedback = vec![
        field("configmaps", "ready", ".status.ready"),
        field("configmaps", "absent", ".status.absent"),
        field("widgets", "of-another-kind", ".status.size"),
    ];
    world.batch(vec![RuleDelta {
        upserts: vec![intent("s0", 1)],
        ..with_terms("r", terms)
    }]);
    world.settle();
    assert_eq!(asked(&mut world, "a").live.unwrap().feedback, []);

    // The path of another rule is read, too.
    let values = [(".status.ready", "1"), (".status.size", "3")]
        .map(|(at, value)| (path(at), Box::<str>::from(value)));
    let health = ObservedHealth {
        health: CopyHealth::Failed,
        message: "out of oil".into(),
    };
    world.edit(&copy("a", "s0"), |object| {
        object.live.feedback = Some(Arc::new(values.into()));
        object.live.health = Some(health.clone().into());
    });
    world.settle();
    let live = asked(&mut world, "a").live.unwrap();
    let ready = FeedbackValue {
        name: "ready".into(),
        value: "1".into(),
    };
    assert_eq!((live.feedback, live.health), (vec![ready], Some(health)));

    // The state of an adopted object is that of its owner.
    world.edit(&copy("a", "s0"), |object| object.live.adopted = true);
    while world.deliver_one() {}
    let live = asked(&mut world, "a").live.unwrap();
    assert_eq!((live.feedback, live.health), (vec![], None));
    let page = listed(&mut world, None, 1);
    assert_eq!(
        (&page.copies[0].feedback, &page.copies[0].health),
        (&vec![], &None)
    );
    world.edit(&copy("a", "s0"), |object| object.live.adopted = false);
    while world.deliver_one() {}

    // An object without our seal belongs to no rule.
    world.edit(&copy("a", "s0"), |object| object.live.sealed = None);
    while world.deliver_one() {}
    assert_eq!(asked(&mut world, "a").live.unwrap().feedback, []);
}

fn listed(world: &mut World, after: Option<SourceRef>, limit: u32) -> CopyList {
    let question = ListCopies {
        question: 9,
        rule: "r".into(),
        after,
        only: None,
        limit,
    };
    let frame = HubFrame::ListCopies(Box::new(question));
    world.core.handle(Event::Hub(frame, vec![]), world.now);
    let mut all = CopyList::default();
    while let Some(frame) = world.core.next_frame(world.now) {
        let AgentFrame::CopyList(part) = frame else {
            continue;
        };
        all.copies.extend(part.copies);
        if part.last {
            return CopyList {
                copies: all.copies,
                ..part
            };
        }
    }
    panic!("the agent does not answer")
}

#[test]
fn answers_are_bounded_while_the_hub_does_not_read() {
    let mut world = World::new(&["team"]);
    world.connect();
    world.settle();
    for question in 0..10_000 {
        let copy = copy("team", "s0");
        let frame = HubFrame::Inspect(Inspect { question, copy });
        world.core.handle(Event::Hub(frame, vec![]), world.now);
    }
    let frames = std::iter::from_fn(|| world.core.next_frame(world.now));
    let answers = frames.filter(|frame| matches!(frame, AgentFrame::Inspected(_)));
    assert_eq!(answers.count(), ANSWERS_LIMIT);
}

#[test]
fn agent_lists_one_copy() {
    let mut world = World::new(&["team", "a", "b"]);
    world.connect();
    world.batch(vec![RuleDelta {
        upserts: vec![intent("s0", 1)],
        ..with_terms("r", terms("r", &["a", "b"]))
    }]);
    world.settle();
    for (only, found) in [(copy("b", "s0"), 1), (copy("b", "s1"), 0)] {
        let question = ListCopies {
            question: 9,
            rule: "r".into(),
            after: None,
            only: Some(only),
            limit: 1,
        };
        let frame = HubFrame::ListCopies(Box::new(question));
        world.core.handle(Event::Hub(frame, vec![]), world.now);
        let frames = std::iter::from_fn(|| world.core.next_frame(world.now));
        let answer = frames
            .filter_map(|frame| match frame {
                AgentFrame::CopyList(answer) => Some(answer),
                _ => None,
            })
            .next()
            .unwrap();
        assert_eq!(
            (answer.copies.len(), answer.more, answer.last),
            (found, false, true)
        );
    }
}

#[test]
fn agent_lists_the_copies_of_a_rule_in_pages() {
    let mut world = World::new(&["team", "a", "b"]);
    world.connect();
    world.make_foreign(&copy("b", "s0"));
    let terms: Terms = terms("r", &["a", "b", "later"]);
    world.batch(vec![RuleDelta {
        upserts: vec![intent("s0", 1)],
        ..with_terms("r", terms)
    }]);
    world.settle();

    let page = listed(&mut world, None, 2);
    let states = |page: &CopyList| {
        let states = page.copies.iter();
        states
            .map(|listed| (listed.copy.namespace.to_string(), listed.outcome))
            .collect::<Vec<_>>()
    };
    let first = [
        ("a".to_owned(), CopyOutcome::Applied),
        ("b".to_owned(), CopyOutcome::Failed),
    ];
    assert_eq!(
        (states(&page), page.more, page.last),
        (first.to_vec(), true, true)
    );
    assert_eq!(page.copies[0].source, Some(copy("team", "s0")));
    assert_eq!(page.copies[1].applied_at, 0, "the object of a stranger");
    let reason = page.copies[1]
        .copy_error
        .as_ref()
        .map(|(reason, _)| *reason);
    assert_eq!(reason, Some(Reason::Conflict));

    let rest = listed(&mut world, Some(page.copies[1].copy.clone()), 2);
    let second = [("later".to_owned(), CopyOutcome::Waiting)];
    assert_eq!((states(&rest), rest.more), (second.to_vec(), false));
}

#[test]
fn page_of_copies_is_bounded() {
    let mut world = World::new(&["team", "a"]);
    world.connect();
    let sources = 0..u8::try_from(200).unwrap();
    let namespaces = ["a", "later-1", "later-2"];
    world.batch(vec![RuleDelta {
        upserts: sources
            .map(|number| intent(&format!("s{number}"), 1))
            .collect(),
        ..with_terms("r", terms("r", &namespaces))
    }]);
    world.settle();
    let page = listed(&mut world, None, u32::MAX);
    assert_eq!((page.copies.len(), page.more), (COPIES_LIMIT, true));
}

#[test]
fn paths_of_returned_fields_are_passed_on_when_they_change() {
    let mut world = World::new(&["team", "a"]);
    let take = |world: &mut World| world.core.take_feedback(world.now).is_some();
    assert!(take(&mut world), "the first call");
    world.connect();
    let field = |name: &str| FeedbackField {
        resource: "configmaps".into(),
        name: name.into(),
        path: JsonPath::parse(".status.k").unwrap(),
    };
    let cases = [
        (vec![field("one")], true),
        (vec![field("one")], false),
        (vec![field("other")], false),
        (vec![], true),
        (vec![], false),
    ];
    for (step, (feedback, is_news)) in (1..).zip(cases) {
        let mut terms = terms("r", &["a"]);
        (terms.created_at, terms.feedback) = (100 + step, feedback);
        world.batch(vec![with_terms("r", terms)]);
        assert_eq!(take(&mut world), is_news, "{step}");
    }
}
