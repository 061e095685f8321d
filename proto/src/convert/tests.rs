use bytes::Bytes;
use prop::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use prost::Message;

use super::*;
use crate::model::*;
use crate::wire;

mod texts;

/// Returns names.
fn name() -> impl Strategy<Value = String> {
    "[a-z./-]{1,20}"
}

fn object_name() -> impl Strategy<Value = String> {
    "[a-z0-9]{1,9}(-[a-z0-9]{1,5})?(\\.[a-z]{1,9})?"
}

fn source() -> impl Strategy<Value = SourceRef> {
    let copy_name = prop::option::of(object_name());
    (
        object_name(),
        "([a-z0-9]{1,9}(-[a-z0-9]{1,9})?)?",
        object_name(),
        copy_name,
    )
        .prop_map(|(resource, namespace, name, copy_name)| {
            let source = SourceRef::new(&resource, &namespace, &name);
            copy_name.map_or(source.clone(), |copy_name| source.as_copy(&copy_name))
        })
}

fn uid() -> impl Strategy<Value = RuleUid> {
    "[a-zA-Z0-9._-]{1,20}".prop_map(RuleUid::from)
}

fn rule_name() -> impl Strategy<Value = RuleName> {
    ("[A-Z]{0,9}", "[a-z]{0,9}", "[a-z]{0,9}").prop_map(|(kind, namespace, name)| RuleName {
        kind,
        namespace,
        name,
    })
}

fn reason() -> impl Strategy<Value = Reason> {
    prop::sample::select(Reason::ALL.to_vec())
}

fn copy_change() -> impl Strategy<Value = CopyChange> {
    let action = prop::sample::select(CopyAction::ALL.to_vec());
    let origin = prop::sample::select(ChangeOrigin::ALL.to_vec());
    (action, origin, 1..=u32::MAX).prop_map(|(action, origin, copies)| CopyChange {
        action,
        origin,
        copies,
    })
}

fn state() -> impl Strategy<Value = RuleState> {
    let failure =
        (reason(), source(), "[ a-zö]{0,99}").prop_map(|(reason, copy, message)| Failure {
            reason,
            copy: copy.plain(),
            message,
        });
    let head = (
        uid(),
        rule_name(),
        any::<[u8; 16]>(),
        any::<u32>(),
        any::<Option<[u8; 16]>>(),
    );
    let namespaces = vec("[a-z]{1,9}", 0..=NAMESPACES_LIMIT);
    let waiting = (namespaces.clone(), any::<u32>());
    let namespace_prunes = prop::option::of((any::<u32>(), any::<[u8; 16]>(), namespaces));
    let rest = (
        any::<[bool; 2]>(),
        (namespace_prunes, waiting),
        any::<u64>(),
        any::<Option<[u8; 16]>>(),
        vec(copy_change(), 0..=CHANGES_LIMIT),
        vec(copy_feedback(), 0..3),
    );
    (
        head,
        any::<[u32; 13]>(),
        vec(failure, 0..=FAILURES_LIMIT),
        rest,
    )
        .prop_map(|(head, n, failures, rest)| {
            let (
                [gone, suspended],
                (namespace_prunes, waiting),
                last_batch,
                proof,
                changes,
                feedback,
            ) = rest;
            RuleState {
                uid: head.0,
                rule: head.1,
                intents_digest: SetDigest::from_bytes(&head.2).unwrap(),
                intents: head.3,
                terms_digest: head.4.map(TermsDigest),
                counts: Counts {
                    copies: n[0],
                    applied: n[1],
                    failed: n[2],
                    waiting: n[3],
                    removing: n[4],
                    drifted: n[5],
                    to_create: n[6],
                    to_update: n[7],
                    to_delete: n[8],
                    absent: n[9],
                    with_health: n[10],
                    healthy: n[11],
                    unhealthy: n[12],
                },
                failures,
                gone,
                last_batch,
                namespace_prunes: namespace_prunes.map(|(copies, digest, namespaces)| {
                    NamespacePrunes {
                        copies,
                        digest: PruneDigest(digest),
                        namespaces,
                    }
                }),
                waiting: WaitingNamespaces {
                    first: waiting.0,
                    count: waiting.1,
                },
                suspended,
                proof: proof.map(Proof),
                changes,
                feedback,
            }
        })
}

