//! Rows 1, 4, 6, 17 and 18: one source is edited and distributed to all clusters.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures::StreamExt;
use kube::Api;
use kube::runtime::{WatchStreamExt, watcher};
use parking_lot::Mutex;
use runnel_api::DistributionRule;
use runnel_proto::model::Payload;
use runnel_transport::grpc::runnel_client::RunnelClient;
use serde_json::json;
use tokio::task::JoinSet;
use tonic::transport::Channel;

use super::idle::calm;
use super::{GAP, fits, gather_at_bare, milliseconds, reading};
use crate::audit::Mark;
use crate::speed::bar::Bar;
use crate::speed::crowd::Crowd;
use crate::speed::lab::{BareHub, Lab, PATIENCE, say};
use crate::speed::process::{at_rest, computed};
use crate::speed::text::{any_seed, noise};
use crate::speed::verdict::Reading;
use crate::wait::eventually;

pub(super) const ROWS: &[u8] = &[1, 4, 6, 17, 18];
/// The hub is quiet when it has written nothing for this long.
const QUIET: Duration = Duration::from_secs(5);
const RULE: &str = "edited";
const SOURCE: &str = "edited";
/// Bytes of text in the source.
const TEXT: usize = 1024;

/// The costs of a series of edits.
#[derive(Default)]
struct Series {
    to_last_ack: Vec<f64>,
    to_status: Vec<f64>,
    received: u64,
    processor: Duration,
    writes: usize,
}

pub(super) async fn run(quick: bool) -> Result<Vec<Reading>> {
    let (sizes, edits): (&[usize], usize) = if quick {
        (&[300, 700], 4)
    } else {
        (&[1000, 10_000], 20)
    };
    let mut lab = Lab::start().await?;
    lab.write(SOURCE, "first").await?;
    lab.rule(RULE, &[SOURCE], json!({"all": true})).await?;
    let (statuses, _watch) = watch(&lab);
    let mut crowd = Crowd::new(false);
    let mut readings = Vec::new();
    for &size in sizes {
        let (mut runnel, mut bare) = (Series::default(), Series::default());
        if fits(2 * size) {
            gather(&mut crowd, &mut lab, size).await?;
            let mut other = BareFanout::start(size).await?;
            at_rest(lab.pid()?).await?;
            let mark = lab.fleet.hub().mark();
            let bar = Bar::of(edits, "edits, in turns on the hub and on the bare one");
            for _ in 0..edits {
                hub_edits(&crowd, &lab, &statuses, 1, &mut runnel).await?;
                other.edits(1, &mut bare).await?;
                bar.step();
            }
            runnel.writes = writes_since(&lab, mark).await?;
        } else {
            // Fewer connections at once: the hub's edits are measured between two halves of the
            // bare one's.
            crowd = Crowd::new(false);
            let bar = Bar::of(3, "edits on the bare hub, on the hub, and on the bare one");
            BareFanout::start(size)
                .await?
                .edits(edits.div_ceil(2), &mut bare)
                .await?;
            bar.step();
            gather(&mut crowd, &mut lab, size).await?;
            let mark = lab.fleet.hub().mark();
            hub_edits(&crowd, &lab, &statuses, edits, &mut runnel).await?;
            bar.step();
            runnel.writes = writes_since(&lab, mark).await?;
            crowd = Crowd::new(false);
            BareFanout::start(size)
                .await?
                .edits(edits / 2, &mut bare)
                .await?;
        }
        readings.extend(read(size, edits, &runnel, &bare));
    }
    let costs: Vec<(f64, f64)> = readings
        .iter()
        .filter(|reading| reading.row == 18)
        .map(|reading| (reading.size, reading.runnel))
        .collect();
    if let [(_, few), .., (size, many)] = costs[..] {
        let what = "the last size beside the first";
        readings.push(reading(
            18,
            what,
            (size as usize, "agents"),
            many,
            Some(few),
        ));
    }
    Ok(readings)
}

/// Connects this many agents, and waits until the rule is ready in all of them and the hub is quiet.
async fn gather(crowd: &mut Crowd, lab: &mut Lab, size: usize) -> Result<()> {
    let members = lab.members(size).await?;
    let _bar = Bar::spinner("agents connect to the hub");
    crowd.add(members.into_iter().skip(crowd.len()));
    crowd.up_to_date(PATIENCE).await?;
    lab.applied(RULE, size).await?;
    // Row 1 counts the writes for edits, and not those for members that have just connected.
    calm(lab, QUIET).await?;
    at_rest(lab.pid()?).await.map(drop)
}

/// Includes late writes.
async fn writes_since(lab: &Lab, mark: Mark) -> Result<usize> {
    tokio::time::sleep(GAP * 2).await;
    let writes = lab.hub_writes(mark)?;
    println!("writes of the hub: {}", lab.hub_writes_by_resource(mark)?);
    Ok(writes)
}

