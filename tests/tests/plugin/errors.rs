//! Failures, and whether the plugin names them with a hint.

use std::net::TcpListener;

use anyhow::{Result, ensure};
use runnel_tests::ports;

use super::stage::{Stage, cluster, read};

/// One control plane is hub and member; nothing of Runnel's runs, as nothing gets that far.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_obstacle_is_named_with_a_hint() -> Result<()> {
    let cluster = cluster("errors").await?;
    cluster
        .kubectl(&["create", "serviceaccount", "stranger"])
        .await?;
    let stranger = cluster.token_kubeconfig("default", "stranger").await?;
    // Nobody listens there any more.
    let nowhere = cluster.folder().join("nowhere.kubeconfig");
    let text = std::fs::read_to_string(cluster.kubeconfig())?;
    std::fs::write(
        &nowhere,
        text.replace(
            cluster.url(),
            &format!("https://127.0.0.1:{}", ports::free()?),
        ),
    )?;
    let contexts = [
        ("hub", cluster.kubeconfig()),
        ("member", cluster.kubeconfig()),
        ("stranger", &stranger),
        ("nowhere", &nowhere),
    ];
    let stage = Stage::new(&contexts).await?;

    // The command line.
    stage
        .runnel("install --advertise hub")
        .await?
        .refused(2, &["--advertise `hub` is not an address", "host:port"])?;
    stage
        .runnel("join eu-1")
        .await?
        .refused(2, &["--context NAME"])?;
    stage
        .runnel("join EU --context member")
        .await?
        .refused(2, &["`EU` is not a cluster name"])?;
    stage.runnel("uninstall").await?.refused(2, &["--copies"])?;
    stage
        .runnel("install --context other")
        .await?
        .refused(1, &["no context other", "hub, member, stranger, nowhere"])?;

    // Helm.
    let output = stage.runnel_with("install", None).await?;
    output.refused(
        1,
        &[
            "helm is not found in PATH",
            "https://helm.sh/docs/intro/install",
            "RUNNEL_HELM",
        ],
    )?;
    let output = stage
        .runnel_with("install", Some("/no/helm".as_ref()))
        .await?;
    output.refused(1, &["RUNNEL_HELM=/no/helm is no file"])?;

    // Values.
    let output = stage.runnel("install --set replicas=many").await?;
    output.refused(
        1,
        &[
            "the values do not fit the chart",
            "replicas",
            "install --show-values",
        ],
    )?;
    ensure!(
        read(&cluster, "crd memberclusters.runnel.dev")
            .await?
            .is_null(),
        "it was installed all the same"
    );
    ensure!(
        stage
            .runnel("install --show-values")
            .await?
            .ok()?
            .contains("# The number of hub processes.")
    );

    // Rights, and a hub that is not there.
    let output = stage.runnel("install --context stranger").await?;
    output.refused(
        1,
        &[
            "you may not install Runnel on the hub (context stranger",
            "create deployments.apps in namespace runnel-system",
            "create customresourcedefinitions.apiextensions.k8s.io",
            "ask its administrator",
        ],
    )?;
    let output = stage
        .runnel("join eu-1 --context member --advertise 127.0.0.1:1")
        .await?;
    output.refused(
        1,
        &["does not serve Runnel's kinds", "kubectl runnel install"],
    )?;
    stage.runnel("install").await?.ok()?;
    let output = stage.runnel("install --wait --timeout 2s").await?;
    output.refused(3, &["was not ready in time", "kubectl runnel doctor"])?;
    let output = stage
        .runnel("join eu-1 --context member --hub-context stranger")
        .await?;
    output.refused(
        1,
        &[
            "you may not let a cluster join",
            "create memberclusters.runnel.dev",
        ],
    )?;
    let output = stage.runnel("join eu-1 --context stranger").await?;
    output.refused(
        1,
        &[
            "you may not install the agent on the member",
            "create deployments.apps",
        ],
    )?;
    let output = stage.runnel("status --context stranger").await?;
    output.refused(
        1,
        &[
            "cannot list resource \"distributionrules\"",
            "ask its administrator",
        ],
    )?;

    // Members and hubs that cannot be reached.
    let output = stage.runnel("join eu-1 --context nowhere").await?;
    output.refused(
        1,
        &[
            "the API server of the member (context nowhere",
            "cannot be reached",
            "nothing listens there",
        ],
    )?;
    ensure!(
        read(&cluster, "member eu-1").await?.is_null(),
        "a member was made for a cluster that is not reached"
    );
    stage
        .runnel("join eu-1 --context member")
        .await?
        .refused(1, &["advertises no address", "--advertise HOST:PORT"])?;
    the_hub_is_not_reached(&stage).await?;
    let output = stage.runnel("unjoin eu-1").await?;
    output.refused(
        1,
        &[
            "eu-1 is not connected",
            "nothing was changed",
            "unjoin eu-1 --force",
        ],
    )?;
    let output = stage
        .runnel("unjoin eu-1 --force --yes --context member --hub-context hub")
        .await?
        .ok()?;
    ensure!(
        output.contains("nothing in the state of the hub")
            && output.contains("The agent is uninstalled"),
        "{output}"
    );

    // A rule without a running hub.
    nothing_hangs(&stage, &cluster).await
}

