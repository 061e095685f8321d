//! Changes of member clusters: relabeled, joined late, leaving in order, revoked and accepted
//! again.
//! Each test has its own member.

use std::time::Duration;

use anyhow::{Result, ensure};
use runnel_tests::fleet::{Fleet, FleetOptions};
use runnel_tests::scene::{
    Draft, Id, Metrics, Newcomer, RETAINED, Recorder, RuleDraft, SOON, Scene, TestCluster,
    condition, entry_of, is_marked,
};
use runnel_tests::wait::{eventually, steadily};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

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

const A_SECOND: Duration = Duration::from_secs(1);

/// Waits until an agent, by its operations endpoint, has no stream to the hub.
async fn is_cut(ops_url: &str, within: Duration) -> Result<()> {
    eventually("the stream to be cut", within, async || {
        Ok((Metrics::of(ops_url)
            .await?
            .sum("runnel_session_connected")?
            == 0.0)
            .then_some(()))
    })
    .await
}

/// Waits until the condition of a member has this status and reason.
async fn wait_for_member(
    hub: &TestCluster,
    name: &str,
    kind: &str,
    status: &str,
    reason: &str,
) -> Result<Value> {
    hub.sees(
        &format!("{kind}={status}, {reason}"),
        &Id::member(name),
        |member| {
            let observed = condition(member, kind)?;
            ensure!(
                observed["status"] == status && observed["reason"] == reason,
                "it is {observed}"
            );
            ensure!(
                observed["observedGeneration"] == member["metadata"]["generation"],
                "it is old: {observed}"
            );
            Ok(())
        },
    )
    .await
}

#[tokio::test]
async fn a_cluster_that_is_relabeled_is_followed() -> Result<()> {
    let scene = Scene::of(fleet().await?).await?;
    let (hub, member, home) = (&scene.hub, scene.member(1), "relabeled");
    scene.hub_namespaces(&[home]).await?;
    scene.member_namespaces(&[home]).await?;
    let gold = json!({"selector": {"matchExpressions": [{"key": "tier", "operator": "In", "values": ["gold"]}]}});
    let chosen = |name| {
        RuleDraft::new(home, name)
            .named(&[name])
            .with("clusters", gold.clone())
    };
    let (deletes, retains, steady) = (
        Id::rule(home, "deletes"),
        Id::rule(home, "retains"),
        Id::rule(home, "steady"),
    );
    hub.make(&chosen("deletes").json()).await?;
    hub.make(
        &chosen("retains")
            .with("deletionPolicy", json!("Retain"))
            .json(),
    )
    .await?;
    hub.make(
        &RuleDraft::new(home, "steady")
            .named(&["steady"])
            .to(&["member-1"])
            .json(),
    )
    .await?;
    let mut sources = Vec::new();
    for name in ["deletes", "retains", "steady"] {
        sources.push(
            hub.make(&Draft::config_map(home, name).data("k", "v").json())
                .await?,
        );
    }
    let untouched = member.has_copy(&sources[2], home, &steady).await?;
    hub.wait_ready(&deletes, "False", "NoClusters").await?;

    let label = |tier: Value| json!({"metadata": {"labels": {"tier": tier}}});
    hub.change(&Id::member("member-1"), label(json!("gold")))
        .await?;
    member.has_copy(&sources[0], home, &deletes).await?;
    member.has_copy(&sources[1], home, &retains).await?;
    for rule in [&deletes, &retains] {
        hub.all_applied(rule, 1).await?;
    }
    hub.change(&Id::member("member-1"), label(json!("silver")))
        .await?;
    member.lacks(&Id::of(&sources[0])?).await?;
    member
        .sees("retained", &Id::of(&sources[1])?, |object| {
            ensure!(
                !is_marked(object) && object["metadata"]["annotations"][RETAINED] == retains.path(),
                "{object}"
            );
            Ok(())
        })
        .await?;
    for rule in [&deletes, &retains] {
        hub.wait_ready(rule, "False", "NoClusters").await?;
    }
    hub.change(&Id::member("member-1"), label(json!("gold")))
        .await?;
    member.has_copy(&sources[0], home, &deletes).await?;
    member.has_copy(&sources[1], home, &retains).await?;
    hub.change(&Id::member("member-1"), label(Value::Null))
        .await?;
    member.lacks(&Id::of(&sources[0])?).await?;
    member.is_untouched(&untouched).await
}

