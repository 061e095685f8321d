//! The order in which an agent removes the copies of a rule: by kind, as the audit log of the member shows it.

use anyhow::{Result, ensure};
use runnel_tests::audit::Write;
use runnel_tests::fleet::{Fleet, FleetOptions};
use runnel_tests::scene::{Id, RuleDraft, Scene};
use serde_json::{Value, json};

const HOME: &str = "ordered";
const RBAC: &str = "rbac.authorization.k8s.io/v1";
/// The kinds in the order in which they are written. The removal is in reverse, which is no alphabetical order either.
const ORDER: [(&str, &str, &str); 6] = [
    ("rbac.authorization.k8s.io", "roles", RBAC),
    ("", "configmaps", "v1"),
    ("rbac.authorization.k8s.io", "rolebindings", RBAC),
    ("", "services", "v1"),
    ("apps", "deployments", "apps/v1"),
    ("autoscaling", "horizontalpodautoscalers", "autoscaling/v2"),
];

fn kinds() -> Vec<String> {
    let name = |(group, plural, _): &(&str, &str, &str)| match *group {
        "" => (*plural).to_owned(),
        group => format!("{plural}.{group}"),
    };
    ORDER.iter().map(name).collect()
}

fn objects() -> [Value; 6] {
    let of = |kind: &str, at: usize, field: &str, value: Value| {
        json!({
            "apiVersion": ORDER[at].2, "kind": kind,
            "metadata": {"namespace": HOME, "name": "web", "labels": {"rev": "1"}}, field: value,
        })
    };
    let labels = json!({"app": "web"});
    let pod = json!({
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "web", "image": "example.org/web:1"}]},
    });
    let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"});
    let mut binding = of(
        "RoleBinding",
        2,
        "roleRef",
        json!({"apiGroup": ORDER[0].0, "kind": "Role", "name": "web"}),
    );
    binding["subjects"] = json!([{"kind": "ServiceAccount", "name": "default", "namespace": HOME}]);
    [
        of(
            "Role",
            0,
            "rules",
            json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]),
        ),
        of("ConfigMap", 1, "data", json!({"k": "1"})),
        binding,
        of(
            "Service",
            3,
            "spec",
            json!({"selector": labels, "ports": [{"port": 80}]}),
        ),
        of(
            "Deployment",
            4,
            "spec",
            json!({"replicas": 0, "selector": {"matchLabels": labels}, "template": pod}),
        ),
        of(
            "HorizontalPodAutoscaler",
            5,
            "spec",
            json!({"maxReplicas": 2, "scaleTargetRef": target}),
        ),
    ]
}

/// The places of the agent's successful writes in [`ORDER`], with this verb.
fn places(writes: &[Write], verb: &str) -> Vec<usize> {
    let by_agent = |write: &&Write| {
        write.user.ends_with(":runnel-agent")
            && write.namespace == HOME
            && write.verb == verb
            && write.code < 300
    };
    let place = |write: &Write| {
        let is = |(group, plural, _): &(&str, &str, &str)| {
            *group == write.group && *plural == write.resource
        };
        ORDER.iter().position(is)
    };
    writes.iter().filter(by_agent).filter_map(place).collect()
}

#[tokio::test]
async fn copies_are_removed_in_reverse_order_of_kinds() -> Result<()> {
    let kinds = kinds();
    let privileged: Vec<_> = kinds
        .iter()
        .filter(|kind| runnel_proto::model::is_privileged(kind))
        .collect();
    let fleet = Fleet::start(FleetOptions {
        hub_values: json!({"sources": {"kinds": kinds}}),
        agent_values: json!({"policy": {"kinds": kinds, "allowPrivileged": privileged}}),
        ..FleetOptions::default()
    })
    .await?;
    let scene = Scene::of(&fleet).await?;
    scene.hub_namespaces(&[HOME]).await?;
    scene.member_namespaces(&[HOME]).await?;
    let (hub, member) = (&scene.hub, fleet.member(1));
    for object in objects().iter().rev() {
        hub.make(object).await?;
    }
    let entry = json!({"resources": kinds, "names": ["web"], "namespaces": [HOME]});
    let id = Id::cluster_rule("ordered");
    let rule = RuleDraft::cluster_scoped("ordered")
        .source(entry)
        .everywhere();
    hub.make(&rule.json()).await?;
    hub.all_written(&id, ORDER.len()).await?;

    let mark = member.mark();
    hub.delete(&id).await?;
    hub.lacks(&id).await?;
    let removed = places(&member.writes_since(mark)?, "delete");
    let reversed: Vec<_> = (0..ORDER.len()).rev().collect();
    ensure!(removed == reversed, "removed as {removed:?}");
    Ok(())
}
