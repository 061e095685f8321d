//! Changes on the hub and in members are followed: sources, rules and namespaces that are created,
//! changed and deleted.

#[path = "changes/suspended.rs"]
mod is_suspended;
#[path = "changes/lengths.rs"]
mod lengths;
#[path = "changes/namespaces.rs"]
mod namespaces;

use std::time::Duration;

use anyhow::{Result, ensure};
use futures::future::try_join_all;
use runnel_tests::fleet::{Fleet, FleetOptions};
use runnel_tests::scene::{
    Draft, Id, RETAINED, Recorder, RuleDraft, Scene, is_about_copies, is_marked,
};
use runnel_tests::wait::steadily;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

static FLEET: OnceCell<Fleet> = OnceCell::const_new();

async fn scene() -> Result<Scene> {
    // Kubernetes' own namespaces are allowed by name alone, in the member's policy as in a rule.
    let policy = json!({"namespaces": ["*", "kube-public"], "createNamespaces": true});
    let options = FleetOptions {
        members: 2,
        agent_values: json!({"policy": policy}),
        ..FleetOptions::default()
    };
    Scene::of(FLEET.get_or_try_init(|| Fleet::start(options)).await?).await
}

/// A namespace of this name on the hub and in all members.
async fn scene_with(home: &str) -> Result<Scene> {
    let scene = scene().await?;
    scene.hub_namespaces(&[home]).await?;
    scene.member_namespaces(&[home]).await?;
    Ok(scene)
}

/// How long a source is missing when it is created again.
const GAP: Duration = Duration::from_millis(700);

fn never_missing(recorders: &[(Recorder, Id)]) -> Result<()> {
    recorders.iter().try_for_each(|(recorder, copy)| {
        recorder.was_never_missing(copy.own_namespace().unwrap_or_default(), copy.name())
    })
}

#[tokio::test]
async fn source_recreated_within_a_second_is_an_edit() -> Result<()> {
    let home = "recreated";
    let scene = scene_with(home).await?;
    let config = |text: &str| Draft::config_map(home, "settings").data("k", text).json();
    let secret = |text: &str| Draft::secret(home, "login").data("k", text).json();
    let rule = Id::rule(home, "all");
    scene
        .hub
        .make(
            &RuleDraft::new(home, "all")
                .named(&["*"])
                .everywhere()
                .json(),
        )
        .await?;
    for draft in [config("0"), secret("0")] {
        let source = scene.hub.make(&draft).await?;
        scene.arrives(&source, &rule, &[home]).await?;
    }
    let mut recorders = Vec::new();
    for member in &scene.members {
        for name in [Id::config_map(home, "settings"), Id::secret(home, "login")] {
            recorders.push((Recorder::start(member, &name).await?, name));
        }
    }

    // As cert-manager, `helm --force` and others do; twice in a row, and the last time with the same content.
    for text in ["1", "2", "2"] {
        for draft in [config(text), secret(text)] {
            scene.hub.delete(&Id::of(&draft)?).await?;
        }
        steadily("there is no source, and its copies stay", GAP, async || {
            never_missing(&recorders)
        })
        .await?;
        // Both within the grace period, however long a copy takes.
        let mut sources = Vec::new();
        for draft in [config(text), secret(text)] {
            sources.push(scene.hub.make(&draft).await?);
        }
        for source in &sources {
            scene.arrives(source, &rule, &[home]).await?;
        }
    }
    // The grace period of the last deletion ends without effect.
    steadily("the copies stay", Duration::from_secs(6), async || {
        never_missing(&recorders)
    })
    .await?;
    for (recorder, copy) in &recorders {
        let writes = recorder.about(home, copy.name())?.len();
        ensure!(
            writes == 2,
            "{copy}: two of three times the content changed, and there were {writes} writes"
        );
    }
    scene.hub.all_applied(&rule, 4).await.map(|_| ())
}

