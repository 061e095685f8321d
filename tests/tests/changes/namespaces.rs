//! Creation, change and deletion of namespaces in members.

use anyhow::{Result, ensure};
use runnel_tests::scene::{Draft, Id, RuleDraft, SOON, Scene, condition, entry_of};
use runnel_tests::wait::eventually;
use serde_json::json;

use super::scene;

#[tokio::test]
async fn late_or_relabeled_namespaces_are_followed() -> Result<()> {
    let home = "late";
    let scene = scene().await?;
    let (hub, member) = (&scene.hub, scene.member(1));
    scene.hub_namespaces(&[home]).await?;
    let source = hub
        .make(&Draft::config_map(home, "settings").data("k", "v").json())
        .await?;
    let rule = Id::rule(home, "wide");
    let choice = json!({
        "names": ["late-exact", "late-team-*"], "selector": {"matchLabels": {"late": "wanted"}},
        "exclude": ["late-team-old", "late-not-*"],
    });
    hub.make(
        &RuleDraft::new(home, "wide")
            .named(&["*"])
            .to(&["member-1"])
            .with("namespaces", choice)
            .json(),
    )
    .await?;
    // Only the exact name is known to be missing.
    let observed = hub.wait_ready(&rule, "False", "CopiesWaiting").await?;
    ensure!(
        observed["status"]["summary"]["copies"] == 1
            && observed["status"]["summary"]["copiesWaiting"] == 1
    );

    let labeled = |name| Draft::namespace(name).label("late", "wanted").json();
    for draft in [
        Draft::namespace("late-exact").json(),
        Draft::namespace("late-team-a").json(),
        Draft::namespace("late-team-old").json(),
        labeled("late-x"),
        labeled("late-not-x"),
        Draft::namespace("late-y").json(),
    ] {
        member.make(&draft).await?;
    }
    for namespace in ["late-exact", "late-team-a", "late-x"] {
        member.has_copy(&source, namespace, &rule).await?;
    }
    hub.all_applied(&rule, 3).await?;

    // In and out by label; Kubernetes' own namespaces and Runnel's are never meant by a label.
    let wanted = json!({"metadata": {"labels": {"late": "wanted"}}});
    for namespace in ["late-y", "kube-public", "runnel-system"] {
        member
            .change(&Id::namespace(namespace), wanted.clone())
            .await?;
    }
    member.has_copy(&source, "late-y", &rule).await?;
    member
        .change(
            &Id::namespace("late-x"),
            json!({"metadata": {"labels": {"late": "no"}}}),
        )
        .await?;
    member.lacks(&Id::of(&source)?.within("late-x")).await?;
    hub.all_applied(&rule, 3).await?;
    for namespace in [
        "late-team-old",
        "late-not-x",
        "kube-public",
        "runnel-system",
    ] {
        ensure!(
            member
                .find(&Id::of(&source)?.within(namespace))
                .await?
                .is_none(),
            "{namespace}"
        );
    }

    // The choice itself is edited: an exact name means what a glob or label does not.
    let choice =
        json!({"names": ["late-*", "kube-public"], "selector": null, "exclude": ["late-not-*"]});
    hub.change(&rule, json!({"spec": {"namespaces": choice}}))
        .await?;
    for namespace in [
        "late-exact",
        "late-team-a",
        "late-team-old",
        "late-x",
        "late-y",
        "kube-public",
    ] {
        member.has_copy(&source, namespace, &rule).await?;
    }
    hub.all_applied(&rule, 6).await?;
    hub.change(
        &rule,
        json!({"spec": {"namespaces": {"names": ["late-exact"], "exclude": null}}}),
    )
    .await?;
    for namespace in [
        "late-team-a",
        "late-team-old",
        "late-x",
        "late-y",
        "kube-public",
    ] {
        member.lacks(&Id::of(&source)?.within(namespace)).await?;
    }
    hub.all_applied(&rule, 1).await.map(|_| ())
}

/// Something in a namespace that keeps it from ending.
async fn anchor(scene: &Scene, namespace: &str) -> Result<Id> {
    let mut anchor = Draft::config_map(namespace, "anchor").json();
    anchor["metadata"]["finalizers"] = json!(["example.com/wait"]);
    scene.member(1).make(&anchor).await?;
    Ok(Id::config_map(namespace, "anchor"))
}