fn feedback_values() -> impl Strategy<Value = Vec<FeedbackValue>> {
    let value = ("[a-z]{1,9}", "[ a-zö]{0,60}").prop_map(|(name, value)| FeedbackValue {
        name: name.into(),
        value: value.into(),
    });
    vec(value, 0..=FEEDBACK_LIMIT)
}

fn copy_feedback() -> impl Strategy<Value = CopyFeedback> {
    (source(), feedback_values()).prop_map(|(copy, values)| CopyFeedback {
        copy: copy.plain(),
        values,
    })
}

fn agent_frames() -> impl Strategy<Value = AgentFrame> {
    let hello = (any::<[u32; 2]>(), name(), name()).prop_map(|(n, a, b)| {
        AgentFrame::Hello(Hello {
            protocol_min: n[0],
            protocol_max: n[1],
            agent_version: a.clone(),
            kubernetes_version: b.clone(),
            boot_id: b,
            cluster_uid: a,
        })
    });
    let acked = (source(), any::<[u8; 16]>()).prop_map(|(source, r)| AckedIntent {
        source,
        revision: Revision(r),
    });
    let refusal = (
        uid(),
        source(),
        any::<[u8; 16]>(),
        reason(),
        "[ a-zö]{0,99}",
    )
        .prop_map(|(rule, source, r, reason, message)| Refusal {
            rule,
            source,
            revision: Revision(r),
            reason,
            message,
        });
    prop_oneof![
        hello,
        (vec(state(), 0..60), any::<bool>())
            .prop_map(|(rules, last)| AgentFrame::AckedRules(rules, last)),
        (uid(), vec(acked, 0..600), any::<bool>())
            .prop_map(|(uid, acked, last)| AgentFrame::Detail(uid, acked, last)),
        (any::<u64>(), vec(refusal, 0..200))
            .prop_map(|(nonce, refused)| AgentFrame::Ack(nonce, refused)),
        vec(state(), 0..60).prop_map(AgentFrame::Report),
        (uid(), vec(source(), 0..600))
            .prop_map(|(uid, sources)| AgentFrame::ContentRequest(uid, sources)),
        Just(AgentFrame::Handover),
        Just(AgentFrame::Keepalive),
        proptest::sample::subsequence(vec!["configmaps", "widgets.example.org", NAMESPACES], 0..=3)
            .prop_map(|resources| {
                let watches = resources.into_iter().zip([0, 403, 500]);
                AgentFrame::LostWatches(
                    watches
                        .map(|(resource, status)| LostWatch {
                            resource: resource.into(),
                            status,
                        })
                        .collect(),
                )
            }),
    ]
}

fn policy() -> impl Strategy<Value = DeletionPolicy> {
    prop_oneof![Just(DeletionPolicy::Delete), Just(DeletionPolicy::Retain)]
}

/// The policies of terms for objects that differ.
fn versioned_terms() -> impl Strategy<Value = Terms> {
    let conflict = vec![
        ConflictPolicy::Fail,
        ConflictPolicy::AdoptIfEqual,
        ConflictPolicy::Overwrite,
    ];
    let drift = vec![DriftPolicy::Correct, DriftPolicy::Report];
    let immutable = vec![ImmutablePolicy::Report, ImmutablePolicy::Recreate];
    let propagation = vec![
        Propagation::Background,
        Propagation::Foreground,
        Propagation::Orphan,
    ];
    let maps = vec![
        FieldMap::BinaryData,
        FieldMap::Data,
        FieldMap::Annotations,
        FieldMap::Labels,
    ];
    let path = (prop::sample::select(maps), "[a-z./~]{1,9}")
        .prop_map(|(map, key)| FieldPath::new(map, key));
    let policies = (
        prop::sample::select(conflict),
        prop::sample::select(drift),
        prop::sample::select(immutable),
        prop::sample::select(propagation),
        vec(path, 0..3),
    );
    let policies = (policies, prop::option::of(1..20u32));
    policies.prop_map(
        |((conflict_policy, drift_policy, immutable_policy, propagation, paths), versions)| Terms {
            conflict_policy,
            propagation,
            versions,
            drift_policy,
            immutable_policy,
            ignore_fields: paths.into_iter().collect(),
            feedback: versions
                .map(|_| FeedbackField {
                    resource: "deployments.apps".into(),
                    name: "ready".into(),
                    path: JsonPath::parse(".status.readyReplicas").unwrap(),
                })
                .into_iter()
                .collect(),
            ..Terms::default()
        },
    )
}

