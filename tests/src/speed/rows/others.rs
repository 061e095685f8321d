//! Row 19: what an edit costs beside many other sources, rules and clusters that it does not concern.

use std::time::Instant;

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
/// Clusters that the edited source goes to.
const CLUSTERS: usize = 20;
pub(super) async fn run(quick: bool) -> Result<Vec<Reading>> {
    let (many, edits) = if quick { (200, (3, 30)) } else { (1000, (5, 50)) };
    let mut lab = Lab::start().await?;
    let mut crowd = Crowd::new(false);
    crowd.add(lab.members(CLUSTERS).await?);
    crowd.up_to_date(PATIENCE).await?;
    let names: Vec<String> = (0..CLUSTERS).map(|number| format!("simulated-{number:05}")).collect();
    lab.write(EDITED, "first").await?;
    lab.rule(EDITED, &[EDITED], json!({"names": names})).await?;
    lab.ready(EDITED, CLUSTERS).await?;
    // The first edits of a process are not like the others.
    costs(&lab, &crowd, (1, edits.1)).await?;
    let alone = costs(&lab, &crowd, edits).await?;
    let read = |number: usize, what: &str, costs: &[f64]| {
        let at = format!("{} other {what}", super::super::verdict::number(many as f64));
        let of_all = reading(19, "hub CPU per edit", (number * many, what), 0.0, None);
        Reading { at, ..of_all.median_of(costs, &alone) }
    };
    let mut readings = Vec::new();

    lab.write_all((0..many).map(|number| (format!("{OTHERS}-{number:04}"), format!("text {number}")))).await?;
    lab.rule(OTHERS, &[&format!("{OTHERS}-*")], json!({"names": [names[0]]})).await?;
    lab.ready(OTHERS, 1).await?;
    readings.push(read(1, "sources", &costs(&lab, &crowd, edits).await?));

    let bar = Bar::of(many, "other rules");
    for number in 0..many {
        let source = format!("{OTHERS}-{number:04}");
        lab.rule(&source, &[&source], json!({"names": [names[1]]})).await?;
        bar.step();
    }
    drop(bar);
    lab.ready(&format!("{OTHERS}-{:04}", many - 1), 1).await?;
    readings.push(read(2, "rules, too", &costs(&lab, &crowd, edits).await?));

    crowd.add(lab.members(CLUSTERS + many).await?.into_iter().skip(CLUSTERS));
    crowd.up_to_date(PATIENCE).await?;
    readings.push(read(3, "clusters, too", &costs(&lab, &crowd, edits).await?));
    Ok(readings)
}

/// The hub's processor time per edit in milliseconds, of so many windows of time with so many edits, less what it computes
/// in a window as long without one. That may be less than nothing once: what the hub does besides is in either.
async fn costs(lab: &Lab, crowd: &Crowd, (windows, edits): (usize, usize)) -> Result<Vec<f64>> {
    let pid = lab.pid()?;
    at_rest(pid).await?;
    let bar = Bar::of(windows, "windows of edits");
    let mut costs = Vec::new();
    for window in 0..windows {
        let (before, begin) = (computed(pid)?, Instant::now());
        for number in 0..edits {
            crowd.expect(1, CLUSTERS);
            lab.write(EDITED, &format!("edit {number} of {window}")).await?;
            crowd.reached(PATIENCE).await?;
        }
        tokio::time::sleep(GAP).await;
        let (after, length) = (computed(pid)?, begin.elapsed());
        tokio::time::sleep(length).await;
        let (busy, idle) = (after.saturating_sub(before), computed(pid)?.saturating_sub(after));
        costs.push((busy.as_secs_f64() - idle.as_secs_f64()) * 1000.0 / edits as f64);
        bar.step();
    }
    Ok(costs)
}
