//! Joining, refusals, certificates.
use std::time::Duration;

use anyhow::Result;
use runnel_tests::wait::{eventually, steadily};

use crate::alone::Alone;

#[tokio::test]
async fn a_refused_join_says_why_and_what_to_do() -> Result<()> {
    let mut alone = Alone::prepare("refused", Duration::from_secs(3600)).await?;
    alone.set_join_string(&alone.hub.join_string(false)?)?;
    let error = alone.start_agent().await.unwrap_err().to_string();
    assert!(error.contains("the token is wrong") && error.contains("runnel-hub token create alone"), "{error}");
    alone.set_join_string("not a join string")?;
    let error = alone.start_agent().await.unwrap_err().to_string();
    assert!(error.contains("not a join string"), "{error}");
    alone.set_join_string(&alone.hub.join_string(true)?)?;
    alone.start_agent().await?;
    alone.stop_agent().await?;
    // Joined once, the agent needs no join string any more.
    alone.set_join_string("")?;
    alone.start_agent().await?;
    eventually("a session", Duration::from_secs(30), async || Ok((alone.hub.sessions() > 0).then_some(()))).await
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
    alone.says(&alone.id("a", "one"), "1").await.map(drop)
}

#[tokio::test]
async fn certificates_are_renewed_at_half_life_and_used_before_the_old_one_ends() -> Result<()> {
    let mut alone = Alone::prepare("renewed", Duration::from_secs(12)).await?;
    alone.make_namespace("a").await?;
    alone.start_agent().await?;
    eventually("two renewals", Duration::from_secs(40), async || Ok((alone.hub.renewals() >= 2).then_some(()))).await?;
    eventually("a stream with a new certificate", Duration::from_secs(40), async || {
        Ok((alone.hub.sessions() >= 2).then_some(()))
    })
    .await?;
    alone.hub.want("r", alone.rule(&["a"], &[("one", "1")]));
    alone.says(&alone.id("a", "one"), "1").await.map(drop)
}