fn terms() -> impl Strategy<Value = Terms> {
    let operators = vec![
        Operator::In,
        Operator::NotIn,
        Operator::Exists,
        Operator::DoesNotExist,
    ];
    let requirement = (name(), prop::sample::select(operators), vec(name(), 0..3)).prop_map(
        |(key, operator, values)| Requirement {
            key,
            operator,
            values,
        },
    );
    let patterns = || vec(name().prop_map(Pattern::new), 0..4);
    let selector = vec(requirement, 0..3).prop_map(|requirements| Selector { requirements });
    let choice = (patterns(), prop::option::of(selector), patterns())
        .prop_map(|(names, selector, exclude)| NamespaceChoice {
            names,
            selector,
            exclude,
        })
        .boxed();
    let grant = (
        patterns(),
        prop::option::of(choice.clone()),
        any::<[bool; 3]>(),
        any::<[Option<u64>; 2]>(),
    )
        .prop_map(
            |(
                names,
                namespaces,
                [overwrite, create_namespaces, adopt],
                [max_copies, max_bytes],
            )| Grant {
                resources: names.iter().map(|name| name.as_str().to_owned()).collect(),
                namespaces,
                overwrite,
                create_namespaces,
                adopt,
                max_copies,
                max_bytes,
            },
        );
    let grants = prop::option::of(prop::collection::vec(grant, 0..3));
    let text = (
        prop::option::of(choice),
        any::<bool>(),
        policy(),
        any::<[bool; 2]>(),
    );
    (rule_name(), any::<i64>(), text, grants, versioned_terms()).prop_map(
        |(
            rule,
            created_at,
            (namespaces, create_namespaces, deletion_policy, [suspend, dry_run]),
            grants,
            keeping,
        )| {
            Terms {
                grants,
                rule,
                created_at,
                namespaces,
                create_namespaces,
                deletion_policy,
                suspend,
                enforcement: if dry_run {
                    Enforcement::DryRun
                } else {
                    Enforcement::Enforce
                },
                ..keeping
            }
        },
    )
}

/// A value for proptest that cannot be printed.
#[derive(Clone)]
struct Unprinted<T>(T);

impl<T> std::fmt::Debug for Unprinted<T> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("(not printed)")
    }
}

fn bare<T>(items: Vec<Unprinted<T>>) -> Vec<T> {
    items.into_iter().map(|item| item.0).collect()
}

fn delta() -> impl Strategy<Value = Unprinted<RuleDelta>> {
    let intent = (
        source(),
        any::<[u8; 16]>(),
        vec(any::<u8>(), 0..600),
        any::<bool>(),
    )
        .prop_map(|(source, r, b, z)| {
            let payload = if z {
                Payload::encode(b)
            } else {
                Payload::from_wire(Encoding::Plain, Bytes::from(b), 7)
            };
            Unprinted(Intent {
                source,
                revision: Revision(r),
                payload,
            })
        });
    let tombstone = (source(), policy()).prop_map(|(source, deletion_policy)| Tombstone {
        source,
        deletion_policy,
    });
    let terms =
        (terms(), any::<[u8; 16]>()).prop_map(|(terms, digest)| (terms, TermsDigest(digest)));
    let items = (vec(intent, 0..4), vec(tombstone, 0..4));
    let permit = || prop::option::of(any::<[u8; 16]>().prop_map(PruneDigest));
    let text = (permit(), any::<Option<bool>>());
    (
        uid(),
        prop::option::of(terms),
        items,
        prop::option::of(policy()),
        any::<bool>(),
        text,
    )
        .prop_map(
            |(uid, terms, (upserts, tombstones), removal, orphaned, (prune, suspend))| {
                Unprinted(RuleDelta {
                    uid,
                    terms,
                    upserts: bare(upserts),
                    tombstones,
                    removal,
                    orphaned,
                    prune,
                    suspend,
                })
            },
        )
}

/// Payloads have no `Debug`, so a comparison answers yes or no only.
fn same_delta(a: &RuleDelta, b: &RuleDelta) -> bool {
    let same_intent = |(a, b): (&Intent, &Intent)| {
        a.source == b.source && a.revision == b.revision && a.payload == b.payload
    };
    a.uid == b.uid
        && a.terms == b.terms
        && a.upserts.len() == b.upserts.len()
        && a.upserts.iter().zip(&b.upserts).all(same_intent)
        && a.tombstones == b.tombstones
        && a.removal == b.removal
        && a.orphaned == b.orphaned
        && a.suspend == b.suspend
        && a.prune == b.prune
}

