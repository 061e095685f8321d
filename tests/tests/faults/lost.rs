//! Only an order removes: a hub that lost its rules, all or some, or another hub in its place, removes nothing.

use anyhow::{Context, Result, ensure};
use runnel_tests::control_plane::{ControlPlane, Options};
use runnel_tests::fleet::{FleetOptions, Hub, NAMESPACE};
use runnel_tests::helm::Helm;
use runnel_tests::pod::Site;
use runnel_tests::scene::{Draft, Id, Recorder, RuleDraft, SOON, condition};
use runnel_tests::wait::{eventually, steadily};
use serde_json::{Value, json};
use std::time::Duration;

use super::stage::{MEMBERS, Stage, stage};

/// A rule with three sources, applied everywhere.
async fn three(stage: &Stage, namespace: &str) -> Result<(Id, Vec<Value>)> {
    let target = format!("{namespace}-target");
    stage.places(namespace, &[&target]).await?;
    let mut sources = Vec::new();
    for name in ["a", "b", "c"] {
        sources.push(stage.source(namespace, name, "right").await?);
    }
    let rule = stage
        .rule(namespace, "all", |draft| {
            draft.named(&["a", "b", "c"]).into(&[&target])
        })
        .await?;
    stage.scene.hub.all_applied(&rule, MEMBERS * 3).await?;
    Ok((rule, sources))
}

async fn recorders(stage: &Stage, target: &str) -> Result<Vec<Recorder>> {
    let mut all = Vec::new();
    for member in &stage.scene.members {
        all.push(Recorder::start(member, &Id::config_map(target, "any")).await?);
    }
    Ok(all)
}

fn nothing_went(recorders: &[Recorder], target: &str) -> Result<()> {
    for recorder in recorders {
        for name in ["a", "b", "c"] {
            recorder.was_never_missing(target, name)?;
        }
    }
    Ok(())
}

/// Deletes a rule from the hub's API without the hub.
async fn strip(stage: &Stage, rule: &Id) -> Result<()> {
    ensure!(
        !stage.fleet.hub_process().is_running(),
        "the hub would see it"
    );
    stage.scene.hub.delete(rule).await?;
    stage
        .scene
        .hub
        .change(rule, json!({"metadata": {"finalizers": null}}))
        .await?;
    stage.scene.hub.lacks(rule).await
}

async fn wait_orphaned(stage: &Stage, rules: &[&Id]) -> Result<()> {
    for number in 1..=MEMBERS {
        let member = Id::member(stage.fleet.member_name(number));
        stage
            .scene
            .hub
            .sees("holding orphaned copies", &member, |object| {
                let orphaned = condition(object, "OrphanedCopies")?;
                ensure!(
                    orphaned["status"] == "True" && orphaned["reason"] == "UnknownRules",
                    "{orphaned}"
                );
                let message = orphaned["message"].as_str().unwrap_or_default();
                for rule in rules {
                    ensure!(
                        message.contains(&rule.path()),
                        "{rule} is not named: {message}"
                    );
                }
                Ok(())
            })
            .await?;
    }
    Ok(())
}

#[tokio::test]
async fn hub_that_lost_a_rule_removes_nothing_and_reports_it() -> Result<()> {
    let stage = stage().await?;
    let (lost, sources) = three(&stage, "lost").await?;
    let (kept, _) = three(&stage, "kept").await?;
    let recorders = recorders(&stage, "lost-target").await?;
    let marks = stage.calm().await?;
    stage.fleet.kill_hub()?;
    strip(&stage, &lost).await?;
    stage.fleet.start_hub().await?;
    stage.connected(MEMBERS).await?;
    wait_orphaned(&stage, &[&lost]).await?;
    stage.calm().await?;
    nothing_went(&recorders, "lost-target")?;
    // The first mark is the hub's.
    for (number, mark) in marks.iter().enumerate().skip(1) {
        let writes = stage.agent_writes(number, *mark, &["lost-target", "kept-target"])?;
        ensure!(writes.is_empty(), "member {number}: {writes:?}");
    }
    stage.scene.hub.all_applied(&kept, MEMBERS * 3).await?;

    // Orphaned copies are still corrected, also by an agent that read the rule only from its own
    // Secret.
    let copy = Id::config_map("lost-target", "a");
    stage
        .scene
        .member(1)
        .change(&copy, json!({"data": {"value": "tampered"}}))
        .await?;
    stage
        .scene
        .member(1)
        .has_copy(&sources[0], "lost-target", &lost)
        .await?;
    stage.fleet.kill_agent(1)?;
    stage.fleet.start_agent(1).await?;
    stage.connected(MEMBERS).await?;
    wait_orphaned(&stage, &[&lost]).await?;

    // A new rule that selects the same takes them over. After that nothing is orphaned.
    let names = |draft: RuleDraft| draft.named(&["a", "b", "c"]).into(&["lost-target"]);
    let again = stage.rule("lost", "again", names).await?;
    stage.scene.hub.all_applied(&again, MEMBERS * 3).await?;
    for source in &sources {
        stage
            .scene
            .arrives(source, &again, &["lost-target"])
            .await?;
    }
    nothing_went(&recorders, "lost-target")
}

