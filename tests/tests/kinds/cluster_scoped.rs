//! Objects of kinds without namespaces, and namespaces as objects.
use std::time::Duration;

use anyhow::{Result, ensure};
use runnel_tests::fleet::{Fleet, FleetOptions};
use runnel_tests::scene::{Draft, Id, RuleDraft, Scene, entry_of};
use runnel_tests::wait::steadily;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

static FLEET: OnceCell<Fleet> = OnceCell::const_new();

const PRIORITIES: &str = "priorityclasses.scheduling.k8s.io";
const KINDS: [&str; 2] = ["namespaces", PRIORITIES];
/// How long an object must stay.
const STAYS: Duration = Duration::from_secs(10);

async fn scene() -> Result<Scene> {
    let policy =
        json!({"clusterKinds": KINDS, "allowPrivileged": ["namespaces"], "deleteNamespaces": true});
    let start = || {
        Fleet::start(FleetOptions {
            hub_values: json!({"sources": {"clusterKinds": KINDS}}),
            agent_values: json!({"policy": policy}),
            ..FleetOptions::default()
        })
    };
    Scene::of(FLEET.get_or_try_init(start).await?).await
}

/// A rule for the objects of one name.
fn rule(name: &str, kind: &str) -> RuleDraft {
    RuleDraft::cluster_scoped(name)
        .source(json!({"resources": [kind], "names": [name]}))
        .everywhere()
}

fn priority(name: &str, description: &str) -> Value {
    json!({
        "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name},
        "value": 100, "description": description,
    })
}

/// Waits until the only member has this reason for a rule, with a message that has these words.
async fn is_failing(scene: &Scene, rule: &Id, reason: &str, words: &str) -> Result<()> {
    let what = format!("with {reason}: {words}");
    let seen = scene.hub.sees(&what, rule, |object| {
        let entry = entry_of(object, "member-1")?;
        let message = entry["message"].as_str().unwrap_or_default();
        ensure!(
            entry["reason"] == reason && message.contains(words),
            "{entry}"
        );
        Ok(())
    });
    seen.await.map(|_| ())
}

#[tokio::test]
async fn namespace_is_deleted_only_when_it_is_empty() -> Result<()> {
    let scene = scene().await?;
    let (member, name) = (scene.member(1), "shared-space");
    let source = Draft::namespace(name)
        .label("team", "a")
        .annotation("example.com/owner", "shop")
        .json();
    scene.hub.make(&source).await?;
    let (id, space) = (Id::cluster_rule(name), Id::namespace(name));
    scene.hub.make(&rule(name, "namespaces").json()).await?;
    scene.hub.all_applied(&id, 1).await?;
    let labeled = async |team: &str| {
        let what = format!("with team={team}");
        let seen = member.sees(&what, &space, |copy| {
            let metadata = &copy["metadata"];
            ensure!(metadata["labels"]["team"] == team, "{metadata}");
            ensure!(metadata["annotations"]["example.com/owner"] == "shop");
            ensure!(metadata["annotations"]["runnel.dev/source"] == format!("namespaces/{name}"));
            ensure!(metadata["labels"]["kubernetes.io/metadata.name"] == name);
            ensure!(copy["spec"]["finalizers"] == json!(["kubernetes"]));
            Ok(())
        });
        seen.await.map(|_| ())
    };
    labeled("a").await?;
    // Drift is corrected, and edits arrive.
    let team = |team: &str| json!({"metadata": {"labels": {"team": team}}});
    member.change(&space, team("x")).await?;
    labeled("a").await?;
    scene.hub.change(&space, team("b")).await?;
    labeled("b").await?;

    let foreign = Draft::config_map(name, "local").data("a", "b").json();
    let foreign = member.make(&foreign).await?;
    scene.hub.delete(&space).await?;
    is_failing(&scene, &id, "NotEmpty", "objects of configmaps").await?;
    steadily("the namespace stays", STAYS, async || {
        let copy = member.get(&space).await?;
        ensure!(copy["metadata"]["deletionTimestamp"].is_null());
        member.is_untouched(&foreign).await
    })
    .await?;
    member.delete(&Id::of(&foreign)?).await?;
    member.lacks(&space).await
}

