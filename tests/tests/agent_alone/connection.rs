//! Joining, refusals, certificates.
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use runnel_agent::store::IDENTITY_SECRET;
use runnel_tests::scene::Id;
use runnel_tests::simulated::Middlebox;
use runnel_tests::wait::{eventually, steadily};
use tokio::net::TcpListener;
use tokio::time::timeout;

use crate::alone::Alone;

#[tokio::test]
async fn refused_join_names_the_cause_and_a_hint() -> Result<()> {
    let mut alone = Alone::prepare("refused", Duration::from_secs(3600)).await?;
    alone.set_join_string(&alone.hub.join_string(false)?)?;
    let error = alone.start_agent().await.unwrap_err().to_string();
    assert!(
        error.contains("the token is wrong") && error.contains("runnel-hub token create alone"),
        "{error}"
    );
    alone.set_join_string("not a join string")?;
    let error = alone.start_agent().await.unwrap_err().to_string();
    assert!(error.contains("not a join string"), "{error}");
    alone.set_join_string(&alone.hub.join_string(true)?)?;
    alone.start_agent().await?;
    alone.stop_agent().await?;
    // Joined once, the agent needs no join string any more.
    alone.set_join_string("")?;
    alone.start_agent().await?;
    eventually("a session", Duration::from_secs(30), async || {
        Ok((alone.hub.sessions() > 0).then_some(()))
    })
    .await
}

#[tokio::test]
async fn a_hub_that_refuses_the_agent_is_asked_again() -> Result<()> {
    let mut alone = Alone::prepare("denied", Duration::from_secs(3600)).await?;
    alone.make_namespace("a").await?;
    alone.hub.refuse(true);
    alone.hub.want("r", alone.rule(&["a"], &[("one", "1")]));
    alone.start_agent().await?;
    steadily("no session", Duration::from_secs(3), async || {
        anyhow::ensure!(alone.hub.sessions() == 0);
        Ok(())
    })
    .await?;
    alone.hub.refuse(false);
    alone.has_value(&alone.id("a", "one"), "1").await.map(drop)
}

#[tokio::test]
async fn mistyped_join_string_blocks_neither_join_nor_return() -> Result<()> {
    let mut alone = Alone::prepare("mistyped", Duration::from_secs(3600)).await?;
    let none_at_all = TcpListener::bind("127.0.0.1:0").await?;
    let elsewhere = none_at_all.local_addr()?.to_string();
    let tried = async || {
        timeout(Duration::from_secs(60), none_at_all.accept())
            .await
            .context("nobody tried to join")
    };
    // Corrected while the agent tries to join.
    let (file, right) = (alone.join_file(), alone.hub.join_string(true)?);
    alone.set_join_string(&alone.hub.join_string_to(&elsewhere, true)?)?;
    let (started, corrected) = tokio::join!(alone.start_agent(), async {
        drop(tried().await??);
        anyhow::Ok(std::fs::write(&file, right)?)
    });
    corrected.and(started)?;
    eventually("a session", Duration::from_secs(30), async || {
        Ok((alone.hub.sessions() > 0).then_some(()))
    })
    .await?;

    // The hub no longer accepts it, and the string of its new join leads nowhere.
    alone.set_join_string(&alone.hub.join_string_to(&elsewhere, false)?)?;
    alone.hub.refuse(true);
    alone.hub.stop();
    alone.hub.resume().await?;
    drop(tried().await??);
    ensure!(
        alone.hub.sessions() == 1,
        "{} sessions",
        alone.hub.sessions()
    );
    // Accepted again, it is back with the certificate that it has.
    alone.hub.refuse(false);
    eventually("it to be back", Duration::from_secs(60), async || {
        Ok((alone.hub.sessions() > 1).then_some(()))
    })
    .await
}

#[tokio::test]
async fn flow_that_a_middlebox_drops_is_replaced() -> Result<()> {
    let mut alone = Alone::prepare("middlebox", Duration::from_secs(3600)).await?;
    let middlebox = Middlebox::start(&alone.hub.address).await?;
    alone.set_join_string(&alone.hub.join_string_to(&middlebox.address(), true)?)?;
    alone.make_namespace("a").await?;
    alone.hub.want("r", alone.rule(&["a"], &[("one", "1")]));
    alone.start_agent().await?;
    alone.has_value(&alone.id("a", "one"), "1").await?;
    let sessions = alone.hub.sessions();

    // Neither side sees an end: the agent detects the missing answers, and reconnects.
    middlebox.drop_flows();
    alone.hub.want("r", alone.rule(&["a"], &[("one", "2")]));
    let again = async || Ok((alone.hub.sessions() > sessions).then_some(()));
    eventually("a new session", Duration::from_secs(90), again).await?;
    alone.has_value(&alone.id("a", "one"), "2").await?;
    ensure!(
        alone.hub.sessions() == sessions + 1,
        "{} sessions",
        alone.hub.sessions()
    );
    Ok(())
}

