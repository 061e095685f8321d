//! How many requests a copy needs whose values the API server stores as they are sent, or normalizes.
use anyhow::{Result, ensure};
use runnel_proto::model::DriftPolicy;
use serde_json::{Value, json};

use crate::owned::Kept;

/// A Deployment whose container has this limit.
fn spec(cpu: &str) -> Value {
    let limits = json!({"limits": {"cpu": cpu}});
    json!({"spec": {
        "selector": {"matchLabels": {"app": "web"}},
        "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "app", "image": "app:1", "resources": limits}]},
        },
    }})
}

const CPU: &str = "/spec/template/spec/containers/0/resources/limits/cpu";

async fn start(name: &str) -> Result<Kept> {
    Kept::start(name, "deployments.apps", "apps/v1", "Deployment").await
}

#[tokio::test]
async fn kind_that_is_stored_as_sent_needs_one_request() -> Result<()> {
    let mut one = start("as-sent").await?;
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
        one.has("with the value", &[(CPU, json!(expected))]).await?;
        one.is_idle().await?;
        let writes = one.writes(mark)?;
        ensure!(writes.len() == requests, "{sent}: {writes:?}");
    }
    one.restart().await
}

#[tokio::test]
async fn copy_that_others_write_at_once_gets_its_right_seal() -> Result<()> {
    let one = start("busy").await?;
    one.want(spec("1")).await?;
    one.want(spec("2")).await?;
    // As the controller of a Deployment, which writes between the two applies of a normalized value.
    let others = async {
        for number in 0.. {
            let change = json!({"metadata": {"annotations": {"theirs": number.to_string()}}});
            one.alone.place.change(&one.id, change).await?;
        }
        anyhow::Ok(())
    };
    tokio::select! {
        ended = others => ended?,
        applied = one.want(spec("3000m")) => drop(applied?),
    }
    one.has("with the value", &[(CPU, json!("3"))]).await?;
    one.is_idle().await?;
    let events = one.alone.place.events_about(&one.id).await?;
    ensure!(
        !events.iter().any(|event| event.reason == "DriftCorrected"),
        "{events:?}"
    );
    Ok(())
}

#[tokio::test]
async fn copy_whose_drift_is_reported_always_has_its_right_seal() -> Result<()> {
    let one = start("reports").await?;
    for sent in ["1", "2", "3000m"] {
        let mark = one.alone.plane.mark();
        let mut rule = one.rule(spec(sent));
        rule.terms.drift_policy = DriftPolicy::Report;
        one.alone.hub.want("r", rule);
        one.applied().await?;
        one.is_idle().await?;
        let writes = one.writes(mark)?;
        // A dry run, and the apply.
        ensure!(writes.len() == 2, "{sent}: {writes:?}");
    }
    Ok(())
}
