//! Grants on real API servers: the whole set of copies of many rules, under changing grants; and
//! who may write rules.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use runnel_hub::ca::IDENTITY_SECRET;
use runnel_tests::fleet::{Fleet, FleetOptions, NAMESPACE};
use runnel_tests::scene::{Draft, Id, MANAGED_BY, SOON, Scene, condition};
use runnel_tests::wait::{eventually, steadily};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use super::oracle::{Choice, Grant, LABEL, Rule, Thing};

static FLEET: OnceCell<Fleet> = OnceCell::const_new();

async fn fleet() -> Result<&'static Fleet> {
    FLEET
        .get_or_try_init(|| {
            Fleet::start(FleetOptions {
                members: 2,
                ..FleetOptions::default()
            })
        })
        .await
}

const BOTH: &[&str] = &["configmaps", "secrets"];
const HOMES: [Thing; 2] = [thing("grant-a", true), thing("grant-b", false)];
const TARGETS: [Thing; 3] = [
    thing("to-1", true),
    thing("to-2", false),
    thing("to-3", false),
];
const CLUSTERS: [Thing; 2] = [thing("member-1", true), thing("member-2", false)];

const fn thing(name: &'static str, labeled: bool) -> Thing {
    Thing {
        name,
        labeled,
        exists: true,
    }
}

const WIDE: Grant = Grant {
    rules: Choice::All,
    kinds: BOTH,
    clusters: Choice::All,
    namespaces: Choice::All,
    creates: true,
};

/// The rules: each selects its own ConfigMap and Secret.
fn rules() -> Vec<Rule> {
    let mut rules = vec![];
    for home in HOMES {
        for namespaces in [
            Choice::Names(&["to-1", "to-2"]),
            Choice::Label,
            Choice::Names(&["to-*"]),
        ] {
            let clusters = Choice::All;
            rules.push(Rule {
                cluster_scoped: false,
                home,
                kinds: BOTH,
                clusters,
                namespaces: Some(namespaces),
                creates: false,
            });
        }
    }
    rules.push(Rule {
        cluster_scoped: true,
        ..rules[0]
    });
    rules
}

/// The grants, one set after the other.
fn phases() -> Vec<Vec<Grant>> {
    let of_a = Grant {
        rules: Choice::Names(&["grant-a"]),
        ..WIDE
    };
    let of_b = Grant {
        rules: Choice::Names(&["grant-b"]),
        kinds: &["configmaps"],
        ..WIDE
    };
    vec![
        vec![WIDE],
        vec![
            Grant {
                namespaces: Choice::Names(&["to-1", "to-3"]),
                ..of_a
            },
            of_b,
        ],
        vec![Grant {
            namespaces: Choice::Label,
            clusters: Choice::Label,
            ..WIDE
        }],
        vec![Grant {
            rules: Choice::Label,
            kinds: &["secrets"],
            clusters: Choice::Names(&["member-2"]),
            ..WIDE
        }],
        vec![],
        vec![
            of_a,
            Grant {
                namespaces: Choice::Names(&["to-2"]),
                ..of_b
            },
        ],
    ]
}

fn name(number: usize) -> String {
    format!("grant-{number}")
}

/// A label on an object, if the oracle has it.
fn labeled(draft: Draft, thing: Thing) -> Value {
    if thing.labeled {
        draft.label(LABEL.0, LABEL.1).json()
    } else {
        draft.json()
    }
}

async fn make(scene: &Scene) -> Result<()> {
    scene.lift_fleet_limits().await?;
    for home in HOMES {
        scene
            .hub
            .make(&labeled(Draft::namespace(home.name), home))
            .await?;
    }
    for (member, cluster) in scene.members.iter().zip(CLUSTERS) {
        for target in TARGETS {
            member
                .make(&labeled(Draft::namespace(target.name), target))
                .await?;
        }
        let label = cluster.labeled.then_some(LABEL.1);
        scene
            .hub
            .change(
                &Id::member(cluster.name),
                json!({"metadata": {"labels": {LABEL.0: label}}}),
            )
            .await?;
    }
    for (number, rule) in rules().into_iter().enumerate() {
        let item = format!("item-{number}");
        scene
            .hub
            .make(
                &Draft::config_map(rule.home.name, &item)
                    .data("k", "v")
                    .json(),
            )
            .await?;
        scene
            .hub
            .make(&Draft::secret(rule.home.name, &item).data("k", "v").json())
            .await?;
        let mut manifest = rule.manifest(&name(number));
        manifest["spec"]["sources"][0]["names"] = json!([item]);
        // Removals by a narrower grant are immediate, whatever their number.
        manifest["spec"]["removalLimit"] = json!({"count": 100});
        scene.hub.make(&manifest).await?;
    }
    Ok(())
}

