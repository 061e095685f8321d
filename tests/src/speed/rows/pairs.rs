//! Rows 2, 8 and 17: what it costs to store and to know what every cluster has of every object, and what a first delivery
//! costs the wire.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::reading;
use crate::audit::Write;
use crate::speed::bar::Bar;
use crate::speed::crowd::Crowd;
use crate::speed::lab::{Lab, PATIENCE};
use crate::speed::process::{at_rest, resident};
use crate::speed::verdict::Reading;

pub(super) const ROWS: &[u8] = &[2, 8, 17];
/// Bytes of the text in each object.
const TEXT: usize = 1024;
const RULE: &str = "pairs";
/// What configuration reads like: the manual and the custom resource definitions.
const CORPUS: &[&str] =
    &["README.md", "runbook.md", "crds/runnel.dev_distributionrules.yaml", "crds/runnel.dev_memberclusters.yaml"];

/// First one cluster gets the objects, so that they themselves are in the hub's memory already, then every cluster.
pub(super) async fn run(quick: bool) -> Result<Vec<Reading>> {
    let (agents, objects) = if quick { (300, 300) } else { (1000, 1000) };
    let mut lab = Lab::start().await?;
    let mut crowd = Crowd::new(false);
    crowd.add(lab.members(agents).await?);
    let bar = Bar::spinner("objects are delivered to one cluster, then to all");
    crowd.up_to_date(PATIENCE).await?;
    let texts = texts(objects)?;
    let sources = texts.iter().enumerate().map(|(number, text)| (format!("text-{number:04}"), text.clone()));
    lab.write_all(sources).await?;
    crowd.expect(objects, 1);
    lab.rule(RULE, &["text-*"], json!({"names": ["simulated-00000"]})).await?;
    crowd.reached(PATIENCE).await?;
    lab.ready(RULE, 1).await?;
    at_rest(lab.pid()?).await?;
    let (few, received, mark) = (resident(lab.pid()?)?, crowd.bytes().0, lab.fleet.hub().mark());
    crowd.expect(objects, agents - 1);
    lab.rule(RULE, &["text-*"], json!({"all": true})).await?;
    crowd.reached(PATIENCE).await?;
    let bytes = crowd.bytes().0 - received;
    lab.ready(RULE, agents).await?;
    at_rest(lab.pid()?).await?;
    let many = resident(lab.pid()?)?;
    drop(bar);
    let status = lab.rules().get(RULE).await?.status.context("no status")?;
    let all = lab.fleet.hub().writes_since(mark)?;
    let all = all.iter().filter(|write| write.user_agent.starts_with("runnel-hub"));
    let (statuses, others): (Vec<&Write>, Vec<&Write>) = all.partition(|write| is_status(write));
    ensure!(!statuses.is_empty(), "the audit log shows no write of the rule's status");
    let pairs = (agents - 1) * objects;
    // What every agent must learn, whatever the words: the data of every object.
    let content: usize = texts.iter().map(|text| json!({"data": {"value": text}}).to_string().len()).sum();
    let wire = bytes as f64 / (agents - 1) as f64;
    Ok(vec![
        reading(2, "status of a rule", (agents, "clusters"), serde_json::to_vec(&status)?.len() as f64, None),
        reading(2, "hub writes beside the status", (pairs, "pairs"), others.len() as f64, None),
        reading(8, "memory per pair", (pairs, "pairs"), (many - few) / pairs as f64, None),
        reading(17, "bytes of a first delivery", (objects, "objects of 1 KiB"), wire, Some(content as f64)),
    ])
}

fn is_status(write: &Write) -> bool {
    write.resource == "distributionrules" && write.subresource == "status"
}

/// So many texts of 1 KiB, cut from what is in this repository, each with its number so that no two are equal.
fn texts(count: usize) -> Result<Vec<String>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy");
    let mut corpus = String::new();
    for file in CORPUS {
        corpus.push_str(&std::fs::read_to_string(folder.join(file)).with_context(|| format!("no {file}"))?);
    }
    let ascii: Vec<u8> = corpus.bytes().filter(u8::is_ascii).collect();
    ensure!(ascii.len() > 2 * TEXT, "the corpus has {} bytes", ascii.len());
    let text = |number: usize| {
        // Cut at another place each time round, so that no text comes twice.
        let from = number * 997 % (ascii.len() - TEXT);
        let cut = String::from_utf8_lossy(&ascii[from..from + TEXT - 6]);
        format!("{number:05}\n{cut}")
    };
    Ok((0..count).map(text).collect())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn texts_are_of_one_size_and_no_two_are_equal() {
        let texts = texts(1000).unwrap_or_default();
        assert_eq!(texts.iter().collect::<BTreeSet<_>>().len(), 1000);
        assert!(texts.iter().all(|text| text.len() == TEXT));
    }
}
