//! The distributed part of an object.
use std::collections::BTreeMap;
use std::sync::Arc;

use runnel_proto::json_nodes::CONTENT_NODES;
use runnel_proto::model::{
    Content, HUB_LABEL, Kind, MANAGED_BY, MANAGED_BY_LABEL, PAYLOAD_LIMIT, Payload,
    RESERVED_PREFIX, RevisionKey,
};
use serde_json::{Map, Value};

use super::SourceContent;
use super::left_out::{LAST_APPLIED, kept_paths};
use super::portable::{
    Origin, has_injected_ca, is_automatic, is_ca_injector, is_controlled, is_local_entry,
    portable_fields,
};
use crate::guard::{Cause, CauseKind};
use runnel_api::{is_local_kind, is_no_kind_of_manifests};

/// Annotations and labels of an object of the hub cluster that are not copied unless a rule allows it: they control tools of
/// that cluster, which own or prune what has them, or repeat the whole object. A trailing `*` matches any rest. Argo CD's
/// `secret-type` is not among them: members deny it, unless their policy allows it.
const DENIED_METADATA: &[&str] = &[
    LAST_APPLIED,
    "meta.helm.sh/*",
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/instance",
    "argocd.argoproj.io/tracking-id",
    "argocd.argoproj.io/instance",
    "applyset.kubernetes.io/*",
    "kapp.k14s.io/*",
    "config.k8s.io/owning-inventory",
    "olm.owner*",
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
    let local = || kind.content.fields.is_empty() && is_local_kind(&kind.resource);
    is_never_a_manifest(kind, name, labels) || local()
}

/// Whether a manifest is never distributed, as [`is_never_a_source`].
pub(super) fn is_never_a_manifest(
    kind: &Kind,
    name: &str,
    labels: &BTreeMap<String, String>,
) -> bool {
    let copy = labels.contains_key(HUB_LABEL)
        && labels
            .get(MANAGED_BY_LABEL)
            .is_some_and(|by| by == MANAGED_BY);
    let own = OWN_SECRETS.contains(&name) || name.starts_with(ROLLBACK_SECRETS);
    let local = || kind.content.fields.is_empty() && is_no_kind_of_manifests(&kind.resource);
    let automatic = || kind.content.is_owned() && is_automatic(labels);
    copy || own || kind.content.refuses_name(name) || automatic() || local()
}

/// Whether a controller made an object of a kind without rules of its own. It is a source only for rules that say so.
fn is_controlled_source(kind: &Kind, object: &Value) -> bool {
    kind.content.fields.is_empty() && is_controlled(object)
}

/// Whether a rule has to allow that a label or annotation is copied.
fn needs_leave(origin: Origin, key: &str) -> bool {
    match origin {
        Origin::HubCluster => is_denied(key),
        Origin::Manifest => is_never_copied(key),
    }
}

