//! Plans: compares `kubectl runnel plan` of a rule with the result of saving it.

#[path = "preview/bundles.rs"]
mod bundles;
#[path = "preview/cases.rs"]
mod cases;
#[path = "preview/dry_run.rs"]
mod dry_run;
#[path = "preview/edits.rs"]
mod edits;
#[path = "preview/enforcement.rs"]
mod enforcement;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use futures::stream::{self, StreamExt, TryStreamExt};
use runnel_tests::fleet::{Fleet, FleetOptions};
use runnel_tests::scene::{
    Draft, HUB_LABEL, Id, RETAINED, RULE, SOON, Scene, TestCluster, condition,
};
use runnel_tests::wait::{eventually, steadily};
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::sync::{Mutex, OnceCell};

use cases::Case;

/// Cases that are under way at once.
const AT_ONCE: usize = 6;

static FLEET: OnceCell<Fleet> = OnceCell::const_new();
/// The lock for exclusive use of the fleet, because changes of a cluster affect all namespaces.
static ALONE: Mutex<()> = Mutex::const_new(());

/// Two members whose policies allow overwriting and the creation of namespaces.
async fn fleet() -> Result<&'static Fleet> {
    let agent_values = json!({"policy": {"overwrite": true, "createNamespaces": true}});
    let options = FleetOptions {
        members: 2,
        views: true,
        agent_values,
        ..FleetOptions::default()
    };
    FLEET.get_or_try_init(|| Fleet::start(options)).await
}

/// The exit code and the output of `kubectl runnel plan`.
async fn plan(
    fleet: &Fleet,
    kubeconfig: &Path,
    rule: &Value,
    more: &[&str],
) -> Result<(i32, String, String)> {
    let name = format!(
        "{}-{}.json",
        rule["metadata"]["name"].as_str().unwrap_or("x"),
        rule["spec"].to_string().len()
    );
    let home = rule["metadata"]["namespace"].as_str().unwrap_or("cluster");
    let file = fleet.hub().folder().join(format!("plan-{home}-{name}"));
    std::fs::write(&file, rule.to_string())?;
    let mut command = Command::new(fleet.binaries().folder.join("kubectl-runnel"));
    command
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .args(["plan", "-f"])
        .arg(&file);
    command.args(more).kill_on_drop(true);
    let output = tokio::time::timeout(SOON, command.output())
        .await
        .context("the plugin does not end")??;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok((
        output.status.code().unwrap_or(-1),
        text(&output.stdout),
        text(&output.stderr),
    ))
}

async fn planned(fleet: &Fleet, rule: &Value) -> Result<Value> {
    let (code, out, err) = plan(fleet, fleet.hub().kubeconfig(), rule, &["-o", "json"]).await?;
    ensure!(code == 0 || code == 4, "exit code {code}: {err}");
    let value: Value = serde_json::from_str(&out).context("no JSON")?;
    Ok(value["plans"][0].clone())
}

/// Cluster and copy.
type Name = (String, String);

/// What there is in the members in the namespaces of a case: metadata by name.
async fn objects(scene: &Scene, home: &str) -> Result<BTreeMap<Name, Value>> {
    let mut all = BTreeMap::new();
    for member in &scene.members {
        for (like, resource) in [
            (Id::config_map("", ""), "configmaps"),
            (Id::secret("", ""), "secrets"),
        ] {
            for object in member.list(&like.everywhere()).await? {
                let metadata = &object["metadata"];
                let text = |field: &str| metadata[field].as_str().unwrap_or_default().to_owned();
                let (namespace, name) = (text("namespace"), text("name"));
                if (namespace == home || namespace.starts_with(&format!("{home}-")))
                    && name != "kube-root-ca.crt"
                {
                    all.insert(
                        (
                            member.name().to_owned(),
                            format!("{resource}/{namespace}/{name}"),
                        ),
                        metadata.clone(),
                    );
                }
            }
        }
    }
    Ok(all)
}

