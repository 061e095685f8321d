//! The policies of rules for objects that differ: takeover of foreign objects, tolerated drift,
//! contention, ignored fields, and immutable copies.

#[path = "keeping/drift.rs"]
mod drift;
#[path = "keeping/fields.rs"]
mod fields;
#[path = "keeping/handover.rs"]
mod handover;
#[path = "keeping/immutable.rs"]
mod immutable;
#[path = "keeping/mutators.rs"]
mod mutators;
#[path = "keeping/rights.rs"]
mod rights;
#[path = "keeping/takeover.rs"]
mod takeover;

use anyhow::Result;
use runnel_tests::fleet::{Fleet, FleetOptions};
use runnel_tests::scene::Scene;
use serde_json::Value;
use tokio::sync::OnceCell;

static FLEET: OnceCell<Fleet> = OnceCell::const_new();

/// A value of a Secret that no log, status, Event or message may hold.
const CANARY: &str = "c4n4ry-of-keeping";

async fn fleet() -> Result<&'static Fleet> {
    let agent_values = serde_json::json!({"policy": {"overwrite": true}});
    FLEET
        .get_or_try_init(|| {
            Fleet::start(FleetOptions {
                agent_values,
                ..FleetOptions::default()
            })
        })
        .await
}

/// A namespace of this name on the hub and in the member.
async fn scene_with(home: &str) -> Result<Scene> {
    let scene = Scene::of(fleet().await?).await?;
    scene.member_namespaces(&[home]).await?;
    scene.hub_namespaces(&[home]).await?;
    Ok(scene)
}

/// Applies an object in the member as this field manager.
async fn apply_as(manager: &str, object: &Value) -> Result<()> {
    let flag = format!("--field-manager={manager}");
    let member = fleet().await?.member(1);
    member
        .kubectl_stdin(
            &[
                "apply",
                "--server-side",
                "--force-conflicts",
                &flag,
                "-f",
                "-",
            ],
            &object.to_string(),
        )
        .await?;
    Ok(())
}

/// Whether a text contains the canary, as it is or in base64.
fn gives_away(text: &str) -> bool {
    let encoded = data_encoding::BASE64.encode(CANARY.as_bytes());
    text.contains(CANARY) || text.contains(encoded.trim_end_matches('='))
}
