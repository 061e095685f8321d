//! Manifests in bundles: each becomes a copy of its own, and nothing takes effect on the hub.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use runnel_tests::audit::Write;
use runnel_tests::binaries;
use runnel_tests::fleet::{Fleet, FleetOptions};
use runnel_tests::scene::{Draft, Id, RuleDraft, SOON, Scene, condition};
use runnel_tests::scratch::Scratch;
use runnel_tests::wait::eventually;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

static FLEET: OnceCell<Fleet> = OnceCell::const_new();

const BUNDLES: &str = "manifestbundles.runnel.dev";
const DEPLOYMENTS: &str = "deployments.apps";
const GADGETS: &str = "gadgets.example.org";
/// A custom kind whose objects have no namespace.
const TIERS: &str = "tiers.example.org";
const CLUSTER_KINDS: [&str; 4] = [
    "namespaces",
    "customresourcedefinitions.apiextensions.k8s.io",
    "clusterroles.rbac.authorization.k8s.io",
    TIERS,
];
const CUSTOM: &str = "objects of custom kinds";
/// The kinds of [`application`], in the order in which they are written.
const ORDER: [&str; 5] = [
    "namespaces",
    "customresourcedefinitions",
    "clusterroles",
    "configmaps",
    CUSTOM,
];

async fn fleet() -> Result<&'static Fleet> {
    let kinds = [
        "configmaps",
        "secrets",
        "services",
        DEPLOYMENTS,
        GADGETS,
        "widgets.example.org",
    ];
    let privileged: Vec<_> = CLUSTER_KINDS.into_iter().chain([DEPLOYMENTS]).collect();
    let policy = json!({
        "kinds": kinds, "clusterKinds": CLUSTER_KINDS, "allowPrivileged": privileged, "deleteNamespaces": true,
    });
    FLEET
        .get_or_try_init(|| {
            Fleet::start(FleetOptions {
                members: 2,
                agent_values: json!({"policy": policy}),
                ..FleetOptions::default()
            })
        })
        .await
}

fn manifest(api_version: &str, kind: &str, name: &str, content: &Value) -> Value {
    let mut manifest = json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name}});
    if let (Value::Object(manifest), Value::Object(content)) = (&mut manifest, content) {
        manifest.extend(content.clone());
    }
    manifest
}

fn settings(text: &str) -> Value {
    manifest("v1", "ConfigMap", "settings", &json!({"data": {"k": text}}))
}

fn service(port: u16) -> Value {
    let spec = json!({"selector": {"app": "web"}, "ports": [{"port": port}]});
    manifest("v1", "Service", "web", &json!({"spec": spec}))
}

fn deployment() -> Value {
    let labels = json!({"app": "web"});
    let spec = json!({
        "replicas": 0, "selector": {"matchLabels": labels},
        "template": {
            "metadata": {"labels": labels}, "spec": {"containers": [{"name": "web", "image": "registry.invalid/web:1"}]},
        },
    });
    manifest("apps/v1", "Deployment", "web", &json!({"spec": spec}))
}

fn cluster_role(name: &str, pod: &str) -> Value {
    let rule =
        json!({"apiGroups": [""], "resources": ["pods"], "resourceNames": [pod], "verbs": ["get"]});
    let content = json!({"rules": [rule]});
    manifest(
        "rbac.authorization.k8s.io/v1",
        "ClusterRole",
        name,
        &content,
    )
}

/// The objects of custom kinds with and without a namespace, a ConfigMap, and the role, definitions and namespace that they
/// need: in reverse of the order in which they are written.
fn application(name: &str, text: &str) -> [Value; 7] {
    let any = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let mut tiers = Draft::definition(TIERS, "Tier", &[("v1", &any)]).json();
    tiers["spec"]["scope"] = json!("Cluster");
    [
        manifest(
            "example.org/v1",
            "Tier",
            name,
            &json!({"spec": {"k": text}}),
        ),
        manifest(
            "example.org/v1",
            "Gadget",
            name,
            &json!({"spec": {"k": text}}),
        ),
        manifest("v1", "ConfigMap", name, &json!({"data": {"k": text}})),
        cluster_role(name, text),
        tiers,
        Draft::definition(GADGETS, "Gadget", &[("v1", &any)]).json(),
        Draft::namespace(name).label("rev", text).json(),
    ]
}

