//! The part of an object that another cluster can have.
//!
//! A cluster writes fields of its own into many objects: the address of a Service, the volume of a claim, the selector
//! of a Job. In another cluster they are wrong, and its API server refuses some of them. So a copy never has them, unless the
//! object is a manifest, in which its author chose them. The kinds with rules of their own ([`ContentRules::fields`](runnel_proto::model::ContentRules)) name their content
//! instead.
use std::collections::BTreeMap;

use runnel_proto::model::{BOOTSTRAPPING_LABEL, NAMESPACES};
use serde_json::{Map, Value};

/// Who wrote an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// It exists in the hub cluster, whose API server, controllers and tools wrote into it.
    HubCluster,
    /// It is a manifest in a bundle: its author alone wrote it, for members.
    Manifest,
}

/// Top-level fields that are no content: they name the object, or are written by its cluster.
pub(super) const NEVER: [&str; 4] = ["apiVersion", "kind", "metadata", "status"];

/// Fields that each cluster fills in, by kind. `*` stands for each item of a list.
const FILLED_IN: &[(&str, &[&str])] = &[
    (
        "services",
        &[
            "spec.ipFamilies",
            "spec.healthCheckNodePort",
            "spec.ports.*.nodePort",
        ],
    ),
    ("persistentvolumeclaims", &["spec.volumeName"]),
    ("serviceaccounts", &["secrets"]),
    ("pods", POD),
];

/// Fields that API servers write into templates, and that tools leave in manifests.
const TRACES: &[(&str, &[&str])] = &[
    ("podtemplates", &["template.metadata.creationTimestamp"]),
    ("replicationcontrollers", TEMPLATE),
    ("deployments.apps", TEMPLATE),
    ("daemonsets.apps", TEMPLATE),
    ("replicasets.apps", TEMPLATE),
    (
        "statefulsets.apps",
        &[
            "spec.template.metadata.creationTimestamp",
            "spec.volumeClaimTemplates.*.metadata.creationTimestamp",
            "spec.volumeClaimTemplates.*.status",
        ],
    ),
    ("jobs.batch", TEMPLATE),
    (
        "cronjobs.batch",
        &[
            "spec.jobTemplate.metadata.creationTimestamp",
            "spec.jobTemplate.spec.template.metadata.creationTimestamp",
        ],
    ),
];

/// Fields that the scheduler and the API server write into a Pod.
const POD: &[&str] = &[
    "spec.nodeName",
    "spec.priority",
    "spec.preemptionPolicy",
    "spec.serviceAccount",
];

/// The empty time that the API server writes into the template of a Pod.
const TEMPLATE: &[&str] = &["spec.template.metadata.creationTimestamp"];

/// Labels and annotations that a cluster writes into its objects. A trailing `*` matches any rest.
const LOCAL_ENTRIES: &[&str] = &[
    "apf.kubernetes.io/autoupdate-spec",
    "autoscaling.alpha.kubernetes.io/*",
    "batch.kubernetes.io/controller-uid",
    "batch.kubernetes.io/job-name",
    "control-plane.alpha.kubernetes.io/*",
    "controller-uid",
    "deployment.kubernetes.io/*",
    "deprecated.daemonset.template.generation",
    "field.cattle.io/*",
    "job-name",
    "kubernetes.io/metadata.name",
    "lifecycle.cattle.io/*",
    "openshift.io/sa.scc.*",
    "pv.kubernetes.io/*",
    "rbac.authorization.kubernetes.io/autoupdate",
    "volume.beta.kubernetes.io/storage-provisioner",
    "volume.kubernetes.io/selected-node",
    "volume.kubernetes.io/storage-provisioner",
    "volume.kubernetes.io/storage-resizer",
];

/// Annotations by which a controller of the cluster fills in the CA of a webhook or of an API service.
const CA_INJECTORS: [&str; 4] = [
    "cert-manager.io/inject-apiserver-ca",
    "cert-manager.io/inject-ca-from",
    "cert-manager.io/inject-ca-from-secret",
    "service.beta.openshift.io/inject-cabundle",
];

/// Labels of the objects that an API server makes itself, when it starts: roles, and the API services of its own groups.
const AUTOMATIC: [&str; 2] = [
    "kube-aggregator.kubernetes.io/automanaged",
    BOOTSTRAPPING_LABEL,
];

/// Prefix of the volumes with a token that the API server adds to Pods.
const TOKEN_VOLUME: &str = "kube-api-access-";

