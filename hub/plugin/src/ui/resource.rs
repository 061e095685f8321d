//! What the page follows: a closed list of resources, with their paths.
use runnel_api::{GROUP, VIEW_GROUP, VIEW_VERSION};
use runnel_hub_core::plan::LAST_APPLIED;
use serde::Serialize;
use serde_json::Value;

use super::super::helm::HUB;

/// The controller that the hub names in its Events.
const CONTROLLER: &str = "runnel.dev/hub";

/// The part of the hub that the page shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Scope {
    /// The namespace of the rules; `None`: all rules.
    pub(super) namespace: Option<String>,
    /// The namespace of the hub.
    pub(super) hub_namespace: String,
}

/// A resource that is listed and watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Resource {
    Rules,
    ClusterRules,
    Members,
    Fleets,
    Leases,
    Events,
    Deliveries,
    ClusterDeliveries,
}

impl Resource {
    /// The resources of a scope. Deliveries are last, because they are the most.
    pub(super) fn of(scope: &Scope) -> Vec<Self> {
        let all = [
            Self::Fleets,
            Self::Leases,
            Self::Rules,
            Self::ClusterRules,
            Self::Members,
            Self::Events,
            Self::Deliveries,
            Self::ClusterDeliveries,
        ];
        all.into_iter()
            .filter(|resource| scope.namespace.is_none() || !resource.is_of_cluster_rules())
            .collect()
    }

    fn is_of_cluster_rules(self) -> bool {
        matches!(self, Self::ClusterRules | Self::ClusterDeliveries)
    }

    /// Whether it is read as a table, without objects.
    pub(super) fn is_table(self) -> bool {
        matches!(self, Self::Deliveries | Self::ClusterDeliveries)
    }

    /// The words for messages.
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Rules => "DistributionRules",
            Self::ClusterRules => "ClusterDistributionRules",
            Self::Members => "MemberClusters",
            Self::Fleets => "Fleet",
            Self::Leases => "Lease of the hub",
            Self::Events => "Events",
            Self::Deliveries => "deliveries",
            Self::ClusterDeliveries => "clusterdeliveries",
        }
    }

    /// The path and the fixed part of the query.
    pub(super) fn path(self, scope: &Scope) -> String {
        let namespaces = match &scope.namespace {
            Some(namespace) => format!("namespaces/{namespace}/"),
            None => String::new(),
        };
        let runnel = format!("/apis/{GROUP}/v1alpha1");
        let view = format!("/apis/{VIEW_GROUP}/{VIEW_VERSION}");
        match self {
            Self::Rules => format!("{runnel}/{namespaces}distributionrules?"),
            Self::ClusterRules => format!("{runnel}/clusterdistributionrules?"),
            Self::Members => format!("{runnel}/memberclusters?"),
            Self::Fleets => format!("{runnel}/fleets?"),
            Self::Leases => format!(
                "/apis/coordination.k8s.io/v1/namespaces/{}/leases?fieldSelector=metadata.name%3D{HUB}&",
                scope.hub_namespace
            ),
            Self::Events => {
                let controller = CONTROLLER.replace('/', "%2F");
                format!(
                    "/apis/events.k8s.io/v1/{namespaces}events?fieldSelector=reportingController%3D{controller}&"
                )
            }
            Self::Deliveries => format!("{view}/{namespaces}deliveries?includeObject=None&"),
            Self::ClusterDeliveries => format!("{view}/clusterdeliveries?includeObject=None&"),
        }
    }

    /// The size of a page.
    pub(super) fn page(self) -> usize {
        if self.is_table() { 5000 } else { 500 }
    }

    /// The most objects that are kept. Of Events these are the newest ones.
    pub(super) fn limit(self) -> usize {
        match self {
            Self::Events => 2000,
            Self::Deliveries | Self::ClusterDeliveries => 2_000_000,
            _ => 50_000,
        }
    }

    /// Removes what the page does not show: field managers, joins and uids of clusters.
    pub(super) fn reduce(self, object: &mut Value) {
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("managedFields");
            if let Some(annotations) = metadata
                .get_mut("annotations")
                .and_then(Value::as_object_mut)
            {
                annotations.remove(LAST_APPLIED);
            }
        }
        if self == Self::Members {
            for (part, fields) in [("spec", &["join"][..]), ("status", &["clusterUid"][..])] {
                if let Some(part) = object.get_mut(part).and_then(Value::as_object_mut) {
                    fields.iter().for_each(|field| _ = part.remove(*field));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn scope(namespace: Option<&str>) -> Scope {
        Scope {
            namespace: namespace.map(str::to_owned),
            hub_namespace: "runnel-system".to_owned(),
        }
    }

    #[test]
    fn paths_are_a_closed_list_without_secrets() {
        for scope in [scope(None), scope(Some("shop"))] {
            let paths: Vec<_> = Resource::of(&scope)
                .into_iter()
                .map(|resource| resource.path(&scope))
                .collect();
            for path in &paths {
                let groups = [GROUP, VIEW_GROUP, "events.k8s.io", "coordination.k8s.io"];
                let known = groups
                    .iter()
                    .any(|group| path.starts_with(&format!("/apis/{group}/v1")));
                assert!(known && path.ends_with(['?', '&']), "{path}");
            }
            assert_eq!(paths.len(), if scope.namespace.is_none() { 8 } else { 6 });
        }
        let path = Resource::Deliveries.path(&scope(Some("shop")));
        assert_eq!(
            path,
            "/apis/view.runnel.dev/v1alpha1/namespaces/shop/deliveries?includeObject=None&"
        );
    }

    #[test]
    fn joins_and_uids_of_members_are_removed() {
        let mut member = json!({
            "metadata": {"name": "eu-1", "managedFields": [{}], "labels": {"env": "prod"}},
            "spec": {"accepted": true, "join": {"tokenHash": "sha256:1"}},
            "status": {"clusterUid": "u", "agentVersion": "0.1.0"},
        });
        Resource::Members.reduce(&mut member);
        let expected = json!({
            "metadata": {"name": "eu-1", "labels": {"env": "prod"}},
            "spec": {"accepted": true},
            "status": {"agentVersion": "0.1.0"},
        });
        assert_eq!(member, expected);
    }
}