fn is_copy(metadata: &Value) -> bool {
    metadata["labels"][HUB_LABEL].is_string()
}

/// Returns what happened to one object.
fn became(before: Option<&Value>, after: Option<&Value>) -> &'static str {
    match (before, after) {
        (None, None) => "absent",
        (None, Some(_)) => "made",
        (Some(_), None) => "gone",
        (Some(before), Some(after)) if before["uid"] != after["uid"] => "another",
        (Some(before), Some(after)) => match (is_copy(before), is_copy(after)) {
            _ if before["resourceVersion"] == after["resourceVersion"] => "same",
            (true, true) if before["annotations"][RULE] != after["annotations"][RULE] => {
                "other rule"
            }
            (true, true) => "written",
            (false, true) => "taken over",
            (true, false) if after["annotations"][RETAINED].is_string() => "retained",
            _ => "changed by somebody",
        },
    }
}

/// Returns the expected results for an outcome of the plan.
fn expected(verdict: &str, before: Option<&Value>, rule: &str, is: &str) -> Result<&'static str> {
    let takes_part = |before: &Value| before["annotations"][RULE] != rule;
    Ok(match verdict {
        "create" => "made",
        "change" if before.is_some_and(takes_part) => "other rule",
        "change" => "written",
        "takeOver" => "taken over",
        "adoptIfEqual" if is == "taken over" => "taken over",
        "adoptIfEqual" => "same",
        "remove" => "gone",
        "retain" => "retained",
        "handOver" => "other rule",
        "unchanged" => "same",
        "blocked" | "conflict" | "denied" | "refused" | "wait" | "noop" if before.is_some() => {
            "same"
        }
        "blocked" | "conflict" | "denied" | "refused" | "wait" | "noop" => "absent",
        other => bail!("no word of a plan: {other}"),
    })
}

/// Compares the plan with what has happened so far; returns the differences.
async fn compare(
    scene: &Scene,
    case: &Case,
    plan: &Value,
    before: &BTreeMap<Name, Value>,
) -> Result<()> {
    let after = objects(scene, &case.home()).await?;
    let rule = Id::of(&case.rule)?;
    let mut rows: BTreeMap<Name, &str> = BTreeMap::new();
    for row in plan["copies"].as_array().context("no copies")? {
        let text = |field: &str| row[field].as_str().unwrap_or_default();
        rows.insert(
            (text("cluster").to_owned(), text("copy").to_owned()),
            text("verdict"),
        );
    }
    let mut unequal = 0;
    let names: BTreeSet<&Name> = rows
        .keys()
        .chain(before.keys())
        .chain(after.keys())
        .collect();
    for name in names {
        let is = became(before.get(name), after.get(name));
        match rows.get(name) {
            Some(verdict) => {
                let should = expected(verdict, before.get(name), &rule.path(), is)?;
                unequal += usize::from(*verdict == "adoptIfEqual" && is == "same");
                ensure!(
                    is == should,
                    "{name:?}: the plan says {verdict}, so it should be {should}, and is {is}"
                );
            }
            None => ensure!(
                matches!(is, "same" | "absent"),
                "{name:?}: the plan does not speak of it, and it is {is}"
            ),
        }
    }
    let count = |words: &[&str]| {
        rows.values()
            .filter(|verdict| words.contains(verdict))
            .count()
    };
    let object = scene.hub.get(&rule).await?;
    let (status, summary) = (&object["status"], &object["status"]["summary"]);
    ensure!(
        status["observedGeneration"] == object["metadata"]["generation"],
        "the rule is not looked at yet"
    );
    let number =
        |value: &Value| usize::try_from(value.as_u64().unwrap_or_default()).unwrap_or(usize::MAX);
    let failed = count(&["conflict", "denied", "refused"]) + unequal;
    ensure!(
        number(&summary["copiesFailed"]) == failed,
        "{failed} should have failed: {summary}"
    );
    ensure!(
        number(&summary["copiesWaiting"]) == count(&["wait"]),
        "waiting: {summary}"
    );
    let removals = count(&["blocked"]);
    let pending = number(&status["pendingApproval"]["copies"]);
    let needs_approval = condition(&object, "ApprovalRequired").is_ok();
    ensure!(
        pending == removals && needs_approval == (removals > 0),
        "{removals} should wait for approval: {status}"
    );
    Ok(())
}

