//! Accepted peers, and the end of their sessions.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use kube::ResourceExt;
use kube::api::DeleteParams;
use rcgen::{CertificateParams, KeyPair, SanType};
use runnel_proto::REASON_METADATA;
use runnel_tests::simulated::{AgentStream, Credentials, Forgery, SimulatedAgent, channel, sketch};
use runnel_tests::wait::eventually;
use runnel_transport::identity::{Ca, MemberKey, PeerCertificate, SpiffeId};
use runnel_transport::tls::join_config;
use serde_json::json;
use tonic::{Code, Status};

use super::stage::{SOON, Stage, shared};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

async fn refusal(credentials: &Credentials) -> Result<Status> {
    // The certificate is refused in the handshake, or the session by its answer, or by its first frame.
    match AgentStream::open(credentials).await {
        Err(status) => Ok(status),
        Ok(mut line) => line.end(Duration::from_secs(10)).await,
    }
}

/// The refusal in the hub's words. A connection that was made just before the hub observed its reason is cut without any.
async fn worded_refusal(credentials: &Credentials) -> Result<Status> {
    eventually("a refusal with a reason", SOON, async || {
        let status = refusal(credentials).await?;
        ensure!(status.code() == Code::Unauthenticated, "{status:?}");
        Ok(Some(status))
    })
    .await
}

/// The refusal of a handshake: what the agent sees of it, and the hub's own words in its log.
async fn refused_by_tls(stage: &Stage, forged: &Credentials, words: &str) -> Result<()> {
    let before = logged(stage, words)?;
    let status = refusal(forged).await?;
    ensure!(status.code() != Code::Ok, "{} was let in", forged.cluster);
    eventually(&format!("{words:?} in the hub's log"), SOON, async || {
        Ok((logged(stage, words)? > before).then_some(()))
    })
    .await
}

fn logged(stage: &Stage, words: &str) -> Result<usize> {
    let log = std::fs::read_to_string(stage.fleet.hub_log())?;
    Ok(log
        .lines()
        .filter(|line| line.contains("a connection was refused") && line.contains(words))
        .count())
}

#[tokio::test]
async fn peer_without_a_valid_certificate_is_refused_with_a_reason() -> Result<()> {
    let stage = shared("identity").await?;
    let good = stage.join("identity-a").await?;
    let uid = stage
        .members()
        .get("identity-a")
        .await?
        .uid()
        .context("a uid")?;
    let now = SystemTime::now();
    let own = stage.ca().await?;
    let forgery = || Forgery {
        hub: &good.hub,
        cluster: "identity-a",
        uid: &uid,
        key: None,
        made: now,
        life: DAY,
    };
    drop(AgentStream::greeted(&good, Vec::new()).await?);

    // No certificate.
    let pin = own.pin();
    let anonymous = channel(&good.address, join_config(pin, &good.hub)?).await?;
    let status = AgentStream::over(anonymous)
        .await
        .err()
        .context("let in without a certificate")?;
    ensure!(status.code() == Code::Unauthenticated, "{status:?}");
    ensure!(
        status
            .message()
            .contains("needs the client certificate that a join gives"),
        "{status:?}"
    );

    // A CA other than the hub's with otherwise correct certificates; and one with the same name.
    for (name, words) in [
        ("anotherhub", "UnknownIssuer"),
        (&*good.hub, "BadSignature"),
    ] {
        let foreign = Ca::generate(name, now)?;
        let forged = good.forge(
            &foreign,
            Forgery {
                key: Some(good.key()),
                ..forgery()
            },
        )?;
        refused_by_tls(&stage, &forged, words).await?;
    }

    // The right CA, and a key that the hub has not recorded.
    let status = refusal(&good.forge(&own, forgery())?).await?;
    ensure!(status.code() == Code::Unauthenticated, "{status:?}");
    ensure!(
        status
            .message()
            .contains("key is not known for cluster identity-a: join again"),
        "{status:?}"
    );

    // Another cluster's name, uid or hub beside a key that is known.
    stage.join("identity-b").await?;
    for (hub, cluster, uid) in [
        (&*good.hub, "identity-b", &*uid),
        (
            &*good.hub,
            "identity-a",
            "00000000-0000-0000-0000-000000000000",
        ),
        ("anotherhub", "identity-a", &*uid),
        (&*good.hub, "identity-none", &*uid),
    ] {
        let forged = good.forge(
            &own,
            Forgery {
                hub,
                cluster,
                uid,
                key: Some(good.key()),
                ..forgery()
            },
        )?;
        let status = refusal(&forged).await?;
        ensure!(
            status.code() == Code::Unauthenticated,
            "{hub} {cluster} {uid}: {status:?}"
        );
        ensure!(
            status
                .message()
                .contains("join again with a new join string"),
            "{hub} {cluster} {uid}: {status:?}"
        );
    }

    // The member is not affected.
    drop(AgentStream::greeted(&good, Vec::new()).await?);
    Ok(())
}

