//! Which clusters an edit is followed to.
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;
use runnel_proto::model::{ClusterName, Counts, Payload, Revision, RuleState, RuleUid, SourceRef};
use serde_json::{Value, json};

use super::{HubState, LiveSession, Settings};
use runnel_hub_core::index::{Cluster, ScopeState};
use runnel_hub_core::plan::{Rule, SourceContent, SourceState, WatchScope};
use runnel_hub_core::status::{SessionFacts, Unconfirmed};

fn uid() -> RuleUid {
    "r".into()
}

/// A hub with one rule for all clusters and everything in the namespace `a`.
fn hub(spec: Value) -> Arc<HubState> {
    let hub_state = HubState::new(Settings::for_tests());
    let mut spec = spec;
    spec["sources"] = json!([{"resources": ["configmaps"], "names": ["*"]}]);
    spec["clusters"] = json!({"all": true});
    let object = json!({
        "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionRule",
        "metadata": {"name": "r", "namespace": "a", "uid": uid().as_str(), "generation": 1}, "spec": spec,
    });
    let rule = Rule::namespaced(&serde_json::from_value(object).unwrap(), "runnel-system").unwrap();
    hub_state
        .change(|index| index.set_scope(WatchScope::everywhere("configmaps"), ScopeState::Known));
    hub_state.change(|index| index.set_rule(rule));
    hub_state
}

/// A cluster connects and holds nothing.
fn connects(hub_state: &HubState, name: &str) {
    let cluster = ClusterName::from(name);
    let known = Cluster {
        uid: name.to_owned(),
        accepted: true,
        ..Cluster::default()
    };
    hub_state.change(|index| index.set_cluster(cluster.clone(), known));
    let facts = SessionFacts {
        agent_version: String::new(),
        kubernetes_version: String::new(),
        cluster_uid: name.to_owned(),
        key: String::new(),
        boot_id: String::new(),
        certificate_expires: Timestamp::MAX,
    };
    hub_state
        .report_store
        .lock()
        .connected(&cluster, 1, facts, vec![]);
    hub_state
        .sessions
        .insert(cluster, Arc::new(LiveSession::new(1)));
}

/// The source is edited.
fn edit(hub_state: &HubState, revision: u8) {
    let source = SourceRef::new("configmaps", "a", "s");
    hub_state
        .edits
        .lock()
        .insert(source.clone(), Instant::now());
    let content = SourceContent::new(Revision([revision; 16]), Payload::encode(b"{}".to_vec()));
    hub_state.change(|index| {
        let effect = index.set_source(
            source.clone(),
            BTreeMap::new(),
            Some(SourceState::Read(Arc::new(content))),
        );
        hub_state.follow_edit(index, &source, &effect);
        effect
    });
}

/// The cluster reports everything as applied. Returns whether it was the last one.
fn applies(hub_state: &HubState, cluster: &str) -> bool {
    let (index, cluster) = (hub_state.index.read(), ClusterName::from(cluster));
    let assignment = index
        .rules()
        .get(&uid())
        .and_then(|entry| entry.assignment(&cluster))
        .unwrap();
    let state = RuleState {
        rule: assignment.terms().rule.clone(),
        intents_digest: assignment.digest(),
        intents: 1,
        terms_digest: Some(assignment.terms().digest),
        counts: Counts {
            copies: 1,
            applied: 1,
            ..Counts::default()
        },
        ..RuleState::new(uid())
    };
    let took =
        hub_state
            .deliveries
            .lock()
            .reported(&cluster, &state, || Some(assignment), Instant::now());
    took.is_some_and(|took| took.rule.is_some())
}

#[test]
fn cluster_without_the_rule_is_not_waited_for() {
    let hub_state = hub(json!({"conflictPolicy": "Overwrite"}));
    connects(&hub_state, "new");
    connects(&hub_state, "doubted");
    hub_state
        .report_store
        .lock()
        .waits_for_confirmation(&"doubted".into(), Some(Unconfirmed::Everything));
    edit(&hub_state, 1);
    assert!(applies(&hub_state, "new"), "the others never say anything");
    hub_state
        .report_store
        .lock()
        .waits_for_confirmation(&"doubted".into(), None);
    edit(&hub_state, 2);
    assert!(!applies(&hub_state, "new"));
    assert!(applies(&hub_state, "doubted"));
}

#[test]
fn cluster_without_the_rule_is_not_awaited() {
    let hub_state = hub(json!({}));
    connects(&hub_state, "one");
    connects(&hub_state, "two");
    edit(&hub_state, 1);
    assert!(!applies(&hub_state, "one"));
    assert!(hub_state.drop_unsent(&hub_state.index.read()).is_empty());
    hub_state
        .report_store
        .lock()
        .waits_for_confirmation(&"two".into(), Some(Unconfirmed::Everything));
    let over = hub_state.drop_unsent(&hub_state.index.read());
    assert_eq!(
        over.iter()
            .map(|(rule, _)| rule.clone())
            .collect::<Vec<_>>(),
        [uid()]
    );
}
