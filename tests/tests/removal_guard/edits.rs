//! Random edits, live: they remove no more than the limit, and after they are undone nothing stays
//! blocked.
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use runnel_tests::scene::{Draft, Id, RuleDraft};
use serde_json::json;

use super::{HOME, MEMBERS, SOURCES, Stage, stage};

/// Less than the minute of the limit: a copy goes a while after the hub has decided it, and the test notices it later still.
const LATELY: Duration = Duration::from_secs(40);

const EDITS: usize = 20;

/// The hub's watches and streams are in order: an edit now arrives after all earlier ones.
async fn beat(stage: &Stage, number: usize) -> Result<()> {
    let (hub, rule) = (&stage.scene.hub, Id::rule(HOME, "beat"));
    let source = Id::config_map(HOME, "beat");
    if number == 0 {
        hub.make(
            &RuleDraft::new(HOME, "beat")
                .named(&["beat"])
                .everywhere()
                .json(),
        )
        .await?;
        hub.make(&Draft::config_map(HOME, "beat").data("k", "0").json())
            .await?;
    }
    hub.change(
        &rule,
        json!({"spec": {"removalLimit": {"count": 100 + number}}}),
    )
    .await?;
    hub.sees("heard of", &rule, |rule| {
        ensure!(
            rule["status"]["observedGeneration"] == rule["metadata"]["generation"],
            "not yet"
        );
        Ok(())
    })
    .await?;
    hub.change(&source, json!({"data": {"k": number.to_string()}}))
        .await?;
    for member in 1..=MEMBERS {
        stage
            .scene
            .member(member)
            .has_copy(&hub.get(&source).await?, HOME, &rule)
            .await?;
    }
    Ok(())
}

/// Whether removals of the rule wait for an approval now. The status shows it later.
async fn is_blocked_now(stage: &Stage) -> Result<bool> {
    Ok(stage.review(0).await?["status"]["digest"] != "")
}

async fn choose_all(stage: &Stage) -> Result<()> {
    let all = json!({"spec": {"clusters": {"selector": null, "all": true}}});
    stage.scene.hub.change(&stage.rule, all).await.map(drop)
}

/// Reverts every edit.
async fn undo(stage: &Stage) -> Result<()> {
    choose_all(stage).await?;
    stage.select("a").await?;
    for number in 0..SOURCES {
        stage.label(number, "a").await?;
    }
    Ok(())
}

/// None of these edits deletes anything by name, so every removal counts: at most ten copies within
/// a minute.
#[tokio::test]
async fn twenty_random_edits_remove_no_more_than_the_limit() -> Result<()> {
    let stage = stage().await?;
    let hub = &stage.scene.hub;
    let everywhere = async || -> Result<BTreeSet<(usize, usize)>> {
        let mut all = BTreeSet::new();
        for member in 1..=MEMBERS {
            all.extend(
                stage
                    .copies(member)
                    .await?
                    .into_iter()
                    .map(|number| (member, number)),
            );
        }
        Ok(all)
    };
    let (mut dice, mut gone, mut holds, mut blocked): (u64, Vec<(Instant, usize)>, usize, usize) =
        (9, vec![], 0, 0);
    let mut roll = |sides: u64| {
        dice = dice
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (dice >> 33) % sides
    };
    stage.fleet.views_are_served().await?;
    beat(&stage, 0).await?;
    let mut before = everywhere().await?;
    // Which edits follow depends on what is blocked, and so on the time between them. If those twenty
    // neither removed nor blocked enough, others do.
    let mut edit = 0;
    while edit < EDITS || holds <= 3 || gone.iter().all(|(_, copies)| *copies == 0) {
        edit += 1;
        ensure!(
            edit <= 5 * EDITS,
            "{holds} times held after {edit} edits, {gone:?}"
        );
        let begin = Instant::now();
        // While a removal is blocked all others of the cause are too, so the blocked phase is short.
        let edited = if blocked >= 2 { 7 } else { roll(7) };
        let value = ["a", "b", "b", "nothing"][roll(4) as usize];
        match edited {
            0 => stage.select(value).await?,
            1..=3 => stage.label(roll(SOURCES as u64) as usize, value).await?,
            4 => {
                for number in 0..roll(SOURCES as u64) as usize {
                    stage.label(number, value).await?;
                }
            }
            5 if value == "a" => choose_all(&stage).await?,
            5 => {
                let env = json!({"spec": {"clusters": {"selector": {"matchLabels": {"env": value}}, "all": null}}});
                hub.change(&stage.rule, env).await.map(drop)?;
            }
            6 => {
                stage
                    .approve(&stage.rule, &format!("{:020}", roll(1000)))
                    .await?
            }
            _ => undo(&stage).await?,
        }
        beat(&stage, edit).await?;
        let now = everywhere().await?;
        // They went between these two times.
        let end = Instant::now();
        gone.push((begin, before.difference(&now).count()));
        blocked = if is_blocked_now(&stage).await? {
            blocked + 1
        } else {
            0
        };
        holds += usize::from(blocked > 0);
        before = now;
        let lately: usize = gone
            .iter()
            .filter(|(begin, _)| end.duration_since(*begin) < LATELY)
            .map(|(_, copies)| copies)
            .sum();
        println!(
            "edit {edit} ({edited} {value}): {} copies, {lately} went lately, {holds} times held",
            before.len()
        );
        ensure!(
            lately <= 10,
            "edit {edit}: {lately} copies went within a minute"
        );
    }

    // After the undo, everything is unchanged.
    undo(&stage).await?;
    stage.is_not_blocked().await?;
    hub.all_applied(&stage.rule, MEMBERS * SOURCES)
        .await
        .map(drop)
}
