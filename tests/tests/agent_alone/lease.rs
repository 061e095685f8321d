//! Two agents of one cluster: the Lease lets one of them write.
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::{Patch, PatchParams};
use runnel_tests::wait::steadily;
use serde_json::json;
use tokio::time::timeout;

use crate::alone::{Alone, end};

const SOON: Duration = runnel_tests::scene::SOON;

impl Alone {
    fn leases(&self) -> Api<Lease> {
        Api::namespaced(self.place.client(), &self.name)
    }

    async fn holder(&self) -> Result<String> {
        let spec = self
            .leases()
            .get("runnel-agent")
            .await?
            .spec
            .context("no spec")?;
        Ok(spec.holder_identity.unwrap_or_default())
    }
}

#[tokio::test]
async fn second_agent_is_standby_and_edits_cost_one_write() -> Result<()> {
    let alone = Alone::start("two-agents", &["a"]).await?;
    alone.hub.want("r", alone.rule(&["a"], &[("one", "1")]));
    alone.hub.wait_applied("r", 1).await?;
    ensure!(
        alone.holder().await?.starts_with("two-agents-1_"),
        "{}",
        alone.holder().await?
    );
    let mut second = Box::pin(alone.boot_agent("2"));
    ensure!(
        timeout(Duration::from_secs(3), &mut second).await.is_err(),
        "two agents are active"
    );
    let mark = alone.plane.mark();
    for edit in ["2", "3", "4"] {
        alone.hub.want("r", alone.rule(&["a"], &[("one", edit)]));
        alone.has_value(&alone.id("a", "one"), edit).await?;
    }
    let writes = alone.writes(mark)?;
    ensure!(writes.len() == 3, "{writes:?}");
    ensure!(
        alone.hub.sessions() == 1,
        "{} sessions",
        alone.hub.sessions()
    );
    Ok(())
}

#[tokio::test]
async fn ended_agent_releases_the_lease_to_the_standby() -> Result<()> {
    let mut alone = Alone::start("handed-on", &["a"]).await?;
    alone.hub.want("r", alone.rule(&["a"], &[("one", "1")]));
    alone.hub.wait_applied("r", 1).await?;
    let first = alone.take_agent()?;
    let mut second = Box::pin(alone.boot_agent("2"));
    ensure!(
        timeout(Duration::from_secs(3), &mut second).await.is_err(),
        "two agents are active"
    );
    end(first).await?;
    ensure!(
        !alone.holder().await?.starts_with("handed-on-1_"),
        "not released"
    );
    // Less than the Lease lasts.
    let second = timeout(Duration::from_secs(15), second)
        .await
        .context("it waits for a released Lease")??;
    alone.set_agent(second);
    alone.hub.want("r", alone.rule(&["a"], &[("one", "2")]));
    alone.has_value(&alone.id("a", "one"), "2").await.map(drop)
}

#[tokio::test]
async fn killed_agent_is_succeeded_by_its_own_pod_at_once() -> Result<()> {
    let mut alone = Alone::start("killed", &["a"]).await?;
    alone.hub.want("r", alone.rule(&["a"], &[("one", "1")]));
    alone.hub.wait_applied("r", 1).await?;
    alone.crash_agent().await?;
    // Less than the Lease lasts.
    timeout(Duration::from_secs(15), alone.start_agent())
        .await
        .context("it waits for its own Lease")??;
    // Another pod cannot know that it is dead, and waits until the Lease expires.
    alone.crash_agent().await?;
    let mut other = Box::pin(alone.boot_agent("2"));
    ensure!(
        timeout(Duration::from_secs(5), &mut other).await.is_err(),
        "it did not wait"
    );
    let other = timeout(SOON, other)
        .await
        .context("the Lease of a dead agent is never taken")??;
    alone.set_agent(other);
    alone.hub.want("r", alone.rule(&["a"], &[("one", "2")]));
    alone.has_value(&alone.id("a", "one"), "2").await.map(drop)
}

#[tokio::test]
async fn agent_whose_lease_is_taken_ends_and_writes_nothing_more() -> Result<()> {
    let mut alone = Alone::start("taken", &["a"]).await?;
    alone.hub.want("r", alone.rule(&["a"], &[("one", "1")]));
    alone.hub.wait_applied("r", 1).await?;
    let term = alone
        .leases()
        .get("runnel-agent")
        .await?
        .spec
        .and_then(|spec| spec.lease_transitions)
        .unwrap_or(0);
    let spec = json!({"spec": {"holderIdentity": "another_1", "leaseTransitions": term + 1}});
    alone
        .leases()
        .patch("runnel-agent", &PatchParams::default(), &Patch::Merge(spec))
        .await?;
    let output = alone.ends().await?;
    ensure!(
        output.contains("another_1") && output.contains("has taken the Lease"),
        "{output}"
    );
    let mark = alone.plane.mark();
    alone.hub.want("r", alone.rule(&["a"], &[("one", "2")]));
    steadily("no writes", Duration::from_secs(3), async || {
        let writes = alone.writes(mark)?;
        ensure!(writes.is_empty(), "{writes:?}");
        Ok(())
    })
    .await
}
