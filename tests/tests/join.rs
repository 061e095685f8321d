//! Joins and renewals with a real API server: accepted and refused ones.

use std::convert::identity;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::events::v1::Event;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use runnel_api::{
    DistributionRule, MemberCluster, MemberClusterSpec, MemberClusterStatus, MemberRecord,
};
use runnel_hub::ca::{HubCas, IDENTITY_SECRET, advertise, load_or_create};
use runnel_hub::join::{JoinClient, Registrar};
use runnel_hub::member_records::read_member;
use runnel_hub::membership::CertificateLifetimes;
use runnel_hub::membership::decide::{JoinRefusal, admit};
use runnel_hub::object_cache::ObjectCache;
use runnel_hub::token::{self, TokenRequest};
use runnel_hub_core::epoch::REPLACES;
use runnel_proto::wire::{CertificateResponse, JoinRequest, RenewRequest};
use runnel_tests::control_plane::{ControlPlane, Options, client_of};
use runnel_tests::fleet::{HUB, NAMESPACE, account};
use runnel_tests::wait::eventually;
use runnel_transport::identity::{JoinString, MemberKey, PeerCertificate, Token};
use serde_json::{Value, json};
use tokio::sync::OnceCell;
use tonic::{Code, Status};

const SOON: Duration = Duration::from_secs(30);
const HERE: JoinClient = JoinClient {
    address: Some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
    known: false,
};

static PLANE: OnceCell<(ControlPlane, PathBuf)> = OnceCell::const_new();

async fn planes() -> Result<&'static (ControlPlane, PathBuf)> {
    PLANE
        .get_or_try_init(|| async {
            let hub = ControlPlane::start("join", Options::default()).await?;
            let account = account(&hub, HUB, NAMESPACE, &Value::Null).await?;
            anyhow::Ok((hub, account))
        })
        .await
}

/// An administrator's client, which creates and changes objects.
async fn hub() -> Result<Client> {
    planes().await?.0.client().await
}

/// The hub's own client, with the rights of its chart.
async fn own() -> Result<Client> {
    client_of(&planes().await?.1).await
}

async fn registrar() -> Result<Registrar> {
    let client = own().await?;
    let identity = load_or_create(&client, NAMESPACE).await?;
    Ok(Registrar::new(
        client,
        HubCas::of(identity),
        CertificateLifetimes::default(),
    ))
}

async fn join_string(client: &Client, cluster: &str, labels: &[&str]) -> Result<JoinString> {
    let request = TokenRequest {
        cluster: cluster.to_owned(),
        labels: labels.iter().map(|label| (*label).to_owned()).collect(),
        ttl: "1h".to_owned(),
        advertise: vec!["hub.example:8443".to_owned()],
    };
    Ok(JoinString::parse(
        &token::create(client.clone(), NAMESPACE, request).await?,
    )?)
}

fn request(cluster: &str, token: &Token, key: &MemberKey) -> Result<JoinRequest> {
    Ok(JoinRequest {
        cluster: cluster.to_owned(),
        token: token.expose().to_owned(),
        certificate_request: key.certificate_request()?.into(),
        cluster_uid: format!("uid-of-{cluster}"),
    })
}

fn peer(response: &CertificateResponse) -> Result<PeerCertificate> {
    Ok(PeerCertificate::from_der(&response.certificate)?)
}

async fn admitted(
    client: &Client,
    peer: &PeerCertificate,
    cluster: &str,
) -> Result<Result<(), JoinRefusal>> {
    let member = read_member(client, &ObjectCache::default(), cluster).await?;
    let identity = load_or_create(client, NAMESPACE).await?;
    Ok(admit(
        member.as_ref(),
        &identity.hub_id,
        peer,
        Timestamp::now(),
    ))
}

fn code<T>(result: Result<T, Status>) -> Option<Code> {
    result.err().map(|status| status.code())
}