#[tokio::test]
async fn certificates_are_renewed_at_half_life_before_expiry() -> Result<()> {
    let mut alone = Alone::prepare("renewed", Duration::from_secs(12)).await?;
    alone.make_namespace("a").await?;
    alone.start_agent().await?;
    // With edits: each stream is handed over to the next one, which does not repeat content.
    let mut edit = 0;
    while alone.hub.handed_over() < 3 {
        edit += 1;
        ensure!(
            edit < 400,
            "{} streams were handed over",
            alone.hub.handed_over()
        );
        alone.hub.want(
            "r",
            alone.rule(
                &["a"],
                &[("one", &edit.to_string()), ("two", "always the same")],
            ),
        );
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    alone
        .has_value(&alone.id("a", "one"), &edit.to_string())
        .await?;
    ensure!(
        alone.hub.renewals() == 3,
        "{} renewals",
        alone.hub.renewals()
    );
    eventually("the fourth stream", Duration::from_secs(10), async || {
        Ok((alone.hub.sessions() >= 4).then_some(()))
    })
    .await?;
    ensure!(
        alone.hub.sessions() == 4,
        "{} streams: some ended in another way",
        alone.hub.sessions()
    );
    let twice = alone.hub.sent_twice();
    ensure!(twice.is_empty(), "sent twice: {twice:?}");

    // A hub that does not answer: the stream continues, and is replaced before its certificate
    // ends.
    alone.hub.keep_streams();
    let (renewals, sessions) = (alone.hub.renewals(), alone.hub.sessions());
    eventually("a renewal", Duration::from_secs(20), async || {
        Ok((alone.hub.renewals() > renewals).then_some(()))
    })
    .await?;
    alone
        .hub
        .want("r", alone.rule(&["a"], &[("one", "not handed over")]));
    alone
        .has_value(&alone.id("a", "one"), "not handed over")
        .await?;
    ensure!(alone.hub.sessions() == sessions, "the stream did not go on");
    eventually("another stream", Duration::from_secs(20), async || {
        Ok((alone.hub.sessions() > sessions).then_some(()))
    })
    .await?;
    alone
        .hub
        .want("r", alone.rule(&["a"], &[("one", "at the end")]));
    alone
        .has_value(&alone.id("a", "one"), "at the end")
        .await
        .map(drop)
}

#[tokio::test]
async fn hub_that_has_moved_is_found_by_a_spent_join_string() -> Result<()> {
    let mut alone = Alone::prepare("moved-hub", Duration::from_secs(3600)).await?;
    alone.make_namespace("a").await?;
    alone.start_agent().await?;
    eventually("a session", Duration::from_secs(30), async || {
        Ok((alone.hub.sessions() > 0).then_some(()))
    })
    .await?;
    // The old address does not answer any more, and the token of the new join string is good for nothing.
    alone.hub.stop();
    alone.hub.listen_elsewhere().await?;
    alone.set_join_string(&alone.hub.join_string(false)?)?;
    eventually("to be found", Duration::from_secs(60), async || {
        Ok((alone.hub.sessions() > 1).then_some(()))
    })
    .await?;
    // The address is stored: the join string is needed no more.
    let stored = data_encoding::BASE64.encode(alone.hub.address.as_bytes());
    eventually(
        "the address to be stored",
        Duration::from_secs(30),
        async || {
            let identity = alone
                .place
                .get(&Id::secret(&alone.name, IDENTITY_SECRET))
                .await?;
            Ok((identity["data"]["hub-addresses"] == stored.as_str()).then_some(()))
        },
    )
    .await?;
    alone.stop_agent().await?;
    alone.set_join_string("")?;
    alone.start_agent().await?;
    alone.hub.want("r", alone.rule(&["a"], &[("one", "1")]));
    alone.has_value(&alone.id("a", "one"), "1").await.map(drop)
}

#[tokio::test]
async fn malformed_join_string_does_not_stop_an_agent_that_has_joined() -> Result<()> {
    let mut alone = Alone::prepare("garbled", Duration::from_secs(3600)).await?;
    alone.start_agent().await?;
    alone.stop_agent().await?;
    alone.set_join_string("not a join string")?;
    alone.start_agent().await?;
    let sessions = alone.hub.sessions();
    eventually("a session", Duration::from_secs(30), async || {
        Ok((alone.hub.sessions() > sessions).then_some(()))
    })
    .await
}
