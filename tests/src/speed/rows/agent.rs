//! Rows 9 to 12 and 14: what a real agent needs for many copies, also when nothing happens, and what it costs to start it,
//! or its hub, again.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kube::core::ApiResource;
use serde_json::json;
use tokio::task::JoinSet;

use super::{MIB, of_each_sample, reading};
use crate::audit::{Mark, Write};
use crate::fleet::Fleet;
use crate::guard::Program;
use crate::restartable::Restartable;
use crate::scene::Metrics;
use crate::scratch::Scratch;
use crate::speed::bar::Bar;
use crate::speed::lab::{Lab, PATIENCE, SOURCES, make_namespace};
use crate::speed::process::{at_rest, computed, resident};
use crate::speed::sample::{Sample, kind_text};
use crate::speed::seen::WatchedEvents;
use crate::speed::text::noise;
use crate::speed::verdict::Reading;
use crate::wait::eventually;

pub(super) const ROWS: &[u8] = &[9, 10, 11, 12, 14];
const RULE: &str = "copied";
/// The file with the number of names in the bare watch.
const KNOWN: &str = "known";
/// The hub's count of members with a session.
const CONNECTED: &str = "runnel_member_connected";
/// The verbs of requests that write.
const WRITTEN: &[&str] = &["create", "update", "patch", "delete", "deletecollection"];
/// The agent's count of applies that changed nothing.
const NOOPS: &str = "runnel_apply_noop_total";
/// How long the agent is measured after a restart of it or its hub; half as long with small sizes.
const STEADY: Duration = Duration::from_secs(10);

/// Row 11 is about the hub, which sees no difference between kinds.
const ROWS_OF_KINDS: &[u8] = &[9, 10, 12, 14];

pub(super) async fn run(rows: &[u8], quick: bool) -> Result<Vec<Reading>> {
    of_each_sample(rows, quick, ROWS_OF_KINDS, async |sample| {
        run_with(sample, rows, quick).await
    })
    .await
}

async fn run_with(sample: Sample, rows: &[u8], quick: bool) -> Result<Vec<Reading>> {
    let very_many = rows.contains(&9) && sample == Sample::ConfigMap;
    let sizes: &[usize] = match (quick, very_many) {
        (true, _) => &[0, 300],
        (false, true) => &[0, 1000, 10_000],
        (false, false) => &[0, 1000],
    };
    let mut options = Lab::options_with_members(sample, 1);
    options.control_plane.audit_reads = true;
    let lab = Lab::of(Fleet::start(options).await?)
        .await?
        .distributing(sample)
        .await?;
    let member = lab.fleet.member(1).client().await?;
    make_namespace(&member, SOURCES).await?;
    // Before there is a copy: every event of a copy is a change.
    let mut watches = JoinSet::new();
    let seen = WatchedEvents::of(member, sample, &mut watches);
    let watch = BareWatch::start(&lab.fleet, &[sample.api()]).await?;
    lab.rule(RULE, &[&format!("{RULE}-*")], json!({"all": true}))
        .await?;
    let mut readings = Vec::new();
    let mut before = 0;
    for &size in sizes {
        let bar = Bar::spinner("objects are copied");
        lab.write_all(
            (before..size)
                .map(|number| (format!("{RULE}-{number:05}"), noise(number as u64, 1024))),
        )
        .await?;
        before = size;
        if size > 0 {
            copied(&lab, size).await?;
        }
        drop(bar);
        readings.push(memory(&lab, &watch, size).await?);
        // The row is about 1,000 copies; more of them only show memory.
        if size > 0 && readings.iter().all(|reading| reading.row == 9) {
            let steadily = if quick { STEADY / 2 } else { STEADY };
            let (noops, restarted) = restarted(&lab, size, steadily).await?;
            readings.extend(restarted);
            readings.push(hub_restarted(&lab, size, steadily).await?);
            if rows.contains(&10) || rows.contains(&14) {
                let time = Duration::from_secs(if quick { 10 } else { 600 });
                readings.push(steady(&lab, &watch, size, time).await?);
            }
            readings.extend(without_change(&lab, &seen, size, noops).await?);
        }
    }
    Ok(readings)
}

