//! Temporary failures: an unreachable API server, missing CRDs, missing permissions, an
//! unreachable hub. One process survives all of them.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use runnel_tests::fleet::{AGENT, HUB, NAMESPACE, account};
use runnel_tests::ports;
use runnel_tests::scene::{Draft, Id, RuleDraft, TestCluster, condition};
use serde_json::{Value, json};

use super::stage::{Stage, Which};

async fn without_rights(stage: &Stage, name: &str) -> Result<std::path::PathBuf> {
    stage
        .cluster
        .kubectl(&["create", "serviceaccount", name, "-n", "runnel-system"])
        .await?;
    stage.cluster.token_kubeconfig("runnel-system", name).await
}

/// Gives the account the rights of a chart, and nothing else of it.
async fn grant(stage: &Stage, chart: &'static str, name: &str) -> Result<()> {
    let mut values = json!({"serviceAccount": {"create": false, "name": name}});
    if chart == HUB {
        values["crds"] = json!({"install": false});
    }
    account(&stage.cluster, chart, NAMESPACE, &values)
        .await
        .map(drop)
}

fn hub_arguments(kubeconfig: &Path, address: &str) -> Vec<String> {
    let kubeconfig = kubeconfig.display();
    vec![
        "run".to_owned(),
        format!("--kubeconfig={kubeconfig}"),
        format!("--listen={address}"),
        format!("--advertise={address}"),
        "--grant-everything".to_owned(),
    ]
}

fn agent_arguments(kubeconfig: &Path, join: &Path) -> Vec<String> {
    let (kubeconfig, join) = (kubeconfig.display(), join.display());
    vec![
        "run".to_owned(),
        format!("--kubeconfig={kubeconfig}"),
        format!("--join-string-file={join}"),
    ]
}

#[tokio::test]
async fn hub_and_agent_survive_what_passes_without_restart() -> Result<()> {
    let stage = Stage::new("patience").await?;
    let place = TestCluster::new("patience", stage.cluster.client().await?);
    stage
        .cluster
        .kubectl(&["create", "namespace", "runnel-system"])
        .await?;
    let (hub_account, agent_account) = (
        without_rights(&stage, "hub").await?,
        without_rights(&stage, "agent").await?,
    );
    let address = ports::local(ports::free()?).to_string();

    // The hub: no API server, then no rights, then no CRDs.
    stage.cluster.stop_api_server()?;
    let hub = stage.start(Which::Hub, "hub", &hub_arguments(&hub_account, &address))?;
    hub.complains(&["cannot get the hub's identity", "trying again"])
        .await?;
    stage.cluster.start_api_server().await?;
    hub.complains(&[
        "forbidden",
        "the hub needs to get, list, watch, create, patch and update its two Secrets in its own namespace",
    ])
    .await?;
    grant(&stage, HUB, "hub").await?;
    hub.complains(&[
        "cannot watch",
        "install the CRDs with `runnel-hub crds | kubectl apply",
    ])
    .await?;
    let kubeconfig = format!("--kubeconfig={}", stage.cluster.kubeconfig().display());
    let early = stage
        .fails(Which::Hub, &["token", "create", "eu-1", &kubeconfig])
        .await?;
    ensure!(
        early.contains("not installed in this cluster: install the hub first"),
        "{early}"
    );
    stage.install().await?;
    hub.recovers().await?;

    // The agent: no API server, then no rights.
    let join = stage
        .prints(Which::Hub, &["token", "create", "eu-1", &kubeconfig])
        .await?;
    let file = stage.file("join-string", &join)?;
    stage.cluster.stop_api_server()?;
    let agent = stage.start(
        Which::Agent,
        "agent",
        &agent_arguments(&agent_account, &file),
    )?;
    agent
        .complains(&["waiting for this cluster's API server", "is it running"])
        .await?;
    stage.cluster.start_api_server().await?;
    agent
        .complains(&[
            "waiting for this cluster's API server",
            "grant the agent the rights",
        ])
        .await?;
    grant(&stage, AGENT, "agent").await?;
    agent.recovers().await?;
    let connected = |member: &serde_json::Value| {
        ensure!(
            condition(member, "Connected")?["status"] == "True",
            "{}",
            member["status"]
        );
        Ok(())
    };
    place
        .sees("connected", &Id::member("eu-1"), connected)
        .await?;

    // Both together work, also after one more time without an API server.
    stage.cluster.restart_api_server().await?;
    for name in ["source", "target"] {
        place.make(&Draft::namespace(name).json()).await?;
    }
    let source = place
        .make(
            &Draft::config_map("source", "settings")
                .data("key", "value")
                .json(),
        )
        .await?;
    let rule = RuleDraft::new("source", "all")
        .named(&["settings"])
        .everywhere()
        .into(&["target"]);
    let rule = Id::of(&place.make(&rule.json()).await?)?;
    place.has_copy(&source, "target", &rule).await?;
    place.all_applied(&rule, 1).await?;
    hub.recovers().await?;
    agent.recovers().await?;
    Ok(())
}

#[tokio::test]
async fn join_waits_for_its_hub_and_explains_a_refusal() -> Result<()> {
    let stage = Stage::new("joins").await?;
    let hub_account = account(&stage.cluster, HUB, NAMESPACE, &Value::Null).await?;
    let agent_account = account(&stage.cluster, AGENT, NAMESPACE, &Value::Null).await?;
    let address = ports::local(ports::free()?).to_string();
    let kubeconfig = format!("--kubeconfig={}", stage.cluster.kubeconfig().display());
    let create = [
        "token",
        "create",
        "eu-1",
        &kubeconfig,
        &format!("--advertise={address}"),
    ];
    let spent = stage.file("spent", &stage.prints(Which::Hub, &create).await?)?;

    // No hub is there yet.
    let agent = stage.start(
        Which::Agent,
        "agent",
        &agent_arguments(&agent_account, &spent),
    )?;
    agent
        .complains(&["joining the hub failed", &address])
        .await?;
    let hub = stage.start(Which::Hub, "hub", &hub_arguments(&hub_account, &address))?;
    hub.recovers().await?;
    agent.recovers().await?;
    drop(agent);

    // Other clusters with the same string, with a wrong one and with one that has expired.
    let refused = async |name: &str, join: &Path, words: &str| {
        let kubeconfig = account(&stage.cluster, AGENT, name, &Value::Null).await?;
        let kubeconfig = format!("--kubeconfig={}", kubeconfig.display());
        let (join, namespace) = (
            format!("--join-string-file={}", join.display()),
            format!("--namespace={name}"),
        );
        let arguments = [
            "run",
            &kubeconfig,
            &join,
            &namespace,
            "--ops-listen=127.0.0.1:0",
        ];
        let output = stage.fails(Which::Agent, &arguments).await?;
        let last = output.lines().last().context("nothing was said")?;
        ensure!(
            last.starts_with("runnel-agent: ") && last.contains(words),
            "{name}: {output}"
        );
        ensure!(
            last.matches("runnel-hub token create eu-1").count() == 1,
            "{name} names the hint not once: {last}"
        );
        anyhow::Ok(())
    };
    refused("spent", &spent, "already used").await?;
    let next = stage.file("next", &stage.prints(Which::Hub, &create).await?)?;
    refused("wrong", &spent, "is wrong").await?;
    let past = json!({"spec": {"join": {"expiresAt": "2020-01-01T00:00:00Z"}}}).to_string();
    stage
        .cluster
        .kubectl(&["patch", "member", "eu-1", "--type=merge", "-p", &past])
        .await?;
    refused("expired", &next, "expired").await
}
