//! Scopes that are being deleted.
use std::collections::{BTreeMap, BTreeSet};

/// Scopes that are being deleted: rules and sources in them were not deleted individually.
#[derive(Clone, Debug, Default)]
pub struct TerminatingScopes {
    namespaces: BTreeSet<String>,
    /// CRDs of rules.
    crds: BTreeSet<String>,
    /// CRDs of rules that cannot be read.
    unreadable_crds: BTreeSet<String>,
}

impl TerminatingScopes {
    /// Whether a namespace is being deleted or missing.
    pub fn has_namespace(&self, name: &str) -> bool {
        self.namespaces.contains(name)
    }

    /// Whether the CRD of a kind of rules is being deleted or missing.
    pub fn has_crd(&self, name: &str) -> bool {
        self.crds.contains(name)
    }

    /// Whether the CRD of a kind of rules cannot be read: a rule may have been deleted with it.
    pub fn is_crd_unreadable(&self, name: &str) -> bool {
        self.unreadable_crds.contains(name)
    }

    /// Returns the number of namespaces.
    pub fn namespaces(&self) -> usize {
        self.namespaces.len()
    }

    /// Sets whether a namespace is being deleted or missing.
    pub fn set_namespace(&mut self, name: &str, is_terminating: bool) {
        set(&mut self.namespaces, name, is_terminating);
    }

    /// Sets whether the CRD of a kind of rules is being deleted; `None`: it is missing. Its
    /// rules were not deleted one by one.
    pub fn set_crd(&mut self, name: &str, is_terminating: Option<bool>) {
        set(&mut self.crds, name, is_terminating.unwrap_or(true));
    }

    /// Sets the listed CRDs, of which this is one. `None`: it cannot be read, and the former state stays.
    pub fn set_crds(&mut self, name: &str, all: Option<BTreeMap<String, bool>>) {
        set(&mut self.unreadable_crds, name, all.is_none());
        for (name, is_terminating) in all.into_iter().flatten() {
            self.set_crd(&name, Some(is_terminating));
        }
    }

    /// Forgets the namespaces that are not to be kept.
    pub fn retain_namespaces(&mut self, is_kept: impl Fn(&str) -> bool) {
        self.namespaces.retain(|name| is_kept(name));
    }
}

fn set(names: &mut BTreeSet<String>, name: &str, is_terminating: bool) {
    if is_terminating {
        names.insert(name.to_owned());
    } else {
        names.remove(name);
    }
}
