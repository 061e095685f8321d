//! Many sources, large ones, many namespaces. Each prints how long it took; the deadlines are only there to end.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use runnel_tests::fleet::{Fleet, FleetOptions};
use runnel_tests::scene::{Draft, Id, RuleDraft, Scene, TestCluster, entry_of, is_copy_of};
use runnel_tests::wait::eventually;
use serde_json::{Value, json};
use tokio::sync::{Mutex, OnceCell};

static FLEET: OnceCell<Fleet> = OnceCell::const_new();
/// Runs one test at a time, so that times are meaningful.
static TURN: Mutex<()> = Mutex::const_new(());

const LONG: Duration = Duration::from_secs(300);
/// Requests of a test at a time.
const AT_ONCE: usize = 16;

async fn scene() -> Result<Scene> {
    let options = FleetOptions {
        members: 2,
        log: "runnel=info".to_owned(),
        ..FleetOptions::default()
    };
    Scene::of(FLEET.get_or_try_init(|| Fleet::start(options)).await?).await
}

fn took(what: &str, begin: Instant) {
    println!("{what}: {:.2} s", begin.elapsed().as_secs_f64());
}

async fn make_all(place: &TestCluster, drafts: Vec<Value>) -> Result<Vec<Value>> {
    let made = stream::iter(drafts).map(|draft| async move { place.make(&draft).await });
    made.buffered(AT_ONCE).try_collect().await
}

/// Waits until every copy of the rule is applied, for longer than a test usually would.
async fn all_applied(hub: &TestCluster, rule: &Id, sources: usize, copies: usize) -> Result<Value> {
    eventually(&format!("{copies} copies of {rule}"), LONG, async || {
        let object = hub.get(rule).await?;
        let (summary, ready) = (
            &object["status"]["summary"],
            &object["status"]["conditions"][0],
        );
        ensure!(
            summary["sources"] == sources && summary["copies"] == copies,
            "the counts are {summary}"
        );
        ensure!(
            summary["copiesApplied"] == copies && ready["status"] == "True",
            "{summary}, {ready}"
        );
        Ok(Some(object))
    })
    .await
}

/// Checks that a member has true copies of all sources in a namespace, and no others.
async fn has_exactly(
    member: &TestCluster,
    sources: &[Value],
    namespace: &str,
    rule: &Id,
) -> Result<()> {
    let found = member.list(&Id::config_map(namespace, "")).await?;
    let copies = found
        .iter()
        .filter(|object| object["metadata"]["name"] != "kube-root-ca.crt")
        .count();
    ensure!(
        copies == sources.len(),
        "{copies} objects in {}",
        member.name()
    );
    for source in sources {
        let name = &source["metadata"]["name"];
        let copy = found
            .iter()
            .find(|object| object["metadata"]["name"] == *name);
        is_copy_of(source, copy.unwrap_or(&Value::Null), rule)?;
    }
    Ok(())
}

#[tokio::test]
async fn a_thousand_config_maps_at_once() -> Result<()> {
    let (scene, home, count) = (scene().await?, "thousand", 1000);
    let _turn = TURN.lock().await;
    scene.hub_namespaces(&[home]).await?;
    scene.member_namespaces(&[home]).await?;
    let hub = &scene.hub;
    let drafts = (0..count).map(|number| {
        // One kibibyte that does not shrink much.
        let text: String = (0..64)
            .map(|part| format!("{:016x}", mixed(number * 64 + part)))
            .collect();
        Draft::config_map(home, &format!("source-{number:04}"))
            .data("k", &text)
            .json()
    });
    let sources = make_all(hub, drafts.collect()).await?;
    let rule = Id::rule(home, "all");
    let begin = Instant::now();
    hub.make(
        &RuleDraft::new(home, "all")
            .named(&["source-*"])
            .everywhere()
            .json(),
    )
    .await?;
    let observed = all_applied(hub, &rule, count, 2 * count).await?;
    took("1,000 ConfigMaps of 1 KiB to 2 members", begin);
    ensure!(
        observed["status"]["display"] == json!({"clusters": "2/2", "copies": "2000/2000"}),
        "{}",
        observed["status"]
    );
    for member in &scene.members {
        has_exactly(member, &sources, home, &rule).await?;
    }

    // One edit among them; then all of them leave.
    let begin = Instant::now();
    let edited = hub
        .change(&Id::of(&sources[500])?, json!({"data": {"k": "edited"}}))
        .await?;
    scene.arrives(&edited, &rule, &[home]).await?;
    took("one edit among 1,000", begin);
    let begin = Instant::now();
    hub.delete(&rule).await?;
    eventually("the rule to be gone", LONG, async || {
        Ok(hub.find(&rule).await?.is_none().then_some(()))
    })
    .await?;
    took("2,000 copies deleted with their rule", begin);
    for member in &scene.members {
        has_exactly(member, &[], home, &rule).await?;
    }
    Ok(())
}