#[tokio::test]
async fn many_hubs_that_start_at_once_get_one_identity() -> Result<()> {
    let values = json!({"crds": {"install": false}});
    let client = client_of(&account(&planes().await?.0, HUB, "many-hubs", &values).await?).await?;
    let addresses = ["hub:1".to_owned()];
    let (a, b, c) = tokio::try_join!(
        load_or_create(&client, "many-hubs"),
        load_or_create(&client, "many-hubs"),
        advertise(&client, "many-hubs", &addresses),
    )?;
    ensure!(a.hub_id == b.hub_id && b.hub_id == c.hub_id);
    ensure!(a.ca.pin() == b.ca.pin() && b.ca.pin() == c.ca.pin());
    let secret = Api::<Secret>::namespaced(client.clone(), "many-hubs")
        .get(IDENTITY_SECRET)
        .await?;
    let again = advertise(&client, "many-hubs", &addresses).await?;
    ensure!(again.addresses == addresses && again.hub_id == a.hub_id);
    let unchanged = Api::<Secret>::namespaced(client, "many-hubs")
        .get(IDENTITY_SECRET)
        .await?;
    ensure!(
        secret.metadata.resource_version == unchanged.metadata.resource_version,
        "an idle start wrote"
    );
    Ok(())
}

#[tokio::test]
async fn a_cluster_joins_once_and_renews() -> Result<()> {
    let client = hub().await?;
    let registrar = registrar().await?;
    let join = join_string(&client, "eu-1", &["env=prod"]).await?;
    let key = MemberKey::generate()?;

    let response = registrar
        .join(
            HERE,
            request("eu-1", &join.token, &key)?,
            &ObjectCache::default(),
        )
        .await?;
    let first = peer(&response)?;
    ensure!(first.key == key.fingerprint());
    ensure!(admitted(&client, &first, "eu-1").await? == Ok(()));

    // A lost answer is asked for again; another key comes too late.
    let again = registrar
        .join(
            HERE,
            request("eu-1", &join.token, &key)?,
            &ObjectCache::default(),
        )
        .await?;
    ensure!(admitted(&client, &peer(&again)?, "eu-1").await? == Ok(()));
    let attacker = registrar
        .join(
            HERE,
            request("eu-1", &join.token, &MemberKey::generate()?)?,
            &ObjectCache::default(),
        )
        .await;
    ensure!(code(attacker) == Some(Code::FailedPrecondition));

    let new_key = MemberKey::generate()?;
    let renew = RenewRequest {
        certificate_request: new_key.certificate_request()?.into(),
    };
    let renewed = peer(
        &registrar
            .renew(&first, renew, &ObjectCache::default(), identity)
            .await?,
    )?;
    ensure!(renewed.key == new_key.fingerprint());
    for certificate in [&first, &renewed] {
        ensure!(
            admitted(&client, certificate, "eu-1").await? == Ok(()),
            "both keys hold during a renewal"
        );
    }

    // A new join string preserves fields of other writers, and invalidates the old keys.
    let members: Api<MemberCluster> = Api::all(client.clone());
    let join = join_string(&client, "eu-1", &["zone=a"]).await?;
    let member = members.get("eu-1").await?;
    let labels = member.metadata.labels.context("labels")?;
    ensure!(labels["env"] == "prod" && labels["zone"] == "a");
    let next = peer(
        &registrar
            .join(
                HERE,
                request("eu-1", &join.token, &MemberKey::generate()?)?,
                &ObjectCache::default(),
            )
            .await?,
    )?;
    // As Velero and kubectl apply, which restore no status.
    let without = Patch::Merge(json!({"status": null}));
    members
        .patch_status("eu-1", &PatchParams::default(), &without)
        .await?;
    ensure!(admitted(&client, &next, "eu-1").await? == Ok(()));
    let unknown = Err(JoinRefusal::UnknownKey("eu-1".to_owned()));
    ensure!(admitted(&client, &renewed, "eu-1").await? == unknown);
    let records: Api<MemberRecord> = Api::all(client.clone());
    records.delete("eu-1", &Default::default()).await?;
    ensure!(admitted(&client, &next, "eu-1").await? == unknown);
    Ok(())
}

