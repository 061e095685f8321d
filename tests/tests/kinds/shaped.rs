//! Copies of any kind that differ by cluster, and what members add to theirs.
use anyhow::{Result, ensure};
use runnel_tests::fleet::{Fleet, FleetOptions};
use runnel_tests::scene::{Id, RuleDraft, Scene};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use super::{definition, object};

static FLEET: OnceCell<Fleet> = OnceCell::const_new();

const KINDS: [&str; 4] = [
    "configmaps",
    "deployments.apps",
    "serviceaccounts",
    "widgets.example.org",
];
const PRIVILEGED: [&str; 2] = ["deployments.apps", "serviceaccounts"];

async fn scene(namespace: &str) -> Result<Scene> {
    let fleet = FLEET.get_or_try_init(|| {
        Fleet::start(FleetOptions {
            members: 2,
            hub_values: json!({"sources": {"kinds": KINDS}}),
            agent_values: json!({"policy": {
                "kinds": KINDS, "allowPrivileged": PRIVILEGED, "adopt": "Equal",
            }}),
            ..FleetOptions::default()
        })
    });
    let scene = Scene::of(fleet.await?).await?;
    scene.hub_namespaces(&[namespace]).await?;
    scene.member_namespaces(&[namespace]).await?;
    Ok(scene)
}

fn deployment(namespace: &str) -> Value {
    let container = json!({
        "name": "app", "image": "registry.example.com/app:1",
        "env": [{"name": "CLUSTER", "value": "${cluster.name}"}],
    });
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"namespace": namespace, "name": "web"},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [container]},
            },
        },
    })
}

fn rule(namespace: &str, kind: &str) -> RuleDraft {
    RuleDraft::cluster_scoped(namespace)
        .source(json!({"namespaces": [namespace], "resources": [kind], "names": ["*"]}))
        .everywhere()
}

const IMAGE: &str = "/spec/template/spec/containers/0/image";
const CLUSTER: &str = "/spec/template/spec/containers/0/env/0/value";

#[tokio::test]
async fn deployment_is_shaped_for_each_cluster() -> Result<()> {
    let namespace = "shaped";
    let scene = scene(namespace).await?;
    let source = scene.hub.make(&deployment(namespace)).await?;
    let id = Id::of(&source)?;
    let image = |path: &str| {
        json!([
            {"clusters": {"names": ["member-1"]}, "mergePatch": {"spec": {"replicas": 5}}},
            {"clusters": {"names": ["member-2"]}, "resources": ["deployments.apps"], "jsonPatch": [
                {"op": "test", "path": "/spec/template/spec/containers/0/name", "value": "app"},
                {"op": "replace", "path": path, "value": "registry.example.com/app:2"},
            ]},
        ])
    };
    let draft = rule(namespace, "deployments.apps")
        .with("substitute", json!({"fields": ["/spec/template"]}))
        .with("overrides", image(IMAGE));
    let rule = Id::of(&scene.hub.make(&draft.json()).await?)?;
    scene.hub.all_written(&rule, 2).await?;
    let first = [
        ("/spec/replicas", json!(5)),
        (IMAGE, json!("registry.example.com/app:1")),
        (CLUSTER, json!("member-1")),
    ];
    let second = [
        ("/spec/replicas", json!(2)),
        (IMAGE, json!("registry.example.com/app:2")),
        (CLUSTER, json!("member-2")),
    ];
    scene.member(1).has_values("as shaped", &id, &first).await?;
    let copy = scene
        .member(2)
        .has_values("as shaped", &id, &second)
        .await?;

    // A path that leads nowhere is named, and holds up no other cluster.
    let nowhere = "/spec/template/spec/containers/7/image";
    let change = json!({"spec": {"overrides": image(nowhere)}});
    scene.hub.change(&rule, change).await?;
    let words = [
        "to member-2",
        "spec.overrides[1].jsonPatch",
        "step 1",
        nowhere,
    ];
    scene
        .hub
        .wait_refused(&rule, "TransformFailed", &words)
        .await?;
    scene.member(2).is_untouched(&copy).await?;
    scene
        .hub
        .wait_for_cluster(&rule, "member-1", "Progressing", "AwaitingHealth")
        .await?;

    // What no API server accepts is reported with its answer; the copy stays.
    let invalid =
        json!([{"clusters": {"names": ["member-2"]}, "mergePatch": {"spec": {"replicas": -1}}}]);
    let change = json!({"spec": {"overrides": invalid}});
    scene.hub.change(&rule, change).await?;
    let entry = scene
        .hub
        .wait_for_cluster(&rule, "member-2", "Failed", "Invalid")
        .await?;
    ensure!(entry.to_string().contains("spec.replicas"), "{entry}");
    ensure!(scene.member(2).get(&id).await?["spec"] == copy["spec"]);

    // A field that the rule leaves out is left to the member.
    let change =
        json!({"spec": {"overrides": null, "transform": {"removeFields": ["/spec/replicas"]}}});
    scene.hub.change(&rule, change).await?;
    scene.hub.all_written(&rule, 2).await?;
    scene
        .member(1)
        .change(&id, json!({"spec": {"replicas": 7}}))
        .await?;
    let edit = json!([{"op": "replace", "path": IMAGE, "value": "registry.example.com/app:3"}]);
    scene.hub.json_patch(&id, edit).await?;
    let left = [
        ("/spec/replicas", json!(7)),
        (IMAGE, json!("registry.example.com/app:3")),
    ];
    scene.member(1).has_values("as shaped", &id, &left).await?;
    Ok(())
}

