//! The hub's etcd is restored to what it was before.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use runnel_tests::fleet::{Fleet, FleetOptions};
use runnel_tests::scene::{Draft, Id, Metrics, RuleDraft, SOON, Scene};
use runnel_tests::wait::eventually;
use serde_json::{Value, json};

use super::stage::{
    confirm, remembered, remembers_more, renewed, wait_for_condition, wait_without_condition,
};

const HOME: &str = "restored";
const NOTICED: Duration = Duration::from_secs(60);

struct Stage {
    fleet: Fleet,
    scene: Scene,
    rule: Id,
}

impl Stage {
    async fn new() -> Result<Self> {
        let fleet = Fleet::start(FleetOptions {
            members: 2,
            ..FleetOptions::default()
        })
        .await?;
        let scene = Scene::of(&fleet).await?;
        scene.hub_namespaces(&[HOME]).await?;
        scene.member_namespaces(&[HOME]).await?;
        scene
            .hub
            .make(
                &RuleDraft::new(HOME, "rule")
                    .everywhere()
                    .named(&["app-*"])
                    .json(),
            )
            .await?;
        Ok(Self {
            fleet,
            scene,
            rule: Id::rule(HOME, "rule"),
        })
    }

    async fn source(&self, name: &str, value: &str) -> Result<Value> {
        self.scene
            .hub
            .make(&Draft::config_map(HOME, name).data("k", value).json())
            .await
    }

    async fn arrives(&self, source: &Value) -> Result<()> {
        self.scene.arrives(source, &self.rule, &[HOME]).await
    }

    /// The copies of both members with these names.
    async fn copies(&self, names: &[&str]) -> Result<Vec<(usize, Value)>> {
        let mut all = Vec::new();
        for member in [1, 2] {
            for name in names {
                all.push((
                    member,
                    self.scene
                        .member(member)
                        .get(&Id::config_map(HOME, name))
                        .await?,
                ));
            }
        }
        Ok(all)
    }

    async fn untouched(
        &self,
        copies: &[(usize, Value)],
        member: impl Fn(usize) -> bool,
    ) -> Result<()> {
        for (number, copy) in copies.iter().filter(|(number, _)| member(*number)) {
            self.scene.member(*number).is_untouched(copy).await?;
        }
        for number in [1, 2].into_iter().filter(|number| member(*number)) {
            self.scene
                .member(number)
                .lacks(&Id::config_map(HOME, "app-deleted"))
                .await?;
        }
        Ok(())
    }

    /// Waits until so many members are connected with the hub that runs now, and so many wait for an administrator.
    async fn diverged(&self, sessions: usize, members: usize) -> Result<()> {
        eventually("members in doubt", SOON, async || {
            let metrics = Metrics::of(&self.fleet.hub_ops_url()).await?;
            let now = (
                metrics.sum("runnel_hub_sessions")?,
                metrics.sum("runnel_members_in_doubt")?,
            );
            ensure!(
                now == (sessions as f64, members as f64),
                "sessions and members in doubt: {now:?}"
            );
            Ok(Some(()))
        })
        .await
    }
}

