//! The answers to previews. A preview changes nothing.
use super::world::*;
use crate::reconciler::*;
use runnel_proto::model::*;
use std::collections::BTreeSet;

pub(super) fn question(
    uid: &str,
    terms: Option<Terms>,
    names: &[(&str, u8)],
    tombstones: &[&str],
) -> PreviewRequest {
    let preview_result = |(name, revision): &(&str, u8)| {
        let intent = Intent {
            payload: Payload::from_wire(Encoding::Plain, vec![].into(), 0),
            ..intent(name, *revision)
        };
        PreviewIntent {
            intent,
            bytes: 1,
            object_type: None,
            fields: [0; 32],
            digests: None,
        }
    };
    PreviewRequest {
        question: 9,
        uid: uid.into(),
        terms: terms.map(|terms| (terms, TermsDigest([9; 16]))),
        intents: names.iter().map(preview_result).collect(),
        tombstones: tombstones.iter().map(|name| tombstone(name)).collect(),
        removal: None,
        blocked: BTreeSet::new(),
        blocks_all: false,
        dry_run: false,
        key: FieldsKey([3; 32]),
    }
}

pub(super) fn answers(world: &World) -> Vec<PreviewResult> {
    let preview_result = |frame: &AgentFrame| match frame {
        AgentFrame::PreviewResult(preview_result) => Some(preview_result.clone()),
        _ => None,
    };
    world.sent.iter().filter_map(preview_result).collect()
}

fn refused(source: SourceRef) -> Refusal {
    let message = "this agent cannot read encoding".to_owned();
    Refusal {
        rule: "r".into(),
        source,
        revision: Revision([0; 16]),
        reason: Reason::Unsupported,
        message,
    }
}

#[test]
fn unreadable_parts_of_a_question_are_refused() {
    let mut world = World::new(&["team", "a"]);
    world.connect();
    let mut ask = |unreadable: SourceRef| {
        let question = question("r", Some(terms("r", &["a"])), &[("s0", 1)], &[]);
        let event = Event::Hub(
            HubFrame::PreviewRequest(Box::new(question)),
            vec![refused(unreadable)],
        );
        world.core.handle(event, world.now);
        world.settle();
        answers(&world).pop().unwrap()
    };
    let part = ask(copy("team", "s1"));
    let answer: Vec<_> = part
        .copies
        .iter()
        .map(|one| (one.copy.to_string(), one.previewed))
        .collect();
    assert!(
        part.unanswered.is_empty()
            && answer.contains(&(copy("team", "s1").to_string(), PreviewOutcome::Refused))
    );
    assert!(answer.contains(&(copy("a", "s0").to_string(), PreviewOutcome::Create)));
    let whole = ask(SourceRef::new("", "", ""));
    assert!(whole.last && whole.copies.is_empty() && whole.unanswered.contains("cannot read"));
}

#[test]
fn an_answer_does_not_reach_another_stream_than_its_question() {
    let mut world = World::new(&["team", "a"]);
    world.connect();
    let asks = |world: &mut World| {
        let question = question("r", Some(terms("r", &["a"])), &[("s0", 1)], &[]);
        world.core.handle(
            Event::Hub(HubFrame::PreviewRequest(Box::new(question)), vec![]),
            world.now,
        );
        world.dispatch();
    };
    asks(&mut world);
    world.core.handle(Event::HubLost, world.now);
    world.connect();
    world.settle();
    assert_eq!(answers(&world), []);
    // A preview that is requested meanwhile is answered once, though both have the same number.
    asks(&mut world);
    world.core.handle(Event::HubLost, world.now);
    world.connect();
    asks(&mut world);
    world.settle();
    assert_eq!(answers(&world).len(), 1);
}

fn asked(world: &mut World, question: PreviewRequest) -> Vec<String> {
    let (writes, before) = (world.writes, world.sent.len());
    world.core.handle(
        Event::Hub(HubFrame::PreviewRequest(Box::new(question)), vec![]),
        world.now,
    );
    world.settle();
    assert_eq!(world.writes, writes, "something was written");
    let preview_result = world.sent[before..].iter().filter_map(|frame| match frame {
        AgentFrame::PreviewResult(preview_result) => Some(preview_result.clone()),
        _ => None,
    });
    let copies = preview_result.flat_map(|preview_result| preview_result.copies);
    copies
        .map(|one| {
            format!(
                "{}/{} {:?}",
                one.copy.namespace, one.copy.name, one.previewed
            )
        })
        .collect()
}