#[tokio::test]
async fn variable_that_a_cluster_lacks_is_named_with_its_field() -> Result<()> {
    let namespace = "variable";
    let scene = scene(namespace).await?;
    let mut source = deployment(namespace);
    source["spec"]["template"]["spec"]["containers"][0]["env"][0]["value"] =
        json!("${cluster.labels.zone}");
    scene.hub.make(&source).await?;
    let draft = rule(namespace, "deployments.apps")
        .with("substitute", json!({"fields": ["/spec/template"]}));
    let rule = Id::of(&scene.hub.make(&draft.json()).await?)?;
    let words = [
        "2 clusters",
        "deployments.apps/variable/web",
        "no label zone",
    ];
    scene
        .hub
        .wait_refused(&rule, "VariableMissing", &words)
        .await?;
    let member = Id::member("member-1");
    scene
        .hub
        .change(&member, json!({"metadata": {"labels": {"zone": "west"}}}))
        .await?;
    scene
        .member(1)
        .has_values("as shaped", &Id::of(&source)?, &[(CLUSTER, json!("west"))])
        .await?;
    scene.member(2).lacks(&Id::of(&source)?).await
}

#[tokio::test]
async fn drift_of_a_deployment_is_reported_with_its_field() -> Result<()> {
    let namespace = "reported";
    let scene = scene(namespace).await?;
    let source = scene.hub.make(&deployment(namespace)).await?;
    let draft = rule(namespace, "deployments.apps").with("driftPolicy", json!("Report"));
    let rule = Id::of(&scene.hub.make(&draft.json()).await?)?;
    scene.hub.all_written(&rule, 2).await?;
    let id = Id::of(&source)?;
    let edit = json!([{"op": "replace", "path": IMAGE, "value": "registry.example.com/app:9"}]);
    let edited = scene.member(1).json_patch(&id, edit).await?;
    let drifted = scene.hub.wait_ready(&rule, "False", "Drifted").await?;
    let status = drifted["status"].to_string();
    ensure!(
        status.contains("/spec/template/spec/containers/[name=app]/image"),
        "{status}"
    );
    ensure!(scene.member(1).get(&id).await?["spec"] == edited["spec"]);
    Ok(())
}

