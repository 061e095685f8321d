//! Tokens are redeemed once and allow five guesses, independent of the client and of restarts of
//! the hub.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::future::{join_all, try_join_all};
use kube::Api;
use kube::api::{Patch, PatchParams};
use runnel_api::{Join, MemberCluster, MemberRecord};
use runnel_hub::token::{self, DeclaredJoin, TokenRequest};
use runnel_proto::wire::JoinRequest;
use runnel_tests::fleet::NAMESPACE;
use runnel_tests::simulated::{AgentStream, Credentials, channel};
use runnel_tests::wait::eventually;
use runnel_transport::grpc::runnel_client::RunnelClient;
use runnel_transport::identity::{JoinString, MemberKey, Token};
use runnel_transport::tls::join_config;
use serde_json::json;
use tonic::{Code, Status};

use super::stage::{SOON, Stage, alone};

/// Redemptions of one token at a time.
const RACERS: usize = 1000;
/// The connections of the guesses.
const CONNECTIONS: usize = 50;

/// The same id with another secret.
fn guess(join: &JoinString) -> Result<JoinString> {
    let other = Token::generate()?;
    let secret = other
        .expose()
        .split_once('.')
        .context("a token of two parts")?
        .1;
    Ok(JoinString {
        token: Token::parse(&format!("{}.{secret}", join.token.id()))?,
        ..join.clone()
    })
}

async fn member(stage: &Stage, cluster: &str) -> Result<MemberCluster> {
    Ok(stage.members().get(cluster).await?)
}

async fn refusal(join: &JoinString) -> Result<Status> {
    Credentials::join(join)
        .await
        .err()
        .with_context(|| format!("{} joined", join.cluster))
}

#[tokio::test]
async fn one_of_a_thousand_parallel_redemptions_wins_and_may_repeat() -> Result<()> {
    let stage = alone("race").await?;
    let join = stage.join_string("race").await?;
    let config = join_config(join.pin, &join.hub)?;
    let channels =
        try_join_all((0..CONNECTIONS).map(|_| channel(&join.addresses[0], config.clone()))).await?;
    let keys = (0..RACERS)
        .map(|_| MemberKey::generate().map(Arc::new))
        .collect::<Result<Vec<_>, _>>()?;
    let started = Instant::now();
    let race = keys.iter().enumerate().map(|(number, key)| {
        let (mut channel, join, config) = (channels[number % CONNECTIONS].clone(), &join, &config);
        async move {
            loop {
                let request = JoinRequest {
                    cluster: join.cluster.clone(),
                    token: join.token.expose().to_owned(),
                    certificate_request: key.certificate_request()?.into(),
                    cluster_uid: String::new(),
                };
                match RunnelClient::new(channel.clone()).join(request).await {
                    // On a busy machine a connection without a certificate may have had its time before all on it were
                    // answered. Who loses it asks again, as an agent does.
                    Err(status) if is_lost(&status) => {
                        channel = self::channel(&join.addresses[0], config.clone()).await?
                    }
                    // The API server of a busy machine did not answer the hub in time: an agent asks again, too.
                    Err(status) if status.code() == Code::Unavailable => {}
                    answer => return anyhow::Ok(answer.map(drop)),
                }
            }
        }
    });
    let answers = join_all(race)
        .await
        .into_iter()
        .collect::<Result<Vec<_>>>()?;
    println!("{RACERS} redemptions took {:?}", started.elapsed());
    let won: Vec<usize> = answers
        .iter()
        .enumerate()
        .filter(|(_, answer)| answer.is_ok())
        .map(|(n, _)| n)
        .collect();
    ensure!(won.len() == 1, "{} of {RACERS} won", won.len());
    for status in answers.iter().filter_map(|answer| answer.as_ref().err()) {
        ensure!(status.code() == Code::FailedPrecondition, "{status:?}");
        ensure!(
            status.message().contains("already used with another key"),
            "{status:?}"
        );
    }
    let winner = keys[won[0]].clone();
    let known = stage.record("race").await?;
    let fingerprint = Some(winner.fingerprint().to_string());
    ensure!(
        known.tokens.len() == 1 && known.tokens[0].key_fingerprint == fingerprint,
        "{:?}",
        known.tokens
    );
    let identity = known.identity;
    ensure!(
        identity.keys.len() == 1 && Some(&identity.keys[0].fingerprint) == fingerprint.as_ref()
    );
    drop(AgentStream::greeted(&Credentials::join_with(&join, winner).await?, Vec::new()).await?);

    // Git brings the join back after a newer one was used: it stays spent.
    let before = member(&stage, "race").await?.spec.join.context("a join")?;
    Credentials::join(&stage.join_string("race").await?).await?;
    stage
        .patch_member("race", json!({"spec": {"join": before}}))
        .await?;
    let status = refusal(&join).await?;
    ensure!(
        status.message().contains("already used with another key"),
        "{status:?}"
    );
    Ok(())
}

/// Whether the connection ended without an answer of the hub.
fn is_lost(status: &Status) -> bool {
    std::error::Error::source(status).is_some_and(|source| source.is::<tonic::transport::Error>())
}

