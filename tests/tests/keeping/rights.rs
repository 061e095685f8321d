//! Rights that an agent loses while it has copies.

use anyhow::{Context, Result, ensure};
use runnel_tests::control_plane::ControlPlane;
use runnel_tests::fleet::{Fleet, FleetOptions, NAMESPACE};
use runnel_tests::scene::{Draft, Id, RuleDraft, SOON, Scene, entry_of};
use runnel_tests::wait::eventually;
use serde_json::{Value, json};

/// Replaces the verbs of the agent's role for copies, and waits until they are in force.
async fn may(member: &ControlPlane, verbs: &[&str]) -> Result<()> {
    let read = member
        .kubectl(&["get", "clusterrole", "runnel-agent", "-o", "json"])
        .await?;
    let mut role: Value = serde_json::from_str(&read)?;
    let rules = role["rules"].as_array_mut().context("no rules")?;
    let copies = |rule: &&mut Value| {
        rule["resources"]
            .as_array()
            .is_some_and(|all| all.contains(&json!("configmaps")))
    };
    let mut changed = 0;
    for rule in rules.iter_mut().filter(copies) {
        rule["verbs"] = json!(verbs);
        changed += 1;
    }
    ensure!(changed > 0, "no right to copies: {read}");
    member
        .kubectl_stdin(&["replace", "-f", "-"], &role.to_string())
        .await?;
    let agent = format!("--as=system:serviceaccount:{NAMESPACE}:runnel-agent");
    eventually("the rights to be in force", SOON, async || {
        for verb in ALL {
            let question = ["auth", "can-i", verb, "configmaps", "-A", &agent];
            let answer = member.kubectl(&question).await;
            ensure!(
                answer.is_ok() == verbs.contains(&verb),
                "{verb}: {answer:?}"
            );
        }
        Ok(Some(()))
    })
    .await
}

const ALL: [&str; 6] = ["create", "delete", "get", "list", "patch", "watch"];

#[tokio::test]
async fn refused_delete_after_apply_is_shown_and_retried() -> Result<()> {
    let home = "lost-rights";
    let fleet = Fleet::start(FleetOptions::default()).await?;
    let scene = Scene::of(&fleet).await?;
    scene.hub_namespaces(&[home]).await?;
    scene.member_namespaces(&[home]).await?;
    let (hub, member) = (&scene.hub, scene.member(1));
    let (first, second) = (Id::rule(home, "first"), Id::rule(home, "second"));
    let mut sources = vec![];
    for name in ["stays", "goes", "other"] {
        sources.push(
            hub.make(&Draft::config_map(home, name).data("k", "1").json())
                .await?,
        );
    }
    hub.make(
        &RuleDraft::new(home, "first")
            .named(&["stays", "goe*"])
            .to(&["member-1"])
            .json(),
    )
    .await?;
    let retained = RuleDraft::new(home, "second")
        .named(&["other"])
        .to(&["member-1"]);
    hub.make(&retained.with("deletionPolicy", json!("Retain")).json())
        .await?;
    hub.all_applied(&first, 2).await?;
    hub.all_applied(&second, 1).await?;

    // Deletes are refused: that is reported with the missing right, and nothing else is delayed.
    may(
        fleet.member(1),
        &["create", "get", "list", "patch", "watch"],
    )
    .await?;
    hub.delete(&Id::of(&sources[1])?).await?;
    let observed = hub.wait_ready(&first, "False", "Forbidden").await?;
    let entry = entry_of(&observed, "member-1")?;
    let message = entry["message"].as_str().unwrap_or_default();
    ensure!(message.contains("configmaps/lost-rights/goes"), "{entry}");
    ensure!(
        message.contains("may not delete configmaps") && message.contains("kubectl create"),
        "{message}"
    );
    ensure!(entry["applied"] == 1, "{entry}");
    let edited = hub
        .change(&Id::of(&sources[0])?, json!({"data": {"k": "2"}}))
        .await?;
    member.has_copy(&edited, home, &first).await?;
    ensure!(
        member.find(&Id::of(&sources[1])?).await?.is_some(),
        "it went without the right"
    );
    // Retaining a copy needs no permission to delete.
    hub.delete(&second).await?;
    hub.lacks(&second).await?;
    ensure!(
        member.get(&Id::of(&sources[2])?).await?["metadata"]["labels"]["runnel.dev/hub"].is_null()
    );

    // The permission is granted again, and the agent continues.
    may(fleet.member(1), &ALL).await?;
    member.lacks(&Id::of(&sources[1])?).await?;
    hub.all_applied(&first, 1).await?;

    // The same for a change.
    may(fleet.member(1), &["get", "list", "watch"]).await?;
    let edited = hub
        .change(&Id::of(&sources[0])?, json!({"data": {"k": "3"}}))
        .await?;
    let observed = hub.wait_ready(&first, "False", "Forbidden").await?;
    let message = entry_of(&observed, "member-1")?["message"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    ensure!(message.contains("may not patch configmaps"), "{message}");
    may(fleet.member(1), &ALL).await?;
    member.has_copy(&edited, home, &first).await?;
    hub.all_applied(&first, 1).await.map(|_| ())
}
