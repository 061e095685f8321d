//! The objects that the deletion of another object deletes, too: those in a namespace, and those of the kind that a
//! CustomResourceDefinition defines. The agent deletes such an object only when it is empty.
//!
//! What is in it is read right before the delete, which names the uid and resourceVersion of the object. An object that is
//! created between this read and the delete goes with it: no API server can prevent that.
use std::sync::Arc;

use kube_core::discovery::v2::{APIGroupDiscovery, APIResourceDiscovery, APIVersionDiscovery};
use runnel_proto::model::{Kind, Reason, Scope, SourceRef, split_resource};

use crate::classify::{CallError, copy_error};
use crate::copy::CopyError;

/// Kinds of records about other objects, and groups of measurements of them: they are no content of a namespace.
const RECORDS: [&str; 2] = ["events", "events.events.k8s.io"];
const MEASUREMENTS: [&str; 3] = [
    "custom.metrics.k8s.io",
    "external.metrics.k8s.io",
    "metrics.k8s.io",
];

/// Objects that a cluster makes in each namespace by itself.
const AUTOMATIC: [(&str, &[&str]); 2] = [
    (
        "configmaps",
        &[
            "istio-ca-root-cert",
            "kube-root-ca.crt",
            "openshift-service-ca.crt",
        ],
    ),
    ("serviceaccounts", &["default"]),
];

/// Limit of the kinds that an error names.
const NAMED: usize = 3;

/// An object that may contain others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Container {
    /// A namespace.
    Namespace(Arc<str>),
    /// The CRD of this kind, `plural.group`.
    Definition(Arc<str>),
}

/// A list that must be empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// The kind of the objects.
    pub kind: Kind,
    /// The namespace; `None`: the whole cluster.
    pub namespace: Option<Arc<str>>,
    /// The field selector that leaves out the objects that the cluster makes itself.
    pub fields: Option<String>,
}

impl Container {
    /// Returns the container that a copy is; `None` for a copy that contains no objects.
    pub fn of(copy: &SourceRef) -> Option<Self> {
        let definition = || copy.as_definition().cloned().map(Self::Definition);
        let namespace = copy.as_namespace().cloned().map(Self::Namespace);
        namespace.or_else(definition)
    }

    /// Returns the lists that must be empty, by the discovery of the API server.
    ///
    /// # Errors
    /// The error of the copy, if the discovery does not show all of them.
    pub fn listings(&self, groups: &[APIGroupDiscovery]) -> Result<Vec<Listing>, CopyError> {
        let mut listings = Vec::new();
        for group in groups {
            let name = group
                .metadata
                .as_ref()
                .and_then(|meta| meta.name.as_deref());
            self.add_listings(name.unwrap_or_default(), &group.versions, &mut listings)?;
        }
        if listings.is_empty() {
            let message = match self {
                Self::Namespace(_) => "the API server shows no kind with namespaces".to_owned(),
                Self::Definition(kind) => format!("the API server does not serve {kind}"),
            };
            return Err(unknown(Reason::Unavailable, &message));
        }
        Ok(listings)
    }

    fn add_listings(
        &self,
        group: &str,
        versions: &[APIVersionDiscovery],
        listings: &mut Vec<Listing>,
    ) -> Result<(), CopyError> {
        if MEASUREMENTS.contains(&group) {
            return Ok(());
        }
        let is_concerned = match self {
            Self::Namespace(_) => true,
            Self::Definition(kind) => split_resource(kind).1 == group,
        };
        let is_stale =
            |version: &APIVersionDiscovery| version.freshness.as_deref() == Some("Stale");
        if is_concerned && versions.iter().any(is_stale) {
            let message = format!("the API server cannot reach the API group {group}");
            return Err(unknown(Reason::Unavailable, &message));
        }
        let known = listings.len();
        for version in versions {
            let name = version.version.as_deref().unwrap_or_default();
            for resource in &version.resources {
                let Some(kind) = listed_kind(group, name, resource) else {
                    continue;
                };
                let is_new = listings
                    .iter()
                    .skip(known)
                    .all(|listing| listing.kind.resource != kind.resource);
                if is_new && self.contains(&kind) {
                    listings.push(self.listing(kind));
                }
            }
        }
        Ok(())
    }

