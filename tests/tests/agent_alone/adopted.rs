//! Adopted objects: neither their owner nor a malicious hub causes a loss.
use anyhow::{Result, ensure};
use runnel_proto::model::*;
use runnel_tests::scene::{Draft, Id};
use serde_json::{Value, json};

use crate::alone::{Alone, source};
use crate::fake_hub::Wanted;

const THEIRS: &str = "dGhlaXJz";
const OURS: &str = "b3Vycw==";

fn login(password: &str) -> Content {
    let fields = [
        ("type".to_owned(), json!("Opaque")),
        ("data".to_owned(), json!({"password": password})),
    ];
    Content {
        fields: fields.into(),
        labels: [("team".to_owned(), "a".to_owned())].into(),
        ..Content::default()
    }
}

fn wanted(
    alone: &Alone,
    conflict_policy: ConflictPolicy,
    ignored: &[&str],
    password: &str,
) -> Wanted {
    let ignore_fields = ignored
        .iter()
        .filter_map(|path| FieldPath::parse(path))
        .collect();
    let terms = Terms {
        conflict_policy,
        ignore_fields,
        ..alone.terms(&["a"])
    };
    Wanted {
        terms,
        intents: [(source("secrets", "login"), login(password))].into(),
    }
}

/// An agent whose policy denies overwriting, and a foreign Secret.
async fn start(name: &str) -> Result<(Alone, Value)> {
    let mut alone = Alone::prepare(name, std::time::Duration::from_secs(3600)).await?;
    alone.make_namespace("a").await?;
    alone.set_policy("{}")?;
    alone.start_agent().await?;
    let theirs = alone
        .place
        .make(
            &Draft::secret(&alone.ns("a"), "login")
                .data("password", "theirs")
                .json(),
        )
        .await?;
    Ok((alone, theirs))
}

async fn keeps(alone: &Alone, before: &Value) -> Result<Value> {
    let now = alone.place.get(&Id::of(before)?).await?;
    ensure!(
        now["data"] == before["data"] && now["metadata"]["uid"] == before["metadata"]["uid"],
        "{now}"
    );
    Ok(now)
}

#[tokio::test]
async fn hostile_hub_gains_no_object_by_adoption() -> Result<()> {
    let (alone, theirs) = start("adopted").await?;
    let conflict = |state: &RuleState| {
        state.counts.failed == 1 && state.failures[0].reason == Reason::Conflict
    };
    // Fields that a rule ignores are compared all the same.
    alone.hub.want(
        "masked",
        wanted(
            &alone,
            ConflictPolicy::AdoptIfEqual,
            &["/data/password"],
            OURS,
        ),
    );
    alone
        .hub
        .wait_for_report("a conflict", "masked", conflict)
        .await?;
    alone.place.is_untouched(&theirs).await?;
    alone.hub.remove("masked", DeletionPolicy::Delete);
    alone.hub.wait_gone("masked").await?;

    // An equal object is adopted, and stays as it is whatever is sent afterwards.
    alone.hub.want(
        "r",
        wanted(
            &alone,
            ConflictPolicy::AdoptIfEqual,
            &["/data/password"],
            THEIRS,
        ),
    );
    alone.hub.wait_applied("r", 1).await?;
    let adopted = keeps(&alone, &theirs).await?;
    ensure!(
        adopted["metadata"]["labels"]["runnel.dev/hub"] == json!(alone.hub.hub_id()),
        "{adopted}"
    );
    for (policy, reason) in [
        (ConflictPolicy::AdoptIfEqual, Reason::Conflict),
        (ConflictPolicy::Fail, Reason::Conflict),
        (ConflictPolicy::Overwrite, Reason::Denied),
    ] {
        alone.hub.want("r", wanted(&alone, policy, &[], OURS));
        let failed =
            |state: &RuleState| state.counts.failed == 1 && state.failures[0].reason == reason;
        alone.hub.wait_for_report("a refusal", "r", failed).await?;
        keeps(&alone, &theirs).await?;
    }
    alone.hub.remove("r", DeletionPolicy::Delete);
    alone.hub.wait_gone("r").await?;
    let left = keeps(&alone, &theirs).await?;
    let marks = left["metadata"].to_string();
    ensure!(
        !marks.contains("runnel.dev/") && !marks.contains("\"Apply\""),
        "{marks}"
    );
    Ok(())
}

#[tokio::test]
async fn owner_replaces_an_adopted_object_and_keeps_it() -> Result<()> {
    for restarts in [false, true] {
        let name = if restarts {
            "replaced-away"
        } else {
            "replaced-live"
        };
        let (mut alone, theirs) = start(name).await?;
        alone.hub.want(
            "r",
            wanted(&alone, ConflictPolicy::AdoptIfEqual, &[], THEIRS),
        );
        alone.hub.wait_applied("r", 1).await?;
        if restarts {
            alone.crash_agent().await?;
        }
        // As `kubectl replace` does: only the managed fields still name the agent.
        let id = Id::of(&theirs)?;
        let change = json!({
            "metadata": {"labels": null, "annotations": null}, "data": {"password": THEIRS, "more": OURS},
        });
        let replaced = alone.place.change(&id, change).await?;
        if restarts {
            alone.start_agent().await?;
        }
        let failed = |state: &RuleState| {
            state.counts.failed == 1 && state.failures[0].reason == Reason::Conflict
        };
        alone.hub.wait_for_report("a conflict", "r", failed).await?;
        alone.place.is_untouched(&replaced).await?;
        alone.hub.remove("r", DeletionPolicy::Delete);
        alone.hub.wait_gone("r").await?;
        keeps(&alone, &replaced).await?;
    }
    Ok(())
}

#[tokio::test]
async fn agent_without_a_policy_file_keeps_to_the_defaults() -> Result<()> {
    let mut alone = Alone::prepare("unsaid", std::time::Duration::from_secs(3600)).await?;
    alone.make_namespace("a").await?;
    alone.allow_everything = false;
    alone.start_agent().await?;
    let theirs = alone
        .place
        .make(
            &Draft::secret(&alone.ns("a"), "login")
                .data("password", "theirs")
                .json(),
        )
        .await?;
    alone
        .hub
        .want("r", wanted(&alone, ConflictPolicy::Overwrite, &[], OURS));
    let mut beside = alone.rule(&["a", "new"], &[("one", "1")]);
    beside.terms.create_namespaces = true;
    alone.hub.want("beside", beside);
    let denied =
        |state: &RuleState| state.counts.failed == 1 && state.failures[0].reason == Reason::Denied;
    alone
        .hub
        .wait_for_report("overwriting denied", "r", denied)
        .await?;
    alone
        .hub
        .wait_for_report("creation denied", "beside", denied)
        .await?;
    alone.has_value(&alone.id("a", "one"), "1").await?;
    alone.place.is_untouched(&theirs).await
}
