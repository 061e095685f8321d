//! The expected content of a copy, computed apart from the code under test.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::cluster::Id;

/// The label with the manager of an object.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// The label that names the hub.
pub const HUB_LABEL: &str = "runnel.dev/hub";
/// The label with the uid of a copy's rule.
pub const RULE_LABEL: &str = "runnel.dev/rule-uid";
/// The annotation that names the rule.
pub const RULE: &str = "runnel.dev/rule";
/// The annotation that names the source.
pub const SOURCE: &str = "runnel.dev/source";
/// The annotation that names the MemberCluster.
pub const MEMBER: &str = "runnel.dev/member";
/// The annotation by which an agent identifies its copy.
pub const SEAL: &str = "runnel.dev/seal";
/// The annotation of retained objects.
pub const RETAINED: &str = "runnel.dev/retained-from";

/// Every mark of a copy: where in the metadata, and its key.
pub const MARKS: [(&str, &str); 7] = [
    ("labels", MANAGED_BY),
    ("labels", HUB_LABEL),
    ("labels", RULE_LABEL),
    ("annotations", RULE),
    ("annotations", SOURCE),
    ("annotations", MEMBER),
    ("annotations", SEAL),
];

/// Labels and annotations that are not copied; a trailing `*` matches any rest.
const NOT_COPIED: [&str; 15] = [
    "kubectl.kubernetes.io/last-applied-configuration",
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
    "runnel.dev/*",
];

type Texts = BTreeMap<String, String>;

/// Whether `object` is exactly what `source` should be in a member by `rule`: content, type, labels and annotations, all
/// marks, and nothing else.
///
/// # Errors
/// When it is not, naming the first part that differs; values of Secrets are not repeated.
pub fn is_copy_of(source: &Value, object: &Value, rule: &Id) -> Result<()> {
    let metadata = &object["metadata"];
    ensure!(
        metadata.get("deletionTimestamp").is_none(),
        "it is being deleted"
    );
    for field in ["data", "binaryData", "type", "immutable"] {
        let (wanted, found) = (filled(source.get(field)), filled(object.get(field)));
        ensure!(
            wanted == found,
            "{field} differs: keys {:?} instead of {:?}",
            keys(found),
            keys(wanted)
        );
    }
    let id = Id::of(source)?;
    let source_text = format!("{}/{}", plural(id.kind()), id.path());
    let mut labels = kept(source, "labels");
    labels.insert(MANAGED_BY.to_owned(), "runnel".to_owned());
    let mut annotations = kept(source, "annotations");
    annotations.insert(RULE.to_owned(), rule.path());
    annotations.insert(SOURCE.to_owned(), source_text);
    let mut found = (texts(object, "labels"), texts(object, "annotations"));
    let hub = found.0.remove(HUB_LABEL);
    ensure!(
        hub.is_some_and(|hub| !hub.is_empty()),
        "it does not name its hub"
    );
    let rule_uid = found.0.remove(RULE_LABEL);
    ensure!(
        rule_uid.is_some_and(|uid| !uid.is_empty()),
        "it does not name its rule"
    );
    let member = found.1.remove(MEMBER);
    ensure!(
        member.is_some_and(|member| !member.is_empty()),
        "it does not name its MemberCluster"
    );
    let seal = found.1.remove(SEAL);
    ensure!(
        seal.is_some_and(|seal| seal.starts_with("v1.") || seal.starts_with("v1a.")),
        "it is not sealed"
    );
    ensure!(
        found.0 == labels,
        "its labels are {:?} instead of {labels:?}",
        found.0
    );
    ensure!(
        found.1 == annotations,
        "its annotations are {:?} instead of {annotations:?}",
        found.1
    );
    for foreign in ["ownerReferences", "finalizers"] {
        ensure!(metadata.get(foreign).is_none(), "it has {foreign}");
    }
    Ok(())
}

/// Whether an object carries any mark of a copy.
#[must_use]
pub fn is_marked(object: &Value) -> bool {
    let metadata = &object["metadata"];
    MARKS
        .iter()
        .any(|(place, mark)| metadata[place].get(mark).is_some())
}

fn plural(kind: &str) -> String {
    format!("{}s", kind.to_lowercase())
}

fn filled(value: Option<&Value>) -> Option<&Value> {
    value.filter(|value| !value.is_null() && **value != json!({}))
}

fn keys(value: Option<&Value>) -> Vec<&String> {
    value
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .map(|(key, _)| key)
        .collect()
}

fn texts(object: &Value, place: &str) -> Texts {
    let pairs = object["metadata"]
        .get(place)
        .and_then(Value::as_object)
        .into_iter()
        .flatten();
    pairs
        .map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned()))
        .collect()
}

fn kept(source: &Value, place: &str) -> Texts {
    let stays = |key: &str| {
        NOT_COPIED.iter().any(|entry| {
            entry
                .strip_suffix('*')
                .map_or(key == *entry, |start| key.starts_with(start))
        })
    };
    texts(source, place)
        .into_iter()
        .filter(|(key, _)| !stays(key))
        .collect()
}