    /// Whether objects of a kind can be in the container.
    fn contains(&self, kind: &Kind) -> bool {
        match self {
            Self::Namespace(_) => {
                kind.scope == Scope::Namespaced && !RECORDS.contains(&&*kind.resource)
            }
            Self::Definition(resource) => kind.resource == *resource,
        }
    }

    fn listing(&self, kind: Kind) -> Listing {
        let Self::Namespace(namespace) = self else {
            return Listing {
                kind,
                namespace: None,
                fields: None,
            };
        };
        let automatic = AUTOMATIC.iter().find(|(of, _)| **of == *kind.resource);
        let fields = automatic.map(|(_, names)| {
            let others: Vec<_> = names
                .iter()
                .map(|name| format!("metadata.name!={name}"))
                .collect();
            others.join(",")
        });
        Listing {
            kind,
            namespace: Some(namespace.clone()),
            fields,
        }
    }
}

/// Returns the kind of a resource; `None` if its objects cannot be listed.
fn listed_kind(group: &str, version: &str, resource: &APIResourceDiscovery) -> Option<Kind> {
    let plural = resource.resource.as_deref()?;
    let kind = resource.response_kind.as_ref()?.kind.as_deref()?;
    let scope = match resource.scope.as_deref() {
        Some("Cluster") => Scope::Cluster,
        _ => Scope::Namespaced,
    };
    let is_listable = resource.verbs.iter().any(|verb| verb == "list");
    is_listable.then(|| Kind::new(group, version, kind, plural, scope))
}

/// Returns the error of a copy that is not deleted because it contains objects of these kinds.
pub fn not_empty(kinds: &[Kind]) -> CopyError {
    let names: Vec<_> = kinds
        .iter()
        .take(NAMED)
        .map(|kind| &*kind.resource)
        .collect();
    let more = match kinds.len().saturating_sub(NAMED) {
        0 => String::new(),
        1 => " and another kind".to_owned(),
        more => format!(" and {more} other kinds"),
    };
    let message = format!(
        "it is deleted only when it is empty, and it has objects of {}{more}: delete them, or keep it (deletionPolicy: Retain, immutablePolicy: Report)",
        names.join(", ")
    );
    CopyError::new(Reason::NotEmpty, message)
}

/// Returns the error of a copy that is not deleted because objects of a kind cannot be listed.
pub fn unlisted(kind: &Kind, error: &CallError) -> CopyError {
    if error.code() == 403 {
        let message = format!(
            "the agent may not list {kind} (403): set policy.deleteNamespaces of its chart"
        );
        return unknown(Reason::Forbidden, &message);
    }
    let CopyError { reason, message } = copy_error(error);
    unknown(reason, &format!("{kind} cannot be listed: {message}"))
}

/// Returns the error of a copy that is not deleted because it is unknown whether it is empty.
pub fn unknown(reason: Reason, message: &str) -> CopyError {
    let message = format!(
        "it is deleted only when it is empty, and that is unknown: {message}; or keep it (deletionPolicy: Retain, immutablePolicy: Report)"
    );
    CopyError::new(reason, message)
}

#[cfg(test)]
mod tests {
    use kube_core::Status;
    use runnel_proto::model::CUSTOM_RESOURCE_DEFINITIONS;
    use serde_json::{Value, json};

    use super::*;

    fn resource(plural: &str, scope: &str, verbs: &[&str]) -> Value {
        json!({"resource": plural, "scope": scope, "verbs": verbs, "responseKind": {"kind": "Any"}})
    }

    fn group(name: &str, versions: Value) -> APIGroupDiscovery {
        let group = json!({"metadata": {"name": name}, "versions": versions});
        serde_json::from_value(group).unwrap()
    }

    fn version(name: &str, resources: &[Value]) -> Value {
        json!({"version": name, "freshness": "Current", "resources": resources})
    }

    fn groups() -> Vec<APIGroupDiscovery> {
        let list = ["get", "list"];
        let core = [
            resource("configmaps", "Namespaced", &list),
            resource("events", "Namespaced", &list),
            resource("bindings", "Namespaced", &["create"]),
            resource("nodes", "Cluster", &list),
            resource("serviceaccounts", "Namespaced", &list),
        ];
        let widgets = || resource("widgets", "Namespaced", &list);
        vec![
            group("", json!([version("v1", &core)])),
            group(
                "example.org",
                json!([
                    version("v2", &[widgets()]),
                    version("v1", &[widgets(), resource("gears", "Namespaced", &list)])
                ]),
            ),
            group(
                "metrics.k8s.io",
                json!([version("v1beta1", &[resource("pods", "Namespaced", &list)])]),
            ),
        ]
    }

