//! Row 20: very many agents that each have very many objects of one rule.

use std::time::Instant;

use anyhow::Result;
use runnel_proto::model::FAILURES_LIMIT;
use serde_json::json;

use super::pairs::{failing, size_of};
use super::{MIB, milliseconds, reading};
use crate::speed::bar::Bar;
use crate::speed::crowd::{Crowd, FAILING};
use crate::speed::lab::{Lab, PATIENCE};
use crate::speed::process::{at_rest, resident};
use crate::speed::text::noise;
use crate::speed::verdict::Reading;

pub(super) const ROWS: &[u8] = &[20];
const RULE: &str = "large";

pub(super) async fn run(quick: bool) -> Result<Vec<Reading>> {
    let (agents, objects) = if quick { (200, 200) } else { (10_000, 1000) };
    let mut lab = Lab::start().await?;
    let names = (0..objects).map(|number| format!("{RULE}-{number:04}"));
    lab.write_all(
        names
            .enumerate()
            .map(|(number, name)| (name, noise(number as u64, 1024))),
    )
    .await?;
    let mut crowd = Crowd::new(false);
    crowd.add(lab.members(agents).await?);
    crowd.up_to_date(PATIENCE).await?;
    let bar = Bar::spinner("a rule sends all objects to all agents");
    crowd.expect(objects, agents);
    let begin = Instant::now();
    lab.rule(RULE, &[&format!("{RULE}-*")], json!({"all": true}))
        .await?;
    let first = crowd.reached(PATIENCE).await?.duration_since(begin);
    lab.applied(RULE, agents).await?;
    at_rest(lab.pid()?).await?;
    let memory = resident(lab.pid()?)?;
    drop(bar);

    let bar = Bar::spinner("one object is edited, then the hub is started again");
    crowd.expect(1, agents);
    let begin = Instant::now();
    lab.write(&format!("{RULE}-0000"), &noise(objects as u64, 1024))
        .await?;
    let edit = crowd.reached(PATIENCE).await?.duration_since(begin);
    lab.applied(RULE, agents).await?;
    at_rest(lab.pid()?).await?;
    let intents = crowd.intents();
    lab.fleet.stop_hub().await?;
    crowd.cut_off(PATIENCE).await?;
    let begin = Instant::now();
    lab.fleet.start_hub().await?;
    crowd.up_to_date(PATIENCE).await?;
    let restart = begin.elapsed();
    at_rest(lab.pid()?).await?;
    let again = crowd.intents() - intents;
    drop(bar);
    // Row 2 at its largest.
    crowd.report(FAILING)?;
    let status = failing(&lab, RULE, agents * FAILURES_LIMIT).await?;
    let at = (agents * objects, "copies");
    Ok(vec![
        reading(20, "first delivery of all", at, milliseconds(first), None),
        reading(20, "hub memory with all", at, memory / MIB, None),
        reading(20, "edit of one to last ack", at, milliseconds(edit), None),
        reading(
            20,
            "hub restart to last in sync",
            at,
            milliseconds(restart),
            None,
        ),
        reading(20, "intents sent again", at, again as f64, None),
        size_of(&status, agents, "status, all failing")?,
    ])
}
