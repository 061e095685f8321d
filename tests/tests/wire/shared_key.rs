//! Two agents with one key, which take the session from one another.

use anyhow::{Result, ensure};
use kube::api::{Patch, PatchParams};
use runnel_api::MemberCluster;
use runnel_hub_core::epoch::REPLACES;
use runnel_proto::model::{AgentFrame, Hello, HubFrame};
use runnel_proto::{PROTOCOL_MAX, PROTOCOL_MIN};
use runnel_tests::scene::{Id, TestCluster};
use runnel_tests::simulated::{AgentStream, Credentials};
use runnel_tests::wait::eventually;

use serde_json::json;

use super::stage::{SOON, Stage, shared};

/// A session of the agent's process with this boot id.
async fn connects(credentials: &Credentials, boot_id: &str) -> Result<AgentStream> {
    let mut line = opens(credentials, boot_id, &credentials.cluster).await?;
    ensure!(
        matches!(line.must().await?, HubFrame::SnapshotBegin(_)),
        "{}",
        line.record().sketch()
    );
    Ok(line)
}

/// The first frames of an agent in the cluster `of`.
async fn opens(credentials: &Credentials, boot_id: &str, of: &str) -> Result<AgentStream> {
    let line = AgentStream::open(credentials).await?;
    line.send(&AgentFrame::Hello(Hello {
        protocol_min: PROTOCOL_MIN,
        protocol_max: PROTOCOL_MAX,
        agent_version: "simulated".to_owned(),
        kubernetes_version: "v1.36.0".to_owned(),
        boot_id: boot_id.to_owned(),
        cluster_uid: format!("uid-of-{of}"),
    }));
    line.send(&AgentFrame::AckedRules(Vec::new(), true));
    Ok(line)
}

fn condition_of(member: &MemberCluster, kind: &str) -> Option<(String, String, String)> {
    let found = member
        .status
        .as_ref()?
        .conditions
        .iter()
        .find(|condition| condition.type_ == kind)?;
    Some((
        found.status.clone(),
        found.reason.clone(),
        found.message.clone(),
    ))
}

async fn wait_for_condition(
    stage: &Stage,
    cluster: &str,
    kind: &str,
    reason: &str,
) -> Result<MemberCluster> {
    eventually(
        &format!("{kind} with the reason {reason}"),
        SOON,
        async || {
            let member = stage.members().get(cluster).await?;
            let output = condition_of(&member, kind);
            ensure!(
                output.as_ref().is_some_and(|(_, why, _)| why == reason),
                "{output:?}"
            );
            Ok(Some(member))
        },
    )
    .await
}

#[tokio::test]
async fn shared_key_is_a_condition_and_an_event() -> Result<()> {
    let (stage, cluster) = (shared("shared-key").await?, "shared-key-a");
    let credentials = stage.join(cluster).await?;
    let mut first = connects(&credentials, "first").await?;
    // As an agent that was started again: the hub has not noticed yet that the one before is dead.
    let mut second = connects(&credentials, "second").await?;
    ensure!(
        first.end(SOON).await?.message().contains("took over"),
        "{}",
        first.record().sketch()
    );
    let member = wait_for_condition(&stage, cluster, "Connected", "SessionOpen").await?;
    ensure!(
        condition_of(&member, "KeyShared").is_none(),
        "{:?}",
        member.status
    );

    // The one before lives, and so does the other.
    let mut first = connects(&credentials, "first").await?;
    ensure!(
        second.end(SOON).await?.message().contains("took over"),
        "{}",
        second.record().sketch()
    );
    let _second = connects(&credentials, "second").await?;
    ensure!(
        first.end(SOON).await?.message().contains("took over"),
        "{}",
        first.record().sketch()
    );
    let member = wait_for_condition(&stage, cluster, "KeyShared", "ConcurrentSessions").await?;
    let (status, _, message) = condition_of(&member, "KeyShared").unwrap_or_default();
    ensure!(
        status == "True" && message.contains("spec.accepted") && message.contains("token create"),
        "{message}"
    );
    let hub = TestCluster::new("hub", stage.client.clone());
    let event = hub.has_event(&Id::member(cluster), "KeyShared").await?;
    ensure!(
        event.kind == "Warning" && event.note == message,
        "{event:?}"
    );

    // A new join gives it a key of which there is no copy.
    let joined = stage.join(cluster).await?;
    let _line = connects(&joined, "third").await?;
    eventually("the condition to go", SOON, async || {
        let output = condition_of(&stage.members().get(cluster).await?, "KeyShared");
        Ok(output.is_none().then_some(()))
    })
    .await
}

#[tokio::test]
async fn second_member_of_a_cluster_is_refused_and_shown_on_both() -> Result<()> {
    let stage = shared("second-member").await?;
    let (first, second) = ("second-member-a", "second-member-b");
    let _line = connects(&stage.join(first).await?, "first").await?;
    let credentials = stage.join(second).await?;
    let mut line = opens(&credentials, "second", first).await?;
    let status = line.end(SOON).await?;
    ensure!(status.message().contains(first), "{status}");
    ensure!(
        line.record().frames.is_empty(),
        "{}",
        line.record().sketch()
    );
    for (member, ready) in [(first, "MemberReady"), (second, "NeverConnected")] {
        let object = wait_for_condition(&stage, member, "Duplicate", "SecondMembership").await?;
        let (_, _, message) = condition_of(&object, "Duplicate").unwrap_or_default();
        ensure!(
            message.contains(first)
                && message.contains(&format!("join {second} --replace {first}")),
            "{message}"
        );
        let (_, reason, _) = condition_of(&object, "Ready").unwrap_or_default();
        ensure!(reason == ready, "{reason}");
    }
    // An administrator moves the cluster.
    let patch = Patch::Merge(json!({"metadata": {"annotations": {REPLACES: first}}}));
    stage
        .members()
        .patch(second, &PatchParams::default(), &patch)
        .await?;
    eventually("the second member to be let in", SOON, async || {
        let mut line = opens(&credentials, "third", first).await?;
        Ok(matches!(line.must().await, Ok(HubFrame::SnapshotBegin(_))).then_some(line))
    })
    .await?;
    let mut former = opens(&stage.join(first).await?, "fourth", first).await?;
    let status = former.end(SOON).await?;
    ensure!(status.message().contains("--replace"), "{status}");
    Ok(())
}
