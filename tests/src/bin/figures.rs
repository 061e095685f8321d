//! Measures one hub with two members on real control planes, beside a bare relay in the same run, and prints figures.
//!
//! `cargo run --release -p runnel-tests --bin figures`. Times are of this machine at this moment: read the ratios.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures::StreamExt;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use parking_lot::Mutex;
use runnel_tests::fleet::{Fleet, FleetOptions};
use runnel_tests::wait::eventually;
use serde_json::json;
use tokio::task::JoinSet;

const EDITS: usize = 50;
/// Longer than the least time between two writes of one status, so that no edit shares its write with another.
const BETWEEN: Duration = Duration::from_millis(1200);
const OBJECTS: usize = 1000;
const PATIENCE: Duration = Duration::from_secs(120);
const OURS: &str = "figures";
const BARE: &str = "figures-bare";
const RULE: &str = r#"
apiVersion: runnel.dev/v1alpha1
kind: DistributionRule
metadata: {name: figures, namespace: figures}
spec:
  sources: [{resources: [configmaps], names: ["*"], exclude: ["kube-root-ca.crt"]}]
  clusters: {all: true}
"#;

/// When each value of the key `value` was seen, by namespace and object.
type Seen = Arc<Mutex<BTreeMap<(String, String, String), Instant>>>;

#[tokio::main]
async fn main() -> Result<()> {
    let fleet = Fleet::start(FleetOptions { members: 2, ..FleetOptions::default() }).await?;
    let hub = fleet.hub().client().await?;
    let members = [fleet.member(1).client().await?, fleet.member(2).client().await?];
    let mut tasks = JoinSet::new();
    let mut seen = Vec::new();
    for client in &members {
        let log = Seen::default();
        tasks.spawn(record(client.clone(), log.clone()));
        seen.push(log);
    }
    for client in [&hub].into_iter().chain(&members) {
        make_namespaces(client).await?;
    }
    show_memory("idle", &fleet)?;
    fleet.hub().kubectl_stdin(&["apply", "-f", "-"], RULE).await?;
    tasks.spawn(relay(hub.clone(), members.to_vec()));
    edits(&fleet, &hub, &seen).await?;
    many(&hub, &seen).await?;
    show_memory("with 1,000 copies of 1 KiB in each member", &fleet)?;
    fleet.stop_hub().await?;
    Ok(())
}

async fn make_namespaces(client: &Client) -> Result<()> {
    let api: Api<Namespace> = Api::all(client.clone());
    for name in [OURS, BARE] {
        let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": name}}))?;
        api.create(&PostParams::default(), &namespace).await?;
    }
    Ok(())
}

/// Writes down when a member shows which value.
async fn record(client: Client, seen: Seen) {
    let api: Api<ConfigMap> = Api::all(client);
    let mut events = std::pin::pin!(watcher(api, watcher::Config::default()).default_backoff());
    while let Some(event) = events.next().await {
        let Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) = event else { continue };
        let at = Instant::now();
        let value = object.data.as_ref().and_then(|data| data.get("value")).cloned().unwrap_or_default();
        seen.lock().entry((object.namespace().unwrap_or_default(), object.name_any(), value)).or_insert(at);
    }
}

/// The least that the job can be: one watch on the hub, and one apply in each member at a time.
async fn relay(hub: Client, members: Vec<Client>) {
    let api: Api<ConfigMap> = Api::namespaced(hub, BARE);
    let mut events = std::pin::pin!(watcher(api, watcher::Config::default()).default_backoff());
    while let Some(event) = events.next().await {
        let Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) = event else { continue };
        let name = object.name_any();
        let copy = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": object.data});
        let applies = members.iter().map(|member| {
            let api: Api<ConfigMap> = Api::namespaced(member.clone(), BARE);
            let (name, copy) = (name.clone(), copy.clone());
            async move { api.patch(&name, &PatchParams::apply("bare").force(), &Patch::Apply(copy)).await }
        });
        futures::future::join_all(applies).await;
    }
}

