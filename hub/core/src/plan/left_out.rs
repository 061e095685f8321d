//! What copies lack of their sources.
//!
//! The paths are found by comparing an object with what is sent of it, so that they are right whatever leaves a part out.
use std::collections::{BTreeMap, BTreeSet};

use runnel_api::SERVER_METADATA;
use runnel_proto::model::{Content, clip, pointer_escaped};
use serde_json::{Map, Value};

use super::SourceContent;
use super::portable::is_local_entry;

/// The annotation in which `kubectl apply` stores the whole object.
pub const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Fields that name an object: copies have their own.
const IDENTITY: [&str; 2] = ["name", "namespace"];
/// The most paths of one object that are kept, each in bytes: a tenant may have many objects with long names of entries.
const KEPT: usize = 16;
const PATH_BYTES: usize = 128;
/// The most paths and kinds in sentences.
const SHOWN: usize = 16;
const KINDS: usize = 32;

/// Returns the paths of what a person may have written into an object and what is not in the content that is sent of it. What
/// servers write is not among them. A path is a JSON pointer in which `*` stands for each item of a list.
pub fn left_out(object: &Value, sent: &Content) -> BTreeSet<String> {
    let mut found = MissingPaths::default();
    for (field, value) in object.as_object().into_iter().flatten() {
        match field.as_str() {
            "apiVersion" | "kind" => {}
            "metadata" => {
                for (key, value) in value.as_object().into_iter().flatten() {
                    let kept = match key.as_str() {
                        "labels" => Some(&sent.labels),
                        "annotations" => Some(&sent.annotations),
                        _ => None,
                    };
                    match (kept, value) {
                        (Some(kept), Value::Object(entries)) => {
                            let lost = entries.iter().filter(|(key, _)| !kept.contains_key(*key));
                            lost.for_each(|(entry, value)| {
                                found.compare(&["metadata", key, entry], value, None);
                            });
                        }
                        _ if IDENTITY.contains(&key.as_str()) => {}
                        _ => found.compare(&["metadata", key], value, None),
                    }
                }
            }
            _ => found.compare(&[field], value, sent.fields.get(field)),
        }
    }
    found.paths
}

#[derive(Default)]
struct MissingPaths {
    paths: BTreeSet<String>,
}

impl MissingPaths {
    fn compare(&mut self, path: &[&str], value: &Value, sent: Option<&Value>) {
        match (value, sent) {
            (value, Some(sent)) if value == sent => {}
            (_, None) if is_nothing(value) || path.last().is_some_and(|key| is_of_server(key)) => {}
            // A map that lost all of one item may be in another: its fields are named.
            (Value::Object(fields), None) => {
                for (field, value) in fields {
                    self.compare(&below(path, field), value, None);
                }
            }
            (_, None) => self.insert(path),
            (Value::Object(fields), Some(Value::Object(sent))) => {
                for (field, value) in fields {
                    self.compare(&below(path, field), value, sent.get(field));
                }
            }
            (Value::Array(items), Some(Value::Array(sent))) if items.len() == sent.len() => {
                for (item, sent) in items.iter().zip(sent) {
                    self.compare(&below(path, "*"), item, Some(sent));
                }
            }
            // What is left out of a list leaves the others as they are, in their order.
            (Value::Array(items), Some(Value::Array(sent))) => {
                let mut sent = sent.iter().peekable();
                for item in items {
                    if sent.next_if_eq(&item).is_none() {
                        let name = item["name"].as_str().unwrap_or_default();
                        self.insert(&below(path, &format!("[name={name}]")));
                    }
                }
            }
            _ => {}
        }
    }

    fn insert(&mut self, path: &[&str]) {
        let steps = path.iter();
        let steps = steps.map(|step| format!("/{}", pointer_escaped(step)));
        self.paths.insert(steps.collect());
    }
}

fn below<'a>(path: &[&'a str], step: &'a str) -> Vec<&'a str> {
    [path, &[step]].concat()
}

/// Whether a field without a counterpart says nothing.
fn is_nothing(value: &Value) -> bool {
    value.is_null() || value.as_object().is_some_and(Map::is_empty)
}

/// Whether servers or `kubectl apply` write what is under this key, where it is not sent.
fn is_of_server(key: &str) -> bool {
    SERVER_METADATA.contains(&key) || key == "status" || key == LAST_APPLIED || is_local_entry(key)
}

/// The paths that a content keeps of its object.
pub(super) type LeftOutPaths = Box<[Box<str>]>;

/// Returns the paths as a content keeps them.
pub(super) fn kept_paths(object: &Value, sent: &Content) -> LeftOutPaths {
    let paths = left_out(object, sent).into_iter().take(KEPT);
    paths.map(|path| clip(&path, PATH_BYTES).into()).collect()
}