fn batch(rules: Vec<wire::RuleDelta>) -> (Batch, Vec<Refusal>) {
    let frame = wire::hub_frame::Frame::Batch(wire::Batch { nonce: 1, rules });
    match hub_frame(wire::HubFrame {
        frame: Some(frame),
        ..wire::HubFrame::default()
    })
    .unwrap()
    {
        (HubFrame::Batch(batch), refused) => (batch, refused),
        _ => panic!("not a batch"),
    }
}

fn delta_to_wire(delta: RuleDelta) -> wire::RuleDelta {
    match hub_frame_to_wire(&HubFrame::Batch(Batch {
        nonce: 1,
        rules: vec![delta],
    }))
    .frame
    {
        Some(wire::hub_frame::Frame::Batch(mut batch)) => batch.rules.remove(0),
        _ => panic!("not a batch"),
    }
}

fn example() -> wire::RuleDelta {
    let intent = |name| Intent {
        source: SourceRef::new("configmaps", "a", name),
        revision: Revision([7; 16]),
        payload: Payload::encode(b"{}".to_vec()),
    };
    let terms = Terms {
        rule: RuleName::default(),
        created_at: 0,
        namespaces: None,
        create_namespaces: false,
        conflict_policy: ConflictPolicy::Fail,
        drift_policy: DriftPolicy::Correct,
        deletion_policy: DeletionPolicy::Delete,
        suspend: false,
        ..Terms::default()
    };
    let gone = Tombstone {
        source: SourceRef::new("secrets", "a", "old"),
        deletion_policy: DeletionPolicy::Delete,
    };
    delta_to_wire(RuleDelta {
        terms: Some((terms, TermsDigest([1; 16]))),
        upserts: vec![intent("one"), intent("two")],
        tombstones: vec![gone],
        removal: Some(DeletionPolicy::Retain),
        ..RuleDelta::new("uid".into())
    })
}

#[test]
fn one_unreadable_item_costs_itself_alone() {
    let mut wire = example();
    wire.upserts[0].encoding = 99;
    let (batch, refused) = batch(vec![wire]);
    assert_eq!(batch.rules[0].upserts.len(), 1);
    assert_eq!(refused.len(), 1);
    assert_eq!(refused[0].source, SourceRef::new("configmaps", "a", "one"));
    assert_eq!(
        (refused[0].reason, refused[0].revision),
        (Reason::Unsupported, Revision([7; 16]))
    );
    assert!(refused[0].message.contains("upgrade the agent"));
}

#[test]
fn unreadable_terms_refuse_content_and_keep_removals() {
    let mut wire = example();
    wire.terms.as_mut().unwrap().conflict_policy = 77;
    let (batch, refused) = batch(vec![wire]);
    assert!(batch.rules[0].terms.is_none() && batch.rules[0].upserts.is_empty());
    assert_eq!(
        (batch.rules[0].tombstones.len(), batch.rules[0].removal),
        (1, Some(DeletionPolicy::Retain))
    );
    assert_eq!(refused.len(), 3);
    assert_eq!(refused[0].source, SourceRef::new("", "", ""));
}

#[test]
fn removal_order_without_a_policy_removes_nothing() {
    let mut wire = example();
    wire.tombstones[0].deletion_policy = 0;
    wire.removal.as_mut().unwrap().deletion_policy = 9;
    let (batch, refused) = batch(vec![wire]);
    assert!(batch.rules[0].tombstones.is_empty() && batch.rules[0].removal.is_none());
    assert_eq!(refused.len(), 2);
}

#[test]
fn rule_without_identity_is_refused_and_removes_nothing() {
    let mut wire = example();
    wire.rule_uid.clear();
    let (batch, refused) = batch(vec![wire]);
    assert!(batch.rules[0].terms.is_none() && batch.rules[0].upserts.is_empty());
    assert!(batch.rules[0].tombstones.is_empty() && batch.rules[0].removal.is_none());
    assert_eq!(refused.len(), 3);
}

