//! What becomes of the objects that a deleted copy owns.
use anyhow::{Result, ensure};
use runnel_proto::model::{DeletionPolicy, ImmutablePolicy, Propagation};
use runnel_tests::scene::{Draft, Id};
use serde_json::{Value, json};

use crate::owned::{Kept, deployment};

impl Kept {
    /// Sends a rule that deletes so, and makes an object that its copy owns.
    async fn owning(&self, fields: Value, propagation: Propagation) -> Result<Id> {
        let mut wanted = self.rule(fields);
        wanted.terms.propagation = propagation;
        wanted.terms.immutable_policy = ImmutablePolicy::Recreate;
        self.alone.hub.want("r", wanted);
        let copy = self.applied().await?;
        let mut owned = Draft::config_map(&self.alone.ns("a"), "owned").json();
        owned["metadata"]["ownerReferences"] = json!([{
            "apiVersion": "apps/v1", "kind": copy["kind"], "name": "one", "uid": copy["metadata"]["uid"],
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

    /// The copy cannot take the change: it is made again, and what it owned stays.
    async fn made_again(&self, fields: Value, values: &[(&str, Value)], owned: &Id) -> Result<()> {
        let mut wanted = self.rule(fields);
        wanted.terms.propagation = Propagation::Orphan;
        wanted.terms.immutable_policy = ImmutablePolicy::Recreate;
        self.alone.hub.want("r", wanted);
        self.has("made again", values).await?;
        self.alone.hub.wait_applied("r", 1).await?;
        let place = &self.alone.place;
        place.has_event(&self.id, "Recreated").await?;
        place.sees("without its owner", owned, is_free).await?;
        Ok(())
    }
}

fn is_free(object: &Value) -> Result<()> {
    let owners = &object["metadata"]["ownerReferences"];
    ensure!(
        owners.is_null() && object["metadata"]["deletionTimestamp"].is_null(),
        "{object}"
    );
    Ok(())
}

#[tokio::test]
async fn owned_objects_go_or_stay_as_the_rule_says() -> Result<()> {
    let one = Kept::start("owner", "deployments.apps", "apps/v1", "Deployment").await?;
    for propagation in [Propagation::Background, Propagation::Foreground] {
        let owned = one.owning(deployment("web:1", &["A"]), propagation).await?;
        one.remove().await?;
        one.alone.place.lacks(&owned).await?;
    }
    let owned = one
        .owning(deployment("web:1", &["A"]), Propagation::Orphan)
        .await?;
    one.remove().await?;
    one.alone
        .place
        .sees("without its owner", &owned, is_free)
        .await?;
    one.alone.place.delete(&owned).await?;
    one.alone.place.lacks(&owned).await?;

    // A copy that is made again leaves them, too.
    let owned = one
        .owning(deployment("web:1", &["A"]), Propagation::Orphan)
        .await?;
    let mut other = deployment("web:1", &["A"]);
    other["spec"]["selector"]["matchLabels"]["more"] = json!("x");
    other["spec"]["template"]["metadata"]["labels"]["more"] = json!("x");
    let again = ("/spec/selector/matchLabels/more", json!("x"));
    one.made_again(other, &[again], &owned).await
}

#[tokio::test]
async fn stateful_set_with_other_claims_keeps_its_pods() -> Result<()> {
    let one = Kept::start("owner-set", "statefulsets.apps", "apps/v1", "StatefulSet").await?;
    let set = |size: &str| {
        let mut fields = deployment("web:1", &["A"]);
        fields["spec"]["serviceName"] = json!("one");
        fields["spec"]["volumeClaimTemplates"] = json!([{
            "metadata": {"name": "data"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}},
        }]);
        fields
    };
    let owned = one.owning(set("1Gi"), Propagation::Orphan).await?;
    let size = "/spec/volumeClaimTemplates/0/spec/resources/requests/storage";
    one.made_again(set("2Gi"), &[(size, json!("2Gi"))], &owned)
        .await
}
