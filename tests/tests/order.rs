//! The order in which an agent writes and removes the copies of a rule, and what it costs to wait for an object that copies
//! need: as the audit log of the member shows it.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use runnel_tests::audit::Write;
use runnel_tests::control_plane::{ControlPlane, Options};
use runnel_tests::fleet::{Fleet, FleetOptions};
use runnel_tests::scene::{Draft, Id, RuleDraft, SOON, Scene, entry_of};
use runnel_tests::tenant::Tenant;
use runnel_tests::wait::{eventually, steadily};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

static FLEET: OnceCell<Fleet> = OnceCell::const_new();

const HOME: &str = "ordered";
const DEFINITIONS: &str = "customresourcedefinitions.apiextensions.k8s.io";
const WIDGETS: &str = "widgets.example.org";
const GADGETS: &str = "gadgets.example.org";
/// The namespace of a tenant on the hub, and of its copies.
const TENANT: &str = "team-a";
/// The namespace of the account under which the copies of the tenant are written.
const ACCOUNTS: &str = "tenants";
/// How long copies wait in a test.
const WAITS: Duration = Duration::from_secs(15);
const RBAC: &str = "rbac.authorization.k8s.io/v1";
/// The kinds in the order in which they are written. The removal is in reverse, which is no alphabetical order either.
const ORDER: [(&str, &str, &str); 6] = [
    ("rbac.authorization.k8s.io", "roles", RBAC),
    ("", "configmaps", "v1"),
    ("rbac.authorization.k8s.io", "rolebindings", RBAC),
    ("", "services", "v1"),
    ("apps", "deployments", "apps/v1"),
    ("autoscaling", "horizontalpodautoscalers", "autoscaling/v2"),
];

fn kinds() -> Vec<String> {
    let name = |(group, plural, _): &(&str, &str, &str)| match *group {
        "" => (*plural).to_owned(),
        group => format!("{plural}.{group}"),
    };
    ORDER.iter().map(name).collect()
}

async fn fleet() -> Result<&'static Fleet> {
    let start = || {
        let custom = [WIDGETS, GADGETS].map(str::to_owned);
        let kinds: Vec<_> = kinds().into_iter().chain(custom).collect();
        let all = kinds.iter().map(String::as_str).chain([DEFINITIONS]);
        let privileged: Vec<_> = all
            .filter(|kind| runnel_proto::model::is_privileged(kind))
            .collect();
        let account =
            json!({"hubNamespace": TENANT, "serviceAccount": format!("{ACCOUNTS}/{TENANT}")});
        Fleet::start(FleetOptions {
            hub_values: json!({"sources": {"kinds": kinds, "clusterKinds": [DEFINITIONS]}}),
            agent_values: json!({"policy": {
                "kinds": kinds, "clusterKinds": [DEFINITIONS], "allowPrivileged": privileged, "impersonate": [account],
            }}),
            member_namespaces: vec![ACCOUNTS.to_owned()],
            control_plane: Options {
                audit_reads: true,
                ..Options::default()
            },
            ..FleetOptions::default()
        })
    };
    FLEET.get_or_try_init(start).await
}

fn objects() -> [Value; 6] {
    let of = |kind: &str, at: usize, field: &str, value: Value| {
        json!({
            "apiVersion": ORDER[at].2, "kind": kind,
            "metadata": {"namespace": HOME, "name": "web", "labels": {"rev": "1"}}, field: value,
        })
    };
    let labels = json!({"app": "web"});
    let pod = json!({
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "web", "image": "example.org/web:1"}]},
    });
    let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"});
    let mut binding = of(
        "RoleBinding",
        2,
        "roleRef",
        json!({"apiGroup": ORDER[0].0, "kind": "Role", "name": "web"}),
    );
    binding["subjects"] = json!([{"kind": "ServiceAccount", "name": "default", "namespace": HOME}]);
    [
        of(
            "Role",
            0,
            "rules",
            json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]),
        ),
        of("ConfigMap", 1, "data", json!({"k": "1"})),
        binding,
        of(
            "Service",
            3,
            "spec",
            json!({"selector": labels, "ports": [{"port": 80}]}),
        ),
        of(
            "Deployment",
            4,
            "spec",
            json!({"replicas": 0, "selector": {"matchLabels": labels}, "template": pod}),
        ),
        of(
            "HorizontalPodAutoscaler",
            5,
            "spec",
            json!({"maxReplicas": 2, "scaleTargetRef": target}),
        ),
    ]
}

/// The places of the agent's successful writes in [`ORDER`], with this verb.
fn places(writes: &[Write], verb: &str) -> Vec<usize> {
    let by_agent = |write: &&Write| {
        write.user.ends_with(":runnel-agent")
            && write.namespace == HOME
            && write.verb == verb
            && write.code < 300
    };
    let place = |write: &Write| {
        let is = |(group, plural, _): &(&str, &str, &str)| {
            *group == write.group && *plural == write.resource
        };
        ORDER.iter().position(is)
    };
    writes.iter().filter(by_agent).filter_map(place).collect()
}

