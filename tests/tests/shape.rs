//! Copies that are not just their sources: other names, keys, labels, filled variables, overrides; and what cannot be made.

#[path = "shape/fields.rs"]
mod fields;
#[path = "shape/versions.rs"]
mod versions;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, ensure};
use runnel_tests::fleet::{Fleet, FleetOptions};
use runnel_tests::scene::{Change, Draft, Id, Recorder, RuleDraft, SOURCE, Scene, TestCluster};
use runnel_tests::wait::eventually;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

static FLEET: OnceCell<Fleet> = OnceCell::const_new();

/// Two members, both with the label `env=prod`.
async fn scene(home: &str) -> Result<Scene> {
    let options = FleetOptions {
        members: 2,
        ..FleetOptions::default()
    };
    let scene = Scene::of(FLEET.get_or_try_init(|| Fleet::start(options)).await?).await?;
    scene.hub_namespaces(&[home]).await?;
    scene.member_namespaces(&[home]).await?;
    Ok(scene)
}

/// Waits until a copy has these data, and names this source.
async fn holds(member: &TestCluster, copy: &Id, source: &str, data: Value) -> Result<Value> {
    let what = format!("a copy of {source} with {data}");
    member
        .sees(&what, copy, |object| {
            ensure!(
                object["metadata"]["annotations"][SOURCE] == source,
                "it is of another source"
            );
            ensure!(object["data"] == data, "its data are {}", object["data"]);
            Ok(())
        })
        .await
}

/// Checks that at any time since the recorder began one of these objects was there.
fn one_was_always_there(recorder: &Recorder, namespace: &str, names: &[&str]) -> Result<()> {
    let mut there: BTreeMap<String, bool> = names
        .iter()
        .map(|name| ((*name).to_owned(), false))
        .collect();
    there.insert(names[0].to_owned(), true);
    for record in recorder.so_far()? {
        let metadata = &record.object["metadata"];
        let name = metadata["name"].as_str().unwrap_or_default();
        if metadata["namespace"] == namespace && there.contains_key(name) {
            there.insert(name.to_owned(), record.change != Change::Deleted);
            ensure!(
                there.values().any(|there| *there),
                "none of {names:?} was there"
            );
        }
    }
    Ok(())
}

#[tokio::test]
async fn copies_are_renamed_without_a_gap_and_named_by_cluster() -> Result<()> {
    let home = "renames";
    let scene = scene(home).await?;
    let (hub, member) = (&scene.hub, scene.member(1));
    let of = format!("configmaps/{home}/app");
    hub.make(&Draft::config_map(home, "app").data("k", "v").json())
        .await?;
    let rule = Id::rule(home, "all");
    hub.make(
        &RuleDraft::new(home, "all")
            .named(&["app"])
            .everywhere()
            .json(),
    )
    .await?;
    hub.all_applied(&rule, 2).await?;

    let recorder = Recorder::start(member, &Id::config_map(home, "app")).await?;
    let name = |name: &str| json!({"spec": {"transform": {"name": name}}});
    hub.change(&rule, name("${source.name}-${cluster.name}"))
        .await?;
    for number in [1, 2] {
        let copy = Id::config_map(home, &format!("app-member-{number}"));
        holds(scene.member(number), &copy, &of, json!({"k": "v"})).await?;
        scene
            .member(number)
            .lacks(&Id::config_map(home, "app"))
            .await?;
    }
    hub.all_applied(&rule, 2).await?;
    // An edit follows under the new name, and so does the next one.
    hub.change(&Id::config_map(home, "app"), json!({"data": {"k": "w"}}))
        .await?;
    holds(
        member,
        &Id::config_map(home, "app-member-1"),
        &of,
        json!({"k": "w"}),
    )
    .await?;
    hub.change(&rule, name("${source.name}-next")).await?;
    holds(
        member,
        &Id::config_map(home, "app-next"),
        &of,
        json!({"k": "w"}),
    )
    .await?;
    member.lacks(&Id::config_map(home, "app-member-1")).await?;
    hub.all_applied(&rule, 2).await?;

    // An invalid name: nothing is sent, and existing copies are left unchanged.
    let copy = member.get(&Id::config_map(home, "app-next")).await?;
    hub.change(&rule, name("App-${source.name}")).await?;
    let words = ["spec.transform.name", &of, "App-app", "left unchanged"];
    hub.wait_refused(&rule, "InvalidName", &words).await?;
    member.is_untouched(&copy).await?;
    // Two sources that would get one name.
    hub.make(&Draft::config_map(home, "app-too").json()).await?;
    let names = json!({"sources": [{"resources": ["configmaps"], "names": ["app*"]}], "transform": {"name": "one"}});
    hub.change(&rule, json!({"spec": names})).await?;
    hub.wait_refused(&rule, "AmbiguousSource", &[&of, "app-too"])
        .await?;
    member.is_untouched(&copy).await?;

    hub.change(&rule, json!({"spec": {"transform": null}}))
        .await?;
    holds(member, &Id::config_map(home, "app"), &of, json!({"k": "w"})).await?;
    member.lacks(&Id::config_map(home, "app-next")).await?;
    hub.all_applied(&rule, 4).await?;
    one_was_always_there(&recorder, home, &["app", "app-member-1", "app-next"])?;
    hub.delete(&rule).await?;
    hub.lacks(&rule).await?;
    scene
        .vanishes(&Draft::config_map(home, "app").json(), &[home])
        .await
}

