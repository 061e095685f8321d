//! Members whose API server hangs, is unreachable, or was restored; and objects of strangers with
//! the label of copies.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use runnel_tests::control_plane::ControlPlane;
use runnel_tests::fleet::condition_of;
use runnel_tests::scene::{Draft, Id, RuleDraft, SOON};
use runnel_tests::wait::eventually;
use serde_json::json;

use super::stage::{Stage, stage};

/// By then it is reported that nothing is known of a cluster: 30 s, and what a machine with much to do needs beside that.
const REPORTED: Duration = Duration::from_secs(50);

#[tokio::test]
async fn api_server_that_hangs_or_stops_makes_copies_unknown() -> Result<()> {
    let stage = stage().await?;
    stage.places("blind", &["blind-target"]).await?;
    let source = stage.source("blind", "settings", "first").await?;
    let name = stage.fleet.member_name(1);
    let rule = stage
        .rule("blind", "all", |d| {
            d.named(&["settings"]).to(&[name]).into(&["blind-target"])
        })
        .await?;
    let hub = &stage.scene.hub;
    hub.all_applied(&rule, 1).await?;
    let api_server = stage.fleet.member(1);
    for hangs in [true, false] {
        let begin = Instant::now();
        if hangs {
            api_server.api_server().pause()?
        } else {
            api_server.stop_api_server()?
        }
        let object = hub
            .wait_ready(&rule, "Unknown", "MemberAPIUnavailable")
            .await?;
        ensure!(
            begin.elapsed() < REPORTED,
            "reported after {:?}",
            begin.elapsed()
        );
        let message = object["status"]["conditions"].to_string();
        ensure!(
            message.contains(name) && message.contains("does not answer"),
            "{message}"
        );
        hub.wait_for_cluster(&rule, name, "Unreachable", "MemberAPIUnavailable")
            .await?;
        hub.sees("without an API", &Id::member(name), |member| {
            let output = (
                condition_of(member, "APIAvailable"),
                condition_of(member, "Connected"),
            );
            ensure!(
                output == ("False".to_owned(), "True".to_owned()),
                "{output:?}"
            );
            Ok(())
        })
        .await?;
        // An edit meanwhile arrives when the API server is back.
        let value = if hangs { "second" } else { "third" };
        let edited = stage.edit(&source, value).await?;
        if hangs {
            api_server.api_server().resume()?
        } else {
            api_server.start_api_server().await?
        }
        hub.all_applied(&rule, 1).await?;
        stage
            .scene
            .member(1)
            .has_copy(&edited, "blind-target", &rule)
            .await?;
        hub.sees("with an API", &Id::member(name), |member| {
            ensure!(
                condition_of(member, "APIAvailable").is_empty(),
                "{}",
                member["status"]
            );
            Ok(())
        })
        .await?;
    }
    Ok(())
}

/// A Secret that no API server can decode: no list of Secrets succeeds while it is there.
const UNDECODABLE: &str = "/registry/secrets/default/undecodable";

#[tokio::test]
async fn kind_that_cannot_be_listed_stops_no_other_kind() -> Result<()> {
    let stage = stage().await?;
    stage.places("partial", &["partial-target"]).await?;
    let (hub, member, name) = (
        &stage.scene.hub,
        stage.scene.member(1),
        stage.fleet.member_name(1),
    );
    let settings = stage.source("partial", "settings", "first").await?;
    hub.make(
        &Draft::secret("partial", "password")
            .data("value", "first")
            .json(),
    )
    .await?;
    let of = |kind: &'static str, source: &'static str| {
        let entry = json!({"resources": [kind], "names": [source]});
        move |d: RuleDraft| d.source(entry).to(&[name]).into(&["partial-target"])
    };
    let maps = stage
        .rule("partial", "maps", of("configmaps", "settings"))
        .await?;
    let secrets = stage
        .rule("partial", "secrets", of("secrets", "password"))
        .await?;
    hub.all_applied(&maps, 1).await?;
    hub.all_applied(&secrets, 1).await?;
    // The agent starts, connects, and applies ConfigMaps.
    stage.fleet.kill_agent(1)?;
    stage
        .fleet
        .member(1)
        .store(UNDECODABLE, Some("nothing that can be decoded"))
        .await?;
    stage.fleet.start_agent(1).await?;
    hub.wait_ready(&secrets, "Unknown", "MemberAPIUnavailable")
        .await?;
    let edited = stage.edit(&settings, "second").await?;
    member
        .has_copy(&edited, "partial-target", &maps)
        .await
        .context("an agent without a list of Secrets")?;
    stage.fleet.member(1).store(UNDECODABLE, None).await?;
    hub.all_applied(&secrets, 1)
        .await
        .context("an agent that lists Secrets again")?;
    hub.all_applied(&maps, 1).await.map(drop)
}

