//! Many rules that are created and deleted within some milliseconds, as a script or a GitOps tool that prunes at once does.

use anyhow::Result;
use futures::StreamExt;
use runnel_tests::scene::{Draft, Id, RuleDraft};

use super::Stage;

const RULES: usize = 150;
/// Rules that come and go at a time.
const PARALLEL: usize = 4;
/// A rule is read up to so many times before it is deleted: each read gives the hub some milliseconds more.
const READS: usize = 24;

impl Stage {
    /// Creates and deletes the rules, each after another number of reads.
    async fn burst(&self, home: &str, draft: impl Fn(usize) -> RuleDraft) -> Result<()> {
        let hub = &self.scene.hub;
        let lives = (0..RULES).map(|number| {
            let draft = draft(number);
            async move {
                let rule = Id::of(&hub.make(&draft.json()).await?)?;
                for _ in 0..number % READS {
                    hub.find(&rule).await?;
                }
                hub.delete(&rule).await
            }
        });
        let mut lives = futures::stream::iter(lives).buffer_unordered(PARALLEL);
        while let Some(ended) = lives.next().await {
            ended?;
        }
        self.is_clean(home).await
    }
}

#[tokio::test]
async fn burst_of_short_lived_rules_leaves_no_copies() -> Result<()> {
    let home = "burst";
    let stage = Stage::start(home).await?;
    for number in 0..RULES {
        stage
            .scene
            .hub
            .make(
                &Draft::config_map(home, &format!("s{number}"))
                    .data("k", "v")
                    .json(),
            )
            .await?;
    }
    let draft = |number| {
        let (rule, source) = (format!("r{number}"), format!("s{number}"));
        RuleDraft::new(home, &rule).named(&[&source]).everywhere()
    };
    for _ in 0..2 {
        stage.burst(home, draft).await?;
    }
    Ok(())
}

#[tokio::test]
async fn burst_of_rules_that_share_a_copy_leaves_no_copy() -> Result<()> {
    let home = "relay";
    let stage = Stage::start(home).await?;
    stage
        .scene
        .hub
        .make(&Draft::config_map(home, "shared").data("k", "v").json())
        .await?;
    for _ in 0..2 {
        stage
            .burst(home, |number| {
                RuleDraft::new(home, &format!("r{number}"))
                    .named(&["shared"])
                    .everywhere()
            })
            .await?;
    }
    Ok(())
}
