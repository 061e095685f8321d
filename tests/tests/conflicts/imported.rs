//! Copies of other copiers are taken over as they are, by the rules that `kubectl runnel import` prints.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use runnel_tests::fleet::{Fleet, FleetOptions};
use runnel_tests::scene::{Draft, Id, Scene, TestCluster, is_about_copies};
use serde_json::{Value, json};

use super::{fleet, scene};

const REPLICATOR: &str = "replicator.v1.mittwald.de";
const REFLECTOR: &str = "reflector.v1.k8s.emberstack.com";
/// Half of them Secrets that the one pushes, half ConfigMaps that the other mirrors.
const OBJECTS: usize = 50;

/// What is compared before and after: an object's uid and content.
type Copies = BTreeMap<String, Value>;

/// Source number `n` with the annotations that configured other copiers.
fn source(home: &str, n: usize) -> Value {
    if n.is_multiple_of(2) {
        let to = format!("{home}-a,{home}-b");
        let draft =
            Draft::secret(home, &format!("login-{n}")).data("password", &format!("hidden-{n}"));
        return draft
            .label("team", "x")
            .annotation(&format!("{REPLICATOR}/replicate-to"), &to)
            .json();
    }
    let draft = Draft::config_map(home, &format!("settings-{n}")).data("k", &format!("v{n}"));
    let observed = [
        ("reflection-allowed", "true".to_owned()),
        ("reflection-auto-enabled", "true".to_owned()),
        ("reflection-auto-namespaces", format!("{home}-.*")),
    ];
    observed
        .iter()
        .fold(draft, |draft, (key, value)| {
            draft.annotation(&format!("{REFLECTOR}/{key}"), value)
        })
        .json()
}

/// The copy that such a copier made of it.
fn copied(source: &Value, namespace: &str) -> Value {
    let mut copy = source.clone();
    let is_secret = copy["kind"] == "Secret";
    copy["metadata"]["namespace"] = json!(namespace);
    copy["metadata"]["annotations"] = if is_secret {
        json!({format!("{REPLICATOR}/replicated-at"): "2026-01-01T00:00:00Z", format!("{REPLICATOR}/replicated-from-version"): "12"})
    } else {
        let of = format!(
            "{}/{}",
            source["metadata"]["namespace"], source["metadata"]["name"]
        )
        .replace('"', "");
        json!({format!("{REFLECTOR}/reflects"): of, format!("{REFLECTOR}/auto-reflects"): "True", format!("{REFLECTOR}/reflected-version"): "12"})
    };
    if !is_secret {
        copy["metadata"]["labels"] = json!({});
    }
    copy
}

async fn copies(place: &TestCluster, home: &str) -> Result<Copies> {
    let mut all = Copies::new();
    for namespace in [format!("{home}-a"), format!("{home}-b")] {
        for like in [Id::secret(&namespace, ""), Id::config_map(&namespace, "")] {
            for object in place.list(&like).await? {
                let name = object["metadata"]["name"].as_str().unwrap_or_default();
                let copies_there = json!({"uid": object["metadata"]["uid"], "data": object["data"], "type": object["type"]});
                if name != "kube-root-ca.crt" {
                    all.insert(format!("{}/{namespace}/{name}", like.kind()), copies_there);
                }
            }
        }
    }
    Ok(all)
}

