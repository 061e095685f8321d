//! The distributed part of an object.
use std::collections::BTreeMap;
use std::sync::Arc;

use runnel_proto::json_nodes::CONTENT_NODES;
use runnel_proto::model::{
    Content, HUB_LABEL, Kind, MANAGED_BY, MANAGED_BY_LABEL, PAYLOAD_LIMIT, Payload,
    RESERVED_PREFIX, RevisionKey,
};
use serde_json::Value;

use super::SourceContent;
use super::portable::{is_automatic, is_controlled, is_local_entry, portable_fields};
use crate::guard::{Cause, CauseKind};
use runnel_api::is_local_kind;

/// The annotation in which `kubectl apply` stores the whole object.
pub const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Annotations and labels that are not copied unless a rule allows it: they control tools of the
/// hub cluster, or repeat the whole object. A trailing `*` matches any rest. Argo CD's
/// `secret-type` is not among them: members deny it, unless their policy allows it.
const DENIED_METADATA: &[&str] = &[
    LAST_APPLIED,
    "meta.helm.sh/*",
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/instance",
    "argocd.argoproj.io/tracking-id",
    "argocd.argoproj.io/instance",
    "kustomize.toolkit.fluxcd.io/*",
    "helm.toolkit.fluxcd.io/*",
    "objectset.rio.cattle.io/*",
    "reconcile.external-secrets.io/*",
    "cert-manager.io/*",
    "controller.cert-manager.io/*",
    "replicator.v1.mittwald.de/*",
    "reflector.v1.k8s.emberstack.com/*",
];

/// Secrets with the identities of the hub and the agents: never sources, in any namespace, as the
/// agent of the hub's own cluster may run in another namespace than the hub.
const OWN_SECRETS: &[&str] = &[
    "runnel-hub-identity",
    "runnel-hub-ca-bundle",
    "runnel-agent-identity",
    "runnel-agent-terms",
];

/// Prefix of the names of the Secrets in which a hub stores the states of completed rollouts.
pub const ROLLBACK_SECRETS: &str = "runnel-hub-rollback-";

/// An object with this annotation and the value `false` is not distributed by any rule.
pub const DISTRIBUTE_ANNOTATION: &str = "runnel.dev/distribute";

/// Why an object is never distributed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum UnsupportedSource {
    /// Its type is a credential of the hub cluster, or a Helm release.
    Type,
    /// The object has more bytes or JSON nodes than the agent's limit.
    TooLarge,
    /// The owner of the object excludes it, by the annotation `runnel.dev/distribute`.
    Annotation,
    /// A controller of the hub cluster made the object from another one.
    Controlled,
}

impl UnsupportedSource {
    /// Whether existing copies stay: the owner of the object did not exclude it, and the next edit may bring it back.
    pub fn keeps_copies(self) -> bool {
        self == Self::TooLarge
    }

    /// What happened to an object in a namespace that is not distributed any more. Only its owner's annotation excludes it
    /// on purpose.
    pub(crate) fn cause(self, namespace: Arc<str>) -> Cause {
        match self {
            Self::Annotation => CauseKind::Deleted.of(""),
            Self::Controlled => CauseKind::Controlled.of(namespace),
            Self::Type | Self::TooLarge => CauseKind::Refused.of(namespace),
        }
    }

    /// Returns the reason, for a person who asks for a copy.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Type => {
                "its type is a credential of its cluster, or a Helm release: never copied"
            }
            Self::TooLarge => "the object is larger than the agent accepts",
            Self::Annotation => "its owner set the annotation",
            Self::Controlled => "a controller made it from another object: distribute that one",
        }
    }
}

/// Why an object has no content to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ContentRefusal {
    /// It is never distributed.
    Unsupported(UnsupportedSource),
    /// Its content has this number of bytes, which is more than the agent's limit.
    TooLarge(usize),
    /// Its content has this number of JSON nodes, which is more than the agent's limit.
    TooManyNodes(usize),
}

impl From<ContentRefusal> for UnsupportedSource {
    fn from(refusal: ContentRefusal) -> Self {
        match refusal {
            ContentRefusal::Unsupported(refused) => refused,
            ContentRefusal::TooLarge(_) | ContentRefusal::TooManyNodes(_) => Self::TooLarge,
        }
    }
}

/// Whether an object is never a source, by its kind, name and labels alone: it is made by every cluster itself, it is a
/// copy, or it is Runnel's own.
pub fn is_never_a_source(kind: &Kind, name: &str, labels: &BTreeMap<String, String>) -> bool {
    let copy = labels.contains_key(HUB_LABEL)
        && labels
            .get(MANAGED_BY_LABEL)
            .is_some_and(|by| by == MANAGED_BY);
    let own = OWN_SECRETS.contains(&name) || name.starts_with(ROLLBACK_SECRETS);
    let local = || kind.content.fields.is_empty() && is_local_kind(&kind.resource);
    let automatic = || kind.content.is_owned() && is_automatic(labels);
    copy || own || kind.content.refuses_name(name) || automatic() || local()
}

