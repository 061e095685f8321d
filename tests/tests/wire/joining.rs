//! Join strings: valid, invalid, and sent to the wrong hub.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use runnel_tests::fleet::{AGENT, account};
use runnel_tests::guard::Program;
use runnel_tests::ports::local;
use runnel_tests::simulated::{AgentStream, Credentials};
use runnel_tests::wait::eventually;
use runnel_transport::identity::{Ca, JoinString, MemberKey, Token};
use runnel_transport::tls::{ServerTls, handshake};
use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tonic::Code;

use super::stage::{SOON, shared};

#[tokio::test]
async fn wrong_spent_or_expired_token_gets_a_hint() -> Result<()> {
    let stage = shared("tokens").await?;
    let join = stage.join_string("tokens-a").await?;
    let key = Arc::new(MemberKey::generate()?);
    let hint = "create a new join string with `runnel-hub token create tokens-a`";

    let wrong = JoinString {
        token: Token::generate()?,
        ..join.clone()
    };
    let status = Credentials::join(&wrong)
        .await
        .err()
        .context("joined with a wrong token")?;
    ensure!(
        status.code() == Code::Unauthenticated && status.message().contains("is wrong"),
        "{status:?}"
    );
    ensure!(status.message().contains(hint), "{status:?}");

    // Valid for one key, and repeatable for that key if the answer is lost.
    for _ in 0..2 {
        let joined = Credentials::join_with(&join, key.clone()).await?;
        drop(AgentStream::greeted(&joined, Vec::new()).await?);
    }
    let status = Credentials::join(&join)
        .await
        .err()
        .context("joined with a spent token")?;
    ensure!(
        status.code() == Code::FailedPrecondition && status.message().contains("already used"),
        "{status:?}"
    );
    ensure!(status.message().contains(hint), "{status:?}");

    let past = Timestamp::now() - Duration::from_secs(60);
    stage
        .patch_member("tokens-a", json!({"spec": {"join": {"expiresAt": past}}}))
        .await?;
    for key in [key, Arc::new(MemberKey::generate()?)] {
        let status = Credentials::join_with(&join, key)
            .await
            .err()
            .context("joined with an expired token")?;
        ensure!(
            status.code() == Code::FailedPrecondition && status.message().contains("expired"),
            "{status:?}"
        );
        ensure!(status.message().contains(hint), "{status:?}");
    }

    // Another cluster's token is refused, and the answer does not disclose whether a cluster
    // exists.
    let other = stage.join_string("tokens-b").await?;
    for cluster in ["tokens-a", "tokens-nobody"] {
        let stolen = JoinString {
            cluster: cluster.to_owned(),
            ..other.clone()
        };
        let status = Credentials::join(&stolen)
            .await
            .err()
            .context("joined as another cluster")?;
        ensure!(
            status.code() == Code::Unauthenticated && status.message().contains("is wrong"),
            "{status:?}"
        );
    }
    Credentials::join(&other).await?;
    Ok(())
}

/// A server that is not the hub, and records what it receives once TLS is up.
async fn impostor(ca: &Ca, hub: &str, listener: &TcpListener) -> Result<Vec<u8>> {
    let pair = ca.sign_hub(hub, SystemTime::now(), Duration::from_secs(3600))?;
    let tls = ServerTls::new(&[ca.certificate().clone()], pair)?;
    let (tcp, from) = listener.accept().await?;
    let Ok(mut connection) = handshake(tcp, from, tls.current()).await else {
        return Ok(Vec::new());
    };
    let (mut received, mut part) = (Vec::new(), [0; 4096]);
    // The end of the connection, orderly or not, or the first pause of a client that waits for an answer.
    while let Ok(Ok(length @ 1..)) =
        tokio::time::timeout(Duration::from_secs(1), connection.read(&mut part)).await
    {
        received.extend_from_slice(&part[..length]);
    }
    Ok(received)
}

#[tokio::test]
async fn hub_with_another_key_than_the_pinned_one_gets_nothing() -> Result<()> {
    let (real, fake) = (
        Ca::generate("ahub", SystemTime::now())?,
        Ca::generate("ahub", SystemTime::now())?,
    );
    let listener = TcpListener::bind(local(0)).await?;
    let join = JoinString {
        addresses: vec![listener.local_addr()?.to_string()],
        hub: "ahub".to_owned(),
        cluster: "eu-1".to_owned(),
        token: Token::generate()?,
        pin: real.pin(),
    };
    let (received, joined) =
        tokio::join!(impostor(&fake, "ahub", &listener), Credentials::join(&join));
    let received = received?;
    ensure!(
        received.is_empty(),
        "the impostor heard {} bytes",
        received.len()
    );
    let status = joined.err().context("joined an impostor")?;
    ensure!(
        status.message().contains("not the hub of the join string"),
        "{status:?}"
    );

    // Another hub of the same CA is no better.
    let (received, joined) = tokio::join!(
        impostor(&real, "another", &listener),
        Credentials::join(&join)
    );
    ensure!(received?.is_empty() && joined.is_err());

    // The real agent is as careful.
    let stage = shared("pinned").await?;
    let file = stage.fleet.hub().folder().join("pinned-join-string");
    std::fs::write(&file, join.encode())?;
    let log = stage.fleet.hub().folder().join("pinned-agent.log");
    let account = account(stage.fleet.hub(), AGENT, "pinned", &serde_json::Value::Null).await?;
    let agent = Program::new(&stage.fleet.binaries().agent, &log).arguments([
        "run".to_owned(),
        format!("--kubeconfig={}", account.display()),
        format!("--join-string-file={}", file.display()),
        "--namespace=pinned".to_owned(),
        "--ops-listen=127.0.0.1:0".to_owned(),
    ]);
    let running = agent.start()?;
    let received = impostor(&fake, "ahub", &listener).await?;
    ensure!(
        received.is_empty(),
        "the impostor heard {} bytes of the agent",
        received.len()
    );
    eventually("the agent to say why", SOON, async || {
        Ok(std::fs::read_to_string(&log)?
            .contains("this is not the hub of the join string")
            .then_some(()))
    })
    .await?;
    drop(running);

    // The pinned one receives something: the test would notice.
    let join_again =
        async { tokio::time::timeout(Duration::from_secs(5), Credentials::join(&join)).await };
    let (received, _) = tokio::join!(impostor(&real, "ahub", &listener), join_again);
    ensure!(
        received?.starts_with(b"PRI * HTTP/2.0"),
        "the pinned hub heard nothing"
    );
    Ok(())
}
