//! What becomes of the objects that a deleted copy owns.
use anyhow::{Result, ensure};
use runnel_proto::model::{DeletionPolicy, ImmutablePolicy, Propagation};
use runnel_tests::scene::{Draft, Id};
use serde_json::{Value, json};

use crate::owned::{Kept, deployment};

impl Kept {
    /// Sends a rule that deletes so, and makes an object that its copy owns.
    async fn owning(&self, propagation: Propagation) -> Result<Id> {
        let mut wanted = self.rule(deployment("web:1", &["A"]));
        wanted.terms.propagation = propagation;
        wanted.terms.immutable_policy = ImmutablePolicy::Recreate;
        self.alone.hub.want("r", wanted);
        let copy = self.applied().await?;
        let mut owned = Draft::config_map(&self.alone.ns("a"), "owned").json();
        owned["metadata"]["ownerReferences"] = json!([{
            "apiVersion": "apps/v1", "kind": "Deployment", "name": "one", "uid": copy["metadata"]["uid"],
            "blockOwnerDeletion": true,
        }]);
        self.alone.place.make(&owned).await?;
        Id::of(&owned)
    }

    async fn remove(&self) -> Result<()> {
        self.alone.hub.remove("r", DeletionPolicy::Delete);
        self.alone.hub.wait_gone("r").await?;
        self.alone.place.lacks(&self.id).await
    }
}

#[tokio::test]
async fn owned_objects_go_or_stay_as_the_rule_says() -> Result<()> {
    let one = Kept::start("owner", "deployments.apps", "apps/v1", "Deployment").await?;
    for propagation in [Propagation::Background, Propagation::Foreground] {
        let owned = one.owning(propagation).await?;
        one.remove().await?;
        one.alone.place.lacks(&owned).await?;
    }
    let owned = one.owning(Propagation::Orphan).await?;
    one.remove().await?;
    let is_free = |object: &Value| {
        let owners = &object["metadata"]["ownerReferences"];
        ensure!(
            owners.is_null() && object["metadata"]["deletionTimestamp"].is_null(),
            "{object}"
        );
        Ok(())
    };
    one.alone
        .place
        .sees("without its owner", &owned, is_free)
        .await?;
    one.alone.place.delete(&owned).await?;
    one.alone.place.lacks(&owned).await?;

    // A copy that is made again leaves them, too.
    let owned = one.owning(Propagation::Orphan).await?;
    let mut other = deployment("web:1", &["A"]);
    other["spec"]["selector"]["matchLabels"]["more"] = json!("x");
    other["spec"]["template"]["metadata"]["labels"]["more"] = json!("x");
    let mut wanted = one.rule(other);
    wanted.terms.propagation = Propagation::Orphan;
    wanted.terms.immutable_policy = ImmutablePolicy::Recreate;
    one.alone.hub.want("r", wanted);
    let again = ("/spec/selector/matchLabels/more", json!("x"));
    one.has("made again", &[again]).await?;
    one.alone.hub.wait_applied("r", 1).await?;
    one.alone
        .place
        .sees("without its owner", &owned, is_free)
        .await
        .map(drop)
}
