//! Objects of several kinds on their way from the hub to two members: delivered, edited, corrected and removed.
use std::time::Duration;

use anyhow::{Result, ensure};
use runnel_tests::fleet::{Fleet, FleetOptions};
use runnel_tests::scene::{Id, Scene, entry_of};
use runnel_tests::wait::steadily;
use serde_json::{Value, json};

use super::{definition, object, rule};

const HOME: &str = "delivered";
const KINDS: [&str; 4] = [
    "networkpolicies.networking.k8s.io",
    "roles.rbac.authorization.k8s.io",
    "services",
    "widgets.example.org",
];
const ROLES: &str = "roles.rbac.authorization.k8s.io";
/// How long nothing may be written.
const QUIET: Duration = Duration::from_secs(10);

async fn start() -> Result<Fleet> {
    let policy = json!({"kinds": KINDS, "allowPrivileged": [ROLES]});
    Fleet::start(FleetOptions {
        members: 2,
        hub_values: json!({"sources": {"kinds": KINDS}}),
        agent_values: json!({"policy": policy}),
        ..FleetOptions::default()
    })
    .await
}

fn sources() -> [Value; 4] {
    let metadata = json!({"namespace": HOME, "name": "web", "labels": {"app": "web"}});
    [
        json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata,
            "spec": {"podSelector": {"matchLabels": {"app": "web"}}, "ingress": [{"ports": [{"port": 80}]}]},
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": metadata,
            "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}],
        }),
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": metadata,
            "spec": {"selector": {"app": "web"}, "ports": [{"name": "http", "port": 80}]},
        }),
        object("Widget", HOME, "web"),
    ]
}

#[tokio::test]
async fn objects_of_several_kinds_are_kept_equal() -> Result<()> {
    let fleet = start().await?;
    let scene = Scene::of(&fleet).await?;
    scene.hub_namespaces(&[HOME]).await?;
    scene.member_namespaces(&[HOME]).await?;
    for cluster in [&scene.hub, scene.member(1)] {
        cluster.make(&definition("Widget")).await?;
    }
    let all = sources();
    for source in &all {
        scene.hub.make_soon(source).await?;
    }
    let [policy, role, service, widget] = [&all[0], &all[1], &all[2], &all[3]].map(Id::of);
    let (policy, role, service, widget) = (policy?, role?, service?, widget?);
    let (id, draft) = rule("delivered", HOME, &KINDS);
    scene.hub.make(&draft).await?;

    // One member does not serve one of the kinds yet.
    scene
        .hub
        .sees("missing a kind in a member", &id, |object| {
            let status = &object["status"];
            ensure!(entry_of(object, "member-2")?["reason"] == "KindNotServed");
            ensure!(
                entry_of(object, "member-1")?["state"] == "Ready",
                "{status}"
            );
            ensure!(status["summary"]["copiesApplied"] == 7, "{status}");
            Ok(())
        })
        .await?;
    scene.member(2).make(&definition("Widget")).await?;
    scene.hub.all_applied(&id, 8).await?;
    scene
        .has_everywhere(&service, "/spec/ports/0/port", &json!(80))
        .await?;
    scene
        .has_everywhere(&role, "/rules/0/verbs", &json!(["get", "list"]))
        .await?;
    scene
        .has_everywhere(&widget, "/spec/size", &json!(3))
        .await?;
    // What each API server completes is no drift, and nothing is written.
    let ids = [&policy, &role, &service, &widget];
    let mut before = Vec::new();
    for member in &scene.members {
        for id in ids {
            before.push((member, member.get(id).await?));
        }
    }
    steadily("copies to be left alone", QUIET, async || {
        for (member, copy) in &before {
            member.is_untouched(copy).await?;
        }
        Ok(())
    })
    .await?;

    // Edits are followed.
    scene
        .hub
        .change(&widget, json!({"spec": {"size": 4}}))
        .await?;
    let ports = json!([{"name": "http", "port": 8080}]);
    scene
        .hub
        .change(&service, json!({"spec": {"ports": ports}}))
        .await?;
    scene
        .has_everywhere(&widget, "/spec/size", &json!(4))
        .await?;
    scene
        .has_everywhere(&service, "/spec/ports/0/port", &json!(8080))
        .await?;

    // Drift is corrected, and a field of another manager stays.
    let member = scene.member(1);
    member
        .change(&widget, json!({"spec": {"size": 5, "color": "red"}}))
        .await?;
    member
        .change(
            &policy,
            json!({"spec": {"podSelector": {"matchLabels": {"app": "other"}}}}),
        )
        .await?;
    member.change(&role, json!({"rules": []})).await?;
    scene
        .has_everywhere(&widget, "/spec/size", &json!(4))
        .await?;
    let selector = "/spec/podSelector/matchLabels/app";
    scene
        .has_everywhere(&policy, selector, &json!("web"))
        .await?;
    scene
        .has_everywhere(&role, "/rules/0/verbs", &json!(["get", "list"]))
        .await?;
    ensure!(member.get(&widget).await?["spec"]["color"] == "red");
    scene.hub.all_applied(&id, 8).await?;

    // Deleted sources take their copies, and a deleted kind does not.
    for source in [&policy, &role, &service] {
        scene.hub.delete(source).await?;
    }
    for source in &all[..3] {
        scene.vanishes(source, &[HOME]).await?;
    }
    let crd = Id::of(&definition("Widget"))?;
    scene.hub.delete(&crd).await?;
    scene.hub.wait_ready(&id, "False", "KindNotServed").await?;
    steadily("the copies of a deleted kind to stay", QUIET, async || {
        for member in &scene.members {
            member.get(&widget).await?;
        }
        Ok(())
    })
    .await?;
    scene.hub.make(&definition("Widget")).await?;
    scene.hub.make_soon(&object("Widget", HOME, "web")).await?;
    scene.hub.all_applied(&id, 2).await?;
    scene
        .has_everywhere(&widget, "/spec/size", &json!(3))
        .await?;
    scene.hub.delete(&id).await?;
    scene.hub.lacks(&id).await?;
    scene.vanishes(&all[3], &[HOME]).await
}