#[test]
fn sizes_and_names_are_bounded() {
    let mut wire = example();
    wire.upserts[0].size = u32::MAX;
    wire.upserts[1].source.as_mut().unwrap().name = "ä".repeat(300);
    let (batch, refused) = batch(vec![wire]);
    assert!(batch.rules[0].upserts.is_empty());
    assert_eq!(refused[0].reason, Reason::TooLarge);
    assert_eq!(refused[1].source.name.len(), 252);
    let long = Refusal {
        message: format!("\u{1b}[2J{}", "ä".repeat(300)),
        ..refused[0].clone()
    };
    let ack = agent_frame_to_wire(&AgentFrame::Ack(1, vec![long]));
    let (AgentFrame::Ack(_, read), 0) = agent_frame(ack).unwrap() else {
        panic!("not an ack")
    };
    assert!(read[0].message.len() <= MESSAGE_LIMIT && !read[0].message.contains('\u{1b}'));
}

#[test]
fn unknown_frame_error_names_the_side_to_upgrade() {
    // Field 15, empty.
    let unknown_frame = [0x7a, 0];
    let error = agent_frame(wire::AgentFrame::decode(&unknown_frame[..]).unwrap()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the agent sent a frame that this hub does not know: upgrade the hub"
    );
    let error = hub_frame(wire::HubFrame::decode(&unknown_frame[..]).unwrap())
        .err()
        .unwrap();
    assert_eq!(
        error.to_string(),
        "the hub sent a frame that this agent does not know: upgrade the agent"
    );
}

#[test]
fn an_unknown_kind_is_no_error() {
    let mut wire = example();
    wire.upserts[0].source.as_mut().unwrap().resource = "widgets.example.com".into();
    let (batch, refused) = batch(vec![wire]);
    assert!(refused.is_empty());
    assert_eq!(
        &*batch.rules[0].upserts[0].source.resource,
        "widgets.example.com"
    );
}

