//! Row 21: the most memory that the hub takes while large objects travel to several members.

use anyhow::Result;
use serde_json::json;

use super::{MIB, reading};
use crate::speed::bar::Bar;
use crate::speed::crowd::Crowd;
use crate::speed::lab::{Lab, PATIENCE};
use crate::speed::process::peak;
use crate::speed::text::noise;
use crate::speed::verdict::Reading;

pub(super) const ROWS: &[u8] = &[21];
const RULE: &str = "heavy";
/// Bytes of text in each object; they do not shrink below three quarters.
const TEXT: usize = 500 * 1024;
const AGENTS: usize = 20;
/// Objects that are made at a time: this process does not keep them all.
const AT_ONCE: usize = 16;

pub(super) async fn run(quick: bool) -> Result<Vec<Reading>> {
    let objects = if quick { 100 } else { 1000 };
    let mut lab = Lab::start().await?;
    let bar = Bar::of(objects, "large objects are written");
    for number in 0..objects.div_ceil(AT_ONCE) {
        let names = number * AT_ONCE..((number + 1) * AT_ONCE).min(objects);
        lab.write_all(names.map(|name| (format!("{RULE}-{name:04}"), noise(name as u64, TEXT)))).await?;
        (0..AT_ONCE).for_each(|_| bar.step());
    }
    drop(bar);
    let mut crowd = Crowd::new(false);
    crowd.add(lab.members(AGENTS).await?);
    crowd.up_to_date(PATIENCE).await?;
    let _bar = Bar::spinner("they travel to all members");
    crowd.expect(objects, AGENTS);
    lab.rule(RULE, &[&format!("{RULE}-*")], json!({"all": true})).await?;
    crowd.reached(PATIENCE).await?;
    lab.ready(RULE, AGENTS).await?;
    let most = peak(lab.pid()?)?;
    let contents = (objects * TEXT) as f64;
    Ok(vec![reading(21, "hub memory at its peak", (objects, "objects of 500 KiB"), most / MIB, Some(contents / MIB))])
}
