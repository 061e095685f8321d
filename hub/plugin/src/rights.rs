//! The permissions that commands need.

/// A permission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Right {
    /// The verb, such as `create`.
    pub verb: &'static str,
    /// The API group; empty for the core.
    pub group: &'static str,
    /// The resource, such as `deployments`.
    pub resource: &'static str,
    /// The namespace; empty for the whole cluster.
    pub namespace: String,
}

impl std::fmt::Display for Right {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let dot = if self.group.is_empty() { "" } else { "." };
        write!(to, "{} {}{dot}{}", self.verb, self.resource, self.group)?;
        if self.namespace.is_empty() {
            Ok(())
        } else {
            write!(to, " in namespace {}", self.namespace)
        }
    }
}

const RUNNEL: &str = runnel_api::GROUP;
const RBAC: &str = "rbac.authorization.k8s.io";
const ADMISSION: &str = "admissionregistration.k8s.io";

fn rights(list: &[(&'static str, &'static str, &'static str)], namespace: &str) -> Vec<Right> {
    let right = |(verb, group, resource): &(&'static str, &'static str, &'static str)| Right {
        verb,
        group,
        resource,
        namespace: namespace.to_owned(),
    };
    list.iter().map(right).collect()
}

/// To install a chart, with its roles.
fn chart(namespace: &str) -> Vec<Right> {
    let mut needed = rights(
        &[
            ("create", "", "secrets"),
            ("create", "", "serviceaccounts"),
            ("create", "apps", "deployments"),
            ("patch", "apps", "deployments"),
            ("create", RBAC, "roles"),
            ("create", RBAC, "rolebindings"),
        ],
        namespace,
    );
    needed.extend(rights(
        &[
            ("get", "", "namespaces"),
            ("create", RBAC, "clusterroles"),
            ("create", RBAC, "clusterrolebindings"),
            ("create", ADMISSION, "validatingadmissionpolicies"),
            ("create", ADMISSION, "validatingadmissionpolicybindings"),
        ],
        "",
    ));
    needed
}

/// Permissions to install the hub.
pub fn install(namespace: &str) -> Vec<Right> {
    let mut needed = chart(namespace);
    needed.extend(rights(&[("create", "", "services")], namespace));
    needed.extend(rights(
        &[(
            "create",
            "apiextensions.k8s.io",
            "customresourcedefinitions",
        )],
        "",
    ));
    needed
}

/// Permissions on the hub to join a cluster.
pub fn join_hub(namespace: &str, replaces: bool) -> Vec<Right> {
    let mut needed = rights(
        &[
            ("get", RUNNEL, "memberclusters"),
            ("list", RUNNEL, "memberclusters"),
            ("create", RUNNEL, "memberclusters"),
        ],
        "",
    );
    needed.extend(rights(&[("patch", RUNNEL, "memberclusters")], ""));
    if replaces {
        needed.extend(rights(&[("delete", RUNNEL, "memberclusters")], ""));
    }
    needed.extend(rights(&[("get", "", "secrets")], namespace));
    needed
}

/// Permissions in the member to join it.
pub fn join_member(namespace: &str) -> Vec<Right> {
    chart(namespace)
}

/// Permissions to remove a member.
pub fn unjoin() -> Vec<Right> {
    rights(
        &[
            ("get", RUNNEL, "memberclusters"),
            ("patch", RUNNEL, "memberclusters"),
            ("delete", RUNNEL, "memberclusters"),
        ],
        "",
    )
}

/// Permissions to uninstall the hub.
pub fn uninstall(namespace: &str) -> Vec<Right> {
    let mut needed = Vec::new();
    for resource in [
        "distributionrules",
        "clusterdistributionrules",
        "memberclusters",
    ] {
        needed.extend(rights(
            &[
                ("list", RUNNEL, resource),
                ("patch", RUNNEL, resource),
                ("delete", RUNNEL, resource),
            ],
            "",
        ));
    }
    needed.extend(rights(&[("get", RUNNEL, "memberrecords")], ""));
    needed.extend(rights(
        &[("delete", "apps", "deployments"), ("delete", "", "secrets")],
        namespace,
    ));
    needed.extend(rights(
        &[(
            "delete",
            "apiextensions.k8s.io",
            "customresourcedefinitions",
        )],
        "",
    ));
    needed
}

/// Describes the missing permissions; `None` if there are none.
pub fn refusal(what: &str, place: &super::hints::Endpoint, missing: &[Right]) -> Option<String> {
    if missing.is_empty() {
        return None;
    }
    let list: Vec<String> = missing.iter().map(ToString::to_string).collect();
    Some(format!(
        "you may not {what} on {place}: you have no permission to {}; ask its administrator, or use another context",
        list.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hints::Endpoint;

    #[test]
    fn missing_right_is_named_with_verb_resource_and_namespace() {
        let place = Endpoint {
            role: "the hub",
            context: "c".into(),
            server: "https://s".into(),
        };
        assert_eq!(refusal("install the hub", &place, &[]), None);
        let missing = [install("runnel-system").remove(2), unjoin().remove(2)];
        let refusal_text = refusal("install the hub", &place, &missing).unwrap();
        assert!(
            refusal_text
                .contains("create deployments.apps in namespace runnel-system, delete memberclusters.runnel.dev;"),
            "{refusal_text}"
        );
        let never = |needed: Vec<Right>| {
            needed
                .iter()
                .all(|right| right.verb != "*" && right.resource != "*")
        };
        assert!(
            never(install("a"))
                && never(join_hub("a", true))
                && never(join_member("a"))
                && never(uninstall("a"))
        );
    }
}