#[test]
fn the_largest_possible_item_fits_a_frame() {
    let long = || "n".repeat(NAME_LIMIT);
    let source = SourceRef::new(&long(), &long(), &long());
    let failure = Failure {
        reason: Reason::Denied,
        copy: source,
        message: "m".repeat(MESSAGE_LIMIT),
    };
    let change = CopyChange {
        action: CopyAction::Restored,
        origin: ChangeOrigin::Resync,
        copies: u32::MAX,
    };
    let state = RuleState {
        uid: long().into(),
        rule: RuleName {
            kind: "k".repeat(63),
            namespace: long(),
            name: long(),
        },
        intents_digest: SetDigest::default(),
        intents: u32::MAX,
        terms_digest: Some(TermsDigest([1; 16])),
        counts: Counts {
            copies: u32::MAX,
            applied: u32::MAX,
            failed: u32::MAX,
            waiting: u32::MAX,
            removing: 1,
            drifted: u32::MAX,
            to_create: u32::MAX,
            to_update: u32::MAX,
            to_delete: u32::MAX,
            absent: u32::MAX,
            with_health: u32::MAX,
            healthy: u32::MAX,
            unhealthy: u32::MAX,
        },
        feedback: {
            let value = FeedbackValue {
                name: "n".repeat(FEEDBACK_NAME_LIMIT).into(),
                value: "v".repeat(FEEDBACK_VALUE_LIMIT).into(),
            };
            let values = vec![value; FEEDBACK_LIMIT];
            let copy = SourceRef::new("configmaps", "a", "b");
            vec![CopyFeedback { copy, values }; 100]
        },
        failures: vec![failure; FAILURES_LIMIT],
        gone: true,
        last_batch: u64::MAX,
        namespace_prunes: Some(NamespacePrunes {
            copies: u32::MAX,
            digest: PruneDigest([1; 16]),
            namespaces: vec!["n".repeat(NAME_LIMIT); NAMESPACES_LIMIT],
        }),
        waiting: WaitingNamespaces {
            first: vec!["n".repeat(NAME_LIMIT); NAMESPACES_LIMIT],
            count: u32::MAX,
        },
        suspended: true,
        proof: Some(Proof([1; 16])),
        changes: vec![change; CHANGES_LIMIT],
    };
    let frames = split(AgentFrame::AckedRules(vec![state; 9], true));
    assert!(
        frames
            .iter()
            .all(|frame| agent_frame_to_wire(frame).encoded_len() <= AGENT_FRAME_LIMIT)
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn an_agent_frame_reads_back(frame in agent_frames()) {
        let bytes = agent_frame_to_wire(&frame).encode_to_vec();
        let read = agent_frame(wire::AgentFrame::decode(&bytes[..]).unwrap());
        prop_assert_eq!(read, Ok((frame, 0)));
    }

    #[test]
    fn split_frames_are_small_and_equivalent(frame in agent_frames()) {
        let frames = split(frame.clone());
        for frame in &frames {
            prop_assert!(agent_frame_to_wire(frame).encoded_len() <= AGENT_FRAME_LIMIT);
        }
        let lasts: Vec<bool> = frames.iter().filter_map(|frame| match frame {
            AgentFrame::AckedRules(_, last) | AgentFrame::Detail(_, _, last) => Some(*last),
            _ => None,
        }).collect();
        prop_assert!(lasts.iter().rev().skip(1).all(|last| !last));
        let joined = frames.into_iter().reduce(|mut whole, next| {
            match (&mut whole, next) {
                (AgentFrame::AckedRules(all, last), AgentFrame::AckedRules(more, end)) => { all.extend(more); *last = end; }
                (AgentFrame::Detail(_, all, last), AgentFrame::Detail(_, more, end)) => { all.extend(more); *last = end; }
                (AgentFrame::Ack(_, all), AgentFrame::Ack(_, more)) => all.extend(more),
                (AgentFrame::Report(all), AgentFrame::Report(more)) => all.extend(more),
                (AgentFrame::ContentRequest(_, all), AgentFrame::ContentRequest(_, more)) => all.extend(more),
                _ => panic!("frames of two kinds"),
            }
            whole
        });
        let empty = matches!(&frame, AgentFrame::Report(all) if all.is_empty())
            || matches!(&frame, AgentFrame::ContentRequest(_, all) if all.is_empty());
        prop_assert_eq!(joined, if empty { None } else { Some(frame) });
    }

    #[test]
    fn a_batch_reads_back(nonce: u64, rules in vec(delta(), 0..4)) {
        let rules = bare(rules);
        let bytes = hub_frame_to_wire(&HubFrame::Batch(Batch { nonce, rules: rules.clone() })).encode_to_vec();
        let (read, refused) = hub_frame(wire::HubFrame::decode(&bytes[..]).unwrap()).ok().unwrap();
        prop_assert!(refused.is_empty());
        let HubFrame::Batch(read) = read else { panic!("not a batch") };
        prop_assert_eq!(read.nonce, nonce);
        prop_assert_eq!(read.rules.len(), rules.len());
        prop_assert!(read.rules.iter().zip(&rules).all(|(a, b)| same_delta(a, b)));
    }

    #[test]
    fn the_other_frames_of_the_hub_read_back(uids in vec(uid(), 0..9), n: u32, digest: [u8; 16], text in name(), key: Option<[u8; 32]>) {
        let proof_key = key.map(ProofKey::new);
        let digest = SetDigest::from_bytes(&digest).unwrap();
        let begin = SnapshotBegin { protocol: n, hub_id: text.clone(), hub_cluster_uid: text, behind: n % 2 == 1, proof_key };
        let end = SnapshotEnd { intents: n.into(), digest };
        let read = |frame| hub_frame(hub_frame_to_wire(&frame)).ok().unwrap().0;
        prop_assert!(matches!(read(HubFrame::SnapshotBegin(begin.clone())), HubFrame::SnapshotBegin(b) if b == begin));
        prop_assert!(matches!(read(HubFrame::DetailRequest(uids.clone())), HubFrame::DetailRequest(u) if u == uids));
        prop_assert!(matches!(read(HubFrame::SnapshotEnd(end)), HubFrame::SnapshotEnd(e) if e == end));
        prop_assert!(matches!(read(HubFrame::Drain(n)), HubFrame::Drain(m) if m == n));
        prop_assert!(matches!(read(HubFrame::HandedOver), HubFrame::HandedOver));
        prop_assert!(matches!(read(HubFrame::Keepalive), HubFrame::Keepalive));
    }
}

fn inspected() -> impl Strategy<Value = Inspected> {
    let outcome = prop::sample::select(vec![
        CopyOutcome::UnderWay,
        CopyOutcome::Applied,
        CopyOutcome::Failed,
        CopyOutcome::Waiting,
        CopyOutcome::Drifted,
        CopyOutcome::Removing,
        CopyOutcome::PruneRequested,
    ]);
    let namespace = prop::sample::select(vec![
        NamespaceState::Unknown,
        NamespaceState::Ready,
        NamespaceState::Missing,
        NamespaceState::Terminating,
        NamespaceState::Closed,
    ]);
    let copy_error = prop::option::of((reason(), "[ a-zö]{0,300}"));
    let state = (uid(), outcome, copy_error).prop_map(|(rule, outcome, copy_error)| CopyState {
        rule,
        outcome,
        copy_error,
    });
    let sealed = prop::option::of((uid(), source(), any::<[u8; 16]>().prop_map(Revision)));
    let live = (
        any::<[bool; 3]>(),
        sealed,
        any::<i64>(),
        name(),
        observed_health(),
        feedback_values(),
    );
    let live = live.prop_map(
        |([ours, intact, widened], sealed, applied_at, uid, health, feedback)| LiveObject {
            ours,
            intact,
            sealed,
            applied_at,
            uid,
            health,
            feedback,
            widened,
        },
    );
    (
        any::<u64>(),
        namespace,
        vec(state, 0..=STATES_LIMIT),
        prop::option::of(live),
    )
        .prop_map(|(question, namespace, states, live)| Inspected {
            question,
            namespace,
            states,
            live,
        })
}

proptest! {
    #[test]
    fn a_question_about_a_copy_and_its_answer_read_back(question: u64, copy in source(), answer in inspected()) {
        let inspect = Inspect { question, copy: copy.plain() };
        let read = hub_frame(hub_frame_to_wire(&HubFrame::Inspect(inspect.clone()))).ok().unwrap().0;
        prop_assert!(matches!(read, HubFrame::Inspect(read) if read == inspect));
        let frame = AgentFrame::Inspected(Box::new(answer));
        let wire = agent_frame_to_wire(&frame);
        prop_assert!(wire.encoded_len() <= AGENT_FRAME_LIMIT);
        prop_assert_eq!(agent_frame(wire).ok().unwrap(), (frame, 0));
    }
}

fn observed_health() -> impl Strategy<Value = Option<ObservedHealth>> {
    let health = prop::sample::select(CopyHealth::ALL.to_vec());
    prop::option::of((health, "[ a-zö]{0,100}").prop_map(|(health, message)| {
        let message = message.into();
        ObservedHealth { health, message }
    }))
}

fn copy_list() -> impl Strategy<Value = CopyList> {
    let outcome = prop::sample::select(vec![
        CopyOutcome::UnderWay,
        CopyOutcome::Applied,
        CopyOutcome::Failed,
        CopyOutcome::Waiting,
        CopyOutcome::Drifted,
        CopyOutcome::Removing,
        CopyOutcome::PruneRequested,
    ]);
    let copy_error = prop::option::of((reason(), "[ a-zö]{0,300}"));
    let plain = || source().prop_map(|source| source.plain());
    let copy = (
        plain(),
        prop::option::of(plain()),
        outcome,
        copy_error,
        any::<i64>(),
        observed_health(),
        feedback_values(),
    );
    let copy = copy.prop_map(
        |(copy, source, outcome, copy_error, applied_at, health, feedback)| ListedCopy {
            copy,
            source,
            outcome,
            copy_error,
            applied_at,
            health,
            feedback,
        },
    );
    (any::<u64>(), vec(copy, 0..40), any::<[bool; 2]>()).prop_map(
        |(question, copies, [more, last])| CopyList {
            question,
            copies,
            more,
            last,
        },
    )
}

proptest! {
    #[test]
    fn a_question_about_copies_and_its_answer_read_back(
        question: u64, rule in uid(), after in prop::option::of(source()), limit: u32, answer in copy_list(),
    ) {
        let after = after.map(|after| after.plain());
        let asked = ListCopies { question, rule, after: after.clone(), only: after, limit };
        let read = hub_frame(hub_frame_to_wire(&HubFrame::ListCopies(Box::new(asked.clone())))).ok().unwrap().0;
        prop_assert!(matches!(read, HubFrame::ListCopies(read) if *read == asked));
        let frame = AgentFrame::CopyList(answer.clone());
        prop_assert_eq!(agent_frame(agent_frame_to_wire(&frame)).ok().unwrap(), (frame.clone(), 0));
        let mut together = CopyList { question, ..CopyList::default() };
        for part in split(frame) {
            prop_assert!(agent_frame_to_wire(&part).encoded_len() <= AGENT_FRAME_LIMIT);
            let AgentFrame::CopyList(part) = part else { unreachable!("another frame") };
            together.copies.extend(part.copies);
            (together.more, together.last) = (part.more, part.last);
        }
        prop_assert_eq!(together, CopyList { question, ..answer });
    }
}

/// The bytes of a field of protobuf: a key with a small number, and a value of that kind, which may be a message itself.
fn field() -> impl Strategy<Value = Vec<u8>> {
    let key = |kind: u8| (1_u8..16).prop_map(move |number| number << 3 | kind);
    let number = (key(0), prop_oneof![0..20_u64, any::<u64>()]).prop_map(|(key, number)| {
        let mut bytes = vec![key];
        prost::encoding::encode_varint(number, &mut bytes);
        bytes
    });
    let content = prop_oneof![
        "[-a-z0-9./*]{0,20}".prop_map(String::into_bytes),
        vec(any::<u8>(), 0..8),
        vec(any::<u8>(), 16..=32),
    ];
    let text = (key(2), content).prop_map(|(key, content)| delimited(key, &content));
    prop_oneof![number, text].prop_recursive(4, 48, 5, move |inner| {
        (key(2), vec(inner, 0..5)).prop_map(|(key, fields)| delimited(key, &fields.concat()))
    })
}

fn delimited(key: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![key];
    prost::encoding::encode_varint(content.len() as u64, &mut bytes);
    bytes.extend(content);
    bytes
}

fn message() -> impl Strategy<Value = Vec<u8>> {
    vec(field(), 1..5).prop_map(|fields| fields.concat())
}

/// Without that, the property below would prove nothing about converted frames.
#[test]
fn random_messages_often_decode_and_convert() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let [mut decoded, mut converted] = [0; 2];
    for _ in 0..2000 {
        let bytes = message().new_tree(&mut runner).unwrap().current();
        let agent = wire::AgentFrame::decode(&bytes[..]);
        decoded += usize::from(agent.is_ok());
        converted += usize::from(agent.is_ok_and(|wire| agent_frame(wire).is_ok()));
    }
    assert!(
        decoded > 200 && converted > 10,
        "{decoded} of 2000 decode, {converted} convert"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_bytes_give_a_value_or_an_error(bytes in prop_oneof![4 => message(), 1 => vec(any::<u8>(), 0..64)]) {
        if let Ok(wire) = wire::AgentFrame::decode(&bytes[..]) {
            let _ = agent_frame(wire);
        }
        if let Ok(wire) = wire::HubFrame::decode(&bytes[..]) {
            let _ = hub_frame(wire).map(|_| ());
        }
    }

    #[test]
    fn a_damaged_batch_gives_a_value_or_an_error(rules in vec(delta(), 1..3), at: prop::sample::Index, to: u8) {
        let mut bytes = hub_frame_to_wire(&HubFrame::Batch(Batch { nonce: 1, rules: bare(rules) })).encode_to_vec();
        let at = at.index(bytes.len());
        bytes[at] = to;
        if let Ok(wire) = wire::HubFrame::decode(&bytes[..]) {
            let _ = hub_frame(wire).map(|_| ());
        }
    }
}

#[test]
fn lost_watches_are_bounded() {
    let lost = |resource: &str| LostWatch {
        resource: resource.into(),
        status: 404,
    };
    let watches = (0..2 * KINDS_LIMIT).map(|n| lost(&format!("kind{n}.example.org")));
    let frame = AgentFrame::LostWatches(watches.chain([lost("no kind")]).collect());
    let (read, _) = agent_frame(agent_frame_to_wire(&frame)).unwrap();
    let AgentFrame::LostWatches(read) = read else {
        panic!("another frame");
    };
    assert_eq!(read.len(), KINDS_LIMIT + 1);
    let unreadable = AgentFrame::LostWatches(vec![lost("no kind"), lost("")]);
    let (read, _) = agent_frame(agent_frame_to_wire(&unreadable)).unwrap();
    assert_eq!(read, AgentFrame::LostWatches(vec![]));
}

#[test]
fn unreadable_question_is_no_malformed_frame() {
    let question = |namespace: &str| ListCopies {
        question: 1,
        rule: "r".into(),
        after: None,
        only: Some(SourceRef::new("configmaps", namespace, "settings")),
        limit: 1,
    };
    let read = |frame| hub_frame(hub_frame_to_wire(&frame)).err();
    assert_eq!(read(HubFrame::ListCopies(Box::new(question("web")))), None);
    let unreadable = Some(FrameError::Question {
        part: "source.namespace",
    });
    assert_eq!(
        read(HubFrame::ListCopies(Box::new(question("A")))),
        unreadable
    );
    let copy = SourceRef::new("configmaps", "A", "settings");
    assert_eq!(SourceRef::checked("configmaps", "A", "settings"), None);
    assert_eq!(
        read(HubFrame::Inspect(Inspect { question: 1, copy })),
        unreadable
    );
}
