//! Long-term states of a member: its policy decides about its copies after a revocation, a
//! namespace denies copies, and an expired agent reconnects or reports what it needs.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use runnel_tests::fleet::{Fleet, FleetOptions, NAMESPACE};
use runnel_tests::scene::{
    Draft, Id, Metrics, RuleDraft, SOON, Scene, TestCluster, condition, is_marked,
};
use runnel_tests::wait::{eventually, steadily};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

/// How long a certificate lives here, and how long it can be renewed after its end.
const LIFE: &str = "12s";
const LIMIT: Duration = Duration::from_secs(30);

static FLEET: OnceCell<Fleet> = OnceCell::const_new();

async fn fleet() -> Result<&'static Fleet> {
    let hub_values = json!({"certificate": {"life": LIFE, "expiredRenewalLimit": format!("{}s", LIMIT.as_secs())}});
    FLEET
        .get_or_try_init(|| {
            Fleet::start(FleetOptions {
                members: 2,
                hub_values,
                ..FleetOptions::default()
            })
        })
        .await
}

async fn wait_for_member(
    hub: &TestCluster,
    name: &str,
    kind: &str,
    status: &str,
    reason: &str,
) -> Result<Value> {
    hub.sees(
        &format!("{kind}={status}, {reason}"),
        &Id::member(name),
        |member| {
            let observed = condition(member, kind)?;
            ensure!(
                observed["status"] == status && observed["reason"] == reason,
                "it is {observed}"
            );
            Ok(())
        },
    )
    .await
}

async fn wait_for_log(fleet: &Fleet, number: usize, text: &str) -> Result<()> {
    eventually(&format!("the agent to log {text:?}"), SOON, async || {
        Ok(std::fs::read_to_string(fleet.agent_log(number))?
            .contains(text)
            .then_some(()))
    })
    .await
}

#[tokio::test]
async fn namespace_refuses_and_policy_decides_copies_on_revoke() -> Result<()> {
    let fleet = fleet().await?;
    let scene = Scene::of(fleet).await?;
    let (hub, member, home) = (&scene.hub, scene.member(1), "purged");
    scene.hub_namespaces(&[home]).await?;
    scene.member_namespaces(&[home, "purged-other"]).await?;
    let draft = |name| {
        RuleDraft::new(home, name)
            .named(&[name])
            .to(&["member-1"])
            .into(&[home, "purged-other"])
    };
    let (rule, retains) = (Id::rule(home, "plain"), Id::rule(home, "retains"));
    hub.make(&draft("plain").json()).await?;
    hub.make(
        &draft("retains")
            .with("deletionPolicy", json!("Retain"))
            .json(),
    )
    .await?;
    let plain = hub
        .make(&Draft::config_map(home, "plain").data("k", "v").json())
        .await?;
    let kept = hub
        .make(&Draft::config_map(home, "retains").data("k", "v").json())
        .await?;
    hub.all_applied(&rule, 2).await?;
    hub.all_applied(&retains, 2).await?;

    // A namespace of the member denies copies, and accepts them again.
    let other = Id::namespace("purged-other");
    member
        .change(
            &other,
            json!({"metadata": {"annotations": {"runnel.dev/inbound": "deny"}}}),
        )
        .await?;
    let edited = hub
        .change(&Id::of(&plain)?, json!({"data": {"k": "edited"}}))
        .await?;
    member.has_copy(&edited, home, &rule).await?;
    hub.sees("the refusal", &rule, |object| {
        let observed = condition(object, "Ready")?;
        let message = observed["message"].as_str().unwrap_or_default();
        ensure!(
            observed["status"] == "False"
                && observed["reason"] == "Denied"
                && message.contains("inbound"),
            "{observed}"
        );
        Ok(())
    })
    .await?;
    let refused = member.get(&Id::of(&plain)?.within("purged-other")).await?;
    ensure!(
        refused["data"]["k"] == "v",
        "a refusing namespace took an edit: {refused}"
    );
    member
        .change(
            &other,
            json!({"metadata": {"annotations": {"runnel.dev/inbound": null}}}),
        )
        .await?;
    member.has_copy(&edited, "purged-other", &rule).await?;
    hub.all_applied(&rule, 2).await?;

    // Keep, the default.
    hub.change(
        &Id::member("member-1"),
        json!({"spec": {"accepted": false}}),
    )
    .await?;
    wait_for_log(
        fleet,
        1,
        "the hub has revoked this cluster: the copies here are kept as they are",
    )
    .await?;
    let copies = [
        (&plain, home),
        (&plain, "purged-other"),
        (&kept, home),
        (&kept, "purged-other"),
    ];
    steadily("the copies are kept", Duration::from_secs(2), async || {
        for (source, namespace) in copies {
            let copy = member.get(&Id::of(source)?.within(namespace)).await?;
            ensure!(is_marked(&copy), "{}", copy["metadata"]);
        }
        Ok(())
    })
    .await?;
    hub.change(&Id::member("member-1"), json!({"spec": {"accepted": true}}))
        .await?;
    fleet
        .agent(1)
        .upgrade(&json!({"policy": {"onRevoke": "Purge"}}))
        .await?;
    fleet.kill_agent(1)?;
    fleet.start_agent(1).await?;
    wait_for_member(hub, "member-1", "Connected", "True", "SessionOpen").await?;
    hub.all_applied(&rule, 2).await?;

    // Purge, also where a rule would retain: the member's own word is the last.
    let stranger = member
        .make(&Draft::config_map(home, "stranger").data("k", "mine").json())
        .await?;
    hub.change(
        &Id::member("member-1"),
        json!({"spec": {"accepted": false}}),
    )
    .await?;
    wait_for_log(fleet, 1, "the copies here are deleted (onRevoke: Purge)").await?;
    for (source, namespace) in copies {
        member.lacks(&Id::of(source)?.within(namespace)).await?;
    }
    member.is_untouched(&stranger).await?;

    // Accepted again, all copies are created again.
    hub.change(&Id::member("member-1"), json!({"spec": {"accepted": true}}))
        .await?;
    for namespace in [home, "purged-other"] {
        member.has_copy(&edited, namespace, &rule).await?;
        member.has_copy(&kept, namespace, &retains).await?;
    }
    Ok(())
}