#[tokio::test]
async fn copies_are_removed_in_reverse_order_of_kinds() -> Result<()> {
    let (kinds, fleet) = (kinds(), fleet().await?);
    let scene = Scene::of(fleet).await?;
    scene.hub_namespaces(&[HOME]).await?;
    scene.member_namespaces(&[HOME]).await?;
    let (hub, member) = (&scene.hub, fleet.member(1));
    for object in objects().iter().rev() {
        hub.make(object).await?;
    }
    let entry = json!({"resources": kinds, "names": ["web"], "namespaces": [HOME]});
    let id = Id::cluster_rule("ordered");
    let rule = RuleDraft::cluster_scoped("ordered")
        .source(entry)
        .everywhere();
    hub.make(&rule.json()).await?;
    hub.all_written(&id, ORDER.len()).await?;

    let mark = member.mark();
    hub.delete(&id).await?;
    hub.lacks(&id).await?;
    let removed = places(&member.writes_since(mark)?, "delete");
    let reversed: Vec<_> = (0..ORDER.len()).rev().collect();
    ensure!(removed == reversed, "removed as {removed:?}");
    Ok(())
}

/// A kind of the group `example.org` with any fields in `spec`.
fn definition(resource: &str, kind: &str) -> Value {
    let any = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    Draft::definition(resource, kind, &[("v1", &any)]).json()
}

fn custom(kind: &str, namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "example.org/v1", "kind": kind, "metadata": {"namespace": namespace, "name": name},
        "spec": {"size": 1},
    })
}

#[tokio::test]
async fn definition_comes_before_its_objects_and_goes_after_them() -> Result<()> {
    let fleet = fleet().await?;
    let scene = Scene::of(fleet).await?;
    let home = "defined";
    scene.hub_namespaces(&[home]).await?;
    scene.member_namespaces(&[home]).await?;
    let (hub, member) = (&scene.hub, fleet.member(1));
    hub.make(&definition(WIDGETS, "Widget")).await?;
    for name in ["one", "two"] {
        hub.make_soon(&custom("Widget", home, name)).await?;
    }
    let id = Id::cluster_rule("defined");
    let rule = RuleDraft::cluster_scoped("defined")
        .source(json!({"resources": [WIDGETS], "names": ["*"], "namespaces": [home]}))
        .source(json!({"resources": [DEFINITIONS], "names": [WIDGETS]}))
        .everywhere();
    let mark = member.mark();
    hub.make(&rule.json()).await?;
    hub.all_written(&id, 3).await?;

    let of_rule = |write: &Write| {
        write.user.ends_with(":runnel-agent")
            && !write.dry_run
            && (write.resource == "widgets" || write.name == WIDGETS)
    };
    let changes = |mark, verb: &str| -> Result<Vec<Write>> {
        let writes = member.writes_since(mark)?.into_iter();
        Ok(writes
            .filter(|write| write.verb == verb && of_rule(write))
            .collect())
    };
    let created = changes(mark, "patch")?;
    ensure!(
        resources_of(&created) == ["customresourcedefinitions", "widgets", "widgets"],
        "{created:?}"
    );
    ensure!(created.iter().all(|write| write.code < 300), "{created:?}");

    let mark = member.mark();
    hub.delete(&id).await?;
    hub.lacks(&id).await?;
    let removed = changes(mark, "delete")?;
    ensure!(
        resources_of(&removed) == ["widgets", "widgets", "customresourcedefinitions"],
        "{removed:?}"
    );
    Ok(())
}

fn resources_of(writes: &[Write]) -> Vec<&str> {
    writes.iter().map(|write| &*write.resource).collect()
}

/// Lets the tenant send these kinds anywhere, and its account administrate its namespace in the member.
async fn admit_tenant(scene: &Scene, fleet: &Fleet, kinds: &[&str]) -> Result<()> {
    scene.hub_namespaces(&[TENANT]).await?;
    scene.member_namespaces(&[TENANT]).await?;
    let tenant = Tenant {
        namespace: TENANT,
        target: TENANT,
    };
    scene.hub.make(&tenant.grant(kinds)).await?;
    let member = fleet.member(1);
    member
        .kubectl(&["create", "serviceaccount", TENANT, "-n", ACCOUNTS])
        .await?;
    bind_account(member, TENANT).await
}

/// Lets the account of the tenant administrate a namespace of the member.
async fn bind_account(member: &ControlPlane, namespace: &str) -> Result<()> {
    let account = format!("--serviceaccount={ACCOUNTS}:{TENANT}");
    let binding = ["create", "rolebinding", TENANT, "-n", namespace];
    let admin = ["--clusterrole=admin", &account];
    let created = member.kubectl(&[&binding[..], &admin[..]].concat()).await;
    created.map(drop)
}