/// The kinds of [`application`] in the order of the agent's first writes, or deletes, of its objects.
fn order_of(writes: &[Write], name: &str, is_delete: bool) -> Vec<String> {
    let is_counted = |write: &&Write| {
        write.user.ends_with(":runnel-agent")
            && (write.verb == "delete") == is_delete
            && [name, GADGETS, TIERS].contains(&write.name.as_str())
            && write.code < 300
            && !write.dry_run
    };
    let mut order: Vec<String> = Vec::new();
    for write in writes.iter().filter(is_counted) {
        let kind = match write.resource.as_str() {
            "gadgets" | "tiers" => CUSTOM,
            other => other,
        };
        if ORDER.contains(&kind) && !order.iter().any(|known| known == kind) {
            order.push(kind.to_owned());
        }
    }
    order
}

fn bundle(namespace: &str, name: &str, manifests: &[Value]) -> Value {
    json!({
        "apiVersion": "runnel.dev/v1alpha1", "kind": "ManifestBundle",
        "metadata": {"namespace": namespace, "name": name}, "spec": {"manifests": manifests},
    })
}

/// The object that a manifest is in a namespace.
fn within(manifest: &Value, namespace: &str) -> Result<Id> {
    let mut object = manifest.clone();
    object["metadata"]["namespace"] = json!(namespace);
    Id::of(&object)
}

/// Namespaces in all clusters, and a rule of the whole cluster that selects every bundle of it.
async fn prepared(scene: &Scene, namespace: &str, change: &Value) -> Result<Id> {
    scene.hub_namespaces(&[namespace]).await?;
    scene.member_namespaces(&[namespace]).await?;
    let entry = json!({"resources": [BUNDLES], "names": ["*"], "namespaces": [namespace]});
    let draft = RuleDraft::cluster_scoped(namespace)
        .source(entry)
        .everywhere();
    let draft = change
        .as_object()
        .into_iter()
        .flatten()
        .fold(draft, |draft, (field, value)| {
            draft.with(field, value.clone())
        });
    scene.hub.make(&draft.json()).await?;
    Ok(Id::cluster_rule(namespace))
}

#[tokio::test]
async fn manifests_are_delivered_edited_and_removed() -> Result<()> {
    let scene = Scene::of(fleet().await?).await?;
    let home = "delivered";
    let rule = prepared(&scene, home, &json!({})).await?;
    let all = [deployment(), service(80), settings("one")];
    scene.hub.make(&bundle(home, "web", &all)).await?;
    let status = scene.hub.all_written(&rule, 6).await?;
    ensure!(
        status["status"]["summary"]["sources"] == 3,
        "{}",
        status["status"]
    );
    let ids = [
        within(&all[0], home)?,
        within(&all[1], home)?,
        within(&all[2], home)?,
    ];
    scene
        .has_everywhere(
            &ids[0],
            "/spec/template/spec/containers/0/name",
            &json!("web"),
        )
        .await?;
    let source = "/metadata/annotations/runnel.dev~1source";
    let named = json!(format!("deployments.apps/{home}/web"));
    scene.has_everywhere(&ids[0], source, &named).await?;
    for id in &ids {
        ensure!(scene.hub.find(id).await?.is_none(), "{id} is on the hub");
    }

    // An edit of one manifest leaves the copies of the others alone.
    let untouched = scene.member(1).get(&ids[0]).await?;
    let web = Id::of(&bundle(home, "web", &all))?;
    let edited = json!([deployment(), service(8080), settings("two")]);
    scene
        .hub
        .change(&web, json!({"spec": {"manifests": edited}}))
        .await?;
    scene
        .has_everywhere(&ids[1], "/spec/ports/0/port", &json!(8080))
        .await?;
    scene
        .has_everywhere(&ids[2], "/data/k", &json!("two"))
        .await?;
    scene.member(1).is_untouched(&untouched).await?;

    // Drift of a copy is corrected.
    scene
        .member(1)
        .change(&ids[1], json!({"spec": {"selector": {"app": "other"}}}))
        .await?;
    scene
        .has_everywhere(&ids[1], "/spec/selector/app", &json!("web"))
        .await?;

    // A manifest leaves the bundle, and then the bundle goes.
    let left = json!([deployment(), settings("two")]);
    scene
        .hub
        .change(&web, json!({"spec": {"manifests": left}}))
        .await?;
    for member in &scene.members {
        member.lacks(&ids[1]).await?;
    }
    scene.hub.all_written(&rule, 4).await?;
    scene.hub.delete(&web).await?;
    for member in &scene.members {
        member.lacks(&ids[0]).await?;
        member.lacks(&ids[2]).await?;
    }
    Ok(())
}

