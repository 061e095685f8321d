//! Objects on the hub with as much metadata as Kubernetes allows, as any user can create them who
//! may create ConfigMaps.

use anyhow::Result;
use runnel_tests::scene::{Draft, RuleDraft};
use serde_json::{Map, Value, json};

use super::stage::Stage;

/// Characters of annotations of one object: nearly the most that Kubernetes takes. Each of them has six bytes in JSON.
const ANNOTATIONS: usize = 250 * 1024;
const WITH_ANNOTATIONS: usize = 300;
/// Labels or keys of one object; its `managedFields` contain their names again.
const ENTRIES: usize = 10_000;
const WITH_ENTRIES: usize = 20;

/// Every second one is selected by a rule.
fn with_annotations(number: usize) -> Value {
    let draft = Draft::config_map("crowd", &format!("noted-{number}"));
    let draft = draft.annotation("example.com/note", &"<".repeat(ANNOTATIONS));
    draft
        .label(
            "selected",
            if number.is_multiple_of(2) {
                "yes"
            } else {
                "no"
            },
        )
        .json()
}

/// With very many labels or keys. All are selected.
fn with_entries(number: usize) -> Value {
    let entries: Map<String, Value> = (0..ENTRIES)
        .map(|entry| (format!("a{entry:05}"), json!("")))
        .collect();
    let mut object = Draft::config_map("crowd", &format!("full-{number}")).json();
    if number.is_multiple_of(2) {
        object["data"] = entries.into();
    } else {
        object["metadata"]["labels"] = entries.into();
    }
    object["metadata"]["labels"]["selected"] = json!("yes");
    object
}

#[tokio::test]
async fn large_metadata_on_the_hub_does_not_fill_it() -> Result<()> {
    let stage = Stage::start(&["crowd"]).await?;
    let watching = stage.fleet.hub_process().pid()?;
    let selecting = RuleDraft::new("crowd", "all")
        .labeled("selected", "yes")
        .to(&["absent"]);
    stage.scene.hub.make(&selecting.json()).await?;
    stage
        .make_all((0..WITH_ANNOTATIONS).map(with_annotations))
        .await?;
    stage.make_all((0..WITH_ENTRIES).map(with_entries)).await?;
    stage
        .is_served("beside objects that come one by one")
        .await?;
    stage.hub_is_within_its_limit(watching).await?;
    // A hub that starts lists all of them.
    stage.fleet.kill_hub()?;
    stage.fleet.start_hub().await?;
    let listing = stage.fleet.hub_process().pid()?;
    stage.is_served("beside objects that are listed").await?;
    stage.hub_is_within_its_limit(listing).await
}