#[tokio::test]
async fn fifty_annotated_objects_are_imported_and_no_copy_is_touched() -> Result<()> {
    let fleet = fleet().await?;
    let scene = scene().await?;
    let hub = fleet.hub().kubeconfig();
    // In the hub's own cluster, and in another one, with the sources on the hub as well.
    for (home, number, cluster) in [("moved-in", 3, "hub"), ("moved-on", 1, "member-1")] {
        let (place, files) = match number {
            3 => (&scene.hub, vec![("--kubeconfig", hub)]),
            _ => {
                let member = fleet.member(1).kubeconfig();
                (
                    scene.member(1),
                    vec![("--kubeconfig", hub), ("--member-kubeconfig", member)],
                )
            }
        };
        let spaces = [home.to_owned(), format!("{home}-a"), format!("{home}-b")];
        let names: Vec<&str> = spaces.iter().map(String::as_str).collect();
        scene.hub_namespaces(&names).await?;
        if number == 1 {
            try_join_all(
                names
                    .iter()
                    .map(|name| async { place.make(&Draft::namespace(name).json()).await }),
            )
            .await?;
        }
        let sources: Vec<Value> = (0..OBJECTS).map(|n| source(home, n)).collect();
        try_join_all(sources.iter().map(|one| scene.hub.make(one))).await?;
        if number == 1 {
            try_join_all(sources.iter().map(|one| place.make(one))).await?;
        }
        let there: Vec<Value> = sources
            .iter()
            .flat_map(|one| names[1..].iter().map(|name| copied(one, name)))
            .collect();
        try_join_all(there.iter().map(|one| place.make(one))).await?;
        let before = copies(place, home).await?;
        ensure!(before.len() == 2 * OBJECTS, "{} copies", before.len());

        let text = fleet.runnel_with(&["import", "-n", home], &files).await?;
        let head = "2 rules with 50 sources. Of 100 copies, 100 equal their source and are taken over as they are.";
        ensure!(text.contains(head), "{text}");
        ensure!(
            text.contains(&format!("- {cluster}\n")) && !text.contains("not on the hub"),
            "{text}"
        );
        ensure!(
            !text.contains("hidden") && !text.contains("aGlkZGVu"),
            "it prints a value"
        );
        fleet
            .hub()
            .kubectl_stdin(&["apply", "-f", "-"], &text)
            .await?;
        for name in ["from-replicator", "from-reflector"] {
            let rule = Id::rule(home, name);
            scene
                .hub
                .all_applied(&rule, OBJECTS)
                .await
                .with_context(|| format!("{home}/{name}"))?;
            ensure!(
                scene
                    .hub
                    .events_about(&rule)
                    .await?
                    .iter()
                    .all(is_about_copies),
                "{home}/{name}: something was told"
            );
        }
        ensure!(
            copies(place, home).await? == before,
            "{home}: a copy is another one"
        );

        // Its own words take the old marks off, and all is Runnel's.
        let control_plane = if number == 3 {
            fleet.hub()
        } else {
            fleet.member(1)
        };
        let commands: Vec<&str> = text
            .lines()
            .filter(|line| line.contains(" annotate "))
            .collect();
        ensure!(commands.len() >= 6, "{text}");
        for command in commands {
            let words: Vec<&str> = command
                .split_whitespace()
                .skip_while(|word| *word != "-n")
                .collect();
            control_plane
                .kubectl(&words)
                .await
                .with_context(|| command.to_owned())?;
        }
        ensure!(
            copies(place, home).await? == before,
            "{home}: a copy is another one without its old marks"
        );
        for (kind, mark) in [
            (Id::secret(&spaces[1], ""), REPLICATOR),
            (Id::config_map(&spaces[2], ""), REFLECTOR),
        ] {
            let found = place.list(&kind).await?;
            let marked = found
                .iter()
                .filter(|object| object["metadata"]["annotations"].to_string().contains(mark));
            ensure!(marked.count() == 0, "{home}: {mark} is left");
        }
        // Runnel did not create them: an edit of the source leaves them until a user deletes them.
        let edit = json!({"data": {"k": "new"}});
        scene
            .hub
            .change(&Id::config_map(home, "settings-1"), edit)
            .await?;
        scene
            .hub
            .wait_ready(&Id::rule(home, "from-reflector"), "False", "Conflict")
            .await?;
        ensure!(
            copies(place, home).await? == before,
            "{home}: a copy is another one after an edit"
        );
        for namespace in &spaces[1..] {
            place
                .delete(&Id::config_map(namespace, "settings-1"))
                .await?;
            let follows = |object: &Value| {
                ensure!(object["data"]["k"] == "new", "{}", object["data"]);
                Ok(())
            };
            place
                .sees(
                    "a copy follows its source",
                    &Id::config_map(namespace, "settings-1"),
                    follows,
                )
                .await?;
        }
    }
    Ok(())
}

/// The kinds that the replicator copies besides ConfigMaps and Secrets.
const REPLICATED: [&str; 3] = [
    "rolebindings.rbac.authorization.k8s.io",
    "roles.rbac.authorization.k8s.io",
    "serviceaccounts",
];
const POLICIES: &str = "networkpolicies.networking.k8s.io";

