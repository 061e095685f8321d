//! Copies with versioned names: the newest versions are kept despite kills.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use runnel_tests::audit::Mark;
use runnel_tests::fleet::{Fleet, FleetOptions};
use runnel_tests::scene::{
    Change, Draft, Id, Recorder, RuleDraft, SOON, SOURCE, Scene, TestCluster,
};
use runnel_tests::wait::{eventually, steadily};
use serde_json::{Value, json};

use super::scene;

/// The versions of a copy in a namespace: which number, whether labeled as the newest, and the value of the key `k`.
async fn versions(member: &TestCluster, namespace: &str) -> Result<Vec<(u64, bool, String)>> {
    let found = member.list(&Id::config_map(namespace, "")).await?;
    let mut versions = vec![];
    for object in found
        .iter()
        .filter(|object| object["metadata"]["annotations"].get(SOURCE).is_some())
    {
        let metadata = &object["metadata"];
        let number = metadata["annotations"]["runnel.dev/version"]
            .as_str()
            .unwrap_or_default()
            .parse()?;
        let newest = metadata["labels"]["runnel.dev/newest"] == "true";
        ensure!(
            metadata["name"]
                .as_str()
                .unwrap_or_default()
                .starts_with("app-"),
            "{}",
            metadata["name"]
        );
        versions.push((
            number,
            newest,
            object["data"]["k"].as_str().unwrap_or_default().to_owned(),
        ));
    }
    versions.sort();
    Ok(versions)
}

/// Waits until there are these versions, the newest of them last.
async fn has_versions(member: &TestCluster, namespace: &str, values: &[&str]) -> Result<()> {
    let mut last = vec![];
    let waited = eventually("these versions", SOON, async || {
        last = versions(member, namespace).await?;
        let newest: Vec<_> = last.iter().map(|(_, newest, _)| *newest).collect();
        let expected: Vec<_> = (0..values.len()).map(|at| at + 1 == values.len()).collect();
        let right = newest == expected
            && last
                .iter()
                .map(|(.., value)| value.as_str())
                .eq(values.iter().copied());
        Ok(right.then_some(()))
    });
    waited
        .await
        .with_context(|| format!("{values:?} are wanted, there are {last:?}"))
}

#[tokio::test]
async fn last_versions_of_immutable_copies_go_with_their_rule() -> Result<()> {
    let home = "versions";
    let scene = scene(home).await?;
    let (hub, member) = (&scene.hub, scene.member(1));
    let source = |value: &str| {
        Draft::config_map(home, "app")
            .data("k", value)
            .with("immutable", json!(true))
            .json()
    };
    hub.make(&source("v1")).await?;
    let rule = Id::rule(home, "all");
    let draft = RuleDraft::new(home, "all").named(&["app"]).everywhere();
    hub.make(
        &draft
            .with("transform", json!({"versionedName": {"keep": 3}}))
            .json(),
    )
    .await?;
    has_versions(member, home, &["v1"]).await?;
    let stands: [&[&str]; 4] = [
        &["v1", "v2"],
        &["v1", "v2", "v3"],
        &["v2", "v3", "v4"],
        &["v3", "v4", "v5"],
    ];
    for (edit, stands) in (2..=5).zip(stands) {
        // Immutable copies are deleted and created again.
        hub.delete(&Id::config_map(home, "app")).await?;
        hub.make(&source(&format!("v{edit}"))).await?;
        has_versions(member, home, stands).await?;
    }
    has_versions(scene.member(2), home, &["v3", "v4", "v5"]).await?;
    hub.all_applied(&rule, 2).await?;
    // Back to an existing version: it is the newest again.
    hub.delete(&Id::config_map(home, "app")).await?;
    hub.make(&source("v4")).await?;
    has_versions(member, home, &["v3", "v5", "v4"]).await?;
    hub.all_applied(&rule, 2).await?;
    hub.delete(&rule).await?;
    hub.lacks(&rule).await?;
    for number in [1, 2] {
        has_versions(scene.member(number), home, &[]).await?;
    }
    Ok(())
}

/// A member whose agent can be killed, with a rule that keeps two versions of one ConfigMap.
struct Stage {
    fleet: Fleet,
    scene: Scene,
    recorder: Recorder,
}

const KEPT: &str = "kept";
/// The audit log entry of a request whose client ended before the answer.
const CLIENT_GONE: u16 = 504;

fn source(value: &str) -> Value {
    Draft::config_map(KEPT, "app")
        .data("k", value)
        .with("immutable", json!(true))
        .json()
}

impl Stage {
    async fn new() -> Result<Self> {
        let fleet = Fleet::start(FleetOptions::default()).await?;
        let scene = Scene::of(&fleet).await?;
        scene.hub_namespaces(&[KEPT]).await?;
        scene.member_namespaces(&[KEPT]).await?;
        let recorder = Recorder::start(scene.member(1), &Id::config_map(KEPT, "")).await?;
        scene.hub.make(&source("v1")).await?;
        let draft = RuleDraft::new(KEPT, "all").named(&["app"]).everywhere();
        scene
            .hub
            .make(
                &draft
                    .with("transform", json!({"versionedName": {"keep": 2}}))
                    .json(),
            )
            .await?;
        Ok(Self {
            fleet,
            scene,
            recorder,
        })
    }