/// Waits until the rule's status counts all copies of this many sources as applied.
async fn copied(lab: &Lab, size: usize) -> Result<()> {
    eventually("the copies", PATIENCE, async || {
        let summary = lab
            .rules()
            .get(RULE)
            .await?
            .status
            .and_then(|status| status.summary)
            .context("no summary")?;
        ensure!(summary.copies_applied == size as i64, "{summary:?}");
        Ok(Some(()))
    })
    .await
}

async fn memory(lab: &Lab, watch: &BareWatch, size: usize) -> Result<Reading> {
    let agent = lab.fleet.agent_process(1).pid()?;
    let bare = watch.process.pid()?;
    watch.knows(size).await?;
    at_rest(agent).await?;
    at_rest(bare).await?;
    // Very many copies have a separate goal.
    let what = if size > 1000 {
        "agent memory, very many"
    } else {
        "agent memory"
    };
    Ok(reading(
        9,
        what,
        (size, &copies(lab)),
        resident(agent)? / MIB,
        Some(resident(bare)? / MIB),
    ))
}

/// What follows the size in the table.
fn copies(lab: &Lab) -> String {
    format!("copies{}", lab.sample.suffix())
}

/// Row 10.
async fn steady(lab: &Lab, watch: &BareWatch, size: usize, time: Duration) -> Result<Reading> {
    let [agent, bare] = cpu_at_rest(lab, watch, time).await?;
    Ok(reading(
        10,
        "agent CPU at rest",
        (size, &copies(lab)),
        agent,
        Some(bare),
    ))
}

/// Thousandths of a processor that the agent and the bare watch use while nothing happens.
pub(super) async fn cpu_at_rest(lab: &Lab, watch: &BareWatch, time: Duration) -> Result<[f64; 2]> {
    let pids = [lab.fleet.agent_process(1).pid()?, watch.process.pid()?];
    at_rest(pids[0]).await?;
    let before = [computed(pids[0])?, computed(pids[1])?];
    Bar::wait(time, "nothing happens").await;
    let spent = |which: usize| {
        let now = computed(pids[which])?;
        anyhow::Ok(now.saturating_sub(before[which]).as_secs_f64() / time.as_secs_f64() * 1000.0)
    };
    Ok([spent(0)?, spent(1)?])
}

/// Row 12; and the agent's count of applies without a change before it was started again.
async fn restarted(lab: &Lab, size: usize, time: Duration) -> Result<(f64, Vec<Reading>)> {
    let fleet = &lab.fleet;
    let metrics = Metrics::of(&fleet.agent_ops_url(1)).await?;
    let (applies, noops) = (metrics.sum("runnel_apply_total")?, counted(&metrics)?);
    ensure!(
        applies >= size as f64,
        "the agent counts {applies} applies of {size} copies"
    );
    fleet.stop_agent(1).await?;
    let mark = fleet.member(1).mark();
    fleet.start_agent(1).await?;
    fleet.connected(1).await?;
    Bar::wait(time, "the agent was started again").await;
    let spent = computed(fleet.agent_process(1).pid()?)?;
    let (requests, earlier) = (requests(fleet, mark)?, requests(fleet, Mark::default())?);
    ensure!(
        of(&earlier, WRITTEN) >= size as f64,
        "the audit log does not show who wrote the copies"
    );
    let is_single = |request: &&Write| request.verb == "get" && is_copy(lab.sample, request);
    let singles = requests.iter().filter(is_single).count() as f64;
    let at = (size, &*copies(lab));
    let readings = vec![
        reading(12, "writes to the member", at, of(&requests, WRITTEN), None),
        reading(12, "reads of single copies", at, singles, None),
        reading(
            12,
            "reads of the member",
            at,
            of(&requests, &["get", "list", "watch"]),
            None,
        ),
        reading(12, "agent CPU", at, spent.as_secs_f64() * 1000.0, None),
    ];
    Ok((noops, readings))
}

