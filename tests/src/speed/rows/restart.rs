//! Row 11: the hub is started again, and nothing has changed.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use runnel_hub::writer::CHECK_INTERVAL;
use runnel_hub_core::status::SETTLING;
use serde_json::json;

use super::{fits, gather_at_bare, milliseconds_since, reading};
use crate::speed::bar::Bar;
use crate::speed::crowd::Crowd;
use crate::speed::lab::{BareHub, Lab, PATIENCE};
use crate::speed::process::at_rest;
use crate::speed::text::noise;
use crate::speed::verdict::Reading;

pub(super) const ROWS: &[u8] = &[11];
const RULE: &str = "kept";
const OBJECTS: usize = 100;

/// The costs of the restarts of a hub.
#[derive(Default)]
struct Restarts {
    to_in_sync: Vec<f64>,
    /// From the hub to each agent until all are in sync.
    bytes: Vec<f64>,
    again: u64,
    writes: usize,
}

pub(super) async fn run(quick: bool) -> Result<Vec<Reading>> {
    let (agents, rounds) = if quick { (600, 2) } else { (10_000, 3) };
    // Long enough for the hub's timers: the end of settling, and a check of all members after it.
    let watched = if quick {
        Duration::from_secs(3)
    } else {
        SETTLING + CHECK_INTERVAL + Duration::from_secs(5)
    };
    let mut lab = Lab::start().await?;
    lab.write_all(
        (0..OBJECTS).map(|number| (format!("{RULE}-{number}"), noise(number as u64, 1000))),
    )
    .await?;
    lab.rule(RULE, &[&format!("{RULE}-*")], json!({"all": true}))
        .await?;
    let (mut hub, mut bare) = (Restarts::default(), Restarts::default());
    if fits(2 * agents) {
        let crowd = gather(&mut lab, agents).await?;
        let mut other = BareRestart::start(agents).await?;
        for round in 0..rounds {
            // The order alternates.
            if round % 2 == 1 {
                other.restart(&mut bare).await?;
            }
            restart(&lab, &crowd, watched, &mut hub).await?;
            if round % 2 == 0 {
                other.restart(&mut bare).await?;
            }
        }
    } else {
        // Fewer connections at once: the hub's restarts are measured between those of the bare one.
        BareRestart::start(agents).await?.restart(&mut bare).await?;
        let crowd = gather(&mut lab, agents).await?;
        for _ in 0..rounds {
            restart(&lab, &crowd, watched, &mut hub).await?;
        }
        drop(crowd);
        let mut other = BareRestart::start(agents).await?;
        for _ in 1..rounds {
            other.restart(&mut bare).await?;
        }
    }
    lab.shows_hub_writes()?;
    let (at, seconds) = ((agents, "agents"), watched.as_secs());
    let in_all = format!("{rounds} times {agents} agents, {seconds} s each");
    let counted = |what, count: f64| Reading {
        at: in_all.clone(),
        ..reading(11, what, at, count, None)
    };
    Ok(vec![
        reading(11, "start to last agent in sync", at, 0.0, None)
            .median_of(&hub.to_in_sync, &bare.to_in_sync),
        reading(11, "bytes to an agent", at, 0.0, None).median_of(&hub.bytes, &bare.bytes),
        counted("intents sent again", hub.again as f64),
        counted("hub writes", hub.writes as f64),
    ])
}

async fn gather(lab: &mut Lab, agents: usize) -> Result<Crowd> {
    let mut crowd = Crowd::new(false);
    crowd.add(lab.members(agents).await?);
    crowd.up_to_date(PATIENCE).await?;
    lab.applied(RULE, agents).await?;
    ensure!(
        crowd.intents() >= (agents * OBJECTS) as u64,
        "only {} intents were acked",
        crowd.intents()
    );
    Ok(crowd)
}

async fn restart(lab: &Lab, crowd: &Crowd, watched: Duration, into: &mut Restarts) -> Result<()> {
    at_rest(lab.pid()?).await?;
    let bar = Bar::spinner("the hub is started again");
    let (mark, intents) = (lab.fleet.hub().mark(), crowd.intents());
    lab.fleet.stop_hub().await?;
    crowd.cut_off(PATIENCE).await?;
    let (begin, received) = (Instant::now(), crowd.bytes().0);
    lab.fleet.start_hub().await?;
    in_sync(crowd, begin, received, into).await?;
    drop(bar);
    Bar::wait(
        watched,
        "the hub is watched until it has said all that it has to say",
    )
    .await;
    // No connection was lost.
    crowd.up_to_date(PATIENCE).await?;
    let writes = lab.hub_writes(mark)?;
    if writes > 0 {
        println!("writes of the hub: {}", lab.hub_writes_by_resource(mark)?);
    }
    into.writes += writes;
    into.again += crowd.intents() - intents;
    Ok(())
}

/// Waits for the last agent, and writes down how long that took since `begin`, and what they received since `received`.
async fn in_sync(crowd: &Crowd, begin: Instant, received: u64, into: &mut Restarts) -> Result<()> {
    crowd.up_to_date(PATIENCE).await?;
    into.to_in_sync.push(milliseconds_since(begin));
    into.bytes
        .push((crowd.bytes().0 - received) as f64 / crowd.len() as f64);
    Ok(())
}

/// A bare hub with agents.
struct BareRestart {
    hub: BareHub,
    crowd: Crowd,
}

impl BareRestart {
    async fn start(agents: usize) -> Result<Self> {
        let hub = BareHub::start().await?;
        let crowd = gather_at_bare(&hub, agents).await?;
        Ok(Self { hub, crowd })
    }

    async fn restart(&mut self, into: &mut Restarts) -> Result<()> {
        let _bar = Bar::spinner("the bare hub is started again");
        at_rest(self.hub.pid()?).await?;
        self.hub.kill()?;
        self.crowd.cut_off(PATIENCE).await?;
        let (begin, received) = (Instant::now(), self.crowd.bytes().0);
        self.hub.launch().await?;
        in_sync(&self.crowd, begin, received, into).await
    }
}
