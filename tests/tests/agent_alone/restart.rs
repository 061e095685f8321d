//! What outlives the agent and the hub.
use anyhow::Result;
use runnel_proto::model::Reason;
use runnel_tests::wait::steadily;
use serde_json::json;
use std::time::Duration;

use crate::alone::Alone;

#[tokio::test]
async fn the_agent_goes_on_with_the_hub_away_also_after_its_own_restart() -> Result<()> {
    let mut alone = Alone::start("away", &["a", "b"]).await?;
    alone.hub.want("r", alone.rule(&["a", "b", "new-*"], &[("one", "1"), ("two", "1")]));
    alone.hub.hears_applied("r", 4).await?;
    alone.hub.want("q", alone.rule(&["a"], &[("lone", "1")]));
    alone.hub.hears_applied("q", 1).await?;
    alone.stop_agent().await?;
    alone.hub.stop();

    // While nobody looks: one of two twins is damaged, both twins of the other are.
    alone.place.change(&alone.id("a", "one"), json!({"data": {"text": "changed"}})).await?;
    for namespace in ["a", "b"] {
        alone.place.change(&alone.id(namespace, "two"), json!({"data": {"text": "changed"}})).await?;
    }
    alone.start_agent().await?;
    alone.says(&alone.id("a", "one"), "1").await?;
    alone.make_namespace("new-1").await?;
    alone.says(&alone.id("new-1", "one"), "1").await?;
    alone.place.delete(&alone.id("b", "one")).await?;
    alone.says(&alone.id("b", "one"), "1").await?;
    assert_eq!(alone.place.get(&alone.id("a", "two")).await?["data"]["text"], "changed");

    // A copy without twin that was intact at the start is put back too.
    alone.place.change(&alone.id("a", "lone"), json!({"data": {"text": "changed"}})).await?;
    alone.says(&alone.id("a", "lone"), "1").await?;

    // The hub comes back with another wish: what waited is done, and what it no longer wants goes.
    alone.hub.resume().await?;
    alone.hub.hears_applied("r", 6).await?;
    alone.says(&alone.id("a", "two"), "1").await?;
    assert!(alone.hub.heard().contains(Reason::WaitingForHub.as_str()), "it said what it waited for");
    alone.hub.stop();
    alone.hub.want("r", alone.rule(&["a", "b"], &[("one", "2")]));
    alone.hub.resume().await?;
    alone.says(&alone.id("a", "one"), "2").await?;
    alone.hub.hears_applied("r", 2).await?;
    alone.place.lacks(&alone.id("new-1", "one")).await
}

#[tokio::test]
async fn a_crash_in_the_middle_of_a_removal_loses_nothing() -> Result<()> {
    let mut alone = Alone::start("crash", &["a", "b"]).await?;
    alone.hub.want("r", alone.rule(&["a", "b"], &[("one", "1"), ("two", "1")]));
    alone.hub.hears_applied("r", 4).await?;
    alone.crash_agent().await?;
    alone.hub.remove("r", runnel_proto::model::DeletionPolicy::Delete);
    alone.start_agent().await?;
    for namespace in ["a", "b"] {
        alone.place.lacks(&alone.id(namespace, "one")).await?;
        alone.place.lacks(&alone.id(namespace, "two")).await?;
    }
    alone.hub.hears("the rule to be gone", "r", |state| state.gone).await.map(drop)
}

#[tokio::test]
async fn a_restart_with_a_thousand_copies_writes_nothing() -> Result<()> {
    let mut alone = Alone::start("thousand", &["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"]).await?;
    let names: Vec<_> = (0..100).map(|n| format!("n{n:03}")).collect();
    let pairs: Vec<_> = names.iter().map(|name| (name.as_str(), "1")).collect();
    let wanted = alone.rule(&["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"], &pairs);
    alone.hub.want("r", wanted);
    alone.hub.hears_applied("r", 1000).await?;
    for crash in [true, false] {
        if crash {
            alone.crash_agent().await?
        } else {
            alone.stop_agent().await?
        }
        let (mark, sessions) = (alone.plane.mark(), alone.hub.sessions());
        alone.start_agent().await?;
        runnel_tests::wait::eventually("a new session", Duration::from_secs(30), async || {
            Ok((alone.hub.sessions() > sessions).then_some(()))
        })
        .await?;
        alone.hub.hears_applied("r", 1000).await?;
        steadily("no writes after a restart", Duration::from_secs(2), async || {
            let writes = alone.writes(mark)?;
            anyhow::ensure!(writes.is_empty(), "{} writes, such as {:?}", writes.len(), writes.first());
            Ok(())
        })
        .await?;
    }
    Ok(())
}