/// Returns the content of an object, encoded for the wire.
///
/// # Errors
/// [`ContentRefusal`] if the object is never distributed, or is too large.
pub(super) fn source_content(
    kind: &Kind,
    object: &Value,
    origin: Origin,
    key: &RevisionKey,
) -> Result<SourceContent, ContentRefusal> {
    let content = content_of(kind, object, origin).map_err(ContentRefusal::Unsupported)?;
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
    read.left_out = kept_paths(object, &content);
    let denied = denied_of(object).filter(|_| origin == Origin::HubCluster);
    read.denied = denied.map(|denied| Payload::encode(denied.to_bytes()));
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
pub fn content_of(
    kind: &Kind,
    object: &Value,
    origin: Origin,
) -> Result<Content, UnsupportedSource> {
    check_distributed(kind, object)?;
    if kind.content.fields.is_empty() {
        return Ok(portable_content(kind, object, origin));
    }
    let fields = kind.content.fields.iter().filter_map(|field| {
        let value = object.get(*field).filter(|value| !is_empty(value))?;
        Some(((*field).to_owned(), stored_form(field, value)))
    });
    let entries = |scope| matching_entries(object, scope, |key| !needs_leave(origin, key));
    Ok(Content {
        version: None,
        mode: None,
        labels: entries("labels"),
        annotations: entries("annotations"),
        fields: fields.collect(),
    })
}

/// Returns a field of a kind with rules of its own as an API server stores it: base64 may have line breaks in a manifest.
fn stored_form(field: &str, value: &Value) -> Value {
    let mut value = value.clone();
    let bytes = value.as_object_mut().filter(|_| field == "binaryData");
    for encoded in bytes.into_iter().flat_map(Map::values_mut) {
        if let Value::String(text) = encoded {
            text.retain(|character| !matches!(character, '\n' | '\r'));
        }
    }
    value
}

/// Returns the content of an object of a kind without rules of its own: everything that another cluster can have.
fn portable_content(kind: &Kind, object: &Value, origin: Origin) -> Content {
    // A controller of the member is to fill in the CA that is not copied.
    let has_injected_ca = has_injected_ca(object);
    let is_local = |key: &str| origin == Origin::HubCluster && is_local_entry(key);
    let is_copied = |key: &str| {
        !is_local(key) && (!needs_leave(origin, key) || (has_injected_ca && is_ca_injector(key)))
    };
    let entries = |scope| matching_entries(object, scope, is_copied);
    Content {
        version: Some(kind.version.clone()),
        mode: None,
        labels: entries("labels"),
        annotations: entries("annotations"),
        fields: portable_fields(&kind.resource, object, origin),
    }
}

/// Returns the labels and annotations that are copied only if a rule allows them; `None` if there
/// are none. Marks of copies, and annotations that contain the whole object, are never copied.
fn denied_of(object: &Value) -> Option<Content> {
    let denied = |scope| matching_entries(object, scope, may_be_allowed);
    let content = Content {
        labels: denied("labels"),
        annotations: denied("annotations"),
        ..Content::default()
    };
    (content != Content::default()).then_some(content)
}

fn is_empty(value: &Value) -> bool {
    value.is_null() || value.as_object().is_some_and(Map::is_empty)
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

/// Whether a label or annotation of an object of the hub is copied only if a rule allows it.
pub(super) fn may_be_allowed(key: &str) -> bool {
    is_denied(key) && !is_never_copied(key)
}

/// Whether a label or annotation is Runnel's own, or contains the whole object.
fn is_never_copied(key: &str) -> bool {
    key.starts_with(RESERVED_PREFIX) || key == MANAGED_BY_LABEL || key == LAST_APPLIED
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
        let content = content_of(
            Kind::by_resource("secrets").unwrap(),
            &object,
            Origin::HubCluster,
        )
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
        let absent = content_of(kind, &json!({"metadata": {}}), Origin::HubCluster)
            .ok()
            .unwrap();
        let empty = content_of(
            kind,
            &json!({"metadata": {"labels": {}}, "data": {}, "binaryData": null}),
            Origin::HubCluster,
        )
        .ok()
        .unwrap();
        assert!(absent == empty);
    }

    #[test]
    fn credentials_of_the_cluster_are_refused() {
        let kind = Kind::by_resource("secrets").unwrap();
        let token = json!({"metadata": {}, "type": "kubernetes.io/service-account-token"});
        assert!(
            content_of(kind, &token, Origin::HubCluster).err() == Some(UnsupportedSource::Type)
        );
    }

    #[test]
    fn an_annotation_of_the_owner_refuses_and_only_with_false() {
        let kind = Kind::by_resource("configmaps").unwrap();
        let annotated =
            |value: &str| json!({"metadata": {"annotations": {"runnel.dev/distribute": value}}});
        assert!(
            content_of(kind, &annotated("false"), Origin::HubCluster).err()
                == Some(UnsupportedSource::Annotation)
        );
        for other in ["true", "", "no"] {
            let content = content_of(kind, &annotated(other), Origin::HubCluster)
                .ok()
                .unwrap();
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
        let content = content_of(&kind, &object, Origin::HubCluster).ok().unwrap();
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
    fn manifest_keeps_what_its_author_wrote() {
        let metadata = |object: &Value| {
            let kind = Kind::new("", "v1", "Service", "services", Scope::Namespaced);
            let of = |origin| {
                let content = content_of(&kind, object, origin).ok().unwrap();
                (content.labels, content.annotations, content.fields)
            };
            (of(Origin::Manifest), of(Origin::HubCluster))
        };
        let service = json!({
            "metadata": {
                "labels": {"app.kubernetes.io/instance": "web", "applyset.kubernetes.io/part-of": "x", "app.kubernetes.io/managed-by": "Helm"},
                "annotations": {
                    "autoscaling.alpha.kubernetes.io/metrics": "[]", "cert-manager.io/cluster-issuer": "ca", "runnel.dev/seal": "x",
                    LAST_APPLIED: "{}",
                },
            },
            "spec": {"clusterIP": "10.0.0.7", "ports": [{"port": 80, "nodePort": 30080}]},
        });
        let ((labels, annotations, fields), (cluster_labels, cluster_annotations, _)) =
            metadata(&service);
        let keys = |map: &BTreeMap<String, String>| map.keys().cloned().collect::<Vec<_>>();
        assert_eq!(
            keys(&labels),
            [
                "app.kubernetes.io/instance",
                "applyset.kubernetes.io/part-of"
            ]
        );
        assert_eq!(
            keys(&annotations),
            [
                "autoscaling.alpha.kubernetes.io/metrics",
                "cert-manager.io/cluster-issuer"
            ]
        );
        assert_eq!(fields["spec"], service["spec"]);
        assert!(cluster_labels.is_empty() && cluster_annotations.is_empty());
    }

    #[test]
    fn filled_in_ca_and_the_request_for_it_stay_together() {
        let kind = Kind::new(
            "admissionregistration.k8s.io",
            "v1",
            "ValidatingWebhookConfiguration",
            "validatingwebhookconfigurations",
            Scope::Cluster,
        );
        let object = json!({
            "metadata": {"annotations": {"cert-manager.io/inject-ca-from": "a/b", "cert-manager.io/issuer": "i"}},
            "webhooks": [{"name": "w", "clientConfig": {"caBundle": "Cg=="}}],
        });
        for (origin, has_ca) in [(Origin::Manifest, true), (Origin::HubCluster, false)] {
            let content = content_of(&kind, &object, origin).ok().unwrap();
            let client = &content.fields["webhooks"][0]["clientConfig"];
            assert_eq!(!client["caBundle"].is_null(), has_ca, "{origin:?}");
            assert!(
                content
                    .annotations
                    .contains_key("cert-manager.io/inject-ca-from")
            );
            assert_eq!(
                content.annotations.contains_key("cert-manager.io/issuer"),
                has_ca
            );
        }
    }

    #[test]
    fn bytes_of_a_manifest_may_have_line_breaks() {
        let kind = Kind::by_resource("configmaps").unwrap();
        let object = json!({"metadata": {}, "binaryData": {"logo": "aGVs\r\nbG8=\n"}});
        let content = content_of(kind, &object, Origin::Manifest).ok().unwrap();
        assert_eq!(content.fields["binaryData"]["logo"], "aGVsbG8=");
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
