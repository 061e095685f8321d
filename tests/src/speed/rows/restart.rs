//! Row 11: the hub is started again, and nothing has changed.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::json;

use super::reading;
use crate::speed::bar::Bar;
use crate::speed::crowd::Crowd;
use crate::speed::lab::{BareHub, Lab, PATIENCE};
use crate::speed::process::at_rest;
use crate::speed::verdict::Reading;

pub(super) const ROWS: &[u8] = &[11];
const RULE: &str = "kept";
const OBJECTS: usize = 100;

pub(super) async fn run(quick: bool) -> Result<Vec<Reading>> {
    let agents = if quick { 500 } else { 10_000 };
    let mut lab = Lab::start().await?;
    let sources = (0..OBJECTS).map(|number| (format!("{RULE}-{number}"), "x".repeat(1000)));
    lab.write_all(sources).await?;
    lab.rule(RULE, &[&format!("{RULE}-*")], json!({"all": true})).await?;
    let mut crowd = Crowd::new(false);
    crowd.add(lab.members(agents).await?);
    crowd.up_to_date(PATIENCE).await?;
    lab.ready(RULE, agents).await?;
    at_rest(lab.pid()?).await?;
    let bar = Bar::spinner("the hub is started again, then the bare one");
    let (mark, intents) = (lab.fleet.hub().mark(), crowd.intents());
    lab.fleet.stop_hub().await?;
    crowd.cut_off(PATIENCE).await?;
    let begin = Instant::now();
    lab.fleet.start_hub().await?;
    crowd.up_to_date(PATIENCE).await?;
    let runnel = milliseconds(begin);
    at_rest(lab.pid()?).await?;
    let (writes, again) = (lab.hub_writes(mark)?, crowd.intents() - intents);
    // Their sockets are needed for the other ones.
    drop(crowd);
    let other = bare(agents).await?;
    drop(bar);
    let at = (agents, "agents");
    Ok(vec![
        reading(11, "start to last agent in sync", at, runnel, Some(other)),
        reading(11, "intents sent again", at, again as f64, None),
        reading(11, "hub writes", at, writes as f64, None),
    ])
}

async fn bare(agents: usize) -> Result<f64> {
    let hub = BareHub::start().await?;
    let mut crowd = Crowd::new(true);
    crowd.add(hub.members(0..agents)?);
    crowd.up_to_date(PATIENCE).await?;
    hub.kill()?;
    crowd.cut_off(Duration::from_secs(60)).await?;
    let begin = Instant::now();
    hub.launch().await?;
    crowd.up_to_date(PATIENCE).await?;
    Ok(milliseconds(begin))
}

fn milliseconds(begin: Instant) -> f64 {
    begin.elapsed().as_secs_f64() * 1000.0
}
