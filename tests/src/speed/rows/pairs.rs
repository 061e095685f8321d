//! Rows 2, 8 and 17, and a part of row 6: the cost of storing, reporting and tracking every object
//! of every cluster, and the bytes of a first delivery.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use runnel_api::RuleStatus;
use runnel_proto::model::{FAILURES_LIMIT, Payload};
use serde_json::{Value, json};

use super::{MIB, reading};
use crate::audit::Write;
use crate::speed::bar::Bar;
use crate::speed::crowd::{Crowd, FAILING};
use crate::speed::lab::{Lab, PATIENCE};
use crate::speed::process::{at_rest, resident};
use crate::speed::text::corpus;
use crate::speed::verdict::Reading;
use crate::wait::eventually;

pub(super) const ROWS: &[u8] = &[2, 6, 8, 17];
/// Bytes of the text in each object.
const TEXT: usize = 1024;
const RULE: &str = "pairs";
/// Members with a common prefix of their names, so that a glob excludes them.
const HUNDRED: usize = 100;

/// The costs of one hub for a number of clusters with all objects.
struct PairsCost {
    pairs: usize,
    memory: f64,
    /// Bytes that each agent received for them.
    received: f64,
    statuses: usize,
    /// For how long they were delivered, until the hub rested.
    time: Duration,
    other_writes: usize,
    /// The growth of etcd since the first cluster.
    stored: usize,
}

/// Each number of clusters has a fresh hub and agents without intents. The first cluster gets the
/// objects, so that the hub has loaded them.
pub(super) async fn run(quick: bool) -> Result<Vec<Reading>> {
    let (agents, objects) = if quick { (250, 250) } else { (1000, 1000) };
    let sizes = [1, if quick { HUNDRED } else { agents / 2 }, agents];
    let mut lab = Lab::start().await?;
    let texts = corpus(objects, TEXT)?;
    let sources = texts
        .iter()
        .enumerate()
        .map(|(number, text)| (format!("text-{number:04}"), text.clone()));
    lab.write_all(sources).await?;
    let mut crowd = Crowd::new(false);
    crowd.add(lab.members(agents).await?);
    crowd.up_to_date(PATIENCE).await?;
    let mut points = Vec::new();
    for clusters in sizes {
        let _bar =
            Bar::spinner("objects are delivered to one cluster, then to more, by a fresh hub");
        if !points.is_empty() {
            lab.delete_rule(RULE).await?;
        }
        at_rest(lab.pid()?).await?;
        lab.fleet.stop_hub().await?;
        crowd.cut_off(PATIENCE).await?;
        lab.fleet.start_hub().await?;
        crowd.up_to_date(PATIENCE).await?;
        points.push(deliver(&lab, &crowd, objects, (clusters, agents)).await?);
    }
    let status = status(&lab).await?;
    crowd.report(FAILING)?;
    let failing = failing(&lab, RULE, agents * FAILURES_LIMIT).await?;
    readings(agents, &texts, &points, [&status, &failing])
}

/// Delivers to one cluster, and then to a number of them.
async fn deliver(
    lab: &Lab,
    crowd: &Crowd,
    objects: usize,
    (clusters, of): (usize, usize),
) -> Result<PairsCost> {
    crowd.expect(objects, 1);
    lab.rule(RULE, &["text-*"], json!({"names": ["simulated-00000"]}))
        .await?;
    crowd.reached(PATIENCE).await?;
    lab.applied(RULE, 1).await?;
    at_rest(lab.pid()?).await?;
    let (before, received, mark) = (
        lab.fleet.hub().stored().await?,
        crowd.bytes().0,
        lab.fleet.hub().mark(),
    );
    let begin = Instant::now();
    if clusters > 1 {
        crowd.expect(objects, clusters - 1);
        lab.rule(RULE, &["text-*"], first_of(clusters, of)).await?;
        crowd.reached(PATIENCE).await?;
    }
    let received = (crowd.bytes().0 - received) as f64 / clusters.saturating_sub(1) as f64;
    lab.applied(RULE, clusters).await?;
    at_rest(lab.pid()?).await?;
    let time = begin.elapsed();
    let all = lab.fleet.hub().writes_since(mark)?;
    // The status of the Fleet counts the copies of all rules, and is written at most once a second.
    let all = all
        .iter()
        .filter(|write| write.user_agent.starts_with("runnel-hub") && write.resource != "fleets");
    let (statuses, others): (Vec<&Write>, Vec<&Write>) = all.partition(|write| is_status(write));
    Ok(PairsCost {
        pairs: clusters * objects,
        memory: resident(lab.pid()?)?,
        received,
        statuses: statuses.len(),
        time,
        other_writes: others.len(),
        stored: growth(&before, &lab.fleet.hub().stored().await?),
    })
}

