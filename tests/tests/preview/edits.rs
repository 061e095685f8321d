//! What a plan lists of an edit: the fields that change, directories, deletes, grants and member clusters.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use runnel_tests::fleet::Fleet;
use runnel_tests::scene::{Draft, Id, RuleDraft, SOON, Scene};
use runnel_tests::wait::eventually;
use serde_json::{Value, json};
use tokio::process::Command;

use super::{ALONE, fleet, objects, settled};

const HOME: &str = "edits";
/// A value that no answer may contain.
const CANARY: &str = "canary-5d27";
/// ConfigMaps that the rule selects beside its Secret: above the limit of removals.
const SOURCES: usize = 12;

/// `kubectl runnel plan` with these arguments: its exit code, and its answer as JSON.
pub(super) async fn plan(fleet: &Fleet, arguments: &[&str]) -> Result<(i32, Value)> {
    let mut command = Command::new(fleet.binaries().folder.join("kubectl-runnel"));
    command.arg("--kubeconfig").arg(fleet.hub().kubeconfig());
    command
        .args(["plan", "-o", "json"])
        .args(arguments)
        .kill_on_drop(true);
    let output = tokio::time::timeout(SOON, command.output())
        .await
        .context("the plugin does not end")??;
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    ensure!(
        !out.contains(CANARY) && !err.contains(CANARY),
        "it shows a value of a Secret: {out}{err}"
    );
    let value = serde_json::from_str(&out).with_context(|| format!("no JSON: {out}{err}"))?;
    Ok((output.status.code().unwrap_or(-1), value))
}

pub(super) fn file(folder: &Path, name: &str, object: &Value) -> Result<String> {
    let path = folder.join(name);
    std::fs::write(&path, object.to_string())?;
    Ok(path.display().to_string())
}

fn grant(resources: &[&str]) -> Value {
    json!({
        "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionGrant", "metadata": {"name": "edits"},
        "spec": {
            "rules": {"namespaces": {"names": [HOME]}}, "resources": resources, "clusters": {"all": true},
            "namespaces": {"all": true},
        },
    })
}

async fn set_up(scene: &Scene) -> Result<Value> {
    let everything = Id::of(&json!({
        "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionGrant", "metadata": {"name": "everything"},
    }))?;
    let some = json!({"namespaces": {"selector": {"matchLabels": {"open": "true"}}}});
    scene
        .hub
        .json_patch(
            &everything,
            json!([{"op": "replace", "path": "/spec/rules", "value": some}]),
        )
        .await?;
    scene.hub.make(&grant(&["configmaps", "secrets"])).await?;
    scene.hub_namespaces(&[HOME]).await?;
    scene.member_namespaces(&[HOME]).await?;
    for number in 0..SOURCES {
        scene
            .hub
            .make(
                &Draft::config_map(HOME, &format!("c{number}"))
                    .data("color", "blue")
                    .json(),
            )
            .await?;
    }
    scene
        .hub
        .make(&Draft::secret(HOME, "login").data("password", CANARY).json())
        .await?;
    scene
        .hub
        .make(&Draft::config_map(HOME, "extra").data("k", "v").json())
        .await?;
    let rule = RuleDraft::new(HOME, "all")
        .named(&["c*", "login"])
        .everywhere()
        .json();
    scene.hub.make(&rule).await?;
    let gold = RuleDraft::new(HOME, "gold").named(&["extra"]);
    let gold = gold
        .with(
            "clusters",
            json!({"selector": {"matchLabels": {"tier": "gold"}}}),
        )
        .json();
    scene.hub.make(&gold).await?;
    settled(&scene.hub, &Id::of(&rule)?).await?;
    Ok(rule)
}

/// The lines of the copy of an object in the first member.
pub(super) fn diff(plan: &Value, copy: &str) -> Vec<String> {
    let rows = plan["copies"].as_array().into_iter().flatten();
    let row = rows
        .clone()
        .find(|row| row["cluster"] == "member-1" && row["copy"] == copy);
    let lines = row
        .into_iter()
        .flat_map(|row| row["diff"].as_array().into_iter().flatten());
    lines
        .filter_map(|line| line.as_str().map(ToOwned::to_owned))
        .collect()
}

