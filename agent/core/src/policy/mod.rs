//! The member's own policy: the permissions that its administrator gives to a hub. The hub cannot
//! extend them.
//!
//! The agent does not write a denied copy, and reports it as `Denied` with the field of the policy.
//! An existing copy stays unchanged and is no longer corrected. The agent still carries out
//! removals, because a removal brings no content into the cluster.
mod impersonation;
mod parse;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;

use runnel_proto::json_nodes::CONTENT_NODES;
use runnel_proto::model::{
    Content, ContentDigest, ContentRules, CopyMode, FieldPath, Kind, Pattern, Reason, Revision,
    Scope, SourceRef, is_closed_namespace, is_label, matches_any, split_resource,
};
use serde_json::Value;

use crate::copy::CopyError;
use crate::seal;

pub use impersonation::{Impersonation, ServiceAccount};
pub use parse::PolicyError;

/// The type of a Secret that has no `type` field.
const UNTYPED: &str = "Opaque";

/// Default limit of deleted copies per hour.
pub const DELETES_PER_HOUR: usize = 10_000;

/// Default limit of copies.
const MAX_COPIES: u64 = 10_000;

/// Default limit of the size of all copies, in bytes.
const MAX_BYTES: u64 = 1 << 30;

/// What the agent does with the copies when the hub revokes this cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnRevoke {
    /// The agent keeps the copies and corrects drift, as while the hub is unreachable.
    #[default]
    Keep,
    /// The agent deletes the copies.
    Purge,
}

/// Which foreign objects may be adopted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Adopt {
    /// Objects that equal the desired copy.
    #[default]
    Equal,
    /// No objects.
    Never,
}

/// Names and globs. The lookup of a name is logarithmic in the number of names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Patterns {
    exact: BTreeSet<Arc<str>>,
    globs: Vec<Pattern>,
}

impl Patterns {
    /// Whether this name is listed literally.
    pub fn names(&self, name: &str) -> bool {
        self.exact.contains(name)
    }

    /// Whether a name is listed literally or matches a glob.
    pub fn matches(&self, name: &str) -> bool {
        self.names(name) || matches_any(&self.globs, name)
    }
}

impl FromIterator<Pattern> for Patterns {
    fn from_iter<T: IntoIterator<Item = Pattern>>(patterns: T) -> Self {
        let (exact, globs): (Vec<_>, Vec<_>) = patterns.into_iter().partition(Pattern::is_literal);
        Self {
            exact: exact
                .iter()
                .map(|pattern| pattern.as_str().into())
                .collect(),
            globs,
        }
    }
}

/// Allowed names and globs, with exceptions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// The allowed names.
    pub allowed: Patterns,
    /// The names that are denied although they are allowed.
    pub denied: Patterns,
}

impl Names {
    fn all() -> Self {
        Self {
            allowed: Patterns::from_iter([Pattern::new("*")]),
            denied: Patterns::default(),
        }
    }

    /// Whether all allowed names are literal.
    fn are_listed(&self) -> bool {
        self.allowed.globs.is_empty()
    }
}

/// The scope of one watch of copies.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Area {
    /// The kind as `plural[.group]`.
    pub resource: Arc<str>,
    /// The namespace; `None` for the whole cluster, and for kinds without namespaces.
    pub namespace: Option<Arc<str>>,
}

impl Area {
    /// The plural of the kind, without its API group.
    pub fn plural(&self) -> &str {
        split_resource(&self.resource).0
    }
}

/// The properties of an object's content that the policy checks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Size of its values in bytes, as Kubernetes counts it.
    pub bytes: u64,
    /// The number of its JSON nodes.
    pub nodes: u32,
    /// The type, for kinds that have a `type` field.
    pub object_type: Option<Arc<str>>,
    /// The keys of its labels.
    pub labels: Arc<[Box<str>]>,
    /// The digest by which the agent proves to the hub that this content is present.
    pub digest: Option<ContentDigest>,
    /// What the agent does with the copy beyond its fields.
    pub mode: Option<CopyMode>,
}

impl Facts {
    /// Adds the digest of a copy of `content` in this revision, without the `ignored` fields.
    pub fn digested(
        self,
        content: &Content,
        revision: &Revision,
        ignored: &BTreeSet<FieldPath>,
    ) -> Self {
        Self {
            digest: Some(ContentDigest::of_copy(content, revision, ignored)),
            ..self
        }
    }

