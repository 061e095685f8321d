//! The kinds whose objects belong to one cluster: they are never distributed.
use runnel_proto::model::split_resource;

use super::GROUP;

/// The kind of bundles.
pub const BUNDLE_KIND: &str = "manifestbundles.runnel.dev";

/// Kinds of Kubernetes without namespaces that carry no rights: group and kind. The chart's admission policy checks that the
/// author of a bundle may create them.
pub const CLUSTER_KINDS: [(&str, &str); 8] = [
    ("networking.k8s.io", "IngressClass"),
    ("node.k8s.io", "RuntimeClass"),
    ("resource.k8s.io", "DeviceClass"),
    ("resource.k8s.io", "DeviceTaintRule"),
    ("scheduling.k8s.io", "PriorityClass"),
    ("storage.k8s.io", "CSIDriver"),
    ("storage.k8s.io", "StorageClass"),
    ("storage.k8s.io", "VolumeAttributesClass"),
];

/// Kinds whose objects describe one cluster, or are credentials of one.
pub(super) const LOCAL_KINDS: &[&str] = &[
    "certificatesigningrequests.certificates.k8s.io",
    "componentstatuses",
    "controllerrevisions.apps",
    "csinodes.storage.k8s.io",
    "csistoragecapacities.storage.k8s.io",
    "endpoints",
    "endpointslices.discovery.k8s.io",
    "events",
    "events.events.k8s.io",
    "ipaddresses.networking.k8s.io",
    "leasecandidates.coordination.k8s.io",
    "leases.coordination.k8s.io",
    "nodes",
    "podcertificaterequests.certificates.k8s.io",
    "resourceslices.resource.k8s.io",
    "servicecidrs.networking.k8s.io",
    "storageversionmigrations.storagemigration.k8s.io",
    "storageversions.internal.apiserver.k8s.io",
    "volumeattachments.storage.k8s.io",
];

/// Kinds among them whose objects are made for Services: by controllers, or by people where a Service has no selector. As manifests
/// they are distributed.
const ENDPOINTS: [&str; 2] = ["endpoints", "endpointslices.discovery.k8s.io"];

/// Groups without stored objects: their requests are answered, and metrics are measured.
pub(super) const LOCAL_GROUPS: &[&str] = &[
    "authentication.k8s.io",
    "authorization.k8s.io",
    "custom.metrics.k8s.io",
    "external.metrics.k8s.io",
    "metrics.k8s.io",
];

/// Whether objects of a kind, by its `plural[.group]`, belong to one cluster: none of them is ever distributed. The kinds
/// of Runnel are among them, but bundles are not: their manifests are distributed.
pub fn is_local_kind(resource: &str) -> bool {
    if resource == BUNDLE_KIND {
        return false;
    }
    let (_, group) = split_resource(resource);
    let is_own = group == GROUP
        || group
            .strip_suffix(GROUP)
            .is_some_and(|part| part.ends_with('.'));
    is_own || LOCAL_KINDS.contains(&resource) || LOCAL_GROUPS.contains(&group)
}

/// Whether no manifest of a kind, by its `plural[.group]`, is distributed: as [`is_local_kind`], but for what people write.
pub fn is_no_kind_of_manifests(resource: &str) -> bool {
    is_local_kind(resource) && !ENDPOINTS.contains(&resource)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_one_cluster_are_local() {
        for local in [
            "events",
            "nodes",
            "storageversionmigrations.storagemigration.k8s.io",
            "leases.coordination.k8s.io",
            "tokenreviews.authentication.k8s.io",
            "distributionrules.runnel.dev",
            "deliveries.view.runnel.dev",
        ] {
            assert!(is_local_kind(local), "{local}");
        }
        for portable in [
            "configmaps",
            "manifestbundles.runnel.dev",
            "services",
            "events.example.org",
            "widgets.notrunnel.dev",
            "networkpolicies.networking.k8s.io",
            "roles.rbac.authorization.k8s.io",
        ] {
            assert!(!is_local_kind(portable), "{portable}");
        }
    }
}
