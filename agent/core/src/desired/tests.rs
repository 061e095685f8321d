//! Tests of the cost of an event, and of the independence of namespaces and sources.
//! [`crate::reconciler`] has tests of whole histories.
use std::collections::{BTreeMap, BTreeSet};

use runnel_proto::model::*;

use super::*;
use crate::records::Records;

const MANY: usize = 100;

fn home() -> AgentLocation {
    AgentLocation {
        namespace: "runnel-system".into(),
        cluster_uid: "member".into(),
    }
}

fn source(n: usize) -> SourceRef {
    SourceRef::new("configmaps", "team", &format!("s{n:03}"))
}

fn intent(n: usize, revision: u8) -> Intent {
    let payload = Payload::encode(Content::default().to_bytes());
    Intent {
        source: source(n),
        revision: Revision([revision; 16]),
        payload,
    }
}

fn terms(namespaces: NamespaceChoice) -> (Terms, TermsDigest) {
    let terms = Terms {
        rule: RuleName {
            kind: "DistributionRule".into(),
            namespace: "team".into(),
            name: "r".into(),
        },
        created_at: 1,
        namespaces: Some(namespaces),
        create_namespaces: false,
        conflict_policy: ConflictPolicy::Fail,
        drift_policy: DriftPolicy::Correct,
        deletion_policy: DeletionPolicy::Delete,
        suspend: false,
        ..Terms::default()
    };
    (terms, TermsDigest([1; 16]))
}

fn labeled(value: &str) -> Namespace {
    Namespace {
        labels: BTreeMap::from([("env".to_owned(), value.to_owned())]),
        terminating: false,
        refuses: false,
    }
}

fn prod() -> NamespaceChoice {
    let requirement = Requirement {
        key: "env".into(),
        operator: Operator::In,
        values: vec!["prod".into()],
    };
    let selector = Some(Selector {
        requirements: vec![requirement],
    });
    NamespaceChoice {
        selector,
        ..NamespaceChoice::default()
    }
}

fn take(desired: &mut Desired, delta: RuleDelta) -> BatchResult {
    desired.take(
        Batch {
            nonce: 1,
            rules: vec![delta],
        },
        vec![],
        &Records::default(),
    )
}

/// 100 sources in 100 namespaces by label, and a rule beside them.
fn ten_thousand() -> Desired {
    let (mut desired, records) = (
        Desired::new(home(), Arc::new(Policy::open())),
        Records::default(),
    );
    for n in 0..MANY {
        desired.set_namespace(&format!("n{n:03}"), Some(labeled("prod")), &records);
    }
    let upserts = (0..MANY).map(|n| intent(n, 1)).collect();
    take(
        &mut desired,
        RuleDelta {
            terms: Some(terms(prod())),
            upserts,
            ..RuleDelta::new("r".into())
        },
    );
    let other = NamespaceChoice {
        names: vec![Pattern::new("elsewhere")],
        ..NamespaceChoice::default()
    };
    take(
        &mut desired,
        RuleDelta {
            terms: Some(terms(other)),
            upserts: vec![intent(0, 1)],
            ..RuleDelta::new("q".into())
        },
    );
    desired
}

#[test]
fn an_event_costs_its_own_copies_and_no_more() {
    let (mut desired, records) = (ten_thousand(), Records::default());
    assert_eq!(
        desired.copies().all().collect::<BTreeSet<_>>().len(),
        MANY * MANY + 1
    );
    let result = take(
        &mut desired,
        RuleDelta {
            upserts: vec![intent(7, 2)],
            ..RuleDelta::new("r".into())
        },
    );
    assert_eq!(result.changed_copies.len(), MANY);
    assert!(
        result
            .changed_copies
            .iter()
            .all(|copy| *copy.name == *source(7).name)
    );

    let to_reconcile = desired.set_namespace("n042", Some(labeled("test")), &records);
    assert_eq!(to_reconcile.len(), MANY);
    assert!(to_reconcile.iter().all(|copy| &*copy.namespace == "n042"));
    assert!(
        desired
            .set_namespace("n042", Some(labeled("test")), &records)
            .is_empty()
    );
    assert!(
        desired
            .set_namespace("unrelated", Some(labeled("test")), &records)
            .is_empty()
    );
    assert_eq!(
        desired
            .set_namespace("elsewhere", Some(labeled("test")), &records)
            .len(),
        1
    );
}

#[test]
fn the_digest_follows_every_change() {
    let mut desired = ten_thousand();
    let check = |desired: &Desired| {
        let pairs = desired.rules().pairs(&"r".into());
        let whole: SetDigest = pairs
            .iter()
            .map(|intent_state| (&intent_state.source, &intent_state.revision))
            .collect();
        let intent_state = desired.rules().acked(&"r".into()).unwrap();
        assert_eq!(
            (intent_state.digest, intent_state.intents as usize),
            (whole, pairs.len())
        );
    };
    check(&desired);
    take(
        &mut desired,
        RuleDelta {
            upserts: vec![intent(7, 2), intent(200, 1)],
            ..RuleDelta::new("r".into())
        },
    );
    check(&desired);
    let tombstones = vec![Tombstone {
        source: source(3),
        deletion_policy: DeletionPolicy::Delete,
    }];
    take(
        &mut desired,
        RuleDelta {
            tombstones,
            ..RuleDelta::new("r".into())
        },
    );
    check(&desired);
    let mut broken = intent(5, 9);
    broken.payload = Payload::from_wire(Encoding::Plain, "{".into(), 1);
    let result = take(
        &mut desired,
        RuleDelta {
            upserts: vec![broken],
            ..RuleDelta::new("r".into())
        },
    );
    assert_eq!(result.refused.len(), 1);
    check(&desired);
}