    /// Returns the facts of content by its size in bytes and its type.
    pub fn announced(rules: &ContentRules, bytes: u64, named: Option<&str>) -> Self {
        let typed = rules.fields.contains(&"type");
        Self {
            bytes,
            object_type: typed.then(|| named.unwrap_or(UNTYPED).into()),
            ..Self::default()
        }
    }

    /// Returns the facts of an object's content.
    pub fn of(rules: &ContentRules, content: &Content) -> Self {
        // The API server replaces an empty type by the default type.
        let named = content
            .fields
            .get("type")
            .and_then(Value::as_str)
            .filter(|named| !named.is_empty());
        let labels = content
            .labels
            .keys()
            .map(|key| key.as_str().into())
            .collect();
        Self {
            labels,
            mode: content.mode,
            nodes: u32::try_from(content.nodes()).unwrap_or(u32::MAX),
            ..Self::announced(rules, content.value_bytes(rules), named)
        }
    }
}

/// Labels that make other controllers trust an object. By default no copy may have them; the
/// policy's `deniedLabels` replaces this list.
const TRUSTED_LABELS: [&str; 5] = [
    "argocd.argoproj.io/secret-type",
    "istio/multiCluster",
    "sealedsecrets.bitnami.com/*",
    "velero.io/*",
    "*.cattle.io/*",
];

/// The policy of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Namespaces that may contain copies.
    pub namespaces: Names,
    /// Kinds with namespaces that may be copied, as `plural[.group]`.
    pub kinds: BTreeSet<Arc<str>>,
    /// Kinds without namespaces that may be copied, as `plural[.group]`.
    pub cluster_kinds: BTreeSet<Arc<str>>,
    /// Secret types that may be copied.
    pub secret_types: Names,
    /// Labels that no copy may have.
    pub denied_labels: Vec<Pattern>,
    /// Limit of the number of copies.
    pub max_copies: u64,
    /// Limit of the size of the values of all copies, in bytes.
    pub max_bytes: u64,
    /// Limit of the size of the values of one object, in bytes.
    pub max_object_bytes: u64,
    /// Limit of the JSON nodes of one object: its values, and those in its maps and lists.
    pub max_object_nodes: u64,
    /// Whether a rule may adopt foreign objects that equal its sources.
    pub adopt: Adopt,
    /// Whether a rule may overwrite foreign objects.
    pub overwrite: bool,
    /// Whether the agent may create namespaces for a rule.
    pub create_namespaces: bool,
    /// Limit of deleted copies per hour.
    pub deletes_per_hour: usize,
    /// What the agent does with the copies when the hub revokes this cluster.
    pub on_revoke: OnRevoke,
    /// Whether namespaces of the system and of controllers are allowed only by their literal names.
    pub reserves: bool,
    /// The ServiceAccounts under which the copies of rules are written.
    pub impersonate: Impersonation,
}

impl Default for Policy {
    /// Returns the policy of an empty file `{}`, which also applies without a policy file.
    fn default() -> Self {
        Self {
            namespaces: Names::all(),
            kinds: Kind::resources().cloned().collect(),
            cluster_kinds: BTreeSet::new(),
            secret_types: Names::all(),
            denied_labels: TRUSTED_LABELS.map(Pattern::new).to_vec(),
            max_copies: MAX_COPIES,
            max_bytes: MAX_BYTES,
            max_object_bytes: 1 << 20,
            max_object_nodes: CONTENT_NODES as u64,
            adopt: Adopt::Equal,
            overwrite: false,
            create_namespaces: false,
            deletes_per_hour: DELETES_PER_HOUR,
            on_revoke: OnRevoke::Keep,
            reserves: true,
            impersonate: Impersonation::default(),
        }
    }
}

impl Policy {
    /// Returns the policy of `--allow-everything`. It still denies the agent's own namespace and
    /// invalid names, and keeps the default limit of deletions.
    pub fn open() -> Self {
        Self {
            denied_labels: vec![],
            max_copies: u64::MAX,
            max_bytes: u64::MAX,
            max_object_bytes: u64::MAX,
            overwrite: true,
            create_namespaces: true,
            reserves: false,
            ..Self::default()
        }
    }

