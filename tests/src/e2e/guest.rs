//! Existing clusters: the checks before anything is created there, and the removal of everything.

use anyhow::{Context, Result, ensure};

use super::stage::E2eStage;
use super::story::{COPIES, CRDS, RULE, SOURCES, TARGETS};
use super::tenant::{MEMBER_NAMESPACES, TENANT};
use crate::demo::cluster::Cluster;
use crate::fleet::NAMESPACE;

/// Refuses clusters that have something of the names which the story makes and afterwards removes.
///
/// # Errors
/// When there is any, or a cluster does not answer.
pub async fn untouched(stage: &E2eStage) -> Result<()> {
    let crds = [&["crd"], &CRDS[..]].concat();
    nothing(&stage.hub, &crds).await?;
    nothing(&stage.hub, &["namespace", SOURCES, TENANT, NAMESPACE]).await?;
    for member in &stage.members {
        let namespaces = [
            &["namespace", TARGETS[1], NAMESPACE],
            &MEMBER_NAMESPACES[..],
        ]
        .concat();
        nothing(member, &namespaces).await?;
        nothing(member, &[&["-n", TARGETS[0]], &COPIES[..]].concat()).await?;
    }
    Ok(())
}

async fn nothing(cluster: &Cluster, objects: &[&str]) -> Result<()> {
    let found = cluster
        .kubectl(
            &[&["get", "--ignore-not-found", "-o", "name"], objects].concat(),
            "",
        )
        .await?;
    let found: Vec<_> = found.split_whitespace().collect();
    ensure!(
        found.is_empty(),
        "{} has {} already, which this would remove at its end: give clusters without Runnel",
        cluster.name,
        found.join(", ")
    );
    Ok(())
}

/// Removes what the story has made, as far as it came.
///
/// # Errors
/// The first one; everything else is removed all the same.
pub async fn tidy(stage: &E2eStage) -> Result<()> {
    let mut ends = Vec::new();
    for member in &stage.members {
        ends.push(tidy_member(stage, member).await);
    }
    ends.push(tidy_hub(stage).await);
    ends.into_iter()
        .collect::<Result<()>>()
        .context("not everything could be removed from your clusters")
}

async fn tidy_member(stage: &E2eStage, member: &Cluster) -> Result<()> {
    uninstall(stage, member, "runnel-agent").await?;
    // First the namespace of the agent, which would bring the copies back.
    delete(member, &["namespace", NAMESPACE]).await?;
    let namespaces = [&["namespace", TARGETS[1]], &MEMBER_NAMESPACES[..]].concat();
    delete(member, &namespaces).await?;
    delete(member, &[&["-n", TARGETS[0]], &COPIES[..]].concat()).await
}

async fn tidy_hub(stage: &E2eStage) -> Result<()> {
    let hub = &stage.hub;
    uninstall(stage, hub, "runnel-hub").await?;
    delete(hub, &["namespace", NAMESPACE]).await?;
    // The hub, which removes the finalizer, is deleted.
    let defined = hub
        .kubectl(
            &["get", "--ignore-not-found", "-o", "name", "crd", CRDS[1]],
            "",
        )
        .await?;
    if !defined.trim().is_empty() {
        let rule = hub
            .kubectl(
                &[&["get", "--ignore-not-found", "-o", "name"], &RULE[..]].concat(),
                "",
            )
            .await?;
        // The tenant's rules go in the same way, if the story ended early.
        let own = [
            "get",
            "--ignore-not-found",
            "-n",
            TENANT,
            "-o",
            "name",
            "drule",
        ];
        let own = hub.kubectl(&own, "").await?;
        for rule in own.split_whitespace() {
            let free = r#"{"metadata":{"finalizers":null}}"#;
            hub.kubectl(
                &["patch", "-n", TENANT, "--type=merge", "-p", free, rule],
                "",
            )
            .await?;
        }
        if !rule.trim().is_empty() {
            let free = [
                "patch",
                "--type=merge",
                "-p",
                r#"{"metadata":{"finalizers":null}}"#,
            ];
            hub.kubectl(&[&free[..], &RULE[..]].concat(), "").await?;
        }
    }
    delete(hub, &["namespace", SOURCES, TENANT]).await?;
    delete(hub, &[&["crd"], &CRDS[..]].concat()).await
}

async fn uninstall(stage: &E2eStage, cluster: &Cluster, release: &str) -> Result<()> {
    let arguments = [
        "uninstall",
        release,
        "--namespace",
        NAMESPACE,
        "--ignore-not-found",
        "--wait",
        "--timeout",
        "2m",
    ];
    stage
        .helm
        .on(&cluster.kubeconfig, &arguments)
        .await
        .map(drop)
}

async fn delete(cluster: &Cluster, objects: &[&str]) -> Result<()> {
    cluster
        .kubectl(&[&["delete", "--ignore-not-found"], objects].concat(), "")
        .await
        .map(drop)
}