#[tokio::test]
async fn deleted_source_takes_its_copies_and_may_return() -> Result<()> {
    let home = "for-good";
    let scene = scene_with(home).await?;
    let rule = Id::rule(home, "all");
    scene
        .hub
        .make(
            &RuleDraft::new(home, "all")
                .named(&["*"])
                .everywhere()
                .json(),
        )
        .await?;
    let draft = Draft::config_map(home, "settings").data("k", "v");
    let source = scene.hub.make(&draft.json()).await?;
    let other = scene
        .hub
        .make(&Draft::config_map(home, "other").json())
        .await?;
    scene.arrives(&source, &rule, &[home]).await?;
    scene.arrives(&other, &rule, &[home]).await?;

    // A source counts as deleted when its deletion starts, independent of its finalizers.
    let finalizers = json!({"metadata": {"finalizers": ["example.com/wait"]}});
    scene.hub.change(&Id::of(&source)?, finalizers).await?;
    scene.hub.delete(&Id::of(&source)?).await?;
    scene.vanishes(&source, &[home]).await?;
    scene.hub.all_applied(&rule, 2).await?;
    scene
        .hub
        .change(&Id::of(&source)?, json!({"metadata": {"finalizers": null}}))
        .await?;
    scene.hub.lacks(&Id::of(&source)?).await?;

    let source = scene
        .hub
        .make(&draft.data("k", "second life").json())
        .await?;
    scene.arrives(&source, &rule, &[home]).await?;
    scene.hub.delete(&Id::of(&other)?).await?;
    scene.vanishes(&other, &[home]).await?;
    scene.hub.all_applied(&rule, 2).await.map(|_| ())
}

#[tokio::test]
async fn a_rule_whose_choice_of_sources_is_edited_is_followed() -> Result<()> {
    let home = "choice";
    let scene = scene_with(home).await?;
    let hub = &scene.hub;
    let mut sources = Vec::new();
    for name in ["ca", "tls-a", "tls-b", "tls-old-a"] {
        sources.push(
            hub.make(
                &Draft::config_map(home, name)
                    .label("part", &name[..2])
                    .json(),
            )
            .await?,
        );
    }
    let secret = hub
        .make(&Draft::secret(home, "tls-a").label("part", "tl").json())
        .await?;
    sources.push(secret);
    let rule = Id::rule(home, "chosen");
    // This many edits within a minute exceed the limit without an approval.
    let draft = RuleDraft::new(home, "chosen").named(&["ca"]).everywhere();
    hub.make(&draft.with("removalLimit", json!({"count": 1000})).json())
        .await?;
    scene.arrives(&sources[0], &rule, &[home]).await?;
    let recorder = Recorder::start(scene.member(1), &Id::config_map(home, "")).await?;

    // Each step: the entries, and the sources that they select. A source selected twice counts
    // once.
    let both = json!(["configmaps", "secrets"]);
    let steps = [
        (
            json!([{"resources": both, "names": ["ca", "tls-*"]}]),
            vec![0, 1, 2, 3, 4],
        ),
        (
            json!([{"resources": both, "names": ["ca", "tls-*"], "exclude": ["tls-old-*", "tls-b"]}]),
            vec![0, 1, 4],
        ),
        (
            json!([{"resources": ["configmaps"], "names": ["*"], "exclude": ["tls-a"]}]),
            vec![0, 2, 3],
        ),
        (
            json!([{"resources": ["secrets"], "names": ["*"]}, {"resources": ["configmaps"], "names": ["ca"]}]),
            vec![0, 4],
        ),
        (
            json!([{"resources": both, "selector": {"matchExpressions": [{"key": "part", "operator": "In", "values": ["ca"]}]}}]),
            vec![0],
        ),
        (
            json!([{"resources": both, "selector": {"matchLabels": {"part": "tl"}}}, {"resources": both, "names": ["ca", "tls-a"]}]),
            vec![0, 1, 2, 3, 4],
        ),
    ];
    for (entries, chosen) in steps {
        hub.change(&rule, json!({"spec": {"sources": entries}}))
            .await?;
        for (number, source) in sources.iter().enumerate() {
            if chosen.contains(&number) {
                scene.arrives(source, &rule, &[home]).await?
            } else {
                scene.vanishes(source, &[home]).await?
            }
        }
        hub.all_applied(&rule, 2 * chosen.len()).await?;
    }
    // The copies of every step existed all the time, and were not written.
    recorder.was_never_missing(home, "ca")?;
    ensure!(recorder.about(home, "ca")?.is_empty());
    Ok(())
}

