//! Observations of these tests.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use runnel_hub::lease::LEASE;
use runnel_tests::control_plane::ControlPlane;
use runnel_tests::fleet::NAMESPACE;
use runnel_tests::scene::{Id, SOON, TestCluster, condition};
use runnel_tests::wait::eventually;
use serde_json::Value;

/// Returns the history token that a member's agent has stored.
pub async fn remembered(client: &Client) -> Result<Option<Vec<u8>>> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
    let data = secrets
        .get("runnel-agent-identity")
        .await?
        .data
        .unwrap_or_default();
    Ok(data.get("hub-history-token").map(|bytes| bytes.0.clone()))
}

/// Waits until an agent has stored something else than this.
pub async fn remembers_more(member: &TestCluster, than: &Option<Vec<u8>>) -> Result<()> {
    // Agents store a new token once a minute.
    eventually(
        "the agent to remember what it was told",
        SOON + Duration::from_secs(60),
        async || {
            let now = remembered(&member.client()).await?;
            Ok((now.is_some() && now != *than).then_some(()))
        },
    )
    .await
}

/// Waits until the leader has renewed its Lease twice: no earlier backup contains its later state.
pub async fn renewed(hub: &Client) -> Result<()> {
    let leases: Api<Lease> = Api::namespaced(hub.clone(), NAMESPACE);
    for _ in 0..2 {
        let version = leases.get(LEASE).await?.metadata.resource_version;
        eventually("the Lease to be renewed", SOON, async || {
            Ok((leases.get(LEASE).await?.metadata.resource_version != version).then_some(()))
        })
        .await?;
    }
    Ok(())
}

/// Waits until a MemberCluster has this condition for this reason; returns its message.
pub async fn wait_for_condition(
    hub: &TestCluster,
    member: &str,
    kind: &str,
    reason: &str,
) -> Result<String> {
    let object = hub
        .sees(
            &format!("{kind}, {reason}"),
            &Id::member(member),
            |object| {
                let observed = condition(object, kind)?;
                ensure!(
                    observed["status"] == "True" && observed["reason"] == reason,
                    "it is {observed}"
                );
                Ok(())
            },
        )
        .await?;
    let observed = condition(&object, kind)?;
    Ok(observed["message"]
        .as_str()
        .context("no message")?
        .to_owned())
}

/// Waits until a MemberCluster has no condition of this kind.
pub async fn wait_without_condition(hub: &TestCluster, member: &str, kind: &str) -> Result<Value> {
    hub.sees(&format!("no {kind}"), &Id::member(member), |object| {
        ensure!(
            condition(object, kind).is_err(),
            "it says {}",
            object["status"]["conditions"]
        );
        Ok(())
    })
    .await
}

/// Runs the command that the message of a condition names, for these members.
pub async fn confirm(hub: &ControlPlane, message: &str, members: &str) -> Result<()> {
    let command = message
        .split('`')
        .nth(1)
        .context("the message names no command")?;
    let mut words: Vec<&str> = command.split_whitespace().collect();
    ensure!(
        words.len() == 6 && words[..3] == ["kubectl", "annotate", "member"],
        "{command}"
    );
    words[3] = members;
    hub.kubectl(&words[1..]).await.map(drop)
}