/// When the newest certificate of a member expires, and what the agent has stored.
async fn expiry(hub: &TestCluster, name: &str) -> Result<Timestamp> {
    let record = hub.get(&Id::member_record(name)).await?;
    let keys = record["spec"]["identity"]["keys"]
        .as_array()
        .context("no keys")?
        .clone();
    let ends = keys
        .iter()
        .filter_map(|key| key["expiresAt"].as_str()?.parse().ok());
    ends.max()
        .with_context(|| format!("no key with an end in {keys:?}"))
}

async fn passes(time: Timestamp) -> Result<()> {
    eventually(&format!("{time} to pass"), 2 * SOON, async || {
        Ok((Timestamp::now() > time).then_some(()))
    })
    .await
}

#[tokio::test]
async fn expired_member_returns_or_needs_a_join_string() -> Result<()> {
    let fleet = fleet().await?;
    let scene = Scene::of(fleet).await?;
    let (hub, member) = (&scene.hub, scene.member(2));
    let identity = Id::secret(NAMESPACE, "runnel-agent-identity");
    fleet.connected(2).await?;
    fleet.stop_agent(2).await?;
    passes(expiry(hub, "member-2").await? + Duration::from_secs(1)).await?;
    fleet.start_agent(2).await?;
    eventually("a certificate that has not expired", SOON, async || {
        Ok((expiry(hub, "member-2").await? > Timestamp::now()).then_some(()))
    })
    .await?;
    eventually("the agent to have a stream", SOON, async || {
        let metrics = Metrics::of(&fleet.agent_ops_url(2)).await?;
        Ok((metrics.sum("runnel_session_connected")? == 1.0).then_some(()))
    })
    .await?;
    fleet.connected(2).await?;

    // Longer than the hub renews: the hub reports it without the agent.
    fleet.stop_agent(2).await?;
    passes(expiry(hub, "member-2").await? + LIMIT).await?;
    let observed =
        wait_for_member(hub, "member-2", "Connected", "False", "CertificateExpired").await?;
    let message = condition(&observed, "Connected")?["message"]
        .as_str()
        .unwrap_or_default();
    ensure!(
        message.contains("create a new join string with `runnel-hub token create`"),
        "{message}"
    );
    fleet.start_agent(2).await?;
    wait_for_log(
        fleet,
        2,
        "expired longer ago than the hub renews (--expired-renewal-limit)",
    )
    .await?;

    // An expired join string has no effect: the stored identity is used.
    let before = member.get(&identity).await?;
    let release = fleet.hub_release();
    let options = FleetOptions::default();
    let old = release
        .join_string("member-2", fleet.binaries(), &options)
        .await?;
    let new = release
        .join_string("member-2", fleet.binaries(), &options)
        .await?;
    fleet.kill_agent(2)?;
    fleet.agent(2).hand_over(&old).await?;
    fleet.start_agent(2).await?;
    wait_for_log(fleet, 2, "the token is wrong for cluster member-2").await?;
    let after = member.get(&identity).await?;
    for part in ["tls.crt", "tls.key", "token-id"] {
        ensure!(
            before["data"][part].is_string() && before["data"][part] == after["data"][part],
            "{part} changed"
        );
    }
    ensure!(
        after["data"]["pending.key"].is_string(),
        "the key of the join was not stored before it was used"
    );

    fleet.kill_agent(2)?;
    fleet.agent(2).hand_over(&new).await?;
    fleet.start_agent(2).await?;
    fleet.connected(2).await?;
    let joined = member.get(&identity).await?;
    ensure!(
        joined["data"]["pending.key"].is_null()
            && joined["data"]["tls.crt"] != before["data"]["tls.crt"]
    );
    ensure!(
        joined["data"]["seal.key"] == before["data"]["seal.key"],
        "the seals are as they were"
    );
    Ok(())
}
