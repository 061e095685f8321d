//! Snapshots of all Events and messages for people, so that each change of wording is visible.
//!
//! `INSTA_UPDATE=always cargo test -p runnel-agent --lib snapshots` rewrites the snapshots; read
//! the diff.
use std::collections::BTreeSet;
use std::sync::Arc;

use kube::api::DynamicObject;
use runnel_proto::model::{Content, Kind, RuleName};
use serde_json::{Value, json};

use super::*;
use runnel_agent_core::classify::{self, CallError};
use runnel_agent_core::contention::{Contentions, LIMIT};
use runnel_agent_core::copy::CopyError;
use runnel_agent_core::decide::{self};
use runnel_agent_core::delete_limit;
use runnel_agent_core::diff::{self, Comparison};
use runnel_agent_core::live::{Live, Ownership};
use runnel_agent_core::policy::{self, Area, Facts, Policy};
use runnel_agent_core::reconciler::CorrectedDrift;

fn copy() -> SourceRef {
    SourceRef::new("configmaps", "team", "settings")
}

/// Returns an Event as `kubectl get events` would show it.
fn reported(notice: Notice) -> String {
    let (copy, event) = event(notice);
    let kind = match event.type_ {
        EventType::Normal => "Normal",
        EventType::Warning => "Warning",
    };
    let at = reference(&KindRegistry::default(), &copy)
        .and_then(|reference| reference.kind)
        .unwrap_or_default();
    format!(
        "{kind} {} ({}) {at}: {}\n",
        event.reason,
        event.action,
        event.note.unwrap_or_default()
    )
}

fn rule() -> RuleName {
    RuleName {
        kind: "DistributionRule".to_owned(),
        namespace: "shop".to_owned(),
        name: "settings".to_owned(),
    }
}

fn failed(copy_errors: impl IntoIterator<Item = CopyError>) -> String {
    copy_errors
        .into_iter()
        .map(|copy_error| reported(Notice::Failed(copy(), rule(), copy_error)))
        .collect()
}

fn live(ownership: Ownership, others: Option<&str>) -> Live {
    Live {
        uid: "u".into(),
        version: "1".into(),
        ownership,
        adopted: false,
        sealed: None,
        unproved: None,
        intact: false,
        facts: Facts::default(),
        others: others.map(Arc::from),
        is_shared: false,
        is_widened: false,
        terminating: None,
        number: 0,
        newest: false,
        names_member: true,
        applied_at: 0,
        health: None,
        finished: false,
        feedback: None,
    }
}

#[test]
fn agent_writes_are_counted() {
    let rule = RuleName {
        kind: "DistributionRule".to_owned(),
        namespace: "team".to_owned(),
        name: "all".to_owned(),
    };
    let all = [
        Notice::DriftCorrected(
            copy(),
            rule.clone(),
            CorrectedDrift {
                others: Some("kubectl-edit".into()),
                deleted: false,
                fields: Some("/data/level is another".to_owned()),
            },
        ),
        Notice::DriftCorrected(
            copy(),
            rule.clone(),
            CorrectedDrift {
                others: None,
                deleted: true,
                fields: None,
            },
        ),
        Notice::Overwritten(copy(), rule.clone(), Some("helm".into())),
        Notice::Overwritten(copy(), rule.clone(), None),
        Notice::Recreated(copy(), rule),
    ];
    insta::assert_snapshot!(all.into_iter().map(reported).collect::<String>());
}

#[test]
fn ownership_of_the_present_object_is_reported() {
    use Ownership::{Clone, Foreign, OtherHub, OtherMember, Retained, Untouchable};
    let all = [
        (Foreign, Some("helm")),
        (Foreign, None),
        (Retained, None),
        (Clone, Some("kubectl-create")),
        (OtherHub, None),
        (OtherMember, None),
        (Untouchable, None),
    ];
    let all = all.map(|(ownership, others)| live(ownership, others));
    let conflicts = all.iter().map(decide::conflict);
    let unequal = [decide::differs(&all[0])];
    insta::assert_snapshot!(failed(conflicts.chain(unequal)));
}

