//! `kubectl runnel wait` and the syncs that it creates.

use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use runnel_tests::fleet::Fleet;
use runnel_tests::scene::{Draft, Id, RuleDraft, Scene};
use serde_json::{Value, json};
use tokio::process::Command;

/// Edits that are waited for, one after the other.
const EDITS: usize = 8;

/// Runs `kubectl runnel wait`, and returns its exit code with all that it printed.
async fn wait(fleet: &Fleet, words: &str) -> Result<(i32, String)> {
    let output = Command::new(fleet.binaries().folder.join("kubectl-runnel"))
        .arg("wait")
        .args(words.split_whitespace())
        .arg("--kubeconfig")
        .arg(fleet.hub().kubeconfig())
        .env_remove("KUBECONFIG")
        .stdin(Stdio::null())
        .output()
        .await?;
    let printed = [&output.stdout[..], &output.stderr]
        .map(String::from_utf8_lossy)
        .concat();
    Ok((output.status.code().context("a signal")?, printed))
}

async fn passes(fleet: &Fleet, words: &str) -> Result<String> {
    let (code, printed) = wait(fleet, words).await?;
    ensure!(code == 0, "{words}: exit code {code}: {printed}");
    Ok(printed)
}

async fn times_out(fleet: &Fleet, words: &str, named: &[&str]) -> Result<()> {
    let (code, printed) = wait(fleet, words).await?;
    ensure!(code == 3, "{words}: exit code {code}: {printed}");
    for text in named {
        ensure!(printed.contains(text), "{words}: no {text}: {printed}");
    }
    Ok(())
}

async fn edit(scene: &Scene, name: &str, value: &str) -> Result<()> {
    let id = Id::config_map("shop", name);
    scene
        .hub
        .change(&id, json!({"data": {"color": value}}))
        .await?;
    Ok(())
}

/// Fails unless every member has the value now.
async fn everywhere(scene: &Scene, fleet: &Fleet, id: &Id, value: &str) -> Result<()> {
    for number in 1..=fleet.size() {
        let copy = scene.member(number).get(id).await?;
        ensure!(copy["data"]["color"] == value, "member {number}: {copy}");
    }
    Ok(())
}

/// These pause the hub, so they have a fleet of their own.
#[tokio::test]
async fn wait_ends_when_every_member_has_the_last_edit() -> Result<()> {
    let fleet = super::started().await?;
    let scene = Scene::of(&fleet).await?;
    scene.hub_namespaces(&["shop"]).await?;
    scene.member_namespaces(&["shop"]).await?;
    let copy = Id::config_map("shop", "settings");
    let source = Draft::config_map("shop", "settings")
        .data("color", "first")
        .label("rule", "settings");
    scene.hub.make(&source.json()).await?;
    let rule = RuleDraft::new("shop", "settings")
        .labeled("rule", "settings")
        .everywhere();
    scene.hub.make(&rule.json()).await?;
    let printed = passes(&fleet, "shop/settings").await?;
    ensure!(
        printed.contains("the newest sources are applied (2 copies in 2 clusters)"),
        "{printed}"
    );
    everywhere(&scene, &fleet, &copy, "first").await?;
    for number in 0..EDITS {
        let value = format!("edit {number}");
        edit(&scene, "settings", &value).await?;
        passes(&fleet, "-n shop settings").await?;
        everywhere(&scene, &fleet, &copy, &value).await?;
    }
    deleted_source_is_waited_for(&scene, &fleet).await?;
    cluster_rule_is_waited_for(&scene, &fleet).await?;
    failures_are_named(&scene, &fleet).await?;
    strangers_are_refused(&fleet).await?;
    paused_hub_is_named(&scene, &fleet).await
}

async fn deleted_source_is_waited_for(scene: &Scene, fleet: &Fleet) -> Result<()> {
    let more = Draft::config_map("shop", "more")
        .data("a", "b")
        .label("rule", "settings");
    scene.hub.make(&more.json()).await?;
    passes(fleet, "shop/settings").await?;
    let id = Id::config_map("shop", "more");
    scene.hub.delete(&id).await?;
    passes(fleet, "shop/settings").await?;
    for number in 1..=fleet.size() {
        let found = scene.member(number).get(&id).await;
        ensure!(
            found.is_err(),
            "member {number} has a copy of a deleted source"
        );
    }
    Ok(())
}