#[tokio::test]
async fn hub_restored_from_backup_rolls_nothing_back_unconfirmed() -> Result<()> {
    let stage = Stage::new().await?;
    let (fleet, scene, hub) = (&stage.fleet, &stage.scene, &stage.scene.hub);
    let edited = stage.source("app-edited", "first").await?;
    let deleted = stage.source("app-deleted", "first").await?;
    stage.arrives(&edited).await?;
    stage.arrives(&deleted).await?;
    hub.all_applied(&stage.rule, 4).await?;

    let backup = fleet.hub().back_up("old").await?;
    stage.diverged(2, 0).await?;
    renewed(&hub.client()).await?;
    let before = [
        remembered(&scene.member(1).client()).await?,
        remembered(&scene.member(2).client()).await?,
    ];
    let newer = hub
        .change(&Id::of(&edited)?, json!({"data": {"k": "second"}}))
        .await?;
    hub.delete(&Id::of(&deleted)?).await?;
    let added = stage.source("app-added", "second").await?;
    stage.arrives(&newer).await?;
    stage.arrives(&added).await?;
    scene.vanishes(&deleted, &[HOME]).await?;
    for (number, before) in [1, 2].into_iter().zip(&before) {
        remembers_more(scene.member(number), before).await?;
    }
    let copies = stage.copies(&["app-edited", "app-added"]).await?;

    fleet.kill_hub()?;
    fleet.hub().restore(&backup).await?;
    fleet.start_hub().await?;
    let began = Instant::now();
    let message =
        wait_for_condition(hub, "member-1", "RestoredFromBackup", "HubStateBehind").await?;
    wait_for_condition(hub, "member-2", "RestoredFromBackup", "HubStateBehind").await?;
    ensure!(
        began.elapsed() < NOTICED,
        "noticed after {:?}",
        began.elapsed()
    );
    hub.has_event(&Id::member("member-1"), "RestoredFromBackup")
        .await?;
    hub.wait_ready(&stage.rule, "False", "Unconfirmed").await?;
    hub.wait_for_cluster(&stage.rule, "member-2", "Waiting", "Unconfirmed")
        .await?;
    stage.diverged(2, 2).await?;
    // An edit of a withheld source waits too.
    let third = hub
        .change(&Id::of(&edited)?, json!({"data": {"k": "third"}}))
        .await?;
    stage.untouched(&copies, |_| true).await?;

    // The divergence survives restarts of the hub and of an agent.
    fleet.kill_hub()?;
    fleet.kill_agent(1)?;
    fleet.start_hub().await?;
    fleet.start_agent(1).await?;
    stage.diverged(2, 2).await?;
    renewed(&hub.client()).await?;
    stage.untouched(&copies, |_| true).await?;

    confirm(fleet.hub(), &message, "member-1").await?;
    for source in [&third, &deleted] {
        scene.member(1).has_copy(source, HOME, &stage.rule).await?;
    }
    scene.member(1).lacks(&Id::of(&added)?).await?;
    wait_without_condition(hub, "member-1", "RestoredFromBackup").await?;
    stage.untouched(&copies, |member| member == 2).await?;
    confirm(fleet.hub(), &message, "--all").await?;
    for source in [&third, &deleted] {
        stage.arrives(source).await?;
    }
    scene.member(2).lacks(&Id::of(&added)?).await?;
    hub.all_applied(&stage.rule, 4).await?;
    wait_without_condition(hub, "member-2", "RestoredFromBackup").await?;
    stage.diverged(2, 0).await?;
    hub.delete(&Id::of(&deleted)?).await?;
    scene.vanishes(&deleted, &[HOME]).await?;
    lives_through_it(&stage, &third).await
}

/// As above while the hub keeps running, and with the annotation of the first confirmation.
async fn lives_through_it(stage: &Stage, edited: &Value) -> Result<()> {
    let (fleet, hub) = (&stage.fleet, &stage.scene.hub);
    let added = stage.source("app-added", "first").await?;
    stage.arrives(&added).await?;
    let backup = fleet.hub().back_up("newer").await?;
    stage.diverged(2, 0).await?;
    renewed(&hub.client()).await?;
    let newer = hub
        .change(&Id::of(edited)?, json!({"data": {"k": "fourth"}}))
        .await?;
    stage.arrives(&newer).await?;
    let copies = stage.copies(&["app-edited", "app-added"]).await?;

    fleet.hub().restore(&backup).await?;
    let message =
        wait_for_condition(hub, "member-1", "RestoredFromBackup", "HubStateBehind").await?;
    stage.diverged(2, 2).await?;
    renewed(&hub.client()).await?;
    stage.untouched(&copies, |_| true).await?;
    confirm(fleet.hub(), &message, "--all").await?;
    stage.arrives(edited).await?;
    hub.all_applied(&stage.rule, 4).await?;
    stage.diverged(2, 0).await
}
