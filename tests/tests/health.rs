//! The health of copies: reported with the objects' own messages, bounded in writes, and as the gate of a rollout. The
//! clusters run no controllers of workloads and no kubelets: the tests write the statuses of the copies.
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use runnel_tests::fleet::{Fleet, FleetOptions};
use runnel_tests::scene::{
    Draft, Id, Metrics, Recorder, RuleDraft, Scene, TestCluster, condition, entry_of,
};
use runnel_tests::wait::{eventually, steadily};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

static FLEET: OnceCell<Fleet> = OnceCell::const_new();

const MEMBERS: usize = 2;
const KINDS: [&str; 4] = [
    "configmaps",
    "deployments.apps",
    "jobs.batch",
    "widgets.example.org",
];
const SOON: Duration = Duration::from_secs(60);
/// Longer than a write of the hub and a report of an agent take.
const A_WHILE: Duration = Duration::from_secs(4);
/// How long the status of a copy changes all the time.
const FLAPPING: Duration = Duration::from_secs(6);

async fn start(members: usize) -> Result<Fleet> {
    let privileged = ["deployments.apps", "jobs.batch"];
    Fleet::start(FleetOptions {
        members,
        views: true,
        hub_values: json!({"sources": {"kinds": KINDS}}),
        agent_values: json!({"policy": {"kinds": KINDS, "allowPrivileged": privileged}}),
        ..FleetOptions::default()
    })
    .await
}

async fn fleet() -> Result<&'static Fleet> {
    FLEET.get_or_try_init(|| start(MEMBERS)).await
}

/// A namespace on the hub and in the members, with the kind `Widget`.
async fn stage(fleet: &Fleet, namespace: &str) -> Result<Scene> {
    let scene = Scene::of(fleet).await?;
    scene.hub_namespaces(&[namespace]).await?;
    scene.member_namespaces(&[namespace]).await?;
    let any = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let definition = Draft::definition("widgets.example.org", "Widget", &[("v1", &any)]).json();
    for cluster in [&scene.hub].into_iter().chain(&scene.members) {
        // Another test may have made it.
        if cluster.find(&Id::of(&definition)?).await?.is_none() {
            let made = cluster.make(&definition).await;
            ensure!(made.is_ok() || cluster.find(&Id::of(&definition)?).await?.is_some());
        }
    }
    Ok(scene)
}

fn deployment(namespace: &str, image: &str) -> Value {
    let container = json!({"name": "web", "image": image});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"namespace": namespace, "name": "web"},
        "spec": {
            "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [container]}},
        },
    })
}

fn job(namespace: &str) -> Value {
    let container = json!({"name": "task", "image": "example.org/task"});
    json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"namespace": namespace, "name": "task"},
        "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [container]}}},
    })
}

fn widget(namespace: &str) -> Value {
    json!({
        "apiVersion": "example.org/v1", "kind": "Widget", "metadata": {"namespace": namespace, "name": "gear"},
        "spec": {"size": 1},
    })
}

/// A rule of the whole cluster for all kinds of one namespace.
fn rule(namespace: &str) -> (Id, RuleDraft) {
    let entry = json!({"resources": KINDS, "names": ["*"], "exclude": ["kube-root-ca.crt"], "namespaces": [namespace]});
    let draft = RuleDraft::cluster_scoped(namespace).source(entry);
    (Id::cluster_rule(namespace), draft.everywhere())
}

/// Writes the status of a Deployment as its controller does: all replicas are available, or the deadline has passed.
async fn write_deployment(member: &TestCluster, id: &Id, works: bool) -> Result<()> {
    let generation = member.get(id).await?["metadata"]["generation"].clone();
    let (status, reason) = if works {
        ("True", "NewReplicaSetAvailable")
    } else {
        ("False", "ProgressDeadlineExceeded")
    };
    let message = "ReplicaSet \"web-1\" was watched";
    let number = u64::from(works);
    let status = json!({
        "observedGeneration": generation, "replicas": 1, "updatedReplicas": 1,
        "readyReplicas": number, "availableReplicas": number,
        "conditions": [
            {"type": "Available", "status": if works { "True" } else { "False" }, "reason": "Replicas", "message": ""},
            {"type": "Progressing", "status": status, "reason": reason, "message": message},
        ],
    });
    member
        .change_status(id, json!({"status": status}))
        .await
        .map(drop)
}

/// Writes a condition of a Widget.
async fn write_condition(
    member: &TestCluster,
    id: &Id,
    kind: &str,
    status: &str,
    message: &str,
) -> Result<()> {
    let condition = json!({"type": kind, "status": status, "reason": "Turned", "message": message});
    let status = json!({"status": {"conditions": [condition]}});
    member.change_status(id, status).await.map(drop)
}