#[tokio::test]
async fn a_rule_whose_choice_of_clusters_is_edited_is_followed() -> Result<()> {
    let home = "clusters";
    let scene = scene_with(home).await?;
    let source = scene
        .hub
        .make(&Draft::config_map(home, "settings").json())
        .await?;
    let rule = Id::rule(home, "there");
    scene
        .hub
        .make(
            &RuleDraft::new(home, "there")
                .named(&["*"])
                .to(&["member-1"])
                .json(),
        )
        .await?;
    let prod = json!({"matchLabels": {"env": "prod"}});
    let steps = [
        (json!({"names": ["member-1"]}), [true, false]),
        (json!({"names": ["member-2"]}), [false, true]),
        (json!({"all": true}), [true, true]),
        (json!({"selector": prod, "exclude": ["*-2"]}), [true, false]),
        (
            json!({"selector": {"matchLabels": {"env": "test"}}, "names": ["member-2"]}),
            [false, true],
        ),
        (
            json!({"all": true, "exclude": ["member-*"]}),
            [false, false],
        ),
    ];
    for (clusters, chosen) in steps {
        scene
            .hub
            .json_patch(
                &rule,
                json!([{"op": "add", "path": "/spec/clusters", "value": clusters}]),
            )
            .await?;
        for (member, chosen) in scene.members.iter().zip(chosen) {
            if chosen {
                _ = member.has_copy(&source, home, &rule).await?
            } else {
                member.lacks(&Id::of(&source)?).await?
            }
        }
        match chosen.iter().filter(|chosen| **chosen).count() {
            0 => _ = scene.hub.wait_ready(&rule, "False", "NoClusters").await?,
            some => _ = scene.hub.all_applied(&rule, some).await?,
        }
    }
    Ok(())
}

/// Checks that a former copy of this rule was retained without marks.
fn is_left(object: &Value, rule: &Id) -> Result<()> {
    ensure!(
        !is_marked(object),
        "it still has marks: {}",
        object["metadata"]
    );
    ensure!(
        object["metadata"]["annotations"][RETAINED] == rule.path(),
        "{}",
        object["metadata"]
    );
    let managers = object["metadata"]["managedFields"]
        .as_array()
        .into_iter()
        .flatten();
    let applied = managers
        .into_iter()
        .any(|entry| entry["manager"] == "runnel-agent" && entry["operation"] == "Apply");
    ensure!(!applied, "it is still applied by the agent");
    Ok(())
}

/// Waits until every member has the object as a rule left it; its content is its name. Returns the objects.
async fn all_left(scene: &Scene, rule: &Id, id: &Id) -> Result<Vec<Value>> {
    let each = scene.members.iter().map(|member| async move {
        let object = member
            .sees("retained", id, |object| is_left(object, rule))
            .await?;
        ensure!(
            object["data"] == json!({"k": id.name()})
                && object["metadata"]["labels"]["team"] == "a",
            "{object}"
        );
        anyhow::Ok(object)
    });
    try_join_all(each).await
}

#[tokio::test]
async fn removal_within_the_limit_passes_after_a_quiet_moment() -> Result<()> {
    let home = "retained";
    let scene = scene_with(home).await?;
    scene.member_namespaces(&["retained-too"]).await?;
    let hub = &scene.hub;
    let rule = Id::rule(home, "kept");
    let draft = RuleDraft::new(home, "kept")
        .labeled("keep", "yes")
        .everywhere()
        .into(&[home, "retained-too"]);
    hub.make(&draft.with("deletionPolicy", json!("Retain")).json())
        .await?;
    let source = |name| {
        Draft::config_map(home, name)
            .label("keep", "yes")
            .label("team", "a")
            .data("k", name)
    };
    let mut sources = Vec::new();
    for name in ["deleted", "relabeled", "by-namespace", "by-rule"] {
        sources.push(hub.make(&source(name).json()).await?);
        scene
            .arrives(&sources[sources.len() - 1], &rule, &[home, "retained-too"])
            .await?;
    }
    let left = async |name: &str, namespace: &str| {
        all_left(&scene, &rule, &Id::config_map(namespace, name)).await
    };

    hub.delete(&Id::of(&sources[0])?).await?;
    hub.change(
        &Id::of(&sources[1])?,
        json!({"metadata": {"labels": {"keep": "no"}}}),
    )
    .await?;
    for name in ["deleted", "relabeled"] {
        left(name, home).await?;
        left(name, "retained-too").await?;
    }
    hub.change(&rule, json!({"spec": {"namespaces": {"names": [home]}}}))
        .await?;
    left("by-namespace", "retained-too").await?;
    hub.all_applied(&rule, 4).await?;
    hub.delete(&rule).await?;
    hub.lacks(&rule).await?;
    let by_rule = left("by-rule", home).await?;
    let deleted = left("deleted", home).await?;

    // Another rule selects the same copies. Copies that equal its source are taken over; the other
    // one is a conflict.
    let rule = Id::rule(home, "again");
    hub.make(&source("deleted").data("k", "other").json())
        .await?;
    hub.make(
        &RuleDraft::new(home, "again")
            .labeled("keep", "yes")
            .everywhere()
            .json(),
    )
    .await?;
    let copies = try_join_all(
        scene
            .members
            .iter()
            .map(|member| member.has_copy(&sources[3], home, &rule)),
    )
    .await?;
    for (copy, before) in copies.iter().zip(&by_rule) {
        ensure!(copy["metadata"]["uid"] == before["metadata"]["uid"]);
    }
    hub.wait_failed(&rule, "Conflict", 2).await?;
    for (member, object) in scene.members.iter().zip(&deleted) {
        member.is_untouched(object).await?;
    }
    let equal = hub
        .change(
            &Id::config_map(home, "deleted"),
            json!({"data": {"k": "deleted"}}),
        )
        .await?;
    scene.arrives(&equal, &rule, &[home]).await?;
    hub.all_applied(&rule, 6).await.map(|_| ())
}