#[tokio::test]
async fn keys_labels_and_types_follow_the_rule_or_are_not_sent() -> Result<()> {
    let home = "forms";
    let scene = scene(home).await?;
    let (hub, member) = (&scene.hub, scene.member(1));
    let draft = Draft::config_map(home, "app")
        .data("a.yaml", "1")
        .data("b.yaml", "2")
        .data("notes", "3");
    let draft = draft
        .label("internal/x", "1")
        .label("team", "a")
        .annotation("cert-manager.io/issuer", "ca");
    hub.make(&draft.json()).await?;
    let rule = Id::rule(home, "all");
    let transform = json!({
        "keys": {"exclude": ["notes"], "rename": {"a.yaml": "app.yaml"}},
        "labels": {"add": {"from": "hub"}, "drop": ["internal/*"]},
        "annotations": {"allow": ["cert-manager.io/*"]},
    });
    hub.make(
        &RuleDraft::new(home, "all")
            .named(&["app"])
            .to(&["member-1"])
            .with("transform", transform)
            .json(),
    )
    .await?;
    let id = Id::config_map(home, "app");
    let copy = holds(
        member,
        &id,
        &format!("configmaps/{home}/app"),
        json!({"app.yaml": "1", "b.yaml": "2"}),
    )
    .await?;
    let (labels, annotations) = (
        &copy["metadata"]["labels"],
        &copy["metadata"]["annotations"],
    );
    ensure!(
        labels["from"] == "hub" && labels["team"] == "a" && labels.get("internal/x").is_none(),
        "{labels}"
    );
    ensure!(
        annotations["cert-manager.io/issuer"] == "ca",
        "{annotations}"
    );
    // Allowed labels follow the source, although they are no content.
    hub.change(
        &id,
        json!({"metadata": {"annotations": {"cert-manager.io/issuer": "other"}}}),
    )
    .await?;
    member
        .sees("a copy with the other issuer", &id, |object| {
            ensure!(
                object["metadata"]["annotations"]["cert-manager.io/issuer"] == "other",
                "not yet"
            );
            Ok(())
        })
        .await?;
    hub.all_applied(&rule, 1).await?;
    let rename = json!({"spec": {"transform": {"keys": {"rename": {"a.yaml": "b.yaml"}}}}});
    let copy = member.get(&id).await?;
    hub.change(&rule, rename).await?;
    hub.wait_refused(
        &rule,
        "TransformFailed",
        &["keys.rename", "configmaps/forms/app", "b.yaml"],
    )
    .await?;
    member.is_untouched(&copy).await?;

    let tls = Draft::secret(home, "tls")
        .data("tls.crt", "s3cret-1")
        .data("tls.key", "s3cret-2");
    hub.make(&tls.with("type", json!("kubernetes.io/tls")).json())
        .await?;
    let certificate = RuleDraft::new(home, "certificate")
        .named(&["tls"])
        .to(&["member-1"]);
    let only = json!({"keys": {"include": ["tls.crt"]}});
    hub.make(&certificate.with("transform", only).json())
        .await?;
    let rule = Id::rule(home, "certificate");
    hub.wait_refused(
        &rule,
        "InvalidCopy",
        &["secrets/forms/tls", "needs the key tls.key"],
    )
    .await?;
    ensure!(
        member.find(&Id::secret(home, "tls")).await?.is_none(),
        "it was sent"
    );
    hub.change(
        &rule,
        json!({"spec": {"transform": {"secretType": "Opaque"}}}),
    )
    .await?;
    hub.all_applied(&rule, 1).await?;
    let copy = member.get(&Id::secret(home, "tls")).await?;
    ensure!(
        copy["type"] == "Opaque" && copy["data"].as_object().is_some_and(|data| data.len() == 1),
        "{}",
        copy["type"]
    );
    Ok(())
}

