//! The oracle: requests and grants, computed as plainly as possible, to compare the planner and the
//! agents with.

use serde_json::{Value, json};

/// A choice of names.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Choice {
    /// By names and globs that end in `*`.
    Names(&'static [&'static str]),
    /// By the label that marks half of all things.
    Label,
    /// All.
    All,
}

/// A named object that may have the label, and may not exist yet.
#[derive(Clone, Copy, Debug)]
pub struct Thing {
    pub name: &'static str,
    pub labeled: bool,
    pub exists: bool,
}

/// A grant.
#[derive(Clone, Copy, Debug)]
pub struct Grant {
    pub rules: Choice,
    pub kinds: &'static [&'static str],
    pub clusters: Choice,
    pub namespaces: Choice,
    pub creates: bool,
}

/// A rule that takes everything of some kinds out of one namespace.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    pub cluster_scoped: bool,
    pub home: Thing,
    pub kinds: &'static [&'static str],
    pub clusters: Choice,
    /// Absent: the source's own namespace.
    pub namespaces: Option<Choice>,
    pub creates: bool,
}

/// The label.
pub const LABEL: (&str, &str) = ("copies", "yes");

fn by_name(names: &[&str], name: &str, exact: bool) -> bool {
    names.iter().any(|wanted| match wanted.strip_suffix('*') {
        Some(start) => {
            !exact
                && name.starts_with(start)
                && !name.starts_with("kube-")
                && name != "runnel-system"
        }
        None => *wanted == name,
    })
}

impl Choice {
    /// Whether the choice includes an object. An object that does not exist has no label.
    pub fn fits(self, thing: Thing) -> bool {
        match self {
            Choice::All => true,
            Choice::Names(names) => by_name(names, thing.name, false),
            Choice::Label => thing.exists && thing.labeled && !thing.name.starts_with("kube-"),
        }
    }

    /// As in a spec.
    pub fn spec(self) -> Value {
        match self {
            Choice::All => json!({"all": true}),
            Choice::Names(names) => json!({"names": names}),
            Choice::Label => json!({"selector": {"matchLabels": {LABEL.0: LABEL.1}}}),
        }
    }
}

impl Grant {
    pub fn spec(self) -> Value {
        json!({
            "rules": {"namespaces": self.rules.spec()}, "resources": self.kinds, "clusters": self.clusters.spec(),
            "namespaces": self.namespaces.spec(), "policies": {"createNamespaces": self.creates},
        })
    }
}

impl Rule {
    /// Whether the rule requests a copy of a kind in a namespace of a cluster.
    pub fn wants(self, kind: &str, cluster: Thing, namespace: Thing) -> bool {
        let targeted = match self.namespaces {
            None => namespace.name == self.home.name,
            // An exact name includes a namespace before it exists, too.
            Some(Choice::Names(names)) if by_name(names, namespace.name, true) => true,
            Some(choice) => namespace.exists && choice.fits(namespace),
        };
        self.kinds.contains(&kind) && self.clusters.fits(cluster) && targeted
    }

    /// Whether the copy is granted, by any grant for which `also` returns true.
    pub fn is_granted(
        self,
        grants: &[Grant],
        kind: &str,
        cluster: Thing,
        namespace: Thing,
        also: impl Fn(&Grant) -> bool,
    ) -> bool {
        self.cluster_scoped
            || grants.iter().any(|grant| {
                grant.rules.fits(self.home)
                    && grant.kinds.contains(&kind)
                    && grant.clusters.fits(cluster)
                    && grant.namespaces.fits(namespace)
                    && also(grant)
            })
    }

    pub fn manifest(self, name: &str) -> Value {
        let mut source = json!({"resources": self.kinds, "names": ["item-*"]});
        let mut metadata = json!({"name": name});
        let kind = if self.cluster_scoped {
            source["namespaces"] = json!([self.home.name]);
            "ClusterDistributionRule"
        } else {
            metadata["namespace"] = json!(self.home.name);
            "DistributionRule"
        };
        let mut spec = json!({"sources": [source], "clusters": self.clusters.spec(), "createNamespaces": self.creates});
        if let Some(namespaces) = self.namespaces {
            spec["namespaces"] = namespaces.spec();
        }
        json!({"apiVersion": "runnel.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec})
    }
}
