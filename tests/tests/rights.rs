//! The rights of the charts are exactly the rights that hub and agents need, and a binary supports
//! every argument of its chart.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use runnel_tests::audit::{Mark, Write};
use runnel_tests::control_plane::{ControlPlane, Options};
use runnel_tests::fleet::{AGENT, Fleet, FleetOptions, HUB};
use runnel_tests::scene::{Draft, Id, Scene};
use runnel_tests::wait::eventually;
use serde_json::json;

const SEED: &str = include_str!("../../deploy/examples/seed-rule.yaml");
const HOME: &str = "ns-codis-test";
const TARGETS: [&str; 2] = ["default", "another-test"];
const SOON: Duration = Duration::from_secs(60);

fn clusters(fleet: &Fleet) -> [&ControlPlane; 2] {
    [fleet.hub(), fleet.member(1)]
}

/// What has been asked of the API servers since these marks.
fn requests(fleet: &Fleet, marks: [Option<Mark>; 2]) -> Result<Vec<Write>> {
    let mut all = Vec::new();
    for (cluster, mark) in clusters(fleet).into_iter().zip(marks) {
        all.extend(cluster.writes_since(mark.unwrap_or_default())?);
    }
    Ok(all)
}

fn account(name: &str) -> String {
    format!("system:serviceaccount:runnel-system:{name}")
}

/// Checks that the memory limits of the charts hold for the processes, where a memory cgroup can be made, and that
/// neither process came near its limit.
fn are_limited(fleet: &Fleet) -> Result<()> {
    for (process, limit) in [
        (fleet.hub_process(), 1 << 30),
        (fleet.agent_process(1), 512 << 20),
    ] {
        let groups = std::fs::read_to_string(format!("/proc/{}/cgroup", process.pid()?))?;
        let limited = groups.lines().any(|line| line.contains("/runnel-tests-"));
        ensure!(
            limited || !rustix::process::getuid().is_root(),
            "no memory limit: {groups}"
        );
        let peak = process.peak_memory()?;
        ensure!(
            (1 << 20..limit / 2).contains(&peak),
            "a peak of {peak} bytes"
        );
    }
    Ok(())
}

/// A life of the seed rule, with everything in it that hub and agents have rights for.
async fn live(fleet: &Fleet, scene: &Scene) -> Result<()> {
    scene
        .member(1)
        .make(&Draft::namespace(TARGETS[1]).json())
        .await?;
    fleet
        .hub()
        .kubectl_stdin(&["apply", "-f", "-"], SEED)
        .await?;
    let rule = Id::rule(HOME, "rule-codis-test");
    let settings = Id::config_map(HOME, "app-settings");
    let login = scene.hub.get(&Id::secret(HOME, "app-login")).await?;
    let edited = scene
        .hub
        .change(&settings, json!({"data": {"greeting": "good evening"}}))
        .await?;
    let created = json!({"spec": {"createNamespaces": true}});
    scene.hub.change(&rule, created).await?;
    for source in [&edited, &login] {
        scene.arrives(source, &rule, &TARGETS).await?;
    }
    scene.hub.all_applied(&rule, 8).await?;

    // Damage is corrected and reported.
    let copy = settings.within(TARGETS[0]);
    scene
        .member(1)
        .change(&copy, json!({"data": {"greeting": "tampered"}}))
        .await?;
    scene.member(1).has_copy(&edited, TARGETS[0], &rule).await?;
    scene
        .member(1)
        .delete(&Id::of(&login)?.within(TARGETS[0]))
        .await?;
    scene.member(1).has_copy(&login, TARGETS[0], &rule).await?;

    // Both restart and read their stored state.
    fleet.kill_hub()?;
    fleet.kill_agent(1)?;
    fleet.start_hub().await?;
    fleet.start_agent(1).await?;
    let edited = scene
        .hub
        .change(&settings, json!({"data": {"greeting": "good night"}}))
        .await?;
    scene.arrives(&edited, &rule, &TARGETS).await?;
    scene.hub.all_applied(&rule, 8).await?;
    fleet.hub_replica(1).pod().passes_probes().await?;
    fleet.agent(1).pod().passes_probes().await?;
    are_limited(fleet)?;

    // A removal, and a cluster that leaves.
    scene.hub.delete(&Id::of(&login)?).await?;
    scene.vanishes(&login, &TARGETS).await?;
    scene.hub.delete(&rule).await?;
    scene.hub.lacks(&rule).await?;
    scene.vanishes(&edited, &TARGETS).await?;
    scene
        .hub
        .change(&Id::member("member-1"), json!({"spec": {"leaving": true}}))
        .await?;
    let left = |member: &serde_json::Value| {
        let observed = runnel_tests::scene::condition(member, "Accepted")?;
        ensure!(observed["reason"] == "Drained", "{observed}");
        Ok(())
    };
    scene
        .hub
        .sees("left", &Id::member("member-1"), left)
        .await
        .map(drop)
}

