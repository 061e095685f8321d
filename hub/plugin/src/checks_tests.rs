//! Snapshots of the output of `kubectl runnel doctor`.
//!
//! `INSTA_UPDATE=always cargo test -p kubectl-runnel --lib snapshots` rewrites them; read the diff.
use super::*;
use crate::rights as needed;
use runnel_api::{MemberRecordSpec, PendingRemoval};

fn now() -> Timestamp {
    "2026-01-01T01:00:00Z".parse().unwrap()
}

fn at(time: &str) -> Timestamp {
    time.parse().unwrap()
}

fn text(kind: &str, reason: &str, message: &str) -> Value {
    json!({"type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": "2026-01-01T00:00:00Z"})
}

fn typed<T: serde::de::DeserializeOwned>(object: Value) -> T {
    serde_json::from_value(object).unwrap()
}

fn member(name: &str, connected: Value, ends: &str, more: Value) -> MemberCluster {
    let mut conditions = vec![connected];
    conditions.extend(more.as_array().cloned().unwrap_or_default());
    let certificate = (!ends.is_empty()).then(|| json!({"expiresAt": ends}));
    typed(
        json!({"metadata": {"name": name, "uid": format!("uid-of-{name}")}, "spec": {"accepted": true}, "status": {
            "certificate": certificate, "conditions": conditions,
        }}),
    )
}

fn connected(status: &str, reason: &str) -> Value {
    json!({"type": "Connected", "status": status, "reason": reason, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"})
}

fn rule(name: &str, status: &str, reason: &str, message: &str) -> Value {
    let ready = json!({"type": "Ready", "status": status, "reason": reason, "message": message, "lastTransitionTime": "2026-01-01T00:00:00Z"});
    json!({"kind": "DistributionRule", "metadata": {"name": name, "namespace": "team"}, "spec": {"sources": [], "clusters": {}}, "status": {"conditions": [ready]}})
}

#[test]
fn healthy_hub_passes_all_checks() {
    let deployment = typed(
        json!({"spec": {"replicas": 2, "template": {"spec": {"containers": [{"image": "runnel-hub:0.1.0"}]}}}, "status": {"readyReplicas": 2}}),
    );
    let lease_of: Lease = typed(
        json!({"spec": {"holderIdentity": "runnel-hub-1 x", "leaseDurationSeconds": 15, "renewTime": "2026-01-01T00:59:58.000000Z"}}),
    );
    let well = member(
        "eu-1",
        connected("True", "SessionOpen"),
        "2026-01-02T00:00:00Z",
        json!([]),
    );
    let mut all = vec![clocks(Some(now()), now()), rights(&[], 16)];
    let own: CustomResourceDefinition = typed(
        json!({"metadata": {"name": "distributionrules.runnel.dev"}, "spec": {}, "status": {"conditions": [{"type": "Established", "status": "True"}]}}),
    );
    all.extend(crds(std::slice::from_ref(&own), std::slice::from_ref(&own)));
    all.extend(hub(
        &Workload {
            deployment: Some(deployment),
            ..Workload::default()
        },
        "runnel-system",
    ));
    all.extend([
        lease(Some(&lease_of), now()),
        ca(at("2030-01-01T00:00:00Z"), now()),
    ]);
    all.extend(addresses(&[(
        "hub.example.com:8443".to_owned(),
        Reachability::Hub,
    )]));
    all.extend(members(&[well], now()));
    let report = Report {
        installation: all,
        rules: rules(&[typed(rule("all", "True", "AllApplied", ""))]),
    };
    insta::assert_snapshot!(report.text(false));
}

#[test]
fn broken_hub_fails_every_check() {
    let stolen = text("PossibleKeyTheft", "TwoHolders", "two agents use its key");
    let orphaned = text(
        "OrphanedCopies",
        "RuleUnknown",
        "12 copies of rules that the hub does not know",
    );
    let mut shut_out = member("eu-1", connected("True", "SessionOpen"), "", json!([]));
    shut_out.spec.accepted = false;
    let waited_for = member(
        "eu-2",
        connected("Unknown", "SessionLost"),
        "",
        json!([orphaned, stolen]),
    );
    let record = |name: &str, uid: &str| {
        let spec = MemberRecordSpec {
            member_uid: uid.to_owned(),
            pending_removals: vec![PendingRemoval::default(); 2],
            ..MemberRecordSpec::default()
        };
        MemberRecord::new(name, spec)
    };
    // The second one is of a MemberCluster that was deleted and created again.
    let records = [record("eu-2", "uid-of-eu-2"), record("eu-3", "former")];
    let all_members = [
        shut_out,
        waited_for,
        member("eu-3", connected("False", "NeverConnected"), "", json!([])),
        member(
            "eu-4",
            connected("True", "SessionOpen"),
            "2026-01-01T01:30:00Z",
            json!([]),
        ),
        member(
            "eu-5",
            connected("True", "SessionOpen"),
            "2026-01-01T00:30:00Z",
            json!([]),
        ),
    ];
    let mut going = rule("going", "True", "AllApplied", "");
    going["status"]["conditions"][0]["status"] = json!("False");
    going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let mut lease_of = rule(
        "held",
        "False",
        "RemovalLimit",
        "24 copies would be removed",
    );
    let why = "24 copies in 2 clusters would be removed: the rule is deleted";
    lease_of["status"]["conditions"] = json!([
        lease_of["status"]["conditions"][0],
        text("ApprovalRequired", "RemovalLimit", why)
    ]);
    lease_of["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let all_rules = [
        lease_of,
        rule("fails", "False", "Conflict", "1 copy failed in eu-1"),
        rule(
            "away",
            "Unknown",
            "ClustersUnreachable",
            "1 cluster is silent",
        ),
        rule(
            "waits",
            "False",
            "CopiesWaiting",
            "2 copies waiting in 1 cluster",
        ),
        json!({"kind": "DistributionRule", "metadata": {"name": "unseen", "namespace": "team"}, "spec": {"sources": [], "clusters": {}}}),
        going,
    ]
    .map(typed);
    let own = typed(json!({"metadata": {"name": "distributionrules.runnel.dev"}, "spec": {}}));
    let lacks = needed::uninstall("runnel-system");
    let mut all = vec![
        clocks(Some(at("2026-01-01T01:02:00Z")), now()),
        rights(&lacks[..2], lacks.len()),
    ];
    all.extend(crds(&[], &[own]));
    all.extend(hub(&Workload::default(), "runnel-system"));
    all.extend([lease(None, now()), ca(at("2026-01-03T01:00:00Z"), now())]);
    let reached = [
        ("hub:1", Reachability::Refused),
        ("hub:2", Reachability::Unknown),
        ("hub:3", Reachability::Timeout),
    ];
    all.extend(addresses(&[]));
    all.extend(addresses(
        &reached.map(|(at, reach)| (at.to_owned(), reach)),
    ));
    all.extend(members(&all_members, now()));
    all.extend(pending_removals(&all_members, &records));
    all.extend(members(&[], now()));
    let report = Report {
        installation: all,
        rules: rules(&all_rules),
    };
    insta::assert_snapshot!(report.text(false));
}
