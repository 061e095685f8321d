//! Values of Secrets that go into copies of other Secrets.
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use runnel_proto::model::{ClusterName, Content, Payload, Revision, RuleUid, SourceRef};
use serde_json::{Value, json};

use super::{Cluster, Directive, Index, ScopeState};
use crate::plan::{
    RenderErrorKind, Rule, SourceContent, SourceState, UnsupportedSource, WatchScope,
};

const GRACE: Duration = Duration::from_secs(5);
/// Values as encoded in Secrets.
const EU: &str = "ZXU=";
const NEW: &str = "bmV3";

fn rule() -> Rule {
    let object: runnel_api::ClusterDistributionRule = serde_json::from_value(json!({
        "apiVersion": "runnel.dev/v1alpha1", "kind": "ClusterDistributionRule",
        "metadata": {"name": "r", "uid": "r", "generation": 1},
        "spec": {
            "sources": [{"resources": ["secrets"], "namespaces": ["team", "other"], "names": ["login"]}],
            "clusters": {"all": true},
            "overrides": [{
                "clusters": {"names": ["eu-1"]},
                "secretData": [{"key": "password", "valueFrom": {"secretKeyRef": {"name": "eu", "key": "pw"}}}],
            }],
        },
    }))
    .unwrap();
    Rule::cluster_scoped(&object, "runnel-system").unwrap()
}

fn secret(namespace: &str, name: &str) -> SourceRef {
    SourceRef::new("secrets", namespace, name)
}

fn body(data: Value) -> SourceState {
    let fields = [
        ("data".to_owned(), data.clone()),
        ("type".to_owned(), json!("Opaque")),
    ];
    let canonical = Content {
        fields: fields.into(),
        ..Content::default()
    }
    .to_bytes();
    let mut revision = [0; 16];
    let text = data.to_string();
    text.bytes().enumerate().for_each(|(at, byte)| {
        revision[at % 16] ^= byte.rotate_left(u32::try_from(at / 16).unwrap())
    });
    SourceState::Read(Arc::new(SourceContent::new(
        Revision(revision),
        Payload::encode(canonical),
    )))
}

fn index() -> Index {
    let mut index = Index::default();
    index.set_scope(WatchScope::everywhere("secrets"), ScopeState::Known);
    for name in ["eu-1", "us-1"] {
        let cluster = Cluster {
            uid: name.to_owned(),
            accepted: true,
            ..Cluster::default()
        };
        index.set_cluster(name.into(), cluster);
    }
    index
}

/// The data of the copies of `login` in a cluster, or why there are none; `None` while that is being read.
fn sent(index: &Index, namespace: &str, cluster: &str) -> Option<Result<Value, String>> {
    let directive = index.directive(&RuleUid::from("r"), &ClusterName::from(cluster));
    let Directive::Assigned(assignment) = directive else {
        panic!("it is not wanted")
    };
    let login = secret(namespace, "login");
    if let Some(render_errors) = assignment.plan().render_errors.get(&login) {
        assert!(
            render_errors.why == RenderErrorKind::Value && assignment.is_unknown(&login),
            "what stands of it stays"
        );
        return Some(Err(render_errors.message.to_string()));
    }
    let Some(content) = assignment.content(&login) else {
        assert!(
            assignment.is_unknown(&login) && assignment.is_growing(),
            "it is neither sent nor awaited"
        );
        return None;
    };
    assert!(
        assignment
            .intents()
            .all(|(source, _)| *source.name == *"login"),
        "what is lent is not sent"
    );
    Some(Ok(content.payload.decode().unwrap().fields["data"].clone()))
}

fn set(index: &mut Index, source: &SourceRef, body: Option<SourceState>) -> bool {
    index
        .set_source(source.clone(), BTreeMap::new(), body)
        .clusters
        .contains(&ClusterName::from("eu-1"))
}

