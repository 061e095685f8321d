//! What copies held is kept before a rollout changes them, and put back.
use anyhow::{Result, ensure};
use runnel_proto::model::*;
use runnel_tests::scene::{Id, SOON};
use runnel_tests::wait::eventually;
use serde_json::Value;

use crate::alone::Alone;

/// What does not shrink: printable, and as good as random.
fn noise(seed: u64) -> String {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let letter = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        char::from(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+-"[(state >> 20) as usize & 63])
    };
    (0..800_000).map(letter).collect()
}

async fn kept(alone: &Alone) -> Result<Vec<Value>> {
    let mut all = alone.place.list(&Id::secret(&alone.name, "")).await?;
    all.retain(|secret| secret["type"] == "runnel.dev/previous");
    Ok(all)
}

#[tokio::test]
async fn unsaved_copies_stay_and_the_rest_rolls_back() -> Result<()> {
    let mut alone = Alone::start("goes-back", &["a"]).await?;
    let names: Vec<String> = (0..10).map(|number| format!("large-{number}")).collect();
    let before: Vec<String> = (0..10).map(noise).collect();
    let texts = |text: &dyn Fn(usize) -> String| -> Vec<(String, String)> {
        names.iter().enumerate().map(|(at, name)| (name.clone(), text(at))).collect()
    };
    let wanted = |alone: &Alone, texts: &[(String, String)]| {
        let texts: Vec<(&str, &str)> = texts.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
        alone.rule(&["a"], &texts)
    };
    let first = texts(&|at| before[at].clone());
    for count in 1..=first.len() {
        // One after the other, so that each fits into a frame.
        alone.hub.want("r", wanted(&alone, &first[..count]));
        alone.hub.hears_applied("r", u32::try_from(count)?).await?;
    }

    // Each Secret holds one of them; two of ten find no room.
    alone.hub.travel("r", Travel::Keep("1".to_owned()));
    alone.hub.want("r", wanted(&alone, &texts(&|_| "changed".to_owned())));
    let full = |state: &RuleState| state.counts.applied == 8 && state.counts.failed == 2;
    let state = alone.hub.hears("two that cannot be kept", "r", full).await?;
    for failure in &state.failures {
        ensure!(failure.reason == Reason::TooLarge && failure.message.contains("onFailure: Stop"), "{failure:?}");
        let at = names.iter().position(|name| *name == *failure.copy.name).unwrap_or_default();
        alone.says(&alone.id("a", &names[at]), &before[at]).await?;
    }
    ensure!(kept(&alone).await?.len() == 8);

    alone.crash_agent().await?;
    alone.start_agent().await?;
    eventually("the agent to be told to go back", SOON, async || {
        // Until its stream is there nobody hears.
        alone.hub.travel("r", Travel::Revert { target: "t".to_owned(), base: "1".to_owned() });
        Ok(alone.hub.told("r").filter(|state| state.travel.reverts()).map(drop))
    })
    .await?;
    let back = |state: &RuleState| state.travel.reverts() && state.counts.applied == 10;
    let state = alone.hub.hears("all to have gone back", "r", back).await?;
    ensure!(state.left == 0, "{state:?}");
    for (name, text) in names.iter().zip(&before) {
        alone.says(&alone.id("a", name), text).await?;
    }

    // What is good goes through: small contents, of which those before are kept no longer.
    alone.hub.travel("r", Travel::Plain);
    eventually("nothing to be kept", SOON, async || Ok(kept(&alone).await?.is_empty().then_some(()))).await?;
    alone.hub.want("r", wanted(&alone, &texts(&|_| "good".to_owned())));
    for name in &names {
        alone.says(&alone.id("a", name), "good").await?;
    }
    Ok(())
}