#[tokio::test]
async fn namespace_of_others_is_adopted_only_if_it_is_equal() -> Result<()> {
    let scene = scene().await?;
    let (member, name) = (scene.member(1), "taken-space");
    let with_team = |team: &str| Draft::namespace(name).label("team", team).json();
    let before = member.make(&with_team("theirs")).await?;
    let content = Draft::config_map(name, "local").data("a", "b").json();
    let content = member.make(&content).await?;
    scene.hub.make(&with_team("ours")).await?;
    let (id, space) = (Id::cluster_rule(name), Id::namespace(name));
    scene.hub.make(&rule(name, "namespaces").json()).await?;
    is_failing(&scene, &id, "Conflict", "not Runnel's").await?;
    let adopt = json!({"spec": {"conflictPolicy": "AdoptIfEqual"}});
    scene.hub.change(&id, adopt).await?;
    is_failing(&scene, &id, "Conflict", "is not adopted").await?;
    let labels = |object: &Value| object["metadata"]["labels"].clone();
    ensure!(labels(&member.get(&space).await?) == labels(&before));
    // Neither does a rule that may overwrite: the policy of the member denies it.
    let overwrite = json!({"spec": {"conflictPolicy": "Overwrite"}});
    scene.hub.change(&id, overwrite).await?;
    is_failing(&scene, &id, "Denied", "policy.overwrite").await?;
    ensure!(labels(&member.get(&space).await?) == labels(&before));

    let adopt = json!({"spec": {"conflictPolicy": "AdoptIfEqual"}});
    scene.hub.change(&id, adopt).await?;
    let equal = json!({"metadata": {"labels": {"team": "ours"}}});
    member.change(&space, equal).await?;
    scene.hub.all_applied(&id, 1).await?;
    // It is left as it was, without marks.
    scene.hub.delete(&id).await?;
    scene.hub.lacks(&id).await?;
    let after = member.get(&space).await?;
    let metadata = &after["metadata"];
    ensure!(metadata["deletionTimestamp"].is_null(), "{metadata}");
    ensure!(metadata["labels"]["runnel.dev/hub"].is_null(), "{metadata}");
    member.is_untouched(&content).await
}

#[tokio::test]
async fn object_without_namespace_is_kept_equal_and_foreign_one_left() -> Result<()> {
    let scene = scene().await?;
    let (member, name) = (scene.member(1), "batch");
    scene.hub.make(&priority(name, "ours")).await?;
    scene.hub.make(&priority("theirs", "ours")).await?;
    let foreign = member.make(&priority("theirs", "theirs")).await?;
    // The namespaces of a rule do not apply to objects without namespaces.
    let draft = rule(name, PRIORITIES).into(&["team-a"]);
    scene.hub.make(&draft.json()).await?;
    let (id, other) = (Id::cluster_rule(name), Id::cluster_rule("theirs"));
    scene.hub.all_applied(&id, 1).await?;
    let copy = Id::of(&priority(name, ""))?;
    member
        .change(&copy, json!({"description": "drift"}))
        .await?;
    member
        .sees("corrected", &copy, |copy| {
            ensure!(copy["description"] == "ours", "{copy}");
            Ok(())
        })
        .await?;
    scene.hub.make(&rule("theirs", PRIORITIES).json()).await?;
    is_failing(&scene, &other, "Conflict", "not Runnel's").await?;
    member.is_untouched(&foreign).await?;
    for rule in [&id, &other] {
        scene.hub.delete(rule).await?;
        scene.hub.lacks(rule).await?;
    }
    member.lacks(&copy).await?;
    member.is_untouched(&foreign).await
}

#[tokio::test]
async fn rule_of_a_namespace_selects_no_object_without_one() -> Result<()> {
    let scene = scene().await?;
    let namespace = "no-cluster-scope";
    scene.hub_namespaces(&[namespace]).await?;
    let entry = json!({"resources": [PRIORITIES], "names": ["*"]});
    let draft = RuleDraft::new(namespace, "priorities")
        .source(entry)
        .everywhere();
    scene.hub.make(&draft.json()).await?;
    let mut of_namespace = json!({"resources": [PRIORITIES], "names": ["*"]});
    of_namespace["namespaces"] = json!([namespace]);
    let draft = RuleDraft::cluster_scoped("priorities")
        .source(of_namespace)
        .everywhere();
    scene.hub.make(&draft.json()).await?;
    let policies = "networkpolicies.networking.k8s.io";
    let draft = RuleDraft::cluster_scoped("policies")
        .source(json!({"resources": ["namespaces"], "names": ["none-*"]}))
        .source(json!({"resources": [policies], "names": ["*"]}))
        .everywhere();
    scene.hub.make(&draft.json()).await?;
    let only = "only a ClusterDistributionRule distributes them";
    for (id, words) in [
        (
            Id::rule(namespace, "priorities"),
            ["spec.sources[0]", PRIORITIES, only],
        ),
        (
            Id::cluster_rule("priorities"),
            ["spec.sources[0]", PRIORITIES, only],
        ),
        (
            Id::cluster_rule("policies"),
            [
                "spec.sources[1]",
                policies,
                "in an entry of spec.sources with namespaces",
            ],
        ),
    ] {
        scene.hub.wait_refused(&id, "ScopeMismatch", &words).await?;
    }
    // The corrected entry is read, for which this hub has no right.
    let corrected = json!([{"resources": [policies], "names": ["*"], "namespaces": [namespace]}]);
    let policies = Id::cluster_rule("policies");
    scene
        .hub
        .change(&policies, json!({"spec": {"sources": corrected}}))
        .await?;
    let unreadable = scene.hub.wait_ready(&policies, "False", "SourceUnreadable");
    unreadable.await.map(drop)
}
