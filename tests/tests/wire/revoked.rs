//! Revocation at every point: an open stream, a half sent snapshot, a renewal, a reconnect.

use std::cell::Cell;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use kube::api::DeleteParams;
use runnel_proto::model::{AgentFrame, HubFrame};
use runnel_tests::scene::Scene;
use runnel_tests::simulated::{AgentStream, Credentials, Holdings, SimulatedAgent, sketch};
use runnel_tests::wait::eventually;
use serde_json::json;
use tokio::sync::Notify;

use super::costs::noise;
use super::stage::{Stage, alone, shared};

/// Sources of a snapshot that takes a while.
const SOURCES: usize = 40;
/// How long the slowest of all may take on a busy machine; the promise is a second.
const GENEROUS: Duration = Duration::from_secs(5);

/// Big sources, and a rule that brings them to every cluster of the test.
async fn big_rule(stage: &Stage) -> Result<()> {
    for number in 0..SOURCES {
        stage
            .write(&format!("big-{number:02}"), &noise(300_000)?)
            .await?;
    }
    let clusters = json!({"clusters": {"selector": {"matchLabels": {"set": stage.namespace}}}});
    stage.rule("all", &["big-*"], clusters).await.map(drop)
}

/// Joins a cluster and waits until the hub has all sources for it, so that its next snapshot is whole.
async fn planned(stage: &Stage, cluster: &str) -> Result<Credentials> {
    let credentials = stage.join(cluster).await?;
    let agent = SimulatedAgent::start(&credentials, Holdings::default());
    agent
        .until("all sources", |state| {
            state.holdings.sources().count() == SOURCES
        })
        .await?;
    agent.stop().await;
    Ok(credentials)
}

/// Reads until an intent came, and acknowledges what brought it.
async fn first_batch(line: &mut AgentStream) -> Result<()> {
    while line.record().upserts().is_empty() {
        if let HubFrame::Batch(batch) = line.must().await? {
            line.send(&AgentFrame::Ack(batch.nonce, Vec::new()));
        }
    }
    Ok(())
}

async fn revoke(stage: &Stage, cluster: &str, deletes: bool) -> Result<()> {
    if deletes {
        stage
            .members()
            .delete(cluster, &DeleteParams::default())
            .await
            .map(drop)?
    } else {
        stage
            .patch_member(cluster, json!({"spec": {"accepted": false}}))
            .await
            .map(drop)?
    }
    Ok(())
}

#[tokio::test]
async fn a_revocation_in_the_middle_of_a_snapshot_ends_it_there() -> Result<()> {
    let stage = shared("halfway").await?;
    big_rule(&stage).await?;
    for (cluster, deletes, reason) in [
        ("halfway-a", false, "not-accepted"),
        ("halfway-b", true, "gone"),
    ] {
        let credentials = planned(&stage, cluster).await?;
        let mut line = AgentStream::greeted(&credentials, Vec::new()).await?;
        first_batch(&mut line).await?;
        // It reads no more for now, so that the rest of the snapshot is still to be sent.
        let since = Instant::now();
        revoke(&stage, cluster, deletes).await?;
        line.end(Duration::from_secs(1).saturating_sub(since.elapsed()))
            .await?;
        println!(
            "cut in the middle of a snapshot after {:?}",
            since.elapsed()
        );
        let record = line.record();
        let last = record.frames.last().map(sketch);
        ensure!(
            last == Some(format!("Revoked {reason}")),
            "{}",
            record.sketch()
        );
        let ended = record
            .frames
            .iter()
            .any(|frame| matches!(frame, HubFrame::SnapshotEnd(_)));
        let sent = record.upserts().len();
        ensure!(
            !ended && (1..SOURCES).contains(&sent),
            "{sent} of {SOURCES} sent, to the end: {ended}"
        );
        // Missed frames are not sent later, by the same connection or another.
        ensure!(
            AgentStream::greeted(&credentials, Vec::new())
                .await
                .is_err(),
            "{cluster} was let in again"
        );
    }
    Ok(())
}

#[tokio::test]
async fn peer_that_reads_nothing_is_cut_off() -> Result<()> {
    let stage = shared("withheld").await?;
    big_rule(&stage).await?;
    let credentials = planned(&stage, "withheld-a").await?;
    let ended = async |count: usize| {
        let log = std::fs::read_to_string(stage.fleet.hub_log())?;
        let ends = log
            .lines()
            .filter(|line| line.contains("session ended") && line.contains("withheld-a"))
            .count();
        Ok((ends >= count).then_some(()))
    };
    eventually("the end of the first session", 2 * GENEROUS, async || {
        ended(1).await
    })
    .await?;
    let mut line = AgentStream::greeted(&credentials, Vec::new()).await?;
    first_batch(&mut line).await?;
    // The rest of the snapshot waits for a window that does not open: the session is not polled for
    // frames.
    revoke(&stage, "withheld-a", false).await?;
    eventually("the end of the session", 4 * GENEROUS, async || {
        ended(2).await
    })
    .await?;
    line.end(GENEROUS).await?;
    let sent = line.record().upserts().len();
    ensure!(
        (1..SOURCES).contains(&sent),
        "{sent} of {SOURCES} sent: {}",
        line.record().sketch()
    );
    Ok(())
}