#[test]
fn unsaved_rule_is_previewed_and_forgotten() {
    let mut world = World::new(&["team", "a", "b"]);
    world.connect();
    world.make_foreign(&copy("b", "s0"));
    let wanted = terms("r", &["a", "b", "later"]);
    let answer = asked(
        &mut world,
        question("r", Some(wanted.clone()), &[("s0", 1)], &[]),
    );
    assert_eq!(answer, ["a/s0 Create", "b/s0 Refused", "later/s0 Wait"]);
    let overwrite = Terms {
        conflict_policy: ConflictPolicy::Overwrite,
        create_namespaces: true,
        ..wanted.clone()
    };
    let answer = asked(
        &mut world,
        question("r", Some(overwrite), &[("s0", 1)], &[]),
    );
    assert_eq!(answer, ["a/s0 Create", "b/s0 Overwrite", "later/s0 Create"]);
    let answer = asked(
        &mut world,
        question(
            "r",
            Some(Terms {
                suspend: true,
                ..wanted
            }),
            &[("s0", 1)],
            &[],
        ),
    );
    assert_eq!(answer, ["a/s0 Noop", "b/s0 Noop", "later/s0 Wait"]);
    assert!(world.acked_pairs("r").is_empty());
}

#[test]
fn edited_rule_previews_changes_removals_and_blocks() {
    let mut world = World::new(&["team", "a", "b"]);
    world.connect();
    let all = terms("r", &["a", "b"]);
    world.batch(vec![RuleDelta {
        upserts: vec![intent("s0", 1), intent("s1", 1)],
        ..with_terms("r", all.clone())
    }]);
    world.settle();
    assert_eq!(
        asked(
            &mut world,
            question("r", Some(all.clone()), &[("s0", 1), ("s1", 2)], &[])
        ),
        [
            "a/s0 Unchanged",
            "a/s1 Change",
            "b/s0 Unchanged",
            "b/s1 Change"
        ]
    );
    assert_eq!(
        asked(
            &mut world,
            question("r", Some(all.clone()), &[("s0", 1)], &["s1"])
        ),
        [
            "a/s0 Unchanged",
            "a/s1 Remove",
            "b/s0 Unchanged",
            "b/s1 Remove"
        ]
    );
    let blocked = PreviewRequest {
        blocked: BTreeSet::from([copy("team", "s1")]),
        ..question("r", Some(all), &[("s0", 1)], &[])
    };
    assert_eq!(
        asked(&mut world, blocked),
        [
            "a/s0 Unchanged",
            "a/s1 Blocked",
            "b/s0 Unchanged",
            "b/s1 Blocked"
        ]
    );
    // Removing a literal name is deliberate. A change of a namespace's labels is not.
    assert_eq!(
        asked(
            &mut world,
            question("r", Some(terms("r", &["a"])), &[("s0", 1), ("s1", 1)], &[])
        ),
        [
            "a/s0 Unchanged",
            "a/s1 Unchanged",
            "b/s0 Remove",
            "b/s1 Remove"
        ]
    );
    let globs = Terms {
        namespaces: Some(NamespaceChoice {
            names: vec![Pattern::new("a*")],
            ..NamespaceChoice::default()
        }),
        ..terms("r", &[])
    };
    assert_eq!(
        asked(
            &mut world,
            question("r", Some(globs), &[("s0", 1), ("s1", 1)], &[])
        ),
        [
            "a/s0 Unchanged",
            "a/s1 Unchanged",
            "b/s0 Prune",
            "b/s1 Prune"
        ]
    );
    let retain = PreviewRequest {
        removal: Some(DeletionPolicy::Retain),
        ..question("r", None, &[], &[])
    };
    assert_eq!(
        asked(&mut world, retain),
        ["a/s0 Retain", "a/s1 Retain", "b/s0 Retain", "b/s1 Retain"]
    );
    let all_blocked = PreviewRequest {
        blocks_all: true,
        ..question("r", None, &[], &[])
    };
    assert_eq!(
        asked(&mut world, all_blocked),
        [
            "a/s0 Blocked",
            "a/s1 Blocked",
            "b/s0 Blocked",
            "b/s1 Blocked"
        ]
    );
    // An older rule wins what no rule has.
    let older = Terms {
        created_at: 1,
        ..terms("q", &["a"])
    };
    assert_eq!(
        asked(&mut world, question("q", Some(older), &[("s0", 1)], &[])),
        ["a/s0 Refused"]
    );
    let younger = Terms {
        created_at: 900,
        ..terms("q", &["a"])
    };
    assert_eq!(
        asked(&mut world, question("q", Some(younger), &[("s0", 1)], &[])),
        ["a/s0 Refused"]
    );
}

