//! Objects and assertions of live tests: drafts of objects, clusters in which they are created and
//! read, and the expected state of copies and statuses.
//! A [`Scene`] is a fleet for one test. Tests that share a fleet use different namespaces.

mod cluster;
mod copy;
mod draft;
mod events;
mod metrics;
mod newcomer;
mod recorder;
mod rule;

use anyhow::{Context, Result};
use futures::future::try_join_all;
use serde_json::{Value, json};

use crate::fleet::Fleet;
pub use cluster::{Id, SOON, TestCluster};
pub use copy::{HUB_LABEL, MANAGED_BY, MARKS, RETAINED, RULE, SEAL, SOURCE, is_copy_of, is_marked};
pub use draft::{Draft, RuleDraft};
pub use events::{ObservedEvent, is_about_copies};
pub use metrics::Metrics;
pub use newcomer::Newcomer;
pub use recorder::{Change, RecordedEvent, Recorder};
pub use rule::{condition, entry_of};

/// A fleet for one test, with clients for that test's runtime.
#[derive(Debug)]
pub struct Scene {
    /// The hub's cluster.
    pub hub: TestCluster,
    /// The members' clusters, in their order.
    pub members: Vec<TestCluster>,
}

impl Scene {
    /// Connects to all clusters of a fleet.
    ///
    /// # Errors
    /// When a kubeconfig cannot be used.
    pub async fn of(fleet: &Fleet) -> Result<Self> {
        let hub = TestCluster::new("hub", fleet.hub().client().await?);
        let members = (1..=fleet.size()).map(|number| async move {
            anyhow::Ok(TestCluster::new(
                fleet.member_name(number),
                fleet.member(number).client().await?,
            ))
        });
        Ok(Self {
            hub,
            members: try_join_all(members).await?,
        })
    }

    /// A member, from 1.
    #[must_use]
    pub fn member(&self, number: usize) -> &TestCluster {
        &self.members[number - 1]
    }

    /// Sets the limits of removals in the fleet and in each member so high that only those of rules count.
    ///
    /// # Errors
    /// When the hub does not make the `Fleet`.
    pub async fn lift_fleet_limits(&self) -> Result<()> {
        let named = json!({"apiVersion": "runnel.dev/v1alpha1", "kind": "Fleet", "metadata": {"name": "default"}});
        let fleet = Id::of(&named)?;
        self.hub.sees("the Fleet", &fleet, |_| Ok(())).await?;
        let unlimited = json!({"count": 1_000_000});
        let limits = json!({"spec": {"removalLimit": {"fleet": unlimited, "member": unlimited}}});
        self.hub.change(&fleet, limits).await.map(drop)
    }

    /// Makes namespaces on the hub.
    ///
    /// # Errors
    /// When one exists already.
    pub async fn hub_namespaces(&self, names: &[&str]) -> Result<()> {
        make_namespaces(&self.hub, names).await
    }

    /// Makes namespaces in every member.
    ///
    /// # Errors
    /// When one exists already.
    pub async fn member_namespaces(&self, names: &[&str]) -> Result<()> {
        try_join_all(
            self.members
                .iter()
                .map(|member| make_namespaces(member, names)),
        )
        .await
        .map(|_| ())
    }

    /// Waits until every member has a correct copy of `source` in all these namespaces.
    ///
    /// # Errors
    /// At the deadline, with the difference of a copy.
    pub async fn arrives(&self, source: &Value, rule: &Id, namespaces: &[&str]) -> Result<()> {
        let each = self.members.iter().map(|member| async move {
            for namespace in namespaces {
                member.has_copy(source, namespace, rule).await?;
            }
            anyhow::Ok(())
        });
        try_join_all(each).await.map(|_| ())
    }

    /// Waits until every member has an object with this value at a JSON pointer.
    ///
    /// # Errors
    /// At the deadline, with the value that is there.
    pub async fn has_everywhere(&self, id: &Id, path: &str, value: &Value) -> Result<()> {
        for member in &self.members {
            let what = format!("with {value} at {path}");
            member
                .has_values(&what, id, &[(path, value.clone())])
                .await?;
        }
        Ok(())
    }

    /// Waits until no member has an object of the kind and name of `source` in any of these namespaces.
    ///
    /// # Errors
    /// When one is still there at the deadline.
    pub async fn vanishes(&self, source: &Value, namespaces: &[&str]) -> Result<()> {
        for member in &self.members {
            for namespace in namespaces {
                member.lacks(&Id::of(source)?.within(namespace)).await?;
            }
        }
        Ok(())
    }
}

async fn make_namespaces(place: &TestCluster, names: &[&str]) -> Result<()> {
    for name in names {
        place
            .make(&Draft::namespace(name).json())
            .await
            .with_context(|| format!("in {}", place.name()))?;
    }
    Ok(())
}