#[tokio::test]
async fn name_and_labels_of_a_cluster_fill_its_copies() -> Result<()> {
    let home = "variables";
    let scene = scene(home).await?;
    let hub = &scene.hub;
    let text = "${cluster.name} ${cluster.labels.zone:-nowhere} ${source.namespace}/${source.name} $${cluster.name}";
    hub.make(
        &Draft::config_map(home, "app")
            .data("app.yaml", text)
            .data("raw", text)
            .data("level", "info")
            .json(),
    )
    .await?;
    let rule = Id::rule(home, "all");
    let draft = RuleDraft::new(home, "all")
        .source(json!({"resources": ["configmaps"], "names": ["app"]}))
        .everywhere();
    let overrides = json!([
        {"clusters": {"selector": {"matchLabels": {"zone": "west"}}}, "data": {"level": "debug"}, "remove": ["raw"]},
        {"clusters": {"names": ["member-1"]}, "jsonPatch": [{"op": "copy", "from": "/data/level", "path": "/data/was"}]},
    ]);
    let draft = draft
        .with("substitute", json!({"keys": ["app.yaml"]}))
        .with("overrides", overrides);
    hub.make(&draft.json()).await?;
    let (id, of) = (
        Id::config_map(home, "app"),
        format!("configmaps/{home}/app"),
    );
    let filled =
        |cluster: &str, zone: &str| format!("{cluster} {zone} variables/app ${{cluster.name}}");
    let plain = json!({"app.yaml": filled("member-2", "nowhere"), "raw": text, "level": "info"});
    holds(scene.member(2), &id, &of, plain).await?;
    let one = json!({"app.yaml": filled("member-1", "nowhere"), "raw": text, "level": "info", "was": "info"});
    let untouched = holds(scene.member(1), &id, &of, one).await?;
    hub.all_applied(&rule, 2).await?;

    // A label of one cluster: its copy follows, the other's is not touched.
    hub.change(
        &Id::member("member-2"),
        json!({"metadata": {"labels": {"zone": "west"}}}),
    )
    .await?;
    holds(
        scene.member(2),
        &id,
        &of,
        json!({"app.yaml": filled("member-2", "west"), "level": "debug"}),
    )
    .await?;
    scene.member(1).is_untouched(&untouched).await?;
    hub.all_applied(&rule, 2).await?;

    // A label without default: the cluster with the label gets the copy, the other keeps its former
    // one.
    hub.change(
        &id,
        json!({"data": {"app.yaml": "in ${cluster.labels.zone}"}}),
    )
    .await?;
    holds(
        scene.member(2),
        &id,
        &of,
        json!({"app.yaml": "in west", "level": "debug"}),
    )
    .await?;
    hub.wait_refused(
        &rule,
        "VariableMissing",
        &["to member-1", "app.yaml", &of, "no label zone"],
    )
    .await?;
    hub.wait_for_cluster(&rule, "member-1", "Failed", "VariableMissing")
        .await?;
    hub.wait_for_cluster(&rule, "member-2", "Ready", "AllApplied")
        .await?;
    scene.member(1).is_untouched(&untouched).await?;
    hub.change(&id, json!({"data": {"app.yaml": "in ${HOME}"}}))
        .await?;
    hub.wait_refused(&rule, "VariableMissing", &["2 clusters", "${HOME}", "$${"])
        .await?;
    hub.change(&id, json!({"data": {"app.yaml": "in $${HOME}"}}))
        .await?;
    holds(
        scene.member(2),
        &id,
        &of,
        json!({"app.yaml": "in ${HOME}", "level": "debug"}),
    )
    .await?;
    hub.all_applied(&rule, 2).await?;

    // A rule contains no values of Secrets.
    let secrets =
        json!({"spec": {"sources": [{"resources": ["configmaps", "secrets"], "names": ["app"]}]}});
    let refused = hub
        .change(&rule, secrets)
        .await
        .expect_err("a literal value for a Secret");
    ensure!(
        format!("{refused:#}").contains("must not hold values"),
        "{refused:#}"
    );

    // The overrides go together with their rule: its copies go as they are, and are not the plain object for a moment.
    let recorder = Recorder::start(scene.member(2), &id).await?;
    hub.delete(&rule).await?;
    hub.lacks(&rule).await?;
    eventually("the copy to go", Duration::from_secs(60), async || {
        let records = recorder.about(home, "app")?;
        ensure!(
            records
                .iter()
                .all(|record| record.object["data"]["level"] == "debug"),
            "{records:?}"
        );
        Ok(records
            .iter()
            .any(|record| record.change == Change::Deleted)
            .then_some(()))
    })
    .await
}