/// A Role, its binding and its account, which the replicator copies, and a policy, which an operator copies by its label.
fn other_kinds(namespace: &str) -> [Value; 4] {
    let metadata = |name: &str| json!({"namespace": namespace, "name": name});
    let rbac = "rbac.authorization.k8s.io";
    [
        json!({
            "apiVersion": format!("{rbac}/v1"), "kind": "Role", "metadata": metadata("reader"),
            "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}],
        }),
        json!({
            "apiVersion": format!("{rbac}/v1"), "kind": "RoleBinding", "metadata": metadata("reader"),
            "roleRef": {"apiGroup": rbac, "kind": "Role", "name": "reader"},
            "subjects": [{"kind": "User", "name": "ann", "apiGroup": rbac}],
        }),
        json!({
            "apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata("robot"),
            "imagePullSecrets": [{"name": "registry"}],
        }),
        json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata("web"),
            "spec": {"podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Ingress"]},
        }),
    ]
}

#[tokio::test]
async fn objects_of_other_kinds_are_imported_and_no_copy_is_touched() -> Result<()> {
    let kinds = [REPLICATED.as_slice(), &[POLICIES]].concat();
    let fleet = &Fleet::start(FleetOptions {
        hub_values: json!({"sources": {"kinds": [POLICIES]}}),
        agent_values: json!({"policy": {"kinds": kinds, "allowPrivileged": REPLICATED}}),
        ..FleetOptions::default()
    })
    .await?;
    let scene = Scene::of(fleet).await?;
    let (home, to) = ("roles", "roles-a");
    scene.hub_namespaces(&[home]).await?;
    scene.member_namespaces(&[home, to]).await?;
    let grant = json!({
        "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionGrant", "metadata": {"name": "roles"},
        "spec": {
            "rules": {"namespaces": {"names": [home]}}, "resources": kinds, "clusters": {"all": true},
            "namespaces": {"names": [to]}, "policies": {"adopt": true},
        },
    });
    scene.hub.make(&grant).await?;
    let member = scene.member(1);
    let mut uids = Vec::new();
    for (namespace, mark, value) in [
        (home, "replicate-to", to),
        (to, "replicated-from-version", "12"),
    ] {
        for mut object in other_kinds(namespace) {
            let is_policy = object["kind"] == "NetworkPolicy";
            let metadata = &mut object["metadata"];
            if is_policy {
                metadata["labels"] = json!({"copy": "yes"});
            } else {
                metadata["annotations"] = json!({format!("{REPLICATOR}/{mark}"): value});
            }
            let made = member.make(&object).await?;
            if namespace == to {
                uids.push((Id::of(&made)?, made["metadata"]["uid"].clone()));
            } else if is_policy {
                // The user has to create this source on the hub.
                scene.hub.make(&object).await?;
            }
        }
    }

    let files = [
        ("--kubeconfig", fleet.hub().kubeconfig()),
        ("--member-kubeconfig", fleet.member(1).kubeconfig()),
    ];
    let label = ["--label", "copy=yes", "--to", to, "--resources", POLICIES];
    for (flags, rule, copies, words) in [
        (
            &[][..],
            "from-replicator",
            3,
            ["Of 3 copies, 3 equal", "kind: ManifestBundle"],
        ),
        (
            &label[..],
            "from-label",
            1,
            [
                "Of 1 copy, 1 equal",
                "sources.kinds of the hub: networkpolicies",
            ],
        ),
    ] {
        let words_of_command = [&["import", "-n", home], flags].concat();
        let text = fleet.runnel_with(&words_of_command, &files).await?;
        for words in words {
            ensure!(text.contains(words), "{words}: {text}");
        }
        let apply = ["apply", "-f", "-"];
        fleet.hub().kubectl_stdin(&apply, &text).await?;
        let rule = Id::rule(home, rule);
        scene.hub.all_applied(&rule, copies).await?;
    }
    for (copy, uid) in uids {
        let object = member.get(&copy).await?;
        ensure!(
            object["metadata"]["uid"] == uid
                && object["metadata"]["labels"]["runnel.dev/hub"].is_string(),
            "{object}"
        );
        // The hub gives no account the rights.
        let there = scene.hub.find(&copy.within(home)).await?;
        ensure!(
            there.is_none() || copy.kind() == "NetworkPolicy",
            "{there:?}"
        );
    }
    Ok(())
}
