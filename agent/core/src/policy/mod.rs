//! The member's own policy: the permissions that its administrator gives to a hub. The hub can
//! extend none of them.
//!
//! A denied copy is not written, and is reported as `Denied` with the field of the policy. An
//! existing copy stays unchanged and is no longer corrected. The agent still carries out a removal,
//! because no content comes in by it.
mod parse;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;

use runnel_proto::model::{
    Content, ContentDigest, FieldPath, KINDS, Kind, Pattern, Reason, SourceRef,
    is_closed_namespace, is_label, matches_any,
};
use serde_json::Value;

use crate::copy::CopyError;
use crate::seal;

pub use parse::PolicyError;

/// The type of a Secret that names none.
const UNTYPED: &str = "Opaque";

/// How many copies may be deleted within an hour where nothing is said.
pub const DELETES_PER_HOUR: usize = 10_000;

/// How many copies there may be where nothing is said.
const MAX_COPIES: u64 = 10_000;

/// How many bytes all copies may have together where nothing is said.
const MAX_BYTES: u64 = 1 << 30;

/// What becomes of the copies when the hub revokes this cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnRevoke {
    /// They stay, and are put back when somebody edits them, as while the hub is away.
    #[default]
    Keep,
    /// They are deleted.
    Purge,
}

/// Which objects that are not Runnel's may be adopted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Adopt {
    /// Those that equal what should stand there.
    #[default]
    Equal,
    /// None.
    Never,
}

/// Names and globs. A name among ten thousand is found as fast as one among ten.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Patterns {
    exact: BTreeSet<Arc<str>>,
    globs: Vec<Pattern>,
}

impl Patterns {
    /// Whether this name is listed as such.
    pub fn names(&self, name: &str) -> bool {
        self.exact.contains(name)
    }

    /// Whether a name is listed, or a glob fits.
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

/// Names and globs that are allowed, and of those the ones that are not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// What is allowed.
    pub allowed: Patterns,
    /// What is not, even so.
    pub denied: Patterns,
}

impl Names {
    fn all() -> Self {
        Self {
            allowed: Patterns::from_iter([Pattern::new("*")]),
            denied: Patterns::default(),
        }
    }

    /// Whether no glob is allowed.
    fn are_listed(&self) -> bool {
        self.allowed.globs.is_empty()
    }
}

/// What one watch of copies covers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Area {
    /// The kind, as its `plural[.group]`.
    pub resource: &'static str,
    /// The namespace; `None` for the whole cluster.
    pub namespace: Option<Arc<str>>,
}

/// What is judged of an object's content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Bytes of its values, as Kubernetes counts them.
    pub bytes: u64,
    /// The type, for a kind that has types.
    pub object_type: Option<Arc<str>>,
    /// The keys of its labels.
    pub labels: Arc<[Box<str>]>,
    /// By which it is proved to the hub that this content stands here.
    pub digest: Option<ContentDigest>,
}

impl Facts {
    /// These, with the digest of that content without these fields.
    pub fn digested(self, content: &Content, ignored: &BTreeSet<FieldPath>) -> Self {
        Self {
            digest: Some(ContentDigest::of(content, ignored)),
            ..self
        }
    }

    /// What somebody else has found out about an object's content.
    pub fn announced(kind: &Kind, bytes: u64, named: Option<&str>) -> Self {
        let typed = kind.fields.contains(&"type");
        Self {
            bytes,
            object_type: typed.then(|| named.unwrap_or(UNTYPED).into()),
            ..Self::default()
        }
    }

    /// The facts of an object's content.
    pub fn of(kind: &Kind, content: &Content) -> Self {
        // The API server takes an empty type for the default one.
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
            ..Self::announced(kind, content.value_bytes(kind), named)
        }
    }
}

/// Labels by which other controllers trust an object: without a list of the policy's own no copy carries them.
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
    /// Where copies may be.
    pub namespaces: Names,
    /// Of which kinds copies may be.
    pub kinds: BTreeSet<&'static str>,
    /// Of which types Secrets may be.
    pub secret_types: Names,
    /// Which labels no copy carries.
    pub denied_labels: Vec<Pattern>,
    /// How many copies there may be.
    pub max_copies: u64,
    /// How many bytes the values of all copies may have together.
    pub max_bytes: u64,
    /// How large the values of an object may be together.
    pub max_object_bytes: u64,
    /// Whether a rule may adopt objects that are not Runnel's and equal its sources.
    pub adopt: Adopt,
    /// Whether a rule may overwrite what is not Runnel's.
    pub overwrite: bool,
    /// Whether a rule may have namespaces created.
    pub create_namespaces: bool,
    /// How many copies may be deleted within an hour.
    pub deletes_per_hour: usize,
    /// What becomes of the copies when the hub revokes this cluster.
    pub on_revoke: OnRevoke,
    /// Whether the namespaces of the system and of controllers need to be named literally.
    pub reserves: bool,
}