/// The grants are these and no others.
async fn grant(scene: &Scene, grants: &[Grant], phase: usize) -> Result<()> {
    let id = |number: usize| json!({"apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionGrant", "metadata": {"name": format!("phase-{phase}-{number}")}});
    let like = Id::of(&id(0))?;
    let before = scene.hub.list(&like).await?;
    // The new grants first: copies that stay granted must not be removed in between.
    for (number, grant) in grants.iter().enumerate() {
        let mut object = id(number);
        object["spec"] = grant.spec();
        scene.hub.make(&object).await?;
    }
    for former in before {
        scene.hub.delete(&Id::of(&former)?).await?;
    }
    Ok(())
}

/// Every copy in the targets of every member.
async fn copies(scene: &Scene) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for (member, cluster) in scene.members.iter().zip(CLUSTERS) {
        for target in TARGETS {
            for (kind, like) in [
                ("configmaps", Id::config_map(target.name, "")),
                ("secrets", Id::secret(target.name, "")),
            ] {
                for object in member.list(&like).await? {
                    if object["metadata"]["labels"][MANAGED_BY] == "runnel" {
                        let item = object["metadata"]["name"].as_str().unwrap_or_default();
                        found.insert(format!("{} {kind}/{}/{item}", cluster.name, target.name));
                    }
                }
            }
        }
    }
    Ok(found)
}

/// The expected copies, and the number of checked combinations.
fn expected(grants: &[Grant]) -> (BTreeSet<String>, usize) {
    let (mut expected, mut cases) = (BTreeSet::new(), 0);
    for (number, rule) in rules().into_iter().enumerate() {
        for (kind, cluster) in BOTH
            .iter()
            .flat_map(|kind| CLUSTERS.map(|cluster| (*kind, cluster)))
        {
            for target in TARGETS {
                cases += 1;
                let granted = rule.is_granted(grants, kind, cluster, target, |_| true);
                if rule.wants(kind, cluster, target) && granted {
                    expected.insert(format!(
                        "{} {kind}/{}/item-{number}",
                        cluster.name, target.name
                    ));
                }
            }
        }
    }
    (expected, cases)
}

#[tokio::test]
async fn copies_are_where_requested_and_granted() -> Result<()> {
    let scene = Scene::of(fleet().await?).await?;
    let everything = json!({"apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionGrant", "metadata": {"name": "everything"}});
    let first = scene
        .hub
        .get(&Id::of(&everything)?)
        .await
        .context("a hub begins with the grant everything")?;
    ensure!(
        first["spec"]["rules"]["namespaces"]["all"] == true,
        "{first}"
    );
    make(&scene).await?;
    let mut cases = 0;
    for (phase, grants) in phases().iter().enumerate() {
        grant(&scene, grants, phase).await?;
        let (wanted, checked) = expected(grants);
        cases += checked;
        let compare = async || {
            let found = copies(&scene).await?;
            let missing: Vec<_> = wanted.difference(&found).take(5).collect();
            let surplus: Vec<_> = found.difference(&wanted).take(5).collect();
            ensure!(
                missing.is_empty() && surplus.is_empty(),
                "phase {phase}: missing {missing:?}, surplus {surplus:?}"
            );
            Ok(())
        };
        eventually(
            "the copies that are granted, and no others",
            SOON,
            async || compare().await.map(Some),
        )
        .await?;
        steadily("and they stay", std::time::Duration::from_secs(2), compare).await?;
        let observed = |number: usize, rule: &Rule| {
            if rule.cluster_scoped {
                Id::cluster_rule(&name(number))
            } else {
                Id::rule(rule.home.name, &name(number))
            }
        };
        for (number, rule) in rules().iter().enumerate() {
            let wide = rule.cluster_scoped || phase == 0;
            scene
                .hub
                .sees("told what is granted", &observed(number, rule), |object| {
                    let known = condition(object, "Granted");
                    match (wide, grants.is_empty()) {
                        (true, _) => ensure!(known.is_err(), "{known:?}"),
                        (false, true) => {
                            ensure!(known?["reason"] == "NotGranted", "{}", object["status"])
                        }
                        (false, false) => {}
                    }
                    Ok(())
                })
                .await?;
        }
    }
    println!("{cases} cases");
    ensure!(cases >= 50, "{cases}");
    // Neither a restart nor an empty list restores the first grant, nor does an identity with
    // restored data only.
    grant(&scene, &[], 99).await?;
    let fleet = fleet().await?;
    fleet.kill_hub()?;
    let identity = scene
        .hub
        .get(&Id::secret(NAMESPACE, IDENTITY_SECRET))
        .await?;
    scene.hub.delete(&Id::of(&identity)?).await?;
    let restored = Draft::secret(NAMESPACE, IDENTITY_SECRET).with("type", identity["type"].clone());
    scene
        .hub
        .make(&restored.with("data", identity["data"].clone()).json())
        .await?;
    fleet.start_hub().await?;
    fleet.connected(1).await?;
    ensure!(
        scene.hub.find(&Id::of(&everything)?).await?.is_none(),
        "the first grant came back"
    );
    Ok(())
}