#[tokio::test]
async fn five_wrong_secrets_burn_a_token_and_strangers_burn_none() -> Result<()> {
    let stage = alone("burnt").await?;
    let join = stage.join_string("burnt").await?;
    // A client without the id is always refused, and after some attempts without a check.
    let mut codes = Vec::new();
    for _ in 0..40 {
        codes.push(
            refusal(&JoinString {
                token: Token::generate()?,
                ..join.clone()
            })
            .await?
            .code(),
        );
    }
    let limited = codes
        .iter()
        .filter(|code| **code == Code::ResourceExhausted)
        .count();
    ensure!(
        codes[0] == Code::Unauthenticated && (10..=20).contains(&limited),
        "{codes:?}"
    );
    ensure!(stage.record("burnt").await?.tokens.is_empty());
    // And does not exclude the holder of the right one at the same address.
    drop(AgentStream::greeted(&Credentials::join(&join).await?, Vec::new()).await?);

    let join = stage.join_string("burnt").await?;
    let guesses = (0..5).map(|_| guess(&join)).collect::<Result<Vec<_>>>()?;
    // Until the watch delivers the new token, it counts as unknown from this address, and must be
    // retried.
    let first = eventually("the watch to know the token", SOON, async || {
        Ok(Some(refusal(&guesses[0]).await?)
            .filter(|status| status.code() != Code::ResourceExhausted))
    });
    let mut received = vec![first.await?];
    received.extend(try_join_all(guesses[1..].iter().map(refusal)).await?);
    for status in received {
        ensure!(
            status.code() == Code::Unauthenticated && status.message().contains("is wrong"),
            "{status:?}"
        );
    }
    let is_burnt = async || {
        for join in [&join, &guess(&join)?] {
            let status = refusal(join).await?;
            ensure!(status.code() == Code::FailedPrecondition, "{status:?}");
            ensure!(
                status
                    .message()
                    .contains("burnt, as five wrong secrets were tried"),
                "{status:?}"
            );
            ensure!(
                status.message().contains("`runnel-hub token create burnt`"),
                "{status:?}"
            );
        }
        anyhow::Ok(())
    };
    is_burnt().await?;
    let tokens = stage.record("burnt").await?.tokens;
    ensure!(
        tokens
            .iter()
            .any(|used| used.token_hash == join.token.hash() && used.wrong_secrets == 5),
        "{tokens:?}"
    );
    stage.fleet.kill_hub()?;
    stage.fleet.start_hub().await?;
    eventually("the hub to answer", SOON, async || {
        let code = refusal(&join).await?.code();
        Ok((!matches!(code, Code::Internal | Code::Unavailable)).then_some(()))
    })
    .await?;
    is_burnt().await?;
    let log = std::fs::read_to_string(stage.fleet.hub_log())?;
    ensure!(log.contains("a wrong secret of a token") && !log.contains(join.token.expose()));

    // The fix.
    drop(AgentStream::greeted(&stage.join("burnt").await?, Vec::new()).await?);
    Ok(())
}

#[tokio::test]
async fn no_more_tokens_are_taken_than_can_be_remembered() -> Result<()> {
    let stage = alone("full").await?;
    let mut join = stage.join_string("full").await?;
    for _ in 0..16 {
        Credentials::join(&join).await?;
        join = stage.join_string("full").await?;
    }
    let status = refusal(&join).await?;
    ensure!(
        status.code() == Code::ResourceExhausted && status.message().contains("has used 16 tokens"),
        "{status:?}"
    );
    // Simulates an hour.
    let mut tokens = stage.record("full").await?.tokens;
    let past = jiff::Timestamp::now() - Duration::from_secs(60);
    tokens[3].expires_at = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(past));
    let forgotten = tokens[3].token_hash.clone();
    let patch = Patch::Merge(json!({"spec": {"tokens": tokens}}));
    Api::<MemberRecord>::all(stage.client.clone())
        .patch("full", &PatchParams::default(), &patch)
        .await?;
    Credentials::join(&join).await?;
    let tokens = stage.record("full").await?.tokens;
    ensure!(tokens.len() == 16 && tokens.iter().all(|used| used.token_hash != forgotten));
    Ok(())
}

#[tokio::test]
async fn a_join_is_declared_in_git_without_a_write_to_the_hub() -> Result<()> {
    let stage = alone("declared").await?;
    let request = TokenRequest {
        cluster: "declared".to_owned(),
        labels: vec!["set=declared".to_owned()],
        ttl: "1h".to_owned(),
        advertise: vec![stage.fleet.hub_address()],
    };
    let mark = stage.mark();
    let DeclaredJoin {
        join_string,
        manifest,
    } = token::declare(stage.client.clone(), NAMESPACE, request.clone()).await?;
    let writes = stage.hub_writes(mark)?;
    ensure!(
        writes.is_empty() && stage.members().get_opt("declared").await?.is_none(),
        "{writes:?}"
    );
    let elsewhere = token::declare(stage.client.clone(), &stage.namespace, request).await;
    let output = format!(
        "{:#}",
        elsewhere
            .err()
            .context("a namespace without a hub had an identity")?
    );
    ensure!(
        output.contains("no hub's identity in namespace declared"),
        "{output}"
    );

    let join = JoinString::parse(&join_string)?;
    ensure!(!manifest.contains(join.token.expose()));
    let status = refusal(&join).await?;
    ensure!(status.code() == Code::Unauthenticated, "{status:?}");
    let object: MemberCluster = serde_saphyr::from_str(&manifest)?;
    let params = PatchParams::apply("git");
    let members: Api<MemberCluster> = stage.members();
    let applied = serde_saphyr::from_str::<serde_json::Value>(&manifest)?;
    members
        .patch("declared", &params, &Patch::Apply(applied))
        .await?;
    let Some(Join { token_id, .. }) = object.spec.join else {
        anyhow::bail!("no join in {manifest}")
    };
    ensure!(token_id.as_deref() == Some(join.token.id()));
    drop(AgentStream::greeted(&Credentials::join(&join).await?, Vec::new()).await?);
    Ok(())
}