    /// Returns the areas that the agent watches: one per kind, or one per kind and namespace if the
    /// policy lists all namespaces literally. The agent then needs no permissions in other
    /// namespaces. Kinds without namespaces have one area each.
    pub fn areas(&self) -> BTreeSet<Area> {
        let kinds = self.kinds.iter().cloned();
        let whole = |resource| Area {
            resource,
            namespace: None,
        };
        let of_cluster = self.cluster_kinds.iter().cloned().map(whole);
        if !self.namespaces.are_listed() {
            return kinds.map(whole).chain(of_cluster).collect();
        }
        let Names { allowed, denied } = &self.namespaces;
        let names: Vec<&Arc<str>> = allowed
            .exact
            .iter()
            .filter(|name| !denied.matches(name))
            .collect();
        let area = |resource: Arc<str>| {
            names.iter().map(move |name| Area {
                resource: resource.clone(),
                namespace: Some(Arc::clone(name)),
            })
        };
        kinds.flat_map(area).chain(of_cluster).collect()
    }

    /// Returns every kind that may be copied.
    pub fn all_kinds(&self) -> impl Iterator<Item = &Arc<str>> {
        self.kinds.iter().chain(&self.cluster_kinds)
    }

    /// Returns the scope in which the policy names a kind; `None` if it does not name it.
    pub fn scope_of(&self, resource: &str) -> Option<Scope> {
        if self.cluster_kinds.contains(resource) {
            Some(Scope::Cluster)
        } else {
            self.kinds.contains(resource).then_some(Scope::Namespaced)
        }
    }

    /// Returns the area that contains a copy; `None` if the agent does not watch it.
    pub fn area(&self, copy: &SourceRef) -> Option<Area> {
        if copy.is_cluster_scoped() {
            let resource = self.cluster_kinds.get(&*copy.resource)?.clone();
            return Some(Area {
                resource,
                namespace: None,
            });
        }
        let resource = self.kinds.get(&*copy.resource)?.clone();
        if !self.namespaces.are_listed() {
            return Some(Area {
                resource,
                namespace: None,
            });
        }
        let Names { allowed, denied } = &self.namespaces;
        let is_listed = allowed.names(&copy.namespace) && !denied.matches(&copy.namespace);
        is_listed.then(|| Area {
            resource,
            namespace: Some(copy.namespace.clone()),
        })
    }

    /// Returns the error if the policy denies copies in a namespace. `home` is the agent's own
    /// namespace.
    pub fn denies_namespace(&self, name: &str, home: &str) -> Option<CopyError> {
        if !is_label(name) {
            return Some(denied("this is not a name that a namespace can have"));
        }
        if name == home {
            let text = "is the agent's own namespace: nothing is distributed there, even if the policy names it (namespaces.allowed)";
            return Some(denied(format!("namespace {name} {text}")));
        }
        let Names {
            allowed,
            denied: refused,
        } = &self.namespaces;
        if refused.matches(name) {
            return Some(denied(format!(
                "this member's policy refuses namespace {name} (namespaces.denied)"
            )));
        }
        if allowed.names(name) {
            return None;
        }
        if !allowed.matches(name) {
            let text =
                "is not among the namespaces that this member's policy allows (namespaces.allowed)";
            return Some(denied(format!("namespace {name} {text}")));
        }
        (self.reserves && is_closed_namespace(name)).then(|| {
            let text = "no glob of this member's policy allows it, only its very name (namespaces.allowed)";
            denied(format!("namespace {name} belongs to the system or to a controller: {text}"))
        })
    }

    /// Returns the error if the policy denies the place of a copy: its namespace, or the namespace that it is itself. `home`
    /// is the agent's own namespace.
    pub fn denies_place(&self, copy: &SourceRef, home: &str) -> Option<CopyError> {
        let namespace = copy.as_namespace().map(|name| &**name);
        let namespace = namespace.or(copy.optional_namespace())?;
        self.denies_namespace(namespace, home)
    }