/// Asks the hub's API server as another user.
async fn as_person(
    person: &str,
    command: &[&str],
    input: &Value,
) -> Result<Result<String, String>> {
    let arguments: Vec<_> = ["--as", person]
        .into_iter()
        .chain(command.iter().copied())
        .collect();
    let output = fleet()
        .await?
        .hub()
        .kubectl_stdin(&arguments, &input.to_string())
        .await;
    Ok(output.map_err(|error| format!("{error:#}")))
}

fn role(
    namespace: &str,
    name: &str,
    verbs: &[&str],
    group: &str,
    resources: &[&str],
    people: &[&str],
) -> [Value; 2] {
    let metadata = json!({"name": name, "namespace": namespace});
    let subjects: Vec<_> = people
        .iter()
        .map(|person| json!({"kind": "User", "name": person, "apiGroup": "rbac.authorization.k8s.io"}))
        .collect();
    [
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": metadata,
            "rules": [{"apiGroups": [group], "resources": resources, "verbs": verbs}]}),
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": metadata,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}, "subjects": subjects}),
    ]
}

#[tokio::test]
async fn shaped_rule_makes_nothing_its_author_may_not_create() -> Result<()> {
    let scene = Scene::of(fleet().await?).await?;
    scene.hub_namespaces(&["shapers"]).await?;
    let (people, verbs) = (["max", "zoe"], ["create", "get", "patch", "update"]);
    let all = [
        role(
            "shapers",
            "shapes-rules",
            &verbs,
            "runnel.dev",
            &["distributionrules"],
            &people,
        ),
        role(
            "shapers",
            "creates-apps",
            &["create"],
            "apps",
            &["deployments"],
            &["zoe"],
        ),
        role(
            "shapers",
            "creates-pods",
            &["create"],
            "",
            &["pods"],
            &["zoe"],
        ),
        // The last one: when max may select Deployments, all of these are in force.
        role("shapers", "gets-everything", &["get"], "*", &["*"], &people),
    ];
    for object in all.iter().flatten() {
        scene.hub.make(object).await?;
    }
    let rule = |kinds: &[&str], shape: Value| {
        let mut spec = json!({"sources": [{"resources": kinds, "names": ["none"]}], "clusters": {"all": true}});
        if let (Some(spec), Value::Object(shape)) = (spec.as_object_mut(), shape) {
            spec.extend(shape);
        }
        json!({"apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionRule",
            "metadata": {"name": "shaped", "namespace": "shapers"}, "spec": spec})
    };
    let dry = ["create", "--dry-run=server", "-f", "-"];
    let (apps, bundles) = (
        ["deployments.apps", "configmaps"],
        ["manifestbundles.runnel.dev"],
    );
    eventually("max to select Deployments", SOON, async || {
        let allowed = as_person("max", &dry, &rule(&apps, json!({}))).await?;
        allowed.map_err(anyhow::Error::msg).map(Some)
    })
    .await?;
    let chosen = json!({"all": true});
    let patch = |patch: Value| {
        let mut entry = json!({"clusters": chosen});
        if let (Some(entry), Value::Object(patch)) = (entry.as_object_mut(), patch) {
            entry.extend(patch);
        }
        json!({"overrides": [entry]})
    };
    let step = json!([{"op": "remove", "path": "/spec/replicas"}]);
    for shape in [
        patch(json!({"mergePatch": {"spec": {"replicas": 3}}})),
        patch(json!({"jsonPatch": step})),
        json!({"transform": {"removeFields": ["/spec/replicas"]}}),
        json!({"transform": {"name": "other"}}),
        json!({"substitute": {"fields": ["/spec"]}}),
    ] {
        let refused = as_person("max", &dry, &rule(&apps, shape.clone()))
            .await?
            .err();
        let refused = refused.with_context(|| format!("max may shape Deployments by {shape}"))?;
        let words = "deployments.apps, which max may not create in the namespace shapers";
        ensure!(refused.contains(words), "{shape}: {refused}");
        let allowed = as_person("zoe", &dry, &rule(&apps, shape.clone())).await?;
        allowed.map_err(anyhow::Error::msg)?;
        // A bundle may have manifests of any kind.
        let refused = as_person("zoe", &dry, &rule(&bundles, shape.clone()))
            .await?
            .err();
        let refused = refused.with_context(|| format!("zoe may shape bundles by {shape}"))?;
        let words = "roles.rbac.authorization.k8s.io, which zoe may not create";
        ensure!(refused.contains(words), "{shape}: {refused}");
    }
    // A former state may have any content.
    let mut reverted = rule(&["configmaps"], json!({}));
    reverted["metadata"]["annotations"] = json!({"runnel.dev/revert-to": "0123456789abcdef"});
    for person in ["max", "zoe"] {
        let refused = as_person(person, &dry, &reverted).await?.err();
        let refused = refused.with_context(|| format!("{person} may revert rules"))?;
        let right = if person == "max" {
            "pods"
        } else {
            "roles.rbac.authorization.k8s.io"
        };
        let words = format!(
            "runnel.dev/revert-to, or spec.sources, may send {right}, which {person} may not create"
        );
        ensure!(refused.contains(&words), "{refused}");
    }
    reverted["metadata"]["annotations"] = json!({"runnel.dev/revert-to": ""});
    let allowed = as_person("max", &dry, &reverted).await?;
    allowed.map_err(anyhow::Error::msg)?;
    // Other kinds, and other changes of copies, need no more than before.
    for (kinds, shape) in [
        (
            &["configmaps", "services"][..],
            json!({"transform": {"name": "other"}}),
        ),
        (&apps, json!({"transform": {"labels": {"add": {"a": "b"}}}})),
        (&bundles, patch(json!({"data": {"key": "value"}}))),
    ] {
        let allowed = as_person("max", &dry, &rule(kinds, shape)).await?;
        allowed.map_err(anyhow::Error::msg)?;
    }
    Ok(())
}