#[tokio::test]
async fn second_name_for_a_cluster_is_refused_and_spends_no_token() -> Result<()> {
    let client = hub().await?;
    let registrar = registrar().await?;
    let join = join_string(&client, "eu-new", &[]).await?;
    let known = ObjectCache::default();
    let mut first = MemberCluster::new("eu-old", MemberClusterSpec::default());
    first.status = Some(MemberClusterStatus {
        cluster_uid: Some("uid-of-eu-new".to_owned()),
        ..MemberClusterStatus::default()
    });
    known.set_member("eu-old".into(), first);
    let key = MemberKey::generate()?;
    let refused = registrar
        .join(HERE, request("eu-new", &join.token, &key)?, &known)
        .await
        .err()
        .context("refused")?;
    ensure!(
        refused.code() == Code::FailedPrecondition
            && refused.message().contains("--replace eu-old"),
        "{refused}"
    );
    let members: Api<MemberCluster> = Api::all(client);
    ensure!(members.get("eu-new").await?.status.is_none());
    let records: Api<MemberRecord> = Api::all(hub().await?);
    ensure!(records.get_opt("eu-new").await?.is_none());
    let other = request("eu-new", &Token::generate()?, &key)?;
    let stranger = registrar.join(HERE, other, &known).await;
    let stranger = stranger.err().context("refused")?;
    ensure!(!stranger.message().contains("eu-old"), "{stranger}");

    let patch = Patch::Merge(json!({"metadata": {"annotations": {REPLACES: "eu-old"}}}));
    members
        .patch("eu-new", &PatchParams::default(), &patch)
        .await?;
    let response = registrar
        .join(HERE, request("eu-new", &join.token, &key)?, &known)
        .await?;
    ensure!(response.replaced_cluster == "eu-old");
    Ok(())
}

#[tokio::test]
async fn one_of_two_keys_that_join_at_once_wins() -> Result<()> {
    let client = hub().await?;
    let (one, two) = (registrar().await?, registrar().await?);
    let join = join_string(&client, "eu-2", &[]).await?;
    let (a, b) = (MemberKey::generate()?, MemberKey::generate()?);
    let known = ObjectCache::default();
    let (a, b) = tokio::join!(
        one.join(HERE, request("eu-2", &join.token, &a)?, &known),
        two.join(HERE, request("eu-2", &join.token, &b)?, &known)
    );
    let (winner, loser) = if a.is_ok() { (a, b) } else { (b, a) };
    ensure!(admitted(&client, &peer(&winner?)?, "eu-2").await? == Ok(()));
    ensure!(code(loser) == Some(Code::FailedPrecondition));
    Ok(())
}

#[tokio::test]
async fn refusals_name_the_cause_and_a_hint() -> Result<()> {
    let client = hub().await?;
    let registrar = registrar().await?;
    let join = join_string(&client, "eu-3", &[]).await?;
    let key = MemberKey::generate()?;

    let no_agent = registrar
        .join(
            HERE,
            request("eu-nowhere", &join.token, &key)?,
            &ObjectCache::default(),
        )
        .await;
    ensure!(code(no_agent) == Some(Code::Unauthenticated));

    let members: Api<MemberCluster> = Api::all(client.clone());
    let set = async |spec| {
        let patch = Patch::Merge(json!({"spec": spec}));
        members.patch("eu-3", &PatchParams::default(), &patch).await
    };
    set(json!({"accepted": false})).await?;
    let refused = registrar
        .join(
            HERE,
            request("eu-3", &join.token, &key)?,
            &ObjectCache::default(),
        )
        .await
        .err()
        .context("refused")?;
    ensure!(
        refused.code() == Code::FailedPrecondition && refused.message().contains("spec.accepted"),
        "{refused}"
    );
    set(json!({"accepted": true})).await?;
    let member = peer(
        &registrar
            .join(
                HERE,
                request("eu-3", &join.token, &key)?,
                &ObjectCache::default(),
            )
            .await?,
    )?;

    set(json!({"join": {"expiresAt": "2020-01-01T00:00:00Z"}})).await?;
    let late = registrar
        .join(
            HERE,
            request("eu-3", &join.token, &key)?,
            &ObjectCache::default(),
        )
        .await
        .err()
        .context("refused")?;
    ensure!(
        late.code() == Code::FailedPrecondition && late.message().contains("expired"),
        "{late}"
    );

    // With the one above, thirty.
    for _ in 0..29 {
        let wrong = registrar
            .join(
                HERE,
                request("eu-3", &Token::generate()?, &key)?,
                &ObjectCache::default(),
            )
            .await
            .err()
            .context("refused")?;
        ensure!(wrong.code() == Code::Unauthenticated, "{wrong}");
        ensure!(
            wrong.message().contains("`runnel-hub token create eu-3`"),
            "{wrong}"
        );
    }
    let closed = registrar
        .join(
            HERE,
            request("eu-3", &Token::generate()?, &key)?,
            &ObjectCache::default(),
        )
        .await;
    ensure!(code(closed) == Some(Code::ResourceExhausted));

    // A cluster that is made again under its old name is another cluster.
    members.delete("eu-3", &Default::default()).await?;
    eventually("the cluster to be gone", SOON, async || {
        Ok(members.get_opt("eu-3").await?.is_none().then_some(()))
    })
    .await?;
    let join = join_string(&client, "eu-3", &[]).await?;
    let refused = Err(JoinRefusal::Recreated("eu-3".to_owned()));
    ensure!(admitted(&client, &member, "eu-3").await? == refused);
    let renew = RenewRequest {
        certificate_request: MemberKey::generate()?.certificate_request()?.into(),
    };
    ensure!(
        code(
            registrar
                .renew(&member, renew, &ObjectCache::default(), identity)
                .await
        ) == Some(Code::Unauthenticated)
    );
    // The record of the former cluster makes way, though the garbage collector may not have deleted it yet.
    let again = request("eu-3", &join.token, &key)?;
    let known = ObjectCache::default();
    let again = self::registrar().await?.join(HERE, again, &known).await?;
    ensure!(admitted(&client, &peer(&again)?, "eu-3").await? == Ok(()));
    Ok(())
}

