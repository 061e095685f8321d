//! The Events that a holder of the agent's token may write: only those of the agent.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use runnel_tests::control_plane::client_of;
use runnel_tests::fleet::{AGENT, account};
use runnel_tests::wait::eventually;
use serde_json::json;
use std::time::Duration;

use super::live::cluster;

const SOON: Duration = Duration::from_secs(60);

fn event(name: &str, controller: &str) -> Result<Event> {
    Ok(serde_json::from_value(json!({
        "metadata": {"name": name}, "eventTime": "2026-01-01T00:00:00.000000Z", "action": "a", "reason": "r", "type": "Normal",
        "reportingController": controller, "reportingInstance": "i",
        "regarding": {"kind": "ConfigMap", "name": "settings", "namespace": "default"},
    }))?)
}

#[tokio::test]
async fn agent_account_writes_only_own_events() -> Result<()> {
    let cluster = cluster().await?;
    let values = json!({"policy": {"namespaces": ["*"]}});
    let kubeconfig = account(cluster, AGENT, "own-events", &values).await?;
    let (own, admin) = (client_of(&kubeconfig).await?, cluster.client().await?);
    let events = |client| Api::<Event>::namespaced(client, "default");
    let params = PostParams::default();
    events(admin)
        .create(&params, &event("evidence", "kubelet")?)
        .await?;
    let own = events(own);
    // A new policy takes effect after a moment.
    let series = json!({"series": {"count": 7, "lastObservedTime": "2026-01-01T00:00:00.000000Z"}});
    let series = Patch::Merge(series);
    eventually("the policy to refuse it", SOON, async || {
        let answer = own
            .patch("evidence", &PatchParams::default(), &series)
            .await;
        let refused = answer.err().map(|error| error.to_string());
        Ok(refused.filter(|why| why.contains("own-writes")))
    })
    .await?;
    let forged = own.create(&params, &event("forged", "kubelet")?).await;
    let forged = forged.err().context("an Event of another component")?;
    ensure!(forged.to_string().contains("own-writes"), "{forged}");
    own.create(&params, &event("own", "runnel.dev/agent")?)
        .await?;
    own.patch("own", &PatchParams::default(), &series).await?;
    Ok(())
}
