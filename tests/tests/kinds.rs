//! Rules for any kind of object on the hub: kinds that the API server serves, that come later and that go, as an
//! administrator adds them to the charts.

#[path = "kinds/cluster_scoped.rs"]
mod cluster_scoped;
#[path = "kinds/delivered.rs"]
mod delivered;
#[path = "kinds/shaped.rs"]
mod shaped;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use runnel_tests::fleet::{Fleet, FleetOptions};
use runnel_tests::scene::{Draft, Id, RuleDraft, Scene, condition};
use runnel_tests::wait::steadily;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

static FLEET: OnceCell<Fleet> = OnceCell::const_new();

const GROUP: &str = "example.org";
const KINDS: [&str; 7] = [
    "configmaps",
    "secrets",
    "networkpolicies.networking.k8s.io",
    "widgets.example.org",
    "gadgets.example.org",
    "gizmos.example.org",
    "sprockets.example.org",
];

async fn fleet() -> Result<&'static Fleet> {
    FLEET
        .get_or_try_init(|| {
            Fleet::start(FleetOptions {
                hub_values: json!({"sources": {"kinds": KINDS}}),
                ..FleetOptions::default()
            })
        })
        .await
}

/// A kind of namespaced objects with any fields in `spec`.
fn definition(kind: &str) -> Value {
    let any = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let resource = format!("{}s.{GROUP}", kind.to_lowercase());
    Draft::definition(&resource, kind, &[("v1", &any)]).json()
}

fn object(kind: &str, namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": kind,
        "metadata": {"namespace": namespace, "name": name}, "spec": {"size": 3},
    })
}

/// A rule of the whole cluster for these kinds of one namespace.
fn rule(name: &str, namespace: &str, kinds: &[&str]) -> (Id, Value) {
    let entry = json!({"resources": kinds, "names": ["*"], "namespaces": [namespace]});
    let draft = RuleDraft::cluster_scoped(name).source(entry).everywhere();
    (Id::cluster_rule(name), draft.json())
}

/// Waits until a rule selects so many sources.
async fn selects(scene: &Scene, rule: &Id, sources: u64) -> Result<Value> {
    scene
        .hub
        .sees(&format!("with {sources} sources"), rule, |object| {
            let status = &object["status"];
            ensure!(
                status["observedGeneration"] == object["metadata"]["generation"],
                "{status}"
            );
            ensure!(status["summary"]["sources"] == sources, "{status}");
            Ok(())
        })
        .await
}

#[tokio::test]
async fn kinds_that_a_rule_names_are_selected() -> Result<()> {
    let scene = Scene::of(fleet().await?).await?;
    let namespace = "selected";
    scene.hub_namespaces(&[namespace]).await?;
    scene.hub.make(&definition("Widget")).await?;
    scene
        .hub
        .make_soon(&object("Widget", namespace, "one"))
        .await?;
    let policy = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"namespace": namespace, "name": "closed"}, "spec": {"podSelector": {}},
    });
    scene.hub.make(&policy).await?;
    let kinds = ["networkpolicies.networking.k8s.io", "widgets.example.org"];
    let (id, draft) = rule("selected", namespace, &kinds);
    scene.hub.make(&draft).await?;
    selects(&scene, &id, 2).await?;
    // Another object is followed, and a controlled one is refused by default.
    scene.hub.make(&object("Widget", namespace, "two")).await?;
    selects(&scene, &id, 3).await?;
    let owner = json!([{
        "apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": "00000000-0000-0000-0000-000000000000",
        "controller": true,
    }]);
    let two = Id::of(&object("Widget", namespace, "two"))?;
    scene
        .hub
        .change(&two, json!({"metadata": {"ownerReferences": owner}}))
        .await?;
    selects(&scene, &id, 2).await?;
    let sources = json!([{"resources": kinds, "names": ["*"], "namespaces": [namespace], "includeControlled": true}]);
    scene
        .hub
        .change(&id, json!({"spec": {"sources": sources}}))
        .await?;
    selects(&scene, &id, 3).await?;
    Ok(())
}

#[tokio::test]
async fn kind_that_is_installed_later_is_noticed() -> Result<()> {
    let scene = Scene::of(fleet().await?).await?;
    let namespace = "later";
    scene.hub_namespaces(&[namespace]).await?;
    let config = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": namespace, "name": "settings"},
        "data": {"a": "b"},
    });
    let config = scene.hub.make(&config).await?;
    let (id, draft) = rule("later", namespace, &["configmaps", "gadgets.example.org"]);
    scene
        .member(1)
        .make(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}))
        .await?;
    scene.hub.make(&draft).await?;
    let waiting = scene.hub.wait_ready(&id, "False", "KindNotServed").await?;
    let message = condition(&waiting, "Ready")?["message"].clone();
    let message = message.as_str().context("no message")?;
    ensure!(
        message.contains("gadgets.example.org") && message.contains("CustomResourceDefinition"),
        "{message}"
    );
    // The other sources of the rule are not affected.
    scene.member(1).has_copy(&config, namespace, &id).await?;
    scene.hub.make(&definition("Gadget")).await?;
    scene
        .hub
        .make_soon(&object("Gadget", namespace, "one"))
        .await?;
    selects(&scene, &id, 2).await?;
    Ok(())
}