#[tokio::test]
async fn secret_value_reaches_some_clusters_and_follows() -> Result<()> {
    let home = "lent";
    let scene = scene(home).await?;
    let (hub, one, two) = (&scene.hub, scene.member(1), scene.member(2));
    hub.make(
        &Draft::secret(home, "login")
            .data("user", "app")
            .data("password", "for-most")
            .json(),
    )
    .await?;
    // It has no label and no rule selects it.
    let referenced = Draft::secret(home, "login-one").data("pw", "s3cret-one");
    let overrides = json!([{
        "clusters": {"names": ["member-1"]},
        "secretData": [{"key": "password", "valueFrom": {"secretKeyRef": {"name": "login-one", "key": "pw"}}}],
    }]);
    let (rule, id, of) = (
        Id::rule(home, "all"),
        Id::secret(home, "login"),
        format!("secrets/{home}/login"),
    );
    let draft = RuleDraft::new(home, "all")
        .source(json!({"resources": ["secrets"], "names": ["login"]}))
        .everywhere();
    hub.make(&draft.with("overrides", overrides.clone()).json())
        .await?;
    // It is missing: the cluster that needs it gets nothing, the other does.
    let base64 = |text: &str| data_encoding::BASE64.encode(text.as_bytes());
    let with = |password: &str| json!({"user": base64("app"), "password": base64(password)});
    holds(two, &id, &of, with("for-most")).await?;
    hub.wait_refused(
        &rule,
        "ValueMissing",
        &[
            "to member-1",
            "secretData[password]",
            "secrets/lent/login-one",
        ],
    )
    .await?;
    ensure!(one.find(&id).await?.is_none(), "a copy without its value");
    hub.make(&referenced.json()).await?;
    let untouched = holds(two, &id, &of, with("for-most")).await?;
    holds(one, &id, &of, with("s3cret-one")).await?;
    hub.all_applied(&rule, 2).await?;
    // An edit of the Secret, and one of the source.
    let secret = Id::secret(home, "login-one");
    hub.change(&secret, json!({"stringData": {"pw": "s3cret-two"}}))
        .await?;
    holds(one, &id, &of, with("s3cret-two")).await?;
    two.is_untouched(&untouched).await?;
    hub.change(&id, json!({"stringData": {"user": "next"}}))
        .await?;
    let next = |password: &str| json!({"user": base64("next"), "password": base64(password)});
    holds(one, &id, &of, next("s3cret-two")).await?;
    holds(two, &id, &of, next("for-most")).await?;
    ensure!(one.find(&secret).await?.is_none(), "what is lent was sent");

    // The key is deleted, its owner denies it, it is deleted: the copy stays, and no value is
    // disclosed.
    let copy = one.get(&id).await?;
    hub.change(
        &secret,
        json!({"data": {"pw": null, "other": base64("s3cret-two")}}),
    )
    .await?;
    hub.wait_refused(&rule, "ValueMissing", &["has no key pw"])
        .await?;
    let refuses = json!({"metadata": {"annotations": {"runnel.dev/distribute": "false"}}, "stringData": {"pw": "s3cret-two"}});
    hub.change(&secret, refuses).await?;
    hub.wait_refused(
        &rule,
        "ValueMissing",
        &["secrets/lent/login-one is never distributed"],
    )
    .await?;
    hub.delete(&secret).await?;
    hub.wait_refused(
        &rule,
        "ValueMissing",
        &["there is no secrets/lent/login-one"],
    )
    .await?;
    one.is_untouched(&copy).await?;
    let observed = hub.get(&rule).await?.to_string();
    ensure!(
        !observed.contains("s3cret") && !observed.contains(&base64("s3cret-two")),
        "a value is in the rule's status"
    );
    hub.make(&referenced.json()).await?;
    holds(one, &id, &of, next("s3cret-one")).await?;
    hub.all_applied(&rule, 2).await?;

    // Values of Secrets are not used in ConfigMaps.
    let both = json!({"spec": {"sources": [{"resources": ["configmaps", "secrets"], "names": ["login"]}]}});
    let refused = hub
        .change(&rule, both)
        .await
        .expect_err("a value of a Secret in a ConfigMap");
    ensure!(
        format!("{refused:#}").contains("go into copies of Secrets only"),
        "{refused:#}"
    );
    Ok(())
}