/// Selects the first `clusters` clusters.
fn first_of(clusters: usize, of: usize) -> Value {
    let others = clusters.div_ceil(HUNDRED)..of.div_ceil(HUNDRED);
    if others.is_empty() {
        json!({"all": true})
    } else {
        let globs: Vec<String> = others
            .map(|hundred| format!("simulated-{hundred:03}*"))
            .collect();
        json!({"all": true, "exclude": globs})
    }
}

/// How many bytes there are more, of all keys that have grown.
fn growth(before: &BTreeMap<String, usize>, after: &BTreeMap<String, usize>) -> usize {
    after
        .iter()
        .map(|(key, size)| size.saturating_sub(before.get(key).copied().unwrap_or(0)))
        .sum()
}

async fn status(lab: &Lab) -> Result<RuleStatus> {
    lab.rules().get(RULE).await?.status.context("no status")
}

/// Returns a rule's status after a number of copies have failed.
pub(super) async fn failing(lab: &Lab, rule: &str, copies: usize) -> Result<RuleStatus> {
    eventually("the failures in the rule's status", PATIENCE, async || {
        let status = lab.rules().get(rule).await?.status.context("no status")?;
        let summary = status.summary.as_ref().context("no summary")?;
        ensure!(summary.copies_failed == copies as i64, "{summary:?}");
        Ok(Some(status))
    })
    .await
}

/// The size of a rule's status as JSON, with this many listed clusters.
pub(super) fn size_of(status: &RuleStatus, clusters: usize, what: &'static str) -> Result<Reading> {
    let size = serde_json::to_vec(status)?.len() as f64;
    Ok(reading(2, what, (clusters, "clusters"), size, None))
}

fn readings(
    agents: usize,
    texts: &[String],
    points: &[PairsCost],
    statuses: [&RuleStatus; 2],
) -> Result<Vec<Reading>> {
    let (first, last) = points
        .first()
        .zip(points.last())
        .context("nothing was measured")?;
    ensure!(
        last.statuses > 0 && last.stored > 0,
        "nobody has written the status of a rule that goes to more clusters"
    );
    let content = |text: &String| json!({"data": {"value": text}}).to_string();
    // The minimum for every agent in any encoding: the data of every object.
    let whole: usize = texts.iter().map(|text| content(text).len()).sum();
    let packed: usize = texts
        .iter()
        .map(|text| Payload::encode(content(text).into_bytes()).bytes().len())
        .sum();
    let (pairs, objects) = (last.pairs, (texts.len(), "objects of 1 KiB"));
    let slope = (last.memory - first.memory) / last.pairs.saturating_sub(first.pairs) as f64;
    let [well, failing] = statuses;
    let mut readings = vec![
        size_of(well, agents, "status, all well")?,
        size_of(failing, agents, "status, all failing")?,
        reading(
            2,
            "hub writes beside the status",
            (pairs, "pairs"),
            last.other_writes as f64,
            None,
        ),
        reading(
            2,
            "etcd's growth",
            (pairs, "pairs"),
            last.stored as f64,
            None,
        ),
        reading(
            6,
            "status writes a second",
            (pairs, "pairs"),
            last.statuses as f64 / last.time.as_secs_f64().max(1.0),
            None,
        ),
        reading(8, "memory per pair", (pairs, "pairs"), slope, None),
    ];
    let memory = |point: &PairsCost| {
        reading(
            8,
            "memory in all",
            (point.pairs, "pairs"),
            point.memory / MIB,
            None,
        )
    };
    readings.extend(points.iter().map(memory));
    readings.extend([
        reading(
            17,
            "bytes of a first delivery",
            objects,
            last.received,
            Some(whole as f64),
        ),
        reading(
            17,
            "bytes beside contents packed one by one",
            objects,
            last.received,
            Some(packed as f64),
        ),
    ]);
    Ok(readings)
}

fn is_status(write: &Write) -> bool {
    write.resource == "distributionrules" && write.subresource == "status"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_leave_out_all_but_the_first_hundreds() {
        assert_eq!(first_of(300, 300), json!({"all": true}));
        assert_eq!(
            first_of(100, 300),
            json!({"all": true, "exclude": ["simulated-001*", "simulated-002*"]})
        );
        assert_eq!(
            format!("simulated-{:05}", 199).get(..13),
            Some("simulated-001")
        );
    }

    #[test]
    fn shrunk_sizes_do_not_offset_grown_ones() {
        let of = |pairs: &[(&str, usize)]| {
            pairs
                .iter()
                .map(|(key, size)| ((*key).to_owned(), *size))
                .collect()
        };
        assert_eq!(
            growth(
                &of(&[("a", 10), ("b", 10), ("c", 10)]),
                &of(&[("a", 4), ("b", 13), ("d", 5)])
            ),
            8
        );
    }
}
