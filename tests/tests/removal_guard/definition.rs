//! The deletion of a kind's CRD deletes every rule without naming one.

use anyhow::{Context, Result, ensure};
use runnel_api::crds;
use runnel_tests::fleet::{Fleet, FleetOptions};
use runnel_tests::scene::{Draft, Id, RuleDraft, SOON, Scene, condition};
use runnel_tests::wait::eventually;
use serde_json::{Value, json};

const HOME: &str = "defined";
const SOURCES: usize = 12;
const TARGETS: [&str; 4] = ["first", "second", "third", "cluster"];
const DEFINITION: &str = "distributionrules.runnel.dev";

struct Stage {
    fleet: Fleet,
    scene: Scene,
}

impl Stage {
    async fn new() -> Result<Self> {
        let fleet = Fleet::start(FleetOptions::default()).await?;
        let scene = Scene::of(&fleet).await?;
        scene.hub_namespaces(&[HOME]).await?;
        scene.member_namespaces(&TARGETS).await?;
        for number in 0..SOURCES {
            scene
                .hub
                .make(
                    &Draft::config_map(HOME, &format!("s{number}"))
                        .label("set", "a")
                        .json(),
                )
                .await?;
        }
        Ok(Self { fleet, scene })
    }

    /// A rule that sends all sources into the namespace of its name.
    async fn make(&self, name: &str) -> Result<()> {
        let draft = RuleDraft::new(HOME, name)
            .labeled("set", "a")
            .everywhere()
            .into(&[name]);
        // The kind is served a moment after its definition is established.
        self.scene.hub.make_soon(&draft.json()).await?;
        self.scene
            .hub
            .all_applied(&Id::rule(HOME, name), SOURCES)
            .await
            .map(drop)
    }

    async fn copies(&self, target: &str) -> Result<usize> {
        let all = self
            .scene
            .member(1)
            .list(&Id::config_map(target, ""))
            .await?;
        Ok(all
            .iter()
            .filter(|object| object["metadata"]["labels"]["set"] == "a")
            .count())
    }

    /// Waits until everything of a rule is blocked; returns the digest.
    async fn is_blocked(&self, name: &str) -> Result<String> {
        let rule = Id::rule(HOME, name);
        let observed = self.scene.hub.sees("held", &rule, |rule| {
            let blocked = condition(rule, "ApprovalRequired")?;
            let removal = &rule["status"]["pendingApproval"];
            ensure!(
                blocked["status"] == "True" && removal["copies"] == SOURCES,
                "{blocked}"
            );
            ensure!(
                rule["metadata"]["deletionTimestamp"].is_string(),
                "it is not being deleted"
            );
            Ok(())
        });
        let observed = observed.await?;
        let there = self.copies(name).await?;
        ensure!(there == SOURCES, "{there} copies are left of {name}");
        Ok(observed["status"]["pendingApproval"]["digest"]
            .as_str()
            .context("no digest")?
            .to_owned())
    }

    async fn approve(&self, name: &str, digest: &str) -> Result<()> {
        let rule = Id::rule(HOME, name);
        self.scene
            .hub
            .change(
                &rule,
                json!({"metadata": {"annotations": {"runnel.dev/approve": digest}}}),
            )
            .await?;
        eventually("the approved copies to be gone", SOON, async || {
            Ok((self.copies(name).await? == 0).then_some(()))
        })
        .await
    }
}

#[tokio::test]
async fn deletion_of_a_definition_waits_for_approval() -> Result<()> {
    let stage = Stage::new().await?;
    let (hub, cluster) = (&stage.scene.hub, stage.fleet.hub());
    for name in &TARGETS[..3] {
        stage.make(name).await?;
    }
    let source = json!({"resources": ["configmaps"], "namespaces": [HOME], "selector": {"matchLabels": {"set": "a"}}});
    let draft = RuleDraft::cluster_scoped("cluster")
        .source(source)
        .everywhere()
        .into(&["cluster"]);
    hub.make(&draft.json()).await?;
    hub.all_applied(&Id::cluster_rule("cluster"), SOURCES)
        .await?;

    cluster
        .kubectl(&["delete", "crd", DEFINITION, "--wait=false"])
        .await?;
    let mut digests = vec![];
    for name in &TARGETS[..3] {
        digests.push(stage.is_blocked(name).await?);
    }
    // A rule of the other kind is deleted as ever.
    hub.delete(&Id::cluster_rule("cluster")).await?;
    hub.lacks(&Id::cluster_rule("cluster")).await?;
    ensure!(stage.copies("cluster").await? == 0);

    // A hub that starts now detects it as well; the CRD waits for its last rule.
    stage.fleet.kill_hub()?;
    stage.fleet.start_hub().await?;
    stage.fleet.connected(1).await?;
    for (name, digest) in TARGETS[..3].iter().zip(&digests) {
        ensure!(
            stage.is_blocked(name).await? == *digest,
            "another digest of {name} after a restart"
        );
    }
    for (number, name) in TARGETS[..3].iter().enumerate() {
        ensure!(
            !cluster
                .kubectl(&["get", "crd", DEFINITION])
                .await?
                .is_empty()
        );
        stage.approve(name, &digests[number]).await?;
        for other in &TARGETS[number + 1..3] {
            ensure!(
                stage.copies(other).await? == SOURCES,
                "{other} went with {name}"
            );
        }
    }
    eventually("the CRD to be gone", SOON, async || {
        let there = cluster
            .kubectl(&["get", "crd", DEFINITION, "--ignore-not-found", "-o", "name"])
            .await?;
        Ok(there.is_empty().then_some(()))
    })
    .await?;

    // The CRD and its rules exist again, and a deleted rule is removed.
    let all = crds();
    let remade = all
        .iter()
        .find(|one| one.metadata.name.as_deref() == Some(DEFINITION))
        .context("no CRD")?;
    let apply = ["apply", "--server-side", "-f", "-"];
    cluster
        .kubectl_stdin(&apply, &serde_json::to_string(remade)?)
        .await?;
    cluster
        .kubectl(&["wait", "--for=condition=Established", "crd", DEFINITION])
        .await?;
    stage.make("first").await?;
    let rule = Id::rule(HOME, "first");
    hub.delete(&rule).await?;
    hub.lacks(&rule).await?;
    ensure!(stage.copies("first").await? == 0, "its copies are left");

    // Without the right to read it a hub starts and works all the same.
    let mut role: Value = serde_json::from_str(
        &cluster
            .kubectl(&["get", "clusterrole", "runnel-hub", "-o", "json"])
            .await?,
    )?;
    let rights = role["rules"].as_array_mut().context("no rules")?;
    let mut of_crds = rights
        .iter_mut()
        .filter(|right| right["apiGroups"] == json!(["apiextensions.k8s.io"]));
    let names = of_crds.find_map(|right| right["resourceNames"].as_array_mut());
    let names = names.context("no right on CRDs")?;
    let before = names.len();
    names.retain(|name| name != DEFINITION);
    ensure!(names.len() + 1 == before, "{names:?}");
    cluster
        .kubectl_stdin(&["replace", "-f", "-"], &role.to_string())
        .await?;
    stage.fleet.kill_hub()?;
    stage.fleet.start_hub().await?;
    stage.fleet.connected(1).await?;
    stage.make("second").await?;
    let log = std::fs::read_to_string(stage.fleet.hub_log())?;
    ensure!(
        log.contains("cannot watch distributionrules.runnel.dev: forbidden"),
        "it does not say what is missing"
    );
    Ok(())
}