async fn set_up(scene: &Scene, case: &Case) -> Result<()> {
    let home = case.home();
    let open = if case.granted { "true" } else { "false" };
    scene
        .hub
        .make(&Draft::namespace(&home).label("open", open).json())
        .await?;
    for member in &scene.members {
        for namespace in &case.namespaces {
            member.make(namespace).await?;
        }
    }
    for object in &case.on_hub {
        scene.hub.make(object).await?;
    }
    for (member, object) in &case.in_members {
        scene.member(*member).make(object).await?;
    }
    for rule in &case.before {
        scene.hub.make(rule).await?;
        settled(&scene.hub, &Id::of(rule)?).await?;
    }
    for (number, (id, change)) in case.edits.iter().enumerate() {
        scene.hub.change(id, change.clone()).await?;
        // What comes after an edit of a rule comes under it.
        if id.kind() == "DistributionRule" && number + 1 < case.edits.len() {
            settled(&scene.hub, id).await?;
        }
    }
    if !case.phase.is_empty() {
        let reached = |object: &Value| {
            let rollout = &object["status"]["rollout"];
            ensure!(rollout["phase"] == case.phase, "{rollout}");
            Ok(())
        };
        scene
            .hub
            .sees(case.phase, &Id::of(&case.rule)?, reached)
            .await?;
    }
    Ok(())
}

/// Waits until all copies of a rule are applied.
async fn settled(hub: &TestCluster, rule: &Id) -> Result<()> {
    let applied = |object: &Value| {
        ensure!(
            object["status"]["observedGeneration"] == object["metadata"]["generation"],
            "not looked at"
        );
        let ready = condition(object, "Ready")?;
        ensure!(
            ready["reason"] == "AllApplied" || ready["reason"] == "Suspended",
            "{ready}"
        );
        Ok(())
    };
    hub.sees("all applied", rule, applied).await.map(drop)
}

async fn holds(fleet: &Fleet, scene: &Scene, case: &Case) -> Result<String> {
    set_up(scene, case)
        .await
        .with_context(|| format!("case {}", case.name))?;
    comes_true(fleet, scene, case).await
}

/// Of a prepared case.
async fn comes_true(fleet: &Fleet, scene: &Scene, case: &Case) -> Result<String> {
    let before = objects(scene, &case.home()).await?;
    let plan = planned(fleet, &case.rule)
        .await
        .with_context(|| format!("case {}", case.name))?;
    let summary = plan["summary"].to_string();
    ensure!(
        plan["summary"] == case.summary,
        "case {}: {plan:#}",
        case.name
    );
    ensure!(
        objects(scene, &case.home()).await? == before,
        "case {}: the plan changed something",
        case.name
    );
    let rule = Id::of(&case.rule)?;
    ensure!(
        scene.hub.find(&rule).await?.is_some() == (plan["exists"] == true),
        "case {}: saved?",
        case.name
    );
    match scene.hub.find(&rule).await? {
        Some(_) => {
            let replace = json!([{"op": "replace", "path": "/spec", "value": case.rule["spec"]}]);
            scene.hub.json_patch(&rule, replace).await?;
        }
        None => drop(scene.hub.make(&case.rule).await?),
    }
    let what = format!("case {}: as planned", case.name);
    let same = eventually(&what, SOON, async || {
        compare(scene, case, &plan, &before).await.map(Some)
    })
    .await;
    same.with_context(|| format!("case {}: {plan:#}", case.name))?;
    let stays = async || compare(scene, case, &plan, &before).await;
    steadily(&what, Duration::from_secs(3), stays).await?;
    Ok(format!("{:<40} {summary}", case.name))
}