#[tokio::test]
async fn restored_member_is_brought_up_to_date() -> Result<()> {
    let stage = stage().await?;
    stage.places("reset", &["reset-target"]).await?;
    let source = stage.source("reset", "settings", "first").await?;
    let gone = stage.source("reset", "gone", "first").await?;
    let name = stage.fleet.member_name(1);
    let rule = stage
        .rule("reset", "all", |d| {
            d.named(&["settings", "gon*"])
                .to(&[name])
                .into(&["reset-target"])
        })
        .await?;
    let hub = &stage.scene.hub;
    hub.all_applied(&rule, 2).await?;
    let backup = stage.fleet.member(1).back_up("reset").await?;
    hub.all_applied(&rule, 2).await?;
    let edited = stage.edit(&source, "second").await?;
    hub.delete(&Id::of(&gone)?).await?;
    stage
        .scene
        .member(1)
        .has_copy(&edited, "reset-target", &rule)
        .await?;
    stage
        .scene
        .member(1)
        .lacks(&Id::config_map("reset-target", "gone"))
        .await?;
    hub.all_applied(&rule, 1).await?;

    stage.fleet.member(1).restore(&backup).await?;
    stage
        .scene
        .member(1)
        .has_copy(&edited, "reset-target", &rule)
        .await
        .context("a copy that was rolled back")?;
    // Objects from the backup that nothing requests.
    stage
        .scene
        .member(1)
        .lacks(&Id::config_map("reset-target", "gone"))
        .await
        .context("a copy that came back")?;
    hub.all_applied(&rule, 1).await?;
    // It stays correct: the next edit arrives as any other.
    let edited = stage.edit(&source, "third").await?;
    stage
        .scene
        .member(1)
        .has_copy(&edited, "reset-target", &rule)
        .await
        .map(drop)
}

/// Sets a time on an object that JSON libraries of other languages cannot represent, as any writer
/// of it can.
async fn spoil(cluster: &ControlPlane, object: &str, namespace: &str, change: &str) -> Result<()> {
    let time = r#"{"op":"replace","path":"/metadata/managedFields/0/time","value":"9999-12-31T23:59:59Z"}"#;
    let patch = format!("[{change},{time}]");
    cluster
        .kubectl(&[
            "patch",
            object,
            "-n",
            namespace,
            "--type=json",
            "-p",
            &patch,
        ])
        .await?;
    let spoilt = cluster
        .kubectl(&[
            "get",
            object,
            "-n",
            namespace,
            "-o",
            "json",
            "--show-managed-fields",
        ])
        .await?;
    ensure!(
        spoilt.contains("9999-12-31T23:59:59Z"),
        "the API server did not take it: {spoilt}"
    );
    Ok(())
}