#[tokio::test]
async fn a_cluster_that_was_made_again_is_another_one() -> Result<()> {
    let stage = shared("reborn").await?;
    let old = stage.join("reborn-a").await?;
    drop(AgentStream::greeted(&old, Vec::new()).await?);
    stage
        .members()
        .delete("reborn-a", &DeleteParams::default())
        .await?;
    let status = worded_refusal(&old).await?;
    ensure!(
        status
            .message()
            .contains("join again with a new join string"),
        "{status:?}"
    );

    let new = stage.join("reborn-a").await?;
    let status = worded_refusal(&old).await?;
    ensure!(
        status
            .message()
            .contains("join again with a new join string"),
        "{status:?}"
    );
    let renewal = old
        .renew(old.key(), old.key().certificate_request()?)
        .await
        .err()
        .context("renewed")?;
    ensure!(renewal.code() == Code::Unauthenticated, "{renewal:?}");
    drop(AgentStream::greeted(&new, Vec::new()).await?);
    Ok(())
}

#[tokio::test]
async fn unaccepting_or_deleting_cuts_the_stream_in_a_second() -> Result<()> {
    let stage = shared("revoked").await?;
    let source = stage.write("settings", "before").await?;
    stage
        .rule(
            "all",
            &["settings"],
            json!({"clusters": {"selector": {"matchLabels": {"set": "revoked"}}}}),
        )
        .await?;
    let cases = [
        ("revoked-unaccepted", "is not accepted", "not-accepted"),
        ("revoked-deleted", "no longer there", "gone"),
    ];
    for (cluster, message, reason) in cases {
        let credentials = stage.join(cluster).await?;
        SimulatedAgent::up_to_date(&credentials, Default::default())
            .await?
            .stop()
            .await;
        let mut line = AgentStream::greeted(&credentials, Vec::new()).await?;
        while !line
            .record()
            .upserts()
            .iter()
            .any(|(_, sent)| *sent == source)
        {
            line.must().await?;
        }
        if cluster == "revoked-deleted" {
            stage
                .members()
                .delete(cluster, &DeleteParams::default())
                .await?;
        } else {
            stage
                .patch_member(cluster, json!({"spec": {"accepted": false}}))
                .await?;
        }
        let end = line.end(Duration::from_secs(1)).await?;
        ensure!(end.message().contains(message), "{end:?}");
        let last = line.record().frames.last().map(sketch);
        ensure!(
            last == Some(format!("Revoked {reason}")),
            "{}",
            line.record().sketch()
        );
        stage.write("settings", &format!("after {cluster}")).await?;
        let again = AgentStream::open(&credentials)
            .await
            .err()
            .context("let in again")?;
        ensure!(again.message().contains(message), "{again:?}");
        let key = credentials.key();
        let renewal = credentials
            .renew(key.clone(), key.certificate_request()?)
            .await
            .err()
            .context("renewed")?;
        for refused in [&end, &again, &renewal] {
            ensure!(reason_of(refused) == Some(reason), "{refused:?}");
        }
        ensure!(
            !line.record().contains(&format!("after {cluster}")),
            "{}",
            line.record().sketch()
        );
    }
    // Accepted again, the same certificate opens the door again, and what happened meanwhile comes.
    stage
        .patch_member("revoked-unaccepted", json!({"spec": {"accepted": true}}))
        .await?;
    let credentials = stage.join("revoked-other").await?;
    SimulatedAgent::up_to_date(&credentials, Default::default())
        .await?
        .check()
}

/// Why the hub refuses, in the word that an agent reads.
fn reason_of(status: &Status) -> Option<&str> {
    status.metadata().get(REASON_METADATA)?.to_str().ok()
}