#[test]
fn secret_value_beside_the_source_is_inserted_and_follows() {
    let mut index = index();
    let (login, eu) = (secret("team", "login"), secret("team", "eu"));
    set(
        &mut index,
        &login,
        Some(body(json!({"user": "dQ==", "password": "eA=="}))),
    );
    index.set_rule(rule());
    let plain = json!({"user": "dQ==", "password": "eA=="});
    assert_eq!(
        sent(&index, "team", "us-1"),
        None,
        "its content was not kept before a rule wanted it"
    );
    set(&mut index, &login, Some(body(plain.clone())));
    // It is missing for the rules that select it, and for no others.
    assert_eq!(sent(&index, "team", "us-1"), Some(Ok(plain.clone())));
    let message = sent(&index, "team", "eu-1").unwrap().unwrap_err();
    for reason in [
        "spec.overrides[0].secretData[password]",
        "secrets/team/login",
        "there is no secrets/team/eu",
    ] {
        assert!(message.contains(reason), "{reason} is not in {message}");
    }
    // The Secret exists, but is not read: the hub reads it, and sends nothing meanwhile.
    assert!(
        index.planner().needs(&eu, &BTreeMap::new()),
        "it is not read"
    );
    let effect = index.set_source(eu.clone(), BTreeMap::new(), None);
    assert!(effect.read.contains(&eu));
    assert_eq!(sent(&index, "team", "eu-1"), None);
    assert!(set(
        &mut index,
        &eu,
        Some(body(json!({"pw": EU, "else": "eA=="})))
    ));
    assert_eq!(
        sent(&index, "team", "eu-1"),
        Some(Ok(json!({"user": "dQ==", "password": EU})))
    );
    // An edit of it is an edit of the copies; its own labels have no effect, and neither has a
    // Secret of another name.
    assert!(set(
        &mut index,
        &eu,
        Some(body(json!({"pw": NEW, "else": "eA=="})))
    ));
    assert_eq!(
        sent(&index, "team", "eu-1"),
        Some(Ok(json!({"user": "dQ==", "password": NEW})))
    );
    assert!(!set(
        &mut index,
        &secret("team", "us"),
        Some(body(json!({"pw": EU})))
    ));
    // Content that could not be read again stays.
    set(&mut index, &eu, Some(SourceState::Unreadable));
    assert_eq!(
        sent(&index, "team", "eu-1"),
        Some(Ok(json!({"user": "dQ==", "password": NEW})))
    );
    // A new plan gives the same.
    index.set_rule(rule());
    assert_eq!(
        sent(&index, "team", "eu-1"),
        Some(Ok(json!({"user": "dQ==", "password": NEW})))
    );
    assert_eq!(sent(&index, "team", "us-1"), Some(Ok(plain)));
}

#[test]
fn missing_secret_reference_is_reported_without_its_value() {
    let mut index = index();
    index.set_rule(rule());
    let (login, eu) = (secret("team", "login"), secret("team", "eu"));
    set(&mut index, &login, Some(body(json!({"password": "eA=="}))));
    let assert_message = |index: &Index, words: &[&str]| {
        let message = sent(index, "team", "eu-1").unwrap().unwrap_err();
        assert!(
            words.iter().all(|reason| message.contains(reason)),
            "{words:?}: {message}"
        );
        assert!(
            ![EU, NEW, "eA=="]
                .iter()
                .any(|value| message.contains(value)),
            "{message}"
        );
    };
    set(&mut index, &eu, Some(body(json!({"other": EU}))));
    assert_message(&index, &["secrets/team/eu has no key pw"]);
    // Its owner forbids the distribution, or it is a credential of this cluster.
    for refused in [UnsupportedSource::Annotation, UnsupportedSource::Type] {
        set(&mut index, &eu, Some(SourceState::Refused(refused)));
        assert_message(&index, &["secrets/team/eu is never distributed"]);
    }
    set(&mut index, &eu, Some(body(json!({"pw": EU}))));
    assert!(sent(&index, "team", "eu-1").unwrap().is_ok());
    // It is deleted: nothing changes within the grace period, and then the sent copies stay.
    let now = Instant::now();
    index.sources_mut().mark_deleted(&eu, now);
    assert!(sent(&index, "team", "eu-1").unwrap().is_ok());
    index.expire_deleted(now + GRACE, GRACE);
    assert_message(&index, &["there is no secrets/team/eu"]);
    // A Secret of that name in another namespace does not count: each source uses its own
    // namespace.
    set(
        &mut index,
        &secret("other", "eu"),
        Some(body(json!({"pw": NEW}))),
    );
    assert_message(&index, &["there is no secrets/team/eu"]);
    set(
        &mut index,
        &secret("other", "login"),
        Some(body(json!({"password": "eA=="}))),
    );
    assert_eq!(
        sent(&index, "other", "eu-1"),
        Some(Ok(json!({"password": NEW})))
    );
    // While the hub cannot list the scope, it does not treat the Secret as missing.
    index.set_scope(
        WatchScope::everywhere("secrets"),
        ScopeState::Unreadable("no right".to_owned()),
    );
    let Directive::Assigned(assignment) =
        index.directive(&RuleUid::from("r"), &ClusterName::from("eu-1"))
    else {
        panic!("wanted")
    };
    assert!(assignment.is_unknown(&login) && assignment.plan().render_errors.is_empty());
}