async fn cluster_rule_is_waited_for(scene: &Scene, fleet: &Fleet) -> Result<()> {
    let source = Draft::config_map("shop", "banner").data("color", "red");
    scene.hub.make(&source.json()).await?;
    let rule = json!({
        "apiVersion": "runnel.dev/v1alpha1", "kind": "ClusterDistributionRule", "metadata": {"name": "banner"},
        "spec": {
            "sources": [{"resources": ["configmaps"], "names": ["banner"], "namespaces": ["sho*"]}],
            "clusters": {"all": true},
        },
    });
    scene.hub.make(&rule).await?;
    let copy = Id::config_map("shop", "banner");
    passes(fleet, "cdrule/banner").await?;
    everywhere(scene, fleet, &copy, "red").await?;
    edit(scene, "banner", "green").await?;
    passes(fleet, "cdrule/banner").await?;
    everywhere(scene, fleet, &copy, "green").await
}

async fn failures_are_named(scene: &Scene, fleet: &Fleet) -> Result<()> {
    let foreign = Draft::config_map("shop", "taken").data("a", "stranger");
    scene.member(2).make(&foreign.json()).await?;
    let source = Draft::config_map("shop", "taken")
        .data("a", "b")
        .label("rule", "taken");
    scene.hub.make(&source.json()).await?;
    let rule = |name: &str| RuleDraft::new("shop", name).labeled("rule", name);
    scene.hub.make(&rule("taken").everywhere().json()).await?;
    let taken = Id::rule("shop", "taken");
    for (cluster, state, reason) in [
        ("member-1", "Ready", "AllApplied"),
        ("member-2", "Failed", "Conflict"),
    ] {
        let entry = scene.hub.wait_for_cluster(&taken, cluster, state, reason);
        entry.await?;
    }
    times_out(
        fleet,
        "shop/taken --timeout 5s",
        &["1 of 2 clusters are missing", "member-2: Failed Conflict"],
    )
    .await?;
    scene.hub.make(&rule("nothing").everywhere().json()).await?;
    let nothing = Id::rule("shop", "nothing");
    scene.hub.wait_ready(&nothing, "False", "NoSources").await?;
    let named = ["the rule has no copies", "NoSources"];
    times_out(fleet, "shop/nothing --timeout 3s", &named).await?;
    let (code, printed) = wait(fleet, "shop/absent").await?;
    ensure!(code == 1 && printed.contains("there is no"), "{printed}");
    Ok(())
}

/// Every role that may get deliveries may create syncs. A user without a role may not.
async fn strangers_are_refused(fleet: &Fleet) -> Result<()> {
    let hub = fleet.hub();
    for role in ["view", "edit", "admin"] {
        let role = format!("runnel-hub-{role}");
        let printed = hub
            .kubectl(&["get", "clusterrole", &role, "-o", "json"])
            .await?;
        let printed: Value = serde_json::from_str(&printed)?;
        let has = |verb: &str, resource: &str| {
            let lists = |rule: &Value, field: &str, value: &str| {
                let values = rule[field].as_array().into_iter().flatten();
                values.into_iter().any(|one| one == value)
            };
            let mut rules = printed["rules"].as_array().into_iter().flatten();
            rules.any(|rule| lists(rule, "resources", resource) && lists(rule, "verbs", verb))
        };
        ensure!(
            has("get", "deliveries") && has("create", "rulesyncs"),
            "{role}: {printed}"
        );
    }
    hub.kubectl(&["create", "serviceaccount", "eve", "-n", "shop"])
        .await?;
    let eve = hub.token_kubeconfig("shop", "eve").await?;
    let client = runnel_tests::control_plane::client_of(&eve).await?;
    let object = json!({
        "apiVersion": "view.runnel.dev/v1alpha1", "kind": "RuleSync", "metadata": {}, "spec": {"rule": "settings"},
    });
    let request = http::Request::post("/apis/view.runnel.dev/v1alpha1/namespaces/shop/rulesyncs")
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(serde_json::to_vec(&object)?)?;
    let refused = client.request::<Value>(request).await;
    let refused = refused.err().context("eve may create syncs")?.to_string();
    ensure!(refused.contains("cannot create"), "{refused}");
    Ok(())
}

/// While the hub does nothing, its last state says that all is well.
async fn paused_hub_is_named(scene: &Scene, fleet: &Fleet) -> Result<()> {
    fleet.hub_process().pause()?;
    edit(scene, "settings", "while paused").await?;
    // The API server tells of the hub's silence in its own words, at first and later.
    let named = ["settings is not everywhere", "no hub leads: the Lease"];
    // Longer than the Lease lasts.
    times_out(fleet, "shop/settings --timeout 20s", &named).await?;
    fleet.hub_process().resume()?;
    passes(fleet, "shop/settings").await?;
    let copy = Id::config_map("shop", "settings");
    everywhere(scene, fleet, &copy, "while paused").await
}
