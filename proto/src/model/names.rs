//! Names and identities.
use std::fmt;
use std::sync::Arc;

macro_rules! text_name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.into())
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(text.into())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str(&self.0)
            }
        }
    };
}

text_name! {
    /// The uid of a rule object on the hub: the identity of a rule. A rule re-created under its old name is another.
    RuleUid
}
text_name! {
    /// The name of a `MemberCluster`.
    ClusterName
}

/// How a rule is called, for people; its identity is the [`RuleUid`].
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleName {
    /// `DistributionRule` or `ClusterDistributionRule`.
    pub kind: String,
    /// Empty for cluster-scoped rules.
    pub namespace: String,
    /// The object's name.
    pub name: String,
}

impl RuleName {
    /// Whether the rule is cluster-scoped: such rules win a copy before namespaced ones.
    pub fn is_cluster_scoped(&self) -> bool {
        self.namespace.is_empty()
    }
}

impl fmt::Display for RuleName {
    /// `namespace/name`, or `name` for a cluster-scoped rule.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_cluster_scoped() {
            out.write_str(&self.name)
        } else {
            write!(out, "{}/{}", self.namespace, self.name)
        }
    }
}

/// An object by kind, namespace and name: a source on the hub, or a copy in a member.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceRef {
    /// `plural[.group]`; not necessarily a kind that this build knows.
    pub resource: Arc<str>,
    /// The namespace.
    pub namespace: Arc<str>,
    /// The name.
    pub name: Arc<str>,
}

impl SourceRef {
    /// An object's reference.
    pub fn new(resource: &str, namespace: &str, name: &str) -> Self {
        Self { resource: resource.into(), namespace: namespace.into(), name: name.into() }
    }

    /// Reads what [`fmt::Display`] wrote; `None` for any other text.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('/');
        let (resource, namespace, name) = (parts.next()?, parts.next()?, parts.next()?);
        let whole = parts.next().is_none() && [resource, namespace, name].iter().all(|part| !part.is_empty());
        whole.then(|| Self::new(resource, namespace, name))
    }
}

impl fmt::Display for SourceRef {
    /// `resource/namespace/name`.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}/{}", self.resource, self.namespace, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_reference_reads_back_what_it_wrote() {
        let source = SourceRef::new("configmaps", "team-a", "settings");
        assert_eq!(SourceRef::parse(&source.to_string()), Some(source));
        for bad in ["", "a/b", "a/b/c/d", "a//c", "/b/c"] {
            assert_eq!(SourceRef::parse(bad), None, "{bad:?}");
        }
    }
}