#[test]
fn edits_of_others_are_classified() {
    let object = |kind: &Kind, data: Value| -> DynamicObject {
        let metadata = json!({"name": "x", "namespace": "a", "labels": {"team": "b"}});
        let whole = json!({"apiVersion": &*kind.api_version, "kind": &*kind.kind, "metadata": metadata, "data": data});
        serde_json::from_value(whole).unwrap()
    };
    let content = |data: Value| Content {
        fields: [("data".to_owned(), data)].into(),
        labels: [("team".to_owned(), "a".to_owned())].into(),
        ..Content::default()
    };
    let none = BTreeSet::new();
    let config_maps = Kind::by_resource("configmaps").unwrap();
    let (there, wanted) = (
        object(config_maps, json!({"color": "blue"})),
        content(json!({"color": "red"})),
    );
    let secrets = Kind::by_resource("secrets").unwrap();
    let (hidden, secret) = (
        object(secrets, json!({"pw": "YQ==", "more": "Yg=="})),
        content(json!({"pw": "Yw=="})),
    );
    let comparison = |kind, object, content| Comparison {
        kind,
        object,
        applied: None,
        content,
        ignored: &none,
    };
    let shown = comparison(config_maps, &there, &wanted);
    let hidden = comparison(secrets, &hidden, &secret);
    let mut contentions = Contentions::default();
    let now = std::time::Instant::now();
    for _ in 0..=LIMIT {
        contentions.corrected(&copy(), Some("argocd-controller".into()), None, now);
    }
    let all = [
        shown.changed(Some("kubectl-edit")),
        hidden.changed(None),
        diff::unread(Some("kubectl-edit")),
        diff::deleted(),
        shown.rewritten(),
        hidden.rewritten(),
        diff::dropped(&["/spec/replicas".to_owned()]),
        contentions.copy_error(&copy()).unwrap(),
        delete_limit::waits(1000),
    ];
    insta::assert_snapshot!(failed(all));
}

#[test]
fn api_server_refusals_are_classified() {
    let text = |code: u16, message: &str, causes: Value| {
        let status =
            json!({"code": code, "message": message, "reason": "X", "details": {"causes": causes}});
        classify::copy_error(&CallError::Refused(serde_json::from_value(status).unwrap()))
    };
    let cannot = "User \"system:serviceaccount:runnel-system:runnel-agent\" cannot";
    let area = Area {
        resource: "secrets".into(),
        namespace: None,
    };
    let watch: kube::core::Status =
        serde_json::from_value(json!({"code": 403, "message": "no"})).unwrap();
    let all = [
        text(401, "Unauthorized", json!([])),
        text(
            403,
            "x",
            json!([{"reason": "NamespaceTerminating", "field": "metadata.namespace"}]),
        ),
        text(
            403,
            "exceeded quota: q, requested: count/secrets=1",
            json!([]),
        ),
        text(
            403,
            &format!(
                "secrets \"x\" is forbidden: {cannot} patch resource \"secrets\" in API group \"\" in the namespace \"team\""
            ),
            json!([]),
        ),
        text(403, &format!("{cannot} do that"), json!([])),
        text(403, "no", json!([])),
        text(
            400,
            "admission webhook \"guard.example.com\" denied the request: its words stay out",
            json!([]),
        ),
        text(
            422,
            "ValidatingAdmissionPolicy 'small' with binding 'b' denied request: its words stay out",
            json!([]),
        ),
        text(
            422,
            "x",
            json!([{"reason": "FieldValueForbidden", "field": "data", "message": "field is immutable when"}]),
        ),
        text(
            422,
            "x",
            json!([{"reason": "FieldValueTooLong", "field": "data", "message": "Too long: may not be more"}]),
        ),
        text(
            422,
            "x",
            json!([{"reason": "FieldValueInvalid", "field": "data[c4n4ry]", "message": "c4n4ry"}]),
        ),
        text(413, "x", json!([])),
        text(500, "x", json!([])),
        classify::copy_error(&CallError::Unanswered),
        classify::refused_watch(&watch, &area),
    ];
    let all = failed(all);
    assert!(
        !all.contains("c4n4ry") && !all.contains("stay out"),
        "the server's own words got through: {all}"
    );
    insta::assert_snapshot!(all);
}

#[test]
fn member_policy_denials_are_classified() {
    let text = "{namespaces: {allowed: [team, 'app-*', '*-x'], denied: [app-secret]}, kinds: [secrets], \
                secretTypes: {allowed: ['kubernetes.io/*', Opaque], denied: [kubernetes.io/tls]}, maxObjectBytes: 10}";
    let policy = Policy::parse(text).unwrap();
    let facts = |bytes, object_type: &str| Facts {
        bytes,
        object_type: Some(object_type.into()),
        ..Facts::default()
    };
    let all = [
        policy.denies_namespace("app-secret", "runnel-system"),
        policy.denies_namespace("other", "runnel-system"),
        policy.denies_namespace("kube-x", "runnel-system"),
        policy.denies_namespace("No Namespace", "runnel-system"),
        policy.denies_kind(&copy()),
        policy.denies_content(&facts(1, "kubernetes.io/tls")),
        policy.denies_content(&facts(1, "example.com/a")),
        policy.denies_content(&facts(11, "Opaque")),
        policy.denies_overwriting(),
        policy.denies_creation("app-new"),
        Some(policy::refused_by_namespace("team")),
    ];
    insta::assert_snapshot!(failed(all.map(Option::unwrap)));
}
