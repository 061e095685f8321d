//! Parses a policy. Each unknown field or value is an error with the name of the field and a hint.
use std::collections::BTreeSet;
use std::sync::Arc;

use runnel_proto::model::{
    KINDS_LIMIT, Pattern, is_label, is_namespace_pattern, is_privileged, is_subdomain,
    split_resource,
};
use serde_json::{Map, Value};

use super::{Adopt, Impersonation, Names, OnRevoke, Patterns, Policy, ServiceAccount};

/// The error of an invalid policy: the field and a hint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {hint}")]
pub struct PolicyError {
    /// The path of the field.
    pub field: String,
    /// The problem, and the valid values.
    pub hint: String,
}

fn error(field: &str, hint: impl Into<String>) -> PolicyError {
    PolicyError {
        field: field.to_owned(),
        hint: hint.into(),
    }
}

type Parsed<T> = Result<T, PolicyError>;

const FIELDS: [&str; 16] = [
    "namespaces",
    "kinds",
    "clusterKinds",
    "allowPrivileged",
    "secretTypes",
    "deniedLabels",
    "maxCopies",
    "maxBytes",
    "maxObjectBytes",
    "maxObjectNodes",
    "adopt",
    "overwrite",
    "createNamespaces",
    "deletesPerHour",
    "onRevoke",
    "impersonate",
];
const IMPERSONATE: [&str; 2] = ["hubNamespace", "serviceAccount"];
/// The entry of `impersonate` for all namespaces of the hub without one of their own.
const OTHER_NAMESPACES: &str = "*";
/// Limit of the entries of `impersonate`.
const ACCOUNTS_LIMIT: usize = 1000;
const LISTS: [&str; 2] = ["allowed", "denied"];
/// Limit of the entries of one list.
const ENTRIES: usize = 10_000;
/// Limit of the watches: one per kind, or one per kind and namespace. Each has a connection and takes about 50 KiB (3,000 watches: 165 MiB
/// in all), so that this many take half of the chart's memory limit of 512Mi. Large objects that are decoded need the rest.
const WATCHES_LIMIT: usize = 5_000;
/// The API group of Runnel's own objects, which are never distributed.
const OWN_GROUP: &str = "runnel.dev";

