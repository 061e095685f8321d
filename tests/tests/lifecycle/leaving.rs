//! A cluster leaves: with copies of unknown rules, after an earlier membership, and by revocation.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use runnel_tests::fleet::{Fleet, FleetOptions};
use runnel_tests::scene::{Draft, Id, RuleDraft, Scene, TestCluster, condition, is_marked};
use runnel_tests::wait::eventually;
use serde_json::{Value, json};

const HOME: &str = "leaving";
const MEMBER: &str = "member-1";
/// Longer than a real fleet once waited without success.
const LONG: Duration = Duration::from_secs(120);

/// A hub of two replicas, a member, and three rules with a copy each: one deletes, one retains, one is for the test.
async fn stage(agent_values: Value) -> Result<(Fleet, Scene, FleetOptions)> {
    let options = FleetOptions {
        hub_replicas: 2,
        agent_values,
        ..FleetOptions::default()
    };
    let fleet = Fleet::start(options.clone()).await?;
    let scene = Scene::of(&fleet).await?;
    scene.hub_namespaces(&[HOME]).await?;
    scene.member_namespaces(&[HOME]).await?;
    for name in ["deletes", "retains", "orphan"] {
        scene
            .hub
            .make(&Draft::config_map(HOME, name).data("k", name).json())
            .await?;
        let policy = if name == "retains" {
            "Retain"
        } else {
            "Delete"
        };
        let draft = RuleDraft::new(HOME, name)
            .named(&[name])
            .everywhere()
            .with("deletionPolicy", json!(policy));
        scene.hub.make(&draft.json()).await?;
        scene.hub.all_applied(&Id::rule(HOME, name), 1).await?;
    }
    Ok((fleet, scene, options))
}

async fn wait_for_condition(
    hub: &TestCluster,
    kind: &str,
    status: &str,
    text: &str,
) -> Result<String> {
    let what = format!("{kind}={status}, {text}");
    let shown = eventually(&what, LONG, async || {
        let member = hub.get(&Id::member(MEMBER)).await?;
        let shown = condition(&member, kind)?.clone();
        let message = shown["message"].as_str().unwrap_or_default().to_owned();
        ensure!(
            shown["status"] == status && message.contains(text),
            "it is {shown}"
        );
        Ok(Some(message))
    });
    shown.await
}

async fn leave(hub: &TestCluster) -> Result<()> {
    hub.change(&Id::member(MEMBER), json!({"spec": {"leaving": true}}))
        .await
        .map(drop)
}

#[tokio::test]
async fn orphaned_copies_do_not_delay_a_leaving_cluster() -> Result<()> {
    let (_fleet, scene, _) = stage(json!({})).await?;
    let (hub, member) = (&scene.hub, scene.member(1));
    // Its deletion is held, and a person takes the finalizer off: no rule manages its copies any more.
    let orphan = Id::rule(HOME, "orphan");
    let copies_there =
        json!({"spec": {"removalLimit": {"count": 0, "percent": 0, "onRuleDelete": "Hold"}}});
    hub.change(&orphan, copies_there).await?;
    hub.all_applied(&orphan, 1).await?;
    hub.delete(&orphan).await?;
    hub.sees("held", &orphan, |rule| {
        let shown = condition(rule, "ApprovalRequired")?;
        ensure!(shown["status"] == "True", "it is {shown}");
        Ok(())
    })
    .await?;
    hub.change(&orphan, json!({"metadata": {"finalizers": null}}))
        .await?;
    hub.lacks(&orphan).await?;
    wait_for_condition(hub, "OrphanedCopies", "True", "leaving/orphan").await?;

    leave(hub).await?;
    wait_for_condition(hub, "Drained", "True", "this MemberCluster can be deleted").await?;
    member.lacks(&Id::config_map(HOME, "deletes")).await?;
    ensure!(
        !is_marked(&member.get(&Id::config_map(HOME, "retains")).await?),
        "a retained copy has marks"
    );
    ensure!(
        is_marked(&member.get(&Id::config_map(HOME, "orphan")).await?),
        "the orphaned copy was touched"
    );
    Ok(())
}

#[tokio::test]
async fn cluster_that_joined_again_leaves_once_it_is_confirmed() -> Result<()> {
    let (fleet, scene, options) = stage(json!({})).await?;
    let hub = &scene.hub;
    fleet.stop_agent(1).await?;
    hub.delete(&Id::member(MEMBER)).await?;
    hub.lacks(&Id::member(MEMBER)).await?;
    let join_string = fleet
        .hub_release()
        .join_string(MEMBER, fleet.binaries(), &options)
        .await?;
    leave(hub).await?;
    fleet.agent(1).hand_over(&join_string).await?;
    fleet.start_agent(1).await?;

    let message = wait_for_condition(hub, "PreviousMembership", "True", "kubectl annotate").await?;
    wait_for_condition(
        hub,
        "Drained",
        "False",
        "until an administrator confirms: see the condition PreviousMembership",
    )
    .await?;
    for name in ["deletes", "retains", "orphan"] {
        ensure!(
            is_marked(&scene.member(1).get(&Id::config_map(HOME, name)).await?),
            "{name} was touched"
        );
    }
    let command = message
        .split('`')
        .nth(1)
        .context("the message names no command")?;
    let words: Vec<&str> = command.split_whitespace().skip(1).collect();
    fleet.hub().kubectl(&words).await?;
    wait_for_condition(hub, "Drained", "True", "this MemberCluster can be deleted").await?;
    scene
        .member(1)
        .lacks(&Id::config_map(HOME, "deletes"))
        .await?;
    ensure!(
        !is_marked(
            &scene
                .member(1)
                .get(&Id::config_map(HOME, "retains"))
                .await?
        ),
        "a retained copy has marks"
    );
    Ok(())
}

#[tokio::test]
async fn revocation_purges_copies_also_of_an_agent_that_was_away() -> Result<()> {
    let (fleet, scene, _) = stage(json!({"policy": {"onRevoke": "Purge"}})).await?;
    let (hub, member) = (&scene.hub, scene.member(1));
    let purged = async || {
        for name in ["deletes", "retains", "orphan"] {
            member.lacks(&Id::config_map(HOME, name)).await?;
        }
        anyhow::Ok(())
    };
    let accept = async |accepted: bool| {
        hub.change(&Id::member(MEMBER), json!({"spec": {"accepted": accepted}}))
            .await
            .map(drop)
    };
    accept(false).await?;
    purged().await.context("while the agent was connected")?;

    accept(true).await?;
    for name in ["deletes", "retains", "orphan"] {
        hub.all_applied(&Id::rule(HOME, name), 1).await?;
    }
    fleet.stop_agent(1).await?;
    accept(false).await?;
    fleet.start_agent(1).await?;
    purged().await.context("while the agent was away")
}