#[tokio::test]
async fn ending_namespace_is_left_alone_and_served_on_return() -> Result<()> {
    let home = "ending";
    let scene = scene().await?;
    let (hub, member) = (&scene.hub, scene.member(1));
    scene.hub_namespaces(&[home]).await?;
    let (exact, by_glob) = ("ending-exact", "ending-glob-1");
    for namespace in [exact, by_glob] {
        member.make(&Draft::namespace(namespace).json()).await?;
    }
    let source = hub
        .make(&Draft::config_map(home, "settings").data("k", "v").json())
        .await?;
    let (narrow, wide) = (Id::rule(home, "narrow"), Id::rule(home, "wide"));
    let draft = |name| RuleDraft::new(home, name).named(&["*"]).to(&["member-1"]);
    hub.make(&draft("narrow").into(&[exact]).json()).await?;
    hub.make(&draft("wide").into(&["ending-glob-*"]).json())
        .await?;
    member.has_copy(&source, exact, &narrow).await?;
    member.has_copy(&source, by_glob, &wide).await?;

    let anchors = [anchor(&scene, exact).await?, anchor(&scene, by_glob).await?];
    for namespace in [exact, by_glob] {
        member.delete(&Id::namespace(namespace)).await?;
        member.lacks(&Id::of(&source)?.within(namespace)).await?;
    }
    // A missing namespace is reported if it is named, not if a glob matched it.
    let observed = hub
        .wait_ready(&narrow, "False", "NamespaceTerminating")
        .await?;
    let entry = entry_of(&observed, "member-1")?;
    let message = entry["message"].as_str().unwrap_or_default();
    ensure!(
        entry["failed"] == 1 && message.contains("configmaps/ending-exact/settings"),
        "{entry}"
    );
    ensure!(
        condition(&observed, "Ready")?["message"]
            .as_str()
            .unwrap_or_default()
            .contains("member-1")
    );
    let none = hub.wait_ready(&wide, "False", "NoNamespaces").await?;
    ensure!(none["status"]["summary"]["copies"] == 0, "{none}");

    for anchor in &anchors {
        member
            .change(anchor, json!({"metadata": {"finalizers": null}}))
            .await?;
    }
    for namespace in [exact, by_glob] {
        member.lacks(&Id::namespace(namespace)).await?;
    }
    let observed = hub.wait_ready(&narrow, "False", "CopiesWaiting").await?;
    ensure!(
        observed["status"]["summary"]["copiesFailed"] == 0,
        "{}",
        observed["status"]
    );

    for namespace in [exact, by_glob] {
        member.make(&Draft::namespace(namespace).json()).await?;
    }
    member.has_copy(&source, exact, &narrow).await?;
    member.has_copy(&source, by_glob, &wide).await?;
    hub.all_applied(&narrow, 1).await?;
    hub.all_applied(&wide, 1).await.map(|_| ())
}

#[tokio::test]
async fn missing_namespaces_are_created_on_demand_and_never_deleted() -> Result<()> {
    let home = "made";
    let scene = scene().await?;
    let hub = &scene.hub;
    scene.hub_namespaces(&[home]).await?;
    let source = hub
        .make(&Draft::config_map(home, "settings").json())
        .await?;
    let rule = Id::rule(home, "makes");
    let draft = RuleDraft::new(home, "makes")
        .named(&["*"])
        .everywhere()
        .into(&["made-a", "made-b", "made-glob-*"]);
    hub.make(&draft.with("createNamespaces", json!(true)).json())
        .await?;
    scene.arrives(&source, &rule, &["made-a", "made-b"]).await?;
    hub.all_applied(&rule, 4).await?;

    // A deleted namespace is created again; a rule that no longer requests it does not delete it.
    scene.member(2).delete(&Id::namespace("made-b")).await?;
    let id = Id::namespace("made-b");
    let old = scene.member(1).get(&id).await?;
    scene
        .member(2)
        .sees("there again", &id, |namespace| {
            ensure!(
                namespace["metadata"]["deletionTimestamp"].is_null(),
                "it is being deleted"
            );
            Ok(())
        })
        .await?;
    scene.arrives(&source, &rule, &["made-b"]).await?;
    hub.change(
        &rule,
        json!({"spec": {"namespaces": {"names": ["made-a"]}, "createNamespaces": false}}),
    )
    .await?;
    scene.vanishes(&source, &["made-b"]).await?;
    hub.delete(&rule).await?;
    hub.lacks(&rule).await?;
    scene.vanishes(&source, &["made-a"]).await?;
    for member in &scene.members {
        for namespace in ["made-a", "made-b"] {
            let found = member.get(&Id::namespace(namespace)).await?;
            ensure!(
                found["metadata"]["deletionTimestamp"].is_null(),
                "{namespace} in {}",
                member.name()
            );
        }
    }
    scene.member(1).is_untouched(&old).await
}