#[tokio::test]
async fn a_rule_that_is_deleted_takes_its_copies_along_and_only_those() -> Result<()> {
    let home = "gone";
    let scene = scene_with(home).await?;
    let hub = &scene.hub;
    let (first, second) = (Id::rule(home, "first"), Id::rule(home, "second"));
    hub.make(
        &RuleDraft::new(home, "first")
            .named(&["a", "b"])
            .everywhere()
            .json(),
    )
    .await?;
    hub.make(
        &RuleDraft::new(home, "second")
            .named(&["c"])
            .everywhere()
            .json(),
    )
    .await?;
    let mut sources = Vec::new();
    for (name, rule) in [("a", &first), ("b", &first), ("c", &second)] {
        sources.push(hub.make(&Draft::config_map(home, name).json()).await?);
        scene
            .arrives(&sources[sources.len() - 1], rule, &[home])
            .await?;
    }
    let recorder = Recorder::start(scene.member(2), &Id::config_map(home, "")).await?;
    hub.delete(&first).await?;
    hub.lacks(&first).await?;
    // The rule's finalizer is removed after its copies, not earlier.
    for member in &scene.members {
        for source in &sources[..2] {
            ensure!(
                member.find(&Id::of(source)?).await?.is_none(),
                "{} is left in {}",
                Id::of(source)?,
                member.name()
            );
        }
    }
    // A rule of the same name is another rule.
    hub.make(
        &RuleDraft::new(home, "first")
            .named(&["a"])
            .everywhere()
            .json(),
    )
    .await?;
    scene.arrives(&sources[0], &first, &[home]).await?;
    hub.all_applied(&first, 2).await?;
    recorder.was_never_missing(home, "c")?;
    ensure!(recorder.about(home, "c")?.is_empty());
    Ok(())
}

#[tokio::test]
async fn ordinary_edits_cause_no_warning() -> Result<()> {
    let home = "calm";
    let scene = scene_with(home).await?;
    let hub = &scene.hub;
    let rule = Id::rule(home, "all");
    hub.make(
        &RuleDraft::new(home, "all")
            .named(&["*"])
            .everywhere()
            .json(),
    )
    .await?;
    let source = hub
        .make(&Draft::config_map(home, "settings").data("k", "1").json())
        .await?;
    scene.arrives(&source, &rule, &[home]).await?;
    for text in ["2", "3"] {
        let edited = hub
            .change(&Id::of(&source)?, json!({"data": {"k": text}}))
            .await?;
        scene.arrives(&edited, &rule, &[home]).await?;
    }
    hub.delete(&Id::of(&source)?).await?;
    scene.vanishes(&source, &[home]).await?;
    hub.wait_ready(&rule, "False", "NoSources").await?;
    hub.has_event(&rule, "NoSources").await?;
    let observed = hub.events_about(&rule).await?;
    ensure!(
        observed
            .iter()
            .all(|event| event.reason == "NoSources" || is_about_copies(event)),
        "{observed:?}"
    );
    for member in &scene.members {
        let observed = member.events_about(&Id::of(&source)?).await?;
        ensure!(observed.is_empty(), "{observed:?}");
    }
    Ok(())
}
