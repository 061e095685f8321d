//! The charts' permissions: nearly all are used in the life of a fleet, and each unused one is
//! listed.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule, Role};
use kube::Api;
use runnel_tests::audit::Write;
use runnel_tests::control_plane::{ControlPlane, Options};
use runnel_tests::fleet::{Fleet, FleetOptions, NAMESPACE};
use runnel_tests::scene::{Draft, Id, RuleDraft, Scene};
use serde_json::json;

/// A verb and a resource, as `get configmaps` or `patch memberclusters/status.runnel.dev`.
type Right = String;

fn right(verb: &str, group: &str, resource: &str) -> Right {
    if group.is_empty() {
        format!("{verb} {resource}")
    } else {
        format!("{verb} {resource}.{group}")
    }
}

/// What the roles of a chart give, of what the audit log shows: it leaves Leases out.
async fn given(cluster: &ControlPlane, name: &str) -> Result<BTreeSet<Right>> {
    let client = cluster.client().await?;
    let mut rules: Vec<PolicyRule> = Api::<ClusterRole>::all(client.clone())
        .get(name)
        .await?
        .rules
        .unwrap_or_default();
    let roles = Api::<Role>::all(client)
        .list(&kube::api::ListParams::default())
        .await?;
    for role in roles.items {
        if role
            .metadata
            .name
            .is_some_and(|found| found.starts_with(name))
        {
            rules.extend(role.rules.unwrap_or_default());
        }
    }
    let mut given = BTreeSet::new();
    for rule in &rules {
        for group in rule
            .api_groups
            .iter()
            .flatten()
            .filter(|group| *group != "coordination.k8s.io")
        {
            for resource in rule.resources.iter().flatten() {
                given.extend(rule.verbs.iter().map(|verb| right(verb, group, resource)));
            }
        }
    }
    ensure!(given.len() > 5, "{name} is given {given:?}");
    Ok(given)
}

/// Every request of a ServiceAccount of Runnel's; a refused one is an error.
fn used(cluster: &ControlPlane, name: &str) -> Result<(BTreeSet<Right>, Vec<Write>)> {
    let user = format!("system:serviceaccount:{NAMESPACE}:{name}");
    let requests = cluster
        .writes_since(Default::default())?
        .into_iter()
        .filter(|request| request.user == user);
    let requests: Vec<Write> = requests.collect();
    let refused: Vec<&Write> = requests
        .iter()
        .filter(|request| request.code == 403 || request.code == 401)
        .collect();
    ensure!(
        refused.is_empty(),
        "{name} was refused in {}: {refused:?}",
        cluster.name()
    );
    let rights = requests.iter().map(|request| {
        let resource = match request.subresource.as_str() {
            "" => request.resource.clone(),
            subresource => format!("{}/{subresource}", request.resource),
        };
        right(&request.verb, &request.group, &resource)
    });
    Ok((rights.collect(), requests.clone()))
}

/// Unused permissions are in `known`, each with its reason there.
async fn is_hardly_more(cluster: &ControlPlane, name: &str, known: &[&str]) -> Result<()> {
    let (used, _) = used(cluster, name)?;
    let unused: BTreeSet<Right> = given(cluster, name)
        .await?
        .difference(&used)
        .cloned()
        .collect();
    let surplus: Vec<&Right> = unused
        .iter()
        .filter(|right| !known.contains(&right.as_str()))
        .collect();
    ensure!(
        surplus.is_empty(),
        "{name} has rights that it does not use: {surplus:?}; used are {used:?}"
    );
    Ok(())
}