/// What the cluster is doing when it is revoked.
#[derive(Clone, Copy, Debug)]
enum Path {
    Live,
    MidSnapshot,
    Renewing,
    Reconnecting,
}

/// The frames of both sides of a revocation.
#[derive(Default)]
struct Times {
    /// The path is trodden.
    begun: Notify,
    /// When the API server had taken the revocation.
    revoked: Cell<Option<Instant>>,
}

/// Returns the time of the last frame that a revoked cluster should not receive: of the last
/// success on this path.
async fn last_success(
    path: Path,
    credentials: &Credentials,
    line: Option<AgentStream>,
    times: &Times,
) -> Result<Instant> {
    let (mut last, mut successes) = (Instant::now(), 0);
    if let Some(mut line) = line {
        times.begun.notify_one();
        while let Ok(Some(frame)) = line.next().await {
            last = Instant::now();
            if let HubFrame::Batch(batch) = frame {
                line.send(&AgentFrame::Ack(batch.nonce, Vec::new()));
            }
        }
        let observed = line.record().frames.last().map(sketch).unwrap_or_default();
        ensure!(
            observed.starts_with("Revoked "),
            "the stream ended otherwise: {}",
            line.record().sketch()
        );
        return Ok(last);
    }
    loop {
        let late = times
            .revoked
            .get()
            .is_some_and(|revoked| revoked.elapsed() > 2 * GENEROUS);
        ensure!(
            !late,
            "{path:?} went on: {successes} successes, the last {:?} ago",
            last.elapsed()
        );
        let allowed = match path {
            Path::Renewing => {
                let key = credentials.key();
                credentials
                    .renew(key.clone(), key.certificate_request()?)
                    .await
                    .is_ok()
            }
            _ => AgentStream::greeted(credentials, Vec::new()).await.is_ok(),
        };
        if !allowed {
            return Ok(last);
        }
        (last, successes) = (Instant::now(), successes + 1);
        times.begun.notify_one();
    }
}

#[tokio::test]
async fn twenty_revocations_on_all_paths_are_timed() -> Result<()> {
    let stage = alone("timed").await?;
    big_rule(&stage).await?;
    // Ten members are deleted within a minute: more than the fleet's limit are no revocation.
    let scene = Scene::of(stage.fleet).await?;
    scene.lift_fleet_limits().await?;
    let mut times = Vec::new();
    for round in 0..20 {
        let path = [
            Path::Live,
            Path::MidSnapshot,
            Path::Renewing,
            Path::Reconnecting,
        ][round % 4];
        let cluster = format!("timed-{round}");
        let credentials = match path {
            Path::MidSnapshot => planned(&stage, &cluster).await?,
            _ => stage.join(&cluster).await?,
        };
        let line = match path {
            Path::Renewing | Path::Reconnecting => {
                drop(AgentStream::greeted(&credentials, Vec::new()).await?);
                None
            }
            Path::Live | Path::MidSnapshot => {
                let mut line = AgentStream::greeted(&credentials, Vec::new()).await?;
                first_batch(&mut line).await?;
                let has_all = |line: &AgentStream| {
                    line.record()
                        .frames
                        .iter()
                        .any(|it| matches!(it, HubFrame::SnapshotEnd(_)))
                };
                while matches!(path, Path::Live) && !has_all(&line) {
                    if let HubFrame::Batch(batch) = line.must().await? {
                        line.send(&AgentFrame::Ack(batch.nonce, Vec::new()));
                    }
                }
                Some(line)
            }
        };
        let observed = Times::default();
        // From when the API server has taken it: how long that takes is not the hub's doing.
        let revoked = async {
            observed.begun.notified().await;
            revoke(&stage, &cluster, round / 4 % 2 == 0).await?;
            let since = Instant::now();
            observed.revoked.set(Some(since));
            anyhow::Ok(since)
        };
        let (since, last) =
            tokio::try_join!(revoked, last_success(path, &credentials, line, &observed))?;
        let took = last.saturating_duration_since(since);
        println!("revoked while {path:?}: the last byte came after {took:?}");
        times.push(took);
    }
    times.sort();
    println!(
        "20 revocations: p50 {:?}, max {:?}",
        times[times.len() / 2],
        times[times.len() - 1]
    );
    ensure!(times.iter().all(|took| *took < GENEROUS), "{times:?}");
    Ok(())
}
