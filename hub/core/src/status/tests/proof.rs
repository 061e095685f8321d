//! Tests of proofs: a correct digest counts as applied once the agent proves it.
use runnel_proto::model::{Proof, ProofKey};

use super::*;
use crate::plan::{GrantedTerms, NamedTerms, proof_on};
use crate::status::{ProofState, SentRule, detail};

fn key() -> ProofKey {
    ProofKey::new([1; 32])
}

fn unrestricted(rule: &Rule) -> GrantedTerms {
    GrantedTerms::unrestricted(rule.terms.clone())
}

impl World {
    /// Returns the proof of an agent that has applied everything.
    fn right(&self) -> Option<Proof> {
        proof_on(&self.plan, &unrestricted(&self.rule), &key())
    }

    fn set_proof(&mut self, cluster: &str, proof: Option<Proof>) {
        self.proof = proof;
        self.applied(cluster);
    }

    /// Returns the number of clusters with a proof that differs from their report.
    fn differing(&self) -> usize {
        SentRule::of(&self.view(&self.status)).differing(&self.report_store)
    }

    fn detail(&self, cluster: &str) -> (bool, ProofState) {
        let view = self.view(&self.status);
        let cluster = ClusterName::from(cluster);
        let one = detail(&view, &self.report_store, &cluster, self.now().instant);
        let one = one.unwrap();
        (one.newest, one.proved)
    }
}

#[test]
fn cluster_with_a_wrong_digest_has_failed_until_it_matches() {
    let mut world = World::new(&["one", "two"]);
    let right = world.right();
    assert!(right.is_some());
    world.set_proof("one", right);
    world.set_proof("two", Some(Proof([3; 16])));
    world.fold();
    assert_eq!(world.ready(), pair("False", "DigestMismatch"));
    assert_eq!(
        (world.detail("one"), world.detail("two")),
        ((true, ProofState::Yes), (true, ProofState::No))
    );
    let entry = &world.status.clusters[0];
    assert_eq!(
        (entry.name.as_str(), entry.reason.as_str(), entry.failed),
        ("two", "DigestMismatch", 0)
    );
    insta::assert_snapshot!(
        condition(&world.status.conditions, ConditionType::Ready)
            .unwrap()
            .message
    );
    world.set_proof("two", right);
    world.fold();
    assert_eq!(world.ready(), pair("True", "AllApplied"));
}

#[test]
fn mismatches_are_counted_by_the_newest_session() {
    let mut world = World::new(&["one", "two"]);
    let right = world.right();
    world.set_proof("one", right);
    world.set_proof("two", Some(Proof([3; 16])));
    assert_eq!(world.differing(), 1);
    // It reconnects, and reports and shows the same as before.
    let text = world.state(
        "two",
        Counts {
            copies: 2,
            applied: 2,
            ..Counts::default()
        },
    );
    world
        .report_store
        .connected(&"two".into(), 2, facts(), vec![text]);
    assert_eq!(world.differing(), 1);
    // The former session can no longer change anything.
    world.set_proof("two", right);
    assert_eq!(world.differing(), 1);
    let text = world.state(
        "two",
        Counts {
            copies: 2,
            applied: 2,
            ..Counts::default()
        },
    );
    world.report_store.report(&"two".into(), 2, text);
    assert_eq!(world.differing(), 0);
    world.set_proof("two", Some(Proof([3; 16])));
    assert_eq!(world.differing(), 0);
    // A report about another plan is not compared.
    world.set_proof("one", Some(Proof([3; 16])));
    assert_eq!(world.differing(), 1);
    world
        .plan
        .set(&SourceRef::new("configmaps", "a", "s"), None);
    assert_eq!(world.differing(), 0);
}

#[test]
fn cluster_without_proof_counts_as_unproved() {
    let mut world = World::new(&["one"]);
    world.set_proof("one", None);
    world.fold();
    assert_eq!(world.ready(), pair("True", "AllApplied"));
    assert_eq!(world.detail("one"), (true, ProofState::NotCompared));
}

#[test]
fn copies_under_way_are_not_compared() {
    let mut world = World::new(&["one"]);
    let right = world.right();
    world.set_proof("one", right);
    world.proof = Some(Proof([3; 16]));
    world.report(
        "one",
        Counts {
            copies: 2,
            applied: 1,
            ..Counts::default()
        },
        vec![],
    );
    assert_eq!(world.detail("one"), (false, ProofState::NotCompared));
    // The agent has not got the edit.
    world.set_proof("one", right);
    let content = SourceContent::new(
        Revision([2; 16]),
        Payload::encode(br#"{"fields":{"data":{"k":"v"}}}"#.to_vec()),
    );
    let source = SourceRef::new("configmaps", "a", "s");
    let before = world.plan.intents.get(&source).cloned().unwrap();
    world
        .plan
        .set(&source, Some(&SourceState::Read(content.into())));
    assert_eq!(world.detail("one"), (false, ProofState::NotCompared));
    assert_ne!(world.right(), right, "another content, another proof");
    // It was undone before the agent received it.
    world.plan.set(&source, Some(&SourceState::Read(before)));
    assert_eq!(
        (world.right(), world.detail("one")),
        (right, (true, ProofState::Yes))
    );
}

#[test]
fn fields_that_are_left_alone_do_not_count() {
    let plan = |ignored: serde_json::Value, text: &str| {
        let rule = rule(json!({"ignoreFields": ignored}));
        let mut plan = RulePlan::empty(&rule);
        let content = json!({"fields": {"data": {"k": text, "own": "x"}}}).to_string();
        let content = SourceContent::new(Revision([1; 16]), Payload::encode(content.into_bytes()));
        plan.set(
            &SourceRef::new("configmaps", "a", "s"),
            Some(&SourceState::Read(content.into())),
        );
        proof_on(&plan, &unrestricted(&rule), &key()).unwrap()
    };
    assert_ne!(plan(json!([]), "one"), plan(json!([]), "two"));
    assert_eq!(
        plan(json!(["/data/k"]), "one"),
        plan(json!(["/data/k"]), "two")
    );
}

#[test]
fn ungranted_copy_is_not_expected() {
    let mut world = World::new(&["one"]);
    let before = world.right();
    let content = SourceContent::new(Revision([5; 16]), Payload::encode(b"{}".to_vec()));
    world.plan.set(
        &SourceRef::new("secrets", "a", "t"),
        Some(&SourceState::Read(content.into())),
    );
    let grant = runnel_proto::model::Grant {
        resources: vec!["configmaps".into()],
        ..Default::default()
    };
    let narrow = runnel_proto::model::Terms {
        grants: Some(vec![grant]),
        ..(*world.rule.terms.to_shared()).clone()
    };
    assert_ne!(world.right(), before);
    let narrow = GrantedTerms::unrestricted(NamedTerms::new(narrow));
    assert_eq!(proof_on(&world.plan, &narrow, &key()), before);
}
