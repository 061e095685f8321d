//! The table of kinds that Runnel distributes. Watches, plans, messages, CRDs, grants and policies read it. ARCHITECTURE.md
//! lists the other places that name kinds, such as the charts.

/// One kind that can be distributed.
#[derive(Debug, PartialEq, Eq)]
pub struct Kind {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// API version.
    pub version: &'static str,
    /// The kind, as in a manifest.
    pub kind: &'static str,
    /// `plural[.group]`, as in RBAC and in a rule's `resources`: the identity of the kind on the wire.
    pub resource: &'static str,
    /// The plural alone, as in a URL.
    pub plural: &'static str,
    /// Top-level fields that make up the content, besides labels and annotations.
    pub fields: &'static [&'static str],
    /// Those of [`Kind::fields`] that are maps with keys of ours alone: a surplus key is removed
    /// from a copy.
    pub exact_maps: &'static [&'static str],
    /// Whether values are secret: messages of the API server about such an object are never
    /// forwarded.
    pub sensitive: bool,
    /// Values of the top-level field `type` that are never distributed (a trailing `*` matches any rest).
    pub refused_types: &'static [&'static str],
    /// Object names that every cluster makes itself and that are never distributed.
    pub refused_names: &'static [&'static str],
    /// Group and version, as in `apiVersion`.
    pub api_version: &'static str,
}

/// Every kind that this build distributes.
pub const KINDS: &[Kind] = &[
    Kind {
        group: "",
        version: "v1",
        kind: "ConfigMap",
        resource: "configmaps",
        plural: "configmaps",
        fields: &["binaryData", "data", "immutable"],
        exact_maps: &["binaryData", "data"],
        sensitive: false,
        refused_types: &[],
        refused_names: &[
            "kube-root-ca.crt",
            "openshift-service-ca.crt",
            "istio-ca-root-cert",
        ],
        api_version: "v1",
    },
    Kind {
        group: "",
        version: "v1",
        kind: "Secret",
        resource: "secrets",
        plural: "secrets",
        fields: &["data", "immutable", "type"],
        exact_maps: &["data"],
        sensitive: true,
        refused_types: &[
            "kubernetes.io/service-account-token",
            "bootstrap.kubernetes.io/token",
            "helm.sh/release*",
        ],
        refused_names: &[],
        api_version: "v1",
    },
];

impl Kind {
    /// Returns the kind with this `plural[.group]`, if this build supports it.
    pub fn by_resource(resource: &str) -> Option<&'static Kind> {
        KINDS.iter().find(|kind| kind.resource == resource)
    }

    /// Whether objects of this `type` (absent for kinds without one) must never be distributed.
    pub fn refuses_type(&self, object_type: Option<&str>) -> bool {
        let Some(object_type) = object_type else {
            return false;
        };
        self.refused_types
            .iter()
            .any(|refused| match refused.strip_suffix('*') {
                Some(prefix) => object_type.starts_with(prefix),
                None => object_type == *refused,
            })
    }

    /// Whether an object of this name must never be distributed.
    pub fn refuses_name(&self, name: &str) -> bool {
        self.refused_names.contains(&name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_types_that_are_credentials_are_refused() {
        let secret = Kind::by_resource("secrets").unwrap();
        for refused in [
            "kubernetes.io/service-account-token",
            "bootstrap.kubernetes.io/token",
            "helm.sh/release.v1",
        ] {
            assert!(secret.refuses_type(Some(refused)), "{refused}");
        }
        for taken in [
            "Opaque",
            "kubernetes.io/tls",
            "kubernetes.io/service-account-tokens",
        ] {
            assert!(!secret.refuses_type(Some(taken)), "{taken}");
        }
        assert!(!secret.refuses_type(None));
    }

    #[test]
    fn exact_maps_are_fields() {
        for kind in KINDS {
            assert!(
                kind.exact_maps.iter().all(|map| kind.fields.contains(map)),
                "{}",
                kind.kind
            );
        }
    }
}