/// Waits until the summary of a rule has so many healthy copies, of those that have a health.
async fn is_healthy(scene: &Scene, rule: &Id, healthy: u64, all: u64) -> Result<Value> {
    let what = format!("{healthy} of {all} copies healthy");
    let seen = scene.hub.sees(&what, rule, |object| {
        let summary = &object["status"]["summary"];
        let of = |count: &str| summary[count].as_u64().unwrap_or_default();
        ensure!(
            (of("copiesHealthy"), of("copiesWithHealth")) == (healthy, all),
            "{summary}"
        );
        Ok(())
    });
    seen.await
}

#[tokio::test]
async fn health_of_copies_is_reported_with_their_messages() -> Result<()> {
    let namespace = "health";
    let scene = stage(fleet().await?, namespace).await?;
    let web = scene
        .hub
        .make(&deployment(namespace, "example.org/web:1"))
        .await?;
    let task = scene.hub.make(&job(namespace)).await?;
    let gear = scene.hub.make_soon(&widget(namespace)).await?;
    let settings = Draft::config_map(namespace, "settings").data("a", "b");
    scene.hub.make(&settings.json()).await?;
    let (web, task, gear) = (Id::of(&web)?, Id::of(&task)?, Id::of(&gear)?);
    let (id, draft) = rule(namespace);
    let returned = json!([
        {"resource": "deployments.apps", "name": "ready", "jsonPath": ".status.readyReplicas"},
        {"resource": "widgets.example.org", "name": "why", "jsonPath": ".status.conditions[?(@.type==\"Stalled\")].message"},
    ]);
    let draft = draft.with("feedback", returned);
    scene.hub.make(&draft.json()).await?;

    // The controllers have written nothing yet: the Widget has no health, and neither has the ConfigMap.
    let waiting = scene.hub.wait_ready(&id, "False", "AwaitingHealth").await?;
    let applied = scene.hub.all_written(&id, 4 * MEMBERS).await?;
    ensure!(condition(&waiting, "Applied")?["status"] == "True");
    ensure!(condition(&applied, "Reconciling")?["reason"] == "AwaitingHealth");
    is_healthy(&scene, &id, 0, 4).await?;
    for member in &scene.members {
        write_deployment(member, &web, true).await?;
        let started = json!({"status": {"startTime": "2026-01-01T00:00:00Z", "active": 1, "ready": 0, "terminating": 0}});
        member.change_status(&task, started).await?;
    }
    let ready = scene.hub.all_applied(&id, 4 * MEMBERS).await?;
    ensure!(ready["status"]["display"]["healthy"] == "4/4", "{ready}");

    // A conforming custom resource: in progress, failed, and well again.
    let member = scene.member(1);
    write_condition(member, &gear, "Ready", "False", "it starts").await?;
    is_healthy(&scene, &id, 4, 5).await?;
    scene.hub.wait_ready(&id, "False", "AwaitingHealth").await?;
    write_condition(member, &gear, "Stalled", "True", "it is out of oil").await?;
    let failed = scene.hub.wait_ready(&id, "False", "Unhealthy").await?;
    let message = condition(&failed, "Ready")?["message"].to_string();
    ensure!(
        message.contains("widgets.example.org/health/gear reports: Turned: it is out of oil"),
        "{message}"
    );
    ensure!(condition(&failed, "Applied")?["status"] == "True");
    let entry = entry_of(&failed, "member-1")?;
    ensure!(
        entry["state"] == "Failed" && entry["healthy"] == 2 && entry["withHealth"] == 3,
        "{entry}"
    );
    ensure!(entry_of(&failed, "member-2")?["state"] == "Ready");

    // Each view has it.
    let hub = fleet().await?.hub();
    let rules = hub
        .kubectl(&["get", "cdrule", namespace, "-o", "wide"])
        .await?;
    ensure!(
        rules.contains("HEALTHY") && rules.contains("4/5"),
        "{rules}"
    );
    let selector = format!("rule={namespace},cluster=member-1");
    let arguments = [
        "get",
        "clusterdeliveries",
        "--field-selector",
        &selector,
        "-o",
        "wide",
    ];
    let deliveries = hub.kubectl(&arguments).await?;
    ensure!(
        deliveries.contains("HEALTHY") && deliveries.contains("2/3"),
        "{deliveries}"
    );
    let arguments = [
        "get",
        "clustercopies",
        "--field-selector",
        &selector,
        "-o",
        "json",
    ];
    let copies_of = arguments;
    let copies: Value = serde_json::from_str(&hub.kubectl(&copies_of).await?)?;
    let items = copies["items"].as_array().context("no items")?;
    let of = |kind: &str| {
        items
            .iter()
            .find(|item| item["spec"]["target"]["kind"] == kind)
    };
    let gears = of("Widget").context("no Widget")?;
    ensure!(
        gears["status"]["health"] == "Failed"
            && gears["status"]["healthMessage"] == "Turned: it is out of oil",
        "{gears}"
    );
    ensure!(of("ConfigMap").context("no ConfigMap")?["status"]["health"].is_null());
    // So it is with the fields that the rule has returned.
    let why = json!([{"name": "why", "value": "it is out of oil"}]);
    ensure!(gears["status"]["feedback"] == why, "{gears}");
    let ready = json!([{"name": "ready", "value": "1"}]);
    ensure!(of("Deployment").context("no Deployment")?["status"]["feedback"] == ready);
    let arguments = [
        "get",
        "clusterdeliveries",
        "--field-selector",
        &selector,
        "-o",
        "json",
    ];
    let deliveries: Value = serde_json::from_str(&hub.kubectl(&arguments).await?)?;
    let feedback = &deliveries["items"][0]["status"]["feedback"];
    let expected = json!([
        {"copy": "deployments.apps/health/web", "name": "ready", "value": "1"},
        {"copy": "widgets.example.org/health/gear", "name": "why", "value": "it is out of oil"},
    ]);
    ensure!(*feedback == expected, "{feedback}");
    let explain = async |copy: &str, words: &[&str]| {
        let fixed = ["explain", copy, "-n", "default"];
        fleet().await?.runnel(&[&fixed[..], words].concat()).await
    };
    let explained = explain("member-1/health/widgets.example.org/gear", &[]).await?;
    for line in [
        "gear in member-1: a copy as it should be, and unhealthy",
        "  health     Failed: Turned: it is out of oil\n",
        "  feedback   why=it is out of oil\n",
    ] {
        ensure!(explained.contains(line), "{explained}");
    }
    let json = ["-o", "json"];
    let explained = explain("member-1/health/deployments.apps/web", &json).await?;
    let live = &serde_json::from_str::<Value>(&explained)?["status"]["live"];
    ensure!(
        live["feedback"] == ready && live["health"] == "Current",
        "{explained}"
    );
    // Another field is read at once in the copies that are there.
    let returned =
        json!([{"resource": "jobs.batch", "name": "active", "jsonPath": ".status.active"}]);
    scene
        .hub
        .change(&id, json!({"spec": {"feedback": returned}}))
        .await?;
    eventually("another field to be returned", SOON, async || {
        let copies: Value = serde_json::from_str(&hub.kubectl(&copies_of).await?)?;
        let items = copies["items"].as_array().context("no items")?;
        let mut values = items.iter().map(|item| &item["status"]["feedback"]);
        let active = json!([{"name": "active", "value": "1"}]);
        Ok(values.any(|value| *value == active).then_some(()))
    })
    .await?;

    write_condition(member, &gear, "Ready", "True", "").await?;
    scene.hub.all_applied(&id, 4 * MEMBERS).await?;
    is_healthy(&scene, &id, 5, 5).await?;
    // A copy that goes takes its health with it.
    scene.hub.delete(&gear).await?;
    is_healthy(&scene, &id, 4, 4).await?;
    Ok(())
}

