//! Revocation as a member sees it: its own policy decides about its copies, and a namespace refuses by itself.

use std::time::Duration;

use anyhow::{Result, ensure};
use runnel_tests::fleet::{Fleet, FleetOptions};
use runnel_tests::scene::{Draft, Id, Place, RuleDraft, SOON, Scene, condition, is_marked};
use runnel_tests::wait::{eventually, steadily};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

static FLEET: OnceCell<Fleet> = OnceCell::const_new();

async fn fleet() -> Result<&'static Fleet> {
    FLEET.get_or_try_init(|| Fleet::start(FleetOptions::default())).await
}

async fn member_says(hub: &Place, name: &str, kind: &str, status: &str, reason: &str) -> Result<Value> {
    hub.sees(&format!("{kind}={status}, {reason}"), &Id::member(name), |member| {
        let told = condition(member, kind)?;
        ensure!(told["status"] == status && told["reason"] == reason, "it is {told}");
        Ok(())
    })
    .await
}

async fn log_says(fleet: &Fleet, number: usize, text: &str) -> Result<()> {
    eventually(&format!("the agent to log {text:?}"), SOON, async || {
        Ok(std::fs::read_to_string(fleet.agent_log(number))?.contains(text).then_some(()))
    })
    .await
}

#[tokio::test]
async fn a_namespace_refuses_and_the_policy_decides_about_copies_when_the_hub_revokes() -> Result<()> {
    let fleet = fleet().await?;
    let scene = Scene::of(fleet).await?;
    let (hub, member, home) = (&scene.hub, scene.member(1), "purged");
    scene.hub_namespaces(&[home]).await?;
    scene.member_namespaces(&[home, "purged-other"]).await?;
    let draft = |name| RuleDraft::new(home, name).named(&[name]).to(&["member-1"]).into(&[home, "purged-other"]);
    let (rule, retains) = (Id::rule(home, "plain"), Id::rule(home, "retains"));
    hub.make(&draft("plain").json()).await?;
    hub.make(&draft("retains").with("deletionPolicy", json!("Retain")).json()).await?;
    let plain = hub.make(&Draft::config_map(home, "plain").data("k", "v").json()).await?;
    let kept = hub.make(&Draft::config_map(home, "retains").data("k", "v").json()).await?;
    hub.all_applied(&rule, 2).await?;
    hub.all_applied(&retains, 2).await?;

    // A namespace of the member refuses by itself, and takes copies again.
    let other = Id::namespace("purged-other");
    member.change(&other, json!({"metadata": {"annotations": {"runnel.dev/inbound": "deny"}}})).await?;
    let edited = hub.change(&Id::of(&plain)?, json!({"data": {"k": "edited"}})).await?;
    member.has_copy(&edited, home, &rule).await?;
    hub.sees("the refusal", &rule, |object| {
        let told = condition(object, "Ready")?;
        let message = told["message"].as_str().unwrap_or_default();
        ensure!(told["status"] == "False" && told["reason"] == "Denied" && message.contains("inbound"), "{told}");
        Ok(())
    })
    .await?;
    let refused = member.get(&Id::of(&plain)?.within("purged-other")).await?;
    ensure!(refused["data"]["k"] == "v", "a refusing namespace took an edit: {refused}");
    member.change(&other, json!({"metadata": {"annotations": {"runnel.dev/inbound": null}}})).await?;
    member.has_copy(&edited, "purged-other", &rule).await?;
    hub.all_applied(&rule, 2).await?;

    // Keep, the default.
    hub.change(&Id::member("member-1"), json!({"spec": {"accepted": false}})).await?;
    log_says(fleet, 1, "the hub has revoked this cluster: the copies here are kept as they are").await?;
    let copies = [(&plain, home), (&plain, "purged-other"), (&kept, home), (&kept, "purged-other")];
    steadily("the copies are kept", Duration::from_secs(2), async || {
        for (source, namespace) in copies {
            let copy = member.get(&Id::of(source)?.within(namespace)).await?;
            ensure!(is_marked(&copy), "{}", copy["metadata"]);
        }
        Ok(())
    })
    .await?;
    hub.change(&Id::member("member-1"), json!({"spec": {"accepted": true}})).await?;
    fleet.agent(1).upgrade(&json!({"policy": {"onRevoke": "Purge"}})).await?;
    fleet.kill_agent(1)?;
    fleet.start_agent(1).await?;
    member_says(hub, "member-1", "Connected", "True", "SessionOpen").await?;
    hub.all_applied(&rule, 2).await?;

    // Purge, also where a rule would retain: the member's own word is the last.
    let stranger = member.make(&Draft::config_map(home, "stranger").data("k", "mine").json()).await?;
    hub.change(&Id::member("member-1"), json!({"spec": {"accepted": false}})).await?;
    log_says(fleet, 1, "the copies here are deleted (onRevoke: Purge)").await?;
    for (source, namespace) in copies {
        member.lacks(&Id::of(source)?.within(namespace)).await?;
    }
    member.is_untouched(&stranger).await?;

    // Let in again, everything comes again.
    hub.change(&Id::member("member-1"), json!({"spec": {"accepted": true}})).await?;
    for namespace in [home, "purged-other"] {
        member.has_copy(&edited, namespace, &rule).await?;
        member.has_copy(&kept, namespace, &retains).await?;
    }
    Ok(())
}
