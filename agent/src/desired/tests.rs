//! What an event costs, and what one namespace or source has to do with another. Whole histories are played in
//! [`crate::core`].
use std::collections::{BTreeMap, BTreeSet};

use runnel_proto::model::*;

use super::*;
use crate::records::Records;

const MANY: usize = 100;

fn home() -> Home {
    Home { namespace: "runnel-system".into(), cluster_uid: "member".into() }
}

fn source(n: usize) -> SourceRef {
    SourceRef::new("configmaps", "team", &format!("s{n:03}"))
}

fn intent(n: usize, revision: u8) -> Intent {
    let payload = Payload::encode(Content::default().to_bytes());
    Intent { source: source(n), revision: Revision([revision; 16]), payload }
}

fn terms(namespaces: NamespaceChoice) -> (Terms, TermsDigest) {
    let terms = Terms {
        rule: RuleName { kind: "DistributionRule".into(), namespace: "team".into(), name: "r".into() },
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

fn labelled(value: &str) -> Namespace {
    Namespace { labels: BTreeMap::from([("env".to_owned(), value.to_owned())]), terminating: false, refuses: false }
}

fn prod() -> NamespaceChoice {
    let requirement = Requirement { key: "env".into(), operator: Operator::In, values: vec!["prod".into()] };
    let selector = Some(Selector { requirements: vec![requirement] });
    NamespaceChoice { selector, ..NamespaceChoice::default() }
}

fn take(desired: &mut Desired, delta: RuleDelta) -> Taken {
    desired.take(Batch { nonce: 1, rules: vec![delta] }, vec![], &Records::default())
}

/// 100 sources in 100 namespaces by label, and a rule beside them.
fn ten_thousand() -> Desired {
    let (mut desired, records) = (Desired::new(home(), Arc::new(Policy::open())), Records::default());
    for n in 0..MANY {
        desired.set_namespace(&format!("n{n:03}"), Some(labelled("prod")), &records);
    }
    let upserts = (0..MANY).map(|n| intent(n, 1)).collect();
    take(&mut desired, RuleDelta { terms: Some(terms(prod())), upserts, ..RuleDelta::new("r".into()) });
    let other = NamespaceChoice { names: vec![Pattern::new("elsewhere")], ..NamespaceChoice::default() };
    take(
        &mut desired,
        RuleDelta { terms: Some(terms(other)), upserts: vec![intent(0, 1)], ..RuleDelta::new("q".into()) },
    );
    desired
}

#[test]
fn an_event_costs_its_own_copies_and_no_more() {
    let (mut desired, records) = (ten_thousand(), Records::default());
    assert_eq!(desired.all_copies().collect::<BTreeSet<_>>().len(), MANY * MANY + 1);
    let taken = take(&mut desired, RuleDelta { upserts: vec![intent(7, 2)], ..RuleDelta::new("r".into()) });
    assert_eq!(taken.looks.len(), MANY);
    assert!(taken.looks.iter().all(|copy| *copy.name == *source(7).name));

    let looks = desired.set_namespace("n042", Some(labelled("test")), &records);
    assert_eq!(looks.len(), MANY);
    assert!(looks.iter().all(|copy| &*copy.namespace == "n042"));
    assert!(desired.set_namespace("n042", Some(labelled("test")), &records).is_empty());
    assert!(desired.set_namespace("unrelated", Some(labelled("test")), &records).is_empty());
    assert_eq!(desired.set_namespace("elsewhere", Some(labelled("test")), &records).len(), 1);
}

#[test]
fn the_digest_follows_every_change() {
    let mut desired = ten_thousand();
    let check = |desired: &Desired| {
        let pairs = desired.pairs(&"r".into());
        let whole: SetDigest = pairs.iter().map(|held| (&held.source, &held.revision)).collect();
        let held = desired.held(&"r".into()).unwrap();
        assert_eq!((held.digest, held.intents as usize), (whole, pairs.len()));
    };
    check(&desired);
    take(&mut desired, RuleDelta { upserts: vec![intent(7, 2), intent(200, 1)], ..RuleDelta::new("r".into()) });
    check(&desired);
    let tombstones = vec![Tombstone { source: source(3), deletion_policy: DeletionPolicy::Delete }];
    take(&mut desired, RuleDelta { tombstones, ..RuleDelta::new("r".into()) });
    check(&desired);
    let mut broken = intent(5, 9);
    broken.payload = Payload::from_wire(Encoding::Plain, "{".into(), 1);
    let taken = take(&mut desired, RuleDelta { upserts: vec![broken], ..RuleDelta::new("r".into()) });
    assert_eq!(taken.refused.len(), 1);
    check(&desired);
}

#[test]
fn what_is_stored_restores() {
    let desired = ten_thousand();
    let mut restored = Desired::new(home(), Arc::new(Policy::open()));
    restored.restore_terms(desired.stored());
    assert_eq!(restored.stored(), desired.stored());
    assert_eq!(restored.held(&"r".into()).unwrap().terms, desired.held(&"r".into()).unwrap().terms);
}

#[test]
fn a_name_that_is_none_is_refused() {
    let mut desired = ten_thousand();
    let mut odd = intent(1, 1);
    odd.source = SourceRef::new("configmaps", "team", "a/../../b");
    let taken = take(&mut desired, RuleDelta { upserts: vec![odd], ..RuleDelta::new("r".into()) });
    assert_eq!(taken.refused[0].reason, Reason::Invalid);
}