    fn namespace() -> Container {
        Container::of(&SourceRef::new("namespaces", "", "shop")).unwrap()
    }

    fn definition(name: &str) -> Container {
        Container::of(&SourceRef::new(CUSTOM_RESOURCE_DEFINITIONS, "", name)).unwrap()
    }

    #[test]
    fn every_kind_that_can_be_in_a_namespace_is_listed_once() {
        let listings = namespace().listings(&groups()).unwrap();
        let seen: Vec<_> = listings
            .iter()
            .map(|listing| {
                assert_eq!(listing.namespace.as_deref(), Some("shop"));
                let Listing { kind, fields, .. } = listing;
                (&*kind.resource, &*kind.version, fields.as_deref())
            })
            .collect();
        let config_maps = "metadata.name!=istio-ca-root-cert,metadata.name!=kube-root-ca.crt,\
                           metadata.name!=openshift-service-ca.crt";
        let expected = [
            ("configmaps", "v1", Some(config_maps)),
            ("serviceaccounts", "v1", Some("metadata.name!=default")),
            ("widgets.example.org", "v2", None),
            ("gears.example.org", "v1", None),
        ];
        assert_eq!(seen, expected);
    }

    #[test]
    fn definition_contains_the_objects_of_its_kind() {
        let listings = definition("gears.example.org").listings(&groups()).unwrap();
        let kind = Kind::new("example.org", "v1", "Any", "gears", Scope::Namespaced);
        let (namespace, fields) = (None, None);
        assert_eq!(
            listings,
            [Listing {
                kind,
                namespace,
                fields
            }]
        );
    }

    #[test]
    fn what_discovery_does_not_show_keeps_a_container() {
        let fails = |container: &Container, groups: &[APIGroupDiscovery]| {
            let CopyError { reason, message } = container.listings(groups).unwrap_err();
            assert_eq!(reason, Reason::Unavailable);
            message
        };
        assert!(fails(&namespace(), &[]).contains("no kind with namespaces"));
        let unserved = fails(&definition("other.example.org"), &groups());
        assert!(
            unserved.contains("does not serve other.example.org"),
            "{unserved}"
        );
        let mut stale = groups();
        stale[1].versions[1].freshness = Some("Stale".to_owned());
        for container in [namespace(), definition("gears.example.org")] {
            let message = fails(&container, &stale);
            assert!(message.contains("group example.org"), "{message}");
        }
        // Measurements are no content.
        stale = groups();
        stale[2].versions[0].freshness = Some("Stale".to_owned());
        assert_eq!(namespace().listings(&stale).unwrap().len(), 4);
    }

    #[test]
    fn other_copies_contain_nothing() {
        for copy in [
            SourceRef::new("configmaps", "shop", "x"),
            SourceRef::new("namespaces", "shop", "x"),
            SourceRef::new("clusterroles.rbac.authorization.k8s.io", "", "x"),
        ] {
            assert_eq!(Container::of(&copy), None, "{copy}");
        }
    }

    #[test]
    fn errors_name_the_kinds_and_what_to_do() {
        let kind = |plural: &str| Kind::new("", "v1", "Any", plural, Scope::Namespaced);
        let kinds: Vec<_> = ["pods", "secrets", "services", "a", "b"].map(kind).into();
        let error = not_empty(&kinds);
        assert_eq!(error.reason, Reason::NotEmpty);
        let text = "objects of pods, secrets, services and 2 other kinds: delete them";
        assert!(error.message.contains(text), "{}", error.message);
        assert!(
            not_empty(&kinds[..1])
                .message
                .contains("objects of pods: delete")
        );
        let refused = |code| {
            CallError::Refused(Box::new(Status {
                code,
                ..Status::default()
            }))
        };
        let forbidden = unlisted(&kinds[0], &refused(403));
        assert_eq!(forbidden.reason, Reason::Forbidden);
        assert!(
            forbidden.message.contains("may not list pods"),
            "{}",
            forbidden.message
        );
        assert_eq!(
            unlisted(&kinds[0], &refused(503)).reason,
            Reason::Unavailable
        );
    }
}