/// Whether a cluster writes this label or annotation into its own objects.
pub(super) fn is_local_entry(key: &str) -> bool {
    LOCAL_ENTRIES
        .iter()
        .any(|entry| match entry.strip_suffix('*') {
            Some(prefix) => key.starts_with(prefix),
            None => key == *entry,
        })
}

/// Whether the API server itself made an object with these labels.
pub(super) fn is_automatic(labels: &BTreeMap<String, String>) -> bool {
    AUTOMATIC.iter().any(|label| labels.contains_key(*label))
}

/// Whether a controller of the cluster made the object from another one. The other one is the source.
pub(super) fn is_controlled(object: &Value) -> bool {
    let owners = object.pointer("/metadata/ownerReferences");
    owners
        .and_then(Value::as_array)
        .is_some_and(|owners| owners.iter().any(|owner| owner["controller"] == true))
}

/// Returns the top-level fields of an object that a copy of it has in another cluster.
pub(super) fn portable_fields(
    resource: &str,
    object: &Value,
    origin: Origin,
) -> BTreeMap<String, Value> {
    let fields = object.as_object().into_iter().flatten();
    let fields = fields.filter(|(field, _)| !NEVER.contains(&field.as_str()));
    let fields = fields.map(|(field, value)| (field.clone(), value.clone()));
    let mut content = Value::Object(fields.collect());
    let is_of_cluster = origin == Origin::HubCluster;
    let filled_in = FILLED_IN.iter().filter(|_| is_of_cluster);
    let removed = filled_in.chain(TRACES).filter(|(of, _)| *of == resource);
    for path in removed.flat_map(|(_, paths)| *paths) {
        let path: Vec<&str> = path.split('.').collect();
        remove(&mut content, &path);
    }
    match resource {
        "services" if is_of_cluster => remove_addresses(&mut content),
        "jobs.batch" => remove_generated_selector(&mut content),
        "pods" => remove_token(&mut content),
        // A controller has bound the volume to a claim of its cluster.
        "persistentvolumes" if content.pointer("/spec/claimRef/uid").is_some() => {
            remove(&mut content, &["spec", "claimRef"]);
        }
        // The rest of a namespace is of its cluster: what is in it, and how it is deleted.
        NAMESPACES => return BTreeMap::new(),
        // A controller computes the rules of an aggregated role.
        "clusterroles.rbac.authorization.k8s.io" if !content["aggregationRule"].is_null() => {
            remove(&mut content, &["rules"]);
        }
        _ if is_of_cluster && has_injected_ca(object) => {
            remove_injected_ca(resource, &mut content);
        }
        _ => {}
    }
    match content {
        Value::Object(content) => content.into_iter().collect(),
        _ => BTreeMap::new(),
    }
}

/// Removes the field at a path, and the maps around it that it leaves empty.
fn remove(value: &mut Value, path: &[&str]) {
    match (path, value) {
        (["*", rest @ ..], Value::Array(items)) => {
            items.iter_mut().for_each(|item| remove(item, rest));
        }
        ([field], Value::Object(fields)) => drop(fields.remove(*field)),
        ([field, rest @ ..], Value::Object(fields)) => {
            let Some(inner) = fields.get_mut(*field) else {
                return;
            };
            let had_fields = !is_empty_map(inner);
            remove(inner, rest);
            if had_fields && is_empty_map(inner) {
                fields.remove(*field);
            }
        }
        _ => {}
    }
}

fn is_empty_map(value: &Value) -> bool {
    value.as_object().is_some_and(Map::is_empty)
}

/// Removes the addresses of a Service. `None` is not an address, but the choice of its author.
fn remove_addresses(service: &mut Value) {
    if service.pointer("/spec/clusterIP") == Some(&Value::from("None")) {
        return;
    }
    remove(service, &["spec", "clusterIP"]);
    remove(service, &["spec", "clusterIPs"]);
}

/// Removes the selector of a Job that the API server generated, with its labels in the template.
fn remove_generated_selector(job: &mut Value) {
    if job.pointer("/spec/manualSelector") == Some(&Value::Bool(true)) {
        return;
    }
    remove(job, &["spec", "selector"]);
    for label in [
        "controller-uid",
        "job-name",
        "batch.kubernetes.io/controller-uid",
        "batch.kubernetes.io/job-name",
    ] {
        remove(job, &["spec", "template", "metadata", "labels", label]);
    }
}

