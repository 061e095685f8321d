//! Removes from the user's clusters what the demo has made there.

use std::path::Path;
use std::time::Instant;

use anyhow::{Result, bail};

use super::cluster::Cluster;
use super::existing::crd_names;
use super::narrate::Narrator;
use super::stage::{Clusters, site};
use super::story::{DEFAULT, LATE, LIMITS, LOGIN, NAMESPACE, RULE, SETTINGS};
use crate::fleet::{AGENT, HUB, NAMESPACE as SYSTEM};
use crate::helm::Helm;

const QUIETLY: [&str; 2] = ["--ignore-not-found", "--timeout=90s"];

/// Removes all objects of the demo, also without hub and agents. None existed before the demo.
///
/// # Errors
/// If an object could not be removed, with the cause.
pub async fn undo(narrator: &Narrator, clusters: &Clusters, folder: &Path) -> Result<()> {
    let mut left = Vec::new();
    let helm = Helm::find().await?;
    release(&clusters.hub).await;
    for member in &clusters.members {
        let begin = Instant::now();
        left.extend(uninstall(&helm, member, AGENT, folder).await.err());
        let config_maps = ["-n", DEFAULT, "delete", "configmaps", SETTINGS, LIMITS];
        let secrets = ["-n", DEFAULT, "delete", "secrets", LOGIN];
        let namespaces = ["delete", "namespaces", SYSTEM, LATE];
        for what in [&config_maps[..], &secrets, &namespaces] {
            left.extend(delete(member, what).await.err());
        }
        narrator.took(
            &format!("{}: copies and namespaces are removed", member.name),
            begin.elapsed(),
        );
    }
    let begin = Instant::now();
    left.extend(uninstall(&helm, &clusters.hub, HUB, folder).await.err());
    left.extend(
        delete(&clusters.hub, &["delete", "namespaces", NAMESPACE, SYSTEM])
            .await
            .err(),
    );
    let crds = crd_names();
    let arguments: Vec<&str> = ["delete", "crds"]
        .into_iter()
        .chain(crds.iter().map(String::as_str))
        .collect();
    left.extend(delete(&clusters.hub, &arguments).await.err());
    narrator.took(
        &format!("{}: namespaces and CRDs are removed", clusters.hub.name),
        begin.elapsed(),
    );
    if left.is_empty() {
        return Ok(());
    }
    let left: Vec<String> = left.iter().map(|error| format!("{error:#}")).collect();
    bail!("not everything could be removed: {}", left.join("; "))
}

// Without a hub no process removes the rule's finalizer. Usually the rule is already deleted.
async fn release(hub: &Cluster) {
    let patch = r#"{"metadata":{"finalizers":null}}"#;
    let _ = hub
        .kubectl(
            &[
                "-n",
                NAMESPACE,
                "patch",
                "drule",
                RULE,
                "--type=merge",
                "-p",
                patch,
            ],
            "",
        )
        .await;
}

// This also removes the cluster-wide permissions; the CRDs are kept, as for a user.
async fn uninstall(helm: &Helm, cluster: &Cluster, release: &str, folder: &Path) -> Result<()> {
    let kubeconfig = site(cluster, folder)?.kubeconfig;
    let arguments = [
        "uninstall",
        release,
        "--namespace",
        SYSTEM,
        "--ignore-not-found",
    ];
    helm.on(&kubeconfig, &arguments).await.map(|_| ())
}

async fn delete(cluster: &Cluster, what: &[&str]) -> Result<()> {
    let arguments: Vec<&str> = what.iter().copied().chain(QUIETLY).collect();
    cluster.kubectl(&arguments, "").await.map(|_| ())
}