#[tokio::test]
async fn health_that_changes_all_the_time_is_written_once_a_second() -> Result<()> {
    let namespace = "flapping";
    // Rules of other tests would have reports of their own.
    let fleet = start(1).await?;
    let scene = stage(&fleet, namespace).await?;
    let gear = Id::of(&scene.hub.make_soon(&widget(namespace)).await?)?;
    let (id, draft) = rule(namespace);
    scene.hub.make(&draft.json()).await?;
    scene.hub.all_applied(&id, 1).await?;
    let member = scene.member(1);
    write_condition(member, &gear, "Ready", "True", "").await?;
    is_healthy(&scene, &id, 1, 1).await?;

    let agent = fleet.agent_ops_url(1);
    let sent = async || {
        let metrics = Metrics::of(&agent).await?;
        metrics.sum("runnel_frames_sent_total")
    };
    let (recorder, before) = (Recorder::start(&scene.hub, &id).await?, sent().await?);
    let begin = tokio::time::Instant::now();
    let mut changes = 0;
    while begin.elapsed() < FLAPPING || changes <= 30 {
        let (kind, status) =
            [("Ready", "True"), ("Ready", "False"), ("Stalled", "True")][changes % 3];
        write_condition(member, &gear, kind, status, &format!("change {changes}")).await?;
        changes += 1;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    write_condition(member, &gear, "Stalled", "True", "the last change").await?;
    let failed = scene
        .hub
        .sees("with the last message", &id, |rule| {
            let message = condition(rule, "Ready")?["message"].to_string();
            ensure!(message.contains("the last change"), "{message}");
            Ok(())
        })
        .await?;
    ensure!(condition(&failed, "Ready")?["reason"] == "Unhealthy");
    let seconds = begin.elapsed().as_secs();
    let writes = u64::try_from(recorder.about("", id.name())?.len())?;
    let frames = sent().await? - before;
    // Once a second in the long run: eight may follow each other at once.
    ensure!(writes <= seconds + 10, "{writes} writes in {seconds} s");
    // Reports, and frames that keep the stream alive.
    let limit = 2 * (seconds + 2);
    ensure!(frames <= limit as f64, "{frames} frames in {seconds} s");
    Ok(())
}

async fn has_image(member: &TestCluster, id: &Id, image: &str) -> Result<()> {
    let what = format!("with the image {image}");
    let path = "/spec/template/spec/containers/0/image";
    let values = [(path, json!(image))];
    member.has_values(&what, id, &values).await.map(drop)
}

async fn is_in_phase(scene: &Scene, id: &Id, phase: &str, wave: u64) -> Result<Value> {
    let what = format!("{phase} in wave {wave}");
    let seen = scene.hub.sees(&what, id, |rule| {
        let rollout = &rule["status"]["rollout"];
        ensure!(
            rollout["phase"] == phase && rollout["wave"] == wave,
            "{rollout}"
        );
        Ok(())
    });
    seen.await
}

#[tokio::test]
async fn wave_waits_for_health_and_an_unhealthy_one_goes_back() -> Result<()> {
    let namespace = "gated";
    let scene = stage(fleet().await?, namespace).await?;
    let image = |number: u32| format!("example.org/web:{number}");
    let web = Id::of(&scene.hub.make(&deployment(namespace, &image(1))).await?)?;
    let (id, draft) = rule(namespace);
    let rollout = json!({"maxConcurrency": 1, "onFailure": "Revert"});
    scene
        .hub
        .make(&draft.with("rollout", rollout).json())
        .await?;
    let (first, second) = (scene.member(1), scene.member(2));
    let edit = async |number: u32| {
        let patch = json!([{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": image(number)}]);
        scene.hub.json_patch(&web, patch).await.map(drop)
    };

    // The first rollout: the second cluster gets nothing before the first one is healthy.
    has_image(first, &web, &image(1)).await?;
    is_in_phase(&scene, &id, "Progressing", 1).await?;
    steadily("the second wave to wait", A_WHILE, async || {
        ensure!(second.find(&web).await?.is_none());
        Ok(())
    })
    .await?;
    write_deployment(first, &web, true).await?;
    has_image(second, &web, &image(1)).await?;
    write_deployment(second, &web, true).await?;
    is_in_phase(&scene, &id, "Completed", 2).await?;
    scene.hub.all_applied(&id, MEMBERS).await?;

    // A change that fails in its first wave goes back there, and reaches no other cluster.
    edit(2).await?;
    has_image(first, &web, &image(2)).await?;
    is_in_phase(&scene, &id, "Progressing", 1).await?;
    write_deployment(first, &web, false).await?;
    let reverted = is_in_phase(&scene, &id, "Reverted", 1).await?;
    has_image(first, &web, &image(1)).await?;
    let why = reverted["status"]["rollout"]["failure"].to_string();
    ensure!(
        why.contains("deployments.apps/gated/web reports: ProgressDeadlineExceeded"),
        "{why}"
    );
    has_image(second, &web, &image(1)).await?;
    let generation = second.get(&web).await?["metadata"]["generation"].clone();
    ensure!(generation == 1, "the second cluster had the failed change");

    // Without the gate the next change does not wait.
    let gate = json!({"spec": {"rollout": {"gate": "Applied"}}});
    scene.hub.change(&id, gate).await?;
    edit(3).await?;
    for member in [first, second] {
        has_image(member, &web, &image(3)).await?;
    }
    is_in_phase(&scene, &id, "Completed", 2).await?;
    eventually("the copies to be awaited", SOON, async || {
        let rule = scene.hub.get(&id).await?;
        Ok((condition(&rule, "Ready")?["reason"] == "AwaitingHealth").then_some(()))
    })
    .await
}