impl SourceContent {
    /// Returns what the copies of a source lack of it, or of each manifest if it is a bundle, by the resource.
    pub fn left_out<'a>(
        &'a self,
        resource: &'a str,
    ) -> impl Iterator<Item = (&'a str, &'a [Box<str>])> {
        let manifests = self.bundle.iter().flat_map(|bundle| &bundle.manifests);
        let manifests = manifests.filter_map(|(intent, manifest)| {
            let manifest = manifest.as_ref().ok()?;
            Some((&*intent.resource, &*manifest.left_out))
        });
        std::iter::once((resource, &*self.left_out)).chain(manifests)
    }
}

/// What the copies of several objects lack, by kind.
#[derive(Default)]
pub struct LeftOutByKind(BTreeMap<String, BTreeSet<String>>);

impl LeftOutByKind {
    /// Adds paths of an object of a kind.
    pub fn add(&mut self, kind: &str, paths: impl IntoIterator<Item = impl Into<String>>) {
        let mut paths = paths.into_iter().map(Into::into).peekable();
        if paths.peek().is_some() {
            self.0.entry(kind.to_owned()).or_default().extend(paths);
        }
    }

    /// Returns a sentence for each kind, with the first of its paths.
    pub fn notes(&self) -> impl Iterator<Item = String> {
        let note = |(kind, paths): (&String, &BTreeSet<String>)| {
            let shown: Vec<_> = paths.iter().take(SHOWN).map(String::as_str).collect();
            let more = match paths.len() - shown.len() {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            format!("copies of {kind} do not get {}{more}", shown.join(", "))
        };
        self.0.iter().take(KINDS).map(note)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use runnel_proto::model::{Kind, Scope, pointer_unescaped};
    use serde_json::json;

    use super::*;
    use crate::plan::{Origin, content_of};

    /// Removes what a path names, with the maps that it leaves empty.
    fn remove(value: &mut Value, path: &[String]) {
        match (path, value) {
            ([step], Value::Array(items)) => {
                items.retain(|item| *step != format!("[name={}]", item["name"].as_str().unwrap()));
            }
            ([_, rest @ ..], Value::Array(items)) => {
                items.iter_mut().for_each(|item| remove(item, rest));
            }
            ([step], Value::Object(fields)) => drop(fields.remove(step)),
            ([step, rest @ ..], value) => {
                value
                    .get_mut(step)
                    .into_iter()
                    .for_each(|below| remove(below, rest));
            }
            ([], _) => unreachable!("an empty path"),
        }
    }

    /// Removes what servers write, and fields that say nothing.
    fn tidied(value: Value) -> Value {
        match value {
            Value::Object(fields) => {
                let fields = fields.into_iter().filter(|(key, _)| !is_of_server(key));
                let fields = fields.map(|(key, value)| (key, tidied(value)));
                Value::Object(fields.filter(|(_, value)| !is_nothing(value)).collect())
            }
            Value::Array(items) => Value::Array(items.into_iter().map(tidied).collect()),
            other => other,
        }
    }

    fn paths(resource: &str, object: &Value, origin: Origin) -> (BTreeSet<String>, Content) {
        let (plural, group) = resource.split_once('.').unwrap_or((resource, ""));
        let kind = Kind::new(group, "v1", "Any", plural, Scope::Namespaced);
        let content = content_of(&kind, object, origin).ok().unwrap();
        let paths = left_out(object, &content);
        (paths, content)
    }

    /// An object with everything that is left out of some kind.
    fn object() -> Value {
        let template = json!({"metadata": {
            "creationTimestamp": null, "labels": {"app": "a", "controller-uid": "u", "job-name": "j"},
        }});
        json!({
            "apiVersion": "v1", "kind": "Any",
            "metadata": {
                "name": "n", "namespace": "a", "uid": "u", "creationTimestamp": "t", "finalizers": ["a/b"],
                "ownerReferences": [{"name": "o"}],
                "labels": {"app.kubernetes.io/managed-by": "Helm", "app": "a", "olm.owner": "o"},
                "annotations": {
                    "cert-manager.io/inject-ca-from": "a/b", "cert-manager.io/issuer": "i", "runnel.dev/x~y/z": "x", LAST_APPLIED: "{}",
                    "deployment.kubernetes.io/revision": "1", "note": "n",
                },
            },
            "spec": {
                "clusterIP": "10.0.0.7", "clusterIPs": ["10.0.0.7"], "ipFamilies": ["IPv4"], "healthCheckNodePort": 1,
                "ports": [{"port": 1, "nodePort": 2}, {"port": 3}], "volumeName": "v", "selector": {"matchLabels": {"controller-uid": "u"}},
                "nodeName": "n", "priority": 0, "claimRef": {"name": "c", "uid": "u"}, "caBundle": "Cg==",
                "conversion": {"webhook": {"clientConfig": {"caBundle": "Cg=="}}}, "template": template,
                "jobTemplate": {"metadata": {"creationTimestamp": null}, "spec": {"template": template}},
                "volumeClaimTemplates": [{"metadata": {"name": "d", "creationTimestamp": null}, "status": {"phase": "Pending"}}],
                "volumes": [{"name": "kube-api-access-x"}, {"name": "data"}],
                "containers": [{"name": "c", "volumeMounts": [{"name": "data"}, {"name": "kube-api-access-x"}]}],
            },
            "webhooks": [{"name": "w", "clientConfig": {"caBundle": "Cg=="}}, {"name": "x", "clientConfig": {"url": "u"}}],
            "secrets": [{"name": "s"}], "rules": [{"verbs": ["get"]}], "aggregationRule": {"a": 1}, "template": template,
            "data": {"k": "dg==", "status": "cw=="}, "type": "Opaque", "immutable": true, "status": {"phase": "x"},
        })
    }

    #[test]
    fn paths_are_those_that_a_person_may_miss() {
        let of = |resource, origin| {
            let paths = paths(resource, &object(), origin).0;
            paths.into_iter().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(
            of("persistentvolumeclaims", Origin::Manifest),
            "/metadata/annotations/runnel.dev~1x~0y~1z /metadata/finalizers \
             /metadata/labels/app.kubernetes.io~1managed-by /metadata/ownerReferences"
        );
        let service = of("services", Origin::HubCluster);
        for path in [
            "/metadata/annotations/cert-manager.io~1issuer",
            "/metadata/labels/olm.owner",
            "/spec/clusterIP",
            "/spec/ports/*/nodePort",
        ] {
            assert!(
                service.split(' ').any(|one| one == path),
                "{path}: {service}"
            );
        }
        let pod = of("pods", Origin::Manifest);
        let mount = "/spec/containers/*/volumeMounts/[name=kube-api-access-x]";
        assert!(pod.contains(mount), "{pod}");
    }

    #[test]
    fn sentences_are_by_kind_and_bounded() {
        let mut all = LeftOutByKind::default();
        all.add("jobs.batch", [] as [&str; 0]);
        all.add("services", ["/spec/b"]);
        all.add("services", ["/spec/a", "/spec/b"]);
        let notes: Vec<_> = all.notes().collect();
        assert_eq!(notes, ["copies of services do not get /spec/a, /spec/b"]);
        all.add("services", (0..99).map(|number| format!("/x/{number}")));
        assert!(all.notes().all(|note| note.ends_with(" and 85 more")));
        for number in 0..99 {
            all.add(&number.to_string(), ["/a"]);
        }
        assert_eq!(all.notes().count(), KINDS);
    }

    proptest! {
        #[test]
        fn object_without_the_paths_is_what_is_sent(
            resource in prop::sample::select(vec![
                "services", "persistentvolumeclaims", "persistentvolumes", "serviceaccounts", "pods", "podtemplates", "configmaps",
                "secrets", "namespaces", "deployments.apps", "statefulsets.apps", "jobs.batch", "cronjobs.batch", "widgets.example.org",
                "clusterroles.rbac.authorization.k8s.io", "validatingwebhookconfigurations.admissionregistration.k8s.io",
                "customresourcedefinitions.apiextensions.k8s.io", "apiservices.apiregistration.k8s.io",
            ]),
            is_manifest: bool, gone in prop::collection::vec((0usize..4, any::<prop::sample::Index>()), 0..9),
        ) {
            let origin = if is_manifest { Origin::Manifest } else { Origin::HubCluster };
            let mut object = object();
            for (place, index) in gone {
                let place = ["", "/metadata/labels", "/metadata/annotations", "/spec"][place];
                if let Some(Value::Object(fields)) = object.pointer_mut(place) {
                    let removed = fields.keys().nth(index.index(fields.len().max(1))).cloned();
                    removed.map(|key| fields.remove(&key));
                }
            }
            let (paths, content) = paths(resource, &object, origin);
            let mut sent = object.clone();
            for path in &paths {
                let steps = path.split('/').skip(1).map(pointer_unescaped);
                remove(&mut sent, &steps.collect::<Vec<_>>());
            }
            for name in ["apiVersion", "kind"] {
                sent.as_object_mut().unwrap().remove(name);
            }
            if let Some(Value::Object(metadata)) = sent.get_mut("metadata") {
                metadata.retain(|key, _| !IDENTITY.contains(&key.as_str()));
            }
            let mut expected = json!({"metadata": {"labels": content.labels, "annotations": content.annotations}});
            expected.as_object_mut().unwrap().extend(content.fields);
            prop_assert_eq!(tidied(sent), tidied(expected));
        }
    }
}
