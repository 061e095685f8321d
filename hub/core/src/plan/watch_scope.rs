//! The scopes of the hub's watches: the whole cluster, or only the configured namespaces.
//!
//! One watch covers one kind: in one namespace, in all of them, or in the cluster, where the objects of kinds without
//! namespaces are. Whether the hub knows the objects is a property of a scope, never of the kind alone: a forbidden
//! namespace affects no other one.
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use runnel_proto::model::{Kind, Scope as KindScope, SourceRef};

/// A kind in one namespace of the hub, in all of them, or in the cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WatchScope {
    /// The kind, as `plural[.group]`.
    pub resource: Arc<str>,
    /// The namespace; `None`: all of them; empty: the cluster itself, for a kind without namespaces.
    pub namespace: Option<Arc<str>>,
}

impl WatchScope {
    /// A kind in all namespaces.
    pub fn everywhere(resource: impl Into<Arc<str>>) -> Self {
        Self {
            resource: resource.into(),
            namespace: None,
        }
    }

    /// A kind in one namespace.
    pub fn in_namespace(resource: impl Into<Arc<str>>, namespace: &str) -> Self {
        Self {
            resource: resource.into(),
            namespace: Some(namespace.into()),
        }
    }

    /// A kind without namespaces.
    pub fn in_cluster(resource: impl Into<Arc<str>>) -> Self {
        Self::in_namespace(resource, "")
    }

    /// Whether the scope is for a kind without namespaces.
    pub fn is_cluster(&self) -> bool {
        self.namespace.as_deref() == Some("")
    }

    /// Whether the scope of its kind is that of this kind: both have namespaces, or neither has.
    pub fn fits(&self, kind: &Kind) -> bool {
        (kind.scope == KindScope::Cluster) == self.is_cluster()
    }

    /// The namespace to list and watch; `None`: all objects of the kind.
    pub fn listed_namespace(&self) -> Option<&str> {
        self.namespace
            .as_deref()
            .filter(|namespace| !namespace.is_empty())
    }

    /// Whether the scope contains the source.
    pub fn contains(&self, source: &SourceRef) -> bool {
        self.resource == source.resource
            && self
                .namespace
                .as_deref()
                .map_or(!source.is_cluster_scoped(), |namespace| {
                    namespace == &*source.namespace
                })
    }
}

impl fmt::Display for WatchScope {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.listed_namespace() {
            Some(namespace) => write!(out, "{} of the namespace {namespace}", self.resource),
            None => out.write_str(&self.resource),
        }
    }
}

/// The namespaces of the hub with sources.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// All namespaces.
    #[default]
    Everywhere,
    /// Only these namespaces.
    Only(Arc<BTreeSet<String>>),
}

impl Scope {
    /// These namespaces; none named: the whole cluster.
    pub fn new(namespaces: impl IntoIterator<Item = String>) -> Self {
        let names: BTreeSet<_> = namespaces.into_iter().collect();
        if names.is_empty() {
            Self::Everywhere
        } else {
            Self::Only(names.into())
        }
    }

    /// Whether sources of this namespace are watched. The objects of others are unknown. An empty namespace is the cluster.
    pub fn reads(&self, namespace: &str) -> bool {
        match self {
            Self::Everywhere => true,
            Self::Only(names) => namespace.is_empty() || names.contains(namespace),
        }
    }

    /// Returns the scope of the watch for this kind and namespace. An empty namespace is the cluster.
    pub fn place(&self, resource: &Arc<str>, namespace: &str) -> WatchScope {
        match self {
            _ if namespace.is_empty() => WatchScope::in_cluster(resource.clone()),
            Self::Everywhere => WatchScope::everywhere(resource.clone()),
            Self::Only(_) => WatchScope::in_namespace(resource.clone(), namespace),
        }
    }

    /// Every place in which a kind with namespaces may be watched.
    pub fn places(&self, resource: &Arc<str>) -> Vec<WatchScope> {
        match self {
            Self::Everywhere => vec![WatchScope::everywhere(resource.clone())],
            Self::Only(names) => names
                .iter()
                .map(|name| WatchScope::in_namespace(resource.clone(), name))
                .collect(),
        }
    }
}