#[tokio::test]
async fn rule_survives_the_namespace_of_its_sources() -> Result<()> {
    let scene = scene().await?;
    let (hub, member) = (&scene.hub, scene.member(1));
    let (few, many, target) = ("read-few", "read-many", "read-target");
    scene.hub_namespaces(&[few, many]).await?;
    scene.member_namespaces(&[target]).await?;
    let rule = Id::cluster_rule("reads-two");
    let entry = json!({"namespaces": ["read-*"], "resources": ["configmaps"], "selector": {"matchLabels": {"read": "yes"}}});
    let make = async |namespace: &str, count: usize| {
        let mut made = vec![];
        for number in 0..count {
            let draft =
                Draft::config_map(namespace, &format!("{namespace}-{number}")).label("read", "yes");
            made.push(hub.make(&draft.data("k", namespace).json()).await?);
        }
        anyhow::Ok(made)
    };
    let (of_few, of_many) = (make(few, 2).await?, make(many, 12).await?);
    let draft = RuleDraft::cluster_scoped("reads-two")
        .source(entry)
        .to(&["member-1"])
        .into(&[target]);
    hub.make(&draft.json()).await?;
    for source in of_few.iter().chain(&of_many) {
        member.has_copy(source, target, &rule).await?;
    }
    hub.all_applied(&rule, 14).await?;

    // Copies below the limit are removed with their namespace; the others are kept, and so is the
    // rule.
    hub.delete(&Id::namespace(few)).await?;
    for source in &of_few {
        member.lacks(&Id::of(source)?.within(target)).await?;
    }
    hub.all_applied(&rule, 12).await?;
    // It is there again, under another uid, and so are its sources.
    hub.lacks(&Id::namespace(few)).await?;
    scene.hub_namespaces(&[few]).await?;
    let of_few = make(few, 2).await?;
    for source in &of_few {
        member.has_copy(source, target, &rule).await?;
    }
    hub.all_applied(&rule, 14).await?;

    // Copies above the limit are blocked: none was named. At most ten copies may be removed within
    // a minute.
    hub.delete(&Id::namespace(many)).await?;
    hub.sees("held", &rule, |rule| {
        let blocked = condition(rule, "ApprovalRequired")?;
        ensure!(
            blocked["status"] == "True" && rule["status"]["summary"]["sources"] == 2,
            "{}",
            rule["status"]
        );
        Ok(())
    })
    .await?;
    hub.lacks(&Id::namespace(many)).await?;
    // The namespace controller may delete the sources in several batches.
    let digest = eventually("all that is left to be held", SOON, async || {
        let pending = hub.get(&rule).await?["status"]["pendingApproval"].clone();
        let blocked = pending["copies"].as_u64().unwrap_or_default();
        let mut left = 0;
        for source in &of_many {
            let copy = Id::of(source)?.within(target);
            left += u64::from(member.find(&copy).await?.is_some());
        }
        ensure!(
            blocked >= 2 && left == blocked,
            "{blocked} are blocked, {left} are left"
        );
        Ok(Some(pending["digest"].clone()))
    })
    .await?;
    for source in &of_few {
        member.has_copy(source, target, &rule).await?;
    }
    hub.change(
        &rule,
        json!({"metadata": {"annotations": {"runnel.dev/approve": digest}}}),
    )
    .await?;
    for source in &of_many {
        member.lacks(&Id::of(source)?.within(target)).await?;
    }
    hub.all_applied(&rule, 2).await.map(|_| ())
}
