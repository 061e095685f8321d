//! The answers to the hub's requests for single copies.
use super::world::*;
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

    let taken = asked(&mut world, "b");
    let copy_error = taken.states[0].copy_error.clone().unwrap();
    assert_eq!(
        (taken.states[0].outcome, copy_error.0),
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