#[tokio::test]
async fn wrong_manifests_are_named_and_remove_nothing() -> Result<()> {
    let scene = Scene::of(fleet().await?).await?;
    let home = "wrong";
    let rule = prepared(&scene, home, &json!({})).await?;
    let good = [service(80), settings("one")];
    scene.hub.make(&bundle(home, "web", &good)).await?;
    scene.hub.all_applied(&rule, 4).await?;
    let web = Id::of(&bundle(home, "web", &good))?;
    let [service, map] = [within(&good[0], home)?, within(&good[1], home)?];
    let place = format!("spec.manifests[1] of {BUNDLES}/{home}/web");
    let secret = manifest(
        "v1",
        "Secret",
        "s",
        &json!({"stringData": {"k": "hunter2"}}),
    );
    let lost = manifest("example.org/v1", "Lost", "l", &json!({}));
    let lease = manifest("coordination.k8s.io/v1", "Lease", "l", &json!({}));
    for (wrong, words) in [
        (secret, "distribute the Secret itself"),
        (lost, "does not serve example.org/v1 Lost"),
        (lease, "every cluster makes"),
    ] {
        let manifests = json!([settings("two"), wrong, good[0]]);
        scene
            .hub
            .change(&web, json!({"spec": {"manifests": manifests}}))
            .await?;
        let status = scene
            .hub
            .wait_refused(&rule, "InvalidCopy", &[&place, words])
            .await?;
        ensure!(
            !status.to_string().contains("hunter2"),
            "a value of a Secret is in the status"
        );
    }
    scene.has_everywhere(&map, "/data/k", &json!("two")).await?;
    let manifests = json!([
        settings("two"),
        manifest("example.org/v1", "Lost", "l", &json!({}))
    ]);
    scene
        .hub
        .change(&web, json!({"spec": {"manifests": manifests}}))
        .await?;
    scene
        .hub
        .wait_refused(&rule, "InvalidCopy", &["does not serve"])
        .await?;
    for member in &scene.members {
        member.get(&service).await.context("it is gone")?;
    }
    scene
        .hub
        .change(&web, json!({"spec": {"manifests": [settings("two")]}}))
        .await?;
    for member in &scene.members {
        member.lacks(&service).await?;
    }
    scene.hub.all_applied(&rule, 2).await?;

    // The same object in two bundles is sent by neither, and stays as it is.
    scene
        .hub
        .make(&bundle(home, "other", &[settings("other")]))
        .await?;
    scene
        .hub
        .wait_refused(&rule, "AmbiguousSource", &["/web", "/other"])
        .await?;
    scene.has_everywhere(&map, "/data/k", &json!("two")).await?;
    scene.hub.delete(&web).await?;
    scene
        .has_everywhere(&map, "/data/k", &json!("other"))
        .await?;
    Ok(())
}

