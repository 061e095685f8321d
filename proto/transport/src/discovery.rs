//! The kinds in the discovery of an API server.
use std::collections::BTreeSet;
use std::sync::Arc;

use kube::Client;
use kube::discovery::{self, ApiCapabilities, ApiResource, Discovery};
use runnel_proto::model::{Kind, Kinds, Scope, split_resource};

/// Reads the kinds of these names, `plural[.group]`, that an API server serves with all these verbs, in every version.
///
/// # Errors
/// The error of the API server.
pub async fn read_named(
    client: Client,
    named: &BTreeSet<Arc<str>>,
    verbs: &[&str],
) -> Result<Kinds, kube::Error> {
    let groups: BTreeSet<&str> = named.iter().map(|name| split_resource(name).1).collect();
    let groups: Vec<&str> = groups.into_iter().collect();
    let discovery = Discovery::new(client).filter(&groups);
    let discovery = discovery.run_aggregated().await?;
    Ok(served_resources(&discovery)
        .filter_map(|(served, capabilities)| served_kind(&served, &capabilities, verbs))
        .filter(|kind| named.contains(&kind.resource))
        .collect())
}

/// Returns what a discovery has, in every version: the preferred version of a group first.
pub fn served_resources(
    discovery: &Discovery,
) -> impl Iterator<Item = (ApiResource, ApiCapabilities)> {
    discovery.groups().flat_map(|group| {
        let preferred = group.preferred_version_or_latest();
        let others = group
            .versions()
            .filter(move |version| *version != preferred);
        let versions = std::iter::once(preferred).chain(others);
        versions.flat_map(|version| group.versioned_resources(version))
    })
}

/// Returns the kind of a resource in the discovery; `None` unless the API server offers all these verbs.
pub fn served_kind(
    resource: &ApiResource,
    capabilities: &ApiCapabilities,
    verbs: &[&str],
) -> Option<Kind> {
    let scope = match capabilities.scope {
        discovery::Scope::Namespaced => Scope::Namespaced,
        discovery::Scope::Cluster => Scope::Cluster,
    };
    let ApiResource {
        group,
        version,
        kind,
        plural,
        ..
    } = resource;
    let has_all = verbs
        .iter()
        .all(|verb| capabilities.supports_operation(verb));
    has_all.then(|| Kind::new(group, version, kind, plural, scope))
}