#[tokio::test]
async fn object_with_a_time_beyond_all_calendars_stops_no_watch() -> Result<()> {
    let stage = stage().await?;
    stage.places("late", &["late-target"]).await?;
    let source = stage.source("late", "settings", "first").await?;
    let name = stage.fleet.member_name(1);
    let rule = stage
        .rule("late", "all", |d| {
            d.named(&["settings"]).to(&[name]).into(&["late-target"])
        })
        .await?;
    let (hub, member) = (&stage.scene.hub, stage.scene.member(1));
    let copy = member.has_copy(&source, "late-target", &rule).await?;
    let hub_id = copy["metadata"]["labels"]["runnel.dev/hub"]
        .as_str()
        .context("no hub")?;
    member
        .make(
            &Draft::config_map("late-target", "stranger")
                .label("runnel.dev/hub", hub_id)
                .data("a", "1")
                .json(),
        )
        .await?;
    hub.make(&Draft::config_map("late", "stranger").data("a", "1").json())
        .await?;
    hub.make(
        &RuleDraft::new("late", "stranger")
            .named(&["nothing"])
            .to(&[name])
            .json(),
    )
    .await?;
    let more = r#"{"op":"add","path":"/data/b","value":"2"}"#;
    spoil(stage.fleet.member(1), "cm/stranger", "late-target", more).await?;
    spoil(stage.fleet.hub(), "cm/stranger", "late", more).await?;
    let suspend = r#"{"op":"add","path":"/spec/suspend","value":true}"#;
    spoil(stage.fleet.hub(), "drule/stranger", "late", suspend).await?;
    // By the watches, and by the lists of processes that start.
    for text in ["second", "third"] {
        let edited = stage.edit(&source, text).await?;
        member.has_copy(&edited, "late-target", &rule).await?;
        let id = Id::of(&edited)?.within("late-target");
        member
            .change(&id, json!({"data": {"value": "foreign"}}))
            .await?;
        member.has_copy(&edited, "late-target", &rule).await?;
        stage.fleet.kill_agent(1)?;
        stage.fleet.kill_hub()?;
        stage.fleet.start_hub().await?;
        stage.fleet.start_agent(1).await?;
        stage.fleet.connected(1).await?;
    }
    let edited = stage.edit(&source, "fourth").await?;
    member.has_copy(&edited, "late-target", &rule).await?;
    for object in ["cm/stranger", "drule/stranger"] {
        stage
            .fleet
            .hub()
            .kubectl(&["delete", object, "-n", "late"])
            .await?;
    }
    stage
        .fleet
        .member(1)
        .kubectl(&["delete", "cm/stranger", "-n", "late-target"])
        .await
        .map(drop)
}

/// Of so many large ConfigMaps the text is as long as it can be in JSON.
const ESCAPED: usize = 8;

/// Objects of about 1 MB with the label of copies, as any user can create them who may create
/// objects in a namespace.
async fn make_large(stage: &Stage, hub_id: &str, count: usize) -> Result<()> {
    let member = stage.scene.member(1);
    // JSON writes each of the latter with six bytes.
    let (plain, escaped) = ("x".repeat(1_000_000), "<".repeat(1_000_000));
    let drafts = (0..count).flat_map(|number| {
        let text = if number < ESCAPED { &escaped } else { &plain };
        let name = format!("large-{number}");
        let map = Draft::config_map("crowd", &name).label("runnel.dev/hub", hub_id);
        let secret = Draft::secret("crowd", &name).label("runnel.dev/hub", hub_id);
        [map.data("text", text), secret.data("text", &plain)]
    });
    let made =
        stream::iter(drafts).map(|draft| async move { member.make(&draft.json()).await.map(drop) });
    made.buffer_unordered(4).try_collect().await
}

#[tokio::test]
async fn large_objects_of_strangers_do_not_fill_the_agent() -> Result<()> {
    let stage = stage().await?;
    stage.places("calm", &["calm-target"]).await?;
    let source = stage.source("calm", "settings", "first").await?;
    let name = stage.fleet.member_name(1);
    let rule = stage
        .rule("calm", "all", |d| {
            d.named(&["settings"]).to(&[name]).into(&["calm-target"])
        })
        .await?;
    let copy = stage
        .scene
        .member(1)
        .has_copy(&source, "calm-target", &rule)
        .await?;
    let hub_id = copy["metadata"]["labels"]["runnel.dev/hub"]
        .as_str()
        .context("no hub")?
        .to_owned();
    stage
        .scene
        .member(1)
        .make(&Draft::namespace("crowd").json())
        .await?;
    stage.fleet.kill_agent(1)?;
    make_large(&stage, &hub_id, 200).await?;
    stage.fleet.start_agent(1).await?;
    stage.fleet.connected(1).await?;
    let edited = stage.edit(&source, "second").await?;
    stage
        .scene
        .member(1)
        .has_copy(&edited, "calm-target", &rule)
        .await?;
    let most = stage.fleet.agent_process(1).peak_memory()? >> 20;
    ensure!(
        most < 256,
        "the agent had {most} MiB at most, of 512 MiB that its chart gives it"
    );
    stage
        .scene
        .member(1)
        .delete(&Id::namespace("crowd"))
        .await?;
    eventually("the namespace to be gone", SOON * 2, async || {
        let found = stage.scene.member(1).find(&Id::namespace("crowd")).await?;
        ensure!(
            found.is_none(),
            "{:?}",
            found.map(|found| found["status"].clone())
        );
        Ok(Some(json!(null)))
    })
    .await
    .map(drop)
}