impl Policy {
    /// Parses the text of a policy file.
    ///
    /// # Errors
    /// [`PolicyError`] for anything that is not exactly a policy.
    pub fn parse(text: &str) -> Result<Self, PolicyError> {
        let value: Value = serde_saphyr::from_str(text).map_err(|cause| {
            let cause = cause.to_string();
            error(
                "the file",
                format!("is not YAML ({})", cause.lines().next().unwrap_or_default()),
            )
        })?;
        if value.is_null() {
            return Err(error(
                "the file",
                "is empty: write {} for a policy with every default",
            ));
        }
        let map = object("the file", &value, &FIELDS)?;
        let mut policy = Self::default();
        if let Some(value) = map.get("namespaces") {
            policy.namespaces = lists(
                "namespaces",
                value,
                is_namespace_pattern,
                "a namespace's name, or a glob with *",
            )?;
        }
        let privileged = match map.get("allowPrivileged") {
            Some(value) => resources("allowPrivileged", value)?,
            None => vec![],
        };
        if let Some(value) = map.get("kinds") {
            policy.kinds = kinds("kinds", value, &privileged)?;
        }
        if let Some(value) = map.get("clusterKinds") {
            policy.cluster_kinds = kinds("clusterKinds", value, &privileged)?;
        }
        check_kinds(&policy)?;
        if let Some(value) = map.get("secretTypes") {
            policy.secret_types = lists(
                "secretTypes",
                value,
                is_type_pattern,
                "a Secret's type, or a glob with *",
            )?;
        }
        if let Some(value) = map.get("deniedLabels") {
            let labels = strings("deniedLabels", value)?;
            let labels = labels.into_iter().enumerate().map(|(at, label)| {
                let bad = || {
                    error(
                        &format!("deniedLabels[{at}]"),
                        "must be a label's key, or a glob with *",
                    )
                };
                is_label_pattern(&label)
                    .then(|| Pattern::new(label))
                    .ok_or_else(bad)
            });
            policy.denied_labels = labels.collect::<Parsed<_>>()?;
        }
        let number = |field, what: &str| match map.get(field) {
            None => Ok(None),
            Some(value) => match value.as_u64().filter(|number| *number > 0) {
                None => Err(error(
                    field,
                    format!("must be a number of {what}, 1 or more"),
                )),
                number => Ok(number),
            },
        };
        policy.max_copies = number("maxCopies", "copies")?.unwrap_or(policy.max_copies);
        policy.max_bytes = number("maxBytes", "bytes")?.unwrap_or(policy.max_bytes);
        policy.max_object_bytes =
            number("maxObjectBytes", "bytes")?.unwrap_or(policy.max_object_bytes);
        policy.max_object_nodes =
            number("maxObjectNodes", "JSON values")?.unwrap_or(policy.max_object_nodes);
        if let Some(value) = map.get("adopt") {
            policy.adopt = match value.as_str() {
                Some("Equal") => Adopt::Equal,
                Some("Never") => Adopt::Never,
                _ => return Err(error("adopt", "must be Equal or Never")),
            };
        }
        if let Some(value) = map.get("overwrite") {
            policy.overwrite = flag("overwrite", value)?;
        }
        if let Some(value) = map.get("createNamespaces") {
            policy.create_namespaces = flag("createNamespaces", value)?;
        }
        if let Some(value) = map.get("deletesPerHour") {
            let number = value
                .as_u64()
                .filter(|number| *number > 0)
                .and_then(|number| usize::try_from(number).ok());
            policy.deletes_per_hour = number
                .ok_or_else(|| error("deletesPerHour", "must be a number of copies, 1 or more"))?;
        }
        if let Some(value) = map.get("impersonate") {
            policy.impersonate = impersonation(value)?;
        }
        if let Some(value) = map.get("onRevoke") {
            policy.on_revoke = match value.as_str() {
                Some("Keep") => OnRevoke::Keep,
                Some("Purge") => OnRevoke::Purge,
                _ => return Err(error("onRevoke", "must be Keep or Purge")),
            };
        }
        let watches = policy.areas().len();
        if watches > WATCHES_LIMIT {
            let hint = format!(
                "need {watches} watches, one per kind and namespace, and the agent opens at most {WATCHES_LIMIT}: name fewer \
                 kinds, or namespaces by a glob (namespaces.allowed), which needs one watch per kind"
            );
            return Err(error("kinds", hint));
        }
        Ok(policy)
    }
}

fn object<'a>(path: &str, value: &'a Value, fields: &[&str]) -> Parsed<&'a Map<String, Value>> {
    let fits = || format!("must be a map with {}", fields.join(", "));
    let map = value.as_object().ok_or_else(|| error(path, fits()))?;
    match map.keys().find(|key| !fields.contains(&key.as_str())) {
        None => Ok(map),
        Some(unknown) => {
            let shown: String = unknown
                .chars()
                .filter(|c| !c.is_control())
                .take(60)
                .collect();
            let path = if path == "the file" {
                shown
            } else {
                format!("{path}.{shown}")
            };
            Err(error(
                &path,
                format!(
                    "is not a field of a policy: write one of {}, or remove it",
                    fields.join(", ")
                ),
            ))
        }
    }
}

/// Returns the accounts of a policy. Each hub namespace has one at most.
fn impersonation(value: &Value) -> Parsed<Impersonation> {
    let entries = value
        .as_array()
        .filter(|entries| entries.len() <= ACCOUNTS_LIMIT)
        .ok_or_else(|| {
            let hint = format!("must be a list of at most {ACCOUNTS_LIMIT} accounts");
            error("impersonate", hint)
        })?;
    let mut accounts = Impersonation::default();
    for (at, entry) in entries.iter().enumerate() {
        let path = format!("impersonate[{at}]");
        let map = object(&path, entry, &IMPERSONATE)?;
        let text = |field: &str| map.get(field).and_then(Value::as_str).unwrap_or_default();
        let [namespace, account] = IMPERSONATE.map(text);
        if namespace != OTHER_NAMESPACES && !is_label(namespace) {
            let hint = "must be the name of a namespace of the hub, or * for all others";
            return Err(error(&format!("{path}.hubNamespace"), hint));
        }
        let account = account
            .split_once('/')
            .filter(|(namespace, name)| is_label(namespace) && is_subdomain(name))
            .map(|(namespace, name)| ServiceAccount {
                namespace: namespace.into(),
                name: name.into(),
            })
            .ok_or_else(|| {
                let hint = "must be a ServiceAccount of this cluster, as NAMESPACE/NAME";
                error(&format!("{path}.serviceAccount"), hint)
            })?;
        let earlier = if namespace == OTHER_NAMESPACES {
            accounts.others.replace(account)
        } else {
            accounts.named.insert(namespace.into(), account)
        };
        if earlier.is_some() {
            let hint = format!("{namespace} has an entry already: remove one of the two");
            return Err(error(&format!("{path}.hubNamespace"), hint));
        }
    }
    Ok(accounts)
}