#[tokio::test]
async fn objects_of_the_cluster_are_written_first_and_removed_last() -> Result<()> {
    let fleet = fleet().await?;
    let scene = Scene::of(fleet).await?;
    let home = "landing";
    // The bundle brings the namespace of the members.
    scene.hub_namespaces(&[home]).await?;
    let mut app = bundle(home, "app", &application(home, "one"));
    app["spec"]["kinds"] = json!([
        {"apiVersion": "example.org/v1", "kind": "Gadget", "plural": "gadgets"},
        {"apiVersion": "example.org/v1", "kind": "Tier", "plural": "tiers", "scope": "Cluster"},
    ]);
    let marks = [1, 2].map(|number| fleet.member(number).mark());
    scene.hub.make(&app).await?;
    let entry = json!({"resources": [BUNDLES], "names": ["app"], "namespaces": [home]});
    let draft = RuleDraft::cluster_scoped(home).source(entry).everywhere();
    scene.hub.make(&draft.json()).await?;
    let rule = Id::cluster_rule(home);
    let status = scene.hub.all_applied(&rule, 14).await?;
    ensure!(
        status["status"]["summary"]["sources"] == 7,
        "{}",
        status["status"]
    );
    for (number, mark) in (1..).zip(marks) {
        let written = order_of(&fleet.member(number).writes_since(mark)?, home, false);
        ensure!(written == ORDER, "written as {written:?}");
    }
    let [tier, gadget, map, role, tiers, gadgets, space] = application(home, "one");
    let ids = [
        Id::of(&tier)?,
        within(&gadget, home)?,
        within(&map, home)?,
        Id::of(&role)?,
        Id::of(&tiers)?,
        Id::of(&gadgets)?,
        Id::of(&space)?,
    ];
    let source = "/metadata/annotations/runnel.dev~1source";
    let named = json!(format!("clusterroles.rbac.authorization.k8s.io/{home}"));
    scene.has_everywhere(&ids[3], source, &named).await?;
    for id in &ids[2..6] {
        ensure!(scene.hub.find(id).await?.is_none(), "{id} is on the hub");
    }

    let edited = json!({"spec": {"manifests": application(home, "two")}});
    scene.hub.change(&Id::of(&app)?, edited).await?;
    let [tier, gadget, map, role, _, _, space] = &ids;
    for (id, path) in [
        (tier, "/spec/k"),
        (gadget, "/spec/k"),
        (map, "/data/k"),
        (role, "/rules/0/resourceNames/0"),
        (space, "/metadata/labels/rev"),
    ] {
        scene.has_everywhere(id, path, &json!("two")).await?;
    }
    // The guard of namespaces and definitions counts what is in them, and nothing else keeps them.
    let marks = [1, 2].map(|number| fleet.member(number).mark());
    scene.hub.delete(&rule).await?;
    scene.hub.lacks(&rule).await?;
    for (number, mark) in (1..).zip(marks) {
        for id in &ids[2..] {
            scene.member(number).lacks(id).await?;
        }
        let mut removed = order_of(&fleet.member(number).writes_since(mark)?, home, true);
        removed.reverse();
        ensure!(removed == ORDER, "removed in reverse as {removed:?}");
    }
    Ok(())
}

#[tokio::test]
async fn rule_of_a_namespace_sends_no_manifest_without_one() -> Result<()> {
    let scene = Scene::of(fleet().await?).await?;
    let home = "narrow";
    scene.hub_namespaces(&[home]).await?;
    let space = Draft::namespace(home).json();
    let role = cluster_role(home, "p");
    let all = [settings("one"), space.clone(), role.clone()];
    scene.hub.make(&bundle(home, "app", &all)).await?;
    let entry = json!({"resources": [BUNDLES], "names": ["app"]});
    let draft = RuleDraft::new(home, "app").source(entry).everywhere();
    scene.hub.make(&draft.json()).await?;
    let rule = Id::rule(home, "app");
    let place = format!("spec.manifests[2] of {BUNDLES}/{home}/app (ClusterRole {home})");
    let words = [&*place, "select the bundle by a ClusterDistributionRule"];
    scene.hub.wait_refused(&rule, "InvalidCopy", &words).await?;
    // The agents have the rule: its other manifest waits for its namespace.
    scene
        .hub
        .sees("waiting copies", &rule, |object| {
            let summary = &object["status"]["summary"];
            ensure!(summary["copiesWaiting"] == 2, "{summary}");
            Ok(())
        })
        .await?;
    for member in &scene.members {
        for object in [&space, &role] {
            let found = member.find(&Id::of(object)?).await?;
            ensure!(found.is_none(), "{found:?}");
        }
    }
    // A rule of the whole cluster sends them all.
    scene.hub.delete(&rule).await?;
    scene.hub.lacks(&rule).await?;
    let entry = json!({"resources": [BUNDLES], "names": ["app"], "namespaces": [home]});
    let draft = RuleDraft::cluster_scoped(home).source(entry).everywhere();
    scene.hub.make(&draft.json()).await?;
    scene.hub.all_applied(&Id::cluster_rule(home), 6).await?;
    Ok(())
}

