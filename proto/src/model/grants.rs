//! What an administrator grants to a rule in one cluster. A rule gets what it requests and is
//! granted.
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::NamespaceChoice;

/// A grant. Grants add up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Grant {
    /// The kinds, as `plural[.group]`.
    pub resources: Vec<String>,
    /// The target namespaces; absent: every namespace, those of Kubernetes and Runnel too.
    pub namespaces: Option<NamespaceChoice>,
    /// Whether `conflictPolicy: Overwrite` may be used there.
    pub overwrite: bool,
    /// Whether missing namespaces may be created.
    pub create_namespaces: bool,
    /// Whether `conflictPolicy: AdoptIfEqual` may be used there.
    #[serde(default)]
    pub adopt: bool,
    /// The most copies that the rules of one namespace of the hub may have in one cluster; absent: any number.
    #[serde(default)]
    pub max_copies: Option<u64>,
    /// The maximum total size of such copies, in bytes; absent: no limit.
    #[serde(default)]
    pub max_bytes: Option<u64>,
}

/// What a rule may do about copies of one kind in one namespace, where it may have any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allowance {
    /// Whether objects that are not ours may be overwritten.
    pub overwrite: bool,
    /// Whether the namespace may be created.
    pub create_namespaces: bool,
    /// Whether objects that are not ours may be adopted where they are equal.
    pub adopt: bool,
    /// The most copies of the rules of this rule's namespace in this cluster; absent: any number.
    pub max_copies: Option<u64>,
    /// The maximum total size of such copies, in bytes; absent: no limit.
    pub max_bytes: Option<u64>,
}

impl Allowance {
    /// The allowance without limits.
    pub const UNLIMITED: Self = Self {
        overwrite: true,
        create_namespaces: true,
        adopt: true,
        max_copies: None,
        max_bytes: None,
    };

    /// Combines two grants: the higher limit applies.
    pub(super) fn and(self, grant: &Grant) -> Self {
        let higher = |one: Option<u64>, other: Option<u64>| {
            one.zip(other).map(|(one, other)| one.max(other))
        };
        Self {
            overwrite: self.overwrite || grant.overwrite,
            create_namespaces: self.create_namespaces || grant.create_namespaces,
            adopt: self.adopt || grant.adopt,
            max_copies: higher(self.max_copies, grant.max_copies),
            max_bytes: higher(self.max_bytes, grant.max_bytes),
        }
    }
}

impl Grant {
    /// Whether it restricts nothing but kinds.
    pub fn is_unlimited(&self) -> bool {
        let free = self.max_copies.is_none() && self.max_bytes.is_none();
        self.namespaces.is_none() && self.overwrite && self.create_namespaces && self.adopt && free
    }

    /// Whether the grant includes a kind.
    pub fn is_of_kind(&self, resource: &str) -> bool {
        self.resources.iter().any(|granted| granted == resource)
    }

    /// Whether the grant includes a namespace. Without `labels` the namespace does not exist, and
    /// only its name can be granted.
    pub fn includes(
        &self,
        name: &str,
        labels: Option<&BTreeMap<String, String>>,
        runnel_namespace: &str,
    ) -> bool {
        self.namespaces
            .as_ref()
            .is_none_or(|choice| choice.includes_name(name, labels, runnel_namespace))
    }

    /// Whether the labels of namespaces matter to it.
    pub fn has_selector(&self) -> bool {
        self.namespaces
            .as_ref()
            .is_some_and(|choice| choice.selector.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Operator, Pattern, Requirement, Selector};

    #[test]
    fn a_namespace_that_does_not_exist_is_granted_by_name_only() {
        let not_prod = Requirement {
            key: "env".into(),
            operator: Operator::NotIn,
            values: vec!["prod".into()],
        };
        let choice = NamespaceChoice {
            selector: Some(Selector {
                requirements: vec![not_prod],
            }),
            names: vec![Pattern::new("x-*")],
            ..NamespaceChoice::default()
        };
        let grant = Grant {
            resources: vec!["secrets".into()],
            namespaces: Some(choice),
            ..Grant::default()
        };
        assert!(grant.includes("x-1", None, "r") && !grant.includes("y", None, "r"));
        assert!(grant.includes("y", Some(&BTreeMap::new()), "r") && grant.has_selector());
    }
}
