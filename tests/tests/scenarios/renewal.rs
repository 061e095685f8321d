//! Certificates that live for seconds, in real agents under a steady stream of edits: no stream is missed for a moment, no
//! edit is lost and none is sent twice.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use runnel_tests::fleet::{Fleet, FleetOptions};
use runnel_tests::scene::{Draft, Id, Metrics, RuleDraft, Scene, condition};
use runnel_tests::wait::eventually;
use serde_json::json;

const LIFE: &str = "16s";
const RENEWALS: usize = 4;

fn output(log: &str, words: &str) -> usize {
    log.lines().filter(|line| line.contains(words)).count()
}

#[tokio::test]
async fn certificates_renew_under_edits_without_repetition() -> Result<()> {
    let hub_arguments = vec![format!("--certificate-life={LIFE}")];
    let fleet = Fleet::start(FleetOptions {
        hub_arguments,
        ..FleetOptions::default()
    })
    .await?;
    let (scene, home) = (Scene::of(&fleet).await?, "renewal");
    let (hub, member) = (&scene.hub, scene.member(1));
    scene.hub_namespaces(&[home]).await?;
    scene.member_namespaces(&[home]).await?;
    let rule = Id::rule(home, "all");
    hub.make(
        &RuleDraft::new(home, "all")
            .named(&["edited", "constant"])
            .everywhere()
            .json(),
    )
    .await?;
    let source = hub
        .make(&Draft::config_map(home, "edited").data("n", "0").json())
        .await?;
    let constant = hub
        .make(
            &Draft::config_map(home, "constant")
                .data("n", "always")
                .json(),
        )
        .await?;
    scene.arrives(&source, &rule, &[home]).await?;
    scene.arrives(&constant, &rule, &[home]).await?;
    let (id, record) = (Id::member("member-1"), Id::member_record("member-1"));
    let connected = condition(&hub.get(&id).await?, "Connected")?.clone();
    let log = || std::fs::read_to_string(fleet.hub_log()).context("the hub's log");
    let before = (
        output(&log()?, "agent connected"),
        output(&log()?, "session ended"),
    );
    let payloads = async || {
        Metrics::of(&fleet.agent_ops_url(1))
            .await?
            .sum("runnel_payload_received_bytes_total")
    };
    let (bytes, since) = (payloads().await?, Instant::now());

    let (mut edit, mut longest, mut keys) = (0, Duration::ZERO, BTreeSet::new());
    while output(&log()?, "agent connected") < before.0 + RENEWALS {
        edit += 1;
        ensure!(
            since.elapsed() < Duration::from_secs(120),
            "too few renewals in two minutes, {edit} edits"
        );
        let began = Instant::now();
        let edited = hub
            .change(
                &Id::of(&source)?,
                json!({"data": {"n": format!("{edit:06}")}}),
            )
            .await?;
        member.has_copy(&edited, home, &rule).await?;
        longest = longest.max(began.elapsed());
        let observed = hub.get(&id).await?;
        let now = condition(&observed, "Connected")?;
        ensure!(
            now["status"] == "True" && now["lastTransitionTime"] == connected["lastTransitionTime"],
            "{now}"
        );
        let record = hub.get(&record).await?;
        for key in record["spec"]["identity"]["keys"]
            .as_array()
            .into_iter()
            .flatten()
        {
            keys.insert(key["fingerprint"].to_string());
        }
    }
    // Each stream took over from one that was there, and the agent's one never failed.
    ensure!(
        output(&log()?, "session ended") == before.1,
        "a session ended before the next one was there"
    );
    ensure!(keys.len() > RENEWALS, "{} keys", keys.len());
    ensure!(longest < Duration::from_secs(5), "an edit took {longest:?}");
    // All edits are of one length: what was sent is exactly their number of payloads.
    let sent = payloads().await? - bytes;
    let each = sent / f64::from(edit);
    ensure!(
        each.fract() == 0.0 && each < 1000.0,
        "{sent} bytes for {edit} edits"
    );
    eventually(
        "the older keys to be retired",
        Duration::from_secs(30),
        async || {
            let observed = hub.get(&id).await?;
            let record = hub.get(&record).await?;
            let identity = &record["spec"]["identity"];
            let (kept, retired) = (identity["keys"].as_array(), identity["retired"].as_array());
            let (kept, retired) = (kept.map_or(0, Vec::len), retired.map_or(0, Vec::len));
            ensure!(
                condition(&observed, "PossibleKeyTheft").is_err(),
                "{}",
                observed["status"]
            );
            Ok((kept <= 2 && retired >= RENEWALS - 1).then_some(()))
        },
    )
    .await?;
    println!("{edit} edits over {RENEWALS} renewals, the longest took {longest:?}");
    Ok(())
}
