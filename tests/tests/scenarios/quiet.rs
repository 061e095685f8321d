//! Without changes there are no writes, neither on the hub nor in a member.

use std::time::Duration;

use anyhow::{Result, ensure};
use runnel_tests::audit::Mark;
use runnel_tests::control_plane::ControlPlane;
use runnel_tests::fleet::{Fleet, FleetOptions};
use runnel_tests::scene::{Draft, Id, Metrics, RuleDraft, SOON, Scene};
use runnel_tests::wait::{eventually, steadily};
use serde_json::{Value, json};

const MEMBERS: usize = 2;
/// Longer than a hub waits after its start before missing clusters count as unreachable.
const QUIET: Duration = Duration::from_secs(60);

/// One rule in every idle state.
async fn prepare(scene: &Scene) -> Result<()> {
    scene.hub_namespaces(&["quiet"]).await?;
    scene.member_namespaces(&["quiet-a", "quiet-b"]).await?;
    let hub = &scene.hub;
    for name in ["ready", "waiting", "conflict", "suspended", "retained"] {
        hub.make(&Draft::config_map("quiet", name).data("key", "value").json())
            .await?;
    }
    hub.make(&Draft::secret("quiet", "ready").data("key", "value").json())
        .await?;
    hub.make(
        &Draft::secret("quiet", "refused")
            .with("type", json!("helm.sh/release.v1"))
            .json(),
    )
    .await?;
    let foreign = Draft::config_map("quiet-a", "conflict").data("key", "somebody else's");
    scene.member(1).make(&foreign.json()).await?;

    let rule = |name: &str| RuleDraft::new("quiet", name).named(&[name]).everywhere();
    let make = async |draft: RuleDraft| Id::of(&hub.make(&draft.json()).await?);
    let ready = make(rule("ready").into(&["quiet-*"])).await?;
    hub.all_applied(&ready, MEMBERS * 4).await?;
    let waiting = make(rule("waiting").into(&["quiet-a", "not-there"])).await?;
    hub.wait_ready(&waiting, "False", "CopiesWaiting").await?;
    let conflict = make(rule("conflict").into(&["quiet-a"])).await?;
    hub.wait_for_cluster(&conflict, "member-1", "Failed", "Conflict")
        .await?;
    let suspended = make(rule("suspended").with("suspend", json!(true))).await?;
    hub.wait_ready(&suspended, "False", "Suspended").await?;
    let nothing = make(rule("nothing")).await?;
    hub.wait_ready(&nothing, "False", "NoSources").await?;
    let nowhere = make(
        RuleDraft::new("quiet", "nowhere")
            .named(&["ready"])
            .to(&["member-none"]),
    )
    .await?;
    hub.wait_ready(&nowhere, "False", "NoClusters").await?;
    let refused = make(rule("refused")).await?;
    hub.wait_ready(&refused, "False", "NoSources").await?;
    let retained = make(
        rule("retained")
            .into(&["quiet-b"])
            .with("deletionPolicy", json!("Retain")),
    )
    .await?;
    hub.all_applied(&retained, MEMBERS).await?;
    hub.delete(&retained).await?;
    hub.lacks(&retained).await
}

fn clusters(fleet: &Fleet) -> Vec<&ControlPlane> {
    std::iter::once(fleet.hub())
        .chain((1..=MEMBERS).map(|number| fleet.member(number)))
        .collect()
}

/// Every write since these marks, by anybody.
fn writes(fleet: &Fleet, marks: &[Mark]) -> Result<Vec<String>> {
    let mut all = Vec::new();
    for (cluster, mark) in clusters(fleet).into_iter().zip(marks) {
        let writes = cluster.writes_since(*mark)?;
        all.extend(
            writes
                .iter()
                .map(|write| format!("{}: {write:?}", cluster.name())),
        );
    }
    Ok(all)
}

#[tokio::test]
async fn idle_minute_has_no_writes() -> Result<()> {
    let fleet = Fleet::start(FleetOptions {
        members: MEMBERS,
        ..FleetOptions::default()
    })
    .await?;
    let scene = Scene::of(&fleet).await?;
    prepare(&scene).await?;
    let statuses = scene.hub.list(&Id::rule("quiet", "any")).await?;

    // A hub that is killed and comes back makes no difference, neither at once nor when it has waited long enough.
    let marks = settled(&fleet).await?;
    fleet.kill_hub()?;
    fleet.start_hub().await?;
    let ends = "runnel_hub_frames_sent_total{frame=\"snapshot_end\"}";
    eventually("the agents to be back", SOON, async || {
        let ended = Metrics::of(&fleet.hub_ops_url()).await?.sum(ends)?;
        ensure!(ended >= MEMBERS as f64, "{ended} snapshots have ended");
        Ok(Some(()))
    })
    .await?;
    steadily("nobody writes", QUIET, async || {
        let writes = writes(&fleet, &marks)?;
        ensure!(writes.is_empty(), "{writes:#?}");
        Ok(())
    })
    .await?;
    let version = |object: &Value| object["metadata"]["resourceVersion"].clone();
    let after = scene.hub.list(&Id::rule("quiet", "any")).await?;
    ensure!(
        statuses.iter().map(version).eq(after.iter().map(version)),
        "a rule was written"
    );
    let metrics = Metrics::of(&fleet.hub_ops_url()).await?;
    ensure!(
        metrics.sum("runnel_hub_intents_sent_total")? == 0.0,
        "the new hub sent payloads"
    );
    Ok(())
}

/// The interval at which an agent stores its history token, and the hub's pace of a write a second.
const PACE: Duration = Duration::from_secs(62);

/// Waits until there was no write for longer than any write is delayed.
async fn settled(fleet: &Fleet) -> Result<Vec<Mark>> {
    let now = || {
        clusters(fleet)
            .into_iter()
            .map(ControlPlane::mark)
            .collect::<Vec<_>>()
    };
    let (mut marks, mut since) = (now(), std::time::Instant::now());
    eventually("a minute without a write", 3 * PACE, async || {
        if !writes(fleet, &marks)?.is_empty() {
            (marks, since) = (now(), std::time::Instant::now());
        }
        Ok((since.elapsed() > PACE).then(|| marks.clone()))
    })
    .await
}