#[tokio::test]
async fn cluster_outside_the_gate_is_sent_nothing_until_admitted() -> Result<()> {
    let fleet = fleet().await?;
    let scene = Scene::of(fleet).await?;
    let (hub, member, home) = (&scene.hub, scene.member(2), "shut-out");
    scene.hub_namespaces(&[home]).await?;
    scene.member_namespaces(&[home]).await?;
    let both = |name| RuleDraft::new(home, name).to(&["member-1", "member-2"]);
    let (rule, ends, stays) = (
        Id::rule(home, "rule"),
        Id::rule(home, "ends"),
        Id::rule(home, "stays"),
    );
    let most = json!({"resources": ["configmaps"], "names": ["*"], "exclude": ["by-*"]});
    hub.make(&both("rule").source(most).json()).await?;
    hub.make(&both("ends").named(&["by-ends"]).json()).await?;
    hub.make(
        &both("stays")
            .named(&["by-stays"])
            .with("deletionPolicy", json!("Retain"))
            .json(),
    )
    .await?;
    let config = |name| Draft::config_map(home, name).data("k", "before").json();
    let mut sources = Vec::new();
    for (name, rule) in [
        ("edited", &rule),
        ("deleted", &rule),
        ("tampered", &rule),
        ("by-ends", &ends),
        ("by-stays", &stays),
    ] {
        sources.push(hub.make(&config(name)).await?);
        scene
            .arrives(&sources[sources.len() - 1], rule, &[home])
            .await?;
    }
    hub.all_applied(&rule, 6).await?;

    hub.change(
        &Id::member("member-2"),
        json!({"spec": {"accepted": false}}),
    )
    .await?;
    is_cut(&fleet.agent_ops_url(2), A_SECOND).await?;
    let observed = wait_for_member(hub, "member-2", "Accepted", "False", "NotAccepted").await?;
    let connected = condition(&observed, "Connected")?;
    ensure!(
        connected["status"] == "False" && connected["reason"] == "NotAccepted",
        "{}",
        observed["status"]
    );
    let observed = hub.all_applied(&rule, 3).await?;
    ensure!(
        observed["status"]["display"]["clusters"] == "1/1",
        "{}",
        observed["status"]
    );

    // Everything changes, and none of it is sent there. A deleted rule does not wait for it either.
    let edited = hub
        .change(
            &Id::config_map(home, "edited"),
            json!({"data": {"k": "after"}}),
        )
        .await?;
    let added = hub.make(&config("added")).await?;
    hub.delete(&Id::config_map(home, "deleted")).await?;
    for rule in [&ends, &stays] {
        hub.delete(rule).await?;
        hub.lacks(rule).await?;
    }
    let first = scene.member(1);
    first.has_copy(&edited, home, &rule).await?;
    first.has_copy(&added, home, &rule).await?;
    first.lacks(&Id::config_map(home, "deleted")).await?;
    let mut before = Vec::new();
    for name in ["edited", "deleted", "by-ends", "by-stays"] {
        before.push(member.get(&Id::config_map(home, name)).await?);
    }
    // Its agent keeps the copies.
    member
        .change(
            &Id::config_map(home, "tampered"),
            json!({"data": {"k": "mine"}}),
        )
        .await?;
    member.has_copy(&sources[2], home, &rule).await?;
    steadily("the copies stay as they were", 2 * A_SECOND, async || {
        for object in &before {
            ensure!(object["data"]["k"] == "before");
            member.is_untouched(object).await?;
        }
        ensure!(member.find(&Id::of(&added)?).await?.is_none());
        Ok(())
    })
    .await?;
    hub.change(&Id::member("member-2"), json!({"spec": {"accepted": true}}))
        .await?;
    wait_for_member(hub, "member-2", "Accepted", "True", "Accepted").await?;
    member.has_copy(&edited, home, &rule).await?;
    member.has_copy(&added, home, &rule).await?;
    member.lacks(&Id::config_map(home, "deleted")).await?;
    hub.all_applied(&rule, 6).await?;
    // The rules that were deleted meanwhile, each with its deletion policy.
    member.lacks(&Id::config_map(home, "by-ends")).await?;
    member
        .sees("retained", &Id::config_map(home, "by-stays"), |object| {
            ensure!(
                !is_marked(object) && object["data"]["k"] == "before",
                "{}",
                object["metadata"]
            );
            Ok(())
        })
        .await?;
    let observed = wait_for_member(hub, "member-2", "Connected", "True", "SessionOpen").await?;
    ensure!(
        condition(&observed, "OrphanedCopies").is_err(),
        "{}",
        observed["status"]
    );
    hub.sees("without orders", &Id::member_record("member-2"), |record| {
        let pending = &record["spec"]["pendingRemovals"];
        ensure!(pending.is_null() || *pending == json!([]), "{pending}");
        Ok(())
    })
    .await
    .map(|_| ())
}