/// Makes or changes an object and says how long the last member took to show it, in milliseconds.
async fn edit(hub: &Client, namespace: &str, value: &str, seen: &[Seen]) -> Result<f64> {
    let api: Api<ConfigMap> = Api::namespaced(hub.clone(), namespace);
    let object =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "edited"}, "data": {"value": value}});
    let start = Instant::now();
    api.patch("edited", &PatchParams::apply("figures").force(), &Patch::Apply(object)).await?;
    let key = (namespace.to_owned(), "edited".to_owned(), value.to_owned());
    let last = eventually("the edit in every member", PATIENCE, async || {
        let times: Option<Vec<_>> = seen.iter().map(|log| log.lock().get(&key).copied()).collect();
        Ok(times.and_then(|times| times.into_iter().max()))
    })
    .await?;
    Ok(last.duration_since(start).as_secs_f64() * 1000.0)
}

async fn edits(fleet: &Fleet, hub: &Client, seen: &[Seen]) -> Result<()> {
    edit(hub, OURS, "first", seen).await?;
    edit(hub, BARE, "first", seen).await?;
    tokio::time::sleep(BETWEEN * 2).await;
    let mark = fleet.hub().mark();
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for number in 0..EDITS {
        ours.push(edit(hub, OURS, &number.to_string(), seen).await?);
        tokio::time::sleep(BETWEEN / 2).await;
        bare.push(edit(hub, BARE, &number.to_string(), seen).await?);
        tokio::time::sleep(BETWEEN / 2).await;
    }
    tokio::time::sleep(BETWEEN * 2).await;
    let writes = fleet.hub().writes_since(mark)?;
    let writes = writes.iter().filter(|write| write.user_agent.starts_with("runnel-hub")).count();
    let (ours, bare) = (spread(&mut ours), spread(&mut bare));
    println!("edit -> copy in the last of 2 members, {EDITS} edits (ms)   p50     max");
    println!("  Runnel                                              {:>8.1} {:>7.1}", ours.0, ours.1);
    println!("  bare relay                                          {:>8.1} {:>7.1}", bare.0, bare.1);
    println!("  ratio                                               {:>8.2} {:>7.2}", ours.0 / bare.0, ours.1 / bare.1);
    println!("hub writes per edit: {:.2}", writes as f64 / EDITS as f64);
    Ok(())
}

/// Median and maximum.
fn spread(values: &mut [f64]) -> (f64, f64) {
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2], values[values.len() - 1])
}

async fn many(hub: &Client, seen: &[Seen]) -> Result<()> {
    let api: Api<ConfigMap> = Api::namespaced(hub.clone(), OURS);
    let start = Instant::now();
    let filler = "x".repeat(1000);
    let creates = (0..OBJECTS).map(|number| {
        let (api, filler) = (api.clone(), filler.clone());
        async move {
            let object =
                json!({"metadata": {"name": format!("many-{number}")}, "data": {"value": "many", "filler": filler}});
            api.create(&PostParams::default(), &serde_json::from_value(object)?).await.context("create")
        }
    });
    let created: Vec<Result<ConfigMap>> = futures::stream::iter(creates).buffer_unordered(8).collect().await;
    created.into_iter().collect::<Result<Vec<_>>>()?;
    let written = start.elapsed();
    eventually("every object in every member", PATIENCE, async || {
        let whole = seen.iter().all(|log| {
            let log = log.lock();
            log.keys().filter(|(namespace, name, _)| namespace == OURS && name.starts_with("many-")).count() == OBJECTS
        });
        Ok(whole.then_some(()))
    })
    .await?;
    println!(
        "{OBJECTS} ConfigMaps of 1 KiB: written on the hub in {:.1} s, in both members after {:.1} s",
        written.as_secs_f64(),
        start.elapsed().as_secs_f64()
    );
    Ok(())
}

fn show_memory(when: &str, fleet: &Fleet) -> Result<()> {
    let hub = resident(fleet.hub_process().pid()?)?;
    let agents = [resident(fleet.agent_process(1).pid()?)?, resident(fleet.agent_process(2).pid()?)?];
    println!("resident memory {when}: hub {hub:.1} MiB, agents {:.1} and {:.1} MiB", agents[0], agents[1]);
    Ok(())
}

/// Resident memory of a process in MiB.
fn resident(pid: u32) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS in /proc")?;
    let kibibytes: f64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kibibytes / 1024.0)
}
