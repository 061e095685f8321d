//! The order of kinds: an object comes after what it needs, and goes before it.
//!
//! The order is that of Helm's installs where a kind needs another one: what limits and allows comes
//! before what runs, and what refuses requests comes last.

use runnel_proto::model::split_resource;

/// A phase of kinds. The copies of a rule are written phase by phase, and removed in reverse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Namespaces.
    Namespaces,
    /// Definitions and classes, which other objects name.
    Definitions,
    /// Accounts, roles, and limits of what runs.
    Rights,
    /// Configuration and storage, which workloads mount.
    Config,
    /// Bindings of roles to accounts.
    Bindings,
    /// Services.
    Services,
    /// Objects that run programs.
    Workloads,
    /// All other kinds, custom resources among them.
    Others,
    /// Webhooks, admission policies and aggregated APIs: they may refuse or answer requests for other objects.
    Gates,
}

impl Phase {
    /// Returns the phase of the kind with this `plural[.group]`.
    pub fn of(resource: &str) -> Self {
        let (plural, group) = split_resource(resource);
        match (group, plural) {
            ("", "namespaces") => Self::Namespaces,
            ("apiextensions.k8s.io", "customresourcedefinitions")
            | ("scheduling.k8s.io", "priorityclasses")
            | ("node.k8s.io", "runtimeclasses")
            | ("storage.k8s.io", "storageclasses" | "csidrivers")
            | ("networking.k8s.io", "ingressclasses")
            | ("gateway.networking.k8s.io", "gatewayclasses") => Self::Definitions,
            ("", "serviceaccounts" | "resourcequotas" | "limitranges")
            | ("rbac.authorization.k8s.io", "roles" | "clusterroles")
            | ("networking.k8s.io", "networkpolicies")
            | ("policy", "poddisruptionbudgets") => Self::Rights,
            ("", "configmaps" | "secrets" | "persistentvolumes" | "persistentvolumeclaims") => {
                Self::Config
            }
            ("rbac.authorization.k8s.io", "rolebindings" | "clusterrolebindings") => Self::Bindings,
            ("", "services") => Self::Services,
            ("", "pods" | "replicationcontrollers" | "podtemplates") | ("apps" | "batch", _) => {
                Self::Workloads
            }
            ("admissionregistration.k8s.io" | "apiregistration.k8s.io", _) => Self::Gates,
            _ => Self::Others,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_follow_what_they_need() {
        let order = [
            "namespaces",
            "customresourcedefinitions.apiextensions.k8s.io",
            "roles.rbac.authorization.k8s.io",
            "secrets",
            "rolebindings.rbac.authorization.k8s.io",
            "services",
            "deployments.apps",
            "widgets.example.org",
            "validatingwebhookconfigurations.admissionregistration.k8s.io",
        ];
        assert!(order.is_sorted_by_key(|kind| Phase::of(kind)));
        let phases: std::collections::BTreeSet<_> = order.map(Phase::of).into();
        assert_eq!(phases.len(), order.len());
        // The same plural of another group is another kind.
        assert_eq!(Phase::of("namespaces.example.org"), Phase::Others);
        assert_eq!(Phase::of("roles.example.org"), Phase::Others);
        assert_eq!(Phase::of("configmaps"), Phase::of("secrets"));
    }
}
