//! Takeovers by `conflictPolicy: Overwrite` above a rule's limit wait until somebody releases exactly that set.
use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use runnel_tests::fleet::{Fleet, FleetOptions};
use runnel_tests::scene::{Draft, Id, Place, RuleDraft, Scene, condition, entry_of};
use serde_json::{Value, json};

use super::{HOME, MEMBERS, SOURCES, Stage};

fn draft(number: usize, value: &str) -> Value {
    Draft::config_map(HOME, &format!("s{number}")).label("set", "a").data("k", value).json()
}

/// Sources, and in the first member an object of somebody else in each one's place: one of them is equal, and of
/// another there is none.
async fn stage() -> Result<(Stage, BTreeMap<usize, Value>)> {
    let agent_values = json!({"policy": {"overwrite": true}});
    let options = FleetOptions { members: MEMBERS, agent_values, ..FleetOptions::default() };
    let fleet = Fleet::start(options).await?;
    let scene = Scene::of(&fleet).await?;
    scene.hub_namespaces(&[HOME]).await?;
    scene.member_namespaces(&[HOME]).await?;
    let mut theirs = BTreeMap::new();
    for number in 0..SOURCES {
        scene.hub.make(&draft(number, "ours")).await?;
        let value = if number == 0 { "ours" } else { "theirs" };
        theirs.insert(number, scene.member(1).make(&draft(number, value)).await?);
    }
    let rule = RuleDraft::new(HOME, "all").labelled("set", "a").with("conflictPolicy", json!("Overwrite"));
    scene.hub.make(&rule.with("clusters", json!({"all": true})).json()).await?;
    Ok((Stage { fleet, scene, rule: Id::rule(HOME, "all") }, theirs))
}

/// Waits until so many takeovers are held and says by which digest.
async fn is_held(stage: &Stage, objects: u64) -> Result<String> {
    let what = format!("{objects} takeovers held");
    let told = stage.scene.hub.sees(&what, &stage.rule, |rule| {
        let (held, takeovers) = (condition(rule, "TakeoverHeld")?, &rule["status"]["takeovers"]);
        ensure!(takeovers["copies"] == objects && takeovers["released"] == false, "{held} {takeovers}");
        let digest = takeovers["digest"].as_str().unwrap_or_default();
        let message = held["message"].as_str().unwrap_or_default();
        ensure!(digest.len() == 20 && message.contains(&format!("runnel.dev/release={digest}")), "{message}");
        let ready = condition(rule, "Ready")?;
        ensure!(ready["status"] == "False" && ready["reason"] == "TakeoverLimit", "{ready}");
        ensure!(condition(rule, "DeletionHeld").is_err(), "a removal is held");
        Ok(())
    });
    Ok(told.await?["status"]["takeovers"]["digest"].as_str().context("no digest")?.to_owned())
}

async fn are_untouched(member: &Place, theirs: &BTreeMap<usize, Value>) -> Result<()> {
    for object in theirs.values() {
        member.is_untouched(object).await?;
    }
    Ok(())
}

async fn restart_hub(stage: &Stage) -> Result<()> {
    stage.fleet.kill_hub()?;
    stage.fleet.start_hub().await?;
    for member in 1..=MEMBERS {
        stage.fleet.connected(member).await?;
    }
    Ok(())
}

