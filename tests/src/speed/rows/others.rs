//! Row 19: the cost of an edit among many unrelated sources, rules and clusters.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::json;

use super::{GAP, reading};
use crate::speed::bar::Bar;
use crate::speed::crowd::Crowd;
use crate::speed::lab::{Lab, PATIENCE};
use crate::speed::process::{at_rest, computed};
use crate::speed::verdict::Reading;

pub(super) const ROWS: &[u8] = &[19];
const EDITED: &str = "edited";
const OTHERS: &str = "others";
/// Target clusters of the edited source.
const CLUSTERS: usize = 20;
/// The keepalives of connections come every 9 s, and the hub checks its members every 15 s. The
/// time with edits and the time without have the same number of both.
const TIME: Duration = Duration::from_secs(45);
/// From the start of an edit to that of the next.
const PACE: Duration = Duration::from_millis(100);
pub(super) async fn run(quick: bool) -> Result<Vec<Reading>> {
    let many = if quick { 200 } else { 1000 };
    let mut lab = Lab::start().await?;
    let mut crowd = Crowd::new(false);
    crowd.add(lab.members(CLUSTERS).await?);
    crowd.up_to_date(PATIENCE).await?;
    let names: Vec<String> = (0..CLUSTERS)
        .map(|number| format!("simulated-{number:05}"))
        .collect();
    lab.write(EDITED, "first").await?;
    lab.rule(EDITED, &[EDITED], json!({"names": names})).await?;
    lab.applied(EDITED, CLUSTERS).await?;
    // The first edits of a process are a warm-up.
    cost(&lab, &crowd, Duration::from_secs(9)).await?;
    let alone = cost(&lab, &crowd, TIME).await?;
    let read = |what, of, cost| reading(19, what, (many, of), cost, Some(alone));
    let mut readings = Vec::new();

    lab.write_all(
        (0..many).map(|number| (format!("{OTHERS}-{number:04}"), format!("text {number}"))),
    )
    .await?;
    lab.rule(
        OTHERS,
        &[&format!("{OTHERS}-*")],
        json!({"names": [names[0]]}),
    )
    .await?;
    lab.applied(OTHERS, 1).await?;
    readings.push(read(
        "beside other sources",
        "sources",
        cost(&lab, &crowd, TIME).await?,
    ));

    let bar = Bar::of(many, "other rules");
    for number in 0..many {
        let source = format!("{OTHERS}-{number:04}");
        lab.rule(&source, &[&source], json!({"names": [names[1]]}))
            .await?;
        bar.step();
    }
    drop(bar);
    lab.applied(&format!("{OTHERS}-{:04}", many - 1), 1).await?;
    readings.push(read(
        "beside other rules, too",
        "rules",
        cost(&lab, &crowd, TIME).await?,
    ));

    crowd.add(
        lab.members(CLUSTERS + many)
            .await?
            .into_iter()
            .skip(CLUSTERS),
    );
    crowd.up_to_date(PATIENCE).await?;
    readings.push(read(
        "beside other clusters, too",
        "clusters",
        cost(&lab, &crowd, TIME).await?,
    ));
    Ok(readings)
}

/// The hub's processor time per edit in milliseconds, of edits at an even pace for so long, less what it computes in as long
/// a time without one.
async fn cost(lab: &Lab, crowd: &Crowd, time: Duration) -> Result<f64> {
    let pid = lab.pid()?;
    at_rest(pid).await?;
    let _bar = Bar::spinner("edits, and as long a time without");
    let (before, begin, mut edits) = (computed(pid)?, Instant::now(), 0_u32);
    while begin.elapsed() < time {
        crowd.expect(1, CLUSTERS);
        lab.write(EDITED, &format!("edit {edits} since {before:?}"))
            .await?;
        crowd.reached(PATIENCE).await?;
        edits += 1;
        tokio::time::sleep_until((begin + PACE * edits).into()).await;
    }
    let (after, length) = (computed(pid)?, begin.elapsed());
    // The last edit's status is no part of the time without one.
    tokio::time::sleep(GAP).await;
    let still = computed(pid)?;
    tokio::time::sleep(length).await;
    let (busy, idle) = (
        after.saturating_sub(before),
        computed(pid)?.saturating_sub(still),
    );
    Ok((busy.as_secs_f64() - idle.as_secs_f64()) * 1000.0 / f64::from(edits))
}