#[tokio::test]
async fn rights_suffice_and_nearly_all_are_used() -> Result<()> {
    let fleet = Fleet::start(FleetOptions {
        views: true,
        // The hub makes its Fleet.
        written_limits: false,
        control_plane: Options {
            audit_reads: true,
            ..Options::default()
        },
        ..FleetOptions::default()
    });
    let fleet = fleet.await?;
    let scene = Scene::of(&fleet).await?;
    let (hub, member) = (&scene.hub, scene.member(1));
    scene.hub_namespaces(&["home"]).await?;
    scene.member_namespaces(&["home"]).await?;

    let foreign = member
        .make(&Draft::config_map("home", "theirs").data("a", "b").json())
        .await?;
    hub.make(&Draft::config_map("home", "theirs").data("c", "d").json())
        .await?;
    let ours = hub
        .make(&Draft::config_map("home", "ours").data("c", "d").json())
        .await?;
    let secret = hub
        .make(&Draft::secret("home", "secret").data("e", "f").json())
        .await?;
    let rule = Id::rule("home", "rule");
    let draft = RuleDraft::new("home", "rule")
        .named(&["*"])
        .everywhere()
        .into(&["home", "made"]);
    hub.make(&draft.with("createNamespaces", json!(true)).json())
        .await?;
    hub.wait_ready(&rule, "False", "Conflict").await?;
    member.has_event(&Id::of(&foreign)?, "Conflict").await?;
    hub.has_event(&rule, "Conflict").await?;
    scene.arrives(&ours, &rule, &["home", "made"]).await?;

    // A user reads more than the status contains.
    let status = ["status", "rule", "-n", "home", "-o", "wide"];
    fleet.runnel(&status).await?;

    // Drift is corrected, an edit followed, a source and an obstacle taken away.
    member
        .change(
            &Id::of(&ours)?,
            json!({"data": {"c": "other", "surplus": "x"}}),
        )
        .await?;
    member.has_event(&Id::of(&ours)?, "DriftCorrected").await?;
    let ours = hub
        .change(&Id::of(&ours)?, json!({"data": {"c": "new"}}))
        .await?;
    scene.arrives(&ours, &rule, &["home", "made"]).await?;
    let manifest = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "bundled"}, "data": {"a": "b"},
    });
    hub.make(&json!({
        "apiVersion": "runnel.dev/v1alpha1", "kind": "ManifestBundle",
        "metadata": {"namespace": "home", "name": "bundle"}, "spec": {"manifests": [manifest]},
    }))
    .await?;
    let bundle = json!({
        "namespaces": ["home"], "resources": ["manifestbundles.runnel.dev"], "names": ["bundle"],
    });
    let wide = Id::cluster_rule("wide");
    let source = json!({"namespaces": ["home"], "resources": ["configmaps"], "names": ["ours"]});
    hub.make(
        &RuleDraft::cluster_scoped("wide")
            .source(source)
            .source(bundle)
            .everywhere()
            .into(&["made-too"])
            .with("createNamespaces", json!(true))
            .json(),
    )
    .await?;
    hub.all_applied(&wide, 2).await?;
    hub.delete(&Id::of(&secret)?).await?;
    scene.vanishes(&secret, &["home", "made"]).await?;
    member.delete(&Id::of(&foreign)?).await?;
    hub.all_applied(&rule, 4).await?;

    // All processes restart, and the hub has one more address.
    fleet.kill_agent(1)?;
    let advertised = json!({"advertise": [fleet.hub_address(), "hub.example.com:8443"]});
    fleet.hub_release().upgrade(&advertised).await?;
    fleet.start_agent(1).await?;
    fleet.connected(1).await?;
    hub.delete(&rule).await?;
    scene.vanishes(&ours, &["home", "made"]).await?;
    hub.lacks(&rule).await.context("the finalizer")?;
    hub.delete(&wide).await?;
    hub.lacks(&wide).await.context("the finalizer")?;

    is_hardly_more(
        fleet.member(1),
        "runnel-agent",
        // Creating by apply asks for the right to create too, and is a patch in the log. An Event that repeats is patched.
        &[
            "create configmaps",
            "create secrets",
            "patch events.events.k8s.io",
        ],
    )
    .await?;
    is_hardly_more(fleet.hub(), "runnel-hub", &HUB_RESERVE).await?;

    let (_, requests) = used(fleet.hub(), "runnel-hub")?;
    let forbidden = requests.iter().find(|request| {
        let content = request.resource == "secrets" || request.resource == "configmaps";
        let write = !matches!(request.verb.as_str(), "get" | "list" | "watch");
        content && write && request.namespace != NAMESPACE
    });
    ensure!(forbidden.is_none(), "the hub wrote {forbidden:?}");
    Ok(())
}

/// Permissions of the hub that this test does not use, with their purpose.
const HUB_RESERVE: [&str; 4] = [
    // Creating by apply asks for this right too, and is a patch in the log.
    "create secrets",
    // An Event that repeats.
    "patch events.events.k8s.io",
    // The record of a MemberCluster that was deleted and made again.
    "delete memberrecords.runnel.dev",
    // Renewed keys, and removals for members that are away.
    "patch memberrecords.runnel.dev",
];