/// Removes the volume with the token of the ServiceAccount that the API server added to a Pod.
fn remove_token(pod: &mut Value) {
    let is_token = |item: &Value| {
        let name = item["name"].as_str();
        name.is_some_and(|name| name.starts_with(TOKEN_VOLUME))
    };
    if let Some(volumes) = pod
        .pointer_mut("/spec/volumes")
        .and_then(Value::as_array_mut)
    {
        volumes.retain(|volume| !is_token(volume));
    }
    for containers in ["/spec/containers", "/spec/initContainers"] {
        let containers = pod.pointer_mut(containers).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            let mounts = container
                .get_mut("volumeMounts")
                .and_then(Value::as_array_mut);
            if let Some(mounts) = mounts {
                mounts.retain(|mount| !is_token(mount));
            }
        }
    }
}

/// Whether an annotation asks a controller of the cluster to fill in the CA.
pub(super) fn is_ca_injector(key: &str) -> bool {
    CA_INJECTORS.contains(&key)
}

/// Whether a controller of the cluster fills in the CA.
pub(super) fn has_injected_ca(object: &Value) -> bool {
    let annotations = object.pointer("/metadata/annotations");
    let annotations = annotations.and_then(Value::as_object);
    annotations.is_some_and(|annotations| annotations.keys().any(|key| is_ca_injector(key)))
}