impl Default for Policy {
    /// The policy of a file that says nothing.
    fn default() -> Self {
        Self {
            namespaces: Names::all(),
            kinds: KINDS.iter().map(|kind| kind.resource).collect(),
            secret_types: Names::all(),
            denied_labels: TRUSTED_LABELS.map(Pattern::new).to_vec(),
            max_copies: MAX_COPIES,
            max_bytes: MAX_BYTES,
            max_object_bytes: 1 << 20,
            adopt: Adopt::Equal,
            overwrite: false,
            create_namespaces: false,
            deletes_per_hour: DELETES_PER_HOUR,
            on_revoke: OnRevoke::Keep,
            reserves: true,
        }
    }
}

impl Policy {
    /// No policy: everything is allowed that a hub may say at all.
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

    /// What has to be watched: one area per kind, or per kind and namespace where the policy names each namespace,
    /// so that the agent needs no right anywhere else.
    pub fn areas(&self) -> BTreeSet<Area> {
        let kinds = self.kinds.iter();
        if !self.namespaces.are_listed() {
            return kinds
                .map(|resource| Area {
                    resource,
                    namespace: None,
                })
                .collect();
        }
        let Names { allowed, denied } = &self.namespaces;
        let names: Vec<&Arc<str>> = allowed
            .exact
            .iter()
            .filter(|name| !denied.matches(name))
            .collect();
        let area = |resource| {
            names.iter().map(move |name| Area {
                resource,
                namespace: Some(Arc::clone(name)),
            })
        };
        kinds.flat_map(|resource| area(*resource)).collect()
    }

    /// The area that shows a copy; `None` where the agent does not look at all.
    pub fn area(&self, copy: &SourceRef) -> Option<Area> {
        let resource = *self.kinds.get(&*copy.resource)?;
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

    /// Why copies may not be in a namespace. `home` is the agent's own.
    pub fn denies_namespace(&self, name: &str, home: &str) -> Option<CopyError> {
        if !is_label(name) {
            return Some(denied("this is not a name that a namespace can have"));
        }
        if name == home {
            let text = "is the agent's own: nothing is distributed there, whatever the policy names (namespaces.allowed)";
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

    /// Why copies of a kind may not be. Kinds that this agent does not know are not judged here.
    pub fn denies_kind(&self, resource: &str) -> Option<CopyError> {
        let known = Kind::by_resource(resource)?;
        let text = "are not among the kinds that this member's policy allows (kinds)";
        (!self.kinds.contains(known.resource)).then(|| denied(format!("{} {text}", known.resource)))
    }

    /// Why content may not be written.
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
        let limit = self.max_object_bytes;
        (facts.bytes > limit).then(|| {
            let text = format!(
                "the object has {} bytes, and this member's policy allows {limit}",
                facts.bytes
            );
            denied(format!("{text} (maxObjectBytes)"))
        })
    }

    /// Why this content may not be written as this copy; asked once more right before each write.
    pub fn denies(
        &self,
        kind: &Kind,
        copy: &SourceRef,
        content: &Content,
        home: &str,
    ) -> Option<CopyError> {
        self.denies_namespace(&copy.namespace, home)
            .or_else(|| self.denies_kind(&copy.resource))
            .or_else(|| self.denies_content(&Facts::of(kind, &seal::canonical(content))))
    }

    /// Why an object that is not Runnel's is not overwritten although a rule says so.
    pub fn denies_overwriting(&self) -> Option<CopyError> {
        (!self.overwrite).then(|| {
            let text = "an object that is not Runnel's stands here, and this cluster's policy forbids overwriting";
            denied(format!(
                "{text} (policy.overwrite=false): delete it or rename it, or ask the cluster's administrator"
            ))
        })
    }

    /// Why an object that is not Runnel's is not adopted although a rule says so.
    pub fn denies_adopting(&self) -> Option<CopyError> {
        (self.adopt == Adopt::Never).then(|| {
            let text = "an object that is not Runnel's stands here, and this cluster's policy forbids adopting";
            denied(format!("{text} (policy.adopt=Never): delete it or rename it"))
        })
    }

    /// Why a missing namespace is not created although a rule asks for it.
    pub fn denies_creation(&self, namespace: &str) -> Option<CopyError> {
        (!self.create_namespaces).then(|| {
            let text = "does not exist, and this member's policy has none created (createNamespaces): create it";
            denied(format!("namespace {namespace} {text}"))
        })
    }
}

/// Why a namespace takes no copies that says so itself.
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