#[tokio::test]
async fn expired_certificate_allows_renewal_only() -> Result<()> {
    let stage = shared("expired").await?;
    let good = stage.join("expired-a").await?;
    let uid = stage
        .members()
        .get("expired-a")
        .await?
        .uid()
        .context("a uid")?;
    let own = stage.ca().await?;
    let made = |of: &Credentials, days: u32| {
        let key = Some(of.key());
        let made = SystemTime::now() - days * DAY;
        good.forge(
            &own,
            Forgery {
                hub: &good.hub,
                cluster: "expired-a",
                uid: &uid,
                key,
                made,
                life: DAY,
            },
        )
    };
    let renew = async |old: &Credentials| {
        let key = Arc::new(MemberKey::generate()?);
        anyhow::Ok(old.renew(key.clone(), key.certificate_request()?).await)
    };
    // Expired for a day, and for almost thirty. Each time with the newest key: a session retires
    // the older ones.
    let mut newest = good.clone();
    for days in [2, 30] {
        let old = made(&newest, days)?;
        let status = refusal(&old).await?;
        ensure!(
            status.code() == Code::Unauthenticated && reason_of(&status) == Some("expired"),
            "{status:?}"
        );
        newest = renew(&old).await??;
        drop(AgentStream::greeted(&newest, Vec::new()).await?);
    }
    // After a longer time only a new join string helps, and the member's status reports that.
    let old = made(&newest, 32)?;
    let status = renew(&old).await?.err().context("renewed")?;
    ensure!(reason_of(&status) == Some("expired-too-long"), "{status:?}");
    ensure!(
        status
            .message()
            .contains("runnel-hub token create expired-a"),
        "{status:?}"
    );
    // An expired certificate of another key, or of a revoked member, may not renew either.
    let forgery = Forgery {
        hub: &good.hub,
        cluster: "expired-a",
        uid: &uid,
        key: None,
        made: SystemTime::now() - 2 * DAY,
        life: DAY,
    };
    let status = renew(&good.forge(&own, forgery)?)
        .await?
        .err()
        .context("renewed with another key")?;
    ensure!(reason_of(&status) == Some("key-unknown"), "{status:?}");
    stage
        .patch_member("expired-a", json!({"spec": {"accepted": false}}))
        .await?;
    let status = renew(&made(&newest, 2)?)
        .await?
        .err()
        .context("renewed though revoked")?;
    ensure!(reason_of(&status) == Some("not-accepted"), "{status:?}");
    Ok(())
}

#[tokio::test]
async fn a_session_ends_with_its_certificate() -> Result<()> {
    let stage = shared("short").await?;
    let good = stage.join("short-a").await?;
    let uid = stage
        .members()
        .get("short-a")
        .await?
        .uid()
        .context("a uid")?;
    let (key, life) = (Some(good.key()), Duration::from_secs(4));
    let made = SystemTime::now();
    let short = Forgery {
        hub: &good.hub,
        cluster: "short-a",
        uid: &uid,
        key,
        made,
        life,
    };
    let short = good.forge(&stage.ca().await?, short)?;
    let mut line = AgentStream::greeted(&short, Vec::new()).await?;
    let end = line.end(Duration::from_secs(10)).await?;
    ensure!(end.code() == Code::Unauthenticated, "{end:?}");
    ensure!(
        end.message()
            .contains("has expired: connect with the new one"),
        "{end:?}"
    );
    ensure!(
        made.elapsed()? >= Duration::from_secs(3),
        "cut early, after {:?}",
        made.elapsed()
    );
    Ok(())
}

#[tokio::test]
async fn renewal_follows_the_hub_not_the_request() -> Result<()> {
    let stage = shared("renewed").await?;
    let (own, other) = (
        stage.join("renewed-a").await?,
        stage.join("renewed-b").await?,
    );
    let other_id = PeerCertificate::from_der(other.certificate())?
        .id
        .to_string();
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::default();
    params.subject_alt_names = vec![
        SanType::URI(other_id.try_into()?),
        SanType::URI("spiffe://x/hub".try_into()?),
    ];
    let request = params.serialize_request(&key)?.der().to_vec();
    let key = Arc::new(MemberKey::from_pem(&key.serialize_pem())?);
    let renewed = own.renew(key, request).await?;
    let SpiffeId::Cluster { cluster, .. } = PeerCertificate::from_der(renewed.certificate())?.id
    else {
        anyhow::bail!("not a member's certificate");
    };
    ensure!(cluster == "renewed-a", "{cluster}");
    // Both are valid: the stream of the old one continues while the new one is tried.
    let _old = AgentStream::greeted(&own, Vec::new()).await?;
    drop(AgentStream::greeted(&renewed, Vec::new()).await?);
    let anonymous = channel(
        &own.address,
        join_config(stage.ca().await?.pin(), &own.hub)?,
    )
    .await?;
    let mut client = runnel_transport::grpc::runnel_client::RunnelClient::new(anonymous);
    let request = runnel_proto::wire::RenewRequest {
        certificate_request: own.key().certificate_request()?.into(),
    };
    let refused = client
        .renew(request)
        .await
        .err()
        .context("renewed without a certificate")?;
    ensure!(refused.code() == Code::Unauthenticated, "{refused:?}");
    Ok(())
}

#[tokio::test]
async fn a_second_session_of_a_cluster_takes_over() -> Result<()> {
    let stage = shared("twice").await?;
    let credentials = stage.join("twice-a").await?;
    let mut first = AgentStream::greeted(&credentials, Vec::new()).await?;
    let _second = AgentStream::greeted(&credentials, Vec::new()).await?;
    let end = first.end(Duration::from_secs(5)).await?;
    ensure!(
        end.code() == Code::Aborted && end.message().contains("took over"),
        "{end:?}"
    );
    Ok(())
}