#[tokio::test]
async fn deleted_kind_removes_no_copy() -> Result<()> {
    let scene = Scene::of(fleet().await?).await?;
    let namespace = "deleted";
    scene.hub_namespaces(&[namespace]).await?;
    let crd = scene.hub.make(&definition("Gizmo")).await?;
    scene
        .hub
        .make_soon(&object("Gizmo", namespace, "one"))
        .await?;
    let (id, draft) = rule("deleted", namespace, &["gizmos.example.org"]);
    scene.hub.make(&draft).await?;
    selects(&scene, &id, 1).await?;
    let crd = Id::of(&crd)?;
    scene.hub.delete(&crd).await?;
    scene.hub.lacks(&crd).await?;
    scene.hub.wait_ready(&id, "False", "KindNotServed").await?;
    selects(&scene, &id, 1).await?;
    // Neither does the kind without its objects.
    scene.hub.make(&definition("Gizmo")).await?;
    scene
        .hub
        .make_soon(&object("Gizmo", "default", "other"))
        .await?;
    scene
        .hub
        .wait_ready(&id, "False", "SourceUnreadable")
        .await?;
    selects(&scene, &id, 1).await?;
    scene.hub.make(&object("Gizmo", namespace, "one")).await?;
    scene
        .hub
        .sees("read again", &id, |object| {
            ensure!(condition(object, "Ready")?["reason"] != "SourceUnreadable");
            Ok(())
        })
        .await?;
    // A single object that is deleted goes.
    let one = Id::of(&object("Gizmo", namespace, "one"))?;
    scene.hub.delete(&one).await?;
    selects(&scene, &id, 0).await?;
    Ok(())
}

#[tokio::test]
async fn deleted_kind_with_finalizers_removes_no_copy() -> Result<()> {
    let scene = Scene::of(fleet().await?).await?;
    let (hub, namespace) = (&scene.hub, "finalized");
    scene.hub_namespaces(&[namespace]).await?;
    let crd = Id::of(&hub.make(&definition("Sprocket")).await?)?;
    let mut guarded = object("Sprocket", namespace, "guarded");
    guarded["metadata"]["finalizers"] = json!(["example.org/guard"]);
    let guarded = Id::of(&hub.make_soon(&guarded).await?)?;
    let plain = object("Sprocket", namespace, "plain");
    hub.make(&plain).await?;
    let (id, draft) = rule("finalized", namespace, &["sprockets.example.org"]);
    hub.make(&draft).await?;
    selects(&scene, &id, 2).await?;
    let stays = async |why: &str| {
        steadily(why, Duration::from_secs(8), async || {
            let status = &hub.get(&id).await?["status"];
            ensure!(status["summary"]["sources"] == 2, "{status}");
            Ok(())
        })
        .await
    };

    // The objects of a terminating CRD are terminating before they are deleted.
    hub.delete(&crd).await?;
    hub.sees("terminating", &guarded, |object| {
        ensure!(object["metadata"]["deletionTimestamp"].is_string());
        Ok(())
    })
    .await?;
    stays("the sources to stay while the CRD is terminating").await?;
    hub.change(&guarded, json!({"metadata": {"finalizers": null}}))
        .await?;
    hub.lacks(&crd).await?;
    hub.wait_ready(&id, "False", "KindNotServed").await?;

    // One of them is back. Nothing is known of the other.
    hub.make(&definition("Sprocket")).await?;
    hub.make_soon(&plain).await?;
    hub.wait_ready(&id, "False", "SourceUnreadable").await?;
    stays("the sources to stay when the CRD is back").await
}

#[tokio::test]
async fn kind_without_right_is_reported_with_a_hint() -> Result<()> {
    let scene = Scene::of(fleet().await?).await?;
    let namespace = "forbidden";
    scene.hub_namespaces(&[namespace]).await?;
    let (id, draft) = rule("forbidden", namespace, &["serviceaccounts"]);
    scene.hub.make(&draft).await?;
    let hint = "add serviceaccounts to `sources.kinds` of the hub's chart";
    scene
        .hub
        .wait_refused(&id, "SourceUnreadable", &[hint])
        .await
        .map(drop)
}
