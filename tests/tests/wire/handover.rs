//! The handover of a stream to one with a newer key, make before break; and the retired key.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use runnel_api::MemberCluster;
use runnel_proto::REASON_METADATA;
use runnel_proto::model::{AgentFrame, HubFrame, SourceRef};
use runnel_tests::scene::{Id, TestCluster};
use runnel_tests::simulated::{AgentStream, Credentials, Holdings};
use runnel_tests::wait::{eventually, steadily};
use runnel_transport::identity::{MemberKey, PeerCertificate};
use serde_json::json;
use tonic::Status;

use super::stage::{SOON, Stage, shared, value};

async fn renewed(old: &Credentials) -> Result<Credentials> {
    let key = Arc::new(MemberKey::generate()?);
    Ok(old.renew(key.clone(), key.certificate_request()?).await?)
}

fn fingerprint(credentials: &Credentials) -> Result<String> {
    Ok(PeerCertificate::from_der(credentials.certificate())?
        .key
        .to_string())
}

/// Returns the valid and the retired keys of a member.
async fn keys(stage: &Stage, cluster: &str) -> Result<(Vec<String>, Vec<String>)> {
    let identity = stage.record(cluster).await?.identity;
    let names = identity
        .keys
        .into_iter()
        .map(|key| key.fingerprint)
        .collect();
    Ok((
        names,
        identity
            .retired
            .into_iter()
            .map(|key| key.fingerprint)
            .collect(),
    ))
}

async fn until_keys(
    stage: &Stage,
    cluster: &str,
    wanted: (&[&Credentials], &[&Credentials]),
) -> Result<()> {
    let names = |all: &[&Credentials]| {
        all.iter()
            .map(|one| fingerprint(one))
            .collect::<Result<Vec<_>>>()
    };
    let wanted = (names(wanted.0)?, names(wanted.1)?);
    eventually("the keys of the member", SOON, async || {
        let are = keys(stage, cluster).await?;
        ensure!(are == wanted, "they are {are:?}");
        Ok(Some(()))
    })
    .await
}

fn condition(member: &MemberCluster, kind: &str) -> Option<(String, String, String)> {
    let conditions = &member.status.as_ref()?.conditions;
    let found = conditions
        .iter()
        .find(|condition| condition.type_ == kind)?;
    Some((
        found.status.clone(),
        found.message.clone(),
        found.last_transition_time.0.to_string(),
    ))
}

/// Receives batches until a source has this value.
async fn takes_until(
    line: &mut AgentStream,
    copies_there: &mut Holdings,
    source: &SourceRef,
    text: &str,
) -> Result<()> {
    while value(copies_there, source).as_deref() != Some(text) {
        if let HubFrame::Batch(batch) = line.must().await? {
            copies_there.apply_batch(&batch);
        }
    }
    Ok(())
}

fn reason_of(status: &Status) -> Option<&str> {
    status.metadata().get(REASON_METADATA)?.to_str().ok()
}

#[tokio::test]
async fn stream_is_handed_over_without_gap_or_repetition() -> Result<()> {
    const ROUNDS: usize = 5;
    let (stage, cluster) = (shared("handed").await?, "handed-a");
    let source = stage.write("settings", "0").await?;
    stage.write("constant", "always").await?;
    stage
        .rule(
            "all",
            &["settings", "constant"],
            json!({"clusters": {"names": [cluster]}}),
        )
        .await?;
    let mut credentials = stage.join(cluster).await?;
    let mut line = AgentStream::greeted(&credentials, Vec::new()).await?;
    let (mut copies_there, mut sent) = (Holdings::default(), Vec::new());
    takes_until(&mut line, &mut copies_there, &source, "0").await?;
    let connected = eventually("Connected", SOON, async || {
        let member = stage.members().get(cluster).await?;
        Ok(condition(&member, "Connected").filter(|observed| observed.0 == "True"))
    })
    .await?;
    let mut last = credentials.clone();
    for round in 1..=ROUNDS {
        let text = format!("round {round}");
        last = credentials;
        credentials = renewed(&last).await?;
        // No batch is acked: batches in flight at the handover are not sent again.
        stage.write("settings", &text).await?;
        line.send(&AgentFrame::Handover);
        loop {
            match line.must().await? {
                HubFrame::Batch(batch) => drop(copies_there.apply_batch(&batch)),
                HubFrame::HandedOver => break,
                _ => {}
            }
        }
        // The stream is there still, and mute: the member is connected, and what happens now comes on the next stream.
        let during = format!("between the streams {round}");
        stage.write("settings", &during).await?;
        let quiet = tokio::time::timeout(Duration::from_millis(300), line.next()).await;
        ensure!(
            quiet.is_err(),
            "something follows: {}",
            line.record().sketch()
        );
        let mut next = AgentStream::greeted(&credentials, copies_there.states()).await?;
        let end = line.end(Duration::from_secs(5)).await?;
        ensure!(end.message().contains("took over"), "{end:?}");
        ensure!(
            matches!(line.record().frames.last(), Some(HubFrame::HandedOver)),
            "{}",
            line.record().sketch()
        );
        sent.extend(
            line.record()
                .batches()
                .flat_map(|batch| &batch.rules)
                .flat_map(payloads),
        );
        // Its pairs are requested, because it lacks later edits, and only those are sent.
        while value(&copies_there, &source).as_deref() != Some(during.as_str()) {
            match next.must().await? {
                HubFrame::DetailRequest(uids) => {
                    uids.iter().for_each(|uid| {
                        next.send(&AgentFrame::Detail(
                            uid.clone(),
                            copies_there.detail(uid),
                            true,
                        ))
                    });
                }
                HubFrame::Batch(batch) => drop(copies_there.apply_batch(&batch)),
                _ => {}
            }
        }
        line = next;
    }
    sent.extend(
        line.record()
            .batches()
            .flat_map(|batch| &batch.rules)
            .flat_map(payloads),
    );
    let all = sent.len();
    sent.sort();
    sent.dedup();
    ensure!(
        all == sent.len(),
        "{} payloads were sent more than once",
        all - sent.len()
    );
    ensure!(all <= 2 + 2 * ROUNDS, "{all} payloads for {ROUNDS} rounds");
    let key = fingerprint(&credentials)?;
    let retired = eventually("the older keys to be retired", SOON, async || {
        let (kept, retired) = keys(&stage, cluster).await?;
        Ok((kept == [key.clone()]).then_some(retired))
    })
    .await?;
    ensure!(
        retired.len() == ROUNDS && retired.last() == Some(&fingerprint(&last)?),
        "{retired:?}"
    );
    let member = stage.members().get(cluster).await?;
    ensure!(
        condition(&member, "Connected") == Some(connected),
        "{:?}",
        member.status
    );
    ensure!(
        condition(&member, "PossibleKeyTheft").is_none(),
        "{:?}",
        member.status
    );
    // For the hub it was always connected.
    let log = std::fs::read_to_string(stage.fleet.hub_log())?;
    let ended = log
        .lines()
        .filter(|line| line.contains("session ended") && line.contains(cluster))
        .count();
    ensure!(
        ended == 0,
        "{ended} sessions ended before the next one was there"
    );
    Ok(())
}