/// A pseudo-random number.
fn mixed(number: usize) -> u64 {
    let mut bits = (number as u64)
        .wrapping_add(1)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits ^= bits >> 30;
    bits = bits.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits ^ (bits >> 27)
}

#[tokio::test]
async fn an_object_as_large_as_an_api_server_takes() -> Result<()> {
    let (scene, home) = (scene().await?, "large");
    let _turn = TURN.lock().await;
    scene.hub_namespaces(&[home]).await?;
    scene.member_namespaces(&[home]).await?;
    let (hub, rule) = (&scene.hub, Id::rule(home, "all"));
    hub.make(
        &RuleDraft::new(home, "all")
            .named(&["large-*", "small"])
            .everywhere()
            .json(),
    )
    .await?;
    let text: String = (0..62_500)
        .map(|part| format!("{:016x}", mixed(part)))
        .collect();
    ensure!(text.len() == 1_000_000);
    let begin = Instant::now();
    let config = hub
        .make(
            &Draft::config_map(home, "large-settings")
                .data("k", &text)
                .json(),
        )
        .await?;
    let secret = hub
        .make(&Draft::secret(home, "large-login").data("k", &text).json())
        .await?;
    let small = hub.make(&Draft::config_map(home, "small").json()).await?;
    for source in [&small, &config, &secret] {
        scene.arrives(source, &rule, &[home]).await?;
    }
    took(
        "a ConfigMap and a Secret of 1,000,000 bytes to 2 members",
        begin,
    );
    let begin = Instant::now();
    let edited = hub
        .change(
            &Id::of(&config)?,
            json!({"data": {"k": text.replace('0', "1")}}),
        )
        .await?;
    scene.arrives(&edited, &rule, &[home]).await?;
    took("an edit of 1,000,000 bytes", begin);
    // Restored from the agent's own copy.
    scene.member(1).delete(&Id::of(&secret)?).await?;
    scene.member(1).has_copy(&secret, home, &rule).await?;
    hub.all_applied(&rule, 6).await.map(|_| ())
}

#[tokio::test]
async fn three_hundred_namespaces_that_match_a_glob() -> Result<()> {
    let (scene, home, count) = (scene().await?, "wide", 300);
    let _turn = TURN.lock().await;
    scene.lift_fleet_limits().await?;
    scene.hub_namespaces(&[home]).await?;
    let (hub, member) = (&scene.hub, scene.member(1));
    let namespaces: Vec<String> = (0..count)
        .map(|number| format!("wide-{number:03}"))
        .collect();
    make_all(
        member,
        namespaces
            .iter()
            .map(|name| Draft::namespace(name).json())
            .collect(),
    )
    .await?;
    let source = hub
        .make(&Draft::config_map(home, "settings").data("k", "v").json())
        .await?;
    let rule = Id::rule(home, "all");
    let begin = Instant::now();
    hub.make(
        &RuleDraft::new(home, "all")
            .named(&["*"])
            .to(&["member-1"])
            .into(&["wide-*"])
            .json(),
    )
    .await?;
    let observed = all_applied(hub, &rule, 1, count).await?;
    took("one ConfigMap into 300 namespaces", begin);
    ensure!(
        entry_of(&observed, "member-1")?["applied"] == count,
        "{}",
        observed["status"]
    );
    has_everywhere(member, &source, &namespaces, &rule).await?;

    let begin = Instant::now();
    let edited = hub
        .change(&Id::of(&source)?, json!({"data": {"k": "w"}}))
        .await?;
    has_everywhere(member, &edited, &namespaces, &rule).await?;
    took("an edit of it in 300 namespaces", begin);
    let begin = Instant::now();
    let fewer = json!({"namespaces": {"exclude": ["wide-2*"]}, "removalLimit": {"percent": 50}});
    hub.change(&rule, json!({"spec": fewer})).await?;
    all_applied(hub, &rule, 1, 200).await?;
    took("100 of 300 namespaces excluded", begin);
    has_everywhere(member, &edited, &namespaces[..200], &rule).await?;
    for namespace in &namespaces[200..] {
        ensure!(
            member
                .find(&Id::of(&source)?.within(namespace))
                .await?
                .is_none(),
            "left in {namespace}"
        );
    }
    Ok(())
}

/// Waits until each of the namespaces has a true copy.
async fn has_everywhere(
    member: &TestCluster,
    source: &Value,
    namespaces: &[String],
    rule: &Id,
) -> Result<()> {
    eventually(
        &format!("copies in {} namespaces", namespaces.len()),
        LONG,
        async || {
            let name = &source["metadata"]["name"];
            let found = member.list(&Id::config_map("", "").everywhere()).await?;
            for namespace in namespaces {
                let here = |object: &&Value| {
                    object["metadata"]["name"] == *name
                        && object["metadata"]["namespace"] == **namespace
                };
                is_copy_of(
                    source,
                    found.iter().find(here).unwrap_or(&Value::Null),
                    rule,
                )?;
            }
            Ok(Some(()))
        },
    )
    .await
}