/// A cordoned cluster keeps its copies, and its agent corrects drift. It gets nothing new, and
/// copies that are no longer selected are removed as elsewhere. Afterwards it catches up.
async fn is_cordoned_and_catches_up(
    hub: &TestCluster,
    first: &TestCluster,
    home: &str,
    target: &str,
) -> Result<()> {
    let rule = Id::rule(home, "cordon");
    let clusters = json!({"all": true, "exclude": ["member-2"]});
    let named = json!({"resources": ["configmaps"], "names": ["cordon-*"]});
    let draft = RuleDraft::new(home, "cordon")
        .source(named)
        .with("clusters", clusters)
        .into(&[target]);
    hub.make(&draft.json()).await?;
    let config = |name| Draft::config_map(home, name).data("k", "before").json();
    let (kept, gone) = (
        hub.make(&config("cordon-kept")).await?,
        hub.make(&config("cordon-gone")).await?,
    );
    hub.all_applied(&rule, 4).await?;
    let there = |object: &Value| anyhow::Ok(Id::of(object)?.within(target));

    hub.change(&Id::member("late"), json!({"spec": {"cordoned": true}}))
        .await?;
    wait_for_member(hub, "late", "Cordoned", "True", "Cordoned").await?;
    let edited = hub
        .change(&Id::of(&kept)?, json!({"data": {"k": "after"}}))
        .await?;
    let new = hub.make(&config("cordon-new")).await?;
    hub.delete(&Id::of(&gone)?).await?;
    for source in [&edited, &new] {
        first.has_copy(source, target, &rule).await?;
    }
    for place in [first, hub] {
        place.lacks(&there(&gone)?).await?;
    }
    hub.wait_ready(&rule, "False", "Cordoned").await?;
    // Copies of the new target are counted a moment later.
    hub.sees("the state of each cluster", &rule, |observed| {
        let entry = entry_of(observed, "late")?;
        ensure!(
            entry["state"] == "Waiting" && entry["reason"] == "Cordoned" && entry["applied"] == 1,
            "{entry}"
        );
        ensure!(
            entry_of(observed, "member-1")?["state"] == "Ready",
            "{}",
            observed["status"]
        );
        Ok(())
    })
    .await?;
    hub.change(&there(&kept)?, json!({"data": {"k": "mine"}}))
        .await?;
    hub.has_copy(&kept, target, &rule).await?;
    steadily("it gets nothing new", A_SECOND, async || {
        ensure!(hub.get(&there(&kept)?).await?["data"]["k"] == "before");
        ensure!(
            hub.find(&there(&new)?).await?.is_none(),
            "it has the new copy"
        );
        Ok(())
    })
    .await?;

    hub.change(&Id::member("late"), json!({"spec": {"cordoned": false}}))
        .await?;
    for source in [&edited, &new] {
        hub.has_copy(source, target, &rule).await?;
    }
    hub.all_applied(&rule, 4).await?;
    let observed = wait_for_member(hub, "late", "Accepted", "True", "Accepted").await?;
    ensure!(
        condition(&observed, "Cordoned").is_err(),
        "{}",
        observed["status"]
    );
    hub.delete(&rule).await?;
    hub.lacks(&rule).await
}