#[test]
fn stored_state_restores() {
    let mut desired = ten_thousand();
    let mut restored = Desired::new(home(), Arc::new(Policy::open()));
    restored.restore_terms(desired.stored(&BTreeSet::new()));
    assert_eq!(
        restored.stored(&BTreeSet::new()),
        desired.stored(&BTreeSet::new())
    );
    assert_eq!(
        restored.rules().acked(&"r".into()).unwrap().terms,
        desired.rules().acked(&"r".into()).unwrap().terms
    );
}

#[test]
fn a_name_that_is_none_is_refused() {
    let mut desired = ten_thousand();
    let mut odd = intent(1, 1);
    odd.source = SourceRef::new("configmaps", "team", "a/../../b");
    let result = take(
        &mut desired,
        RuleDelta {
            upserts: vec![odd],
            ..RuleDelta::new("r".into())
        },
    );
    assert_eq!(result.refused[0].reason, Reason::Invalid);
}

/// A step of a history of grants: a namespace is created, relabeled or deleted, or the terms
/// change.
#[derive(Clone, Debug)]
enum Step {
    Namespace(u8, Option<bool>),
    Terms {
        wants: u8,
        grants: Option<Vec<(bool, u8)>>,
    },
}

fn step() -> impl proptest::strategy::Strategy<Value = Step> {
    use proptest::prelude::*;
    let grant = (any::<bool>(), 0..4u8);
    prop_oneof![
        (0..3u8, any::<Option<bool>>()).prop_map(|(name, now)| Step::Namespace(name, now)),
        (0..4u8, prop::option::of(prop::collection::vec(grant, 0..3)))
            .prop_map(|(wants, grants)| Step::Terms { wants, grants }),
    ]
}

/// By an exact name, by a glob, by a label, or all (of a choice: the source's own namespace).
fn choice(kind: u8) -> Option<NamespaceChoice> {
    match kind {
        0 => Some(NamespaceChoice {
            names: vec![Pattern::new("n0")],
            ..NamespaceChoice::default()
        }),
        1 => Some(NamespaceChoice {
            names: vec![Pattern::new("n*")],
            ..NamespaceChoice::default()
        }),
        2 => Some(prod()),
        _ => None,
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(2000))]

    #[test]
    fn copy_is_claimed_where_requested_and_granted(steps in proptest::collection::vec(step(), 1..14)) {
        let records = Records::default();
        let mut desired = Desired::new(home(), Arc::new(Policy::open()));
        let sources = [SourceRef::new("configmaps", "n1", "s"), SourceRef::new("secrets", "n2", "s")];
        let upserts = sources.iter().map(|source| Intent { source: source.clone(), ..intent(0, 1) }).collect();
        let mut now = terms(prod()).0;
        let mut labels: BTreeMap<String, bool> = BTreeMap::new();
        take(&mut desired, RuleDelta { terms: Some(terms(prod())), upserts, ..RuleDelta::new("r".into()) });
        for step in steps {
            match step {
                Step::Namespace(name, prod) => {
                    let name = format!("n{name}");
                    let namespace = prod.map(|prod| labeled(if prod { "prod" } else { "test" }));
                    desired.set_namespace(&name, namespace, &records);
                    match prod {
                        Some(prod) => drop(labels.insert(name, prod)),
                        None => drop(labels.remove(&name)),
                    }
                }
                Step::Terms { wants, grants } => {
                    now.namespaces = choice(wants);
                    now.grants = grants.map(|grants| grants.into_iter().map(|(secrets, kind)| Grant {
                        resources: vec![if secrets { "secrets" } else { "configmaps" }.to_owned()],
                        namespaces: choice(kind),
                        ..Grant::default()
                    }).collect());
                    let terms = Some((now.clone(), TermsDigest([2; 16])));
                    take(&mut desired, RuleDelta { terms, ..RuleDelta::new("r".into()) });
                }
            }
            // The naive model: each source in each possible namespace, by the rules of the design.
            let fits = |choice: &NamespaceChoice, name: &str, by_name: bool| {
                let prod = labels.get(name).copied();
                choice.names.iter().any(|pattern| pattern.matches(name) && (pattern.is_literal() || by_name || prod.is_some()))
                    || choice.selector.is_some() && prod == Some(true)
            };
            let mut expected = BTreeSet::new();
            for source in &sources {
                for name in ["n0", "n1", "n2"] {
                    let wanted = now.namespaces.as_ref().map_or(&*source.namespace == name, |choice| fits(choice, name, false));
                    let granted = now.grants.as_ref().is_none_or(|grants| grants.iter().any(|grant| {
                        grant.is_of_kind(&source.resource) && grant.namespaces.as_ref().is_none_or(|choice| fits(choice, name, true))
                    }));
                    if wanted && granted {
                        expected.insert(SourceRef::new(&source.resource, name, &source.name));
                    }
                }
            }
            let claimed: BTreeSet<_> = desired.copies.all_claims().map(|(_, copy)| copy).collect();
            proptest::prop_assert_eq!(claimed, expected);
        }
    }
}
