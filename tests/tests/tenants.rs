//! Rules of tenants in a member that has their copies written as ServiceAccounts of its own (`policy.impersonate`).

use anyhow::{Context, Result, ensure};
use runnel_tests::control_plane::ControlPlane;
use runnel_tests::fleet::{Fleet, FleetOptions};
use runnel_tests::scene::{Draft, Id, RuleDraft, SOON, Scene, entry_of};
use runnel_tests::tenant::{PROGRAM, RBAC, Tenant};
use runnel_tests::wait::eventually;
use serde_json::{Value, json};

/// The namespace of the rules on the hub, and that of the copies.
const TENANT: &str = "team-a";
const SHOP: &str = "shop";
const OTHER: &str = "other";
const ACCOUNTS: &str = "tenants";
const USER: &str = "system:serviceaccount:tenants:team-a";

const TEAM: Tenant = Tenant {
    namespace: TENANT,
    target: SHOP,
};
const KINDS: [&str; 6] = [
    "configmaps",
    "services",
    "serviceaccounts",
    "deployments.apps",
    "roles.rbac.authorization.k8s.io",
    "rolebindings.rbac.authorization.k8s.io",
];
const PRIVILEGED: [&str; 4] = [
    "serviceaccounts",
    "deployments.apps",
    "roles.rbac.authorization.k8s.io",
    "rolebindings.rbac.authorization.k8s.io",
];

async fn start() -> Result<Fleet> {
    let accounts =
        json!([{"hubNamespace": TENANT, "serviceAccount": format!("{ACCOUNTS}/{TENANT}")}]);
    let policy = json!({"kinds": KINDS, "allowPrivileged": PRIVILEGED, "impersonate": accounts});
    Fleet::start(FleetOptions {
        hub_values: json!({"sources": {"kinds": KINDS}}),
        agent_values: json!({"policy": policy}),
        member_namespaces: [ACCOUNTS, SHOP, OTHER].map(str::to_owned).into(),
        ..FleetOptions::default()
    })
    .await
}

/// Lets the account of the tenant administrate a namespace.
async fn bind_account(member: &ControlPlane) -> Result<()> {
    let account = format!("--serviceaccount={ACCOUNTS}:{TENANT}");
    let binding = [
        "create",
        "rolebinding",
        TENANT,
        "-n",
        SHOP,
        "--clusterrole=admin",
        &account,
    ];
    member.kubectl(&binding).await.map(drop)
}

/// A program with what it needs.
fn program() -> [Value; 6] {
    let labels = json!({"app": "web"});
    let pod = json!({
        "metadata": {"labels": labels},
        "spec": {"serviceAccountName": "web", "containers": [{"name": "web", "image": "example.org/web:1"}]},
    });
    let deployment = json!({"spec": {"selector": {"matchLabels": labels}, "template": pod}});
    let config = TEAM.object("v1", "ConfigMap", PROGRAM, json!({"data": {"k": "1"}}));
    let [service, account, role, binding] = TEAM.needs();
    let deployment = TEAM.object("apps/v1", "Deployment", PROGRAM, deployment);
    [config, service, account, role, binding, deployment]
}

/// A rule that sends objects of the tenant into a namespace.
fn rule(name: &str, objects: &str, into: &str) -> RuleDraft {
    let entry = json!({"resources": KINDS, "names": [objects]});
    RuleDraft::new(TENANT, name)
        .source(entry)
        .everywhere()
        .into(&[into])
}

/// Waits until copies of a rule are `Forbidden` with these words.
async fn is_forbidden(scene: &Scene, rule: &Id, words: &[&str]) -> Result<()> {
    let observed = scene.hub.wait_ready(rule, "False", "Forbidden").await?;
    let entry = entry_of(&observed, "member-1")?;
    let message = entry["message"].as_str().context("no message")?;
    for word in words {
        ensure!(message.contains(word), "{word} is not in: {message}");
    }
    Ok(())
}