async fn the_hub_is_not_reached(stage: &Stage) -> Result<()> {
    // No server; a firewall that drops packets (connections stay in the queue of a server that
    // never accepts); another server.
    let closed = ports::free()?;
    let output = stage
        .runnel(&format!(
            "join eu-1 --context member --timeout 2s --advertise 127.0.0.1:{closed}"
        ))
        .await?;
    output.refused(
        3,
        &[
            &format!("the hub's address 127.0.0.1:{closed} refuses connections"),
            "--advertise HOST:PORT",
        ],
    )?;
    let silent = TcpListener::bind("127.0.0.1:0")?;
    let address = silent.local_addr()?;
    let output = stage
        .runnel(&format!(
            "join eu-1 --context member --timeout 2s --advertise {address}"
        ))
        .await?;
    output.refused(
        3,
        &[
            &format!("the hub's address {address} does not answer"),
            "firewall",
            "there is no pod",
        ],
    )?;
    let other = format!(
        "join eu-1 --context member --timeout 2s --advertise {}",
        stage.server("hub")?
    );
    stage
        .runnel(&other)
        .await?
        .refused(3, &["is not this hub", "pass TLS through"])?;
    let output = stage
        .runnel("join eu-1 --context member --timeout 2s --advertise no-such-host.invalid:8443")
        .await?;
    output.refused(3, &["no-such-host.invalid:8443", "DNS"])?;
    let output = stage.runnel("doctor").await?;
    ensure!(
        output.code == 1 && output.out.contains("fail  eu-1 has never connected"),
        "{output:?}"
    );
    Ok(())
}

async fn nothing_hangs(
    stage: &Stage,
    cluster: &runnel_tests::control_plane::ControlPlane,
) -> Result<()> {
    let rule = "{apiVersion: runnel.dev/v1alpha1, kind: DistributionRule, metadata: {name: stuck, namespace: default, \
                finalizers: [runnel.dev/copies]}, spec: {sources: [{resources: [configmaps], names: [a]}], clusters: {all: true}}}";
    cluster
        .kubectl_stdin(&["apply", "--server-side", "-f", "-"], rule)
        .await?;
    // Without a terminal it asks nobody, and a dry run changes nothing.
    stage
        .runnel("uninstall --copies=keep")
        .await?
        .refused(2, &["no terminal", "--yes"])?;
    let output = stage
        .runnel("uninstall --copies=keep --dry-run")
        .await?
        .ok()?;
    ensure!(
        output.contains("1 rules; their 0 copies are kept")
            && output.contains("nothing was changed"),
        "{output}"
    );
    let output = stage
        .runnel("uninstall --copies=keep --timeout 1s --yes")
        .await?;
    output.refused(3, &["not deleted within", "default/stuck", "--force"])?;
    let output = stage
        .runnel("uninstall --copies=keep --timeout 10s --force --yes")
        .await?;
    ensure!(
        output.code == 0
            && output
                .err
                .contains("warning: the finalizer of rule default/stuck is removed by force"),
        "{output:?}"
    );
    ensure!(
        read(cluster, "crd memberclusters.runnel.dev")
            .await?
            .is_null(),
        "the CRDs are still there"
    );
    ensure!(
        stage
            .runnel("uninstall --copies=keep --yes")
            .await?
            .ok()?
            .contains("There was no release runnel-hub")
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_complete_the_command_line() -> Result<()> {
    let stage = Stage::new(&[]).await?;
    for shell in ["bash", "zsh", "fish", "powershell"] {
        let output = stage.runnel(&format!("completion {shell}")).await?.ok()?;
        ensure!(
            output.contains("kubectl-runnel") && output.contains("unjoin"),
            "{shell}: {output}"
        );
    }
    ensure!(
        stage
            .runnel("completion kubectl")
            .await?
            .ok()?
            .starts_with("#!/bin/sh\n")
    );
    let output = stage
        .runnel("__complete -- uninstall --copies d")
        .await?
        .ok()?;
    ensure!(
        output == "delete\tThey are removed from every member\n:4\n",
        "{output}"
    );
    let output = stage
        .runnel("__complete -- members --context no-such-context n")
        .await?
        .ok()?;
    ensure!(output == ":4\n", "a hub that cannot be reached: {output}");
    let output = stage.runnel("version --client").await?.ok()?;
    ensure!(
        output == format!("Client: {}\n", env!("CARGO_PKG_VERSION")),
        "{output}"
    );
    Ok(())
}
