//! The permissions of a chart as text, and forbidden ones.

use std::collections::BTreeSet;
use std::fmt::Write;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::render::texts;

/// One rule of a role.
#[derive(Debug)]
pub struct Right {
    /// `ClusterRole NAME` or `Role NAMESPACE/NAME`.
    pub role: String,
    /// Whether the role is bound to the account of the process.
    pub of_the_process: bool,
    pub cluster_wide: bool,
    pub groups: Vec<String>,
    pub resources: Vec<String>,
    pub names: Vec<String>,
    pub verbs: Vec<String>,
    pub paths: Vec<String>,
}

fn titled(document: &Value) -> String {
    let name = document["metadata"]["name"].as_str().unwrap_or_default();
    let kind = document["kind"].as_str().unwrap_or_default();
    match document["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("{kind} {namespace}/{name}"),
        None => format!("{kind} {name}"),
    }
}

fn of_kind<'a>(documents: &'a [Value], kinds: [&str; 2]) -> Vec<&'a Value> {
    documents
        .iter()
        .filter(|document| kinds.iter().any(|kind| document["kind"] == *kind))
        .collect()
}

/// A binding.
struct Binding {
    title: String,
    /// The title of its role.
    role: String,
    /// Whether it is bound to the account of the process.
    process: bool,
}

/// Each binding. One to anything but the ServiceAccount of the release's pods, or for users who
/// read the Lease, is an error.
fn bindings(documents: &[Value]) -> Result<Vec<Binding>> {
    let account = |document: &Value| {
        let spec = &document["spec"]["template"]["spec"];
        spec["serviceAccountName"].as_str().map(str::to_owned)
    };
    let account = documents.iter().find_map(account).context("no pod")?;
    let bound = of_kind(documents, ["ClusterRoleBinding", "RoleBinding"])
        .into_iter()
        .map(|binding| {
            let subjects = binding["subjects"]
                .as_array()
                .context("a binding without subjects")?;
            let [subject] = subjects.as_slice() else {
                anyhow::bail!("{}: {subjects:?}", titled(binding))
            };
            let ours =
                subject["kind"] == "ServiceAccount" && subject["namespace"] == "runnel-system";
            let process = ours && subject["name"] == account.as_str();
            let anybody =
                subject["name"] == "system:authenticated" && binding["kind"] == "RoleBinding";
            let reads_lease = titled(binding).ends_with("-lease") && anybody;
            ensure!(process || reads_lease, "{}: {subject}", titled(binding));
            let role = &binding["roleRef"];
            ensure!(
                role["apiGroup"] == "rbac.authorization.k8s.io",
                "{}: {role}",
                titled(binding)
            );
            let (kind, name) = (
                role["kind"].as_str().unwrap_or_default(),
                role["name"].as_str().unwrap_or_default(),
            );
            let role = match (kind, binding["metadata"]["namespace"].as_str()) {
                ("Role", Some(namespace)) => format!("Role {namespace}/{name}"),
                _ => format!("{kind} {name}"),
            };
            Ok(Binding {
                title: titled(binding),
                role,
                process,
            })
        });
    bound.collect()
}

/// Every rule of every role that is rendered.
pub fn rights(documents: &[Value]) -> Result<Vec<Right>> {
    let bound = bindings(documents)?;
    let roles = of_kind(documents, ["ClusterRole", "Role"]);
    for Binding { title, role, .. } in &bound {
        ensure!(
            roles.iter().any(|document| titled(document) == *role),
            "{title} binds {role}, which is not rendered"
        );
    }
    let mut rights = Vec::new();
    for role in roles {
        ensure!(
            role["aggregationRule"].is_null(),
            "{} gathers what others grant",
            titled(role)
        );
        let title = titled(role);
        for rule in role["rules"]
            .as_array()
            .with_context(|| format!("{title} without rules"))?
        {
            rights.push(Right {
                of_the_process: bound
                    .iter()
                    .any(|bound| bound.process && bound.role == title),
                cluster_wide: role["kind"] == "ClusterRole",
                role: title.clone(),
                groups: texts(&rule["apiGroups"]),
                resources: texts(&rule["resources"]),
                names: texts(&rule["resourceNames"]),
                verbs: texts(&rule["verbs"]),
                paths: texts(&rule["nonResourceURLs"]),
            });
        }
    }
    Ok(rights)
}