#[tokio::test]
async fn kind_of_members_alone_is_named_in_the_bundle() -> Result<()> {
    let scene = Scene::of(fleet().await?).await?;
    let home = "foreign";
    let shape = json!({
        "transform": {"labels": {"add": {"shaped": "yes"}}, "name": "${bundle.name}-${source.name}"},
        "substitute": {"fields": ["/spec/cluster"]},
    });
    let rule = prepared(&scene, home, &shape).await?;
    let any = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    for member in &scene.members {
        let definition = Draft::definition("widgets.example.org", "Widget", &[("v1", &any)]);
        member.make(&definition.json()).await?;
    }
    let widget = manifest(
        "example.org/v1",
        "Widget",
        "w",
        &json!({"spec": {"cluster": "${cluster.name}"}}),
    );
    let mut object = bundle(home, "app", &[widget]);
    object["spec"]["kinds"] =
        json!([{"apiVersion": "example.org/v1", "kind": "Widget", "plural": "widgets"}]);
    scene.hub.make(&object).await?;
    scene.hub.all_applied(&rule, 2).await?;
    let copy = manifest("example.org/v1", "Widget", "app-w", &json!({}));
    let id = within(&copy, home)?;
    for member in &scene.members {
        let copy = member.get(&id).await?;
        ensure!(copy["spec"]["cluster"] == member.name(), "{copy}");
        ensure!(copy["metadata"]["labels"]["shaped"] == "yes", "{copy}");
    }
    Ok(())
}

#[tokio::test]
async fn grant_is_for_the_kind_of_the_manifest() -> Result<()> {
    let scene = Scene::of(fleet().await?).await?;
    let home = "granted";
    scene.hub_namespaces(&[home]).await?;
    scene.member_namespaces(&[home]).await?;
    scene
        .hub
        .make(&bundle(home, "web", &[service(80), settings("one")]))
        .await?;
    let entry = json!({"resources": [BUNDLES], "names": ["web"]});
    let draft = RuleDraft::new(home, "web").source(entry).everywhere();
    scene.hub.make(&draft.json()).await?;
    let rule = Id::rule(home, "web");
    // The grant that the hub makes is for ConfigMaps and Secrets.
    scene
        .has_everywhere(&within(&settings(""), home)?, "/data/k", &json!("one"))
        .await?;
    scene
        .hub
        .sees("services not granted", &rule, |object| {
            let granted = condition(object, "Granted")?;
            let message = granted["message"].as_str().unwrap_or_default();
            let is_right = granted["status"] == "False" && message.contains("services");
            ensure!(
                is_right && !message.contains("manifestbundles"),
                "{granted}"
            );
            Ok(())
        })
        .await?;
    let grant = json!({
        "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionGrant", "metadata": {"name": "services-of-granted"},
        "spec": {
            "rules": {"namespaces": {"names": [home]}}, "resources": ["services"], "clusters": {"all": true},
            "namespaces": {"names": [home]},
        },
    });
    scene.hub.make(&grant).await?;
    scene.hub.all_applied(&rule, 4).await?;
    Ok(())
}