#[tokio::test]
async fn what_a_member_adds_to_a_copy_stays() -> Result<()> {
    let namespace = "added";
    let scene = scene(namespace).await?;
    for cluster in std::iter::once(&scene.hub).chain(&scene.members) {
        // Another test of this program may have made it.
        if cluster
            .find(&Id::of(&definition("Widget"))?)
            .await?
            .is_none()
        {
            cluster.make(&definition("Widget")).await?;
        }
    }
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": {"namespace": namespace, "generateName": "builder-"},
    });
    let params = kube::api::PostParams::default();
    let accounts: kube::Api<k8s_openapi::api::core::v1::ServiceAccount> =
        kube::Api::namespaced(scene.hub.client(), namespace);
    let created = accounts
        .create(&params, &serde_json::from_value(account)?)
        .await?;
    let name = created.metadata.name.unwrap_or_default();
    let account = Id::of(&json!({
        "apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"namespace": namespace, "name": name},
    }))?;
    let widget = object("Widget", namespace, "one");
    scene.hub.make_soon(&widget).await?;
    // An equal object with a finalizer and an owner of its member.
    let mut existing = widget.clone();
    existing["metadata"]["finalizers"] = json!(["example.org/keep"]);
    existing["metadata"]["annotations"] = json!({"example.org/note": "ours"});
    let existing = scene.member(1).make_soon(&existing).await?;

    let draft = rule(namespace, "serviceaccounts")
        .source(json!({"namespaces": [namespace], "resources": ["widgets.example.org"], "names": ["*"]}))
        .with("conflictPolicy", json!("AdoptIfEqual"));
    let rule = Id::of(&scene.hub.make(&draft.json()).await?)?;
    let copy = scene.member(1).sees("copied", &account, |_| Ok(())).await?;
    ensure!(copy["metadata"]["generateName"].is_null(), "{copy}");
    let secrets = json!({"secrets": [{"name": "token-of-the-member"}]});
    scene.member(1).change(&account, secrets.clone()).await?;
    let change = json!({"metadata": {"labels": {"team": "a"}}});
    scene.hub.change(&account, change.clone()).await?;
    let both = [
        ("/metadata/labels/team", json!("a")),
        ("/secrets", secrets["secrets"].clone()),
    ];
    scene
        .member(1)
        .has_values("as shaped", &account, &both)
        .await?;

    let id = Id::of(&widget)?;
    let adopted = scene
        .member(1)
        .has_values(
            "as shaped",
            &id,
            &[("/metadata/annotations/example.org~1note", json!("ours"))],
        )
        .await?;
    ensure!(adopted["metadata"]["finalizers"] == existing["metadata"]["finalizers"]);
    scene.hub.delete(&rule).await?;
    scene.hub.lacks(&rule).await?;
    let left = scene.member(1).get(&id).await?;
    ensure!(
        left["metadata"]["uid"] == existing["metadata"]["uid"] && left["spec"] == existing["spec"]
    );
    ensure!(left["metadata"]["finalizers"] == existing["metadata"]["finalizers"]);
    Ok(())
}

#[tokio::test]
async fn foreign_deployment_is_adopted_only_when_it_is_equal() -> Result<()> {
    let namespace = "taken";
    let scene = scene(namespace).await?;
    let source = scene.hub.make(&deployment(namespace)).await?;
    let id = Id::of(&source)?;
    let mut other = deployment(namespace);
    other["spec"]["replicas"] = json!(9);
    let other = scene.member(1).make(&other).await?;
    let equal = scene.member(2).make(&deployment(namespace)).await?;
    let draft = rule(namespace, "deployments.apps").with("conflictPolicy", json!("AdoptIfEqual"));
    let rule = Id::of(&scene.hub.make(&draft.json()).await?)?;
    scene
        .hub
        .wait_for_cluster(&rule, "member-1", "Failed", "Conflict")
        .await?;
    scene
        .hub
        .wait_for_cluster(&rule, "member-2", "Ready", "AllApplied")
        .await?;
    scene.member(1).is_untouched(&other).await?;
    let adopted = scene.member(2).get(&id).await?;
    ensure!(adopted["metadata"]["uid"] == equal["metadata"]["uid"]);
    // The owner changes it: it still belongs to the owner.
    let edit = json!([{"op": "replace", "path": IMAGE, "value": "registry.example.com/app:9"}]);
    let edited = scene.member(2).json_patch(&id, edit).await?;
    scene
        .hub
        .wait_for_cluster(&rule, "member-2", "Failed", "Conflict")
        .await?;
    ensure!(scene.member(2).get(&id).await?["spec"] == edited["spec"]);
    Ok(())
}