#[tokio::test]
async fn rule_reads_nothing_its_author_may_not_read() -> Result<()> {
    let scene = Scene::of(fleet().await?).await?;
    scene.hub_namespaces(&["authors"]).await?;
    let verbs = [
        "create", "delete", "get", "list", "patch", "update", "watch",
    ];
    let all = [
        role(
            "authors",
            "writes-rules",
            &verbs,
            "runnel.dev",
            &["distributionrules"],
            &["ann", "eve", "kim"],
        ),
        role("authors", "gets-all", &["get"], "*", &["*"], &["kim"]),
        role(
            "authors",
            "gets-policies",
            &["get"],
            "networking.k8s.io",
            &["networkpolicies"],
            &["ann"],
        ),
        role(
            "authors",
            "gets-secrets",
            &["get"],
            "",
            &["secrets"],
            &["ann"],
        ),
        // The last one: when eve is refused for Secrets only, all of these are in force.
        role(
            "authors",
            "gets-maps",
            &["get"],
            "",
            &["configmaps"],
            &["ann", "eve"],
        ),
    ];
    for object in all.iter().flatten() {
        scene.hub.make(object).await?;
    }
    let rule = |name: &str, kinds: &[&str]| {
        json!({"apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionRule",
            "metadata": {"name": name, "namespace": "authors"},
            "spec": {"sources": [{"resources": kinds, "names": ["none"]}], "clusters": {"all": true}}})
    };
    let create = ["create", "-f", "-"];
    // The policy is in force a moment after it was made.
    eventually("eve to be refused", SOON, async || {
        let dry = ["create", "--dry-run=server", "-f", "-"];
        let output = as_person("eve", &dry, &rule("eves", &["configmaps", "secrets"])).await?;
        let output = output.err().context("eve may write a rule for secrets")?;
        let whole = "secrets, which eve may not get in the namespace authors";
        ensure!(output.contains(whole), "{output}");
        Ok(Some(()))
    })
    .await?;
    as_person("eve", &create, &rule("eves", &["configmaps"]))
        .await?
        .map_err(anyhow::Error::msg)?;
    as_person("ann", &create, &rule("anns", &["configmaps", "secrets"]))
        .await?
        .map_err(anyhow::Error::msg)?;
    // Every kind is checked, by its group.
    let dry = ["create", "--dry-run=server", "-f", "-"];
    let policies = rule("nets", &["configmaps", "networkpolicies.networking.k8s.io"]);
    as_person("ann", &dry, &policies)
        .await?
        .map_err(anyhow::Error::msg)?;
    let output = as_person("eve", &dry, &policies).await?;
    let output = output.err().context("eve may select NetworkPolicies")?;
    let whole = "networkpolicies.networking.k8s.io, which eve may not get in the namespace authors";
    ensure!(output.contains(whole), "{output}");
    // The API server bounds the cost of a policy, so that the number of kinds is limited.
    let many: Vec<String> = (0..25).map(|n| format!("kind{n}s.example.org")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let of = |kinds: &[&str]| {
        let (first, rest) = kinds.split_at(kinds.len().min(12));
        let mut rule = rule("many", first);
        let entries = rest.chunks(16).chain([first]);
        let entries: Vec<_> = entries
            .map(|kinds| json!({"resources": kinds, "names": ["none"]}))
            .collect();
        rule["spec"]["sources"] = json!(entries);
        rule
    };
    as_person("kim", &dry, &of(&many[..24]))
        .await?
        .map_err(anyhow::Error::msg)?;
    let output = as_person("kim", &dry, &of(&many)).await?.err();
    let output = output.context("a rule may have any number of kinds")?;
    ensure!(output.contains("selects more than 24 kinds"), "{output}");
    // Neither an edit nor a copy of another's rule is a way around; what is not the spec passes.
    let widen = r#"{"spec":{"sources":[{"resources":["secrets"],"names":["x"]}]}}"#;
    for name in ["eves", "anns"] {
        let patch = [
            "-n",
            "authors",
            "patch",
            "drule",
            name,
            "--type=merge",
            "-p",
            widen,
        ];
        let refused = as_person("eve", &patch, &Value::Null).await?.err();
        ensure!(
            refused
                .as_ref()
                .is_some_and(|output| output.contains("may not get")),
            "{name}: {refused:?}"
        );
    }
    let annotate = ["-n", "authors", "annotate", "drule", "anns", "note=x"];
    as_person("eve", &annotate, &Value::Null)
        .await?
        .map_err(anyhow::Error::msg)?;
    // The hub's own finalizer, status and the end of both: its ServiceAccount writes no spec.
    let names = BTreeMap::from([("anns", "ann"), ("eves", "eve")]);
    for name in names.keys() {
        let id = Id::rule("authors", name);
        scene
            .hub
            .sees("reconciled", &id, |object| {
                ensure!(
                    object["metadata"]["finalizers"][0] == "runnel.dev/copies",
                    "{}",
                    object["metadata"]
                );
                condition(object, "Ready").map(drop)
            })
            .await?;
        scene.hub.delete(&id).await?;
        scene.hub.lacks(&id).await?;
    }
    Ok(())
}