/// Returns all permissions as text, for the golden files.
pub fn in_words(documents: &[Value]) -> Result<String> {
    let (rights, bound) = (rights(documents)?, bindings(documents)?);
    let of_the_process = rights.iter().filter(|right| right.of_the_process).count();
    let mut text = format!("# {of_the_process} rules for the process\n");
    let mut lines = BTreeSet::new();
    for Right {
        role,
        groups,
        resources,
        names,
        verbs,
        of_the_process,
        ..
    } in &rights
    {
        let groups = groups
            .iter()
            .map(|group| if group.is_empty() { "core" } else { group })
            .collect::<Vec<_>>();
        let (groups, resources, verbs) = (groups.join(","), resources.join(","), verbs.join(","));
        let names = if names.is_empty() {
            String::new()
        } else {
            format!(" named {}", names.join(","))
        };
        let whose = if *of_the_process { "" } else { " (for people)" };
        lines.insert(format!(
            "{role}{whose}: {verbs} {resources}{names} of {groups}"
        ));
    }
    lines.extend(
        bound
            .iter()
            .map(|Binding { title, role, .. }| format!("{title} -> {role}")),
    );
    lines.iter().try_for_each(|line| writeln!(text, "{line}"))?;
    Ok(text)
}

const GROUPS: [&str; 4] = ["", "coordination.k8s.io", "events.k8s.io", "runnel.dev"];
/// Access reviews, which grant nothing.
const REVIEWS: [&str; 2] = ["authorization.k8s.io", "subjectaccessreviews"];
const VERBS: [&str; 7] = [
    "create", "delete", "get", "list", "patch", "update", "watch",
];
const CORE: [&str; 3] = ["configmaps", "namespaces", "secrets"];

/// Whether this is the right to read how the API server's front proxy authenticates, and nothing else.
pub fn is_front_proxy(right: &Right) -> bool {
    right.role == "Role kube-system/runnel-hub-view-api"
        && right.resources == ["configmaps"]
        && right.names == ["extension-apiserver-authentication"]
        && right.verbs == ["get"]
}

/// Whether this is the right to read views, or to publish the CA of the hub in its own APIService.
fn is_about_views(right: &Right) -> bool {
    let is_view = right.groups == ["view.runnel.dev"];
    let reads = is_view && right.verbs == ["get", "list", "watch"];
    let requests = [
        "clusterruleplans",
        "clusterrulesyncs",
        "copyexplanations",
        "removalreviews",
        "ruleplans",
        "rulesyncs",
    ];
    let asks = right.verbs == ["create"]
        && right
            .resources
            .iter()
            .all(|resource| requests.contains(&resource.as_str()));
    let publishes = right.groups == ["apiregistration.k8s.io"]
        && right.resources == ["apiservices"]
        && right.names == ["v1alpha1.view.runnel.dev"]
        && right.verbs == ["get", "patch"];
    reads || (is_view && asks) || publishes
}

/// Fails for a right that no part of Runnel may ever have.
pub fn has_few_rights(right: &Right) -> Result<()> {
    let all = [&right.groups, &right.resources, &right.verbs, &right.names]
        .into_iter()
        .flatten();
    ensure!(
        all.clone().all(|word| !word.contains('*')),
        "a star: {right:?}"
    );
    ensure!(right.paths.is_empty(), "paths of the API server: {right:?}");
    ensure!(
        right.groups.len() == 1 && !right.verbs.is_empty() && !right.resources.is_empty(),
        "{right:?}"
    );
    // Also: no escalate, bind, impersonate, approve, sign, deletecollection.
    ensure!(
        right
            .verbs
            .iter()
            .all(|verb| VERBS.contains(&verb.as_str())),
        "verbs: {right:?}"
    );
    let [group, resource] = REVIEWS;
    let reviews =
        right.groups == [group] && right.resources == [resource] && right.verbs == ["create"];
    if reviews || is_about_views(right) {
        return Ok(());
    }
    let definitions = right.groups == ["apiextensions.k8s.io"]
        && right.resources == ["customresourcedefinitions"];
    let is_looked_at = right.verbs == ["list", "watch"] && !right.names.is_empty();
    if definitions && is_looked_at && right.names.iter().all(|name| name.ends_with(".runnel.dev")) {
        return Ok(());
    }
    // Also: no rbac.authorization.k8s.io, apps, batch, admissionregistration.k8s.io, certificates.k8s.io.
    ensure!(
        right
            .groups
            .iter()
            .all(|group| GROUPS.contains(&group.as_str())),
        "groups: {right:?}"
    );
    if right.groups[0].is_empty() {
        // Also: no pods, pods/exec, serviceaccounts/token, nodes/proxy.
        ensure!(
            right
                .resources
                .iter()
                .all(|resource| CORE.contains(&resource.as_str())),
            "resources: {right:?}"
        );
    }
    Ok(())
}

/// Whether the rule is about the content of ConfigMaps or Secrets.
pub fn is_about_content(right: &Right) -> bool {
    right.groups == [""]
        && right
            .resources
            .iter()
            .any(|resource| resource == "configmaps" || resource == "secrets")
}

/// Whether the rule lets something be changed.
pub fn writes(right: &Right) -> bool {
    right
        .verbs
        .iter()
        .any(|verb| !matches!(verb.as_str(), "get" | "list" | "watch"))
}
