//! How many requests a copy needs whose values the API server stores as they are sent, or normalizes.
use anyhow::{Result, ensure};
use serde_json::json;

use crate::owned::Kept;

#[tokio::test]
async fn kind_that_is_stored_as_sent_needs_one_request() -> Result<()> {
    let mut one = Kept::start("as-sent", "deployments.apps", "apps/v1", "Deployment").await?;
    let spec = |cpu: &str| {
        let limits = json!({"limits": {"cpu": cpu}});
        json!({"spec": {
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "app", "image": "app:1", "resources": limits}]},
            },
        }})
    };
    let stored = "/spec/template/spec/containers/0/resources/limits/cpu";
    for (sent, expected, requests) in [
        // A dry run shows at first how the kind is stored.
        ("1", "1", 2),
        ("2", "2", 1),
        // The API server normalizes the value, so the object gets its seal by a second apply.
        ("3000m", "3", 2),
        // From now on, a dry run shows the value first.
        ("4", "4", 2),
        ("5000m", "5", 2),
    ] {
        let mark = one.alone.plane.mark();
        one.want(spec(sent)).await?;
        one.has("with the value", &[(stored, json!(expected))])
            .await?;
        one.is_idle().await?;
        let writes = one.writes(mark)?;
        ensure!(writes.len() == requests, "{sent}: {writes:?}");
    }
    one.restart().await
}
