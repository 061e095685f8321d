//! Whether a rule was deleted with its namespace or with the CRD of its kind.
//!
//! Such a rule was not deleted on purpose, so its removals are under the limits of the removal
//! guard. The watches of namespaces and CRDs may be behind the watch of rules. So the hub
//! reads both when a rule is deleted: the deletion of a whole namespace marks the namespace first.
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::ListParams;
use kube::{Api, Client, CustomResourceExt, Resource, ResourceExt};
use serde::de::DeserializeOwned;

use crate::hub_state::HubState;
use crate::object_cache::RuleKind;
use runnel_api::{ClusterDistributionRule, DistributionRule};

/// Time limit of a read.
const TIMEOUT: Duration = Duration::from_secs(2);

/// After a failure nothing is read for so long: the removal guard waits for the watches instead.
const PAUSE: Duration = Duration::from_secs(30);

/// Reads the namespaces and CRDs of deleted rules.
pub(super) struct Origins {
    client: Client,
    failed: Option<Instant>,
}

impl Origins {
    pub(super) fn new(client: Client) -> Self {
        Self {
            client,
            failed: None,
        }
    }

    /// Reads the namespace and the CRD of a deleted rule into the index. Returns whether both were read.
    pub(super) async fn read<K: RuleKind>(&mut self, rule: &K, hub_state: &HubState) -> bool {
        if self.failed.is_some_and(|failed| failed.elapsed() < PAUSE) {
            return false;
        }
        let is_read = tokio::time::timeout(TIMEOUT, self.read_both(rule, hub_state)).await;
        let is_read = matches!(is_read, Ok(Ok(())));
        self.failed = (!is_read).then(Instant::now);
        is_read
    }

    async fn read_both<K: RuleKind>(&self, rule: &K, hub_state: &HubState) -> kube::Result<()> {
        let crd = match rule.namespace() {
            Some(namespace) => {
                if is_terminating(Api::<Namespace>::all(self.client.clone()), &namespace).await? {
                    hub_state.change_quietly(|index| {
                        index
                            .fleet_guard_mut()
                            .terminating
                            .set_namespace(&namespace, true)
                    });
                }
                DistributionRule::crd_name()
            }
            None => ClusterDistributionRule::crd_name(),
        };
        if is_terminating(
            Api::<CustomResourceDefinition>::all(self.client.clone()),
            crd,
        )
        .await?
        {
            hub_state.change_quietly(|index| {
                let scopes = &mut index.fleet_guard_mut().terminating;
                scopes.set_crd(crd, Some(true));
            });
        }
        Ok(())
    }
}

/// Whether an object is terminating or deleted. It is listed by its name, as the hub may list and watch these kinds.
async fn is_terminating<K>(api: Api<K>, name: &str) -> kube::Result<bool>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let list = api
        .list_metadata(&ListParams::default().fields(&format!("metadata.name={name}")))
        .await?;
    Ok(list
        .items
        .first()
        .is_none_or(|object| object.metadata.deletion_timestamp.is_some()))
}