fn remove_injected_ca(resource: &str, content: &mut Value) {
    let path: &[&str] = match resource {
        "mutatingwebhookconfigurations.admissionregistration.k8s.io"
        | "validatingwebhookconfigurations.admissionregistration.k8s.io" => {
            &["webhooks", "*", "clientConfig", "caBundle"]
        }
        "customresourcedefinitions.apiextensions.k8s.io" => {
            &["spec", "conversion", "webhook", "clientConfig", "caBundle"]
        }
        "apiservices.apiregistration.k8s.io" => &["spec", "caBundle"],
        _ => return,
    };
    remove(content, path);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn fields(resource: &str, object: &Value) -> Value {
        let fields = portable_fields(resource, object, Origin::HubCluster);
        Value::Object(fields.into_iter().collect())
    }

    #[test]
    fn addresses_and_ports_of_a_service_stay_in_their_cluster() {
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
            "spec": {
                "clusterIP": "10.0.0.7", "clusterIPs": ["10.0.0.7"], "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack",
                "type": "LoadBalancer", "healthCheckNodePort": 30999, "selector": {"app": "web"},
                "ports": [{"port": 80, "nodePort": 30080, "targetPort": "http"}, {"port": 443, "nodePort": 30443}],
            },
            "status": {"loadBalancer": {"ingress": [{"ip": "1.2.3.4"}]}},
        });
        let expected = json!({"spec": {
            "ipFamilyPolicy": "SingleStack", "type": "LoadBalancer", "selector": {"app": "web"},
            "ports": [{"port": 80, "targetPort": "http"}, {"port": 443}],
        }});
        assert_eq!(fields("services", &service), expected);
        let headless =
            json!({"spec": {"clusterIP": "None", "clusterIPs": ["None"], "ipFamilies": ["IPv4"]}});
        let expected = json!({"spec": {"clusterIP": "None", "clusterIPs": ["None"]}});
        assert_eq!(fields("services", &headless), expected);
    }

    #[test]
    fn generated_selector_of_a_job_stays_and_manual_one_is_copied() {
        let labels = json!({
            "app": "x", "controller-uid": "u", "job-name": "j", "batch.kubernetes.io/controller-uid": "u",
            "batch.kubernetes.io/job-name": "j",
        });
        let mut job = json!({"spec": {
            "selector": {"matchLabels": {"batch.kubernetes.io/controller-uid": "u"}},
            "template": {"metadata": {"creationTimestamp": null, "labels": labels}, "spec": {"containers": []}},
        }});
        let expected = json!({"spec": {"template": {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": []}}}});
        assert_eq!(fields("jobs.batch", &job), expected);
        job["spec"]["manualSelector"] = json!(true);
        let copied = fields("jobs.batch", &job);
        assert_eq!(copied["spec"]["selector"], job["spec"]["selector"]);
        assert_eq!(copied["spec"]["template"]["metadata"]["labels"], labels);
    }

    #[test]
    fn what_a_cluster_fills_in_stays_by_kind() {
        let cases = [
            (
                "persistentvolumeclaims",
                json!({"spec": {"volumeName": "pvc-1", "accessModes": ["ReadWriteOnce"]}}),
                json!({"spec": {"accessModes": ["ReadWriteOnce"]}}),
            ),
            (
                "persistentvolumes",
                json!({"spec": {"claimRef": {"name": "c", "namespace": "a", "uid": "u", "resourceVersion": "1"}}}),
                json!({}),
            ),
            (
                "persistentvolumes",
                json!({"spec": {"capacity": {"storage": "1Gi"}, "claimRef": {"name": "c", "namespace": "a"}}}),
                json!({"spec": {"capacity": {"storage": "1Gi"}, "claimRef": {"name": "c", "namespace": "a"}}}),
            ),
            (
                "serviceaccounts",
                json!({"secrets": [{"name": "sa-token"}], "automountServiceAccountToken": false}),
                json!({"automountServiceAccountToken": false}),
            ),
            (
                "namespaces",
                json!({"spec": {"finalizers": ["kubernetes"], "other": 1}, "status": {}}),
                json!({}),
            ),
            (
                "deployments.apps",
                json!({"spec": {"replicas": 2, "template": {"metadata": {"creationTimestamp": null}, "spec": {}}}}),
                json!({"spec": {"replicas": 2, "template": {"spec": {}}}}),
            ),
            (
                "clusterroles.rbac.authorization.k8s.io",
                json!({"aggregationRule": {"clusterRoleSelectors": []}, "rules": [{"verbs": ["get"]}]}),
                json!({"aggregationRule": {"clusterRoleSelectors": []}}),
            ),
            (
                "clusterroles.rbac.authorization.k8s.io",
                json!({"rules": [{"verbs": ["get"]}]}),
                json!({"rules": [{"verbs": ["get"]}]}),
            ),
            (
                "pods",
                json!({"spec": {
                    "nodeName": "n1", "priority": 0, "preemptionPolicy": "PreemptLowerPriority", "serviceAccountName": "s",
                    "serviceAccount": "s", "volumes": [{"name": "kube-api-access-x"}, {"name": "data"}],
                    "containers": [{"name": "c", "volumeMounts": [{"name": "kube-api-access-x"}, {"name": "data"}]}],
                }}),
                json!({"spec": {
                    "serviceAccountName": "s", "volumes": [{"name": "data"}],
                    "containers": [{"name": "c", "volumeMounts": [{"name": "data"}]}],
                }}),
            ),
        ];
        for (resource, object, expected) in cases {
            assert_eq!(fields(resource, &object), expected, "{resource}");
        }
    }

    #[test]
    fn injected_ca_stays_and_static_one_is_copied() {
        let resource = "validatingwebhookconfigurations.admissionregistration.k8s.io";
        let mut webhook = json!({"webhooks": [{"name": "a.b", "clientConfig": {"caBundle": "Q0E=", "url": "https://x"}}]});
        assert_eq!(fields(resource, &webhook), webhook);
        webhook["metadata"] = json!({"annotations": {"cert-manager.io/inject-ca-from": "a/b"}});
        let expected = json!({"webhooks": [{"name": "a.b", "clientConfig": {"url": "https://x"}}]});
        assert_eq!(fields(resource, &webhook), expected);
    }

    #[test]
    fn entries_and_objects_of_one_cluster_are_known() {
        assert!(
            is_local_entry("deployment.kubernetes.io/revision")
                && is_local_entry("kubernetes.io/metadata.name")
        );
        assert!(!is_local_entry("kubectl.kubernetes.io/restartedAt"));
        let owned = |controller| json!({"metadata": {"ownerReferences": [{"name": "x", "controller": controller}]}});
        assert!(
            is_controlled(&owned(true))
                && !is_controlled(&owned(false))
                && !is_controlled(&json!({}))
        );
    }

    proptest! {
        #[test]
        fn portable_fields_of_a_copy_are_all_of_it(
            resource in prop::sample::select(FILLED_IN.iter().chain(TRACES).map(|(resource, _)| *resource).collect::<Vec<_>>()),
            ip in "None|10[.]0[.]0[.][1-9]", port in 1u16..9, manual: bool, name in "[a-z]{1,5}",
        ) {
            let object = json!({
                "spec": {
                    "clusterIP": ip, "clusterIPs": [ip], "ports": [{"port": port, "nodePort": port}], "volumeName": name,
                    "manualSelector": manual, "selector": {"matchLabels": {"controller-uid": name}}, "nodeName": name,
                    "template": {"metadata": {"labels": {"controller-uid": name, "app": name}}},
                },
                "status": {"phase": name}, "secrets": [{"name": name}],
            });
            let once = fields(resource, &object);
            prop_assert_eq!(fields(resource, &once), once);
        }
    }
}