#[tokio::test]
async fn orphaned_copies_are_listed_and_deleted_by_command() -> Result<()> {
    let stage = stage().await?;
    let (lost, _) = three(&stage, "orphans").await?;
    stage.fleet.kill_hub()?;
    strip(&stage, &lost).await?;
    stage.fleet.start_hub().await?;
    stage.connected(MEMBERS).await?;
    wait_orphaned(&stage, &[&lost]).await?;
    let member = stage.fleet.member_name(1);
    let listed = stage.fleet.runnel(&["orphans", member]).await?;
    ensure!(
        listed.contains(&lost.path()) && listed.contains("--delete"),
        "{listed}"
    );
    stage
        .fleet
        .runnel(&["orphans", member, "--delete", "--yes"])
        .await?;
    let copies = |number: usize| {
        let place = stage.scene.member(number);
        async move {
            let found = place.find(&Id::config_map("orphans-target", "a")).await?;
            anyhow::Ok(found.is_some())
        }
    };
    eventually("the copies to go", SOON, async || {
        Ok((!copies(1).await?).then_some(()))
    })
    .await?;
    eventually("the list to be empty", SOON, async || {
        let listed = stage.fleet.runnel(&["orphans", member]).await?;
        Ok(listed.starts_with("No member").then_some(()))
    })
    .await?;
    // Only there.
    ensure!(copies(2).await?, "the copies in another member went");
    stage
        .fleet
        .runnel(&["orphans", "--delete", "--yes"])
        .await?;
    eventually("the other copies to go", SOON, async || {
        Ok((!copies(2).await?).then_some(()))
    })
    .await
}

#[tokio::test]
async fn a_rule_torn_out_of_a_running_hub_removes_nothing() -> Result<()> {
    let stage = stage().await?;
    stage.restart_hub(MEMBERS).await?;
    let (torn, _) = three(&stage, "torn").await?;
    let recorders = recorders(&stage, "torn-target").await?;
    stage.calm().await?;
    // Frozen, so that it cannot put its finalizer back in between.
    stage.fleet.hub_process().pause()?;
    stage
        .scene
        .hub
        .change(&torn, json!({"metadata": {"finalizers": null}}))
        .await?;
    stage.scene.hub.delete(&torn).await?;
    stage.scene.hub.lacks(&torn).await?;
    stage.fleet.hub_process().resume()?;
    wait_orphaned(&stage, &[&torn]).await?;
    stage.calm().await?;
    nothing_went(&recorders, "torn-target")?;
    ensure!(stage.metric("runnel_hub_tombstones_sent_total").await? == 0.0);
    Ok(())
}

#[tokio::test]
async fn a_hub_that_lost_every_rule_removes_nothing() -> Result<()> {
    let stage = stage().await?;
    let (first, sources) = three(&stage, "empty-1").await?;
    let (second, _) = three(&stage, "empty-2").await?;
    let recorders = recorders(&stage, "empty-1-target").await?;
    let all = stage.scene.hub.list(&Id::rule("empty-1", "any")).await?;
    stage.fleet.kill_hub()?;
    for rule in [&first, &second] {
        strip(&stage, rule).await?;
    }
    // Including the sources: an empty list of everything.
    for source in &sources {
        stage.scene.hub.delete(&Id::of(source)?).await?;
    }
    ensure!(all.len() == 1);
    stage.fleet.start_hub().await?;
    stage.connected(MEMBERS).await?;
    wait_orphaned(&stage, &[&first, &second]).await?;
    stage.calm().await?;
    nothing_went(&recorders, "empty-1-target")?;
    ensure!(stage.metric("runnel_hub_tombstones_sent_total").await? == 0.0);
    Ok(())
}

