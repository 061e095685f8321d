//! The lifecycle of rules and copies across hub and agent: a deleted rule leaves no copy behind,
//! however short its life was.

#[path = "lifecycle/bursts.rs"]
mod bursts;
#[path = "lifecycle/definition.rs"]
mod definition;
#[path = "lifecycle/leaving.rs"]
mod leaving;

use std::time::Duration;

use anyhow::{Result, ensure};
use runnel_tests::fleet::{Fleet, FleetOptions};
use runnel_tests::scene::{Draft, Id, Recorder, RuleDraft, Scene, is_marked};
use runnel_tests::wait::{eventually, steadily};

/// A burst of many rules takes long on a busy machine.
const BURST: Duration = Duration::from_secs(240);

struct Stage {
    /// Ends with the stage.
    _fleet: Fleet,
    scene: Scene,
}

impl Stage {
    /// One member, and a namespace of this name on both sides.
    async fn start(home: &str) -> Result<Self> {
        let fleet = Fleet::start(FleetOptions::default()).await?;
        let scene = Scene::of(&fleet).await?;
        scene.hub_namespaces(&[home]).await?;
        scene.member_namespaces(&[home]).await?;
        Ok(Self {
            _fleet: fleet,
            scene,
        })
    }

    /// The names of the copies in a namespace of the member.
    async fn copies(&self, namespace: &str) -> Result<Vec<String>> {
        let all = self
            .scene
            .member(1)
            .list(&Id::config_map(namespace, ""))
            .await?;
        let copies = all.iter().filter(|object| is_marked(object));
        Ok(copies
            .filter_map(|object| object["metadata"]["name"].as_str().map(str::to_owned))
            .collect())
    }

    /// Waits until no rule is left in the namespace and the member has no copy, and checks that none comes back.
    async fn is_clean(&self, home: &str) -> Result<()> {
        eventually("the rules to be gone", BURST, async || {
            let left = self.scene.hub.list(&Id::rule(home, "")).await?;
            ensure!(
                left.is_empty(),
                "{} rules are left, the first is {}",
                left.len(),
                left[0]
            );
            Ok(Some(()))
        })
        .await?;
        let empty = async || {
            let left = self.copies(home).await?;
            ensure!(
                left.is_empty(),
                "{} copies without a rule: {left:?}",
                left.len()
            );
            Ok(())
        };
        eventually("the copies to be gone", BURST, async || {
            empty().await.map(Some)
        })
        .await?;
        steadily("no copy comes back", Duration::from_secs(3), empty).await
    }
}

#[tokio::test]
async fn copies_pass_to_a_rule_created_just_before() -> Result<()> {
    let home = "passed";
    let stage = Stage::start(home).await?;
    let (hub, member) = (&stage.scene.hub, stage.scene.member(1));
    let source = Id::of(&hub.make(&Draft::config_map(home, "app").json()).await?)?;
    let draft = |number: usize| {
        let name = format!("r{number}");
        let draft = RuleDraft::new(home, &name).named(&["app"]).everywhere();
        (Id::rule(home, &name), draft.json())
    };
    let (first, object) = draft(0);
    hub.make(&object).await?;
    hub.all_applied(&first, 1).await?;
    let recorder = Recorder::start(member, &source).await?;
    // As one client does it that applies and prunes at once.
    for number in 1..6 {
        let (id, object) = draft(number);
        hub.make(&object).await?;
        let former = draft(number - 1).0;
        hub.delete(&former).await?;
        hub.lacks(&former).await?;
        hub.all_applied(&id, 1).await?;
    }
    recorder.was_never_missing(home, "app")
}