#[tokio::test]
async fn plan_shows_diffs_deletes_grants_and_members() -> Result<()> {
    let fleet = fleet().await?;
    let _alone = ALONE.lock().await;
    let scene = Scene::of(fleet).await?;
    let rule = set_up(&scene).await?;
    let before = objects(&scene, HOME).await?;
    let folder = fleet.hub().folder().join("edits");
    std::fs::create_dir_all(&folder)?;

    // A delete of the rule is deliberate: no limit blocks it.
    let (code, value) = plan(fleet, &["--delete", "edits/all"]).await?;
    let deleted = &value["plans"][0];
    ensure!(
        code == 0 && deleted["delete"] == true,
        "{code}: {deleted:#}"
    );
    ensure!(
        deleted["summary"] == json!({"remove": 2 * (SOURCES + 1)}),
        "{}",
        deleted["summary"]
    );

    // A grant that no longer has a kind removes more than the limit allows.
    let edited = file(&folder, "grant.json", &grant(&["secrets"]))?;
    let (code, value) = plan(fleet, &["-f", &edited]).await?;
    let of_grant = &value["plans"][0];
    ensure!(
        code == 4 && of_grant["moreRules"] == 0,
        "{code}: {of_grant:#}"
    );
    let summary = |rule: &str| {
        let rules = of_grant["rules"].as_array().into_iter().flatten();
        rules
            .filter(|one| one["rule"] == rule)
            .map(|one| one["summary"].clone())
            .next()
    };
    let all = summary("DistributionRule edits/all").context("the rule is missing")?;
    ensure!(
        all == json!({"blocked": 2 * SOURCES, "unchanged": 2}),
        "{all}"
    );
    let (code, value) = plan(fleet, &["-f", &edited, "--delete"]).await?;
    let copies_there = value["plans"][0]["rules"][0]["summary"]["blocked"].clone();
    ensure!(
        code == 4 && copies_there == 2 * (SOURCES + 1),
        "{code}: {copies_there}"
    );

    // A member cluster with a label that a rule selects.
    let member = json!({
        "apiVersion": "runnel.dev/v1alpha1", "kind": "MemberCluster",
        "metadata": {"name": "member-2", "labels": {"tier": "gold"}},
    });
    let (code, value) = plan(fleet, &["-f", &file(&folder, "member.json", &member)?]).await?;
    let rules = value["plans"][0]["rules"].as_array().context("no rules")?;
    let gold = rules
        .iter()
        .find(|one| one["rule"] == "DistributionRule edits/gold")
        .context("the rule is missing")?;
    ensure!(gold["summary"] == json!({"create": 1}), "{code}: {gold:#}");
    ensure!(gold["clusters"][0]["name"] == "member-2", "{gold:#}");
    ensure!(
        gold["copies"][0]["diff"] == json!(["+ /data/k: \"v\""]),
        "{gold:#}"
    );

    // Sources that changed while the rule was suspended: the plan of a directory shows what it would bring.
    scene
        .hub
        .change(&Id::of(&rule)?, json!({"spec": {"suspend": true}}))
        .await?;
    settled(&scene.hub, &Id::of(&rule)?).await?;
    let config_map = Id::config_map(HOME, "c0");
    scene
        .hub
        .change(
            &config_map,
            json!({"data": {"color": "red\n", "new": "x".repeat(99)}}),
        )
        .await?;
    let secret = Draft::secret(HOME, "login")
        .data("password", &format!("{CANARY}-2"))
        .data("pin", CANARY)
        .json();
    scene
        .hub
        .change(&Id::secret(HOME, "login"), json!({"data": secret["data"]}))
        .await?;
    let rules = folder.join("rules");
    std::fs::create_dir_all(rules.join("more"))?;
    let mut resumed = rule.clone();
    resumed["spec"]["suspend"] = json!(false);
    file(&rules, "a.yaml", &resumed)?;
    file(&rules, "ignored.txt", &json!("{"))?;
    let other = RuleDraft::new(HOME, "other")
        .named(&["extra"])
        .everywhere()
        .json();
    file(&rules.join("more"), "b.json", &other)?;
    let directory = rules.display().to_string();
    let (_, value) = plan(fleet, &["-f", &directory]).await?;
    ensure!(
        value["plans"].as_array().map(Vec::len) == Some(1),
        "{value:#}"
    );
    let lines = async || {
        let (_, value) = plan(fleet, &["-R", "-f", &directory]).await?;
        ensure!(
            value["plans"].as_array().map(Vec::len) == Some(2),
            "{value:#}"
        );
        let of_rule = &value["plans"][0];
        let (config_map, secret) = (
            diff(of_rule, "configmaps/edits/c0"),
            diff(of_rule, "secrets/edits/login"),
        );
        Ok((config_map.len() == 2 && secret.len() == 2).then_some((config_map, secret)))
    };
    let (config_map, secret) = eventually("a diff of both", SOON, lines).await?;
    let cut = "x".repeat(40);
    let expected = [
        "~ /data/color: \"blue\" -> \"red\\n\"".to_owned(),
        format!("+ /data/new: \"{cut}\"..."),
    ];
    ensure!(config_map == expected, "{config_map:?}");
    ensure!(secret == ["~ /data/password", "+ /data/pin"], "{secret:?}");
    ensure!(
        objects(&scene, HOME).await? == before,
        "a plan changed something"
    );
    for name in ["all", "gold"] {
        scene.hub.delete(&Id::rule(HOME, name)).await?;
    }
    Ok(())
}
