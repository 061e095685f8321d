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

/// The number of hexadecimal digits in the versioned name of a copy.
pub const VERSION_DIGITS: usize = 10;

/// An object by kind, namespace and name: a source on the hub, or a copy in a member.
///
/// A source whose copies have another name than itself is told from the same source under any other copy name: so a
/// rule that renames gives up one intent and takes another, and each is removed by its own tombstone. An intent's
/// reference is [`SourceRef::as_copy`] of its source; everything else speaks of plain objects.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceRef {
    /// `plural[.group]`; not necessarily a kind that this build supports.
    pub resource: Arc<str>,
    /// The namespace.
    pub namespace: Arc<str>,
    /// The name.
    pub name: Arc<str>,
    /// The name of the copies, where it is another one; never equal to `name`.
    renamed: Option<Arc<str>>,
}

impl SourceRef {
    /// An object's reference.
    pub fn new(resource: &str, namespace: &str, name: &str) -> Self {
        Self {
            resource: resource.into(),
            namespace: namespace.into(),
            name: name.into(),
            renamed: None,
        }
    }

    /// Returns the intent of this source whose copies have this name.
    pub fn as_copy(&self, name: &str) -> Self {
        let renamed = (name != &*self.name).then(|| name.into());
        Self {
            renamed,
            ..self.plain()
        }
    }

    /// Returns the object itself, independent of the names of its copies.
    pub fn plain(&self) -> Self {
        Self {
            renamed: None,
            ..self.clone()
        }
    }

    /// The name of the copies.
    pub fn copy_name(&self) -> &Arc<str> {
        self.renamed.as_ref().unwrap_or(&self.name)
    }

    /// Whether the copies have another name than the source.
    pub fn is_renamed(&self) -> bool {
        self.renamed.is_some()
    }

    /// Whether its copies are called by their content as well: `NAME-DIGEST`, with [`VERSION_DIGITS`] of a digest. Means
    /// something only where the rule's terms keep versions.
    pub fn is_version(&self) -> bool {
        let digest = self
            .renamed
            .as_ref()
            .and_then(|name| name.rsplit_once('-'))
            .map(|(_, digest)| digest);
        let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        digest.is_some_and(|digest| digest.len() == VERSION_DIGITS && digest.bytes().all(hex))
    }

    /// The copy of this intent in a namespace.
    pub fn copy_in(&self, namespace: &Arc<str>) -> Self {
        let name = self.copy_name().clone();
        Self {
            resource: self.resource.clone(),
            namespace: namespace.clone(),
            name,
            renamed: None,
        }
    }

    /// Reads what [`fmt::Display`] wrote of a plain object; `None` for any other text.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('/');
        let (resource, namespace, name) = (parts.next()?, parts.next()?, parts.next()?);
        let whole = parts.next().is_none()
            && [resource, namespace, name]
                .iter()
                .all(|part| !part.is_empty());
        whole.then(|| Self::new(resource, namespace, name))
    }
}

impl fmt::Display for SourceRef {
    /// `resource/namespace/name`, and ` as copy-name` where that is another one.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}/{}", self.resource, self.namespace, self.name)?;
        self.renamed
            .as_ref()
            .map_or(Ok(()), |name| write!(out, " as {name}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_reference_reads_back_what_it_wrote() {
        let source = SourceRef::new("configmaps", "team-a", "settings");
        assert_eq!(SourceRef::parse(&source.to_string()), Some(source));
        let source = SourceRef::new("configmaps", "team-a", "settings");
        assert_eq!(source.as_copy("settings"), source);
        let renamed = source.as_copy("settings-eu");
        assert_ne!(renamed, source);
        assert_eq!(
            (renamed.plain(), &**renamed.copy_name()),
            (source.clone(), "settings-eu")
        );
        assert_eq!(
            renamed.copy_in(&"b".into()),
            SourceRef::new("configmaps", "b", "settings-eu")
        );
        assert_eq!(renamed.as_copy("settings"), source);
        for bad in ["", "a/b", "a/b/c/d", "a//c", "/b/c"] {
            assert_eq!(SourceRef::parse(bad), None, "{bad:?}");
        }
    }
}