/// Whether a controller made an object of a kind without rules of its own. It is a source only for rules that say so.
fn is_controlled_source(kind: &Kind, object: &Value) -> bool {
    kind.content.fields.is_empty() && is_controlled(object)
}

/// Returns the content of an object, encoded for the wire.
///
/// # Errors
/// [`ContentRefusal`] if the object is never distributed, or is too large.
pub(super) fn source_content(
    kind: &Kind,
    object: &Value,
    key: &RevisionKey,
) -> Result<SourceContent, ContentRefusal> {
    let content = content_of(kind, object).map_err(ContentRefusal::Unsupported)?;
    let nodes = content.nodes();
    if nodes > CONTENT_NODES {
        return Err(ContentRefusal::TooManyNodes(nodes));
    }
    let canonical = content.to_bytes();
    if canonical.len() > PAYLOAD_LIMIT {
        return Err(ContentRefusal::TooLarge(canonical.len()));
    }
    let revision = key.revision(&kind.resource, &canonical);
    let mut read = SourceContent::of(revision, &content, canonical);
    read.controlled = is_controlled_source(kind, object);
    read.denied = denied_of(object).map(|denied| Payload::encode(denied.to_bytes()));
    Ok(read)
}

/// Checks that an object may be distributed, whatever its content.
///
/// # Errors
/// [`UnsupportedSource::Annotation`] if the owner's annotation denies it,
/// [`UnsupportedSource::Type`] for types that are never distributed.
pub(super) fn check_distributed(kind: &Kind, object: &Value) -> Result<(), UnsupportedSource> {
    let refuses = |annotations: &Value| {
        annotations
            .get(DISTRIBUTE_ANNOTATION)
            .and_then(Value::as_str)
            == Some("false")
    };
    if object
        .get("metadata")
        .and_then(|meta| meta.get("annotations"))
        .is_some_and(refuses)
    {
        return Err(UnsupportedSource::Annotation);
    }
    if kind
        .content
        .refuses_type(object.get("type").and_then(Value::as_str))
    {
        return Err(UnsupportedSource::Type);
    }
    Ok(())
}

/// Returns the distributed part of an object.
///
/// # Errors
/// [`UnsupportedSource`] if the object is never distributed.
pub fn content_of(kind: &Kind, object: &Value) -> Result<Content, UnsupportedSource> {
    check_distributed(kind, object)?;
    if kind.content.fields.is_empty() {
        return Ok(portable_content(kind, object));
    }
    let fields = kind.content.fields.iter().filter_map(|field| {
        let value = object.get(*field).filter(|value| !is_empty(value))?;
        Some(((*field).to_owned(), value.clone()))
    });
    Ok(Content {
        version: None,
        labels: copied_entries(object, "labels"),
        annotations: copied_entries(object, "annotations"),
        fields: fields.collect(),
    })
}

/// Returns the content of an object of a kind without rules of its own: everything that another cluster can have.
fn portable_content(kind: &Kind, object: &Value) -> Content {
    let entries =
        |scope| matching_entries(object, scope, |key| !is_denied(key) && !is_local_entry(key));
    Content {
        version: Some(kind.version.clone()),
        labels: entries("labels"),
        annotations: entries("annotations"),
        fields: portable_fields(&kind.resource, object),
    }
}

/// Returns the labels and annotations that are copied only if a rule allows them; `None` if there
/// are none. Marks of copies, and annotations that contain the whole object, are never copied.
fn denied_of(object: &Value) -> Option<Content> {
    let never = |key: &str| {
        key.starts_with(RESERVED_PREFIX) || key == MANAGED_BY_LABEL || key == LAST_APPLIED
    };
    let denied = |scope| matching_entries(object, scope, |key| is_denied(key) && !never(key));
    let content = Content {
        labels: denied("labels"),
        annotations: denied("annotations"),
        ..Content::default()
    };
    (content != Content::default()).then_some(content)
}

fn is_empty(value: &Value) -> bool {
    value.is_null() || value.as_object().is_some_and(serde_json::Map::is_empty)
}

fn copied_entries(object: &Value, scope: &str) -> BTreeMap<String, String> {
    matching_entries(object, scope, |key| !is_denied(key))
}

fn matching_entries(
    object: &Value,
    scope: &str,
    picks: impl Fn(&str) -> bool,
) -> BTreeMap<String, String> {
    let entries = object
        .get("metadata")
        .and_then(|meta| meta.get(scope))
        .and_then(Value::as_object);
    let entries = entries.into_iter().flatten().filter(|(key, _)| picks(key));
    entries
        .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect()
}

fn is_denied(key: &str) -> bool {
    key.starts_with(RESERVED_PREFIX)
        || DENIED_METADATA
            .iter()
            .any(|denied| match denied.strip_suffix('*') {
                Some(prefix) => key.starts_with(prefix),
                None => key == *denied,
            })
}

#[cfg(test)]
mod tests {
    use super::*;
    use runnel_proto::model::Scope;
    use serde_json::json;