#[tokio::test]
async fn author_of_a_bundle_may_create_what_carries_rights() -> Result<()> {
    let (fleet, home) = (fleet().await?, "authors");
    let scene = Scene::of(fleet).await?;
    scene.hub_namespaces(&[home]).await?;
    let hub = fleet.hub();
    let role = [
        "create",
        "role",
        "bundles",
        "-n",
        home,
        "--verb=create",
        "--resource=manifestbundles.runnel.dev",
    ];
    hub.kubectl(&role).await?;
    hub.kubectl(&[
        "create",
        "rolebinding",
        "bundles",
        "-n",
        home,
        "--role=bundles",
        "--user=jane",
    ])
    .await?;
    let create = ["create", "--as=jane", "-f", "-"];
    // Rights take effect a moment after they were made.
    let create_soon = async |object: &Value| {
        eventually("the right of jane", SOON, async || {
            let made = hub.kubectl_stdin(&create, &object.to_string()).await;
            made.map(Some)
        })
        .await
    };
    let harmless = bundle(home, "harmless", &[service(80), settings("one")]);
    create_soon(&harmless).await?;
    let account = manifest("v1", "ServiceAccount", "a", &json!({}));
    let two = bundle(home, "two", &[settings("one"), account, deployment()]);
    let refused = hub.kubectl_stdin(&create, &two.to_string()).await.err();
    let refused = format!("{:#}", refused.context("jane may create it")?);
    ensure!(
        refused.contains("jane may not create")
            && refused.contains(&format!("in the namespace {home}")),
        "{refused}"
    );
    let role = [
        "create",
        "role",
        "objects",
        "-n",
        home,
        "--verb=create",
        "--resource=clusterroles.rbac.authorization.k8s.io,deployments.apps,serviceaccounts",
    ];
    hub.kubectl(&role).await?;
    hub.kubectl(&[
        "create",
        "rolebinding",
        "objects",
        "-n",
        home,
        "--role=objects",
        "--user=jane",
    ])
    .await?;
    create_soon(&two).await?;

    // What belongs to the cluster needs a right in the whole cluster.
    let priority = manifest(
        "scheduling.k8s.io/v1",
        "PriorityClass",
        "p",
        &json!({"value": 1}),
    );
    let tier = manifest("example.org/v1", "Tier", "t", &json!({}));
    let mut tiers = bundle(home, "tiers", &[tier]);
    tiers["spec"]["kinds"] = json!([
        {"apiVersion": "example.org/v1", "kind": "Tier", "plural": "tiers", "scope": "Cluster"},
    ]);
    let all = [
        bundle(home, "roles", &[cluster_role("r", "p")]),
        bundle(home, "priorities", &[priority]),
        tiers,
    ];
    for object in &all {
        let refused = hub.kubectl_stdin(&create, &object.to_string()).await.err();
        let refused = format!("{:#}", refused.context("jane may create it")?);
        ensure!(
            refused.contains("which jane may not create in the whole cluster"),
            "{refused}"
        );
    }
    let of = |group: &str, plural: &str| json!({"apiGroups": [group], "resources": [plural], "verbs": ["create"]});
    let rules = json!([
        of("rbac.authorization.k8s.io", "clusterroles"),
        of("scheduling.k8s.io", "priorityclasses"),
        of("example.org", "tiers"),
    ]);
    let role = manifest(
        "rbac.authorization.k8s.io/v1",
        "ClusterRole",
        "authors",
        &json!({"rules": rules}),
    );
    scene.hub.make(&role).await?;
    hub.kubectl(&[
        "create",
        "clusterrolebinding",
        "authors",
        "--clusterrole=authors",
        "--user=jane",
    ])
    .await?;
    for object in &all {
        create_soon(object).await?;
    }
    Ok(())
}

#[tokio::test]
async fn plugin_makes_bundles_for_kubectl_apply() -> Result<()> {
    let (fleet, home) = (fleet().await?, "made");
    let scene = Scene::of(fleet).await?;
    let rule = prepared(&scene, home, &json!({})).await?;
    let folder = Scratch::new("bundles")?;
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [service(80), settings("one")]});
    let mut web = deployment();
    web["metadata"]["namespace"] = json!("elsewhere");
    web["status"] = json!({"replicas": 3});
    fs::write(
        folder.path().join("all.yaml"),
        format!("{list}\n---\n{web}\n"),
    )?;
    let binaries = tokio::task::spawn_blocking(binaries::build).await??;
    let mut plugin = Command::new(binaries.folder.join("kubectl-runnel"));
    plugin
        .args(["bundle", "--name", "web", "-n", home, "-f"])
        .arg(folder.path());
    let made = tokio::task::spawn_blocking(move || plugin.output()).await??;
    let (text, notes) = (
        String::from_utf8(made.stdout)?,
        String::from_utf8_lossy(&made.stderr),
    );
    ensure!(
        made.status.success() && notes.contains("elsewhere is left out"),
        "{notes}"
    );
    let hub = fleet.hub();
    hub.kubectl_stdin(&["apply", "-f", "-"], &text).await?;
    scene.hub.all_written(&rule, 6).await?;
    let again = ["apply", "--server-side", "--force-conflicts", "-f", "-"];
    hub.kubectl_stdin(&again, &text.replace("one", "two"))
        .await?;
    scene
        .has_everywhere(&within(&settings(""), home)?, "/data/k", &json!("two"))
        .await?;
    scene.hub.all_written(&rule, 6).await?;
    Ok(())
}