#[tokio::test]
async fn missing_prerequisites_are_awaited_without_a_tight_loop() -> Result<()> {
    let fleet = fleet().await?;
    let scene = Scene::of(fleet).await?;
    let (hub, member, plane) = (&scene.hub, scene.member(1), fleet.member(1));
    let bindings = "rolebindings.rbac.authorization.k8s.io";
    let kinds = ["configmaps", bindings, GADGETS];
    admit_tenant(&scene, fleet, &kinds).await?;
    hub.make(&definition(GADGETS, "Gadget")).await?;
    hub.make_soon(&custom("Gadget", TENANT, "one")).await?;
    hub.make(&Draft::config_map(TENANT, "one").data("k", "1").json())
        .await?;
    // The binding has the name of the role, so that an answer about either names both.
    let role = json!({"apiGroup": ORDER[0].0, "kind": "Role", "name": "one"});
    let subject = json!({"kind": "ServiceAccount", "name": "default", "namespace": TENANT});
    let binding = json!({
        "apiVersion": RBAC, "kind": "RoleBinding", "metadata": {"namespace": TENANT, "name": "one"},
        "roleRef": role, "subjects": [subject],
    });
    hub.make(&binding).await?;

    // Each rule needs one object that the member does not have: a namespace, a kind, a role.
    let rules = [
        ("configmaps", "nowhere"),
        (GADGETS, TENANT),
        (bindings, TENANT),
    ];
    for (kind, namespace) in rules {
        let name = kind.split('.').next().unwrap_or_default();
        let rule = RuleDraft::new(TENANT, name)
            .source(json!({"resources": [kind], "names": ["one"]}))
            .everywhere()
            .into(&[namespace]);
        hub.make(&rule.json()).await?;
    }
    let waits = async || {
        let of = async |name: &str| {
            let rule = hub.get(&Id::rule(TENANT, name)).await?;
            Ok::<_, anyhow::Error>((
                entry_of(&rule, "member-1")?.clone(),
                rule["status"]["summary"].clone(),
            ))
        };
        let (entry, summary) = of("configmaps").await?;
        ensure!(summary["copiesWaiting"] == 1, "{entry} {summary}");
        let (entry, _) = of("gadgets").await?;
        ensure!(entry["reason"] == "KindNotServed", "{entry}");
        let (entry, summary) = of("rolebindings").await?;
        let message = entry["message"].as_str().context("no message")?;
        ensure!(
            entry["reason"] == "WaitingForDependency" && message.contains("the role one"),
            "{entry}"
        );
        ensure!(summary["copiesFailed"] == 0, "{summary}");
        Ok(())
    };
    // The hub may not know the kind itself at first.
    eventually("the copies to wait", SOON, async || waits().await.map(Some)).await?;
    hub.wait_ready(&Id::rule(TENANT, "gadgets"), "False", "KindNotServed")
        .await?;
    let mark = plane.mark();
    steadily("the copies wait", WAITS, waits).await?;
    // Without discovery, which is not audited: the agent tries the binding from time to time, and nothing else.
    let requests = plane.writes_since(mark)?;
    let of_copies: Vec<_> = requests
        .iter()
        .filter(|request| request.user.ends_with(":runnel-agent"))
        // Another test of this file writes there meanwhile.
        .filter(|request| request.namespace != HOME)
        .filter(|request| {
            ["configmaps", "gadgets", "rolebindings", "namespaces"]
                .contains(&request.resource.as_str())
        })
        .filter(|request| request.verb != "watch")
        .collect();
    ensure!(
        of_copies.len() <= 8
            && of_copies
                .iter()
                .all(|request| request.resource == "rolebindings"),
        "{of_copies:?}"
    );
    // There are up to 30 s between two tries.
    eventually("another try of the binding", 2 * SOON, async || {
        let is_try = |request: &Write| {
            request.user.ends_with(":runnel-agent")
                && request.namespace == TENANT
                && request.resource == "rolebindings"
                && request.verb != "watch"
        };
        let requests = plane.writes_since(mark)?;
        Ok(requests.iter().any(is_try).then_some(()))
    })
    .await?;

    // Each copy follows its prerequisite.
    scene.member_namespaces(&["nowhere"]).await?;
    bind_account(plane, "nowhere").await?;
    member.make(&definition(GADGETS, "Gadget")).await?;
    let rule = json!({"apiGroups": ["example.org"], "resources": ["gadgets"], "verbs": ["*"]});
    let role = json!({
        "apiVersion": RBAC, "kind": "Role", "metadata": {"namespace": TENANT, "name": "gadgets"}, "rules": [rule],
    });
    member.make(&role).await?;
    let subject = format!("--serviceaccount={ACCOUNTS}:{TENANT}");
    let bound = ["create", "rolebinding", "gadgets", "-n", TENANT];
    plane
        .kubectl(&[&bound[..], &["--role=gadgets", &subject]].concat())
        .await?;
    let role = ["create", "role", "one", "-n", TENANT];
    let reads = ["--verb=get", "--resource=configmaps"];
    plane.kubectl(&[&role[..], &reads[..]].concat()).await?;
    for name in ["configmaps", "gadgets", "rolebindings"] {
        hub.all_written(&Id::rule(TENANT, name), 1).await?;
    }
    Ok(())
}