fn lists(path: &str, value: &Value, fits: fn(&str) -> bool, what: &str) -> Parsed<Names> {
    let map = object(path, value, &LISTS)?;
    let list = |name: &str| {
        let Some(value) = map.get(name) else {
            return Ok(None);
        };
        let path = format!("{path}.{name}");
        let texts = strings(&path, value)?;
        match texts.iter().position(|text| !fits(text)) {
            Some(at) => Err(error(&format!("{path}[{at}]"), format!("must be {what}"))),
            None => Ok(Some(
                texts.into_iter().map(Pattern::new).collect::<Patterns>(),
            )),
        }
    };
    let all = Names::all();
    Ok(Names {
        allowed: list("allowed")?.unwrap_or(all.allowed),
        denied: list("denied")?.unwrap_or(all.denied),
    })
}

/// Returns the names of kinds in a list.
fn resources(path: &str, value: &Value) -> Parsed<Vec<String>> {
    let names = strings(path, value)?;
    match names.iter().position(|name| !is_resource(name)) {
        Some(at) => Err(error(
            &format!("{path}[{at}]"),
            "must be the plural of a kind with its API group, as in RBAC, such as configmaps or deployments.apps; a glob is \
             none",
        )),
        None => Ok(names),
    }
}

/// Checks the kinds of a policy together.
fn check_kinds(policy: &Policy) -> Parsed<()> {
    if let Some(both) = policy.kinds.intersection(&policy.cluster_kinds).next() {
        let hint = format!(
            "{both} is in kinds, too: write kinds with namespaces into kinds, and kinds without into clusterKinds"
        );
        return Err(error("clusterKinds", hint));
    }
    if policy.all_kinds().count() > KINDS_LIMIT {
        let hint = format!("must be at most {KINDS_LIMIT} kinds, with those of clusterKinds");
        return Err(error("kinds", hint));
    }
    Ok(())
}

/// Returns the kinds of a list of a policy. `privileged`: the privileged ones that it may name.
fn kinds(path: &str, value: &Value, privileged: &[String]) -> Parsed<BTreeSet<Arc<str>>> {
    let names = resources(path, value)?;
    for (at, name) in names.iter().enumerate() {
        let field = format!("{path}[{at}]");
        if split_resource(name).1 == OWN_GROUP {
            let hint = format!(
                "{name} are objects of Runnel itself, which it never distributes: remove it"
            );
            return Err(error(&field, hint));
        }
        if is_privileged(name) && !privileged.contains(name) {
            let hint = format!(
                "{name} carry rights, run programs or change how the cluster works: name it in allowPrivileged, too, or \
                 remove it"
            );
            return Err(error(&field, hint));
        }
    }
    Ok(names.into_iter().map(Arc::from).collect())
}

/// Whether this can be the plural of a kind with its API group.
fn is_resource(text: &str) -> bool {
    let (plural, _) = split_resource(text);
    is_subdomain(text) && is_label(plural) && plural.starts_with(|c: char| c.is_ascii_lowercase())
}

fn strings(path: &str, value: &Value) -> Parsed<Vec<String>> {
    let list = value.as_array().filter(|list| list.len() <= ENTRIES);
    let list =
        list.ok_or_else(|| error(path, format!("must be a list of at most {ENTRIES} texts")))?;
    let text = |(at, value): (usize, &Value)| match value.as_str() {
        Some(text) => Ok(text.to_owned()),
        None => Err(error(
            &format!("{path}[{at}]"),
            "must be a text: put it in quotes",
        )),
    };
    list.iter().enumerate().map(text).collect()
}

fn flag(path: &str, value: &Value) -> Parsed<bool> {
    value
        .as_bool()
        .ok_or_else(|| error(path, "must be true or false"))
}

fn is_label_pattern(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./*".contains(&byte);
    (1..=317).contains(&text.len()) && text.bytes().all(plain)
}

fn is_type_pattern(text: &str) -> bool {
    (1..=253).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}