async fn hub_edits(
    crowd: &Crowd,
    lab: &Lab,
    statuses: &Statuses,
    edits: usize,
    series: &mut Series,
) -> Result<()> {
    for _ in 0..edits {
        let text = noise(any_seed()?, TEXT);
        let (mark, pid, received) = (lab.fleet.hub().mark(), lab.pid()?, crowd.bytes().0);
        let (before, revision) = (computed(pid)?, statuses.newest());
        crowd.expect(1, crowd.len());
        let begin = Instant::now();
        lab.write(SOURCE, &text).await?;
        let acked = crowd.reached(PATIENCE).await?;
        let observed = statuses.after(&revision, crowd.len()).await?;
        ensure!(
            observed >= acked,
            "the status told of an edit that not all had acked"
        );
        // As long after the last ack as the bare hub is given.
        tokio::time::sleep_until((acked + GAP).into()).await;
        series
            .to_last_ack
            .push(milliseconds(acked.duration_since(begin)));
        series
            .to_status
            .push(milliseconds(observed.saturating_duration_since(acked)));
        series.received += crowd.bytes().0 - received;
        series.processor += computed(pid)?.saturating_sub(before);
        let writes = lab.hub_writes(mark)?;
        ensure!(
            writes > 0,
            "the audit log shows no write of the hub after an edit, though its status changed"
        );
    }
    Ok(())
}

/// A bare hub with agents.
struct BareFanout {
    hub: BareHub,
    crowd: Crowd,
    voice: RunnelClient<Channel>,
}

impl BareFanout {
    async fn start(size: usize) -> Result<Self> {
        let hub = BareHub::start().await?;
        let crowd = gather_at_bare(&hub, size).await?;
        let voice = hub.voice().await?;
        let mut bare = Self { hub, crowd, voice };
        // The first delivery is a warm-up, as for the hub.
        bare.edits(1, &mut Series::default()).await?;
        Ok(bare)
    }

    async fn edits(&mut self, edits: usize, series: &mut Series) -> Result<()> {
        for _ in 0..edits {
            let text = content(&noise(any_seed()?, TEXT));
            let (pid, received) = (self.hub.pid()?, self.crowd.bytes().0);
            let before = computed(pid)?;
            self.crowd.expect(1, self.crowd.len());
            let begin = Instant::now();
            say(&mut self.voice, &text).await?;
            let acked = self.crowd.reached(PATIENCE).await?;
            // The same time as for the hub, to include the cost of the connections.
            tokio::time::sleep_until((acked + GAP).into()).await;
            series
                .to_last_ack
                .push(milliseconds(acked.duration_since(begin)));
            series.received += self.crowd.bytes().0 - received;
            series.processor += computed(pid)?.saturating_sub(before);
        }
        Ok(())
    }
}

fn read(size: usize, edits: usize, runnel: &Series, bare: &Series) -> Vec<Reading> {
    let at = (size, "agents");
    let copies = (size * edits) as f64;
    let each = |duration: Duration| duration.as_secs_f64() * 1e6 / copies;
    let text = content(&noise(0, TEXT));
    let (payload, packed) = (
        text.len() as f64,
        Payload::encode(text.into_bytes()).bytes().len() as f64,
    );
    vec![
        reading(
            1,
            "hub writes per edit",
            at,
            runnel.writes as f64 / edits as f64,
            None,
        ),
        reading(4, "edit to last ack, p50", at, 0.0, None)
            .median_of(&runnel.to_last_ack, &bare.to_last_ack),
        reading(6, "last ack to status, p50", at, 0.0, None).median_of(&runnel.to_status, &[]),
        reading(
            17,
            "bytes per edit",
            at,
            runnel.received as f64 / copies,
            Some(payload),
        ),
        reading(
            17,
            "bytes per edit, beside it packed",
            at,
            runnel.received as f64 / copies,
            Some(packed),
        ),
        reading(
            18,
            "hub CPU per copy",
            at,
            each(runnel.processor),
            Some(each(bare.processor)),
        ),
    ]
}

/// The content of a ConfigMap with this text on the wire.
fn content(text: &str) -> String {
    json!({"data": {"value": text}}).to_string()
}

/// The time at which the rule's status showed a revision as applied in this many clusters.
#[derive(Clone, Default)]
struct Statuses(Arc<Mutex<Vec<(Instant, String, i64)>>>);

impl Statuses {
    fn newest(&self) -> String {
        self.0
            .lock()
            .last()
            .map(|(_, revision, _)| revision.clone())
            .unwrap_or_default()
    }

    /// When another revision than this one was applied in all clusters.
    async fn after(&self, revision: &str, clusters: usize) -> Result<Instant> {
        eventually("the edit in the rule's status", PATIENCE, async || {
            let all = self.0.lock();
            let mut whole = all.iter().skip_while(|(_, seen, _)| seen != revision);
            let found =
                whole.find(|(_, seen, ready)| seen != revision && *ready == clusters as i64);
            Ok(found.map(|(at, ..)| *at))
        })
        .await
    }
}

fn watch(lab: &Lab) -> (Statuses, JoinSet<()>) {
    let (statuses, rules) = (Statuses::default(), lab.rules());
    let mut tasks = JoinSet::new();
    tasks.spawn(record(rules, statuses.clone()));
    (statuses, tasks)
}

async fn record(rules: Api<DistributionRule>, statuses: Statuses) {
    let mut events = std::pin::pin!(watcher(rules, watcher::Config::default()).default_backoff());
    while let Some(event) = events.next().await {
        let Ok(watcher::Event::Apply(rule) | watcher::Event::InitApply(rule)) = event else {
            continue;
        };
        let at = Instant::now();
        let Some(status) = rule.status else { continue };
        let ready = status.summary.map_or(0, |summary| summary.clusters_ready);
        statuses
            .0
            .lock()
            .push((at, status.revision.unwrap_or_default(), ready));
    }
}