    #[test]
    fn data_is_copied_and_traces_of_other_tools_are_not() {
        let object = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
            "metadata": {
                "name": "s", "namespace": "a", "uid": "u", "resourceVersion": "7",
                "ownerReferences": [{"name": "owner"}], "finalizers": ["x/y"], "managedFields": [{}],
                "labels": {"rule": "test", "app.kubernetes.io/managed-by": "Helm", "argocd.argoproj.io/secret-type": "cluster"},
                "annotations": {
                    "note": "kept", "kubectl.kubernetes.io/last-applied-configuration": "{}",
                    "meta.helm.sh/release-name": "r", "runnel.dev/seal": "x", "cert-manager.io/issuer": "i",
                },
            },
            "data": {"k": "dg=="}, "binaryData": {"not": "ours"},
        });
        let content = content_of(Kind::by_resource("secrets").unwrap(), &object)
            .ok()
            .unwrap();
        let expected = json!({
            "labels": {"rule": "test", "argocd.argoproj.io/secret-type": "cluster"},
            "annotations": {"note": "kept"},
            "fields": {"type": "Opaque", "data": {"k": "dg=="}},
        });
        assert_eq!(serde_json::to_value(&content).unwrap(), expected);
        let denied = json!({"annotations": {"meta.helm.sh/release-name": "r", "cert-manager.io/issuer": "i"}});
        assert_eq!(serde_json::to_value(denied_of(&object)).unwrap(), denied);
        assert!(denied_of(&json!({"metadata": {"labels": {"a": "b"}}})).is_none());
    }

    #[test]
    fn empty_maps_equal_absent_ones() {
        let kind = Kind::by_resource("configmaps").unwrap();
        let absent = content_of(kind, &json!({"metadata": {}})).ok().unwrap();
        let empty = content_of(
            kind,
            &json!({"metadata": {"labels": {}}, "data": {}, "binaryData": null}),
        )
        .ok()
        .unwrap();
        assert!(absent == empty);
    }

    #[test]
    fn credentials_of_the_cluster_are_refused() {
        let kind = Kind::by_resource("secrets").unwrap();
        let token = json!({"metadata": {}, "type": "kubernetes.io/service-account-token"});
        assert!(content_of(kind, &token).err() == Some(UnsupportedSource::Type));
    }

    #[test]
    fn an_annotation_of_the_owner_refuses_and_only_with_false() {
        let kind = Kind::by_resource("configmaps").unwrap();
        let annotated =
            |value: &str| json!({"metadata": {"annotations": {"runnel.dev/distribute": value}}});
        assert!(content_of(kind, &annotated("false")).err() == Some(UnsupportedSource::Annotation));
        for other in ["true", "", "no"] {
            let content = content_of(kind, &annotated(other)).ok().unwrap();
            assert!(content.annotations.is_empty(), "{other}");
        }
    }

    #[test]
    fn kind_without_rules_has_every_portable_field() {
        let kind = Kind::new("apps", "v1", "Deployment", "deployments", Scope::Namespaced);
        let mut object = json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {
                "name": "web", "generation": 3, "labels": {"app": "web"},
                "annotations": {"note": "kept", "deployment.kubernetes.io/revision": "2", "meta.helm.sh/release-name": "r"},
            },
            "spec": {"replicas": 0, "paused": false, "template": {"metadata": {"creationTimestamp": null}}},
            "status": {"replicas": 2},
        });
        let content = content_of(&kind, &object).ok().unwrap();
        let expected = json!({
            "labels": {"app": "web"}, "annotations": {"note": "kept"}, "version": "v1",
            "fields": {"spec": {"replicas": 0, "paused": false}},
        });
        assert_eq!(serde_json::to_value(&content).unwrap(), expected);
        object["metadata"]["ownerReferences"] = json!([{"name": "app", "controller": true}]);
        assert!(is_controlled_source(&kind, &object));
        // The author of a Secret or a ConfigMap may be a controller.
        let config_map = Kind::by_resource("configmaps").unwrap();
        assert!(!is_controlled_source(config_map, &object));
        let lease = Kind::new(
            "coordination.k8s.io",
            "v1",
            "Lease",
            "leases",
            Scope::Namespaced,
        );
        assert!(is_never_a_source(&lease, "l", &BTreeMap::new()));
    }

    #[test]
    fn copies_and_runnels_own_secrets_are_never_sources() {
        let (configmap, secret) = (
            Kind::by_resource("configmaps").unwrap(),
            Kind::by_resource("secrets").unwrap(),
        );
        let none = BTreeMap::new();
        let marks = BTreeMap::from([
            (MANAGED_BY_LABEL.to_owned(), MANAGED_BY.to_owned()),
            (HUB_LABEL.to_owned(), "abc".to_owned()),
        ]);
        assert!(is_never_a_source(configmap, "copy", &marks));
        assert!(is_never_a_source(configmap, "kube-root-ca.crt", &none));
        assert!(is_never_a_source(secret, "runnel-agent-identity", &none));
        assert!(is_never_a_source(secret, "runnel-hub-rollback-3", &none));
        assert!(!is_never_a_source(secret, "runnel", &none));
        assert!(!is_never_a_source(configmap, "plain", &none));
    }
}