#[tokio::test]
async fn rule_of_a_tenant_can_do_what_its_account_may() -> Result<()> {
    let fleet = start().await?;
    let scene = Scene::of(&fleet).await?;
    scene.hub_namespaces(&[TENANT]).await?;
    scene.hub.make(&TEAM.grant(&KINDS)).await?;
    let (hub, member, plane) = (&scene.hub, scene.member(1), fleet.member(1));
    for object in program() {
        hub.make(&object).await?;
    }
    let mark = plane.mark();
    let id = Id::rule(TENANT, "web");
    hub.make(&rule("web", "web", SHOP).json()).await?;

    // The account has no rights yet, and may not even exist.
    let command = "kubectl create rolebinding team-a-";
    is_forbidden(
        &scene,
        &id,
        &[
            "ServiceAccount tenants/team-a (policy.impersonate) may not patch",
            command,
        ],
    )
    .await?;
    plane
        .kubectl(&["create", "serviceaccount", TENANT, "-n", ACCOUNTS])
        .await?;
    bind_account(plane).await?;
    hub.all_written(&id, 6).await?;
    for object in program() {
        let copy = member.get(&Id::of(&object)?.within(SHOP)).await?;
        ensure!(
            copy["metadata"]["labels"]["runnel.dev/hub"].is_string(),
            "{copy}"
        );
    }
    // Each write was handled as one of the account.
    let writes = plane.writes_since(mark)?;
    let of_copies: Vec<_> = writes
        .iter()
        .filter(|write| write.namespace == SHOP && write.user.ends_with(":runnel-agent"))
        .filter(|write| write.resource != "events")
        .collect();
    ensure!(of_copies.len() >= 6, "{of_copies:?}");
    for write in of_copies {
        ensure!(write.impersonated.as_deref() == Some(USER), "{write:?}");
    }

    // The account loses its rights, and gets them again.
    plane
        .kubectl(&["delete", "rolebinding", TENANT, "-n", SHOP])
        .await?;
    let question = [
        "auth",
        "can-i",
        "patch",
        "configmaps",
        "-n",
        SHOP,
        "--as",
        USER,
    ];
    eventually("the right to be gone", SOON, async || {
        Ok(plane.kubectl(&question).await.is_err().then_some(()))
    })
    .await?;
    let config = Id::config_map(TENANT, "web");
    hub.change(&config, json!({"data": {"k": "2"}})).await?;
    is_forbidden(&scene, &id, &["may not patch configmaps in namespace shop"]).await?;
    bind_account(plane).await?;
    hub.all_written(&id, 6).await?;
    member
        .sees("with the edit", &config.within(SHOP), |copy| {
            ensure!(copy["data"]["k"] == "2", "{copy}");
            Ok(())
        })
        .await?;

    // A role that gives more than the account has, and the binding of such a role.
    let all = json!({"rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]});
    let role = TEAM.object(&format!("{RBAC}/v1"), "Role", "escalates", all);
    let own = TEAM.binding("escalates", "ClusterRole", "cluster-admin");
    for object in [&role, &own] {
        hub.make(object).await?;
    }
    let escalates = Id::rule(TENANT, "escalates");
    hub.make(&rule("escalates", "escalates", SHOP).json())
        .await?;
    hub.wait_failed(&escalates, "Forbidden", 2).await?;
    is_forbidden(
        &scene,
        &escalates,
        &["ServiceAccount tenants/team-a (policy.impersonate) lacks rights"],
    )
    .await?;
    for object in [&role, &own] {
        let found = member.find(&Id::of(object)?.within(SHOP)).await?;
        ensure!(found.is_none(), "{found:?}");
    }

    // Another namespace of the member, and nothing of it for the rule of another tenant.
    let foreign = Id::rule(TENANT, "foreign");
    hub.make(&Draft::config_map(TENANT, "foreign").data("k", "1").json())
        .await?;
    hub.make(&rule("foreign", "foreign", OTHER).json()).await?;
    is_forbidden(
        &scene,
        &foreign,
        &["tenants/team-a", "configmaps in namespace other"],
    )
    .await?;
    ensure!(
        member
            .find(&Id::config_map(OTHER, "foreign"))
            .await?
            .is_none()
    );
    let made = Draft::namespace("team-b").json();
    hub.make(&made).await?;
    hub.make(&Draft::config_map("team-b", "plain").data("k", "1").json())
        .await?;
    let plain = RuleDraft::new("team-b", "plain")
        .source(json!({"resources": ["configmaps"], "names": ["plain"]}))
        .everywhere()
        .into(&[OTHER]);
    hub.make(&plain.json()).await?;
    hub.all_applied(&Id::rule("team-b", "plain"), 1).await?;

    // The account removes what it has written.
    for id in [&id, &escalates, &foreign] {
        hub.delete(id).await?;
        hub.lacks(id).await?;
    }
    for object in program() {
        member.lacks(&Id::of(&object)?.within(SHOP)).await?;
    }
    Ok(())
}