#[tokio::test]
async fn cluster_joins_late_leaves_returns_and_is_deleted() -> Result<()> {
    let fleet = fleet().await?;
    let scene = Scene::of(fleet).await?;
    let (hub, home, target) = (&scene.hub, "leaves", "leaves-target");
    scene.hub_namespaces(&[home, target]).await?;
    scene
        .member(1)
        .make(&Draft::namespace(target).json())
        .await?;
    let most = json!({"all": true, "exclude": ["member-2"]});
    let draft = |name| {
        RuleDraft::new(home, name)
            .named(&[name])
            .with("clusters", most.clone())
            .into(&[target])
    };
    let (deletes, retains) = (Id::rule(home, "deletes"), Id::rule(home, "retains"));
    hub.make(
        &draft("deletes")
            .source(json!({"resources": ["configmaps"], "names": ["more*"]}))
            .json(),
    )
    .await?;
    hub.make(
        &draft("retains")
            .with("deletionPolicy", json!("Retain"))
            .json(),
    )
    .await?;
    let config = |name| Draft::config_map(home, name).data("k", name).json();
    let (source, kept) = (
        hub.make(&config("deletes")).await?,
        hub.make(&config("retains")).await?,
    );
    hub.all_applied(&deletes, 1).await?;

    // The new member is the hub's own cluster: one more control plane would show nothing more.
    let late = Newcomer::join(fleet, "late", fleet.hub(), &FleetOptions::default()).await?;
    wait_for_member(hub, "late", "Connected", "True", "SessionOpen").await?;
    hub.has_copy(&source, target, &deletes).await?;
    let kept_copy = hub.has_copy(&kept, target, &retains).await?;
    for rule in [&deletes, &retains] {
        let observed = hub.all_applied(rule, 2).await?;
        ensure!(
            observed["status"]["display"]["clusters"] == "2/2",
            "{}",
            observed["status"]
        );
    }

    is_cordoned_and_catches_up(hub, scene.member(1), home, target).await?;

    let recorder = Recorder::start(scene.member(1), &Id::config_map(target, "")).await?;
    hub.change(&Id::member("late"), json!({"spec": {"leaving": true}}))
        .await?;
    let observed = wait_for_member(hub, "late", "Accepted", "False", "Drained").await?;
    let left = condition(&observed, "Drained")?;
    let message = left["message"].as_str().unwrap_or_default();
    let behind = "1 copies were left behind by deletionPolicy: Retain (1 of leaves/retains)";
    ensure!(
        left["status"] == "True" && left["reason"] == "Drained",
        "{left}"
    );
    ensure!(
        message.starts_with(behind) && message.contains("can be deleted"),
        "{message}"
    );
    // It reported that when nothing was left, not earlier.
    let gone = Id::of(&source)?.within(target);
    ensure!(hub.find(&gone).await?.is_none(), "a copy is left");
    let left = hub.get(&Id::of(&kept)?.within(target)).await?;
    ensure!(
        !is_marked(&left) && left["metadata"]["uid"] == kept_copy["metadata"]["uid"],
        "{}",
        left["metadata"]
    );
    hub.all_applied(&deletes, 1).await?;
    let more = hub.make(&config("more")).await?;
    scene.member(1).has_copy(&more, target, &deletes).await?;
    let observed = hub.all_applied(&deletes, 2).await?;
    ensure!(
        observed["status"]["display"]["clusters"] == "1/1",
        "{}",
        observed["status"]
    );
    ensure!(
        hub.find(&Id::of(&more)?.within(target)).await?.is_none(),
        "it gets nothing new"
    );

    // The leave is canceled: retained copies are adopted again.
    hub.change(&Id::member("late"), json!({"spec": {"leaving": false}}))
        .await?;
    for source in [&source, &more] {
        hub.has_copy(source, target, &deletes).await?;
    }
    let again = hub.has_copy(&kept, target, &retains).await?;
    ensure!(again["metadata"]["uid"] == kept_copy["metadata"]["uid"]);
    let observed = wait_for_member(hub, "late", "Accepted", "True", "Accepted").await?;
    ensure!(
        condition(&observed, "Drained").is_err(),
        "{}",
        observed["status"]
    );
    hub.all_applied(&deletes, 4).await?;
    recorder.was_never_missing(target, "deletes")?;

    // To delete a cluster is to shut it out: its copies stay, and no rule waits for it.
    hub.delete(&Id::member("late")).await?;
    is_cut(&late.ops_url(), A_SECOND).await?;
    hub.lacks(&Id::member("late")).await?;
    let log = std::fs::read_to_string(fleet.hub_log())?;
    ensure!(
        log.contains("these copies are left behind there"),
        "the hub should say what stays"
    );
    hub.all_applied(&deletes, 2).await?;
    let edited = hub
        .change(&Id::of(&source)?, json!({"data": {"k": "edited"}}))
        .await?;
    scene.member(1).has_copy(&edited, target, &deletes).await?;
    steadily("its copies stay as they were", 2 * A_SECOND, async || {
        let copy = hub.get(&gone).await?;
        ensure!(copy["data"]["k"] == "deletes" && is_marked(&copy));
        Ok(())
    })
    .await?;
    late.process().check()?;
    let log = std::fs::read_to_string(late.process().log())?;
    ensure!(
        log.contains("the hub refuses this agent"),
        "the agent should say why"
    );
    eventually("the agent to end", SOON, async || {
        Ok(Some(late.process().kill()?))
    })
    .await
}