#[test]
fn equality_of_a_foreign_secret_is_never_reported() {
    let mut world = World::new(&["team", "a", "b"]);
    world.connect();
    for (namespace, equal) in [("a", true), ("b", false)] {
        for resource in ["configmaps", "secrets"] {
            let object = SourceRef::new(resource, namespace, "s0");
            world.make_foreign(&object);
            world.objects.get_mut(&object).unwrap().equal = equal;
        }
    }
    let secrets = SourceRef::new("secrets", "team", "s0");
    // Returns the outcomes of both ConfigMaps, then of both Secrets.
    let answer = |world: &mut World, conflict_policy: ConflictPolicy| {
        let terms = Terms {
            conflict_policy,
            ..terms("r", &["a", "b"])
        };
        let mut question = question("r", Some(terms), &[("s0", 1), ("s0", 1)], &[]);
        question.intents[1].intent.source = secrets.clone();
        let answer = asked(world, question);
        answer
            .iter()
            .map(|one| one.rsplit(' ').next().unwrap_or_default().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(answer(&mut world, ConflictPolicy::Fail), ["Refused"; 4]);
    let expected = ["Adopt", "Refused", "AdoptIfEqual", "AdoptIfEqual"];
    assert_eq!(answer(&mut world, ConflictPolicy::AdoptIfEqual), expected);
    // The equal ConfigMap is adopted. The equality of Secrets is not disclosed.
    let expected = ["Adopt", "Overwrite", "Overwrite", "Overwrite"];
    assert_eq!(answer(&mut world, ConflictPolicy::Overwrite), expected);
    let upserts = vec![
        intent("s0", 1),
        Intent {
            source: secrets.clone(),
            ..intent("s0", 1)
        },
    ];
    world.batch(vec![RuleDelta {
        upserts,
        ..with_terms("r", terms("r", &["a", "b"]))
    }]);
    world.settle();
    assert_eq!(answer(&mut world, ConflictPolicy::Overwrite), expected);
}

#[test]
fn copies_beyond_the_limit_are_not_read_for_a_diff() {
    let mut world = World::new(&["team", "a"]);
    world.connect();
    let names: Vec<String> = (0..=DIFF_COPIES)
        .map(|number| format!("s{number}"))
        .collect();
    let upserts = names.iter().map(|name| intent(name, 1)).collect();
    world.batch(vec![RuleDelta {
        upserts,
        ..with_terms("r", terms("r", &["a"]))
    }]);
    world.settle();
    let changed: Vec<(&str, u8)> = names.iter().map(|name| (name.as_str(), 2)).collect();
    let mut items_of = |digests: bool| {
        let mut asked = question("r", Some(terms("r", &["a"])), &changed, &[]);
        for one in asked.intents.iter_mut().filter(|_| digests) {
            one.digests = Some(FieldDigests::default().into());
        }
        world.core.handle(
            Event::Hub(HubFrame::PreviewRequest(Box::new(asked)), vec![]),
            world.now,
        );
        let (_, preview_job) = world.core.hub.previews.waiting.back().unwrap();
        let open = |item: &&crate::decide::Item| {
            matches!(item.known, crate::decide::PreviewInput::Open(_))
        };
        let found = (
            preview_job.items.len(),
            preview_job.items.iter().filter(open).count(),
        );
        world.settle();
        found
    };
    assert_eq!(items_of(true), (DIFF_COPIES + 1, DIFF_COPIES));
    assert_eq!(items_of(false), (DIFF_COPIES + 1, 0));
}