#[tokio::test]
async fn takeovers_above_the_limit_wait_for_their_digest() -> Result<()> {
    let (stage, mut theirs) = stage().await?;
    let (hub, first, second) = (&stage.scene.hub, stage.scene.member(1), stage.scene.member(2));
    let known = is_held(&stage, 11).await?;
    // What is equal is adopted, and what has nobody's object in its place is there; nothing else waits for a person.
    theirs.remove(&0);
    first.has_copy(&hub.get(&Stage::copy(0)).await?, HOME, &stage.rule).await?;
    for number in 0..SOURCES {
        second.has_copy(&hub.get(&Stage::copy(number)).await?, HOME, &stage.rule).await?;
    }
    are_untouched(first, &theirs).await?;
    let told = hub.get(&stage.rule).await?;
    let entry = entry_of(&told, "member-1")?;
    ensure!(entry["reason"] == "TakeoverWaiting" && entry["failed"] == 11, "{entry}");
    stage.held_metric(1.0).await?;

    // Neither another process of the hub nor one of the agent lets anything pass, and both call it the same.
    restart_hub(&stage).await?;
    ensure!(is_held(&stage, 11).await? == known, "another digest after a restart of the hub");
    stage.fleet.kill_agent(1)?;
    stage.fleet.start_agent(1).await?;
    stage.fleet.connected(1).await?;
    ensure!(is_held(&stage, 11).await? == known, "another digest after a restart of the agent");
    are_untouched(first, &theirs).await?;

    // One more, elsewhere, alone far below the limit: it joins.
    let more = second.make(&draft(SOURCES, "theirs")).await?;
    hub.make(&draft(SOURCES, "ours")).await?;
    let grown = is_held(&stage, 12).await?;
    ensure!(grown != known);
    first.has_copy(&hub.get(&Stage::copy(SOURCES)).await?, HOME, &stage.rule).await?;
    ensure!(is_held(&stage, 12).await? == grown);
    are_untouched(first, &theirs).await?;
    second.is_untouched(&more).await?;

    // Somebody deletes one of them and makes it anew: another object, another set. The first digest releases nothing more.
    first.delete(&Stage::copy(1)).await?;
    let anew = first.make(&draft(1, "theirs again")).await;
    match anew {
        Ok(anew) => {
            theirs.insert(1, anew);
        }
        // The agent was faster, and the place is taken.
        Err(_) => drop(theirs.remove(&1)),
    }
    let left = theirs.len() as u64 + 1;
    let other = runnel_tests::wait::eventually("another digest", runnel_tests::scene::SOON * 3, async || {
        let now = is_held(&stage, left).await?;
        Ok((now != grown).then_some(now))
    });
    let other = other.await?;
    stage.release(&stage.rule, &known).await?;
    let (code, said) = stage.runnel(&["release", "all"]).await?;
    ensure!(code == Some(2) && said.contains("--yes"), "{said}");
    for line in [
        format!("{} objects in member-1 that are not Runnel's: overwritten", theirs.len()),
        "1 object in member-2 that is not Runnel's: overwritten".to_owned(),
    ] {
        ensure!(said.contains(&line), "{said}");
    }
    ensure!(is_held(&stage, left).await? == other, "released though nobody said yes");
    are_untouched(first, &theirs).await?;

    // What was shown before that lets go of what has not changed since, in the other member, and of nothing else.
    stage.release(&stage.rule, &grown).await?;
    second.has_copy(&hub.get(&Stage::copy(SOURCES)).await?, HOME, &stage.rule).await?;
    let left = left - 1;
    ensure!(is_held(&stage, left).await? != other);
    are_untouched(first, &theirs).await?;

    // Exactly the rest.
    let (code, said) = stage.runnel(&["release", "all", "--yes"]).await?;
    ensure!(code == Some(0) && said.contains(&format!("Released: {left} copies")), "{said}");
    let told = hub.all_applied(&stage.rule, MEMBERS * (SOURCES + 1)).await?;
    ensure!(condition(&told, "TakeoverHeld").is_err() && told["status"]["takeovers"]["released"] == true);
    for member in [first, second] {
        for number in 0..=SOURCES {
            member.has_copy(&hub.get(&Stage::copy(number)).await?, HOME, &stage.rule).await?;
        }
    }
    for (number, object) in &theirs {
        let now = first.get(&Stage::copy(*number)).await?;
        ensure!(now["metadata"]["uid"] == object["metadata"]["uid"], "s{number} was made anew");
    }
    first.is_told(&Stage::copy(2), "Overwritten").await?;
    stage.held_metric(0.0).await?;

    // What is below the limit needs nobody, and the digest that was used is good for nothing more.
    first.make(&draft(20, "theirs")).await?;
    hub.make(&draft(20, "ours")).await?;
    first.has_copy(&hub.get(&Stage::copy(20)).await?, HOME, &stage.rule).await?;
    hub.all_applied(&stage.rule, MEMBERS * (SOURCES + 2)).await?;

    // Held by a limit of nothing, and given up: the rule says that it overwrites no more.
    hub.change(&stage.rule, json!({"spec": {"removalLimit": {"count": 0, "percent": 0}}})).await?;
    let last = first.make(&draft(21, "theirs")).await?;
    hub.make(&draft(21, "ours")).await?;
    is_held(&stage, 1).await?;
    hub.change(&stage.rule, json!({"spec": {"conflictPolicy": "Fail"}})).await?;
    let told = hub.says_ready(&stage.rule, "False", "Conflict").await?;
    ensure!(condition(&told, "TakeoverHeld").is_err(), "{}", told["status"]);
    first.is_untouched(&last).await
}