#[tokio::test]
async fn a_plan_is_what_happens_case_by_case() -> Result<()> {
    let (fleet, cases) = (fleet().await?, cases::all());
    ensure!(cases.len() >= 40, "{}", cases.len());
    let _alone = ALONE.lock().await;
    let scene = Scene::of(fleet).await?;
    scene.lift_fleet_limits().await?;
    // Namespaces without the label have no other grant.
    let everything = json!({"apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionGrant", "metadata": {"name": "everything"}});
    let some = json!([{"op": "replace", "path": "/spec/rules", "value": {"namespaces": {"selector": {"matchLabels": {"open": "true"}}}}}]);
    scene.hub.json_patch(&Id::of(&everything)?, some).await?;
    for grant in cases::grants() {
        scene.hub.make(&grant).await?;
    }
    let scene = &scene;
    // Blocked removals of one rule count for other rules with the same cause: such cases run last,
    // one by one.
    let (blocked, free): (Vec<&Case>, Vec<&Case>) = cases
        .iter()
        .partition(|case| case.summary["blocked"].is_number());
    let mut table: Vec<String> = stream::iter(free)
        .map(|case| holds(fleet, scene, case))
        .buffered(AT_ONCE)
        .try_collect()
        .await?;
    for case in blocked {
        table.push(holds(fleet, scene, case).await?);
        let rule = Id::of(&case.rule)?;
        scene.hub.delete(&rule).await?;
        scene.hub.lacks(&rule).await?;
    }
    println!("{}", table.join("\n"));
    Ok(())
}

/// The state of member-2 in the plan of an unsaved rule.
async fn second(fleet: &Fleet, case: &Case) -> Result<Value> {
    let plan = planned(fleet, &case.rule).await?;
    let clusters = plan["clusters"].as_array().context("no clusters")?;
    clusters
        .iter()
        .find(|cluster| cluster["name"] == "member-2")
        .cloned()
        .context("it does not name member-2")
}

async fn come_true(fleet: &Fleet, scene: &Scene, cases: &[Case]) -> Result<()> {
    for case in cases {
        println!("{}", comes_true(fleet, scene, case).await?);
    }
    Ok(())
}

#[tokio::test]
async fn a_plan_is_what_happens_where_a_cluster_is_cordoned_or_away() -> Result<()> {
    let fleet = fleet().await?;
    let _alone = ALONE.lock().await;
    let scene = Scene::of(fleet).await?;
    scene.lift_fleet_limits().await?;
    let (cordoned, away) = (cases::without_one("cordoned"), cases::without_one("away"));
    for case in cordoned.iter().chain(&away) {
        set_up(&scene, case)
            .await
            .with_context(|| format!("case {}", case.name))?;
    }
    let member = Id::member("member-2");
    scene
        .hub
        .change(&member, json!({"spec": {"cordoned": true}}))
        .await?;
    fleet.condition(2, "Cordoned", "True").await?;
    let answer = second(fleet, &cordoned[0]).await?;
    ensure!(
        answer["message"]
            .as_str()
            .is_some_and(|answer| answer.starts_with("it is cordoned")),
        "{answer}"
    );
    let copies_there = come_true(fleet, &scene, &cordoned).await;
    scene
        .hub
        .change(&member, json!({"spec": {"cordoned": false}}))
        .await?;
    fleet.condition(2, "Cordoned", "").await?;
    copies_there?;
    fleet.kill_agent(2)?;
    let is_away = async || {
        let answer = second(fleet, &away[0]).await?;
        Ok((answer["state"] == "NotConnected").then_some(()))
    };
    eventually("member-2 to be away", SOON, is_away).await?;
    let copies_there = come_true(fleet, &scene, &away).await;
    fleet.start_agent(2).await?;
    fleet.connected(2).await?;
    copies_there?;
    // The results that the plans left open occur as well.
    for case in cordoned.iter().chain(&away) {
        settled(&scene.hub, &Id::of(&case.rule)?)
            .await
            .with_context(|| format!("case {}", case.name))?;
    }
    Ok(())
}