#[tokio::test]
async fn seed_rule_needs_no_more_rights_than_the_charts_grant() -> Result<()> {
    let audited = Options {
        audit_reads: true,
        ..Options::default()
    };
    let options = FleetOptions {
        members: 1,
        hub_is_member: true,
        control_plane: audited,
        ..FleetOptions::default()
    };
    let fleet = Fleet::start(options).await?;
    let scene = Scene::of(&fleet).await?;
    let marks = clusters(&fleet).map(|cluster| Some(cluster.mark()));
    live(&fleet, &scene).await?;

    let since_the_start = requests(&fleet, [None, None])?;
    let own: Vec<&Write> = since_the_start
        .iter()
        .filter(|request| request.user_agent.starts_with("runnel-"))
        .collect();
    for (chart, least) in [(HUB, 40), (AGENT, 60)] {
        let asked = own
            .iter()
            .filter(|request| request.user == account(chart))
            .count();
        ensure!(asked >= least, "only {asked} requests of {chart} were seen");
    }
    // A user creates join strings with the hub's binary. There are only the two accounts.
    let by_persons: Vec<&&Write> = own
        .iter()
        .filter(|one| one.user != account(HUB) && one.user != account(AGENT))
        .collect();
    let of_tokens = |one: &Write| {
        one.user == "administrator"
            && one.user_agent.starts_with("runnel-hub")
            && ["memberclusters", "secrets", "namespaces"].contains(&one.resource.as_str())
            && ["get", "create", "patch", "update"].contains(&one.verb.as_str())
    };
    ensure!(
        by_persons.iter().all(|one| of_tokens(one)),
        "{by_persons:#?}"
    );
    let running = requests(&fleet, marks)?;
    let foreign: Vec<&Write> = running
        .iter()
        .filter(|one| {
            one.user_agent.starts_with("runnel-")
                && one.user != account(HUB)
                && one.user != account(AGENT)
        })
        .collect();
    ensure!(foreign.is_empty(), "{foreign:#?}");
    // Each account is used by its own binary, under its own name.
    for (chart, cluster) in [(HUB, fleet.hub()), (AGENT, fleet.member(1))] {
        let asked = cluster.writes_since(Mark::default())?;
        let agents: BTreeSet<&str> = asked
            .iter()
            .filter(|one| one.user == account(chart))
            .map(|one| one.user_agent.as_str())
            .collect();
        ensure!(
            agents
                .iter()
                .all(|agent| agent.starts_with(&format!("{chart}/"))),
            "{chart}: {agents:?}"
        );
    }

    let refused: Vec<&Write> = since_the_start
        .iter()
        .filter(|request| request.code == 403)
        .collect();
    ensure!(refused.is_empty(), "rights are missing: {refused:#?}");
    // The audit log leaves out Leases and what is no resource; the API server counts all.
    for cluster in clusters(&fleet) {
        let metrics = cluster.kubectl(&["get", "--raw", "/metrics"]).await?;
        let refused: Vec<&str> = metrics
            .lines()
            .filter(|line| {
                line.starts_with("apiserver_request_total{") && line.contains("code=\"403\"")
            })
            .collect();
        ensure!(refused.is_empty(), "{}: {refused:#?}", cluster.name());
    }
    Ok(())
}

/// Says that an upgrade failed, with these words.
fn refuses(upgraded: Result<()>, words: &[&str]) -> Result<()> {
    let error = upgraded.err().context("an unknown argument was taken")?;
    let output = format!("{error:#}");
    for word in words {
        ensure!(output.contains(word), "{word:?} is not in: {output}");
    }
    Ok(())
}

#[tokio::test]
async fn chart_arguments_are_known_and_mounts_stay_fresh() -> Result<()> {
    let fleet = Fleet::start(FleetOptions {
        members: 0,
        hub_is_member: true,
        ..FleetOptions::default()
    })
    .await?;
    let (hub, agent) = (fleet.hub_release(), fleet.agent(1));
    let unknown = json!({"extraArgs": ["--no-such-argument"]});
    let words = [
        "unexpected argument '--no-such-argument'",
        "ended by itself with exit code 1",
    ];
    refuses(hub.upgrade(&unknown).await, &[&words[..], &[HUB]].concat())?;
    refuses(
        agent.upgrade(&unknown).await,
        &[&words[..], &[AGENT]].concat(),
    )?;
    hub.upgrade(&json!({"extraArgs": []})).await?;
    agent.upgrade(&json!({"extraArgs": []})).await?;
    fleet.start_hub().await?;
    fleet.start_agent(1).await?;
    fleet.connected(1).await?;

    // A changed policy is a changed file, and no reason to start again.
    let policy = agent
        .pod()
        .folder()
        .join("root/etc/runnel/policy/policy.yaml");
    let process = agent.process().pid()?;
    ensure!(!std::fs::read_to_string(&policy)?.contains("not-here"));
    agent
        .upgrade(&json!({"policy": {"deniedNamespaces": ["not-here-*"]}}))
        .await?;
    ensure!(std::fs::read_to_string(&policy)?.contains("not-here-*"));
    ensure!(
        agent.process().pid()? == process,
        "a new policy has started the agent again"
    );

    // So is an object that another client changes.
    fleet
        .hub()
        .kubectl(&[
            "-n",
            "runnel-system",
            "delete",
            "secret",
            "runnel-agent-join",
        ])
        .await?;
    let join = agent
        .pod()
        .folder()
        .join("root/etc/runnel/join/join-string");
    ensure!(join.exists());
    eventually("the mount to be empty", SOON, async || {
        agent.pod().refresh_mounts().await?;
        Ok((!join.exists()).then_some(()))
    })
    .await
}