    /// Returns the error if the policy denies the kind of a copy.
    pub fn denies_kind(&self, copy: &SourceRef) -> Option<CopyError> {
        let resource = &copy.resource;
        if copy.is_cluster_scoped() {
            let text = "are not among the kinds without namespaces that this member's policy allows (clusterKinds)";
            let is_allowed = self.cluster_kinds.contains(resource);
            return (!is_allowed).then(|| denied(format!("{resource} {text}")));
        }
        let text = "are not among the kinds that this member's policy allows (kinds)";
        (!self.kinds.contains(resource)).then(|| denied(format!("{resource} {text}")))
    }

    /// Whether copies of a kind are allowed anywhere.
    pub fn allows_kind(&self, resource: &str) -> bool {
        self.kinds.contains(resource) || self.cluster_kinds.contains(resource)
    }

    /// Returns the error if the policy denies content.
    pub fn denies_content(&self, facts: &Facts) -> Option<CopyError> {
        if let Some(object_type) = &facts.object_type {
            let shown = if is_plain(object_type) {
                object_type
            } else {
                "of this name"
            };
            if self.secret_types.denied.matches(object_type) {
                return Some(denied(format!(
                    "this member's policy refuses Secrets of type {shown} (secretTypes.denied)"
                )));
            }
            if !self.secret_types.allowed.matches(object_type) {
                let text = format!(
                    "this member's policy allows no Secrets of type {shown} (secretTypes.allowed)"
                );
                return Some(denied(text));
            }
        }
        if let Some(label) = facts
            .labels
            .iter()
            .find(|label| matches_any(&self.denied_labels, label))
        {
            let text = "makes other controllers trust the object, and this member's policy denies it (deniedLabels)";
            let shown = if is_plain(label) {
                label
            } else {
                "of the source"
            };
            return Some(denied(format!("the label {shown} {text}")));
        }
        [
            (
                facts.bytes,
                "bytes",
                self.max_object_bytes,
                "maxObjectBytes",
            ),
            (
                facts.nodes.into(),
                "JSON values",
                self.max_object_nodes,
                "maxObjectNodes",
            ),
        ]
        .into_iter()
        .find(|(has, _, limit, _)| has > limit)
        .map(|(has, unit, limit, field)| {
            denied(format!(
                "the object has {has} {unit}, and this member's policy allows {limit} ({field})"
            ))
        })
    }

    /// Returns the error if the policy denies this content for this copy. The agent repeats this
    /// check right before each write.
    pub fn denies(
        &self,
        kind: &Kind,
        copy: &SourceRef,
        content: &Content,
        home: &str,
    ) -> Option<CopyError> {
        self.denies_place(copy, home)
            .or_else(|| self.denies_kind(copy))
            .or_else(|| self.denies_content(&Facts::of(kind.content, &seal::canonical(content))))
    }

    /// Returns the error for a rule that overwrites foreign objects, if the policy denies it.
    pub fn denies_overwriting(&self) -> Option<CopyError> {
        (!self.overwrite).then(|| {
            let text = "an object that is not Runnel's exists here, and this cluster's policy forbids overwriting";
            denied(format!(
                "{text} (policy.overwrite=false): delete it or rename it, or ask the cluster's administrator"
            ))
        })
    }

    /// Returns the error for a rule that adopts foreign objects, if the policy denies it.
    pub fn denies_adopting(&self) -> Option<CopyError> {
        (self.adopt == Adopt::Never).then(|| {
            let text = "an object that is not Runnel's exists here, and this cluster's policy forbids adopting";
            denied(format!("{text} (policy.adopt=Never): delete it or rename it"))
        })
    }

    /// Returns the error for a rule that creates namespaces, if the policy denies it.
    pub fn denies_creation(&self, namespace: &str) -> Option<CopyError> {
        (!self.create_namespaces).then(|| {
            let text = "does not exist, and this member's policy has none created (createNamespaces): create it";
            denied(format!("namespace {namespace} {text}"))
        })
    }
}

/// Returns the error for a namespace whose own annotation denies copies.
pub fn refused_by_namespace(name: &str) -> CopyError {
    denied(format!(
        "namespace {name} takes no copies: it is annotated {}: deny",
        runnel_proto::model::INBOUND_ANNOTATION
    ))
}

fn denied(message: impl Into<Arc<str>>) -> CopyError {
    CopyError::new(Reason::Denied, message)
}

fn is_plain(text: &str) -> bool {
    text.len() <= 80
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-._/".contains(&byte))
}