fn payloads(rule: &runnel_proto::model::RuleDelta) -> Vec<String> {
    rule.upserts
        .iter()
        .map(|up| format!("{} {:?}", up.source, up.revision))
        .collect()
}

#[tokio::test]
async fn rotated_key_is_rejected_and_its_use_reported() -> Result<()> {
    let (stage, cluster) = (shared("stolen").await?, "stolen-a");
    let old = stage.join(cluster).await?;
    drop(AgentStream::greeted(&old, Vec::new()).await?);
    // An agent that stopped before it stored the new key reconnects with the old one, which is
    // still valid.
    let lost = renewed(&old).await?;
    drop(AgentStream::greeted(&old, Vec::new()).await?);
    let new = renewed(&old).await?;
    until_keys(&stage, cluster, (&[&old, &lost, &new], &[])).await?;
    let _line = AgentStream::greeted(&new, Vec::new()).await?;
    until_keys(&stage, cluster, (&[&new], &[&old, &lost])).await?;
    let calm = stage.members().get(cluster).await?;
    ensure!(
        condition(&calm, "PossibleKeyTheft").is_none(),
        "{:?}",
        calm.status
    );

    let refused = AgentStream::open(&old)
        .await
        .err()
        .context("let in with a retired key")?;
    ensure!(reason_of(&refused) == Some("key-unknown"), "{refused:?}");
    let (kind, words, at) = eventually("PossibleKeyTheft", SOON, async || {
        Ok(condition(
            &stage.members().get(cluster).await?,
            "PossibleKeyTheft",
        ))
    })
    .await?;
    ensure!(
        kind == "True" && words.contains(&fingerprint(&old)?) && words.contains("token create"),
        "{kind} {words}"
    );
    let hub = TestCluster::new("hub", stage.client.clone());
    let observed = hub
        .has_event(&Id::member(cluster), "PossibleKeyTheft")
        .await?;
    ensure!(
        observed.kind == "Warning" && observed.note == words,
        "{observed:?}"
    );
    // Neither repeats nor a renewal with it, nor the other key, cause a second report.
    ensure!(
        AgentStream::open(&old).await.is_err()
            && renewed(&old).await.is_err()
            && renewed(&lost).await.is_err()
    );
    steadily("one Event", Duration::from_secs(2), async || {
        let observed = hub.events_about(&Id::member(cluster)).await?;
        ensure!(
            observed.len() == 1 && observed.iter().all(|event| event.times == 1),
            "{observed:?}"
        );
        let now =
            condition(&stage.members().get(cluster).await?, "PossibleKeyTheft").context("gone")?;
        ensure!(now.0 == "True" && now.2 == at, "{now:?}");
        Ok(())
    })
    .await?;
    let output = serde_json::to_string(&stage.members().get(cluster).await?)?;
    ensure!(
        !output.contains("PRIVATE KEY") && !output.contains("CERTIFICATE"),
        "{output}"
    );

    // A client that was never a member did not return.
    let again = stage.join(cluster).await?;
    drop(AgentStream::greeted(&again, Vec::new()).await?);
    let cleared = eventually("the condition to go with a new join", SOON, async || {
        let member = stage.members().get(cluster).await?;
        Ok(condition(&member, "PossibleKeyTheft")
            .is_none()
            .then_some(member))
    })
    .await?;
    ensure!(
        condition(&cleared, "Connected").is_some_and(|observed| observed.0 == "True"),
        "{:?}",
        cleared.status
    );
    until_keys(&stage, cluster, (&[&again], &[])).await?;
    for gone in [&old, &new] {
        let refused = AgentStream::open(gone)
            .await
            .err()
            .context("let in with the key of another join")?;
        ensure!(reason_of(&refused) == Some("key-unknown"), "{refused:?}");
    }
    until_keys(&stage, cluster, (&[&again], &[])).await
}