#[tokio::test]
async fn hub_with_the_same_identity_and_no_rules_is_not_obeyed() -> Result<()> {
    let stage = stage().await?;
    let (rule, sources) = three(&stage, "impostor").await?;
    let recorders = recorders(&stage, "impostor-target").await?;

    // A restored copy of the hub's identity, and nothing else, in another cluster.
    let other = ControlPlane::start("other-hub", Options::default()).await?;
    let port = stage
        .fleet
        .hub_address()
        .rsplit(':')
        .next()
        .and_then(|port| port.parse::<u16>().ok());
    let options = FleetOptions {
        hub_values: json!({"ports": {"grpc": port}}),
        ..FleetOptions::default()
    };
    let helm = Helm::find().await?;
    let impostor =
        Hub::install(&helm, &Site::from(&other), stage.fleet.binaries(), &options).await?;
    let place = runnel_tests::scene::TestCluster::new("other hub", other.client().await?);
    let identity = stage
        .scene
        .hub
        .get(&Id::secret(NAMESPACE, "runnel-hub-identity"))
        .await?;
    let copy =
        Draft::secret(NAMESPACE, "runnel-hub-identity").with("data", identity["data"].clone());
    place
        .make(&copy.with("type", identity["type"].clone()).json())
        .await?;
    for number in 1..=MEMBERS {
        let member = stage
            .scene
            .hub
            .get(&Id::member(stage.fleet.member_name(number)))
            .await?;
        let metadata = json!({"name": member["metadata"]["name"]});
        let made = json!({
            "apiVersion": member["apiVersion"], "kind": "MemberCluster", "metadata": metadata, "spec": {},
        });
        let made = place.make(&made).await?;
        let record = Id::member_record(stage.fleet.member_name(number));
        let identity = &stage.scene.hub.get(&record).await?["spec"]["identity"];
        let spec = json!({"memberUid": made["metadata"]["uid"], "identity": identity});
        let record = json!({
            "apiVersion": member["apiVersion"], "kind": "MemberRecord", "metadata": metadata, "spec": spec,
        });
        place.make(&record).await?;
    }
    stage.fleet.kill_hub()?;
    impostor.start().await?;
    let log = impostor.replicas()[0].log();
    eventually("both agents to be refused", SOON, async || {
        let output = std::fs::read_to_string(log)?;
        let refused = |number: usize| {
            let name = stage.fleet.member_name(number);
            output
                .lines()
                .any(|line| line.contains("a member was refused") && line.contains(name))
        };
        Ok((1..=MEMBERS).all(refused).then_some(()))
    })
    .await?;
    for number in 1..=MEMBERS {
        eventually("the agent to say why", SOON, async || {
            let output = std::fs::read_to_string(stage.fleet.agent_log(number))?;
            let line = output
                .lines()
                .rfind(|line| line.contains("the hub refuses this agent"));
            ensure!(
                line.is_some_and(|line| line.contains("join again with a new join string")),
                "{line:?}"
            );
            Ok(Some(()))
        })
        .await?;
    }
    steadily("the copies stay", Duration::from_secs(2), async || {
        nothing_went(&recorders, "impostor-target")
    })
    .await?;
    drop(impostor);
    drop(other);

    // An agent that was refused comes back by itself, but slowly: it is helped here.
    stage.fleet.start_hub().await?;
    for number in 1..=MEMBERS {
        stage.fleet.kill_agent(number)?;
        stage.fleet.start_agent(number).await?;
    }
    stage.connected(MEMBERS).await?;
    stage.scene.hub.all_applied(&rule, MEMBERS * 3).await?;
    stage
        .scene
        .arrives(
            sources.first().context("a source")?,
            &rule,
            &["impostor-target"],
        )
        .await?;
    nothing_went(&recorders, "impostor-target")
}