    async fn edit(&self, value: &str) -> Result<()> {
        self.scene.hub.delete(&Id::config_map(KEPT, "app")).await?;
        self.scene.hub.make(&source(value)).await.map(drop)
    }

    async fn stand(&self, values: &[&str]) -> Result<()> {
        has_versions(self.scene.member(1), KEPT, values).await?;
        self.scene
            .hub
            .all_applied(&Id::rule(KEPT, "all"), 1)
            .await
            .map(drop)
    }

    async fn start_agent(&self) -> Result<()> {
        self.fleet.start_agent(1).await?;
        self.fleet.connected(1).await
    }

    /// The agent's writes to copies since the mark, each by its value, with refused ones marked.
    /// The API server logs 504 for a request of a killed client, carried out or not: it counts
    /// unless it was repeated.
    fn writes(&self, mark: Mark) -> Result<Vec<String>> {
        let records = self.recorder.so_far()?;
        let name = |object: &Value| {
            object["metadata"]["name"]
                .as_str()
                .unwrap_or_default()
                .to_owned()
        };
        let values: BTreeMap<_, _> = records
            .iter()
            .map(|record| (name(&record.object), record.object["data"]["k"].as_str()))
            .collect();
        let ours = self
            .fleet
            .member(1)
            .writes_since(mark)?
            .into_iter()
            .filter(|write| {
                write.resource == "configmaps"
                    && write.namespace == KEPT
                    && write.user.ends_with(":runnel-agent")
            });
        let (mut observed, mut cut) = (vec![], vec![]);
        for write in ours {
            let value = values
                .get(&write.name)
                .copied()
                .flatten()
                .unwrap_or("what nobody saw");
            let what = format!("{} {value}", write.verb);
            match write.code {
                ..300 => observed.push(what),
                CLIENT_GONE => cut.push(what),
                code => observed.push(format!("{what} refused: {code}")),
            }
        }
        cut.retain(|what| !observed.contains(what));
        observed.append(&mut cut);
        observed.sort();
        Ok(observed)
    }

    fn wrote(&self, mark: Mark, expected: &[&str]) -> Result<()> {
        let observed = self.writes(mark)?;
        ensure!(
            observed == expected,
            "written was {observed:?} instead of {expected:?}"
        );
        Ok(())
    }
}

#[tokio::test]
async fn agent_killed_between_versions_keeps_the_newest() -> Result<()> {
    let stage = Stage::new().await?;
    let fleet = &stage.fleet;
    let mark = || fleet.member(1).mark();
    stage.stand(&["v1"]).await?;
    let begin = mark();
    stage.edit("v2").await?;
    stage.stand(&["v1", "v2"]).await?;
    // The label moves; nothing else is done.
    stage.wrote(begin, &["patch v1", "patch v2"])?;

    // Killed while nothing is under way; the edit comes meanwhile.
    fleet.kill_agent(1)?;
    let begin = mark();
    stage.edit("v3").await?;
    stage.start_agent().await?;
    stage.stand(&["v2", "v3"]).await?;
    stage.wrote(begin, &["delete v1", "patch v2", "patch v3"])?;

    // Killed as soon as the next one exists, at any point of its work.
    let begin = mark();
    stage.edit("v4").await?;
    eventually("v4 to be made", SOON, async || {
        let there = versions(stage.scene.member(1), KEPT).await?;
        Ok(there.iter().any(|(.., value)| value == "v4").then_some(()))
    })
    .await?;
    fleet.kill_agent(1)?;
    stage.start_agent().await?;
    stage.stand(&["v3", "v4"]).await?;
    stage.wrote(begin, &["delete v2", "patch v3", "patch v4"])?;

    // Of several edits while it is away only the last is made; the hub is killed as well.
    fleet.kill_agent(1)?;
    let begin = mark();
    stage.edit("v5").await?;
    stage.edit("v6").await?;
    fleet.kill_hub()?;
    fleet.start_hub().await?;
    stage.start_agent().await?;
    stage.stand(&["v4", "v6"]).await?;
    stage.wrote(begin, &["delete v3", "patch v4", "patch v6"])?;

    // Without an edit nothing is written, with a hub or alone.
    fleet.kill_hub()?;
    fleet.kill_agent(1)?;
    let begin = mark();
    fleet.start_agent(1).await?;
    let quiet = async || stage.wrote(begin, &[]);
    steadily("nothing is written alone", Duration::from_secs(3), quiet).await?;
    fleet.start_hub().await?;
    fleet.connected(1).await?;
    stage.stand(&["v4", "v6"]).await?;
    steadily(
        "nothing is written when the hub is back",
        Duration::from_secs(3),
        quiet,
    )
    .await?;

    // Nothing older came back: each version was created once, and deleted ones stayed deleted.
    for record in stage.recorder.so_far()? {
        let object = &record.object;
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        if object["metadata"]["annotations"].get(SOURCE).is_some() && record.change == Change::Added
        {
            let all = stage.recorder.about(KEPT, name)?;
            let made = all
                .iter()
                .filter(|record| record.change == Change::Added)
                .count();
            let last = all.last().map(|record| record.change);
            let stands = ["v4", "v6"].contains(&object["data"]["k"].as_str().unwrap_or_default());
            ensure!(
                made == 1 && (last == Some(Change::Deleted)) != stands,
                "{name}: made {made} times, then {last:?}"
            );
        }
    }
    Ok(())
}
