//! Hubs and agents that are killed and come back: exactly what changed is done, once.

use anyhow::{Result, ensure};
use runnel_tests::scene::{Draft, Id, RuleDraft};
use serde_json::{Value, json};

use super::stage::{MEMBERS, Stage, stage};

const COUNT: usize = 10;

/// A rule with ten ConfigMaps and a Secret, applied everywhere in one namespace.
struct Set {
    rule: Id,
    target: String,
    sources: Vec<Value>,
}

impl Set {
    async fn new(stage: &Stage, namespace: &str) -> Result<Self> {
        let target = format!("{namespace}-target");
        stage.places(namespace, &[&target]).await?;
        let mut sources = Vec::new();
        for number in 0..COUNT {
            sources.push(
                stage
                    .source(namespace, &format!("settings-{number}"), "first")
                    .await?,
            );
        }
        let secret = Draft::secret(namespace, "settings-secret").data("value", "first");
        sources.push(stage.scene.hub.make(&secret.json()).await?);
        let named = |draft: RuleDraft| draft.named(&["settings-*"]).into(&[&target]);
        let rule = stage.rule(namespace, "all", named).await?;
        stage
            .scene
            .hub
            .all_applied(&rule, MEMBERS * sources.len())
            .await?;
        Ok(Self {
            rule,
            target,
            sources,
        })
    }

    /// Two edits, an addition and a deletion: the exact writes in a member.
    async fn change(&mut self, stage: &Stage) -> Result<Vec<String>> {
        let hub = &stage.scene.hub;
        self.sources[3] = stage.edit(&self.sources[3], "second").await?;
        let secret = Id::of(&self.sources[COUNT])?;
        self.sources[COUNT] = hub
            .change(&secret, json!({"stringData": {"value": "second"}}))
            .await?;
        let namespace = secret.own_namespace().unwrap_or_default().to_owned();
        let gone = self.sources.remove(7);
        hub.delete(&Id::of(&gone)?).await?;
        self.sources
            .push(stage.source(&namespace, "settings-new", "first").await?);
        let target = &self.target;
        Ok(vec![
            format!("delete configmaps {target}/settings-7"),
            format!("patch configmaps {target}/settings-3"),
            format!("patch configmaps {target}/settings-new"),
            format!("patch secrets {target}/settings-secret"),
        ])
    }

    async fn arrives(&self, stage: &Stage) -> Result<()> {
        for source in &self.sources {
            stage
                .scene
                .arrives(source, &self.rule, &[&self.target])
                .await?;
        }
        let gone = Id::config_map(&self.target, "settings-7");
        for member in &stage.scene.members {
            member.lacks(&gone).await?;
        }
        stage
            .scene
            .hub
            .all_applied(&self.rule, MEMBERS * self.sources.len())
            .await?;
        stage.calm().await?;
        Ok(())
    }
}

#[tokio::test]
async fn members_get_exactly_the_changes_after_hub_kill() -> Result<()> {
    let stage = stage().await?;
    let mut set = Set::new(&stage, "hub-down").await?;
    let marks = stage.calm().await?;
    stage.fleet.kill_hub()?;
    let expected = set.change(&stage).await?;
    stage.fleet.start_hub().await?;
    set.arrives(&stage).await?;
    // The first mark is the hub's.
    for (number, mark) in marks.iter().enumerate().skip(1) {
        let writes = stage.agent_writes(number, *mark, &[&set.target])?;
        ensure!(
            writes == expected,
            "member {number}: {writes:#?} instead of {expected:#?}"
        );
    }
    let sent = stage.sent().await?;
    ensure!(
        sent == 3.0 * MEMBERS as f64,
        "the new hub sent {sent} payloads for 3 changes to {MEMBERS} members"
    );
    let tombstones = stage.metric("runnel_hub_tombstones_sent_total").await?;
    ensure!(tombstones == MEMBERS as f64, "{tombstones} tombstones");
    Ok(())
}

#[tokio::test]
async fn member_gets_exactly_the_changes_after_agent_kill() -> Result<()> {
    let stage = stage().await?;
    let mut set = Set::new(&stage, "agent-down").await?;
    let marks = stage.calm().await?;
    stage.fleet.kill_agent(1)?;
    // A session that has not ended yet would be sent the first edit, too.
    stage.connected(MEMBERS - 1).await?;
    let before = stage.sent().await?;
    let expected = set.change(&stage).await?;
    for source in &set.sources {
        stage
            .scene
            .member(2)
            .has_copy(source, &set.target, &set.rule)
            .await?;
    }
    stage
        .scene
        .member(2)
        .lacks(&Id::config_map(&set.target, "settings-7"))
        .await?;
    let live = stage.sent().await?;
    ensure!(
        live - before == 3.0,
        "{} payloads for 3 changes to the other member",
        live - before
    );
    stage.fleet.start_agent(1).await?;
    set.arrives(&stage).await?;
    // The first mark is the hub's.
    for (number, mark) in marks.iter().enumerate().skip(1) {
        let writes = stage.agent_writes(number, *mark, &[&set.target])?;
        ensure!(
            writes == expected,
            "member {number}: {writes:#?} instead of {expected:#?}"
        );
    }
    let sent = stage.sent().await? - live;
    ensure!(
        sent == 3.0,
        "{sent} payloads for 3 changes to the member that was away"
    );
    Ok(())
}

#[tokio::test]
async fn restart_without_changes_sends_and_writes_nothing() -> Result<()> {
    let stage = stage().await?;
    let set = Set::new(&stage, "nothing-new").await?;
    let marks = stage.calm().await?;
    let rule = stage.scene.hub.get(&set.rule).await?;
    stage.restart_hub(MEMBERS).await?;
    stage.calm().await?;
    ensure!(
        stage.sent().await? == 0.0,
        "the new hub sent {} payloads",
        stage.sent().await?
    );
    let writes = stage.writes(&marks)?;
    ensure!(writes.is_empty(), "for a restart of the hub: {writes:#?}");

    stage.fleet.kill_agent(1)?;
    stage.fleet.start_agent(1).await?;
    stage.connected(MEMBERS).await?;
    stage.calm().await?;
    ensure!(
        stage.sent().await? == 0.0,
        "for an agent that is back the hub sent {}",
        stage.sent().await?
    );
    let writes = stage.writes(&marks)?;
    ensure!(writes.is_empty(), "for a restart of an agent: {writes:#?}");
    stage.scene.hub.is_untouched(&rule).await?;

    // And both in order, instead of by force.
    ensure!(stage.fleet.stop_hub().await? == 0);
    stage.fleet.start_hub().await?;
    ensure!(stage.fleet.stop_agent(2).await? == 0);
    stage.fleet.start_agent(2).await?;
    stage.connected(MEMBERS).await?;
    stage.calm().await?;
    let writes = stage.writes(&marks)?;
    ensure!(
        writes.is_empty() && stage.sent().await? == 0.0,
        "for orderly restarts: {writes:#?}"
    );
    Ok(())
}
