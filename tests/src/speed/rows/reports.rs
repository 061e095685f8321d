//! Row 15: many reports are received.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::{gather_at_bare, reading};
use crate::speed::bar::Bar;
use crate::speed::crowd::Crowd;
use crate::speed::lab::{BareHub, Lab, PATIENCE, say};
use crate::speed::process::{at_rest, computed};
use crate::speed::verdict::Reading;
use crate::wait::eventually;

pub(super) const ROWS: &[u8] = &[15];
const RULE: &str = "reported";
/// Reports of each agent in a round; an even number, so that the last one is healthy.
const REPORTS: u32 = 50;
/// Between two reports of one agent.
const BETWEEN: Duration = Duration::from_millis(50);

pub(super) async fn run(quick: bool) -> Result<Vec<Reading>> {
    let (agents, rounds) = if quick { (200, 2) } else { (1000, 3) };
    let mut lab = Lab::start().await?;
    lab.write(RULE, "something").await?;
    lab.rule(RULE, &[RULE], json!({"all": true})).await?;
    let mut crowd = Crowd::new(false);
    crowd.add(lab.members(agents).await?);
    crowd.up_to_date(PATIENCE).await?;
    lab.applied(RULE, agents).await?;
    let bare = BareHub::start().await?;
    let others = gather_at_bare(&bare, agents).await?;
    let (mut hub, mut other) = (Duration::ZERO, Duration::ZERO);
    let bar = Bar::of(rounds, "rounds of reports, in turns");
    for number in 0..rounds {
        // The order alternates.
        if number % 2 == 1 {
            other += round(&others, bare.pid()?).await?;
        }
        hub += round(&crowd, lab.pid()?).await?;
        if number % 2 == 0 {
            other += round(&others, bare.pid()?).await?;
        }
        bar.step();
    }
    prove(&lab, &crowd, &bare).await?;
    let reports = (agents * rounds) as f64 * f64::from(REPORTS);
    let each = |spent: Duration| reports / spent.as_secs_f64();
    Ok(vec![reading(
        15,
        "reports per CPU second",
        (agents, "agents"),
        each(hub),
        Some(each(other)),
    )])
}

/// Streams are in order: after the last report of an agent the hub has handled all its earlier
/// ones. One more report changes the rule's status, and the bare hub acks each.
async fn prove(lab: &Lab, crowd: &Crowd, bare: &BareHub) -> Result<()> {
    lab.applied(RULE, crowd.len()).await?;
    crowd.report(1)?;
    eventually(
        "the last report of each agent in the rule's status",
        PATIENCE,
        async || {
            let summary = lab
                .rules()
                .get(RULE)
                .await?
                .status
                .and_then(|status| status.summary)
                .context("no summary")?;
            ensure!(summary.copies_applied == 0, "{summary:?}");
            Ok(Some(()))
        },
    )
    .await?;
    tokio::time::timeout(PATIENCE, say(&mut bare.voice().await?, "the end"))
        .await
        .context("no acks of the bare hub")?
}

/// The processor time of a process for one round, until it is idle again.
async fn round(crowd: &Crowd, pid: u32) -> Result<Duration> {
    at_rest(pid).await?;
    let (before, reports) = (computed(pid)?, crowd.reports());
    for left in (0..REPORTS).rev() {
        crowd.report(left)?;
        tokio::time::sleep(BETWEEN).await;
    }
    let spent = at_rest(pid).await?.saturating_sub(before);
    // All were sent, and over connections that are there still.
    crowd.up_to_date(PATIENCE).await?;
    let (sent, meant) = (
        crowd.reports() - reports,
        crowd.len() as u64 * u64::from(REPORTS),
    );
    ensure!(sent == meant, "{sent} of {meant} reports were sent");
    Ok(spent)
}
