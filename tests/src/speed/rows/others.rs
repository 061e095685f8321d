//! Row 19: what an edit costs beside many other sources, rules and clusters that it does not concern.

use std::time::Duration;

use anyhow::Result;
use serde_json::json;

use super::reading;
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
/// Longer than the least time between two writes of one status.
const GAP: Duration = Duration::from_millis(1200);

pub(super) async fn run(quick: bool) -> Result<Vec<Reading>> {
    let (many, edits) = if quick { (200, 10) } else { (1000, 20) };
    let mut lab = Lab::start().await?;
    let mut crowd = Crowd::new(false);
    crowd.add(lab.members(CLUSTERS).await?);
    crowd.up_to_date(PATIENCE).await?;
    let names: Vec<String> = (0..CLUSTERS).map(|number| format!("simulated-{number:05}")).collect();
    lab.write(EDITED, "first").await?;
    lab.rule(EDITED, &[EDITED], json!({"names": names})).await?;
    lab.ready(EDITED, CLUSTERS).await?;
    let alone = cost(&lab, &crowd, edits).await?;
    let read = |what: &str, cost: f64| reading(19, "hub CPU per edit", (many, what), cost, Some(alone));
    let mut readings = Vec::new();

    lab.write_all((0..many).map(|number| (format!("{OTHERS}-{number:04}"), format!("text {number}")))).await?;
    lab.rule(OTHERS, &[&format!("{OTHERS}-*")], json!({"names": [names[0]]})).await?;
    lab.ready(OTHERS, 1).await?;
    readings.push(read("other sources", cost(&lab, &crowd, edits).await?));

    let bar = Bar::of(many, "other rules");
    for number in 0..many {
        let source = format!("{OTHERS}-{number:04}");
        lab.rule(&source, &[&source], json!({"names": [names[1]]})).await?;
        bar.step();
    }
    drop(bar);
    lab.ready(&format!("{OTHERS}-{:04}", many - 1), 1).await?;
    readings.push(read("other rules, too", cost(&lab, &crowd, edits).await?));

    crowd.add(lab.members(CLUSTERS + many).await?.into_iter().skip(CLUSTERS));
    crowd.up_to_date(PATIENCE).await?;
    readings.push(read("other clusters, too", cost(&lab, &crowd, edits).await?));
    Ok(readings)
}

/// The hub's processor time per edit in milliseconds, less what it computes in the same time without one.
async fn cost(lab: &Lab, crowd: &Crowd, edits: usize) -> Result<f64> {
    let pid = lab.pid()?;
    at_rest(pid).await?;
    let bar = Bar::of(edits, "edits");
    let (mut busy, mut idle) = (Duration::ZERO, Duration::ZERO);
    for number in 0..edits {
        let before = computed(pid)?;
        crowd.expect(1, CLUSTERS);
        lab.write(EDITED, &format!("edit {number}")).await?;
        crowd.reached(PATIENCE).await?;
        tokio::time::sleep(GAP).await;
        let after = computed(pid)?;
        tokio::time::sleep(GAP).await;
        busy += after.saturating_sub(before);
        idle += computed(pid)?.saturating_sub(after);
        bar.step();
    }
    Ok(busy.saturating_sub(idle).as_secs_f64() * 1000.0 / edits as f64)
}