/// The hub's token may patch rules, because roles have no fields.
#[tokio::test]
async fn hub_account_changes_only_finalizers_and_writes_own_events() -> Result<()> {
    let (admin, own) = (hub().await?, own().await?);
    let rule = serde_json::from_value(json!({
        "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionRule", "metadata": {"name": "guarded", "namespace": "default"},
        "spec": {"sources": [{"resources": ["configmaps"], "names": ["a"]}], "clusters": {"all": true}, "namespaces": {"names": ["a"]}},
    }))?;
    let rules = |client: &Client| Api::<DistributionRule>::namespaced(client.clone(), "default");
    rules(&admin).create(&PostParams::default(), &rule).await?;
    let change = async |patch: Value| {
        let patch = Patch::Merge(patch);
        let params = PatchParams::default();
        rules(&own).patch("guarded", &params, &patch).await
    };
    for patch in [
        json!({"spec": {"suspend": true}}),
        json!({"metadata": {"labels": {"a": "b"}}}),
        json!({"metadata": {"annotations": {"runnel.dev/approve-removal": "x"}}}),
    ] {
        // A new policy takes effect after a moment.
        eventually("the policy to refuse it", SOON, async || {
            let refused = change(patch.clone()).await.err().map(|e| e.to_string());
            let undo = json!({"metadata": {"labels": null, "annotations": null}, "spec": {"suspend": false}});
            if refused.is_none() {
                let (params, undo) = (PatchParams::default(), Patch::Merge(undo));
                rules(&admin).patch("guarded", &params, &undo).await?;
            }
            Ok(refused.filter(|why| why.contains("own-writes")))
        })
        .await?;
    }
    change(json!({"metadata": {"finalizers": ["runnel.dev/copies"]}})).await?;
    change(json!({"metadata": {"finalizers": null}})).await?;
    let events: Api<Event> = Api::namespaced(own.clone(), "default");
    let event = |controller: &str| -> Result<Event> {
        Ok(serde_json::from_value(json!({
            "metadata": {"generateName": "guarded-"}, "eventTime": "2026-01-01T00:00:00.000000Z", "action": "a", "reason": "r",
            "type": "Normal", "reportingController": controller, "reportingInstance": "i",
            "regarding": {"kind": "DistributionRule", "name": "guarded", "namespace": "default"},
        }))?)
    };
    let params = PostParams::default();
    let forged = events.create(&params, &event("kubelet")?).await;
    let forged = forged.err().context("an Event of another component")?;
    ensure!(forged.to_string().contains("own-writes"), "{forged}");
    events.create(&params, &event("runnel.dev/hub")?).await?;
    Ok(())
}
