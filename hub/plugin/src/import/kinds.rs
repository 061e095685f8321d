//! The kinds whose objects the import reads.
use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};

use kube::discovery::verbs;
use runnel_api::is_local_kind;
use runnel_proto::model::{Kind, Kinds, Scope, plain_text};
use runnel_transport::discovery::{ServedKinds, read_served};

use crate::access::Cluster;
use crate::usage;

/// The kinds besides ConfigMaps and Secrets that kubernetes-replicator copies.
static REPLICATED: LazyLock<[Kind; 3]> = LazyLock::new(|| {
    let rbac = "rbac.authorization.k8s.io";
    [
        Kind::new(rbac, "v1", "Role", "roles", Scope::Namespaced),
        Kind::new(rbac, "v1", "RoleBinding", "rolebindings", Scope::Namespaced),
        Kind::new(
            "",
            "v1",
            "ServiceAccount",
            "serviceaccounts",
            Scope::Namespaced,
        ),
    ]
});

/// Returns the kind with this `plural[.group]`, if kubernetes-replicator copies it besides ConfigMaps and Secrets.
pub fn replicated(resource: &str) -> Option<&'static Kind> {
    REPLICATED.iter().find(|kind| &*kind.resource == resource)
}

/// Returns the kinds that the known copiers copy.
pub fn copied() -> Kinds {
    let supported = Kind::supported().iter();
    supported.chain(REPLICATED.iter()).cloned().collect()
}

/// Returns ConfigMaps, Secrets, and these kinds as far as the cluster serves them.
///
/// # Errors
/// If the cluster cannot be asked, or cannot reach the group of one of them.
pub async fn served(cluster: &Cluster, named: &[String]) -> anyhow::Result<Kinds> {
    let known = Kind::supported().iter().cloned();
    let unknown = named
        .iter()
        .filter(|name| Kind::by_resource(name).is_none());
    let unknown: BTreeSet<Arc<str>> = unknown.map(|name| name.as_str().into()).collect();
    if unknown.is_empty() {
        return Ok(known.collect());
    }
    let reading = read_served(cluster.client(), Some(&unknown), &[verbs::GET, verbs::LIST]);
    let served = cluster
        .within("read the kinds that it serves", reading)
        .await?;
    check_groups(&unknown, &served, &cluster.place.to_string())?;
    Ok(known.chain(served.kinds.iter().cloned()).collect())
}

/// Checks that each kind is found, or known not to be served: an import without its objects would be incomplete.
fn check_groups(
    named: &BTreeSet<Arc<str>>,
    served: &ServedKinds,
    place: &str,
) -> anyhow::Result<()> {
    let is_unknown =
        |name: &&Arc<str>| served.kinds.preferred(name).is_none() && served.is_unreadable(name);
    match named.iter().find(is_unknown) {
        None => Ok(()),
        Some(name) => anyhow::bail!(
            "the API server of {place} cannot reach the group of {}, so it is not known whether it serves the kind: check its \
             APIServices with `kubectl get apiservices`, and import again",
            plain_text(name, 80)
        ),
    }
}

/// Checks that the objects of these kinds can be copied from namespace to namespace. `served`: those of the cluster that
/// is read, whose name is `place`.
///
/// # Errors
/// A usage error that names the kind.
pub fn check(named: &[String], served: &Kinds, place: &str) -> anyhow::Result<()> {
    for name in named {
        let shown = plain_text(name, 80);
        let why = match served.preferred(name) {
            None => format!(
                "{place} does not serve this kind: give PLURAL or PLURAL.GROUP, as `kubectl api-resources -o name` prints it"
            ),
            Some(_) if is_local_kind(name) => {
                "its objects belong to one cluster, and are never distributed: leave it out".to_owned()
            }
            Some(kind) if kind.scope == Scope::Cluster => {
                "its objects are in no namespace, so nothing copies them to other namespaces: leave it out".to_owned()
            }
            Some(_) => continue,
        };
        return Err(usage(format!("--resources `{shown}`: {why}")));
    }
    Ok(())
}

/// Returns the path of the objects of a kind, in one namespace or in all of them.
pub fn path(kind: &Kind, namespace: Option<&str>) -> String {
    let api = if kind.group.is_empty() { "api" } else { "apis" };
    let namespace = namespace.map_or_else(String::new, |name| format!("/namespaces/{name}"));
    format!("/{api}/{}{namespace}/{}", kind.api_version, kind.plural)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_that_no_copier_copies_are_refused_by_name() {
        let served: Kinds = [
            Kind::new("example.org", "v1", "Widget", "widgets", Scope::Namespaced),
            Kind::new("", "v1", "Event", "events", Scope::Namespaced),
            Kind::new("example.org", "v1", "Class", "classes", Scope::Cluster),
        ]
        .into_iter()
        .collect();
        let refusal = |name: &str| {
            let named = ["widgets.example.org".to_owned(), name.to_owned()];
            check(&named, &served, "eu-1").map_err(|error| error.to_string())
        };
        assert_eq!(refusal("widgets.example.org"), Ok(()));
        for (name, why) in [
            ("widgets", "--resources `widgets`: eu-1 does not serve"),
            ("events", "belong to one cluster"),
            ("classes.example.org", "are in no namespace"),
        ] {
            let refusal = refusal(name).unwrap_err();
            assert!(refusal.contains(why), "{refusal}");
        }
    }

    #[test]
    fn kind_of_a_group_that_is_not_reached_ends_the_import() {
        let named = BTreeSet::from(["widgets.example.org".into()]);
        let served = |stale: &[&str]| ServedKinds {
            stale: stale.iter().map(ToString::to_string).collect(),
            ..ServedKinds::default()
        };
        let check = |served: &ServedKinds| check_groups(&named, served, "eu-1");
        assert!(check(&served(&["example.com"])).is_ok());
        let mut down = served(&["example.org"]);
        let refusal = check(&down).unwrap_err().to_string();
        assert!(
            refusal.contains("eu-1 cannot reach the group of widgets.example.org"),
            "{refusal}"
        );
        // Another version of the group is reached.
        let kind = Kind::new("example.org", "v1", "Widget", "widgets", Scope::Namespaced);
        down.kinds = [kind].into_iter().collect();
        assert!(check(&down).is_ok());
    }

    #[test]
    fn paths_have_group_version_and_namespace() {
        let role = replicated("roles.rbac.authorization.k8s.io").unwrap();
        let roles = "/apis/rbac.authorization.k8s.io/v1/roles";
        assert_eq!(path(role, None), roles);
        let account = replicated("serviceaccounts").unwrap();
        let accounts = "/api/v1/namespaces/team-a/serviceaccounts";
        assert_eq!(path(account, Some("team-a")), accounts);
    }
}