/// Row 11, for a member.
async fn hub_restarted(lab: &Lab, size: usize, time: Duration) -> Result<Reading> {
    let mark = lab.fleet.member(1).mark();
    lab.fleet.stop_hub().await?;
    lab.fleet.start_hub().await?;
    eventually("the agent at the new hub", PATIENCE, async || {
        let metrics = Metrics::of(&lab.fleet.hub_ops_url()).await?;
        Ok((metrics.has(CONNECTED) && metrics.sum(CONNECTED)? == 1.0).then_some(()))
    })
    .await?;
    Bar::wait(time, "the hub was started again").await;
    let writes = of(&requests(&lab.fleet, mark)?, WRITTEN);
    Ok(reading(
        11,
        "writes to a real member",
        (size, &copies(lab)),
        writes,
        None,
    ))
}

/// Row 14: the number of applies at the API server, the number of changes in a watch, and the
/// agent's own count.
async fn without_change(
    lab: &Lab,
    seen: &WatchedEvents,
    size: usize,
    before: f64,
) -> Result<Vec<Reading>> {
    let (verbs, metrics) = (
        ["create", "update", "patch"],
        Metrics::of(&lab.fleet.agent_ops_url(1)).await?,
    );
    let all = requests(&lab.fleet, Mark::default())?;
    let is_apply = |request: &&Write| {
        verbs.contains(&request.verb.as_str())
            && is_copy(lab.sample, request)
            && !request.dry_run
            && (200..300).contains(&request.code)
    };
    let applies = all.iter().filter(is_apply).count();
    let changes = seen.shown(|event| event.namespace == SOURCES && event.name.starts_with(RULE));
    ensure!(
        applies >= size && changes >= size,
        "{applies} applies and {changes} changes of {size} copies"
    );
    let at = (size, &*copies(lab));
    Ok(vec![
        reading(
            14,
            "applies without a change",
            at,
            applies as f64 - changes as f64,
            None,
        ),
        reading(
            14,
            "the same by the agent's count",
            at,
            before + counted(&metrics)?,
            None,
        ),
    ])
}

/// Returns the agent's counter, which must exist: a missing one is not zero.
fn counted(metrics: &Metrics) -> Result<f64> {
    ensure!(metrics.has(NOOPS), "the agent has no {NOOPS}");
    metrics.sum(NOOPS)
}

fn is_copy(sample: Sample, request: &Write) -> bool {
    request.resource == sample.api().plural
        && request.namespace == SOURCES
        && request.subresource.is_empty()
}

/// The agent's requests about copies, without those about its own Secrets and Leases.
fn requests(fleet: &Fleet, mark: Mark) -> Result<Vec<Write>> {
    let own = |request: &Write| {
        request.namespace == crate::fleet::NAMESPACE && request.resource == "secrets"
    };
    let all = fleet.member(1).writes_since(mark)?;
    Ok(all
        .into_iter()
        .filter(|request| request.user_agent.starts_with("runnel-agent") && !own(request))
        .collect())
}

/// How many of them are of these verbs, without those that change nothing.
fn of(requests: &[Write], verbs: &[&str]) -> f64 {
    requests
        .iter()
        .filter(|request| verbs.contains(&request.verb.as_str()) && !request.dry_run)
        .count() as f64
}

/// The bare watch of names, in a separate process.
pub(super) struct BareWatch {
    pub(super) process: Restartable,
    scratch: Scratch,
}

impl BareWatch {
    pub(super) async fn start(fleet: &Fleet, kinds: &[ApiResource]) -> Result<Self> {
        let scratch = Scratch::new("bare-watch")?;
        let program = Program::new(std::env::current_exe()?, scratch.path().join("bare.log"));
        let mut arguments: Vec<PathBuf> = vec![
            "--bare-watch".into(),
            fleet.member(1).kubeconfig().into(),
            scratch.path().join(KNOWN),
        ];
        arguments.extend(kinds.iter().map(|kind| kind_text(kind).into()));
        let process = Restartable::new("the bare watch", program.arguments(arguments));
        process.start()?;
        Ok(Self { process, scratch })
    }

    /// Waits until it has this many names: the baseline must have done its work.
    pub(super) async fn knows(&self, names: usize) -> Result<()> {
        eventually("the bare watch", PATIENCE, async || {
            self.process.check()?;
            let known =
                std::fs::read_to_string(self.scratch.path().join(KNOWN)).unwrap_or_default();
            Ok(known
                .trim()
                .parse()
                .is_ok_and(|known: usize| known >= names)
                .then_some(()))
        })
        .await
    }
}
