//! Invalid frames: out of order, too long, or malformed: they are refused without effect on others.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use runnel_proto::model::{AgentFrame, Hello, HubFrame, RuleState, RuleUid, SourceRef};
use runnel_proto::{PROTOCOL_MAX, PROTOCOL_MIN, wire};
use runnel_tests::scene::Metrics;
use runnel_tests::simulated::{AgentStream, Holdings, SimulatedAgent};
use runnel_transport::tls::{Connector, Route};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::Code;

use super::stage::{Stage, shared, value};

/// The time limit for a refusal.
const REFUSED: Duration = Duration::from_secs(10);

pub(super) fn hello(cluster: &str) -> AgentFrame {
    let text = || "test".to_owned();
    AgentFrame::Hello(Hello {
        protocol_min: 1,
        protocol_max: 1,
        agent_version: text(),
        kubernetes_version: text(),
        boot_id: text(),
        cluster_uid: format!("uid-of-{cluster}"),
    })
}

fn state(uid: &str) -> RuleState {
    RuleState::new(uid.into())
}

/// A correct member beside the misbehaving one.
struct Bystander {
    agent: SimulatedAgent,
    source: SourceRef,
}

impl Bystander {
    async fn new(stage: &Stage) -> Result<Self> {
        let cluster = format!("{}-bystander", stage.namespace);
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

    /// Its stream is the first one still, and works.
    async fn is_unharmed(&self, stage: &Stage, round: usize) -> Result<()> {
        let text = format!("round {round}");
        stage.write("settings", &text).await?;
        let arrived =
            |holdings: &Holdings| value(holdings, &self.source).as_deref() == Some(text.as_str());
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

#[tokio::test]
async fn frames_out_of_order_are_refused() -> Result<()> {
    let stage = shared("order").await?;
    let bystander = Bystander::new(&stage).await?;
    let credentials = stage.join("order-a").await?;
    let hello = || hello(&credentials.cluster);
    let uid = || RuleUid::from("a");
    let source = || SourceRef::new("configmaps", "a", "b");
    let begin = [hello(), AgentFrame::AckedRules(Vec::new(), true)];
    let cases: Vec<Vec<AgentFrame>> = vec![
        vec![AgentFrame::AckedRules(Vec::new(), true)],
        vec![AgentFrame::Ack(1, Vec::new())],
        vec![AgentFrame::Report(vec![state("a")])],
        vec![AgentFrame::ContentRequest(uid(), vec![source()])],
        vec![AgentFrame::Handover],
        vec![hello(), AgentFrame::Handover],
        vec![AgentFrame::Detail(uid(), Vec::new(), true)],
        vec![hello(), hello()],
        vec![hello(), AgentFrame::Report(vec![state("a")])],
        vec![
            hello(),
            AgentFrame::AckedRules(Vec::new(), false),
            AgentFrame::Ack(1, Vec::new()),
        ],
        [&begin[..], &[hello()]].concat(),
    ];
    for (number, frames) in cases.iter().enumerate() {
        let mut line = AgentStream::open(&credentials).await?;
        frames.iter().for_each(|frame| line.send(frame));
        let end = line
            .end(REFUSED)
            .await
            .with_context(|| format!("case {number}"))?;
        ensure!(
            end.code() == Code::FailedPrecondition,
            "case {number}: {end:?}"
        );
        ensure!(
            end.message()
                .contains("out of order: Hello, AckedRules, then all others"),
            "case {number}: {end:?}"
        );
    }

    // Not a range of protocol versions of this hub.
    let mut line = AgentStream::open(&credentials).await?;
    let AgentFrame::Hello(first) = hello() else {
        anyhow::bail!("a Hello")
    };
    line.send(&AgentFrame::Hello(Hello {
        protocol_min: 900,
        protocol_max: 901,
        ..first
    }));
    let end = line.end(REFUSED).await?;
    let hub = format!("this hub {PROTOCOL_MIN} to {PROTOCOL_MAX}");
    let words = [
        "the agent uses protocols 900 to 901",
        &hub,
        "upgrade the hub",
    ];
    ensure!(end.code() == Code::FailedPrecondition, "{end:?}");
    ensure!(
        words.iter().all(|words| end.message().contains(words)),
        "{end:?}"
    );

    // Frames that an agent cannot avoid are no violation: discovered copies, repeated acks,
    // unrequested pairs, requests for nothing.
    let mut line = AgentStream::greeted(&credentials, vec![state("never-heard-of")]).await?;
    for frame in [
        AgentFrame::AckedRules(vec![state("found-later")], true),
        AgentFrame::Ack(900, Vec::new()),
        AgentFrame::Ack(900, Vec::new()),
        AgentFrame::Detail(uid(), Vec::new(), false),
        AgentFrame::ContentRequest(uid(), vec![source()]),
        AgentFrame::Report(Vec::new()),
    ] {
        line.send(&frame);
    }
    let still = tokio::time::timeout(Duration::from_millis(500), async {
        while line.must().await.is_ok() {}
    })
    .await;
    ensure!(
        still.is_err(),
        "the stream ended: {}",
        line.record().sketch()
    );
    bystander.is_unharmed(&stage, 1).await
}

#[tokio::test]
async fn malformed_frame_is_refused() -> Result<()> {
    let stage = shared("garbage").await?;
    let bystander = Bystander::new(&stage).await?;
    let credentials = stage.join("garbage-a").await?;
    let mut long_name = state("a");
    long_name.uid = RuleUid::from("x".repeat(1000));
    let long = wire::Hello {
        boot_id: "x".repeat(70 * 1024),
        protocol_min: 1,
        protocol_max: 1,
        ..Default::default()
    };
    let long = wire::AgentFrame {
        frame: Some(wire::agent_frame::Frame::Hello(long)),
    };
    let noise: Vec<u8> = (0..200_u8).map(|n| n.wrapping_mul(167) ^ 0x5a).collect();
    let cases: [(&str, Bytes); 5] = [
        ("noise", noise.clone().into()),
        ("an empty message", Bytes::new()),
        (
            "a frame of the hub",
            prost::Message::encode_to_vec(&hub_frame()).into(),
        ),
        (
            "an unknown frame",
            Bytes::from_static(&[0xfa, 0x7f, 0x02, 0x08, 0x01]),
        ),
        (
            "a frame longer than the hub reads",
            prost::Message::encode_to_vec(&long).into(),
        ),
    ];
    for (what, bytes) in cases {
        let mut line = AgentStream::open(&credentials).await?;
        line.send_bytes(bytes);
        let end = line.end(REFUSED).await.with_context(|| what.to_owned())?;
        ensure!(
            end.code() != Code::Ok && !end.message().is_empty(),
            "{what}: {end:?}"
        );
    }
    // After the greeting, an agent loses unreadable items only.
    let mut line = AgentStream::greeted(&credentials, vec![long_name, state("readable")]).await?;
    line.send_bytes(Bytes::from_static(&[0xfa, 0x7f, 0x02, 0x08, 0x01]));
    let known = |frame: &HubFrame| matches!(frame, HubFrame::Batch(batch) if batch.rules.iter().any(|rule| rule.orphaned));
    while !known(&line.must().await?) {}
    let metrics = Metrics::of(&stage.fleet.hub_ops_url()).await?;
    ensure!(
        metrics.sum("runnel_hub_peer_limits_total")? >= 1.0,
        "nothing was counted"
    );
    bystander.is_unharmed(&stage, 1).await?;
    let goes_on = tokio::time::timeout(Duration::from_millis(300), async {
        while line.must().await.is_ok() {}
    })
    .await;
    ensure!(
        goes_on.is_err(),
        "the stream ended: {}",
        line.record().sketch()
    );
    drop(line);

    // No gRPC, no HTTP/2, no TLS.
    let connector = Connector::new(credentials.config()?).by(Route::direct());
    let mut stream = connector.connect(&credentials.address).await?;
    stream.write_all(&noise.repeat(50)).await?;
    closes(&mut stream).await.context("noise inside TLS")?;
    let mut tcp = TcpStream::connect(&credentials.address).await?;
    tcp.write_all(&noise.repeat(50)).await?;
    closes(&mut tcp).await.context("noise instead of TLS")?;
    bystander.is_unharmed(&stage, 2).await?;
    let sessions = Metrics::of(&stage.fleet.hub_ops_url())
        .await?
        .sum("runnel_hub_sessions")?;
    ensure!(sessions >= 1.0, "{sessions} sessions");
    drop(AgentStream::greeted(&credentials, Vec::new()).await?);
    Ok(())
}

fn hub_frame() -> wire::HubFrame {
    let drain = wire::Drain {
        within_milliseconds: 5,
        handover: false,
    };
    wire::HubFrame {
        frame: Some(wire::hub_frame::Frame::Drain(drain)),
        ..wire::HubFrame::default()
    }
}

async fn closes(stream: &mut (impl AsyncReadExt + Unpin)) -> Result<()> {
    let mut received = Vec::new();
    // Closed or reset: the connection has ended.
    let _ = tokio::time::timeout(REFUSED, stream.read_to_end(&mut received))
        .await
        .context("it stays open")?;
    Ok(())
}
