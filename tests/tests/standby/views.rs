//! Requests for views that the API server sends to the standby.

use anyhow::{Result, ensure};
use runnel_tests::wait::eventually;

use super::stage;

#[tokio::test]
async fn standby_passes_requests_for_views_to_the_leader() -> Result<()> {
    let stage = stage::stage("views").await?;
    let _agents = stage.agents(1, &stage.balancer.address()).await?;
    stage.rule(1).await?;
    // The API server reaches only the first replica, which becomes the standby.
    let first = stage.fleet.hub_replica(1);
    first.process().kill()?;
    eventually("the second replica to lead", stage::SOON, async || {
        Ok(stage.leads(2).await.then_some(()))
    })
    .await?;
    first.pod().start().await?;
    let line = eventually("the deliveries", stage::SOON, async || {
        let arguments = ["get", "deliveries", "-n", "views"];
        let table = stage.fleet.hub().kubectl(&arguments).await?;
        let line = table.lines().find(|line| line.contains("views-1"));
        Ok(line
            .filter(|line| line.contains("Ready"))
            .map(str::to_owned))
    })
    .await?;
    ensure!(line.contains("AllApplied"), "{line}");
    ensure!(stage.leader().await? == 2);
    Ok(())
}
