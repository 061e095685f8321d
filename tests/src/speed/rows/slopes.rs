//! Row 22: the hub's marginal cost of an object and of a rule, for the last ones compared with the
//! first ones.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt};
use serde_json::json;

use super::{MIB, reading};
use crate::speed::bar::Bar;
use crate::speed::crowd::Crowd;
use crate::speed::lab::{Lab, PATIENCE};
use crate::speed::process::{at_rest, resident};
use crate::speed::text::noise;
use crate::speed::verdict::Reading;
use crate::wait::eventually;

pub(super) const ROWS: &[u8] = &[22];
const CLUSTERS: usize = 20;
const RULE: &str = "all";
/// Bytes of text in each object.
const TEXT: usize = 1024;
/// Rules that are written at once.
const AT_ONCE: usize = 16;

/// The costs of a hub with a number of objects or rules.
#[derive(Clone, Copy)]
struct SizeCost {
    size: usize,
    memory: f64,
    computed: Duration,
}

pub(super) async fn run(quick: bool) -> Result<Vec<Reading>> {
    let (objects, rules) = if quick {
        ([200, 1200, 3200], [50, 250, 650])
    } else {
        ([500, 4000, 11_000], [200, 1200, 3200])
    };
    let (objects, rules) = (at_objects(&objects).await?, at_rules(&rules).await?);
    let mut readings = steps(
        &objects,
        ["memory per object", "hub CPU per object"],
        "objects",
    );
    readings.extend(steps(
        &rules,
        ["memory per rule", "hub CPU per rule"],
        "rules",
    ));
    readings.extend(in_all(&objects, "memory in all, objects", "objects"));
    readings.extend(in_all(&rules, "memory in all, rules", "rules"));
    Ok(readings)
}

/// A fresh hub with agents; one rule selects ever more objects.
async fn at_objects(sizes: &[usize]) -> Result<Vec<SizeCost>> {
    let (lab, _crowd) = start().await?;
    lab.rule(RULE, &[&format!("{RULE}-*")], json!({"all": true}))
        .await?;
    let (mut points, mut before) = (Vec::new(), 0);
    for &size in sizes {
        let _bar = Bar::spinner("one rule gets more objects");
        lab.write_all(
            (before..size)
                .map(|number| (format!("{RULE}-{number:05}"), noise(number as u64, TEXT))),
        )
        .await?;
        eventually("all copies", PATIENCE, async || {
            let summary = lab
                .rules()
                .get(RULE)
                .await?
                .status
                .and_then(|status| status.summary)
                .context("no summary")?;
            ensure!(
                summary.copies_applied == (size * CLUSTERS) as i64,
                "{summary:?}"
            );
            Ok(Some(()))
        })
        .await?;
        points.push(point(&lab, size).await?);
        before = size;
    }
    Ok(points)
}

/// A fresh hub with agents; there are ever more rules with an object each.
async fn at_rules(sizes: &[usize]) -> Result<Vec<SizeCost>> {
    let (lab, _crowd) = start().await?;
    let (mut points, mut before) = (Vec::new(), 0);
    for &size in sizes {
        let _bar = Bar::spinner("there are more rules");
        let names = (before..size).map(|number| format!("{RULE}-{number:05}"));
        lab.write_all(
            names
                .clone()
                .enumerate()
                .map(|(number, name)| (name, noise(number as u64, TEXT))),
        )
        .await?;
        let writes = names.clone().map(|name| {
            let lab = &lab;
            async move { lab.rule(&name, &[&name], json!({"all": true})).await }
        });
        futures::stream::iter(writes)
            .buffer_unordered(AT_ONCE)
            .try_collect::<()>()
            .await?;
        for name in names {
            lab.applied(&name, CLUSTERS).await?;
        }
        points.push(point(&lab, size).await?);
        before = size;
    }
    Ok(points)
}

async fn start() -> Result<(Lab, Crowd)> {
    let mut lab = Lab::start().await?;
    let mut crowd = Crowd::new(false);
    crowd.add(lab.members(CLUSTERS).await?);
    crowd.up_to_date(PATIENCE).await?;
    Ok((lab, crowd))
}

async fn point(lab: &Lab, size: usize) -> Result<SizeCost> {
    let pid = lab.pid()?;
    let computed = at_rest(pid).await?;
    Ok(SizeCost {
        size,
        memory: resident(pid)?,
        computed,
    })
}

fn in_all(
    points: &[SizeCost],
    what: &'static str,
    of: &'static str,
) -> impl Iterator<Item = Reading> {
    points
        .iter()
        .map(move |point| reading(22, what, (point.size, of), point.memory / MIB, None))
}

/// Returns the marginal cost of each step, compared with the first one.
fn steps(
    points: &[SizeCost],
    [memory, processor]: [&'static str; 2],
    of: &'static str,
) -> Vec<Reading> {
    let step = |pair: &[SizeCost]| match pair {
        [few, many] => {
            let more = many.size.saturating_sub(few.size) as f64;
            let spent = many.computed.saturating_sub(few.computed).as_secs_f64() * 1000.0;
            (
                many.size,
                (many.memory - few.memory) / 1024.0 / more,
                spent / more,
            )
        }
        _ => (0, f64::NAN, f64::NAN),
    };
    let all: Vec<(usize, f64, f64)> = points.windows(2).map(step).collect();
    let Some((_, first_memory, first_spent)) = all.first().copied() else {
        return Vec::new();
    };
    let read = |(size, kibibytes, spent): &(usize, f64, f64)| {
        [
            reading(22, memory, (*size, of), *kibibytes, Some(first_memory)),
            reading(22, processor, (*size, of), *spent, Some(first_spent)),
        ]
    };
    all.iter().skip(1).flat_map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_step_is_compared_with_the_first() {
        let point = |size: usize, kibibytes: usize, milliseconds: u64| SizeCost {
            size,
            memory: kibibytes as f64 * 1024.0,
            computed: Duration::from_millis(milliseconds),
        };
        let points = [
            point(100, 5000, 400),
            point(300, 5400, 600),
            point(700, 7000, 1400),
        ];
        let read: Vec<(f64, f64, Option<f64>)> = steps(&points, ["memory", "time"], "objects")
            .into_iter()
            .map(|reading| (reading.size, reading.runnel, reading.bare))
            .collect();
        assert_eq!(read, [(700.0, 4.0, Some(2.0)), (700.0, 2.0, Some(1.0))]);
        assert!(steps(&points[..1], ["memory", "time"], "objects").is_empty());
    }
}
